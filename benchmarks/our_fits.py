"""DAS fits of this package: one, told its rows update by update, and several that are trained together."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from fits import Fit, FitJob, UpdateMeter
from safetensors.torch import save_file

from causalab_mini.engine.engines.nnterp import NNterpEngine
from causalab_mini.engine.featurizers import Featurizers
from causalab_mini.engine.fitting import Fits, FitWatcher
from causalab_mini.engine.job import Job
from causalab_mini.engine.sizes import Sizes
from causalab_mini.ops.featurizers import Rotation
from causalab_mini.plan import build_request
from causalab_mini.plan.load import load_raw
from causalab_mini.plan.spec import ModelSpec
from causalab_mini.schedule.located import build_schedule
from causalab_mini.schedule.rewrites import REWRITES

ROTATION = {"kind": "subspace", "parametrization": "householder"}


class OurBasis(torch.nn.Module):
    """This package's rotation as those have a basis who write loops: its `weight`, computed when it is asked for."""

    def __init__(self, start: torch.Tensor) -> None:
        super().__init__()
        self.rotation = Rotation(start, "householder")

    @property
    def weight(self) -> torch.Tensor:
        """The basis, (feature, k)."""
        return self.rotation.basis()


def opened(folder: str) -> NNterpEngine:
    """Returns the checkpoint with its weights."""
    engine = NNterpEngine.load(ModelSpec(key=folder, dtype="fp32"), device_map="cpu")
    engine.load_weights()
    return engine


def document(job: FitJob, place: Any, layer: Any, rotation: Mapping[str, Any], epochs: int) -> dict[str, Any]:
    """Returns the fit as a document over the tables `train` and `judge`."""
    stream = {"component": "block_output", "layers": layer}
    reads = {
        "source": {"site": stream, "pos": place, "input": "counterfactual", "featurizer": "rotation"},
        "prediction": {"site": {"component": "logits"}, "pos": -1, "model": "patched"},
    }
    write = {"site": stream, "pos": place, "mechanism": "swap", "operand": "source", "featurizer": "rotation"}
    metrics = {"loss": {"kind": "cross_entropy", "of": "prediction", "target": "label_id", "token_form": "id"}}
    return {
        "model": {"key": job.model, "dtype": "fp32"},
        "roles": {"base": {"field": "input"}, "counterfactual": {"field": "counterfactual_inputs[0]"}},
        "featurizers": {"rotation": dict(rotation)},
        "interventions": {
            "das": {
                "reads": reads,
                "writes": {"patch": write},
                "models": {"patched": {"input": "base", "writes": ["patch"]}},
                "metrics": metrics,
            }
        },
        "steps": {
            "train": {
                "kind": "fit",
                "rows": {"base": "train", "counterfactual": "train"},
                "interventions": "das",
                "params": ["rotation"],
                "objective": [[1, "loss"]],
                "epochs": epochs,
                "pairs": len(job.minibatches[0]),
                "optimizer": {"name": "adam", "lr": job.lr},
                "eval": {"rows": {"base": "judge", "counterfactual": "judge"}},
                "keep": "last",
            }
        },
    }


class FitOfOurs(Fit):
    """One fit, with the rows of each update as the job has them."""

    def __init__(self, job: FitJob, rows: Sequence[Mapping[str, Any]], place: Any) -> None:
        self.job = job
        self.engine = opened(job.model)
        self.root = Path(tempfile.mkdtemp(prefix="das-"))
        write_tables(self.root, rows, job.labels)
        save_file({"basis": job.start}, self.root / "start.safetensors")
        raw = document(job, place, job.layer, ROTATION | {"k": job.k, "file_path": "start.safetensors"}, 1000)
        self.request = build_request(load_raw(raw, self.root / "das.json"), self.root, self.engine)
        self.schedules = [build_schedule(self.request, point) for point in self.request.points]

    def run(self, meter: UpdateMeter) -> list[float]:
        """Does all updates: what stays the same is run once, before the first."""
        (step,) = self.request.points[0].plan.steps
        sizes = Sizes(self.engine.facts, None, self.engine.memory)
        fits = Fits(self.engine, self.request, self.schedules, sizes, REWRITES, FitWatcher())
        job = Job(self.schedules[0], step, tuple(range(step.n_rows)), {}, Featurizers({}), self.engine, self.request)
        passes = fits.passes([job], is_training=True)
        meter.source_done()
        for rows in self.job.minibatches:
            job.order = list(rows)
            fits.update({0: job}, passes)
            meter.update_done(job.losses[-1]["objective"])
        self.basis = job.tensors()["rotation"]["basis"]
        return [line["objective"] for line in job.losses]


def write_tables(root: Path, rows: Sequence[Mapping[str, Any]], labels: Sequence[int]) -> None:
    """Writes what is trained on, and one row with its sides changed to be judged on, which no benchmark looks at."""
    train = [dict(row) | {"label_id": label} for row, label in zip(rows, labels, strict=True)]
    first = train[0]
    other = first["counterfactual_inputs_variables"][0]["entity"]
    judge = first | {
        "input": first["counterfactual_inputs"][0],
        "entity": other,
        "counterfactual_inputs": [first["input"]],
        "counterfactual_inputs_variables": [{"entity": first["entity"]}],
    }
    for name, table in (("train", train), ("judge", [judge])):
        (root / f"{name}.json").write_text(json.dumps([row | {"split": name} for row in table]), encoding="utf-8")


def sweep(
    job: FitJob, rows: Sequence[Mapping[str, Any]], place: Any, layers: Sequence[int], ranks: Sequence[int], epochs: int
) -> dict[str, Any]:
    """Returns what fits over layers and ranks cost when they are trained together and one by one, and how far their losses differ."""
    engine, root = opened(job.model), Path(tempfile.mkdtemp(prefix="das-"))
    write_tables(root, rows, job.labels)
    whole = document(job, place, {"sweep": list(layers), "as": "layer"}, ROTATION | {"k": {"sweep": list(ranks), "as": "k"}}, epochs)

    def trained(raw: Mapping[str, Any]) -> tuple[float, dict[str, list[float]]]:
        request = build_request(load_raw(raw, root / "das.json"), root, engine)
        started = time.process_time()
        run = engine.execute(request, check="off")
        spent = time.process_time() - started
        return spent, {point.label: [line["objective"] for line in point.step("train").results["train/loss"]] for point in run.points}

    trained(document(job, place, layers[-1], ROTATION | {"k": ranks[0]}, 1))
    together, curves = trained(whole)
    alone, worst = 0.0, 0.0
    for layer in layers:
        for k in ranks:
            spent, single = trained(document(job, place, layer, ROTATION | {"k": k}, epochs))
            alone += spent
            named = next(curve for label, curve in curves.items() if set(label.split(",")) == {f"layer={layer}", f"k={k}"})
            worst = max(worst, *(abs(a - b) / max(abs(b), 1e-6) for a, b in zip(named, single[""], strict=True)))
    n_updates = len(next(iter(curves.values())))
    return {
        "layers": list(layers),
        "ranks": list(ranks),
        "n_updates": n_updates,
        "together": together,
        "alone": alone,
        "ratio": together / alone,
        "difference": worst,
    }
