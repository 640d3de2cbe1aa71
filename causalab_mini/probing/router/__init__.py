"""The router: hands activations to probes, at once or behind the generation's back, and gathers what they say."""

from causalab_mini.probing.router.limits import QUEUE_DEPTH, Limits
from causalab_mini.probing.router.results import Abort, Counts, Failure, Outcome, ProbeResult
from causalab_mini.probing.router.router import Router, Watch

__all__ = ["QUEUE_DEPTH", "Abort", "Counts", "Failure", "Limits", "Outcome", "ProbeResult", "Router", "Watch"]
