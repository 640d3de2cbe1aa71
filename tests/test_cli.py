"""The command line: what is printed where, exit codes, errors as data, overrides, and what `doctor` finds."""

import json
import shutil

import pytest
from authoring import ENTITY, LOGITS, document, observe, patching, site, write_document, write_table
from conftest import ROOT

pytestmark = pytest.mark.tiny

QUICKSTART = ROOT / "documents" / "quickstart.json"
CLEAN = {"site": LOGITS, "pos": -1, "input": "base"}


@pytest.fixture
def home(tmp_path, rows_of):
    write_table(tmp_path / "data", "rows", rows_of("successor-llama"))
    return tmp_path


def looking(**more):
    metrics = {"right": {"kind": "match", "of": "z", "expected": "base_answer"}}
    step = observe("look", both=False, saves=[{"value": "right", "file_path": "right.json"}])
    return document({"look": {"reads": {"z": CLEAN}, "metrics": metrics}}, {"s": step}) | more


# exit codes


def test_a_run_exits_with_zero(command, home):
    code, out, _ = command("run", write_document(home, looking()), "--out", home / "out")
    assert code == 0
    assert out.splitlines() == [f"{home}/out/{name}" for name in ("document.json", "run.json", "right.json", "summary.json")]


@pytest.mark.parametrize("verb", ["explain", "run"])
def test_a_wrong_document_exits_with_two_and_all_its_errors(command, home, verb):
    raw = looking()
    raw["interventions"]["look"]["reads"]["other"] = {**CLEAN, "poss": -1}
    raw["steps"]["s"]["saves"][0]["value"] = "wrong"
    path = write_document(home, raw)
    code, out, err = command(verb, path, *(["--out", home / "out"] if verb == "run" else []))
    assert (code, out) == (2, "")
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 2
    assert all(line.startswith(f"error: {path}: ") for line in errors)
    assert "interventions.look.reads.other.poss" in err
    assert "steps.s.saves[0].value" in err
    assert "Traceback" not in err
    assert not (home / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["data", "weekdays/trian"], "did you mean `weekdays/train`?"),
        (
            ["model", "bundled:successor-gpt2", "--revision", "x"],
            'error: --revision: expected no `revision` (a bundled model has none), got `"x"`',
        ),
        (["tokens", "bundled:successor-gpt2", "x", "--pos", "-1"], "expected `--data REF` beside options of rows, got `--pos`"),
        (["data", "weekdays/train#test"], "expected rows whose `split` is `test`"),
        (["explain", "bundled:quikstart"], "did you mean `quickstart`?"),
        (["explain", "no/such/file.json"], "no/such/file.json"),
        (["tokens", "bundled:successor-lama", "x"], "did you mean `successor-llama`?"),
        (["tokens", "bundled:successor-llama", "x", "--revision", "main"], "--revision: expected no revision"),
        (["run", str(QUICKSTART), "--out", "x", "--batch-size", "none"], "--batch-size: expected `auto` or a number above 0, got `none`"),
        (["run", str(QUICKSTART), "--out", "x", "--check", "some"], "--check: expected `off` or `sample` or `full`, got `some`"),
        (["run", str(QUICKSTART), "--out", "x", "--engine", "jax"], "--engine: expected `nnterp` or `hooks`, got `jax`"),
        (["explain", str(QUICKSTART), "--set", "model.dtype"], "--set: expected `path=value`, got `model.dtype`"),
        (["explain", str(QUICKSTART), "--set", "modle.dtype=bf16"], "--set"),
    ],
)
def test_wrong_input_exits_with_two_and_says_what_was_expected(command, monkeypatch, arguments, said):
    monkeypatch.chdir(ROOT)
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments", [["run", str(QUICKSTART)], ["no-such-verb"], ["explain"], ["run", str(QUICKSTART), "--out", "x", "--wiat"]]
)
def test_a_command_that_is_not_one_exits_with_two(command, arguments):
    code, _, err = command(*arguments)
    assert code == 2
    assert "Traceback" not in err


def test_a_checkpoint_that_is_not_in_the_cache_is_refused_with_the_way_to_see_why(command, hub, home):
    raw = looking(model={"key": "nobody/nothing", "revision": "main", "dtype": "fp32"})
    code, _, err = command("explain", write_document(home, raw))
    assert code == 2
    assert "expected a checkpoint with a config, got `nobody/nothing at main`" in err
    assert "causalab-mini doctor" in err


