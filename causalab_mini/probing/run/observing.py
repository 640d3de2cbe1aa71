"""From a spec and prompts to a recording: opens the checkpoint, judges, generates batch by batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from causalab_mini.engine.decoding import prove_cache
from causalab_mini.engine.engines.base import BaseEngine
from causalab_mini.engine.engines.hooks import HooksEngine
from causalab_mini.engine.sizes import is_out_of_memory
from causalab_mini.errors import Problem, RunError, UsageError, quoted
from causalab_mini.plan.problems import problems_of
from causalab_mini.plan.spec import Decode, ModelSpec
from causalab_mini.probing.probes import REGISTRY, Binding, Registry
from causalab_mini.probing.request import Request, make_request, prompts_of, watch
from causalab_mini.probing.router import QUEUE_DEPTH, Limits, Outcome, Router
from causalab_mini.probing.run.recording import Parts, Recording
from causalab_mini.probing.run.rows import Ask, Ended
from causalab_mini.probing.run.stream import Stream
from causalab_mini.probing.sinks import Sink
from causalab_mini.probing.spec import InterventionPolicy, ProbeSpec, load_yaml_file

BATCH_SIZE = 8


@dataclass(frozen=True, slots=True)
class Routing:
    """How probes are run; see `Router`.

    Attributes:
        policy: of inline points that have none of their own.
        queue_depth: of async points that have none of their own.
        limits: how long is waited.
        sinks: where verdicts go as they come; they are closed by whoever made them.
    """

    policy: InterventionPolicy | None = None
    queue_depth: int = QUEUE_DEPTH
    limits: Limits | None = None
    sinks: tuple[Sink, ...] = ()


PLAIN = Routing()


def probe(
    spec: ProbeSpec | str | os.PathLike[str],
    model: BaseEngine | ModelSpec | str,
    prompts: Sequence[Any],
    *,
    max_new_tokens: int,
    batch_size: int = BATCH_SIZE,
    only_records: bool = False,
    keep_activations: bool = False,
    registry: Registry = REGISTRY,
    probe_defaults: Mapping[str, Mapping[str, Any]] | None = None,
    routing: Routing = PLAIN,
    **decode: Any,
) -> Recording:
    """Returns what the points of a spec record, and what their probes say, while a model goes on from prompts.

    Args:
        spec: a spec, or the file of one.
        model: its key (a hub id needs a `ModelSpec` with the revision), or an opened checkpoint, which is not opened again.
        prompts: texts or conversations, one a request.
        max_new_tokens: the most that is generated for each.
        batch_size: requests that are run together.
        only_records: whether probes, queues and interventions of the spec are left out, and all points recorded.
        keep_activations: whether the activations of points with probes are recorded too.
        registry: that probes are looked up in.
        probe_defaults: arguments by `probe_type`; those of a point go before them.
        routing: how probes are run.
        **decode: `do_sample`, `temperature`, `top_p`, `top_k`, `seed`, `stop`, `ignore_eos`.

    Raises:
        InputError: spec, model, prompts or options are wrong, or do not fit each other.
    """
    file = "" if isinstance(spec, ProbeSpec) else str(spec)
    binding = Binding(registry, probe_defaults or {}, Path(file).parent if file else None)
    spec = spec if isinstance(spec, ProbeSpec) else load_yaml_file(spec)
    how = decoding({"max_new_tokens": max_new_tokens, **decode})
    engine = model if isinstance(model, BaseEngine) else HooksEngine.load(model if isinstance(model, ModelSpec) else _spec_of(model))
    watched = watch(spec, engine.facts, engine.tokenizer, binding, only_records=only_records, file=file)
    request = make_request(watched, prompts_of(prompts, engine.tokenizer, "prompts"), how, is_kept=keep_activations)
    return observe(engine, request, batch_size, routing=routing)


def observe(
    engine: BaseEngine,
    request: Request,
    batch_size: int = BATCH_SIZE,
    on_batch: Callable[[int], None] = lambda n: None,
    on_halved: Callable[[int], None] = lambda size: None,
    routing: Routing = PLAIN,
) -> Recording:
    """Returns what a request comes to; `probe` is the short way.

    Args:
        engine: the checkpoint; its weights are loaded if need be.
        request: what is watched.
        batch_size: requests that are run together; half of them, and so on, where the device runs out of memory.
        on_batch: told how many requests are done.
        on_halved: told how many are run together from there on.
        routing: how probes are run.

    Raises:
        UsageError: the batch size is no number above 0.
        RunError: the model can't go on token by token, or a single request does not fit into memory.
    """
    if batch_size < 1:
        raise UsageError(Problem("batch_size", "a number above 0", quoted(batch_size), code="usage"))
    engine.load_weights()
    prove_cache(engine, request.prompts[0].ids)
    parts, start = Parts(request), 0
    watched = request.watched
    with Router(
        watched.spec, watched.probes, policy=routing.policy, queue_depth=routing.queue_depth, limits=routing.limits, sinks=routing.sinks
    ) as router:
        while start < len(request.prompts):
            rows = range(start, min(start + batch_size, len(request.prompts)))
            try:
                _add_batch(engine, request, rows, router, parts)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                if len(rows) == 1:
                    expected, hint = (
                        f"memory for request {start} alone",
                        "a smaller `dtype`, fewer tokens or points, or another `--device-map`",
                    )
                    raise RunError(Problem("", expected, "less", hint, "memory")) from error
                batch_size = (len(rows) + 1) // 2
                on_halved(batch_size)
                continue
            start = rows.stop
            on_batch(start)
    return parts.whole(engine.describe())


def _add_batch(engine: BaseEngine, request: Request, rows: Sequence[int], router: Router, parts: Parts) -> None:
    """Generates some rows of a request together, and adds what that leaves."""
    stream = Stream(engine, request.watched, request.recorded, raises=True)
    watches = {row: router.open(str(row), request.prompts[row].n_tokens) for row in rows} if router.routed or router.sinks else {}
    outcomes: dict[int, Outcome] = {}
    ended: list[Ended] = []
    try:
        stream.join([Ask(row, request.prompts[row], request.decode, watches.get(row)) for row in rows])
        while True:
            for row in stream.take_ended():
                ended.append(row)
                if row.number in watches:
                    watches[row.number].announce(row.ended, len(row.ids))
            if not stream.rows:
                break
            stream.step()
    except BaseException:
        for watching in watches.values():
            watching.announce("error", 0)
        for watching in watches.values():
            watching.end("error", 0)
        raise
    for row in ended:
        if row.number in watches:
            outcomes[row.number] = watches[row.number].end(row.ended, len(row.ids))
    parts.add(ended, stream.groups, stream.n_forwards, [outcomes[number] for number in sorted(outcomes)])


def decoding(given: dict[str, Any], is_option: bool = False) -> Decode:
    """Returns how a model speaks.

    Raises:
        UsageError: a value is wrong; options are named as the command line spells them.
    """
    try:
        return Decode.model_validate(given)
    except ValidationError as error:
        problems = list(problems_of(error, Decode))
        raise UsageError(_as_options(problems) if is_option else problems) from None


def _as_options(problems: Sequence[Problem]) -> list[Problem]:
    """Returns problems of fields as those of the options that give them."""
    return [replace(problem, path=f"--{problem.path.replace('_', '-')}" if problem.path else "") for problem in problems]


def _spec_of(key: str | Path) -> ModelSpec:
    try:
        return ModelSpec.model_validate({"key": str(key), "dtype": "fp32"})
    except ValidationError as error:
        raise UsageError(problems_of(error, ModelSpec)) from None
