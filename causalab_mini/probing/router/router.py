"""The router: one for a model that speaks, over all its requests; and the watch that it keeps over one of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from causalab_mini.probing.probes.base import ActivationRecord, End, Start
from causalab_mini.probing.probes.bound import BoundProbe
from causalab_mini.probing.router.breaker import Breaker
from causalab_mini.probing.router.calls import Callers
from causalab_mini.probing.router.inline import InlineSlot
from causalab_mini.probing.router.limits import MOST_S, QUEUE_DEPTH, Limits
from causalab_mini.probing.router.pool import Pool
from causalab_mini.probing.router.queued import QueuedSlot
from causalab_mini.probing.router.results import Abort, Counts, Failure, Outcome, ProbeResult
from causalab_mini.probing.router.slots import KeptSlot, Owner, Slot
from causalab_mini.probing.sinks import Sink
from causalab_mini.probing.spec import ExecutionMode, ExtractionPoint, InterventionMode, InterventionPolicy, ProbeKind, ProbeSpec


class Router:
    """Hands activations to the probes of a spec.

    Args:
        spec: the points.
        probes: by point, what makes its probe; activations of points without one go to sinks alone.
        policy: of inline points that have none of their own.
        queue_depth: of async points that have none of their own.
        limits: how long is waited.
        sinks: where verdicts go as they come.

    Raises:
        ValueError: a point breaks the rules of async points, which the parser would have refused; or the policy or the depth can't be.
    """

    def __init__(
        self,
        spec: ProbeSpec,
        probes: Mapping[str, BoundProbe],
        *,
        policy: InterventionPolicy | None = None,
        queue_depth: int = QUEUE_DEPTH,
        limits: Limits | None = None,
        sinks: Sequence[Sink] = (),
    ) -> None:
        self.spec, self.probes, self.limits, self.sinks = spec, dict(probes), limits or Limits(), tuple(sinks)
        self.policy, self.queue_depth = policy or InterventionPolicy(), queue_depth
        for point in spec:
            _judge(point)
        if queue_depth < 1:
            raise ValueError(f"expected a queue of at least 1 activation, got {queue_depth}")
        if self.policy.mode is InterventionMode.BLOCK_UNTIL_SIGNAL and not (self.policy.timeout_ms or 0) >= 1:
            raise ValueError(f"expected a timeout of at least 1 ms beside `block_until_signal`, got {self.policy.timeout_ms}")
        self.breakers = {name: Breaker(self.limits.n_failures, self.limits.cooldown_s) for name in self.probes}
        self.hands_on_activations = any(sink.wants_activations for sink in self.sinks)
        self.routed = tuple(number for number, point in enumerate(spec) if self.hands_on_activations or point.name in self.probes)
        self._callers = Callers("inline probe")
        self._pool = Pool(self.limits.n_workers, self.limits.async_s)
        self._lock = threading.Lock()
        self._open: set[Watch] = set()
        self._totals = {point.name: Counts() for number, point in enumerate(spec) if number in self.routed}

    def open(self, request: str, n_prompt_tokens: int) -> Watch:
        """Returns the watch over a request, with a fresh probe for every point."""
        watch = Watch(self, request, n_prompt_tokens)
        with self._lock:
            self._open.add(watch)
        return watch

    def counts(self) -> dict[str, Counts]:
        """Returns where the activations of each point went, over all requests, those under way too."""
        with self._lock:
            totals = {name: _sum([counts]) for name, counts in self._totals.items()}
            for watch in self._open:
                for name, counts in watch.counts().items():
                    totals[name] = _sum([totals[name], counts])
        return totals

    def close(self) -> None:
        """Ends the threads; requests that are not ended yet are, without waiting for what is left of them."""
        with self._lock:
            left = list(self._open)
        for watch in left:
            watch.announce("error", 0, drain_s=0.0)
            watch.end("error", 0)
        self._pool.close()
        self._callers.close()

    def __enter__(self) -> Router:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def slot(self, watch: Watch, point: ExtractionPoint, start: Start) -> Slot | KeptSlot:
        """Returns what serves a point of a request."""
        bound = self.probes.get(point.name)
        if bound is None:
            return KeptSlot(point)
        given = (watch, point, bound, self.breakers[point.name], start)
        if point.execution_mode is ExecutionMode.ASYNC:
            return QueuedSlot(*given, pool=self._pool, depth=point.queue_depth or self.queue_depth)
        policy = point.intervention or self.policy
        blocks = policy.mode is InterventionMode.BLOCK_UNTIL_SIGNAL
        timeout_s = min((policy.timeout_ms or 1) / 1000, MOST_S) if blocks else self.limits.inline_s
        return InlineSlot(*given, callers=self._callers, policy=policy, timeout_s=timeout_s)

    def ended(self, watch: Watch) -> None:
        """Takes a request's counts into the totals."""
        with self._lock:
            if watch in self._open:
                self._open.remove(watch)
                for name, counts in watch.counts().items():
                    self._totals[name] = _sum([self._totals[name], counts])

    def tell(self, event: str, data: Mapping[str, Any]) -> None:
        """Hands an event to every sink that wants it."""
        line = {"event": event, "time": datetime.now(UTC).isoformat(timespec="milliseconds"), **data}
        for sink in self.sinks:
            if event != "activation" or sink.wants_activations:
                sink.put(line)


