"""What a document says in two places must agree: names that refer to each other, widths, units, cycles, files.

Needs the document alone. Objects that did not validate are missing from the Spec; their names still count as declared.
"""

from __future__ import annotations

import graphlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from causalab_mini.errors import Problem, did_you_mean, listed, quoted
from causalab_mini.plan.check_intervention import InterventionChecker
from causalab_mini.plan.digest import entries_of, parts_of_differences
from causalab_mini.plan.files import METRIC_SUFFIXES, TENSOR_SUFFIXES, path_problem
from causalab_mini.plan.forwards import forward_of, forwards_of
from causalab_mini.plan.spec import Difference, Intervention, Observe, Output, OutputRef, Spec
from causalab_mini.plan.spec.metrics import TopK

SECTIONS = ("reads", "writes", "models", "metrics")


def check(spec: Spec, raw: Mapping[str, Any]) -> list[Problem]:
    """Returns everything in a document that does not agree with the rest of it.

    Args:
        spec: the document, or as much of it as is valid in itself.
        raw: the document as it was written, for the names it declares.
    """
    checker = _Checker(spec, raw)
    for name, intervention in spec.interventions.items():
        checker.intervention(f"interventions.{name}", intervention)
    for name in dict.fromkeys([*checker.declared("steps"), *spec.steps]):
        if name in spec.steps:
            checker.step(name, spec.steps[name])
        else:
            checker.invalid_step(name)
    return checker.problems


