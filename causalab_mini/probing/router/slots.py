"""A point of one request: what every way of an activation to its probe has. Each activation is counted once as received or dropped."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from causalab_mini.probing.probes.base import Action, ActivationRecord, End, Probe, Start, Verdict
from causalab_mini.probing.probes.bound import BoundProbe
from causalab_mini.probing.router.breaker import Breaker
from causalab_mini.probing.router.results import Counts, Failure, ProbeResult
from causalab_mini.probing.router.verdicts import said_by, verdict_of
from causalab_mini.probing.spec import ExtractionPoint

if TYPE_CHECKING:
    pass

MAX_MESSAGE = 500


class Owner(ABC):
    """What a slot tells of: verdicts, failures, and that the generation is to stop."""

    request: str

    @abstractmethod
    def take_result(self, result: ProbeResult) -> None:
        """Takes a verdict."""

    @abstractmethod
    def take_failure(self, failure: Failure) -> None:
        """Takes note of a call that came to nothing."""

    @abstractmethod
    def stop(self, point: str, reason: str) -> None:
        """Has the generation stopped before its next token."""


class Slot(ABC):
    """A point of one request.

    Args:
        owner: whom it tells.
        point: which.
        bound: what makes its probe.
        breaker: of the point.
        start: of the request.
    """

    def __init__(self, owner: Owner, point: ExtractionPoint, bound: BoundProbe, breaker: Breaker, start: Start) -> None:
        self.owner, self.point, self.breaker, self.start = owner, point, breaker, start
        self.counts = Counts()
        self.changed = threading.Condition()
        self.bound = bound
        self.probe: Probe | None = None

    @abstractmethod
    def fire(self, records: Sequence[ActivationRecord]) -> None:
        """Takes activations, in order."""

    @abstractmethod
    def end(self, end: End) -> None:
        """Is told that there are no more."""

    @abstractmethod
    def finish(self, deadline: float) -> None:
        """Returns once all is done, or the deadline (of the monotonic clock) has passed; what is left is dropped."""

    def drop(self, why: str, n: int = 1) -> None:
        """Counts activations that the probe is not called with; under the lock."""
        if n:
            self.counts.dropped[why] = self.counts.dropped.get(why, 0) + n

    def failed(self, call: str, error: BaseException | str, record: ActivationRecord | None = None, what: str = "raised") -> None:
        """Tells of a call that came to nothing."""
        position = None if record is None else record.position
        message = error if isinstance(error, str) else said_by(error)
        self.owner.take_failure(Failure(self.point.name, self.owner.request, call, what, message[:MAX_MESSAGE], position))

    def came(
        self, call: str, value: Any, error: BaseException | None, record: ActivationRecord | None, leave: int | None, is_late: bool = False
    ) -> bool:
        """Returns whether a call came to a verdict or to nothing to say, and not to an error; whatever it came to is taken.

        Args:
            call: which of the probe's methods.
            value: that it returned.
            error: that it raised.
            record: that it was given.
            leave: of the breaker; None where it was not asked, or has been told already.
            is_late: whether nobody waited for it any more.
        """
        verdict: Verdict | None = None
        what = "raised"
        if error is None:
            try:
                verdict = verdict_of(value)
            except Exception as wrong:  # whatever a value's own methods do
                error, what = wrong, "invalid"
        if leave is not None:
            self.breaker.note(leave, error is None)
        if error is not None:
            if what == "raised" and call == "on_activation" and not is_late:
                with self.changed:
                    self.counts.raised += 1
            self.failed(call, said_by(error, what == "raised"), record, what)
            return False
        if verdict is None:
            return True
        place = {} if record is None else {name: getattr(record, name) for name in _PLACE}
        name, request = self.point.name, self.owner.request
        self.owner.take_result(ProbeResult(name, request, verdict.value, verdict.action, verdict.reason, **place, is_late=is_late))
        if verdict.action is Action.ABORT and call != "on_end":
            self.owner.stop(name, verdict.reason)
        return True


_PLACE = ("component", "layer", "position", "generated_index", "token_id")


class KeptSlot:
    """A point without a probe: all that it is given is received."""

    def __init__(self, point: ExtractionPoint) -> None:
        self.point = point
        self.counts = Counts()

    def fire(self, records: Sequence[ActivationRecord]) -> None:
        """Counts them."""
        self.counts.fired += len(records)
        self.counts.received += len(records)

    def end(self, end: End) -> None:
        """Has nothing to do."""

    def finish(self, deadline: float) -> None:
        """Has nothing to wait for."""


def judge(record: ActivationRecord, probe: Probe) -> Any:
    """Returns what a probe says of an activation."""
    return probe.on_activation(record)
