"""*share*: equal passes over steps, points and lists of interventions run once, with the reads of all of them. The same bits."""

from __future__ import annotations

from dataclasses import replace

from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.located import Keys, Pass, Windows
from causalab_mini.schedule.physical import Part, Physical, PhysicalPass


def share(physical: Physical) -> Physical:
    """Returns a schedule in which no pass is run twice."""
    groups: dict[str, list[PhysicalPass]] = {}
    for one in physical.passes.values():
        groups.setdefault(one.part.key, []).append(one)
    passes = {key: replace(group[0], parts=(_merged([one.part for one in group]),)) for key, group in groups.items()}
    keys = {one.part.name: one.part.key for one in physical.passes.values()}
    uses = {use: (keys[name], values) for use, (name, values) in physical.uses.items()}
    return physical.rewritten("share", passes=passes, uses=uses)


def _merged(group: list[Part]) -> Part:
    """Returns one part with the writes of the first and the reads of all."""
    first = group[0]
    reads: dict[str, nodes.Read] = {}
    windows: dict[str, Windows] = {}
    keys: dict[str, Keys] = {}
    for member in group:
        reads |= {read.name: read for read in member.forward.reads}
        windows |= member.one.windows
        keys |= member.one.keys
    both: list[nodes.Write | nodes.Read] = [*first.forward.writes, *reads.values()]
    places = tuple(sorted(both, key=lambda place: (place.site.rank, isinstance(place, nodes.Read))))
    one = Pass(replace(first.forward, places=places), windows, keys, first.one.missing, first.one.whole)
    return replace(first, name=first.key, one=one, n_uses=sum(member.n_uses for member in group))
