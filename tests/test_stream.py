"""`stream` steps: an extraction spec inside a document gives what `probe` gives, and is saved, counted, explained and refused as steps are."""

import csv
import json

import pytest
import torch
from authoring import RAGGED_PAIRS, write_document, write_table
from reference import forward, spot
from safetensors import safe_open
from test_mutated_documents import at, places
from test_probe import CLOSE, point
from test_schema import schema

from causalab_mini.engine.engines.hooks import HooksEngine
from causalab_mini.errors import DocumentError, PlanError, RunError
from causalab_mini.experiment import Options, load
from causalab_mini.plan import build_request
from causalab_mini.plan.explain import explain, explain_data
from causalab_mini.plan.layout import formatted
from causalab_mini.plan.load import load_raw
from causalab_mini.plan.spec import ModelSpec
from causalab_mini.probing.run import probe
from causalab_mini.probing.spec import parse_dict

pytestmark = pytest.mark.tiny

STOP = {"max_new_tokens": 7, "stop": ["."]}
POINTS = (
    point("run", position="generated[*]", stride=2),
    point("end", "final_norm", position="generated[-1]", probe_kind="single_shot"),
    point("prompt", "mlp_out", position="prompt[1:3]"),
    point("cache", "kv", position="prompt[-1]+1"),
    point("first", position="generated[*]", until="fixed_count", count=2),
    point("far", position="prompt[50]"),
)


def document(*points, decode=STOP, name="successor-llama", model=(), **more):
    step = {"kind": "stream", "rows": {"base": "rows"}, "decode": decode, "points": list(points), **more}
    roles = {"base": {"field": "input"}, "counterfactual": {"field": "counterfactual_inputs[0]"}}
    return json.loads(
        json.dumps({"model": {"key": f"bundled:{name}", "dtype": "fp32", **dict(model)}, "roles": roles, "steps": {"record": step}})
    )


@pytest.fixture
def data(tmp_path):
    rows = [{**row, "example_id": f"row {index}"} for index, row in enumerate(RAGGED_PAIRS)]
    write_table(tmp_path / "data", "rows", rows)
    return tmp_path / "data"


@pytest.fixture
def run(engines, data):
    """Returns a function that runs a stream step, and gives its results."""

    def run(*points, name="successor-llama", kind="hooks", batch_size=None, **more):
        engine = engines(name, kind)
        request = build_request(document(*points, name=name, **more), data, engine)
        return engine.execute(request, batch_size=batch_size).step("record").results

    return run


# Values


@pytest.mark.parametrize("kind", ["nnterp", "hooks"])
@pytest.mark.parametrize("name", ["successor-llama", "successor-gpt2"])
@pytest.mark.parametrize("decode", [STOP, {"max_new_tokens": 5, "do_sample": True, "seed": 3, "temperature": 1.5}])
def test_a_step_gives_what_probe_gives(run, engines, name, kind, decode):
    found = run(*POINTS, name=name, kind=kind, decode=decode)
    spec = parse_dict({"version": "1", "extraction_points": list(POINTS)})
    recording = probe(spec, engines(name, "hooks"), [row["input"] for row in RAGGED_PAIRS], **decode)
    tensors = {key: tensor for point in found["points"].values() for key, tensor in point.items()}
    assert tensors.keys() == recording.tensors.keys()
    for key, tensor in tensors.items():
        assert torch.equal(tensor, recording.tensors[key]), key
    assert [line["ids"] for line in found["generated"]["original.generated"]] == [list(one.ids) for one in recording.generated]
    index = list(recording.index(engines(name, "hooks").tokenizer))
    assert [{key: value for key, value in line.items() if key != "example_id"} for line in found["records"]] == index
    assert [line["example_id"] for line in found["records"]] == [f"row {line['request']}" for line in index]
    assert [(each["point"], each["eligible"], each["fired"]) for each in found["fired"]] == [
        (each["point"], each["eligible"], each["fired"]) for each in recording.summary()
    ]


def test_a_number_of_tokens_is_that_many_from_every_row(run):
    found = run(*POINTS, decode=9)
    assert [len(line["ids"]) for line in found["generated"]["original.generated"]] == [9] * len(RAGGED_PAIRS)
    assert len(found["points"]["run"]["run/block_output/0"]) == 5 * len(RAGGED_PAIRS)
    assert {line["ended"] for line in found["generated"]["original.generated"]} == {"length"}


