"""Suggest techniques for the run: those that would save most, by prediction, each with its option."""

from __future__ import annotations

from collections.abc import Iterator

from opanatomy.records.anatomy import Anatomy, Suggestions
from opanatomy.report.section import Bytes, Change, Column, ColumnKind, Note, Row, Section
from opanatomy.report.terms import note


def suggestions(anatomy: Anatomy) -> Section | None:
    """Return a row for each suggestion; the peaks are of all allocations of the step."""
    suggested = anatomy.suggestions
    if suggested is None or not (suggested.best or suggested.not_reached):
        return None
    columns = (
        Column(header="add to the command", holds=ColumnKind.FORMULAS),
        Column(header="technique", holds=ColumnKind.NAMES, drop_order=5),
        Column(header="peak then"),
        Column(header="d.peak", drop_order=1),
        Column(header="d.step", drop_order=2),
        Column(header="from", drop_order=4),
        Column(header="to", drop_order=3),
    )
    rows = tuple(
        Row(
            cells=(
                suggestion.option,
                suggestion.technique,
                Bytes(suggestion.peak_bytes),
                Change(suggestion.peak_bytes, suggestion.now_bytes),
                *(
                    None if ratio is None else Change(ratio, 1.0)
                    for ratio in (suggestion.time_ratio, suggestion.low_ratio, suggestion.high_ratio)
                ),
            )
        )
        for suggestion in suggested.best
    )
    return Section(
        name="suggestions", title="What would save most", columns=columns, rows=rows, notes=tuple(_notes(suggested))
    )


def _notes(suggested: Suggestions) -> Iterator[Note]:
    yield Note(text=note("suggestions", "suggestions"))
    if suggested.not_reached:
        names = ", ".join(suggested.not_reached)
        yield Note(text=f"no time left to predict {names}: give --suggest more SECONDS")
