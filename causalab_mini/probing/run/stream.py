"""The generation of a batch: one forward a token, with keys and values kept, stopping where a point wants something."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache

from causalab_mini.engine.batches import make_batch, reading
from causalab_mini.engine.contract import Batch, Shortcut, State, Visit
from causalab_mini.engine.direct import run_hooked
from causalab_mini.engine.engines.base import BaseEngine
from causalab_mini.engine.speech import Speech
from causalab_mini.engine.tokenizer import pad_id
from causalab_mini.model.components import COMPONENTS
from causalab_mini.ops.windows import Index, PatternIndex
from causalab_mini.probing.request import Place, Request
from causalab_mini.probing.run.gathered import Gathered, Wanted, gatherers

AT_HEAD = ("lm_head", "logits")


@dataclass(frozen=True, slots=True)
class Streamed:
    """What came of a batch.

    Attributes:
        rows: of the request.
        said: the ids that each row said.
        ended: why each row ended: `eos`, `stop` or `length`.
        texts: of what was said.
        wanted: what the points wanted.
        gathered: what they got.
        n_forwards: how many there were.
    """

    rows: tuple[int, ...]
    said: tuple[tuple[int, ...], ...]
    ended: tuple[str, ...]
    texts: tuple[str, ...]
    wanted: Wanted
    gathered: tuple[Gathered, ...]
    n_forwards: int


def stream(engine: BaseEngine, request: Request, rows: Sequence[int]) -> Streamed:
    """Returns what some rows of a request say, and what the points get of it.

    The last token that a row says is fed through the model once more only where a point wants it.
    """
    return _Stream(engine, request, rows).run()


class _Stream:
    """One batch on its way."""

    def __init__(self, engine: BaseEngine, request: Request, rows: Sequence[int]) -> None:
        self.engine, self.rows = engine, tuple(rows)
        self.module, self.facts, self.device = engine.loaded(), engine.facts, engine.device()
        self.wanted = Wanted(request, rows)
        self.gathered = gatherers(self.wanted, request.decode.max_new_tokens)
        self.prompt = make_batch(rows, request.prompts, None, pad_id(engine.tokenizer))
        self.n_columns = self.prompt.input_ids.shape[1]
        self.n_most = self.n_columns + request.decode.max_new_tokens
        mask = torch.ones((len(rows), self.n_most), dtype=torch.long)
        mask[:, : self.n_columns] = self.prompt.attention_mask
        self.mask = mask.to(self.device)
        self.lengths = torch.tensor(self.wanted.lengths)
        self.next_position = self.lengths[:, None].to(self.device)
        self.last_position = (request.facts.max_positions or self.n_most) - 1
        self.cache = DynamicCache()
        prompts = [request.prompts[row].ids for row in rows]
        self.speech = Speech(engine.tokenizer, engine.stop_tokens(), request.decode, prompts, rows)
        self.n_forwards = 0
        self.made: dict[tuple[tuple[int, ...], ...], tuple[Visit, ...]] = {}

    def run(self) -> Streamed:
        """Returns what came of it."""
        self.hear(self.read_prompt(), 0)
        step = 0
        while (goes_on := self.speech.goes_on) or self.is_last_wanted(step):
            logits = self.read_token(step, ends=not goes_on)
            if not goes_on:
                break
            step += 1
            self.hear(logits, step)
        said = tuple(self.speech.said(place) for place in range(len(self.rows)))
        for one in self.gathered:
            one.empty_ring([len(ids) for ids in said])
        ended = tuple(self.speech.ended.get(place, "length") for place in range(len(self.rows)))
        texts = tuple(self.speech.text(place, ids) for place, ids in enumerate(said))
        return Streamed(self.rows, said, ended, texts, self.wanted, tuple(self.gathered), self.n_forwards)

    def hear(self, logits: Tensor, step: int) -> None:
        """Has every row say a token."""
        over = set(self.speech.ended)
        self.speech.hear(logits, step)
        self.wanted.hear(step, [None if place in over else self.speech.last(place) for place in range(len(self.rows))])
        self.is_own = [place not in over for place in range(len(self.rows))]

    def is_last_wanted(self, step: int) -> bool:
        """Returns whether a token that no forward has had as input is wanted, once all rows have ended."""
        return any(self.wanted.needs_last(place, step + 1) for place, own in enumerate(self.is_own) if own)

    def read_prompt(self) -> Tensor:
        """Returns the logits behind the prompts, having gathered what is wanted of them."""
        codes = [one.prompt_codes() for one in self.gathered]
        places: dict[Place, Index | PatternIndex] = {}
        for one, wanted in zip(self.gathered, codes, strict=True):
            if len(wanted):
                rows, positions = wanted // one.stride, wanted % one.stride
                columns = positions + self.n_columns - self.lengths[rows]
                places |= {place: self.index(place, rows, columns, columns) for place in one.places}
        last = torch.full((len(self.rows), 1), self.n_columns - 1, device=self.device)
        shortcut = Shortcut(cache=self.cache, columns=None if any(component in AT_HEAD for component, _ in places) else last)
        state, output = self.forward(self.prompt, reading(places, self.facts), shortcut)
        for one, wanted in zip(self.gathered, codes, strict=True):
            if len(wanted):
                one.take(self.values(one, state), wanted)
        return self.last_logits(output)

    def read_token(self, step: int, ends: bool) -> Tensor:
        """Returns the logits behind the generated tokens of a step, having gathered what is wanted of them.

        Args:
            step: index of the tokens in the generation.
            ends: whether no logits are needed any more; then there are none.
        """
        column = self.n_columns + step
        ids = torch.tensor([[self.speech.last(place)] for place in range(len(self.rows))]).to(self.device)
        positions = (self.next_position + step).clamp(max=self.last_position)  # only what pads an ended row would be behind the last
        batch = Batch(self.rows, ids, self.mask[:, : column + 1], positions)
        asked = [one.rows_at(step, self.is_own) for one in self.gathered]
        rows = tuple(tuple(sorted({*kept, *ringed})) for kept, ringed in asked)
        state, output = self.forward(batch, self.visits(rows, column), Shortcut(cache=self.cache, stops=ends))
        for one, here, (kept, ringed) in zip(self.gathered, rows, asked, strict=True):
            if here:
                self.keep(one, step, here, kept, ringed, self.values(one, state))
        return torch.empty(0) if ends else self.last_logits(output)

    def keep(
        self,
        one: Gathered,
        step: int,
        here: tuple[int, ...],
        kept: tuple[int, ...],
        ringed: tuple[int, ...],
        values: dict[Place, Tensor],
    ) -> None:
        """Keeps what was gathered of a step: for good, in the ring, or both."""
        if kept:
            rows = torch.tensor(kept)
            one.take(_of(values, here, kept), rows * one.stride + self.lengths[rows] + step)
        if ringed:
            one.put(_of(values, here, ringed), torch.tensor(ringed), step, self.n_most)

    def visits(self, rows: tuple[tuple[int, ...], ...], column: int) -> tuple[Visit, ...]:
        """Returns the stops at which generated tokens of some rows are gathered, made once for the same rows."""
        if rows in self.made:
            return self.made[rows]
        places: dict[Place, Index | PatternIndex] = {}
        for one, here in zip(self.gathered, rows, strict=True):
            if here:
                at = torch.tensor(here)
                inputs, keys = (
                    torch.full_like(at, -1),
                    torch.full_like(at, column),
                )  # keys and values are seen behind those of earlier tokens
                plain = Index(at.to(self.device), inputs.to(self.device))
                places |= {place: self.index(place, at, inputs, keys) if COMPONENTS[place[0]].has_keys else plain for place in one.places}
        found = reading(places, self.facts)
        if not any(COMPONENTS[component].has_keys for component, _ in places):
            self.made[rows] = found
        return found

    def index(self, place: Place, rows: Tensor, columns: Tensor, own: Tensor) -> Index | PatternIndex:
        """Returns some tokens of a batch at a place; of a pattern, with the keys up to each token itself.

        Args:
            place: component and layer.
            rows: of the tokens.
            columns: of the tokens, in this forward.
            own: the columns of the tokens among those of the keys.
        """
        if not COMPONENTS[place[0]].has_keys:
            return Index(rows.to(self.device), columns.to(self.device))
        first = self.n_columns - self.lengths[rows]
        keys = first[:, None] + torch.arange(int((own - first).max()) + 1)
        keys = keys.masked_fill(keys > own[:, None], -1)
        return PatternIndex(rows, columns, torch.arange(self.facts.n_heads), keys)

    def values(self, one: Gathered, state: State) -> dict[Place, Tensor]:
        """Returns what a forward found at some places, (token, feature), of patterns (token, head, key)."""
        found = {}
        for component, layer in one.places:
            value = state.reads[component, layer or 0]
            found[component, layer] = value.reshape(len(value), self.facts.n_heads, -1) if COMPONENTS[component].has_keys else value
        return found

    def forward(self, batch: Batch, visits: tuple[Visit, ...], shortcut: Shortcut) -> tuple[State, object]:
        """Returns what a forward left behind, and what it gave."""
        state = State(batch.input_ids.shape[1], has_evidence=False)
        output = run_hooked(self.module, self.facts, self.engine.inputs(batch, shortcut), visits, state, shortcut)
        self.n_forwards += 1
        return state, output

    def last_logits(self, output: object) -> Tensor:
        """Returns the logits of each row's last token, (row, vocabulary)."""
        logits: Tensor = output.logits  # type: ignore[attr-defined]
        return logits[:, -1]


def _of(values: dict[Place, Tensor], here: tuple[int, ...], rows: tuple[int, ...]) -> dict[Place, Tensor]:
    """Returns the values of some of the rows that were gathered."""
    if rows == here:
        return values
    chosen = [here.index(row) for row in rows]
    return {place: found[chosen] for place, found in values.items()}
