"""Extraction specs: what is read, what is refused and where, and what is written back."""

import copy
import dataclasses
import json
import warnings
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from test_mutated_documents import at, places

from causalab_mini.errors import InputError
from causalab_mini.model.components import COMPONENTS
from causalab_mini.probing.spec import (
    ExecutionMode,
    ExtractionPoint,
    InterventionMode,
    InterventionPolicy,
    OnTimeout,
    Overflow,
    PositionKind,
    PositionSelector,
    ProbeKind,
    ProbeSpec,
    SpecValidationError,
    TensorType,
    Until,
    components_of,
    extraction_point_to_dict,
    load_yaml_file,
    parse_dict,
    parse_position,
    parse_yaml,
    probe_spec_to_dict,
    to_yaml,
    verify_point,
)
from causalab_mini.probing.spec.tree import MAX_BYTES

pytestmark = pytest.mark.plain

SPECS = Path(__file__).resolve().parent.parent / "documents" / "specs"
MINIMAL = {
    "name": "a",
    "layers": 2,
    "tensor_type": "residual_stream",
    "position": "prompt[-1]",
    "probe_type": "linear_probe",
    "probe_kind": "single_shot",
}
RUN = {**MINIMAL, "position": "generated[*]", "probe_kind": "trajectory"}
ASYNC = {**RUN, "execution_mode": "async"}
SIGNAL = {"mode": "block_until_signal", "timeout_ms": 50}


def spec_of(*points):
    return {"version": "1", "extraction_points": [copy.deepcopy(point) for point in points]}


def refusals(data):
    """Returns what is wrong with a spec: path, expected, got, hint."""
    with pytest.raises(SpecValidationError) as caught:
        parse_dict(data)
    return [(issue.path, issue.expected, issue.got, issue.hint) for issue in caught.value.issues]


# the pages that describe specs


def test_the_snippet_on_how_selectors_are_evaluated_runs():
    prompt_len = 10
    last_prompt = parse_position("prompt[-1]")
    assert last_prompt.kind is PositionKind.PROMPT_INDEX
    assert last_prompt.matches(token_index=9, is_generated=False, prompt_len=prompt_len)
    next_token = parse_position("prompt[-1]+1")
    assert next_token.resolve_absolute(prompt_len) == 10
    assert next_token.matches(token_index=10, is_generated=True, prompt_len=prompt_len, generated_index=0)
    window = parse_position("generated[2:5]")
    matched = [g for g in range(8) if window.matches(prompt_len + g, True, prompt_len, generated_index=g)]
    assert matched == [2, 3, 4]
    assert window.is_continuous
    last_generated = parse_position("generated[-1]")
    assert not last_generated.matches(12, True, prompt_len, generated_index=2)
    assert last_generated.matches(12, True, prompt_len, generated_index=2, num_generated_total=3)


SEED_SPECS = {
    "minimal": """
version: "1"
extraction_points:
  - name: last_prompt_token_probe
    layers: 12
    tensor_type: residual_stream
    position: "prompt[-1]"
    probe_type: linear_probe
    probe_kind: single_shot
    execution_mode: inline
""",
    "trajectory": """
version: "1"
extraction_points:
  - name: generation_trajectory
    layers: [4, 8, 12]
    tensor_type: mlp_out
    position: "generated[*]"
    stride: 2               # equivalent alias: every_n: 2
    until: generation_end
    probe_type: trajectory_probe
    probe_kind: trajectory
    execution_mode: async
    queue_depth: 8
""",
    "offset": """
version: "1"
extraction_points:
  - name: read_position_at_next_token
    layers: 6
    tensor_type: attn_out
    position: "prompt[-1]+1"
    probe_type: dual_position_probe
    probe_kind: single_shot
    execution_mode: inline
""",
    "window": """
version: "1"
extraction_points:
  - name: mid_generation_window
    layers: 20
    tensor_type: kv
    position: "generated[5:20]"
    probe_type: trajectory_probe
    probe_kind: trajectory
    execution_mode: inline
""",
}


def test_the_snippet_on_loading_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("probes.yaml").write_text(SEED_SPECS["minimal"])
    spec = load_yaml_file("probes.yaml")
    assert [(point.name, str(point.tensor_type), point.layers) for point in spec] == [("last_prompt_token_probe", "residual_stream", (12,))]
    assert spec.get("last_prompt_token_probe") is next(iter(spec))
    assert spec.get("another") is None
    assert (spec.names, len(spec), spec.version) == (("last_prompt_token_probe",), 1, "1")


@pytest.mark.parametrize("name", SEED_SPECS)
def test_the_specs_of_the_page_are_read_and_written_back(name):
    original_dict = yaml.safe_load(SEED_SPECS[name])
    spec = parse_dict(original_dict)
    assert spec == parse_yaml(SEED_SPECS[name]) == parse_yaml(to_yaml(spec)) == parse_yaml(json.dumps(original_dict))
    assert parse_dict(probe_spec_to_dict(spec)) == spec
    expected = {key: value for key, value in original_dict["extraction_points"][0].items() if (key, value) != ("execution_mode", "inline")}
    assert probe_spec_to_dict(spec) == {"version": "1", "extraction_points": [expected]}


def test_the_snippet_on_points_built_by_hand_runs():
    point = ExtractionPoint(
        name="generation_trajectory",
        layers=(4, 8, 12),
        tensor_type=TensorType.MLP_OUT,
        position=parse_position("generated[*]"),
        stride=2,
        until=None,
        probe_type="trajectory_probe",
        probe_kind=ProbeKind.TRAJECTORY,
        execution_mode=ExecutionMode.ASYNC,
        queue_depth=8,
    )
    assert point.matches(token_index=10, is_generated=True, prompt_len=10, generated_index=0)
    assert not point.matches(token_index=11, is_generated=True, prompt_len=10, generated_index=1)
    assert point.matches(token_index=12, is_generated=True, prompt_len=10, generated_index=2)
    assert not point.matches(token_index=3, is_generated=False, prompt_len=10)
    verify_point(point)
    assert parse_dict(spec_of(extraction_point_to_dict(point))).get("generation_trajectory") == point


