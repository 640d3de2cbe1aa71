"""Events without what is not to leave the process."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

from causalab_mini.errors import Problem, UsageError, quoted
from causalab_mini.probing.sinks.base import Counted, Sink

REDACTED = "[redacted]"


class Redacting:
    """Hands events on with the values of some keys replaced by `"[redacted]"`. The events themselves stay as they are.

    A key is a name, found at any depth, or a path from the top of the event (`value.text`; lists on the way are looked through). Case does
    not matter. Values are replaced whole, whatever they are; text inside other values is not searched. What can't be looked through (an
    event that contains itself) is not handed on, and counted.

    Args:
        sink: what gets the events.
        keys: names and paths; never empty ones.

    Attributes:
        n_refused: events that were not handed on.

    Raises:
        UsageError: `keys` is a string, or one of them is empty or no string.
    """

    def __init__(self, sink: Sink, keys: Iterable[str]) -> None:
        listed: list[Any] = [keys] if isinstance(keys, str) else list(keys)
        if isinstance(keys, str) or not all(isinstance(key, str) and all(key.split(".")) for key in listed):
            raise UsageError(
                Problem("keys", "a list of names and dotted paths", quoted(keys if isinstance(keys, str) else listed), code="sink")
            )
        self.sink = sink
        self.keys = tuple(dict.fromkeys(key.casefold() for key in listed))
        self.n_refused = 0
        self._keys = frozenset(self.keys)
        self._lock = threading.Lock()

    @property
    def wants_activations(self) -> bool:
        """Whether the inner sink wants them."""
        return self.sink.wants_activations

    def put(self, event: Mapping[str, Any]) -> None:
        """Hands an event on, redacted."""
        try:
            redacted = self._redacted(event, "")
        except Exception:  # what can't be redacted stays here
            with self._lock:
                self.n_refused += 1
            return
        self.sink.put(redacted)

    def close(self, timeout_s: float) -> None:
        """Closes the inner sink."""
        self.sink.close(timeout_s)

    def as_data(self) -> dict[str, Any]:
        """Returns what the inner sink says of itself, and what is redacted, as JSON data."""
        data = self.sink.as_data() if isinstance(self.sink, Counted) else {"kind": type(self.sink).__name__}
        return data | {"redacted": list(self.keys), "n_refused": self.n_refused}

    def __repr__(self) -> str:
        return f"Redacting({self.sink!r}, {list(self.keys)!r})"

    def _redacted(self, value: Any, above: str) -> Any:
        """Returns a value below a path, which ends with a dot unless it is empty, with what is secret replaced."""
        match value:
            case Mapping():
                named = [(key, inner, str(key).casefold()) for key, inner in value.items()]
                return {
                    key: REDACTED if not self._keys.isdisjoint((name, above + name)) else self._redacted(inner, f"{above}{name}.")
                    for key, inner, name in named
                }
            case list() | tuple():
                return [self._redacted(inner, above) for inner in value]
        return value
