"""Runs that end anywhere and go on: what is kept, why the rest runs, and that the folder is then that of an undisturbed run."""

import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from authoring import LOGITS, document, observe, patching, site, write_document, write_table
from conftest import ROOT
from folders import contents, difference, ended, in_child

from causalab_mini.errors import CheckError, Problem, RunError, UsageError, WriteError
from causalab_mini.experiment import Experiment, Options, Watcher, load
from causalab_mini.results.finished import finished_name
from causalab_mini.results.store import RunFolder

pytestmark = [pytest.mark.tiny, pytest.mark.forks]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """OpenMP's threads are not there in a child, which would wait for them."""
    import torch

    n = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n)


PAIRS = json.loads((ROOT / "data" / "successor" / "pairs.json").read_text(encoding="utf-8"))
LABELS = ["layer=0", "layer=1", "layer=2"]
RIGHT = [{"value": "follows", "file_path": "follows.json"}]


def sweep(layers=(0, 1, 2), saves=RIGHT, **step):
    """Returns a document that patches one layer after the other, and saves what it read there."""
    stream = site("block_output", {"sweep": list(layers), "as": "layer"})
    intervention = patching(
        {"site": stream, "pos": -1, "mechanism": "swap", "operand": "source"},
        {"site": stream, "pos": -1},
        metrics={"follows": {"kind": "match", "of": "prediction", "expected": "cf_answer"}},
    )
    intervention["reads"]["prediction"] = {"site": LOGITS, "pos": -1, "model": "patched"}
    saved = [*saves, {"value": "state", "file_path": "state.safetensors"}]
    return document({"swap": intervention}, {"patch": observe("swap", outputs={"state": "source"}, saves=saved, **step)})


def fits(layers=(1, 2), epochs=2):
    """Returns a document that trains a subspace at several layers together."""
    raw = sweep(layers, [])
    raw["featurizers"] = {"rotation": {"kind": "subspace", "k": 4}}
    (swap,) = raw["interventions"].values()
    swap["metrics"]["loss"] = {"kind": "cross_entropy", "of": "prediction", "target": "cf_answer"}
    swap["writes"]["patch"]["featurizer"] = swap["reads"]["source"]["featurizer"] = "rotation"
    raw["steps"] = {
        "train": {
            "kind": "fit",
            "rows": {"base": "train", "counterfactual": "train"},
            "interventions": "swap",
            "params": ["rotation"],
            "objective": [[1, "loss"]],
            "epochs": epochs,
            "pairs": 3,
            "optimizer": {"name": "adam", "lr": 0.02},
            "eval": {"rows": {"base": "rows", "counterfactual": "rows"}, "saves": [{"value": "loss", "file_path": "loss.json"}]},
        },
        "save": {"kind": "weights", "names": ["rotation"], "saves": [{"value": "rotation", "file_path": "rotation.safetensors"}]},
    }
    return raw


@pytest.fixture
def home(tmp_path, engines, monkeypatch):
    """Returns a folder with tables; checkpoints are opened once, with weights; and no test waits for the disk: no power fails here."""
    engine = engines("successor-llama")
    engine.load_weights()
    monkeypatch.setattr(Experiment, "open", lambda self: engine)
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    write_table(tmp_path / "data", "rows", PAIRS[20:24])
    write_table(tmp_path / "data", "train", PAIRS[:6])
    return tmp_path


@pytest.fixture
def run(home):
    """Returns a function that runs a document into a folder, and gives the run and the writer."""

    def carry_out(raw, out="out", *, watcher=None, **options):
        told = {}
        seen = watcher or {}
        watch = Watcher(**{"on_continued": lambda writer: told.update(writer=writer), **seen})
        done = load(write_document(home, raw), options=Options(**{"check": "off", **options})).run(home / out, watch)
        return done, told["writer"]

    return carry_out


def why(writer):
    return writer.continued.why


def read_json(path):
    return json.loads(Path(path).read_bytes())


def files_of(folder):
    return {path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file()} - {".lock"}


# what is kept


