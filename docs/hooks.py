"""What the site has beside the pages of this folder, none of it copied by hand: examples, tables of benchmarks, the notebook, the changelog.

Pages link to files of the repository as a forge understands it (`../documents/das.json`). Here such a link leads to the page that shows
the file; a link to anything that the site does not show stays as it is, and a strict build refuses it.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)")
COPIED = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "training/README.md": "training.md"}


def shown_as(path: str) -> str | None:
    """Returns which page of the site shows a file of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/").replace("notebook.ipynb", "notebook.md")
    if path in COPIED:
        return COPIED[path]
    if path == "documents":
        return "examples/index.md"
    if path.startswith("documents/") and path.endswith((".json", ".yaml")):
        return f"examples/{posixpath.splitext(path)[0].removeprefix('documents/')}.md"
    if path.startswith("benchmarks/results/") and path.endswith(".md"):
        return f"speed/{posixpath.basename(path)}"
    return "index.md" if path == "README.md" else None


def shown_files() -> Iterator[str]:
    """Yields every file outside this folder that has a page."""
    yield from COPIED
    for folder, pattern in (
        ("benchmarks/results", "*.md"),
        ("documents", "*.json"),
        ("documents/smollm2", "*.json"),
        ("documents/specs", "*.yaml"),
    ):
        yield from (path.relative_to(ROOT).as_posix() for path in sorted((ROOT / folder).glob(pattern)))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of files outside the folder, and of the notebook."""
    examples = []
    for path in shown_files():
        text = (ROOT / path).read_text(encoding="utf-8")
        page = shown_as(path)
        assert page is not None
        if path.startswith("documents/"):
            title, about = _about(path, text)
            examples.append((page.removeprefix("examples/"), title, about))
            text = f"# {title}\n\n{about}\n\n`{path}`\n\n```{path[-4:]}\n{text.rstrip()}\n```\n"
        files.append(File.generated(config, page, content=text))
    rows = [f"| [{title}]({page}) | {about} |" for page, title, about in examples]
    index = [
        "# Examples",
        "",
        "Every one is run by the tests. `causalab-mini new NAME` copies a document.",
        "",
        "| | |",
        "| --- | --- |",
        *rows,
        "",
    ]
    files.append(File.generated(config, "examples/index.md", content="\n".join(index)))
    notebook = json.loads((ROOT / "docs" / "notebook.ipynb").read_text(encoding="utf-8"))
    files.append(File.generated(config, "notebook.md", content="\n\n".join(_cells(notebook))))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Points links to files of the repository at the pages that show them."""
    here = page.file.src_uri
    written_as = next((path for path in shown_files() if shown_as(path) == here), f"docs/{here}")

    def pointed(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(written_as), link[1]))
        shown = shown_as(path)
        return link[0] if shown is None else f"]({posixpath.relpath(shown, posixpath.dirname(here) or '.')}{link[2] or ''})"

    return markdown if here == "examples/index.md" else LINK.sub(pointed, markdown)


def _about(path: str, text: str) -> tuple[str, str]:
    """Returns title and description of an example: of its header, or of a spec's first comment."""
    if path.endswith(".json"):
        header = json.loads(text)["header"]
        return header["title"], header["description"]
    comment = " ".join(line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#"))
    return f"Spec: {Path(path).stem.replace('_', ' ')}", comment


def _cells(notebook: dict[str, Any]) -> Iterator[str]:
    """Yields the cells of a notebook as Markdown, with the outputs that are stored in it."""
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield source
            continue
        yield f"```python\n{source}\n```"
        for output in cell["outputs"]:
            if output.get("name") == "stderr":
                continue
            data = output.get("data", {"text/plain": output.get("text", "")})
            html = "".join(data.get("text/html", ""))
            yield html if html else f"```text\n{''.join(data['text/plain']).rstrip()}\n```"
