"""The checks of a run find the faults that are planted in it, and nothing where there is none."""

from contextlib import ExitStack

import pytest
import torch
from authoring import document, observe, patching, site, write_table
from planted_faults import FAULTS, PAGE, positions, stream, with_table

from causalab_mini.engine import checking
from causalab_mini.engine.checking import difference_of
from causalab_mini.engine.first_use import Trust
from causalab_mini.engine.observe import Observed
from causalab_mini.ops.windows import Value
from causalab_mini.plan import build_request

pytestmark = pytest.mark.tiny


def checks_of(run):
    return [check for point in run.points for step in point.steps.values() for check in step.results["checks"]]


def failed(run):
    return {check.name for check in checks_of(run) if check.status == "failed"}


@pytest.fixture
def execute(engines, rows_of, tmp_path):
    """Returns a function that runs what a fault is planted in, on a model of which nothing is known, or all is well."""

    def run(fault, is_known, is_planted=True):
        engine = engines(fault.model)
        write_table(tmp_path, "rows", rows_of(fault.model))
        before, engine.trust = engine.trust, Trust("token", 0.0) if is_known else None
        try:
            with ExitStack() as stack:
                if is_planted:
                    fault.plant(stack)
                return engine.execute(build_request(fault.document(f"bundled:{fault.model}"), tmp_path, engine), check="sample")
        finally:
            engine.trust = before

    return run


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.words)
def test_a_planted_fault_is_found(fault, execute):
    assert failed(execute(fault, is_known=True)) == set(fault.found_by)


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.first_use], ids=lambda fault: fault.words)
def test_a_fault_of_what_is_left_out_is_found_when_a_model_is_first_used(fault, execute):
    run = execute(fault, is_known=False)
    assert run.record["schedule"]["level"] == fault.first_use
    assert failed(run) == set()


@pytest.mark.parametrize("fault", {fault.document: fault for fault in FAULTS}.values(), ids=lambda fault: fault.document.__name__)
def test_nothing_is_found_where_nothing_is_planted(fault, execute):
    run = execute(fault, is_known=True, is_planted=False)
    assert {check.status for check in checks_of(run) if check.name in ("rows", "passes")} == {"passed"}
    assert failed(run) == set()


def checked(carry_out, rows_of, made, outputs):
    raw = document({"p": made}, {"do": observe("p", outputs={name: name for name in outputs})})
    return carry_out(raw, rows_of("successor-llama"), check="full")


def test_a_row_alone_sees_what_is_written_to_the_stream_that_enters_a_block(carry_out, rows_of):
    write = {"site": site("block_input", 1), "pos": -1, "mechanism": "swap", "operand": "source"}
    reads = {"mid": {"site": site("block_mid", 1), "pos": -1, "model": "patched"}}
    assert failed(checked(carry_out, rows_of, patching(write, {"site": site("block_output", 1), "pos": -1}, reads=reads), ["mid"])) == set()


@pytest.mark.parametrize("pos", ["generated[1]", "generated[*]"])
def test_a_row_alone_sees_what_is_written_at_the_last_token_that_was_said(carry_out, rows_of, pos):
    source = {"site": site("block_output", 1), "pos": -1}
    write = {"site": site("block_output", 1), "pos": pos, "mechanism": "add_scaled", "operand": "source"}
    reads = {"said": {"site": site("block_output", 2), "pos": "generated[-1]", "model": "patched"}}
    made = patching(write | {"align": "mean"}, source, reads=reads) | {"decode": 2}
    assert failed(checked(carry_out, rows_of, made, ["said"])) == set()


def found(values, n_tokens=1):
    n_rows = values.shape[1] // n_tokens
    return Observed(tuple(range(n_rows)), {"read": Value(values, (n_tokens,) * n_rows)})


def test_one_number_that_is_nearly_zero_is_held_against_the_size_of_the_others():
    units = torch.randn(1, 16, 1, generator=torch.Generator().manual_seed(0))
    units[0, 3] = 1e-5
    assert difference_of(found(units), found(units + 1e-6), 3, ["read"]) < 1e-5
    assert difference_of(found(units), found(units + 1e-3), 3, ["read"]) > 1e-4


