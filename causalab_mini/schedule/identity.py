"""When two passes are the same pass and two reads the same value: by what they do to which tokens, not by what they are called."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.located import Pass, Schedule

OF_SOME_TOKENS = ("logit_diff", "token_logit", "class_match")
"""Metrics that look at the logits of the tokens they name alone."""


@dataclass(frozen=True, slots=True)
class Use:
    """Where a pass of the plan stands: point, step, intervention, and its place there."""

    point: str
    step: str
    intervention: str
    index: int


@dataclass(frozen=True, slots=True, eq=False)
class Identity:
    """What a pass of the plan is.

    Attributes:
        key: equal for passes that give the same numbers at every place.
        scope: empty, or the step whose rows are known only when it runs.
        values: what each of its reads is, by read name.
        operands: what each of its writes' operands is, by write name, for those that are reads of other passes or outputs.
        featurizers: of its writes, by write name, named by what they are.
    """

    key: str
    scope: str
    values: Mapping[str, str]
    operands: Mapping[str, str]
    featurizers: Mapping[str, nodes.Featurizer]


@dataclass(slots=True)
class Identities:
    """What everything in a point is.

    Attributes:
        passes: in the order in which the plan runs them.
        generations: what is generated, after all passes of an intervention.
        outputs: by name.
        reads: by step, intervention and name.
        wanted: reads that a metric, an output or a continuation is made of, with the features that are looked at; None for all.
        generated: reads of the generated frame, which no pass gives.
        learned: by step, what its fit makes.
        point: label of the point.
        training: the fit whose own passes these are; what it trains is not learned yet.
    """

    point: str
    training: str | None = None
    learned: dict[str, dict[str, str]] = field(default_factory=dict)
    passes: dict[Use, Identity] = field(default_factory=dict)
    generations: dict[Use, Identity] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    reads: dict[tuple[str, str, str], str] = field(default_factory=dict)
    wanted: dict[str, frozenset[int] | None] = field(default_factory=dict)
    generated: set[str] = field(default_factory=set)

    def output(self, name: str) -> str:
        """Returns what an output is; one of a step that is not looked at is what it is called."""
        return self.outputs.get(name, f"{self.point}/{name}")

    def featurizer(self, featurizer: nodes.Featurizer) -> nodes.Featurizer:
        """Returns a featurizer that is named by what it is, made of outputs that are."""
        parts = tuple(self.featurizer(part) for part in featurizer.parts)
        sources = tuple((parameter, self.output(output)) for parameter, output in featurizer.sources)
        named = replace(featurizer, name="", parts=parts, sources=sources, learned=None)
        if featurizer.trained_by is None:
            return replace(named, name=hashed("featurizer", named))
        key = learned_key(self.point, featurizer.trained_by, featurizer.name)
        if featurizer.trained_by != self.training:
            self.learned.setdefault(featurizer.trained_by, {})[featurizer.name] = key
            named = replace(named, learned=key)
        return replace(named, name=key)

    def want(self, read: str, features: frozenset[int] | None) -> None:
        """Notes that features of a read are looked at."""
        if read in self.generated:
            return
        before = self.wanted.get(read, frozenset())
        self.wanted[read] = None if before is None or features is None else before | features


def identities(schedule: Schedule, training: str | None = None) -> Identities:
    """Returns what every pass, read and output of a point is.

    Args:
        schedule: of the point.
        training: the fit whose own passes it has.
    """
    known = Identities(schedule.point.label, training)
    for step_schedule in schedule.steps:
        step = step_schedule.step
        scope = "" if step.where is None else f"{schedule.point.label}/{step.name}"
        for intervention in step.experiments:
            for index, one in enumerate(step_schedule.passes[intervention.name]):
                identity = _identity(one, scope, known, step, intervention)
                known.passes[Use(schedule.point.label, step.name, intervention.name, index)] = identity
                known.reads |= {(step.name, intervention.name, name): key for name, key in identity.values.items()}
            for index, one in enumerate(step_schedule.generations.get(intervention.name, ())):
                identity = _identity(one, scope, known, step, intervention)
                known.generations[Use(schedule.point.label, step.name, intervention.name, index)] = identity
                known.generated |= set(identity.values.values())
                known.reads |= {(step.name, intervention.name, name): key for name, key in identity.values.items()}
                for write in one.forward.writes:
                    if isinstance(write.operand, nodes.FromRead):
                        known.want(identity.operands[write.name], None)
            for metric in intervention.metrics:
                for read in metric.reads.values():
                    known.want(known.reads[step.name, intervention.name, read], _features(metric))
        for output in step.outputs:
            known.outputs[output.name] = _output(output, known, step)
            if isinstance(output, nodes.Output):
                known.want(known.reads[step.name, output.intervention, output.read], None)
    return known


def _features(metric: nodes.Metric) -> frozenset[int] | None:
    """Returns the tokens whose logits alone a metric looks at; None for all."""
    inner = metric.inner or metric
    if inner.kind not in OF_SOME_TOKENS:
        return None
    found: set[int] = set()
    for cell in (cell for cells in {**metric.tokens, **inner.tokens}.values() for cell in cells):
        found |= {cell} if isinstance(cell, int) else set(cell) if isinstance(cell, tuple | list) else set()
    return frozenset(found)


def _identity(one: Pass, scope: str, known: Identities, step: nodes.Observe, intervention: nodes.Intervention) -> Identity:
    own = {read.name for read in one.forward.reads}
    operands: dict[str, str] = {}
    featurizers: dict[str, nodes.Featurizer] = {}
    writes = []
    for write in one.forward.writes:
        operand: Any = repr(write.operand)
        if write.featurizer is not None:
            featurizers[write.name] = known.featurizer(write.featurizer)
        if isinstance(write.operand, nodes.FromRead):
            read = write.operand.read
            if read in own:
                operand = ("own", _place(one, intervention.read(read)), write.operand.derangement)
            else:
                operands[write.name] = known.reads[step.name, intervention.name, read]
                operand = (operands[write.name], write.operand.derangement)
        elif isinstance(write.operand, nodes.FromOutput):
            operands[write.name] = known.output(write.operand.output)
            operand = (operands[write.name], write.operand.groups)
        coordinates = (featurizers.get(write.name), write.features, write.part, write.is_control)
        writes.append((write.name, _place(one, write), write.mechanism, write.params, write.align, write.order, operand, coordinates))
    key = hashed(
        "pass", scope, one.forward.rows, one.forward.appended, one.forward.decode, sorted(one.missing.items()) if writes else (), writes
    )
    values = {read.name: hashed("read", key, _place(one, read), read.view) for read in one.forward.reads}
    return Identity(key, scope, values, operands, featurizers)


def _place(one: Pass, place: nodes.Read | nodes.Write) -> Any:
    windows = tuple((window.tokens, window.reason) for window in one.windows[place.name])
    said = (place.pos, place.anchors) if place.pos.is_generated else None
    return (place.site, windows, one.keys.get(place.name), getattr(place, "view", ""), said)


def _output(output: nodes.Output | nodes.Difference, known: Identities, step: nodes.Observe) -> str:
    if isinstance(output, nodes.Difference):
        return hashed("difference", known.output(output.minuend), known.output(output.subtrahend), output.is_unit)
    read = known.reads[step.name, output.intervention, output.read]
    node = step.intervention(output.intervention).read(output.read)
    featurizer = None if node.featurizer is None else known.featurizer(node.featurizer)
    return hashed("output", read, output.reduce, output.k, output.groups, node.pos, featurizer)


def learned_key(point: str, step: str, featurizer: str) -> str:
    """Returns what stands for what a fit of a point makes of a featurizer, or is making."""
    return hashed("learned", point, step, featurizer)


def hashed(*parts: Any) -> str:
    """Returns what stands for some values: equal where they are spelled alike."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]
