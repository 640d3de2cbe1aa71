"""Recording, and asking probes, while a model generates, beside `generate` of transformers: CPU time a generated token.

`python benchmarks/observing.py` writes `benchmarks/results/observing.md` and `.json`. `--quick` takes the bundled model and few tokens. Ways
take turns in one process on one set of weights; a ratio is the median of those of each turn. A way that says other tokens than `generate`, or
records nothing where it was to, ends the run with an error.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}

import torch
from models import MODELS, ROOT, model_folder
from torch import Tensor

from causalab_mini.engine.engines.hooks import HooksEngine
from causalab_mini.plan.spec import Decode, ModelSpec
from causalab_mini.probing.run import Recording, make_request, observe, prompts_of, watch
from causalab_mini.probing.spec import ProbeSpec, parse_dict

RESULTS = ROOT / "benchmarks" / "results"
GENERATE = "generate"
INLINE, ASYNC = "1 inline probe at every token", "8 async probes at every token"
TARGETS = {
    "no point": 1.05,
    "one layer at one token": 1.05,
    "one layer at every token": 1.05,
    "every layer at every token": 1.15,
    INLINE: None,
    ASYNC: 1.10,
}
PROMPTS = (
    "The capital of France is",
    "If this month is March, next month is",
    "Mary and John went to the store, and John gave a drink to",
    "Once upon a time there was a",
    "Water boils at",
    "The three primary colours are red, yellow and",
    "A short list of fruit that grows on trees:",
    "In the year 1969, for the first time, two men",
)


def main() -> None:
    """Measures, checks and writes the page."""
    arguments = parsed()
    torch.set_num_threads(1)
    engine = HooksEngine.load(ModelSpec(key=str(model_folder(arguments.model)), dtype="fp32"), device_map="cpu")
    found = {str(n): measured(engine, PROMPTS[:n], arguments.tokens, arguments.repeats) for n in (1, 8)}
    data = {
        "model": MODELS[arguments.model],
        "n_tokens": arguments.tokens,
        "repeats": arguments.repeats,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in ("torch", "transformers")}},
        "batches": found,
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    name = "observing" if arguments.model == "smollm2" else f"observing-{arguments.model}"
    (arguments.out / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    (arguments.out / f"{name}.md").write_text(page(data), encoding="utf-8")


def specs(n_layers: int, n_features: int) -> dict[str, ProbeSpec]:
    """Returns what is watched, by the name of the way: recorded, or projected on a direction by probes."""

    def spec(layers: list[int], position: str) -> ProbeSpec:
        where = {"layers": layers, "tensor_type": "residual_stream", "position": position}
        point = {"name": "p", **where, "probe_type": "record", "probe_kind": "trajectory"}
        return parse_dict({"version": "1", "extraction_points": [point]})

    def projections(layers: list[int], mode: str) -> ProbeSpec:
        where = {"tensor_type": "residual_stream", "position": "generated[*]", "probe_kind": "trajectory", "execution_mode": mode}
        args = {"direction": [1.0] * n_features, "threshold": 1e9, "action": "abort"}
        points = [
            {"name": f"p{layer}", "layers": layer, **where, "probe_type": "projection", "probe_args": args}
            for layer in dict.fromkeys(layers)
        ]
        return parse_dict({"version": "1", "extraction_points": points})

    middle = [n_layers // 2]
    return {
        "no point": ProbeSpec(()),
        "one layer at one token": spec(middle, "prompt[-1]"),
        "one layer at every token": spec(middle, "generated[*]"),
        "every layer at every token": spec(list(range(n_layers)), "generated[*]"),
        INLINE: projections(middle, "inline"),
        ASYNC: projections([index * n_layers // 8 for index in range(8)], "async"),
    }


def measured(engine: HooksEngine, texts: tuple[str, ...], n_tokens: int, n_repeats: int) -> dict[str, Any]:
    """Returns CPU seconds a token of every way, and their ratios to `generate`.

    What asks for every token has the last one run once more, which `generate` does not: the time is that of all forwards.
    """
    prompts = prompts_of(texts, engine.tokenizer, "prompts")
    decode = Decode(max_new_tokens=n_tokens, ignore_eos=True)
    module: Any = engine.loaded()
    ids, mask = padded([prompt.ids for prompt in prompts])
    stops = list(engine.stop_tokens())

    def generate() -> list[tuple[int, ...]]:
        found = module.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=n_tokens,
            do_sample=False,
            eos_token_id=None,
            suppress_tokens=stops,
            pad_token_id=0,
        )
        return [tuple(row[ids.shape[1] :].tolist()) for row in found]

    def recording_of(name: str, spec: ProbeSpec) -> Callable[[], list[tuple[int, ...]]]:
        def run() -> list[tuple[int, ...]]:
            request = make_request(watch(spec, engine.facts, engine.tokenizer), prompts, decode)
            recording = observe(engine, request, len(texts))
            check(name, recording, len(texts) * (1 if "one token" in name else n_tokens))
            return [one.ids for one in recording.generated]

        return run

    ways = {
        GENERATE: generate,
        **{name: recording_of(name, spec) for name, spec in specs(engine.facts.n_layers, engine.facts.hidden).items()},
    }
    said = {name: way() for name, way in ways.items()}  # warms up too
    if wrong := [name for name, rows in said.items() if rows != said[GENERATE]]:
        raise SystemExit(f"other tokens than `generate` has: {', '.join(wrong)}")
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(n_repeats):
        order = list(ways)
        for name in order[repeat % len(order) :] + order[: repeat % len(order)]:
            start = time.process_time()
            ways[name]()
            seconds[name].append((time.process_time() - start) / n_tokens)
    return {
        name: {
            "cpu_ms_a_step": statistics.median(each) * 1000,
            "ratio": statistics.median(one / plain for one, plain in zip(each, seconds[GENERATE], strict=True)),
            "ratios": [round(one / plain, 4) for one, plain in zip(each, seconds[GENERATE], strict=True)],
        }
        for name, each in seconds.items()
    }


def padded(rows: list[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
    """Returns rows padded on the left, and their mask."""
    n = max(map(len, rows))
    ids = torch.tensor([[0] * (n - len(row)) + list(row) for row in rows])
    mask = torch.tensor([[0] * (n - len(row)) + [1] * len(row) for row in rows])
    return ids, mask


def check(name: str, recording: Recording, n_records: int) -> None:
    """Ends the run where something else was recorded, or judged, than was to be."""
    if probes := recording.request.watched.probes:
        verdicts = [sum(result.point == point and result.value is not None for result in recording.verdicts) for point in probes]
        if recording.failures or set(verdicts) != {n_records} or any(recording.counts(point).n_dropped for point in probes):
            raise SystemExit(f"{name}: expected {n_records} verdicts of every probe, got {verdicts} and {recording.failures[:1]}")
        return
    shapes = {key: tuple(tensor.shape) for key, tensor in recording.tensors.items()}
    wrong = [key for key, shape in shapes.items() if shape[0] != n_records]
    if wrong or bool(shapes) == (name == "no point") or any(not bool(tensor.any()) for tensor in recording.tensors.values()):
        raise SystemExit(f"{name}: expected {n_records} records at every place, got {shapes}")


def page(data: dict[str, Any]) -> str:
    """Returns the table."""
    lines = [
        "# Recording, and asking probes, while a model generates",
        "",
        f"{data['model']}, fp32, one thread of a CPU, {data['n_tokens']} tokens a row, greedy; torch {data['versions']['torch']}, "
        f"transformers {data['versions']['transformers']}. CPU time a step, and its ratio to `generate` of transformers on the same weights "
        f"(median of {data['repeats']} turns, smallest to largest in brackets). All ways say the same tokens. Probes project the stream on a direction; the time is that of all threads. Written by `benchmarks/observing.py`.",
        "",
        "| residual stream | batch 1: ms | ratio | batch 8: ms | ratio | aim |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in data["batches"]["1"]:
        cells = []
        for n in ("1", "8"):
            one = data["batches"][n][name]
            cells += [f"{one['cpu_ms_a_step']:.1f}", f"**{one['ratio']:.3f}** ({min(one['ratios']):.2f} … {max(one['ratios']):.2f})"]
        aim = "" if TARGETS.get(name) is None else f"{TARGETS[name]:.2f}"
        lines.append(f"| {name if name != GENERATE else '`generate`'} | {' | '.join(cells)} | {aim} |")
    return "\n".join(lines) + "\n"


def parsed() -> argparse.Namespace:
    """Returns the arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(MODELS), default="smollm2")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.model, arguments.tokens, arguments.repeats = "bundled", 8, 2
    return arguments


if __name__ == "__main__":
    main()
