"""The checks of a run find the faults that are planted in it, and nothing where there is none."""

from contextlib import ExitStack

import pytest
from authoring import document, observe, patching, site, write_table
from planted_faults import FAULTS, PAGE, with_table

from causalab_mini.engine.first_use import Trust
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


def test_the_docs_have_every_fault():
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_table(page), "`python tests/planted_faults.py` writes the table anew"
