"""One row of an intervention by itself, under plain PyTorch hooks: what the numbers of a run are held against.

It shares a plan, the windows of its places and the formulas of mechanisms and featurizers with what runs batches, and nothing else: no
padding, mask or position ids, no cache, no engine's stops, no arithmetic of rows. A fault in one of those can't be in both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from causalab_mini.data.prompts import Prompt
from causalab_mini.engine.contract import Engine
from causalab_mini.engine.decoding import Continuation
from causalab_mini.engine.featurizers import Featurizers
from causalab_mini.engine.given import Prompts
from causalab_mini.engine.gradients import gradients
from causalab_mini.engine.made import OutputTensors
from causalab_mini.engine.observe import Observed
from causalab_mini.errors import quoted
from causalab_mini.model.components import forward_rank
from causalab_mini.model.facts import ModelFacts
from causalab_mini.model.families import INTERIOR
from causalab_mini.ops import mechanisms
from causalab_mini.ops.featurizers import Coordinates
from causalab_mini.ops.windows import Value
from causalab_mini.plan import plan as nodes
from causalab_mini.schedule.located import Pass, StepSchedule

Groups = Sequence[Sequence[int]]
"""Tokens of a place; those of each group are written by themselves."""


def why_not_alone(facts: ModelFacts, intervention: nodes.Intervention) -> str:
    """Returns why an intervention can't be run under hooks at the borders of modules; empty where it can."""
    for place in (place for forward in intervention.runs for place in forward.places):
        found = [facts.address(place.site.component, layer) for layer in place.site.addresses]
        if any(address is not None and address.side in INTERIOR for address in found):
            return f"{quoted(place.site.component)} is inside a module"
        if isinstance(place, nodes.Write) and place.part is not None:
            return "a part of a write is made"
    for forward in intervention.generations:
        own = {read.name for read in forward.reads}
        if any(isinstance(write.operand, nodes.FromRead) and write.operand.read in own for write in forward.writes):
            return "a write takes what the same continuation reads"
    return ""


def observe_alone(
    engine: Engine,
    schedule: StepSchedule,
    intervention: nodes.Intervention,
    prompts: Prompts,
    outputs: OutputTensors,
    row: int,
    featurizers: Featurizers,
    batch: Observed,
) -> Observed:
    """Returns what an intervention finds on one row of its step; of a continuation, on what the batch had the row say.

    Args:
        engine: the checkpoint, with its weights.
        schedule: of the step.
        intervention: which of its interventions, for which `why_not_alone` is empty.
        prompts: of the request.
        outputs: of earlier steps.
        row: of the step.
        featurizers: with what has been trained.
        batch: what was found in the batch: what was said there, and where generated positions are; no number of it is taken.
    """
    alone = _Alone(engine, row, outputs, featurizers)
    observed = Observed((row,))
    for one in schedule.passes[intervention.name]:
        prompt = prompts[one.forward.rows][row]
        tokens: dict[str, Groups] = {place.name: [one.windows[place.name][row].tokens] for place in one.forward.places}
        answer = () if one.forward.appended is None else tuple(one.forward.appended[row])
        alone.run(one, prompt.ids + answer, prompt.n_prefix, tokens)
    for one in schedule.generations.get(intervention.name, ()):
        prompt, said = prompts[one.forward.rows][row], batch.said[one.forward.model, one.forward.role][row]
        tokens = {place.name: _tokens_said(place, one, row, prompt, batch, len(said.ids)) for place in one.forward.places}
        logits = alone.run(one, prompt.ids + said.ids, prompt.n_prefix, tokens)
        likeliest = _likeliest(said, one.forward, logits[prompt.n_tokens - 1 : -1].float(), engine.stop_tokens())
        observed.said[one.forward.model, one.forward.role] = {row: likeliest}
    observed.values |= {name: Value(found, (found.shape[1],)) for name, found in alone.values.items()}
    return observed


def _tokens_said(place: nodes.Read | nodes.Write, one: Pass, row: int, prompt: Prompt, batch: Observed, n_said: int) -> Groups:
    """Returns where a place of a continuation is in prompt and continuation as one text: token k was made where token k - 1 is."""
    assert one.forward.decode is not None
    if not place.pos.is_generated:
        return [one.windows[place.name][row].tokens]
    if isinstance(place, nodes.Read):
        return [tuple(prompt.n_content + token + place.pos.lag - 1 for token in batch.windows[place.name][row].tokens)]
    steps = place.pos.steps(one.forward.decode.max_new_tokens) or ()
    return [(prompt.n_content + step - 1,) for step in steps if step - place.pos.lag < n_said]


def _likeliest(said: Continuation, forward: nodes.Forward, logits: Tensor, stops: Sequence[int]) -> Continuation:
    """Returns a continuation as the logits that made it would have it, (token, vocabulary); one that was drawn stays as it is."""
    assert forward.decode is not None
    if forward.decode.do_sample:
        return said
    allowed = logits.clone()
    if forward.decode.ignore_eos:
        allowed[:, list(stops)] = float("-inf")
    best = allowed.topk(2, dim=-1).values
    margins = (best[:, 0] - best[:, 1]) / logits.std(dim=-1)
    return replace(said, ids=tuple(allowed.argmax(dim=-1).tolist()), margins=tuple(margins.tolist()))


