"""What files of results have to look like to be read: the keys that readers rely on, and no others.

A file that was edited, or is of something else, is refused by the path of what is wrong in it; a key that is new is none of a reader's
business.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from causalab_mini.errors import DataError
from causalab_mini.plan.problems import problems_of

MAX_PROBLEMS = 20


class Shape(BaseModel):
    """An object of which some keys are known."""

    model_config = ConfigDict(strict=True, extra="ignore")


class Interval(Shape):
    """Of a mean."""

    low: float
    high: float


class Spread(Shape):
    """A mean over rows."""

    mean: float | None
    interval: Interval | None


class Entry(Shape):
    """Of a step at a point."""

    point: str
    axes: dict[str, Any]
    step: str


class Metric(Entry, Spread):
    """Of a metric."""

    metric: str
    kind: str
    unit: str
    n: int
    eligible: int
    controls: dict[str, Spread] = Field(default_factory=dict)


class Attribution(Entry):
    """Of an attribution."""

    metric: str
    unit: str
    components: list[dict[str, Any]]


class Best(Shape):
    """Of the best point of a sweep."""

    point: str
    step: str
    metric: str
    n_as_good: int = 0


class Request(Shape):
    """A generation that a point of a stream was watched in."""

    reason: str | None


class StreamPoint(Shape):
    """Of a point of a stream."""

    point: str
    tensor_type: str
    layers: list[int] | None
    position: str
    eligible: int
    fired: int
    requests: list[Request]


class Stream(Entry):
    """Of a generation that was watched."""

    n_forwards: int
    points: list[StreamPoint]


class Summary(Shape):
    """`summary.json` of `run`."""

    metrics: list[Metric] = Field(default_factory=list)
    attributions: list[Attribution] = Field(default_factory=list)
    fits: list[Entry] = Field(default_factory=list)
    best: list[Best] = Field(default_factory=list)
    streams: list[Stream] = Field(default_factory=list)
    probes: list[Entry] = Field(default_factory=list)
    warnings: list[str] = Field(default_factory=list)


class Recorded(Shape):
    """`summary.json` of `probe`."""

    points: list[dict[str, Any]]


class Check(Shape):
    """A check of a step."""

    check: str
    status: Literal["passed", "failed", "skipped"]
    text: str


class RecordedStep(Shape):
    """A step of a record."""

    point: str
    checks: list[Check] = Field(default_factory=list)


class Model(Shape):
    """Of a record."""

    key: str
    revision: str | None = None
    dtype: str | None = None


class Failure(Shape):
    """Why a run failed."""

    errors: list[dict[str, Any]] = Field(default_factory=list)


class Record(Shape):
    """`run.json`."""

    status: str
    digest: str | None = None
    started: str | None = None
    model: Model | None = None
    data: dict[str, dict[str, Any]] | None = None
    seconds: float = 0.0
    steps: list[RecordedStep] = Field(default_factory=list)
    error: Failure | None = None


class Sample(Shape):
    """The tokens of a row."""

    n_prefix: int
    n_tokens: int
    tokens: list[str]


class Prompts(Shape):
    """The prompts of a role."""

    texts: list[str]
    samples: list[Sample]


class RowsOfStep(Shape):
    """The rows of a step."""

    points: list[str] | None
    step: str
    of: str
    labels: list[str]
    roles: dict[str, int]


class PlaceOfStep(Shape):
    """A read or a write."""

    points: list[str] | None
    step: str
    of: str
    intervention: str
    model: str
    role: str
    prompts: int
    kind: str
    name: str
    component: str
    layers: list[int]
    heads: list[int] | None
    n_units: int | None
    pos: str
    featurizers: list[str]
    changes: list[str]
    tokens: list[list[int]] | None
    keys: list[list[int]] | None = None
    reasons: list[str | None] | None = None


class SaidOfRow(Shape):
    """What a model said after a row, or a place found in it."""

    example_id: str
    text: str | None = None
    reason: str | None = None


class Said(Shape):
    """What models said at a point, or what a read or a write found in it."""

    point: str
    step: str
    kind: str
    name: str
    rows: list[SaidOfRow]


class SavedAs(Shape):
    """A file of results."""

    points: list[str] | None
    path: str
    step: str
    value: str


class Places(Shape):
    """`places.json`."""

    prompts: list[Prompts]
    rows: list[RowsOfStep]
    places: list[PlaceOfStep]
    said: list[Said] = Field(default_factory=list)
    files: list[SavedAs] = Field(default_factory=list)


def refuse_other(data: Any, shape: type[Shape], path: Path) -> None:
    """Refuses data of another shape.

    Raises:
        DataError: with everything that is wrong.
    """
    try:
        shape.model_validate(data)
    except ValidationError as error:
        raise DataError(problems_of(error, shape)[:MAX_PROBLEMS], str(path)) from None
