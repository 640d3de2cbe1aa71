"""What a pass leaves for later ones: streams, keys and values of its batches, handed out by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from causalab_mini.engine.cache import KeysValues
from causalab_mini.ops.windows import Value, concatenate, placed


@dataclass(frozen=True, slots=True)
class KeptBatch:
    """What one batch left.

    Attributes:
        index: where each row of the step stands in it.
        cuts: how many tokens of each row were not run.
        streams: by layer, (row, token, feature), rows ending at the last token.
        keys_values: by layer, rows ending at the last column.
    """

    index: dict[int, int]
    cuts: dict[int, int]
    streams: dict[int, Tensor]
    keys_values: dict[int, KeysValues]


@dataclass(slots=True)
class Kept:
    """What a pass left for later ones.

    Attributes:
        lengths: tokens of each row of the step, in this pass.
        tails: by layer, what its blocks return beside the stream.
    """

    lengths: Sequence[int]
    batches: list[KeptBatch] = field(default_factory=list)
    tails: dict[int, tuple[Any, ...] | None] = field(default_factory=dict)

    def cut(self, row: int) -> int:
        """Returns how many tokens of a row were not run."""
        return next(batch.cuts[row] for batch in self.batches if row in batch.index)

    def stream(self, layer: int, rows: Sequence[int], n: int) -> Tensor:
        """Returns what left a layer at the last n tokens of some rows, (row, token, feature); 0 where a row is shorter."""
        if (batch := self._one_batch(rows)) is not None:
            found = batch.streams[layer]
            if found.shape[1] >= n:
                return _rows(found, [batch.index[row] for row in rows])[:, found.shape[1] - n :]
        parts = []
        for row in rows:
            batch = next(batch for batch in self.batches if row in batch.index)
            found = batch.streams[layer][batch.index[row]][-n:]
            parts.append(torch.nn.functional.pad(found, (0, 0, n - len(found), 0)))
        return torch.stack(parts)

    def keys_values(self, layer: int, rows: Sequence[int], cuts: Sequence[int], lengths: Sequence[int]) -> KeysValues:
        """Returns keys and values of the tokens before the cut of some rows, rows ending at the last column.

        Args:
            layer: whose.
            rows: of the step, as this pass names them.
            cuts: how many tokens of each.
            lengths: of the whole rows.
        """
        n, n_run = max(cuts), max(length - cut for length, cut in zip(lengths, cuts, strict=True))
        batch = self._one_batch(rows)
        if batch is not None and all(
            cut == 0 or (length - cut == n_run and self.lengths[row] == length)
            for row, length, cut in zip(rows, lengths, cuts, strict=True)
        ):
            keys, values = batch.keys_values[layer]
            if keys.shape[2] >= n + n_run:
                chosen = [batch.index[row] for row in rows]
                there = slice(keys.shape[2] - n_run - n, keys.shape[2] - n_run)
                return _rows(keys, chosen)[:, :, there], _rows(values, chosen)[:, :, there]
        found: tuple[list[Tensor], list[Tensor]] = ([], [])
        for row, cut in zip(rows, cuts, strict=True):
            batch = next(batch for batch in self.batches if row in batch.index)
            for tensor, into in zip(batch.keys_values[layer], found, strict=True):
                first = tensor.shape[2] - self.lengths[row]
                into.append(torch.nn.functional.pad(tensor[batch.index[row], :, first : first + cut], (0, 0, n - cut, 0)))
        return torch.stack(found[0]), torch.stack(found[1])

    def _one_batch(self, rows: Sequence[int]) -> KeptBatch | None:
        return next((batch for batch in self.batches if all(row in batch.index for row in rows)), None)


def _rows(tensor: Tensor, chosen: list[int]) -> Tensor:
    """Returns some rows: a view where those are the first ones in their order."""
    if chosen == list(range(len(chosen))):
        return tensor[: len(chosen)]
    return tensor[placed(torch.tensor(chosen), tensor.device)]


@dataclass(slots=True)
class RowValues:
    """A read's values, as the batches that found them left them: each of some rows of the step."""

    chunks: list[tuple[tuple[int, ...], Value]] = field(default_factory=list)

    def of(self, rows: Sequence[int]) -> Value:
        """Returns the values of some rows, in their order; a row that nobody found has none."""
        if len(self.chunks) == 1 and self.chunks[0][0] == tuple(rows):
            return self.chunks[0][1]
        self.chunks = [chunk for chunk in self.chunks if chunk[1].data.shape[1]] or self.chunks[:1]
        if len(self.chunks) > 1:
            whole = concatenate([value for _, value in self.chunks])
            self.chunks = [(tuple(row for found, _ in self.chunks for row in found), whole)]
        found, value = self.chunks[0]
        if found == tuple(rows):
            return value
        where: dict[int, tuple[int, int]] = {}
        for row, start, length in zip(found, value.starts, value.lengths, strict=True):
            if length or row not in where:
                where[row] = (start, length)
        tokens = [token for row in rows for token in range(where.get(row, (0, 0))[0], sum(where.get(row, (0, 0))))]
        chosen = placed(torch.tensor(tokens, dtype=torch.long), value.data.device)
        return Value(value.data[:, chosen], tuple(where.get(row, (0, 0))[1] for row in rows))
