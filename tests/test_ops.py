"""Mechanisms, metrics and reductions against independent computations with numpy and scipy."""

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from scipy.spatial import distance

from causalab_mini.ops import mechanisms, metrics, reductions
from causalab_mini.ops.mechanisms import MECHANISMS, Change
from causalab_mini.ops.metrics import METRICS, Scored
from causalab_mini.ops.windows import Index, Value, concatenate, gather, scatter

pytestmark = pytest.mark.tiny

ROWS, WIDTH = 7, 33


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(3)


@pytest.fixture
def logits(generator):
    return 4.0 * torch.randn(ROWS, WIDTH, generator=generator)


@pytest.fixture
def other_logits(generator):
    return 4.0 * torch.randn(ROWS, WIDTH, generator=generator)


def close(found, expected, tolerance=2e-6):
    """fp32 sums of some tens of terms against fp64."""
    np.testing.assert_allclose(np.asarray(found, dtype=np.float64), expected, rtol=tolerance, atol=tolerance)


def fp64(tensor):
    return tensor.double().numpy()


# mechanisms


@pytest.fixture
def change(generator):
    value, arrived, operand, noise = (torch.randn(5, WIDTH, generator=generator) for _ in range(4))
    return Change(value, arrived, operand, scale=2.5, t=0.3, lo=-0.2, hi=0.4, noise=noise)


def test_every_mechanism_of_the_language_has_a_function():
    from causalab_mini.plan.spec import MECHANISM_RULES

    assert set(MECHANISMS) == set(MECHANISM_RULES)


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("swap", lambda f, f0, g, e: g),
        ("permute", lambda f, f0, g, e: g),
        ("add_scaled", lambda f, f0, g, e: f + 2.5 * g),
        ("lerp", lambda f, f0, g, e: 0.7 * f + 0.3 * g),
        ("gaussian", lambda f, f0, g, e: f + 2.5 * e),
        ("clamp", lambda f, f0, g, e: np.minimum(np.maximum(f, -0.2), 0.4)),
        ("renormalize", lambda f, f0, g, e: f * (np.linalg.norm(f0, axis=-1) / np.linalg.norm(f, axis=-1))[:, None]),
        ("project_out", lambda f, f0, g, e: f - g * ((f * g).sum(-1) / (g * g).sum(-1))[:, None]),
    ],
)
def test_a_mechanism_is_its_formula(change, name, formula):
    expected = formula(*(fp64(tensor) for tensor in (change.value, change.arrived, change.operand, change.noise)))
    before = change.value.clone()
    close(MECHANISMS[name](change), expected)
    assert torch.equal(change.value, before)


def test_one_vector_is_given_to_every_written_token(change):
    for name in ("swap", "add_scaled", "lerp", "project_out"):
        one = Change(change.value, change.arrived, change.operand[:1], scale=2.5, t=0.3)
        repeated = Change(change.value, change.arrived, change.operand[:1].repeat(5, 1), scale=2.5, t=0.3)
        assert torch.equal(MECHANISMS[name](one), MECHANISMS[name](repeated))


def test_clamp_with_one_bound_leaves_the_other_side(change):
    assert torch.equal(mechanisms.clamp(Change(change.value, change.arrived, lo=0.0)), change.value.clamp(min=0.0))
    assert torch.equal(mechanisms.clamp(Change(change.value, change.arrived, hi=0.0)), change.value.clamp(max=0.0))


def test_nothing_is_divided_by_a_length_of_zero(change):
    zero = torch.zeros_like(change.value)
    assert torch.equal(mechanisms.renormalize(Change(zero, change.arrived)), zero)
    assert torch.equal(mechanisms.project_out(Change(change.value, change.arrived, zero)), change.value)


