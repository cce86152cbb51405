"""Single events of a trace: the longest of the steps, and what ran in an interval."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.analysis.build import MeasuredSteps
from opanatomy.analysis.communication import World, bus_factor, message_bytes
from opanatomy.analysis.host import PLACES, ThreadEvents, thread_events
from opanatomy.analysis.intervals import union, within
from opanatomy.analysis.timeline import device_steps
from opanatomy.analysis.window import launched_work, step_window_of
from opanatomy.attribution.attribute import Attribution
from opanatomy.attribution.calls import TraceCalls
from opanatomy.attribution.collectives import OTHER, collectives_of_events, dtype_of, named
from opanatomy.attribution.nesting import parents_of
from opanatomy.errors import UsageError
from opanatomy.records.anatomy import Span
from opanatomy.records.columns import (
    KERNEL,
    MEMCPY,
    Bool,
    CollectiveArguments,
    Int64,
    KernelTable,
    ProfilerEvents,
    mask_of,
    rows_named,
    unique,
)
from opanatomy.records.signature import Signature, SignatureText, Tensor, text_of
from opanatomy.records.taxonomy import PHASES, OperatorClass
from opanatomy.trace.read import Trace

COLLECTIVE, RUNTIME, OPERATOR, RANGE, PYTHON = "collective", "runtime", "operator", "range", "python"
_WORK: Final = ("kernel", "copy", "fill")
#: The number of names of each kind whose longest event is reported; operators and ranges are one kind.
_MAX_NAMES: Final = {"kernel": 3, "copy": 2, COLLECTIVE: 2, OPERATOR: 3, RUNTIME: 2}


class EventTables(Struct, frozen=True, kw_only=True):
    """The attributed events of a trace.

    `begins` is each step's begin on the host, `origins` the zero of its times, `numbers` its number.
    """

    trace: Trace
    calls: TraceCalls
    kernels: KernelTable | None
    threads: ThreadEvents
    world: World
    begins: Int64
    origins: Int64
    numbers: Sequence[int | None]

    def step_of(self, start_ns: Int64) -> list[int]:
        """Return the index of the step that the host was in."""
        indices: list[int] = np.maximum(np.searchsorted(self.begins, start_ns, side="right") - 1, 0).tolist()
        return indices

    def device_spans(self, step: Int64, rows: Int64) -> Iterator[Span]:
        """Yield the device events in these rows; `step` has the index of each event's step."""
        kernels, work = self.kernels, self.trace.work
        assert kernels is not None
        communicates = kernels.operator_class.equals(OperatorClass.COMMUNICATION)
        messages = collectives_of_events(self.trace, self.calls, rows)[1]
        for index, (row, number) in enumerate(zip(rows.tolist(), step[rows].tolist(), strict=True)):
            call = int(kernels.call[row])
            span = Span(
                what=COLLECTIVE if communicates[row] else _WORK[work.kind[row]],
                name=kernels.kernel.at(row) or "",
                operator=kernels.operator.at(row),
                signature=kernels.signature.at(row) or None,
                phase=kernels.phase.at(row),
                module=kernels.module.at(row),
                step=self.numbers[number],
                begin_ns=int(kernels.start_ns[row] - self.origins[number]),
                duration_ns=int(kernels.duration_ns[row]),
                device=int(kernels.device[row]),
                stream=int(kernels.stream[row]),
            )
            is_all = call >= 0 and np.count_nonzero(kernels.call == call) == 1
            if communicates[row]:
                span = self._with_message(span, messages.at(index), is_all=is_all or call < 0)
            elif work.kind[row] == MEMCPY and is_all:
                moved = int(self.calls.costs.written_bytes[self.calls.costs.row[call]])
                span = _with_bytes(span, moved if moved > 0 else None)
            yield span

    def _with_message(self, span: Span, message: CollectiveArguments | None, *, is_all: bool) -> Span:
        """Return the span with its message; a call of several events has no rate."""
        if message is None:
            return replace(span, group_size=self.world.size)
        name, group = named(message.collective) or named(span.name) or OTHER, message.group_size or self.world.size
        dtype = dtype_of(message.dtype)
        size = message_bytes(name, message, dtype, group)
        elements = message.in_elements if message.in_elements is not None else message.out_elements
        text = None if elements is None else text_of(Signature((Tensor((elements,), dtype),)))
        span = replace(span, signature=text, group_size=group)
        return _with_bytes(span, size, bus_factor(name, group) if is_all else None)

    def working(self, rows: Int64) -> Iterator[Span]:
        """Yield the host events in these rows, without ranges that wait for other threads."""
        host, events = self.calls.host, self.threads.rows
        for row, span in zip(rows.tolist(), self.host_spans(rows), strict=True):
            others = events[(host.thread[events] != host.thread[row])] if span.what == RANGE else events[:0]
            begin, end = host.start_ns[[row]], host.start_ns[[row]] + host.duration_ns[[row]]
            busy = within(union(host.start_ns[others], host.duration_ns[others]), begin, end)
            if 2 * busy[0] < end[0] - begin[0]:
                yield span

    def host_spans(self, rows: Int64) -> Iterator[Span]:
        """Yield the host events in these rows."""
        host = self.calls.host
        for row, number in zip(rows.tolist(), self.step_of(host.start_ns[rows]), strict=True):
            is_operator = bool(self.threads.operators[row])
            yield Span(
                what=OPERATOR if is_operator else RANGE,
                name=self.trace.names[host.name[row]],
                operator=self._around(int(host.parent[row]), int(host.name[row])),
                signature=self._signature(row),
                phase=PHASES[host.phase[row]] if host.phase[row] >= 0 else None,
                module=host.module.at(row),
                step=self.numbers[number],
                begin_ns=int(host.start_ns[row] - self.origins[number]),
                duration_ns=int(host.duration_ns[row]),
                own_ns=int(self.threads.own_ns[row]),
                thread=self._thread(int(host.thread[row])),
            )

    def runtime_spans(self, indices: Int64) -> Iterator[Span]:
        """Yield the runtime calls at these indices of `threads.calls`, with the event around each."""
        host, launches = self.calls.host, self.trace.launches
        steps = self.step_of(launches.start_ns[self.threads.calls[indices]])
        for index, number in zip(indices.tolist(), steps, strict=True):
            call, around = int(self.threads.calls[index]), int(self.threads.around[index])
            inside = around >= 0
            yield Span(
                what=RUNTIME,
                name=self.trace.names[launches.name[call]],
                operator=self._around(around),
                signature=self._signature(around) if inside else None,
                phase=PHASES[host.phase[around]] if inside and host.phase[around] >= 0 else None,
                module=host.module.at(around) if inside else None,
                step=self.numbers[number],
                begin_ns=int(launches.start_ns[call] - self.origins[number]),
                duration_ns=int(launches.duration_ns[call]),
                own_ns=int(launches.duration_ns[call]),
                thread=self._thread(int(launches.thread[call])),
            )

    def python_spans(self, rows: Int64) -> Iterator[Span]:
        """Yield the Python functions in these rows of the profiler's events."""
        events = self.trace.profiler
        for row, number in zip(rows.tolist(), self.step_of(events.start_ns[rows]), strict=True):
            yield Span(
                what=PYTHON,
                name=self.trace.names[events.name[row]],
                step=self.numbers[number],
                begin_ns=int(events.start_ns[row] - self.origins[number]),
                duration_ns=int(events.duration_ns[row]),
                thread=self._thread(int(events.thread[row])),
            )

    def _around(self, row: int, name: int = -1) -> str | None:
        """Return the innermost informative event at or above a row that has another name."""
        host, names = self.calls.host, self.trace.names
        while row >= 0 and (int(host.name[row]) == name or PLACES.match(names[host.name[row]])):
            row = int(host.parent[row])
        return names[host.name[row]] if row >= 0 else None

    def _signature(self, row: int) -> SignatureText | None:
        number = int(self.calls.signature[row])
        return (text_of(self.calls.signatures[number]) or None) if number >= 0 else None

    def _thread(self, number: int) -> str:
        return str(self.trace.threads[number][1])