def test_a_finished_run_is_kept_as_it_is_without_a_pass_or_a_write(run, home, monkeypatch):
    first, writer = run(sweep())
    assert why(writer) == dict.fromkeys(LABELS, "new")
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (home / "out").rglob("*") if path.is_file()}
    monkeypatch.setattr(Experiment, "_carry_out", None)
    again, writer = run(sweep())
    assert (why(writer), list(writer.continued.kept), again.kept) == ({}, LABELS, tuple(LABELS))
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (home / "out").rglob("*") if path.is_file()} == before
    assert [point.label for point in first.points] == LABELS
    with pytest.raises(UsageError, match="expected a point that was run, got `layer=1`, which an earlier run has finished"):
        again.point("layer=1")


def test_more_points_run_and_those_that_are_there_are_kept(run, home):
    run(sweep((0, 2)))
    kept = {name: (home / "out" / name).stat().st_mtime_ns for name in ("layer=0/follows.json", "layer=2/state.safetensors")}
    done, writer = run(sweep())
    assert why(writer) == {"layer=1": "new"}
    assert [point.label for point in done.points] == ["layer=1"]
    assert {name: (home / "out" / name).stat().st_mtime_ns for name in kept} == kept
    run(sweep(), "undisturbed")
    assert difference(contents(home / "out"), contents(home / "undisturbed")) == ""
    assert [entry["point"] for entry in read_json(home / "out" / "summary.json")["metrics"]] == LABELS
    assert read_json(home / "out" / "run.json")["points"] == {"layer=0": "kept", "layer=1": "new", "layer=2": "kept"}
    assert [step["point"] for step in read_json(home / "out" / "run.json")["steps"]] == LABELS


def test_a_fit_that_is_finished_is_not_trained_again(run, home, monkeypatch):
    from causalab_mini.engine.fitting import Fits

    trained = []
    train = Fits.train
    monkeypatch.setattr(Fits, "train", lambda self, jobs: (trained.append([job.label for job in jobs]), train(self, jobs))[1])
    run(fits(), "undisturbed")
    run(fits((1,)))
    _, writer = run(fits())
    assert trained == [["layer=1", "layer=2"], ["layer=1"], ["layer=2"]]
    assert why(writer) == {"layer=2": "new"}
    assert difference(contents(home / "out"), contents(home / "undisturbed")) == ""


def test_batch_sizes_and_checks_are_no_reason_to_run(run):
    run(sweep())
    assert why(run(sweep(), batch_size=2, check="full")[1]) == {}


def test_a_failed_check_stays_failed(run, monkeypatch):
    from causalab_mini.evidence import checks

    monkeypatch.setitem(checks.TOLERANCE, "fp32", -1.0)
    for _ in range(2):
        with pytest.raises(CheckError, match="the check of rows to pass"):
            run(sweep((1,)), check="full")


# why points run


def test_fresh_runs_all_anew(run, home):
    run(sweep())
    before = contents(home / "out")
    done, writer = run(sweep(), fresh=True)
    assert why(writer) == dict.fromkeys(LABELS, "--fresh")
    assert len(done.points) == 3
    assert difference(contents(home / "out"), before) == ""


def test_a_changed_document_is_named_by_its_path_and_what_it_replaces_is_moved_aside(run, home):
    run(sweep())
    old = (home / "out" / "layer=1" / "follows.json").read_bytes()
    changed = sweep((1, 2, 3), [{"value": "follows", "file_path": "again.csv"}])
    _, writer = run(changed)
    said = "document changed at `steps[0][1].saves[0].file_path`"
    assert why(writer) == {"layer=1": said, "layer=2": said, "layer=3": "new"}
    run(changed, "undisturbed")
    now = files_of(home / "out")
    assert {name for name in now if not name.startswith("earlier/")} == files_of(home / "undisturbed")
    assert (home / "out" / "earlier" / "layer=1" / "follows.json").read_bytes() == old
    assert {name for name in now if name.startswith("earlier/layer=0")} == {
        "earlier/layer=0/follows.json",
        "earlier/layer=0/state.safetensors",
    }
    assert (home / "out" / "earlier" / finished_name("layer=0")).is_file()


