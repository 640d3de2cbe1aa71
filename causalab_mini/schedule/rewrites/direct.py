"""*run directly*: a small pass is run under hooks on the same modules, where a trace costs more than the forward itself. The same bits.

A trace costs some 5 to 10 ms whatever is in it: nothing beside a real model's pass, and most of a tiny one's.
"""

from __future__ import annotations

from dataclasses import replace

from causalab_mini.model.facts import ModelFacts
from causalab_mini.schedule.physical import Physical, PhysicalPass

MAX_OPERATIONS = 4e11
"""Multiplications and additions below which a pass is small: some seconds of one CPU core, some milliseconds of a GPU."""


def run_directly(physical: Physical) -> Physical:
    """Returns a schedule whose small passes are run without a trace."""
    passes = {name: replace(one, is_direct=operations(one, physical.facts) < MAX_OPERATIONS) for name, one in physical.passes.items()}
    return physical.rewritten("run directly", passes=passes)


def operations(one: PhysicalPass, facts: ModelFacts) -> float:
    """Returns about how many multiplications and additions a pass takes."""
    return operations_of(facts) * one.layer_tokens(facts) + 2.0 * facts.hidden * facts.vocabulary * one.n_head_positions()


def operations_of(facts: ModelFacts) -> float:
    """Returns about how many multiplications and additions a layer takes a token."""
    return 2.0 * facts.hidden * (facts.head_dim * 2 * (facts.n_heads + facts.n_kv_heads) + 3 * facts.intermediate)
