"""The way to a probe that works behind the generation's back."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from causalab_mini.probing.probes.base import ActivationRecord, End
from causalab_mini.probing.router.slots import Slot, judge
from causalab_mini.probing.spec import Overflow

if TYPE_CHECKING:
    from causalab_mini.probing.router.pool import Pool

TAKING_S = 1.0
"""Seconds that taking a value may need which has come back already."""


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

    def next_call(self, begins: Callable[[], None]) -> QueuedCall | None:
        """Returns the next call to make; None where nothing waits, and then the slot is to be scheduled again.

        Args:
            begins: told that there is one, while nobody else can look.
        """
        with self.changed:
            found = self._next_call()
            if found is None:
                self._is_scheduled = False
            else:
                self._busy_with = found
                begins()
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
                return QueuedCall("on_activation", record, leave, partial(judge, record, probe))
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
