"""What makes two documents the same experiment."""

import json

import pytest
from test_errors import BASE, TRAINED, apply

from causalab_mini.plan.load import load_raw
from causalab_mini.plan.spec import MECHANISM_RULES, Spec

pytestmark = pytest.mark.plain

POSITION = "interventions/patching/reads/source/pos"
WRITE = "interventions/patching/writes/patch"
STREAM = "sites/stream"
PATCHING = "interventions/patching"
UNUSED = {"reads": {"r": {"site": "logits", "pos": -1, "input": "base"}}}


def digest(*patches, base=BASE):
    document = base
    for patch in patches:
        document = apply(document, {"patch": patch})
    return load_raw(document).digest


def reversed_keys(value, path=()):
    if isinstance(value, dict):
        items = value.items() if path == ("steps",) else reversed(value.items())
        return {key: reversed_keys(inner, (*path, key)) for key, inner in items}
    return value


SAME = {
    "an index and its object": {POSITION: {"index": -1}},
    "a default frame": {POSITION: {"index": -1, "frame": "prompt"}},
    "an offset of 0": {POSITION: {"index": -1, "offset": 0}},
    "a layer and a list of it": {STREAM + "/layers": [1]},
    "a default version": {"version": 1},
    "a header": {"header": {"title": "x", "tags": ["a"]}},
    "a schema": {"$schema": "https://example.org/schema.json"},
    "empty sections": {
        "featurizers": {},
        PATCHING + "/decode": 0,
        "steps/patch/outputs": {},
        "steps/measure/saves": BASE["steps"]["measure"]["saves"],
    },
    "the default model": {PATCHING + "/reads/source/model": "original"},
    "a named model's own input": {PATCHING + "/reads/prediction/input": "base"},
    "a default view": {PATCHING + "/reads/source/view": "raw"},
    "a default align": {WRITE + "/align": "exact"},
    "empty params": {WRITE + "/params": {}},
    "a default token form": {PATCHING + "/metrics/follows/token_form": "space_prefixed"},
    "a number and the same number": {"steps/patch/where/min": 1.0},
    "an unused site": {"sites/unused": {"component": "ln_final"}},
    "an unused role": {"roles/unused": {"field": "x"}},
    "an unused intervention": {"interventions/unused": UNUSED},
    "a default reduction": {"steps/measure/outputs/mean": {"read": "stream", "reduce": "mean"}},
}


@pytest.mark.parametrize("patch", SAME.values(), ids=SAME.keys())
def test_spelling_defaults_and_what_no_step_uses_do_not_matter(patch):
    assert digest(patch) == digest()


EQUAL = {
    "scale 1": ({WRITE + "/mechanism": "add_scaled"}, {WRITE + "/params": {"scale": 1}}, {WRITE + "/params": {"scale": 1.0}}),
    "stride 1": ({POSITION: {"last": 1}}, {POSITION: {"last": 1, "stride": 1}}),
    "the first occurrence spelled out": (
        {POSITION: {"index": 0, "scope": {"text": "x"}}},
        {POSITION: {"index": 0, "scope": {"text": "x", "occurrence": "only"}}},
    ),
    "k of top_k": ({PATCHING + "/metrics/t": {"kind": "top_k", "of": "clean"}}, {PATCHING + "/metrics/t/k": 5}),
    "an output by its read's name": ({"steps/measure/outputs/raw": "stream"},),
}


@pytest.mark.parametrize("patches", EQUAL.values(), ids=EQUAL.keys())
def test_a_default_spelled_out_is_the_default(patches):
    assert len({digest(*patches[: n + 1]) for n in range(len(patches))}) == 1
    assert digest(patches[0]) != digest()


def test_the_order_of_keys_does_not_matter_but_in_steps():
    assert load_raw(reversed_keys(BASE)).digest == digest()
    without_where = {"steps/patch/where": {"step": "measure", "metric": "right", "min": 0}}
    free = apply(BASE, {"patch": without_where})
    del free["steps"]["patch"]["where"]
    backwards = {**free, "steps": dict(reversed(free["steps"].items()))}
    assert load_raw(backwards).digest != load_raw(free).digest


