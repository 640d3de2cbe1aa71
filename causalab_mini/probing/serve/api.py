"""What may be asked, in OpenAI's words: fields that are honoured, fields that change nothing, and everything else refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from causalab_mini.errors import Problem
from causalab_mini.plan.problems import problems_of
from causalab_mini.plan.spec import Decode
from causalab_mini.plan.strict import MAX_SEED, Strict, Tuple, invalid, shown

N_TOKENS = 16
"""`max_tokens` of `/v1/completions` where none is given, as OpenAI has it."""
MAX_STOPS = 16
MAX_STOP = 200


class ApiError(Exception):
    """A refusal as OpenAI's clients understand it.

    Args:
        status: of HTTP.
        message: for people.
        param: the field at fault.
        code: for programs.
        headers: beside the usual.
    """

    KINDS: ClassVar[Mapping[int, str]] = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def as_data(self) -> dict[str, Any]:
        """Returns the body of the response."""
        kind = self.KINDS.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def refusal(problem: Problem, code: str | None = None) -> ApiError:
    """Returns a problem of a request's body as a refusal."""
    where = f"{problem.path}: " if problem.path else ""
    hint = f" ({problem.hint})" if problem.hint else ""
    message = f"{where}expected {problem.expected}, got {problem.got}{hint}"
    return ApiError(400, message, param=problem.path or None, code=code or problem.code)


def _stops(value: Any) -> Any:
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(text, str) and 0 < len(text) <= MAX_STOP for text in found):
        raise invalid(f"a text of 1 to {MAX_STOP} characters, or a list of such texts", shown(value))
    if len(found) > MAX_STOPS:
        raise invalid(f"at most {MAX_STOPS} texts", str(len(found)))
    return tuple(found)


def _prompts(value: Any) -> Any:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and value:
        if all(isinstance(one, str) for one in value):
            return tuple(value)
        if _are_ids(value):
            return (tuple(value),)
        if all(isinstance(one, list) and one and _are_ids(one) for one in value):
            return tuple(map(tuple, value))
    raise invalid("a text, a list of texts, a list of token ids, or a list of such lists; none of them empty", shown(value))


def _are_ids(value: list[Any]) -> bool:
    return all(type(one) is int and 0 <= one < 2**31 for one in value)


def _content(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(_is_text(part) for part in value):
        return "".join(part["text"] for part in value)
    raise invalid('a text, or a list of `{"type": "text", "text": …}`', shown(value))


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and set(part) == {"type", "text"} and part["type"] == "text" and isinstance(part["text"], str)


Prompts = Annotated[tuple[str | tuple[int, ...], ...], BeforeValidator(_prompts)]
Content = Annotated[str, BeforeValidator(_content)]


class StreamOptions(Strict):
    """How a stream is told."""

    include_usage: bool | None = None
    """Whether a last chunk counts the tokens."""
    include_obfuscation: bool | None = None
    """Changes nothing: no chunk is padded."""


class Asked(Strict):
    """What both routes take."""

    NOTHING: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Fields that are not honoured, each with the values that ask for nothing."""
    PROMPT: ClassVar[str]
    """The field of what the model goes on from."""

    model: str
    n: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Annotated[tuple[str, ...] | None, BeforeValidator(lambda value: None if value is None else _stops(value))] = None
    max_tokens: int | None = Field(None, ge=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None

    @model_validator(mode="before")
    @classmethod
    def _asks_for_nothing_else(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        for name, nothing in cls.NOTHING.items():
            if name in value and not any(value[name] == one and type(value[name]) is type(one) for one in nothing):
                raise invalid("what this server can do", f"{shown(value[name])} (not supported)", key=name, code="unsupported_parameter")
        return {name: one for name, one in value.items() if name not in cls.NOTHING}

    @model_validator(mode="after")
    def _streams_or_not(self) -> Asked:
        if self.stream_options is not None and not self.stream:
            raise invalid("`stream: true` beside `stream_options`", "none", key="stream_options")
        return self

    @property
    def n_tokens(self) -> int | None:
        """The most tokens that are asked for; None where the server may say."""
        return self.max_tokens

    @property
    def counts_usage(self) -> bool:
        """Whether a stream ends with the counts of tokens."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def decode(self, n_tokens: int, fresh_seed: int) -> Decode:
        """Returns how the model speaks: drawn at OpenAI's temperature of 1 where nothing is said, greedily at 0.

        Args:
            n_tokens: at most.
            fresh_seed: of the draws where none is given.
        """
        temperature = 1.0 if self.temperature is None else self.temperature
        top_p = 1.0 if self.top_p is None else self.top_p
        stop = self.stop or ()
        if temperature == 0 or top_p == 0:
            return Decode(max_new_tokens=n_tokens, stop=stop)
        seed = fresh_seed if self.seed is None else self.seed % (MAX_SEED + 1)
        return Decode(max_new_tokens=n_tokens, stop=stop, do_sample=True, temperature=temperature, top_p=top_p, seed=seed)


class CompletionAsked(Asked):
    """The body of `POST /v1/completions`."""

    PROMPT: ClassVar[str] = "prompt"
    NOTHING: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "logprobs": (None,),
        "echo": (None, False),
        "suffix": (None, ""),
        "best_of": (None, 1),
        "logit_bias": (None, {}),
        "presence_penalty": (None, 0, 0.0),
        "frequency_penalty": (None, 0, 0.0),
    }

    prompt: Prompts

    @property
    def n_tokens(self) -> int | None:
        """The most tokens that are asked for: 16 where nothing is said."""
        return self.max_tokens or N_TOKENS


