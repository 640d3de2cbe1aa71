"""What makes a schedule cheaper with the same numbers: one file a rewrite, in the order of the tuple.

Each is correct alone. What may not be rewritten is left as it is, and the note of its saving says why.
"""

from causalab_mini.schedule.physical import Physical, Rewrite
from causalab_mini.schedule.rewrites.bucket import bucket_lengths
from causalab_mini.schedule.rewrites.direct import run_directly
from causalab_mini.schedule.rewrites.drop import drop
from causalab_mini.schedule.rewrites.free import free_early
from causalab_mini.schedule.rewrites.head import narrow_the_head
from causalab_mini.schedule.rewrites.idle import skip_no_ops
from causalab_mini.schedule.rewrites.join import join_points
from causalab_mini.schedule.rewrites.prefixes import share_prefixes
from causalab_mini.schedule.rewrites.resume import resume_at_a_layer
from causalab_mini.schedule.rewrites.share import share
from causalab_mini.schedule.rewrites.stop import stop_early
from causalab_mini.schedule.rewrites.token import resume_at_a_token

REWRITES: tuple[Rewrite, ...] = (
    share,
    drop,
    skip_no_ops,
    resume_at_a_layer,
    resume_at_a_token,
    share_prefixes,
    stop_early,
    narrow_the_head,
    join_points,
    bucket_lengths,
    run_directly,
    free_early,
)


def rewrite(physical: Physical, rewrites: tuple[Rewrite, ...] = REWRITES) -> Physical:
    """Returns a schedule after some rewrites, in their order."""
    for one in rewrites:
        physical = one(physical)
    return physical


__all__ = [
    "REWRITES",
    "bucket_lengths",
    "drop",
    "free_early",
    "join_points",
    "narrow_the_head",
    "resume_at_a_layer",
    "resume_at_a_token",
    "rewrite",
    "run_directly",
    "share",
    "share_prefixes",
    "skip_no_ops",
    "stop_early",
]
