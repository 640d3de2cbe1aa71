r"""Regular expressions that a user wrote: those of Python's `re`, given up where they take too long.

What `re` takes is searched for with the `regex` package, which has a time limit. Where the two read the same pattern in another way
(`a{e}` is fuzzy to `regex`, and `[[:alpha:]]` a class of letters), it is put down so that both read what `re` does. What is left: `\s` is
no separator of the ASCII controls (U+001C to U+001F), and `\w` no number that is not a digit (`²`).
"""

from __future__ import annotations

import re
import warnings
from functools import lru_cache
from typing import Any

MAX_PATTERN = 10_000
"""Characters of a pattern."""
MAX_SECONDS = 1.0
"""That a pattern may look at one text; of all threads of the process together."""
_PARTS = re.compile(r"\\N\{[^}]*\}|\\.|\{\d*,?\d*\}|\[\^?\]?|.", re.DOTALL)
_REPEAT = re.compile(r"\{(\d+(,\d*)?|,\d+)\}")


class PatternError(ValueError):
    """A text is no regular expression."""


class PatternTimeoutError(TimeoutError):
    """A regular expression takes too long with a text."""


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> Any:
    """Returns a pattern as the `regex` package has it, which finds what Python's `re` would.

    Raises:
        PatternError: it is too long, or none that `re` takes.
    """
    import regex

    if len(pattern) > MAX_PATTERN:
        raise PatternError(f"{len(pattern):,} characters, more than {MAX_PATTERN:,}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what may mean something else one day
            re.compile(pattern)
            return regex.compile(as_re_reads(pattern), regex.VERSION0)
    except (re.error, regex.error, OverflowError, RecursionError, MemoryError) as error:
        raise PatternError(str(error)) from None


def is_in(pattern: str, text: str, seconds: float = MAX_SECONDS) -> bool:
    """Returns whether a text has something that a pattern describes.

    Raises:
        PatternError: it is no pattern.
        PatternTimeoutError: that was not known within the limit.
    """
    try:
        return compiled(pattern).search(text, timeout=seconds) is not None
    except TimeoutError:
        raise PatternTimeoutError(f"more than {seconds:g} s") from None
    except MemoryError:
        raise PatternTimeoutError("more memory than there is") from None


def as_re_reads(pattern: str) -> str:
    """Returns a pattern in which braces and brackets that are plain characters to `re` are so to `regex`, too."""
    found, in_set = [], False
    for part in (match[0] for match in _PARTS.finditer(pattern)):
        if len(part) > 1 and part[0] == "\\":
            found.append(part)
        elif part[0] == "[" and not in_set:
            in_set = True
            found.append(part)
        elif in_set:
            in_set = not part.endswith("]")
            found.append(part.replace("[", "\\["))
        elif part[0] == "{" and not _REPEAT.fullmatch(part):
            found.append("\\" + part)
        else:
            found.append(part)
    return "".join(found)
