"""Attribution: by how much a metric would change under each write, estimated by gradients, and compared with what it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from causalab_mini.engine.contract import Engine
from causalab_mini.engine.featurizers import Featurizers
from causalab_mini.engine.first_use import at_level
from causalab_mini.engine.made import Made
from causalab_mini.engine.probes import Probe, Probed
from causalab_mini.engine.repeated import Repeated, RepeatedPasses
from causalab_mini.engine.scores import score
from causalab_mini.engine.sizes import Sizes
from causalab_mini.engine.store import Store
from causalab_mini.evidence.agreement import agreement
from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.identity import Use
from causalab_mini.schedule.locate import Window
from causalab_mini.schedule.located import Schedule, StepSchedule, metric_reasons
from causalab_mini.schedule.physical import plain_schedule
from causalab_mini.schedule.repeated import with_metrics
from causalab_mini.schedule.rewrites import REWRITES, rewrite

ESTIMAND_VERSION = "v1"


@dataclass(frozen=True, slots=True, order=True)
class Component:
    """What of a write is looked at alone: one of its layers, one token of its window, one head where its site has any."""

    write: str
    entry: int
    token: int
    head: int


@dataclass(frozen=True, slots=True)
class Attributed:
    """What an attribution leaves: a line a row and component, and how estimates agree with what was run exactly."""

    table: list[dict[str, Any]]
    agreement: dict[str, Any] | None


@dataclass(slots=True)
class Attribution:
    """One `attribute` step of one point.

    Attributes:
        estimates: by component and row.
        places: the content index of each component's token, row by row.
        clean: the metric where nothing is written, by row.
    """

    engine: Engine
    request: nodes.Request
    label: str
    step: nodes.Attribute
    schedule: StepSchedule
    rows: Sequence[int]
    outputs: Mapping[str, Made]
    featurizers: Featurizers
    sizes: Sizes
    estimates: dict[Component, dict[int, float]] = field(default_factory=dict)
    places: dict[Component, dict[int, int]] = field(default_factory=dict)
    clean: dict[int, float] = field(default_factory=dict)

    @property
    def intervention(self) -> nodes.Intervention:
        """Whose writes are looked at."""
        return self.step.observed.interventions[0]

    @property
    def metric(self) -> nodes.Metric:
        """Whose change is estimated."""
        return next(metric for metric in self.intervention.metrics if metric.name == self.step.metric)

    @property
    def index(self) -> int:
        """Which of the intervention's passes is written."""
        of = self.metric.reads["of"]
        passes = self.schedule.passes[self.intervention.name]
        return next(index for index, one in enumerate(passes) if any(read.name == of for read in one.forward.reads))

    @property
    def writes(self) -> dict[str, nodes.Write]:
        """The writes, by name."""
        return {write.name: write for write in self.schedule.passes[self.intervention.name][self.index].forward.writes}

    def heads(self, write: nodes.Write) -> tuple[int, ...]:
        """Returns the heads of a write's site, one -1 where it has none."""
        n = self.engine.facts.n_heads_of(write.site.component)
        if write.site.heads is not None:
            return write.site.heads
        return (-1,) if n is None or write.site.units is not None else tuple(range(n))

    def estimate(self) -> None:
        """Estimates every component on every row.

        Source: attribution patching, Nanda 2023 and Syed et al. 2023, Σ ∂m/∂x · (x′ − x) where nothing is written; integrated gradients,
        Sundararajan et al. 2017, equation 1, by the midpoint rule along x + α (x′ − x), a layer of a write at a time, as Marks et al. 2024,
        "Sparse feature circuits", equation 3.
        """
        own = with_metrics(self.schedule, [(self.intervention.name, self.metric.name)])
        repeated = Repeated(self.label, own, tuple(self.rows), self.featurizers, self.outputs)
        entries = [(name, entry) for name, write in self.writes.items() for entry in range(len(write.site.addresses))]
        n_runs = 1 if self.step.method == "atp" else 1 + self.step.n_steps * len(entries)
        kept = self.sizes.may_keep()
        level = "token" if self.engine.trust is None else self.engine.trust.level
        live = frozenset({Use(self.label, own.step.name, self.intervention.name, self.index)})
        passes = RepeatedPasses(
            self.engine, self.request, self.step.name, [repeated], at_level(REWRITES, level), self.sizes, n_runs, kept, "on", live
        )
        reasons = metric_reasons(self.schedule, self.intervention, self.metric)
        eligible = {row for row in self.rows if not reasons[row]}
        for batch in passes.batches({0: sorted(eligible)}):
            rows = sorted(batch[0])
            if self.step.method == "atp":
                self.take(self.gradients(passes, rows, Probe(), notes_clean=True), 1.0)
                continue
            self.gradients(passes, rows, Probe(), notes_clean=True)
            for chosen in entries:
                for number in range(self.step.n_steps):
                    probe = Probe((number + 0.5) / self.step.n_steps, chosen)
                    self.take(self.gradients(passes, rows, probe), 1.0 / self.step.n_steps)

    def gradients(self, passes: RepeatedPasses, rows: list[int], probe: Probe, notes_clean: bool = False) -> list[tuple[Probed, Tensor]]:
        """Returns what stood at each write's places, with the metric's gradient there."""
        found = passes.run({0: rows}, probe)[0][self.intervention.name]
        values = score(self.metric, found, rows)[0]
        if notes_clean:
            self.clean |= dict(zip(rows, values.tolist(), strict=True))
        total = torch.where(values.isnan(), torch.zeros_like(values), values).sum()
        leaves = [probed.leaf for probed in probe.found]
        if not leaves or not total.requires_grad:
            return [(probed, torch.zeros_like(probed.leaf)) for probed in probe.found]
        given = torch.autograd.grad(total, leaves, allow_unused=True)
        return [
            (probed, torch.zeros_like(probed.leaf) if gradient is None else gradient)
            for probed, gradient in zip(probe.found, given, strict=True)
        ]

    def take(self, found: Sequence[tuple[Probed, Tensor]], weight: float) -> None:
        """Adds gradient · change of every component to its estimate."""
        for probed, gradient in found:
            heads = self.heads(self.writes[probed.write])
            products = (gradient.double() * probed.moved.double()).reshape(len(probed.places), len(heads), -1).sum(dim=-1)
            for line, (row, token), number in zip(products.tolist(), probed.places, probed.numbers, strict=True):
                for head, value in zip(heads, line, strict=True):
                    component = Component(probed.write, probed.entry, number, head)
                    by_row = self.estimates.setdefault(component, {})
                    by_row[row] = by_row.get(row, 0.0) + weight * value
                    self.places.setdefault(component, {})[row] = token

    def largest(self, n: int) -> list[Component]:
        """Returns the components whose estimates are the largest, as the mean over rows."""
        sizes = {component: abs(sum(by_row.values()) / len(by_row)) for component, by_row in self.estimates.items()}
        return sorted(sizes, key=lambda component: (-sizes[component], component))[:n]

    def exact(self, components: Sequence[Component]) -> dict[Component, dict[int, float]]:
        """Returns by how much the metric changes where a component alone is written, row by row."""
        point = next(point for point in self.request.points if point.label == self.label)
        own = with_metrics(self.schedule, [(self.intervention.name, self.metric.name)])
        schedules = {
            component: Schedule(replace(point, label=f"{self.label}#{number}"), (self.with_part(own, component),))
            for number, component in enumerate(components)
        }
        plain = plain_schedule(self.request, list(schedules.values()))
        level = "token" if self.engine.trust is None else self.engine.trust.level
        store = Store(self.engine, rewrite(plain, at_level(REWRITES, level)), self.request.prompts, self.sizes)
        found: dict[Component, dict[int, float]] = {}
        for component, schedule in schedules.items():
            label = schedule.point.label
            store.made |= {f"{label}/{name}": made for name, made in self.outputs.items()}
            for (owner, _), keys in store.physical.learned.items():
                if owner == label:
                    store.featurizers.learned |= {key: self.featurizers.learned[name] for name, key in keys.items()}
            (step,) = schedule.steps
            observed = store.observe(label, step, step.step.interventions[0], self.rows, self.featurizers)
            rows = sorted(self.estimates[component])
            values = score(self.metric, observed, rows)[0].tolist()
            found[component] = {row: value - self.clean[row] for row, value in zip(rows, values, strict=True)}
        return found

    def with_part(self, schedule: StepSchedule, component: Component) -> StepSchedule:
        """Returns a step in which a component alone is written."""
        name, index = self.intervention.name, self.index
        one, write = schedule.passes[name][index], self.writes[component.write]
        layers = write.site.layers[component.entry : component.entry + 1]
        head = None if component.head < 0 else component.head
        part = replace(
            write,
            site=replace(write.site, layers=layers, is_stacked=False),
            part=nodes.WritePart(component.entry, component.token, head),
            is_control=True,
        )
        tokens = self.places[component]
        window = tuple(Window((tokens[row],)) if row in tokens else Window(()) for row in range(schedule.step.n_rows))
        alone = replace(one.only([part, *one.forward.reads], {part.name: window}), whole={part.name: one.windows[part.name]})
        passes = [alone if number == index else other for number, other in enumerate(schedule.passes[name])]
        return StepSchedule(schedule.step, {name: tuple(passes)})

    def lines(self, exact: Mapping[Component, Mapping[int, float]]) -> list[dict[str, Any]]:
        """Returns the table: a line a component and row."""
        forward = self.schedule.passes[self.intervention.name][self.index].forward
        prompts = self.request.prompts[forward.rows]
        longest = max(prompt.n_tokens for prompt in prompts)
        reasons = metric_reasons(self.schedule, self.intervention, self.metric)
        table = []
        for component in sorted(self.estimates):
            write = self.writes[component.write]
            for row, label in enumerate(self.step.observed.labels):
                value, token = self.estimates[component].get(row), self.places[component].get(row)
                reason = "" if value is not None else reasons[row] or "out_of_range"
                line = {
                    "example_id": label,
                    "metric": self.metric.name,
                    "write": component.write,
                    **({"layer": write.site.layers[component.entry]} if write.site.layers else {}),
                    **({"head": component.head} if component.head >= 0 else {}),
                    "token": component.token,
                    "value": value,
                    "exact": exact.get(component, {}).get(row),
                    "eligible": value is not None,
                    "positions": None if token is None else [longest - prompts[row].n_content + token],
                    "reason": reason,
                    "unit": self.metric.unit,
                    "estimand_version": f"{self.step.method}/{ESTIMAND_VERSION}",
                    "tokens": None if token is None else prompts[row].text_of((token,)),
                }
                table.append(line)
        return table


def attribute(
    engine: Engine,
    request: nodes.Request,
    label: str,
    step: nodes.Attribute,
    schedule: StepSchedule,
    rows: Sequence[int],
    outputs: Mapping[str, Made],
    featurizers: Featurizers,
    sizes: Sizes,
) -> Attributed:
    """Returns the estimates of an attribution, the largest beside what they really do.

    Args:
        engine: the checkpoint, with its weights.
        request: what is run.
        label: of the point.
        step: the attribution.
        schedule: of its intervention.
        rows: that run.
        outputs: of earlier steps.
        featurizers: of the point, with what has been trained.
        sizes: how many rows a batch may have.
    """
    made = Attribution(engine, request, label, step, schedule, rows, outputs, featurizers, sizes)
    made.estimate()
    chosen = made.largest(step.verify_top) if step.verify_top is not None else []
    exact = made.exact(chosen) if chosen else {}
    pairs = [[(made.estimates[component][row], value) for row, value in by_row.items()] for component, by_row in exact.items()]
    return Attributed(made.lines(exact), agreement(pairs) if pairs else None)
