"""Rows that are generated together behind one cache: one forward a token, stopping where a point wants something; rows come and go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from causalab_mini.engine.batches import make_batch, reading
from causalab_mini.engine.contract import Batch, Shortcut, State, Visit
from causalab_mini.engine.direct import run_hooked
from causalab_mini.engine.engines.base import BaseEngine
from causalab_mini.engine.speech import Speech
from causalab_mini.engine.tokenizer import pad_id
from causalab_mini.errors import Problem, RunError
from causalab_mini.model.components import COMPONENTS
from causalab_mini.ops.windows import Index, PatternIndex
from causalab_mini.probing.probes import ActivationRecord
from causalab_mini.probing.request import Place, Watched, places_of
from causalab_mini.probing.run.gathered import SHIFT, Group, groups_of
from causalab_mini.probing.run.rows import Ask, Ended, Row, selectors_of
from causalab_mini.probing.run.together import Together

AT_HEAD = ("lm_head", "logits")
MAX_VISITS = 64


@dataclass(slots=True)
class Seen:
    """What a forward found for a group of places.

    Attributes:
        lines: which line of the values a token is, by its row's place in the batch and its absolute index.
        values: by place, (token, …).
    """

    lines: dict[tuple[int, int], int]
    values: dict[Place, Tensor]


class Stream:
    """Rows on their way.

    Args:
        engine: the checkpoint; its weights are loaded.
        watched: the points, known to fit it.
        recorded: numbers of the points whose activations are kept in `groups`; the others' only pass by.
        raises: whether a row that can't go on ends them all with its error, and not only itself.

    Attributes:
        rows: in the order of the batch.
        groups: places, and what was recorded at them.
        n_forwards: how many there were.
    """

    def __init__(self, engine: BaseEngine, watched: Watched, recorded: Sequence[int] = (), raises: bool = False) -> None:
        self.engine, self.watched, self.raises = engine, watched, raises
        self.module, self.facts, self.device = engine.loaded(), engine.facts, engine.device()
        self.groups = groups_of(watched.spec, recorded)
        self.rows: list[Row] = []
        self.speech = Speech(engine.tokenizer, engine.stop_tokens())
        self.together = Together(self.device)
        self.n_forwards = 0
        self._recorded = tuple(recorded)
        self._places = [places_of(point) for point in watched.spec]
        self._group_of = {place: group for group in self.groups for place in group.places}
        self._stops = {index: watched.stops[point.name] for index, point in enumerate(watched.spec) if point.name in watched.stops}
        self._visits: dict[tuple[tuple[int, ...], ...], tuple[Visit, ...]] = {}
        self._ended: list[Ended] = []

    @property
    def n_rows(self) -> int:
        """Rows that are not through."""
        return sum(not row.is_through for row in self.rows)

    @property
    def can_join(self) -> bool:
        """Whether rows can come while others are on their way."""
        return not self.rows or self.together.is_divisible

    def take_ended(self) -> list[Ended]:
        """Returns what came of the rows that are through since this was last asked."""
        found, self._ended = self._ended, []
        return found

    def said(self, number: int) -> tuple[int, ...]:
        """Returns what a row has said so far."""
        return self._row(number).voice.said

    def cancel(self, number: int) -> None:
        """Ends a row where it stands, between two forwards; one that is through already is left as it is."""
        row = next((row for row in self.rows if row.ask.number == number and not row.is_through), None)
        if row is not None:
            row.voice.end("cancelled")
            row.is_last = False
            self._finish([row], is_whole=False)

    # Forwards

    def join(self, asks: Sequence[Ask]) -> None:
        """Takes rows in: runs their prompts, and has each say its first token.

        Raises:
            ValueError: there are rows, and the cache can't take in others.
            RunError: a row can't choose a token, where that raises.
        """
        if not self.can_join:
            raise ValueError("expected no rows in the batch, got some: this model's cache can't take in others")
        speech = Speech(self.engine.tokenizer, self.engine.stop_tokens())
        rows = []
        for ask in asks:
            voice = speech.join(ask.prompt.ids, ask.decode, ask.number, ask.draw)
            rows.append(Row(ask, voice, selectors_of(self.watched, ask.prompt, ask.decode)))
        made = Together(self.device)
        logits = self._read_prompts(rows, made)
        self.rows += rows
        self.speech.voices += speech.voices
        self.together.add(made)
        self._hear(speech, rows, logits)

    def step(self) -> None:
        """Runs one forward over all rows; those that go on say a token."""
        ends = not self.speech.goes_on
        logits = self._read_tokens(ends)
        last = [row for row in self.rows if row.is_last and not row.is_through]
        if not ends:
            self._hear(self.speech, self.rows, logits, last)
        else:
            self._finish(last)

    def _hear(self, speech: Speech, rows: list[Row], logits: Tensor, last: Sequence[Row] = ()) -> None:
        """Has rows say a token, those whose probes want it stop before that, and lets go of those that are through."""
        going = [row for row in rows if row.voice.ended is None]
        for row in going:
            if row.ask.watch is not None and row.ask.watch.abort is not None:
                row.voice.end("abort")
        if self.raises:
            speech.hear(logits)
        else:
            for at in speech.unheard(logits):
                rows[at].voice.end("error")
                rows[at].error = RunError(Problem("", "finite logits to choose a token by", "NaN or infinite ones", code="not_finite"))
            speech.say(logits)
        over = list(last)
        for row in going:
            if row.voice.ended in ("abort", "error"):
                over.append(row)
                continue
            row.hear(self._stops)
            if row.voice.ended is not None:
                row.is_last = row.needs_last()
                over += [] if row.is_last else [row]
        self._finish(over)

    def _finish(self, rows: Sequence[Row], is_whole: bool = True) -> None:
        """Lets go of rows that are through: what was counted from their end is known now, unless their last token was never fed."""
        for row in rows:
            if is_whole:
                self._count_from_the_end(row)
            row.is_through = True
            text, why = self.speech.text(row.voice), row.voice.ended or "length"
            self._ended.append(Ended(row.ask.number, row.voice.said, text, why, tuple(row.selectors), row.error))
        if not rows:
            return
        kept = [at for at, row in enumerate(self.rows) if not row.is_through]
        if kept and not self.together.is_divisible:
            return
        self.rows = [self.rows[at] for at in kept]
        self.speech.keep(kept)
        self.together.keep(kept)

    def _count_from_the_end(self, row: Row) -> None:
        """Hands over the one token that each point counts from the end."""
        for number, selector in enumerate(row.selectors):
            at = selector.from_end_index(row.n_said)
            if at is None:
                continue
            found = {place: self._group_of[place].recall(row, at)[place] for place in self._places[number]}
            if number in self._recorded:
                code = torch.tensor([(row.ask.number << SHIFT) + at])
                for group in {self._group_of[place].number: self._group_of[place] for place in found}.values():
                    group.take({place: value[None] for place, value in group.recall(row, at).items()}, code)
            if row.ask.watch is not None and number in row.ask.watch.routed:
                row.ask.watch.fire(number, [self._record(row, number, place, at, value) for place, value in found.items()])

    def _read_prompts(self, rows: Sequence[Row], made: Together) -> Tensor:
        """Returns the logits behind prompts, having handed over what is wanted of them."""
        batch = make_batch(range(len(rows)), [row.ask.prompt for row in rows], None, pad_id(self.engine.tokenizer))
        n_columns = batch.input_ids.shape[1]
        made.mask = batch.attention_mask.to(self.device)
        codes = [group.prompt_codes(rows) for group in self.groups]
        lengths = torch.tensor([row.n_prompt for row in rows])
        places: dict[Place, Index | PatternIndex] = {}
        for group, wanted in zip(self.groups, codes, strict=True):
            if len(wanted):
                at, positions = wanted >> SHIFT, wanted & ((1 << SHIFT) - 1)
                columns = positions + n_columns - lengths[at]
                places |= {place: self._index(place, at, columns, columns, n_columns - lengths[at]) for place in group.places}
        last = torch.full((len(rows), 1), n_columns - 1, device=self.device)
        shortcut = Shortcut(cache=made.cache, columns=None if any(component in AT_HEAD for component, _ in places) else last)
        state, output = self._forward(batch, reading(places, self.facts), shortcut)
        seen: list[Seen | None] = []
        numbers = torch.tensor([row.ask.number for row in rows])
        for group, wanted in zip(self.groups, codes, strict=True):
            values = self._values(group, state) if len(wanted) else {}
            at, positions = wanted >> SHIFT, wanted & ((1 << SHIFT) - 1)
            group.take(values, (numbers[at] << SHIFT) + positions)
            lines = (
                {code: line for line, code in enumerate(zip(at.tolist(), positions.tolist(), strict=True))} if self._is_heard(rows) else {}
            )
            seen.append(Seen(lines, values) if len(wanted) else None)
            self._remember_prompts(group, rows, wanted, values)
        self._fire(rows, seen)
        return self._last_logits(output)

    def _remember_prompts(self, group: Group, rows: Sequence[Row], wanted: Tensor, values: Mapping[Place, Tensor]) -> None:
        """Keeps the prompt tokens that may turn out to be counted from the end."""
        for at, row in enumerate(rows):
            tail = sorted({position for point in group.points for position in row.selectors[point].prompt_tail})
            for position in tail:
                line = int(torch.searchsorted(wanted, (at << SHIFT) + position))
                group.remember(row, position, {place: found[line] for place, found in values.items()})

    def _read_tokens(self, ends: bool) -> Tensor:
        """Returns the logits behind the last token of every row, having handed over what is wanted of it.

        Args:
            ends: whether no logits are needed any more; then there are none.
        """
        self.together.grow(len(self.rows))
        n_columns = self.together.mask.shape[1]
        ids = torch.tensor([[self.speech.last(at)] for at in range(len(self.rows))])
        most = self.facts.max_positions
        places = [
            row.position if most is None else min(row.position, most - 1) for row in self.rows
        ]  # only padding would be behind the last
        batch = Batch(tuple(range(len(self.rows))), ids, self.together.mask, torch.tensor(places)[:, None])
        asked = [group.rows_at(self.rows) for group in self.groups]
        here = tuple(tuple(sorted({*kept, *last})) for kept, last in asked)
        state, output = self._forward(batch, self._visits_at(here, n_columns), Shortcut(cache=self.together.cache, stops=ends))
        seen: list[Seen | None] = []
        is_heard = self._is_heard(self.rows)
        for group, rows, (kept, last) in zip(self.groups, here, asked, strict=True):
            if not rows:
                seen.append(None)
                continue
            values = self._values(group, state)
            if group.is_recorded and kept:
                group.take(
                    _of(values, rows, kept), torch.tensor([(self.rows[at].ask.number << SHIFT) + self.rows[at].position for at in kept])
                )
            for at in last:
                line = rows.index(at)
                group.remember(self.rows[at], self.rows[at].position, {place: found[line] for place, found in values.items()})
            lines = {(at, self.rows[at].position): line for line, at in enumerate(rows)} if is_heard else {}
            seen.append(Seen(lines, values))
        self._fire(self.rows, seen)
        return torch.empty(0) if ends else self._last_logits(output)

    # Probes

    def _is_heard(self, rows: Sequence[Row]) -> bool:
        return any(row.ask.watch is not None for row in rows)

    def _fire(self, rows: Sequence[Row], seen: Sequence[Seen | None]) -> None:
        """Hands what a forward found to whoever watches a row: point by point, token by token, place by place."""
        if not self._is_heard(rows):
            return
        unbound: dict[Place, tuple[Tensor, ...]] = {}
        for at, row in enumerate(rows):
            watch = row.ask.watch
            if watch is None or row.is_through:
                continue
            for number in watch.routed:
                selector = row.selectors[number]
                positions: Sequence[int] = selector.prompt
                if row.n_said:
                    positions = (row.position,) if row.n_said - 1 in selector.generated else ()
                records = []
                for position in positions:
                    for place in self._places[number]:
                        found = seen[self._group_of[place].number]
                        assert found is not None
                        if place not in unbound:
                            unbound[place] = found.values[place].unbind(0)
                        records.append(self._record(row, number, place, position, unbound[place][found.lines[at, position]]))
                if records:
                    watch.fire(number, records)

    def _record(self, row: Row, number: int, place: Place, position: int, value: Tensor) -> ActivationRecord:
        point = self.watched.spec.extraction_points[number]
        behind = position - row.n_prompt
        assert row.ask.watch is not None
        request = row.ask.watch.request
        return ActivationRecord(point.name, request, *place, position, behind if behind >= 0 else None, row.token(position), value)

    # Addresses

    def _visits_at(self, rows: tuple[tuple[int, ...], ...], n_columns: int) -> tuple[Visit, ...]:
        """Returns the stops at which the last tokens of some rows are gathered, made once for the same rows."""
        if rows in self._visits:
            return self._visits[rows]
        places: dict[Place, Index | PatternIndex] = {}
        for group, here in zip(self.groups, rows, strict=True):
            if not here:
                continue
            at = torch.tensor(here)
            inputs = torch.full_like(at, -1)  # keys and values are seen behind those of earlier tokens
            own = torch.full_like(at, n_columns - 1)
            first = torch.tensor([n_columns - 1 - self.rows[row].position for row in here])
            plain = Index(at.to(self.device), inputs.to(self.device))
            places |= {
                place: self._index(place, at, inputs, own, first) if COMPONENTS[place[0]].has_keys else plain for place in group.places
            }
        found = reading(places, self.facts)
        if not any(COMPONENTS[component].has_keys for component, _ in places):
            if len(self._visits) >= MAX_VISITS:
                self._visits.clear()
            self._visits[rows] = found
        return found

    def _index(self, place: Place, rows: Tensor, columns: Tensor, own: Tensor, first: Tensor) -> Index | PatternIndex:
        """Returns some tokens of a batch at a place; of a pattern, with the keys up to each token itself.

        Args:
            place: component and layer.
            rows: of the tokens, as places in the batch.
            columns: of the tokens, in this forward.
            own: the columns of the tokens among those of the keys.
            first: among those, the column of each row's first token.
        """
        if not COMPONENTS[place[0]].has_keys:
            return Index(rows.to(self.device), columns.to(self.device))
        keys = first[:, None] + torch.arange(int((own - first).max()) + 1)
        keys = keys.masked_fill(keys > own[:, None], -1)
        return PatternIndex(rows, columns, torch.arange(self.facts.n_heads), keys)

    def _values(self, group: Group, state: State) -> dict[Place, Tensor]:
        """Returns what a forward found at some places, (token, feature), of patterns (token, head, key)."""
        found = {}
        for component, layer in group.places:
            value = state.reads[component, layer or 0]
            found[component, layer] = value.reshape(len(value), self.facts.n_heads, -1) if COMPONENTS[component].has_keys else value
        return found

    def _forward(self, batch: Batch, visits: tuple[Visit, ...], shortcut: Shortcut) -> tuple[State, object]:
        """Returns what a forward left behind, and what it gave."""
        state = State(batch.input_ids.shape[1], has_evidence=False)
        output = run_hooked(self.module, self.facts, self.engine.inputs(batch, shortcut), visits, state, shortcut)
        self.n_forwards += 1
        return state, output

    def _last_logits(self, output: object) -> Tensor:
        """Returns the logits of each row's last token, (row, vocabulary)."""
        logits: Tensor = output.logits  # type: ignore[attr-defined]
        return logits[:, -1]

    def _row(self, number: int) -> Row:
        found = next((row for row in self.rows if row.ask.number == number), None)
        if found is None:
            raise KeyError(number)
        return found


def _of(values: dict[Place, Tensor], here: tuple[int, ...], rows: tuple[int, ...]) -> dict[Place, Tensor]:
    """Returns the values of some of the rows that were gathered."""
    if rows == here:
        return values
    chosen = [here.index(row) for row in rows]
    return {place: found[chosen] for place, found in values.items()}
