"""The checks of a run: rows alone against the batch, and writes that fired. In a long run, of a sample of what is run.

A row alone is run as the plan has it, without any rewrite: it is what the schedule is held against.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch

from causalab_mini.engine.contract import Engine
from causalab_mini.engine.featurizers import Featurizers
from causalab_mini.engine.made import OutputTensors
from causalab_mini.engine.observe import Observed, observe, write_key
from causalab_mini.evidence.checks import TOLERANCE, Check, check_control, check_rows, check_writes
from causalab_mini.model.components import COMPONENTS
from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.located import Schedule, StepSchedule
from causalab_mini.schedule.physical import Physical
from causalab_mini.schedule.rewrites.direct import operations, operations_of

LONG_OPERATIONS = 6e11
"""What some ten seconds of a CPU core compute: a run of less is checked at every point."""
SHARE = 0.05
"""Of what a longer run computes, what its checks may."""


class Checking:
    """Checks the interventions of a run as they come.

    Args:
        engine: the checkpoint.
        request: what is run.
        schedules: of all points.
        physical: what is run of it.
        level: `sample`: one row of each intervention alone, or of as many as a twentieth of a long run pays for, the first always; `full`: every row.
    """

    def __init__(
        self, engine: Engine, request: nodes.Request, schedules: Sequence[Schedule], physical: Physical, level: Literal["sample", "full"]
    ) -> None:
        self.engine = engine
        self.request = request
        self.level = level
        facts = request.facts
        a_token = operations_of(facts) * facts.n_layers + 2.0 * facts.hidden * facts.vocabulary
        self.costs = {}
        for schedule in schedules:
            for step in schedule.steps:
                for intervention in step.step.experiments:
                    (row,) = _most_padded(request, intervention, range(step.step.n_rows))
                    tokens = sum(_n_tokens(forward, request, row) for forward in intervention.runs)
                    self.costs[id(step), intervention.name] = a_token * tokens
        run = sum(operations(one, facts) for one in physical.passes.values())
        self.allowed = None if level == "full" or run + sum(self.costs.values()) < LONG_OPERATIONS else SHARE * run
        self.n_seen = 0
        self.spent = 0.0

    def wants(self, schedule: StepSchedule, intervention: nodes.Intervention) -> bool:
        """Returns whether rows of an intervention are run alone: the first always, the others evenly over the run as far as that goes."""
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
        request, dtype = self.request, self.engine.facts.dtype
        name = f"{schedule.step.name}/{intervention.name}" if schedule.step.is_list else schedule.step.name
        differences: dict[int, float] = {}
        compared = compared_reads(intervention, observed, dtype)
        why = ""
        if deranges(intervention):
            why = "`permute` needs the other rows"
        elif len(observed.rows) > 1 and (compared or observed.said) and not self.wants(schedule, intervention):
            why = "a sample of the points is; `--check full` compares all"
        elif len(observed.rows) > 1 and (compared or observed.said):
            for row in observed.rows if self.level == "full" else _most_padded(request, intervention, observed.rows):
                alone = observe(self.engine, schedule, intervention, request.prompts, outputs, (row,), featurizers)
                differences[row] = difference_of(observed, alone, row, compared, dtype)
        rows = check_rows(name, differences, dtype, len(observed.rows))
        if why:
            rows = Check("rows", "skipped", f"{name}: rows not compared ({why})")
        return [rows, self.writes(name, schedule, intervention, observed)]

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


def deranges(intervention: nodes.Intervention) -> bool:
    """Returns whether a row's numbers depend on which other rows there are."""
    operands = [write.operand for forward in intervention.runs for write in forward.writes]
    return any(isinstance(operand, nodes.FromRead) and operand.derangement is not None for operand in operands)


def _n_tokens(forward: nodes.Forward, request: nodes.Request, row: int) -> int:
    return request.prompts[forward.rows][row].n_tokens + (0 if forward.decode is None else forward.decode.max_new_tokens)


def _most_padded(request: nodes.Request, intervention: nodes.Intervention, rows: Sequence[int]) -> tuple[int]:
    """Returns the row with the fewest tokens: it is the one that a fault of padding, masks or positions would show on."""
    prompts = [request.prompts[forward.rows] for forward in intervention.runs]
    return (min(rows, key=lambda row: sum(of_role[row].n_tokens for of_role in prompts)),)


def compared_reads(intervention: nodes.Intervention, observed: Observed, dtype: str) -> list[str]:
    """Returns the reads that are held against each other: all in fp32; under coarser rounding the logits, where there are any."""
    reads = [read for forward in intervention.runs for read in forward.reads if read.name in observed.values]
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
        if one.numel() == 0:
            continue
        spread = float(one.std()) if one.numel() > 1 else float(one.abs().max())
        if name not in observed.patterns:
            one, batched = observed.compared(name, one), observed.compared(name, batched)
        difference = float((one - batched).abs().max())
        worst = max(worst, difference / spread if spread > 0 else difference)
        if not (torch.isfinite(one).all() and torch.isfinite(batched).all()):
            worst = float("inf")
    return worst
