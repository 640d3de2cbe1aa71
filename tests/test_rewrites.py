"""Every rewrite alone, and all of them, give the numbers of the plan's own passes; the schedules of the examples are pinned as text."""

import json
from pathlib import Path

import pytest
import torch
from authoring import ENTITY, LOGITS, document, observe, patching, site
from conftest import ROOT

from causalab_mini.engine.first_use import Trust
from causalab_mini.experiment import load
from causalab_mini.plan import build_request
from causalab_mini.plan.load import load_spec
from causalab_mini.plan.plan import verify as plan_laws
from causalab_mini.schedule.laws import verify
from causalab_mini.schedule.located import build_schedule
from causalab_mini.schedule.physical import Cost, plain_schedule
from causalab_mini.schedule.printed import text
from causalab_mini.schedule.repeated import fit_costs
from causalab_mini.schedule.rewrites import REWRITES, rewrite, run_directly
from causalab_mini.shipped import example_documents

pytestmark = pytest.mark.tiny

EXAMPLES = {name: path for name, path in example_documents().items() if not name.startswith(("v2/", "smollm2/"))}
TRACED = tuple(one for one in REWRITES if one is not run_directly)
ALONE = {one.__name__: (one, run_directly) for one in TRACED} | {"all": REWRITES, "all traced": TRACED}
ALONE_TOO = ("quickstart", "path_patching", "steering", "head_patching", "answers_of_several_tokens", "attention_knockout", "window_patch")
"""Examples that are run with each rewrite alone; all are with all of them, and random documents with each."""
SAME_BITS = ("share", "drop", "stop_early", "free_early")
PINNED = Path(__file__).resolve().parent / "cases" / "schedules.json"


def compiled(name):
    loaded = load_spec(EXAMPLES[name])
    engine = load(EXAMPLES[name]).open()
    request = build_request(loaded, ROOT / "data", engine)
    schedules = [build_schedule(request, point) for point in request.points]
    return engine, request, schedules


def numbers(run):
    """Returns every value of every table and output of a run, in order."""
    found = []
    for point in run.points:
        for step in point.steps.values():
            for name, rows in step.results["metrics"].items():
                found += [((point.label, name, row["example_id"], row.get("layer")), row["value"]) for row in rows]
            for name, made in step.results["outputs"].items():
                found.append(((point.label, name), made.value.data))
    return found


def assert_same(left, right, exactly):
    assert [key for key, _ in left] == [key for key, _ in right]
    for (key, one), (_, other) in zip(left, right, strict=True):
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(one, other, rtol=0 if exactly else 1e-4, atol=0 if exactly else 1e-4, msg=str(key))
        elif isinstance(one, list):
            assert [token for token, _ in one] == [token for token, _ in other], key
            likely = [probability for _, probability in one]
            assert [probability for _, probability in other] == (likely if exactly else pytest.approx(likely, rel=1e-4, abs=1e-4)), key
        else:
            assert one == (other if exactly else pytest.approx(other, rel=1e-4, abs=1e-4)), key


@pytest.fixture(scope="module")
def plain():
    """Returns a function that gives an example's engine, request, schedules, and numbers without any rewrite."""
    made = {}

    def of(name):
        if name not in made:
            engine, request, schedules = compiled(name)
            made[name] = (engine, request, schedules, numbers(engine.execute(request, schedules=schedules, check="off", rewrites=())))
        return made[name]

    return of


@pytest.mark.parametrize(
    ("name", "which"), [(name, which) for name in EXAMPLES for which in ALONE if which.startswith("all") or name in ALONE_TOO]
)
def test_an_example_gives_the_same_numbers_under_every_rewrite(plain, name, which):
    engine, request, schedules, expected = plain(name)
    found = numbers(engine.execute(request, schedules=schedules, check="off", rewrites=ALONE[which]))
    assert_same(expected, found, exactly=which in SAME_BITS)


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_every_schedule_keeps_its_laws_and_costs_no_more(plain, name):
    _, request, schedules, _ = plain(name)
    for point in request.points:
        assert plan_laws(point.plan) == []
    physical = plain_schedule(request, schedules)
    assert verify(physical) == []
    for one in REWRITES:
        physical = one(physical)
        assert verify(physical) == []
    before = physical.plain.cost
    assert physical.cost.layer_tokens <= before.layer_tokens
    assert physical.cost.head_positions <= before.head_positions


def test_the_costs_of_the_examples_are_pinned(plain):
    found = {}
    for name in EXAMPLES:
        _, request, schedules, _ = plain(name)
        physical = rewrite(plain_schedule(request, schedules))
        before, after = physical.plain.cost, physical.cost
        found[name] = {key: [getattr(before, key), getattr(after, key)] for key in Cost.__dataclass_fields__}
    assert found == json.loads(PINNED.read_text(encoding="utf-8"))


def test_the_costs_of_fits_are_pinned(plain):
    """Layers times tokens of a run over all rows as the plan has it, once, and in each epoch; forwards an update; points together."""
    _, request, schedules, _ = plain("das")
    (fit,) = fit_costs(request, schedules, REWRITES)
    assert (fit.plain, fit.once, fit.each, fit.n_forwards, len(fit.points)) == (258_048, 32_256, 31_104, 1, 8)
    (alone,) = fit_costs(*plain("standardize_subspace")[1:3], REWRITES)
    assert (alone.plain, alone.once, alone.each, alone.n_forwards) == (32_256, 28_224, 576, 1)
    (bare,) = fit_costs(*plain("standardize_subspace")[1:3], ())
    assert (bare.plain, bare.once, bare.each) == (32_256, 16_128, 16_128)


