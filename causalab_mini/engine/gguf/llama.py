"""The architecture `llama` of GGUF files as transformers' Llama: its config, and its weights under their names there.

Only what is known to be the same arithmetic is accepted: a key or a tensor that this module does not know is refused by name.

Source: llama.cpp, `convert_hf_to_gguf.py` (`LlamaModel`), whose steps are undone here: tensor names, and the rows of query and key
weights, which llama.cpp stores so that the two coordinates of a rotation lie side by side where transformers keeps them half a head apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from causalab_mini.engine.gguf.file import GgufFile
from causalab_mini.errors import quoted

SHARD_BYTES = 2 << 30

ARCHITECTURE = "llama"
KNOWN_KEYS = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.dimension_count",
    "rope.freq_base",
}
NEUTRAL = {"expert_count": 0, "expert_used_count": 0, "rope.scaling.type": "none", "tensor_data_layout": "Meta AI original pth"}
"""Keys that may be there with this one value, which changes nothing."""
ROPE_FREQS = "rope_freqs.weight"
OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
INSIDE = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def read_config(file: GgufFile) -> LlamaConfig:
    """Returns the config of a file.

    Raises:
        ModelError: another architecture, or something in it that a Llama does not have.
    """
    architecture = file.value("general.architecture", str)
    if architecture != ARCHITECTURE:
        hint = "for other families give a folder or a hub id with safetensors"
        raise file.refused(f"the architecture {quoted(ARCHITECTURE)}", f"the architecture {quoted(architecture)}", hint)
    for key in file.keys():  # noqa: SIM118 - a file is no mapping
        name = key.removeprefix(f"{ARCHITECTURE}.")
        if name != key and name not in KNOWN_KEYS and not (name in NEUTRAL and file.find(key, object) == NEUTRAL[name]):
            raise file.refused("nothing but what a plain Llama has", f"{quoted(key)} = {quoted(file.find(key, object))}")

    def number(name: str) -> int:
        return file.value(f"{ARCHITECTURE}.{name}", int)

    def number_or(name: str, otherwise: int) -> int:
        found = file.find(f"{ARCHITECTURE}.{name}", int)
        return otherwise if found is None else found

    n_heads, width = number("attention.head_count"), number("embedding_length")
    head_dim = number_or("attention.key_length", width // max(n_heads, 1))
    for name in ("attention.value_length", "rope.dimension_count"):
        if number_or(name, head_dim) != head_dim:
            raise file.refused(f"`{ARCHITECTURE}.{name}` = {head_dim} (the width of a head)", f"{number(name)}")
    if "token_embd.weight" not in file.tensors:
        raise file.refused("the tensor `token_embd.weight`", "none")
    n_layers = number("block_count")
    if n_layers > len(file.tensors):
        raise file.refused("tensors for every block", f"{n_layers} blocks, {len(file.tensors)} tensors")
    base = file.find(f"{ARCHITECTURE}.rope.freq_base", float) or 10000.0
    settings: dict[str, Any] = dict(
        architectures=["LlamaForCausalLM"],
        vocab_size=file.shape("token_embd.weight")[0],
        hidden_size=width,
        intermediate_size=number("feed_forward_length"),
        num_hidden_layers=n_layers,
        num_attention_heads=n_heads,
        num_key_value_heads=number_or("attention.head_count_kv", n_heads),
        head_dim=head_dim,
        hidden_act="silu",
        max_position_embeddings=number("context_length"),
        rms_norm_eps=file.value(f"{ARCHITECTURE}.attention.layer_norm_rms_epsilon", float),
        rope_parameters={"rope_type": "default", "rope_theta": base},
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        tie_word_embeddings="output.weight" not in file.tensors,
        dtype=str(file.dtype("token_embd.weight")).removeprefix("torch."),
        **{
            f"{kind}_token_id": file.find(f"tokenizer.ggml.{name}_token_id", int)
            for kind, name in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
        },
    )
    with _possible_sizes(file):
        config = LlamaConfig(**settings)
    if ROPE_FREQS in file.tensors:
        config.rope_parameters = _llama3_rope(file, config, base)
    _refuse_what_does_not_fit(file, config)
    return config


def write_weights(file: GgufFile, config: LlamaConfig, folder: Path) -> None:
    """Writes the weights as safetensors, in shards of two GiB where they are larger, one shard in memory at a time.

    Raises:
        ModelError: a tensor can't be read.
    """
    shards: list[list[str]] = [[]]
    total = size = 0
    for name in file.tensors:
        if name == ROPE_FREQS:
            continue
        n_bytes = file.tensors[name].n_elements * file.dtype(name).itemsize
        if shards[-1] and size + n_bytes > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size, total = size + n_bytes, total + n_bytes
    where: dict[str, str] = {}
    for index, names in enumerate(shards, start=1):
        title = "model.safetensors" if len(shards) == 1 else f"model-{index:05d}-of-{len(shards):05d}.safetensors"
        weights = {weight_name(name) or name: read_weight(file, config, name) for name in names}
        save_file(weights, folder / title, {"format": "pt"})
        where |= dict.fromkeys(weights, title)
    if len(shards) > 1:
        index_of_all = {"metadata": {"total_size": int(total)}, "weight_map": where}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index_of_all, indent=1) + "\n", encoding="utf-8")


def read_weight(file: GgufFile, config: LlamaConfig, name: str) -> Tensor:
    """Returns a tensor as transformers has it, (row, column) or (row,)."""
    tensor = file.tensor(name)
    if ".attn_q." in name:
        return unpermuted(tensor, config.num_attention_heads)
    if ".attn_k." in name:
        return unpermuted(tensor, config.num_key_value_heads)
    return tensor


def unpermuted(tensor: Tensor, n_heads: int) -> Tensor:
    """Returns query or key weights with each head's rows as transformers has them: first coordinates of all rotations, then second ones.

    Source: the inverse of `LlamaModel.permute` in llama.cpp's `convert_hf_to_gguf.py`.
    """
    per_head = tensor.reshape(n_heads, tensor.shape[0] // n_heads // 2, 2, *tensor.shape[1:])
    return per_head.transpose(1, 2).reshape(tensor.shape).contiguous()


def weight_name(name: str) -> str | None:
    """Returns the name that a tensor of a GGUF file has in transformers, or None where it has none."""
    stem, _, kind = name.rpartition(".")
    if stem in OUTSIDE:
        return f"{OUTSIDE[stem]}.{kind}"
    parts = stem.split(".")
    if len(parts) == 3 and parts[0] == "blk" and parts[1].isdigit() and parts[2] in INSIDE:
        return f"model.layers.{int(parts[1])}.{INSIDE[parts[2]]}.{kind}"
    return None


def _refuse_what_does_not_fit(file: GgufFile, config: LlamaConfig) -> None:
    """Refuses a tensor that the model of this config lacks, has in another shape, or has and the file has not."""
    with _possible_sizes(file), torch.device("meta"):
        shapes = {name: tuple(value.shape) for name, value in LlamaForCausalLM(config).state_dict().items()}
    if config.tie_word_embeddings:
        shapes.pop("lm_head.weight", None)
    for name in file.tensors:
        if name == ROPE_FREQS:
            continue
        target = weight_name(name)
        if target not in shapes:
            raise file.refused("nothing but the tensors of a plain Llama", f"the tensor {quoted(name)}")
        if shapes.pop(target) != file.shape(name):
            raise file.refused("tensors of the sizes that its metadata says", f"{quoted(name)} of shape {file.shape(name)}")
    if shapes:
        raise file.refused("every tensor of a plain Llama", f"no {quoted(next(iter(shapes)))} (as transformers names it)")


@contextmanager
def _possible_sizes(file: GgufFile) -> Iterator[None]:
    """What transformers raises for sizes that no Llama can have."""
    try:
        yield
    except (StrictDataclassError, ValueError, TypeError, OverflowError, ZeroDivisionError, AssertionError, RuntimeError) as error:
        raise file.refused("the sizes of a Llama", str(error).strip().split("\n")[-1].strip()) from None


def _llama3_rope(file: GgufFile, config: LlamaConfig, base: float) -> dict[str, Any]:
    """Returns the rotation of Llama 3.1 and later, where the file's factors are exactly those that transformers makes of it.

    A file holds what each frequency is divided by; the recipe is not in it. The recipe all released Llamas share is tried, with the
    largest factor as its own, and taken only where it gives the same factors.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    factors = file.tensor(ROPE_FREQS).float()
    recipe = {
        "rope_type": "llama3",
        "rope_theta": base,
        "factor": float(factors.max()),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config.rope_parameters = recipe
    made, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 1.0 / (base ** (torch.arange(0, config.head_dim, 2).float() / config.head_dim))
    if factors.shape != made.shape or not torch.allclose(plain / made, factors, rtol=1e-5):
        raise file.refused("the rotation of Llama 3.1, or a plain one", f"other factors in {quoted(ROPE_FREQS)}")
    return recipe
