"""Small GGUF files, written with the `gguf` package as llama.cpp's converter writes them; and byte-level BPE as plainly as it goes."""

import json
from itertools import pairwise

import gguf
import numpy as np
import regex
import torch

NORMAL, CONTROL = 1, 3
STEMS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def gguf_name(name):
    stem, _, kind = name.rpartition(".")
    outside = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    if stem in outside:
        return f"{outside[stem]}.{kind}"
    _, _, layer, inner = stem.split(".", 3)
    return f"blk.{layer}.{STEMS[inner]}.{kind}"


def permuted(weight, n_heads):
    """Source: `LlamaModel.permute` of llama.cpp's `convert_hf_to_gguf.py`."""
    return weight.reshape(n_heads, 2, weight.shape[0] // n_heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def encoded(weight, kind):
    """Returns a weight's array and its type as the writer wants them; only matrices are quantised."""
    if weight.ndim == 1 and kind != "F64":
        kind = "F32"
    if kind == "F32":
        return weight.numpy(), None
    if kind == "F16":
        return weight.to(torch.float16).numpy(), None
    if kind == "BF16":
        return weight.to(torch.bfloat16).view(torch.uint8).numpy(), gguf.GGMLQuantizationType.BF16
    if kind == "F64":
        return weight.double().numpy(), None
    quantisation = gguf.GGMLQuantizationType[kind]
    return gguf.quants.quantize(weight.numpy(), quantisation), quantisation


def as_stored(weight, kind):
    """Returns what a weight is after it was written as a type and read back, in fp32 where that is a quantised one."""
    if weight.ndim == 1 or kind == "F32":
        return weight
    if kind in ("F16", "BF16"):
        return weight.to({"F16": torch.float16, "BF16": torch.bfloat16}[kind])
    quantisation = gguf.GGMLQuantizationType[kind]
    return torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(weight.numpy(), quantisation), quantisation))


def weights_of(model):
    """Returns a model's own weights by name: a tied head is no second one."""
    tied = model.config.tie_word_embeddings
    return {name: value for name, value in model.state_dict().items() if not (tied and name == "lm_head.weight")}


def write_gguf(path, model, tokenizer, kind="F32", *, architecture="llama", metadata=(), tensors=(), without=()):
    """Writes a Llama of transformers as a GGUF file.

    Args:
        kind: the type of its matrices.
        metadata: pairs of key and value that are added or put in the place of what would be written; None leaves one out.
        tensors: pairs of name and array that are added or put in the place of what would be written.
        without: names of tensors, as GGUF has them, that are left out.
    """
    config, plain = model.config, tokenizer.backend_tokenizer
    ids = plain.get_vocab(with_added_tokens=True)
    added = {token.content for token in plain.get_added_tokens_decoder().values() if token.special}
    tokens = sorted(ids, key=ids.get)
    values = {
        "llama.block_count": config.num_hidden_layers,
        "llama.context_length": config.max_position_embeddings,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.key_length": config.head_dim,
        "llama.attention.value_length": config.head_dim,
        "llama.rope.dimension_count": config.head_dim,
        "llama.rope.freq_base": float(config.rope_parameters["rope_theta"]),
        "llama.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "llama.vocab_size": config.vocab_size,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL if token in added else NORMAL for token in tokens],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in merges_of(plain)],
        "tokenizer.ggml.eos_token_id": ids[tokenizer.eos_token],
        **dict(metadata),
    }
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in values.items():
        if value is None:
            continue
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
        add[type(value)](key, value)
    arrays = {}
    for name, weight in weights_of(model).items():
        if ".q_proj." in name:
            weight = permuted(weight, config.num_attention_heads)
        if ".k_proj." in name:
            weight = permuted(weight, config.num_key_value_heads)
        arrays[gguf_name(name)] = encoded(weight.contiguous(), kind)
    arrays |= {name: (np.asarray(array), None) for name, array in dict(tensors).items()}
    for name, (array, quantisation) in arrays.items():
        if name not in without:
            writer.add_tensor(name, array, raw_dtype=quantisation)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def merges_of(plain):
    """Returns the merges of a `tokenizers` BPE, in order."""
    return [tuple(merge) for merge in json.loads(plain.to_str())["model"]["merges"]]


# what the tokenizers of GGUF files are compared with: llama.cpp's own regular expressions (`src/llama-vocab.cpp`), one merge at a time

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
EXPRESSIONS = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ],
}


def byte_characters():
    """Returns the character that stands for each byte. Source: `bytes_to_unicode` of GPT-2's `encoder.py`."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + index) for index, byte in enumerate(others)}


def cut(text, expressions):
    """Returns words: what an expression matches and what lies between, one expression after the other."""
    words = [text]
    for expression in expressions:
        found = []
        for word in words:
            end = 0
            for match in regex.finditer(expression, word):
                found += [word[end : match.start()], match.group()]
                end = match.end()
            found.append(word[end:])
        words = [word for word in found if word]
    return words


def plain_bpe(text, ids, merges, pre, special=()):
    """Returns a text's ids: the lowest-ranked pair of neighbours is merged, leftmost first, until there is none."""
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    characters = byte_characters()
    pieces = [text]
    if special:
        pieces = regex.split("(" + "|".join(regex.escape(token) for token in sorted(special, key=len, reverse=True)) + ")", text)
    found = []
    for piece in pieces:
        if piece in special:
            found.append(ids[piece])
            continue
        for word in cut(piece, EXPRESSIONS[pre]):
            symbols = [characters[byte] for byte in word.encode()]
            if pre == "llama-bpe" and "".join(symbols) in ids:
                found.append(ids["".join(symbols)])
                continue
            while len(symbols) > 1:
                pairs = list(pairwise(symbols))
                best = min(range(len(pairs)), key=lambda place: ranks.get(pairs[place], len(ranks)))
                if pairs[best] not in ranks:
                    break
                symbols[best : best + 2] = ["".join(pairs[best])]
            found += [ids[symbol] for symbol in symbols]
    return found


def strange_texts(generator, n):
    """Returns random texts out of words, digits, spaces, punctuation, other scripts and contractions."""
    parts = [
        "the",
        "Thursday",
        " tomorrow",
        "I'll",
        "WE'RE",
        "don't",
        " ",
        "  ",
        "\n",
        "\n\n",
        "\t",
        "\r\n",
        "12",
        "3456789",
        "٣",
        "½",
        "Ⅷ",
    ]
    parts += [
        "...",
        "?!",
        "(",
        "—",
        "é",
        "é",
        "日本",
        "🙂",
        "👩‍🚀",
        "ß",
        "Ω",
        "\u00a0",
        "\u200b",
        "_",
        "a_b",
        "C++",
        "'",
        "'s",
        "<|",
        "|>",
        "ＡＢ",
        "हिन्दी",
    ]
    return ["".join(generator.choice(parts) for _ in range(generator.randrange(1, 14))) for _ in range(n)]
