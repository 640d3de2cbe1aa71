"""Runs the other tools' half of `docs/from_*.md` in their environments, and compares what it prints with the pages' tables.

python benchmarks/coming_from.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from environments import peer_python

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"pyvene": "from_pyvene.md", "transformer-lens": "from_transformerlens.md"}


def code_of(page: str) -> str:
    """Returns the page's Python."""
    found = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert found
    return found[1]


def rows_of(page: str) -> list[list[float]]:
    """Returns the numbers of the page's table: layer, share, logit difference."""
    return [
        [float(cell.replace("−", "-")) for cell in row] for row in re.findall(r"^\| (\d+) \| ([\d.]+) \| (\S+) \|$", page, re.MULTILINE)
    ]


def printed(text: str) -> list[list[float]]:
    """Returns the numbers of what the code printed."""
    return [[float(cell) for cell in row] for row in re.findall(r"^(\d+) ([\d.]+) (\S+)$", text, re.MULTILINE)]


def main() -> None:
    """Runs every page's code."""
    wrong = []
    for peer, name in PAGES.items():
        page = (ROOT / "docs" / name).read_text(encoding="utf-8")
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"}
        ended = subprocess.run([str(peer_python(peer)), "-c", code_of(page)], cwd=ROOT, env=environment, capture_output=True, text=True)
        same = [[round(cell, 1) for cell in row] for row in printed(ended.stdout)] == [
            [round(cell, 1) for cell in row] for row in rows_of(page)
        ]
        print(f"{name}: {'as the page says' if same else ended.stdout + ended.stderr}")
        wrong += [] if same else [name]
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
