"""What a step uses of its document: interventions, places, rows, featurizers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from causalab_mini.plan.forwards import GENERATED, Run, forwards_of, generation_named
from causalab_mini.plan.spec import Attribute, Difference, Fit, FitProbe, Intervention, Observe, Read, Spec, Step, Stream, Weights, Write
from causalab_mini.plan.spec.featurizers import parts_of


def entries_of(spec: Spec, step_name: str, step: Step) -> list[tuple[str, Intervention]]:
    """Returns a step's interventions with their names; one written in place has its index, or the step's name where it is alone."""
    if isinstance(step, Weights | Stream | FitProbe):
        return []
    if not isinstance(step, Attribute) and isinstance(step.interventions, tuple):
        return [
            (entry, spec.interventions[entry]) if isinstance(entry, str) else (str(index), entry)
            for index, entry in enumerate(step.interventions)
        ]
    entry = step.intervention if isinstance(step, Attribute) else step.interventions
    assert not isinstance(entry, tuple)
    return [(entry, spec.interventions[entry]) if isinstance(entry, str) else (step_name, entry)]


def saved_of(step: Step, name: str, intervention: Intervention) -> dict[str, Run]:
    """Returns whose continuations a step saves of one of its interventions, by the names that they have there."""
    if not isinstance(step, Observe):
        return {}
    prefix, is_list = f"{name}/", isinstance(step.interventions, tuple)
    values = [save.value for save in step.saves if save.value.endswith(GENERATED)]
    own = [value.removeprefix(prefix) if is_list else value for value in values]
    found = {value: generation_named(value, intervention, list(step.rows)) for value in own if "/" not in value}
    return {value: run for value, run in found.items() if run is not None}


def live_writes(intervention: Intervention) -> dict[str, Write]:
    """Returns the writes that are made: those of models that are run; where continuations are generated, any may be for a save."""
    models = set(intervention.models) if intervention.decode else {model for model, _ in forwards_of(intervention)}
    made = {name for model, definition in intervention.models.items() if model in models for name in definition.writes}
    return {name: write for name, write in intervention.writes.items() if name in made}


def places_of(intervention: Intervention) -> tuple[Read | Write, ...]:
    """Returns an intervention's reads, and the writes that are made."""
    return (*intervention.reads.values(), *live_writes(intervention).values())


def rows_of(step: Step) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yields the rows that a step goes over, by role, with where the step says so."""
    if not isinstance(step, Weights):
        yield "rows", step.rows
    if isinstance(step, Fit):
        yield "eval.rows", step.eval.rows


def tables_of(spec: Spec) -> tuple[str, ...]:
    """Returns the refs that a document's steps go over, sorted."""
    return tuple(sorted({ref for step in spec.steps.values() for _, rows in rows_of(step) for ref in rows.values()}))


def files_of(spec: Spec) -> tuple[str, ...]:
    """Returns the files that a document's featurizers are read from, sorted."""
    names = {name for step_name, step in spec.steps.items() for name in featurizers_used(spec, step_name, step)}
    paths = {getattr(spec.featurizers[name], "file_path", None) for name in names}
    return tuple(sorted(path for path in paths if path is not None))


def scored_rows(step: Step) -> Mapping[str, str]:
    """Returns the rows whose metrics a step reports: of a fit, those that it is judged on."""
    return step.eval.rows if isinstance(step, Fit) else {} if isinstance(step, Weights | Stream | FitProbe) else step.rows


def featurizers_in(intervention: Intervention, spec: Spec) -> dict[str, None]:
    """Returns the featurizers of an intervention's reads and writes, the parts of chains before them."""
    named = [place.featurizer for place in places_of(intervention) if place.featurizer is not None]
    return dict.fromkeys(part for name in named for part in parts_of(name, spec.featurizers))


def featurizers_used(spec: Spec, step_name: str, step: Step) -> dict[str, None]:
    """Returns the featurizers of a step."""
    if isinstance(step, Weights):
        return dict.fromkeys(part for name in step.names for part in parts_of(name, spec.featurizers))
    found: dict[str, None] = {}
    for _, intervention in entries_of(spec, step_name, step):
        found |= featurizers_in(intervention, spec)
    return found


def parts_of_differences(step: Observe) -> dict[str, list[str]]:
    """Returns, for each output of a step, the outputs of the same step that it is a difference of."""
    return {
        name: [part for part in output.difference if part in step.outputs and part != name] if isinstance(output, Difference) else []
        for name, output in step.outputs.items()
    }
