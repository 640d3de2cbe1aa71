"""The value's own coordinates."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Identity:
    """Every coordinate is a feature: f = x.

    Attributes:
        n_features: width of the value.
    """

    n_features: int

    def encode(self, x: Tensor) -> tuple[Tensor, None]:
        """Returns the value as fp32, and nothing else."""
        return x.to(torch.float32), None

    def decode(self, features: Tensor, err: None) -> Tensor:
        """Returns the features."""
        return features.to(torch.float32)
