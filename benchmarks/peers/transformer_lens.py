"""TransformerLens: its bridge over the transformers model; source cached at each point or once, and starting at the patched layer.

The bridge computes attention eagerly, so that its hooks see patterns: its own plain forward is measured beside that of transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from measure import Meter, Way
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from peers.job import BARE, Job, main


def ways(job: Job) -> dict[str, Way]:
    """Returns the ways of this tool."""
    plain = job.load()
    bridge = TransformerBridge.boot_transformers(job.model, dtype=torch.float32, device="cpu")

    def name(point: dict[str, Any]) -> str:
        return f"blocks.{point['layer']}." + ("hook_resid_post" if point["head"] is None else "attn.hook_z")

    def at(point: dict[str, Any], columns: Sequence[int]) -> tuple[Any, ...]:
        where = (job.rows, torch.tensor(columns))
        return where if point["head"] is None else (*where, point["head"])

    def arguments(inputs: dict[str, Any]) -> dict[str, Any]:
        return {"attention_mask": inputs["attention_mask"], "position_ids": inputs["position_ids"], "use_cache": False}

    def cache(inputs: dict[str, Any], names: Sequence[str]) -> Any:
        wanted = frozenset(names)
        return bridge.run_with_cache(inputs["input_ids"], names_filter=lambda one: one in wanted, **arguments(inputs))[1]

    def put(point: dict[str, Any], source: Any) -> Callable[..., Tensor]:
        def hook(value: Tensor, hook: Any) -> Tensor:
            value[at(point, point["base_columns"])] = source[name(point)][at(point, point["source_columns"])]
            return value

        return hook

    def patched(point: dict[str, Any], source: Any) -> Tensor:
        hooks = [(name(point), put(point, source))]
        return bridge.run_with_hooks(job.base["input_ids"], fwd_hooks=hooks, **arguments(job.base))[:, -1].clone()

    def each(meter: Meter, points: Sequence[int]) -> None:
        for point in (job.points[index] for index in points):
            meter.keep(patched(point, cache(job.counterfactual, [name(point)])))

    def once(meter: Meter, points: Sequence[int]) -> None:
        source = cache(job.counterfactual, [name(point) for point in job.points])
        meter.source_done()
        for index in points:
            meter.keep(patched(job.points[index], source))

    def started(meter: Meter, points: Sequence[int]) -> None:
        source = cache(job.counterfactual, [name(point) for point in job.points])
        clean = cache(job.base, [f"blocks.{point['layer']}.hook_resid_pre" for point in job.points])
        meter.source_done()
        for point in (job.points[index] for index in points):
            residual = clean[f"blocks.{point['layer']}.hook_resid_pre"]
            hooks = [(name(point), put(point, source))]
            logits = bridge.run_with_hooks(residual, fwd_hooks=hooks, start_at_layer=point["layer"], **arguments(job.base))
            meter.keep(logits[:, -1].clone())

    return {
        BARE: job.bare(lambda inputs: plain(**inputs, use_cache=False)),
        "a plain forward of its own": job.bare(lambda inputs: bridge(inputs["input_ids"], **arguments(inputs))),
        "source each point": Way(each, may_fail=True),
        "source once": Way(once, may_fail=True),
        "source once, starting at the layer": Way(started, may_fail=True),
    }


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main(("transformer-lens", "torch", "transformers"), ways)