def test_noise_depends_on_seed_write_layer_row_and_token_and_on_no_batch():
    places = [(0, 3), (0, 4), (5, 3), (9, 0)]
    together = mechanisms.noise(7, "corrupt", 2, places, 64)
    for index, place in enumerate(places):
        assert torch.equal(mechanisms.noise(7, "corrupt", 2, [place], 64)[0], together[index])
    others = [
        mechanisms.noise(*arguments, 64)[0]
        for arguments in [(8, "corrupt", 2, places), (7, "another", 2, places), (7, "corrupt", 1, places), (7, "corrupt", 2, places[1:])]
    ]
    assert len({tuple(draw.tolist()) for draw in [*others, together[0]]}) == 5
    many = mechanisms.noise(0, "w", 0, [(0, token) for token in range(400)], 64).double().flatten().numpy()
    assert scipy.stats.kstest(many, "norm").pvalue > 1e-3


# metrics


def test_every_metric_of_the_language_is_scored_somewhere():
    from causalab_mini.plan.spec import METRIC_MODELS

    assert set(METRICS) | {"top_k", "recovered", "answer_logprob", "generated_match"} == set(METRIC_MODELS)


def test_scores_of_a_token_are_those_of_scipy(logits):
    tokens = torch.tensor([0, 5, 32, 1, 2, 3, 30])
    z, log_p = fp64(logits), scipy.special.log_softmax(fp64(logits), axis=-1)
    rows, ids = np.arange(ROWS), tokens.numpy()
    scored = Scored(logits, tokens={"token": tokens, "target": tokens, "expected": tokens, "a": tokens, "b": tokens.flip(0)})
    close(metrics.cross_entropy(scored), -log_p[rows, ids])
    close(metrics.token_logit(scored), z[rows, ids])
    close(metrics.token_prob(scored), np.exp(log_p[rows, ids]))
    close(metrics.logit_diff(scored), z[rows, ids] - z[rows, ids[::-1]])
    close(metrics.match(scored), z.argmax(-1) == ids)
    close(metrics.rank(scored), [list(np.argsort(-z[row])).index(ids[row]) for row in rows])


def test_match_is_one_where_the_most_likely_token_is_expected(logits):
    best = logits.argmax(dim=-1)
    assert metrics.match(Scored(logits, tokens={"expected": best})).tolist() == [1.0] * ROWS
    assert metrics.rank(Scored(logits, tokens={"token": best})).tolist() == [0.0] * ROWS


def test_divergences_are_those_of_scipy(logits, other_logits):
    p, q = (scipy.special.softmax(fp64(side), axis=-1) for side in (logits, other_logits))
    close(metrics.kl(Scored(logits, other_logits)), scipy.stats.entropy(p, q, axis=-1))
    close(metrics.js(Scored(logits, other_logits)), distance.jensenshannon(p, q, axis=-1) ** 2)
    close(metrics.kl(Scored(logits, logits)), np.zeros(ROWS))
    close(metrics.js(Scored(logits, logits)), np.zeros(ROWS))


def test_divergences_stay_finite_where_probabilities_underflow():
    p, q = torch.zeros(1, 4), torch.zeros(1, 4)
    p[0, 0], q[0, 1] = 300.0, 300.0
    assert metrics.js(Scored(p, q)).item() == pytest.approx(np.log(2))
    assert metrics.kl(Scored(p, q)).item() == pytest.approx(300.0)


def test_cosine_is_one_minus_scipys_distance(logits, other_logits):
    expected = [1 - distance.cosine(a, b) for a, b in zip(fp64(logits), fp64(other_logits), strict=True)]
    close(metrics.cosine(Scored(logits, other_logits)), expected)


@pytest.mark.parametrize(("how", "formula"), [("sum", np.sum), ("mean", np.mean), ("norm", np.linalg.norm), ("max", np.max)])
def test_value_is_the_sum_mean_norm_or_greatest_of_the_features(logits, how, formula):
    close(metrics.value(Scored(logits, how=how)), formula(fp64(logits), axis=-1), 1e-5)


def test_class_match_asks_only_among_the_classes():
    logits = torch.tensor([[9.0, 1.0, 2.0, 3.0], [9.0, 3.0, 2.0, 1.0]])
    classes = torch.tensor([[1, 2, 3], [3, 2, 3]])
    assert metrics.class_match(Scored(logits, tokens={"expected": torch.tensor([3, 3])}, classes=classes)).tolist() == [1.0, 0.0]


