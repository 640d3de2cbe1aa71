"""What happens at one address of a forward: writes in their order, then reads. The same for every engine."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from causalab_mini.engine.contract import KeepTask, ReadTask, State, Visit, WriteTask
from causalab_mini.errors import Problem, RunError
from causalab_mini.ops.windows import PatternIndex, gather, placed, renormalized, scatter


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
        shaped = activation.reshape(-1, state.n_tokens, activation.shape[-1])
    elif activation.dim() == 2:
        shaped = activation[..., None]
    arrived = current = shaped
    for task in stop.tasks:
        match task:
            case KeepTask():
                (state.kept if task.is_for_later else state.streams)[task.stream] = current.clone()
            case ReadTask():
                found = gather(current, task.index)
                state.reads[task.label, task.entry] = (
                    found if task.stream is None else found + gather(state.streams[task.stream], task.index)
                )
            case WriteTask() if len(task.index):
                current = _written(current, arrived, task, state)
    return None if current is shaped else current.reshape(activation.shape)


def _written(current: Tensor, arrived: Tensor, task: WriteTask, state: State) -> Tensor:
    """Returns an activation with one write made, and notes how far that moved each token."""
    stream = None if task.stream is None else gather(state.streams[task.stream], task.index)
    before = gather(current, task.index)
    before = before if stream is None else before + stream
    value = arrived_value = before.float()
    if arrived is not current:
        first = gather(arrived, task.index)
        arrived_value = (first if stream is None else first + stream).float()
    new = task.change(value, arrived_value, state)
    changed = scatter(current, task.index, new if stream is None else new.to(stream.device) - stream.float())
    if task.is_cut:
        assert isinstance(task.index, PatternIndex)
        changed = _with_edges_cut(changed, task.index, task)
    if not state.has_evidence:
        return changed
    landed = gather(changed, task.index) if stream is None else gather(changed, task.index) + stream
    state.changes[task.label, task.layer] = _moved(before, landed, isinstance(task.index, PatternIndex))
    return changed


def _with_edges_cut(changed: Tensor, index: PatternIndex, task: WriteTask) -> Tensor:
    """Returns a pattern that sums to 1 again, or scores as they are, after edges were cut.

    Raises:
        RunError: a query has no key left: a sliding window, or another write, took the rest.
    """
    rows, heads, tokens, _ = (part[..., 0] for part in index.on(changed.device))
    lines = changed[rows, heads, tokens]
    left = lines > (0.0 if task.renormalizes else torch.finfo(lines.dtype).min)
    if not left.any(dim=-1).all():
        where = "" if task.layer is None else f" of layer {task.layer}"
        hint = "a sliding window hides the other keys, or other writes cut them"
        raise RunError(Problem(f"writes.{task.name}.keys", f"a key that is left to attend to in every head{where}", "none", hint, "keys"))
    return renormalized(changed, index) if task.renormalizes else changed


def _moved(before: Tensor, landed: Tensor, has_keys: bool) -> Tensor:
    """Returns the relative change of norm of each token; of a pattern, hidden edges (the least number there is, or less) count as 0."""
    if not has_keys:
        before, change = before.float(), landed.float() - before.float()
    else:
        is_hidden = before <= torch.finfo(before.dtype).min
        change = torch.where(landed == before, 0.0, landed.double() - before.double())
        before = before.double().masked_fill(is_hidden, 0.0)
    moved, length = change.norm(dim=-1), before.norm(dim=-1)
    relative: Tensor = moved / torch.where(length > 0, length, torch.ones_like(length))
    return relative.nan_to_num(nan=1.0, posinf=1.0) if has_keys else relative


def taken(container: Any) -> Tensor:
    """Returns the tensor of a module's output, which some families give as a tuple with more beside it."""
    tensor: Tensor = container[0] if isinstance(container, tuple) else container
    return tensor


def replaced(container: Any, tensor: Tensor) -> Any:
    """Returns a module's output with its tensor replaced, in the container it came in."""
    return (tensor, *container[1:]) if isinstance(container, tuple) else tensor


def narrowed(hidden: Tensor, columns: Tensor) -> Tensor:
    """Returns the positions of the unembedding's input, (row, position, feature), whose logits are asked for."""
    return hidden[torch.arange(len(hidden), device=hidden.device)[:, None], placed(columns, hidden.device)]


def note_tails(container: Any, stop: Visit, state: State) -> None:
    """Notes what a block returns beside a stream that is kept for later passes."""
    for task in stop.tasks:
        if isinstance(task, KeepTask) and task.is_for_later:
            state.tails[task.stream] = container[1:] if isinstance(container, tuple) else None
