"""Results read back from folders made by hand: types, points, arrays, lazy tensors, wrong folders, two runs compared, files exported."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy
import pandas
import polars
import pytest
from authoring import observe
from conftest import ROOT
from safetensors.numpy import save

import causalab_mini
from causalab_mini.errors import DataError, RunError, UsageError
from causalab_mini.evidence.intervals import bootstrap
from causalab_mini.plan.sweep import expand, find_axes
from causalab_mini.results.reading import AxesArray, Table, open_run
from causalab_mini.results.reading.compare import compare_runs
from causalab_mini.results.reading.export import export_run
from causalab_mini.results.reading.rows import read_rows
from causalab_mini.results.summary import summarise
from causalab_mini.results.tables import table_bytes

pytestmark = pytest.mark.plain

POSITIONS = [-1, {"all": True, "scope": {"variable": "a <b>"}}, [0, 2]]
LAYERS = [[0], [1, 2]]


def metric_rows(values, metric="right", kind="match", unit="fraction", **more):
    return [
        {
            "example_id": str(index),
            "metric": metric,
            "value": value,
            "eligible": value is not None,
            "positions": [index, index + 1],
            "reason": "" if value is not None else "not_found",
            "unit": unit,
            "estimand_version": f"{kind}/v1",
            "tokens": " 12" if value is not None else None,
            "produced_by": "s/look/original/base",
            **more,
        }
        for index, value in enumerate(values)
    ]


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())


def make_run(
    out, values, *, axes=None, saves=("right.json",), status="finished", sha256="one", summary=True, step="s", rows="rows", **more
):
    """Writes the folder of a run with one metric; `values` gives the rows of a point from the values of its axes."""
    step_body = observe("look", rows=rows, both=False, saves=[{"value": "right", "file_path": name} for name in saves])
    raw = {"header": {"title": "A <script> & more"}, "swept": axes or {}, "steps": {step: step_body}} | more
    found, _ = find_axes(raw)
    points = list(expand(raw, found))
    record = {"status": status, "digest": f"digest of {out.name}", "model": {"key": "m", "revision": None, "dtype": "fp32"}}
    write(out / "run.json", record | {"data": {"rows": {"sha256": sha256, "n_rows": 9}}, "steps": [], "error": None})
    write(out / "document.json", raw)
    if found:
        write(out / "points.json", {point.label: point.values for point in points})
    entries = []
    for point in points:
        table = values(**point.values) if found else values
        if table is None:
            continue
        for name in saves:
            write(out / point.label / name, table_bytes(table, Path(name).suffix))
        entries += summarise(point.label, point.values, step, "right", table)
    if summary:
        write(out / "summary.json", {"digest": record["digest"], "metrics": entries})
    return out


def swept(**axes):
    return {f"key {number}": {"sweep": values, "as": axis} for number, (axis, values) in enumerate(axes.items())}


@pytest.fixture
def sweep(tmp_path):
    def values(layer, pos):
        return metric_rows([LAYERS.index(layer), 1.0, None] if pos != [0, 2] else [0.0])

    return make_run(tmp_path / "out", values, axes=swept(layer=LAYERS, pos=POSITIONS))


# tables


@pytest.mark.parametrize("suffix", [".json", ".csv", ".parquet"])
def test_a_table_reads_back_as_it_was_from_every_suffix(tmp_path, suffix):
    rows = metric_rows([1.0, 0.25, None], layer=3)
    path = tmp_path / f"table{suffix}"
    path.write_bytes(table_bytes(rows, suffix))
    assert read_rows(path) == rows


@pytest.mark.parametrize("suffix", [".json", ".csv", ".parquet"])
@pytest.mark.parametrize(
    "rows",
    [
        [{"example_id": "1", "metric": "best", "value": [[' a,\n"b"', 0.5], ["7", 0.25]], "eligible": True, "reason": ""}],
        [{"example_id": "1e5", "ids": [3, 4], "text": "", "ended": "eos", "produced_by": "s/m/base"}],
        [{"example_id": "0", "ids": [], "text": "null", "ended": "length", "produced_by": "s/m/base"}],
        [
            {"epoch": 0, "update": 4, "objective": 1.0, "loss": 1e-17, "is_best": False},
            {"epoch": 1, "update": 8, "objective": 0.5, "loss": None, "is_best": True},
        ],
        [{"example_id": "0", "point": "p", "layer": None, "record": 0, "token_id": 5, "token": "12"}],
        [
            {
                "request": 0,
                "point": "p",
                "token_id": None,
                "token": None,
                "value": {"n": 2, "mean": [0.5]},
                "action": "continue",
                "reason": "",
            }
        ],
        [
            {"score": "accuracy", "fold": None, "value": 0.5, "low": None, "method": None},
            {"score": "accuracy", "fold": 1, "value": 0.5, "low": 0.25, "method": "wilson"},
        ],
        [
            {"example_id": "0", "label": " May", "predicted": None, "score": None, "fold": None, "correct": None, "reason": "filtered"},
            {"example_id": "1", "label": " May", "predicted": " 3", "score": 0.5, "fold": 1, "correct": False, "reason": ""},
        ],
        [{"example_id": "0", "metric": "m", "write": "w", "layer": 0, "head": 1, "token": 0, "value": 0.5, "exact": None, "reason": ""}],
    ],
)
def test_cells_of_every_kind_keep_their_types(tmp_path, rows, suffix):
    path = tmp_path / f"table{suffix}"
    path.write_bytes(table_bytes(rows, suffix))
    found = read_rows(path)
    assert found == rows
    assert [[type(cell) for cell in row.values()] for row in found] == [[type(cell) for cell in row.values()] for row in rows]


def test_a_curve_may_have_a_metric_of_any_name(tmp_path):
    rows = [{"epoch": 0, "update": 1, "objective": 0.5, "text": 1.0, "reason": 2.0, "is_best": True}]
    (tmp_path / "x.csv").write_bytes(table_bytes(rows, ".csv"))
    assert read_rows(tmp_path / "x.csv") == rows


def test_a_cell_may_be_long(tmp_path):
    rows = [{"request": 0, "value": {"values": [0.5] * 50_000}, "action": "continue", "reason": ""}]
    (tmp_path / "x.csv").write_bytes(table_bytes(rows, ".csv"))
    assert read_rows(tmp_path / "x.csv") == rows


def test_nothing_outside_of_the_folder_is_read(tmp_path, sweep):
    write(tmp_path / "secret.json", [{"a": 1}])
    saves = ("../secret.json", str(tmp_path / "secret.json"))
    step = observe("look", both=False, saves=[{"value": "right", "file_path": name} for name in saves])
    assert open_run(make_run(tmp_path / "plain", metric_rows([1.0]), saves=(), steps={"s": step})).files == ()
    write(sweep / "points.json", {"../plain": {"layer": 0}})
    with pytest.raises(DataError, match=r"points\.json: expected labels that are names of folders, got `\.\./plain`"):
        _ = open_run(sweep).points


def test_a_run_killed_at_once_has_its_record_alone(tmp_path):
    write(tmp_path / "run.json", {"status": "running", "digest": "d", "model": None})
    run = open_run(tmp_path)
    assert (run.files, run.status) == ((), "running")
    assert "running" in repr(run)


def test_labels_like_numbers_are_text_where_the_summary_has_text_classes(tmp_path):
    rows = [{"example_id": "0", "label": "7", "predicted": "8", "score": 0.5, "fold": 0, "correct": False, "reason": ""}]
    step = {"kind": "fit_probe", "rows": {"base": "rows"}, "saves": [{"value": "predictions", "file_path": "said.csv"}]}
    out = make_run(tmp_path / "out", metric_rows([1.0]), steps={"s": step}, saves=())
    write(out / "said.csv", table_bytes(rows, ".csv"))
    for label, expected in (("7", "7"), (7, 7)):
        write(
            out / "summary.json", {"metrics": [], "probes": [{"point": "", "axes": {}, "step": "s", "classes": [{"label": label, "n": 1}]}]}
        )
        assert open_run(out).table("predictions").column("label") == [expected]


def test_a_table_is_found_by_path_by_name_and_by_what_it_holds(tmp_path):
    out = make_run(tmp_path / "out", metric_rows([1.0, 0.0]), saves=("tables/first.csv", "tables/first.json"))
    run = open_run(out)
    assert run.tables == ("tables/first",)
    for name in ("tables/first", "tables/first.csv", "tables/first.json", "first", "right"):
        assert list(run.table(name).rows) == metric_rows([1.0, 0.0])


def test_several_tables_of_one_value_must_be_told_apart(tmp_path):
    run = open_run(make_run(tmp_path / "out", metric_rows([1.0]), saves=("a.csv", "b.csv")))
    with pytest.raises(UsageError, match=r"name: expected one of `a.csv`, `b.csv`, got `right`"):
        run.table("right")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda run: run.table("rihgt"), r"out: name: expected a table \(`right`\), got `rihgt`\nhint: did you mean `right`\?"),
        (lambda run: run.tensor("right", "layer=0,pos=-1"), r"expected a file of tensors \(there is none\), got `right`\nhint: `\.table\('right'\)`"),
        (lambda run: run.point("layer=9"), r"point: expected the label of a point \(`layer=0,pos=-1`, "),
        (lambda run: run.point(layr=0, pos=-1), r"point: expected an axis of the sweep \(`layer`, `pos`\), got `layr`\nhint: did you mean `layer`\?"),
        (lambda run: run.point(layer=7, pos=-1), r"point.layer: expected a value of the axis \(`0`, `\[1,2\]`\), got `7`"),
        (lambda run: run.point(layer=0), r"point: expected one point, got 3 of them\nhint: name `pos` too"),
        (lambda run: run.array("wrong"), r"metric: expected a metric \(`right`\), got `wrong`"),
        (lambda run: run.array("right", step="t"), r"step: expected a step with this metric \(`s`\), got `t`"),
        (lambda run: run.array("right", value="maen"), r"value: expected a number of the metric .*, got `maen`\nhint: did you mean `mean`\?"),
        (lambda run: run.array("right").sel(layer=4), r"layer: expected a value of the axis \(`0`, `\[1,2\]`\), got `4`"),
        (lambda run: run.array("right").sel(lyer=4), r"expected an axis \(`layer`, `pos`\), got `lyer`\nhint: did you mean `layer`\?"),
        (lambda run: run.table("right").column("vlaue"), r"right: expected a column .*, got `vlaue`\nhint: did you mean `value`\?"),
    ],
)  # fmt: skip
def test_a_wrong_name_says_which_there_are(sweep, call, said):
    with pytest.raises(UsageError, match=said):
        call(open_run(sweep))


def test_points_of_a_run_without_a_sweep(tmp_path):
    run = open_run(make_run(tmp_path / "out", metric_rows([1.0])))
    assert (run.points, run.axes, run.is_sweep, run.point().label) == ({"": {}}, {}, False, "")
    with pytest.raises(UsageError, match="expected no axis \\(nothing is swept\\), got `layer`"):
        run.point(layer=1)


# sweeps


def test_points_are_found_by_label_and_by_values_however_they_are_spelled(sweep):
    run = open_run(sweep)
    assert run.axes == {"layer": ([0], [1, 2]), "pos": tuple(POSITIONS)}
    label = list(run.points)[4]
    assert "%" in label
    for point in (
        run.point(label),
        run.point(layer=[1, 2], pos=POSITIONS[1]),
        run.point("layer=[1,2],pos=" + json.dumps(POSITIONS[1], separators=(",", ":"))),
    ):
        assert (point.label, point.values, point.is_there) == (label, {"layer": [1, 2], "pos": POSITIONS[1]}, True)
    assert run.point(layer=0, pos=-1).label == run.point(layer=[0], pos=-1).label == "layer=0,pos=-1"
    assert list(run.point(layer=0, pos=-1).table("right")) == metric_rows([0, 1.0, None])
    assert run.table("right", {"layer": 0, "pos": -1}).rows == run.table("right", "layer=0,pos=-1").rows


def test_a_sweeps_table_has_all_points_with_the_axes_first(sweep):
    table = open_run(sweep).table("right")
    assert (table.axes, table.columns[:3], len(table), table.missing) == (("layer", "pos"), ("layer", "pos", "example_id"), 14, ())
    assert table.rows[0]["layer"] == [0]
    frame = table.to_pandas()
    assert (frame.index.names, len(frame)) == (["layer", "pos"], 14)
    assert frame.loc[("[1,2]", "-1"), "value"].tolist()[:2] == [1.0, 1.0]
    assert table.to_pandas(index=False)["layer"].tolist()[:3] == ["0", "0", "0"]
    plain = table.to_polars()
    assert plain.columns == list(table.columns)
    assert plain["positions"].dtype == polars.List(polars.Int64)
    assert plain["pos"].to_list() == table.to_pandas(index=False)["pos"].tolist()


def test_an_axis_of_a_columns_name_is_told_apart(tmp_path):
    out = make_run(tmp_path / "out", lambda layer: metric_rows([1.0], layer=7), axes=swept(layer=[0, 1]))
    table = open_run(out).table("right")
    assert (table.axes, table.column("point.layer"), table.column("layer")) == (("point.layer",), [0, 1], [7, 7])
    array = open_run(out).array("right")
    assert (array.dims, array.coords, array.shape) == (("point.layer", "layer"), {"point.layer": (0, 1), "layer": (7,)}, (2, 1))


def test_an_array_has_the_axes_in_order_with_the_values_of_the_document(sweep):
    array = open_run(sweep).array("right")
    assert (array.dims, array.shape, array.unit) == (("layer", "pos"), (2, 3), "fraction")
    assert array.coords == {"layer": tuple(LAYERS), "pos": tuple(POSITIONS)}
    assert array.labels("pos") == ("-1", '{"all":true,"scope":{"variable":"a <b>"}}', "[0,2]")
    numpy.testing.assert_array_equal(array.values, [[0.5, 0.5, 0.0], [1.0, 1.0, 0.0]])
    assert numpy.asarray(array).shape == (2, 3)
    assert (array.sel(layer=0).dims, array.sel(layer=0, pos=POSITIONS[1]).values.tolist()) == (("pos",), 0.5)
    eligible = open_run(sweep).array("right", value="eligible")
    assert (eligible.name, eligible.unit, eligible.values.tolist()) == ("right.eligible", "rows", [[2, 2, 1], [2, 2, 1]])


def test_points_that_failed_are_missing_and_not_zero(tmp_path):
    out = make_run(tmp_path / "out", lambda layer: None if layer == 1 else metric_rows([1.0]), axes=swept(layer=[0, 1, 2]), status="failed")
    run = open_run(out)
    assert (run.status, run.table("right").missing, run.point(layer=1).is_there) == ("failed", ("layer=1",), False)
    numpy.testing.assert_array_equal(run.array("right").values, [1.0, numpy.nan, 1.0])
    assert "not there at 1 points" in repr(run.table("right"))
    with pytest.raises(DataError, match=r"layer=1/right\.json: expected a readable file, got no such file"):
        run.point(layer=1).table("right")


def test_xarray_gets_plain_coordinates(sweep, monkeypatch):
    import types

    made = {}
    module = types.ModuleType("xarray")
    module.DataArray = lambda values, **more: made.update(more) or "made"
    monkeypatch.setitem(sys.modules, "xarray", module)
    assert open_run(sweep).array("right").to_xarray() == "made"
    assert made["coords"]["layer"] == ["0", "[1,2]"]
    assert (made["dims"], made["attrs"]) == (("layer", "pos"), {"unit": "fraction"})


@pytest.mark.parametrize(
    ("package", "call", "hint"),
    [
        ("pandas", lambda run: run.table("right").to_pandas(), r"pip install 'causalab-mini\[frames\]'"),
        ("polars", lambda run: run.table("right").to_polars(), r"pip install 'causalab-mini\[frames\]'"),
        ("xarray", lambda run: run.array("right").to_xarray(), "pip install xarray"),
    ],
)
def test_a_frame_library_that_is_not_there_is_named(sweep, monkeypatch, package, call, hint):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=f"expected {package}, got no such package\nhint: {hint}"):
        call(open_run(sweep))


def test_parquet_without_pyarrow_is_named(tmp_path, monkeypatch):
    out = make_run(tmp_path / "out", metric_rows([1.0]), saves=("right.parquet",))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        RunError, match=r"expected pyarrow, to read parquet, got no such package\nhint: pip install 'causalab-mini\[parquet\]'"
    ):
        open_run(out).table("right")


# tensors


@pytest.fixture
def tensors(tmp_path):
    values = numpy.arange(24, dtype=numpy.float32).reshape(2, 3, 4)
    saves = [{"value": name, "file_path": f"{name}.safetensors"} for name in ("one", "ragged", "groups")]
    out = make_run(tmp_path / "out", metric_rows([1.0]), saves=(), steps={"s": observe("look", both=False, saves=saves)})
    write(out / "one.safetensors", save({"one": values}, {"kind": "rows"}))
    write(out / "ragged.safetensors", save({"ragged": values[0], "ragged.lengths": numpy.array([1, 2])}))
    write(out / "groups.safetensors", save({"groups/a": values[0], "groups/b": values[1]}))
    return open_run(out), values


def test_tensors_are_found_by_file_and_by_name(tensors):
    run, values = tensors
    found = run.tensors()
    assert list(found) == ["one", "ragged:ragged", "ragged:ragged.lengths", "groups:groups/a", "groups:groups/b"]
    numpy.testing.assert_array_equal(run.tensor("one").numpy(), values)
    assert run.tensor("ragged").key == "ragged"
    assert run.tensor("groups", key="groups/b").numpy().tolist() == run.tensor("groups/b").numpy().tolist() == values[1].tolist()
    assert (found["one"].shape, found["one"].dtype, found["one"].metadata) == ((2, 3, 4), "F32", {"kind": "rows"})
    with pytest.raises(UsageError, match=r"groups: expected a tensor of the file as `key` \(`groups/a`, `groups/b`\), got none"):
        run.tensor("groups")
    with pytest.raises(UsageError, match=r"expected a file of tensors \(`one`, `ragged`, `groups`\), got `oen`"):
        run.tensor("oen")


def test_parts_of_tensors_are_those_of_the_whole(tensors):
    run, values = tensors
    for index in (
        0,
        (1, slice(0, 2)),
        slice(1, None),
        -1,
        (slice(None, None, 2), 1),
        Ellipsis,
        slice(1, 9),
        slice(2, 1),
        (0, 1, 2),
        [1, 0],
        (0, slice(-2, None)),
    ):
        numpy.testing.assert_array_equal(run.tensor("one")[index], values[index])


def test_an_index_that_is_not_there_is_an_index_error(tensors):
    with pytest.raises(IndexError):
        tensors[0].tensor("one")[2]


def test_no_number_is_read_before_it_is_asked_for(tensors, monkeypatch):
    import safetensors

    run, _ = tensors
    read = []

    class Spy:
        def __init__(self, path, framework):
            self.file = safetensors_open(path, framework)

        def __enter__(self):
            self.file.__enter__()
            return self

        def __exit__(self, *error):
            return self.file.__exit__(*error)

        def get_tensor(self, key):
            read.append(key)
            return self.file.get_tensor(key)

        def __getattr__(self, name):
            return getattr(self.file, name)

    safetensors_open = safetensors.safe_open
    monkeypatch.setattr(safetensors, "safe_open", Spy)
    tensor = run.tensor("one")
    assert ([tensor.shape, tensor.dtype, repr(tensor)], read) == (
        [(2, 3, 4), "F32", f"SavedTensor `one` F32 [2, 3, 4] in {tensor.path}"],
        [],
    )
    tensor[0]
    assert read == []
    tensor.numpy()
    assert read == ["one"]


def test_bfloat16_is_exact_as_float32(tmp_path):
    numbers = numpy.array([1.0, -2.5, 3.0e38, 0.0], dtype=numpy.float32)
    bits = (numbers.view(numpy.uint32) >> 16).astype(numpy.uint16)
    header = json.dumps({"x": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}}).encode()
    out = make_run(tmp_path / "out", metric_rows([1.0]), saves=("x.safetensors.json",), steps={"s": observe("look", both=False, saves=[{"value": "x", "file_path": "x.safetensors"}])})  # fmt: skip
    write(out / "x.safetensors", len(header).to_bytes(8, "little") + header + bits.tobytes())
    expected = (bits.astype(numpy.uint32) << 16).view(numpy.float32).reshape(2, 2)
    tensor = open_run(out).tensor("x")
    assert (tensor.dtype, tensor.numpy().dtype) == ("BF16", numpy.float32)
    numpy.testing.assert_array_equal(tensor.numpy(), expected)
    assert tensor[1, 1] == 0.0
    assert tensor[0].tolist() == [1.0, -2.5]


def test_a_file_of_tensors_that_is_none_is_refused(tensors):
    run, _ = tensors
    write(run.path / "one.safetensors", b"nonsense")
    with pytest.raises(DataError, match=r"one\.safetensors: expected a safetensors file, got something else"):
        run.tensor("one")


# folders that are none


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        (None, None, r"expected a folder of results, got no such folder"),
        ("thesis.txt", b"", r"expected a folder of results \(with `run\.json`\), got a folder without"),
        ("run.json", b'{"status": "runn', r"run\.json: expected JSON, got something else"),
        ("run.json", b"", r"run\.json: expected JSON, got an empty file"),
        ("run.json", b"[]", r"run\.json: expected the record of a run \(an object with `status`\), got something else"),
    ],
)
def test_what_is_no_folder_of_results_is_refused(tmp_path, name, data, said):
    if name is not None:
        write(tmp_path / "out" / name, data)
    with pytest.raises(DataError, match=said):
        open_run(tmp_path / "out")


def test_the_folder_of_a_point_names_the_run_that_it_is_of(sweep):
    with pytest.raises(DataError, match=f"hint: the results of this point belong to `{sweep}`"):
        open_run(sweep / "layer=0,pos=-1")


@pytest.mark.parametrize(
    ("name", "data", "call", "said"),
    [
        ("summary.json", b"{", lambda run: run.metrics(), r"summary\.json: expected JSON"),
        ("summary.json", b"[]", lambda run: run.metrics(), r"summary\.json: expected the summary of a run \(an object\)"),
        ("document.json", b"", lambda run: run.tables, r"document\.json: expected JSON, got an empty file"),
        ("points.json", b'{"a": 1}', lambda run: run.axes, r"points\.json: expected an object of axes and values by label"),
        ("layer=0,pos=-1/right.json", b"[1]", lambda run: run.table("right"), r"right\.json: expected a table \(a list of objects\)"),
        ("layer=0,pos=-1/right.json", b"[{", lambda run: run.table("right"), r"right\.json: expected JSON"),
    ],
)
def test_a_file_that_is_not_whole_is_named(sweep, name, data, call, said):
    write(sweep / name, data)
    with pytest.raises(DataError, match=said):
        call(open_run(sweep))


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("right.csv", b"a,b\n1\n", "expected 2 cells on line 2, got 1"),
        ("right.csv", b'a\n"x', "expected CSV, got something else"),
        ("right.csv", b"\xff\n", "expected UTF-8, got the byte `0xff`"),
        ("right.parquet", b"PAR1", "expected parquet, got something else"),
    ],
)
def test_a_broken_table_is_named(tmp_path, name, data, said):
    out = make_run(tmp_path / "out", metric_rows([1.0]), saves=(name,))
    write(out / name, data)
    with pytest.raises(DataError, match=said):
        open_run(out).table("right")


@pytest.mark.parametrize("status", ["running", "interrupted"])
def test_a_run_that_was_killed_or_stopped_shows_what_is_there(tmp_path, command, status):
    out = make_run(
        tmp_path / "out",
        lambda layer: metric_rows([1.0]) if layer == 0 else None,
        axes=swept(layer=[0, 1]),
        status=status,
        summary=False,
    )
    run = open_run(out)
    assert (run.has_summary, len(run.table("right"))) == (False, 1)
    assert f"status   {status}" in repr(run)
    assert status in run._repr_html_()
    with pytest.raises(DataError, match=rf"summary\.json: expected the summary of a run, got none \(its status is `{status}`\)"):
        run.metrics()
    code, shown, _ = command("show", out)
    assert code == 0
    assert f"there is no summary: the run did not come to its end ({status})" in shown


def test_files_that_no_document_names_are_not_results(sweep):
    write(sweep / "layer=0,pos=-1" / "point.done.json", [{"a": 1}])
    write(sweep / ".lock", b"")
    write(sweep / "state.json", [])
    assert open_run(sweep).tables == ("right",)
    assert [file.path for file in open_run(sweep).files] == ["right.json"]


# what is shown


def test_html_is_escaped_and_small(sweep):
    run = open_run(sweep)
    html = run._repr_html_()
    assert "A &lt;script&gt; &amp; more" in html
    assert "a &lt;b&gt;" in html
    assert "<script" not in html
    assert "<b>a <" not in html
    assert len(html) < 20_000
    table = Table("<i>", ({"<u>": "<s>", "n": None, "x": 1.5},) * 50)
    assert "<u>" not in table._repr_html_()
    assert "&lt;s&gt;" in table._repr_html_()
    assert "50 rows, the first 20 shown" in table._repr_html_()
    assert "http" not in html + table._repr_html_()


def test_an_array_is_a_map_where_it_has_one_or_two_axes():
    values = numpy.array([[0.0, 1.0], [numpy.nan, 0.5]])
    html = AxesArray("<m>", values, ("a", "b"), {"a": (0, 1), "b": ("x", "<y>")}, "fraction")._repr_html_()
    assert "background:#440154;color:white" in html
    assert "background:#fde725;color:black" in html
    assert "<td>·</td>" in html
    assert "&lt;y&gt;" in html
    assert "<m>" not in html
    deep = AxesArray("m", numpy.zeros((2, 2, 2)), ("a", "b", "c"), dict.fromkeys("abc", (0, 1)))
    assert "<pre>" in deep._repr_html_()


def test_a_repr_fits_a_screen(sweep):
    for shown in (open_run(sweep), open_run(sweep).metrics(), open_run(sweep).array("right"), open_run(sweep).point("layer=0,pos=-1")):
        assert len(repr(shown).splitlines()) <= 24
    wide = Table("t", tuple({f"column {number}": "text" * 9 for number in range(30)} for _ in range(30)))
    assert max(map(len, repr(wide).splitlines())) <= 125


def test_reading_loads_neither_torch_nor_frames_nor_the_engine(sweep):
    code = (
        "import sys, causalab_mini\n"
        f"run = causalab_mini.open_run({str(sweep)!r})\n"
        "repr(run), run._repr_html_(), run.table('right'), run.metrics(), run.array('right')\n"
        "heavy = {'torch', 'transformers', 'nnterp', 'nnsight', 'pandas', 'polars', 'pyarrow', 'safetensors', 'typer'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "assert not [name for name in sys.modules if name.startswith('causalab_mini.engine')]"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert causalab_mini.open_run is open_run


def test_show_and_compare_load_no_torch(sweep):
    code = (
        "import sys\n"
        "from causalab_mini.cli.app import main\n"
        f"for arguments in (['show', {str(sweep)!r}], ['compare', {str(sweep)!r}, {str(sweep)!r}]):\n"
        "    try:\n"
        "        main(arguments)\n"
        "    except SystemExit as leaving:\n"
        "        assert not leaving.code\n"
        "assert not {'torch', 'transformers', 'pandas', 'polars'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# two runs


def test_differences_are_paired_by_row(tmp_path):
    x = numpy.array([0.5, 1.0, 2.0, -1.0, 0.0])
    y = x + numpy.array([0.25, 0.0, -3.0, 1.0, 0.5])
    kind = {"kind": "logit_diff", "unit": "logit"}
    a = make_run(tmp_path / "a", metric_rows([*x, None, 7.0], **kind))
    b = make_run(tmp_path / "b", metric_rows([*y, 3.0, None], **kind))
    found = compare_runs(open_run(a), open_run(b))
    (entry,) = found["metrics"]
    assert (entry["n_paired"], entry["n_only_in_a"], entry["n_only_in_b"], entry["n_changed"]) == (5, 1, 1, 4)
    assert (entry["mean_a"], entry["mean_b"]) == (pytest.approx(x.mean()), pytest.approx(y.mean()))
    assert entry["difference"] == pytest.approx((y - x).mean())
    by_hand = numpy.random.default_rng(0)
    means = numpy.concatenate([(y - x)[by_hand.integers(0, 5, (100, 5))].mean(axis=1) for _ in range(20)])
    low, high = numpy.quantile(means, [0.025, 0.975])
    assert entry["interval"] == {
        "low": pytest.approx(low),
        "high": pytest.approx(high),
        "level": 0.95,
        "method": "bootstrap of paired differences",
    }
    assert bootstrap(list(y - x)).low == entry["interval"]["low"]
    assert [change["example_id"] for change in entry["changed"]] == ["2", "3", "4", "0"]
    assert entry["changed"][0] == {"example_id": "2", "a": 2.0, "b": -1.0, "difference": -3.0}
    assert found["is_changed"]
    assert compare_runs(open_run(a), open_run(b), tolerance=0.5)["metrics"][0]["n_changed"] == 2


def test_points_are_matched_by_their_values_and_not_by_order(tmp_path):
    def values(layer):
        return metric_rows([float(layer)], kind="logit_diff", unit="logit")

    a = make_run(tmp_path / "a", values, axes=swept(layer=[0, 1, 2]))
    b = make_run(tmp_path / "b", values, axes=swept(layer=[3, 2, 1]))
    found = compare_runs(open_run(a), open_run(b))
    assert [(entry["point"], entry["n_changed"]) for entry in found["metrics"]] == [({"layer": "1"}, 0), ({"layer": "2"}, 0)]
    assert [entry["point"] for entry in found["only_in_a"] + found["only_in_b"]] == [{"layer": "0"}, {"layer": "3"}]
    assert found["is_changed"]


def test_a_metric_of_another_step_is_matched_where_it_is_the_only_one(tmp_path):
    a, b = (make_run(tmp_path / name, metric_rows([1.0]), step=name) for name in "ab")
    (entry,) = compare_runs(open_run(a), open_run(b))["metrics"]
    assert (entry["step"], entry["step_in_b"], entry["n_paired"]) == ("a", "b", 1)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"sha256": "two"}, "`rows` is another file in A than in B"),
        ({"rows": "others"}, "rows of `rows` in A, of `others` in B"),
        ({"saves": ()}, "the rows are not saved in B"),
    ],
)
def test_rows_that_may_be_others_are_not_paired(tmp_path, command, more, why):
    a = make_run(tmp_path / "a", metric_rows([1.0, 0.0]))
    b = make_run(tmp_path / "b", metric_rows([1.0, 1.0]), **more)
    (entry,) = compare_runs(open_run(a), open_run(b))["metrics"]
    assert (entry["is_paired"], entry["why"], entry["interval"]) == (False, why, None)
    assert (entry["mean_a"], entry["mean_b"], entry["difference"]) == (0.5, 1.0, 0.5)
    code, out, _ = command("compare", a, b)
    assert code == 0
    assert f"not paired: s · right: {why}" in out


def test_runs_without_a_common_row_say_so(tmp_path):
    a = make_run(tmp_path / "a", metric_rows([1.0, None]))
    b = make_run(tmp_path / "b", metric_rows([None, 1.0]))
    (entry,) = compare_runs(open_run(a), open_run(b))["metrics"]
    assert (entry["is_paired"], entry["why"], entry["n_paired"], entry["n_only_in_a"], entry["n_only_in_b"]) == (
        False,
        "no row has a value in both",
        0,
        1,
        1,
    )


def test_compare_prints_what_differs_and_exits_as_it_is_told(tmp_path, command):
    a = make_run(tmp_path / "a", metric_rows([1.0, 0.0, 1.0]))
    b = make_run(tmp_path / "b", metric_rows([1.0, 1.0, 0.0]))
    code, out, _ = command("compare", a, b)
    assert code == 0
    assert "changed: s · right: 1: 0 → 1; 2: 1 → 0" in out
    assert "another document" in out
    assert command("compare", a, b, "--fail-on-change").code == 1
    assert command("compare", a, b, "--fail-on-change", "--tolerance", "1").code == 0
    code, out, _ = command("compare", a, a, "--fail-on-change")
    assert (code, out.splitlines()[-1]) == (0, "nothing has changed")
    assert json.loads(command("compare", a, b, "--json").out)["metrics"][0]["n_changed"] == 2


# files


def test_an_export_is_a_tidy_file_a_table(sweep, tmp_path, command):
    code, out, _ = command("export", sweep, tmp_path / "csv", "--to", "csv")
    assert (code, out.split()) == (0, [f"{tmp_path}/csv/right.csv", f"{tmp_path}/csv/summary.csv"])
    files = export_run(open_run(sweep), "parquet", tmp_path / "parquet")
    assert [path.name for path in files] == ["right.parquet", "summary.parquet"]
    columns = open_run(sweep).table("right").flat()
    table = pandas.read_parquet(tmp_path / "parquet" / "right.parquet")
    assert {name: len(table[name]) for name in table} == dict.fromkeys(columns, 14)
    assert polars.read_parquet(tmp_path / "parquet" / "right.parquet").to_dict(as_series=False) == columns
    text = polars.read_csv(tmp_path / "csv" / "right.csv")
    assert text["value"].to_list() == columns["value"]
    assert text["layer"].to_list() == ["0"] * 7 + ["[1,2]"] * 7
    assert len(polars.read_csv(tmp_path / "csv" / "summary.csv")) == 6


def test_an_export_overwrites_nothing(sweep, tmp_path, command):
    assert command("export", sweep, tmp_path / "x").code == 0
    before = {path: path.read_bytes() for path in (tmp_path / "x").iterdir()}
    (tmp_path / "x" / "right.csv").unlink()
    code, out, err = command("export", sweep, tmp_path / "x")
    assert (code, out) == (2, "")
    assert "DIR: expected a folder without these files, got" in err
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == ["summary.csv"]
    assert len(before) == 2
    for inside in (sweep, sweep / "tables"):
        assert "expected a folder outside of the results" in command("export", sweep, inside).err
    assert command("export", sweep, tmp_path / "y", "--to", "xlsx").code == 2


def test_an_export_that_fails_leaves_no_half_file(sweep, tmp_path, monkeypatch):
    def full_disk(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(RunError, match=r"right\.csv: expected a file that can be written, got no space left on device"):
        export_run(open_run(sweep), "csv", tmp_path / "x")
    assert list((tmp_path / "x").iterdir()) == []


# the screen


def test_show_prints_an_overview_and_a_table(sweep, command):
    code, out, err = command("show", sweep)
    assert (code, err) == (0, "")
    for said in (
        "A <script> & more",
        "finished",
        "layer (2) × pos (3), 6 points",
        "metrics (mean over eligible rows",
        "s · right (fraction)",
        "right.json",
    ):
        assert said in out
    assert "layer=[1,2]" not in command("show", sweep, "--point", "layer=0,pos=-1").out
    code, out, _ = command("show", sweep, "right", "--rows", "3")
    assert code == 0
    assert "right (14 rows)" in out
    assert "and 11 more rows (--rows 14)" in out
    assert json.loads(command("show", sweep, "right", "--point", "layer=0,pos=-1", "--json").out) == metric_rows([0, 1.0, None])
    assert "did you mean `right`?" in command("show", sweep, "rihgt").err
    assert len(json.loads(command("show", sweep, "metrics", "--json").out)) == 6
    data = json.loads(command("show", sweep, "--json").out)
    assert (data["status"], len(data["points"]), len(data["files"])) == ("finished", 6, 6)
    code, _, err = command("show", sweep / "none")
    assert (code, err.startswith("error: ")) == (2, True)


def test_show_lists_the_tensors_of_a_file(tensors, command):
    assert command("show", tensors[0].path, "ragged").out.splitlines() == ["ragged:ragged  F32 [3, 4]", "ragged:ragged.lengths  I64 [2]"]
    assert json.loads(command("show", tensors[0].path, "one", "--json").out)[0]["shape"] == [2, 3, 4]
