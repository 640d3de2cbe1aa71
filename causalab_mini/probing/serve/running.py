"""A server from its first to its last request: binds, serves, drains when it is told to stop, and leaves."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from causalab_mini.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_TERMINATED, Problem, UsageError, quoted
from causalab_mini.probing.serve.gate import names_of

if TYPE_CHECKING:
    from fastapi import FastAPI

    from causalab_mini.probing.serve.desk import Desk

WRITING_SECONDS = 5.0
"""How long the last answers may take to be written."""
KEEP_ALIVE_SECONDS = 75
"""How long a connection may be without a request, half the head of one included: longer than clients keep one (httpx, and so `openai`, 5 s), lest both sides act at once."""
LETTING_GO_SECONDS = 10.0
"""How long rows may take to leave: a forward, and what their probes still have to say."""


def is_loopback(host: str) -> bool:
    """Returns whether a host can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def loopback_names(host: str) -> frozenset[str]:
    """Returns the names by which a server on a loopback host may be called."""
    return names_of({host, "localhost", "127.0.0.1", "::1"})


def bind(host: str, port: int) -> socket.socket:
    """Returns a socket at a place; it refuses connections until it is served.

    Args:
        host: name or address.
        port: 0 for one that is free.

    Raises:
        UsageError: there is no such place, or it is taken.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        found = socket.socket(family, socket.SOCK_STREAM)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
        except BaseException:
            found.close()
            raise
    except OSError as error:
        got = f"{quoted(f'{host}:{port}')} ({(error.strerror or str(error)).lower()})"
        raise UsageError(Problem("--host, --port", "a place to listen at", got, "`--port 0` takes a free one", "bind")) from None
    return found


def url_of(bound: socket.socket) -> str:
    """Returns where a socket can be reached."""
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class Server:
    """Serves until it is told to stop.

    Attributes:
        url: where it can be reached.
        is_ready: whether it takes requests.

    Args:
        app: the routes.
        desk: that decodes; its thread is ended with the server.
        bound: the socket.
        drain_seconds: that running generations have to finish once it is told to stop.
    """

    def __init__(self, app: FastAPI, desk: Desk, bound: socket.socket, drain_seconds: float = 30.0) -> None:
        self.desk = desk
        self.bound = bound
        self.url = url_of(bound)
        self.drain_seconds = drain_seconds
        self.is_ready = threading.Event()
        config = uvicorn.Config(
            app,
            http=_Impatient,
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            log_level="error",  # what clients get wrong is answered, and would fill a screen
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=int(WRITING_SECONDS),
        )
        self._inner = _Inner(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told: asyncio.Event | None = None
        self._signals: list[int] = []

    def run(self, on_ready: Callable[[], None] = lambda: None) -> int:
        """Serves; returns the exit code: 0 once it is drained, 130 or 143 where a second signal cut that short."""
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(self._serve(on_ready))
        self.desk.close(LETTING_GO_SECONDS)
        if len(self._signals) < 2:
            return EXIT_OK
        return EXIT_TERMINATED if self._signals[1] == signal.SIGTERM else EXIT_INTERRUPTED

    def stop(self) -> None:
        """Tells it to stop, from any thread: nothing more is taken, what runs may finish."""
        self.desk.stop_taking()
        if self._loop is not None and self._told is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it has stopped
                self._loop.call_soon_threadsafe(self._told.set)

    async def _serve(self, on_ready: Callable[[], None]) -> None:
        self._loop, self._told = asyncio.get_running_loop(), asyncio.Event()
        with self._catching():
            serving = asyncio.create_task(self._inner.serve(sockets=[self.bound]))
            while not self._inner.started and not serving.done():
                await asyncio.sleep(0.01)
            self.is_ready.set()
            on_ready()
            telling = asyncio.create_task(self._told.wait())
            await asyncio.wait({serving, telling}, return_when=asyncio.FIRST_COMPLETED)
            telling.cancel()
            self.desk.stop_taking()
            if not await asyncio.to_thread(self.desk.wait_until_idle, self.drain_seconds):
                self.desk.end_all()
                await asyncio.to_thread(self.desk.wait_until_idle, LETTING_GO_SECONDS)
            self._inner.should_exit = True
            await serving

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._obey)

    def _obey(self) -> None:
        """Drains at the first signal, ends what is left at the second."""
        if len(self._signals) < 2:
            self.stop()
        else:
            self.desk.end_all()

    @contextlib.contextmanager
    def _catching(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._signalled) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Impatient(H11Protocol):
    """uvicorn's way with a connection, which would wait for the head of a request for ever."""

    _ends: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait for the first request."""
        super().connection_made(transport)
        self._wait(self.cycle)

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits no more."""
        super().connection_lost(exc)
        if self._ends is not None:
            self._ends.cancel()

    def on_response_complete(self) -> None:
        """Waits for the next request, unless it is there already."""
        answered = self.cycle
        super().on_response_complete()
        self._wait(answered)

    def _wait(self, answered: RequestResponseCycle) -> None:
        if self._ends is not None:
            self._ends.cancel()
        self._ends = self.loop.call_later(KEEP_ALIVE_SECONDS, self._end, answered)

    def _end(self, answered: RequestResponseCycle) -> None:
        """Closes, where no request has come since."""
        if self.cycle is answered:
            self.transport.close()


class _Inner(uvicorn.Server):
    """uvicorn, without its own way with signals: it would close the door before those inside have been served."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals alone."""
        yield
