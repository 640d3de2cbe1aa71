"""Carries out a request: every point is scheduled, its steps are run in order, checked, and handed on as they come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from causalab_mini.engine.checking import Checking
from causalab_mini.engine.contract import Engine
from causalab_mini.engine.featurizers import refuse_unusable
from causalab_mini.engine.first_use import Trust, at_level, find_trust
from causalab_mini.engine.fitting import Fits, FitWatcher
from causalab_mini.engine.linear_probes import refuse_unfoldable
from causalab_mini.engine.point import PointRun
from causalab_mini.engine.run import PointResult, Run
from causalab_mini.engine.sizes import Sizes
from causalab_mini.engine.store import Store
from causalab_mini.errors import RunError, WriteError
from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.located import Schedule, build_schedule
from causalab_mini.schedule.memory import kept_bytes, peak_bytes
from causalab_mini.schedule.physical import Physical, PhysicalPass, Rewrite, plain_schedule
from causalab_mini.schedule.rewrites import REWRITES, rewrite

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
    on_fit: FitWatcher | None = None,
    on_failed: Callable[[str, RunError], None] | None = None,
    pause: Callable[[], None] = lambda: None,
) -> Run:
    """Returns the results of every point of a request, or of those whose schedules are given.

    Args:
        engine: the checkpoint; its weights are loaded once every point has its schedule.
        request: what to run.
        schedules: of the points that run, where they have been made already; None for all.
        batch_size: rows a pass; None lets tokens and logits bound it.
        check: `off`; `sample`: one row of each intervention alone, of a long run's sample of them; `full`: every row.
        rewrites: what makes the schedule cheaper; none for the plan's own passes.
        on_point: called with each point's results as they come.
        on_scheduled: called with what will be run, before the weights are loaded.
        on_pass: called after every pass.
        on_fit: told how fits go.
        on_failed: told of a point that failed, by its label; the others go on then. None to end with the first.
        pause: called once the weights are there, after every forward, and before every point; may raise what ends the run.

    Raises:
        PlanError: a position does not fit its rows; nothing has been run then.
        RunError: a pass failed, and `on_failed` is None; or a file of a fit can't be written.
    """
    if schedules is None:
        schedules = [build_schedule(request, point) for point in request.points]
    plain = plain_schedule(request, schedules)
    scheduled = rewrite(plain, rewrites)
    on_scheduled(scheduled)
    refuse_unusable(request)
    refuse_unfoldable(request, schedules)
    engine.load_weights()
    pause()
    sizes = Sizes(engine.facts, batch_size, engine.memory, pause)
    fitting = _fitting(engine, plain, scheduled, rewrites, sizes.may_keep())
    physical = _trusted(engine, request, schedules, fitting, rewrites, check != "off")
    if physical is not scheduled:
        on_scheduled(physical)
    store = Store(engine, physical, request.prompts, sizes, on_pass)
    checking = None if check == "off" else Checking(engine, request, schedules, physical, check, batch_size)
    fits = Fits(engine, request, schedules, sizes, rewrites, on_fit or FitWatcher())
    points = []
    for schedule in schedules:
        pause()
        try:
            result = PointRun(engine, request, schedule, store, fits, checking).run()
        except RunError as error:
            if on_failed is None or isinstance(error, WriteError):
                raise
            on_failed(schedule.point.label, error)
            continue
        points.append(result)
        on_point(result)
    record = engine.describe() | {"schedule": _how_it_went(physical, sizes, engine.trust)}
    return Run(tuple(points), record, (*record.get("warnings", ()), *_lost(engine.trust)))


def _fitting(engine: Engine, plain: Physical, physical: Physical, rewrites: tuple[Rewrite, ...], limit: int) -> Physical:
    """Returns a schedule that keeps no more than a share of what is free beside the weights."""
    limit = min(plain.max_kept_bytes, limit)
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
