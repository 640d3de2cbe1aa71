"""The documents that ship with the package, by name."""

from __future__ import annotations

from pathlib import Path

from causalab_mini.data.table import shipped_documents
from causalab_mini.errors import Problem, UsageError, did_you_mean, listed, quoted

PREFIX = "bundled:"


def find_document(name: str | Path) -> Path:
    """Returns the file of a document: a path, or `bundled:NAME` for one that ships with the package.

    Raises:
        UsageError: no such document ships.
    """
    text = str(name)
    if not text.startswith(PREFIX):
        return Path(name)
    known = example_documents()
    wanted = text.removeprefix(PREFIX)
    if wanted not in known:
        raise UsageError(
            Problem("", f"a document that ships ({listed(known)})", quoted(wanted), did_you_mean(wanted, list(known)), "document")
        )
    return known[wanted]


def example_documents() -> dict[str, Path]:
    """Returns the documents that ship, by name."""
    folder = shipped_documents()
    files = (path for path in sorted(folder.rglob("*.json")) if "data" not in path.relative_to(folder).parts)
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in files}
