"""Results as a terminal shows them: the table of metrics, the map of a sweep, a line a check."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from causalab_mini.errors import listed
from causalab_mini.plan.sweep import show_value
from causalab_mini.results.colours import on_scale
from causalab_mini.results.summary import MORE_IS_BETTER

if TYPE_CHECKING:
    from causalab_mini.engine.job import Job

MAX_LINES = 24
MAX_COMPONENTS = 12
MAX_SAID = 4
MAX_FITS = 8
MAX_LABELS = 6

Entry = Mapping[str, Any]


def summary_table(summary: Sequence[Entry]) -> Table:
    """Returns metrics with counts, means and intervals; of very many, the first ones and how many more there are."""
    shown = _shown_entries(summary)
    table = Table(
        title="metrics (mean over eligible rows, 95 % interval)" + ("" if len(shown) == len(summary) else " at the best points"),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    axes = list(dict.fromkeys(axis for entry in summary for axis in _axes(entry)))
    has_steps = len({entry["step"] for entry in summary}) > 1
    for name in axes:
        longest = max(len(name), *(len(_axes(entry).get(name, "")) for entry in shown))
        table.add_column(name, overflow="fold", min_width=min(longest, 12), max_width=36)
    for name in (["step"] if has_steps else []) + ["metric"]:
        table.add_column(name, no_wrap=True)
    for name in ("rows", "mean", "interval"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    for entry in shown:
        place = [_axes(entry).get(axis, "") for axis in axes] + ([_step(entry)] if has_steps else [])
        rows = str(entry["n"]) if entry["n"] == entry["eligible"] else f"{entry['eligible']} of {entry['n']}"
        mean = "(a list a row)" if entry["kind"] == "top_k" else number_text(entry["mean"])
        table.add_row(*place, entry["metric"], rows, mean, interval_text(entry["interval"]), entry["unit"])
        for kind, control in entry.get("controls", {}).items():
            n = str(control["eligible"]) + (f" × {len(control['draws'])}" if "draws" in control else "")
            p = f"p {_digits(control['p_value'])}" if "p_value" in control else ""
            table.add_row(*place, f"  {kind}", n, number_text(control["mean"]), interval_text(control["interval"]), p, style="dim")
    if len(summary) > len(shown):
        table.caption = f"and {len(summary) - len(shown)} more in summary.json"
    return table


def _shown_entries(summary: Sequence[Entry]) -> list[Entry]:
    """Returns the entries that a table shows: all, or of very many those of the point where each step is at its best, with their controls."""
    if sum(1 + len(entry.get("controls", {})) for entry in summary) <= MAX_LINES:
        return list(summary)
    best: dict[str, Entry] = {}
    for entry in summary:
        if entry["unit"] in MORE_IS_BETTER and entry["mean"] is not None:
            best[entry["step"]] = max(best.get(entry["step"], entry), entry, key=lambda each: each["mean"])
    chosen = [entry for entry in summary if entry["step"] in best and _at(entry) == _at(best[entry["step"]])]
    return (chosen or list(summary))[:MAX_LINES]


def _at(entry: Entry) -> tuple[Any, Any]:
    return entry["point"], entry.get("layer")


def _step(entry: Entry) -> str:
    """Returns what a step is called on the screen: of a fit, with what its metrics are of."""
    return f"{entry['step']} (eval)" if entry.get("rows") == "eval" else str(entry["step"])


def heat_maps(summary: Sequence[Entry], width: int = 80) -> Iterator[Table]:
    """Yields one map for each step and metric over one or two axes: the mean at every point, in colour.

    The axis with more values runs across where it fits the terminal, else the other; one that does not fit is several maps.
    The layers of a stacked read are an axis too. More axes than two have no map.
    """
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in summary:
        if _axes(entry) and isinstance(entry["mean"], float):
            groups.setdefault((_step(entry), entry["metric"]), []).append(entry)
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
    ground, ink = on_scale(mean, low, high)
    return Text(f" {mean:.2f} ", style=f"{ink} on {ground}")


def attribution_tables(entries: Sequence[Entry], width: int = 80) -> Iterator[Table | Text]:
    """Yields, for each attribution, its largest components with their estimates, and what was run exactly; and a map of layers and heads."""
    for entry in entries:
        where = f"{entry['point']} · " if entry["point"] else ""
        table = Table(
            title=f"{where}{entry['step']} · {entry['metric']} by {entry['method']} ({entry['unit']}, mean over rows)",
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            padding=(0, 1, 0, 0),
        )
        components = entry["components"]
        keys = [key for key in ("write", "layer", "head", "token") if len({str(part.get(key)) for part in components}) > 1] or ["write"]
        for key in keys:
            table.add_column(key, justify="left" if key == "write" else "right", no_wrap=True)
        has_exact = any("exact" in part for part in components)
        for name in ["estimate", "interval", *(["exact"] if has_exact else [])]:
            table.add_column(name, justify="right", no_wrap=True)
        for part in components[:MAX_COMPONENTS]:
            exact = [number_text(part.get("exact"))] if has_exact else []
            table.add_row(*(str(part.get(key, "")) for key in keys), number_text(part["mean"]), interval_text(part["interval"]), *exact)
        if len(components) > MAX_COMPONENTS:
            table.caption = f"and {len(components) - MAX_COMPONENTS} more in summary.json"
        yield table
        if {"layer", "head"} <= set(keys) and "token" not in keys and "write" not in keys:
            cells = [
                {"axes": {"layer": part["layer"], "head": part["head"]}, "mean": part["mean"], "unit": entry["unit"]} for part in components
            ]
            cells.sort(key=lambda cell: (cell["axes"]["layer"], cell["axes"]["head"]))
            yield from _heat_map(
                f"{entry['step']} · estimated change of {entry['metric']} ({entry['unit']})", ["layer", "head"], cells, width
            )
        if (found := entry["agreement"]) is not None:
            rank, sign = (number_text(found[key]) for key in ("rank_correlation", "sign_agreement"))
            yield Text(f"estimates beside what {found['n_components']} components really do: rank correlation {rank}, same sign {sign}")


def best_lines(entries: Sequence[Entry]) -> Iterator[str]:
    """Yields, for each metric of a sweep, its best point, on which rows it was picked, and what it is on others."""
    for entry in entries[:MAX_SAID]:
        layer = f", layer {entry['layer']}" if "layer" in entry else ""
        said = f"best of {entry['of']}: {entry['step']} · {entry['metric']} {number_text(entry['mean'])} {interval_text(entry['interval'])}"
        others = entry.get("n_as_good", 0)
        as_good = f" ({others} other{'s are' if others > 1 else ' is'} as good)" if others else ""
        line = f"{said} at {entry['point']}{layer}{as_good}, picked on the rows that it is of"
        held_out = [f"{number_text(other['mean'])} ({interval_text(other['interval'])}) in {other['step']}" for other in entry["held_out"]]
        yield line + (f"; on other rows: {', '.join(held_out)}" if held_out else "")
    if len(entries) > MAX_SAID:
        yield f"best points of {len(entries) - MAX_SAID} more metrics in summary.json"


def fit_lines(entries: Sequence[Entry]) -> Iterator[str]:
    """Yields, for each fit, the epoch that is kept, and how many units its gates leave on."""
    for entry in entries[:MAX_FITS]:
        where = f"{entry['point']}: " if entry["point"] else ""
        stopped = ", stopped early" if entry["stopped_early"] else ""
        objective = number_text(entry["at_kept_epoch"].get("objective"))
        line = f"fit {where}{entry['step']} keeps epoch {entry['kept_epoch']} of {entry['epochs']}{stopped}, objective {objective} held out"
        gates = [f"{name} {gate['on']} of {gate['of']} units on" for name, gate in entry.get("gates", {}).items()]
        yield line + (f"; {', '.join(gates)}" if gates else "")
    if len(entries) > MAX_FITS:
        yield f"and {len(entries) - MAX_FITS} more fits in summary.json"


def fit_line(jobs: Sequence[Job]) -> str:
    """Returns how far fits that go on together are, in a line."""
    losses = [job.losses[-1]["objective"] for job in jobs if job.losses]
    first = jobs[0]
    evals = [job.evals[-1] for job in jobs if job.evals]
    name = "objective" if first.step.score is None else first.name(first.step.score[:2])
    judged = [line[name] for line in evals if line.get(name) is not None]
    many = f"{len(jobs)} together · " if len(jobs) > 1 else ""
    epoch = f"epoch {first.epoch}/{first.step.epochs}"
    loss = f"objective {min(losses):.3f}" + (f" to {max(losses):.3f}" if len(losses) > 1 else "") if losses else ""
    held = f"held out: {name} {min(judged):.3f}" + (f" to {max(judged):.3f}" if len(judged) > 1 else "") if judged else ""
    return many + " · ".join(part for part in (epoch, loss, held) if part)


def check_lines(checks: Sequence[tuple[str, Entry]]) -> Iterator[str]:
    """Yields a line a check, the many passed ones of a sweep in one.

    Args:
        checks: the label of a point and what a check said there, as the record has it.
    """
    for name in dict.fromkeys(check["check"] for _, check in checks):
        of_name = [(label, check) for label, check in checks if check["check"] == name]
        said = [
            (label, check)
            for label, check in of_name
            if check["status"] == "failed" or "changed nothing" in check["text"] or "left" in check["text"]
        ]
        said = [(label, check) for label, check in said if check["status"] == "failed" or "(self_swap)" not in check["text"]]
        if len(of_name) == 1:
            yield f"check {name}: {of_name[0][1]['status']}; {of_name[0][1]['text']}"
            continue
        counts = [(status, sum(check["status"] == status for _, check in of_name)) for status in ("passed", "failed", "skipped")]
        largest = [check["largest"] for _, check in of_name if check["status"] == "passed" and check.get("largest") is not None]
        worst = f"; largest difference {f'{max(largest):.1e}' if max(largest) else '0'} of the standard deviation" if largest else ""
        yield f"check {name}: {', '.join(f'{n} {status}' for status, n in counts if n)}{worst}"
        lines = list(dict.fromkeys(f"  {check['status']}: {label + ': ' if label else ''}{check['text']}" for label, check in said))
        yield from lines[:5]
        if len(lines) > 5:
            yield f"  and {len(lines) - 5} more in run.json"


def reason_lines(why: Mapping[str, str], n_kept: int, aside: Sequence[str]) -> Iterator[str]:
    """Yields why points run, those with one reason in one line; how many don't; and which results were moved aside."""
    labels: dict[str, list[str]] = {}
    for label, reason in why.items():
        labels.setdefault(reason, []).append(label)
    for reason, own in labels.items():
        everything = "runs" if own == [""] else f"runs all {len(own)} points" if len(labels) == 1 and not n_kept else ""
        yield f"{everything or f'runs {_some(own)}'}: {reason}"
    if n_kept:
        yield f"kept: {n_kept} {'points' if n_kept > 1 else 'point'} that an earlier run has finished"
    if aside:
        yield f"moved to `earlier/`: what was there of {_some(aside) if aside != [''] else 'the results'}"


def _some(labels: Sequence[str]) -> str:
    more = len(labels) - MAX_LABELS
    return listed(label or "the document without sweep" for label in labels[:MAX_LABELS]) + (f" and {more} more points" if more > 0 else "")


def number_text(value: Any) -> str:
    """Returns a number as tables show it."""
    return "–" if value is None else _digits(value)


def interval_text(interval: Mapping[str, Any] | None) -> str:
    """Returns both ends of an interval as tables show them."""
    return "–" if interval is None else f"{_digits(interval['low'])} … {_digits(interval['high'])}"


def _digits(value: float) -> str:
    """Returns a number to three places, or to two significant digits where those would show nothing of it."""
    return f"{value:.1e}" if 0 < abs(value) < 0.0005 else f"{value:.3f}"
