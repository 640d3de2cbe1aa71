"""Linear probes: against scikit-learn by hand, groups, shuffled labels, and the file."""

import json

import numpy
import pytest
import torch
from safetensors.torch import load, save
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import balanced_accuracy_score, mean_absolute_error, r2_score, roc_auc_score, root_mean_squared_error
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from causalab_mini.data import probe_files
from causalab_mini.errors import DataError
from causalab_mini.evidence.intervals import bootstrap_of
from causalab_mini.ops import linear_probe
from causalab_mini.ops.linear_probe import LinearProbe
from causalab_mini.ops.probe_training import (
    L2,
    MAX_ITERATIONS,
    N_SHUFFLES,
    SCORES,
    Predicted,
    constant,
    judge,
    judge_shuffled,
    judge_weighted,
    lacking,
    make_folds,
    p_value,
    predict_out_of_fold,
    shuffled,
    train,
)

pytestmark = pytest.mark.tiny

STAMP = {"model": "bundled:successor-llama", "layer": 2, "position": "-1", "label": "a → b", "score": 0.5, "heads": None}


def pipeline(probe):
    """Returns what a probe is, as scikit-learn alone has it."""
    logistic = LogisticRegression(C=1 / L2, solver="newton-cg", max_iter=MAX_ITERATIONS)
    return make_pipeline(StandardScaler(), logistic if probe == "logistic" else Ridge(alpha=L2))


def data(probe, n_classes=3, n=90, n_groups=60, seed=0, signal=1.0):
    """Returns features on very different scales, targets, and groups of which some have several rows with equal targets."""
    generator = numpy.random.default_rng(seed)
    groups = numpy.concatenate([numpy.arange(n_groups), generator.integers(0, n_groups, n - n_groups)])
    of_group = generator.integers(0, n_classes, n_groups).astype(float) if probe == "logistic" else generator.normal(size=n_groups)
    targets = of_group[groups]
    features = generator.normal(size=(n, 7))
    features[:, 0] += signal * targets
    features[:, 1] -= signal * (targets == 1)
    return (features + 5) * 10.0 ** numpy.arange(-3, 4), targets, groups


