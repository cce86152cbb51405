"""Check device work against its launches, its stream and its own names for impossible combinations.

A trace joins host and device by ids and by two clocks; wrong ids, times or records do not change any sum. The checks
find kernels of a class that their operator cannot have, work out of its stream's order, work before its launch or after
the end of a wait for it, launches without work, and work recorded twice.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from opanatomy.analysis.idle import done_ns
from opanatomy.analysis.window import launches_of_work, lost_launches
from opanatomy.attribution.calls import TraceCalls
from opanatomy.attribution.nesting import innermost_at
from opanatomy.classification.operators import classify_operator
from opanatomy.records.anatomy import CLASSES as CLASSES_OF_KERNELS
from opanatomy.records.anatomy import CLOCKS, EVENTS, LAUNCHES, ORDER, WAITS, Check, Difference, Timeline
from opanatomy.records.columns import (
    AFTER_ALL,
    KERNEL,
    MEMCPY,
    MEMSET,
    NO_LAUNCH,
    OUTSIDE,
    Bool,
    Int64,
    isin,
    mask_of,
    order_by,
    rows_by_value,
    rows_named,
    starts_work,
    take,
    unique,
)
from opanatomy.records.patterns import regex
from opanatomy.records.runtime_calls import (
    BLOCKING_COPIES,
    LAUNCHES_GRAPH,
    STREAM_WAITS,
    WAITS_FOR_DEVICE,
    WAITS_FOR_STREAM,
)
from opanatomy.records.taxonomy import CLASS_CODE, CLASSES, PHASES, OperatorClass
from opanatomy.trace.read import Trace

#: In correct traces host and device clocks differ by tens of microseconds, and by as much again for spans that begin on
#: one and end on the other.
CLOCKS_NS: Final = 100_000
#: Tolerated overlap of work on one stream; the device reads its clock at both ends.
OVERLAP_NS: Final = 10_000
#: A stream is late if this many launches found it idle with nothing to wait for, and all of them began this late.
_LATE, _LATE_NS = 5, 5 * CLOCKS_NS
#: With at least this many impossible times, all times of the stream may be wrong.
_MIN_IMPOSSIBLE: Final = 3
#: A stream's times are off by a constant if this much work, and this share of it, starts so long after another's.
_HELD, _MOSTLY, _FURTHEST_NS, _BIN_NS = 6, 0.8, 5_000_000, 40_000
#: The most rows of a check.
_MAX_ROWS: Final = 20
ROUNDED = "host and device clocks differ, but by no more than in correct traces"
CUT_OFF = "the trace ends before the device work of these launches does"
PROCESSES = "the trace contains launches from several processes, whose streams cannot be told apart"

_COPIES: Final = regex(r"Memcpy\w*Async")
_TO_HOST: Final = regex(r"DtoH|DeviceToHost")
#: Launches of kernels that may begin before the previous one ends (programmatic dependent launch).
_OVERLAPPING: Final = regex(r"LaunchKernelEx|^hip")
#: The kind of work that NVIDIA's calls start, by their names.
_STARTS: Final = (
    (regex(r"^cu\w*Launch(?!HostFunc)"), KERNEL),
    (regex(r"^cu\w*Memcpy"), MEMCPY),
    (regex(r"^cu\w*Memset"), MEMSET),
)
_COMPILED: Final = regex(r"triton_\w+_fused_")
_PROJECTED: Final = tuple(
    CLASS_CODE[one]
    for one in (OperatorClass.ELEMENTWISE, OperatorClass.STATISTICAL_NORMALIZATION, OperatorClass.DATA_MOVEMENT)
)
_CONTRACTION, _COMMUNICATION = (
    CLASS_CODE[one] for one in (OperatorClass.TENSOR_CONTRACTION, OperatorClass.COMMUNICATION)
)


def check_causality(trace: Trace, calls: TraceCalls, window: tuple[int, int]) -> tuple[Check, ...]:
    """Check a trace's device work and launches against each other; return no checks without either."""
    if not len(trace.work.name) or not len(trace.launches.name):
        return ()
    events = _Events(trace, calls)
    disordered = _disordered(events)
    checks = (
        _classes(events),
        _order(events, disordered),
        _clocks(events, disordered),
        _launches(events, window),
        _doubled(events),
    )
    return tuple(check for check in checks if check.compared or check.not_checked)


