"""Which characters of a row's decoded text each of its tokens stands for.

The map is made from the ids, by decoding growing prefixes: encoding a text alone may give other tokens than it has inside a
prompt, and a tokenizer's own offsets speak of the text that went in, not of the text that comes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"

Span = tuple[int, int]
"""A half-open range of characters."""


class Decoder(Protocol):
    """The part of a tokenizer that is needed here."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        """Returns the text of some tokens."""
        ...


def decode(tokenizer: Decoder, ids: Sequence[int]) -> str:
    """Returns the text of tokens as they are, special ones included and no spaces tidied."""
    return tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)


def character_spans(tokenizer: Decoder, ids: Sequence[int]) -> tuple[str, tuple[Span, ...]]:
    """Returns the decoded text and, for every token, the characters that it stands for.

    Starts never run backwards. Tokens that share a character (the bytes of one) each have it whole. A token that decodes to
    nothing has an empty span.
    """
    text = decode(tokenizer, ids)
    return text, _from_steps(tokenizer, ids, text) or _from_prefixes(tokenizer, ids, text)


def _from_steps(tokenizer: Decoder, ids: Sequence[int], text: str) -> tuple[Span, ...] | None:
    """The map from decoding a few tokens at a time, or None where those do not add up to the text.

    Each step decodes from the last token border at which the text was whole, so that a long row costs no more than its length.
    """
    spans: list[Span] = []
    border, base, start = 0, 0, 0
    context = ""
    for n in range(1, len(ids) + 1):
        grown = decode(tokenizer, ids[border:n])
        if not grown.startswith(context):
            return None
        new = grown[len(context) :]
        whole = new.rstrip(REPLACEMENT)
        if text[base : base + len(whole)] != whole:
            return None
        if whole != new:
            if len(new) - len(whole) > 4:
                return None
            spans.append((start, base + len(whole) + 1))
            start = base + len(whole)
            continue
        base += len(whole)
        spans.append((start, base))
        start = base
        border = n - 1
        context = decode(tokenizer, ids[border:n])
    return tuple(spans) if base == len(text) else None


def _from_prefixes(tokenizer: Decoder, ids: Sequence[int], text: str) -> tuple[Span, ...]:
    """The map from decoding every prefix: what each token adds to what the whole text begins with."""
    spans: list[Span] = []
    start = 0
    for n in range(1, len(ids) + 1):
        prefix = decode(tokenizer, ids[:n])
        stable = _common_prefix(prefix.rstrip(REPLACEMENT), text)
        end = max(stable, start)
        unfinished = len(prefix) > stable and end < len(text)
        spans.append((start, end + 1 if unfinished else end))
        start = end
    if spans:
        spans[-1] = (spans[-1][0], len(text))
    return tuple(spans)


def _common_prefix(left: str, right: str) -> int:
    if right.startswith(left):
        return len(left)
    return next(n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b) if right else 0


def text_behind(tokenizer: Decoder, before: Sequence[int], ids: Sequence[int]) -> str:
    """Returns the text of tokens as it stands behind others: what comes first may be spelled otherwise alone."""
    first, whole = decode(tokenizer, before), decode(tokenizer, (*before, *ids))
    return whole[len(first) :] if whole.startswith(first) else decode(tokenizer, ids)
