"""Carries a physical schedule out: each pass when it is first needed, what it left kept until its last use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from causalab_mini.engine.contract import Engine
from causalab_mini.engine.decoding import Generated, generate
from causalab_mini.engine.featurizers import Featurizers
from causalab_mini.engine.given import Given, Prompts
from causalab_mini.engine.kept import Kept, RowValues
from causalab_mini.engine.made import Made
from causalab_mini.engine.observe import Observed, Ran, note, note_generated, run_batch
from causalab_mini.engine.sizes import Sizes
from causalab_mini.engine.writes import WriteEvidence
from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.batching import Entry
from causalab_mini.schedule.identity import Use
from causalab_mini.schedule.located import StepSchedule
from causalab_mini.schedule.physical import Physical, PhysicalPass, givers, is_at_head


class Store:
    """Passes that have run, and the values that are still needed.

    Args:
        engine: the checkpoint.
        physical: what is run.
        prompts: of the request.
        sizes: how many rows a batch may have.
        on_pass: called after every pass.
    """

    def __init__(
        self,
        engine: Engine,
        physical: Physical,
        prompts: Prompts,
        sizes: Sizes,
        on_pass: Callable[[PhysicalPass], None] = lambda one: None,
    ) -> None:
        self.engine = engine
        self.physical = physical
        self.prompts = prompts
        self.sizes = sizes
        self.on_pass = on_pass
        self.has_run: set[str] = set()
        self.kept: dict[str, Kept] = {}
        self.values: dict[str, RowValues] = {}
        self.writes: dict[str, Mapping[str, WriteEvidence]] = {}
        self.made: dict[str, Made] = {}
        self.featurizers = Featurizers(self.made)
        self.by_read = givers(physical.passes)
        self.homes = {part.name: name for name, one in physical.passes.items() for part in one.parts}
        self.features = {
            read.name: one.vocabulary
            for one in physical.passes.values()
            if one.vocabulary is not None
            for part in one.parts
            for read in part.forward.reads
            if is_at_head(read)
        }
        self.generated: dict[str, Generated] = {}
        self.n_left: Counter[str] = Counter()
        self.n_resuming: Counter[str] = Counter()
        for _, values in physical.uses.values():
            self.n_left.update(values.values())
        for one in physical.continuing.values():
            self.n_left.update(one.part.operands)
        self.n_hearing = Counter(name for name, _ in physical.continuations.values())
        for one in physical.passes.values():
            for part in one.parts:
                self.n_left.update(part.operands)
            self.n_resuming.update(_sources(one))

    def observe(
        self, point: str, schedule: StepSchedule, intervention: nodes.Intervention, rows: Sequence[int], featurizers: Featurizers
    ) -> Observed:
        """Returns what an intervention's passes find; passes that have run for another are not run again.

        Args:
            point: whose.
            schedule: of the step.
            intervention: of the step.
            rows: of the step, that run.
            featurizers: of the intervention's reads, by the names that the plan has for them.
        """
        observed = Observed(tuple(rows))
        for index, one in enumerate(schedule.passes[intervention.name]):
            part, values = self.physical.uses[Use(point, schedule.step.name, intervention.name, index)]
            if part in self.homes:
                self.run(self.homes[part], rows)
            for key in values.values():
                self.run_givers(key, rows)
            observed.values |= {read: self.values[key].of(rows) for read, key in values.items()}
            observed.features |= {read: self.features[key] for read, key in values.items() if key in self.features}
            idle = self.physical.idle.get(part, ())
            note(observed, schedule, intervention, one, self.writes.get(part, {}), self.engine, featurizers, idle)
            self.free(values.values())
        for index, one in enumerate(schedule.generations.get(intervention.name, ())):
            name, values = self.physical.continuations[Use(point, schedule.step.name, intervention.name, index)]
            generated = self.generate(name, rows)
            note_generated(observed, intervention, one, generated, values, self.engine.facts)
            note(observed, schedule, intervention, one, generated.writes, self.engine, featurizers)
            self.n_hearing[name] -= 1
            if self.n_hearing[name] <= 0:
                self.generated.pop(name, None)
        return observed

    def generate(self, name: str, rows: Sequence[int]) -> Generated:
        """Returns what is generated, which is done once."""
        if name in self.generated:
            return self.generated[name]
        one = self.physical.continuing[name]
        operands = one.part.operands
        for read in operands:
            self.run_givers(read, rows)
        values = {read: self.values[read].of(rows) for read in operands}
        given, found = Given(self.prompts, values, self.made, rows, self.featurizers), Generated()

        def run(entries: Sequence[Entry]) -> None:
            generate(self.engine, one.part.one, [entry.row for entry in entries], given, found)

        for batch in self.sizes.batches(one, rows):
            self.sizes.run(one, batch, run)
        self.generated[name] = found
        self.free(operands)
        return found

    def make(self, point: str, step: str, outputs: Mapping[str, Made]) -> None:
        """Notes the outputs of a step, by what they are."""
        self.made |= {self.physical.made[point, step, name]: made for name, made in outputs.items()}

    def run_givers(self, read: str, rows: Sequence[int]) -> None:
        """Runs the passes that give a read."""
        for name in self.by_read[read]:
            self.run(name, rows)

    def run(self, name: str, rows: Sequence[int]) -> None:
        """Runs a pass, after those that it needs, if it has not run yet."""
        if name in self.has_run:
            return
        one = self.physical.passes[name]
        for source in _sources(one):
            self.run(source, rows)
        operands = [read for part in one.parts for read in part.operands]
        for read in operands:
            self.run_givers(read, rows)
        given = Given(
            self.prompts,
            {read: self.values[read].of(rows) for read in operands},
            self.made,
            rows,
            self.featurizers,
            None if one.resumes is None else self.kept[one.resumes],
            None if one.prefix is None else self.kept[one.prefix],
        )
        ran = Ran(Kept([one.length(row) for row in range(len(one.lengths))]))
        in_pass = None if one.until is not None else rows
        for batch in self.sizes.batches(one, in_pass):
            self.sizes.run(one, batch, lambda entries: run_batch(self.engine, one, entries, given, ran))
        self.has_run.add(name)
        self.on_pass(one)
        self.writes |= ran.writes
        if self.n_resuming[name]:
            self.kept[name] = ran.kept
        for read, found in ran.values.items():
            if self.n_left[read] > 0 or not self.physical.frees_early:
                self.values.setdefault(read, RowValues()).chunks += found.chunks
        self.free(operands)
        for source in _sources(one):
            self.n_resuming[source] -= 1
            if self.n_resuming[source] == 0 and self.physical.frees_early:
                del self.kept[source]

    def free(self, keys: Iterable[str]) -> None:
        """Lets go of values whose last use this was."""
        for key in keys:
            self.n_left[key] -= 1
            if self.n_left[key] <= 0 and self.physical.frees_early:
                self.values.pop(key, None)


def _sources(one: PhysicalPass) -> list[str]:
    """Returns the passes whose streams, keys or values a pass is given."""
    return list(dict.fromkeys(name for name in (one.resumes, one.prefix) if name is not None))
