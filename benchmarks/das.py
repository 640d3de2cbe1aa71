"""A DAS fit side by side: hooks by hand, this package and pyvene.

`python benchmarks/das.py` writes `benchmarks/results/das-MODEL.md` and `.json`. `--quick` takes the bundled model and fewer updates. Every
way is given the same rows in the same order and the same start, and one that did not do the fit ends the run with an error. What is already
there of ways that are left out is kept where it is of the same fit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}

import torch
from environments import run_script
from fits import EACH, FitByHand, FitJob, MeasuredFit, measure_fits, ways_by_hand
from models import MODELS, ROOT, model_folder
from our_fits import FitOfOurs, OurBasis, sweep
from safetensors.torch import load_file
from work import ENTITY, side

from causalab_mini.data.tasks import successor

RESULTS = ROOT / "benchmarks" / "results"
OURS, SAME = "this package", "hooks by hand, source each update, this package's rotation"
N_ROWS = 32
N_FITS = 8
"""That are trained together."""
LENGTHS = (10, 20)
"""Least and most tokens of a row."""
TOLERANCE = 1e-3
"""How far a way's first loss, which every way computes at the same start, may lie from the one by hand."""
CHANGE = 1e-4
"""What a loss moves by at least where something was done."""


@dataclass(frozen=True, slots=True)
class DasWork:
    """What is fitted.

    Attributes:
        job: for those who write loops: token ids, columns, minibatches, start, lr.
        rows: of the table, as documents have them; `job.minibatches` are indices into it.
        place: the exchanged token as a document's position.
        label: the rows' column that holds the counterfactual's answer, of which the first token (`job.labels`) is asked for.
    """

    job: FitJob
    rows: list[dict[str, Any]]
    place: Mapping[str, Any]
    label: str


def main() -> None:
    """Measures, checks and writes the page."""
    arguments = parsed()
    torch.set_num_threads(1)
    folder = model_folder(arguments.model)
    work = make_work(folder, arguments)
    model = work.job.load_model()
    ways = ways_by_hand(work.job, model)
    ways[SAME] = FitByHand(work.job, model, make_basis=lambda job: OurBasis(job.start))
    ways[OURS] = FitOfOurs(work.job, work.rows, work.place)
    measured = measure_fits(ways, arguments.repeats)
    judge = Judge(work.job, model)
    yardstick = measured[EACH]
    curves = {OURS: measured[SAME].losses, SAME: measured[SAME].losses}
    described = [judge.described(name, one, yardstick, curves.get(name, yardstick.losses)) for name, one in measured.items()]
    if arguments.peers:
        described += pyvene_ways(work.job, judge, yardstick.losses, arguments)
    names = ("torch", "transformers")
    found = {
        "model": arguments.model,
        "title": MODELS[arguments.model],
        "command": "python benchmarks/das.py " + ("--quick" if arguments.quick else f"--model {arguments.model}"),
        "environment": ", ".join([*(f"{name} {version(name)}" for name in names), f"one thread of an {platform.machine()} CPU"]),
        "layer": work.job.layer,
        "k": work.job.k,
        "n_rows": len(work.rows),
        "lengths": [min(map(sum, work.job.base["attention_mask"])), max(map(sum, work.job.base["attention_mask"]))],
        "n_rows_an_update": len(work.job.minibatches[0]),
        "n_updates": len(work.job.minibatches) - 1,
        "lr": work.job.lr,
        "n_repeats": arguments.repeats,
        "losses_without": judge.without,
        "sweep": swept(work, arguments),
        "ways": described,
    }
    file = arguments.out / f"das-{arguments.model}.json"
    if file.is_file():
        found["ways"] = with_kept(found, json.loads(file.read_text(encoding="utf-8")))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    file.with_suffix(".md").write_text(markdown(found), encoding="utf-8")
    print(file.with_suffix(".md").read_text(encoding="utf-8"))


