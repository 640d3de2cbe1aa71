"""What a document says of featurizers in several places must agree: parts, sources, one place each, and when they are trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from causalab_mini.errors import did_you_mean, listed, quoted
from causalab_mini.plan.check_intervention import InterventionChecker, in_words
from causalab_mini.plan.spec import Chain, Fit, Intervention, Read, Site, Weights, Write
from causalab_mini.plan.spec.featurizers import FEATURIZER_MODELS, Gate, MeanAndStd, Pca, Standardize, Subspace, parts_of
from causalab_mini.plan.spec.metrics import METRIC_MODELS, Recovered
from causalab_mini.plan.used import featurizers_in, live_writes

TRAINABLE = tuple(kind for kind, model in FEATURIZER_MODELS.items() if model.is_trainable)
PENALTIES = ("mask", "units")


@dataclass(frozen=True)
class Kept:
    """What is known of an output.

    Attributes:
        reduce: how it is reduced; empty for a difference.
        k: to how many directions.
        featurizer: whose coordinates it is in; None for the place's own.
        is_stacked: whether it has a layer axis.
    """

    reduce: str
    k: int | None
    featurizer: str | None
    is_stacked: bool


@dataclass
class FeaturizerChecker(InterventionChecker):
    """Compares what is said of featurizers.

    Attributes:
        touched: by featurizer, the step that uses it first.
        places: by featurizer, where it is used first: the path of that use, and the site.
        kept: by output of the steps so far, what is known of it.
        has_unjudged: whether a step so far could not be judged.
    """

    touched: dict[str, str] = field(default_factory=dict)
    places: dict[str, tuple[str, Site]] = field(default_factory=dict)
    kept: dict[str, Kept] = field(default_factory=dict)
    has_unjudged: bool = False

    def featurizers(self) -> None:
        """Judges declared featurizers against each other."""
        names, owners = self.declared("featurizers"), dict[str, str]()
        for name, featurizer in self.spec.featurizers.items():
            if not isinstance(featurizer, Chain):
                continue
            for index, part in enumerate(featurizer.of):
                path = f"featurizers.{name}.of[{index}]"
                if part == name:
                    self.say(path, "another featurizer", "itself")
                    continue
                if not self.known(path, "a featurizer", part, [other for other in names if other != name]):
                    continue
                if isinstance(self.spec.featurizers.get(part), Chain):
                    self.say(path, "a featurizer that is no chain (name its parts here)", quoted(part))
                elif part in owners:
                    self.say(path, "a featurizer of one chain (it is used at one place)", f"{quoted(part)}, also of {quoted(owners[part])}")
                owners.setdefault(part, name)

    def uses(self, step: str, path: str, intervention: Intervention, outputs: Mapping[str, str]) -> None:
        """Judges the featurizers of an intervention of a step against the steps before it, and against their other uses.

        Args:
            step: the path of the step.
            path: of the intervention.
            intervention: itself.
            outputs: of earlier steps.
        """
        for part in featurizers_in(intervention, self.spec):
            if part not in self.touched:
                self.sources(part, outputs)
            self.touched.setdefault(part, step)
        owners = {part: name for name, chain in self.spec.featurizers.items() if isinstance(chain, Chain) for part in chain.of}
        places: dict[str, Read | Write] = {f"{path}.reads.{name}": read for name, read in intervention.reads.items()}
        places |= {f"{path}.writes.{name}": write for name, write in live_writes(intervention).items()}
        for where, place in places.items():
            name, site = place.featurizer, self.site_of(place)
            if name is None or name not in self.spec.featurizers:
                continue
            if name in owners:
                expected = "a featurizer that is no part of a chain (each is used at one place)"
                self.say(f"{where}.featurizer", expected, f"{quoted(name)}, of {quoted(owners[name])}")
            if site is None:
                continue
            if name not in self.places:
                self.places[name] = (where, site)
                self.ranks(name, site)
            first, other = self.places[name]
            if _differ(site, other):
                self.say(f"{where}.featurizer", f"{quoted(name)} at one site (that of `{first}`)", "another", code="featurizer")

    def ranks(self, name: str, site: Site) -> None:
        """Refuses more directions than there are features, as far as the document alone tells."""
        width = None if site.units is None else len(site.units)
        *_, last = parts = parts_of(name, self.spec.featurizers)
        for part in parts[:-1] or (last,):
            found = self.spec.featurizers.get(part)
            if isinstance(found, Subspace | Pca) and width is not None and found.k > width:
                self.say(f"featurizers.{part}.k", f"at most {width} (the width of what it is given)", quoted(found.k), code="featurizer")
            width = self.width(part, width)

    def sources(self, name: str, outputs: Mapping[str, str]) -> None:
        """Refuses a featurizer that is made of outputs which are not there yet, or are no such thing."""
        featurizer = self.spec.featurizers.get(name)
        wanted: list[tuple[str, str, str]] = []
        if isinstance(featurizer, Pca) and featurizer.from_ is not None:
            wanted = [("from", featurizer.from_, "pca")]
        elif isinstance(featurizer, Standardize) and isinstance(featurizer.from_, MeanAndStd):
            wanted = [("from.mean", featurizer.from_.mean, "mean"), ("from.std", featurizer.from_.std, "std")]
        for key, output, reduce in wanted:
            path = f"featurizers.{name}.{key}"
            if output not in outputs:
                hint = "a featurizer is made of outputs of steps before the first that uses it"
                expected = f"an output of an earlier step ({listed(outputs) or 'there is none'})"
                self.say(path, expected, quoted(output), did_you_mean(output, list(outputs)) or hint)
            if output not in outputs or output not in self.kept:
                continue
            kept = self.kept[output]
            if kept.reduce != reduce:
                got = f"{quoted(output)} (`{kept.reduce}`)" if kept.reduce else f"the difference {quoted(output)}"
                self.say(path, f"an output that is reduced by `{reduce}`", got)
            elif kept.featurizer is not None:
                got = f"{quoted(output)}, in those of {quoted(kept.featurizer)}"
                self.say(path, "an output in the coordinates of the site", got, code="coordinates")
            elif kept.is_stacked:
                self.say(path, "an output without a layer axis", f"{quoted(output)}, which is stacked", code="width")
            elif isinstance(featurizer, Pca) and kept.k is not None and kept.k < featurizer.k:
                self.say(f"featurizers.{name}.k", f"at most {kept.k} (the directions of {quoted(output)})", quoted(featurizer.k))

    def fit(self, path: str, step: Fit, interventions: Mapping[str, Intervention], metrics: Mapping[str, str | None]) -> None:
        """Judges what a fit trains, and what for."""
        used = {part for intervention in interventions.values() for part in featurizers_in(intervention, self.spec)}
        gates, is_whole = [], all(self.is_whole(name, intervention) for name, intervention in interventions.items())
        for index, name in enumerate(step.params):
            where = f"{path}.params[{index}]"
            if not self.known(where, "a featurizer", name, self.declared("featurizers")):
                continue
            if name not in self.spec.featurizers:
                gates.append(name)  # it may be one
                continue
            featurizer = self.spec.featurizers[name]
            if isinstance(featurizer, Gate):
                gates.append(name)
            if featurizer.kind not in TRAINABLE:
                hint = "name the parts of a chain that are to be trained" if featurizer.kind == "chain" else ""
                self.say(where, f"a featurizer that can be trained ({listed(TRAINABLE)})", f"{quoted(name)} (`{featurizer.kind}`)", hint)
            elif name in self.touched:
                got = f"{quoted(name)}, which {quoted(self.touched[name])} uses"
                self.say(where, "a featurizer that no earlier step uses (it has been touched before it is trained)", got, code="order")
            elif name not in used:
                if is_whole:
                    expected = f"a featurizer that the step's interventions use ({listed(sorted(used)) or 'they use none'})"
                    self.say(where, expected, quoted(name))
            elif is_whole and not self.problems:  # else a name that is not known may be why
                self.is_trained_by(where, name, step, interventions, metrics)
        for index, (_, term) in enumerate(step.objective):
            self.term(f"{path}.objective[{index}][1]", term, interventions, metrics, gates)
        for name in step.anneal:
            if name not in gates:
                self.say(f"{path}.anneal.{name}", f"a gate of `params` ({listed(gates) or 'there is none'})", quoted(name))
        if step.early_stop is not None:
            self.score(f"{path}.early_stop.metric", step.early_stop.metric, interventions, metrics)
        if dict(step.eval.rows) == dict(step.rows):
            self.say(f"{path}.eval.rows", "rows that are not trained on", "those of `rows`", code="rows")

    def is_trained_by(
        self, path: str, name: str, step: Fit, interventions: Mapping[str, Intervention], metrics: Mapping[str, str | None]
    ) -> None:
        """Refuses a featurizer that an objective does not move, or that can't start as it says."""
        writes = [write for item in interventions.values() for write in live_writes(item).values()]
        featurizer = self.spec.featurizers[name]
        if isinstance(featurizer, Subspace) and featurizer.init == "pca" and not any(self.has_part(w.featurizer, name) for w in writes):
            expected = "`random` (the step that trains it has no write in its coordinates, and it would be of what stands there)"
            self.say(f"featurizers.{name}.init", expected, "`pca`", code="featurizer")
        for _, term in step.objective:
            if term.rpartition(".")[0] == name or ("." not in term and term not in metrics):
                return
            found = interventions[metrics[term] or ""] if term in metrics else None
            metric = None if found is None else found.metrics.get(term.rpartition("/")[2])
            if found is not None and (metric is None or any(getattr(metric, key) in self.moved(found, name) for key in metric.reads)):
                return
        self.say(path, "a featurizer that the objective depends on", f"{quoted(name)}, which no read of its terms comes through")

    def has_part(self, featurizer: str | None, name: str) -> bool:
        """Returns whether a featurizer is another, or a chain with it."""
        return featurizer is not None and name in parts_of(featurizer, self.spec.featurizers)

    def moved(self, intervention: Intervention, name: str) -> set[str]:
        """Returns the reads of an intervention whose values depend on the parameters of a featurizer."""
        reads, models = set[str](), set[str]()
        while True:
            before = len(reads) + len(models)
            for model, definition in intervention.models.items():
                writes = [intervention.writes[write] for write in definition.writes if write in intervention.writes]
                if any(self.has_part(write.featurizer, name) or write.operand in reads for write in writes):
                    models.add(model)
            for read_name, read in intervention.reads.items():
                if self.has_part(read.featurizer, name) or read.model in models:
                    reads.add(read_name)
            if len(reads) + len(models) == before:
                return reads

    def term(
        self, path: str, term: str, interventions: Mapping[str, Intervention], metrics: Mapping[str, str | None], gates: Sequence[str]
    ) -> None:
        """Judges a term of an objective."""
        gate, _, penalty = term.rpartition(".")
        if gate:
            if gate not in gates or penalty not in PENALTIES:
                known = [f"{name}.{word}" for name in gates for word in PENALTIES]
                expected = f"a metric, or `<gate>.mask` or `<gate>.units` of a gate of `params` ({listed(known) or 'there is none'})"
                self.say(path, expected, quoted(term))
            return
        if not self.score(path, term, interventions, metrics):
            return
        metric = interventions[metrics[term] or ""].metrics.get(term.rpartition("/")[2])
        inner = interventions[metrics[term] or ""].metrics.get(metric.metric) if isinstance(metric, Recovered) else metric
        if inner is not None and not inner.is_differentiable:
            known = [kind for kind, model in METRIC_MODELS.items() if model.is_differentiable]
            self.say(path, f"a metric that can be differentiated ({listed(known)})", f"{quoted(term)} (`{inner.kind}`)")

    def score(self, path: str, name: str, interventions: Mapping[str, Intervention], metrics: Mapping[str, str | None]) -> bool:
        """Returns whether a metric is one number a row of the step's interventions, and says so where it is not."""
        if not self.known(path, "a metric of the step's interventions", name, metrics):
            return False
        metric = interventions[metrics[name] or ""].metrics.get(name.rpartition("/")[2])
        if metric is not None and metric.kind == "top_k":
            self.say(path, "a metric whose value is a number", f"{quoted(name)} (`top_k`)")
            return False
        return metric is not None

    def weights(self, path: str, step: Weights) -> None:
        """Judges what parameters are published."""
        for index, name in enumerate(step.names):
            where = f"{path}.names[{index}]"
            known = self.known(where, "a featurizer", name, self.declared("featurizers"))
            if known and not self.has_unjudged and any(part not in self.touched for part in parts_of(name, self.spec.featurizers)):
                expected = "a featurizer that an earlier step uses (its place is where it is used)"
                self.say(where, expected, quoted(name), code="order")

    def starts(self) -> None:
        """Refuses directions of greatest variance as a start of what no step trains."""
        steps = self.raw.get("steps")
        fits = [step.get("params") for step in steps.values() if isinstance(step, dict)] if isinstance(steps, dict) else []
        trained = [name for params in fits if isinstance(params, list) for name in params]
        for name in self.touched:
            featurizer = self.spec.featurizers.get(name)
            if isinstance(featurizer, Subspace) and featurizer.init == "pca" and name not in trained:
                expected = "`random` (no `fit` trains it, and it would be of the rows of one)"
                self.say(f"featurizers.{name}.init", expected, "`pca`", "directions of the rows of a step are a `pca` with `from`")

    def fits_coordinates(self, path: str, output: str, featurizer: str | None) -> None:
        """Refuses an output in other coordinates than a write's."""
        kept = self.kept.get(output)
        if kept is None or kept.featurizer == featurizer or not self.are_declared(kept.featurizer, featurizer):
            return
        expected, got = (
            f"an output in the coordinates of {in_words(featurizer)}",
            f"{quoted(output)}, in those of {in_words(kept.featurizer)}",
        )
        self.say(path, expected, got, code="coordinates")

    def has_subspace(self, featurizer: str | None) -> bool:
        """Returns whether a featurizer replaces values in a subspace, itself or by a part; or may, where it is not valid."""
        if featurizer is None:
            return False
        parts = [self.spec.featurizers.get(part) for part in parts_of(featurizer, self.spec.featurizers)]
        return any(part is None or isinstance(part, Subspace | Pca) for part in parts)


def _differ(site: Site, other: Site) -> bool:
    """Returns whether two sites are certainly two places; a layer from the top may be any from the bottom."""
    if (site.component, site.heads, site.units) != (other.component, other.heads, other.units):
        return True
    layers = [found.layers[0] if isinstance(found.layers, tuple) else found.layers for found in (site, other)]
    first, second = layers
    return isinstance(first, int) and isinstance(second, int) and (first < 0) == (second < 0) and first != second
