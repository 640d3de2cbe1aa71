"""*join points*: passes over few tokens run as rows of one batch, each entering at its layer. 1e-6 relative.

A row costs least in a forward over some hundred tokens; a pass that resumes is often far below that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from causalab_mini.schedule.laws import too_early
from causalab_mini.schedule.physical import Part, Physical, PhysicalPass, givers, in_order, needs

MAX_TOKENS = 512
"""Tokens of a pass from which on joining it with others saves nothing."""
NEVER = 1 << 60
MAX_WASTE = 0.1
"""Padding that joining may add, as a share of what is run."""


def join_points(physical: Physical) -> Physical:
    """Returns a schedule in which passes that resume from the same run, or from none, run together."""
    passes, notes = _joined(physical, may_take_outputs=True), []
    if too_early(replace(physical, passes=in_order(replace(physical, passes=passes)))):
        passes = _joined(physical, may_take_outputs=False)
        notes.append("not passes that take outputs of earlier steps: some would be needed before those are made")
    return physical.rewritten("join points", notes, passes=passes)


def _joined(physical: Physical, may_take_outputs: bool) -> dict[str, PhysicalPass]:
    groups: dict[object, list[str]] = {}
    ready = _Ready(physical)
    for name, one in physical.passes.items():
        if len(one.parts) > 1 or not one.has_writes or one.keeps or one.keeps_tokens:
            continue
        if may_take_outputs or not ready.of(name):
            groups.setdefault(
                (ready.depth(name), one.rows_key, one.prefix, one.is_one_prefix, one.stops_after, one.is_narrow, one.vocabulary), []
            ).append(name)
    joined: dict[str, PhysicalPass] = {}
    gone: set[str] = set()
    for names in groups.values():
        for batch in _batches({name: physical.passes[name] for name in names}, ready, physical):
            if len(batch) > 1:
                parts = tuple(sorted((physical.passes[name].part for name in batch), key=lambda part: part.n_skipped))
                resumes = next((found for name in batch if (found := physical.passes[name].resumes)), None)
                joined[batch[0]] = replace(physical.passes[batch[0]], parts=parts, resumes=resumes)
                gone |= set(batch[1:])
    return {name: joined.get(name, one) for name, one in physical.passes.items() if name not in gone}


def _batches(passes: Mapping[str, PhysicalPass], ready: _Ready, physical: Physical) -> list[list[str]]:
    """Returns passes over the same rows as those that run together: of like length and like depth."""
    found: list[list[str]] = []
    for name in sorted(passes, key=lambda name: (_n_run(passes[name]), passes[name].part.n_skipped)):
        if found and _fits([passes[other] for other in found[-1]], passes[name], physical):
            group = [*found[-1], name]
            first = min(ready.first_use(other) for other in group)
            if all(ready.of(other) <= first for other in group):
                found[-1] = group
                continue
        found.append([name])
    return found


def _fits(group: list[PhysicalPass], one: PhysicalPass, physical: Physical) -> bool:
    """Returns whether a pass may join some others without more tokens than a pass should have, or too much padding."""
    parts: list[Part] = [other.part for other in group] + [one.part]
    together = replace(one, parts=tuple(sorted(parts, key=lambda part: part.n_skipped)))
    if together.n_tokens() > MAX_TOKENS:
        return False
    apart = sum(other.layer_tokens(physical.facts) for other in [*group, one])
    return together.layer_tokens(physical.facts) <= (1 + MAX_WASTE) * apart


def _n_run(one: PhysicalPass) -> int:
    return max((entry.n_run for entry in one.entries()), default=0)


class _Ready:
    """When passes can run, and when they are first needed, as numbers of the plan's passes."""

    def __init__(self, physical: Physical) -> None:
        self.physical = physical
        self.by_read = givers(physical.passes)
        self.uses: dict[str, int] = {}
        first_of_step: dict[tuple[str, str], int] = {}
        last_of_step: dict[tuple[str, str], int] = {}
        for number, (use, (part, _)) in enumerate(physical.uses.items()):
            self.uses.setdefault(part, number)
            first_of_step.setdefault((use.point, use.step), number)
            last_of_step[use.point, use.step] = number
        learned = {key: first_of_step.get(step, 0) for step, keys in physical.learned.items() for key in keys.values()}
        self.made = _made(physical, last_of_step) | learned
        self.known: dict[str, int] = {}
        self.depths: dict[str, int] = {}

    def first_use(self, name: str) -> int:
        """Returns when a pass is first needed by the plan."""
        return min((self.uses.get(part.name, 0) for part in self.physical.passes[name].parts), default=0)

    def depth(self, name: str) -> int:
        """Returns how many passes must run one after another before a pass can: those of one depth don't need each other."""
        if name not in self.depths:
            self.depths[name] = 1 + max([0, *(self.depth(other) for other in needs(self.physical.passes[name], self.by_read))])
        return self.depths[name]

    def of(self, name: str) -> int:
        """Returns when the outputs that a pass needs, or those that it needs, have been made: 0 for always."""
        if name not in self.known:
            one = self.physical.passes[name]
            own = [self.made.get(output, 0) for part in one.parts for output in part.made]
            self.known[name] = max([0, *own, *(self.of(other) for other in needs(one, self.by_read))])
        return self.known[name]


def _made(physical: Physical, last_of_step: Mapping[tuple[str, str], int]) -> dict[str, int]:
    """Returns after which of the plan's passes each output is first there; of a step that only generates, after all that is known here."""
    found: dict[str, int] = {}
    for (point, step, _), output in physical.made.items():
        found[output] = min(found.get(output, NEVER + 1), last_of_step.get((point, step), NEVER) + 1)
    return found
