"""Suggest techniques for the run: those that would save most, by prediction, each with its option."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from opanatomy.records.anatomy import Anatomy, Suggestion, Suggestions
from opanatomy.report.section import (
    Bytes,
    Cell,
    Change,
    Column,
    ColumnKind,
    Columns,
    Note,
    Row,
    Section,
    cells_of,
)
from opanatomy.report.terms import note


def suggestions(anatomy: Anatomy) -> Section | None:
    """Return a row for each suggestion; the peaks are of all allocations of the step."""
    suggested = anatomy.suggestions
    if suggested is None or not (suggested.best or suggested.not_reached):
        return None

    def ratio(field: str) -> Callable[[Suggestion], Cell]:
        return lambda row: None if getattr(row, field) is None else Change(getattr(row, field), 1.0)

    columns: Columns[Suggestion] = {
        Column(header="add to the command", holds=ColumnKind.FORMULAS): lambda row: row.option,
        Column(header="technique", holds=ColumnKind.NAMES, drop_order=5): lambda row: row.technique,
        Column(header="peak then"): lambda row: Bytes(row.peak_bytes),
        Column(header="d.peak", drop_order=1): lambda row: Change(row.peak_bytes, row.now_bytes),
        Column(header="d.step", drop_order=2): ratio("time_ratio"),
        Column(header="from", drop_order=4): ratio("low_ratio"),
        Column(header="to", drop_order=3): ratio("high_ratio"),
    }
    rows = tuple(Row(cells=cells_of(columns, row)) for row in suggested.best)
    return Section(title="What would save most", columns=tuple(columns), rows=rows, notes=tuple(_notes(suggested)))


def _notes(suggested: Suggestions) -> Iterator[Note]:
    yield Note(text=note("suggestions", "suggestions"))
    if suggested.not_reached:
        names = ", ".join(suggested.not_reached)
        yield Note(text=f"no time left to predict {names}: give --suggest more SECONDS")
