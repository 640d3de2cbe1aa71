"""From a file, a text or data to a `ProbeSpec`, or to everything that is wrong with it at once."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from causalab_mini.data.fields import path_text
from causalab_mini.data.strict_json import parse_json, read_text
from causalab_mini.errors import DocumentError, InputError, Issue, Problem, SpecValidationError, did_you_mean, listed, quoted
from causalab_mini.plan.problems import location, problems_of
from causalab_mini.plan.selector import PositionSelector, read_position
from causalab_mini.plan.strict import shown
from causalab_mini.probing.spec.entry import PointEntry
from causalab_mini.probing.spec.point import ExtractionPoint, InterventionPolicy, ProbeSpec
from causalab_mini.probing.spec.tree import MAX_BYTES, Path, Tree, tree_of_data, tree_of_json, tree_of_yaml
from causalab_mini.probing.spec.words import TensorType
from causalab_mini.probing.spec.write import extraction_point_to_dict

VERSION = "1"
POINTS = "extraction_points"
MAX_ISSUES = 200
YAML_SUFFIXES = (".yaml", ".yml")

_OTHER_NAMES = {"layer": "layers", "tensor": "tensor_type", "every_n": "stride"}
_DEPRECATED = ("layer", "tensor")
_REQUIRED = {"layers", *(name for name, key in PointEntry.model_fields.items() if key.is_required())}
_Found = Iterator[tuple[Path, Problem]]


def load_yaml_file(path: str | os.PathLike[str]) -> ProbeSpec:
    """Returns the spec of a file: YAML, or JSON where its name ends in `.json`.

    Raises:
        SpecValidationError: the file can't be read, or is no valid spec; with everything that is wrong.
    """
    file = FilePath(path)
    try:
        text = read_text(file, SpecValidationError, MAX_BYTES)
    except ValueError:  # a path with a zero character
        raise SpecValidationError(Issue("", "a readable file", "a name that no file can have", code="unreadable"), str(file)) from None
    return _spec((tree_of_json if file.suffix.lower() == ".json" else tree_of_yaml)(text, str(file)), str(file))


def parse_yaml(text: str) -> ProbeSpec:
    """Returns the spec of a YAML text, as `load_yaml_file` does."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise SpecValidationError(Issue("", f"at most {MAX_BYTES:,} bytes", f"{size:,} bytes", code="too_large"))
    return _spec(tree_of_yaml(text, ""), "")


def parse_dict(data: Mapping[str, Any]) -> ProbeSpec:
    """Returns the spec that parsed YAML or JSON is, judged by the rules of JSON, as `load_yaml_file` does."""
    return _spec(tree_of_data(data if isinstance(data, dict) or not isinstance(data, Mapping) else dict(data)), "")


def verify_point(point: ExtractionPoint) -> None:
    """Judges a point that was built by hand as the parser would have.

    Raises:
        SpecValidationError: it breaks a rule.
    """
    _spec(tree_of_data({"version": VERSION, POINTS: [extraction_point_to_dict(point)]}), "")


def is_spec_file(path: FilePath) -> bool:
    """Returns whether a file is meant as an extraction spec: by its suffix, or JSON with `extraction_points`; a file that can't be read is none."""
    if path.suffix.lower() in YAML_SUFFIXES:
        return True
    if path.suffix.lower() != ".json":
        return False
    try:
        text = read_text(path, DocumentError)
        raw = parse_json(text, "", DocumentError) if f'"{POINTS}"' in text else None
    except (InputError, ValueError):
        return False
    return isinstance(raw, dict) and POINTS in raw


@dataclass(slots=True)
class _Reading:
    """A spec that is being judged."""

    tree: Tree
    issues: list[Issue] = field(default_factory=list)
    labels: dict[int, str] = field(default_factory=dict)

    def add(self, path: Path, problem: Problem) -> None:
        """Notes a problem under its path, with its place unless it has one."""
        line, column = problem.line, problem.column
        if line is None:
            line, column = self.tree.mark(path, of_key=problem.code == "unknown_key")
        point, rest = "", path
        if path[:1] == (POINTS,) and len(path) > 1 and isinstance(path[1], int):
            point, rest = self.labels.get(path[1], f"{POINTS}[{path[1]}]"), path[2:]
        where = path_text(rest)
        key = str(rest[0]) if rest else ""
        full = f"{point}.{where}" if point and where else point or where
        self.issues.append(Issue(full, problem.expected, problem.got, problem.hint, problem.code, line, column, "", point, key))


