"""What the points of a batch want, and what was gathered for them: sets of indices and tensors, never an object a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from causalab_mini.model.components import COMPONENTS
from causalab_mini.probing.request import Place, Request, places_of
from causalab_mini.probing.spec import CompiledSelector, compile_point


class Wanted:
    """What every point wants of every row of a batch.

    Args:
        request: what is watched.
        rows: of the request, in the batch.

    Attributes:
        lengths: of the prompts, in tokens.
    """

    def __init__(self, request: Request, rows: Sequence[int]) -> None:
        self.points = tuple(request.spec)
        prompts = [request.prompts[row].ids for row in rows]
        self.lengths = [len(ids) for ids in prompts]
        self._stops = [request.stops.get(point.name) for point in self.points]
        self._watched = [index for index, stop in enumerate(self._stops) if stop is not None]
        self.of: list[list[CompiledSelector]] = [
            [
                compile_point(point, len(ids), request.decode.max_new_tokens).cut_at(at for at, token in enumerate(ids) if token == stop)
                for ids in prompts
            ]
            for point, stop in zip(self.points, self._stops, strict=True)
        ]

    def hear(self, step: int, said: Sequence[int | None]) -> None:
        """Takes the tokens that rows say at a step, None of rows that have ended: a stop token ends the runs that it is in."""
        for point in self._watched:
            for row, token in enumerate(said):
                if token == self._stops[point]:
                    self.of[point][row] = self.of[point][row].cut_at([self.lengths[row] + step])

    def needs_last(self, row: int, n_said: int) -> bool:
        """Returns whether a point wants the last token of a row that has ended."""
        return any(selectors[row].needs_last_fed(n_said) for selectors in self.of)


@dataclass(slots=True)
class Gathered:
    """What is gathered at places that the same points want: the tokens are the same at each, so they are noted once.

    Attributes:
        points: numbers of the points.
        places: component and layer of each.
        wanted: of the batch.
        stride: what a row's number is multiplied with in `codes`; more than any row has tokens.
        n_kept: of the tokens counted from the end, how many are kept.
        codes: (token,) each, row · stride + position; one tensor a forward.
        values: (token, …) each; one tensor a forward and place.
        ring: the last generated tokens of each row, (row, slot, …), by place.
    """

    points: tuple[int, ...]
    places: tuple[Place, ...]
    wanted: Wanted
    stride: int
    n_kept: int = 0
    codes: list[Tensor] = field(default_factory=list)
    values: dict[Place, list[Tensor]] = field(default_factory=dict)
    ring: dict[Place, Tensor] = field(default_factory=dict)

    def prompt_codes(self) -> Tensor:
        """Returns which prompt tokens are wanted, ascending."""
        found = [
            torch.arange(one.start, one.stop, one.step) + row * self.stride
            for point in self.points
            for row, selector in enumerate(self.wanted.of[point])
            for one in (selector.prompt, selector.prompt_tail)
            if len(one)
        ]
        return torch.unique(torch.cat(found)) if found else torch.empty(0, dtype=torch.long)

    def rows_at(self, step: int, is_own: Sequence[bool]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the rows whose generated token of a step is wanted, and those for which it is put into the ring.

        Args:
            step: index of the token in the generation.
            is_own: by row, whether it has said this token; what pads an ended row is nobody's.
        """
        of = [self.wanted.of[point] for point in self.points]
        rows = [row for row, own in enumerate(is_own) if own]
        kept = tuple(row for row in rows if any(step in selectors[row].generated for selectors in of))
        ringed = tuple(row for row in rows if any(selectors[row].from_end is not None for selectors in of)) if self.n_kept else ()
        return kept, ringed

    def take(self, values: dict[Place, Tensor], codes: Tensor) -> None:
        """Keeps the values of some tokens at every place."""
        if len(codes):
            self.codes.append(codes)
            for place, found in values.items():
                self.values.setdefault(place, []).append(found)

    def put(self, values: dict[Place, Tensor], rows: Tensor, step: int, most_keys: int) -> None:
        """Puts generated tokens of a step into the ring, over those that are too old.

        Args:
            values: of some rows.
            rows: which.
            step: index of the token in the generation.
            most_keys: of a pattern, how many keys a token can have.
        """
        slot = step % self.n_kept
        for place, found in values.items():
            has_keys = COMPONENTS[place[0]].has_keys
            if place not in self.ring:
                shape = (*found.shape[1:-1], most_keys if has_keys else found.shape[-1])
                self.ring[place] = found.new_zeros((len(self.wanted.lengths), self.n_kept, *shape))
            ring = self.ring[place]
            ring[rows.to(ring.device), slot, ..., : found.shape[-1]] = found

    def empty_ring(self, n_said: Sequence[int]) -> None:
        """Keeps what tokens counted from the end turned out to be, once the generation has ended."""
        found: list[tuple[int, int, int]] = []
        for row, n in enumerate(n_said):
            for point in self.points:
                at = self.wanted.of[point][row].from_end_index(n)
                step = -1 if at is None else at - self.wanted.lengths[row]
                if at is not None and step >= 0:
                    found.append((row, step % self.n_kept, row * self.stride + at))
        if found:
            rows, slots, codes = torch.tensor(found).T
            self.take({place: ring[rows.to(ring.device), slots.to(ring.device)] for place, ring in self.ring.items()}, codes)
        self.ring.clear()

    def found(self, point: int, n_said: Sequence[int]) -> tuple[Tensor, dict[Place, Tensor]]:
        """Returns the codes of what a point fired at, by row and position, and the values at every place.

        Args:
            point: its number.
            n_said: how many tokens each row has said.
        """
        tokens = [selector.resolved(n) for selector, n in zip(self.wanted.of[point], n_said, strict=True)]
        wanted = torch.cat([torch.tensor(found, dtype=torch.long) + row * self.stride for row, found in enumerate(tokens)])
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


def gatherers(wanted: Wanted, max_new_tokens: int) -> list[Gathered]:
    """Returns what gathers for a batch: places that the same points want go together."""
    by_place: dict[Place, list[int]] = {}
    for index, point in enumerate(wanted.points):
        for place in places_of(point):
            by_place.setdefault(place, []).append(index)
    together: dict[tuple[int, ...], list[Place]] = {}
    for place, points in by_place.items():
        together.setdefault(tuple(points), []).append(place)
    stride = max(wanted.lengths) + max_new_tokens
    return [Gathered(points, tuple(places), wanted, stride, _n_kept(wanted, points, max_new_tokens)) for points, places in together.items()]


def _n_kept(wanted: Wanted, points: Sequence[int], max_new_tokens: int) -> int:
    """Returns how many generated tokens a ring must hold for some points."""
    return min(max_new_tokens, max(selector.n_kept for point in points for selector in wanted.of[point]))
