"""`fit_probe` steps: a linear probe of what an earlier step has read, in a document from its refusals to its files."""

import csv
import json
from dataclasses import replace

import pytest
import torch
from authoring import ENTITY, LOGITS, document, observe, patching, site, write_document, write_table
from conftest import ROOT

from causalab_mini.engine import linear_probes
from causalab_mini.engine.engines.hooks import HooksEngine
from causalab_mini.errors import PlanError
from causalab_mini.experiment import Options, load
from causalab_mini.ops.linear_probe import LinearProbe
from causalab_mini.ops.windows import Value
from causalab_mini.plan import build_request
from causalab_mini.plan import plan as nodes
from causalab_mini.plan.explain import explain, explain_data
from causalab_mini.plan.load import load_raw
from causalab_mini.plan.spec import ModelSpec

pytestmark = pytest.mark.tiny

MONTHS = json.loads((ROOT / "data" / "successor" / "months.json").read_text(encoding="utf-8"))
END = {"site": site("block_output", 2), "pos": -1, "input": "base"}
READING = {"reads": {"end": END}}


def task(row):
    return {
        **row,
        "way": row["task"].rpartition("_")[2],
        "length": len(row["input"]),
        "is_next": row["task"] == "month_next",
        "step": 1.5 if row["task"] == "month_next" else -1,
    }


ROWS = [task(row) for row in MONTHS[::2]]


def probing(interventions=None, source=None, **more):
    """Returns a document that reads, then trains a probe; `more` are keys of the probe's step."""
    step = {"kind": "fit_probe", "rows": {"base": "rows"}, "features": "end", "label": "way", "probe": "logistic", "folds": 3, **more}
    read = source or observe("reading", both=False, outputs={"end": "end"})
    return document(interventions or {"reading": READING}, {"read": read, "probe": step})


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    write_table(root, "rows", ROWS)
    return root


def compiled(raw, root):
    """Returns the refusal of a document, before weights, and that none were loaded."""
    engine = HooksEngine.load(ModelSpec(key="bundled:successor-llama", dtype="fp32"), device_map="cpu")
    with pytest.raises(PlanError) as caught:
        engine.execute(build_request(raw, root, engine))
    assert engine.module is None
    return caught.value.text()


def refusal(rows, root, **more):
    write_table(root, "rows", rows)
    return compiled(probing(**more), root)


# What it gives


def test_a_probe_is_of_the_very_activations(carry_out, plain_models):
    run = carry_out(probing(), ROWS, kind="hooks")
    results = run.step("probe", nodes.FitProbe).results
    model, tokenizer = plain_models("successor-llama")
    probe = results["probe"]
    assert isinstance(probe, LinearProbe)
    assert probe.classes == ("next", "previous")
    said = [probe.classes[int(probe.predictions(activation(model, tokenizer, row["input"])))] for row in ROWS]
    assert said == [row["way"] for row in ROWS]
    assert {
        key: probe.stamp[key] for key in ("model", "dtype", "component", "layer", "position", "label", "n_rows", "seed", "read_in")
    } == {
        "model": "bundled:successor-llama",
        "dtype": "fp32",
        "component": "block_output",
        "layer": 2,
        "position": "{index:-1}",
        "label": "way",
        "n_rows": len(ROWS),
        "seed": 0,
        "read_in": "original",
    }
    assert probe.stamp["score"] == results["summary"]["scores"]["accuracy"]["value"]
    assert probe.stamp["digest"] == run.points[0].digest


def activation(model, tokenizer, text):
    ids = tokenizer(text, return_tensors="pt")["input_ids"][0].tolist()
    found = {}

    def hook(module, args, output):
        found["stream"] = (output[0] if isinstance(output, tuple) else output)[0, -1]

    handle = model.model.layers[2].register_forward_hook(hook)
    with torch.no_grad():
        model(torch.tensor([ids]))
    handle.remove()
    return found["stream"]


