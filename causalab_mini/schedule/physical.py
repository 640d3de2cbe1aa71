"""The physical schedule: the forwards that are run, what each leaves out, and what that saved. Immutable.

It begins as the plan's own passes, one for one; each rewrite turns it into one that gives the same numbers with less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

from causalab_mini.data.prompts import Prompt
from causalab_mini.model.facts import ModelFacts
from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.batching import Entry, split
from causalab_mini.schedule.identity import Identity, Use, identities
from causalab_mini.schedule.located import Pass, Schedule


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Some rows of one pass of the plan, in a forward.

    Attributes:
        name: its own, and that of no other.
        key: what it is; parts of one key give the same numbers at every place.
        one: its places; reads and outputs are named by what they are, so that nothing here depends on a point's names.
        n_uses: how many passes of the plan it stands for; 0 for one that a rewrite added.
        rows: of the step, that are run: all, where no rewrite took some out.
        n_skipped: layers from the bottom that are not run.
        first: by row of the step, the first token that has to be run, counted from the tokenizer's own; None for the first of all.
    """

    name: str
    key: str
    one: Pass
    n_uses: int
    rows: tuple[int, ...]
    n_skipped: int = 0
    first: tuple[int, ...] | None = None

    @property
    def forward(self) -> nodes.Forward:
        """Its places in forward order."""
        return self.one.forward

    @property
    def operands(self) -> list[str]:
        """The reads of other passes that its writes take, once each write."""
        own = {read.name for read in self.forward.reads}
        found = [write.operand.read for write in self.forward.writes if isinstance(write.operand, nodes.FromRead)]
        return [read for read in found if read not in own]

    @property
    def made(self) -> list[str]:
        """The outputs of earlier steps that its writes take, and what their featurizers are made of."""
        taken = [write.operand.output for write in self.forward.writes if isinstance(write.operand, nodes.FromOutput)]
        return taken + [need for write in self.forward.writes if write.featurizer is not None for need in write.featurizer.needs]

    def tokens(self, row: int) -> list[int]:
        """Returns the tokens of a row that are read or written, counted from the first content token."""
        return [token for place in self.forward.places for token in self.one.windows[place.name][row].tokens]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PhysicalPass:
    """One forward that is run, over the rows of its parts.

    Attributes:
        parts: those that skip fewest layers first; where they skip more, their rows join the others there.
        scope: empty, or the step whose rows are known only when it runs.
        lengths: tokens of each row of the step.
        resumes: the pass that kept the streams above the layers that are skipped.
        prefix: the pass that kept the keys and values of the tokens that are not run.
        is_one_prefix: whether that pass has one row, which stands for the beginning of every row of this one.
        keeps: layers whose leaving stream is kept for later passes.
        keeps_tokens: whether the keys and values of every layer are kept for later passes.
        until: how many tokens of a row are run; None for all.
        stops_after: the last layer that is run; None where the forward goes to its end.
        is_narrow: whether logits are computed at the positions alone that are read.
        vocabulary: the tokens whose logits are computed; None for all.
        batch_tokens: what a batch costs beside its tokens, in tokens, where rows of like length are run together; None where all are.
        is_direct: whether hooks carry it out instead of a trace, which would cost more than the forward.
    """

    parts: tuple[Part, ...]
    scope: str
    lengths: tuple[int, ...]
    resumes: str | None = None
    prefix: str | None = None
    is_one_prefix: bool = False
    keeps: tuple[int, ...] = ()
    keeps_tokens: bool = False
    until: int | None = None
    stops_after: int | None = None
    is_narrow: bool = False
    vocabulary: tuple[int, ...] | None = None
    batch_tokens: int | None = None
    is_direct: bool = False

    @property
    def part(self) -> Part:
        """Its only part.

        Raises:
            ValueError: it has several.
        """
        (part,) = self.parts
        return part

    @property
    def forward(self) -> nodes.Forward:
        """The forward of its first part."""
        return self.parts[0].forward

    @property
    def places(self) -> list[nodes.Read | nodes.Write]:
        """All that is read and written."""
        return [place for part in self.parts for place in part.forward.places]

    @property
    def has_writes(self) -> bool:
        """Whether it is another run than the model's own."""
        return any(part.forward.writes for part in self.parts)

    @property
    def rows_key(self) -> tuple[str, nodes.RowsKey, object]:
        """What its rows are: passes of one key run over the same tokens."""
        return self.scope, self.forward.rows, self.forward.appended

    def length(self, row: int) -> int:
        """Returns how many tokens of a row there are for this pass."""
        return self.lengths[row] if self.until is None else min(self.until, self.lengths[row])

    def entries(self, rows: Sequence[int] | None = None) -> list[Entry]:
        """Returns the rows of its parts, of some rows of the step or all."""
        if rows is None and self in _entries:
            return _entries[self]
        chosen = None if rows is None else set(rows)
        found = [
            Entry(number, row, self.length(row), 0 if part.first is None else part.first[row])
            for number, part in enumerate(self.parts)
            for row in part.rows
            if chosen is None or row in chosen
        ]
        if rows is None:
            _entries[self] = found
        return found

    def batches(self, rows: Sequence[int] | None = None, limit: int | None = None) -> list[list[Entry]]:
        """Returns its rows as batches.

        Args:
            rows: of the step; None for all.
            limit: rows a batch.
        """
        if rows is not None or limit is not None:
            return split(self.entries(rows), self.batch_tokens, limit)
        if self not in _batches:
            _batches[self] = split(self.entries(), self.batch_tokens, None)
        return _batches[self]

    def reach(self, facts: ModelFacts) -> int:
        """Returns how many layers stand below its last place and the last stream that it keeps."""
        if any(place.site.rank[0] == 2 for place in self.places):
            return facts.n_layers
        return max((layer + 1 for layer in [*self.keeps, *(layer for place in self.places for layer in place.site.layers)]), default=0)

    def top(self, facts: ModelFacts) -> int:
        """Returns the layer above the last one that is run."""
        return facts.n_layers if self.stops_after is None else self.stops_after + 1

    def layer_tokens(self, facts: ModelFacts) -> int:
        """Returns layers times tokens, padding counted."""
        total = 0
        for batch in self.batches():
            n = max(entry.n_run for entry in batch)
            total += n * sum(max(0, self.top(facts) - self.parts[entry.part].n_skipped) for entry in batch)
        return total

    def n_tokens(self) -> int:
        """Returns how many tokens enter at some layer, padding counted."""
        return sum(max(entry.n_run for entry in batch) * len(batch) for batch in self.batches())

    def n_head_positions(self) -> int:
        """Returns how many positions logits are computed at."""
        if self.stops_after is not None:
            return 0
        if not self.is_narrow:
            return self.n_tokens()
        return sum(
            len(batch) * max((len(head_tokens(self.parts[entry.part], entry.row)) for entry in batch), default=0)
            for batch in self.batches()
        )


