"""`show`, `compare`, `export`: results, read back."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from causalab_mini.cli import options
from causalab_mini.errors import EXIT_RUN_FAILED, UsageError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from causalab_mini.results.reading import SavedRun, SavedTensor, Table

MAX_PATHS = 12
MAX_CHANGED = 5
MAX_METRICS = 24

Folder = Annotated[Path, typer.Argument(metavar="OUT", help="A folder of results.")]


def register(app: typer.Typer) -> None:
    """Adds the verbs."""
    app.command()(show)
    app.command()(compare)
    app.command()(export)


def show(
    out: Folder,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A table, or a file of tensors; without it, an overview.")] = None,
    point: Annotated[str | None, typer.Option("--point", metavar="LABEL", help="One point of a sweep. [default: all]")] = None,
    rows: Annotated[int, typer.Option("--rows", min=1, help="How many rows of a table are printed.")] = 20,
    as_json: options.AsJson = False,
) -> None:
    """Show results again: what was asked, what came out, what was checked; or one of their tables."""
    from causalab_mini.results.reading import open_run

    run = open_run(out)
    if name is None:
        _overview(run, point, as_json)
        return
    if name == "metrics" and name not in run.tables:
        table = run.metrics() if point is None else run.point(point).metrics()
    else:
        try:
            table = run.table(name, point)
        except UsageError as error:
            tensors = _tensors(run, name, point)
            if not tensors:
                raise error from None
            _print_tensors(tensors, as_json)
            return
    if as_json:
        print(json.dumps(list(table.rows), indent=1, ensure_ascii=False))
        return
    console = _console()
    console.print(_rendered(table, rows))
    if len(table) > rows:
        console.print(f"and {len(table) - rows} more rows (--rows {len(table)})", markup=False)
    if table.missing:
        console.print(f"not there at {len(table.missing)} points: {', '.join(table.missing[:5])}", markup=False)


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False)


def _overview(run: SavedRun, label: str | None, as_json: bool) -> None:
    from causalab_mini.cli.render import attribution_tables, best_lines, check_lines, fit_lines, heat_maps, summary_table

    chosen = None if label is None else run.point(label).label
    summary = run.summary if run.has_summary else {}
    parts = {
        key: [entry for entry in summary.get(key, ()) if chosen in (None, entry["point"])]
        for key in ("metrics", "attributions", "fits", "best")
    }
    checks = [
        (step["point"], check)
        for step in run.record.get("steps", ())
        if chosen in (None, step["point"])
        for check in step.get("checks", ())
    ]
    files = [
        "/".join(part for part in (point, file.path) if part)
        for point in ([chosen] if chosen is not None else run.points)
        for file in run.files
        if (run.path / point / file.path).is_file()
    ]
    if as_json:
        data = {"path": str(run.path), "status": run.status, "digest": run.digest, "record": run.record, "points": run.points}
        print(json.dumps({**data, "summary": summary, "files": files}, indent=1, ensure_ascii=False))
        return
    console = _console()
    for key, text in run.facts().items():
        console.print(f"{key:<8} {text}", markup=False)
    if not run.has_summary:
        console.print(f"there is no summary: the run did not come to its end ({run.status})", markup=False)
    if parts["metrics"]:
        console.print(summary_table(parts["metrics"]))
    for heat_map in heat_maps(parts["metrics"], console.width):
        console.print(heat_map)
    for table in attribution_tables(parts["attributions"], console.width):
        console.print(table)
    if run.has_summary and (fired := run.fired()).rows:
        console.print(_rendered(fired, MAX_METRICS))
    for line in [*fit_lines(parts["fits"]), *best_lines(parts["best"]), *check_lines(checks)]:
        console.print(line, markup=False)
    for warning in summary.get("warnings", ()):
        console.print(f"warning: {warning}", markup=False)
    for file in files[:MAX_PATHS]:
        console.print(str(run.path / file), markup=False, soft_wrap=True)
    if len(files) > MAX_PATHS:
        console.print(f"and {len(files) - MAX_PATHS} more files; tables: {', '.join(run.tables)}", markup=False)


def _rendered(table: Table, n_rows: int) -> RenderableType:
    from rich import box
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(
        title=Text(f"{table.name} ({len(table)} row{'' if len(table) == 1 else 's'})"),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    constant = {name for name in ("metric", "unit", "estimand_version", "produced_by") if _has_one_value(table, name)}
    names = [name for name in table.columns if name not in constant]
    for name in names:
        is_number = any(isinstance(row[name], int | float) and not isinstance(row[name], bool) for row in table.rows[:n_rows])
        grid.add_column(Text(name), overflow="fold", justify="right" if is_number else "left")
    for row in table.rows[:n_rows]:
        grid.add_row(*(Text(_shown(row[name])) for name in names))
    if constant:
        grid.caption = Text(", ".join(f"{name} {table.rows[0][name]}" for name in table.columns if name in constant))
        grid.caption_justify = "left"
    return grid


def _has_one_value(table: Table, name: str) -> bool:
    return len(table) > 1 and name in table.columns and len({str(row[name]) for row in table.rows}) == 1


def _shown(cell: Any) -> str:
    from causalab_mini.plan.sweep import show_value

    if cell is None:
        return "–"
    if isinstance(cell, float):
        return f"{cell:.6g}"
    text = cell if isinstance(cell, str) else show_value(cell)
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def _tensors(run: SavedRun, name: str, point: str | None) -> dict[str, SavedTensor]:
    found = run.tensors(point)
    return {label: tensor for label, tensor in found.items() if name in (tensor.path.stem, tensor.path.name, tensor.key) or label == name}


def _print_tensors(tensors: Mapping[str, SavedTensor], as_json: bool) -> None:
    if as_json:
        data = [
            {"name": name, "file": str(each.path), "key": each.key, "dtype": each.dtype, "shape": list(each.shape)}
            for name, each in tensors.items()
        ]
        print(json.dumps(data, indent=1, ensure_ascii=False))
        return
    for name, each in tensors.items():
        print(f"{name}  {each.dtype} {list(each.shape)}")


def compare(
    out_a: Annotated[Path, typer.Argument(metavar="OUT_A", help="A folder of results.")],
    out_b: Annotated[Path, typer.Argument(metavar="OUT_B", help="Another. Differences are B − A.")],
    tolerance: Annotated[float, typer.Option("--tolerance", min=0.0, help="A number has changed where the two differ by more.")] = 0.0,
    fail_on_change: Annotated[bool, typer.Option("--fail-on-change", help="Exit 1 if anything has changed.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Compare two runs: what differs in what was asked, by how much each metric differs on the same rows, which rows changed."""
    from causalab_mini.results.reading import open_run
    from causalab_mini.results.reading.compare import compare_runs

    found = compare_runs(open_run(out_a), open_run(out_b), tolerance)
    if as_json:
        print(json.dumps(found, indent=1, ensure_ascii=False))
    else:
        console = _console()
        for part in _comparison(found):
            console.print(part, markup=False, soft_wrap=isinstance(part, str))
    if fail_on_change and found["is_changed"]:
        sys.exit(EXIT_RUN_FAILED)


