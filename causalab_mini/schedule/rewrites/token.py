"""*resume at a token*: a pass runs from its first place on, behind the keys and values of the model's own run. 1e-6 relative.

Before its first written token a pass is that run, at every layer.
"""

from __future__ import annotations

from dataclasses import replace

from causalab_mini.model.facts import ModelFacts
from causalab_mini.schedule.batching import MIN_RUN
from causalab_mini.schedule.memory import BYTES
from causalab_mini.schedule.physical import Part, Physical, PhysicalPass
from causalab_mini.schedule.rewrites.common import added, by_rows

OVER_PREFIX = ("attention_key", "attention_value", "attention_scores", "attention_probs")
"""Places that, behind a prefix, have its tokens too."""


def resume_at_a_token(physical: Physical) -> Physical:
    """Returns a schedule in which passes with writes leave out the tokens before their first place."""
    facts, passes, notes = physical.facts, dict(physical.passes), []
    for clean, written in by_rows(physical.passes):
        firsts = {}
        for name, one in written:
            if (why := why_not(one, facts)) is not None:
                notes.append(why)
            elif any(first := first_tokens(one.part, physical)):
                firsts[name] = first
        if not firsts:
            continue
        like = passes[next(iter(firsts))]
        kept_bytes = 2 * facts.n_kv_heads * facts.head_dim * facts.n_layers * sum(like.lengths) * BYTES[facts.dtype]
        if kept_bytes > physical.max_kept_bytes:
            notes.append(f"not for {len(firsts)} passes: {kept_bytes / 1024**3:.2g} GiB of keys and values")
            continue
        key, base = clean or added(like)
        changed = {
            name: replace(passes[name], parts=(replace(passes[name].part, first=first),), prefix=key) for name, first in firsts.items()
        }
        saved = sum(
            at_reach(passes[name], facts).layer_tokens(facts) - at_reach(one, facts).layer_tokens(facts) for name, one in changed.items()
        )
        top = max(one.reach(facts) for one in changed.values())
        more = max(0, top - (0 if clean is None else base.reach(facts))) * base.n_tokens()
        if physical.n_runs * saved <= more:
            notes.append("the model's own run would cost more than it saves")
            continue
        passes = {key: replace(base, keeps_tokens=True)} | {name: one for name, one in passes.items() if name != key} | changed
    return physical.rewritten("resume at a token", notes, passes=passes)


def why_not(one: PhysicalPass, facts: ModelFacts) -> str | None:
    """Returns why a pass must see all of its tokens; None where it need not."""
    over = sorted({place.site.component for place in one.places if place.site.component in OVER_PREFIX})
    if over:
        return f"not where {', '.join(over)} is read or written: it has the tokens before too"
    if facts.sliding_window is not None and 2 * max(one.lengths) > facts.sliding_window:
        return f"not for rows longer than half the sliding window of {facts.sliding_window} tokens"
    return None


def first_tokens(part: Part, physical: Physical) -> tuple[int, ...]:
    """Returns, by row of the step, the first token that a part reads or writes, counted from the tokenizer's own."""
    prompts = physical.prompts[part.forward.rows]
    found = []
    for row, prompt in enumerate(prompts):
        tokens = part.tokens(row)
        found.append(prompt.n_prefix + min(tokens) if tokens else max(0, prompt.n_tokens - MIN_RUN))
    return tuple(found)


def at_reach(one: PhysicalPass, facts: ModelFacts) -> PhysicalPass:
    """Returns a pass that ends where it may, to be measured."""
    return one if one.reach(facts) == facts.n_layers else replace(one, stops_after=max(one.reach(facts), 1) - 1)
