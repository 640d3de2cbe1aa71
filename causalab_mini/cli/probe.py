"""`causalab-mini probe`: an extraction spec, run while a model generates."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from causalab_mini.cli import options, sinks, watching
from causalab_mini.errors import CausalabError, Problem, UsageError, quoted

if TYPE_CHECKING:
    from rich.table import Table

    from causalab_mini.data.prompts import Prompt
    from causalab_mini.engine.engines.base import BaseEngine
    from causalab_mini.probing.run import Recording, Request, Routing, Watched

MAX_REASONS = 3


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command(name="probe")(probe)


def probe(
    spec: watching.Spec,
    model: watching.Model,
    out: Annotated[Path, typer.Option("--out", help="The folder of the results: new, empty, or of this very request.")],
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", help="How many tokens are generated at most.")],
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", metavar="TEXT", help="What the model goes on from; may be repeated.")
    ] = None,
    data: Annotated[str | None, typer.Option("--data", metavar="REF", help="The rows of a table instead.")] = None,
    field: Annotated[str | None, typer.Option("--field", help="The field path of the rows' prompts.")] = None,
    data_root: options.DataRoot = None,
    do_sample: Annotated[bool, typer.Option("--do-sample", help="Draw tokens; else each is the most likely one.")] = False,
    temperature: Annotated[float | None, typer.Option("--temperature", help="Sampling: what logits are divided by.")] = None,
    top_p: Annotated[float | None, typer.Option("--top-p", help="Sampling: the share of probability that is drawn from.")] = None,
    top_k: Annotated[int | None, typer.Option("--top-k", help="Sampling: how many of the most likely tokens are drawn from.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Sampling: of the draws.")] = None,
    stop: Annotated[list[str] | None, typer.Option("--stop", metavar="TEXT", help="Text that ends a generation; may be repeated.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Rule the stop token out, so that all tokens are generated.")] = False,
    only_records: Annotated[
        bool,
        typer.Option("--only-records", help="Leave out probes, queues and interventions: record what they would be given, and say so."),
    ] = False,
    keep_activations: Annotated[
        bool, typer.Option("--keep-activations", help="Record the activations of points with probes, too.")
    ] = False,
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
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Prompts that are run together.")] = 8,
    revision: options.Revision = None,
    dtype: watching.Dtype = "fp32",
    attention: watching.Attention = "auto",
    device_map: watching.Device = "auto",
    trust_remote_code: options.TrustRemoteCode = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until another run is done with the folder.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Watch a model generate, as an extraction spec says: record activations, ask probes, which may stop it, and write what came of it.

    Everything that does not fit is refused before the weights are loaded. Prints the written files on stdout; what each point came to on
    stderr.
    """
    from causalab_mini.probing.run import Routing
    from causalab_mini.probing.run.folder import RecordingFolder

    how = {
        "max_new_tokens": max_new_tokens,
        "do_sample": do_sample,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "seed": seed,
        "stop": stop or [],
        "ignore_eos": ignore_eos,
    }
    points = watching.read_spec(spec)
    named = watching.model_of(model, revision, dtype, attention)
    _refuse_unless_one(prompt, data, field, data_root)
    binding = watching.binding(points, probes, probe_args, spec.parent)
    engine, watched = watching.opened(spec, points, named, device_map, trust_remote_code, binding, only_records)
    request, source = _request(engine, watched, prompt, data, field, data_root, how, keep_activations)
    given = {"spec": str(spec), "batch_size": batch_size, "device_map": device_map, "only_records": only_records, **source}
    if watched.probes:
        given |= {"probes": list(map(str, probes or ())), "probe_timeout": probe_timeout, "probe_drain": probe_drain}
    limits = watching.limits(probe_timeout, probe_drain)
    told = sinks.opened(ndjson, ndjson_bytes, webhook, webhook_token_env, dead_letters, redact, send_activations)
    folder = RecordingFolder(out, request, given, wait, _say_waiting)
    try:
        folder.begin()
        routing = Routing(limits=limits, sinks=tuple(told))
        try:
            recording = _recorded(engine, request, batch_size, as_json, routing)
        finally:
            told.close(sinks.CLOSING_S)
        written = folder.end(recording, engine.tokenizer, told.as_data())
    except KeyboardInterrupt:
        folder.record("interrupted", engine.describe())
        raise
    except CausalabError as error:
        with suppress(CausalabError):  # where files can't be written
            folder.record("failed", {**engine.describe(), "error": error.as_data()})
        raise error.in_file(str(spec)) from None
    except Exception as error:
        folder.record("failed", {**engine.describe(), "error": {"errors": [{"code": "bug", "got": repr(error)}]}})
        raise
    finally:
        folder.close()
    _print(recording, written, as_json)
    sinks.warn(told)


def _say_waiting(who: str) -> None:
    sys.stderr.write(f"waiting for the folder, {who}\n")


def _refuse_unless_one(prompt: list[str] | None, data: str | None, field: str | None, data_root: Path | None) -> None:
    """Refuses anything but one of the two ways to give prompts."""
    if (data is None) == (not prompt):
        raise UsageError(Problem("probe", "`--prompt TEXT`, or `--data REF --field F`", "both" if prompt else "neither", code="usage"))
    if data is not None and field is None:
        raise UsageError(Problem("--field", f"the field of the prompts in {quoted(data)}", "none", code="usage"))
    for name, value in (("--field", field), ("--data-root", data_root)):
        if data is None and value is not None:
            raise UsageError(Problem(name, f"`--data REF` beside `{name}`", quoted(str(value)), code="usage"))


