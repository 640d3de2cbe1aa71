"""One DAS fit as every tool is given it, what measures it, and the fit written by hand; needs torch and transformers alone.

A rotation of k dimensions at a block's output, at one token a row: of the base's value, what lies in those dimensions is exchanged for the
counterfactual's, and the basis is trained so that the model says the counterfactual's answer at the last token. The model stays as it is.
"""

from __future__ import annotations

import json
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from measure import Meter
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.utils.parametrizations import orthogonal

EACH, KEPT = "hooks by hand, source each update", "hooks by hand, source once"


@dataclass(frozen=True, slots=True)
class Minibatch:
    """The rows of one update.

    Attributes:
        rows: their indices.
        base, counterfactual: arguments of a forward, padded on the left to the longest of these rows.
        base_columns, source_columns: (row,) the token that is exchanged.
        labels: (row,) the token id of the counterfactual's answer.
    """

    rows: list[int]
    base: dict[str, Tensor]
    counterfactual: dict[str, Tensor]
    base_columns: Tensor
    source_columns: Tensor
    labels: Tensor


@dataclass(frozen=True, slots=True)
class FitJob:
    """One fit, the same for every tool.

    Attributes:
        model: the folder of the checkpoint.
        layer: whose block's output is rotated.
        base, counterfactual: `input_ids`, `attention_mask`, `position_ids`, (row, token), padded on the left.
        base_columns, source_columns: of the exchanged token, by row.
        labels: token ids, by row.
        minibatches: the rows of each update, in order; the first update is the warm-up.
        start: (feature, k) the basis to start at, orthonormal.
        lr: of Adam, without weight decay.
        seed: of what a parametrization completes the basis with.
    """

    model: str
    layer: int
    base: dict[str, list[list[int]]]
    counterfactual: dict[str, list[list[int]]]
    base_columns: list[int]
    source_columns: list[int]
    labels: list[int]
    minibatches: list[list[int]]
    start: Tensor
    lr: float
    seed: int

    @classmethod
    def load(cls, file: Path) -> FitJob:
        """Returns the job that was saved as this file."""
        return cls(**json.loads(file.read_text(encoding="utf-8")), start=load_file(file.with_name("start.safetensors"))["start"])

    def save(self, file: Path) -> None:
        """Writes the job, with its start beside it."""
        save_file({"start": self.start}, file.with_name("start.safetensors"))
        file.write_text(json.dumps({name: value for name, value in asdict(self).items() if name != "start"}), encoding="utf-8")

    @property
    def k(self) -> int:
        """How many dimensions are exchanged."""
        return self.start.shape[1]

    def minibatch(self, rows: Sequence[int]) -> Minibatch:
        """Returns some rows, without the columns that are padding on all of them."""
        base, base_gap = _cut(self.base, rows)
        counterfactual, source_gap = _cut(self.counterfactual, rows)
        return Minibatch(
            list(rows),
            base,
            counterfactual,
            torch.tensor([self.base_columns[row] - base_gap for row in rows]),
            torch.tensor([self.source_columns[row] - source_gap for row in rows]),
            torch.tensor([self.labels[row] for row in rows]),
        )

    def distinct_rows(self) -> list[list[int]]:
        """Returns every row once, as many at a time as an update has: for what is computed once."""
        rows, n = sorted({row for batch in self.minibatches for row in batch}), len(self.minibatches[0])
        return [rows[at : at + n] for at in range(0, len(rows), n)]

    def load_model(self) -> Any:
        """Returns the checkpoint as transformers loads it, in fp32, without gradients."""
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(self.model, dtype=torch.float32).eval().requires_grad_(False)


def _cut(side: Mapping[str, list[list[int]]], rows: Sequence[int]) -> tuple[dict[str, Tensor], int]:
    gap = min(side["attention_mask"][row].index(1) for row in rows)
    return {name: torch.tensor([values[row][gap:] for row in rows]) for name, values in side.items()}, gap


class UpdateMeter(Meter):
    """Measures one fit; it is told with `source_done` when what is done once is done, and of every update's end.

    Attributes:
        losses: of every update, before its step.
        seconds: CPU and wall seconds of every update.
    """

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []
        self.seconds: list[tuple[float, float]] = []
        self.since: tuple[float, float] = (0.0, 0.0)

    def source_done(self) -> None:
        """Notes that what is done once is done, which counts to no update."""
        super().source_done()
        self.since = self.once

    def update_done(self, loss: float) -> None:
        """Takes the loss of an update that has just ended, its step included."""
        now = self.elapsed()
        self.seconds.append((now[0] - self.since[0], now[1] - self.since[1]))
        self.losses.append(loss)
        self.note_peak()
        self.since = self.elapsed()


class Fit(ABC):
    """One way to do the fit.

    Attributes:
        job: what `run` does.
        basis: (feature, k) what the last run ended with, orthonormal.
    """

    job: FitJob
    basis: Tensor

    @abstractmethod
    def run(self, meter: UpdateMeter) -> list[float]:
        """Does all updates from the start on, tells the meter of each, and returns the losses; may be called again."""

    def warm_up(self) -> None:
        """Does the first update alone, so that nothing is imported, and no weight read from the disk, while one is measured."""
        whole = self.job
        self.job = replace(whole, minibatches=whole.minibatches[:1])
        self.run(UpdateMeter.started())
        self.job = whole


