"""Any text in Markdown is shown as it is: rendered as CommonMark with tables, read as GitHub does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from opanatomy.report.markdown import markdown_code, markdown_line, markdown_text
from opanatomy.report.section import printable
from tests.hostile_names import HOSTILE
from tests.markdown_pages import linked_by_github, page_of


def shown(text: str) -> str:
    """What a reader is to see of it: marks for what cannot be seen, no spaces around."""
    return printable(text).strip(" ")


@pytest.mark.parametrize("render", [markdown_text, markdown_code])
@pytest.mark.parametrize("text", HOSTILE)
def test_a_paragraph_shows_the_text(text: str, render: Callable[[str], str]) -> None:
    page = page_of(render(text) + "\n")
    assert page.tags <= {"p", "code"}, page.tags
    assert page.text == shown(text)
    assert not linked_by_github(page)


@pytest.mark.parametrize("render", [markdown_text, markdown_code])
@pytest.mark.parametrize("text", HOSTILE)
def test_a_cell_shows_the_text(text: str, render: Callable[[str], str]) -> None:
    page = page_of(f"| name | time |\n| --- | ---: |\n| {render(text)} | 1 ms |\n| {render(text)} | 2 ms |\n")
    assert page.tags <= {"table", "thead", "tbody", "tr", "th", "td", "code"}, page.tags
    assert page.cells == ["name", "time", shown(text), "1 ms", shown(text), "2 ms"]
    assert not linked_by_github(page)


PARTS = st.sampled_from(
    [*HOSTILE, " ", "a", "1", "@", "#", "\\", "|", "`", "_", "*", "<", "&", "[", "]", "(", ")", ":", "$", "-"]
)


@given(parts=st.lists(PARTS | st.text(max_size=3), max_size=6))
@example(parts=["@", "a", "`"])
def test_any_text_is_shown_in_a_cell_and_in_a_line(parts: list[str]) -> None:
    text = "".join(parts)
    for render in (markdown_text, markdown_code):
        page = page_of(f"| n | t |\n| - | - |\n| {render(text)} | 1 |\n\n{render(text)}\n\n- {render(text)}\n")
        assert page.tags <= {"table", "thead", "tbody", "tr", "th", "td", "code", "p", "ul", "li"}
        assert page.cells == ["n", "t", shown(text), "1"]
        assert page.texts_of("p", "li") == [shown(text)] * (2 if shown(text) else 1) or not shown(text)
        assert not linked_by_github(page)


@pytest.mark.parametrize(
    "text",
    [
        "aten::addmm",
        "layer_norm of bert.encoder.layer.0",
        "12.5 ms (38.0 %)",
        "-0.874 ms",
        "float32[2,3]".replace("[2,3]", ""),
    ],
)
def test_plain_words_stay_as_they_are(text: str) -> None:
    assert markdown_text(text) == text


@given(parts=st.lists(st.tuples(PARTS | st.text(max_size=3), st.booleans()), max_size=5))
@example(parts=[("at ", False), ("`x`", True), (": https://x", False)])
@example(parts=[("", True), ("- item", False)])
def test_texts_and_names_side_by_side_are_shown(parts: list[tuple[str, bool]]) -> None:
    text = "".join(printable(part) for part, _ in parts).strip(" ")
    page = page_of(f"| n | t |\n| - | - |\n| {markdown_line(parts)} | 1 |\n\n{markdown_line(parts)}\n")
    assert page.tags <= {"table", "thead", "tbody", "tr", "th", "td", "code", "p"}
    # A name has no spaces of its own around it.
    assert [cell.replace(" ", "") for cell in page.cells] == ["n", "t", text.replace(" ", ""), "1"]
    assert not linked_by_github(page)


def test_names_are_code_between_spaces() -> None:
    line = markdown_line([("operator ", False), ("aten::mm", True), (": 2 of ", False), ("x y", True), (")", False)])
    assert line == "operator `aten::mm`: 2 of `x y`)"
    assert markdown_line([("a", False), ("name", True)]) == "aname"