OTHER = {
    "a model": {"model/key": "bundled:successor-gpt2"},
    "a dtype": {"model/dtype": "bf16"},
    "an attention": {"model/attn_implementation": "eager"},
    "a role's field": {"roles/base/field": "other"},
    "a layer": {STREAM + "/layers": 0},
    "a negative layer": {STREAM + "/layers": -1},
    "a stacked site": {STREAM + "/layers": [1, 2]},
    "a component": {STREAM + "/component": "mlp_output"},
    "units": {STREAM + "/units": [0]},
    "a position": {POSITION: 0},
    "the last token as a run": {POSITION: {"last": 1}},
    "an offset": {POSITION: {"index": -1, "offset": -1}},
    "a mechanism": {WRITE + "/mechanism": "project_out"},
    "a params": {WRITE: {"site": "stream", "pos": -1, "mechanism": "lerp", "operand": "source", "params": {"t": 0}}},
    "an operand": {WRITE + "/operand": 0},
    "an align": {WRITE + "/align": "mean"},
    "a column": {PATCHING + "/metrics/follows/expected": "base_answer"},
    "a token form": {PATCHING + "/metrics/follows/token_form": "bare"},
    "another metric": {PATCHING + "/metrics/more": {"kind": "top_k", "of": "clean"}},
    "another read": {PATCHING + "/reads/more": {"site": "stream", "pos": 0, "input": "base"}},
    "rows": {"steps/measure/rows/base": "successor/all", "steps/patch/rows/base": "successor/all"},
    "a bound": {"steps/patch/where/min": 0},
    "a reduction": {"steps/measure/outputs/mean/reduce": "std"},
    "a file": {"steps/patch/saves/0/file_path": "other.json"},
    "a name": {"steps/patch/outputs": {"o": "source"}},
}


def test_what_has_another_meaning_has_another_digest():
    digests = {name: digest(patch) for name, patch in OTHER.items()} | {"the base": digest()}
    assert len(set(digests.values())) == len(digests)


@pytest.mark.parametrize("writes", [["patch", "more"], ["more", "patch"]])
def test_the_order_of_a_models_writes_matters(writes):
    more = {PATCHING + "/writes/more": {"site": "stream", "pos": -1, "mechanism": "add_scaled", "operand": 1}}
    found = digest(more, {PATCHING + "/models/patched/writes": writes})
    assert found != digest(more, {PATCHING + "/models/patched/writes": list(reversed(writes))})


def test_an_intervention_in_place_does_not_hide_a_declared_one_of_its_steps_name():
    in_place = {"steps/patching": {"kind": "observe", "rows": {"base": "successor/pairs"}, "interventions": UNUSED}}
    first = apply(BASE, {"patch": in_place})
    first["steps"] = {"patching": first["steps"].pop("patching"), **first["steps"]}
    second = apply(first, {"patch": {POSITION: 0, WRITE + "/pos": 0}})
    assert load_raw(first).digest != load_raw(second).digest


def test_a_document_read_from_a_file_and_one_given_as_data_are_the_same(tmp_path):
    from causalab_mini.plan.load import load_spec

    (tmp_path / "a.json").write_text(json.dumps(BASE, indent=3))
    loaded = load_spec(tmp_path / "a.json")
    assert loaded.digest == digest()
    assert loaded.points[0].spec == Spec.model_validate(BASE)


def test_a_digest_is_pinned():
    assert digest() == "72db031a99feb1741bca8f3d39c7950dc8a4b3a572eb89345be448c3491a4c30"


def test_a_loaded_document_is_immutable():
    spec = Spec.model_validate(BASE)
    with pytest.raises(ValueError, match="frozen"):
        spec.version = 1
    for held in (spec.sites, spec.featurizers, spec.interventions["clean"].writes, spec.steps["patch"].outputs):
        with pytest.raises(TypeError, match="immutable"):
            held["stream"] = spec.sites["logits"]
    assert hash(spec) == hash(Spec.model_validate(BASE))


def test_scale_is_the_only_param_with_a_default():
    assert {name for name, rule in MECHANISM_RULES.items() if "scale" in rule.optional} == {"add_scaled", "gaussian"}
    assert {name for rule in MECHANISM_RULES.values() for name in rule.optional} == {"scale"}


def test_writes_and_models_that_no_read_needs_do_not_count():
    extra = json.loads(json.dumps(BASE))
    patching = extra["interventions"]["patching"]
    patching["writes"]["spare"] = {"site": "stream", "pos": 0, "mechanism": "swap", "operand": 0}
    patching["models"]["idle"] = {"input": "base", "writes": ["spare"]}
    assert load_raw(extra).digest == load_raw(BASE).digest
    patching["models"]["patched"]["writes"] = ["patch", "spare"]
    assert load_raw(extra).digest != load_raw(BASE).digest


