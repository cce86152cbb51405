"""What the guides say next to what was measured: claim, figure, and why the two disagree where the figures say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from opanatomy.records.guides import GuideClaim, GuideRow
from opanatomy.records.techniques import Techniques
from opanatomy.report.glossary import note
from opanatomy.report.section import Column, Figure, Holds, Note, Row, Section, Tone


def what_guides_say(report: Techniques) -> Section:
    """A row for each claim that the experiment has a figure of."""
    columns = (
        Column(header="claim", holds=Holds.NAMES),
        Column(header="guide"),
        Column(header="measured"),
        Column(header="at the peak", expendable=2),
        Column(header="of", holds=Holds.NAMES, expendable=1),
    )
    rows = tuple(_row(row) for row in report.guides)
    notes = tuple(_notes(report.guides)) if rows else ()
    return Section(name="guides", title="What the guides say", columns=columns, rows=rows, notes=notes)


def _row(row: GuideRow) -> Row:
    claim, measurement = row.claim, row.measurement
    unit = _short(claim)
    return Row(
        cells=(
            claim.claim,
            _said(claim),
            Figure(measurement.measured, unit),
            None if measurement.at_peak is None else Figure(measurement.at_peak, unit),
            measurement.technique,
        )
    )


def _short(claim: GuideClaim) -> str:
    return "B" if claim.unit.startswith("bytes") else claim.unit


def _said(claim: GuideClaim) -> str:
    """The claimed figure as it is said: one number, or from one to another."""
    said = f"{claim.figure:g}" if claim.figure_to is None else f"{claim.figure:g} to {claim.figure_to:g}"
    return f"{said} {_short(claim)}"


def _notes(rows: Sequence[GuideRow]) -> Iterator[Note]:
    if any(row.measurement.parts for row in rows):
        yield Note(text=note("guides", "B", "at the peak"))
    for row in rows:
        measurement = row.measurement
        parts = [f"{part.replace('_', ' ')} {size:.2f}" for part, size in measurement.parts.items()]
        said = [text for text in (", ".join(parts) if len(parts) > 1 else None, measurement.reason) if text]
        if said:
            yield Note(text=f"{row.claim.claim}: {'; '.join(said)}", tone=Tone.REMARK)
    for source in dict.fromkeys(row.claim.source for row in rows):
        names = "; ".join(row.claim.claim for row in rows if row.claim.source == source)
        yield Note(text=f"{source}: {names}", tone=Tone.REMARK)
