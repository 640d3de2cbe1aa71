"""Positions: which tokens of a row, as one immutable value.

A position is written as an integer or as an object; both become a `Position`. Nothing here knows a row or a tokenizer.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidatorFunctionWrapHandler, WrapValidator, model_validator

from causalab_mini.data.fields import parse_field
from causalab_mini.plan.selector import FORMS, PositionKind, PositionSelector, read_position
from causalab_mini.plan.strict import Strict, Tuple, invalid, one_of, shown

SEGMENT_PATTERN = r"^[A-Za-z_][A-Za-z0-9_-]*(\[[0-9]{1,9}\])?$"


def _true(value: Any) -> Any:
    if value is not None and value is not True:
        raise invalid("`true`", shown(value))
    return value


class Anchor(Strict):
    """A run of tokens, named by what it says or by who says it."""

    variable: str | None = Field(None, min_length=1)
    """The row's own text of this variable, of the role that is addressed."""
    text: str | None = Field(None, min_length=1)
    """A literal text, the same on every row."""
    column: str | None = Field(None, min_length=1)
    """A column path of the row whose text is looked for."""
    segment: str | None = Field(None, pattern=SEGMENT_PATTERN)
    """A turn of a conversation: `user[1]`, or `user` where that role speaks once; `prefix` is the tokenizer's own leading tokens."""
    occurrence: Annotated[Literal["only", "first", "last"] | int, one_of(("only", "first", "last"), "an integer")] = "only"
    """Which of several finds: `only` refuses to choose; an integer counts from 0, negative from the last."""

    @model_validator(mode="after")
    def _one_text(self) -> Anchor:
        texts = [name for name in ("variable", "text", "column") if getattr(self, name) is not None]
        if len(texts) > 1:
            raise invalid("one of `variable`, `text`, `column`", " and ".join(f"`{name}`" for name in texts))
        if self.column is not None and parse_field(self.column) is None:
            raise invalid("a column path like `answer` or `a.b[1]`", shown(self.column), key="column")
        if not texts and self.segment is None:
            raise invalid("at least one of `variable`, `text`, `column`, `segment`", "none")
        if not texts and self.occurrence != "only":
            raise invalid("`occurrence` beside a `variable`, `text` or `column`", "a segment alone")
        return self

    def __str__(self) -> str:
        return spell(self)


