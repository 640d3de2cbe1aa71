"""A results folder as one page of HTML that asks nobody for anything: style, script and data are in it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from causalab_mini import __version__
from causalab_mini.errors import Problem, RunError
from causalab_mini.results.places import PLACES
from causalab_mini.results.report.colours import N_STEPS, rules, ticks
from causalab_mini.results.report.figures import Curves, Dots, Figure, HeatMap, Number, Table, figures_of, shown
from causalab_mini.results.report.folder import Folder, drawn_from
from causalab_mini.results.report.where import located
from causalab_mini.results.store import DOCUMENT, RECORD, SUMMARY

TEMPLATES = Path(__file__).resolve().parent / "templates"
MAX_ROWS, ALL_ROWS = 500, 30_000
"""Rows that are embedded behind one number, and in all."""
UNSEEN = {"metric", "unit", "estimand_version", "produced_by", "write", "point"}
"""Columns that are alike in all rows behind a number."""


def page_of(folder: Folder) -> str:
    """Returns the page of a run.

    Raises:
        DataError: a file of it was edited into something that can't be drawn.
        RunError: jinja2 is not installed.
    """
    template = _template()
    with drawn_from(folder.path / DOCUMENT):
        header = {key: str((folder.document.get("header") or {}).get(key) or "") for key in ("title", "description")}
        told = asked(folder.document)
    with drawn_from(folder.path / RECORD):
        ended, checked = state(folder), checks(folder.record)
    with drawn_from(folder.path / SUMMARY):
        beside = controls(folder)
    with drawn_from(folder.path / PLACES):
        where = located(folder)
    figures = figures_of(folder)
    behind = Behind(folder)
    style = _text("style.css") + f"\n{rules('light')}\n@media (prefers-color-scheme:dark){{\n{rules('dark')}\n}}\n"
    script = _text("script.js")
    by_step: dict[str, list[Figure]] = {}
    order = list(dict.fromkeys(_plain_step(figure) for figure in figures))
    for figure in sorted(figures, key=lambda figure: (order.index(_plain_step(figure)), "(eval)" in figure.step)):
        by_step.setdefault(figure.step, []).append(figure)
    asks = dict[str, Any](
        data=lambda: _raw(embedded(behind.as_data())),  # asked for last, when every number has been shown
        folder=folder,
        name=folder.path.resolve().name,
        header=header,
        document=json.dumps(folder.document, indent=2, ensure_ascii=False),
        asked=told,
        state=ended,
        by_step=by_step,
        controls=beside,
        located=where,
        checks=checked,
        record=folder.record,
        behind=behind,
        kind=lambda figure: type(figure).__name__,
        is_number=lambda cell: isinstance(cell, Number),
        n_steps=N_STEPS,
        ticks=ticks,
        version=__version__,
        style=_raw(style),
        script=_raw(script),
        policy=f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'; form-action 'none'",
    )
    with drawn_from(folder.path, _undefined()):
        text: str = template.render(**asks)
    return text


def _plain_step(figure: Figure) -> str:
    return figure.step.removesuffix(" (eval)")


def embedded(data: Any) -> str:
    """Returns JSON that can stand inside a script element: nothing in it ends the element or a line of a script."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


