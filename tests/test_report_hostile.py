"""Names from anywhere, in every format that people open: shown as text, and nothing else changes."""

from __future__ import annotations

import csv
import re
from functools import cache
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

import opanatomy
from opanatomy.api import comparison_of
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.experiment import Techniques
from opanatomy.records.reports import Report
from opanatomy.report.formats import format_named
from opanatomy.report.section import Page, printable
from tests import anatomies
from tests.experiments import experiment
from tests.hostile_names import FORMULAS, HOSTILE
from tests.markdown_pages import html_of, linked_by_github, page_of
from tests.renamed import Names, renamed

NAMES = tuple(name for name in HOSTILE if name.strip())
#: As many texts that nothing acts on.
PLAIN = tuple(f"name{place}" for place in range(len(NAMES)))
#: The first of the names for the first text of a report: so each comes to stand in many places.
ROTATIONS = (0, 29, 61)
FOLDER = Path(__file__).parent / "traces"
REPORTS = ("bert_on_cpu", "llama_on_gpu", "two_ranks", "techniques", "comparison")


@cache
def report_called(name: str) -> Report:
    if name == "two_ranks":
        return opanatomy.analyze([FOLDER / f"gpu_v100_dlrm_rank{rank}of8.json.gz" for rank in (0, 1)])
    if name == "comparison":
        return comparison_of([FOLDER / f"gpu_v100_dlrm_rank{rank}of8.json.gz" for rank in (0, 1)])
    report: Report = experiment() if name == "techniques" else getattr(anatomies, name)()
    return report


def written(format_name: str, report: Report, names: tuple[str, ...], first: int = 0) -> str:
    return format_named(format_name).write(renamed(report, Names(names, first)), Page(width=200))


class _Skeleton(HTMLParser):
    """The tags of a page in order, those of code left out."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[object] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "code":
            self.tags.append(tag)
        self.attributes += [
            pair for pair in attrs if pair not in ((("class", "language-text")),) and pair[0] != "style"
        ]

    def handle_endtag(self, tag: str) -> None:
        if tag != "code":
            self.tags.append(f"/{tag}")

    def handle_comment(self, data: str) -> None:
        self.tags.append("comment")


@pytest.mark.parametrize("first", ROTATIONS)
@pytest.mark.parametrize("format_name", ["markdown", "digest"])
@pytest.mark.parametrize("report", REPORTS)
def test_names_change_nothing_of_a_page_but_its_words(report: str, format_name: str, first: int) -> None:
    text = written(format_name, report_called(report), NAMES, first)
    page, plain = (
        _Skeleton(html_of(text)),
        _Skeleton(html_of(written(format_name, report_called(report), PLAIN, first))),
    )
    assert page.attributes == []
    if len(text) < 4000 or format_name == "markdown":  # what a digest leaves out depends on how long names are
        assert page.tags == plain.tags
    assert not linked_by_github(page_of(text))
    assert all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize("name", NAMES[::4])
def test_a_page_shows_the_names_themselves(name: str) -> None:
    anatomy = report_called("llama_on_gpu")
    assert isinstance(anatomy, Anatomy)
    named = replace(anatomy, operators=tuple(replace(row, operator=name) for row in anatomy.operators))
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
