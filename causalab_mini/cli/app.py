"""The program: its verbs, and the one place where an error becomes text and an exit code."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence

import typer

from causalab_mini import __version__
from causalab_mini.cli import data, doctor, explain, language, model, run, tokens, validate
from causalab_mini.errors import EXIT_BUG, EXIT_INTERRUPTED, CausalabError

app = typer.Typer(
    name="causalab-mini",
    help="Causal-intervention experiments on language models: one document says what is read and written where, over which rows.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (run, explain, validate, tokens, data, model, language, doctor):
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
    """Runs the program; leaves by SystemExit with 0, 1, 2, 70 or 130."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        app(args=arguments, prog_name="causalab-mini")
    except CausalabError as error:
        if "--json" in arguments:
            print(json.dumps(error.as_data(), indent=1, ensure_ascii=False))
        else:
            print(error.text(), file=sys.stderr)
        sys.exit(error.exit_code)
    except SystemExit as leaving:
        if leaving.code == EXIT_INTERRUPTED:  # typer leaves with it on an interrupt, and says nothing
            print("error: interrupted", file=sys.stderr)
        raise
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception:
        traceback.print_exc()
        print("error: this is a bug of causalab-mini; please report it with the lines above", file=sys.stderr)
        sys.exit(EXIT_BUG)