@pytest.mark.parametrize(("probe", "n_classes"), [("logistic", 2), ("logistic", 3), ("ridge", 0)])
def test_a_probe_is_scikit_learns_with_its_standardisation_folded_in(probe, n_classes):
    features, targets, _ = data(probe, n_classes or 3)
    classes = tuple(f"class {index}" for index in range(n_classes))
    found, converged = train(probe, features, targets, classes, STAMP)
    truth = pipeline(probe).fit(features, targets)
    assert converged
    x = torch.from_numpy(features)
    scores = found.scores(x)
    expected = truth.decision_function(features) if probe == "logistic" else truth.predict(features)
    expected = torch.from_numpy(expected).float().reshape(scores.shape)
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(scores, (x.float() @ found.weight.T + found.bias))
    assert found.weight.dtype == found.bias.dtype == torch.float32
    if probe == "logistic":
        probabilities = torch.from_numpy(truth.predict_proba(features)).float()
        torch.testing.assert_close(found.probabilities(x), probabilities, rtol=1e-4, atol=1e-4)
        assert (found.predictions(x).numpy() == truth.predict(features)).all()
        assert found.probabilities(x[None, :2, None]).shape == (1, 2, 1, n_classes)
    else:
        torch.testing.assert_close(found.predictions(x), expected[:, 0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("probe", ["logistic", "ridge"])
def test_what_is_held_out_is_predicted_as_by_hand_on_the_same_folds(probe):
    features, targets, groups = data(probe)
    folds = make_folds(probe, targets, groups, 4, seed=3)
    found = predict_out_of_fold(probe, features, targets, folds)
    expected = cross_val_predict(pipeline(probe), features, targets, cv=PredefinedSplit(folds))
    assert found.values == pytest.approx(expected, abs=1e-12)
    if probe == "logistic":
        probabilities = cross_val_predict(pipeline(probe), features, targets, cv=PredefinedSplit(folds), method="predict_proba")
        assert found.scores == pytest.approx(probabilities.max(axis=1), abs=1e-12)


def test_of_two_classes_the_score_is_the_probability_of_the_second():
    features, targets, groups = data("logistic", 2)
    folds = make_folds("logistic", targets, groups, 4, seed=3)
    found = predict_out_of_fold("logistic", features, targets, folds)
    probabilities = cross_val_predict(pipeline("logistic"), features, targets, cv=PredefinedSplit(folds), method="predict_proba")
    assert found.scores == pytest.approx(probabilities[:, 1], abs=1e-12)


@pytest.mark.parametrize("probe", ["logistic", "ridge"])
@pytest.mark.parametrize("seed", [0, 1, 2**62])
def test_a_group_is_never_on_both_sides_of_a_fold(probe, seed):
    _, targets, groups = data(probe)
    folds = make_folds(probe, targets, groups, 5, seed)
    assert set(folds.tolist()) == set(range(5))
    for group in set(groups.tolist()):
        assert len(set(folds[groups == group].tolist())) == 1
    assert (make_folds(probe, targets, groups, 5, seed) == folds).all()
    assert (make_folds(probe, targets, groups, 5, seed + 1) != folds).any()


def test_copies_that_a_probe_could_learn_by_heart_do_not_help_it():
    generator = numpy.random.default_rng(0)
    features = numpy.repeat(generator.normal(size=(100, 300)), 3, axis=0)
    targets = numpy.repeat(generator.integers(0, 2, 100).astype(float), 3)
    together = make_folds("logistic", targets, numpy.repeat(numpy.arange(100), 3), 5, seed=0)
    apart = make_folds("logistic", targets, numpy.arange(300), 5, seed=0)
    honest, learned_by_heart = (
        judge("logistic", targets, predict_out_of_fold("logistic", features, targets, folds))["accuracy"] for folds in (together, apart)
    )
    assert honest < 0.65
    assert learned_by_heart > 0.95


@pytest.mark.parametrize("probe", ["logistic", "ridge"])
def test_shuffled_labels_are_no_better_than_chance_and_show_what_is(probe):
    first = next(iter(SCORES[probe]))
    chance = {"logistic": 1 / 3, "ridge": 0.0}[probe]
    for signal, is_real in ((3.0, True), (0.0, False)):
        features, targets, groups = data(probe, signal=signal, seed=1)
        folds = make_folds(probe, targets, groups, 5, seed=0)
        value = judge(probe, targets, predict_out_of_fold(probe, features, targets, folds))[first]
        draws = judge_shuffled(probe, features, targets, groups, folds, seed=0)[first]
        assert len(draws) == N_SHUFFLES
        assert sum(draws) / len(draws) == pytest.approx(chance, abs=0.25)
        assert (p_value(value, draws, True) == pytest.approx(1 / 21)) == is_real
        assert (value > max(draws)) == is_real
    assert judge_shuffled(probe, features, targets, groups, folds, seed=0)[first] == draws
    assert judge_shuffled(probe, features, targets, groups, folds, seed=1)[first] != draws


def test_shuffled_labels_stay_in_their_fold_and_with_their_prompt():
    _, targets, groups = data("logistic", n_groups=60)
    folds = make_folds("logistic", targets, groups, 4, seed=0)
    found = shuffled(targets, groups, folds, numpy.random.default_rng(0))
    assert (found != targets).any()
    for group in set(groups.tolist()):
        assert len(set(found[groups == group].tolist())) == 1
    for fold in range(4):
        here = [(folds == fold) & (groups == group) for group in set(groups[folds == fold].tolist())]
        before, after = (sorted(values[rows][0] for rows in here) for values in (targets, found))
        assert before == after


def test_a_p_value_counts_itself_and_ties():
    assert p_value(1.0, [0.0] * 19, True) == 0.05
    assert p_value(1.0, [1.0] * 19, True) == 1.0
    assert p_value(1.0, [2.0] * 19, False) == 0.05


@pytest.mark.parametrize("n_classes", [2, 3])
def test_scores_of_classes_are_scikit_learns(n_classes):
    generator = numpy.random.default_rng(0)
    targets = generator.choice(n_classes, 50, p=[0.6, *[0.4 / (n_classes - 1)] * (n_classes - 1)]).astype(float)
    scores = generator.integers(0, 6, 50) / 5 + 0.1 * targets  # with ties
    predicted = Predicted(generator.integers(0, n_classes, 50).astype(float), scores, True)
    found = judge("logistic", targets, predicted)
    assert found["accuracy"] == pytest.approx((predicted.values == targets).mean())
    assert found["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(targets, predicted.values))
    assert ("roc_auc" in found) == (n_classes == 2)
    if n_classes == 2:
        assert found["roc_auc"] == pytest.approx(roc_auc_score(targets, scores))
    weights = generator.integers(0, 4, (3, 50)).astype(float)
    for index, own in enumerate(weights):
        again = {name: values[index] for name, values in judge_weighted("logistic", targets, predicted, weights).items()}
        repeated = numpy.repeat(numpy.arange(50), own.astype(int))
        expected = judge("logistic", targets[repeated], Predicted(predicted.values[repeated], scores[repeated], True))
        assert again == pytest.approx(expected)


def test_scores_of_numbers_are_scikit_learns():
    generator = numpy.random.default_rng(0)
    targets, values = generator.normal(size=(2, 40)) + 1e3
    found = judge("ridge", targets, Predicted(values, values, True))
    assert found["r2"] == pytest.approx(r2_score(targets, values))
    assert found["correlation"] == pytest.approx(numpy.corrcoef(targets, values)[0, 1])
    assert found["mae"] == pytest.approx(mean_absolute_error(targets, values))
    assert found["rmse"] == pytest.approx(root_mean_squared_error(targets, values))
    plain = judge("ridge", targets, constant("ridge", targets))
    assert plain["r2"] == pytest.approx(0, abs=1e-9)
    assert plain["rmse"] == pytest.approx(targets.std())
    assert "correlation" not in plain


def test_without_features_there_is_the_most_frequent_class():
    targets = numpy.array([0.0, 0, 0, 1, 2])
    assert judge("logistic", targets, constant("logistic", targets)) == pytest.approx({"accuracy": 0.6, "balanced_accuracy": 1 / 3})
    targets = numpy.array([0.0, 1, 1])
    assert judge("logistic", targets, constant("logistic", targets))["roc_auc"] == 0.5


def test_a_fold_without_a_class_is_found():
    assert lacking(numpy.array([0.0, 1, 0, 1]), numpy.array([0, 0, 1, 1]), 2) is None
    assert lacking(numpy.array([0.0, 1, 0, 0]), numpy.array([0, 0, 1, 1]), 2) == (1, 1)


def test_a_fit_that_does_not_end_is_told(monkeypatch):
    monkeypatch.setattr("causalab_mini.ops.probe_training.MAX_ITERATIONS", 1)
    features, targets, groups = data("logistic")
    assert train("logistic", features, targets, ("a", "b", "c"), STAMP)[1] is False
    assert predict_out_of_fold("logistic", features, targets, make_folds("logistic", targets, groups, 4, 0)).converged is False


def test_a_feature_that_never_moves_changes_nothing():
    features, targets, _ = data("logistic", 2)
    features[:, 2] = 7.0
    found, _ = train("logistic", features, targets, ("a", "b"), STAMP)
    without, _ = train("logistic", numpy.delete(features, 2, axis=1), targets, ("a", "b"), STAMP)
    assert found.weight[0, 2] == 0
    torch.testing.assert_close(found.bias, without.bias)


def test_a_statistics_interval_is_of_groups():
    def mean(weights):
        return weights @ values / weights.sum(axis=1)

    values = numpy.array([0.0, 0, 1, 1] * 8)
    alone, twice = (bootstrap_of(mean, groups.tolist()) for groups in (numpy.arange(32), numpy.arange(32) // 8))
    assert alone.low < 0.5 < alone.high
    assert (twice.low, twice.high) == (0.5, 0.5)
    assert bootstrap_of(mean, [0] * 32) is None
    assert bootstrap_of(lambda weights: numpy.full(len(weights), numpy.nan), list(range(32))) is None


# The file


def probe(n_classes=3, kind="logistic", width=5):
    generator = torch.Generator().manual_seed(0)
    n = 1 if n_classes <= 2 else n_classes
    classes = tuple(["no", "with ∂", "yes"][:n_classes]) if kind == "logistic" else ()
    return LinearProbe(torch.randn(n, width, generator=generator), torch.randn(n, generator=generator), kind, classes, STAMP)


@pytest.mark.parametrize("made", [probe(3), probe(2), probe(0, "ridge")], ids=["three", "two", "ridge"])
def test_a_probe_comes_out_of_its_file_as_it_went_in(made, tmp_path):
    path = tmp_path / "probe.safetensors"
    path.write_bytes(made.to_bytes())
    found = LinearProbe.from_file(path)
    assert torch.equal(found.weight, made.weight)
    assert torch.equal(found.bias, made.bias)
    assert (found.probe, found.classes, found.stamp) == (made.probe, made.classes, made.stamp)
    assert found.to_bytes() == made.to_bytes()
    header = probe_files.read_header(path)
    assert header.metadata["format"] == "causalab-mini linear probe 1" == linear_probe.FORMAT == probe_files.FORMAT
    assert json.loads(header.metadata["classes"]) == list(made.classes)
    assert json.loads(header.metadata["stamp"]) == made.stamp
    assert set(load(path.read_bytes())) == {"weight", "bias"}
    assert repr(found) == repr(made)


@pytest.mark.parametrize("classes", [(False, True), (1, 2, 10)])
def test_classes_keep_their_kind(classes, tmp_path):
    n = 1 if len(classes) == 2 else len(classes)
    path = tmp_path / "probe.safetensors"
    path.write_bytes(LinearProbe(torch.ones(n, 2), torch.ones(n), "logistic", classes, {}).to_bytes())
    found = LinearProbe.from_file(path).classes
    assert found == classes
    assert [type(label) for label in found] == [type(label) for label in classes]


METADATA = {"format": "causalab-mini linear probe 1", "probe": "logistic", "classes": '["a", "b"]', "stamp": "{}"}
TENSORS = {"weight": torch.ones(1, 4), "bias": torch.ones(1)}


@pytest.mark.parametrize(
    ("tensors", "metadata", "error"),
    [
        (TENSORS, {"format": "pt"}, "__metadata__.format: expected the format `causalab-mini linear probe 1`, got `pt`"),
        (TENSORS, {"format": None}, "__metadata__.format: expected the format `causalab-mini linear probe 1`, got none"),
        (TENSORS, {"stamp": None}, "__metadata__: expected a `stamp`, got none"),
        (TENSORS, {"stamp": "[]"}, "__metadata__.stamp: expected an object, got `[]`"),
        (TENSORS, {"probe": "svm"}, "__metadata__.probe: expected one of `logistic`, `ridge`, got `svm`"),
        (TENSORS, {"classes": '["a"]'}, '__metadata__.classes: expected a list of at least two labels, got `["a"]`'),
        (TENSORS, {"classes": '["b", "a"]'}, '__metadata__.classes: expected distinct labels, sorted, got `["b", "a"]`'),
        (
            TENSORS,
            {"classes": '["b", 1]'},
            '__metadata__.classes: expected labels that are all texts, all whole numbers, or `false` and `true`, got `["b", 1]`',
        ),
        (
            TENSORS,
            {"classes": "[[1], [2]]"},
            "__metadata__.classes: expected labels that are all texts, all whole numbers, or `false` and `true`, got `[[1], [2]]`",
        ),
        (TENSORS, {"probe": "ridge"}, '__metadata__.classes: expected an empty list (`ridge` has no classes), got `["a", "b"]`'),
        ({"weight": TENSORS["weight"]}, {}, "expected the tensors `weight`, `bias`, got none called `bias`"),
        ({**TENSORS, "scale": torch.ones(1)}, {}, "expected no tensors but `weight`, `bias`, got `scale`"),
        ({**TENSORS, "bias": torch.ones(1).double()}, {}, "bias.dtype: expected `F32`, got `F64`"),
        ({**TENSORS, "weight": torch.ones(4)}, {}, "weight: expected a matrix (1, features), as its labels have it, got (4,)"),
        ({**TENSORS, "weight": torch.ones(2, 4)}, {}, "weight: expected a matrix (1, features), as its labels have it, got (2, 4)"),
        ({**TENSORS, "weight": torch.ones(1, 0)}, {}, "weight: expected a matrix (1, features), as its labels have it, got (1, 0)"),
        ({**TENSORS, "bias": torch.ones(2)}, {}, "bias: expected a vector (1,), got (2,)"),
        (
            {**TENSORS, "weight": torch.tensor([[0.0, float("nan"), float("inf"), 1]])},
            {},
            "weight: expected finite numbers, got 2 of 4 that are not",
        ),
    ],
)
def test_a_file_that_is_no_probe_is_refused_with_file_expected_and_got(tensors, metadata, error, tmp_path):
    path = tmp_path / "probe.safetensors"
    path.write_bytes(save(tensors, {key: value for key, value in {**METADATA, **metadata}.items() if value is not None}))
    with pytest.raises(DataError) as caught:
        LinearProbe.from_file(path)
    assert caught.value.text() == f"error: {path}: {error}"


def test_what_is_no_safetensors_file_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "probe.safetensors"
    with pytest.raises(DataError, match="expected a readable file, got no such file"):
        LinearProbe.from_file(path)
    path.write_bytes(b"\x80\x04pickled")
    with pytest.raises(DataError, match="expected a safetensors header"):
        LinearProbe.from_file(path)
    whole = probe().to_bytes()
    for n in (0, 7, 20, len(whole) - 1):
        path.write_bytes(whole[:n])
        with pytest.raises(DataError):
            LinearProbe.from_file(path)
    path.write_bytes(whole)
    monkeypatch.setattr(probe_files, "MAX_BYTES", len(whole) - 1)
    with pytest.raises(DataError, match=f"expected a file of at most {len(whole) - 1:,} bytes, got {len(whole):,} bytes"):
        LinearProbe.from_file(path)
