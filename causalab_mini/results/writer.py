"""Writes a run's folder as its points come, and the best of a fit while it trains."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from causalab_mini.errors import CausalabError
from causalab_mini.plan import plan as nodes
from causalab_mini.plan.load import Document
from causalab_mini.plan.stamps import stamp_of
from causalab_mini.results.finished import Finished, find_kept, finished_name, key_of, set_aside
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
        fresh: whether points that are finished are run anew.

    Attributes:
        continued: what was found in the folder.
        finished: by label, the points that are finished, kept ones too.
        failed: by label, what points failed with.
        fits: by checkpoint, the fits that are not done: how far they are.
        aside: labels whose earlier results were moved to `earlier/`.
    """

    def __init__(self, folder: RunFolder, request: nodes.Request, options: Mapping[str, Any], fresh: bool = False) -> None:
        self.folder = folder
        self.request = request
        self.options = options
        self.started = datetime.now(UTC)
        self.continued = find_kept(folder, request, fresh)
        self.finished: dict[str, Finished] = dict(self.continued.kept)
        self.failed: dict[str, CausalabError] = {}
        self.fits: dict[str, dict[str, Any]] = {}
        self.jobs: dict[str, Job] = {}
        self.places = Places(request)
        self.unwritten: set[str] = set()
        self.written_at = -MIN_SECONDS
        self.planned = {point.label: point for point in request.points}
        self.aside: list[str] = []

    @property
    def in_order(self) -> list[Finished]:
        """The points that are finished, in the order of the sweep."""
        return [self.finished[point.label] for point in self.request.points if point.label in self.finished]

    @property
    def steps(self) -> list[dict[str, Any]]:
        """What `run.json` says of the steps of finished points."""
        return [step for one in self.in_order for step in one.steps]

    @property
    def summary(self) -> dict[str, Any]:
        """What `summary.json` says."""
        found: dict[str, Any] = {"digest": self.request.digest, "metrics": []}
        for one in self.in_order:
            for section, entries in one.summary.items():
                found.setdefault(section, []).extend(entries)
        if self.request.axes and (best := best_points(found["metrics"], self.request)):
            found["best"] = best
        if warnings := list(dict.fromkeys(said for one in self.in_order for said in one.warnings)):
            found["warnings"] = warnings
        return found

    @property
    def files(self) -> list[Path]:
        """The files of the run: what it is of, the results of each point, the summary."""
        names = [DOCUMENT, RECORD, *([POINTS] if self.request.axes else []), *(name for one in self.in_order for name in one.results)]
        return [self.folder.path / name for name in [*names, SUMMARY]]

    def begin(self, document: Document) -> None:
        """Moves aside what is another document's, and writes what is known before the first number."""
        self.aside = [label for label in self.continued.stale if set_aside(self.folder, label)]
        for label in self.continued.why:
            self.folder.remove(finished_name(label))
        if self.continued.why or self.was != ("finished", self.request.digest):
            self.record("running", self.engine_of_kept)  # first: a folder without a record is nobody's
        self.folder.write_if_other(DOCUMENT, document.raw, indent=2)
        self.places.continue_from(self.folder, self.continued.why)
        if self.request.axes:
            self.folder.write_if_other(POINTS, {point.label: dict(point.values) for point in self.request.points})
        else:
            self.folder.remove(POINTS)
        if (self.folder.path / SUMMARY).exists():
            self.folder.write_if_other(SUMMARY, self.summary)

    @property
    def was(self) -> tuple[Any, Any]:
        """The status and the digest in the record that the folder has."""
        record = self.folder.read_json(RECORD)
        return (record.get("status"), record.get("digest")) if isinstance(record, dict) else (None, None)

    @property
    def engine_of_kept(self) -> Mapping[str, Any] | None:
        """What the engine of the last kept point said of itself."""
        return next((one.engine for one in reversed(self.in_order) if one.engine), None)

    def end_kept(self) -> None:
        """Writes what is missing of a run whose every point was kept."""
        self.folder.write_if_other(SUMMARY, self.summary)
        if self.was != ("finished", self.request.digest):
            self.record("finished", self.engine_of_kept)

    def record(self, status: str, engine: Mapping[str, Any] | None, error: Mapping[str, Any] | None = None) -> None:
        """Writes the record."""
        fits = list(self.fits.values())
        points = {label: self.continued.why.get(label, "kept") for label in self.planned}
        failed = {label: failure.as_data() for label, failure in self.failed.items()}
        made = make_record(self.request, status, self.started, engine, self.steps, self.options, error, fits, points, failed)
        self.folder.write_json(RECORD, made)

    def fail(self, label: str, error: CausalabError) -> None:
        """Notes a point that failed."""
        self.failed[label] = error

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

    def point(self, point: PointResult, engine: Mapping[str, Any]) -> None:
        """Writes a point's saves and, last, what is known of it: it is finished then."""
        planned = self.planned[point.label]
        found = Finished(point.label, key_of(planned, self.request), planned.meaning, engine=engine)
        self.places.point(point, self.folder)
        for name, step in point.steps.items():
            self.summarise(found, point, name, step)
            for save, suffix in _saves(step.node):
                parts = [part for part in (point.label, save.intervention, save.file_path) if part]
                self.write(found, "/".join(parts), self.saved(point, step, save, suffix))
        for name, step in point.steps.items():
            if isinstance(step.node, nodes.Fit):
                path = checkpoint(point.label, name)
                data = parameters_bytes(step.results["weights"], step.node.params, self.request, point.digest)
                self.write(found, path, data, is_result=False)
                self.folder.remove(curves(path))
                self.fits.pop(path, None)
                self.jobs.pop(path, None)
                self.unwritten.discard(path)
        self.folder.write(finished_name(point.label), found.as_bytes(), is_result=False)
        self.finished[point.label] = found

    def write(self, found: Finished, name: str, data: bytes, is_result: bool = True) -> None:
        """Writes a file of a point."""
        self.folder.write(name, data, is_result)
        found.note(name, data)

    def summarise(self, found: Finished, point: PointResult, name: str, step: StepResult) -> None:
        """Notes what a step of a point has for the summary and the record."""
        where = (point.label, point.values, name)
        summary, warnings = found.summary, dict[str, None]()
        for metric, rows in step.results["metrics"].items():
            controls = step.results.get("controls", ())
            entries = list(summarise(*where, metric, rows, controls))
            if isinstance(step.node, nodes.Fit):
                picked = {"epoch_is_picked_on_these_rows": True} if step.node.keep == "best" else {}
                entries = [entry | {"rows": "eval", **picked} for entry in entries]
            elif isinstance(step.node, nodes.Observe) and (seen := self.seen(point.label, step.node, warnings)):
                entries = [entry | {"rows_seen_by": seen} for entry in entries]
            summary["metrics"] += entries
        match step.node:
            case nodes.Fit():
                summary.setdefault("fits", []).append(summarise_fit(*where, step.results))
            case nodes.Attribute():
                attributions, agreement = step.results["attributions"], step.results["agreement"]
                summary.setdefault("attributions", []).append(summarise_attribution(*where, attributions, agreement))
            case nodes.Stream():
                summary.setdefault("streams", []).append(summarise_stream(*where, step.results))
                warnings |= dict.fromkeys(points_to_tell(point.label, name, step.results))
            case nodes.FitProbe():
                summary["metrics"] += summarise_probe(*where, step.results)
                entry = probe_entry(*where, step.results)
                summary.setdefault("probes", []).append(entry)
                if not entry["converged"]:
                    at = f"{point.label}: " if point.label else ""
                    warnings[f"{at}a fit of the probe `{name}` did not come to its end: its scores may be too low"] = None
            case _:
                pass
        found.warnings += warnings
        found.steps.append(
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

    def seen(self, label: str, step: nodes.Observe, warnings: dict[str, None]) -> dict[str, dict[str, int]]:
        """Returns which of a step's rows the fits have seen that made its coordinates; the user is told once."""
        found = seen_rows(step, self.request, self.planned[label].plan)
        for fit, counts in found.items():
            said = " and ".join(f"{n} that it was {key.replace('_', ' ')}" for key, n in counts.items())
            warnings[f"`{step.name}` reports on rows that `{fit}` has seen: of {step.n_rows}, {said}"] = None
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
            self.folder.write_json(curves(name), {"train/loss": job.losses, "train/eval": job.evals}, is_result=False)
        self.folder.write_json(SUMMARY, self.summary)
        self.record(status, engine, error)


def checkpoint(label: str, step: str) -> str:
    """Returns where the best parameters of a fit are, below the folder of a run."""
    return "/".join(part for part in (CHECKPOINTS, label, f"{step}.safetensors") if part)


def curves(path: str) -> str:
    """Returns where the curves of a fit that was interrupted are, beside its best parameters."""
    return path.replace(".safetensors", ".curves.json")


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
