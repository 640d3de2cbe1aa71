"""The text of a generation, piece by piece: each as soon as no later token can change it, and together exactly the whole."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from causalab_mini.data.characters import REPLACEMENT, decode
from causalab_mini.data.prompts import Prompt

_BYTE = re.compile("<0x[0-9A-F]{2}>")


def cut(text: str, stops: Sequence[str]) -> str:
    """Returns what stands before the first of some texts."""
    found = [at for at in map(text.find, stops) if at >= 0]
    return text[: min(found)] if found else text


def n_certain(text: str, stops: Sequence[str]) -> int:
    """Returns how many characters can be shown of a text that goes on.

    Those that are not whole yet are kept back, and so is what may be the beginning of a stop text.
    """
    if (n := len(cut(text, stops))) < len(text):
        return n
    n = len(text.rstrip(REPLACEMENT))
    longest = max(map(len, stops), default=0)
    return next((at for at in range(max(0, n - longest + 1), n) if any(stop.startswith(text[at:n]) for stop in stops)), n)


class Pieces:
    """Decodes a generation as it grows, a few tokens at a time.

    Tokens that are single bytes (`<0xE6>`) are text once their run is over: one that makes no characters changes all of it. A prompt that ends inside a character has what is behind it decoded all at once, at the end.

    Args:
        tokenizer: of the checkpoint.
        prompt: that the generation goes on from.
        stops: texts that end it, and are cut off.
    """

    def __init__(self, tokenizer: Any, prompt: Prompt, stops: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stops = tuple(stops)
        self._context = prompt.ids[-1:]
        self._base = decode(tokenizer, self._context)
        self._is_lost = decode(tokenizer, prompt.ids[-4:]).endswith(REPLACEMENT)
        self._text = ""
        self._n_read = 0
        self._n_sent = 0

    def take(self, ids: Sequence[int]) -> str:
        """Returns what has become certain, given all ids so far, without the token that ends the generation."""
        new = tuple(ids[self._n_read :])
        while new and self._is_byte(new[-1]):
            new = new[:-1]
        if self._is_lost or not new:
            return ""
        grown = decode(self._tokenizer, (*self._context, *new))
        if not grown.startswith(self._base):
            self._is_lost = True
            return ""
        added = grown[len(self._base) :]
        text = self._text + added
        if not added.endswith(REPLACEMENT):
            self._text, self._n_read = text, self._n_read + len(new)
            self._context = new[-1:]
            self._base = decode(self._tokenizer, self._context)
        n = max(self._n_sent, n_certain(text, self._stops))
        piece, self._n_sent = text[self._n_sent : n], n
        return piece

    def _is_byte(self, token: int) -> bool:
        return _BYTE.fullmatch(self._tokenizer.convert_ids_to_tokens(token) or "") is not None

    def rest(self, text: str) -> str:
        """Returns what was not shown yet of the whole text, once it is known, stop texts cut off."""
        piece, self._n_sent = text[self._n_sent :], max(len(text), self._n_sent)
        return piece