def swept(work: DasWork, arguments: argparse.Namespace) -> dict[str, Any] | None:
    """Returns what eight fits cost together and one by one: two ranks at each layer of a model with four, else eight layers."""
    if not arguments.sweep:
        return None
    n_layers = work.job.load_model().config.num_hidden_layers
    is_small = n_layers < N_FITS
    layers = range(n_layers) if is_small else [round((n + 0.5) * n_layers / N_FITS) for n in range(N_FITS)]
    ranks = [work.job.k, 2 * work.job.k] if is_small else [work.job.k]
    return sweep(work.job, work.rows, work.place, list(layers), ranks, 5 if is_small else 1)


def with_kept(found: Mapping[str, Any], earlier: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the ways with those that an earlier run of the same fit measured and this one did not."""
    if any(found[name] != earlier[name] for name in found if name not in ("ways", "command", "n_repeats", "sweep")):
        return list(found["ways"])
    ways = {way["name"]: way for way in earlier["ways"]} | {way["name"]: way for way in found["ways"]}
    order = {name: (name.startswith("pyvene"), name != EACH, name) for name in ways}
    return sorted(ways.values(), key=lambda way: order[way["name"]])


def parsed() -> argparse.Namespace:
    """Returns the command line, with its defaults filled in."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="smollm2")
    parser.add_argument("--updates", type=int, default=10, help="measured ones, after a warm-up")
    parser.add_argument("--rows", type=int, default=8, help="rows an update")
    parser.add_argument("--k", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument(
        "--without", action="append", default=[], metavar="WAY", help="a way of pyvene's, as the table names it, to leave out"
    )
    parser.add_argument("--sweep", action=argparse.BooleanOptionalAction, default=True, help="eight fits together and one by one")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true", help="the bundled model")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.model = "bundled"
    return arguments


def make_work(folder: Path, arguments: argparse.Namespace) -> DasWork:
    """Returns the fit for a model; the same rows, order and start for the same tokenizer and shape."""
    from transformers import AutoConfig, AutoTokenizer

    tokenizer, config = AutoTokenizer.from_pretrained(folder), AutoConfig.from_pretrained(folder)

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False).input_ids)

    def is_wanted(row: Mapping[str, Any]) -> bool:
        lengths = {len(tokenizer(text).input_ids) for text in (row["input"], row["counterfactual_inputs"][0])}
        entities = row["entity"], row["counterfactual_inputs_variables"][0]["entity"]
        is_one_token = all(len(ids(f" {entity}")) == 1 for entity in entities)
        return (
            len(lengths) == 1
            and LENGTHS[0] <= min(lengths) <= LENGTHS[1]
            and is_one_token
            and ids(row["base_answer"])[0] != ids(row["cf_answer"])[0]
        )

    rows = successor.make_pairs(n=N_ROWS, seed=0, families=("month",), directions=("next",), keep=is_wanted)
    base = side(tokenizer, [(row["input"], row["entity"]) for row in rows], {"entity": ENTITY})
    others = [(row["counterfactual_inputs"][0], row["counterfactual_inputs_variables"][0]["entity"]) for row in rows]
    counterfactual = side(tokenizer, others, {"entity": ENTITY})
    start, _ = torch.linalg.qr(torch.randn(config.hidden_size, arguments.k, generator=torch.Generator().manual_seed(0)))
    job = FitJob(
        model=str(folder),
        layer=config.num_hidden_layers // 2,
        base=base.arguments(),
        counterfactual=counterfactual.arguments(),
        base_columns=base.columns["entity"],
        source_columns=counterfactual.columns["entity"],
        labels=[ids(row["cf_answer"])[0] for row in rows],
        minibatches=minibatches(len(rows), arguments.rows, arguments.updates + 1),
        start=start.contiguous(),
        lr=arguments.lr,
        seed=0,
    )
    return DasWork(job, rows, ENTITY, "cf_answer")


