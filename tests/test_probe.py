"""Specs run while a model generates: what is recorded is what a plain forward over the finished text has, and what is refused."""

import json
import math

import pytest
import torch
from conftest import BUNDLED, ROOT
from reference import forward, spot
from safetensors.torch import load_file

from causalab_mini.engine.batches import make_batch, reading
from causalab_mini.engine.contract import State
from causalab_mini.engine.engines.hooks import HooksEngine
from causalab_mini.errors import InputError, PlanError, UsageError
from causalab_mini.model.components import COMPONENTS
from causalab_mini.model.families import Absent
from causalab_mini.ops.windows import Index
from causalab_mini.plan.spec import ModelSpec
from causalab_mini.probing.request import make_request, prompts_of, watch
from causalab_mini.probing.run import probe, stream
from causalab_mini.probing.spec import Progress, advance, load_yaml_file, parse_dict

pytestmark = pytest.mark.tiny

SPECS = sorted((ROOT / "documents" / "specs").glob("*.yaml"))
PROMPTS = ("If today is Thursday, tomorrow is", "Sunday", "If today is Saturday, tomorrow is Sunday. If today is")
CLOSE = {"rtol": 1e-4, "atol": 2e-5}
"""One token at a time and all at once are other shapes of the same sums."""
PLAIN = {
    "residual_stream": "block_output",
    "attn_out": "attention_output",
    "mlp_out": "mlp_output",
    "final_norm": "ln_final",
    "block_input": "block_input",
    "embeddings": "embeddings",
    "lm_head": "lm_head",
    "logits": "logits",
}
WHOLE = ("final_norm", *(name for name, component in COMPONENTS.items() if not component.per_layer))


def point(name="p", tensor="residual_stream", position="generated[*]", layers=(0, 2), **more):
    where = {} if tensor in WHOLE else {"layers": list(layers)}
    kind = {"probe_type": "record", "probe_kind": "trajectory"}
    return {"name": name, **where, "tensor_type": tensor, "position": position, **kind, **more}


def spec_of(*points):
    return parse_dict({"version": "1", "extraction_points": list(points)})


@pytest.fixture
def recorded(engines):
    """Returns a function that records points on a bundled model."""

    def run(*points, name="successor-llama", prompts=PROMPTS, n=6, **options):
        return probe(spec_of(*points), engines(name, "hooks"), prompts, max_new_tokens=n, **options)

    return run


@pytest.fixture(scope="session")
def eager():
    """Returns a function that opens a bundled model with eager attention."""
    made = {}

    def engine_of(name):
        if name not in made:
            made[name] = HooksEngine.load(ModelSpec(key=f"bundled:{name}", dtype="fp32", attn_implementation="eager"), device_map="cpu")
        return made[name]

    return engine_of


def whole(recording, request):
    return (*recording.request.prompts[request].ids, *recording.generated[request].ids)


def lines_of(recording, name, request):
    """Returns which lines of a point's tensors are of a request, and their tokens."""
    lines = (recording.requests[name] == request).nonzero().flatten()
    return lines, recording.positions[name][lines].tolist()


# What is recorded


@pytest.mark.parametrize("name", BUNDLED)
def test_values_are_those_of_a_plain_forward_over_the_finished_text(recorded, plain_models, name):
    points = [point(f"{tensor} {at}", tensor, f"{at}[*]") for tensor in PLAIN for at in ("prompt", "generated")]
    recording = recorded(*points, name=name)
    model, _ = plain_models(name)
    n_compared = 0
    for request in range(len(PROMPTS)):
        ids = whole(recording, request)
        assert len({len(whole(recording, each)) for each in range(len(PROMPTS))}) > 1
        for tensor, component in PLAIN.items():
            for at, expected in (
                ("prompt", range(len(recording.request.prompts[request].ids))),
                ("generated", range(len(recording.request.prompts[request].ids), len(ids))),
            ):
                lines, positions = lines_of(recording, f"{tensor} {at}", request)
                assert positions == list(expected)
                for layer in (None,) if tensor in WHOLE else (0, 2):
                    truth = forward(model, ids, {"x": spot(model, component, layer, positions)})["x"]
                    torch.testing.assert_close(recording.tensor(f"{tensor} {at}", layer)[lines], truth, **CLOSE)
                    n_compared += len(positions)
    assert n_compared > 300


