"""The compile stage up to positions: a Spec, its rows and the facts of its model become a Plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from causalab_mini.data.prompts import Prompt
from causalab_mini.errors import PlanError, Problem, did_you_mean, listed, quoted
from causalab_mini.model.components import COMPONENTS
from causalab_mini.model.facts import ModelFacts
from causalab_mini.model.families import Absent
from causalab_mini.plan import plan as nodes
from causalab_mini.plan import spec as language
from causalab_mini.plan.axes import Axes, axes_of, misfit
from causalab_mini.plan.check import forward_of, forwards_of
from causalab_mini.plan.digest import digest_of_points, entries_of
from causalab_mini.plan.load import Document, load_raw
from causalab_mini.plan.position import Position
from causalab_mini.plan.problems import path_text
from causalab_mini.plan.rows import Rows
from causalab_mini.plan.spec.metrics import AnswerLogprob, ClassMatch, LogitDiff, MetricBase, Recovered, TokenMetric

OPTION_KEYS = ("how", "k")


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
        builder = _Builder(point.spec, rows, facts)
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


class _Builder:
    """Builds one point's plan; what can't be built is set down in `problems`, and building goes on."""

    def __init__(self, spec: language.Spec, rows: Rows, facts: ModelFacts) -> None:
        self.spec = spec
        self.rows = rows
        self.facts = facts
        self.problems: list[Problem] = []
        self.outputs: dict[str, nodes.Output | nodes.Difference] = {}
        self.axes: dict[str, Axes] = {}

    def say(self, path: str, expected: str, got: str, hint: str = "", code: str = "plan") -> None:
        self.problems.append(Problem(path, expected, got, hint, code))

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Sets down the problems that a part of the plan is refused with."""
        try:
            yield
        except PlanError as error:
            self.problems += error.problems

    def plan(self) -> nodes.Plan:
        steps = []
        for name, step in self.spec.steps.items():
            with self.noting():
                steps.append(self.step(name, step))
        return nodes.Plan(tuple(steps))

    # steps

    def step(self, name: str, step: language.Observe) -> nodes.Observe:
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
            interventions.append(_InterventionBuilder(self, where, intervention, step, prompts, entry_name).build())
        is_list = isinstance(step.interventions, tuple)
        outputs = self.step_outputs(path, step, interventions)
        saves = tuple(self.save(save, interventions, is_list) for save in step.saves)
        where_node = None if step.where is None else self.where(step.where)
        rows = {role: (ref, self.spec.roles[role].field) for role, ref in step.rows.items()}
        return nodes.Observe(name, labels, rows, tuple(interventions), outputs, saves, where_node, is_list)

    def where(self, where: language.Where) -> nodes.Where:
        earlier = self.spec.steps[where.step]
        found = _find(where.metric, [(n, list(item.metrics)) for n, item in entries_of(self.spec, where.step, earlier)])
        return nodes.Where(where.step, *found, where.min, where.max)

    def save(self, save: language.Save, interventions: Sequence[nodes.Intervention], is_list: bool) -> nodes.SaveNode:
        metrics = [(item.name, [metric.name for metric in item.metrics]) for item in interventions]
        if any(save.value in (name, f"{item}/{name}") for item, names in metrics for name in names):
            intervention, metric = _find(save.value, metrics)
            return nodes.SaveNode(intervention if is_list else None, f"{intervention}/{metric}", save.file_path)
        return nodes.SaveNode(None, save.value, save.file_path)

    def step_outputs(
        self, path: str, step: language.Observe, interventions: Sequence[nodes.Intervention]
    ) -> tuple[nodes.Output | nodes.Difference, ...]:
        reads = [(item.name, [read.name for forward in item.forwards for read in forward.reads]) for item in interventions]
        made: dict[str, nodes.Output | nodes.Difference] = {}
        pending = dict(step.outputs)
        while pending:
            ready = [n for n, o in pending.items() if not (isinstance(o, language.Difference) and set(o.difference) & set(pending))]
            if not ready:
                raise PlanError(
                    Problem(
                        f"{path}.outputs", "differences that can be made one after the other", f"a cycle ({listed(pending)})", code="cycle"
                    )
                )
            for name in ready:
                output = pending.pop(name)
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
                    raise PlanError(
                        Problem(f"{path}.outputs.{name}.k", f"at most {axes.n_features} directions", quoted(entry.k), code="pca")
                    )
        self.outputs.update(made)
        return tuple(made[name] for name in sorted(made, key=list(step.outputs).index))

    def difference_axes(self, path: str, output: language.Difference, known: Mapping[str, nodes.Output | nodes.Difference]) -> Axes:
        minuend, subtrahend = output.difference
        for index, part in enumerate(output.difference):
            if isinstance(found := known[part], nodes.Output) and found.reduce == "mean_by":
                raise PlanError(Problem(f"{path}[{index}]", "an output that is not one of groups", f"{quoted(part)} (`mean_by`)"))
        if problems := misfit(f"{path}[1]", subtrahend, self.axes[subtrahend], self.axes[minuend]):
            raise PlanError(problems)
        return self.axes[minuend]

    def groups(self, ref: str, column: str, path: str) -> tuple[str, ...]:
        cells = self.rows.column(ref, column, path)
        if any(cell is None for cell in cells):
            raise PlanError(Problem(path, "a group on every row", f"none on row {cells.index(None)}", code="column"))
        return tuple(str(cell) for cell in cells)

    # sites

    def site(self, site: str | language.Site, path: str) -> nodes.Site:
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


