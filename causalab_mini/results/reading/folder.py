"""What is in a results folder, from its documented files alone: what the document saves, not what happens to lie there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from causalab_mini.data.opening import is_inside
from causalab_mini.errors import listed, quoted
from causalab_mini.results.reading.rows import READERS, read_json, refuse
from causalab_mini.results.reading.shapes import Record, refuse_other
from causalab_mini.results.store import DOCUMENT, POINTS, RECORD, SUMMARY

TENSORS = ".safetensors"
OF_PROBE: Mapping[str, str] = {
    "records.safetensors": "records",
    "records.json": "records",
    "verdicts.json": "verdicts",
    "generated.json": "generated",
}
"""The files of the verb `probe`, with what they hold."""
OWN_FILES = (RECORD, DOCUMENT, SUMMARY, POINTS, "places.json", "spec.yaml", *OF_PROBE)


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A file that a run saves, at every point alike.

    Attributes:
        path: below the point's folder.
        value: what it holds, in the document's words.
        step: that saves it; empty in a folder of `probe`.
    """

    path: str
    value: str
    step: str = ""

    @property
    def name(self) -> str:
        """The path without its suffix."""
        return self.path.removesuffix(self.suffix)

    @property
    def suffix(self) -> str:
        """`.json`, `.csv`, `.parquet` or `.safetensors`."""
        return Path(self.path).suffix

    @property
    def is_table(self) -> bool:
        """Whether it is a table; else it holds tensors."""
        return self.suffix in READERS


def read_record(path: Path) -> dict[str, Any]:
    """Returns the record of a folder.

    Raises:
        DataError: it is no folder of results, or its record is not whole.
    """
    if not path.is_dir():
        refuse(path, "a folder of results", "a file" if path.exists() else "no such folder")
    for name in OWN_FILES:
        refuse_outside(path / name, path)
    file = path / RECORD
    if not file.is_file():
        whole = next((parent for parent in path.resolve().parents if (parent / RECORD).is_file()), None)
        hint = f"the results of this point belong to `{whole}`" if whole else "`causalab-mini run DOC --out DIR` makes one"
        refuse(path, f"a folder of results (with `{RECORD}`)", "a folder without", hint=hint)
    record = read_json(file)
    if not isinstance(record, dict) or not isinstance(record.get("status"), str):
        refuse(file, "the record of a run (an object with `status`)", "something else")
    refuse_other(record, Record, file)
    return record


def read_points(path: Path) -> dict[str, dict[str, Any]]:
    """Returns the values of every axis by label; of a run without a sweep its one point, with an empty label.

    Raises:
        DataError: `points.json` is not whole.
    """
    if not (path / POINTS).is_file():
        return {"": {}}
    points = read_json(path / POINTS)
    if not isinstance(points, dict) or not all(isinstance(values, dict) for values in points.values()):
        refuse(path / POINTS, "an object of axes and values by label", "something else")
    if not points:
        refuse(path / POINTS, "at least one point", "none")
    if wrong := next((label for label in points if not _is_below(label) or "/" in label), None):
        refuse(path / POINTS, "labels that are names of folders", quoted(wrong))
    axes = next(iter(points.values()))
    if other := next((label for label, values in points.items() if set(values) != set(axes)), None):
        refuse(path / POINTS, f"the same axes at every point ({listed(axes) or 'none'})", listed(points[other]) or "none", quoted(other))
    return points


def saved_files(path: Path, document: Any, labels: Sequence[str]) -> list[SavedFile]:
    """Returns the files of a run that are there at one point at least, in the order of the document.

    Args:
        path: of the folder.
        document: as it was authored, None in a folder of `probe`.
        labels: of all points.
    """
    if document is None:
        return [SavedFile(name, value) for name, value in OF_PROBE.items() if (path / name).is_file()]  # links out are refused by now
    found = []
    for file in dict.fromkeys(_named(document)):
        there = [full for label in labels if (full := path / label / file.path).is_file()]
        for full in there:
            refuse_outside(full, path)
        found += [file] if there else []
    return found


def refuse_outside(file: Path, folder: Path) -> None:
    """Refuses a file of a results folder that is a link out of it, or below one: what it holds is nobody's result.

    Raises:
        DataError: it is.
    """
    if not is_inside(file, folder):
        refuse(file, "a file in the results folder itself", "a link that leads out of it")


def _named(document: Any) -> Iterator[SavedFile]:
    steps = document.get("steps") if isinstance(document, dict) else None
    for step, body in (steps if isinstance(steps, dict) else {}).items():
        if not isinstance(body, dict):
            continue
        nested = [] if isinstance(body.get("interventions"), str) else list(_texts(body.get("interventions")))
        for save in _saves(body):
            for file_path in filter(_is_below, _texts(save["file_path"])):
                for value in _texts(save["value"]):
                    yield SavedFile(file_path, value, step)
                    below = [f"{name}/{file_path}" for name in [*nested, value.partition("/")[0]]]
                    yield from (SavedFile(path, value, step) for path in below if _is_below(path))


def _texts(value: Any) -> Iterator[str]:
    """Yields the texts that stand at a place of a document, those of a sweep too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, dict):
        yield from _texts(value.get("sweep"))
        yield from _texts(value.get("name"))


def _saves(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yields the saves of a step, wherever they stand: of its evaluation, of a sweep."""
    if isinstance(value, dict) and {"value", "file_path"} <= set(value):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _saves(inner)


def _is_below(path: str) -> bool:
    """Returns whether a path stays below the folder that it is of."""
    return bool(path) and not Path(path).is_absolute() and ".." not in Path(path).parts and "\0" not in path