def test_values_that_are_finite_nowhere_are_no_difference_unless_they_are_on_the_other_side():
    values = torch.randn(1, 2, 8, generator=torch.Generator().manual_seed(0))
    overflowed = values.masked_fill(torch.arange(8) < 3, float("inf"))
    assert difference_of(found(overflowed), found(overflowed.clone()), 0, ["read"]) == 0.0
    assert difference_of(found(values * float("nan")), found(values * float("nan")), 0, ["read"]) == 0.0
    assert difference_of(found(overflowed), found(values), 0, ["read"]) == float("inf")
    assert difference_of(found(overflowed), found(overflowed + 1), 0, ["read"]) > 0.1


def test_rounding_of_many_logits_is_no_difference_and_those_of_another_row_are():
    logits = torch.randn(1, 2, 8000, generator=torch.Generator().manual_seed(0)) - 100
    noise = 0.015 * torch.randn(1, 2, 8000, generator=torch.Generator().manual_seed(1))
    assert difference_of(found(logits), found(logits + noise), 0, ["read"], "bf16") < 0.03
    assert difference_of(found(logits), found((logits + noise).bfloat16()), 0, ["read"], "bf16") < 0.03
    assert difference_of(found(logits), found(logits.flip(1)), 0, ["read"], "bf16") > 0.3
    assert difference_of(found(logits), found(logits + noise), 0, ["read"], "fp32") > 0.03


@pytest.mark.parametrize(
    ("error", "status"), [(TypeError("no such argument"), "failed"), (torch.OutOfMemoryError("out of memory"), "skipped")]
)
def test_a_check_that_breaks_down_ends_no_run(carry_out, rows_of, monkeypatch, error, status):
    def broken(*_):
        raise error

    monkeypatch.setattr(checking, "observe_alone", broken)
    made = {"reads": {"read": {"site": site("block_output", 1), "pos": -1, "input": "base"}}}
    raw = document({"p": made}, {"do": observe("p", both=False, outputs={"read": "read"})}, roles={"base": {"field": "input"}})
    (check,) = [check for check in checks_of(carry_out(raw, rows_of("successor-llama"), check="sample")) if check.name == "rows"]
    assert check.status == status
    assert str(error) in check.text or status == "skipped"


def test_a_long_sweep_over_a_small_model_pays_for_few_checks(carry_out, rows_of, monkeypatch):
    monkeypatch.setattr(checking, "LONG_OPERATIONS", 2e10)
    write = {"site": site("block_output", 1), "pos": -1, "mechanism": "add_scaled", "operand": "source"}
    write["params"] = {"scale": {"sweep": list(range(40))}}
    made = patching(write, {"site": site("block_output", 1), "pos": -1}, metrics={"m": {"kind": "value", "of": "prediction", "how": "max"}})
    run = carry_out(document({"p": made}, {"do": observe("p")}), rows_of("successor-llama"), check="sample")
    done = [check.status for check in checks_of(run) if check.name == "rows"]
    assert done[0] == "passed"
    assert done.count("skipped") >= 36


def test_the_docs_have_every_fault():
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_table(page), "`python tests/planted_faults.py` writes the table anew"


@pytest.mark.parametrize("mechanism", ["swap", "permute"])
def test_the_plans_own_passes_are_checked_in_batches_that_were_asked_for(engines, rows_of, tmp_path, monkeypatch, mechanism):
    engine, n_rows = engines("successor-gpt2"), []
    rows = rows_of("successor-gpt2")
    write_table(tmp_path, "rows", rows)
    raw = positions("bundled:successor-gpt2")
    if mechanism == "permute":
        write = {"site": stream(1), "pos": -2, "mechanism": "permute", "params": {"seed": 1}}
        raw = document({"p": patching(write)}, {"do": observe("p", both=False)}, "bundled:successor-gpt2")
    monkeypatch.setattr(engine, "trust", Trust("token", 0.0))
    run = type(engine).run
    monkeypatch.setattr(type(engine), "run", lambda self, batch, *given: (n_rows.append(len(batch.rows)), run(self, batch, *given))[1])
    done = engine.execute(build_request(raw, tmp_path, engine), check="full", batch_size=2)
    assert max(n_rows) == 2
    passes = [check for check in checks_of(done) if check.name == "passes"]
    assert {check.status for check in passes} == {"passed"}
    assert {len(check.data["rows"]) for check in passes} == {len(rows)}
