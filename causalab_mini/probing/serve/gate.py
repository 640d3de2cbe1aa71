"""What stands before the routes: who may come in, how many at once, and that whatever happens is answered, named and counted."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from causalab_mini.probing.serve.answers import as_json
from causalab_mini.probing.serve.api import ApiError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN = frozenset({"/healthz"})
"""Paths that need no token."""
ROUTES = frozenset({"/v1/completions", "/v1/chat/completions", "/v1/models", "/healthz", "/metrics"})
BODY_SECONDS = 30.0
"""How long a client may take to send a body."""
HUNG_UP = 499
"""What is noted where the client is gone; nobody is sent it."""
_OWN_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")

log = logging.getLogger("causalab_mini.serve")


@dataclass(frozen=True, slots=True)
class Rules:
    """Who may come in.

    Attributes:
        token: that requests must carry; None where anyone may.
        hosts: that requests may be addressed to, without ports; None for any. A page in a browser can have its own name lead here.
        n_body_bytes: the largest body.
        n_requests: that may be there at once, waiting or not.
    """

    token: str | None = None
    hosts: frozenset[str] | None = None
    n_body_bytes: int = 1024 * 1024
    n_requests: int = 512


class Gate:
    """Names, admits, answers for, and counts requests.

    Args:
        app: that it stands before.
        rules: who may come in.
        on_asked: told how many requests are there, whenever that changes.
        on_answered: told of each request's route, status and seconds.
    """

    def __init__(self, app: ASGIApp, rules: Rules, on_asked: Callable[[int], None], on_answered: Callable[[str, int, float], None]) -> None:
        self.app = app
        self.rules = rules
        self.on_asked = on_asked
        self.on_answered = on_answered
        self.n_requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _OWN_ID.fullmatch(given) else f"req-{uuid.uuid4().hex}"
        scope.setdefault("state", {})["request_id"] = request_id
        status, has_begun, began = 500, False, time.monotonic()

        async def answer(message: Message) -> None:
            nonlocal status, has_begun
            if message["type"] == "http.response.start":
                status, has_begun = message["status"], True
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        self.n_requests += 1
        self.on_asked(self.n_requests)
        try:
            self._admit(scope["path"], headers)
            await self.app(scope, receive, answer)
        except ApiError as error:
            await error_response(error)(scope, receive, answer)
        except ClientDisconnect:
            scope["state"]["status"] = HUNG_UP
        except Exception:
            log.exception("request %s failed", request_id)
            if not has_begun:
                await error_response(ApiError(500, "the server failed; its log has more", code="bug"))(scope, receive, answer)
        finally:
            self.n_requests -= 1
            self.on_asked(self.n_requests)
            status = scope["state"].get("status", status)
            self.on_answered(route_of(scope["path"]), status, time.monotonic() - began)

    def _admit(self, path: str, headers: Headers) -> None:
        hosts = self.rules.hosts
        if hosts is not None and without_port(headers.get("host", "")) not in hosts:
            raise ApiError(403, f"this server answers to {' and '.join(sorted(hosts))} alone", code="host")
        origin = headers.get("origin")
        if origin is not None and urlsplit_host(origin) != headers.get("host", "").casefold():
            raise ApiError(403, "pages of other origins may not ask this server", code="origin")
        token = self.rules.token
        if token is not None and path not in OPEN and not is_token(headers.get("authorization", ""), token):
            hint = "send `Authorization: Bearer …` (`api_key` of the client)"
            raise ApiError(401, hint, code="invalid_api_key", headers={"www-authenticate": "Bearer"})
        if self.n_requests > self.rules.n_requests and path not in OPEN:
            raise ApiError(429, "too many requests at once", code="busy", headers={"retry-after": "1"})


def is_token(authorization: str, token: str) -> bool:
    """Returns whether a header carries the token; takes as long for one that is nearly right."""
    scheme, _, given = authorization.partition(" ")
    return hmac.compare_digest(given.strip().encode(), token.encode()) and scheme.casefold() == "bearer"


def without_port(host: str) -> str:
    """Returns a `Host` header without its port."""
    return re.sub(r":\d*$", "", host).casefold()


def urlsplit_host(origin: str) -> str:
    """Returns host and port of an origin; empty where it has none."""
    try:
        return urlsplit(origin).netloc.casefold()
    except ValueError:
        return ""


def route_of(path: str) -> str:
    """Returns a path as it is counted: one of a few."""
    if path in ROUTES:
        return path
    return "/v1/models" if path.startswith("/v1/models/") else "other"


def error_response(error: ApiError) -> Response:
    """Returns a refusal as a response."""
    return Response(as_json(error.as_data()), error.status, error.headers, "application/json")


async def read_body(request: Request, n_bytes: int) -> bytes:
    """Returns the body of a request.

    Raises:
        ApiError: it is too large, too slow, or no JSON by its type.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().casefold()
    if kind != "application/json":
        raise ApiError(415, "expected `content-type: application/json`", code="content_type")
    too_large = ApiError(413, f"expected a body of at most {n_bytes} bytes", code="body_too_large", headers={"connection": "close"})
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > n_bytes:
        raise too_large
    parts: list[bytes] = []
    n = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                n += len(part)
                if n > n_bytes:
                    raise too_large
                parts.append(part)
    except TimeoutError:
        raise ApiError(408, f"expected a body within {BODY_SECONDS:g} s", code="slow", headers={"connection": "close"}) from None
    return b"".join(parts)


def names_of(hosts: Iterable[str]) -> frozenset[str]:
    """Returns hosts as they stand in a `Host` header."""
    return frozenset(f"[{host}]" if ":" in host else host.casefold() for host in hosts)
