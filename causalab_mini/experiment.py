"""The whole way from a file to a folder: load, open, plan, schedule, run, write. What the command line and `load` stand on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from causalab_mini.data.table import find_data_root
from causalab_mini.errors import CausalabError, CheckError, PlanError, Problem, RunError
from causalab_mini.plan.build import build_request
from causalab_mini.plan.explain import explain
from causalab_mini.plan.load import Document, load_spec
from causalab_mini.plan.plan import Request
from causalab_mini.results.store import RunFolder
from causalab_mini.results.writer import Writer
from causalab_mini.schedule.located import Schedule, build_schedule
from causalab_mini.schedule.physical import Physical, PhysicalPass
from causalab_mini.shipped import find_document
from causalab_mini.stopping import Stopping

if TYPE_CHECKING:
    from causalab_mini.engine.contract import Engine
    from causalab_mini.engine.job import Job
    from causalab_mini.engine.run import PointResult, Run


@dataclass(frozen=True, slots=True)
class Options:
    """How a run is carried out; none of it is part of what the experiment is."""

    device_map: str = "auto"
    batch_size: int | None = None
    check: Literal["off", "sample", "full"] = "sample"
    engine: Literal["nnterp", "hooks"] = "nnterp"
    trust_remote_code: bool = False
    fresh: bool = False
    """Whether points that are finished are run anew."""
    wait: bool = False
    """Whether another run into the same folder is waited for."""

    def as_data(self) -> dict[str, Any]:
        """Returns what the record of a run says of them."""
        return {
            "batch_size": self.batch_size or "auto",
            "check": self.check,
            "device_map": self.device_map,
            "trust_remote_code": self.trust_remote_code,
        }


@dataclass(frozen=True, slots=True)
class Watcher:
    """Whom a run tells how it goes.

    Attributes:
        on_waiting: who has the folder, in words, before it is waited for.
        on_continued: the writer, once it is known which points run, and why.
        on_scheduled, on_pass, on_fit, on_point: what will be run, and what has been.
        on_stopping: that the run ends after the forward under way; may be called anywhere in the code.
        on_interrupted: the writer, where a signal ended the run.
        on_done: the writer and what was run, once all is written; some points may have failed.
    """

    on_waiting: Callable[[str], None] = lambda who: None
    on_continued: Callable[[Writer], None] = lambda writer: None
    on_scheduled: Callable[[Physical], None] = lambda physical: None
    on_pass: Callable[[PhysicalPass], None] = lambda one: None
    on_fit: Callable[[Sequence[Job]], None] = lambda jobs: None
    on_point: Callable[[PointResult], None] = lambda point: None
    on_stopping: Callable[[], None] = lambda: None
    on_interrupted: Callable[[Writer], None] = lambda writer: None
    on_done: Callable[[Writer, Run], None] = lambda writer, run: None


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
        from causalab_mini.engine.linear_probes import refuse_unfoldable

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
            refuse_unfoldable(request, schedules)
        return request, schedules, engine

    def run(self, out: str | Path, watcher: Watcher | None = None) -> Run:
        """Runs every point that the folder does not have yet, and writes the folder.

        Args:
            out: the folder; new, empty, or of an earlier run of a document.
            watcher: whom to tell how it goes.

        Returns:
            The results of the points that were run; those of others are in the folder.

        Raises:
            InputError: the document, its data or the folder is wrong, or another run has the folder; nothing has been written then.
            RunError: a point, a pass or a file failed; points that did not are on disk.
            CheckError: the run finished, its numbers are on disk, and a check of them failed.
        """
        watcher = watcher or Watcher()
        request, schedules, engine = self.compile()
        with RunFolder.open(Path(out), wait=self.options.wait, on_waiting=watcher.on_waiting) as folder:
            writer = Writer(folder, request, self.options.as_data(), self.options.fresh)
            writer.begin(self.document)
            watcher.on_continued(writer)
            if writer.continued.why:
                own = [schedule for schedule in schedules if schedule.point.label in writer.continued.why]
                run = self._carry_out(request, own, engine, writer, watcher)
            else:
                from causalab_mini.engine.run import Run

                run = Run((), {}, kept=tuple(writer.finished))
                writer.end_kept()
            if writer.finished:
                watcher.on_done(writer, run)
        file = str(self.document.path or "")
        if writer.failed:
            raise RunError(_of_points(writer.failed), file)
        failed = [check for entry in writer.steps for check in entry["checks"] if check["status"] == "failed"]
        if failed:
            raise CheckError([Problem("", f"the check of {check['check']} to pass", check["text"], code="check") for check in failed])
        return run

    def _carry_out(self, request: Request, schedules: Sequence[Schedule], engine: Engine, writer: Writer, watcher: Watcher) -> Run:
        """Runs some points, and writes what they leave and the record, however it ends."""
        from causalab_mini.engine.execute import execute
        from causalab_mini.engine.fitting import FitWatcher

        def on_point(point: PointResult) -> None:
            writer.point(point, engine.describe())
            watcher.on_point(point)

        def on_update(jobs: Sequence[Job]) -> None:
            writer.progress()
            watcher.on_fit(jobs)

        try:
            with Stopping(watcher.on_stopping) as stopping:
                run = execute(
                    engine,
                    request,
                    schedules=schedules,
                    batch_size=self.options.batch_size,
                    check=self.options.check,
                    on_point=on_point,
                    on_scheduled=watcher.on_scheduled,
                    on_pass=watcher.on_pass,
                    on_fit=FitWatcher(on_update, writer.best),
                    on_failed=writer.fail,
                    pause=stopping.pause,
                )
        except KeyboardInterrupt:
            with suppress(CausalabError):
                writer.end("interrupted", engine.describe())
            watcher.on_interrupted(writer)
            raise
        except CausalabError as error:
            with suppress(CausalabError):  # where a file can't be written, the record can't either: the first error is the one to read
                writer.end("failed", engine.describe(), error.as_data())
            raise error.in_file(str(self.document.path or "")) from None
        except Exception as error:
            with suppress(CausalabError):
                writer.end("failed", engine.describe(), {"errors": [{"code": "bug", "got": repr(error)}]})
            raise
        if writer.failed:
            writer.end("failed", run.record, {"errors": [problem.as_data() for problem in _of_points(writer.failed)]})
        else:
            writer.end("finished", run.record)
        return replace(run, kept=tuple(writer.continued.kept))


def _of_points(failed: Mapping[str, CausalabError]) -> list[Problem]:
    """Returns what points failed with, each problem once, with the first point that has it."""
    found: dict[Problem, list[str]] = {}
    for label, error in failed.items():
        for problem in error.problems:
            found.setdefault(problem, []).append(label)
    return [replace(problem, path=": ".join(part for part in (_some(labels), problem.path) if part)) for problem, labels in found.items()]


def _some(labels: Sequence[str]) -> str:
    return labels[0] + (f" and {len(labels) - 1} more points" if len(labels) > 1 else "")


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
