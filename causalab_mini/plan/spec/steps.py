"""What runs, over which rows, and what of it is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, Tag, model_validator

from causalab_mini.plan.spec.decoding import DecodeField
from causalab_mini.plan.spec.fits import Fit, Weights
from causalab_mini.plan.spec.saves import OutputField, Save, Where
from causalab_mini.plan.spec.selected import Control, InterventionField, Interventions
from causalab_mini.plan.strict import FrozenDict, Name, Named, Strict, Tuple, invalid, shown, tag_by_kind
from causalab_mini.probing.spec.entry import PointEntry


class Observe(Strict):
    """Runs interventions over rows."""

    kind: Literal["observe"]
    rows: Annotated[Named[str], Field(min_length=1)]
    """For each role that the interventions use, the ref of its rows."""
    interventions: Interventions
    """A name, an intervention in place, or a list of either."""
    outputs: Named[OutputField] = Field(default_factory=FrozenDict)
    """Values kept for later steps and for files: a read's name, or an output."""
    controls: Tuple[Control, ...] = ()
    """Control experiments beside the step's own."""
    where: Where | None = None
    """Which rows run."""
    saves: Tuple[Save, ...] = ()
    """What is written to files."""


IG_STEPS = 10
"""Gradients on the way to what is written, where a document does not say how many."""


class Attribute(Strict):
    """Estimates by gradients what each write of an intervention would do to a metric."""

    kind: Literal["attribute"]
    rows: Annotated[Named[str], Field(min_length=1)]
    """For each role that the intervention uses, the ref of its rows."""
    intervention: InterventionField
    """A name, or an intervention in place."""
    metric: Name
    """The differentiable metric whose change is estimated."""
    method: Literal["atp", "ig"] = "atp"
    """`atp`: the gradient where nothing is written; `ig`: its mean on the way to what is written."""
    ig_steps: int | None = Field(None, gt=0)
    """`ig`: points on the way; absent, 10."""
    verify_top: int | None = Field(None, gt=0)
    """How many of the largest estimates are run exactly."""
    saves: Tuple[Save, ...] = ()
    """What is written to files: the metric's name, the table of estimates."""

    @model_validator(mode="after")
    def _fits_method(self) -> Attribute:
        if self.ig_steps is not None and self.method != "ig":
            raise invalid("`ig_steps` with `ig` and only there", shown(self.method), key="ig_steps")
        return self


class Stream(Strict):
    """Generates from one role's prompts, and records, or asks probes, at extraction points meanwhile."""

    kind: Literal["stream"]
    rows: Annotated[Named[str], Field(min_length=1)]
    """The ref of the rows, by the role whose prompts the model goes on from."""
    input: Name | None = None
    """That role; absent, the one of `rows`."""
    decode: DecodeField
    """How it goes on; a number is that many tokens from every row, greedily, with the stop token ruled out."""
    points: Annotated[Tuple[PointEntry, ...], Field(min_length=1)]
    """What is watched, as in an extraction spec: recorded (`probe_type: record`), or given to a probe."""
    saves: Tuple[Save, ...] = ()
    """What is written to files: the name of a point that is recorded for its tensors, `records` for the table of which token each of their lines is, `verdicts` for what probes said, `original.generated` for what the model said."""

    @property
    def role(self) -> str:
        """The role whose prompts the model goes on from."""
        return self.input or next(iter(self.rows))


STEP_MODELS: Mapping[str, type[Strict]] = {"observe": Observe, "fit": Fit, "weights": Weights, "attribute": Attribute, "stream": Stream}
NOT_YET_STEPS = ("fit_probe",)

_BY_KIND, _KNOWN_KIND = tag_by_kind(STEP_MODELS, NOT_YET_STEPS)
Step = Annotated[
    Annotated[Observe, Tag("<observe>")]
    | Annotated[Fit, Tag("<fit>")]
    | Annotated[Weights, Tag("<weights>")]
    | Annotated[Attribute, Tag("<attribute>")]
    | Annotated[Stream, Tag("<stream>")],
    _BY_KIND,
    _KNOWN_KIND,
]
