"""What each rewrite does to a schedule, that broken schedules are found, and what the schedule says of itself."""

from dataclasses import replace

import pytest
import torch
from authoring import LOGITS, RAGGED_PAIRS, document, observe, pair, patching, site, write_table
from test_rewrites import assert_same, numbers

from causalab_mini.plan import build_request
from causalab_mini.schedule.laws import verify
from causalab_mini.schedule.located import build_schedule
from causalab_mini.schedule.physical import plain_schedule
from causalab_mini.schedule.printed import data, text
from causalab_mini.schedule.rewrites import (
    REWRITES,
    bucket_lengths,
    drop,
    join_points,
    narrow_the_head,
    resume_at_a_layer,
    resume_at_a_token,
    rewrite,
    run_directly,
    share,
    share_prefixes,
    skip_no_ops,
)

pytestmark = pytest.mark.tiny

BEGINNING = "today is tomorrow so is Friday and so is "
ALIKE = [
    pair(f"{BEGINNING}Thursday is today so", "Thursday", f"{BEGINNING}Tuesday is today so", "Tuesday", answer=" Friday", other=" today"),
    pair(f"{BEGINNING}Friday is tomorrow", "Friday", f"{BEGINNING}Sunday is tomorrow", "Sunday", answer=" Sunday", other=" today"),
    pair(f"{BEGINNING}Saturday", "Saturday", f"{BEGINNING}Saturday", "Saturday", answer=" Monday", other=" today"),
]
"""Rows that all begin alike, whose prompts differ from their entity on, or nowhere."""
STREAM = "block_output"
TWO = {"sweep": [0, 1], "as": "layer"}


class Bench:
    """Documents over rows given as data, on one checkpoint, scheduled and run."""

    def __init__(self, engine, folder):
        self.engine = engine
        self.folder = folder

    def request(self, raw, rows):
        write_table(self.folder, "rows", rows)
        return build_request(raw, self.folder, self.engine)

    def schedule(self, raw, rows, *rewrites):
        request = self.request(raw, rows)
        return rewrite(plain_schedule(request, [build_schedule(request, point) for point in request.points]), rewrites)

    def same(self, raw, rows, rewrites=REWRITES, exactly=False):
        """Returns the run with some rewrites, after comparing it with the one without."""
        request = self.request(raw, rows)
        expected = numbers(self.engine.execute(request, check="off", rewrites=()))
        run = self.engine.execute(request, check="sample", rewrites=rewrites)
        assert_same(expected, numbers(run), exactly)
        return run


@pytest.fixture
def bench(engines, tmp_path):
    """Returns a function that gives a checkpoint's bench."""
    return lambda name="llama-grouped", kind="hooks": Bench(engines(name, kind), tmp_path)


def swap(layers=1, pos=-1, component=STREAM, outputs=None, **more):
    """Returns a document that patches one place from the counterfactual prompt."""
    place = {"site": site(component, layers), "pos": pos}
    intervention = patching({**place, "mechanism": "swap", "operand": "source"}, place, **more)
    return document({"p": intervention}, {"s": observe("p", outputs={"prediction": "prediction"} if outputs is None else outputs)})


def writes(run, step="s"):
    return next(check for check in run.points[0].step(step).results["checks"] if check.name == "writes")


# skip no-ops


def test_rows_whose_write_puts_back_what_stands_there_are_not_run(bench):
    """Both prompts have the same tokens up to the written one: the model's own run is the answer."""
    raw = swap(layers=TWO, pos={"index": 3})
    physical = bench().schedule(raw, ALIKE, share, skip_no_ops)
    assert list(physical.idle.values()) == [frozenset({0, 1, 2})] * 2
    assert not any(one.has_writes for one in physical.passes.values())
    check = writes(bench().same(raw, ALIKE))
    assert check.status == "passed"
    assert check.data["writes"]["patched/patch"] | {"median_change": 0.0} == {
        "n_rows": 3,
        "n_fired": 3,
        "n_unchanged": 3,
        "n_not_run": 3,
        "median_change": 0.0,
        "n_tokens_left_over": 0,
    }
    assert "changed nothing on 3 of 3 rows (3 of them not run: its operand is the row's own value)" in check.text


