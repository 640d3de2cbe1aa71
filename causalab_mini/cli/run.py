"""`causalab-mini run`: a document, carried out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from causalab_mini.cli import options
from causalab_mini.errors import EXIT_OK, CheckError, Problem, UsageError, quoted

if TYPE_CHECKING:
    from causalab_mini.engine.run import Run
    from causalab_mini.results.store import RunFolder
    from causalab_mini.schedule.physical import Physical, PhysicalPass


def register(app: typer.Typer) -> None:
    """Adds the verb."""

    @app.command()
    def run(
        document: options.Document,
        out: Annotated[Path, typer.Option("--out", help="The folder of the results: new, empty, or of this very document.")],
        data_root: options.DataRoot = None,
        set_: options.Set = None,
        batch_size: Annotated[
            str, typer.Option("--batch-size", help="Rows a batch: a number, or `auto` for what fits into memory.")
        ] = "auto",
        check: Annotated[str, typer.Option("--check", help="How much is checked: `off`, `sample` or `full`.")] = "sample",
        device_map: options.DeviceMap = "auto",
        engine: options.EngineName = "nnterp",
        trust_remote_code: options.TrustRemoteCode = False,
        as_json: options.AsJson = False,
    ) -> None:
        """Run a document and write its results.

        Prints the written files on stdout; the summary, the map of a sweep and the checks on stderr.
        """
        from causalab_mini.experiment import Options, load

        settings = Options(
            device_map=device_map,
            batch_size=_rows(batch_size),
            check=options.choice("--check", check, ("off", "sample", "full")),  # type: ignore[arg-type]
            engine=options.choice("--engine", engine, ("nnterp", "hooks")),  # type: ignore[arg-type]
            trust_remote_code=trust_remote_code,
        )
        experiment = load(document, data_root=data_root, overrides=options.overrides(set_), options=settings)
        _Screen(as_json).run(experiment, out)


def _rows(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdigit() or int(text) < 1:
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
        self.facts: Any = None
        self.data: dict[str, Any] = {}
        self.exit_code = EXIT_OK

    def run(self, experiment: Any, out: Path) -> None:
        from causalab_mini.experiment import Watcher

        if self.is_live:
            self.progress = self.console.status("opening the checkpoint, finding every position")
            self.progress.start()
        try:
            experiment.run(out, Watcher(on_scheduled=self.scheduled, on_pass=self.advance, on_done=self.done))
        except CheckError as error:
            if not self.as_json:
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

    def close(self) -> None:
        if self.progress is not None:
            self.progress.stop()
            self.progress = None

    def done(self, folder: RunFolder, summary: list[dict[str, Any]], run: Run) -> None:
        from causalab_mini.cli.render import check_lines, heat_maps, summary_table

        self.close()
        if self.as_json:
            self.data = {"files": [str(path) for path in folder.written], "metrics": summary}
            return
        for path in folder.written:
            print(path)
        sys.stdout.flush()
        if summary:
            self.console.print(summary_table(summary))
        for heat_map in heat_maps(summary, self.console.width):
            self.console.print(heat_map)
        for line in check_lines(run):
            self.console.print(line, markup=False)
        for warning in run.warnings:
            self.console.print(f"warning: {warning}", markup=False)