class Position(Strict):
    """Tokens of a row: a cut, inside a run, shifted and thinned."""

    index: int | None = None
    """One token of the run; negative counts from its end."""
    span: Tuple[int, int] | None = None
    """A half-open range of the run; negative ends count from its end."""
    last: int | None = Field(None, gt=0)
    """The final n tokens of the run."""
    all: Annotated[Literal[True] | None, BeforeValidator(_true)] = None
    """Every token of the run."""
    scope: Anchor | None = None
    """The run that is cut; absent, it is the row's whole content."""
    stride: int | None = Field(None, ge=1)
    """Every n-th token of a `span`, `last` or `all`, from its start."""
    offset: int | None = None
    """How many tokens the cut is shifted by once it is resolved; it may leave the run, never the content."""
    frame: Literal["prompt", "generated"] = "prompt"
    """Which sequence: the prompt, or what the model generates."""

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            return {"index": value}
        if not isinstance(value, dict):
            raise invalid("a position (an integer, a selector string or an object)", shown(value))
        return value

    @model_validator(mode="after")
    def _one_cut(self) -> Position:
        cuts = [name for name in ("index", "span", "last", "all") if getattr(self, name) is not None]
        if len(cuts) != 1:
            got = " and ".join(f"`{name}`" for name in cuts) or "none"
            raise invalid("exactly one of `index`, `span`, `last`, `all`", got)
        if self.stride is not None and self.index is not None:
            raise invalid("`stride` beside a `span`, `last` or `all`", "`index`")
        if self.span is not None and (self.span[0] < 0) == (self.span[1] < 0) and self.span[0] >= self.span[1]:
            raise invalid("a span of at least one token", self.span, key="span")
        if self.frame == "generated" and self.scope is not None and self.scope.segment not in (None, "eos"):
            raise invalid("no `segment` but `eos` in the generated frame (there are no turns)", shown(self.scope.segment), key="scope")
        if self.frame == "prompt" and self.scope is not None and self.scope.segment == "eos":
            raise invalid("the segment `eos` in the generated frame alone", "the prompt frame", key="scope")
        return self

    @property
    def is_plain_index(self) -> bool:
        """Whether this is nothing but an integer."""
        return self.index is not None and self.scope is None and not self.offset and self.frame == "prompt"

    @property
    def is_generated(self) -> bool:
        """Whether it is in what the model generates."""
        return self.frame == "generated"

    @property
    def lag(self) -> int:
        """How many forwards after the one that produces a token it is read: it is read in that one."""
        return 0

    @property
    def n_last(self) -> int | None:
        """How many of the last generated tokens this is among; None where it is counted from the first, or looked for."""
        if self.scope is not None or self.offset:
            return None
        return -self.index if self.index is not None and self.index < 0 else self.last

    def is_beyond(self, n: int) -> bool:
        """Returns whether no row has these tokens, with n that are generated at most."""
        if self.scope is not None:
            return False
        ends = [end for end in (self.last, *(self.span or ())) if end is not None]
        return (self.index is not None and not -n <= self.index < n) or any(not -n <= end <= n for end in ends)

    def steps(self, n: int) -> range | None:
        """Returns the forwards that produce these of n generated tokens on every row, None where that depends on the row's own continuation."""
        if self.scope is not None or self.offset:
            return None
        if self.index is not None:
            return range(self.index, self.index + 1) if 0 <= self.index < n else None
        if self.span is not None and 0 <= self.span[0] < self.span[1] <= n:
            return range(self.span[0], self.span[1], self.stride or 1)
        return range(0, n, self.stride or 1) if self.all else None

    @property
    def width(self) -> int | None:
        """How many tokens this is on every row; None where rows may differ."""
        if self.index is not None:
            return 1
        if self.last is not None:
            n = self.last
        elif self.span is not None and (self.span[0] < 0) == (self.span[1] < 0):
            n = self.span[1] - self.span[0]
        else:
            return None
        return -(-n // (self.stride or 1))

    def __str__(self) -> str:
        return spell(self)


class Selected(Position):
    """Tokens that a selector string names, counted as the model sees them; a generated one is read where it is the input.

    A selector stays in the sequence that it counts in; one that leaves it on every row alike is of the other (`prompt[-1]+1` is `generated[0]`).
    """

    selector: str
    """The string."""

    @classmethod
    def of(cls, text: str) -> Selected:
        """Returns the tokens that a string names.

        Raises:
            PydanticCustomError: it names none; with the correction where there is one.
        """
        found = read_position(text)
        if not isinstance(found, PositionSelector):
            got, hint = found
            raise invalid(FORMS, got, hint)
        return cls.model_construct(selector=text.strip(), frame="prompt" if _settled(found).is_in_prompt else "generated")

    @property
    def tokens(self) -> PositionSelector:
        """What it names, in the sequence that it means."""
        found = read_position(self.selector)
        assert isinstance(found, PositionSelector)
        return _settled(found)

    @property
    def lag(self) -> int:
        """How many forwards after the one that produces a token it is read: the next has it as its input."""
        return 1

    @property
    def is_plain_index(self) -> bool:
        """Whether this is nothing but an integer, counted in the content."""
        return False

    @property
    def n_last(self) -> int | None:
        """How many of the last generated tokens this is among; None where it is counted from the first."""
        found = self.tokens
        return max(1, -found.index - found.offset) if found.needs_the_end else None

    def steps(self, n: int) -> range | None:
        """Returns the forwards that have these of n generated tokens as input, on every row, None where that depends on the row."""
        found = self.tokens
        if found.needs_the_end:
            return None
        if not found.is_continuous:
            return range(found.index + 1, found.index + 2)
        return range(found.index + 1, 1 + (n if found.stop is None else min(n, found.stop)))

    def is_beyond(self, n: int) -> bool:
        """Returns whether no row has these tokens, with n that are generated at most."""
        found = self.tokens
        if found.needs_the_end:
            return not 0 < -found.index - found.offset <= n
        return found.index >= n

    @property
    def width(self) -> int | None:
        """How many tokens this is on every row; None of a run, of which there is what there is."""
        return None if self.tokens.is_continuous else 1

    def __str__(self) -> str:
        found, text = self.tokens, f'"{self.selector}"'
        meant = str(found)
        alike = "" if meant == self.selector else f" = {meant}"
        if self.is_generated:
            return f"{text}{alike} (in the forward after it is said)"
        return f"{text}{alike} (of the prompt as the model sees it)"


def _settled(found: PositionSelector) -> PositionSelector:
    """Returns a selector in the sequence that it means on every row, without an offset where it needs none."""
    if found.is_continuous or not found.offset:
        return found
    moved = found.index + found.offset
    if found.kind is PositionKind.PROMPT_INDEX and found.index < 0:
        kind = PositionKind.PROMPT_INDEX if moved < 0 else PositionKind.GENERATED_INDEX
        return PositionSelector(kind, moved)
    if found.kind is PositionKind.GENERATED_INDEX and found.index >= 0:
        kind = PositionKind.PROMPT_INDEX if moved < 0 else PositionKind.GENERATED_INDEX
        return PositionSelector(kind, moved)
    return found


def _as_selected(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    return Selected.of(value) if isinstance(value, str) else handler(value)


PositionField = Annotated[
    Position,
    WrapValidator(_as_selected),
    Field(json_schema_extra={"examples": [-1, {"index": -1, "scope": {"variable": "entity"}}]}),
]


def as_position(value: Any) -> Position:
    """Returns the position that a JSON value is: an integer, a selector string, or an object."""
    return Selected.of(value) if isinstance(value, str) else Position.model_validate(value)


def spell(value: Any) -> str:
    """Returns a position as a plan prints it: `{index:-1 scope:{variable:entity}}`, defaults left out."""
    if isinstance(value, Strict):
        parts = [f"{name}:{spell(getattr(value, name))}" for name in type(value).model_fields if name in value.spelled()]
        return "{" + " ".join(parts) + "}"
    if isinstance(value, tuple):
        return "[" + ",".join(spell(part) for part in value) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)
