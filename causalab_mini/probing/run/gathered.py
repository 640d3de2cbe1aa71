"""What is gathered for points: places that the same points want go together, and their tokens are noted once."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from causalab_mini.probing.request import Place, places_of
from causalab_mini.probing.run.rows import Ended, Row
from causalab_mini.probing.spec import ProbeSpec

SHIFT = 32
"""A token in prompt and generation is a code: its row's number, shifted by as many bits, and its absolute index."""


@dataclass(slots=True)
class Group:
    """Places that the same points want.

    Attributes:
        number: of the group.
        points: numbers of the points.
        places: component and layer of each.
        is_recorded: whether what is gathered is kept.
        codes: (token,) each; one tensor a forward.
        values: (token, …) each; one tensor a forward and place.
    """

    number: int
    points: tuple[int, ...]
    places: tuple[Place, ...]
    is_recorded: bool
    codes: list[Tensor] = field(default_factory=list)
    values: dict[Place, list[Tensor]] = field(default_factory=dict)

    def prompt_codes(self, rows: Sequence[Row]) -> Tensor:
        """Returns which prompt tokens are wanted, ascending; the rows are numbered by their place in the batch."""
        found = [
            torch.arange(one.start, one.stop, one.step) + (at << SHIFT)
            for point in self.points
            for at, row in enumerate(rows)
            for one in (row.selectors[point].prompt, row.selectors[point].prompt_tail)
            if len(one)
        ]
        return torch.unique(torch.cat(found)) if found else torch.empty(0, dtype=torch.long)

    def rows_at(self, rows: Sequence[Row]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the places in the batch of the rows whose last token is wanted, and of those whose last tokens are."""
        own = [(at, row) for at, row in enumerate(rows) if not row.is_through]
        kept = tuple(at for at, row in own if any(row.n_said - 1 in row.selectors[point].generated for point in self.points))
        last = tuple(at for at, row in own if any(row.selectors[point].from_end is not None for point in self.points))
        return kept, last

    def take(self, values: Mapping[Place, Tensor], codes: Tensor) -> None:
        """Keeps the values of some tokens at every place."""
        if self.is_recorded and len(codes):
            self.codes.append(codes)
            for place, found in values.items():
                self.values.setdefault(place, []).append(found)

    def remember(self, row: Row, position: int, values: dict[Place, Tensor]) -> None:
        """Keeps a token of a row until it is known whether it is the one that is counted from the end."""
        if self.number not in row.last:
            row.last[self.number] = deque(maxlen=row.n_kept(self.points))
        row.last[self.number].append((position, values))

    def recall(self, row: Row, position: int) -> dict[Place, Tensor]:
        """Returns the values of one of the last tokens of a row."""
        return next(values for at, values in row.last[self.number] if at == position)

    def found(self, point: int, ended: Sequence[Ended]) -> tuple[Tensor, dict[Place, Tensor]]:
        """Returns the codes of what a point fired at, by row and position, and the values at every place, on the CPU.

        Args:
            point: its number.
            ended: the rows, in the order of their numbers.
        """
        tokens = [row.selectors[point].resolved(len(row.ids)) for row in ended]
        wanted = torch.cat(
            [torch.tensor(found, dtype=torch.long) + (row.number << SHIFT) for row, found in zip(ended, tokens, strict=True)]
        )
        if not len(wanted):
            return wanted, {}
        codes, order = torch.cat(self.codes).sort()
        at = torch.searchsorted(codes, wanted)
        assert bool((codes[at.clamp(max=len(codes) - 1)] == wanted).all()), "a token that is wanted was not gathered"
        chosen = order[at]
        return wanted, {place: joined(parts)[chosen.to(parts[0].device)].cpu() for place, parts in self.values.items()}


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Returns tensors one behind the other; where their last axes differ, zeros fill up the shorter ones."""
    longest = max(part.shape[-1] for part in parts)
    return torch.cat([torch.nn.functional.pad(part, (0, longest - part.shape[-1])) if part.shape[-1] < longest else part for part in parts])


def groups_of(spec: ProbeSpec, recorded: Sequence[int]) -> list[Group]:
    """Returns the places of a spec in groups; what some of its points want is recorded."""
    by_place: dict[Place, list[int]] = {}
    for index, point in enumerate(spec):
        for place in places_of(point):
            by_place.setdefault(place, []).append(index)
    together: dict[tuple[int, ...], list[Place]] = {}
    for place, points in by_place.items():
        together.setdefault(tuple(points), []).append(place)
    return [
        Group(number, points, tuple(places), any(point in recorded for point in points))
        for number, (points, places) in enumerate(together.items())
    ]
