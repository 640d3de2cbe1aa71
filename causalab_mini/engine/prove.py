"""The identities that component names must keep, measured on a checkpoint with its weights.

A name that stands on another tensor than it says breaks one of them: a stream that is no sum of its parts, a pattern that does not sum to
one, a head's result that is not what the projection is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from causalab_mini.data.prompts import make_prompt
from causalab_mini.engine.batches import make_batch
from causalab_mini.engine.contract import Batch, Engine, KeepTask, State, Visit
from causalab_mini.engine.tokenizer import pad_id
from causalab_mini.evidence.checks import TOLERANCE
from causalab_mini.model.components import COMPONENTS, forward_rank
from causalab_mini.model.families import Address

TEXTS = (
    "If today is Thursday, tomorrow is",
    "When Mary and John went to the store, John gave a drink to",
    "The capital of France is",
    "One two three four five six seven",
)


@dataclass(frozen=True, slots=True)
class Proof:
    """One identity at all layers that have it.

    Attributes:
        identity: as an equation of component names.
        error: the largest difference of its sides, as a share of the root mean square of the left one.
        layer: where that was; None for the whole model.
        n: how many layers it was measured at, or 1.
        tolerance: what the dtype allows.
    """

    identity: str
    error: float
    layer: int | None
    n: int
    tolerance: float

    @property
    def holds(self) -> bool:
        """Whether the error is one of rounding."""
        return self.error <= self.tolerance


def prove(engine: Engine, texts: Sequence[str] = TEXTS) -> list[Proof]:
    """Returns every identity of a checkpoint, measured on some texts as one ragged, left-padded batch. Loads the weights."""
    engine.load_weights()
    prompts = [make_prompt(engine.tokenizer, text) for text in texts]
    batch = make_batch(range(len(prompts)), prompts, None, pad_id(engine.tokenizer))
    found: dict[str, list[tuple[float, int | None]]] = {}
    before: Tensor | None = None
    for layer in range(engine.facts.n_layers):
        values = _layer(engine, batch, layer)
        for identity, left, right in _of_layer(engine, values, layer):
            found.setdefault(identity, []).append((_error(left, right, batch), layer))
        if before is not None:
            found.setdefault("block_input = block_output of the layer below", []).append(
                (_error(values["block_input"], before, batch), layer)
            )
        before = values["block_output"]
    whole = _whole(engine, batch)
    softcap = engine.facts.softcap
    capped = whole["lm_head"] if softcap is None else torch.tanh(whole["lm_head"] / softcap) * softcap
    found["logits = lm_head" + ("" if softcap is None else f", soft-capped at {softcap:g}")] = [
        (_error(whole["logits"], capped, batch), None)
    ]
    if before is not None and engine.facts.family.place("ln_final", None):
        found["logits = unembedding of the last block_output"] = [(_error(whole["logits"], engine.unembed(before), batch), None)]
    tolerance = TOLERANCE[engine.facts.dtype]
    return [Proof(identity, *max(errors, key=lambda pair: pair[0]), len(errors), tolerance) for identity, errors in found.items()]


def _of_layer(engine: Engine, values: dict[str, Tensor], layer: int) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yields the identities of one layer with both sides."""
    entered, attention, mlp, left = (values[name] for name in ("block_input", "attention_output", "mlp_output", "block_output"))
    yield "block_output = block_input + attention_output + mlp_output", left, entered + attention + mlp
    if "block_mid" in values:
        yield "block_mid = block_input + attention_output", values["block_mid"], entered + attention
        yield "block_output = block_mid + mlp_output", left, values["block_mid"] + mlp
    if "attention_z" in values:
        yield "attention_z = attention_premix", values["attention_z"], values["attention_premix"]
    if "attention_probs" in values:
        probs, scores = values["attention_probs"], values["attention_scores"]
        yield "attention_probs sum to 1", probs.float().sum(dim=-1, keepdim=True), torch.ones_like(probs[..., :1])
        yield "attention_probs = softmax of attention_scores", probs, scores.float().softmax(dim=-1).to(probs.dtype)
        groups = engine.facts.n_heads // engine.facts.n_kv_heads
        value = _heads(values["attention_value"], engine.facts.n_kv_heads).repeat_interleave(groups, dim=2)
        mixed = torch.einsum("rhqk,rkhf->rqhf", probs, value).flatten(start_dim=2)
        yield "attention_z = attention_probs · attention_value", values["attention_z"], mixed


def _layer(engine: Engine, batch: Batch, layer: int) -> dict[str, Tensor]:
    """Returns every component of a layer, whole: (row, token, feature), patterns (row, head, token, key).

    `block_mid` is what the module is given that reads it, so that the sum can be held against it.
    """
    addresses: dict[str, Address] = {}
    for name, component in COMPONENTS.items():
        found = engine.facts.address(name, layer) if component.per_layer else None
        if found is not None:
            addresses[name] = found if found.side != "mid" else _reader_of_mid(engine, layer)
    return _values(engine, batch, addresses, layer)


def _reader_of_mid(engine: Engine, layer: int) -> Address:
    norm = engine.facts.address("mlp_input_norm", layer) or engine.facts.address("mlp_input", layer)
    assert norm is not None
    return Address(norm.module, "input", norm.is_flat)


def _whole(engine: Engine, batch: Batch) -> dict[str, Tensor]:
    names = ("lm_head", "logits")
    return _values(engine, batch, {name: found for name in names if (found := engine.facts.address(name, None)) is not None}, None)


def _values(engine: Engine, batch: Batch, addresses: dict[str, Address], layer: int | None) -> dict[str, Tensor]:
    """Returns whole activations at some addresses."""
    names = sorted(addresses, key=lambda name: forward_rank("mlp_input_norm" if name == "block_mid" else name, layer))
    numbers = {name: number for number, name in enumerate(names)}
    stops: dict[Address, list[KeepTask]] = {}
    for name in names:
        stops.setdefault(addresses[name], []).append(KeepTask(numbers[name]))
    state = State(batch.input_ids.shape[1])
    engine.run(batch, tuple(Visit(address, tuple(tasks)) for address, tasks in stops.items()), state)
    return {name: state.streams[numbers[name]] for name in names}


def _error(left: Tensor, right: Tensor, batch: Batch) -> float:
    """Returns the largest difference at the rows' own tokens, as a share of the left side's root mean square there.

    Args:
        left: (row, token, feature), or (row, head, token, key).
        right: shaped as it.
        batch: says which tokens are padding; what stands there is nobody's value.
    """
    is_there = batch.attention_mask.bool().to(left.device)
    if left.dim() == 4:
        left, right = left.transpose(1, 2), right.transpose(1, 2)
    one, other = left[is_there].float(), right.to(left.device)[is_there].float()
    scale = float(one.square().mean().sqrt())
    difference = float((one - other).abs().max())
    return difference / scale if scale > 0 else difference


def _heads(tensor: Tensor, n_heads: int) -> Tensor:
    """Returns (row, token, head, feature) of (row, token, head · feature)."""
    return tensor.reshape(*tensor.shape[:-1], n_heads, -1)
