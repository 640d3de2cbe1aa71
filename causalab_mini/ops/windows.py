"""Values at tokens: taken out of an activation, put back into it, and kept with the number of tokens of each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Value:
    """What a read found.

    Attributes:
        data: (layer, token, feature); the tokens of all rows one after the other.
        lengths: how many of them each row has; 0 where it has none.
    """

    data: Tensor
    lengths: tuple[int, ...]

    @property
    def starts(self) -> tuple[int, ...]:
        """Where each row's tokens begin."""
        return tuple(accumulate(self.lengths, initial=0))[:-1]

    def row(self, row: int) -> Tensor:
        """Returns one row's values, (layer, token, feature)."""
        start = self.starts[row]
        return self.data[:, start : start + self.lengths[row]]

    def one_token(self, rows: Sequence[int]) -> Tensor:
        """Returns the values of rows that have one token each, (layer, row, feature)."""
        starts = self.starts
        return self.data[:, torch.tensor([starts[row] for row in rows], device=self.data.device, dtype=torch.long)]


@dataclass(frozen=True, slots=True)
class Index:
    """Tokens of a padded batch, and which features of them.

    Attributes:
        rows, tokens: one entry a token, on the activation's device.
        features: which features; None for all.
    """

    rows: Tensor
    tokens: Tensor
    features: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)


def gather(activation: Tensor, index: Index) -> Tensor:
    """Returns the values at some tokens.

    Args:
        activation: (row, token, feature).
        index: n tokens of it.

    Returns:
        (n, feature), a copy.
    """
    found = activation[index.rows.to(activation.device), index.tokens.to(activation.device)]
    return found if index.features is None else found[:, index.features.to(activation.device)]


def scatter(activation: Tensor, index: Index, values: Tensor) -> Tensor:
    """Returns a copy of an activation with the values at some tokens replaced; everything else stays to the bit.

    Args:
        activation: (row, token, feature).
        index: n tokens of it.
        values: (n, feature).
    """
    changed = activation.clone()
    rows, tokens = index.rows.to(activation.device), index.tokens.to(activation.device)
    values = values.to(activation.device, activation.dtype)
    if index.features is None:
        changed[rows, tokens] = values
    else:
        changed[rows[:, None], tokens[:, None], index.features.to(activation.device)[None, :]] = values
    return changed


def concatenate(parts: Sequence[Value]) -> Value:
    """Returns the values of several batches as those of one, in the order given."""
    data = parts[0].data if len(parts) == 1 else torch.cat([part.data for part in parts], dim=1)
    return Value(data, tuple(length for part in parts for length in part.lengths))
