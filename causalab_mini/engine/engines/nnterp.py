"""The engine that runs are made with: nnterp's standardised model on nnsight, one trace a pass."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from causalab_mini.engine.contract import PLAIN, Batch, Shortcut, State, Visit
from causalab_mini.engine.direct import run_hooked
from causalab_mini.engine.engines.base import BaseEngine
from causalab_mini.engine.gradients import gradients
from causalab_mini.engine.interiors import interiors
from causalab_mini.engine.loading import Checkpoint, open_checkpoint
from causalab_mini.engine.shaping import shaped
from causalab_mini.engine.walk import note_tails, replaced, taken, visit
from causalab_mini.errors import CausalabError, ModelError, Problem, quoted
from causalab_mini.model.components import COMPONENTS
from causalab_mini.model.families import Address
from causalab_mini.plan.spec import ModelSpec


class NNterpEngine(BaseEngine):
    """Runs a checkpoint through nnterp."""

    name = "nnterp"

    def __init__(self, checkpoint: Checkpoint, device_map: Any, model: Any) -> None:
        super().__init__(checkpoint, device_map)
        self.model = model

    @classmethod
    def load(
        cls, model: ModelSpec, device_map: str | Mapping[str, Any] = "auto", base: Path | None = None, trust_remote_code: bool = False
    ) -> Self:
        """Returns the opened checkpoint: config, tokenizer and module tree, on a meta device.

        The weights are loaded when the first pass needs them.

        Args:
            model: of a document (`Spec.model`).
            device_map: as transformers takes it.
            base: the folder that a local path is looked for in first.
            trust_remote_code: whether code that comes with the checkpoint may run.

        Raises:
            ModelError: the checkpoint can't be opened, or its modules are not where its family has them.
        """
        checkpoint = open_checkpoint(model, base, trust_remote_code)
        standardized = _on_meta(checkpoint, device_map)
        _check_modules(checkpoint, standardized)
        return cls(checkpoint, device_map, standardized)

    def load_weights(self) -> None:
        """Loads and freezes the weights, once."""
        if self.module is None:
            self.load_with(self.dispatched)

    def dispatched(self) -> Any:
        """Returns the model with its weights."""
        self.model.dispatch()
        return self.model._model

    def run(self, batch: Batch, visits: tuple[Visit, ...], state: State, shortcut: Shortcut = PLAIN) -> None:
        """Runs one forward over a batch as one trace, or what a shortcut leaves of it, stopping at addresses in forward order."""
        self.load_weights()
        model, inputs = self.model, self.inputs(batch, shortcut)
        if shortcut.is_direct:
            run_hooked(model._model, self.facts, inputs, visits, state, shortcut)
            return
        with gradients(shortcut.mode), interiors(model._model, visits, state) as borders, shaped(model._model, self.facts, shortcut):
            if not borders and not shortcut.stops:
                model._model(**inputs)
                return
            try:
                with model.trace(**inputs) as tracer:
                    walk(model, borders, state, shortcut.stops, tracer)
            except CausalabError as error:  # nnsight raises a class of its own, made of ours, that can't be built again
                raise getattr(error, "original", error) from None


def walk(model: Any, visits: tuple[Visit, ...], state: State, stops: bool, tracer: Any) -> None:
    """Stops at every address of a running trace; nnsight waits there for the forward to arrive."""
    for stop in visits:
        if stop.address.side == "logits":
            output = model.output
            changed = visit(output.logits, stop, state)
            if changed is not None:
                output.logits = changed
            continue
        envoy = envoy_at(model, stop.address.module)
        container = envoy.input if stop.address.side == "input" else envoy.output
        note_tails(container, stop, state)
        changed = visit(taken(container), stop, state)
        if changed is None:
            continue
        if stop.address.side == "input":
            envoy.input = changed
        else:
            envoy.output = replaced(container, changed)
    if stops:
        tracer.stop()


def envoy_at(model: Any, path: str) -> Any:
    """Returns the envoy of a module path such as `model.layers.3.mlp`."""
    envoy = model
    for part in path.split("."):
        envoy = envoy[int(part)] if part.isdigit() else getattr(envoy, part)
    return envoy


def _on_meta(checkpoint: Checkpoint, device_map: Any) -> Any:
    import logging

    from nnterp import StandardizedTransformer

    logging.getLogger("nnterp").setLevel(logging.ERROR)  # it warns of names it can't give, which are ours to know
    attention = checkpoint.facts.attn_implementation
    return StandardizedTransformer(
        checkpoint.source.location,
        tokenizer=checkpoint.tokenizer,
        config=checkpoint.config,
        config_model=checkpoint.config,  # or nnsight reads it anew, and lets code run that it names
        check_renaming=False,
        device_map=device_map,
        dtype=checkpoint.dtype,
        use_safetensors=True,
        **({} if attention is None else {"attn_implementation": attention}),
        **checkpoint.options,
    )


def _check_modules(checkpoint: Checkpoint, model: Any) -> None:
    """Refuses a checkpoint whose modules are not where the address book has its family's."""
    names = {name for name, _ in model._model.named_modules()}
    facts = checkpoint.facts
    paths = []
    for component in COMPONENTS.values():
        for layer in range(facts.n_layers) if component.per_layer else (None,):
            found = facts.family.place(component.name, layer)
            if isinstance(found, Address) and found.module:
                paths.append(found.module)
    missing = [path for path in paths if path not in names]
    if missing:
        expected = f"the modules of the family {quoted(checkpoint.facts.model_type)}"
        raise ModelError(Problem("model.key", expected, f"no {quoted(missing[0])} in {quoted(checkpoint.facts.key)}", code="family"))