@pytest.mark.parametrize("name", BUNDLED)
def test_the_residual_stream_and_the_final_norm_are_the_hidden_states_of_transformers(recorded, plain_models, name):
    recording = recorded(point(layers=range(4)), point("norm", "final_norm"), name=name)
    model, _ = plain_models(name)
    for request in range(len(PROMPTS)):
        with torch.no_grad():
            states = model(torch.tensor([whole(recording, request)]), output_hidden_states=True).hidden_states
        lines, positions = lines_of(recording, "p", request)
        for layer in range(3):  # the last of transformers' is behind the final norm
            torch.testing.assert_close(recording.tensor("p", layer)[lines], states[layer + 1][0, positions], **CLOSE)
        torch.testing.assert_close(recording.tensor("norm")[lines], states[-1][0, positions], **CLOSE)


@pytest.mark.parametrize("name", BUNDLED)
def test_keys_and_values_are_those_in_the_cache_of_a_plain_forward(recorded, plain_models, name):
    recording = recorded(point(tensor="kv", position="prompt[*]"), point("g", "kv"), name=name)
    model, _ = plain_models(name)
    for request in range(len(PROMPTS)):
        with torch.no_grad():
            cache = model(torch.tensor([whole(recording, request)]), use_cache=True).past_key_values
        for at in ("p", "g"):
            lines, positions = lines_of(recording, at, request)
            for layer in (0, 2):
                found = (cache.layers[layer].keys, cache.layers[layer].values)
                for component, states in zip(("attention_key", "attention_value"), found, strict=True):
                    truth = states[0].transpose(0, 1).flatten(1)[positions]
                    torch.testing.assert_close(recording.tensor(at, layer, component)[lines], truth, **CLOSE)


@pytest.mark.parametrize("name", BUNDLED)
def test_every_component_is_recorded_as_a_whole_forward_has_it(eager, plain_models, name):
    engine = eager(name)
    there = [each for each in COMPONENTS if not isinstance(engine.facts.place(each, 1 if COMPONENTS[each].per_layer else None), Absent)]
    assert len(there) > 20
    points = [point(f"{each} {at}", each, at, [1]) for each in there for at in ("prompt[*]", "generated[*]", "generated[-2]")]
    recording = probe(spec_of(*points), engine, PROMPTS, max_new_tokens=5)
    for request in range(len(PROMPTS)):
        ids = whole(recording, request)
        batch = make_batch([0], recording.request.prompts[request : request + 1], [recording.generated[request].ids], 0)
        for each in there:
            layer = 1 if COMPONENTS[each].per_layer else None
            for at in ("prompt[*]", "generated[*]", "generated[-2]"):
                lines, positions = lines_of(recording, f"{each} {at}", request)
                assert positions
                found = recording.tensor(f"{each} {at}")[lines]
                if each == "attention_scores":  # known up to what the softmax takes out
                    found = torch.where(is_key(positions, found), found, -math.inf).softmax(dim=-1)
                if COMPONENTS[each].has_keys:
                    truth = patterns(plain_models(name)[0], ids, 1, positions, found.shape[-1])
                else:
                    state = State(len(ids), has_evidence=False)
                    index = Index(torch.zeros(len(positions), dtype=torch.long), torch.tensor(positions))
                    engine.run(batch, reading({(each, layer): index}, engine.facts), state)
                    truth = state.reads[each, layer or 0]
                torch.testing.assert_close(found, truth, **CLOSE, msg=lambda text, each=each, at=at: f"{each} {at}: {text}")


