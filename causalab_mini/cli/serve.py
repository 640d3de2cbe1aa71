"""`causalab-mini serve`: an OpenAI-compatible server whose generations are watched by the probes of a spec."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from causalab_mini.cli import options, sinks, watching
from causalab_mini.errors import Problem, UsageError, quoted

if TYPE_CHECKING:
    import socket

    from causalab_mini.engine.engines.base import BaseEngine
    from causalab_mini.probing.run import Routing
    from causalab_mini.probing.serve.app import Served
    from causalab_mini.probing.serve.desk import Desk, Room
    from causalab_mini.probing.serve.gate import Rules

HINT = "`pip install 'causalab-mini[serve]'`"
WARM = "If today is Thursday, tomorrow is"


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command(name="serve")(serve)


def serve(
    spec: watching.Spec,
    model: watching.Model,
    host: Annotated[str, typer.Option("--host", help="Where to listen; beyond this machine only with a token, or `--allow-remote`.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 8000,
    name: Annotated[
        str | None, typer.Option("--name", help="What requests call the model. [default: KEY, of a path its last part]")
    ] = None,
    token_env: Annotated[
        str | None, typer.Option("--token-env", metavar="NAME", help="The environment variable with the token that requests must carry.")
    ] = None,
    token_file: Annotated[Path | None, typer.Option("--token-file", help="A file with it.")] = None,
    allow_remote: Annotated[bool, typer.Option("--allow-remote", help="Listen beyond this machine without a token.")] = False,
    max_rows: Annotated[int, typer.Option("--max-rows", min=1, max=1024, help="Generations that are run together.")] = 16,
    max_queue: Annotated[int, typer.Option("--max-queue", min=1, help="Generations that may wait.")] = 256,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Tokens of a generation.")] = 1024,
    max_prompt_tokens: Annotated[int, typer.Option("--max-prompt-tokens", min=1, help="Tokens of a prompt.")] = 4096,
    max_body: Annotated[int, typer.Option("--max-body", min=1024, help="Bytes of a request.")] = 1024 * 1024,
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds a generation may take, its wait included.")] = 300.0,
    drain: Annotated[float, typer.Option("--drain", min=0.0, help="Seconds that generations have to finish at the end.")] = 30.0,
    probes: watching.Probes = None,
    probe_args: watching.Defaults = None,
    probe_timeout: watching.ProbeTimeout = 30.0,
    probe_drain: watching.ProbeDrain = 10.0,
    ndjson: sinks.Ndjson = None,
    ndjson_bytes: sinks.NdjsonBytes = None,
    webhook: sinks.Webhook = None,
    webhook_token_env: sinks.WebhookTokenEnv = None,
    dead_letters: sinks.DeadLetters = None,
    redact: sinks.Redact = None,
    send_activations: sinks.Activations = False,
    log: Annotated[bool, typer.Option("--log", help="A line a request on stderr: id, route, end, tokens; never what is in it.")] = False,
    revision: options.Revision = None,
    dtype: watching.Dtype = "fp32",
    attention: watching.Attention = "auto",
    device_map: watching.Device = "auto",
    trust_remote_code: options.TrustRemoteCode = False,
    as_json: options.AsJson = False,
) -> None:
    """Answer as OpenAI's API does, with the probes of a spec watching every generation.

    Everything is judged before the weights are loaded. The first interrupt (or SIGTERM) lets what runs finish and leaves with 0; a second
    one ends it.
    """
    _import_extra()
    from causalab_mini.probing.probes import RECORD
    from causalab_mini.probing.run import Routing
    from causalab_mini.probing.serve.app import Served
    from causalab_mini.probing.serve.desk import ROOM, Room
    from causalab_mini.probing.serve.gate import Rules
    from causalab_mini.probing.serve.running import bind, is_loopback, loopback_names

    token = _token(token_env, token_file)
    is_local = is_loopback(host)
    if not is_local and token is None and not allow_remote:
        hint = "`--token-env NAME`, or `--allow-remote` for anyone who can reach it"
        raise UsageError(Problem("--host", "an address of this machine alone, as there is no token", quoted(host), hint, "usage"))
    points = watching.read_spec(spec)
    named = watching.model_of(model, revision, dtype, attention)
    if not send_activations and (kept := [point.name for point in points if point.probe_type == RECORD]):
        hint = "`--send-activations` with `--ndjson` or `--webhook` hands its activations on; or take the point out"
        expected = "a probe (the activations of a recorded point would go nowhere)"
        raise UsageError(Problem(f"{kept[0]}.probe_type", expected, quoted(RECORD), hint, "combination"), str(spec))
    binding = watching.binding(points, probes, probe_args, spec.parent)
    engine, watched = watching.opened(spec, points, named, device_map, trust_remote_code, binding, only_records=False)
    rules = Rules(token, loopback_names(host) if is_local else None, max_body, n_requests=max_rows + max_queue + 64)
    served = Served(name or _name_of(model), watched, engine.tokenizer, n_tokens=max_tokens, n_prompt_tokens=max_prompt_tokens, logs=log)
    room = Room(max_rows, max_queue, timeout, max(ROOM.n_join_tokens, max_prompt_tokens))
    if log:
        _log_requests()
    with contextlib.closing(bind(host, port)) as bound:
        told = sinks.opened(ndjson, ndjson_bytes, webhook, webhook_token_env, dead_letters, redact, send_activations)
        routing = Routing(limits=watching.limits(probe_timeout, probe_drain), sinks=tuple(told))
        try:
            code = _serve(engine, served, room, rules, routing, bound, drain, as_json)
        finally:
            told.close(sinks.CLOSING_S)
    sinks.warn(told)
    if code:
        raise typer.Exit(code)


def _import_extra() -> None:
    """Refuses where the extra is not installed.

    Raises:
        UsageError: a package is missing.
    """
    import importlib.util

    missing = [name for name in ("fastapi", "uvicorn", "prometheus_client") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(Problem("serve", "the packages of the extra `serve`", f"no {quoted(missing[0])}", HINT, "extra"))


def _token(env: str | None, file: Path | None) -> str | None:
    """Returns the token that requests must carry; it is never on the command line, which others may see."""
    if env is not None and file is not None:
        raise UsageError(Problem("--token-env", "one place of the token", "also `--token-file`", code="usage"))
    if env is None and file is None:
        return None
    where = "--token-env" if env is not None else "--token-file"
    try:
        found = os.environ.get(env, "") if env is not None else Path(str(file)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(Problem(where, "a file that can be read", f"{quoted(file)} ({type(error).__name__})", code="usage")) from None
    found = found.strip()
    if not (found.isascii() and found.isprintable() and found and " " not in found):
        got = "nothing" if not found else "something else"
        raise UsageError(Problem(where, f"a token of printable characters in {quoted(env or file)}", got, code="usage"))
    return found


def _name_of(key: str) -> str:
    """Returns what a model is called: a path says nothing of the machine."""
    return Path(key).name if Path(key).exists() else key


def _log_requests() -> None:
    """Has a line a request written to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger = logging.getLogger("causalab_mini.serve")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)


