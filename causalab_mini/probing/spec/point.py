"""Extraction points and specs: immutable values, from a file or built by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from causalab_mini.plan.selector import PositionSelector
from causalab_mini.plan.strict import FrozenDict
from causalab_mini.probing.spec.words import (
    ExecutionMode,
    InterventionMode,
    OnTimeout,
    Overflow,
    ProbeKind,
    TensorType,
    Until,
    components_of,
)


@dataclass(frozen=True, slots=True)
class InterventionPolicy:
    """Whether a probe may hold up the generation, how long (milliseconds), and what happens then."""

    mode: InterventionMode = InterventionMode.REJECT
    timeout_ms: int | None = None
    on_timeout: OnTimeout = OnTimeout.CONTINUE


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionPoint:
    """What is taken, at which tokens, and which probe gets it. Built by hand, it is not judged; `verify_point` does.

    Attributes:
        name: unique in a spec.
        layers: empty where the tensor belongs to the whole model.
        tensor_type: which tensor.
        position: which tokens.
        probe_type: the name that the probe is registered under.
        probe_kind: whether the probe carries state.
        stride: every n-th token of a run is taken, from the run's start.
        until: when a run ends beside its own bounds; None is the end of the generation.
        count: how often the point fires under `Until.FIXED_COUNT`.
        token: the text of the one token that ends the run under `Until.STOP_TOKEN`.
        probe_args: for the probe's constructor; lists in it are tuples (`probe_kwargs` gives lists).
        execution_mode: whether the generation waits.
        queue_depth: of an async point; None is the router's own.
        overflow: what a full queue does.
        intervention: None is the router's own policy, not the absence of one.
    """

    name: str
    layers: tuple[int, ...] = ()
    tensor_type: TensorType
    position: PositionSelector
    probe_type: str
    probe_kind: ProbeKind
    stride: int = 1
    until: Until | None = None
    count: int | None = None
    token: str | None = None
    probe_args: Mapping[str, Any] = field(default_factory=FrozenDict, hash=False)
    execution_mode: ExecutionMode = ExecutionMode.INLINE
    queue_depth: int | None = None
    overflow: Overflow = Overflow.BLOCK
    intervention: InterventionPolicy | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        object.__setattr__(self, "probe_args", frozen(self.probe_args))

    @property
    def components(self) -> tuple[str, ...]:
        """The components of the document language that are read."""
        return components_of(self.tensor_type)

    @property
    def probe_kwargs(self) -> dict[str, Any]:
        """The probe's arguments as a fresh dict, lists as lists."""
        return {key: thawed(value) for key, value in self.probe_args.items()}

    def is_eligible(
        self,
        token_index: int,
        is_generated: bool,
        prompt_len: int,
        generated_index: int | None = None,
        num_generated_total: int | None = None,
    ) -> bool:
        """Returns whether position and stride take a token, whatever `until` says; as `PositionSelector.matches` takes it."""
        if not self.position.is_continuous:
            return self.position.matches(token_index, is_generated, prompt_len, generated_index, num_generated_total)
        place = self.position.place_in_run(token_index, is_generated, prompt_len, generated_index)
        return place is not None and place % self.stride == 0

    def matches(
        self,
        token_index: int,
        is_generated: bool,
        prompt_len: int,
        generated_index: int | None = None,
        num_generated_total: int | None = None,
    ) -> bool:
        """Returns whether the point fires at a token: position, stride and `fixed_count` take it.

        A stop token is known by who reads the text: `advance` and `CompiledSelector.cut_at` have that.
        """
        if not self.is_eligible(token_index, is_generated, prompt_len, generated_index, num_generated_total):
            return False
        place = self.position.place_in_run(token_index, is_generated, prompt_len, generated_index)
        return place is None or self.count is None or place // self.stride < self.count


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    """Extraction points, in the order of the file."""

    extraction_points: tuple[ExtractionPoint, ...]
    version: str = "1"

    def __iter__(self) -> Iterator[ExtractionPoint]:
        return iter(self.extraction_points)

    def __len__(self) -> int:
        return len(self.extraction_points)

    def get(self, name: str) -> ExtractionPoint | None:
        """Returns the point of a name, None where there is none."""
        return next((point for point in self.extraction_points if point.name == name), None)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all points."""
        return tuple(point.name for point in self.extraction_points)


def frozen(value: Any) -> Any:
    """Returns JSON data that can't be changed: dicts that refuse to be, lists as tuples."""
    if isinstance(value, Mapping):
        return FrozenDict((key, frozen(inner)) for key, inner in value.items())
    return tuple(frozen(inner) for inner in value) if isinstance(value, list | tuple) else value


def thawed(value: Any) -> Any:
    """Returns what was frozen as fresh dicts and lists."""
    if isinstance(value, Mapping):
        return {key: thawed(inner) for key, inner in value.items()}
    return [thawed(inner) for inner in value] if isinstance(value, tuple) else value
