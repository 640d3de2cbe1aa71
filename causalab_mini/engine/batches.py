"""Rows as batches of tokens, and places as tasks on a batch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from causalab_mini.data.prompts import Prompt
from causalab_mini.engine.contract import Batch, KeepTask, ReadTask, State, Task, Visit, WriteTask
from causalab_mini.model.components import COMPONENTS, forward_rank
from causalab_mini.model.facts import ModelFacts
from causalab_mini.model.families import Address
from causalab_mini.ops import mechanisms
from causalab_mini.ops.windows import Index, Pattern, PatternIndex, Value, placed
from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.located import Pass
from causalab_mini.schedule.physical import is_at_head


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


def make_batch(
    rows: Sequence[int],
    prompts: Sequence[Prompt],
    appended: Sequence[Sequence[int]] | None,
    pad: int,
    cuts: Sequence[int] | None = None,
    until: int | None = None,
) -> Batch:
    """Returns rows padded on the left.

    Args:
        rows: of the step.
        prompts: of all rows of the step.
        appended: tokens behind each prompt, of all rows of the step.
        pad: the token to pad with.
        cuts: how many tokens of each of `rows` are left out at its beginning, since their keys and values are handed in.
        until: tokens of a row that there are; None for all.
    """
    whole = [(prompts[row].ids + (() if appended is None else tuple(appended[row])))[:until] for row in rows]
    cuts = [0] * len(whole) if cuts is None else cuts
    ids = [row[cut:] for row, cut in zip(whole, cuts, strict=True)]
    n_run, n_before = max(map(len, ids)), max(cuts)
    input_ids, position_ids = torch.full((len(ids), n_run), pad, dtype=torch.long), torch.zeros((len(ids), n_run), dtype=torch.long)
    attention_mask = torch.zeros((len(ids), n_before + n_run), dtype=torch.long)
    for index, (row, cut) in enumerate(zip(ids, cuts, strict=True)):
        first = n_run - len(row)
        input_ids[index, first:] = torch.tensor(row, dtype=torch.long)
        position_ids[index, first:] = torch.arange(cut, cut + len(row))
        attention_mask[index, n_before - cut : n_before] = 1
        attention_mask[index, n_before + first :] = 1
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
    """One pass on its rows of a batch: what is done where.

    Args:
        one: the pass.
        rows: its rows in the batch, one behind the other.
        offset: where the first of them stands.
        n_columns: tokens of the batch, padding counted; rows end at the last.
        prompts: of all rows of the step.
        values: reads of earlier passes, of the active rows.
        outputs: of earlier steps.
        active: rows of the step that run, ascending.
        facts: of the checkpoint.
    """

    def __init__(
        self,
        one: Pass,
        rows: Sequence[int],
        offset: int,
        n_columns: int,
        prompts: Sequence[Prompt],
        values: Mapping[str, Value],
        outputs: OutputTensors,
        active: Sequence[int],
        facts: ModelFacts,
    ) -> None:
        self.one = one
        self.rows = rows
        self.offset = offset
        self.n_tokens = n_columns
        self.prompts = prompts
        self.values = values
        self.outputs = outputs
        self.active = active
        self.facts = facts
        self.landings: dict[str, Landing] = {}
        self.head: list[list[int]] | None = None

    def label(self, name: str) -> str:
        """Returns what a read or write is called in a batch that other passes share."""
        return f"{self.offset}/{name}"

    def tasks(self) -> Iterator[tuple[str, int | None, Task]]:
        """Yields what is done where: component, layer, and the write, or the read, that stands there; writes in their order."""
        for write in sorted(self.one.forward.writes, key=lambda write: write.order):
            for entry, layer in enumerate(write.site.addresses):
                yield write.site.component, layer, self.write_task(write, entry, layer)
        for read in self.one.forward.reads:
            index = self.read_index(read)
            for entry, layer in enumerate(read.site.addresses):
                yield read.site.component, layer, ReadTask(self.label(read.name), entry, index, self.stream(read.site.component, layer))

    def head_columns(self) -> list[list[int]]:
        """Returns, for each row, the positions whose logits are read."""
        reads = [read for read in self.one.forward.reads if is_at_head(read)]
        return [
            sorted({self.column(row, token) for read in reads for token in self.one.windows[read.name][row].tokens}) for row in self.rows
        ]

    def stream(self, component: str, layer: int | None) -> int | None:
        """Returns the layer whose entering stream is a part of the component, if it is one."""
        return layer if _is_mid(self.facts, component, layer) else None

    def value(self, read: nodes.Read, state: State) -> Value:
        """Returns what a read of this pass found on this batch."""
        windows = self.one.windows[read.name]
        data = torch.stack([state.reads[self.label(read.name), entry] for entry in range(len(read.site.addresses))])
        return Value(data, tuple(len(windows[row].tokens) for row in self.rows))

    def column(self, row: int, token: int) -> int:
        """Returns where a row's content token stands in the batch: rows end where it ends."""
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
        places = [(index, row, token) for index, row in enumerate(self.rows) for token in windows[row].tokens]
        return self.index(read, places)

    def index(self, place: nodes.Read | nodes.Write, tokens: Sequence[tuple[int, int, int]]) -> Index | PatternIndex:
        """Returns some tokens of a place in the batch.

        Args:
            place: which features, heads and keys.
            tokens: of each, which of the pass's rows of the batch it is in, the row of the step, and its content index.
        """
        rows = torch.tensor([self.offset + index for index, _, _ in tokens], dtype=torch.long)
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
            self.label(write.name),
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
        counts = [len(windows[row].tokens) for row in self.rows]
        local = Value(torch.empty(1, sum(counts), 0), tuple(counts))
        starts = dict(zip(self.rows, local.starts, strict=True))
        lengths = dict(zip(self.rows, counts, strict=True))
        landing = self.land(write, (starts, lengths))
        n_entries = len(own.site.addresses)

        def fetch(state: State, entry: int) -> Tensor:
            data = torch.stack([state.reads[self.label(own.name), each] for each in range(n_entries)])
            return _take(data, entry, landing, write, lengths, starts)

        return fetch, landing

    def output_operand(self, write: nodes.Write, operand: nodes.FromOutput) -> tuple[Callable[[State, int], Tensor], Landing]:
        """Returns the operand of a write that is an output: one vector, a window for every row, or a value a row."""
        made = self.outputs[operand.output]
        value, rows = made.value, [row for row in self.rows if row not in self.one.missing]
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
        for index, row in enumerate(self.rows):
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


