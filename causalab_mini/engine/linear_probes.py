"""Carries out a `fit_probe` step: which rows are trained on, the probe, and how it does beside shuffled labels. Runs no forward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy
import torch

from causalab_mini.engine.made import Made
from causalab_mini.errors import PlanError, Problem, quoted
from causalab_mini.evidence.intervals import LEVEL, Interval, bootstrap_of, of_fraction
from causalab_mini.model.facts import ModelFacts
from causalab_mini.ops.probe_training import (
    L2,
    N_SHUFFLES,
    SCORES,
    Floats,
    Integers,
    Predicted,
    constant,
    judge,
    judge_shuffled,
    judge_weighted,
    lacking,
    make_folds,
    p_value,
    predict_out_of_fold,
    train,
)
from causalab_mini.plan import plan as nodes
from causalab_mini.plan.probes import refuse_few
from causalab_mini.schedule.located import Schedule


@dataclass(frozen=True, slots=True)
class Learned:
    """The rows that a probe is trained on.

    Attributes:
        rows: of the step.
        targets: class indices, or numbers.
        groups: counted from 0.
        folds: in which each is held out.
    """

    rows: tuple[int, ...]
    targets: Floats
    groups: Integers
    folds: Integers


def refuse_unfoldable(request: nodes.Request, schedules: Sequence[Schedule]) -> None:
    """Refuses, before weights are loaded, probes whose rows can't be cut into folds, where it is known which rows have a value.

    Raises:
        PlanError: with every step whose folds would lack a class.
    """
    problems: dict[Problem, None] = {}
    seen = set[tuple[Any, ...]]()
    for schedule in schedules:
        for step in (step for step in schedule.point.plan.steps if isinstance(step, nodes.FitProbe)):
            source = schedule.step(step.source).step
            if source.where is not None or step.read.pos.is_generated:
                continue
            reasons = reasons_of(step, schedule)
            key = (step.name, step.targets, step.groups, step.probe, step.folds, step.seed, reasons)
            if key in seen:
                continue
            seen.add(key)
            try:
                learned_rows(step, reasons)
            except PlanError as error:
                problems.update(dict.fromkeys(error.problems))
    if problems:
        raise PlanError(problems)


def reasons_of(
    step: nodes.FitProbe, schedule: Schedule, positions: Mapping[str, Mapping[str, Any]] | None = None, active: Sequence[int] | None = None
) -> tuple[str, ...]:
    """Returns, row by row, why a row is not trained on, as far as no value is needed to tell; empty where it is.

    Args:
        step: the probe's.
        schedule: of its point.
        positions: of the step that reads, where it has run.
        active: rows of that step that run; None for all.
    """
    own = schedule.step(step.source)
    found = own.reasons(step.intervention, step.read.name)
    if positions is not None:
        name = f"{step.intervention}/{step.read.name}" if own.step.is_list else step.read.name
        found = tuple(reason or late for reason, late in zip(found, positions[name]["reason"], strict=True))
    runs = set(range(step.n_rows) if active is None else active)
    return tuple(
        "filtered" if row not in runs else reason or ("column_missing" if target is None else "")
        for row, (reason, target) in enumerate(zip(found, step.targets, strict=True))
    )


def learned_rows(step: nodes.FitProbe, reasons: Sequence[str]) -> Learned:
    """Returns the rows that are trained on, with their folds.

    Raises:
        PlanError: they have fewer than two labels, too few prompts of a class, or a fold would lack a class.
    """
    path, which = f"steps.{step.name}", " on the rows that have a value"
    left = [None if reason else target for reason, target in zip(reasons, step.targets, strict=True)]
    refuse_few(path, step, left, step.classes, step.groups, which if any(reasons) else "")
    rows = tuple(row for row, target in enumerate(left) if target is not None)
    index = {label: number for number, label in enumerate(step.classes)}
    targets = numpy.array([index[left[row]] if index else left[row] for row in rows], dtype=numpy.float64)  # type: ignore[index]
    groups = numpy.unique([step.groups[row] for row in rows], return_inverse=True)[1]
    folds = _folds(step.probe, tuple(targets), tuple(groups), step.folds, step.seed)
    if step.probe == "logistic" and (found := lacking(targets, folds, len(step.classes))) is not None:
        fold, label = found
        expected = "rows of every class in every fold (equal prompts are kept together)"
        got = f"none of {quoted(step.classes[label])} in fold {fold} of {step.folds}"
        raise PlanError(Problem(f"{path}.folds", expected, got, "fewer `folds`, or another `seed`", "folds"))
    return Learned(rows, targets, groups, folds)


@lru_cache(maxsize=64)
def _folds(probe: str, targets: tuple[float, ...], groups: tuple[int, ...], n_folds: int, seed: int) -> Integers:
    """Returns the fold of each row, made once for all points of a sweep; it takes longer than a probe."""
    return make_folds(probe, numpy.array(targets), numpy.array(groups), n_folds, seed)


def fit_probe(step: nodes.FitProbe, made: Made, reasons: Sequence[str], facts: ModelFacts, digest: str) -> dict[str, Any]:
    """Returns what a probe's training leaves: `probe`, `scores`, `predictions` and `summary`.

    Args:
        step: what is trained.
        made: the output that it is trained on, a token a row.
        reasons: why rows are not trained on, empty where they are.
        facts: of the checkpoint, for the probe's stamp.
        digest: of the experiment, for the same.

    Raises:
        PlanError: the rows that are left can't be cut into folds.
    """
    values = made.value.data[0].to("cpu", torch.float64)
    starts, is_finite = made.value.starts, values.isfinite().all(dim=-1).tolist()
    reasons = [reason or ("" if is_finite[starts[row]] else "not_finite") for row, reason in enumerate(reasons)]
    learned = learned_rows(step, reasons)
    features = values[[starts[row] for row in learned.rows]].numpy()
    predicted = predict_out_of_fold(step.probe, features, learned.targets, learned.folds)
    draws = judge_shuffled(step.probe, features, learned.targets, learned.groups, learned.folds, step.seed)
    found = _scores(step, learned, predicted, draws)
    first = next(iter(SCORES[step.probe]))
    stamp = _stamp(step, len(learned.rows), facts, digest) | {"score_name": first, "score": found[first]["value"]}
    probe, converged = train(step.probe, features, learned.targets, step.classes, stamp)
    counts = Counter(learned.targets.astype(int).tolist())
    summary = {
        "probe": step.probe,
        "label": step.column,
        "features": step.features,
        "n": step.n_rows,
        "eligible": len(learned.rows),
        "left_out": dict(Counter(reason for reason in reasons if reason)),
        "n_prompts": int(learned.groups.max()) + 1,
        **({"classes": [{"label": label, "n": counts[index]} for index, label in enumerate(step.classes)]} if step.classes else {}),
        "folds": step.folds,
        "seed": step.seed,
        "l2": L2,
        "n_shuffles": N_SHUFFLES,
        "converged": converged and predicted.converged,
        "scores": found,
    }
    return {
        "probe": probe,
        "scores": _score_table(step, learned, predicted, found),
        "predictions": _prediction_table(step, learned, predicted, reasons),
        "summary": summary,
    }


def _scores(
    step: nodes.FitProbe, learned: Learned, predicted: Predicted, draws: Mapping[str, Sequence[float]]
) -> dict[str, dict[str, Any]]:
    """Returns each score with its interval, what it is without features, and what it is on shuffled labels."""
    plain = judge(step.probe, learned.targets, constant(step.probe, learned.targets))
    found = {}
    for name, value in judge(step.probe, learned.targets, predicted).items():
        score, own = SCORES[step.probe][name], draws.get(name, ())
        found[name] = {
            "value": value,
            "unit": score.unit,
            "interval": _interval(step.probe, name, value, learned, predicted),
            "baseline": plain.get(name),
            "shuffled": None
            if not own
            else {"mean": sum(own) / len(own), "low": min(own), "high": max(own), "draws": list(own)}
            | {"p_value": p_value(value, own, score.more_is_better)},
        }
    return found


def _interval(probe: str, name: str, value: float, learned: Learned, predicted: Predicted) -> dict[str, Any] | None:
    """Returns the interval of a score; equal prompts count as one draw."""
    groups: list[int] = learned.groups.tolist()
    found: Interval | None
    if name == "accuracy":
        found = of_fraction(value, max(groups) + 1)
    else:
        found = bootstrap_of(lambda weights: judge_weighted(probe, learned.targets, predicted, weights)[name], groups)
    return None if found is None else {"low": found.low, "high": found.high, "level": LEVEL, "method": found.method}


def _score_table(
    step: nodes.FitProbe, learned: Learned, predicted: Predicted, found: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Returns a line a score and fold, then one of all held-out predictions together, with no fold."""
    table = []
    for name, score in found.items():
        for fold in range(step.folds):
            held_out = learned.folds == fold
            own = Predicted(predicted.values[held_out], predicted.scores[held_out], predicted.converged)
            value = judge(step.probe, learned.targets[held_out], own).get(name)
            table.append(_score_line(name, fold, value, int(held_out.sum()), score["unit"]))
        line = _score_line(name, None, score["value"], len(learned.rows), score["unit"])
        line |= {"baseline": score["baseline"]}
        line |= {key: score["interval"][key] for key in ("low", "high", "method")} if score["interval"] else {}
        line |= {f"shuffled_{key}": score["shuffled"][key] for key in ("mean", "low", "high", "p_value")} if score["shuffled"] else {}
        table.append(line)
    return table