class _Events:
    """Device work with its launches; columns have one entry per device event."""

    def __init__(self, trace: Trace, calls: TraceCalls) -> None:
        self.trace, self.calls, self.names = trace, calls, trace.names
        self.work, launches = trace.work, trace.launches
        self.end_ns = self.work.start_ns + self.work.duration_ns
        self.launch = calls.work.launch
        self.launch_ns, self.launch_end_ns = (
            np.where(self.launch >= 0, column[self.launch], 0)
            for column in (launches.start_ns, launches.start_ns + launches.duration_ns)
        )
        graphs = self.launches_named(LAUNCHES_GRAPH)
        self.of_graph: Bool = (self.launch >= 0) & graphs[self.launch]
        #: Whether the event certainly has its own launch.
        self.sure: Bool = (self.launch >= 0) & ~self.of_graph & ~calls.work.ambiguous
        #: The time that counts in the figures.
        self.time_ns = np.where(calls.work.link != OUTSIDE, self.work.duration_ns, 0)
        self.waits_ns = np.sort(launches.start_ns[self.launches_named(STREAM_WAITS)])
        processes = {str(trace.threads[number][0]) for number in unique(launches.thread).values.tolist()}
        self.one_process = len(processes) == 1
        self.streams: list[tuple[str, Int64]] = []
        several = len(unique(self.work.device).values) > 1
        for _, rows in rows_by_value(_pairs(self.work.device, self.work.stream)):
            device, stream = int(self.work.device[rows[0]]), int(self.work.stream[rows[0]])
            self.streams.append((f"work on stream {stream}" + (f" of device {device}" if several else ""), rows))

    def launches_named(self, pattern: re.Pattern[str]) -> Bool:
        """Return which runtime calls have a name that contains the pattern."""
        return rows_named(pattern, self.names, self.trace.launches.name)

    def in_order(self, rows: Int64) -> Int64:
        """Return these events in the order in which they ran."""
        columns = (self.launch_ns[rows], self.end_ns[rows], self.work.start_ns[rows])
        ordered: Int64 = rows[np.lexsort(columns)]
        return ordered


def _pairs(first: Int64, second: Int64) -> Int64:
    """Number each pair of values."""
    known = unique(second)
    return unique(first).inverse * len(known.values) + known.inverse


def _ms(ns: int) -> str:
    return f"{ns / 1e6:,.3f} ms"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


# ----- classes of kernels


