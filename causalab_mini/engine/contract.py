"""What an engine must do: open a checkpoint, and run one batch with reads and writes at addresses.

Everything between the addresses is shared (`walk.visit`), so that two engines differ only in how they reach a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from causalab_mini.engine.gradients import Mode
from causalab_mini.model.facts import ModelFacts
from causalab_mini.model.families import Address
from causalab_mini.ops.windows import Index, PatternIndex

if TYPE_CHECKING:
    from transformers import DynamicCache

    from causalab_mini.engine.first_use import Trust
    from causalab_mini.engine.run import Run
    from causalab_mini.plan.plan import Request


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows as a forward is given them: their last tokens, padded on the left, behind keys and values of those before, if there are any.

    Attributes:
        rows: of the step.
        input_ids, position_ids: (row, token), int64; positions count from each row's first own token.
        attention_mask: (row, prefix and token), int64.
    """

    rows: tuple[int, ...]
    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor

    @property
    def n_prefix(self) -> int:
        """How many columns of keys and values stand before the tokens."""
        return self.attention_mask.shape[1] - self.input_ids.shape[1]


@dataclass(frozen=True, slots=True)
class Enter:
    """Rows that a forward begins with, or that join it above some layers.

    Attributes:
        n_rows: how many; they stand behind those that entered below.
        n_skipped: layers from the bottom that they leave out; `stream` stands for what those give.
        stream: (row, token, feature), what leaves the last skipped layer, before any write there; None at the bottom.
        tail: what else a skipped block returns beside the stream, where it returns a tuple.
    """

    n_rows: int
    n_skipped: int = 0
    stream: Tensor | None = None
    tail: tuple[Any, ...] | None = None


@dataclass(frozen=True, slots=True)
class Shortcut:
    """What of a forward is left out, with the same numbers.

    Attributes:
        enters: those that skip fewest layers first; none where all rows are run from the bottom.
        cache: hands out keys and values of the tokens that are not run, keeps those of this forward, or both; None for neither.
        stops: whether the forward ends after its last stop.
        columns: (row, position), the only positions whose logits are computed; None for all.
        vocabulary: the tokens whose logits are computed, the others being nan; None for all.
        is_direct: whether hooks on the same modules carry it out, where a trace would cost more than the forward.
        mode: whether it can be differentiated.
    """

    enters: tuple[Enter, ...] = ()
    cache: DynamicCache | None = None
    stops: bool = False
    columns: Tensor | None = None
    vocabulary: Tensor | None = None
    is_direct: bool = False
    mode: Mode = "off"

    @property
    def skips(self) -> bool:
        """Whether any row leaves out a layer."""
        return any(enter.n_skipped for enter in self.enters)


PLAIN = Shortcut()


@dataclass(slots=True)
class State:
    """What one batch's forward leaves behind.

    Attributes:
        n_tokens: of the batch, padding counted.
        streams: by layer, what entered the block, kept where a stream between attention and MLP is asked for.
        kept: by layer, what left the block, kept for later passes.
        tails: by layer, what a block whose stream is kept returns beside it; None where it returns the stream alone.
        reads: values by label and place in its site's list of layers, (token, feature).
        changes: by write label and layer, (token,) relative change of norm of each written token; the change itself where it was zero.
        has_evidence: whether changes are noted.
        is_kept: whether keys and values are kept for later forwards as they are after writes.
    """

    n_tokens: int
    streams: dict[int, Tensor] = field(default_factory=dict)
    kept: dict[int, Tensor] = field(default_factory=dict)
    tails: dict[int, tuple[Any, ...] | None] = field(default_factory=dict)
    reads: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    changes: dict[tuple[str, int | None], Tensor] = field(default_factory=dict)
    has_evidence: bool = True
    is_kept: bool = False


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Takes a value: under which label, at which entry of its site's layers, which tokens.

    Attributes:
        stream: the layer whose entering stream is added to what stands at the address; None for the address itself.
    """

    label: str
    entry: int
    index: Index | PatternIndex
    stream: int | None = None


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Makes a change: which tokens, and what becomes of them.

    Attributes:
        name: as the document has it.
        label: what its change is noted under; passes that share a batch may have writes of one name.
        change: from the values that stand there and those that arrived, both (token, feature) in fp32, and the state so far.
        stream: as of `ReadTask`.
        renormalizes: whether the written lines of a pattern are made to sum to 1 again.
        is_cut: whether it cuts edges of a pattern.
    """

    name: str
    label: str
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
    is_for_later: bool = False


Task = WriteTask | ReadTask | KeepTask


@dataclass(frozen=True, slots=True)
class Visit:
    """One address that a forward stops at, and what is done there, in order."""

    address: Address
    tasks: tuple[Task, ...]


class Engine(Protocol):
    """A checkpoint that can be run.

    Attributes:
        trust: how far its schedules are rewritten, once that has been tried.
        cache_difference: of its logits behind keys and values that are handed in, once that has been tried.
    """

    trust: Trust | None
    cache_difference: float | None

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

    def loaded(self) -> nn.Module:
        """Returns the model with its weights."""
        ...

    def device(self) -> torch.device:
        """Returns where inputs go."""
        ...

    def run(self, batch: Batch, visits: tuple[Visit, ...], state: State, shortcut: Shortcut = PLAIN) -> None:
        """Runs one forward over a batch, or what a shortcut leaves of it, stopping at addresses in forward order."""
        ...

    def unembed(self, stream: Tensor, mode: Mode = "off") -> Tensor:
        """Returns the logits that final norm and unembedding make of a residual stream, (…, feature) to (…, vocabulary)."""
        ...

    def stop_tokens(self) -> tuple[int, ...]:
        """Returns the ids of the tokens that end what the model says."""
        ...

    def memory(self) -> tuple[str, int | None]:
        """Returns the kind of device that inputs go to, and the bytes that are free there; None where nobody says."""
        ...

    def describe(self) -> dict[str, Any]:
        """Returns what the record of a run says of the engine: name, device, dtype as loaded, attention implementation."""
        ...

    def execute(self, request: Request, **options: Any) -> Run:
        """Carries out a request, as `engine.execute` does."""
        ...
