"""`causalab-mini run`: a document, carried out."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from causalab_mini.cli import options
from causalab_mini.errors import EXIT_OK, Problem, RunError, UsageError, quoted

if TYPE_CHECKING:
    from causalab_mini.engine.job import Job
    from causalab_mini.engine.run import Run
    from causalab_mini.results.writer import Writer
    from causalab_mini.schedule.physical import Physical, PhysicalPass

MAX_DIGITS = 9
"""Of a batch size."""


def register(app: typer.Typer) -> None:
    """Adds the verb."""

    @app.command()
    def run(
        document: options.Document,
        out: Annotated[
            Path, typer.Option("--out", help="The folder of the results: new, empty, or of an earlier run, which is continued.")
        ],
        data_root: options.DataRoot = None,
        set_: options.Set = None,
        batch_size: Annotated[
            str, typer.Option("--batch-size", help="Rows a batch: a number, or `auto` for what fits into memory.")
        ] = "auto",
        check: Annotated[str, typer.Option("--check", help="How much is checked: `off`, `sample` or `full`.")] = "sample",
        device_map: options.DeviceMap = "auto",
        engine: options.EngineName = "nnterp",
        trust_remote_code: options.TrustRemoteCode = False,
        fresh: Annotated[bool, typer.Option("--fresh", help="Run points that are finished anew, too.")] = False,
        wait: Annotated[bool, typer.Option("--wait", help="Wait until another run is done with the folder.")] = False,
        as_json: options.AsJson = False,
    ) -> None:
        """Run a document and write its results; points that the folder has already are kept.

        Prints the written files on stdout; the summary, the map of a sweep and the checks on stderr, after why each
        point runs. Ctrl-C and SIGTERM end the run after the forward under way; the same command goes on from there.
        """
        from causalab_mini.experiment import Options, load

        settings = Options(
            device_map=device_map,
            batch_size=_rows(batch_size),
            check=options.choice("--check", check, ("off", "sample", "full")),  # type: ignore[arg-type]
            engine=options.choice("--engine", engine, ("nnterp", "hooks")),  # type: ignore[arg-type]
            trust_remote_code=trust_remote_code,
            fresh=fresh,
            wait=wait,
        )
        experiment = load(document, data_root=data_root, overrides=options.overrides(set_), options=settings)
        _Screen(as_json).run(experiment, out)


def _rows(text: str) -> int | None:
    if text == "auto":
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS and int(text)):
        raise UsageError(Problem("--batch-size", "`auto` or a number above 0", quoted(text), code="usage"))
    return int(text)


class _Screen:
    """What a run prints."""

    def __init__(self, as_json: bool) -> None:
        from rich.console import Console

        self.as_json = as_json
        self.console = Console(stderr=True, highlight=False)
        self.is_live = sys.stderr.isatty() and not as_json
        self.progress: Any = None
        self.fits: Any = None
        self.facts: Any = None
        self.data: dict[str, Any] = {}
        self.exit_code = EXIT_OK

    def run(self, experiment: Any, out: Path) -> None:
        from causalab_mini.experiment import Watcher

        if self.is_live:
            self.progress = self.console.status("opening the checkpoint, finding every position")
            self.progress.start()
        try:
            experiment.run(
                out,
                Watcher(
                    on_waiting=self.waiting,
                    on_continued=self.continued,
                    on_scheduled=self.scheduled,
                    on_pass=self.advance,
                    on_fit=self.fitting,
                    on_stopping=self.stopping,
                    on_interrupted=self.interrupted,
                    on_done=self.done,
                ),
            )
        except RunError as error:
            if not self.data:
                raise
            self.data |= error.as_data()
            self.exit_code = error.exit_code
        finally:
            self.close()
        if self.as_json:
            print(json.dumps(self.data, indent=1, ensure_ascii=False))
        if self.exit_code:
            sys.exit(self.exit_code)

    def scheduled(self, physical: Physical) -> None:
        if not self.is_live:
            return
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.close()
        columns = (TextColumn("{task.fields[done]} of {task.fields[all]} passes"), BarColumn(), TimeRemainingColumn())
        self.facts = physical.facts
        total = sum(self.weight(one) for one in physical.passes.values())
        self.progress = Progress(*columns, TextColumn("{task.fields[rows]:,} rows"), console=self.console, transient=True)
        self.progress.start()
        self.progress.add_task("passes", total=total, done=0, all=len(physical.passes), rows=0)

    def weight(self, one: PhysicalPass) -> float:
        """Returns what a pass takes in relation to others, so that the time left is that of the work left."""
        from causalab_mini.schedule.rewrites.direct import operations

        return operations(one, self.facts) if self.facts is not None else 1.0

    def advance(self, one: PhysicalPass) -> None:
        if self.progress is not None:
            task = self.progress.tasks[0]
            fields = {"done": task.fields["done"] + 1, "rows": task.fields["rows"] + len(one.entries())}
            self.progress.update(task.id, advance=self.weight(one), **fields)

    def fitting(self, jobs: Sequence[Job]) -> None:
        """Shows how far fits are: the loss of the last update, and what the last evaluation gave."""
        if not self.is_live:
            return
        from causalab_mini.cli.render import fit_line

        if self.fits is None:
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self.close()
            self.fits = Progress(
                TextColumn("fit {task.fields[text]}"), BarColumn(), TimeRemainingColumn(), console=self.console, transient=True
            )
            self.fits.start()
            self.fits.add_task("fit", total=sum(job.n_updates for job in jobs), text="")
        done = sum(job.n_done for job in jobs)
        self.fits.update(self.fits.tasks[0].id, completed=done, total=sum(job.n_updates for job in jobs), text=fit_line(jobs))

    def waiting(self, who: str) -> None:
        self.close()
        self.console.print(f"waiting for the folder, {who}", markup=False)

    def continued(self, writer: Writer) -> None:
        """Says why points run."""
        from causalab_mini.cli.render import reason_lines

        if self.as_json:
            return  # they are in the data
        for line in reason_lines(writer.continued.why, len(writer.continued.kept), writer.aside):
            self.console.print(line, markup=False, soft_wrap=True)

    def stopping(self) -> None:
        """Says that the run is about to end; from within a signal's handler, where nothing else may be used."""
        os.write(2, b"\nending after this forward; once more ends at once\n")

    def interrupted(self, writer: Writer) -> None:
        """Says what is left of fits that were not finished."""
        self.close()
        for path, fit in writer.fits.items():
            where = f"{fit['point']}: " if fit["point"] else ""
            said = f"interrupted: {where}{fit['step']} after {fit['updates']} of {fit['of_updates']} updates; its best so far (epoch {fit['kept_epoch']})"
            self.console.print(f"{said} is in {writer.folder.path / path}", markup=False, soft_wrap=True)
        n_points = len(writer.planned)
        self.console.print(f"{len(writer.finished)} of {n_points} points are finished; the same command goes on from there", markup=False)

    def close(self) -> None:
        if self.fits is not None:
            self.fits.stop()
            self.fits = None
        if self.progress is not None:
            self.progress.stop()
            self.progress = None

    def done(self, writer: Writer, run: Run) -> None:
        from causalab_mini.cli.render import attribution_tables, best_lines, check_lines, fit_lines, heat_maps, summary_table

        self.close()
        summary = writer.summary
        if self.as_json:
            told = {key: value for key, value in summary.items() if key != "digest"}
            why = {**writer.continued.why, **dict.fromkeys(writer.continued.kept, "kept")}
            self.data = {"files": [str(path) for path in writer.files], "points": {label: why[label] for label in writer.planned}, **told}
            return
        for path in writer.files:
            print(path)
        sys.stdout.flush()
        metrics = summary["metrics"]
        if metrics:
            self.console.print(summary_table(metrics))
        for heat_map in heat_maps(metrics, self.console.width):
            self.console.print(heat_map)
        for table in attribution_tables(summary.get("attributions", ()), self.console.width):
            self.console.print(table)
        for line in [*fit_lines(summary.get("fits", ())), *best_lines(summary.get("best", ()))]:
            self.console.print(line, markup=False)
        checks = [(step["point"], check) for step in writer.steps for check in step["checks"]]
        for line in check_lines(checks):
            self.console.print(line, markup=False)
        for warning in (*run.warnings, *summary.get("warnings", ())):
            self.console.print(f"warning: {warning}", markup=False)
