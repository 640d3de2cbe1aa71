"""Coordinates in a dictionary of directions: sparse autoencoders, and linear maps without an activation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, assert_never

import torch
from torch import Tensor

from causalab_mini.ops.featurizers.coordinates import Placed, exact

Activation = Literal["relu", "jumprelu", "topk"]


@dataclass(frozen=True, eq=False)
class Dictionary(Placed):
    """Features of an encoder, and the directions that a decoder adds up; what it fails to reconstruct comes back as it was.

    f = a(W_encᵀ(x − b_dec) + b_enc), x̂ = W_decᵀf + b_dec, x = x̂ + (x − x̂).

    Attributes:
        W_enc: (d, k).
        W_dec: (k, d).
        b_enc: (k,), none is zero.
        b_dec: (d,), none is zero.
        activation: None for a linear map.
        threshold: (k,), of `jumprelu`.
        topk: how many features stay, of `topk`.
        subtracts_b_dec: whether the encoder sees x − b_dec, else x.

    Source: Bricken et al. 2023, "Towards monosemanticity", section "Sparse autoencoder setup" (relu); Rajamanoharan et al. 2024, "Jumping
    ahead" (jumprelu); Gao et al. 2024, "Scaling and evaluating sparse autoencoders" (topk); the error term,
    Marks et al. 2024, "Sparse feature circuits".
    """

    W_enc: Tensor
    W_dec: Tensor
    b_enc: Tensor | None = None
    b_dec: Tensor | None = None
    activation: Activation | None = None
    threshold: Tensor | None = None
    topk: int | None = None
    subtracts_b_dec: bool = False

    @property
    def n_features(self) -> int:
        """Returns k."""
        return self.W_enc.shape[-1]

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the activations, and what the decoder fails to make of them."""
        here = self.on(x.device)
        with exact(x.device):
            x = x.float()
            seen = x - here.b_dec if here.subtracts_b_dec and here.b_dec is not None else x
            before = seen @ here.W_enc
            features = here._activated(before if here.b_enc is None else before + here.b_enc)
            return features, x - here._reconstruction(features)

    def decode(self, features: Tensor, err: Tensor) -> Tensor:
        """Returns the reconstruction plus what it lacked."""
        here = self.on(features.device)
        with exact(features.device):
            return here._reconstruction(features.float()) + err

    def _reconstruction(self, features: Tensor) -> Tensor:
        made = features @ self.W_dec
        return made if self.b_dec is None else made + self.b_dec

    def _activated(self, before: Tensor) -> Tensor:
        match self.activation:
            case None:
                return before
            case "relu":
                return torch.relu(before)
            case "jumprelu":
                assert self.threshold is not None
                return before * (before > self.threshold)
            case "topk":
                assert self.topk is not None
                kept = torch.relu(before).topk(self.topk, dim=-1)
                return torch.zeros_like(before).scatter(-1, kept.indices, kept.values)
            case unknown:
                assert_never(unknown)
