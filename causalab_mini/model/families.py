"""The address book: where each component stands in each family of models, or why it does not.

One table a family, by the `model_type` of transformers' configs, with an entry for every component. A family is listed when the tests
have proved its addresses; another is refused by name, since the same name on another tensor is the fault this table is here to prevent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Side = Literal["input", "output", "logits", "query", "key", "value", "scores", "probs", "z", "router_logits", "router_probs", "mid"]

INTERIOR: tuple[Side, ...] = ("query", "key", "value", "scores", "probs", "z", "router_logits", "router_probs")
"""Sides that are not at a module's border: inside the attention function, or inside a router."""


@dataclass(frozen=True, slots=True)
class Address:
    """One tensor of a forward.

    Attributes:
        module: path of the module below the model, empty for the model itself.
        side: `input` (its first argument), `output` (its result, or the first of its results), `logits` (that field of it), one of
            `INTERIOR`, or `mid` (its result plus the stream that entered the block).
        is_flat: whether rows and tokens are one axis there.
    """

    module: str
    side: Side
    is_flat: bool = False

    def at(self, layer: int | None) -> Address:
        """Returns the address with its layer filled in."""
        return Address(self.module.format(layer=layer), self.side, self.is_flat)


@dataclass(frozen=True, slots=True)
class Absent:
    """Why a family has no such place."""

    reason: str


Place = Address | Absent


@dataclass(frozen=True, slots=True)
class Family:
    """The places of one family.

    Attributes:
        places: by component; `{layer}` in a path stands for the layer's number.
        is_parallel: whether attention and MLP read one stream and are added to it together.
        other: layers that are built differently, with the places that differ there.
    """

    places: Mapping[str, Place]
    is_parallel: bool = False
    other: Mapping[int, Mapping[str, Place]] = field(default_factory=dict)

    def place(self, component: str, layer: int | None) -> Place:
        """Returns where a component stands at a layer, or why it does not."""
        places = self.other.get(layer, {}) if layer is not None else {}
        found = places.get(component, self.places[component])
        return found if isinstance(found, Absent) else found.at(layer)

    def module(self, component: str) -> str:
        """Returns the module path of a place that every family has."""
        found = self.places[component]
        assert isinstance(found, Address)
        return found.module


NO_ROUTER = Absent("its layers have no experts")
NO_MID = Absent("attention and MLP are added to the stream together: there is no stream between them")
ONE_NORM = Absent("attention and MLP read one norm: it is `attention_input_norm`, and what the MLP alone is given is `mlp_input`")
NO_INPUT_NORM = Absent("its norms stand behind attention and MLP, which read the stream itself")
OWN_ATTENTION = Absent("it computes attention inside its module, not through transformers' attention interface")
EXPERTS = Absent("every expert has neurons of its own, and sees a part of the tokens")
BEFORE_ATTENTION = Absent("its norm for the MLP runs before attention, out of forward order: what the MLP is given is `mlp_input`")


def _out(path: str, is_flat: bool = False) -> Address:
    return Address(path, "output", is_flat)


def _in(path: str, is_flat: bool = False) -> Address:
    return Address(path, "input", is_flat)


def _interior(attention: str) -> dict[str, Place]:
    sides: tuple[Side, ...] = ("query", "key", "value", "scores", "probs", "z")
    return {f"attention_{side}": Address(attention, side) for side in sides}


def _no_interior() -> dict[str, Place]:
    return {f"attention_{name}": OWN_ATTENTION for name in ("query", "key", "value", "scores", "probs", "z")}


_L = "model.layers.{layer}"
_LLAMA: dict[str, Place] = {
    "input_ids": _in("model.embed_tokens"),
    "embeddings": _out("model.embed_tokens"),
    "block_input": _in(_L),
    "attention_input_norm": _out(f"{_L}.input_layernorm"),
    **_interior(f"{_L}.self_attn"),
    "attention_premix": _in(f"{_L}.self_attn.o_proj"),
    "attention_output": _out(f"{_L}.self_attn"),
    "block_mid": Address(f"{_L}.self_attn", "mid"),
    "mlp_input_norm": _out(f"{_L}.post_attention_layernorm"),
    "mlp_input": _in(f"{_L}.mlp"),
    "router_logits": NO_ROUTER,
    "router_probs": NO_ROUTER,
    "mlp_activation": _out(f"{_L}.mlp.act_fn"),
    "mlp_neuron_output": _in(f"{_L}.mlp.down_proj"),
    "mlp_output": _out(f"{_L}.mlp"),
    "block_output": _out(_L),
    "ln_final": _out("model.norm"),
    "lm_head": _out("lm_head"),
    "logits": Address("", "logits"),
}
_EXPERTS: dict[str, Place] = {
    "router_logits": Address(f"{_L}.mlp.gate", "router_logits", True),
    "router_probs": Address(f"{_L}.mlp.gate", "router_probs", True),
    "mlp_activation": EXPERTS,
    "mlp_neuron_output": EXPERTS,
}
_SANDWICH: dict[str, Place] = {
    "attention_output": _out(f"{_L}.post_attention_layernorm"),
    "block_mid": Address(f"{_L}.post_attention_layernorm", "mid"),
    "mlp_input_norm": _out(f"{_L}.pre_feedforward_layernorm"),
    "mlp_output": _out(f"{_L}.post_feedforward_layernorm"),
}
_OLMO2: dict[str, Place] = {**_SANDWICH, "attention_input_norm": NO_INPUT_NORM, "mlp_input_norm": NO_INPUT_NORM}
_PHI: dict[str, Place] = {
    **_LLAMA,
    "attention_premix": _in(f"{_L}.self_attn.dense"),
    "block_mid": NO_MID,
    "mlp_input_norm": ONE_NORM,
    "mlp_activation": _out(f"{_L}.mlp.activation_fn"),
    "mlp_neuron_output": _in(f"{_L}.mlp.fc2"),
    "ln_final": _out("model.final_layernorm"),
}

