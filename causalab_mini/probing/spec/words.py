"""The closed vocabularies of extraction specs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from causalab_mini.model.components import COMPONENTS


class TensorType(StrEnum):
    """Which tensor is taken: five short names, and every component of the document language."""

    RESIDUAL_STREAM = "residual_stream"
    ATTN_OUT = "attn_out"
    MLP_OUT = "mlp_out"
    KV = "kv"
    FINAL_NORM = "final_norm"
    INPUT_IDS = "input_ids"
    EMBEDDINGS = "embeddings"
    BLOCK_INPUT = "block_input"
    ATTENTION_INPUT_NORM = "attention_input_norm"
    ATTENTION_QUERY = "attention_query"
    ATTENTION_KEY = "attention_key"
    ATTENTION_VALUE = "attention_value"
    ATTENTION_SCORES = "attention_scores"
    ATTENTION_PROBS = "attention_probs"
    ATTENTION_Z = "attention_z"
    ATTENTION_PREMIX = "attention_premix"
    ATTENTION_OUTPUT = "attention_output"
    BLOCK_MID = "block_mid"
    MLP_INPUT_NORM = "mlp_input_norm"
    MLP_INPUT = "mlp_input"
    ROUTER_LOGITS = "router_logits"
    ROUTER_PROBS = "router_probs"
    MLP_ACTIVATION = "mlp_activation"
    MLP_NEURON_OUTPUT = "mlp_neuron_output"
    MLP_OUTPUT = "mlp_output"
    BLOCK_OUTPUT = "block_output"
    LN_FINAL = "ln_final"
    LM_HEAD = "lm_head"
    LOGITS = "logits"

    @property
    def per_layer(self) -> bool:
        """Whether every layer has one; the rest belong to the whole model."""
        return all(COMPONENTS[name].per_layer for name in components_of(self))


class Until(StrEnum):
    """When a run of tokens ends, beside its own bounds."""

    GENERATION_END = "generation_end"
    FIXED_COUNT = "fixed_count"
    STOP_TOKEN = "stop_token"


class ProbeKind(StrEnum):
    """Whether a probe judges each activation alone, or carries state from one to the next."""

    SINGLE_SHOT = "single_shot"
    TRAJECTORY = "trajectory"


class ExecutionMode(StrEnum):
    """Whether the generation waits for a probe."""

    INLINE = "inline"
    ASYNC = "async"


class Overflow(StrEnum):
    """What a full queue does with one activation more."""

    BLOCK = "block"
    DROP_OLDEST = "drop_oldest"
    DROP_NEWEST = "drop_newest"


class InterventionMode(StrEnum):
    """Whether a probe may hold up the generation."""

    REJECT = "reject"
    BLOCK_UNTIL_SIGNAL = "block_until_signal"


class OnTimeout(StrEnum):
    """What happens when a probe that is waited for does not answer in time."""

    CONTINUE = "continue"
    ABORT = "abort"


def components_of(tensor_type: TensorType) -> tuple[str, ...]:
    """Returns the components of the document language that a tensor type is."""
    return _COMPONENTS.get(tensor_type, (tensor_type.value,))


_COMPONENTS: Mapping[TensorType, tuple[str, ...]] = {
    TensorType.RESIDUAL_STREAM: ("block_output",),
    TensorType.ATTN_OUT: ("attention_output",),
    TensorType.MLP_OUT: ("mlp_output",),
    TensorType.KV: ("attention_key", "attention_value"),
    TensorType.FINAL_NORM: ("ln_final",),
}
