"""The checks of a step: rows alone against the batch, and writes that fired and moved something."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from causalab_mini.errors import listed

TOLERANCE = {"fp32": 1e-4, "bf16": 3e-2, "fp16": 3e-2}
"""Largest difference of logits, as a share of the row's standard deviation of logits: batches of other shapes round otherwise."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check's outcome: `passed`, `failed` or `skipped`, in words and as data."""

    name: str
    status: str
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)

    def as_data(self) -> dict[str, Any]:
        """Returns the outcome as the record of a run has it; what is not finite is null there."""
        return {"check": self.name, "status": self.status, "text": self.text, **_finite(self.data)}


def check_rows(step: str, differences: Mapping[int, float], dtype: str, n_rows: int) -> Check:
    """Judges rows that were run alone.

    Args:
        step: its name.
        differences: by row, the largest difference to the batch as a share of the row's standard deviation.
        dtype: of the weights.
        n_rows: rows of the step that were run.
    """
    if not differences:
        why = "one row is its own batch" if n_rows == 1 else "nothing to compare"
        return Check("rows", "skipped", f"{step}: rows not compared ({why})")
    worst, tolerance = max(differences.values()), TOLERANCE[dtype]
    status = "passed" if worst <= tolerance else "failed"
    rows = f"row {next(iter(differences))}" if len(differences) == 1 else f"{len(differences)} rows"
    text = f"{step}: {rows} alone differs from the batch by {worst:.1e} of the standard deviation (at most {tolerance:.0e})"
    return Check("rows", status, text, {"rows": list(differences), "largest": worst, "tolerance": tolerance})


def check_control(step: str, kind: str, difference: float, dtype: str) -> Check:
    """Judges a control that must change nothing.

    Args:
        step: its name.
        kind: of the control.
        difference: the largest to the model without writes, as a share of a row's standard deviation.
        dtype: of the weights.
    """
    tolerance = TOLERANCE[dtype]
    passed = difference <= tolerance
    text = f"{step}: `{kind}` differs from no intervention by {difference:.1e} of the standard deviation (tolerance {tolerance:g})"
    return Check("controls", "passed" if passed else "failed", text, {"largest": difference, "tolerance": tolerance})


def check_fit(step: str, moved: Mapping[str, float]) -> Check:
    """Says what of a fit was trained, and what no gradient reached.

    Args:
        step: its name.
        moved: by featurizer, the largest gradient of all updates.
    """
    still = [name for name, gradient in moved.items() if gradient == 0.0]
    reached = listed(name for name in moved if name not in still)
    said = [f"gradients reached {reached}"] if reached else []
    if still:
        said.append(f"training changed nothing of {listed(still)}: no gradient reached it, since nothing that is scored depends on it")
    text = f"{step}: {'; '.join(said)}"
    return Check("fits", "passed", text, {"largest_gradient": dict(moved)})


def check_writes(
    step: str,
    changes: Mapping[str, Mapping[int, float]],
    expected: Mapping[str, Sequence[int]],
    left_over: Mapping[str, int],
    not_run: Mapping[str, int],
) -> Check:
    """Judges what writes did.

    Args:
        step: its name.
        changes: by write, the relative change of norm of each row on which it fired.
        expected: by write, the rows on which it should.
        left_over: by write, tokens that `align` left as they were.
        not_run: by write, rows that were not run, since each would have been given the value that stands there.
    """
    if not expected:
        return Check("writes", "skipped", f"{step}: nothing is written")
    silent = {name: sorted(set(rows) - set(changes.get(name, {}))) for name, rows in expected.items()}
    silent = {name: rows for name, rows in silent.items() if rows}
    idle = {name: sum(1 for change in changes[name].values() if change == 0.0) for name in expected if name in changes}
    idle = {name: n for name, n in idle.items() if n}
    data = {
        "writes": {
            name: {
                "n_rows": len(rows),
                "n_fired": len(changes.get(name, {})),
                "n_unchanged": idle.get(name, 0),
                "n_not_run": not_run.get(name, 0),
                "median_change": _median(list(changes.get(name, {}).values())),
                "n_tokens_left_over": left_over.get(name, 0),
            }
            for name, rows in expected.items()
        }
    }
    if silent:
        name, rows = next(iter(silent.items()))
        return Check("writes", "failed", f"{step}: `{name}` did not fire on rows {rows[:10]}", data)
    said = [
        f"`{name}` changed nothing on {n} of {len(expected[name])} rows"
        + (f" ({not_run[name]} of them not run: its operand is the row's own value)" if not_run.get(name) else "")
        for name, n in idle.items()
    ]
    said += [f"`{name}` left {n} tokens as they were (align)" for name, n in left_over.items() if n]
    moved = f"{len(expected)} write{'s' if len(expected) != 1 else ''} fired on every row"
    return Check("writes", "passed", f"{step}: {moved}" + (f"; {'; '.join(said)}" if said else ""), data)


def _median(values: list[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


def _finite(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    return None if isinstance(data, float) and not math.isfinite(data) else data
