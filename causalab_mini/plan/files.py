"""What a save may be called."""

from __future__ import annotations

import re

METRIC_SUFFIXES = (".json", ".csv", ".parquet")
TENSOR_SUFFIXES = (".safetensors",)
RESERVED_FILES = ("document.json", "run.json", "summary.json", "places.json", "points.json", "checkpoints", "earlier", ".points", ".lock")
_DEVICE_NAMES = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?")


def path_problem(text: str) -> str:
    """Returns why a relative path of a save is refused, or nothing."""
    if problem := name_problem(text):
        return problem
    if text.casefold() in RESERVED_FILES or text.partition("/")[0].casefold() in RESERVED_FILES:
        return "a file of the run itself"
    return ""


def name_problem(text: str) -> str:
    """Returns why a text is no relative path that every file system can have, or nothing."""
    parts = text.split("/")
    if "\\" in text or any(ord(character) < 32 or character in '<>:"|?*' for character in text):
        return "a character that file names can't have everywhere"
    if any(part in ("", ".", "..") for part in parts):
        return "absolute, or with an empty or dotted part"
    if any(_DEVICE_NAMES.fullmatch(part) or part.endswith((" ", ".")) for part in parts):
        return "a name that is reserved"
    if any(len(part.encode()) > 200 for part in parts):
        return "a name of more than 200 bytes"
    return ""
