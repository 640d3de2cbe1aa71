"""Rows as batches of tokens, and places as tasks on a batch."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from causalab_mini.data.prompts import Prompt
from causalab_mini.engine.contract import Batch, KeepTask, ReadTask, Shortcut, State, Task, Visit, WriteTask
from causalab_mini.model.components import COMPONENTS, forward_rank
from causalab_mini.model.facts import ModelFacts
from causalab_mini.model.families import Address
from causalab_mini.ops import mechanisms
from causalab_mini.ops.windows import Index, Pattern, PatternIndex, Value
from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.physical import is_at_head
from causalab_mini.schedule.schedule import Pass

MAX_BATCH_TOKENS = 8192
MAX_LOGIT_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Made:
    """An output of a step.

    Attributes:
        value: `rows`: of all rows of its step; `window`: one entry, the window that every row is given; `groups`: one entry a group.
        kind: which of these.
        is_stacked: whether the layer axis was asked for.
        groups: names, in the order of the entries.
        is_ragged: whether rows may have another number of tokens each, as the document has it and not as these rows happen to be.
        pattern: heads and keys of the features, where those are keys.
    """

    value: Value
    kind: Literal["rows", "window", "groups"]
    is_stacked: bool
    groups: tuple[str, ...] = ()
    is_ragged: bool = False
    pattern: Pattern | None = None


OutputTensors = Mapping[str, Made]
"""Outputs of earlier steps by name."""


def split_rows(lengths: Sequence[int], vocabulary: int, batch_size: int | None) -> list[tuple[int, ...]]:
    """Returns indices into some rows, in order, as batches.

    Args:
        lengths: tokens of each row.
        vocabulary: width of the logits, which are the largest tensor of a plain forward.
        batch_size: rows a batch; None bounds tokens and logits instead.
    """
    if batch_size is None:
        longest = max(lengths, default=1)
        batch_size = max(1, min(MAX_BATCH_TOKENS // longest, MAX_LOGIT_BYTES // (4 * vocabulary * longest)))
    return [tuple(range(start, min(start + batch_size, len(lengths)))) for start in range(0, len(lengths), batch_size)]


def make_batch(rows: Sequence[int], prompts: Sequence[Prompt], appended: Sequence[Sequence[int]] | None, pad: int) -> Batch:
    """Returns rows padded on the left; `prompts` and `appended` are those of all rows of the step."""
    ids = [prompts[row].ids + (() if appended is None else tuple(appended[row])) for row in rows]
    longest = max(map(len, ids))
    input_ids = torch.full((len(ids), longest), pad, dtype=torch.long)
    attention_mask = torch.zeros((len(ids), longest), dtype=torch.long)
    for index, row in enumerate(ids):
        input_ids[index, longest - len(row) :] = torch.tensor(row, dtype=torch.long)
        attention_mask[index, longest - len(row) :] = 1
    position_ids = (attention_mask.cumsum(dim=-1) - 1).clamp(min=0)
    return Batch(tuple(rows), input_ids, attention_mask, position_ids)


@dataclass(slots=True)
class Landing:
    """Where an operand lands: which written tokens take which of the operand's tokens.

    Attributes:
        n_left_over: written tokens that `align` left as they were.
    """

    rows: list[int] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)
    n_left_over: int = 0


class PassOnBatch:
    """One pass on one batch: its stops with their tasks.

    Args:
        one: the pass.
        batch: the rows.
        prompts: of all rows of the step.
        values: reads of earlier passes, of the active rows.
        outputs: of earlier steps.
        active: rows of the step that run, ascending.
        facts: of the checkpoint.
        keeps: layers whose leaving stream is kept.
        is_narrow: whether logits are computed at the positions alone that are read.
    """

    def __init__(
        self,
        one: Pass,
        batch: Batch,
        prompts: Sequence[Prompt],
        values: Mapping[str, Value],
        outputs: OutputTensors,
        active: Sequence[int],
        facts: ModelFacts,
        keeps: Sequence[int] = (),
        is_narrow: bool = False,
    ) -> None:
        self.one = one
        self.batch = batch
        self.prompts = prompts
        self.values = values
        self.outputs = outputs
        self.active = active
        self.facts = facts
        self.n_tokens = batch.input_ids.shape[1]
        self.landings: dict[str, Landing] = {}
        self.keeps = keeps
        self.head = self.head_columns() if is_narrow else None

    def visits(self) -> tuple[Visit, ...]:
        """Returns the stops in forward order."""
        by_place: dict[tuple[str, int | None], tuple[list[Task], list[Task]]] = {}
        for write in sorted(self.one.forward.writes, key=lambda write: write.order):
            for entry, layer in enumerate(write.site.addresses):
                by_place.setdefault((write.site.component, layer), ([], []))[0].append(self.write_task(write, entry, layer))
        for read in self.one.forward.reads:
            index = self.read_index(read)
            for entry, layer in enumerate(read.site.addresses):
                task = ReadTask(read.name, entry, index, self.stream(read.site.component, layer))
                by_place.setdefault((read.site.component, layer), ([], []))[1].append(task)
        for layer in {layer for component, layer in by_place if self.stream(component, layer) is not None}:
            assert layer is not None
            by_place.setdefault(("block_input", layer), ([], []))[1].append(KeepTask(layer))
        for layer in self.keeps:
            by_place.setdefault(("block_output", layer), ([], []))[1].append(KeepTask(layer))
        stops: dict[Address, list[Task]] = {}
        for component, layer in sorted(by_place, key=lambda key: forward_rank(*key)):
            writes, reads = by_place[component, layer]
            stops.setdefault(self.address(component, layer), []).extend([*writes, *reads])
        return tuple(Visit(address, tuple(tasks)) for address, tasks in stops.items())

    def head_columns(self) -> list[list[int]]:
        """Returns, for each row of the batch, the positions whose logits are read; as many on every row."""
        reads = [read for read in self.one.forward.reads if is_at_head(read)]
        by_row = [
            sorted({self.column(row, token) for read in reads for token in self.one.windows[read.name][row].tokens})
            for row in self.batch.rows
        ]
        longest = max(1, *map(len, by_row))
        return [columns + [self.n_tokens - 1] * (longest - len(columns)) for columns in by_row]

    def shortcut(self, n_skipped: int, stream: Tensor | None, tail: tuple[object, ...] | None, stops: bool) -> Shortcut:
        """Returns what is left out of this pass on this batch."""
        columns = None if self.head is None else torch.tensor(self.head, dtype=torch.long)
        return Shortcut(n_skipped, stream, tail, stops, columns)

    def address(self, component: str, layer: int | None) -> Address:
        """Returns where a component is reached; the stream between attention and MLP at what attention adds."""
        found = self.facts.address(component, layer)
        assert found is not None
        return Address(found.module, "output", found.is_flat) if found.side == "mid" else found

    def stream(self, component: str, layer: int | None) -> int | None:
        """Returns the layer whose entering stream is a part of the component, if it is one."""
        found = self.facts.address(component, layer)
        return layer if found is not None and found.side == "mid" else None

    def value(self, read: nodes.Read, state: State) -> Value:
        """Returns what a read of this pass found on this batch."""
        windows = self.one.windows[read.name]
        data = torch.stack([state.reads[read.name, entry] for entry in range(len(read.site.addresses))])
        return Value(data, tuple(len(windows[row].tokens) for row in self.batch.rows))

    def column(self, row: int, token: int) -> int:
        """Returns where a row's content token stands in the padded batch."""
        appended = self.one.forward.appended
        length = self.prompts[row].n_tokens + (0 if appended is None else len(appended[row]))
        return self.n_tokens - length + self.prompts[row].n_prefix + token

    def features(self, site: nodes.Site) -> Tensor | None:
        """Returns which features a site names; None for all."""
        if site.units is not None:
            return torch.tensor(site.units)
        if site.heads is None:
            return None
        n_heads, width = self.facts.n_heads_of(site.component), self.facts.width(site.component)
        assert n_heads is not None
        assert width is not None
        size = width // n_heads
        return torch.cat([torch.arange(head * size, (head + 1) * size) for head in site.heads])

    def read_index(self, read: nodes.Read) -> Index | PatternIndex:
        """Returns the tokens of a read in the batch, row by row."""
        windows = self.one.windows[read.name]
        places = [(index, row, token) for index, row in enumerate(self.batch.rows) for token in windows[row].tokens]
        return self.index(read, places)

    def index(self, place: nodes.Read | nodes.Write, tokens: Sequence[tuple[int, int, int]]) -> Index | PatternIndex:
        """Returns some tokens of a place in the batch.

        Args:
            place: which features, heads and keys.
            tokens: batch index, row of the step and content index of each.
        """
        rows = torch.tensor([index for index, _, _ in tokens], dtype=torch.long)
        if self.head is not None and is_at_head(place):
            columns = torch.tensor([self.head[index].index(self.column(row, token)) for index, row, token in tokens], dtype=torch.long)
        else:
            columns = torch.tensor([self.column(row, token) for _, row, token in tokens], dtype=torch.long)
        if not COMPONENTS[place.site.component].has_keys:
            return Index(rows, columns, self.features(place.site))
        heads = place.site.heads if place.site.heads is not None else range(self.facts.n_heads)
        by_row = self.one.keys[place.name]
        longest = max(len(keys) for keys in by_row)
        keys = {row: [self.column(row, key) for key in by_row[row]] for row in {row for _, row, _ in tokens}}
        lines = [keys[row] + [-1] * (longest - len(keys[row])) for _, row, _ in tokens]
        return PatternIndex(rows, columns, torch.tensor(list(heads)), torch.tensor(lines, dtype=torch.long).reshape(len(lines), longest))

    # writes

    def write_task(self, write: nodes.Write, entry: int, layer: int | None) -> WriteTask:
        """Returns the task of a write at one of its layers."""
        fetch, landing = self.operand(write)
        self.landings[write.name] = landing
        mechanism = mechanisms.MECHANISMS[write.mechanism]
        params = write.params
        is_noisy, places = write.mechanism == "gaussian", tuple(landing.places)
        seed, name = params.seed, write.name
        is_cut = write.mechanism == "knockout"
        cut = float("-inf") if write.site.component == "attention_scores" else 0.0

        def change(value: Tensor, arrived: Tensor, state: State) -> Tensor:
            operand = None if fetch is None else fetch(state, entry).to(value.device, torch.float32)
            drawn = None
            if is_noisy:
                drawn = mechanisms.noise(seed or 0, name, -1 if layer is None else layer, places, value.shape[-1]).to(value.device)
            return mechanism(
                mechanisms.Change(
                    value,
                    arrived,
                    operand,
                    scale=1.0 if params.scale is None else params.scale,
                    t=1.0 if params.t is None else params.t,
                    lo=cut if is_cut else params.lo,
                    hi=params.hi,
                    noise=drawn,
                )
            )

        tokens = [(index, row, token) for index, (row, token) in zip(landing.rows, landing.places, strict=True)]
        return WriteTask(
            write.name,
            layer,
            self.index(write, tokens),
            change,
            self.stream(write.site.component, layer),
            renormalizes=is_cut and cut == 0.0,
            is_cut=is_cut,
        )

    def operand(self, write: nodes.Write) -> tuple[Callable[[State, int], Tensor] | None, Landing]:
        """Returns what fetches a write's operand, (token, feature) or (1, feature), and where it lands."""
        match write.operand:
            case nodes.FromRead() as operand:
                return self.read_operand(write, operand)
            case nodes.FromOutput() as operand:
                return self.output_operand(write, operand)
            case nodes.Constant() as operand:
                constant = torch.tensor([[operand.value]])
                return (lambda state, entry: constant), self.land(write, None)
        return None, self.land(write, None)

    def read_operand(self, write: nodes.Write, operand: nodes.FromRead) -> tuple[Callable[[State, int], Tensor], Landing]:
        """Returns the operand of a write that is a read of an earlier pass, or of this one."""
        own = next((read for read in self.one.forward.reads if read.name == operand.read), None)
        if own is None:
            value = self.values[operand.read]
            scope = list(self.active)
            if operand.derangement is not None:
                scope = _deranged(scope, operand.derangement)
            starts = dict(zip(scope, value.starts, strict=True))
            lengths = dict(zip(scope, value.lengths, strict=True))
            landing = self.land(write, (starts, lengths))
            return (lambda state, entry: _take(value.data, entry, landing, write, lengths, starts)), landing
        windows = self.one.windows[own.name]
        counts = [len(windows[row].tokens) for row in self.batch.rows]
        local = Value(torch.empty(1, sum(counts), 0), tuple(counts))
        starts = dict(zip(self.batch.rows, local.starts, strict=True))
        lengths = dict(zip(self.batch.rows, counts, strict=True))
        landing = self.land(write, (starts, lengths))
        n_entries = len(own.site.addresses)

        def fetch(state: State, entry: int) -> Tensor:
            data = torch.stack([state.reads[own.name, each] for each in range(n_entries)])
            return _take(data, entry, landing, write, lengths, starts)

        return fetch, landing

    def output_operand(self, write: nodes.Write, operand: nodes.FromOutput) -> tuple[Callable[[State, int], Tensor], Landing]:
        """Returns the operand of a write that is an output: one vector, a window for every row, or a value a row."""
        made = self.outputs[operand.output]
        value, rows = made.value, [row for row in self.batch.rows if row not in self.one.missing]
        entries = dict.fromkeys(rows, 0) if made.kind == "window" else {row: row for row in rows}
        if operand.groups is not None:
            entries = {row: made.groups.index(operand.groups[row]) for row in rows}
        starts = {row: value.starts[entry] for row, entry in entries.items()}
        lengths = {row: value.lengths[entry] for row, entry in entries.items()}
        landing = self.land(write, (starts, lengths), broadcasts=made.kind != "rows" and set(value.lengths) == {1})
        return (lambda state, entry: _take(value.data, entry, landing, write, lengths, starts)), landing

    def land(self, write: nodes.Write, source: tuple[Mapping[int, int], Mapping[int, int]] | None, broadcasts: bool = False) -> Landing:
        """Returns which tokens are written and which operand token each takes.

        Rows without a place, or whose operand has no value, are not written. `source` has where each row's operand tokens begin and how
        many there are; None for operands that broadcast, and for mechanisms without.
        """
        landing = Landing()
        for index, row in enumerate(self.batch.rows):
            tokens = self.one.windows[write.name][row].tokens
            if not tokens or row in self.one.missing:
                continue
            if source is None:
                pairs = [(token, 0) for token in tokens]
            else:
                start, length = source[0][row], source[1][row]
                if length == 0:
                    continue
                pairs = _aligned(tokens, start, length, "broadcast" if broadcasts else write.align)
            landing.n_left_over += len(tokens) - len(pairs)
            for token, from_token in pairs:
                landing.rows.append(index)
                landing.sources.append(from_token)
                landing.places.append((row, token))
        return landing