def _classes(events: _Events) -> Check:
    """Compare the class of each kernel's name with its launching operator's, where both are certain."""
    calls, names = events.calls, events.names
    host = calls.work.host
    operator = take(calls.operator, host) if len(calls.operator) else host
    linked = np.flatnonzero((operator >= 0) & (events.work.kind == KERNEL) & (calls.work.link != OUTSIDE))
    name = calls.host.name[operator[linked]]
    sure = np.full(len(names), -1, dtype=np.int64)
    for number in unique(name).values.tolist():
        known = classify_operator(names[number])
        library = names[number].startswith(("aten::", "c10d::", "nccl:")) or _COMPILED.match(names[number])
        if library and known is not None and known.operator_class is not None:
            sure[number] = CLASS_CODE[known.operator_class]
    kernel = events.work.name[linked]
    of_operator, of_kernel = sure[name], calls.kernels.operator_class[kernel]
    compiled_kernel, compiled_operator = (rows_named(_COMPILED, names, column) for column in (kernel, name))
    wrong = isin(of_operator, np.array(_PROJECTED)) & ((of_kernel == _CONTRACTION) | (of_kernel == _COMMUNICATION))
    wrong |= (of_operator == _CONTRACTION) & (of_kernel == _COMMUNICATION)
    wrong |= (of_operator == _COMMUNICATION) & ((of_kernel == _CONTRACTION) | compiled_kernel)
    # A kernel's name begins with its operator's: older compilers append the types.
    pairs = unique(kernel * len(names) + name)
    begins = [names[key // len(names)].startswith(names[key % len(names)]) for key in pairs.values.tolist()]
    own_kernel = np.array(begins, dtype=bool)[pairs.inverse]
    wrong |= compiled_operator & compiled_kernel & (name != kernel) & ~own_kernel
    differences = []
    keys = np.stack((name, calls.work.phase[linked], kernel), axis=1)[wrong]
    for key in sorted(set(map(tuple, keys.tolist()))):
        rows = linked[wrong][(keys == key).all(axis=1)]
        spent = int(events.time_ns[rows].sum())
        said = CLASSES[int(calls.kernels.operator_class[key[2]])] if key[2] >= 0 else OperatorClass.UNKNOWN
        own = CLASSES[int(sure[key[0]])] if sure[key[0]] >= 0 else OperatorClass.UNKNOWN
        what = f"which by its name is {said}, not {own}" if said is not own else "which is not its own kernel"
        differences.append(
            Difference(
                operator=names[key[0]],
                phase=PHASES[key[1]],
                ours=spent,
                other=0,
                time_ns=spent,
                evidence=f"{_ms(spent)} of its time is in {_short(names[key[2]])}, {what}",
            )
        )
    compared = int((of_operator >= 0).sum())
    return _check(CLASSES_OF_KERNELS, "the kernels' own names", "ns", compared, int(wrong.sum()), differences)


def _short(kernel: str) -> str:
    """Return a kernel's name without its arguments."""
    return re.split(r"[<(]", kernel.removeprefix("void "))[0] or kernel


# ----- order of streams


def _disordered(events: _Events) -> Bool:
    """Return the fewest events without which each stream ran its work in the order of its launches.

    These are the events outside a longest ordered run of launches; if two contradict only each other, both. Overlapping
    launches, on two threads, may be in either order.
    """
    disordered = np.zeros(len(events.work.name), dtype=bool)
    if not events.one_process:
        return disordered
    for _, stream in events.streams:
        rows = events.in_order(stream[events.sure[stream]])
        if not (np.diff(events.launch_ns[rows]) < 0).any():
            continue
        begins, ends = events.launch_ns[rows].tolist(), events.launch_end_ns[rows].tolist()
        kept = _longest_run(begins)
        values = [begins[index] for index in kept]
        for index in sorted(set(range(len(begins))) - set(kept)):
            by_time, by_launch = bisect_left(kept, index), bisect_left(values, begins[index])
            low, high = sorted((by_time, by_launch))
            against = [
                other
                for other in kept[low:high]
                if (begins[other] >= ends[index] if other < index else begins[index] >= ends[other])
            ]
            if against:
                disordered[rows[index]] = True
            if len(against) == 1:
                disordered[rows[against]] = True
    return disordered


def _longest_run(values: Sequence[int]) -> list[int]:
    """Return the indices of a longest run that does not decrease."""
    tails: list[int] = []
    indices: list[int] = []
    before: list[int] = []
    for index, value in enumerate(values):
        insert_at = bisect_right(tails, value)
        before.append(indices[insert_at - 1] if insert_at else -1)
        tails[insert_at : insert_at + 1] = [value]
        indices[insert_at : insert_at + 1] = [index]
    run = []
    index = indices[-1] if indices else -1
    while index >= 0:
        run.append(index)
        index = before[index]
    return run[::-1]


def _order(events: _Events, disordered: Bool) -> Check:
    """Compare each stream's execution order with the launch order."""
    if not events.one_process:
        return Check(quantity=ORDER, source="the order of the launches", unit="events", not_checked=PROCESSES)
    differences = []
    for name, stream in events.streams:
        rows = stream[disordered[stream]]
        if len(rows):
            # the first launch of a stream tells which of its work without a launch belongs to the window
            touched = stream[disordered[stream] | (events.calls.work.link[stream] == NO_LAUNCH)]
            differences.append(
                Difference(
                    operator=name,
                    ours=len(rows),
                    other=0,
                    time_ns=int(events.time_ns[touched].sum()),
                    evidence=f"{_count(len(rows), 'device event')} did not run in launch order",
                )
            )
    compared, wrong = int(events.sure.sum()), int(disordered.sum())
    return _check(ORDER, "the order of the launches", "events", compared, wrong, differences)


# ----- clocks and waiting


def _clocks(events: _Events, disordered: Bool) -> Check:
    """Compare when work ran with when it was launched and waited for."""
    known = np.flatnonzero(events.sure & ~disordered)
    early_ns = np.zeros(len(events.work.name), dtype=np.int64)
    early_ns[known] = events.launch_ns[known] - events.work.start_ns[known]
    late_ns = _after_waiting(events, disordered)
    differences = []
    wrong = np.zeros(len(early_ns), dtype=bool)
    for name, stream in events.streams:
        for by_ns, what in (
            (early_ns, "{} started up to {} before their launch"),
            (late_ns, "{} ended up to {} after the host had waited for them"),
        ):
            far = stream[by_ns[stream] > CLOCKS_NS]
            near = stream[by_ns[stream] > 1000]
            rows = far if len(far) else near
            if not len(rows):
                continue
            touched = stream if len(far) >= _MIN_IMPOSSIBLE else rows
            most, spent = int(by_ns[rows].max()), int(events.time_ns[touched].sum())
            wrong[rows] = True
            differences.append(
                Difference(
                    operator=name,
                    ours=most,
                    other=0,
                    cause=None if len(far) else ROUNDED,
                    time_ns=spent,
                    evidence=what.format(_count(len(rows), "device event"), _ms(most)),
                )
            )
        held = _held_ns(events, stream)
        if held > _LATE_NS:
            wrong[stream] = True
            differences.append(
                Difference(
                    operator=name,
                    ours=held,
                    other=0,
                    time_ns=int(events.time_ns[stream].sum()),
                    evidence=(
                        f"none of it started within {_ms(held)} of its launch, although it had nothing to wait for"
                    ),
                )
            )
    differences += _apart(events)
    return _check(CLOCKS, "launches and synchronizations", "ns", int(events.sure.sum()), int(wrong.sum()), differences)


def _after_waiting(events: _Events, disordered: Bool) -> Int64:
    """Return how long each event ends after the first return of a call that waited for it; 0 if none did."""
    late_ns = np.zeros(len(events.work.name), dtype=np.int64)
    if not events.one_process or len(unique(events.work.device).values) > 1:
        return late_ns
    launches = events.trace.launches
    ends = launches.start_ns + launches.duration_ns
    of_device = np.flatnonzero(events.launches_named(WAITS_FOR_DEVICE) & (launches.duration_ns > 0))
    of_stream = _stream_of_waits(events)
    for _, stream in events.streams:
        number = int(events.work.stream[stream[0]])
        waits = np.concatenate((of_device, np.flatnonzero(of_stream == number)))
        waits = waits[np.argsort(launches.start_ns[waits], kind="stable")]
        rows = stream[events.sure[stream] & ~disordered[stream]]
        if not len(waits) or not len(rows):
            continue
        returned = np.minimum.accumulate(ends[waits][::-1])[::-1]
        first = np.searchsorted(launches.start_ns[waits], events.launch_end_ns[rows])
        waited = first < len(waits)
        late_ns[rows[waited]] = events.end_ns[rows[waited]] - returned[first[waited]]
    blocking = events.launches_named(BLOCKING_COPIES)
    to_host = rows_named(_TO_HOST, events.names, events.work.name)
    to_host &= events.sure & blocking[np.maximum(events.launch, 0)]
    late_ns[to_host] = np.maximum(late_ns[to_host], (events.end_ns - events.launch_end_ns)[to_host])
    return late_ns


def _stream_of_waits(events: _Events) -> Int64:
    """Return the stream each call waits for: the stream of the copy that the same operator started right before.

    Other calls have -1: a trace does not say which stream they wait for.
    """
    launches, host = events.trace.launches, events.calls.host
    streams = np.full(len(launches.name), -1, dtype=np.int64)
    streams[events.launch[events.sure]] = events.work.stream[events.sure]
    waits, copies = map(events.launches_named, (WAITS_FOR_STREAM, _COPIES))
    order = np.lexsort((launches.start_ns, launches.thread))
    order = order[events.launches_named(re.compile(r"Launch|Memcpy|Memset|Synchronize"))[order]]
    before, wait = order[:-1], order[1:]
    chosen = copies[before] & waits[wait] & (launches.thread[before] == launches.thread[wait]) & (streams[before] >= 0)
    before, wait = before[chosen], wait[chosen]
    around = [innermost_at(host, launches.thread[rows], launches.start_ns[rows]) for rows in (before, wait)]
    library = np.array([name.startswith("aten::") for name in events.names], dtype=bool)
    same = (around[0] == around[1]) & (around[0] >= 0)
    same[same] = library[host.name[around[0][same]]]
    found = np.full(len(launches.name), -1, dtype=np.int64)
    found[wait[same]] = streams[before[same]]
    return found


def _held_ns(events: _Events, stream: Int64) -> int:
    """Return the least delay after launch of a stream's work that had nothing to wait for; 0 if unknown.

    Such work was launched after everything before it on its stream had ended, and not right after an event wait. With
    several streams and no recorded event wait, dependencies are unknown.
    """
    if not events.one_process or (len(events.streams) > 1 and not len(events.waits_ns)):
        return 0
    # The launches that follow a wait for an event on their thread, with no other launch in between.
    launches = events.trace.launches
    waits, starts = events.launches_named(STREAM_WAITS), starts_work(events.names, launches)
    chosen = np.flatnonzero(waits | starts)
    chosen = chosen[np.lexsort((launches.start_ns[chosen], launches.thread[chosen]))]
    behind = waits[chosen[:-1]] & (launches.thread[chosen[:-1]] == launches.thread[chosen[1:]])
    behind_waits = mask_of(chosen[1:][behind], len(waits))

    rows, before, _ = _in_turn(events, stream)
    free = (before <= events.launch_ns[rows]) & ~behind_waits[events.launch[rows]]
    if free.sum() < _LATE:
        return 0
    return int((events.work.start_ns[rows] - events.launch_end_ns[rows])[free].min())


def _in_turn(events: _Events, stream: Int64) -> tuple[Int64, Int64, Bool]:
    """Return work that follows other work of a stream, when that ended, and if an event was waited for in between."""
    rows = events.in_order(stream)
    before = np.maximum.accumulate(events.end_ns[rows])[:-1]
    previous, rows = rows[:-1], rows[1:]
    since, until = (np.searchsorted(events.waits_ns, events.launch_ns[one]) for one in (previous, rows))
    known = events.sure[rows] & events.sure[previous]
    return rows[known], before[known], (until > since)[known]


def _apart(events: _Events) -> Iterator[Difference]:
    """Yield pairs of streams with times off by the same amount in opposite directions.

    Work launched long ago on an idle stream, after an event wait, begins when work of another stream ends. If it begins
    too late by a constant time, and that stream's work too early by the same time, the times of one of the two are
    wrong.
    """
    offsets = [(name, stream, *_offset_ns(events, stream)) for name, stream in events.streams]
    for name, stream, by_ns, sure in offsets:
        for other_name, other, other_ns, other_sure in offsets:
            if by_ns > 0 > other_ns and abs(by_ns + other_ns) <= CLOCKS_NS and (sure or other_sure):
                spent = int(events.time_ns[stream].sum() + events.time_ns[other].sum())
                yield Difference(
                    operator=name,
                    ours=by_ns,
                    other=0,
                    time_ns=spent,
                    evidence=f"it starts {_ms(by_ns)} too late after {other_name}, which starts as much too early",
                )


def _offset_ns(events: _Events, stream: Int64) -> tuple[int, bool]:
    """Return how long after the end of another stream's work held work begins, and if hardly any begins at an end.

    The time is negative before the end, and 0 if it is not constant or too little work is held.
    """
    if not events.one_process or len(events.streams) < 2:
        return 0, False
    rows, before, waited = _in_turn(events, stream)
    held = waited & (events.work.start_ns[rows] - np.maximum(before, events.launch_end_ns[rows]) > 2 * OVERLAP_NS)
    start_ns = events.work.start_ns[rows][held]
    count = len(start_ns)
    ends = np.sort(events.end_ns[~mask_of(stream, len(events.end_ns))])
    if count < _HELD or not len(ends):
        return 0, False
    low, high = (np.searchsorted(ends, start_ns + by) for by in (-_FURTHEST_NS, _FURTHEST_NS))
    counts = high - low
    which = np.repeat(np.arange(count), counts)
    after_ns = start_ns[which] - ends[np.arange(len(which)) + np.repeat(low - np.cumsum(counts) + counts, counts)]
    at_end = len(unique(which[np.abs(after_ns) <= CLOCKS_NS]).values)
    most, at_ns = 0, 0
    for shift in (0, _BIN_NS // 2):
        bins = unique((after_ns + shift) // _BIN_NS)
        sizes = np.bincount(unique(bins.inverse * count + which).values // count, minlength=1)
        if len(bins.values) and sizes.max() >= most:
            largest = bins.values[sizes == sizes.max()] * _BIN_NS - shift
            nearest = int(largest[np.abs(largest).argmin()])
            at_ns = nearest if sizes.max() > most or abs(nearest) < abs(at_ns) else at_ns
            most = int(sizes.max())
    constant = most >= _MOSTLY * count and most > at_end and abs(at_ns) > CLOCKS_NS
    return at_ns if constant else 0, 2 * at_end <= count


# ----- launches and their work


def _launches(events: _Events, window: tuple[int, int]) -> Check:
    """Check that each launch has work, and of the kind that it starts."""
    launches, calls, host = events.trace.launches, events.calls, events.calls.host
    kinds = np.full(len(launches.name), -1, dtype=np.int64)
    for pattern, started in _STARTS:
        kinds[events.launches_named(pattern)] = started
    sure = np.flatnonzero(events.sure & (calls.work.link != OUTSIDE))
    kind = kinds[events.launch[sure]]
    unlike = sure[(kind >= 0) & (kind != events.work.kind[sure])]
    differences = []
    for call, chosen in rows_by_value(launches.name[events.launch[unlike]]):
        rows = unlike[chosen]
        spent = int(events.time_ns[rows].sum())
        differences.append(
            Difference(
                operator=events.names[call],
                ours=len(rows),
                other=0,
                time_ns=spent,
                evidence=f"started {_count(len(rows), 'device event')} of an unexpected kind, such as"
                f" {_short(events.names[int(events.work.name[rows[0]])])}",
            )
        )
    inside = (launches.start_ns >= window[0]) & (launches.start_ns <= window[1])
    starting = np.flatnonzero(launches_of_work(events.trace) & inside)
    lost = lost_launches(events.trace, window)
    known = _loses_kernels(events.trace.environment.cuda)
    last = int(events.launch_ns.max())
    around = take(calls.operator, innermost_at(host, launches.thread[lost], launches.start_ns[lost]))
    name, phase = take(host.name, around), take(host.phase, around)
    after = (launches.start_ns[lost] > last) & _is_cut_off(events, lost[launches.start_ns[lost] > last], window[1])
    graphs = events.launches_named(LAUNCHES_GRAPH)[lost]
    for _, alike in rows_by_value(_pairs(_pairs(name, phase), 2 * after + graphs)):
        rows, first = lost[alike], int(alike[0])
        operator, is_graph = int(name[first]), bool(graphs[first])
        # no other launch says how long a whole graph runs
        lost_ns = None if is_graph else len(rows) * _usual_ns(events, operator)
        of_time = "" if lost_ns is None else f", about {_ms(lost_ns)}"
        differences.append(
            Difference(
                operator=events.names[operator if operator >= 0 else int(launches.name[rows[0]])],
                phase=PHASES[int(phase[first])] if operator >= 0 else None,
                ours=0,
                other=len(rows),
                cause=CUT_OFF if after[first] else None,
                time_ns=lost_ns,
                evidence=f"the trace lacks the device work of {len(rows):,} {'graph ' if is_graph else ''}launch"
                f"{'' if len(rows) == 1 else 'es'}{of_time}{known}",
            )
        )
    return _check(LAUNCHES, "the launches", "launches", len(starting), len(lost) + len(unlike), differences)


def _is_cut_off(events: _Events, lost: Int64, end_ns: int) -> bool:
    """Return whether the first of these last launches of the trace may still have been running at its end.

    It had ended if the host waited for it, or if the device was idle for longer than any of its work takes.
    """
    if not len(lost):
        return False
    launches = events.trace.launches
    returned = int((launches.start_ns + launches.duration_ns)[lost].min())
    waited = done_ns(events.names, launches, events.work, np.array([returned]))[0] < AFTER_ALL
    free = max(returned, int(events.end_ns.max()))
    return not (waited and events.one_process) and end_ns - free <= int(events.work.duration_ns.max())


def _loses_kernels(cuda: str | None) -> str:
    """Return what is known about kernels lost by the trace's CUDA release (pytorch#192021); empty if nothing."""
    release = re.match(r"(\d+)\.(\d+)", cuda or "")
    if release is None or not (12, 6) <= (int(release[1]), int(release[2])) <= (13, 0):
        return ""
    return f"; CUPTI in CUDA 12.6 to 13.0 loses kernels when a profiling session starts (this trace: CUDA {cuda})"


def _usual_ns(events: _Events, operator: int) -> int:
    """Return the mean time of device work launched by operators of this name, or of all work if there is none."""
    calls = events.calls
    rows = np.flatnonzero((calls.work.host >= 0) & (events.time_ns > 0))
    around = take(calls.operator, calls.work.host[rows]) if len(calls.operator) else rows[:0]
    alike = rows[(around >= 0) & (take(calls.host.name, around) == operator)] if len(around) else rows
    chosen = alike if len(alike) else np.flatnonzero(events.time_ns > 0)
    return int(events.time_ns[chosen].mean()) if len(chosen) else 0


# ----- waits of the host and the work that they are for


def check_waits(timeline: Timeline) -> tuple[Check, ...]:
    """Return a check that fails if the host waited for work that is not in the trace; no check if it did not."""
    launching, awaited_ns = timeline.launching, timeline.awaited_ns
    if launching is None or not awaited_ns:
        return ()
    evidence = f"the host waited {_ms(awaited_ns)} for device work that is not in the trace"
    difference = Difference(operator="the device", time_ns=awaited_ns, evidence=evidence)
    return (_check(WAITS, "the host's waits", "waits", launching.synchronizing_calls, 1, [difference]),)


# ----- duplicate events


def _doubled(events: _Events) -> Check:
    """Find work that overlaps other work of its stream, or that is recorded twice."""
    work = events.work
    differences = []
    wrong = 0
    overlapping = events.launches_named(_OVERLAPPING)
    for name, stream in events.streams:
        rows = stream[work.duration_ns[stream] > 0]
        rows = rows[order_by((work.start_ns[rows],), (work.duration_ns[rows], work.name[rows], work.correlation[rows]))]
        same = np.ones(max(len(rows) - 1, 0), dtype=bool)
        for column in (work.start_ns, work.duration_ns, work.name, work.correlation):
            same &= column[rows[1:]] == column[rows[:-1]]
        twice = rows[1:][same]
        # What begins well before all earlier events of its stream have ended; nodes of graphs may.
        crossing = rows[:0]
        others = rows[events.sure[rows] & ~isin(rows, twice)]
        if len(others) > 1 and events.one_process:
            others = others[np.argsort(work.start_ns[others], kind="stable")]
            before_ns = np.maximum.accumulate(events.end_ns[others])[:-1]
            others = others[1:]
            early = before_ns - work.start_ns[others] > OVERLAP_NS
            crossing = others[early & ~overlapping[events.launch[others]]]
        for copies, what in (
            (twice, "recorded more than once"),
            (crossing, "started while the previous one was still running"),
        ):
            spent = int(events.time_ns[copies].sum())
            wrong += len(copies)
            if len(copies):
                differences.append(
                    Difference(
                        operator=name,
                        ours=len(copies),
                        other=0,
                        time_ns=spent,
                        evidence=f"{_count(len(copies), 'device event')} {what}",
                    )
                )
    return _check(EVENTS, "the streams, which run one event at a time", "events", len(work.name), wrong, differences)


def _check(
    quantity: str, source: str, unit: str, compared: int, wrong: int, differences: Sequence[Difference]
) -> Check:
    """Return the check with its longest differences, all others summed."""
    ranked = sorted(differences, key=lambda one: (one.cause is not None, -(one.time_ns or 0)))
    shown, rest = ranked[:_MAX_ROWS], ranked[_MAX_ROWS:]
    # One row for the unexplained differences, and one for each cause.
    for cause in dict.fromkeys(difference.cause for difference in rest):
        alike = [difference for difference in rest if difference.cause == cause]
        times = [one.time_ns for one in alike if one.time_ns is not None]
        shown.append(
            Difference(
                operator="others",
                cause=cause,
                time_ns=sum(times) if len(times) == len(alike) else None,
                ours=sum(one.ours or 0 for one in alike),
                other=sum(one.other or 0 for one in alike),
                evidence=f"{len(alike):,} more {'difference' if len(alike) == 1 else 'differences'} of this kind",
            )
        )
    return Check(
        quantity=quantity,
        source=source,
        unit=unit,
        compared=compared,
        equal=max(compared - wrong, 0),
        differences=tuple(shown),
    )