def visits_of(on_batch: Sequence[PassOnBatch], keeps: Sequence[int], facts: ModelFacts) -> tuple[Visit, ...]:
    """Returns the stops of a forward that several passes share, in forward order.

    Args:
        on_batch: the passes.
        keeps: layers whose leaving stream is kept for later.
        facts: of the checkpoint.
    """
    by_place: dict[tuple[str, int | None], tuple[list[Task], list[Task]]] = {}
    for one in on_batch:
        for component, layer, task in one.tasks():
            by_place.setdefault((component, layer), ([], []))[isinstance(task, ReadTask)].append(task)
    for layer in {layer for component, layer in by_place if _is_mid(facts, component, layer)}:
        assert layer is not None
        by_place.setdefault(("block_input", layer), ([], []))[1].append(KeepTask(layer))
    for layer in keeps:
        by_place.setdefault(("block_output", layer), ([], []))[1].append(KeepTask(layer, is_for_later=True))
    stops: dict[Address, list[Task]] = {}
    for component, layer in sorted(by_place, key=lambda key: forward_rank(*key)):
        writes, reads = by_place[component, layer]
        stops.setdefault(_address(facts, component, layer), []).extend([*writes, *reads])
    return tuple(Visit(address, tuple(tasks)) for address, tasks in stops.items())


def _address(facts: ModelFacts, component: str, layer: int | None) -> Address:
    """Returns where a component is reached; the stream between attention and MLP at what attention adds."""
    found = facts.address(component, layer)
    assert found is not None
    return Address(found.module, "output", found.is_flat) if found.side == "mid" else found


def _is_mid(facts: ModelFacts, component: str, layer: int | None) -> bool:
    """Returns whether a component is what entered its layer and what stands at its address."""
    found = facts.address(component, layer)
    return found is not None and found.side == "mid"


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
    return layer[placed(torch.tensor(landing.sources, dtype=torch.long), layer.device)]


def _deranged(rows: list[int], seed: str) -> list[int]:
    """Returns, for each row in order, the row that takes its value: a cyclic permutation, so that none takes its own.

    Source: Sattolo 1986, "An algorithm to generate a random cyclic permutation".
    """
    order, generator = list(rows), random.Random(seed)
    for last in range(len(order) - 1, 0, -1):
        other = generator.randrange(last)
        order[last], order[other] = order[other], order[last]
    return order
