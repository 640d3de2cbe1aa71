"""Coordinates along orthonormal directions, and where such directions come from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from causalab_mini.ops.featurizers.coordinates import Placed, exact


@dataclass(frozen=True, eq=False)
class Subspace(Placed):
    """Coordinates in a linear subspace; what is orthogonal to it is no feature and comes back as it was.

    Attributes:
        basis: (d, k), orthonormal columns.

    Source: f = Bᵀx, x = (x − Bf) + Bf; distributed interchange intervention, Geiger et al. 2024, "Finding alignments between
    interpretable causal variables and distributed neural representations".
    """

    basis: Tensor

    @property
    def n_features(self) -> int:
        """Returns k."""
        return self.basis.shape[-1]

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the coordinates along the basis, and the component orthogonal to it."""
        basis = self.on(x.device).basis
        with exact(x.device):
            x = x.float()
            features = x @ basis
            return features, x - features @ basis.mT

    def decode(self, features: Tensor, err: Tensor) -> Tensor:
        """Returns the value with these coordinates and this orthogonal component."""
        basis = self.on(features.device).basis
        with exact(features.device):
            value: Tensor = err + features.float() @ basis.mT
            return value


def positive_qr(matrix: Tensor) -> Tensor:
    """Returns the orthonormal factor (d, k) of a matrix (d, k) of full rank; unique, since R's diagonal is positive.

    Source: Mezzadri 2007, "How to generate random matrices from the classical compact groups", section 5.
    """
    q, r = torch.linalg.qr(matrix)
    positive: Tensor = q * torch.where(r.diagonal() < 0, -1.0, 1.0).to(q.dtype)
    return positive


def random_basis(d: int, k: int, seed: int) -> Tensor:
    """Returns k orthonormal directions of a space of d, drawn uniformly; fp32, on the CPU.

    Source: the QR decomposition of a Gaussian matrix, R's diagonal positive, Mezzadri 2007, "How to generate random matrices from the
    classical compact groups", section 5.
    """
    generator = torch.Generator().manual_seed(seed)
    return positive_qr(torch.randn(d, k, generator=generator, dtype=torch.float64)).to(torch.float32)


def pca_basis(data: Tensor, k: int) -> Tensor:
    """Returns the k directions of greatest variance, greatest first, each with its largest coordinate positive.

    Args:
        data: (n, d).
        k: at most n and at most d.

    Returns:
        (d, k), fp32, orthonormal columns, computed in fp64.

    Source: Pearson 1901; right singular vectors of the centred data.
    """
    with exact(data.device):
        centred = data.to(torch.float64)
        centred = centred - centred.mean(dim=0)
        directions: Tensor = torch.linalg.svd(centred, full_matrices=False).Vh[:k]
        largest = directions.abs().argmax(dim=-1, keepdim=True)
        return (directions * directions.gather(-1, largest).sign()).mT.contiguous().to(torch.float32)
