"""Carries out one observe step: its passes over its rows, then its scores and its outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from causalab_mini.engine.batches import PassOnBatch, make_batch, visits_of
from causalab_mini.engine.cache import KeysValues, PrefixCache
from causalab_mini.engine.contract import Engine, Enter, Shortcut, State, Visit
from causalab_mini.engine.decoding import Continuation, Generated, generate
from causalab_mini.engine.featurizers import Featurizers
from causalab_mini.engine.given import Given, Prompts
from causalab_mini.engine.gradients import gradients
from causalab_mini.engine.kept import Kept, KeptBatch, RowValues
from causalab_mini.engine.made import Made, OutputTensors
from causalab_mini.engine.sizes import Sizes
from causalab_mini.engine.tokenizer import pad_id
from causalab_mini.engine.writes import WriteEvidence, note_writes
from causalab_mini.errors import Problem, RunError, quoted
from causalab_mini.model.facts import ModelFacts
from causalab_mini.model.families import INTERIOR
from causalab_mini.ops import reductions
from causalab_mini.ops.featurizers import Coordinates
from causalab_mini.ops.windows import Pattern, Value, without_rows
from causalab_mini.plan import plan as nodes
from causalab_mini.plan.axes import axes_of
from causalab_mini.schedule.batching import Entry
from causalab_mini.schedule.locate import Window
from causalab_mini.schedule.located import Pass, StepSchedule
from causalab_mini.schedule.physical import Part, PhysicalPass, continued_lengths, lengths_of


@dataclass(slots=True)
class Observed:
    """What the passes of an intervention left.

    Attributes:
        rows: of the step, ascending: those that were run.
        values: by read name, one entry of `lengths` a row that was run.
        patterns: heads and keys of the reads whose features are keys.
        writes: by `write_key`.
        unwritten: by read name, rows of its model that an operand without value left as they were.
        features: by read name, the features that have a value, where the schedule left others out.
        coordinates: by read name, of the reads that have a featurizer; `values` are those of the place.
        said: by model and role, what was generated, by row.
        windows: by read, and by `write_key`, of what was generated, the tokens that it means there, by row.
    """

    rows: tuple[int, ...]
    values: dict[str, Value] = field(default_factory=dict)
    patterns: dict[str, Pattern] = field(default_factory=dict)
    writes: dict[str, WriteEvidence] = field(default_factory=dict)
    unwritten: dict[str, Collection[int]] = field(default_factory=dict)
    features: dict[str, tuple[int, ...]] = field(default_factory=dict)
    coordinates: dict[str, Callable[[], Coordinates]] = field(default_factory=dict)
    said: dict[tuple[str, str], Mapping[int, Continuation]] = field(default_factory=dict)
    windows: dict[str, Mapping[int, Window]] = field(default_factory=dict)

    def value(self, name: str) -> Value:
        """Returns what a read found, in its featurizer's coordinates if it has one."""
        found = self.values[name]
        if name not in self.coordinates:
            return found
        return Value(self.coordinates[name]().encode(found.data)[0], found.lengths)

    def compared(self, name: str, value: Tensor) -> Tensor:
        """Returns the features of a read's values that have one, (…, feature)."""
        return value if name not in self.features else value[..., torch.tensor(self.features[name], device=value.device)]


