"""Activation patching side by side: plain forwards, hooks by hand, nnterp, this package, pyvene and TransformerLens.

`python benchmarks/patching.py` writes `benchmarks/results/patching-MODEL.md` and `.json`. What is already there of other works is kept, so
that `--work` can measure one anew. `--quick` takes the bundled model, without peers.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}

import torch
from environments import PEERS, run_peer
from measure import Measured, measure, median
from models import MODELS, ROOT, bench_cache, model_folder
from report import markdown
from torch import Tensor
from ways import BARE, HOOKS, OURS, Local, Models
from work import WORKS, Work, make_work, sampled

from causalab_mini.schedule.printed import savings

RESULTS = ROOT / "benchmarks" / "results"
N_SAMPLED = {"a": 1, "a2": 4, "b": 1, "c": 1, "d": 1}
"""How many points stand for all in each repeat."""
TARGETS = {"smollm2": {"a": 0.25, "a2": 0.12, "b": 0.08, "c": 0.40, "d": 1.10}}
PLACES = {
    "a": "the entity and the last token",
    "a2": "every token",
    "b": "the token that four others follow",
    "c": "the last token",
    "d": "the entity",
}


def main() -> None:
    """Measures work by work, and writes the page anew after each."""
    arguments = parsed()
    torch.set_num_threads(1)
    models = Models(model_folder(arguments.model))
    config = models.plain.config
    file = arguments.out / f"patching-{arguments.model}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    works = json.loads(file.read_text(encoding="utf-8"))["works"] if file.is_file() else {}
    names = ("torch", "transformers", "nnterp", "nnsight")
    for name in arguments.work:
        work = make_work(name, models.engine.tokenizer, config.num_hidden_layers, config.num_attention_heads)
        print(f"({name}) {WORKS[name]}: {len(work.points)} points", file=sys.stderr)
        works[name] = measured_work(work, models, arguments)
        found = {
            "model": arguments.model,
            "title": MODELS[arguments.model],
            "command": f"python benchmarks/patching.py --model {arguments.model}",
            "environment": ", ".join([*(f"{name} {version(name)}" for name in names), f"one thread of an {platform.machine()} CPU"]),
            "works": {name: works[name] for name in WORKS if name in works},
        }
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        file.with_suffix(".md").write_text(markdown(found), encoding="utf-8")
    print(file.with_suffix(".md").read_text(encoding="utf-8"))


def parsed() -> argparse.Namespace:
    """Returns the command line, with its defaults filled in."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="smollm2")
    parser.add_argument("--work", type=lambda text: text.split(","), default=list(WORKS), help="of a,a2,b,c,d; all by default")
    parser.add_argument("--peers", type=lambda text: [one for one in text.split(",") if one], default=list(PEERS), help="'' for none")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true", help="the bundled model, one repeat, no peers")
    arguments = parser.parse_args()
    for given, known in ((arguments.work, WORKS), (arguments.peers, PEERS)):
        if not set(given) <= set(known):
            parser.error(f"expected some of {','.join(known)}, got {','.join(given)}")
    if arguments.quick:
        arguments.model, arguments.peers, arguments.repeats = "bundled", [], 1
    return arguments


