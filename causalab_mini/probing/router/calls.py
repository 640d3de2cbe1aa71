"""Calls that are not waited for longer than a limit. A call that hangs keeps its thread; the next one gets another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

CLOSING_S = 2.0
"""How long threads that are told to end are waited for, seconds."""


class Call:
    """A call on its way.

    Attributes:
        is_late: whether nobody waits for it any more.
        value: what it returned.
        error: what it raised.
    """

    def __init__(self, work: Callable[[], Any], on_late: Callable[[Call], object]) -> None:
        self._work, self._on_late = work, on_late
        self._lock = threading.Lock()
        self._done = threading.Event()
        self.is_late = False
        self.value: Any = None
        self.error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        """Whether it has come back."""
        return self._done.is_set()

    def run(self) -> None:
        """Carries it out, on the thread that this is called on."""
        try:
            self.value = self._work()
        except BaseException as error:
            self.error = error
        with self._lock:
            if not self.is_late:
                self._done.set()
                return
        self._on_late(self)
        self._done.set()

    def wait(self, timeout_s: float | None) -> bool:
        """Returns whether it came back in time; else it is late, and is told of when it does, before it counts as done."""
        if self._done.wait(timeout_s):
            return True
        with self._lock:
            if self._done.is_set():
                return True
            self.is_late = True
            return False


class Callers:
    """Threads that wait for calls; a thread whose call is late is not given another."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._idle: list[_Caller] = []
        self._is_closed = False

    def start(self, work: Callable[[], Any], on_late: Callable[[Call], object]) -> Call:
        """Returns a call that has begun on another thread."""
        call = Call(work, on_late)
        with self._lock:
            caller = self._idle.pop() if self._idle else None
        if caller is None:
            caller = _Caller(self._name, self._take_back)
            caller.start()
        caller.give(call)
        return call

    def close(self) -> None:
        """Ends the threads that are idle."""
        with self._lock:
            idle, self._idle, self._is_closed = self._idle, [], True
        for caller in idle:
            caller.give(None)
        wait_for(idle)

    def _take_back(self, caller: _Caller) -> None:
        with self._lock:
            if not self._is_closed:
                self._idle.append(caller)
                return
        caller.give(None)


class _Caller(threading.Thread):
    """A thread that carries out one call after the other; it does not keep the process alive."""

    def __init__(self, name: str, take_back: Callable[[_Caller], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._take_back = take_back
        self._given = threading.Semaphore(0)
        self._call: Call | None = None

    def give(self, call: Call | None) -> None:
        """Hands over the next call; None ends the thread."""
        self._call = call
        self._given.release()

    def run(self) -> None:
        """Carries out what it is given."""
        import torch

        with torch.inference_mode(False), torch.no_grad():
            while True:
                self._given.acquire()
                call, self._call = self._call, None
                if call is None:
                    return
                call.run()
                is_late = call.is_late
                call = None  # with the tensors that it was made with
                if is_late:
                    return
                self._take_back(self)


def wait_for(threads: Iterable[threading.Thread]) -> None:
    """Waits until threads that were told to end are gone: one that frees a tensor while the interpreter ends takes the process with it."""
    deadline = time.monotonic() + CLOSING_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
