"""What verbs that run probes have in common: the spec and the checkpoint, where probes are from, and what they are given."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from causalab_mini.cli import options
from causalab_mini.errors import Problem, UsageError, did_you_mean, listed, quoted

if TYPE_CHECKING:
    from causalab_mini.engine.engines.base import BaseEngine
    from causalab_mini.plan.spec import ModelSpec
    from causalab_mini.probing.probes import Binding
    from causalab_mini.probing.router import Limits
    from causalab_mini.probing.run import Watched
    from causalab_mini.probing.spec import ProbeSpec

ATTENTION = ("auto", "eager", "sdpa")

Model = Annotated[str, typer.Option("--model", metavar="KEY", help="A hub id, a folder, a GGUF file, or `bundled:NAME`.")]
Dtype = Annotated[str, typer.Option("--dtype", help="What the weights are loaded as: `fp32`, `bf16` or `fp16`.")]
Attention = Annotated[
    str, typer.Option("--attention", help="`eager` (has scores and patterns), `sdpa`, or `auto` for what transformers takes.")
]
Device = Annotated[
    str, typer.Option("--device-map", "--device", help="Where the weights go, as transformers takes it: `auto`, `cpu`, `cuda:0`.")
]
Spec = Annotated[Path, typer.Argument(metavar="SPEC", help="An extraction spec: a YAML file, or JSON.")]
Probes = Annotated[
    list[Path] | None, typer.Option("--probes", metavar="FILE", help="A Python file that registers probes; it is run. May be repeated.")
]
Defaults = Annotated[
    list[str] | None,
    typer.Option(
        "--probe-arg", metavar="TYPE.NAME=VALUE", help="An argument of every probe of a type; a point's own go before. May be repeated."
    ),
]
ProbeTimeout = Annotated[
    float, typer.Option("--probe-timeout", metavar="SECONDS", min=0.001, help="A call of a probe that takes longer is given up.")
]
ProbeDrain = Annotated[
    float, typer.Option("--probe-drain", metavar="SECONDS", min=0, help="How long async probes may work on when a request has ended.")
]

_RUN: set[Path] = set()


def read_spec(spec: Path) -> ProbeSpec:
    """Returns the spec of a file, and passes on what it says of older names."""
    import warnings

    from causalab_mini.probing.spec import load_yaml_file

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", DeprecationWarning)
        found = load_yaml_file(spec)
    for warning in said:
        print(f"warning: {warning.message}", file=sys.stderr)
    return found


def model_of(key: str, revision: str | None, dtype: str, attention: str) -> ModelSpec:
    """Returns the checkpoint that options name.

    Raises:
        UsageError: an option is none of its words, or they do not go together.
    """
    from pydantic import ValidationError

    from causalab_mini.plan.problems import problems_of
    from causalab_mini.plan.spec import ModelSpec

    options.choice("--attention", attention, ATTENTION)
    given = {
        "key": key,
        "revision": revision,
        "dtype": options.choice("--dtype", dtype, ("fp32", "bf16", "fp16")),
        "attn_implementation": None if attention == "auto" else attention,
    }
    try:
        return ModelSpec.model_validate({name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        found = problems_of(error, ModelSpec)
        raise UsageError(replace(one, path="--model" if one.path == "key" else f"--{one.path}") for one in found) from None


def opened(
    file: Path, points: ProbeSpec, model: ModelSpec, device_map: str, trust_remote_code: bool, binding: Binding, only_records: bool
) -> tuple[BaseEngine, Watched]:
    """Returns the checkpoint without weights, and what is watched of it."""
    from causalab_mini.engine.engines.hooks import HooksEngine
    from causalab_mini.probing.run import watch

    engine = HooksEngine.load(model, device_map=device_map, trust_remote_code=trust_remote_code)
    return engine, watch(points, engine.facts, engine.tokenizer, binding, only_records=only_records, file=str(file))


def binding(points: ProbeSpec, files: list[Path] | None, arguments: list[str] | None, folder: Path) -> Binding:
    """Returns what a spec's probes are made of, having run the files that register some.

    Raises:
        UsageError: a file can't be run, or an argument is not `TYPE.NAME=VALUE`, or of no probe of the spec.
    """
    from causalab_mini.probing.probes import Binding

    for file in files or ():
        _run(file)
    defaults, there = _defaults(arguments), list(dict.fromkeys(point.probe_type for point in points))
    for kind in defaults:
        if kind not in there:
            expected = f"the `probe_type` of a point ({listed(there)})"
            raise UsageError(Problem("--probe-arg", expected, quoted(kind), did_you_mean(kind, there), "usage"))
    return Binding(defaults=defaults, folder=folder)


def limits(timeout_s: float, drain_s: float) -> Limits:
    """Returns how long probes are waited for."""
    from causalab_mini.probing.router import Limits

    try:
        return Limits(inline_s=timeout_s, async_s=timeout_s, drain_s=drain_s)
    except ValueError:
        got = quoted(f"{timeout_s:g}, {drain_s:g}")
        raise UsageError(
            Problem("--probe-timeout", "seconds, and `--probe-drain` too: above 0, at most a day", got, code="usage")
        ) from None


def _run(file: Path) -> None:
    """Runs a file of probes, once in a process."""
    import importlib.util

    path = file.resolve()
    if path in _RUN:
        return
    spec = importlib.util.spec_from_file_location(f"probes_{path.stem}_{len(_RUN)}", path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise UsageError(Problem("--probes", "a Python file that registers probes", quoted(str(file)), code="usage"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[spec.name]
        got = f"{quoted(str(file))}: {type(error).__name__}: {error}"
        raise UsageError(Problem("--probes", "a Python file that runs", got, code="usage")) from error
    _RUN.add(path)


def _defaults(pairs: list[str] | None) -> Mapping[str, Mapping[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for pair in pairs or ():
        name, equals, text = pair.partition("=")
        kind, dot, argument = name.rpartition(".")
        if not (equals and dot and kind and argument):
            raise UsageError(Problem("--probe-arg", "`TYPE.NAME=VALUE`", quoted(pair), code="usage"))
        found.setdefault(kind, {})[argument] = options.json_or_text("--probe-arg", text)
    return found
