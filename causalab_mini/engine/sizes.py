"""How many rows a batch has: as many as are asked for, or as the memory of the device takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import torch

from causalab_mini.errors import Problem, RunError, quoted
from causalab_mini.model.facts import ModelFacts
from causalab_mini.schedule.batching import Entry
from causalab_mini.schedule.memory import kept_bytes, working_bytes
from causalab_mini.schedule.physical import MAX_KEPT_BYTES, PhysicalPass

MAX_BYTES = 512 * 1024**2
"""What a batch may work with on a CPU: more saves nothing there."""
KEPT_SHARE = 0.4
"""Of what is free beside the weights, what one pass may keep for others."""
SHARE = 0.8
"""Of what is free on the device, what a batch may work with: an estimate is no measurement."""


class Sizes:
    """How rows are split into batches; smaller ones after a device has run out of memory.

    Args:
        facts: of the checkpoint.
        batch_size: rows a batch; None for what fits.
        memory: gives the kind of the model's device, and the bytes that are free there; None where that is not known.
        pause: called after every batch; may raise what ends the run.
    """

    def __init__(
        self,
        facts: ModelFacts,
        batch_size: int | None,
        memory: Callable[[], tuple[str, int | None]] = lambda: ("cpu", None),
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        self.facts = facts
        self.batch_size = batch_size
        self.memory = memory
        self.pause = pause
        self.most: int | None = None
        self.used: list[int] = []
        self.n_halved = 0

    def batches(self, one: PhysicalPass, rows: Sequence[int] | None) -> list[list[Entry]]:
        """Returns a pass's rows as batches that fit.

        Raises:
            RunError: a single row does not.
        """
        whole = one.batches(rows)
        if self.batch_size is not None:
            return one.batches(rows, self.batch_size)
        budget, found = self.budget(), list[list[Entry]]()
        for batch in whole:
            size = self.fitting(one, batch, budget)
            found += [batch[start : start + size] for start in range(0, len(batch), size)]
        return found

    def may_keep(self) -> int:
        """Returns the bytes that may be kept of one set of rows for later passes."""
        _, free = self.memory()
        return MAX_KEPT_BYTES if free is None else min(MAX_KEPT_BYTES, int(KEPT_SHARE * free))

    def budget(self) -> int:
        """Returns the bytes that a batch may work with."""
        device, free = self.memory()
        if free is None:
            return MAX_BYTES
        return min(MAX_BYTES, int(SHARE * free)) if device == "cpu" else int(SHARE * free)

    def fitting(self, one: PhysicalPass, batch: list[Entry], budget: int) -> int:
        """Returns how many rows of a batch fit into some bytes.

        Raises:
            RunError: a single row does not fit into what is free.
        """
        size = len(batch) if self.most is None else min(self.most, len(batch))
        left = max(0, budget - kept_bytes(one, self.facts))
        while size > 1 and max(working_bytes(one, batch[at : at + size], self.facts) for at in range(0, len(batch), size)) > left:
            size = (size + 1) // 2
        if size == 1:
            needed, (_, free) = max(working_bytes(one, [entry], self.facts) for entry in batch), self.memory()
            if free is not None and needed > free:
                self.refuse(one, needed, free)
        return size

    def run(self, one: PhysicalPass, entries: list[Entry], run: Callable[[list[Entry]], None]) -> None:
        """Runs a batch; where the device runs out of memory, its halves.

        Raises:
            RunError: a single row does not fit.
        """
        try:
            run(entries)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            if len(entries) == 1:
                self.refuse(one, working_bytes(one, entries, self.facts), None, error)
            half = (len(entries) + 1) // 2
        else:
            self.used.append(len(entries))
            self.pause()
            return
        self.halve(half)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        for start in range(0, len(entries), half):
            self.run(one, entries[start : start + half], run)

    def halve(self, size: int) -> None:
        """Notes that no more rows than these fit together."""
        self.n_halved += 1
        self.most = size if self.most is None else min(self.most, size)

    def refuse(self, one: PhysicalPass, needed: int, free: int | None, error: BaseException | None = None) -> NoReturn:
        """Refuses a row that does not fit.

        Raises:
            RunError: always.
        """
        longest = max(one.lengths)
        forward = one.forward
        expected = f"{_size(needed)} of memory for one row of {quoted(forward.role)} (of up to {longest} tokens), as its shapes have it"
        hint = "a smaller `dtype`, shorter rows, fewer positions read at once, or another `--device-map`"
        problem = Problem("", expected, f"{_size(free)} free" if free is not None else "less", hint, "memory")
        raise RunError(problem) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error says that memory ran out: CPUs have no class of their own for it."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


def free_bytes(device: torch.device) -> int | None:
    """Returns the bytes that are free on a device; None where nobody says."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type == "cpu":
        with suppress(OSError, StopIteration, ValueError):  # Linux says what it would give, caches counted
            lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
            return int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) * 1024
    return None


def _size(n: int) -> str:
    return f"{n / 1024**3:.1f} GiB" if n >= 1024**3 else f"{n / 1024**2:.0f} MiB"
