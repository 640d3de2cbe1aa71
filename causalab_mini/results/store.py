"""The folder of a run: opened only where nothing else lives, by one run at a time, and written so that a file is there whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from causalab_mini.data.opening import is_inside, open_file, read_file
from causalab_mini.errors import Problem, UsageError, WriteError, quoted

if TYPE_CHECKING:
    from filelock import BaseFileLock

RECORD, DOCUMENT, SUMMARY, POINTS = "run.json", "document.json", "summary.json", "points.json"
CHECKPOINTS = "checkpoints"
"""The folder of what fits have been at their best."""
FINISHED = ".points"
"""The folder of what is known of finished points, a file each."""
EARLIER = "earlier"
"""The folder that results are moved to which a run does not stand for."""
LOCK = ".lock"
OWN = "an empty folder, or one of this experiment"

_PART = re.compile(r"\..*\.[a-z0-9_]{8}\.part")
"""What `tempfile` makes of a file's name."""
_WAIT_S = 0.2


class RunFolder:
    """A folder that belongs to one experiment, and to one run at a time; a context that gives it free again.

    Attributes:
        path: of the folder, as it was given.
        written: files, in the order in which they were first written.
    """

    def __init__(self, path: Path, lock: BaseFileLock) -> None:
        self.path = path
        self.lock = lock
        self.written: list[Path] = []

    @classmethod
    def open(
        cls,
        path: Path,
        digest: str | None = None,
        *,
        wait: bool = False,
        on_waiting: Callable[[str], None] = lambda who: None,
    ) -> Self:
        """Returns the folder, made if need be, which no other run has then.

        Args:
            path: of the folder.
            digest: of the only experiment that it may be of; None for that of any document.
            wait: whether another run's end is waited for.
            on_waiting: told who has the folder, before that.

        Raises:
            UsageError: it is no folder, it holds something else, or another run has it.
            WriteError: it can't be made or written.
        """
        from filelock import FileLock, Timeout

        try:
            if path.exists() and not path.is_dir():
                raise UsageError(Problem("--out", "a folder", f"the file {quoted(path)}", code="out"))
            if os.path.lexists(path / LOCK) and ((path / LOCK).is_symlink() or not (path / LOCK).is_file()):
                got = f"{quoted(path)}, where it is none"
                raise UsageError(Problem("--out", f"a folder whose {quoted(LOCK)} is a file", got, code="out"))
            refuse_foreign(path, digest)
            made = not path.is_dir()
            path.mkdir(parents=True, exist_ok=True)
            if made:
                _sync_folder(path.parent)
            lock = FileLock(path / LOCK)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                if not wait:
                    hint = "`--wait` waits until it is free"
                    raise UsageError(
                        Problem("--out", "a folder that no run is writing", f"{quoted(path)}, {who(path)}", hint, "in_use")
                    ) from None
                on_waiting(who(path))
                lock.acquire(timeout=-1, poll_interval=_WAIT_S)
        except OSError as error:
            got = f"{quoted(path)} ({(error.strerror or str(error)).lower()})"
            raise WriteError(Problem("--out", "a folder that can be made and written", got, code="out")) from None
        try:
            refuse_foreign(path, digest)
            folder = cls(path, lock)
            folder.clean()
        except BaseException:
            lock.release()
            raise
        return folder

    def close(self) -> None:
        """Gives the folder free."""
        self.lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    # writing

    def write_json(self, name: str, data: Any, indent: int = 1, is_result: bool = True) -> Path:
        """Writes JSON data; refuses what JSON does not have (NaN, infinities)."""
        return self.write(name, json_bytes(data, indent), is_result)

    def write(self, name: str, data: bytes, is_result: bool = True) -> Path:
        """Writes a file below the folder: to a temporary name, flushed to disk, renamed.

        Args:
            name: below the folder.
            data: what it will hold.
            is_result: whether it is listed among the files that were written.

        Raises:
            WriteError: it can't be written; what was there before is untouched.
        """
        path = self.place(name)
        with saying(path, "a file that can be written"):
            make_folders(path.parent)
            write_atomically(path, data)
        if is_result and path not in self.written:
            self.written.append(path)
        return path

    def write_if_other(self, name: str, data: Any, indent: int = 1) -> Path:
        """Writes JSON data unless that is what the file holds."""
        path = self.path / name
        with contextlib.suppress(OSError):
            if not path.is_symlink() and read_file(path) == json_bytes(data, indent):
                return path
        return self.write_json(name, data, indent)

    def place(self, name: str) -> Path:
        """Returns where a file is written, moved or removed.

        Raises:
            WriteError: its folder is a link out of this one, or below such a link.
        """
        path = self.path / name
        if not is_inside(path.parent, self.path):
            raise WriteError(
                Problem(str(path), "a place inside the results folder", "one behind a link that leads out of it", code="write")
            )
        return path

    # what is there

    def read_json(self, name: str) -> Any:
        """Returns what a file holds; None where it is not there, or no JSON."""
        try:
            return json.loads(read_file(self.path / name))
        except (OSError, ValueError, RecursionError):
            return None

    def fault(self, name: str, n_bytes: int, sha256: str) -> str:
        """Returns what is wrong with a file that was written, in words; nothing where it is as it was."""
        path = self.path / name
        if not is_inside(path, self.path):
            return f"{quoted(name)} is a link that leads out of the folder"
        try:
            if (found := path.stat().st_size) != n_bytes:
                return f"{quoted(name)} has {found:,} bytes, {n_bytes:,} were written"
            with open_file(path) as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            return f"{quoted(name)} is not there"
        except OSError as error:
            return f"{quoted(name)} can't be read ({(error.strerror or str(error)).lower()})"
        return "" if digest == sha256 else f"{quoted(name)} is not what was written (sha256 {digest[:12]}, was {sha256[:12]})"

    def remove(self, name: str) -> None:
        """Removes a file, if it is there."""
        path = self.place(name)
        with saying(path, "a file that can be removed"):
            path.unlink(missing_ok=True)

    def set_aside(self, name: str) -> bool:
        """Moves a file or folder to `earlier/`, in place of what has been moved there before; returns whether there was one."""
        source, target = self.place(name), self.place(f"{EARLIER}/{name}")
        if not source.exists():
            return False
        with saying(source, "a file that can be moved"):
            make_folders(target.parent)
            if target.is_dir():
                shutil.rmtree(target)
            source.replace(target)
            _sync_folder(target.parent)
            _sync_folder(source.parent)
        return True

    def clean(self) -> None:
        """Removes what a run that was killed has left of files that it was writing."""
        for folder, _, names in os.walk(self.path):
            for name in names:
                if _PART.fullmatch(name):
                    with contextlib.suppress(OSError):
                        Path(folder, name).unlink()