def test_records_are_those_of_a_plain_forward_over_the_finished_text(run, engines, plain_models):
    found = run(point("run", position="generated[*]", layers=(2,)))
    model, _ = plain_models("successor-llama")
    tokenizer = engines("successor-llama", "hooks").tokenizer
    n_compared = 0
    for row, said in zip(RAGGED_PAIRS, found["generated"]["original.generated"], strict=True):
        prompt = tokenizer(row["input"])["input_ids"]
        lines = [line for line in found["records"] if line["example_id"] == said["example_id"]]
        positions = [line["position"] for line in lines]
        assert positions == list(range(len(prompt), len(prompt) + len(said["ids"])))
        truth = forward(model, (*prompt, *said["ids"]), {"x": spot(model, "block_output", 2, positions)})["x"]
        own = found["points"]["run"]["run/block_output/2"][[line["record"] for line in lines]]
        torch.testing.assert_close(own, truth, **CLOSE)
        n_compared += len(lines)
    assert n_compared > 10


@pytest.mark.parametrize("name", ["successor-llama", "successor-gpt2"])
def test_a_row_alone_has_the_numbers_of_the_batch(run, name):
    alone, together = run(*POINTS, name=name, batch_size=1), run(*POINTS, name=name, batch_size=3)
    assert alone["rows_a_batch"] == 1
    assert together["rows_a_batch"] == 3
    for key in ("records", "generated", "fired"):
        assert alone[key] == together[key]
    for point_name, tensors in alone["points"].items():
        for key, tensor in tensors.items():
            torch.testing.assert_close(tensor, together["points"][point_name][key], **CLOSE)


def test_the_role_that_is_gone_on_from_is_the_one_of_rows(run):
    raw = [row["counterfactual_inputs"][0] for row in RAGGED_PAIRS]
    found = run(point(position="prompt[1]"), rows={"counterfactual": "rows"})
    assert found["generated"]["original.generated"][0]["produced_by"] == "record/original/counterfactual"
    assert found["records"][0]["token"].strip() == raw[0].split()[0]  # behind `<s>`
    assert found["generated"] == run(point(position="prompt[1]"), rows={"counterfactual": "rows"}, input="counterfactual")["generated"]


def test_a_device_that_runs_out_of_memory_is_given_fewer_rows(run, monkeypatch):
    from causalab_mini.probing.run.stream import Stream

    whole, sizes = Stream.join, []

    def join(self, asks):
        sizes.append(len(asks))
        if len(asks) > 1:
            raise torch.OutOfMemoryError
        whole(self, asks)

    plain = run(*POINTS)
    monkeypatch.setattr(Stream, "join", join)
    found = run(*POINTS)
    assert found["rows_a_batch"] == 1
    assert sizes == [4, 2, 1, 1, 1, 1]
    assert found["records"] == plain["records"]
    monkeypatch.setattr(Stream, "join", lambda self, asks: (_ for _ in ()).throw(torch.OutOfMemoryError()))
    with pytest.raises(RunError, match="expected memory for request 0 alone"):
        run(*POINTS)


# The folder of a run


@pytest.fixture
def folder(data, tmp_path):
    saves = [(name, f"{name}.safetensors") for name in ("run", "cache", "far")]
    saves += [("records", "records.csv"), ("original.generated", "said.json")]
    raw = document(*POINTS, saves=[{"value": value, "file_path": path} for value, path in saves])
    path = write_document(tmp_path, raw)
    run = load(path, data_root=data, options=Options(engine="hooks")).run(tmp_path / "out")
    return tmp_path / "out", run


