"""A table's file as rows. JSON, CSV and parquet of one table read back equal."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from causalab_mini.data.opening import open_file, read_file, unreadable
from causalab_mini.errors import DataError, Problem, RunError, quoted

Row = dict[str, Any]

TEXTS = (
    "example_id",
    "metric",
    "write",
    "unit",
    "estimand_version",
    "produced_by",
    "text",
    "ended",
    "prompt",
    "point",
    "action",
)
"""Columns whose cells are text whatever they look like."""
MAYBE_TEXTS = ("aborted_by", "component", "method")
"""The same, but an empty cell is null."""

MAX_CELL = 2**31 - 1
"""Characters: the values of verdicts can be long."""


def read_rows(path: Path, texts: Sequence[str] = ()) -> list[Row]:
    """Returns a table's rows, each with every column; a column that a row lacks is null there.

    Args:
        path: a `.json`, `.csv` or `.parquet` file that a run has written.
        texts: columns of this table that are text even where they look like numbers; CSV alone can't tell.

    Raises:
        DataError: the file can't be read, or holds no table.
        RunError: it is parquet, and pyarrow isn't there.
    """
    try:
        rows = READERS[path.suffix](path, texts)
    except OSError as error:
        refuse(path, "a readable file", unreadable(error))
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return [{key: row.get(key) for key in columns} for row in rows]


def read_json(path: Path) -> Any:
    """Returns what a JSON file holds.

    Raises:
        DataError: it can't be read.
    """
    try:
        return json.loads(read_file(path), parse_constant=_refuse_constant, parse_float=_finite)
    except OSError as error:
        refuse(path, "a readable file", unreadable(error))
    except RecursionError:
        refuse(path, "JSON", "something else (it is too deep)")
    except ValueError as error:
        got = f"something else ({error})" if path.stat().st_size else "an empty file"
        refuse(path, "JSON", got)


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is too large for a number")
    return value


def refuse(path: Path, expected: str, got: str, where: str = "", hint: str = "") -> NoReturn:
    """Says what is wrong with a file.

    Raises:
        DataError: always.
    """
    raise DataError(Problem(where, expected, got, hint, "results"), str(path)) from None


def _json(path: Path, texts: Sequence[str]) -> list[Row]:
    rows = read_json(path)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        refuse(path, "a table (a list of objects)", f"{type(rows).__name__}" if not isinstance(rows, list) else "a list of other things")
    for index, row in enumerate(rows):
        is_curve = {"epoch", "update"} <= set(row)  # whose columns are metrics of any name
        wrong = [] if is_curve else [name for name in TEXTS if not isinstance(row.get(name), str | None)]
        if wrong:
            refuse(path, "a text", quoted(json.dumps(row[wrong[0]], ensure_ascii=False)), f"[{index}].{wrong[0]}")
    return rows


def _csv(path: Path, texts: Sequence[str]) -> list[Row]:
    limit = csv.field_size_limit(MAX_CELL)
    try:
        lines = list(csv.reader(io.StringIO(read_file(path).decode("utf-8"), newline=""), strict=True))
    except UnicodeDecodeError as error:
        refuse(path, "UTF-8", f"the byte {quoted(hex(error.object[error.start]))}")
    except csv.Error as error:
        refuse(path, "CSV", f"something else ({error})")
    finally:
        csv.field_size_limit(limit)
    columns, *cells = lines or [[]]
    for number, line in enumerate(cells, 2):
        if len(line) != len(columns):
            refuse(path, f"{len(columns)} cells on line {number}", str(len(line)))
    return [_restored(dict(zip(columns, line, strict=True)), texts) for line in cells]


def _restored(line: Mapping[str, str], texts: Sequence[str]) -> Row:
    """Returns a line of CSV with its types: null, booleans, numbers, lists and objects; text where the column is one of text."""
    if {"epoch", "update"} <= set(line):  # a curve, whose columns are metrics of any name
        return {column: _value(cell) for column, cell in line.items()}
    row: Row = {}
    for column, cell in line.items():
        if column in TEXTS:
            row[column] = cell
        elif column in texts or column in MAYBE_TEXTS or (column == "token" and "token_id" in line):
            row[column] = cell or None
        elif column == "reason":
            row[column] = None if not cell and "ended" in line else cell
        elif column == "tokens":
            row[column] = None if not cell and line.get("reason") else cell
        else:
            row[column] = _value(cell)
    return row


def _value(cell: str) -> Any:
    if not cell or cell != cell.strip():
        return cell or None
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        return cell


def _parquet(path: Path, texts: Sequence[str]) -> list[Row]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        hint = "pip install 'causalab-mini[parquet]'"
        raise RunError(Problem("", "pyarrow, to read parquet", "no such package", hint, "extra"), str(path)) from None
    with open_file(path):
        pass  # a regular file
    try:
        rows: list[Row] = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        refuse(path, "parquet", f"something else ({str(error).splitlines()[0]})")
    return [
        {key: _value(cell) if isinstance(cell, str) and cell[:1] in ("[", "{") and key == "value" else cell for key, cell in row.items()}
        for row in rows
    ]


READERS: Mapping[str, Callable[[Path, Sequence[str]], list[Row]]] = {".json": _json, ".csv": _csv, ".parquet": _parquet}
