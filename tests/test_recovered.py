import pytest
from authoring import ENTITY, LOGITS, document, observe, site
from conftest import ROOT

from causalab_mini.errors import PlanError
from causalab_mini.plan import build_request

pytestmark = pytest.mark.tiny

STREAM = {"site": site("block_output", 1), "pos": ENTITY}


def run(engine, metrics, **step):
    reads = {
        "source": {**STREAM, "input": "counterfactual"},
        "patched": {"site": LOGITS, "pos": -1, "model": "patched"},
        "clean": {"site": LOGITS, "pos": {"last": 1}, "input": "counterfactual"},
        "corrupt": {"site": LOGITS, "pos": -1, "input": "base"},
    }
    patch = {**STREAM, "mechanism": "swap", "operand": "source"}
    models = {"patched": {"input": "base", "writes": ["patch"]}}
    intervention = {"reads": reads, "writes": {"patch": patch}, "models": models, "metrics": metrics}
    raw = document({"i": intervention}, {"s": observe("i", "successor/long_answers", **step)})
    tables = engine.execute(build_request(raw, ROOT / "data", engine)).step("s").results["metrics"]
    return {name: [row["value"] for row in rows] for name, rows in tables.items()}


def test_a_recovered_answer_of_several_tokens_is_made_of_three_answers(engines):
    answers = {name: {"kind": "answer_logprob", "of": name, "target": "cf_answer"} for name in ("patched", "clean", "corrupt")}
    recovered = {"kind": "recovered", "metric": "patched_answer", "of": "patched", "clean": "clean", "corrupt": "corrupt"}
    metrics = {f"{name}_answer": metric for name, metric in answers.items()} | {"recovered": recovered}
    found = run(engines("successor-llama"), metrics)
    for value, m, c, b in zip(*(found[name] for name in ("recovered", "patched_answer", "clean_answer", "corrupt_answer")), strict=True):
        assert value == pytest.approx((m - b) / (c - b), abs=1e-5)
        assert value > 0.99


def test_a_cell_that_is_no_token_is_refused_on_the_rows_that_run_alone(engines, tmp_path):
    import json

    rows = json.loads((ROOT / "data" / "successor" / "pairs.json").read_text())[:6]
    rows[2]["base_answer"] = " two words"
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    engine = engines("successor-llama")
    read = {"z": {"site": LOGITS, "pos": -1, "input": "base"}}
    score = {"reads": read, "metrics": {"likely": {"kind": "token_prob", "of": "z", "token": "cf_answer"}}}
    later = {"reads": read, "metrics": {"right": {"kind": "match", "of": "z", "expected": "base_answer"}}}
    low = {"step": "first", "metric": "likely", "max": 0.5}

    def steps(where):
        return {"first": observe("score", both=False), "second": observe("later", both=False, where=where)}

    with pytest.raises(PlanError, match="expected one token"):
        engine.execute(build_request(document({"score": score, "later": later}, steps(low)), tmp_path, engine))
    rows[2]["input"] = rows[2]["counterfactual_inputs"][0]  # now its other answer is likely, and it is left out
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    done = engine.execute(build_request(document({"score": score, "later": later}, steps(low)), tmp_path, engine))
    table = done.step("second").results["metrics"]["right"]
    assert [row["reason"] for row in table] == ["", "", "filtered", "", "", ""]
