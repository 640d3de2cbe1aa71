"""Which runs of the checkpoint an intervention asks for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from causalab_mini.plan.spec import Intervention, Read
from causalab_mini.plan.spec.metrics import GeneratedMatch

GENERATED = ".generated"
"""What the name of a continuation ends with, behind its model's."""

Run = tuple[str, str]
"""A model and the role that it runs on."""


def forward_of(read: Read | GeneratedMatch, intervention: Intervention) -> Run | None:
    """Returns which model on which role a read is of, or whose continuation a metric scores; None where the document does not say."""
    role = read.input
    if role is None and read.model in intervention.models:
        role = intervention.models[read.model].input
    return None if role is None else (read.model, role)


def scored_in(intervention: Intervention) -> list[Read | GeneratedMatch]:
    """Returns what an intervention looks at: its reads, and the metrics of what is said."""
    return [*intervention.reads.values(), *(metric for metric in intervention.metrics.values() if isinstance(metric, GeneratedMatch))]


def forwards_of(intervention: Intervention, saved: Iterable[Run] = ()) -> list[Run]:
    """Returns every (model, role) that an intervention runs, in the order in which its reads name them, then its continuations.

    Args:
        intervention: which.
        saved: those whose continuation a step saves.
    """
    found = [forward_of(read, intervention) for read in intervention.reads.values()]
    return list(dict.fromkeys([*(forward for forward in found if forward is not None), *generations_of(intervention, saved)]))


def generations_of(intervention: Intervention, saved: Iterable[Run] = ()) -> list[Run]:
    """Returns every (model, role) whose continuation is used: by a read, by a metric, by a save, or by a write into it.

    Args:
        intervention: which.
        saved: those whose continuation a step saves.
    """
    if not intervention.decode:
        return []
    used = [each for each in scored_in(intervention) if isinstance(each, GeneratedMatch) or each.pos.is_generated]
    found = [forward_of(each, intervention) for each in used]
    runs = dict.fromkeys([*(run for run in found if run is not None), *saved])
    for read in intervention.reads.values():
        model, run = intervention.models.get(read.model), forward_of(read, intervention)
        writes = () if model is None else model.writes
        if run is not None and any(intervention.writes[name].pos.is_generated for name in writes if name in intervention.writes):
            runs.setdefault(run)
    return list(runs)


def generation_named(value: str, intervention: Intervention, roles: Sequence[str]) -> Run | None:
    """Returns whose continuation `<model>.generated` or `<model>.<input>.generated` is; None where it names none, or one of several.

    Args:
        value: that is saved.
        intervention: of the step.
        roles: that the step has rows of.
    """
    if not value.endswith(GENERATED) or not intervention.decode:
        return None
    model, _, role = value.removesuffix(GENERATED).partition(".")
    if model != "original" and model not in intervention.models:
        return None
    if role:
        return model, role
    own = roles_of(model, intervention) or list(roles)
    return (model, own[0]) if len(own) == 1 else None


def roles_behind(read: Read, intervention: Intervention) -> list[str]:
    """Returns the roles whose prompts a read depends on: that of its forward, and those of what is written there."""
    roles: dict[str, None] = {}
    waiting, seen = [read], list[Read]()
    while waiting:
        found = waiting.pop(0)
        seen.append(found)
        run = forward_of(found, intervention)
        if run is None:
            continue
        roles[run[1]] = None
        model = intervention.models.get(run[0])
        writes = [] if model is None else [intervention.writes[name] for name in model.writes if name in intervention.writes]
        operands = [
            intervention.reads[write.operand] for write in writes if isinstance(write.operand, str) and write.operand in intervention.reads
        ]
        waiting += [operand for operand in operands if not any(operand is other for other in (*seen, *waiting))]
    return list(roles)


def roles_of(model: str, intervention: Intervention) -> list[str]:
    """Returns the roles that a model runs on: those of its reads and scored continuations, else its own."""
    runs = [forward_of(each, intervention) for each in scored_in(intervention) if each.model == model]
    roles = list(dict.fromkeys(run[1] for run in runs if run is not None))
    return roles or ([intervention.models[model].input] if model in intervention.models else [])
