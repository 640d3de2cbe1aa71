"""Two runs, row by row: what differs in what was asked, by how much every metric differs on the same rows, and which rows changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from causalab_mini.errors import DocumentError, listed
from causalab_mini.evidence.intervals import LEVEL, bootstrap
from causalab_mini.plan.layout import differences, document_differences
from causalab_mini.plan.load import load_raw
from causalab_mini.plan.sweep import show_value
from causalab_mini.results.reading.rows import Row
from causalab_mini.results.reading.run import SavedRun

METHOD = "bootstrap of paired differences"
OF_RECORD = (
    "model",
    "dtype",
    "device",
    "attn_implementation",
    "engine",
    "versions",
    "package_sha256",
    "data",
    "files",
    "decode",
    "probe_files",
)
PLACE = ("layer", "write", "head", "token")


@dataclass(slots=True)
class Cells:
    """The values of one metric at one point, by row.

    Attributes:
        point: the axes' values, as labels show them.
        step: that it is of.
        metric: its name.
        place: the layer of a stacked read; write, layer, head and token of an attribution.
        unit: of the values; empty of texts.
        values: by row; None where a row has none.
        mean: as the summary has it, where rows aren't saved.
    """

    point: Mapping[str, str]
    step: str
    metric: str
    place: Mapping[str, Any]
    unit: str
    values: dict[str, Any] = field(default_factory=dict)
    mean: float | None = None
    is_by_row: bool = True

    def key(self, *, has_step: bool = True) -> Hashable:
        """Returns what is compared with each other."""
        return (tuple(sorted(self.point.items())), self.step if has_step else "", self.metric, tuple(self.place.items()))

    def as_data(self) -> Row:
        """Returns where it is, as data."""
        return {"point": dict(self.point), "step": self.step, "metric": self.metric, **self.place}


def compare_runs(a: SavedRun, b: SavedRun, tolerance: float = 0.0) -> dict[str, Any]:
    """Returns how a second run differs from a first, as JSON data.

    Metrics are matched by point (the values of its axes), step and name; by point and name alone where that is unique on both sides. Rows are
    matched by `example_id`, and only where both steps took them from one table with one checksum: else a row of the same name may be another one,
    and no paired difference is given. Differences are B − A.

    Args:
        a: the first run.
        b: the second.
        tolerance: a number has changed where the two differ by more.

    Returns:
        `same_digest`; `documents` and `records`: what differs there, by path; `metrics`: each with its counts, means, paired difference with its
        interval, and the rows that changed, the largest change first; `only_in_a`, `only_in_b`: metrics that the other lacks; `is_changed`.

    Raises:
        DataError: a file of them can't be read.
    """
    sides = (_cells(a), _cells(b))
    pairs, only_a, only_b = _matched(*sides)
    metrics = [_compared(one, other, _why_not(a, one, b, other), tolerance) for one, other in pairs]
    return {
        "a": _of(a),
        "b": _of(b),
        "same_digest": a.digest == b.digest,
        "documents": [{"path": path, "a": left, "b": right} for path, left, right in _documents(a, b)],
        "records": [
            {"path": path, "a": left, "b": right}
            for key in OF_RECORD
            for path, left, right in differences(a.record.get(key), b.record.get(key), (key,))
        ],
        "metrics": metrics,
        "only_in_a": [cells.as_data() for cells in only_a],
        "only_in_b": [cells.as_data() for cells in only_b],
        "is_changed": bool(only_a or only_b) or any(_is_changed(entry) for entry in metrics),
    }


def _of(run: SavedRun) -> Row:
    return {"path": str(run.path), "status": run.status, "digest": run.digest}


def _documents(a: SavedRun, b: SavedRun) -> list[tuple[str, Any, Any]]:
    if a.digest == b.digest:
        return []
    try:
        return document_differences(load_raw(a.document), load_raw(b.document))
    except DocumentError:  # extraction specs, and documents of another version
        return list(differences(a.document, b.document))


def _cells(run: SavedRun) -> list[Cells]:
    """Returns all values of a run that stand beside rows, and of other metrics the means."""
    found: dict[Hashable, Cells] = {}
    entries = run.summary.get("metrics", ()) if run.has_summary else ()
    summarised = {(entry["step"], entry["metric"]) for entry in entries}
    for file in run.files:
        if file.is_table:
            for label in run.points:
                if (run.path / label / file.path).is_file():
                    point = {axis: show_value(value) for axis, value in run.points[label].items()}
                    rows = run.table(file.path, label).rows
                    for cells in _of_table(rows, point, file.step, file.value, summarised):
                        found.setdefault(cells.key(), cells)
    for entry in entries:
        point = {axis: show_value(value) for axis, value in entry["axes"].items()}
        place = {"layer": entry["layer"]} if "layer" in entry else {}
        cells = Cells(point, entry["step"], entry["metric"], place, entry["unit"], mean=entry["mean"], is_by_row=False)
        found.setdefault(cells.key(), cells)
    return list(found.values())


def _of_table(
    rows: Sequence[Mapping[str, Any]], point: Mapping[str, str], step: str, value: str, summarised: set[tuple[str, str]]
) -> Iterator[Cells]:
    found: dict[Hashable, Cells] = {}
    columns = set(rows[0]) if rows else set()
    if {"example_id", "metric", "value", "unit"} <= columns:
        for row in rows:
            inside = f"{row['produced_by'].partition('/')[2].partition('/')[0]}/{row['metric']}" if row.get("produced_by") else ""
            name = inside if (step, inside) in summarised else row["metric"]
            place = {key: row[key] for key in PLACE if row.get(key) is not None}
            cells = Cells(point, step, name, place, row["unit"])
            found.setdefault(cells.key(), cells).values[row["example_id"]] = row["value"]
    elif {"example_id", "correct"} <= columns and any(isinstance(row["correct"], bool) for row in rows):
        values = {row["example_id"]: float(row["correct"]) if isinstance(row["correct"], bool) else None for row in rows}
        found[step] = Cells(point, step, "correct", {}, "fraction", values)
    elif {"text", "ended"} <= columns and ("example_id" in columns or {"request", "prompt"} <= columns):
        has_ids = "example_id" in columns
        texts = {row["example_id"] if has_ids else f"{row['request']}: {row['prompt']}": row["text"] for row in rows}
        found[step] = Cells(point, step, value, {}, "", texts)
    yield from found.values()


def _matched(left: Sequence[Cells], right: Sequence[Cells]) -> tuple[list[tuple[Cells, Cells]], list[Cells], list[Cells]]:
    """Returns what is compared, in the order of the first run, and what stands alone on either side."""
    partner: dict[int, Cells] = {}
    taken: set[int] = set()
    for has_step in (True, False):
        groups: dict[Hashable, tuple[list[Cells], list[Cells]]] = defaultdict(lambda: ([], []))
        for side, cells in enumerate((left, right)):
            for each in cells:
                if id(each) not in partner and id(each) not in taken:
                    groups[each.key(has_step=has_step)][side].append(each)
        for ones, others in groups.values():
            if len(ones) == len(others) == 1:
                partner[id(ones[0])] = others[0]
                taken.add(id(others[0]))
    pairs = [(each, partner[id(each)]) for each in left if id(each) in partner]
    return pairs, [each for each in left if id(each) not in partner], [each for each in right if id(each) not in taken]


def _why_not(a: SavedRun, one: Cells, b: SavedRun, other: Cells) -> str:
    """Returns why rows can't be paired; empty where they can."""
    for cells, name in ((one, "A"), (other, "B")):
        if not cells.is_by_row:
            return f"the rows are not saved in {name}"
    if a.is_recording or b.is_recording:
        return ""
    ours, theirs = (_tables(run, cells.step) for run, cells in ((a, one), (b, other)))
    if any(ours[role] == theirs[role] for role in ours if role in theirs):
        return ""
    shown = [
        listed(dict.fromkeys(ref for ref, _ in refs))
        for tables in (ours, theirs)
        for refs in [[ref for each in tables.values() for ref in each]]
    ]
    return f"rows of {shown[0]} in A, of {shown[1]} in B" if shown[0] != shown[1] else f"{shown[0]} is another file in A than in B"


