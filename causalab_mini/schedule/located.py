"""The located plan: the passes of every step, with the window of every place on every row, and the refusals that needs.

A write with nowhere to go is refused here, before any weight is loaded; a read that misses makes its row ineligible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from causalab_mini.data.prompts import Prompt
from causalab_mini.errors import PlanError, Problem, quoted
from causalab_mini.model.components import COMPONENTS
from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.locate import Reason, Window, locate

Windows = tuple[Window, ...]
"""One window a row of the step."""

Keys = tuple[tuple[int, ...], ...]
"""One list of keys a row of the step, as content indices."""

REASON_HINTS = {
    "alignment_ambiguous": "a position's text stands in the row more than once: `occurrence` or `segment` in its scope says which",
    "alignment_missing": "a position's text is not in the row; `causalab-mini tokens MODEL --data REF --pos POS` shows the rows",
    "out_of_range": "a position's run has fewer tokens than its cut asks for; `causalab-mini tokens MODEL --data REF --pos POS` shows them",
    "column_missing": "the cells of the metric's column are empty",
}
MISSING_WRITE_HINT = (
    "a read may miss a row, a write may not: the row would be scored as if it had been written. Take the row out, or mend its anchor"
)
AMBIGUOUS_HINT = "; for a text that stands there more than once, `occurrence` or `segment` in its scope says which"


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """One forward over the rows of a step, every place located.

    Attributes:
        windows: by read and write name.
        keys: by name, for the places that have keys.
        missing: rows on which an operand has no value, with the reason; they are not written.
        whole: by write name, the windows of writes of which only a part is made.
    """

    forward: nodes.Forward
    windows: Mapping[str, Windows]
    keys: Mapping[str, Keys]
    missing: Mapping[int, Reason]
    whole: Mapping[str, Windows] = field(default_factory=dict)

    def only(self, places: Iterable[nodes.Write | nodes.Read], windows: Mapping[str, Windows] | None = None) -> Pass:
        """Returns the pass with some places alone, in forward order.

        Args:
            places: that are left.
            windows: of places that have others now.
        """
        ordered = tuple(sorted(places, key=lambda place: (place.site.rank, isinstance(place, nodes.Read))))
        names = {place.name for place in ordered}
        return Pass(
            replace(self.forward, places=ordered),
            {name: found for name, found in {**self.windows, **(windows or {})}.items() if name in names},
            {name: found for name, found in self.keys.items() if name in names},
            self.missing,
            {name: found for name, found in self.whole.items() if name in names},
        )


@dataclass(frozen=True, slots=True, eq=False)
class StepSchedule:
    """The passes of one step, in the order in which they can run, by intervention; what they generate comes last.

    Places in what is generated have empty windows: they are found when it is.
    """

    step: nodes.Observe
    passes: Mapping[str, tuple[Pass, ...]]
    generations: Mapping[str, tuple[Pass, ...]] = field(default_factory=dict)

    def every(self, intervention: str) -> tuple[Pass, ...]:
        """Returns all that is run for an intervention."""
        return (*self.passes[intervention], *self.generations.get(intervention, ()))

    def windows(self, intervention: str, name: str) -> Windows:
        """Returns the windows of a read or write."""
        return next(one.windows[name] for one in self.every(intervention) if name in one.windows)

    def n_keys(self, intervention: str, read: str) -> tuple[int, ...] | None:
        """Returns how many keys a read has on each row; None where its features are no keys."""
        keys = next((one.keys[read] for one in self.passes[intervention] if read in one.keys), None)
        return None if keys is None else tuple(map(len, keys))

    def reasons(self, intervention: str, read: str) -> tuple[Reason, ...]:
        """Returns, row by row, why a read has no value that may be scored; empty where it has one."""
        owner = next(one for one in self.every(intervention) if any(entry.name == read for entry in one.forward.reads))
        return tuple(window.reason or owner.missing.get(row, "") for row, window in enumerate(owner.windows[read]))


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """What is run for one point.

    Attributes:
        steps: those that observe, and what fits are judged by, in their order.
        trainings: by step, what fits are trained with.
        attributions: by step, what gradients are taken of.
    """

    point: nodes.PlannedPoint
    steps: tuple[StepSchedule, ...]
    trainings: Mapping[str, StepSchedule] = field(default_factory=dict)
    attributions: Mapping[str, StepSchedule] = field(default_factory=dict)

    def step(self, name: str) -> StepSchedule:
        """Returns what a step observes, or is judged by."""
        return next(step for step in self.steps if step.step.name == name)


@dataclass(slots=True)
class _Shapes:
    """What is known of outputs while steps are scheduled.

    Attributes:
        by_output: tokens a row, tokens of a window, or one vector (None).
        keys: keys a row, of outputs whose features are keys.
        reasons: why a row has no value, of unreduced outputs; empty where it has one.
        groups: why a group has no value, of outputs of groups.
        generated: unreduced outputs of what is generated, whose tokens are not known yet.
    """

    by_output: dict[str, tuple[int, ...] | int | None] = field(default_factory=dict)
    keys: dict[str, tuple[int, ...]] = field(default_factory=dict)
    reasons: dict[str, tuple[Reason, ...]] = field(default_factory=dict)
    groups: dict[str, dict[str, Reason]] = field(default_factory=dict)
    generated: set[str] = field(default_factory=set)

    def missing(self, operand: nodes.FromOutput) -> dict[int, Reason]:
        """Returns the rows for which an output has no value, with the reason."""
        by_group = self.groups.get(operand.output, {})
        reasons = self.reasons.get(operand.output, ()) if operand.groups is None else [by_group.get(group, "") for group in operand.groups]
        return {row: reason for row, reason in enumerate(reasons) if reason}


def build_schedule(request: nodes.Request, point: nodes.PlannedPoint) -> Schedule:
    """Returns the schedule of one point of a request.

    Raises:
        PlanError: a write has nowhere to go, a read without anchor misses, an operand has another width than its write, or no row
            of a metric can be scored; with every problem.
    """
    problems: list[Problem] = []
    shapes = _Shapes()
    steps: list[StepSchedule] = []
    trainings, attributions = {}, {}
    for step in point.plan.steps:
        for observed in nodes.observed_by(step):
            every = {item.name: _passes(request, observed, item, shapes, problems) for item in observed.experiments}
            passes = {name: tuple(one for one in found if one.forward.decode is None) for name, found in every.items()}
            generations = {name: tuple(one for one in found if one.forward.decode is not None) for name, found in every.items()}
            schedule = StepSchedule(observed, passes, generations)
            if isinstance(step, nodes.Fit) and observed is step.training:
                trainings[step.name] = schedule
            elif isinstance(step, nodes.Attribute):
                attributions[step.name] = schedule
            else:
                steps.append(schedule)
            if observed.where is None:
                problems += _without_eligible_rows(schedule)
            problems += _with_other_keys(schedule)
            problems += _note_outputs(schedule, shapes)
    if problems:
        raise PlanError(dict.fromkeys(problems))
    return Schedule(point, tuple(steps), trainings, attributions)


def _passes(
    request: nodes.Request, step: nodes.Observe, intervention: nodes.Intervention, shapes: _Shapes, problems: list[Problem]
) -> tuple[Pass, ...]:
    passes: list[Pass] = []
    reasons: dict[str, list[Reason]] = {}
    tokens: dict[str, Windows] = {}
    key_tokens: dict[str, Keys] = {}
    source_lengths: dict[str, list[int]] = {}
    for forward in intervention.runs:
        prompts = request.prompts[forward.rows]
        windows = {place.name: _windows(place, forward, prompts) for place in forward.places}
        keys = {place.name: _keys(place, forward, prompts) for place in forward.places if COMPONENTS[place.site.component].has_keys}
        queries = dict(windows)
        for name, by_row in keys.items():
            windows[name] = tuple(
                Window((), found.reason) if found.reason and not window.reason else window
                for window, found in zip(windows[name], by_row, strict=True)
            )
        key_tokens |= {name: tuple(found.tokens for found in by_row) for name, by_row in keys.items()}
        source_lengths |= {read.name: [prompt.n_tokens for prompt in prompts] for read in forward.reads}
        missing: dict[int, Reason] = {}
        for place in forward.places:
            path = f"{intervention.path}.{'writes' if isinstance(place, nodes.Write) else 'reads'}.{place.name}"
            found = windows[place.name]
            if isinstance(place, nodes.Read):
                reasons[place.name] = [window.reason for window in found]
                if place.pos.scope is None and not place.is_hidden:
                    problems += _misses(f"{path}.pos", queries[place.name], step)
                if place.keys is not None and place.keys.scope is None and not place.is_hidden:
                    problems += _misses(f"{path}.keys", keys[place.name], step)
            else:
                problems += _nowhere(f"{path}.pos", queries[place.name], step)
                problems += _nowhere(f"{path}.keys", keys.get(place.name, ()), step)
                if isinstance(place.operand, nodes.FromRead):
                    late = reasons.get(place.operand.read) or [""] * len(found)
                    missing |= {row: reason for row, reason in enumerate(late) if reason}
                if place.like is not None:
                    missing |= {row: reason for row, reason in enumerate(reasons.get(place.like, ())) if reason}
                if isinstance(place.operand, nodes.FromOutput):
                    missing |= shapes.missing(place.operand)
                problems += _width_problems(path, place, found, {**tokens, **windows}, shapes, step.where is not None)
                if place.name in keys:
                    problems += _key_problems(path, place, found, key_tokens, source_lengths, prompts)
        for read in forward.reads:
            reasons[read.name] = [reason or missing.get(row, "") for row, reason in enumerate(reasons[read.name])]
        tokens |= windows
        passes.append(Pass(forward, windows, {name: key_tokens[name] for name in keys}, missing))
    return tuple(passes)


def _windows(place: nodes.Read | nodes.Write, forward: nodes.Forward, prompts: Sequence[Prompt]) -> Windows:
    if place.pos.is_generated:
        return (Window(()),) * len(prompts)
    if forward.appended is not None and isinstance(place, nodes.Read):
        return tuple(
            Window(tuple(range(prompt.n_content - 1, prompt.n_content - 1 + len(answer)))) if answer else Window((), "column_missing")
            for prompt, answer in zip(prompts, forward.appended, strict=True)
        )
    anchors = place.anchors or (None,) * len(prompts)
    return tuple(locate(place.pos, anchor, prompt) for anchor, prompt in zip(anchors, prompts, strict=True))


def _keys(place: nodes.Read | nodes.Write, forward: nodes.Forward, prompts: Sequence[Prompt]) -> Windows:
    """Returns the keys that a place names on each row: those of its position, or every token of the row."""
    if place.keys is None:
        extra = [0] * len(prompts) if forward.appended is None else [len(answer) for answer in forward.appended]
        return tuple(Window(tuple(range(-prompt.n_prefix, prompt.n_content + n))) for prompt, n in zip(prompts, extra, strict=True))
    anchors = place.key_anchors or (None,) * len(prompts)
    return tuple(locate(place.keys, anchor, prompt) for anchor, prompt in zip(anchors, prompts, strict=True))


def _key_problems(
    path: str,
    write: nodes.Write,
    windows: Windows,
    keys: Mapping[str, Keys],
    lengths: Mapping[str, Sequence[int]],
    prompts: Sequence[Prompt],
) -> Iterable[Problem]:
    """Yields the rows whose pattern can't be written: from rows with another mask, or with nothing left to attend to."""
    if isinstance(write.operand, nodes.FromOutput):
        yield Problem(
            f"{path}.operand", "a read or a number, at a site with keys", f"the output {quoted(write.operand.output)}", code="keys"
        )
    if isinstance(write.operand, nodes.FromRead):
        read = write.operand.read
        own = [prompt.n_tokens for prompt in prompts]
        others = list(lengths.get(read, own))
        deranged = write.operand.derangement is not None
        differ = [row for row, (a, b) in enumerate(zip(own, others, strict=True)) if a != b or (deranged and a != own[0])]
        same_keys = read not in keys or all(len(a) == len(b) for a, b in zip(keys[read], keys[write.name], strict=True))
        if differ:
            row = differ[0]
            got = (
                f"{others[row]} tokens for {own[row]} on row {row}"
                if not deranged
                else f"{own[row]} tokens on row {row}, {own[0]} on row 0"
            )
            yield Problem(f"{path}.operand", "an operand from rows of as many tokens (patterns have them as axis)", got, code="keys")
        elif not same_keys:
            yield Problem(f"{path}.operand", "as many keys as are written, row by row", f"another number in {quoted(read)}", code="keys")
    if write.mechanism == "knockout":
        for row, (window, cut) in enumerate(zip(windows, keys[write.name], strict=True)):
            left = [key for key in range(-prompts[row].n_prefix, min(window.tokens, default=0) + 1) if key not in cut]
            if window.tokens and not left:
                got = f"all keys of token {min(window.tokens)} cut on row {row}"
                yield Problem(f"{path}.keys", "a key that is left to attend to, for every query", got, code="keys")
                return


