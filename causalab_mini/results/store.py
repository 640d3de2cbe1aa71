"""The folder of a run: opened only where nothing else lives, and written so that a file is there whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from causalab_mini.errors import Problem, RunError, UsageError, quoted

RECORD, DOCUMENT, SUMMARY, POINTS = "run.json", "document.json", "summary.json", "points.json"
CHECKPOINTS = "checkpoints"
"""The folder of what fits have been at their best."""


class RunFolder:
    """A folder that belongs to one experiment.

    Attributes:
        path: of the folder, as it was given.
        written: files, in the order in which they were first written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written: list[Path] = []

    @classmethod
    def open(cls, path: Path, digest: str) -> RunFolder:
        """Returns the folder, made if need be. The same experiment may be run into its folder again.

        Raises:
            UsageError: it is no folder, or it holds something else.
            RunError: it can't be made or written.
        """
        if path.exists() and not path.is_dir():
            raise UsageError(Problem("--out", "a folder", f"the file {quoted(path)}", code="out"))
        if path.is_dir() and any(path.iterdir()):
            owner = _digest_in(path / RECORD)
            if owner is None:
                hint = "give a new folder, or empty this one"
                raise UsageError(
                    Problem(
                        "--out", "an empty folder, or one of this experiment", f"{quoted(path)}, which holds something else", hint, "out"
                    )
                )
            if owner != digest:
                hint = f"this document's digest is {quoted(digest[:12])}; give another folder"
                got = f"{quoted(path)}, the run of another document (digest {quoted(owner[:12])})"
                raise UsageError(Problem("--out", "an empty folder, or one of this experiment", got, hint, "out"))
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(Problem("--out", "a folder that can be made", f"{quoted(path)} ({error.strerror})", code="out")) from None
        return cls(path)

    def write_json(self, name: str, data: Any, indent: int = 1, is_result: bool = True) -> Path:
        """Writes JSON data; refuses what JSON does not have (NaN, infinities)."""
        return self.write(name, (json.dumps(data, indent=indent, ensure_ascii=False, allow_nan=False) + "\n").encode(), is_result)

    def write(self, name: str, data: bytes, is_result: bool = True) -> Path:
        """Writes a file below the folder: to a temporary name, flushed to disk, renamed.

        Args:
            name: below the folder.
            data: what it will hold.
            is_result: whether it is listed among the files that were written.

        Raises:
            RunError: it can't be written; what was there before is untouched.
        """
        path = self.path / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data)
        except OSError as error:
            raise RunError(Problem(str(path), "a file that can be written", (error.strerror or str(error)).lower(), code="write")) from None
        if is_result and path not in self.written:
            self.written.append(path)
        return path


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


def _digest_in(record: Path) -> str | None:
    try:
        digest = json.loads(record.read_text(encoding="utf-8")).get("digest")
    except (OSError, ValueError, AttributeError):
        return None
    return digest if isinstance(digest, str) else None


def _sync_folder(folder: Path) -> None:
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
