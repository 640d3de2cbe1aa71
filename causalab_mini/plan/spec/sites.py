"""Places inside the model."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Tag, model_validator

from causalab_mini.errors import did_you_mean, listed
from causalab_mini.model.components import ALIASES, COMPONENTS, Component
from causalab_mini.plan.strict import Strict, Tuple, invalid, shown, tag_by

LAYERS = "an integer, a list of integers or `all`"


def _all(value: Any) -> Any:
    if value != "all":
        raise invalid(LAYERS, shown(value))
    return value


Layers = Annotated[
    Annotated[int, Tag("<layer>")]
    | Annotated[Tuple[int, ...], Tag("<list>")]
    | Annotated[Literal["all"], BeforeValidator(_all), Tag("<word>")],
    tag_by(LAYERS, {int: "<layer>", list: "<list>", tuple: "<list>", str: "<word>"}),
]
Indices = Annotated[Tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]


def _nearest(name: str) -> str:
    """Returns a hint for a name that is no component: what another tool calls so, or what is spelled nearly so."""
    other = ALIASES.get(name.rpartition(".")[2].removeprefix("hook_"))
    return f"`{other}` is that here" if other else did_you_mean(name, list(COMPONENTS)) or "`causalab-mini vocab` lists them"


class Site(Strict):
    """A place inside the model: a component, at which layers, and which part of its width."""

    component: str
    """A component name."""
    layers: Layers | None = None
    """The layer, or several (a stacked site), or `all`; negative counts from the top."""
    heads: Indices | None = None
    """Which heads; a write leaves the others as they are."""
    units: Indices | None = None
    """Which coordinates of the width; a write leaves the others as they are."""

    @model_validator(mode="before")
    @classmethod
    def _known_component(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(name := value.get("component"), str) and name not in COMPONENTS:
            raise invalid("a component name", shown(name), _nearest(name), "component", "component")
        return value

    @model_validator(mode="after")
    def _fits_component(self) -> Site:
        component = self.about
        if component.per_layer and self.layers is None:
            raise invalid(f"`layers` (`{component.name}` is one a layer)", "none")
        if not component.per_layer and self.layers is not None:
            raise invalid(f"no `layers` (`{component.name}` belongs to the whole model)", shown(self.layers))
        if isinstance(self.layers, tuple):
            if not self.layers:
                raise invalid("at least one layer", "an empty list", key="layers")
            if len(set(self.layers)) != len(self.layers):
                raise invalid("distinct layers", self.layers, key="layers")
        if self.heads is not None and component.heads is None:
            known = listed(name for name, entry in COMPONENTS.items() if entry.heads)
            raise invalid(f"`heads` on a component that has them ({known})", f"`{component.name}`")
        if self.units is not None and component.has_keys:
            raise invalid("`keys` of the read or write (the width of this component is its keys)", "`units`", key="units")
        if self.heads is not None and self.units is not None:
            raise invalid("`heads` or `units`", "both")
        for name in ("heads", "units"):
            indices = getattr(self, name)
            if indices is not None and len(set(indices)) != len(indices):
                raise invalid(f"distinct {name}", indices, key=name)
        return self

    @property
    def about(self) -> Component:
        """The component's entry in the table."""
        return COMPONENTS[self.component]

    @property
    def is_stacked(self) -> bool:
        """Whether values here have a layer axis."""
        return self.layers == "all" or (isinstance(self.layers, tuple) and len(self.layers) > 1)


SiteField = Annotated[
    Annotated[str, Tag("<name>")] | Annotated[Site, Tag("<site>")],
    tag_by("a site's name or a site", {str: "<name>", dict: "<site>", Site: "<site>"}),
]
"""A declared site's name, or a site in place."""
