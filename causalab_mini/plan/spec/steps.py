"""What runs, over which rows, and what of it is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, Tag, field_validator, model_validator

from causalab_mini.data.fields import parse_field
from causalab_mini.plan.spec.decoding import DecodeField
from causalab_mini.plan.spec.fits import Fit, Weights
from causalab_mini.plan.spec.metrics import COLUMN_PATH
from causalab_mini.plan.spec.saves import OutputField, Save, Where
from causalab_mini.plan.spec.selected import Control, InterventionField, Interventions
from causalab_mini.plan.strict import MAX_SEED, FrozenDict, Name, Named, Strict, Tuple, invalid, shown, tag_by_kind
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


PROBE_TABLES = ("scores", "predictions")
"""What a probe's training has beside the probe."""


class FitProbe(Strict):
    """Trains a linear probe on what an earlier step has read, cross-validated beside shuffled labels."""

    kind: Literal["fit_probe"]
    rows: Annotated[Named[str], Field(min_length=1)]
    """The ref of the rows that were read, by role, as the step has it that read them; and that of `base`, which has the labels."""
    features: Name
    """An output of an earlier step: a read of one layer and one token a row, not reduced."""
    label: str
    """The column of what is to be read out; rows whose cell is empty are left out."""
    probe: Literal["logistic", "ridge"]
    """`logistic`: labels are classes (texts, whole numbers, `true` and `false`); `ridge`: they are numbers."""
    folds: int = Field(5, ge=2)
    """Parts of the rows, each predicted by a probe of the others; equal prompts are always in one part."""
    seed: int = Field(0, ge=0, le=MAX_SEED)
    """Of the parts, and of the shuffled labels."""
    saves: Tuple[Save, ...] = ()
    """What is written to files: `probe` as `.safetensors`; the tables `scores` and `predictions`."""

    @field_validator("label")
    @classmethod
    def _column(cls, value: str) -> str:
        if parse_field(value) is None:
            raise invalid(COLUMN_PATH, shown(value))
        return value


STEP_MODELS: Mapping[str, type[Strict]] = {
    "observe": Observe,
    "fit": Fit,
    "weights": Weights,
    "attribute": Attribute,
    "stream": Stream,
    "fit_probe": FitProbe,
}

_BY_KIND, _KNOWN_KIND = tag_by_kind(STEP_MODELS, ())
Step = Annotated[
    Annotated[Observe, Tag("<observe>")]
    | Annotated[Fit, Tag("<fit>")]
    | Annotated[Weights, Tag("<weights>")]
    | Annotated[Attribute, Tag("<attribute>")]
    | Annotated[Stream, Tag("<stream>")]
    | Annotated[FitProbe, Tag("<fit_probe>")],
    _BY_KIND,
    _KNOWN_KIND,
]
