"""What a run leaves on disk: whole files or none, a folder of one experiment, the record, the summary, tables and tensors."""

import csv
import hashlib
import json
import os
from importlib import metadata
from pathlib import Path

import pytest
from authoring import ENTITY, LOGITS, document, observe, site, write_document, write_table

pytestmark = pytest.mark.tiny

CLEAN = {"site": LOGITS, "pos": -1, "input": "base"}
STREAM = {"site": site("block_output", 1), "input": "base"}


def looking(saves=None, **more):
    metrics = {
        "right": {"kind": "match", "of": "z", "expected": "base_answer"},
        "loss": {"kind": "cross_entropy", "of": "z", "target": "base_answer"},
        "best": {"kind": "top_k", "of": "z", "k": 2},
    }
    reads = {"z": CLEAN, "last": {**STREAM, "pos": -1}, "ragged": {**STREAM, "pos": ENTITY}}
    reads |= {"stacked": {"site": site("block_output", "all"), "pos": {"last": 2}, "input": "base"}}
    step = observe("look", both=False, saves=saves or [], **more)
    return document({"look": {"reads": reads, "metrics": metrics}}, {"s": step})


@pytest.fixture
def rows(rows_of):
    return rows_of("successor-llama")


@pytest.fixture
def home(tmp_path, rows):
    write_table(tmp_path / "data", "rows", rows)
    return tmp_path


@pytest.fixture
def run_document(command, home):
    def run(raw, *arguments, out="out"):
        return command("run", write_document(home, raw), "--out", home / out, *arguments)

    return run


def read_json(path):
    return json.loads(Path(path).read_text(encoding="utf-8"))


RIGHT = [{"value": "right", "file_path": "right.json"}]


# files


