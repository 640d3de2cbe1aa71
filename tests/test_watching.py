"""Probes that watch a generation: what they are given, what they say, when they stop it; and rows that come and go."""

import json
import sys
import threading
import time

import pytest
import torch
from conftest import ROOT
from safetensors.torch import save_file

from causalab_mini.errors import PlanError
from causalab_mini.plan.spec import Decode
from causalab_mini.probing.probes import REGISTRY, Probe, Registry, Verdict
from causalab_mini.probing.request import prompts_of, watch
from causalab_mini.probing.router import Limits, Router
from causalab_mini.probing.run import Routing, probe
from causalab_mini.probing.run.rows import Ask
from causalab_mini.probing.run.stream import Stream
from causalab_mini.probing.spec import load_yaml_file, parse_dict

pytestmark = pytest.mark.tiny

PROMPTS = ("If today is Thursday, tomorrow is", "Sunday", "If today is Saturday, tomorrow is Sunday. If today is")
CLOSE = {"rtol": 1e-4, "atol": 2e-5}
"""Other batches are other shapes of the same sums."""


def point(name="p", tensor="residual_stream", position="generated[*]", layers=(1,), **more):
    kind = {"probe_type": "norm_monitor", "probe_kind": "trajectory"}
    return {"name": name, "layers": list(layers), "tensor_type": tensor, "position": position, **kind, **more}


def spec_of(*points):
    return parse_dict({"version": "1", "extraction_points": list(points)})


@pytest.fixture
def watched(engines):
    """Returns a function that has points watch a bundled model."""

    def run(*points, prompts=PROMPTS, n=6, name="successor-llama", **options):
        options = {"ignore_eos": True, **options}
        return probe(spec_of(*points), engines(name, "hooks"), prompts, max_new_tokens=n, **options)

    return run


def registered(**kinds):
    registry = Registry()
    for name, kind in kinds.items():
        registry.register(name, kind)
    return registry


def said(recording, name):
    return [result for result in recording.verdicts if result.point == name]


class Stops(Probe):
    """Stops a generation at one of its tokens, of one request or of all."""

    def __init__(self, at, request=None):
        self.at, self.request = at, request

    def on_activation(self, record):
        stops = record.generated_index == self.at and self.request in (None, record.request)
        return Verdict(record.token_id, "abort" if stops else "continue", "that is enough")


# What probes are given


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_probe_is_given_what_a_point_records_token_by_token_and_layer_by_layer(watched, engines, batch_size):
    given = []

    class Takes(Probe):
        def on_activation(self, record):
            given.append(record)

    places = {"tensor": "kv", "position": "prompt[*]", "layers": (0, 2)}
    points = [point("all", layers=(0, 2)), point("cache", **places), point("last", position="generated[-2]", layers=(3, 1))]
    points = [one | {"probe_type": "takes"} for one in points]
    recording = watched(*points, registry=registered(takes=Takes), keep_activations=True, batch_size=batch_size)
    for one in recording.request.spec:
        own = sorted((record for record in given if record.point == one.name), key=lambda record: int(record.request))
        index = [line for line in recording.index(engines("successor-llama", "hooks").tokenizer) if line["point"] == one.name]
        assert len(own) == len(index) * len(one.components)
        for layer in one.layers:
            for component in one.components:
                found = [record for record in own if (record.layer, record.component) == (layer, component)]
                assert torch.equal(torch.stack([record.activation for record in found]), recording.tensor(one.name, layer, component))
                lines = [line for line in index if line["layer"] == layer]
                for key in ("position", "generated_index", "token_id"):
                    assert [getattr(record, key) for record in found] == [line[key] for line in lines]
                assert [int(record.request) for record in found] == [line["request"] for line in lines]
        for number in range(len(PROMPTS)):
            places = [(record.position, one.layers.index(record.layer)) for record in own if record.request == str(number)]
            assert places == sorted(places), "tokens in order, layers in the order of the point"
    assert [counts.fired for counts in map(recording.counts, recording.request.spec.names)] == [
        sum(line.fired for line in recording.fired if line.point == one.name) * len(one.layers) * len(one.components)
        for one in recording.request.spec
    ]


