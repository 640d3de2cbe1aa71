"""The page of verbs as Markdown, made of what `--help` is made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from causalab_mini.cli.app import app

INTRODUCTION = """# Verbs

Generated from `causalab-mini --help` (`make docs`). What is asked for goes to stdout, what is said about it to stderr. A mistake in a
document, a table or on the command line ends with exit code 2, a run that failed or a check that did not pass with 1, a bug of ours
with 70, an interrupt with 130 and SIGTERM with 143. `--json` gives data instead of text, errors included.
"""


def verbs_page() -> str:
    """Returns the page: a section a verb, in the order of `--help`."""
    root: Any = typer.main.get_command(app)
    return "\n".join([INTRODUCTION, *(line for name in root.commands for line in _verb(name, root.commands[name]))])


def _verb(name: str, command: Any) -> Iterator[str]:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option"]
    yield f"## {name}\n"
    yield "```"
    yield " ".join(["causalab-mini", name, *map(_shown, arguments), *(f"{option.opts[0]} …" for option in options if option.required)])
    yield "```\n"
    yield f"{' '.join(command.help.split())}\n"
    yield "| argument | meaning |"
    yield "| --- | --- |"
    for argument in arguments:
        yield f"| `{_name(argument)}` | {_cell(argument)} |"
    for option in options:
        value = "" if option.is_flag else f" {option.metavar or option.name.upper().replace('_', '-')}"
        yield f"| {', '.join(f'`{one}{value}`' for one in option.opts)} | {_cell(option)} |"
    yield ""


def _name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper()).strip("[]")


def _shown(argument: Any) -> str:
    name = _name(argument) + ("…" if argument.nargs == -1 and not argument.metavar else "")
    return name if argument.required else f"[{name}]"


def _cell(param: Any) -> str:
    text = str(param.help or "").replace("|", "\\|")
    if param.required:
        return f"{text} Required."
    is_said = "[default:" in text or param.param_type_name != "option" or param.is_flag or param.default in (None, (), [])
    return text if is_said else f"{text} Default: `{param.default}`."
