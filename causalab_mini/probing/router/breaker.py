"""A circuit breaker: a probe that keeps failing is left alone for a while, and then tried once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Breaker:
    """Of one point, over all requests.

    `closed` lets every call through. As many failures in a row as its limit `open` it: nothing is let through until the cooldown is over. Then
    it is `half_open`: one call is let through, and closes it or opens it again.

    Args:
        n_failures: in a row, that open it.
        cooldown_s: seconds for which it stays open.
        clock: seconds that only go up.

    Source: Nygard, Release It!, 2nd edition, 2018, chapter 5.
    """

    def __init__(self, n_failures: int, cooldown_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._cooldown_s, self._clock = n_failures, cooldown_s, clock
        self._lock = threading.Lock()
        self._n_in_a_row = 0
        self._opened: float | None = None
        self._is_tried = False
        self._age = 0

    @property
    def state(self) -> str:
        """`closed`, `open` or `half_open`."""
        with self._lock:
            return self._state()

    def _state(self) -> str:
        if self._opened is None:
            return "closed"
        return "half_open" if self._clock() - self._opened >= self._cooldown_s else "open"

    def ask(self) -> int | None:
        """Returns a leave for one call, which `note` takes back; None where none may be made."""
        with self._lock:
            if self._opened is not None:
                if self._state() == "open" or self._is_tried:
                    return None
                self._is_tried = True
                self._age += 1
            return self._age

    def note(self, leave: int, went_well: bool) -> None:
        """Takes note of how a call went; what began before the breaker last opened, closed or tried a call says nothing any more."""
        with self._lock:
            if leave != self._age:
                return
            self._n_in_a_row = 0 if went_well else self._n_in_a_row + 1
            if self._opened is None and (went_well or self._n_in_a_row < self._limit):
                return
            self._opened = None if went_well else self._clock()
            self._is_tried = False
            self._age += 1
