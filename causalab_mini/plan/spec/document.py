"""The document as a whole."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from causalab_mini.data.fields import parse_field
from causalab_mini.errors import DocumentError, Problem
from causalab_mini.plan.spec.featurizers import Featurizer
from causalab_mini.plan.spec.interventions import Intervention
from causalab_mini.plan.spec.sites import Site
from causalab_mini.plan.spec.steps import Step
from causalab_mini.plan.strict import FrozenDict, Named, Strict, Tuple, invalid, not_yet, shown

NULLABLE = ("attn_implementation",)
"""The keys at which `null` may stand."""
NOT_YET_KEYS = {
    "peft": "an adapter",
    "adapter": "an adapter",
    "quantization": "quantised loading",
    "quantization_config": "quantised loading",
    "load_in_8bit": "quantised loading",
    "load_in_4bit": "quantised loading",
}


class Header(Strict):
    """For people; no part of what the experiment is."""

    title: str | None = None
    """A name for the experiment."""
    description: str | None = None
    """What it is about."""
    tags: Tuple[str, ...] = ()
    """Words to find it by."""


class ModelSpec(Strict):
    """Which checkpoint is examined."""

    key: str = Field(min_length=1)
    """A hub id (`org/name`), a local folder, a GGUF file, or `bundled:NAME` for a model that ships with the package."""
    revision: str | None = Field(None, min_length=1)
    """Commit, branch or tag; required for a hub id, refused otherwise."""
    dtype: Literal["fp32", "bf16", "fp16"]
    """What the weights are loaded as."""
    attn_implementation: Literal["eager", "sdpa"] | None = None
    """How attention is computed; absent, as transformers chooses."""

    @field_validator("key")
    @classmethod
    def _names_a_model(cls, key: str) -> str:
        if key == "bundled:":
            raise invalid("`bundled:NAME`", shown(key))
        return key

    @model_validator(mode="before")
    @classmethod
    def _loaded_as_it_is(cls, value: Any) -> Any:
        if later := [key for key in NOT_YET_KEYS if isinstance(value, dict) and key in value]:
            raise not_yet(NOT_YET_KEYS[later[0]], later[0])
        return value

    @model_validator(mode="after")
    def _bundled_has_no_revision(self) -> ModelSpec:
        if self.key.startswith("bundled:") and self.revision is not None:
            raise invalid("no `revision` (a bundled model has none)", shown(self.revision), key="revision")
        return self


class Role(Strict):
    """One side of a pair of prompts."""

    field: str
    """The column path of a row that holds the prompt: a text, or a conversation."""

    @field_validator("field")
    @classmethod
    def _is_a_path(cls, value: str) -> str:
        if parse_field(value) is None:
            raise invalid("a field path like `input` or `counterfactual_inputs[0]`", shown(value))
        return value


class Spec(Strict):
    """A causal-intervention experiment."""

    version: Annotated[Literal[1], Field()] = 1
    """The language's version."""
    header: Header = Header()
    """Title, description and tags."""
    model: ModelSpec
    """Which checkpoint."""
    roles: Named[Role]
    """Which column of a row is which side of the pair; one of them is `base`."""
    sites: Named[Site] = Field(default_factory=FrozenDict)
    """Places inside the model, by name."""
    featurizers: Named[Featurizer] = Field(default_factory=FrozenDict)
    """Coordinate systems in which values are compared and replaced, by name."""
    interventions: Named[Intervention] = Field(default_factory=FrozenDict)
    """The experiments; nothing runs by being declared."""
    steps: Annotated[Named[Step], Field(min_length=1)]
    """What runs, in this order."""

    @field_validator("version", mode="before")
    @classmethod
    def _this_version(cls, value: Any) -> Any:
        if value is True or value != 1 or isinstance(value, float):
            raise invalid("`1`", shown(value), "this release reads version 1 of the language", "version")
        return value

    @field_validator("roles")
    @classmethod
    def _has_base(cls, value: dict[str, Role]) -> dict[str, Role]:
        if "base" not in value:
            raise invalid("a role of the name `base`", "none")
        return value

    @classmethod
    def model_validate(cls, obj: Any, **kwargs: Any) -> Spec:
        """Returns the Spec of a parsed document, judged by the rules of JSON.

        A document with sweeps is judged at every point, and its first point returned; `causalab_mini.load` has them all.

        Raises:
            DocumentError: with every problem of the document.
        """
        from causalab_mini.plan.load import load_raw

        try:
            raw = json.loads(json.dumps(obj, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as problem:
            raise DocumentError(Problem("", "JSON data", f"{problem}", code="json")) from None
        return load_raw(raw).points[0].spec
