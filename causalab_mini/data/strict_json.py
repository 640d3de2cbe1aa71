"""JSON read strictly: what two readers could understand differently is refused, with its line and column."""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

from causalab_mini.data.opening import read_file, unreadable
from causalab_mini.errors import InputError, Problem, quoted

MAX_BYTES = 16 * 1024 * 1024
"""Of a document."""
MAX_DEPTH = 100
MAX_VALUES = 20_000_000
"""Of a text, all lists and objects together."""
MAX_DIGITS = 400
"""Of a number."""

_TOKEN = re.compile(
    r"""(?P<string>"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z))|(?P<open>[\[{])|(?P<close>[\]}])|(?P<colon>:)|(?P<comma>,)"""
    r"""|(?P<number>-?\d[\d.eE+-]*)|(?P<word>-?[A-Za-z_]+)""",
    re.DOTALL,
)


def read_json(path: Path, error: type[InputError]) -> Any:
    """Returns what a JSON file holds.

    Raises:
        InputError: of the given class, when the file can't be read or is not strict JSON.
    """
    return parse_json(read_text(path, error), str(path), error)


def read_text(path: Path, error: type[InputError], max_bytes: int = MAX_BYTES) -> str:
    """Returns a file as text; UTF-8 without a byte order mark, at most `max_bytes` long."""
    try:
        data = read_file(path, max_bytes)
    except OSError as problem:
        raise error(Problem("", "a readable file", unreadable(problem), code="unreadable"), str(path)) from None
    if len(data) > max_bytes:
        got = f"{max(path.stat().st_size, len(data)):,} bytes"
        raise error(Problem("", f"at most {max_bytes:,} bytes", got, code="too_large"), str(path))
    if data.startswith(b"\xef\xbb\xbf"):
        raise error(Problem("", "UTF-8 without a byte order mark", "a byte order mark", code="encoding", line=1, column=1), str(path))
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as problem:
        before = data[: problem.start]
        line, column = before.count(b"\n") + 1, problem.start - (before.rfind(b"\n") + 1) + 1
        got = f"the byte {quoted(hex(data[problem.start]))}"
        raise error(Problem("", "UTF-8", got, code="encoding", line=line, column=column), str(path)) from None


def parse_json(text: str, file: str, error: type[InputError], first_line: int = 1) -> Any:
    """Returns what a JSON text holds, as `read_json` does; `first_line` is the number of its first line in the file."""
    _scan(text, file, error, first_line)
    try:
        return json.loads(text)
    except json.JSONDecodeError as problem:
        got = "the end of the text" if problem.pos >= len(text) else quoted(text[problem.pos : problem.pos + 20].split("\n")[0])
        expected = "the end of the text" if problem.msg == "Extra data" else f"JSON ({problem.msg[0].lower()}{problem.msg[1:]})"
        raise error(Problem("", expected, got, code="json", line=problem.lineno + first_line - 1, column=problem.colno), file) from None


def json_marks(text: str) -> tuple[dict[tuple[str | int, ...], int], dict[tuple[str | int, ...], int]]:
    """Returns where every value, and every key, of a JSON text begins, by path; the text is one that `parse_json` takes."""
    values: dict[tuple[str | int, ...], int] = {}
    keys: dict[tuple[str | int, ...], int] = {}
    path: list[str | int] = []
    awaits_key = False
    for token in _TOKEN.finditer(text):
        kind, word, at = token.lastgroup, token.group(), token.start()
        if kind == "string" and awaits_key:
            path[-1] = json.loads(word)
            keys[tuple(path)] = at
            awaits_key = False
        elif kind == "comma":
            here = path[-1]
            awaits_key = isinstance(here, str)
            path[-1] = here + 1 if isinstance(here, int) else here
        elif kind == "close":
            path.pop()
            awaits_key = False
        elif kind != "colon":
            values[tuple(path)] = at
            if kind == "open":
                awaits_key = word == "{"
                path.append("" if awaits_key else 0)
    return values, keys


def _scan(text: str, file: str, error: type[InputError], first_line: int) -> None:
    """Refuses what Python's parser would let pass: repeated keys, NaN, infinities, depth, lone surrogates."""

    def refuse(at: int, expected: str, got: str, code: str) -> None:
        line, column = text.count("\n", 0, at) + first_line, at - (text.rfind("\n", 0, at) + 1) + 1
        raise error(Problem("", expected, got, code=code, line=line, column=column), file)

    keys: list[set[str] | None] = []
    awaits_key = False
    before, kind, n_values = None, None, 0
    for token in _TOKEN.finditer(text):
        before, kind, word, at = kind, token.lastgroup, token.group(), token.start()
        if kind in ("open", "comma"):
            n_values += 1
            if n_values > MAX_VALUES:
                refuse(at, f"at most {MAX_VALUES:,} values", "more", "too_large")
        if kind == "open":
            keys.append(set() if word == "{" else None)
            awaits_key = word == "{"
            if len(keys) > MAX_DEPTH:
                refuse(at, f"at most {MAX_DEPTH} levels", f"level {len(keys)}", "too_deep")
        elif kind == "close":
            if before == "comma":  # Python's releases name another place and another reason
                refuse(at, "JSON (something after the comma)", quoted(word), "json")
            awaits_key = False
            if keys:
                keys.pop()
        elif kind == "comma":
            awaits_key = bool(keys) and keys[-1] is not None
        elif kind == "string":
            value = _string(word)
            if value is None:
                continue
            if any("\ud800" <= character <= "\udfff" for character in value):
                refuse(at, "text", f"half a character in {value!a}", "encoding")
            if awaits_key and keys and (seen := keys[-1]) is not None:
                if value in seen:
                    refuse(at, "each key once", f"{quoted(value)} again", "duplicate_key")
                seen.add(value)
            awaits_key = False
        elif kind == "number":
            if len(word) > MAX_DIGITS:
                refuse(at, f"a number of at most {MAX_DIGITS} digits", f"{len(word)} digits", "number")
            if _is_infinite(word):
                refuse(at, "a finite number", quoted(word), "number")
        elif kind == "word" and word.lstrip("-") in ("NaN", "Infinity"):
            refuse(at, "a finite number", quoted(word), "number")


def _string(word: str) -> str | None:
    try:
        value = json.loads(word)
    except json.JSONDecodeError:
        return None
    return value if isinstance(value, str) else None


def _is_infinite(word: str) -> bool:
    try:
        return math.isinf(float(word))
    except ValueError:
        return False


def sha256_of(data: Any) -> str:
    """Returns the checksum of JSON data in one spelling."""
    text = json.dumps(data, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
