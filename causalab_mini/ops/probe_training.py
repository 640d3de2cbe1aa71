"""How a linear probe is trained and judged: cross-validation in which equal prompts stay together, its scores, and the same on shuffled labels.

Arrays only. scikit-learn does the fitting, and is imported when something is fitted. Features are standardised in every fit anew, by the mean
and deviation of the rows that it is fitted on, and never by those that it is judged on.

Source: cross-validation by group, scikit-learn's user guide, 3.1.2.3; the labels' permutations, Ojala & Garriga 2010, "Permutation tests for
studying classifier performance", test 1; a control beside a probe, Hewitt & Liang 2019, "Designing and interpreting probes with control tasks".
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from numpy.typing import NDArray

from causalab_mini.ops.linear_probe import LinearProbe

L2 = 1.0
"""Weight of the squared norm, on standardised features: `1 / C` of the logistic loss summed over rows, `alpha` of the squared error summed."""
N_SHUFFLES = 20
"""How often labels are shuffled: the least p-value that can be found is 1 in 21."""
MAX_ITERATIONS = 1000

Floats = NDArray[numpy.float64]
Integers = NDArray[numpy.int64]


@dataclass(frozen=True, slots=True)
class Score:
    """How predictions are judged.

    Attributes:
        unit: of the number.
        more_is_better: whether a greater one is better.
    """

    unit: str
    more_is_better: bool = True


SCORES: Mapping[str, Mapping[str, Score]] = {
    "logistic": {"accuracy": Score("fraction"), "balanced_accuracy": Score("fraction"), "roc_auc": Score("fraction")},
    "ridge": {
        "r2": Score("fraction"),
        "correlation": Score("correlation"),
        "mae": Score("label", more_is_better=False),
        "rmse": Score("label", more_is_better=False),
    },
}
"""By probe, the first of them the probe's own."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """What is said of rows by probes that were not fitted on them.

    Attributes:
        values: a class index or a number a row.
        scores: the probability of the second of two classes, of more that of the predicted one, or the number itself.
        converged: whether every fit came to its end.
    """

    values: Floats
    scores: Floats
    converged: bool


def make_folds(probe: str, targets: Floats, groups: Integers, n_folds: int, seed: int) -> Integers:
    """Returns the fold of each row: rows of one group in one fold, and of `logistic` as many of each class in each fold as that allows.

    Args:
        probe: `logistic` or `ridge`.
        targets: class indices or numbers.
        groups: by row; at least `n_folds` of them, of `logistic` in each class.
        n_folds: at least 2.
        seed: of the shuffle.
    """
    from sklearn.model_selection import KFold, StratifiedGroupKFold

    folds = numpy.zeros(len(targets), dtype=numpy.int64)
    if probe == "logistic":
        splitter = StratifiedGroupKFold(n_folds, shuffle=True, random_state=_state(seed))
        for fold, (_, held_out) in enumerate(splitter.split(targets, targets.astype(numpy.int64), groups)):
            folds[held_out] = fold
        return folds
    distinct, of_row = numpy.unique(groups, return_inverse=True)
    for fold, (_, held_out) in enumerate(KFold(n_folds, shuffle=True, random_state=_state(seed)).split(distinct)):
        folds[numpy.isin(of_row, held_out)] = fold
    return folds


def lacking(targets: Floats, folds: Integers, n_classes: int) -> tuple[int, int] | None:
    """Returns the first fold without a class, and the class; None where every fold has all."""
    for fold in range(int(folds.max()) + 1):
        there = set(targets[folds == fold].astype(int).tolist())
        if missing := [index for index in range(n_classes) if index not in there]:
            return fold, missing[0]
    return None


def predict_out_of_fold(probe: str, features: Floats, targets: Floats, folds: Integers) -> Predicted:
    """Returns what is predicted of each row by a probe that was fitted on the other folds.

    Args:
        probe: `logistic` or `ridge`.
        features: (row, feature), as the model has them.
        targets: class indices or numbers.
        folds: of each row.
    """
    values, scores, converged = numpy.zeros(len(targets)), numpy.zeros(len(targets)), True
    for fold in range(int(folds.max()) + 1):
        held_out = folds == fold
        known = targets[~held_out]
        if probe == "logistic" and len(numpy.unique(known)) < 2:  # of shuffled labels alone
            values[held_out], scores[held_out] = known[0], known[0]
            continue
        pipeline, has_converged = _fitted(probe, features[~held_out], known)
        converged = converged and has_converged
        if probe == "ridge":
            values[held_out] = scores[held_out] = pipeline.predict(features[held_out])
            continue
        probabilities = pipeline.predict_proba(features[held_out])
        best = probabilities.argmax(axis=1)
        values[held_out] = pipeline.classes_[best]
        is_of_two = len(numpy.unique(targets)) == 2
        scores[held_out] = probabilities[:, 1] if is_of_two else probabilities[numpy.arange(len(best)), best]
    return Predicted(values, scores, converged)


def shuffled(targets: Floats, groups: Integers, folds: Integers, generator: numpy.random.Generator) -> Floats:
    """Returns labels that were given to other prompts of their fold: a prompt's rows take those of another, chosen by a permutation.

    So a fold keeps the classes that it was balanced by, and equal prompts that have equal labels still have: it is prompts that are
    independent draws, and not rows.
    """
    found = numpy.empty_like(targets)
    for fold in range(int(folds.max()) + 1):
        rows = [numpy.flatnonzero(groups == group) for group in numpy.unique(groups[folds == fold])]
        for own, other in zip(rows, generator.permutation(len(rows)), strict=True):
            found[own] = numpy.resize(targets[rows[other]], len(own))
    return found


def judge_shuffled(
    probe: str, features: Floats, targets: Floats, groups: Integers, folds: Integers, seed: int
) -> dict[str, tuple[float, ...]]:
    """Returns, by score, what the whole cross-validation gives on shuffled labels, a number a shuffle.

    Args:
        probe: `logistic` or `ridge`.
        features: (row, feature), as the model has them.
        targets: class indices or numbers.
        groups: of each row.
        folds: of each row.
        seed: of the shuffles.
    """
    generator = numpy.random.default_rng(seed)
    draws: list[dict[str, float]] = []
    for _ in range(N_SHUFFLES):
        labels = shuffled(targets, groups, folds, generator)
        draws.append(judge(probe, labels, predict_out_of_fold(probe, features, labels, folds)))
    return {name: tuple(draw[name] for draw in draws if name in draw) for name in SCORES[probe]}


def p_value(value: float, draws: Sequence[float], more_is_better: bool) -> float:
    """Returns how often shuffled labels do as well, from 1 / (shuffles + 1) to 1.

    Source: Ojala & Garriga 2010, definition 1: (1 + the number of permutations at least as good) / (1 + permutations).
    """
    as_good = sum(draw >= value if more_is_better else draw <= value for draw in draws)
    return (1 + as_good) / (1 + len(draws))


def constant(probe: str, targets: Floats) -> Predicted:
    """Returns predictions that know no features: the most frequent class, or the mean of the labels, on every row."""
    if probe == "ridge":
        value = targets.mean()
    else:
        classes, counts = numpy.unique(targets, return_counts=True)
        value = classes[counts.argmax()]
    return Predicted(numpy.full(len(targets), value), numpy.full(len(targets), 0.5 if probe == "logistic" else value), True)


def judge(probe: str, targets: Floats, predicted: Predicted) -> dict[str, float]:
    """Returns the scores of predictions; without those that are not defined, and without `balanced_accuracy` where it is `accuracy`."""
    found = {name: float(values[0]) for name, values in judge_weighted(probe, targets, predicted, numpy.ones((1, len(targets)))).items()}
    return {name: value for name, value in found.items() if numpy.isfinite(value)}


def judge_weighted(probe: str, targets: Floats, predicted: Predicted, weights: Floats) -> dict[str, Floats]:
    """Returns the scores of predictions for several weightings of the rows, (weighting,) each; NaN where one is not defined.

    Args:
        probe: `logistic` or `ridge`.
        targets: (row,) class indices or numbers.
        predicted: of the same rows.
        weights: (weighting, row), how often each row counts.

    Source: scikit-learn's user guide, 3.4.4 and 3.4.6 (`accuracy_score`, `balanced_accuracy_score`, `roc_auc_score`, `r2_score`,
    `mean_absolute_error`, `root_mean_squared_error`); Pearson 1895.
    """
    with numpy.errstate(divide="ignore", invalid="ignore"):
        return _judge_classes(targets, predicted, weights) if probe == "logistic" else _judge_numbers(targets, predicted, weights)


def _judge_classes(targets: Floats, predicted: Predicted, weights: Floats) -> dict[str, Floats]:
    classes, counts = numpy.unique(targets, return_counts=True)
    is_right = predicted.values == targets
    found = {"accuracy": weights @ is_right / weights.sum(axis=1)}
    if len(set(counts.tolist())) > 1:
        of_class = (targets[:, None] == classes).astype(numpy.float64)
        totals = weights @ of_class
        recalls = weights @ (of_class * is_right[:, None]) / totals
        found["balanced_accuracy"] = numpy.where(totals > 0, recalls, 0.0).sum(axis=1) / (totals > 0).sum(axis=1)
    if len(classes) == 2:
        found["roc_auc"] = _roc_auc(targets == classes[1], predicted.scores, weights)
    return found


def _roc_auc(is_second: NDArray[numpy.bool_], scores: Floats, weights: Floats) -> Floats:
    """Returns the share of pairs, one row of each class, in which that of the second has the higher score; ties count half.

    Source: Mann & Whitney 1947; Hanley & McNeil 1982.
    """
    order = numpy.argsort(scores, kind="stable")
    starts = numpy.flatnonzero(numpy.diff(scores[order], prepend=numpy.nan) != 0)
    second = numpy.add.reduceat((weights * is_second)[:, order], starts, axis=1)
    first = numpy.add.reduceat((weights * ~is_second)[:, order], starts, axis=1)
    below = first.cumsum(axis=1) - first
    pairs: Floats = (second * (below + first / 2)).sum(axis=1)
    found: Floats = pairs / (second.sum(axis=1) * first.sum(axis=1))
    return found


def _judge_numbers(targets: Floats, predicted: Predicted, weights: Floats) -> dict[str, Floats]:
    weights = weights / weights.sum(axis=1, keepdims=True)
    errors = targets - predicted.values
    own = targets - (weights @ targets)[:, None]
    other = predicted.values - (weights @ predicted.values)[:, None]
    squares, variance = weights @ errors**2, (weights * own**2).sum(axis=1)
    together, of_predicted = (weights * own * other).sum(axis=1), (weights * other**2).sum(axis=1)
    tiny = numpy.finfo(numpy.float64).eps * numpy.abs(predicted.values).max(initial=0.0) ** 2
    return {
        "r2": numpy.where(variance > 0, 1 - squares / variance, numpy.nan),
        "correlation": numpy.where((variance > 0) & (of_predicted > tiny), together / numpy.sqrt(variance * of_predicted), numpy.nan),
        "mae": weights @ numpy.abs(errors),
        "rmse": numpy.sqrt(squares),
    }


def train(
    probe: str, features: Floats, targets: Floats, classes: tuple[str | int | bool, ...], stamp: Mapping[str, Any]
) -> tuple[LinearProbe, bool]:
    """Returns a probe that is fitted on all rows, and whether its fit came to its end.

    (x − m) / s · w + b is x · (w / s) + (b − m · w / s): the standardisation is folded into weight and bias, in fp64.

    Args:
        probe: `logistic` or `ridge`.
        features: (row, feature), as the model has them.
        targets: class indices or numbers.
        classes: the labels that the indices are of.
        stamp: of the probe.
    """
    pipeline, converged = _fitted(probe, features, targets)
    scaler, model = pipeline[0], pipeline[-1]
    weight = numpy.atleast_2d(model.coef_) / scaler.scale_
    bias = numpy.atleast_1d(model.intercept_) - weight @ scaler.mean_
    return LinearProbe(torch.from_numpy(weight).float(), torch.from_numpy(bias).float(), probe, classes, stamp), converged


def _fitted(probe: str, features: Floats, targets: Floats) -> tuple[Any, bool]:
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    logistic = LogisticRegression(C=1 / L2, solver="newton-cg", max_iter=MAX_ITERATIONS)  # thrice as fast here as the default
    pipeline = make_pipeline(StandardScaler(), logistic if probe == "logistic" else Ridge(alpha=L2))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        pipeline.fit(features, targets.astype(numpy.int64) if probe == "logistic" else targets)
    return pipeline, not said


def _state(seed: int) -> int:
    """Returns a seed that scikit-learn takes (below 2 ** 32), made of any."""
    return int(numpy.random.SeedSequence(seed).generate_state(1)[0])
