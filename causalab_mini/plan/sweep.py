"""Sweep wrappers in a raw document, and the plain document of each point.

A wrapper stands in place of a value: `{"sweep": [values]}`, `{"sweep": {"range": [start, stop, step]}}`, `{"sweep": "all"}`, each
with an optional `"as": AXIS`. Unnamed wrappers multiply in reading order; wrappers of one `as` move together.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from causalab_mini.data.fields import path_text
from causalab_mini.errors import Problem, quoted
from causalab_mini.plan.strict import NAME_PATTERN

MAX_POINTS = 100_000
"""Of a document, and values of one axis."""
MAX_EXPANDED_BYTES = 2_000_000_000
"""Of the documents of all points together."""
MAX_LABEL_BYTES = 120
FORBIDDEN = ("model", "header", "version", "$schema")

Path = tuple[str | int, ...]
CountAll = Callable[[Path, Any], int]
"""How many values `"all"` stands for at a path of a raw document: a number of layers or of heads."""


@dataclass(frozen=True, slots=True)
class Wrapper:
    """One wrapper and the values it stands for."""

    path: Path
    axis: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Axis:
    """Wrappers that move together."""

    name: str
    wrappers: tuple[Wrapper, ...]

    @property
    def values(self) -> tuple[Any, ...]:
        """What names the points: the values of the first wrapper that tells them apart, else those of all wrappers together."""
        for wrapper in self.wrappers:
            if len({show_value(value) for value in wrapper.values}) == len(wrapper.values):
                return wrapper.values
        return tuple(list(together) for together in zip(*(wrapper.values for wrapper in self.wrappers), strict=False))


@dataclass(frozen=True, slots=True)
class RawPoint:
    """One point: its label, the value of every axis, and the document with its wrappers replaced."""

    label: str
    values: Mapping[str, Any]
    document: Any


def find_axes(raw: Any, count_all: CountAll | None = None) -> tuple[tuple[Axis, ...], list[Problem]]:
    """Returns the axes of a raw document in reading order, and what is wrong with its wrappers.

    Args:
        raw: the parsed document.
        count_all: what `"all"` counts; absent, it stands for its first value alone (nothing is known of the model yet).
    """
    problems: list[Problem] = []
    by_name: dict[str, list[Wrapper]] = {}
    found = list(_wrappers(raw, ()))
    given = [wrapper["as"] for _, wrapper in found if "as" in wrapper]
    for path, wrapper in found:
        problem, values = _values(path, wrapper, raw, count_all)
        if problem is not None:
            problems.append(problem)
            continue
        if path[0] in FORBIDDEN:
            problems.append(Problem(path_text(path), f"no sweep in {quoted(path[0])}", "one", code="sweep"))
            continue
        if any(True for value in values for _ in _wrappers(value, path)):
            problems.append(Problem(path_text(path), "plain values", "a sweep inside a sweep", code="sweep"))
            continue
        if "as" in wrapper:
            name = wrapper["as"]
            by_name.setdefault(name, []).append(Wrapper(path, name, values))
        else:
            key = next(str(part) for part in reversed(path) if isinstance(part, str))
            names = itertools.chain([key], (f"{key}.{i}" for i in itertools.count(2)))
            name = next(name for name in names if name not in by_name and name not in given)
            by_name[name] = [Wrapper(path, name, values)]
    axes = tuple(Axis(name, tuple(wrappers)) for name, wrappers in by_name.items())
    for axis in axes:
        lengths = {len(wrapper.values) for wrapper in axis.wrappers}
        if len(lengths) > 1:
            got = ", ".join(f"{len(wrapper.values)} at {quoted(path_text(wrapper.path))}" for wrapper in axis.wrappers)
            problems.append(
                Problem(path_text(axis.wrappers[0].path), f"as many values in every sweep of {quoted(axis.name)}", got, code="sweep")
            )
        else:
            problems += _repeated(axis)
    n_points = math.prod(len(axis.values) for axis in axes)
    if n_points > MAX_POINTS:
        problems.append(Problem("", f"at most {MAX_POINTS:,} points", f"{n_points:,}", code="sweep"))
    elif n_points > 1 and not problems and (n_all := n_points * len(json.dumps(raw))) > MAX_EXPANDED_BYTES:
        got = f"{n_points:,} points of {n_all // n_points:,} bytes each"
        problems.append(Problem("", f"points of at most {MAX_EXPANDED_BYTES:,} bytes, all documents together", got, code="too_large"))
    return axes, problems


def expand(raw: Any, axes: Sequence[Axis]) -> Iterator[RawPoint]:
    """Yields every point of a document, the last axis fastest; a document without axes is its own one point."""
    for indices in itertools.product(*(range(len(axis.values)) for axis in axes)):
        document = raw
        for axis, index in zip(axes, indices, strict=True):
            for wrapper in axis.wrappers:
                document = _replaced(document, wrapper.path, wrapper.values[index])
        values = {axis.name: axis.values[index] for axis, index in zip(axes, indices, strict=True)}
        yield RawPoint(_label(axes, indices), values, document)


def show_value(value: Any) -> str:
    """Returns a swept value as a label shows it: a list of one as its element, a text as it is, the rest as compact JSON."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, str):
        try:
            json.loads(value)
        except (ValueError, RecursionError):
            return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _label(axes: Sequence[Axis], indices: Sequence[int]) -> str:
    pairs = list(zip(axes, indices, strict=True))
    label = ",".join(f"{axis.name}={_safe(show_value(axis.values[index]))}" for axis, index in pairs)
    if len(label.encode()) > MAX_LABEL_BYTES:
        label = ",".join(f"{axis.name}=#{index}" for axis, index in pairs)
    return label


