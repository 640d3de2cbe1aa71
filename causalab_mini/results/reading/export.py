"""All tables of a run as tidy files: one a table, all points one below the other, the axes as its first columns."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from causalab_mini.errors import Problem, RunError, UsageError, quoted
from causalab_mini.results.reading.run import SavedRun
from causalab_mini.results.reading.table import Table
from causalab_mini.results.store import write_atomically
from causalab_mini.results.tables import table_bytes

SUMMARY_NAMES = ("summary", "summary_of_metrics")


def export_run(run: SavedRun, to: Literal["csv", "parquet"], folder: str | Path) -> list[Path]:
    """Writes every table of a run, and its summary as `summary.csv` or `.parquet`; returns the files.

    Args:
        run: whose tables.
        to: the format.
        folder: made if need be; outside of the run's own.

    Raises:
        UsageError: the folder is in the run's, or one of the files is there already; nothing has been written then.
        DataError: a table can't be read; nothing has been written then.
        RunError: pyarrow isn't there, or a file can't be written.
    """
    target = Path(folder)
    if run.path.resolve() in (target.resolve(), *target.resolve().parents):
        raise UsageError(Problem("DIR", "a folder outside of the results", quoted(target), code="out"))
    names = {name: run.table(name) for name in run.tables}
    if run.has_summary and (metrics := run.metrics()).rows:
        names[next(name for name in SUMMARY_NAMES if name not in names)] = metrics
    files = {target / f"{name}.{to}": table for name, table in names.items()}
    if there := [path for path in files if path.exists()]:
        raise UsageError(Problem("DIR", "a folder without these files", quoted(there[0]), "give a new folder", "out"))
    content = {path: _bytes(table, f".{to}") for path, table in files.items()}
    for path, data in content.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data)
        except OSError as error:
            raise RunError(Problem(str(path), "a file that can be written", (error.strerror or str(error)).lower(), code="write")) from None
    return list(content)


def _bytes(table: Table, suffix: str) -> bytes:
    columns = table.flat()
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    return table_bytes(rows, suffix)
