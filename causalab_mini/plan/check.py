"""What a document says in two places must agree: names that refer to each other, widths, units, cycles, files.

Needs the document alone. Objects that did not validate are missing from the Spec; their names still count as declared.
"""

from __future__ import annotations

import graphlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from causalab_mini.data.fields import path_text
from causalab_mini.data.table import problem_of_ref
from causalab_mini.errors import Problem, did_you_mean, listed, quoted
from causalab_mini.plan.check_featurizers import Kept
from causalab_mini.plan.check_probe import ProbeChecker
from causalab_mini.plan.files import METRIC_SUFFIXES, TENSOR_SUFFIXES, path_problem
from causalab_mini.plan.forwards import GENERATED, forward_of, forwards_of, generations_of, roles_of, scored_in
from causalab_mini.plan.spec import (
    Attribute,
    Difference,
    Fit,
    FitProbe,
    Intervention,
    Observe,
    Output,
    OutputRef,
    Save,
    Spec,
    Step,
    Stream,
    Weights,
    as_control,
)
from causalab_mini.plan.spec.fits import TRAINING
from causalab_mini.plan.spec.metrics import AnswerLogprob, ReadMetric, Recovered, TopK
from causalab_mini.plan.spec.steps import PROBE_TABLES
from causalab_mini.plan.used import entries_of, live_writes, parts_of_differences, rows_of, saved_of, scored_rows
from causalab_mini.probing.probes import RECORD, problems_of_record
from causalab_mini.probing.spec import combinations, point_of

TABLES = ("records", "verdicts", "original.generated")
"""What a stream step has beside the tensors of its points."""


def check(spec: Spec, raw: Mapping[str, Any]) -> list[Problem]:
    """Returns everything in a document that does not agree with the rest of it.

    Args:
        spec: the document, or as much of it as is valid in itself.
        raw: the document as it was written, for the names it declares.
    """
    checker = _Checker(spec, raw)
    checker.featurizers()
    for name, intervention in spec.interventions.items():
        checker.intervention(f"interventions.{name}", intervention)
    for name in dict.fromkeys([*checker.declared("steps"), *spec.steps]):
        if name in spec.steps:
            checker.step(name, spec.steps[name])
        else:
            checker.invalid_step(name)
    checker.starts()
    return checker.problems


