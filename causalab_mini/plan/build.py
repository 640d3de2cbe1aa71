"""The compile stage up to positions: a Spec, its rows and the facts of its model become a Plan."""

from __future__ import annotations

import graphlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from causalab_mini.data.fields import path_text
from causalab_mini.data.prompts import Prompt
from causalab_mini.errors import PlanError, Problem, did_you_mean, listed, quoted
from causalab_mini.model.components import COMPONENTS
from causalab_mini.model.facts import ModelFacts
from causalab_mini.model.families import Absent
from causalab_mini.plan import plan as nodes
from causalab_mini.plan import spec as language
from causalab_mini.plan.axes import Axes, axes_of, misfit
from causalab_mini.plan.digest import digest_of_points, entries_of, parts_of_differences
from causalab_mini.plan.intervention import InterventionBuilder
from causalab_mini.plan.load import Document, load_raw
from causalab_mini.plan.rows import Rows


class Opened(Protocol):
    """What an engine tells of a checkpoint before its weights are loaded."""

    @property
    def facts(self) -> ModelFacts:
        """Shapes and identity."""
        ...

    @property
    def tokenizer(self) -> Any:
        """The checkpoint's tokenizer."""
        ...


def build_request(document: Document | Mapping[str, Any], data_root: str | Path, engine: Opened) -> nodes.Request:
    """Returns everything that a run of a document needs beside weights.

    Args:
        document: a loaded document, or parsed JSON.
        data_root: the folder that refs are looked up in.
        engine: the opened checkpoint; only its facts and tokenizer are used.

    Raises:
        DocumentError: parsed JSON is no valid document.
        PlanError: the document does not fit its rows, tokenizer or model; with every problem.
    """
    loaded = document if isinstance(document, Document) else load_raw(dict(document))
    file = "" if loaded.path is None else str(loaded.path)
    facts = engine.facts
    loaded = loaded.counted(lambda path, raw: _count_all(path, raw, facts))
    rows = Rows(Path(data_root), engine.tokenizer, facts)
    points, problems = [], dict[Problem, None]()
    for point in loaded.points:
        builder = Builder(point.spec, rows, facts)
        plan = builder.plan()
        problems.update(dict.fromkeys(builder.problems))
        points.append(nodes.PlannedPoint(point.label, point.values, point.digest, plan))
    if problems:
        raise PlanError(problems, file)
    axes = {axis.name: axis.values for axis in loaded.axes}
    digest = digest_of_points((point.label, point.digest) for point in points)
    return nodes.Request(loaded.raw, digest, axes, tuple(points), rows.prompts, rows.tables, facts)


def _count_all(path: tuple[str | int, ...], raw: Any, facts: ModelFacts) -> int:
    if path[-1] == "layers":
        return facts.n_layers
    for part in path[:-1]:
        raw = raw[part]
    component = raw.get("component")
    if isinstance(component, dict):
        expected = "one component beside `heads` that are swept over all (they are counted once)"
        raise PlanError(Problem(path_text(path), expected, "a sweep of components", code="sweep"))
    return (facts.n_heads_of(component) if component in COMPONENTS else None) or 1


