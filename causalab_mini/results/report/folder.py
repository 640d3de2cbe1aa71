"""What a report takes out of a results folder, on top of `open_run`: what may be missing is missing, and says why."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from causalab_mini.errors import CausalabError, DataError, Problem, UsageError, quoted
from causalab_mini.results.places import PLACES
from causalab_mini.results.reading import open_run
from causalab_mini.results.reading.folder import refuse_outside
from causalab_mini.results.reading.rows import read_json, read_rows
from causalab_mini.results.reading.shapes import Places, refuse_other
from causalab_mini.results.store import CHECKPOINTS

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rows:
    """A table: its file below the folder, and its rows; why they are not there, where they are not."""

    file: str
    rows: Sequence[Row]
    missing: str = ""


@contextmanager
def drawn_from(path: Path, *more: type[Exception]) -> Iterator[None]:
    """Refuses a file whose parts can't be drawn: one that was edited deeper than its shape is judged.

    Args:
        path: the file, or the folder, that is drawn within.
        more: what else is raised by what no run writes.

    Raises:
        DataError: drawing came upon something that no run writes; the cause is kept.
    """
    kinds: tuple[type[Exception], ...] = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError, *more)
    try:
        yield
    except kinds as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}, line {last.lineno}"  # all that is left to find it by, where it is a fault of ours
        got = f"something else ({type(error).__name__}: {str(error)[:200]}; {where})"
        hint = "the same `causalab-mini run` writes it anew; where nobody has edited it, this is a fault of ours: please report it"
        raise DataError(Problem("", "results as a run writes them", got, hint, "results"), str(path)) from error


class Folder:
    """A results folder of the verb `run`, whether the run has come to its end or not.

    Args:
        path: of the folder.

    Raises:
        DataError: it is no folder of results, or a file of it is not whole.
        UsageError: it is one of the verb `probe`.
    """

    def __init__(self, path: Path) -> None:
        run = open_run(path)
        if run.is_recording:
            raise UsageError(Problem("", "the folder of `causalab-mini run`", f"{quoted(path)}, one of `probe`", code="results"))
        self.path = path
        self.record: Mapping[str, Any] = run.record
        self.document: Mapping[str, Any] = run.document
        self.summary: Mapping[str, Any] = run.summary if run.has_summary else {}
        self.points: Mapping[str, Mapping[str, Any]] = run.points
        self.places: Mapping[str, Any] | None = None
        if (path / PLACES).is_file():
            self.places = read_json(path / PLACES)
            refuse_other(self.places, Places, path / PLACES)

    @cached_property
    def saves(self) -> dict[tuple[str, str, str], str]:
        """The file of each value, by point, step and value."""
        found = {}
        for entry in (self.places or {}).get("files", ()):
            for label in entry["points"] if entry["points"] is not None else self.points:
                path = "/".join(part for part in (label, entry["path"]) if part)
                found[label, entry["step"], entry["value"]] = path
                found.setdefault((label, entry["step"], entry["value"].rpartition("/")[2]), path)
        return found

    def table(self, point: str, step: str, value: str) -> Rows:
        """Returns a saved table."""
        if self.places is None:
            return Rows("", (), f"this folder has no {PLACES}: run it again with this version")
        name = self.saves.get((point, step, value)) or self.saves.get((point, step, value.rpartition("/")[2]))
        if name is None:
            return Rows("", (), f"the document does not save `{value}` of `{step}`: a save of it keeps its rows")
        return self.read(name)

    def read(self, name: str) -> Rows:
        """Returns a table's file."""
        path = self.path / name
        if not path.is_file():
            return Rows(name, (), f"{name} is not there: its point has not been run, or its file was moved")
        try:
            refuse_outside(path, self.path)
            return Rows(name, read_rows(path, ("label", "predicted")))
        except CausalabError as error:  # a number whose rows can't be read is still a number
            return Rows(name, (), "; ".join(f"{name} can't be read: expected {each.expected}, got {each.got}" for each in error.problems))

    def curves(self, point: str, step: str) -> tuple[Rows, Rows]:
        """Returns the losses of a fit by update, and what it was by epoch on the rows that it is judged on."""
        path = "/".join(part for part in (CHECKPOINTS, point, f"{step}.curves.json") if part)
        if (self.path / path).is_file():  # of a fit that was not finished
            refuse_outside(self.path / path, self.path)
            found = read_json(self.path / path)
            return Rows(path, found["train/loss"]), Rows(path, found["train/eval"])
        return self.table(point, step, "train/loss"), self.table(point, step, "train/eval")
