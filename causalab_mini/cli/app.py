"""The program: its verbs, and the one place where an error becomes text and an exit code."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from functools import cache
from typing import Any, NoReturn

import typer

from causalab_mini import __version__
from causalab_mini.cli import data, doctor, explain, language, model, probe, report, run, serve, show, tokens, validate
from causalab_mini.cli.usage import usage_error
from causalab_mini.errors import (
    EXIT_BUG,
    EXIT_INPUT_WRONG,
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    CausalabError,
)

app = typer.Typer(
    name="causalab-mini",
    help="Causal-intervention experiments on language models: one document says what is read and written where, over which rows.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (run, show, report, probe, serve, explain, validate, tokens, data, model, language, doctor):
    module.register(app)


def _version(value: bool) -> None:
    if value:
        print(f"causalab-mini {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version and leave."),
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the program; leaves by SystemExit with 0, 1, 2, 70, 130 or 143."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    as_json = "--json" in arguments
    terminated: list[int] = []

    def terminate(number: int, frame: Any) -> None:
        terminated.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, terminate)
    try:
        left_with = _command()(args=arguments, prog_name="causalab-mini", standalone_mode=False)
        if isinstance(left_with, int) and left_with:  # without standalone mode typer returns what a command left with
            sys.exit(left_with)
    except CausalabError as error:
        _leave_with(error, as_json)
    except SystemExit as leaving:
        if leaving.code == EXIT_INTERRUPTED:  # typer leaves with it on an interrupt, and says nothing
            print(f"error: {'terminated' if terminated else 'interrupted'}", file=sys.stderr)
            sys.exit(EXIT_TERMINATED if terminated else EXIT_INTERRUPTED)
        raise
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        if not arguments:  # what typer raises then is the help
            print(str(error), file=sys.stderr)
            sys.exit(EXIT_INPUT_WRONG)
        if hasattr(error, "format_message"):  # a usage error of the command line's own
            _leave_with(usage_error(error, arguments), as_json)
        traceback.print_exc()
        print("error: this is a bug of causalab-mini; please report it with the lines above", file=sys.stderr)
        sys.exit(EXIT_BUG)


@cache
def _command() -> Any:
    """Returns the program as typer makes it of its verbs, which takes a while: once in a process."""
    return typer.main.get_command(app)


def _leave_with(error: CausalabError, as_json: bool) -> NoReturn:
    if as_json:
        print(json.dumps(error.as_data(), indent=1, ensure_ascii=False))
    else:
        print(error.text(), file=sys.stderr)
    sys.exit(error.exit_code)
