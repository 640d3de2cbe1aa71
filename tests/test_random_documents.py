"""Random documents give the same numbers whatever is rewritten: the scheduler is exact, and not only on the documents that we thought of.

`CAUSALAB_EXAMPLES` says how many are drawn (for a long run, some hundreds), `CAUSALAB_SEED` which.
"""

import json
import os
import traceback
from collections import Counter, OrderedDict
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest
import torch
from authoring import write_table
from conftest import save_random, small_tokenizer
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from random_documents import FAMILIES, config_of, examples
from smaller_documents import smallest

from causalab_mini.errors import CausalabError, InputError
from causalab_mini.plan.build import build_request
from causalab_mini.schedule.laws import verify
from causalab_mini.schedule.physical import plain_schedule
from causalab_mini.schedule.rewrites import REWRITES
from causalab_mini.schedule.schedule import build_schedule

pytestmark = pytest.mark.tiny

N_EXAMPLES = int(os.environ.get("CAUSALAB_EXAMPLES", "50"))
SEED = int(os.environ.get("CAUSALAB_SEED", "0"))
SAME_BITS = ("share", "stop_early", "drop", "free_early")
"""Rewrites that promise every bit; the others batch or cut products in another way."""
TOLERANCE = 1e-4
MAX_REMEMBERED = 600


def of_examples(test, share=1.0):
    """Runs a test on drawn examples: the same ones in every test and on every machine.

    Args:
        test: what is done with each.
        share: of the number of examples.
    """
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    profile = settings(
        max_examples=max(1, round(N_EXAMPLES * share)), deadline=None, database=None, phases=[Phase.generate], suppress_health_check=checks
    )
    seed(SEED)(profile(given(example=examples())(lambda example: test(example))))()


# running


@dataclass
class Compiled:
    """An example that can be run."""

    engine: Any
    request: Any
    schedules: list[Any]
    batch_size: int | None

    def run(self, rewrites, check="off"):
        """Returns a run, or the words that it is refused with."""
        options = {"schedules": self.schedules, "check": check, "rewrites": rewrites, "batch_size": self.batch_size}
        try:
            return self.engine.execute(self.request, **options)
        except CausalabError as refusal:
            return refusal.text()

    @cached_property
    def plain(self):
        """What its own passes give, none of them rewritten."""
        return self.run((), check="sample")


class Bench:
    """The models, each opened when it is first drawn, and the examples that were compiled."""

    def __init__(self, folder):
        self.folder = folder
        self.engines = {}
        self.known = OrderedDict()
        self.refusals = Counter()
        for family in dict.fromkeys(FAMILIES):
            from transformers import AutoConfig

            model_type, shape = config_of(family)
            save_random(folder / family, AutoConfig.for_model(model_type, **shape), small_tokenizer())

    def engine(self, family, attention, kind):
        from causalab_mini.engine.engines.hooks import HooksEngine
        from causalab_mini.engine.engines.nnterp import NNterpEngine
        from causalab_mini.plan.spec import ModelSpec

        key = (family, attention, kind)
        if key not in self.engines:
            spec = ModelSpec(key=str(self.folder / family), dtype="fp32", attn_implementation=attention)
            self.engines[key] = {"nnterp": NNterpEngine, "hooks": HooksEngine}[kind].load(spec, device_map="cpu")
        return self.engines[key]

    def compiled(self, example, kind="hooks"):
        """Returns an example that can be run, or None where it is refused."""
        key = (kind, example.key)
        if key not in self.known:
            self.known[key] = self.compile(example, kind)
            while len(self.known) > MAX_REMEMBERED:
                self.known.popitem(last=False)
        return self.known[key]

    def compile(self, example, kind):
        raw = json.loads(json.dumps(example.raw))
        raw["model"]["key"] = str(self.folder / example.family)
        for name, rows in example.tables.items():
            write_table(self.folder / "data", name, rows)
        engine = self.engine(example.family, example.attention, kind)
        try:
            request = build_request(raw, self.folder / "data", engine)
            return Compiled(engine, request, [build_schedule(request, point) for point in request.points], example.batch_size)
        except InputError as refusal:
            self.refusals[refusal.problems[0].text()] += 1
            return None

    def holds(self, law, kind="hooks", share=1.0):
        """Judges examples by a law, a function that raises where a compiled one breaks it; what is told of is as small as can be."""

        told: dict[str, str] = {}  # hypothesis runs what failed once more

        def judge(example):
            compiled = self.compiled(example, kind)
            assume(compiled is not None)
            try:
                law(compiled)
            except Exception as error:
                found = type(error)
            else:
                return
            if example.key not in told:
                small = smallest(example, lambda other: self.breaks(law, other, kind, found))
                told[example.key] = f"{self.said(law, small, kind)}\n{json.dumps(vars(small))}"
            pytest.fail(told[example.key], pytrace=False)

        of_examples(judge, share)

    def breaks(self, law, example, kind, error):
        """Returns whether an example that compiles breaks a law with some kind of error."""
        compiled = self.compile(example, kind)
        try:
            return compiled is not None and law(compiled) is not None
        except error:
            return True
        except Exception:
            return False

    def said(self, law, example, kind):
        """Returns what is said where an example breaks a law."""
        try:
            law(self.compile(example, kind))
        except Exception as found:
            return "".join(traceback.format_exception_only(found)).strip()
        return "it did not fail again"


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # matrices of 64 columns: threads would only wait for each other
    yield Bench(tmp_path_factory.mktemp("random"))
    torch.set_num_threads(n_threads)


# comparing


