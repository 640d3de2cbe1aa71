"""What a save may be called."""

from __future__ import annotations

from causalab_mini.data.opening import MAX_NAME_BYTES, MAX_PATH_BYTES, is_device

METRIC_SUFFIXES = (".json", ".csv", ".parquet")
TENSOR_SUFFIXES = (".safetensors",)
RESERVED_FILES = ("document.json", "run.json", "summary.json", "places.json", "points.json", "checkpoints", "earlier", ".points", ".lock")


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
    if "\\" in text or any(ord(character) < 32 or 127 <= ord(character) < 160 or character in '<>:"|?*' for character in text):
        return "a character that file names can't have everywhere"
    if any(part in ("", ".", "..") for part in parts):
        return "absolute, or with an empty or dotted part"
    if text.startswith("~"):
        return "a home folder, which is not looked up"
    if any(is_device(part) or part.endswith((" ", ".")) for part in parts):
        return "a name that is reserved"
    if any(len(part.encode()) > MAX_NAME_BYTES for part in parts):
        return f"a name of more than {MAX_NAME_BYTES} bytes"
    if len(text.encode()) > MAX_PATH_BYTES:
        return f"a path of more than {MAX_PATH_BYTES:,} bytes"
    return ""