class Watch(Owner):
    """The points of one request. `fire` is called on one thread; `end` may be called on another.

    Attributes:
        request: what it is called.
        routed: numbers of the points whose activations it takes.
    """

    def __init__(self, router: Router, request: str, n_prompt_tokens: int) -> None:
        self.request, self.routed = request, router.routed
        self._router = router
        self._results: list[ProbeResult] = []
        self._failures: list[Failure] = []
        self._abort: Abort | None = None
        self._end: End | None = None
        self._deadline = 0.0
        points = router.spec.extraction_points
        self._slots = {number: router.slot(self, points[number], Start(points[number], request, n_prompt_tokens)) for number in self.routed}

    @property
    def abort(self) -> Abort | None:
        """Which probe wants the generation to stop; None where none does."""
        return self._abort

    def fire(self, number: int, records: Sequence[ActivationRecord]) -> None:
        """Takes activations of a point, in order: inline probes are called and waited for, async ones find them in their queue."""
        if self._router.hands_on_activations:
            for record in records:
                self._router.tell("activation", _as_data(record))
        self._slots[number].fire(records)

    def announce(self, ended: str, n_generated: int, drain_s: float | None = None) -> None:
        """Tells the queues that there are no more activations, and does not wait: `end` does, for what is left of the limit.

        Args:
            ended: what ended the generation.
            n_generated: tokens of it.
            drain_s: the limit; None for the router's own.
        """
        if self._end is None:
            self._end = End(ended, n_generated)
            self._deadline = time.monotonic() + (self._router.limits.drain_s if drain_s is None else drain_s)
            for slot in self._slots.values():
                slot.end(self._end)

    def end(self, ended: str, n_generated: int) -> Outcome:
        """Returns what came of a request, once its queues are worked off or the limit is reached.

        Args:
            ended: what ended the generation.
            n_generated: tokens of it.
        """
        self.announce(ended, n_generated)
        for slot in self._slots.values():
            slot.finish(self._deadline)
        self._router.ended(self)
        order = {point.name: number for number, point in enumerate(self._router.spec)}
        results = tuple(sorted(self._results, key=lambda result: order[result.point]))
        failures = tuple(sorted(self._failures, key=lambda failure: order[failure.point]))
        abort = self._abort if ended == "abort" else None
        outcome = Outcome(self.request, results, failures, self.counts(), abort)
        if self._router.sinks:
            self._router.tell("end", {"ended": ended, "n_generated": n_generated, **outcome.as_data(verdicts=False)})
        return outcome

    def counts(self) -> dict[str, Counts]:
        """Returns where the activations of each point went."""
        return {slot.point.name: slot.counts for slot in self._slots.values()}

    def take_result(self, result: ProbeResult) -> None:
        """Takes a verdict, from any thread."""
        self._results.append(result)
        if self._router.sinks:
            self._router.tell("result", result.as_data())

    def take_failure(self, failure: Failure) -> None:
        """Takes note of a call that came to nothing, from any thread."""
        self._failures.append(failure)
        if self._router.sinks:
            self._router.tell("failure", failure.as_data())

    def stop(self, point: str, reason: str) -> None:
        """Has the generation stopped before its next token; the first to say so is named."""
        if self._abort is None:
            self._abort = Abort(point, reason)


def _judge(point: ExtractionPoint) -> None:
    """Refuses what an async point can't be, also where no parser has seen it."""
    if point.execution_mode is ExecutionMode.ASYNC:
        if point.probe_kind is ProbeKind.SINGLE_SHOT:
            raise ValueError(f"{point.name}: expected an inline point beside `single_shot`, got an async one")
        if point.intervention is not None and point.intervention.mode is not InterventionMode.REJECT:
            raise ValueError(f"{point.name}: expected `reject` at an async point, got `{point.intervention.mode}`")
    elif point.queue_depth is not None:
        raise ValueError(f"{point.name}: expected no `queue_depth` at an inline point, got {point.queue_depth}")


def _sum(many: Sequence[Counts]) -> Counts:
    total = Counts()
    for one in many:
        total.add(one)
    return total


def _as_data(record: ActivationRecord) -> dict[str, Any]:
    names = ("request", "point", "component", "layer", "position", "generated_index", "token_id")
    return {**{name: getattr(record, name) for name in names}, "activation": record.activation.float().tolist()}
