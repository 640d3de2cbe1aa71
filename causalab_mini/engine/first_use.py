"""The first use of a model: one or two passes both ways, and how far a schedule may be rewritten after that.

Rewrites are proved on the families that the tests build. A release of transformers may compute another way, and a checkpoint may be unlike
any of those: so what is left out is left out for the first time beside a run that leaves out nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from causalab_mini.engine.checking import compared_reads, difference_of
from causalab_mini.engine.contract import Engine
from causalab_mini.engine.featurizers import Featurizers
from causalab_mini.engine.given import Prompts
from causalab_mini.engine.observe import observe
from causalab_mini.engine.sizes import Sizes, is_out_of_memory
from causalab_mini.engine.store import Store
from causalab_mini.errors import CausalabError
from causalab_mini.evidence.checks import TOLERANCE
from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.identity import Use
from causalab_mini.schedule.located import Schedule, StepSchedule
from causalab_mini.schedule.physical import Part, Physical, Rewrite, givers, needs
from causalab_mini.schedule.rewrites import drop, free_early, resume_at_a_token, share, share_prefixes

LEVELS = ("token", "layer", "plain")
"""From which on a pass may resume: a token, a layer, neither; each is what is fallen back to from the one before."""
N_CHECKED = 2


@dataclass(frozen=True, slots=True)
class Trust:
    """How far a model's schedules are rewritten.

    Attributes:
        level: one of `LEVELS`.
        difference: the largest between both ways, as a share of a row's standard deviation; None where nothing was compared.
        refused: the levels that gave other numbers, with the difference, or that failed, with the error.
    """

    level: str
    difference: float | None
    refused: tuple[tuple[str, float | str], ...] = ()


def at_level(rewrites: Sequence[Rewrite], level: str) -> tuple[Rewrite, ...]:
    """Returns those of some rewrites that a level allows."""
    if level == "token":
        return tuple(rewrites)
    if level == "layer":
        return tuple(one for one in rewrites if one not in (resume_at_a_token, share_prefixes))
    return tuple(one for one in rewrites if one in (share, drop, free_early))


def find_trust(engine: Engine, prompts: Prompts, schedules: Sequence[Schedule], rewritten: Callable[[str], Physical], dtype: str) -> Trust:
    """Returns the first level at which one or two passes of a request give the numbers of the plan's own.

    Args:
        engine: the checkpoint, with its weights.
        prompts: of the request.
        schedules: of its points.
        rewritten: gives the schedule at a level.
        dtype: of the weights.
    """
    refused: list[tuple[str, float | str]] = []
    for level in LEVELS[:-1]:
        try:
            differences = _differences(engine, prompts, schedules, rewritten(level))
        except CausalabError:
            raise
        except Exception as error:  # whatever it is that another release of transformers does: whole passes don't
            if is_out_of_memory(error):
                raise
            refused.append((level, f"{type(error).__name__}: {error}".splitlines()[0][:200]))
            continue
        if not differences or max(differences) <= TOLERANCE[dtype]:
            return Trust(level, max(differences, default=None), tuple(refused))
        refused.append((level, max(differences)))
    return Trust("plain", None, tuple(refused))


def _differences(engine: Engine, prompts: Prompts, schedules: Sequence[Schedule], physical: Physical) -> list[float]:
    """Returns, for passes that leave most out, how far they are from the plan's own on two rows."""
    by_use = {}
    for schedule in schedules:
        for step in schedule.steps:
            for intervention in step.step.experiments:
                for index in range(len(step.passes[intervention.name])):
                    by_use[Use(schedule.point.label, step.step.name, intervention.name, index)] = (schedule, step, intervention)
    found = []
    for use in _worth_checking(physical):
        schedule, step, intervention = by_use[use]
        step = replace(step, generations={})  # nothing of a schedule's is in those
        rows = _two_rows(step, intervention, prompts)
        store = Store(engine, physical, prompts, Sizes(engine.facts, None))
        observed = store.observe(schedule.point.label, step, intervention, rows, Featurizers({}))
        plain = observe(engine, step, intervention, prompts, {}, rows)
        names = compared_reads(intervention, observed, engine.facts.dtype)
        found += [difference_of(observed, plain, row, names) for row in rows]
    return found


def _worth_checking(physical: Physical) -> list[Use]:
    """Returns uses that need no output: one whose pass skips most tokens, one whose pass skips most layers."""
    homes = {part.name: name for name, one in physical.passes.items() for part in one.parts}
    parts = {part.name: part for one in physical.passes.values() for part in one.parts}
    by_read = givers(physical.passes)
    unfit: dict[str, bool] = {}
    for name, one in physical.passes.items():  # each after those that it needs
        own = bool(one.scope) or any(part.made for part in one.parts)
        unfit[name] = own or any(unfit.get(other, False) for other in needs(one, by_read))
    by_intervention: dict[tuple[str, str, str], list[Use]] = {}
    for use in physical.uses:
        by_intervention.setdefault((use.point, use.step, use.intervention), []).append(use)
    skipped: list[Use] = []
    for uses in by_intervention.values():
        own_parts = [physical.uses[use][0] for use in uses]
        passes = {homes[part] for part in own_parts if part in homes}
        passes |= {name for use in uses for read in physical.uses[use][1].values() for name in by_read.get(read, ())}
        if not any(unfit[name] for name in passes):
            skipped += [use for use, part in zip(uses, own_parts, strict=True) if part in parts and _n_left_out(parts[part]) > 0]
    if not skipped:
        return []
    most = max(skipped, key=lambda use: _n_left_out(parts[physical.uses[use][0]]))
    deepest = max(skipped, key=lambda use: parts[physical.uses[use][0]].n_skipped)
    return list(dict.fromkeys([most, deepest]))[:N_CHECKED]


def _n_left_out(part: Part) -> int:
    return part.n_skipped + (0 if part.first is None else max(part.first))


def _two_rows(step: StepSchedule, intervention: nodes.Intervention, prompts: Prompts) -> tuple[int, ...]:
    """Returns the shortest and the longest row of a step."""
    lengths = [sum(prompts[forward.rows][row].n_tokens for forward in intervention.forwards) for row in range(step.step.n_rows)]
    ends = {min(range(len(lengths)), key=lengths.__getitem__), max(range(len(lengths)), key=lengths.__getitem__)}
    return tuple(sorted(ends))
