"""Names from anywhere, in every format that people open: shown as text, and nothing else changes."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from enum import Enum
from functools import cache
from html.parser import HTMLParser
from io import StringIO
from typing import Any, Final, TypeVar

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from msgspec.structs import replace

import opanatomy
from opanatomy.api import comparison_of
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.experiment import Techniques
from opanatomy.records.lanes import SpanTable
from opanatomy.records.signature import SignatureText
from opanatomy.records.table import Table
from opanatomy.report.formats import format_named
from opanatomy.report.formats.digest import digest
from opanatomy.report.markdown import markdown_code, markdown_line, markdown_text
from opanatomy.report.names import printable
from opanatomy.report.section import Page
from tests.support import anatomies
from tests.support.experiments import experiment
from tests.support.paths import TRACES

HOSTILE: Final = (
    "a|b", "`code`", "``a` b", "<script>alert(1)</script>", "</details>", "<!-- comment", "]]>",
    "[x](javascript:alert(1))", "](javascript:alert(1))", "![i](https://example.org/i.png)", "<https://example.org>",
    "https://example.org/a_b", "www.example.org", "mailto:a@example.org", "ftp://example.org", "@everyone",
    "a @team/all b", "see #123", "GH-12", "owner/name#12", "owner/name@0123456789abcdef", "deadbeefcafe",
    "CVE-2024-1234", "$x^2$", "a $`x`$ b", ":fire:", "c10::fire::x", "# heading", "#", "- item", "+ item", "* item",
    "1. item", "12) item", "> quote", "---", "- - -", "===", ":-:", "***", "~~gone~~", "~~~", "```", "    indented",
    "\titem", "*bold*", "_soft_ __hard__", "aten::_foreach_add_", "&amp;", "&#64;everyone", "[^1]", "[ ] task", "[x]",
    "\\", "\\|", "\\\\|", "a\\", "|", "||", "| --- |", "`|`", "@a|b", "`@a", "@`a`", "@a\\", "at <b>|@x`y|`#1|",
    "line\nbreak", "line\r\n\r\n# heading", "\u202egnp.exe", "zero\u200bwidth", "\ufeff", "\x1b[2Jgone", "\x00",
    "x\u2028y", "\u3164", "=cmd()", "+1", "-2.5 ms", "lambda()#1}::operator()", "模型", "  ", "", "a  b",
)  # fmt: skip

#: What a spreadsheet would run, in the ways it may begin.
FORMULAS: Final = (
    "=cmd()", "=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=cmd()", "\r=cmd()", "\n=cmd()", "\r\n=cmd()",
    "\uff1dcmd()", "\uff0b1", "\uff0d1", "\uff20SUM(A1)", "\x00=cmd()", "\ufeff=cmd()", "a,=cmd()", 'a",=cmd()',
    "a\n=cmd()",
)  # fmt: skip


#: GitHub's filters over rendered text, which leave code alone: mentions, issues, commits, addresses, emoji, formulas.
_FILTERS = (
    r"(?<![\w`/])@[A-Za-z0-9]",
    r"[A-Za-z0-9._+-]+@[A-Za-z0-9_-]+\.[A-Za-z]",
    r"(?<![\w&])#\d",
    r"(?i)\bgh-\d",
    r"[\w.-]+/[\w.-]+[#@][0-9a-f]",
    r"(?<![0-9A-Za-z])[0-9a-f]{7,40}(?![0-9A-Za-z])",
    r"(?i)(?:https?|ftp)://",
    r"(?i)\bwww\.[a-z0-9]",
    r"(?i)\b(?:mailto|xmpp):",
    r":[a-z0-9_+-]+:",
    r"\$[^$]+\$",
    r"(?i)\b(?:cve|ghsa)-",
)
_VOID = {"br", "hr", "img", "input"}


class Shown(HTMLParser):
    """The tags of a page and its texts, each with the tags around it."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        #: The tags in order, those of code left out.
        self.skeleton: list[str] = []
        self.cells: list[str] = []
        self.parts: list[tuple[tuple[str, ...], str]] = []
        self.attributes: list[tuple[str, str | None]] = []
        self._blocks: list[tuple[str, list[str]]] = []
        self.blocks: list[tuple[str, str]] = []
        self.feed(html)
        self.close()
        self.cells = [text for tag, text in self.blocks if tag in ("td", "th")]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.skeleton += [tag] if tag != "code" else []
        self.attributes += attrs
        if tag not in _VOID:
            self._blocks.append((tag, []))

    def handle_endtag(self, tag: str) -> None:
        assert self._blocks, f"</{tag}> of nothing"
        self.skeleton += [f"/{tag}"] if tag != "code" else []
        name, texts = self._blocks.pop()
        assert name == tag, f"</{tag}> closes <{name}>"
        text = "".join(texts)
        self.blocks.append((tag, text.strip("\n")))
        if self._blocks:
            self._blocks[-1][1].append(text)

    def handle_data(self, data: str) -> None:
        self.parts.append((tuple(tag for tag, _ in self._blocks), data))
        if self._blocks:
            self._blocks[-1][1].append(data)

    def handle_comment(self, data: str) -> None:
        self.tags.add("comment")
        self.skeleton.append("comment")

    def texts_of(self, *tags: str) -> list[str]:
        """The text of each element of these tags, in the order in which they end."""
        return [text for tag, text in self.blocks if tag in tags]