def test_what_is_not_asked_for_is_not_kept(watched):
    recording = watched(point(), point("kept", probe_type="record"))
    assert set(recording.tensors) == {"kept/block_output/1"}
    with pytest.raises(Exception, match="keep_activations"):
        recording.tensor("p")


# The probes that ship


def test_the_norm_is_that_of_what_is_recorded(watched):
    recording = watched(point(probe_args={"max": 9.0}), keep_activations=True)
    norms = recording.tensor("p").norm(dim=-1)
    found = said(recording, "p")
    torch.testing.assert_close(torch.tensor([result.value for result in found]), norms)
    assert [bool(result.reason) for result in found] == (norms > 9.0).tolist()
    assert any(result.reason for result in found)
    assert not all(result.reason for result in found)


def test_a_projection_is_along_a_direction_of_length_one(watched, tmp_path):
    direction = torch.arange(64.0) - 20
    save_file({"d": direction, "other": torch.ones(64)}, tmp_path / "direction.safetensors")
    points = [
        point("list", probe_type="projection", probe_args={"direction": direction.tolist()}),
        point("file", probe_type="projection", probe_args={"file": str(tmp_path / "direction.safetensors"), "tensor": "d"}),
        point("raw", probe_type="projection", probe_args={"direction": direction.tolist(), "normalize": False}),
    ]
    recording = watched(*points, keep_activations=True)
    expected = recording.tensor("list") @ direction
    for name, scale in (("list", direction.norm()), ("file", direction.norm()), ("raw", 1.0)):
        torch.testing.assert_close(torch.tensor([result.value for result in said(recording, name)]), expected / scale)


@pytest.mark.parametrize("mode", ["inline", "async"])
@pytest.mark.parametrize("how", ["mean", "max", "last"])
def test_an_aggregate_is_over_all_tokens_of_a_request(watched, how, mode):
    more = {"probe_type": "aggregator", "probe_args": {"how": how}, "execution_mode": mode}
    recording = watched(point(layers=(0, 2), **more), keep_activations=True)
    found = said(recording, "p")
    assert [result.position for result in found] == [None] * len(PROMPTS)
    for number, result in enumerate(found):
        assert result.value["n"] == 6
        for layer in (0, 2):
            values = recording.tensor("p", layer)[recording.requests["p"] == number]
            expected = {"mean": values.mean(dim=0), "max": values.amax(dim=0), "last": values[-1]}[how]
            torch.testing.assert_close(torch.tensor(result.value["values"][f"block_output/{layer}"]), expected)


def test_arguments_of_a_point_go_before_those_of_all_probes_of_its_type(watched):
    points = [point("own", probe_args={"max": 1e9}), point("other")]
    recording = watched(*points, probe_defaults={"norm_monitor": {"max": 0.0, "min": 0.0}})
    assert {name: any(result.reason for result in said(recording, name)) for name in ("own", "other")} == {"own": False, "other": True}


# Stopping


@pytest.mark.parametrize("mode", ["inline", "blocks"])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_an_abort_comes_before_the_next_token(watched, mode, batch_size):
    plain = watched(point(probe_type="record"), n=8)
    more = {"intervention": {"mode": "block_until_signal", "timeout_ms": 60_000}} if mode == "blocks" else {}
    kinds = {"registry": registered(stops=Stops, norm_monitor=REGISTRY.get("norm_monitor")), "batch_size": batch_size}
    points = [point(probe_type="stops", probe_args={"at": 2, "request": "1"}, **more), point("other")]
    recording = watched(*points, n=8, **kinds)
    whole = [one.ids for one in plain.generated]
    assert [one.ids for one in recording.generated] == [whole[0], whole[1][:3], whole[2]]
    assert [one.ended for one in recording.generated] == ["length", "abort", "length"]
    assert {number: (abort.point, abort.reason) for number, abort in recording.aborts.items()} == {1: ("p", "that is enough")}
    assert [len([result for result in said(recording, "other") if result.request == str(number)]) for number in range(3)] == [8, 3, 8]


