"""The page of speed as Markdown, made of what the benchmarks measured and wrote down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
WORKS = {
    "a": "all layers at 2 positions",
    "a2": "all layers × 16 positions",
    "b": "all layers, 256-token prompts, near the end",
    "c": "every head of a layer",
    "d": "one patched pass (of its 2 plain ones)",
}
WAYS = {
    "hooks by hand": "hooks by hand",
    "nnterp, a session with the source once": "nnterp, source once",
    "pyvene * source once": "pyvene, source once",
    "transformer-lens * source once": "TransformerLens, source once",
    "this package": "causalab-mini",
    "this package, with its checks": "with its checks",
}

INTRODUCTION = """# How fast

Generated from `benchmarks/results` (`make docs`); `make bench` measures anew. Every table below is a digest of a longer one, which says how
it was measured and on what.

A document says what is asked, not how often the model runs: equal forwards run once, patched ones begin at the layer and the token
that they write, and logits are computed where they are read. [What is run](schedule.md) has every rewrite with where it is exact. Each tool runs
the same rows, positions and token ids in an environment of its own, against the plain forwards of transformers there.
"""
OTHERS = """## Other tables

- [Every example, with and without rewrites](../benchmarks/results/examples.md): passes, layers times tokens, and time.
- [Recording, and asking probes, while a model generates](../benchmarks/results/observing.md), beside transformers' `generate`.
- [Start-up](../benchmarks/results/startup.md): what a verb costs before it does anything.
- `benchmarks/gpu.sh` measures patching on a GPU; what this page has is one thread of a CPU.
"""


def speed_page() -> str:
    """Returns the page."""
    return "\n".join([INTRODUCTION, _patching("smollm2"), _patching("random-llama"), _fit("smollm2"), OTHERS])


def _patching(model: str) -> str:
    found = _read(f"patching-{model}")
    lines = [
        f"## Activation patching: {found['title']}\n",
        f"CPU time as a ratio to plain forwards, one a point; below 1, patching everywhere costs less than running the model once a point ([table](../benchmarks/results/patching-{model}.md)).\n",
        f"| work | points | rows | {' | '.join(WAYS.values())} |",
        f"| --- | --- | --- |{' --- |' * len(WAYS)}",
    ]
    for name, work in found["works"].items():
        costs = [_cost(work["ways"], way) for way in WAYS]
        lines.append(f"| {WORKS[name]} | {work['n_points']} | {work['n_rows']} | {' | '.join(costs)} |")
    return "\n".join([*lines, ""])


def _cost(ways: list[dict[str, Any]], wanted: str) -> str:
    """Returns the CPU ratio of a way; a `*` in its name stands for a version."""
    start, star, end = wanted.partition(" * ")
    for way in ways:
        if way["name"] == wanted or (star and way["name"].startswith(start) and way["name"].endswith(f", {end}")):
            cost = "–" if way["cpu"] is None else f"{way['cpu']:.2f}" if way["cpu"] >= 1 else f"{way['cpu']:.3f}"
            return f"**{cost}**" if wanted == "this package" else cost
    return "–"


def _fit(model: str) -> str:
    lines = (RESULTS / f"das-{model}.md").read_text(encoding="utf-8").splitlines()
    table = [line for line in lines if line.startswith("| ")]
    return "\n".join(
        [
            "## A DAS fit: SmolLM2, 8 dimensions at a middle layer\n",
            f"An update of 8 rows ([table](../benchmarks/results/das-{model}.md)); eight fits of a sweep are trained together.\n",
            *table,
            "",
        ]
    )


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found