def test_a_document_without_sweep_leaves_the_folder_of_a_sweep_and_comes_back(run, home):
    alone = sweep()
    for place in (alone["interventions"]["swap"]["reads"]["source"], alone["interventions"]["swap"]["writes"]["patch"]):
        place["site"]["layers"] = 1
    run(alone, "undisturbed")
    run(sweep())
    assert why(run(alone)[1]) == {"": "new"}
    assert {name for name in files_of(home / "out") if not name.startswith("earlier/")} == files_of(home / "undisturbed")
    alone["steps"]["patch"]["saves"][0]["file_path"] = "renamed.json"
    assert why(run(alone)[1])[""].startswith("document changed at")
    assert (home / "out" / "earlier" / "follows.json").is_file()
    assert not (home / "out" / "follows.json").exists()
    assert why(run(sweep())[1]) == dict.fromkeys(LABELS, "new")
    assert (home / "out" / "earlier" / "renamed.json").is_file()
    assert {name for name in files_of(home / "out") if not name.startswith("earlier/")} == {
        *("document.json", "run.json", "places.json", "points.json", "summary.json"),
        *(f"{label}/{name}" for label in LABELS for name in ("follows.json", "state.safetensors")),
        *(finished_name(label) for label in LABELS),
    }


def test_changed_data_names_the_table(run, home):
    run(sweep())
    write_table(home / "data", "rows", PAIRS[24:28])
    _, writer = run(sweep())
    assert why(writer) == dict.fromkeys(LABELS, "data changed: `rows`")
    run(sweep(), "undisturbed")
    found = {name: value for name, value in contents(home / "out").items() if not name.startswith("earlier/")}
    assert difference(found, contents(home / "undisturbed")) == ""


def test_a_changed_file_of_a_featurizer_is_named(run, home):
    run(fits((1,), 1), "first")
    run(fits((1,), 2), "second")
    raw = sweep((1,))
    raw["featurizers"] = {"rotation": {"kind": "subspace", "k": 4, "file_path": "rotation.safetensors"}}
    (swap,) = raw["interventions"].values()
    swap["writes"]["patch"]["featurizer"] = swap["reads"]["source"]["featurizer"] = "rotation"
    for name in ("first", "second"):
        (home / "rotation.safetensors").write_bytes((home / name / "layer=1" / "rotation.safetensors").read_bytes())
        _, writer = run(raw)
    assert why(writer) == {"layer=1": "featurizer changed: `rotation.safetensors`"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"revision": "4f2"}, "revision changed from `4f2` to `None`"),
        ({"dtype": "bf16"}, "dtype changed from `bf16` to `fp32`"),
        ({"attn_implementation": "eager"}, "attention changed from `eager` to `None`"),
        ({"package": "0.0.9 (abc)"}, "package changed from `0.0.9 (abc)` to `"),
        ({"tables": {}}, "data changed: `rows`"),
    ],
)
def test_what_the_key_says_of_an_earlier_run_is_compared(run, home, changed, said):
    run(sweep((1,)))
    from causalab_mini.results.finished import read_finished

    with RunFolder.open(home / "out") as folder:
        before = read_finished(folder, "layer=1")
        before.key = {**before.key, **changed}
        folder.write(finished_name("layer=1"), before.as_bytes())
    assert why(run(sweep((1,)))[1])["layer=1"].startswith(said)


def test_another_dtype_is_said_as_such(run, home):
    run(sweep((1,)))
    from causalab_mini.results.finished import read_finished

    with RunFolder.open(home / "out") as folder:
        before = read_finished(folder, "layer=1")
        before.meaning["model"]["dtype"] = "bf16"
        before.key = {**before.key, "digest": "another", "dtype": "bf16"}
        folder.write(finished_name("layer=1"), before.as_bytes())
    assert why(run(sweep((1,)))[1]) == {"layer=1": "dtype changed from `bf16` to `fp32`"}


