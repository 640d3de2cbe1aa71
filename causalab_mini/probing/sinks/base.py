"""What a sink is, and what it may be given."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable


class EventKind(StrEnum):
    """What an event's `event` says."""

    RESULT = "result"
    FAILURE = "failure"
    ACTIVATION = "activation"
    END = "end"


class Sink(Protocol):
    """Takes events: `{"event": "result" | "failure" | "activation" | "end", "time": …, "request": …, …}`, JSON data each."""

    @property
    def wants_activations(self) -> bool:
        """Whether events of kind `activation`, a list of floats each, are handed to it."""
        ...

    def put(self, event: Mapping[str, Any]) -> None:
        """Takes an event, from any thread; never raises, and counts what it could not keep."""
        ...

    def close(self, timeout_s: float) -> None:
        """Hands over what is still waiting, within a limit, and lets go of files and connections."""
        ...


@runtime_checkable
class Counted(Protocol):
    """A sink that says what became of its events."""

    def as_data(self) -> dict[str, Any]:
        """Returns kind, place and counters as JSON data, without secrets."""
        ...
