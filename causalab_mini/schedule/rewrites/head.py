"""*narrow the head*: logits are computed at the positions alone that are read, and of the tokens alone that metrics look at. 1e-6 relative.

A difference of two logits needs two rows of the unembedding; a probability, or an output that is saved, needs all of them.
"""

from __future__ import annotations

from dataclasses import replace

from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.physical import Physical, PhysicalPass, is_at_head
from causalab_mini.schedule.rewrites.common import own_operands

MIN_SHARE = 8
"""How many times fewer tokens than the vocabulary has make it worth to pick them."""


def narrow_the_head(physical: Physical) -> Physical:
    """Returns a schedule in which the unembedding sees what is read of it alone; not where a write stands there."""
    passes = {name: _narrowed(one) for name, one in physical.passes.items()}
    taken = {read for one in passes.values() for part in one.parts for read in (*part.operands, *own_operands(part))}
    passes = {name: replace(one, vocabulary=_vocabulary(one, physical, taken)) for name, one in passes.items()}
    return physical.rewritten("narrow the head", passes=passes)


def _vocabulary(one: PhysicalPass, physical: Physical, taken: set[str]) -> tuple[int, ...] | None:
    """Returns the tokens whose logits a pass is asked for; None where that is all, or so many that all cost no more."""
    reads = [place for place in one.places if is_at_head(place)]
    if not one.is_narrow or any(place.name in taken for place in reads):
        return None
    found: set[int] = set()
    for read in reads:
        features = physical.wanted.get(read.name)
        if features is None or read.site.units is not None:
            return None
        found |= features
    return tuple(sorted(found)) if found and len(found) * MIN_SHARE <= physical.facts.vocabulary else None


def _narrowed(one: PhysicalPass) -> PhysicalPass:
    at_head = [place for place in one.places if is_at_head(place)]
    if not at_head or any(isinstance(place, nodes.Write) for place in at_head):
        return one
    return replace(one, is_narrow=True)
