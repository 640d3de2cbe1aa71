"""Random documents give the same numbers whatever is rewritten: the scheduler is exact, and not only on documents that somebody thought of.

`CAUSALAB_EXAMPLES` says how many are drawn (some hundreds for a long run), `CAUSALAB_SEED` which; both have a fixed default. One that fails
is made as small as it fails, and shown whole.
"""

import json
import os
import shutil
import traceback
from collections import Counter, OrderedDict
from dataclasses import dataclass, fields
from functools import cached_property
from math import inf
from random import Random
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
from causalab_mini.schedule.located import build_schedule
from causalab_mini.schedule.physical import plain_schedule
from causalab_mini.schedule.rewrites import REWRITES

pytestmark = pytest.mark.tiny

N_EXAMPLES = int(os.environ.get("CAUSALAB_EXAMPLES", "50"))
SEED = int(os.environ.get("CAUSALAB_SEED", "0"))
SAME_BITS = ("share", "stop_early", "drop", "free_early")
"""Rewrites that promise every bit; others make batches or products of another shape."""
TOLERANCE = 1e-4
"""Relative and absolute. Rounding in batches of another shape comes to 1e-6; values are of order 1."""
LEAST_DENOMINATOR = 1e-2
"""Of a recovered metric that is compared: a ratio to almost nothing says nothing."""
MAX_REMEMBERED = 600


def of_examples(test, share=1.0):
    """Runs a test on drawn examples: the same ones, from the first, in every test and on every machine.

    Args:
        test: what is done with each.
        share: of the number of examples.
    """
    options: dict[str, Any] = {"deadline": None, "database": None, "phases": [Phase.generate]}
    options["suppress_health_check"] = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    profile = settings(max_examples=max(1, round(N_EXAMPLES * share)), **options)
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
        """Returns a run, or the words that it is refused with: a `where` may leave no row."""
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
        from transformers import AutoConfig

        self.folder = folder
        self.engines = {}
        self.known = OrderedDict()
        for family in dict.fromkeys(FAMILIES):
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

    def compile(self, example, kind="hooks"):
        """Returns an example that can be run.

        Raises:
            InputError: its document does not fit its rows or its model.
        """
        raw = json.loads(json.dumps(example.raw))
        raw["model"]["key"] = str(self.folder / example.family)
        shutil.rmtree(self.folder / "data", ignore_errors=True)
        for name, rows in example.tables.items():
            write_table(self.folder / "data", name, rows)
        engine = self.engine(example.family, example.attention, kind)
        request = build_request(raw, self.folder / "data", engine)
        return Compiled(engine, request, [build_schedule(request, point) for point in request.points], example.batch_size)

    def compiled(self, example, kind="hooks"):
        """Returns an example that can be run, None where it is refused; remembered, for other tests draw it too."""
        key = (kind, example.key)
        if key not in self.known:
            try:
                self.known[key] = self.compile(example, kind)
            except InputError:
                self.known[key] = None
            if len(self.known) > MAX_REMEMBERED:
                self.known.popitem(last=False)
        return self.known[key]

    def holds(self, law, kind="hooks", share=1.0):
        """Judges examples by a law, a function that raises where one of them breaks it; the first that does is told of, made small."""
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
        """Returns whether an example compiles and breaks a law with some kind of error."""
        try:
            compiled = self.compile(example, kind)
        except Exception:
            return False
        try:
            law(compiled)
        except Exception as found:
            return isinstance(found, error)
        return False

    def said(self, law, example, kind):
        """Returns what is said where an example breaks a law."""
        try:
            law(self.compile(example, kind))
        except Exception as found:
            return "".join(traceback.format_exception(found)[-2:]).strip()
        return "it did not fail again"


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # matrices of 64 columns: threads would only wait for each other
    yield Bench(tmp_path_factory.mktemp("random"))
    torch.set_num_threads(n_threads)


# comparing


def assert_same_run(expected, found, exactly=False):
    """Compares two runs: every cell of every table, every output and place, to the bit or within the tolerance."""
    if isinstance(expected, str) or isinstance(found, str):
        assert found == expected
        return
    assert [point.label for point in found.points] == [point.label for point in expected.points]
    for one, other in zip(expected.points, found.points, strict=True):
        assert list(other.steps) == list(one.steps)
        for name, step in one.steps.items():
            where, again = f"{one.label}/{name}", other.steps[name]
            assert again.results["positions"] == step.results["positions"], where
            assert_same_tables(step.results["metrics"], again.results["metrics"], exactly, where)
            assert_same_outputs(step.results["outputs"], again.results["outputs"], exactly, where)


