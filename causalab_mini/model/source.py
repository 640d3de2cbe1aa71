"""What a model key names: a hub id, a local folder, or a model that ships with the package."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from causalab_mini.errors import ModelError, Problem, did_you_mean, listed, quoted

BUNDLED = Path(__file__).resolve().parent / "bundled"
PREFIX = "bundled:"
_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*)?")


@dataclass(frozen=True, slots=True)
class Source:
    """Where a checkpoint comes from; `location` is what transformers is given."""

    kind: Literal["hub", "folder", "bundled"]
    location: str


def bundled_models() -> tuple[str, ...]:
    """Returns the names of the models that ship with the package."""
    return tuple(sorted(folder.name for folder in BUNDLED.iterdir() if (folder / "config.json").is_file()))


def find_source(key: str, base: Path | None = None) -> Source:
    """Returns what a key names.

    Args:
        key: as a document spells it.
        base: the document's folder; local paths are looked for there first, then in the working directory.

    Raises:
        ModelError: there is no such bundled model or folder, or the key is neither.
    """
    if key.startswith(PREFIX):
        name = key.removeprefix(PREFIX)
        known = bundled_models()
        if name not in known:
            hint = did_you_mean(name, known)
            raise ModelError(Problem("model.key", f"a bundled model ({listed(known)})", quoted(name), hint, "model_key"))
        return Source("bundled", str(BUNDLED / name))
    if key.endswith(".gguf"):
        raise ModelError(
            Problem("model.key", "a hub id, a folder or a bundled model", quoted(key), "GGUF files are not there yet", "not_yet")
        )
    for folder in ([] if base is None else [base / key]) + [Path(key)]:
        if folder.is_dir():
            return Source("folder", str(folder))
    if key.startswith((".", "/", "~")) or _HUB_ID.fullmatch(key) is None:
        raise ModelError(Problem("model.key", "a hub id like `org/name`, or a folder that exists", quoted(key), code="model_key"))
    return Source("hub", key)
