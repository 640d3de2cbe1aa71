"""What typer says of a command line that it can't read, in the words of every other error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from causalab_mini.errors import Problem, UsageError, did_you_mean, quoted

EXPECTED = {
    "greater_than_equal": "a number of at least {ge}",
    "less_than_equal": "a number of at most {le}",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number of at most 4,300 digits",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
}
"""What an option takes, by what pydantic, which judges its value, finds wrong."""


def usage_error(error: Any, arguments: Sequence[str]) -> UsageError:
    """Returns a usage error of typer's own (it has `format_message`) as one of ours.

    Its classes are no part of what typer makes public, so what an error carries tells them apart.

    Args:
        error: of typer.
        arguments: the command line.
    """
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    first = next((argument for argument in arguments if not argument.startswith("-")), "")
    verb = context.command_path if context is not None else f"causalab-mini {first}"
    hint = f"`{verb} -h` says what it takes"
    if parameter is not None:
        is_option = parameter.param_type_name == "option"
        place = parameter.opts[0] if is_option else str(parameter.metavar or parameter.name.upper()).strip("[]")
        found = _wrong_value(error)
        if found is None:
            return _usage(place, f"a value ({'an option' if is_option else 'an argument'} that is required)", "none", hint)
        return _usage(place, *found, "")
    name = getattr(error, "option_name", None)
    if name is not None and "requires an argument" in error.message:
        return _usage(name, "a value behind it", "none", hint)
    if name is not None and "does not take a value" in error.message:
        return _usage(name, "no value (it is there or not)", "one", hint)
    if name is not None:
        known = [each for one in context.command.params for each in one.opts] if context is not None else []
        return _usage("", f"an option of `{verb}`", quoted(name), did_you_mean(name, known) or hint)
    known = list(getattr(context.command, "commands", ())) if context is not None else []
    if known:
        return _usage("", f"a verb of `{verb}`", quoted(first), did_you_mean(first, known) or hint)
    said = f"{error.message[:1].lower()}{error.message[1:]}".removeprefix("got ").rstrip(".")
    return _usage("", f"what `{verb} -h` describes", said, "")


def _wrong_value(error: Any) -> tuple[str, str] | None:
    """Returns what was expected of a value and what it is; None where there is no value."""
    from pydantic import ValidationError

    cause = error.__cause__
    if isinstance(cause, ValidationError):
        first = cause.errors(include_url=False)[0]
        expected = EXPECTED.get(first["type"])
        if expected is not None:
            return expected.format(**first.get("ctx", {})), quoted(first["input"])
    return ("a value that fits", str(error.message)) if error.message else None


def _usage(place: str, expected: str, got: str, hint: str) -> UsageError:
    return UsageError(Problem(place, expected, got, hint, "usage"))