def test_what_is_saved_is_what_was_recorded(folder):
    out, run = folder
    results, digest = run.step("record").results, run.points[0].digest
    for name in ("run", "cache", "far"):
        with safe_open(out / f"{name}.safetensors", "pt") as file:
            assert file.metadata() == {"digest": digest, "kind": "records"}
            assert set(file.keys()) == set(results["points"][name])
            for key in file.keys():  # noqa: SIM118 - no mapping
                assert torch.equal(file.get_tensor(key), results["points"][name][key])
    assert {*results["points"]["cache"]} == {f"cache/attention_{part}/{layer}" for part in ("key", "value") for layer in (0, 2)}
    with (out / "records.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [(line["point"], int(line["position"])) for line in lines] == [(line["point"], line["position"]) for line in results["records"]]
    said = json.loads((out / "said.json").read_text())
    assert said == results["generated"]["original.generated"]
    assert list(said[0]) == ["example_id", "ids", "text", "ended", "produced_by"]


def test_the_summary_says_of_every_point_how_often_it_fired_and_why_not(folder):
    out, run = folder
    summary, record = json.loads((out / "summary.json").read_text()), json.loads((out / "run.json").read_text())
    (entry,) = summary["streams"]
    assert (entry["step"], entry["point"], entry["axes"]) == ("record", "", {})
    by_name = {each["point"]: each for each in entry["points"]}
    assert list(by_name) == [point["name"] for point in POINTS]
    assert by_name["prompt"]["fired"] == 2 * len(RAGGED_PAIRS)
    said = run.step("record").results["generated"]["original.generated"]
    assert by_name["first"]["eligible"] == sum(len(line["ids"]) for line in said)
    assert by_name["first"]["fired"] == sum(min(2, len(line["ids"])) for line in said) < by_name["first"]["eligible"]
    reasons = [line["reason"] for line in by_name["first"]["requests"]]
    assert reasons == ["`until` was reached: 2 tokens were taken" if len(line["ids"]) > 2 else None for line in said]
    assert by_name["far"]["fired"] == 0
    assert by_name["far"]["requests"][1]["example_id"] == "row 1"
    assert by_name["far"]["requests"][1]["reason"].endswith("and no `prompt[50]`")
    assert by_name["far"]["captured"]["far/block_output/2"] == [0, 64]
    assert any(warning.startswith("point `far` of `record` fired at nothing: the prompt has ") for warning in summary["warnings"])
    (step,) = record["steps"]
    assert step["n_rows"] == len(RAGGED_PAIRS)
    assert step["n_forwards"] == entry["n_forwards"]
    assert step["points"]["far"] == {"eligible": 0, "fired": 0}
    assert run.step("record").results["points"]["far"]["far/block_output/0"].shape == (0, 64)


def test_a_finished_stream_is_drawn_with_a_seed_that_the_record_has(data, tmp_path):
    path = write_document(tmp_path, document(*POINTS, decode={"max_new_tokens": 2, "do_sample": True, "seed": 11}))
    load(path, data_root=data, options=Options(engine="hooks")).run(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "run.json").read_text())["seeds"] == [11]


def test_a_sweep_of_layers_is_a_recording_a_point(engines, data):
    engine = engines("successor-llama", "hooks")
    raw = document(point())
    raw["steps"]["record"]["points"][0]["layers"] = {"sweep": "all"}
    run = engine.execute(build_request(raw, data, engine))
    assert [each.label for each in run.points] == [f"layers={layer}" for layer in range(4)]
    for layer, each in enumerate(run.points):
        assert list(each.step("record").results["points"]["p"]) == [f"p/block_output/{layer}"]


# Refused before weights are loaded; what needs no model is in `cases/errors/stream.json`


@pytest.mark.parametrize(
    ("name", "points", "more", "error"),
    [
        (
            "successor-llama",
            [point(), point("q", layers=(1, 4, 9))],
            {},
            "steps.record.points[1].layers: expected layers of the model (0 to 3), got `[4, 9]`",
        ),
        (
            "successor-gpt2",
            [point("q", "router_probs")],
            {},
            "steps.record.points[0].tensor_type: expected a tensor that `bundled:successor-gpt2` has, got `router_probs`",
        ),
        (
            "successor-llama",
            [point("q", "attention_probs")],
            {},
            'hint: `"attn_implementation": "eager"` in `model`',
        ),
        (
            "successor-llama",
            [point(until="stop_token", token="Thursday is")],
            {},
            "steps.record.points[0].token: expected a text of one token of the model, got `Thursday is`",
        ),
        (
            "successor-gpt2",
            [point()],
            {"decode": 5000},
            "steps.record.rows.base: expected at most ",
        ),
    ],
)
def test_what_does_not_fit_the_model_is_refused_with_its_place(data, name, points, more, error):
    engine = HooksEngine.load(ModelSpec(key=f"bundled:{name}", dtype="fp32"), device_map="cpu")
    with pytest.raises(PlanError) as caught:
        build_request(document(*points, name=name, **more), data, engine)
    assert error in caught.value.text()
    assert engine.module is None


def test_a_row_without_tokens_is_refused(engines, tmp_path):
    write_table(tmp_path, "rows", [{"input": "Sunday"}, {"input": ""}])
    with pytest.raises(PlanError, match=r"steps\.record\.rows\.base: .* row `1`"):
        build_request(document(point()), tmp_path, engines("successor-llama", "hooks"))


# One meaning, one digest; what is said of it


def digest(*points, **more):
    return load_raw(document(*points, **more)).digest


