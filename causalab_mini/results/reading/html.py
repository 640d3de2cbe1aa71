"""Runs, tables and arrays as notebooks show them: small, escaped, without scripts or anything from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from causalab_mini.plan.sweep import show_value
from causalab_mini.results.colours import on_scale

if TYPE_CHECKING:
    from causalab_mini.results.reading.arrays import AxesArray
    from causalab_mini.results.reading.run import SavedRun
    from causalab_mini.results.reading.table import Table

MAX_ROWS = 20
MAX_CELLS = 400
MAX_ARRAYS = 4
MAX_TEXT = 80


def table_html(table: Table) -> str:
    """Returns a table's first rows."""
    body = [[_cell(row[name]) for name in table.columns] for row in table.rows[:MAX_ROWS]]
    more = f"{len(table)} rows" + (f", the first {MAX_ROWS} shown" if len(table) > MAX_ROWS else "")
    lacking = f"; not there at {len(table.missing)} points" if table.missing else ""
    return f"<div><b>{escape(table.name)}</b> <small>{more}{lacking}</small>{_table(table.columns, body)}</div>"


def array_html(array: AxesArray) -> str:
    """Returns numbers over one or two axes as a map in colours; of more axes, what they are."""
    unit = f" ({escape(array.unit)})" if array.unit else ""
    title = f"<b>{escape(array.name)}</b>{unit} <small>{escape(' × '.join(f'{dim} ({n})' for dim, n in zip(array.dims, array.shape, strict=True)))}</small>"
    if array.values.size > MAX_CELLS or not 1 <= len(array.dims) <= 2:
        return f"<div>{title}<pre>{escape(repr(array))}</pre></div>"
    across = array.dims[-1]
    down = array.dims[0] if len(array.dims) == 2 else None
    values = array.values if down else array.values[None]
    finite = [float(value) for value in values.flat if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    if array.unit in ("fraction", "probability"):
        low, high = min(0.0, low), max(1.0, high)
    corner = f"{down} \\ {across}" if down else f"{across} →"
    lines = []
    for label, row in zip(array.labels(down) if down else ("",), values, strict=True):
        cells = "".join(_coloured(float(value), low, high) for value in row)
        lines.append(f"<tr><th style='text-align:left'>{escape(_cut(label))}</th>{cells}</tr>")
    head = "".join(f"<th>{escape(_cut(label))}</th>" for label in array.labels(across))
    return f"<div>{title}<table><thead><tr><th style='text-align:left'>{escape(corner)}</th>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"


def run_html(run: SavedRun) -> str:
    """Returns what was asked and what came out: facts, metrics, maps of a sweep over one or two axes, files."""
    facts = "".join(
        f"<tr><th style='text-align:left'>{escape(key)}</th><td style='text-align:left'>{escape(text)}</td></tr>"
        for key, text in run.facts().items()
    )
    parts = [f"<b>{escape(str(run.path))}</b><table><tbody>{facts}</tbody></table>"]
    if run.has_summary and (metrics := run.metrics()).rows:
        parts.append(table_html(metrics))
        pairs = dict.fromkeys((row["metric"], row["step"]) for row in metrics.rows if isinstance(row["mean"], float))
        parts += [array_html(array) for array in (run.array(*pair) for pair in list(pairs)[:MAX_ARRAYS]) if 1 <= len(array.dims) <= 2]
    if run.has_summary and (fired := run.fired()).rows:
        parts.append(table_html(fired))
    files = ", ".join(escape(file.path) for file in run.files)
    return f"<div>{''.join(parts)}<p><small>{files}</small></p></div>" if files else f"<div>{''.join(parts)}</div>"


def _table(columns: Iterable[str], body: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in body)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return escape(f"{value:.4g}" if isinstance(value, float) else _cut(value if isinstance(value, str) else show_value(value)))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def _coloured(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return "<td>·</td>"
    ground, ink = on_scale(value, low, high)
    return f"<td style='background:{ground};color:{ink};text-align:center'>{value:.3g}</td>"
