"""What happens at one address of a forward: writes in their order, then reads. The same for every engine."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from causalab_mini.engine.contract import State, Visit
from causalab_mini.ops.windows import gather, scatter


def visit(activation: Tensor, stop: Visit, state: State) -> Tensor | None:
    """Carries out one stop of a forward.

    Args:
        activation: (row, token, feature), what stands at the address. It is not changed.
        stop: what is written and read there.
        state: what the forward leaves behind; reads and changes are added.

    Returns:
        The activation that replaces it, or None where nothing is written.
    """
    arrived = current = activation
    for write in stop.writes:
        if len(write.index) == 0:
            continue
        before = gather(current, write.index).float()
        new = write.change(before, gather(arrived, write.index).float(), state)
        current = scatter(current, write.index, new)
        landed = gather(current, write.index).float()
        moved, length = (landed - before).norm(dim=-1), before.norm(dim=-1)
        state.changes[write.name, write.layer] = moved / torch.where(length > 0, length, torch.ones_like(length))
    for read in stop.reads:
        state.reads[read.name, read.entry] = gather(current, read.index)
    return None if current is activation else current


def taken(container: Any) -> Tensor:
    """Returns the tensor of a module's output, which some families give as a tuple with more beside it."""
    tensor: Tensor = container[0] if isinstance(container, tuple) else container
    return tensor


def replaced(container: Any, tensor: Tensor) -> Any:
    """Returns a module's output with its tensor replaced, in the container it came in."""
    return (tensor, *container[1:]) if isinstance(container, tuple) else tensor