def test_an_abort_in_the_prompt_leaves_nothing_said(watched):
    class Never(Probe):
        def on_activation(self, record):
            return Verdict(None, "abort", "not this one")

    registry = registered(never=Never)
    recording = watched(point(position="prompt[-1]", probe_type="never"), registry=registry)
    assert [(one.ids, one.text, one.ended) for one in recording.generated] == [((), "", "abort")] * 3
    assert recording.n_forwards == 1


def test_an_async_abort_acts_at_the_next_step(watched):
    heard = threading.Event()

    class Later(Probe):
        def on_activation(self, record):
            if record.generated_index == 1:
                heard.set()
                return Verdict(None, "abort", "later")
            return None

    class Waits(Probe):
        """Holds the generation up until the other has spoken."""

        def on_activation(self, record):
            if record.generated_index == 2:
                heard.wait()
                time.sleep(0.1)

    points = [point("late", probe_type="later", execution_mode="async"), point("waits", probe_type="waits")]
    recording = watched(*points, prompts=PROMPTS[:1], n=8, registry=registered(later=Later, waits=Waits))
    assert recording.generated[0].ended == "abort"
    assert len(recording.generated[0].ids) in (2, 3), "one token more where the verdict came while the next was under way"
    assert recording.aborts[0].point == "late"


def test_a_stop_token_and_the_end_of_a_row_come_before_a_probe_that_would_have_stopped_later(watched):
    recording = watched(point(probe_type="stops", probe_args={"at": 7}), registry=registered(stops=Stops), n=4)
    assert [one.ended for one in recording.generated] == ["length"] * 3
    assert recording.aborts == {}


def test_probes_that_raise_or_hang_cost_neither_the_generation_nor_other_points_anything(watched):
    gate = threading.Event()

    class Raises(Probe):
        def on_activation(self, record):
            raise RuntimeError("no")

    class Hangs(Probe):
        def on_activation(self, record):
            gate.wait()

    kinds = registered(raises=Raises, hangs=Hangs, norm_monitor=REGISTRY.get("norm_monitor"))
    points = [
        point("good"),
        point("raises", probe_type="raises"),
        point("hangs", probe_type="hangs", intervention={"mode": "block_until_signal", "timeout_ms": 30}),
        point("hangs_too", probe_type="hangs"),
        point("behind", probe_type="hangs", execution_mode="async", queue_depth=2),
        point("kept", probe_type="record"),
    ]
    plain = watched(point("kept", probe_type="record"))
    recording = watched(*points, registry=kinds, routing=Routing(limits=Limits(inline_s=0.05, async_s=0.1, drain_s=0.2)))
    gate.set()
    assert recording.generated == plain.generated
    assert torch.equal(recording.tensor("kept"), plain.tensor("kept"))
    assert len(said(recording, "good")) == 18
    for name in ("good", "raises", "hangs", "hangs_too", "behind"):
        counts = recording.counts(name)
        assert counts.fired == 18
        assert counts.received + counts.n_dropped == 18
    summary = {one["point"]: one["probe"] for one in recording.summary() if "probe" in one}
    assert {one["what"] for one in summary["raises"]["failures"]} == {"raised"}
    assert {one["what"] for one in summary["hangs_too"]["failures"]} == {"timed_out"}
    assert summary["good"]["failures"] == []


# Rows that come and go

MIXED = (
    point("stream", layers=(0, 2)),
    point("cache", "kv", "generated[*]", layers=(1,), stride=2),
    point("end", position="generated[-1]", layers=(2,)),
    point("before", "attn_out", "prompt[*]", layers=(2,)),
    point("stop", "mlp_out", "generated[*]", layers=(1,), until="stop_token", token="is"),
)


