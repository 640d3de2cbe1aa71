"""What a GPU is asked, in a few minutes: are the numbers the same there, in every dtype and over several cards, does it fit, and what does it save.

`benchmarks/gpu.sh` runs it and writes `benchmarks/results/gpu.md`. A random Llama with the bundled tokenizer, made on the spot: no hub, no download.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from causalab_mini.data.tasks import successor
from causalab_mini.engine.engines.nnterp import NNterpEngine
from causalab_mini.model.source import BUNDLED
from causalab_mini.plan import build_request, load_raw
from causalab_mini.schedule.located import build_schedule
from causalab_mini.schedule.rewrites import REWRITES, run_directly

RESULTS = Path(__file__).resolve().parent / "results"
SIZES = {
    "small": {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 12, "num_attention_heads": 8, "num_key_value_heads": 4},
    "large": {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8},
}


def make_model(folder: Path, size: str) -> Path:
    """Writes a Llama with random weights into a folder, in fp32."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(BUNDLED / "successor-llama")
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=len(tokenizer), **SIZES[size], bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def document(model: Path, dtype: str, n_layers: int) -> dict[str, Any]:
    """Returns a sweep over all layers and two positions."""
    place = {"site": "stream", "pos": {"sweep": [-1, -4], "as": "pos"}}
    return {
        "model": {"key": str(model), "dtype": dtype},
        "roles": {"base": {"field": "input"}, "counterfactual": {"field": "counterfactual_inputs[0]"}},
        "sites": {"stream": {"component": "block_output", "layers": {"sweep": list(range(n_layers)), "as": "layer"}}},
        "interventions": {
            "patch": {
                "reads": {
                    "source": {**place, "input": "counterfactual"},
                    "prediction": {"site": {"component": "logits"}, "pos": -1, "model": "patched"},
                },
                "writes": {"patch": {**place, "mechanism": "swap", "operand": "source"}},
                "models": {"patched": {"input": "base", "writes": ["patch"]}},
            }
        },
        "steps": {
            "patch": {
                "kind": "observe",
                "rows": {"base": "rows", "counterfactual": "rows"},
                "interventions": "patch",
                "outputs": {"prediction": "prediction"},
            }
        },
    }