def observe(
    engine: Engine,
    schedule: StepSchedule,
    intervention: nodes.Intervention,
    prompts: Prompts,
    outputs: OutputTensors,
    rows: Sequence[int],
    featurizers: Featurizers | None = None,
    sizes: Sizes | None = None,
) -> Observed:
    """Returns what an intervention's own passes find on some rows of its step, run without any rewrite.

    Args:
        engine: the checkpoint.
        schedule: of the step.
        intervention: which of its interventions.
        prompts: of the request.
        outputs: of earlier steps.
        rows: of the step, ascending.
        featurizers: what of them has been trained; None where nothing has.
        sizes: how rows are split into batches; None for one batch.
    """
    observed = Observed(tuple(rows))
    featurizers = Featurizers(outputs) if featurizers is None else featurizers
    for one in schedule.passes[intervention.name]:
        lengths, given = lengths_of(one.forward, prompts), Given(prompts, observed.values, outputs, rows, featurizers)
        physical, ran = PhysicalPass((Part("", "", one, 1, tuple(rows)),), "", lengths), Ran(Kept(lengths))
        _in_batches(physical, rows, sizes, partial(_run, engine, physical, given, ran))
        observed.values |= {name: found.of(rows) for name, found in ran.values.items()}
        note(observed, schedule, intervention, one, ran.writes.get("", {}), engine, featurizers)
    for one in schedule.generations.get(intervention.name, ()):
        generated, given = Generated(), Given(prompts, observed.values, outputs, rows, featurizers)
        physical = PhysicalPass((Part("", "", one, 1, tuple(rows)),), "", continued_lengths(one.forward, prompts), is_narrow=True)
        _in_batches(physical, rows, sizes, partial(_generate, engine, one, given, generated))
        note_generated(observed, intervention, one, generated, {read.name: read.name for read in one.forward.reads}, engine.facts)
        note(observed, schedule, intervention, one, generated.writes, engine, featurizers)
    return observed


def _in_batches(physical: PhysicalPass, rows: Sequence[int], sizes: Sizes | None, run: Callable[[list[Entry]], None]) -> None:
    """Runs a pass, as one batch or as those that fit."""
    for batch in physical.batches() if sizes is None else sizes.batches(physical, rows):
        if sizes is None:
            run(batch)
        else:
            sizes.run(physical, batch, run)


def _run(engine: Engine, physical: PhysicalPass, given: Given, ran: Ran, entries: list[Entry]) -> None:
    run_batch(engine, physical, entries, given, ran)


def _generate(engine: Engine, one: Pass, given: Given, into: Generated, entries: list[Entry]) -> None:
    generate(engine, one, [entry.row for entry in entries], given, into)


def note_generated(
    observed: Observed, intervention: nodes.Intervention, one: Pass, generated: Generated, names: Mapping[str, str], facts: ModelFacts
) -> None:
    """Adds to an intervention what it generated.

    Args:
        observed: what the intervention found.
        intervention: whose.
        one: what was generated, as the plan has it.
        generated: what that left.
        names: of its reads there.
        facts: of the checkpoint.
    """
    observed.said[one.forward.model, one.forward.role] = {row: generated.continuations[row] for row in observed.rows}
    for read in one.forward.reads:
        width = axes_of(read.site, read.view, facts).n_features or 1
        observed.values[read.name] = generated.value(names[read.name], observed.rows, len(read.site.addresses), width)
        observed.windows[read.name] = generated.windows[names[read.name]]
    for write in (write for write in one.forward.writes if write.pos.is_generated):
        observed.windows[write_key(intervention, one.forward, write)] = generated.windows[write.name]


@dataclass(slots=True)
class Ran:
    """What one pass left over all its batches.

    Attributes:
        kept: for later passes.
        values: by read name.
        writes: by part and write name.
    """

    kept: Kept
    values: dict[str, RowValues] = field(default_factory=dict)
    writes: dict[str, dict[str, WriteEvidence]] = field(default_factory=dict)


