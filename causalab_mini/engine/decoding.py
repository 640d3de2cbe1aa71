"""Generation: one forward a token, with what is read and written at each, and what the rows have said.

Step k is the forward that produces generated token k; the prompt's own is step 0. What is written in the prompt acts on later steps through
the keys and values that they attend to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from transformers import DynamicCache

from causalab_mini.data.characters import character_spans
from causalab_mini.data.prompts import Prompt, Turn
from causalab_mini.engine.batches import PassOnBatch, make_batch, visits_of
from causalab_mini.engine.contract import Batch, Engine, ReadTask, Shortcut, State, Visit
from causalab_mini.engine.given import Given
from causalab_mini.engine.gradients import gradients
from causalab_mini.engine.sizes import is_out_of_memory
from causalab_mini.engine.speech import Speech
from causalab_mini.engine.tokenizer import pad_id
from causalab_mini.engine.writes import WriteEvidence, note_writes
from causalab_mini.errors import Problem, RunError
from causalab_mini.evidence.checks import TOLERANCE
from causalab_mini.ops.windows import Index, Value
from causalab_mini.plan import plan as nodes
from causalab_mini.plan.position import Position
from causalab_mini.schedule.locate import Window, locate
from causalab_mini.schedule.located import Pass
from causalab_mini.schedule.physical import is_at_head

NEXT = nodes.Read("next token", nodes.Site("logits", (), False, None, None), Position(index=-1), None, is_hidden=True)
"""What every step reads beside what is asked for."""
TOKEN_BY_TOKEN = "a model whose tokens can be run one by one, behind the keys and values of those before"


@dataclass(frozen=True, slots=True)
class Continuation:
    """What a row has said.

    Attributes:
        ids: of its tokens, up to and including the first stop token.
        ended: `eos`, `stop` (one of the texts) or `length`.
        prompt: the same as a prompt, whose content positions of the generated frame are found in.
        margins: by how much each token was the likeliest, as a share of the standard deviation of its logits; nan where it was drawn.
    """

    ids: tuple[int, ...]
    ended: str
    prompt: Prompt
    margins: tuple[float, ...]

    @property
    def text(self) -> str:
        """Its text, without the stop token."""
        return self.prompt.text_of(range(len(self.ids) - (self.ended == "eos"))) if self.ids else ""


@dataclass(slots=True)
class Generated:
    """What a generating pass left.

    Attributes:
        continuations: by row of the step.
        values: by read of the generated frame, (layer, feature) of each token that it means, by row.
        windows: by read and write, the generated tokens that it means, or why it means none, by row.
        writes: by write.
    """

    continuations: dict[int, Continuation] = field(default_factory=dict)
    values: dict[str, dict[int, list[Tensor]]] = field(default_factory=dict)
    windows: dict[str, dict[int, Window]] = field(default_factory=dict)
    writes: dict[str, WriteEvidence] = field(default_factory=dict)

    def value(self, read: str, rows: Sequence[int], n_layers: int, n_features: int) -> Value:
        """Returns what a read of some layers found on some rows, in their order."""
        by_row = self.values[read]
        tokens = [token for row in rows for token in by_row[row]]
        empty = torch.zeros(n_layers, 0, n_features)
        return Value(torch.stack(tokens, dim=1) if tokens else empty, tuple(len(by_row[row]) for row in rows))


def generate(engine: Engine, one: Pass, rows: Sequence[int], given: Given, into: Generated) -> None:
    """Has some rows of a pass generated as one batch, and adds what that leaves.

    Args:
        engine: the checkpoint.
        one: the pass; its places in the prompt are located.
        rows: of the step.
        given: what it stands on.
        into: what its batches leave; untouched where a forward fails.
    """
    prove_cache(engine, given.prompts[one.forward.rows][rows[0]].ids)
    made = _Batch(engine, one, rows, given)
    with gradients("off"):
        while made.speech.goes_on:
            made.step()
        if made.wants_last():
            made.step(is_last=True)
    made.finish(into)


def prove_cache(engine: Engine, prompt: Sequence[int]) -> None:
    """Tries, once a checkpoint, whether the logits of a token are the same behind keys and values that are handed in.

    Raises:
        RunError: they are not; a model that keeps anything else of earlier tokens is one of those.
    """
    if engine.cache_difference is None:
        ids = tuple(prompt) * (1 if len(prompt) > 1 else 2)
        whole, cache = _logits(engine, ids, 0, None), DynamicCache()
        try:
            _logits(engine, ids[:-1], 0, cache)
            one = _logits(engine, ids[-1:], len(ids) - 1, cache)
        except Exception as error:  # whatever it is that a model without such a cache does: its whole forward went well
            if is_out_of_memory(error):
                raise
            got = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            raise RunError(Problem("model", TOKEN_BY_TOKEN, got, code="cache")) from error
        engine.cache_difference = float((one - whole).abs().max() / whole.std())
    if not engine.cache_difference <= TOLERANCE[engine.facts.dtype]:
        got = f"logits that differ by {engine.cache_difference:.1e} of their standard deviation from those of a whole forward"
        raise RunError(Problem("model", TOKEN_BY_TOKEN, got, code="cache"))


def _logits(engine: Engine, ids: Sequence[int], n_before: int, cache: DynamicCache | None) -> Tensor:
    """Returns the logits of the last of some tokens, fp32."""
    n = len(ids)
    mask, places = torch.ones(1, n_before + n, dtype=torch.long), torch.arange(n_before, n_before + n)[None]
    address, state = engine.facts.address("logits", None), State(n)
    assert address is not None
    visit = Visit(address, (ReadTask("logits", 0, Index(torch.tensor([0]), torch.tensor([n - 1]), None)),))
    with gradients("off"):
        engine.run(Batch((0,), torch.tensor([list(ids)]), mask, places), (visit,), state, Shortcut((), cache, is_direct=True))
    return state.reads["logits", 0][0].float()


class _Batch:
    """Rows that are generated together."""

    def __init__(self, engine: Engine, one: Pass, rows: Sequence[int], given: Given) -> None:
        assert one.forward.decode is not None
        self.engine = engine
        self.one = one
        self.rows = list(rows)
        self.given = given
        self.most = one.forward.decode.max_new_tokens
        self.prompts = given.prompts[one.forward.rows]
        whose = f"`{one.forward.model}` on `{one.forward.role}`, row"
        self.speech = Speech(engine.tokenizer, engine.stop_tokens(), whose, keeps_margins=True)
        for row in rows:
            self.speech.join(self.prompts[row].ids, one.forward.decode, row)
        self.n_steps = 0
        self.mask = torch.zeros(0)
        self.cache = DynamicCache()
        self.found: dict[str, dict[int, dict[int, Tensor]]] = {read.name: {row: {} for row in rows} for read in one.forward.reads}
        self.writes: dict[str, WriteEvidence] = {}

    def wants_last(self) -> bool:
        """Returns whether a token that no forward has had as input is wanted, now that all rows have ended."""
        positions = [read.pos for read in self.one.forward.reads if read.pos.lag]
        for place, row in enumerate(self.rows) if positions else ():
            said = self.continuation(place, row).prompt
            if any(token + pos.lag >= self.n_steps for pos in positions for token in locate(pos, None, said).tokens):
                return True
        return False

    def step(self, is_last: bool = False) -> None:
        """Runs one forward, and has every row that goes on say a token, unless all have said their last."""
        step, batch = self.n_steps, self.batch()
        on_batch = PassOnBatch(self.located(step), self.rows, 0, batch.input_ids.shape[1], self.given, self.engine.facts)
        on_batch.n_before = batch.n_prefix
        columns = None
        if not any(is_at_head(write) for write in on_batch.one.forward.writes):
            on_batch.head = [[batch.input_ids.shape[1] - 1]] * len(self.rows)
            columns = torch.tensor(on_batch.head, dtype=torch.long)
        state = State(batch.input_ids.shape[1], is_kept=True)
        self.engine.run(
            batch, visits_of([on_batch], (), self.engine.facts), state, Shortcut((), self.cache, columns=columns, is_direct=True)
        )
        note_writes(self.writes, on_batch, state)
        for read in on_batch.one.forward.reads:
            if read.name != NEXT.name:
                self.take(read, on_batch.value(read, state), on_batch.one.windows[read.name], step)
        if not is_last:
            self.speech.hear(on_batch.value(NEXT, state).data[0].float())
        self.n_steps += 1

    def batch(self) -> Batch:
        """Returns the tokens of the next forward: all of the prompt, then the one that each row has said last."""
        if self.n_steps == 0:
            made = make_batch(self.rows, self.prompts, None, pad_id(self.engine.tokenizer))
            self.mask = made.attention_mask
            return made
        self.mask = torch.cat([self.mask, torch.ones(len(self.rows), 1, dtype=torch.long)], dim=1)
        tokens = torch.tensor([[self.speech.last(place)] for place in range(len(self.rows))], dtype=torch.long)
        places = torch.tensor([[self.prompts[row].n_tokens + self.n_steps - 1] for row in self.rows], dtype=torch.long)
        return Batch(tuple(self.rows), tokens, self.mask, places)

    def located(self, step: int) -> Pass:
        """Returns what is read and written at a step, with the one token of each row that goes on."""
        forward, prompts = self.one.forward, self.prompts
        nowhere = (Window(()),) * forward.n_rows
        here, going, given = list(nowhere), list(nowhere), list(nowhere)
        for place, row in enumerate(self.rows):
            here[row] = Window((prompts[row].n_content + step - 1,))
            if self.speech.ended(place) is None and step < self.most:
                going[row] = here[row]
            if 0 < step <= len(self.speech.said(place)):
                given[row] = here[row]
        places: list[nodes.Read | nodes.Write] = [NEXT]
        windows = {NEXT.name: tuple(here)}
        for each in forward.places:
            steps = each.pos.steps(self.most)
            if step in steps if each.pos.is_generated and steps is not None else each.pos.is_generated or step == 0:
                places.append(each)
                windows[each.name] = self.one.windows[each.name] if not each.pos.is_generated else tuple(given if each.pos.lag else going)
        ordered = tuple(sorted(places, key=lambda each: (each.site.rank, isinstance(each, nodes.Read))))
        appended = ((0,) * step,) * forward.n_rows if step else None
        keys = {name: found for name, found in self.one.keys.items() if name in windows}
        return Pass(replace(forward, places=ordered, appended=appended), windows, keys, self.one.missing)

    def take(self, read: nodes.Read, value: Value, windows: Sequence[Window], step: int) -> None:
        """Keeps what a read found on every row that goes on; of the last n tokens, no more than those."""
        n_kept, data = read.pos.n_last, value.data
        if read.view == "logits":
            data = self.engine.unembed(data)
        for start, row in zip(value.starts, self.rows, strict=True):
            if windows[row].tokens:
                own = self.found[read.name][row]
                own[step] = data[:, start].clone()
                if n_kept is not None:
                    own.pop(step - n_kept, None)

    def finish(self, into: Generated) -> None:
        """Resolves positions in what the rows have said, and hands over what was found there."""
        said = {row: self.continuation(place, row) for place, row in enumerate(self.rows)}
        into.continuations |= said
        for read in self.one.forward.reads:
            values, windows = into.values.setdefault(read.name, {}), into.windows.setdefault(read.name, {})
            anchors = read.anchors or (None,) * self.one.forward.n_rows
            for row in self.rows:
                windows[row] = locate(read.pos, anchors[row], said[row].prompt)
                values[row] = [self.found[read.name][row][token + read.pos.lag] for token in windows[row].tokens]
        for write in (write for write in self.one.forward.writes if write.pos.is_generated):
            steps = write.pos.steps(self.most) or ()
            lag = write.pos.lag
            made = [step - lag for step in steps if step < self.n_steps]
            tokens = {row: tuple(token for token in made if token < len(said[row].ids)) for row in self.rows}
            found = {row: Window(own, "" if own else "out_of_range") for row, own in tokens.items()}
            into.windows.setdefault(write.name, {}).update(found)
        for name, evidence in self.writes.items():
            known = into.writes.setdefault(name, WriteEvidence())
            known.change |= evidence.change
            known.n_left_over += evidence.n_left_over

    def continuation(self, place: int, row: int) -> Continuation:
        """Returns what a row has said, with the characters of each token."""
        ids, ended, prompt = self.speech.said(place), self.speech.ended(place) or "length", self.prompts[row]
        content = prompt.ids[prompt.n_prefix :]
        whole, spans = character_spans(self.engine.tokenizer, (*content, *ids))
        n_before = len(prompt.text)
        if whole.startswith(prompt.text) and all(start >= n_before for start, _ in spans[len(content) :]):
            text, own = whole[n_before:], tuple((start - n_before, end - n_before) for start, end in spans[len(content) :])
        else:  # a character that begins in the prompt ends here
            text, own = character_spans(self.engine.tokenizer, ids)
        turns = (Turn("eos", own[-1]),) if ended == "eos" else ()
        margins = tuple(self.speech.voices[place].margins[: len(ids)])
        return Continuation(ids, ended, Prompt(ids, 0, text, own, turns), margins)
