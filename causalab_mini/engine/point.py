"""One point of a request: its steps, in order, each with what the ones before it made."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from causalab_mini.engine.attribution import attribute
from causalab_mini.engine.checking import Checking
from causalab_mini.engine.contract import Engine
from causalab_mini.engine.featurizers import Featurizers, first_tensors
from causalab_mini.engine.fitting import Fits
from causalab_mini.engine.linear_probes import fit_probe, reasons_of
from causalab_mini.engine.made import Made
from causalab_mini.engine.observe import Observed, make_outputs
from causalab_mini.engine.row_rules import rows_of, rows_that_run
from causalab_mini.engine.run import PointResult, StepResult
from causalab_mini.engine.store import Store
from causalab_mini.engine.tables import continuations, metric_rows, positions
from causalab_mini.evidence.checks import Check, check_fit
from causalab_mini.evidence.memory import peak_memory_bytes
from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.located import Schedule, StepSchedule


class PointRun:
    """The steps of one point.

    Args:
        engine: the checkpoint.
        request: what is run.
        schedule: of the point.
        store: what has been run of the schedule of all points.
        fits: what trains.
        checking: what is checked; None for nothing.
    """

    def __init__(
        self, engine: Engine, request: nodes.Request, schedule: Schedule, store: Store, fits: Fits, checking: Checking | None
    ) -> None:
        self.engine = engine
        self.request = request
        self.schedule = schedule
        self.store = store
        self.fits = fits
        self.checking = checking
        self.label = schedule.point.label
        self.outputs: dict[str, Made] = {}
        self.featurizers = Featurizers(self.outputs)
        self.results: dict[str, StepResult] = {}
        self.tensors: dict[str, Mapping[str, Any]] = {}

    def run(self) -> PointResult:
        """Returns the results of every step."""
        for step in self.schedule.point.plan.steps:
            started = time.perf_counter()
            match step:
                case nodes.Observe():
                    results = self.observe(self.schedule.step(step.name))
                case nodes.Fit():
                    results = self.fit(step)
                case nodes.Weights():
                    results = self.weights(step)
                case nodes.Attribute():
                    results = self.attribute(step)
                case nodes.Stream():
                    results = self.stream(step)
                case nodes.FitProbe():
                    results = self.fit_probe(step)
            results |= {"rows_a_batch": max(self.store.sizes.used, default=0), "peak_memory_bytes": peak_memory_bytes()}
            self.results[step.name] = StepResult(step, results, time.perf_counter() - started)
        return PointResult(self.label, self.schedule.point.values, self.schedule.point.digest, self.results)

    def observe(self, schedule: StepSchedule) -> dict[str, Any]:
        """Returns what a step's interventions and controls find, and the outputs that it makes of it."""
        step = schedule.step
        rows = rows_of(schedule, self.results, self.outputs)
        observed: dict[str, Observed] = {}
        checks: list[Check] = []
        metrics: dict[str, list[dict[str, Any]]] = {}
        generated: dict[str, list[dict[str, Any]]] = {}
        for intervention in step.interventions:
            found = observed[intervention.name] = self.found(schedule, intervention, rows)
            for metric in intervention.metrics:
                name = f"{intervention.name}/{metric.name}" if step.is_list else metric.name
                metrics[name] = self.table(schedule, intervention, metric, found)
            for said, lines in continuations(schedule, intervention, found).items():
                generated[f"{intervention.name}/{said}" if step.is_list else said] = lines
            if self.checking is not None:
                checks += self.checking.of(schedule, intervention, found, self.outputs, self.featurizers)
        controls = []
        for control in step.controls:
            controls += self.control(schedule, control, rows, checks)
        made = make_outputs(step, observed, self.outputs)
        self.outputs |= made
        self.store.make(self.label, step.name, made)
        return {
            "positions": positions(schedule, self.request.prompts, observed),
            "metrics": metrics,
            "outputs": made,
            "generated": generated,
            "controls": controls,
            "checks": checks,
        }

    def found(self, schedule: StepSchedule, intervention: nodes.Intervention, rows: Sequence[int]) -> Observed:
        """Returns what the passes of an intervention, or a control, find."""
        return self.store.observe(self.label, schedule, intervention, rows, self.featurizers)

    def table(
        self, schedule: StepSchedule, intervention: nodes.Intervention, metric: nodes.Metric, found: Observed
    ) -> list[dict[str, Any]]:
        """Returns a metric's rows."""
        return metric_rows(schedule, intervention, metric, found, self.request.prompts, self.engine.tokenizer)

    def control(self, schedule: StepSchedule, control: nodes.Control, rows: Sequence[int], checks: list[Check]) -> list[dict[str, Any]]:
        """Returns a control's tables, one entry a metric with a table a draw, and checks that it did what it is for."""
        observed = [self.found(schedule, draw, rows) for draw in control.draws]
        if self.checking is not None:
            reference = None if control.reference is None else self.found(schedule, control.reference, rows)
            checks += self.checking.of_control(schedule, control, observed, reference)
        entries = []
        for metric in control.draws[0].metrics:
            tables = [self.table(schedule, draw, metric, found) for draw, found in zip(control.draws, observed, strict=True)]
            name = f"{control.of}/{metric.name}" if schedule.step.is_list else metric.name
            entries.append({"kind": control.kind, "metric": name, "tables": tables})
        return entries

    def fit(self, step: nodes.Fit) -> dict[str, Any]:
        """Returns what a fit leaves: its curves, what was learned, and how that does on the rows that it is judged on."""
        training = self.schedule.trainings[step.name]
        rows = rows_of(training, self.results, self.outputs)
        fitted = self.fits.of(self.schedule, step, rows, self.outputs, self.featurizers)
        keys = self.store.physical.learned.get((self.label, step.name), {})
        for name, learned in fitted.coordinates.items():
            self.featurizers.learned[name] = learned
            if name in keys:
                self.store.featurizers.learned[keys[name]] = learned
        self.tensors |= fitted.tensors
        results = self.observe(self.schedule.step(step.name))
        results["checks"].append(check_fit(step.name, fitted.moved))
        curves = {"train/loss": fitted.losses, "train/eval": fitted.evals}
        return results | curves | {"weights": fitted.tensors, "fit": fitted.record}

    def weights(self, step: nodes.Weights) -> dict[str, Any]:
        """Returns the parameters of featurizers as they are, by featurizer and part."""
        tensors = {
            featurizer.name: {part.name: self.parameters(part) for part in featurizer.all if not part.parts}
            for featurizer in step.featurizers
        }
        return {"metrics": {}, "outputs": {}, "checks": [], "weights": tensors}

    def parameters(self, featurizer: nodes.Featurizer) -> Mapping[str, Any]:
        """Returns a featurizer's parameters: those that a fit found, else its first."""
        return self.tensors.get(featurizer.name) or first_tensors(featurizer, self.outputs)

    def attribute(self, step: nodes.Attribute) -> dict[str, Any]:
        """Returns the estimates of an attribution."""
        schedule = self.schedule.attributions[step.name]
        rows = rows_of(schedule, self.results, self.outputs)
        found = attribute(self.engine, self.request, self.label, step, schedule, rows, self.outputs, self.featurizers, self.store.sizes)
        return {"metrics": {}, "outputs": {}, "checks": [], "attributions": found.table, "agreement": found.agreement}

    def fit_probe(self, step: nodes.FitProbe) -> dict[str, Any]:
        """Returns a linear probe of what an earlier step has read, with its scores and predictions."""
        source = self.schedule.step(step.source).step
        active = rows_that_run(source, self.results)
        reasons = reasons_of(step, self.schedule, self.results[step.source].results["positions"], active)
        found = fit_probe(step, self.outputs[step.features], reasons, self.request.facts, self.schedule.point.digest)
        return {"metrics": {}, "outputs": {}, "checks": [], **found}

    def stream(self, step: nodes.Stream) -> dict[str, Any]:
        """Returns what is recorded while the model goes on from the rows: the very numbers of `causalab-mini probe`."""
        from causalab_mini.engine.engines.base import BaseEngine
        from causalab_mini.probing.run.steps import run_step

        assert isinstance(self.engine, BaseEngine)
        return {"metrics": {}, "outputs": {}, "checks": [], **run_step(self.engine, self.request, step, self.store.sizes)}
