"""Pydantic's errors in the words of this project: a path a user can follow, what was expected there, what was got."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, Tag, ValidationError

from causalab_mini.data.fields import path_text
from causalab_mini.errors import Problem, did_you_mean, listed, quoted
from causalab_mini.plan.position import SEGMENT_PATTERN
from causalab_mini.plan.strict import NAME_PATTERN

A_NAME = "a name (letters, digits, `_`, `-`; not a digit or `-` first; at most 100 characters)"
FORMS: Mapping[str, str] = {NAME_PATTERN: A_NAME, SEGMENT_PATTERN: "a turn like `user` or `user[1]`, or `prefix`"}
TYPES: Mapping[str, str] = {
    "bool_type": "`true` or `false`",
    "dict_type": "an object",
    "float_type": "a number",
    "finite_number": "a finite number",
    "int_type": "an integer",
    "list_type": "a list",
    "int_from_float": "an integer",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "none_required": "nothing",
    "string_type": "a string",
    "tuple_type": "a list",
}


def problems_of(error: ValidationError, root: type[BaseModel]) -> list[Problem]:
    """Returns every problem of a failed validation, in the order of the document's models."""
    return [_problem(dict(entry), root) for entry in error.errors(include_url=False)]


def location(entry_loc: Sequence[str | int]) -> tuple[str | int, ...]:
    """Returns a pydantic location without the tags of unions."""
    return tuple(part for part in entry_loc if not (isinstance(part, str) and (part[:1] == "<" or part == "[key]")))


def _problem(entry: dict[str, Any], root: type[BaseModel]) -> Problem:
    loc: tuple[str | int, ...] = entry["loc"]
    path, kind, ctx = path_text(location(loc)), entry["type"], entry.get("ctx", {})
    value = entry["input"]
    got = _shown(value)
    if kind == "said":
        path = path_text((*location(loc), ctx["key"])) if ctx["key"] else path
        return Problem(path, ctx["expected"], ctx["got"], ctx["hint"], ctx["code"])
    if "[key]" in loc:
        return Problem(path, A_NAME, got, code="name")
    if kind == "extra_forbidden":
        key = str(loc[-1])
        known = _keys_at(root, loc[:-1])
        return Problem(path, f"a known key ({listed(known)})", f"the unknown key {quoted(key)}", did_you_mean(key, known), "unknown_key")
    if kind == "missing":
        return Problem(path, "a value (it is required)", "none", code="missing")
    if kind == "literal_error":
        known = re.findall(r"'([^']*)'", ctx["expected"]) or [ctx["expected"]]
        return Problem(path, listed(known), got, did_you_mean(value, known) if isinstance(value, str) else "", "enum")
    if kind in ("too_short", "too_long"):
        few = kind == "too_short"
        n = ctx["min_length" if few else "max_length"]
        return Problem(path, f"at {'least' if few else 'most'} {_entries(n)}", _entries(ctx["actual_length"]), code="length")
    if kind == "string_too_short":
        return Problem(path, "a text", "an empty one", code="length")
    if kind == "string_too_long":
        return Problem(path, f"at most {ctx['max_length']} characters", f"{len(value)}", code="length")
    if kind == "string_pattern_mismatch":
        return Problem(path, FORMS[ctx["pattern"]], got, code="name")
    if kind in ("greater_than", "greater_than_equal", "less_than", "less_than_equal"):
        word = {"greater_than": "above", "greater_than_equal": "at least", "less_than": "below", "less_than_equal": "at most"}[kind]
        bound = next(iter(ctx.values()))
        plain = int(bound) if isinstance(bound, float) and bound.is_integer() else bound
        return Problem(path, f"a number {word} {plain}", got, code="range")
    hint = (
        f"a list of one is `[{value}]`; swept, `[[0], [1]]`"
        if kind == "tuple_type" and type(value) is int and location(loc)[-1] in ("heads", "units")
        else ""
    )
    return Problem(path, TYPES.get(kind, entry["msg"][:1].lower() + entry["msg"][1:]), got, hint, "type")


def _entries(n: int) -> str:
    return {0: "none", 1: "one"}.get(n, str(n))


def _shown(value: Any) -> str:
    try:
        return quoted(json.dumps(value, ensure_ascii=False, default=lambda item: list(item) if isinstance(item, tuple) else str(item)))
    except (TypeError, ValueError):
        return quoted(value)


def _keys_at(root: Any, loc: Sequence[str | int]) -> list[str]:
    """Returns the keys of the model that stands at a location, following annotations and union tags."""
    here: list[Any] = [root]
    for part in loc:
        here = [inner for annotation in here for inner in inside(annotation, part)]
    return known_keys(here)


def known_keys(annotations: Iterable[Any]) -> list[str]:
    """Returns the keys of the models among some annotations."""
    models = [annotation for annotation in _flat(annotations) if _is_model(annotation)]
    return [field.alias or name for model in models for name, field in model.model_fields.items()]


def of_kind(annotations: Iterable[Any], kind: Any) -> list[Any]:
    """Returns which of some annotations' models have a kind; all annotations where none of them has it."""
    flat = _flat(annotations)
    models = [found for found in flat if _is_model(found) and "kind" in found.model_fields]
    return [found for found in models if kind in get_args(found.model_fields["kind"].annotation)] or flat


def inside(annotation: Any, part: str | int) -> list[Any]:
    """Returns what an annotation says of a key, an index, or a union's member by its tag."""
    if isinstance(part, str) and part.startswith("<"):
        return [member for member in _members(annotation) if part in _tags(member)] or [annotation]
    found = []
    for plain in _flat([annotation]):
        if _is_model(plain) and part in (fields := {field.alias or name: field for name, field in plain.model_fields.items()}):
            field = fields[str(part)]
            found.append(Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation)
        elif get_origin(plain) is dict:
            found.append(get_args(plain)[1])
        elif get_origin(plain) is tuple:
            found.append(get_args(plain)[0])
    return found


def _members(annotation: Any) -> list[Any]:
    """Returns a union's members with their tags, through any annotations around it."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner = get_args(annotation)[0]
        return _members(inner) if get_origin(inner) in (Union, UnionType) or not _tags(annotation) else [annotation]
    if origin in (Union, UnionType):
        return [member for arg in get_args(annotation) for member in _members(arg)]
    return [annotation]


def _tags(annotation: Any) -> list[str]:
    return [item.tag for item in get_args(annotation)[1:] if isinstance(item, Tag)] if get_origin(annotation) is Annotated else []


def _flat(annotations: Iterable[Any]) -> list[Any]:
    """Returns annotations without their wrappers, unions opened."""
    flat = []
    for annotation in annotations:
        if get_origin(annotation) is Annotated:
            flat += _flat([get_args(annotation)[0]])
        elif get_origin(annotation) in (Union, UnionType):
            flat += _flat(get_args(annotation))
        else:
            flat.append(annotation)
    return flat


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
