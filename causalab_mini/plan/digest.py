"""What makes two documents the same experiment: SHA-256 over what a document means, not over how it is spelled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from causalab_mini.data.strict_json import sha256_of
from causalab_mini.plan.position import Position, Selected
from causalab_mini.plan.spec import (
    Attribute,
    DrawnControl,
    Fit,
    Intervention,
    Optimizer,
    Params,
    Site,
    Spec,
    Stream,
    Write,
    as_control,
    as_decode,
)
from causalab_mini.plan.spec.fits import BETAS
from causalab_mini.plan.spec.selected import DRAWS
from causalab_mini.plan.spec.steps import IG_STEPS
from causalab_mini.plan.strict import Strict
from causalab_mini.plan.used import entries_of, featurizers_used, live_writes, places_of, rows_of
from causalab_mini.probing.spec import extraction_point_to_dict, point_of


def digest(spec: Spec) -> str:
    """Returns the digest of one point: without header, defaults, and declared things that no step uses."""
    return digest_of(canonical(spec))


def digest_of(meaning: Mapping[str, Any]) -> str:
    """Returns the digest of what a document means."""
    return sha256_of(meaning)


def digest_of_points(digests: Iterable[tuple[str, str]]) -> str:
    """Returns the digest of a document: its one point's, or, of a sweep, that of all its points by label, in order."""
    points = [list(point) for point in digests]
    return points[0][1] if [label for label, _ in points] == [""] else sha256_of(points)


def canonical(spec: Spec) -> dict[str, Any]:
    """Returns what a document means as JSON data with one spelling for each meaning."""
    used = [entry for name, step in spec.steps.items() for entry in entries_of(spec, name, step)]
    declared = {name for name, intervention in used if spec.interventions.get(name) is intervention}
    sites = {place.site for _, intervention in used for place in places_of(intervention) if isinstance(place.site, str)}
    roles = {name for step in spec.steps.values() for _, rows in rows_of(step) for name in rows}
    featurizers = {part for name, step in spec.steps.items() for part in featurizers_used(spec, name, step)}
    return {
        "model": _plain(spec.model),
        "roles": {name: _plain(role) for name, role in spec.roles.items() if name in roles},
        "sites": {name: _plain(site) for name, site in spec.sites.items() if name in sites},
        **({"featurizers": {name: _featurizer(name, spec) for name in spec.featurizers if name in featurizers}} if featurizers else {}),
        "interventions": {name: _plain(item) for name, item in spec.interventions.items() if name in declared},
        "steps": [[name, _plain(step)] for name, step in spec.steps.items()],
    }


def _featurizer(name: str, spec: Spec) -> Any:
    """Returns what a featurizer means: a seed that it would have anyway is none of its own."""
    fits = [step for step in spec.steps.values() if isinstance(step, Fit) and name in step.params]
    usual = fits[0].seed if fits else 0
    return {key: value for key, value in _plain(spec.featurizers[name]).items() if (key, value) != ("seed", usual)}


def _plain(value: Any) -> Any:
    if isinstance(value, Stream):
        own = {key: inner for key, inner in _spelled(value).items() if key != "input"}
        return own | {
            "decode": _plain(as_decode(value.decode)),
            "points": [extraction_point_to_dict(point_of(entry)) for entry in value.points],
        }
    if isinstance(value, Site) and isinstance(value.layers, tuple) and len(value.layers) == 1:
        return {**_spelled(value), "layers": value.layers[0]}
    if isinstance(value, Selected):
        return value.selector
    if isinstance(value, Position):
        return {key: inner for key, inner in _spelled(value).items() if (key, inner) not in (("stride", 1), ("offset", 0))}
    if isinstance(value, DrawnControl):
        return _without(value, n=DRAWS.get(value.kind), seed=0)
    if isinstance(value, Optimizer):
        return _without(value, betas=list(BETAS), momentum=0)
    if isinstance(value, Attribute):
        return _without(value, ig_steps=IG_STEPS)
    if isinstance(value, Write):
        params = {key: inner for key, inner in _plain(value.params).items() if (key, inner) != ("scale", 1)}
        return _spelled(value.model_copy(update={"params": Params()})) | ({"params": params} if params else {})
    if isinstance(value, Intervention):
        own = {name: model.input for name, model in value.models.items()}
        reads = {
            name: read.model_copy(update={"input": None}) if read.input == own.get(read.model, "") else read
            for name, read in value.reads.items()
        }
        run = set(value.models) if value.decode else {read.model for read in value.reads.values()}
        models = {name: model for name, model in value.models.items() if name in run}
        writes = live_writes(value)
        spelled = {key: inner for key, inner in _spelled(value).items() if key not in ("models", "writes", "decode")}
        if (decode := as_decode(value.decode)) is not None:
            spelled["decode"] = _spelled(decode)
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


def _without(value: Strict, **usual: Any) -> dict[str, Any]:
    """Returns an object without what it would have anyway."""
    return {key: inner for key, inner in _spelled(value).items() if key not in usual or inner != usual[key]}


def _spelled(value: Strict) -> dict[str, Any]:
    required = {name for name, field in type(value).model_fields.items() if field.is_required()}
    spelled = {name: _plain(inner) for name, inner in value.spelled().items()} | {name: _plain(getattr(value, name)) for name in required}
    if "controls" in spelled:
        spelled["controls"] = [_plain(as_control(control)) for control in getattr(value, "controls")]  # noqa: B009 - of two kinds of step
    return spelled
