"""How a written value is made of the one that stood there. One function a mechanism, the table of them at the end."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Change:
    """What a mechanism works on; all tensors are fp32.

    Attributes:
        value: (token, feature), what stands there now.
        arrived: the same before any write at this place.
        operand: (token, feature) or (1, feature); None for mechanisms without.
        scale, t, lo, hi: parameters.
        noise: (token, feature), standard normal, for the mechanisms that draw.
    """

    value: Tensor
    arrived: Tensor
    operand: Tensor | None = None
    scale: float = 1.0
    t: float = 1.0
    lo: float | None = None
    hi: float | None = None
    noise: Tensor | None = None

    @property
    def source(self) -> Tensor:
        """The operand, of a mechanism that has one."""
        assert self.operand is not None
        return self.operand


def swap(change: Change) -> Tensor:
    """Returns the operand in the value's place.

    Source: interchange intervention, Geiger et al. 2021, "Causal abstractions of neural networks"; activation patching,
    Meng et al. 2022, "Locating and editing factual associations in GPT".
    """
    return change.source.expand_as(change.value)


def add_scaled(change: Change) -> Tensor:
    """Returns the value plus a multiple of the operand.

    Source: activation addition, Turner et al. 2023, "Steering language models with activation engineering".
    """
    return change.value + change.scale * change.source


def lerp(change: Change) -> Tensor:
    """Returns the point between value and operand: t = 0 is the value, t = 1 the operand.

    Source: linear interpolation, (1 − t) f + t g.
    """
    return (1.0 - change.t) * change.value + change.t * change.source


def gaussian(change: Change) -> Tensor:
    """Returns the value plus scaled standard normal noise.

    Source: noise corruption of causal tracing, Meng et al. 2022, "Locating and editing factual associations in GPT".
    """
    assert change.noise is not None
    return change.value + change.scale * change.noise


def clamp(change: Change) -> Tensor:
    """Returns the value, no feature below `lo` or above `hi`.

    Source: feature clamping, Templeton et al. 2024, "Scaling monosemanticity", on feature steering.
    """
    return change.value.clamp(min=change.lo, max=change.hi)


def renormalize(change: Change) -> Tensor:
    """Returns the value at the length that it had when it arrived: f · ‖f₀‖ / ‖f‖, zero where f is zero.

    Source: norm-preserving steering, e.g. Arditi et al. 2024, "Refusal in language models is mediated by a single direction", appendix.
    """
    length: Tensor = torch.linalg.vector_norm(change.value, dim=-1, keepdim=True)
    ratio: Tensor = torch.linalg.vector_norm(change.arrived, dim=-1, keepdim=True) / torch.where(
        length > 0, length, torch.ones_like(length)
    )
    return change.value * ratio


def project_out(change: Change) -> Tensor:
    """Returns the value minus its component along the operand; unchanged where the operand is zero.

    Source: directional ablation, Arditi et al. 2024, "Refusal in language models is mediated by a single direction", equation 4.
    """
    direction = change.source.expand_as(change.value)
    squared = (direction * direction).sum(dim=-1, keepdim=True)
    along = (change.value * direction).sum(dim=-1, keepdim=True)
    return change.value - direction * along / torch.where(squared > 0, squared, torch.ones_like(squared))


def permute(change: Change) -> Tensor:
    """Returns another row's value, which comes as the operand.

    Source: resample ablation, Chan et al. 2022, "Causal scrubbing".
    """
    return swap(change)


def knockout(change: Change) -> Tensor:
    """Returns what cuts an edge: `lo` everywhere, minus infinity for scores, 0 for a pattern that is renormalised afterwards.

    Source: attention knockout, Geva et al. 2023, "Dissecting recall of factual associations in auto-regressive language models".
    """
    assert change.lo is not None
    return torch.full_like(change.value, change.lo)


def noise(seed: int, write: str, layer: int, tokens: Sequence[tuple[int, int]], n_features: int) -> Tensor:
    """Returns standard normal noise that depends on seed, write, layer, row and token, and on no batch.

    Args:
        seed: of the document.
        write: its name.
        layer: of the address; -1 where there is none.
        tokens: (row of the step, content index) of each token.
        n_features: width.

    Returns:
        (token, feature), fp32, on the CPU.
    """
    drawn = []
    for row, token in tokens:
        key = hashlib.sha256(f"{seed}/{write}/{layer}/{row}/{token}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "big", signed=True))
        drawn.append(torch.randn(n_features, generator=generator))
    return torch.stack(drawn)


MECHANISMS: Mapping[str, Callable[[Change], Tensor]] = {
    "swap": swap,
    "add_scaled": add_scaled,
    "lerp": lerp,
    "gaussian": gaussian,
    "clamp": clamp,
    "renormalize": renormalize,
    "project_out": project_out,
    "permute": permute,
    "knockout": knockout,
}