_G = "transformer.h.{layer}"
_GPT2: dict[str, Place] = {
    "input_ids": _in("transformer.wte"),
    "embeddings": _out("transformer.wte"),
    "block_input": _in(_G),
    "attention_input_norm": _out(f"{_G}.ln_1"),
    **_interior(f"{_G}.attn"),
    "attention_premix": _in(f"{_G}.attn.c_proj"),
    "attention_output": _out(f"{_G}.attn"),
    "block_mid": Address(f"{_G}.attn", "mid"),
    "mlp_input_norm": _out(f"{_G}.ln_2"),
    "mlp_input": _in(f"{_G}.mlp"),
    "router_logits": NO_ROUTER,
    "router_probs": NO_ROUTER,
    "mlp_activation": _out(f"{_G}.mlp.act"),
    "mlp_neuron_output": _in(f"{_G}.mlp.c_proj"),
    "mlp_output": _out(f"{_G}.mlp"),
    "block_output": _out(_G),
    "ln_final": _out("transformer.ln_f"),
    "lm_head": _out("lm_head"),
    "logits": Address("", "logits"),
}
_GPTJ: dict[str, Place] = {
    **_GPT2,
    "attention_premix": _in(f"{_G}.attn.out_proj"),
    "block_mid": NO_MID,
    "mlp_input_norm": ONE_NORM,
    "mlp_neuron_output": _in(f"{_G}.mlp.fc_out"),
}

_N = "gpt_neox.layers.{layer}"
_NEOX: dict[str, Place] = {
    "input_ids": _in("gpt_neox.embed_in"),
    "embeddings": _out("gpt_neox.embed_in"),
    "block_input": _in(_N),
    "attention_input_norm": _out(f"{_N}.input_layernorm"),
    **_interior(f"{_N}.attention"),
    "attention_premix": _in(f"{_N}.attention.dense"),
    "attention_output": _out(f"{_N}.attention"),
    "block_mid": NO_MID,
    "mlp_input_norm": _out(f"{_N}.post_attention_layernorm"),
    "mlp_input": _in(f"{_N}.mlp"),
    "router_logits": NO_ROUTER,
    "router_probs": NO_ROUTER,
    "mlp_activation": _out(f"{_N}.mlp.act"),
    "mlp_neuron_output": _in(f"{_N}.mlp.dense_4h_to_h"),
    "mlp_output": _out(f"{_N}.mlp"),
    "block_output": _out(_N),
    "ln_final": _out("gpt_neox.final_layer_norm"),
    "lm_head": _out("lm_head"),
    "logits": Address("", "logits"),
}

_FALCON: dict[str, Place] = {
    "input_ids": _in("transformer.word_embeddings"),
    "embeddings": _out("transformer.word_embeddings"),
    "block_input": _in(_G),
    "attention_input_norm": _out(f"{_G}.input_layernorm"),
    **_no_interior(),
    "attention_premix": _in(f"{_G}.self_attention.dense"),
    "attention_output": _out(f"{_G}.self_attention"),
    "block_mid": NO_MID,
    "mlp_input_norm": ONE_NORM,
    "mlp_input": _in(f"{_G}.mlp"),
    "router_logits": NO_ROUTER,
    "router_probs": NO_ROUTER,
    "mlp_activation": _out(f"{_G}.mlp.act"),
    "mlp_neuron_output": _in(f"{_G}.mlp.dense_4h_to_h"),
    "mlp_output": _out(f"{_G}.mlp"),
    "block_output": _out(_G),
    "ln_final": _out("transformer.ln_f"),
    "lm_head": _out("lm_head"),
    "logits": Address("", "logits"),
}
_BLOOM: dict[str, Place] = {
    **_FALCON,
    "attention_output": _out(f"{_G}.self_attention.dense"),
    "block_mid": Address(f"{_G}.self_attention.dense", "mid"),
    "mlp_input_norm": _out(f"{_G}.post_attention_layernorm"),
    "mlp_activation": _out(f"{_G}.mlp.gelu_impl"),
    "mlp_output": _out(f"{_G}.mlp.dense_4h_to_h"),
}

