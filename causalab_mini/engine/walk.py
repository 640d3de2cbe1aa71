"""What happens at one address of a forward: writes in their order, then reads. The same for every engine."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from causalab_mini.engine.contract import KeepTask, ReadTask, State, Visit, WriteTask
from causalab_mini.ops.windows import PatternIndex, gather, renormalized, scatter


def visit(activation: Tensor, stop: Visit, state: State) -> Tensor | None:
    """Carries out one stop of a forward.

    Args:
        activation: what stands at the address: (row, token, feature), (row · token, feature) where the address is flat, (row, token) for
            token ids, or (row, head, token, key) for a pattern. It is not changed.
        stop: what is written and read there.
        state: what the forward leaves behind; reads and changes are added.

    Returns:
        The activation that replaces it, or None where nothing is written.
    """
    shaped = activation
    if stop.address.is_flat:
        shaped = activation.reshape(*state.shape, -1)
    elif activation.dim() == 2:
        shaped = activation[..., None]
    arrived = current = shaped
    for task in stop.tasks:
        match task:
            case KeepTask():
                state.streams[task.stream] = current
            case ReadTask():
                found = gather(current, task.index)
                state.reads[task.name, task.entry] = (
                    found if task.stream is None else found + gather(state.streams[task.stream], task.index)
                )
            case WriteTask() if len(task.index):
                current = _written(current, arrived, task, state)
    return None if current is shaped else current.reshape(activation.shape)


def _written(current: Tensor, arrived: Tensor, task: WriteTask, state: State) -> Tensor:
    """Returns an activation with one write made, and notes how far that moved each token."""
    stream = None if task.stream is None else gather(state.streams[task.stream], task.index)
    before, first = gather(current, task.index), gather(arrived, task.index)
    if stream is not None:
        before, first = before + stream, first + stream
    new = task.change(before.float(), first.float(), state)
    changed = scatter(current, task.index, new if stream is None else new.to(stream.device) - stream.float())
    if task.renormalizes:
        assert isinstance(task.index, PatternIndex)
        changed = renormalized(changed, task.index)
    landed = gather(changed, task.index) if stream is None else gather(changed, task.index) + stream
    moved, length = (landed.float() - before.float()).norm(dim=-1), before.float().norm(dim=-1)
    relative = moved / torch.where(length > 0, length, torch.ones_like(length))
    state.changes[task.name, task.layer] = relative.nan_to_num(nan=1.0, posinf=1.0) if task.is_cut else relative
    return changed


def taken(container: Any) -> Tensor:
    """Returns the tensor of a module's output, which some families give as a tuple with more beside it."""
    tensor: Tensor = container[0] if isinstance(container, tuple) else container
    return tensor


def replaced(container: Any, tensor: Tensor) -> Any:
    """Returns a module's output with its tensor replaced, in the container it came in."""
    return (tensor, *container[1:]) if isinstance(container, tuple) else tensor
