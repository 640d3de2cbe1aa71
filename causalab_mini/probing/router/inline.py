"""The way to a probe that the generation waits for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from causalab_mini.probing.probes.base import ActivationRecord, End, Probe
from causalab_mini.probing.router.calls import Call, Callers
from causalab_mini.probing.router.slots import Slot, judge
from causalab_mini.probing.spec import InterventionMode, InterventionPolicy, OnTimeout


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
                self._call("on_activation", partial(judge, record), record, leave)

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
