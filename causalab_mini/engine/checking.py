"""The checks of a run: rows alone against the batch, the schedule against the plan's own passes, writes that fired, places as tokens.

Rows alone are run under hooks of their own, the plan's passes by the engine without any rewrite; in a long run a sample of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from causalab_mini.engine.alone import observe_alone, why_not_alone
from causalab_mini.engine.contract import Engine
from causalab_mini.engine.featurizers import Featurizers
from causalab_mini.engine.loading import DTYPES
from causalab_mini.engine.made import OutputTensors
from causalab_mini.engine.observe import Observed, observe, write_key
from causalab_mini.engine.sizes import Sizes, is_out_of_memory
from causalab_mini.evidence.checks import TOLERANCE, Check, check_control, check_passes, check_places, check_rows, check_writes
from causalab_mini.model.components import COMPONENTS
from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.located import Schedule, StepSchedule
from causalab_mini.schedule.physical import Physical
from causalab_mini.schedule.rewrites.bucket import FIXED_OPERATIONS
from causalab_mini.schedule.rewrites.direct import operations, operations_of

LONG_OPERATIONS = 6e11
"""What some ten seconds of a CPU core compute: a run of less is checked at every point."""
STEP = {name: torch.finfo(dtype).eps for name, dtype in DTYPES.items()}
"""Between a number and the next that a dtype has, at most, as a share of it."""
SHARE = 0.05
"""Of what a longer run computes, what its checks may."""


@dataclass(frozen=True, slots=True)
class _Case:
    """An intervention that is checked: what it is called, what it found, what it stood on, and which of its reads are compared."""

    name: str
    schedule: StepSchedule
    intervention: nodes.Intervention
    observed: Observed
    outputs: OutputTensors
    featurizers: Featurizers
    compared: Sequence[str]


class Checking:
    """Checks the interventions of a run as they come.

    Args:
        engine: the checkpoint.
        request: what is run.
        schedules: of all points.
        physical: what is run of it.
        level: `sample`: of each intervention one row alone and one in the plan's own passes, or of as many as a twentieth of a long run pays
            for, the first always; `full`: every row.
        batch_size: rows a batch of the plan's own passes; None for what fits.
    """

    def __init__(
        self,
        engine: Engine,
        request: nodes.Request,
        schedules: Sequence[Schedule],
        physical: Physical,
        level: Literal["sample", "full"],
        batch_size: int | None = None,
    ) -> None:
        self.engine = engine
        self.sizes = Sizes(engine.facts, batch_size, engine.memory)
        self.request = request
        self.level = level
        self.is_rewritten = bool(physical.history)
        self.ends: dict[tuple[tuple[nodes.RowsKey, ...], tuple[int, ...]], tuple[int, int]] = {}
        facts = request.facts
        a_token = operations_of(facts) * facts.n_layers + 2.0 * facts.hidden * facts.vocabulary
        self.costs = {}
        for schedule in schedules:
            for step in schedule.steps:
                for intervention in step.step.experiments:
                    rows = range(step.step.n_rows)
                    once = [row for sampled in self.sampled(intervention, rows) for row in sampled]
                    tokens = sum(_n_tokens(forward, request, row) for forward in intervention.runs for row in once)
                    n_forwards = len(once) * len(intervention.runs)
                    self.costs[id(step), intervention.name] = a_token * tokens + FIXED_OPERATIONS * n_forwards
        run = sum(operations(one, facts) + FIXED_OPERATIONS for one in physical.passes.values())
        self.allowed = None if level == "full" or run + sum(self.costs.values()) < LONG_OPERATIONS else SHARE * run
        self.n_seen = 0
        self.spent = 0.0

    def sampled(self, intervention: nodes.Intervention, rows: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        """Returns which of the rows that run are run alone, and which in the plan's own passes.

        Of a sample: the one with the fewest tokens, on which a fault of padding, masks or positions would show, and the one with the most, of
        which most is left out. Rows that take each other's values are run together, and none alone.
        """
        deranges_rows = deranges(intervention)
        if self.level == "full" or deranges_rows:
            return (() if deranges_rows else rows), (rows if self.is_rewritten else ())
        prompts = tuple(forward.rows for forward in intervention.runs)
        key = prompts, tuple(rows)
        if key not in self.ends:
            n_tokens = {row: sum(self.request.prompts[of_role][row].n_tokens for of_role in prompts) for row in rows}
            self.ends[key] = min(rows, key=n_tokens.__getitem__), max(rows, key=n_tokens.__getitem__)
        shortest, longest = self.ends[key]
        return (shortest,), ((longest,) if self.is_rewritten else ())

    def wants(self, schedule: StepSchedule, intervention: nodes.Intervention) -> bool:
        """Returns whether an intervention is run again: the first always, the others evenly over the run as far as that goes."""
        cost = self.costs[id(schedule), intervention.name]
        self.n_seen += 1
        if self.allowed is not None and self.n_seen > 1 and self.spent + cost > self.allowed * self.n_seen / len(self.costs):
            return False
        self.spent += cost
        return True

    def of(
        self,
        schedule: StepSchedule,
        intervention: nodes.Intervention,
        observed: Observed,
        outputs: OutputTensors,
        featurizers: Featurizers,
    ) -> list[Check]:
        """Returns the outcome of the checks of one intervention.

        Args:
            schedule: of its step.
            intervention: which.
            observed: what it found.
            outputs: of earlier steps.
            featurizers: with what has been trained.
        """
        name = f"{schedule.step.name}/{intervention.name}" if schedule.step.is_list else schedule.step.name
        others = [
            _tried("writes", name, lambda: self.writes(name, schedule, intervention, observed)),
            _tried("places", name, lambda: self.places(name, schedule, intervention, observed)),
        ]
        compared = compared_reads(intervention, observed, self.engine.facts.dtype)
        if (compared or observed.said) and not self.wants(schedule, intervention):
            why = "not compared (a sample of the points is; `--check full` compares all)"
            return [Check(kind, "skipped", f"{name}: {kind} {why}") for kind in ("rows", "passes")] + others
        alone, together = self.sampled(intervention, observed.rows) if compared or observed.said else ((), ())
        case = _Case(name, schedule, intervention, observed, outputs, featurizers, compared)
        return [
            _tried("rows", name, lambda: self.rows(case, alone)),
            _tried("passes", name, lambda: self.passes(case, together)),
            *others,
        ]

    def rows(self, case: _Case, rows: Sequence[int]) -> Check:
        """Returns whether rows alone give the numbers of the batch."""
        if deranges(case.intervention):
            return Check("rows", "skipped", f"{case.name}: rows not compared (`permute` needs the other rows)")
        why_engine = why_not_alone(self.engine.facts, case.intervention)
        found: dict[int, float] = {}
        for row in rows:
            if why_engine:
                alone = self.observe(case, (row,))
            else:
                given = (case.schedule, case.intervention, self.request.prompts, case.outputs, row, case.featurizers, case.observed)
                alone = observe_alone(self.engine, *given)
            found |= self.differences(case, alone)
        return check_rows(case.name, found, self.engine.facts.dtype, len(case.observed.rows), why_engine)

    def passes(self, case: _Case, rows: Sequence[int]) -> Check:
        """Returns whether the schedule gives the numbers of the plan's own passes."""
        if not self.is_rewritten:
            return Check("passes", "skipped", f"{case.name}: the passes that ran are the plan's own")
        found = self.differences(case, self.observe(case, rows)) if rows else {}
        return check_passes(case.name, found, self.engine.facts.dtype)

    def observe(self, case: _Case, rows: Sequence[int]) -> Observed:
        """Returns what the plan's own passes find on some rows."""
        given = (case.schedule, case.intervention, self.request.prompts, case.outputs, tuple(rows), case.featurizers, self.sizes)
        return observe(self.engine, *given)

    def differences(self, case: _Case, found: Observed) -> dict[int, float]:
        """Returns how far the rows of a run are from what they were found to be otherwise."""
        dtype = self.engine.facts.dtype
        return {row: difference_of(case.observed, found, row, case.compared, dtype) for row in found.rows}

    def places(self, name: str, schedule: StepSchedule, intervention: nodes.Intervention, observed: Observed) -> Check:
        """Returns the texts at which the first row is read and written, and whether the model is given those there."""
        row = observed.rows[0]
        found = []
        for one in schedule.every(intervention.name):
            prompt = self.request.prompts[one.forward.rows][row]
            for place in one.forward.places:
                is_write = isinstance(place, nodes.Write)
                if not is_write and isinstance(place, nodes.Read) and place.is_hidden:
                    continue
                key = write_key(intervention, one.forward, place) if isinstance(place, nodes.Write) else place.name
                tokens, text = one.windows[place.name][row].tokens, prompt
                if place.pos.is_generated:
                    tokens, text = observed.windows[key][row].tokens, observed.said[one.forward.model, one.forward.role][row].prompt
                own = [token for token in tokens if 0 <= token < text.n_content]
                if own:
                    found.append(
                        {
                            "place": key,
                            "kind": "write" if is_write else "read",
                            "tokens": own,
                            "text": text.text_of(own),
                            "texts": [text.text_of([token]) for token in own],
                            "decoded": [self.engine.tokenizer.decode([text.ids[text.n_prefix + token]]) for token in own],
                        }
                    )
        return check_places(name, schedule.step.labels[row], found)

    def writes(self, name: str, schedule: StepSchedule, intervention: nodes.Intervention, observed: Observed) -> Check:
        """Returns whether every write of an intervention fired on every row that it should."""
        expected: dict[str, list[int]] = {}
        for one in schedule.every(intervention.name):
            for write in one.forward.writes:
                key, ends = write_key(intervention, one.forward, write), None
                if write.pos.is_generated:
                    ends = observed.windows[key]
                expected[key] = [row for row in observed.rows if row not in one.missing and not (ends and ends[row].reason)]
        changes = {key: evidence.change for key, evidence in observed.writes.items()}
        left_over = {key: evidence.n_left_over for key, evidence in observed.writes.items()}
        not_run = {key: evidence.n_not_run for key, evidence in observed.writes.items()}
        return check_writes(name, changes, expected, left_over, not_run)

    def of_control(
        self, schedule: StepSchedule, control: nodes.Control, observed: Sequence[Observed], reference: Observed | None
    ) -> list[Check]:
        """Returns the outcome of the checks of a control: its writes fired, and one that changes nothing gave what nothing gives."""
        name = f"{schedule.step.name}/{control.of}" if schedule.step.is_list else schedule.step.name
        checks = [
            self.writes(f"{name} ({control.kind})", schedule, draw, found) for draw, found in zip(control.draws, observed, strict=True)
        ]
        if reference is not None:
            dtype = self.engine.facts.dtype
            compared = compared_reads(control.draws[0], reference, dtype)
            worst = max((difference_of(observed[0], reference, row, compared, dtype) for row in reference.rows), default=0.0)
            checks.append(check_control(name, control.kind, worst, dtype))
        return checks


