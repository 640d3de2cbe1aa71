"""Events in a file, one line each. The file is shared: by threads, by sinks and by processes."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from causalab_mini.errors import Problem, UsageError, quoted
from causalab_mini.probing.sinks import forks
from causalab_mini.probing.sinks.lines import NO_JSON, json_line

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

N_REOPENED = 1000
"""How often in a row a file may have been rotated away before its turn came; more than that is a file system without inodes."""


class NdjsonSink:
    """Appends each event to a file as a line of JSON.

    Every line is one write at the end of the file, made while the file itself is locked (`flock`; no lock file is left behind). Whoever
    has the lock of the file that the path names may append to it, mend it or rotate it; who had to wait looks whether the path still names
    that file. So no line is lost, torn or split by threads or by processes that write to one path, as long as all of them are sinks.

    - A line that does not fit on the disk is taken back whole, and counted.
    - A line that a killed process left half written gets its end before the next one: it is one bad line, and no good one.
    - A file that a line would bring over `max_bytes` becomes `name.1.ndjson` first, that one `name.2.ndjson`, up to `keep`; the oldest is
      deleted. A line longer than `max_bytes` has a file of its own. Where a file can't be renamed, it grows on.
    - NaN and infinities, which JSON lacks, are written as null.

    Lines outlive the process; they are not flushed to disk, so the last ones may not outlive the machine.

    Args:
        path: of the file; it is made if need be, its folder is not.
        max_bytes: of a file; None lets it grow, and nothing is ever deleted.
        keep: how many older files there may be beside it.
        wants_activations: whether activations are written too.

    Attributes:
        n_written: events that stand in a file, put by this process.
        n_failed: events that do not.
        error: what went wrong last; empty where nothing did.

    Raises:
        UsageError: the file can't be opened to read and append, or an argument is out of range.
    """

    def __init__(self, path: str | Path, max_bytes: int | None = None, keep: int = 5, *, wants_activations: bool = False) -> None:
        _at_least_one("max_bytes", max_bytes)
        _at_least_one("keep", keep)
        if fcntl is None:
            raise UsageError(Problem("path", "a system that can lock files", f"`{os.name}`", code="sink"))
        self.path = Path(os.path.abspath(path))  # noqa: PTH100 - as it was given, links and all, wherever the process goes
        self.max_bytes, self.keep, self.wants_activations = max_bytes, keep, wants_activations
        self.n_written, self.n_failed, self.error = 0, 0, ""
        self._lock = threading.Lock()
        self._handle: int | None = None
        self._is_closed = False
        try:
            self._hold()
            self._free()
        except OSError as error:
            self._let_go()
            hint = "" if self.path.parent.is_dir() else f"make the folder {quoted(self.path.parent)} first"
            got = f"{quoted(path)} ({_said(error)})"
            raise UsageError(Problem("path", "a file that can be appended to", got, hint, "sink")) from None
        forks.register(self)

    def put(self, event: Mapping[str, Any]) -> None:
        """Writes an event. One that comes after `close` is written too: the file is opened for it alone."""
        self.write(event)

    def write(self, event: Mapping[str, Any]) -> bool:
        """Writes an event, and returns whether it stands in the file; never raises."""
        try:
            line = json_line(event)
        except NO_JSON as error:
            return self._count(f"no JSON data: {_said(error)}")
        except Exception as error:  # an event that fails when it is looked at
            return self._count(_said(error))
        return self.write_line(line)

    def write_line(self, line: bytes) -> bool:
        """Writes a line that is JSON already, without its end, and returns whether it stands in the file; never raises."""
        with self._lock:
            try:
                self._append(line + b"\n")
            except Exception as error:
                self.n_failed += 1
                self.error = _said(error)
                return False
            finally:
                if self._is_closed:
                    self._let_go()
            self.n_written += 1
            return True

    def close(self, timeout_s: float = 5.0) -> None:
        """Lets go of the file; nothing waits. A write that hangs for longer than the limit lets go of it itself."""
        self._is_closed = True
        if self._lock.acquire(timeout=max(timeout_s, 0.0)):
            try:
                self._let_go()
            finally:
                self._lock.release()

    def as_data(self) -> dict[str, Any]:
        """Returns kind, path and counters as JSON data."""
        data = {"kind": "ndjson", "path": str(self.path), "n_written": self.n_written, "n_failed": self.n_failed}
        return data | ({"error": self.error} if self.error else {})

    def start_anew(self) -> None:
        """Opens the file for a forked process itself: with its parent's handle it would share its parent's lock."""
        self._lock = threading.Lock()
        self._let_go()
        self.n_written, self.n_failed, self.error = 0, 0, ""

    def __repr__(self) -> str:
        return f"NdjsonSink({str(self.path)!r})"

    def _count(self, error: str) -> bool:
        with self._lock:
            self.n_failed += 1
            self.error = error
        return False

    def _append(self, line: bytes) -> None:
        while True:
            handle, size = self._hold()
            try:
                is_torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
                n_bytes = is_torn + len(line)
                if self.max_bytes is None or size == 0 or size + n_bytes <= self.max_bytes or not self._rotate(handle, is_torn):
                    _write_whole(handle, b"\n" * is_torn + line, size)
                    return
            finally:
                self._free()

    def _hold(self) -> tuple[int, int]:
        """Locks the file that the path names now, and returns its handle and its size."""
        for _ in range(N_REOPENED):
            handle = self._handle
            if handle is None:
                handle = self._handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            fcntl.flock(handle, fcntl.LOCK_EX)
            try:
                here = os.fstat(handle)
                if not stat.S_ISREG(here.st_mode):
                    raise OSError(errno.EINVAL, "no regular file")
                if _is_at(self.path, here):
                    return handle, here.st_size
            except BaseException:
                self._free()
                raise
            self._free()
            self._let_go()
        raise OSError(errno.ESTALE, "the path never names the file that was opened")

    def _free(self) -> None:
        """Unlocks the file. Closing alone would not, where a forked process still has the handle."""
        if self._handle is not None:
            fcntl.flock(self._handle, fcntl.LOCK_UN)

    def _let_go(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def _rotate(self, handle: int, is_torn: bool) -> bool:
        """Renames the file that is held, and the older ones before it; returns whether it could."""
        try:
            if is_torn:
                os.write(handle, b"\n")
            files = [self.path, *(self.path.with_name(f"{self.path.stem}.{n}{self.path.suffix}") for n in range(1, self.keep + 1))]
            last = next((n for n in range(1, self.keep) if not os.path.lexists(files[n])), self.keep)
            for n in range(last, 0, -1):
                files[n - 1].replace(files[n])
        except OSError as error:
            self.error = f"can't be rotated: {_said(error)}"
            return False
        return True


def _is_at(path: Path, file: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), file)
    except FileNotFoundError:
        return False


def _write_whole(handle: int, data: bytes, size: int) -> None:
    """Appends to a file that is held, all or nothing.

    Args:
        handle: of the file.
        data: what is appended.
        size: of the file before, bytes.

    Raises:
        OSError: nothing was appended.
    """
    try:
        n_bytes = os.write(handle, data)
    except OSError:
        if os.fstat(handle).st_size > size:
            os.ftruncate(handle, size)
        raise
    if n_bytes < len(data):
        os.ftruncate(handle, size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _said(error: BaseException) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
    return text[:1].lower() + text[1:]


def _at_least_one(name: str, number: int | None) -> None:
    if number is not None and number < 1:
        raise UsageError(Problem(name, "at least 1", f"`{number}`", code="sink"))