# damage


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda out: flip(out / "layer=1/state.safetensors"), r"incomplete: `layer=1/state.safetensors` is not what was written \(sha256 "),
        (lambda out: (out / "layer=1/follows.json").write_text("[]"), r"incomplete: `layer=1/follows.json` has 2 bytes, .* were written"),
        (lambda out: (out / "layer=1/follows.json").unlink(), r"incomplete: `layer=1/follows.json` is not there"),
        (lambda out: (out / finished_name("layer=1")).write_bytes(b"\x00\xff{"), r"incomplete: `.points/layer=1.json` can't be read"),
        (lambda out: flip(out / finished_name("layer=1")), r"incomplete: `.points/layer=1.json` (is not what|can't be read)"),
        (lambda out: (out / finished_name("layer=1")).write_text('{"label": 1}'), r"incomplete: `.points/layer=1.json` is not what was"),
        (lambda out: (out / finished_name("layer=1")).unlink(), r"incomplete$"),
    ],
)
def test_a_damaged_file_is_named_and_its_point_alone_runs_again(run, home, damage, said):
    import re

    run(sweep())
    before = contents(home / "out")
    damage(home / "out")
    done, writer = run(sweep())
    assert list(why(writer)) == ["layer=1"] == [point.label for point in done.points]
    assert re.match(said, why(writer)["layer=1"]), why(writer)
    assert difference(contents(home / "out"), before) == ""


@pytest.mark.parametrize("name", ["run.json", "summary.json", "points.json", "document.json"])
@pytest.mark.parametrize("content", [None, b"", b"\xff\x00", b"[1]"])
def test_a_damaged_record_or_summary_is_made_anew_of_what_is_finished(run, home, name, content, monkeypatch):
    run(sweep())
    before = contents(home / "out")
    (home / "out" / name).unlink() if content is None else (home / "out" / name).write_bytes(content)
    monkeypatch.setattr(Experiment, "_carry_out", None)
    run(sweep())
    assert difference(contents(home / "out"), before) == ""


def test_a_record_that_cannot_be_read_and_nothing_finished_is_no_folder_of_ours(run, home):
    (home / "out").mkdir()
    (home / "out" / "run.json").write_bytes(b"{")
    with pytest.raises(
        UsageError, match=r"--out: expected an empty folder, or one of this experiment, got .*, whose `run.json` can't be read"
    ):
        run(sweep())
    assert files_of(home / "out") == {"run.json"}


# failures


def test_a_point_that_fails_is_recorded_and_the_others_go_on(run, home, monkeypatch):
    from causalab_mini.engine.store import Store

    observed = Store.observe

    def fail(self, point, *others):
        if point == "layer=1":
            raise RunError(Problem("steps.patch", "memory for one row", "none"))
        return observed(self, point, *others)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "observe", fail)
        with pytest.raises(RunError, match=r"document.json: layer=1: steps.patch: expected memory for one row, got none"):
            run(sweep())
    record = read_json(home / "out" / "run.json")
    assert record["status"] == "failed"
    assert list(record["failed"]) == ["layer=1"]
    assert record["error"]["errors"][0]["path"] == "layer=1: steps.patch"
    assert [entry["point"] for entry in read_json(home / "out" / "summary.json")["metrics"]] == ["layer=0", "layer=2"]
    assert why(run(sweep())[1]) == {"layer=1": "incomplete"}
    run(sweep(), "undisturbed")
    assert difference(contents(home / "out"), contents(home / "undisturbed")) == ""


def test_of_fits_that_are_trained_together_one_without_a_finite_loss_fails_alone(run, home, monkeypatch):
    from causalab_mini.engine.job import Job

    loss = Job.loss

    def explode(self, found, rows):
        return loss(self, found, rows) * (float("nan") if self.label == "layer=2" and self.n_done == 1 else 1)

    with monkeypatch.context() as patch:
        patch.setattr(Job, "loss", explode)
        with pytest.raises(RunError, match=r"layer=2: steps.train: expected a finite loss and gradient at every update"):
            run(fits((1, 2, 3)))
    assert sorted(path.name for path in (home / "out" / ".points").iterdir()) == ["layer=1.json", "layer=3.json"]
    run(fits((1, 2, 3)))
    run(fits((1, 2, 3)), "undisturbed")
    assert difference(contents(home / "out"), contents(home / "undisturbed")) == ""


