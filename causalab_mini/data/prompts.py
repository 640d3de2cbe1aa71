"""A row's prompt as the model sees it: text, tokens, the characters of each token, and the turns of a conversation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from causalab_mini.data.characters import Span, character_spans, decode
from causalab_mini.errors import CellError, quoted

TURN_KEYS = frozenset({"role", "content"})
MAX_PROMPT = 1_000_000
"""Characters of a prompt, or of all turns of a conversation."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a conversation: who spoke, and the characters of what was said in the row's decoded text."""

    role: str
    span: Span


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row's prompt, without padding.

    `ids[:n_prefix]` are the tokenizer's own leading tokens; `text` is the decoded content after them, and `spans[i]` the
    characters of content token `i` in it.
    """

    ids: tuple[int, ...]
    n_prefix: int
    text: str
    spans: tuple[Span, ...]
    turns: tuple[Turn, ...] = ()

    @property
    def n_tokens(self) -> int:
        """Returns how many tokens the model is given."""
        return len(self.ids)

    @property
    def n_content(self) -> int:
        """Returns how many tokens stand for the row's own text."""
        return len(self.ids) - self.n_prefix

    def text_of(self, tokens: Sequence[int]) -> str:
        """Returns the slice of the decoded text that content tokens cover, from the first to the last.

        Args:
            tokens: content indices, ascending. Prefix tokens (negative) have no text.
        """
        spans = [self.spans[token] for token in tokens if token >= 0]
        return self.text[min(start for start, _ in spans) : max(end for _, end in spans)] if spans else ""


class PromptError(CellError):
    """A row's value can't become a prompt."""


def make_prompt(tokenizer: Any, value: object) -> Prompt:
    """Returns the prompt of a field's value: a string, or a conversation rendered with the checkpoint's chat template.

    Raises:
        PromptError: the value is neither, it has no tokens, or the template does not show where a turn stands.
    """
    if isinstance(value, str):
        _refuse_long(value)
        return _with_characters(tokenizer, tuple(tokenizer(value, add_special_tokens=True)["input_ids"]))
    turns = _conversation(value)
    _refuse_long("".join(turn["content"] for turn in turns))
    if getattr(tokenizer, "chat_template", None) is None:
        raise PromptError("a string (this tokenizer has no chat template)", "a conversation")
    rendered = _render(tokenizer, turns)
    prompt = _with_characters(tokenizer, tuple(tokenizer(rendered, add_special_tokens=False)["input_ids"]))
    spans = _turn_spans(tokenizer, turns, decode(tokenizer, prompt.ids[: prompt.n_prefix]), prompt.text)
    found = tuple(Turn(turn["role"], span) for turn, span in zip(turns, spans, strict=True))
    return Prompt(prompt.ids, prompt.n_prefix, prompt.text, prompt.spans, found)


def _refuse_long(text: str) -> None:
    if len(text) > MAX_PROMPT:
        raise PromptError(f"at most {MAX_PROMPT:,} characters", f"{len(text):,}")


def prompt_of_ids(tokenizer: Any, ids: Sequence[int]) -> Prompt:
    """Returns the prompt of tokens that are given as they are; nothing is put in front.

    Raises:
        PromptError: there are none.
    """
    return _with_characters(tokenizer, tuple(ids))


def count_prefix(tokenizer: Any, ids: Sequence[int]) -> int:
    """Returns how many leading tokens of a row are the tokenizer's own: those it makes of the empty string."""
    own = tokenizer("", add_special_tokens=True)["input_ids"]
    return next((n for n, (a, b) in enumerate(zip(own, ids, strict=False)) if a != b), min(len(own), len(ids)))


def _with_characters(tokenizer: Any, ids: tuple[int, ...]) -> Prompt:
    n_prefix = count_prefix(tokenizer, ids)
    if not ids:
        raise PromptError("a text of at least one token", "no token")
    text, spans = character_spans(tokenizer, ids[n_prefix:])
    return Prompt(ids, n_prefix, text, spans)


def _conversation(value: object) -> list[dict[str, str]]:
    expected = "a string, or a list of `{role, content}` strings"
    if not isinstance(value, list | tuple) or not value:
        raise PromptError(expected, quoted(value))
    if all(isinstance(turn, str) for turn in value):
        raise PromptError(f"{expected} (one of several texts is the field with its index, such as `…[0]`)", "a list of texts")
    for turn in value:
        if not isinstance(turn, Mapping) or set(turn) != TURN_KEYS or not all(isinstance(turn[key], str) for key in TURN_KEYS):
            raise PromptError(expected, f"the turn {quoted(turn)}")
    return [{"role": turn["role"], "content": turn["content"]} for turn in value]


def _render(tokenizer: Any, turns: Sequence[Mapping[str, str]]) -> str:
    try:
        rendered: str = tokenizer.apply_chat_template(list(turns), tokenize=False, add_generation_prompt=True)
    except Exception as problem:  # templates raise what they like: jinja errors, and `raise_exception` of their own
        raise PromptError("a conversation that the chat template accepts", f"{quoted(problem)}") from None
    return rendered


def _turn_spans(tokenizer: Any, turns: Sequence[Mapping[str, str]], prefix: str, text: str) -> list[Span]:
    """Returns where each turn's content stands in the decoded text.

    The template is rendered once more with marks in place of the contents: what stands between the marks is the template's own,
    and the decoded text must be that, with the contents between. White space may differ, as templates and tokenizers trim it.
    """
    marks = [f"\u2045{n}\u2046" for n in range(len(turns))]
    skeleton = _render(tokenizer, [{"role": turn["role"], "content": mark} for turn, mark in zip(turns, marks, strict=True)])
    pattern, rest = "", skeleton.removeprefix(prefix)
    for turn, mark in zip(turns, marks, strict=True):
        before, found, rest = rest.partition(mark)
        if not found:
            raise PromptError("a chat template that shows every turn", f"one that leaves out a turn of {quoted(turn['role'])}")
        pattern += f"{_loosely(before)}({_loosely(turn['content'].strip())})"
    match = re.fullmatch(r"\s*+" + pattern + _loosely(rest) + r"\s*+", text)
    if match is None:
        raise PromptError("a chat template that shows each turn's content as it is", quoted(text))
    return [match.span(n + 1) for n in range(len(turns))]


def _loosely(text: str) -> str:
    """Returns a pattern for a text in which any white space, or none, may stand where it has some.

    White space is never given back (`*+`): nothing that follows it begins with any, and so no text takes long.
    """
    return r"\s*+".join(re.escape(part) for part in re.split(r"\s+", text))
