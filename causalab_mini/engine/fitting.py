"""Fits: featurizers that are trained through interventions, several together where they share passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from causalab_mini.engine.checking import deranges, difference_of
from causalab_mini.engine.contract import Engine
from causalab_mini.engine.featurizers import Featurizers
from causalab_mini.engine.first_use import LEVELS, at_level
from causalab_mini.engine.job import Job, finite
from causalab_mini.engine.made import Made
from causalab_mini.engine.observe import observe
from causalab_mini.engine.repeated import Repeated, RepeatedPasses
from causalab_mini.engine.sizes import Sizes, is_out_of_memory
from causalab_mini.errors import CausalabError, Problem, RunError
from causalab_mini.evidence.checks import TOLERANCE
from causalab_mini.ops.featurizers import Coordinates
from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.located import Schedule
from causalab_mini.schedule.physical import Rewrite
from causalab_mini.schedule.repeated import fit_schedule, fits_together

N_COMPARED = 8
"""Fits that are trained together of which two rows are compared with the plan's own passes."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """What a fit leaves.

    Attributes:
        coordinates: of each featurizer that was trained, gates hard.
        tensors: its parameters, as files hold them.
        losses: a line an update.
        evals: a line an evaluation.
        record: what the record of a run says of it.
        moved: the largest gradient that each featurizer was given.
    """

    coordinates: Mapping[str, Coordinates]
    tensors: Mapping[str, Mapping[str, Tensor]]
    losses: list[dict[str, Any]]
    evals: list[dict[str, Any]]
    record: dict[str, Any]
    moved: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class FitWatcher:
    """Whom fits tell how they go.

    Attributes:
        on_update: the jobs that go on together, after each update.
        on_best: a job, when an epoch was better than those before it.
    """

    on_update: Callable[[Sequence[Job]], None] = lambda jobs: None
    on_best: Callable[[Job], None] = lambda job: None


@dataclass(slots=True)
class Fits:
    """The fits of a request.

    Args:
        engine: the checkpoint, with its weights.
        request: what is run.
        schedules: of all points.
        sizes: how many rows a batch may have.
        rewrites: that are allowed.
        watcher: who is told.
    """

    engine: Engine
    request: nodes.Request
    schedules: Sequence[Schedule]
    sizes: Sizes
    rewrites: tuple[Rewrite, ...]
    watcher: FitWatcher
    done: dict[tuple[str, str], Fitted] = field(default_factory=dict)
    failed: dict[tuple[str, str], RunError] = field(default_factory=dict)

    def of(self, schedule: Schedule, step: nodes.Fit, rows: Sequence[int], outputs: Mapping[str, Made], featurizers: Featurizers) -> Fitted:
        """Returns what a fit of a point leaves; those of other points that can be trained with it are, and kept for their turn.

        Args:
            schedule: of the point.
            step: of the point.
            rows: that are trained on.
            outputs: of earlier steps of the point.
            featurizers: of the point, with what has been trained.

        Raises:
            RunError: its loss is not finite, or rows don't fit into memory.
        """
        key = (schedule.point.label, step.name)
        if key not in self.done and key not in self.failed:
            jobs = [Job(schedule, step, tuple(rows), outputs, featurizers, self.engine, self.request)]
            for other, twin in fits_together(self.schedules, schedule, step)[1:]:
                jobs.append(Job(other, twin, tuple(range(twin.n_rows)), {}, Featurizers({}), self.engine, self.request))
            self.train(jobs)
            self.done |= {(job.label, step.name): fitted(job, jobs) for job in jobs if job.error is None}
            self.failed |= {(job.label, step.name): job.error for job in jobs if job.error is not None}
        if key in self.failed:
            raise self.failed.pop(key)
        return self.done.pop(key)

    def train(self, jobs: Sequence[Job]) -> None:
        """Trains fits in step with each other: an update of each, then the next of each; one whose loss is not finite ends, with its error.

        Raises:
            RunError: rows don't fit into memory.
        """
        training = self.passes(jobs, is_training=True)
        judging = self.passes(jobs, is_training=False)
        self.evaluate(dict(enumerate(jobs)), judging)
        while going := {number: job for number, job in enumerate(jobs) if not job.is_over}:
            self.update(going, training)
            self.watcher.on_update(list(going.values()))
            ended = {number: job for number, job in going.items() if job.error is None and job.ends_epoch}
            if ended:
                self.evaluate(ended, judging)
                for job in ended.values():
                    if job.is_best:
                        self.watcher.on_best(job)

    def passes(self, jobs: Sequence[Job], is_training: bool) -> RepeatedPasses:
        """Returns the passes of some fits, rewritten as far as that gives the numbers of the plan's own on two rows."""
        first = jobs[0]
        fits = []
        for job in jobs:
            own = fit_schedule(job.schedule, job.step, is_training)
            rows = job.all_rows if is_training else tuple(range(own.step.n_rows))
            fits.append(Repeated(job.label, own, rows, job.featurizers, job.outputs))
        kept = self.sizes.may_keep()
        trust = self.engine.trust
        start = 0 if trust is None else LEVELS.index(trust.level)
        for level in LEVELS[start:]:
            made = RepeatedPasses(
                self.engine,
                self.request,
                first.step.name,
                fits,
                at_level(self.rewrites, level),
                self.sizes,
                max(job.step.epochs for job in jobs),
                kept,
                "on" if is_training else "off",
            )
            for number, job in enumerate(jobs):
                made.learn(number, job.hard())
            try:
                difference = self.difference(made)
            except CausalabError:
                raise
            except Exception as error:
                if is_out_of_memory(error) or level == LEVELS[-1]:
                    raise
                continue
            first.differences.append((level, difference))
            if difference <= TOLERANCE[self.engine.facts.dtype]:
                break
        return made

    def difference(self, made: RepeatedPasses) -> float:
        """Returns how far the passes of fits are from the plan's own, run together, on the first and last row of some of them."""
        step = max(1, len(made.fits) // N_COMPARED)
        rows = {number: sorted({fit.rows[0], fit.rows[-1]}) for number, fit in list(enumerate(made.fits))[::step]}
        worst = 0.0
        with torch.no_grad():
            found = made.run(rows)
        for number, own in rows.items():
            fit = made.fits[number]
            for intervention in fit.schedule.step.interventions:
                if deranges(intervention):
                    continue  # two rows have another order among themselves
                observed = found[number][intervention.name]
                plain = observe(self.engine, fit.schedule, intervention, self.request.prompts, fit.outputs, own, fit.featurizers)
                names = [name for name in observed.values if name in plain.values]
                reads = [read for metric in intervention.metrics for read in metric.reads.values() if read in names]
                worst = max(worst, *(difference_of(observed, plain, row, reads) for row in own))
        return worst

    def update(self, going: Mapping[int, Job], passes: RepeatedPasses) -> None:
        """Takes one step of each fit along its gradient, rows in as many forwards as memory asks for.

        Raises:
            RunError: a single row does not fit into memory.
        """
        rows = {number: job.next_rows() for number, job in going.items()}
        while True:
            try:
                for number, job in going.items():
                    passes.learn(number, job.soft())
                    job.begin()
                batches = passes.batches(rows)
                for index, batch in enumerate(batches):
                    self.backward(going, passes, batch, is_last=index == len(batches) - 1)
                break
            except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                self.smaller(sum(map(len, rows.values())), error)
        for job in going.values():
            try:
                job.end()
            except RunError as error:
                job.error = error

    def backward(self, going: Mapping[int, Job], passes: RepeatedPasses, batch: Mapping[int, Sequence[int]], is_last: bool) -> None:
        """Adds what some rows give to the gradients."""
        observed = passes.run({number: sorted(own) for number, own in batch.items()})
        parts = [going[number].loss(found, batch[number]) for number, found in observed.items()]
        if is_last:
            parts += [job.penalty() for job in going.values()]
        total = torch.stack([part.double().cpu() for part in parts]).sum()
        if total.requires_grad:
            torch.autograd.backward(total, retain_graph=not is_last)

    def smaller(self, n_rows: int, error: BaseException) -> None:
        """Has fewer rows run at once.

        Raises:
            RunError: it was one already.
        """
        now = min(n_rows, self.sizes.batch_size or self.sizes.most or n_rows)
        if now == 1:
            raise RunError(
                Problem("", "memory for the gradient of one row", "less", "a smaller `dtype`, or shorter rows", "memory")
            ) from error
        self.sizes.most = (now + 1) // 2
        self.sizes.batch_size = None if self.sizes.batch_size is None else self.sizes.most
        self.sizes.n_halved += 1
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def evaluate(self, jobs: Mapping[int, Job], passes: RepeatedPasses) -> None:
        """Has fits judged on the rows of their evaluation, gates hard."""
        for number, job in jobs.items():
            passes.learn(number, job.hard())
        for batch in passes.batches({number: passes.fits[number].rows for number in jobs}):
            with torch.inference_mode():
                observed = passes.run({number: sorted(own) for number, own in batch.items()})
                for number, found in observed.items():
                    jobs[number].take_scores(found, sorted(batch[number]))
        for job in jobs.values():
            job.judge()


def fitted(job: Job, together: Sequence[Job]) -> Fitted:
    """Returns what a fit leaves, with the parameters that it keeps."""
    job.restore()
    record = {
        "epochs": job.epoch,
        "updates": job.n_done,
        "kept_epoch": job.kept_epoch,
        "kept_value": finite(job.kept_value),
        "stopped_early": job.is_stopped,
        "trained_together": len(together),
        "level": together[0].differences[-1][0] if together[0].differences else "plain",
        "first_use": [finite(difference) for _, difference in together[0].differences],
    }
    return Fitted(job.hard(), job.tensors(), job.losses, job.evals, record, job.moved)