def is_key(positions, found):
    """Returns which keys each line has, those up to its own token."""
    return (torch.arange(found.shape[-1]) <= torch.tensor(positions)[:, None])[:, None, :].expand_as(found)


def patterns(model, ids, layer, positions, n_keys):
    """Returns the attention of some queries as transformers gives it, zeros behind the query itself."""
    before = model.config._attn_implementation
    model.config._attn_implementation = "eager"
    try:
        with torch.no_grad():
            probs = model(torch.tensor([list(ids)]), output_attentions=True).attentions[layer][0].transpose(0, 1)[positions]
    finally:
        model.config._attn_implementation = before
    return torch.nn.functional.pad(probs, (0, max(0, n_keys - probs.shape[-1])))[..., :n_keys]


@pytest.mark.parametrize("name", BUNDLED)
def test_a_ragged_batch_is_each_request_alone(recorded, name):
    points = [point(), point("k", "kv", "prompt[*]"), point("last", "final_norm", "generated[-1]"), point("gone", position="generated[4]")]
    together = recorded(*points, name=name)
    assert len({len(prompt.ids) for prompt in together.request.prompts}) == len(PROMPTS)
    for request, text in enumerate(PROMPTS):
        alone = recorded(*points, name=name, prompts=[text])
        assert alone.generated[0] == together.generated[request]
        for each in points:
            lines, positions = lines_of(together, each["name"], request)
            assert positions == alone.positions[each["name"]].tolist()
            for key, tensor in alone.tensors.items():
                if key.startswith(f"{each['name']}/"):
                    torch.testing.assert_close(together.tensors[key][lines], tensor, **CLOSE)


def test_batches_of_any_size_give_one_recording(recorded):
    points = [point(), point("c", position="prompt[-1]+1")]
    one, many = recorded(*points, batch_size=1), recorded(*points, batch_size=2)
    assert one.generated == many.generated
    assert one.fired == many.fired
    for name, tensor in one.tensors.items():
        torch.testing.assert_close(many.tensors[name], tensor, **CLOSE)


def test_what_was_recorded_can_be_trained_on(recorded):
    weight = torch.ones(64, requires_grad=True)
    (recorded(point()).tensor("p", 0) @ weight).sum().backward()
    assert weight.grad is not None


# Which tokens


@pytest.mark.parametrize("name", BUNDLED)
def test_tokens_counted_from_the_end_are_those_of_the_generation_as_it_ended(recorded, name):
    ends = {"generated[-1]": 1, "generated[-2]": 2, "generated[-1]-1": 2, "generated[-3]+1": 2, "generated[-3]": 3, "generated[-1]-5": 6}
    points = [point(position, position=position) for position in ends]
    recording = recorded(*points, point(), point("prompt", position="prompt[*]"), name=name)
    assert len({len(one.ids) for one in recording.generated}) > 1, "rows must end at different steps"
    for request in range(len(PROMPTS)):
        n = len(whole(recording, request))
        parts = [lines_of(recording, each, request) for each in ("prompt", "p")]
        every = torch.cat([recording.tensor(each, 2)[lines] for each, (lines, _) in zip(("prompt", "p"), parts, strict=True)])
        for position, from_end in ends.items():
            lines, positions = lines_of(recording, position, request)
            assert positions == [n - from_end]
            assert torch.equal(recording.tensor(position, 2)[lines], every[n - from_end][None])
    for position in ends:  # alone, nothing else keeps its tokens
        alone = recorded(point(position, position=position), name=name)
        assert torch.equal(alone.positions[position], recording.positions[position])
        torch.testing.assert_close(alone.tensor(position, 2), recording.tensor(position, 2), **CLOSE)


def test_one_behind_the_prompt_is_the_first_generated_token(recorded):
    recording = recorded(point(position="prompt[-1]+1"), point("g", position="generated[0]"), point("n", position=10))
    for layer in (0, 2):
        assert torch.equal(recording.tensor("p", layer), recording.tensor("g", layer))
    lengths = [prompt.n_tokens for prompt in recording.request.prompts]
    assert recording.positions["p"].tolist() == lengths
    assert lengths[0] == 10
    assert torch.equal(recording.tensor("n", 0)[0], recording.tensor("p", 0)[0])