def _tables(run: SavedRun, step: str) -> dict[str, tuple[tuple[str, Any], ...]]:
    """Returns the tables of a step's roles with their checksums; of a fit, those that it is judged on."""
    body = run.document["steps"][step]
    rows = (body.get("eval") if isinstance(body.get("eval"), dict) else body).get("rows")
    data = run.record.get("data") or {}
    return (
        {role: tuple((ref, (data.get(ref) or {}).get("sha256")) for ref in _refs(refs)) for role, refs in rows.items()}
        if isinstance(rows, dict)
        else {}
    )


def _refs(value: Any) -> Iterable[str]:
    if isinstance(value, dict):
        value = value.get("sweep")
    return [value] if isinstance(value, str) else [each for each in value or () if isinstance(each, str)]


def _compared(one: Cells, other: Cells, why_not: str, tolerance: float) -> dict[str, Any]:
    entry: dict[str, Any] = one.as_data() | ({} if one.step == other.step else {"step_in_b": other.step}) | {"unit": one.unit}
    if why_not:
        x, y = _mean(one), _mean(other)
        difference = None if x is None or y is None else y - x
        return entry | {"is_paired": False, "why": why_not, "mean_a": x, "mean_b": y, "difference": difference, "interval": None}
    both = [row for row in one.values if one.values[row] is not None and other.values.get(row) is not None]
    entry |= {
        "is_paired": bool(both),
        "why": "" if both else "no row has a value in both",
        "n_paired": len(both),
        "n_only_in_a": sum(value is not None for value in one.values.values()) - len(both),
        "n_only_in_b": sum(value is not None for value in other.values.values()) - len(both),
    }
    pairs = {row: (one.values[row], other.values[row]) for row in both}
    is_number = all(_is_number(value) for pair in pairs.values() for value in pair)
    changes: list[dict[str, Any]] = []
    for row, (x, y) in pairs.items():
        if (abs(y - x) > tolerance) if is_number else x != y:
            changes.append({"example_id": row, "a": x, "b": y, **({"difference": y - x} if is_number else {})})
    changes.sort(key=lambda change: -abs(change.get("difference", 0.0)))
    entry |= {"n_changed": len(changes), "changed": changes}
    if not is_number or not both:
        return entry | {"mean_a": None, "mean_b": None, "difference": None, "interval": None}
    between = [y - x for x, y in pairs.values()]
    found = bootstrap(between)
    return entry | {
        "mean_a": sum(x for x, _ in pairs.values()) / len(both),
        "mean_b": sum(y for _, y in pairs.values()) / len(both),
        "difference": sum(between) / len(both),
        "interval": None if found is None else {"low": found.low, "high": found.high, "level": LEVEL, "method": METHOD},
    }


def _mean(cells: Cells) -> float | None:
    if not cells.is_by_row:
        return cells.mean
    numbers = [value for value in cells.values.values() if _is_number(value)]
    return sum(numbers) / len(numbers) if numbers else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_changed(entry: Mapping[str, Any]) -> bool:
    if not entry["is_paired"]:
        return entry["mean_a"] != entry["mean_b"] or bool(entry.get("n_only_in_a") or entry.get("n_only_in_b"))
    return bool(entry["n_changed"] or entry["n_only_in_a"] or entry["n_only_in_b"])