def test_the_tables_say_how_every_row_and_fold_did(carry_out):
    results = carry_out(probing(folds=4), ROWS, kind="hooks").step("probe").results
    predictions, scores = results["predictions"], results["scores"]
    assert [line["example_id"] for line in predictions] == [str(row) for row in range(len(ROWS))]
    assert all(line["correct"] == (line["predicted"] == line["label"]) for line in predictions)
    assert all((line["score"] > 0.5) == (line["predicted"] == "previous") for line in predictions)
    assert {line["fold"] for line in predictions} == {0, 1, 2, 3}
    for line in scores:
        own = [each for each in predictions if line["fold"] in (None, each["fold"])]
        assert line["n"] == len(own)
        if line["score"] == "accuracy":
            assert line["value"] == pytest.approx(sum(each["correct"] for each in own) / len(own))
    overall = {line["score"]: line for line in scores if line["fold"] is None}
    assert {"accuracy", "roc_auc"} <= set(overall)
    assert overall["accuracy"]["method"] == "wilson"
    assert overall["roc_auc"]["method"] == "bootstrap"
    assert overall["accuracy"]["low"] <= overall["accuracy"]["value"] <= overall["accuracy"]["high"]
    assert overall["accuracy"]["shuffled_p_value"] == pytest.approx(1 / 21)
    assert overall["accuracy"]["shuffled_low"] <= overall["accuracy"]["shuffled_mean"] <= overall["accuracy"]["shuffled_high"]
    counts = [sum(row["way"] == way for row in ROWS) for way in ("next", "previous")]
    assert overall["accuracy"]["baseline"] == max(counts) / len(ROWS)
    assert results["summary"]["classes"] == [{"label": way, "n": n} for way, n in zip(("next", "previous"), counts, strict=True)]


def test_ridge_predicts_numbers(carry_out):
    results = carry_out(probing(probe="ridge", label="step"), ROWS, kind="hooks").step("probe").results
    assert results["probe"].classes == ()
    scores = results["summary"]["scores"]
    assert list(scores) == ["r2", "correlation", "mae", "rmse"]
    assert scores["r2"]["value"] > 0.3 > scores["r2"]["shuffled"]["high"]
    assert scores["r2"]["baseline"] == pytest.approx(0)
    assert scores["mae"]["value"] < scores["mae"]["baseline"]
    assert scores["mae"]["shuffled"]["p_value"] == pytest.approx(1 / 21)
    assert all(line["correct"] is None and line["predicted"] == line["score"] for line in results["predictions"])


def test_equal_prompts_are_in_one_fold(carry_out):
    rows = [*ROWS, *ROWS[:10]]
    results = carry_out(probing(), rows, kind="hooks").step("probe").results
    folds = {}
    for row, line in zip(rows, results["predictions"], strict=True):
        folds.setdefault(row["input"], set()).add(line["fold"])
    assert all(len(own) == 1 for own in folds.values())
    assert results["summary"]["n_prompts"] == len(folds) < len(rows)


def test_a_random_label_is_at_chance_and_the_control_shows_it(carry_out):
    draws = torch.randint(2, (len(ROWS),), generator=torch.Generator().manual_seed(3)).tolist()
    rows = [{**row, "coin": side} for row, side in zip(ROWS, draws, strict=True)]
    scores = carry_out(probing(label="coin"), rows, kind="hooks").step("probe").results["summary"]["scores"]
    assert scores["accuracy"]["value"] == pytest.approx(0.5, abs=0.2)
    assert scores["accuracy"]["shuffled"]["p_value"] > 0.1


def test_the_same_seed_gives_the_same_numbers_whatever_the_batches(carry_out):
    one = carry_out(probing(), ROWS, kind="hooks")
    again = carry_out(probing(), ROWS, kind="hooks")
    small = carry_out(probing(), ROWS, kind="hooks", batch_size=3)
    other = carry_out(probing(seed=1), ROWS, kind="hooks")
    first, second, third, fourth = (run.step("probe").results for run in (one, again, small, other))
    assert first["probe"].to_bytes() == second["probe"].to_bytes()
    assert first["summary"] == second["summary"]
    assert first["predictions"] == second["predictions"]
    assert [line["predicted"] for line in first["predictions"]] == [line["predicted"] for line in third["predictions"]]
    assert [line["fold"] for line in first["predictions"]] == [line["fold"] for line in third["predictions"]]
    torch.testing.assert_close(first["probe"].weight, third["probe"].weight, rtol=1e-3, atol=1e-4)  # activations differ in their last bits
    assert [line["fold"] for line in first["predictions"]] != [line["fold"] for line in fourth["predictions"]]


