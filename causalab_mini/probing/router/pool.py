"""Threads that serve the queues of async points: a queue is served by one at a time, a few activations in turn. A thread that hangs is replaced."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from causalab_mini.probing.probes.base import ActivationRecord
    from causalab_mini.probing.router.slots import QueuedSlot

IN_TURN = 16
"""Activations of one queue that are worked off before another has its turn."""


class Pool:
    """Workers of all async points of a router; begun with the first activation.

    Args:
        n_workers: how many there are, those that hang not counted.
        limit_s: that a call may take.
    """

    def __init__(self, n_workers: int, limit_s: float) -> None:
        self._n, self.limit_s = n_workers, limit_s
        self._lock = threading.Lock()
        self._workers: list[_Worker] = []
        self._closed = threading.Event()
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
            self._workers = []

    def _begin(self) -> None:
        with self._lock:
            if self._workers or self._closed.is_set():
                return
            self._workers = [_Worker(self) for _ in range(self._n)]
            for worker in self._workers:
                worker.start()
            threading.Thread(target=self._watch, name="probe watch", daemon=True).start()

    def _watch(self) -> None:
        """Replaces workers whose call does not come back."""
        while not self._closed.wait(min(1.0, self.limit_s / 4)):
            self._replace(None)

    def give_up(self, slot: QueuedSlot) -> None:
        """Gives up the call of a slot that is under way, if there is one, without waiting for the limit."""
        self._replace(slot)

    def _replace(self, slot: QueuedSlot | None) -> None:
        """Has other threads in place of those that are at a call of a slot; None for those whose call has taken too long."""
        with self._lock:
            late = [worker for worker in self._workers if worker.gives_up(slot)]
            for worker in late:
                self._workers.remove(worker)
                self._workers.append(other := _Worker(self))
                other.start()
        for worker in late:
            worker.tell()


class _Worker(threading.Thread):
    """A thread that works queues off."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(name="probe worker", daemon=True)
        self._pool = pool
        self._lock = threading.Lock()
        self._now: tuple[QueuedSlot, str, ActivationRecord | None, float] | None = None
        self._is_given_up = False
        self._told = threading.Event()
        self._runner: asyncio.Runner | None = None

    def run(self) -> None:
        """Works until there is no more."""
        import torch

        with torch.inference_mode(False), torch.no_grad():
            while (slot := self._pool.ready.get()) is not None:
                if not self._serve(slot):
                    break
        if self._runner is not None:
            self._runner.close()

    def gives_up(self, slot: QueuedSlot | None) -> bool:
        """Returns whether the call under way is one of a slot, or, without one, has taken too long; it is given up then."""
        with self._lock:
            if self._now is None:
                return False
            if self._now[0] is not slot if slot is not None else time.monotonic() - self._now[3] < self._pool.limit_s:
                return False
            self._is_given_up = True
            return True

    def tell(self) -> None:
        """Tells the slot that its call was given up."""
        assert self._now is not None
        slot, call, record, since = self._now
        slot.hangs(call, record, time.monotonic() - since)
        self._told.set()

    def _serve(self, slot: QueuedSlot) -> bool:
        """Returns whether this thread goes on, having worked off some of a queue."""
        for _ in range(IN_TURN):
            made = slot.next_call()
            if made is None:
                return True
            name, record, work = made
            with self._lock:
                self._now = (slot, name, record, time.monotonic())
            value, error = None, None
            try:
                value = work()
                if inspect.isawaitable(value):
                    value = self._waited(value)
            except BaseException as raised:
                error = raised
            with self._lock:
                is_late = self._is_given_up
                if not is_late:
                    self._now = None
            if is_late:
                self._told.wait()
            slot.came_back(name, record, value, error, is_late)
            if is_late:
                return False
        self._pool.ready.put(slot)
        return True

    def _waited(self, value: Any) -> Any:
        """Returns what a coroutine comes to."""
        if self._runner is None:
            self._runner = asyncio.Runner()

        async def waited() -> Any:
            return await value

        return self._runner.run(waited())
