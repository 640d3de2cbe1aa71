"""The schedule of passes that are run again and again over some of their rows: those of fits and of attributions.

What no featurizer in training reaches is run once and kept: sources, the stream below the lowest trained place, the keys and values before
its first token. What is left is run each time, and several fits share one forward where they can.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.identity import Use
from causalab_mini.schedule.located import Schedule, StepSchedule
from causalab_mini.schedule.physical import MAX_KEPT_BYTES, Part, Physical, PhysicalPass, Rewrite, givers, needs, plain_schedule
from causalab_mini.schedule.rewrites import (
    drop,
    narrow_the_head,
    resume_at_a_layer,
    resume_at_a_token,
    rewrite,
    share,
    stop_early,
)

REPEATED: tuple[Rewrite, ...] = (share, drop, resume_at_a_layer, resume_at_a_token, stop_early, narrow_the_head)
"""The rewrites of passes that are repeated: those that leave out what is the same each time, and what nobody looks at."""
MAX_WASTE = 0.5
"""Padding that running several fits in one forward may add, as a share of what is run."""

Scored = tuple[str, str]
"""A metric by intervention and name."""


@dataclass(frozen=True, slots=True, eq=False)
class RepeatedSchedule:
    """What is run once, and what each time.

    Attributes:
        physical: all passes, none of them joined.
        once: names of those that are run once, in an order in which they can.
        each: those that are run each time, in order; several of `physical` may be one.
    """

    physical: Physical
    once: tuple[str, ...]
    each: tuple[PhysicalPass, ...]


def repeated_schedule(
    request: nodes.Request,
    schedules: Sequence[Schedule],
    step: str,
    rewrites: Collection[Rewrite],
    n_runs: int,
    max_kept_bytes: int = MAX_KEPT_BYTES,
    live: Collection[Use] = (),
) -> RepeatedSchedule:
    """Returns the schedule of passes that are repeated.

    Args:
        request: what is run.
        schedules: of points, each with the one step that is repeated.
        step: its name: featurizers that it trains change.
        rewrites: that are allowed.
        n_runs: how often it will be run over all rows, about.
        max_kept_bytes: what may be kept of one set of rows.
        live: passes of the plan that are run each time beside those that train; then none are joined.
    """
    plain = replace(plain_schedule(request, schedules, training=step), n_runs=n_runs, max_kept_bytes=max_kept_bytes)
    physical = rewrite(plain, tuple(one for one in REPEATED if one in rewrites))
    by_read = givers(physical.passes)
    homes = {part.name: name for name, one in physical.passes.items() for part in one.parts}
    changing = {homes[physical.uses[use][0]] for use in live}
    for name, one in physical.passes.items():
        if _trains(one, step) or any(other in changing for other in needs(one, by_read)):
            changing.add(name)
    needed = {name for _, values in physical.uses.values() for key in values.values() for name in by_read.get(key, ())}
    for name in reversed(list(physical.passes)):
        if name in needed:
            needed |= set(needs(physical.passes[name], by_read))
    names = [name for name in physical.passes if name in changing & needed]
    each = [physical.passes[name] for name in names] if live else _joined(names, physical)
    once = tuple(name for name in physical.passes if name in needed - changing)
    return RepeatedSchedule(physical, once, tuple(replace(one, is_direct=True) for one in each))


def _trains(one: PhysicalPass, step: str) -> bool:
    """Returns whether a pass writes in coordinates that a step trains."""
    featurizers = [write.featurizer for part in one.parts for write in part.forward.writes if write.featurizer is not None]
    return any(part.trained_by == step and part.learned is None for featurizer in featurizers for part in featurizer.all)


def _joined(names: Sequence[str], physical: Physical) -> Iterator[PhysicalPass]:
    """Yields passes, those together that can be one forward: over the same rows, from the same runs, with little padding.

    Passes that need each other are of other depths, and come in that order.
    """
    by_read, depths = givers(physical.passes), dict[str, int]()
    groups: dict[tuple[object, ...], list[PhysicalPass]] = {}
    for name in names:
        one = physical.passes[name]
        depths[name] = 1 + max((depths.get(other, 0) for other in needs(one, by_read)), default=0)
        key: tuple[object, ...] = (depths[name], one.rows_key, one.prefix, one.stops_after is None, one.is_narrow)
        groups.setdefault(key, []).append(one)
    for key in sorted(groups, key=lambda key: int(str(key[0]))):
        found: list[PhysicalPass] = []
        for one in sorted(groups[key], key=lambda one: (_n_run(one), one.part.n_skipped)):
            together = None if not found else _together(found[-1], one)
            if together is not None and _wastes_little(found[-1], one, together, physical):
                found[-1] = together
            else:
                found.append(one)
        yield from found


def _together(first: PhysicalPass, second: PhysicalPass) -> PhysicalPass | None:
    """Returns two passes as one, None where they stand on different runs."""
    if first.resumes is not None and second.resumes is not None and first.resumes != second.resumes:
        return None
    parts: tuple[Part, ...] = tuple(sorted((*first.parts, *second.parts), key=lambda part: part.n_skipped))
    vocabulary = None
    if first.vocabulary is not None and second.vocabulary is not None:
        vocabulary = tuple(sorted({*first.vocabulary, *second.vocabulary}))
    stops = None if first.stops_after is None or second.stops_after is None else max(first.stops_after, second.stops_after)
    return replace(first, parts=parts, resumes=first.resumes or second.resumes, vocabulary=vocabulary, stops_after=stops)


def _wastes_little(first: PhysicalPass, second: PhysicalPass, together: PhysicalPass, physical: Physical) -> bool:
    apart = first.layer_tokens(physical.facts) + second.layer_tokens(physical.facts)
    return together.layer_tokens(physical.facts) <= (1 + MAX_WASTE) * apart


def _n_run(one: PhysicalPass) -> int:
    return max((entry.n_run for entry in one.entries()), default=0)


# what is asked of a fit


def with_metrics(schedule: StepSchedule, wanted: Collection[Scored]) -> StepSchedule:
    """Returns a step with some of its metrics, and the interventions that have them."""
    step = schedule.step
    items = tuple(
        replace(item, metrics=tuple(metric for metric in item.metrics if (item.name, metric.name) in wanted)) for item in step.interventions
    )
    kept = tuple(item for item in items if item.metrics)
    own = replace(step, interventions=kept, controls=(), outputs=(), saves=())
    return StepSchedule(own, {item.name: schedule.passes[item.name] for item in kept})


def wanted_by(step: nodes.Fit, is_training: bool) -> list[Scored]:
    """Returns the metrics that a fit looks at: those of its objective; where it is judged, the one that epochs are chosen by, and others of what is read."""
    found = [(term.intervention, term.metric) for term in step.objective if term.metric]
    if not is_training:
        found += [] if step.score is None else [step.score[:2]]
        items = {item.name: item for item in step.evaluation.interventions}
        read = {(name, read) for name, metric in found for one in items[name].metrics if one.name == metric for read in one.reads.values()}
        found += [
            (item.name, metric.name)
            for item in items.values()
            for metric in item.metrics
            if metric.kind not in ("top_k", "answer_logprob") and {(item.name, name) for name in metric.reads.values()} <= read
        ]
    if not found:  # penalties alone: any metric will do to run what is trained
        found = [(item.name, metric.name) for item in step.training.interventions for metric in item.metrics][:1]
    return list(dict.fromkeys(found))


def fit_schedule(schedule: Schedule, step: nodes.Fit, is_training: bool) -> StepSchedule:
    """Returns what a fit of a point runs at each update, or to be judged."""
    whole = schedule.trainings[step.name] if is_training else schedule.step(step.name)
    return with_metrics(whole, wanted_by(step, is_training))


def fits_together(schedules: Sequence[Schedule], schedule: Schedule, step: nodes.Fit) -> list[tuple[Schedule, nodes.Fit]]:
    """Returns a fit of a point, and the same step of other points that can be trained with it."""
    found = [(schedule, step)]
    if not can_join(step):
        return found
    for other in schedules:
        twin = next((each for each in other.point.plan.steps if each.name == step.name), None)
        if other is not schedule and isinstance(twin, nodes.Fit) and can_join(twin) and _over_same_rows(step, twin):
            found.append((other, twin))
    return found


def can_join(step: nodes.Fit) -> bool:
    """Returns whether a fit needs nothing that earlier steps of its point make."""
    if step.training.where is not None:
        return False
    for observed in (step.training, step.evaluation):
        places = [place for item in observed.interventions for forward in item.runs for place in forward.places]
        if any(isinstance(place, nodes.Write) and isinstance(place.operand, nodes.FromOutput) for place in places):
            return False
        featurizers = [part for place in places if place.featurizer is not None for part in place.featurizer.all]
        if any(part.sources or part.trained_by not in (None, step.name) for part in featurizers):
            return False
    return True


def _over_same_rows(step: nodes.Fit, other: nodes.Fit) -> bool:
    return step.training.rows == other.training.rows and step.evaluation.rows == other.evaluation.rows


@dataclass(frozen=True, slots=True)
class FitCost:
    """What a fit, or several together, run.

    Attributes:
        step: its name; points: their labels.
        n_updates: of each.
        plain: layers times tokens of one run over all rows that are trained on, as the plan has it.
        once, each: the same of what is run once, and of what is run in every epoch.
        n_forwards: forwards an update, if all rows fit into one batch each.
    """

    step: str
    points: tuple[str, ...]
    n_updates: int
    n_epochs: int
    plain: int
    once: int
    each: int
    n_forwards: int


def fit_costs(request: nodes.Request, schedules: Sequence[Schedule], rewrites: Collection[Rewrite]) -> Iterator[FitCost]:
    """Yields what the fits of a request run, those together that are trained together."""
    seen: set[tuple[str, str]] = set()
    for schedule in schedules:
        for step in schedule.point.plan.steps:
            if not isinstance(step, nodes.Fit) or (schedule.point.label, step.name) in seen:
                continue
            group = fits_together(schedules, schedule, step)
            seen |= {(other.point.label, step.name) for other, _ in group}
            own = [Schedule(other.point, (fit_schedule(other, twin, True),)) for other, twin in group]
            found = repeated_schedule(request, own, step.name, rewrites, step.epochs)
            facts = request.facts
            yield FitCost(
                step.name,
                tuple(other.point.label for other, _ in group),
                step.n_updates,
                step.epochs,
                found.physical.plain.cost.layer_tokens,
                sum(found.physical.passes[name].layer_tokens(facts) for name in found.once),
                sum(one.layer_tokens(facts) for one in found.each),
                len(found.each),
            )
