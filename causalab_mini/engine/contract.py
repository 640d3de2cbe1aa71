"""What an engine must do: open a checkpoint, and run one batch with reads and writes at addresses.

Everything between the addresses is shared (`walk.visit`), so that two engines differ only in how they reach a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from causalab_mini.model.facts import ModelFacts
from causalab_mini.model.families import Address
from causalab_mini.ops.windows import Index, PatternIndex

if TYPE_CHECKING:
    from causalab_mini.engine.run import Run
    from causalab_mini.plan.plan import Request


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one role, padded on the left to the longest of them.

    Attributes:
        rows: of the step, ascending.
        input_ids, attention_mask, position_ids: (row, token), int64; positions count from each row's first own token.
    """

    rows: tuple[int, ...]
    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor

    def inputs(self, device: torch.device, takes_positions: bool = True) -> dict[str, Any]:
        """Returns the keyword arguments of a forward on a device; a model that makes positions of the mask itself takes none."""
        positions = {"position_ids": self.position_ids.to(device)} if takes_positions else {}
        return {"input_ids": self.input_ids.to(device), "attention_mask": self.attention_mask.to(device), **positions, "use_cache": False}


@dataclass(frozen=True, slots=True)
class Shortcut:
    """What of a forward is left out, with the same numbers.

    Attributes:
        n_skipped: layers from the bottom that are not run; `stream` stands for what they give.
        stream: (row, token, feature), what leaves the last skipped layer, before any write there.
        tail: what else the skipped blocks return beside the stream, where they return a tuple.
        stops: whether the forward ends after its last stop.
        columns: (row, position), the only positions whose logits are computed; None for all.
    """

    n_skipped: int = 0
    stream: Tensor | None = None
    tail: tuple[Any, ...] | None = None
    stops: bool = False
    columns: Tensor | None = None


PLAIN = Shortcut()


@dataclass(slots=True)
class State:
    """What one batch's forward leaves behind.

    Attributes:
        shape: rows and tokens of the batch.
        streams: by layer, what entered the block, kept where a stream between attention and MLP is asked for.
        tails: by layer, what a block whose stream is kept returns beside it; None where it returns the stream alone.
        reads: values by read name and place in its site's list of layers, (token, feature).
        changes: by write name and layer, (token,) relative change of norm of each written token; the change itself where it was zero.
    """

    shape: tuple[int, int]
    streams: dict[int, Tensor] = field(default_factory=dict)
    tails: dict[int, tuple[Any, ...] | None] = field(default_factory=dict)
    reads: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    changes: dict[tuple[str, int | None], Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Takes a value: under which name, at which entry of its site's layers, which tokens.

    Attributes:
        stream: the layer whose entering stream is added to what stands at the address; None for the address itself.
    """

    name: str
    entry: int
    index: Index | PatternIndex
    stream: int | None = None


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Makes a change: which tokens, and what becomes of them.

    Attributes:
        change: from the values that stand there and those that arrived, both (token, feature) in fp32, and the state so far.
        stream: as of `ReadTask`.
        renormalizes: whether the written lines of a pattern are made to sum to 1 again.
        is_cut: whether it cuts edges of a pattern.
    """

    name: str
    layer: int | None
    index: Index | PatternIndex
    change: Callable[[Tensor, Tensor, State], Tensor]
    stream: int | None = None
    renormalizes: bool = False
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class KeepTask:
    """Keeps the whole activation: the stream that enters a layer, for a later stop, or the one that leaves it, for later passes."""

    stream: int


Task = WriteTask | ReadTask | KeepTask


@dataclass(frozen=True, slots=True)
class Visit:
    """One address that a forward stops at, and what is done there, in order."""

    address: Address
    tasks: tuple[Task, ...]


class Engine(Protocol):
    """A checkpoint that can be run."""

    @property
    def facts(self) -> ModelFacts:
        """Shapes and identity."""
        ...

    @property
    def tokenizer(self) -> Any:
        """The checkpoint's tokenizer."""
        ...

    def load_weights(self) -> None:
        """Loads and freezes the weights, once."""
        ...

    def run(self, batch: Batch, visits: tuple[Visit, ...], state: State, shortcut: Shortcut = PLAIN) -> None:
        """Runs one forward over a batch, or what a shortcut leaves of it, stopping at addresses in forward order."""
        ...

    def unembed(self, stream: Tensor) -> Tensor:
        """Returns the logits that final norm and unembedding make of a residual stream, (…, feature) to (…, vocabulary)."""
        ...

    def describe(self) -> dict[str, Any]:
        """Returns what the record of a run says of the engine: name, device, dtype as loaded, attention implementation."""
        ...

    def execute(self, request: Request, **options: Any) -> Run:
        """Carries out a request, as `engine.execute` does."""
        ...
