"""*stop early*: a forward ends after its last read, write and kept value. The same bits."""

from __future__ import annotations

from dataclasses import replace

from causalab_mini.schedule.physical import Physical


def stop_early(physical: Physical) -> Physical:
    """Returns a schedule in which no pass runs above its last place, or the last layer whose keys and values a later pass needs."""
    facts, passes = physical.facts, dict(physical.passes)
    needed: dict[str | None, int] = {}
    for name in reversed(passes):  # those that need a pass come after it
        one = passes[name]
        if not any(place.site.rank[0] == 2 for place in one.places):
            passes[name] = one = replace(one, stops_after=max(one.reach(facts), needed.get(name, 0), 1) - 1)
        needed[one.prefix] = max(needed.get(one.prefix, 0), one.top(facts))
    return physical.rewritten("stop early", passes=passes)
