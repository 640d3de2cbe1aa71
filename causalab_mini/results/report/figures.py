"""What a run came to, described as figures: data that a page and a plot draw alike. Draws nothing."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from causalab_mini.plan.sweep import show_value
from causalab_mini.results.report.colours import SERIES, Scale, scale_of
from causalab_mini.results.report.folder import Folder, Row, Rows, drawn_from
from causalab_mini.results.store import SUMMARY
from causalab_mini.results.summary import BINARY_KINDS

MAX_CELLS, MAX_FACETS, MAX_DOTS, MAX_STRIP = 4096, 12, 400, 200
"""Cells of a heat map, maps of a metric over more than two axes, entries of a dot plot, and rows that are drawn of an entry."""
MAX_PANELS, MAX_VERTICES = 12, 400
"""Panels of curves, and vertices of a line; of more, as many are drawn at even distances."""

Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Number:
    """A mean over rows.

    Attributes:
        value: None where there is none.
        low, high: of its interval; None where it has none.
        n, eligible: rows, and those that it is of.
        at: where it is, in words.
        rows: what it is the mean of.
        filter: the columns that those rows have at one value.
        is_best: whether it is the best of its kind.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int
    eligible: int
    at: str
    rows: Rows | None = None
    filter: tuple[tuple[str, Any], ...] = ()
    step: str = ""
    metric: str = ""
    unit: str = ""
    point: str = ""
    is_best: bool = False


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Numbers over one or two axes; `cells[y][x]`, None where there is none."""

    name: str
    step: str
    title: str
    unit: str
    across: str
    down: str
    columns: tuple[str, ...]
    lines: tuple[str, ...]
    cells: tuple[tuple[Number | None, ...], ...]
    scale: Scale


@dataclass(frozen=True, slots=True)
class Dot:
    """A number of a dot plot.

    Attributes:
        kind: `metric`, `control` or `exact`.
        strip: values of the rows, or of a control's draws, that are drawn beside it.
        note: what is said beside it.
    """

    label: str
    kind: str
    number: Number
    strip: tuple[float, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Dots:
    """Numbers one below another on one scale, each with its interval; `left_out`: how many more there are."""

    name: str
    step: str
    title: str
    unit: str
    dots: tuple[Dot, ...]
    low: float
    high: float
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a curve; `kept`: which of its vertices is kept."""

    label: str
    series: int
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    kept: int | None = None


@dataclass(frozen=True, slots=True)
class Curves:
    """Lines over one axis, in panels of one scale."""

    name: str
    step: str
    title: str
    across: str
    unit: str
    panels: tuple[tuple[str, tuple[Line, ...]], ...]
    legend: tuple[str, ...]
    x: tuple[float, float]
    y: tuple[float, float]
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """Words and numbers in columns."""

    name: str
    step: str
    title: str
    columns: tuple[str, ...]
    lines: tuple[tuple[Any, ...], ...]
    notes: tuple[str, ...] = field(default=())


Figure = HeatMap | Dots | Curves | Table


def figures_of(folder: Folder) -> tuple[Figure, ...]:
    """Returns the figures of a run, step by step in the order of its summary.

    Raises:
        DataError: its summary, or a table of it, was edited into something that can't be drawn.
    """
    with drawn_from(folder.path / SUMMARY):
        return tuple(_figures(folder))


def _figures(folder: Folder) -> Iterator[Figure]:
    summary = folder.summary
    found: list[Figure] = []
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in summary.get("metrics", ()):
        groups.setdefault((_step(entry), entry["metric"]), []).append(entry)
    best = {(each["step"], each["metric"]): each for each in summary.get("best", ())}
    for (step, metric), entries in groups.items():
        picked = best.get((entries[0]["step"], metric), {})
        numbers = [_number(folder, entry, picked) for entry in entries]
        if entries[0]["kind"] == "top_k":
            found.append(_lists(step, metric, entries, numbers))
            continue
        found += _maps(step, metric, entries, numbers)
        found.append(_dots(step, metric, entries, numbers))
    for entry in summary.get("attributions", ()):
        found += _attribution(folder, entry)
    for step in dict.fromkeys(entry["step"] for entry in _fits(folder)):
        found += _curves(folder, step)
    for entry in summary.get("streams", ()):
        found.append(_stream(folder, entry))
    return _named_apart(_together(found))


