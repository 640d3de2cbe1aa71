"""What is to be watched, judged against a checkpoint before its weights are loaded: every point, prompt and count that does not fit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from causalab_mini.data.prompts import Prompt, PromptError, make_prompt
from causalab_mini.errors import Issue, PlanError, Problem, quoted
from causalab_mini.model.components import COMPONENTS
from causalab_mini.model.facts import EAGER_ONLY, ModelFacts
from causalab_mini.model.families import Absent
from causalab_mini.plan.spec import Decode
from causalab_mini.probing.spec import (
    ExecutionMode,
    ExtractionPoint,
    InterventionMode,
    ProbeSpec,
    compile_point,
    probe_spec_to_dict,
    verify_point,
)
from causalab_mini.probing.starter import RECORD

MAX_NAMED = 20

Place = tuple[str, int | None]


@dataclass(frozen=True, slots=True)
class Request:
    """A spec over prompts, known to fit a checkpoint.

    Attributes:
        spec: what is watched.
        prompts: one a request.
        decode: how the model speaks.
        facts: of the checkpoint.
        stops: by point, the id of the token that ends its run.
    """

    spec: ProbeSpec
    prompts: tuple[Prompt, ...]
    decode: Decode
    facts: ModelFacts
    stops: Mapping[str, int]

    @property
    def digest(self) -> str:
        """What makes two requests the same: spec, checkpoint, tokens, and how the model speaks."""
        facts = self.facts
        model = [facts.key, facts.revision, facts.dtype, facts.attn_implementation]
        meant = [self.spec_data, model, [list(prompt.ids) for prompt in self.prompts], self.decode.model_dump(mode="json")]
        return sha256(meant)

    @property
    def spec_data(self) -> dict[str, Any]:
        """The spec as data."""
        return probe_spec_to_dict(self.spec)


def sha256(data: Any) -> str:
    """Returns the checksum of JSON data in one spelling."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def places_of(point: ExtractionPoint) -> tuple[Place, ...]:
    """Returns every component and layer that a point reads."""
    return tuple((name, layer) for layer in (point.layers or (None,)) for name in point.components)


def make_request(
    spec: ProbeSpec, prompts: Sequence[Prompt], decode: Decode, facts: ModelFacts, tokenizer: Any, *, only_records: bool, file: str = ""
) -> Request:
    """Returns a spec over prompts, or refuses it with everything that does not fit.

    Args:
        spec: what is watched.
        prompts: one a request.
        decode: how the model speaks.
        facts: of the checkpoint.
        tokenizer: of the checkpoint.
        only_records: whether probes, queues and interventions are left out knowingly.
        file: that the spec is from, for errors.

    Raises:
        PlanError: a point asks for what the model, or this release, has not; or a prompt is too long.
    """
    stops: dict[str, int] = {}
    problems = [] if only_records else [problem for point in spec for problem in not_yet(point)]
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
    if problems:
        raise PlanError(problems, file)
    request = Request(spec, tuple(prompts), decode, facts, stops)
    if too_long := list(_too_long(request)):
        raise PlanError(too_long[:MAX_NAMED])
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


def not_yet(point: ExtractionPoint) -> Iterator[Issue]:
    """Yields what a point asks for beside its records: probes, queues and interventions are not run yet."""
    hint = (
        "`--only-records` (in Python, `only_records=True`) records what the probe would be given, and says in its results what was left out"
    )
    if point.probe_type != RECORD:
        expected = f"`{RECORD}` (keeps what is captured; other probes are not there yet)"
        yield _issue(point, "probe_type", expected, quoted(point.probe_type), hint, "not_yet")
    elif point.probe_args:
        got = quoted(dict(point.probe_args))
        yield _issue(point, "probe_args", f"no arguments beside `probe_type: {RECORD}`", got, "take `probe_args` out", "combination")
    if point.execution_mode is ExecutionMode.ASYNC:
        yield _issue(point, "execution_mode", "`inline` (`async` is not there yet)", "`async`", hint, "not_yet")
    if point.intervention is not None and point.intervention.mode is not InterventionMode.REJECT:
        got = quoted(str(point.intervention.mode))
        yield _issue(point, "intervention.mode", "`reject` (others are not there yet)", got, hint, "not_yet")


def left_out(point: ExtractionPoint) -> dict[str, str]:
    """Returns what a point asks for that is not carried out, by field; it is accepted only where nothing but records was asked for."""
    return {problem.field: problem.got.strip("`") for problem in not_yet(point)}


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


def _too_long(request: Request) -> Iterator[Problem]:
    """Yields prompts that learned positions or the vocabulary do not reach."""
    most, n_new = request.facts.max_positions, request.decode.max_new_tokens
    for index, prompt in enumerate(request.prompts):
        path = f"request {index}"
        if (highest := max(prompt.ids)) >= request.facts.vocabulary:
            expected = f"token ids below {request.facts.vocabulary} (the model's vocabulary)"
            yield Problem(path, expected, str(highest), "the tokenizer is not the one that the model was trained with", "prompt")
        if most is None:
            continue
        needs_last = any(compile_point(point, prompt.n_tokens, n_new).needs_last_fed(n_new) for point in request.spec)
        n_fed = prompt.n_tokens + n_new - (not needs_last)
        if n_fed > most:
            got = f"{n_fed} ({prompt.n_tokens} of the prompt, {n_fed - prompt.n_tokens} of the generation)"
            yield Problem(path, f"at most {most} tokens to run (the model's learned positions)", got, code="prompt")
