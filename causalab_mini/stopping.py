"""Signals that end a run: the first lets the forward under way finish, the second does not."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """A context in which signals wait for the next pause, once there has been one; outside of the main thread it does nothing.

    A signal that would end the process anyway, or that is ignored, is left alone: what a folder holds can be continued after a kill too.

    Args:
        on_asked: called when a signal is first put off; it may be anywhere in the code then.
    """

    def __init__(self, on_asked: Callable[[], None] = lambda: None) -> None:
        self.on_asked = on_asked
        self.before: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self.is_putting_off = False
        self.pending: int | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):
                    self.before[number] = handler
                    signal.signal(number, self.receive)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        if error is None:
            self.deliver()

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Puts a signal off, or passes it on: the second one, and those before the first pause."""
        if not self.is_putting_off or self.pending is not None:
            self.pending = None
            self.before[number](number, frame)
            return
        self.pending = number
        self.on_asked()

    def pause(self) -> None:
        """Passes a signal on that has come since the last pause.

        Raises:
            KeyboardInterrupt: there was one.
        """
        self.is_putting_off = True
        self.deliver()

    def deliver(self) -> None:
        """Passes on a signal that was put off."""
        if self.pending is not None:
            number, self.pending = self.pending, None
            self.before[number](number, None)