def test_a_hub_id_without_revision_is_refused(command, hub, home):
    raw = looking(model={"key": "nobody/nothing", "dtype": "fp32"})
    code, _, err = command("explain", write_document(home, raw))
    assert code == 2
    assert "model.revision: expected a commit, branch or tag (required for a hub id), got none" in err


def test_a_bug_exits_with_seventy_and_its_traceback(command, monkeypatch, home):
    from causalab_mini.engine.engines.nnterp import NNterpEngine

    def bug(self, batch, visits, state, shortcut):
        raise IndexError("off by one")

    monkeypatch.setattr(NNterpEngine, "run", bug)
    code, out, err = command("run", write_document(home, looking()), "--out", home / "out")
    assert (code, out) == (70, "")
    assert "Traceback" in err
    assert "IndexError: off by one" in err
    assert "this is a bug of causalab-mini" in err
    record = json.loads((home / "out" / "run.json").read_text(encoding="utf-8"))
    assert record["status"] == "failed"


def test_an_interrupt_exits_with_130_and_is_in_the_record(command, monkeypatch, home):
    from causalab_mini.engine.engines.nnterp import NNterpEngine

    def interrupt(self, batch, visits, state, shortcut):
        raise KeyboardInterrupt

    monkeypatch.setattr(NNterpEngine, "run", interrupt)
    code, out, err = command("run", write_document(home, looking()), "--out", home / "out")
    assert (code, out) == (130, "")
    assert "error: interrupted" in err
    assert json.loads((home / "out" / "run.json").read_text(encoding="utf-8"))["status"] == "interrupted"


