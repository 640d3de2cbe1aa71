"""The physical schedule: the passes that are run, what each leaves out, and what that saved. Immutable, and prints itself.

It begins as the plan's own passes, one for one; each rewrite turns it into one that gives the same numbers with less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from causalab_mini.model.facts import ModelFacts
from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.identity import Identity, Use, identities
from causalab_mini.schedule.schedule import Pass, Schedule


@dataclass(frozen=True, slots=True, eq=False)
class PhysicalPass:
    """One forward that is run.

    Attributes:
        key: what it is; passes of one key give the same numbers at every place.
        one: its places; reads are named by what they are, so that nothing here depends on a point's names.
        scope: empty, or the step whose rows are known only when it runs.
        n_uses: how many passes of the plan it stands for; 0 for one that a rewrite added.
        n_tokens: of all its rows, without padding.
        keeps: layers whose leaving stream is kept for later passes.
        n_skipped: layers from the bottom that are not run.
        resumes: the pass that kept the stream above them.
        stops_after: the last layer that is run; None where the forward goes to its end.
        is_narrow: whether logits are computed at the positions alone that are read.
    """

    key: str
    one: Pass
    scope: str
    n_uses: int
    n_tokens: int
    keeps: tuple[int, ...] = ()
    n_skipped: int = 0
    resumes: str | None = None
    stops_after: int | None = None
    is_narrow: bool = False

    @property
    def forward(self) -> nodes.Forward:
        """Its places in forward order."""
        return self.one.forward

    def n_layers(self, facts: ModelFacts) -> int:
        """Returns how many layers are run."""
        top = facts.n_layers if self.stops_after is None else self.stops_after + 1
        return max(0, top - self.n_skipped)

    def n_head_positions(self, facts: ModelFacts) -> int:
        """Returns how many positions logits are computed at."""
        if self.stops_after is not None:
            return 0
        if not self.is_narrow:
            return self.n_tokens
        return sum(
            len({token for read in self.forward.reads if is_at_head(read) for token in self.one.windows[read.name][row].tokens})
            for row in range(self.forward.n_rows)
        )


@dataclass(frozen=True, slots=True)
class Cost:
    """What a schedule costs: passes, layer·tokens, and positions whose logits are computed; padding is not counted."""

    passes: int
    layer_tokens: int
    head_positions: int


@dataclass(frozen=True, slots=True)
class Saving:
    """What one rewrite did, or why it did nothing."""

    rewrite: str
    before: Cost
    after: Cost
    note: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Physical:
    """The passes of all points, in the order in which they are first needed.

    Attributes:
        passes: by key, or by use where nothing is shared yet.
        uses: for every pass of the plan, which pass stands for it, and what its reads are.
        facts: of the checkpoint.
        savings: what each rewrite did.
    """

    passes: Mapping[str, PhysicalPass]
    uses: Mapping[Use, tuple[str, Mapping[str, str]]]
    facts: ModelFacts
    savings: tuple[Saving, ...] = ()

    @property
    def cost(self) -> Cost:
        """What it costs."""
        passes = self.passes.values()
        return Cost(
            len(self.passes),
            sum(one.n_tokens * one.n_layers(self.facts) for one in passes),
            sum(one.n_head_positions(self.facts) for one in passes),
        )

    def rewritten(
        self, name: str, passes: Mapping[str, PhysicalPass], uses: Mapping[Use, tuple[str, Mapping[str, str]]] | None = None, note: str = ""
    ) -> Physical:
        """Returns the schedule after a rewrite, with what that saved noted."""
        after = replace(self, passes=dict(passes), uses=self.uses if uses is None else uses)
        return replace(after, savings=(*self.savings, Saving(name, self.cost, after.cost, note)))


Rewrite = Callable[[Physical], Physical]


def is_at_head(place: nodes.Read | nodes.Write) -> bool:
    """Returns whether a place stands at the unembedding's result."""
    return place.site.component in ("lm_head", "logits")


def plain_schedule(request: nodes.Request, schedules: Sequence[Schedule]) -> Physical:
    """Returns the plan's own passes as a physical schedule, one for one."""
    passes: dict[str, PhysicalPass] = {}
    uses: dict[Use, tuple[str, Mapping[str, str]]] = {}
    for schedule in schedules:
        found = identities(schedule)
        by_step = {step.step.name: step for step in schedule.steps}
        for use, identity in found.items():
            one = by_step[use.step].passes[use.intervention][use.index]
            name = f"{identity.key}/{len(passes)}"
            passes[name] = PhysicalPass(identity.key, _renamed(one, identity), identity.scope, 1, _n_tokens(request, one.forward))
            uses[use] = (name, identity.values)
    return Physical(passes, uses, request.facts)


def _renamed(one: Pass, identity: Identity) -> Pass:
    """Returns a pass whose reads are named by what they are, each once."""
    places: list[nodes.Read | nodes.Write] = []
    own = identity.values
    for place in one.forward.places:
        if isinstance(place, nodes.Read):
            if all(own[place.name] != other.name for other in places):
                places.append(replace(place, name=own[place.name]))
        elif isinstance(place.operand, nodes.FromRead):
            read = own.get(place.operand.read) or identity.operands[place.name]
            places.append(replace(place, operand=replace(place.operand, read=read)))
        else:
            places.append(place)
    names = {place.name: place.name for place in one.forward.writes} | dict(own)
    windows = {names[name]: found for name, found in one.windows.items()}
    keys = {names[name]: found for name, found in one.keys.items()}
    return Pass(replace(one.forward, places=tuple(places)), windows, keys, one.missing)


