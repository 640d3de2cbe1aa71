"""What becomes of a read over the rows of a step: kept, averaged, spread, principal directions, averages by group."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from causalab_mini.ops.windows import Value


def rectangle(value: Value) -> Tensor | None:
    """Returns a value whose rows have equally many tokens as (layer, row, token, feature), else None; empty rows are left out."""
    lengths = {length for length in value.lengths if length}
    if len(lengths) != 1:
        return None
    n_layers, _, n_features = value.data.shape
    return value.data.reshape(n_layers, -1, lengths.pop(), n_features)


def mean(value: Value, keeps_window: bool) -> Tensor:
    """Returns the mean over rows.

    Args:
        value: of all rows.
        keeps_window: whether the tokens of a window are averaged each for itself; else all tokens of all rows are.

    Returns:
        (layer, token, feature), one token where no window is kept; fp32, summed in fp64.

    Source: Σ xᵢ / n; as an ablation, Chan et al. 2022, "Causal scrubbing", and Wang et al. 2022.
    """
    return _pooled(value, keeps_window).mean(dim=1).to(torch.float32)


def std(value: Value, keeps_window: bool) -> Tensor:
    """Returns the standard deviation over rows (divisor n − 1; zero for one row), shaped as `mean`.

    Source: √(Σ (xᵢ − x̄)² / (n − 1)).
    """
    pooled = _pooled(value, keeps_window)
    if pooled.shape[1] < 2:
        return torch.zeros_like(pooled[:, 0]).to(torch.float32)
    return pooled.std(dim=1).to(torch.float32)


def pca(value: Value, k: int) -> Tensor:
    """Returns the k directions of greatest variance over all tokens, unit length, orthogonal, greatest first.

    Each has its largest coordinate positive, so that a run repeats another's.

    Returns:
        (layer, k, feature), fp32.

    Source: Pearson 1901; right singular vectors of the centred data.
    """
    data = value.data.to(torch.float64)
    centred = data - data.mean(dim=1, keepdim=True)
    directions: Tensor = torch.linalg.svd(centred, full_matrices=False).Vh[:, :k]
    largest = directions.abs().argmax(dim=-1, keepdim=True)
    return (directions * directions.gather(-1, largest).sign()).to(torch.float32)


def mean_by(value: Value, groups: Sequence[str]) -> dict[str, Tensor]:
    """Returns the mean over all tokens of the rows of each group, (layer, 1, feature) each, fp32; groups without a token are left out.

    Source: the class means that resample and mean ablations by condition use, e.g. Wang et al. 2022.
    """
    rows_by_group: dict[str, list[int]] = {}
    for row, group in enumerate(groups):
        if value.lengths[row]:
            rows_by_group.setdefault(group, []).append(row)
    return {
        group: torch.cat([value.row(row) for row in rows], dim=1).to(torch.float64).mean(dim=1, keepdim=True).to(torch.float32)
        for group, rows in sorted(rows_by_group.items())
    }


def _pooled(value: Value, keeps_window: bool) -> Tensor:
    """Returns (layer, row, token, feature) in fp64; without a window every token is a row."""
    shaped = rectangle(value) if keeps_window else None
    return (value.data[:, :, None, :] if shaped is None else shaped).to(torch.float64)
