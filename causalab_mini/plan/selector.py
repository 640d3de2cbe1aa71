"""Position selectors: which tokens of a prompt and its generation, as one immutable value with a spelling.

Tokens are counted as the model sees them, from 0; a generated token is itself, not the forward that made it. Nothing here knows
how long a prompt is until it is told.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from causalab_mini.errors import Issue, SpecValidationError, did_you_mean, quoted
from causalab_mini.plan.strict import shown

MAX_DIGITS = 9
FORMS = (
    "a position: a token (`5`, `prompt[i]`, `prompt[-i]`, `generated[i]`, `generated[-i]`), one of these but `5` shifted "
    "(`prompt[-1]+1`, `generated[3]-2`), or a run (`generated[*]`, `generated[a:]`, `generated[a:b]`, and so for `prompt`)"
)

_SEQUENCES = ("prompt", "generated")
_NUMBER = r"(?:0|[1-9][0-9]*)"
_SINGLE = re.compile(rf"(prompt|generated)\[(-[1-9][0-9]*|{_NUMBER})\]([+-]{_NUMBER})?")
_RUN = re.compile(rf"(prompt|generated)\[(?:(\*)|({_NUMBER}):({_NUMBER})?)\]")
_ABSOLUTE = re.compile(_NUMBER)

_LOOSE = re.compile(r"([A-Za-z]+)\[([^\[\]]*)\]([+-][0-9]+)?")
_LOOSE_SLICE = re.compile(r"([+-]?[0-9]*):([+-]?[0-9]*)(?::([+-]?[0-9]*))?")
_LOOSE_NUMBER = re.compile(r"[+-]?[0-9]+")
_SUM = re.compile(r"([+-]?[0-9]+)([+-][0-9]+)")


class PositionKind(StrEnum):
    """The forms of a selector; the last four are runs."""

    ABSOLUTE = "absolute"
    PROMPT_INDEX = "prompt_index"
    GENERATED_INDEX = "generated_index"
    PROMPT_ALL = "prompt_all"
    PROMPT_SLICE = "prompt_slice"
    GENERATED_ALL = "generated_all"
    GENERATED_SLICE = "generated_slice"


_OF_PROMPT = frozenset({PositionKind.PROMPT_INDEX, PositionKind.PROMPT_ALL, PositionKind.PROMPT_SLICE})
_RUNS = frozenset({PositionKind.PROMPT_ALL, PositionKind.PROMPT_SLICE, PositionKind.GENERATED_ALL, PositionKind.GENERATED_SLICE})


@dataclass(frozen=True, slots=True)
class PositionSelector:
    """Which tokens are meant.

    Attributes:
        kind: the form.
        index: of the token; of a run, its first. Negative counts from the end of the prompt or of the generation.
        stop: the end of a slice, which is not in it; None where it has none.
        offset: what a single token is shifted by once it is found.
    """

    kind: PositionKind
    index: int = 0
    stop: int | None = None
    offset: int = 0

    @property
    def is_continuous(self) -> bool:
        """Whether this is a run of tokens."""
        return self.kind in _RUNS

    @property
    def is_of_prompt(self) -> bool:
        """Whether the prompt is what is counted in."""
        return self.kind in _OF_PROMPT

    @property
    def is_in_prompt(self) -> bool:
        """Whether it counts from the beginning of the prompt, or in it."""
        return self.is_of_prompt or self.kind is PositionKind.ABSOLUTE

    @property
    def needs_the_end(self) -> bool:
        """Whether the token is known only once the generation has ended."""
        return self.kind is PositionKind.GENERATED_INDEX and self.index < 0

    def resolve_absolute(self, prompt_len: int, num_generated_total: int | None = None) -> int | None:
        """Returns the index, in prompt and generation together, of the one token that is meant.

        Args:
            prompt_len: in tokens.
            num_generated_total: how many tokens were generated; needed by `generated[-i]`.

        Returns:
            None of a run, where the prompt or the generation has no such token, and where that is not known yet.
            An index past what has been generated so far is returned.
        """
        match self.kind:
            case PositionKind.ABSOLUTE:
                base = self.index
            case PositionKind.PROMPT_INDEX:
                base = self.index if self.index >= 0 else prompt_len + self.index
                if not 0 <= base < prompt_len:
                    return None
            case PositionKind.GENERATED_INDEX if self.index >= 0:
                base = prompt_len + self.index
            case PositionKind.GENERATED_INDEX if num_generated_total is not None and -self.index <= num_generated_total:
                base = prompt_len + num_generated_total + self.index
            case _:
                return None
        found = base + self.offset
        is_past_the_end = num_generated_total is not None and found >= prompt_len + num_generated_total
        return None if found < 0 or is_past_the_end else found

    def matches(
        self,
        token_index: int,
        is_generated: bool,
        prompt_len: int,
        generated_index: int | None = None,
        num_generated_total: int | None = None,
    ) -> bool:
        """Returns whether a token is one of those that are meant.

        Args:
            token_index: in prompt and generation together.
            is_generated: whether it is a token of the generation.
            prompt_len: in tokens.
            generated_index: in the generation; absent, it is what is left of `token_index` behind the prompt.
            num_generated_total: how many tokens were generated; without it, `generated[-i]` matches nothing.
        """
        if self.is_continuous:
            return self.place_in_run(token_index, is_generated, prompt_len, generated_index) is not None
        found = self.resolve_absolute(prompt_len, num_generated_total)
        return found == token_index and is_generated == (token_index >= prompt_len)

    def place_in_run(self, token_index: int, is_generated: bool, prompt_len: int, generated_index: int | None = None) -> int | None:
        """Returns how many tokens of the run come before a token, or None where it is not in the run; as `matches` takes it."""
        if self.is_of_prompt == is_generated:
            return None
        place = token_index
        if is_generated:
            place = token_index - prompt_len if generated_index is None else generated_index
        elif token_index >= prompt_len:
            return None
        return place - self.index if self.index <= place and (self.stop is None or place < self.stop) else None

    def to_raw(self) -> int | str:
        """Returns the value that a spec has for it."""
        match self.kind:
            case PositionKind.ABSOLUTE:
                return self.index
            case PositionKind.PROMPT_ALL | PositionKind.GENERATED_ALL:
                inside = "*"
            case PositionKind.PROMPT_SLICE | PositionKind.GENERATED_SLICE:
                inside = f"{self.index}:{'' if self.stop is None else self.stop}"
            case _:
                inside = str(self.index)
        return f"{'prompt' if self.is_of_prompt else 'generated'}[{inside}]{f'{self.offset:+d}' if self.offset else ''}"

    def __str__(self) -> str:
        return str(self.to_raw())


def parse_position(value: int | str) -> PositionSelector:
    """Returns the selector that a value spells.

    Raises:
        SpecValidationError: it spells none; with the accepted forms, and the correction where there is one.
    """
    found = read_position(value)
    if isinstance(found, PositionSelector):
        return found
    got, hint = found
    raise SpecValidationError(Issue("position", FORMS, got, hint, "position", field="position"))


def read_position(value: Any) -> PositionSelector | tuple[str, str]:
    """Returns the selector that a value spells, or what was got instead and a correction (empty where there is none)."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return shown(value), ""
    if isinstance(value, int) and abs(value) >= 10**MAX_DIGITS:
        return f"a number of more than {MAX_DIGITS} digits", ""
    text = value.strip() if isinstance(value, str) else str(value)
    if any(len(digits) > MAX_DIGITS for digits in re.findall("[0-9]+", text)):
        return f"{quoted(text)} (a number of more than {MAX_DIGITS} digits)", ""
    if _ABSOLUTE.fullmatch(text):
        return PositionSelector(PositionKind.ABSOLUTE, int(text))
    if single := _SINGLE.fullmatch(text):
        kind = PositionKind.PROMPT_INDEX if single[1] == "prompt" else PositionKind.GENERATED_INDEX
        return PositionSelector(kind, int(single[2]), offset=int(single[3] or 0))
    if run := _RUN.fullmatch(text):
        every, part = (
            (PositionKind.PROMPT_ALL, PositionKind.PROMPT_SLICE)
            if run[1] == "prompt"
            else (PositionKind.GENERATED_ALL, PositionKind.GENERATED_SLICE)
        )
        if run[2]:
            return PositionSelector(every)
        start, stop = int(run[3]), int(run[4]) if run[4] else None
        if stop is None or start < stop:
            return PositionSelector(part, start, stop)
    reason, hint = _why(text)
    return (f"{quoted(text)} ({reason})" if reason else shown(value)), hint