# what is read


@pytest.mark.parametrize("file", sorted(SPECS.iterdir()), ids=lambda file: file.stem)
def test_the_specs_that_ship_are_valid_and_fit_the_bundled_model(file):
    spec = load_yaml_file(file)
    assert len(spec) >= 1
    assert all(layer < 4 for point in spec for layer in point.layers)
    assert parse_yaml(to_yaml(spec)) == spec


def test_the_specs_that_ship_are_of_four_kinds():
    spec = {file.stem: load_yaml_file(file) for file in SPECS.iterdir()}
    assert {name: [str(point.position) for point in points] for name, points in spec.items()} == {
        "single_token": ["prompt[-1]"],
        "continuous_trajectory": ["generated[*]"],
        "offset": ["prompt[-1]+1"],
        "fixed_window": ["generated[5:20]", "generated[5:20]"],
    }


def test_every_key_is_read():
    more = {
        "layers": [3, 1],
        "stride": 3,
        "until": "fixed_count",
        "count": 7,
        "probe_args": {"threshold": 0.5, "names": ["x", None], "deep": {"y": [1, {"z": True}]}},
        "execution_mode": "async",
        "queue_depth": 8,
        "overflow": "drop_oldest",
        "intervention": {"mode": "reject", "on_timeout": "continue"},
    }
    (point,) = parse_dict(spec_of({**RUN, **more}))
    assert point == ExtractionPoint(
        name="a",
        layers=(3, 1),
        tensor_type=TensorType.RESIDUAL_STREAM,
        position=parse_position("generated[*]"),
        probe_type="linear_probe",
        probe_kind=ProbeKind.TRAJECTORY,
        stride=3,
        until=Until.FIXED_COUNT,
        count=7,
        probe_args=more["probe_args"],
        execution_mode=ExecutionMode.ASYNC,
        queue_depth=8,
        overflow=Overflow.DROP_OLDEST,
        intervention=InterventionPolicy(),
    )
    assert point.probe_kwargs == more["probe_args"]
    (signal,) = parse_dict(spec_of({**RUN, "until": "stop_token", "token": ".", "intervention": {**SIGNAL, "on_timeout": "abort"}}))
    assert (signal.until, signal.token) == (Until.STOP_TOKEN, ".")
    assert signal.intervention == InterventionPolicy(InterventionMode.BLOCK_UNTIL_SIGNAL, 50, OnTimeout.ABORT)


def test_a_point_is_immutable_and_can_be_a_key():
    (point,) = parse_dict(spec_of({**RUN, "probe_args": {"x": [1]}}))
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.name = "b"
    with pytest.raises(TypeError, match="immutable"):
        point.probe_args["x"] = 2
    point.probe_kwargs["x"].append(2)
    assert point.probe_kwargs == {"x": [1]}
    assert {point: 1}[parse_dict(spec_of({**RUN, "probe_args": {"x": [1]}})).get("a")] == 1
    given = {"x": [1]}
    assert dataclasses.replace(point, probe_args=given).probe_kwargs is not given


def test_data_that_was_given_is_neither_changed_nor_kept():
    given = spec_of({**MINIMAL, "probe_args": {"x": [1]}})
    before = copy.deepcopy(given)
    spec = parse_dict(given)
    assert given == before
    given["extraction_points"][0]["probe_args"]["x"].append(2)
    assert spec.get("a").probe_kwargs == {"x": [1]}


def test_a_tensor_type_is_a_short_name_or_any_component():
    assert {word.value for word in TensorType} == {*COMPONENTS, "residual_stream", "attn_out", "mlp_out", "kv", "final_norm"}
    short = {word: components_of(TensorType(word)) for word in ("residual_stream", "attn_out", "mlp_out", "kv", "final_norm")}
    assert short == {
        "residual_stream": ("block_output",),
        "attn_out": ("attention_output",),
        "mlp_out": ("mlp_output",),
        "kv": ("attention_key", "attention_value"),
        "final_norm": ("ln_final",),
    }
    assert all(components_of(TensorType(name)) == (name,) for name in COMPONENTS)
    assert all(TensorType(name).per_layer == component.per_layer for name, component in COMPONENTS.items())


@pytest.mark.parametrize("tensor", TensorType)
def test_layers_may_be_left_out_where_the_tensor_belongs_to_the_whole_model(tensor):
    point = {**{key: value for key, value in MINIMAL.items() if key != "layers"}, "tensor_type": tensor.value}
    assert parse_dict(spec_of({**point, "layers": [0]})).get("a").layers == (0,)
    if tensor.per_layer:
        (refusal,) = refusals(spec_of(point))
        assert refusal == ("a.layers", f"a layer or a list of layers (every layer has its own `{tensor}`)", "none", "")
    else:
        assert parse_dict(spec_of(point)).get("a").layers == ()


