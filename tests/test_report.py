"""A run as a page and as pictures: what stands there, that it is all there is, and how it is used in a real browser."""

import functools
import itertools
import json
import os
import re
import shutil
import tempfile
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from conftest import ROOT

from causalab_mini.errors import DataError
from causalab_mini.results.report import Folder, figures_of, page_of, picture
from causalab_mini.results.report.colours import BOTH_WAYS, MORE, Scale, contrast, ink, ramp, scale_of, ticks
from causalab_mini.results.report.figures import Curves, Dots, HeatMap, Table, shown

pytestmark = pytest.mark.tiny

OVERRIDES = {"das": {"steps.train.epochs": 2, "sites.stream.layers.sweep": [0, 3]}}


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """Returns a function that gives the folder of an example, run once."""

    @functools.cache
    def run(name):
        from causalab_mini.experiment import Options, load

        out = tmp_path_factory.mktemp("runs") / name
        options = Options(check="sample" if name == "quickstart" else "off")
        load(ROOT / "documents" / f"{name}.json", overrides=OVERRIDES.get(name), options=options).run(out)
        return out

    return run


@pytest.fixture
def copied(folder_of, tmp_path):
    """Returns a function that gives a copy of an example's folder."""
    return lambda name: Path(shutil.copytree(folder_of(name), tmp_path / name))


def changed(path, **changes):
    data = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(data | changes), encoding="utf-8")


def data_of(html):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)[1])


def figure(out, kind, title=""):
    return next(each for each in figures_of(Folder(out)) if isinstance(each, kind) and title in each.title)


# colours and numbers


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("stops", [MORE, BOTH_WAYS], ids=["more", "both ways"])
def test_every_step_of_a_ramp_has_an_ink_that_can_be_read_on_it(stops, theme):
    assert min(contrast(ground, ink(ground)) for ground in ramp(stops[theme])) >= 4.5


@pytest.mark.parametrize(
    ("values", "unit", "scale"),
    [
        ([0.2, 0.4], "fraction", Scale(0.0, 1.0)),
        ([0.2, 4.0], "logit", Scale(0.0, 4.0)),
        ([-1.0, 4.0], "logit", Scale(-4.0, 4.0, True)),
        ([0.5], "cosine", Scale(-1.0, 1.0, True)),
        ([-0.5, 1.5], "fraction", Scale(-1.5, 1.5, True)),
        ([0.0], "nat", Scale(0.0, 1.0)),
        ([], "nat", Scale(0.0, 1.0)),
    ],
)
def test_a_scale_has_the_ends_of_its_unit_and_nought_in_its_middle(values, unit, scale):
    assert scale_of(values, unit) == scale


def test_ticks_are_round_and_within():
    assert ticks(0, 1) == [0, 0.25, 0.5, 0.75, 1.0]
    assert ticks(-3.2, 12) == [0, 5, 10]
    assert ticks(1, 1) == [1]


@pytest.mark.parametrize(
    ("value", "places", "text"),
    [
        (None, 3, "–"),
        (0.5, 3, "0.500"),
        (-1.5, 2, "−1.50"),
        (-0.001, 2, "0.00"),
        (2e-5, 3, "2.0e−05"),
        (1234.5, 1, "1,234.5"),
        (0.0, 3, "0.000"),
    ],
)
def test_numbers_are_printed_alike(value, places, text):
    assert shown(value, places) == text


# figures


def test_a_sweep_is_a_map_with_its_best_point_marked(folder_of):
    found = figure(folder_of("quickstart"), HeatMap, "follows")
    assert (found.across, found.down) == ("layer", "place")
    assert found.columns == ("0", "1", "2", "3")
    assert [[cell.value for cell in row] for row in found.cells] == [[1, 1, 0, 0], [0, 0, 1, 1]]
    assert [cell.is_best for row in found.cells for cell in row].count(True) == 1


def test_the_best_point_is_told_with_how_many_are_as_good(folder_of):
    said = re.findall(r"Best of 8: <b>(.*?)</b>.*?(\(\d+ others? (?:are|is) as good\))?; <em>", page_of(Folder(folder_of("quickstart"))))
    assert said == [("patch · follows", "(3 others are as good)"), ("patch · logit_diff", "")]


