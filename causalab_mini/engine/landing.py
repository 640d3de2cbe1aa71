"""Where an operand lands, and what a mechanism makes of it there: which tokens, in which coordinates, of which rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from causalab_mini.ops.featurizers import Coordinates
from causalab_mini.ops.windows import placed
from causalab_mini.plan import plan as nodes


@dataclass(slots=True)
class Landing:
    """Where an operand lands: which written tokens take which of the operand's tokens.

    Attributes:
        n_left_over: written tokens that `align` left as they were.
    """

    rows: list[int] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)
    n_left_over: int = 0


def aligned(tokens: Sequence[int], start: int, length: int, align: str) -> list[tuple[int, int]]:
    """Returns pairs of a written token and an operand token."""
    n = min(len(tokens), length)
    match align:
        case "last":
            return [(tokens[len(tokens) - n + i], start + length - n + i) for i in range(n)]
        case "first":
            return [(tokens[i], start + i) for i in range(n)]
        case "mean" | "broadcast":
            return [(token, start) for token in tokens]
    return list(zip(tokens, range(start, start + length), strict=True))


def take(
    data: Tensor,
    entry: int,
    landing: Landing,
    write: nodes.Write,
    lengths: Mapping[int, int],
    starts: Mapping[int, int],
    coordinates: Coordinates | None = None,
) -> Tensor:
    """Returns an operand's values for the written tokens, (token, feature), as features where there are coordinates."""
    layer = data[entry if data.shape[0] > 1 else 0]

    def encoded(values: Tensor) -> Tensor:
        return values if coordinates is None else coordinates.encode(values)[0]

    if write.align == "mean":
        rows = {row for row, _ in landing.places}
        means = {row: encoded(layer[starts[row] : starts[row] + lengths[row]].float()).mean(dim=0) for row in rows}
        return torch.stack([means[row] for row, _ in landing.places])
    return encoded(layer[placed(torch.tensor(landing.sources, dtype=torch.long), layer.device)])


Mechanism = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def changed(
    mechanism: Mechanism,
    value: Tensor,
    arrived: Tensor,
    operand: Tensor | None,
    coordinates: Coordinates | None,
    features: Sequence[int] | None,
) -> Tensor:
    """Returns what a mechanism makes of values, in some coordinates and of some features alone.

    Args:
        mechanism: of features, features that arrived, and the operand's.
        value: (token, unit), fp32, what stands there.
        arrived: the same before any write.
        operand: (token, feature), (1, feature), or (1, 1) for a number.
        coordinates: None for the value's own.
        features: None for all.
    """
    if coordinates is None and features is None:
        return mechanism(value, arrived, operand)
    err = None
    before, first = value, arrived
    if coordinates is not None:
        before, err = coordinates.encode(value)
        first = before if arrived is value else coordinates.encode(arrived)[0]
    if features is None:
        new = mechanism(before, first, operand)
    else:
        chosen = placed(torch.tensor(features, dtype=torch.long), before.device)
        taken = operand if operand is None or operand.shape[-1] == 1 != before.shape[-1] else operand[:, chosen]
        new = before.index_copy(1, chosen, mechanism(before[:, chosen], first[:, chosen], taken))
    return new if coordinates is None else coordinates.decode(new, err)


def deranged(rows: list[int], seed: str, lengths: Sequence[int], is_exact: bool) -> list[int]:
    """Returns, for each row in order, the row that takes its value: a cyclic permutation, so that none takes its own.

    Rows without a value keep their place; where values must fit to the token, rows with as many tokens change among themselves.

    Source: Sattolo 1986, "An algorithm to generate a random cyclic permutation".
    """
    order, generator = list(rows), random.Random(seed)
    for length in sorted(set(lengths) - {0}) if is_exact else [None]:
        group = [index for index, own in enumerate(lengths) if (own == length if is_exact else own)]
        for last in range(len(group) - 1, 0, -1):
            a, b = group[last], group[generator.randrange(last)]
            order[a], order[b] = order[b], order[a]
    return order
