"""Controls against documents that say the same by hand, and the check that one which changes nothing changed nothing."""

import json

import pytest
from authoring import ENTITY, LOGITS, document, observe, patching, site, write_document, write_table
from conftest import ROOT
from test_fits import fitting, tables

from causalab_mini.engine.landing import deranged
from causalab_mini.errors import CheckError, PlanError, RunError
from causalab_mini.experiment import load
from causalab_mini.plan import controls

pytestmark = pytest.mark.tiny

PAIRS = json.loads((ROOT / "data" / "successor" / "pairs.json").read_text(encoding="utf-8"))[:12]
METRICS = {
    "follows": {"kind": "match", "of": "prediction", "expected": "cf_answer"},
    "loss": {"kind": "cross_entropy", "of": "prediction", "target": "cf_answer"},
}


def swapping(featurizer=None, pos=-1, layer=2, align="exact", seed=0, k=4):
    own = {} if featurizer is None else {"featurizer": featurizer}
    write = {"site": site("block_output", layer), "pos": pos, "mechanism": "swap", "operand": "source", "align": align, **own}
    raw = document({"swap": patching(write, {"site": site("block_output", layer), "pos": pos, **own}, metrics=METRICS)}, {})
    return raw | {"featurizers": {"turn": {"kind": "subspace", "k": k, "seed": seed}}}


def step(*kinds, **more):
    return {"do": observe("swap", controls=list(kinds), **more)}


def values(run, metric="loss"):
    return [row["value"] for row in run.step("do").results["metrics"][metric]]


def control(run, kind, metric="loss"):
    (entry,) = [e for e in run.step("do").results["controls"] if (e["kind"], e["metric"]) == (kind, metric)]
    return [[row["value"] for row in table] for table in entry["tables"]]


def test_a_self_swap_gives_what_no_intervention_gives_and_is_really_run(carry_out):
    run = carry_out(swapping("turn", ENTITY, 1) | {"steps": step("self_swap")}, {"rows": PAIRS}, check="sample")
    nothing = {"reads": {"prediction": {"site": {"component": "logits"}, "pos": -1, "input": "base"}}, "metrics": METRICS}
    plain = carry_out(document({"swap": nothing}, {"do": observe("swap", both=False)}), {"rows": PAIRS})
    assert control(run, "self_swap")[0] == pytest.approx(values(plain), rel=1e-4)
    checks = {check.name: check for check in run.step("do").results["checks"]}
    assert checks["controls"].status == "passed"
    fired = [c.data["writes"]["patched/patch"] for c in run.step("do").results["checks"] if "self_swap" in c.text and "writes" in c.data]
    assert [(entry["n_fired"], entry["n_not_run"]) for entry in fired] == [(len(PAIRS), 0)]


def test_a_self_swap_that_is_none_fails_the_run(tmp_path, monkeypatch):
    """Planted: the operand stays the other prompt's."""
    from dataclasses import replace

    monkeypatch.setattr(controls, "_self_swap", lambda intervention: replace(intervention, name=f"{intervention.name}~self_swap"))
    write_table(tmp_path / "data", "rows", PAIRS)
    file = write_document(tmp_path, swapping() | {"steps": step("self_swap")})
    with pytest.raises(CheckError, match=r"`self_swap` differs from no intervention by"):
        load(file).run(tmp_path / "out")


def test_random_subspaces_are_those_of_their_seeds_untrained(carry_out):
    run = carry_out(swapping("turn", seed=9) | {"steps": step({"kind": "random_subspace", "n": 2, "seed": 5})}, {"rows": PAIRS})
    for draw in range(2):
        seed = controls.drawn_seed(5, draw, "turn")
        by_hand = carry_out(swapping("turn", seed=seed) | {"steps": step()}, {"rows": PAIRS})
        assert control(run, "random_subspace")[draw] == pytest.approx(values(by_hand), rel=1e-5)
    assert control(run, "random_subspace")[0] != pytest.approx(values(run), rel=1e-3)


def test_the_full_component_is_the_swap_without_featurizer(carry_out):
    run = carry_out(swapping("turn") | {"steps": step("full_component")}, {"rows": PAIRS})
    assert control(run, "full_component")[0] == pytest.approx(values(carry_out(swapping() | {"steps": step()}, {"rows": PAIRS})), rel=1e-5)


@pytest.mark.parametrize(("pos", "layer", "align"), [(-1, 2, "exact"), (ENTITY, 1, "exact"), (ENTITY, 1, "last")])
def test_a_shuffled_source_is_another_rows(carry_out, pos, layer, align):
    run = carry_out(swapping(None, pos, layer, align) | {"steps": step({"kind": "shuffled_source", "n": 2, "seed": 3})}, {"rows": PAIRS})
    widths = [1] * len(PAIRS)
    if pos != -1:
        positions = run.step("do").results["positions"]["source"]["content"]
        widths = [len(tokens) for tokens in positions]
    for draw in range(2):
        order = deranged(list(range(len(PAIRS))), f"3/{draw}", widths, align == "exact")
        assert all(row != other for row, other in enumerate(order))
        assert sorted(order) == list(range(len(PAIRS)))
        given = {row: number for number, row in enumerate(order)}  # the row that takes a value, and whose it is
        assert align != "exact" or all(widths[row] == widths[other] for row, other in given.items())
        columns = ("counterfactual_inputs", "counterfactual_inputs_variables")
        rows = [entry | {key: PAIRS[given[row]][key] for key in columns} for row, entry in enumerate(PAIRS)]
        by_hand = carry_out(swapping(None, pos, layer, align) | {"steps": step()}, {"rows": rows})
        assert control(run, "shuffled_source")[draw] == pytest.approx(values(by_hand), rel=1e-4, abs=1e-4)


