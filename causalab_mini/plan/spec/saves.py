"""What of a step is kept for later steps and for files, and which rows run."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from causalab_mini.data.fields import parse_field
from causalab_mini.plan.spec.metrics import COLUMN_PATH
from causalab_mini.plan.strict import Name, Strict, Tuple, invalid, shown

Reduce = Literal["none", "mean", "std", "pca", "mean_by"]


class Output(Strict):
    """A read's values over the rows of a step, for later steps and for files."""

    read: str
    """The read."""
    reduce: Reduce = "none"
    """What becomes of the rows: kept, their mean or standard deviation, principal directions, or the mean of each group."""
    k: int | None = Field(None, gt=0)
    """`pca`: how many directions."""
    by: str | None = None
    """`mean_by`: the column that names the group."""

    @model_validator(mode="after")
    def _fits_reduce(self) -> Output:
        if (self.k is not None) != (self.reduce == "pca"):
            raise invalid("`k` with `pca` and only there", f"`{self.reduce}` {'without' if self.k is None else 'with'} `k`")
        if self.by is not None and parse_field(self.by) is None:
            raise invalid(COLUMN_PATH, shown(self.by), key="by")
        if (self.by is not None) != (self.reduce == "mean_by"):
            raise invalid("`by` with `mean_by` and only there", f"`{self.reduce}` {'without' if self.by is None else 'with'} `by`")
        return self


class Difference(Strict):
    """One output minus another."""

    difference: Tuple[Name, Name]
    """Two outputs of this step or of earlier ones: the first minus the second."""
    unit: bool = False
    """Whether the result is scaled to length 1."""


class Save(Strict):
    """A value that is written to a file."""

    value: str
    """A metric, an output, or a continuation `<model>.generated`; of a fit a curve, of `weights` a name; of a stream a point, `records` or `original.generated`; of a linear probe `probe`, `scores` or `predictions`; `<intervention>/<value>` where a list of interventions makes the bare name ambiguous."""
    file_path: str = Field(min_length=1)
    """Where, below the output folder: `.json`, `.csv` or `.parquet` for metrics and continuations, `.safetensors` for tensors."""


class Where(Strict):
    """Which rows run: those whose value of an earlier step's metric lies in a range."""

    step: Name
    """The earlier step."""
    metric: str
    """The metric of that step."""
    min: float | None = None
    """The least value that passes."""
    max: float | None = None
    """The greatest value that passes."""

    @model_validator(mode="after")
    def _bounded(self) -> Where:
        if self.min is None and self.max is None:
            raise invalid("`min`, `max` or both", "neither")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise invalid("`min` not above `max`", f"`{self.min:g}` and `{self.max:g}`")
        return self


def _output_tag(value: Any) -> str | None:
    if isinstance(value, str):
        return "<read>"
    if isinstance(value, Difference) or (isinstance(value, dict) and "difference" in value):
        return "<difference>"
    return "<output>" if isinstance(value, dict | Output) else None


OutputField = Annotated[
    Annotated[str, Tag("<read>")] | Annotated[Output, Tag("<output>")] | Annotated[Difference, Tag("<difference>")],
    Discriminator(_output_tag, custom_error_type="type", custom_error_message="a read's name, an output or a difference"),
]
