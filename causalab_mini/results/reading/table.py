"""Rows with the axes of a sweep as columns: plain, as pandas, as polars."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from causalab_mini.errors import Problem, UsageError, did_you_mean, listed, quoted
from causalab_mini.plan.sweep import show_value

if TYPE_CHECKING:
    import pandas
    import polars

FRAMES = "pip install 'causalab-mini[frames]'"
N_SHOWN = 10
WIDTH = 120


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A table of a run.

    Attributes:
        name: of it.
        rows: each a dictionary; every row has every column. Axes of a sweep come first.
        axes: the columns that are axes of a sweep. An axis whose name the table has itself is `point.NAME`.
        missing: labels of points that have no such table (yet).
    """

    name: str
    rows: tuple[Mapping[str, Any], ...]
    axes: tuple[str, ...] = ()
    missing: tuple[str, ...] = field(default=())

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns."""
        return tuple(self.rows[0]) if self.rows else self.axes

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self.rows)

    def column(self, name: str) -> list[Any]:
        """Returns the cells of a column.

        Raises:
            UsageError: there is none of that name.
        """
        if name not in self.columns:
            hint = did_you_mean(name, self.columns)
            raise UsageError(Problem(self.name, f"a column ({listed(self.columns)})", quoted(name), hint, "column"))
        return [row[name] for row in self.rows]

    def flat(self) -> dict[str, list[Any]]:
        """Returns columns whose cells are of one type each, for formats that have types.

        Integers beside floats are floats. A list of integers stays a list. Other lists and objects, and columns of several types, are compact
        JSON; of an axis, what its label says.
        """
        return {name: _flat(self.column(name), is_axis=name in self.axes) for name in self.columns}

    def to_pandas(self, *, index: bool = True) -> pandas.DataFrame:
        """Returns the table as a pandas frame, with cells as they are.

        Args:
            index: whether the axes are its index; else they are columns.

        Raises:
            UsageError: pandas isn't there.
        """
        try:
            import pandas
        except ImportError:
            raise UsageError(Problem("", "pandas", "no such package", FRAMES, "extra")) from None
        flat = {name: _flat(self.column(name), is_axis=True) for name in self.axes}
        frame = pandas.DataFrame({name: flat.get(name) or self.column(name) for name in self.columns}, columns=list(self.columns))
        return frame.set_index(list(self.axes)) if index and self.axes else frame

    def to_polars(self) -> polars.DataFrame:
        """Returns the table as a polars frame, the axes as its first columns, cells as `flat` has them.

        Raises:
            UsageError: polars isn't there.
        """
        try:
            import polars
        except ImportError:
            raise UsageError(Problem("", "polars", "no such package", FRAMES, "extra")) from None
        return polars.DataFrame(self.flat(), strict=False, infer_schema_length=None)

    def __repr__(self) -> str:
        names = list(self.columns)
        shown = [names, *([_short(row[name]) for name in names] for row in self.rows[:N_SHOWN])]
        widths = [max(len(line[index]) for line in shown) for index in range(len(names))]
        n_fit = sum(end <= WIDTH for end in itertools.accumulate(width + 2 for width in widths))
        cut = [] if n_fit == len(names) else [f"… {len(names) - n_fit} more columns: {_cut(', '.join(names[n_fit:]), WIDTH - 25)}"]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(line[:n_fit], widths[:n_fit], strict=True)).rstrip() for line in shown]
        more = [f"… {len(self) - N_SHOWN} more rows"] if len(self) > N_SHOWN else []
        lacking = [f"not there at {len(self.missing)} points"] if self.missing else []
        return "\n".join([f"Table `{self.name}`, {len(self)} rows", *lines, *more, *cut, *lacking])

    def _repr_html_(self) -> str:
        from causalab_mini.results.reading.html import table_html

        return table_html(self)


def stacked(name: str, parts: Sequence[tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]], missing: Sequence[str] = ()) -> Table:
    """Returns tables of several points as one, with their axes as its first columns.

    Args:
        name: of the table.
        parts: the values of a point's axes, and its rows.
        missing: labels of points without it.
    """
    columns = list(dict.fromkeys(key for _, rows in parts for row in rows for key in row))
    axes = list(dict.fromkeys(axis for values, _ in parts for axis in values))
    names = {axis: f"point.{axis}" if axis in columns else axis for axis in axes}
    lines = [
        {**{names[axis]: values.get(axis) for axis in axes}, **{key: row.get(key) for key in columns}}
        for values, rows in parts
        for row in rows
    ]
    return Table(name, tuple(lines), tuple(names.values()), tuple(missing))


def _flat(cells: Sequence[Any], *, is_axis: bool) -> list[Any]:
    kinds = {type(cell) for cell in cells if cell is not None}
    if kinds <= {int, float} and float in kinds:
        return [None if cell is None else float(cell) for cell in cells]
    if len(kinds) <= 1 and not kinds & {list, dict, tuple}:
        return list(cells)
    if is_axis:
        return [None if cell is None else show_value(cell) for cell in cells]
    if kinds == {list} and all(type(item) is int for cell in cells if cell for item in cell):
        return list(cells)
    return [None if cell is None else json.dumps(cell, ensure_ascii=False, separators=(",", ":")) for cell in cells]


def _short(cell: Any) -> str:
    text = "–" if cell is None else f"{cell:.4g}" if isinstance(cell, float) else cell if isinstance(cell, str) else show_value(cell)
    text = text if text.isprintable() else text.encode("unicode_escape").decode()
    return _cut(text, 24)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
