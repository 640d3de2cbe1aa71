"""A model's first use: what a rewrite leaves out is left out beside a whole run; where the numbers differ, less is left out."""

import sys

import pytest
from authoring import LOGITS, RAGGED_PAIRS, document, observe, site, write_table
from planted_faults import rolled_keys
from test_rewrites import assert_same, numbers
from test_schedule import swap

from causalab_mini.engine import shaping
from causalab_mini.engine.cache import PrefixCache
from causalab_mini.plan import build_request

pytestmark = pytest.mark.tiny


@pytest.fixture
def case(engines, tmp_path):
    """Returns an engine that nothing is known of, and a request: two layers patched at the last token but one."""
    engine = engines("llama-grouped", "hooks")
    write_table(tmp_path, "rows", RAGGED_PAIRS)
    trust, engine.trust = engine.trust, None
    yield engine, build_request(swap(layers={"sweep": [0, 1], "as": "layer"}, pos=-2), tmp_path, engine)
    engine.trust = trust


def test_a_model_is_tried_once(case, monkeypatch):
    engine, request = case
    run = engine.execute(request)
    schedule = run.record["schedule"]
    assert schedule["level"] == "token"
    assert 0 <= schedule["first_use"] < 1e-4
    assert run.warnings == ()
    monkeypatch.setattr(sys.modules["causalab_mini.engine.execute"], "find_trust", lambda *arguments: pytest.fail("it was tried again"))
    engine.execute(request)


def test_it_is_not_tried_where_no_check_is_asked_for(case):
    engine, request = case
    assert engine.execute(request, check="off").record["schedule"]["first_use"] == "not checked"
    assert engine.trust is None


def test_keys_of_the_wrong_token_are_found_and_layers_are_resumed_alone(case, monkeypatch):
    engine, request = case
    expected = numbers(engine.execute(request, check="off", rewrites=()))
    right = PrefixCache.update
    monkeypatch.setattr(PrefixCache, "update", lambda *given, **named: rolled_keys(right, *given, **named))
    run = engine.execute(request)
    assert run.record["schedule"]["level"] == "layer"
    assert run.record["schedule"]["refused"]["token"] > 1e-3
    assert "passes that resume at a token are not used on this model: they differ from whole ones by" in run.warnings[0]
    assert_same(expected, numbers(run), exactly=False)


def test_streams_of_the_wrong_layer_are_found_and_whole_passes_are_run(case, monkeypatch):
    engine, request = case
    expected = numbers(engine.execute(request, check="off", rewrites=()))
    right = shaping._stream
    monkeypatch.setattr(shaping, "_stream", lambda joining, like: right(joining, like) * 1.5)
    run = engine.execute(request)
    assert run.record["schedule"]["level"] == "plain"
    assert set(run.record["schedule"]["refused"]) == {"token", "layer"}
    assert_same(expected, numbers(run), exactly=False)
    assert run.record["schedule"]["passes"][1] < run.record["schedule"]["passes"][0]


def test_what_fails_where_it_is_tried_is_not_used(case, monkeypatch):
    """As a release of transformers would that gives its caches another argument."""
    engine, request = case
    expected = numbers(engine.execute(request, check="off", rewrites=()))
    monkeypatch.setattr(PrefixCache, "update", lambda self, *arguments, **more: {}["gone"])
    run = engine.execute(request)
    assert run.record["schedule"]["level"] == "layer"
    assert run.record["schedule"]["refused"] == {"token": "KeyError: 'gone'"}
    assert "passes that resume at a token are not used on this model: KeyError" in run.warnings[0]
    assert_same(expected, numbers(run), exactly=False)


def test_a_document_that_resumes_nowhere_leaves_the_next_one_to_try(case, tmp_path):
    engine, request = case
    reads = {"z": {"site": LOGITS, "pos": -1, "input": "base"}}
    looking = document({"p": {"reads": reads}}, {"s": observe("p", both=False, outputs={"z": "z"})})
    assert engine.execute(build_request(looking, tmp_path, engine)).record["schedule"]["first_use"] == "not checked"
    assert engine.execute(request).record["schedule"]["first_use"] < 1e-4


def test_what_needs_an_output_by_way_of_a_pass_it_is_joined_with_is_not_tried(case, tmp_path):
    """`A` needs nothing, but its patched pass shares a batch with that of `B`, whose source adds an output."""
    engine, _ = case
    stream = site("block_output", 1)

    def chain(operand, role):
        return {
            "reads": {
                "moved": {"site": stream, "pos": -1, "model": "first"},
                "prediction": {"site": LOGITS, "pos": -1, "model": "second"},
            },
            "writes": {
                "set": {"site": site("block_output", 0), "pos": -1, "mechanism": "swap", "operand": operand},
                "put": {"site": stream, "pos": -1, "mechanism": "swap", "operand": "moved"},
            },
            "models": {"first": {"input": role, "writes": ["set"]}, "second": {"input": "base", "writes": ["put"]}},
        }

    harvest = {"reads": {"z": {"site": site("block_output", 0), "pos": -1, "input": "base"}}}
    steps = {
        "harvest": observe("harvest", both=False, outputs={"mean": {"read": "z", "reduce": "mean"}}),
        "both": observe(["A", "B"], outputs={"a": "A/prediction", "b": "B/prediction"}),
    }
    raw = document({"harvest": harvest, "A": chain(0.5, "counterfactual"), "B": chain({"ref": "mean"}, "base")}, steps)
    request = build_request(raw, tmp_path, engine)
    expected = numbers(engine.execute(request, check="off", rewrites=()))
    assert_same(expected, numbers(engine.execute(request)), exactly=False)
