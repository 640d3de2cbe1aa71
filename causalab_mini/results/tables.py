"""Tables and tensors as the bytes of files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from causalab_mini.errors import Problem, RunError

Rows = Sequence[Mapping[str, Any]]


def table_bytes(rows: Rows, suffix: str) -> bytes:
    """Returns a table as a file of the given suffix has it."""
    return WRITERS[suffix](rows)


def _json(rows: Rows) -> bytes:
    return (json.dumps(list(rows), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _csv(rows: Rows) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(
            {key: json.dumps(cell, ensure_ascii=False) if isinstance(cell, list | dict | bool) else cell for key, cell in row.items()}
        )
    return text.getvalue().encode()


def _parquet(rows: Rows) -> bytes:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        hint = "pip install 'causalab-mini[parquet]'"
        raise RunError(Problem("", "pyarrow, to write parquet", "no such package", hint, "extra")) from None
    plain = [
        {
            key: json.dumps(cell, ensure_ascii=False) if isinstance(cell, dict) or (isinstance(cell, list) and key == "value") else cell
            for key, cell in row.items()
        }
        for row in rows
    ]
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(plain), sink)
    return sink.getvalue()


WRITERS: Mapping[str, Callable[[Rows], bytes]] = {".json": _json, ".csv": _csv, ".parquet": _parquet}
