"""The compile stage up to positions: a Spec, its rows and the facts of its model become a Plan."""

from __future__ import annotations

import graphlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from causalab_mini.data.fields import path_text
from causalab_mini.data.prompts import Prompt
from causalab_mini.errors import Issue, PlanError, Problem, listed, quoted
from causalab_mini.model.components import COMPONENTS
from causalab_mini.model.facts import ModelFacts
from causalab_mini.model.families import Absent
from causalab_mini.plan import plan as nodes
from causalab_mini.plan import spec as language
from causalab_mini.plan.axes import Axes, axes_of, misfit
from causalab_mini.plan.controls import control_of
from causalab_mini.plan.digest import canonical, digest_of, digest_of_points
from causalab_mini.plan.featurizers import FeaturizerBuilder, Files
from causalab_mini.plan.forwards import roles_behind
from causalab_mini.plan.intervention import InterventionBuilder
from causalab_mini.plan.load import Document, load_raw
from causalab_mini.plan.probes import ProbeBuilder
from causalab_mini.plan.rows import Rows
from causalab_mini.plan.spec.steps import IG_STEPS
from causalab_mini.plan.used import entries_of, files_of, parts_of_differences, saved_of, tables_of
from causalab_mini.probing.probes import Binding
from causalab_mini.probing.request import make_request, watch
from causalab_mini.probing.spec import ProbeSpec, point_of


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
    files = Files((*(() if loaded.path is None else (loaded.path.parent,)), Path.cwd()))
    points, problems = [], dict[Problem, None]()
    for point in loaded.points:
        builder = Builder(point.spec, rows, facts, files)
        plan = builder.plan()
        problems.update(dict.fromkeys(builder.problems))
        meaning = canonical(point.spec)
        tables, read = tables_of(point.spec), (*files_of(point.spec), *builder.probe_files)
        points.append(nodes.PlannedPoint(point.label, point.values, digest_of(meaning), plan, meaning, tables, read))
    if problems:
        raise PlanError(problems, file)
    axes = {axis.name: axis.values for axis in loaded.axes}
    digest = digest_of_points((point.label, point.digest) for point in points)
    return nodes.Request(loaded.raw, digest, axes, tuple(points), rows.prompts, rows.tables, facts, files.checksums)


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

    def __init__(self, spec: language.Spec, rows: Rows, facts: ModelFacts, files: Files) -> None:
        self.spec = spec
        self.rows = rows
        self.facts = facts
        self.problems: list[Problem] = []
        self.probe_files: dict[str, None] = {}
        self.outputs: dict[str, nodes.Output | nodes.Difference] = {}
        self.sources: dict[str, nodes.Observe] = {}
        self.axes: dict[str, Axes] = {}
        self.widths: dict[str, int] = {}
        self.files = files
        self.featurizers = FeaturizerBuilder(self, files)

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

    def step(self, name: str, step: language.Step) -> nodes.Step:
        """Returns a step of the plan.

        Raises:
            PlanError: it does not fit its rows or the model; problems of its parts are set down.
        """
        path = f"steps.{name}"
        match step:
            case language.Observe():
                observed = self.observed(name, step, step.rows, f"{path}.rows", step.where)
                is_list = isinstance(step.interventions, tuple)
                outputs = self.step_outputs(path, step, observed.interventions)
                said = {item: saved_of(step, item, intervention) for item, intervention in entries_of(self.spec, name, step)}
                saves = tuple(self.save(save, observed.interventions, is_list, said) for save in step.saves)
                controls = self.controls(path, step, observed)
                made = replace(observed, outputs=outputs, saves=saves, controls=controls)
                self.sources |= dict.fromkeys(step.outputs, made)
                return made
            case language.Fit():
                return self.fit(name, step)
            case language.Weights():
                saves = tuple(nodes.SaveNode(None, save.value, save.file_path) for save in step.saves)
                return nodes.Weights(name, tuple(self.featurizers.named(entry) for entry in step.names), saves)
            case language.Attribute():
                observed = self.observed(name, step, step.rows, f"{path}.rows", None)
                saves = tuple(nodes.SaveNode(None, save.value, save.file_path) for save in step.saves)
                n_steps = 1 if step.method == "atp" else step.ig_steps or IG_STEPS
                return nodes.Attribute(name, observed, step.metric, step.method, n_steps, step.verify_top, saves)
            case language.Stream():
                return self.stream(name, step)
            case language.FitProbe():
                return ProbeBuilder(self).probe(name, step, self.sources, self.roles_of(step))

    def roles_of(self, step: language.FitProbe) -> list[str]:
        """Returns the roles whose prompts the features of a probe depend on."""
        if step.features not in self.sources:
            return []
        source = self.sources[step.features]
        output = next(output for output in source.outputs if output.name == step.features)
        assert isinstance(output, nodes.Output)
        entries = dict(entries_of(self.spec, source.name, self.spec.steps[source.name]))
        intervention = entries[output.intervention]
        return roles_behind(intervention.reads[output.read], intervention)

    def stream(self, name: str, step: language.Stream) -> nodes.Stream:
        """Returns a step that records while the model generates.

        Raises:
            PlanError: a point does not fit the model, or a row is too long.
        """
        path, role, ref = f"steps.{name}", step.role, step.rows[step.role]
        field, decode = self.spec.roles[role].field, language.as_decode(step.decode)
        assert decode is not None
        prompts = self.rows.prompts_of(ref, self.spec.roles[role], f"{path}.rows.{role}", f"roles.{role}")
        labels = self.rows.labels(ref, f"{path}.rows.{role}")
        empty = [label for label, prompt in zip(labels, prompts, strict=True) if not prompt.n_content]
        if empty:
            raise PlanError(
                Problem(f"{path}.rows.{role}", "texts of at least one token", f"row {quoted(empty[0])}, which has none", code="prompt")
            )
        spec = ProbeSpec(tuple(point_of(entry) for entry in step.points))
        try:
            watched = watch(spec, self.facts, self.rows.tokenizer, Binding(folder=self.files.bases[0]))
            make_request(watched, prompts, decode)
        except PlanError as error:
            raise PlanError([self.problem_of_stream(path, role, spec, labels, problem) for problem in error.problems]) from None
        for point in spec:
            bound = watched.probes.get(point.name)
            checksums = {point.probe_kwargs[key]: sha256 for key, sha256 in bound.checksums.items()} if bound else {}
            self.files.others |= checksums
            self.probe_files |= dict.fromkeys(checksums)
        saves = tuple(nodes.SaveNode(None, save.value, save.file_path) for save in step.saves)
        return nodes.Stream(name, labels, role, (ref, field), watched, decode, saves, tuple(prompt.n_tokens for prompt in prompts))

    def problem_of_stream(self, path: str, role: str, spec: ProbeSpec, labels: Sequence[str], problem: Problem) -> Problem:
        """Returns what does not fit of a spec over prompts, with where that is in the document."""
        if isinstance(problem, Issue):
            at = f"{path}.points[{spec.names.index(problem.point)}].{problem.path.removeprefix(f'{problem.point}.')}"
            hint = '`"attn_implementation": "eager"` in `model`' if problem.code == "absent" and problem.hint else ""
            return Problem(at, problem.expected, problem.got, hint, problem.code)
        row = int(problem.path.removeprefix("request "))
        return Problem(f"{path}.rows.{role}", problem.expected, f"{problem.got} on row {quoted(labels[row])}", problem.hint, problem.code)

    def observed(
        self,
        name: str,
        step: language.Observe | language.Fit | language.Attribute,
        refs: Mapping[str, str],
        rows_path: str,
        where: language.Where | None,
    ) -> nodes.Observe:
        """Returns a step's interventions over some rows.

        Raises:
            PlanError: they don't fit these rows or the model.
        """
        path = f"steps.{name}"
        prompts: dict[str, tuple[Prompt, ...]] = {}
        for role, ref in refs.items():
            with self.noting():
                prompts[role] = self.rows.prompts_of(ref, self.spec.roles[role], f"{rows_path}.{role}", f"roles.{role}")
        if set(prompts) != set(refs):
            raise PlanError(())
        lengths = {role: len(found) for role, found in prompts.items()}
        if len(set(lengths.values())) > 1:
            got = ", ".join(f"{n} of {quoted(role)}" for role, n in lengths.items())
            raise PlanError(Problem(rows_path, "as many rows of every role (they pair by position)", got, code="rows"))
        first = "base" if "base" in refs else next(iter(refs))
        labels = self.rows.labels(refs[first], f"{rows_path}.{first}")
        interventions = []
        entries = step.intervention if isinstance(step, language.Attribute) else step.interventions
        key = "intervention" if isinstance(step, language.Attribute) else "interventions"
        for index, (entry_name, intervention) in enumerate(entries_of(self.spec, name, step)):
            entry = entries[index] if isinstance(entries, tuple) else entries
            in_place = f"{path}.{key}[{index}]" if isinstance(entries, tuple) else f"{path}.{key}"
            at = f"interventions.{entry_name}" if isinstance(entry, str) else in_place
            saved = tuple(saved_of(step, entry_name, intervention).values())
            interventions.append(InterventionBuilder(self, at, intervention, refs, where is not None, prompts, entry_name, saved).build())
        is_list = isinstance(entries, tuple)
        where_node = None if where is None else self.where(where)
        rows = {role: (ref, self.spec.roles[role].field) for role, ref in refs.items()}
        return nodes.Observe(name, labels, rows, tuple(interventions), (), (), where_node, is_list)

    def fit(self, name: str, step: language.Fit) -> nodes.Fit:
        """Returns a fit.

        Raises:
            PlanError: it does not fit its rows or the model, or is judged on rows that it is trained on.
        """
        path = f"steps.{name}"
        training = self.observed(name, step, step.rows, f"{path}.rows", step.where)
        evaluation = self.observed(name, step, step.eval.rows, f"{path}.eval.rows", None)
        self.refuse_shared_rows(path, training, evaluation)
        self.refuse_moving_permutes(step, training)
        metrics = [(item.name, [metric.name for metric in item.metrics]) for item in evaluation.interventions]
        terms = []
        for weight, term in step.objective:
            gate, _, penalty = term.rpartition(".")
            if gate:
                terms.append(nodes.Term(float(weight), gate=gate, penalty=penalty))
            else:
                terms.append(nodes.Term(float(weight), *_find(term, metrics)))
        stop = step.early_stop
        score = None if stop is None else (*_find(stop.metric, metrics), stop.mode == "max")
        saves = tuple(self.save(save, evaluation.interventions, evaluation.is_list) for save in step.eval.saves)
        return nodes.Fit(
            name,
            training,
            replace(evaluation, saves=saves, controls=self.controls(path, step, evaluation)),
            tuple(self.featurizers.named(param) for param in step.params),
            tuple(terms),
            step.epochs,
            step.pairs,
            step.seed,
            step.optimizer,
            {gate: (anneal.start, anneal.end) for gate, anneal in step.anneal.items()},
            score,
            None if stop is None else stop.patience,
            step.keep,
            tuple(nodes.SaveNode(None, save.value, save.file_path) for save in step.saves),
        )

    def refuse_moving_permutes(self, step: language.Fit, training: nodes.Observe) -> None:
        """Refuses a `permute` of values that the training changes: an update has but some of the rows that they would be of."""
        for intervention in training.interventions:
            moving: set[str] = set()
            for forward in intervention.forwards:
                featurizers = [part for write in forward.writes if write.featurizer is not None for part in write.featurizer.all]
                operands = [write.operand for write in forward.writes if isinstance(write.operand, nodes.FromRead)]
                if any(part.name in step.params for part in featurizers) or any(operand.read in moving for operand in operands):
                    moving |= {read.name for read in forward.reads}
                for write in forward.writes:
                    operand = write.operand
                    if isinstance(operand, nodes.FromRead) and operand.derangement is not None and operand.read in moving:
                        expected = "`permute` of values that the training does not change (an update has but some rows)"
                        self.say(
                            f"{intervention.path}.writes.{write.name}", expected, f"values behind {listed(step.params)}", code="control"
                        )

    def refuse_shared_rows(self, path: str, training: nodes.Observe, evaluation: nodes.Observe) -> None:
        """Refuses rows to be judged on that are trained on: those whose prompts are the same in every role."""

        def contents(observed: nodes.Observe) -> list[tuple[tuple[int, ...], ...]]:
            prompts = [self.rows.prompts[observed.rows[role]] for role in sorted(observed.rows)]
            return [tuple(prompt.ids for prompt in row) for row in zip(*prompts, strict=True)]

        trained = {content: row for row, content in enumerate(contents(training))}
        both = [(row, trained[content]) for row, content in enumerate(contents(evaluation)) if content in trained]
        if both:
            row, other = both[0]
            got = f"row {quoted(evaluation.labels[row])}, which is row {quoted(training.labels[other])} of those"
            got += f", and {len(both) - 1} more" if len(both) > 1 else ""
            raise PlanError(Problem(f"{path}.eval.rows", "rows whose prompts are not among those that are trained on", got, code="rows"))

    def controls(self, path: str, step: language.Observe | language.Fit, observed: nodes.Observe) -> tuple[nodes.Control, ...]:
        """Returns the controls of a step's interventions."""
        found = []
        for index, entry in enumerate(step.controls):
            control = language.as_control(entry)
            for intervention in observed.interventions:
                with self.noting():
                    made = control_of(intervention, control, f"{path}.controls[{index}]")
                    if made is not None:
                        found.append(made)
        return tuple(found)

    def where(self, where: language.Where) -> nodes.Where:
        """Returns which rows run, with the metric's intervention found."""
        earlier = self.spec.steps[where.step]
        found = _find(where.metric, [(n, list(item.metrics)) for n, item in entries_of(self.spec, where.step, earlier)])
        return nodes.Where(where.step, *found, where.min, where.max)

    def save(
        self,
        save: language.Save,
        interventions: Sequence[nodes.Intervention],
        is_list: bool,
        said: Mapping[str, Mapping[str, tuple[str, str]]] | None = None,
    ) -> nodes.SaveNode:
        """Returns a save, with the intervention that its value is of.

        Args:
            save: as the document has it.
            interventions: of the step.
            is_list: whether values are kept apart by intervention.
            said: by intervention, whose continuations are saved, by the names that they have there.
        """
        metrics = [(item.name, [metric.name for metric in item.metrics]) for item in interventions]
        if any(save.value in (name, f"{item}/{name}") for item, names in metrics for name in names):
            intervention, metric = _find(save.value, metrics)
            return nodes.SaveNode(intervention if is_list else None, f"{intervention}/{metric}", save.file_path)
        for item in interventions:
            runs = (said or {}).get(item.name, {})
            run = runs.get(save.value) or (runs.get(save.value.removeprefix(f"{item.name}/")) if is_list else None)
            for forward in item.generations if run is not None else ():
                if (forward.model, forward.role) == run:
                    value = item.name_of_generation(forward)
                    return nodes.SaveNode(item.name if is_list else None, f"{item.name}/{value}" if is_list else value, save.file_path)
        return nodes.SaveNode(None, save.value, save.file_path)

    def step_outputs(
        self, path: str, step: language.Observe, interventions: Sequence[nodes.Intervention]
    ) -> tuple[nodes.Output | nodes.Difference, ...]:
        """Returns a step's outputs, each difference after its parts, and remembers them for the steps after it."""
        reads = [(item.name, [read.name for forward in item.runs for read in forward.reads]) for item in interventions]
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
            node = item.read(read)
            self.axes[name] = axes = axes_of(node.site, node.view, self.facts, node.featurizer)
            self.widths[name] = node.pos.width if node.pos.width is not None and item.is_rectangle(node) else 1
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
                    what = "heads" if axis == "heads" else "width"
                    raise PlanError(
                        Problem(f"{path}.{axis}", f"below {n} (the {what} of {quoted(place.component)})", quoted(index), code=axis)
                    )
        return nodes.Site(place.component, tuple(resolved), place.is_stacked, place.heads, place.units)


def _find(value: str, by_intervention: Sequence[tuple[str, list[str]]]) -> tuple[str, str]:
    """Returns which intervention and which of its values a name means: bare where it is unique, else `intervention/name`.

    Raises:
        PlanError: the value could not be built, which has been said.
    """
    for intervention, names in by_intervention:
        for name in names:
            if value in (name, f"{intervention}/{name}"):
                return intervention, name
    raise PlanError(())