def _request(
    engine: BaseEngine,
    watched: Watched,
    texts: list[str] | None,
    ref: str | None,
    field: str | None,
    data_root: Path | None,
    how: Mapping[str, Any],
    is_kept: bool,
) -> tuple[Request, dict[str, Any]]:
    """Returns what is asked of a checkpoint, and what the record says of where the prompts are from."""
    from causalab_mini.probing.run import make_request, prompts_of
    from causalab_mini.probing.run.observing import decoding

    decode = decoding(dict(how), is_option=True)
    prompts: tuple[Prompt, ...]
    if ref is None:
        prompts, source = prompts_of(texts or (), engine.tokenizer, "--prompt"), {"prompts": "--prompt"}
    else:
        prompts, source = _rows(engine.tokenizer, ref, str(field), data_root)
    return make_request(watched, prompts, decode, is_kept=is_kept), source


def _rows(tokenizer: Any, ref: str, field: str, data_root: Path | None) -> tuple[tuple[Prompt, ...], dict[str, Any]]:
    from causalab_mini.data.fields import MISSING, parse_field
    from causalab_mini.data.table import find_data_root
    from causalab_mini.errors import PlanError, did_you_mean
    from causalab_mini.plan.rows import Rows
    from causalab_mini.probing.run import prompts_of

    path = parse_field(field)
    if path is None:
        raise UsageError(Problem("--field", "a field path like `input` or `counterfactual_inputs[0]`", quoted(field), code="usage"))
    table = Rows(find_data_root(data_root, None), tokenizer, None).table(ref, "--data")
    values = [path.get(row) for row in table.rows]
    missing = [index for index, value in enumerate(values) if value is MISSING]
    if missing:
        hint = did_you_mean(field, table.columns)
        raise PlanError(Problem("--field", f"{quoted(field)} on every row of {quoted(ref)}", f"none on row {missing[0]}", hint, "column"))
    return prompts_of(values, tokenizer, f"{ref}.{field}"), {"data": {ref: {"sha256": table.sha256, "field": field, "n_rows": len(values)}}}


def _recorded(engine: BaseEngine, request: Request, batch_size: int, as_json: bool, routing: Routing) -> Recording:
    from rich.console import Console

    from causalab_mini.probing.run import observe

    if as_json or not sys.stderr.isatty():
        return observe(engine, request, batch_size, routing=routing)
    with Console(stderr=True).status("loading the weights") as status:
        return observe(engine, request, batch_size, lambda n: status.update(f"{n} of {len(request.prompts)} requests"), routing=routing)


def _print(recording: Recording, written: Sequence[Path], as_json: bool) -> None:
    points = recording.summary()
    if as_json:
        print(json.dumps({"files": [str(path) for path in written], "points": points}, indent=1, ensure_ascii=False))
        return
    for path in written:
        print(path)
    sys.stdout.flush()
    from rich.console import Console

    from causalab_mini.results.summary import probe_lines

    console = Console(stderr=True, highlight=False)
    console.print(_table(points))
    for point in points:
        if why := _why(point["requests"]):
            console.print(
                f"{point['point']}: {'fired at nothing' if not point['fired'] else 'fired at less than it could'}: {why}", markup=False
            )
        for line in probe_lines(point, len(recording.generated)):
            console.print(f"{point['point']}: {line}", markup=False)
        for field, value in point["not_carried_out"].items():
            console.print(f"not carried out: {point['point']}.{field}: {value}", markup=False)


def _table(points: Sequence[Mapping[str, Any]]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title="tokens that points fired at", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("point", "tensor", "layers", "position"):
        table.add_column(name, overflow="fold")
    has_probes = any("probe" in point for point in points)
    for name in ("eligible", "fired", *(("probe", "verdicts") if has_probes else ())):
        table.add_column(name, justify="left" if name == "probe" else "right", no_wrap=name != "probe", overflow="fold")
    for point in points:
        texts = [point["point"], point["tensor_type"], ", ".join(map(str, point["layers"])), point["position"]]
        cells = [Text(text) for text in texts] + [Text(str(point["eligible"])), Text(str(point["fired"]))]
        if has_probes:
            probe = point.get("probe")
            mode = f" ({probe['execution_mode']})" if probe and probe["execution_mode"] != "inline" else ""
            cells += [Text(f"{probe['probe_type']}{mode}" if probe else "–"), Text(str(probe["n_verdicts"]) if probe else "–")]
        table.add_row(*cells, style="" if point["fired"] else "bold")
    return table


def _why(requests: Sequence[Mapping[str, Any]]) -> str:
    """Returns the reasons why a point did not fire, each with how many requests have it."""
    counts: dict[str, int] = {}
    for line in requests:
        if line["reason"]:
            counts[line["reason"]] = counts.get(line["reason"], 0) + 1
    said = [f"{reason} ({n} of {len(requests)})" if len(requests) > 1 else reason for reason, n in list(counts.items())[:MAX_REASONS]]
    return "; ".join(said) + (f"; {len(counts) - MAX_REASONS} more in summary.json" if len(counts) > MAX_REASONS else "")
