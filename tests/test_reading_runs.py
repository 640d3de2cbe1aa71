"""What runs of every kind leave, read back: equal to what they returned, whatever it is saved as."""

import json

import numpy
import pandas
import polars
import pytest
import torch
from authoring import ENTITY, LOGITS, document, observe, site, write_document, write_table
from conftest import ROOT

from causalab_mini import load, open_run
from causalab_mini.experiment import Options
from causalab_mini.results.reading.compare import compare_runs

pytestmark = pytest.mark.tiny

SUFFIXES = (".json", ".csv", ".parquet")
FEW = {
    "quickstart": {},
    "attribution": {"steps.one_gradient.verify_top": 2, "steps.on_the_way.ig_steps": 2, "steps.on_the_way.verify_top": 1},
    "das": {
        "steps.train.epochs": 1,
        "sites.stream.layers": 1,
        "featurizers.rotation.k": {"sweep": [2, 4], "as": "k"},
        "steps.test.controls": [],
    },
    "generation": {},
    "linear_probe": {"sites.stream.layers": {"sweep": [2], "as": "layer"}},
    "stream": {},
    "logit_lens_stacked": {},
    "top_k": {},
}
"""Documents that ship, made small."""


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """Returns a function that runs a document that ships, once, with all its tables saved in every way; gives what it returned and the folder."""
    made = {}

    def run(name):
        if name not in made:
            raw = json.loads((ROOT / "documents" / f"{name}.json").read_text(encoding="utf-8"))
            for step in raw["steps"].values():
                for part in (step, step.get("eval", {})):
                    for save in list(part.get("saves", ())):
                        stem, _, suffix = save["file_path"].rpartition(".")
                        others = [each for each in SUFFIXES if suffix != "safetensors" and each != f".{suffix}"]
                        part["saves"] += [{"value": save["value"], "file_path": f"{stem}{each}"} for each in others]
            home = tmp_path_factory.mktemp(name)
            path = write_document(home, raw)
            done = load(path, data_root=ROOT / "data", overrides=FEW[name], options=Options(check="off")).run(home / "out")
            made[name] = done, open_run(home / "out")
        return made[name]

    return run


@pytest.mark.parametrize("name", FEW)
def test_every_table_of_a_document_reads_back_alike_from_json_csv_and_parquet(shipped, name):
    _, run = shipped(name)
    tables = [file for file in run.files if file.is_table]
    assert {file.suffix for file in tables} == set(SUFFIXES)
    for table in run.tables:
        by_suffix = [run.table(f"{table}{suffix}").rows for suffix in SUFFIXES]
        assert by_suffix[0]
        assert by_suffix[1] == by_suffix[0]
        assert by_suffix[2] == by_suffix[0]
        assert len(run.table(table).to_pandas()) == len(run.table(table).to_polars()) == len(by_suffix[0])


@pytest.mark.parametrize("name", FEW)
def test_a_run_of_every_kind_can_be_shown_exported_and_compared_with_itself(shipped, name, command, tmp_path):
    _, run = shipped(name)
    assert run.status == "finished"
    assert run._repr_html_().count("<table>") >= 1
    assert len(repr(run).splitlines()) < 30
    code, out, err = command("show", run.path)
    assert (code, err) == (0, "")
    assert "status   finished" in out
    for table in run.tables:
        assert command("show", run.path, table).code == 0
    code, out, _ = command("export", run.path, tmp_path / "out", "--to", "parquet")
    assert code == 0
    for line in out.split():
        assert len(pandas.read_parquet(line)) == polars.read_parquet(line).height > 0
    assert not compare_runs(run, run)["is_changed"]


