"""Options that several verbs have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from causalab_mini.errors import Problem, UsageError, quoted

Document = Annotated[str, typer.Argument(metavar="DOC", help="A document: a JSON file, or `bundled:NAME` for one that ships.")]
DataRoot = Annotated[
    Path | None,
    typer.Option(
        "--data-root",
        help="The folder that refs are looked up in. [default: `data/` beside or above the document, else the tables that ship]",
    ),
]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Replace a value of the document; may be repeated.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print data instead of text, errors included.")]
DeviceMap = Annotated[str, typer.Option("--device-map", help="Where the weights go, as transformers takes it.")]
EngineName = Annotated[str, typer.Option("--engine", help="What runs the passes: `nnterp`, or `hooks` (plain PyTorch hooks).")]
TrustRemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Let code that comes with the checkpoint run.")]
Revision = Annotated[str | None, typer.Option("--revision", help="Commit, branch or tag of a hub id.")]


def overrides(pairs: list[str] | None) -> dict[str, Any]:
    """Returns `--set` options as values by path; a value that is no JSON is text.

    Raises:
        UsageError: an option is not `path=value`.
    """
    found = {}
    for pair in pairs or []:
        path, equals, text = pair.partition("=")
        if not equals or not path:
            raise UsageError(Problem("--set", "`path=value`", quoted(pair), code="usage"))
        found[path] = json_or_text("--set", text)
    return found


def json_or_text(option: str, text: str) -> Any:
    """Returns what an option's value is as JSON; where it is none, the text itself.

    Raises:
        UsageError: it is JSON that two readers could understand differently, or beyond the limits of a document.
    """
    try:
        json.loads(text)
    except ValueError:
        return text
    except RecursionError:  # `strict_json` says at which level
        pass
    return strict_json(option, text)


def strict_json(option: str, text: str) -> Any:
    """Returns what an option's value is as JSON, read as strictly as a document.

    Raises:
        UsageError: it is no such JSON.
    """
    from causalab_mini.data.strict_json import parse_json

    try:
        return parse_json(text, option, UsageError)
    except UsageError as error:
        (problem,) = error.problems
        raise UsageError(Problem(option, problem.expected, problem.got, code=problem.code)) from None


def write(path: Path, text: str) -> None:
    """Writes a new file.

    Raises:
        UsageError: it is there already, or can't be written.
    """
    from causalab_mini.results.store import write_atomically

    if path.exists():
        raise UsageError(Problem("", "a file that is not there yet", quoted(path), code="usage"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
    except OSError as error:
        got = f"{quoted(path)} ({(error.strerror or str(error)).lower()})"
        raise UsageError(Problem("", "a file that can be written", got, code="write")) from None


def choice(option: str, value: str, known: tuple[str, ...]) -> str:
    """Returns a value that must be one of some words.

    Raises:
        UsageError: it is none of them.
    """
    if value not in known:
        raise UsageError(Problem(option, " or ".join(f"`{word}`" for word in known), quoted(value), code="usage"))
    return value