def _score_line(name: str, fold: int | None, value: float | None, n: int, unit: str) -> dict[str, Any]:
    line = {"score": name, "fold": fold, "value": value, "n": n, "unit": unit}
    columns = ("low", "high", "method", "baseline", "shuffled_mean", "shuffled_low", "shuffled_high", "shuffled_p_value")
    return line | dict.fromkeys(columns)


def _prediction_table(step: nodes.FitProbe, learned: Learned, predicted: Predicted, reasons: Sequence[str]) -> list[dict[str, Any]]:
    """Returns a line a row: what is said of it by a probe that was not trained on it, or why nothing is."""
    index = {row: number for number, row in enumerate(learned.rows)}
    table = []
    for row, (label, target) in enumerate(zip(step.labels, step.targets, strict=True)):
        line: dict[str, Any] = {"example_id": label, "label": target, "predicted": None, "score": None, "fold": None, "correct": None}
        if row in index:
            value, number = float(predicted.values[index[row]]), index[row]
            said = step.classes[int(value)] if step.classes else value
            line |= {"predicted": said, "score": float(predicted.scores[number]), "fold": int(learned.folds[number])}
            line |= {"correct": said == target} if step.classes else {}
        table.append(line | {"reason": reasons[row]})
    return table


def _stamp(step: nodes.FitProbe, n_rows: int, facts: ModelFacts, digest: str) -> dict[str, Any]:
    """Returns what a probe's file says of the place that it is of, and of how it was trained."""
    site = step.read.site
    return {
        "model": facts.key,
        "revision": facts.revision,
        "dtype": facts.dtype,
        "component": site.component,
        "layer": site.layers[0] if site.layers else None,
        "heads": None if site.heads is None else list(site.heads),
        "units": None if site.units is None else list(site.units),
        "position": str(step.read.pos),
        "read_in": step.model,
        "label": step.column,
        "n_rows": n_rows,
        "folds": step.folds,
        "seed": step.seed,
        "l2": L2,
        "digest": digest,
    }