def followed(engine, prompts, decodes, joins, cancels=None):
    """Returns what rows say and what their probes are given, joined at the steps that are given."""
    given = {}

    class Takes(Probe):
        def on_activation(self, record):
            given.setdefault((record.request, record.point), []).append((record.position, record.layer, record.activation))

    from causalab_mini.probing.probes import Binding

    spec = spec_of(*({**one, "probe_type": "takes"} for one in MIXED))
    made = watch(spec, engine.facts, engine.tokenizer, Binding(registered(takes=Takes)))
    ended = {}
    with Router(spec, made.probes) as router, torch.no_grad():
        stream = Stream(engine, made)
        watches = {number: router.open(str(number), prompt.n_tokens) for number, prompt in enumerate(prompts)}
        for step in range(60):
            if new := [number for number, at in joins.items() if at == step]:
                stream.join([Ask(number, prompts[number], decodes[number], watches[number]) for number in new])
            elif stream.rows:
                stream.step()
            for number in [number for number, at in (cancels or {}).items() if at == step]:
                stream.cancel(number)
            for row in stream.take_ended():
                ended[row.number] = row
                watches[row.number].end(row.ended, len(row.ids))
        assert not stream.rows
    return ended, given


@pytest.mark.parametrize("name", ["successor-llama", "successor-gpt2", "mistral", "qwen3", "llama-grouped"])
def test_a_row_that_joins_others_says_and_gives_what_it_does_alone(engines, name):
    engine = engines(name, "hooks")
    engine.load_weights()
    prompts = prompts_of(PROMPTS, engine.tokenizer, "prompts")
    decodes = [
        Decode(max_new_tokens=9, ignore_eos=True),
        Decode(max_new_tokens=4),
        Decode(max_new_tokens=7, do_sample=True, seed=3, temperature=0.7),
    ]
    together, given = followed(engine, prompts, decodes, {1: 0, 0: 2, 2: 5})
    assert sorted(together) == [0, 1, 2]
    for number in range(3):
        alone, own = followed(engine, prompts, decodes, {number: 0})
        assert together[number].ids == alone[number].ids
        assert (together[number].ended, together[number].text) == (alone[number].ended, alone[number].text)
        for one in MIXED:
            key = (str(number), one["name"])
            assert [value[:2] for value in given.get(key, [])] == [value[:2] for value in own.get(key, [])]
            for (_, _, mine), (_, _, theirs) in zip(given.get(key, []), own.get(key, []), strict=True):
                torch.testing.assert_close(mine, theirs, **CLOSE)


def test_a_row_that_is_cancelled_leaves_and_the_others_do_not_notice(engines):
    engine = engines("successor-llama", "hooks")
    prompts = prompts_of(PROMPTS, engine.tokenizer, "prompts")
    decodes = [Decode(max_new_tokens=8, ignore_eos=True)] * 3
    whole, given = followed(engine, prompts, decodes, {0: 0, 1: 0, 2: 0})
    left, less = followed(engine, prompts, decodes, {0: 0, 1: 0, 2: 0}, cancels={1: 3})
    assert [left[number].ids for number in (0, 2)] == [whole[number].ids for number in (0, 2)]
    assert (left[1].ended, left[1].ids) == ("cancelled", whole[1].ids[:4])
    assert ("1", "end") not in less
    assert len(less["1", "stream"]) < len(given["1", "stream"])