def test_the_digest_knows_what_is_meant_and_not_how_it_is_written():
    plain = point(layers=(2,))
    own = digest(plain)
    assert own == digest(dict(reversed(plain.items())))
    assert own == digest({**plain, "layers": 2})
    assert own == digest({**plain, "stride": 1, "execution_mode": "inline", "probe_args": {}})
    assert own == digest(plain, input="base")
    assert own == digest(plain, saves=[])
    assert digest({**plain, "position": 5}) == digest({**plain, "position": "5"})
    assert digest(plain, decode=4) == digest(plain, decode={"max_new_tokens": 4, "ignore_eos": True})
    others = [
        digest({**plain, "layers": 1}),
        digest({**plain, "name": "q"}),
        digest({**plain, "position": "prompt[*]"}),
        digest({**plain, "stride": 2}),
        digest(plain, decode={**STOP, "max_new_tokens": 8}),
        digest(plain, plain | {"name": "q"}),
    ]
    assert len({own, *others}) == 1 + len(others)


def test_explain_says_which_tokens_every_point_takes(engines, data):
    request = build_request(document(*POINTS), data, engines("successor-llama", "hooks"))
    text = explain(request)
    assert "record: Stream  points=['run', 'end', 'prompt', 'cache', 'first', 'far']" in text
    assert "generates 'original' on 'base'  (4 rows, at most 7 tokens each, greedy stop=['.'])" in text
    for line in (
        "point 'run' of residual_stream[0, 2] at generated[*] stride=2 → generated 0, 2, … 6",
        "point 'end' of final_norm at generated[-1] → the last token of all",
        "point 'prompt' of mlp_out[0, 2] at prompt[1:3] → prompt 1, 2",
        "point 'cache' of kv[0, 2] at prompt[-1]+1 → generated 0",
        "point 'first' of residual_stream[0, 2] at generated[*] until=fixed_count count=2 → generated 0, 1",
        "point 'far' of residual_stream[0, 2] at prompt[50] → none: the prompt has ",
    ):
        assert line in text, line
    (step,) = explain_data(request)["points"][0]["steps"]
    assert step["kind"] == "stream"
    assert step["rows"] == {"base": {"ref": "rows", "field": "input"}}
    assert step["points"][0] == {**POINTS[0], "tokens": "generated 0, 2, … 6"}


def test_fmt_puts_keys_in_the_order_of_the_reference():
    raw = document(dict(reversed(POINTS[0].items())))
    ordered = json.loads(formatted(raw))["steps"]["record"]["points"][0]
    assert ordered == POINTS[0]
    assert list(ordered) == ["name", "layers", "tensor_type", "position", "stride", "probe_type", "probe_kind"]


def test_a_sweep_stands_for_any_value_of_a_stream_and_the_schema_knows():
    import jsonschema

    validator = jsonschema.Draft202012Validator(schema())
    points = [
        {**each, **more} for each, more in zip(POINTS, [{"probe_args": {}}, {"intervention": {"mode": "reject"}}, *[{}] * 4], strict=True)
    ]
    raw = document(*points, saves=[{"value": "run", "file_path": "run.safetensors"}])
    n_swept = 0
    for path in (path for path in places(raw) if path[0] == "steps"):
        swept = json.loads(json.dumps(raw))
        here = at(swept, path[:-1])
        here[path[-1]] = {"sweep": [here[path[-1]]]}
        try:
            load_raw(swept)
        except DocumentError:
            assert not validator.is_valid(swept), path
        else:
            assert validator.is_valid(swept), path
            n_swept += 1
    assert n_swept > 40


@pytest.mark.parametrize("value", [None, True, 0, -1, 1.5, "", "x", [], [0], [1, 1], ["x"], {}, {"x": 1}])
def test_what_the_schema_refuses_of_a_stream_is_refused(value):
    import jsonschema

    validator = jsonschema.Draft202012Validator(schema())
    raw = document(*POINTS, saves=[{"value": "run", "file_path": "run.safetensors"}])
    for path in (path for path in places(raw) if path[:2] == ("steps", "record")):
        changed = json.loads(json.dumps(raw))
        at(changed, path[:-1])[path[-1]] = value
        if not validator.is_valid(changed):
            with pytest.raises(DocumentError):
                load_raw(changed)


def test_the_schema_has_points_as_closed_objects_and_takes_sweeps_in_them():
    import jsonschema

    made = schema()
    validator = jsonschema.Draft202012Validator(made)
    assert made["$defs"]["PointEntry"]["additionalProperties"] is False
    assert made["$defs"]["Stream"]["additionalProperties"] is False
    for points in (POINTS, [{**point(), "layers": {"sweep": [0, [1, 2]]}, "position": {"sweep": ["prompt[-1]", "generated[*]"]}}]):
        assert [error.message for error in validator.iter_errors(document(*points))] == []
