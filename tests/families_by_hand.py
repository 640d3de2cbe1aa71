"""A small random model of every family, its places written down by hand, and plain PyTorch to read and write them.

Imports nothing of the project: what the address book, the interiors and both engines are compared with. One row at a time; what stands
at a place is seen as (token, feature), the features of a pattern being its heads' keys one after the other.
"""

import sys
from dataclasses import dataclass, field

import torch

TOKENS = {"vocab_size": 160, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
SHAPE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, **TOKENS}
GATED = {**SHAPE, "intermediate_size": 96, "num_key_value_heads": 2, "max_position_embeddings": 128}
GPT = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, **TOKENS}
NEOX = {**SHAPE, "intermediate_size": 96, "max_position_embeddings": 128}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
SHARED = {**EXPERTS, "shared_expert_intermediate_size": 48}
CAPPED = {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 4}

CONFIGS = {
    "bloom": ("bloom", {"hidden_size": 64, "n_layer": 2, "n_head": 4, **TOKENS}),
    "falcon": ("falcon", SHAPE),
    "falcon-serial": ("falcon", SHAPE | {"parallel_attn": False, "alibi": True, "multi_query": False, "bias": True}),
    "falcon-two-norms": ("falcon", SHAPE | {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "gemma2": ("gemma2", GATED | CAPPED | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma3_text": ("gemma3_text", GATED | CAPPED | {"layer_types": ["sliding_attention", "full_attention"]}),
    "gpt2": ("gpt2", GPT),
    "gpt_neox": ("gpt_neox", NEOX),
    "gpt_neox-serial": ("gpt_neox", NEOX | {"use_parallel_residual": False}),
    "gptj": ("gptj", GPT | {"rotary_dim": 8}),
    "llama": ("llama", GATED),
    "mistral": ("mistral", GATED | {"sliding_window": 5}),
    "mixtral": ("mixtral", GATED | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}),
    "olmo2": ("olmo2", GATED),
    "opt": ("opt", SHAPE | {"ffn_dim": 96, "word_embed_proj_dim": 64, "max_position_embeddings": 128}),
    "phi": ("phi", GATED),
    "qwen2": ("qwen2", GATED),
    "qwen2_moe": ("qwen2_moe", GATED | SHARED),
    "qwen2_moe-dense": ("qwen2_moe", GATED | SHARED | {"mlp_only_layers": [0]}),
    "qwen3": ("qwen3", GATED | {"head_dim": 24}),
    "qwen3_moe": ("qwen3_moe", GATED | EXPERTS | {"head_dim": 16, "norm_topk_prob": True}),
}
"""The families and the variants of them that the address book tells apart, by `model_type` and what their configs say."""

INTERFACED = tuple(name for name in CONFIGS if not name.startswith(("bloom", "falcon")))
"""Those whose attention goes through transformers' attention interface."""
INTERIOR = tuple(f"attention_{side}" for side in ("query", "key", "value", "scores", "probs", "z"))
PATTERNS = ("attention_scores", "attention_probs")
PER_HEAD = (*INTERIOR, "attention_premix")
ROUTER = ("router_logits", "router_probs")

_L = "model.layers.{}."
_LLAMA = {
    "input_ids": ("model.embed_tokens", "in"),
    "embeddings": ("model.embed_tokens", "out"),
    "block_input": ("model.layers.{}", "in"),
    "attention_input_norm": (_L + "input_layernorm", "out"),
    "attention_premix": (_L + "self_attn.o_proj", "in"),
    "attention_output": (_L + "self_attn.o_proj", "out"),
    "block_mid": (_L + "post_attention_layernorm", "in"),
    "mlp_input_norm": (_L + "post_attention_layernorm", "out"),
    "mlp_input": (_L + "mlp", "in"),
    "mlp_activation": (_L + "mlp.act_fn", "out"),
    "mlp_neuron_output": (_L + "mlp.down_proj", "in"),
    "mlp_output": (_L + "mlp.down_proj", "out"),
    "block_output": ("model.layers.{}", "out"),
    "ln_final": ("model.norm", "out"),
    "lm_head": ("lm_head", "out"),
    "logits": ("", "logits"),
}
_SANDWICH = _LLAMA | {
    "attention_output": (_L + "post_attention_layernorm", "out"),
    "block_mid": (_L + "pre_feedforward_layernorm", "in"),
    "mlp_input_norm": (_L + "pre_feedforward_layernorm", "out"),
    "mlp_output": (_L + "post_feedforward_layernorm", "out"),
}
_MOE = _LLAMA | {
    "mlp_output": (_L + "mlp", "out"),
    "router": (_L + "mlp.gate", "router"),
    "mlp_activation": None,
    "mlp_neuron_output": None,
}
_OLMO2 = _SANDWICH | {"block_mid": (_L + "mlp", "in"), "attention_input_norm": None, "mlp_input_norm": None}
_PHI = _LLAMA | {
    "attention_premix": (_L + "self_attn.dense", "in"),
    "attention_output": (_L + "self_attn.dense", "out"),
    "block_mid": None,
    "mlp_input_norm": None,
    "mlp_activation": (_L + "mlp.activation_fn", "out"),
    "mlp_neuron_output": (_L + "mlp.fc2", "in"),
    "mlp_output": (_L + "mlp.fc2", "out"),
    "ln_final": ("model.final_layernorm", "out"),
}


def _decoder(stem, embeddings, blocks, norms, attention, mlp, final):
    """Returns the places of a family that is built as GPT-2 is; `norms` are those before attention and MLP, the projections come in pairs."""
    block = f"{stem}.{blocks}.{{}}"
    return {
        "input_ids": (f"{stem}.{embeddings}", "in"),
        "embeddings": (f"{stem}.{embeddings}", "out"),
        "block_input": (block, "in"),
        "attention_input_norm": (f"{block}.{norms[0]}", "out"),
        "attention_premix": (f"{block}.{attention}", "in"),
        "attention_output": (f"{block}.{attention}", "out"),
        "block_mid": None if norms[1] is None else (f"{block}.{norms[1]}", "in"),
        "mlp_input_norm": None if norms[1] is None else (f"{block}.{norms[1]}", "out"),
        "mlp_input": (f"{block}.{mlp[0]}", "in"),
        "mlp_activation": (f"{block}.{mlp[1]}", "out"),
        "mlp_neuron_output": (f"{block}.{mlp[2]}", "in"),
        "mlp_output": (f"{block}.{mlp[2]}", "out"),
        "block_output": (block, "out"),
        "ln_final": (f"{stem}.{final}", "out"),
        "lm_head": ("lm_head", "out"),
        "logits": ("", "logits"),
    }


_WIDE = ("mlp", "mlp.act", "mlp.dense_4h_to_h")
_NEOX = _decoder(
    "gpt_neox", "embed_in", "layers", ("input_layernorm", "post_attention_layernorm"), "attention.dense", _WIDE, "final_layer_norm"
)
_TWO = ("input_layernorm", "post_attention_layernorm")
_SERIAL = _decoder("transformer", "word_embeddings", "h", _TWO, "self_attention.dense", _WIDE, "ln_f")
_PARALLEL = _decoder("transformer", "word_embeddings", "h", ("input_layernorm", None), "self_attention.dense", _WIDE, "ln_f")
_GPT2 = _decoder("transformer", "wte", "h", ("ln_1", "ln_2"), "attn.c_proj", ("mlp", "mlp.act", "mlp.c_proj"), "ln_f")
_FC = ("fc1", "activation_fn", "fc2")
_OPT = _decoder(
    "model.decoder", "embed_tokens", "layers", ("self_attn_layer_norm", "final_layer_norm"), "self_attn.out_proj", _FC, "final_layer_norm"
)
PLACES = {
    "bloom": _SERIAL | {"mlp_activation": ("transformer.h.{}.mlp.gelu_impl", "out")},
    "falcon": _PARALLEL,
    "falcon-serial": _SERIAL,
    "falcon-two-norms": _PARALLEL | {"attention_input_norm": ("transformer.h.{}.ln_attn", "out")},
    "gemma2": _SANDWICH,
    "gemma3_text": _SANDWICH,
    "gpt2": _GPT2,
    "gpt_neox": _NEOX | {"block_mid": None},
    "gpt_neox-serial": _NEOX,
    "gptj": _decoder("transformer", "wte", "h", ("ln_1", None), "attn.out_proj", ("mlp", "mlp.act", "mlp.fc_out"), "ln_f"),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": _MOE,
    "olmo2": _OLMO2,
    "opt": _OPT,
    "phi": _PHI,
    "qwen2": _LLAMA,
    "qwen2_moe": _MOE,
    "qwen2_moe-dense": _LLAMA,
    "qwen3": _LLAMA,
    "qwen3_moe": _MOE,
}
"""Where hooks go, by hand: the projections themselves, where the address book has modules around them; None where there is no such place."""
LAYERS = dict.fromkeys(CONFIGS, (0, 1)) | {"qwen2_moe-dense": (0,)}
"""The layers that are looked at: of the model with a dense layer, that one."""

WHOLE = ("input_ids", "embeddings", "ln_final", "lm_head", "logits")
"""Places that belong to no layer."""


def present(name):
    """Returns the components that a variant has."""
    found = [component for component, place in PLACES[name].items() if place is not None and component != "router"]
    return [*found, *(INTERIOR if name in INTERFACED else ()), *(ROUTER if "router" in PLACES[name] else ())]


def flat(tensor):
    """Returns one row's tensor as (token, feature): of ids (1, token), states (1, token, feature) or (token, feature)."""
    if tensor.dim() == 2:
        return tensor.T if not tensor.is_floating_point() else tensor
    return tensor[0]


def by_head(tensor):
    """Returns (1, head, token, feature) as (token, head · feature)."""
    return tensor[0].transpose(0, 1).flatten(1)


@dataclass
class Plain:
    """One run of one row: what stood everywhere, by (component, layer), and what is to be changed.

    Attributes:
        model: a transformers model, its attention `eager`.
        name: of the variant.
        edits: what becomes of a place: a function of a copy of its (token, feature).
        found: what stood there after that.
    """

    model: torch.nn.Module
    name: str
    edits: dict = field(default_factory=dict)
    found: dict = field(default_factory=dict)

    def touch(self, key, tensor):
        if key in self.edits and key[0] != "block_mid":  # edited at what attention adds, and only read where the next module reads it
            tensor = self.edits[key](tensor.clone())
        self.found[key] = tensor.clone()
        return tensor

    @torch.no_grad()
    def run(self, ids):
        """Runs a row; returns what was found."""
        handles, gates = [], []
        attention = vars(sys.modules[type(self.model).__module__])
        own = attention.get("eager_attention_forward")
        try:
            for component, place in PLACES[self.name].items():
                for layer in (None,) if component in WHOLE else LAYERS[self.name]:
                    if place is None:
                        continue
                    module, side = self.model.get_submodule(place[0].format(layer)), place[1]
                    if side == "router":
                        gates.append(module)
                        module.forward = self.router(module, layer)
                    elif side == "in":
                        handles.append(module.register_forward_pre_hook(self.before((component, layer)), with_kwargs=True))
                    else:
                        handles.append(module.register_forward_hook(self.after((component, layer), side)))
            if self.name in INTERFACED:
                attention["eager_attention_forward"] = self.attention
            self.model(torch.tensor([list(ids)]), use_cache=False)
        finally:
            for handle in handles:
                handle.remove()
            for gate in gates:
                del gate.forward
            if own is not None:
                attention["eager_attention_forward"] = own
        return self.found

    def before(self, key):
        def hook(module, args, kwargs):
            name = None if args else next(iter(kwargs))
            tensor = args[0] if args else kwargs[name]
            new = self.touch(key, flat(tensor)).reshape(tensor.shape)
            return ((new, *args[1:]), kwargs) if args else (args, {**kwargs, name: new})

        return hook

    def after(self, key, side):
        component, layer = key

        def hook(module, args, output):
            tensor = output.logits if side == "logits" else output[0] if isinstance(output, tuple) else output
            new = self.touch(key, flat(tensor))
            if component == "attention_output" and ("block_mid", layer) in self.edits:
                stream = self.found["block_input", layer]
                new = self.edits["block_mid", layer](new + stream) - stream
            new = new.reshape(tensor.shape)
            if side == "logits":
                output.logits = new
                return output
            return (new, *output[1:]) if isinstance(output, tuple) else new

        return hook

    def router(self, gate, layer):
        def forward(states):
            logits = self.touch(("router_logits", layer), torch.nn.functional.linear(states, gate.weight))
            weights = self.touch(("router_probs", layer), torch.softmax(logits.float(), dim=-1))
            values, indices = torch.topk(weights, gate.top_k, dim=-1)
            if self.name == "mixtral" or gate.norm_topk_prob:
                values = values / values.sum(dim=-1, keepdim=True)
            return logits, values, indices

        return forward

    def attention(self, module, query, key, value, attention_mask, scaling=None, softcap=None, **more):
        """Attention as Vaswani et al. have it, with soft-capped scores where the family caps them."""
        layer = module.layer_idx
        n_tokens, width = query.shape[2], query.shape[3]
        parts = []
        for side, tensor in (("query", query), ("key", key), ("value", value)):
            touched = self.touch((f"attention_{side}", layer), by_head(tensor))
            parts.append(touched.reshape(n_tokens, -1, width).transpose(0, 1)[None])
        query, key, value = parts
        n_heads = query.shape[1]
        key, value = (tensor.repeat_interleave(n_heads // tensor.shape[1], dim=1) for tensor in (key, value))
        scores = query @ key.transpose(2, 3) * (width**-0.5 if scaling is None else scaling)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        scores = scores + attention_mask
        scores = self.touch(("attention_scores", layer), by_head(scores)).reshape(n_tokens, n_heads, n_tokens).transpose(0, 1)[None]
        probs = by_head(torch.softmax(scores, dim=-1))
        probs = self.touch(("attention_probs", layer), probs).reshape(n_tokens, n_heads, n_tokens).transpose(0, 1)[None]
        z = self.touch(("attention_z", layer), by_head(probs @ value))
        return z.reshape(1, n_tokens, n_heads, width), probs