def test_older_names_are_taken_with_one_warning_and_written_new():
    older = {{"layers": "layer", "tensor_type": "tensor"}.get(key, key): value for key, value in MINIMAL.items()}
    with pytest.warns(DeprecationWarning, match="`layer` of `a`, `tensor` of `a`, `layer` of `b`, `tensor` of `b`") as said:
        spec = parse_dict(spec_of(older, {**older, "name": "b"}))
    assert len(said) == 1
    assert said[0].filename == __file__
    assert probe_spec_to_dict(spec) == spec_of(MINIMAL, {**MINIMAL, "name": "b"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert parse_dict(spec_of({**RUN, "every_n": 2})) == parse_dict(spec_of({**RUN, "stride": 2}))


def test_the_version_may_be_left_out():
    assert parse_dict({"extraction_points": [MINIMAL]}) == parse_dict(spec_of(MINIMAL))


# what is refused

NO = "add `execution_mode: async`, or take `{}` out"
REFUSED = {
    "async and single_shot": (
        {**MINIMAL, "execution_mode": "async"},
        "execution_mode",
        "`inline` beside `probe_kind: single_shot` (it has no state to carry along behind the generation)",
        '`"async"`',
        "take `inline`, or a `trajectory` probe",
    ),
    "queue_depth inline": (
        {**RUN, "queue_depth": 4},
        "queue_depth",
        "no `queue_depth` without `execution_mode: async` (an inline point has no queue)",
        "`4`",
        NO.format("queue_depth"),
    ),
    "overflow inline": (
        {**RUN, "overflow": "block"},
        "overflow",
        "no `overflow` without `execution_mode: async` (an inline point has no queue)",
        '`"block"`',
        NO.format("overflow"),
    ),
    **{
        f"{key} at {position}": (
            {**MINIMAL, "position": position, key: value},
            key,
            f"no `{key.replace('every_n', 'stride')}` beside a position that is one token (`{position}`)",
            f"`{json.dumps(value)}`",
            f"take `{key.replace('every_n', 'stride')}` out, or take a run such as `generated[*]`",
        )
        for key, value in {"stride": 2, "every_n": 1, "until": "generation_end", "count": 3, "token": "."}.items()
        for position in (5, "prompt[0]", "generated[-1]", "prompt[-1]+1")
    },
    "async that waits": (
        {**ASYNC, "intervention": SIGNAL},
        "intervention.mode",
        "`reject` beside `execution_mode: async` (an async point never holds up the generation)",
        '`"block_until_signal"`',
        "take `reject`, or `execution_mode: inline`",
    ),
    "waiting without a limit": (
        {**RUN, "intervention": {"mode": "block_until_signal"}},
        "intervention.timeout_ms",
        "milliseconds, at least 1 (`block_until_signal` needs a limit)",
        "none",
        "",
    ),
    "a limit of nothing": (
        {**RUN, "intervention": {**SIGNAL, "timeout_ms": 0}},
        "intervention.timeout_ms",
        "a number at least 1",
        "`0`",
        "",
    ),
    "a limit under reject": (
        {**RUN, "intervention": {"timeout_ms": 5}},
        "intervention.timeout_ms",
        "no `timeout_ms` under `mode: reject` (nothing is waited for)",
        "`5`",
        "add `mode: block_until_signal`, or take `timeout_ms` out",
    ),
    "a way out under reject": (
        {**RUN, "intervention": {"mode": "reject", "on_timeout": "abort"}},
        "intervention.on_timeout",
        "no `on_timeout` under `mode: reject` (nothing is waited for)",
        '`"abort"`',
        "add `mode: block_until_signal`, or take `on_timeout` out",
    ),
    "a count that is not there": ({**RUN, "until": "fixed_count"}, "count", "a value (`until: fixed_count` needs it)", "none", ""),
    "a token that is not there": ({**RUN, "until": "stop_token"}, "token", "a value (`until: stop_token` needs it)", "none", ""),
    "a count of another end": (
        {**RUN, "until": "generation_end", "count": 3},
        "count",
        "no `count` without `until: fixed_count`",
        "`3`",
        "add `until: fixed_count`, or take `count` out",
    ),
    "a token of no end": (
        {**RUN, "token": "."},
        "token",
        "no `token` without `until: stop_token`",
        '`"."`',
        "add `until: stop_token`, or take `token` out",
    ),
    "no layer": ({**MINIMAL, "layers": []}, "layers", "a layer or a list of layers (integers from 0)", "an empty list", ""),
    "a negative layer": (
        {**MINIMAL, "layers": [1, -1]},
        "layers",
        "a layer or a list of layers (integers from 0)",
        "`[1, -1]`",
        "layers are counted from the first, which is 0",
    ),
    "half a layer": ({**MINIMAL, "layers": 1.0}, "layers", "a layer or a list of layers (integers from 0)", "`1.0`", ""),
    "a layer in quotes": ({**MINIMAL, "layers": "1"}, "layers", "a layer or a list of layers (integers from 0)", '`"1"`', ""),
    "true as a layer": ({**MINIMAL, "layers": [True]}, "layers", "a layer or a list of layers (integers from 0)", "`[true]`", ""),
    "a layer twice": ({**MINIMAL, "layers": [1, 2, 1]}, "layers", "each layer once", "`[1, 2, 1]`", ""),
    "a stride of nothing": ({**RUN, "stride": 0}, "stride", "a number at least 1", "`0`", ""),
    "an alias of nothing": ({**RUN, "every_n": 0}, "every_n", "a number at least 1", "`0`", ""),
    "half a stride": ({**RUN, "stride": 1.5}, "stride", "an integer", "`1.5`", ""),
    "true as a stride": ({**RUN, "stride": True}, "stride", "an integer", "`true`", ""),
    "a queue of nothing": ({**ASYNC, "queue_depth": 0}, "queue_depth", "a number at least 1", "`0`", ""),
    "an empty probe_type": ({**MINIMAL, "probe_type": ""}, "probe_type", "a text", "an empty one", ""),
    "a blank probe_type": ({**MINIMAL, "probe_type": " "}, "probe_type", "a text", "an empty one", ""),
    "arguments in a list": ({**MINIMAL, "probe_args": [1]}, "probe_args", "an object", "`[1]`", ""),
    "nothing as a value": ({**MINIMAL, "queue_depth": None}, "queue_depth", "a value", "`null`", "leave the key out for its default"),
    "nothing as a needed value": ({**MINIMAL, "layers": None}, "layers", "a value", "`null`", ""),
    "nothing inside": (
        {**RUN, "intervention": {"mode": None}},
        "intervention.mode",
        "a value",
        "`null`",
        "leave the key out for its default",
    ),
    "a name of another tool": (
        {**MINIMAL, "tensor_type": "resid_post"},
        "tensor_type",
        "`residual_stream`, `attn_out`, `mlp_out`, `kv`, `final_norm`, or a component such as `block_input`",
        '`"resid_post"`',
        "did you mean `block_output`?",
    ),
    "a misspelled kind": (
        {**MINIMAL, "probe_kind": "single-shot"},
        "probe_kind",
        "`single_shot`, `trajectory`",
        '`"single-shot"`',
        "did you mean `single_shot`?",
    ),
    "both names": (
        {**RUN, "stride": 2, "every_n": 2},
        "every_n",
        "one of `stride` and `every_n`, which are the same",
        "both",
        "",
    ),
    "an unknown key inside": (
        {**RUN, "intervention": {**SIGNAL, "timeout": 3}},
        "intervention.timeout",
        "a known key (`mode`, `timeout_ms`, `on_timeout`)",
        "the unknown key `timeout`",
        "did you mean `timeout_ms`?",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_point_that_breaks_a_rule_is_refused_with_the_reason(case):
    point, path, expected, got, hint = REFUSED[case]
    assert refusals(spec_of(point)) == [(f"a.{path}", expected, got, hint)]


@pytest.mark.parametrize(("older", "newer"), [("layer", "layers"), ("tensor", "tensor_type")])
def test_an_older_name_beside_the_new_one_is_refused(older, newer):
    (refusal,) = refusals(spec_of({**MINIMAL, older: MINIMAL[newer]}))
    assert refusal == (f"a.{older}", f"one of `{newer}` and `{older}`, which are the same", "both", "")


@pytest.mark.parametrize("key", ["name", "tensor_type", "position", "probe_type", "probe_kind"])
def test_a_key_that_is_needed_is_missed(key):
    label = "extraction_points[0]" if key == "name" else "a"
    (refusal,) = refusals(spec_of({name: value for name, value in MINIMAL.items() if name != key}))
    assert refusal == (f"{label}.{key}", "a value (it is required)", "none", "")


@pytest.mark.parametrize(
    ("name", "got"), [("", "an empty one"), (" ", "an empty one"), ("a\nb", '`"a\\nb"`'), ("x" * 101, "101"), (5, "`5`")]
)
def test_a_name_is_a_printable_text(name, got):
    (refusal,) = refusals(spec_of({**MINIMAL, "name": name}))
    assert (refusal[0], refusal[2]) == ("extraction_points[0].name", got)


WHOLE = {
    "no object": ([MINIMAL], ("", "an object with `extraction_points`", "the points go under `extraction_points`")),
    "nothing": (None, ("", "an object with `extraction_points`", "")),
    "no points": ({"version": "1"}, ("extraction_points", "a value (it is required)", "")),
    "an empty list": ({"extraction_points": []}, ("extraction_points", "a list of at least one extraction point", "")),
    "points by name": ({"extraction_points": {"a": MINIMAL}}, ("extraction_points", "a list of at least one extraction point", "")),
    "a text as a point": (spec_of("a"), ("extraction_points[0]", "an object (an extraction point)", "")),
    "a number as version": (spec_of(MINIMAL) | {"version": 1}, ("version", 'the text `"1"`', 'write `version: "1"`, in quotes')),
    "true as version": (spec_of(MINIMAL) | {"version": True}, ("version", 'the text `"1"`', "")),
    "another version": (
        spec_of(MINIMAL) | {"version": "2"},
        ("version", 'the text `"1"`', "this release reads version 1; a newer one may be needed"),
    ),
    "an unknown key": (
        spec_of(MINIMAL) | {"extraction_point": []},
        ("extraction_point", "a known key (`version`, `extraction_points`)", "did you mean `extraction_points`?"),
    ),
    "a point's key": (
        spec_of(MINIMAL) | {"layers": 1},
        ("layers", "a known key (`version`, `extraction_points`)", "a point's key goes under `extraction_points`"),
    ),
    "a name twice": (spec_of(MINIMAL, RUN), ("a.name", "each name once", "")),
}


@pytest.mark.parametrize("case", WHOLE)
def test_a_whole_that_is_no_spec_is_refused(case):
    data, said = WHOLE[case]
    ((path, expected, _, hint),) = refusals(data)
    assert (path, expected, hint) == said


def test_everything_that_is_wrong_comes_at_once_with_its_place(tmp_path):
    file = tmp_path / "probes.yaml"
    file.write_text(
        "version: 1\n"
        "extraction_points:\n"
        "  - name: first\n"
        "    layers: [0, 012]\n"
        "    tensor_type: mlp_out\n"
        "    position: prompt[-1] + 1\n"
        "    probe_type: t\n"
        "    probe_kind: single_shot\n"
        "    execution_mode: async\n"
        "  - name: second\n"
        "    tensor_type: mlp_out\n"
        "    position: generated[*]\n"
        "    until: fixed_count\n"
        "    probe_type: t\n"
        "    probe_knd: trajectory\n"
    )
    with pytest.raises(SpecValidationError) as caught:
        load_yaml_file(file)
    error = caught.value
    found = [(issue.file, issue.line, issue.column, issue.point, issue.field, issue.path) for issue in error.issues]
    assert found == [
        (str(file), 1, 10, "", "version", "version"),
        (str(file), 4, 17, "first", "layers", "first.layers[1]"),
        (str(file), 6, 15, "first", "position", "first.position"),
        (str(file), 9, 21, "first", "execution_mode", "first.execution_mode"),
        (str(file), 10, 5, "second", "probe_kind", "second.probe_kind"),
        (str(file), 10, 5, "second", "layers", "second.layers"),
        (str(file), 10, 5, "second", "count", "second.count"),
        (str(file), 15, 5, "second", "probe_knd", "second.probe_knd"),
    ]
    lines = error.text().split("\n")
    assert lines[:2] == [
        f'error: {file}:1: version: expected the text `"1"`, got `1`',
        'hint: write `version: "1"`, in quotes',
    ]
    assert (isinstance(error, InputError), error.exit_code, error.file) == (True, 2, str(file))
    assert error.as_data()["errors"][1] == {
        "code": "ambiguous",
        "file": str(file),
        "path": "first.layers[1]",
        "expected": "a number as JSON writes it, or text in quotes",
        "got": "`012` (readers of YAML differ on it)",
        "hint": 'as text it is `"012"`',
        "line": 4,
        "column": 17,
        "point": "first",
        "field": "layers",
    }


def test_a_text_without_a_file_still_has_lines():
    with pytest.raises(SpecValidationError, match=r"^error: line 2: layers: expected a known key"):
        parse_yaml("version: '1'\nlayers: 3\nextraction_points: []")


@pytest.mark.parametrize(
    "point",
    [
        {"execution_mode": ExecutionMode.ASYNC, "probe_kind": ProbeKind.SINGLE_SHOT},
        {"queue_depth": 3},
        {"layers": ()},
        {"layers": (-1,)},
        {"name": ""},
        {"position": parse_position("prompt[-1]"), "stride": 2},
        {"position": PositionSelector(PositionKind.GENERATED_SLICE, 5, 2)},
        {"until": Until.FIXED_COUNT},
        {"probe_args": {"x": float("nan")}},
        {"probe_args": {"x": object()}},
        {"intervention": InterventionPolicy(timeout_ms=3)},
        {"execution_mode": ExecutionMode.ASYNC, "intervention": InterventionPolicy(InterventionMode.BLOCK_UNTIL_SIGNAL, 3)},
    ],
)
def test_a_point_built_by_hand_is_judged_by_the_same_rules(point):
    (good,) = parse_dict(spec_of(RUN))
    verify_point(good)
    with pytest.raises(SpecValidationError):
        verify_point(dataclasses.replace(good, **point))


# texts

TEXTS = {
    "a key twice": ("version: '1'\nversion: '1'\n", 2, 1, "each key once", "`version` again"),
    "a key twice in quotes": ('{"a": 1, "\\u0061": 2}', 1, 10, "each key once", "`a` again"),
    "yes": ("version: yes", 1, 10, "`true`, `false` or text in quotes", "`yes` (readers of YAML differ on it)"),
    "Off": ("version: Off", 1, 10, "`true`, `false` or text in quotes", "`Off` (readers of YAML differ on it)"),
    "True": ("version: True", 1, 10, "`true`, `false` or text in quotes", "`True` (readers of YAML differ on it)"),
    "on as a key": ("on: '1'", 1, 1, "a key in quotes", "`on` (readers of YAML differ on it)"),
    "true as a key": ("true: '1'", 1, 1, "a key that is text", "`true`"),
    "a number as a key": ("1: '1'", 1, 1, "a key that is text", "`1`"),
    "a list as a key": ("? [a]\n: 1", 1, 3, "a key that is text", "a list"),
    "a mapping as a key": ("? {a: 1}\n: 1", 1, 3, "a key that is text", "a mapping"),
    "a wavy null": ("version: ~", 1, 10, "`null` or text in quotes", "`~` (readers of YAML differ on it)"),
    "Null": ("version: Null", 1, 10, "`null` or text in quotes", "`Null` (readers of YAML differ on it)"),
    "nothing": ("version:\n", 1, 9, "a value", "nothing"),
    "octal": ("version: 012", 1, 10, "a number as JSON writes it, or text in quotes", "`012` (readers of YAML differ on it)"),
    "octal no more": ("version: 08", 1, 10, "a number as JSON writes it, or text in quotes", "`08` (readers of YAML differ on it)"),
    "octal of 1.2": ("version: 0o17", 1, 10, "a number as JSON writes it, or text in quotes", "`0o17` (readers of YAML differ on it)"),
    "hexadecimal": ("version: 0x1F", 1, 10, "a number as JSON writes it, or text in quotes", "`0x1F` (readers of YAML differ on it)"),
    "binary": ("version: 0b11", 1, 10, "a number as JSON writes it, or text in quotes", "`0b11` (readers of YAML differ on it)"),
    "underscores": ("version: 1_000", 1, 10, "a number as JSON writes it, or text in quotes", "`1_000` (readers of YAML differ on it)"),
    "sexagesimal": ("version: 1:30", 1, 10, "a number as JSON writes it, or text in quotes", "`1:30` (readers of YAML differ on it)"),
    "sexagesimal float": (
        "version: 1:30.5",
        1,
        10,
        "a number as JSON writes it, or text in quotes",
        "`1:30.5` (readers of YAML differ on it)",
    ),
    "a plus": ("version: +1", 1, 10, "a number as JSON writes it, or text in quotes", "`+1` (readers of YAML differ on it)"),
    "no digit before": ("version: .5", 1, 10, "a number as JSON writes it, or text in quotes", "`.5` (readers of YAML differ on it)"),
    "no digit behind": ("version: 1.", 1, 10, "a number as JSON writes it, or text in quotes", "`1.` (readers of YAML differ on it)"),
    "an exponent behind a dot": (
        "version: 1.e5",
        1,
        10,
        "a number as JSON writes it, or text in quotes",
        "`1.e5` (readers of YAML differ on it)",
    ),
    "infinity": ("version: -.inf", 1, 10, "a finite number", "`-.inf`"),
    "not a number": ("version: .NaN", 1, 10, "a finite number", "`.NaN`"),
    "too large a number": ("version: 1e999", 1, 10, "a finite number", "`1e999`"),
    "too long a number": ("version: " + "9" * 401, 1, 10, "a number of at most 400 digits", "401 characters"),
    "a date": ("version: 2026-01-31", 1, 10, "text in quotes", "`2026-01-31` (a date to some readers of YAML)"),
    "a time": ("version: 2026-01-31 10:00:00Z", 1, 10, "text in quotes", "`2026-01-31 10:00:00Z` (a date to some readers of YAML)"),
    "a merge": ("version: '1'\n<<: {a: 1}", 2, 1, "keys that are written out", "`<<` (a merge)"),
    "an equals sign": ("version: =", 1, 10, "a number as JSON writes it, or text in quotes", "`=` (readers of YAML differ on it)"),
    "a tag": ("version: !x 1", 1, 10, "a value without a tag", "`!x`"),
    "a tag that runs code": ("version: !!python/name:os.system ''", 1, 10, "a value without a tag", "`!!python/name:os.system`"),
    "a tag on a mapping": ("version: !!set {a: 1}", 1, 10, "a value without a tag", "`!!set`"),
    "a tag on a key": ("!!str version: '1'", 1, 1, "a value without a tag", "`!!str`"),
    "half a character": ('version: "\\ud83d"', 1, 10, "text", "half a character in '\\ud83d'"),
    "half a character as it is": ("a: b\nversion: \ud83d", 2, 10, "text", "half a character in '\\ud83d'"),
    "a control character": ("a: b\nversion: \x01", 2, 10, "printable characters", "the character `U+0001`"),
    "no character": ('version: "\\UFFFFFFFF"', 1, 13, "YAML (a number or an escape that is out of range)", None),
    "no text": ("", 1, 1, "an extraction spec", "an empty text"),
    "a comment alone": ("# nothing", 1, 1, "an extraction spec", "an empty text"),
    "two documents": ("version: '1'\n---\nversion: '1'", 2, 1, "one document", "a second one"),
    "a tab": ("version:\n\t- 1", 2, 1, "YAML (found character '\\t' that cannot start any token)", "a tab"),
    "two colons": ("version: 1: 2", 1, 11, "YAML (mapping values are not allowed here)", "`: 2`"),
    "a bracket in braces": ("a: {b: prompt[-1]}", 1, 14, "YAML (expected ',' or '}', but got '[')", "`[-1]}`"),
    "an open bracket": ("a: [1, 2", 1, 9, "YAML (expected ',' or ']', but got '<stream end>')", "the end of the line"),
    "an open quote": ("a: 'b", 1, 6, "YAML (found unexpected end of stream)", "the end of the line"),
    "an undefined alias": ("version: *x", 1, 10, "an alias of something before it", "`*x` that no anchor before it has"),
    "an alias of what it is in": ("version: &x [*x]", 1, 14, "an alias of something before it", "`*x` inside what it stands for"),
    "an anchor twice": ("a: &x 1\nb: &x 2", 2, 4, "each anchor once", "`&x` again"),
    "too many aliases": ("a: [&x 1, " + "*x, " * 101 + "]", 1, 411, "at most 100 aliases", "more"),
    "too deep": ("[" * 101 + "]" * 101, 1, 101, "at most 100 levels", "level 101"),
    "far too deep": ("[" * 100_000, 1, 101, "at most 100 levels", "level 101"),
    "too deep in blocks": ("\n".join(" " * n + "- " for n in range(200)), 101, 101, "at most 100 levels", "level 101"),
}


@pytest.mark.parametrize("case", TEXTS)
def test_a_text_that_two_readers_could_understand_differently_is_refused_with_its_place(case):
    text, line, column, expected, got = TEXTS[case]
    with pytest.raises(SpecValidationError) as caught:
        parse_yaml(text)
    issue = next(issue for issue in caught.value.issues if issue.code not in ("missing", "unknown_key", "version"))
    assert (issue.line, issue.column, issue.expected) == (line, column, expected)
    assert got is None or issue.got == got


def test_a_hint_says_what_to_write_instead():
    def hint(text):
        with pytest.raises(SpecValidationError) as caught:
            parse_yaml(text)
        return next(issue.hint for issue in caught.value.issues if issue.code not in ("missing", "version"))

    assert hint("on: 1") == 'write `"on"`'
    assert hint("version: yes") == 'write `true` or `"yes"`'
    assert hint("version: ~") == 'write `null` or `"~"`'
    assert hint("version: 1:30") == 'as text it is `"1:30"`'
    assert hint("version: !x 1") == "take the tag out"
    assert hint("a: {b: prompt[-1]}") == "in `{…}` and `[…]`, a selector is put in quotes"
    assert hint("a:\n\t- 1") == "YAML is indented with spaces"
    assert hint("a: *x") == "text that begins with `*` is put in quotes"


def test_what_grows_by_aliases_is_refused():
    laughs = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
        f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    )
    with pytest.raises(SpecValidationError, match="expected at most 100,000 values, got more"):
        parse_yaml(laughs)
    shared = [1]
    for _ in range(90):
        shared = [shared, shared]
    with pytest.raises(SpecValidationError, match="100,000 values"):
        parse_dict(spec_of({**MINIMAL, "probe_args": {"x": shared}}))
    inside_itself = []
    inside_itself.append(inside_itself)
    with pytest.raises(SpecValidationError, match="100 levels"):
        parse_dict({"extraction_points": inside_itself})


def test_a_few_aliases_are_fine_and_what_is_wrong_in_them_is_found_where_it_stands():
    text = to_yaml(parse_dict(spec_of({**MINIMAL, "layers": [0, 1]}, {**RUN, "name": "b", "layers": [0, 1]})))
    aliased = text.replace("[0, 1]", "&all [0, 1]", 1).replace("layers: [0, 1]", "layers: *all")
    assert aliased != text
    assert parse_yaml(aliased) == parse_yaml(text)
    with pytest.raises(SpecValidationError) as caught:
        parse_yaml(aliased.replace("[0, 1]", "[0, x]"))
    assert [(issue.path, issue.line) for issue in caught.value.issues] == [("a.layers", 4), ("b.layers", 10)]


def test_numbers_and_words_are_those_of_json():
    text = to_yaml(parse_dict(spec_of({**MINIMAL, "probe_args": {"x": 0}}))).replace(
        "x: 0", "x: [1e5, -0.5, 0, -7, true, false, null, 1e-3, n, y, e5, 1.2.3, 1-2, '012', \"\\ud83d\\ude00\"]"
    )
    expected = [1e5, -0.5, 0, -7, True, False, None, 1e-3, "n", "y", "e5", "1.2.3", "1-2", "012", "\U0001f600"]
    found = parse_yaml(text).get("a").probe_kwargs["x"]
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected]


@pytest.mark.parametrize(
    "value",
    [
        "1e5",
        "0o17",
        "yes",
        "n",
        "~",
        "",
        " a",
        "2026-01-31",
        "a: b",
        "# c",
        "\x00\x85\u2028\ufeff",
        "null",
        "é",
        "\n",
        "1:30",
        "-",
        "0x1",
        "=",
        "<<",
        "*a",
        "x" * 300,
    ],
)
def test_text_comes_back_from_yaml_as_text(value):
    spec = parse_dict(spec_of({**RUN, "until": "stop_token", "token": value or "-", "probe_args": {"x": value, value or "k": [value]}}))
    assert parse_yaml(to_yaml(spec)) == spec


def test_a_json_file_is_read_by_the_rules_of_json(tmp_path):
    file = tmp_path / "probes.json"
    file.write_text(json.dumps(spec_of(MINIMAL), indent="\t"))
    assert load_yaml_file(file) == parse_dict(spec_of(MINIMAL))
    file.write_text('{"version": "1",\n\t"extraction_points": [\n\t{"name": "a, \\"b\\"", "layers": [0, {"x": []}], "probe_knd": ["}"]}]}')
    with pytest.raises(SpecValidationError) as caught:
        load_yaml_file(file)
    found = {issue.path.rpartition(".")[2]: (issue.line, issue.column) for issue in caught.value.issues}
    assert found["layers"] == (3, 33)
    assert found["probe_knd"] == (3, 49)
    assert found["position"] == (3, 2)
    file.write_text('{"version": "1", // no\n}')
    with pytest.raises(SpecValidationError, match="JSON"):
        load_yaml_file(file)
    file.write_text('{"version": "1", "version": "1"}')
    with pytest.raises(SpecValidationError, match="each key once"):
        load_yaml_file(file)


def test_a_file_that_can_not_be_read_is_refused(tmp_path):
    with pytest.raises(SpecValidationError, match="expected a readable file, got no such file"):
        load_yaml_file(tmp_path / "none.yaml")
    with pytest.raises(SpecValidationError, match="a readable file"):
        load_yaml_file(tmp_path)
    with pytest.raises(SpecValidationError, match="a readable file"):
        load_yaml_file("a\x00.yaml")
    file = tmp_path / "large.yaml"
    file.write_text("# " + "x" * (MAX_BYTES - 1))
    with pytest.raises(SpecValidationError, match="expected at most 1,048,576 bytes, got 1,048,577 bytes"):
        load_yaml_file(file)
    with pytest.raises(SpecValidationError, match="at most 1,048,576 bytes"):
        parse_yaml("#" + "é" * (MAX_BYTES // 2))
    file.write_bytes(b"version: '\xff'")
    with pytest.raises(SpecValidationError, match="expected UTF-8"):
        load_yaml_file(file)


@pytest.mark.parametrize(
    "value",
    [10**5000, float("inf"), b"x", (1,), {1}, object(), "\ud800", {1: 2}, {"\ud800": 1}, {None: 1}],
    ids=lambda value: type(value).__name__,
)
def test_data_that_json_has_not_is_refused(value):
    for data in (value, spec_of(value), spec_of({**MINIMAL, "layers": value}), spec_of({**MINIMAL, "probe_args": {"x": value}})):
        with pytest.raises(SpecValidationError) as caught:
            parse_dict(data)
        assert json.dumps(caught.value.as_data())


def test_what_is_wrong_everywhere_is_not_said_forever():
    with pytest.raises(SpecValidationError) as caught:
        parse_dict(spec_of(*[{"name": "a"}] * 5000))
    assert len(caught.value.issues) < 6000


# drawn

names = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1, max_size=8)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["1e5", "yes", "012", "1:30", "~"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
layers = st.integers(0, 40) | st.lists(st.integers(0, 40), min_size=1, max_size=4, unique=True)
singles = st.integers(0, 99) | st.sampled_from(["5", "prompt[0]", "prompt[-3]+2", "generated[-1]", "generated[4]-4"])
runs = st.sampled_from(["generated[*]", "generated[5:]", " generated[2:8] ", "prompt[*]", "prompt[0:4]"])
policies = st.fixed_dictionaries({}, optional={"mode": st.just("reject"), "on_timeout": st.just("continue")}) | st.fixed_dictionaries(
    {"mode": st.just("block_until_signal"), "timeout_ms": st.integers(1, 10**6)},
    optional={"on_timeout": st.sampled_from(["continue", "abort"])},
)
ends = st.one_of(
    st.just({}),
    st.just({"until": "generation_end"}),
    st.builds(lambda count: {"until": "fixed_count", "count": count}, st.integers(1, 99)),
    st.builds(lambda token: {"until": "stop_token", "token": token}, st.text(min_size=1, max_size=4)),
)


@st.composite
def points(draw):
    """Returns a valid point as data."""
    point = {
        "name": draw(names),
        "layers": draw(layers),
        "tensor_type": draw(st.sampled_from(list(TensorType))).value,
        "probe_type": draw(names),
        "probe_kind": draw(st.sampled_from(["single_shot", "trajectory"])),
        "position": draw(singles),
    }
    if draw(st.booleans()):
        point |= {"position": draw(runs)} | draw(ends) | draw(st.sampled_from([{}, {"stride": 3}, {"every_n": 1}]))
    if draw(st.booleans()):
        point["probe_args"] = draw(st.dictionaries(st.text(max_size=5), json_values, max_size=3))
    if draw(st.booleans()):
        point["intervention"] = draw(policies)
    if point["probe_kind"] == "trajectory" and point.get("intervention", {}).get("mode", "reject") == "reject" and draw(st.booleans()):
        point |= {"execution_mode": "async"} | draw(
            st.sampled_from([{}, {"queue_depth": 4}, {"overflow": "drop_newest"}, {"overflow": "block"}])
        )
    return point


specs = st.lists(points(), min_size=1, max_size=3, unique_by=lambda point: point["name"]).map(lambda found: spec_of(*found))


@given(specs)
def test_a_spec_is_the_same_after_any_round_trip(data):
    spec = parse_dict(data)
    written = probe_spec_to_dict(spec)
    assert parse_dict(written) == spec
    assert probe_spec_to_dict(parse_dict(written)) == written
    assert parse_yaml(to_yaml(spec)) == spec
    assert ProbeSpec(tuple(spec)) == spec
    assert all(hash(point) == hash(again) for point, again in zip(spec, parse_dict(written), strict=True))
    for point in spec:
        verify_point(point)


def judged(read, data):
    """Reads a spec, and checks its refusal where it is refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            spec = read(data)
        except SpecValidationError as refusal:
            error = refusal
        else:
            assert parse_dict(probe_spec_to_dict(spec)) == spec
            return
    assert error.issues
    json.dumps(error.as_data(), allow_nan=False)
    for issue in error.issues:
        assert issue.expected
        assert issue.got
        assert issue.text("f.yaml").count("\n") == bool(issue.hint)
        assert read is not parse_yaml or issue.line or issue.code == "too_large"


odd = st.one_of(
    json_values,
    st.sampled_from([-1, 10**500, float("nan"), "prompt[-1]", "async", "block_until_signal", "layer", "layers", None, True, 1.0, "\ud800"]),
)


@given(specs, st.data())
@settings(deadline=None, max_examples=200)
def test_mutated_data_is_read_or_refused_in_words(data, drawn):
    for _ in range(drawn.draw(st.integers(1, 3))):
        found = list(places(data))
        *parents, key = drawn.draw(st.sampled_from(found))
        here = at(data, parents)
        match drawn.draw(st.sampled_from(["delete", "replace", "rename", "wrap"])):
            case "delete":
                del here[key]
            case "replace":
                here[key] = drawn.draw(odd)
            case "rename" if isinstance(here, dict):
                here[drawn.draw(st.sampled_from(["layer", "tensor", "every_n", "layers", "until", "x"]))] = here.pop(key)
            case _:
                here[key] = [here[key]]
        if not list(places(data)):
            break
    judged(parse_dict, data)


YAMLS = [file.read_text(encoding="utf-8") for file in sorted(SPECS.iterdir())]
PIECES = [
    "\n",
    "  ",
    "\t",
    ":",
    "- ",
    "'",
    '"',
    "[",
    "]",
    "{",
    "}",
    "&a ",
    "*a",
    "!!x ",
    "? ",
    "| ",
    "> ",
    "%",
    "---\n",
    "...\n",
    "#",
    ",",
    "\\",
    "\\x",
    "~",
    "yes",
    "012",
    "\ud800",
    "\x00",
    "\u2028",
    "\ufeff",
    "é",
    "null",
    "1:30",
    "%YAML 1.1\n---\n",
    "layer: 1\n    ",
]


@given(st.sampled_from(YAMLS), st.data())
@settings(deadline=None, max_examples=300)
def test_mutated_yaml_is_read_or_refused_in_words(text, drawn):
    for _ in range(drawn.draw(st.integers(1, 4))):
        begin, length = drawn.draw(st.integers(0, len(text))), drawn.draw(st.integers(0, 6))
        text = text[:begin] + drawn.draw(st.sampled_from(["", *PIECES]) | st.text(max_size=3)) + text[begin + length :]
    judged(parse_yaml, text)


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=20).map("".join))
@settings(deadline=None, max_examples=300)
def test_any_text_is_read_or_refused_in_words(text):
    judged(parse_yaml, text)


# the verb


def test_validate_takes_specs_beside_documents(command, tmp_path):
    files = sorted(SPECS.iterdir())
    result = command("validate", "--no-model", *files, "bundled:patching")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[:4] == [f"ok {file}  ({len(load_yaml_file(file))} point{'s' if file.stem == 'fixed_window' else ''})" for file in files]
    assert lines[4].startswith("ok bundled:patching")
    as_json = tmp_path / "a.json"
    as_json.write_text(json.dumps(spec_of(MINIMAL)))
    assert command("validate", as_json).out == f"ok {as_json}  (1 point)\n"
    assert json.loads(command("validate", "--json", as_json).out) == [{"document": str(as_json), "valid": True, "n_points": 1}]


def test_validate_lists_what_is_wrong_with_a_spec_and_goes_on(command, tmp_path):
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(to_yaml(parse_dict(spec_of(MINIMAL))).replace("layers: 2", "layers: -1").replace("single_shot", "single"))
    result = command("validate", wrong, tmp_path / "none.yml", SPECS / "offset.yaml")
    assert result.code == 2
    assert f"error: {wrong}:4: a.layers: expected a layer or a list of layers (integers from 0), got `-1`" in result.err
    assert f'error: {wrong}:8: a.probe_kind: expected `single_shot`, `trajectory`, got `"single"`' in result.err
    assert "got no such file" in result.err
    assert result.out == f"ok {SPECS / 'offset.yaml'}  (1 point)\n"
    entries = json.loads(command("validate", "--json", wrong).out)
    assert [error["field"] for error in entries[0]["errors"]] == ["layers", "probe_kind"]


def test_validate_passes_on_what_is_said_of_older_names_and_refuses_set(command, tmp_path):
    older = tmp_path / "older.yml"
    older.write_text(to_yaml(parse_dict(spec_of(MINIMAL))).replace("layers:", "layer:"))
    result = command("validate", older)
    assert (result.code, result.out) == (0, f"ok {older}  (1 point)\n")
    assert result.err.startswith(f"warning: {older}: `layer` and `tensor` are older names")
    result = command("validate", "--set", "a=1", older)
    assert (result.code, result.out) == (2, "")
    assert "--set: expected documents" in result.err
