"""Report communication by collective."""

from __future__ import annotations

from typing import Final

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.communication import CommunicationPhase, ExpectedCommunication, ModuleCommunication
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.report import units
from opanatomy.report.section import (
    ByteRate,
    Bytes,
    Cell,
    Column,
    ColumnKind,
    Count,
    Exact,
    Note,
    Phrase,
    Row,
    Section,
    Share,
    Time,
    calls_a_step,
    per_step,
    phrase,
    steps_of,
)
from opanatomy.report.terms import note


def collectives(anatomy: Anatomy) -> Section | None:
    """Return calls, time, bytes and bus bandwidth of each collective."""
    if not anatomy.collectives:
        return None
    columns = (
        Column(header="collective", holds=ColumnKind.NAMES),
        Column(header="type", drop_order=5),
        Column(header="ranks", drop_order=3),
        Column(header="calls", drop_order=4),
        Column(header="time"),
        Column(header="bytes", drop_order=1),
        Column(header="bus", drop_order=2),
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


# Communication by phase and by module: how much of it the rank's own work hides.


#: This many modules are shown, those that communicate longest.
_SHOWN: Final = 8
_TIMES: Final = (
    Column(header="calls", drop_order=3), Column(header="bytes", drop_order=2), Column(header="time"),
    Column(header="hidden", drop_order=1), Column(header="exposed"),
)  # fmt: skip


def phases(anatomy: Anatomy) -> Section | None:
    """Return the collectives of each phase: their time, its part hidden under other work and its exposed part."""
    communication = anatomy.communication
    if communication is None:
        return None
    steps = steps_of(anatomy)
    rows = [Row(cells=(str(row.phase), *_cells(row, steps))) for row in communication.phases]
    whole = (
        calls_a_step(sum(row.calls for row in communication.phases), steps),
        _bytes(sum(row.bytes for row in communication.phases), communication.phases, steps),
        Time(communication.running_ns / steps),
        Share(communication.running_ns - communication.exposed_ns, communication.running_ns),
        Time(communication.exposed_ns / steps),
    )
    summary = [Row(cells=("together", *whole), summary=True)] if len(rows) > 1 else []
    notes = [Note(text=f"waiting for other ranks included; {note('communication-phases', 'exposed')}")]
    launching = sum(row.launching_ns for row in communication.phases)
    if launching:
        notes.append(Note(text=phrase("the host took {} to launch them", Time(launching / steps))))
    if communication.expected:
        notes.append(Note(text=_theory(communication.expected)))
    return Section(
        name="communication-phases", title="Communication", scope=per_step(anatomy),
        columns=(Column(header="communication", holds=ColumnKind.NAMES), *_TIMES), rows=(*rows, *summary),
        notes=tuple(notes),
    )  # fmt: skip


def _theory(expected: tuple[ExpectedCommunication, ...]) -> Phrase:
    """Return the communication that a step needs by theory, next to the actual one."""
    known = [row for row in expected if row.measured_bytes is not None]
    whole, measured = sum(row.expected_bytes for row in known), sum(row.measured_bytes or 0 for row in known)
    wire = Bytes(sum(row.wire_bytes for row in expected))
    if not known:
        return phrase("a step must put {} on the links of each rank; the trace has no sizes of messages", wire)
    said = "as measured" if whole == measured else "measured are {}"
    sizes = (Exact(whole, "B"),) if whole == measured else (Exact(whole, "B"), Exact(measured, "B"))
    return phrase("messages of a step of a rank by theory: {}, " + said + "; {} on its links", *sizes, wire)


def modules(anatomy: Anatomy) -> Section | None:
    """Return the communication for each module: gathers, gathers again in backward, reduce-scatters."""
    communication = anatomy.communication
    if communication is None or not any(row.module for row in communication.modules):
        return None
    steps = steps_of(anatomy)
    ordered = sorted(communication.modules, key=lambda row: -row.running_ns)
    rows = tuple(
        Row(cells=(row.module or "(the model)", row.collective.replace("_", " "), str(row.phase), *_cells(row, steps)))
        for row in ordered[:_SHOWN]
    )
    left = len(ordered) - len(rows)
    notes = (Note(text=phrase("and {} more, all in -f json", Count(left))),) if left else ()
    return Section(
        name="communication-modules", title="Communication by module", scope=per_step(anatomy),
        columns=(
            Column(header="communicated for", holds=ColumnKind.NAMES),
            Column(header="collective", holds=ColumnKind.NAMES),
            Column(header="phase", holds=ColumnKind.NAMES, drop_order=4), *_TIMES,
        ),
        rows=rows, notes=notes,
    )  # fmt: skip


def _cells(row: CommunicationPhase | ModuleCommunication, steps: int) -> tuple[Cell, ...]:
    return (
        calls_a_step(row.calls, steps), _bytes(row.bytes, (row,), steps), Time(row.running_ns / steps),
        Share(row.running_ns - row.exposed_ns, row.running_ns), Time(row.exposed_ns / steps),
    )  # fmt: skip


def _bytes(total: int, rows: tuple[CommunicationPhase | ModuleCommunication, ...], steps: int) -> Bytes:
    """Return the bytes of rows: unknown if no call has a size, a lower bound if some have none."""
    calls, sized = sum(row.calls for row in rows), sum(row.sized for row in rows)
    return Bytes(total / steps if sized else None, at_least=0 < sized < calls)
