"""What a model key names: a hub id, a local folder, a GGUF file, or a model that ships with the package."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from causalab_mini.data.opening import A_PICKLE, is_pickle
from causalab_mini.errors import ModelError, Problem, did_you_mean, listed, quoted

BUNDLED = Path(__file__).resolve().parent / "bundled"
PREFIX = "bundled:"
MAX_KEY_BYTES = 4096
_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*)?")


@dataclass(frozen=True, slots=True)
class Source:
    """Where a checkpoint comes from; `location` is what transformers is given (of a GGUF file, the folder that is made of it)."""

    kind: Literal["hub", "folder", "gguf", "bundled"]
    location: str


def bundled_models() -> tuple[str, ...]:
    """Returns the names of the models that ship with the package."""
    return tuple(sorted(folder.name for folder in BUNDLED.iterdir() if (folder / "config.json").is_file()))


def cache_folder() -> Path:
    """Returns where converted checkpoints are kept: `$CAUSALAB_CACHE`, or the place that the system has for caches."""
    own, common = os.environ.get("CAUSALAB_CACHE"), os.environ.get("XDG_CACHE_HOME")
    return Path(own) if own else (Path(common) if common else Path.home() / ".cache") / "causalab-mini"


def find_source(key: str, base: Path | None = None) -> Source:
    """Returns what a key names.

    Args:
        key: as a document spells it.
        base: the document's folder; local paths are looked for there first, then in the working directory.

    Raises:
        ModelError: there is no such bundled model, folder or file, or the key is none of them.
    """
    if key.startswith(PREFIX):
        name = key.removeprefix(PREFIX)
        known = bundled_models()
        if name not in known:
            hint = did_you_mean(name, known)
            raise ModelError(Problem("model.key", f"a bundled model ({listed(known)})", quoted(name), hint, "model_key"))
        return Source("bundled", str(BUNDLED / name))
    if len(key.encode(errors="replace")) > MAX_KEY_BYTES:
        raise ModelError(Problem("model.key", f"at most {MAX_KEY_BYTES:,} bytes", f"{len(key):,} characters", code="model_key"))
    is_gguf = key.lower().endswith(".gguf")
    for place in ([] if base is None else [base / key]) + [Path(key)]:
        try:
            if place.is_dir():
                return Source("folder", str(place))
            if is_gguf and place.is_file():
                return Source("gguf", str(place))
        except OSError as error:
            got = f"{quoted(key)} ({(error.strerror or str(error)).lower()})"
            raise ModelError(Problem("model.key", "a hub id like `org/name`, or a folder that exists", got, code="model_key")) from None
    if is_pickle(key):
        raise ModelError(Problem("model.key", "a folder with safetensors files", f"{quoted(key)}, {A_PICKLE}", code="pickle"))
    if is_gguf:
        raise ModelError(Problem("model.key", "a GGUF file that exists", quoted(key), code="model_key"))
    if key.startswith((".", "/", "~")) or _HUB_ID.fullmatch(key) is None:
        raise ModelError(Problem("model.key", "a hub id like `org/name`, or a folder that exists", quoted(key), code="model_key"))
    return Source("hub", key)
