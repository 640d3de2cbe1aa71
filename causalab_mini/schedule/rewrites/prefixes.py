"""*share prefixes*: tokens that several rows, or both prompts of a row, begin with are run once. 1e-6 relative.

The model's own run over a role resumes at its first token that differs from another role's, behind the keys and values of that role's run;
and where all rows of a pass begin alike, one row's beginning is run for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from causalab_mini.schedule.batching import MIN_RUN
from causalab_mini.schedule.identity import hashed
from causalab_mini.schedule.located import Pass
from causalab_mini.schedule.physical import Part, Physical, PhysicalPass
from causalab_mini.schedule.rewrites.common import children, give, without
from causalab_mini.schedule.rewrites.token import OVER_PREFIX, at_reach, first_tokens, why_not

MIN_SHARED = 8
"""Tokens that a beginning must have to be worth a pass of its own."""


def share_prefixes(physical: Physical) -> Physical:
    """Returns a schedule in which no beginning is run twice."""
    notes: list[str] = []
    passes = _with_shared_roles(physical, notes)
    return physical.rewritten("share prefixes", notes, passes=_with_one_beginning(replace(physical, passes=passes), notes))


def _with_shared_roles(physical: Physical, notes: list[str]) -> dict[str, PhysicalPass]:
    """Returns the passes, in which a role's own run resumes from another's."""
    facts, passes = physical.facts, dict(physical.passes)
    own = [name for name, one in passes.items() if not one.has_writes and one.until is None and one.prefix is None]
    parents = [name for name in own if passes[name].keeps_tokens]
    for name in own:
        one = passes[name]
        if one.keeps or one.keeps_tokens:
            continue  # others resume from it
        if parents and (why := why_not(one, facts)) is not None:
            notes.append(why)
            continue
        for parent in parents:
            source = passes[parent]
            if source.scope != one.scope or len(source.lengths) != len(one.lengths) or why_not(source, facts) is not None:
                continue
            found = _resumed(physical, one, source, parent)
            if found is not None:
                passes[parent], resumed = found
                passes = {other: each for other, each in passes.items() if other != name} | ({name: resumed} if resumed else {})
                break
    return passes


def _resumed(
    physical: Physical, one: PhysicalPass, source: PhysicalPass, source_name: str
) -> tuple[PhysicalPass, PhysicalPass | None] | None:
    """Returns the source with the reads that it gives, and a pass that resumes from it, None where nothing is left; or None."""
    facts, part = physical.facts, one.part
    prompts, others = physical.prompts[part.forward.rows], physical.prompts[source.forward.rows]
    shared = [_n_shared(a.ids, b.ids) if a.n_prefix == b.n_prefix else 0 for a, b in zip(prompts, others, strict=True)]
    reach = at_reach(source, facts).top(facts)
    moved: dict[str, set[int]] = {}
    for read in part.forward.reads:
        last = facts.n_layers if read.site.rank[0] == 2 else max((layer + 1 for layer in read.site.layers), default=0)
        if read.site.component in OVER_PREFIX or last > reach:
            continue
        for row in part.rows:
            tokens = part.one.windows[read.name][row].tokens
            if tokens and max(tokens) + prompts[row].n_prefix < shared[row]:
                moved.setdefault(read.name, set()).add(row)
    left = without(part, moved)
    rows = tuple(row for row in part.rows if left.tokens(row))
    if not rows:
        return give(source, part, {read.name: moved.get(read.name, ()) for read in part.forward.reads}), None
    taken = give(source, part, moved)
    firsts = first_tokens(left, physical)
    first = tuple(min(a, b) for a, b in zip(firsts, shared, strict=True))
    resumed = replace(one, parts=(replace(left, rows=rows, first=first),), prefix=source_name)
    before = at_reach(one, facts).layer_tokens(facts)
    after = at_reach(resumed, facts).layer_tokens(facts)
    more = max(0, one.reach(facts) - reach) * source.n_tokens()
    return (taken, resumed) if after + more < before else None


def _with_one_beginning(physical: Physical, notes: list[str]) -> dict[str, PhysicalPass]:
    """Returns the passes, in which those whose rows all begin alike resume from one row's beginning."""
    facts, passes = physical.facts, dict(physical.passes)
    beginnings: dict[tuple[int, ...], list[str]] = {}
    for name, one in physical.passes.items():
        if one.prefix is not None or one.resumes is not None or len(one.parts) > 1 or len(one.part.rows) < 2:
            continue
        n = _n_common(name, physical)
        if n >= MIN_SHARED and (why := why_not(one, facts)) is not None:
            notes.append(why)
        elif n >= MIN_SHARED:
            beginnings.setdefault(physical.prompts[one.forward.rows][one.part.rows[0]].ids[:n], []).append(name)
    added: dict[str, PhysicalPass] = {}
    for ids, names in beginnings.items():
        tops = {name: _top(name, physical) for name in names}
        saved = sum(len(ids) * len(physical.passes[name].part.rows) * top for name, top in tops.items())
        if saved <= 2 * len(ids) * max(tops.values()):
            continue
        like, key = physical.passes[names[0]], hashed("beginning", ids)
        forward = replace(like.forward, model="original", places=(), appended=None)
        part = Part(key, key, Pass(forward, {}, {}, {}), 0, like.part.rows[:1])
        added[key] = PhysicalPass((part,), "", like.lengths, keeps_tokens=True, until=len(ids))
        for name in names:
            one = physical.passes[name]
            resumed = replace(one.part, first=(len(ids),) * len(one.lengths))
            passes[name] = replace(one, parts=(resumed,), prefix=key, is_one_prefix=True)
    return added | passes


def _top(name: str, physical: Physical) -> int:
    """Returns how many layers a pass has to run for itself and for those that resume from it."""
    own = physical.passes[name].reach(physical.facts)
    return max([own, *(other.reach(physical.facts) for other in physical.passes.values() if other.prefix == name)])


def _n_common(name: str, physical: Physical) -> int:
    """Returns with how many tokens all rows of a pass begin that it need not run: it has no place there, and keeps no stream for others."""
    one = physical.passes[name]
    part, prompts = one.part, physical.prompts[one.forward.rows]
    ids = [prompts[row].ids for row in part.rows]
    n = min(min(_n_shared(ids[0], other) for other in ids), min(map(len, ids)) - MIN_RUN)
    n = min([n, *(min(tokens) + prompts[row].n_prefix for row in part.rows if (tokens := part.tokens(row)))])
    for child in (child for other in children(physical, name) if other.resumes == name for child in other.parts if child.n_skipped):
        n = 0 if child.first is None else min([n, *(child.first[row] for row in child.rows)])
    return n


def _n_shared(one: Sequence[int], other: Sequence[int]) -> int:
    n = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        n += 1
    return n
