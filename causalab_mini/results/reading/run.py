"""A run read back: `open_run` and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from causalab_mini.data.strict_json import read_text
from causalab_mini.errors import DataError, Problem, SpecValidationError, UsageError, did_you_mean, listed, quoted
from causalab_mini.plan.sweep import show_value
from causalab_mini.results.reading.arrays import AxesArray
from causalab_mini.results.reading.folder import SavedFile, read_points, read_record, saved_files
from causalab_mini.results.reading.rows import Row, read_json, read_rows, refuse
from causalab_mini.results.reading.shapes import Recorded, Summary, refuse_other
from causalab_mini.results.reading.table import Table, stacked
from causalab_mini.results.reading.tensors import SavedTensor, tensor_keys
from causalab_mini.results.store import DOCUMENT, POINTS, SUMMARY

SPEC = "spec.yaml"
MAX_LISTED = 12


def open_run(path: str | Path) -> SavedRun:
    """Returns a results folder, read back; of `run` or of `probe`.

    Opens its record alone. Neither torch nor the document's data or model are needed.

    Args:
        path: the folder that was given as `--out`.

    Raises:
        DataError: it is no folder of results, or its record is not whole.
    """
    return SavedRun(Path(path))


class SavedRun:
    """A run as its folder has it. Everything is read when it is first asked for, and the record and the summary once.

    Args:
        path: of the folder.

    Raises:
        DataError: it is no folder of results, or its record is not whole.

    Attributes:
        path: of the folder.
        record: what was run, with what, and what its checks said: `run.json`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record: dict[str, Any] = read_record(path)

    @property
    def status(self) -> str:
        """`finished`, `failed`, `interrupted`, or `running` (of a run that was killed, too)."""
        return str(self.record["status"])

    @property
    def digest(self) -> str:
        """What makes the experiment what it is."""
        return str(self.record.get("digest", ""))

    @property
    def is_recording(self) -> bool:
        """Whether it is a folder of the verb `probe`, which has an extraction spec in place of a document."""
        return not (self.path / DOCUMENT).exists() and "spec_sha256" in self.record

    @cached_property
    def document(self) -> Any:
        """The document as it was authored, with overrides in; in a folder of `probe`, its extraction spec as data.

        Raises:
            DataError: it can't be read.
            SpecValidationError: an extraction spec is no YAML.
        """
        if not self.is_recording:
            document = read_json(self.path / DOCUMENT)
            if not isinstance(document, dict):
                refuse(self.path / DOCUMENT, "a document (an object)", "something else")
            return document
        from causalab_mini.probing.spec.tree import tree_of_yaml

        file = self.path / SPEC
        tree = tree_of_yaml(read_text(file, DataError), str(file))
        if tree.problems:
            raise SpecValidationError([problem for _, problem in tree.problems], str(file))
        return tree.value

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Every metric of every point with count, mean and interval, as `summary.json` has them.

        Raises:
            DataError: the run has not come to its end, or the file is not whole.
        """
        file = self.path / SUMMARY
        if not file.is_file():
            refuse(file, "the summary of a run", f"none (its status is `{self.status}`)", hint="run the document into the folder again")
        summary = read_json(file)
        if not isinstance(summary, dict):
            refuse(file, "the summary of a run (an object)", "something else")
        refuse_other(summary, Recorded if self.is_recording else Summary, file)
        return summary

    @property
    def has_summary(self) -> bool:
        """Whether the run came to an end, if not to a good one."""
        return (self.path / SUMMARY).is_file()

    @cached_property
    def points(self) -> dict[str, dict[str, Any]]:
        """The value of every axis by label, in order; without a sweep one point, with an empty label.

        Raises:
            DataError: `points.json` is not whole.
        """
        return read_points(self.path)

    @property
    def is_sweep(self) -> bool:
        """Whether it has axes."""
        return bool(self.axes)

    @cached_property
    def axes(self) -> dict[str, tuple[Any, ...]]:
        """The values of every axis, in the order of the document."""
        found: dict[str, dict[str, Any]] = {}
        for values in self.points.values():
            for axis, value in values.items():
                found.setdefault(axis, {}).setdefault(show_value(value), value)
        return {axis: tuple(values.values()) for axis, values in found.items()}

    @cached_property
    def files(self) -> tuple[SavedFile, ...]:
        """What the document saves and is there, at one point at least.

        Raises:
            DataError: the document can't be read.
        """
        if not self.is_recording and not (self.path / DOCUMENT).is_file():
            return ()  # it was killed before it had written anything but its record
        return tuple(saved_files(self.path, None if self.is_recording else self.document, list(self.points)))

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables that are there."""
        return tuple(dict.fromkeys(file.name for file in self.files if file.is_table))

    def point(self, label: str | None = None, /, **axes: Any) -> SavedPoint:
        """Returns one point, by its label or by its values, which are compared as labels show them.

        Raises:
            UsageError: there is no such point, axis or value, or there are several points.
        """
        if label is not None:
            found = label if label in self.points else next((each for each in self.points if unquote(each) == unquote(label)), None)
            if found is None:
                known = list(self.points)
                expected = f"the label of a point ({_some(known)})" if self.is_sweep else "no point (nothing is swept)"
                raise UsageError(Problem("point", expected, quoted(label), did_you_mean(label, known), "point"), str(self.path))
            return SavedPoint(self, found)
        labels = list(self.points)
        for axis, value in axes.items():
            if axis not in self.axes:
                expected = f"an axis of the sweep ({listed(self.axes)})" if self.is_sweep else "no axis (nothing is swept)"
                raise UsageError(Problem("point", expected, quoted(axis), did_you_mean(axis, list(self.axes)), "axis"), str(self.path))
            shown = {show_value(each): each for each in self.axes[axis]}
            if (name := show_value(value)) not in shown:
                hint = did_you_mean(name, list(shown))
                raise UsageError(
                    Problem(f"point.{axis}", f"a value of the axis ({_some(list(shown))})", quoted(name), hint, "axis"), str(self.path)
                )
            labels = [each for each in labels if axis in self.points[each] and show_value(self.points[each][axis]) == name]
        if len(labels) != 1:
            open_axes = [axis for axis in self.axes if axis not in axes]
            hint = f"name {listed(open_axes)} too" if labels and open_axes else ""
            raise UsageError(Problem("point", "one point", f"{len(labels)} of them", hint, "point"), str(self.path))
        return SavedPoint(self, labels[0])

    def table(self, name: str, point: str | SavedPoint | Mapping[str, Any] | None = None) -> Table:
        """Returns a table.

        Args:
            name: its path without or with the suffix, or what is saved there in the document's words: `follows`, `curves/loss.csv`, `train/loss`.
            point: one point; absent, all points of a sweep one below the other, with the axes as first columns.

        Raises:
            UsageError: there is no such table, or no such point.
            DataError: a file can't be read.
        """
        file = self._file(name, is_table=True)
        if point is not None:
            one = self._point(point)
            return Table(file.name, tuple(read_rows(self.path / one.label / file.path, self._texts(file, one.label))))
        there = [label for label in self.points if (self.path / label / file.path).is_file()]
        parts = [(self.points[label], read_rows(self.path / label / file.path, self._texts(file, label))) for label in there]
        return stacked(file.name, parts, [label for label in self.points if label not in there])

    def tensor(self, name: str, point: str | SavedPoint | Mapping[str, Any] | None = None, key: str | None = None) -> SavedTensor:
        """Returns a tensor, of which no number is read yet.

        Args:
            name: of the file, as of a table; or of a tensor in one.
            point: which; of a run without a sweep it may be left out.
            key: of the tensor in the file, where it holds several.

        Raises:
            UsageError: there is no such tensor or point, or there are several tensors.
            DataError: the file can't be read.
        """
        one = self._point(point)
        try:
            file = self._file(name, is_table=False)
        except UsageError:
            found = [each for each in one.tensors().values() if each.key == name]
            if key is not None or len(found) != 1:
                raise
            return found[0]
        path = self.path / one.label / file.path
        keys = tensor_keys(path)
        for wanted in (key, file.value if key is None else None, keys[0] if key is None and len(keys) == 1 else None):
            if wanted in keys:
                return SavedTensor(path, wanted)
        expected = f"a tensor of the file as `key` ({_some(keys)})"
        raise UsageError(Problem(name, expected, "none" if key is None else quoted(key), did_you_mean(key or "", keys), "name"), str(path))

    def tensors(self, point: str | SavedPoint | Mapping[str, Any] | None = None) -> dict[str, SavedTensor]:
        """Returns every tensor by name, of which no number is read yet; of several points, with their labels before the names.

        A tensor's name is its file's, with `:KEY` where the file holds more than that one.
        """
        if point is None and self.is_sweep:
            return {f"{label}/{name}": found for label in self.points for name, found in self.tensors(label).items()}
        one, found = self._point(point), dict[str, SavedTensor]()
        for file in self.files:
            path = self.path / one.label / file.path
            if not file.is_table and path.is_file():
                keys = tensor_keys(path)
                found |= {file.name if len(keys) == 1 else f"{file.name}:{key}": SavedTensor(path, key) for key in keys}
        return found

    def metrics(self) -> Table:
        """Returns every metric of every point: axes, step, metric, counts, mean, interval; of controls `KIND.mean` and the like.

        Raises:
            DataError: there is no summary.
        """
        return stacked("metrics", [(entry["axes"], [_metric_row(entry)]) for entry in self.summary.get("metrics", ())])

    def fired(self) -> Table:
        """Returns how often extraction points could fire and did, of `stream` steps and of `probe`.

        Raises:
            DataError: there is no summary.
        """
        keys = ("point", "tensor_type", "position", "eligible", "fired")
        streams = [{"axes": {}, "step": None, "points": self.summary["points"]}] if self.is_recording else self.summary.get("streams", ())
        parts = [
            (
                entry["axes"],
                [
                    {**({} if self.is_recording else {"step": entry["step"]}), **{key: each.get(key) for key in keys}}
                    for each in entry["points"]
                ],
            )
            for entry in streams
        ]
        return stacked("fired", parts)

    def array(self, metric: str, step: str | None = None, value: str = "mean") -> AxesArray:
        """Returns a metric over the sweep as numbers with named axes; NaN at points that have none.

        Args:
            metric: its name, as the summary has it.
            step: which, where several have it.
            value: a column of `metrics()`: `mean`, `low`, `high`, `eligible`, or one of a control, `shuffled_source.mean`.

        Raises:
            UsageError: there is no such metric, step or value, or several steps have it.
            DataError: there is no summary.
        """
        import numpy

        table = self.metrics()
        rows = [row for row in table.rows if row["metric"] == metric]
        if not rows:
            known = list(dict.fromkeys(row["metric"] for row in table.rows))
            raise UsageError(
                Problem("metric", f"a metric ({listed(known) or 'none'})", quoted(metric), did_you_mean(metric, known), "name"),
                str(self.path),
            )
        steps = list(dict.fromkeys(row["step"] for row in rows))
        if step is None and len(steps) > 1:
            raise UsageError(Problem("step", f"one of {listed(steps)}", "none", "several steps have this metric", "name"), str(self.path))
        if step is not None and step not in steps:
            raise UsageError(
                Problem("step", f"a step with this metric ({listed(steps)})", quoted(step), did_you_mean(step, steps), "name"),
                str(self.path),
            )
        rows = [row for row in rows if step in (None, row["step"])]
        numbers = [name for name in table.columns if any(isinstance(row[name], int | float) for row in rows) and name not in table.axes]
        if value not in numbers:
            raise UsageError(
                Problem("value", f"a number of the metric ({listed(numbers)})", quoted(value), did_you_mean(value, numbers), "name"),
                str(self.path),
            )
        coords = dict(zip(table.axes, self.axes.values(), strict=False))
        if "layer" in table.columns and "layer" not in table.axes and any(row["layer"] is not None for row in rows):
            coords["layer"] = tuple(dict.fromkeys(row["layer"] for row in rows))
        places = {dim: {show_value(each): index for index, each in enumerate(values)} for dim, values in coords.items()}
        odd = next((row for row in rows if any(show_value(row.get(dim)) not in places[dim] for dim in coords)), None)
        if odd is not None:
            got = ", ".join(f"{dim} {show_value(odd.get(dim))}" for dim in coords)
            refuse(self.path / SUMMARY, f"values of the axes that {quoted(POINTS)} has", got, quoted(odd["metric"]))
        values = numpy.full([len(each) for each in coords.values()], numpy.nan)
        for row in rows:
            if row[value] is not None:
                values[tuple(places[dim][show_value(row[dim])] for dim in coords)] = row[value]
        unit = rows[0]["unit"] if value not in ("n", "eligible") else "rows"
        return AxesArray(metric if value == "mean" else f"{metric}.{value}", values, tuple(coords), coords, unit)

    def _file(self, name: str, *, is_table: bool) -> SavedFile:
        files = [file for file in self.files if file.is_table == is_table]
        tests: Sequence[Callable[[SavedFile], bool]] = (
            lambda file: file.path == name,
            lambda file: file.name == name,
            lambda file: file.value == name,
            lambda file: file.name.rpartition("/")[2] == name,
        )
        for test in tests:
            found = [file for file in files if test(file)]
            if len({file.name for file in found}) > 1:
                expected = f"one of {listed(file.path for file in found)}"
                raise UsageError(Problem("name", expected, quoted(name), "several files hold it", "name"), str(self.path))
            if found:
                return found[0]
        known = [file.name for file in files]
        kind = "table" if is_table else "file of tensors"
        others = [file for file in self.files if file.is_table != is_table and any(test(file) for test in tests)]
        hint = f"`.{'tensor' if is_table else 'table'}({name!r})`" if others else did_you_mean(name, known)
        raise UsageError(Problem("name", f"a {kind} ({_some(known) or 'there is none'})", quoted(name), hint, "name"), str(self.path))

    def _point(self, point: str | SavedPoint | Mapping[str, Any] | None) -> SavedPoint:
        if isinstance(point, SavedPoint):
            return point
        return self.point(**point) if isinstance(point, Mapping) else self.point(point)

    def _texts(self, file: SavedFile, label: str) -> tuple[str, ...]:
        """Returns which columns of a table are text though a class may be named like a number: those of a linear probe's labels."""
        if file.value != "predictions" or not self.has_summary:
            return ()
        for entry in self.summary.get("probes", ()):
            if (entry["point"], entry["step"]) == (label, file.step):
                classes = [each["label"] for each in entry.get("classes", ())]
                return ("label", "predicted") if any(isinstance(each, str) for each in classes) else ()
        return ()

    def facts(self) -> dict[str, str]:
        """Returns what identifies the run, as text: model, digest, when, axes, failures."""
        model = self.record.get("model") or {}
        revision = f" at {model['revision'][:12]}" if model.get("revision") else ""
        dtype = f", {model['dtype']}" if model.get("dtype") else ""
        engine = f", {self.record['engine']}" if self.record.get("engine") else ""
        header = self.document.get("header") if (self.path / DOCUMENT).is_file() and isinstance(self.document, dict) else None
        title = header.get("title") if isinstance(header, dict) and isinstance(header.get("title"), str) else None
        sweep = " × ".join(f"{axis} ({len(values)})" for axis, values in self.axes.items())
        errors = (self.record.get("error") or {}).get("errors") or [{}]
        error = " ".join(f"{key} {errors[0][key]}" for key in ("path", "expected", "got") if errors[0].get(key))
        found = {
            "asked": title,
            "status": self.status + (f": {error}" if error else ""),
            "model": f"{model.get('key', '?')}{revision}{dtype}{engine}",
            "sweep": f"{sweep}, {len(self.points)} points" if sweep else "",
            "started": f"{self.record.get('started', '?')}, {self.record.get('seconds', 0):g} s",
            "digest": self.digest[:12],
        }
        return {key: text for key, text in found.items() if text}

    def __repr__(self) -> str:
        lines = [f"{key:<8} {text}" for key, text in self.facts().items()]
        tensors = [file.name for file in self.files if not file.is_table]
        for name, names in (("tables", list(self.tables)), ("tensors", tensors)):
            lines += [f"{name:<8} {_some(names, ticks=False)}"] if names else []
        metrics = [repr(self.metrics())] if self.has_summary and self.summary.get("metrics") else []
        return "\n".join([f"SavedRun {self.path}", *lines, *metrics])

    def _repr_html_(self) -> str:
        from causalab_mini.results.reading.html import run_html

        return run_html(self)


