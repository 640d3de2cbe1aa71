"""Whether a running point still fires: `until`, token by token, as a pure step from one immutable state to the next."""

from __future__ import annotations

from dataclasses import dataclass, replace

from causalab_mini.probing.spec.point import ExtractionPoint
from causalab_mini.probing.spec.words import Until


@dataclass(frozen=True, slots=True)
class Progress:
    """Where one point stands in one request.

    Attributes:
        n_eligible: how many tokens its position and stride took, also those after its end.
        n_fired: how many it fired at.
        ended_by: what ended its run; None while it runs.
    """

    n_eligible: int = 0
    n_fired: int = 0
    ended_by: Until | None = None

    @property
    def is_over(self) -> bool:
        """Whether the point fires no more."""
        return self.ended_by is not None


def advance(
    point: ExtractionPoint,
    progress: Progress,
    token_index: int,
    is_generated: bool,
    prompt_len: int,
    *,
    is_stop: bool = False,
    num_generated_total: int | None = None,
) -> tuple[bool, Progress]:
    """Returns whether a point fires at the next token, and where it stands then.

    A stop token is the last that the point may fire at. It counts only inside the run, whether or not the stride takes it.

    Args:
        point: the point.
        progress: where it stood.
        token_index: in prompt and generation together; each token once, in order.
        is_generated: whether it is a token of the generation.
        prompt_len: in tokens.
        is_stop: whether the token is the point's `token`; who has the tokenizer knows.
        num_generated_total: how many tokens were generated, once that is known.
    """
    is_eligible = point.is_eligible(token_index, is_generated, prompt_len, num_generated_total=num_generated_total)
    fires = is_eligible and not progress.is_over
    after = replace(progress, n_eligible=progress.n_eligible + is_eligible, n_fired=progress.n_fired + fires)
    if after.is_over or not point.position.is_continuous:
        return fires, after
    if point.count is not None and after.n_fired >= point.count:
        return fires, replace(after, ended_by=Until.FIXED_COUNT)
    is_inside = point.position.place_in_run(token_index, is_generated, prompt_len) is not None
    if is_stop and is_inside and point.until is Until.STOP_TOKEN:
        return fires, replace(after, ended_by=Until.STOP_TOKEN)
    return fires, after
