"""Several sinks as one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from causalab_mini.probing.sinks.base import Counted, EventKind, Sink

GRACE_S = 2.0
"""How long a sink that had its limit is still waited for, seconds: the last lines may be on their way to a file."""


class Sinks:
    """Hands every event to every sink; what goes wrong in one touches no other. It is a sink itself.

    Args:
        sinks: in the order in which they get an event.
    """

    def __init__(self, sinks: Iterable[Sink] = ()) -> None:
        self._sinks = tuple(sinks)
        self._errors: list[dict[str, Any]] = [{} for _ in self._sinks]
        self._lock = threading.Lock()

    @property
    def wants_activations(self) -> bool:
        """Whether any sink wants activations. Where none does, no list of floats need be made."""
        return any(sink.wants_activations for sink in self._sinks)

    def put(self, event: Mapping[str, Any]) -> None:
        """Hands an event to every sink; an activation only to those that want it."""
        is_activation = event.get("event") == EventKind.ACTIVATION
        for index, sink in enumerate(self._sinks):
            try:
                if not is_activation or sink.wants_activations:
                    sink.put(event)
            except Exception as error:
                self._count(index, error)

    def close(self, timeout_s: float) -> None:
        """Closes every sink, all at the same time, so that each has the whole limit. One that hangs is left behind, and counted."""
        threads = [threading.Thread(target=self._close, args=(index, timeout_s), daemon=True) for index in range(len(self))]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + max(timeout_s, 0.0) + GRACE_S
        for index, thread in enumerate(threads):
            thread.join(max(deadline - time.monotonic(), 0.0))
            if thread.is_alive():
                self._count(index, TimeoutError("close did not end within its limit"))

    def as_data(self) -> list[dict[str, Any]]:
        """Returns kind and counters of every sink as JSON data; `n_raised` and `raised` where it broke its promise never to raise."""
        with self._lock:
            errors = [dict(found) for found in self._errors]
        return [_counters(sink) | found for sink, found in zip(self._sinks, errors, strict=True)]

    def _close(self, index: int, timeout_s: float) -> None:
        try:
            self._sinks[index].close(timeout_s)
        except Exception as error:
            self._count(index, error)

    def _count(self, index: int, error: Exception) -> None:
        with self._lock:
            found = self._errors[index]
            found |= {"n_raised": found.get("n_raised", 0) + 1, "raised": f"{type(error).__name__}: {error}"}

    def __len__(self) -> int:
        return len(self._sinks)

    def __iter__(self) -> Iterator[Sink]:
        return iter(self._sinks)

    def __getitem__(self, index: int) -> Sink:
        return self._sinks[index]

    def __repr__(self) -> str:
        return f"Sinks({list(self._sinks)!r})"


def _counters(sink: Sink) -> dict[str, Any]:
    try:
        if isinstance(sink, Counted):
            return sink.as_data()
    except Exception as error:
        return {"kind": type(sink).__name__, "error": f"{type(error).__name__}: {error}"}
    return {"kind": type(sink).__name__}
