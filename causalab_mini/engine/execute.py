"""Carries out a request: every point is scheduled, its steps are run in order, checked, and handed on as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from causalab_mini.engine.batches import Made
from causalab_mini.engine.checking import Checking
from causalab_mini.engine.contract import Engine
from causalab_mini.engine.first_use import Trust, at_level, find_trust
from causalab_mini.engine.observe import Observed, make_outputs
from causalab_mini.engine.run import PointResult, Run, StepResult
from causalab_mini.engine.sizes import Sizes
from causalab_mini.engine.store import Store
from causalab_mini.engine.tables import metric_rows, positions
from causalab_mini.errors import PlanError, Problem, RunError, quoted
from causalab_mini.evidence.checks import Check
from causalab_mini.evidence.memory import peak_memory_bytes
from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.located import Schedule, StepSchedule, build_schedule, metric_reasons
from causalab_mini.schedule.memory import kept_bytes, peak_bytes
from causalab_mini.schedule.physical import Physical, PhysicalPass, Rewrite, plain_schedule
from causalab_mini.schedule.rewrites import REWRITES, rewrite

KEPT_SHARE = 0.4
"""Of what is free beside the weights, what one pass may keep for others."""
OnPoint = Callable[[PointResult], None]


def execute(
    engine: Engine,
    request: nodes.Request,
    *,
    schedules: Sequence[Schedule] | None = None,
    batch_size: int | None = None,
    check: Literal["off", "sample", "full"] = "sample",
    rewrites: tuple[Rewrite, ...] = REWRITES,
    on_point: OnPoint = lambda point: None,
    on_scheduled: Callable[[Physical], None] = lambda physical: None,
    on_pass: Callable[[PhysicalPass], None] = lambda one: None,
) -> Run:
    """Returns the results of every point of a request.

    Args:
        engine: the checkpoint; its weights are loaded once every point has its schedule.
        request: what to run.
        schedules: of the points, where they have been made already.
        batch_size: rows a pass; None lets tokens and logits bound it.
        check: `off`; `sample`: one row of each intervention alone, of a long run's sample of them; `full`: every row.
        rewrites: what makes the schedule cheaper; none for the plan's own passes.
        on_point: called with each point's results as they come.
        on_scheduled: called with what will be run, before the weights are loaded.
        on_pass: called after every pass.

    Raises:
        PlanError: a position does not fit its rows; nothing has been run then.
        RunError: a pass failed.
    """
    if schedules is None:
        schedules = [build_schedule(request, point) for point in request.points]
    plain = plain_schedule(request, schedules)
    scheduled = rewrite(plain, rewrites)
    on_scheduled(scheduled)
    engine.load_weights()
    physical = _trusted(engine, request, schedules, _fitting(engine, plain, scheduled, rewrites), rewrites, check != "off")
    if physical is not scheduled:
        on_scheduled(physical)
    sizes = Sizes(engine.facts, batch_size, engine.memory)
    store = Store(engine, physical, request.prompts, sizes, on_pass)
    checking = None if check == "off" else Checking(engine, request, schedules, physical, check)
    points = []
    for schedule in schedules:
        result = _run_point(engine, request, schedule, store, checking)
        points.append(result)
        on_point(result)
    record = engine.describe() | {"schedule": _how_it_went(physical, sizes, engine.trust)}
    return Run(tuple(points), record, (*record.get("warnings", ()), *_lost(engine.trust)))


def _fitting(engine: Engine, plain: Physical, physical: Physical, rewrites: tuple[Rewrite, ...]) -> Physical:
    """Returns a schedule that keeps no more than a share of what is free beside the weights."""
    _, free = engine.memory()
    limit = plain.max_kept_bytes if free is None else min(plain.max_kept_bytes, int(KEPT_SHARE * free))
    kept = max((kept_bytes(one, engine.facts) for one in physical.passes.values()), default=0)
    return physical if kept <= limit else rewrite(replace(plain, max_kept_bytes=limit), rewrites)


def _trusted(
    engine: Engine, request: nodes.Request, schedules: Sequence[Schedule], physical: Physical, rewrites: tuple[Rewrite, ...], tries: bool
) -> Physical:
    """Returns a schedule that is rewritten as far as the model has been found to allow, which is tried where it is not known."""

    def at(level: str) -> Physical:
        return physical if level == "token" else rewrite(physical.plain, at_level(rewrites, level))

    trust = engine.trust
    if trust is None and tries and rewrites:
        trust = find_trust(engine, request.prompts, schedules, at, request.facts.dtype)
        if trust.difference is not None or trust.refused:
            engine.trust = trust  # where there was nothing to compare, the next run tries
    return physical if trust is None else at(trust.level)


def _how_it_went(physical: Physical, sizes: Sizes, trust: Trust | None) -> dict[str, Any]:
    """Returns what the record of a run says of its schedule."""
    first, cost = physical.plain.cost, physical.cost
    return {
        "level": "token" if trust is None else trust.level,
        "first_use": "not checked" if trust is None or trust.difference is None else trust.difference,
        "refused": {} if trust is None else {level: why if why != float("inf") else "not finite" for level, why in trust.refused},
        "passes": [first.passes, cost.passes],
        "layer_tokens": [first.layer_tokens, cost.layer_tokens],
        "head_positions": [first.head_positions, cost.head_positions],
        "peak_bytes_estimate": peak_bytes(physical, max(sizes.used, default=None)),
        "rows_a_batch": sorted(set(sizes.used)),
        "out_of_memory": sizes.n_halved,
    }


def _lost(trust: Trust | None) -> list[str]:
    """Returns what the user is told of levels that gave other numbers."""
    said = []
    for level, why in () if trust is None else trust.refused:
        how = why if isinstance(why, str) else f"they differ from whole ones by {why:.1e} of the standard deviation"
        said.append(f"passes that resume at a {level} are not used on this model: {how}")
    return said


def _run_point(engine: Engine, request: nodes.Request, schedule: Schedule, store: Store, checking: Checking | None) -> PointResult:
    outputs: dict[str, Made] = {}
    results: dict[str, StepResult] = {}
    for step_schedule in schedule.steps:
        step, started = step_schedule.step, time.perf_counter()
        rows = _rows_that_run(step, results)
        observed: dict[str, Observed] = {}
        checks: list[Check] = []
        metrics: dict[str, list[dict[str, Any]]] = {}
        _refuse_what_where_put_off(step_schedule, rows)
        _refuse_one_row(step, rows)
        _refuse_bad_cells(step, rows)
        _refuse_outputs_without_value(step_schedule, rows, outputs)
        for intervention in step.interventions:
            found = store.observe(schedule.point.label, step_schedule, intervention, rows)
            observed[intervention.name] = found
            for metric in intervention.metrics:
                name = f"{intervention.name}/{metric.name}" if step.is_list else metric.name
                metrics[name] = metric_rows(step_schedule, intervention, metric, found, request.prompts, engine.tokenizer)
            if checking is not None:
                checks += checking.of(step_schedule, intervention, found, outputs)
        made = make_outputs(step, observed, outputs)
        outputs |= made
        store.make(schedule.point.label, step.name, made)
        results[step.name] = StepResult(
            step,
            {
                "positions": positions(step_schedule, request.prompts),
                "metrics": metrics,
                "outputs": made,
                "checks": checks,
                "rows_a_batch": max(store.sizes.used, default=0),
                "peak_memory_bytes": peak_memory_bytes(),
            },
            time.perf_counter() - started,
        )
    return PointResult(schedule.point.label, schedule.point.values, schedule.point.digest, results)


def _rows_that_run(step: nodes.Observe, results: Mapping[str, StepResult]) -> tuple[int, ...]:
    """Returns the rows that pass a step's `where`.

    Raises:
        RunError: none does.
    """
    if step.where is None:
        return tuple(range(step.n_rows))
    where, earlier = step.where, results[step.where.step]
    name = f"{where.intervention}/{where.metric}" if earlier.node.is_list else where.metric
    values = {row["example_id"]: row["value"] for row in earlier.results["metrics"][name]}
    passing = tuple(row for row, label in enumerate(step.labels) if _is_within(values.get(label), where.least, where.greatest))
    if not passing:
        expected = f"at least one row whose {quoted(where.metric)} of {quoted(where.step)} is in range"
        raise RunError(Problem(f"steps.{step.name}.where", expected, f"none of {step.n_rows}", code="no_eligible_row"))
    return passing


def _is_within(value: Any, least: float | None, greatest: float | None) -> bool:
    return isinstance(value, int | float) and (least is None or value >= least) and (greatest is None or value <= greatest)


def _refuse_what_where_put_off(schedule: StepSchedule, rows: Sequence[int]) -> None:
    """Refuses, where a `where` chose the rows, what could not be refused before: places, and metrics, that they do not have.

    Raises:
        PlanError: a write, or a read without anchor, has nowhere to go on a row; or a metric no row that it can be scored on.
    """
    if schedule.step.where is None:
        return
    problems = []
    for name, passes in schedule.passes.items():
        for place, windows in ((place, one.windows[place.name]) for one in passes for place in one.forward.places):
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


def _refuse_one_row(step: nodes.Observe, rows: Sequence[int]) -> None:
    """Refuses, where a `where` left one row, a `permute`: there is no other row whose value it could take."""
    writes = [write for item in step.interventions for forward in item.forwards for write in forward.writes]
    if len(rows) < 2 and any(write.mechanism == "permute" for write in writes):
        expected = "at least two rows (`permute` takes another row's value)"
        raise RunError(Problem(f"steps.{step.name}.where", expected, f"{len(rows)}", code="rows"))


def _refuse_bad_cells(step: nodes.Observe, rows: Sequence[int]) -> None:
    """Refuses, where a `where` chose the rows, cells that can't be scored with on the rows that run."""
    columns = [cells for item in step.interventions for metric in item.metrics for cells in metric.tokens.values()]
    problems = [cells[row].problem for cells in columns for row in rows if isinstance(cells[row], nodes.BadCell)]
    if problems:
        raise PlanError(dict.fromkeys(problems))


def _refuse_outputs_without_value(schedule: StepSchedule, rows: Sequence[int], outputs: Mapping[str, Made]) -> None:
    """Refuses operands that the `where` of an earlier step left without a value on rows that run here."""
    for one in (one for passes in schedule.passes.values() for one in passes):
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
                hint = "the step that made it ran fewer rows: the same `where` here runs those"
                raise RunError(Problem(f"steps.{schedule.step.name}", expected, got, hint, "no_value"))
