"""The plan: what must be read and written where, in which forwards, over which rows. Frozen, without tensors, without results.

Every position stays as it was written, with the text of each row's anchor beside it; the schedule turns them into indices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from causalab_mini.data.parameters import Parameters
from causalab_mini.data.prompts import Prompt
from causalab_mini.data.table import Table
from causalab_mini.errors import PlanError, Problem
from causalab_mini.model.components import COMPONENTS, forward_rank
from causalab_mini.model.facts import ModelFacts
from causalab_mini.plan.position import Position
from causalab_mini.plan.spec import Decode, Optimizer, Params
from causalab_mini.probing.request import Watched
from causalab_mini.probing.spec import ProbeSpec

__all__ = [
    "Attribute",
    "Featurizer",
    "Fit",
    "FitProbe",
    "Forward",
    "Observe",
    "Plan",
    "PlanError",
    "Read",
    "Request",
    "Site",
    "Stream",
    "Weights",
    "Write",
]

RowsKey = tuple[str, str]
"""A ref and a field: what prompts are made of."""


@dataclass(frozen=True, slots=True)
class Site:
    """A place with its layers counted from 0.

    Attributes:
        layers: empty for what belongs to the whole model.
        is_stacked: whether values have a layer axis.
        heads, units: which part of the width; None for all of it.
    """

    component: str
    layers: tuple[int, ...]
    is_stacked: bool
    heads: tuple[int, ...] | None
    units: tuple[int, ...] | None

    @property
    def addresses(self) -> tuple[int | None, ...]:
        """The layer of each address, in listed order; one None for what belongs to the whole model."""
        return self.layers or (None,)

    @property
    def rank(self) -> tuple[int, int, int]:
        """When a forward first passes it."""
        return min(forward_rank(self.component, layer) for layer in self.addresses)

    @property
    def last_rank(self) -> tuple[int, int, int]:
        """When a forward last passes it."""
        return max(forward_rank(self.component, layer) for layer in self.addresses)

    def __str__(self) -> str:
        text = self.component + (f"[{','.join(map(str, self.layers))}]" if self.layers else "")
        if self.heads is not None:
            text += f".heads[{','.join(map(str, self.heads))}]"
        return text + (f".units[{','.join(map(str, self.units))}]" if self.units is not None else "")


@dataclass(frozen=True, slots=True)
class Featurizer:
    """Coordinates of a place, with where their parameters come from.

    Attributes:
        site: where it is used; None for a part of a chain that does not come first.
        d: width of what it is given.
        n_features: width of what it gives.
        parametrization: of a trained basis.
        init, seed: how parameters are drawn that nothing else gives.
        file, sha256: of the file that gives them.
        sources: outputs of earlier steps that give them, by parameter.
        activation, topk: of a dictionary.
        parts: of a chain.
        trained_by: the step that trains it.
        learned: what stands for what that step makes of it, where schedules name things by what they are.
    """

    name: str
    kind: str
    site: Site | None
    d: int
    n_features: int
    parametrization: str | None = None
    init: str = "random"
    seed: int = 0
    file: Parameters | None = field(default=None, hash=False, compare=False, repr=False)
    sha256: str = ""
    sources: tuple[tuple[str, str], ...] = ()
    activation: str | None = None
    topk: int | None = None
    parts: tuple[Featurizer, ...] = ()
    trained_by: str | None = None
    learned: str | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        """The outputs, and what fits make, that it is made of."""
        own = [output for _, output in self.sources] + ([self.learned] if self.learned is not None else [])
        return (*own, *(need for part in self.parts for need in part.needs))

    @property
    def all(self) -> tuple[Featurizer, ...]:
        """Itself and its parts."""
        return (*self.parts, self)

    def __str__(self) -> str:
        if self.parts:
            return f"{self.name} ({' → '.join(map(str, self.parts))})"
        rank = "" if self.n_features == self.d else f", k={self.n_features}"
        return f"{self.name} ({self.kind}{rank})"


Anchors = tuple[str | None, ...]
"""The text of a position's anchor, row by row; None where a row has none."""