@dataclass(slots=True)
class MeasuredFit:
    """What was measured of one way.

    Attributes:
        cpu, wall: median seconds of an update after the first, by repeat.
        once_cpu, once_wall: seconds of what is done once, by repeat.
        peak_bytes: over the loaded model, by repeat.
        updates: CPU and wall seconds of every update, by repeat.
        losses: of every update of the last repeat.
        basis: what the last repeat ended with.
    """

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    once_cpu: list[float] = field(default_factory=list)
    once_wall: list[float] = field(default_factory=list)
    peak_bytes: list[int | None] = field(default_factory=list)
    updates: list[list[tuple[float, float]]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    basis: Tensor | None = None

    def data(self) -> dict[str, Any]:
        """Returns everything but the basis."""
        return {name: value for name, value in asdict(replace(self, basis=None)).items() if name != "basis"}


def measure_fits(ways: Mapping[str, Fit], n_repeats: int) -> dict[str, MeasuredFit]:
    """Returns what every way costs after a warm-up; they take turns within a repeat, and each repeat begins with another."""
    found, names = {name: MeasuredFit() for name in ways}, list(ways)
    for way in ways.values():
        way.warm_up()
    for repeat in range(n_repeats):
        for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
            one, meter = found[name], UpdateMeter.started()
            losses = ways[name].run(meter)
            if losses != meter.losses or len(losses) < 2:
                raise RuntimeError(f"`{name}`: expected the meter to be told of every update, got {len(meter.losses)} of {len(losses)}")
            meter.note_peak()
            for kept, which in ((one.cpu, 0), (one.wall, 1)):
                kept.append(statistics.median(seconds[which] for seconds in meter.seconds[1:]))
            one.once_cpu.append(meter.once[0])
            one.once_wall.append(meter.once[1])
            one.peak_bytes.append(meter.peak)
            one.updates.append(meter.seconds)
            one.losses, one.basis = losses, ways[name].basis.detach().clone()
    return found


class Basis(torch.nn.Module):
    """An orthonormal basis, `weight` (feature, k), under the parametrization that torch has and pyvene uses: Householder products from a start.

    Weight decay would ruin it: the signs of the columns stand in the parameter's diagonal and are cut to whole numbers, so the first step
    that shrinks them makes the basis zero.
    """

    def __init__(self, start: Tensor, seed: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(start.clone())
        orthogonal(self)
        torch.manual_seed(seed)
        self.weight = start


class FitByHand(Fit):
    """Hooks on the transformers model, and torch's own gradients.

    Args:
        job: the fit.
        model: its checkpoint.
        keeps_source: whether every row's source is read once rather than at each update.
        make_basis: gives the module whose `weight` is the basis; None for torch's parametrization.
    """

    def __init__(
        self, job: FitJob, model: Any, *, keeps_source: bool = False, make_basis: Callable[[FitJob], torch.nn.Module] | None = None
    ) -> None:
        self.job, self.model, self.keeps_source = job, model, keeps_source
        self.make_basis = make_basis or (lambda job: Basis(job.start, job.seed))

    def run(self, meter: UpdateMeter) -> list[float]:
        """Does all updates."""
        rotation = self.make_basis(self.job)
        optimizer = torch.optim.Adam(rotation.parameters(), lr=self.job.lr)
        kept: dict[int, Tensor] = {}
        if self.keeps_source:
            for rows in self.job.distinct_rows():
                kept |= dict(zip(rows, self.source(self.job.minibatch(rows)), strict=True))
            meter.source_done()
        losses = []
        for batch in map(self.job.minibatch, self.job.minibatches):
            source = torch.stack([kept[row] for row in batch.rows]) if self.keeps_source else self.source(batch)
            loss = self.loss(batch, source, rotation.weight)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            del loss
            meter.update_done(losses[-1])
        self.basis = rotation.weight.detach()
        return losses

    def source(self, batch: Minibatch) -> Tensor:
        """Returns what leaves the block at the counterfactual's token, (row, feature)."""
        with torch.no_grad(), self.hooked(lambda value: found.append(value[torch.arange(len(value)), batch.source_columns].clone())):
            found: list[Tensor] = []
            self.model(**batch.counterfactual, use_cache=False)
        return found[0]

    def loss(self, batch: Minibatch, source: Tensor | None, basis: Tensor) -> Tensor:
        """Returns the cross-entropy of the counterfactual's answer, after the exchange, or without it if there is no source."""

        def put(value: Tensor) -> Tensor | None:
            if source is None:
                return None
            at = torch.arange(len(value)), batch.base_columns
            changed = value.clone()
            changed[at] = value[at] + (source - value[at]) @ basis @ basis.T
            return changed

        with self.hooked(put):
            logits = self.model(**batch.base, use_cache=False).logits[:, -1]
        return torch.nn.functional.cross_entropy(logits, batch.labels)

    @contextmanager
    def hooked(self, do: Callable[[Tensor], Any]) -> Any:
        """Hands what leaves the block to a function until it is left; what the function returns takes its place."""
        handle = self.model.model.layers[self.job.layer].register_forward_hook(lambda module, args, output: do(output))
        try:
            yield
        finally:
            handle.remove()


def ways_by_hand(job: FitJob, model: Any) -> dict[str, Fit]:
    """Returns both."""
    return {EACH: FitByHand(job, model), KEPT: FitByHand(job, model, keeps_source=True)}
