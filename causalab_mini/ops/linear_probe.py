"""A linear probe: what it says of values, and the file that it is kept in. How it is trained is in `probe_training`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from causalab_mini.ops.featurizers.files import with_metadata

FORMAT = "causalab-mini linear probe 1"
"""Held equal to the reader's by a test: tensors know nothing of data."""


@dataclass(frozen=True, slots=True, eq=False)
class LinearProbe:
    """A linear read-out of one place, as `x @ weight.T + bias` on values as they are: their standardisation is inside.

    Attributes:
        weight: (class, feature), fp32; one line for two classes, whose logit is of the second, and for `ridge`.
        bias: (class,), fp32.
        probe: `logistic` or `ridge`.
        classes: the labels, sorted; empty for `ridge`.
        stamp: what it was trained on and how: `model`, `revision`, `dtype`, `component`, `layer`, `heads`, `units`, `position`, `label`,
            `n_rows`, `seed`, `score` and more.
    """

    weight: Tensor
    bias: Tensor
    probe: str
    classes: tuple[str | int | bool, ...]
    stamp: Mapping[str, Any]

    def __post_init__(self) -> None:
        n_lines = 1 if len(self.classes) <= 2 else len(self.classes)
        assert (self.probe == "ridge") == (not self.classes), "classes are of `logistic`"
        assert (self.weight.ndim, len(self.weight)) == (2, n_lines), "a line a class, one for two"
        assert self.bias.shape == (n_lines,), "a number a line"
        assert self.weight.dtype == self.bias.dtype == torch.float32, "fp32"

    def __repr__(self) -> str:
        labels = f" of {len(self.classes)} classes" if self.classes else ""
        return f"<{self.probe} probe{labels} over {self.n_features} features>"

    @property
    def n_features(self) -> int:
        """How wide a value is."""
        return self.weight.shape[1]

    def scores(self, x: Tensor) -> Tensor:
        """Returns what stands before any nonlinearity: logits, or for `ridge` the predicted number.

        Args:
            x: (…, feature), of any dtype, as the model has them.

        Returns:
            (…, class), fp32; one number for two classes and for `ridge`.
        """
        return x.to(torch.float32) @ self.weight.to(x.device).T + self.bias.to(x.device)

    def probabilities(self, x: Tensor) -> Tensor:
        """Returns the probability of each class, (…, class), in the order of `classes`; of a `logistic` probe alone."""
        assert self.probe == "logistic", "a `ridge` probe has no classes"
        scores = self.scores(x)
        return torch.cat([-scores, scores], dim=-1).sigmoid() if len(self.classes) == 2 else scores.softmax(dim=-1)

    def predictions(self, x: Tensor) -> Tensor:
        """Returns which of `classes` is the most likely, (…,) of indices; of `ridge` the predicted number, (…,)."""
        scores = self.scores(x)
        if self.probe == "ridge":
            return scores[..., 0]
        return (scores[..., 0] > 0).long() if len(self.classes) == 2 else scores.argmax(dim=-1)

    def to_bytes(self) -> bytes:
        """Returns the probe as a safetensors file; the same bytes whenever it is the same."""
        metadata = {
            "classes": json.dumps(list(self.classes), ensure_ascii=False),
            "format": FORMAT,
            "probe": self.probe,
            "stamp": json.dumps(dict(self.stamp), sort_keys=True, ensure_ascii=False, allow_nan=False),
        }
        return with_metadata({"weight": self.weight, "bias": self.bias}, metadata)

    @classmethod
    def from_file(cls, path: str | Path) -> LinearProbe:
        """Returns the probe that a file holds.

        Raises:
            DataError: it can't be read, is too large, is no safetensors file or one of another format, lacks a tensor, or has one of
                another shape or with a number that is not finite.
        """
        from safetensors.torch import load

        from causalab_mini.data.probe_files import read_probe_file, refuse

        file = read_probe_file(path)
        tensors = load(file.path.read_bytes())
        for name, tensor in tensors.items():
            if bad := int((~tensor.isfinite()).sum()):
                refuse(file.path, "finite numbers", f"{bad} of {tensor.numel()} that are not", name)
        return cls(tensors["weight"], tensors["bias"], file.probe, file.classes, file.stamp)