def _why(text: str) -> tuple[str, str]:
    """Returns what is wrong with a text that is no selector, and what may have been meant; both may be empty."""
    if any(character.isspace() for character in text):
        closed = "".join(text.split())
        found = read_position(closed)
        return "a space inside", f"write {quoted(closed)}" if isinstance(found, PositionSelector) else found[1]
    if _LOOSE_NUMBER.fullmatch(text):
        n = int(text)
        if n < 0:
            return "a negative index of what has no end yet", f"write `prompt[{n}]` or `generated[{n}]`"
        return "an index is written in digits alone, without a leading zero", f"write `{n}`"
    if both := _SUM.fullmatch(text):
        n = int(both[1]) + int(both[2])
        return "a bare index takes no offset", f"write `{n}`" if n >= 0 else "write `prompt[-1]` or `generated[-1]` for the last token"
    loose = _LOOSE.fullmatch(text)
    if loose is None:
        word = re.match("[A-Za-z]*", text)
        return "", did_you_mean(word[0], _SEQUENCES) if word and word[0] not in ("", *_SEQUENCES) else ""
    name, inside, offset = loose[1], loose[2], int(loose[3] or 0)
    if name not in _SEQUENCES:
        return f"the sequence {quoted(name)}", did_you_mean(name, _SEQUENCES)
    if inside == "*":
        return "an offset on a run", f"shift its bounds: `{name}[{max(0, offset)}:]`"
    if _LOOSE_NUMBER.fullmatch(inside):
        shift = loose[3] and f"{offset:+d}"
        return "an index has no `+` and no leading zero, and `-0` is `0`", f"write `{name}[{int(inside)}]{shift or ''}`"
    if cut := _LOOSE_SLICE.fullmatch(inside):
        return _why_slice(name, cut, offset)
    return "", ""