def page_of(markdown: str) -> Shown:
    """The page that GitHub-flavoured Markdown makes, tags in it included."""
    return Shown(str(MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(markdown)))


def linked_by_github(page: Shown) -> list[str]:
    """What GitHub's filters would change in the text of the page that is no code."""
    texts, run = [], ""
    for tags, text in page.parts:
        if "code" in tags:
            texts.append(run)
            run = ""
        else:
            run += text
    texts.append(run)
    return [match.group() for text in texts for pattern in _FILTERS for match in re.finditer(pattern, text)]


Report = TypeVar("Report", bound=msgspec.Struct)


def renamed(report: Report, name: Callable[[str], str]) -> Report:
    """The report with `name(text)` in the place of each text in it: names, warnings, keys of dictionaries."""
    fields = (field for field in report.__struct_fields__ if field != "id")  # a rule's, which is a word
    return replace(report, **{field: _renamed(getattr(report, field), name) for field in fields})


def _renamed(value: Any, name: Callable[[str], str]) -> Any:
    if isinstance(value, Enum) or value is None:
        return value
    if isinstance(value, SignatureText):
        return SignatureText(name(value))
    if isinstance(value, str):
        return name(value)
    if isinstance(value, msgspec.Struct):
        return renamed(value, name)
    if isinstance(value, tuple):
        return tuple(_renamed(item, name) for item in value)
    if isinstance(value, Table):
        words = {"kind"} if isinstance(value, SpanTable) else set()
        keys = {
            key: column if key in words else replace(column, values=_renamed(column.values, name))
            for key, column in value.keys.items()
        }
        return value.with_columns(keys, {})
    if isinstance(value, dict):
        return {_renamed(key, name): _renamed(item, name) for key, item in value.items()}
    return value


class Names:
    """Another name for each text, always the same for the same one, from a list that begins anew at its end."""

    def __init__(self, names: tuple[str, ...], first: int = 0) -> None:
        self.names, self.first, self.given = names, first, dict[str, str]()

    def __call__(self, text: str) -> str:
        index = self.first + len(self.given)
        # What is given out a second time is distinguished by how often the list was gone through.
        round_ = len(self.given) // len(self.names)
        return self.given.setdefault(text, self.names[index % len(self.names)] + str(round_ or ""))


NAMES = tuple(name for name in HOSTILE if name.strip())
#: As many texts that nothing acts on.
PLAIN = tuple(f"name{index}" for index in range(len(NAMES)))
#: The first of the names for the first text of a report: so each comes to stand in many places.
ROTATIONS = (0, 29, 61)
REPORTS = ("bert_on_cpu", "llama_on_gpu", "two_ranks", "techniques", "comparison")


@cache
def report_called(name: str) -> Any:
    if name == "two_ranks":
        return opanatomy.analyze([TRACES / f"gpu_v100_dlrm_rank{rank}of8.json.gz" for rank in (0, 1)])
    if name == "comparison":
        return comparison_of([TRACES / f"gpu_v100_dlrm_rank{rank}of8.json.gz" for rank in (0, 1)])
    return experiment() if name == "techniques" else getattr(anatomies, name)()


def written(format_name: str, report: Any, names: tuple[str, ...], first: int = 0, *, whole: bool = False) -> str:
    hostile = renamed(report, Names(names, first))
    if format_name == "digest" and whole:  # what it leaves out depends on how long names are
        return digest(hostile, most_bytes=1 << 20)
    return format_named(format_name).write(hostile, Page(width=200))


@pytest.mark.parametrize("first", ROTATIONS)
@pytest.mark.parametrize("format_name", ["markdown", "digest"])
@pytest.mark.parametrize("report", REPORTS)
def test_names_change_nothing_of_a_page_but_its_words(report: str, format_name: str, first: int) -> None:
    text = written(format_name, report_called(report), NAMES, first, whole=True)
    page, plain = page_of(text), page_of(written(format_name, report_called(report), PLAIN, first, whole=True))
    assert [pair for pair in page.attributes if pair[0] != "style" and pair != ("class", "language-text")] == []
    assert page.skeleton == plain.skeleton
    assert not linked_by_github(page)
    assert all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize("name", NAMES[::4])
