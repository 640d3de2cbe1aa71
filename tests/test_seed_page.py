"""Every command of the seed page, with its text."""

import json
import shutil
from pathlib import Path

import pytest
from conftest import ROOT, SEED_MODEL
from reference import forward, ids_of, spot, tokens_of

pytestmark = pytest.mark.tiny

ENTITY_PATCH = "documents/v2/entity_patch.json"
ENTITY_MEAN = "documents/v2/entity_mean_ablation.json"

PLAN = """\
<root>: Plan
  score: Observe  metrics=['iia/match', 'logit_diff/logit_diff']  saves=['iia.json', 'logit_diff.json']
      forward 'original' on 'counterfactual'  (4 rows x 11 tokens)
        read  'v_cf' at block_output[0] pos={index:-1 scope:{variable:entity}} via 'identity'
      forward 'patched' on 'base'  (4 rows x 11 tokens)
        write 'patch' at block_output[0] pos={index:-1 scope:{variable:entity}} swap(v_cf) via 'identity'
        read  'logits' at lm_head pos={index:-1} via 'identity'
"""
TABLE = """\
weekdays/train: 4 rows
  columns: answer, base_answer, cf_answer, counterfactual_inputs, counterfactual_inputs_variables, entity, input, label, split
  splits:  all
  sample:  {"answer": " Friday", "base_answer": " Friday", "cf_answer": " Sunday", \
"counterfactual_inputs": ["If today is Saturday, tomorrow is"], "counterfactual_inputs_variables": [{"entity": "Saturday"}], \
"entity": "Thursday", "input": "If today is Thursday, tomorrow is", "label": " Sunday", "split": "all"}
"""
TOKENS = """\
' Thursday'              3 token(s)  <- not usable as a metric column
' Friday'                1 token(s)
' Saturday'              1 token(s)
' Sunday'                1 token(s)
"""
HEAD = """\
[
 {
  "example_id": "0",
  "metric": "iia",
  "value": 0.0,
  "eligible": true,
  "positions": [
   10
  ],
  "reason": "",
  "unit": "fraction",
  "estimand_version": "match/v1",
"""