def test_a_row_is_run_where_its_prompts_differ_before_the_written_token(bench):
    """The last tokens are the same in all pairs; only the pair that is the same throughout is idle."""
    raw = swap(layers={"sweep": [0, 1, 2], "as": "layer"}, pos=-1)
    raw["interventions"]["p"]["reads"]["own"] = {"site": site(STREAM, 0), "pos": -1, "input": "base"}
    raw["steps"]["s"]["outputs"]["own"] = "own"
    physical = bench().schedule(raw, ALIKE, share, skip_no_ops)
    assert list(physical.idle.values()) == [frozenset({2})] * 3
    assert writes(bench().same(raw, ALIKE)).data["writes"]["patched/patch"]["n_not_run"] == 1


@pytest.mark.parametrize("mechanism", ["add_scaled", "lerp"])
def test_only_a_swap_is_a_no_op(bench, mechanism):
    raw = swap(layers=TWO, pos={"index": 3})
    raw["interventions"]["p"]["writes"]["patch"] |= {"mechanism": mechanism} | ({"params": {"t": 0.5}} if mechanism == "lerp" else {})
    assert not bench().schedule(raw, ALIKE, share, skip_no_ops).idle
    bench().same(raw, ALIKE)


def test_a_swap_of_a_mean_is_no_no_op(bench):
    """Every token of the window is given the mean of the window: nobody's own value, however alike the prompts are."""
    raw = swap(layers=TWO, pos={"span": [1, 4]})
    raw["interventions"]["p"]["writes"]["patch"]["align"] = "mean"
    assert not bench().schedule(raw, ALIKE, share, skip_no_ops).idle
    bench().same(raw, ALIKE)
    one = swap(layers=TWO, pos={"index": 3})
    one["interventions"]["p"]["writes"]["patch"]["align"] = "mean"
    assert bench().schedule(one, ALIKE, share, skip_no_ops).idle
    bench().same(one, ALIKE)


def test_a_swap_from_another_layer_or_row_is_no_no_op(bench):
    other = swap(layers={"sweep": [1, 2], "as": "layer"}, pos={"index": 3})
    other["interventions"]["p"]["reads"]["source"]["site"]["layers"] = 0
    assert not bench().schedule(other, ALIKE, share, skip_no_ops).idle
    place = {"site": site(STREAM, TWO), "pos": {"index": 3}}
    permuted = patching({**place, "mechanism": "permute", "params": {"seed": 0}})
    permuted = document({"p": permuted}, {"s": observe("p", both=False, outputs={"prediction": "prediction"})})
    assert not bench().schedule(permuted, ALIKE, share, skip_no_ops).idle


def test_what_no_write_reaches_is_read_off_the_own_run(bench):
    """A stream below the written layer, and a token before the written one, are as they are without the write."""
    reads = {
        "below": {"site": site(STREAM, 0), "pos": -1, "model": "patched"},
        "before": {"site": site(STREAM, 2), "pos": {"index": 0}, "model": "patched"},
        "reached": {"site": site(STREAM, 2), "pos": -1, "model": "patched"},
        "own": {"site": LOGITS, "pos": -1, "input": "base"},
    }
    raw = swap(layers=1, pos=-1, reads=reads, outputs={name: name for name in reads})
    physical = bench().schedule(raw, RAGGED_PAIRS, share, skip_no_ops)
    (written,) = (one for one in physical.passes.values() if one.has_writes)
    assert [read.site.layers for read in written.part.forward.reads] == [(2,)]
    bench().same(raw, RAGGED_PAIRS)


# share prefixes


