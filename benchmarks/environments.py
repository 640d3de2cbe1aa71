"""The environments of the peers: made once in the cache folder from a file of pins, and asked to do a work in a process of their own."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from models import bench_cache
from torch import Tensor
from work import Work

HERE = Path(__file__).resolve().parent
PEERS = ("pyvene", "transformer-lens")


def run_peer(
    peer: str, work: Work, model: Path, sample: Sequence[int], n_repeats: int
) -> tuple[dict[str, Any], dict[str, dict[int, Tensor]]]:
    """Returns what a peer found (`versions`, and `ways` or `error`), and the logits of its ways, by point."""
    points = [
        {
            "layer": point.layer,
            "head": point.head,
            "base_columns": work.base.columns[point.place],
            "source_columns": work.counterfactual.columns[point.place],
        }
        for point in work.points
    ]
    job = {
        "model": str(model),
        "base": work.base.arguments(),
        "counterfactual": work.counterfactual.arguments(),
        "points": points,
        "is_single": work.name == "d",
        "sample": list(sample),
        "n_repeats": n_repeats,
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        found = run_script(peer, peer.replace("-", "_"), folder)
        logits = {}
        for number, way in enumerate(found.get("ways", {})):
            if (folder / f"logits-{number}.npz").is_file():
                with np.load(folder / f"logits-{number}.npz") as kept:
                    logits[way] = {int(p): torch.from_numpy(one) for p, one in zip(kept["points"], kept["logits"], strict=True)}
    return found, logits


def run_script(peer: str, script: str, folder: Path) -> dict[str, Any]:
    """Returns what a script of `peers/`, run by a peer's Python, wrote as `found.json` beside the folder's `job.json`, or why it wrote none."""
    try:
        python = peer_python(peer)
    except subprocess.CalledProcessError as error:
        return {"versions": {}, "error": f"its environment can't be made: {_last_line(error.stderr)}"}
    command = [str(python), "-m", f"peers.{script}", str(folder / "job.json")]
    ended = subprocess.run(command, cwd=HERE, env=_environment(), capture_output=True, text=True)
    if not (folder / "found.json").is_file():
        return {"versions": {}, "error": _last_line(ended.stderr)}
    found: dict[str, Any] = json.loads((folder / "found.json").read_text(encoding="utf-8"))
    return found


def peer_python(peer: str) -> Path:
    """Returns the Python of a peer's environment, which is made if it is not there.

    Raises:
        CalledProcessError: pip can't install what is pinned.
    """
    pins = HERE / "peers" / f"{peer}.txt"
    home = bench_cache() / "peers" / f"{peer}-{hashlib.sha256(pins.read_bytes()).hexdigest()[:8]}"
    if not (home / "made").is_file():
        shutil.rmtree(home, ignore_errors=True)
        for command in (
            [sys.executable, "-m", "venv", str(home)],
            [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "-r", str(pins)],
        ):
            subprocess.run(command, check=True, env=_environment(), capture_output=True, text=True)
        (home / "made").touch()
    return home / "bin" / "python"


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}


def _last_line(text: str) -> str:
    return next(iter(reversed(text.strip().splitlines())), "it ended without a word")
