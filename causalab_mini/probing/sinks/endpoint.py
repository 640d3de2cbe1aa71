"""Where a webhook sink delivers to: an address and headers that are secret, and what may be said of them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING

from causalab_mini.errors import Problem, UsageError, listed, quoted

if TYPE_CHECKING:
    import httpx as httpx_

REDACTED = "[redacted]"
IDEMPOTENCY_KEY = "Idempotency-Key"
OURS = ("Content-Length", "Content-Type", IDEMPOTENCY_KEY, "Transfer-Encoding")
"""Headers that the sink sets."""
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_SHORTEST_SECRET = 4


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address with its headers.

    Path and query are secret (the address of many a webhook is its password), and so is what headers hold.

    Attributes:
        origin: scheme, host and port, with a slash.
        target: path and query, as they are requested.
        headers: with each request.
        is_loopback: whether the host is this machine by name or by number.
    """

    origin: str
    target: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    is_loopback: bool

    @classmethod
    def of(cls, url: str, token: str | None, headers: Mapping[str, str] | None) -> Endpoint:
        """Returns an endpoint.

        Args:
            url: http or https, without user and password.
            token: sent as `Authorization: Bearer …`.
            headers: further ones.

        Raises:
            UsageError: httpx is missing, or an argument is wrong; secrets are not in its text.
        """
        httpx = imported_httpx()
        problems = []
        try:
            parsed = httpx.URL(url)
            host = parsed.host
        except (httpx.InvalidURL, TypeError, ValueError):  # a ValueError where a name is no international one
            raise UsageError(Problem("url", "an http or https URL", "no URL", code="sink")) from None
        if parsed.scheme not in ("http", "https"):
            problems.append(Problem("url", "an http or https URL", "one of another scheme", code="sink"))
        elif not host:
            problems.append(Problem("url", "an http or https URL", "one without a host", code="sink"))
        if parsed.userinfo:
            hint = "give a token or headers instead; they are kept out of events, errors and logs"
            problems.append(Problem("url", "a URL without user and password", "one with them", hint, "sink"))
        given = dict(headers or {})
        if token is not None:
            if any(name.casefold() == "authorization" for name in given):
                problems.append(Problem("token", "a token or an `Authorization` header", "both", code="sink"))
            given["Authorization"] = f"Bearer {token}"
        for name, value in given.items():
            place = "token" if token is not None and name == "Authorization" else "headers"
            if not _NAME.fullmatch(name):
                problems.append(Problem(place, "names of headers", quoted(name), code="sink"))
            elif name.casefold() in {ours.casefold() for ours in OURS}:
                problems.append(Problem(place, f"headers other than {listed(OURS)}", quoted(name), code="sink"))
            if not (value.isascii() and value.isprintable() and value.strip() == value):
                problems.append(Problem(place, "values of printable ASCII characters", f"another in {quoted(name)}", code="sink"))
        if problems:
            raise UsageError(problems)
        return cls(f"{parsed.scheme}://{parsed.netloc.decode()}/", parsed.raw_path, given, _is_loopback(host))

    @property
    def said(self) -> str:
        """The address as it may be said: without path and query."""
        return self.origin if self.target == b"/" else self.origin + "…"

    def client(self) -> httpx_.Client:
        """Returns a client: it verifies certificates, follows no redirects, and goes through no proxy to this machine.

        Raises:
            UsageError: what the environment says of proxies or certificates can't be used.
        """
        httpx = imported_httpx()
        trusts = not self.is_loopback
        try:
            client: httpx_.Client = httpx.Client(headers=self.headers, verify=httpx.create_ssl_context(), trust_env=trusts)
        except (ImportError, OSError, ValueError) as error:  # a proxy or certificates of the environment
            got = self.scrub(f"{type(error).__name__}: {error}")
            raise UsageError(Problem("url", "an environment whose proxies and certificates can be used", got, code="sink")) from None
        return client

    def scrub(self, text: str) -> str:
        """Returns a text without what is secret here."""
        values = [value for header in self.headers.values() for value in (header, header.removeprefix("Bearer "))]
        target = self.target.decode()
        for secret in sorted({*values, target, target.partition("?")[2]}, key=len, reverse=True):
            if len(secret) >= _SHORTEST_SECRET:
                text = text.replace(secret, REDACTED)
        return text


def imported_httpx() -> ModuleType:
    """Returns httpx.

    Raises:
        UsageError: it isn't there.
    """
    try:
        import httpx
    except ImportError:
        hint = "pip install 'causalab-mini[serve]'"
        raise UsageError(Problem("url", "httpx, to deliver to a webhook", "no such package", hint, "extra")) from None
    return httpx


def _is_loopback(host: str) -> bool:
    host = host.removesuffix(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified
