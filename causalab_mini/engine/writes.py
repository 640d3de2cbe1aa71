"""What writes did, row by row."""

from __future__ import annotations

from dataclasses import dataclass, field

from causalab_mini.engine.batches import PassOnBatch
from causalab_mini.engine.contract import State


@dataclass(slots=True)
class WriteEvidence:
    """What a write did, row by row.

    Attributes:
        change: relative change of norm over the written tokens of each row, the largest over layers.
        n_left_over: tokens that `align` left as they were.
        n_not_run: rows that were not run, since each would have been given what stands there.
    """

    change: dict[int, float] = field(default_factory=dict)
    n_left_over: int = 0
    n_not_run: int = 0


def note_writes(writes: dict[str, WriteEvidence], on_batch: PassOnBatch, state: State) -> None:
    """Adds what the writes of a pass did on a batch."""
    for write in on_batch.one.forward.writes:
        evidence = writes.setdefault(write.name, WriteEvidence())
        landing = on_batch.landings[write.name]
        evidence.n_left_over += landing.n_left_over
        for (name, _), change in state.changes.items():
            if name != on_batch.label(write.name):
                continue
            for (row, _), moved in zip(landing.places, change.tolist(), strict=True):
                evidence.change[row] = max(evidence.change.get(row, 0.0), moved)
