"""Which tokens of one row a position means, or the reason why it means none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from causalab_mini.data.characters import Span
from causalab_mini.data.prompts import Prompt
from causalab_mini.plan.position import Anchor, Position, Selected

Reason = Literal["", "alignment_missing", "alignment_ambiguous", "out_of_range", "filtered", "column_missing"]


@dataclass(frozen=True, slots=True)
class Window:
    """The tokens of one row that a position means.

    Attributes:
        tokens: ascending content indices; the tokenizer's own leading tokens count backwards from -1.
        reason: why there are none; empty where there are.
    """

    tokens: tuple[int, ...]
    reason: Reason = ""


class _MissError(Exception):
    """A position that means nothing on this row."""

    def __init__(self, reason: Reason) -> None:
        self.reason: Reason = reason


def locate(pos: Position, anchor: str | None, prompt: Prompt) -> Window:
    """Returns the window of a position in a row.

    Args:
        pos: the position, in the prompt frame.
        anchor: the row's text of the position's anchor, None where it has none.
        prompt: the row.
    """
    if isinstance(pos, Selected):
        return _selected(pos, prompt)
    try:
        run = _run(pos.scope, anchor, prompt)
        cut = _cut(pos, run)
        tokens = tuple(token + (pos.offset or 0) for token in cut)
        if pos.offset and not all(0 <= token < prompt.n_content for token in tokens):
            raise _MissError("out_of_range")
    except _MissError as miss:
        return Window((), miss.reason)
    return Window(tokens)


def _selected(pos: Selected, prompt: Prompt) -> Window:
    """Returns the tokens that a selector names, which counts the tokenizer's own too; of a run, those that there are."""
    found, n = pos.tokens, prompt.n_tokens
    if found.is_continuous:
        tokens = range(found.index, n if found.stop is None else min(found.stop, n))
    else:
        base = found.index if found.index >= 0 else n + found.index
        token = base + found.offset
        tokens = range(token, token + 1) if 0 <= base < n and 0 <= token < n else range(0)
    return Window(tuple(token - prompt.n_prefix for token in tokens), "" if tokens else "out_of_range")


def _run(scope: Anchor | None, anchor: str | None, prompt: Prompt) -> range:
    """Returns the run of tokens that is cut, as content indices."""
    if scope is None:
        return range(prompt.n_content)
    if scope.segment == "prefix":
        if prompt.n_prefix == 0 or _has_text(scope):
            raise _MissError("alignment_missing")
        return range(-prompt.n_prefix, 0)
    within = (0, len(prompt.text)) if scope.segment is None else _segment(scope.segment, prompt)
    span = within if not _has_text(scope) else _find(prompt.text, anchor, within, scope.occurrence)
    tokens = [token for token, (start, end) in enumerate(prompt.spans) if start < span[1] and end > span[0]]
    if not tokens or span[0] == span[1]:
        raise _MissError("alignment_missing")
    return range(tokens[0], tokens[-1] + 1)


def _has_text(scope: Anchor) -> bool:
    return scope.variable is not None or scope.text is not None or scope.column is not None


def _segment(segment: str, prompt: Prompt) -> Span:
    match = re.fullmatch(r"([^\[]+)(?:\[(\d+)\])?", segment)
    assert match is not None
    turns = [turn for turn in prompt.turns if turn.role == match[1]]
    if match[2] is None:
        if len(turns) > 1:
            raise _MissError("alignment_ambiguous")
        index = 0
    else:
        index = int(match[2])
    if index >= len(turns):
        raise _MissError("alignment_missing")
    return turns[index].span


def _find(text: str, anchor: str | None, within: Span, occurrence: str | int) -> Span:
    """Returns where a text stands: as given, else with a space before it, else stripped; overlapping finds count."""
    if not anchor:
        raise _MissError("alignment_missing")
    for spelling in (anchor, f" {anchor}", anchor.strip()):
        starts = _starts(text, spelling, within) if spelling else []
        if starts:
            break
    else:
        raise _MissError("alignment_missing")
    if occurrence == "only":
        if len(starts) > 1:
            raise _MissError("alignment_ambiguous")
        start = starts[0]
    else:
        index = {"first": 0, "last": -1}.get(occurrence, 0) if isinstance(occurrence, str) else occurrence
        if not -len(starts) <= index < len(starts):
            raise _MissError("alignment_missing")
        start = starts[index]
    return start, start + len(spelling)


def _starts(text: str, part: str, within: Span) -> list[int]:
    starts, start = [], text.find(part, within[0], within[1])
    while start >= 0:
        starts.append(start)
        start = text.find(part, start + 1, within[1])
    return starts


def _cut(pos: Position, run: range) -> range:
    """Returns the tokens of a run that a cut takes, thinned by its stride."""
    n = len(run)
    if pos.index is not None:
        if not -n <= pos.index < n:
            raise _MissError("out_of_range")
        return run[pos.index % n : pos.index % n + 1]
    if pos.last is not None:
        if pos.last > n:
            raise _MissError("out_of_range")
        cut = run[n - pos.last :]
    elif pos.span is not None:
        start, stop = (bound + n if bound < 0 else bound for bound in pos.span)
        if not 0 <= start < stop <= n:
            raise _MissError("out_of_range")
        cut = run[start:stop]
    else:
        cut = run
    if not cut:
        raise _MissError("out_of_range")
    return cut[:: pos.stride or 1]
