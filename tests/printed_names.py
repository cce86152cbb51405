"""The names in the tables of a page as they are printed at some width, each with the time of its row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from opanatomy.records.reports import Report
from opanatomy.report import table, units
from opanatomy.report.formats.terminal import section_text
from opanatomy.report.section import Holds, Row, Section, Time
from opanatomy.report.sections import sections_of

#: Columns of texts that are no names: figures, formulas, sentences, steps by their numbers.
NO_NAMES = {"calls", "what changed", "formula", "why not", "evidence", "each", "ranges", "option", "", "shape"}


def printed_names(report: Report, width: int) -> Iterator[tuple[str, str, str, str]]:
    """(section, header, name as printed, time of the row) of every cell of every column of names."""
    for section in sections_of(report, top=30):
        for row, cells in zip(section.rows, _cells(section, width), strict=False):
            names = {column.header for column in section.columns if column.holds is Holds.NAMES} - NO_NAMES
            for header, text in cells:
                if header in names and text.strip():
                    yield section.name, header, text.strip(), _time(section, row)


def _time(section: Section, row: Row) -> str:
    times = zip(section.columns, row.cells, strict=True)
    return next((units.text_of(cell) for column, cell in times if column.header == "time" and type(cell) is Time), "")


def _cells(section: Section, width: int) -> list[list[tuple[str, str]]]:
    """The header and the text of each printed cell, row by row."""
    lines: list[list[tuple[str, str]]] = []
    whole = table._line

    def line(row: table.Row, columns: Any, widths: dict[int, int], *, swatches: bool) -> Any:
        lines.append([(columns[i].header, table.cut(row.cells[i], widths[i])) for i in widths])
        return whole(row, columns, widths, swatches=swatches)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "_line", line)
        section_text(section, width)
    return lines[1:]
