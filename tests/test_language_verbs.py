import json
from pathlib import Path

import pytest

from causalab_mini.plan.load import load_spec
from causalab_mini.shipped import example_documents

pytestmark = pytest.mark.tiny

CASES = Path(__file__).resolve().parent / "cases"
QUICKSTART = str(example_documents()["quickstart"])


def test_validate_says_ok_of_every_example_without_weights(command, monkeypatch):
    from causalab_mini.engine.engines.nnterp import NNterpEngine

    monkeypatch.setattr(NNterpEngine, "load_weights", lambda self: pytest.fail("weights"))
    names = [name for name in example_documents() if not name.startswith(("v2/", "smollm2/"))]
    result = command("validate", *(f"bundled:{name}" for name in names))
    assert result.code == 0
    assert [line.split()[:2] for line in result.out.splitlines()] == [["ok", f"bundled:{name}"] for name in names]


def test_validate_lists_the_mistakes_of_every_document_and_goes_on(command, tmp_path):
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"steps": {}, "rols": 1}')
    result = command("validate", "--no-model", wrong, QUICKSTART)
    assert result.code == 2
    assert "did you mean `roles`?" in result.err
    assert f"ok {QUICKSTART}" in result.out
    data = json.loads(command("validate", "--no-model", "--json", wrong, QUICKSTART).out)
    assert [entry["valid"] for entry in data] == [False, True]
    assert {error["path"] for error in data[0]["errors"]} >= {"model", "roles", "rols", "steps"}


def test_validate_finds_a_position_that_no_row_has(command, tmp_path):
    raw = json.loads(Path(QUICKSTART).read_text())
    raw["interventions"]["last_token"]["writes"]["patch"]["pos"] = 90
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps(raw))
    assert command("validate", "--no-model", wrong).code == 0
    result = command("validate", wrong, "--data-root", example_documents()["quickstart"].parent / "data")
    assert result.code == 2
    assert "interventions.last_token.writes.patch.pos: expected something to write on every row" in result.err


def test_validate_counts_a_sweep_over_all_with_the_model_and_says_so_without(command, tmp_path):
    assert command("validate", "bundled:quickstart").out.startswith("ok bundled:quickstart  (8 points, digest ")
    run = json.loads(command("explain", "bundled:quickstart", "--json").out)
    (entry,) = json.loads(command("validate", "bundled:quickstart", "--json").out)
    assert (entry["digest"], entry["n_points"]) == (run["digest"], 8)
    assert command("validate", "--no-model", QUICKSTART).out == f"ok {QUICKSTART}  (`all` is counted with the model)\n"
    (entry,) = json.loads(command("validate", "--no-model", "--json", QUICKSTART).out)
    assert (entry["valid"], entry["digest"], entry["n_points"]) == (True, None, None)


def test_diff_tells_all_layers_from_the_first(command, tmp_path):
    first = tmp_path / "first.json"
    first.write_text(Path(QUICKSTART).read_text().replace('"sweep": "all"', '"sweep": [0]'))
    result = command("diff", QUICKSTART, first)
    assert (result.code, result.out) == (1, 'sites.stream.layers: "all" → not in B\n')


def test_schema_and_vocab_print_data(command):
    assert json.loads(command("schema").out)["title"] == "causalab-mini document"
    words = json.loads(command("vocab", "--json").out)
    assert "swap" in words["mechanisms"]
    assert "swap" in command("vocab").out


def test_new_lists_kinds_and_starts_a_document(command, tmp_path):
    listed = command("new")
    assert [line.split()[0] for line in listed.out.splitlines()] == list(example_documents())
    file = tmp_path / "mine.json"
    assert command("new", "patching", file, "--set", "sites.stream.layers=2").out.strip() == str(file)
    assert load_spec(file).points[0].spec.sites["stream"].layers == 2
    refused = command("new", "patching", file)
    assert refused.code == 2
    assert "a file that is not there yet" in refused.err
    assert "did you mean `patching`?" in command("new", "patchin").err
    assert json.loads(command("new", "--json").out)["patching"]["title"] == "Activation patching"


