"""*drop*: what no metric, no output and no write needs is not read, and a pass that reads nothing is not run. The same bits."""

from __future__ import annotations

from dataclasses import replace

from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.physical import Part, Physical, PhysicalPass
from causalab_mini.schedule.rewrites.common import children, own_operands


def drop(physical: Physical) -> Physical:
    """Returns a schedule without what leads to no result; what writes is run even so, since it has to be seen to write."""
    passes = dict(physical.passes)
    while True:
        needed = set(physical.wanted)
        for one in passes.values():
            needed |= {read for part in one.parts for read in (*part.operands, *own_operands(part))}
        left: dict[str, PhysicalPass] = {}
        for name, one in passes.items():
            parts = tuple(_with(part, needed) for part in one.parts)
            if any(part.forward.places for part in parts) or children(physical, name):
                left[name] = replace(one, parts=parts)
        if _size(left) == _size(passes):
            break
        passes = left
    given = {read.name for one in passes.values() for part in one.parts for read in part.forward.reads}
    uses = {use: (name, {read: key for read, key in values.items() if key in given}) for use, (name, values) in physical.uses.items()}
    return physical.rewritten("drop", passes=passes, uses=uses)


def _with(part: Part, needed: set[str]) -> Part:
    """Returns a part with the reads that are needed."""
    if all(read.name in needed for read in part.forward.reads):
        return part
    places = tuple(place for place in part.forward.places if isinstance(place, nodes.Write) or place.name in needed)
    return replace(part, one=part.one.only(places))


def _size(passes: dict[str, PhysicalPass]) -> int:
    return sum(1 + len(one.places) for one in passes.values())