def test_what_a_sweep_returned_is_what_is_read(shipped):
    done, run = shipped("quickstart")
    for point in done.points:
        for metric, rows in ((metric, rows) for step in point.steps.values() for metric, rows in step.results["metrics"].items()):
            saved = [row for row in run.point(point.label).table(metric.rpartition("/")[2]) if row["produced_by"] == rows[0]["produced_by"]]
            assert saved == rows
    array = run.array("follows")
    assert (array.dims, array.coords["place"]) == (("layer", "place"), ("entity", "last_token"))
    numpy.testing.assert_array_equal(array.values, [[1, 0], [1, 0], [0, 1], [0, 1]])
    frame = run.metrics().to_pandas()
    assert frame.loc[(2, "last_token")].set_index("metric").loc["follows", "mean"] == 1.0


def test_what_show_prints_of_a_run_is_what_run_printed(command, tmp_path):
    printed = command("run", ROOT / "documents" / "quickstart.json", "--out", tmp_path / "out").err
    shown = command("show", tmp_path / "out").out
    assert len(printed.splitlines()) > 20
    why, _, told = printed.partition("\n")
    assert why == "runs all 8 points: new"
    assert told in shown


def test_trained_parameters_curves_and_probes_are_read(shipped):
    done, run = shipped("das")
    for point in done.points:
        saved = run.tensor("rotation", point.label)
        (basis,) = point.steps["weights"].results["weights"]["rotation"]["rotation"].values()
        assert torch.equal(saved.torch(), basis)
        numpy.testing.assert_array_equal(saved.numpy(), saved.torch().numpy())
        assert list(run.table("train/loss", point.label)) == [dict(line) for line in point.steps["train"].results["train/loss"]]
    assert run.array("loss", step="test").shape == (2,)
    _, probing = shipped("linear_probe")
    assert sorted(probing.point().tensors()) == ["probe:bias", "probe:weight"]
    assert {type(row["label"]) for row in probing.table("predictions")} == {str}
    assert probing.array("accuracy", value="majority_class.mean").shape == (1,)


def test_a_streams_records_are_those_of_its_tensors(shipped):
    done, run = shipped("stream")
    tensors = run.tensors()
    assert tensors["speech:speech/block_output/1"].shape[0] == sum(
        (row["point"], row["layer"]) == ("speech", 1) for row in run.table("records")
    )
    for point, found in done.step("record").results["points"].items():
        for key, tensor in found.items():
            if any(each.key == key for each in tensors.values()):
                assert torch.equal(run.tensor(point, key=key).torch(), tensor)
    assert run.fired().column("fired") == [point["fired"] for point in done.step("record").results["fired"]]


def test_lists_of_interventions_and_stacked_outputs(rows_of, tmp_path):
    read = {
        "z": {"site": LOGITS, "pos": -1, "input": "base"},
        "deep": {"site": site("block_output", "all"), "pos": ENTITY, "input": "base"},
    }
    metrics = {
        "right": {"kind": "match", "of": "z", "expected": "base_answer"},
        "norm": {"kind": "value", "of": "z", "how": "norm"},
        "deep_norm": {"kind": "value", "of": "last", "how": "norm"},
    }
    read["last"] = {"site": site("block_output", [0, 2]), "pos": -1, "input": "base"}
    saves = [{"value": f"{name}/{metric}", "file_path": f"{metric}.csv"} for name in "ab" for metric in ("right", "deep_norm")]
    step = observe(["a", "b"], both=False, saves=[*saves, {"value": "spread", "file_path": "t/spread.safetensors"}], outputs={"spread": {"read": "a/deep"}})  # fmt: skip
    raw = document({name: {"reads": read, "metrics": metrics} for name in "ab"}, {"s": step})
    write_table(tmp_path / "data", "rows", rows_of("successor-llama"))
    done = load(write_document(tmp_path, raw), options=Options(check="off")).run(tmp_path / "out")
    run = open_run(tmp_path / "out")
    assert set(run.tables) == {"a/right", "a/deep_norm", "b/right", "b/deep_norm"}
    assert list(run.table("b/deep_norm")) == done.step("s").results["metrics"]["b/deep_norm"]
    array = run.array("a/deep_norm")
    assert (array.dims, array.coords) == (("layer",), {"layer": (0, 2)})
    assert run.array("a/right").values.shape == ()
    assert [(entry["metric"], entry["is_paired"]) for entry in compare_runs(run, run)["metrics"]][:3] == [
        ("a/right", True),
        ("b/right", True),
        ("a/deep_norm", True),
    ]
    assert run.tensor("spread").torch().shape[0] == 4
    assert run.tensor("t/spread", key="spread.lengths").numpy().tolist() == run.tensor("spread.lengths").torch().tolist()


