"""Report communication by collective."""

from __future__ import annotations

from opanatomy.analysis.costs import steps_of
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.communication import (
    Collective,
    CommunicationPhase,
    ModuleCommunication,
)
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.report import units
from opanatomy.report.section import (
    ByteRate,
    Bytes,
    Column,
    ColumnKind,
    Columns,
    Count,
    Exact,
    Note,
    Page,
    Row,
    Section,
    Share,
    Time,
    calls_of,
    cells_of,
    phrase,
    scope_per_step,
)
from opanatomy.report.terms import note


def collectives(anatomy: Anatomy) -> Section | None:
    """Return calls, time, bytes and bus bandwidth of each collective."""
    if not anatomy.collectives:
        return None
    steps = steps_of(anatomy)
    columns: Columns[Collective] = {
        Column(header="collective", holds=ColumnKind.NAMES, least=10): lambda row: row.collective.replace("_", " "),
        Column(header="type", drop_order=5): lambda row: row.dtype or units.UNKNOWN,
        Column(header="ranks", drop_order=3): lambda row: Count(row.group_size, assumed=row.group_assumed),
        Column(header="calls", drop_order=4): lambda row: calls_of(row.calls / steps),
        Column(header="time"): lambda row: Time(row.time_ns / steps),
        Column(header="bytes", drop_order=1): lambda row: Bytes(None if row.bytes is None else row.bytes / steps),
        Column(header="bus", drop_order=2): lambda row: ByteRate(row.bus_bytes_per_second),
    }
    rows = tuple(
        Row(cells=cells_of(columns, row), operator_class=OperatorClass.COMMUNICATION) for row in anatomy.collectives
    )
    notes = [Note(text=note("collectives", "time"))]
    if any(row.group_assumed for row in anatomy.collectives):
        notes.append(Note(text=note("collectives", "~")))
    return Section(
        title="Collectives", scope=scope_per_step(anatomy), columns=tuple(columns), rows=rows, notes=tuple(notes)
    )


# Communication by phase and by module: how much of it the rank's own work hides.


def _times(steps: int) -> Columns[CommunicationPhase | ModuleCommunication]:
    """Return the columns of both tables; bytes are unknown if no call has a size, lower bounds if some have none."""
    return {
        Column(header="calls", drop_order=3): lambda row: calls_of(row.calls / steps),
        Column(header="bytes", drop_order=2): lambda row: Bytes(
            row.bytes / steps if row.sized else None, at_least=0 < row.sized < row.calls
        ),
        Column(header="time"): lambda row: Time(row.running_ns / steps),
        Column(header="hidden", drop_order=1): lambda row: Share(row.running_ns - row.exposed_ns, row.running_ns),
        Column(header="exposed"): lambda row: Time(row.exposed_ns / steps),
    }


def phases(anatomy: Anatomy) -> Section | None:
    """Return the collectives of each phase: total time, overlapped part and exposed part."""
    communication = anatomy.communication
    if communication is None:
        return None
    steps = steps_of(anatomy)
    times, parts = _times(steps), communication.phases
    rows = [Row(cells={"communication": str(row.phase)} | cells_of(times, row)) for row in parts]
    launching = sum(row.launching_ns for row in parts)
    if len(parts) > 1:
        whole = CommunicationPhase(
            phase=Phase.OTHER,
            calls=sum(row.calls for row in parts),
            sized=sum(row.sized for row in parts),
            bytes=sum(row.bytes for row in parts),
            launching_ns=launching,
            running_ns=communication.running_ns,
            exposed_ns=communication.exposed_ns,
        )
        rows.append(Row(cells={"communication": "together"} | cells_of(times, whole), summary=True))
    notes = [Note(text=f"time includes waiting for other ranks; {note('communication-phases', 'exposed')}")]
    if launching:
        notes.append(Note(text=phrase("the host takes {} to launch the collectives", Time(launching / steps))))
    if communication.expected:
        # The communication that a step needs by theory, next to the actual one.
        known = [row for row in communication.expected if row.measured_bytes is not None]
        needed, measured = sum(row.expected_bytes for row in known), sum(row.measured_bytes or 0 for row in known)
        wire = Bytes(sum(row.wire_bytes for row in communication.expected))
        if known:
            said = "{} in theory and as measured" if needed == measured else "{} in theory, {} measured"
            sizes = (Exact(needed, "B"),) if needed == measured else (Exact(needed, "B"), Exact(measured, "B"))
            text = phrase("messages per step and rank: " + said + ", {} over the rank's links", *sizes, wire)
        else:
            text = phrase(
                "in theory, a step transfers {} over each rank's links (the trace has no message sizes)", wire
            )
        notes.append(Note(text=text))
    return Section(
        title="Communication",
        scope=scope_per_step(anatomy),
        rows=tuple(rows),
        notes=tuple(notes),
        columns=(Column(header="communication", holds=ColumnKind.NAMES, least=13), *times),
    )


def modules(anatomy: Anatomy, page: Page) -> Section | None:
    """Return the communication for each module: gathers, gathers again in backward, reduce-scatters."""
    communication = anatomy.communication
    if communication is None or not any(row.module for row in communication.modules):
        return None
    columns: Columns[ModuleCommunication] = {
        Column(header="communicated for", holds=ColumnKind.NAMES, least=14): lambda row: row.module or "(the model)",
        Column(header="collective", holds=ColumnKind.NAMES): lambda row: row.collective.replace("_", " "),
        Column(header="phase", holds=ColumnKind.NAMES, least=9, drop_order=4): lambda row: str(row.phase),
        **_times(steps_of(anatomy)),
    }
    ordered = sorted(communication.modules, key=lambda row: -row.running_ns)
    rows = tuple(Row(cells=cells_of(columns, row)) for row in ordered[: page.top])
    left = len(ordered) - len(rows)
    notes = (Note(text=phrase("and {} more (use -f json for all)", Count(left))),) if left else ()
    return Section(
        title="Communication by module", scope=scope_per_step(anatomy), columns=tuple(columns), rows=rows, notes=notes
    )