def test_rows_that_are_left_out_have_their_reason(carry_out):
    rows = [dict(row) for row in ROWS]
    rows[3]["way"], rows[4]["way"] = None, ""
    del rows[5]["way"]
    rows[6]["entity"] = "Thursday"
    end = {"site": site("block_output", 2), "pos": {"index": -1, "scope": {"variable": "entity"}}, "input": "base"}
    length = {"kind": "value", "of": "logits", "how": "max"}
    reading = {"reads": {"end": end, "logits": {"site": LOGITS, "pos": -1, "input": "base"}}, "metrics": {"most": length}}
    raw = probing({"reading": reading})
    plain = carry_out(raw, rows, kind="hooks").step("probe").results
    reasons = {index: line["reason"] for index, line in enumerate(plain["predictions"]) if line["reason"]}
    assert reasons == {3: "column_missing", 4: "column_missing", 5: "column_missing", 6: "alignment_missing"}
    assert plain["summary"]["left_out"] == {"column_missing": 3, "alignment_missing": 1}
    assert plain["summary"]["eligible"] == len(rows) - 4
    left = [line for line in plain["predictions"] if line["reason"]]
    assert all((line["predicted"], line["score"], line["fold"], line["correct"]) == (None,) * 4 for line in left)

    steps = {"first": raw["steps"]["read"] | {"outputs": {}}, **raw["steps"]}
    steps["read"] = steps["read"] | {"where": {"step": "first", "metric": "most", "min": 0}}
    values = [line["value"] for line in carry_out(raw, rows, kind="hooks").step("read").results["metrics"]["most"]]
    least = sorted(values)[len(values) // 5]
    steps["read"]["where"]["min"] = least
    filtered = carry_out({**raw, "steps": steps}, rows, kind="hooks").step("probe").results
    counts = filtered["summary"]["left_out"]
    assert counts["filtered"] == sum(value < least for value in values)
    expected = ["filtered" if value < least else reasons.get(index, "") for index, value in enumerate(values)]
    assert [line["reason"] for line in filtered["predictions"]] == expected


def test_a_value_that_is_not_finite_is_left_out(carry_out, engines):
    run = carry_out(probing(), ROWS, kind="hooks")
    step = run.step("probe").node
    made = run.step("read").results["outputs"]["end"]
    values = made.value.data.clone()
    values[0, 7, 0] = float("inf")
    made = replace(made, value=Value(values, made.value.lengths))
    found = linear_probes.fit_probe(step, made, [""] * len(ROWS), engines("successor-llama", "hooks").facts, "")
    assert found["predictions"][7]["reason"] == "not_finite"
    assert found["summary"]["left_out"] == {"not_finite": 1}


def test_a_generated_token_can_be_read(carry_out):
    end = END | {"pos": {"frame": "generated", "index": 0}, "site": site("ln_final")}
    results = carry_out(probing({"reading": {"reads": {"end": end}, "decode": 1}}), ROWS, kind="hooks").step("probe").results
    assert results["summary"]["eligible"] == len(ROWS)
    assert results["probe"].stamp["layer"] is None


def test_prompts_of_both_sides_of_a_patch_are_kept_together(carry_out):
    write = {"site": site("block_output", 1), "pos": ENTITY, "mechanism": "swap", "operand": "source", "align": "last"}
    after = {"end": {"site": site("block_output", 2), "pos": -1, "model": "patched"}}
    raw = probing(
        {"reading": patching(write, {"site": site("block_output", 1), "pos": ENTITY}, reads=after)},
        observe("reading", outputs={"end": "end"}),
        rows={"base": "rows", "counterfactual": "rows"},
        folds=2,
    )
    rows = [task(row) for row in MONTHS[28:68]]
    for row in rows[:4]:
        row["counterfactual_inputs"] = rows[0]["counterfactual_inputs"]
        row["counterfactual_inputs_variables"] = rows[0]["counterfactual_inputs_variables"]
    run = carry_out(raw, rows, kind="hooks")
    node = run.step("probe").node
    assert len(set(node.groups[:4])) == 1
    assert node.model == "patched"
    folds = [line["fold"] for line in run.step("probe").results["predictions"]]
    assert len(set(folds[:4])) == 1


def test_a_probe_in_a_step_of_several_interventions_is_of_the_one_that_is_named(carry_out):
    other = {"reads": {"end": END | {"site": site("block_output", 0)}}}
    source = observe(["low", "reading"], both=False, outputs={"end": "reading/end", "low_end": "low/end"})
    run = carry_out(probing({"reading": READING, "low": other}, source), ROWS, kind="hooks")
    alone = carry_out(probing(), ROWS, kind="hooks")
    assert run.step("probe").results["summary"]["scores"] == alone.step("probe").results["summary"]["scores"]
    assert run.step("probe").results["probe"].stamp["layer"] == 2


# Files, summary, screen


def test_files_summary_and_record(data, tmp_path, command):
    saves = [
        {"value": "probe", "file_path": "way.safetensors"},
        {"value": "scores", "file_path": "scores.json"},
        {"value": "predictions", "file_path": "predictions.csv"},
    ]
    raw = probing(saves=saves, seed=5)
    path = write_document(tmp_path, raw)
    said = command("run", path, "--data-root", data, "--out", tmp_path / "out", "--engine", "hooks")
    assert said.code == 0, said.err
    out = tmp_path / "out"
    probe = LinearProbe.from_file(out / "way.safetensors")
    assert probe.classes == ("next", "previous")
    run = load(path, data_root=data, options=Options(engine="hooks")).run(tmp_path / "again")
    assert probe.to_bytes() == run.step("probe").results["probe"].to_bytes()
    assert json.loads((out / "scores.json").read_text()) == run.step("probe").results["scores"]
    with (out / "predictions.csv").open() as file:
        assert next(csv.reader(file)) == ["example_id", "label", "predicted", "score", "fold", "correct", "reason"]
        assert len(list(file)) == len(ROWS)
    summary, record = (json.loads((out / f"{name}.json").read_text()) for name in ("summary", "run"))
    entry = next(entry for entry in summary["metrics"] if entry["metric"] == "accuracy")
    assert entry["interval"]["method"] == "wilson"
    assert set(entry["controls"]) == {"majority_class", "shuffled_labels"}
    assert len(entry["controls"]["shuffled_labels"]["draws"]) == 20
    assert entry["controls"]["shuffled_labels"]["p_value"] == pytest.approx(1 / 21)
    (how,) = summary["probes"]
    assert (how["step"], how["n"], how["eligible"], how["left_out"], how["l2"]) == ("probe", len(ROWS), len(ROWS), {}, 1.0)
    assert record["seeds"] == [5]
    assert "scikit-learn" in record["versions"]
    for words in ("majority_class", "shuffled_labels", "p 0.048", "roc_auc"):
        assert words in said.err, words


def test_a_sweep_over_layers_names_its_best_point(data, tmp_path):
    raw = probing()
    raw["interventions"]["reading"]["reads"]["end"]["site"]["layers"] = {"sweep": [0, 2]}
    load(write_document(tmp_path, raw), data_root=data, options=Options(engine="hooks")).run(tmp_path / "out")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    found = {entry["axes"]["layers"]: entry["mean"] for entry in summary["metrics"] if entry["metric"] == "accuracy"}
    assert set(found) == {0, 2}
    assert [entry["point"] for entry in summary["probes"]] == ["layers=0", "layers=2"]
    assert all(entry["held_out"] == [] for entry in summary.get("best", ()))


def test_a_fit_that_did_not_end_is_told(data, tmp_path, monkeypatch):
    monkeypatch.setattr("causalab_mini.ops.probe_training.MAX_ITERATIONS", 1)
    load(write_document(tmp_path, probing()), data_root=data, options=Options(engine="hooks")).run(tmp_path / "out")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["probes"][0]["converged"] is False
    assert summary["warnings"] == ["a fit of the probe `probe` did not come to its end: its scores may be too low"]


def test_explain_says_what_is_trained_and_that_nothing_is_run(data, engines, command, tmp_path):
    request = build_request(probing(saves=[{"value": "probe", "file_path": "p.safetensors"}]), data, engines("successor-llama", "hooks"))
    text = explain(request)
    n = len({row["input"] for row in ROWS})
    assert "  probe: FitProbe  logistic  label=way  features=end  saves=['p.safetensors']" in text
    assert "      trains on 'end' of 'read' at block_output[2] pos={index:-1}  (48 rows)" in text
    assert f"      48 rows of 2 classes, {n} distinct prompts in 3 folds, seed=0; no forward" in text
    step = explain_data(request)["points"][0]["steps"][1]
    assert (step["kind"], step["classes"], step["folds"], step["n_labelled"]) == ("fit_probe", ["next", "previous"], 3, 48)
    said = command("explain", write_document(tmp_path, probing()), "--data-root", data, "--schedule")
    assert "fit_probe probe: no forward; 48 rows of `end`, 3 folds, and as many for every shuffle of the labels" in said.out


def test_the_digest_knows_what_is_meant():
    own = load_raw(probing()).digest
    assert own == load_raw(probing(seed=0)).digest
    assert own == load_raw(probing(saves=[])).digest
    assert load_raw(probing(folds=5)).digest == load_raw({**probing(), "steps": without_folds(probing()["steps"])}).digest
    others = [load_raw(probing(**more)).digest for more in ({"folds": 4}, {"seed": 1}, {"label": "task"}, {"probe": "ridge"})]
    assert len({own, *others}) == 5


def without_folds(steps):
    return {name: {key: value for key, value in step.items() if key != "folds"} for name, step in steps.items()}


# Refused before weights are loaded; what needs the document alone is in `cases/errors/probes.json`


@pytest.mark.parametrize(
    ("change", "more", "error"),
    [
        (
            lambda row, index: row,
            {"label": "wya"},
            "steps.probe.label: expected a column of `rows` (COLUMNS), got `wya`\nhint: did you mean `way`?",
        ),
        (
            lambda row, index: {**row, "way": "next"},
            {},
            'steps.probe.label: expected at least two labels, got `"next"` alone\nhint: rows whose cell is empty are left out',
        ),
        (
            lambda row, index: {**row, "way": None},
            {},
            "steps.probe.label: expected at least two labels, got none\nhint: rows whose cell is empty are left out",
        ),
        (
            lambda row, index: {**row, "way": "a" if index < 2 else "b"},
            {},
            'steps.probe.folds: expected rows of every class in every fold: 3 without a prompt in common, got 2 of `"a"`\n'
            "hint: fewer `folds`, or an empty cell for the rows of rare classes",
        ),
        (
            lambda row, index: {**row, "way": "b"} if index >= 4 else {**row, "way": "a", "input": MONTHS[index // 2]["input"]},
            {},
            'steps.probe.folds: expected rows of every class in every fold: 3 without a prompt in common, got 2 of `"a"` (4 rows)\n'
            "hint: fewer `folds`, or an empty cell for the rows of rare classes",
        ),
        (
            lambda row, index: row,
            {"probe": "ridge"},
            "steps.probe.label: expected a finite number (`ridge`), got `next` in `way` on row 0 of `rows`, and the like on 47 more rows\n"
            "hint: classes are for `logistic`",
        ),
        (
            lambda row, index: {**row, "way": "1.5"},
            {"probe": "ridge"},
            "steps.probe.label: expected a finite number (`ridge`), got `1.5` in `way` on row 0 of `rows`, and the like on 47 more rows\n"
            "hint: a `.csv` has texts alone: numbers are kept by `.json`, `.jsonl` and `.parquet`",
        ),
        (
            lambda row, index: row,
            {"probe": "ridge", "label": "is_next"},
            f"steps.probe.label: expected a finite number (`ridge`), got `{ROWS[0]['is_next']}` in `is_next` on row 0 of `rows`, and the like on 47 more rows\n"
            "hint: classes are for `logistic`",
        ),
        (
            lambda row, index: {**row, "way": 1},
            {"probe": "ridge"},
            "steps.probe.label: expected at least two labels, got `1` alone\nhint: rows whose cell is empty are left out",
        ),
        (
            lambda row, index: {**row, "way": index / 8},
            {},
            "steps.probe.label: expected a text, a whole number, `true` or `false` (`logistic`), got `0.125` in `way` on row 1 of `rows`, "
            "and the like on 41 more rows\nhint: numbers that are no classes are for `ridge`",
        ),
        (
            lambda row, index: {**row, "way": [row["way"]]},
            {},
            "steps.probe.label: expected a text, a whole number, `true` or `false` (`logistic`), got `['next']` in `way` on row 0 of `rows`, "
            "and the like on 47 more rows",
        ),
        (
            lambda row, index: {**row, "way": True if index % 2 else 1},
            {},
            "steps.probe.label: expected labels that are all texts, all whole numbers, or all `true` and `false`, got `true` and `1`",
        ),
        (
            lambda row, index: {**row, "input": MONTHS[index % 4]["input"]},
            {"probe": "ridge", "label": "length", "folds": 5},
            "steps.probe.folds: expected at most 4 (rows without a prompt in common), got `5`",
        ),
    ],
)
def test_labels_that_can_not_be_learned_are_refused(change, more, error, tmp_path):
    rows = [change(row, index) for index, row in enumerate(ROWS)]
    found = refusal(rows, tmp_path, **more)
    columns = ", ".join(f"`{name}`" for name in sorted(ROWS[0]))
    assert found == f"error: {error.replace('COLUMNS', columns)}"


def test_rows_of_another_number_are_refused(data, tmp_path):
    write_table(tmp_path, "rows", ROWS)
    write_table(tmp_path, "fewer", ROWS[:-1])
    other = {"reading": {"reads": {"end": END | {"input": "counterfactual"}}}}
    source = {"kind": "observe", "rows": {"counterfactual": "rows"}, "interventions": "reading", "outputs": {"end": "end"}}
    found = compiled(probing(other, source, rows={"base": "fewer", "counterfactual": "rows"}), tmp_path)
    assert found == "error: steps.probe.rows.base: expected 48 rows, as `read` has (they pair by position), got 47"


def test_classes_that_are_left_with_too_few_rows_are_refused(tmp_path):
    rows = [{**row, "way": "rare" if index < 3 else row["way"]} for index, row in enumerate(ROWS)]
    rows[1]["entity"] = "Thursday"
    end = END | {"pos": {"index": -1, "scope": {"variable": "entity"}}}
    found = refusal(rows, tmp_path, interventions={"reading": {"reads": {"end": end}}})
    assert found == (
        "error: steps.probe.folds: expected rows of every class in every fold: 3 without a prompt in common on the rows that have a value, "
        'got 2 of `"rare"`\nhint: fewer `folds`, or an empty cell for the rows of rare classes'
    )


def test_a_fold_without_a_class_is_refused(data, monkeypatch, tmp_path, command):
    real = linear_probes.make_folds

    def lopsided(probe, targets, groups, n_folds, seed):
        folds = real(probe, targets, groups, n_folds, seed)
        folds[(folds == 1) & (targets == 0)] = 0
        return folds

    monkeypatch.setattr(linear_probes, "make_folds", lopsided)
    error = (
        "steps.probe.folds: expected rows of every class in every fold (equal prompts are kept together), got none of `next` in fold 1 of 3\n"
        "hint: fewer `folds`, or another `seed`"
    )
    assert compiled(probing(seed=77), data) == f"error: {error}"
    path = write_document(tmp_path, probing(seed=77))
    said = command("validate", path, "--data-root", data)
    assert said.code == 2
    assert error.partition("\n")[0] in said.out + said.err


def test_without_scikit_learn_it_is_refused_with_the_extra(data, monkeypatch):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "sklearn" else real(name, *more))
    assert compiled(probing(), data) == (
        "error: steps.probe.kind: expected scikit-learn, to train a linear probe, got no such package\n"
        "hint: pip install 'causalab-mini[probes]'"
    )