class _InterventionBuilder:
    """Builds one intervention of a step."""

    def __init__(
        self,
        owner: _Builder,
        path: str,
        intervention: language.Intervention,
        step: language.Observe,
        prompts: Mapping[str, tuple[Prompt, ...]],
        name: str,
    ) -> None:
        self.owner = owner
        self.rows = owner.rows
        self.path = path
        self.intervention = intervention
        self.step = step
        self.prompts = prompts
        self.name = name
        self.hidden: dict[tuple[str, str], list[nodes.Read]] = {}
        self.before: dict[tuple[str, str], tuple[str, tuple[str, ...]]] = {}

    def build(self) -> nodes.Intervention:
        owner = self.owner
        writes: dict[tuple[str, str], list[nodes.Write]] = {}
        forwards = forwards_of(self.intervention)
        for model, role in forwards:
            definition = self.intervention.models.get(model)
            for name in definition.writes if definition is not None else ():
                with owner.noting():
                    writes.setdefault((model, role), []).append(self.write(name, model, role))
        for key, (model, earlier) in self.before.items():
            writes[key] = [write for write in writes.get((model, key[1]), []) if write.name in earlier]
        reads: dict[tuple[str, str], list[nodes.Read]] = {}
        for name, read in self.intervention.reads.items():
            forward = forward_of(read, self.intervention)
            assert forward is not None
            with owner.noting():
                site = owner.site(read.site, f"{self.path}.reads.{name}")
                anchors = self.anchors(read.pos, forward[1], f"{self.path}.reads.{name}.pos")
                key_anchors = None if read.keys is None else self.anchors(read.keys, forward[1], f"{self.path}.reads.{name}.keys")
                node = nodes.Read(name, site, read.pos, anchors, read.view, keys=read.keys, key_anchors=key_anchors)
                reads.setdefault(forward, []).append(node)
        for key, extra in self.hidden.items():
            reads.setdefault(key, []).extend(extra)
        built = []
        for model, role in [*forwards, *(key for key in self.hidden if key not in forwards)]:
            built.append(self.forward(model, role, writes.get((model, role), []), reads.get((model, role), [])))
        metrics = []
        for name, metric in self.intervention.metrics.items():
            with owner.noting():
                metrics.append(self.metric(name, metric, built))
        ordered = _in_order(built)
        self.refuse_late_operands(ordered)
        self.refuse_misfits(ordered, metrics)
        return nodes.Intervention(self.name, tuple(ordered), tuple(metrics), self.path)

    def forward(self, model: str, role: str, writes: Sequence[nodes.Write], reads: Sequence[nodes.Read]) -> nodes.Forward:
        both: list[nodes.Write | nodes.Read] = [*writes, *reads]
        places = sorted(both, key=lambda place: (place.site.rank, isinstance(place, nodes.Read)))
        prompts = self.prompts[role]
        key = (self.step.rows[role], self.owner.spec.roles[role].field)
        return nodes.Forward(model, role, key, len(prompts), max(prompt.n_tokens for prompt in prompts), tuple(places))

    def anchors(self, pos: Position, role: str, path: str) -> nodes.Anchors | None:
        return self.rows.anchors(pos.scope, self.step.rows[role], self.owner.spec.roles[role], path)

    # writes

    def write(self, name: str, model: str, role: str) -> nodes.Write:
        path = f"{self.path}.writes.{name}"
        write = self.intervention.writes[name]
        site = self.owner.site(write.site, path)
        anchors = self.anchors(write.pos, role, f"{path}.pos")
        operand: nodes.Operand | None = None
        match write.operand:
            case str():
                operand = nodes.FromRead(write.operand)
            case language.OutputRef():
                operand = self.output_operand(write.operand.ref, role, site, f"{path}.operand")
            case float() | int():
                operand = nodes.Constant(float(write.operand))
        if write.mechanism == "permute":
            operand = self.other_row(name, model, role, site, write, anchors)
            if len(self.prompts[role]) < 2:
                raise PlanError(Problem(path, "at least two rows (`permute` takes another row's value)", "one", code="rows"))
        order = self.intervention.models[model].writes.index(name)
        key_anchors = self.key_anchors(write, role, name)
        return nodes.Write(
            name, site, write.pos, anchors, write.mechanism, operand, write.params, write.align, order, write.keys, key_anchors
        )

    def key_anchors(self, write: language.Write, role: str, name: str) -> nodes.Anchors | None:
        return None if write.keys is None else self.anchors(write.keys, role, f"{self.path}.writes.{name}.keys")

    def output_operand(self, ref: str, role: str, site: nodes.Site, path: str) -> nodes.FromOutput:
        output = self.owner.outputs.get(ref)
        if output is not None and (problems := misfit(path, ref, self.owner.axes[ref], axes_of(site, "raw", self.owner.facts))):
            raise PlanError(problems)
        if isinstance(output, nodes.Output) and output.reduce == "mean_by":
            column = next(
                entry.by
                for step in self.owner.spec.steps.values()
                for name, entry in step.outputs.items()
                if name == ref and isinstance(entry, language.Output)
            )
            groups = self.owner.groups(self.step.rows[role], str(column), path)
            assert output.groups is not None
            if unknown := sorted(set(groups) - set(output.groups)):
                raise PlanError(
                    Problem(path, f"groups that {quoted(ref)} has ({listed(sorted(set(output.groups)))})", listed(unknown), code="column")
                )
            return nodes.FromOutput(ref, groups)
        return nodes.FromOutput(ref)

    def other_row(
        self, name: str, model: str, role: str, site: nodes.Site, write: language.Write, anchors: nodes.Anchors | None
    ) -> nodes.FromRead:
        """Returns the operand of a `permute`: the value that stands here on another row, before this write.

        It is read in a forward of its own, with the writes that this model has before this one.
        """
        assert write.params.seed is not None
        listed_writes = self.intervention.models[model].writes
        sites = {entry: self.owner.site(self.intervention.writes[entry].site, "") for entry in listed_writes}
        earlier = tuple(
            entry
            for index, entry in enumerate(listed_writes)
            if entry != name and (sites[entry].rank, index) < (site.rank, listed_writes.index(name))
        )
        source = "original" if not earlier else f"{model} before {name}"
        read = f"{name}@{model}@{role}"
        self.hidden.setdefault((source, role), []).append(
            nodes.Read(read, site, write.pos, anchors, is_hidden=True, keys=write.keys, key_anchors=self.key_anchors(write, role, name))
        )
        operands = [self.intervention.writes[entry].operand for entry in earlier]
        own = [entry for entry in operands if isinstance(entry, str) and self.intervention.reads[entry].model == model]
        if own:
            expected = "`permute` after writes whose operands come from other models"
            raise PlanError(Problem(f"{self.path}.writes.{name}", expected, f"{listed(own)}, read in {quoted(model)} itself", code="order"))
        if earlier:
            self.before[source, role] = (model, earlier)
        return nodes.FromRead(read, f"{write.params.seed}/{name}")

    def refuse_late_operands(self, forwards: Sequence[nodes.Forward]) -> None:
        """Refuses an operand that the same forward reads only at or after the place where it is written."""
        for forward in forwards:
            reads = {read.name: read for read in forward.reads}
            for write in forward.writes:
                read = reads.get(write.operand.read) if isinstance(write.operand, nodes.FromRead) else None
                if read is not None and read.site.last_rank >= write.site.rank:
                    got = f"{quoted(read.name)} at `{read.site}`, written at `{write.site}`"
                    expected = "an operand that is read earlier in the same forward"
                    self.owner.say(f"{self.path}.writes.{write.name}.operand", expected, got, code="order")

    def refuse_misfits(self, forwards: Sequence[nodes.Forward], metrics: Sequence[nodes.Metric]) -> None:
        """Refuses operands, and reads that are compared, with other features or layers than what they are for."""
        facts = self.owner.facts
        axes = {read.name: axes_of(read.site, read.view, facts) for forward in forwards for read in forward.reads}
        for write in {write.name: write for forward in forwards for write in forward.writes}.values():
            if isinstance(write.operand, nodes.FromRead) and write.operand.read in axes:
                place, name = axes_of(write.site, "raw", facts), write.operand.read
                self.owner.problems += misfit(f"{self.path}.writes.{write.name}.operand", name, axes[name], place)
        for metric in metrics:
            for key, name in metric.reads.items():
                if key not in ("of", "answer") and name in axes and metric.reads["of"] in axes:
                    self.owner.problems += misfit(f"{self.path}.metrics.{metric.name}.{key}", name, axes[name], axes[metric.reads["of"]])

    # metrics

    def metric(self, name: str, metric: MetricBase, forwards: list[nodes.Forward]) -> nodes.Metric:
        path = f"{self.path}.metrics.{name}"
        reads = {key: getattr(metric, key) for key in metric.reads}
        options = {key: getattr(metric, key) for key in OPTION_KEYS if hasattr(metric, key)}
        base = self.step.rows.get("base", "")
        tokens: dict[str, tuple[Any, ...]] = {}
        is_filtered = self.step.where is not None
        if isinstance(metric, Recovered):
            scored = self.intervention.metrics[metric.metric]
            inner = self.metric(metric.metric, scored, forwards)
            if isinstance(scored, AnswerLogprob):
                for key in ("of", "clean", "corrupt"):
                    reads[f"{key} answer"] = self.answer(f"{name} {key}", reads[key], path, inner.tokens["target"], forwards)
            reads |= {key: read for key, read in inner.reads.items() if key not in reads and key != "answer"}
            return nodes.Metric(name, "recovered", metric.unit, reads, inner.tokens, options, inner)
        if isinstance(metric, AnswerLogprob):
            tokens["target"] = self.rows.tokens(base, metric.target, metric.token_form, f"{path}.target", True, is_filtered)
            reads["answer"] = self.answer(name, metric.of, path, tokens["target"], forwards)
        elif isinstance(metric, TokenMetric):
            for key in metric.columns:
                tokens[key] = self.rows.tokens(base, getattr(metric, key), metric.token_form, f"{path}.{key}", is_filtered=is_filtered)
        if isinstance(metric, LogitDiff):
            equal = [row for row, (a, b) in enumerate(zip(tokens["a"], tokens["b"], strict=True)) if a is not None and a == b]
            expected = f"two different tokens in {quoted(metric.a)} and {quoted(metric.b)}"
            if equal and not is_filtered:
                raise PlanError(Problem(path, expected, f"the same on rows {equal[:10]}", code="token"))
            bad = {row: nodes.BadCell(Problem(path, expected, f"the same on row {row}", code="token")) for row in equal}
            tokens["a"] = tuple(bad.get(row, cell) for row, cell in enumerate(tokens["a"]))
        if isinstance(metric, ClassMatch):
            tokens["classes"] = self.classes(path, metric, tokens["expected"])
        return nodes.Metric(name, _kind(metric), metric.unit, reads, tokens, options)

    def classes(self, path: str, metric: ClassMatch, expected: Sequence[int | None]) -> tuple[tuple[int, ...] | None, ...]:
        from causalab_mini.data.answers import AnswerError, answer_token

        base = self.step.rows["base"]
        cells: list[Any] = (
            [metric.classes] * len(expected)
            if isinstance(metric.classes, tuple)
            else self.rows.column(base, metric.classes, f"{path}.classes")
        )
        classes: list[tuple[int, ...] | None] = []
        for row, cell in enumerate(cells):
            if cell is None:
                classes.append(None)
                continue
            try:
                ids = (
                    tuple(answer_token(self.rows.tokenizer, text, metric.token_form) for text in cell)
                    if isinstance(cell, list | tuple)
                    else ()
                )
            except AnswerError as error:
                raise PlanError(Problem(f"{path}.classes", error.expected, f"{error.got} on row {row}", code="token")) from None
            if len(set(ids)) < 2:
                raise PlanError(
                    Problem(f"{path}.classes", "a list of at least two different tokens", f"{quoted(cell)} on row {row}", code="token")
                )
            if expected[row] is not None and expected[row] not in ids:
                raise PlanError(
                    Problem(
                        f"{path}.classes",
                        f"classes with the one of {quoted(metric.expected)}",
                        f"{quoted(cell)} on row {row}",
                        code="token",
                    )
                )
            classes.append(ids)
        return tuple(classes)

    def answer(self, name: str, scored: str, path: str, answers: Sequence[Any], forwards: list[nodes.Forward]) -> str:
        """Adds the forward that scores a whole answer: the scored model on prompts with the answers after them."""
        prompt_forward = next(forward for forward in forwards if any(read.name == scored for read in forward.reads))
        of = next(read for read in prompt_forward.reads if read.name == scored)
        if of.pos.scope is not None or of.pos.offset or (of.pos.index != -1 and of.pos.last != 1):
            expected = "a read of the last token (the answer stands after it)"
            raise PlanError(Problem(f"{path}.of", expected, f"{quoted(scored)} at `{of.pos}`", code="position"))
        read = nodes.Read(f"{scored}+{name}", of.site, Position(last=1), None, of.view, is_hidden=True)
        places = [place for place in prompt_forward.places if isinstance(place, nodes.Write)]
        appended = tuple(answer if isinstance(answer, tuple) else () for answer in answers)
        n_tokens = max(prompt.n_tokens + len(answer) for prompt, answer in zip(self.prompts[prompt_forward.role], appended, strict=True))
        longest = self.owner.facts.max_positions
        if longest is not None and n_tokens > longest:
            expected = f"at most {longest} tokens with the answer (the model's learned positions)"
            raise PlanError(Problem(f"{path}.target", expected, str(n_tokens), code="prompt"))
        forwards.append(
            nodes.Forward(
                prompt_forward.model, prompt_forward.role, prompt_forward.rows, prompt_forward.n_rows, n_tokens, (*places, read), appended
            )
        )
        return read.name


