"""Sweeps: which points a document has, and what they are called. What is refused is in `cases/errors/sweeps.json`."""

import json
from pathlib import Path

import pytest
from test_errors import BASE, apply

from causalab_mini.cli.render import summary_table
from causalab_mini.plan.load import load_raw
from causalab_mini.plan.sweep import expand, find_axes, show_value

pytestmark = pytest.mark.plain

LAYERS = "sites/stream/layers"
POSITION = "interventions/patching/reads/source/pos"
WRITE = "interventions/patching/writes/patch/pos"


SWEEPS = {
    "a list": ({LAYERS: {"sweep": [0, 2]}}, ["layers=0", "layers=2"]),
    "a range": ({LAYERS: {"sweep": {"range": [1, 4]}}}, ["layers=1", "layers=2", "layers=3"]),
    "a range with a step": ({LAYERS: {"sweep": {"range": [0, 6, 2]}}}, ["layers=0", "layers=2", "layers=4"]),
    "a range downwards": ({LAYERS: {"sweep": {"range": [2, -1, -1]}}}, ["layers=2", "layers=1", "layers=0"]),
    "a named axis": ({LAYERS: {"sweep": [0, 1], "as": "depth"}}, ["depth=0", "depth=1"]),
    "one value": ({LAYERS: {"sweep": [3]}}, ["layers=3"]),
    "a list of one shows its element": ({LAYERS: {"sweep": [[3], [1, 2]]}}, ["layers=3", "layers=[1%2C2]"]),
    "two axes, the last fastest": (
        {LAYERS: {"sweep": [0, 1]}, POSITION: {"sweep": [-1, 0]}},
        ["layers=0,pos=-1", "layers=0,pos=0", "layers=1,pos=-1", "layers=1,pos=0"],
    ),
    "linked axes move together": (
        {POSITION: {"sweep": [-1, 0], "as": "where"}, WRITE: {"sweep": [-1, 0], "as": "where"}},
        ["where=-1", "where=0"],
    ),
    "linked axes of which the second tells the points apart": (
        {LAYERS: {"sweep": [0, 0], "as": "where"}, POSITION: {"sweep": [-1, 0], "as": "where"}},
        ["where=-1", "where=0"],
    ),
    "linked axes that tell the points apart together": (
        {LAYERS: {"sweep": [0, 0, 1, 1], "as": "where"}, POSITION: {"sweep": [-1, 0, -1, 0], "as": "where"}},
        ["where=[0%2C-1]", "where=[0%2C0]", "where=[1%2C-1]", "where=[1%2C0]"],
    ),
    "a second axis of one name": (
        {POSITION: {"sweep": [-1, 0]}, WRITE: {"sweep": [-2]}, "interventions/clean/reads/logits/pos": {"sweep": [-1]}},
        ["pos=-1,pos.2=-1,pos.3=-2", "pos=-1,pos.2=0,pos.3=-2"],
    ),
    "an unnamed axis is never linked with a named one": (
        {POSITION: {"sweep": [-1, 0]}, WRITE: {"sweep": [-1, 0], "as": "pos"}},
        ["pos.2=-1,pos=-1", "pos.2=-1,pos=0", "pos.2=0,pos=-1", "pos.2=0,pos=0"],
    ),
    "a value in a list": ({"sites/stream/layers": [0, {"sweep": [1, 2]}]}, ["layers=1", "layers=2"]),
    "an object": ({POSITION: {"sweep": [{"index": -1}, {"last": 1}]}}, ["pos=%7B%22index%22%3A-1%7D", "pos=%7B%22last%22%3A1%7D"]),
    "a text that reads as a number keeps its quotes": (
        {"steps/measure/rows/base": {"sweep": ["a/b", "1", "x y"]}, "steps/patch/where": "no"},
        ["base=a%2Fb", "base=%221%22", "base=x%20y"],
    ),
}


@pytest.mark.parametrize(("patch", "expected"), SWEEPS.values(), ids=SWEEPS.keys())
def test_a_sweep_has_these_points(patch, expected):
    assert [point.label for point in _points(apply(BASE, {"patch": patch}))] == expected


def _points(raw, count_all=None):
    axes, problems = find_axes(raw, count_all)
    assert not problems
    return list(expand(raw, axes))


def test_a_point_is_the_document_with_its_wrappers_replaced():
    raw = apply(BASE, {"patch": {LAYERS: {"sweep": [0, 3]}, POSITION: {"sweep": [-1]}}})
    before = json.dumps(raw)
    first, second = _points(raw)
    assert second.document == apply(BASE, {"patch": {LAYERS: 3, POSITION: -1}})
    assert second.values == {"layers": 3, "pos": -1}
    assert first.document["sites"]["stream"]["layers"] == 0
    assert json.dumps(raw) == before