def _with_bytes(span: Span, size: int | None, factor: float | None = 1.0) -> Span:
    rate = size * factor * 1e9 / span.duration_ns if size and factor and span.duration_ns else None
    return replace(span, bytes=size, bytes_per_second=rate)


def longest_spans(
    trace: Trace,
    calls: TraceCalls,
    kernels: KernelTable | None,
    threads: ThreadEvents,
    steps: MeasuredSteps,
    world: World,
) -> tuple[Span, ...]:
    """Return the longest event of each of the names with the longest ones, by kind, of the steps that count."""
    rows = [row for row in steps.rows if row.set_aside is None]
    begins = [span[0] for span, row in zip(steps.window.steps, steps.rows, strict=False) if row.set_aside is None]
    host_begins = np.array(begins or [steps.window.window[0]], dtype=np.int64)
    tables = EventTables(
        trace=trace,
        calls=calls,
        kernels=kernels,
        threads=threads,
        world=world,
        begins=host_begins,
        origins=host_begins if steps.time is None else steps.time.step_start,
        numbers=[row.number for row in rows],
    )
    made: list[Span] = []
    if steps.time is not None and kernels is not None:
        step = steps.time.steps.step
        events = np.flatnonzero(step >= 0)
        kind = np.where(kernels.operator_class.equals(OperatorClass.COMMUNICATION), -1, trace.work.kind)[events]
        for wanted, most in (
            (KERNEL, _MAX_NAMES["kernel"]),
            (MEMCPY, _MAX_NAMES["copy"]),
            (-1, _MAX_NAMES[COLLECTIVE]),
        ):
            rows = events[kind == wanted]
            made += _longest(rows, trace.work.name, kernels.duration_ns, most, partial(tables.device_spans, step))

    host, launches = calls.host, trace.launches
    events = threads.rows[~rows_named(PLACES, trace.names, host.name[threads.rows])]
    made += _longest(events, host.name, threads.own_ns, _MAX_NAMES[OPERATOR], tables.working)
    called = np.arange(len(threads.calls))
    name, duration_ns = launches.name[threads.calls], launches.duration_ns[threads.calls]
    made += _longest(called, name, duration_ns, _MAX_NAMES[RUNTIME], tables.runtime_spans)
    return tuple(made)


