"""A schedule for a person, and as JSON data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from causalab_mini.model.facts import ModelFacts
from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.memory import kept_bytes, peak_bytes
from causalab_mini.schedule.physical import Cost, Physical, PhysicalPass
from causalab_mini.schedule.repeated import FitCost

PASSES = ("pass", "what", "rows", "tokens", "layers", "logits at", "reads", "writes", "resumes", "stands for", "")
HEADER = ("rewrite", "passes", "layer·tokens", "logits at", "peak memory")


@dataclass(frozen=True, slots=True)
class Saving:
    """What one rewrite saved, and what it left alone and why."""

    rewrite: str
    before: Cost
    after: Cost
    peak_before: int
    peak_after: int
    note: str


def savings(physical: Physical) -> list[Saving]:
    """Returns what each rewrite of a schedule saved."""
    steps = [rewritten.before for rewritten in physical.history] + [physical]
    costs = [(step.cost, peak_bytes(step)) for step in steps]
    return [
        Saving(rewritten.rewrite, before[0], after[0], before[1], after[1], rewritten.note)
        for rewritten, before, after in zip(physical.history, costs, costs[1:], strict=False)
    ]


def text(physical: Physical) -> str:
    """Returns a schedule for a person: a line a pass, and what each rewrite saved."""
    names = {name: f"#{number}" for number, name in enumerate(physical.passes, 1)}
    freed = freed_after(physical)
    passes = [PASSES, *(_line(name, one, names, freed[name], physical.facts) for name, one in physical.passes.items())]
    lines = [*_aligned(passes), "", *_remarks(physical)]
    table: list[tuple[str, ...]] = [HEADER]
    notes = []
    for saving in savings(physical):
        changes = [
            _change(f"{a:,}", f"{b:,}")
            for a, b in (
                (saving.before.passes, saving.after.passes),
                (saving.before.layer_tokens, saving.after.layer_tokens),
                (saving.before.head_positions, saving.after.head_positions),
            )
        ]
        table.append((saving.rewrite, *changes, _change(_size(saving.peak_before), _size(saving.peak_after))))
        if saving.note:
            notes.append(f"{saving.rewrite}: {saving.note}")
    lines += ["", *_aligned(table)]
    first, last = physical.plain.cost, physical.cost
    if first.layer_tokens:
        lines.append(f"in all: {last.layer_tokens / first.layer_tokens:.0%} of the plan's layers times tokens")
    return "\n".join([*lines, *notes])


def freed_after(physical: Physical) -> dict[str, list[str]]:
    """Returns, for each pass, those whose streams, keys and values nobody needs after it."""
    last = {source: name for name, one in physical.passes.items() for source in (one.resumes, one.prefix) if source is not None}
    return {name: [source for source, end in last.items() if end == name and physical.frees_early] for name in physical.passes}


def _line(name: str, one: PhysicalPass, names: dict[str, str], freed: Sequence[str], facts: ModelFacts) -> tuple[str, ...]:
    """Returns the cells of a pass."""
    forward = one.forward
    what = f"{forward.model} on {forward.role}" + (" + answers" if forward.appended is not None else "")
    if not any(part.n_uses for part in one.parts):
        what = f"original on {forward.role}, for others" if one.until is None else "what all rows begin with"
    sites = list(dict.fromkeys(str(place.site) for place in one.places if isinstance(place, nodes.Write)))
    sources = list(dict.fromkeys(names[source] for source in (one.resumes, one.prefix) if source is not None))
    kept = [_count(len(one.keeps), "stream")] if one.keeps else []
    kept += ["keys and values"] if one.keeps_tokens else []
    held = [f"keeps {' and '.join(kept)} ({_size(kept_bytes(one, facts))})"] if kept else []
    held += [f"frees {', '.join(names[source] for source in freed)}"] if freed else []
    return (
        names[name],
        what,
        _rows(one),
        _tokens(one),
        _layers(one, facts),
        _head(one),
        str(len({read.name for part in one.parts for read in part.forward.reads}) or "–"),
        ", ".join(sites[:2]) + (f" and {len(sites) - 2} more" if len(sites) > 2 else "") or "–",
        " and ".join(sources) or "–",
        str(sum(part.n_uses for part in one.parts) or "–"),
        "; ".join(held),
    )


def _remarks(physical: Physical) -> list[str]:
    """Returns what is said of all passes together."""
    n, idle = len(physical.passes), sum(len(rows) for rows in physical.idle.values())
    traced = [f"#{number}" for number, one in enumerate(physical.passes.values(), 1) if not one.is_direct]
    said = "every pass is small, and runs under hooks without a trace"
    if traced:
        named = ", ".join(traced[:8]) + (" …" if len(traced) > 8 else "")
        said = "every pass is a trace" if len(traced) == n else f"small passes run under hooks without a trace; {named} as traces"
    found = [said]
    if idle:
        found.append(f"not run: {_count(idle, 'row')} of passes whose writes would put back what stands there")
    return found


def _aligned(table: Sequence[tuple[str, ...]]) -> list[str]:
    """Returns rows of cells as lines of equal columns."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def _rows(one: PhysicalPass) -> str:
    n_rows, n_batches = len(one.entries()), len(one.batches())
    parts = f" ({len(one.parts)} joined)" if len(one.parts) > 1 else ""
    return f"{n_rows:,}{parts}" + (f" in {n_batches} batches" if n_batches > 1 else "")