def _spec(tree: Tree, file: str) -> ProbeSpec:
    """Returns the spec of a tree; called by the public functions alone, so that a warning names who called those."""
    reading = _Reading(tree)
    raw = tree.value
    raw_points = raw.get(POINTS) if isinstance(raw, dict) else None
    points, older = [], []
    if isinstance(raw_points, list):
        reading.labels = {index: name for index, point in enumerate(raw_points) if (name := _name(point))}
    for path, issue in tree.problems[:MAX_ISSUES]:
        reading.add(path, issue)
    if not isinstance(raw, dict):
        if not tree.problems:
            hint = f"the points go under `{POINTS}`" if isinstance(raw, list) else ""
            reading.add((), Problem("", f"an object with `{POINTS}`", shown(raw), hint, "type"))
    else:
        for path, problem in _of_the_whole(raw, {path for path, _ in tree.problems}):
            reading.add(path, problem)
        for index, raw_point in enumerate(raw_points if isinstance(raw_points, list) else ()):
            point, old = _point(raw_point, index, reading)
            points += [point] if point else []
            older += [f"{quoted(key)} of {quoted(reading.labels.get(index, index))}" for key in old]
            if len(reading.issues) >= MAX_ISSUES:
                break
    if reading.issues:
        reading.issues.sort(key=lambda issue: (issue.line or 0, issue.column or 0))
        raise SpecValidationError(reading.issues, file)
    if older:
        message = f"`layer` and `tensor` are older names of `layers` and `tensor_type`: {', '.join(older)}"
        warnings.warn(f"{file}: {message}" if file else message, DeprecationWarning, stacklevel=3)
    return ProbeSpec(tuple(points))


def _name(raw_point: Any) -> str:
    """Returns what a point is called in messages, empty where its name is none."""
    name = raw_point.get("name") if isinstance(raw_point, dict) else None
    return name if isinstance(name, str) and name.strip() and name.isprintable() and len(name) <= 100 else ""


def _of_the_whole(raw: dict[str, Any], refused: set[Path]) -> _Found:
    """Yields what is wrong with the keys of the whole spec, and between its points; what was refused already is not judged again."""
    known = ("version", POINTS)
    for key in raw:
        if key not in known:
            hint = f"a point's key goes under `{POINTS}`" if key in _keys() else did_you_mean(key, known)
            yield (key,), Problem("", f"a known key ({listed(known)})", f"the unknown key {quoted(key)}", hint, "unknown_key")
    version = raw.get("version", VERSION)
    if version != VERSION and ("version",) not in refused:
        hint = 'write `version: "1"`, in quotes' if type(version) in (int, float) and version == 1 else ""
        hint = hint or ("this release reads version 1; a newer one may be needed" if isinstance(version, str) else "")
        yield ("version",), Problem("", 'the text `"1"`', shown(version), hint, "version")
    points = raw.get(POINTS)
    if (POINTS,) in refused:
        return
    if POINTS not in raw:
        if not any(path[:1] == (POINTS,) for path in refused):
            yield (POINTS,), Problem("", "a value (it is required)", "none", code="missing")
    elif not isinstance(points, list) or not points:
        got = "an empty list" if points == [] else shown(points)
        yield (POINTS,), Problem("", "a list of at least one extraction point", got, code="type")
    else:
        first: dict[str, int] = {}
        for index, name in enumerate(map(_name, points)):
            if name and name in first:
                yield (
                    (POINTS, index, "name"),
                    Problem("", "each name once", f"{quoted(name)} again (`{POINTS}[{first[name]}]` has it)", code="duplicate"),
                )
            first.setdefault(name, index)


def _keys() -> list[str]:
    return list(PointEntry.model_fields)


def _point(raw: Any, index: int, reading: _Reading) -> tuple[ExtractionPoint | None, list[str]]:
    """Returns a point, None with what is wrong noted, and which deprecated names it uses."""
    here: Path = (POINTS, index)
    below = {path[2] for path, _ in reading.tree.problems if path[:2] == here and len(path) > 2}
    if not isinstance(raw, dict):
        if not any(path[:2] == here for path, _ in reading.tree.problems):
            reading.add(here, Problem("", "an object (an extraction point)", shown(raw), code="type"))
        return None, []
    known, spelled = dict(raw), {}
    n_before = len(reading.issues)
    for other, name in _OTHER_NAMES.items():
        if other not in raw:
            continue
        if name in raw:
            reading.add((*here, other), Problem("", f"one of `{name}` and `{other}`, which are the same", "both", code="duplicate"))
        else:
            known[name], spelled[name] = known[other], other
        del known[other]
    bad = {_OTHER_NAMES.get(str(key), str(key)) for key in below}
    known = {key: value for key, value in known.items() if key not in bad}
    for path, problem in _nulls(known):
        bad.add(str(path[0]))
        reading.add((*here, spelled.get(str(path[0]), str(path[0])), *path[1:]), problem)
    known = {key: value for key, value in known.items() if key not in bad}
    entry = None
    try:
        entry = PointEntry.__pydantic_validator__.validate_python(known)
    except ValidationError as error:
        for said, problem in zip(error.errors(include_url=False), problems_of(error, PointEntry), strict=True):
            key, *rest = location(said["loc"]) or ("",)
            if problem.code == "missing" and not rest and key in bad:
                continue
            bad.add(str(key))
            reading.add((*here, spelled.get(str(key), key), *rest), problem)
    for (name, *inner), problem in _combinations(known, bad):
        reading.add((*here, spelled.get(name, name), *inner), problem)
    if entry is None or below or len(reading.issues) > n_before:
        return None, []
    return point_of(entry), [old for old in _DEPRECATED if old in spelled.values()]


