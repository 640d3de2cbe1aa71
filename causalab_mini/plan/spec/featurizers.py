"""Coordinate systems in which values are compared and replaced: one model a kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, Tag, model_validator

from causalab_mini.data.opening import A_PICKLE, is_pickle
from causalab_mini.errors import quoted
from causalab_mini.plan.files import name_problem
from causalab_mini.plan.strict import MAX_SEED, Name, Strict, Tuple, invalid, shown, tag_by_kind

Parametrization = Literal["cayley", "householder", "qr"]


def _below(path: str) -> str:
    if problem := name_problem(path):
        raise invalid("a path below the document's folder, or the working directory", f"{quoted(path)} ({problem})", code="file")
    if is_pickle(path):
        raise invalid("a safetensors file", f"{quoted(path)}, {A_PICKLE}", code="pickle")
    return path


FilePath = Annotated[str, Field(min_length=1), AfterValidator(_below)]


class FeaturizerBase(Strict):
    """What every featurizer has.

    Attributes:
        is_trainable: whether a `fit` may train it.
    """

    is_trainable: ClassVar[bool] = False


class Subspace(FeaturizerBase):
    """Some orthonormal directions of a place; the rest of the vector stays."""

    is_trainable = True

    kind: Literal["subspace"]
    k: int = Field(gt=0)
    """The rank: how many directions."""
    parametrization: Parametrization = "cayley"
    """How the basis is kept orthonormal while it is trained."""
    init: Literal["random", "pca"] = "random"
    """Where a trained basis starts: at random directions, or at those of greatest variance over the rows that it is trained on."""
    seed: int | None = Field(None, ge=0, le=MAX_SEED)
    """Of the first draw; absent, that of the fit, else 0."""
    file_path: FilePath | None = None
    """A safetensors file with the basis, relative to the document."""

    @model_validator(mode="after")
    def _starts_once(self) -> Subspace:
        if self.file_path is not None and (self.seed is not None or self.init != "random"):
            raise invalid("`file_path` alone, or `seed` and `init` (a basis from a file is not drawn)", "both")
        if self.init == "pca" and self.seed is not None:
            raise invalid("no `seed` (directions of greatest variance are not drawn)", shown(self.seed), key="seed")
        return self


class Pca(FeaturizerBase):
    """Fixed orthonormal directions, such as those of greatest variance; the rest of the vector stays."""

    kind: Literal["pca"]
    k: int = Field(gt=0)
    """How many directions."""
    file_path: FilePath | None = None
    """A safetensors file with the directions, relative to the document."""
    from_: Name | None = Field(None, alias="from")
    """An output of an earlier step that is reduced by `pca`; its first `k` directions are taken."""

    @model_validator(mode="after")
    def _has_one_source(self) -> Pca:
        if (self.file_path is None) == (self.from_ is None):
            raise invalid("`file_path` or `from`", "neither" if self.from_ is None else "both")
        return self


class Gate(FeaturizerBase):
    """The units of a place, each on or off."""

    is_trainable = True

    kind: Literal["gate"]
    seed: int | None = Field(None, ge=0, le=MAX_SEED)
    """Of the first draw; absent, that of the fit, else 0."""
    file_path: FilePath | None = None
    """A safetensors file with `theta`, relative to the document; a unit is on where it is above 0."""

    @model_validator(mode="after")
    def _starts_once(self) -> Gate:
        if self.file_path is not None and self.seed is not None:
            raise invalid("`file_path` or `seed` (what comes from a file is not drawn)", "both")
        return self


class Sae(FeaturizerBase):
    """The latents of a sparse autoencoder; what it does not reconstruct is carried along."""

    kind: Literal["sae"]
    k: int | None = Field(None, gt=0)
    """How many latents; absent, as many as the file has."""
    file_path: FilePath
    """A safetensors file in one of the common layouts, relative to the document."""
    activation: Literal["relu", "jumprelu", "topk"] = "relu"
    """What makes latents of the encoder's sums."""
    topk: int | None = Field(None, gt=0)
    """`topk`: how many latents a token has."""

    @model_validator(mode="after")
    def _fits_activation(self) -> Sae:
        if self.topk is not None and self.activation != "topk":
            raise invalid("`topk` with the activation `topk` and only there", f"`{self.activation}` with it", key="topk")
        return self


class Linear(FeaturizerBase):
    """Linear readings of a place; what they do not reconstruct is carried along."""

    kind: Literal["linear"]
    k: int | None = Field(None, gt=0)
    """How many; absent, as many as the file has."""
    file_path: FilePath
    """A safetensors file with the encoder and, if there is one, the decoder, relative to the document."""


class MeanAndStd(Strict):
    """Where a standardisation is taken from."""

    mean: Name
    """An output of an earlier step that is reduced by `mean`."""
    std: Name
    """An output of an earlier step that is reduced by `std`."""


class Standardize(FeaturizerBase):
    """Every unit less its mean, in standard deviations."""

    kind: Literal["standardize"]
    file_path: FilePath | None = None
    """A safetensors file with `mean` and `std`, relative to the document."""
    from_: MeanAndStd | None = Field(None, alias="from")
    """Outputs of an earlier step."""

    @model_validator(mode="after")
    def _has_one_source(self) -> Standardize:
        if (self.file_path is None) == (self.from_ is None):
            raise invalid("`file_path` or `from`", "neither" if self.from_ is None else "both")
        return self


class Chain(FeaturizerBase):
    """Featurizers one after the other, undone in reverse."""

    kind: Literal["chain"]
    of: Annotated[Tuple[Name, ...], Field(min_length=1)]
    """Their names, the one that sees the place first."""

    @model_validator(mode="after")
    def _distinct(self) -> Chain:
        if len(set(self.of)) != len(self.of):
            raise invalid("distinct featurizers", self.of, key="of")
        return self


FEATURIZER_MODELS: Mapping[str, type[FeaturizerBase]] = {
    "subspace": Subspace,
    "pca": Pca,
    "gate": Gate,
    "sae": Sae,
    "linear": Linear,
    "standardize": Standardize,
    "chain": Chain,
}

_BY_KIND, _KNOWN_KIND = tag_by_kind(
    FEATURIZER_MODELS, (), {"identity": "without a `featurizer`, values are taken and replaced in the site's own coordinates"}
)
Featurizer = Annotated[
    Annotated[Subspace, Tag("<subspace>")]
    | Annotated[Pca, Tag("<pca>")]
    | Annotated[Gate, Tag("<gate>")]
    | Annotated[Sae, Tag("<sae>")]
    | Annotated[Linear, Tag("<linear>")]
    | Annotated[Standardize, Tag("<standardize>")]
    | Annotated[Chain, Tag("<chain>")],
    _BY_KIND,
    _KNOWN_KIND,
]


def parts_of(name: str, featurizers: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns a featurizer's name and, of a chain, those of its parts before it."""
    found = featurizers.get(name)
    return (*found.of, name) if isinstance(found, Chain) else (name,)


__all__ = [
    "FEATURIZER_MODELS",
    "Chain",
    "Featurizer",
    "FeaturizerBase",
    "Gate",
    "Linear",
    "MeanAndStd",
    "Pca",
    "Sae",
    "Standardize",
    "Subspace",
    "parts_of",
]
