"""No line of a page is wider than the terminal, from 40 to 200 cells; a command that is pasted whole may be."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import msgspec
import pytest
from rich.cells import cell_len

from opanatomy.api import comparison_of
from opanatomy.pipeline import analyze_traces
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.experiment import Techniques
from opanatomy.records.reports import Report
from opanatomy.report import read_anatomy
from opanatomy.report.formats import terminal
from opanatomy.report.formats.terminal import page_text, terminal_report
from opanatomy.report.section import NoteStyle, Page, Section
from opanatomy.report.sections import SECTIONS, named_sections, sections_of
from tests import anatomies

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "tests" / "traces"
SHARED = ROOT.parent / "shared"
RANKS = tuple(FOLDER / f"gpu_v100_dlrm_rank{rank}of8.json.gz" for rank in (0, 1))
#: Every width up to where tables and prose no longer change, and some above.
WIDTHS = (*range(40, 105), *range(108, 200, 12), 200)
#: A command calls the trace by more than a narrow terminal has room for.
SOURCE = "/a/folder/of/traces/that/is/wider/than/a/terminal/of/forty/cells/trace.json.gz"
REPORTS = {
    "bert-large": ROOT / "reports" / "bert-large-uncased.json",
    "bert-memory": ROOT / "reports" / "bert-memory.json",
    **{f"techniques-{path.stem}": path for path in sorted((ROOT / "reports" / "techniques").glob("*.json"))},
    **dict.fromkeys(("bert_on_cpu", "llama_on_gpu", "nothing", "graph", "ranks", "two_sides", "three_sides", "dlrm")),
}
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@cache
def report_of(name: str) -> Report:
    path = REPORTS[name]
    if path is not None:
        return msgspec.json.decode(path.read_bytes(), type=Techniques) if name.startswith("tech") else read_anatomy(
            path.read_bytes()
        )  # fmt: skip
    if name == "two_sides":
        return comparison_of(RANKS)
    if name == "three_sides":
        return comparison_of((*RANKS, FOLDER / "bert_cpu.json.gz"))
    traces = {"ranks": RANKS, "graph": (FOLDER / "gpu_mi300_graph.json.gz",), "dlrm": (_dlrm(),)}
    return analyze_traces(traces[name]) if name in traces else getattr(anatomies, name)()


def _dlrm() -> Path:
    """The ranks of a run whose shared folder is next to the checkout."""
    folder = SHARED / "more_traces" / "dlrm_v100"
    if not folder.is_dir():
        pytest.skip("the folder of shared traces is not next to the checkout")
    return folder


def wide_lines(text: str, width: int) -> list[str]:
    return [line for line in _ANSI.sub("", text).splitlines() if cell_len(line) > width]


def commands_of(sections: tuple[Section, ...], width: int) -> set[str]:
    """The lines of commands, of which each that is too wide is one word, or an option with its value."""
    lines: set[str] = set()
    for note in (note for section in sections for note in section.notes if note.tone is NoteStyle.COMMAND):
        lines |= {str(line) for line in terminal.command(str(note.text), width, label="next:")}
    for line in lines:
        assert cell_len(line) <= width or len(line.removesuffix(" \\").split()) <= 2
    return lines


@pytest.mark.parametrize("name", REPORTS)
def test_no_line_is_wider_than_the_terminal(name: str) -> None:
    """The whole page at each width; then each section by itself, the coloured page with its swatches and bars."""
    report = report_of(name)
    sections = sections_of(report, source=SOURCE)
    unasked = {section.name for section in sections}
    named = named_sections(report, SECTIONS, source=SOURCE) if isinstance(report, Anatomy) else ()
    asked = tuple(section for section in named if section.name not in unasked)
    for width in WIDTHS:
        commands = commands_of(sections, width)
        shown = page_text((*sections, *asked), width)
        assert [line for line in wide_lines(shown, width) if line not in commands] == [], width
    for width in (40, 47, 60, 80, 120):
        commands = commands_of(sections, width)
        coloured = page_text(sections, width, color=True)
        assert [line for line in wide_lines(coloured, width) if line not in commands] == [], width


@pytest.mark.parametrize("width", [40, 57, 80])
@pytest.mark.parametrize("source", [None, SOURCE])
def test_a_first_screen_that_gives_way_names_what_is_left_out_in_lines_that_fit(width: int, source: str | None) -> None:
    """The options to add fit too; a command that does not is whole."""
    report = report_of("llama_on_gpu")
    text = terminal_report(report, Page(width=width, brief=True, height=16, source=source))
    assert "left out of this screen: --section" in " ".join(text.split())
    assert [line for line in wide_lines(text, width) if SOURCE not in line] == []


COLUMNS = [
    terminal.Column(header="name", name=True, least=12), terminal.Column(header="shape", name=True, least=20),
    terminal.Column(header="before"), terminal.Column(header="after"), terminal.Column(header="change"),
]  # fmt: skip
ROW = terminal.TableRow(
    cells=("a_name_of_some_length", "a shape of thirty cells, more", "100.0 ms", "200.0 ms", "+100.0 %")
)


@pytest.mark.parametrize(
    ("width", "kept", "cut"),
    [
        (100, {"name", "shape", "before", "after", "change"}, "a_name_of_some_length  a shape of thirty cells, more"),
        (64, {"name", "shape", "before", "after", "change"}, "a_name…ength  a shape of…lls, more"),
        # Names are shorter than their least before a column goes that never should.
        (48, {"name", "shape", "before", "after", "change"}, "a_na…gth  a sh…ore"),
        (47, {"name", "shape", "before", "after"}, ""),
        (30, {"name", "shape", "before"}, ""),
        (20, {"name", "shape"}, ""),
        (12, {"name"}, "a_name…ength"),
    ],
)
def test_a_table_fits_whatever_its_columns_are(width: int, kept: set[str], cut: str) -> None:
    lines, shown = terminal.table(COLUMNS, [ROW], width)
    assert shown == kept
    assert all(line.cell_len <= width for line in lines)
    assert lines[-1].plain.startswith(cut)