def test_a_number_has_its_own_rows(folder_of):
    out = folder_of("quickstart")
    for cell in (cell for row in figure(out, HeatMap, "logit_diff").cells for cell in row):
        values = [row["value"] for row in cell.rows.rows]
        assert sum(values) / len(values) == pytest.approx(cell.value)
        assert cell.eligible == len(values)
    components = figure(folder_of("attribution"), HeatMap, "atp").cells
    for cell in (cell for row in components for cell in row):
        values = [row["value"] for row in cell.rows.rows if all(row[key] == value for key, value in cell.filter)]
        assert sum(values) / len(values) == pytest.approx(cell.value, abs=1e-6)


def test_a_fit_has_curves_with_the_kept_epoch_and_controls_beside_its_scores(folder_of):
    out = folder_of("das")
    curves = figure(out, Curves, "follows on the rows that it is judged on")
    assert [panel for panel, _ in curves.panels] == ["layer 0", "layer 3"]
    assert curves.legend == ("k 4", "k 16")
    for entry in json.loads((out / "summary.json").read_text(encoding="utf-8"))["fits"]:
        line = next(
            line
            for panel, lines in curves.panels
            if panel == f"layer {entry['axes']['layer']}"
            for line in lines
            if line.label == f"k {entry['axes']['k']}"
        )
        assert line.xs[line.kept] == entry["kept_epoch"]
        assert line.ys[line.kept] == pytest.approx(entry["at_kept_epoch"]["follows"])
    dots = next(each for each in figures_of(Folder(out)) if isinstance(each, Dots) and each.step == "test")
    assert [dot.kind for dot in dots.dots] == ["metric", "control"] * 4
    assert {dot.label for dot in dots.dots if dot.kind == "control"} == {"random subspace"}


def test_numbers_of_one_unit_stand_on_one_scale(folder_of):
    found = [each for each in figures_of(Folder(folder_of("generation"))) if isinstance(each, Dots)]
    assert [(each.title, [dot.label for dot in each.dots]) for each in found] == [
        ("right, follows", ["right", "follows"]),
        ("norm", ["norm"]),
    ]
    lists = [each for each in figures_of(Folder(folder_of("query_key_value"))) if isinstance(each, Dots)]
    assert [each.title for each in lists] == ["follows", "logit_diff", "recovered"]
    assert [dot.label for dot in lists[0].dots] == ["queries/follows", "keys/follows", "values/follows"]


def test_lists_and_streams_are_tables(folder_of):
    words = figure(folder_of("top_k"), Table, "words")
    assert "×" in words.lines[0][2]
    fired = figure(folder_of("stream"), Table, "points")
    assert {line[0]: line[5].value for line in fired.lines}["far"] == 0
    assert "the generation ended" in next(line for line in fired.lines if line[0] == "far")[-1]


@pytest.mark.parametrize(("name", "suffix", "n"), [("quickstart", "svg", 4), ("generation", "png", 2)])
def test_every_figure_is_a_picture_too(folder_of, name, suffix, n):
    drawn = [picture(each, suffix) for each in figures_of(Folder(folder_of(name)))]
    starts = {"png": b"\x89PNG", "svg": b"<?xml"}[suffix]
    assert [one.startswith(starts) for one in drawn if one is not None] == [True] * n


def test_names_that_no_font_has_are_drawn_all_the_same(folder_of):
    found = replace(figure(folder_of("das"), Curves), title="$x_1 \N{ETHIOPIC SYLLABLE HA} \n")
    assert picture(found, "svg").startswith(b"<?xml")


# places


def test_places_name_the_tokens_of_every_read_and_write(folder_of):
    places = json.loads((folder_of("quickstart") / "places.json").read_text(encoding="utf-8"))
    patch = next(each for each in places["places"] if each["name"] == "patch" and each["intervention"] == "entity")
    tokens = places["prompts"][patch["prompts"]]["samples"][0]["tokens"]
    assert "".join(tokens) == "If today is Saturday, tomorrow is"
    assert "".join(tokens[token] for token in patch["tokens"][0]) == " Saturday"
    assert (patch["layers"], patch["changes"], patch["role"]) == ([0, 1, 2, 3], ["swap(source)"], "base")
    assert patch["points"] == [f"layer={layer},place=entity" for layer in range(4)]


