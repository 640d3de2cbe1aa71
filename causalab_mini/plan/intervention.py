"""One intervention of a step as a plan: its writes and reads in forward order, its forwards in the order in which they can run, its scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from causalab_mini.data.answers import AnswerError, answer_token
from causalab_mini.data.patterns import PatternError, compiled
from causalab_mini.data.prompts import Prompt
from causalab_mini.errors import PlanError, Problem, listed, quoted
from causalab_mini.plan import plan as nodes
from causalab_mini.plan import spec as language
from causalab_mini.plan.axes import axes_of, misfit
from causalab_mini.plan.forwards import forward_of, forwards_of, generations_of
from causalab_mini.plan.position import Position
from causalab_mini.plan.spec import as_decode
from causalab_mini.plan.spec.metrics import AnswerLogprob, ClassMatch, GeneratedMatch, LogitDiff, MetricBase, Recovered, TokenMetric

if TYPE_CHECKING:
    from causalab_mini.plan.build import Builder

OPTION_KEYS = ("how", "k")


class InterventionBuilder:
    """Builds one intervention of a step."""

    def __init__(
        self,
        owner: Builder,
        path: str,
        intervention: language.Intervention,
        refs: Mapping[str, str],
        is_filtered: bool,
        prompts: Mapping[str, tuple[Prompt, ...]],
        name: str,
        saved: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.owner = owner
        self.rows = owner.rows
        self.path = path
        self.intervention = intervention
        self.refs = refs
        self.is_filtered = is_filtered
        self.prompts = prompts
        self.name = name
        self.runs = forwards_of(intervention, saved)
        self.generating = generations_of(intervention, saved)
        self.decode = as_decode(intervention.decode)
        self.hidden: dict[tuple[str, str], list[nodes.Read]] = {}
        self.before: dict[tuple[str, str], tuple[str, tuple[str, ...]]] = {}

    def build(self) -> nodes.Intervention:
        """Returns the intervention; problems of its parts are set down with its owner."""
        owner = self.owner
        writes: dict[tuple[str, str], list[nodes.Write]] = {}
        for model, role in self.runs:
            definition = self.intervention.models.get(model)
            for name in definition.writes if definition is not None else ():
                with owner.noting():
                    writes.setdefault((model, role), []).append(self.write(name, model, role))
        for key, (model, earlier) in self.before.items():
            writes[key] = [write for write in writes.get((model, key[1]), []) if write.name in earlier]
        reads: dict[tuple[str, str], list[nodes.Read]] = {}
        said: dict[tuple[str, str], list[nodes.Read]] = {}
        for name, read in self.intervention.reads.items():
            forward = forward_of(read, self.intervention)
            assert forward is not None
            with owner.noting():
                site = owner.site(read.site, f"{self.path}.reads.{name}")
                featurizer = self.featurizer(read, site, f"{self.path}.reads.{name}")
                anchors = self.anchors(read.pos, forward[1], f"{self.path}.reads.{name}.pos")
                key_anchors = None if read.keys is None else self.anchors(read.keys, forward[1], f"{self.path}.reads.{name}.keys")
                node = nodes.Read(name, site, read.pos, anchors, read.view, keys=read.keys, key_anchors=key_anchors, featurizer=featurizer)
                (said if read.pos.is_generated else reads).setdefault(forward, []).append(node)
        for key, extra in self.hidden.items():
            reads.setdefault(key, []).extend(extra)
        built = []
        for model, role in [*(run for run in self.runs if run in reads), *(key for key in self.hidden if key not in self.runs)]:
            own = [self.in_prompt(write) for write in writes.get((model, role), [])]
            built.append(self.forward(model, role, [write for write in own if write is not None], reads[model, role]))
        metrics = []
        for name, metric in self.intervention.metrics.items():
            with owner.noting():
                metrics.append(self.metric(name, metric, built))
        ordered = _in_order(built)
        generations = [self.generation(run, writes.get(run, []), said.get(run, [])) for run in self.generating]
        self.refuse_late_operands(ordered)
        self.refuse_misfits([*ordered, *generations], metrics)
        return nodes.Intervention(self.name, tuple(ordered), tuple(metrics), self.path, tuple(generations))

    def in_prompt(self, write: nodes.Write) -> nodes.Write | None:
        """Returns a write as it is in the forward over the prompt, which produces the first token; None where it is not made there."""
        if not write.pos.is_generated or self.decode is None:
            return write
        steps = write.pos.steps(self.decode.max_new_tokens)
        return replace(write, pos=Position(index=-1)) if steps is not None and 0 in steps else None

    def generation(self, run: tuple[str, str], writes: Sequence[nodes.Write], reads: Sequence[nodes.Read]) -> nodes.Forward:
        """Returns the forwards that generate a continuation."""
        made = self.forward(*run, writes, reads)
        assert self.decode is not None
        longest, n_tokens = self.owner.facts.max_positions, made.n_tokens + self.decode.max_new_tokens
        n_fed = n_tokens - (0 if any(read.pos.lag for read in reads) else 1)
        if longest is not None and n_fed > longest:
            expected = f"at most {longest} tokens with those that are generated (the model's learned positions)"
            self.owner.say(f"{self.path}.decode", expected, f"{made.n_tokens} and {self.decode.max_new_tokens}", code="prompt")
        return replace(made, n_tokens=n_tokens, decode=self.decode)

    def forward(self, model: str, role: str, writes: Sequence[nodes.Write], reads: Sequence[nodes.Read]) -> nodes.Forward:
        """Returns a forward with its places in forward order."""
        both: list[nodes.Write | nodes.Read] = [*writes, *reads]
        places = sorted(both, key=lambda place: (place.site.rank, isinstance(place, nodes.Read)))
        prompts = self.prompts[role]
        key = (self.refs[role], self.owner.spec.roles[role].field)
        return nodes.Forward(model, role, key, len(prompts), max(prompt.n_tokens for prompt in prompts), tuple(places))

    def featurizer(self, place: language.Read | language.Write, site: nodes.Site, path: str) -> nodes.Featurizer | None:
        """Returns the featurizer of a read or write."""
        return None if place.featurizer is None else self.owner.featurizers.at(place.featurizer, site, path)

    def anchors(self, pos: Position, role: str, path: str) -> nodes.Anchors | None:
        """Returns the text of a position's anchor, row by row of a role."""
        return self.rows.anchors(pos.scope, self.refs[role], self.owner.spec.roles[role], path)

    # writes

    def write(self, name: str, model: str, role: str) -> nodes.Write:
        """Returns a write of one model on one role."""
        path = f"{self.path}.writes.{name}"
        write = self.intervention.writes[name]
        site = self.owner.site(write.site, path)
        anchors = self.anchors(write.pos, role, f"{path}.pos")
        featurizer = self.featurizer(write, site, path)
        n_features = axes_of(site, "raw", self.owner.facts, featurizer).n_features
        if write.features is not None and n_features is not None and max(write.features) >= n_features:
            expected = f"below {n_features} (the width of {featurizer.name if featurizer is not None else site})"
            raise PlanError(Problem(f"{path}.features", expected, quoted(max(write.features)), code="features"))
        operand: nodes.Operand | None = None
        match write.operand:
            case str():
                operand = nodes.FromRead(write.operand)
            case language.OutputRef():
                operand = self.output_operand(write.operand.ref, role, site, featurizer, f"{path}.operand")
            case float() | int():
                operand = nodes.Constant(float(write.operand))
        if write.mechanism == "permute":
            operand = self.other_row(name, model, role, site, write, anchors)
            if len(self.prompts[role]) < 2:
                raise PlanError(Problem(path, "at least two rows (`permute` takes another row's value)", "one", code="rows"))
        order = self.intervention.models[model].writes.index(name)
        key_anchors = self.key_anchors(write, role, name)
        return nodes.Write(
            name,
            site,
            write.pos,
            anchors,
            write.mechanism,
            operand,
            write.params,
            write.align,
            order,
            write.keys,
            key_anchors,
            featurizer,
            write.features,
        )

    def key_anchors(self, write: language.Write, role: str, name: str) -> nodes.Anchors | None:
        """Returns the anchors of a write's keys."""
        return None if write.keys is None else self.anchors(write.keys, role, f"{self.path}.writes.{name}.keys")

    def output_operand(self, ref: str, role: str, site: nodes.Site, featurizer: nodes.Featurizer | None, path: str) -> nodes.FromOutput:
        """Returns an operand that is an earlier output.

        Raises:
            PlanError: it has other axes than the write, or lacks a row's group.
        """
        output = self.owner.outputs.get(ref)
        place = axes_of(site, "raw", self.owner.facts, featurizer)
        if output is not None and (problems := misfit(path, ref, self.owner.axes[ref], place)):
            raise PlanError(problems)
        if isinstance(output, nodes.Output) and output.reduce == "mean_by":
            column = next(
                entry.by
                for step in self.owner.spec.steps.values()
                if isinstance(step, language.Observe)
                for name, entry in step.outputs.items()
                if name == ref and isinstance(entry, language.Output)
            )
            groups = self.owner.groups(self.refs[role], str(column), path)
            assert output.groups is not None
            if unknown := sorted(set(groups) - set(output.groups)):
                raise PlanError(
                    Problem(path, f"groups that {quoted(ref)} has ({listed(sorted(set(output.groups)))})", listed(unknown), code="column")
                )
            return nodes.FromOutput(ref, groups)
        return nodes.FromOutput(ref)

    def other_row(
        self, name: str, model: str, role: str, site: nodes.Site, write: language.Write, anchors: nodes.Anchors | None
    ) -> nodes.FromRead:
        """Returns the operand of a `permute`: the value that stands here on another row, before this write.

        It is read in a forward of its own, with the writes that this model has before this one.
        """
        assert write.params.seed is not None
        listed_writes = self.intervention.models[model].writes
        sites = {entry: self.owner.site(self.intervention.writes[entry].site, "") for entry in listed_writes}
        earlier = tuple(
            entry
            for index, entry in enumerate(listed_writes)
            if entry != name and (sites[entry].rank, index) < (site.rank, listed_writes.index(name))
        )
        source = "original" if not earlier else f"{model} before {name}"
        read = f"{name}@{model}@{role}"
        self.hidden.setdefault((source, role), []).append(
            nodes.Read(read, site, write.pos, anchors, is_hidden=True, keys=write.keys, key_anchors=self.key_anchors(write, role, name))
        )
        operands = [self.intervention.writes[entry].operand for entry in earlier]
        own = [entry for entry in operands if isinstance(entry, str) and self.intervention.reads[entry].model == model]
        if own:
            expected = "`permute` after writes whose operands come from other models"
            raise PlanError(Problem(f"{self.path}.writes.{name}", expected, f"{listed(own)}, read in {quoted(model)} itself", code="order"))
        if earlier:
            self.before[source, role] = (model, earlier)
        return nodes.FromRead(read, f"{write.params.seed}/{name}")

    def refuse_late_operands(self, forwards: Sequence[nodes.Forward]) -> None:
        """Refuses an operand that the same forward reads only at or after the place where it is written."""
        for forward in forwards:
            reads = {read.name: read for read in forward.reads}
            for write in forward.writes:
                read = reads.get(write.operand.read) if isinstance(write.operand, nodes.FromRead) else None
                if read is not None and read.site.last_rank >= write.site.rank:
                    got = f"{quoted(read.name)} at `{read.site}`, written at `{write.site}`"
                    expected = "an operand that is read earlier in the same forward"
                    self.owner.say(f"{self.path}.writes.{write.name}.operand", expected, got, code="order")

    def refuse_misfits(self, forwards: Sequence[nodes.Forward], metrics: Sequence[nodes.Metric]) -> None:
        """Refuses operands, and reads that are compared, with other features or layers than what they are for."""
        facts = self.owner.facts
        axes = {
            read.name: axes_of(read.site, read.view, facts, read.featurizer)
            for forward in forwards
            for read in forward.reads
            if not read.is_hidden
        }
        for write in {write.name: write for forward in forwards for write in forward.writes}.values():
            if isinstance(write.operand, nodes.FromRead) and write.operand.read in axes:
                place, name = axes_of(write.site, "raw", facts, write.featurizer), write.operand.read
                self.owner.problems += misfit(f"{self.path}.writes.{write.name}.operand", name, axes[name], place)
        for metric in metrics:
            for key, name in metric.reads.items():
                if key not in ("of", "answer") and name in axes and metric.reads["of"] in axes:
                    self.owner.problems += misfit(f"{self.path}.metrics.{metric.name}.{key}", name, axes[name], axes[metric.reads["of"]])

    # metrics

    def metric(self, name: str, metric: MetricBase, forwards: list[nodes.Forward]) -> nodes.Metric:
        """Returns a metric with its columns as tokens; a whole answer adds the forward that scores it."""
        path = f"{self.path}.metrics.{name}"
        reads = {key: getattr(metric, key) for key in metric.reads}
        options = {key: getattr(metric, key) for key in OPTION_KEYS if hasattr(metric, key)}
        base = self.refs.get("base", "")
        tokens: dict[str, tuple[Any, ...]] = {}
        is_filtered = self.is_filtered
        if isinstance(metric, Recovered):
            scored = self.intervention.metrics[metric.metric]
            inner = self.metric(metric.metric, scored, forwards)
            if isinstance(scored, AnswerLogprob):
                for key in ("of", "clean", "corrupt"):
                    reads[f"{key} answer"] = self.answer(f"{name} {key}", reads[key], path, inner.tokens["target"], forwards)
            reads |= {key: read for key, read in inner.reads.items() if key not in reads and key != "answer"}
            return nodes.Metric(name, "recovered", metric.unit, reads, inner.tokens, options, inner)
        if isinstance(metric, AnswerLogprob):
            tokens["target"] = self.rows.tokens(base, metric.target, metric.token_form, f"{path}.target", True, is_filtered)
            reads["answer"] = self.answer(name, metric.of, path, tokens["target"], forwards)
        elif isinstance(metric, TokenMetric):
            for key in metric.columns:
                tokens[key] = self.rows.tokens(base, getattr(metric, key), metric.token_form, f"{path}.{key}", is_filtered=is_filtered)
        if isinstance(metric, GeneratedMatch):
            run = forward_of(metric, self.intervention)
            tokens["expected"] = self.expected(metric, path)
            return nodes.Metric(name, _kind(metric), metric.unit, {}, tokens, options, run=run)
        if isinstance(metric, LogitDiff):
            equal = [row for row, (a, b) in enumerate(zip(tokens["a"], tokens["b"], strict=True)) if a is not None and a == b]
            expected = f"two different tokens in {quoted(metric.a)} and {quoted(metric.b)}"
            if equal and not is_filtered:
                raise PlanError(Problem(path, expected, f"the same on rows {equal[:10]}", code="token"))
            bad = {row: nodes.BadCell(Problem(path, expected, f"the same on row {row}", code="token")) for row in equal}
            tokens["a"] = tuple(bad.get(row, cell) for row, cell in enumerate(tokens["a"]))
        if isinstance(metric, ClassMatch):
            tokens["classes"] = self.classes(path, metric, tokens["expected"])
        return nodes.Metric(name, _kind(metric), metric.unit, reads, tokens, options)

    def expected(self, metric: GeneratedMatch, path: str) -> tuple[str | nodes.BadCell | None, ...]:
        """Returns each row's expected text.

        Raises:
            PlanError: a cell is neither text nor number, or no regular expression where it should be one.
        """
        cells: list[str | nodes.BadCell | None] = []
        for row, cell in enumerate(self.rows.column(self.refs["base"], metric.expected, f"{path}.expected")):
            found: str | nodes.BadCell | None = None
            if isinstance(cell, str | int | float) and not isinstance(cell, bool):
                found = str(cell) if metric.how == "regex" or str(cell).strip() else None
            elif cell is not None:
                found = nodes.BadCell(Problem(f"{path}.expected", "a text on every row", f"{quoted(cell)} on row {row}", code="column"))
            if isinstance(found, str) and metric.how == "regex":
                try:
                    compiled(found)
                except PatternError as error:
                    got = f"{quoted(found)} on row {row} ({error})"
                    found = nodes.BadCell(Problem(f"{path}.expected", "a regular expression on every row", got, code="column"))
            if isinstance(found, nodes.BadCell) and not self.is_filtered:
                raise PlanError(found.problem)
            cells.append(found)
        return tuple(cells)

    def classes(self, path: str, metric: ClassMatch, expected: Sequence[int | None]) -> tuple[tuple[int, ...] | None, ...]:
        """Returns each row's classes as token ids.

        Raises:
            PlanError: a cell is no list of two tokens or more, or lacks the expected one.
        """
        base = self.refs["base"]
        cells: list[Any] = (
            [metric.classes] * len(expected)
            if isinstance(metric.classes, tuple)
            else self.rows.column(base, metric.classes, f"{path}.classes")
        )
        classes: list[tuple[int, ...] | None] = []
        for row, cell in enumerate(cells):
            if cell is None:
                classes.append(None)
                continue
            try:
                ids = (
                    tuple(answer_token(self.rows.tokenizer, text, metric.token_form) for text in cell)
                    if isinstance(cell, list | tuple)
                    else ()
                )
            except AnswerError as error:
                raise PlanError(Problem(f"{path}.classes", error.expected, f"{error.got} on row {row}", code="token")) from None
            if len(set(ids)) < 2:
                raise PlanError(
                    Problem(f"{path}.classes", "a list of at least two different tokens", f"{quoted(cell)} on row {row}", code="token")
                )
            if expected[row] is not None and expected[row] not in ids:
                raise PlanError(
                    Problem(
                        f"{path}.classes",
                        f"classes with the one of {quoted(metric.expected)}",
                        f"{quoted(cell)} on row {row}",
                        code="token",
                    )
                )
            classes.append(ids)
        return tuple(classes)

    def answer(self, name: str, scored: str, path: str, answers: Sequence[Any], forwards: list[nodes.Forward]) -> str:
        """Adds the forward that scores a whole answer: the scored model on prompts with the answers after them."""
        prompt_forward = next(forward for forward in forwards if any(read.name == scored for read in forward.reads))
        of = next(read for read in prompt_forward.reads if read.name == scored)
        if of.pos.scope is not None or of.pos.offset or (of.pos.index != -1 and of.pos.last != 1):
            expected = "a read of the last token (the answer stands after it)"
            raise PlanError(Problem(f"{path}.of", expected, f"{quoted(scored)} at `{of.pos}`", code="position"))
        read = nodes.Read(f"{scored}+{name}", of.site, Position(last=1), None, of.view, is_hidden=True)
        places = [place for place in prompt_forward.places if isinstance(place, nodes.Write)]
        appended = tuple(answer if isinstance(answer, tuple) else () for answer in answers)
        n_tokens = max(prompt.n_tokens + len(answer) for prompt, answer in zip(self.prompts[prompt_forward.role], appended, strict=True))
        longest = self.owner.facts.max_positions
        if longest is not None and n_tokens > longest:
            expected = f"at most {longest} tokens with the answer (the model's learned positions)"
            raise PlanError(Problem(f"{path}.target", expected, str(n_tokens), code="prompt"))
        forwards.append(
            nodes.Forward(
                prompt_forward.model, prompt_forward.role, prompt_forward.rows, prompt_forward.n_rows, n_tokens, (*places, read), appended
            )
        )
        return read.name


def _kind(metric: MetricBase) -> str:
    return str(getattr(metric, "kind"))  # noqa: B009 - every member of the union has it, the base has not


def _in_order(forwards: Sequence[nodes.Forward]) -> list[nodes.Forward]:
    """Returns forwards so that each comes after those whose reads it writes, as near to their own order as that allows."""
    made = {read.name: index for index, forward in enumerate(forwards) for read in forward.reads}
    ordered: list[int] = []
    while len(ordered) < len(forwards):
        for index, forward in enumerate(forwards):
            needs = {made[w.operand.read] for w in forward.writes if isinstance(w.operand, nodes.FromRead) and w.operand.read in made}
            if index not in ordered and needs - {index} <= set(ordered):
                ordered.append(index)
                break
        else:
            return list(forwards)
    return [forwards[index] for index in ordered]
