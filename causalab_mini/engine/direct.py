"""One forward under plain PyTorch hooks: what the hooks engine is, and how the other runs what would cost less than its own trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any

from torch import nn

from causalab_mini.engine.contract import Shortcut, State, Visit
from causalab_mini.engine.gradients import gradients
from causalab_mini.engine.interiors import interiors
from causalab_mini.engine.shaping import shaped
from causalab_mini.engine.walk import note_tails, replaced, taken, visit
from causalab_mini.model.facts import ModelFacts


def run_hooked(
    module: nn.Module, facts: ModelFacts, inputs: Mapping[str, Any], visits: tuple[Visit, ...], state: State, shortcut: Shortcut
) -> Any:
    """Returns what one forward gives, or None where a shortcut ends it before; it stops at addresses in forward order.

    Args:
        module: the model with its weights.
        facts: of the checkpoint.
        inputs: keyword arguments of the forward.
        visits: in forward order.
        state: what the forward leaves behind.
        shortcut: what is left out.
    """
    with gradients(shortcut.mode), ExitStack() as stack:
        left = stack.enter_context(interiors(module, visits, state))
        stack.enter_context(shaped(module, facts, shortcut))
        for stop in left:
            ends = shortcut.stops and stop is visits[-1]  # those inside attention may come later than the last that is left
            target = module.get_submodule(stop.address.module)
            if stop.address.side == "input":
                stack.callback(target.register_forward_pre_hook(_on_input(stop, state, ends), with_kwargs=True).remove)
            else:
                stack.callback(target.register_forward_hook(_on_output(stop, state, ends)).remove)
        with suppress(_Ended):
            return module(**inputs)
    return None


class _Ended(Exception):  # noqa: N818 - no error: a forward that has given all that was asked of it
    """Ends a forward after its last stop."""


def _on_input(stop: Visit, state: State, ends: bool) -> Callable[..., Any]:
    def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            changed = visit(args[0], stop, state)
            _end_if(ends)
            return None if changed is None else ((changed, *args[1:]), kwargs)
        name = next(iter(kwargs))
        changed = visit(kwargs[name], stop, state)
        _end_if(ends)
        return None if changed is None else (args, {**kwargs, name: changed})

    return hook


def _on_output(stop: Visit, state: State, ends: bool) -> Callable[..., Any]:
    def hook(module: Any, args: Any, output: Any) -> Any:
        if stop.address.side == "logits":
            changed = visit(output.logits, stop, state)
            _end_if(ends)
            if changed is not None:
                output.logits = changed
            return output
        note_tails(output, stop, state)
        changed = visit(taken(output), stop, state)
        _end_if(ends)
        return None if changed is None else replaced(output, changed)

    return hook


def _end_if(ends: bool) -> None:
    if ends:
        raise _Ended
