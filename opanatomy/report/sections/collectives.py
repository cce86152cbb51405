"""Communication by collective."""

from __future__ import annotations

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.report import units
from opanatomy.report.glossary import note
from opanatomy.report.scope import calls_a_step, per_step, steps_of
from opanatomy.report.section import ByteRate, Bytes, Column, Count, Holds, Note, Row, Section, Time


def collectives(anatomy: Anatomy) -> Section | None:
    """Calls, time, bytes and bus bandwidth of each collective."""
    if not anatomy.collectives:
        return None
    columns = (
        Column(header="collective", holds=Holds.NAMES),
        Column(header="type", expendable=5),
        Column(header="ranks", expendable=3),
        Column(header="calls", expendable=4),
        Column(header="time"),
        Column(header="bytes", expendable=1),
        Column(header="bus", expendable=2),
    )
    steps = steps_of(anatomy)
    rows = tuple(
        Row(
            cells=(
                row.collective.replace("_", " "),
                row.dtype or units.UNKNOWN,
                Count(row.group_size, assumed=row.group_assumed),
                calls_a_step(row.calls, steps),
                Time(row.time_ns / steps),
                Bytes(None if row.bytes is None else row.bytes / steps),
                ByteRate(row.bus_bytes_per_second),
            ),
            operator_class=OperatorClass.COMMUNICATION,
        )
        for row in anatomy.collectives
    )
    notes = [Note(text=note("collectives", "time"))]
    if any(row.group_assumed for row in anatomy.collectives):
        notes.append(Note(text=note("collectives", "~")))
    return Section(
        name="collectives", title="Collectives", scope=per_step(anatomy), columns=columns, rows=rows, notes=tuple(notes)
    )