def _rows_text(step: nodes.Observe, rows: Mapping[int, str]) -> str:
    if len(rows) == step.n_rows > 20 and len(set(rows.values())) == 1:
        return f"any of {step.n_rows} rows ({rows[0]})"
    shown = ", ".join(
        f"row {row} ({reason})" if step.labels[row] == str(row) else f"row {row} {quoted(step.labels[row])} ({reason})"
        for row, reason in list(rows.items())[:20]
    )
    return shown + (f" and {len(rows) - 20} more rows" if len(rows) > 20 else "")


def _nowhere(path: str, windows: Windows, step: nodes.Observe) -> list[Problem]:
    rows = {row: window.reason for row, window in enumerate(windows) if window.reason}
    if not rows or step.where is not None:
        return []
    hint = MISSING_WRITE_HINT + (AMBIGUOUS_HINT if "alignment_ambiguous" in rows.values() else "")
    return [Problem(path, "something to write on every row", f"nothing on {_rows_text(step, rows)}", hint, "write_has_no_place")]


def _misses(path: str, windows: Windows, step: nodes.Observe) -> list[Problem]:
    rows = {row: window.reason for row, window in enumerate(windows) if window.reason}
    if not rows or step.where is not None:
        return []
    return [Problem(path, "a position that every row has", f"none on {_rows_text(step, rows)}", code="read_has_no_place")]