class Message(Strict):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content

    @property
    def turn(self) -> dict[str, str]:
        """The turn as a chat template takes it; `developer` is OpenAI's newer word for `system`."""
        return {"role": "system" if self.role == "developer" else self.role, "content": self.content}


class ChatAsked(Asked):
    """The body of `POST /v1/chat/completions`."""

    PROMPT: ClassVar[str] = "messages"
    NOTHING: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "logprobs": (None, False),
        "top_logprobs": (None, 0),
        "tools": (None, []),
        "tool_choice": (None, "none"),
        "functions": (None, []),
        "function_call": (None, "none"),
        "response_format": (None, {"type": "text"}),
        "logit_bias": (None, {}),
        "presence_penalty": (None, 0, 0.0),
        "frequency_penalty": (None, 0, 0.0),
        "modalities": (None, ["text"]),
        "audio": (None,),
        "prediction": (None,),
        "reasoning_effort": (None, "none"),
        "verbosity": (None, "medium"),
        "web_search_options": (None,),
        "store": (None, False),
        "service_tier": (None, "auto", "default"),
        "moderation": (None,),
    }

    messages: Tuple[Message, ...] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    parallel_tool_calls: bool | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @field_validator("messages", mode="before")
    @classmethod
    def _without_empty_names(cls, value: Any) -> Any:
        """Drops keys of turns that are null: clients send back what they were given."""
        if not isinstance(value, list):
            return value
        optional = ("name", "refusal", "audio", "tool_calls", "function_call", "annotations")
        return [
            {key: one for key, one in turn.items() if not (key in optional and (one is None or one == []))}
            if isinstance(turn, dict)
            else turn
            for turn in value
        ]

    @model_validator(mode="after")
    def _has_one_length(self) -> ChatAsked:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise invalid("`max_completion_tokens` alone (`max_tokens` is its older name)", "both", key="max_tokens")
        return self

    @property
    def n_tokens(self) -> int | None:
        """The most tokens that are asked for; None where the server may say."""
        return self.max_completion_tokens or self.max_tokens


_Asked = TypeVar("_Asked", bound=Asked)


def parse(kind: type[_Asked], body: bytes) -> _Asked:
    """Returns a body as what it asks for.

    Raises:
        ApiError: it is no JSON, or asks for what is not there.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            raise ApiError(400, f"expected JSON, got a body that is none: {first['ctx']['error']}", code="json") from None
        problems = problems_of(error, kind)
        raise refusal(problems[0]) from None