@dataclass
class _Checker(InterventionChecker):
    outputs: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, Mapping[str, str | None] | None] = field(default_factory=dict)

    def invalid_step(self, name: str) -> None:
        """Notes what a step that can't be judged declares, so that later steps are."""
        for output in self.declared("steps", name, "outputs"):
            self.outputs.setdefault(output, name)
        self.metrics[name] = None

    def step(self, name: str, step: Observe) -> None:
        path = f"steps.{name}"
        entries = step.interventions if isinstance(step.interventions, tuple) else (step.interventions,)
        is_list = isinstance(step.interventions, tuple)
        complete = True
        for index, entry in enumerate(entries):
            where = f"{path}.interventions[{index}]" if is_list else f"{path}.interventions"
            if isinstance(entry, str):
                known = self.known(where, "an intervention", entry, self.declared("interventions"))
                complete = complete and known and entry in self.spec.interventions
            else:
                self.intervention(where, entry)
        named = [entry for entry in entries if isinstance(entry, str)]
        if len(set(named)) != len(named):
            self.say(f"{path}.interventions", "distinct interventions", listed(named))
            complete = False
        if not complete:
            self.invalid_step(name)
            return
        interventions = dict(entries_of(self.spec, name, step))
        in_place = {
            key: f"{path}.interventions[{key}]" if is_list else f"{path}.interventions"
            for key, entry in zip(interventions, entries, strict=True)
            if not isinstance(entry, str)
        }
        reads = {i: self.names_in(i, item, "reads") for i, item in interventions.items()}
        scores = {i: self.names_in(i, item, "metrics") for i, item in interventions.items()}
        if all(self.is_whole(i, item) for i, item in interventions.items()):
            self.rows(path, step, interventions)
        self.refs(path, interventions, in_place)
        self.step_outputs(path, name, step, reads, interventions)
        self.metrics[name] = _values(scores, is_list=True)
        self.where(path, step)
        self.saves(path, step, scores, is_list)

    def names_in(self, name: str, intervention: Intervention, section: str) -> list[str]:
        """Returns what an intervention declares in a section, valid or not."""
        declared = self.declared("interventions", name, section) if self.spec.interventions.get(name) is intervention else []
        return declared or list(getattr(intervention, section))

    def is_whole(self, name: str, intervention: Intervention) -> bool:
        """Returns whether everything that an intervention declares is valid in itself."""
        return all(len(self.names_in(name, intervention, section)) == len(getattr(intervention, section)) for section in SECTIONS)

    def rows(self, path: str, step: Observe, interventions: Mapping[str, Intervention]) -> None:
        used = {role for item in interventions.values() for _, role in forwards_of(item)} & set(self.declared("roles"))
        if any(metric.columns for item in interventions.values() for metric in item.metrics.values()):
            used.add("base")
        named = [
            forward_of(read, item) is not None and {read.input} <= {None, *self.declared("roles")}
            for item in interventions.values()
            for read in item.reads.values()
        ]
        for role in step.rows:
            if self.known(f"{path}.rows.{role}", "a role", role, self.declared("roles")) and role not in used and all(named):
                self.say(f"{path}.rows.{role}", f"only roles that the step's interventions use ({listed(sorted(used))})", quoted(role))
        for role in sorted(used - set(step.rows)):
            self.say(f"{path}.rows", f"rows of {quoted(role)}, which the step's interventions use", listed(step.rows) or "none")

    def refs(self, path: str, interventions: Mapping[str, Intervention], in_place: Mapping[str, str]) -> None:
        for name, intervention in interventions.items():
            for write_name in {entry for model in intervention.models.values() for entry in model.writes}:
                operand = intervention.writes[write_name].operand if write_name in intervention.writes else None
                if isinstance(operand, OutputRef) and operand.ref not in self.outputs:
                    hint = (
                        did_you_mean(operand.ref, list(self.outputs)) or "outputs are declared in the `outputs` of a step before this one"
                    )
                    self.say(
                        f"{in_place.get(name, f'interventions.{name}')}.writes.{write_name}.operand.ref",
                        f"an output of a step before {quoted(path)} ({listed(self.outputs) or 'there is none'})",
                        quoted(operand.ref),
                        hint,
                    )

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
        try:
            graphlib.TopologicalSorter(parts_of_differences(step)).prepare()
        except graphlib.CycleError as error:
            chain = " → ".join(quoted(output) for output in error.args[1])
            self.say(f"{path}.outputs", "differences that can be made one after the other", f"a cycle ({chain})", code="cycle")
        for output_name in step.outputs:
            self.outputs.setdefault(output_name, name)

    def reduction(self, path: str, output: Output, intervention: Intervention) -> None:
        """Refuses a reduction over rows whose features are their own tokens."""
        read = intervention.reads.get(output.read.rpartition("/")[2])
        site = None if read is None else self.site_of(read)
        if site is not None and site.about.has_keys:
            hint = "a pattern has the row's own tokens as axis, which other rows do not share; a metric of kind `value` is one number a row"
            self.say(path, f"`none` at {quoted(site.component)}", quoted(output.reduce), hint, "keys")

    def where(self, path: str, step: Observe) -> None:
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
        if labelled(earlier) != labelled(step):
            got = f"{quoted(labelled(step))} here and {quoted(labelled(earlier))} there"
            self.say(f"{path}.where", "the same rows of `base` in both steps", got)

    def saves(self, path: str, step: Observe, names: Mapping[str, Sequence[str]], is_list: bool) -> None:
        metrics = _values(names, is_list)
        values = {**metrics, **dict.fromkeys(step.outputs)}
        for name in sorted(set(metrics) & set(step.outputs)):
            self.say(f"{path}.outputs.{name}", "a name that no metric of the step has (saves are by name)", quoted(name))
        for index, save in enumerate(step.saves):
            where = f"{path}.saves[{index}]"
            if not self.known(f"{where}.value", "a metric or an output of this step", save.value, values):
                continue
            folder = save.value.partition("/")[0] if "/" in save.value and is_list else metrics.get(save.value) if is_list else None
            is_metric = save.value in metrics
            suffixes = METRIC_SUFFIXES if is_metric else TENSOR_SUFFIXES
            if not save.file_path.endswith(suffixes):
                what = "metric" if is_metric else "tensor"
                self.say(
                    f"{where}.file_path", f"a file name ending in {listed(suffixes)} (for a {what})", quoted(save.file_path), code="file"
                )
            if problem := path_problem(save.file_path):
                self.say(f"{where}.file_path", "a path inside the output folder", f"{quoted(save.file_path)} ({problem})", code="file")
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


def labelled(step: Observe) -> str:
    """Returns the ref whose rows give a step its labels: that of `base`, else of its first role."""
    return step.rows.get("base") or next(iter(step.rows.values()))


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
