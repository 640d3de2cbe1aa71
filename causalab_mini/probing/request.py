"""What is to be watched, judged against a checkpoint before its weights are loaded: every point, prompt and count that does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from causalab_mini.data.prompts import Prompt, PromptError, make_prompt
from causalab_mini.data.strict_json import sha256_of
from causalab_mini.errors import Issue, PlanError, Problem, quoted
from causalab_mini.model.components import COMPONENTS
from causalab_mini.model.facts import EAGER_ONLY, ModelFacts
from causalab_mini.model.families import Absent
from causalab_mini.plan.spec import Decode
from causalab_mini.probing.probes import RECORD, Binding, BoundProbe
from causalab_mini.probing.spec import (
    ExecutionMode,
    ExtractionPoint,
    InterventionMode,
    ProbeSpec,
    compile_point,
    probe_spec_to_dict,
    verify_point,
)

MAX_NAMED = 20

Place = tuple[str, int | None]


@dataclass(frozen=True, slots=True)
class Watched:
    """A spec, known to fit a checkpoint.

    Attributes:
        spec: what is watched.
        facts: of the checkpoint.
        stops: by point, the id of the token that ends its run.
        probes: by point, what makes its probe; points without one are recorded.
        left_out: what a point asks for that is knowingly not carried out, by point and field.
    """

    spec: ProbeSpec
    facts: ModelFacts
    stops: Mapping[str, int]
    probes: Mapping[str, BoundProbe]
    left_out: Mapping[str, Mapping[str, str]]

    @property
    def spec_data(self) -> dict[str, Any]:
        """The spec as data."""
        return probe_spec_to_dict(self.spec)

    @property
    def recorded(self) -> tuple[int, ...]:
        """Numbers of the points without a probe."""
        return tuple(number for number, point in enumerate(self.spec) if point.name not in self.probes)

    @property
    def meaning(self) -> list[Any]:
        """What makes two of them the same, as JSON data: spec, checkpoint, and what the probes are made with."""
        facts = self.facts
        model = [facts.key, facts.revision, facts.dtype, facts.attn_implementation]
        probes = {
            name: [
                bound.code,
                {key: value for key, value in bound.arguments.items() if key not in bound.checksums},
                bound.checksums,
            ]
            for name, bound in self.probes.items()
        }
        return [self.spec_data, model, probes]


@dataclass(frozen=True, slots=True)
class Request:
    """A spec over prompts, known to fit a checkpoint.

    Attributes:
        watched: what is watched, of which checkpoint.
        prompts: one a request.
        decode: how the model speaks.
        is_kept: whether the activations of points with probes are recorded too.
    """

    watched: Watched
    prompts: tuple[Prompt, ...]
    decode: Decode
    is_kept: bool = False

    @property
    def spec(self) -> ProbeSpec:
        """What is watched."""
        return self.watched.spec

    @property
    def facts(self) -> ModelFacts:
        """Of the checkpoint."""
        return self.watched.facts

    @property
    def recorded(self) -> tuple[int, ...]:
        """Numbers of the points whose activations are recorded."""
        return tuple(range(len(self.spec))) if self.is_kept else self.watched.recorded

    @property
    def digest(self) -> str:
        """What makes two requests the same: spec, probes, checkpoint, tokens, how the model speaks, and what is kept."""
        meant = [*self.watched.meaning, [list(prompt.ids) for prompt in self.prompts], self.decode.model_dump(mode="json"), self.is_kept]
        return sha256_of(meant)


def places_of(point: ExtractionPoint) -> tuple[Place, ...]:
    """Returns every component and layer that a point reads."""
    return tuple((name, layer) for layer in (point.layers or (None,)) for name in point.components)


def watch(
    spec: ProbeSpec, facts: ModelFacts, tokenizer: Any, binding: Binding | None = None, *, only_records: bool = False, file: str = ""
) -> Watched:
    """Returns a spec as it is watched on a checkpoint, or refuses it with everything that does not fit.

    Args:
        spec: what is watched.
        facts: of the checkpoint.
        tokenizer: of the checkpoint.
        binding: where its probes are from; None for those that are registered.
        only_records: whether probes, queues and interventions are left out knowingly.
        file: that the spec is from, for errors.

    Raises:
        PlanError: a point asks for what the model has not, or for a probe that is not there or does not fit it.
    """
    stops: dict[str, int] = {}
    problems: list[Problem] = []
    for point in spec:
        verify_point(point)
        problems += _not_there(point, facts)
        if point.token is not None:
            ids = _ids(tokenizer, point.token)
            stops[point.name] = ids[0] if ids else -1
            if len(ids) != 1:
                pieces = ", ".join(quoted(piece) for piece in tokenizer.convert_ids_to_tokens(ids))
                got = f"{quoted(point.token)}, which is {len(ids)} ({pieces})"
                problems.append(_issue(point, "token", "a text of one token of the model", got, code="token"))
    probes: dict[str, BoundProbe] = {}
    left_out: dict[str, dict[str, str]] = {}
    if only_records:
        left_out = {point.name: found for point in spec if (found := _left_out(point))}
    else:
        probes, issues = (binding or Binding()).bind(spec, facts)
        problems += issues
    if problems:
        raise PlanError(problems, file)
    return Watched(spec, facts, stops, probes, left_out)


def make_request(watched: Watched, prompts: Sequence[Prompt], decode: Decode, *, is_kept: bool = False) -> Request:
    """Returns what is watched over prompts.

    Args:
        watched: of which checkpoint.
        prompts: one a request.
        decode: how the model speaks.
        is_kept: whether the activations of points with probes are recorded too.

    Raises:
        PlanError: a prompt is too long, or not of this model.
    """
    request = Request(watched, tuple(prompts), decode, is_kept)
    problems = [
        replace(problem, path=f"request {index}")
        for index, prompt in enumerate(prompts)
        for problem in judge_prompt(watched, prompt, decode)
    ]
    if problems:
        raise PlanError(problems[:MAX_NAMED])
    return request


def prompts_of(texts: Sequence[Any], tokenizer: Any, path: str) -> tuple[Prompt, ...]:
    """Returns texts as the model sees them.

    Raises:
        PlanError: there are none, or some have no tokens of their own; `path` is where they were given.
    """
    if isinstance(texts, str):
        raise PlanError(Problem(path, "a list of prompts", f"the text {quoted(texts)}", "put it into a list", "prompt"))
    problems, prompts = [], []
    for index, text in enumerate(texts):
        try:
            prompts.append(make_prompt(tokenizer, text))
        except PromptError as error:
            problems.append(Problem(_at(path, index), error.expected, error.got, code="prompt"))
    problems += [
        Problem(_at(path, index), "a text of at least one token", f"{quoted(texts[index])}, which has none", code="prompt")
        for index, prompt in enumerate(prompts)
        if not problems and not prompt.n_content
    ]
    if not texts:
        problems.append(Problem(path, "at least one prompt", "none", code="prompt"))
    if problems:
        raise PlanError(problems[:MAX_NAMED])
    return tuple(prompts)


def _at(path: str, index: int) -> str:
    return f"{path}[{index}]"


def _issue(point: ExtractionPoint, field: str, expected: str, got: str, hint: str = "", code: str = "invalid") -> Issue:
    return Issue(f"{point.name}.{field}", expected, got, hint, code, point=point.name, field=field)


def _left_out(point: ExtractionPoint) -> dict[str, str]:
    """Returns what a point asks for beside its records, by field."""
    found = {} if point.probe_type == RECORD else {"probe_type": point.probe_type}
    if point.execution_mode is ExecutionMode.ASYNC:
        found["execution_mode"] = str(point.execution_mode)
    if point.intervention is not None and point.intervention.mode is not InterventionMode.REJECT:
        found["intervention.mode"] = str(point.intervention.mode)
    return found


def _not_there(point: ExtractionPoint, facts: ModelFacts) -> Iterator[Issue]:
    beyond = [layer for layer in point.layers if layer >= facts.n_layers]
    if beyond:
        yield _issue(point, "layers", f"layers of the model (0 to {facts.n_layers - 1})", quoted(beyond), code="layer")
    for component in point.components:
        reasons: dict[str, list[int | None]] = {}
        for layer in point.layers if COMPONENTS[component].per_layer else (None,):
            if layer not in beyond and isinstance(place := facts.place(component, layer), Absent):
                reasons.setdefault(place.reason, []).append(layer)
        for reason, layers in reasons.items():
            where = "" if layers == [None] else f" at layers {', '.join(map(str, layers))}"
            hint = "`--attention eager`" if component in EAGER_ONLY and facts.attn_implementation != "eager" else ""
            expected = f"a tensor that {quoted(facts.key)} has"
            yield _issue(point, "tensor_type", expected, f"{quoted(component)}, which it has not{where}: {reason}", hint, "absent")


def _ids(tokenizer: Any, token: str) -> list[int]:
    """Returns the ids of a text; one that is the very name of a token is that token."""
    ids = list(tokenizer(token, add_special_tokens=False)["input_ids"])
    named = None if len(ids) == 1 else tokenizer.get_vocab().get(token)
    return ids if named is None else [named]


def judge_prompt(watched: Watched, prompt: Prompt, decode: Decode) -> Iterator[Problem]:
    """Yields what keeps a prompt from being run: learned positions, or a vocabulary, that do not reach it."""
    most, n_new, facts = watched.facts.max_positions, decode.max_new_tokens, watched.facts
    if (highest := max(prompt.ids)) >= facts.vocabulary:
        expected = f"token ids below {facts.vocabulary} (the model's vocabulary)"
        yield Problem("", expected, str(highest), "the tokenizer is not the one that the model was trained with", "prompt")
    if most is None:
        return
    needs_last = any(compile_point(point, prompt.n_tokens, n_new).needs_last_fed(n_new) for point in watched.spec)
    n_fed = prompt.n_tokens + n_new - (not needs_last)
    if n_fed > most:
        got = f"{n_fed} ({prompt.n_tokens} of the prompt, {n_fed - prompt.n_tokens} of the generation)"
        yield Problem("", f"at most {most} tokens to run (the model's learned positions)", got, code="prompt")
