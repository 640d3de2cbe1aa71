"""What makes two documents the same experiment: SHA-256 over what a document means, not over how it is spelled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from causalab_mini.plan.position import Position
from causalab_mini.plan.spec import Difference, Intervention, Observe, Params, Read, Site, Spec, Write
from causalab_mini.plan.strict import Strict


def digest(spec: Spec) -> str:
    """Returns the digest of one point: without header, defaults, and declared things that no step uses."""
    return _sha256(canonical(spec))


def digest_of_points(digests: Iterable[tuple[str, str]]) -> str:
    """Returns the digest of a document: its one point's, or, of a sweep, that of all its points by label, in order."""
    points = [list(point) for point in digests]
    return points[0][1] if [label for label, _ in points] == [""] else _sha256(points)


def canonical(spec: Spec) -> dict[str, Any]:
    """Returns what a document means as JSON data with one spelling for each meaning."""
    used = [entry for name, step in spec.steps.items() for entry in entries_of(spec, name, step)]
    declared = {name for name, intervention in used if spec.interventions.get(name) is intervention}
    sites = {place.site for _, intervention in used for place in places_of(intervention) if isinstance(place.site, str)}
    roles = {name for step in spec.steps.values() for name in step.rows}
    return {
        "model": _plain(spec.model),
        "roles": {name: _plain(role) for name, role in spec.roles.items() if name in roles},
        "sites": {name: _plain(site) for name, site in spec.sites.items() if name in sites},
        "interventions": {name: _plain(item) for name, item in spec.interventions.items() if name in declared},
        "steps": [[name, _plain(step)] for name, step in spec.steps.items()],
    }


def places_of(intervention: Intervention) -> tuple[Read | Write, ...]:
    """Returns an intervention's reads and writes."""
    return (*intervention.reads.values(), *intervention.writes.values())


def entries_of(spec: Spec, step_name: str, step: Observe) -> list[tuple[str, Intervention]]:
    """Returns a step's interventions with their names; one written in place has its index, or the step's name where it is alone."""
    if isinstance(step.interventions, tuple):
        return [
            (entry, spec.interventions[entry]) if isinstance(entry, str) else (str(index), entry)
            for index, entry in enumerate(step.interventions)
        ]
    entry = step.interventions
    return [(entry, spec.interventions[entry]) if isinstance(entry, str) else (step_name, entry)]


def parts_of_differences(step: Observe) -> dict[str, list[str]]:
    """Returns, for each output of a step, the outputs of the same step that it is a difference of."""
    return {
        name: [part for part in output.difference if part in step.outputs and part != name] if isinstance(output, Difference) else []
        for name, output in step.outputs.items()
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Site) and isinstance(value.layers, tuple) and len(value.layers) == 1:
        return {**_spelled(value), "layers": value.layers[0]}
    if isinstance(value, Position):
        return {key: inner for key, inner in _spelled(value).items() if (key, inner) not in (("stride", 1), ("offset", 0))}
    if isinstance(value, Write):
        params = {key: inner for key, inner in _plain(value.params).items() if (key, inner) != ("scale", 1)}
        return _spelled(value.model_copy(update={"params": Params()})) | ({"params": params} if params else {})
    if isinstance(value, Intervention):
        own = {name: model.input for name, model in value.models.items()}
        reads = {
            name: read.model_copy(update={"input": None}) if read.input == own.get(read.model, "") else read
            for name, read in value.reads.items()
        }
        models = {name: model for name, model in value.models.items() if any(read.model == name for read in value.reads.values())}
        writes = {name: write for name, write in value.writes.items() if any(name in model.writes for model in models.values())}
        spelled = {key: inner for key, inner in _spelled(value).items() if key not in ("models", "writes")}
        return spelled | {"reads": _plain(reads)} | {key: _plain(part) for key, part in (("models", models), ("writes", writes)) if part}
    if isinstance(value, Strict):
        return _spelled(value)
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _spelled(value: Strict) -> dict[str, Any]:
    required = {name for name, field in type(value).model_fields.items() if field.is_required()}
    return {name: _plain(inner) for name, inner in value.spelled().items()} | {name: _plain(getattr(value, name)) for name in required}


def _sha256(data: Any) -> str:
    text = json.dumps(data, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