class SavedPoint:
    """One point of a run.

    Attributes:
        run: that it is of.
        label: of it, the name of its folder; empty without a sweep.
        values: of the axes.
    """

    __slots__ = ("label", "run", "values")

    def __init__(self, run: SavedRun, label: str) -> None:
        self.run, self.label = run, label
        self.values: Mapping[str, Any] = run.points[label]

    @property
    def path(self) -> Path:
        """The folder of its files."""
        return self.run.path / self.label

    @property
    def is_there(self) -> bool:
        """Whether anything of it is saved."""
        return any((self.path / file.path).is_file() for file in self.run.files)

    def table(self, name: str) -> Table:
        """Returns a table of this point, as `SavedRun.table` does."""
        return self.run.table(name, self)

    def tensor(self, name: str, key: str | None = None) -> SavedTensor:
        """Returns a tensor of this point, as `SavedRun.tensor` does."""
        return self.run.tensor(name, self, key)

    def tensors(self) -> dict[str, SavedTensor]:
        """Returns every tensor of this point, as `SavedRun.tensors` does."""
        return self.run.tensors(self)

    def metrics(self) -> Table:
        """Returns the metrics of this point.

        Raises:
            DataError: there is no summary.
        """
        entries = [entry for entry in self.run.summary.get("metrics", ()) if entry["point"] == self.label]
        return stacked("metrics", [({}, [_metric_row(entry)]) for entry in entries])

    def __repr__(self) -> str:
        return f"SavedPoint `{self.label}` of {self.run.path}: {_some([file.path for file in self.run.files], ticks=False)}"


def _metric_row(entry: Mapping[str, Any]) -> Row:
    row = {"step": entry["step"], "metric": entry["metric"], "kind": entry["kind"], "unit": entry["unit"]}
    row |= {"layer": entry["layer"]} if "layer" in entry else {}
    row |= {key: entry[key] for key in ("n", "eligible")} | _spread(entry)
    for kind, control in entry.get("controls", {}).items():
        row |= {f"{kind}.{key}": value for key, value in _spread(control).items()}
        row |= {f"{kind}.p_value": control["p_value"]} if "p_value" in control else {}
    return row


def _spread(entry: Mapping[str, Any]) -> Row:
    interval = entry.get("interval") or {}
    return {"mean": entry["mean"], "low": interval.get("low"), "high": interval.get("high"), "method": interval.get("method")}


def _some(names: Sequence[str], *, ticks: bool = True) -> str:
    shown = listed(names[:MAX_LISTED]) if ticks else ", ".join(names[:MAX_LISTED])
    return shown + (f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else "")
