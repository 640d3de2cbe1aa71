"""Plain PyTorch hooks behind the engine's contract: a second way to the same tensors, to compare the first with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from transformers import AutoModelForCausalLM

from causalab_mini.engine.contract import PLAIN, Batch, Shortcut, State, Visit
from causalab_mini.engine.direct import run_hooked
from causalab_mini.engine.engines.base import BaseEngine
from causalab_mini.engine.loading import open_checkpoint
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
                    use_safetensors=True,
                    **checkpoint.options,
                )
            )

    def run(self, batch: Batch, visits: tuple[Visit, ...], state: State, shortcut: Shortcut = PLAIN) -> None:
        """Runs one forward over a batch, or what a shortcut leaves of it, stopping at addresses in forward order."""
        run_hooked(self.loaded(), self.facts, self.inputs(batch, shortcut), visits, state, shortcut)