def measured_work(work: Work, models: Models, arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns everything that is said of one work, as data."""
    n_points = len(work.points)
    n_sampled = N_SAMPLED[work.name] * (3 if arguments.model == "bundled" else 1)
    sample = sampled(n_points, n_sampled * arguments.repeats)
    folder = bench_cache() / "rows" / f"{arguments.model}-{work.name}"
    folder.mkdir(parents=True, exist_ok=True)
    local = Local(models, work, folder, sample)
    local.warm_up()
    here = measure(local.ways(), n_points, sample, arguments.repeats, sample)
    hooks = here[HOOKS].logits
    target = TARGETS.get(arguments.model, {}).get(work.name)
    ways = [described(name, one, here[BARE], work, hooks, local.ways()[name].does_all) for name, one in here.items()]
    for way in ways:
        way["target"] = target if way["name"] == OURS else None
    for peer in arguments.peers:
        ways += peer_ways(peer, work, models.folder, sample, arguments.repeats, hooks)
    measured = next(way["cpu"] for way in ways if way["name"] == OURS)
    bare = here[BARE].costs
    return {
        "n_points": n_points,
        "n_rows": len(work.rows),
        "lengths": work.lengths,
        "differs_at": work.differs_at,
        "patched_at": PLACES[work.name],
        "n_bare": work.n_bare,
        "forward_seconds": median([cost.of(1)[0] for cost in bare]),
        "sample": sample,
        "n_repeats": arguments.repeats,
        "compile_seconds": local.compile_seconds,
        "schedule": schedule_data(local, models) | {"measured": measured},
        "ways": ways,
    }


def described(name: str, one: Measured, bare: Measured, work: Work, hooks: Mapping[int, Tensor], does_all: bool = False) -> dict[str, Any]:
    """Returns what is said of one way: its ratios to the plain forwards of the same repeats, memory, and differences."""
    said: dict[str, Any] = {"name": name, "error": one.error, "target": None, "costs": [asdict(cost) for cost in one.costs]}
    if one.error is not None or not one.costs:
        return said | {"error": one.error or "not measured"}
    n_points, is_plain = len(work.points), not one.logits
    ratios = []
    for cost, plain in zip(one.costs, bare.costs, strict=False):
        of, unit = cost.of(work.n_bare if is_plain else n_points), plain.of(work.n_bare)
        ratios.append((of[0] / unit[0], of[1] / unit[1]))
    peaks = [cost.peak_bytes for cost in one.costs if cost.peak_bytes is not None]
    differences = [float((logits - hooks[point]).abs().max()) for point, logits in one.logits.items()]
    if is_plain:
        measured_on = f"{sum(cost.n_points for cost in one.costs)} forwards"
    elif does_all or n_points == 1:
        measured_on = f"all points, {len(one.costs)} run{'' if len(one.costs) == 1 else 's'}"
    else:
        measured_on = f"{len(one.logits)} of {n_points} points"
    return said | {
        "cpu": median([cpu for cpu, _ in ratios]),
        "wall": median([wall for _, wall in ratios]),
        "peak_bytes": median(peaks) if peaks else None,
        "difference": max(differences, default=None),
        "measured_on": measured_on,
    }


def peer_ways(
    peer: str, work: Work, model: Path, sample: Sequence[int], n_repeats: int, hooks: Mapping[int, Tensor]
) -> list[dict[str, Any]]:
    """Returns what is said of a peer's ways, or of why it has none."""
    print(f"    {peer}", file=sys.stderr)
    found, logits = run_peer(peer, work, model, sample, n_repeats)
    label = f"{peer} {found['versions'].get(peer, '')}".strip()
    if "error" in found:
        return [{"name": label, "error": found["error"], "target": None, "costs": []}]
    measured = {name: Measured.from_data(way, logits.get(name, {})) for name, way in found["ways"].items()}
    bare = measured.pop(BARE)
    versions = {"versions": found["versions"], "forward_seconds": median([cost.of(1)[0] for cost in bare.costs])}
    return [described(f"{label}, {name}", one, bare, work, hooks) | versions for name, one in measured.items()]


def schedule_data(local: Local, models: Models) -> dict[str, Any]:
    """Returns what this package's schedule costs before and after its rewrites, beside the plain forwards, and the ratio that predicts.

    Padding is counted on all sides. The second prediction weighs layers and unembedding by how many weights each multiplies a position by.
    """
    physical, work = local.physical, local.work
    after = physical.cost
    before = physical.plain.cost
    n_tokens, n_layers = sum(map(len, work.base.ids)), models.plain.config.num_hidden_layers
    bare = {"passes": work.n_bare, "layer_tokens": work.n_bare * n_tokens * n_layers, "head_positions": work.n_bare * n_tokens}
    layer, head = models.weights()

    def weighed(cost: Mapping[str, int]) -> int:
        return cost["layer_tokens"] * layer + cost["head_positions"] * head

    return {
        "bare": bare,
        "before": asdict(before),
        "after": asdict(after),
        "predicted": after.layer_tokens / bare["layer_tokens"],
        "predicted_with_head": weighed(asdict(after)) / weighed(bare),
        "rewrites": [{"rewrite": one.rewrite, "after": asdict(one.after), "note": one.note} for one in savings(physical)],
    }


if __name__ == "__main__":
    main()
