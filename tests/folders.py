"""What a folder of a run holds, without what no two runs share; and runs in children of a warm parent, which may be killed."""

import json
import math
import os
import signal
import sys
import time
from pathlib import Path

TIMES = ("seconds", "started", "peak_memory_bytes", "process")
OF_ONE_RUN = ("points", "schedule", "rows_a_batch", "trained_together", "first_use", "level", "options", "checks", "sha256", "bytes")
"""What a record says of how it came about: a run that went on from another one has joined fewer points in a forward."""
RELATIVE, ABSOLUTE = 1e-3, 1e-4
"""Between numbers of forwards that joined other points: fp32 rounds otherwise, and a fit's updates carry that on."""


def contents(folder):
    """Returns every file of a folder by name, parsed where numbers are compared, without locks, times and what is of one run."""
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() or name == ".lock":
            continue
        if path.suffix == ".safetensors":
            from safetensors import safe_open
            from safetensors.torch import load_file

            with safe_open(path, "pt") as file:
                found[name] = {"metadata": file.metadata(), **{key: value.tolist() for key, value in load_file(path).items()}}
        elif path.suffix == ".json":
            found[name] = _lasting(json.loads(path.read_bytes()))
        else:
            found[name] = path.read_bytes()
    return found


def _lasting(value):
    if isinstance(value, dict):
        return {key: _lasting(inner) for key, inner in value.items() if key not in (*TIMES, *OF_ONE_RUN)}
    return [_lasting(inner) for inner in value] if isinstance(value, list) else value


def difference(one, other, path=""):
    """Returns where two contents differ first, beyond what rounding explains; nothing where they are the same."""
    if isinstance(one, dict) and isinstance(other, dict):
        if list(one) != list(other) and set(one) ^ set(other):
            return f"{path}: {sorted(set(one) ^ set(other))[:5]} on one side only"
        return next((said for key in one if (said := difference(one[key], other[key], f"{path}/{key}"))), "")
    if isinstance(one, list) and isinstance(other, list):
        if len(one) != len(other):
            return f"{path}: {len(one)} and {len(other)}"
        return next(
            (said for index, pair in enumerate(zip(one, other, strict=True)) if (said := difference(*pair, f"{path}[{index}]"))), ""
        )
    if isinstance(one, float) and isinstance(other, float | int) and math.isclose(one, other, rel_tol=RELATIVE, abs_tol=ABSOLUTE):
        return ""
    return "" if one == other and type(one) is type(other) else f"{path}: {one!r} and {other!r}"


HANGS_S = 300.0
"""Seconds after which a child is said to hang."""


def in_child(act, *, kill_after=None, number=signal.SIGKILL, is_quiet=True):
    """Returns how a child of this process ended that carried something out: its exit code, or minus the signal.

    Args:
        act: called in the child.
        kill_after: seconds until it is sent a signal; None for never.
        number: of the signal.
        is_quiet: whether nothing of what it says is shown.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        code = 99
        try:
            if is_quiet:
                quiet = os.open(os.devnull, os.O_WRONLY)
                os.dup2(quiet, 1)
                os.dup2(quiet, 2)
            act()
            code = 0
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 1
        except KeyboardInterrupt:
            code = 130
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, number)
    return ended(child)


def ended(child):
    """Returns how a child ended; one that hangs is killed, so that it is a failure and not a wait without end."""
    deadline = time.monotonic() + HANGS_S
    while not (found := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise AssertionError(f"a child was still there after {HANGS_S:g} s")
        time.sleep(0.002)
    return os.waitstatus_to_exitcode(found[1])