def test_a_file_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    from causalab_mini.errors import RunError
    from causalab_mini.results.store import RunFolder

    folder = RunFolder.open(tmp_path / "out", "digest")
    folder.write("table.json", b"old")

    def full_disk(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(RunError, match=r"table\.json: expected a file that can be written, got no space left on device"):
        folder.write("table.json", b"new")
    assert (tmp_path / "out" / "table.json").read_bytes() == b"old"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {".lock", "table.json"}


def test_an_interrupt_in_the_middle_of_a_file_leaves_the_old_one(tmp_path, monkeypatch):
    from causalab_mini.results.store import RunFolder

    folder = RunFolder.open(tmp_path / "out", "digest")
    folder.write("table.json", b"old")

    def interrupt(self, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        folder.write("table.json", b"new")
    assert (tmp_path / "out" / "table.json").read_bytes() == b"old"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {".lock", "table.json"}


def test_what_json_does_not_have_is_never_written(tmp_path):
    from causalab_mini.results.store import RunFolder

    with pytest.raises(ValueError, match="not JSON compliant"):
        RunFolder.open(tmp_path, "digest").write_json("x.json", {"value": float("nan")})


# folders


def test_the_same_document_may_run_again_into_its_folder(run_document, home):
    assert run_document(looking(RIGHT))[0] == 0
    before = read_json(home / "out" / "right.json")
    assert run_document(looking(RIGHT))[0] == 0
    assert read_json(home / "out" / "right.json") == before


def test_a_header_is_no_part_of_what_an_experiment_is(run_document):
    assert run_document(looking(RIGHT))[0] == 0
    assert run_document({**looking(RIGHT), "header": {"title": "another title"}})[0] == 0


def test_the_folder_of_a_recording_is_refused_and_left_as_it_is(run_document, home):
    (home / "out").mkdir()
    (home / "out" / "run.json").write_text('{"digest": "of a spec", "spec_sha256": "1"}', encoding="utf-8")
    code, out, err = run_document(looking(RIGHT))
    assert (code, out) == (2, "")
    assert "--out: expected an empty folder, or one of this experiment, got" in err
    assert "which holds the recording of an extraction spec" in err
    assert [path.name for path in (home / "out").iterdir()] == ["run.json"]


def test_a_folder_with_foreign_files_is_refused(run_document, home):
    (home / "out").mkdir()
    (home / "out" / "thesis.txt").write_text("three years of work", encoding="utf-8")
    code, _, err = run_document(looking(RIGHT))
    assert code == 2
    assert "which holds something else" in err
    assert [path.name for path in (home / "out").iterdir()] == ["thesis.txt"]


def test_a_file_is_no_folder(run_document, home):
    (home / "out").write_text("", encoding="utf-8")
    code, _, err = run_document(looking(RIGHT))
    assert code == 2
    assert "--out: expected a folder, got the file" in err


def test_an_empty_folder_is_taken(run_document, home):
    (home / "out").mkdir()
    assert run_document(looking(RIGHT))[0] == 0


# the record and the summary


def test_the_record_says_what_was_run_with_what_and_what_its_checks_said(run_document, home, rows):
    raw = looking(RIGHT)
    assert run_document(raw)[0] == 0
    assert read_json(home / "out" / "document.json") == raw
    record = read_json(home / "out" / "run.json")
    assert record["status"] == "finished"
    assert len(record["digest"]) == 64
    assert record["model"] == {"key": "bundled:successor-llama", "revision": None, "dtype": "fp32"}
    assert (record["engine"], record["device"], record["dtype"]) == ("nnterp", ["cpu"], ["float32"])
    assert record["attn_implementation"] == "sdpa"
    for package in ("torch", "transformers", "nnterp", "nnsight"):
        assert record["versions"][package] == metadata.version(package)
    content = (home / "data" / "rows.json").read_bytes()
    assert record["data"] == {"rows": {"sha256": hashlib.sha256(content).hexdigest(), "n_rows": len(rows)}}
    assert record["options"]["batch_size"] == "auto"
    assert record["options"]["check"] == "sample"
    assert record["n_points"] == 1
    assert record["peak_memory_bytes"] > 10_000_000
    assert record["error"] is None
    (step,) = record["steps"]
    assert (step["point"], step["step"], step["n_rows"]) == ("", "s", 5)
    said = [(check["check"], check["status"]) for check in step["checks"]]
    assert said == [("rows", "passed"), ("passes", "passed"), ("writes", "skipped"), ("places", "passed")]
    assert 0 <= step["checks"][0]["largest"] <= step["checks"][0]["tolerance"] == 1e-4


def test_the_record_names_a_hub_models_resolved_commit(command, hub, tmp_path):
    from conftest import ROOT, SEED_REVISION

    assert command("run", ROOT / "documents/v2/entity_patch.json", "--out", tmp_path)[0] == 0
    assert read_json(tmp_path / "run.json")["model"]["revision"] == SEED_REVISION


def test_the_summary_has_counts_means_and_intervals(run_document, home, rows):
    from causalab_mini.evidence.intervals import bootstrap, wilson

    loss = {"value": "loss", "file_path": "loss.json"}
    assert run_document(looking([*RIGHT, loss]))[0] == 0
    summary = read_json(home / "out" / "summary.json")
    assert summary["digest"] == read_json(home / "out" / "run.json")["digest"]
    right, losses, best = summary["metrics"]
    assert [entry["metric"] for entry in (right, losses, best)] == ["right", "loss", "best"]
    expected = wilson([1.0] * 5)
    assert right["interval"] == {"low": expected.low, "high": 1.0, "level": 0.95, "method": "wilson"}
    assert {key: right[key] for key in ("point", "axes", "step", "kind", "unit", "n", "eligible", "mean")} == {
        "point": "",
        "axes": {},
        "step": "s",
        "kind": "match",
        "unit": "fraction",
        "n": 5,
        "eligible": 5,
        "mean": 1.0,
    }
    values = [row["value"] for row in read_json(home / "out" / "loss.json")]
    expected = bootstrap(values)
    assert losses["mean"] == pytest.approx(sum(values) / 5)
    assert losses["interval"] == {"low": expected.low, "high": expected.high, "level": 0.95, "method": "bootstrap"}
    assert (best["mean"], best["interval"]) == (None, None)


def test_a_sweep_lists_its_points_and_has_a_folder_each(run_document, home):
    raw = looking(RIGHT)
    raw["interventions"]["look"]["reads"]["last"]["site"]["layers"] = {"sweep": {"range": [0, 3, 2]}, "as": "layer"}
    raw["interventions"]["look"]["reads"]["ragged"]["pos"] = {"sweep": [-1, 0]}
    code, out, _ = run_document(raw)
    assert code == 0
    labels = ["layer=0,pos=-1", "layer=0,pos=0", "layer=2,pos=-1", "layer=2,pos=0"]
    points = read_json(home / "out" / "points.json")
    assert list(points) == labels
    assert points[labels[3]] == {"layer": 2, "pos": 0}
    assert out.splitlines() == [
        f"{home}/out/{name}"
        for name in ["document.json", "run.json", "points.json", *(f"{label}/right.json" for label in labels), "summary.json"]
    ]
    assert [step["point"] for step in read_json(home / "out" / "run.json")["steps"]] == labels
    assert {entry["point"]: entry["axes"] for entry in read_json(home / "out" / "summary.json")["metrics"]} == points


def test_a_run_that_fails_says_so_in_its_record(run_document, home, monkeypatch):
    from causalab_mini.engine.engines.nnterp import NNterpEngine
    from causalab_mini.errors import Problem, RunError

    def fail(self, batch, visits, state, shortcut):
        raise RunError(Problem("steps.s", "memory for one row", "none"))

    monkeypatch.setattr(NNterpEngine, "run", fail)
    code, out, err = run_document(looking(RIGHT))
    assert (code, out) == (1, "")
    assert "steps.s: expected memory for one row, got none" in err
    record = read_json(home / "out" / "run.json")
    assert record["status"] == "failed"
    assert record["error"]["errors"][0]["got"] == "none"


def test_points_that_finished_before_a_failure_are_on_disk(run_document, home, monkeypatch):
    from causalab_mini.engine.store import Store
    from causalab_mini.errors import Problem, RunError

    raw = looking(RIGHT)
    raw["interventions"]["look"]["reads"]["last"]["site"]["layers"] = {"sweep": [0, 1]}
    observe = Store.observe

    def fail_later(self, point, *others):
        if point == "layers=1":
            raise RunError(Problem("steps.s", "memory", "none"))
        return observe(self, point, *others)

    monkeypatch.setattr(Store, "observe", fail_later)
    assert run_document(raw, "--check", "off")[0] == 1
    assert (home / "out" / "layers=0" / "right.json").is_file()
    assert not (home / "out" / "layers=1").exists()
    assert [entry["point"] for entry in read_json(home / "out" / "summary.json")["metrics"]] == ["layers=0"] * 3


# tables and tensors


def test_tables_of_every_suffix_have_the_same_rows(run_document, home):
    import pyarrow.parquet

    saves = [{"value": value, "file_path": f"{value}{suffix}"} for value in ("right", "best") for suffix in (".json", ".csv", ".parquet")]
    assert run_document(looking(saves))[0] == 0
    for value in ("right", "best"):
        rows = read_json(home / "out" / f"{value}.json")
        with (home / "out" / f"{value}.csv").open(encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
        parquet = pyarrow.parquet.read_table(home / "out" / f"{value}.parquet").to_pylist()
        assert len(lines) == len(parquet) == len(rows) == 5
        for row, line, record in zip(rows, lines, parquet, strict=True):
            assert list(line) == list(row) == list(record)
            assert json.loads(line["value"]) == row["value"]
            assert line["eligible"] == "true"
            assert (json.loads(record["value"]) if value == "best" else record["value"]) == row["value"]
            assert record["positions"] == row["positions"]


def test_tensors_have_the_shapes_of_their_reads(run_document, home, rows):
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file

    outputs = {
        "rectangle": "last",
        "ragged": "ragged",
        "stacked": "stacked",
        "mean": {"read": "last", "reduce": "mean"},
        "ragged_mean": {"read": "ragged", "reduce": "mean"},
        "stacked_mean": {"read": "stacked", "reduce": "mean"},
        "std": {"read": "last", "reduce": "std"},
        "pca": {"read": "stacked", "reduce": "pca", "k": 3},
        "by": {"read": "last", "reduce": "mean_by", "by": "task"},
        "step": {"difference": ["mean", "ragged_mean"], "unit": True},
    }
    saves = [{"value": name, "file_path": f"tensors/{name}.safetensors"} for name in outputs]
    assert run_document(looking(saves, outputs=outputs))[0] == 0
    found = {}
    for name in outputs:
        found |= load_file(home / "out" / "tensors" / f"{name}.safetensors")
    shapes = {name: tuple(tensor.shape) for name, tensor in found.items()}
    n_ragged = int(found["ragged.lengths"].sum())
    assert n_ragged > 5
    assert shapes == {
        "rectangle": (5, 1, 64),
        "ragged": (n_ragged, 64),
        "ragged.lengths": (5,),
        "stacked": (4, 5, 2, 64),
        "mean": (64,),
        "ragged_mean": (64,),
        "stacked_mean": (4, 2, 64),
        "std": (64,),
        "pca": (4, 3, 64),
        "step": (64,),
        **{f"by/{task}": (64,) for task in {row["task"] for row in rows}},
    }
    torch.testing.assert_close(found["mean"], found["rectangle"][:, 0].double().mean(dim=0).float())
    assert torch.equal(found["stacked"][1, :, -1], found["rectangle"][:, 0])
    torch.testing.assert_close(found["stacked_mean"], found["stacked"].double().mean(dim=1).float())
    assert float(found["step"].norm()) == pytest.approx(1.0, abs=1e-5)
    with safe_open(home / "out" / "tensors" / "mean.safetensors", "pt") as file:
        assert file.metadata() == {"digest": read_json(home / "out" / "run.json")["digest"], "kind": "window"}


def test_a_ragged_read_with_equal_lengths_on_these_rows_is_still_ragged_on_disk(run_document, home):
    """What a file looks like follows from the document, not from which rows happened to be there."""
    from safetensors.torch import load_file

    rows = [row for row in read_json(home / "data" / "rows.json") if row["entity"] in ("Saturday", "Tuesday", "four", "eighteen")]
    write_table(home / "data", "rows", rows)
    saves = [{"value": "ragged", "file_path": "ragged.safetensors"}]
    assert run_document(looking(saves, outputs={"ragged": "ragged"}))[0] == 0
    found = load_file(home / "out" / "ragged.safetensors")
    assert len(set(found["ragged.lengths"].tolist())) == 1
