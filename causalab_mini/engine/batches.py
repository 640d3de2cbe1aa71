"""Rows as batches of tokens, and places as tasks on a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from causalab_mini.data.prompts import Prompt
from causalab_mini.engine.contract import Batch, KeepTask, ReadTask, State, Task, Visit, WriteTask
from causalab_mini.engine.given import Given
from causalab_mini.engine.landing import Landing, aligned, changed, deranged, take
from causalab_mini.model.components import COMPONENTS, forward_rank
from causalab_mini.model.facts import ModelFacts
from causalab_mini.model.families import Address
from causalab_mini.ops import mechanisms
from causalab_mini.ops.featurizers import Coordinates
from causalab_mini.ops.windows import Index, PatternIndex, Value
from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.located import Pass
from causalab_mini.schedule.physical import is_at_head

CACHED = ("attention_key", "attention_value")
"""Components that are seen behind those of earlier tokens, where these are handed in."""
Place = tuple[str, int | None]
"""A component, and its layer where it has one."""


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


class PassOnBatch:
    """One pass on its rows of a batch: what is done where.

    Args:
        one: the pass.
        rows: its rows in the batch, one behind the other.
        offset: where the first of them stands.
        n_columns: tokens of the batch, padding counted; rows end at the last.
        given: what the pass stands on.
        facts: of the checkpoint.
    """

    def __init__(self, one: Pass, rows: Sequence[int], offset: int, n_columns: int, given: Given, facts: ModelFacts) -> None:
        self.one = one
        self.rows = rows
        self.offset = offset
        self.n_tokens = n_columns
        self.given = given
        self.prompts = given.prompts[one.forward.rows]
        self.facts = facts
        self.landings: dict[str, Landing] = {}
        self.head: list[list[int]] | None = None
        self.n_before = 0

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
            behind = self.n_before if place.site.component in CACHED else 0
            columns = torch.tensor([behind + self.column(row, token) for _, row, token in tokens], dtype=torch.long)
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
        coordinates = None if write.featurizer is None else self.given.featurizers.of(write.featurizer)
        fetch, landing = self.operand(write, coordinates)
        self.landings[write.name] = landing
        params, is_noisy, places = write.params, write.mechanism == "gaussian", tuple(landing.places)
        is_cut = write.mechanism == "knockout"
        cut = float("-inf") if write.site.component == "attention_scores" else 0.0
        entry = entry if write.part is None else write.part.entry

        def mechanism(value: Tensor, arrived: Tensor, operand: Tensor | None) -> Tensor:
            drawn = None
            if is_noisy:
                layer_key = -1 if layer is None else layer
                drawn = mechanisms.noise(params.seed or 0, write.name, layer_key, places, value.shape[-1]).to(value.device)
            return mechanisms.MECHANISMS[write.mechanism](
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

        def change(value: Tensor, arrived: Tensor, state: State) -> Tensor:
            operand = None if fetch is None else fetch(state, entry).to(value.device, torch.float32)
            new = changed(mechanism, value, arrived, operand, coordinates, write.features)
            return new if write.part is None or write.part.head is None else self.at_head(write, value, new)

        tokens = [(index, row, token) for index, (row, token) in zip(landing.rows, landing.places, strict=True)]
        return WriteTask(
            write.name,
            self.label(write.name),
            layer,
            self.index(write, tokens),
            change if self.given.probe is None else self.given.probe.instead_of(change, write.name, entry, places),
            self.stream(write.site.component, layer),
            renormalizes=is_cut and cut == 0.0,
            is_cut=is_cut,
        )

    def at_head(self, write: nodes.Write, value: Tensor, new: Tensor) -> Tensor:
        """Returns a new value at the head alone that a part of a write is of."""
        assert write.part is not None
        heads = list(write.site.heads if write.site.heads is not None else range(self.facts.n_heads_of(write.site.component) or 1))
        size = value.shape[-1] // len(heads)
        start = heads.index(write.part.head) * size  # type: ignore[arg-type]
        return torch.cat([value[:, :start], new[:, start : start + size], value[:, start + size :]], dim=-1)

    def operand(self, write: nodes.Write, coordinates: Coordinates | None) -> tuple[Callable[[State, int], Tensor] | None, Landing]:
        """Returns what fetches a write's operand, (token, feature) or (1, feature), and where it lands."""
        match write.operand:
            case nodes.FromRead() as operand:
                return self.read_operand(write, operand, coordinates)
            case nodes.FromOutput() as operand:
                return self.output_operand(write, operand)
            case nodes.Constant() as operand:
                constant = torch.tensor([[operand.value]])
                return (lambda state, entry: constant), self.land(write, None)
        return None, self.land(write, None)

    def read_operand(
        self, write: nodes.Write, operand: nodes.FromRead, coordinates: Coordinates | None
    ) -> tuple[Callable[[State, int], Tensor], Landing]:
        """Returns the operand of a write that is a read of an earlier pass, or of this one: its features, where there is a featurizer."""
        own = next((read for read in self.one.forward.reads if read.name == operand.read), None)
        if own is None:
            value = self.given.values[operand.read]
            scope = list(self.given.scopes.get(operand.read, self.given.rows))
            if operand.derangement is not None:
                scope = deranged(scope, operand.derangement, value.lengths, write.align == "exact")
            starts = dict(zip(scope, value.starts, strict=True))
            lengths = dict(zip(scope, value.lengths, strict=True))
            landing = self.land(write, (starts, lengths))
            return (lambda state, entry: take(value.data, entry, landing, write, lengths, starts, coordinates)), landing
        windows = self.one.windows[own.name]
        counts = [len(windows[row].tokens) for row in self.rows]
        local = Value(torch.empty(1, sum(counts), 0), tuple(counts))
        starts = dict(zip(self.rows, local.starts, strict=True))
        lengths = dict(zip(self.rows, counts, strict=True))
        landing = self.land(write, (starts, lengths))
        n_entries = len(own.site.addresses)

        def fetch(state: State, entry: int) -> Tensor:
            data = torch.stack([state.reads[self.label(own.name), each] for each in range(n_entries)])
            return take(data, entry, landing, write, lengths, starts, coordinates)

        return fetch, landing

    def output_operand(self, write: nodes.Write, operand: nodes.FromOutput) -> tuple[Callable[[State, int], Tensor], Landing]:
        """Returns the operand of a write that is an output: one vector, a window for every row, or a value a row."""
        made = self.given.outputs[operand.output]
        value, rows = made.value, [row for row in self.rows if row not in self.one.missing]
        entries = dict.fromkeys(rows, 0) if made.kind == "window" else {row: row for row in rows}
        if operand.groups is not None:
            entries = {row: made.groups.index(operand.groups[row]) for row in rows}
        starts = {row: value.starts[entry] for row, entry in entries.items()}
        lengths = {row: value.lengths[entry] for row, entry in entries.items()}
        landing = self.land(write, (starts, lengths), broadcasts=made.kind != "rows" and set(value.lengths) == {1})
        return (lambda state, entry: take(value.data, entry, landing, write, lengths, starts)), landing

    def land(self, write: nodes.Write, source: tuple[Mapping[int, int], Mapping[int, int]] | None, broadcasts: bool = False) -> Landing:
        """Returns which tokens are written and which operand token each takes.

        Rows without a place, or whose operand has no value, are not written. `source` has where each row's operand tokens begin and how
        many there are; None for operands that broadcast, and for mechanisms without.
        """
        landing = Landing()
        for index, row in enumerate(self.rows):
            tokens = (self.one.whole.get(write.name) or self.one.windows[write.name])[row].tokens
            if not tokens or row in self.one.missing:
                continue
            if source is None:
                pairs = [(token, 0) for token in tokens]
            else:
                start, length = source[0][row], source[1][row]
                if length == 0:
                    continue
                pairs = aligned(tokens, start, length, "broadcast" if broadcasts else write.align)
            landing.n_left_over += len(tokens) - len(pairs)
            if write.part is not None:
                pairs = pairs[write.part.token : write.part.token + 1]
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
    by_place: dict[Place, tuple[list[Task], list[Task]]] = {}
    for one in on_batch:
        for component, layer, task in one.tasks():
            by_place.setdefault((component, layer), ([], []))[isinstance(task, ReadTask)].append(task)
    for layer in keeps:
        by_place.setdefault(("block_output", layer), ([], []))[1].append(KeepTask(layer, is_for_later=True))
    return _in_forward_order(by_place, facts)


def reading(places: Mapping[Place, Index | PatternIndex], facts: ModelFacts) -> tuple[Visit, ...]:
    """Returns the stops of a forward that only reads, in forward order.

    Args:
        places: component and layer, and which tokens are read there; the values are labelled with the component, their entry is the layer.
        facts: of the checkpoint.
    """
    by_place: dict[Place, tuple[list[Task], list[Task]]] = {
        (component, layer): ([], [ReadTask(component, layer or 0, index, layer if _is_mid(facts, component, layer) else None)])
        for (component, layer), index in places.items()
    }
    return _in_forward_order(by_place, facts)


def _in_forward_order(by_place: dict[Place, tuple[list[Task], list[Task]]], facts: ModelFacts) -> tuple[Visit, ...]:
    """Returns writes and reads by place as stops; what enters a layer is kept where the stream between attention and MLP is meant."""
    for layer in {layer for component, layer in by_place if _is_mid(facts, component, layer)}:
        assert layer is not None
        by_place.setdefault(("block_input", layer), ([], []))[1].append(KeepTask(layer))
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