def _aligned(tokens: Sequence[int], start: int, length: int, align: str) -> list[tuple[int, int]]:
    """Returns pairs of a written token and an operand token."""
    n = min(len(tokens), length)
    match align:
        case "last":
            return [(tokens[len(tokens) - n + i], start + length - n + i) for i in range(n)]
        case "first":
            return [(tokens[i], start + i) for i in range(n)]
        case "mean" | "broadcast":
            return [(token, start) for token in tokens]
    return list(zip(tokens, range(start, start + length), strict=True))


def _take(data: Tensor, entry: int, landing: Landing, write: nodes.Write, lengths: Mapping[int, int], starts: Mapping[int, int]) -> Tensor:
    """Returns an operand's values for the written tokens, (token, feature)."""
    layer = data[entry if data.shape[0] > 1 else 0]
    if write.align == "mean":
        means = {row: layer[starts[row] : starts[row] + lengths[row]].float().mean(dim=0) for row in {row for row, _ in landing.places}}
        return torch.stack([means[row] for row, _ in landing.places])
    return layer[torch.tensor(landing.sources, device=layer.device, dtype=torch.long)]


def _deranged(rows: list[int], seed: str) -> list[int]:
    """Returns, for each row in order, the row that takes its value: a cyclic permutation, so that none takes its own.

    Source: Sattolo 1986, "An algorithm to generate a random cyclic permutation".
    """
    order, generator = list(rows), random.Random(seed)
    for last in range(len(order) - 1, 0, -1):
        other = generator.randrange(last)
        order[last], order[other] = order[other], order[last]
    return order