@pytest.mark.parametrize("is_divisible", [True, False])
def test_a_row_that_is_cancelled_before_its_last_token_is_fed_has_no_end_and_every_row_ends_once(engines, monkeypatch, is_divisible):
    from causalab_mini.probing.run.together import Together

    monkeypatch.setattr(Together, "is_divisible", is_divisible)
    engine = engines("successor-llama", "hooks")
    prompts = prompts_of(PROMPTS, engine.tokenizer, "prompts")
    decodes = [Decode(max_new_tokens=n, ignore_eos=True) for n in (3, 5, 6)]
    plain, given = followed(engine, prompts, decodes, {0: 0, 1: 0, 2: 0})
    ended, less = followed(engine, prompts, decodes, {0: 0, 1: 0, 2: 0}, cancels={0: 2, 1: 9})
    assert {number: (row.ended, row.ids) for number, row in ended.items()} == {
        number: (row.ended, row.ids) for number, row in plain.items()
    }
    assert ("0", "end") in given
    assert ("0", "end") not in less
    assert [value[:2] for value in given["2", "stream"]] == [value[:2] for value in less["2", "stream"]]


@pytest.mark.parametrize("name", ["successor-llama", "successor-gpt2"])
def test_places_inside_attention_above_all_others_are_there_at_the_last_token_too(watched, name):
    points = [point("low", layers=(0,), probe_type="record"), point("high", "kv", layers=(2,), probe_type="record")]
    recording = watched(*points, name=name)
    alone = watched(points[1], name=name)
    for component in ("attention_key", "attention_value"):
        assert torch.equal(recording.tensor("high", 2, component), alone.tensor("high", 2, component))
    assert len(recording.tensor("low")) == 18


def test_a_row_whose_logits_are_not_finite_ends_alone(engines, monkeypatch):
    engine = engines("successor-llama", "hooks")
    prompts = prompts_of(PROMPTS, engine.tokenizer, "prompts")
    plain = Stream._last_logits

    def broken(self, output):
        logits = plain(self, output).clone()
        if self.rows and self.rows[0].n_said == 2:
            logits[1] = float("nan")
        return logits

    decodes = [Decode(max_new_tokens=5, ignore_eos=True)] * 3
    whole, _ = followed(engine, prompts, decodes, {0: 0, 1: 0, 2: 0})
    monkeypatch.setattr(Stream, "_last_logits", broken)
    found, _ = followed(engine, prompts, decodes, {0: 0, 1: 0, 2: 0})
    assert [found[number].ended for number in range(3)] == ["length", "error", "length"]
    assert found[1].error is not None
    assert [found[number].ids for number in (0, 2)] == [whole[number].ids for number in (0, 2)]


# The command

LLAMA = ("--model", "bundled:successor-llama")
ASKED = (*LLAMA, "--prompt", PROMPTS[0], "--prompt", PROMPTS[1], "--max-new-tokens", 8, "--device", "cpu")
PROBES = """
from causalab_mini.probing.probes import TrajectoryProbe, Verdict, inline_probe, register


@inline_probe("counts_to")
def counts_to(record, most=3):
    return Verdict(record.generated_index, "abort" if record.generated_index + 1 >= most else "continue", f"{most} are enough")


@register("how_many")
class HowMany(TrajectoryProbe):
    def on_start(self, start):
        self.n = 0

    def on_activation(self, record):
        self.n += 1

    def on_end(self, end):
        return self.n
"""


