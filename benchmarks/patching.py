"""A layer sweep at two positions: bare forwards, a hand-written hook loop, and this package with and without its rewrites.

`python benchmarks/patching.py [--model KEY] [--every N] [--rows N]` writes `benchmarks/results/patching-MODEL.md` and `.json`. CPU seconds in
one process on one thread, as ratios to bare forwards of the points (one plain forward a point); every number is compared.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from causalab_mini.data.tasks import successor
from causalab_mini.engine.batches import make_batch
from causalab_mini.engine.engines.nnterp import NNterpEngine
from causalab_mini.plan import build_request, load_raw
from causalab_mini.schedule.physical import plain_schedule
from causalab_mini.schedule.rewrites import REWRITES, rewrite
from causalab_mini.schedule.schedule import build_schedule

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def document(key: str, layers: list[int], folder: Path, n_rows: int) -> dict[str, Any]:
    """Returns the sweep as a document, with its table written into a folder."""
    rows = successor.make_pairs(n=n_rows, seed=0, families=("month",), fillers=True)
    for row in rows:
        row["input"], row["counterfactual_inputs"] = f"We know this. {row['input']}", [f"We know this. {row['counterfactual_inputs'][0]}"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.json").write_text(json.dumps(rows))

    def swap(pos: int) -> dict[str, Any]:
        return {
            "reads": {
                "source": {"site": "stream", "pos": pos, "input": "counterfactual"},
                "prediction": {"site": {"component": "logits"}, "pos": -1, "model": "patched"},
            },
            "writes": {"patch": {"site": "stream", "pos": pos, "mechanism": "swap", "operand": "source"}},
            "models": {"patched": {"input": "base", "writes": ["patch"]}},
        }

    return {
        "model": {"key": key, "dtype": "fp32"},
        "roles": {"base": {"field": "input"}, "counterfactual": {"field": "counterfactual_inputs[0]"}},
        "sites": {"stream": {"component": "block_output", "layers": {"sweep": layers, "as": "layer"}}},
        "interventions": {"last": swap(-1), "fifth": swap(-5)},
        "steps": {
            "patch": {
                "kind": "observe",
                "rows": {"base": "rows", "counterfactual": "rows"},
                "interventions": {"sweep": ["last", "fifth"], "as": "place"},
                "outputs": {"prediction": "prediction"},
            }
        },
    }


def hook_loop(engine: NNterpEngine, batches: dict[str, Any], layers: list[int]) -> list[torch.Tensor]:
    """Returns the last token's logits of every point, as a loop by hand makes them: one source and one patched forward a point."""
    module, found = engine.loaded(), []
    path = engine.facts.family.module("block_output")
    for layer in layers:
        for pos in (-1, -5):
            block, kept = module.get_submodule(path.format(layer=layer)), {}

            def keep(module: Any, args: Any, output: Any, kept: dict[str, Any] = kept, pos: int = pos) -> None:
                kept["value"] = (output[0] if isinstance(output, tuple) else output)[:, pos].clone()

            def put(module: Any, args: Any, output: Any, kept: dict[str, Any] = kept, pos: int = pos) -> Any:
                stream = (output[0] if isinstance(output, tuple) else output).clone()
                stream[:, pos] = kept["value"]
                return (stream, *output[1:]) if isinstance(output, tuple) else stream

            handle = block.register_forward_hook(keep)
            module(**engine.inputs(batches["counterfactual"]))
            handle.remove()
            handle = block.register_forward_hook(put)
            found.append(module(**engine.inputs(batches["base"])).logits[:, -1].clone())
            handle.remove()
    return found


def main() -> None:
    """Measures and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="bundled:successor-llama")
    parser.add_argument("--every", type=int, default=1, help="every n-th layer")
    parser.add_argument("--rows", type=int, default=32)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = ROOT / "out" / "bench"
    engine = NNterpEngine.load(load_raw(document(arguments.model, [0], folder, arguments.rows)).model, device_map="cpu")
    layers = list(range(0, engine.facts.n_layers, arguments.every))
    request = build_request(document(arguments.model, layers, folder, arguments.rows), folder, engine)
    schedules = [build_schedule(request, point) for point in request.points]
    engine.load_weights()
    prompts = {role: request.prompts["rows", field] for role, field in (("base", "input"), ("counterfactual", "counterfactual_inputs[0]"))}
    batches = {role: make_batch(range(arguments.rows), found, None, 0) for role, found in prompts.items()}
    n_points = len(request.points)
    seconds: dict[str, float] = {}

    def timed(name: str, run: Any) -> Any:
        with torch.inference_mode():
            started = time.process_time()
            result = run()
            seconds[name] = time.process_time() - started
        return result

    timed("warm-up", lambda: engine.loaded()(**engine.inputs(batches["base"])))
    timed("bare forwards", lambda: [engine.loaded()(**engine.inputs(batches["base"])) and None for _ in range(n_points)])
    by_hand = timed("hand-written hooks", lambda: hook_loop(engine, batches, layers))
    runs = {
        "the plan's own passes": timed(
            "the plan's own passes", lambda: engine.execute(request, schedules=schedules, check="off", rewrites=())
        ),
        "with rewrites": timed("with rewrites", lambda: engine.execute(request, schedules=schedules, check="off", rewrites=REWRITES)),
    }
    difference = {
        name: max(
            float((point.step("patch").results["outputs"]["prediction"].value.data[0] - logits).abs().max())
            for point, logits in zip(run.points, by_hand, strict=True)
        )
        for name, run in runs.items()
    }
    physical = rewrite(plain_schedule(request, schedules))
    before, after = physical.savings[0].before, physical.cost
    lines = [
        "# A layer sweep at two positions",
        "",
        f"`{arguments.model.rpartition('/')[2]}`, {len(layers)} of {engine.facts.n_layers} layers × 2 positions = {n_points} points, "
        f"{arguments.rows} rows of up to {batches['base'].input_ids.shape[1]} tokens, fp32, one thread; written by `python benchmarks/patching.py`.",
        "",
        "| way | CPU time, ratio to bare forwards | largest difference of logits to the hooks |",
        "| --- | --- | --- |",
        f"| bare forwards, one a point | 1.00 ({seconds['bare forwards']:.1f} s) | |",
        f"| hand-written hooks | {seconds['hand-written hooks'] / seconds['bare forwards']:.2f} | 0 |",
        *(f"| {name} | {seconds[name] / seconds['bare forwards']:.2f} | {difference[name]:.1e} |" for name in runs),
        "",
        f"Passes {before.passes} → {after.passes}, layer·tokens {before.layer_tokens:,} → {after.layer_tokens:,}, "
        f"positions of logits {before.head_positions:,} → {after.head_positions:,}.",
    ]
    RESULTS.mkdir(exist_ok=True)
    name = arguments.model.rpartition("/")[2].removeprefix("bundled:").removesuffix(".gguf").lower()
    (RESULTS / f"patching-{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (RESULTS / f"patching-{name}.json").write_text(
        json.dumps({"seconds": seconds, "difference": difference}, indent=1) + "\n", encoding="utf-8"
    )
    print("\n".join(lines))


if __name__ == "__main__":
    main()
