"""Pyvene's DAS as its tutorial trains it: a basis of k dimensions or a rotation of the whole space, its source run at each update or kept.

`python -m peers.pyvene_das JOB` in `benchmarks/`. The fit by hand is measured here too: the ratios are to its time in the same process.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyvene
import torch
from fits import EACH, Fit, FitByHand, FitJob, UpdateMeter, measure_fits
from measure import first_line
from safetensors.torch import save_file
from torch import Tensor


class PyveneFit(Fit):
    """One `IntervenableModel` with one trainable intervention.

    Args:
        job: the fit.
        model: its checkpoint, which is hooked only while it runs.
        kind: the intervention.
        keeps_source: whether every row's source is collected once rather than run at each update.
    """

    def __init__(self, job: FitJob, model: Any, kind: Any, *, keeps_source: bool = False) -> None:
        self.job, self.model, self.kind, self.keeps_source = job, model, kind, keeps_source

    def run(self, meter: UpdateMeter) -> list[float]:
        """Does all updates."""
        intervenable = self.intervenable(self.kind, low_rank_dimension=self.job.k)
        intervenable.disable_model_gradients()
        ((key, intervention),) = intervenable.interventions.items()
        self.begin(intervention)
        optimizer = torch.optim.Adam(intervention.rotate_layer.parameters(), lr=self.job.lr)
        kept = self.collected() if self.keeps_source else {}
        if kept:
            meter.source_done()
        losses = []
        for batch in map(self.job.minibatch, self.job.minibatches):
            base, source = ([[[column] for column in columns.tolist()]] for columns in (batch.base_columns, batch.source_columns))
            if self.keeps_source:
                given = {"source_representations": {key: torch.stack([kept[row] for row in batch.rows])}}
                units = {"sources->base": (None, base)}
            else:
                given, units = {"sources": [batch.counterfactual]}, {"sources->base": (source, base)}
            _, output = intervenable(batch.base, unit_locations=units, use_cache=False, **given)
            loss = torch.nn.functional.cross_entropy(output.logits[:, -1], batch.labels)
            loss.backward()
            optimizer.step()
            intervenable.set_zero_grad()
            losses.append(loss.item())
            del loss, output
            meter.update_done(losses[-1])
        self.basis = intervention.rotate_layer.weight[:, : self.job.k].detach()
        return losses

    def begin(self, intervention: Any) -> None:
        """Sets the start: torch's parametrization takes an assigned basis as its origin, and completes it with columns drawn at random."""
        start = self.job.start
        torch.manual_seed(self.job.seed)
        if self.kind is pyvene.RotatedSpaceIntervention:
            intervention.set_interchange_dim(self.job.k)
            whole = torch.cat([start, torch.randn(len(start), len(start) - self.job.k)], dim=1)
            found, triangle = torch.linalg.qr(whole)
            start = found * triangle.diagonal().sign()
        intervention.rotate_layer.weight = start

    def collected(self) -> dict[int, Tensor]:
        """Returns every row's source, (token, feature) each."""
        collecting, kept = self.intervenable(pyvene.CollectIntervention), {}
        with torch.no_grad():
            for rows in self.job.distinct_rows():
                batch = self.job.minibatch(rows)
                units = {"sources->base": (None, [[[column] for column in batch.source_columns.tolist()]])}
                (_, values), _ = collecting(batch.counterfactual, unit_locations=units, use_cache=False)
                kept |= dict(zip(rows, values[0].clone(), strict=True))
        return kept

    def intervenable(self, kind: Any, **options: Any) -> Any:
        """Returns the model with one intervention at the job's block."""
        one = pyvene.RepresentationConfig(self.job.layer, "block_output", "pos", 1, intervention_type=kind, **options)
        return pyvene.IntervenableModel(pyvene.IntervenableConfig([one]), model=self.model)


def main() -> None:
    """Measures the ways of the job that the command line names, and writes what was found beside it."""
    torch.set_num_threads(1)
    file = Path(sys.argv[1])
    settings = json.loads(file.with_name("settings.json").read_text(encoding="utf-8"))
    job = FitJob.load(file)
    found: dict[str, Any] = {"versions": {name: version(name) for name in ("pyvene", "torch", "transformers")}}
    try:
        model = job.load_model()
        ways = {
            "low rank, source each update": PyveneFit(job, model, pyvene.LowRankRotatedSpaceIntervention),
            "low rank, source once": PyveneFit(job, model, pyvene.LowRankRotatedSpaceIntervention, keeps_source=True),
            "full rotation, source each update": PyveneFit(job, model, pyvene.RotatedSpaceIntervention),
        }
        kept = {name: way for name, way in ways.items() if name not in settings["left_out"]}
        measured = measure_fits({EACH: FitByHand(job, model), **kept}, settings["n_repeats"])
    except Exception as error:
        found["error"] = first_line(error)
    else:
        found["ways"] = {name: one.data() for name, one in measured.items()}
        bases = {name: one.basis.contiguous() for name, one in measured.items() if one.basis is not None}
        save_file(bases, file.with_name("bases.safetensors"))
    file.with_name("found.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
