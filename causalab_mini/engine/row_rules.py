"""Which rows of a step run, and what can't be run on those that a `where` chose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from causalab_mini.engine.made import Made
from causalab_mini.engine.run import StepResult
from causalab_mini.errors import PlanError, Problem, RunError, quoted
from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.located import StepSchedule, metric_reasons


def rows_of(schedule: StepSchedule, results: Mapping[str, StepResult], outputs: Mapping[str, Made]) -> tuple[int, ...]:
    """Returns the rows of a step that run, once it is sure that they can.

    Raises:
        RunError: none passes the step's `where`, or one lacks what an earlier step was to give it.
        PlanError: a place or a cell that a `where` might have left out is wrong.
    """
    rows = rows_that_run(schedule.step, results)
    refuse_what_where_put_off(schedule, rows)
    refuse_lonely_rows(schedule, rows)
    refuse_bad_cells(schedule.step, rows)
    refuse_outputs_without_value(schedule, rows, outputs)
    return rows


def rows_that_run(step: nodes.Observe, results: Mapping[str, StepResult]) -> tuple[int, ...]:
    """Returns the rows that pass a step's `where`.

    Raises:
        RunError: none does.
    """
    if step.where is None:
        return tuple(range(step.n_rows))
    where, earlier = step.where, results[step.where.step]
    metrics = earlier.results["metrics"]
    name = f"{where.intervention}/{where.metric}"
    values = {row["example_id"]: row["value"] for row in metrics[name if name in metrics else where.metric]}
    passing = tuple(row for row, label in enumerate(step.labels) if _is_within(values.get(label), where.least, where.greatest))
    if not passing:
        expected = f"at least one row whose {quoted(where.metric)} of {quoted(where.step)} is in range"
        raise RunError(Problem(f"steps.{step.name}.where", expected, f"none of {step.n_rows}", code="no_eligible_row"))
    return passing


def _is_within(value: Any, least: float | None, greatest: float | None) -> bool:
    return isinstance(value, int | float) and (least is None or value >= least) and (greatest is None or value <= greatest)


def refuse_what_where_put_off(schedule: StepSchedule, rows: Sequence[int]) -> None:
    """Refuses, where a `where` chose the rows, what could not be refused before: places, and metrics, that they do not have.

    Raises:
        PlanError: a write, or a read without anchor, has nowhere to go on a row; or a metric no row that it can be scored on.
    """
    if schedule.step.where is None:
        return
    problems = []
    for name in schedule.passes:
        for place, windows in ((place, one.windows[place.name]) for one in schedule.every(name) for place in one.forward.places):
            misses = ", ".join(f"row {row} ({windows[row].reason})" for row in [row for row in rows if windows[row].reason][:20])
            path = f"{schedule.step.intervention(name).path}.{'writes' if isinstance(place, nodes.Write) else 'reads'}.{place.name}.pos"
            has_anchor = any(pos is not None and pos.scope is not None for pos in (place.pos, place.keys))
            if misses and isinstance(place, nodes.Write):
                problems.append(Problem(path, "something to write on every row", f"nothing on {misses}", code="write_has_no_place"))
            elif misses and isinstance(place, nodes.Read) and not (place.is_hidden or has_anchor):
                problems.append(Problem(path, "a position that every row has", f"none on {misses}", code="read_has_no_place"))
        for metric in schedule.step.intervention(name).metrics:
            reasons = metric_reasons(schedule, schedule.step.intervention(name), metric)
            if not problems and all(reasons[row] for row in rows):
                got = f"none of the {len(rows)} that run"
                path = f"{schedule.step.intervention(name).path}.metrics.{metric.name}"
                problems.append(Problem(path, "at least one row that can be scored", got, code="no_eligible_row"))
    if problems:
        raise PlanError(dict.fromkeys(problems))


def refuse_lonely_rows(schedule: StepSchedule, rows: Sequence[int]) -> None:
    """Refuses, where a `where` chose the rows, those that no other can give a value: of a `permute`, or of a shuffled source."""
    if schedule.step.where is None:
        return
    for passes in map(schedule.every, schedule.passes):
        windows = {name: found for one in passes for name, found in one.windows.items()}
        for one in passes:
            for write in one.forward.writes:
                if not isinstance(write.operand, nodes.FromRead) or write.operand.derangement is None:
                    continue
                widths = [len(windows[write.operand.read][row].tokens) for row in rows if row not in one.missing]
                counts = Counter(width if write.align == "exact" else min(width, 1) for width in widths if width)
                if 1 in counts.values():
                    what = "`permute`" if write.mechanism == "permute" else "`shuffled_source`"
                    two = "at least two rows" if len(rows) < 2 else "for every row that runs another one with as many tokens"
                    got = f"{len(rows)}" if len(rows) < 2 else f"a row alone, of {len(rows)}"
                    expected = f"{two} ({what} takes another row's value)"
                    raise RunError(Problem(f"steps.{schedule.step.name}.where", expected, got, code="rows"))


def refuse_bad_cells(step: nodes.Observe, rows: Sequence[int]) -> None:
    """Refuses, where a `where` chose the rows, cells that can't be scored with on the rows that run."""
    columns = [cells for item in step.interventions for metric in item.metrics for cells in metric.tokens.values()]
    problems = [cells[row].problem for cells in columns for row in rows if isinstance(cells[row], nodes.BadCell)]
    if problems:
        raise PlanError(dict.fromkeys(problems))


def refuse_outputs_without_value(schedule: StepSchedule, rows: Sequence[int], outputs: Mapping[str, Made]) -> None:
    """Refuses operands that the `where` of an earlier step left without a value on rows that run here."""
    for one in (one for name in schedule.passes for one in schedule.every(name)):
        for operand in (write.operand for write in one.forward.writes if isinstance(write.operand, nodes.FromOutput)):
            made, groups = outputs[operand.output], operand.groups
            missing = [
                row
                for row in rows
                if row not in one.missing
                and ((made.kind == "rows" and not made.value.lengths[row]) or (groups is not None and groups[row] not in made.groups))
            ]
            if missing:
                expected, got = f"a value of {quoted(operand.output)} on every row that runs", f"none on rows {missing[:20]}"
                hint = (
                    "the step that made it ran fewer rows, or they did not say what it was read at; a `where` here runs those that have one"
                )
                raise RunError(Problem(f"steps.{schedule.step.name}", expected, got, hint, "no_value"))
