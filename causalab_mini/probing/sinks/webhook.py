"""Events posted to a URL; what can't be delivered goes to a file of dead letters. Nothing is lost between the two."""

from __future__ import annotations

import atexit
import contextlib
import random
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from causalab_mini.errors import Problem, UsageError
from causalab_mini.probing.sinks import forks
from causalab_mini.probing.sinks.endpoint import IDEMPOTENCY_KEY, Endpoint, imported_httpx
from causalab_mini.probing.sinks.lines import json_line
from causalab_mini.probing.sinks.ndjson import NdjsonSink

if TYPE_CHECKING:
    import httpx

MAX_QUEUE_BYTES = 64 * 2**20
"""Of events that wait, as JSON."""
MAX_BATCH_BYTES = 2**20
"""Of a batch of more than one event."""
MAX_BACKOFF_S = 60.0
MAX_RETRY_AFTER_S = 300.0
"""The longest wait that a server may ask for, seconds."""
MAX_ANSWER_BYTES = 2**16
"""Of an answer that are read, so that the connection can be used again."""
AT_EXIT_S = 5.0
"""How long a sink that nobody closed delivers when the interpreter ends, seconds."""


@dataclass(slots=True)
class _Batch:
    """Events on their way: `tries` so far, and what came of the last one."""

    events: tuple[bytes, ...]
    key: str = field(default_factory=lambda: str(uuid.uuid4()))
    tries: int = 0
    answer: _Answer | None = None


