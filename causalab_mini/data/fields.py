"""Paths into a row (`counterfactual_inputs[0]`), and where a row's variables stand."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_NAME = r"[A-Za-z_][A-Za-z0-9_-]*"
_INDICES = r"(?:\[[0-9]{1,9}\])*"
FIELD_PATTERN = re.compile(rf"{_NAME}{_INDICES}(?:\.{_NAME}{_INDICES})*")
_PART = re.compile(rf"({_NAME})|\[([0-9]+)\]")

MISSING = object()
"""What `FieldPath.get` returns where a row has nothing at the path."""


@dataclass(frozen=True, slots=True)
class FieldPath:
    """Names and indices, from a row inwards."""

    parts: tuple[str | int, ...]

    def __str__(self) -> str:
        return path_text(self.parts)

    def get(self, row: Mapping[str, Any]) -> Any:
        """Returns what the row has at this path, or `MISSING`."""
        value: Any = row
        for part in self.parts:
            if isinstance(part, str):
                if not isinstance(value, Mapping) or part not in value:
                    return MISSING
                value = value[part]
            else:
                if not isinstance(value, list | tuple) or part >= len(value):
                    return MISSING
                value = value[part]
        return value

    def variable(self, name: str) -> FieldPath:
        """Returns where a variable of this field stands: `x[0]` and `v` give `x_variables[0].v`."""
        return FieldPath((f"{self.parts[0]}_variables", *self.parts[1:], name))


def path_text(path: Sequence[str | int]) -> str:
    """Returns a path as users read it: `interventions.patching.saves[0].value`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def parse_field(text: str) -> FieldPath | None:
    """Returns the path that a text spells, or None where it spells none."""
    if FIELD_PATTERN.fullmatch(text) is None:
        return None
    return FieldPath(tuple(name if name else int(index) for name, index in _PART.findall(text)))