@dataclass(frozen=True, slots=True)
class Read:
    """A value that is taken out of a forward; `is_hidden` for those that the compiler added."""

    name: str
    site: Site
    pos: Position
    anchors: Anchors | None
    view: str = "raw"
    is_hidden: bool = False
    keys: Position | None = None
    key_anchors: Anchors | None = None
    featurizer: Featurizer | None = None


@dataclass(frozen=True, slots=True)
class FromRead:
    """An operand that is a read; with `derangement`, row by row another row's value, by a draw from that text."""

    read: str
    derangement: str | None = None


@dataclass(frozen=True, slots=True)
class FromOutput:
    """An operand that is an output of an earlier step; `groups` names each row's group of a `mean_by`."""

    output: str
    groups: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Constant:
    """An operand that is a number."""

    value: float


Operand = FromRead | FromOutput | Constant


@dataclass(frozen=True, slots=True)
class WritePart:
    """A part of a write that is made alone.

    Attributes:
        entry: which of its site's layers, as the operand counts them.
        token: which of the tokens that it lands on, in each row.
        head: which of its site's heads; None for all.
    """

    entry: int
    token: int
    head: int | None


@dataclass(frozen=True, slots=True)
class Write:
    """A change that is made in a forward.

    Attributes:
        order: its place in the model's list, which counts where writes meet.
        featurizer: the coordinates in which the value is changed; None for the site's own.
        features: which of them; None for all.
        part: what of it is made; None for all.
        is_control: whether it is run even where it provably changes nothing.
        like: a read without whose value a row is not written, beside the operand.
    """

    name: str
    site: Site
    pos: Position
    anchors: Anchors | None
    mechanism: str
    operand: Operand | None
    params: Params
    align: str
    order: int = 0
    keys: Position | None = None
    key_anchors: Anchors | None = None
    featurizer: Featurizer | None = None
    features: tuple[int, ...] | None = None
    part: WritePart | None = None
    is_control: bool = False
    like: str | None = None


@dataclass(frozen=True, slots=True)
class Forward:
    """One run of the checkpoint over a role's rows, with its writes and reads in forward order.

    Attributes:
        model: `original`, or the intervened model's name.
        role: whose prompts.
        rows: which prompts.
        n_rows, n_tokens: rows, and tokens of the longest.
        places: writes and reads, as the forward passes them; at one place writes come first.
        appended: tokens after each row's prompt (an answer that is scored), None where there are none.
        decode: how a continuation is generated; None where none is. Then its reads are of the generated frame, and its writes of both.
    """

    model: str
    role: str
    rows: RowsKey
    n_rows: int
    n_tokens: int
    places: tuple[Write | Read, ...]
    appended: tuple[tuple[int, ...], ...] | None = None
    decode: Decode | None = None

    @property
    def is_plain(self) -> bool:
        """Whether every position is a plain integer, so that every row and run resolves to the same tokens."""
        places = [place for place in self.places if not (isinstance(place, Read) and place.is_hidden)]
        return all(pos.is_plain_index for place in places for pos in (place.pos, place.keys) if pos is not None)

    @property
    def reads(self) -> tuple[Read, ...]:
        """Its reads, in forward order."""
        return tuple(place for place in self.places if isinstance(place, Read))

    @property
    def writes(self) -> tuple[Write, ...]:
        """Its writes, in forward order of the first layer of each."""
        return tuple(place for place in self.places if isinstance(place, Write))


@dataclass(frozen=True, slots=True)
class BadCell:
    """A cell of a column that can't be scored with, on a row that a `where` may still leave out."""

    problem: Problem


