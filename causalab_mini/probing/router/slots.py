"""A point of one request: its probe, and the way of each activation to it. Every activation is counted once as received or dropped."""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from causalab_mini.probing.probes.base import Action, ActivationRecord, End, Probe, Start, Verdict
from causalab_mini.probing.probes.bound import BoundProbe
from causalab_mini.probing.router.breaker import Breaker
from causalab_mini.probing.router.calls import Call, Callers
from causalab_mini.probing.router.results import Counts, Failure, ProbeResult
from causalab_mini.probing.spec import ExtractionPoint, InterventionMode, InterventionPolicy, OnTimeout, Overflow

if TYPE_CHECKING:
    from causalab_mini.probing.router.pool import Pool

MAX_MESSAGE = 500
MAX_DEPTH = 50
"""Of lists and dicts in each other, in a value."""
TAKING_S = 1.0
"""Seconds that taking a value may need which has come back already."""


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
        message = error if isinstance(error, str) else _said(error)
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
                verdict = _verdict(value)
            except Exception as wrong:  # whatever a value's own methods do
                error, what = wrong, "invalid"
        if leave is not None:
            self.breaker.note(leave, error is None)
        if error is not None:
            if what == "raised" and call == "on_activation" and not is_late:
                with self.changed:
                    self.counts.raised += 1
            self.failed(call, _said(error, what == "raised"), record, what)
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


class InlineSlot(Slot):
    """The generation waits for each call, up to a limit; while a call is late, activations are dropped.

    Args:
        *args: of a slot.
        callers: threads that calls with a limit run on.
        policy: of the point.
        timeout_s: of a call; None for none, on the decoding thread itself.
    """

    def __init__(self, *args: Any, callers: Callers, policy: InterventionPolicy, timeout_s: float | None) -> None:
        super().__init__(*args)
        self._callers, self._timeout_s = callers, timeout_s
        self._aborts = policy.mode is InterventionMode.BLOCK_UNTIL_SIGNAL and policy.on_timeout is OnTimeout.ABORT
        self._late: Call | None = None
        self._end: End | None = None
        self.probe = self._made()
        if self.probe is not None and not self._call("on_start", lambda probe: probe.on_start(self.start)):
            self.probe = None
        if self.probe is None:
            self._no_word("it could not be started")

    def _made(self) -> Probe | None:
        """Returns the probe; None where its constructor raises, or is not through in time."""
        try:
            if self._timeout_s is None:
                return self.bound.make()
            call = self._callers.start(self.bound.make, lambda late: None)
            if not call.wait(self._timeout_s):
                self.failed("constructor", f"no answer within {self._timeout_s:g} s", what="timed_out")
                return None
            if call.error is not None:
                raise call.error
            made: Probe = call.value
            return made
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self.failed("constructor", error)
            return None

    def fire(self, records: Sequence[ActivationRecord]) -> None:
        """Calls the probe with each, and waits."""
        for record in records:
            why, leave = self._why_not()
            with self.changed:
                self.counts.fired += 1
                if why:
                    self.drop(why)
                else:
                    self.counts.received += 1
            if why:
                self._no_word({"hung": "an earlier call has not come back", "circuit_open": "it has failed too often"}.get(why, ""))
            else:
                self._call("on_activation", partial(_judge, record), record, leave)

    def _why_not(self) -> tuple[str, int | None]:
        """Returns why the probe can't be called now, or the breaker's leave for a call."""
        if self.probe is None:
            return "not_started", None
        if self._late is not None and not self._late.is_done:
            return "hung", None
        self._late = None
        leave = self.breaker.ask()
        return ("circuit_open", None) if leave is None else ("", leave)

    def _no_word(self, why: str) -> None:
        """Has the generation stopped where the point says so of a probe that gives no word."""
        if self._aborts and why:
            self.owner.stop(self.point.name, f"no word of its probe: {why}")

    def _call(self, name: str, work: Callable[[Probe], Any], record: ActivationRecord | None = None, leave: int | None = None) -> bool:
        """Returns whether a call came back in time and well."""
        probe, limit = self.probe, self._timeout_s
        assert probe is not None
        if limit is None:
            value, error = None, None
            try:
                value = work(probe)
            except KeyboardInterrupt:
                raise
            except BaseException as raised:
                error = raised
            return self.came(name, value, error, record, leave)
        call = self._callers.start(lambda: work(probe), lambda late: self.came(name, late.value, late.error, record, None, is_late=True))
        if call.wait(limit):
            went_well = self.came(name, call.value, call.error, record, leave)
            if not went_well and name == "on_activation":
                self._no_word("it failed")
            return went_well
        self._late = call
        if leave is not None:
            self.breaker.note(leave, False)
        with self.changed:
            self.counts.timed_out += name == "on_activation"
        self.failed(name, f"no answer within {limit:g} s", record, "timed_out")
        if name == "on_activation":
            self._no_word(f"no answer within {limit * 1000:g} ms")
        return False

    def end(self, end: End) -> None:
        """Keeps what is to be said at the end."""
        self._end = end

    def finish(self, deadline: float) -> None:
        """Waits for a late call, and tells the probe of the end, which has the limit of any call."""
        end, self._end = self._end, None
        if self.probe is None or end is None:
            return
        if self._late is not None and not self._late.wait(max(0.0, deadline - time.monotonic())):
            self.failed("on_end", "an earlier call has not come back", what="timed_out")
            return
        self._call("on_end", lambda probe: probe.on_end(end))


