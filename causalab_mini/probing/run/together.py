"""Keys and values of rows that stand in one batch, padded on the left: rows are put behind the others, and taken out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer


class Together:
    """One cache, and which of its columns are whose.

    Attributes:
        cache: keys and values by layer, (row, head, column, feature).
        mask: (row, column), 1 where a column is a token of the row; a row's tokens are the last of its columns.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cache = DynamicCache()
        self.mask = torch.zeros((0, 0), dtype=torch.long, device=device)

    @property
    def is_divisible(self) -> bool:
        """Whether every layer keeps plain keys and values of all tokens, so that rows can be put in and taken out."""
        return all(type(layer) is DynamicLayer for layer in self.cache.layers)

    def grow(self, n_rows: int) -> None:
        """Adds a column, of a token of every row."""
        self.mask = torch.cat([self.mask, self.mask.new_ones((n_rows, 1))], dim=1)

    def add(self, other: Together) -> None:
        """Puts the rows of another batch behind these."""
        if not len(self.mask):
            self.cache, self.mask = other.cache, other.mask
            return
        n = max(self.mask.shape[1], other.mask.shape[1])
        for mine, theirs in zip(self.cache.layers, other.cache.layers, strict=True):
            if theirs.is_initialized:
                mine.keys = torch.cat([_padded(mine.keys, n), _padded(theirs.keys, n)])
                mine.values = torch.cat([_padded(mine.values, n), _padded(theirs.values, n)])
        self.mask = torch.cat([nn.functional.pad(mask, (n - mask.shape[1], 0)) for mask in (self.mask, other.mask)])

    def keep(self, rows: Sequence[int]) -> None:
        """Takes out all rows but some, and the columns that none of those has."""
        if not rows:
            self.__init__(self.device)  # type: ignore[misc]
            return
        chosen = torch.tensor(rows, device=self.device)
        self.mask = self.mask[chosen]
        first = int(self.mask.any(dim=0).int().argmax())
        self.mask = self.mask[:, first:].contiguous()
        for layer in self.cache.layers:
            if layer.is_initialized:
                at = chosen.to(layer.keys.device)
                layer.keys, layer.values = layer.keys[at, :, first:], layer.values[at, :, first:]


def _padded(states: Tensor, n_columns: int) -> Tensor:
    """Returns keys or values with zeros on the left, which nothing attends to."""
    return nn.functional.pad(states, (0, 0, n_columns - states.shape[-2], 0))