def test_fmt_lays_out_in_place_and_keeps_the_meaning(command, tmp_path):
    file = tmp_path / "mine.json"
    raw = json.loads(Path(QUICKSTART).read_text())
    raw = {key: raw[key] for key in ("steps", "model", "roles", "header", "interventions", "sites")}
    file.write_text(json.dumps(raw))  # another order of axes is another experiment: the keys stay where they are
    assert load_spec(file).digest != load_spec(Path(QUICKSTART)).digest
    digest = load_spec(file).digest
    command("fmt", file)
    assert load_spec(file).digest == digest
    raw = json.loads(Path(QUICKSTART).read_text())
    file.write_text(json.dumps({key: raw[key] for key in ("model", "roles", "header", "sites", "steps", "interventions")}))
    digest = load_spec(file).digest
    assert command("fmt", "--check", file).code == 1
    assert command("fmt", file).out.strip() == f"changed {file}"
    assert file.read_text() == Path(QUICKSTART).read_text()
    assert load_spec(file).digest == digest
    assert command("fmt", "--check", file).code == 0


def test_fmt_orders_the_keys_of_each_kind_as_the_reference_does(command, tmp_path):
    raw = json.loads((CASES / "trained.json").read_text(encoding="utf-8"))
    file = tmp_path / "mine.json"

    def turned(value, names):
        if not isinstance(value, dict):
            return value
        keys = value if names else reversed(value)
        return {key: turned(value[key], not names and key in ("steps", "featurizers")) for key in keys}

    file.write_text(json.dumps(turned(raw, names=False)))
    digest = load_spec(file).digest
    command("fmt", file)
    assert load_spec(file).digest == digest
    laid_out = json.loads(file.read_text())
    for section in ("featurizers", "steps"):
        assert [list(value) for value in laid_out[section].values()] == [list(value) for value in raw[section].values()]


def test_fmt_leaves_a_document_that_is_no_json_as_it_is(command, tmp_path):
    file = tmp_path / "mine.json"
    file.write_text('{"a": 1, "a": 2}')
    assert command("fmt", file).code == 2
    assert file.read_text() == '{"a": 1, "a": 2}'


def test_diff_knows_the_same_experiment_and_names_what_differs(command, tmp_path):
    other = tmp_path / "other.json"
    raw = json.loads(Path(QUICKSTART).read_text())
    raw["header"] = {"title": "Mine"}
    raw["interventions"]["last_token"]["reads"]["source"]["pos"] = {"index": -1}
    other.write_text(json.dumps(raw))
    same = command("diff", QUICKSTART, other)
    assert (same.code, same.out.split(",")[0]) == (0, "same experiment")
    raw["interventions"]["last_token"]["reads"]["source"]["pos"] = -2
    other.write_text(json.dumps(raw))
    differs = command("diff", QUICKSTART, other)
    assert differs.code == 1
    assert differs.out.splitlines() == ["interventions.last_token.reads.source.pos.index: -1 → -2"]
    data = json.loads(command("diff", "--json", QUICKSTART, other).out)
    assert data["differences"] == [{"path": "interventions.last_token.reads.source.pos.index", "a": -1, "b": -2}]


@pytest.mark.parametrize("task", ["successor", "ioi", "capitals"])
def test_data_new_makes_the_same_pairs_for_the_same_seed(command, tmp_path, task):
    files = [tmp_path / name for name in ("a.json", "b.json", "c.json")]
    for file, seed in zip(files, (3, 3, 4), strict=True):
        assert command("data", "new", task, "--n", 12, "--seed", seed, "--out", file).out.strip() == f"{file}: 12 rows"
    assert files[0].read_bytes() == files[1].read_bytes() != files[2].read_bytes()
    rows = json.loads(files[0].read_text())
    for row in rows:
        assert row["base_answer"] == row["answer"] != row["cf_answer"] == row["label"]
        assert row["input"] != row["counterfactual_inputs"][0]
        assert row["split"] in ("train", "test")


