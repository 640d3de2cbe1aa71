"""How featurizers are trained: the objective, the optimizer, when to stop and which parameters to keep."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from causalab_mini.plan.spec.saves import Save, Where
from causalab_mini.plan.spec.selected import Control, Interventions
from causalab_mini.plan.strict import MAX_SEED, FrozenDict, Name, Named, Strict, Tuple, invalid

TRAINING = ("train/loss", "train/eval")
"""The curves of a fit."""
BETAS = (0.9, 0.999)
"""torch's own."""
Beta = Annotated[float, Field(ge=0, lt=1)]


class Optimizer(Strict):
    """How parameters are moved along their gradients."""

    name: Literal["adamw", "adam", "sgd", "rmsprop"]
    """Which of torch's."""
    lr: float = Field(gt=0, le=1e6)
    """The learning rate."""
    weight_decay: float = Field(0.0, ge=0)
    """How strongly parameters are drawn to zero."""
    betas: Tuple[Beta, Beta] | None = None
    """`adam`, `adamw`: how slowly the means of gradients and of their squares move; absent, 0.9 and 0.999."""
    momentum: float | None = Field(None, ge=0, lt=1)
    """`sgd`, `rmsprop`: what is kept of the last step; absent, nothing."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What becomes of the learning rate after the warm-up: it stays, or falls to zero over all updates."""
    warmup: int = Field(0, ge=0)
    """Updates over which the learning rate rises from zero."""

    @model_validator(mode="after")
    def _fits_name(self) -> Optimizer:
        if self.betas is not None and self.name not in ("adam", "adamw"):
            raise invalid("`betas` with `adam` or `adamw`", f"`{self.name}`", key="betas")
        if self.momentum is not None and self.name not in ("sgd", "rmsprop"):
            raise invalid("`momentum` with `sgd` or `rmsprop`", f"`{self.name}`", key="momentum")
        return self


class Anneal(Strict):
    """A temperature that moves geometrically over the updates."""

    start: float = Field(gt=0)
    """At the first update."""
    end: float = Field(gt=0)
    """At the last update."""


class EarlyStop(Strict):
    """When training ends before its last epoch."""

    metric: str
    """A metric of the interventions, on the rows of `eval`."""
    mode: Literal["max", "min"]
    """Whether more of it is better, or less."""
    patience: int = Field(gt=0)
    """Epochs without a better value after which training ends."""


class Evaluation(Strict):
    """The rows that a fit is judged on."""

    rows: Annotated[Named[str], Field(min_length=1)]
    """For each role, the ref of its rows; none of them is trained on."""
    saves: Tuple[Save, ...] = ()
    """Metrics on these rows that are written to files."""


class Fit(Strict):
    """Trains featurizers through interventions."""

    kind: Literal["fit"]
    rows: Annotated[Named[str], Field(min_length=1)]
    """For each role that the interventions use, the ref of the rows that are trained on."""
    interventions: Interventions
    """A name, an intervention in place, or a list of either."""
    params: Annotated[Tuple[Name, ...], Field(min_length=1)]
    """The featurizers that are trained."""
    objective: Annotated[Tuple[Tuple[float, str], ...], Field(min_length=1)]
    """What is made small: pairs of a weight and a term, a differentiable metric's mean, or `<gate>.mask` or `<gate>.units`."""
    epochs: int = Field(gt=0)
    """How often the rows are gone through."""
    pairs: int = Field(gt=0)
    """Rows an update."""
    seed: int = Field(0, ge=0, le=MAX_SEED)
    """Of the order of the rows in each epoch, and of the first draw of parameters without a seed of their own."""
    optimizer: Optimizer
    """How parameters are moved."""
    anneal: Named[Anneal] = Field(default_factory=FrozenDict)
    """For gates, how their temperature moves; absent, it is 1."""
    early_stop: EarlyStop | None = None
    """When training ends early."""
    eval: Evaluation
    """What it is judged on after each epoch, gates hard."""
    keep: Literal["best", "last"] = "best"
    """Which parameters stay: those of the best epoch, by `early_stop.metric` or else by the objective on `eval`, or the last."""
    controls: Tuple[Control, ...] = ()
    """Control experiments on the rows of `eval`, with the trained parameters."""
    where: Where | None = None
    """Which rows are trained on."""
    saves: Tuple[Save, ...] = ()
    """What is written to files: `train/loss`, `train/eval`."""

    @model_validator(mode="after")
    def _distinct(self) -> Fit:
        if len(set(self.params)) != len(self.params):
            raise invalid("distinct featurizers", self.params, key="params")
        return self


class Weights(Strict):
    """Publishes parameters of featurizers."""

    kind: Literal["weights"]
    names: Annotated[Tuple[Name, ...], Field(min_length=1)]
    """The featurizers, as they are at this step."""
    saves: Tuple[Save, ...] = ()
    """What is written to files: a name of `names`, as `.safetensors`."""

    @model_validator(mode="after")
    def _distinct(self) -> Weights:
        if len(set(self.names)) != len(self.names):
            raise invalid("distinct featurizers", self.names, key="names")
        return self
