"""Coordinates one by one: a mask says which of the value's own coordinates are features."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from causalab_mini.ops.featurizers.coordinates import Placed, exact

NOISE = 0.01
"""Standard deviation of a gate that nothing is known about yet."""


@dataclass(frozen=True, eq=False)
class Gate(Placed):
    """The value's own coordinates, each let through by as much as the mask says; the rest of it comes back as it was.

    Attributes:
        mask: (d,), from 0 to 1.

    Source: f = m ⊙ x, x = (1 − m) ⊙ x + f; boundless and mask-based interchange interventions, Wu et al. 2023, "Interpretability at
    scale", in the value's own basis.
    """

    mask: Tensor

    @property
    def n_features(self) -> int:
        """Returns d."""
        return self.mask.shape[-1]

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns what the mask lets through, and what it holds back."""
        mask = self.on(x.device).mask
        with exact(x.device):
            x = x.float()
            return mask * x, (1.0 - mask) * x

    def decode(self, features: Tensor, err: Tensor) -> Tensor:
        """Returns the sum of the two."""
        return features.float() + err


class TrainedGate(nn.Module):
    """A gate whose mask is trained as the sigmoid of one number a coordinate.

    Args:
        theta: (d,), where to start; copied.

    Source: m = σ(θ / T), T lowered while training, Wu et al. 2023, "Interpretability at scale".
    """

    def __init__(self, theta: Tensor) -> None:
        super().__init__()
        self.theta = nn.Parameter(theta.detach().to(torch.float32, copy=True))

    def coordinates(self, temperature: float = 1.0) -> Gate:
        """Returns the soft gate; the lower the temperature (above 0), the harder."""
        return Gate(torch.sigmoid(self.theta / temperature))

    def hard(self) -> Gate:
        """Returns the gate that is open exactly where theta is above 0."""
        return hard_gate(self.theta)

    def tensors(self) -> dict[str, Tensor]:
        """Returns `theta`, as a file holds it."""
        return {"theta": self.theta.detach().to("cpu", torch.float32, copy=True)}


def hard_gate(theta: Tensor) -> Gate:
    """Returns the gate that is open (1) where theta is above 0 and shut (0) elsewhere."""
    return Gate((theta.detach() > 0).to(torch.float32))


def draw_gate(d: int, seed: int) -> Tensor:
    """Returns a theta (d,) that is about half open everywhere: N(0, 0.01²), fp32, on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    return NOISE * torch.randn(d, generator=generator)
