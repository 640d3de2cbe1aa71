"""The notebook runs from a clean start, and gives what is stored in it."""

import re

import nbformat
import pytest
from conftest import ROOT
from nbclient import NotebookClient

pytestmark = pytest.mark.tiny

NUMBER = re.compile(r"-?\d+\.\d+(?:e[+-]\d+)?")
COLOUR = re.compile(r"background:#\w+;color:\w+")


def texts(notebook):
    """The outputs of every cell: their words, and their numbers."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.get("name") == "stderr":
                continue
            data = output.get("data", {"text/plain": output.get("text", "")})
            text = COLOUR.sub("", data.get("text/html", data["text/plain"]))
            yield NUMBER.sub("#", text), [float(number) for number in NUMBER.findall(text)]


def test_the_notebook_gives_what_is_stored_in_it(tmp_path):
    notebook = nbformat.read(ROOT / "docs" / "notebook.ipynb", as_version=4)
    stored = list(texts(notebook))
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    ran = list(texts(notebook))
    assert [words for words, _ in ran] == [words for words, _ in stored]
    for (_, numbers), (words, expected) in zip(ran, stored, strict=True):
        assert numbers == pytest.approx(expected, abs=0.05), words