class Builder:
    """Builds one point's plan; what can't be built is set down in `problems`, and building goes on."""

    def __init__(self, spec: language.Spec, rows: Rows, facts: ModelFacts) -> None:
        self.spec = spec
        self.rows = rows
        self.facts = facts
        self.problems: list[Problem] = []
        self.outputs: dict[str, nodes.Output | nodes.Difference] = {}
        self.axes: dict[str, Axes] = {}

    def say(self, path: str, expected: str, got: str, hint: str = "", code: str = "plan") -> None:
        """Sets down a problem."""
        self.problems.append(Problem(path, expected, got, hint, code))

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Sets down the problems that a part of the plan is refused with."""
        try:
            yield
        except PlanError as error:
            self.problems += error.problems

    def plan(self) -> nodes.Plan:
        """Returns the plan, without the steps that can't be built."""
        steps = []
        for name, step in self.spec.steps.items():
            with self.noting():
                steps.append(self.step(name, step))
        return nodes.Plan(tuple(steps))

    # steps

    def step(self, name: str, step: language.Observe) -> nodes.Observe:
        """Returns a step of the plan.

        Raises:
            PlanError: it does not fit its rows or the model; problems of its parts are set down.
        """
        path = f"steps.{name}"
        prompts: dict[str, tuple[Prompt, ...]] = {}
        for role, ref in step.rows.items():
            with self.noting():
                prompts[role] = self.rows.prompts_of(ref, self.spec.roles[role], f"{path}.rows.{role}", f"roles.{role}")
        if set(prompts) != set(step.rows):
            raise PlanError(())
        lengths = {role: len(found) for role, found in prompts.items()}
        if len(set(lengths.values())) > 1:
            got = ", ".join(f"{n} of {quoted(role)}" for role, n in lengths.items())
            raise PlanError(Problem(f"{path}.rows", "as many rows of every role (they pair by position)", got, code="rows"))
        first = "base" if "base" in step.rows else next(iter(step.rows))
        labels = self.rows.labels(step.rows[first], f"{path}.rows.{first}")
        interventions = []
        for index, (entry_name, intervention) in enumerate(entries_of(self.spec, name, step)):
            entry = step.interventions[index] if isinstance(step.interventions, tuple) else step.interventions
            in_place = f"{path}.interventions[{index}]" if isinstance(step.interventions, tuple) else f"{path}.interventions"
            where = f"interventions.{entry_name}" if isinstance(entry, str) else in_place
            interventions.append(InterventionBuilder(self, where, intervention, step, prompts, entry_name).build())
        is_list = isinstance(step.interventions, tuple)
        outputs = self.step_outputs(path, step, interventions)
        saves = tuple(self.save(save, interventions, is_list) for save in step.saves)
        where_node = None if step.where is None else self.where(step.where)
        rows = {role: (ref, self.spec.roles[role].field) for role, ref in step.rows.items()}
        return nodes.Observe(name, labels, rows, tuple(interventions), outputs, saves, where_node, is_list)

    def where(self, where: language.Where) -> nodes.Where:
        """Returns which rows run, with the metric's intervention found."""
        earlier = self.spec.steps[where.step]
        found = _find(where.metric, [(n, list(item.metrics)) for n, item in entries_of(self.spec, where.step, earlier)])
        return nodes.Where(where.step, *found, where.min, where.max)

    def save(self, save: language.Save, interventions: Sequence[nodes.Intervention], is_list: bool) -> nodes.SaveNode:
        """Returns a save, with the intervention that its value is of."""
        metrics = [(item.name, [metric.name for metric in item.metrics]) for item in interventions]
        if any(save.value in (name, f"{item}/{name}") for item, names in metrics for name in names):
            intervention, metric = _find(save.value, metrics)
            return nodes.SaveNode(intervention if is_list else None, f"{intervention}/{metric}", save.file_path)
        return nodes.SaveNode(None, save.value, save.file_path)

    def step_outputs(
        self, path: str, step: language.Observe, interventions: Sequence[nodes.Intervention]
    ) -> tuple[nodes.Output | nodes.Difference, ...]:
        """Returns a step's outputs, each difference after its parts, and remembers them for the steps after it."""
        reads = [(item.name, [read.name for forward in item.forwards for read in forward.reads]) for item in interventions]
        made: dict[str, nodes.Output | nodes.Difference] = {}
        for name in graphlib.TopologicalSorter(parts_of_differences(step)).static_order():
            output = step.outputs[name]
            if isinstance(output, language.Difference):
                made[name] = nodes.Difference(name, *output.difference, output.unit)
                self.axes[name] = self.difference_axes(f"{path}.outputs.{name}.difference", output, {**self.outputs, **made})
                continue
            entry = language.Output(read=output) if isinstance(output, str) else output
            intervention, read = _find(entry.read, reads)
            item = next(item for item in interventions if item.name == intervention)
            groups = None
            if entry.by is not None:
                groups = self.groups(step.rows[item.forward_of(read).role], entry.by, f"{path}.outputs.{name}.by")
            made[name] = nodes.Output(name, intervention, read, entry.reduce, entry.k, groups)
            self.axes[name] = axes = axes_of(item.read(read).site, item.read(read).view, self.facts)
            if entry.k is not None and axes.n_features is not None and entry.k > axes.n_features:
                raise PlanError(Problem(f"{path}.outputs.{name}.k", f"at most {axes.n_features} directions", quoted(entry.k), code="pca"))
        self.outputs.update(made)
        return tuple(made.values())

    def difference_axes(self, path: str, output: language.Difference, known: Mapping[str, nodes.Output | nodes.Difference]) -> Axes:
        """Returns the axes of a difference.

        Raises:
            PlanError: its two outputs have other axes.
        """
        minuend, subtrahend = output.difference
        for index, part in enumerate(output.difference):
            if isinstance(found := known[part], nodes.Output) and found.reduce == "mean_by":
                raise PlanError(Problem(f"{path}[{index}]", "an output that is not one of groups", f"{quoted(part)} (`mean_by`)"))
        if problems := misfit(f"{path}[1]", subtrahend, self.axes[subtrahend], self.axes[minuend]):
            raise PlanError(problems)
        return self.axes[minuend]

    def groups(self, ref: str, column: str, path: str) -> tuple[str, ...]:
        """Returns each row's group.

        Raises:
            PlanError: a row has none.
        """
        cells = self.rows.column(ref, column, path)
        if any(cell is None for cell in cells):
            raise PlanError(Problem(path, "a group on every row", f"none on row {cells.index(None)}", code="column"))
        return tuple(str(cell) for cell in cells)

    # sites

    def site(self, site: str | language.Site, path: str) -> nodes.Site:
        """Returns a site with its layers counted from 0.

        Raises:
            PlanError: the model has no such place, or not that many layers, heads or units.
        """
        place = self.spec.sites[site] if isinstance(site, str) else site
        path = f"sites.{site}" if isinstance(site, str) else f"{path}.site"
        layers = (
            range(self.facts.n_layers)
            if place.layers == "all"
            else (place.layers,)
            if isinstance(place.layers, int)
            else place.layers or ()
        )
        resolved = []
        for layer in layers:
            assert isinstance(layer, int)
            if not -self.facts.n_layers <= layer < self.facts.n_layers:
                expected = f"a layer from 0 to {self.facts.n_layers - 1}, or negative from the top"
                raise PlanError(Problem(f"{path}.layers", expected, quoted(layer), code="layer"))
            resolved.append(layer % self.facts.n_layers)
        if len(set(resolved)) != len(resolved):
            raise PlanError(Problem(f"{path}.layers", "distinct layers", f"{listed(layers)} of {self.facts.n_layers}", code="layer"))
        addresses: Sequence[int | None] = resolved or [None]
        for address in addresses:
            found = self.facts.place(place.component, address)
            if isinstance(found, Absent):
                expected = f"a component that {quoted(self.facts.model_type)} models have"
                raise PlanError(Problem(f"{path}.component", expected, f"{quoted(place.component)}: {found.reason}", code="component"))
        for axis, n in (("heads", self.facts.n_heads_of(place.component)), ("units", self.facts.width(place.component))):
            for index in getattr(place, axis) or ():
                if n is not None and index >= n:
                    raise PlanError(
                        Problem(f"{path}.{axis}", f"below {n} (the width of {quoted(place.component)})", quoted(index), code=axis)
                    )
        return nodes.Site(place.component, tuple(resolved), place.is_stacked, place.heads, place.units)


def _find(value: str, by_intervention: Sequence[tuple[str, list[str]]]) -> tuple[str, str]:
    """Returns which intervention and which of its values a name means: bare where it is unique, else `intervention/name`."""
    for intervention, names in by_intervention:
        for name in names:
            if value in (name, f"{intervention}/{name}"):
                return intervention, name
    raise PlanError(Problem("", "a value", quoted(value), did_you_mean(value, [name for _, names in by_intervention for name in names])))
