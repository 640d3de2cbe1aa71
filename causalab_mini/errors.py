"""Every error a caller may meet, and the one place that turns it into text, data and an exit code.

The tree::

    CausalabError                 something the user should read            exit
    ├── InputError                the document, data or command is wrong      2
    │   ├── DocumentError         found in the file alone (load)
    │   ├── SpecValidationError   an extraction spec is wrong in itself
    │   ├── PlanError             found with rows, tokenizer and config (compile)
    │   ├── DataError             a table, a ref or a column
    │   ├── ModelError            a checkpoint that can't be opened
    │   └── UsageError            the command line, or an output folder in use
    └── RunError                  the run failed                              1
        ├── WriteError            a file of the run can't be written          1
        └── CheckError            the run finished and a check of it failed   1

An interrupt is Python's own `KeyboardInterrupt` (exit 130). Anything else is a bug of ours: it keeps its traceback and exits
with 70.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

EXIT_OK = 0
EXIT_RUN_FAILED = 1
EXIT_INPUT_WRONG = 2
EXIT_BUG = 70
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


REDACTED = "[redacted]"
_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN")
"""Variables of the environment that huggingface_hub takes a token from."""
_SHORTEST_SECRET = 8
_SECRET = re.compile(r"(?<=://)[^/@\s]{1,1000}(?=@)|\bhf_[A-Za-z0-9]{16,}")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: where, what was expected there, what stands there instead."""

    path: str
    expected: str
    got: str
    hint: str = ""
    code: str = "invalid"
    line: int | None = None
    column: int | None = None

    def text(self, file: str = "") -> str:
        """Returns `error: <file>: <path>: expected …, got …`, with a `hint:` line where there is one."""
        where = [part for part in (self.place(file), self.path) if part]
        head = _on_one_line(without_secrets(": ".join(["error", *where, f"expected {self.expected}, got {self.got}"])))
        return f"{head}\nhint: {_on_one_line(without_secrets(self.hint))}" if self.hint else head

    def place(self, file: str) -> str:
        """Returns the file as the text names it, with the line where it is known."""
        return file if not file or self.line is None else f"{file}:{self.line}:{self.column}"

    def as_data(self, file: str = "") -> dict[str, Any]:
        """Returns the problem as `--json` prints it; keys without a value are left out."""
        data = {
            "code": self.code,
            "file": file or None,
            "path": self.path,
            "expected": self.expected,
            "got": self.got,
            "hint": self.hint or None,
            "line": self.line,
            "column": self.column,
        }
        return {key: without_secrets(value) if isinstance(value, str) else value for key, value in data.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Issue(Problem):
    """One thing that is wrong in an extraction spec.

    Attributes:
        file: empty where the spec was given as text or as data.
        point: the extraction point's name, `extraction_points[2]` where it has none; empty where no point is at fault.
        field: the point's field, or the key of the whole spec; empty where no field is at fault.
    """

    file: str = ""
    point: str = ""
    field: str = ""

    @classmethod
    def of(cls, problem: Problem) -> Issue:
        """Returns a problem as an issue."""
        return problem if isinstance(problem, Issue) else cls(**{key.name: getattr(problem, key.name) for key in fields(problem)})

    def place(self, file: str) -> str:
        """Returns file and line; the column too where no path says more."""
        if self.line is None:
            return file
        column = "" if self.path or self.column is None else f":{self.column}"
        return f"{file}:{self.line}{column}" if file else f"line {self.line}{column}"

    def as_data(self, file: str = "") -> dict[str, Any]:
        """Returns the issue as `--json` prints it."""
        more = {"point": self.point, "field": self.field}
        return {**Problem.as_data(self, file), **{key: value for key, value in more.items() if value}}


class CausalabError(Exception):
    """The root of everything that is said to a user.

    Args:
        problems: what is wrong, in the order in which it stands in the file.
        file: the file that the paths are in, empty where there is none.
    """

    exit_code: ClassVar[int] = EXIT_RUN_FAILED

    def __init__(self, problems: Problem | Iterable[Problem], file: str = "") -> None:
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        self.file = file
        super().__init__(self.text())

    def text(self) -> str:
        """Returns all problems as text, one after the other."""
        return "\n".join(problem.text(self.file) for problem in self.problems)

    def as_data(self) -> dict[str, Any]:
        """Returns all problems as JSON data."""
        return {"errors": [problem.as_data(self.file) for problem in self.problems]}

    def in_file(self, file: str) -> CausalabError:
        """Returns the same error with its file named, if it has none yet."""
        return self if self.file else type(self)(self.problems, file)


class InputError(CausalabError):
    """The document, the data or the command is wrong."""

    exit_code = EXIT_INPUT_WRONG


class DocumentError(InputError):
    """A document is wrong in itself."""


class SpecValidationError(InputError):
    """An extraction spec, or a position selector, is wrong in itself."""

    def __init__(self, problems: Problem | Iterable[Problem], file: str = "") -> None:
        every = [problems] if isinstance(problems, Problem) else problems
        super().__init__([Issue.of(problem) for problem in every], file)

    @property
    def issues(self) -> tuple[Issue, ...]:
        """Everything that is wrong, in the order in which it stands in the file, each with its file, line, point and field."""
        return tuple(replace(Issue.of(problem), file=self.file) for problem in self.problems)


class PlanError(InputError):
    """A document does not fit its rows, its tokenizer or its model."""


class DataError(InputError):
    """A table can't be read, or lacks what was asked of it."""


class ModelError(InputError):
    """A checkpoint can't be opened."""


class UsageError(InputError):
    """The command can't be carried out as it was given."""


class RunError(CausalabError):
    """The run failed."""


class WriteError(RunError):
    """A file of the run can't be written: no other can either."""


class CheckError(RunError):
    """The run finished, and a check of its numbers failed."""


class CellError(ValueError):
    """A value of a row can't become what it stands for; says what was expected and what was got, and is given its place by who reads it."""

    def __init__(self, expected: str, got: str) -> None:
        self.expected = expected
        self.got = got
        super().__init__(f"expected {expected}, got {got}")


def without_secrets(text: str) -> str:
    """Returns a text without users and passwords of URLs, and without tokens of the Hugging Face hub."""
    for name in _TOKENS:
        if len(secret := os.environ.get(name, "").strip()) >= _SHORTEST_SECRET:
            text = text.replace(secret, REDACTED)
    return _SECRET.sub(REDACTED, text)


def _on_one_line(text: str) -> str:
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def quoted(value: object) -> str:
    """Returns a value in backticks, shortened to what a line can hold."""
    text = str(value)
    return f"`{text if len(text) <= 120 else text[:117] + '…'}`"


def listed(values: Iterable[object]) -> str:
    """Returns values in backticks, separated by commas."""
    return ", ".join(f"`{value}`" for value in values)


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """Returns a hint that names the nearest known word, or nothing where none is near."""
    near = [name for name in known if name.casefold() == word.casefold()] or difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    near = near or [name for name in known if len(name) > 2 and (word.startswith(name) or (len(word) > 2 and name.startswith(word)))]
    return f"did you mean {quoted(near[0])}?" if near else ""