def _together(figures: Sequence[Figure]) -> Iterator[Figure]:
    """Yields figures with single numbers of a step and unit in one; of a list of interventions, those of one metric."""
    groups: dict[tuple[str, str, str], list[Dots]] = {}
    for figure in figures:
        if isinstance(figure, Dots) and _is_single(figure):
            groups.setdefault(_kin(figure), []).append(figure)
    for figure in figures:
        if not (isinstance(figure, Dots) and _is_single(figure)):
            yield figure
        elif own := groups.pop(_kin(figure), []):
            dots = tuple(dot for each in own for dot in each.dots)
            title = _kin(figure)[2] or ", ".join(each.title for each in own)
            yield Dots(figure.name, figure.step, title, figure.unit, dots, *_reach(dots, figure.unit))


def _is_single(figure: Dots) -> bool:
    return sum(dot.kind == "metric" for dot in figure.dots) == 1 and not figure.dots[0].number.at


def _kin(figure: Dots) -> tuple[str, str, str]:
    is_of_list = "/" in figure.title
    return figure.step, figure.unit, figure.title.rpartition("/")[2] if is_of_list else ""


def shown(value: float | None, places: int = 3) -> str:
    """Returns a number as it is printed: to some places, or to two significant digits where those would show nothing of it."""
    if value is None:
        return "–"
    if 0 < abs(value) < 0.5 * 10.0**-places:
        text = f"{value:.1e}" if places > 2 else f"{0:.{places}f}"
    else:
        text = f"{value:,.{places}f}" if abs(value) < 1e5 else f"{value:.2e}"
    return text.replace("-", "−")


def axes_of(entry: Entry) -> dict[str, str]:
    """Returns an entry's place on every axis as text, the layer of a stacked read included."""
    axes = {axis: shown_value(value) for axis, value in entry["axes"].items()}
    return axes | ({"layer": str(entry["layer"])} if "layer" in entry else {})


def shown_value(value: Any) -> str:
    """Returns a swept value in few characters."""
    if isinstance(value, list) and len(value) > 4 and value == list(range(value[0], value[0] + len(value))):
        return f"[{value[0]}…{value[-1]}]"
    return re.sub(r'"([A-Za-z_]+)"', r"\1", show_value(value)).replace(",", " ") if isinstance(value, dict) else show_value(value)


def _step(entry: Entry) -> str:
    return f"{entry['step']} (eval)" if entry.get("rows") == "eval" else str(entry["step"])


def _at(axes: Mapping[str, str]) -> str:
    return ", ".join(f"{axis} {value}" for axis, value in axes.items())


def _number(folder: Folder, entry: Entry, best: Entry) -> Number:
    interval = entry["interval"] or {"low": None, "high": None}
    saved = "predictions" if entry["kind"].endswith("_probe") else entry["metric"]
    return Number(
        entry["mean"],
        interval["low"],
        interval["high"],
        entry["n"],
        entry["eligible"],
        _at(axes_of(entry)),
        folder.table(entry["point"], entry["step"], saved),
        (("layer", entry["layer"]),) if "layer" in entry else (),
        _step(entry),
        entry["metric"],
        entry["unit"],
        entry["point"],
        bool(best) and best["point"] == entry["point"] and best.get("layer") == entry.get("layer"),
    )


def _maps(step: str, metric: str, entries: Sequence[Entry], numbers: Sequence[Number]) -> Iterator[HeatMap]:
    """Yields a map of a metric over its axes; over more than two, one for each value of the others."""
    places = [axes_of(entry) for entry in entries]
    n_values = {axis: len({place.get(axis) for place in places}) for place in places for axis in place}
    axes = [axis for axis, n in n_values.items() if n > 1]
    if not axes or len(entries) < 2:
        return
    most = sorted(axes, key=lambda axis: -n_values[axis])
    across = most[0]
    down = most[1] if len(most) > 1 else ""
    others = [axis for axis in axes if axis not in (across, down)]
    facets: dict[tuple[tuple[str, str], ...], list[tuple[Mapping[str, str], Number]]] = {}
    for place, number in zip(places, numbers, strict=True):
        facets.setdefault(tuple((axis, place.get(axis, "")) for axis in others), []).append((place, number))
    scale = scale_of([number.value for number in numbers if number.value is not None], entries[0]["unit"])
    for facet, cells in itertools.islice(facets.items(), MAX_FACETS):
        where = f" at {_at(dict(facet))}" if facet else ""
        yield heat_map(step, f"{metric}{where}", entries[0]["unit"], across, down, cells, scale)