def _longest(
    rows: Int64, name: Int64, spent_ns: Int64, most: int, spans_of: Callable[[Int64], Iterable[Span]]
) -> Iterator[Span]:
    """Yield the longest event of each of the `most` names with the longest events; `spans_of` maps rows to spans."""
    longest = np.zeros(int(name.max(initial=-1)) + 1, dtype=np.int64)
    np.maximum.at(longest, name[rows], spent_ns[rows])
    for number in np.argsort(-longest, kind="stable").tolist():
        if not most or not longest[number]:
            return
        alike = rows[name[rows] == number]
        times = np.sort(spent_ns[alike])
        for span in spans_of(alike[np.argmax(spent_ns[alike])][None]):
            most -= 1
            yield replace(span, count=len(alike), median_ns=int(times[(len(times) - 1) // 2]))


def longest_of_ranks(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Merge the longest spans of several ranks: one per name, as many names of each kind as for one rank."""
    names: set[tuple[str, str]] = set()
    kinds: dict[str, list[Span]] = {kind: [] for kind in _MAX_NAMES}
    for span in sorted(spans, key=lambda span: -span.spent_ns):
        kind = kinds.get(OPERATOR if span.what == RANGE else span.what, [])
        if (span.what, span.name) not in names and len(kind) < _MAX_NAMES.get(span.what, _MAX_NAMES[OPERATOR]):
            names.add((span.what, span.name))
            kind.append(span)
    return tuple(span for kind in kinds.values() for span in kind)


# ----- what ran in an interval


class NameTime(Struct, frozen=True, kw_only=True):
    """The count and time of a name's events in an interval; on the host self time."""

    name: str
    count: int
    spent_ns: int


class Interval(Struct, frozen=True, kw_only=True):
    """The longest of the `count` events in an interval, ordered by begin, and all their names.

    `begin_ns` and `end_ns` are the interval's, from the beginning of step `step`.
    """

    step: int | None
    begin_ns: int
    end_ns: int
    count: int
    spans: tuple[Span, ...]
    names: tuple[NameTime, ...]


def spans_in(
    trace: Trace,
    attribution: Attribution,
    calls: TraceCalls,
    kernels: KernelTable | None,
    world: World,
    *,
    step: int | None,
    begin_ns: int,
    end_ns: int | None,
    pattern: re.Pattern[str] | None,
    most: int,
) -> Interval:
    """Return what runs in an interval of a trace, on all threads, devices and streams.

    Times count from the beginning of the step with this number, without one from the first device work (on the CPU
    from the beginning of the window); without an end it is that of the step. `pattern` is searched in names. Ranges of
    steps, phases and modules are left out unless it finds them. Raise `UsageError` for a step that the trace lacks.
    """
    window = step_window_of(trace.names, attribution, calls)
    spans = list(window.steps or (window.window,))
    if kernels is not None:
        device = device_steps(window, launched_work(trace, attribution))
        spans = list(zip(device.start_ns.tolist(), device.end_ns.tolist(), strict=True))
    if step is not None and step not in window.numbers:
        listed = ", ".join(map(str, window.numbers))
        numbers = f"choose from {listed}" if listed else "leave step out, since no step is annotated"
        raise UsageError(f"step {step}: the trace has no such step - {numbers}")
    origin, last = spans[0 if step is None else window.numbers.index(step)]
    begin, end = origin + begin_ns, last if end_ns is None else origin + end_ns
    host, launches, work = calls.host, trace.launches, trace.work
    everything = np.array([np.iinfo(np.int64).min]), np.array([np.iinfo(np.int64).max])
    threads = thread_events(trace.names, host, launches, everything, every_thread=True)
    tables = EventTables(
        trace=trace,
        calls=calls,
        kernels=kernels,
        threads=threads,
        world=world,
        begins=np.array([origin]),
        origins=np.array([origin]),
        numbers=(step,),
    )

    def running(name: Int64, start_ns: Int64, duration_ns: Int64) -> Bool:
        inside = (start_ns < end) & (start_ns + duration_ns > begin)
        return inside if pattern is None else inside & rows_named(pattern, trace.names, name)

    rows, called = threads.rows, threads.calls
    of_host = rows[running(host.name[rows], host.start_ns[rows], host.duration_ns[rows])]
    if pattern is None:
        of_host = of_host[~rows_named(PLACES, trace.names, host.name[of_host])]
    of_device = np.flatnonzero(running(work.name, work.start_ns, work.duration_ns))
    name, spent_ns = launches.name[called], launches.duration_ns[called]
    of_runtime = np.flatnonzero(running(name, launches.start_ns[called], spent_ns))
    first = np.zeros(len(work.name), dtype=np.int64)
    stack, (functions, own_ns) = trace.profiler, _functions(trace.profiler)
    inside = running(stack.name[functions], stack.start_ns[functions], stack.duration_ns[functions])
    functions, own_ns = functions[inside], own_ns[inside]
    groups = (
        (of_device, work.name[of_device], work.duration_ns[of_device], partial(tables.device_spans, first)),
        (of_host, host.name[of_host], threads.own_ns[of_host], tables.host_spans),
        (of_runtime, name[of_runtime], spent_ns[of_runtime], tables.runtime_spans),
        (functions, stack.name[functions], own_ns, tables.python_spans),
    )
    spent = np.concatenate([group[2] for group in groups])
    shown = mask_of(np.argsort(-spent, kind="stable")[:most], len(spent))
    made: list[Span] = []
    names: list[NameTime] = []
    for rows, name, spent_ns, spans_of in groups:
        here, shown = rows[shown[: len(rows)]], shown[len(rows) :]
        made += spans_of(here) if len(here) else ()
        known = unique(name)
        times = np.zeros(len(known.values), dtype=np.int64)
        np.add.at(times, known.inverse, spent_ns)
        counts = np.bincount(known.inverse, minlength=len(known.values))
        for number, count, time_ns in zip(known.values.tolist(), counts.tolist(), times.tolist(), strict=True):
            names.append(NameTime(name=trace.names[number], count=count, spent_ns=time_ns))
    return Interval(
        step=step,
        begin_ns=begin - origin,
        end_ns=end - origin,
        count=len(spent),
        spans=tuple(sorted(made, key=lambda span: (span.begin_ns, -span.duration_ns))),
        names=tuple(sorted(names, key=lambda each: -each.spent_ns)),
    )


def _functions(events: ProfilerEvents) -> tuple[Int64, Int64]:
    """Return the rows of named Python functions, and the self time of each."""
    rows = np.flatnonzero((events.thread >= 0) & (events.name >= 0))
    rows = rows[np.lexsort((-events.duration_ns[rows], events.start_ns[rows], events.thread[rows]))]
    parent = parents_of(events.thread[rows], events.start_ns[rows], events.duration_ns[rows])
    own_ns, below = events.duration_ns[rows].copy(), parent >= 0
    np.subtract.at(own_ns, parent[below], events.duration_ns[rows][below])
    return rows, own_ns
