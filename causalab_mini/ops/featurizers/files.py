"""Parameters of featurizers as safetensors files. What a file must hold is judged before, from its header."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

if TYPE_CHECKING:
    from causalab_mini.data.parameters import Parameters

FORMAT = "causalab-mini/featurizers/1"
"""Held equal to the reader's by a test: tensors know nothing of data."""


def load(parameters: Parameters) -> dict[str, Tensor]:
    """Returns the tensors that were found, by canonical name: fp32, on the CPU, in canonical orientation.

    One direction that is stored as a vector becomes a basis of one column; a logarithm is undone.
    """
    tensors = {}
    with safe_open(parameters.header.path, framework="pt", device="cpu") as file:
        for name, source in parameters.tensors.items():
            tensor: Tensor = file.get_tensor(source.name_in_file).to(torch.float32)
            tensor = tensor.mT.contiguous() if source.is_transposed else tensor
            tensor = tensor[:, None] if name == "basis" and tensor.ndim == 1 else tensor
            tensors[name] = tensor.exp() if source.is_log else tensor
    return tensors


def dump(tensors: Mapping[str, Mapping[str, Tensor]], stamps: Mapping[str, Mapping[str, Any]], digest: str) -> bytes:
    """Returns a file of featurizers; the same bytes whenever it is given the same.

    Args:
        tensors: parameters by featurizer; named `<featurizer>.<parameter>` in the file, fp32.
        stamps: what each was made for, by featurizer.
        digest: of the experiment.
    """
    flat = {
        f"{name}.{parameter}": tensor.detach().to("cpu", torch.float32, copy=True).contiguous()
        for name, parameters in tensors.items()
        for parameter, tensor in parameters.items()
    }
    return with_metadata(flat, {"digest": digest, "format": FORMAT, "stamps": json.dumps(stamps, sort_keys=True)})


def with_metadata(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Returns tensors as a safetensors file with metadata in the order given, so that the same is always the same bytes."""
    saved = bytes(save({name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}))
    length = int.from_bytes(saved[:8], "little")
    header = {"__metadata__": metadata, **json.loads(saved[8 : 8 + length])}  # put in here: safetensors orders metadata by chance
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + saved[8 + length :]