def test_places_say_what_was_said_and_read_in_it(folder_of):
    said = json.loads((folder_of("generation") / "places.json").read_text(encoding="utf-8"))["said"]
    text = next(each for each in said if each["name"] == "patched.generated")["rows"][0]["text"]
    first = next(each for each in said if each["name"] == "first")["rows"][0]
    assert first["tokens"] == [0]
    assert first["text"]
    assert text.startswith(first["text"])


def test_an_earlier_runs_words_are_kept_for_points_that_do_not_run_again(copied):
    from causalab_mini.experiment import load
    from causalab_mini.results.places import Places
    from causalab_mini.results.store import RunFolder

    out = copied("generation")
    request, _, _ = load(ROOT / "documents" / "generation.json").compile()
    places = Places(request)
    said = json.loads((out / "places.json").read_text(encoding="utf-8"))["said"]
    with RunFolder.open(out) as folder:
        places.continue_from(folder, ())
        assert places.said == said != []
        places.continue_from(folder, {entry["point"] for entry in said})
        assert places.said == []
        (out / "places.json").write_text("{", encoding="utf-8")
        places.continue_from(folder, ())
    assert places.said == []
    assert json.loads((out / "places.json").read_text(encoding="utf-8"))["said"] == []


# the page


class Outline(HTMLParser):
    """Every tag of a page with its attributes, in order."""

    def __init__(self, html):
        super().__init__()
        self.tags = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))


@pytest.mark.parametrize("name", ["quickstart", "das", "attribution", "generation", "top_k", "stream"])
def test_a_page_asks_nobody_and_is_small(folder_of, name):
    html = page_of(Folder(folder_of(name)))
    tags = Outline(html).tags
    assert not [one for one in tags if {"src", "style", "onclick"} & set(one[1])]
    assert all(one[1]["href"].startswith("#") for one in tags if "href" in one[1])
    assert "url(" not in html
    assert len(html) - len(json.dumps(data_of(html), ensure_ascii=False)) < 400_000
    for heading in ("What came out", "What was asked", "Where it was read and written", "Evidence", "Provenance"):
        assert heading in html


def test_what_comes_from_a_document_or_its_rows_is_text(copied):
    out, hostile = copied("quickstart"), "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u2028"
    changed(out / "document.json", header={"title": hostile, "description": hostile})
    places = json.loads((out / "places.json").read_text(encoding="utf-8"))
    places["prompts"][0]["texts"][0] = hostile
    places["prompts"][0]["samples"][0]["tokens"] = [hostile]
    (out / "places.json").write_text(json.dumps(places), encoding="utf-8")
    html = page_of(Folder(out))
    tags = [tag for tag, _ in Outline(html).tags]
    assert (tags.count("script"), tags.count("img")) == (2, 0)
    assert data_of(html)["prompts"][0][0] == hostile
    assert "\u2028" not in html[html.index('id="data"') : html.rindex("<script>")]


def test_rows_are_capped_and_it_is_said_where_the_others_are(copied, monkeypatch):
    monkeypatch.setattr("causalab_mini.results.report.page.MAX_ROWS", 5)
    html = page_of(Folder(copied("quickstart")))
    sets = data_of(html)["sets"]
    assert {(len(each["rows"]), each["total"]) for each in sets} == {(5, 48)}
    assert sets[0]["file"] == "layer=0,place=entity/follows.json"
    assert f"{16 * 43} rows are left out of it" in html


