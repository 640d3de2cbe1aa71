"""A document as text in one layout, and what differs between two documents."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from causalab_mini.data.fields import path_text
from causalab_mini.plan.digest import canonical
from causalab_mini.plan.load import Document
from causalab_mini.plan.problems import inside, known_keys, of_kind
from causalab_mini.plan.spec import Spec
from causalab_mini.plan.sweep import find_axes

WIDTH = 100


def formatted(raw: Any) -> str:
    """Returns a document's text: keys in the order of the reference, what fits a line on one line; the meaning is untouched.

    Declared names keep their order, since that of steps counts; all keys do where another order would be another order of sweep axes.
    """
    ordered = _ordered(raw, [Spec])
    is_same = [axis.name for axis in find_axes(ordered)[0]] == [axis.name for axis in find_axes(raw)[0]]
    return _text(ordered if is_same else raw, 0) + "\n"


def differences(left: Any, right: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str, Any, Any]]:
    """Yields where two JSON values differ: a path and both values, `None` for what is not there."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in dict.fromkeys([*left, *right]):
            if key not in left or key not in right:
                yield path_text((*path, key)), left.get(key), right.get(key)
            else:
                yield from differences(left[key], right[key], (*path, key))
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for index, (a, b) in enumerate(zip(left, right, strict=True)):
            yield from differences(a, b, (*path, index))
    elif left != right or type(left) is not type(right):
        yield path_text(path), left, right


def document_differences(one: Document, other: Document) -> list[tuple[str, Any, Any]]:
    """Returns where two documents differ in what they mean, as `differences` does; nothing where they are the same experiment.

    A place where several points differ is given once, with the first values.
    """
    found: list[tuple[str, Any, Any]] = []
    if one.digest == other.digest:
        return found
    for a, b in zip(one.points, other.points, strict=False):
        found += [entry for entry in differences(canonical(a.spec), canonical(b.spec)) if entry[0] not in {path for path, _, _ in found}]
    if len(one.points) != len(other.points):
        found.append(("points", len(one.points), len(other.points)))
    for path in dict.fromkeys([*one.uncounted, *other.uncounted]):
        sides = ["all" if path in side.uncounted else None for side in (one, other)]
        if sides[0] != sides[1]:
            found.append((path, sides[0], sides[1]))
    return found


def _ordered(value: Any, annotations: list[Any]) -> Any:
    if isinstance(value, list):
        return [
            _ordered(item, [inner for annotation in annotations for inner in inside(annotation, index)]) for index, item in enumerate(value)
        ]
    if not isinstance(value, dict):
        return value
    if "kind" in value:
        annotations = of_kind(annotations, value["kind"])
    known = list(dict.fromkeys(known_keys(annotations)))
    first = [key for key in ("$schema", "kind") if key in value]
    keys = [
        *first,
        *(key for key in known if key in value and key not in first),
        *(key for key in value if key not in known and key not in first),
    ]
    return {key: _ordered(value[key], [inner for annotation in annotations for inner in inside(annotation, key)]) for key in keys}


def _text(value: Any, indent: int) -> str:
    flat = json.dumps(value, ensure_ascii=False)
    is_nested = isinstance(value, dict | list) and any(isinstance(item, dict | list) and item for item in _items(value))
    if not isinstance(value, dict | list) or not value or (len(flat) + indent <= WIDTH and (not is_nested or len(flat) < WIDTH // 2)):
        return flat
    pad = " " * (indent + 2)
    if isinstance(value, dict):
        lines = [f"{pad}{json.dumps(key, ensure_ascii=False)}: {_text(item, indent + 2)}" for key, item in value.items()]
        return "{\n" + ",\n".join(lines) + "\n" + " " * indent + "}"
    return "[\n" + ",\n".join(pad + _text(item, indent + 2) for item in value) + "\n" + " " * indent + "]"


def _items(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value