def _tokens(one: PhysicalPass) -> str:
    entries = one.entries()
    whole, run = max(entry.length for entry in entries), max(entry.n_run for entry in entries)
    return f"last {run} of {whole}" if run < whole else f"{whole}"


def _layers(one: PhysicalPass, facts: ModelFacts) -> str:
    last, firsts = one.top(facts) - 1, sorted({part.n_skipped for part in one.parts})
    if firsts[0] > last:
        return "none"
    first = f"{firsts[0]}…{min(firsts[-1], last)}" if len(firsts) > 1 and firsts[0] < last else f"{firsts[0]}"
    return first if first == str(last) else f"{first}–{last}"


def _head(one: PhysicalPass) -> str:
    if one.stops_after is not None:
        return "–"
    tokens = "" if one.vocabulary is None else f" × {_count(len(one.vocabulary), 'token')}"
    return f"{one.n_head_positions():,}{tokens}"


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"


def _size(n: int) -> str:
    for unit, size in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n} B"


def fit_lines(fits: Sequence[FitCost]) -> Iterator[str]:
    """Yields, for the fits that are trained together, what is run once and what at each update."""
    for fit in fits:
        n = len(fit.points)
        together = f", {n} points together" if n > 1 else ""
        forwards = f"{fit.n_forwards} forward{'s' if fit.n_forwards > 1 else ''} an update"
        yield f"fit {fit.step}{together}: {fit.once:,} layer·tokens once; {fit.n_updates} updates of {forwards},"
        whole = fit.plain * fit.n_epochs
        share = (fit.once + fit.each * fit.n_epochs) / whole if whole else 1.0
        yield f"  {fit.each:,} layer·tokens an epoch instead of {fit.plain:,}: {share:.0%} of the plan's over {fit.n_epochs} epochs"


def attribution_lines(request: nodes.Request) -> Iterator[str]:
    """Yields what each attribution runs beside its sources, once for all points."""
    steps = {step.name: step for point in request.points for step in point.plan.steps if isinstance(step, nodes.Attribute)}
    for step in steps.values():
        (intervention,) = step.observed.interventions
        metric = next(metric for metric in intervention.metrics if metric.name == step.metric)
        layers = sum(len(write.site.addresses) for write in intervention.forward_of(metric.reads["of"]).writes)
        n = 1 if step.method == "atp" else 1 + layers * step.n_steps
        exact = "" if step.verify_top is None else f"; then up to {step.verify_top} components exactly, in as few passes as they need"
        yield f"attribute {step.name}: {n} gradient{'s' if n > 1 else ''} over {step.n_rows} rows{exact}"


