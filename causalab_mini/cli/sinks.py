"""Where verdicts go as they come: a file, a URL, or both."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from causalab_mini.errors import Problem, UsageError, quoted

if TYPE_CHECKING:
    from causalab_mini.probing.sinks import Sink, Sinks

Ndjson = Annotated[
    Path | None, typer.Option("--ndjson", metavar="FILE", help="Append verdicts, failures and ends to a file as they come, a line each.")
]
NdjsonBytes = Annotated[
    int | None, typer.Option("--ndjson-bytes", min=1, help="Begin the file anew at this size; the last 5 are kept. [default: never]")
]
Webhook = Annotated[str | None, typer.Option("--webhook", metavar="URL", help="Post them to a URL as they come.")]
WebhookTokenEnv = Annotated[
    str | None, typer.Option("--webhook-token-env", metavar="NAME", help="The environment variable with the bearer token of the URL.")
]
DeadLetters = Annotated[
    Path | None,
    typer.Option("--dead-letters", metavar="FILE", help="Where goes what the URL does not take. [default: dead_letters.ndjson]"),
]
Redact = Annotated[
    list[str] | None, typer.Option("--redact", metavar="KEY", help="Hide the values of a key, or path, of events. May be repeated.")
]
Activations = Annotated[bool, typer.Option("--send-activations", help="Append and post the activations themselves, too.")]

CLOSING_S = 10.0
"""Seconds for what is still on its way at the end."""
DEAD_LETTERS = Path("dead_letters.ndjson")


def opened(
    ndjson: Path | None,
    ndjson_bytes: int | None,
    webhook: str | None,
    token_env: str | None,
    dead_letters: Path | None,
    redact: list[str] | None,
    activations: bool,
) -> Sinks:
    """Returns the sinks that options name; none where they name none.

    Raises:
        UsageError: an option is without the one that it is of, or a file or URL can't be used.
    """
    from causalab_mini.probing.sinks import NdjsonSink, Redacting, Sinks, WebhookSink

    for name, given, of, place in (
        ("--ndjson-bytes", ndjson_bytes, "--ndjson FILE", ndjson),
        ("--webhook-token-env", token_env, "--webhook URL", webhook),
        ("--dead-letters", dead_letters, "--webhook URL", webhook),
        ("--redact", redact or None, "--ndjson FILE` or `--webhook URL", ndjson or webhook),
        ("--send-activations", activations or None, "--ndjson FILE` or `--webhook URL", ndjson or webhook),
    ):
        if given is not None and place is None:
            raise UsageError(Problem(name, f"`{of}` beside `{name}`", quoted(str(given)), code="usage"))
    found: list[Sink] = []
    if ndjson is not None:
        found.append(NdjsonSink(ndjson, ndjson_bytes, wants_activations=activations))
    if webhook is not None:
        token = None if token_env is None else os.environ.get(token_env)
        if token_env is not None and not token:
            raise UsageError(
                Problem("--webhook-token-env", "an environment variable with a token", f"{quoted(token_env)}, empty", code="usage")
            )
        found.append(WebhookSink(webhook, dead_letters or DEAD_LETTERS, token=token, wants_activations=activations))
    return Sinks([Redacting(sink, redact) if redact else sink for sink in found])


def warn(sinks: Sinks) -> None:
    """Says on stderr what did not arrive."""
    for found in sinks.as_data():
        if n := sum(found.get(name, 0) for name in ("n_failed", "n_dead", "n_lost", "n_raised")):
            why = found.get("error") or found.get("raised") or "see the dead letters"
            print(f"warning: {found['kind']}: {n} event{'' if n == 1 else 's'} did not arrive: {why}", file=sys.stderr)