def opened(model: Path, dtype: str, folder: Path, n_rows: int, device_map: str) -> tuple[NNterpEngine, Any, list[Any]]:
    """Returns the engine, the request and the schedules of the sweep."""
    rows = successor.make_pairs(n=n_rows, seed=0, families=("month",), fillers=True)
    for row in rows:
        row["input"], row["counterfactual_inputs"] = f"We know this. {row['input']}", [f"We know this. {row['counterfactual_inputs'][0]}"]
    (folder / "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    engine = NNterpEngine.load(load_raw(document(model, dtype, 1)).model, device_map=device_map)
    request = build_request(document(model, dtype, engine.facts.n_layers), folder, engine)
    schedules = [build_schedule(request, point) for point in request.points]
    engine.load_weights()
    return engine, request, schedules


def seconds(run: Callable[[], Any], repeats: int = 3 if torch.cuda.is_available() else 1) -> float:
    """Returns the median of some runs on the clock, once everything on the device is done."""
    times = []
    for _ in range(repeats):
        wait()
        started = time.perf_counter()
        run()
        wait()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def wait() -> None:
    """Waits for the device."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def predictions(run: Any) -> torch.Tensor:
    """Returns the logits of every point, (point, row, vocabulary)."""
    return torch.stack([point.step("patch").results["outputs"]["prediction"].value.data[0].float().cpu() for point in run.points])


def judged(model: Path, dtype: str, folder: Path, n_rows: int, device_map: str) -> dict[str, Any]:
    """Returns what one dtype on one placement costs and how far its numbers are from whole passes."""
    engine, request, schedules = opened(model, dtype, folder, n_rows, device_map)
    module = engine.loaded()
    plain = engine.execute(request, schedules=schedules, check="off", rewrites=())
    checked = engine.execute(request, schedules=schedules, check="sample")
    expected, found = predictions(plain), predictions(checked)
    devices = sorted({str(parameter.device) for parameter in module.parameters()})

    def bare() -> None:
        from causalab_mini.engine.batches import make_batch

        batch = make_batch(range(n_rows), next(iter(request.prompts.values())), None, 0)
        with torch.inference_mode():
            for _ in request.points:
                module(**engine.inputs(batch))

    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    ways = {"bare forwards": seconds(bare)}
    traced = tuple(one for one in REWRITES if one is not run_directly)
    for name, rewrites in (("no rewrites", ()), ("all", REWRITES), ("all, in traces", traced)):
        ways[name] = seconds(lambda rewrites=rewrites: engine.execute(request, schedules=schedules, check="off", rewrites=rewrites))
    return {
        "dtype": dtype,
        "devices": devices,
        "n_points": len(request.points),
        "ratios": {name: value / ways["bare forwards"] for name, value in ways.items()},
        "bare_seconds": ways["bare forwards"],
        "difference": float((expected - found).abs().max() / expected.std()),
        "checks": sorted({check.status for point in checked.points for check in point.step("patch").results["checks"]}),
        "schedule": checked.record["schedule"],
        "peak_gib": torch.cuda.max_memory_allocated() / 1024**3 if torch.cuda.is_available() else None,
    }


def fitted(model: Path, dtype: str, folder: Path, n_rows: int, device_map: str) -> dict[str, Any]:
    """Returns what an update of a rotation costs, with what stays the same run once and without, and how far the losses differ."""
    raw = document(model, dtype, 1)
    layer = {"component": "block_output", "layers": 6}
    place = {"site": layer, "pos": -4, "featurizer": "rotation"}
    prediction = {"site": {"component": "logits"}, "pos": -1, "model": "patched"}
    target = {"site": {"component": "logits"}, "pos": -1, "input": "counterfactual"}
    raw["featurizers"] = {"rotation": {"kind": "subspace", "k": 16}}
    raw["interventions"] = {
        "das": {
            "reads": {"source": {**place, "input": "counterfactual"}, "prediction": prediction, "target": target},
            "writes": {"patch": {**place, "mechanism": "swap", "operand": "source"}},
            "models": {"patched": {"input": "base", "writes": ["patch"]}},
            "metrics": {"far": {"kind": "kl", "of": "prediction", "against": "target"}},
        }
    }
    both = {role: f"rows#{split}" for role, split in (("base", "train"), ("counterfactual", "train"))}
    raw["steps"] = {
        "train": {
            "kind": "fit",
            "rows": both,
            "interventions": "das",
            "params": ["rotation"],
            "objective": [[1, "far"]],
            "epochs": 5,
            "pairs": 16,
            "optimizer": {"name": "adam", "lr": 0.01},
            "eval": {"rows": dict.fromkeys(both, "rows#test")},
        }
    }
    engine = NNterpEngine.load(load_raw(raw).model, device_map=device_map)
    request = build_request(raw, folder, engine)
    engine.load_weights()
    curves, costs = [], []
    for rewrites in ((), REWRITES):
        costs.append(seconds(lambda rewrites=rewrites: engine.execute(request, check="off", rewrites=rewrites)))
        result = engine.execute(request, check="off", rewrites=rewrites).step("train").results
        curves.append([line["objective"] for line in result["train/loss"]])
    worst = max(abs(a - b) / abs(b) for a, b in zip(*curves, strict=True))
    return {"dtype": dtype, "device_map": device_map, "n_updates": len(curves[0]), "seconds": costs, "difference": worst}


def out_of_memory(model: Path, folder: Path) -> dict[str, Any]:
    """Returns what happens on a card that is nearly full: batches are halved, and the numbers stay."""
    engine, request, schedules = opened(model, "fp32", folder, 256, "auto")
    expected = predictions(engine.execute(request, schedules=schedules, check="off"))
    free, _ = torch.cuda.mem_get_info()
    hold = torch.empty(max(0, free - 600 * 1024**2), dtype=torch.uint8, device="cuda")
    run = engine.execute(request, schedules=schedules, check="off", rewrites=())
    del hold
    difference = float((predictions(run) - expected).abs().max() / expected.std())
    return {"difference": difference, **{key: run.record["schedule"][key] for key in ("rows_a_batch", "out_of_memory")}}


def main() -> None:
    """Measures, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="large" if torch.cuda.is_available() else "small")
    parser.add_argument("--rows", type=int, default=64 if torch.cuda.is_available() else 8)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU: a rehearsal on the CPU"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model = make_model(folder / "model", arguments.size)
        placements = ["cuda:0", *(["auto"] if torch.cuda.device_count() > 1 else [])] if torch.cuda.is_available() else ["cpu"]
        found, fits = [], []
        for device_map in placements:
            for dtype in ("fp32", "bf16", "fp16") if torch.cuda.is_available() else ("fp32",):
                print(f"{dtype} on {device_map}", file=sys.stderr)
                found.append(judged(model, dtype, folder, arguments.rows, device_map))
                fits.append(fitted(model, dtype, folder, arguments.rows, device_map))
        memory = out_of_memory(model, folder) if torch.cuda.is_available() else None
    lines = [
        "# On a GPU",
        "",
        f"{name}; torch {torch.__version__}; a random Llama ({arguments.size}: {SIZES[arguments.size]}), {arguments.rows} rows, all layers × 2 positions.",
        "Ratios of wall time to plain forwards, one a point; medians of 3; the difference is that of all logits to whole passes, as a share of their",
        "standard deviation. Written by `benchmarks/gpu.sh`.",
        "",
        "| dtype | devices | no rewrites | all | all, in traces | difference | checks | level | peak, GiB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in found:
        ratios = " | ".join(f"{one['ratios'][way]:.3f}" for way in ("no rewrites", "all", "all, in traces"))
        peak = "–" if one["peak_gib"] is None else f"{one['peak_gib']:.2f}"
        checks, level = ", ".join(one["checks"]), one["schedule"]["level"]
        lines.append(f"| {one['dtype']} | {', '.join(one['devices'])} | {ratios} | {one['difference']:.1e} | {checks} | {level} | {peak} |")
    lines += ["", "A rotation of 16 dimensions at block 6, the whole fit with its evaluations:", ""]
    lines += ["| dtype | devices | updates | seconds, whole passes | seconds | difference |", "| --- | --- | --- | --- | --- | --- |"]
    for fit in fits:
        whole, own = fit["seconds"]
        lines.append(f"| {fit['dtype']} | {fit['device_map']} | {fit['n_updates']} | {whole:.2f} | {own:.2f} | {fit['difference']:.1e} |")
    if memory is not None:
        lines += ["", f"With 600 MiB left free: batches of {memory['rows_a_batch']} rows, out of memory {memory['out_of_memory']} times,"]
        lines += [f"largest difference {memory['difference']:.1e}."]
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "gpu.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (arguments.out / "gpu.json").write_text(
        json.dumps({"device": name, "runs": found, "fits": fits, "memory": memory}, indent=1) + "\n", encoding="utf-8"
    )
    print("\n".join(lines))


if __name__ == "__main__":
    main()
