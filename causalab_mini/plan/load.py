"""The load stage: a file, or a parsed document, becomes a Document whose every point is a valid Spec.

All problems of a document come at once: an object that does not validate is set aside, so that the rest can still be judged.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from causalab_mini.data.fields import parse_field, path_text
from causalab_mini.data.strict_json import parse_json, read_text
from causalab_mini.errors import DocumentError, Problem, UsageError, quoted
from causalab_mini.plan.check import check
from causalab_mini.plan.digest import digest, digest_of_points
from causalab_mini.plan.problems import location, problems_of
from causalab_mini.plan.spec import NULLABLE, ModelSpec, Spec
from causalab_mini.plan.sweep import Axis, CountAll, expand, find_axes

DECLARING = ("roles", "sites", "featurizers", "interventions")
SECTIONS_OF_INTERVENTION = ("reads", "writes", "models", "metrics")


@dataclass(frozen=True, slots=True)
class Point:
    """One experiment of a document: its label (empty where nothing is swept), its place on every axis, its Spec."""

    label: str
    values: Mapping[str, Any]
    spec: Spec

    @property
    def digest(self) -> str:
        """What makes it the experiment it is."""
        return digest(self.spec)


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """A valid document.

    Attributes:
        path: the file, None where it was given as data.
        raw: as it was written, with overrides in.
        axes: of its sweeps, in reading order; empty without.
        points: every experiment, the last axis fastest.
        counts_all: whether `"all"` has been counted; until then it stands for its first value.
    """

    path: Path | None
    raw: Any
    axes: tuple[Axis, ...]
    points: tuple[Point, ...]
    counts_all: bool

    @property
    def model(self) -> ModelSpec:
        """The checkpoint of every point."""
        return self.points[0].spec.model

    @property
    def uncounted(self) -> tuple[str, ...]:
        """The paths of `"all"` that stand for their first value as yet."""
        wrappers = () if self.counts_all else [wrapper for axis in self.axes for wrapper in axis.wrappers]
        return tuple(path_text(wrapper.path) for wrapper in wrappers if wrapper_is_all(self.raw, wrapper.path))

    @property
    def digest(self) -> str:
        """What makes it the experiment it is; another one as long as an `"all"` is uncounted."""
        return digest_of_points([*((point.label, point.digest) for point in self.points), *(("all", path) for path in self.uncounted)])

    @property
    def is_sweep(self) -> bool:
        """Whether it has more than its own one point, or axes of length one."""
        return bool(self.axes)

    def counted(self, count_all: CountAll) -> Document:
        """Returns the document with every `"all"` counted."""
        return self if self.counts_all else load_raw(self.raw, self.path, count_all)


def load_spec(path: Path, overrides: Mapping[str, Any] | None = None) -> Document:
    """Returns the document of a file.

    Args:
        path: the file.
        overrides: new values by path, as `--set` gives them.

    Raises:
        DocumentError: the file can't be read, is not strict JSON, or is not a valid document; with every problem.
    """
    raw = parse_json(read_text(path, DocumentError), str(path), DocumentError)
    if overrides and isinstance(raw, dict):
        for where, value in overrides.items():
            raw = override(raw, where, value)
    return load_raw(raw, path)


def load_raw(raw: Any, path: Path | None = None, count_all: CountAll | None = None) -> Document:
    """Returns the document that parsed JSON is, as `load_spec` does."""
    file = "" if path is None else str(path)
    if not isinstance(raw, dict):
        got = quoted(json.dumps(raw)) if not isinstance(raw, list) else "a list"
        raise DocumentError(Problem("", "an object (a document)", got, code="type"), file)
    axes, problems = find_axes(raw, count_all)
    if problems:
        raise DocumentError(problems, file)
    has_all = any(wrapper_is_all(raw, wrapper.path) for axis in axes for wrapper in axis.wrappers)
    points, said = [], {}
    for raw_point in expand(raw, axes):
        spec, found = _validate({key: value for key, value in raw_point.document.items() if key != "$schema"})
        said.update({(problem.path, problem.expected, problem.got): problem for problem in found})
        if spec is not None and not said:
            points.append(Point(raw_point.label, raw_point.values, spec))
        if len(said) > 200:
            break
    if said:
        raise DocumentError(said.values(), file)
    return Document(path, raw, axes, tuple(points), counts_all=count_all is not None or not has_all)


def wrapper_is_all(raw: Any, path: tuple[str | int, ...]) -> bool:
    """Returns whether the wrapper at a path is `{"sweep": "all"}`."""
    for part in path:
        raw = raw[part]
    return bool(raw["sweep"] == "all")


def override(raw: Any, where: str, value: Any) -> Any:
    """Returns a document with one value replaced or added.

    Raises:
        UsageError: the path leads through something that is not there.
    """
    path = parse_field(where)
    if path is None:
        raise UsageError(Problem("--set", "`path=value` with a path like `model.dtype`", quoted(where), code="usage"))
    copy = json.loads(json.dumps(raw))
    here = copy
    for part in path.parts[:-1]:
        there = (
            here.get(part)
            if isinstance(here, dict)
            else here[part]
            if isinstance(here, list) and isinstance(part, int) and part < len(here)
            else None
        )
        if not isinstance(there, dict | list):
            raise UsageError(Problem("--set", f"a path into the document ({quoted(str(part))} is not there)", quoted(where), code="usage"))
        here = there
    last = path.parts[-1]
    if isinstance(here, list) and not (isinstance(last, int) and last < len(here)):
        raise UsageError(Problem("--set", "an index that is there", quoted(where), code="usage"))
    here[last] = value
    return copy


def _validate(document: dict[str, Any]) -> tuple[Spec | None, list[Problem]]:
    """Returns the Spec, or None with all problems: those of each object alone, and those between the objects that are valid."""
    problems: list[Problem] = []
    rest, spec = document, None
    for _ in range(50):
        try:
            spec = Spec.__pydantic_validator__.validate_python(rest)
            break
        except ValidationError as error:
            problems = problems or problems_of(error, Spec)
            pruned = _without(rest, [location(entry["loc"]) for entry in error.errors(include_url=False)])
            if pruned == rest:
                break
            rest = pruned
    nulls = list(_nulls(document, ()))
    problems = [*(problem for problem in problems if problem.path not in {null.path for null in nulls}), *nulls]
    if spec is not None:
        sections = {problem.path for problem in problems if problem.code in ("type", "missing")} & set(DECLARING)
        problems += [problem for problem in check(spec, document) if not (sections and problem.code == "reference")]
    return (None if problems else spec), problems


def _nulls(value: Any, path: tuple[str | int, ...]) -> Iterator[Problem]:
    """Yields every `null` that stands where the language has none."""
    if value is None and (not path or path[-1] not in NULLABLE):
        yield Problem(path_text(path), "a value", "`null`", "leave the key out for its default", "type")
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _nulls(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _nulls(inner, (*path, index))


def _without(document: dict[str, Any], locations: list[tuple[str | int, ...]]) -> dict[str, Any]:
    """Returns a document without the declared things, or optional sections, in which something is wrong."""
    copy: dict[str, Any] = json.loads(json.dumps(document))
    for loc in locations:
        if not loc:
            continue
        if loc[0] == "model":
            copy["model"] = {"key": "bundled:any", "dtype": "fp32"}
            continue
        depth = 4 if loc[0] == "interventions" and len(loc) >= 4 and loc[2] in SECTIONS_OF_INTERVENTION else 2
        if loc[0] not in (*DECLARING, "steps"):
            depth = 1
        path = loc[:depth]
        here: Any = copy
        for part in path[:-1]:
            here = here.get(part, {}) if isinstance(here, dict) else {}
        if isinstance(here, dict):
            here.pop(path[-1], None)
    return copy
