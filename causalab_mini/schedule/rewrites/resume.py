"""*resume at a layer*: a pass begins above its first place, from the stream that the model's own run over its rows kept. The same bits.

Below its first write a pass is that run. Where that run is not made anyway, it is added if it costs less than what is skipped.
"""

from __future__ import annotations

from dataclasses import replace

from causalab_mini.schedule.memory import BYTES
from causalab_mini.schedule.physical import Part, Physical, PhysicalPass
from causalab_mini.schedule.rewrites.common import added, by_rows


def resume_at_a_layer(physical: Physical) -> Physical:
    """Returns a schedule in which passes with writes begin at the layer of their first place."""
    facts = physical.facts
    passes, notes = dict(physical.passes), []
    for clean, written in by_rows(physical.passes):
        n_skipped = {name: n for name, one in written if (n := n_below(one.part, facts.n_layers)) > 0}
        if not n_skipped:
            continue
        like = passes[next(iter(n_skipped))]
        layers = tuple(sorted({n - 1 for n in n_skipped.values()}))
        kept_bytes = len(layers) * sum(like.lengths) * facts.hidden * BYTES[facts.dtype]
        if kept_bytes > physical.max_kept_bytes:
            notes.append(f"not for {len(n_skipped)} passes: {kept_bytes / 1024**3:.2g} GiB of streams")
            continue
        more = _more(clean, layers[-1] + 1, like, physical)
        if more >= physical.n_runs * sum(n * len(passes[name].part.rows) for name, n in n_skipped.items()):
            notes.append("the model's own run would cost more than it saves")
            continue
        key, base = clean or added(like)
        passes = {key: base} | passes
        passes[key] = replace(base, keeps=tuple(sorted({*base.keeps, *layers})))
        for name, n in n_skipped.items():
            passes[name] = replace(passes[name], parts=(replace(passes[name].part, n_skipped=n),), resumes=key)
    return physical.rewritten("resume at a layer", notes, passes=passes)


def n_below(part: Part, n_layers: int) -> int:
    """Returns how many layers stand below the first place; the last of them may be one whose output alone is read or written."""
    first = min(place.site.rank for place in part.forward.places)
    if first[0] != 1:
        return n_layers if first[0] == 2 else 0
    at_first = [place.site for place in part.forward.places if first[1] in place.site.layers]
    return first[1] + 1 if all(site.component == "block_output" for site in at_first) else first[1]


def _more(clean: tuple[str, PhysicalPass] | None, reach: int, like: PhysicalPass, physical: Physical) -> int:
    """Returns how many layers times rows the model's own run costs beyond what it runs anyway."""
    before = 0 if clean is None else clean[1].reach(physical.facts)
    return max(0, reach - before) * len(like.lengths)