class Behind:
    """The rows behind the numbers of a page, each set once.

    Args:
        folder: what they are of.

    Attributes:
        n_left_out: rows that are not embedded.
    """

    def __init__(self, folder: Folder) -> None:
        self.places: Mapping[str, Any] = folder.places or {"rows": [], "prompts": []}
        self.keys: dict[Any, int] = {}
        self.sets: list[dict[str, Any]] = []
        self.n_rows = 0
        self.n_left_out = 0

    def __call__(self, number: Number) -> int | None:
        """Returns which set of rows stands behind a number; None where there is none."""
        if number.rows is None:
            return None
        key = (number.rows.file, number.filter, number.step, number.metric, number.at)
        if key not in self.keys:
            self.keys[key] = len(self.sets)
            self.sets.append(self.rows(number))
        return self.keys[key]

    def rows(self, number: Number) -> dict[str, Any]:
        """Returns the rows behind a number as data."""
        assert number.rows is not None
        rows = [row for row in number.rows.rows if all(row.get(key) == value for key, value in number.filter)]
        kept = rows[: max(0, min(MAX_ROWS, ALL_ROWS - self.n_rows))]
        self.n_rows += len(kept)
        self.n_left_out += len(rows) - len(kept)
        hidden = UNSEEN | {key for key, _ in number.filter}
        columns = [key for key in dict.fromkeys(key for row in kept[:50] for key in row) if key not in hidden]
        columns = [key for key in columns if any(row.get(key) is not None for row in kept)]
        interval = "" if number.low is None else f" ({shown(number.low)} … {shown(number.high)})"
        return {
            "title": f"{number.step} · {number.metric}",
            "at": number.at if number.at != number.metric else "",
            "said": f"{shown(number.value)} {number.unit}{interval}" if number.unit else f"{shown(number.value, 0)} of {number.eligible}",
            "count": f"{number.eligible} of {number.n} rows eligible",
            "file": number.rows.file,
            "missing": number.rows.missing,
            "total": len(rows),
            "columns": columns,
            "rows": [[_plain(row.get(key)) for key in columns] for row in kept],
            "prompts": self.prompts(number),
        }

    def prompts(self, number: Number) -> int | None:
        """Returns which of `rows` names the prompts of a number's step."""
        step, _, of = number.step.removesuffix(")").partition(" (")
        for index, entry in enumerate(self.places["rows"]):
            if (entry["step"], entry["of"]) == (step, of) and (entry["points"] is None or number.point in entry["points"]):
                return index
        return None

    def as_data(self) -> dict[str, Any]:
        """Returns what the page embeds."""
        steps = [{"labels": entry["labels"], "roles": entry["roles"]} for entry in self.places["rows"]]
        prompts = [entry["texts"] for entry in self.places["prompts"]]
        return {"sets": self.sets, "steps": steps, "prompts": prompts}


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else json.dumps(value, ensure_ascii=False)


def state(folder: Folder) -> dict[str, Any]:
    """Returns how a run ended, in words."""
    record = folder.record
    done = len({entry["point"] for entry in record.get("steps", ())})
    of = record.get("n_points", 1)
    errors = [_error(each) for each in (record.get("error") or {}).get("errors", ())]
    failed = sum(check["status"] == "failed" for entry in record.get("steps", ()) for check in entry.get("checks", ()))
    said = {
        "finished": f"{failed} check{'s' if failed > 1 else ''} failed: see Evidence before you use a number" if failed else "",
        "failed": "The run failed. What stands here is what had been written by then.",
        "interrupted": "The run was interrupted. What stands here is what had been written by then.",
        "running": "The run has not ended: it still goes on, or was killed. What stands here is what has been written so far.",
    }.get(record["status"], "")
    return {
        "status": record["status"],
        "said": said,
        "errors": errors,
        "done": done,
        "of": of,
        "is_bad": bool(failed) or record["status"] != "finished",
    }


def _error(error: Mapping[str, Any]) -> str:
    place = f"{error['path']}: " if error.get("path") else ""
    expected = f"expected {error['expected']}, got {error.get('got')}" if error.get("expected") else str(error.get("got"))
    return place + expected