def test_a_file_registers_probes_and_what_they_say_is_written(command, tmp_path):
    (tmp_path / "mine.py").write_text(PROBES, encoding="utf-8")
    points = [point("stop", probe_type="counts_to"), point("n", probe_type="how_many", execution_mode="async")]
    (tmp_path / "spec.json").write_text(json.dumps({"version": "1", "extraction_points": points}), encoding="utf-8")
    arguments = ("probe", tmp_path / "spec.json", *ASKED, "--ignore-eos")
    unknown = command(*arguments, "--out", tmp_path / "no")
    assert unknown.code == 2
    assert "stop.probe_type: expected a probe that is registered" in unknown.err
    assert "--probes" in unknown.err
    mine = ("--probes", tmp_path / "mine.py", "--probe-arg", "counts_to.most=2")
    done = command(*arguments, *mine, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    assert "stop: ended 2 of 2 requests: 2 are enough" in done.err
    said = json.loads((tmp_path / "out" / "generated.json").read_text(encoding="utf-8"))
    assert [(len(line["ids"]), line["ended"], line["aborted_by"]) for line in said] == [(2, "abort", "stop")] * 2
    verdicts = json.loads((tmp_path / "out" / "verdicts.json").read_text(encoding="utf-8"))
    assert [(line["request"], line["point"], line["value"], line["action"]) for line in verdicts] == [
        (number, *line) for number in range(2) for line in (("stop", 0, "continue"), ("stop", 1, "abort"), ("n", 2, "continue"))
    ]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert [one["probe"]["activations"]["received"] for one in summary["points"]] == [4, 4]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (("--probes", "no_such_file.py"), "--probes"),
        (("--probe-arg", "norm_monitor"), "--probe-arg"),
        (("--probe-arg", "norm_monitor.most=3"), "probe_args.most"),
        (("--probe-timeout", "0"), "--probe-timeout"),
        (("--probe-timeout", "inf"), "--probe-timeout"),
        (("--probe-arg", "nrom_monitor.max=3"), "`norm_monitor`"),
    ],
)
def test_wrong_options_of_probes_are_refused(command, tmp_path, wrong, named):
    spec = ROOT / "documents" / "specs" / "offset.yaml"
    refused = command("probe", spec, *ASKED, *wrong, "--out", tmp_path / "no")
    assert (refused.code, named in refused.err) == (2, True), refused.err
    assert not (tmp_path / "no").exists()


def test_a_file_of_probes_that_does_not_run_is_named(command, tmp_path):
    (tmp_path / "bad.py").write_text("raise RuntimeError('not today')", encoding="utf-8")
    spec = ROOT / "documents" / "specs" / "offset.yaml"
    refused = command("probe", spec, *ASKED, "--probes", tmp_path / "bad.py", "--out", tmp_path / "no")
    assert refused.code == 2
    assert "RuntimeError: not today" in refused.err


@pytest.mark.parametrize("name", ["continuous_trajectory", "fixed_window", "offset"])
def test_specs_that_ship_run_with_their_probes(command, tmp_path, name):
    spec = ROOT / "documents" / "specs" / f"{name}.yaml"
    done = command("probe", spec, *ASKED, "--ignore-eos", "--out", tmp_path / "out")
    assert done.code == 0, done.err
    verdicts = json.loads((tmp_path / "out" / "verdicts.json").read_text(encoding="utf-8"))
    assert {line["point"] for line in verdicts} == set(load_yaml_file(spec).names)
    assert "not carried out" not in done.err


def test_another_text_of_a_file_of_probes_is_another_request(engines, tmp_path):
    from importlib.util import module_from_spec, spec_from_file_location

    from causalab_mini.probing.probes import Binding
    from causalab_mini.probing.request import make_request

    engine = engines("successor-llama", "hooks")
    prompts = prompts_of(PROMPTS, engine.tokenizer, "prompts")
    found = []
    for number, text in enumerate((PROBES, PROBES, PROBES.replace("most=3", "most=4"))):
        file = tmp_path / f"mine{number}.py"
        file.write_text(text, encoding="utf-8")
        spec = spec_from_file_location(f"mine{number}", file)
        module = module_from_spec(spec)
        registry = Registry()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(REGISTRY, "_classes", registry._classes)
            patch.setitem(sys.modules, f"mine{number}", module)
            spec.loader.exec_module(module)
            points = [point("stop", probe_type="counts_to"), point("n", probe_type="how_many")]
            watching = watch(spec_of(*points), engine.facts, engine.tokenizer, Binding(registry))
            found.append(make_request(watching, prompts, Decode(max_new_tokens=2)).digest)
    assert found[0] == found[1] != found[2]