@dataclass(frozen=True, slots=True)
class QueuedCall:
    """A call of an async probe: which of its methods, with which activation, by which leave of the breaker, and the call itself."""

    name: str
    record: ActivationRecord | None
    leave: int | None
    work: Callable[[], Any]


class QueuedSlot(Slot):
    """The generation goes on while activations wait in a queue; they are worked off in order, one at a time.

    Args:
        *args: of a slot.
        pool: threads that work.
        depth: of the queue.
    """

    def __init__(self, *args: Any, pool: Pool, depth: int) -> None:
        super().__init__(*args)
        self._pool, self._depth = pool, depth
        self._queue: deque[ActivationRecord] = deque()
        self._is_scheduled = self._is_made = self._has_started = self._is_hung = self._is_closed = False
        self._busy_with: QueuedCall | None = None
        self._end: End | None = None
        self._done = threading.Event()

    def fire(self, records: Sequence[ActivationRecord]) -> None:
        """Puts activations into the queue; a full one waits, or drops, as the point's `overflow` says."""
        with self.changed:
            for record in records:
                self.counts.fired += 1
                if why := self._why_not():
                    self.drop(why)
                    continue
                self._queue.append(record)
                self._schedule()

    def _why_not(self) -> str:
        """Returns why an activation can't be put in; makes room, or waits for it."""
        if len(self._queue) >= self._depth and not self._refuses():
            match self.point.overflow:
                case Overflow.DROP_NEWEST:
                    return "overflow"
                case Overflow.DROP_OLDEST:
                    self._queue.popleft()
                    self.drop("overflow")
                case Overflow.BLOCK:
                    while len(self._queue) >= self._depth and not self._refuses():
                        self.changed.wait()
        return self._refuses()

    def _refuses(self) -> str:
        if self.probe is None and self._is_made:
            return "not_started"
        if self._is_hung:
            return "hung"
        return "drain" if self._is_closed else ""

    def _schedule(self) -> None:
        """Has the pool see to what waits, unless it does; under the lock."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._pool.put(self)

    def next_call(self, begins: Callable[[str, ActivationRecord | None], None]) -> QueuedCall | None:
        """Returns the next call to make; None where nothing waits, and then the slot is to be scheduled again.

        Args:
            begins: told of the call while nobody else can look.
        """
        with self.changed:
            found = self._next_call()
            if found is None:
                self._is_scheduled = False
            else:
                self._busy_with = found
                begins(found.name, found.record)
            return found

    def _next_call(self) -> QueuedCall | None:
        if not self._is_made:
            return QueuedCall("constructor", None, None, self.bound.make)
        probe = self.probe
        if probe is None:
            self.drop("not_started", len(self._queue))
            self._queue.clear()
            self._done.set()
            self.changed.notify_all()
            return None
        if not self._has_started:
            self._has_started = True
            return QueuedCall("on_start", None, None, lambda: probe.on_start(self.start))
        while self._queue:
            record = self._queue.popleft()
            self.changed.notify_all()
            if (leave := self.breaker.ask()) is not None:
                self.counts.received += 1
                return QueuedCall("on_activation", record, leave, partial(_judge, record, probe))
            self.drop("circuit_open")
        if self._end is not None and not self._done.is_set():
            end, self._end = self._end, None
            return QueuedCall("on_end", None, None, lambda: probe.on_end(end))
        return None

    def came_back(self, call: QueuedCall, value: Any, error: BaseException | None, is_late: bool) -> None:
        """Takes what a call came to. A late one lets the slot go on from there."""
        try:
            if call.name == "constructor":
                if error is not None:
                    self.failed(call.name, error)
            elif not (is_late and isinstance(error, CancelledError)):
                self.came(call.name, value, error, call.record, None if is_late else call.leave, is_late)
        finally:
            with self.changed:
                self._busy_with = None
                if call.name == "constructor":
                    self.probe, self._is_made = value, True
                if call.name == "on_start" and error is not None:
                    self.probe = None
                if call.name == "on_end":
                    self._done.set()
                if is_late:
                    self._is_hung, self._is_scheduled = False, False
                    if self._queue or self._end is not None:
                        self._schedule()
                self.changed.notify_all()

    def hangs(self, seconds: float) -> None:
        """Gives up a call that does not come back; what waits behind it is dropped."""
        with self.changed:
            call = self._busy_with
            assert call is not None
            self._is_hung = True
            self.counts.timed_out += call.name == "on_activation"
            self.drop("hung", len(self._queue))
            self._queue.clear()
            self.changed.notify_all()
        if call.leave is not None:
            self.breaker.note(call.leave, False)
        self.failed(call.name, f"no answer within {seconds:.3g} s", call.record, "timed_out")

    def end(self, end: End) -> None:
        """Has the probe told of the end behind all that waits."""
        with self.changed:
            self._end = end
            self._schedule()

    def finish(self, deadline: float) -> None:
        """Waits until the queue is worked off and the probe told of the end."""
        with self.changed:
            while not self._done.is_set() and not self._is_hung and (left := deadline - time.monotonic()) > 0:
                self.changed.wait(left)
            self._is_closed = True
            if self._done.is_set():
                return
            is_told = self._end is None
            self._end = None
            self.drop("drain", len(self._queue))
            self._queue.clear()
            self.changed.notify_all()
        self._pool.give_up(self)
        with self.changed:  # what has come back is taken before the outcome is made
            self.changed.wait_for(lambda: self._busy_with is None or self._is_hung, TAKING_S)
        if not is_told:
            self.failed("on_end", "earlier calls have not come back", what="timed_out")


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


def _judge(record: ActivationRecord, probe: Probe) -> Any:
    return probe.on_activation(record)


def _verdict(value: Any) -> Verdict | None:
    """Returns a probe's answer as a verdict with JSON data.

    Raises:
        TypeError: the value is none that JSON has.
        ValueError: the action is none.
    """
    if value is None:
        return None
    if not isinstance(value, Verdict):
        return Verdict(_json(value))
    try:
        action = Action(value.action)
    except ValueError:
        raise ValueError(f"expected an action (`continue` or `abort`), got `{value.action}`") from None
    return Verdict(_json(value.value), action, str(value.reason))


def _json(value: Any, depth: int = 0) -> Any:
    """Returns a value as JSON data: tensors and arrays as lists, numbers that are not finite as None."""
    if depth > MAX_DEPTH:
        raise TypeError(f"expected a value that JSON has, got one of more than {MAX_DEPTH} levels")
    if hasattr(value, "tolist") and not isinstance(value, str | bytes):
        value = value.detach().float().tolist() if hasattr(value, "detach") and value.is_floating_point() else value.tolist()
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, dict):
        if any(not isinstance(key, str) for key in value):
            raise TypeError("expected a value that JSON has, got a dict with keys that are no text")
        return {key: _json(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_json(inner, depth + 1) for inner in value]
    raise TypeError(f"expected a value that JSON has, got a {type(value).__name__}")


def _said(error: BaseException, with_type: bool = True) -> str:
    """Returns what an error says; one that can't say it is named."""
    try:
        text = str(error)
    except Exception:
        return f"{type(error).__name__}, which can't say more"
    return f"{type(error).__name__}: {text}" if with_type else text
