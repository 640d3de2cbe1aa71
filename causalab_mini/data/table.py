"""Tables of rows below a data root: `weekdays/train` is `weekdays/train.json` there, `…#test` its rows of that split."""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from causalab_mini.data.opening import MAX_NAME_BYTES, MAX_PATH_BYTES, is_device, open_file, read_file, unreadable
from causalab_mini.data.strict_json import MAX_VALUES, parse_json, read_text
from causalab_mini.errors import DataError, Problem, did_you_mean, listed, quoted

MAX_TABLE_BYTES = 256 * 1024 * 1024
"""Of a file, and of what a parquet file holds once it is unpacked."""
MAX_ROWS = 1_000_000
MAX_CELLS = MAX_VALUES
"""Of all rows; values inside of lists and objects are counted, too."""
MAX_COLUMNS = 10_000
PARQUET_ROWS = 1000
"""That are unpacked at once."""
REF_PATTERN = re.compile(r"(?P<path>[^#\\\x00-\x1f]+)(?:#(?P<split>[^#\x00-\x1f]+))?")


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The rows that a ref names, with what is needed to tell whether they changed."""

    ref: str
    path: Path
    rows: tuple[Mapping[str, Any], ...]
    sha256: str

    @property
    def columns(self) -> tuple[str, ...]:
        """Returns every column of any row, sorted."""
        return tuple(sorted({name for row in self.rows for name in row}))

    @property
    def splits(self) -> tuple[str, ...]:
        """Returns the values of the `split` column, sorted."""
        return tuple(sorted({str(row["split"]) for row in self.rows if row.get("split") is not None}))


def find_data_root(explicit: Path | None, document: Path | None) -> Path:
    """Returns the folder that refs are looked up in.

    The one that was asked for; else `data/` beside or above the document; else `documents/data` in the working directory, and, where there
    is no document, `data` there; else the tables that ship with the package.

    Raises:
        DataError: the folder that was asked for is not there.
    """
    if explicit is not None:
        if not explicit.is_dir():
            raise DataError(Problem("--data-root", "a folder", quoted(explicit), code="unreadable"))
        return explicit.resolve()
    if document is not None:
        for folder in document.resolve().parents:
            if (folder / "data").is_dir():
                return (folder / "data").resolve()
    for name in ("documents/data",) if document is not None else ("documents/data", "data"):
        if Path(name).is_dir():
            return Path(name).resolve()
    return (shipped_documents() / "data").resolve()


def shipped_documents() -> Path:
    """Returns the folder of the documents that ship with the package, in a wheel or in a checkout; their tables are in it, as `data`."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "shipped" / "documents"
    return inside if inside.is_dir() else package.parent / "documents"


def open_table(ref: str, root: Path) -> Table:
    """Returns the rows of a ref.

    Raises:
        DataError: the ref is malformed, leaves the root, names no table or two, selects no row, or its table can't be read.
    """
    if (problem := problem_of_ref(ref)) is not None:
        raise DataError(problem)
    match = REF_PATTERN.fullmatch(ref)
    assert match is not None
    path = _table_path(ref, match["path"], root)
    text = "" if path.suffix == ".parquet" else read_text(path, DataError, MAX_TABLE_BYTES)
    rows = READERS[path.suffix](text, path)
    refuse_many(path, "rows", len(rows), MAX_ROWS)
    n_cells = 0
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise DataError(Problem(f"[{index}]", "an object (a row)", _kind(row), code="row"), str(path))
        n_cells += _n_cells(row)
        if len(row) > MAX_COLUMNS or n_cells > MAX_CELLS:
            refuse_many(path, "columns", len(row), MAX_COLUMNS)
            refuse_many(path, "cells", n_cells, MAX_CELLS, "more")
    digest = hashlib.sha256(text.encode() if text else _bytes(path)).hexdigest()  # of what was read: the file may be another by now
    if (split := match["split"]) is not None:
        selected = [row for row in rows if row.get("split") == split]
        if not selected:
            known = sorted({str(row["split"]) for row in rows if row.get("split") is not None})
            got = f"splits {listed(known)}" if known else "a table without a `split` column"
            raise DataError(Problem(ref, f"rows whose `split` is {quoted(split)}", got, did_you_mean(split, known), "ref"), str(path))
        rows = selected
    if not rows:
        raise DataError(Problem("", "at least one row", "an empty table", code="row"), str(path))
    return Table(ref, path, tuple(rows), digest)


def problem_of_ref(ref: str) -> Problem | None:
    """Returns what is wrong with a ref whatever the data root has, None where nothing is."""
    match = REF_PATTERN.fullmatch(ref)
    if match is None:
        return Problem("", "a ref like `folder/table` or `folder/table#split`", quoted(ref), code="ref")
    relative = match["path"]
    if Path(relative).suffix in READERS:
        folder, _, name = relative.rpartition("/")
        if relative.startswith("/") and folder:
            hint = f"the table of that file is {quoted(name.rpartition('.')[0])} with {quoted(f'--data-root {folder}')}"
        else:
            hint = f"the table of that file is {quoted(relative.rpartition('.')[0])}, below the data root"
        return Problem("", "a ref without the file's ending", quoted(ref), hint, "ref")
    parts = relative.split("/")
    is_long = len(relative.encode()) > MAX_PATH_BYTES or any(len(part.encode()) > MAX_NAME_BYTES for part in parts)
    if is_long or relative.startswith("~") or any(part in ("", ".", "..") or is_device(part) for part in parts):
        hint = "refs are paths below the data root, without `.`, `..`, names of devices, or a slash or `~` in front"
        return Problem("", "a ref below the data root", quoted(ref), hint, "ref")
    return None