def test_a_fixed_count_ends_a_run(recorded):
    until = {"until": "fixed_count", "count": 2}
    recording = recorded(point(stride=2, **until), point("all"), ignore_eos=True)
    for request in range(len(PROMPTS)):
        n = recording.request.prompts[request].n_tokens
        assert lines_of(recording, "p", request)[1] == [n, n + 2]
    lines = [line for line in recording.fired if line.point == "p"]
    assert {(line.eligible, line.fired, line.reason) for line in lines} == {(3, 2, "`until` was reached: 2 tokens were taken")}


def test_a_stop_token_is_the_last_that_a_run_fires_at(recorded, engines):
    free = recorded(point(), ignore_eos=True)
    tokenizer = engines("successor-llama", "hooks").tokenizer
    stop = tokenizer.convert_ids_to_tokens(free.generated[0].ids[1])
    recording = recorded(point(until="stop_token", token=stop), point("s", until="stop_token", token=stop, stride=2), ignore_eos=True)
    for request, one in enumerate(recording.generated):
        n_prompt, ids = recording.request.prompts[request].n_tokens, one.ids
        stop_id = tokenizer.convert_tokens_to_ids(stop)
        last = ids.index(stop_id) if stop_id in ids else len(ids) - 1
        assert lines_of(recording, "p", request)[1] == list(range(n_prompt, n_prompt + last + 1))
        assert lines_of(recording, "s", request)[1] == list(range(n_prompt, n_prompt + last + 1, 2))
    assert "the stop token" in recording.fired[0].reason
    assert lines_of(recording, "p", 0)[1] == [10, 11]
    lines = lines_of(free, "p", 0)[0]
    assert torch.equal(recording.tensor("p", 2)[lines_of(recording, "p", 0)[0]], free.tensor("p", 2)[lines][:2])


def test_a_stop_token_in_the_prompt_ends_a_run_over_the_prompt_alone(recorded):
    recording = recorded(
        point(position="prompt[*]", until="stop_token", token=","), point("g", until="stop_token", token=","), prompts=PROMPTS[:1]
    )
    pieces = [recording.token(0, position) for position in recording.positions["p"].tolist()]
    assert len(pieces) < recording.request.prompts[0].n_tokens
    assert len(recording.positions["g"]) == len(recording.generated[0].ids)


def test_points_fire_where_the_library_says_token_by_token(recorded, engines):
    positions = (
        "3",
        11,
        "prompt[-2]",
        "prompt[1:4]",
        "generated[1]",
        "generated[-1]-1",
        "generated[1:4]",
        "prompt[-1]+2",
        "generated[0]-1",
    )
    tokenizer = engines("successor-llama", "hooks").tokenizer
    ends = [{}, {"until": "fixed_count", "count": 2}, {"until": "stop_token", "token": "is"}, {"until": "stop_token", "token": "."}]
    runs = [
        {"position": position, "stride": stride, **end}
        for position in ("prompt[*]", "generated[*]", "generated[1:]")
        for stride in (1, 2)
        for end in ends
    ]
    points = [point(str(index), layers=[0], **more) for index, more in enumerate([*({"position": each} for each in positions), *runs])]
    recording = recorded(*points)
    n_fired = 0
    for each in recording.request.spec:
        stop = None if each.token is None else recording.request.watched.stops[each.name]
        assert stop is None or tokenizer.decode([stop]).strip() == each.token
        for request, prompt in enumerate(recording.request.prompts):
            progress, expected, ids = Progress(), [], whole(recording, request)
            for index, token in enumerate(ids):
                fires, progress = advance(
                    each,
                    progress,
                    index,
                    index >= prompt.n_tokens,
                    prompt.n_tokens,
                    is_stop=token == stop,
                    num_generated_total=len(ids) - prompt.n_tokens,
                )
                expected += [index] * fires
            assert lines_of(recording, each.name, request)[1] == expected, (str(each.position), each.stride, each.until)
            line = next(line for line in recording.fired if (line.point, line.request) == (each.name, request))
            assert (line.eligible, line.fired) == (progress.n_eligible, progress.n_fired)
            assert bool(line.reason) == (line.fired == 0 or line.fired < line.eligible)
            n_fired += len(expected)
    assert n_fired > 200