def test_an_interrupt_while_weights_load_is_an_interrupt(command, monkeypatch, home):
    from causalab_mini.engine.engines.nnterp import NNterpEngine

    def interrupt(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(NNterpEngine, "load_weights", interrupt)
    code, _, _ = command("run", write_document(home, looking()), "--out", home / "out")
    assert code == 130
    assert json.loads((home / "out" / "run.json").read_text(encoding="utf-8"))["status"] == "interrupted"


# data instead of text


def test_errors_are_data_with_json(command, home):
    raw = looking()
    raw["interventions"]["look"]["reads"]["z"]["modle"] = "original"
    path = write_document(home, raw)
    code, out, err = command("explain", path, "--json")
    assert (code, err) == (2, "")
    (error,) = json.loads(out)["errors"]
    assert error["file"] == str(path)
    assert error["path"] == "interventions.look.reads.z.modle"
    assert {"code", "expected", "got"} <= set(error)
    assert "`model`" in error["hint"]


def test_a_plan_is_data_with_json(command):
    code, out, _ = command("explain", "bundled:quickstart", "--json")
    assert code == 0
    data = json.loads(out)
    assert data["model"]["key"] == "bundled:successor-llama"
    assert len(data["points"]) == 8
    places = data["points"][0]["steps"][0]["interventions"][0]["forwards"][1]["places"]
    assert [(place["kind"], place["name"], place["site"]) for place in places] == [
        ("write", "patch", "block_output[0]"),
        ("read", "prediction", "logits"),
    ]


def test_a_run_is_data_with_json(command, home):
    code, out, err = command("run", write_document(home, looking()), "--out", home / "out", "--json")
    assert (code, err) == (0, "")
    data = json.loads(out)
    assert data["files"][0] == f"{home}/out/document.json"
    assert data["metrics"][0]["mean"] == 1.0


def test_tokens_are_data_with_json(command):
    _, out, _ = command("tokens", "bundled:successor-llama", " Thursday", "--json")
    (row,) = json.loads(out)
    assert row["text"] == " Thursday"
    assert len(row["pieces"]) == len(row["ids"]) > 1
    assert "".join(row["pieces"]) == "▁Thursday"


def test_a_table_is_data_with_json(command, monkeypatch):
    monkeypatch.chdir(ROOT)
    _, out, _ = command("data", "weekdays/train", "--json")
    data = json.loads(out)
    assert (data["n_rows"], data["splits"]) == (4, ["all"])
    assert data["sample"]["entity"] == "Thursday"


# options


def test_set_replaces_a_value_and_is_part_of_the_experiment(command, home):
    path = write_document(home, looking())
    assert command("run", path, "--out", home / "base")[0] == 0
    assert (
        command(
            "run",
            path,
            "--out",
            home / "other",
            "--set",
            "interventions.look.reads.z.input=counterfactual",
            "--set",
            'steps.s.rows={"base": "rows", "counterfactual": "rows"}',
        )[0]
        == 0
    )
    records = [json.loads((home / name / "run.json").read_text(encoding="utf-8")) for name in ("base", "other")]
    assert records[0]["digest"] != records[1]["digest"]
    means = [json.loads((home / name / "summary.json").read_text(encoding="utf-8"))["metrics"][0]["mean"] for name in ("base", "other")]
    assert means == [1.0, 0.0]
    written = json.loads((home / "other" / "document.json").read_text(encoding="utf-8"))
    assert written["interventions"]["look"]["reads"]["z"]["input"] == "counterfactual"


def test_batch_size_engine_and_check_are_no_part_of_the_experiment(command, home):
    place = {"site": site("block_output", 1), "pos": ENTITY}
    metric = {"diff": {"kind": "logit_diff", "of": "prediction", "a": "cf_answer", "b": "base_answer"}}
    patch = patching({**place, "mechanism": "swap", "operand": "source"}, place, metrics=metric)
    path = write_document(home, document({"p": patch}, {"s": observe("p", saves=[{"value": "diff", "file_path": "diff.json"}])}))
    found = []
    for name, options in (
        ("a", []),
        ("b", ["--batch-size", "2", "--check", "full"]),
        ("c", ["--engine", "hooks", "--check", "off", "--batch-size", "1"]),
    ):
        assert command("run", path, "--out", home / name, *options)[0] == 0
        record = json.loads((home / name / "run.json").read_text(encoding="utf-8"))
        table = json.loads((home / name / "diff.json").read_text(encoding="utf-8"))
        found.append((record, [row["value"] for row in table]))
    assert len({record["digest"] for record, _ in found}) == 1
    assert [record["engine"] for record, _ in found] == ["nnterp", "nnterp", "hooks"]
    assert [record["options"]["batch_size"] for record, _ in found] == ["auto", 2, 1]
    assert found[1][0]["steps"][0]["checks"][0]["rows"] == [0, 1, 2, 3, 4]
    assert found[2][0]["steps"][0]["checks"] == []
    for _, values in found[1:]:
        assert values == pytest.approx(found[0][1], abs=1e-4)


def test_version_and_help_answer(command):
    from causalab_mini import __version__

    assert command("--version") == (0, f"causalab-mini {__version__}\n", "")
    for arguments in (["--help"], ["run", "--help"], ["explain", "-h"]):
        code, out, _ = command(*arguments)
        assert code == 0
        assert "Usage:" in out


# doctor


def test_doctor_finds_this_installation_sound(command):
    code, out, _ = command("doctor")
    assert code == 0
    for line in ("ok    nnterp on nnsight: imports", "ok    bundled:successor-llama:", "ok    bundled:successor-gpt2:", "offline"):
        assert line in out


def test_doctor_finds_a_bundled_file_that_changed(command, tmp_path, monkeypatch):
    from causalab_mini import doctor
    from causalab_mini.model import source

    copy = tmp_path / "bundled"
    shutil.copytree(source.BUNDLED, copy)
    with (copy / "successor-gpt2" / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x55")
    for module in (doctor, source):
        monkeypatch.setattr(module, "BUNDLED", copy)
    code, out, _ = command("doctor")
    assert code == 1
    assert "wrong bundled:successor-gpt2: another content than it was shipped with: model.safetensors" in out
    assert "      fix: pip install --force-reinstall --no-deps causalab-mini" in out
    assert "ok    bundled:successor-llama:" in out
    code, out, _ = command("doctor", "--json")
    assert code == 1
    assert [finding["what"] for finding in json.loads(out) if finding["status"] == "wrong"] == ["bundled:successor-gpt2"]


def test_doctor_finds_the_pair_of_versions_that_does_not_import(command, monkeypatch):
    """nnterp 1.3 takes the newest nnsight it can get, and does not import with 0.8."""
    import sys
    from importlib import metadata

    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.8.1" if name == "nnsight" else version(name))
    monkeypatch.setitem(sys.modules, "nnterp", None)
    code, out, _ = command("doctor")
    assert code == 1
    assert "wrong nnterp on nnsight: does not import" in out
    assert "fix: pip install 'nnsight>=0.7,<0.8'" in out
    assert "note  nnsight: 0.8.1; tested with 0.7.0" in out


# what a newcomer does


@pytest.mark.parametrize(
    ("arguments", "path", "expected"),
    [
        (["explain"], "DOC", "a value (an argument that is required)"),
        (["run", "x.json"], "--out", "a value (an option that is required)"),
        (["explain", "x.json", "--nope"], "", "an option of `causalab-mini explain`"),
        (["nope"], "", "a verb of `causalab-mini`"),
    ],
)
def test_a_wrong_command_line_is_data_with_json(command, arguments, path, expected):
    code, out, _ = command(*arguments, "--json")
    assert code == 2
    (error,) = json.loads(out)["errors"]
    assert error["code"] == "usage"
    assert (error["path"], error["expected"]) == (path, expected)


def test_a_terminated_run_exits_with_143_and_says_so_in_its_record(command, monkeypatch, home):
    import os
    import signal

    from causalab_mini.engine.engines.nnterp import NNterpEngine

    run = NNterpEngine.run

    def terminate(self, batch, visits, state, shortcut):
        os.kill(os.getpid(), signal.SIGTERM)
        run(self, batch, visits, state, shortcut)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(NNterpEngine, "run", terminate)
    try:
        code, out, err = command("run", write_document(home, looking()), "--out", home / "out")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (code, out) == (143, "")
    assert "error: terminated" in err
    assert json.loads((home / "out" / "run.json").read_text(encoding="utf-8"))["status"] == "interrupted"


def test_a_device_that_is_not_there_is_named_and_no_bug(command, home):
    import torch

    if torch.cuda.is_available():
        pytest.fail("this test needs a machine without CUDA: run the suite on the CPU")
    code, _, err = command("run", write_document(home, looking()), "--out", home / "out", "--device-map", "cuda")
    assert code == 2
    assert "expected weights that can be loaded onto the device map `cuda`" in err
    assert "Traceback" not in err


def test_verbs_write_no_file_over_another(command, tmp_path):
    file = tmp_path / "table.json"
    file.write_text("mine")
    for arguments in (["data", "new", "ioi", "--n", 3, "--out", file], ["new", "patching", file]):
        code, _, err = command(*arguments)
        assert code == 2
        assert "expected a file that is not there yet" in err
    assert file.read_text() == "mine"


def test_a_file_that_can_not_be_written_is_no_bug(command, tmp_path):
    (tmp_path / "a").write_text("a file where a folder would have to be")
    code, _, err = command("new", "patching", tmp_path / "a" / "x.json")
    assert code == 2
    assert "expected a file that can be written" in err


def test_a_table_in_the_working_directory_is_found_without_a_document(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command("data", "new", "ioi", "--n", 3, "--out", "data/mine.json")
    assert command("data", "mine")[1].startswith("mine: 3 rows")
    code, _, err = command("data", "data/mine.json")
    assert code == 2
    assert "expected a ref without the file's ending" in err


def test_one_mistake_of_many_rows_is_one_error(command, home):
    raw = looking()
    raw["roles"] = {"base": {"field": "counterfactual_inputs"}}
    code, _, err = command("explain", write_document(home, raw))
    assert code == 2
    assert err.count("error:") == 1
    assert "with its index" in err
    assert "more rows" in err


def test_pieces_of_a_text_are_shown_when_asked_for(command):
    out = command("tokens", "bundled:successor-llama", " Tuesday", "--pieces")[1]
    assert "2 token(s)" in out.splitlines()[0]
    assert "Tues" in out.splitlines()[1]


def test_a_position_that_no_row_has_is_told_once(command):
    code, _, err = command("validate", "bundled:patching", "--set", "interventions.patching.reads.source.pos=300")
    assert code == 2
    assert "expected a position that every row has, got none on any of 48 rows (out_of_range)" in err