def _tried(kind: str, name: str, check: Callable[[], Check]) -> Check:
    """Returns the outcome of a check; one that breaks down is told of, and ends no run."""
    try:
        return check()
    except Exception as error:
        if is_out_of_memory(error):
            return Check(kind, "skipped", f"{name}: {kind} not compared (there is too little memory for the check)")
        said = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        return Check(kind, "failed", f"{name}: the check of {kind} broke down, so that nobody knows whether the run is right ({said})")


def deranges(intervention: nodes.Intervention) -> bool:
    """Returns whether a row's numbers depend on which other rows there are."""
    operands = [write.operand for forward in intervention.runs for write in forward.writes]
    return any(isinstance(operand, nodes.FromRead) and operand.derangement is not None for operand in operands)


def _n_tokens(forward: nodes.Forward, request: nodes.Request, row: int) -> int:
    return request.prompts[forward.rows][row].n_tokens + (0 if forward.decode is None else forward.decode.max_new_tokens)


def compared_reads(intervention: nodes.Intervention, observed: Observed, dtype: str) -> list[str]:
    """Returns the reads that are held against each other: all in fp32; under coarser rounding the logits, where there are any.

    One neuron by itself is as far off there as its inputs are rounded, however small it is: single units are left out.
    """
    reads = [read for forward in intervention.runs for read in forward.reads if read.name in observed.values]
    if dtype != "fp32":
        reads = [read for read in reads if read.site.units is None]
    logits = [read.name for read in reads if COMPONENTS[read.site.component].is_vocabulary or read.view == "logits"]
    return logits if logits and dtype != "fp32" else [read.name for read in reads]