_O = "model.decoder.layers.{layer}"
_OPT: dict[str, Place] = {
    "input_ids": _in("model.decoder.embed_tokens"),
    "embeddings": _out("model.decoder.embed_tokens"),
    "block_input": _in(_O),
    "attention_input_norm": _out(f"{_O}.self_attn_layer_norm"),
    **_interior(f"{_O}.self_attn"),
    "attention_premix": _in(f"{_O}.self_attn.out_proj"),
    "attention_output": _out(f"{_O}.self_attn"),
    "block_mid": Address(f"{_O}.self_attn", "mid"),
    "mlp_input_norm": _out(f"{_O}.final_layer_norm", True),
    "mlp_input": _in(f"{_O}.fc1", True),
    "router_logits": NO_ROUTER,
    "router_probs": NO_ROUTER,
    "mlp_activation": _out(f"{_O}.activation_fn", True),
    "mlp_neuron_output": _in(f"{_O}.fc2", True),
    "mlp_output": _out(f"{_O}.fc2", True),
    "block_output": _out(_O),
    "ln_final": _out("model.decoder.final_layer_norm"),
    "lm_head": _out("lm_head"),
    "logits": Address("", "logits"),
}


def _same(places: Mapping[str, Place], is_parallel: bool = False) -> Callable[[Any], Family | str]:
    return lambda config: Family(places, is_parallel)


def _gpt2(config: Any) -> Family | str:
    if config.reorder_and_upcast_attn:
        return "`reorder_and_upcast_attn` computes attention another way"
    return Family(_GPT2)


def _neox(config: Any) -> Family | str:
    if config.use_parallel_residual:
        return Family(_NEOX, is_parallel=True)
    return Family({**_NEOX, "block_mid": Address(f"{_N}.attention", "mid")})


def _falcon(config: Any) -> Family | str:
    if config.new_decoder_architecture:
        two_norms = getattr(config, "num_ln_in_parallel_attn", None) != 1
        places: dict[str, Place] = {}
        if two_norms:
            places = {"attention_input_norm": _out(f"{_G}.ln_attn"), "mlp_input_norm": BEFORE_ATTENTION}
        return Family({**_FALCON, **places}, is_parallel=True)
    if config.parallel_attn:
        return Family(_FALCON, is_parallel=True)
    norm = _out(f"{_G}.post_attention_layernorm")
    return Family({**_FALCON, "block_mid": Address(f"{_G}.self_attention", "mid"), "mlp_input_norm": norm})


def _bloom(config: Any) -> Family | str:
    if config.apply_residual_connection_post_layernorm:
        return "`apply_residual_connection_post_layernorm` adds to a normed stream"
    if config.pretraining_tp > 1 and config.slow_but_exact:
        return "`slow_but_exact` bypasses the output projections"
    return Family(_BLOOM)


def _opt(config: Any) -> Family | str:
    if not config.do_layer_norm_before:
        return "its norms stand behind the residual additions (`do_layer_norm_before` is false)"
    if config.word_embed_proj_dim != config.hidden_size:
        return "its embeddings have another width than its stream"
    if getattr(config, "_remove_final_layer_norm", False):
        return "it has no final norm"
    return Family(_OPT)


def _qwen_moe(config: Any) -> Family | str:
    dense = {
        layer: {name: _LLAMA[name] for name in _EXPERTS}
        for layer in range(config.num_hidden_layers)
        if layer in config.mlp_only_layers or (layer + 1) % config.decoder_sparse_step != 0
    }
    return Family({**_LLAMA, **_EXPERTS}, other=dense)


FAMILIES: Mapping[str, Callable[[Any], Family | str]] = {
    "bloom": _bloom,
    "falcon": _falcon,
    "gemma2": _same({**_LLAMA, **_SANDWICH}),
    "gemma3_text": _same({**_LLAMA, **_SANDWICH}),
    "gpt2": _gpt2,
    "gpt_neox": _neox,
    "gptj": _same(_GPTJ, is_parallel=True),
    "llama": _same(_LLAMA),
    "mistral": _same(_LLAMA),
    "mixtral": _same({**_LLAMA, **_EXPERTS}),
    "olmo2": _same({**_LLAMA, **_OLMO2}),
    "opt": _opt,
    "phi": _same(_PHI, is_parallel=True),
    "qwen2": _same(_LLAMA),
    "qwen2_moe": _qwen_moe,
    "qwen3": _same(_LLAMA),
    "qwen3_moe": _qwen_moe,
}
"""What makes a family of a config; a text instead says why this config is not one of those proved."""
