"""What steps hand to later ones: outputs as tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from causalab_mini.ops.windows import Pattern, Value


@dataclass(frozen=True, slots=True)
class Made:
    """An output of a step.

    Attributes:
        value: `rows`: of all rows of its step; `window`: one entry, the window that every row is given; `groups`: one entry a group.
        kind: which of these.
        is_stacked: whether the layer axis was asked for.
        groups: names, in the order of the entries.
        is_ragged: whether rows may have another number of tokens each, as the document has it and not as these rows happen to be.
        pattern: heads and keys of the features, where those are keys.
    """

    value: Value
    kind: Literal["rows", "window", "groups"]
    is_stacked: bool
    groups: tuple[str, ...] = ()
    is_ragged: bool = False
    pattern: Pattern | None = None


OutputTensors = Mapping[str, Made]
"""Outputs of earlier steps by name."""