def run_batch(engine: Engine, physical: PhysicalPass, entries: Sequence[Entry], given: Given, ran: Ran) -> None:
    """Runs one batch of a pass, and adds what it leaves to what others left.

    Args:
        engine: the checkpoint.
        physical: the pass, and what is left out of it.
        entries: rows of its parts, those of earlier parts first.
        given: what it stands on.
        ran: what its batches leave; untouched where the forward fails.
    """
    forward, facts = physical.forward, engine.facts
    prompts = given.prompts[forward.rows]
    cuts = _cuts(physical, entries, given)
    rows = [entry.row for entry in entries]
    batch = make_batch(rows, prompts, forward.appended, pad_id(engine.tokenizer), cuts, physical.until)
    n_run = batch.input_ids.shape[1]
    parts: list[tuple[Part, PassOnBatch]] = []
    enters: list[Enter] = []
    for number, part in enumerate(physical.parts):
        own = [entry.row for entry in entries if entry.part == number]
        if not own:
            continue
        offset = sum(len(on_batch.rows) for _, on_batch in parts)
        parts.append((part, PassOnBatch(part.one, own, offset, n_run, given, facts)))
        stream, tail = None, None
        if part.n_skipped and given.resumed is not None:
            stream, tail = given.resumed.stream(part.n_skipped - 1, own, n_run), given.resumed.tails[part.n_skipped - 1]
        enters.append(Enter(len(own), part.n_skipped, stream, tail))
    columns = _narrow([on_batch for _, on_batch in parts], n_run) if physical.is_narrow else None
    visits = visits_of([on_batch for _, on_batch in parts], physical.keeps, facts)
    if physical.stops_after is not None:
        end = facts.address("block_output", physical.stops_after)
        assert end is not None
        last = visits[-1].address if visits else None
        if last != end and (last is None or physical.keeps_tokens or last.side in INTERIOR):
            visits = (*visits, Visit(end, ()))
    cache = _cache(physical, entries, cuts, given)
    tokens = None if physical.vocabulary is None else torch.tensor(physical.vocabulary, dtype=torch.long)
    shortcut = Shortcut(tuple(enters), cache, physical.stops_after is not None, columns, tokens, physical.is_direct, given.mode)
    state = State(n_run, has_evidence=given.mode == "off")
    engine.run(batch, visits, state, shortcut)
    found = []
    with gradients(given.mode):
        for part, on_batch in parts:
            for read in part.forward.reads:
                value = on_batch.value(read, state)
                as_logits = read.view == "logits"
                value = Value(engine.unembed(value.data, given.mode), value.lengths) if as_logits else value
                found.append((read.name, tuple(on_batch.rows), value))
    for name, own_rows, value in found:
        ran.values.setdefault(name, RowValues()).chunks.append((own_rows, value))
    for part, on_batch in parts:
        note_writes(ran.writes.setdefault(part.name, {}), on_batch, state)
    ran.kept.tails |= state.tails
    if physical.keeps or physical.keeps_tokens:
        kept = (cache.kept if cache is not None else None) or {}
        ran.kept.batches.append(
            KeptBatch({row: index for index, row in enumerate(rows)}, dict(zip(rows, cuts, strict=True)), state.kept, kept)
        )


def _cuts(physical: PhysicalPass, entries: Sequence[Entry], given: Given) -> list[int]:
    """Returns how many tokens of each row are not run: as many as leave all rows with the same number, where those before were kept."""
    if given.prefix is None:
        return [0] * len(entries)
    n_run = max(entry.n_run for entry in entries)
    cuts = [max(0, entry.length - n_run) for entry in entries]
    if given.resumed is None:
        return cuts
    skips = [physical.parts[entry.part].n_skipped > 0 for entry in entries]
    return [max(cut, given.resumed.cut(entry.row)) if skip else cut for cut, entry, skip in zip(cuts, entries, skips, strict=True)]


def _cache(physical: PhysicalPass, entries: Sequence[Entry], cuts: Sequence[int], given: Given) -> PrefixCache | None:
    """Returns what hands out the keys and values before the tokens of a batch, or keeps its own."""
    prefix = given.prefix
    if prefix is None or not any(cuts):
        return PrefixCache(is_kept=True) if physical.keeps_tokens else None
    only = next(iter(prefix.batches[0].index)) if physical.is_one_prefix else None
    rows = [entry.row if only is None else only for entry in entries]
    lengths = [entry.length for entry in entries]

    def before(layer: int) -> KeysValues:
        return prefix.keys_values(layer, rows, cuts, lengths)

    return PrefixCache(max(cuts), before, physical.keeps_tokens)


