"""The record of a run: what was run, with what, whether it finished, and what its checks said."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from causalab_mini import __version__
from causalab_mini.evidence.memory import peak_memory_bytes
from causalab_mini.plan.plan import Fit, FitProbe, Request, Step, Stream, observed_by

PACKAGES = ("causalab-mini", "torch", "transformers", "nnterp", "nnsight", "pydantic", "safetensors", "tokenizers")


@cache
def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that numbers depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = __version__ if name == "causalab-mini" else "not installed"
    return found


def _of_probes() -> dict[str, str]:
    """Returns the version of what trains linear probes."""
    return {"scikit-learn": metadata.version("scikit-learn")}


def plan_steps(request: Request) -> Iterator[Step]:
    """Yields the steps of every point."""
    return (step for point in request.points for step in point.plan.steps)


@cache
def package_sha256() -> str:
    """Returns a checksum over the package's own code, so that a change between two releases is seen."""
    root, digest = Path(__file__).resolve().parent.parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def seeds(request: Request) -> list[int]:
    """Returns every seed that a request draws from: of writes, of fits, of featurizers that are drawn."""
    steps = list(plan_steps(request))
    found = {step.seed for step in steps if isinstance(step, Fit | FitProbe)}
    found |= {step.decode.seed for step in steps if isinstance(step, Stream) and step.decode.seed is not None}
    for observed in (observed for step in steps for observed in observed_by(step)):
        writes = [write for item in observed.experiments for forward in item.runs for write in forward.writes]
        found |= {write.params.seed for write in writes if write.params.seed is not None}
        decodes = [forward.decode for item in observed.experiments for forward in item.generations]
        found |= {decode.seed for decode in decodes if decode is not None and decode.seed is not None}
        featurizers = [part for write in writes if write.featurizer is not None for part in write.featurizer.all]
        found |= {part.seed for part in featurizers if part.kind in ("subspace", "gate") and part.file is None}
    return sorted(found)


def make_record(
    request: Request,
    status: str,
    started: datetime,
    engine: Mapping[str, Any] | None,
    steps: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
    error: Mapping[str, Any] | None = None,
    fits: Sequence[Mapping[str, Any]] = (),
    points: Mapping[str, str] | None = None,
    failed: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Returns the record as JSON data.

    Args:
        request: what was run.
        status: `running`, `finished`, `failed` or `interrupted`.
        started: when.
        engine: what the engine says of itself, None before the weights are loaded.
        steps: time, checks and batch size of every step of every point.
        options: of the run.
        error: what it failed with.
        fits: those that are not finished, with where their best is.
        points: by label, why each was run, or that it was kept.
        failed: by label, what points failed with.
    """
    now = datetime.now(UTC)
    return {
        "status": status,
        "digest": request.digest,
        "model": {"key": request.facts.key, "revision": request.facts.revision, "dtype": request.facts.dtype},
        **(engine or {}),
        "versions": versions() | (_of_probes() if any(isinstance(step, FitProbe) for step in plan_steps(request)) else {}),
        "package_sha256": package_sha256(),
        "seeds": seeds(request),
        "data": {ref: {"sha256": table.sha256, "n_rows": len(table.rows)} for ref, table in request.tables.items()},
        **({"files": {path: {"sha256": checksum} for path, checksum in request.files.items()}} if request.files else {}),
        "options": dict(options),
        "n_points": len(request.points),
        "points": dict(points or {}),
        **({"failed": dict(failed)} if failed else {}),
        "process": os.getpid(),
        "started": started.isoformat(timespec="seconds"),
        "seconds": round((now - started).total_seconds(), 3),
        "peak_memory_bytes": peak_memory_bytes(),
        "steps": list(steps),
        **({"fits": [dict(fit) for fit in fits]} if fits else {}),
        "error": None if error is None else dict(error),
    }