def heat_map(
    step: str, title: str, unit: str, across: str, down: str, cells: Sequence[tuple[Mapping[str, str], Number]], scale: Scale
) -> HeatMap:
    """Returns a map of numbers by their values on one or two axes."""
    columns = tuple(dict.fromkeys(place[across] for place, _ in cells))
    lines = tuple(dict.fromkeys(place.get(down, "") for place, _ in cells))[: max(1, MAX_CELLS // len(columns))]
    found = {(place.get(down, ""), place[across]): number for place, number in cells}
    rows = tuple(tuple(found.get((line, column)) for column in columns) for line in lines)
    return HeatMap(f"{step} {title} map", step, title, unit, across, down, columns, lines, rows, scale)


def _dots(step: str, metric: str, entries: Sequence[Entry], numbers: Sequence[Number]) -> Dots:
    """Returns every number of a metric with its interval, and its controls below it."""
    unit, dots = entries[0]["unit"], list[Dot]()
    for entry, number in itertools.islice(zip(entries, numbers, strict=True), MAX_DOTS):
        label = number.at or metric
        dots.append(Dot(label, "metric", number, () if entry["kind"] in BINARY_KINDS else _strip(number, metric)))
        for kind, control in entry.get("controls", {}).items():
            interval = control["interval"] or {"low": None, "high": None}
            beside = Number(
                *(control["mean"], interval["low"], interval["high"], entry["n"], control["eligible"]),
                f"{kind.replace('_', ' ')}{', ' if number.at else ''}{number.at}",
                step=number.step,
                metric=metric,
                unit=unit,
            )
            draws = tuple(draw for draw in control.get("draws", ()) if draw is not None)
            said = [f"{len(draws)} draws"] if draws else []
            said += [f"p = {shown(control['p_value'])}"] if "p_value" in control else []
            dots.append(Dot(kind.replace("_", " "), "control", beside, draws, ", ".join(said)))
    low, high = _reach(dots, unit)
    return Dots(f"{step} {metric}", step, metric, unit, tuple(dots), low, high, max(0, len(entries) - MAX_DOTS))


def _strip(number: Number, metric: str) -> tuple[float, ...]:
    """Returns the values of a number's rows, of very many some at even distances in order."""
    if number.rows is None:
        return ()
    rows = (row for row in number.rows.rows if all(row.get(key) == value for key, value in number.filter))
    values = sorted(float(row["value"]) for row in rows if isinstance(row.get("value"), int | float))
    return _thinned(values, MAX_STRIP)


def _thinned(values: Sequence[float], most: int) -> tuple[float, ...]:
    if len(values) <= most:
        return tuple(values)
    return tuple(values[round(k * (len(values) - 1) / (most - 1))] for k in range(most))


def _reach(dots: Iterable[Dot], unit: str) -> tuple[float, float]:
    """Returns the ends of a scale that has room for all of some numbers."""
    found = [each for dot in dots for each in (dot.number.value, dot.number.low, dot.number.high, *dot.strip) if each is not None]
    if unit in ("fraction", "probability") and all(0 <= each <= 1 for each in found):
        return 0.0, 1.0
    if not found:
        return 0.0, 1.0
    low, high = min(0.0, *found), max(0.0, *found)
    room = (high - low or 1.0) * 0.04
    return low - (room if low < 0 else 0.0), high + (room if high > 0 else 0.0)


def _lists(step: str, metric: str, entries: Sequence[Entry], numbers: Sequence[Number]) -> Table:
    """Returns how often each token comes first, of a metric that gives lists."""
    lines = []
    for entry, number in itertools.islice(zip(entries, numbers, strict=True), MAX_DOTS):
        rows = () if number.rows is None else number.rows.rows
        firsts = [row["value"][0][0] for row in rows if isinstance(row["value"], list) and row["value"] and _is_of(row, number)]
        counted = sorted({(firsts.count(token), token) for token in set(firsts)}, key=lambda pair: (-pair[0], pair[1]))[:6]
        said = ", ".join(f"‘{token}’ × {n}" for n, token in counted)
        if number.rows is not None and number.rows.missing:
            said = number.rows.missing
        lines.append((number.at or metric, f"{entry['eligible']} of {entry['n']}", said, number))
    return Table(
        f"{step} {metric}", step, f"{metric}: most likely tokens", ("at", "rows", "first of the list", "rows behind it"), tuple(lines)
    )


def _is_of(row: Row, number: Number) -> bool:
    return all(row.get(key) == value for key, value in number.filter)


def _attribution(folder: Folder, entry: Entry) -> Iterator[Figure]:
    """Yields the map of an attribution's layers and heads (or tokens), and its largest components beside what was run exactly."""
    rows = folder.table(entry["point"], entry["step"], entry["metric"])
    where = _at(axes_of(entry))
    title = f"{entry['metric']} by {entry['method']}" + (f" at {where}" if where else "")
    components = entry["components"]
    keys = [key for key in ("write", "layer", "head", "token") if len({str(part.get(key)) for part in components}) > 1] or ["write"]
    numbers = []
    for part in components:
        interval = part["interval"] or {"low": None, "high": None}
        place = {key: str(part.get(key, "")) for key in keys}
        own = tuple((key, part[key]) for key in ("write", "layer", "head", "token") if key in part)
        at = ", ".join(part for part in (where, _at(place)) if part)
        number = Number(
            *(part["mean"], interval["low"], interval["high"], part["n"], part["eligible"], at, rows, own),
            *(entry["step"], f"{entry['metric']} (estimate)", entry["unit"]),
        )
        numbers.append((place, number))
    across = next((key for key in ("layer", "token", "head") if key in keys), "")
    downs = [key for key in keys if key != across]
    if across and len(components) > 1:
        order = sorted(numbers, key=lambda pair: [(0, int(v)) if v.lstrip("-").isdigit() else (1, 0) for v in pair[0].values()])
        scale = scale_of([number.value for _, number in numbers if number.value is not None], entry["unit"])
        facets: dict[tuple[str, ...], list[tuple[dict[str, str], Number]]] = {}
        for place, number in order:
            facets.setdefault(tuple(place[key] for key in downs[:-1]), []).append((place, number))
        for facet, cells in itertools.islice(facets.items(), MAX_FACETS):
            said = _at(dict(zip(downs[:-1], facet, strict=True)))
            down = downs[-1] if downs else ""
            name = f"{title}{', ' if said else ''}{said}"
            yield heat_map(entry["step"], name, entry["unit"], across, down, cells, scale)
    dots = []
    for part, (place, number) in zip(components[:24], numbers, strict=False):
        dots.append(Dot(_at(place), "metric", number))
        if "exact" in part:
            exact = Number(
                part["exact"],
                None,
                None,
                part["n"],
                part["eligible"],
                f"run exactly, {number.at}",
                rows,
                number.filter,
                *(number.step, entry["metric"], number.unit, number.point),
            )
            dots.append(Dot("run exactly", "exact", exact))
    low, high = _reach(dots, entry["unit"])
    largest = Dots(
        f"{entry['step']} {title}",
        entry["step"],
        f"{title}: largest components",
        entry["unit"],
        tuple(dots),
        low,
        high,
        max(0, len(components) - 24),
    )
    yield largest


def _fits(folder: Folder) -> list[Entry]:
    """Returns the fits of a run, those that were not finished too."""
    unfinished = [{**fit, "axes": folder.points.get(fit["point"], {})} for fit in folder.record.get("fits", ())]
    return [*folder.summary.get("fits", ()), *unfinished]


def _curves(folder: Folder, step: str) -> Iterator[Curves]:
    """Yields the losses of a step's fits by update, and what they were on the rows that they are judged on, by epoch."""
    fits = [fit for fit in _fits(folder) if fit["step"] == step]
    read = [(fit, *folder.curves(fit["point"], step)) for fit in fits]
    missing = tuple(dict.fromkeys(rows.missing for _, *both in read for rows in both if rows.missing))
    for which, across, title in ((0, "update", "on the rows that are trained on"), (1, "epoch", "on the rows that it is judged on")):
        tables = [(fit, both[which].rows) for fit, *both in read if both[which].rows]
        columns = [
            key for key in dict.fromkeys(key for _, rows in tables for key in rows[0]) if key not in ("epoch", "update", "lr", "is_best")
        ]
        if (
            len(columns) > 1
            and "objective" in columns
            and all(row.get("objective") == row.get(columns[1]) for _, rows in tables for row in rows)
        ):
            columns = [columns[1], *columns[2:]]  # an objective of one term is that term
        for column in columns:
            for figure in _panels(f"{step} {column} {across}", step, f"{column} {title}", across, column, tables, missing):
                missing = ()  # it is said once
                yield figure
    if not any(both[which].rows for _, *both in read for which in (0, 1)) and missing:
        yield Curves(f"{step} curves", step, "curves", "update", "", (), (), (0, 1), (0, 1), missing)


def _panels(
    name: str, step: str, title: str, across: str, column: str, tables: Sequence[tuple[Entry, Sequence[Row]]], missing: tuple[str, ...]
) -> Iterator[Curves]:
    """Yields the lines of a column, in a panel a value of the axis with most of them where they would be too many for one."""
    places = [{axis: shown_value(value) for axis, value in fit["axes"].items()} for fit, _ in tables]
    n_values = {axis: len({place[axis] for place in places}) for place in places for axis in place}
    varied = [axis for axis, n in n_values.items() if n > 1]
    split = max(varied, key=lambda axis: n_values[axis]) if len(varied) > 1 or len(tables) > len(SERIES["light"]) else ""
    labels = [_at({axis: place[axis] for axis in varied if axis != split}) or (column if not split else "") for place in places]
    legend = tuple(dict.fromkeys(labels))[: len(SERIES["light"])]
    panels: dict[str, list[Line]] = {}
    for (fit, rows), place, label in zip(tables, places, labels, strict=True):
        if label not in legend:
            continue
        kept = [row for row in rows if isinstance(row.get(column), int | float)]
        chosen = [kept[k] for k in dict.fromkeys(round(i) for i in _evenly(len(kept), MAX_VERTICES))]
        if not chosen:
            continue
        at = next((k for k, row in enumerate(chosen) if across == "epoch" and row["epoch"] == fit.get("kept_epoch")), None)
        line = Line(label, legend.index(label), tuple(row[across] for row in chosen), tuple(float(row[column]) for row in chosen), at)
        panels.setdefault(f"{split} {place[split]}" if split else "", []).append(line)
    lines = [line for panel in panels.values() for line in panel]
    if not lines:
        return
    xs, ys = [x for line in lines for x in line.xs], [y for line in lines for y in line.ys]
    low, high = min(0.0, *ys), max(0.0, *ys)
    top = high + 0.06 * ((high - low) or 1)
    shown_panels = tuple((panel, tuple(own)) for panel, own in itertools.islice(panels.items(), MAX_PANELS))
    more = (f"{len(panels) - MAX_PANELS} more panels are not drawn",) if len(panels) > MAX_PANELS else ()
    yield Curves(name, step, title, across, column, shown_panels, legend, (min(xs), max(*xs, min(xs) + 1)), (low, top), missing + more)


def _evenly(n: int, most: int) -> Iterator[float]:
    yield from (k * (n - 1) / (most - 1) for k in range(most)) if n > most else range(n)


def _stream(folder: Folder, entry: Entry) -> Table:
    """Returns how often the points of a stream fired, and what their probes said."""
    lines, notes = [], list[str]()
    saved = folder.table(entry["point"], entry["step"], "verdicts")
    for point in entry["points"]:
        reasons = list(dict.fromkeys(request["reason"] for request in point["requests"] if request["reason"]))
        probe = point.get("probe")
        said = ""
        if probe is not None:
            aborted = f", ended {len(probe['aborted'])} of {len(point['requests'])}" if probe["aborted"] else ""
            failed = f", {len(probe['failures'])} failures" if probe["failures"] else ""
            dropped = sum(probe["activations"]["dropped"].values())
            said = f"asked{aborted}{failed}" + (f", {dropped} dropped" if dropped else "")
        rows = Rows(
            saved.file, [row for row in saved.rows if row.get("point") == point["point"]], saved.missing if probe is not None else ""
        )
        if not rows.rows:
            rows = Rows("summary.json", point["requests"])
        number = Number(
            float(point["fired"]),
            None,
            None,
            len(point["requests"]),
            point["eligible"],
            point["point"],
            rows,
            (),
            entry["step"],
            "fired",
            "",
            entry["point"],
        )
        layers = ", ".join(map(str, point["layers"] or ()))
        cells = (point["point"], point["tensor_type"], layers or "–", point["position"], str(point["eligible"]), number, said or "records")
        lines.append((*cells, "; ".join(reasons[:3]) or "–"))
    where = _at(axes_of(entry))
    columns = ("point", "tensor", "layers", "position", "could fire", "fired", "probe", "why not more often")
    title = f"points{f' at {where}' if where else ''}, {entry['n_forwards']} forwards"
    return Table(f"{entry['step']} points {where}", entry["step"], title, columns, tuple(lines), tuple(notes))


def _named_apart(figures: Iterable[Figure]) -> Iterator[Figure]:
    """Yields figures with names that can be files and anchors, each its own."""
    from dataclasses import replace

    taken: dict[str, int] = {}
    for figure in figures:
        plain = re.sub(r"[^A-Za-z0-9]+", "-", figure.name).strip("-").lower()[:80] or "figure"
        taken[plain] = taken.get(plain, 0) + 1
        yield replace(figure, name=plain if taken[plain] == 1 else f"{plain}-{taken[plain]}")