def _width_problems(
    path: str, write: nodes.Write, windows: Windows, tokens: Mapping[str, Windows], shapes: _Shapes, is_filtered: bool
) -> Iterable[Problem]:
    """Yields the rows on which an operand has another number of tokens than its write."""
    if write.align != "exact" or write.operand is None or isinstance(write.operand, nodes.Constant):
        return
    if isinstance(write.operand, nodes.FromRead):
        if write.operand.read not in tokens or write.pos.is_generated:
            return
        widths: Sequence[int] = [len(window.tokens) for window in tokens[write.operand.read]]
        if write.operand.derangement is not None and write.mechanism != "permute":
            counts = Counter(width for width in widths if width)
            lonely = [row for row, width in enumerate(widths) if counts[width] == 1]
            if lonely and not is_filtered:
                got = f"row {lonely[0]} alone with {widths[lonely[0]]} tokens"
                hint = "with an `align` other than `exact`, operands of any width land"
                yield Problem(
                    path, "another row with as many tokens for every row (`shuffled_source` takes its operand)", got, hint, "width"
                )
                return
        elif write.operand.derangement is not None:
            if len(set(widths)) > 1:
                yield Problem(
                    path,
                    "as many tokens on every row (`permute` takes another row's)",
                    f"from {min(widths)} to {max(widths)}",
                    code="width",
                )
            return
        what = quoted(write.operand.read)
    else:
        shape = shapes.by_output.get(write.operand.output)
        if write.operand.output in shapes.generated or (write.pos.is_generated and shape not in (None, 1)):
            hint = "`reduce: mean` makes one vector; `align: mean` gives a row's mean to every written token"
            got = f"{quoted(write.operand.output)}, of as many tokens as each row has"
            yield Problem(f"{path}.operand", "one vector, or one token a row, in the generated frame or from it", got, hint, "width")
            return
        if shape is None or shape == 1:
            return
        widths = shape if isinstance(shape, tuple) else (shape,) * len(windows)
        what = quoted(write.operand.output)
        if len(widths) != len(windows):
            yield Problem(f"{path}.operand", f"an output of {len(windows)} rows", f"{what}, of {len(widths)}", code="width")
            return
    differ = [
        row
        for row, (width, window) in enumerate(zip(widths, windows, strict=True))
        if width and window.tokens and width != len(window.tokens)
    ]
    if differ:
        row = differ[0]
        got = f"{what} with {widths[row]} for {len(windows[row].tokens)} on row {row}"
        got += f" (rows {', '.join(map(str, differ[:20]))}{' …' if len(differ) > 20 else ''} differ)" if len(differ) > 1 else ""
        hint = "`align` says how an operand of another width lands: `last`, `first` or `mean`"
        yield Problem(f"{path}.operand", "as many tokens as are written, row by row", got, hint, "width")


