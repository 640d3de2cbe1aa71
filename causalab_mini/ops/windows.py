"""Values at tokens: taken out of an activation, put back into it, and kept with the number of tokens of each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor


def placed(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns a tensor on a device; from the CPU to a GPU by way of pinned memory, so that nobody waits for the copy."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


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
class Pattern:
    """What the features of a value are where they are keys: those of one head after the other, as many a head as the row with most has.

    Attributes:
        n_heads: how many heads.
        n_keys: of each row of the step; what stands behind them is padding.
        labels: of the rows.
    """

    n_heads: int
    n_keys: tuple[int, ...]
    labels: tuple[str, ...]

    def row(self, value: Value, row: int) -> Tensor:
        """Returns one row's values without padding, (layer, head, token, key)."""
        found = value.row(row)
        by_head = found.reshape(*found.shape[:2], self.n_heads, max(self.n_keys))
        return by_head[..., : self.n_keys[row]].transpose(1, 2)

    def is_key(self, rows: Sequence[int]) -> Tensor:
        """Returns which features of some rows are keys and which are padding, (row, feature)."""
        n_keys = torch.tensor([self.n_keys[row] for row in rows])
        return (torch.arange(max(self.n_keys)) < n_keys[:, None]).repeat(1, self.n_heads)


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


@dataclass(frozen=True, slots=True)
class PatternIndex:
    """Tokens of a padded batch as queries, and which heads and keys of each.

    Attributes:
        rows, tokens: one entry a query.
        heads: which heads.
        keys: (query, key) columns of the keys; -1 pads queries that have fewer keys than others.
    """

    rows: Tensor
    tokens: Tensor
    heads: Tensor
    keys: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def on(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns what indexes (row, head, token, key), broadcast to (query, head, key), on a device."""
        rows, tokens, heads, keys = (placed(part, device) for part in (self.rows, self.tokens, self.heads, self.keys))
        return rows[:, None, None], heads[None, :, None], tokens[:, None, None], keys.clamp(min=0)[:, None, :]


def gather(activation: Tensor, index: Index | PatternIndex) -> Tensor:
    """Returns the values at some tokens.

    Args:
        activation: (row, token, feature), or (row, head, token, key) for a `PatternIndex`.
        index: n tokens of it.

    Returns:
        (n, feature), a copy; features of a pattern are its heads' keys one after the other, 0 where a query has fewer.
    """
    if isinstance(index, PatternIndex):
        found = activation[index.on(activation.device)]
        is_there = placed(index.keys >= 0, activation.device)[:, None, :]
        return torch.where(is_there, found, torch.zeros_like(found)).flatten(start_dim=1)
    found = activation[placed(index.rows, activation.device), placed(index.tokens, activation.device)]
    return found if index.features is None else found[:, placed(index.features, activation.device)]


def scatter(activation: Tensor, index: Index | PatternIndex, values: Tensor) -> Tensor:
    """Returns a copy of an activation with the values at some tokens replaced; everything else stays to the bit.

    Args:
        activation: (row, token, feature), or (row, head, token, key) for a `PatternIndex`.
        index: n tokens of it.
        values: (n, feature).
    """
    changed = activation.clone()
    values = values.to(activation.device, activation.dtype)
    if isinstance(index, PatternIndex):
        shape = (len(index), len(index.heads), index.keys.shape[1])
        is_there = placed(index.keys >= 0, activation.device)[:, None, :].expand(shape)
        places = tuple(place.expand(shape)[is_there] for place in index.on(activation.device))
        changed[places] = values.reshape(shape)[is_there]
        return changed
    rows, tokens = placed(index.rows, activation.device), placed(index.tokens, activation.device)
    if index.features is None:
        changed[rows, tokens] = values
    else:
        changed[rows[:, None], tokens[:, None], placed(index.features, activation.device)[None, :]] = values
    return changed


def renormalized(pattern: Tensor, index: PatternIndex) -> Tensor:
    """Returns a copy of a pattern in which every head of the queries of an index sums to 1 again, over all keys.

    Args:
        pattern: (row, head, token, key).
        index: the queries and heads.
    """
    rows, heads, tokens, _ = (part[..., 0] for part in index.on(pattern.device))
    changed = pattern.clone()
    lines = pattern[rows, heads, tokens]
    total = lines.sum(dim=-1, keepdim=True)
    changed[rows, heads, tokens] = lines / torch.where(total > 0, total, torch.ones_like(total))
    return changed


def concatenate(parts: Sequence[Value]) -> Value:
    """Returns the values of several batches as those of one, in the order given."""
    data = parts[0].data if len(parts) == 1 else torch.cat([part.data for part in parts], dim=1)
    return Value(data, tuple(length for part in parts for length in part.lengths))


def without_rows(value: Value, rows: Sequence[int]) -> Value:
    """Returns a value in which some rows have no token."""
    if not rows:
        return value
    left = [0 if row in rows else length for row, length in enumerate(value.lengths)]
    tokens = [start + i for row, start in enumerate(value.starts) for i in range(left[row])]
    return Value(value.data[:, torch.tensor(tokens, dtype=torch.long, device=value.data.device)], tuple(left))