def test_a_shared_source_runs_once_and_patched_passes_begin_where_they_write(plain):
    _, request, schedules, _ = plain("quickstart")
    physical = rewrite(plain_schedule(request, schedules))
    lines = text(physical).splitlines()
    assert lines[2].split()[:4] == ["#2", "original", "on", "counterfactual"]
    assert lines[2].split()[-2:] == ["#1", "8"]  # it resumes from the first, and stands for eight
    parts = [
        (part.n_skipped, part.forward.writes[0].site.layers) for one in physical.passes.values() if one.has_writes for part in one.parts
    ]
    assert sorted(parts) == sorted(2 * [(layer + 1, (layer,)) for layer in range(4)])


def test_the_schedule_that_the_docs_show_is_the_quickstarts(plain):
    _, request, schedules, _ = plain("quickstart")
    assert text(rewrite(plain_schedule(request, schedules))) in (ROOT / "docs" / "schedule.md").read_text(encoding="utf-8")


def test_forwards_are_run_as_often_as_the_schedule_says(plain, monkeypatch):
    engine, request, schedules, _ = plain("quickstart")
    n = []
    run = type(engine).run
    monkeypatch.setattr(type(engine), "run", lambda self, *args: (n.append(1), run(self, *args))[1])
    engine.execute(request, schedules=schedules, check="off")
    physical = rewrite(plain_schedule(request, schedules))
    assert len(physical.passes) == 8
    assert len(n) == sum(len(one.batches()) for one in physical.passes.values())


COMPONENTS = (
    "embeddings",
    "block_input",
    "attention_query",
    "attention_z",
    "attention_output",
    "block_mid",
    "mlp_output",
    "block_output",
    "ln_final",
    "logits",
)


@pytest.mark.parametrize("kind", ["nnterp", "hooks"])
@pytest.mark.parametrize("name", ["successor-llama", "successor-gpt2", "llama-grouped", "mistral"])
@pytest.mark.parametrize("component", COMPONENTS)
def test_a_patch_anywhere_gives_the_same_numbers_with_all_rewrites(engines, component, name, kind):
    engine = engines(name, kind)
    per_layer = component not in ("embeddings", "ln_final", "logits")
    place = site(component, {"sweep": "all", "as": "layer"}) if per_layer else site(component)
    pos = -1 if component == "logits" else ENTITY if name == "successor-llama" else {"last": 2}
    reads = {
        "source": {"site": place, "pos": pos, "input": "counterfactual"},
        "prediction": {"site": LOGITS, "pos": {"last": 2}, "model": "patched"},
        "stream": {"site": site("block_output", "all"), "pos": {"all": True}, "model": "patched"},
    }
    write = {"site": place, "pos": pos, "mechanism": "swap", "operand": "source"}
    intervention = {"reads": reads, "writes": {"patch": write}, "models": {"patched": {"input": "base", "writes": ["patch"]}}}
    raw = document(
        {"i": intervention}, {"s": observe("i", "successor/same_shape", outputs={"prediction": "prediction", "stream": "stream"})}
    )
    request = build_request(raw, ROOT / "data", engine)
    expected = numbers(engine.execute(request, check="off", rewrites=()))
    assert_same(expected, numbers(engine.execute(request, check="off")), exactly=False)


def test_a_difference_that_stands_before_its_parts_is_another_at_every_point(engines):
    """Only the read is swept: the later step is told apart by what its operand was made of, wherever that was declared."""
    stream = site("block_output", {"sweep": [0, 2], "as": "layer"})
    reads = {name: {"site": stream, "pos": -1, "input": role} for name, role in (("from", "base"), ("to", "counterfactual"))}
    outputs = {
        "direction": {"difference": ["to_mean", "from_mean"]},
        "from_mean": {"read": "from", "reduce": "mean"},
        "to_mean": {"read": "to", "reduce": "mean"},
    }
    add = {"site": site("block_output", 1), "pos": -1, "mechanism": "add_scaled", "operand": {"ref": "direction"}}
    steps = {
        "harvest": observe("harvest", "successor/same_shape", outputs=outputs),
        "steer": observe("steer", "successor/same_shape", both=False, outputs={"prediction": "prediction"}),
    }
    raw = document({"harvest": {"reads": reads}, "steer": patching(add)}, steps)
    engine = engines("successor-llama", "hooks")
    request = build_request(raw, ROOT / "data", engine)
    expected = numbers(engine.execute(request, check="off", rewrites=()))
    first, second = (value for key, value in expected if key[1] == "prediction")
    assert not torch.allclose(first, second)
    assert_same(expected, numbers(engine.execute(request, check="off")), exactly=False)


def test_a_run_is_checked_against_its_plain_passes(plain, monkeypatch):
    """A rewrite that resumes one layer late is found by the rows check, whose single rows run without any rewrite."""
    from causalab_mini.schedule.rewrites import resume

    engine, request, schedules, _ = plain("patching")
    right, engine_run = resume.n_below, type(engine).run
    monkeypatch.setattr(engine, "trust", Trust("token", None))  # it was right when the model was first used
    monkeypatch.setattr(resume, "n_below", lambda part, n_layers: max(0, right(part, n_layers) - 1))
    monkeypatch.setattr(
        type(engine), "run", lambda self, batch, visits, state, shortcut: engine_run(self, batch, visits, state, _late(shortcut))
    )
    run = engine.execute(request, schedules=schedules)
    assert [check.status for check in run.step("patch").results["checks"] if check.name == "rows"] == ["failed"]


def _late(shortcut):
    from dataclasses import replace

    enters = tuple(replace(enter, n_skipped=enter.n_skipped + 1) if enter.n_skipped else enter for enter in shortcut.enters)
    return replace(shortcut, enters=enters)