_entries: WeakKeyDictionary[PhysicalPass, list[Entry]] = WeakKeyDictionary()
_batches: WeakKeyDictionary[PhysicalPass, list[list[Entry]]] = WeakKeyDictionary()
"""Rows and batches of whole passes, which every rewrite asks for again."""

MAX_KEPT_BYTES = 2 * 1024**3
"""What may be kept of one set of rows, of streams and of keys and values each."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a schedule costs, padding counted: passes, layers times tokens, and positions whose logits are computed."""

    passes: int
    layer_tokens: int
    head_positions: int


@dataclass(frozen=True, slots=True, eq=False)
class Rewritten:
    """One rewrite of a schedule: what it was made of, and what was left alone and why."""

    rewrite: str
    before: Physical
    note: str = ""


Uses = Mapping[Use, tuple[str, Mapping[str, str]]]


@dataclass(frozen=True, slots=True, eq=False)
class Physical:
    """The passes of all points, in an order in which they can run.

    Attributes:
        passes: by name.
        uses: for every pass of the plan, the part that stands for it, and what its reads are.
        facts: of the checkpoint.
        prompts: of the request.
        wanted: reads that a metric or an output is made of, with the features that are looked at; None for all.
        made: for every output, by point, step and name, what it is.
        learned: by point and step of a fit, what stands for each featurizer that it trains.
        continuing: what is generated, by name; after the passes that give its operands.
        continuations: for everything that the plan generates, what stands for it, and what its reads are.
        idle: by part, rows that are not run, since what would be written there is what stands there.
        frees_early: whether values are let go of after their last use.
        max_kept_bytes: of one set of rows, for streams, and for keys and values.
        n_runs: how often passes with writes are run over their rows, where they train.
        history: how it was made of the plan's own passes.
    """

    passes: Mapping[str, PhysicalPass]
    uses: Uses
    facts: ModelFacts
    prompts: Mapping[nodes.RowsKey, tuple[Prompt, ...]]
    wanted: Mapping[str, frozenset[int] | None] = field(default_factory=dict)
    made: Mapping[tuple[str, str, str], str] = field(default_factory=dict)
    learned: Mapping[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)
    continuing: Mapping[str, PhysicalPass] = field(default_factory=dict)
    continuations: Uses = field(default_factory=dict)
    idle: Mapping[str, frozenset[int]] = field(default_factory=dict)
    frees_early: bool = False
    max_kept_bytes: int = MAX_KEPT_BYTES
    n_runs: int = 1
    history: tuple[Rewritten, ...] = ()

    @property
    def cost(self) -> Cost:
        """What it costs."""
        passes = self.passes.values()
        return Cost(len(self.passes), sum(one.layer_tokens(self.facts) for one in passes), sum(one.n_head_positions() for one in passes))

    def rewritten(self, name: str, notes: Iterable[str] = (), **changes: object) -> Physical:
        """Returns the schedule after a rewrite, its passes in an order in which they can run, with what that saved noted."""
        after: Physical = replace(self, **changes)  # type: ignore[arg-type]
        return replace(after, passes=in_order(after), history=(*self.history, Rewritten(name, self, "; ".join(dict.fromkeys(notes)))))

    @property
    def plain(self) -> Physical:
        """The plan's own passes, that this one was made of."""
        return self.history[0].before if self.history else self


