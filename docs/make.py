"""Writes the generated docs: `python docs/make.py`, or `--check` to see whether they are fresh."""

from __future__ import annotations

import sys
from pathlib import Path

from speed_page import speed_page

from causalab_mini.cli.reference import verbs_page
from causalab_mini.model.reference import components_page
from causalab_mini.plan.reference import reference

PAGES = {"components.md": components_page, "language.md": reference, "speed.md": speed_page, "verbs.md": verbs_page}


def main() -> None:
    """Writes every page, or says which are stale."""
    folder = Path(__file__).resolve().parent
    stale = [name for name, make in PAGES.items() if not (folder / name).is_file() or (folder / name).read_text(encoding="utf-8") != make()]
    if "--check" in sys.argv:
        if stale:
            sys.exit(f"stale, `make docs` writes them anew: {', '.join(stale)}")
        return
    for name in stale:
        (folder / name).write_text(PAGES[name](), encoding="utf-8")
        sys.stdout.write(f"wrote docs/{name}\n")


if __name__ == "__main__":
    main()
