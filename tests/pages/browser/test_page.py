"""Pages in a real browser: nothing is fetched, every picture has its marks, every figure is the report's."""

from __future__ import annotations

import base64
import shutil
import subprocess
import unicodedata
from pathlib import Path
from typing import Any, Final

import pytest

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.comparison import Comparison
from opanatomy.records.experiment import Techniques
from opanatomy.report import units
from opanatomy.report.formats.html import html_report
from opanatomy.report.formats.json import report_as_dict
from opanatomy.report.formats.speedscope import speedscope_profile
from opanatomy.report.section import Page
from tests.pages.browser.opened import SUGGESTED, Opened, page_of
from tests.pages.browser.pages import FEW, OTHERS, OWN, report_of
from tests.support.anatomies import HOSTILE, named
from tests.support.paths import SHARED

NAMES: Final = [*OWN, *(OTHERS if SHARED.is_dir() else ())]
#: All of them with `make test-browser`, three with `make test`.
SHOWN: Final = [pytest.param(name, marks=() if name in FEW else pytest.mark.exhaustive) for name in NAMES]
#: What is looked at for those who do not see it with `make test`.
AXE: Final = (("bert_cpu", "light"), ("two_ranks", "dark"))
pytestmark = SUGGESTED
MARKS: Final = "g.role-mark path, g.role-mark line, g.role-mark text"


def document_of(name: str, folder: Path) -> dict[str, Any]:
    return report_as_dict(report_of(name, folder))


@pytest.mark.parametrize("name", SHOWN)
def test_a_page_is_whole(name: str, browser: Any, folder: Path) -> None:
    """No complaint, no request but the file's own, marks in every picture, no scrolling sideways, 3 MB at most."""
    path = page_of(name, folder)
    assert path.stat().st_size < 3e6
    with Opened(browser, path) as opened:
        assert opened.said == [f"request: {path.as_uri()}"]
        figures = opened.page.query_selector_all("figure")
        assert [figure.get_attribute("data-live") for figure in figures] == ["1"] * len(figures)
        for figure in figures:
            assert figure.query_selector("canvas") or len(figure.query_selector_all(MARKS)) > 0
        for width in (390, 1280, 2560):
            opened.page.set_viewport_size({"width": width, "height": 900})
            assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width


@pytest.mark.parametrize("name", SHOWN)
def test_every_figure_is_that_of_the_json(name: str, browser: Any, folder: Path) -> None:
    report, document = report_of(name, folder), document_of(name, folder)
    with Opened(browser, page_of(name, folder)) as opened:
        if isinstance(report, Anatomy):
            check_anatomy(opened, document)
        elif isinstance(report, Comparison):
            check_comparison(opened, document)
        else:
            assert isinstance(report, Techniques)
            check_techniques(opened, document)


def data_of(opened: Opened, chart: str) -> list[dict[str, Any]]:
    """The rows of a picture's description, all layers together; none if the picture is not there."""
    return opened.page.evaluate(  # type: ignore[no-any-return]
        """name => {
             const found = [];
             const walk = (value) => {
               if (!value || typeof value !== "object") return;
               if (Array.isArray(value.values)) found.push(...value.values.filter(row => row instanceof Object));
               Object.values(value).forEach(walk);
             };
             const spec = JSON.parse(document.getElementById("charts").textContent)[name];
             walk(spec && (spec.datasets ? Object.values(spec.datasets).map(values => ({values})) : spec));
             return found;
           }""",
        chart,
    )