def assert_same_run(expected, found, exactly=False):
    """Compares two runs: every cell of every table, every output, to the bit or within the tolerance."""
    if isinstance(expected, str) or isinstance(found, str):
        assert found == expected
        return
    assert [point.label for point in found.points] == [point.label for point in expected.points]
    for one, other in zip(expected.points, found.points, strict=True):
        assert list(one.steps) == list(other.steps)
        for name, step in one.steps.items():
            where = f"{one.label}/{name}"
            assert_same_tables(step.results["metrics"], other.steps[name].results["metrics"], exactly, where)
            assert_same_outputs(step.results["outputs"], other.steps[name].results["outputs"], exactly, where)
            assert step.results["positions"] == other.steps[name].results["positions"], where


def assert_same_tables(expected, found, exactly, where):
    assert list(expected) == list(found), where
    for name, rows in expected.items():
        for index, (one, other) in enumerate(zip(rows, found[name], strict=True)):
            path = f"{where}/{name}[{index}]"
            kind, slack = one["estimand_version"].partition("/")[0], 1.0
            if kind == "recovered" and not exactly:
                spread = denominator(expected, name, index)
                if spread is None or spread < 1e-2:
                    continue  # a ratio to almost nothing
                slack = 10 / min(spread, 1.0) * max(1.0, abs(one["value"] or 0.0))
            assert {key: cell for key, cell in one.items() if key != "value"} == {
                key: cell for key, cell in other.items() if key != "value"
            }, path
            assert_same_value(one["value"], other["value"], kind, 0.0 if exactly else TOLERANCE * slack, path)


def denominator(tables, name, index):
    """Returns what a recovered metric was divided by: the generator scores both of its ends."""
    clean, corrupt = (tables[f"{name}_{side}"][index]["value"] for side in ("clean", "corrupt"))
    return None if clean is None or corrupt is None else abs(clean - corrupt)


def assert_same_value(one, other, kind, tolerance, path):
    if kind == "top_k" and tolerance and one is not None and other is not None:
        likely, others = ([probability for _, probability in value] for value in (one, other))
        assert others == pytest.approx(likely, rel=tolerance, abs=tolerance), path
        tied = [any(abs(p - q) <= tolerance for j, q in enumerate(likely) if j != i) or i == len(likely) - 1 for i, p in enumerate(likely)]
        assert all(is_tied or a == b for (a, _), (b, _), is_tied in zip(one, other, tied, strict=True)), path
    elif kind == "rank" and tolerance and one is not None:
        assert other == pytest.approx(one, abs=1), path  # two tokens may change places by a last bit
    elif tolerance and one is not None:
        assert other == pytest.approx(one, rel=tolerance, abs=tolerance), f"{path}: {one} → {other}"
    else:
        assert one == other, path


def assert_same_outputs(expected, found, exactly, where):
    assert list(expected) == list(found), where
    for name, one in expected.items():
        other = found[name]
        assert (one.value.lengths, one.kind, one.groups) == (other.value.lengths, other.kind, other.groups), f"{where}/{name}"
        tolerance = 0.0 if exactly else TOLERANCE
        torch.testing.assert_close(
            other.value.data,
            one.value.data,
            rtol=tolerance,
            atol=tolerance,
            equal_nan=True,
            msg=lambda text, name=name: f"{where}/{name}: {text}",
        )


def assert_same_writes(expected, found):
    """Compares what the check of writes saw: which fired, and how far they moved what they wrote."""
    if isinstance(expected, str):
        return
    for one, other in zip(expected.points, found.points, strict=True):
        for name, step in one.steps.items():
            pairs = zip(step.results["checks"], other.steps[name].results["checks"], strict=True)
            for check, again in pairs:
                assert check.name == again.name
                if check.name != "writes":
                    continue
                assert check.status == again.status
                assert check.data.keys() == again.data.keys()
                writes = check.data.get("writes", {})
                assert writes.keys() == again.data.get("writes", {}).keys()
                for write, said in writes.items():
                    now = again.data["writes"][write]
                    for count in ("n_rows", "n_fired", "n_tokens_left_over"):
                        assert said[count] == now[count], f"{one.label}/{name}/{write}"
                    change = None if said["median_change"] is None else pytest.approx(said["median_change"], rel=1e-3, abs=TOLERANCE)
                    assert now["median_change"] == change, f"{one.label}/{name}/{write}"


# the properties


@pytest.mark.parametrize("one", REWRITES, ids=lambda one: one.__name__)
def test_a_rewrite_alone_gives_the_numbers_of_the_plain_passes(bench, one):
    bench.holds(lambda compiled: assert_same_run(compiled.plain, compiled.run((one,)), exactly=one.__name__ in SAME_BITS))


def same_numbers_and_writes(compiled):
    found = compiled.run(REWRITES, check="sample")
    assert_same_run(compiled.plain, found)
    assert_same_writes(compiled.plain, found)


def test_all_rewrites_give_the_numbers_of_the_plain_passes_and_write_the_same(bench):
    bench.holds(same_numbers_and_writes)


def test_every_rewrite_keeps_the_laws_and_all_of_them_cost_no_more(bench):
    def law(compiled):
        plain = physical = plain_schedule(compiled.request, compiled.schedules)
        assert verify(plain) == []
        for one in REWRITES:
            physical = one(physical)
            assert verify(physical) == [], one.__name__
            assert verify(one(plain)) == [], f"{one.__name__} alone"
        assert physical.cost.layer_tokens <= plain.cost.layer_tokens

    bench.holds(law)


def test_nnterp_runs_what_is_rewritten_as_it_runs_the_plain_passes(bench):
    bench.holds(same_numbers_and_writes, kind="nnterp", share=0.2)