def _without_eligible_rows(schedule: StepSchedule) -> Iterable[Problem]:
    for intervention in schedule.step.interventions:
        for metric in intervention.metrics:
            reasons = metric_reasons(schedule, intervention, metric)
            if all(reasons):
                path = f"{intervention.path}.metrics.{metric.name}"
                counts = ", ".join(f"{reasons.count(reason)} × {reason}" for reason in dict.fromkeys(reasons))
                hint = "; ".join(REASON_HINTS[reason] for reason in dict.fromkeys(reasons) if reason in REASON_HINTS)
                got = f"none of {len(reasons)} ({counts})"
                yield Problem(path, "at least one row that can be scored", got, hint, "no_eligible_row")


def _with_other_keys(schedule: StepSchedule) -> Iterable[Problem]:
    """Yields the metrics that compare reads of other numbers of keys."""
    for intervention in schedule.step.interventions:
        for metric in intervention.metrics:
            if "against" not in metric.reads:
                continue
            of, against = (schedule.n_keys(intervention.name, metric.reads[key]) for key in ("of", "against"))
            if of != against:
                path = f"{intervention.path}.metrics.{metric.name}.against"
                expected = f"as many keys as {quoted(metric.reads['of'])} has, row by row"
                yield Problem(path, expected, f"another number in {quoted(metric.reads['against'])}", code="keys")


