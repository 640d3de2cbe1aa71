"""Plain PyTorch hooks behind the engine's contract: a second way to the same tensors, to compare the first with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from causalab_mini.engine.contract import PLAIN, Batch, Shortcut, State, Visit
from causalab_mini.engine.engines.base import BaseEngine
from causalab_mini.engine.interiors import interiors
from causalab_mini.engine.loading import open_checkpoint
from causalab_mini.engine.walk import narrowed, note_tails, replaced, resumed, taken, visit
from causalab_mini.plan.spec import ModelSpec


class HooksEngine(BaseEngine):
    """Runs a transformers model under forward hooks."""

    name = "hooks"

    @classmethod
    def load(
        cls, model: ModelSpec, device_map: str | Mapping[str, Any] = "auto", base: Path | None = None, trust_remote_code: bool = False
    ) -> Self:
        """Returns the opened checkpoint; its weights are loaded when the first pass needs them."""
        return cls(open_checkpoint(model, base, trust_remote_code), device_map)

    def load_weights(self) -> None:
        """Loads and freezes the weights, once."""
        if self.module is None:
            checkpoint = self.checkpoint
            self.load_with(
                lambda: AutoModelForCausalLM.from_pretrained(
                    checkpoint.source.location,
                    dtype=checkpoint.dtype,
                    device_map=self.device_map,
                    attn_implementation=checkpoint.facts.attn_implementation,
                    **checkpoint.options,
                )
            )

    def run(self, batch: Batch, visits: tuple[Visit, ...], state: State, shortcut: Shortcut = PLAIN) -> None:
        """Runs one forward over a batch, or what a shortcut leaves of it, stopping at addresses in forward order."""
        module = self.loaded()
        with torch.inference_mode(), ExitStack() as stack:
            left = stack.enter_context(interiors(module, visits, state))
            family = self.facts.family
            if shortcut.stream is not None:
                stream, left = resumed(left, state, shortcut, family)
                result = stream if shortcut.tail is None else (stream, *shortcut.tail)
                for layer in range(shortcut.n_skipped):
                    stack.enter_context(_returning(module.get_submodule(family.module("block_output").format(layer=layer)), result))
            if shortcut.columns is not None:
                hook = _narrowing(shortcut.columns)
                stack.callback(module.get_submodule(family.module("lm_head")).register_forward_pre_hook(hook).remove)
            for index, stop in enumerate(left):
                ends = shortcut.stops and index == len(left) - 1
                target = module.get_submodule(stop.address.module)
                if stop.address.side == "input":
                    stack.callback(target.register_forward_pre_hook(_on_input(stop, state, ends), with_kwargs=True).remove)
                else:
                    stack.callback(target.register_forward_hook(_on_output(stop, state, ends)).remove)
            if shortcut.stops and not left:
                return
            with suppress(_Ended):
                module(**self.inputs(batch))


class _Ended(Exception):  # noqa: N818 - no error: a forward that has given all that was asked of it
    """Ends a forward after its last stop."""


@contextmanager
def _returning(block: nn.Module, result: Any) -> Iterator[None]:
    """Has a block return what stands for it instead of running."""
    block.forward = lambda *args, **kwargs: result
    try:
        yield
    finally:
        del block.forward


def _narrowing(columns: Tensor) -> Callable[..., Any]:
    def hook(module: Any, args: tuple[Any, ...]) -> Any:
        return (narrowed(args[0], columns), *args[1:])

    return hook


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