def test_another_probe_or_another_of_its_files_is_another_request(engines, tmp_path):
    from causalab_mini.probing.request import make_request

    engine = engines("successor-llama", "hooks")
    prompts = prompts_of(PROMPTS, engine.tokenizer, "prompts")
    file = tmp_path / "d.safetensors"

    def digest(**args):
        points = point(probe_type="projection", probe_args=args)
        return make_request(watch(spec_of(points), engine.facts, engine.tokenizer), prompts, Decode(max_new_tokens=2)).digest

    save_file({"d": torch.ones(64)}, file)
    first = digest(file=str(file))
    assert digest(file=str(file)) == first
    assert digest(file=str(file), threshold=2.0) != first
    save_file({"d": torch.arange(64.0)}, file)
    assert digest(file=str(file)) != first


# In a document


def test_a_stream_step_asks_probes_and_saves_what_they_say(engines, tmp_path):
    from authoring import RAGGED_PAIRS, write_table
    from test_stream import document

    from causalab_mini.plan import build_request

    write_table(tmp_path / "data", "rows", [{**row, "example_id": f"row {index}"} for index, row in enumerate(RAGGED_PAIRS)])
    engine = engines("successor-llama", "hooks")
    saves = [{"value": "verdicts", "file_path": "v.json"}]
    raw = document(point("norm", probe_args={"max": 0.5}), point("kept", probe_type="record"), saves=saves)
    found = engine.execute(build_request(raw, tmp_path / "data", engine)).step("record").results
    assert {line["point"] for line in found["verdicts"]} == {"norm"}
    norms = found["points"]["kept"]["kept/block_output/1"].norm(dim=-1)
    torch.testing.assert_close(torch.tensor([line["value"] for line in found["verdicts"]]), norms)
    assert list(found["points"]) == ["kept"]
    assert all("example_id" in line for line in found["verdicts"])
    with pytest.raises(PlanError, match=r"steps\.record\.points\[0\]\.probe_args\.most"):
        build_request(document(point("norm", probe_args={"most": 0.5})), tmp_path / "data", engine)


# Where verdicts go