def metric_reasons(schedule: StepSchedule, intervention: nodes.Intervention, metric: nodes.Metric) -> tuple[Reason, ...]:
    """Returns, row by row, why a metric can't be scored; empty where it can."""
    found: list[Reason] = [""] * schedule.step.n_rows
    if metric.run is not None:
        missing = next(
            one.missing for one in schedule.generations[intervention.name] if (one.forward.model, one.forward.role) == metric.run
        )
        found = [missing.get(row, "") for row in range(schedule.step.n_rows)]
    for read in metric.reads.values():
        found = [reason or own for reason, own in zip(found, schedule.reasons(intervention.name, read), strict=True)]
    for cells in metric.tokens.values():
        found = [reason or ("column_missing" if cell is None else "") for reason, cell in zip(found, cells, strict=True)]
    return tuple(found)


def _note_outputs(schedule: StepSchedule, shapes: _Shapes) -> Iterable[Problem]:
    """Notes how many tokens each output of a step has, and yields what can't be made of these rows."""
    step = schedule.step
    for output in step.outputs:
        path = f"steps.{step.name}.outputs.{output.name}"
        if isinstance(output, nodes.Difference):
            minuend, subtrahend = (shapes.by_output.get(name) for name in (output.minuend, output.subtrahend))
            if unknown := {output.minuend, output.subtrahend} & shapes.generated:
                got = f"{quoted(min(unknown))}, of as many tokens as each row has"
                yield Problem(
                    f"{path}.difference", "outputs of one token a row, or one vector, where they are generated", got, code="width"
                )
                continue
            if subtrahend not in (None, 1, minuend):
                expected = f"as many tokens as {quoted(output.minuend)}, row by row, or one vector"
                yield Problem(f"{path}.difference[1]", expected, quoted(output.subtrahend), code="width")
            keys = [shapes.keys.get(name) for name in (output.minuend, output.subtrahend)]
            if keys[0] is not None and keys[1] is not None:
                shapes.keys[output.name] = keys[0]
                if keys[0] != keys[1]:
                    expected = f"as many keys as {quoted(output.minuend)}, row by row"
                    yield Problem(f"{path}.difference[1]", expected, f"another number in {quoted(output.subtrahend)}", code="keys")
            shapes.by_output[output.name] = minuend
            if output.minuend in shapes.reasons:
                shapes.reasons[output.name] = shapes.reasons[output.minuend]
            continue
        intervention = step.intervention(output.intervention)
        read = intervention.read(output.read)
        if read.pos.is_generated:
            if output.reduce == "none" and read.pos.width != 1:
                shapes.generated.add(output.name)
            is_known = output.reduce == "none" or (output.reduce in ("mean", "std") and intervention.is_rectangle(read))
            shapes.by_output[output.name] = output.k if output.reduce == "pca" else read.pos.width if is_known else None
            continue
        widths = tuple(len(window.tokens) for window in schedule.windows(output.intervention, output.read))
        is_rectangle = intervention.is_rectangle(read)
        if (n_keys := schedule.n_keys(output.intervention, output.read)) is not None:
            shapes.keys[output.name] = n_keys
        if output.reduce != "none" and step.where is None and not sum(widths):
            yield Problem(path, "at least one token to reduce", f"none on {len(widths)} rows", code="no_eligible_row")
        reasons = schedule.reasons(output.intervention, output.read)
        match output.reduce:
            case "none":
                shapes.by_output[output.name] = widths
                shapes.reasons[output.name] = reasons
            case "pca":
                shapes.by_output[output.name] = output.k
                if step.where is None and (output.k or 1) >= sum(widths):
                    expected = f"fewer directions than tokens ({sum(widths)} in all rows)"
                    yield Problem(f"{path}.k", expected, quoted(output.k), code="pca")
            case "mean_by":
                shapes.by_output[output.name] = None
                groups = list(zip(output.groups or (), widths, reasons, strict=True))
                there = {group for group, width, _ in groups if width}
                shapes.groups[output.name] = {group: reason for group, _, reason in groups if group not in there}
            case _:
                shapes.by_output[output.name] = read.pos.width if is_rectangle else None
