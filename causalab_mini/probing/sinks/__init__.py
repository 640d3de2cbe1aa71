"""Sinks: where verdicts, failures and ends go as they come. A sink never holds up a generation for longer than a line takes to write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Sink(Protocol):
    """Takes events: `{"event": "result" | "failure" | "activation" | "end", "time": …, "request": …, …}`, JSON data each.

    Attributes:
        wants_activations: whether it takes events of activations, too.
    """

    wants_activations: bool

    def put(self, event: Mapping[str, Any]) -> None:
        """Takes an event, from any thread; never raises, and counts what it could not keep."""
        ...

    def close(self, timeout_s: float) -> None:
        """Hands over what is still waiting, within a limit, and lets go of files and connections."""
        ...