def test_data_new_keeps_pairs_that_fit_a_tokenizer(command):
    from causalab_mini.engine.loading import open_tokenizer

    tokenizer = open_tokenizer("bundled:successor-llama", None)
    rows = json.loads(command("data", "new", "successor", "--n", 10, "--model", "bundled:successor-llama").out)
    for row in rows:
        sizes = [
            len(tokenizer(f" {text}", add_special_tokens=False)["input_ids"])
            for text in (row["entity"], row["counterfactual_inputs_variables"][0]["entity"])
        ]
        assert sizes[0] == sizes[1]
        assert all(len(tokenizer(row[name], add_special_tokens=False)["input_ids"]) == 1 for name in ("base_answer", "cf_answer"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["new"], "expected a task (`successor`, `ioi`, `capitals`)"),
        (["new", "sucessor"], "did you mean `successor`?"),
        (["new", "successor", "--set", "familys=1"], "did you mean `families`?"),
        (
            ["new", "successor", "--n", "100000", "--set", 'families=["day"]', "--set", "fillers=false"],
            "expected a table of 100000 pairs, got 756: ask for fewer",
        ),
        (["new", "ioi", "--out", "x.csv"], "ending in `.json`"),
        (["weekdays/train", "more"], "expected one REF"),
        (["weekdays/train", "--n", "5", "--out", "x.json"], "got `--n`, `--out`"),
    ],
)
def test_data_refuses_what_it_can_not_make(command, arguments, said):
    result = command("data", *arguments)
    assert result.code == 2
    assert said in result.err


def test_tokens_marks_where_positions_land(command):
    entity = '{"all": true, "scope": {"variable": "entity"}}'
    result = command("tokens", "bundled:successor-llama", "--data", "weekdays/train", "--pos", -1, "--pos", entity)
    lines = result.out.splitlines()
    assert lines[2] == "   0  ·|If| today| is|[ Th]2|[ur]2|[sday]2|,| tomorrow|[ is]1|"
    assert lines[3] == "   1  ·|If| today| is|[ Friday]2|,| tomorrow|[ is]1|"
    data = json.loads(command("tokens", "bundled:successor-llama", "--data", "weekdays/train", "--pos", entity, "--json").out)
    assert data[0]["windows"][0]["text"] == " Thursday"
    assert data[1]["windows"][0]["content"] == [3]


def test_tokens_says_why_a_position_lands_nowhere(command):
    result = command("tokens", "bundled:successor-llama", "--data", "weekdays/train", "--pos", '{"index": 0, "scope": {"text": "Friday"}}')
    assert [line.rpartition("  ")[2] for line in result.out.splitlines()[1:]].count("1: alignment_missing") == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "expected texts, or `--data REF`, got neither"),
        (["Friday", "--data", "weekdays/train"], "got both"),
        (["--data", "weekdays/train", "--pos", "last"], "expected a position as JSON"),
        (["--data", "weekdays/train", "--pos", '{"index": 1, "last": 2}'], "expected exactly one of"),
        (["--data", "weekdays/train", "--field", "inputs"], "did you mean `input`?"),
    ],
)
def test_tokens_refuses_what_it_can_not_show(command, arguments, said):
    result = command("tokens", "bundled:successor-llama", *arguments)
    assert result.code == 2
    assert said in result.err


def test_model_lists_places_from_the_config_and_proves_them(command, monkeypatch):
    listed = json.loads(command("model", "bundled:successor-llama", "--json").out)
    by_name = {row["component"]: row for row in listed["components"]}
    assert by_name["attention_key"]["width"] == 32
    assert by_name["block_output"]["layers"] == [0, 1, 2, 3]
    assert by_name["router_logits"]["reason"] == "its layers have no experts"
    proved = command("inspect-model", "bundled:successor-gpt2", "--prove")
    assert proved.code == 0
    assert proved.out.count("holds") == 10
    sdpa = command("model", "bundled:successor-llama", "--attention", "sdpa")
    assert "attention_probs        –  it exists only where `attn_implementation` is `eager`" in sdpa.out


def test_a_name_on_another_tensor_is_found_by_prove(command, monkeypatch):
    from causalab_mini.model import families

    wrong = {**families._LLAMA, "mlp_output": families._LLAMA["attention_output"]}
    monkeypatch.setitem(families.FAMILIES, "llama", lambda config: families.Family(wrong))
    proved = command("model", "bundled:successor-llama", "--prove")
    assert proved.code == 1
    assert "block_output = block_input + attention_output + mlp_output" in next(line for line in proved.out.splitlines() if "FAILS" in line)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("validate", "bundled:quickstart", "--no-model", "--data-root", "data"), "--data-root: expected no data root beside `--no-model`"),
        (("model", "bundled:successor-llama", "--device-map", "cpu"), "--device-map: expected `--prove` beside it"),
        (("data", "new", "successor", "--revision", "main"), "--revision: expected `--model` beside it"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(command, arguments, said):
    result = command(*arguments)
    assert result.code == 2
    assert said in result.err