@pytest.mark.parametrize("status", ["failed", "interrupted", "running"])
def test_a_run_that_did_not_finish_says_so(copied, status):
    out = copied("quickstart")
    error = {"errors": [{"code": "memory", "path": "steps.patch", "expected": "room for a row", "got": "none"}]}
    record = json.loads((out / "run.json").read_text(encoding="utf-8"))
    changed(out / "run.json", status=status, steps=record["steps"][:3], error=error if status == "failed" else None)
    (out / "summary.json").unlink()
    (out / "places.json").unlink()
    html = page_of(Folder(out))
    assert "3 of 8 points are done" in html
    assert ("expected room for a row, got none" in html) == (status == "failed")
    assert "the run has no metrics so far" in html
    assert "This folder has no <code>places.json</code>" in html


def test_a_failed_check_stands_on_top(copied):
    out = copied("quickstart")
    record = json.loads((out / "run.json").read_text(encoding="utf-8"))
    record["steps"][0]["checks"][0] |= {"status": "failed", "text": "row 3 alone differs"}
    changed(out / "run.json", steps=record["steps"])
    html = page_of(Folder(out))
    assert "1 check failed: see Evidence" in html
    assert re.search(r'<details class="check" open><summary><b>rows</b> <span class="status bad">1 failed</span>', html)


def test_a_number_whose_rows_are_not_there_says_why(copied):
    out = copied("quickstart")
    (out / "layer=0,place=entity" / "follows.json").write_text("{", encoding="utf-8")
    (out / "layer=1,place=entity" / "follows.json").unlink()
    missing = [each["missing"] for each in data_of(page_of(Folder(out)))["sets"]]
    assert any("follows.json can't be read: expected JSON" in each for each in missing)
    assert any("follows.json is not there" in each for each in missing)
    unsaved = data_of(page_of(Folder(copied("generation"))))["sets"]
    assert "the document does not save `right` of `say`: a save of it keeps its rows" in [each["missing"] for each in unsaved]


def test_a_folder_of_something_else_is_refused(tmp_path):
    with pytest.raises(DataError, match="a folder of results"):
        Folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "file", "path", "value"),
    [
        ("quickstart", "places.json", "places.0.keys", [[]]),
        ("quickstart", "places.json", "places.0.keys", ["x"]),
        ("quickstart", "places.json", "places.0.tokens.0", ["x"]),
        ("quickstart", "places.json", "places.0.prompts", 99),
        ("quickstart", "points.json", "layer=0,place=entity", {}),
        ("quickstart", "summary.json", "metrics.0.axes", {}),
        ("quickstart", "summary.json", "best.0.mean", "x"),
        ("quickstart", "places.json", "prompts.0.samples.0.n_prefix", -(10**30)),
        ("generation", "places.json", "said.0.name", 1),
        ("generation", "places.json", "said.0.rows", 1.5),
        ("generation", "places.json", "said.0.rows.0", {"x": 1}),
        ("quickstart", "run.json", "model.revision", 3),
        ("quickstart", "run.json", "digest", True),
        ("quickstart", "run.json", "seeds", 1),
        ("quickstart", "run.json", "steps.0.seconds", "x"),
        ("quickstart", "run.json", "steps.0.checks.0.status", [None]),
        ("quickstart", "document.json", "header", 3),
        ("quickstart", "document.json", "interventions", 3),
        ("das", "summary.json", "fits.0.axes", {"x": 1}),
        ("stream", "summary.json", "streams.0.points.0.fired", {"x": 1}),
        ("stream", "summary.json", "streams.0.points.0.requests.0", 1),
        ("stream", "summary.json", "streams.0.points.0.requests.0.reason", [1]),
        ("attribution", "summary.json", "attributions.0.components.0", {}),
        ("attribution", "summary.json", "attributions.0.components.0.mean", "x"),
    ],
)
def test_a_file_that_was_edited_deep_inside_is_refused_by_its_name(copied, name, file, path, value):
    out = copied(name)
    data = json.loads((out / file).read_text(encoding="utf-8"))
    at, *keys = data, *(int(key) if key.isdigit() else key for key in path.split("."))
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = value
    (out / file).write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(DataError, match=r"expected .*, got ") as told:
        page_of(Folder(out))
    assert str(out) in str(told.value)