@dataclass(frozen=True, slots=True)
class Metric:
    """A score of a read, with the tokens that each row is compared with.

    Attributes:
        reads: read names by what they are for (`of`, `against`, …).
        tokens: token ids by column key; a row's is None where its cell is empty.
        options: what else the kind has (`k`, `how`).
        inner: the metric that `recovered` is made of.
        run: the model and role whose continuation is scored; None for a metric of reads.
    """

    name: str
    kind: str
    unit: str
    reads: Mapping[str, str] = field(hash=False)
    tokens: Mapping[str, tuple[Any, ...]] = field(hash=False)
    options: Mapping[str, Any] = field(hash=False)
    inner: Metric | None = None
    run: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Intervention:
    """One experiment.

    Attributes:
        forwards: over prompts, in the order in which they can run.
        metrics: its scores.
        path: where the document has it.
        generations: what is generated, after all of the forwards.
    """

    name: str
    forwards: tuple[Forward, ...]
    metrics: tuple[Metric, ...]
    path: str = ""
    generations: tuple[Forward, ...] = ()

    @property
    def runs(self) -> tuple[Forward, ...]:
        """All that is run."""
        return (*self.forwards, *self.generations)

    def forward_of(self, read: str) -> Forward:
        """Returns the forward that a read belongs to."""
        return next(forward for forward in self.runs if any(entry.name == read for entry in forward.reads))

    def read(self, name: str) -> Read:
        """Returns a read by name."""
        return next(entry for forward in self.runs for entry in forward.reads if entry.name == name)

    def is_rectangle(self, read: Read) -> bool:
        """Returns whether a read has as many tokens on every row."""
        if read.pos.width is None or read.pos.scope is not None:
            return False
        decode = self.forward_of(read.name).decode
        return decode is None or decode.ignore_eos  # then every row has all its tokens

    def name_of_generation(self, forward: Forward) -> str:
        """Returns what a continuation is called."""
        roles = {other.role for other in self.runs if other.model == forward.model}
        return f"{forward.model}.generated" if len(roles) == 1 else f"{forward.model}.{forward.role}.generated"


@dataclass(frozen=True, slots=True)
class Output:
    """A read's values for later steps; `groups` names each row's group of a `mean_by`."""

    name: str
    intervention: str
    read: str
    reduce: str
    k: int | None = None
    groups: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """One output minus another."""

    name: str
    minuend: str
    subtrahend: str
    is_unit: bool


@dataclass(frozen=True, slots=True)
class Where:
    """The rows that run: those whose value of an earlier metric lies in a range."""

    step: str
    intervention: str
    metric: str
    least: float | None
    greatest: float | None


@dataclass(frozen=True, slots=True)
class SaveNode:
    """A file of a step: which value, and where below the point's folder."""

    intervention: str | None
    value: str
    file_path: str


@dataclass(frozen=True, slots=True)
class Control:
    """A control experiment beside an intervention of a step.

    Attributes:
        kind: which control.
        of: the intervention's name.
        draws: what is run, one intervention a draw.
        reference: what its metrics must equal, of a control that changes nothing.
    """

    kind: str
    of: str
    draws: tuple[Intervention, ...]
    reference: Intervention | None = None

    @property
    def experiments(self) -> tuple[Intervention, ...]:
        """All that is run for it."""
        return self.draws if self.reference is None else (*self.draws, self.reference)


@dataclass(frozen=True, slots=True)
class Observe:
    """A step that runs interventions over rows.

    Attributes:
        labels: the rows' `example_id`, or their numbers.
        rows: which prompts each role has.
        outputs: each difference after its parts.
        is_list: whether values and files are kept apart by intervention.
        controls: experiments beside the interventions.
    """

    name: str
    labels: tuple[str, ...]
    rows: Mapping[str, RowsKey] = field(hash=False)
    interventions: tuple[Intervention, ...]
    outputs: tuple[Output | Difference, ...]
    saves: tuple[SaveNode, ...]
    where: Where | None
    is_list: bool
    controls: tuple[Control, ...] = ()

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return len(self.labels)

    @property
    def experiments(self) -> tuple[Intervention, ...]:
        """All that is run: the interventions, then their controls."""
        return (*self.interventions, *(item for control in self.controls for item in control.experiments))

    def intervention(self, name: str) -> Intervention:
        """Returns an intervention, or a control's, by name."""
        return next(item for item in self.experiments if item.name == name)


