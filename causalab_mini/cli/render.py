"""Results as a terminal shows them: the table of metrics, the map of a sweep, a line a check."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from causalab_mini.plan.sweep import show_value

if TYPE_CHECKING:
    from causalab_mini.engine.run import Run

MAX_LINES = 24

Entry = Mapping[str, Any]


def summary_table(summary: Sequence[Entry]) -> Table:
    """Returns metrics with counts, means and intervals; of very many, the first ones and how many more there are."""
    table = Table(
        title="metrics (mean over eligible rows, 95 % interval)",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    axes = list(dict.fromkeys(axis for entry in summary for axis in _axes(entry)))
    has_steps = len({entry["step"] for entry in summary}) > 1
    for name in axes:
        table.add_column(name, overflow="fold", max_width=36)
    for name in (["step"] if has_steps else []) + ["metric"]:
        table.add_column(name, no_wrap=True)
    for name in ("rows", "mean", "interval"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    for entry in summary[:MAX_LINES]:
        place = [_axes(entry).get(axis, "") for axis in axes] + ([entry["step"]] if has_steps else [])
        rows = str(entry["n"]) if entry["n"] == entry["eligible"] else f"{entry['eligible']} of {entry['n']}"
        mean = "(a list a row)" if entry["kind"] == "top_k" else _number(entry["mean"])
        table.add_row(*place, entry["metric"], rows, mean, _interval(entry["interval"]), entry["unit"])
    if len(summary) > MAX_LINES:
        table.caption = f"and {len(summary) - MAX_LINES} more in summary.json"
    return table


def heat_maps(summary: Sequence[Entry], width: int = 80) -> Iterator[Table]:
    """Yields one map for each step and metric over one or two axes: the mean at every point, in colour.

    The axis with more values runs across where it fits the terminal, else the other; one that does not fit is several maps.
    The layers of a stacked read are an axis too. More axes than two have no map.
    """
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in summary:
        if _axes(entry) and isinstance(entry["mean"], float):
            groups.setdefault((entry["step"], entry["metric"]), []).append(entry)
    for (step, metric), entries in groups.items():
        axes = list(_axes(entries[0]))
        if len(axes) <= 2 and len(entries) > 1:
            yield from _heat_map(f"{step} · {metric} ({entries[0]['unit']})", axes, entries, width)


def _axes(entry: Entry) -> dict[str, str]:
    """Returns an entry's place on every axis as text, the layer of a stacked read included."""
    axes = {axis: _shown(value) for axis, value in entry["axes"].items()}
    return axes | ({"layer": str(entry["layer"])} if "layer" in entry else {})


def _shown(value: Any) -> str:
    """Returns a swept value in few characters: an object without the quotes of its keys, a run of integers by its ends."""
    is_of_integers = isinstance(value, list) and all(type(item) is int for item in value)
    if is_of_integers and len(value) > 4 and value == list(range(value[0], value[0] + len(value))):
        return f"[{value[0]}…{value[-1]}]"
    return re.sub(r'"([A-Za-z_]+)"', r"\1", show_value(value)).replace(",", " ") if isinstance(value, dict) else show_value(value)


def _heat_map(title: str, axes: list[str], entries: Sequence[Entry], width: int) -> Iterator[Table]:
    values = {axis: list(dict.fromkeys(_axes(entry)[axis] for entry in entries)) for axis in axes}
    across = max(axes, key=lambda axis: len(values[axis]))
    fitting = [axis for axis in axes if len(values[axis]) * 9 + 20 <= width]
    if across not in fitting and fitting:
        across = fitting[0]
    down = next((axis for axis in axes if axis != across), None)
    means = {(_axes(entry)[down] if down else "", _axes(entry)[across]): entry["mean"] for entry in entries}
    low, high = min(means.values()), max(means.values())
    if entries[0]["unit"] in ("fraction", "probability"):
        low, high = min(0.0, low), max(1.0, high)
    corner = f"{down} \\ {across}" if down else f"{across} →"
    rows = values[down] if down else [""]
    label_width = min(48, max(map(len, [corner, *rows])))
    cell_width = max(max(len(f" {mean:.2f} ") for mean in means.values()), *map(len, values[across])) + 3
    n_across = max(1, (width - label_width - 4) // cell_width)
    for start in range(0, len(values[across]), n_across):
        names = values[across][start : start + n_across]
        part = "" if len(names) == len(values[across]) else f", {across} {names[0]} to {names[-1]}"
        table = Table(title=title + part, title_justify="left", title_style="bold")
        table.add_column(corner, overflow="fold", width=label_width)
        for name in names:
            table.add_column(name, justify="center", overflow="fold" if len(names) == 1 else "ellipsis", no_wrap=len(names) > 1)
        for row in rows:
            table.add_row(row or " ", *(_cell(means.get((row, name)), low, high) for name in names))
        yield table


def _cell(mean: float | None, low: float, high: float) -> Text:
    """Returns a number on a colour from dark blue (low) to yellow (high); readable without colour too."""
    if mean is None:
        return Text("·")
    share = 0.0 if high == low else (mean - low) / (high - low)
    stops = ((0.0, (68, 1, 84)), (0.33, (49, 104, 142)), (0.66, (53, 183, 121)), (1.0, (253, 231, 37)))
    for (start, left), (end, right) in itertools.pairwise(stops):
        if share <= end:
            part = (share - start) / (end - start)
            red, green, blue = (round(a + (b - a) * part) for a, b in zip(left, right, strict=True))
            break
    ink = "black" if share > 0.6 else "white"
    return Text(f" {mean:.2f} ", style=f"{ink} on #{red:02x}{green:02x}{blue:02x}")


def check_lines(run: Run) -> Iterator[str]:
    """Yields a line a check, the many passed ones of a sweep in one."""
    checks = [check for point in run.points for step in point.steps.values() for check in step.results["checks"]]
    labels = {id(check): point.label for point in run.points for step in point.steps.values() for check in step.results["checks"]}
    for name in dict.fromkeys(check.name for check in checks):
        of_name = [check for check in checks if check.name == name]
        said = [check for check in of_name if check.status == "failed" or "changed nothing" in check.text or "left" in check.text]
        passed = [check for check in of_name if check.status == "passed"]
        if len(of_name) == 1:
            yield f"check {name}: {of_name[0].status}; {of_name[0].text}"
            continue
        counts = ", ".join(
            f"{sum(check.status == status for check in of_name)} {status}"
            for status in ("passed", "failed", "skipped")
            if any(check.status == status for check in of_name)
        )
        worst = max((check.data["largest"] for check in passed if "largest" in check.data), default=None)
        yield f"check {name}: {counts}" + (f"; largest difference {worst:.1e} of the standard deviation" if worst is not None else "")
        for check in said[:5]:
            label = labels[id(check)]
            yield f"  {check.status}: {label + ': ' if label else ''}{check.text}"
        if len(said) > 5:
            yield f"  and {len(said) - 5} more in run.json"


def _number(value: Any) -> str:
    return "–" if value is None else _digits(value)


def _interval(interval: Mapping[str, Any] | None) -> str:
    return "–" if interval is None else f"{_digits(interval['low'])} … {_digits(interval['high'])}"


def _digits(value: float) -> str:
    """Returns a number to three places, or to two significant digits where those would show nothing of it."""
    return f"{value:.1e}" if 0 < abs(value) < 0.0005 else f"{value:.3f}"