@dataclass(frozen=True, slots=True)
class _Answer:
    """What came of a try: a status or an error; `wait_s`: how long the server asked to be left alone."""

    status: int | None = None
    error: str = ""
    wait_s: float = 0.0
    may_retry: bool = False

    @property
    def is_delivered(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


class WebhookSink:
    """Posts events to a URL from a thread of its own, as `{"events": […]}`: in order, up to `batch` at a time, at once when one is there.

    Only a 2xx answer is a delivery. Connection errors, timeouts, 429 and 5xx are tried again, after `backoff_s`, twice that, and so on, each
    times a random factor between 0.5 and 1.5, or after what `Retry-After` asks for where that is longer; nothing else is. All tries of a
    batch have the same `Idempotency-Key`.

    Every event that was put ends in exactly one place: delivered, or a line of the dead letters, `{"time", "url", "idempotency_key", "tries",
    "status", "error", "event"}`. There go batches that could not be delivered, events that a full queue could not take or that are no JSON
    data (`"event": null`), and what is left when `close` has to end. A request under way at that moment may arrive all the same, so a dead
    letter is no proof that the receiver lacks the event; the key tells.

    Path and query of the URL, and what headers hold, are in no repr, error, log or dead letter. The environment's proxies are used, save for
    this machine. A sink belongs to the process
    that made it; one that is forked from it has only the dead letters, and one that is killed loses what waits.

    Args:
        url: http or https, without user and password.
        dead_letters: a file; it grows without limit. None of its lines is ever deleted.
        token: sent as `Authorization: Bearer …`.
        headers: further ones.
        batch: the most events in a request.
        queue: the most events that wait.
        timeout_s: for a connection, and for each part of a request and an answer, seconds.
        n_tries: of a batch, the first included.
        backoff_s: before the second try, seconds.
        wants_activations: whether activations are posted too.

    Attributes:
        n_put, n_delivered, n_dead: events.
        n_lost: events that could not even be written to the dead letters (`n_put == n_delivered + n_dead + n_lost` after `close`).
        n_retries: tries after a first one.
        error: what went wrong last; empty where nothing did.

    Raises:
        UsageError: httpx is missing, the dead letters can't be written, or an argument is wrong.
    """

    def __init__(
        self,
        url: str,
        dead_letters: str | Path,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        batch: int = 64,
        queue: int = 10_000,
        timeout_s: float = 10.0,
        n_tries: int = 5,
        backoff_s: float = 0.5,
        wants_activations: bool = False,
    ) -> None:
        _verify(batch=(batch, 1), queue=(queue, 1), n_tries=(n_tries, 1), timeout_s=(timeout_s, 1e-3), backoff_s=(backoff_s, 0))
        self._endpoint = Endpoint.of(url, token, headers)
        self._client = self._endpoint.client()
        try:
            self._dead_letters = NdjsonSink(dead_letters)
        except UsageError as error:
            self._client.close()
            raise UsageError(replace(problem, path="dead_letters") for problem in error.problems) from None
        self.batch, self.queue, self.timeout_s, self.n_tries, self.backoff_s = batch, queue, timeout_s, n_tries, backoff_s
        self.wants_activations = wants_activations
        self.n_put = self.n_delivered = self.n_dead = self.n_lost = self.n_retries = 0
        self.error = ""
        self._waiting: deque[bytes] = deque()
        self._n_waiting_bytes = 0
        self._current: _Batch | None = None
        self._changed = threading.Condition()  # its lock guards counters, what waits, and what is under way
        self._burying = threading.Lock()  # held from the taking of what failed until it is written, so that `close` waits for it
        self._is_closing = threading.Event()
        self._deadline = float("inf")
        self._random = random.Random()
        self._is_inherited = False
        self._thread = threading.Thread(target=self._run, name="causalab-mini-webhook", daemon=True)
        self._thread.start()
        forks.register(self)
        atexit.register(self.close, AT_EXIT_S)

    def put(self, event: Mapping[str, Any]) -> None:
        """Queues an event; one that can't be queued is a dead letter at once."""
        try:
            line, error = json_line(event), ""
        except Exception:  # no JSON data, or it fails when it is looked at
            line, error = b"null", "no JSON data"
        with self._changed:
            self.n_put += 1
            if not error and self._is_closing.is_set():
                error = "closed"
            elif not error and self._is_inherited:
                error = "put by another process"
            elif not error and (len(self._waiting) >= self.queue or self._n_waiting_bytes + len(line) > MAX_QUEUE_BYTES):
                error = "queue full"
            if not error:
                self._waiting.append(line)
                self._n_waiting_bytes += len(line)
                self._changed.notify()
        if error:
            self._bury([line], error)

    def close(self, timeout_s: float = 10.0) -> None:
        """Delivers what waits, within a limit; what is left then is written to the dead letters, which takes a moment more."""
        if self._is_inherited:
            return
        deadline = time.monotonic() + max(timeout_s, 0.0)
        with self._changed:
            self._deadline = min(self._deadline, deadline)
            self._is_closing.set()
            self._changed.notify_all()
        try:
            self._thread.join(max(deadline - time.monotonic(), 0.0))
        finally:
            self._bury_the_rest()
            self._dead_letters.close()
            atexit.unregister(self.close)

    def as_data(self) -> dict[str, Any]:
        """Returns kind, address and counters as JSON data; `n_waiting` are queued or under way."""
        with self._changed:
            fates = {name: getattr(self, name) for name in ("n_delivered", "n_dead", "n_lost")}
            counters = {"n_put": self.n_put, **fates, "n_waiting": self.n_put - sum(fates.values()), "n_retries": self.n_retries}
            error = self.error
        data = {"kind": "webhook", "url": self._endpoint.said, **counters, "dead_letters": self._dead_letters.as_data()}
        return data | ({"error": error} if error else {})

    def start_anew(self) -> None:
        """Leaves what waits to the process that made the sink; in a forked one, every event is a dead letter."""
        self._changed, self._burying, self._is_closing = threading.Condition(), threading.Lock(), threading.Event()
        self._waiting.clear()
        self._n_waiting_bytes, self._current, self._is_inherited = 0, None, True
        self.n_put = self.n_delivered = self.n_dead = self.n_lost = self.n_retries = 0

    def __repr__(self) -> str:
        return f"WebhookSink({self._endpoint.said!r})"

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            if not self._deliver(batch):
                self._give_up(batch)
        with contextlib.suppress(Exception):
            self._client.close()

    def _next(self) -> _Batch | None:
        """Returns what is to be delivered next, once there is something; None once there never will be, or no time is left."""
        with self._changed:
            while not self._waiting and not self._is_closing.is_set():
                self._changed.wait()
            if not self._waiting or time.monotonic() >= self._deadline:
                return None
            events: list[bytes] = []
            n_bytes = 0
            while self._waiting and len(events) < self.batch and (not events or n_bytes + len(self._waiting[0]) <= MAX_BATCH_BYTES):
                events.append(self._waiting.popleft())
                n_bytes += len(events[-1])
            self._n_waiting_bytes -= n_bytes
            self._current = _Batch(tuple(events))
            return self._current

    def _deliver(self, batch: _Batch) -> bool:
        """Tries to deliver a batch until it is delivered, or can't be, or is another's."""
        body = b'{"events":[' + b",".join(batch.events) + b"]}"
        while True:
            with self._changed:
                limit = min(self.timeout_s, self._deadline - time.monotonic())
                if self._current is not batch or limit <= 0:
                    return False
                batch.tries += 1
                self.n_retries += batch.tries > 1
            answer = self._post(body, batch.key, limit)
            with self._changed:
                if self._current is not batch:
                    return False
                batch.answer = answer
                if answer.is_delivered:
                    self._current = None
                    self.n_delivered += len(batch.events)
                    return True
                self.error = answer.error
            if not answer.may_retry or batch.tries >= self.n_tries or not self._pause(max(answer.wait_s, self._backoff(batch.tries))):
                return False

    def _post(self, body: bytes, key: str, limit_s: float) -> _Answer:
        httpx = imported_httpx()
        headers = {"Content-Type": "application/json", IDEMPOTENCY_KEY: key}
        answer = None
        try:
            # The target goes beside the URL, not in it: httpx logs every URL.
            extensions = {"target": self._endpoint.target}
            stream = self._client.stream(
                "POST", self._endpoint.origin, content=body, headers=headers, timeout=limit_s, extensions=extensions
            )
            with stream as response:
                answer = _answer(response)
                n_bytes = 0
                for chunk in response.iter_raw():
                    n_bytes += len(chunk)
                    if n_bytes > MAX_ANSWER_BYTES:
                        break
        except Exception as error:  # whatever it is, the thread lives on, and an answer that had come by then stands
            text = self._endpoint.scrub(f"{type(error).__name__}: {error}".removesuffix(": "))
            answer = answer or _Answer(error=text, may_retry=isinstance(error, httpx.TransportError))
        return answer

    def _backoff(self, tries: int) -> float:
        return min(self.backoff_s * 2.0 ** min(tries - 1, 30), MAX_BACKOFF_S) * self._random.uniform(0.5, 1.5)

    def _pause(self, seconds: float) -> bool:
        """Waits, and returns whether it could: not where closing leaves no time for it."""
        until = time.monotonic() + seconds
        self._is_closing.wait(seconds)
        if until > self._deadline:
            return False
        time.sleep(max(until - time.monotonic(), 0.0))
        return True

    def _give_up(self, batch: _Batch) -> None:
        with self._burying:
            with self._changed:
                if self._current is not batch:
                    return
                self._current = None
            error = batch.answer.error if batch.answer else "closed"
            if self._is_closing.is_set() and batch.answer and batch.answer.may_retry and batch.tries < self.n_tries:
                error = f"closed; {error}"
            self._bury(batch.events, error, batch)

    def _bury_the_rest(self) -> None:
        with self._burying:
            with self._changed:
                batch, self._current = self._current, None
                waiting = list(self._waiting)
                self._waiting.clear()
                self._n_waiting_bytes = 0
            if batch is not None:
                self._bury(batch.events, f"closed; {batch.answer.error}" if batch.answer else "closed", batch)
            self._bury(waiting, "closed")

    def _bury(self, events: Sequence[bytes], error: str, batch: _Batch | None = None) -> None:
        """Writes events to the dead letters, and counts them."""
        n_dead = 0
        for event in events:
            letter = {
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "url": self._endpoint.said,
                "idempotency_key": batch.key if batch else None,
                "tries": batch.tries if batch else 0,
                "status": batch.answer.status if batch and batch.answer else None,
                "error": error,
            }
            n_dead += self._dead_letters.write_line(json_line(letter)[:-1] + b',"event":' + event + b"}")
        with self._changed:
            self.n_dead += n_dead
            self.n_lost += len(events) - n_dead
            if events:
                self.error = error


def _answer(response: httpx.Response) -> _Answer:
    status = response.status_code
    if 200 <= status < 300:
        return _Answer(status)
    if status != 429 and status < 500:
        return _Answer(status, f"HTTP {status}")
    return _Answer(status, f"HTTP {status}", _seconds_of(response.headers.get("Retry-After", "")), may_retry=True)


def _seconds_of(retry_after: str) -> float:
    """Returns how long a `Retry-After` asks for, given in seconds or as a date; 0 where it says nothing that can be read."""
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        seconds = float(text[:9])
    else:
        try:
            at = parsedate_to_datetime(text)
            seconds = (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError, OverflowError):
            return 0.0
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_S)


def _verify(**arguments: tuple[float, float]) -> None:
    problems = [
        Problem(name, f"a number from {least:g}", f"`{value}`", code="sink")
        for name, (value, least) in arguments.items()
        if not least <= value < float("inf")
    ]
    if problems:
        raise UsageError(problems)