@dataclass(slots=True)
class _Act:
    """A read or a write at one layer: of which entry of its site, at which columns of the row."""

    place: nodes.Read | nodes.Write
    entry: int
    layer: int | None
    columns: Groups

    def rank(self) -> tuple[tuple[int, int, int], bool, int]:
        """Returns when it is: in the order of the forward, at one place writes in theirs and then reads."""
        place = self.place
        order = place.order if isinstance(place, nodes.Write) else 0
        return forward_rank(place.site.component, self.layer), isinstance(place, nodes.Read), order


class _Alone:
    """A row on its way through the passes of an intervention.

    Attributes:
        values: by read, (layer, token, feature), of this pass and those before.
    """

    def __init__(self, engine: Engine, row: int, outputs: OutputTensors, featurizers: Featurizers) -> None:
        self.engine = engine
        self.facts = engine.facts
        self.row = row
        self.outputs = outputs
        self.featurizers = featurizers
        self.values: dict[str, Tensor] = {}
        self.n_prefix = 0
        self.found: dict[str, dict[int, Tensor]] = {}
        self.entering: dict[int, Tensor] = {}

    def run(self, one: Pass, ids: Sequence[int], n_prefix: int, tokens: Mapping[str, Groups]) -> Tensor:
        """Returns the logits of one forward over some tokens, (token, vocabulary), and notes what is read.

        Args:
            one: the pass.
            ids: of the row; nothing else is given to the model, which numbers them and hides later ones from earlier ones itself.
            n_prefix: how many stand before its content.
            tokens: by place, content indices.
        """
        self.n_prefix, self.found, self.entering = n_prefix, {read.name: {} for read in one.forward.reads}, {}
        stops: dict[tuple[str, str], list[_Act]] = {}
        acts = [
            _Act(place, entry, layer, [[n_prefix + token for token in group] for group in tokens[place.name]])
            for place in one.forward.places
            for entry, layer in enumerate(place.site.addresses)
            if not (isinstance(place, nodes.Write) and self.row in one.missing)
        ]
        for act in sorted(acts, key=_Act.rank):
            address = self.facts.address(act.place.site.component, act.layer)
            assert address is not None
            stops.setdefault((address.module, "output" if address.side == "mid" else address.side), []).append(act)
        with gradients("off"), ExitStack() as stack:
            module = self.engine.loaded()
            for (path, side), own in stops.items():
                self.hook(stack, module, path, side, partial(self.at, own))
            for layer in {act.layer for own in stops.values() for act in own if self.is_mid(act)}:
                entrance = self.facts.address("block_input", layer)
                assert entrance is not None
                assert layer is not None
                self.hook(stack, module, entrance.module, "input", partial(self.note_entering, layer))
            logits: Tensor = module(torch.tensor([list(ids)], device=self.engine.device()), use_cache=False).logits[0]
        for read in one.forward.reads:
            found = torch.stack([self.found[read.name][entry] for entry in range(len(read.site.addresses))])
            self.values[read.name] = self.engine.unembed(found) if read.view == "logits" else found
        return logits

    def hook(self, stack: ExitStack, model: nn.Module, path: str, side: str, change: Callable[[Tensor], Tensor | None]) -> None:
        """Has a function see, and replace, what goes into a module or what comes out of it."""
        module = model.get_submodule(path)

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if args:
                changed = change(args[0])
                return None if changed is None else ((changed, *args[1:]), kwargs)
            name = next(iter(kwargs))
            changed = change(kwargs[name])
            return None if changed is None else (args, {**kwargs, name: changed})

        def after(_: nn.Module, args: Any, output: Any) -> Any:
            if side == "logits":
                changed = change(output.logits)
                if changed is not None:
                    output.logits = changed
                return output
            if isinstance(output, tuple):
                changed = change(output[0])
                return None if changed is None else (changed, *output[1:])
            return change(output)

        if side == "input":
            stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
        else:
            stack.callback(module.register_forward_hook(after).remove)

    def note_entering(self, layer: int, activation: Tensor) -> None:
        """Notes the stream that enters a layer."""
        self.entering[layer] = activation[0]

    def is_mid(self, act: _Act) -> bool:
        """Returns whether a place is what entered its layer and what stands at its address."""
        address = self.facts.address(act.place.site.component, act.layer)
        return address is not None and address.side == "mid"

    def at(self, acts: Sequence[_Act], activation: Tensor) -> Tensor | None:
        """Returns what becomes of an activation of the row, None where nothing is written."""
        n_tokens = activation.shape[1] if activation.dim() != 2 or activation.dtype == torch.long else activation.shape[0]
        arrived = lines = activation.reshape(n_tokens, -1)
        for act in acts:
            beside = self.entering[act.layer] if act.layer is not None and self.is_mid(act) else torch.zeros((), device=lines.device)
            if isinstance(act.place, nodes.Read):
                whole = lines + beside if beside.dim() else lines
                self.found[act.place.name][act.entry] = self.of(act.place.site, whole[list(act.columns[0])]).clone()
                continue
            for columns in act.columns:
                if columns:
                    lines = self.written(act, act.place, columns, lines, arrived, beside)
        return None if lines is arrived else lines.reshape(activation.shape)

    def features(self, site: nodes.Site) -> list[int] | None:
        """Returns the features that a site names, None for all."""
        if site.units is not None:
            return list(site.units)
        if site.heads is None:
            return None
        n_heads, width = self.facts.n_heads_of(site.component), self.facts.width(site.component)
        assert n_heads is not None
        assert width is not None
        return [head * (width // n_heads) + unit for head in site.heads for unit in range(width // n_heads)]

    def of(self, site: nodes.Site, values: Tensor) -> Tensor:
        """Returns what a site names of (token, feature)."""
        features = self.features(site)
        return values if features is None else values[:, features]

    def written(self, act: _Act, write: nodes.Write, columns: Sequence[int], lines: Tensor, arrived: Tensor, beside: Tensor) -> Tensor:
        """Returns a copy of the row's (token, feature) with some tokens written."""
        coordinates = None if write.featurizer is None else self.featurizers.of(write.featurizer)
        columns, operand = self.operand(write, act.entry, columns, coordinates)
        if not columns:
            return lines
        chosen = list(columns)
        stream = beside[chosen] if beside.dim() else beside
        value, first = (self.of(write.site, each[chosen] + stream).float() for each in (lines, arrived))
        new = self.changed(act, write, columns, value, first, operand, coordinates)
        features = self.features(write.site)
        put = new - (self.of(write.site, stream).float() if beside.dim() else stream)
        changed = lines.clone()
        for index, column in enumerate(columns):
            changed[column, slice(None) if features is None else features] = put[index].to(changed.dtype)
        return changed

    def operand(
        self, write: nodes.Write, entry: int, columns: Sequence[int], coordinates: Coordinates | None
    ) -> tuple[tuple[int, ...], Tensor | None]:
        """Returns the columns that are written, and what they are given, (column, feature) or one that all are given."""
        match write.operand:
            case None:
                return tuple(columns), None
            case nodes.Constant(value=value):
                return tuple(columns), torch.tensor([[value]])
            case nodes.FromRead(read=read):
                if read in self.found:
                    own = self.found[read]
                    data = own[entry if len(own) > 1 else 0].float()
                else:
                    data = self.values[read][entry if len(self.values[read]) > 1 else 0].float()
                data, is_vector = data if coordinates is None else coordinates.encode(data)[0], False
            case nodes.FromOutput(output=output, groups=groups):
                made = self.outputs[output]
                which = made.groups.index(groups[self.row]) if groups is not None else self.row if made.kind == "rows" else 0
                start, length = sum(made.value.lengths[:which]), made.value.lengths[which]
                data = made.value.data[entry if len(made.value.data) > 1 else 0][start : start + length].float()
                is_vector = made.kind != "rows" and set(made.value.lengths) == {1}
        n = min(len(data), len(columns))
        if not len(data):
            return (), None
        if is_vector:
            return tuple(columns), data[:1]
        match write.align:
            case "mean":
                return tuple(columns), data.mean(dim=0, keepdim=True)
            case "broadcast":
                return tuple(columns), data[:1]
            case "last":
                return tuple(columns[len(columns) - n :]), data[len(data) - n :]
            case "first":
                return tuple(columns[:n]), data[:n]
        assert len(data) == len(columns)
        return tuple(columns), data

    def changed(
        self,
        act: _Act,
        write: nodes.Write,
        columns: Sequence[int],
        value: Tensor,
        arrived: Tensor,
        operand: Tensor | None,
        coordinates: Coordinates | None,
    ) -> Tensor:
        """Returns what a mechanism makes of (token, unit), in the write's coordinates and of its features alone."""
        before, err = (value, None) if coordinates is None else coordinates.encode(value)
        first = arrived if coordinates is None else coordinates.encode(arrived)[0]
        operand = None if operand is None else operand.to(value.device)
        which = list(range(before.shape[-1])) if write.features is None else list(write.features)
        if operand is not None and operand.shape[-1] == before.shape[-1] and write.features is not None:
            operand = operand[:, which]
        params = write.params
        noise = None
        if write.mechanism == "gaussian":
            places = [(self.row, column - self.n_prefix) for column in columns]
            noise = mechanisms.noise(params.seed or 0, write.name, -1 if act.layer is None else act.layer, places, len(which)).to(
                value.device
            )
        change = mechanisms.Change(
            before[:, which],
            first[:, which],
            operand,
            scale=1.0 if params.scale is None else params.scale,
            t=1.0 if params.t is None else params.t,
            lo=params.lo,
            hi=params.hi,
            noise=noise,
        )
        new = before.clone()
        new[:, which] = mechanisms.MECHANISMS[write.mechanism](change)
        return new if coordinates is None else coordinates.decode(new, err)