def _serve(
    engine: BaseEngine,
    served: Served,
    room: Room,
    rules: Rules,
    routing: Routing,
    bound: socket.socket,
    drain: float,
    as_json: bool,
) -> int:
    """Loads the weights and serves until it is told to stop; returns the exit code."""
    from causalab_mini.engine.decoding import prove_cache
    from causalab_mini.probing.request import prompts_of
    from causalab_mini.probing.router import Router
    from causalab_mini.probing.run.stream import Stream
    from causalab_mini.probing.serve.app import make_app
    from causalab_mini.probing.serve.desk import Desk
    from causalab_mini.probing.serve.metrics import Metrics
    from causalab_mini.probing.serve.running import Server

    engine.load_weights()
    (trial,) = prompts_of([WARM], engine.tokenizer, "the first prompt")
    prove_cache(engine, trial.ids)
    served, watched, metrics = replace(served, stop_ids=engine.stop_tokens()), served.watched, Metrics()
    with Router(watched.spec, watched.probes, limits=routing.limits, sinks=routing.sinks) as router:
        desk = Desk(lambda: Stream(engine, watched, ()), trial, router, room, on_done=metrics.ended)
        metrics.watch(desk, router)
        server = Server(make_app(desk, served, rules, metrics), desk, bound, drain)
        return server.run(lambda: _say(server.url, desk, served, rules, room, as_json))


def _say(url: str, desk: Desk, served: Served, rules: Rules, room: Room, as_json: bool) -> None:
    """Says that requests are taken, where, and how."""
    if as_json:
        ready = {"url": url, "model": served.name, "mode": desk.mode, "points": list(served.watched.spec.names)}
        print(json.dumps(ready, ensure_ascii=False), flush=True)
        return
    points = ", ".join(f"{point.name} ({point.probe_type})" for point in served.watched.spec)
    lines = (
        f"serving {served.name} at {url}/v1",
        f"probes: {points}",
        f"requests: {desk.mode}, {room.n_rows} at a time, {room.n_waiting} may wait, {room.seconds:g} s each",
        f"tokens: {served.n_prompt_tokens} of a prompt, {served.n_tokens} of a generation; a body has {rules.n_body_bytes} bytes at most",
        f"token: {'asked for' if rules.token else 'none'}; also {url}/healthz and {url}/metrics",
        "an interrupt lets what runs finish; a second one ends it",
    )
    print("\n".join(lines), file=sys.stderr, flush=True)
