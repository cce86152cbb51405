"""The step over time in a real browser: the spans of the report, where they are, under their names, at every zoom."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final

import pytest

from opanatomy.records.anatomy import Anatomy
from opanatomy.report import units
from opanatomy.report.charts import timeline_of
from tests.pages.browser.opened import SUGGESTED, Opened, page_of
from tests.pages.browser.pages import FEW, OWN, report_of
from tests.support.paths import SHARED

pytestmark = SUGGESTED
#: Pages with a step over time.
TIMED: Final = [
    pytest.param(name, marks=() if name in FEW else pytest.mark.exhaustive)
    for name in (
        "bert_cpu",
        "two_ranks",
        "schema_2021",
        "graphed",
        "many_kernels",
        "compiled_gpt",
        "vllm_graph",
        "dlrm",
        "mi300",
    )
    if name in OWN or SHARED.is_dir()
]
PLACES: Final = 40
#: The time of each kind of the spans that a lane draws between two times.
IN_VIEW: Final = """([place, low, high]) => {
    const { lanes, rowsIn, begin, length, word } = opanatomy.timeline, times = {};
    const [first, last] = rowsIn(lanes[place], low, high);
    for (let row = first; row < last; row += 1) {
        const part = Math.min(begin[row] + length[row], high) - Math.max(begin[row], low);
        if (part > 0) times[word(row)] = (times[word(row)] || 0) + part;
    }
    return times;
}"""


def rows_of(name: str, folder: Path) -> list[dict[str, Any]]:
    report = report_of(name, folder)
    assert isinstance(report, Anatomy)
    assert report.lanes is not None
    return list(report.lanes.spans.rows())


def under(opened: Opened, row: int) -> list[str]:
    """What the page says of a span where the pointer is on it, after it was zoomed to."""
    opened.page.evaluate("row => opanatomy.timeline.pick(-1)", row)
    box = opened.page.query_selector("#chart-lanes canvas").bounding_box()
    across, down = opened.page.evaluate("row => opanatomy.timeline.pixel(row)", row)
    opened.page.mouse.move(box["x"] + across, box["y"] + down)
    opened.until("!document.getElementById('span').hidden")
    lines: list[str] = opened.page.evaluate(
        "[...document.getElementById('span').children].map(line => line.textContent)"
    )
    return lines


@pytest.mark.parametrize("name", TIMED)
def test_what_is_under_the_pointer_is_the_span_of_the_trace(name: str, browser: Any, folder: Path) -> None:
    """Forty spans, by chance: name, kind, length and begin, operator, module, grid, launch are those of the report."""
    rows, words = rows_of(name, folder), timeline_of(report_of(name, folder))  # type: ignore[arg-type]
    kinds = dict(zip(report_of(name, folder).lanes.spans.plain()["kind"]["values"], words["kinds"], strict=True))  # type: ignore[union-attr]
    chosen = random.Random(40).sample(range(len(rows)), min(PLACES, len(rows)))
    binned = {lane["name"] for lane in words["lanes"] if lane["bin"]}
    with Opened(browser, page_of(name, folder)) as opened:
        opened.page.query_selector("#chart-lanes").scroll_into_view_if_needed()
        for row in chosen:
            span = rows[row]
            if span["lane"] in binned:
                continue
            begin, length = span["begin_ns"], span["length_ns"]
            opened.page.evaluate(
                "([low, high]) => opanatomy.timeline.show(low, high)", [begin - length, begin + 2 * length]
            )
            opened.page.wait_for_timeout(40)
            lines = under(opened, row)
            if span["name"] is not None:
                assert lines[0] == " ".join(span["name"].split()) or lines[0] == span["name"]
            assert kinds[span["kind"]][0] in lines
            assert f"{units.duration(length)}, from {units.duration(begin)}" in lines
            for field in ("operator", "module", "phase", "signature", "grid"):
                if span[field]:
                    assert f"{field}: {span[field]}" in lines
            if span["kind"] in ("tensor_contraction", "elementwise") and span["cause_ns"] is not None:
                assert any(
                    line.startswith(f"launched by {span['cause']} at {units.duration(span['cause_ns'])}")
                    for line in lines
                )


@pytest.mark.parametrize("name", TIMED)
def test_lanes_sum_up_at_every_zoom(name: str, browser: Any, folder: Path) -> None:
    """The time of each kind in view is that of the report's spans, clipped to the view."""
    rows, words = rows_of(name, folder), timeline_of(report_of(name, folder))  # type: ignore[arg-type]
    kinds = dict(zip(report_of(name, folder).lanes.spans.plain()["kind"]["values"], words["kinds"], strict=True))  # type: ignore[union-attr]
    wall, chance = words["wall"], random.Random(1)
    with Opened(browser, page_of(name, folder)) as opened:
        for zoom in (1, 3, 20, 150):
            low = chance.randrange(max(wall - wall // zoom, 1))
            high = low + wall // zoom
            for index, lane in enumerate(words["lanes"]):
                times: dict[str, int] = {}
                for span in rows:
                    part = min(span["begin_ns"] + span["length_ns"], high) - max(span["begin_ns"], low)
                    if span["lane"] == lane["name"] and part > 0:
                        word = kinds[span["kind"]][0]
                        times[word] = times.get(word, 0) + part
                assert opened.page.evaluate(IN_VIEW, [index, low, high]) == times


def test_the_step_is_looked_at_closer(browser: Any, folder: Path) -> None:
    """A half of what is seen, then the next quarter, the whole again; never beyond the step."""
    with Opened(browser, page_of("two_ranks", folder)) as opened:
        view = "opanatomy.timeline.view()"
        begin, end = opened.page.evaluate(view)
        seen = {
            "closer": (end / 4, 3 * end / 4),
            "later": (3 * end / 8, 7 * end / 8),
            "farther": (begin, end),
            "earlier": (begin, end),
            "whole step": (begin, end),
        }
        for way, (low, high) in seen.items():
            opened.page.click(f'[data-way="{way}"]')
            assert opened.page.evaluate(view) == pytest.approx([low, high])


def test_the_keyboard_goes_from_span_to_span(browser: Any, folder: Path) -> None:
    """Right to the next of the lane, down to the lane below, Enter to the span, L to what it comes from."""
    name = "compiled_gpt" if SHARED.is_dir() else "schema_2021"
    rows = rows_of(name, folder)
    with Opened(browser, page_of(name, folder)) as opened:
        opened.page.focus("#chart-lanes canvas")
        picked = "opanatomy.timeline.picked()"
        opened.page.keyboard.press("ArrowRight")
        first = opened.page.evaluate(picked)
        assert rows[first]["lane"] == rows[0]["lane"]
        opened.page.keyboard.press("ArrowRight")
        assert opened.page.evaluate(picked) == first + 1
        opened.page.keyboard.press("ArrowDown")
        assert rows[opened.page.evaluate(picked)]["lane"] != rows[0]["lane"]
        kernel = next(
            index
            for index, row in enumerate(rows)
            if row["lane"].startswith("stream") and (row["cause_ns"] or -1) >= 0 and row["cause"]
        )
        opened.page.evaluate("row => opanatomy.timeline.pick(row)", kernel)
        opened.page.keyboard.press("Enter")
        low, high = opened.page.evaluate("opanatomy.timeline.view()")
        assert low <= rows[kernel]["begin_ns"] < rows[kernel]["begin_ns"] + rows[kernel]["length_ns"] <= high
        opened.page.keyboard.press("l")
        launch = rows[opened.page.evaluate(picked)]
        assert launch["lane"] == rows[kernel]["cause"]
        assert launch["begin_ns"] <= rows[kernel]["cause_ns"] < launch["begin_ns"] + launch["length_ns"]
        opened.page.keyboard.press("Escape")
        assert opened.page.evaluate(picked) == -1


def test_a_name_is_found(browser: Any, folder: Path) -> None:
    rows = rows_of("bert_cpu", folder)
    wanted = [row for row in rows if "addmm" in f"{row['name']} {row['operator']} {row['module']}".lower()]
    spent: dict[str, int] = {}
    for row in wanted:
        where = "phases" if row["lane"] == "phases" else "threads"
        spent[where] = spent.get(where, 0) + row["length_ns"]
    with Opened(browser, page_of("bert_cpu", folder)) as opened:
        opened.page.fill("[data-find]", "addmm")
        told = opened.page.text_content("#chart-lanes output")
        assert told.startswith(f"{len(wanted)} spans: {units.duration(spent['threads'])} in threads; Enter")
        opened.page.focus("[data-find]")
        opened.page.keyboard.press("Enter")
        assert rows[opened.page.evaluate("opanatomy.timeline.picked()")] == wanted[0]
        opened.page.fill("[data-find]", "nothing has this name")
        assert opened.page.text_content("#chart-lanes output") == "no span matches"
        assert not opened.page.is_visible("#span")
        opened.page.fill("[data-find]", "forward")
        forward = [row for row in rows if row["kind"] == "forward"]
        told = opened.page.text_content("#chart-lanes output")
        assert f"{units.duration(sum(row['length_ns'] for row in forward))} in phases" in told


def test_moments_are_told_apart_at_every_zoom(browser: Any, folder: Path) -> None:
    """The ends of what is shown have the digits that tell them from each other."""
    with Opened(browser, page_of("bert_cpu", folder)) as opened:
        for _ in range(30):
            opened.page.click("[data-way=closer]")
            low, high = (opened.page.text_content("#chart-lanes output") or "").split(" to ")
            assert low != high