def refuse_many(path: Path, what: str, n: int, most: int, got: str = "") -> None:
    """Refuses more of something than a table may have.

    Raises:
        DataError: there is more.
    """
    if n > most:
        raise DataError(Problem("", f"at most {most:,} {what}", got or f"{n:,}", code="too_large"), str(path))


def _n_cells(value: Any) -> int:
    if isinstance(value, dict | list):
        return sum(map(_n_cells, value.values() if isinstance(value, dict) else value)) + 1
    return 1


def _table_path(ref: str, relative: str, root: Path) -> Path:
    stem = root.joinpath(*relative.split("/"))
    found = [path for suffix in READERS if (path := stem.with_name(stem.name + suffix)).is_file()]
    if not found:
        known = sorted(str(path.relative_to(root).with_suffix("")) for path in root.rglob("*") if path.suffix in READERS and path.is_file())
        hint = did_you_mean(relative, known) or (f"the data root is {quoted(root)}")
        raise DataError(Problem("", f"a table {quoted(relative + '.json')} (or .jsonl, .csv, .parquet)", "no such file", hint, "ref"))
    if len(found) > 1:
        names = listed(path.name for path in found)
        raise DataError(Problem("", f"one table of the name {quoted(relative)}", names, "rename or remove one of them", "ref"))
    if not found[0].resolve().is_relative_to(root.resolve()):
        raise DataError(Problem("", "a table below the data root", f"a link to {quoted(found[0].resolve())}", code="ref"))
    return found[0]


def _bytes(path: Path) -> bytes:
    try:
        data = read_file(path, MAX_TABLE_BYTES)
    except OSError as problem:
        raise DataError(Problem("", "a readable file", unreadable(problem), code="unreadable"), str(path)) from None
    if len(data) > MAX_TABLE_BYTES:
        got = f"{max(path.stat().st_size, len(data)):,} bytes"
        raise DataError(Problem("", f"at most {MAX_TABLE_BYTES:,} bytes", got, code="too_large"), str(path))
    return data


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "`true` or `false`", type(None): "`null`"}
    return kinds.get(type(value), "a number")


def _json_rows(text: str, path: Path) -> list[Any]:
    rows = parse_json(text, str(path), DataError)
    if not isinstance(rows, list):
        raise DataError(Problem("", "a list of objects (rows)", _kind(rows), code="row"), str(path))
    return rows


def _jsonl_rows(text: str, path: Path) -> list[Any]:
    lines = ((n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip())
    rows = [parse_json(line, str(path), DataError, n) for n, line in itertools.islice(lines, MAX_ROWS + 1)]
    refuse_many(path, "rows", len(rows), MAX_ROWS, "more")
    return rows


def _csv_rows(text: str, path: Path) -> list[Any]:
    if (at := text.find("\0")) >= 0:
        line, column = text.count("\n", 0, at) + 1, at - (text.rfind("\n", 0, at) + 1) + 1
        raise DataError(Problem("", "CSV", "a zero character", code="csv", line=line, column=column), str(path))
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        refuse_many(path, "columns", len(reader.fieldnames or ()), MAX_COLUMNS)
        n_rows = min(MAX_ROWS, MAX_CELLS // max(len(reader.fieldnames or ()), 1))
        numbered = [(reader.line_num, row) for row in itertools.islice(reader, n_rows + 1)]
        refuse_many(path, f"rows of {len(reader.fieldnames or ())} cells", len(numbered), n_rows, "more")
    except csv.Error as problem:
        raise DataError(Problem("", "CSV", str(problem), code="csv", line=reader.reader.line_num, column=1), str(path)) from None
    names = reader.fieldnames or []
    if "" in names:
        raise DataError(Problem("", "a name for each column", listed(names), code="csv", line=1, column=1), str(path))
    if len(set(names)) != len(names):
        raise DataError(Problem("", "each column once", listed(names), code="csv", line=1, column=1), str(path))
    for number, row in numbered:
        if None in row or None in row.values():
            got = f"a row of another length ({quoted(row)})"
            raise DataError(Problem("", f"{len(names)} cells", got, code="csv", line=number, column=1), str(path))
    return [row for _, row in numbered]


def _parquet_rows(text: str, path: Path) -> list[Any]:
    try:
        import pyarrow.parquet
    except ImportError:
        hint = "pip install 'causalab-mini[parquet]'"
        raise DataError(Problem("", "pyarrow, to read parquet", "no such package", hint, "extra"), str(path)) from None
    if path.stat().st_size > MAX_TABLE_BYTES:
        refuse_many(path, "bytes", path.stat().st_size, MAX_TABLE_BYTES)
    try:
        with open_file(path) as opened, pyarrow.parquet.ParquetFile(opened) as file:
            about = file.metadata
            refuse_many(path, "rows", about.num_rows, MAX_ROWS)
            refuse_many(path, "columns", about.num_columns, MAX_COLUMNS)
            refuse_many(path, "cells", about.num_rows * about.num_columns, MAX_CELLS)
            unpacked = sum(about.row_group(group).total_byte_size for group in range(about.num_row_groups))
            refuse_many(path, "bytes when it is unpacked", unpacked, MAX_TABLE_BYTES)
            rows, unpacked = [], 0
            for batch in file.iter_batches(PARQUET_ROWS):
                unpacked += batch.nbytes
                refuse_many(path, "bytes when it is unpacked", unpacked, MAX_TABLE_BYTES, "more")
                rows += batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as problem:
        raise DataError(Problem("", "a parquet table", str(problem).split("\n")[0], code="parquet"), str(path)) from None
    return rows


READERS: Mapping[str, Callable[[str, Path], list[Any]]] = {
    ".json": _json_rows,
    ".jsonl": _jsonl_rows,
    ".csv": _csv_rows,
    ".parquet": _parquet_rows,
}