def first_apart(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Returns the first place at which two continuations differ, None where they are the same."""
    if one == other:
        return None
    n = min(len(one), len(other))
    return next((place for place in range(n) if one[place] != other[place]), max(0, n - 1))


def difference_of(observed: Observed, plain: Observed, row: int, names: Sequence[str], dtype: str = "fp32") -> float:
    """Returns how far a row's reads in a schedule are from those of the plan's own passes, at most, as a share of their standard deviation.

    In fp32 that is the largest difference of two numbers, under coarser rounding the root mean square over a token's features; what the dtype
    can't tell apart is no difference.

    Args:
        observed: in a schedule.
        plain: of the plan's own passes.
        row: of the step.
        names: of the reads that are compared.
        dtype: of the weights: where rounding has another token said, which was as likely, what is read from there on is not compared.
    """
    worst = 0.0
    for run, said in plain.said.items():
        apart = first_apart(said[row].ids, observed.said[run][row].ids)
        if apart is not None:
            margin = said[row].margins[apart]
            if margin > TOLERANCE[dtype] or (math.isnan(margin) and dtype == "fp32"):
                return float("inf")
            names = [name for name in names if name not in observed.windows]
    for name, value in ((name, plain.values[name]) for name in names):
        one, batched = value.row(plain.rows.index(row)), observed.values[name].row(observed.rows.index(row))
        if one.numel() == batched.numel() == 0:
            continue
        if one.shape != batched.shape:
            return float("inf")
        if name in observed.patterns:
            hidden = one <= torch.finfo(one.dtype).min
            if not torch.equal(hidden, batched <= torch.finfo(one.dtype).min):
                return float("inf")
            one, batched = one[~hidden], batched[~hidden]
        one, batched = one.float(), batched.float()
        if name not in observed.patterns:
            shown, batched = observed.compared(name, one), observed.compared(name, batched)
        else:
            shown = one
        if not torch.equal(torch.isfinite(shown), torch.isfinite(batched)):
            return float("inf")
        if not torch.isfinite(one).any():
            continue  # a write too large for its dtype: on both sides, and the tables say so
        spread = _spread(one[torch.isfinite(one)])
        one, batched = (torch.where(torch.isfinite(each), each, 0.0) for each in (shown, batched))
        gap = ((one - batched).abs() - STEP[dtype] * one.abs()).clamp(min=0.0)
        if dtype != "fp32" and name not in observed.patterns:  # the largest of a vocabulary's roundings is several times their size
            gap = gap.pow(2).mean(dim=-1).sqrt()
        share = float(gap.max()) / spread
        if share > TOLERANCE[dtype]:  # a row of one number, or of some that are nearly equal, has no spread of its own to speak of
            share *= spread / max(spread, _spread_of_all(observed, name, one.numel() == 1))
        worst = max(worst, share)
    return worst


def _spread(values: Tensor) -> float:
    """Returns the standard deviation of some values, or the size of one; 1 where that is 0."""
    return float(values.std() if values.numel() > 1 else values.abs().max()) or 1.0


def _spread_of_all(observed: Observed, name: str, is_one: bool) -> float:
    """Returns the standard deviation of a read's values on all rows, hidden edges of patterns left out; of one number a row, their size."""
    data = observed.values[name].data.float()
    if name in observed.patterns:
        shown = data[data > torch.finfo(observed.values[name].data.dtype).min]
    else:
        shown = observed.compared(name, data)
    shown = shown[torch.isfinite(shown)]
    return float(shown.pow(2).mean().sqrt()) if is_one else _spread(shown)