def assert_same_tables(expected, found, exactly, where):
    assert list(found) == list(expected), where
    for name, rows in expected.items():
        for index, (one, other) in enumerate(zip(rows, found[name], strict=True)):
            path, kind, tolerance = f"{where}/{name}[{index}]", one["estimand_version"].partition("/")[0], TOLERANCE
            if kind == "recovered" and not exactly:
                spread = denominator(expected, name, index)
                if spread < LEAST_DENOMINATOR:
                    continue
                tolerance *= max(1.0, abs(one["value"])) / min(spread, 1.0)
            assert without_value(other) == without_value(one), path
            assert_same_value(one["value"], other["value"], kind, 0.0 if exactly else tolerance, path)


def without_value(line):
    return {key: cell for key, cell in line.items() if key != "value"}


def denominator(tables, name, index):
    """Returns what a recovered metric was divided by, 0 where it has no value: beside it both of its ends are scored."""
    clean, corrupt = (tables[f"{name}_{side}"][index]["value"] for side in ("clean", "corrupt"))
    return 0.0 if tables[name][index]["value"] is None else abs(clean - corrupt)


def assert_same_value(one, other, kind, tolerance, path):
    if one is None or other is None or not tolerance:
        assert other == one, path
    elif kind == "top_k":
        likely, again = ([probability for _, probability in value] for value in (one, other))
        assert again == pytest.approx(likely, rel=tolerance, abs=tolerance), path
        for (token, probability), (found, _), later in zip(one, other, [*likely[1:], likely[-1]], strict=True):
            if probability - later <= tolerance:
                break  # from here on tokens may change places by a last bit
            assert found == token, path
    else:
        slack = 1.0 if kind == "rank" else tolerance  # two tokens may change places by a last bit
        assert other == pytest.approx(one, rel=tolerance, abs=slack), f"{path}: {one} became {other}"


def assert_same_outputs(expected, found, exactly, where):
    assert list(found) == list(expected), where
    tolerance = 0.0 if exactly else TOLERANCE
    for name, one in expected.items():
        other, path = found[name], f"{where}/{name}"
        assert (other.value.lengths, other.kind, other.groups) == (one.value.lengths, one.kind, one.groups), path
        data = one.value.data
        torch.testing.assert_close(
            other.value.data, data, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda text, path=path: f"{path}: {text}"
        )


def assert_same_writes(expected, found):
    """Compares what the check of writes saw: which fired where, and how far they moved what stood there."""
    if isinstance(expected, str):
        return
    for one, other in zip(expected.points, found.points, strict=True):
        for name, step in one.steps.items():
            pairs = zip(step.results["checks"], other.steps[name].results["checks"], strict=True)
            for check, again in ((check, again) for check, again in pairs if check.name == "writes"):
                assert again.status == check.status, f"{one.label}/{name}: {again.text}"
                writes, now = check.data.get("writes", {}), again.data.get("writes", {})
                assert now.keys() == writes.keys()
                for write, said in writes.items():
                    assert_same_evidence(said, now[write], f"{one.label}/{name}/{write}")


def assert_same_evidence(one, other, path):
    for count in ("n_rows", "n_fired", "n_tokens_left_over"):
        assert other[count] == one[count], f"{path}: {count}"
    was, now = one["median_change"], other["median_change"]
    assert (now is None) == (was is None), path
    if was is not None and min(was, now) < 1e3:  # above that, what stood there was next to nothing
        assert now == pytest.approx(was, rel=1e-3, abs=TOLERANCE), path


def assert_checked(found):
    """Asks what runs ask of themselves: rows under hooks of their own, and the plan's passes, give the same."""
    if not isinstance(found, str):
        checks = [check for point in found.points for step in point.steps.values() for check in step.results["checks"]]
        failed = [check for check in checks if check.status == "failed" and check.name in ("rows", "passes", "places")]
        assert [
            check.text for check in failed if check.data.get("largest") != inf
        ] == []  # drawn writes may leave values that are not finite


# the properties

WORTH_IT = {"bucket.MIN_TOKENS": 1, "bucket.MIN_SAVED": 0.0, "bucket.FIXED_OPERATIONS": 0.0, "prefixes.MIN_SHARED": 2}
"""What the rewrites ask of a saving before they make it, and what is enough here: rows are few and models small."""


@pytest.fixture
def whatever_it_saves(monkeypatch):
    """Lets rewrites do what they can, also where that is not worth it."""
    for name, value in WORTH_IT.items():
        monkeypatch.setattr(f"causalab_mini.schedule.rewrites.{name}", value)


def same_numbers_and_writes(rewrites_of):
    """Returns the law that rewrites, which may depend on the example, change no number."""

    def law(compiled):
        found = compiled.run(rewrites_of(compiled), check="sample")
        assert_same_run(compiled.plain, found)
        assert_same_writes(compiled.plain, found)
        assert_checked(found)

    return law


def some(compiled):
    """Returns some of the rewrites, in their order: others for every document."""
    random = Random(compiled.request.digest)
    return tuple(one for one in REWRITES if random.random() < 0.5)


