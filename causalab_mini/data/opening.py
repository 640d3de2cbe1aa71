"""Files as they are opened: regular ones, of a size that was asked for, and none in a form that can run code.

A pipe would be waited for, a device can be endless, and a pickle runs what it says; all three are refused before a byte is read.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from io import BufferedReader
from pathlib import Path

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".dill", ".npy", ".npz", ".mar")
"""Endings of files that are pickles, or may have pickles in them. None of them is ever opened."""
A_PICKLE = "a pickle, which may run code when it is opened"
INSTEAD = "safetensors files hold the same tensors and nothing that runs: `safetensors.torch.save_file` writes them"
MAX_NAME_BYTES = 200
"""Of each part of a path: every file system has room for it, and for what is put before and after while it is written."""
MAX_PATH_BYTES = 1000
"""Of a path that a document names: no system takes many times more."""
_DEVICES = re.compile(r"(?i)(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[\d¹²³])\s*([.:].*)?")
"""What Windows takes for a device, whatever comes after."""
_KINDS = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"), (stat.S_ISSOCK, "a socket"))


def is_device(part: str) -> bool:
    """Returns whether a part of a path is the name of a device, to some system."""
    return _DEVICES.fullmatch(part) is not None


def is_pickle(name: str | Path) -> bool:
    """Returns whether a file is a pickle, going by the end of its name."""
    return Path(name).suffix.lower() in PICKLES


def open_file(path: Path) -> BufferedReader:
    """Returns a regular file, opened for reading.

    Raises:
        OSError: it is a pipe, a device, a socket or a folder, has a name that no file can have, or can't be opened.
    """
    try:
        _refuse_irregular(path.stat().st_mode, path)  # before it is opened: that alone may wait, or do something
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
    except ValueError:
        raise OSError(errno.EINVAL, "a name with a NUL character", repr(str(path))) from None
    try:
        _refuse_irregular(os.fstat(handle).st_mode, path)  # it may be another by now
        return open(handle, "rb")  # noqa: PTH123
    except BaseException:
        os.close(handle)
        raise


def read_file(path: Path, max_bytes: int | None = None) -> bytes:
    """Returns what is in a regular file; of one that is larger than `max_bytes`, one byte more than that.

    Raises:
        OSError: as `open_file`.
    """
    with open_file(path) as file:
        if max_bytes is None:
            return file.read()
        return file.read(min(max_bytes, os.fstat(file.fileno()).st_size) + 1)


def is_inside(path: Path, folder: Path) -> bool:
    """Returns whether a path stays below a folder, links followed; one that the system can't look at does not."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # a name that is too long, links in a circle, a NUL character
        return False


def unreadable(problem: OSError) -> str:
    """Returns, in words, why a file can't be read."""
    return "no such file" if isinstance(problem, FileNotFoundError) else (problem.strerror or "an unreadable file").lower()


def _refuse_irregular(mode: int, path: Path) -> None:
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, next((word for test, word in _KINDS if test(mode)), "no regular file"), str(path))
