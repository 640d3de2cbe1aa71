"""CPU time of the light verbs, against importing typer, pydantic and rich; and the quickstart's, with the share of imports.

`python benchmarks/startup.py` writes `benchmarks/results/startup.md` and `.json`: medians of whole processes, in turn, on one thread.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
N_RUNS = 9
BASE = "import typer, pydantic and rich (names used)"
ENGINE = "import nnterp, torch, transformers"
QUICKSTART = "run documents/quickstart.json"
COMMANDS = {
    BASE: ["-c", "from typer import Typer; from pydantic import BaseModel; from rich.console import Console"],
    "--help": ["-m", "causalab_mini", "--help"],
    "data weekdays/train": ["-m", "causalab_mini", "data", "weekdays/train"],
    "validate --no-model": ["-m", "causalab_mini", "validate", "--no-model", "documents/quickstart.json"],
    "schema": ["-m", "causalab_mini", "schema"],
    ENGINE: ["-c", "import nnterp, torch, transformers"],
    QUICKSTART: ["-m", "causalab_mini", "run", "documents/quickstart.json", "--out"],
}


def cpu_seconds(arguments: list[str]) -> float:
    """Returns user and system seconds of a process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measures and writes the table."""
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(N_RUNS + 1):
        for name, arguments in COMMANDS.items():
            with tempfile.TemporaryDirectory() as folder:
                extra = [str(Path(folder) / "out")] if arguments[-1] == "--out" else []
                seconds[name].append(cpu_seconds([*arguments, *extra]))
    medians = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    lines = [
        "# Start-up",
        "",
        f"CPU seconds of whole processes, one thread, median of {N_RUNS} after a warm-up; written by `python benchmarks/startup.py`.",
        "",
        "| process | CPU s | ratio to the imports |",
        "| --- | --- | --- |",
        *(f"| {name} | {median:.3f} | {median / medians[BASE]:.2f} |" for name, median in medians.items()),
        "",
        f"Of the quickstart's CPU time, {medians[ENGINE] / medians[QUICKSTART]:.0%} is the import of the engine.",
    ]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "startup.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (RESULTS / "startup.json").write_text(json.dumps({"medians": medians, "seconds": seconds}, indent=1) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
