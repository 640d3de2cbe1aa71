"""The benchmark runs, and the tables in the repository are those that it writes."""

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT

pytestmark = pytest.mark.tiny

RESULTS = ROOT / "benchmarks" / "results"


def test_the_patching_benchmark_runs_on_the_bundled_model(tmp_path):
    command = [sys.executable, str(ROOT / "benchmarks" / "patching.py"), "--quick", "--work", "d", "--out", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "CAUSALAB_CACHE": str(tmp_path)}, cwd=ROOT)
    found = json.loads((tmp_path / "patching-bundled.json").read_text(encoding="utf-8"))["works"]["d"]
    ours = next(way for way in found["ways"] if way["name"] == "this package")
    assert ours["difference"] < 1e-3
    assert found["schedule"]["after"]["layer_tokens"] <= found["schedule"]["before"]["layer_tokens"]
    assert "this package" in (tmp_path / "patching-bundled.md").read_text(encoding="utf-8")


def test_the_benchmark_of_recording_runs_on_the_bundled_model(tmp_path):
    command = [sys.executable, str(ROOT / "benchmarks" / "observing.py"), "--quick", "--out", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "CAUSALAB_CACHE": str(tmp_path)}, cwd=ROOT)
    found = json.loads((tmp_path / "observing-bundled.json").read_text(encoding="utf-8"))
    page = json.loads((RESULTS / "observing.json").read_text(encoding="utf-8"))
    assert {n: set(ways) for n, ways in found["batches"].items()} == {n: set(ways) for n, ways in page["batches"].items()}


@pytest.mark.parametrize("model", ["smollm2", "random-llama"])
def test_the_tables_show_numbers_that_agree_with_hooks_by_hand(model):
    works = json.loads((RESULTS / f"patching-{model}.json").read_text(encoding="utf-8"))["works"]
    assert set(works) == {"a", "a2", "b", "c", "d"}
    for name, work in works.items():
        ours = next(way for way in work["ways"] if way["name"] == "this package")
        assert ours["difference"] < 1e-3, name
        assert work["schedule"]["after"]["layer_tokens"] < work["schedule"]["before"]["layer_tokens"], name


def test_no_example_has_more_to_run_with_rewrites():
    for name, one in json.loads((RESULTS / "examples.json").read_text(encoding="utf-8")).items():
        assert one["layer_tokens"][1] <= one["layer_tokens"][0], name
        assert one["passes"][1] <= one["passes"][0], name


def test_the_das_benchmark_runs_on_the_bundled_model_with_the_losses_of_the_same_rotation_by_hand(tmp_path):
    command = [sys.executable, str(ROOT / "benchmarks" / "das.py"), "--quick", "--no-peers", "--updates", "3", "--out", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "CAUSALAB_CACHE": str(tmp_path)}, cwd=ROOT)
    found = json.loads((tmp_path / "das-bundled.json").read_text(encoding="utf-8"))
    ours = next(way for way in found["ways"] if way["name"] == "this package")
    assert ours["difference"] < 1e-4
    assert ours["after"] < ours["at_start"]
    assert found["sweep"]["difference"] < 1e-4


@pytest.mark.parametrize("model", ["bundled", "smollm2"])
def test_the_tables_of_fits_show_the_same_losses_as_by_hand(model):
    found = json.loads((RESULTS / f"das-{model}.json").read_text(encoding="utf-8"))
    ways = {way["name"]: way for way in found["ways"]}
    assert ways["this package"]["difference"] < 1e-4
    assert any(name.startswith("pyvene") for name in ways)
    assert found["sweep"]["difference"] < 1e-4
