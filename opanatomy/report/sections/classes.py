"""Time, FLOPs and bytes by operator class, and time by class and phase."""

from __future__ import annotations

from collections.abc import Iterable

from opanatomy.records.anatomy import Anatomy, ClassRow
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.report.section import (
    Bytes,
    Cell,
    Column,
    Count,
    Flops,
    Holds,
    Note,
    Ratio,
    Row,
    Section,
    Share,
    Time,
    phrase,
)
from opanatomy.report.totals import Total, total

#: What a share of a ceiling with another one behind it means.
PARTLY = "(n %): the part of the time whose bound is known, nothing where that is less than half"


def classes(anatomy: Anatomy) -> Section | None:
    """Time, FLOPs and bytes by operator class, and how near to the ceiling of the device where that is known."""
    if not anatomy.classes:
        return None
    whole = total(anatomy.classes)
    bounded = whole.bound_ns is not None
    parts: list[tuple[OperatorClass | None, Total]] = [(item, total(rows)) for item, rows in by_class(anatomy)]
    parts.append((None, whole))
    rows = tuple(
        Row(
            cells=_cells(item or "total", part, whole, bounded),
            operator_class=item,
            fraction=None if item is None else part.time_ns / whole.time_ns if whole.time_ns else 0.0,
            summary=item is None,
        )
        for item, part in parts
    )
    totals = [part for _, part in parts]
    return Section(
        name="classes", title="Operator classes", columns=_columns(bounded), rows=rows, notes=_notes(anatomy, totals)
    )


def _columns(bounded: bool) -> tuple[Column, ...]:
    # The table of the roofline has the intensity again; a share of the ceiling stands with what it covers.
    last = (6, Column(header="ceiling", expendable=5)) if bounded else (3,)
    return (
        Column(header="class", holds=Holds.NAMES),
        Column(header="calls", expendable=7),
        Column(header="time"),
        Column(header="share"),
        Column(header="FLOP", unit="FLOP", expendable=1),
        Column(header="share", expendable=4),
        Column(header="bytes", expendable=2),
        Column(header="FLOP/B", expendable=last[0]),
        *last[1:],
    )


def _cells(name: OperatorClass | str, part: Total, whole: Total, bounded: bool) -> tuple[Cell, ...]:
    at_least = part.flops is not None and not part.flops_are_all
    return (
        name,
        Count(part.calls),
        Time(part.time_ns),
        Share(part.time_ns, whole.time_ns),
        Flops(part.flops, at_least=at_least),
        Share(part.flops, whole.flops if whole.flops_cover else None),
        Bytes(part.bytes, at_least=at_least),
        Ratio(part.intensity),
        *((Share(part.reached, 1, covered=part.covered),) if bounded else ()),
    )


def _notes(anatomy: Anatomy, parts: Iterable[Total]) -> tuple[Note, ...]:
    parts, notes = tuple(parts), []
    if anatomy.step.count > 1:
        notes.append(Note(text=phrase("all {} steps together", Count(anatomy.step.count))))
    if any(part.flops is not None and not part.flops_are_all for part in parts):
        notes.append(Note(text="≥ some of the time has no formula"))
    if any(part.covered not in (None, 1) for part in parts):
        notes.append(Note(text=PARTLY, column="ceiling"))
    return tuple(notes)


def phases(anatomy: Anatomy) -> Section | None:
    """Time by class and phase, where there is more than one phase."""
    present = [phase for phase in Phase if any(row.phase is phase for row in anatomy.classes)]
    if len(present) < 2:
        return None

    def cells(name: OperatorClass | str, rows: Iterable[ClassRow]) -> tuple[Cell, ...]:
        rows = tuple(rows)
        parts = [total(row for row in rows if row.phase is phase).time_ns for phase in present]
        return (name, *(Time(part or None) for part in parts))

    rows = [Row(cells=cells(item, members), operator_class=item) for item, members in by_class(anatomy)]
    rows.append(Row(cells=cells("total", anatomy.classes), summary=True))
    columns = (
        Column(header="time by phase", holds=Holds.NAMES),
        *(Column(header=phase.value, expendable=place) for place, phase in enumerate(present)),
    )
    return Section(name="phases", title="Time by class and phase", columns=columns, rows=tuple(rows))


def by_class(anatomy: Anatomy) -> list[tuple[OperatorClass, list[ClassRow]]]:
    """The rows of each class that has any, in the order of the classes."""
    groups = [(item, [row for row in anatomy.classes if row.operator_class is item]) for item in OperatorClass]
    return [(item, rows) for item, rows in groups if rows]
