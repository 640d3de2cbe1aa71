"""Threads that serve the queues of async points: a queue is served by one at a time, a few activations in turn. A thread that hangs is replaced."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Coroutine
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from causalab_mini.probing.router.calls import wait_for

if TYPE_CHECKING:
    from concurrent.futures import Future

    from causalab_mini.probing.router.queued import QueuedSlot

IN_TURN = 16
"""Activations of one queue that are worked off before another has its turn."""
STUCK_S = 0.05
"""Seconds that all workers may be at one call each while queues wait; then there is one more."""
MOST = 64
"""Workers at once, those that hang not counted."""


class Pool:
    """Workers of all async points of a router; begun with the first activation.

    Args:
        n_workers: how many there are to begin with; there are more while all of them are held up.
        limit_s: that a call may take.
    """

    def __init__(self, n_workers: int, limit_s: float) -> None:
        self._n, self.limit_s = n_workers, limit_s
        self._lock = threading.Lock()
        self._workers: list[_Worker] = []
        self._watching: threading.Thread | None = None
        self._closed = threading.Event()
        self.loops = Loops()
        self.ready: SimpleQueue[QueuedSlot | None] = SimpleQueue()

    def put(self, slot: QueuedSlot) -> None:
        """Has a slot seen to, behind those that wait already."""
        if not self._workers:
            self._begin()
        self.ready.put(slot)

    def close(self) -> None:
        """Ends the threads, once they have worked off what waits."""
        self._closed.set()
        with self._lock:
            for _ in self._workers:
                self.ready.put(None)
            threads = [*self._workers, *([] if self._watching is None else [self._watching])]
            self._workers = []
        wait_for([*threads, *self.loops.close()])

    def give_up(self, slot: QueuedSlot) -> None:
        """Gives up the call of a slot that is under way, if there is one, without waiting for the limit."""
        self._replace(slot)

    def _begin(self) -> None:
        with self._lock:
            if self._workers or self._closed.is_set():
                return
            for _ in range(self._n):
                self._add()
            self._watching = threading.Thread(target=self._watch, name="probe watch", daemon=True)
            self._watching.start()

    def _add(self) -> None:
        worker = _Worker(self)
        self._workers.append(worker)
        worker.start()

    def _watch(self) -> None:
        """Replaces workers whose call does not come back, and adds one where queues wait behind slow calls."""
        while not self._closed.wait(min(STUCK_S, self.limit_s / 4)):
            self._replace(None)
            with self._lock:
                if not self.ready.empty() and len(self._workers) < MOST and all(worker.is_held_up() for worker in self._workers):
                    self._add()

    def _replace(self, slot: QueuedSlot | None) -> None:
        """Has other threads in place of those that are at a call of a slot; None for those whose call has taken too long."""
        with self._lock:
            late = [worker for worker in self._workers if worker.gives_up(slot)]
            for worker in late:
                self._workers.remove(worker)
                self._add()
        for worker in late:
            worker.tell()


class _Worker(threading.Thread):
    """A thread that works queues off."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(name="probe worker", daemon=True)
        self._pool = pool
        self._lock = threading.Lock()
        self._now: tuple[QueuedSlot, float] | None = None
        self._is_given_up = False
        self._told = threading.Event()
        self._future: Future[Any] | None = None

    def run(self) -> None:
        """Works until there is no more."""
        import torch

        with torch.inference_mode(False), torch.no_grad():
            while (slot := self._pool.ready.get()) is not None:
                goes_on = self._serve(slot)
                slot = None  # with the tensors that its probe may keep
                if not goes_on:
                    break

    def is_held_up(self) -> bool:
        """Returns whether the call under way has taken longer than others should wait."""
        with self._lock:
            return self._now is not None and time.monotonic() - self._now[1] > STUCK_S

    def gives_up(self, slot: QueuedSlot | None) -> bool:
        """Returns whether the call under way is one of a slot, or, without one, has taken too long; it is given up then."""
        with self._lock:
            if self._now is None:
                return False
            if self._now[0] is not slot if slot is not None else time.monotonic() - self._now[1] < self._pool.limit_s:
                return False
            self._is_given_up = True
            return True

    def tell(self) -> None:
        """Tells the slot that its call was given up; a coroutine is cancelled."""
        assert self._now is not None
        slot, since = self._now
        slot.hangs(time.monotonic() - since)
        self._told.set()
        if (future := self._future) is not None:
            future.cancel()
            self._pool.loops.replace_if_held_up(slot.point.name)

    def _begins(self, slot: QueuedSlot) -> None:
        with self._lock:
            self._now = (slot, time.monotonic())

    def _serve(self, slot: QueuedSlot) -> bool:
        """Returns whether this thread goes on, having worked off some of a queue."""
        for _ in range(IN_TURN):
            call = slot.next_call(partial(self._begins, slot))
            if call is None:
                return True
            value, error = None, None
            try:
                value = call.work()
                if inspect.isawaitable(value):
                    value = self._waited(slot.point.name, value)
            except BaseException as raised:
                error = raised
            with self._lock:
                is_late = self._is_given_up
                if not is_late:
                    self._now = None
            if is_late:
                self._told.wait()
            slot.came_back(call, value, error, is_late)
            if is_late:
                return False
        self._pool.ready.put(slot)
        return True

    def _waited(self, point: str, value: Any) -> Any:
        """Returns what a coroutine comes to."""

        async def waited() -> Any:
            return await value

        self._future = self._pool.loops.run(point, waited())
        try:
            return self._future.result()
        finally:
            self._future = None


class Loops:
    """Event loops of points whose probes are coroutines: one a point, on a thread of its own, for all requests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loops: dict[str, asyncio.AbstractEventLoop] = {}
        self._threads: list[threading.Thread] = []

    def run(self, point: str, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Returns a coroutine on its way in the loop of a point."""
        with self._lock:
            loop = self._loops.get(point)
            if loop is None:
                loop = self._loops[point] = asyncio.new_event_loop()
                thread = threading.Thread(target=_run, args=(loop,), name="probe loop", daemon=True)
                self._threads = [*(one for one in self._threads if one.is_alive()), thread]
                thread.start()
            return asyncio.run_coroutine_threadsafe(coroutine, loop)

    def replace_if_held_up(self, point: str) -> None:
        """Lets go of a loop that does not answer: the next coroutine has another."""
        with self._lock:
            loop = self._loops.get(point)
        if loop is None:
            return
        answered = threading.Event()
        loop.call_soon_threadsafe(answered.set)
        if not answered.wait(STUCK_S):
            self._drop(point, loop)

    def close(self) -> list[threading.Thread]:
        """Lets go of all loops, and returns their threads."""
        with self._lock:
            loops, threads = list(self._loops.items()), self._threads
        for point, loop in loops:
            self._drop(point, loop)
        return threads

    def _drop(self, point: str, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            if self._loops.get(point) is loop:
                del self._loops[point]
        loop.call_soon_threadsafe(_stop, loop)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    """Stops a loop once nothing is on its way in it."""
    if asyncio.all_tasks(loop):
        loop.call_later(STUCK_S, _stop, loop)
    else:
        loop.stop()
