"""Writes a run's folder as its points come, and the best of a fit while it trains."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from causalab_mini.plan import plan as nodes
from causalab_mini.plan.load import Document
from causalab_mini.plan.stamps import stamp_of
from causalab_mini.results.places import Places
from causalab_mini.results.record import make_record
from causalab_mini.results.store import CHECKPOINTS, DOCUMENT, POINTS, RECORD, SUMMARY, RunFolder
from causalab_mini.results.summary import (
    best_points,
    points_to_tell,
    probe_entry,
    seen_rows,
    summarise,
    summarise_attribution,
    summarise_fit,
    summarise_probe,
    summarise_stream,
)
from causalab_mini.results.tables import table_bytes

if TYPE_CHECKING:
    from causalab_mini.engine.job import Job
    from causalab_mini.engine.run import PointResult, StepResult

MIN_SECONDS = 1.0
"""Between two times that a fit's best is written."""


class Writer:
    """A run's folder while it is run.

    Args:
        folder: that it is.
        request: what is run.
        options: how, for the record.

    Attributes:
        summary: what `summary.json` will say.
        warnings: for the user.
        fits: by checkpoint, the fits that are not done: how far they are.
    """

    def __init__(self, folder: RunFolder, request: nodes.Request, options: Mapping[str, Any]) -> None:
        self.folder = folder
        self.request = request
        self.options = options
        self.started = datetime.now(UTC)
        self.steps: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {"digest": request.digest, "metrics": []}
        self.fits: dict[str, dict[str, Any]] = {}
        self.warnings: dict[str, None] = {}
        self.jobs: dict[str, Job] = {}
        self.places = Places(request)
        self.unwritten: set[str] = set()
        self.written_at = -MIN_SECONDS

    def begin(self, document: Document) -> None:
        """Writes what is known before the first number."""
        self.record("running", None)  # first: a folder without a record is nobody's
        self.folder.write_json(DOCUMENT, document.raw, indent=2)
        self.folder.written.reverse()
        self.places.keep_said(self.folder)
        self.places.write(self.folder)
        if self.request.axes:
            self.folder.write_json(POINTS, {point.label: dict(point.values) for point in self.request.points})

    def record(self, status: str, engine: Mapping[str, Any] | None, error: Mapping[str, Any] | None = None) -> None:
        """Writes the record."""
        fits = list(self.fits.values())
        self.folder.write_json(RECORD, make_record(self.request, status, self.started, engine, self.steps, self.options, error, fits))

    def best(self, job: Job) -> None:
        """Takes a fit's parameters after an epoch that was better than those before it; they are written within a second or so."""
        name = checkpoint(job.label, job.step.name)
        self.jobs[name] = job
        self.unwritten.add(name)
        self.progress()

    def progress(self) -> None:
        """Writes what fits have been at their best since the last time, at most once a second, and how far they are."""
        now = time.monotonic()
        if self.unwritten and now - self.written_at >= MIN_SECONDS:
            for name in sorted(self.unwritten):
                self.keep(name)
            self.unwritten.clear()
            self.written_at = now
            self.record("running", None)

    def keep(self, name: str) -> None:
        """Writes the best parameters of a fit that goes on, and notes how far it is."""
        job = self.jobs[name]
        self.folder.write(name, parameters_bytes(job.kept_tensors(), job.step.params, self.request, job.digest), is_result=False)
        self.fits[name] = {
            "point": job.label,
            "step": job.step.name,
            "is_finished": False,
            "checkpoint": name,
            "epochs": job.epoch,
            "updates": job.n_done,
            "of_updates": job.n_updates,
            "kept_epoch": job.kept_epoch,
            "kept_value": job.kept_value,
        }

    def point(self, point: PointResult) -> None:
        """Writes a point's saves, and notes its summary."""
        self.places.point(point, self.folder)
        for name, step in point.steps.items():
            for metric, rows in step.results["metrics"].items():
                controls = step.results.get("controls", ())
                entries = list(summarise(point.label, point.values, name, metric, rows, controls))
                if isinstance(step.node, nodes.Fit):
                    picked = {"epoch_is_picked_on_these_rows": True} if step.node.keep == "best" else {}
                    entries = [entry | {"rows": "eval", **picked} for entry in entries]
                elif isinstance(step.node, nodes.Observe) and (seen := self.seen(point.label, step.node)):
                    entries = [entry | {"rows_seen_by": seen} for entry in entries]
                self.summary["metrics"] += entries
            if isinstance(step.node, nodes.Fit):
                self.summary.setdefault("fits", []).append(summarise_fit(point.label, point.values, name, step.results))
            if isinstance(step.node, nodes.Attribute):
                found = step.results
                entry = summarise_attribution(point.label, point.values, name, found["attributions"], found["agreement"])
                self.summary.setdefault("attributions", []).append(entry)
            if isinstance(step.node, nodes.Stream):
                self.summary.setdefault("streams", []).append(summarise_stream(point.label, point.values, name, step.results))
                self.warnings |= dict.fromkeys(points_to_tell(point.label, name, step.results))
            if isinstance(step.node, nodes.FitProbe):
                self.summary["metrics"] += summarise_probe(point.label, point.values, name, step.results)
                entry = probe_entry(point.label, point.values, name, step.results)
                self.summary.setdefault("probes", []).append(entry)
                if not entry["converged"]:
                    where = f"{point.label}: " if point.label else ""
                    self.warnings[f"{where}a fit of the probe `{name}` did not come to its end: its scores may be too low"] = None
            for save, suffix in _saves(step.node):
                parts = [part for part in (point.label, save.intervention, save.file_path) if part]
                self.folder.write("/".join(parts), self.saved(point, step, save, suffix))
            if isinstance(step.node, nodes.Fit):
                path = checkpoint(point.label, name)
                data = parameters_bytes(step.results["weights"], step.node.params, self.request, point.digest)
                self.folder.write(path, data, is_result=False)
                self.fits.pop(path, None)
                self.jobs.pop(path, None)
                self.unwritten.discard(path)
            self.steps.append(
                {
                    "point": point.label,
                    "step": name,
                    **({} if isinstance(step.node, nodes.Weights) else {"n_rows": step.node.n_rows}),
                    "seconds": round(step.seconds, 4),
                    "rows_a_batch": step.results["rows_a_batch"],
                    "peak_memory_bytes": step.results["peak_memory_bytes"],
                    **({"fit": step.results["fit"]} if "fit" in step.results else {}),
                    **({"n_forwards": step.results["n_forwards"]} if "n_forwards" in step.results else {}),
                    **({"points": _fired(step.results["fired"])} if "fired" in step.results else {}),
                    "checks": [check.as_data() for check in step.results["checks"]],
                }
            )

    def seen(self, label: str, step: nodes.Observe) -> dict[str, dict[str, int]]:
        """Returns which of a step's rows the fits have seen that made its coordinates; the user is told once."""
        plan = next(point.plan for point in self.request.points if point.label == label)
        found = seen_rows(step, self.request, plan)
        for fit, counts in found.items():
            said = " and ".join(f"{n} that it was {key.replace('_', ' ')}" for key, n in counts.items())
            self.warnings[f"`{step.name}` reports on rows that `{fit}` has seen: of {step.n_rows}, {said}"] = None
        return found

    def saved(self, point: PointResult, step: StepResult, save: nodes.SaveNode, suffix: str) -> bytes:
        """Returns a value of a step as a file."""
        from causalab_mini.results.tensors import output_bytes, record_bytes

        results, value = step.results, save.value
        if isinstance(step.node, nodes.Weights):
            featurizer = next(each for each in step.node.featurizers if each.name == value)
            parts = [part for part in featurizer.all if not part.parts]
            return parameters_bytes(results["weights"][value], parts, self.request, point.digest)
        if isinstance(step.node, nodes.Attribute):
            return table_bytes(results["attributions"], suffix)
        if isinstance(step.node, nodes.Stream):
            if value in results["points"]:
                return record_bytes(results["points"][value], point.digest)
            return table_bytes(results[value] if value in ("records", "verdicts") else results["generated"][value], suffix)
        if isinstance(step.node, nodes.FitProbe):
            return bytes(results["probe"].to_bytes()) if value == "probe" else table_bytes(results[value], suffix)
        if (made := results["outputs"].get(value)) is not None:
            return output_bytes(value, made.value, made.kind, made.groups, made.is_stacked, made.is_ragged, made.pattern, point.digest)
        if value in results:
            return table_bytes(results[value], suffix)
        if value in results.get("generated", {}):
            return table_bytes(results["generated"][value], suffix)
        metrics = results["metrics"]
        return table_bytes(metrics[value] if value in metrics else metrics[value.partition("/")[2]], suffix)

    def end(self, status: str, engine: Mapping[str, Any] | None, error: Mapping[str, Any] | None = None) -> None:
        """Writes the summary and the last record; of fits that were not finished, their best."""
        for name, job in self.jobs.items():
            self.keep(name)
            curves = {"train/loss": job.losses, "train/eval": job.evals}
            self.folder.write_json(name.replace(".safetensors", ".curves.json"), curves, is_result=False)
        if self.request.axes and (best := best_points(self.summary["metrics"], self.request)):
            self.summary["best"] = best
        if self.warnings:
            self.summary["warnings"] = list(self.warnings)
        self.folder.write_json(SUMMARY, self.summary)
        self.record(status, engine, error)


def checkpoint(label: str, step: str) -> str:
    """Returns where the best parameters of a fit are, below the folder of a run."""
    return "/".join(part for part in (CHECKPOINTS, label, f"{step}.safetensors") if part)


def parameters_bytes(tensors: Mapping[str, Any], featurizers: Sequence[nodes.Featurizer], request: nodes.Request, digest: str) -> bytes:
    """Returns parameters of featurizers as a file, each with the stamp of its place."""
    from causalab_mini.ops.featurizers import dump

    return dump(tensors, {each.name: stamp_of(each, request.facts) for each in featurizers}, digest)


def _saves(step: nodes.Step) -> list[tuple[nodes.SaveNode, str]]:
    """Returns the files of a step, those of a fit's evaluation too."""
    saves = [*step.saves, *(step.evaluation.saves if isinstance(step, nodes.Fit) else ())]
    return [(save, Path(save.file_path).suffix) for save in saves]


def _fired(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns, by point, at how many tokens it could fire and at how many it did; the summary has the rows."""
    return {point["point"]: {"eligible": point["eligible"], "fired": point["fired"]} for point in points}
