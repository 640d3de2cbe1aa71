"""*narrow the head*: logits are computed at the positions alone that are read. 1e-6 relative: the product has other rows."""

from __future__ import annotations

from dataclasses import replace

from causalab_mini.schedule.physical import Physical, PhysicalPass, is_at_head


def narrow_the_head(physical: Physical) -> Physical:
    """Returns a schedule in which the unembedding sees what is read of it alone; not where a write stands there."""
    return physical.rewritten("narrow the head", {name: _narrowed(one) for name, one in physical.passes.items()})


def _narrowed(one: PhysicalPass) -> PhysicalPass:
    reads = [place for place in one.forward.reads if is_at_head(place)]
    if not reads or any(is_at_head(place) for place in one.forward.writes):
        return one
    return replace(one, is_narrow=True)