def test_a_role_resumes_where_its_prompt_begins_to_differ(bench):
    raw = swap(layers={"sweep": "all", "as": "layer"}, pos=-1)
    physical = bench().schedule(raw, ALIKE, *REWRITES)
    source = next(one for one in physical.passes.values() if one.forward.role == "counterfactual")
    base = next(name for name, one in physical.passes.items() if one.forward.role == "base" and one.keeps_tokens and one.until is None)
    assert source.prefix == base
    prompts = [physical.prompts[one] for one in (source.forward.rows, physical.passes[base].forward.rows)]
    for row in source.part.rows:
        first = source.part.first[row]
        assert prompts[0][row].ids[:first] == prompts[1][row].ids[:first]
    bench().same(raw, ALIKE)


def test_a_beginning_that_all_rows_share_is_run_once(bench):
    raw = swap(layers={"sweep": "all", "as": "layer"}, pos=-1)
    physical = bench().schedule(raw, ALIKE, *REWRITES)
    beginning = next(one for one in physical.passes.values() if one.until is not None)
    assert len(beginning.entries()) == 1
    ids = [prompt.ids for prompts in physical.prompts.values() for prompt in prompts]
    assert beginning.until <= min(next(i for i, pair in enumerate(zip(*ids, strict=False)) if len(set(pair)) > 1), min(map(len, ids)))
    assert "what all rows begin with" in text(physical)
    bench().same(raw, ALIKE)


def test_a_beginning_that_is_read_is_not_left_out(bench):
    raw = swap(reads={"prediction": {"site": LOGITS, "pos": {"all": True}, "model": "patched"}})
    physical = bench().schedule(raw, ALIKE, share_prefixes)
    assert all(one.until is None for one in physical.passes.values() if one.has_writes)
    bench().same(raw, ALIKE, (share_prefixes,))


# join points


@pytest.mark.parametrize("component", ["block_input", "attention_output", "block_mid", "block_output"])
@pytest.mark.parametrize("name", ["llama-grouped", "gpt2-untied", "qwen3"])
def test_points_enter_one_batch_at_their_layers(bench, name, component):
    raw = swap(layers={"sweep": "all", "as": "layer"}, component=component)
    physical = bench(name).schedule(raw, RAGGED_PAIRS, share, resume_at_a_layer, join_points)
    joined = max(physical.passes.values(), key=lambda one: len(one.parts))
    assert len(joined.parts) == 3
    assert [part.n_skipped for part in joined.parts] == ([1, 2, 3] if component == "block_output" else [0, 1, 2])
    bench(name).same(raw, RAGGED_PAIRS, (share, resume_at_a_layer, join_points))
    bench(name).same(raw, RAGGED_PAIRS, (join_points,))


def test_a_point_that_needs_an_output_of_its_own_is_not_joined_with_earlier_ones(bench):
    """Each point steers with a direction that only its own first step makes: at the first point the others' are not there yet."""
    reads = {"z": {"site": site(STREAM, {"sweep": [0, 1], "as": "layer"}), "pos": -1, "input": "base"}}
    add = {"site": site(STREAM, 2), "pos": -1, "mechanism": "add_scaled", "operand": {"ref": "mean"}}
    steps = {
        "harvest": observe("harvest", both=False, outputs={"mean": {"read": "z", "reduce": "mean"}}),
        "steer": observe("steer", both=False, outputs={"prediction": "prediction"}),
    }
    raw = document({"harvest": {"reads": reads}, "steer": patching(add)}, steps)
    physical = bench().schedule(raw, RAGGED_PAIRS, share, join_points)
    assert all(len(one.parts) == 1 for one in physical.passes.values())
    bench().same(raw, RAGGED_PAIRS)


def test_points_that_take_the_same_output_are_joined(bench):
    reads = {"z": {"site": site(STREAM, 0), "pos": -1, "input": "base"}}
    add = {"site": site(STREAM, 2), "pos": -1, "mechanism": "add_scaled", "operand": {"ref": "mean"}}
    add["params"] = {"scale": {"sweep": [0.5, 1.0, 2.0], "as": "scale"}}
    steps = {
        "harvest": observe("harvest", both=False, outputs={"mean": {"read": "z", "reduce": "mean"}}),
        "steer": observe("steer", both=False, outputs={"prediction": "prediction"}),
    }
    raw = document({"harvest": {"reads": reads}, "steer": patching(add)}, steps)
    physical = bench().schedule(raw, RAGGED_PAIRS, share, join_points)
    assert max(len(one.parts) for one in physical.passes.values()) == 3
    bench().same(raw, RAGGED_PAIRS)


