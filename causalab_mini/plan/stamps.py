"""What a file of parameters says of the place that they belong to."""

from __future__ import annotations

from typing import Any

from causalab_mini.model.facts import ModelFacts
from causalab_mini.plan import plan as nodes


def stamp_of(featurizer: nodes.Featurizer, facts: ModelFacts) -> dict[str, Any]:
    """Returns a featurizer's identity as JSON data: the place, the kind and the sizes, which a file must share to be loaded for it."""
    site = featurizer.site
    return {
        "model": facts.key,
        "revision": facts.revision,
        "dtype": facts.dtype,
        "component": None if site is None else site.component,
        "layer": site.layers[0] if site is not None and site.layers else None,
        "heads": None if site is None or site.heads is None else list(site.heads),
        "units": None if site is None or site.units is None else list(site.units),
        "kind": featurizer.kind,
        "k": featurizer.n_features,
        "d": featurizer.d,
        "parametrization": featurizer.parametrization,
    }
