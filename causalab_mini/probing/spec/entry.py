"""A point as it is written: its keys, their types and limits. What its keys mean to each other is in `parse`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator

from causalab_mini.errors import did_you_mean, listed
from causalab_mini.model.components import ALIASES
from causalab_mini.plan.selector import FORMS, PositionSelector, read_position
from causalab_mini.plan.strict import Strict, invalid, shown
from causalab_mini.probing.spec.words import ExecutionMode, InterventionMode, OnTimeout, Overflow, ProbeKind, TensorType, Until

_SHORT = (TensorType.RESIDUAL_STREAM, TensorType.ATTN_OUT, TensorType.MLP_OUT, TensorType.KV, TensorType.FINAL_NORM)
_LAYERS = "a layer or a list of layers (integers from 0)"
_Word = TypeVar("_Word", bound=StrEnum)


def _word(words: type[_Word]) -> BeforeValidator:
    """Returns a validator for one of some words."""

    def judge(value: Any) -> _Word:
        known = [word.value for word in words]
        if isinstance(value, str) and value in known:
            return words(value)
        expected = listed(known) if words is not TensorType else f"{listed(_SHORT)}, or a component such as `block_input`"
        hint = ""
        if isinstance(value, str):
            hint = f"did you mean `{ALIASES[value]}`?" if words is TensorType and value in ALIASES else did_you_mean(value, known)
        raise invalid(expected, shown(value), hint, "enum")

    return BeforeValidator(judge)


def _said(text: str) -> str:
    if not text.strip():
        raise invalid("a text", "an empty one", code="length")
    if not text.isprintable():
        raise invalid("printable characters", shown(text), code="name")
    return text


def _layers(value: Any) -> tuple[int, ...]:
    layers = value if isinstance(value, list) else [value]
    if not layers:
        raise invalid(_LAYERS, "an empty list", code="length")
    for layer in layers:
        if isinstance(layer, bool) or not isinstance(layer, int):
            raise invalid(_LAYERS, shown(value), code="type")
        if layer < 0:
            raise invalid(_LAYERS, shown(value), "layers are counted from the first, which is 0", "range")
    if len(set(layers)) < len(layers):
        raise invalid("each layer once", shown(value), code="duplicate")
    return tuple(layers)


def _position(value: Any) -> PositionSelector:
    found = read_position(value)
    if isinstance(found, PositionSelector):
        return found
    raise invalid(FORMS, *found, "position")


Said = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_said)]


class InterventionEntry(Strict):
    """Whether the probe may hold up the generation. Absent, the router's own policy applies."""

    mode: Annotated[InterventionMode, _word(InterventionMode)] = InterventionMode.REJECT
    """`reject` never waits; `block_until_signal` waits for the probe's word."""
    timeout_ms: int | None = Field(None, ge=1, le=86_400_000)
    """How long `block_until_signal` waits, in milliseconds; at most a day."""
    on_timeout: Annotated[OnTimeout, _word(OnTimeout)] = OnTimeout.CONTINUE
    """What happens when no word came: in time, or at all, because the probe fails or can't be asked."""


class PointEntry(Strict):
    """What is taken, at which tokens, and which probe gets it."""

    name: Said
    """What every record of this point carries; unique in the spec."""
    layers: Annotated[tuple[int, ...], BeforeValidator(_layers, json_schema_input_type=int | list[int])] = ()
    """Layers, from 0; left out where the tensor belongs to the whole model, such as `final_norm`."""
    tensor_type: Annotated[TensorType, _word(TensorType)]
    """Which tensor."""
    position: Annotated[PositionSelector, PlainValidator(_position, json_schema_input_type=int | str)]
    """Which tokens, as an index or a selector."""
    stride: int = Field(1, ge=1)
    """Every n-th token of a run is taken, from the run's start (`every_n`, in a spec's file, is the same)."""
    until: Annotated[Until, _word(Until)] | None = None
    """When a run ends beside its own bounds: with the generation, after `count` tokens taken, or with the token `token`, the last that may be taken."""
    count: int | None = Field(None, ge=1)
    """How many tokens `until: fixed_count` takes."""
    token: str | None = Field(None, min_length=1)
    """The text of the one token that `until: stop_token` waits for, inside the run."""
    probe_type: Said
    """The name that the probe is registered under."""
    probe_kind: Annotated[ProbeKind, _word(ProbeKind)]
    """`single_shot` judges each activation alone; `trajectory` carries state from one to the next."""
    probe_args: dict[str, Any] = Field(default_factory=dict)
    """More arguments of the probe's constructor; they go before the router's own for this `probe_type`."""
    execution_mode: Annotated[ExecutionMode, _word(ExecutionMode)] = ExecutionMode.INLINE
    """`inline`: the generation waits for the probe; `async`: it goes on."""
    queue_depth: int | None = Field(None, ge=1)
    """How many activations an async point may have waiting; absent, the router's own."""
    overflow: Annotated[Overflow, _word(Overflow)] = Overflow.BLOCK
    """What a full queue of an async point does."""
    intervention: InterventionEntry | None = None
    """Whether the probe may hold up the generation."""
