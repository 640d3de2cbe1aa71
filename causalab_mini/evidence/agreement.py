"""How two ways to say the same number agree: in their order, and in their sign."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Pair = tuple[float, float]


def agreement(components: Sequence[Sequence[Pair]]) -> dict[str, Any]:
    """Returns how estimates agree with exact values: over all rows of all components, and over the means of components.

    Args:
        components: for each, its rows' estimate and exact value.

    Returns:
        `n_components`, `n_values`; `rank_correlation` and `sign_agreement` of the means, and `rank_correlation_rows` and
        `sign_agreement_rows` of single rows; null where they are not defined.
    """
    means = [(sum(a for a, _ in pairs) / len(pairs), sum(b for _, b in pairs) / len(pairs)) for pairs in components if pairs]
    rows = [pair for pairs in components for pair in pairs]
    return {
        "n_components": len(means),
        "n_values": len(rows),
        "rank_correlation": rank_correlation(means),
        "sign_agreement": sign_agreement(means),
        "rank_correlation_rows": rank_correlation(rows),
        "sign_agreement_rows": sign_agreement(rows),
    }


def rank_correlation(pairs: Sequence[Pair]) -> float | None:
    """Returns the correlation of ranks, from -1 to 1; None for fewer than two pairs, or where one side is all ties.

    Source: Spearman 1904, with mean ranks for ties.
    """
    import numpy

    if len(pairs) < 2:
        return None
    ranks = [_ranks(numpy.asarray(side, dtype=numpy.float64)) for side in zip(*pairs, strict=True)]
    if any(numpy.ptp(side) == 0 for side in ranks):
        return None
    return float(numpy.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: Any) -> Any:
    """Returns the rank of each value; ties share the mean of theirs."""
    import numpy

    _, where, counts = numpy.unique(values, return_inverse=True, return_counts=True)
    last = numpy.cumsum(counts)
    return (last - (counts - 1) / 2)[where]


def sign_agreement(pairs: Sequence[Pair]) -> float | None:
    """Returns the share of pairs whose sides have one sign, from 0 to 1; pairs that are both zero are left out, None where all are."""
    there = [(a, b) for a, b in pairs if a != 0 or b != 0]
    return sum((a > 0) == (b > 0) and (a < 0) == (b < 0) for a, b in there) / len(there) if there else None