@pytest.mark.parametrize(
    ("points", "more"),
    [
        ([{"position": "prompt[-1]"}], 0),
        ([{"position": "generated[0]"}], 0),
        ([{"position": "generated[-2]"}], 0),
        ([{"position": "generated[*]", "until": "fixed_count", "count": 3}], 0),
        ([{"position": "generated[0:3]"}], 0),
        ([{"position": "generated[-1]"}], 1),
        ([{"position": "generated[*]"}], 1),
        ([{"position": "generated[3]"}], 1),
        ([{"position": "generated[*]", "stride": 2}], 0),
        ([{"position": "generated[*]", "stride": 3}], 1),
    ],
)
def test_the_last_token_is_fed_only_where_it_is_wanted(recorded, points, more):
    n = 4
    recording = recorded(*(point(**each) for each in points), n=n, ignore_eos=True)
    assert recording.n_forwards == n + more


def test_each_layer_is_gathered_once_a_step_and_nothing_else_is_touched(recorded, monkeypatch):
    gathered, stopped_at = [], set()
    import causalab_mini.engine.walk as walk

    plain, run = walk.gather, stream.run_hooked

    def counted(activation, index):
        gathered.append(tuple(activation.shape))
        return plain(activation, index)

    def watched(module, facts, inputs, visits, state, shortcut):
        stopped_at.update(visit.address.module for visit in visits)
        return run(module, facts, inputs, visits, state, shortcut)

    monkeypatch.setattr(walk, "gather", counted)
    monkeypatch.setattr(stream, "run_hooked", watched)
    recorded(
        point(layers=[1]), point("again", layers=[1], stride=2), point("end", layers=[1], position="generated[-1]"), n=5, ignore_eos=True
    )
    assert stopped_at == {"model.layers.1"}
    assert gathered == [(3, 1, 64)] * 5


# What is said


@pytest.mark.parametrize("name", BUNDLED)
def test_greedy_tokens_are_those_of_generate(recorded, plain_models, name):
    recording = recorded(point(), name=name, n=12)
    model, _ = plain_models(name)
    for request, prompt in enumerate(recording.request.prompts):
        ids = torch.tensor([prompt.ids])
        found = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, pad_token_id=0)
        assert recording.generated[request].ids == tuple(found[0, len(prompt.ids) :].tolist())


def test_draws_depend_on_the_seed_and_not_on_the_batch(recorded):
    how = {"do_sample": True, "temperature": 2.0, "n": 8}
    one, alone, other = recorded(point(), seed=1, **how), recorded(point(), seed=1, batch_size=1, **how), recorded(point(), seed=2, **how)
    assert one.generated == alone.generated
    assert one.generated != other.generated


def test_points_that_fired_at_nothing_say_why_and_have_tensors_without_records(recorded):
    points = {
        "far": ("prompt[50]", "the prompt has 10 tokens, and no `prompt[50]`"),
        "late": ("generated[5:20]", "the generation ended after 3 tokens"),
        "later": ("generated[50]", "at most 6 tokens are generated, none of them `generated[50]`"),
    }
    recording = recorded(*(point(name, position=position) for name, (position, _) in points.items()), prompts=PROMPTS[:1])
    assert {line.point: (line.eligible, line.fired, line.reason) for line in recording.fired} == {
        name: (0, 0, reason) for name, (_, reason) in points.items()
    }
    assert {tuple(tensor.shape) for tensor in recording.tensors.values()} == {(0, 64)}


# What is refused


