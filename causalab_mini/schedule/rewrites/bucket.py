"""*bucket lengths*: rows of like length run together, where one batch would be padding for the most part. 1e-6 relative."""

from __future__ import annotations

from dataclasses import replace

from causalab_mini.schedule.physical import Physical, PhysicalPass
from causalab_mini.schedule.rewrites.direct import operations_of

MIN_SAVED = 0.1
"""Tokens that buckets must save, as a share, to be worth more forwards."""
MIN_TOKENS = 64
"""What a batch costs beside its tokens, in tokens: products of few rows are slow."""
FIXED_OPERATIONS = 2e8
"""What a forward takes whatever is in it, in operations: some milliseconds of a CPU core."""


def bucket_lengths(physical: Physical) -> Physical:
    """Returns a schedule in which passes over many rows of unlike length are split by length."""
    facts = physical.facts
    by_itself = max(MIN_TOKENS, int(FIXED_OPERATIONS / (operations_of(facts) * facts.n_layers)))
    return physical.rewritten("bucket lengths", passes={name: _bucketed(one, by_itself, physical) for name, one in physical.passes.items()})


def _bucketed(one: PhysicalPass, by_itself: int, physical: Physical) -> PhysicalPass:
    changed = replace(one, batch_tokens=by_itself)
    before, after = one.layer_tokens(physical.facts), changed.layer_tokens(physical.facts)
    depth = max(1, one.top(physical.facts) - min(part.n_skipped for part in one.parts))
    after += (len(changed.batches()) - 1) * by_itself * depth
    return changed if after < (1 - MIN_SAVED) * before else one
