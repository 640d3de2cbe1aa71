"""Pyvene: an interchange as a `VanillaIntervention`, its source run at each point, or collected once and reused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyvene
import torch
from measure import Meter, Way

from peers.job import BARE, Job, main


def ways(job: Job) -> dict[str, Way]:
    """Returns the ways of this tool."""
    model = job.load()
    component = "block_output" if job.points[0]["head"] is None else "head_attention_value_output"
    unit = "pos" if job.points[0]["head"] is None else "h.pos"

    def intervention(layer: int, kind: Any) -> dict[str, Any]:
        return {"layer": layer, "component": component, "unit": unit, "max_number_of_units": 1, "intervention_type": kind}

    def intervenable(*interventions: dict[str, Any]) -> Any:
        return pyvene.IntervenableModel(
            pyvene.IntervenableConfig([pyvene.RepresentationConfig(**one) for one in interventions]), model=model
        )

    def units(point: dict[str, Any], columns: Sequence[int]) -> list[Any]:
        tokens = [[column] for column in columns]
        return tokens if point["head"] is None else [[[point["head"]]] * len(tokens), tokens]

    def each(meter: Meter, points: Sequence[int]) -> None:
        for point in (job.points[index] for index in points):
            patched = intervenable(intervention(point["layer"], pyvene.VanillaIntervention))
            where = {"sources->base": ([units(point, point["source_columns"])], [units(point, point["base_columns"])])}
            _, output = patched(job.base, [job.counterfactual], where, use_cache=False)
            meter.keep(output.logits[:, -1].clone())

    def reused(meter: Meter, points: Sequence[int]) -> None:
        collecting = intervenable(*(intervention(point["layer"], pyvene.CollectIntervention) for point in job.points))
        where = {"sources->base": (None, [units(point, point["source_columns"]) for point in job.points])}
        (_, values), _ = collecting(job.counterfactual, unit_locations=where, use_cache=False)
        meter.source_done()
        for index in points:
            point = job.points[index]
            patched = intervenable(intervention(point["layer"], pyvene.VanillaIntervention))
            where = {"sources->base": (None, [units(point, point["base_columns"])])}
            source = dict.fromkeys(patched.sorted_keys, values[index])
            _, output = patched(job.base, unit_locations=where, source_representations=source, use_cache=False)
            meter.keep(output.logits[:, -1].clone())

    return {
        BARE: job.bare(lambda inputs: model(**inputs, use_cache=False)),
        "source each point": Way(each, may_fail=True),
        "source once": Way(reused, may_fail=True),
    }


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main(("pyvene", "torch", "transformers"), ways)
