"""Featurizers: which coordinates of a value are its features. One file a kind, the table of them at the end.

In use they are `Coordinates`; being trained they are modules that hand out coordinates. Tensors only: what a file holds is judged
elsewhere, from its header, before it comes here.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from causalab_mini.ops.featurizers.chain import Chain
from causalab_mini.ops.featurizers.coordinates import Coordinates, Trainable
from causalab_mini.ops.featurizers.dictionary import Dictionary
from causalab_mini.ops.featurizers.files import dump, load
from causalab_mini.ops.featurizers.gate import Gate, TrainedGate, draw_gate, hard_gate
from causalab_mini.ops.featurizers.identity import Identity
from causalab_mini.ops.featurizers.rotation import Rotation
from causalab_mini.ops.featurizers.standardize import Standardize
from causalab_mini.ops.featurizers.subspace import Subspace, pca_basis, random_basis

Make = Callable[[Mapping[str, Tensor], Mapping[str, Any]], Coordinates]


def subspace(tensors: Mapping[str, Tensor], options: Mapping[str, Any]) -> Subspace:
    """Returns the coordinates along `basis`."""
    return Subspace(tensors["basis"])


def gate(tensors: Mapping[str, Tensor], options: Mapping[str, Any]) -> Gate:
    """Returns the gate that is open where `theta` is above 0."""
    return hard_gate(tensors["theta"])


def standardize(tensors: Mapping[str, Tensor], options: Mapping[str, Any]) -> Standardize:
    """Returns the standard scores by `mean` and `std`."""
    return Standardize(tensors["mean"], tensors["std"])


def dictionary(tensors: Mapping[str, Tensor], options: Mapping[str, Any]) -> Dictionary:
    """Returns the dictionary of `W_enc` and the rest.

    Args:
        tensors: canonical names, which are the fields of `Dictionary`.
        options: `activation`, `topk`, `subtracts_b_dec`; `pinv` for a decoder that is the encoder's pseudoinverse.

    Source: of `pinv`, Moore–Penrose, by which the reconstruction is the projection on the encoder's directions.
    """
    decoder = torch.linalg.pinv(tensors["W_enc"].double()).to(torch.float32) if options.get("pinv") else tensors["W_dec"]
    return Dictionary(
        tensors["W_enc"],
        decoder,
        tensors.get("b_enc"),
        tensors.get("b_dec"),
        options["activation"],
        tensors.get("threshold"),
        options.get("topk"),
        options["subtracts_b_dec"],
    )


FEATURIZERS: Mapping[str, Make] = {
    "subspace": subspace,
    "pca": subspace,
    "gate": gate,
    "standardize": standardize,
    "sae": dictionary,
    "linear": dictionary,
}
"""The kinds that a file can hold, made of its tensors and its options; `identity` and `chain` need none."""

__all__ = [
    "FEATURIZERS",
    "Chain",
    "Coordinates",
    "Dictionary",
    "Gate",
    "Identity",
    "Rotation",
    "Standardize",
    "Subspace",
    "Trainable",
    "TrainedGate",
    "draw_gate",
    "dump",
    "load",
    "pca_basis",
    "random_basis",
]
