"""Intervals of a mean, against scipy's."""

import math
import random

import numpy
import pytest
from scipy import stats

from causalab_mini.evidence.intervals import bootstrap, interval, wilson

pytestmark = pytest.mark.plain


@pytest.mark.parametrize(("n_ones", "n"), [(0, 1), (1, 1), (0, 7), (7, 7), (3, 8), (50, 100), (1, 1000), (999, 1000)])
def test_wilson_is_scipys(n_ones, n):
    found = wilson([1.0] * n_ones + [0.0] * (n - n_ones))
    truth = stats.binomtest(n_ones, n).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((truth.low, truth.high), abs=1e-12)
    assert 0 <= found.low <= n_ones / n <= found.high <= 1
    assert found.method == "wilson"


DRAW = random.Random(0)
SAMPLES = {
    "normal": [DRAW.gauss(2.0, 3.0) for _ in range(60)],
    "skewed": [DRAW.expovariate(1.0) for _ in range(200)],
    "two": [0.0, 1.0],
    "large": [1e6 + DRAW.random() for _ in range(50)],
}


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES.keys())
def test_bootstrap_is_scipys_within_the_noise_of_resampling(sample):
    found = bootstrap(sample)
    truth = stats.bootstrap(
        (numpy.asarray(sample),), numpy.mean, n_resamples=20_000, method="percentile", rng=numpy.random.default_rng(7)
    ).confidence_interval
    # a 2.5 % quantile of 2,000 means lies within about a tenth of a standard error of the true one
    tolerance = 0.2 * numpy.std(sample) / math.sqrt(len(sample))
    assert (found.low, found.high) == pytest.approx((truth.low, truth.high), abs=tolerance)
    assert found.method == "bootstrap"


def test_the_same_values_have_the_same_interval():
    assert bootstrap(SAMPLES["normal"]) == bootstrap(list(SAMPLES["normal"]))


def test_a_constant_has_an_interval_of_no_width():
    found = bootstrap([2.5] * 10)
    assert (found.low, found.high) == (2.5, 2.5)


@pytest.mark.parametrize("values", [[], [1.0]])
def test_fewer_than_two_rows_have_no_bootstrap(values):
    assert bootstrap(values) is None
    assert interval(values, "logit", is_binary=False) is None


@pytest.mark.parametrize(
    ("unit", "is_binary", "method"), [("fraction", True, "wilson"), ("fraction", False, "bootstrap"), ("logit", True, "bootstrap")]
)
def test_only_a_fraction_of_rows_has_a_wilson_interval(unit, is_binary, method):
    assert interval([0.0, 1.0, 1.0], unit, is_binary).method == method