def point_of(entry: PointEntry) -> ExtractionPoint:
    """Returns the point that was written."""
    values = {name: getattr(entry, name) for name in PointEntry.model_fields}
    if (policy := entry.intervention) is not None:
        values["intervention"] = InterventionPolicy(policy.mode, policy.timeout_ms, policy.on_timeout)
    return ExtractionPoint(**values)


def combinations(raw: dict[str, Any]) -> _Found:
    """Yields what is wrong between the keys of a point whose keys are each right."""
    return _combinations(raw, set())


def _nulls(raw: dict[str, Any]) -> _Found:
    """Yields every `null` that stands where a spec has none."""
    for key, value in raw.items():
        inside = value.items() if key == "intervention" and isinstance(value, dict) else ()
        for path in [(key,)] if value is None else [(key, inner) for inner, given in inside if given is None]:
            hint = "" if key in _REQUIRED else "leave the key out for its default"
            yield path, Problem("", "a value", "`null`", hint, "type")


def _combinations(raw: dict[str, Any], bad: set[str]) -> Iterator[tuple[tuple[str, ...], Problem]]:
    """Yields what is wrong between the keys of a point; a key that is wrong in itself counts as unknown, and convicts no other."""

    def has(key: str) -> bool:
        return key in raw and key not in bad

    def refusal(expected: str, key: str, hint: str, code: str = "combination") -> Problem:
        return Problem("", expected, shown(raw[key]), hint, code)

    tensor = raw.get("tensor_type")
    if "layers" not in raw and not bad & {"layers", "tensor_type"} and tensor in set(TensorType) and TensorType(tensor).per_layer:
        expected = f"a layer or a list of layers (every layer has its own {quoted(tensor)})"
        yield ("layers",), Problem("", expected, "none", code="missing")

    position = read_position(raw.get("position"))
    is_single = has("position") and isinstance(position, PositionSelector) and not position.is_continuous
    if is_single:
        for key in ("stride", "until", "count", "token"):
            if has(key):
                expected = f"no `{key}` beside a position that is one token (`{position}`)"
                yield (key,), refusal(expected, key, f"take `{key}` out, or take a run such as `generated[*]`")
    for key, word in (("count", "fixed_count"), ("token", "stop_token")):
        if is_single or "until" in bad or key in bad:
            continue
        if raw.get("until") == word and key not in raw:
            yield (key,), Problem("", f"a value (`until: {word}` needs it)", "none", code="missing")
        elif raw.get("until") != word and key in raw:
            yield (key,), refusal(f"no `{key}` without `until: {word}`", key, f"add `until: {word}`, or take `{key}` out")

    mode = raw.get("execution_mode", "inline")
    is_async = mode == "async"
    if "execution_mode" not in bad:
        if is_async and has("probe_kind") and raw["probe_kind"] == "single_shot":
            expected = "`inline` beside `probe_kind: single_shot` (it has no state to carry along behind the generation)"
            yield ("execution_mode",), refusal(expected, "execution_mode", "take `inline`, or a `trajectory` probe")
        for key in ("queue_depth", "overflow"):
            if has(key) and not is_async:
                hint = f"add `execution_mode: async`, or take `{key}` out"
                yield (key,), refusal(f"no `{key}` without `execution_mode: async` (an inline point has no queue)", key, hint)
    if has("intervention"):
        yield from _policy(raw["intervention"], is_async and "execution_mode" not in bad)


def _policy(raw: dict[str, Any], is_async: bool) -> Iterator[tuple[tuple[str, ...], Problem]]:
    """Yields what is wrong between the keys of an intervention."""
    mode = raw.get("mode", "reject")
    if is_async and mode != "reject":
        expected = "`reject` beside `execution_mode: async` (an async point never holds up the generation)"
        yield ("intervention", "mode"), Problem("", expected, shown(mode), "take `reject`, or `execution_mode: inline`", "combination")
    if mode == "block_until_signal":
        if "timeout_ms" not in raw:
            expected = "milliseconds, at least 1 (`block_until_signal` needs a limit)"
            yield ("intervention", "timeout_ms"), Problem("", expected, "none", code="missing")
        return
    for key, is_set in (("timeout_ms", "timeout_ms" in raw), ("on_timeout", raw.get("on_timeout", "continue") != "continue")):
        if is_set:
            hint = f"add `mode: block_until_signal`, or take `{key}` out"
            expected = f"no `{key}` under `mode: reject` (nothing is waited for)"
            yield ("intervention", key), Problem("", expected, shown(raw[key]), hint, "combination")
