"""What the run could be given: the techniques that would save most, by prediction, each with its option."""

from __future__ import annotations

from opanatomy.records.anatomy import Anatomy
from opanatomy.report.section import Bytes, Change, Column, Holds, Note, Row, Section


def suggestions(anatomy: Anatomy) -> Section | None:
    """A row for each suggestion; the peaks are of all allocations of the step."""
    if not anatomy.suggestions:
        return None
    columns = (
        Column(header="would save", holds=Holds.NAMES),
        Column(header="add to the command", holds=Holds.NAMES),
        Column(header="peak then"),
        Column(header="d.peak", expendable=1),
        Column(header="d.step", expendable=2),
        Column(header="from", expendable=4),
        Column(header="to", expendable=3),
    )
    rows = tuple(
        Row(
            cells=(
                suggestion.technique,
                suggestion.option,
                Bytes(suggestion.peak_bytes),
                Change(suggestion.peak_bytes, suggestion.now_bytes),
                *(
                    None if ratio is None else Change(ratio, 1.0)
                    for ratio in (suggestion.time_ratio, suggestion.low_ratio, suggestion.high_ratio)
                ),
            )
        )
        for suggestion in anatomy.suggestions
    )
    note = "predicted, not run: `opanatomy techniques` measures them"
    return Section(
        name="suggestions", title="What would save most", columns=columns, rows=rows, notes=(Note(text=note),)
    )