def test_a_number_that_is_infinite_is_refused(copied):
    out = copied("quickstart")
    text = (out / "summary.json").read_text(encoding="utf-8")
    (out / "summary.json").write_text(re.sub(r'"mean": [-0-9.e]+', '"mean": 1e999', text, count=1), encoding="utf-8")
    with pytest.raises(DataError, match=r"1e999 is too large for a number"):
        Folder(out)


# the verbs


def test_report_and_plot_write_beside_the_run_or_where_they_are_told(copied, command, tmp_path):
    out = copied("generation")
    assert command("report", out) == (0, f"{out}/report.html\n", "")
    assert command("report", out, "--to", tmp_path / "new" / "page.html").out == f"{tmp_path}/new/page.html\n"
    assert (tmp_path / "new" / "page.html").read_bytes() == (out / "report.html").read_bytes()
    code, written, _ = command("plot", out, "--format", "svg")
    assert code == 0
    assert written.splitlines() == [f"{out}/plots/say-right.svg", f"{out}/plots/say-norm.svg"]
    assert command("plot", out, "--format", "pdf").code == 2
    assert command("report", tmp_path / "none").code == 2


# a real browser

READABLE = """
const parse = (text) => text.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
const ground = (node) => {
  for (let at = node; at; at = at.parentElement) {
    const colour = parse(getComputedStyle(at).backgroundColor);
    if (colour.length < 4 || colour[3] === 1) return colour;
  }
  return [255, 255, 255];
};
document.querySelectorAll("details").forEach((one) => one.open = true);
const worst = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode.parentElement;
  if (!walker.currentNode.textContent.trim() || !node.getClientRects().length || node.closest("script, style, noscript")) continue;
  const style = getComputedStyle(node);
  const [a, b] = [light(parse(node.closest("svg") ? style.fill : style.color)), light(ground(node))].sort((x, y) => y - x);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < 4.5) worst.push([ratio, walker.currentNode.textContent.trim()]);
}
return worst;
"""


