"""One rank's trace -> the columns of what it communicated, when it computed meanwhile, and its steps."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Final

import numpy as np
from msgspec import Struct

from opanatomy.anatomy.collectives import OTHER, dtype_of, named
from opanatomy.anatomy.intervals import Intervals, overlap, time_before, together, union, within, without
from opanatomy.anatomy.timeline import StepWindow, device_steps
from opanatomy.attribution import Attribution
from opanatomy.calls.announced import annotations_of_backends, modules_served
from opanatomy.calls.collectives import bytes_of, of_annotations, of_events
from opanatomy.calls.table import cpu_rows
from opanatomy.calls.trace_calls import TraceCalls
from opanatomy.calls.window import launched_work
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
    #: Whether the event is work of the window.
    inside: Bool
    #: When the rank computed, when it did for the steps of the window, and when it did anything.
    computing: Intervals
    computing_inside: Intervals
    busy: Intervals


def communication_of(
    trace: Trace, calls: TraceCalls, kernels: KernelTable | None, attribution: Attribution, step_window: StepWindow
) -> Exchanged:
    """What a rank's trace says of its collectives, in and around the window, and of its steps.

    A process with several devices is taken for the one that communicates most.
    """
    base = _base_ns(trace.metadata)
    if kernels is None:
        events = _of_host(trace, calls)
        bounds = step_window.steps or (step_window.window,)
        starts, ends = (np.array(column, dtype=np.int64) for column in zip(*bounds, strict=True))
    else:
        events = _of_device(trace, calls, kernels)
        _, starts, ends = device_steps(step_window, launched_work(trace, attribution))
    table = _calls(calls, events, base)
    running = union(table.start_ns - base, table.end_ns - table.start_ns)
    steps = StepSpans(
        number=np.array([*step_window.numbers, *range(len(step_window.numbers), len(starts))], dtype=np.int64),
        start_ns=starts + base, end_ns=ends + base,
        computing_ns=within(events.computing, starts, ends),
        busy_ns=within(together(events.busy, running), starts, ends),
    )  # fmt: skip
    hiding, inside = (
        Spans(start_ns=begins + base, end_ns=ends + base)
        for begins, ends in (overlap(spans, running) for spans in (events.computing, events.computing_inside))
    )
    return Exchanged(calls=table, hiding=hiding, hiding_inside=inside, steps=steps)


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
    own = others[kernels.inside[others]]
    call, arguments = of_events(trace, calls, events)
    launch = calls.work.launch[events]
    launched = at(trace.launches.start_ns, launch) if len(trace.launches.start_ns) else np.full(len(events), -1)
    start, end = kernels.start_ns[events], kernels.start_ns[events] + kernels.duration_ns[events]
    return _Events(
        start_ns=start, end_ns=end, call=call, arguments=arguments, kernel=kernels.kernel.take(events),
        phase=kernels.phase.codes[events], launched_ns=launched, inside=kernels.inside[events],
        computing=union(kernels.start_ns[others], kernels.duration_ns[others]),
        computing_inside=union(kernels.start_ns[own], kernels.duration_ns[own]),
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
        launched_ns=at(host.start_ns, operator), inside=host.in_window[rows],
        computing=computing, computing_inside=computing,
        busy=together(computing, running),
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
    return CollectiveCalls(
        collective=_names(arguments, events.kernel.take(first)),
        named=arguments.codes >= 0,
        group=_field(arguments, "group"), group_size=_numbers(arguments, "group_size"),
        sequence=_numbers(arguments, "sequence"), dtype=_field(arguments, "dtype"),
        sent_bytes=sides[:, 0], received_bytes=sides[:, 1],
        launched_ns=np.where(events.launched_ns[first] >= 0, events.launched_ns[first] + base, -1),
        launching_ns=at(calls.host.duration_ns, host), start_ns=start + base, end_ns=end + base,
        inside=inside,
        phase=Categorical(events.phase[first], tuple(str(phase) for phase in PHASES)),
        module=modules_served(calls, host),
        computed_at_start_ns=time_before(events.computing, start),
        computed_at_end_ns=time_before(events.computing, end),
    )  # fmt: skip


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