def minibatches(n_rows: int, n_rows_an_update: int, n_updates: int) -> list[list[int]]:
    """Returns the rows of each update: all rows in a random order, then all in another."""
    generator, order, found = random.Random(0), list[int](), list[list[int]]()
    while len(found) < n_updates:
        if len(order) < n_rows_an_update:
            order = generator.sample(range(n_rows), n_rows)
        found.append(order[:n_rows_an_update])
        order = order[n_rows_an_update:]
    return found


class Judge:
    """Says whether a way did the fit, by its losses and its basis alone, and describes what it cost.

    Attributes:
        without: the losses of the first and last update's rows with nothing exchanged.
    """

    def __init__(self, job: FitJob, model: Any) -> None:
        self.job = job
        self.hand = FitByHand(job, model)
        self.ends = [job.minibatch(job.minibatches[at]) for at in (0, -1)]
        self.sources = [self.hand.source(batch) for batch in self.ends]
        with torch.no_grad():
            self.without = [self.hand.loss(batch, None, job.start).item() for batch in self.ends]
        self.at_start = self.losses(job.start)

    def losses(self, basis: torch.Tensor) -> list[float]:
        """Returns the losses of the first and last update's rows in a basis, by hand."""
        with torch.no_grad():
            return [self.hand.loss(batch, source, basis).item() for batch, source in zip(self.ends, self.sources, strict=True)]

    def check(self, name: str, one: MeasuredFit) -> None:
        """Fails where a way did not exchange anything, or learned nothing, or something else than a basis.

        Raises:
            RuntimeError: it did not do the fit.
        """
        losses, basis = one.losses, one.basis

        def must(is_so: bool, what: str) -> None:
            if not is_so:
                raise RuntimeError(f"`{name}` is no DAS fit: {what}; its losses are {losses}")

        must(len(losses) == len(self.job.minibatches), f"it has {len(losses)} losses of {len(self.job.minibatches)} updates")
        must(all(map(float("inf").__gt__, map(abs, losses))), "not every loss is a number")
        must(basis is not None and basis.shape == self.job.start.shape, "its basis has another shape than the start")
        assert basis is not None
        apart = (basis.T @ basis - torch.eye(self.job.k)).abs().max().item()
        must(apart < TOLERANCE, f"its basis is not orthonormal, by {apart:.1e}")
        must(abs(losses[0] - self.without[0]) > CHANGE, f"its first loss is {self.without[0]:.6f}, that of doing nothing")
        must(abs(losses[0] - self.at_start[0]) < TOLERANCE, f"its first loss is not {self.at_start[0]:.6f}, that of the start")
        must(abs(losses[-1] - self.at_start[1]) > CHANGE, f"its last loss is {self.at_start[1]:.6f}, that of the start")
        moved = (basis @ basis.T - self.job.start @ self.job.start.T).norm().item()
        must(moved > TOLERANCE, f"its basis spans what the start spans, but for {moved:.1e}")
        after = self.losses(basis)
        must(sum(after) < sum(self.at_start) - CHANGE, f"its basis is no better than the start: {after} after {self.at_start}")

    def described(self, name: str, one: MeasuredFit, yardstick: MeasuredFit, curve: Sequence[float]) -> dict[str, Any]:
        """Returns what is said of a way that did the fit; the ratio is to the way by hand in the same process, repeat by repeat."""
        self.check(name, one)
        assert one.basis is not None
        peaks = [peak for peak in one.peak_bytes if peak is not None]
        return {
            "name": name,
            "cpu_an_update": statistics.median(one.cpu),
            "wall_an_update": statistics.median(one.wall),
            "once": statistics.median(one.once_cpu),
            "ratio": statistics.median(a / b for a, b in zip(one.cpu, yardstick.cpu, strict=True)),
            "peak": statistics.median(peaks) if peaks else None,
            "final_loss": one.losses[-1],
            "difference": max(abs(a - b) for a, b in zip(one.losses, curve, strict=True)),
            "after": self.losses(one.basis),
            "at_start": self.at_start,
            "error": None,
            "runs": one.data(),
        }


