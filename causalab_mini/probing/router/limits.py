"""How long probes are waited for, and when one is left alone."""

from __future__ import annotations

from dataclasses import dataclass

QUEUE_DEPTH = 32
"""Activations that an async point may have waiting, where neither it nor the router says otherwise."""


MOST_S = 24 * 60 * 60.0
"""Seconds that anything is waited for at most."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a router, in seconds.

    Attributes:
        inline_s: for a call of an inline point without `block_until_signal`. None makes such calls on the decoding thread itself, where one
            that hangs can't be given up.
        async_s: for a call of an async point.
        drain_s: at the end of a request, for all that is still waiting or under way.
        n_failures: calls of a point that fail in a row, over all requests, before it is left alone.
        cooldown_s: for which it is left alone, before one call is tried.
        n_workers: threads that serve async points.
    """

    inline_s: float | None = 30.0
    async_s: float = 30.0
    drain_s: float = 10.0
    n_failures: int = 5
    cooldown_s: float = 30.0
    n_workers: int = 2

    def __post_init__(self) -> None:
        positive = (self.async_s, self.cooldown_s, *(() if self.inline_s is None else (self.inline_s,)))
        if (
            any(not 0 < value <= MOST_S for value in positive)
            or not 0 <= self.drain_s <= MOST_S
            or self.n_failures < 1
            or self.n_workers < 1
        ):
            raise ValueError(f"expected limits above 0, and at most a day, got {self}")
