"""How a read is scored: one model a kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, Tag, field_validator

from causalab_mini.data.fields import parse_field
from causalab_mini.plan.strict import Name, Strict, Tuple, invalid, shown, tag_by, tag_by_kind

COLUMN_PATH = "a column path like `answer` or `a.b[1]`"
TokenForm = Literal["space_prefixed", "bare", "as_written", "id"]


class MetricBase(Strict):
    """What every metric has."""

    unit: ClassVar[str]
    is_differentiable: ClassVar[bool] = True
    needs_vocabulary: ClassVar[bool] = True
    columns: ClassVar[tuple[str, ...]] = ()
    reads: ClassVar[tuple[str, ...]] = ()


class ReadMetric(MetricBase):
    """A metric of a read."""

    reads: ClassVar[tuple[str, ...]] = ("of",)

    of: Name
    """The read that is scored, one token wide."""


class TokenMetric(ReadMetric):
    """A metric that compares with tokens from columns."""

    token_form: TokenForm = "space_prefixed"
    """How a column's text becomes a token: a space and the stripped text, the stripped text, the text as written, or a token id."""

    @field_validator("expected", "a", "b", "target", "token", check_fields=False)
    @classmethod
    def _column(cls, value: str) -> str:
        if parse_field(value) is None:
            raise invalid(COLUMN_PATH, shown(value))
        return value


class Match(TokenMetric):
    """1 where the most likely token is the expected one, else 0."""

    is_differentiable = False
    unit = "fraction"
    columns = ("expected",)

    kind: Literal["match"]
    expected: str
    """The column of the expected token."""


class LogitDiff(TokenMetric):
    """Logit of one token minus logit of another."""

    unit = "logit"
    columns = ("a", "b")

    kind: Literal["logit_diff"]
    a: str
    """The column of the token that counts for."""
    b: str
    """The column of the token that counts against."""


class CrossEntropy(TokenMetric):
    """Minus the log-probability of the target token."""

    unit = "nat"
    columns = ("target",)

    kind: Literal["cross_entropy"]
    target: str
    """The column of the target token."""


class TokenLogit(TokenMetric):
    """Logit of a token."""

    unit = "logit"
    columns = ("token",)

    kind: Literal["token_logit"]
    token: str
    """The column of the token."""


class TokenProb(TokenMetric):
    """Probability of a token."""

    unit = "probability"
    columns = ("token",)

    kind: Literal["token_prob"]
    token: str
    """The column of the token."""


class Rank(TokenMetric):
    """How many tokens are more likely than this one: 0 is the most likely."""

    is_differentiable = False
    unit = "rank"
    columns = ("token",)

    kind: Literal["rank"]
    token: str
    """The column of the token."""


class Kl(ReadMetric):
    """Kullback–Leibler divergence of the distribution of `of` from that of `against`."""

    unit = "nat"
    reads = ("of", "against")

    kind: Literal["kl"]
    against: Name
    """The read that it is compared with."""


class Js(ReadMetric):
    """Jensen–Shannon divergence of the distributions of two reads."""

    unit = "nat"
    reads = ("of", "against")

    kind: Literal["js"]
    against: Name
    """The read that it is compared with."""


class Cosine(ReadMetric):
    """Cosine of the angle between two reads of one site."""

    unit = "cosine"
    needs_vocabulary = False
    reads = ("of", "against")

    kind: Literal["cosine"]
    against: Name
    """The read that it is compared with."""


class Value(ReadMetric):
    """One number made of a read of any place."""

    unit = "activation"
    needs_vocabulary = False

    kind: Literal["value"]
    how: Literal["sum", "mean", "norm", "max"]
    """How the features become one number; `norm` is Euclidean."""


class TopK(ReadMetric):
    """The most likely tokens with their probabilities."""

    is_differentiable = False
    unit = "probability"

    kind: Literal["top_k"]
    k: int = Field(5, gt=0)
    """How many."""


