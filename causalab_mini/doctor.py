"""What is known of an installation: each finding in words, with the fix where something is off."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from causalab_mini.model.source import BUNDLED, bundled_models, cache_folder

PYTHONS = ((3, 11), (3, 14))
PACKAGES = ("torch", "transformers", "nnterp", "nnsight", "pydantic", "safetensors", "typer", "rich", "tokenizers", "huggingface_hub")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: `ok`, `note` (not what was tested, may well work), or `wrong`."""

    what: str
    status: Literal["ok", "note", "wrong"]
    text: str
    fix: str = ""

    def as_data(self) -> dict[str, Any]:
        """Returns the finding as JSON data."""
        return asdict(self)


def examine() -> list[Finding]:
    """Returns every finding; imports the engine, so it takes seconds."""
    return [*_python(), *_versions(), *_engine(), *_devices(), *_hub(), *_gguf(), *_bundled()]


def tested_versions() -> dict[str, str]:
    """Returns the versions that the tests ran with, by package."""
    package = Path(__file__).resolve().parent
    candidates = (package / "shipped" / "constraints.txt", package.parent / "constraints.txt")
    text = next((path.read_text(encoding="utf-8") for path in candidates if path.is_file()), "")
    pairs = [line.split("==") for line in text.splitlines() if "==" in line and not line.startswith("#")]
    return {name.strip().lower().replace("_", "-"): version.split(";")[0].strip() for name, version in pairs}


def _python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    if PYTHONS[0] <= sys.version_info[:2] < PYTHONS[1]:
        yield Finding("python", "ok", version)
    else:
        yield Finding(
            "python", "wrong", f"{version}; 3.11 to 3.13 are supported", "make a virtual environment with Python 3.11, 3.12 or 3.13"
        )


def _versions() -> Iterator[Finding]:
    tested = tested_versions()
    for name in PACKAGES:
        want = tested.get(name.lower().replace("_", "-"))
        try:
            have = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Finding(name, "wrong", "not installed", f"pip install {name}{'==' + want if want else ''}")
            continue
        if want is None or have.partition("+")[0] == want:
            yield Finding(name, "ok", have)
        else:
            yield Finding(name, "note", f"{have}; tested with {want}", f"pip install {name}=={want}")


def _engine() -> Iterator[Finding]:
    try:
        have = tuple(int(part) for part in metadata.version("nnsight").split(".")[:2])
    except (metadata.PackageNotFoundError, ValueError):
        have = (0, 0)
    try:
        import nnterp  # noqa: F401
    except Exception as error:  # whatever it is, the engine can't be used
        fix = "pip install 'nnsight>=0.7,<0.8'" if have >= (0, 8) else "pip install --force-reinstall nnterp 'nnsight>=0.7,<0.8'"
        yield Finding("nnterp on nnsight", "wrong", f"does not import ({error})", fix)
        return
    yield Finding("nnterp on nnsight", "ok", "imports")


def _devices() -> Iterator[Finding]:
    try:
        import torch
    except ImportError:
        return
    cards = [f"cuda:{index} {torch.cuda.get_device_name(index)}" for index in range(torch.cuda.device_count())]
    mps = ["mps"] if torch.backends.mps.is_available() else []
    yield Finding("devices", "ok", ", ".join(["cpu", *cards, *mps]))
    threads, cores = torch.get_num_threads(), os.cpu_count() or 1
    busy = "" if threads <= cores else f"; more than the {cores} cores"
    yield Finding("threads", "ok" if not busy else "note", f"{threads} of {cores} cores{busy}", "set OMP_NUM_THREADS" if busy else "")


def _hub() -> Iterator[Finding]:
    try:
        from huggingface_hub import constants
    except ImportError:
        return
    cache = Path(constants.HF_HUB_CACHE)
    state = (
        "offline: only what is in the cache is opened"
        if constants.HF_HUB_OFFLINE
        else "not set to offline (whether the hub can be reached was not tried)"
    )
    n = sum(1 for _ in cache.glob("models--*")) if cache.is_dir() else 0
    yield Finding("hub", "ok", f"{state}; cache {cache} ({n} models)")


def _gguf() -> Iterator[Finding]:
    """Says whether GGUF files can be read, and where what was made of them lies."""
    kept = f"cache {cache_folder()} ({sum(1 for _ in cache_folder().glob('gguf/*/converted.json'))} converted files)"
    try:
        yield Finding("gguf", "ok", f"{metadata.version('gguf')}; {kept}")
    except metadata.PackageNotFoundError:
        yield Finding("gguf", "ok", f"not installed, GGUF files can't be read (pip install 'causalab-mini[gguf]'); {kept}")


def _bundled() -> Iterator[Finding]:
    for name in bundled_models():
        folder = BUNDLED / name
        sums = json.loads((folder / "card.json").read_text(encoding="utf-8"))["sha256"]
        wrong = [
            file
            for file, want in sums.items()
            if not (folder / file).is_file() or hashlib.sha256((folder / file).read_bytes()).hexdigest() != want
        ]
        if wrong:
            yield Finding(
                f"bundled:{name}",
                "wrong",
                f"another content than it was shipped with: {', '.join(wrong)}",
                "pip install --force-reinstall --no-deps causalab-mini",
            )
        else:
            yield Finding(f"bundled:{name}", "ok", f"{len(sums)} files as shipped")
