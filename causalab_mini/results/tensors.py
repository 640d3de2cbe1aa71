"""Outputs as safetensors files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from causalab_mini.ops.windows import Pattern, Value


def output_bytes(
    name: str, value: Value, kind: str, groups: tuple[str, ...], is_stacked: bool, is_ragged: bool, pattern: Pattern | None, digest: str
) -> bytes:
    """Returns an output as a safetensors file.

    A stacked read's tensors begin with a layer axis. `window`: (token, feature), or (feature,) where it is one vector. `groups`: one
    vector each, named `<output>/<group>`. `rows`: (row, token, feature) of a rectangle, else (token, feature) with `<output>.lengths`
    beside it. `patterns`: (head, query token, key) of each row that has a value, named `<output>/<label>`, without padding.

    Args:
        name: of the output.
        value: of all entries.
        kind: what the entries are.
        groups: names of them.
        is_stacked: whether the layer axis is kept.
        is_ragged: whether rows may have another number of tokens each; a rectangle of which rows were left out is ragged too.
        pattern: heads and keys of the features, where those are keys.
        digest: of the experiment, kept as metadata.
    """
    import torch
    from safetensors.torch import save

    lengths = value.lengths
    values = value.data if is_stacked else value.data[0]
    axis = 1 if is_stacked else 0
    tensors: dict[str, Tensor] = {}
    if pattern is not None:
        kind = "patterns"
        patterns = {label: pattern.row(value, row) for row, label in enumerate(pattern.labels) if lengths[row]}
        tensors = {f"{name}/{label}": found if is_stacked else found[0] for label, found in patterns.items()}
    elif kind == "groups":
        tensors = {f"{name}/{group}": values.select(axis, index) for index, group in enumerate(groups)}
    elif kind == "window":
        tensors[name] = values.squeeze(axis) if values.shape[axis] == 1 else values
    elif not is_ragged and len(set(lengths)) == 1:
        shape: list[Any] = [*values.shape[:axis], len(lengths), lengths[0], values.shape[-1]]
        tensors[name] = values.reshape(shape)
    else:
        tensors = {name: values, f"{name}.lengths": torch.tensor(lengths)}
    return bytes(save({key: tensor.contiguous().cpu() for key, tensor in tensors.items()}, metadata={"digest": digest, "kind": kind}))


def record_bytes(tensors: Mapping[str, Tensor], digest: str) -> bytes:
    """Returns what a point of a stream recorded as a safetensors file: its tensors, a place each, by the names that `probe` gives them.

    Args:
        tensors: (record, feature), or (record, head, key) of patterns, by `point/component` or `point/component/layer`.
        digest: of the experiment, kept as metadata.
    """
    from safetensors.torch import save

    return bytes(save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata={"digest": digest, "kind": "records"}))
