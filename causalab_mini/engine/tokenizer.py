"""A checkpoint's tokenizer as its `tokenizer.json` has it.

`AutoTokenizer` builds the tokenizers of some families from the vocabulary alone and drops what else the file says (how text is cut, what
is put before it). The `tokenizers` library reads the file as it is, so the two are compared on a few texts.
"""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import cached_file

from causalab_mini.errors import quoted

PROBES = (
    "If today is Thursday, tomorrow is",
    " A leading space,  two  spaces and a trailing one ",
    "We'll see: it's 1234567 or 3.14 (isn't it?)",
    "Größe, naïve — 東京 🙂\n\n\tA tab. user@example.org",
)


def read_tokenizer(location: str, options: dict[str, Any]) -> tuple[Any, tuple[str, ...]]:
    """Returns a tokenizer that pads on the left, and what the user should know of it.

    Args:
        location: a folder or a hub id.
        options: of `from_pretrained`.

    Raises:
        OSError, ValueError, KeyError: there is none, or transformers can't read it.
    """
    tokenizer = AutoTokenizer.from_pretrained(location, **options)
    warnings: tuple[str, ...] = ()
    file = cached_file(
        location,
        "tokenizer.json",
        revision=options.get("revision"),
        local_files_only=options.get("local_files_only", False),
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    if file is not None and (wrong := _misread(tokenizer, file)) is not None:
        as_filed = PreTrainedTokenizerFast.from_pretrained(location, **options)
        warnings = (
            f"transformers reads this checkpoint's tokenizer as {quoted(type(tokenizer).__name__)}, which gives "
            f"{len(tokenizer(wrong)['input_ids'])} tokens for {quoted(wrong)} where its tokenizer.json gives "
            f"{len(as_filed(wrong)['input_ids'])}; tokenizer.json is used",
        )
        tokenizer = as_filed
    tokenizer.padding_side = "left"
    return tokenizer, warnings


def _misread(tokenizer: Any, file: str) -> str | None:
    """Returns a text that a tokenizer cuts otherwise than its file says, or None.

    What `tokenizer_config.json` asks for in so many words (a space before the text, tokens around it) is no misreading.
    """
    asked = tokenizer.init_kwargs
    plain = Tokenizer.from_file(file)
    plain.no_truncation()
    plain.no_padding()
    if asked.get("add_prefix_space") and isinstance(plain.pre_tokenizer, pre_tokenizers.ByteLevel):
        plain.pre_tokenizer.add_prefix_space = True
    around = asked.get("add_bos_token") is None and asked.get("add_eos_token") is None
    for text in PROBES:
        if plain.encode(text, add_special_tokens=around).ids != tokenizer(text, add_special_tokens=around)["input_ids"]:
            return text
    return None


def pad_id(tokenizer: Any) -> int:
    """Returns a token id to pad with; padded tokens are masked, so any will do that the model knows."""
    candidates = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return next(token for token in candidates if token is not None)
