"""Plain PyTorch hooks behind the engine's contract: a second way to the same tensors, to compare the first with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from causalab_mini.engine.contract import Batch, State, Visit
from causalab_mini.engine.engines.base import BaseEngine
from causalab_mini.engine.interiors import interiors
from causalab_mini.engine.loading import open_checkpoint
from causalab_mini.engine.walk import replaced, taken, visit
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
            self.freeze(
                AutoModelForCausalLM.from_pretrained(
                    checkpoint.source.location,
                    dtype=checkpoint.dtype,
                    device_map=self.device_map,
                    attn_implementation=checkpoint.facts.attn_implementation,
                    **checkpoint.options,
                )
            )

    def run(self, batch: Batch, visits: tuple[Visit, ...], state: State) -> None:
        """Runs one forward over a batch, stopping at addresses in forward order."""
        module = self.loaded()
        with interiors(module, visits, state) as borders:
            self.run_borders(module, batch, borders, state)

    def run_borders(self, module: nn.Module, batch: Batch, visits: tuple[Visit, ...], state: State) -> None:
        """Runs one forward with stops at module borders."""
        handles = []
        try:
            for stop in visits:
                target = module.get_submodule(stop.address.module)
                if stop.address.side == "input":
                    handles.append(target.register_forward_pre_hook(_on_input(stop, state), with_kwargs=True))
                else:
                    handles.append(target.register_forward_hook(_on_output(stop, state)))
            with torch.inference_mode():
                module(**self.inputs(batch))
        finally:
            for handle in handles:
                handle.remove()


def _on_input(stop: Visit, state: State) -> Callable[..., Any]:
    def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            changed = visit(args[0], stop, state)
            return None if changed is None else ((changed, *args[1:]), kwargs)
        name = next(iter(kwargs))
        changed = visit(kwargs[name], stop, state)
        return None if changed is None else (args, {**kwargs, name: changed})

    return hook


def _on_output(stop: Visit, state: State) -> Callable[..., Any]:
    def hook(module: Any, args: Any, output: Any) -> Any:
        if stop.address.side == "logits":
            changed = visit(output.logits, stop, state)
            if changed is not None:
                output.logits = changed
            return output
        changed = visit(taken(output), stop, state)
        return None if changed is None else replaced(output, changed)

    return hook
