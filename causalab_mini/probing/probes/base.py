"""What a probe is: what it is told of a request, what it is given, and what it may say."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

from causalab_mini.probing.spec import ExecutionMode, ExtractionPoint, ProbeKind

if TYPE_CHECKING:
    from torch import Tensor

    from causalab_mini.model.facts import ModelFacts


class Action(StrEnum):
    """What a verdict asks of the generation."""

    CONTINUE = "continue"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a probe says.

    Attributes:
        value: anything that JSON has: a probability, a norm, a class, a list.
        action: whether the generation goes on; an abort comes before the next token.
        reason: why, for people.
    """

    value: Any = None
    action: Action = Action.CONTINUE
    reason: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class ActivationRecord:
    """One activation: of one token, at one component and layer.

    Attributes:
        point: name of the extraction point.
        request: which request, as whoever asked names it.
        component: of the document language.
        layer: None where the component belongs to the whole model.
        position: of the token in prompt and generation together.
        generated_index: of the token in the generation; None in the prompt.
        token_id: of the token.
        activation: (feature,), of attention patterns (head, key); on the model's device, in its dtype. Not to be changed.
    """

    point: str
    request: str
    component: str
    layer: int | None
    position: int
    generated_index: int | None
    token_id: int
    activation: Tensor


@dataclass(frozen=True, slots=True)
class Start:
    """What a probe is told before the first activation.

    Attributes:
        point: that it serves.
        request: which request.
        n_prompt_tokens: of the request.
    """

    point: ExtractionPoint
    request: str
    n_prompt_tokens: int


@dataclass(frozen=True, slots=True)
class End:
    """What a probe is told after the last activation.

    Attributes:
        ended: what ended the generation: `eos`, `stop`, `length`, `abort`, `cancelled` or `error`.
        n_generated: tokens of the generation.
    """

    ended: str
    n_generated: int


class Probe:
    """A probe: a fresh one is made for each request and point, so that state in `self` is this request's own.

    Its constructor takes `probe_args` as keywords. A class with an attribute that all its probes would share and could change (a list, a dict,
    a set) can't be registered.
    """

    kind: ClassVar[ProbeKind | None] = None
    """The `probe_kind` of the points that it can serve; None for both."""
    mode: ClassVar[ExecutionMode | None] = None
    """The `execution_mode` of those; None for both."""
    is_coroutine: ClassVar[bool] = False
    """Whether a call returns what has to be awaited; it is seen by itself where the methods are coroutines."""
    files: ClassVar[tuple[str, ...]] = ()
    """Arguments that are paths of files: a relative one is looked for beside the spec, then in the working directory."""

    def fits(self, point: ExtractionPoint, facts: ModelFacts) -> None:
        """Judges whether the probe can serve a point of a model; called once, on a probe of its own, before the weights are loaded.

        Raises:
            ProbeMisfit: it can't.
        """

    def on_start(self, start: Start) -> None:
        """Is told that a request begins."""

    def on_activation(self, record: ActivationRecord) -> Verdict | Any:
        """Returns a verdict on an activation, or its value alone; None says nothing."""
        raise NotImplementedError

    def on_end(self, end: End) -> Verdict | Any:
        """Returns a last verdict, once the generation has ended; None says nothing. It can't abort any more."""
        return None


class SingleShotProbe(Probe):
    """Judges each activation alone. Points with `probe_kind: single_shot` take one."""

    kind = ProbeKind.SINGLE_SHOT


class TrajectoryProbe(Probe):
    """Carries state from one activation of a request to the next. Points with `probe_kind: trajectory` take one; only it may run async."""

    kind = ProbeKind.TRAJECTORY


class ProbeMisfit(ValueError):  # noqa: N818 - its name says what is wrong
    """An argument of a probe, or a point, that can't be served.

    Args:
        argument: of the constructor; empty for the point itself.
        expected: what would have served.
        got: what is there.
        hint: where help is sure.
    """

    def __init__(self, argument: str, expected: str, got: str, hint: str = "") -> None:
        super().__init__(f"expected {expected}, got {got}")
        self.argument = argument
        self.expected = expected
        self.got = got
        self.hint = hint
