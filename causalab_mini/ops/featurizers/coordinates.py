"""What a featurizer is to those who use it: values to features and back. Knows no kind."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, Self

import torch
from torch import Tensor


class Coordinates(Protocol):
    """A featurizer in use: `decode(*encode(x))` is x; whoever changes features in between changes that part of x alone."""

    @property
    def n_features(self) -> int:
        """Returns how many features a value has."""
        ...

    def encode(self, x: Tensor) -> tuple[Tensor, Any]:
        """Returns (…, d) as fp32 features (…, n_features), and whatever else `decode` needs."""
        ...

    def decode(self, features: Tensor, err: Any) -> Tensor:
        """Returns the fp32 value (…, d) of features (…, n_features) and what `encode` gave beside them."""
        ...


class Trainable(Protocol):
    """A featurizer being trained: an `nn.Module` that hands out coordinates."""

    def coordinates(self, temperature: float = 1.0) -> Coordinates:
        """Returns coordinates that gradients pass through, made of the parameters once."""
        ...

    def hard(self) -> Coordinates:
        """Returns what the training found, without gradients and without anything soft."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Returns what a file holds of it, by parameter: fp32, on the CPU, detached."""
        ...


def exact(device: torch.device) -> torch.autocast:
    """Returns the context in which a device computes in the tensors' own precision, whatever autocast stands around it."""
    return torch.autocast(device_type=device.type, enabled=False)


@dataclass(frozen=True, eq=False)
class Placed:
    """Coordinates whose parameters are wherever the values are.

    The base of dataclasses whose fields of type `Tensor` are their parameters.
    """

    _copies: dict[torch.device, Self] = field(default_factory=dict, init=False, repr=False)

    def on(self, device: torch.device) -> Self:
        """Returns the same with its parameters in fp32 on a device; made once, where no gradient passes through them."""
        if device in self._copies:
            return self._copies[device]
        parameters = {entry.name: value for entry in fields(self) if isinstance(value := getattr(self, entry.name), Tensor)}
        if any(parameter.requires_grad for parameter in parameters.values()):
            return self._moved(parameters, device)
        with torch.inference_mode(False):  # else a copy made there could not be used in training afterwards
            return self._copies.setdefault(device, self._moved(parameters, device))

    def _moved(self, parameters: dict[str, Tensor], device: torch.device) -> Self:
        moved: dict[str, Any] = {name: parameter.to(device, torch.float32) for name, parameter in parameters.items()}
        return replace(self, **moved)
