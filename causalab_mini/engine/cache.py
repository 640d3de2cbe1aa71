"""Keys and values of tokens that are not run: what a pass keeps of its own, and what a later one is handed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

KeysValues = tuple[Tensor, Tensor]
"""(row, head, token, feature) each."""


class PrefixCache(DynamicCache):  # type: ignore[misc]
    """A transformers cache that grows by nothing: what a layer gives is joined to what it was given, and handed back.

    Args:
        n_before: columns of keys and values that stand before the tokens of the forward.
        before: gives them for a layer; None where there are none.
        is_kept: whether what each layer attends to is kept, prefix and own.
    """

    def __init__(self, n_before: int = 0, before: Callable[[int], KeysValues] | None = None, is_kept: bool = False) -> None:
        super().__init__()
        self.n_before = n_before
        self.before = before
        self.kept: dict[int, KeysValues] | None = {} if is_kept else None

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> KeysValues:
        """Returns the keys and values that a layer attends to; where rows are still to join, those of the rows that are there."""
        keys, values = key_states, value_states
        if self.before is not None:
            n = len(key_states)
            earlier = self.before(layer_idx)
            keys = torch.cat([earlier[0][:n].to(keys.device, keys.dtype), keys], dim=-2)
            values = torch.cat([earlier[1][:n].to(values.device, values.dtype), values], dim=-2)
        if self.kept is not None:
            self.kept[layer_idx] = (keys, values)
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Returns how many columns stand before the tokens of the forward."""
        return self.n_before

    def get_mask_sizes(self, query_length: int | Tensor, layer_idx: int) -> tuple[int, int]:
        """Returns how many columns a layer attends to, and that none is left out before them; some releases hand in the tokens' numbers."""
        return self.n_before + (query_length if isinstance(query_length, int) else len(query_length)), 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Returns where the tokens of the forward begin."""
        return self.n_before