def _safe(text: str) -> str:
    return quote(text, safe="[]+")


def _wrappers(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict):
        if _is_wrapper(value) and path:
            yield path, value
            return
        for key, inner in value.items():
            yield from _wrappers(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _wrappers(inner, (*path, index))


def _is_wrapper(value: Any) -> bool:
    if "sweep" not in value or set(value) - {"sweep", "as"}:
        return False
    return not isinstance(value["sweep"], dict) or "range" in value["sweep"] or "as" in value


def _values(path: Path, wrapper: Any, raw: Any, count_all: CountAll | None) -> tuple[Problem | None, tuple[Any, ...]]:
    where, swept = path_text(path), wrapper["sweep"]
    if "as" in wrapper and not (isinstance(wrapper["as"], str) and _is_axis_name(wrapper["as"])):
        return Problem(f"{where}.as", "a name", quoted(json.dumps(wrapper["as"])), code="sweep"), ()
    if swept == "all":
        if path[-1] not in ("layers", "heads"):
            return Problem(f"{where}.sweep", "a list or a range (`all` stands for layers or heads)", "`all`", code="sweep"), ()
        n = 1 if count_all is None else count_all(path, raw)
        return None, tuple([value] if path[-1] == "heads" else value for value in range(n))
    if isinstance(swept, dict):
        return _range(where, swept)
    if not isinstance(swept, list):
        expected = "a list of values, a range or `all`"
        return Problem(f"{where}.sweep", expected, quoted(json.dumps(swept)), code="sweep"), ()
    if len(swept) > MAX_POINTS:
        return Problem(f"{where}.sweep", f"at most {MAX_POINTS:,} values", f"{len(swept):,}", code="sweep"), ()
    if not swept:
        return Problem(f"{where}.sweep", "at least one value", "an empty list", code="sweep"), ()
    return None, tuple(swept)


def _repeated(axis: Axis) -> Iterator[Problem]:
    """Yields what is wrong where two points of an axis are one, or have one label."""
    where = f"{path_text(axis.wrappers[0].path)}.sweep"
    together = list(zip(*(wrapper.values for wrapper in axis.wrappers), strict=True))
    spelled = [json.dumps(values[0] if len(values) == 1 else values, sort_keys=True) for values in together]
    labels = [show_value(values[0] if len(values) == 1 else list(values)) for values in together]
    for names, expected in ((spelled, "distinct values"), (labels, "values that are labelled apart (a list of one is as its element)")):
        if len(set(names)) != len(names):
            twice = next(name for name, n in Counter(names).items() if n > 1)
            yield Problem(where, expected, f"{quoted(twice)} twice", code="sweep")
            return


def _range(where: str, swept: Any) -> tuple[Problem | None, tuple[int, ...]]:
    bounds: Any = swept["range"] if set(swept) == {"range"} else None
    is_range = isinstance(bounds, list) and len(bounds) in (2, 3) and all(type(bound) is int for bound in bounds)
    if not is_range or (len(bounds) == 3 and bounds[2] == 0) or any(abs(bound) > MAX_POINTS * MAX_POINTS for bound in bounds):
        expected = '`{"range": [start, stop]}` or `{"range": [start, stop, step]}` of integers'
        return Problem(f"{where}.sweep", expected, quoted(json.dumps(swept)), code="sweep"), ()
    values = range(*bounds)
    if len(values) > MAX_POINTS:
        return Problem(f"{where}.sweep", f"at most {MAX_POINTS:,} values", f"{len(values):,}", code="sweep"), ()
    if not values:
        return Problem(f"{where}.sweep", "at least one value", "an empty range", code="sweep"), ()
    return None, tuple(values)


def _is_axis_name(text: str) -> bool:
    return re.fullmatch(NAME_PATTERN, text) is not None and len(text) <= 100


def _replaced(value: Any, path: Path, new: Any) -> Any:
    """Returns a copy with one value replaced; what is not on the path is shared."""
    if not path:
        return new
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _replaced(value[path[0]], path[1:], new)
    return copy
