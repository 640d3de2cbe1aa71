"""What one intervention says in two places must agree: reads, writes, models and metrics that refer to each other, widths, cycles."""

from __future__ import annotations

import graphlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from causalab_mini.errors import Problem, did_you_mean, listed, quoted
from causalab_mini.model.components import COMPONENTS
from causalab_mini.plan.forwards import forward_of, forwards_of
from causalab_mini.plan.position import Position
from causalab_mini.plan.spec import Intervention, Read, Site, Spec, Write, as_decode
from causalab_mini.plan.spec.featurizers import Chain, Gate, Standardize, parts_of
from causalab_mini.plan.spec.metrics import AnswerLogprob, GeneratedMatch, MetricBase, Recovered, TopK

KEY_SITES = tuple(name for name, component in COMPONENTS.items() if component.has_keys)
SECTIONS = ("reads", "writes", "models", "metrics")


@dataclass
class InterventionChecker:
    """Compares what is said of interventions; problems are set down in the order in which they are found."""

    spec: Spec
    raw: Mapping[str, Any]
    problems: list[Problem] = field(default_factory=list)

    def say(self, path: str, expected: str, got: str, hint: str = "", code: str = "reference") -> None:
        """Sets down a problem."""
        self.problems.append(Problem(path, expected, got, hint, code))

    def declared(self, *path: str) -> list[str]:
        """Returns the names that the document declares below a path, valid or not."""
        value: Any = self.raw
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        return list(value) if isinstance(value, dict) else []

    def names_in(self, name: str, intervention: Intervention, section: str) -> list[str]:
        """Returns what an intervention declares in a section, valid or not."""
        declared = self.declared("interventions", name, section) if self.spec.interventions.get(name) is intervention else []
        return declared or list(getattr(intervention, section))

    def is_whole(self, name: str, intervention: Intervention) -> bool:
        """Returns whether everything that an intervention declares is valid in itself."""
        return all(len(self.names_in(name, intervention, section)) == len(getattr(intervention, section)) for section in SECTIONS)

    def known(self, path: str, what: str, name: str, names: Iterable[str]) -> bool:
        """Returns whether a name is one of those declared, and says so where it is not."""
        names = list(names)
        if name in names:
            return True
        expected = f"the name of {what} ({listed(names)})" if names else f"the name of {what} (none is declared)"
        self.say(path, expected, quoted(name), did_you_mean(name, names))
        return False

    # sites

    def site(self, path: str, place: Read | Write) -> Site | None:
        """Returns the site of a read or write, and says so where no such site is declared."""
        if isinstance(place.site, str):
            self.known(path, "a site", place.site, self.declared("sites"))
        return self.site_of(place)

    def site_of(self, place: Read | Write) -> Site | None:
        """Returns the site of a read or write, None where it is declared and not valid."""
        return self.spec.sites.get(place.site) if isinstance(place.site, str) else place.site

    # interventions

    def intervention(self, path: str, intervention: Intervention) -> None:
        """Judges one intervention."""
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
            if isinstance(metric, GeneratedMatch):
                self.match(f"{path}.metrics.{name}", metric, intervention, models)
            else:
                self.metric(f"{path}.metrics.{name}", metric, intervention, reads, metrics)
        for name, read in intervention.reads.items():
            self.generated(f"{path}.reads.{name}", read, intervention)
        for name, write in intervention.writes.items():
            self.generated(f"{path}.writes.{name}", write, intervention)
            self.generated_operand(f"{path}.writes.{name}", write, intervention)
        self.cycles(f"{path}.models", intervention)

    def read(self, path: str, read: Read, models: Sequence[str], roles: Sequence[str]) -> None:
        """Judges a read against models, roles and its site."""
        site = self.site(f"{path}.site", read)
        if read.model == "original":
            if read.input is None:
                self.say(path, "an `input` (a read of `original` needs a role)", "none")
        else:
            self.known(f"{path}.model", "a model", read.model, ["original", *models])
        if read.input is not None:
            self.known(f"{path}.input", "a role", read.input, roles)
        if read.keys is not None and site is not None and not site.about.has_keys:
            self.say(f"{path}.keys", f"a site with keys ({listed(KEY_SITES)})", f"{quoted(site.component)}")
        self.featurizer(path, read, site)
        if read.featurizer is not None and read.view == "logits":
            self.say(
                f"{path}.featurizer",
                "none beside the view `logits` (the unembedding needs the place's own coordinates)",
                quoted(read.featurizer),
            )
        if read.view == "logits" and site is not None and not site.about.is_residual:
            expected = "`raw` (only the residual stream, and what is added to it, has a view as logits)"
            self.say(f"{path}.view", expected, f"`logits` at {quoted(site.component)}")
        elif read.view == "logits" and site is not None and site.units is not None:
            self.say(f"{path}.view", "`raw` (the unembedding needs the whole width)", f"`logits` of {len(site.units)} `units`")

    def generated(self, path: str, place: Read | Write, intervention: Intervention) -> None:
        """Judges a place in what the model generates."""
        pos, site, decode = place.pos, self.site_of(place), as_decode(intervention.decode)
        if place.keys is not None and place.keys.is_generated:
            self.say(f"{path}.keys", "keys in the prompt", "the generated frame", code="generated")
        if not pos.is_generated:
            return
        if decode is None:
            self.say(f"{path}.pos", "`decode` beside a position in the generated frame (nothing is generated)", "none", code="generated")
            return
        if site is not None and (site.about.has_keys or site.component == "input_ids"):
            what = "its keys are others at every token" if site.about.has_keys else "the tokens are saved as `<model>.generated`"
            self.say(f"{path}.pos", "a position in the prompt at this component", f"{quoted(site.component)}: {what}", code="generated")
        most = decode.max_new_tokens
        beyond = pos.is_beyond(most)
        if beyond:
            self.say(f"{path}.pos", f"tokens among the {most} that are generated at most", f"`{pos}`", code="generated")
        if isinstance(place, Write) and not beyond and pos.steps(most) is None:
            expected = (
                "`index` from 0, a `span` of such, or `all`, without `scope` or `offset` (what is written is known before it is said)"
            )
            self.say(f"{path}.pos", expected, f"`{pos}`", code="generated")

    def generated_operand(self, path: str, write: Write, intervention: Intervention) -> None:
        """Judges what is written into what the model generates, or taken from there."""
        read = intervention.reads.get(write.operand) if isinstance(write.operand, str) else None
        if read is not None and read.pos.is_generated:
            hint = "a step can save it as an output, which later steps write"
            self.say(f"{path}.operand", "a read in the prompt", f"{quoted(write.operand)}, in the generated frame", hint, "generated")
        if not write.pos.is_generated:
            return
        if write.mechanism == "permute":
            self.say(
                f"{path}.mechanism", "another one in the generated frame (rows end at different tokens)", "`permute`", code="generated"
            )
        is_one = write.pos.width == 1
        if write.align in ("first", "last") or (read is not None and write.align == "exact" and not (is_one and read.pos.width == 1)):
            hint = "`align: mean` gives a read's mean to every written token"
            got = f"`align: {write.align}`" + (
                "" if read is None else f" of {quoted(write.operand)}, {_wide(read.pos)}, over tokens `{write.pos}`"
            )
            expected = "`align: mean`, or one token for one token, in the generated frame"
            self.say(f"{path}.operand", expected, got, hint, "width")

    def match(self, path: str, metric: GeneratedMatch, intervention: Intervention, models: Sequence[str]) -> None:
        """Judges a metric of what a model says."""
        if not intervention.decode:
            self.say(path, "`decode` in an intervention whose continuations are scored", "none", code="generated")
        if metric.model == "original" and metric.input is None:
            self.say(path, "an `input` (a continuation of `original` needs a role)", "none")
        if metric.model != "original":
            self.known(f"{path}.model", "a model", metric.model, ["original", *models])
        if metric.input is not None:
            self.known(f"{path}.input", "a role", metric.input, self.declared("roles"))

    def write(self, path: str, write: Write, intervention: Intervention, reads: Sequence[str]) -> None:
        """Judges a write against its site and its operand."""
        site = self.site(f"{path}.site", write)
        if site is not None and not site.about.is_writable:
            self.say(f"{path}.site", "a site that can be written", quoted(site.component))
        if site is not None and not site.about.has_keys:
            if write.keys is not None:
                self.say(f"{path}.keys", f"a site with keys ({listed(KEY_SITES)})", f"{quoted(site.component)}")
            if write.mechanism == "knockout":
                self.say(f"{path}.mechanism", f"`knockout` at a site with keys ({listed(KEY_SITES)})", f"{quoted(site.component)}")
        self.featurizer(path, write, site)
        self.features(f"{path}.features", write, site)
        if not isinstance(write.operand, str):
            return
        if not self.known(f"{path}.operand", "a read", write.operand, reads) or write.operand not in intervention.reads:
            return
        read = intervention.reads[write.operand]
        source = self.site_of(read)
        if read.featurizer != write.featurizer:
            if not self.are_declared(read.featurizer, write.featurizer):
                return
            hint = "values are compared and replaced in one system of coordinates: the read's `featurizer` is the write's"
            expected = f"a read in the coordinates of {in_words(write.featurizer)}"
            got = f"{quoted(write.operand)}, in those of {in_words(read.featurizer)}"
            self.say(f"{path}.operand", expected, got, hint, "coordinates")
        elif site is not None and source is not None:
            self.fits(f"{path}.operand", site, source, read, write.operand)
        if write.align == "exact" and None not in (read.pos.width, write.pos.width) and read.pos.width != write.pos.width:
            mean = "`align: mean` gives a read's mean to every written token"
            hint = mean if read.pos.width == 1 else "`align` says how an operand of another width lands"
            self.say(f"{path}.operand", f"a read {_wide(write.pos)}", f"{quoted(write.operand)}, {_wide(read.pos)}", hint, "width")

    def are_declared(self, *featurizers: str | None) -> bool:
        """Returns whether featurizers are declared, or none: what else is said of one that is not would be said twice."""
        return {*featurizers} <= {None, *self.declared("featurizers")}

    def featurizer(self, path: str, place: Read | Write, site: Site | None) -> None:
        """Judges the featurizer of a read or write against its site."""
        if place.featurizer is None:
            return
        self.known(f"{path}.featurizer", "a featurizer", place.featurizer, self.declared("featurizers"))
        if site is None:
            return
        if site.is_stacked:
            self.say(f"{path}.featurizer", "none at a stacked site (a featurizer has one place)", quoted(place.featurizer))
        elif site.about.has_keys or site.component == "input_ids":
            self.say(
                f"{path}.featurizer", f"none at {quoted(site.component)} (its values have no fixed coordinates)", quoted(place.featurizer)
            )

    def features(self, path: str, write: Write, site: Site | None) -> None:
        """Refuses features that the coordinates don't have, as far as the document alone tells, or that have none."""
        if write.features is None:
            return
        if site is not None and site.about.has_keys:
            self.say(path, "`keys` (the width of this component is its keys)", "`features`")
        n = None if site is None or site.units is None else len(site.units)
        for part in () if write.featurizer is None else parts_of(write.featurizer, self.spec.featurizers):
            n = self.width(part, n)
        if n is not None and max(write.features) >= n:
            got = quoted(max(write.features))
            self.say(path, f"below {n} (the width of {in_words(write.featurizer)})", got, code="features")

    def width(self, featurizer: str, given: int | None) -> int | None:
        """Returns how many features a featurizer makes of some, as far as the document alone tells."""
        found = self.spec.featurizers.get(featurizer)
        return given if isinstance(found, Gate | Standardize | Chain) else getattr(found, "k", None)

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
        """Refuses a `renormalize` that is not the last of several writes at its site."""
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
        site = self.site_of(write)
        if site is None:
            return str(write.site)
        if isinstance(site.layers, tuple) and len(site.layers) == 1:
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
        """Judges a metric against the reads that it scores."""
        found: dict[str, Read] = {}
        for key in metric.reads:
            name = getattr(metric, key)
            if self.known(f"{path}.{key}", "a read", name, reads) and name in intervention.reads:
                found[key] = intervention.reads[name]
        needs_vocabulary = metric.needs_vocabulary
        if isinstance(metric, Recovered):
            self.known(f"{path}.metric", "a metric", metric.metric, metrics)
            inner = intervention.metrics.get(metric.metric)
            if isinstance(inner, Recovered | TopK | GeneratedMatch):
                self.say(f"{path}.metric", "a metric whose value is one number of its read", f"{quoted(metric.metric)} (`{inner.kind}`)")
            needs_vocabulary = inner is not None and inner.needs_vocabulary
        scored = intervention.metrics.get(metric.metric) if isinstance(metric, Recovered) else metric
        for key, read in found.items():
            if isinstance(scored, AnswerLogprob) and read.pos.is_generated:
                got = f"{quoted(getattr(metric, key))}, in the generated frame"
                self.say(f"{path}.{key}", "a read of the prompt's last token (the answer stands behind it)", got, code="generated")
            model = intervention.models.get(read.model)
            said = [name for name in (model.writes if model is not None else ()) if name in intervention.writes]
            said = [name for name in said if intervention.writes[name].pos.is_generated]
            if isinstance(scored, AnswerLogprob) and said:
                got = f"{listed(said)}, in what {quoted(read.model)} generates"
                self.say(
                    f"{path}.{key}", "a read of a model that is written in the prompt alone (the answer is given)", got, code="generated"
                )
            if read.pos.width != 1:
                self.say(f"{path}.{key}", "a read one token wide", f"{quoted(getattr(metric, key))}, {_wide(read.pos)}", code="width")
            site = self.site_of(read)
            if needs_vocabulary and read.featurizer is not None:
                got = f"{quoted(getattr(metric, key))} in the coordinates of {in_words(read.featurizer)}"
                self.say(f"{path}.{key}", "a read of logits (tokens are told by their place among them)", got, code="vocabulary")
            elif needs_vocabulary and site is not None and not (site.about.is_vocabulary or read.view == "logits"):
                got = f"{quoted(getattr(metric, key))} at {quoted(site.component)}"
                hint = 'a residual stream can be read as logits: `"view": "logits"`' if site.about.is_residual else ""
                self.say(f"{path}.{key}", "a read of logits", got, hint, "vocabulary")
            elif needs_vocabulary and site is not None and site.units is not None and site.about.is_vocabulary:
                got = f"{quoted(getattr(metric, key))}, of {len(site.units)} `units`"
                self.say(f"{path}.{key}", "a read of all logits (tokens are told by their place among them)", got, code="vocabulary")
        if len(found) > 1:
            self.same_axes(path, metric, found, needs_vocabulary)

    def same_axes(self, path: str, metric: MetricBase, found: Mapping[str, Read], needs_vocabulary: bool) -> None:
        """Refuses to compare reads of other features."""
        sites = {key: self.site_of(read) for key, read in found.items()}
        first = sites.get("of")
        for key, site in sites.items():
            if site is None or first is None or key == "of":
                continue
            if found[key].featurizer != found["of"].featurizer:
                expected = f"a read in the coordinates of {in_words(found['of'].featurizer)}, as {quoted(getattr(metric, 'of', ''))}"
                if not needs_vocabulary and self.are_declared(found[key].featurizer, found["of"].featurizer):
                    self.say(f"{path}.{key}", expected, f"one in those of {in_words(found[key].featurizer)}", code="coordinates")
                continue
            same_width = site.about.width == first.about.width or bool(found[key].view == found["of"].view == "logits")
            if not (metric.needs_vocabulary or needs_vocabulary or same_width):
                self.say(
                    f"{path}.{key}",
                    f"a read of the same features as {quoted(getattr(metric, 'of', ''))}",
                    quoted(site.component),
                    code="width",
                )


def _wide(pos: Position) -> str:
    return {None: "of no fixed width", 1: "one token wide"}.get(pos.width, f"{pos.width} tokens wide")


def in_words(featurizer: str | None) -> str:
    """Returns whose coordinates are meant."""
    return "the site" if featurizer is None else quoted(featurizer)