def test_top_k_is_the_most_likely_first(logits):
    tokens, probabilities = metrics.top_k(logits, 4)
    p = scipy.special.softmax(fp64(logits), axis=-1)
    order = np.argsort(-p, axis=-1)[:, :4]
    assert tokens.tolist() == order.tolist()
    close(probabilities, np.take_along_axis(p, order, axis=-1))
    assert metrics.top_k(logits, 1000)[0].shape == (ROWS, WIDTH)


def test_log_probs_of_an_answer_are_those_of_scipy(logits):
    tokens = torch.tensor([4, 0, 32, 8, 1, 1, 1])
    close(metrics.log_probs(logits, tokens), scipy.special.log_softmax(fp64(logits), axis=-1)[np.arange(ROWS), tokens.numpy()])


# reductions


@pytest.fixture
def rectangle(generator):
    return Value(torch.randn(2, 12, WIDTH, generator=generator), (3,) * 4)


@pytest.fixture
def ragged(generator):
    return Value(torch.randn(2, 7, WIDTH, generator=generator), (3, 0, 1, 2, 1))


def test_a_mean_over_a_rectangle_keeps_its_window(rectangle):
    data = fp64(rectangle.data).reshape(2, 4, 3, WIDTH)
    close(reductions.mean(rectangle, keeps_window=True), data.mean(axis=1))
    close(reductions.std(rectangle, keeps_window=True), data.std(axis=1, ddof=1))


def test_a_mean_over_a_ragged_read_is_one_vector_over_all_its_tokens(ragged):
    close(reductions.mean(ragged, keeps_window=False), fp64(ragged.data).mean(axis=1, keepdims=True))
    close(reductions.std(ragged, keeps_window=False), fp64(ragged.data).std(axis=1, ddof=1, keepdims=True))


def test_the_spread_of_one_row_is_zero(generator):
    one = Value(torch.randn(1, 2, WIDTH, generator=generator), (2,))
    assert torch.equal(reductions.std(one, keeps_window=True), torch.zeros(1, 2, WIDTH))


def test_principal_directions_are_those_of_numpys_svd(ragged):
    found = reductions.pca(ragged, 3)
    for layer in range(2):
        data = fp64(ragged.data[layer])
        expected = np.linalg.svd(data - data.mean(axis=0), full_matrices=False)[2][:3]
        largest = np.abs(expected).argmax(axis=-1)
        expected *= np.sign(expected[np.arange(3), largest])[:, None]
        close(found[layer], expected)
        close(found[layer] @ found[layer].T, np.eye(3))


def test_means_by_group_leave_out_groups_without_a_token(ragged):
    found = reductions.mean_by(ragged, ["x", "empty", "y", "x", "y"])
    data = fp64(ragged.data)
    assert list(found) == ["x", "y"]
    close(found["x"], data[:, [0, 1, 2, 4, 5]].mean(axis=1, keepdims=True))
    close(found["y"], data[:, [3, 6]].mean(axis=1, keepdims=True))


# windows


def test_scatter_replaces_what_it_names_and_leaves_the_rest_to_the_bit(generator):
    activation = torch.randn(3, 6, WIDTH, generator=generator)
    before = activation.clone()
    index = Index(torch.tensor([0, 2, 2]), torch.tensor([5, 0, 1]), torch.tensor([4, 30]))
    values = torch.randn(3, 2, generator=generator)
    changed = scatter(activation, index, values)
    assert torch.equal(activation, before)
    assert torch.equal(gather(changed, index), values)
    mask = torch.zeros_like(activation, dtype=torch.bool)
    mask[index.rows[:, None], index.tokens[:, None], index.features] = True
    assert torch.equal(changed[~mask], before[~mask])
    assert int(mask.sum()) == 6


def test_values_of_batches_are_those_of_all_rows(ragged):
    parts = [Value(ragged.data[:, :3], (3, 0)), Value(ragged.data[:, 3:], (1, 2, 1))]
    whole = concatenate(parts)
    assert torch.equal(whole.data, ragged.data)
    assert whole.lengths == ragged.lengths
    assert [whole.row(row).shape[1] for row in range(5)] == [3, 0, 1, 2, 1]
    assert torch.equal(whole.one_token([2, 4]), ragged.data[:, [3, 6]])