@pytest.fixture(scope="module")
def browser():
    """Returns Chromium, without a window; where it is not installed, selenium looks for a Chrome or fetches one."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    os.environ["SE_AVOID_STATS"] = "true"
    profile = tempfile.mkdtemp(prefix="causalab-mini-browser-")
    options = webdriver.ChromeOptions()
    quiet = ("background-networking", "component-update", "sync", "quic", "gpu", "dev-shm-usage")
    for flag in ("headless=new", "no-sandbox", "no-first-run", f"user-data-dir={profile}", *(f"disable-{name}" for name in quiet)):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found, driver_path = shutil.which("chromium"), shutil.which("chromedriver")
    if found and driver_path:
        options.binary_location = found
    driver = webdriver.Chrome(options=options, service=Service(driver_path) if found and driver_path else None)
    driver.get("about:blank")
    yield driver
    driver.quit()
    shutil.rmtree(profile, ignore_errors=True)


@pytest.fixture(scope="module")
def visit(browser, folder_of):
    """Returns a function that opens the page of an example in a window of a width and a theme."""

    def open_page(name, width=1200, theme="light"):
        out = folder_of(name)
        if not (out / "report.html").exists():
            (out / "report.html").write_text(page_of(Folder(out)), encoding="utf-8")
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]})
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        for log in ("browser", "performance"):
            browser.get_log(log)
        browser.get((out / "report.html").as_uri())
        return browser

    return open_page


@pytest.mark.parametrize("name", ["quickstart", "das", "attribution", "generation", "stream"])
def test_a_browser_says_nothing_and_fetches_nothing(visit, name):
    driver = visit(name)
    assert driver.title.endswith("causalab-mini")
    assert driver.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    requests = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
    asked = {each["request"]["url"] for each in requests if each["documentURL"] == driver.current_url}
    assert asked == {driver.current_url}
    assert driver.current_url.startswith("file://")


@pytest.mark.parametrize("name", ["quickstart", "das", "attribution", "generation", "stream"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_can_be_read_in_both_themes(visit, name, theme):
    driver = visit(name, theme=theme)
    ground = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(19, 22, 26)"}[theme]
    assert driver.execute_script(READABLE) == []


@pytest.mark.parametrize("name", ["quickstart", "das", "attribution", "generation", "stream"])
def test_a_narrow_window_needs_no_scrolling_sideways(visit, name):
    driver = visit(name, width=360)
    driver.execute_script("document.querySelectorAll('details').forEach((one) => one.open = true)")
    assert driver.execute_script("return [innerWidth, document.documentElement.scrollWidth - document.documentElement.clientWidth]") == [
        360,
        0,
    ]
    driver.execute_script("document.querySelector('button[data-rows]').click()")
    assert driver.execute_script("return document.getElementById('panel').scrollWidth") <= 360
    assert driver.execute_script("return document.getElementById('panel-rows').scrollWidth") <= 360


def test_every_cell_of_a_map_is_reached_by_keys_and_opens_its_rows(visit):
    from selenium.webdriver.common.keys import Keys

    driver = visit("quickstart")
    position = "const all = [...document.querySelectorAll('table.cells')[0].querySelectorAll('button')]; return all.indexOf(document.activeElement)"
    here = -1
    for _ in range(30):
        driver.switch_to.active_element.send_keys(Keys.TAB)
        here = driver.execute_script(position)
        if here >= 0:
            break
    seen, row = [here], (Keys.ARROW_RIGHT,) * 3
    for key in (*row, Keys.ARROW_DOWN, *(Keys.ARROW_LEFT,) * 3):
        driver.switch_to.active_element.send_keys(key)
        seen.append(driver.execute_script(position))
    assert seen == [0, 1, 2, 3, 7, 6, 5, 4]
    driver.switch_to.active_element.send_keys(Keys.HOME, Keys.END, Keys.ARROW_UP, Keys.ENTER)
    panel = driver.find_element("id", "panel")
    assert panel.is_displayed()
    assert driver.find_element("id", "panel-said").text.startswith("layer 3, place entity · 0.000 fraction")
    rows = driver.find_elements("css selector", "#panel-rows li")
    assert len(rows) == 48
    assert "base If today is Saturday, tomorrow is" in rows[0].text
    assert "tokens ‘ is’" in rows[0].text
    driver.find_element("id", "panel-filter").send_keys("December")
    assert 0 < len(driver.find_elements("css selector", "#panel-rows li")) < 48
    driver.switch_to.active_element.send_keys(Keys.ESCAPE, Keys.ESCAPE)  # the first one empties the filter
    assert not panel.is_displayed()
    assert driver.execute_script(position) == 3


def test_every_number_of_a_page_opens_a_panel(visit):
    for name in ("das", "attribution", "generation", "stream", "top_k"):
        driver = visit(name)
        empty = driver.execute_script("""
            const panel = document.getElementById("panel"), empty = [];
            for (const button of document.querySelectorAll("button[data-rows]")) {
              button.click();
              if (!panel.open || !document.getElementById("panel-note").textContent) empty.push(button.ariaLabel);
              panel.close();
            }
            return empty;""")
        assert empty == []
        assert driver.get_log("browser") == []


def test_the_page_has_landmarks_headings_and_names(visit):
    for name in ("quickstart", "das", "generation"):
        driver = visit(name)
        count = driver.execute_script
        assert [count(f"return document.querySelectorAll('body > {tag}').length") for tag in ("header", "nav", "main", "footer")] == [1] * 4
        levels = count("return [...document.querySelectorAll('h1, h2, h3, h4, h5')].map((one) => Number(one.tagName[1]))")
        assert levels.count(1) == 1
        assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
        nameless = "[...document.querySelectorAll('button, a, input, select')].filter((one) => !(one.ariaLabel || one.textContent.trim() || one.labels?.length))"
        assert count(f"return {nameless}.length") == 0
        broken = "[...document.querySelectorAll('[aria-labelledby]')].filter((one) => !document.getElementById(one.getAttribute('aria-labelledby')))"
        assert count(f"return {broken}.length") == 0
        assert count("return [...document.querySelectorAll('nav a')].every((one) => document.querySelector(one.hash))")
        ids = count("return [...document.querySelectorAll('[id]')].map((one) => one.id)")
        assert len(ids) == len(set(ids))
