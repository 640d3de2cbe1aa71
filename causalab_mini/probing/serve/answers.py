"""What is answered, in OpenAI's words, with what the probes said beside each choice under `causalab`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from causalab_mini.errors import CausalabError
from causalab_mini.probing.router.results import Outcome
from causalab_mini.probing.serve.api import ApiError
from causalab_mini.probing.serve.desk import Done

FINISHED: Mapping[str, str] = {
    "eos": "stop",
    "stop": "stop",
    "length": "length",
    "timeout": "length",
    "shutdown": "length",
    "cancelled": "length",
    "abort": "content_filter",
}
"""OpenAI's `finish_reason` of what ended a generation; `causalab.ended` says it exactly."""


def data_of(outcome: Outcome | None, ended: str) -> dict[str, Any]:
    """Returns what became of a generation and its probes, as JSON data."""
    if outcome is None:
        return {"ended": ended, "verdicts": [], "abort": None, "counts": {}, "failures": []}
    return {
        "ended": ended,
        "verdicts": [one.as_data() for one in outcome.results],
        "abort": None if outcome.abort is None else asdict(outcome.abort),
        "counts": {point: asdict(counts) for point, counts in outcome.counts.items()},
        "failures": [asdict(one) for one in outcome.failures],
    }


def failed(error: CausalabError | None) -> ApiError:
    """Returns a generation that failed, as an error of the server."""
    problem = error.problems[0] if error is not None and error.problems else None
    code = "bug" if problem is None else problem.code
    text = "" if problem is None else f": expected {problem.expected}, got {problem.got}"
    if code == "memory":
        return ApiError(503, f"the generation failed{text}", code=code, headers={"retry-after": "1"})
    return ApiError(500, f"the generation failed{text}", code=code)


@dataclass(frozen=True, slots=True)
class Form:
    """The bodies of one response.

    Attributes:
        id: of the response.
        kind: `chat` or `text`.
        created: seconds since 1970.
        model: as it is served.
        n_prompt_tokens: of all prompts, each counted once.
        counts_usage: whether a stream ends with the counts of tokens.
    """

    id: str
    kind: Literal["chat", "text"]
    created: int
    model: str
    n_prompt_tokens: int
    counts_usage: bool = False

    def whole(self, done: Sequence[Done], texts: Sequence[str]) -> dict[str, Any]:
        """Returns a response that is not streamed."""
        choices = [self._choice(index, text, one) for index, (text, one) in enumerate(zip(texts, done, strict=True))]
        kind = "chat.completion" if self.kind == "chat" else "text_completion"
        return {**self._head(kind), "choices": choices, "usage": self.usage(sum(len(one.ids) for one in done))}

    def usage(self, n_said: int) -> dict[str, int]:
        """Returns how many tokens went in, and how many were said, final stop tokens included."""
        return {
            "prompt_tokens": self.n_prompt_tokens,
            "completion_tokens": n_said,
            "total_tokens": self.n_prompt_tokens + n_said,
        }

    def first(self, index: int) -> dict[str, Any] | None:
        """Returns the chunk with which a choice begins, where it has one."""
        if self.kind == "text":
            return None
        return self._chunk({"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None})

    def piece(self, index: int, text: str) -> dict[str, Any]:
        """Returns a chunk with some text."""
        said = {"text": text} if self.kind == "text" else {"delta": {"content": text}}
        return self._chunk({"index": index, **said, "logprobs": None, "finish_reason": None})

    def last(self, index: int, done: Done) -> dict[str, Any]:
        """Returns the chunk that ends a choice."""
        said: dict[str, Any] = {"text": ""} if self.kind == "text" else {"delta": {}}
        return self._chunk({"index": index, **said, "logprobs": None, **self._end(done)})

    def counted(self, n_said: int) -> dict[str, Any]:
        """Returns the chunk that counts the tokens of all choices."""
        return {**self._head(self._chunked), "choices": [], "usage": self.usage(n_said)}

    @property
    def _chunked(self) -> str:
        return "chat.completion.chunk" if self.kind == "chat" else "text_completion"

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        usage = {"usage": None} if self.counts_usage else {}
        return {**self._head(self._chunked), "choices": [choice], **usage}

    def _choice(self, index: int, text: str, done: Done) -> dict[str, Any]:
        said = {"text": text} if self.kind == "text" else {"message": {"role": "assistant", "content": text, "refusal": None}}
        return {"index": index, **said, "logprobs": None, **self._end(done)}

    def _end(self, done: Done) -> dict[str, Any]:
        return {"finish_reason": FINISHED[done.ended], "causalab": data_of(done.outcome, done.ended)}


def event(data: Mapping[str, Any]) -> bytes:
    """Returns data as a server-sent event; line ends inside it are escaped by JSON."""
    return b"data: " + as_json(data) + b"\n\n"


def as_json(data: Any) -> bytes:
    """Returns data as JSON; what no text encoding has is escaped."""
    return json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()


DONE = b"data: [DONE]\n\n"
