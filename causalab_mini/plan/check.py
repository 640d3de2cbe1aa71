"""What a document says in two places must agree: names that refer to each other, widths, units, cycles, files.

Needs the document alone. Objects that did not validate are missing from the Spec; their names still count as declared.
"""

from __future__ import annotations

import graphlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from causalab_mini.errors import Problem, did_you_mean, listed, quoted
from causalab_mini.model.components import COMPONENTS
from causalab_mini.plan.digest import entries_of
from causalab_mini.plan.files import METRIC_SUFFIXES, TENSOR_SUFFIXES, path_problem
from causalab_mini.plan.forwards import forward_of, forwards_of
from causalab_mini.plan.position import Position
from causalab_mini.plan.spec import Difference, Intervention, Observe, Output, OutputRef, Read, Site, Spec, Write
from causalab_mini.plan.spec.metrics import MetricBase, Recovered, TopK

KEY_SITES = tuple(name for name, component in COMPONENTS.items() if component.has_keys)
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
class _Checker:
    spec: Spec
    raw: Mapping[str, Any]
    problems: list[Problem] = field(default_factory=list)
    outputs: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, Mapping[str, str | None] | None] = field(default_factory=dict)

    def say(self, path: str, expected: str, got: str, hint: str = "", code: str = "reference") -> None:
        self.problems.append(Problem(path, expected, got, hint, code))

    def declared(self, *path: str) -> list[str]:
        """Returns the names that the document declares below a path, valid or not."""
        value: Any = self.raw
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        return list(value) if isinstance(value, dict) else []

    def known(self, path: str, what: str, name: str, names: Iterable[str]) -> bool:
        """Returns whether a name is one of those declared, and says so where it is not."""
        names = list(names)
        if name in names:
            return True
        expected = f"the name of {what} ({listed(names)})" if names else f"the name of {what} (none is declared)"
        self.say(path, expected, quoted(name), did_you_mean(name, names))
        return False

    # sites

    def site(self, path: str, site: str | Site) -> Site | None:
        if isinstance(site, Site):
            return site
        self.known(path, "a site", site, self.declared("sites"))
        return self.spec.sites.get(site)

    # interventions

    def intervention(self, path: str, intervention: Intervention) -> None:
        parts = path.split(".")
        names = self.declared(*parts) if "[" not in path else []
        roles = self.declared("roles")
        reads = self.declared(*parts, "reads") if names else list(intervention.reads)
        writes = self.declared(*parts, "writes") if names else list(intervention.writes)
        models = self.declared(*parts, "models") if names else list(intervention.models)
        metrics = self.declared(*parts, "metrics") if names else list(intervention.metrics)
        for name, read in intervention.reads.items():
            self.read(f"{path}.reads.{name}", read, models, roles)
        for name, write in intervention.writes.items():
            if name in reads:
                self.say(f"{path}.writes.{name}", "a name that no read has (positions are recorded by name)", quoted(name))
            self.write(f"{path}.writes.{name}", write, intervention, reads)
        for name, model in intervention.models.items():
            self.known(f"{path}.models.{name}.input", "a role", model.input, roles)
            for index, entry in enumerate(model.writes):
                self.known(f"{path}.models.{name}.writes[{index}]", "a write", entry, writes)
            self.renormalize_last(f"{path}.models.{name}.writes", model.writes, intervention)
        for name, metric in intervention.metrics.items():
            self.metric(f"{path}.metrics.{name}", metric, intervention, reads, metrics)
        self.cycles(f"{path}.models", intervention)

    def read(self, path: str, read: Read, models: Sequence[str], roles: Sequence[str]) -> None:
        site = self.site(f"{path}.site", read.site)
        if read.model == "original":
            if read.input is None:
                self.say(path, "an `input` (a read of `original` needs a role)", "none")
        else:
            self.known(f"{path}.model", "a model", read.model, ["original", *models])
        if read.input is not None:
            self.known(f"{path}.input", "a role", read.input, roles)
        if read.keys is not None and site is not None and not site.about.has_keys:
            self.say(f"{path}.keys", f"a site with keys ({listed(KEY_SITES)})", f"{quoted(site.component)}")
        if read.view == "logits" and site is not None and not site.about.is_residual:
            self.say(f"{path}.view", "`raw` (only the residual stream has a view as logits)", f"`logits` at {quoted(site.component)}")

    def write(self, path: str, write: Write, intervention: Intervention, reads: Sequence[str]) -> None:
        site = self.site(f"{path}.site", write.site)
        if site is not None and not site.about.is_writable:
            self.say(f"{path}.site", "a site that can be written", quoted(site.component))
        if site is not None and not site.about.has_keys:
            if write.keys is not None:
                self.say(f"{path}.keys", f"a site with keys ({listed(KEY_SITES)})", f"{quoted(site.component)}")
            if write.mechanism == "knockout":
                self.say(f"{path}.mechanism", f"`knockout` at a site with keys ({listed(KEY_SITES)})", f"{quoted(site.component)}")
        if not isinstance(write.operand, str):
            return
        if not self.known(f"{path}.operand", "a read", write.operand, reads) or write.operand not in intervention.reads:
            return
        read = intervention.reads[write.operand]
        source = self.spec.sites.get(read.site) if isinstance(read.site, str) else read.site
        if site is not None and source is not None:
            self.fits(f"{path}.operand", site, source, read, write.operand)
        if write.align == "exact" and None not in (read.pos.width, write.pos.width) and read.pos.width != write.pos.width:
            mean = "`align: mean` gives a read's mean to every written token"
            hint = mean if read.pos.width == 1 else "`align` says how an operand of another width lands"
            self.say(f"{path}.operand", f"a read {_wide(write.pos)}", f"{quoted(write.operand)}, {_wide(read.pos)}", hint, "width")

    def fits(self, path: str, site: Site, source: Site, read: Read, name: str) -> None:
        """Compares the feature axes of a write and its operand, as far as the document alone tells."""
        width = "vocabulary" if read.view == "logits" else source.about.width
        if width != site.about.width:
            self.say(path, f"a read with {quoted(site.about.width)} features", f"{quoted(name)} with {quoted(width)}", code="width")
        elif any(
            len(getattr(site, axis) or ()) != len(getattr(source, axis) or ()) for axis in ("heads", "units") if width == source.about.width
        ):
            self.say(path, "a read with as many heads or units", quoted(name), code="width")
        if source.is_stacked and not site.is_stacked:
            self.say(path, "a read without a layer axis", f"{quoted(name)}, which is stacked", code="width")
        if (
            isinstance(site.layers, tuple)
            and isinstance(source.layers, tuple)
            and source.is_stacked
            and len(site.layers) != len(source.layers)
        ):
            self.say(path, f"a read of {len(site.layers)} layers", f"{quoted(name)}, of {len(source.layers)}", code="width")

    def renormalize_last(self, path: str, names: Sequence[str], intervention: Intervention) -> None:
        writes = [(name, intervention.writes[name]) for name in names if name in intervention.writes]
        for index, (name, write) in enumerate(writes):
            if write.mechanism != "renormalize":
                continue
            same = [i for i, (_, other) in enumerate(writes) if self.place(other) == self.place(write)]
            if len(same) < 2 or same[-1] != index:
                got = "alone" if len(same) < 2 else "before another"
                self.say(path, f"{quoted(name)} as the last of at least two writes at one site (`renormalize`)", got, code="order")

    def place(self, write: Write) -> Site | str:
        """Returns where a write stands, a list of one layer as that layer; the name alone where it is of no valid site."""
        site = self.spec.sites.get(write.site, write.site) if isinstance(write.site, str) else write.site
        if isinstance(site, Site) and isinstance(site.layers, tuple) and len(site.layers) == 1:
            return site.model_copy(update={"layers": site.layers[0]})
        return site

    def cycles(self, path: str, intervention: Intervention) -> None:
        """Refuses models that need each other's reads."""
        needs: dict[tuple[str, str], set[tuple[str, str]]] = {}
        for forward in forwards_of(intervention):
            model = intervention.models.get(forward[0])
            if model is None:
                continue
            operands = [intervention.writes[name].operand for name in model.writes if name in intervention.writes]
            sources = [intervention.reads[operand] for operand in operands if isinstance(operand, str) and operand in intervention.reads]
            needs[forward] = {source for read in sources if (source := forward_of(read, intervention)) not in (None, forward)}
        try:
            graphlib.TopologicalSorter(needs).prepare()
        except graphlib.CycleError as error:
            chain = " → ".join(f"`{model}` on `{role}`" for model, role in error.args[1])
            self.say(path, "models that can be run one after the other", f"a cycle ({chain})", code="cycle")

    def metric(self, path: str, metric: MetricBase, intervention: Intervention, reads: Sequence[str], metrics: Sequence[str]) -> None:
        found: dict[str, Read] = {}
        for key in metric.reads:
            name = getattr(metric, key)
            if self.known(f"{path}.{key}", "a read", name, reads) and name in intervention.reads:
                found[key] = intervention.reads[name]
        needs_vocabulary = metric.needs_vocabulary
        if isinstance(metric, Recovered):
            self.known(f"{path}.metric", "a metric", metric.metric, metrics)
            inner = intervention.metrics.get(metric.metric)
            if isinstance(inner, Recovered | TopK):
                self.say(f"{path}.metric", "a metric whose value is one number of its read", f"{quoted(metric.metric)} (`{inner.kind}`)")
            needs_vocabulary = inner is not None and inner.needs_vocabulary
        for key, read in found.items():
            if read.pos.width != 1:
                self.say(f"{path}.{key}", "a read one token wide", f"{quoted(getattr(metric, key))}, {_wide(read.pos)}", code="width")
            site = self.spec.sites.get(read.site) if isinstance(read.site, str) else read.site
            if needs_vocabulary and site is not None and not (site.about.is_vocabulary or read.view == "logits"):
                got = f"{quoted(getattr(metric, key))} at {quoted(site.component)}"
                hint = 'a residual stream can be read as logits: `"view": "logits"`' if site.about.is_residual else ""
                self.say(f"{path}.{key}", "a read of logits", got, hint, "vocabulary")
        if len(found) > 1:
            self.same_axes(path, metric, found, needs_vocabulary)

    def same_axes(self, path: str, metric: MetricBase, found: Mapping[str, Read], needs_vocabulary: bool) -> None:
        sites = {key: self.spec.sites.get(read.site) if isinstance(read.site, str) else read.site for key, read in found.items()}
        first = sites.get("of")
        for key, site in sites.items():
            if site is None or first is None or key == "of":
                continue
            same_width = site.about.width == first.about.width or bool(found[key].view == found["of"].view == "logits")
            if not (metric.needs_vocabulary or needs_vocabulary or same_width):
                self.say(
                    f"{path}.{key}",
                    f"a read of the same features as {quoted(getattr(metric, 'of', ''))}",
                    quoted(site.component),
                    code="width",
                )

    # steps

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
        needs = {
            name: set(output.difference) & set(step.outputs) - {name}
            for name, output in step.outputs.items()
            if isinstance(output, Difference)
        }
        try:
            graphlib.TopologicalSorter(needs).prepare()
        except graphlib.CycleError as error:
            chain = " → ".join(quoted(output) for output in error.args[1])
            self.say(f"{path}.outputs", "differences that can be made one after the other", f"a cycle ({chain})", code="cycle")
        for output_name in step.outputs:
            self.outputs.setdefault(output_name, name)

    def reduction(self, path: str, output: Output, intervention: Intervention) -> None:
        """Refuses a reduction over rows whose features are their own tokens."""
        read = intervention.reads.get(output.read.rpartition("/")[2])
        site = None if read is None else self.spec.sites.get(read.site) if isinstance(read.site, str) else read.site
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


def _wide(pos: Position) -> str:
    return {None: "of no fixed width", 1: "one token wide"}.get(pos.width, f"{pos.width} tokens wide")


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
