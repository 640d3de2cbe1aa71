"""Carries a physical schedule out: each pass when it is first needed, what it left kept until its last use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from causalab_mini.engine.batches import OutputTensors
from causalab_mini.engine.contract import Engine
from causalab_mini.engine.observe import Observed, Prompts, Ran, note, run_pass
from causalab_mini.ops.windows import Value
from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.identity import Use
from causalab_mini.schedule.physical import Physical
from causalab_mini.schedule.schedule import StepSchedule


class Store:
    """Passes that have run, and the values that are still needed.

    Args:
        engine: the checkpoint.
        physical: what is run.
        prompts: of the request.
        batch_size: rows a batch; None lets tokens and logits bound it.
        on_pass: called after every pass.
    """

    def __init__(self, engine: Engine, physical: Physical, prompts: Prompts, batch_size: int | None, on_pass: Callable[[], None]) -> None:
        self.engine = engine
        self.physical = physical
        self.prompts = prompts
        self.batch_size = batch_size
        self.on_pass = on_pass
        self.ran: dict[str, Ran] = {}
        self.rows_a_batch = 0
        self.values: dict[str, Value] = {}
        self.n_left: Counter[str] = Counter()
        self.n_resuming: Counter[str] = Counter()
        for _, values in physical.uses.values():
            self.n_left.update(values.values())
        for one in physical.passes.values():
            self.n_left.update(_operands(one.forward))
            if one.resumes is not None:
                self.n_resuming[one.resumes] += 1

    def observe(
        self, point: str, schedule: StepSchedule, intervention: nodes.Intervention, outputs: OutputTensors, rows: Sequence[int]
    ) -> Observed:
        """Returns what an intervention's passes find; passes that have run for another are not run again."""
        observed = Observed(tuple(rows))
        for index, one in enumerate(schedule.passes[intervention.name]):
            name, values = self.physical.uses[Use(point, schedule.step.name, intervention.name, index)]
            ran = self.pass_of(name, outputs, rows)
            observed.values |= {read: self.values[key] for read, key in values.items()}
            note(observed, schedule, intervention, one, ran, self.engine)
            self.free(list(values.values()))
        return observed

    def pass_of(self, name: str, outputs: OutputTensors, rows: Sequence[int]) -> Ran:
        """Returns what a pass left, and runs it if it has not run yet."""
        if name in self.ran:
            return self.ran[name]
        one = self.physical.passes[name]
        source = None if one.resumes is None else self.pass_of(one.resumes, outputs, rows)
        ran = run_pass(self.engine, one, self.prompts, self.values, outputs, rows, self.batch_size, source)
        self.on_pass()
        self.ran[name] = ran
        self.rows_a_batch = max(self.rows_a_batch, ran.rows_a_batch)
        self.values |= {key: value for key, value in ran.values.items() if self.n_left[key] > 0}
        ran.values = {}
        self.free(_operands(one.forward))
        if one.resumes is not None and source is not None:
            self.n_resuming[one.resumes] -= 1
            if self.n_resuming[one.resumes] == 0:
                source.streams = []
        return ran

    def free(self, keys: Sequence[str]) -> None:
        """Lets go of values whose last use this was."""
        for key in keys:
            self.n_left[key] -= 1
            if self.n_left[key] <= 0:
                self.values.pop(key, None)


def _operands(forward: nodes.Forward) -> list[str]:
    own = {read.name for read in forward.reads}
    found = [write.operand.read for write in forward.writes if isinstance(write.operand, nodes.FromRead)]
    return [read for read in found if read not in own]
