"""The waiting room, and the one thread that decodes: who is taken in when, what becomes of each, and what is left after a failure.

Asks wait in order of arrival, and nobody is let past. Where the model's cache takes rows in between, those at the front join at the next
token boundary, as many as there are places; each boundary is at most one join and then a token for every row, so that neither those who
wait nor those who speak are held up by the others for longer than a forward. Where it does not, those at the front are run as a whole
batch, and the next one begins when its last row has ended: a wait of at most the batches before, each bounded by the time and the number
of tokens that a request may have. Knows nothing of HTTP.
"""

from __future__ import annotations

import gc
import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from causalab_mini.data.prompts import Prompt
from causalab_mini.engine.sizes import is_out_of_memory
from causalab_mini.errors import CausalabError, Problem, RunError
from causalab_mini.plan.spec import Decode
from causalab_mini.probing.run.rows import Ask

if TYPE_CHECKING:
    from causalab_mini.probing.router import Outcome, Router, Watch
    from causalab_mini.probing.run.stream import Stream

AS_THEY_COME = "joined as they come"
WHOLE_BATCHES = "whole batches"

log = logging.getLogger("causalab_mini.serve")


class Busy(Exception):  # noqa: N818 - an answer, not a mistake
    """The waiting room is full.

    Args:
        seconds: after which it is worth while to ask again.
    """

    def __init__(self, seconds: int) -> None:
        super().__init__(f"all places are taken; ask again in {seconds} s")
        self.seconds = seconds


class Closed(Exception):  # noqa: N818 - an answer, not a mistake
    """Nothing is taken any more."""


@dataclass(frozen=True, slots=True)
class Room:
    """How much there may be at once.

    Attributes:
        n_rows: that are decoded together.
        n_waiting: that may wait beside them.
        seconds: that a request may take, its wait included.
        n_join_tokens: of the prompts that join at one boundary, padding included; a longer prompt joins alone.
    """

    n_rows: int = 16
    n_waiting: int = 256
    seconds: float = 300.0
    n_join_tokens: int = 8192


ROOM = Room()


