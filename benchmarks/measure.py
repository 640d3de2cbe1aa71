"""CPU seconds, wall seconds and peak memory of ways to do the same work, in turn; needs torch alone, so that every environment can use it.

A *way* is a function of a `Meter` and of the points that it shall do. It hands each point's logits to `Meter.keep` as they come, and says
with `Meter.source_done` when what it does once, whatever the number of points, is done.
"""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

STATUS = Path("/proc/self/status")
RESET = Path("/proc/self/clear_refs")


class Meter:
    """Measures one run of a way, and takes its results.

    Peak memory is the largest resident size over that at the start, without the results that were kept by then: the kernel's high-water
    mark, reset at every result, so nothing is sampled. It is None where the system has no such mark (Linux has).
    """

    def __init__(self) -> None:
        self.logits: list[Tensor | None] = []
        self.once = (0.0, 0.0)
        self.peak: int | None = 0

    @classmethod
    def started(cls) -> Meter:
        """Returns one that runs."""
        meter = cls()
        meter.start()
        return meter

    def start(self) -> None:
        """Starts the clocks, with what earlier runs left in the allocator given back."""
        gc.collect()
        give_back()
        self.resident = resident("VmRSS")
        self.kept_bytes = 0
        reset_mark()
        self.clocks = (time.process_time(), time.perf_counter())

    def source_done(self) -> None:
        """Notes that what is done once is done."""
        self.once = self.elapsed()

    def keep(self, logits: Tensor | None) -> None:
        """Takes the logits of the next point, (row, vocabulary); None counts a point without any."""
        self.note_peak()
        self.logits.append(logits)
        if logits is not None:
            self.kept_bytes += logits.numel() * logits.element_size()

    def stop(self) -> Cost:
        """Returns what the run cost."""
        cpu, wall = self.elapsed()
        self.note_peak()
        return Cost(cpu, wall, *self.once, len(self.logits), self.peak)

    def elapsed(self) -> tuple[float, float]:
        """Returns CPU and wall seconds since the start."""
        return time.process_time() - self.clocks[0], time.perf_counter() - self.clocks[1]

    def note_peak(self) -> None:
        """Takes the high-water mark into account and resets it."""
        mark = resident("VmHWM")
        if mark is None or self.resident is None or self.peak is None or not reset_mark():
            self.peak = None
        else:
            self.peak = max(self.peak, mark - self.resident - self.kept_bytes)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run cost.

    Attributes:
        cpu, wall: seconds.
        once_cpu, once_wall: the part of them that does not grow with the points.
        n_points: how many were done.
        peak_bytes: over the loaded model, without the results.
    """

    cpu: float
    wall: float
    once_cpu: float
    once_wall: float
    n_points: int
    peak_bytes: int | None

    def of(self, n_points: int) -> tuple[float, float]:
        """Returns CPU and wall seconds of this many points."""
        share = n_points / self.n_points
        return self.once_cpu + (self.cpu - self.once_cpu) * share, self.once_wall + (self.wall - self.once_wall) * share


Run = Callable[[Meter, Sequence[int]], None]


@dataclass(frozen=True, slots=True)
class Way:
    """One way to do the work.

    Attributes:
        run: does some of the points, or all of them, in order.
        does_all: whether it is run on all points rather than on a sample.
        n_repeats: how often at most; None for as often as the others.
        may_fail: whether an error is noted rather than raised.
    """

    run: Run
    does_all: bool = False
    n_repeats: int | None = None
    may_fail: bool = False


@dataclass(slots=True)
class Measured:
    """What was measured of one way.

    Attributes:
        costs: of each repeat.
        logits: by point, of those that were done.
        error: its first line, if it failed.
    """

    costs: list[Cost] = field(default_factory=list)
    logits: dict[int, Tensor] = field(default_factory=dict)
    error: str | None = None

    @classmethod
    def from_data(cls, way: Mapping[str, Any], logits: Mapping[int, Tensor]) -> Measured:
        """Returns what another process measured and wrote down."""
        return cls([Cost(**cost) for cost in way["costs"]], dict(logits), way["error"])


def measure(ways: Mapping[str, Way], n_points: int, sample: Sequence[int], n_repeats: int, compared: Sequence[int]) -> dict[str, Measured]:
    """Returns what every way costs; they take turns within a repeat, and each repeat begins with another.

    Args:
        ways: by name.
        n_points: of the whole work.
        sample: the points that stand for all, dealt out over the repeats, in ways that cost the same at each.
        n_repeats: how often every way is run.
        compared: the points whose logits are wanted.
    """
    found = {name: Measured() for name in ways}
    names = list(ways)
    with torch.inference_mode():
        for repeat in range(n_repeats):
            for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
                way, one = ways[name], found[name]
                if one.error or (way.n_repeats is not None and repeat >= way.n_repeats):
                    continue
                points = list(range(n_points)) if way.does_all else list(sample[repeat::n_repeats] or sample)
                meter = Meter.started()
                try:
                    way.run(meter, points)
                except Exception as error:
                    if not way.may_fail:
                        raise
                    one.error = first_line(error)
                    continue
                one.costs.append(meter.stop())
                by_point = zip(points, meter.logits, strict=False)
                one.logits |= {point: logits.clone() for point, logits in by_point if logits is not None and point in compared}
                del meter, by_point  # the results, which the next way's memory would otherwise be measured on top of
    return found


def first_line(error: BaseException) -> str:
    """Returns an error as one line: its class and the first line of what it says."""
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}".removesuffix(": ")


def median(values: Sequence[float]) -> float:
    """Returns the middle value."""
    return statistics.median(values)


def resident(what: str) -> int | None:
    """Returns this process's resident size (`VmRSS`) or its high-water mark (`VmHWM`) in bytes; None where the system does not tell."""
    try:
        lines = STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{what}:")), None)


def reset_mark() -> bool:
    """Sets the high-water mark to the present size, and returns whether that is possible here."""
    try:
        RESET.write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def give_back() -> None:
    """Has the C library return free memory to the system, where it can."""
    trim: Any = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