def check_anatomy(opened: Opened, document: dict[str, Any]) -> None:
    """Classes, operators, kernels, modules and memory by sums over the rows of the JSON report; the step's bar."""
    steps = max(document["step"]["count"], 1)
    classes = document["classes"]
    times: dict[str, int] = {}
    for row in classes:
        times[row["operator_class"]] = times.get(row["operator_class"], 0) + row["time_ns"]
    table = opened.numbers("classes")
    words = {
        "tensor_contraction": "tensor contraction",
        "statistical_normalization": "statistical normalization",
        "elementwise": "element-wise",
        "data_movement": "data movement",
    }
    for item, ns in times.items():
        if table:
            (shown,) = [row for name, row in table.items() if name.endswith(words.get(item, item))]
            assert shown[2] == pytest.approx(ns / steps)
    operators = opened.numbers("operators")
    by_key: dict[str, int] = {}
    for row in document["operators"]:
        key = f"{row['operator_class']}/{row['phase']}/{row['part_of'] or row['operator']}"
        by_key[key] = by_key.get(key, 0) + row["time_ns"]
    for key, row in operators.items():
        if key in by_key:
            assert row[4] == pytest.approx(by_key[key] / steps), key
    if operators:
        assert sum(row[4] for row in operators.values()) == pytest.approx(sum(times.values()) / steps)
    for point in data_of(opened, "roofline"):
        if "key" in point:
            assert point["ns"] == pytest.approx(by_key[point["key"]] / steps)
    parts = [part for part in data_of(opened, "step") if "part" in part]
    if parts:
        assert sum(part["ns"] for part in parts) == pytest.approx(whole_step(document))
        assert parts[-1]["to"] == pytest.approx(whole_step(document))
    components = {row["component"].replace("_", " "): row for row in document["memory"]["components"]}
    for bar in data_of(opened, "components"):
        assert bar["bytes"] == components[bar["component"]][f"{bar['by']}_bytes"]
    curve = [point for point in data_of(opened, "memory") if "all" in point]
    if curve:
        known = {(point["time_ns"], point["allocated_bytes"]) for point in document["memory"]["timeline"]}
        assert {(point["ns"], point["all"]) for point in curve} <= known
        assert max(point["all"] for point in curve) == max(size for _, size in known)


def whole_step(document: dict[str, Any]) -> float:
    """The mean step without other steps' work, of the ranks the mean; without steps the time of all classes."""
    timeline = document["timeline"]
    steps = max(document["step"]["count"], 1) / max(len(document["ranks"]), 1)
    work = sum(row["time_ns"] for row in document["classes"])
    return ((timeline["window_ns"] or work) - (timeline["outside_ns"] or 0)) / steps  # type: ignore[no-any-return]


def check_comparison(opened: Opened, document: dict[str, Any]) -> None:
    """The steps of the waterfall lead from one step to the other, exactly."""
    parts, memory = document["decomposition"], document["peak_parts"]
    bars = [bar for bar in data_of(opened, "difference") if "what" in bar]
    if memory:
        before, *changes, after = bars
        ends = [sum(row[f"{side}_bytes"] for row in memory) for side in ("before", "after")]
        assert [before["to"], after["to"]] == ends
        assert sum(bar["to"] - bar["from"] for bar in changes) == ends[1] - ends[0]
        return
    if parts is None:
        assert not bars
        return
    before, *changes, after = bars
    assert (before["to"], after["to"]) == (parts["before_ns"], parts["after_ns"])
    assert sum(bar["to"] - bar["from"] for bar in changes) == parts["after_ns"] - parts["before_ns"]
    assert all(one["to"] == other["from"] for one, other in zip(bars, changes, strict=False))
    causes = opened.numbers("causes")
    assert causes["step"][1:3] == [parts["before_ns"], parts["after_ns"]]
    assert sum(row[3] for name, row in causes.items() if name != "step") == parts["after_ns"] - parts["before_ns"]


def check_techniques(opened: Opened, document: dict[str, Any]) -> None:
    rows = {row["name"]: row for row in document["rows"]}
    points = [point for point in data_of(opened, "techniques") if point.get("by") in ("predicted", "measured")]
    assert points
    for point in points:
        figures = rows[point["technique"]][point["by"]]
        assert point["value"] in (figures["peak_bytes"], figures["step_ns"])
        if "low" in point:
            assert (point["low"], point["high"]) == (figures["low_ns"], figures["high_ns"])


def test_the_tree_zooms_and_is_searched(browser: Any, folder: Path) -> None:
    with Opened(browser, page_of("bert_cpu", folder)) as opened:
        signal = "name => opanatomy.views.modules.signal(name)"
        boxes = opened.page.query_selector_all("#chart-modules g.mark-rect.role-mark path")
        opened.page.evaluate(
            """() => {
                 const view = opanatomy.views.modules;
                 const walk = (item) => item.datum && item.datum.depth === 1
                   ? item : (item.items || []).map(walk).find(Boolean);
                 const {datum, x, y, width, height} = walk(view.scenegraph().root);
                 window.found = [datum.from, datum.to, x + width / 2, y + height / 2];
               }"""
        )
        begin, end, x, y = opened.page.evaluate("window.found")
        opened.page.query_selector("#chart-modules svg").scroll_into_view_if_needed()
        place = opened.page.query_selector("#chart-modules svg").bounding_box()
        origin = opened.page.evaluate("opanatomy.views.modules.origin()")
        opened.page.mouse.click(place["x"] + origin[0] + x, place["y"] + origin[1] + y)
        opened.until(f"opanatomy.views.modules.signal('high') === {end}")
        assert opened.page.evaluate(signal, "low") == begin
        opened.page.click("button[data-whole=modules]")
        opened.until("opanatomy.views.modules.signal('high') === 1")
        opened.page.fill("[data-search=modules]", "attention")
        faint = "document.querySelectorAll('#chart-modules g.mark-rect.role-mark path[opacity=\"0.25\"]').length"
        opened.until(f"{faint} > 0")
        assert opened.page.evaluate(faint) < len(boxes)


