"""The README's main command: the entity's tokens carry the answer in early layers, the last token in late ones."""

import json

import pytest
from conftest import ROOT

pytestmark = pytest.mark.tiny


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    from causalab_mini import load

    out = tmp_path_factory.mktemp("quickstart") / "out"
    return out, load(ROOT / "documents" / "quickstart.json").run(out)


def means(out, metric="follows"):
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    return {(entry["axes"]["place"], entry["axes"]["layer"]): entry["mean"] for entry in summary["metrics"] if entry["metric"] == metric}


def test_every_point_has_its_mean(ran):
    assert set(means(ran[0])) == {(place, layer) for place in ("entity", "last_token") for layer in range(4)}


def test_the_logit_difference_crosses_over_with_it(ran):
    diff = means(ran[0], "logit_diff")
    assert diff["entity", 0] > 0 > diff["last_token", 0]
    assert diff["last_token", 3] > 0 > diff["entity", 3]


def test_its_checks_pass_at_every_point(ran):
    checks = [check for point in ran[1].points for check in point.step("patch").results["checks"]]
    assert [check.status for check in checks] == ["passed"] * 32


def test_a_point_is_found_by_its_label(ran):
    point = ran[1].point("layer=0,place=entity")
    table = json.loads((ran[0] / "layer=0,place=entity" / "follows.json").read_text(encoding="utf-8"))
    assert point.step("patch").results["metrics"]["follows"] == table
    assert len(table) == 48


def test_the_command_ends_with_a_table_a_map_and_the_checks(command, tmp_path):
    code, out, err = command("run", "bundled:quickstart", "--out", tmp_path / "out")
    assert code == 0
    assert out.splitlines()[:3] == [f"{tmp_path}/out/{name}" for name in ("document.json", "run.json", "points.json")]
    for text in ("metrics (mean over eligible rows, 95 % interval)", "patch · follows (fraction)", "place \\ layer"):
        assert text in err
    for name in ("rows", "passes", "writes", "places"):
        assert f"check {name}: 8 passed" in err


def test_both_engines_give_the_same_map(ran, tmp_path):
    from causalab_mini import Options, load

    load("bundled:quickstart", options=Options(engine="hooks", check="off")).run(tmp_path / "out")
    for metric in ("follows", "logit_diff"):
        assert means(tmp_path / "out", metric) == means(ran[0], metric)
