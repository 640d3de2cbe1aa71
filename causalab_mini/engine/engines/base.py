"""What both engines share: opening a checkpoint, freezing its weights, describing it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from causalab_mini.engine.contract import PLAIN, Batch, Shortcut, State, Visit
from causalab_mini.engine.execute import execute
from causalab_mini.engine.first_use import Trust
from causalab_mini.engine.gradients import Mode, gradients
from causalab_mini.engine.loading import Checkpoint
from causalab_mini.engine.run import Run
from causalab_mini.engine.sizes import free_bytes
from causalab_mini.errors import ModelError, Problem, listed, quoted
from causalab_mini.model.facts import ModelFacts
from causalab_mini.ops.windows import placed
from causalab_mini.plan.plan import Request

LOADED = "_is_hf_initialized"
"""What transformers leaves on a parameter that it has read; it draws the others at random, and says so in its log alone."""
MAX_DRAWN = 3


class BaseEngine:
    """A checkpoint whose weights are loaded when the first pass needs them."""

    name: ClassVar[str]

    def __init__(self, checkpoint: Checkpoint, device_map: Any) -> None:
        self.checkpoint = checkpoint
        self.device_map = device_map
        self.module: nn.Module | None = None
        self.takes: frozenset[str] | None = None
        self.trust: Trust | None = None
        self.cache_difference: float | None = None

    @property
    def facts(self) -> ModelFacts:
        """Shapes and identity."""
        return self.checkpoint.facts

    @property
    def tokenizer(self) -> Any:
        """The checkpoint's tokenizer; it pads on the left."""
        return self.checkpoint.tokenizer

    def execute(self, request: Request, **options: Any) -> Run:
        """Carries out a request; see `engine.execute`."""
        return execute(self, request, **options)

    def loaded(self) -> nn.Module:
        """Returns the model with its weights."""
        self.load_weights()
        assert self.module is not None
        return self.module

    def load_weights(self) -> None:
        """Loads and freezes the weights, once."""
        raise NotImplementedError

    def run(self, batch: Batch, visits: tuple[Visit, ...], state: State, shortcut: Shortcut = PLAIN) -> None:
        """Runs one forward over a batch, stopping at addresses in forward order."""
        raise NotImplementedError

    def load_with(self, load: Callable[[], nn.Module]) -> None:
        """Loads weights and freezes them; a device that is not there, or has no room, is named.

        Raises:
            ModelError: the weights can't be put where they were to go.
        """
        try:
            module = load()
        except SafetensorError as error:
            expected = f"whole files of weights in {quoted(self.checkpoint.source.location)}"
            raise ModelError(Problem("model", expected, f"others ({error})", code="weights")) from error
        except (RuntimeError, ValueError, AssertionError, OSError) as error:
            first = str(error).strip().partition("\n")[0]
            expected = f"weights that can be loaded onto the device map {quoted(self.device_map)}"
            hint = "`causalab-mini doctor` lists the devices"
            raise ModelError(Problem("model", expected, f"{type(error).__name__}: {first}", hint, "device")) from error
        drawn = [name for name, parameter in module.named_parameters() if not getattr(parameter, LOADED, False)]
        if drawn:
            more = "" if len(drawn) <= MAX_DRAWN else " and the like"
            got = f"none for {len(drawn)} of them: {listed(drawn[:MAX_DRAWN])}{more}"
            raise ModelError(Problem("model", "a checkpoint with weights for every parameter", got, code="weights"))
        self.freeze(module)

    def freeze(self, module: nn.Module) -> None:
        """Makes a model one that is only read: evaluation mode, no gradients, the dtype that was asked for."""
        module.eval()
        module.requires_grad_(False)
        wrong = {parameter.dtype for parameter in module.parameters() if parameter.is_floating_point()} - {self.checkpoint.dtype}
        if wrong:
            raise ModelError(
                Problem("model.dtype", f"weights in {quoted(self.facts.dtype)}", f"also {quoted(sorted(map(str, wrong)))}", code="dtype")
            )
        self.module = module

    def unembed(self, stream: Tensor, mode: Mode = "off") -> Tensor:
        """Returns the logits that final norm and unembedding make of a residual stream."""
        module, family = self.loaded(), self.facts.family
        with gradients(mode):
            head = module.get_submodule(family.module("lm_head"))
            device = next(head.parameters()).device
            logits: Tensor = head(module.get_submodule(family.module("ln_final"))(stream.to(device, self.checkpoint.dtype)))
            if self.facts.softcap is not None:
                logits = torch.tanh(logits / self.facts.softcap) * self.facts.softcap
        return logits

    def inputs(self, batch: Batch, shortcut: Shortcut = PLAIN) -> dict[str, Any]:
        """Returns the keyword arguments of a forward over a batch; a model that makes positions of the mask itself takes none."""
        device, takes = self.device(), self.parameters()
        given = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
        if "position_ids" in takes:
            given["position_ids"] = batch.position_ids
        on_device: dict[str, Any] = {name: placed(tensor, device) for name, tensor in given.items()}
        if shortcut.cache is None:
            return {**on_device, "use_cache": False}
        name = "cache" if "cache" in takes else "past_key_values"  # transformers renames it
        return {**on_device, name: shortcut.cache, "use_cache": True}

    def parameters(self) -> frozenset[str]:
        """Returns the names that the model's forward takes."""
        if self.takes is None:
            self.takes = frozenset(inspect.signature(self.loaded().forward).parameters)
        return self.takes

    def device(self) -> torch.device:
        """Returns where inputs go: the device of the token embedding."""
        return next(self.loaded().get_submodule(self.facts.family.module("embeddings")).parameters()).device

    def stop_tokens(self) -> tuple[int, ...]:
        """Returns the ids of the tokens that end what the model says: of its generation settings, else its config's, else the tokenizer's."""
        module = self.loaded()
        settings = (getattr(module, "generation_config", None), getattr(module, "config", None), self.tokenizer)
        found = next((ids for ids in (getattr(one, "eos_token_id", None) for one in settings) if ids is not None), ())
        return (found,) if isinstance(found, int) else tuple(found)

    def memory(self) -> tuple[str, int | None]:
        """Returns the kind of device that inputs go to, and the bytes that are free there; None where nobody says."""
        device = self.device()
        return device.type, free_bytes(device)

    def describe(self) -> dict[str, Any]:
        """Returns what the record of a run says of the engine: its name alone before the weights are loaded."""
        module = self.module
        if module is None:
            return {"engine": self.name}
        return {
            "engine": self.name,
            "device": sorted({str(parameter.device) for parameter in module.parameters()}),
            "dtype": sorted({str(parameter.dtype).removeprefix("torch.") for parameter in module.parameters()}),
            "attn_implementation": getattr(module.config, "_attn_implementation", None),
            **({"warnings": list(self.checkpoint.warnings)} if self.checkpoint.warnings else {}),
        }
