"""What verbs that run probes have in common: where probes are from, what they are given, and where their verdicts go."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from causalab_mini.errors import Problem, UsageError, quoted

if TYPE_CHECKING:
    from causalab_mini.probing.probes import Binding
    from causalab_mini.probing.router import Limits

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


def binding(files: list[Path] | None, arguments: list[str] | None, folder: Path) -> Binding:
    """Returns what a spec's probes are made of, having run the files that register some.

    Raises:
        UsageError: a file can't be run, or an argument is not `TYPE.NAME=VALUE`.
    """
    from causalab_mini.probing.probes import Binding

    for file in files or ():
        _run(file)
    return Binding(defaults=_defaults(arguments), folder=folder)


def limits(timeout_s: float, drain_s: float) -> Limits:
    """Returns how long probes are waited for."""
    from causalab_mini.probing.router import Limits

    return Limits(inline_s=timeout_s, async_s=timeout_s, drain_s=drain_s)


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
        try:
            found.setdefault(kind, {})[argument] = json.loads(text)
        except ValueError:
            found.setdefault(kind, {})[argument] = text
    return found
