"""The observations of a step -> the table of its memory events, as those of a trace are one."""

from __future__ import annotations

import numpy as np

from opanatomy.errors import TraceError
from opanatomy.records.columns import Int64, categorical_of
from opanatomy.records.memory_columns import MemoryEvents, MemoryMarks, MemoryTable, StepCalls
from opanatomy.records.memory_observations import MARK_KINDS, StepObservations
from opanatomy.records.packed import unpacked


def table_of(step: StepObservations) -> MemoryTable:
    """The events with what encloses them, and the marks; `TraceError` where the columns do not fit each other."""
    try:
        table = MemoryTable(
            events=_events(step), call=unpacked(step.events.context), calls=_calls(step), marks=_marks(step),
            spans=tuple((span.begin_ns, span.end_ns, span.phase) for span in step.phases),
        )  # fmt: skip
    except (ValueError, IndexError) as error:
        raise TraceError(f"the trace's own record of the memory step cannot be used: {error}") from error
    _check(table, step)
    return table


def _events(step: StepObservations) -> MemoryEvents:
    columns = step.events
    size = unpacked(columns.bytes)
    nothing = np.zeros(len(size), dtype=np.int64)
    total = np.where(size == 0, -1, unpacked(columns.total_allocated) + np.cumsum(size))
    return MemoryEvents(
        time_ns=unpacked(columns.time_ns), thread=nothing, bytes=size, address=unpacked(columns.address),
        total_allocated=total, total_reserved=unpacked(columns.total_reserved), device_type=nothing, device=nothing,
    )  # fmt: skip


def _calls(step: StepObservations) -> StepCalls:
    columns = step.contexts
    return StepCalls(
        name=categorical_of(columns.operators, unpacked(columns.operator)),
        module=categorical_of(columns.modules, unpacked(columns.module)),
        parent=unpacked(columns.caller),
        casts_weight=unpacked(columns.casts_weight) != 0,
        recomputed_until_ns=unpacked(columns.recomputed_until_ns),
    )


def _marks(step: StepObservations) -> MemoryMarks:
    columns = step.marks
    return MemoryMarks(
        event=unpacked(columns.event), kind=unpacked(columns.kind), address=unpacked(columns.address),
        bytes=unpacked(columns.bytes), tensor=unpacked(columns.tensor),
    )  # fmt: skip


def _check(table: MemoryTable, step: StepObservations) -> None:
    """Raise `TraceError` where columns are of unequal lengths, or places are none."""
    calls, marks, events = table.calls, table.marks, table.events
    assert isinstance(calls, StepCalls)
    assert marks is not None
    count, rows = len(events.bytes), len(calls.parent)
    groups = (
        (events.time_ns, events.bytes, events.address, events.total_allocated, events.total_reserved, table.call),
        (calls.name.codes, calls.module.codes, calls.parent, calls.casts_weight, calls.recomputed_until_ns),
        (marks.event, marks.kind, marks.address, marks.bytes, marks.tensor),
    )
    fits = (
        all(len({len(column) for column in group}) == 1 for group in groups)
        and _all_in(table.call, -1, rows)
        and bool((calls.parent < np.arange(rows)).all())
        and _all_in(calls.parent, -1, rows)
        and _all_in(marks.event, 0, count)
        and _all_in(marks.kind, 0, len(MARK_KINDS))
        and _all_in(marks.tensor, -1, len(step.marks.tensors))
        and bool((np.diff(events.time_ns) >= 0).all())
        and float(np.abs(events.bytes.astype(np.float64)).sum()) < 2**62
    )
    if not fits:
        raise TraceError("the trace's own record of the memory step cannot be used: its columns do not fit each other")


def _all_in(places: Int64, minimum: int, end: int) -> bool:
    return bool(((places >= minimum) & (places < end)).all())
