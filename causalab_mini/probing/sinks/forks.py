"""What a forked process inherits of a sink is its parent's: locks that some thread may hold, handles, a thread that isn't there."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Inherited(Protocol):
    """A sink that a forked process has a copy of."""

    def start_anew(self) -> None:
        """Makes the copy the forked process' own, before anything else runs in it."""
        ...


def register(sink: Inherited) -> None:
    """Has a sink start anew in every process that is forked from now on, for as long as it lives."""
    _ALIVE.add(sink)


def _after_fork() -> None:
    for sink in list(_ALIVE):
        sink.start_anew()


_ALIVE: weakref.WeakSet[Inherited] = weakref.WeakSet()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