def test_a_page_shows_the_names_themselves(name: str) -> None:
    anatomy = report_called("llama_on_gpu")
    assert isinstance(anatomy, Anatomy)
    named = anatomies.with_tables(anatomy, operators=tuple(replace(row, operator=name) for row in anatomy.operators))
    shown = printable(name).strip(" ")
    assert shown in page_of(format_named("markdown").write(named, Page())).cells
    lines = page_of(format_named("digest").write(named, Page())).texts_of("li")
    assert any(line.startswith(f"operator: {shown} ") for line in lines)


@pytest.mark.parametrize("format_name", ["markdown", "digest"])
@pytest.mark.parametrize("name", ["x" * 9999, "`" * 2999, "|" * 2999, "模" * 2999, "@a " * 999, "\x1b" * 2999])
def test_names_of_any_length_fit(format_name: str, name: str) -> None:
    most = {"digest": 4096, "markdown": 65_536}[format_name]
    for report in ("llama_on_gpu", "techniques", "comparison"):
        text = written(format_name, report_called(report), (name,))
        assert len(text.encode()) <= most
        assert not linked_by_github(page_of(text))


@pytest.mark.parametrize("first", ROTATIONS)
@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("width", [80, 200])
def test_no_name_steers_the_terminal(report: str, first: int, width: int) -> None:
    hostile = renamed(report_called(report), Names(NAMES, first))
    text = format_named("terminal").write(hostile, Page(width=width))
    assert all(line.isprintable() for line in text.split("\n"))
    coloured = format_named("terminal").write(hostile, Page(width=width, color=True))
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured).replace("\n", "").isprintable()


@pytest.mark.parametrize("report", REPORTS)
def test_no_name_is_a_formula_or_steers_the_terminal_in_csv(report: str) -> None:
    for name in (*FORMULAS, *NAMES[::4]):
        rows = list(csv.reader(StringIO(written("csv", report_called(report), (name,)))))
        assert len({len(row) for row in rows}) == 1
        for cell in (cell for row in rows for cell in row):
            assert not re.match("[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]", cell) or re.fullmatch(
                r"-?\d+(\.\d+)?", cell
            ), cell
            assert cell.replace("\n", "").replace("\t", "").isprintable()


def test_json_takes_any_name_back() -> None:
    for first in ROTATIONS:
        hostile = renamed(report_called("llama_on_gpu"), Names(NAMES, first))
        text = format_named("json").write(hostile, Page())
        assert opanatomy.report.read_anatomy(text) == hostile
    techniques = renamed(report_called("techniques"), Names(NAMES))
    assert msgspec.json.decode(format_named("json").write(techniques, Page()), type=Techniques) == techniques


# ------------------------------------------------------------------------------------------------------------ Markdown

PARTS = st.sampled_from(
    [*HOSTILE, " ", "a", "1", "@", "#", "\\", "|", "`", "_", "*", "<", "&", "[", "]", "(", ")", ":", "$", "-"]
)


def check_shown(text: str) -> None:
    """Any text is shown as it is in a cell, a paragraph and an item: with marks for what cannot be seen."""
    shown = printable(text).strip(" ")
    for render in (markdown_text, markdown_code):
        page = page_of(f"| n | t |\n| - | - |\n| {render(text)} | 1 |\n\n{render(text)}\n\n- {render(text)}\n")
        assert page.tags <= {"table", "thead", "tbody", "tr", "th", "td", "code", "p", "ul", "li"}
        assert page.cells == ["n", "t", shown, "1"]
        assert page.texts_of("p", "li") == [shown] * (2 if shown else 1) or not shown
        assert not linked_by_github(page)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_is_shown_in_markdown(text: str) -> None:
    check_shown(text)


@given(parts=st.lists(PARTS | st.text(max_size=3), max_size=6))
@example(parts=["@", "a", "`"])
def test_any_text_is_shown_in_markdown(parts: list[str]) -> None:
    check_shown("".join(parts))


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


def test_plain_words_stay_and_names_are_code_between_spaces() -> None:
    for text in ("aten::addmm", "layer_norm of bert.encoder.layer.0", "12.5 ms (38.0 %)", "-0.874 ms"):
        assert markdown_text(text) == text
    line = markdown_line([("operator ", False), ("aten::mm", True), (": 2 of ", False), ("x y", True), (")", False)])
    assert line == "operator `aten::mm`: 2 of `x y`)"
    assert markdown_line([("a", False), ("name", True)]) == "aname"
