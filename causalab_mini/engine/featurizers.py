"""The featurizers of a run, as coordinates: made when they are first asked for, or put here by what trains them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from causalab_mini.engine.made import OutputTensors
from causalab_mini.errors import PlanError, Problem, RunError, listed, quoted
from causalab_mini.ops import featurizers as ops
from causalab_mini.plan import plan as nodes

MAX_SKEW = 1e-3
"""How far a basis from a file may be from orthonormal: what half precision leaves."""


class Featurizers:
    """Featurizers by name.

    Args:
        outputs: of earlier steps, by the names that featurizers have for them; more may come.

    Attributes:
        learned: what fits have made, or are making, by what it is called; for featurizers that are trained.
    """

    def __init__(self, outputs: OutputTensors) -> None:
        self.outputs = outputs
        self.learned: dict[str, ops.Coordinates] = {}
        self.made: dict[str, ops.Coordinates] = {}

    def of(self, featurizer: nodes.Featurizer) -> ops.Coordinates:
        """Returns a featurizer's coordinates."""
        key = featurizer.learned or featurizer.name
        if key in self.learned:
            return self.learned[key]
        if featurizer.parts:
            return ops.Chain(tuple(self.of(part) for part in featurizer.parts))
        assert featurizer.learned is None, f"{featurizer.name} is used before it is learned"
        if key not in self.made:
            with torch.inference_mode(False), torch.no_grad():
                self.made[key] = coordinates(featurizer, first_tensors(featurizer, self.outputs))
        return self.made[key]


def first_tensors(featurizer: nodes.Featurizer, outputs: OutputTensors) -> dict[str, Tensor]:
    """Returns a featurizer's parameters before anything trains it: from its file, from outputs, or drawn; as files name them."""
    if featurizer.file is not None:
        try:
            return ops.load(featurizer.file)
        except (OSError, SafetensorError) as error:  # it was there, and whole, when the document was compiled
            expected, got = "a file that stays as it was when the run began", f"{quoted(featurizer.file.header.path)} ({error})"
            raise RunError(Problem(f"featurizers.{featurizer.name}.file_path", expected, got, code="file")) from None
    if featurizer.kind == "subspace":
        return {"basis": ops.random_basis(featurizer.d, featurizer.n_features, featurizer.seed)}
    if featurizer.kind == "gate":
        return {"theta": ops.draw_gate(featurizer.d, featurizer.seed)}
    found = {parameter: outputs[output].value.data[0].detach().clone().cpu() for parameter, output in featurizer.sources}
    if featurizer.kind == "pca":
        return {"basis": found["basis"][: featurizer.n_features].T.contiguous()}
    return {parameter: tensor[0] for parameter, tensor in found.items()}


def refuse_unusable(request: nodes.Request) -> None:
    """Refuses files with numbers that are none, and bases whose directions are not of length 1 and at right angles.

    What such a basis replaces would be scaled.

    Raises:
        PlanError: with every featurizer that has such a file.
    """
    problems: dict[Problem, None] = {}
    for featurizer in {part for point in request.points for part in featurizers_in(point.plan) if part.file is not None}:
        tensors = first_tensors(featurizer, {})
        wrong = [name for name, tensor in tensors.items() if not tensor.isfinite().all()]
        if wrong:
            got = f"NaN or infinities in {listed(wrong)}"
            problems[Problem(f"featurizers.{featurizer.name}.file_path", "finite numbers", got, code="featurizer")] = None
        elif featurizer.kind in ("subspace", "pca"):
            basis = tensors["basis"].double()
            apart = float((basis.T @ basis - torch.eye(basis.shape[1], dtype=torch.float64)).abs().max())
            if apart > MAX_SKEW:
                expected = "directions of length 1 at right angles"
                lengths = basis.norm(dim=0)
                got = f"lengths from {float(lengths.min()):.3g} to {float(lengths.max()):.3g}, and {apart:.1e} off"
                hint = "`torch.linalg.qr(basis).Q` spans the same"
                problems[Problem(f"featurizers.{featurizer.name}.file_path", expected, got, hint, "featurizer")] = None
    if problems:
        raise PlanError(problems)


def featurizers_in(plan: nodes.Plan) -> Iterator[nodes.Featurizer]:
    """Yields the featurizers of a plan's reads and writes, and their parts."""
    for observed in (observed for step in plan.steps for observed in nodes.observed_by(step)):
        for forward in (forward for item in observed.experiments for forward in item.runs):
            for place in forward.places:
                if place.featurizer is not None:
                    yield from place.featurizer.all


def coordinates(featurizer: nodes.Featurizer, tensors: Mapping[str, Tensor]) -> ops.Coordinates:
    """Returns what parameters make of a kind of featurizer."""
    options: dict[str, Any] = {"activation": featurizer.activation, "topk": featurizer.topk}
    if featurizer.file is not None:
        options = {**featurizer.file.options, **options}
    return ops.FEATURIZERS[featurizer.kind](tensors, options)
