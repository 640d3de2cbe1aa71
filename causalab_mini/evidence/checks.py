"""The checks of a step: rows alone against the batch, the schedule against the plan's passes, writes that fired, places as tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from causalab_mini.errors import listed, quoted

TOLERANCE = {"fp32": 1e-4, "bf16": 3e-2, "fp16": 3e-2}
"""Largest difference of logits, as a share of the row's standard deviation of logits: batches of other shapes round otherwise."""
MAX_PLACES = 16
"""Places of a step that the record has."""


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


def check_rows(step: str, differences: Mapping[int, float], dtype: str, n_rows: int, why_engine: str = "") -> Check:
    """Judges rows that were run alone.

    Args:
        step: its name.
        differences: by row, the largest difference to the batch as a share of the row's standard deviation.
        dtype: of the weights.
        n_rows: rows of the step that were run.
        why_engine: why they were run by the engine; empty where they were run under hooks of their own.
    """
    if not differences:
        return Check("rows", "skipped", f"{step}: rows not compared ({_nothing(dtype)})")
    how = "alone" if not why_engine else f"alone, by the engine ({why_engine}),"
    against = "the batch" if n_rows > 1 else "the run"
    data = {"by": "engine" if why_engine else "hooks"}
    return _difference("rows", f"{step}: {_rows(differences)} {how} differs from {against}", differences, dtype, data)


def check_passes(step: str, differences: Mapping[int, float], dtype: str) -> Check:
    """Judges a schedule by the plan's own passes, run by the engine without any rewrite.

    Args:
        step: its name.
        differences: by row, the largest difference as a share of the row's standard deviation.
        dtype: of the weights.
    """
    if not differences:
        return Check("passes", "skipped", f"{step}: passes not compared ({_nothing(dtype)})")
    return _difference("passes", f"{step}: {_rows(differences)} in the plan's own passes differs from the schedule", differences, dtype, {})


def _nothing(dtype: str) -> str:
    return "nothing is read" if dtype == "fp32" else f"nothing is read, or single units alone, which {dtype} rounds too coarsely"


def _rows(differences: Mapping[int, float]) -> str:
    return f"row {next(iter(differences))}" if len(differences) == 1 else f"the worst of {len(differences)} rows"


def _difference(name: str, said: str, differences: Mapping[int, float], dtype: str, data: Mapping[str, Any]) -> Check:
    worst, tolerance = max(differences.values()), TOLERANCE[dtype]
    status = "passed" if worst <= tolerance else "failed"
    how = f" by {f'{worst:.1e}' if worst else '0'} of the standard deviation (at most {tolerance:.0e})"
    if math.isinf(worst):
        how = " in kind: other tokens are said, other edges are hidden, or other values are finite"
    text = f"{said}{how}"
    return Check(name, status, text, {"rows": list(differences), "largest": worst, "tolerance": tolerance, **data})


def check_places(step: str, row: str, places: Sequence[Mapping[str, Any]]) -> Check:
    """Says at which text a row is read and written, and judges whether the tokens that the model is given there are that text.

    Args:
        step: its name.
        row: its label.
        places: `place`, `kind` (`read` or `write`), `tokens`, `text`, and token by token `texts` (the row's characters) and `decoded` (what its
            id stands for).
    """
    if not places:
        return Check("places", "skipped", f"{step}: no token of row {row} is read or written")
    wrong = [place for place in places if not all(map(_is_same_text, place["texts"], place["decoded"]))]
    by_text: dict[tuple[str, str], list[str]] = {}
    for place in wrong or places:
        by_text.setdefault((place["kind"], place["text"]), []).append(place["place"])
    shown = [
        f"{listed(names[:3])}{' …' if len(names) > 3 else ''} {kind}{'s' if len(names) == 1 else ''} {quoted(text)}"
        for (kind, text), names in by_text.items()
    ]
    more = f" and {len(shown) - 4} more" if len(shown) > 4 else ""
    text = f"{step}: on row {row} {'; '.join(shown[:4])}{more}"
    if wrong:
        text += f", but the model is given {quoted(''.join(wrong[0]['decoded']))} there"
    kept = [{key: place[key] for key in ("place", "kind", "tokens", "text")} for place in (wrong or places)[:MAX_PLACES]]
    return Check("places", "failed" if wrong else "passed", text, {"row": row, "places": kept})


def _is_same_text(text: str, decoded: str) -> bool:
    """Returns whether a token is the text it is said to be; pieces of a character, and markers of a tokenizer's own, are no other text."""
    one, other = text.strip(), decoded.strip()
    return "\ufffd" in one + other or one in other or other in one


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