@pytest.mark.parametrize(
    "name", ["snapshot", *(pytest.param("snapshot_512", marks=pytest.mark.exhaustive) for _ in range(SHARED.is_dir()))]
)
def test_what_is_under_the_cursor_on_the_curve_is_what_lived_then(name: str, browser: Any, folder: Path) -> None:
    """Time, phase, components and lines of the tooltip are those of a point of the JSON report; the peak is named."""
    report = report_of(name, folder)
    with Opened(browser, page_of(name, folder)) as opened:
        figure = opened.page.query_selector("#chart-memory")
        figure.scroll_into_view_if_needed()
        box = figure.bounding_box()
        seen = set()
        for share in (0.2, 0.35, 0.5, 0.65, 0.8):
            opened.page.mouse.move(box["x"] + share * box["width"], box["y"] + 150)
            opened.page.wait_for_timeout(150)
            rows = opened.page.evaluate(
                "[...document.querySelectorAll('#vg-tooltip-element tr')].map(r => [...r.cells].map(c => c.innerText))"
            )
            told = dict(rows)
            matching = [
                point
                for point in report.memory.timeline
                if (units.duration(point.time_ns), point.phase, units.size(point.allocated_bytes))
                == (told["at"], told["phase"], told["allocated"])
            ]
            assert matching, told
            parts = {name.replace("_", " "): units.size(size) for name, size in matching[0].components.items() if size}
            lines = [f"{name}: {units.size(size)}" for name, size in matching[0].lines.items()]
            assert {name: told[name] for name in parts} == parts
            assert [told[f"line {index}"] for index in range(1, len(lines) + 1)] == lines
            seen.add(told["at"])
        assert len(seen) == 5
        most = units.size(max(point.allocated_bytes for point in report.memory.timeline))
        assert f"peak {most}" in figure.inner_text()
        whole = sum(rectangle["to"] - rectangle["from"] for rectangle in data_of(opened, "segments"))
        assert whole == sum(span.bytes for span in report.memory.spans)


def test_tables_are_sorted_and_filtered(browser: Any, folder: Path) -> None:
    with Opened(browser, page_of("two_ranks", folder)) as opened:
        column = """() => [...document.querySelectorAll('table[data-section=operators] > tbody > tr[data-key]')]
            .map(row => Number(row.cells[4].dataset.v))"""
        opened.page.click("table[data-section=operators] thead th:nth-child(5) .term")
        assert opened.page.evaluate(column) == sorted(opened.page.evaluate(column), reverse=True)
        opened.page.click("table[data-section=operators] thead th:nth-child(5) .term")
        assert opened.page.evaluate(column) == sorted(opened.page.evaluate(column))
        opened.page.select_option("form.filter select[name=phase]", "backward")
        rows = "[...document.querySelectorAll('table[data-section=operators] > tbody > tr:not([hidden])')]"
        shown = opened.page.evaluate(f"{rows}.map(row => row.dataset.key)")
        assert shown
        assert all(key.split("/")[1] == "backward" for key in shown)
        opened.page.fill("form.filter input[name=text]", "mm")
        fewer = opened.page.evaluate(f"{rows}.length")
        assert 0 < fewer < len(shown)


def test_what_is_picked_is_picked_in_table_and_picture(browser: Any, folder: Path) -> None:
    with Opened(browser, page_of("two_ranks", folder)) as opened:
        key = next(point["key"] for point in data_of(opened, "roofline") if "key" in point)
        opened.page.click(f'table[data-section=operators] tr[data-key="{key}"] > td:nth-child(2)')
        assert opened.page.evaluate("opanatomy.views.roofline.signal('picked')") == key
        opened.until(
            "document.querySelectorAll('#chart-roofline g.mark-symbol.role-mark path[opacity=\"0.15\"]').length > 0"
        )
        row = f'table[data-section=operators] tr[data-key="{key}"]'
        assert opened.page.query_selector(f"{row}.picked")
        opened.page.focus(row)
        opened.page.keyboard.press("Enter")  # once more lets it go
        assert opened.page.evaluate("opanatomy.views.roofline.signal('picked')") == ""
        opened.page.keyboard.press("Enter")
        assert opened.page.query_selector(f"{row}.picked")


