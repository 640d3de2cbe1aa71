"""95 % intervals: of a mean, Wilson for fractions and bootstrap for the rest; of another statistic, bootstrap of groups of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

LEVEL = 0.95
N_RESAMPLES = 2000
SEED = 0


@dataclass(frozen=True, slots=True)
class Interval:
    """A range that covers the mean with a probability of `LEVEL` in repeated samples, and how it was made."""

    low: float
    high: float
    method: str


def wilson(values: Sequence[float]) -> Interval:
    """Returns the interval of a fraction of ones among zeros and ones.

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference", equation 3.
    """
    return of_fraction(sum(values) / len(values), len(values))


def of_fraction(fraction: float, n: int) -> Interval:
    """Returns the interval of a fraction of n rows, as `wilson` does.

    Source: as `wilson`; where every row is the mean of several draws, n is the rows, since draws of one row are not independent.
    """
    z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
    centre = (fraction + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(fraction * (1 - fraction) / n + z * z / (4 * n * n))
    return Interval(min(fraction, max(0.0, centre - half)), max(fraction, min(1.0, centre + half)), "wilson")  # rounding may cross it


def bootstrap(values: Sequence[float]) -> Interval | None:
    """Returns the percentile interval of a mean over resampled rows, or None for fewer than two rows.

    Source: Efron 1979, "Bootstrap methods: another look at the jackknife"; 2,000 resamples from a fixed seed.
    """
    if len(values) < 2:
        return None
    import numpy

    sample = numpy.asarray(values, dtype=numpy.float64)
    generator = numpy.random.default_rng(SEED)
    means = numpy.concatenate(
        [sample[generator.integers(0, len(sample), (100, len(sample)))].mean(axis=1) for _ in range(N_RESAMPLES // 100)]
    )
    low, high = numpy.quantile(means, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
    return Interval(float(low), float(high), "bootstrap")


def interval(values: Sequence[float], unit: str, is_binary: bool) -> Interval | None:
    """Returns the interval of a metric's mean; `is_binary` tells a fraction of rows from a fraction that may be anything."""
    return wilson(values) if unit == "fraction" and is_binary and values else bootstrap(values)


def bootstrap_of(statistic: Callable[[Any], Any], groups: Sequence[int]) -> Interval | None:
    """Returns the percentile interval of a statistic over resampled groups of rows, or None for fewer than two groups.

    Args:
        statistic: of (sample, row) weights, how often each row counts in each sample; gives (sample,), NaN where it is not defined.
        groups: of each row, counted from 0; rows of one group are drawn together.

    Source: as `bootstrap`; of groups, Davison & Hinkley 1997, "Bootstrap methods and their application", 3.8.
    """
    import numpy

    n, of_row = max(groups, default=-1) + 1, numpy.asarray(groups)
    if n < 2:
        return None
    generator = numpy.random.default_rng(SEED)
    found = []
    for _ in range(N_RESAMPLES // 100):
        drawn = generator.integers(0, n, (100, n))
        counts = numpy.stack([numpy.bincount(line, minlength=n) for line in drawn])
        found.append(statistic(counts[:, of_row].astype(numpy.float64)))
    values = numpy.concatenate(found)
    values = values[numpy.isfinite(values)]
    if len(values) < N_RESAMPLES // 2:
        return None
    low, high = numpy.quantile(values, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
    return Interval(float(low), float(high), "bootstrap")
