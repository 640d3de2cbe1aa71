"""What was recorded: a tensor a point and place, which token each of its lines is, what was said, and why a point did not fire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from causalab_mini.data.characters import decode
from causalab_mini.errors import Problem, UsageError, did_you_mean, listed, quoted
from causalab_mini.model.components import COMPONENTS
from causalab_mini.probing.request import Place, Request, places_of
from causalab_mini.probing.router import Abort, Counts, Failure, Outcome, ProbeResult
from causalab_mini.probing.run.gathered import SHIFT, Group, joined
from causalab_mini.probing.run.rows import Ended
from causalab_mini.probing.spec import ExtractionPoint, Until, compile_selector


@dataclass(frozen=True, slots=True)
class Generated:
    """What one request said: token ids, their text, and why it ended (`eos`, `stop`, `length`, `abort`)."""

    ids: tuple[int, ...]
    text: str
    ended: str


@dataclass(frozen=True, slots=True)
class Fired:
    """How often a point fired in one request.

    Attributes:
        point: its name.
        request: number of the request.
        eligible: how many tokens its position and stride take, whatever `until` says.
        fired: how many it took.
        reason: why it fired at none, or at fewer than were eligible; empty otherwise.
    """

    point: str
    request: int
    eligible: int
    fired: int
    reason: str


@dataclass(frozen=True, slots=True)
class Recording:
    """What the points of a spec recorded while a model spoke.

    Attributes:
        request: what was asked.
        tensors: by name, `point/component` or `point/component/layer`: (record, feature), or (record, head, key) of attention patterns, where
            token `i` has the keys 0 to `i` and zeros behind them. Records are in the order of requests, then of tokens. Points with probes
            have them only where their activations are kept.
        requests, positions: by point that has tensors, (record,): the request, and the token's place in prompt and generation.
        generated: what each request said.
        fired: how often each point fired in each request.
        outcomes: what the probes said, by request; empty where there are none.
        n_forwards: how many forwards there were.
        engine: what the engine says of itself.
    """

    request: Request
    tensors: Mapping[str, Tensor]
    requests: Mapping[str, Tensor]
    positions: Mapping[str, Tensor]
    generated: tuple[Generated, ...]
    fired: tuple[Fired, ...]
    n_forwards: int
    engine: Mapping[str, Any] = field(default_factory=dict)
    outcomes: tuple[Outcome, ...] = ()

    @property
    def verdicts(self) -> tuple[ProbeResult, ...]:
        """What the probes said: request by request, then point by point, in the order in which it was said."""
        return tuple(result for outcome in self.outcomes for result in outcome.results)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The calls of probes that came to nothing."""
        return tuple(failure for outcome in self.outcomes for failure in outcome.failures)

    @property
    def aborts(self) -> dict[int, Abort]:
        """Which probe ended which request."""
        return {number: outcome.abort for number, outcome in enumerate(self.outcomes) if outcome.abort is not None}

    def verdict_lines(self, tokenizer: Any) -> list[dict[str, Any]]:
        """Returns a line a verdict, with the token that it was given on."""
        lines = []
        for number, outcome in enumerate(self.outcomes):
            for result in outcome.results:
                data = {**result.as_data(), "request": number}
                token = None if result.token_id is None else decode(tokenizer, [result.token_id])
                at = list(data).index("token_id") + 1
                items = list(data.items())
                lines.append(dict([*items[:at], ("token", token), *items[at:]]))
        return lines

    def counts(self, point: str) -> Counts:
        """Returns where the activations of a point with a probe went, over all requests."""
        total = Counts()
        for outcome in self.outcomes:
            total.add(outcome.counts[point])
        return total

    def tensor(self, point: str, layer: int | None = None, component: str | None = None) -> Tensor:
        """Returns what a point recorded at a layer; layer and component may be left out where there is one.

        Raises:
            UsageError: there is no such point, layer or component, or more than one.
        """
        found = self.request.spec.get(point)
        if found is None:
            names = self.request.spec.names
            raise UsageError(Problem("point", f"a point ({listed(names)})", quoted(point), did_you_mean(point, names), "usage"))
        if point not in self.requests:
            hint = "`--keep-activations`, in Python `keep_activations=True`, keeps them"
            got = f"{quoted(point)}, whose activations went to a probe alone"
            raise UsageError(Problem("point", "a point whose activations were kept", got, hint, "usage"))
        fits = [(name, at) for name, at in places_of(found) if layer in (None, at) and component in (None, name)]
        if len(fits) != 1:
            places = listed(tensor_name(point, place) for place in places_of(found))
            asked = quoted(f"{component or 'any component'}, layer {'any' if layer is None else layer}")
            raise UsageError(Problem("layer", f"a layer and a component that name one of {places}", asked, code="usage"))
        return self.tensors[tensor_name(point, fits[0])]

    def token(self, request: int, position: int) -> int:
        """Returns the id of a token, counted in prompt and generation."""
        prompt = self.request.prompts[request].ids
        return prompt[position] if position < len(prompt) else self.generated[request].ids[position - len(prompt)]

    def index(self, tokenizer: Any) -> Iterator[dict[str, Any]]:
        """Yields a line a record: which line of which tensors it is, and which token."""
        texts: dict[int, str] = {}
        for point in (self.request.spec.extraction_points[number] for number in self.request.recorded):
            places = list(zip(self.requests[point.name].tolist(), self.positions[point.name].tolist(), strict=True))
            for layer in point.layers or (None,):
                for record, (request, position) in enumerate(places):
                    token, n_prompt = self.token(request, position), self.request.prompts[request].n_tokens
                    if token not in texts:
                        texts[token] = decode(tokenizer, [token])
                    yield {
                        "point": point.name,
                        "layer": layer,
                        "record": record,
                        "request": request,
                        "position": position,
                        "generated_index": position - n_prompt if position >= n_prompt else None,
                        "token_id": token,
                        "token": texts[token],
                    }

    def summary(self) -> list[dict[str, Any]]:
        """Returns what each point came to: how often it fired, over all requests and in each, and what of it was not carried out."""
        found = []
        for point in self.request.spec:
            lines = [line for line in self.fired if line.point == point.name]
            names = [tensor_name(point.name, at) for at in places_of(point)] if point.name in self.requests else []
            found.append(
                {
                    "point": point.name,
                    "tensor_type": str(point.tensor_type),
                    "layers": list(point.layers),
                    "position": str(point.position),
                    "eligible": sum(line.eligible for line in lines),
                    "fired": sum(line.fired for line in lines),
                    "captured": {name: list(self.tensors[name].shape) for name in names},
                    "not_carried_out": dict(self.request.watched.left_out.get(point.name, {})),
                    **self._of_probe(point),
                    "requests": [
                        {"request": line.request, "eligible": line.eligible, "fired": line.fired, "reason": line.reason or None}
                        for line in lines
                    ],
                }
            )
        return found

    def _of_probe(self, point: ExtractionPoint) -> dict[str, Any]:
        """Returns what a point's probe came to; nothing of a point without one."""
        if point.name not in self.request.watched.probes:
            return {}
        return {
            "probe": {
                "probe_type": point.probe_type,
                "execution_mode": str(point.execution_mode),
                "n_verdicts": sum(result.point == point.name for result in self.verdicts),
                "aborted": [number for number, abort in self.aborts.items() if abort.point == point.name],
                "reasons": [abort.reason for abort in self.aborts.values() if abort.point == point.name and abort.reason],
                "activations": self.counts(point.name).as_data(),
                "failures": [
                    {**failure.as_data(), "request": number}
                    for number, outcome in enumerate(self.outcomes)
                    for failure in outcome.failures
                    if failure.point == point.name
                ],
            }
        }


