"""The layer and feature axes of what is read, written and kept, and what fits what."""

from __future__ import annotations

from dataclasses import dataclass

from causalab_mini.errors import Problem
from causalab_mini.model.facts import ModelFacts
from causalab_mini.plan import plan as nodes


@dataclass(frozen=True, slots=True)
class Axes:
    """Sizes; `n_layers` is None where there is no layer axis, `n_features` where features are the keys of `n_heads` heads.

    Attributes:
        featurizer: whose coordinates they are; None for the place's own.
    """

    n_layers: int | None
    n_features: int | None
    n_heads: int | None = None
    featurizer: str | None = None

    @property
    def features(self) -> str:
        """The feature axis in words."""
        of = "" if self.featurizer is None else f" of `{self.featurizer}`"
        return (
            f"{self.n_features} features{of}" if self.n_heads is None else f"keys of {self.n_heads} head{'s' if self.n_heads > 1 else ''}"
        )

    def __str__(self) -> str:
        return self.features if self.n_layers is None else f"{self.n_layers} layers of {self.features}"


def axes_of(site: nodes.Site, view: str, facts: ModelFacts, featurizer: nodes.Featurizer | None = None) -> Axes:
    """Returns the axes of the values at a site, in the coordinates of a featurizer if there is one."""
    if featurizer is not None:
        return Axes(None, featurizer.n_features, None, featurizer.name)
    width = facts.vocabulary if view == "logits" else facts.width(site.component)
    if site.units is not None and view != "logits":
        width = len(site.units)
    if site.heads is not None and width is not None:
        width = len(site.heads) * width // (facts.n_heads_of(site.component) or 1)
    n_heads = None
    if width is None:
        n_heads = len(site.heads) if site.heads is not None else facts.n_heads_of(site.component)
    return Axes(len(site.layers) if site.is_stacked else None, width, n_heads)


def misfit(path: str, name: str, value: Axes, place: Axes) -> list[Problem]:
    """Returns why a value can't stand where another is: other features, or other layers. One without layer axis is given to each."""
    own = (place.n_features, place.n_heads, place.featurizer)
    if (value.n_features, value.n_heads, value.featurizer) == own and value.n_layers in (None, place.n_layers):
        return []
    expected = str(place) if place.n_layers is None else f"{place}, or {place.features} without layer axis"
    return [Problem(path, expected, f"`{name}` with {value}", code="width")]