Rewrite = Callable[[Physical], Physical]


def is_at_head(place: nodes.Read | nodes.Write) -> bool:
    """Returns whether a place stands at the unembedding's result."""
    return place.site.component in ("lm_head", "logits")


def head_tokens(part: Part, row: int) -> set[int]:
    """Returns the content tokens of a row whose logits are read."""
    return {token for read in part.forward.reads if is_at_head(read) for token in part.one.windows[read.name][row].tokens}


def givers(passes: Mapping[str, PhysicalPass]) -> dict[str, list[str]]:
    """Returns which passes give a read's values, by what the read is; each of some rows that none before it gives."""
    found: dict[str, list[str]] = {}
    given: dict[str, set[int]] = {}
    for name, one in passes.items():
        for part in one.parts:
            for read in part.forward.reads:
                windows, there = part.one.windows[read.name], given.setdefault(read.name, set())
                rows = {row for row in part.rows if windows[row].tokens} - there
                if rows or read.name not in found:
                    found.setdefault(read.name, []).append(name)
                    there |= rows
    return {read: list(dict.fromkeys(names)) for read, names in found.items()}


def needs(one: PhysicalPass, by_read: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns the passes that must have run before one can."""
    before = [name for name in (one.resumes, one.prefix) if name is not None]
    return list(dict.fromkeys(before + [name for part in one.parts for read in part.operands for name in by_read.get(read, ())]))


def in_order(physical: Physical) -> dict[str, PhysicalPass]:
    """Returns the passes, each after those that it needs, else as they were."""
    by_read, ordered = givers(physical.passes), dict[str, PhysicalPass]()

    def add(name: str) -> None:
        if name not in ordered:
            for other in needs(physical.passes[name], by_read):
                if other != name:
                    add(other)
            ordered.setdefault(name, physical.passes[name])

    for name in physical.passes:
        add(name)
    return ordered


def plain_schedule(request: nodes.Request, schedules: Sequence[Schedule], training: str | None = None) -> Physical:
    """Returns the plan's own passes as a physical schedule, one for one.

    Args:
        request: what is run.
        schedules: of its points.
        training: the fit whose own passes these are; what it trains is not learned yet.
    """
    passes: dict[str, PhysicalPass] = {}
    uses: dict[Use, tuple[str, Mapping[str, str]]] = {}
    wanted: dict[str, frozenset[int] | None] = {}
    made: dict[tuple[str, str, str], str] = {}
    learned: dict[tuple[str, str], Mapping[str, str]] = {}
    continuing: dict[str, PhysicalPass] = {}
    continuations: dict[Use, tuple[str, Mapping[str, str]]] = {}
    for schedule in schedules:
        found = identities(schedule, training)
        learned |= {(schedule.point.label, step): keys for step, keys in found.learned.items()}
        by_step = {step.step.name: step for step in schedule.steps}
        for use, identity in found.passes.items():
            one = by_step[use.step].passes[use.intervention][use.index]
            name = f"{identity.key}/{len(passes)}"
            part = Part(name, identity.key, _renamed(one, identity), 1, tuple(range(one.forward.n_rows)))
            passes[name] = PhysicalPass((part,), identity.scope, lengths_of(one.forward, request.prompts))
            uses[use] = (name, identity.values)
        for use, identity in found.generations.items():
            one = _renamed(by_step[use.step].generations[use.intervention][use.index], identity)
            continuing[identity.key] = _also(continuing.get(identity.key), one, identity, request.prompts)
            continuations[use] = (identity.key, identity.values)
        for read, features in found.wanted.items():
            before = wanted.get(read, frozenset())
            wanted[read] = None if before is None or features is None else before | features
        for step in schedule.steps:
            made |= {(schedule.point.label, step.step.name, output.name): found.outputs[output.name] for output in step.step.outputs}
    return Physical(passes, uses, request.facts, request.prompts, wanted, made, learned, continuing, continuations)


def _also(known: PhysicalPass | None, one: Pass, identity: Identity, prompts: Mapping[nodes.RowsKey, Sequence[Prompt]]) -> PhysicalPass:
    """Returns what is generated, with what was read of it before and what is now."""
    if known is not None:
        places, windows = list(one.forward.places), dict(one.windows)
        for read in known.forward.reads:
            if all(read.name != other.name for other in places):
                places.append(read)
                windows[read.name] = known.part.one.windows[read.name]
        one = one.only(places, windows)
    lengths = continued_lengths(one.forward, prompts)
    part = Part(identity.key, identity.key, one, 1, tuple(range(one.forward.n_rows)))
    return PhysicalPass((part,), identity.scope, lengths, is_narrow=True)


def _renamed(one: Pass, identity: Identity) -> Pass:
    """Returns a pass whose reads, outputs and featurizers are named by what they are, each read once."""
    places: list[nodes.Read | nodes.Write] = []
    own = identity.values
    for place in one.forward.places:
        if isinstance(place, nodes.Read):
            if all(own[place.name] != other.name for other in places):
                places.append(replace(place, name=own[place.name], featurizer=None))
            continue
        operand = place.operand
        if isinstance(operand, nodes.FromRead):
            operand = replace(operand, read=own.get(operand.read) or identity.operands[place.name])
        elif isinstance(operand, nodes.FromOutput):
            operand = replace(operand, output=identity.operands[place.name])
        places.append(replace(place, operand=operand, featurizer=identity.featurizers.get(place.name)))
    names = {place.name: place.name for place in one.forward.writes} | dict(own)
    windows = {names[name]: found for name, found in one.windows.items()}
    keys = {names[name]: found for name, found in one.keys.items()}
    return Pass(replace(one.forward, places=tuple(places)), windows, keys, one.missing, one.whole)


def lengths_of(forward: nodes.Forward, prompts: Mapping[nodes.RowsKey, Sequence[Prompt]]) -> tuple[int, ...]:
    """Returns how many tokens each row of a forward has, answers counted."""
    rows = prompts[forward.rows]
    extra = [0] * len(rows) if forward.appended is None else [len(answer) for answer in forward.appended]
    return tuple(prompt.n_tokens + n for prompt, n in zip(rows, extra, strict=True))


def continued_lengths(forward: nodes.Forward, prompts: Mapping[nodes.RowsKey, Sequence[Prompt]]) -> tuple[int, ...]:
    """Returns how many tokens each row of a forward has at most, with what is generated."""
    n_new = 0 if forward.decode is None else forward.decode.max_new_tokens
    return tuple(prompt.n_tokens + n_new for prompt in prompts[forward.rows])
