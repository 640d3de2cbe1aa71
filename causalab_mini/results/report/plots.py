"""Figures as pictures, drawn with matplotlib: what `plot` writes."""

from __future__ import annotations

import io
import warnings
from typing import Any

from causalab_mini.errors import Problem, RunError
from causalab_mini.results.report.colours import BOTH_WAYS, MORE, SERIES, hexadecimal, ink, ramp
from causalab_mini.results.report.figures import Curves, Dots, Figure, HeatMap, Table, shown

STYLE = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "causalab-mini",
    "text.parse_math": False,
}
MAX_SIDE = 60.0
"""Inches."""


def picture(figure: Figure, suffix: str) -> bytes | None:
    """Returns a figure as the bytes of a `png` or an `svg`; None of a table, which is no picture.

    Raises:
        RunError: matplotlib is not installed.
    """
    if isinstance(figure, Table) or (isinstance(figure, Curves) and not figure.panels):
        return None
    try:
        import matplotlib
    except ImportError:
        hint = "pip install 'causalab-mini[report]'"
        raise RunError(Problem("", "matplotlib, to draw figures", "no such package", hint, "extra")) from None
    sink = io.BytesIO()
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Gg]lyph")  # a token in a script that the font lacks is a box, not an error
        match figure:
            case HeatMap():
                drawn = _heat_map(figure)
            case Dots():
                drawn = _dots(figure)
            case Curves():
                drawn = _curves(figure)
        drawn.savefig(sink, format=suffix, dpi=200, bbox_inches="tight", metadata={"Date": None} if suffix == "svg" else None)
    return sink.getvalue()


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure as Canvas

    return Canvas(figsize=(min(MAX_SIDE, width), min(MAX_SIDE, height)), layout="constrained")


def _heat_map(figure: HeatMap) -> Any:
    from matplotlib.colors import ListedColormap

    stops = ramp((BOTH_WAYS if figure.scale.is_diverging else MORE)["light"])
    n_rows, n_columns = len(figure.lines), len(figure.columns)
    drawn = _figure(2.2 + 0.62 * n_columns, 1.1 + 0.4 * n_rows)
    axes = drawn.subplots()
    values = [[float("nan") if cell is None or cell.value is None else cell.value for cell in row] for row in figure.cells]
    colours = ListedColormap([hexadecimal(stop) for stop in stops])
    image = axes.pcolormesh(values, cmap=colours, vmin=figure.scale.low, vmax=figure.scale.high, edgecolors="white", linewidth=1)
    for y, row in enumerate(figure.cells):
        for x, cell in enumerate(row):
            if cell is not None and cell.value is not None:
                colour = hexadecimal(ink(stops[figure.scale.step(cell.value)]))
                weight = "bold" if cell.is_best else "normal"
                axes.text(x + 0.5, y + 0.5, shown(cell.value, 2), ha="center", va="center", color=colour, fontsize=8, fontweight=weight)
    axes.invert_yaxis()
    axes.set_xticks([x + 0.5 for x in range(n_columns)], [_short(name) for name in figure.columns])
    if max(map(len, figure.columns)) > 8:
        axes.tick_params(axis="x", rotation=45)
    axes.set_yticks([y + 0.5 for y in range(n_rows)], [_short(name) for name in figure.lines])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set(xlabel=figure.across, ylabel=figure.down, title=f"{figure.step} · {figure.title}")
    drawn.colorbar(image, ax=axes, label=figure.unit, fraction=0.05).outline.set_visible(False)
    return drawn


def _dots(figure: Dots) -> Any:
    drawn = _figure(6.4, 0.9 + 0.24 * len(figure.dots))
    axes = drawn.subplots()
    colours = {"metric": SERIES["light"][0], "control": "#5b6570", "exact": SERIES["light"][1]}
    for y, dot in enumerate(figure.dots):
        number, colour = dot.number, colours[dot.kind]
        axes.plot(dot.strip, [y] * len(dot.strip), "|", color=colour, alpha=0.25, markersize=7, clip_on=False)
        if number.low is not None and number.high is not None:
            axes.plot([number.low, number.high], [y, y], "-", color=colour, linewidth=1.4, solid_capstyle="butt", clip_on=False)
        if number.value is not None:
            filled = "none" if dot.kind == "control" else colour
            axes.plot(
                [number.value],
                [y],
                "D" if dot.kind == "exact" else "o",
                color=colour,
                markerfacecolor=filled,
                markersize=4.5,
                clip_on=False,
            )
    axes.set_yticks(range(len(figure.dots)), [("  " if dot.kind != "metric" else "") + _short(dot.label, 40) for dot in figure.dots])
    axes.invert_yaxis()
    axes.set_xlim(figure.low, figure.high)
    axes.margins(y=0.02)
    axes.grid(axis="x", color="#dfe3e7", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set(xlabel=f"{figure.unit} (mean and 95 % interval)", title=f"{figure.step} · {figure.title}")
    return drawn


def _curves(figure: Curves) -> Any:
    n = len(figure.panels)
    across = min(4, n)
    down = -(-n // across)
    drawn = _figure(1.0 + 2.4 * across if n > 1 else 5.0, 0.7 + 2.0 * down if n > 1 else 3.2)
    every = drawn.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    for number, axes in enumerate(axes for row in every for axes in row):
        if number >= n:
            axes.set_visible(False)
            continue
        title, lines = figure.panels[number]
        for line in lines:
            colour = SERIES["light"][line.series]
            axes.plot(line.xs, line.ys, color=colour, linewidth=1.4, label=line.label)
            if line.kept is not None:
                axes.plot([line.xs[line.kept]], [line.ys[line.kept]], "o", color=colour, markersize=4.5, clip_on=False)
        axes.set_title(title, fontsize=9, fontweight="normal")
        axes.set(xlim=figure.x, ylim=figure.y, xlabel=figure.across)
        axes.grid(color="#e6e9ec", linewidth=0.6)
    if len(figure.legend) > 1:
        every[0][-1 if n == across else 0].legend(frameon=False, fontsize=8)
    drawn.suptitle(f"{figure.step} · {figure.title}", fontsize=10, fontweight="bold", x=0.01, ha="left")
    return drawn


def _short(text: str, most: int = 32) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