@pytest.mark.parametrize(
    ("more", "path", "expected"),
    [
        ({"probe_type": "linaer_probe"}, "p.probe_type", "a probe that is registered"),
        ({"probe_type": "linear_probe"}, "p.probe_args.file", "needs it"),
        ({"probe_type": "linear_probe", "probe_args": {"file": "gone.safetensors"}}, "p.probe_args.file", "a file"),
        ({"probe_type": "norm_monitor", "probe_args": {"most": 3}}, "p.probe_args.most", "an argument of"),
        ({"probe_type": "norm_monitor", "probe_args": {"max": "three"}}, "p.probe_args.max", "a number"),
        ({"probe_type": "norm_monitor", "probe_args": {"action": "abort"}}, "p.probe_args.max", "a bound"),
        ({"probe_type": "projection", "probe_args": {"direction": [1.0, 0.0]}}, "p.probe_args.direction", "64 features"),
        ({"probe_type": "projection", "probe_args": {"direction": [0.0] * 64}}, "p.probe_args.direction", "above 0"),
        ({"probe_type": "aggregator", "probe_kind": "single_shot", "position": 3}, "p.probe_kind", "`trajectory`"),
        ({"probe_args": {"a": 1}}, "p.probe_args", "no arguments"),
        ({"execution_mode": "async"}, "p.execution_mode", "`inline`"),
        ({"intervention": {"mode": "block_until_signal", "timeout_ms": 5}}, "p.intervention.mode", "`reject`"),
        ({"layers": [1, 4]}, "p.layers", "0 to 3"),
        ({"tensor_type": "attention_probs"}, "p.tensor_type", "a tensor that"),
        ({"tensor_type": "router_logits"}, "p.tensor_type", "a tensor that"),
        ({"until": "stop_token", "token": "Thursday Friday"}, "p.token", "one token"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_weights_are_loaded(monkeypatch, more, path, expected):
    def load(self):
        raise AssertionError("the weights were loaded")

    monkeypatch.setattr(HooksEngine, "load_weights", load)
    with pytest.raises(PlanError) as refused:
        probe(spec_of({**point(), **more}), "bundled:successor-llama", PROMPTS, max_new_tokens=3)
    assert [problem.path for problem in refused.value.problems] == [path]
    assert expected in refused.value.problems[0].expected


def test_a_point_of_which_only_records_are_kept_says_what_was_left_out(recorded):
    more = {"probe_type": "linear_probe", "execution_mode": "async", "queue_depth": 3}
    recording = recorded(point(**more), point("kept"), only_records=True)
    found = {one["point"]: one["not_carried_out"] for one in recording.summary()}
    assert found == {"p": {"probe_type": "linear_probe", "execution_mode": "async"}, "kept": {}}


@pytest.mark.parametrize("prompts", [[], [""], ["Sunday", ""], [7], "Sunday"])
def test_prompts_without_a_token_are_refused(engines, prompts):
    with pytest.raises(PlanError):
        probe(spec_of(point()), engines("successor-llama", "hooks"), prompts, max_new_tokens=3)


def test_a_prompt_that_learned_positions_do_not_reach_is_refused(engines):
    engine = engines("successor-gpt2", "hooks")
    most = engine.facts.max_positions
    prompts = prompts_of(["Sunday"], engine.tokenizer, "prompts")
    n = most - prompts[0].n_tokens

    def request(n_new, position):
        from causalab_mini.plan.spec import Decode

        watched = watch(spec_of(point(position=position)), engine.facts, engine.tokenizer)
        make_request(watched, prompts, Decode(max_new_tokens=n_new))

    request(n, "generated[*]")
    request(n + 1, "prompt[0]")
    for position, n_new in (("generated[*]", n + 1), ("prompt[0]", n + 2)):
        with pytest.raises(PlanError, match="learned positions"):
            request(n_new, position)


def test_a_row_may_end_at_the_last_learned_position_beside_one_that_goes_on(engines):
    engine = engines("successor-gpt2", "hooks")
    most = engine.facts.max_positions
    texts = ["Sunday", "Sunday" + ", Sunday" * ((most - 8) // 2)]
    n_prompt = [prompt.n_tokens for prompt in prompts_of(texts, engine.tokenizer, "prompts")]
    n = most + 1 - n_prompt[1]
    recording = probe(spec_of(point(position=n_prompt[0] + n - 1)), engine, texts, max_new_tokens=n, ignore_eos=True)
    assert [line.fired for line in recording.fired] == [1, 1]
    assert recording.n_forwards == n + 1


@pytest.mark.parametrize("how", [{"max_new_tokens": 0}, {"top_p": 0.5}, {"do_sample": True}, {"stop": ["."], "ignore_eos": True}])
def test_ways_to_speak_that_say_nothing_are_refused(engines, how):
    with pytest.raises(UsageError):
        probe(spec_of(point()), engines("successor-llama", "hooks"), PROMPTS, **{"max_new_tokens": 3, **how})


def test_a_batch_of_no_rows_is_refused(recorded):
    with pytest.raises(UsageError):
        recorded(point(), batch_size=0)


def test_a_recording_gives_no_tensor_for_a_name_that_it_has_not(recorded):
    recording = recorded(point(), point("k", "kv", layers=[1]))
    for arguments in (("q",), ("p",), ("p", 1), ("k",)):
        with pytest.raises(InputError):
            recording.tensor(*arguments)


# The command


LLAMA = ("--model", "bundled:successor-llama")
ASKED = (*LLAMA, "--prompt", PROMPTS[0], "--prompt", PROMPTS[1], "--max-new-tokens", 8, "--device", "cpu")


def test_every_spec_that_ships_is_run_where_records_are_asked_for(command, tmp_path):
    assert len(SPECS) == 4
    for spec in SPECS:
        done = command("probe", spec, *ASKED, "--ignore-eos", "--only-records", "--out", tmp_path / spec.stem)
        assert done.code == 0, done.err
        assert "not carried out: " in done.err
        summary = json.loads((tmp_path / spec.stem / "summary.json").read_text(encoding="utf-8"))
        assert [one["point"] for one in summary["points"]] == list(load_yaml_file(spec).names)
        assert all(one["fired"] for one in summary["points"])


@pytest.mark.parametrize("name", BUNDLED)
def test_the_spec_to_begin_with_is_valid_and_runs_as_it_is(command, tmp_path, name):
    spec, out = tmp_path / "starter.yaml", tmp_path / "out"
    assert command("model", f"bundled:{name}", "--emit-spec", spec).code == 0
    assert command("model", f"bundled:{name}", "--emit-spec", spec).code == 2, "it is not written over"
    assert command("validate", spec).code == 0
    asked = ("--model", f"bundled:{name}", "--prompt", PROMPTS[0], "--max-new-tokens", 5)
    done = command("probe", spec, *asked, "--out", out, "--json")
    assert done.code == 0, done.err
    said = json.loads(done.out)
    assert [one["fired"] > 0 for one in said["points"]] == [True] * 6
    assert sorted(path.name for path in out.iterdir()) == [
        ".lock",
        "generated.json",
        "records.json",
        "records.safetensors",
        "run.json",
        "spec.yaml",
        "summary.json",
    ]
    assert load_yaml_file(out / "spec.yaml") == load_yaml_file(spec)


def test_the_files_say_what_was_recorded(command, recorded, tmp_path):
    spec = tmp_path / "s.json"
    points = [point(), point("k", "kv", "prompt[-1]", [1]), point("n", "final_norm", "prompt[50]")]
    spec.write_text(json.dumps({"version": "1", "extraction_points": points}), encoding="utf-8")
    out = tmp_path / "out"
    assert command("probe", spec, *ASKED, "--out", out).code == 0
    recording = recorded(*points, prompts=PROMPTS[:2], n=8)
    tensors = load_file(out / "records.safetensors")
    assert set(tensors) == {"p/block_output/0", "p/block_output/2", "k/attention_key/1", "k/attention_value/1", "n/ln_final"}
    assert all(torch.equal(tensor, recording.tensors[name]) for name, tensor in tensors.items())
    index = json.loads((out / "records.json").read_text(encoding="utf-8"))
    said = json.loads((out / "generated.json").read_text(encoding="utf-8"))
    assert len(index) == 2 * len(recording.positions["p"]) + 2
    for line in index:
        ids = whole(recording, line["request"])
        assert line["token_id"] == ids[line["position"]]
        n_prompt = said[line["request"]]["n_prompt_tokens"]
        assert line["generated_index"] == (line["position"] - n_prompt if line["position"] >= n_prompt else None)
    assert [one["ids"] for one in said] == [list(one.ids) for one in recording.generated]
    assert [one["ended"] for one in said] == [one.ended for one in recording.generated]
    record = json.loads((out / "run.json").read_text(encoding="utf-8"))
    assert (record["status"], record["n_forwards"], record["decode"]["max_new_tokens"]) == ("finished", recording.n_forwards, 8)
    assert "n: fired at nothing: the prompt has" in command("probe", spec, *ASKED, "--out", out).err, "the same request may be run again"
    other = command("probe", spec, *ASKED, "--ignore-eos", "--out", out)
    assert (other.code, "--out" in other.err) == (2, True)


def test_rows_of_a_table_are_requests(command, tmp_path):
    from authoring import write_table

    write_table(tmp_path / "data", "rows", [{"say": text} for text in PROMPTS])
    starter, out = tmp_path / "s.yaml", tmp_path / "out"
    command("model", "bundled:successor-llama", "--emit-spec", starter)
    rows = (*LLAMA, "--data", "rows", "--data-root", tmp_path / "data", "--max-new-tokens", 3)
    assert command("probe", starter, *rows, "--field", "say", "--batch-size", 2, "--out", out).code == 0
    assert [one["prompt"] for one in json.loads((out / "generated.json").read_text(encoding="utf-8"))] == list(PROMPTS)
    assert json.loads((out / "run.json").read_text(encoding="utf-8"))["options"]["data"]["rows"]["n_rows"] == 3
    for wrong in ((), ("--field", "sya"), ("--field", "say", "--prompt", "x"), ("--field", "["), ("--field", "say[1]")):
        assert command("probe", starter, *rows, *wrong, "--out", tmp_path / "no").code == 2
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        (),
        ("--prompt", ""),
        ("--prompt", "x", "--field", "say"),
        ("--prompt", "x", "--dtype", "fp8"),
        ("--prompt", "x", "--attention", "flash"),
        ("--prompt", "x", "--top-p", "0.5"),
        ("--prompt", "x", "--do-sample"),
        ("--prompt", "x", "--revision", "main"),
    ],
)
def test_a_wrong_command_exits_with_two_and_leaves_no_folder(command, tmp_path, wrong):
    said = command("probe", SPECS[-1], *LLAMA, "--only-records", "--max-new-tokens", 3, *wrong, "--out", tmp_path / "no")
    assert (said.code, said.err.startswith("error: ")) == (2, True), said.err
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(("raised", "code", "status"), [(RuntimeError("no"), 70, "failed"), (KeyboardInterrupt(), 130, "interrupted")])
def test_a_run_that_fails_leaves_its_record_and_no_half_of_its_results(command, tmp_path, monkeypatch, raised, code, status):
    from causalab_mini.probing.run.recording import Recording

    def index(self, tokenizer):
        raise raised
        yield

    monkeypatch.setattr(Recording, "index", index)
    said = command("probe", SPECS[-1], *ASKED, "--only-records", "--out", tmp_path / "out")
    assert said.code == code
    assert {path.name for path in (tmp_path / "out").iterdir()} == {".lock", "run.json"}
    assert json.loads((tmp_path / "out" / "run.json").read_text(encoding="utf-8"))["status"] == status
