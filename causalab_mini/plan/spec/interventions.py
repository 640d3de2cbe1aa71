"""What is read, what is written where, which intervened models that makes, and how their outputs are scored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, Tag, model_validator

from causalab_mini.errors import listed
from causalab_mini.plan.position import PositionField
from causalab_mini.plan.spec.decoding import DecodeField
from causalab_mini.plan.spec.metrics import Metric
from causalab_mini.plan.spec.sites import Indices, SiteField
from causalab_mini.plan.strict import MAX_SEED, FrozenDict, Name, Named, Strict, Tuple, invalid, shown, tag_by

Mechanism = Literal["swap", "add_scaled", "lerp", "gaussian", "clamp", "renormalize", "project_out", "permute", "knockout"]


@dataclass(frozen=True, slots=True)
class MechanismRule:
    """What a mechanism needs beside its place."""

    has_operand: bool
    meaning: str
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    at_least_one: tuple[str, ...] = ()

    @property
    def params(self) -> tuple[str, ...]:
        """Every parameter that the mechanism understands."""
        return (*self.required, *self.optional, *self.at_least_one)


MECHANISM_RULES: Mapping[str, MechanismRule] = {
    "swap": MechanismRule(True, "the operand"),
    "add_scaled": MechanismRule(True, "f + scale · operand", optional=("scale",)),
    "lerp": MechanismRule(True, "(1 − t) · f + t · operand", required=("t",)),
    "gaussian": MechanismRule(False, "f + scale · ε, ε standard normal", required=("seed",), optional=("scale",)),
    "clamp": MechanismRule(False, "min(max(f, lo), hi)", at_least_one=("lo", "hi")),
    "renormalize": MechanismRule(False, "f at the length that it arrived with; the last of at least two writes at a site"),
    "project_out": MechanismRule(True, "f minus its component along the operand"),
    "permute": MechanismRule(False, "another row's value", required=("seed",)),
    "knockout": MechanismRule(False, "the edges to the named keys cut; sites with keys only"),
}


WITHOUT_ALIGN = ("gaussian", "clamp", "renormalize", "knockout")
"""Mechanisms that write nothing of another width."""


class OutputRef(Strict):
    """An output of an earlier step."""

    ref: Name
    """The output's name."""


class Params(Strict):
    """Parameters of a mechanism; each understands its own."""

    scale: float | None = None
    """`add_scaled`, `gaussian`: the factor, 1 where absent."""
    t: float | None = None
    """`lerp`: 0 leaves the value, 1 replaces it."""
    seed: int | None = Field(None, ge=0, le=MAX_SEED)
    """`gaussian`, `permute`: the seed of the draw."""
    lo: float | None = None
    """`clamp`: the least value."""
    hi: float | None = None
    """`clamp`: the greatest value."""


Operand = Annotated[
    Annotated[Name, Tag("<read>")] | Annotated[OutputRef, Tag("<output>")] | Annotated[float, Tag("<number>")],
    tag_by(
        'a read\'s name, `{"ref": output}` or a number',
        {str: "<read>", dict: "<output>", OutputRef: "<output>", int: "<number>", float: "<number>"},
    ),
]


class Read(Strict):
    """A value that is taken out of a forward."""

    site: SiteField
    """Where: a declared site's name, or a site."""
    pos: PositionField
    """At which tokens."""
    keys: PositionField | None = None
    """On the key axis (`attention_scores`, `attention_probs`): which keys, as tokens of the same role; absent, all."""
    model: Name = "original"
    """`original`, or a name of `models`."""
    input: Name | None = None
    """Which role the forward runs on; required for `original`."""
    featurizer: Name | None = None
    """The coordinates in which the value is taken; absent, the site's own."""
    view: Literal["raw", "logits"] = "raw"
    """`logits`: what the final norm and the unembedding make of a residual stream."""


class Write(Strict):
    """A change that is made in a forward."""

    site: SiteField
    """Where: a declared site's name, or a site."""
    pos: PositionField
    """At which tokens."""
    keys: PositionField | None = None
    """On the key axis (`attention_scores`, `attention_probs`): which keys, as tokens of the same role; absent, all."""
    mechanism: Mechanism
    """How the new value is made."""
    operand: Operand | None = None
    """What is written: a read, an output of an earlier step, or a number."""
    featurizer: Name | None = None
    """The coordinates in which the value is replaced; absent, the site's own."""
    features: Indices | None = None
    """Which coordinates of the featurizer, or of the site, are replaced; absent, all."""
    params: Params = Params()
    """Parameters of the mechanism."""
    align: Literal["exact", "last", "first", "mean"] = "exact"
    """How an operand of another width lands."""

    @model_validator(mode="after")
    def _fits_mechanism(self) -> Write:
        rule = MECHANISM_RULES[self.mechanism]
        if rule.has_operand and self.operand is None:
            raise invalid(f"an `operand` (`{self.mechanism}` needs one)", "none")
        if not rule.has_operand and self.operand is not None:
            raise invalid(f"no `operand` (`{self.mechanism}` takes none)", "one")
        if self.align != "exact" and (self.mechanism in WITHOUT_ALIGN or isinstance(self.operand, int | float)):
            what = f"`{self.mechanism}`" if self.mechanism in WITHOUT_ALIGN else "a number"
            raise invalid(f"no `align` ({what} has a value for every token)", shown(self.align), key="align")
        if self.features is not None and len(set(self.features)) != len(self.features):
            raise invalid("distinct features", self.features, key="features")
        given = set(self.params.spelled())
        if unknown := given - set(rule.params):
            known = listed(rule.params) or "none"
            raise invalid(f"`params` that `{self.mechanism}` understands ({known})", listed(sorted(unknown)))
        if missing := [name for name in rule.required if name not in given]:
            raise invalid(f"`params` with {listed(missing)} (`{self.mechanism}` needs it)", listed(sorted(given)) or "none")
        if rule.at_least_one and not given & set(rule.at_least_one):
            raise invalid(f"`params` with at least one of {listed(rule.at_least_one)}", "none")
        if self.params.lo is not None and self.params.hi is not None and self.params.lo > self.params.hi:
            raise invalid("`lo` not above `hi`", f"`{self.params.lo:g}` and `{self.params.hi:g}`", key="params")
        return self


class ModelDef(Strict):
    """An intervened model: the checkpoint run on a role with some writes."""

    input: Name
    """The role that it runs on."""
    writes: Annotated[Tuple[Name, ...], Field(min_length=1)]
    """The writes, in the order in which they apply where they meet at one address."""

    @model_validator(mode="after")
    def _distinct(self) -> ModelDef:
        if len(set(self.writes)) != len(self.writes):
            raise invalid("distinct writes", self.writes, key="writes")
        return self


class Intervention(Strict):
    """One experiment: its reads, writes, intervened models and scores."""

    reads: Named[Read]
    """What is read; only where something is generated may there be none."""
    writes: Named[Write] = Field(default_factory=FrozenDict)
    """What is written."""
    models: Named[ModelDef] = Field(default_factory=FrozenDict)
    """The intervened models, by name."""
    metrics: Named[Metric] = Field(default_factory=FrozenDict)
    """How reads are scored."""
    decode: DecodeField = 0
    """How many tokens are generated, greedily and past any stop token, or how; 0 for none."""

    @model_validator(mode="after")
    def _looks_at_something(self) -> Intervention:
        if not self.reads and not self.decode:
            raise invalid("at least one", "none", key="reads")
        return self

    @model_validator(mode="after")
    def _original_is_taken(self) -> Intervention:
        if "original" in self.models:
            raise invalid("another name (`original` is the model without writes)", "`original`", key="models")
        return self
