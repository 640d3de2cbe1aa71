"""What a run gives back: the results of every step of every point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from causalab_mini.errors import Problem, UsageError, did_you_mean, listed, quoted
from causalab_mini.plan import plan as nodes


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step left.

    Attributes:
        node: of the plan.
        results: `metrics` (table rows by name), `outputs` (tensors by name) and `checks`; of what observes, `positions` (every read and
            write: `rows`, `tokens`, `reason`, `content`) and `controls`; of a fit, `train/loss`, `train/eval` and `fit`; of `weights`,
            `weights`; of `attribute`, `attributions` and `agreement`; of `stream`,
            `points` (tensors by point and name), `records`, `verdicts`, `generated`, `fired` and `n_forwards`; of `fit_probe`, `probe` (a `LinearProbe`), `scores`, `predictions` and `summary`. Names are `<intervention>/<name>` in a step with a list of
            interventions.
        seconds: wall time.
    """

    node: nodes.Step
    results: Mapping[str, Any]
    seconds: float

    def __repr__(self) -> str:
        return f"<step {self.node.name!r}: {', '.join(self.results)}>"


@dataclass(frozen=True, slots=True)
class PointResult:
    """What one point left."""

    label: str
    values: Mapping[str, Any]
    digest: str
    steps: Mapping[str, StepResult]

    def __repr__(self) -> str:
        return f"<point {self.label!r}: {', '.join(self.steps)}>"

    def step(self, name: str, kind: type = object) -> StepResult:
        """Returns a step's results.

        Args:
            name: of the step.
            kind: what it is expected to be.

        Raises:
            UsageError: there is no such step, or it is of another kind.
        """
        if name not in self.steps:
            hint = did_you_mean(name, list(self.steps))
            raise UsageError(Problem("", f"the name of a step ({listed(self.steps)})", quoted(name), hint, "usage"))
        if not isinstance(self.steps[name].node, kind):
            raise UsageError(
                Problem("", f"a step of kind {quoted(kind.__name__)}", quoted(type(self.steps[name].node).__name__), code="usage")
            )
        return self.steps[name]


@dataclass(frozen=True, slots=True)
class Run:
    """What a request left, point by point.

    Attributes:
        points: that were run, in the order of the sweep.
        record: what the record of a run says of the engine.
        warnings: for the user.
        kept: labels of points that an earlier run has finished: their results are in the folder alone.
    """

    points: tuple[PointResult, ...]
    record: Mapping[str, Any]
    warnings: tuple[str, ...] = field(default=())
    kept: tuple[str, ...] = field(default=())

    def __repr__(self) -> str:
        first = self.points[0] if self.points else None
        return f"<run of {len(self.points)} points: {', '.join(first.steps) if first else ''}>"

    def point(self, label: str) -> PointResult:
        """Returns one point of a sweep.

        Raises:
            UsageError: there is no such point.
        """
        for point in self.points:
            if point.label == label:
                return point
        self.refuse_kept(label)
        labels = [point.label for point in self.points]
        raise UsageError(
            Problem(
                "",
                f"the label of a point ({listed(labels[:10])}{' …' if len(labels) > 10 else ''})",
                quoted(label),
                did_you_mean(label, labels),
                "usage",
            )
        )

    def step(self, name: str, kind: type = object) -> StepResult:
        """Returns a step's results, of a document without sweep.

        Raises:
            UsageError: it has a sweep, no such step, or one of another kind.
        """
        if self.kept == ("",):
            self.refuse_kept("")
        if len(self.points) != 1:
            raise UsageError(Problem("", "`run.point(label).step(name)` (the document is a sweep)", "`run.step(name)`", code="usage"))
        return self.points[0].step(name, kind)

    def refuse_kept(self, label: str) -> None:
        """Refuses a point that was not run.

        Raises:
            UsageError: an earlier run has finished it.
        """
        if label in self.kept:
            hint = "its files are in the folder; `Options(fresh=True)` runs all anew"
            got = f"{quoted(label)}, which an earlier run has finished" if label else "one that an earlier run has finished"
            raise UsageError(Problem("", "a point that was run", got, hint, "usage"))