def _n_tokens(request: nodes.Request, forward: nodes.Forward) -> int:
    extra = 0 if forward.appended is None else sum(map(len, forward.appended))
    return sum(prompt.n_tokens for prompt in request.prompts[forward.rows]) + extra


def verify(physical: Physical) -> list[str]:
    """Returns the laws that a physical schedule breaks; an empty list is a sound one.

    Every use has a pass that reads all it needs; an operand is read by an earlier pass or lower in the same one; a pass that skips layers
    reads and writes nothing below them, and its stream is kept by an earlier pass; a pass that stops early reads nothing above.
    """
    broken: list[str] = []
    read_so_far: set[str] = set()
    kept: set[tuple[str, int]] = set()
    for name, one in physical.passes.items():
        own = {read.name for read in one.forward.reads}
        for write in one.forward.writes:
            if isinstance(write.operand, nodes.FromRead) and write.operand.read not in read_so_far | own:
                broken.append(f"`{name}` writes `{write.operand.read}` before it is read")
        layers = [layer for place in one.forward.places for layer in place.site.layers]
        lowest = min((place.site.rank for place in one.forward.places), default=(2, 0, 0))
        if one.n_skipped:
            if (one.resumes, one.n_skipped - 1) not in kept:
                broken.append(f"`{name}` resumes from a stream that nobody kept")
            if lowest[0] == 0 or min(layers, default=one.n_skipped) < one.n_skipped - 1:
                broken.append(f"`{name}` skips layers that it reads or writes")
        if one.stops_after is not None and (
            max(layers, default=0) > one.stops_after or any(place.site.rank[0] == 2 for place in one.forward.places)
        ):
            broken.append(f"`{name}` stops before its last place")
        if one.is_narrow and any(is_at_head(write) for write in one.forward.writes):
            broken.append(f"`{name}` writes logits that it does not compute")
        read_so_far |= own
        kept |= {(name, layer) for layer in one.keeps}
    for use, (name, values) in physical.uses.items():
        if name not in physical.passes or not set(values.values()) <= {read.name for read in physical.passes[name].forward.reads}:
            broken.append(f"{use} has no pass that reads all it needs")
    return broken


def text(physical: Physical) -> str:
    """Returns a schedule for a person: a line a pass, and what each rewrite saved."""
    names = {name: f"#{number}" for number, name in enumerate(physical.passes, 1)}
    lines = []
    for name, one in physical.passes.items():
        forward = one.forward
        what = f"'{forward.model}' on '{forward.role}'" if one.n_uses else f"clean '{forward.role}', for others to resume from"
        answers = " + answers" if forward.appended is not None else ""
        layers = _layers(one, physical.facts)
        head = "no head" if one.stops_after is not None else f"head at {one.n_head_positions(physical.facts)} of {one.n_tokens} positions"
        details = [
            f"{forward.n_rows} rows, {one.n_tokens} tokens",
            layers,
            head,
            f"{len(forward.reads)} read{'' if len(forward.reads) == 1 else 's'}",
        ]
        if forward.writes:
            sites = list(dict.fromkeys(str(write.site) for write in forward.writes))
            details.append(f"writes {', '.join(sites[:3])}{' …' if len(sites) > 3 else ''}")
        if one.resumes is not None:
            details.append(f"resumes {names[one.resumes]}")
        if one.keeps:
            details.append(f"keeps {len(one.keeps)} stream{'' if len(one.keeps) == 1 else 's'}")
        if one.n_uses > 1:
            details.append(f"stands for {one.n_uses} passes")
        lines.append(f"{names[name]:>5}  {what}{answers}: {'; '.join(details)}")
    lines.append("rewrite            passes        layer·tokens          head positions")
    for saving in physical.savings:
        a, b = saving.before, saving.after
        change = f"{a.passes:>6} → {b.passes:<6} {a.layer_tokens:>9} → {b.layer_tokens:<9} {a.head_positions:>7} → {b.head_positions:<7}"
        lines.append(f"{saving.rewrite:<17} {change if a != b else 'nothing to save'} {saving.note}".rstrip())
    return "\n".join(lines)


def _layers(one: PhysicalPass, facts: ModelFacts) -> str:
    last = facts.n_layers - 1 if one.stops_after is None else one.stops_after
    if one.n_skipped > last:
        return "no layers"
    return f"layer {last}" if one.n_skipped == last else f"layers {one.n_skipped}–{last}"


def data(physical: Physical) -> dict[str, Any]:
    """Returns a schedule as JSON data."""
    names = {name: number for number, name in enumerate(physical.passes, 1)}
    return {
        "passes": [
            {
                "pass": names[name],
                "model": one.forward.model,
                "role": one.forward.role,
                "n_rows": one.forward.n_rows,
                "n_tokens": one.n_tokens,
                "first_layer": one.n_skipped,
                "last_layer": physical.facts.n_layers - 1 if one.stops_after is None else one.stops_after,
                "head_positions": one.n_head_positions(physical.facts),
                "n_reads": len(one.forward.reads),
                "n_writes": len(one.forward.writes),
                "n_uses": one.n_uses,
                "resumes": None if one.resumes is None else names[one.resumes],
                "keeps": list(one.keeps),
            }
            for name, one in physical.passes.items()
        ],
        "rewrites": [
            {"rewrite": saving.rewrite, "before": _cost(saving.before), "after": _cost(saving.after), "note": saving.note}
            for saving in physical.savings
        ],
    }


def _cost(cost: Cost) -> dict[str, int]:
    return {"passes": cost.passes, "layer_tokens": cost.layer_tokens, "head_positions": cost.head_positions}