def _narrow(on_batch: Sequence[PassOnBatch], n_columns: int) -> Tensor:
    """Returns the positions whose logits are read, (row, position), as many on every row, and tells the passes of them."""
    found = [columns for one in on_batch for columns in one.head_columns()]
    longest = max(1, *map(len, found))
    padded = [columns + [n_columns - 1] * (longest - len(columns)) for columns in found]
    for one in on_batch:
        one.head = padded[one.offset : one.offset + len(one.rows)]
    return torch.tensor(padded, dtype=torch.long)


def note(
    observed: Observed,
    schedule: StepSchedule,
    intervention: nodes.Intervention,
    one: Pass,
    writes: Mapping[str, WriteEvidence],
    engine: Engine,
    featurizers: Featurizers,
    idle: Collection[int] = (),
) -> None:
    """Adds to an intervention what a pass of its own left beside values: its writes' evidence and the axes of its patterns.

    Args:
        observed: what the intervention found.
        schedule: of its step.
        intervention: whose.
        one: the pass.
        writes: what its writes did.
        engine: the checkpoint.
        featurizers: of the pass's reads, by the names that the plan has for them.
        idle: rows that were not run, since nothing would have changed there.
    """
    for write in one.forward.writes:
        evidence = writes.get(write.name, WriteEvidence())
        not_run = [row for row in observed.rows if row in idle and row not in one.missing]
        change = {**evidence.change, **dict.fromkeys(not_run, 0.0)}
        observed.writes[write_key(intervention, one.forward, write)] = WriteEvidence(change, evidence.n_left_over, len(not_run))
    for read in one.forward.reads:
        if read.featurizer is not None:
            observed.coordinates[read.name] = partial(featurizers.of, read.featurizer)
    observed.patterns |= _patterns(one, schedule.step, engine)
    observed.unwritten |= {read.name: one.missing for read in one.forward.reads}


def _patterns(one: Pass, step: nodes.Observe, engine: Engine) -> dict[str, Pattern]:
    """Returns the axes of a pass's reads whose features are keys."""
    heads = {read.name: engine.facts.n_heads if read.site.heads is None else len(read.site.heads) for read in one.forward.reads}
    return {name: Pattern(heads[name], tuple(map(len, keys)), step.labels) for name, keys in one.keys.items() if name in heads}


def write_key(intervention: nodes.Intervention, forward: nodes.Forward, write: nodes.Write) -> str:
    """Returns what a write of one forward is called: `<model>/<write>`, with the role and the answers where those are several."""
    roles = {other.role for other in intervention.runs if other.model == forward.model}
    role = f" on {forward.role}" if len(roles) > 1 else ""
    how = " with answers" if forward.appended is not None else " in generation" if forward.decode is not None else ""
    return f"{forward.model}/{write.name}{role}{how}"


def make_outputs(step: nodes.Observe, observed: Mapping[str, Observed], earlier: OutputTensors) -> dict[str, Made]:
    """Returns the outputs of a step."""
    made: dict[str, Made] = {}
    for output in step.outputs:
        if isinstance(output, nodes.Difference):
            known = {**earlier, **made}
            made[output.name] = _difference(output.name, known[output.minuend], known[output.subtrahend], output.is_unit)
            continue
        found = observed[output.intervention]
        value = Value(found.value(output.read).data.float(), found.values[output.read].lengths)
        if output.reduce != "none":
            value = without_rows(value, [index for index, row in enumerate(found.rows) if row in found.unwritten.get(output.read, ())])
        intervention = step.intervention(output.intervention)
        read = intervention.read(output.read)
        is_rectangle, pattern = intervention.is_rectangle(read), found.patterns.get(output.read)
        made[output.name] = _reduce(output, value, found.rows, step.n_rows, read.site.is_stacked, is_rectangle, pattern)
    return made


def _reduce(
    output: nodes.Output, value: Value, rows: Sequence[int], n_rows: int, is_stacked: bool, is_rectangle: bool, pattern: Pattern | None
) -> Made:
    if output.reduce != "none" and not value.data.shape[1]:
        raise RunError(
            Problem(f"outputs.{output.name}", "at least one token to reduce", "none on the rows that ran", code="no_eligible_row")
        )
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
