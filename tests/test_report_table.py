"""The table layout: numbers whole, names cut in the middle, columns dropped last."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from opanatomy.report.formats.terminal import WHOLE, Column, prose, table
from opanatomy.report.formats.terminal import TableRow as Row
from opanatomy.report.section import cut, printable

COLUMNS = (
    Column(header="operator", name=True, least=10),
    Column(header="calls", drop=2),
    Column(header="time"),
    Column(header="bytes", drop=1),
)
ROWS = (
    Row(cells=("aten::native_layer_norm_backward", "49", "318 ms", "1.21 GB"), mark="red", bar=0.25),
    Row(cells=("total", "1,049", "51.6 s", "17.1 GB"), strong=True),
)


def lines(width: int, rows: tuple[Row, ...] = ROWS) -> list[str]:
    return [line.plain for line in table(COLUMNS, rows, width)[0]]


def test_what_fits_is_whole_and_aligned() -> None:
    assert lines(60) == [
        "operator                          calls    time    bytes",
        "────────────────────────────────────────────────────────",
        "aten::native_layer_norm_backward     49  318 ms  1.21 GB",
        "total                             1,049  51.6 s  17.1 GB",
    ]


def test_names_give_way_before_columns_drop() -> None:
    assert lines(40)[2] == "aten::na…ackward     49  318 ms  1.21 GB"
    assert lines(34)[2] == "aten:…ward     49  318 ms  1.21 GB"
    assert lines(33)[2] == "aten::na…ackward  318 ms  1.21 GB"


def test_the_column_with_the_highest_drop_goes_first_and_the_essential_stay() -> None:
    assert lines(24)[0].split() == ["operator", "time"]
    assert lines(26)[0].split() == ["operator", "calls", "time"]
    assert lines(18)[2] == "aten:…ward  318 ms"


def test_where_names_cannot_be_shorter_the_last_columns_go_too() -> None:
    """Never the first one; of names that are whole or not shown, no half."""
    assert lines(17)[2] == "aten…ward  318 ms"
    assert lines(16)[2] == "aten…ard  318 ms"
    assert lines(15)[2] == "aten::n…ackward"
    assert lines(5)[2] == "at…rd"
    whole = (Column(header="model", name=True, least=WHOLE), Column(header="task", name=True, least=WHOLE))
    rows = (Row(cells=("bert-base", "masked language modelling")),)
    assert table(whole, rows, 30)[0][2].plain == "bert-base"
    assert table(whole, rows, 5)[0][2].plain == "bert-base"


def test_a_narrow_column_comes_back_where_a_wide_one_left_room() -> None:
    """What was dropped first may fit where what was dropped last did not."""
    columns = (*COLUMNS[:3], Column(header="a very wide one", drop=1))
    rows = (Row(cells=("aten::mm", "49", "318 ms", "x")),)
    assert table(columns, rows, 30)[1] == {"operator", "calls", "time"}


def test_a_bar_is_drawn_where_there_is_room() -> None:
    assert lines(66)[2].endswith("1.21 GB  ██")
    assert lines(200)[2].endswith("1.21 GB  ██████")
    assert lines(65)[2].endswith("1.21 GB")


@given(width=st.integers(1, 120), name=st.text(max_size=60), number=st.integers(0, 10**15))
def test_numbers_are_never_cut(width: int, name: str, number: int) -> None:
    texts, shown = table(COLUMNS, (Row(cells=(name, "1", f"{number:,}", "2")), *ROWS), width)
    line = texts[2].plain
    times = [f"{number:,}", *(str(row.cells[2]) for row in ROWS)]
    assert ("time" in shown) or width < 10 + 2 + max(map(len, times))
    assert (f"{number:,}" in line) or "time" not in shown
    assert all(cell_len(text.plain) <= width for text in texts)
    assert line == line.rstrip()
    assert "\n" not in line


@given(name=st.text(max_size=80), width=st.integers(1, 40))
def test_a_cut_name_fits_and_keeps_both_ends(name: str, width: int) -> None:
    name = printable(name)
    short = cut(name, width)
    assert cell_len(short) <= width
    if short != name:
        head, tail = short.rsplit("…", 1) if "…" not in name else (short[:0], short[:0])
        assert name.startswith(head)
        assert name.endswith(tail)


def test_wide_characters_count_double() -> None:
    assert cut("模型の名前", 6) == "模…前"
    assert [line.plain for line in prose("模型 模型 模型", 9)] == ["模型 模型", "模型"]


def test_lines_do_not_part_a_number_from_its_unit() -> None:
    assert [line.plain for line in prose("it takes 7.80 ms in all", 14)] == ["it takes", "7.80 ms in all"]


def test_a_long_word_is_folded() -> None:
    assert [line.plain for line in prose("a " + "x" * 20, 8)] == ["a", "x" * 8, "x" * 8, "x" * 4]


@given(text=st.text(alphabet=st.characters(codec="utf-8"), max_size=200), width=st.integers(8, 60))
def test_prose_fits(text: str, width: int) -> None:
    assert all(cell_len(line.plain) <= width for line in prose(text, width))


@pytest.mark.parametrize("character", ["\x1b", "\n", "\r", "\x07", "\u202e", "\u2028", "\x9b"])
def test_what_a_terminal_acts_on_is_marked(character: str) -> None:
    assert printable(f"a{character}b") == "a\N{REPLACEMENT CHARACTER}b"