@dataclass
class _Checker(ProbeChecker):
    outputs: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, Mapping[str, str | None] | None] = field(default_factory=dict)

    def invalid_step(self, name: str) -> None:
        """Notes what a step that can't be judged declares, so that later steps are."""
        for output in self.declared("steps", name, "outputs"):
            self.outputs.setdefault(output, name)
        self.metrics[name] = None
        self.has_unjudged = True

    def step(self, name: str, step: Step) -> None:
        path = f"steps.{name}"
        for place, ref in ((f"{path}.{where}.{role}", ref) for where, rows in rows_of(step) for role, ref in rows.items()):
            if (wrong := problem_of_ref(ref)) is not None:
                self.problems.append(replace(wrong, path=place))
        if isinstance(step, Weights):
            self.weights(path, step)
            self.metrics[name] = {}
            self.saves(f"{path}.saves", step.saves, {}, dict.fromkeys(step.names), False, "a featurizer of `names`")
            return
        if isinstance(step, Stream):
            self.metrics[name] = {}
            self.stream(path, name, step)
            return
        if isinstance(step, FitProbe):
            self.metrics[name] = {}
            self.fit_probe(path, step, self.outputs)
            tables = dict.fromkeys(PROBE_TABLES)
            self.saves(f"{path}.saves", step.saves, tables, {"probe": None}, False, "a value of this step")
            return
        interventions = self.interventions(path, name, step)
        if interventions is None:
            self.invalid_step(name)
            return
        is_list = not isinstance(step, Attribute) and isinstance(step.interventions, tuple)
        reads = {i: self.names_in(i, item, "reads") for i, item in interventions.items()}
        scores = {i: self.names_in(i, item, "metrics") for i, item in interventions.items()}
        continuations = self.continuations(step, interventions, is_list)
        if all(self.is_whole(i, item) for i, item in interventions.items()):
            for where, rows in rows_of(step):
                self.rows(f"{path}.{where}", rows, interventions, step, continuations)
        at = {index: f"interventions.{index}" for index in interventions} | self.in_place(path, step, interventions)
        self.refs(path, interventions, at)
        metrics = _values(scores, is_list)
        if isinstance(step, Fit):
            self.fit(path, step, interventions, metrics)
        for index, item in interventions.items():
            self.uses(path, at[index], item, self.outputs)
        if not isinstance(step, Attribute):
            self.controls(path, step, interventions)
            self.where(path, step)
        if all(save.value in continuations for save in step.saves if save.value.endswith(GENERATED)):
            self.decodes(at, step, interventions)
        self.metrics[name] = _values(scores, is_list=True)
        match step:
            case Observe():
                self.step_outputs(path, name, step, reads, interventions)
                for output in sorted(set(metrics) & set(step.outputs)):
                    self.say(f"{path}.outputs.{output}", "a name that no metric of the step has (saves are by name)", quoted(output))
                what = "a metric, an output or a continuation of this step" if continuations else "a metric or an output of this step"
                self.saves(f"{path}.saves", step.saves, metrics | continuations, dict.fromkeys(step.outputs), is_list, what)
            case Fit():
                curves = dict.fromkeys(TRAINING)
                self.saves(f"{path}.saves", step.saves, curves, {}, False, "a curve of the training")
                self.saves(f"{path}.eval.saves", step.eval.saves, metrics, {}, is_list, "a metric of this step")
            case Attribute():
                self.attribute(path, step, interventions)
                self.metrics[name] = {}
                self.saves(f"{path}.saves", step.saves, {step.metric: None}, {}, False, "the metric of this step")

    def stream(self, path: str, name: str, step: Stream) -> None:
        """Judges what is recorded while a model generates."""
        if step.input is None and len(step.rows) > 1:
            self.say(f"{path}.input", f"the role that is gone on from (`rows` has {listed(step.rows)})", "none", code="missing")
        roles = [role for role in step.rows if self.known(f"{path}.rows.{role}", "a role", role, self.declared("roles"))]
        if step.input is not None and self.known(f"{path}.input", "a role of `rows`", step.input, step.rows):
            for role in roles:
                if role != step.input:
                    self.say(f"{path}.rows.{role}", f"only the role that is gone on from ({quoted(step.input)})", quoted(role))
        if step.decode == 0:
            self.say(f"{path}.decode", "at least one token", "`0`", code="range")
        raw_points, first = self.raw["steps"][name]["points"], dict[str, int]()
        for index, entry in enumerate(step.points):
            where, point = f"{path}.points[{index}]", point_of(entry)
            problems = [(path_text(inner), problem) for inner, problem in combinations(raw_points[index])]
            for key, problem in problems or [
                (problem.path.removeprefix(f"{point.name}."), problem) for problem in problems_of_record(point)
            ]:
                self.say(f"{where}.{key}", problem.expected, problem.got, problem.hint, problem.code)
            if point.name in first:
                got = f"{quoted(point.name)} again (`points[{first[point.name]}]` has it)"
                self.say(f"{where}.name", "each name once", got, code="duplicate")
            elif point.name in TABLES:
                expected = f"a name other than {listed(TABLES)} (saves are by name)"
                self.say(f"{where}.name", expected, quoted(point.name), code="name")
            first.setdefault(point.name, index)
        recorded = [entry.name for entry in step.points if entry.probe_type == RECORD]
        empty = {"records"} - ({"records"} if recorded else set()) | ({"verdicts"} if len(recorded) == len(step.points) else set())
        tables = dict.fromkeys(name for name in TABLES if name not in empty)
        points = dict.fromkeys(name for name in recorded if name not in TABLES)
        what = "a point that is recorded, or a table of this step" if points else "a table of this step"
        self.saves(f"{path}.saves", step.saves, tables, points, False, what)

    def continuations(self, step: Step, interventions: Mapping[str, Intervention], is_list: bool) -> dict[str, str | None]:
        """Returns how a step's continuations may be named, with their intervention."""
        names: dict[str, list[str]] = {}
        for name, item in interventions.items():
            models = ["original", *item.models] if item.decode else []
            roles = {model: roles_of(model, item) for model in models}
            own = [f"{model}{GENERATED}" for model in models if len(roles[model]) == 1]
            own += [f"{model}.{role}{GENERATED}" for model in models if len(roles[model]) > 1 for role in roles[model]]
            own += [saved for saved, run in saved_of(step, name, item).items() if run[1] in self.declared("roles")]
            names[name] = list(dict.fromkeys(own))
        return _values(names, is_list)

    def decodes(self, at: Mapping[str, str], step: Observe | Fit | Attribute, interventions: Mapping[str, Intervention]) -> None:
        """Refuses to generate what nothing looks at, or what can't be trained on."""
        for name, item in interventions.items():
            if not item.decode:
                continue
            if not isinstance(step, Observe):
                what = "trains" if isinstance(step, Fit) else "differentiates"
                self.say(f"{at[name]}.decode", f"none in a step that {what} (tokens are chosen one by one)", "one", code="generated")
            elif self.is_whole(name, item) and not generations_of(item, saved_of(step, name, item).values()):
                expected = "a read in the generated frame, a `generated_match`, or a save of `<model>.generated`"
                self.say(f"{at[name]}.decode", expected, "none: nothing looks at what is generated", code="generated")

    def interventions(self, path: str, name: str, step: Observe | Fit | Attribute) -> dict[str, Intervention] | None:
        """Returns a step's interventions by name, None where one is not known."""
        chosen = step.intervention if isinstance(step, Attribute) else step.interventions
        is_list, key = isinstance(chosen, tuple), "intervention" if isinstance(step, Attribute) else "interventions"
        entries = chosen if isinstance(chosen, tuple) else (chosen,)
        complete = True
        for index, entry in enumerate(entries):
            where = f"{path}.{key}[{index}]" if is_list else f"{path}.{key}"
            if isinstance(entry, str):
                known = self.known(where, "an intervention", entry, self.declared("interventions"))
                complete = complete and known and entry in self.spec.interventions
            else:
                self.intervention(where, entry)
        named = [entry for entry in entries if isinstance(entry, str)]
        if len(set(named)) != len(named):
            self.say(f"{path}.{key}", "distinct interventions", listed(named))
            complete = False
        return dict(entries_of(self.spec, name, step)) if complete else None

    def in_place(self, path: str, step: Observe | Fit | Attribute, interventions: Mapping[str, Intervention]) -> dict[str, str]:
        """Returns where the interventions are that are written in their step."""
        if isinstance(step, Attribute):
            return {key: f"{path}.intervention" for key in interventions if not isinstance(step.intervention, str)}
        entries = step.interventions if isinstance(step.interventions, tuple) else (step.interventions,)
        where = f"{path}.interventions[{{}}]" if isinstance(step.interventions, tuple) else f"{path}.interventions"
        return {key: where.format(key) for key, entry in zip(interventions, entries, strict=True) if not isinstance(entry, str)}

    def controls(self, path: str, step: Observe | Fit, interventions: Mapping[str, Intervention]) -> None:
        """Refuses controls that none of a step's interventions can have."""
        if not all(self.is_whole(index, item) for index, item in interventions.items()):
            return
        kinds = [as_control(control).kind for control in step.controls]
        writes = [write for item in interventions.values() for write in live_writes(item).values()]
        takes = [write for write in writes if isinstance(write.operand, str)]
        if kinds and not any(item.metrics for item in interventions.values()):
            self.say(f"{path}.controls", "a step with metrics (controls stand beside them)", "none", code="control")
            return
        for index, kind in enumerate(kinds):
            where = f"{path}.controls[{index}]"
            if kind in kinds[:index]:
                self.say(where, "each control once", f"{quoted(kind)} twice")
            match kind:
                case "self_swap" if generated := [name for item in interventions.values() for name in generated_writes(item)]:
                    expected = "writes in the prompt (`self_swap` puts back what stands there)"
                    self.say(where, expected, f"{listed(generated)}, in the generated frame", code="control")
                case "self_swap" if not writes or any(write.mechanism != "swap" or write not in takes for write in writes):
                    self.say(
                        where, "interventions whose writes are all swaps of reads (`self_swap`)", "other writes, or none", code="control"
                    )
                case "shuffled_source" if not takes:
                    self.say(where, "a write whose operand is a read (`shuffled_source`)", "none", code="control")
                case "shuffled_source" if own := [operand for item in interventions.values() for operand in own_operands(item)]:
                    expected = "operands of other forwards (`shuffled_source` takes those of other rows)"
                    self.say(where, expected, f"{listed(own)}, read in the forward that is written", code="control")
                case "random_subspace" if not any(self.has_subspace(write.featurizer) for write in writes):
                    self.say(where, "a write in a subspace (`random_subspace`)", "none", code="control")
                case "full_component" if all(write.featurizer is None and write.features is None for write in writes):
                    expected = "a write with a featurizer or `features` (`full_component`)"
                    self.say(where, expected, "none: it would be the same again", code="control")
                case "full_component" | "random_subspace":
                    outputs = [w.operand.ref for w in writes if w.featurizer is not None and isinstance(w.operand, OutputRef)]
                    if outputs:
                        expected = f"operands that other coordinates have too: reads or numbers ({quoted(kind)})"
                        self.say(where, expected, f"{listed(outputs)}, in the coordinates of a featurizer", code="control")

    def attribute(self, path: str, step: Attribute, interventions: Mapping[str, Intervention]) -> None:
        """Judges what an attribution is of."""
        ((name, intervention),) = interventions.items()
        known = self.known(f"{path}.metric", "a metric of the intervention", step.metric, self.names_in(name, intervention, "metrics"))
        if not known or step.metric not in intervention.metrics:
            return
        metric = intervention.metrics[step.metric]
        inner = intervention.metrics.get(metric.metric, metric) if isinstance(metric, Recovered) else metric
        if not inner.is_differentiable or isinstance(inner, AnswerLogprob):
            got = f"{quoted(step.metric)} (`{inner.kind}`)"
            self.say(f"{path}.metric", "a metric of one forward that can be differentiated", got)
        read = intervention.reads.get(metric.of) if isinstance(metric, ReadMetric) else None
        if read is not None and (site := self.site_of(read)) is not None and site.is_stacked:
            got = f"{quoted(step.metric)}, of the stacked {quoted(getattr(metric, 'of', ''))}"
            self.say(f"{path}.metric", "a metric of one layer's read", got)
        cut = [name for name, write in live_writes(intervention).items() if write.mechanism == "knockout"]
        if cut:
            hint = "an edge that is cut is no small step from one that is there"
            self.say(f"{path}.intervention", "writes that are a change of a value (no `knockout`)", listed(cut), hint)
        if read is not None and read.model == "original":
            self.say(f"{path}.metric", "a metric of a model with writes", f"{quoted(step.metric)}, of `original`")

    def rows(
        self, path: str, rows: Mapping[str, str], interventions: Mapping[str, Intervention], step: Step, continuations: Mapping[str, Any]
    ) -> None:
        runs = [run for name, item in interventions.items() for run in forwards_of(item, saved_of(step, name, item).values())]
        used = {role for _, role in runs} & set(self.declared("roles"))
        if any(metric.columns for item in interventions.values() for metric in item.metrics.values()):
            used.add("base")
        named = [
            forward_of(read, item) is not None and {read.input} <= {None, *self.declared("roles")}
            for item in interventions.values()
            for read in scored_in(item)
        ] + [save.value in continuations for save in getattr(step, "saves", ()) if save.value.endswith(GENERATED)]
        for role in rows:
            if self.known(f"{path}.{role}", "a role", role, self.declared("roles")) and role not in used and all(named):
                self.say(f"{path}.{role}", f"only roles that the step's interventions use ({listed(sorted(used))})", quoted(role))
        for role in sorted(used - set(rows)):
            self.say(path, f"rows of {quoted(role)}, which the step's interventions use", listed(rows) or "none")

    def refs(self, path: str, interventions: Mapping[str, Intervention], at: Mapping[str, str]) -> None:
        """Judges the outputs that a step's interventions write, each intervention under its own path."""
        for name, intervention in interventions.items():
            for write_name in {entry for model in intervention.models.values() for entry in model.writes}:
                write = intervention.writes.get(write_name)
                if write is None or not isinstance(write.operand, OutputRef):
                    continue
                output, where = write.operand.ref, f"{at[name]}.writes.{write_name}.operand.ref"
                if output not in self.outputs:
                    hint = did_you_mean(output, list(self.outputs)) or "outputs are declared in the `outputs` of a step before this one"
                    expected = f"an output of a step before {quoted(path)} ({listed(self.outputs) or 'there is none'})"
                    self.say(where, expected, quoted(output), hint)
                else:
                    self.fits_coordinates(where, output, write.featurizer)

    def step_outputs(
        self, path: str, name: str, step: Observe, names: Mapping[str, Sequence[str]], interventions: Mapping[str, Intervention]
    ) -> None:
        reads = _values(names, isinstance(step.interventions, tuple))
        for output_name, output in step.outputs.items():
            where = f"{path}.outputs.{output_name}"
            if output_name in self.outputs:
                self.say(
                    where, "a name that no other output has", f"{quoted(output_name)}, also of step {quoted(self.outputs[output_name])}"
                )
            if isinstance(output, Difference):
                for index, part in enumerate(output.difference):
                    if part == output_name:
                        self.say(f"{where}.difference[{index}]", "another output", "itself")
                    else:
                        before = list(self.outputs) + [other for other in step.outputs if other != output_name]
                        self.known(f"{where}.difference[{index}]", "an output", part, before)
            else:
                read = output.read if isinstance(output, Output) else output
                known = self.known(f"{where}.read" if isinstance(output, Output) else where, "a read", read, reads)
                if known and isinstance(output, Output) and output.reduce != "none":
                    self.reduction(f"{where}.reduce", output, interventions[reads[read] or ""])
        order: tuple[str, ...] = ()
        try:
            order = tuple(graphlib.TopologicalSorter(parts_of_differences(step)).static_order())
        except graphlib.CycleError as error:
            chain = " → ".join(quoted(output) for output in error.args[1])
            self.say(f"{path}.outputs", "differences that can be made one after the other", f"a cycle ({chain})", code="cycle")
        for output_name, output in step.outputs.items():
            self.outputs.setdefault(output_name, name)
            whole = Output(read=output) if isinstance(output, str) else output
            if isinstance(whole, Difference) or whole.read not in reads:
                continue
            found = interventions[reads[whole.read] or ""].reads.get(whole.read.rpartition("/")[2])
            site = None if found is None else self.site_of(found)
            if found is not None and site is not None:
                self.kept.setdefault(output_name, Kept(whole.reduce, whole.k, found.featurizer, site.is_stacked))
        for output_name in order:
            if isinstance(output := step.outputs[output_name], Difference):
                self.difference(f"{path}.outputs.{output_name}.difference[1]", output_name, *output.difference)

    def difference(self, path: str, name: str, minuend: str, subtrahend: str) -> None:
        """Refuses a difference of outputs in two systems of coordinates."""
        first, second = self.kept.get(minuend), self.kept.get(subtrahend)
        if first is None or second is None:
            return
        self.kept.setdefault(name, Kept("", None, first.featurizer, first.is_stacked))
        if self.are_declared(first.featurizer, second.featurizer):
            self.fits_coordinates(path, subtrahend, first.featurizer)

    def reduction(self, path: str, output: Output, intervention: Intervention) -> None:
        """Refuses a reduction over rows whose features are their own tokens."""
        read = intervention.reads.get(output.read.rpartition("/")[2])
        site = None if read is None else self.site_of(read)
        if site is not None and site.about.has_keys:
            hint = "a pattern has the row's own tokens as axis, which other rows do not share; a metric of kind `value` is one number a row"
            self.say(path, f"`none` at {quoted(site.component)}", quoted(output.reduce), hint, "keys")

    def where(self, path: str, step: Observe | Fit) -> None:
        if step.where is None:
            return
        earlier = self.spec.steps.get(step.where.step)
        if not self.known(f"{path}.where.step", "an earlier step", step.where.step, [n for n in self.metrics if f"steps.{n}" != path]):
            return
        metrics = self.metrics[step.where.step]
        if metrics is None or earlier is None:
            return
        if not self.known(f"{path}.where.metric", "a metric of that step", step.where.metric, metrics):
            return
        found = dict(entries_of(self.spec, step.where.step, earlier))[metrics[step.where.metric] or ""]
        metric = found.metrics.get(step.where.metric.rpartition("/")[2])
        if isinstance(metric, TopK):
            self.say(f"{path}.where.metric", "a metric whose value is a number", f"{quoted(step.where.metric)} (`top_k`)")
        own, theirs = labelled(step.rows), labelled(scored_rows(earlier))
        if own != theirs:
            got = f"{quoted(own)} here and {quoted(theirs)} there"
            self.say(f"{path}.where", "the same rows of `base` in both steps", got)

    def saves(
        self,
        path: str,
        saves: Sequence[Save],
        metrics: Mapping[str, str | None],
        tensors: Mapping[str, None],
        is_list: bool,
        what: str,
    ) -> None:
        for index, save in enumerate(saves):
            where = f"{path}[{index}]"
            if not self.known(f"{where}.value", what, save.value, {**metrics, **tensors}):
                continue
            folder = save.value.partition("/")[0] if "/" in save.value and is_list else metrics.get(save.value) if is_list else None
            is_metric = save.value in metrics
            suffixes = METRIC_SUFFIXES if is_metric else TENSOR_SUFFIXES
            if not save.file_path.endswith(suffixes):
                what = (
                    "tensor"
                    if not is_metric
                    else "continuation"
                    if save.value.endswith(GENERATED)
                    else "table"
                    if set(metrics) <= {*TABLES, *PROBE_TABLES}
                    else "metric"
                )
                self.say(
                    f"{where}.file_path", f"a file name ending in {listed(suffixes)} (for a {what})", quoted(save.file_path), code="file"
                )
            if problem := path_problem(save.file_path):
                self.say(f"{where}.file_path", "a path inside the output folder", f"{quoted(save.file_path)} ({problem})", code="file")
            elif folder is not None and (problem := path_problem(f"{folder}/{save.file_path}")):
                got = f"{quoted(f'{folder}/{save.file_path}')} ({problem})"
                self.say(f"{where}.file_path", "an intervention whose name can be that of a folder in the output folder", got, code="file")
            full = str(PurePosixPath(folder or "", save.file_path)).casefold()
            if full in self.files:
                self.say(
                    f"{where}.file_path",
                    "a file that no other save writes",
                    f"{quoted(save.file_path)}, also of `{self.files[full]}`",
                    code="file",
                )
            for other, owner in self.files.items():
                if f"{other}/".startswith(f"{full}/") != f"{full}/".startswith(f"{other}/"):
                    got = f"{quoted(save.file_path)}, beside {quoted(other)} of `{owner}`"
                    self.say(f"{where}.file_path", "a path that needs no file to be a folder", got, code="file")
            self.files.setdefault(full, where)


