"""The tokenizer inside a GGUF file, as one of the `tokenizers` library: byte-level BPE, piece for piece.

How text is cut before merging is named in the file, not told (`tokenizer.ggml.pre`); only names whose rule is known to be the same in
both worlds are accepted.

Source: llama.cpp, `src/llama-vocab.cpp` (`llm_tokenizer_bpe`, and the defaults of each name); the rules of the same models'
`tokenizer.json`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from causalab_mini.engine.gguf.file import GgufFile
from causalab_mini.errors import listed, quoted

CONTROL, USER_DEFINED = 3, 4
"""Kinds of token that are matched whole, before anything is cut."""
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
"""Keys of the file (`tokenizer.ggml.…_token_id`) by transformers' names."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How text is cut before pieces are merged.

    Attributes:
        pre_tokenizer: in order; the last one turns bytes into characters.
        takes_whole_words: whether a word that is a piece is taken as it is, whatever the merges would make of it.
        adds_bos: whether a BOS comes first where the file does not say.
    """

    pre_tokenizer: Any
    takes_whole_words: bool = False
    adds_bos: bool = False


CUTS = {
    "gpt-2": Cut(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "smollm": Cut(
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    ),
    "llama-bpe": Cut(
        pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        ),
        takes_whole_words=True,
        adds_bos=True,
    ),
}


def read_tokenizer(file: GgufFile) -> PreTrainedTokenizerFast:
    """Returns the tokenizer, with its special tokens and its chat template.

    Raises:
        ModelError: there is none, or one that was not proved equal.
    """
    kind = file.value("tokenizer.ggml.model", str)
    if kind != "gpt2":
        hint = "for SentencePiece models give a folder or a hub id with tokenizer.json"
        raise file.refused("a tokenizer of the kind `gpt2` (byte-level BPE)", f"one of the kind {quoted(kind)}", hint)
    name = file.value("tokenizer.ggml.pre", str)
    if name not in CUTS:
        raise file.refused(f"text cut as one of {listed(CUTS)} (`tokenizer.ggml.pre`)", quoted(name))
    if file.find("tokenizer.ggml.add_space_prefix", bool):
        raise file.refused("no `tokenizer.ggml.add_space_prefix`", "`true`")
    cut = CUTS[name]
    tokens = file.value("tokenizer.ggml.tokens", list)
    kinds = file.find("tokenizer.ggml.token_type", list) or [1] * len(tokens)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens) or len(kinds) != len(tokens):
        raise file.refused("distinct tokens, each with its type", f"{len(tokens)} tokens, {len(vocabulary)} distinct, {len(kinds)} types")
    if "token_embd.weight" in file.tensors and len(tokens) > file.shape("token_embd.weight")[0]:
        raise file.refused("a row of `token_embd.weight` for each token", f"{len(tokens)} tokens")
    merges = []
    for merge in file.value("tokenizer.ggml.merges", list):
        first, _, second = merge.partition(" ")
        if not {first, second, first + second} <= vocabulary.keys():
            raise file.refused("merges of its own tokens", quoted(merge))
        merges.append((first, second))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=cut.takes_whole_words))
    tokenizer.pre_tokenizer = cut.pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    for token, its_kind in zip(tokens, kinds, strict=True):
        if its_kind == CONTROL:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif its_kind == USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, special=False, normalized=False)])
    special = {name: _special(file, key, tokens) for name, key in SPECIAL.items()}
    begins, ends = (_adds(file, which, default) for which, default in (("bos", cut.adds_bos), ("eos", False)))
    around = [name for name, is_added in (("bos_token", begins), ("eos_token", ends)) if is_added]
    if missing := [name for name in around if special[name] is None]:
        raise file.refused(f"a {quoted(missing[0])}, which it says to add", "none")
    if around:
        pieces = [special["bos_token"] if begins else None, "$A", special["eos_token"] if ends else None]
        ids = [(special[name], vocabulary[special[name]]) for name in around]
        tokenizer.post_processor = processors.TemplateProcessing(single=[piece for piece in pieces if piece], special_tokens=ids)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,
        chat_template=file.find("tokenizer.chat_template", str),
        **{name: token for name, token in special.items() if token is not None},
    )


def _special(file: GgufFile, key: str, tokens: list[str]) -> str | None:
    index = file.find(f"tokenizer.ggml.{key}_token_id", int)
    if index is not None and not 0 <= index < len(tokens):
        raise file.refused(f"`tokenizer.ggml.{key}_token_id` below {len(tokens)}", quoted(index))
    return None if index is None else tokens[index]


def _adds(file: GgufFile, which: str, otherwise: bool) -> bool:
    found = file.find(f"tokenizer.ggml.add_{which}_token", bool)
    return otherwise if found is None else found
