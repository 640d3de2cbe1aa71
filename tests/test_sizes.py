"""Batches fit: by an estimate before, by halves after memory ran out; a row that can't fit is refused."""

from pathlib import Path

import pytest
import torch
from authoring import RAGGED_PAIRS, write_table
from test_rewrites import assert_same, numbers
from test_schedule import swap

from causalab_mini.engine.sizes import Sizes, free_bytes
from causalab_mini.errors import RunError
from causalab_mini.plan import build_request
from causalab_mini.schedule.located import build_schedule
from causalab_mini.schedule.memory import peak_bytes, working_bytes
from causalab_mini.schedule.physical import plain_schedule
from causalab_mini.schedule.rewrites import REWRITES, free_early, rewrite

pytestmark = pytest.mark.tiny

SWEEP = {"sweep": "all", "as": "layer"}


@pytest.fixture
def case(engines, tmp_path):
    """Returns an engine and a request: three layers patched over eight rows."""
    engine = engines("llama-grouped", "hooks")
    write_table(tmp_path, "rows", RAGGED_PAIRS * 2)
    return engine, build_request(swap(layers=SWEEP), tmp_path, engine)


@pytest.fixture
def limited(monkeypatch, case):
    """Returns a function that has the engine run out of memory on more rows than it is told, and a list of the batches that it ran."""
    engine, _ = case
    run, sizes = type(engine).run, []

    def limit(most):
        def with_limit(self, batch, *arguments):
            if len(batch.rows) > most:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            sizes.append(len(batch.rows))
            run(self, batch, *arguments)

        monkeypatch.setattr(type(engine), "run", with_limit)
        return sizes

    return limit


@pytest.mark.parametrize("rewrites", [(), REWRITES], ids=["none", "all"])
def test_a_device_that_runs_out_of_memory_gets_halves(case, limited, rewrites):
    engine, request = case
    expected = numbers(engine.execute(request, check="off", rewrites=()))
    sizes = limited(3)
    run = engine.execute(request, check="off", rewrites=rewrites)
    assert_same(expected, numbers(run), exactly=False)
    assert max(sizes) <= 3
    assert run.record["schedule"]["rows_a_batch"][-1] <= 3
    assert run.record["schedule"]["out_of_memory"] > 0


def test_sizes_are_not_tried_again_after_they_failed(case, limited):
    """The first pass over eight rows finds out; later ones start with what went."""
    engine, request = case
    limited(2)
    run = engine.execute(request, check="off", rewrites=())
    assert run.record["schedule"]["out_of_memory"] <= 3


def test_a_row_that_does_not_fit_is_refused_with_the_estimate(case, limited):
    engine, request = case
    limited(0)
    with pytest.raises(RunError) as refusal:
        engine.execute(request, check="off")
    assert refusal.value.problems[0].code == "memory"
    assert "MiB of memory for one row of `" in str(refusal.value)


def test_a_row_that_does_not_fit_into_what_is_free_is_refused_before_it_is_run(case, monkeypatch):
    engine, request = case
    monkeypatch.setattr(type(engine), "memory", lambda self: ("cuda", 1000))
    monkeypatch.setattr(type(engine), "run", lambda *arguments: pytest.fail("it was run"))
    with pytest.raises(RunError, match=r"got 0 MiB free"):
        engine.execute(request, check="off")


def test_batches_are_as_large_as_memory_takes(case):
    engine, request = case
    physical = plain_schedule(request, [build_schedule(request, point) for point in request.points])
    one = next(iter(physical.passes.values()))
    (whole,) = one.batches()
    budget = working_bytes(one, whole[:3], engine.facts)
    for device, free in (("cuda", budget / 0.8 + 1), ("cpu", budget / 0.8 + 1)):
        sizes = Sizes(engine.facts, None, lambda device=device, free=free: (device, int(free)))
        assert max(map(len, sizes.batches(one, None))) in (2, 3)
    assert [len(batch) for batch in Sizes(engine.facts, None).batches(one, None)] == [8]
    assert [len(batch) for batch in Sizes(engine.facts, 3).batches(one, None)] == [3, 3, 2]


def test_another_error_is_not_taken_for_a_lack_of_memory(case, monkeypatch):
    engine, request = case
    monkeypatch.setattr(type(engine), "run", lambda *arguments: (_ for _ in ()).throw(RuntimeError("shapes")))
    with pytest.raises(RuntimeError, match="shapes"):
        engine.execute(request, check="off")


def test_memory_of_this_machine_is_known():
    file = Path("/proc/meminfo")
    if not file.exists():
        assert free_bytes(torch.device("cpu")) is None
        return
    total = int(file.read_text(encoding="ascii").split()[1]) * 1024
    assert 0.01 * total < free_bytes(torch.device("cpu")) < total


def test_the_estimate_falls_with_smaller_batches_and_with_freeing(case):
    _, request = case
    physical = rewrite(plain_schedule(request, [build_schedule(request, point) for point in request.points]), REWRITES[:-1])
    assert peak_bytes(physical, 1) < peak_bytes(physical)
    assert peak_bytes(free_early(physical)) <= peak_bytes(physical)
