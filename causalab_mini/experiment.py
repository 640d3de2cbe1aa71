"""The whole way from a file to a folder: load, open, plan, schedule, run, write. What the command line and `load` stand on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from causalab_mini.data.table import find_data_root
from causalab_mini.errors import CausalabError, CheckError, PlanError, Problem
from causalab_mini.plan.build import build_request
from causalab_mini.plan.explain import explain
from causalab_mini.plan.load import Document, load_spec
from causalab_mini.plan.plan import Request
from causalab_mini.results.store import RunFolder
from causalab_mini.results.writer import Writer
from causalab_mini.schedule.located import Schedule, build_schedule
from causalab_mini.schedule.physical import Physical, PhysicalPass
from causalab_mini.shipped import find_document

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
    """Whom a run tells how it goes."""

    on_scheduled: Callable[[Physical], None] = lambda physical: None
    on_pass: Callable[[PhysicalPass], None] = lambda one: None
    on_fit: Callable[[Sequence[Job]], None] = lambda jobs: None
    on_point: Callable[[PointResult], None] = lambda point: None
    on_interrupted: Callable[[RunFolder, Mapping[str, Mapping[str, Any]]], None] = lambda folder, fits: None
    on_done: Callable[[RunFolder, Mapping[str, Any], Run], None] = lambda folder, summary, run: None


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
        from causalab_mini.engine.fitting import FitWatcher

        watcher = watcher or Watcher()
        request, schedules, engine = self.compile()
        folder = RunFolder.open(Path(out), request.digest)
        writer = Writer(folder, request, self.options.as_data())
        writer.begin(self.document)

        def on_point(point: PointResult) -> None:
            writer.point(point)
            watcher.on_point(point)

        def on_update(jobs: Sequence[Job]) -> None:
            writer.progress()
            watcher.on_fit(jobs)

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
                on_fit=FitWatcher(on_update, writer.best),
            )
        except KeyboardInterrupt:
            writer.end("interrupted", engine.describe())
            watcher.on_interrupted(folder, writer.fits)
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