ROTATION = "featurizers/rotation"
FIT = "steps/train"
TRAINED_SAME = {
    "unused featurizers": {
        "featurizers/spare": {"kind": "gate"},
        "featurizers/parts": {"kind": "chain", "of": ["spare"]},
        "featurizers/latents/k": 7,
    },
    "a default parametrization": {ROTATION + "/parametrization": "cayley"},
    "a default start": {ROTATION + "/init": "random"},
    "a default seed": {FIT + "/seed": 0},
    "the seed of the fit": {ROTATION + "/seed": 0},
    "a default schedule": {FIT + "/optimizer/schedule": "constant", FIT + "/optimizer/warmup": 0, FIT + "/optimizer/weight_decay": 0},
    "default betas": {FIT + "/optimizer/betas": [0.9, 0.999]},
    "no temperatures": {FIT + "/anneal": {}},
    "what is kept": {FIT + "/keep": "best"},
    "a weight and the same number": {FIT + "/objective/0/0": 1.0},
    "a control and its object": {"steps/apply/controls": [{"kind": "self_swap"}, {"kind": "full_component"}]},
    "as many draws as there are anyway": {FIT + "/controls/0": {"kind": "random_subspace", "n": 3, "seed": 0}},
    "a write that is not made": {
        "interventions/swap/writes/spare": {"site": "later", "pos": 0, "mechanism": "swap", "operand": 0, "featurizer": "latents"}
    },
}
TRAINED_OTHER = {
    "k": {ROTATION + "/k": 5},
    "the seed of a draw": {ROTATION + "/seed": 1},
    "the seed of a fit": {FIT + "/seed": 1},
    "a parametrization": {ROTATION + "/parametrization": "qr"},
    "a start": {ROTATION + "/init": "pca"},
    "a file": {ROTATION + "/file_path": "basis.safetensors"},
    "a source": {"featurizers/directions": {"kind": "pca", "k": 2, "file_path": "basis.safetensors"}},
    "features": {"interventions/swap/writes/patch/features": [0]},
    "the weight of a term": {FIT + "/objective/0/0": 2},
    "another term": {FIT + "/objective": [[1, "loss"], [1, "loss"]]},
    "epochs": {FIT + "/epochs": 4},
    "pairs": {FIT + "/pairs": 4},
    "an optimizer": {FIT + "/optimizer/name": "adam"},
    "a rate": {FIT + "/optimizer/lr": 0.1},
    "momentum": {"steps/sparse/optimizer/momentum": 0.5},
    "a temperature": {"steps/sparse/anneal/mask/end": 0.2},
    "patience": {FIT + "/early_stop/patience": 1},
    "what is kept": {FIT + "/keep": "last"},
    "the rows of the evaluation": {FIT + "/eval/rows/base": "other"},
    "controls": {FIT + "/controls": []},
    "draws": {FIT + "/controls/1/n": 3},
    "names": {"steps/publish/names": ["rotation"]},
    "a method": {"steps/explain": {**TRAINED["steps"]["explain"], "ig_steps": 6}},
    "how many are verified": {"steps/explain/verify_top": 4},
}


@pytest.mark.parametrize("patch", TRAINED_SAME.values(), ids=TRAINED_SAME.keys())
def test_two_spellings_of_what_is_trained_are_one(patch):
    assert digest(patch, base=TRAINED) == digest(base=TRAINED)


@pytest.mark.parametrize("patch", TRAINED_OTHER.values(), ids=TRAINED_OTHER.keys())
def test_other_training_is_another_experiment(patch):
    assert digest(patch, base=TRAINED) != digest(base=TRAINED)


def test_a_default_of_a_featurizer_depends_on_the_fit():
    seeded = {FIT + "/seed": 5}
    assert digest(seeded, {ROTATION + "/seed": 5}, base=TRAINED) == digest(seeded, base=TRAINED)
    assert digest(seeded, {ROTATION + "/seed": 0}, base=TRAINED) != digest(seeded, base=TRAINED)


def test_ten_steps_on_the_way_and_no_momentum_are_defaults():
    explain = {key: value for key, value in TRAINED["steps"]["explain"].items() if key != "ig_steps"}
    plain = {"steps/explain": explain, "steps/sparse/optimizer": {"name": "sgd", "lr": 1}}
    assert digest(plain, {"steps/explain/ig_steps": 10, "steps/sparse/optimizer/momentum": 0.0}, base=TRAINED) == digest(
        plain, base=TRAINED
    )


def test_a_chain_is_what_its_parts_are():
    chained = {
        "featurizers/both": {"kind": "chain", "of": ["rotation", "inner"]},
        "featurizers/inner": {"kind": "subspace", "k": 2},
        "interventions/swap/reads/source/featurizer": "both",
        "interventions/swap/writes/patch/featurizer": "both",
    }
    assert digest(chained, base=TRAINED) != digest(chained, {"featurizers/inner/k": 1}, base=TRAINED)
