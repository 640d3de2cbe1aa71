"""The summary of a run: every metric of every point with its count, mean and interval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from causalab_mini.evidence.intervals import LEVEL, interval

BINARY_KINDS = ("match", "class_match", "generated_match")


def summarise(point: str, values: Mapping[str, Any], step: str, metric: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields one entry a metric, or one a layer for stacked reads.

    Args:
        point: label of the sweep's point.
        values: of its axes.
        step: name of the step.
        metric: name, with its intervention in a step of several.
        rows: the metric's table.
    """
    by_layer: dict[int | None, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_layer.setdefault(row.get("layer"), []).append(row)
    for layer, lines in by_layer.items():
        kind = str(lines[0]["estimand_version"]).partition("/")[0]
        numbers = [float(line["value"]) for line in lines if isinstance(line["value"], int | float)]
        found = interval(numbers, lines[0]["unit"], kind in BINARY_KINDS)
        entry: dict[str, Any] = {
            "point": point,
            "axes": dict(values),
            "step": step,
            "metric": metric,
            "kind": kind,
            "unit": lines[0]["unit"],
            "n": len(lines),
            "eligible": sum(bool(line["eligible"]) for line in lines),
            "mean": sum(numbers) / len(numbers) if numbers else None,
            "interval": None if found is None else {"low": found.low, "high": found.high, "level": LEVEL, "method": found.method},
        }
        yield entry if layer is None else entry | {"layer": layer}