def test_verdicts_go_to_a_file_as_they_come(command, tmp_path):
    spec, file = ROOT / "documents" / "specs" / "fixed_window.yaml", tmp_path / "said.ndjson"
    sent = ("--ndjson", file, "--redact", "token_id", "--send-activations")
    done = command("probe", spec, *ASKED, "--ignore-eos", *sent, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    events = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    verdicts = json.loads((tmp_path / "out" / "verdicts.json").read_text(encoding="utf-8"))
    results = sorted(
        (event["request"], event["point"], event["position"], event["component"]) for event in events if event["event"] == "result"
    )
    assert results == sorted((str(line["request"]), line["point"], line["position"], line["component"]) for line in verdicts)
    activations = [event for event in events if event["event"] == "activation"]
    assert len(activations) == len(results)
    norms = {
        (event["request"], event["point"], event["position"], event["component"]): torch.tensor(event["activation"]).norm()
        for event in activations
    }
    for event in events:
        if event["event"] == "result":
            key = (event["request"], event["point"], event["position"], event["component"])
            assert event["value"] == pytest.approx(float(norms[key]), rel=1e-5)
            assert event["token_id"] == "[redacted]"
    ends = [event for event in events if event["event"] == "end"]
    assert [(event["request"], event["ended"], event["n_generated"]) for event in ends] == [("0", "length", 8), ("1", "length", 8)]
    (told,) = json.loads((tmp_path / "out" / "run.json").read_text(encoding="utf-8"))["sinks"]
    assert told["n_written"] == len(events)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (("--redact", "token"), "--redact"),
        (("--dead-letters", "x"), "--dead-letters"),
        (("--send-activations",), "--send-activations"),
        (("--ndjson", "no/such/folder/x.ndjson"), "a file that can be appended to"),
        (("--webhook", "ftp://x"), "http"),
    ],
)
def test_sinks_that_can_not_be_are_refused_before_anything_runs(command, tmp_path, wrong, named, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused = command("probe", ROOT / "documents" / "specs" / "offset.yaml", *ASKED, *wrong, "--out", tmp_path / "no")
    assert (refused.code, named in refused.err) == (2, True), refused.err
    assert not (tmp_path / "no").exists()


# A probe that a document trains


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Returns the file of the probe that `documents/linear_probe.json` trains at layer 2."""
    from causalab_mini.experiment import load

    out = tmp_path_factory.mktemp("linear_probe") / "out"
    load(ROOT / "documents" / "linear_probe.json", overrides={"sites.stream.layers": 2}).run(out)
    return out / "probe.safetensors"


MONTHS = ("If this month is April, next month is", "If this month is June, next month is", "This month is August, so next month is")


def test_a_spec_uses_the_probe_that_a_document_has_trained(command, trained, tmp_path):
    from causalab_mini.ops.linear_probe import LinearProbe

    spec = ROOT / "documents" / "specs" / "single_token.yaml"
    prompts = [part for prompt in MONTHS for part in ("--prompt", prompt)]
    asked = (*LLAMA, *prompts, "--max-new-tokens", 3, "--probe-arg", f"linear_probe.file={trained}", "--keep-activations")
    done = command("probe", spec, *asked, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    verdicts = json.loads((tmp_path / "out" / "verdicts.json").read_text(encoding="utf-8"))
    assert [line["value"]["class"].strip() for line in verdicts] == ["May", "July", "September"]
    from safetensors.torch import load_file

    activations = load_file(tmp_path / "out" / "records.safetensors")["last_prompt_token/block_output/2"]
    expected = LinearProbe.from_file(trained).probabilities(activations).amax(dim=-1)
    torch.testing.assert_close(torch.tensor([line["value"]["probability"] for line in verdicts]), expected)
    said = json.loads((tmp_path / "out" / "generated.json").read_text(encoding="utf-8"))
    for line, verdict in zip(said, verdicts, strict=True):
        assert line["text"].startswith(verdict["value"]["class"]), "the probe knows before the model has said it"
    record = json.loads((tmp_path / "out" / "run.json").read_text(encoding="utf-8"))
    assert set(record["probe_files"]) == {"last_prompt_token"}


def test_a_linear_probe_stops_a_generation_of_a_class_beyond_its_threshold(watched, trained):
    args = {"file": str(trained), "target": " July", "threshold": 0.9, "action": "abort"}
    points = point("month", layers=(2,), position="prompt[-1]", probe_type="linear_probe", probe_kind="single_shot", probe_args=args)
    recording = watched(points, prompts=MONTHS, n=3)
    assert [one.ended for one in recording.generated] == ["length", "abort", "length"]
    assert recording.generated[1].ids == ()
    assert recording.aborts[1].reason.startswith("probability of ` July` 0.9")
    found = [result.value for result in said(recording, "month")]
    assert [value >= 0.9 for value in found] == [False, True, False]


@pytest.mark.parametrize(
    ("more", "args", "expected"),
    [
        ({"layers": [1]}, {}, "whose `layer` is `1`"),
        ({"layers": [1, 2]}, {}, "whose `layer` is"),
        ({"tensor_type": "mlp_out", "layers": [2]}, {}, "whose `component` is `mlp_output`"),
        ({"tensor_type": "mlp_activation", "layers": [2]}, {}, "features"),
        ({"layers": [2]}, {"target": " April"}, "a class of the probe"),
        ({"layers": [2]}, {"threshold": 0.5}, "a class"),
        ({"layers": [2]}, {"target": " May", "when": "over"}, "`above`, `below`"),
    ],
)
def test_a_linear_probe_is_of_its_place_and_its_classes(watched, trained, more, args, expected):
    probed = {"position": "prompt[-1]", "probe_type": "linear_probe", "probe_args": {"file": str(trained), **args}}
    with pytest.raises(PlanError) as refused:
        watched(point(**probed) | more)
    assert expected in refused.value.text(), refused.value.text()
    if "whose" in expected:
        probed["probe_args"]["check_stamp"] = False
        assert watched(point(**probed) | more, n=1).verdicts
