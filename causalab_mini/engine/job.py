"""One fit on its way: its parameters, its optimizer, what it is judged by, and the best it has been."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from causalab_mini.engine.contract import Engine
from causalab_mini.engine.featurizers import Featurizers, first_tensors
from causalab_mini.engine.made import Made
from causalab_mini.engine.observe import Observed
from causalab_mini.engine.scores import score
from causalab_mini.engine.starts import values_at
from causalab_mini.errors import Problem, RunError
from causalab_mini.ops import featurizers as ops
from causalab_mini.plan import plan as nodes
from causalab_mini.plan.spec import Optimizer
from causalab_mini.plan.spec.fits import BETAS
from causalab_mini.schedule.located import Schedule, StepSchedule, metric_reasons
from causalab_mini.schedule.repeated import Scored, wanted_by

COLUMNS = ("epoch", "update", "objective", "lr", "is_best")
"""Of the curves, beside metrics and penalties."""


class Job:
    """A fit of one point.

    Args:
        schedule: of the point.
        step: the fit.
        rows: of the step, that run; those that no term can be scored on are not trained on.
        outputs: of earlier steps.
        featurizers: of the point; what is trained is put there as it changes.
        engine: the checkpoint, with its weights.
        request: what is run.

    Attributes:
        losses: a line an update; evals: a line an evaluation.
        epoch: epochs that are done; n_done: updates.
        is_best: whether the last evaluation was better than those before it.
        is_stopped: whether it ended before its last epoch.
        differences: by level of rewriting, how far its passes were from the plan's own.
        error: what ended it, None where nothing did; those that are trained with it go on.
    """

    def __init__(
        self,
        schedule: Schedule,
        step: nodes.Fit,
        rows: tuple[int, ...],
        outputs: Mapping[str, Made],
        featurizers: Featurizers,
        engine: Engine,
        request: nodes.Request,
    ) -> None:
        self.schedule = schedule
        self.step = step
        self.label = schedule.point.label
        self.outputs = outputs
        self.featurizers = featurizers
        self.facts = request.facts
        self.digest = schedule.point.digest
        training = schedule.trainings[step.name]
        terms = [(term.intervention, term.metric) for term in step.objective if term.metric]
        self.eligible = {key: eligible_rows(training, key, rows) for key in terms}
        self.judged = {key: eligible_rows(schedule.step(step.name), key, None) for key in wanted_by(step, is_training=False)}
        chosen = set(rows) if not terms else {row for found in self.eligible.values() for row in found}
        self.all_rows = rows
        self.rows = tuple(row for row in rows if row in chosen)
        self.modules: dict[str, nn.Module] = {}
        for param in in_chain_order(step.params, training):
            self.modules[param.name] = module = trainable(param, self, engine, request, training)
            featurizers.learned[param.name] = module.hard()  # type: ignore[operator]
        self.optimizer = make_optimizer(step.optimizer, [p for module in self.modules.values() for p in module.parameters()])
        self.n_batches = -(-len(self.rows) // step.pairs)
        self.n_updates = step.epochs * self.n_batches
        self.rate = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda update: rate_of(step.optimizer, update, self.n_updates))
        self.generator = torch.Generator().manual_seed(step.seed)
        self.order: list[int] = []
        self.n_done = 0
        self.is_stopped = False
        self.is_best = False
        self.n_worse = 0
        self.kept_epoch = 0
        self.kept_value: float | None = None
        self.best_value: float | None = None
        self.best: dict[str, dict[str, Tensor]] = self.state()
        self.losses: list[dict[str, Any]] = []
        self.moved: dict[str, float] = {}
        self.evals: list[dict[str, Any]] = []
        self.sums: dict[Scored, float] = {}
        self.scores: dict[Scored, tuple[float, int]] = {}
        self.batch: set[int] = set()
        self.differences: list[tuple[str, float]] = []
        self.error: RunError | None = None

    # where it stands

    @property
    def epoch(self) -> int:
        """How many epochs are done."""
        return self.n_done // self.n_batches

    @property
    def ends_epoch(self) -> bool:
        """Whether the last update was the last of its epoch."""
        return self.n_done % self.n_batches == 0

    @property
    def is_over(self) -> bool:
        """Whether there are no more updates."""
        return self.error is not None or self.is_stopped or self.n_done >= self.n_updates

    def temperature(self, gate: str) -> float:
        """Returns a gate's temperature at the update that comes, or at the last.

        Source: geometric annealing, T = start · (end / start)^(u / (n − 1)).
        """
        if gate not in self.step.anneal:
            return 1.0
        start, end = self.step.anneal[gate]
        share = 1.0 if self.n_updates == 1 else min(self.n_done, self.n_updates - 1) / (self.n_updates - 1)
        return float(start * (end / start) ** share)

    def soft(self) -> dict[str, ops.Coordinates]:
        """Returns what is trained as gradients pass through it."""
        return {name: module.coordinates(self.temperature(name)) for name, module in self.modules.items()}  # type: ignore[operator]

    def hard(self) -> dict[str, ops.Coordinates]:
        """Returns what is trained as it is used."""
        return {name: module.hard() for name, module in self.modules.items()}  # type: ignore[operator]

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Returns what files hold of it, by featurizer."""
        return {name: module.tensors() for name, module in self.modules.items()}  # type: ignore[operator]

    def kept_tensors(self) -> dict[str, dict[str, Tensor]]:
        """Returns what files hold of the best so far, by featurizer."""
        now = self.state()
        for name, module in self.modules.items():
            module.load_state_dict(self.best[name])
        found = self.tensors()
        for name, module in self.modules.items():
            module.load_state_dict(now[name])
        return found

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Returns a copy of all parameters."""
        return {name: {key: value.clone() for key, value in module.state_dict().items()} for name, module in self.modules.items()}

    def restore(self) -> None:
        """Takes the parameters that are to be kept."""
        if self.step.keep == "best":
            for name, module in self.modules.items():
                module.load_state_dict(self.best[name])

    # updates

    def next_rows(self) -> list[int]:
        """Returns the rows of the update that comes."""
        if not self.order:
            self.order = [self.rows[index] for index in torch.randperm(len(self.rows), generator=self.generator).tolist()]
        batch, self.order = self.order[: self.step.pairs], self.order[self.step.pairs :]
        self.batch = set(batch)
        return batch

    def begin(self) -> None:
        """Forgets gradients and sums of an update."""
        self.optimizer.zero_grad()
        self.sums.clear()

    def loss(self, found: Mapping[str, Observed], rows: Iterable[int]) -> Tensor:
        """Returns what some rows of an update give to its loss: Σ weight · sum of the term / rows of the update that have it.

        A `recovered` without denominator gives nothing, and counts.
        """
        parts = []
        chosen = set(rows)
        for term in self.step.objective:
            key = (term.intervention, term.metric)
            if not term.metric:
                continue
            n = len(self.eligible[key] & self.batch)
            own = sorted(self.eligible[key] & chosen)
            if not own:
                continue
            values = score(metric_of(self.step.training, key), found[term.intervention], own)
            total = torch.where(values.isnan(), torch.zeros_like(values), values).sum() / (n * values.shape[0])
            self.sums[key] = self.sums.get(key, 0.0) + float(total.detach())
            parts.append(term.weight * total)
        return torch.stack([part.cpu() for part in parts]).sum() if parts else torch.zeros(())

    def penalty(self) -> Tensor:
        """Returns the terms that are of gates: weight · mean or sum of the soft mask."""
        parts = [term.weight * self.mask(term, is_soft=True) for term in self.step.objective if term.gate]
        return torch.stack([part.cpu() for part in parts]).sum() if parts else torch.zeros(())

    def mask(self, term: nodes.Term, is_soft: bool) -> Tensor:
        """Returns the mean or the sum of a gate's mask.

        Source: the sparsity penalty of differentiable masking, De Cao et al. 2020; per unit it weighs weight (`units`), or weight / width
        (`mask`).
        """
        module = self.modules[term.gate]
        gate = module.coordinates(self.temperature(term.gate)) if is_soft else module.hard()  # type: ignore[operator]
        mask: Tensor = gate.mask
        return mask.mean() if term.penalty == "mask" else mask.sum()

    def end(self) -> None:
        """Moves the parameters, and notes the update.

        Raises:
            RunError: its loss, or a gradient, is not finite.
        """
        penalties = {f"{term.gate}.{term.penalty}": float(self.mask(term, True).detach()) for term in self.step.objective if term.gate}
        loss = sum(
            term.weight
            * (self.sums.get((term.intervention, term.metric), 0.0) if term.metric else penalties[f"{term.gate}.{term.penalty}"])
            for term in self.step.objective
        )
        gradients = []
        for name, module in self.modules.items():
            own = [p.grad for p in module.parameters() if p.grad is not None]
            gradients += own
            self.moved[name] = max([self.moved.get(name, 0.0), *(float(gradient.abs().max()) for gradient in own)])
        if not math.isfinite(loss) or not all(bool(torch.isfinite(gradient).all()) for gradient in gradients):
            where = f"{self.label}: " if self.label else ""
            expected = "a finite loss and gradient at every update"
            got = f"{loss} at update {self.n_done} ({where}{self.step.name})"
            raise RunError(Problem(f"steps.{self.step.name}", expected, got, "a smaller `lr`, or a `dtype` of more range", "not_finite"))
        line: dict[str, Any] = {"epoch": self.epoch, "update": self.n_done, "objective": loss, "lr": self.rate.get_last_lr()[0]}
        line |= {self.name(key): value for key, value in self.sums.items()} | penalties
        line |= {f"{gate}.temperature": self.temperature(gate) for gate in self.step.anneal}
        self.losses.append(line)
        self.optimizer.step()
        self.rate.step()
        self.n_done += 1

    # evaluations

    def take_scores(self, found: Mapping[str, Observed], rows: Sequence[int]) -> None:
        """Adds the scores of some rows of an evaluation."""
        for key in self.judged:
            own = sorted(self.judged[key] & set(rows))
            if own:
                values = score(metric_of(self.step.evaluation, key), found[key[0]], own)
                values = values[~values.isnan()]
                total, n = self.scores.get(key, (0.0, 0))
                self.scores[key] = (total + float(values.double().sum()), n + values.numel())

    def judge(self) -> None:
        """Notes an evaluation, and whether it is the best so far; ends the fit where it has not been better for long."""
        found = {key: self.scores.get(key, (0.0, 0)) for key in self.judged}
        means = {key: total / n if n else math.nan for key, (total, n) in found.items()}
        self.scores = {}
        penalties = {f"{term.gate}.{term.penalty}": float(self.mask(term, False)) for term in self.step.objective if term.gate}
        objective = sum(
            term.weight * (means[term.intervention, term.metric] if term.metric else penalties[f"{term.gate}.{term.penalty}"])
            for term in self.step.objective
        )
        value, is_more_better = (objective, False) if self.step.score is None else (means[self.step.score[:2]], self.step.score[2])
        before = self.best_value
        is_better = before is None or (value > before if is_more_better else value < before)
        self.is_best = self.n_done > 0 and (self.step.keep == "last" or is_better)
        if self.is_best:
            self.best, self.kept_epoch, self.kept_value = self.state(), self.epoch, value
        if self.n_done > 0 and is_better and math.isfinite(value):
            self.best_value = value
        self.n_worse = 0 if is_better or self.n_done == 0 else self.n_worse + 1
        if self.step.patience is not None and self.n_worse >= self.step.patience:
            self.is_stopped = True
        line: dict[str, Any] = {"epoch": self.epoch, "update": self.n_done, "objective": finite(objective)}
        line |= {self.name(key): finite(mean) for key, mean in means.items()} | penalties
        self.evals.append(line | {"is_best": self.is_best})

    def name(self, key: Scored) -> str:
        """Returns what a metric is called in the curves."""
        name = f"{key[0]}/{key[1]}" if self.step.training.is_list else key[1]
        return f"{name} (metric)" if name in COLUMNS else name


def metric_of(observed: nodes.Observe, key: Scored) -> nodes.Metric:
    """Returns a metric of the rows that a fit trains on, or is judged on."""
    return next(metric for metric in observed.intervention(key[0]).metrics if metric.name == key[1])


def finite(value: float | None) -> float | None:
    """Returns a number, None where it is none."""
    return value if value is not None and math.isfinite(value) else None


def in_chain_order(params: Sequence[nodes.Featurizer], training: StepSchedule) -> list[nodes.Featurizer]:
    """Returns featurizers, each after those that stand before it in a chain: their starts are features of it."""
    places = [place for passes in training.passes.values() for one in passes for place in one.forward.places]
    chains = [place.featurizer for place in places if place.featurizer is not None]
    order = {part.name: number for chain in chains for number, part in enumerate(chain.all)}
    return sorted(params, key=lambda param: order[param.name])


def eligible_rows(schedule: StepSchedule, key: Scored, rows: Sequence[int] | None) -> set[int]:
    """Returns the rows of a step that a metric can be scored on."""
    intervention = schedule.step.intervention(key[0])
    metric = next(metric for metric in intervention.metrics if metric.name == key[1])
    reasons = metric_reasons(schedule, intervention, metric)
    return {row for row in (range(len(reasons)) if rows is None else rows) if not reasons[row]}


def trainable(param: nodes.Featurizer, job: Job, engine: Engine, request: nodes.Request, training: StepSchedule) -> nn.Module:
    """Returns a featurizer that can be trained, at its start, on the device of the model."""
    if param.kind == "gate":
        module: nn.Module = ops.TrainedGate(first_tensors(param, job.outputs)["theta"])
    else:
        if param.init == "pca" and param.file is None:
            data = values_at(param, engine, request, training, job.rows, job.featurizers)
            if len(data) <= param.n_features:
                expected, got = f"more than {param.n_features} tokens to take directions of greatest variance of", str(len(data))
                raise RunError(Problem(f"featurizers.{param.name}.init", expected, got, code="pca"))
            start = ops.pca_basis(data, param.n_features)
        else:
            start = first_tensors(param, job.outputs)["basis"]
        module = ops.Rotation(start, param.parametrization or "cayley")  # type: ignore[arg-type]
    device, _ = engine.memory()
    return module.to(device) if device == "cuda" else module


def make_optimizer(spec: Optimizer, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Returns torch's optimizer of a document's settings."""
    betas = spec.betas or BETAS
    match spec.name:
        case "adamw":
            return torch.optim.AdamW(parameters, spec.lr, betas=betas, weight_decay=spec.weight_decay)
        case "adam":
            return torch.optim.Adam(parameters, spec.lr, betas=betas, weight_decay=spec.weight_decay)
        case "sgd":
            return torch.optim.SGD(parameters, spec.lr, momentum=spec.momentum or 0.0, weight_decay=spec.weight_decay)
    return torch.optim.RMSprop(parameters, spec.lr, momentum=spec.momentum or 0.0, weight_decay=spec.weight_decay)


def rate_of(spec: Optimizer, update: int, n_updates: int) -> float:
    """Returns the learning rate of an update as a share of the highest: it rises over the warm-up, then falls to zero as scheduled.

    Source: linear warm-up, Goyal et al. 2017; cosine, Loshchilov and Hutter 2017, "SGDR", equation 5, without restarts.
    """
    if update < spec.warmup:
        return (update + 1) / spec.warmup
    share = (update - spec.warmup) / max(1, n_updates - spec.warmup)
    match spec.schedule:
        case "linear":
            return max(0.0, 1.0 - share)
        case "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * min(1.0, share)))
    return 1.0
