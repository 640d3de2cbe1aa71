"""The routes: what is asked becomes tickets, and tickets become answers."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from fastapi import FastAPI, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.responses import Response

from causalab_mini.data.characters import text_behind
from causalab_mini.data.prompts import Prompt, prompt_of_ids
from causalab_mini.errors import PlanError, Problem
from causalab_mini.plan.spec import Decode
from causalab_mini.plan.strict import MAX_SEED
from causalab_mini.probing.request import Watched, judge_prompt, prompts_of
from causalab_mini.probing.serve.answers import DONE, Form, as_json, event, failed
from causalab_mini.probing.serve.api import ApiError, Asked, ChatAsked, CompletionAsked, parse, refusal
from causalab_mini.probing.serve.desk import Busy, Closed, Desk, Done, Ticket, Wish
from causalab_mini.probing.serve.gate import HUNG_UP, Gate, Rules, error_response, read_body
from causalab_mini.probing.serve.metrics import Metrics
from causalab_mini.probing.serve.pieces import Pieces, cut

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

WRITE_SECONDS = 30.0
"""How long a client may take to read a piece."""
AGAIN = {"retry-after": "1"}

log = logging.getLogger("causalab_mini.serve")


@dataclass(frozen=True, slots=True)
class Served:
    """What is served.

    Attributes:
        name: that requests call the model by.
        watched: the points, known to fit the checkpoint.
        tokenizer: of the checkpoint.
        stop_ids: tokens that end a generation.
        n_tokens: the most that a generation may have.
        n_prompt_tokens: the most that a prompt may have.
        logs: whether a line a request is logged; never what is in it.
    """

    name: str
    watched: Watched
    tokenizer: Any
    stop_ids: tuple[int, ...] = ()
    n_tokens: int = 1024
    n_prompt_tokens: int = 4096
    logs: bool = False


def make_app(desk: Desk, served: Served, rules: Rules | None = None, metrics: Metrics | None = None) -> FastAPI:
    """Returns the server as an ASGI application.

    Args:
        desk: that decodes.
        served: what is served.
        rules: who may come in; None for anyone.
        metrics: what `/metrics` says; the desk's `on_done` should tell it of tickets.
    """
    metrics, rules = metrics or Metrics(), rules or Rules()
    counter = _Counter(desk, served, rules)
    app = FastAPI(title="causalab-mini", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Gate, rules=rules, on_asked=metrics.asked, on_answered=metrics.answered)

    @app.exception_handler(ApiError)
    async def refuse(request: Request, error: ApiError) -> Response:
        return error_response(error)

    @app.exception_handler(HTTPException)
    async def refuse_route(request: Request, error: HTTPException) -> Response:
        return error_response(ApiError(error.status_code, f"{request.method} {request.url.path}: {error.detail}", headers=error.headers))

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await counter.answer(request, CompletionAsked)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return await counter.answer(request, ChatAsked)

    @app.get("/v1/models")
    async def models() -> Response:
        return _json({"object": "list", "data": [counter.model()]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        counter.refuse_other(name)
        return _json(counter.model())

    @app.get("/healthz")
    async def health() -> Response:
        is_well = desk.is_open and desk.is_alive
        status = "ok" if is_well else "draining" if desk.is_alive else "failed"
        state = {"status": status, "mode": desk.mode, "rows": desk.n_running, "waiting": desk.n_waiting}
        return _json(state, 200 if is_well else 503)

    @app.get("/metrics")
    async def numbers() -> Response:
        return Response(metrics.text(), media_type=None, headers={"content-type": CONTENT_TYPE_LATEST})

    return app


def _json(data: Any, status: int = 200) -> Response:
    return Response(as_json(data), status, media_type="application/json")


class _Counter:
    """Where requests are taken in and handed back."""

    def __init__(self, desk: Desk, served: Served, rules: Rules) -> None:
        self.desk, self.served, self.rules = desk, served, rules
        self.created = int(time.time())
        self.tokenizing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="causalab-tokenize")  # a tokenizer is used by one at a time

    def model(self) -> dict[str, Any]:
        """Returns what `/v1/models` says of the model."""
        desk, served, watched = self.desk, self.served, self.served.watched
        more = {
            "mode": desk.mode,
            "rows_at_most": desk.n_rows_at_most,
            "max_tokens": served.n_tokens,
            "max_prompt_tokens": served.n_prompt_tokens,
            "revision": watched.facts.revision,
            "dtype": watched.facts.dtype,
            "points": list(watched.spec.names),
        }
        return {"id": served.name, "object": "model", "created": self.created, "owned_by": "causalab-mini", "causalab": more}

    def refuse_other(self, name: str) -> None:
        """Refuses any model but the one that is served."""
        if name != self.served.name:
            text = f"expected `{self.served.name}` (the one model of this server), got {name[:120]!r}"
            raise ApiError(404, text, param="model", code="model_not_found")

    async def answer(self, request: Request, kind: type[Asked]) -> Response:
        """Returns the answer to a request, or the beginning of it."""
        began = time.monotonic()
        if not self.desk.is_open:
            raise _closed()
        asked = parse(kind, await read_body(request, self.rules.n_body_bytes))
        self.refuse_other(asked.model)
        name = f"{'chatcmpl' if kind is ChatAsked else 'cmpl'}-{uuid.uuid4().hex}"
        wishes = await asyncio.get_running_loop().run_in_executor(self.tokenizing, self._wishes, asked, name)
        n_prompt = sum(wish.prompt.n_tokens for wish in wishes[:: asked.n or 1])
        shape: Literal["chat", "text"] = "chat" if kind is ChatAsked else "text"
        form = Form(name, shape, int(time.time()), self.served.name, n_prompt, asked.counts_usage)
        try:
            tickets = self.desk.ask(wishes, is_followed=bool(asked.stream))
        except Busy as busy:
            text = "all places are taken; ask again later"
            raise ApiError(429, text, code="busy", headers={"retry-after": str(busy.seconds)}) from None
        except Closed:
            raise _closed() from None
        following = _Following(tickets, request, self.desk.room.seconds)
        try:
            if not asked.stream:
                await following.until_done()
                _refuse_failed(tickets)
                done = [one.done for one in tickets if one.done is not None]
                return _json(form.whole(done, [self._text(one.wish, each, asked) for one, each in zip(tickets, done, strict=True)]))
            await following.until_begun()
            if all(one.done is not None and not one.has_begun for one in tickets):
                _refuse_failed(tickets)
            events = self._events(form, asked, following)
            following = None  # type: ignore[assignment]  # the stream has it now
            return _EventStream(events)
        except _Gone:
            request.scope["state"]["status"] = HUNG_UP
            return Response(status_code=HUNG_UP)
        finally:
            if following is not None:
                await following.close()
                self._note(request, tickets, began)

    async def _events(self, form: Form, asked: Asked, following: _Following) -> AsyncIterator[bytes]:
        """Yields a stream's events."""
        began, tickets, stops = time.monotonic(), following.tickets, asked.stop or ()
        pieces = [Pieces(self.served.tokenizer, one.wish.prompt, stops) for one in tickets]
        left = set(range(len(tickets)))
        try:
            for index in sorted(left):
                if (first := form.first(index)) is not None:
                    yield event(first)
            while left:
                for index in sorted(left):
                    ticket, done = tickets[index], tickets[index].done
                    if done is not None and done.ended == "error":
                        yield event(failed(done.error).as_data())
                        return
                    text = (
                        pieces[index].take(self._shown(ticket.said))
                        if done is None
                        else pieces[index].rest(self._text(ticket.wish, done, asked))
                    )
                    if text:
                        yield event(form.piece(index, text))
                    if done is not None:
                        yield event(form.last(index, done))
                        left.remove(index)
                if left:
                    await following.news()
            if form.counts_usage:
                yield event(form.counted(sum(len(one.done.ids) for one in tickets if one.done is not None)))
            yield DONE
        except _Gone:
            following.request.scope["state"]["status"] = HUNG_UP
        finally:
            await following.close()
            self._note(following.request, tickets, began)

    def _shown(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """Returns ids without the token that ends them."""
        return ids[:-1] if ids and ids[-1] in self.served.stop_ids else ids

    def _text(self, wish: Wish, done: Done, asked: Asked) -> str:
        """Returns what was said, without what ended it."""
        return cut(text_behind(self.served.tokenizer, wish.prompt.ids, self._shown(done.ids)), asked.stop or ())

    # From what is asked to wishes

    def _wishes(self, asked: Asked, name: str) -> list[Wish]:
        """Returns one wish a choice; runs on the thread of the tokenizer.

        Raises:
            ApiError: a prompt does not fit.
        """
        n = asked.n or 1
        if (n_all := n * (len(asked.prompt) if isinstance(asked, CompletionAsked) else 1)) > self.desk.room.n_waiting:
            text = f"expected at most {self.desk.room.n_waiting} generations in one request, got {n_all}"
            raise ApiError(400, text, param="prompt" if n == 1 else "n", code="too_many")
        prompts = self._prompts(asked)
        seed = secrets.randbelow(MAX_SEED)
        decodes = [self._decode(asked, prompt, seed) for prompt in prompts]
        return [
            Wish(name if n_all == 1 else f"{name}/{index * n + nth}", prompt, decode, index * n + nth)
            for index, (prompt, decode) in enumerate(zip(prompts, decodes, strict=True))
            for nth in range(n)
        ]

    def _prompts(self, asked: Asked) -> Sequence[Prompt]:
        tokenizer, most = self.served.tokenizer, self.served.n_prompt_tokens
        try:
            if isinstance(asked, ChatAsked):
                turns = [message.turn for message in asked.messages]
                self._refuse_long(sum(len(turn["content"]) for turn in turns), "messages")
                found: Sequence[Prompt] = prompts_of([turns], tokenizer, "messages")
            else:
                assert isinstance(asked, CompletionAsked)
                for value in asked.prompt:
                    self._refuse_long(len(value), "prompt", isinstance(value, str))
                found = [
                    prompts_of([value], tokenizer, "prompt")[0] if isinstance(value, str) else self._of_ids(value) for value in asked.prompt
                ]
        except PlanError as error:
            problem = error.problems[0]
            path = problem.path.removesuffix("[0]")
            raise refusal(Problem(path, problem.expected, problem.got, problem.hint, problem.code)) from None
        for prompt in found:
            if prompt.n_tokens > most:
                text = f"expected a prompt of at most {most} tokens, got {prompt.n_tokens}"
                raise ApiError(400, text, param=asked.PROMPT, code="context_length_exceeded")
        return found

    def _refuse_long(self, n: int, param: str, is_text: bool = True) -> None:
        """Refuses what can't fit before it is cut into tokens, which takes time: a token has 32 characters at most, nearly always."""
        if n > self.served.n_prompt_tokens * (32 if is_text else 1):
            text = f"expected a prompt of at most {self.served.n_prompt_tokens} tokens, got {n} {'characters' if is_text else 'tokens'}"
            raise ApiError(400, text, param=param, code="context_length_exceeded")

    def _of_ids(self, ids: tuple[int, ...]) -> Prompt:
        highest = self.served.watched.facts.vocabulary
        if max(ids) >= highest:
            raise ApiError(400, f"prompt: expected token ids below {highest}, got {max(ids)}", param="prompt", code="token")
        return prompt_of_ids(self.served.tokenizer, ids)

    def _decode(self, asked: Asked, prompt: Prompt, seed: int) -> Decode:
        """Returns how the model speaks behind a prompt: at the length that is asked for, else at what server and learned positions allow."""
        most, positions = self.served.n_tokens, self.served.watched.facts.max_positions
        if asked.n_tokens is not None and asked.n_tokens > most:
            text = f"expected at most {most} tokens, got {asked.n_tokens}"
            raise ApiError(400, text, param="max_tokens", code="max_tokens")
        left = most if positions is None else max(1, min(most, positions - prompt.n_tokens))
        decode = asked.decode(left if asked.n_tokens is None else asked.n_tokens, seed)
        for problem in judge_prompt(self.served.watched, prompt, decode):
            raise refusal(replace(problem, path=asked.PROMPT), "context_length_exceeded")
        return decode

    def _note(self, request: Request, tickets: Sequence[Ticket], began: float) -> None:
        """Logs that a request is through; nothing of what is in it."""
        if self.served.logs:
            ends = ",".join(one.done.ended if one.done is not None else "cancelled" for one in tickets)
            n = sum(len(one.done.ids) for one in tickets if one.done is not None)
            request_id = request.scope["state"]["request_id"]
            log.info("%s %s %s %d tokens %.2f s", request_id, request.url.path, ends, n, time.monotonic() - began)


class _Gone(Exception):  # noqa: N818 - no mistake
    """The client has hung up."""


class _Following:
    """Tickets as the event loop sees them, and whether anyone still waits for them.

    Their time is looked after here too: the thread that decodes may be held up by a probe.
    """

    def __init__(self, tickets: Sequence[Ticket], request: Request, seconds: float) -> None:
        self.tickets = tickets
        self.request = request
        self._event = asyncio.Event()
        self._is_gone = False
        self._loop = asyncio.get_running_loop()
        self._listening = asyncio.create_task(self._listen())
        self._clock = self._loop.call_later(seconds, self._leave, "timeout")
        for ticket in tickets:
            ticket.listen(self._tell)

    async def news(self) -> None:
        """Waits until something has changed.

        Raises:
            _Gone: the client has hung up.
        """
        await self._event.wait()
        self._event.clear()
        if self._is_gone:
            raise _Gone

    async def until_done(self) -> None:
        """Waits until all tickets are through."""
        while any(one.done is None for one in self.tickets):
            await self.news()

    async def until_begun(self) -> None:
        """Waits until there is something to show, so that what is refused still has a status of its own."""
        while not any(one.done is not None or one.said for one in self.tickets):
            await self.news()

    async def close(self) -> None:
        """Lets tickets go that are not through."""
        self._clock.cancel()
        self._leave("cancelled")
        self._listening.cancel()
        with suppress(asyncio.CancelledError):
            await self._listening

    def _leave(self, why: str) -> None:
        for ticket in self.tickets:
            ticket.leave(why)

    def _tell(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._event.set)

    async def _listen(self) -> None:
        while (await self.request.receive())["type"] != "http.disconnect":
            pass
        self._is_gone = True
        self._event.set()


class _EventStream(Response):
    """Server-sent events; a client that does not read loses its place."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes]) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self.events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events as they come."""
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for data in self.events:
                async with asyncio.timeout(WRITE_SECONDS):
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            scope["state"]["status"] = HUNG_UP
        finally:
            await self.events.aclose()  # type: ignore[attr-defined]


def _refuse_failed(tickets: Sequence[Ticket]) -> None:
    """Refuses to answer where a generation failed, or never began."""
    for ticket in tickets:
        done = ticket.done
        if done is not None and done.ended == "error":
            raise failed(done.error)
    for ticket in tickets:
        if ticket.done is not None and not ticket.has_begun:
            if ticket.done.ended == "shutdown":
                raise _closed()
            raise ApiError(503, "no place became free in time; ask again later", code="timeout", headers=AGAIN)


def _closed() -> ApiError:
    return ApiError(503, "this server is shutting down", code="shutdown", headers=AGAIN)
