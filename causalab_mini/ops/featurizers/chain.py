"""Featurizers one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from causalab_mini.ops.featurizers.coordinates import Coordinates


@dataclass(frozen=True, slots=True)
class Chain:
    """The features of the last part, which sees the features of the one before it, and so on.

    Attributes:
        parts: at least one; the first sees the value.
    """

    parts: tuple[Coordinates, ...]

    @property
    def n_features(self) -> int:
        """Returns how many features the last part has."""
        return self.parts[-1].n_features

    def encode(self, x: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
        """Returns the last part's features, and what each part needs to come back, in order."""
        rest = []
        for part in self.parts:
            x, err = part.encode(x)
            rest.append(err)
        return x, tuple(rest)

    def decode(self, features: Tensor, err: tuple[Any, ...]) -> Tensor:
        """Returns the value, decoded by the last part first."""
        for part, own in zip(reversed(self.parts), reversed(err), strict=True):
            features = part.decode(features, own)
        return features