@pytest.fixture(autouse=True)
def _in_the_repository(hub, monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.fixture(scope="module")
def seed_model(hub):
    """Returns the stand-in as transformers loads it, with its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (folder,) = (hub / f"models--{SEED_MODEL.replace('/', '--')}" / "snapshots").iterdir()
    return AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def holed_data(folder, row, entity):
    """Returns a copy of the tables with one row's entity replaced."""
    shutil.copytree(ROOT / "data", folder)
    path = folder / "weekdays" / "train.json"
    rows = json.loads(path.read_text(encoding="utf-8"))
    rows[row]["entity"] = entity
    path.write_text(json.dumps(rows), encoding="utf-8")
    return folder


def test_explain_prints_the_plan_to_the_character(command):
    assert command("explain", ENTITY_PATCH) == (0, PLAN, "")


def test_data_prints_rows_columns_splits_and_a_sample(command):
    assert command("data", "weekdays/train") == (0, TABLE, "")


def test_tokens_warns_of_a_text_that_no_metric_can_score(command):
    assert command("tokens", SEED_MODEL, " Thursday", " Friday", " Saturday", " Sunday") == (0, TOKENS, "")


def test_run_prints_four_paths_first_and_writes_the_head_of_the_table(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = command("run", ROOT / ENTITY_PATCH, "--out", "out/entity")
    assert code == 0
    names = ["document.json", "run.json", "iia.json", "logit_diff.json"]
    assert out.splitlines()[:4] == [f"out/entity/{name}" for name in names]
    text = Path("out/entity/iia.json").read_text(encoding="utf-8")
    assert "".join(text.splitlines(keepends=True)[:12]) == HEAD
    rows = json.loads(text)
    assert [row["positions"] for row in rows] == [[10]] * 4
    order = ["example_id", "metric", "value", "eligible", "positions", "reason", "unit", "estimand_version", "tokens", "produced_by"]
    assert [list(row) for row in rows] == [order] * 4
    assert {row["estimand_version"] for row in rows} == {"match/v1"}


def test_resolve_py_prints_the_windows_and_what_they_decode_to(capsys):
    from causalab_mini import plan
    from causalab_mini.engine.engines.nnterp import NNterpEngine
    from causalab_mini.plan.spec import Spec

    raw = json.loads(Path(ENTITY_PATCH).read_text(encoding="utf-8"))
    engine = NNterpEngine.load(Spec.model_validate(raw).model, device_map="cpu")
    done = engine.execute(plan.build_request(raw, "documents/data", engine))
    where = done.step("score", plan.Observe).results["positions"]
    for name in ("v_cf", "patch"):
        print(name, where[name]["rows"], where[name]["tokens"])
    assert capsys.readouterr().out == (
        """v_cf ((6,), (6,), (6,), (6,)) ("' Saturday'", "' Sunday'", "'day'", "' Friday'")\n"""
        """patch ((6,), (6,), (6,), (6,)) ("'day'", "' Friday'", "' Saturday'", "' Sunday'")\n"""
    )
    assert where["patch"]["content"] == ((5,), (3,), (3,), (3,))
    assert where["logits"]["rows"] == ((10,),) * 4


@pytest.mark.parametrize("verb", ["explain", "run"])
def test_a_write_with_nowhere_to_go_is_refused_by_name_before_anything_is_written(command, tmp_path, monkeypatch, verb):
    from causalab_mini.engine.engines.nnterp import NNterpEngine

    def no_weights(self):
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(NNterpEngine, "load_weights", no_weights)
    root, out = holed_data(tmp_path / "holed", 1, "Neptune"), tmp_path / "out"
    code, stdout, stderr = command(verb, ENTITY_PATCH, "--data-root", root, *(["--out", out] if verb == "run" else []))
    assert (code, stdout) == (2, "")
    assert stderr.splitlines() == [
        f"error: {ENTITY_PATCH}: interventions.patching.writes.patch.pos: expected something to write on every row, "
        "got nothing on row 1 (alignment_missing)",
        "hint: a read may miss a row, a write may not: the row would be scored as if it had been written. "
        "Take the row out, or mend its anchor",
    ]
    assert not out.exists()


def test_taking_a_row_out_leaves_the_scores_of_the_others(command, tmp_path):
    root = tmp_path / "shorter"
    shutil.copytree(ROOT / "data", root)
    path = root / "weekdays" / "train.json"
    rows = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(rows[:1] + rows[2:]), encoding="utf-8")
    assert command("run", ENTITY_PATCH, "--out", tmp_path / "all")[0] == 0
    assert command("run", ENTITY_PATCH, "--data-root", root, "--out", tmp_path / "fewer")[0] == 0
    everything, fewer = (json.loads((tmp_path / name / "logit_diff.json").read_text(encoding="utf-8")) for name in ("all", "fewer"))
    # 1e-5 of a logit: a batch of three rows may round otherwise than a batch of four.
    assert [row["value"] for row in fewer] == pytest.approx([row["value"] for row in everything[:1] + everything[2:]], abs=1e-5)


def test_the_patched_scores_are_those_of_the_reference(command, tmp_path, seed_model):
    model, tokenizer = seed_model
    assert command("run", ENTITY_PATCH, "--out", tmp_path / "out")[0] == 0
    table = json.loads((tmp_path / "out" / "logit_diff.json").read_text(encoding="utf-8"))
    rows = json.loads((ROOT / "data" / "weekdays" / "train.json").read_text(encoding="utf-8"))
    for row, line in zip(rows, table, strict=True):
        counterfactual = row["counterfactual_inputs"][0]
        source_token = tokens_of(tokenizer, counterfactual, row["counterfactual_inputs_variables"][0]["entity"])[-1:]
        ids, _ = ids_of(tokenizer, counterfactual)
        source = forward(model, ids, {"v": spot(model, "block_output", 0, source_token)})["v"]
        ids, _ = ids_of(tokenizer, row["input"])
        target = spot(model, "block_output", 0, tokens_of(tokenizer, row["input"], row["entity"])[-1:])
        found = forward(model, ids, {"z": spot(model, "logits", None, [len(ids) - 1])}, [(target, lambda value, _, source=source: source)])
        a, b = (tokenizer(row[column], add_special_tokens=False)["input_ids"][0] for column in ("cf_answer", "base_answer"))
        assert line["value"] == pytest.approx(float(found["z"][0, a] - found["z"][0, b]), abs=1e-5)


def test_the_entity_mean_is_the_mean_over_every_entity_token_of_every_row(command, tmp_path, seed_model):
    import torch
    from safetensors.torch import load_file

    model, tokenizer = seed_model
    code, out, _ = command("run", ENTITY_MEAN, "--out", tmp_path)
    assert code == 0
    assert [Path(line).name for line in out.splitlines()[:5]] == [
        *("document.json", "run.json", "entity_mean.safetensors", "clean.json", "ablated.json")
    ]
    rows = json.loads((ROOT / "data" / "weekdays" / "train.json").read_text(encoding="utf-8"))
    read = []
    for row in rows:
        place = spot(model, "block_output", 0, tokens_of(tokenizer, row["input"], row["entity"]))
        read.append(forward(model, ids_of(tokenizer, row["input"])[0], {"acts": place})["acts"])
    assert [len(values) for values in read] == [3, 1, 1, 1]
    mean = torch.cat(read).double().mean(dim=0)
    found = load_file(tmp_path / "entity_mean.safetensors")
    assert set(found) == {"mean"}
    torch.testing.assert_close(found["mean"].double(), mean, rtol=1e-5, atol=1e-6)

    tables = {name: json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8")) for name in ("clean", "ablated")}
    assert all(row["positions"] is None for rows in tables.values() for row in rows)
    for row, line in zip(rows, tables["ablated"], strict=True):
        ids, _ = ids_of(tokenizer, row["input"])
        last = [len(ids) - 1]
        write = (spot(model, "block_output", 0, last), lambda value, found: mean.float()[None])
        logits = forward(model, ids, {"z": spot(model, "logits", None, last)}, [write])["z"][0]
        a, b = (tokenizer(row[column], add_special_tokens=False)["input_ids"][0] for column in ("cf_answer", "base_answer"))
        assert line["value"] == pytest.approx(float(logits[a] - logits[b]), abs=1e-5)