def _kind(metric: MetricBase) -> str:
    return str(getattr(metric, "kind"))  # noqa: B009 - every member of the union has it, the base has not


def _in_order(forwards: Sequence[nodes.Forward]) -> list[nodes.Forward]:
    """Returns forwards so that each comes after those whose reads it writes, as near to their own order as that allows."""
    made = {read.name: index for index, forward in enumerate(forwards) for read in forward.reads}
    ordered: list[int] = []
    while len(ordered) < len(forwards):
        for index, forward in enumerate(forwards):
            needs = {made[w.operand.read] for w in forward.writes if isinstance(w.operand, nodes.FromRead) and w.operand.read in made}
            if index not in ordered and needs - {index} <= set(ordered):
                ordered.append(index)
                break
        else:
            return list(forwards)
    return [forwards[index] for index in ordered]


def _find(value: str, by_intervention: Sequence[tuple[str, list[str]]]) -> tuple[str, str]:
    """Returns which intervention and which of its values a name means: bare where it is unique, else `intervention/name`."""
    for intervention, names in by_intervention:
        for name in names:
            if value in (name, f"{intervention}/{name}"):
                return intervention, name
    raise PlanError(Problem("", "a value", quoted(value), did_you_mean(value, [name for _, names in by_intervention for name in names])))