def test_verdicts_keep_their_values_in_every_format(tmp_path, rows_of):
    point = {"name": "norms", "layers": [1], "tensor_type": "residual_stream", "position": "generated[*]", "probe_type": "aggregator", "probe_kind": "trajectory"}  # fmt: skip
    saves = [{"value": "verdicts", "file_path": f"verdicts{suffix}"} for suffix in SUFFIXES]
    step = {"kind": "stream", "rows": {"base": "rows"}, "decode": {"max_new_tokens": 3}, "points": [point], "saves": saves}
    write_table(tmp_path / "data", "rows", rows_of("successor-llama"))
    load(write_document(tmp_path, document({}, {"s": step}))).run(tmp_path / "out")
    run = open_run(tmp_path / "out")
    found = [run.table(f"verdicts{suffix}").rows for suffix in SUFFIXES]
    assert found[0] == found[1] == found[2]
    assert isinstance(found[0][0]["value"], dict)


def test_a_recording_is_read_as_a_run_is(tmp_path, command):
    spec = ROOT / "documents" / "specs" / "continuous_trajectory.yaml"
    arguments = (
        "--model",
        "bundled:successor-llama",
        "--prompt",
        "If today is Monday, tomorrow is",
        "--max-new-tokens",
        "4",
        "--keep-activations",
    )
    assert command("probe", spec, *arguments, "--out", tmp_path / "out").code == 0
    run = open_run(tmp_path / "out")
    assert (run.is_recording, run.status, run.points) == (True, "finished", {"": {}})
    assert {"records", "generated"} <= set(run.tables)
    assert run.document["extraction_points"]
    assert run.tensors()
    assert all(tensor.numpy().shape == tensor.shape for tensor in run.tensors().values())
    assert [row["fired"] for row in run.fired()] == [point["fired"] for point in run.summary["points"]]
    assert "fired" in command("show", tmp_path / "out").out
    assert not compare_runs(run, run)["is_changed"]


def test_a_run_that_failed_says_at_what(tmp_path, rows_of, command, monkeypatch):
    from causalab_mini.engine.store import Store
    from causalab_mini.errors import Problem, RunError

    done = Store.observe

    def fail_later(self, point, *others):
        if point == "layers=1":
            raise RunError(Problem("steps.s", "memory", "none"))
        return done(self, point, *others)

    monkeypatch.setattr(Store, "observe", fail_later)
    reads = {
        "z": {"site": LOGITS, "pos": -1, "input": "base"},
        "x": {"site": site("block_output", {"sweep": [0, 1]}), "pos": -1, "input": "base"},
    }
    metrics = {"right": {"kind": "match", "of": "z", "expected": "base_answer"}}
    step = observe("look", both=False, saves=[{"value": "right", "file_path": "right.csv"}])
    write_table(tmp_path / "data", "rows", rows_of("successor-llama"))
    path = write_document(tmp_path, document({"look": {"reads": reads, "metrics": metrics}}, {"s": step}))
    assert command("run", path, "--out", tmp_path / "out", "--check", "off").code == 1
    run = open_run(tmp_path / "out")
    assert (run.status, run.table("right").missing) == ("failed", ("layers=1",))
    assert "failed: path layers=1: steps.s expected memory got none" in repr(run)
    assert "failed" in command("show", tmp_path / "out").out