def own_operands(intervention: Intervention) -> list[str]:
    """Returns the reads of an intervention that are written in the forward in which they are read."""
    found: dict[str, None] = {}
    for forward in forwards_of(intervention):
        model = intervention.models.get(forward[0])
        writes = [] if model is None else [intervention.writes[name] for name in model.writes if name in intervention.writes]
        operands = [write.operand for write in writes if isinstance(write.operand, str) and write.operand in intervention.reads]
        found |= dict.fromkeys(name for name in operands if forward_of(intervention.reads[name], intervention) == forward)
    return list(found)


def generated_writes(intervention: Intervention) -> list[str]:
    """Returns the writes that are made into what is generated."""
    return [name for name, write in live_writes(intervention).items() if write.pos.is_generated]


def labelled(rows: Mapping[str, str]) -> str:
    """Returns the ref whose rows give a step its labels: that of `base`, else of its first role."""
    return rows.get("base") or next(iter(rows.values()), "")


def _values(by_intervention: Mapping[str, Sequence[str]], is_list: bool) -> dict[str, str | None]:
    """Returns how values may be named, with their intervention: qualified in a list, and bare where that is unique."""
    names: dict[str, str | None] = {}
    bare = [name for values in by_intervention.values() for name in values]
    for intervention, values in by_intervention.items():
        for name in values:
            if is_list:
                names[f"{intervention}/{name}"] = intervention
            if not is_list or bare.count(name) == 1:
                names[name] = intervention
    return names
