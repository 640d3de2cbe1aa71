"""How much memory a schedule needs beside the weights: an estimate from shapes."""

from __future__ import annotations

from collections.abc import Mapping

from causalab_mini.model.facts import ModelFacts
from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.batching import Entry
from causalab_mini.schedule.physical import Part, Physical, PhysicalPass

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


def peak_bytes(physical: Physical, limit: int | None = None) -> int:
    """Returns the most that is held at once: what a forward works with, and everything that is kept meanwhile.

    Args:
        physical: the schedule.
        limit: rows a batch; None for all of a pass, or of its buckets.
    """
    releases: dict[int, list[str]] = {}
    if physical.frees_early:
        for key, number in _last_needs(physical).items():
            releases.setdefault(number, []).append(key)
    sizes: dict[str, int] = {}
    held = peak = 0
    for number, (name, one) in enumerate(physical.passes.items()):
        working = max((working_bytes(one, batch, physical.facts) for batch in one.batches(limit=limit)), default=0)
        sizes[name] = kept_bytes(one, physical.facts)
        peak = max(peak, held + sizes[name] + working)
        held += sizes[name]
        for part in one.parts:
            sizes[f"{name}/{part.name}"] = size = _read_bytes(part, physical.facts)
            held += size
        held -= sum(sizes[key] for key in releases.get(number, ()))
    return max(peak, held)


def working_bytes(one: PhysicalPass, batch: list[Entry], facts: ModelFacts) -> int:
    """Returns what a forward over one batch holds at its widest layer, or at its head."""
    size, n_rows = BYTES[facts.dtype], len(batch)
    n_run, n_seen = max(entry.n_run for entry in batch), max(entry.length for entry in batch)
    tokens = n_rows * n_run
    attention = n_rows * facts.n_heads * n_run * n_seen * (2 if facts.attn_implementation == "eager" else 1)
    before = 2 * n_rows * n_seen * facts.n_kv_heads * facts.head_dim
    layer = tokens * (4 * facts.hidden + 3 * facts.intermediate + 2 * facts.n_heads * facts.head_dim) + attention + before
    head = 0
    if one.stops_after is None:
        per_row = max((_n_head(one, entry) for entry in batch), default=0) if one.is_narrow else n_run
        head = tokens * 2 * facts.hidden + 2 * n_rows * per_row * facts.vocabulary
    return size * max(layer, head)


def kept_bytes(one: PhysicalPass, facts: ModelFacts) -> int:
    """Returns what a pass keeps for later ones beside its reads: streams, keys and values."""
    tokens = one.n_tokens()
    streams = len(one.keeps) * tokens * facts.hidden
    seen = sum(max(entry.length for entry in batch) * len(batch) for batch in one.batches())
    before = 2 * facts.n_kv_heads * facts.head_dim * one.top(facts) * seen if one.keeps_tokens else 0
    return BYTES[facts.dtype] * (streams + before)


def _n_head(one: PhysicalPass, entry: Entry) -> int:
    from causalab_mini.schedule.physical import head_tokens

    return len(head_tokens(one.parts[entry.part], entry.row))


def _read_bytes(part: Part, facts: ModelFacts) -> int:
    total = 0
    for read in part.forward.reads:
        n = sum(len(part.one.windows[read.name][row].tokens) for row in part.rows) * len(read.site.addresses)
        total += n * (facts.vocabulary if read.view == "logits" else _width(read, facts))
    return BYTES[facts.dtype] * total


def _width(read: nodes.Read, facts: ModelFacts) -> int:
    if read.site.units is not None:
        return len(read.site.units)
    width = facts.width(read.site.component) or facts.n_heads
    n_heads = facts.n_heads_of(read.site.component)
    return width if read.site.heads is None or n_heads is None else width // n_heads * len(read.site.heads)


def _last_needs(physical: Physical) -> Mapping[str, int]:
    """Returns the number of the last pass that needs what a pass keeps, and what each of its parts reads."""
    last: dict[str, int] = {}
    numbers = {name: number for number, name in enumerate(physical.passes)}
    homes = {part.name: name for name, one in physical.passes.items() for part in one.parts}
    for name, one in physical.passes.items():
        last[name] = max(last.get(name, 0), numbers[name])
        for other in (one.resumes, one.prefix):
            if other is not None:
                last[other] = max(last.get(other, 0), numbers[name])
    given: dict[str, list[str]] = {}
    for name, one in physical.passes.items():
        for part in one.parts:
            last[f"{name}/{part.name}"] = numbers[name]
            for read in part.forward.reads:
                given.setdefault(read.name, []).append(f"{name}/{part.name}")
    needed = [(read, numbers[name]) for name, one in physical.passes.items() for part in one.parts for read in part.operands]
    for part_name, values in physical.uses.values():
        at = numbers.get(homes.get(part_name, ""), 0)
        needed += [(read, at) for read in values.values()]
    for taken, at in needed:
        for key in given.get(taken, ()):
            last[key] = max(last[key], at)
    return last
