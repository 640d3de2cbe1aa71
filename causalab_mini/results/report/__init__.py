"""A results folder as one page, or as pictures: read back, described as figures once, drawn twice."""

from causalab_mini.results.report.figures import figures_of
from causalab_mini.results.report.folder import Folder
from causalab_mini.results.report.page import page_of
from causalab_mini.results.report.plots import picture

__all__ = ["Folder", "figures_of", "page_of", "picture"]