def test_a_disk_that_is_full_while_a_fit_trains_ends_the_run_and_is_no_points_fault(run, home, monkeypatch):
    from causalab_mini.engine.job import Job

    begun, end = [], Job.end

    def full(self, name, data, is_result=True):
        if name.startswith("checkpoints"):
            raise WriteError(Problem(name, "a file that can be written", "no space left on device"))
        return write(self, name, data, is_result)

    write = RunFolder.write
    monkeypatch.setattr(Job, "end", lambda self: (begun.append(self.label), end(self))[1])
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write", full)
        with pytest.raises(WriteError, match=r"checkpoints/layer=1/train.safetensors: expected a file that can be written"):
            run(fits((1, 2), 3))
    assert len(begun) == 4, "one epoch of two updates, of both"
    run(fits((1, 2), 3))


def test_a_comparison_of_folders_sees_what_is_other(run, home):
    run(sweep((1, 2)))
    run(sweep((1, 3)), "other")
    found = contents(home / "out")
    assert difference(found, contents(home / "other"))
    changed = json.loads(json.dumps(found))
    changed["layer=1/state.safetensors"]["state"][0][0][0] += 0.01
    assert difference(found, changed).startswith("/layer=1/state.safetensors/state[0][0][0]: ")


def test_a_bug_ends_the_run_and_leaves_what_is_finished(run, home, monkeypatch):
    from causalab_mini.engine.store import Store

    observed = Store.observe

    def fail(self, point, *others):
        return observed(self, point, *others) if point == "layer=0" else [][1]

    with monkeypatch.context() as patch:
        patch.setattr(Store, "observe", fail)
        with pytest.raises(IndexError):
            run(sweep())
    assert read_json(home / "out" / "run.json")["status"] == "failed"
    assert why(run(sweep())[1]) == {"layer=1": "incomplete", "layer=2": "incomplete"}


def test_a_table_that_vanished_is_named(run, home):
    from causalab_mini.errors import PlanError

    run(sweep())
    before = contents(home / "out")
    (home / "data" / "rows.json").unlink()
    with pytest.raises(PlanError, match=r"steps.patch.rows.base: expected a table `rows.json` .*, got no such file"):
        run(sweep())
    assert difference(contents(home / "out"), before) == ""


def test_a_table_that_vanishes_while_it_is_read_is_named(home, monkeypatch):
    from causalab_mini.data import table
    from causalab_mini.errors import DataError

    found = table._table_path("rows", "rows", home / "data")
    monkeypatch.setattr(table, "_table_path", lambda *given: found)
    (home / "data" / "rows.json").unlink()
    with pytest.raises(DataError, match=r"rows.json: expected a readable file, got no such file"):
        table.open_table("rows", home / "data")


def test_a_featurizers_file_that_vanishes_after_compiling_is_named(run, home, engines):
    run(fits((1,), 1), "first")
    raw = sweep((1,))
    raw["featurizers"] = {"rotation": {"kind": "subspace", "k": 4, "file_path": "first/layer=1/rotation.safetensors"}}
    (swap,) = raw["interventions"].values()
    swap["writes"]["patch"]["featurizer"] = swap["reads"]["source"]["featurizer"] = "rotation"
    gone = {"on_continued": lambda writer: (home / "first" / "layer=1" / "rotation.safetensors").unlink()}
    with pytest.raises(
        RunError, match=r"featurizers.rotation.file_path: expected a file that stays as it was when the run began, got .*rotation"
    ):
        load(write_document(home, raw), options=Options(check="off")).run(home / "out", Watcher(**gone))
    assert read_json(home / "out" / "run.json")["status"] == "failed"


# crashes: at every write, fsync, rename, removal and new folder


