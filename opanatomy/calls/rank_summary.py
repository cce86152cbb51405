"""One rank's trace -> the columns of what it communicated, when it computed meanwhile, and its steps."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Final

import numpy as np
from msgspec import Struct

from opanatomy.anatomy.collectives import OTHER, dtype_of, named
from opanatomy.anatomy.intervals import Intervals, overlap, together, union, within, without
from opanatomy.anatomy.launches import SYNCHRONIZE
from opanatomy.anatomy.timeline import DeviceTime, StepWindow
from opanatomy.calls.announced import annotations_of_backends, modules_served
from opanatomy.calls.collectives import bytes_of, of_annotations, of_events
from opanatomy.calls.table import cpu_rows
from opanatomy.calls.trace_calls import TraceCalls
from opanatomy.records.columns import (
    Bool,
    Categorical,
    CollectiveArguments,
    Int64,
    KernelTable,
    at,
    distinct,
)
from opanatomy.records.rank_summary import CollectiveCalls, Exchanged, Spans, StepSpans
from opanatomy.records.taxonomy import CLASS_CODE, PHASES, OperatorClass
from opanatomy.trace import Trace

_COMMUNICATION: Final = CLASS_CODE[OperatorClass.COMMUNICATION]
_NO_STEPS: Final = np.zeros(0, dtype=np.int64)
#: A synchronization that takes no longer found the device done.
_WAITED_NS: Final = 50_000


class _Events(Struct, frozen=True, kw_only=True):
    """The device events of collectives (on the CPU the annotations of the backend), and what else the device did."""

    start_ns: Int64
    end_ns: Int64
    #: The host row of the collective that an event is of, -1 where none is recorded; rows of one call are one call.
    call: Int64
    arguments: Categorical[CollectiveArguments]
    #: The name of the event itself.
    kernel: Categorical[str]
    phase: Int64
    launched_ns: Int64
    #: When a host call returned that waited for the device, in order; `None` where every call may have waited.
    synchronized_ns: Int64 | None
    #: Whether the event is work of the window.
    inside: Bool
    #: When the rank computed for the steps of the window, when it did anything for them, and when it did anything.
    computing: Intervals
    busy_inside: Intervals
    busy: Intervals


def communication_of(
    trace: Trace,
    calls: TraceCalls,
    kernels: KernelTable | None,
    step_window: StepWindow,
    time: DeviceTime | None = None,
    counted: Bool | None = None,
) -> Exchanged:
    """What a rank's trace says of its collectives, in and around the window, and of its steps.

    On an accelerator `time` has the steps, on the CPU all of the window or those `counted`.

    A process with several devices is taken for the one that communicates most.
    """
    base = _base_ns(trace.metadata)
    if kernels is None:
        events = _of_host(trace, calls)
        bounds = step_window.steps or (step_window.window,)
        starts, ends = (np.array(column, dtype=np.int64) for column in zip(*bounds, strict=True))
    else:
        events = _of_device(trace, calls, kernels)
        starts, ends = (time.step_start, time.step_end) if time is not None else (_NO_STEPS, _NO_STEPS)
    numbers = np.array(step_window.numbers or range(len(step_window.steps or (step_window.window,))), dtype=np.int64)
    began = np.array([begin + base for begin, _ in step_window.steps] or [-1], dtype=np.int64)
    if counted is not None:
        numbers, began = numbers[counted], began[counted]
        starts, ends = (starts, ends) if kernels is not None else (starts[counted], ends[counted])
    table = _calls(calls, events, base)
    running = union(table.start_ns - base, table.end_ns - table.start_ns)
    own = np.flatnonzero(table.inside)
    running_inside = union(table.start_ns[own] - base, (table.end_ns - table.start_ns)[own])
    busy = within(together(events.busy, running), starts, ends)
    steps = StepSpans(
        number=numbers, began_ns=began,
        start_ns=starts + base, end_ns=ends + base,
        computing_ns=within(events.computing, starts, ends),
        outside_ns=busy - within(together(events.busy_inside, running_inside), starts, ends), busy_ns=busy,
    )  # fmt: skip
    begins, finishes = overlap(events.computing, running)
    return Exchanged(calls=table, hiding=Spans(start_ns=begins + base, end_ns=finishes + base), steps=steps)


def _base_ns(metadata: Mapping[str, object]) -> int:
    """What the times of a trace count from, in nanoseconds since 1970."""
    base = metadata.get("baseTimeNanoseconds")
    return base if type(base) is int and 0 <= base < 1 << 62 else 0


# --------------------------------------------------------------------------------------------------------- the device


def _of_device(trace: Trace, calls: TraceCalls, kernels: KernelTable) -> _Events:
    communicates = kernels.operator_class.codes == _COMMUNICATION
    device = _device(kernels, communicates)
    events = np.flatnonzero(communicates & device)
    others = np.flatnonzero(~communicates & device)
    inside = np.flatnonzero(device & kernels.inside)
    own = others[kernels.inside[others]]
    call, arguments = of_events(trace, calls, events)
    launch = calls.work.launch[events]
    launched = at(trace.launches.start_ns, launch) if len(trace.launches.start_ns) else np.full(len(events), -1)
    start, end = kernels.start_ns[events], kernels.start_ns[events] + kernels.duration_ns[events]
    return _Events(
        start_ns=start, end_ns=end, call=call, arguments=arguments, kernel=kernels.kernel.take(events),
        phase=kernels.phase.codes[events], launched_ns=launched, inside=kernels.inside[events],
        synchronized_ns=_synchronized(trace),
        computing=union(kernels.start_ns[own], kernels.duration_ns[own]),
        busy_inside=union(kernels.start_ns[inside], kernels.duration_ns[inside]),
        busy=union(kernels.start_ns[device], kernels.duration_ns[device]),
    )  # fmt: skip


def _device(kernels: KernelTable, communicates: Bool) -> Bool:
    """The events of the device that communicates most; where none does, that works most."""
    rows = np.flatnonzero(communicates) if communicates.any() else np.arange(len(kernels.device))
    devices = distinct(kernels.device[rows])
    if not len(devices.values):
        return np.zeros(len(kernels.device), dtype=bool)
    spent = np.zeros(len(devices.values), dtype=np.int64)
    np.add.at(spent, devices.inverse, kernels.duration_ns[rows])
    chosen: Bool = kernels.device == devices.values[int(np.argmax(spent))]
    return chosen


def _synchronized(trace: Trace) -> Int64:
    """When each host call returned that waited for the device, in order."""
    launches = trace.launches
    names = distinct(launches.name)
    waits = np.array([bool(SYNCHRONIZE.search(trace.names[name])) for name in names.values.tolist()], dtype=bool)
    rows = np.flatnonzero(waits[names.inverse] & (launches.duration_ns > _WAITED_NS))
    return np.sort(launches.start_ns[rows] + launches.duration_ns[rows])


# ----------------------------------------------------------------------------------------------------------- the host


def _of_host(trace: Trace, calls: TraceCalls) -> _Events:
    host = calls.host
    rows = annotations_of_backends(calls, np.ones(len(host.name), dtype=bool))
    operator, arguments = of_annotations(trace, calls, rows)
    start, end = host.start_ns[rows], host.start_ns[rows] + host.duration_ns[rows]
    computing = _computing_on_host(calls)
    running = union(start, end - start)
    return _Events(
        start_ns=start, end_ns=end, call=np.where(operator >= 0, operator, rows), arguments=arguments,
        kernel=Categorical(host.name[rows], calls.names),
        phase=np.where(operator >= 0, at(host.phase, operator), host.phase[rows]),
        launched_ns=at(host.start_ns, operator), inside=host.in_window[rows], synchronized_ns=None,
        computing=computing, busy_inside=computing, busy=together(computing, running),
    )  # fmt: skip


def _computing_on_host(calls: TraceCalls) -> Intervals:
    """When an operator that is no collective ran on any thread, and no collective inside of it."""
    host = calls.host
    rows = cpu_rows(calls, within=False)
    codes = calls.operators.operator_class[host.name[calls.owner[rows]]]
    collectives, computing = rows[codes == _COMMUNICATION], rows[codes != _COMMUNICATION]
    parts = []
    for thread in distinct(host.thread[computing]).values.tolist():
        on_thread = computing[host.thread[computing] == thread]
        inside = collectives[host.thread[collectives] == thread]
        parts.append(
            without(
                union(host.start_ns[on_thread], host.duration_ns[on_thread]),
                union(host.start_ns[inside], host.duration_ns[inside]),
            )
        )
    none = np.zeros(0, dtype=np.int64)
    return reduce(together, parts, (none, none))


# ---------------------------------------------------------------------------------------------------------- the table


def _calls(calls: TraceCalls, events: _Events, base: int) -> CollectiveCalls:
    """One row a call: the events of one host row together, those without one each by itself."""
    count = len(events.start_ns)
    groups = distinct(np.where(events.call >= 0, events.call, -2 - np.arange(count)))
    start = np.full(len(groups.values), np.iinfo(np.int64).max)
    np.minimum.at(start, groups.inverse, events.start_ns)
    end = np.full(len(groups.values), np.iinfo(np.int64).min)
    np.maximum.at(end, groups.inverse, events.end_ns)
    inside = np.zeros(len(groups.values), dtype=bool)
    inside[groups.inverse[events.inside]] = True
    order = np.lexsort((end, start))
    first, start, end, inside = groups.first[order], start[order], end[order], inside[order]
    arguments = events.arguments.take(first)
    host = events.call[first]
    sides = bytes_of(arguments)
    launched = events.launched_ns[first]
    returned = launched if events.synchronized_ns is None else _last_before(events.synchronized_ns, launched)
    synchronized = np.where((launched >= 0) & (returned >= 0), returned + base, -1)
    return CollectiveCalls(
        collective=_names(arguments, events.kernel.take(first)),
        named=arguments.codes >= 0,
        group=_field(arguments, "group"), group_size=_numbers(arguments, "group_size"),
        sequence=_numbers(arguments, "sequence"), dtype=_field(arguments, "dtype"),
        sent_bytes=sides[:, 0], received_bytes=sides[:, 1],
        launched_ns=np.where(launched >= 0, launched + base, -1), synchronized_ns=synchronized,
        launching_ns=at(calls.host.duration_ns, host), start_ns=start + base, end_ns=end + base,
        inside=inside,
        phase=Categorical(events.phase[first], tuple(str(phase) for phase in PHASES)),
        module=modules_served(calls, host),
    )  # fmt: skip


def _last_before(moments: Int64, bounds: Int64) -> Int64:
    """The last of the moments, which are in order, at or before each bound, -1 for none."""
    return np.append(moments, -1)[np.searchsorted(moments, bounds, side="right") - 1]


def _names(arguments: Categorical[CollectiveArguments], kernel: Categorical[str]) -> Categorical[str]:
    """The collective of each row as it is called everywhere: by what the host says, else by the kernel's name."""
    said = [named(known.collective) or OTHER for known in arguments.values]
    shown = [named(name) or OTHER for name in kernel.values]
    values = tuple(dict.fromkeys((*said, *shown)))
    places = {name: place for place, name in enumerate(values)}
    by_host = np.array([places[name] for name in said] + [-1], dtype=np.int64)[arguments.codes]
    by_kernel = np.array([places[name] for name in shown] + [-1], dtype=np.int64)[kernel.codes]
    return Categorical(np.where(by_host >= 0, by_host, by_kernel), values)


def _field(arguments: Categorical[CollectiveArguments], name: str) -> Categorical[str]:
    texts = [dtype_of(known.dtype) if name == "dtype" else getattr(known, name) for known in arguments.values]
    values = tuple(dict.fromkeys(text for text in texts if text))
    codes = [values.index(text) if text else -1 for text in texts]
    return Categorical(np.array([*codes, -1], dtype=np.int64)[arguments.codes], values)


def _numbers(arguments: Categorical[CollectiveArguments], name: str) -> Int64:
    numbers = [getattr(known, name) for known in arguments.values]
    column = np.array([-1 if number is None else number for number in numbers] + [-1], dtype=np.int64)
    values: Int64 = column[arguments.codes]
    return values