class ClassMatch(TokenMetric):
    """1 where the expected token is the most likely of some classes, else 0."""

    is_differentiable = False
    unit = "fraction"
    columns = ("expected",)

    kind: Literal["class_match"]
    expected: str
    """The column of the expected token."""
    classes: Annotated[
        Annotated[str, Tag("<column>")] | Annotated[Tuple[str, ...], Field(min_length=2), Tag("<list>")],
        tag_by("a column or a list of texts", {str: "<column>", list: "<list>", tuple: "<list>"}),
    ]
    """The column that lists the classes, or the classes themselves."""

    @field_validator("classes")
    @classmethod
    def _are_a_column(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        return cls._column(value) if isinstance(value, str) else value


class Recovered(ReadMetric):
    """Where a metric stands between its corrupt and its clean value: 0 is corrupt, 1 is clean."""

    unit = "fraction"
    needs_vocabulary = False
    reads = ("of", "clean", "corrupt")

    kind: Literal["recovered"]
    metric: Name
    """The metric of this intervention whose kind and columns are used."""
    clean: Name
    """The read that is to be recovered."""
    corrupt: Name
    """The read that it starts from."""


class AnswerLogprob(TokenMetric):
    """Log-probability of a whole answer, appended to the prompt."""

    unit = "nat"
    columns = ("target",)

    kind: Literal["answer_logprob"]
    target: str
    """The column of the answer."""


class GeneratedMatch(MetricBase):
    """1 where what a model says matches the expected text, else 0."""

    is_differentiable = False
    unit = "fraction"
    needs_vocabulary = False
    columns = ("expected",)

    kind: Literal["generated_match"]
    model: Name = "original"
    """Whose continuation: `original`, or a name of `models`."""
    input: Name | None = None
    """Which role it runs on; required for `original`, absent a model's own."""
    expected: str
    """The column of the expected text."""
    how: Literal["exact", "prefix", "contains", "regex"] = "exact"
    """What matches: all of it, how it begins, anything in it (white space at both ends aside), or a regular expression anywhere."""

    @field_validator("expected")
    @classmethod
    def _is_a_column(cls, value: str) -> str:
        if parse_field(value) is None:
            raise invalid(COLUMN_PATH, shown(value))
        return value


METRIC_MODELS: Mapping[str, type[MetricBase]] = {
    "match": Match,
    "logit_diff": LogitDiff,
    "cross_entropy": CrossEntropy,
    "token_logit": TokenLogit,
    "token_prob": TokenProb,
    "rank": Rank,
    "kl": Kl,
    "js": Js,
    "cosine": Cosine,
    "value": Value,
    "top_k": TopK,
    "class_match": ClassMatch,
    "recovered": Recovered,
    "answer_logprob": AnswerLogprob,
    "generated_match": GeneratedMatch,
}

_DISCRIMINATOR, _KNOWN_KIND = tag_by_kind(METRIC_MODELS, ())

Metric = Annotated[
    Annotated[Match, Tag("<match>")]
    | Annotated[LogitDiff, Tag("<logit_diff>")]
    | Annotated[CrossEntropy, Tag("<cross_entropy>")]
    | Annotated[TokenLogit, Tag("<token_logit>")]
    | Annotated[TokenProb, Tag("<token_prob>")]
    | Annotated[Rank, Tag("<rank>")]
    | Annotated[Kl, Tag("<kl>")]
    | Annotated[Js, Tag("<js>")]
    | Annotated[Cosine, Tag("<cosine>")]
    | Annotated[Value, Tag("<value>")]
    | Annotated[TopK, Tag("<top_k>")]
    | Annotated[ClassMatch, Tag("<class_match>")]
    | Annotated[Recovered, Tag("<recovered>")]
    | Annotated[AnswerLogprob, Tag("<answer_logprob>")]
    | Annotated[GeneratedMatch, Tag("<generated_match>")],
    _DISCRIMINATOR,
    _KNOWN_KIND,
]