def refuse_foreign(path: Path, digest: str | None) -> None:
    """Refuses a folder that holds something else.

    Raises:
        UsageError: it does.
    """
    hint = "give a new folder, or empty this one"
    try:
        inside = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
        if all(name == LOCK or _PART.fullmatch(name) for name in inside):
            return
        text = read_file(path / RECORD) if RECORD in inside else None
        has_points = FINISHED in inside and any(file.suffix == ".json" for file in (path / FINISHED).iterdir())
    except OSError as error:
        got = f"{quoted(path)} ({(error.strerror or str(error)).lower()})"
        raise UsageError(Problem("--out", "a folder that can be read", got, code="out")) from None
    try:
        record = None if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        if digest is None and has_points:
            return  # the record is made anew
        got = f"{quoted(path)}, whose {quoted(RECORD)} can't be read ({error})"
        raise UsageError(Problem("--out", OWN, got, hint, "out")) from None
    owner = record.get("digest") if isinstance(record, dict) else None
    if not isinstance(owner, str) and not (digest is None and has_points):
        raise UsageError(Problem("--out", OWN, f"{quoted(path)}, which holds something else", hint, "out"))
    if digest is None and isinstance(record, dict) and "spec_sha256" in record:
        raise UsageError(Problem("--out", OWN, f"{quoted(path)}, which holds the recording of an extraction spec", hint, "out"))
    if digest is not None and owner != digest:
        hint = f"this document's digest is {quoted(digest[:12])}; give another folder"
        raise UsageError(
            Problem("--out", OWN, f"{quoted(path)}, the run of another document (digest {quoted(str(owner)[:12])})", hint, "out")
        )


def who(path: Path) -> str:
    """Returns, in words, which run has a folder."""
    with contextlib.suppress(OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError):
        record = json.loads(read_file(path / RECORD))
        if record["status"] == "running":
            return f"which process {record['process']} is writing"
    return "which another process is writing"


def json_bytes(data: Any, indent: int | None = 1) -> bytes:
    """Returns JSON data as a file has it; refuses what JSON does not have (NaN, infinities)."""
    return (json.dumps(data, indent=indent, ensure_ascii=False, allow_nan=False) + "\n").encode()


@contextlib.contextmanager
def saying(path: Path, expected: str) -> Iterator[None]:
    """Names the file where the system refuses something.

    Raises:
        WriteError: it does.
    """
    try:
        yield
    except OSError as error:
        raise WriteError(Problem(str(path), expected, (error.strerror or str(error)).lower(), code="write")) from None


def make_folders(folder: Path) -> None:
    """Makes a folder and those above it, each flushed to disk.

    Raises:
        OSError: one can't be made.
    """
    if not folder.is_dir():
        make_folders(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file to a temporary name, flushes it to disk and renames it, so that it is there whole or as it was before.

    Raises:
        OSError: it can't be written.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
