import json
from pathlib import Path

import jsonschema
import pytest
from test_errors import BASE, TRAINED, apply, broken
from test_mutated_documents import at, places

from causalab_mini.errors import DocumentError
from causalab_mini.plan.load import load_raw
from causalab_mini.plan.schema import schema
from causalab_mini.plan.vocabulary import vocabulary
from causalab_mini.shipped import example_documents

pytestmark = pytest.mark.plain

CASES = Path(__file__).resolve().parent / "cases"
BEYOND = json.loads((CASES / "beyond_schema.json").read_text(encoding="utf-8"))
"""Cases that compare two places of a document, or tell 1.0 from 1: no schema can refuse them."""
ALL = [(path.name, case) for path in sorted((CASES / "errors").glob("*.json")) for case in json.loads(path.read_text(encoding="utf-8"))]


@pytest.fixture(scope="module")
def validator():
    made = schema()
    jsonschema.Draft202012Validator.check_schema(made)
    return jsonschema.Draft202012Validator(made)


@pytest.mark.parametrize("name", list(example_documents()))
def test_the_schema_accepts_every_example(validator, name):
    document = json.loads(example_documents()[name].read_text(encoding="utf-8"))
    assert [error.message for error in validator.iter_errors(document)] == []
    assert validator.is_valid({"$schema": "causalab.json", **document})


POSITION = "interventions/patching/reads/source/pos"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (POSITION, {"index": {"sweep": [-1]}}),
        (POSITION, {"last": 1, "stride": {"sweep": [1]}}),
        (POSITION, {"span": {"sweep": [[0, 1]]}}),
        (POSITION, {"span": [{"sweep": [0]}, 1]}),
        (POSITION, {"index": 0, "scope": {"sweep": [{"variable": "entity"}]}}),
        ("sites/stream/layers", [{"sweep": [0, 1]}]),
        ("steps/measure/outputs/zero", {"difference": [{"sweep": ["mean"]}, "mean"]}),
    ],
)
def test_a_sweep_stands_for_a_value_however_deep(validator, path, value):
    document = apply(BASE, {"patch": {path: value}})
    assert load_raw(document).is_sweep
    assert [error.message for error in validator.iter_errors(document)] == []


def test_a_sweep_stands_for_any_value_of_featurizers_and_steps(validator):
    for path in places(TRAINED):
        if path[0] == "model":
            continue
        document = json.loads(json.dumps(TRAINED))
        here = at(document, path[:-1])
        here[path[-1]] = {"sweep": [here[path[-1]]]}
        try:
            load_raw(document)
        except DocumentError:
            assert not validator.is_valid(document), path
        else:
            assert validator.is_valid(document), path


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("featurizers/latents", {"kind": {"sweep": ["sae", "linear", "pca"]}, "k": 2, "file_path": "a.safetensors"}),
        ("featurizers/latents", {"kind": "sae", "file_path": "a.safetensors", "activation": {"sweep": ["topk"]}, "topk": 4}),
        ("interventions/clean/metrics/near", {"kind": {"sweep": ["kl", "js"]}, "of": "logits", "against": "logits"}),
        ("steps/train/optimizer", {"name": {"sweep": ["adam", "adamw"]}, "lr": {"sweep": [0.1, 0.01]}, "betas": [0.9, 0.99]}),
        ("steps/measure/outputs/variance", {"read": "stream", "reduce": {"sweep": ["pca"]}, "k": 3}),
        ("steps/sparse/objective/1/0", {"sweep": [0, 0.1, 1.0]}),
    ],
)
def test_a_swept_word_leaves_open_what_goes_with_it(validator, path, value):
    document = apply(TRAINED, {"patch": {path: value}})
    assert load_raw(document).is_sweep
    assert [error.message for error in validator.iter_errors(document)] == []


@pytest.mark.parametrize(("file", "case"), ALL, ids=[f"{file}: {case['why']}" for file, case in ALL])
def test_the_schema_refuses_what_a_schema_can(validator, file, case):
    document = broken(case)
    assert validator.is_valid(document) == (case["why"] in BEYOND.get(file, []))


def test_what_is_beyond_a_schema_is_the_smaller_part():
    assert sum(map(len, BEYOND.values())) < len(ALL) / 2


@pytest.mark.parametrize(
    ("value", "is_valid"),
    [
        ({"sweep": [0, 1]}, True),
        ({"sweep": {"range": [0, 2]}, "as": "layer"}, True),
        ({"sweep": "all"}, True),
        ({"sweep": ["block_output"]}, False),
        ({"sweep": []}, False),
        ({"sweep": [0], "to": "layer"}, False),
    ],
)
def test_a_sweep_stands_in_place_of_a_value_of_its_type(validator, value, is_valid):
    assert validator.is_valid(apply(BASE, {"patch": {"sites/stream/layers": value}})) == is_valid


def test_every_key_is_described():
    made = schema()
    for name, definition in {"document": made, **made["$defs"]}.items():
        plain = definition["anyOf"][1] if name == "Position" else definition
        for key, value in plain["properties"].items():
            assert value.get("description") or key == "kind", f"{name}.{key}"


def test_the_vocabulary_gives_every_word_a_meaning():
    for section, words in vocabulary().items():
        assert words, section
        assert all(words.values()), section
