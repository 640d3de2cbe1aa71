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
        data = {name: getattr(self, name) for name in names} | {"action": str(self.action)}
        return data | ({"is_late": True} if self.is_late else {})


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

    def as_data(self) -> dict[str, Any]:
        """Returns it as JSON data."""
        return {name: getattr(self, name) for name in ("request", "point", "call", "what", "message", "position")}


@dataclass(slots=True)
class Counts:
    """Where the activations of a point went: `received + n_dropped == fired` once a request has ended.

    Attributes:
        fired: activations that the point took.
        received: those that its probe was called with, whatever came of it.
        dropped: those that it was not, by why: `overflow`, `circuit_open`, `hung`, `not_started`, `drain`.
        raised, timed_out: of the received, how many raised, and how many were not waited for to the end, whatever came of them later.
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

    def add(self, other: Counts) -> None:
        """Adds those of another request."""
        self.fired += other.fired
        self.received += other.received
        self.raised += other.raised
        self.timed_out += other.timed_out
        for why, n in list(other.dropped.items()):
            self.dropped[why] = self.dropped.get(why, 0) + n

    def as_data(self) -> dict[str, Any]:
        """Returns it as JSON data."""
        return {
            "fired": self.fired,
            "received": self.received,
            "dropped": dict(self.dropped),
            "raised": self.raised,
            "timed_out": self.timed_out,
        }


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

    def as_data(self, verdicts: bool = True) -> dict[str, Any]:
        """Returns it as JSON data, with or without what came while it went on."""
        data: dict[str, Any] = {"request": self.request}
        if verdicts:
            data |= {
                "verdicts": [result.as_data() for result in self.results],
                "failures": [failure.as_data() for failure in self.failures],
            }
        data["abort"] = None if self.abort is None else {"point": self.abort.point, "reason": self.abort.reason}
        return data | {"counts": {name: counts.as_data() for name, counts in self.counts.items()}}
