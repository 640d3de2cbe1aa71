"""The table for a person, made of what was measured and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from work import WORKS

NOTES = {
    "bare": "one plain forward over the base rows a point, all logits",
    "single": "two plain forwards, one over each role's rows",
}


def markdown(found: Mapping[str, Any]) -> str:
    """Returns a page with a table a work."""
    lines = [
        "# Activation patching",
        "",
        f"Written by `{found['command']}`: {found['title']}, fp32, {found['environment']}.",
        "",
        "An interchange at one token, each row its own: what leaves a block (or one head, before the output projection) is taken from the",
        "counterfactual prompt and put into the base prompt; the result is the logits at the last token. The work is the same everywhere,",
        "down to the token ids. *CPU* is the CPU time of the whole work as a ratio to the plain forwards that it names, measured in the same",
        "process and in turn with the way itself: the median of paired runs on one thread. Below 1, patching everywhere costs less than",
        "running the model once a point. *Wall* is the same of the time on the clock, which other processes disturb. Ways whose cost is the",
        "same at every point are measured on a random sample of the points and scaled (*measured on*); what they do once for all is done in",
        "full. *Memory* is the largest resident size over that with the model loaded, without the results themselves, while the points of a",
        "repeat were run; points that this package joins are computed before the first is handed over, and their results count until they are.",
        "*Difference* is the largest of any logit at the sampled points from the hooks written by hand.",
        "",
        *_ways_text(),
    ]
    for name, one in found["works"].items():
        lines += ["", *_work(name, one)]
    return "\n".join(lines) + "\n"


def _ways_text() -> Iterator[str]:
    yield "Loops by hand and nnterp's traces run the model twice a point. A session reads all sources in one trace. Of this package, *no"
    yield "rewrites* are the plan's own passes, *with its checks* what `run` does by default: rows once more, alone; what a model's first use"
    yield "is checked with is not counted. The other tools run in environments of their own, each against the plain forwards of `transformers`"
    yield "there."


def _work(name: str, one: Mapping[str, Any]) -> Iterator[str]:
    shortest, longest = one["lengths"]
    tokens = f"{longest}" if shortest == longest else f"{shortest}–{longest}"
    first, last = one["differs_at"]
    where = f"{first}" if first == last else f"{first}–{last}"
    yield f"## ({name}) {WORKS[name]}"
    yield ""
    yield f"{one['n_points']} point{'' if one['n_points'] == 1 else 's'}, {one['n_rows']} rows of {tokens} tokens, patched at {one['patched_at']}; base and"
    yield f"counterfactual differ at token {where} (from 0). 1.00 is {NOTES['single' if one['n_bare'] == 2 and name == 'd' else 'bare']}:"
    yield f"{one['n_bare']} × {one['forward_seconds']:.2f} s."
    yield ""
    yield "| way | CPU | target | wall | memory, MiB | difference | measured on |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for way in one["ways"]:
        yield _row(way, one["n_points"])
    yield ""
    yield from _schedule(one)


def _row(way: Mapping[str, Any], n_points: int) -> str:
    if way["error"] is not None:
        return f"| {way['name']} | can't: {way['error'].replace('|', '¦')} | | | | | |"
    cells = [
        way["name"],
        f"{way['cpu']:.2f}" if way["cpu"] >= 0.995 else f"{way['cpu']:.3f}",
        "" if way["target"] is None else f"≤ {way['target']:.2f}",
        f"{way['wall']:.2f}",
        "–" if way["peak_bytes"] is None else f"{way['peak_bytes'] / 2**20:.0f}",
        {None: "", 0.0: "0"}.get(way["difference"]) if way["difference"] in (None, 0.0) else f"{way['difference']:.1e}",
        way["measured_on"],
    ]
    return f"| {' | '.join(map(str, cells))} |"


def _schedule(one: Mapping[str, Any]) -> Iterator[str]:
    schedule = one["schedule"]
    before, after = schedule["before"], schedule["after"]
    yield f"This package's schedule: passes {before['passes']:,} → {after['passes']:,}, layer·tokens, padding counted, {before['layer_tokens']:,} →"
    yield f"{after['layer_tokens']:,}, positions of logits {before['head_positions']:,} → {after['head_positions']:,}. Plain forwards have"
    yield f"{schedule['bare']['layer_tokens']:,} layer·tokens and {schedule['bare']['head_positions']:,} positions of logits: predicted ratio"
    yield f"**{schedule['predicted']:.3f}** by layer·tokens alone, {schedule['predicted_with_head']:.3f} with the unembedding weighed in; measured"
    yield f"**{schedule['measured']:.3f}**, {schedule['measured'] / schedule['predicted']:.2f} × the first. From the document to the schedule it is"
    yield f"{one['compile_seconds']:.2f} s of CPU, not counted above."
