"""Which interventions a step runs, and which controls beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, Tag, model_validator

from causalab_mini.errors import did_you_mean, listed
from causalab_mini.plan.spec.interventions import Intervention
from causalab_mini.plan.strict import MAX_SEED, Strict, Tuple, invalid, shown, tag_by

InterventionField = Annotated[
    Annotated[str, Tag("<name>")] | Annotated[Intervention, Tag("<intervention>")],
    tag_by("an intervention's name or an intervention", {str: "<name>", dict: "<intervention>", Intervention: "<intervention>"}),
]
Interventions = Annotated[
    Annotated[str, Tag("<name>")]
    | Annotated[Intervention, Tag("<intervention>")]
    | Annotated[Tuple[InterventionField, ...], Field(min_length=1), Tag("<list>")],
    tag_by(
        "an intervention's name, an intervention or a list of either",
        {str: "<name>", list: "<list>", tuple: "<list>", dict: "<intervention>", Intervention: "<intervention>"},
    ),
]
ControlKind = Literal["self_swap", "shuffled_source", "random_subspace", "full_component"]
CONTROLS: tuple[str, ...] = get_args(ControlKind)
DRAWS: Mapping[str, int] = {"shuffled_source": 1, "random_subspace": 3}
"""Controls that draw, and so have a seed and may be drawn several times, with how often they are where a document does not say."""


class DrawnControl(Strict):
    """A control experiment with its settings."""

    kind: ControlKind
    """Which control."""
    n: int | None = Field(None, gt=0)
    """`shuffled_source`, `random_subspace`: how many draws; absent, one, or three subspaces."""
    seed: int | None = Field(None, ge=0, le=MAX_SEED)
    """`shuffled_source`, `random_subspace`: the seed of the draws; absent, 0."""

    @model_validator(mode="after")
    def _draws(self) -> DrawnControl:
        if self.kind not in DRAWS and (self.n is not None or self.seed is not None):
            raise invalid(f"no `n` and no `seed` (`{self.kind}` draws nothing)", "one")
        return self


def _known(value: Any) -> Any:
    if value not in CONTROLS:
        raise invalid(listed(CONTROLS), shown(value), did_you_mean(value, CONTROLS), "enum")
    return value


Control = Annotated[
    Annotated[ControlKind, BeforeValidator(_known), Tag("<name>")] | Annotated[DrawnControl, Tag("<control>")],
    tag_by("the name of a control or an object with its `kind`", {str: "<name>", dict: "<control>", DrawnControl: "<control>"}),
]


def as_control(control: str | DrawnControl) -> DrawnControl:
    """Returns a control with its settings, whichever way it was written."""
    return DrawnControl.model_validate({"kind": control}) if isinstance(control, str) else control