def checks(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns each kind of check with how often it passed, and what it said, failed ones first."""
    found: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for entry in record.get("steps", ()):
        for check in entry.get("checks", ()):
            found.setdefault(check["check"], []).append((entry["point"], check))
    order = ("failed", "skipped", "passed")
    return [
        {
            "name": name,
            "counts": {status: n for status in order if (n := sum(check["status"] == status for _, check in own))},
            "lines": sorted(((point, check["status"], check["text"]) for point, check in own), key=lambda line: order.index(line[1])),
        }
        for name, own in found.items()
    ]


def controls(folder: Folder) -> list[dict[str, Any]]:
    """Returns each control's mean difference to what it stands beside: over the points of a metric."""
    found: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for entry in folder.summary.get("metrics", ()):
        for kind, control in entry.get("controls", {}).items():
            if entry["mean"] is not None and control["mean"] is not None:
                found.setdefault((entry["step"], entry["metric"], kind), []).append((entry["mean"], control["mean"]))
    lines = []
    for (step, metric, kind), pairs in found.items():
        best = max(pairs, key=lambda pair: abs(pair[0] - pair[1]))
        lines.append({"step": step, "metric": metric, "kind": kind.replace("_", " "), "n": len(pairs), "own": best[0], "control": best[1]})
    return lines


def asked(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a document's parts in few words."""
    interventions = []
    for name, raw in (document.get("interventions") or {}).items():
        if isinstance(raw, dict):
            interventions.append({"name": name, "metrics": _entries(raw.get("metrics"))})
    steps = []
    for name, raw in (document.get("steps") or {}).items():
        if isinstance(raw, dict):
            told = {key.replace("_", " "): value for key, value in raw.items() if key not in ("kind", "saves")}
            steps.append({"name": name, "kind": in_words(raw.get("kind", "")), "lines": _entries(told)})
    parts = {key: _entries(document.get(key)) for key in ("roles", "sites", "featurizers")}
    return {**parts, "interventions": interventions, "steps": steps}


def _entries(raw: Any) -> list[tuple[str, list[str]]]:
    """Returns an object's entries in words; a list of objects as lines."""
    if not isinstance(raw, dict):
        return []
    return [
        (
            name,
            [in_words(item) for item in value]
            if isinstance(value, list) and any(isinstance(item, dict) for item in value)
            else [in_words(value)],
        )
        for name, value in raw.items()
    ]


def in_words(value: Any) -> str:
    """Returns a value of a document on one line, with few marks."""
    if isinstance(value, dict):
        if "sweep" in value:
            axis = f" (axis {value['as']})" if isinstance(value.get("as"), str) else ""
            return f"each of {in_words(value['sweep'])}{axis}"
        return ", ".join(f"{key} {_bracketed(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(_bracketed(item) for item in value) or "none"
    return "yes" if value is True else "no" if value is False else "none" if value is None else str(value)


def _bracketed(value: Any) -> str:
    text = in_words(value)
    is_nested = isinstance(value, dict | list) and len(value) > 1 and not (isinstance(value, dict) and "sweep" in value)
    return f"({text})" if is_nested else text


@cache
def _text(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _raw(text: str) -> Any:
    from markupsafe import Markup

    return Markup(text)  # of files of ours


def _undefined() -> type[Exception]:
    from jinja2 import UndefinedError

    return UndefinedError


def _template() -> Any:
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError:
        hint = "pip install 'causalab-mini[report]'"
        raise RunError(Problem("", "jinja2, to write a report", "no such package", hint, "extra")) from None
    world = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    world.filters |= {"shown": shown, "percent": percent, "words": in_words}
    world.globals["points"] = points
    return world.get_template("page.html.j2")


def percent(value: float, figure: Dots | Curves | HeatMap | Table) -> str:
    """Returns how far along the scale of a dot plot a number is, with room for a mark at both ends."""
    assert isinstance(figure, Dots)
    share = (value - figure.low) / (figure.high - figure.low)
    return f"{3 + 94 * share:.2f}%"


def points(xs: Sequence[float], ys: Sequence[float], figure: Curves) -> str:
    """Returns a line as the points of a polyline in a square of 100 by 100."""
    (left, right), (low, high) = figure.x, figure.y
    return " ".join(
        f"{100 * (x - left) / (right - left):.2f},{100 - 100 * (y - low) / ((high - low) or 1):.2f}" for x, y in zip(xs, ys, strict=True)
    )
