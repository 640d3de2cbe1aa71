"""Carries out one observe step: its passes over its rows, then its scores and its outputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from causalab_mini.data.prompts import Prompt
from causalab_mini.engine.batches import Made, OutputTensors, PassOnBatch, make_batch, split_rows
from causalab_mini.engine.contract import Engine, State, Visit
from causalab_mini.errors import Problem, RunError, quoted
from causalab_mini.model.families import INTERIOR
from causalab_mini.ops import reductions
from causalab_mini.ops.windows import Pattern, Value, concatenate, without_rows
from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.physical import PhysicalPass
from causalab_mini.schedule.schedule import Pass, StepSchedule

Prompts = Mapping[nodes.RowsKey, tuple[Prompt, ...]]


@dataclass(slots=True)
class WriteEvidence:
    """What a write did, row by row.

    Attributes:
        change: relative change of norm over the written tokens of each row, the largest over layers.
        n_left_over: tokens that `align` left as they were.
    """

    change: dict[int, float] = field(default_factory=dict)
    n_left_over: int = 0


@dataclass(slots=True)
class Observed:
    """What the passes of an intervention left.

    Attributes:
        rows: of the step, ascending: those that were run.
        values: by read name, one entry of `lengths` a row that was run.
        patterns: heads and keys of the reads whose features are keys.
        writes: by `write_key`.
        unwritten: by read name, rows of its model that an operand without value left as they were.
    """

    rows: tuple[int, ...]
    values: dict[str, Value] = field(default_factory=dict)
    patterns: dict[str, Pattern] = field(default_factory=dict)
    writes: dict[str, WriteEvidence] = field(default_factory=dict)
    unwritten: dict[str, Collection[int]] = field(default_factory=dict)


def observe(
    engine: Engine,
    schedule: StepSchedule,
    intervention: nodes.Intervention,
    prompts: Prompts,
    outputs: OutputTensors,
    rows: Sequence[int],
    batch_size: int | None,
) -> Observed:
    """Returns what an intervention's passes find on some rows of its step.

    Args:
        engine: the checkpoint.
        schedule: of the step.
        intervention: which of its interventions.
        prompts: of the request.
        outputs: of earlier steps.
        rows: of the step, ascending.
        batch_size: rows a pass; None lets tokens and logits bound it.
    """
    observed = Observed(tuple(rows))
    for one in schedule.passes[intervention.name]:
        plain = PhysicalPass("", one, "", 1, 0)
        ran = run_pass(engine, plain, prompts, observed.values, outputs, rows, batch_size, None)
        observed.values |= ran.values
        note(observed, schedule, intervention, one, ran, engine)
    return observed


@dataclass(slots=True)
class Ran:
    """What one pass left over all its batches.

    Attributes:
        values: by read name.
        writes: by write name.
        streams: by batch and layer, what left the layers that it kept.
        tails: by layer, what its blocks return beside the stream.
        rows_a_batch: of its largest batch.
    """

    values: dict[str, Value] = field(default_factory=dict)
    writes: dict[str, WriteEvidence] = field(default_factory=dict)
    streams: list[dict[int, Tensor]] = field(default_factory=list)
    tails: dict[int, tuple[Any, ...] | None] = field(default_factory=dict)
    rows_a_batch: int = 0


def run_pass(
    engine: Engine,
    physical: PhysicalPass,
    prompts: Prompts,
    values: Mapping[str, Value],
    outputs: OutputTensors,
    rows: Sequence[int],
    batch_size: int | None,
    source: Ran | None,
) -> Ran:
    """Returns what a pass finds on some rows of its step.

    Args:
        engine: the checkpoint.
        physical: the pass, and what is left out of it.
        prompts: of the request.
        values: what earlier passes read, by the names that its operands have.
        outputs: of earlier steps.
        rows: of the step, ascending.
        batch_size: rows a batch; None lets tokens and logits bound it.
        source: the pass over the same rows that kept the stream it resumes from.
    """
    one, ran = physical.one, Ran()
    forward = one.forward
    role_prompts = prompts[forward.rows]
    extra = [0] * len(role_prompts) if forward.appended is None else [len(answer) for answer in forward.appended]
    lengths = [role_prompts[row].n_tokens + extra[row] for row in rows]
    parts: dict[str, list[Value]] = {read.name: [] for read in forward.reads}
    for number, chosen in enumerate(split_rows(lengths, engine.facts.vocabulary, batch_size)):
        batch = make_batch([rows[index] for index in chosen], role_prompts, forward.appended, pad_id(engine.tokenizer))
        on_batch = PassOnBatch(one, batch, role_prompts, values, outputs, rows, engine.facts, physical.keeps, physical.is_narrow)
        state = State((batch.input_ids.shape[0], batch.input_ids.shape[1]))
        last = physical.n_skipped - 1
        stream, tail = (None, None) if source is None else (source.streams[number][last], source.tails[last])
        shortcut = on_batch.shortcut(physical.n_skipped, stream, tail, physical.stops_after is not None)
        visits = on_batch.visits()
        if shortcut.stops and visits and visits[-1].address.side in INTERIOR:
            end = engine.facts.address("block_output", physical.stops_after)
            assert end is not None
            visits = (*visits, Visit(end, ()))
        engine.run(batch, visits, state, shortcut)
        for read in forward.reads:
            value = on_batch.value(read, state)
            if read.view == "logits":
                value = Value(engine.unembed(value.data), value.lengths)
            parts[read.name].append(value)
        ran.rows_a_batch = max(ran.rows_a_batch, len(batch.rows))
        ran.streams.append({layer: state.streams[layer] for layer in physical.keeps})
        ran.tails |= {layer: state.tails[layer] for layer in physical.keeps}
        _note_writes(ran, forward, on_batch, state)
    ran.values = {name: concatenate(found) for name, found in parts.items()}
    return ran


def note(observed: Observed, schedule: StepSchedule, intervention: nodes.Intervention, one: Pass, ran: Ran, engine: Engine) -> None:
    """Adds to an intervention what a pass of its own left beside values: its writes' evidence and the axes of its patterns."""
    for write in one.forward.writes:
        observed.writes[write_key(intervention, one.forward, write)] = ran.writes[write.name]
    observed.patterns |= _patterns(one, schedule.step, engine)
    observed.unwritten |= {read.name: one.missing for read in one.forward.reads}


