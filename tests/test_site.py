"""The site builds without a broken link and asks nothing of the network; what its pages say of other tools and verbs is so."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

DOCS = ROOT / "docs"
COMING_FROM = ("from_nnsight.md", "from_pyvene.md", "from_transformerlens.md")
LOADED = re.compile(
    r"""<(?:script|img|iframe)\b[^>]*\bsrc=["']?(?:https?:)?//|<link\b(?![^>]*rel=["']?canonical)[^>]*\bhref=["']?(?:https?:)?//|@import|url\(["']?(?:https?:)?//"""
)


def build(folder, to):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(to)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    built = build(ROOT, folder)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.mark.plain
def test_every_page_is_there_and_nothing_is_loaded_from_elsewhere(site):
    pages = sorted(site.rglob("*.html"))
    assert {path.stem for path in DOCS.rglob("*.md")} <= {page.stem for page in pages}
    assert (site / "notebook.html").is_file()
    assert len(list((site / "examples").glob("*.html"))) == len(list((ROOT / "documents").glob("*.json"))) + 1
    for file in [*pages, *site.rglob("*.css")]:
        assert not LOADED.search(file.read_text(encoding="utf-8")), file


@pytest.mark.plain
def test_a_link_to_what_the_site_does_not_show_is_refused(tmp_path):
    for name in ("benchmarks", "documents", "training", "CHANGELOG.md", "CONTRIBUTING.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copytree(DOCS, tmp_path / "docs")
    (tmp_path / "docs" / "astray.md").write_text(
        "# Astray\n\n[code](../causalab_mini/errors.py) [anchor](fits.md#nowhere)\n", encoding="utf-8"
    )
    built = build(tmp_path, tmp_path / "site")
    assert built.returncode == 1
    assert "'../causalab_mini/errors.py'" in built.stderr
    assert "nowhere" in built.stderr


@pytest.mark.plain
def test_a_forge_finds_what_pages_link_to():
    for page in (*DOCS.rglob("*.md"), *ROOT.glob("*.md"), ROOT / "training" / "README.md"):
        for link in re.findall(r"\]\((?!\w+:|#)([^)\s#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


@pytest.mark.plain
def test_every_verb_that_a_page_names_is_one():
    verbs = set(re.findall(r"^## (\S+)$", (DOCS / "verbs.md").read_text(encoding="utf-8"), re.MULTILINE))
    for page in DOCS.rglob("*.md"):
        for line in page.read_text(encoding="utf-8").splitlines():
            if named := re.match(r"(?:\$ )?causalab-mini ([a-z-]+)(?:\s|$)", line):
                assert named[1] in verbs, f"{page.name}: {line}"


def block(page, language):
    found = re.search(rf"```{language}\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    assert found, page
    return found[1]


def said(page):
    rows = re.findall(r"^\| (\d+) \| ([\d.]+) \| (\S+) \|$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)
    return [[float(cell.replace("−", "-")) for cell in row] for row in rows]


@pytest.mark.tiny
def test_pages_for_those_who_come_from_other_tools_say_what_the_document_gives(tmp_path):
    import causalab_mini

    assert len({block(page, "json") for page in COMING_FROM}) == 1
    (tmp_path / "last_token.json").write_text(block(COMING_FROM[0], "json"), encoding="utf-8")
    causalab_mini.load(tmp_path / "last_token.json").run(tmp_path / "out")
    found = {}
    for metric in json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))["metrics"]:
        found.setdefault(metric["axes"]["layer"], []).append(metric["mean"])
    for page in COMING_FROM:
        assert [row[0] for row in said(page)] == list(found)
        for layer, *numbers in said(page):
            assert numbers == pytest.approx(found[layer], abs=0.01)


@pytest.mark.tiny
def test_the_page_on_nnsight_says_what_nnsight_gives():
    """Its code runs as it stands; that of the other tools is run by `benchmarks/coming_from.py`, in their environments."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", block("from_nnsight.md", "python")]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    printed = [[float(cell) for cell in line.split()] for line in ended.stdout.splitlines()]
    assert len(printed) == len(said("from_nnsight.md")), ended.stderr
    for row, expected in zip(printed, said("from_nnsight.md"), strict=True):
        assert row == pytest.approx(expected, abs=0.011)