@dataclass(frozen=True, slots=True)
class Term:
    """What is made small by a fit.

    Attributes:
        weight: times which.
        intervention, metric: the mean of a metric; empty for a penalty.
        gate, penalty: `mask` or `units` of a gate.
    """

    weight: float
    intervention: str = ""
    metric: str = ""
    gate: str = ""
    penalty: str = ""


@dataclass(frozen=True, slots=True)
class Fit:
    """A step that trains featurizers.

    Attributes:
        training: its interventions over the rows that are trained on.
        evaluation: the same, with controls, over those that it is judged on, with what was learned.
        params: the featurizers that are trained.
        score: the intervention and metric that say which epoch is best, with whether more is better; None for the objective.
        patience: epochs without a better one after which training ends; None for never.
    """

    name: str
    training: Observe
    evaluation: Observe
    params: tuple[Featurizer, ...]
    objective: tuple[Term, ...]
    epochs: int
    pairs: int
    seed: int
    optimizer: Optimizer
    anneal: Mapping[str, tuple[float, float]] = field(hash=False)
    score: tuple[str, str, bool] | None
    patience: int | None
    keep: str
    saves: tuple[SaveNode, ...]

    @property
    def n_rows(self) -> int:
        """How many rows are trained on."""
        return self.training.n_rows

    @property
    def n_updates(self) -> int:
        """How many updates there are at most, where no row is left out."""
        return self.epochs * -(-self.n_rows // self.pairs)


@dataclass(frozen=True, slots=True)
class Weights:
    """A step that publishes parameters of featurizers."""

    name: str
    featurizers: tuple[Featurizer, ...]
    saves: tuple[SaveNode, ...]


@dataclass(frozen=True, slots=True)
class Attribute:
    """A step that estimates by gradients what each write would do.

    Attributes:
        observed: the intervention over the rows.
        metric: whose change is estimated.
        n_steps: gradients a value: 1 where nothing is written, or as many on the way to what is.
        verify_top: how many of the largest estimates are run exactly; None for none.
    """

    name: str
    observed: Observe
    metric: str
    method: str
    n_steps: int
    verify_top: int | None
    saves: tuple[SaveNode, ...]

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return self.observed.n_rows


@dataclass(frozen=True, slots=True)
class Stream:
    """A step that generates from prompts, and records at points meanwhile.

    Attributes:
        labels: the rows' `example_id`, or their numbers.
        role: whose prompts.
        rows: which prompts.
        watched: the points, and what makes their probes.
        decode: how the model goes on.
        n_tokens: of each row's prompt.
    """

    name: str
    labels: tuple[str, ...]
    role: str
    rows: RowsKey
    watched: Watched = field(hash=False)
    decode: Decode
    saves: tuple[SaveNode, ...]
    n_tokens: tuple[int, ...]

    @property
    def spec(self) -> ProbeSpec:
        """The points."""
        return self.watched.spec

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return len(self.labels)


Label = str | int | bool | float
"""What a probe reads out of a row."""


@dataclass(frozen=True, slots=True)
class FitProbe:
    """A step that trains a linear probe on what an earlier step has read.

    Attributes:
        labels: the rows' `example_id`, or their numbers.
        rows: which prompts each role has.
        features: the output that is trained on.
        source: the step that makes it.
        intervention: of that step.
        model: whose read it is.
        read: what it is of.
        column: of the labels.
        targets: the label of each row; None where it has none.
        classes: the labels that there are, sorted; empty for `ridge`.
        groups: by row, counted from 0: rows of equal prompts are of one group.
    """

    name: str
    labels: tuple[str, ...]
    rows: Mapping[str, RowsKey] = field(hash=False)
    features: str
    source: str
    intervention: str
    model: str
    read: Read
    column: str
    targets: tuple[Label | None, ...]
    classes: tuple[str | int | bool, ...]
    groups: tuple[int, ...]
    probe: str
    folds: int
    seed: int
    saves: tuple[SaveNode, ...]

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return len(self.labels)


Step = Observe | Fit | Weights | Attribute | Stream | FitProbe


def observed_by(step: Step) -> tuple[Observe, ...]:
    """Returns what a step runs over rows, in that order."""
    match step:
        case Observe():
            return (step,)
        case Fit():
            return (step.training, step.evaluation)
        case Attribute():
            return (step.observed,)
    return ()


@dataclass(frozen=True, slots=True)
class Plan:
    """All steps of one experiment."""

    steps: tuple[Step, ...]

    def step(self, name: str) -> Step:
        """Returns a step by name."""
        return next(step for step in self.steps if step.name == name)


@dataclass(frozen=True, slots=True)
class PlannedPoint:
    """One experiment of a request.

    Attributes:
        meaning: what the digest is of: the document in its one spelling, as JSON data.
        tables: the refs that it reads.
        files: the paths of featurizers and probes that it reads.
    """

    label: str
    values: Mapping[str, Any] = field(hash=False)
    digest: str
    plan: Plan
    meaning: Mapping[str, Any] = field(hash=False, default_factory=dict)
    tables: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """Everything that a run needs beside weights: plans, prompts, facts. Holds no engine.

    Attributes:
        document: the raw document, as authored.
        digest: of all points.
        axes: values of every sweep axis.
        points: the experiments.
        prompts: by ref and field.
        tables: by ref.
        facts: of the checkpoint.
        files: checksums of the files of featurizers and probes, by path.
    """

    document: Any
    digest: str
    axes: Mapping[str, tuple[Any, ...]]
    points: tuple[PlannedPoint, ...]
    prompts: Mapping[RowsKey, tuple[Prompt, ...]]
    tables: Mapping[str, Table]
    facts: ModelFacts
    files: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        from causalab_mini.plan.explain import explain

        return explain(self)


def verify(plan: Plan) -> list[str]:
    """Returns the laws that a plan breaks; an empty list is a sound plan.

    Places of a forward are in forward order; an operand is read before it is written; names are there that are referred to.
    """
    observed = [observe for step in plan.steps for observe in observed_by(step)]
    return [law for observe in observed for intervention in observe.experiments for law in _broken(observe, intervention)]


def _broken(step: Observe, intervention: Intervention) -> Iterator[str]:
    where = f"{step.name}/{intervention.name}"
    read_so_far: set[str] = set()
    for forward in intervention.runs:
        ranks = [place.site.rank for place in forward.places]
        if ranks != sorted(ranks):
            yield f"{where}: the places of `{forward.model}` on `{forward.role}` are not in forward order"
        if forward.n_rows != step.n_rows:
            yield f"{where}: `{forward.model}` on `{forward.role}` has {forward.n_rows} rows, the step {step.n_rows}"
        for place in forward.places:
            if place.anchors is not None and len(place.anchors) != forward.n_rows:
                yield f"{where}: `{place.name}` has {len(place.anchors)} anchors for {forward.n_rows} rows"
            if isinstance(place, Write) and isinstance(place.operand, FromRead) and place.operand.read not in read_so_far:
                yield f"{where}: `{place.name}` is written before `{place.operand.read}` is read"
            if isinstance(place, Read):
                read_so_far.add(place.name)
            if isinstance(place, Write) and not COMPONENTS[place.site.component].is_writable:
                yield f"{where}: `{place.name}` writes `{place.site.component}`"
    for metric in intervention.metrics:
        for name in metric.reads.values():
            if name not in read_so_far:
                yield f"{where}: `{metric.name}` scores `{name}`, which is not read"
