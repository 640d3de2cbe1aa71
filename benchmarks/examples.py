"""Every example document with and without rewrites: is any slower with them?

`python benchmarks/examples.py [--repeats N]` writes `benchmarks/results/examples.md` and `.json`: CPU seconds of one process on one thread, medians of
alternating runs, the weights loaded; with what the schedule counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from causalab_mini.experiment import load
from causalab_mini.schedule.rewrites import REWRITES
from causalab_mini.shipped import example_documents

RESULTS = Path(__file__).resolve().parent / "results"


def main() -> None:
    """Measures and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[str, object]] = {}
    for name, path in example_documents().items():
        if name.startswith(("v2/", "smollm2/")):
            continue
        request, schedules, engine = load(path).compile()
        seconds: dict[str, list[float]] = {"without": [], "with": []}
        cost = engine.execute(request, schedules=schedules, check="off").record["schedule"]
        engine.execute(request, schedules=schedules, check="off", rewrites=())
        for _ in range(arguments.repeats):
            for way, rewrites in (("without", ()), ("with", REWRITES)):
                started = time.process_time()
                engine.execute(request, schedules=schedules, check="off", rewrites=rewrites)
                seconds[way].append(time.process_time() - started)
        medians = {way: statistics.median(times) for way, times in seconds.items()}
        found[name] = {**medians, "passes": cost["passes"], "layer_tokens": cost["layer_tokens"]}
    lines = [
        "# Every example, with and without rewrites",
        "",
        f"CPU seconds on one thread, medians of {arguments.repeats} alternating runs; the bundled models; without the rows check. Written by",
        "`python benchmarks/examples.py`. The time with rewrites includes making the schedule.",
        "",
        "| document | without | with | ratio | passes | layers × tokens |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, one in found.items():
        passes, tokens = one["passes"], one["layer_tokens"]
        assert isinstance(passes, list)
        assert isinstance(tokens, list)
        ratio = float(str(one["with"])) / float(str(one["without"]))
        change = f"{passes[0]} → {passes[1]} | {tokens[0]:,} → {tokens[1]:,}"
        lines.append(f"| {name} | {one['without']:.3f} s | {one['with']:.3f} s | {ratio:.2f} | {change} |")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "examples.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (RESULTS / "examples.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