def _comparison(found: Mapping[str, Any]) -> Iterator[RenderableType]:
    for side in ("a", "b"):
        yield f"{side.upper()}  {found[side]['path']}  {found[side]['status']}, digest {found[side]['digest'][:12]}"
    yield "the same document" if found["same_digest"] else "another document"
    for entry in [*found["documents"], *found["records"]][:MAX_PATHS]:
        yield f"  {entry['path']}: {_brief(entry['a'])} → {_brief(entry['b'])}"
    if (n_more := len(found["documents"]) + len(found["records"]) - MAX_PATHS) > 0:
        yield f"  and {n_more} more (--json)"
    metrics = found["metrics"]
    told = [entry for entry in metrics if entry.get("n_changed") != 0 or entry["n_only_in_a"] or entry["n_only_in_b"]]
    if len(told) > MAX_METRICS:
        told.sort(key=_size, reverse=True)
    if told:
        yield _differences(told[:MAX_METRICS])
    if len(told) > MAX_METRICS:
        yield f"and {len(told) - MAX_METRICS} more, which differ less (--json)"
    if told and len(metrics) > len(told):
        yield f"no row changed in {len(metrics) - len(told)} of {len(metrics)} metrics"
    for why in dict.fromkeys(entry["why"] for entry in metrics if entry["why"]):
        entries = [entry for entry in metrics if entry["why"] == why]
        yield f"not paired: {_place(entries[0])}{f' and {len(entries) - 1} more' if len(entries) > 1 else ''}: {why}"
    changed = [entry for entry in metrics if entry.get("n_changed")]
    for entry in changed[:MAX_CHANGED]:
        said = "; ".join(f"{row['example_id']}: {_brief(row['a'])} → {_brief(row['b'])}" for row in entry["changed"][:MAX_CHANGED])
        more = f"; and {entry['n_changed'] - MAX_CHANGED} more" if entry["n_changed"] > MAX_CHANGED else ""
        yield f"changed: {_place(entry)}: {said}{more}"
    if len(changed) > MAX_CHANGED:
        yield f"rows of {len(changed) - MAX_CHANGED} more changed (--json)"
    for side in ("a", "b"):
        if alone := found[f"only_in_{side}"]:
            more = f" and {len(alone) - MAX_CHANGED} more" if len(alone) > MAX_CHANGED else ""
            yield f"only in {side.upper()}: {'; '.join(_place(entry) for entry in alone[:MAX_CHANGED])}{more}"
    if not found["is_changed"]:
        yield "nothing has changed"


