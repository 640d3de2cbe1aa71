"""*bucket lengths*: rows of like length run together, where one batch would be padding for the most part. 1e-6 relative."""

from __future__ import annotations

from dataclasses import replace

from causalab_mini.schedule.batching import BATCH_TOKENS
from causalab_mini.schedule.physical import Physical, PhysicalPass

MIN_SAVED = 0.1
"""Tokens that buckets must save, as a share, to be worth more forwards."""


def bucket_lengths(physical: Physical) -> Physical:
    """Returns a schedule in which passes over many rows of unlike length are split by length."""
    return physical.rewritten("bucket lengths", passes={name: _bucketed(one, physical) for name, one in physical.passes.items()})


def _bucketed(one: PhysicalPass, physical: Physical) -> PhysicalPass:
    changed = replace(one, is_bucketed=True)
    before, after = one.layer_tokens(physical.facts), changed.layer_tokens(physical.facts)
    depth = max(1, physical.facts.n_layers - min(part.n_skipped for part in one.parts))
    after += (len(changed.batches()) - 1) * BATCH_TOKENS * depth
    return changed if after < (1 - MIN_SAVED) * before else one
