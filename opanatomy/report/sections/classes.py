"""Time, FLOPs and bytes by operator class, and time by class and phase."""

from __future__ import annotations

from typing import Final

from opanatomy.records.anatomy import Anatomy, ClassRow
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.report.glossary import note
from opanatomy.report.scope import calls_a_step, shares_of_work, steps_of
from opanatomy.report.section import (
    Cell,
    Column,
    Holds,
    Note,
    Ratio,
    Row,
    Section,
    Share,
    Time,
)
from opanatomy.report.totals import Total, amounts, total

#: Of the busy time: so much more work than that is said to overlap.
_OVERLAP: Final = 0.005
#: What a share of a ceiling with another one after it means.
PARTLY = note("classes", "(n %)")


def classes(anatomy: Anatomy) -> Section | None:
    """Time by operator class and phase, FLOPs and bytes, and how near to the ceiling of the device they are."""
    if not anatomy.classes:
        return None
    steps = steps_of(anatomy)
    whole = total(anatomy.classes).a_step(steps)
    present = [phase for phase in Phase if any(row.phase is phase for row in anatomy.classes)]
    shown = present if len(present) > 1 else []
    parts: list[tuple[OperatorClass | None, list[ClassRow]]] = [*by_class(anatomy), (None, list(anatomy.classes))]
    rows = tuple(_row(item, members, whole, shown, steps) for item, members in parts)
    return Section(
        name="classes", title="Operator classes", scope=shares_of_work(anatomy),
        columns=_columns(whole.bound_ns is not None, shown), rows=rows,
        notes=(*_notes([total(members) for _, members in parts]), *_at_once(anatomy)),
    )  # fmt: skip


def _columns(bounded: bool, phases: list[Phase]) -> tuple[Column, ...]:
    return (
        Column(header="class", holds=Holds.NAMES),
        Column(header="calls", expendable=12),
        Column(header="time"),
        Column(header="share"),
        *(Column(header=phase.value, expendable=place) for place, phase in enumerate(phases, start=1)),
        Column(header="FLOP", unit="FLOP", expendable=7),
        Column(header="FLOP share", expendable=10),
        Column(header="bytes", expendable=9),
        Column(header="FLOP/B", expendable=11),
        *((Column(header="ceiling", expendable=8),) if bounded else ()),
    )


def _row(item: OperatorClass | None, members: list[ClassRow], whole: Total, phases: list[Phase], steps: int) -> Row:
    part = total(members).a_step(steps)
    flops, moved = amounts(part)
    times = (sum(row.time_ns for row in members if row.phase is phase) / steps for phase in phases)
    cells: tuple[Cell, ...] = (
        item or "total",
        calls_a_step(part.calls, steps),
        Time(part.time_ns),
        Share(part.time_ns, whole.time_ns),
        *(Time(ns or None) for ns in times),
        flops,
        Share(flops.flops, whole.flops if whole.flops_cover else None),
        moved,
        Ratio(part.intensity if part.flops_cover else None),
        *((Share(part.reached, 1, covered=part.covered),) if whole.bound_ns is not None else ()),
    )
    fraction = None if item is None else part.time_ns / whole.time_ns if whole.time_ns else 0.0
    return Row(cells=cells, operator_class=item, fraction=fraction, summary=item is None)


def _notes(parts: list[Total]) -> tuple[Note, ...]:
    notes = []
    covered = [part for part in parts if part.flops_cover]
    if any(not part.flops_are_all for part in covered):
        notes.append(Note(text=note("classes", "≥"), column="FLOP"))
    if covered and any(part.flops is not None and not part.flops_cover for part in parts):
        text = "- most of it has none" if notes else "- most of the time has no formula"
        notes.append(Note(text=text, column="FLOP"))
    if any(part.reached is not None and part.covered != 1 for part in parts):
        notes.append(Note(text=PARTLY, column="ceiling"))
    return tuple(notes)


def _at_once(anatomy: Anatomy) -> tuple[Note, ...]:
    """That the sum of all work is longer than the device was busy, where it is."""
    busy_ns = anatomy.timeline.busy_ns
    overlaps = anatomy.environment.device_kind != "cpu" and busy_ns > 0
    if not overlaps or total(anatomy.classes).time_ns < (1 + _OVERLAP) * busy_ns:
        return ()
    return (Note(text="work that ran at once counts in each class"),)


def by_class(anatomy: Anatomy) -> list[tuple[OperatorClass, list[ClassRow]]]:
    """The rows of each class that has any, in the order of the classes."""
    groups = [(item, [row for row in anatomy.classes if row.operator_class is item]) for item in OperatorClass]
    return [(item, rows) for item, rows in groups if rows]