def _size(entry: Mapping[str, Any]) -> tuple[float, int]:
    return abs(entry["difference"] or 0.0), entry.get("n_changed", 0)


def _place(entry: Mapping[str, Any]) -> str:
    return " · ".join(part for part in (entry["step"], entry["metric"], _at(entry)) if part)


def _at(entry: Mapping[str, Any]) -> str:
    at = [f"{axis}={value}" for axis, value in entry["point"].items()]
    return ", ".join(at + [f"{key} {entry[key]}" for key in ("write", "layer", "head", "token") if key in entry])


def _differences(metrics: Sequence[Mapping[str, Any]]) -> RenderableType:
    from rich import box
    from rich.table import Table as Grid
    from rich.text import Text

    from causalab_mini.cli.render import interval_text, number_text

    title = "B − A on the same rows (mean, 95 % interval by bootstrap of paired differences)"
    grid = Grid(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    has_places = any(_at(entry) for entry in metrics)
    has_steps = len({entry["step"] for entry in metrics}) > 1
    grid.add_column("metric", overflow="fold", min_width=10)
    if has_places:
        grid.add_column("at", overflow="fold", min_width=14)
    for name in ("rows", "A", "B", "B − A", "interval", "changed"):
        grid.add_column(name, justify="right", no_wrap=True)
    for entry in metrics:
        rows = str(entry.get("n_paired", "–"))
        if alone := [f"{entry[f'n_only_in_{side}']} in {side.upper()}" for side in ("a", "b") if entry.get(f"n_only_in_{side}")]:
            rows += f" (+ {', '.join(alone)})"
        numbers = [number_text(entry[key]) for key in ("mean_a", "mean_b", "difference")]
        name = f"{entry['step']} · {entry['metric']}" if has_steps else entry["metric"]
        grid.add_row(
            Text(name),
            *([Text(_at(entry))] if has_places else []),
            rows,
            *numbers,
            interval_text(entry["interval"]),
            str(entry.get("n_changed", "–")),
        )
    return grid


def _brief(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:59] + "…"


def export(
    out: Folder,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the files go; files that are there are not overwritten.")],
    to: Annotated[str, typer.Option("--to", help="The format: `csv` or `parquet`.")] = "csv",
    as_json: options.AsJson = False,
) -> None:
    """Write every table as one tidy file: all points one below the other, the axes of the sweep as columns."""
    from causalab_mini.results.reading import open_run
    from causalab_mini.results.reading.export import export_run

    written = export_run(open_run(out), options.choice("--to", to, ("csv", "parquet")), folder)  # type: ignore[arg-type]
    if as_json:
        print(json.dumps({"files": [str(path) for path in written]}, indent=1, ensure_ascii=False))
        return
    for path in written:
        print(path)