# drop, buckets, the head


def test_what_leads_to_no_result_is_not_read(bench):
    reads = {"prediction": {"site": LOGITS, "pos": -1, "model": "patched"}, "unused": {"site": LOGITS, "pos": 0, "input": "base"}}
    raw = swap(reads=reads)
    before, after = bench().schedule(raw, RAGGED_PAIRS, share), bench().schedule(raw, RAGGED_PAIRS, share, drop)
    assert (len(before.passes), len(after.passes)) == (3, 2)
    bench().same(raw, RAGGED_PAIRS, (drop,), exactly=True)


def test_rows_of_like_length_run_together_where_padding_would_be_most(bench):
    short = [pair("Friday is today", "Friday", "Sunday is today", "Sunday") for _ in range(400)]
    long = [pair("today is so " * 12 + "Friday", "Friday", "today is so " * 12 + "Sunday", "Sunday") for _ in range(30)]
    physical = bench().schedule(swap(), [*short, *long], bucket_lengths)
    one = next(iter(physical.passes.values()))
    assert one.batch_tokens is not None
    assert len(one.batches()) > 1
    bench().same(swap(), [*short, *long], (bucket_lengths,))


def test_a_difference_of_logits_needs_the_logits_of_its_tokens_alone(bench):
    """The others are nan, so that nothing can be made of them unseen; a probability needs all."""
    diff = {"diff": {"kind": "logit_diff", "of": "prediction", "a": "answer", "b": "other"}}
    raw = document({"p": swap(metrics=diff)["interventions"]["p"]}, {"s": observe("p")})
    physical = bench().schedule(raw, ALIKE, narrow_the_head)
    (one,) = (one for one in physical.passes.values() if one.has_writes)
    assert len(one.vocabulary) == 4
    assert "3 × 4 tokens" in text(physical)
    run = bench().same(raw, ALIKE)
    assert {check.status for check in run.step("s").results["checks"]} == {"passed"}
    both = document(
        {"p": swap(metrics=diff | {"p": {"kind": "token_prob", "of": "prediction", "token": "answer"}})["interventions"]["p"]},
        {"s": observe("p")},
    )
    assert all(one.vocabulary is None for one in bench().schedule(both, ALIKE, narrow_the_head).passes.values())
    saved = document({"p": swap(metrics=diff)["interventions"]["p"]}, {"s": observe("p", outputs={"prediction": "prediction"})})
    assert all(one.vocabulary is None for one in bench().schedule(saved, ALIKE, narrow_the_head).passes.values())


# reasons, and what is printed


def test_a_rewrite_says_why_it_did_not(bench):
    raw = swap(component="attention_key", pos=-1)
    physical = bench().schedule(raw, ALIKE, share, resume_at_a_token)
    assert physical.history[-1].note == "not where attention_key is read or written: it has the tokens before too"


def test_a_window_that_slides_keeps_all_tokens(bench, engines):
    bench = bench()
    bench.engine.checkpoint = replace(bench.engine.checkpoint, facts=replace(bench.engine.facts, sliding_window=8))
    try:
        physical = bench.schedule(swap(layers={"sweep": "all", "as": "layer"}), ALIKE, *REWRITES)
    finally:
        bench.engine.checkpoint = replace(bench.engine.checkpoint, facts=replace(bench.engine.facts, sliding_window=None))
    assert all(one.prefix is None for one in physical.passes.values())
    assert "not for rows longer than half the sliding window of 8 tokens" in text(physical)


