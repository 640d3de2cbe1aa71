"""The whole way from a file to a folder: load, open, plan, schedule, run, write. What the command line and `load` stand on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from causalab_mini.data.table import find_data_root
from causalab_mini.errors import CausalabError, CheckError, PlanError, Problem
from causalab_mini.plan.build import build_request
from causalab_mini.plan.explain import explain
from causalab_mini.plan.load import Document, load_spec
from causalab_mini.plan.plan import Request
from causalab_mini.results.record import make_record
from causalab_mini.results.store import DOCUMENT, POINTS, RECORD, SUMMARY, RunFolder
from causalab_mini.results.summary import summarise
from causalab_mini.results.tables import table_bytes
from causalab_mini.schedule.located import Schedule, build_schedule
from causalab_mini.schedule.physical import Physical, PhysicalPass
from causalab_mini.shipped import find_document

if TYPE_CHECKING:
    from causalab_mini.engine.contract import Engine
    from causalab_mini.engine.run import PointResult, Run


@dataclass(frozen=True, slots=True)
class Options:
    """How a run is carried out; none of it is part of what the experiment is."""

    device_map: str = "auto"
    batch_size: int | None = None
    check: Literal["off", "sample", "full"] = "sample"
    engine: Literal["nnterp", "hooks"] = "nnterp"
    trust_remote_code: bool = False


@dataclass(frozen=True, slots=True)
class Watcher:
    """Whom a run tells how it goes."""

    on_scheduled: Callable[[Physical], None] = lambda physical: None
    on_pass: Callable[[PhysicalPass], None] = lambda one: None
    on_point: Callable[[PointResult], None] = lambda point: None
    on_done: Callable[[RunFolder, list[dict[str, Any]], Run], None] = lambda folder, summary, run: None


@dataclass(slots=True)
class Experiment:
    """A loaded document, ready to be explained and run."""

    document: Document
    data_root: Path
    options: Options

    def __str__(self) -> str:
        return self.explain()

    def explain(self) -> str:
        """Returns the plan as text. Needs config and tokenizer of the checkpoint, no weights.

        Raises:
            PlanError: the document does not fit its rows, tokenizer or model.
            ModelError: the checkpoint can't be opened.
        """
        request, _, _ = self.compile()
        return explain(request)

    def open(self) -> Engine:
        """Returns the document's checkpoint, opened without weights.

        Raises:
            ModelError: it can't be opened.
        """
        from causalab_mini.engine.engines.hooks import HooksEngine
        from causalab_mini.engine.engines.nnterp import NNterpEngine

        kind: type[NNterpEngine] | type[HooksEngine] = NNterpEngine if self.options.engine == "nnterp" else HooksEngine
        base = None if self.document.path is None else self.document.path.parent
        with _naming(self.document):
            return kind.load(
                self.document.model, device_map=self.options.device_map, base=base, trust_remote_code=self.options.trust_remote_code
            )

    def compile(self) -> tuple[Request, list[Schedule], Engine]:
        """Returns everything that comes before the weights: the request, the schedule of every point, the opened checkpoint.

        Raises:
            PlanError: the document does not fit its rows, tokenizer or model; with every problem.
            ModelError: the checkpoint can't be opened.
        """
        engine = self.open()
        with _naming(self.document):
            request = build_request(self.document, self.data_root, engine)
            problems: dict[Problem, None] = {}
            schedules = []
            for point in request.points:
                try:
                    schedules.append(build_schedule(request, point))
                except CausalabError as error:
                    problems.update(dict.fromkeys(error.problems))
            if problems:
                raise PlanError(problems)
        return request, schedules, engine

    def run(self, out: str | Path, watcher: Watcher | None = None) -> Run:
        """Runs every point and writes the folder.

        Args:
            out: the folder; new, empty, or of this very experiment.
            watcher: whom to tell how it goes.

        Returns:
            The results, point by point.

        Raises:
            InputError: the document, its data or the folder is wrong; nothing has been written then.
            RunError: a pass or a file failed.
            CheckError: the run finished, its numbers are on disk, and a check of them failed.
        """
        from causalab_mini.engine.execute import execute

        watcher = watcher or Watcher()
        request, schedules, engine = self.compile()
        folder = RunFolder.open(Path(out), request.digest)
        writer = _Writer(folder, request, self.options)
        writer.begin(self.document)

        def on_point(point: PointResult) -> None:
            writer.point(point)
            watcher.on_point(point)

        try:
            run = execute(
                engine,
                request,
                schedules=schedules,
                batch_size=self.options.batch_size,
                check=self.options.check,
                on_point=on_point,
                on_scheduled=watcher.on_scheduled,
                on_pass=watcher.on_pass,
            )
        except KeyboardInterrupt:
            writer.end("interrupted", engine.describe())
            raise
        except CausalabError as error:
            writer.end("failed", engine.describe(), error.as_data())
            raise error.in_file(str(self.document.path or "")) from None
        except Exception as error:
            writer.end("failed", engine.describe(), {"errors": [{"code": "bug", "got": repr(error)}]})
            raise
        failed = [check for entry in writer.steps for check in entry["checks"] if check["status"] == "failed"]
        writer.end("finished", run.record)
        watcher.on_done(folder, writer.summary, run)
        if failed:
            raise CheckError([Problem("", f"the check of {check['check']} to pass", check["text"], code="check") for check in failed])
        return run


class _Writer:
    """Writes a run's folder as its points come."""

    def __init__(self, folder: RunFolder, request: Request, options: Options) -> None:
        self.folder = folder
        self.request = request
        self.options = options
        self.started = datetime.now(UTC)
        self.steps: list[dict[str, Any]] = []
        self.summary: list[dict[str, Any]] = []

    def begin(self, document: Document) -> None:
        """Writes what is known before the first number."""
        self.record("running", None)  # first: a folder without a record is nobody's
        self.folder.write_json(DOCUMENT, document.raw, indent=2)
        self.folder.written.reverse()
        if self.request.axes:
            self.folder.write_json(POINTS, {point.label: dict(point.values) for point in self.request.points})

    def record(self, status: str, engine: Mapping[str, Any] | None, error: Mapping[str, Any] | None = None) -> None:
        """Writes the record."""
        options = {
            "batch_size": self.options.batch_size or "auto",
            "check": self.options.check,
            "device_map": self.options.device_map,
            "trust_remote_code": self.options.trust_remote_code,
        }
        self.folder.write_json(RECORD, make_record(self.request, status, self.started, engine, self.steps, options, error))

    def point(self, point: PointResult) -> None:
        """Writes a point's saves, and notes its summary."""
        from causalab_mini.results.tensors import output_bytes

        for name, step in point.steps.items():
            for metric, rows in step.results["metrics"].items():
                self.summary += summarise(point.label, point.values, name, metric, rows)
            for save in step.node.saves:
                parts = [part for part in (point.label, save.intervention, save.file_path) if part]
                made = step.results["outputs"].get(save.value)
                if made is not None:
                    data = output_bytes(
                        save.value,
                        made.value,
                        made.kind,
                        made.groups,
                        made.is_stacked,
                        made.is_ragged,
                        made.pattern,
                        point.digest,
                    )
                else:
                    metrics = step.results["metrics"]
                    rows = metrics[save.value] if save.value in metrics else metrics[save.value.partition("/")[2]]
                    data = table_bytes(rows, Path(save.file_path).suffix)
                self.folder.write("/".join(parts), data)
            self.steps.append(
                {
                    "point": point.label,
                    "step": name,
                    "n_rows": step.node.n_rows,
                    "seconds": round(step.seconds, 4),
                    "rows_a_batch": step.results["rows_a_batch"],
                    "peak_memory_bytes": step.results["peak_memory_bytes"],
                    "checks": [check.as_data() for check in step.results["checks"]],
                }
            )

    def end(self, status: str, engine: Mapping[str, Any] | None, error: Mapping[str, Any] | None = None) -> None:
        """Writes the summary and the last record."""
        self.folder.write_json(SUMMARY, {"digest": self.request.digest, "metrics": self.summary})
        self.record(status, engine, error)


@contextmanager
def _naming(document: Document) -> Iterator[None]:
    """Names the document in errors that don't name a file yet."""
    try:
        yield
    except CausalabError as error:
        if error.file or document.path is None:
            raise
        raise error.in_file(str(document.path)) from error.__cause__


def load(
    path: str | Path,
    *,
    data_root: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    options: Options | None = None,
) -> Experiment:
    """Returns a document as an experiment that can be explained and run.

    Args:
        path: a file, or `bundled:NAME`.
        data_root: the folder that refs are looked up in; absent, it is looked for beside the document.
        overrides: new values by path, such as `{"model.dtype": "bf16"}`.
        options: how it is run.

    Raises:
        DocumentError: the file is no valid document; with every problem.
    """
    file = find_document(path)
    document = load_spec(file, overrides)
    root = find_data_root(None if data_root is None else Path(data_root), file)
    return Experiment(document, root, options or Options())


__all__ = ["Experiment", "Options", "Watcher", "load"]