class Operations:
    """What a run asks of the disk, counted; at one of them something happens."""

    def __init__(self, monkeypatch, folder, at=None, act=None):
        self.names, self.at, self.act, self.folder = [], at, act, str(folder)
        for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "unlink"), (Path, "mkdir"), (os, "fdopen")):
            monkeypatch.setattr(owner, name, self.counted(name, getattr(owner, name)))

    def counted(self, name, real):
        def operation(*given, **more):
            if name == "fdopen":
                return Counted(self, real(*given, **more))
            if name == "fsync" or str(given[0]).startswith(self.folder):
                self.note(name)
            return real(*given, **more)

        return operation

    def note(self, name, half=lambda: None):
        self.names.append(name)
        if self.at is not None and len(self.names) > self.at:
            half()
            self.act()


class Counted:
    """A file of which half is written where a run ends."""

    def __init__(self, operations, file):
        self.operations, self.file = operations, file

    def __enter__(self):
        self.file.__enter__()
        return self

    def __exit__(self, *error):
        return self.file.__exit__(*error)

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, data):
        def half():
            self.file.write(data[: len(data) // 2])
            self.file.flush()

        self.operations.note("write", half)
        return self.file.write(data)


def is_whole_wherever_it_ends(run, home, raw, monkeypatch, end):
    """Ends a run at each of its operations in turn, lets it go on, and compares; returns the operations."""
    with monkeypatch.context() as patch:
        counted = Operations(patch, home / "undisturbed")
        run(raw, "undisturbed")
    expected = contents(home / "undisturbed")
    for at in range(len(counted.names)):
        out = f"out{at}"
        with monkeypatch.context() as patch:
            end(out, lambda act, at=at, out=out, patch=patch: Operations(patch, home / out, at, act))
        run(raw, out)
        said = difference(contents(home / out), expected)
        assert not said, f"ended at operation {at}, {counted.names[at]}: {said}"
    return counted.names


def test_a_crash_at_any_write_sync_or_rename_costs_nothing(run, home, monkeypatch):
    raw = sweep((0, 2))

    def crash(out, install):
        def act():
            install(lambda: os._exit(7))
            run(raw, out)

        assert in_child(act) == 7

    names = is_whole_wherever_it_ends(run, home, raw, monkeypatch, crash)
    assert {"write", "fsync", "replace", "mkdir"} <= set(names)
    assert len(names) > 40


def test_a_disk_that_is_full_at_any_write_is_named_and_costs_nothing(run, home, monkeypatch):
    raw = sweep((0, 2))

    def fill(out, install):
        def full():
            raise OSError(28, "No space left on device")

        install(full)
        with pytest.raises(RunError, match=r"(got|\() ?no space left on device") as caught:
            run(raw, out)
        assert str(home / out) in str(caught.value)

    is_whole_wherever_it_ends(run, home, raw, monkeypatch, fill)


def test_a_crash_while_another_documents_results_are_moved_aside_costs_nothing(run, home, monkeypatch):
    """Of the old run, each file is in its place or in `earlier/`; of the new one, all is there in the end."""
    raw, old = sweep((0, 2), [{"value": "follows", "file_path": "follows.csv"}]), sweep((0, 1))
    run(old, "undisturbed")
    with monkeypatch.context() as patch:
        counted = Operations(patch, home / "undisturbed")
        run(raw, "undisturbed")
    expected = contents(home / "undisturbed")
    assert {"earlier/layer=0/follows.json", "earlier/layer=1/state.safetensors", "layer=2/follows.csv"} <= set(expected)
    for at in range(0, len(counted.names), 3):
        out = f"out{at}"
        run(old, out)

        def act(at=at, out=out):
            with monkeypatch.context() as patch:
                Operations(patch, home / out, at, lambda: os._exit(7))
                run(raw, out)

        assert in_child(act) == 7
        run(raw, out)
        said = difference(contents(home / out), expected)
        assert not said, f"ended at operation {at}, {counted.names[at]}: {said}"


@pytest.mark.parametrize("make", [sweep, fits])
def test_a_run_that_is_killed_over_and_over_gets_done(run, home, monkeypatch, make):
    from causalab_mini.results import writer

    monkeypatch.setattr(writer, "MIN_SECONDS", 0.0)  # the best of a fit is written at every epoch
    raw, chance = make(), random.Random(0)
    before = time.monotonic()
    assert in_child(lambda: run(raw, "undisturbed")) == 0
    seconds = time.monotonic() - before
    for n_killed in range(1, 6):
        if in_child(lambda: run(raw), kill_after=chance.uniform(0, seconds)) == 0:
            (home / "out").rename(home / f"done{n_killed}")  # it was faster: begin again
    run(raw)
    for done in (home / "out", *home.glob("done*")):
        assert difference(contents(done), contents(home / "undisturbed")) == ""


def test_files_of_a_document_whose_points_are_not_joined_are_the_same_to_the_byte(run, home):
    raw = sweep((1,))
    run(raw, "undisturbed")
    with pytest.raises(KeyboardInterrupt):
        run(raw, watcher={"on_scheduled": lambda physical: os.kill(os.getpid(), signal.SIGINT)})
    run(raw)
    for name in ("layer=1/follows.json", "summary.json", "document.json", "points.json"):
        assert (home / "out" / name).read_bytes() == (home / "undisturbed" / name).read_bytes()


# one run at a time


def test_a_folder_in_use_is_refused_at_once_and_wait_waits(run, home):
    released, waiting = threading.Event(), threading.Event()

    def hold():
        with RunFolder.open(home / "out") as folder:
            folder.write_json("run.json", {"digest": "d", "status": "running", "process": 4711})
            waiting.wait(10)
            released.set()

    holder = threading.Thread(target=hold)
    holder.start()
    while not (home / "out" / "run.json").exists():
        time.sleep(0.01)
    with pytest.raises(UsageError, match=r"--out: expected a folder that no run is writing, got .*out`, which process 4711 is writing"):
        run(sweep())
    assert files_of(home / "out") == {"run.json"}
    told = []

    def on_waiting(who):
        told.append((who, released.is_set()))
        waiting.set()

    run(sweep(), wait=True, watcher={"on_waiting": on_waiting})
    holder.join()
    assert told == [("which process 4711 is writing", False)]
    assert read_json(home / "out" / "run.json")["status"] == "finished"


def test_two_processes_never_write_one_folder(run, home):
    """Eight at once: each either finds the folder in use, or waits and has nothing left to do."""
    children = []
    for number in range(8):
        child = os.fork()
        if not child:
            code = 9
            with contextlib.suppress(UsageError):
                done, _ = run(sweep(), wait=number % 2 == 0)
                code = len(done.points)
            os._exit(code)
        children.append(child)
    codes = [ended(child) for child in children]
    assert sorted(code for code in codes if code != 9)[-1] == 3
    assert sum(code == 3 for code in codes) == 1
    assert set(codes) <= {0, 3, 9}
    run(sweep(), "undisturbed")
    assert difference(contents(home / "out"), contents(home / "undisturbed")) == ""


def test_the_lock_of_a_killed_run_is_gone_with_it(run, home):
    def hold():
        RunFolder.open(home / "out")
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(hold) == -signal.SIGKILL
    assert why(run(sweep())[1]) == dict.fromkeys(LABELS, "new")


def test_a_recording_takes_the_lock_too(command, home, monkeypatch):
    asked = ("--model", "bundled:successor-llama", "--prompt", "Friday is", "--max-new-tokens", "1", "--only-records")
    held, let_go = threading.Event(), threading.Event()

    def hold():
        with RunFolder.open(home / "out"):
            held.set()
            let_go.wait(60)

    def probe(*more):
        return command("probe", ROOT / "documents/specs/single_token.yaml", *asked, "--out", home / "out", *more)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(60)
    said = probe()
    assert said.code == 2
    assert "expected a folder that no run is writing" in said.err
    said = []
    monkeypatch.setattr(sys.modules["causalab_mini.cli.probe"], "_say_waiting", lambda who: (said.append(who), let_go.set()))
    waited = probe("--wait")
    holder.join()
    assert waited.code == 0, waited.err
    assert said == ["which another process is writing"]


def test_a_folder_that_cannot_be_written_is_named():
    """As a user without rights, in a child: the superuser may write anywhere."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "out"
        folder.mkdir()
        folder.chmod(0o555)
        Path(name).chmod(0o755)

        def act():
            if os.geteuid() == 0:
                os.setuid(65534)
            for out in (folder, folder / "below"):
                with pytest.raises(RunError, match=r"--out: expected a folder that can be made and written, got .* \(permission denied\)"):
                    RunFolder.open(out)

        assert in_child(act) == 0
        folder.chmod(0o755)


# signals


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_lets_the_forward_finish_and_the_command_goes_on_later(run, home, capfd, monkeypatch, number, code):
    """The program, in a child: a signal within the third forward, which is finished, and no fourth one is begun."""
    from causalab_mini.cli.app import main
    from causalab_mini.engine.engines.nnterp import NNterpEngine

    file, real, forwards = write_document(home, sweep()), NNterpEngine.run, []

    def forward(self, *given):
        forwards.append("begun")
        if len(forwards) == 5:
            os.kill(os.getpid(), number)
        real(self, *given)
        forwards.append("finished")
        (home / "forwards").write_text(" ".join(forwards), encoding="utf-8")

    def act():
        monkeypatch.setattr(NNterpEngine, "run", forward)
        main(["run", str(file), "--out", str(home / "out"), "--check", "off", "--batch-size", "2"])

    assert in_child(act, is_quiet=False) == code
    said = capfd.readouterr().err
    assert "ending after this forward; once more ends at once" in said
    assert "0 of 3 points are finished; the same command goes on from there" in said
    assert f"error: {'terminated' if code == 143 else 'interrupted'}" in said
    assert (home / "forwards").read_text(encoding="utf-8").split() == ["begun", "finished"] * 3
    assert read_json(home / "out" / "run.json")["status"] == "interrupted"
    run(sweep())
    run(sweep(), "undisturbed")
    assert difference(contents(home / "out"), contents(home / "undisturbed")) == ""


def test_points_that_are_finished_when_a_signal_comes_stay_so(run, home):
    with pytest.raises(KeyboardInterrupt):
        run(sweep(), watcher={"on_point": lambda point: os.kill(os.getpid(), signal.SIGINT)})
    assert [entry["point"] for entry in read_json(home / "out" / "summary.json")["metrics"]] == ["layer=0"]
    _, writer = run(sweep())
    assert why(writer) == {"layer=1": "incomplete", "layer=2": "incomplete"}


def test_a_second_signal_does_not_wait(run, home):
    from causalab_mini.engine.engines.nnterp import NNterpEngine

    real, seen = NNterpEngine.run, []

    def forward(self, *given):
        seen.append("begun")
        os.kill(os.getpid(), signal.SIGINT)
        seen.append("put off")
        os.kill(os.getpid(), signal.SIGINT)
        seen.append("not put off")
        return real(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NNterpEngine, "run", forward)
        with pytest.raises(KeyboardInterrupt):
            run(sweep(), watcher={"on_stopping": lambda: seen.append("said")})
    assert seen == ["begun", "said", "put off"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert read_json(home / "out" / "run.json")["status"] == "interrupted"
    run(sweep())
    run(sweep(), "undisturbed")
    assert difference(contents(home / "out"), contents(home / "undisturbed")) == ""


def test_an_interrupted_fit_goes_on_and_leaves_what_an_undisturbed_one_does(run, home):
    seen = []

    def interrupt(jobs):
        seen.append(jobs[0].n_done)
        if len(seen) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(fits(), watcher={"on_fit": interrupt})
    assert "checkpoints/layer=1/train.curves.json" in files_of(home / "out")
    assert why(run(fits())[1]) == {"layer=1": "incomplete", "layer=2": "incomplete"}
    run(fits(), "undisturbed")
    assert difference(contents(home / "out"), contents(home / "undisturbed")) == ""
