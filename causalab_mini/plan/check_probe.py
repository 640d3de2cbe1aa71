"""What a document says of a linear probe must agree with the step that reads its features: the output, the read, the rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from causalab_mini.errors import did_you_mean, listed, quoted
from causalab_mini.plan.check_featurizers import FeaturizerChecker
from causalab_mini.plan.forwards import roles_behind
from causalab_mini.plan.spec import FitProbe, Intervention, Observe, Output, Read
from causalab_mini.plan.used import entries_of

ONE_TOKEN = "one token a row (`index`, or a window of one)"


@dataclass
class ProbeChecker(FeaturizerChecker):
    """Compares what is said of linear probes with what is said of the steps before them."""

    def fit_probe(self, path: str, step: FitProbe, outputs: Mapping[str, str]) -> None:
        """Judges what a probe is trained on.

        Args:
            path: of the step.
            step: itself.
            outputs: of earlier steps, with the step of each.
        """
        roles = [role for role in step.rows if self.known(f"{path}.rows.{role}", "a role", role, self.declared("roles"))]
        if step.features not in outputs:
            expected = f"an output of a step before {quoted(path)} ({listed(outputs) or 'there is none'})"
            hint = did_you_mean(step.features, list(outputs)) or "outputs are declared in the `outputs` of a step before this one"
            self.say(f"{path}.features", expected, quoted(step.features), hint)
            return
        source = self.spec.steps.get(outputs[step.features])
        output = source.outputs.get(step.features) if isinstance(source, Observe) else None
        if not isinstance(source, Observe) or output is None:
            return
        whole = Output(read=output) if isinstance(output, str) else output
        if not isinstance(whole, Output):
            self.say(f"{path}.features", "an output of a read", f"the difference {quoted(step.features)}")
            return
        if whole.reduce != "none":
            expected = "an output that has every row (`reduce: none`)"
            self.say(f"{path}.features", expected, f"{quoted(step.features)} (`{whole.reduce}`)")
            return
        found = self.read_of(source, outputs[step.features], whole.read)
        if found is None:
            return
        read, intervention = found
        self.probe_features(f"{path}.features", step.features, read)
        self.probe_rows(f"{path}.rows", step, roles, source, roles_behind(read, intervention))

    def read_of(self, source: Observe, name: str, value: str) -> tuple[Read, Intervention] | None:
        """Returns the read of an output, with its intervention; None where it could not be judged."""
        entries = entries_of(self.spec, name, source) if self.has_all(source) else []
        for item, intervention in entries:
            bare = value.removeprefix(f"{item}/") if isinstance(source.interventions, tuple) else value
            if bare in intervention.reads and (value != bare or sum(bare in other.reads for _, other in entries) == 1):
                return intervention.reads[bare], intervention
        return None

    def has_all(self, source: Observe) -> bool:
        """Returns whether all interventions of a step could be judged."""
        entries = source.interventions if isinstance(source.interventions, tuple) else (source.interventions,)
        return all(not isinstance(entry, str) or entry in self.spec.interventions for entry in entries)

    def probe_features(self, path: str, name: str, read: Read) -> None:
        """Refuses what is no vector a row, or is none that a probe could be used on."""
        site = self.site_of(read)
        if read.pos.width != 1:
            self.say(
                path,
                ONE_TOKEN,
                f"{quoted(name)}, read at {quoted(read.pos)}",
                "another read of one token, or a sweep over positions",
                "width",
            )
        if read.featurizer is not None:
            expected = "values as the model has them (the probe is to be used on these)"
            self.say(path, expected, f"{quoted(name)}, in the coordinates of {quoted(read.featurizer)}", code="coordinates")
        if read.view != "raw":
            expected = "values as the model has them (the probe is to be used on these)"
            self.say(path, expected, f"{quoted(name)}, viewed as {quoted(read.view)}", code="coordinates")
        if site is None:
            return
        if site.is_stacked:
            hint = "a sweep over layers is a probe a layer"
            self.say(path, "an output of one layer", f"{quoted(name)}, which is stacked", hint, "width")
        if site.about.has_keys or site.component == "input_ids":
            what = "as many features on every row" if site.about.has_keys else "activations"
            self.say(path, what, f"{quoted(name)}, of `{site.component}`", code="width")

    def probe_rows(self, path: str, step: FitProbe, roles: list[str], source: Observe, behind: list[str]) -> None:
        """Refuses other rows than those that were read."""
        used = list(dict.fromkeys(["base", *(role for role in behind if role in self.declared("roles"))]))
        for role in roles:
            if role not in used:
                expected = f"only `base`, which has the labels, and roles that the features depend on ({listed(used)})"
                self.say(f"{path}.{role}", expected, quoted(role))
            elif role in source.rows and source.rows[role] != step.rows[role]:
                self.say(f"{path}.{role}", f"{quoted(source.rows[role])}, the rows that were read", quoted(step.rows[role]), code="rows")
        for role in used:
            if role not in step.rows:
                why = "which has the labels" if role == "base" else "whose prompts the features depend on"
                self.say(path, f"rows of {quoted(role)}, {why}", listed(step.rows))