def test_a_row_whose_operand_no_other_can_take_the_place_of_is_refused(carry_out):
    run = carry_out(swapping(None, ENTITY, 1) | {"steps": step()}, {"rows": PAIRS})
    widths = [len(tokens) for tokens in run.step("do").results["positions"]["source"]["content"]]
    widest = widths.index(max(widths))
    others = [row for row, width in enumerate(widths) if width != max(widths)]
    rows = [PAIRS[row] for row in (widest, *others)]
    assert len(others) > 2
    with pytest.raises(
        PlanError, match=r"another row with as many tokens for every row .* got row 0 alone with \d tokens\nhint: with an `align`"
    ):
        carry_out(swapping(None, ENTITY, 1) | {"steps": step("shuffled_source")}, {"rows": rows})
    found = carry_out(swapping(None, ENTITY, 1, "last") | {"steps": step("shuffled_source")}, {"rows": rows})
    assert len(control(found, "shuffled_source")[0]) == len(rows)


def test_controls_stand_beside_their_metric_in_the_summary(tmp_path):
    write_table(tmp_path / "data", "rows", PAIRS)
    raw = swapping("turn") | {"steps": step("self_swap", "shuffled_source", "random_subspace", "full_component")}
    run = load(write_document(tmp_path, raw)).run(tmp_path / "out")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    follows, loss = summary["metrics"]
    assert list(follows["controls"]) == ["self_swap", "shuffled_source", "random_subspace", "full_component"]
    drawn = follows["controls"]["random_subspace"]
    assert len(drawn["draws"]) == 3
    assert drawn["mean"] == pytest.approx(sum(drawn["draws"]) / 3)
    assert follows["controls"]["self_swap"]["interval"]["method"] == "wilson"
    assert drawn["interval"]["method"] == "wilson"  # over rows, each the mean of its draws
    assert drawn["interval"]["high"] > drawn["mean"]
    assert loss["controls"]["full_component"]["mean"] == pytest.approx(sum(control(run, "full_component")[0]) / len(PAIRS))


def test_controls_of_several_interventions_are_kept_apart(carry_out):
    raw = swapping("turn")
    raw["interventions"]["plain"] = swapping()["interventions"]["swap"]
    raw["steps"] = {"do": observe(["swap", "plain"], controls=["full_component", "self_swap"])}
    found = carry_out(raw, {"rows": PAIRS}).step("do").results["controls"]
    assert [(entry["kind"], entry["metric"]) for entry in found] == [
        *(("full_component", f"swap/{name}") for name in METRICS),
        *(("self_swap", f"swap/{name}") for name in METRICS),
        *(("self_swap", f"plain/{name}") for name in METRICS),
    ]


def test_a_control_needs_a_second_row(carry_out):
    with pytest.raises(
        PlanError, match=r"steps.do.controls\[0\]: expected at least two rows \(`shuffled_source` takes another row's operand\)"
    ):
        carry_out(swapping() | {"steps": step("shuffled_source")}, {"rows": PAIRS[:1]})


def test_a_shuffled_source_of_one_row_that_a_where_left_is_refused(carry_out):
    look = {
        "reads": {"x": {"site": LOGITS, "pos": -1, "input": "base"}},
        "metrics": {"ce": {"kind": "cross_entropy", "of": "x", "target": "base_answer"}},
    }
    item = swapping()["interventions"]["swap"]
    first = carry_out(document({"look": look}, {"look": observe("look", both=False)}), PAIRS[:8])
    least = min(row["value"] for row in first.step("look").results["metrics"]["ce"])
    where = {"step": "look", "metric": "ce", "max": least + 1e-7}
    steps = {"look": observe("look", both=False), "do": observe("swap", controls=["shuffled_source"], where=where)}
    with pytest.raises(RunError, match=r"at least two rows \(`shuffled_source` takes another row's value\)"):
        carry_out(document({"look": look, "swap": item}, steps), PAIRS[:8])


def test_a_random_subspace_is_not_the_start_of_the_training(carry_out):
    raw = fitting(
        {"rotation": {"kind": "subspace", "k": 4}}, epochs=1, optimizer={"name": "sgd", "lr": 1e-12}, controls=["random_subspace"]
    )
    found = carry_out(raw, tables()).step("train").results
    drawn = [[row["value"] for row in table] for e in found["controls"] if e["metric"] == "loss" for table in e["tables"]]
    assert drawn[0] != pytest.approx([row["value"] for row in found["metrics"]["loss"]], rel=1e-4)