def pyvene_ways(job: FitJob, judge: Judge, curve: Sequence[float], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns what is said of pyvene's ways, or of why it has none."""
    print("    pyvene", file=sys.stderr)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job.save(folder / "job.json")
        settings = {"n_repeats": arguments.repeats, "left_out": arguments.without}
        (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
        found = run_script("pyvene", "pyvene_das", folder)
        label = f"pyvene {found['versions'].get('pyvene', '')}".strip()
        if "error" in found:
            print(f"{label}: {found['error']}", file=sys.stderr)
            return [{"name": label, "error": found["error"]}]
        bases = load_file(folder / "bases.safetensors")
    measured = {name: MeasuredFit(**way | {"basis": bases.get(name)}) for name, way in found["ways"].items()}
    yardstick = measured.pop(EACH)
    by_hand = {"versions": found["versions"], "by_hand": {"cpu": yardstick.cpu, "wall": yardstick.wall}}
    return [judge.described(f"{label}, {name}", one, yardstick, curve) | by_hand for name, one in measured.items()]


def markdown(found: Mapping[str, Any]) -> str:
    """Returns the page."""
    shortest, longest = found["lengths"]
    lines = [
        "# A DAS fit",
        "",
        f"Written by `{found['command']}`: {found['title']}, fp32, {found['environment']}.",
        "",
        f"A basis of {found['k']} dimensions at the output of block {found['layer']} (from 0), at the month's token of each row: what of the base's value lies in",
        "them is exchanged for the counterfactual's, and the basis is trained on the cross-entropy of the counterfactual's answer at the last",
        f"token. {found['n_rows']} rows of {shortest}–{longest} tokens, {found['n_rows_an_update']} an update, Adam with a learning rate of {found['lr']:g}. Rows, their order and the start are the",
        f"same everywhere. *CPU* is the median of {found['n_updates']} updates after a first one, on one thread, without what is done *once*; *ratio* is to hooks by",
        "hand that run the source at each update, in the same process. *Memory* is the largest resident size over that with the model loaded.",
        "*Difference* is the largest of any update's loss from hooks by hand with the same parametrization of the rotation: torch's, which is",
        "pyvene's too, or this package's. A full rotation is another one yet: it begins at the same loss and goes another way.",
        "",
        f"With nothing exchanged, the last update's rows have a loss of {found['losses_without'][1]:.4f}.",
        "",
        "| way | CPU s an update | ratio | wall s | once, CPU s | memory, MiB | final loss | difference |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *(_row(way) for way in found["ways"]),
    ]
    if (several := found["sweep"]) is not None:
        what = f"layers {', '.join(map(str, several['layers']))}, k = {', '.join(map(str, several['ranks']))}"
        n = len(several["layers"]) * len(several["ranks"])
        lines += [
            "",
            f"## {n} fits together",
            "",
            f"{what}, {several['n_updates']} updates each, with what they keep, their evaluations and everything but loading counted: trained",
            f"together {several['together']:.3g} CPU s, one by one {several['alone']:.3g}: **{several['ratio']:.2f}**. Their losses differ by at most {several['difference']:.1e} of themselves.",
        ]
    return "\n".join(lines) + "\n"


def _row(way: Mapping[str, Any]) -> str:
    if way["error"] is not None:
        return f"| {way['name']} | can't: {way['error'].replace('|', '¦')} | | | | | | |"
    cells = [
        way["name"],
        f"{way['cpu_an_update']:.3g}",
        f"{way['ratio']:.2f}",
        f"{way['wall_an_update']:.3g}",
        f"{way['once']:.3g}" if way["once"] else "",
        "–" if way["peak"] is None else f"{way['peak'] / 2**20:.0f}",
        f"{way['final_loss']:.4f}",
        f"{way['difference']:.1e}" if way["difference"] else "0",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
