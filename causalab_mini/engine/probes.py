"""What stands at a write's place, and how much a metric moves with it: a write is made by a share of itself, and differentiated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from causalab_mini.engine.contract import State

Change = Callable[[Tensor, Tensor, State], Tensor]


@dataclass(frozen=True, slots=True)
class Probed:
    """One layer of one write, in one batch.

    Attributes:
        write: its name.
        entry: which of its site's layers.
        places: row of the step and content index of each token.
        numbers: which of its row's tokens each is.
        moved: (token, feature), what the write adds to what stands there.
        leaf: zeros of that shape, whose gradient is the metric's.
    """

    write: str
    entry: int
    places: tuple[tuple[int, int], ...]
    numbers: tuple[int, ...]
    moved: Tensor
    leaf: Tensor


@dataclass(slots=True)
class Probe:
    """Stands in for the writes of a pass.

    Attributes:
        share: of what each write adds, how much is added.
        only: the one write and layer that is looked at; None for all.
        found: what was met.
    """

    share: float = 0.0
    only: tuple[str, int] | None = None
    found: list[Probed] = field(default_factory=list)

    def instead_of(self, change: Change, write: str, entry: int, places: tuple[tuple[int, int], ...]) -> Change:
        """Returns what is done in a change's place."""

        def probed(value: Tensor, arrived: Tensor, state: State) -> Tensor:
            if self.only is not None and self.only != (write, entry):
                return value
            with torch.no_grad():
                moved = change(value.detach(), arrived.detach(), state) - value.detach()
            leaf = torch.zeros_like(value, requires_grad=True)
            self.found.append(Probed(write, entry, places, _numbers(places), moved, leaf))
            return value + self.share * moved + leaf

        return probed


def _numbers(places: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    """Returns, for tokens row by row, which of its row's each is."""
    counts: dict[int, int] = {}
    found = []
    for row, _ in places:
        found.append(counts.get(row, 0))
        counts[row] = found[-1] + 1
    return tuple(found)
