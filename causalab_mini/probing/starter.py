"""A spec to begin with, at layers and tensors that a checkpoint has."""

from __future__ import annotations

from collections.abc import Sequence

from causalab_mini.model.facts import ModelFacts
from causalab_mini.model.families import Address
from causalab_mini.probing.probes import RECORD
from causalab_mini.probing.spec import ExtractionPoint, ProbeKind, ProbeSpec, TensorType, Until, parse_position, to_yaml


def starter_spec(facts: ModelFacts) -> str:
    """Returns the YAML of a spec that fits a checkpoint and can be run as it is."""
    last = facts.n_layers - 1
    middle, spread = facts.n_layers // 2, tuple(sorted({0, facts.n_layers // 2, last}))
    points = [
        _point("last_prompt_token", TensorType.RESIDUAL_STREAM, (middle,), "prompt[-1]"),
        _point("generation", TensorType.RESIDUAL_STREAM, spread, "generated[*]", until=Until.GENERATION_END),
        _point("first_generated_token", TensorType.ATTN_OUT, (middle,), "prompt[-1]+1"),
        _point("every_second_token", TensorType.MLP_OUT, (middle,), "generated[*]", stride=2, until=Until.FIXED_COUNT, count=8),
        _point("keys_and_values", TensorType.KV, (middle,), "prompt[*]"),
        _point("end", TensorType.FINAL_NORM, (), "generated[-1]"),
    ]
    spec = ProbeSpec(tuple(point for point in points if _is_there(point, facts)))
    head = (
        f"# Extraction points for {facts.key}: layers 0 to {last}. `causalab-mini probe` runs this file.\n"
        "# `probe_type: record` keeps what is captured. `causalab-mini model` lists every tensor that `tensor_type` may name.\n"
    )
    return head + to_yaml(spec)


def _point(
    name: str,
    tensor_type: TensorType,
    layers: Sequence[int],
    position: str,
    *,
    stride: int = 1,
    until: Until | None = None,
    count: int | None = None,
) -> ExtractionPoint:
    selector = parse_position(position)
    return ExtractionPoint(
        name=name,
        layers=tuple(layers),
        tensor_type=tensor_type,
        position=selector,
        stride=stride,
        until=until,
        count=count,
        probe_type=RECORD,
        probe_kind=ProbeKind.TRAJECTORY if selector.is_continuous else ProbeKind.SINGLE_SHOT,
    )


def _is_there(point: ExtractionPoint, facts: ModelFacts) -> bool:
    layers = point.layers or (None,)
    return all(isinstance(facts.place(component, layer), Address) for component in point.components for layer in layers)