@dataclass(frozen=True, slots=True)
class Wish:
    """One generation that is asked for.

    Attributes:
        name: what the router and its sinks call it; no other has it.
        prompt: what the model goes on from.
        decode: how it speaks.
        draw: what its draws depend on beside the seed.
    """

    name: str
    prompt: Prompt
    decode: Decode
    draw: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a wish.

    Attributes:
        ids: that were said, a final stop token included.
        ended: `eos`, `stop`, `length`, `abort`, `cancelled`, `timeout`, `shutdown` or `error`.
        error: of a generation that failed.
        outcome: of its probes; None where it was not begun.
    """

    ids: tuple[int, ...]
    ended: str
    error: CausalabError | None = None
    outcome: Outcome | None = None


class Ticket:
    """A wish on its way. Any thread may read it.

    Attributes:
        said: ids so far; kept up while it runs only where somebody follows.
        done: what became of it; None until then.
        joined_at, ended_at: seconds of the desk's clock; None until then.
    """

    def __init__(self, desk: Desk, wish: Wish, number: int, asked_at: float, deadline: float, is_followed: bool) -> None:
        self.wish = wish
        self.number = number
        self.asked_at = asked_at
        self.deadline = deadline
        self.is_followed = is_followed
        self.joined_at: float | None = None
        self.ended_at: float | None = None
        self.said: tuple[int, ...] = ()
        self.done: Done | None = None
        self.leaves: str | None = None
        self.watch: Watch | None = None
        self._desk = desk
        self._listeners: list[Callable[[], None]] = []

    @property
    def has_begun(self) -> bool:
        """Whether it is, or was, among the rows."""
        return self.joined_at is not None

    def listen(self, call: Callable[[], None]) -> None:
        """Has something called whenever there is news, by whatever thread has them."""
        self._listeners.append(call)
        if self.done is not None:
            call()

    def leave(self, why: str = "cancelled") -> None:
        """Gives its place up: at once where it waits, at the next token boundary where it runs."""
        self._desk.leave(self, why)

    def tell(self) -> None:
        """Tells whoever listens that there is news."""
        for call in self._listeners:
            call()


class Desk:
    """Takes wishes and has them decoded.

    Args:
        make_stream: gives an empty stream; called again after a failure that leaves one in doubt.
        trial: is run once, to see whether the model's cache takes rows in between.
        router: whose watches see the activations; None where nobody watches.
        room: how much there may be at once.
        on_done: told of each ticket that is through, by the thread that ends it.
        clock: in seconds.
    """

    def __init__(
        self,
        make_stream: Callable[[], Stream],
        trial: Prompt,
        router: Router | None = None,
        room: Room = ROOM,
        *,
        on_done: Callable[[Ticket], None] = lambda ticket: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.room = room
        self.n_rows_at_most = room.n_rows
        self._make_stream = make_stream
        self._stream = make_stream()
        self._joins_in_between = _joins_in_between(self._stream, trial)
        self._router = router
        self._on_done = on_done
        self._clock = clock
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._waiting: deque[Ticket] = deque()
        self._running: dict[int, Ticket] = {}
        self._ending: set[int] = set()
        self._is_open = True
        self._is_over = False
        self._mean_seconds = 1.0
        self._enders = ThreadPoolExecutor(max_workers=room.n_rows, thread_name_prefix="causalab-end")
        self._thread = threading.Thread(target=self._work, name="causalab-decode", daemon=True)
        self._thread.start()

    @property
    def mode(self) -> str:
        """How requests share the model: `joined as they come`, or `whole batches`."""
        return AS_THEY_COME if self._joins_in_between else WHOLE_BATCHES

    @property
    def is_open(self) -> bool:
        """Whether wishes are taken."""
        return self._is_open

    @property
    def is_alive(self) -> bool:
        """Whether the thread that decodes is there."""
        return self._thread.is_alive()

    @property
    def n_waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @property
    def n_running(self) -> int:
        """How many are decoded."""
        return len(self._running)

    @property
    def n_ending(self) -> int:
        """How many have said all, and are waited for by their probes."""
        return len(self._ending)

    @property
    def n_places(self) -> int:
        """How many may wait or run at once."""
        return self.n_rows_at_most + self.room.n_waiting

    def ask(self, wishes: Sequence[Wish], *, is_followed: bool = False) -> tuple[Ticket, ...]:
        """Returns a ticket a wish, all of them or none.

        Args:
            wishes: that belong together; they wait side by side.
            is_followed: whether somebody wants to know what is said while it is said.

        Raises:
            Busy: there are not as many places.
            Closed: nothing is taken any more.
        """
        with self._changed:
            if not self._is_open:
                raise Closed
            if len(self._waiting) + len(self._running) + len(wishes) > self.n_places:
                seconds = self._mean_seconds * (len(self._waiting) + 1) / self.n_rows_at_most
                raise Busy(min(60, max(1, math.ceil(seconds))))
            now = self._clock()
            tickets = tuple(Ticket(self, wish, next(self._numbers), now, now + self.room.seconds, is_followed) for wish in wishes)
            self._waiting.extend(tickets)
            self._changed.notify_all()
        return tickets

    def leave(self, ticket: Ticket, why: str) -> None:
        """Lets a ticket go."""
        with self._changed:
            if ticket.done is not None or ticket.leaves is not None:
                return
            ticket.leaves = why
            is_waiting = ticket in self._waiting
            if is_waiting:
                self._waiting.remove(ticket)
        if is_waiting:
            self._finish(ticket, Done((), why))

    def stop_taking(self) -> None:
        """Takes no more; what is there goes on."""
        with self._changed:
            self._is_open = False
            self._changed.notify_all()

    def wait_until_idle(self, seconds: float) -> bool:
        """Waits until nobody waits, runs or ends; returns whether it came to that."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._waiting or self._running or self._ending), timeout=seconds)

    def end_all(self, why: str = "shutdown") -> None:
        """Has everyone leave at the next token boundary."""
        with self._changed:
            tickets = (*self._waiting, *self._running.values())
        for ticket in tickets:
            self.leave(ticket, why)

    def close(self, seconds: float = 10.0) -> None:
        """Ends whoever is there, and the thread with them; gives up on a forward that takes longer than some seconds."""
        self.stop_taking()
        self.end_all()
        self.wait_until_idle(seconds)
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._thread.join(seconds)
        self._enders.shutdown(wait=False, cancel_futures=True)

    # The thread that decodes

    def _work(self) -> None:
        try:
            while self._has_work():
                self._let_go()
                if joining := self._joining():
                    self._join(joining)
                if self._stream.n_rows:
                    self._step()
        except Exception:
            log.exception("the thread that decodes has failed; no more is taken")
            self.stop_taking()
            problem = RunError(Problem("", "a thread that decodes", "none any more", code="bug"))
            with self._changed:
                tickets = (*self._waiting, *self._running.values())
                self._waiting.clear()
                self._running.clear()
            for ticket in tickets:
                self._finish(ticket, Done((), "error", problem))

    def _has_work(self) -> bool:
        """Waits for some; returns whether there is any, or will be."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._running or self._is_over)
            return not self._is_over

    def _let_go(self) -> None:
        """Has rows leave whose time is over, or whom nobody waits for any more."""
        now = self._clock()
        with self._changed:
            late = [ticket for ticket in self._waiting if now > ticket.deadline]
            for ticket in late:
                self._waiting.remove(ticket)
            leaving = [ticket for ticket in self._running.values() if ticket.leaves is not None or now > ticket.deadline]
            for ticket in leaving:
                ticket.leaves = ticket.leaves or "timeout"
        for ticket in late:
            self._finish(ticket, Done((), "timeout"))
        for ticket in leaving:
            self._stream.cancel(ticket.number)
        if leaving:
            self._collect()

    def _joining(self) -> list[Ticket]:
        """Returns those at the front for whom there are places, now among the running."""
        found: list[Ticket] = []
        longest = 0
        with self._changed:
            if self._stream.n_rows and not self._stream.can_join:
                return found
            if len(self._ending) >= 2 * self.room.n_rows:  # probes are slower than the model: it waits for them
                self._changed.wait(0.05)
                return found
            while self._waiting and len(self._running) < self.n_rows_at_most:
                longest = max(longest, self._waiting[0].wish.prompt.n_tokens)
                if found and longest * (len(found) + 1) > self.room.n_join_tokens:
                    break
                ticket = self._waiting.popleft()
                ticket.joined_at = self._clock()
                self._running[ticket.number] = ticket
                found.append(ticket)
        return found

    def _join(self, joining: Sequence[Ticket]) -> None:
        """Takes rows in; where that fails before they are among the others, they alone fail."""
        asks, n_before = [], self._stream.n_rows
        for ticket in joining:
            wish = ticket.wish
            try:
                ticket.watch = None if self._router is None else self._router.open(wish.name, wish.prompt.n_tokens)
            except Exception as error:
                log.exception("the probes of a request could not be begun")
                problem = RunError(Problem("", "probes that can be begun", type(error).__name__, code="bug"))
                self._end(ticket.number, (), "error", problem)
                continue
            asks.append(Ask(number=ticket.number, prompt=wish.prompt, decode=wish.decode, watch=ticket.watch, draw=wish.draw))
        if not asks:
            return
        if failure := self._failure_of(lambda: self._stream.join(asks)):
            if self._stream.n_rows == n_before:
                self._fail([ticket for ticket in joining if ticket.number in self._running], failure)
            else:
                self._start_over(failure)
        self._collect()

    def _step(self) -> None:
        """Has every row say a token; where that fails, all of them do."""
        if failure := self._failure_of(self._stream.step):
            self._start_over(failure)
        self._collect()

    def _failure_of(self, work: Callable[[], None]) -> _Failure | None:
        """Does something with the stream; returns what came in between, and nothing of the frames, which hold what memory is to be had."""
        try:
            work()
        except Exception as error:
            n_rows = len(self._running)
            if is_out_of_memory(error):
                log.warning("memory ran out with %d rows", n_rows)
                hint = "ask again; fewer are run together now"
                return _Failure(RunError(Problem("", f"memory for {n_rows} rows together", "less", hint, "memory")), True)
            if isinstance(error, CausalabError):
                return _Failure(error.with_traceback(None), False)
            log.exception("a forward failed")
            return _Failure(RunError(Problem("", "a forward that can be run", type(error).__name__, code="bug")), False)
        return None

    def _start_over(self, failure: _Failure) -> None:
        """Fails every row, and goes on with a stream that has none."""
        self._stream = self._make_stream()
        self._fail(list(self._running.values()), failure)

    def _fail(self, tickets: Sequence[Ticket], failure: _Failure) -> None:
        if failure.is_memory:
            self.n_rows_at_most = max(1, min(self.n_rows_at_most, len(self._running)) // 2)
            _free_memory()
        for ticket in tickets:
            self._end(ticket.number, ticket.said, "error", failure.error)

    def _collect(self) -> None:
        """Passes on what rows have said, and those that are through."""
        for one in self._stream.take_ended():
            self._end(one.number, one.ids, one.ended, one.error)
        for ticket in list(self._running.values()):
            if ticket.is_followed:
                said = self._stream.said(ticket.number)
                if len(said) > len(ticket.said):
                    ticket.said = said
                    ticket.tell()

    def _end(self, number: int, ids: tuple[int, ...], ended: str, error: CausalabError | None) -> None:
        """Takes a row from the running, and has its probes ended elsewhere: they may take their time."""
        with self._changed:
            ticket = self._running.pop(number)
            self._ending.add(number)
            ticket.ended_at = self._clock()
            self._mean_seconds += 0.1 * (ticket.ended_at - (ticket.joined_at or ticket.asked_at) - self._mean_seconds)
        self._enders.submit(self._end_watch, ticket, Done(ids, ended, error))

    # The threads that end probes

    def _end_watch(self, ticket: Ticket, done: Done) -> None:
        try:
            if ticket.watch is not None:
                done = replace(done, outcome=ticket.watch.end(done.ended, len(done.ids)))
        except Exception as error:
            log.exception("the probes of a request could not be ended")
            problem = RunError(Problem("", "probes that can be ended", type(error).__name__, code="bug"))
            done = replace(done, ended="error", error=problem)
        ticket.watch = None
        if done.ended == "cancelled":
            done = replace(done, ended=ticket.leaves or done.ended)
        self._finish(ticket, done)

    def _finish(self, ticket: Ticket, done: Done) -> None:
        ticket.ended_at = ticket.ended_at or self._clock()
        ticket.done = done
        try:
            self._on_done(ticket)
        except Exception:
            log.exception("a request that is through could not be counted")
        ticket.tell()
        with self._changed:
            self._ending.discard(ticket.number)
            self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class _Failure:
    error: CausalabError
    is_memory: bool


def _joins_in_between(stream: Stream, trial: Prompt) -> bool:
    """Returns whether rows can join others, having tried with one."""
    stream.join([Ask(number=-1, prompt=trial, decode=Decode(max_new_tokens=2, ignore_eos=True))])
    can_join = stream.can_join
    while stream.n_rows:
        stream.step()
    stream.take_ended()
    return can_join


def _free_memory() -> None:
    """Gives back what the failed batch held."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
