"""*free early*: what a pass kept or read is let go of after its last use, and not at the end. The same bits."""

from __future__ import annotations

from causalab_mini.schedule.physical import Physical


def free_early(physical: Physical) -> Physical:
    """Returns a schedule in which nothing is held longer than it is needed."""
    return physical.rewritten("free early", frees_early=True)