def test_a_document_without_a_sweep_is_its_own_one_point():
    (point,) = load_raw(BASE).points
    assert (point.label, dict(point.values)) == ("", {})
    assert not load_raw(BASE).is_sweep


def test_every_point_has_its_own_digest_and_an_unswept_copy_has_the_same():
    document = load_raw(apply(BASE, {"patch": {LAYERS: {"sweep": [0, 1]}}}))
    digests = [point.digest for point in document.points]
    assert len({*digests, document.digest}) == 3
    assert digests == [load_raw(apply(BASE, {"patch": {LAYERS: layer}})).digest for layer in (0, 1)]


def test_all_is_counted_by_what_knows_the_model():
    raw = apply(BASE, {"patch": {LAYERS: {"sweep": "all"}}})
    uncounted = load_raw(raw)
    assert [point.label for point in uncounted.points] == ["layers=0"]
    assert not uncounted.counts_all
    asked = []
    counted = uncounted.counted(lambda path, document: asked.append(path) or 3)
    assert [point.label for point in counted.points] == ["layers=0", "layers=1", "layers=2"]
    assert asked == [("sites", "stream", "layers")]
    assert counted.counted(None) is counted


def test_every_head_is_a_list_of_one():
    raw = {"sites": {"s": {"component": "attention_z", "layers": 0, "heads": {"sweep": "all"}}}}
    points = _points(raw, lambda path, document: 2)
    assert [point.label for point in points] == ["heads=0", "heads=1"]
    assert [point.document["sites"]["s"]["heads"] for point in points] == [[0], [1]]


@pytest.mark.parametrize("text", ["a" * 105, "é" * 18])
def test_a_long_label_is_a_number_on_its_axis(text):
    values = [text, text + "b" * 10]
    points = _points({"steps": {"s": {"rows": {"base": {"sweep": values}}, "interventions": {"sweep": ["x"], "as": "what"}}}})
    assert len(points[0].label.encode()) <= 120
    assert points[0].label.endswith(",what=x")
    assert points[1].label == "base=#1,what=#0"


UNSAFE = '/\\:*?"<>|#,=%& \n\t\x00'


def test_a_label_is_safe_as_a_file_name_and_tells_every_value():
    values = [UNSAFE, *UNSAFE, "..", "a b", "日本語", "👩‍🚀", "~", "A", "a"]
    found = [point.label for point in _points({"a": {"sweep": values}})]
    assert len(set(found)) == len(values)
    for label in found:
        assert label.isascii()
        assert not set(label) & set(UNSAFE) - set("=%")
        assert Path(label).name == label


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([3], "3"),
        ([], "[]"),
        ("a", "a"),
        ("true", '"true"'),
        (True, "true"),
        (1.5, "1.5"),
        ({"b": 1, "a": [2]}, '{"b":1,"a":[2]}'),
        (["x"], "x"),
    ],
)
def test_a_value_is_shown_as_a_label_shows_it(value, text):
    assert show_value(value) == text


@pytest.mark.parametrize("name", ["reads", "writes", "metrics"])
def test_a_thing_may_be_named_sweep(name):
    raw = json.loads(json.dumps(BASE).replace('"source"' if name == "reads" else '"patch"', '"sweep"').replace('"follows"', '"sweep"'))
    document = load_raw(raw)
    assert "sweep" in getattr(document.points[0].spec.interventions["patching"], name)
    assert not document.is_sweep


def test_a_whole_section_may_be_swept():
    sites = BASE["sites"]
    other = {**sites, "stream": {"component": "mlp_output", "layers": 0}}
    document = load_raw(apply(BASE, {"patch": {"sites": {"sweep": [sites, other], "as": "place"}}}))
    assert [point.spec.sites["stream"].component for point in document.points] == ["block_output", "mlp_output"]


def test_a_hundred_thousand_points_are_the_limit():
    axes, problems = find_axes({"a": {"sweep": {"range": [0, 1000]}}, "b": {"sweep": {"range": [0, 100]}}})
    assert not problems
    assert [len(axis.values) for axis in axes] == [1000, 100]


@pytest.mark.parametrize("value", [["a", "b", "c", "d", "e"], [0.5, 1.5, 2.5, 3.5, 4.5], [[0], [1], [2], [3], [4]], [0, 1, 2, 3, 4]])
def test_a_long_list_is_a_place_on_an_axis(value):
    entry = {
        "axes": {"x": value},
        "step": "s",
        "metric": "m",
        "kind": "value",
        "n": 1,
        "eligible": 1,
        "mean": 0.5,
        "interval": None,
        "unit": "logit",
    }
    (cell,) = summary_table([entry]).columns[0].cells
    assert cell == ("[0…4]" if value == [0, 1, 2, 3, 4] else show_value(value))