def _patterns(one: Pass, step: nodes.Observe, engine: Engine) -> dict[str, Pattern]:
    """Returns the axes of a pass's reads whose features are keys."""
    heads = {read.name: engine.facts.n_heads if read.site.heads is None else len(read.site.heads) for read in one.forward.reads}
    return {name: Pattern(heads[name], tuple(map(len, keys)), step.labels) for name, keys in one.keys.items() if name in heads}


def write_key(intervention: nodes.Intervention, forward: nodes.Forward, write: nodes.Write) -> str:
    """Returns what a write of one forward is called: `<model>/<write>`, with the role and the answers where those are several."""
    roles = {other.role for other in intervention.forwards if other.model == forward.model}
    role = f" on {forward.role}" if len(roles) > 1 else ""
    return f"{forward.model}/{write.name}{role}" + (" with answers" if forward.appended is not None else "")


def _note_writes(ran: Ran, forward: nodes.Forward, on_batch: PassOnBatch, state: State) -> None:
    for write in forward.writes:
        evidence = ran.writes.setdefault(write.name, WriteEvidence())
        landing = on_batch.landings[write.name]
        evidence.n_left_over += landing.n_left_over
        for (name, _), change in state.changes.items():
            if name != write.name:
                continue
            for (row, _), moved in zip(landing.places, change.tolist(), strict=True):
                evidence.change[row] = max(evidence.change.get(row, 0.0), moved)


def pad_id(tokenizer: Any) -> int:
    """Returns a token id to pad with; padded tokens are masked, so any will do that the model knows."""
    candidates = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return next(token for token in candidates if token is not None)


def make_outputs(step: nodes.Observe, observed: Mapping[str, Observed], earlier: OutputTensors) -> dict[str, Made]:
    """Returns the outputs of a step."""
    made: dict[str, Made] = {}
    for output in step.outputs:
        if isinstance(output, nodes.Difference):
            known = {**earlier, **made}
            made[output.name] = _difference(output.name, known[output.minuend], known[output.subtrahend], output.is_unit)
            continue
        found = observed[output.intervention]
        value = Value(found.values[output.read].data.float(), found.values[output.read].lengths)
        if output.reduce != "none":
            value = without_rows(value, [index for index, row in enumerate(found.rows) if row in found.unwritten.get(output.read, ())])
        read = step.intervention(output.intervention).read(output.read)
        made[output.name] = _reduce(output, value, found.rows, step.n_rows, read, found.patterns.get(output.read))
    return made


def _reduce(output: nodes.Output, value: Value, rows: Sequence[int], n_rows: int, read: nodes.Read, pattern: Pattern | None) -> Made:
    if output.reduce != "none" and not value.data.shape[1]:
        raise RunError(
            Problem(f"outputs.{output.name}", "at least one token to reduce", "none on the rows that ran", code="no_eligible_row")
        )
    is_rectangle, is_stacked = read.pos.width is not None and read.pos.scope is None, read.site.is_stacked
    match output.reduce:
        case "mean" | "std":
            data = (reductions.mean if output.reduce == "mean" else reductions.std)(value, is_rectangle)
            return Made(Value(data, (data.shape[1],)), "window", is_stacked)
        case "pca":
            n_tokens, k = value.data.shape[1], output.k or 1
            if k >= n_tokens:
                raise RunError(Problem(f"outputs.{output.name}.k", f"fewer directions than tokens ({n_tokens} ran)", quoted(k), code="pca"))
            data = reductions.pca(value, k)
            return Made(Value(data, (data.shape[1],)), "window", is_stacked)
        case "mean_by":
            assert output.groups is not None
            means = reductions.mean_by(value, [output.groups[row] for row in rows])
            return Made(Value(torch.cat(list(means.values()), dim=1), (1,) * len(means)), "groups", is_stacked, tuple(means))
    lengths = dict(zip(rows, value.lengths, strict=True))
    every_length = tuple(lengths.get(row, 0) for row in range(n_rows))
    return Made(Value(value.data, every_length), "rows", is_stacked, is_ragged=not is_rectangle, pattern=pattern)


def _difference(name: str, minuend: Made, subtrahend: Made, is_unit: bool) -> Made:
    sizes = minuend.value.lengths, subtrahend.value.lengths
    if sizes[0] != sizes[1] and (subtrahend.kind == "rows" or sizes[1] != (1,)):
        expected, got = "values of the same rows in both outputs", f"{sum(sizes[0])} and {sum(sizes[1])} tokens"
        raise RunError(Problem(f"outputs.{name}.difference", expected, got, code="width"))
    data: Tensor = minuend.value.data - subtrahend.value.data
    if is_unit:
        length = data.norm(dim=-1, keepdim=True)
        data = data / torch.where(length > 0, length, torch.ones_like(length))
    return replace(minuend, value=Value(data, minuend.value.lengths))
