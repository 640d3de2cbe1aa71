"""*stop early*: a forward ends after its last read, write and kept stream. The same bits."""

from __future__ import annotations

from dataclasses import replace

from causalab_mini.schedule.physical import Physical, PhysicalPass


def stop_early(physical: Physical) -> Physical:
    """Returns a schedule in which no pass runs above its last place."""
    return physical.rewritten("stop early", {name: _stopped(one) for name, one in physical.passes.items()})


def _stopped(one: PhysicalPass) -> PhysicalPass:
    if any(place.site.rank[0] == 2 for place in one.forward.places):
        return one
    layers = [*one.keeps, *(layer for place in one.forward.places for layer in place.site.layers)]
    return replace(one, stops_after=max(layers, default=0))
