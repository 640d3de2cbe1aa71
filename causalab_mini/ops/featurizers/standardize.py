"""Coordinates in units of their own spread."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from causalab_mini.ops.featurizers.coordinates import Placed, exact


@dataclass(frozen=True, eq=False)
class Standardize(Placed):
    """Every coordinate as so many standard deviations from its mean.

    Attributes:
        mean: (d,).
        std: (d,); 0 counts as 1.

    Source: f = (x − μ) / σ.
    """

    mean: Tensor
    std: Tensor

    @property
    def n_features(self) -> int:
        """Returns d."""
        return self.mean.shape[-1]

    def encode(self, x: Tensor) -> tuple[Tensor, None]:
        """Returns the standard scores, and nothing else."""
        here = self.on(x.device)
        with exact(x.device):
            return (x.float() - here.mean) / here._unit(), None

    def decode(self, features: Tensor, err: None) -> Tensor:
        """Returns the value with these standard scores."""
        here = self.on(features.device)
        with exact(features.device):
            return features.float() * here._unit() + here.mean

    def _unit(self) -> Tensor:
        return torch.where(self.std == 0, torch.ones_like(self.std), self.std)
