"""*resume at a layer*: a pass begins above its first place, from the stream that the clean pass over the same rows kept. The same bits.

Below its first write an intervened forward is the clean one. Where a clean pass over these rows is not run anyway, one is added if it
costs less than what is skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.identity import hashed
from causalab_mini.schedule.physical import Physical, PhysicalPass
from causalab_mini.schedule.schedule import Pass

MAX_KEPT_BYTES = 2 * 1024**3
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


def resume_at_a_layer(physical: Physical) -> Physical:
    """Returns a schedule in which passes with writes begin at the layer of their first place."""
    facts = physical.facts
    groups: dict[tuple[str, nodes.RowsKey, object], list[str]] = {}
    n_skipped = {name: _n_below(one) for name, one in physical.passes.items() if one.forward.writes}
    for name, n in n_skipped.items():
        one = physical.passes[name]
        if n > 0:
            groups.setdefault((one.scope, one.forward.rows, one.forward.appended), []).append(name)
    clean: dict[str, PhysicalPass] = {}
    changed: dict[str, PhysicalPass] = {}
    notes = []
    for (scope, rows, appended), names in groups.items():
        first = physical.passes[names[0]]
        layers = tuple(sorted({n_skipped[name] - 1 for name in names}))
        kept_bytes = len(layers) * first.n_tokens * facts.hidden * BYTES[facts.dtype]
        if kept_bytes > MAX_KEPT_BYTES:
            notes.append(f"not for {len(names)} passes: {kept_bytes / 1024**3:.1f} GiB of streams")
            continue
        source = _clean_of(physical.passes, scope, rows, appended)
        cost = 0 if source is not None and _reaches(source[1], facts.n_layers) > layers[-1] else layers[-1] + 1
        if cost >= sum(n_skipped[name] for name in names):
            continue
        key, base = source if source is not None else _added(first, scope)
        clean[key] = replace(base, keeps=tuple(sorted({*base.keeps, *layers})))
        changed |= {name: replace(physical.passes[name], n_skipped=n_skipped[name], resumes=key) for name in names}
    passes = _in_order(physical.passes, clean, changed)
    return physical.rewritten("resume at a layer", passes, note="; ".join(notes))


def _n_below(one: PhysicalPass) -> int:
    """Returns how many layers stand below the first place; the last of them may be one whose output alone is read or written."""
    ranks = [place.site.rank for place in one.forward.places]
    first = min(ranks)
    if first[0] != 1:
        return 0
    at_first = [place.site for place in one.forward.places if first[1] in place.site.layers]
    return first[1] + 1 if all(site.component == "block_output" for site in at_first) else first[1]


def _reaches(one: PhysicalPass, n_layers: int) -> int:
    """Returns how many layers a pass runs for its own sake."""
    if any(place.site.rank[0] == 2 for place in one.forward.places):
        return n_layers
    return max((layer + 1 for place in one.forward.places for layer in place.site.layers), default=0)


def _clean_of(passes: Mapping[str, PhysicalPass], scope: str, rows: nodes.RowsKey, appended: object) -> tuple[str, PhysicalPass] | None:
    for name, one in passes.items():
        if not one.forward.writes and (one.scope, one.forward.rows, one.forward.appended) == (scope, rows, appended):
            return name, one
    return None


def _added(like: PhysicalPass, scope: str) -> tuple[str, PhysicalPass]:
    """Returns a clean pass over the rows of another, with nothing to read."""
    forward = replace(like.forward, model="original", places=())
    key = hashed("clean", scope, forward.rows, forward.appended)
    return key, PhysicalPass(key, Pass(forward, {}, {}, {}), scope, 0, like.n_tokens)


def _in_order(
    passes: Mapping[str, PhysicalPass], clean: Mapping[str, PhysicalPass], changed: Mapping[str, PhysicalPass]
) -> dict[str, PhysicalPass]:
    """Returns all passes, the clean ones before those that resume from them."""
    return dict(clean) | {name: changed.get(name, one) for name, one in passes.items() if name not in clean}