def test_a_schedule_is_printed_and_is_data(bench):
    physical = bench().schedule(swap(layers={"sweep": "all", "as": "layer"}), RAGGED_PAIRS, *REWRITES)
    said, found = text(physical), data(physical)
    assert "12 (3 joined)  last 4 of" in said
    assert "frees #1" in said
    assert sum(len(one["frees"]) for one in found["passes"]) == 1
    assert "rewrite            passes  layer·tokens" in said
    assert [saving["rewrite"] for saving in found["rewrites"]] == [
        "share",
        "drop",
        "skip no-ops",
        "resume at a layer",
        "resume at a token",
        "share prefixes",
        "stop early",
        "narrow the head",
        "join points",
        "bucket lengths",
        "run directly",
        "free early",
    ]
    assert sum(one["layer_tokens"] for one in found["passes"]) == found["rewrites"][-1]["after"]["layer_tokens"]
    assert found["rewrites"][-1]["after"]["peak_bytes"] <= found["rewrites"][-1]["before"]["peak_bytes"]


@pytest.mark.parametrize("kind", ["nnterp"])
def test_a_trace_and_hooks_give_the_same_bits(bench, kind):
    raw = swap(layers={"sweep": "all", "as": "layer"})
    traced = tuple(one for one in REWRITES if one is not run_directly)
    bench = bench(kind=kind)
    request = bench.request(raw, RAGGED_PAIRS)
    one = numbers(bench.engine.execute(request, check="off", rewrites=traced))
    assert_same(one, numbers(bench.engine.execute(request, check="off", rewrites=REWRITES)), exactly=True)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_coarser_numbers_stay_as_near_as_batches_are(tmp_path, dtype):
    from causalab_mini.engine.engines.hooks import HooksEngine
    from causalab_mini.plan.spec import ModelSpec

    key = "bundled:successor-llama"  # the logits of random weights differ from each other by little more than bf16 rounds
    engine = HooksEngine.load(ModelSpec(key=key, dtype=dtype), device_map="cpu")
    bench = Bench(engine, tmp_path)
    raw = swap(layers={"sweep": "all", "as": "layer"}, pos={"last": 2}) | {"model": {"key": key, "dtype": dtype}}
    request = bench.request(raw, RAGGED_PAIRS)
    expected = numbers(engine.execute(request, check="off", rewrites=()))
    run = engine.execute(request)
    assert {check.status for point in run.points for check in point.step("s").results["checks"]} == {"passed"}
    assert run.record["schedule"]["level"] == "token"
    for (_, one), (_, other) in zip(expected, numbers(run), strict=True):
        assert float((one - other).abs().max() / one.std()) < 3e-2


# laws


def broken(physical, name, **changes):
    """Returns the laws that a schedule breaks once one of its passes is changed."""
    return verify(replace(physical, passes={**physical.passes, name: replace(physical.passes[name], **changes)}))


def test_broken_schedules_are_found(bench):
    raw = swap(layers={"sweep": "all", "as": "layer"}, pos={"last": 2})
    physical = bench().schedule(raw, RAGGED_PAIRS, *(one for one in REWRITES if one is not join_points))
    assert verify(physical) == []
    name, one = next((name, one) for name, one in physical.passes.items() if one.has_writes and one.part.n_skipped == 2)
    assert any("skips layers" in law for law in broken(physical, name, parts=(replace(one.part, n_skipped=3),)))
    assert any("stream that nobody kept" in law for law in broken(physical, one.resumes, keeps=()))
    assert any("keys and values that nobody kept" in law for law in broken(physical, one.prefix, keeps_tokens=False))
    assert any("stops before its last place" in law for law in broken(physical, name, stops_after=1))
    left = {key: other for key, other in physical.passes.items() if key != name}
    assert any("is not run" in law for law in verify(replace(physical, passes=left)))
    late = tuple(first + 1 for first in one.part.first)
    assert any("skips tokens" in law for law in broken(physical, name, parts=(replace(one.part, first=late),)))
    assert any("runs later" in law for law in verify(replace(physical, passes=dict(reversed(physical.passes.items())))))


def test_numbers_are_finite_where_they_are_looked_at(bench):
    run = bench().same(swap(), RAGGED_PAIRS)
    assert all(torch.isfinite(value).all() for _, value in numbers(run) if isinstance(value, torch.Tensor))
