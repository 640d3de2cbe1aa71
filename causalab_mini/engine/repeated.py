"""Carries out schedules of passes that are repeated: what stays the same once, what changes for the rows that are asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from causalab_mini.engine.contract import Engine
from causalab_mini.engine.featurizers import Featurizers
from causalab_mini.engine.given import Given
from causalab_mini.engine.gradients import Mode
from causalab_mini.engine.kept import Kept, RowValues
from causalab_mini.engine.made import Made
from causalab_mini.engine.observe import Observed, Ran, note, run_batch
from causalab_mini.engine.probes import Probe
from causalab_mini.engine.sizes import Sizes
from causalab_mini.ops.featurizers import Coordinates
from causalab_mini.ops.windows import Value
from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.batching import Entry
from causalab_mini.schedule.identity import Use, learned_key
from causalab_mini.schedule.located import Schedule, StepSchedule
from causalab_mini.schedule.memory import working_bytes
from causalab_mini.schedule.physical import PhysicalPass, Rewrite, givers, is_at_head, needs
from causalab_mini.schedule.repeated import repeated_schedule


@dataclass(frozen=True, slots=True, eq=False)
class Repeated:
    """Interventions of one point over rows: what a fit trains with, what it is judged by, or what is attributed.

    Attributes:
        label: of the point.
        schedule: of the step, with the metrics alone that are asked for.
        rows: of the step, that run.
        featurizers: by the names that the plan has for them.
        outputs: of earlier steps of the point.
    """

    label: str
    schedule: StepSchedule
    rows: tuple[int, ...]
    featurizers: Featurizers
    outputs: Mapping[str, Made]


class RepeatedPasses:
    """The passes of several fits over the same kind of rows.

    Args:
        engine: the checkpoint, with its weights.
        request: what is run.
        step: the name of the fits' step.
        fits: what each runs.
        rewrites: that are allowed.
        sizes: how many rows a batch may have.
        n_runs: how often it will be run over all rows, about.
        max_kept_bytes: what may be kept of one set of rows.
        mode: whether the passes are differentiated.
        live: passes of the plan that are run each time beside those that train.
    """

    def __init__(
        self,
        engine: Engine,
        request: nodes.Request,
        step: str,
        fits: Sequence[Repeated],
        rewrites: Collection[Rewrite],
        sizes: Sizes,
        n_runs: int,
        max_kept_bytes: int,
        mode: Mode,
        live: Collection[Use] = (),
    ) -> None:
        self.engine = engine
        self.request = request
        self.step = step
        self.fits = fits
        self.sizes = sizes
        self.mode = mode
        points = {schedule.label: schedule for schedule in request.points}
        schedules = [Schedule(points[fit.label], (fit.schedule,)) for fit in fits]
        self.schedule = repeated_schedule(request, schedules, step, rewrites, n_runs, max_kept_bytes, live)
        self.physical = self.schedule.physical
        self.probed = {self.physical.uses[use][0] for use in live}
        self.features = {
            read.name: one.vocabulary
            for one in self.physical.passes.values()
            if one.vocabulary is not None
            for part in one.parts
            for read in part.forward.reads
            if is_at_head(read)
        }
        self.by_read = givers(self.physical.passes)
        self.homes = {part.name: name for name, one in self.physical.passes.items() for part in one.parts}
        self.made: dict[str, Made] = {f"{fit.label}/{name}": made for fit in fits for name, made in fit.outputs.items()}
        self.featurizers = Featurizers(self.made)
        earlier = {fit.label: fit.featurizers.learned for fit in fits}
        for (label, _), keys in self.physical.learned.items():  # what earlier fits have found
            self.featurizers.learned |= {key: earlier[label][name] for name, key in keys.items()}
        self.owners: dict[str, int] = {}
        for use, (part, values) in self.physical.uses.items():
            number = next(number for number, fit in enumerate(fits) if fit.label == use.point)
            for key in (part, *values.values()):
                self.owners.setdefault(key, number)
        self.values: dict[str, RowValues] = {}
        self.kept: dict[str, Kept] = {}
        self._run_constants()

    def _run_constants(self) -> None:
        """Runs, once over all rows, what stays the same."""
        mode: Mode = "off" if self.mode == "off" else "constant"
        rows_of_pass = self._rows_of_pass()
        for name in self.schedule.once:
            one, rows = self.physical.passes[name], rows_of_pass[name]
            ran = Ran(Kept([one.length(row) for row in range(len(one.lengths))]))
            operands = [read for part in one.parts for read in part.operands]
            values = {read: self.values[read].of(rows) for read in operands}
            given = self._given(one, values, rows, {}, mode)
            for batch in self.sizes.batches(one, rows):
                self.sizes.run(one, batch, partial(_run, self.engine, one, given, ran))
            self.kept[name] = ran.kept
            for read, found in ran.values.items():
                self.values.setdefault(read, RowValues()).chunks += found.chunks

    def _rows_of_pass(self) -> dict[str, tuple[int, ...]]:
        """Returns, for each pass, the rows of the fits that need it."""
        needed: dict[str, set[int]] = {name: set() for name in self.physical.passes}
        for use, (part, values) in self.physical.uses.items():
            rows = next(fit.rows for fit in self.fits if fit.label == use.point)
            names = [name for key in values.values() for name in self.by_read.get(key, ())]
            for name in [*([self.homes[part]] if part in self.homes else []), *names]:
                needed[name] |= set(rows)
        for name in reversed(list(self.physical.passes)):
            for other in needs(self.physical.passes[name], self.by_read):
                needed[other] |= needed[name]
        return {name: tuple(sorted(rows)) for name, rows in needed.items()}

    def _given(
        self, one: PhysicalPass, values: Mapping[str, Value], rows: Sequence[int], scopes: Mapping[str, Sequence[int]], mode: Mode
    ) -> Given:
        resumed = None if one.resumes is None else self.kept[one.resumes]
        prefix = None if one.prefix is None else self.kept[one.prefix]
        return Given(self.request.prompts, values, self.made, rows, self.featurizers, resumed, prefix, mode, scopes)

    def learn(self, number: int, coordinates: Mapping[str, Coordinates]) -> None:
        """Takes what a fit is at: the coordinates of each featurizer that it trains, by name."""
        fit = self.fits[number]
        for name, learned in coordinates.items():
            fit.featurizers.learned[name] = learned
            self.featurizers.learned[learned_key(fit.label, self.step, name)] = learned

    def batches(self, rows: Mapping[int, Sequence[int]]) -> list[dict[int, list[int]]]:
        """Returns the rows of several fits as those that are run together, as many as fit into memory.

        Args:
            rows: by fit.
        """
        pairs = [(number, row) for number in rows for row in rows[number]]
        size = self._limit(rows, len(pairs))
        found = []
        for start in range(0, len(pairs), size):
            chosen: dict[int, list[int]] = {}
            for number, row in pairs[start : start + size]:
                chosen.setdefault(number, []).append(row)
            found.append(chosen)
        return found

    def _limit(self, rows: Mapping[int, Sequence[int]], n_pairs: int) -> int:
        """Returns how many rows are run at once: what is asked for, or what fits with all activations that a gradient needs."""
        if self.sizes.batch_size is not None:
            return self.sizes.batch_size
        needed, facts = 0, self.request.facts
        for one in self.schedule.each:
            entries = [entry for entry in one.entries() if entry.row in rows.get(self._number(one, entry), ())]
            if entries:
                least = min(one.parts[entry.part].n_skipped for entry in entries)
                n_held = one.top(facts) - least + 1 if self.mode == "on" else 1
                needed += working_bytes(one, entries, facts) * n_held
        fitting = n_pairs if needed == 0 else max(1, n_pairs * self.sizes.budget() // needed)
        return max(1, min(n_pairs, fitting, self.sizes.most or n_pairs))

    def _number(self, one: PhysicalPass, entry: Entry) -> int:
        return self.owners[one.parts[entry.part].name]

    def run(self, rows: Mapping[int, Sequence[int]], probe: Probe | None = None) -> dict[int, dict[str, Observed]]:
        """Returns what the interventions of several fits find on some of their rows, by fit and intervention.

        Args:
            rows: by fit, ascending.
            probe: stands in for the writes of the live passes that were named.
        """
        lived: dict[str, RowValues] = {}
        union = sorted({row for own in rows.values() for row in own})
        for one in self.schedule.each:
            entries = [entry for entry in one.entries() if entry.row in rows.get(self._number(one, entry), ())]
            if not entries:
                continue
            operands = {read for part in one.parts for read in part.operands}
            values, scopes = dict[str, Value](), dict[str, Sequence[int]]()
            for read in operands:
                if read in self.values:
                    scopes[read] = self._rows_given(read)
                    values[read] = self.values[read].of(scopes[read])
                elif read in lived:
                    scopes[read] = union
                    values[read] = lived[read].of(union)
            ran = Ran(Kept([one.length(row) for row in range(len(one.lengths))]))
            is_probed = any(part.name in self.probed for part in one.parts)
            given = replace(self._given(one, values, union, scopes, self.mode), probe=probe if is_probed else None)
            run_batch(self.engine, one, entries, given, ran)
            self.sizes.pause()
            for read, found in ran.values.items():
                lived.setdefault(read, RowValues()).chunks += found.chunks
        return {number: self._observed(number, own, lived) for number, own in rows.items()}

    def _rows_given(self, read: str) -> tuple[int, ...]:
        """Returns the rows that a read has been taken of, once and for all."""
        return tuple(sorted({row for rows, _ in self.values[read].chunks for row in rows}))

    def _observed(self, number: int, rows: Sequence[int], lived: Mapping[str, RowValues]) -> dict[str, Observed]:
        fit, found = self.fits[number], dict[str, Observed]()
        for intervention in fit.schedule.step.interventions:
            observed = Observed(tuple(rows))
            for index, one in enumerate(fit.schedule.passes[intervention.name]):
                _, values = self.physical.uses[Use(fit.label, fit.schedule.step.name, intervention.name, index)]
                for read, key in values.items():
                    source = lived.get(key) or self.values.get(key)
                    if source is not None:
                        observed.values[read] = source.of(rows)
                    if key in self.features:
                        observed.features[read] = self.features[key]
                note(observed, fit.schedule, intervention, one, {}, self.engine, fit.featurizers)
            found[intervention.name] = observed
        return found


def _run(engine: Engine, one: PhysicalPass, given: Given, ran: Ran, entries: list[Entry]) -> None:
    run_batch(engine, one, entries, given, ran)