def test_all_rewrites_give_the_numbers_of_the_plain_passes_and_write_the_same(bench):
    bench.holds(same_numbers_and_writes(lambda compiled: REWRITES))


@pytest.mark.usefixtures("whatever_it_saves")
def test_they_do_so_where_they_save_little(bench):
    bench.holds(same_numbers_and_writes(lambda compiled: REWRITES))


@pytest.mark.usefixtures("whatever_it_saves")
def test_some_of_the_rewrites_give_the_numbers_of_the_plain_passes(bench):
    bench.holds(same_numbers_and_writes(some))


@pytest.mark.usefixtures("whatever_it_saves")
@pytest.mark.parametrize("one", REWRITES, ids=lambda one: one.__name__)
def test_a_rewrite_alone_gives_the_numbers_of_the_plain_passes(bench, one):
    bench.holds(lambda compiled: assert_same_run(compiled.plain, compiled.run((one,)), exactly=one.__name__ in SAME_BITS), share=0.6)


@pytest.mark.parametrize("is_traced", [False, True], ids=["direct", "traced"])
def test_nnterp_gives_the_numbers_of_its_plain_passes_too(bench, is_traced):
    rewrites = tuple(one for one in REWRITES if one.__name__ != "run_directly" or not is_traced)
    bench.holds(same_numbers_and_writes(lambda compiled: rewrites), kind="nnterp", share=0.2)


def what_runs(physical):
    """Returns all of a schedule but how it came to be."""
    return [repr(getattr(physical, entry.name)) for entry in fields(physical) if entry.name not in ("prompts", "history")]


def law_of_schedules(compiled, at_work):
    """Raises where a rewrite breaks a law of schedules; notes in `at_work` those that did something."""
    plain = physical = plain_schedule(compiled.request, compiled.schedules)
    assert verify(plain) == []
    for one in REWRITES:
        physical, before = one(physical), physical
        assert verify(physical) == [], one.__name__
        assert verify(one(plain)) == [], f"{one.__name__} alone"
        if one.__name__ not in at_work and what_runs(physical) != what_runs(before):
            at_work.add(one.__name__)
    return plain.cost, physical.cost


def test_every_rewrite_keeps_the_laws_and_all_of_them_cost_no_more(bench):
    def law(compiled):
        before, after = law_of_schedules(compiled, set())
        assert after.layer_tokens <= before.layer_tokens

    bench.holds(law)


@pytest.mark.usefixtures("whatever_it_saves")
def test_every_rewrite_keeps_the_laws_where_it_saves_little_and_has_something_to_do(bench):
    at_work: set[str] = set()
    bench.holds(lambda compiled: law_of_schedules(compiled, at_work))
    assert at_work == {one.__name__ for one in REWRITES}


# what is drawn

DRAWN = {
    "mechanism": {"swap", "add_scaled", "lerp", "gaussian", "clamp", "renormalize", "project_out", "permute", "knockout"},
    "component": {"block_output", "block_input", "attention_output", "attention_query", "attention_value", "attention_z", "mlp_output"}
    | {"mlp_neuron_output", "block_mid", "embeddings", "ln_final", "logits", "attention_probs", "attention_premix", "attention_key"},
    "kind": {"logit_diff", "match", "cross_entropy", "token_prob", "rank", "kl", "js", "cosine", "value", "top_k", "recovered"}
    | {"answer_logprob", "class_match", "token_logit"},
    "reduce": {"mean", "std", "mean_by", "pca"},
    "align": {"last", "first", "mean"},
    "as": {"layer", "pos", "strength", "head", "which"},
    "view": {"logits"},
}
"""Words of the language that a run of the default length reaches; beside them, the keys below."""
KEYS = {"heads", "units", "keys", "where", "difference", "ref", "scope", "span", "last", "all", "stride", "offset", "outputs"}


def test_most_documents_compile_and_every_part_of_the_language_is_drawn(bench):
    found, n = {word: set() for word in DRAWN}, Counter()
    keys = set()

    def collect(value):
        for key, inner in value.items() if isinstance(value, dict) else ((None, inner) for inner in value):
            keys.add(key)
            if key in found and isinstance(inner, str):
                found[key].add(inner)
            if isinstance(inner, dict | list):
                collect(inner)

    def look(example):
        is_there = bench.compiled(example) is not None
        n[is_there] += 1
        if is_there:
            n[example.family] += 1
            collect(example.raw)

    of_examples(look)
    assert n[True] >= 0.6 * (n[True] + n[False])
    if N_EXAMPLES >= 50 and SEED == 0:
        assert {word: DRAWN[word] - found[word] for word in DRAWN} == {word: set() for word in DRAWN}
        assert not KEYS - keys
        assert all(n[family] for family in FAMILIES)
