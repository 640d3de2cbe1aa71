"""What makes a schedule cheaper with the same numbers: one file a rewrite, in the order of the tuple.

Each is correct alone. What may not be rewritten is left as it is, and the note of its saving says why.
"""

from causalab_mini.schedule.physical import Physical, Rewrite
from causalab_mini.schedule.rewrites.head import narrow_the_head
from causalab_mini.schedule.rewrites.resume import resume_at_a_layer
from causalab_mini.schedule.rewrites.share import share
from causalab_mini.schedule.rewrites.stop import stop_early

REWRITES: tuple[Rewrite, ...] = (share, resume_at_a_layer, stop_early, narrow_the_head)


def rewrite(physical: Physical, rewrites: tuple[Rewrite, ...] = REWRITES) -> Physical:
    """Returns a schedule after some rewrites, in their order."""
    for one in rewrites:
        physical = one(physical)
    return physical


__all__ = ["REWRITES", "narrow_the_head", "resume_at_a_layer", "rewrite", "share", "stop_early"]
