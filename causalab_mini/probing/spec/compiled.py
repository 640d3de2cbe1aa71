"""Selectors as sets of indices, made once a request: nothing is asked token by token after that."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from causalab_mini.plan.selector import PositionSelector
from causalab_mini.probing.spec.point import ExtractionPoint

_NOTHING = range(0)


@dataclass(frozen=True, slots=True)
class CompiledSelector:
    """The tokens of one request that are meant.

    A token counted from the end of the generation (`generated[-i]`, shifted or not) is known only afterwards: the last
    `n_kept` tokens of `prompt_tail` and the generation are kept until then.

    Attributes:
        prompt_len: in tokens.
        max_new_tokens: the most that is generated.
        prompt: absolute indices.
        generated: indices in the generation.
        from_end: which token from the end, 1 the last; None where nothing is counted from there.
        n_needed: the fewest generated tokens with which `from_end` is there.
        prompt_tail: absolute indices of prompt tokens that `from_end` may turn out to be.
        starts_at: absolute index of a run's first token, None of a single one: stop tokens count from here.
        ends_at: absolute index behind a run's last token, None of a single one and of a run without an end.
        reason: why nothing can ever match, empty where something can.
    """

    prompt_len: int
    max_new_tokens: int
    prompt: range = _NOTHING
    generated: range = _NOTHING
    from_end: int | None = None
    n_needed: int = 0
    prompt_tail: range = _NOTHING
    starts_at: int | None = None
    ends_at: int | None = None
    reason: str = ""

    @property
    def n_kept(self) -> int:
        """How many tokens a ring buffer must hold for `from_end`; 0 where it is not needed."""
        return 0 if self.from_end is None else min(self.from_end, len(self.prompt_tail) + self.max_new_tokens)

    def from_end_index(self, n_generated: int) -> int | None:
        """Returns the absolute index that `from_end` is once the generation has ended, None where it is none."""
        if self.from_end is None or n_generated < self.n_needed:
            return None
        found = self.prompt_len + n_generated - self.from_end
        return found if found >= 0 else None

    def needs_last_fed(self, n_generated: int) -> bool:
        """Returns whether the last generated token, which no forward has had as input yet, is meant and must be fed once more."""
        last = self.prompt_len + n_generated - 1
        return n_generated > 0 and (n_generated - 1 in self.generated or self.from_end_index(n_generated) == last)

    def resolved(self, n_generated: int) -> tuple[int, ...]:
        """Returns the absolute indices that are meant once the generation has ended, in order."""
        behind = tuple(self.prompt_len + index for index in self.generated if index < n_generated)
        last = self.from_end_index(n_generated)
        return (*self.prompt, *behind, *(() if last is None else (last,)))

    def cut_at(self, stops: Iterable[int]) -> CompiledSelector:
        """Returns what is left of a run that its first stop token ends; the stop token itself may still be meant.

        Args:
            stops: absolute indices of stop tokens, those outside the run too.
        """
        if self.starts_at is None:
            return self
        inside = [stop for stop in stops if stop >= self.starts_at and (self.ends_at is None or stop < self.ends_at)]
        if not inside:
            return self
        last = min(inside)
        return replace(self, prompt=_up_to(self.prompt, last), generated=_up_to(self.generated, last - self.prompt_len))

    def why_none(self, n_generated: int) -> str:
        """Returns why nothing matched once the generation has ended, empty where something did."""
        if self.reason or self.resolved(n_generated):
            return self.reason
        return f"the generation ended after {_tokens(n_generated)}"


def compile_point(point: ExtractionPoint, prompt_len: int, max_new_tokens: int) -> CompiledSelector:
    """Returns the tokens that a point fires at: position, stride and `fixed_count`; `cut_at` adds a stop token."""
    return compile_selector(point.position, prompt_len, max_new_tokens, stride=point.stride, count=point.count)


def compile_selector(
    selector: PositionSelector, prompt_len: int, max_new_tokens: int, *, stride: int = 1, count: int | None = None
) -> CompiledSelector:
    """Returns the tokens that a selector means in one request.

    Args:
        selector: the selector.
        prompt_len: in tokens.
        max_new_tokens: the most that is generated.
        stride: every n-th token of a run, from its start.
        count: the most tokens of a run that are taken; None for all.
    """
    if prompt_len < 0 or max_new_tokens < 0:
        raise ValueError(f"expected lengths of at least 0, got {prompt_len} and {max_new_tokens}")
    none = CompiledSelector(prompt_len, max_new_tokens)
    if selector.is_continuous:
        return _run(none, selector, stride, count)
    if selector.needs_the_end:
        return _from_end(none, selector)
    found = selector.resolve_absolute(prompt_len)
    if found is None:
        has_base = selector.kind != "prompt_index" or -prompt_len <= selector.index < prompt_len
        base = replace(selector, offset=0)
        return replace(
            none,
            reason=f"`{selector}` is before the first token" if has_base else f"the prompt has {_tokens(prompt_len)}, and no `{base}`",
        )
    if found < prompt_len:
        return replace(none, prompt=range(found, found + 1))
    index = found - prompt_len
    if index >= max_new_tokens:
        return replace(none, reason=_too_few(selector, max_new_tokens))
    return replace(none, generated=range(index, index + 1))


def _run(none: CompiledSelector, selector: PositionSelector, stride: int, count: int | None) -> CompiledSelector:
    first, n = (0, none.prompt_len) if selector.is_of_prompt else (none.prompt_len, none.max_new_tokens)
    stop = n if selector.stop is None else min(selector.stop, n)
    taken = range(selector.index, max(stop, selector.index), stride)[:count]
    run = replace(none, starts_at=first + selector.index)
    if selector.is_of_prompt:
        run = replace(run, prompt=taken, ends_at=stop)
        return run if taken else replace(run, reason=f"the prompt has {_tokens(n)}, none of them in `{selector}`")
    run = replace(run, generated=taken, ends_at=None if selector.stop is None else first + selector.stop)
    return run if taken else replace(run, reason=_too_few(selector, n))


def _from_end(none: CompiledSelector, selector: PositionSelector) -> CompiledSelector:
    n_needed, from_end = -selector.index, -selector.index - selector.offset
    if from_end < 1:
        return replace(none, reason=f"`{selector}` is behind the last token")
    if n_needed > none.max_new_tokens:
        return replace(none, reason=_too_few(selector, none.max_new_tokens))
    if from_end > none.prompt_len + none.max_new_tokens:
        return replace(none, reason=f"`{selector}` is before the first token")
    reach = max(0, from_end - n_needed)
    tail = range(max(0, none.prompt_len - reach), none.prompt_len)
    return replace(none, from_end=from_end, n_needed=n_needed, prompt_tail=tail)


def _up_to(indices: range, last: int) -> range:
    return range(indices.start, max(indices.start, min(indices.stop, last + 1)), indices.step)


def _too_few(selector: PositionSelector, n: int) -> str:
    return f"at most {_tokens(n)} {'is' if n == 1 else 'are'} generated, none of them `{selector}`"


def _tokens(n: int) -> str:
    return f"{n} token{'' if n == 1 else 's'}"