@pytest.mark.exhaustive
def test_speedscope_opens_its_file(browser: Any, folder: Path) -> None:
    """Its own page, from npm, with the file in a script as its command line does it."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("there is no npm")
    subprocess.run([npm, "pack", "--silent", "speedscope"], cwd=folder, check=True, capture_output=True)
    (packed,) = folder.glob("speedscope-*.tgz")
    shutil.unpack_archive(packed, folder)
    report = report_of("bert_cpu", folder)
    text = base64.b64encode(speedscope_profile(report, Page()).encode()).decode()
    script = folder / "profile.js"
    script.write_text(f'speedscope.loadFileFromBase64("bert.speedscope.json", "{text}")')
    page = browser.new_page()
    said: list[str] = []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(f"{(folder / 'package' / 'dist' / 'release' / 'index.html').as_uri()}#localProfilePath={script}")
    page.wait_for_selector("canvas")
    page.wait_for_function("document.title.includes('bert')")
    assert not said
    page.close()


def test_names_from_anywhere_do_nothing(browser: Any, folder: Path) -> None:
    """No script of theirs runs, nothing is asked for, and the pictures and the filters work."""
    path = folder / "hostile.html"
    path.write_text(html_report(named(HOSTILE), Page()), encoding="utf-8")
    with Opened(browser, path) as opened:
        assert opened.said == [f"request: {path.as_uri()}"]
        assert all(figure.get_attribute("data-live") for figure in opened.page.query_selector_all("figure"))
        opened.page.fill("form.filter input[name=text]", "alert(1)")
        opened.page.fill("[data-search=modules]", "alert(1)'")
        assert len(opened.page.query_selector_all("script")) == 5  # two of them data
        assert opened.said == [f"request: {path.as_uri()}"]


def test_light_and_dark_by_the_system_and_by_the_switch(browser: Any, folder: Path) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    with Opened(browser, page_of("bert_cpu", folder), color_scheme="dark") as opened:
        dark = opened.page.evaluate(paper)
        opened.page.click("#theme")
        assert opened.page.evaluate(paper) != dark
        assert opened.page.evaluate("document.documentElement.dataset.theme") == "light"


def test_a_meaning_comes_by_keyboard(browser: Any, folder: Path) -> None:
    with Opened(browser, page_of("bert_cpu", folder)) as opened:
        opened.page.focus("table[data-section=classes] thead .term")
        assert opened.page.is_visible("#meaning")
        assert opened.page.text_content("#meaning")
        opened.page.keyboard.press("Escape")
        assert not opened.page.is_visible("#meaning")


@pytest.mark.parametrize("name", SHOWN)
def test_without_a_script_all_tables_and_pictures_are_there(name: str, browser: Any, folder: Path) -> None:
    with Opened(browser, page_of(name, folder)) as whole:
        tables = len(whole.page.query_selector_all("table.rows"))
        figures = len(whole.page.query_selector_all("figure"))
    with Opened(browser, page_of(name, folder), java_script_enabled=False) as opened:
        assert len(opened.page.query_selector_all("table.rows")) == tables
        assert len(opened.page.query_selector_all("figure .view > svg")) == figures


@pytest.mark.parametrize("name", SHOWN)
def test_on_paper_every_table_is_open(name: str, browser: Any, folder: Path) -> None:
    pypdf = pytest.importorskip("pypdf")
    with Opened(browser, page_of(name, folder)) as opened:
        titles = opened.page.evaluate(
            "[...document.querySelectorAll('h3, details.part > summary')].map(head => head.firstChild.textContent)"
        )
        target = folder / f"{name}.pdf"
        opened.page.pdf(path=target)
    # A font may write "fl" as one character.
    text = unicodedata.normalize("NFKC", "".join(page.extract_text() for page in pypdf.PdfReader(target).pages))
    for title in titles:
        assert "".join(title.split()) in "".join(text.split()), title


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        pytest.param(name, scheme, marks=() if (name, scheme) in AXE else pytest.mark.exhaustive)
        for name in NAMES
        for scheme in ("light", "dark")
    ],
)
def test_nothing_serious_for_those_who_do_not_see_it(name: str, scheme: str, browser: Any, folder: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    with Opened(browser, page_of(name, folder), color_scheme=scheme, bypass_csp=True) as opened:
        found = axe.run(opened.page).response["violations"]
    serious = [each for each in found if each["impact"] in ("serious", "critical")]
    assert not [(each["id"], each["nodes"][0]["html"][:200]) for each in serious]