def tensor_name(point: str, place: Place) -> str:
    """Returns what a tensor is called: `point/component`, with the layer behind where there are layers."""
    component, layer = place
    return f"{point}/{component}" if layer is None else f"{point}/{component}/{layer}"


class Parts:
    """What batches came to, put together as they come; tensors are on the CPU from here on."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.recorded = [request.spec.extraction_points[number] for number in request.recorded]
        self.tensors: dict[str, list[Tensor]] = {tensor_name(point.name, at): [] for point in self.recorded for at in places_of(point)}
        self.requests: dict[str, list[Tensor]] = {point.name: [] for point in self.recorded}
        self.positions: dict[str, list[Tensor]] = {point.name: [] for point in self.recorded}
        self.generated: list[Generated] = []
        self.outcomes: list[Outcome] = []
        self.fired: list[Fired] = []
        self.n_forwards = 0

    def add(self, ended: Sequence[Ended], groups: Sequence[Group], n_forwards: int, outcomes: Sequence[Outcome]) -> None:
        """Takes a batch; batches come in the order of their rows."""
        ended = sorted(ended, key=lambda row: row.number)
        self.n_forwards += n_forwards
        self.generated += [Generated(row.ids, row.text, row.ended) for row in ended]
        self.outcomes += outcomes
        noted: set[str] = set()
        for group in groups:
            for number in group.points if group.is_recorded else ():
                point = self.request.spec.extraction_points[number]
                if point.name not in self.requests:
                    continue
                codes, values = group.found(number, ended)
                for at, value in values.items():
                    self.tensors[tensor_name(point.name, at)].append(value)
                if point.name not in noted:
                    noted.add(point.name)
                    self.requests[point.name].append(codes >> SHIFT)
                    self.positions[point.name].append(codes & ((1 << SHIFT) - 1))
        for number, point in enumerate(self.request.spec):
            self.fired += [self._fired(point, number, row) for row in ended]

    def _fired(self, point: ExtractionPoint, number: int, row: Ended) -> Fired:
        n_said, n_prompt = len(row.ids), self.request.prompts[row.number].n_tokens
        most = self.request.decode.max_new_tokens
        selector = row.selectors[number]
        eligible = len(compile_selector(point.position, n_prompt, most, stride=point.stride).resolved(n_said))
        fired = len(selector.resolved(n_said))
        reason = selector.why_none(n_said)
        if not reason and fired < eligible:
            reason = (
                f"{point.count} tokens were taken" if point.until is Until.FIXED_COUNT else f"the stop token {quoted(point.token)} came"
            )
            reason = f"`until` was reached: {reason}"
        return Fired(point.name, row.number, eligible, fired, reason)

    def whole(self, engine: Mapping[str, Any]) -> Recording:
        """Returns the recording; a point that fired nowhere has tensors without records."""
        tensors = {}
        for point in self.recorded:
            for at in places_of(point):
                name = tensor_name(point.name, at)
                tensors[name] = self._tensor(point.name, at[0], self.tensors[name])
        self.fired.sort(key=lambda line: (self.request.spec.names.index(line.point), line.request))
        requests = {name: torch.cat(parts) for name, parts in self.requests.items()}
        positions = {name: torch.cat(parts) for name, parts in self.positions.items()}
        said, fired, outcomes = tuple(self.generated), tuple(self.fired), tuple(self.outcomes)
        return Recording(self.request, tensors, requests, positions, said, fired, self.n_forwards, engine, outcomes)

    def _tensor(self, point: str, component: str, parts: Sequence[Tensor]) -> Tensor:
        if parts:
            found = joined(parts)
            if not COMPONENTS[component].has_keys:
                return found
            n_keys = max(int(positions.max()) + 1 for positions in self.positions[point] if len(positions))
            return found[..., :n_keys].contiguous()
        if COMPONENTS[component].has_keys:
            return torch.empty(0, self.request.facts.n_heads, 0)
        return torch.empty(0, self.request.facts.width(component) or 0)
