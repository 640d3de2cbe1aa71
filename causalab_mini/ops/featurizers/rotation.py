"""A subspace being trained: orthonormal directions as a differentiable function of free parameters, in three ways."""

from __future__ import annotations

from typing import Literal, assert_never

import torch
from torch import Tensor, nn

from causalab_mini.ops.featurizers.coordinates import exact
from causalab_mini.ops.featurizers.subspace import Subspace, positive_qr

Parametrization = Literal["cayley", "householder", "qr"]


def cayley(free: Tensor, start: Tensor) -> Tensor:
    """Returns the start turned by the Cayley transform of a skew-symmetric matrix of rank 2k; the start itself where `free` is zero.

    W = G Q₀ᵀ − Q₀ Gᵀ = U Vᵀ with U = [G, Q₀] and V = [Q₀, −G]; Q = (I + W/2)⁻¹ (I − W/2) Q₀ = Q₀ − U (I + VᵀU/2)⁻¹ Vᵀ Q₀.

    Args:
        free: (d, k), G.
        start: (d, k), Q₀, orthonormal columns.

    Source: Wen & Yin 2013, "A feasible method for optimization with orthogonality constraints", lemma 4, with τ = 1.
    """
    u = torch.cat([free, start], dim=-1)
    v = torch.cat([start, -free], dim=-1)
    inner = torch.eye(u.shape[-1], dtype=u.dtype, device=u.device) + 0.5 * (v.mT @ u)
    turned: Tensor = start - u @ torch.linalg.solve(inner, v.mT @ start)
    return turned


def householder(reflectors: Tensor, signs: Tensor) -> Tensor:
    """Returns the first k columns of a product of k reflections, each column with a fixed sign.

    H₁ … H_k = I − V T⁻¹ Vᵀ, where T is the strict upper triangle of VᵀV plus half its diagonal; this is what
    `torch.linalg.householder_product` computes with τ = 2 / vᵀv, whose gradient takes some hundred times as long at d = 2048.

    Args:
        reflectors: (d, k), V; what stands below the diagonal counts, the diagonal is 1.
        signs: (k,), 1 or −1.

    Source: Joffrain et al. 2006, "Accumulating Householder transformations, revisited" (the UT transform).
    """
    d, k = reflectors.shape
    unit = torch.eye(d, k, dtype=reflectors.dtype, device=reflectors.device)
    v = reflectors.tril(-1) + unit
    gram = v.mT @ v
    upper = gram.triu(1) + 0.5 * torch.diag(gram.diagonal())
    product: Tensor = unit - v @ torch.linalg.solve_triangular(upper, v[:k].mT, upper=True)
    return product * signs


def start_householder(start: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the reflectors (d, k) and signs (k,) with which `householder` gives the start.

    Source: LAPACK `geqrf`; the signs make up for R's diagonal, and for reflections that it leaves out where nothing is below the diagonal.
    """
    reflectors = torch.geqrf(start)[0].tril(-1)
    unsigned = householder(reflectors, start.new_ones(start.shape[-1]))
    return reflectors, torch.where((unsigned * start).sum(dim=-2) < 0, -1.0, 1.0).to(start.dtype)


class Rotation(nn.Module):
    """A trained subspace of k of d dimensions; its basis is orthonormal at every step.

    Parameters are fp32; the basis is computed of them in fp64, since the columns must stay orthonormal however far the training goes.

    Args:
        start: (d, k), orthonormal columns, 1 ≤ k ≤ d; where the training starts; copied.
        parametrization: what is free: a tangent (`cayley`), reflections (`householder`), or any matrix (`qr`).

    Source: distributed alignment search, Geiger et al. 2024, "Finding alignments between interpretable causal variables and distributed
    neural representations".
    """

    fixed: Tensor

    def __init__(self, start: Tensor, parametrization: Parametrization) -> None:
        super().__init__()
        self.parametrization = parametrization
        start = start.detach().to(torch.float32, copy=True)
        match parametrization:
            case "cayley":
                free, fixed = torch.zeros_like(start), start
            case "householder":
                free, fixed = start_householder(start.double())
            case "qr":
                free, fixed = start, start.new_empty(0)
            case unknown:
                assert_never(unknown)
        self.free = nn.Parameter(free.to(torch.float32))
        self.register_buffer("fixed", fixed.to(torch.float32))

    def basis(self) -> Tensor:
        """Returns (d, k), orthonormal columns, fp32."""
        with exact(self.free.device):
            free, fixed = self.free.double(), self.fixed.double()
            match self.parametrization:
                case "cayley":
                    basis = cayley(free, fixed)
                case "householder":
                    basis = householder(free, fixed)
                case "qr":
                    basis = positive_qr(free)
                case unknown:
                    assert_never(unknown)
            return basis.to(torch.float32)

    def coordinates(self, temperature: float = 1.0) -> Subspace:
        """Returns the coordinates along the basis as it is now; nothing in them is soft, whatever the temperature."""
        return Subspace(self.basis())

    def hard(self) -> Subspace:
        """Returns the coordinates along the basis that was found, without gradients."""
        return Subspace(self.basis().detach())

    def tensors(self) -> dict[str, Tensor]:
        """Returns `basis`, as a file holds it."""
        return {"basis": self.basis().detach().to("cpu", copy=True).contiguous()}
