"""*stop early*: a forward ends after its last read, write and kept value. The same bits."""

from __future__ import annotations

from dataclasses import replace

from causalab_mini.schedule.physical import Physical


def stop_early(physical: Physical) -> Physical:
    """Returns a schedule in which no pass runs above its last place, or the last layer whose keys and values a later pass needs."""
    facts, passes = physical.facts, dict(physical.passes)
    for name in reversed(passes):  # those that need a pass come after it
        one = passes[name]
        above = [other.top(facts) for other in passes.values() if other.prefix == name]
        reach = max([one.reach(facts), *above])
        if not any(place.site.rank[0] == 2 for place in one.places):
            passes[name] = replace(one, stops_after=max(reach, 1) - 1)
    return physical.rewritten("stop early", passes=passes)