def stream_lines(request: nodes.Request) -> Iterator[str]:
    """Yields what each stream step runs, at every point of its own."""
    steps = {step.name: step for point in request.points for step in point.plan.steps if isinstance(step, nodes.Stream)}
    for step in steps.values():
        n = step.decode.max_new_tokens - 1
        yield f"stream {step.name}: {_count(step.n_rows, 'row')}, a forward over the prompt, then up to {n} of one token each; one more where a point wants the last"


def probe_lines(request: nodes.Request) -> Iterator[str]:
    """Yields, for each linear probe, that it runs nothing, and how often it is fitted at every point."""
    steps = {step.name: step for point in request.points for step in point.plan.steps if isinstance(step, nodes.FitProbe)}
    for step in steps.values():
        yield f"fit_probe {step.name}: no forward; {_count(step.n_rows, 'row')} of `{step.features}`, {step.folds} folds, and as many for every shuffle of the labels"


def generation_lines(physical: Physical) -> Iterator[str]:
    """Yields what is generated, each once for all that look at it."""
    for one in physical.continuing.values():
        forward, decode = one.forward, one.forward.decode
        assert decode is not None
        most = (
            f"{decode.max_new_tokens - 1} of one token each"
            if decode.ignore_eos
            else f"at most {decode.max_new_tokens - 1} of one token each"
        )
        yield f"generate {forward.model} on {forward.role}: {_count(forward.n_rows, 'row')}, a forward over the prompt, then {most}"


def data(physical: Physical, fits: Sequence[FitCost] = ()) -> dict[str, Any]:
    """Returns a schedule, and what fits run, as JSON data."""
    names = {name: number for number, name in enumerate(physical.passes, 1)}
    freed = freed_after(physical)
    return {
        "passes": [
            _pass_data(one, name, names, physical.facts) | {"frees": [names[source] for source in freed[name]]}
            for name, one in physical.passes.items()
        ],
        "generations": [
            {"model": one.forward.model, "role": one.forward.role, "rows": one.forward.n_rows, "decode": dict(one.forward.decode.spelled())}
            for one in physical.continuing.values()
            if one.forward.decode is not None
        ],
        "idle_rows": sum(len(rows) for rows in physical.idle.values()),
        "rewrites": [
            {
                "rewrite": saving.rewrite,
                "before": _cost(saving.before, saving.peak_before),
                "after": _cost(saving.after, saving.peak_after),
                "note": saving.note,
            }
            for saving in savings(physical)
        ],
        "fits": [asdict(fit) for fit in fits],
    }


def _pass_data(one: PhysicalPass, name: str, names: dict[str, int], facts: ModelFacts) -> dict[str, Any]:
    entries = one.entries()
    return {
        "pass": names[name],
        "role": one.forward.role,
        "parts": [
            {
                "model": part.forward.model,
                "rows": list(part.rows),
                "first_layer": part.n_skipped,
                "first_tokens": _firsts(part.first, part.rows),
                "reads": len(part.forward.reads),
                "writes": [f"{write.name} at {write.site}" for write in part.forward.writes],
                "stands_for": part.n_uses,
            }
            for part in one.parts
        ],
        "last_layer": one.top(facts) - 1,
        "tokens_run": max(entry.n_run for entry in entries),
        "tokens_seen": max(entry.length for entry in entries),
        "batches": [len(batch) for batch in one.batches()],
        "layer_tokens": one.layer_tokens(facts),
        "head_positions": one.n_head_positions(),
        "head_tokens": None if one.vocabulary is None else len(one.vocabulary),
        "resumes": None if one.resumes is None else names[one.resumes],
        "prefix": None if one.prefix is None else names[one.prefix],
        "keeps_streams": list(one.keeps),
        "keeps_keys_values": one.keeps_tokens,
        "kept_bytes": kept_bytes(one, facts),
        "hooks": one.is_direct,
    }


def _firsts(first: Sequence[int] | None, rows: Sequence[int]) -> list[int]:
    return [0 if first is None else first[row] for row in rows]


def _cost(cost: Cost, peak: int) -> dict[str, int]:
    return {"passes": cost.passes, "layer_tokens": cost.layer_tokens, "head_positions": cost.head_positions, "peak_bytes": peak}
