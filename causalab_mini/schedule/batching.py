"""Rows of a pass as batches: which run together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MIN_RUN = 4
"""Tokens of a row that are run at least: products of fewer round otherwise on the CPUs that this was measured on."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of a part of a pass.

    Attributes:
        part: its number in the pass.
        row: of the step.
        length: its tokens.
        first: the first token that has to be run.
    """

    part: int
    row: int
    length: int
    first: int

    @property
    def n_run(self) -> int:
        """How many tokens are run at least: the last ones."""
        return min(self.length, max(self.length - self.first, MIN_RUN))


def split(entries: Sequence[Entry], batch_tokens: int | None, limit: int | None) -> list[list[Entry]]:
    """Returns entries as batches, in each those of earlier parts first.

    Args:
        entries: in the order of their parts.
        batch_tokens: what a batch costs beside its tokens, in tokens, where entries of like length go together; None where all do.
        limit: entries a batch.
    """
    if batch_tokens is None:
        size = limit or max(1, len(entries))
        return [list(entries[start : start + size]) for start in range(0, len(entries), size)]
    by_length: dict[int, list[Entry]] = {}
    for entry in sorted(entries, key=lambda entry: entry.n_run):
        by_length.setdefault(entry.n_run, []).append(entry)
    batches = [
        [entry for length in bucket for entry in by_length[length]]
        for bucket in _buckets({n: len(by_length[n]) for n in by_length}, batch_tokens)
    ]
    ordered = [sorted(batch, key=lambda entry: (entry.part, entry.row)) for batch in batches]
    size = limit or max(1, len(entries))
    return [batch[start : start + size] for batch in ordered for start in range(0, len(batch), size)]


def _buckets(counts: Mapping[int, int], batch_tokens: int) -> list[list[int]]:
    """Returns lengths, ascending, as buckets that cost least, with what a batch costs by itself counted.

    Args:
        counts: rows by length, ascending.
        batch_tokens: what a batch costs by itself.
    """
    lengths = list(counts)
    best: list[tuple[int, int]] = [(0, 0)]
    for end in range(1, len(lengths) + 1):
        rows, found = 0, []
        for start in range(end - 1, -1, -1):
            rows += counts[lengths[start]]
            found.append((best[start][0] + rows * lengths[end - 1] + batch_tokens, start))
        best.append(min(found))
    buckets, end = [], len(lengths)
    while end:
        buckets.append(lengths[best[end][1] : end])
        end = best[end][1]
    return buckets[::-1]
