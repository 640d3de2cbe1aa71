"""What the router hands back: verdicts with where they were given, what went wrong, and how many activations went which way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from causalab_mini.probing.probes.base import Action


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """A verdict, and what it was given on.

    Attributes:
        point, request: which.
        value, action, reason: the verdict.
        component, layer, position, generated_index, token_id: of the activation; None of a last verdict (`on_end`).
        is_late: whether it came after the generation had stopped waiting for it.
    """

    point: str
    request: str
    value: Any
    action: Action = Action.CONTINUE
    reason: str = ""
    component: str | None = None
    layer: int | None = None
    position: int | None = None
    generated_index: int | None = None
    token_id: int | None = None
    is_late: bool = False

    def as_data(self) -> dict[str, Any]:
        """Returns it as JSON data."""
        names = ("request", "point", "component", "layer", "position", "generated_index", "token_id", "value", "action", "reason")
        return {name: getattr(self, name) for name in names} | ({"is_late": True} if self.is_late else {})


@dataclass(frozen=True, slots=True)
class Failure:
    """A call of a probe that came to nothing.

    Attributes:
        point, request: which.
        call: `constructor`, `on_start`, `on_activation` or `on_end`.
        what: `raised`, `timed_out` or `invalid` (a verdict that is no JSON).
        message: of the error.
        position: of the token; None outside `on_activation`.
    """

    point: str
    request: str
    call: str
    what: str
    message: str
    position: int | None = None


@dataclass(slots=True)
class Counts:
    """Where the activations of a point went: `received + n_dropped == fired` once a request has ended.

    Attributes:
        fired: activations that the point took.
        received: those that its probe was called with, whatever came of it.
        dropped: those that it was not, by why: `overflow`, `circuit_open`, `hung`, `not_started`, `drain`.
        raised, timed_out: of the received, how many raised, and how many were not waited for to the end.
    """

    fired: int = 0
    received: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    raised: int = 0
    timed_out: int = 0

    @property
    def n_dropped(self) -> int:
        """How many were dropped, for whatever reason."""
        return sum(self.dropped.values())


@dataclass(frozen=True, slots=True)
class Abort:
    """Which point ended a generation, and why."""

    point: str
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of watching a request.

    Attributes:
        request: which.
        results: verdicts, by point, in the order in which they were given.
        failures: calls that came to nothing.
        counts: by point.
        abort: what ended the generation; None where no probe did.
    """

    request: str
    results: tuple[ProbeResult, ...]
    failures: tuple[Failure, ...]
    counts: Mapping[str, Counts]
    abort: Abort | None
