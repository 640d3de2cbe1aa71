"""How a model speaks: how many tokens, how each is chosen, and when it stops."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, Tag, model_validator

from causalab_mini.plan.strict import MAX_SEED, Strict, Tuple, invalid, tag_by

SAMPLING = ("temperature", "top_p", "top_k", "seed")


class Decode(Strict):
    """How a continuation is generated."""

    max_new_tokens: int = Field(gt=0)
    """How many tokens at most."""
    do_sample: bool = False
    """Whether tokens are drawn; else each is the most likely one."""
    temperature: float | None = Field(None, gt=0)
    """Sampling: what logits are divided by; absent, 1."""
    top_p: float | None = Field(None, gt=0, le=1)
    """Sampling: the share of probability that is drawn from, the most likely tokens first; absent, all."""
    top_k: int | None = Field(None, gt=0)
    """Sampling: how many of the most likely tokens are drawn from; absent, all."""
    seed: int | None = Field(None, ge=0, le=MAX_SEED)
    """Sampling: of the draws; each is a function of seed, row and step."""
    stop: Tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Texts after which a row ends."""
    ignore_eos: bool = False
    """Whether the stop token is ruled out, so that every row has `max_new_tokens`."""

    @model_validator(mode="after")
    def _samples_or_not(self) -> Decode:
        given = [name for name in SAMPLING if getattr(self, name) is not None]
        if self.do_sample and self.seed is None:
            raise invalid("a `seed` (tokens are drawn)", "none")
        if not self.do_sample and given:
            raise invalid("`do_sample` beside what is said of sampling", f"`{given[0]}` without it", key=given[0])
        if self.ignore_eos and self.stop:
            raise invalid("no `stop` beside `ignore_eos` (every row has all its tokens)", "both", key="stop")
        return self


DecodeField = Annotated[
    Annotated[Annotated[int, Field(ge=0)], Tag("<tokens>")] | Annotated[Decode, Tag("<decode>")],
    tag_by("a number of tokens, or how they are generated", {int: "<tokens>", dict: "<decode>", Decode: "<decode>"}),
]


def as_decode(value: int | Decode) -> Decode | None:
    """Returns how a continuation is generated, None where there is none; a number is that many tokens, greedy, past any stop token."""
    if isinstance(value, Decode):
        return value
    return Decode(max_new_tokens=value, ignore_eos=True) if value else None
