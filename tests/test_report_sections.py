"""Sections: what the report says as data, and what a format makes of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.communication import Rank, Spread
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.report import terminal_report, units
from opanatomy.report.formats.terminal import section_text, sentence
from opanatomy.report.section import (
    ByteRate,
    Bytes,
    Cell,
    Change,
    Column,
    ColumnKind,
    Count,
    Exact,
    Figure,
    FlopRate,
    Flops,
    Name,
    Note,
    Phrase,
    Quantity,
    Rate,
    Ratio,
    Row,
    Section,
    Share,
    Time,
    facts_of,
    joined,
    phrase,
)
from opanatomy.report.sections import sections_of
from opanatomy.report.sections.checks import uncosted
from tests import anatomies

EVERY = pytest.mark.parametrize("anatomy", [anatomies.bert_on_cpu(), anatomies.llama_on_gpu(), anatomies.nothing()])


def table(*rows: Row, columns: tuple[Column, ...], notes: tuple[Note, ...] = ()) -> Section:
    return Section(name="a-table", title="A table", columns=columns, rows=rows, notes=notes)


COLUMNS = (
    Column(header="operator", holds=ColumnKind.NAMES),
    Column(header="FLOP/s", unit="FLOP/s", drop_order=2),
    Column(header="ceiling", drop_order=1),
)
ROW = Row(cells=(Name("aten::mm"), FlopRate(2.5e12), Share(0.5, 1)))


@EVERY
def test_the_sections_of_a_report(anatomy: Anatomy) -> None:
    sections = sections_of(anatomy)
    names = [section.name for section in sections]
    assert len(set(names)) == len(names)
    assert names[0] == "title"
    assert names[1 + ("disagreements" in names)] == "headline"
    assert not any(section.empty for section in sections)
    assert all(len(row.cells) == len(section.columns) for section in sections for row in section.rows)


def test_what_an_anatomy_does_not_know_has_no_section() -> None:
    assert [section.name for section in sections_of(anatomies.nothing())] == ["title", "headline", "run", "source"]
    names = [section.name for section in sections_of(anatomies.llama_on_gpu())]
    assert names[:7] == ["title", "disagreements", "headline", "run", "step", "classes", "operators"]


def test_figures_are_those_of_the_anatomy_and_not_rounded() -> None:
    anatomy = anatomies.llama_on_gpu()
    classes = next(section for section in sections_of(anatomy) if section.name == "classes")
    rows = [row for row in anatomy.classes if row.operator_class is OperatorClass.TENSOR_CONTRACTION]
    steps = anatomy.step.count
    whole_ns = sum(row.time_ns for row in anatomy.classes) / steps
    time_ns = sum(row.time_ns for row in rows) / steps
    contraction = classes.rows[0]
    assert (steps, classes.scope) == (3, "per step, mean of 3; shares of the device work")
    assert contraction.cells[:4] == (
        OperatorClass.TENSOR_CONTRACTION,
        Count(sum(row.calls for row in rows) // steps),
        Time(time_ns),
        Share(time_ns, whole_ns),
    )
    assert Flops(sum(row.flops or 0 for row in rows) / steps) in contraction.cells
    assert contraction.fraction == time_ns / whole_ns
    assert classes.rows[-1].cells[0] == "total"
    assert classes.rows[-1].summary


def test_the_top_operators_and_the_rest_are_all_of_the_time() -> None:
    anatomy = anatomies.bert_on_cpu()
    section = next(section for section in sections_of(anatomy, top=2) if section.name == "operators")
    times = [cell.ns for row in section.rows for cell in row.cells if isinstance(cell, Time)]
    assert len(times) == 3
    assert sum(time or 0 for time in times) == sum(row.time_ns for row in anatomy.operators)
    assert sentence(section.rows[-1].cells[0]) == "and 15 more"  # type: ignore[arg-type]  # a phrase


@pytest.mark.parametrize(
    ("quantity", "text"),
    [
        (Time(4_120_000), "4.12 ms"),
        (Bytes(1_340_000_000), "1.34 GB"),
        (Bytes(1_340_000_000, at_least=True), "≥1.34 GB"),
        (Bytes(None, at_least=True), "-"),
        (Flops(335e9), "335 GFLOP"),
        (FlopRate(312e12), "312 TFLOP/s"),
        (ByteRate(900e9), "900 GB/s"),
        (Rate(24.93, "samples"), "24.9 samples/s"),
        (Count(1234), "1,234"),
        (Count(8, assumed=True), "~8"),
        (Count(1, "thread"), "1 thread"),
        (Count(0, "thread"), "0 threads"),
        (Count(2000, "thread"), "2,000 threads"),
        (Ratio(2.0), "2.00"),
        (Share(38, 100), "38.0 %"),
        (Share(99.8, 100, decimals=2), "99.80 %"),
        (Share(0.612, 1, covered=0.95), "61.2 % (95 %)"),
        (Share(0.612, 1, covered=1), "61.2 %"),
        (Change(103.5, 100), "+3.5 %"),
        (Figure(1288, "MB"), "1,288 MB"),
        (Figure(12.34, "MB"), "12.3 MB"),
        (Figure(53, "MB", difference=True), "+53 MB"),
        (Figure(None, "MB"), "-"),
        (Exact(12_345_678, "calls"), "12,345,678"),
        (Exact(999_999, "ns"), "999,999"),
        (Exact(12_345_678, "ns"), "12.3 ms"),
        (Exact(None, "ns"), "unknown"),
    ],
)
def test_quantities_in_words(quantity: Quantity, text: str) -> None:
    assert units.text_of(quantity) == text


@pytest.mark.parametrize(
    ("quantity", "unit", "text"),
    [
        (FlopRate(312e12), "FLOP/s", "312 T"),
        (Flops(335e9, at_least=True), "FLOP", "≥335 G"),
        (ByteRate(900e9), "FLOP/s", "900 GB/s"),
        (Time(4_120_000), "FLOP/s", "4.12 ms"),
    ],
)
def test_a_unit_that_the_column_says_is_not_said_again(quantity: Quantity, unit: str, text: str) -> None:
    assert units.text_of(quantity, unit) == text


def test_phrases() -> None:
    text = phrase("{} takes {} of {}", Name("aten::" + "x" * 80), Share(1, 2), OperatorClass.ELEMENTWISE)
    assert sentence(text) == f"aten::{'x' * 22}…{'x' * 27} takes 50.0 % of element-wise"
    assert sentence(phrase("({})", text)) == f"({sentence(text)})"
    assert joined((None, "", Phrase(()))) == Phrase(())
    assert joined((None, "")) is None
    parts = joined(("a", None, phrase("{} b", Count(2))), by=" + ")
    assert parts is not None
    assert sentence(parts) == "a + 2 b"
    with pytest.raises(ValueError, match="1 parts"):
        phrase("{} {}", "a")


def test_facts_without_a_text_are_left_out() -> None:
    assert [fact.label for fact in facts_of(("a", None), ("b", ""), ("", "c"))] == [""]


def test_a_column_without_any_cell_is_left_out() -> None:
    empty = replace(ROW, cells=(Name("aten::mm"), None, Share(0.5, 1)))
    assert section_text(table(empty, columns=COLUMNS), 80).splitlines()[0] == "operator  ceiling"
    some = section_text(table(empty, ROW, columns=COLUMNS), 80).splitlines()
    assert [line.split() for line in some[2:]] == [["mm", "50.0", "%"], ["mm", "2.50", "T", "50.0", "%"]]


def test_a_note_about_a_column_goes_with_it() -> None:
    section = table(ROW, columns=COLUMNS, notes=(Note(text="of what", column="ceiling"), Note(text="always")))
    assert section_text(section, 80).splitlines()[-1] == "of what; always"
    narrow = section_text(section, 12).splitlines()
    assert narrow[0] == "operator"
    assert " ".join(narrow[3:]) == "always; left out at this width: FLOP/s, ceiling"


def test_shares_stand_below_each_other_whatever_they_cover() -> None:
    cells: list[Cell] = [Share(0.5, 1, covered=0.95), Share(0.5, 1), Share(None, 1, covered=0.1)]
    rows = (Row(cells=("a", cell)) for cell in cells)
    lines = section_text(table(*rows, columns=(COLUMNS[0], COLUMNS[2])), 80).splitlines()[2:]
    assert lines == ["a         50.0 % (95 %)", "a         50.0 %", "a              -"]


def test_a_name_of_another_column_is_shorter_than_that_of_the_row() -> None:
    columns = (Column(header="operator", holds=ColumnKind.NAMES), Column(header="made by", holds=ColumnKind.NAMES))
    row = Row(cells=(Name("aten::" + "x" * 60), Name("aten::" + "y" * 60)))
    wide = section_text(table(row, columns=columns), 200).splitlines()[2]
    assert wide.split() == ["aten::" + "x" * 60, f"aten::{'y' * 14}…{'y' * 19}"]
    classes = Row(cells=(OperatorClass.TENSOR_CONTRACTION, OperatorClass.TENSOR_CONTRACTION))
    assert section_text(table(classes, columns=columns), 200).splitlines()[2] == "tensor contraction  contraction"


def test_the_curve_that_has_no_room_leaves_no_blank_line() -> None:
    anatomy = anatomies.bert_on_cpu()
    text = terminal_report(anatomy, width=24)
    assert "\n\n\n" not in text


def test_the_rows_below_the_ranks_are_those_of_the_spread() -> None:
    rank = Rank(
        rank=0, world_size=2, trace=None, trace_sha256=None, device=None, steps=1, wall_ns=10, window_ns=10, busy_ns=5,
        idle_ns=5, kernel_time_ns=5, communication_ns=None, exposed_communication_ns=None, exposed_memcpy_ns=None,
    )  # fmt: skip
    spread = Spread(figure="step", min_ns=10, median_ns=15, max_ns=20, max_rank=1, max_trace=None)
    ranks = (rank, replace(rank, rank=1, wall_ns=20))
    section = next(
        section
        for section in sections_of(replace(anatomies.nothing(), ranks=ranks, spread=(spread,)))
        if section.name == "ranks"
    )
    assert [row.cells for row in section.rows] == [
        ("0", Time(10)), ("1", Time(20)), ("min", Time(10)), ("median", Time(15)), ("max", Time(20)),
    ]  # fmt: skip


def test_work_without_a_formula_that_no_operator_launched_is_in_the_list() -> None:
    anatomy = anatomies.llama_on_gpu()
    inside_ns = anatomy.ledger.device_work_ns - anatomy.ledger.outside_window_ns
    ledger = replace(anatomy.ledger, costed_ns=inside_ns - sum(uncosted(anatomy).values()) - 7, unknown_ns=0)
    assert uncosted(replace(anatomy, ledger=ledger))["without an operator"] == 7