def _why_slice(name: str, cut: re.Match[str], offset: int) -> tuple[str, str]:
    """Returns what is wrong with a slice, and what may have been meant."""
    start, stop, step = (int(part) if part and part not in "+-" else None for part in cut.groups())
    if start is not None and start < 0:
        if stop is None and step is None and not offset and start >= -4:
            return "a slice that starts from the end", f"one point each for {', '.join(f'`{name}[{n}]`' for n in range(start, 0))}"
        return "a slice that starts from the end", f"one point each for the tokens from `{name}[{start}]` on"
    begin = start or 0
    if stop is not None and stop < 0:
        return "a slice that stops from the end", f"write `{name}[{begin}:]`"
    if step is not None:
        if step < 1:
            return "a step that is no positive number", f"write `{name}[{begin}:{'' if stop is None else stop}]`"
        return "a slice with a step", f"write `{name}[{begin}:{'' if stop is None else stop}]` with `stride: {step}`"
    if stop is not None and stop == begin:
        return "an empty slice", f"write `{name}[{begin}:{begin + 1}]` or `{name}[{begin}]`"
    if stop is not None and stop < begin:
        return "a slice that runs backwards", f"write `{name}[{stop}:{begin}]`"
    end = "" if stop is None else str(max(stop + offset, 1))
    correct = f"`{name}[{max(begin + offset, 0)}:{end}]`"
    if offset:
        return "an offset on a run", f"shift its bounds: {correct}"
    if start is None:
        return "a slice without a start", f"write {f'`{name}[*]`' if stop is None else correct}"
    return "a number has no `+` and no leading zero", f"write {correct}"
