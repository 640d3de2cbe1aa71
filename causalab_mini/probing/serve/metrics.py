"""What `/metrics` says, in a registry of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from causalab_mini.probing.router.router import Router
    from causalab_mini.probing.serve.desk import Desk, Ticket

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Metrics:
    """Counts requests, tokens and what probes said."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        one = self.registry
        self._requests = Counter("causalab_requests", "Requests by route and status.", ("route", "status"), registry=one)
        self._open = Gauge("causalab_requests_open", "Requests that are not answered yet.", registry=one)
        self._seconds = Histogram(
            "causalab_request_seconds", "Time until a request was answered.", ("route",), registry=one, buckets=SECONDS
        )
        self._ended = Counter("causalab_generations", "Generations by what ended them.", ("ended",), registry=one)
        self._tokens = Counter("causalab_tokens", "Tokens, of prompts that were run and of generations.", ("kind",), registry=one)
        self._queue = Histogram("causalab_queue_seconds", "Time from the ask to the batch.", registry=one, buckets=SECONDS)
        self._token = Histogram("causalab_token_seconds", "Time in the batch, a token.", registry=one, buckets=SECONDS)
        self._verdicts = Counter("causalab_verdicts", "Verdicts by point and action.", ("point", "action"), registry=one)
        self._failures = Counter("causalab_probe_failures", "Calls of probes that came to nothing.", ("point", "what"), registry=one)
        self._aborts = Counter("causalab_aborts", "Generations that a point ended.", ("point",), registry=one)

    def watch(self, desk: Desk, router: Router | None) -> None:
        """Has the state of desk and router told whenever somebody asks."""
        self.registry.register(_State(desk, None if router is None else lambda: _counts(router)))

    def asked(self, n: int) -> None:
        """Notes how many requests are not answered yet."""
        self._open.set(n)

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Counts a request."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def ended(self, ticket: Ticket) -> None:
        """Counts a generation that is through."""
        done = ticket.done
        if done is None:
            return
        self._ended.labels(done.ended).inc()
        if ticket.joined_at is not None:
            self._queue.observe(ticket.joined_at - ticket.asked_at)
            self._tokens.labels("prompt").inc(ticket.wish.prompt.n_tokens)
            self._tokens.labels("generated").inc(len(done.ids))
            if done.ids and ticket.ended_at is not None:
                self._token.observe((ticket.ended_at - ticket.joined_at) / len(done.ids))
        if done.outcome is None:
            return
        for result in done.outcome.results:
            self._verdicts.labels(result.point, result.action.value).inc()
        for failure in done.outcome.failures:
            self._failures.labels(failure.point, failure.what).inc()
        if done.outcome.abort is not None:
            self._aborts.labels(done.outcome.abort.point).inc()

    def text(self) -> bytes:
        """Returns everything in Prometheus' text form."""
        return generate_latest(self.registry)


class _State(Collector):
    """What is true at the moment."""

    def __init__(self, desk: Desk, counts: Callable[[], Iterator[Metric]] | None) -> None:
        self._desk = desk
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """Yields the state of the desk, and the router's totals by point."""
        desk = self._desk
        for name, text, value in (
            ("causalab_queue_length", "Generations that wait.", desk.n_waiting),
            ("causalab_rows", "Generations in the batch.", desk.n_running),
            ("causalab_rows_at_most", "Generations that may be in the batch.", desk.n_rows_at_most),
            ("causalab_ending", "Generations whose probes are waited for.", desk.n_ending),
            ("causalab_open", "Whether requests are taken.", int(desk.is_open)),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        if self._counts is not None:
            yield from self._counts()


def _counts(router: Router) -> Iterator[Metric]:
    """Yields where the activations of each point went, and which probes are left alone."""
    fired = CounterMetricFamily("causalab_probe_fired", "Activations that a point took.", labels=("point",))
    received = CounterMetricFamily("causalab_probe_received", "Activations that a probe was called with.", labels=("point",))
    dropped = CounterMetricFamily("causalab_probe_dropped", "Activations that no probe was called with.", labels=("point", "reason"))
    for point, counts in router.counts().items():
        fired.add_metric((point,), counts.fired)
        received.add_metric((point,), counts.received)
        for reason, n in counts.dropped.items():
            dropped.add_metric((point, reason), n)
    left_alone = GaugeMetricFamily("causalab_probe_left_alone", "Whether a probe that kept failing is left alone.", labels=("point",))
    for point, breaker in router.breakers.items():
        left_alone.add_metric((point,), int(breaker.state != "closed"))
    yield from (fired, received, dropped, left_alone)
