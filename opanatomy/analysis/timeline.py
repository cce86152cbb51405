"""Measure wall-clock time: steps, phases, busy and idle time, streams."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.analysis.idle import LONGEST_GAPS, Idle, idle_by_device
from opanatomy.analysis.intervals import (
    Intervals,
    LaunchedWork,
    covered,
    covered_by_group,
    length,
    overlap,
    union,
    within,
    without,
)
from opanatomy.analysis.step import host_steps
from opanatomy.records.anatomy import (
    PARTS_OF_IDLE,
    DeviceFigures,
    DeviceRow,
    Gap,
    IdleRow,
    Launching,
    StepRow,
    StepSpans,
    StreamRow,
    Timeline,
)
from opanatomy.records.columns import (
    MEMCPY,
    NO_UNITS,
    Bool,
    CallTable,
    Int64,
    KernelTable,
    order_by,
    rows_by_value,
    rows_named,
    unique,
)
from opanatomy.records.communication import Communication
from opanatomy.records.runtime_calls import LAUNCHES, LAUNCHES_GRAPH, WAITS
from opanatomy.records.taxonomy import (
    CLASS_CODE,
    CLASSES,
    PHASE_CODE,
    STEP_PHASES,
    IdleCause,
    OperatorClass,
    Phase,
)

# ----- the cost of launching: calls, host time, delays, the queue, kernels too short to be worth a launch


#: Launching takes host and device a few microseconds: a kernel hardly longer than this is all overhead.
TINY_NS = 10_000


def launching_of(launched_work: LaunchedWork, within: Bool) -> Launching:
    """Sum up launches and kernels of the window over all devices; `within` marks the window's runtime calls."""
    launches, work = launched_work.launches, launched_work.work
    calls = within & _outermost(launched_work, LAUNCHES)
    waits = within & _outermost(launched_work, WAITS)
    kernel_ns = work.duration_ns[launched_work.kernels()]
    tiny = kernel_ns < TINY_NS
    # When each launch was made and its first kernel began; the largest number of launches that waited at one time.
    rows = np.flatnonzero(launched_work.kernels() & (launched_work.launch >= 0))
    rows = rows[np.argsort(work.start_ns[rows], kind="stable")]
    rows = rows[unique(launched_work.launch[rows]).first]
    launched, begun = launched_work.launched_ns()[rows], work.start_ns[rows]
    delays, late = np.maximum(begun - launched, 0), begun > launched
    change = np.repeat(np.array([-1, 1]), int(late.sum()))
    order = np.lexsort((change, np.concatenate((begun[late], launched[late]))))
    queued = np.cumsum(change[order])
    return Launching(
        calls=int(calls.sum()),
        graph_calls=int((calls & rows_named(LAUNCHES_GRAPH, launched_work.names, launches.name)).sum()),
        call_ns=int(launches.duration_ns[calls].sum()),
        synchronizing_calls=int(waits.sum()),
        synchronizing_ns=int(launches.duration_ns[waits].sum()),
        delayed=len(delays),
        delay_ns=int(delays.sum()),
        median_delay_ns=_median(delays),
        longest_queue=int(queued.max(initial=0)),
        kernels=len(kernel_ns),
        kernel_ns=int(kernel_ns.sum()),
        tiny_kernels=int(tiny.sum()),
        tiny_kernel_ns=int(kernel_ns[tiny].sum()),
        tiny_below_ns=TINY_NS,
        lost_calls=int(within[launched_work.hidden].sum()),
    )


def _median(values: Int64) -> int | None:
    """Return the median, the mean of the middle two for an even count; `np.median` imports `numpy.ma`."""
    if not len(values):
        return None
    ordered, half = np.sort(values), len(values) // 2
    return int(ordered[half]) if len(values) % 2 else int((ordered[half - 1] + ordered[half]) / 2)


def _outermost(launched_work: LaunchedWork, pattern: re.Pattern[str]) -> Bool:
    """Return the calls of a matching name without a runtime's own calls of its driver: on XPU both are recorded."""
    launches = launched_work.launches
    rows = np.flatnonzero(rows_named(pattern, launched_work.names, launches.name))
    rows = rows[order_by((launches.thread[rows], launches.start_ns[rows]), (-launches.duration_ns[rows],))]
    end = launches.start_ns[rows] + launches.duration_ns[rows]
    outermost = np.zeros(len(launches.name), dtype=bool)
    for _, indices in rows_by_value(launches.thread[rows]):
        calls, ends = rows[indices], end[indices]
        before = np.append(-1, np.maximum.accumulate(ends)[:-1])
        outermost[calls] = (launches.start_ns[calls] >= before) | (ends > before)
    return outermost


class StepWindow(Struct, frozen=True, kw_only=True):
    """The window and its steps on the host clock, and the ranges of phases if the trace has them."""

    window: tuple[int, int]
    steps: tuple[tuple[int, int], ...]
    spans: tuple[tuple[int, int, Phase], ...]
    #: The number in the trace of each step.
    numbers: tuple[int, ...] = ()
    #: Whether no step is annotated, and these end with the optimizers' updates: the trace may begin within the first.
    by_updates: bool
    #: When the host loaded data, by loader ranges.
    loading: Intervals
    #: The fraction of the profiler overhead of a step on the CPU outside operators.
    recording_outside: float

    @property
    def bounds(self) -> tuple[Int64, Int64]:
        """Return when the steps begin and end, without steps the window."""
        spans = self.steps or (self.window,)
        begins, ends = (np.array([span[edge] for span in spans], dtype=np.int64) for edge in (0, 1))
        return begins, ends

    def step_at(self, times_ns: Int64) -> Int64:
        """Return the step at each host time, each until the next begins; -1 before the first and after the last."""
        begins = np.array([begin for begin, _ in self.steps or (self.window,)], dtype=np.int64)
        step = np.searchsorted(begins, times_ns, side="right") - 1
        return np.where(times_ns <= self.window[1], step, -1)


class DeviceSteps(Struct, frozen=True, kw_only=True):
    """The steps on a device: the step of each event of the trace (-1 if none), and begin and end of each step."""

    step: Int64
    start_ns: Int64
    end_ns: Int64

    def only(self, counted: Bool) -> DeviceSteps:
        """Keep these steps, renumbered."""
        number = np.append(np.where(counted, np.cumsum(counted) - 1, -1), -1)
        return DeviceSteps(step=number[self.step], start_ns=self.start_ns[counted], end_ns=self.end_ns[counted])


class _Device(Struct, frozen=True):
    """Activity and idle causes of one device in the steps."""

    number: int
    #: Its events, as indices into the window's events.
    events: Int64
    busy: Intervals
    idle: Idle

    def parts(self, start_ns: Int64, end_ns: Int64) -> tuple[Int64, ...]:
        """Return busy, outside, unrecorded, host-bound, stream-wait and other time in each span."""
        kinds = (self.busy, self.idle.unrecorded, self.idle.host, self.idle.stream, self.idle.other)
        busy, unrecorded, host, stream, other = (within(kind, start_ns, end_ns) for kind in kinds)
        outside = end_ns - start_ns - busy - unrecorded - host - stream - other
        return busy, outside, unrecorded, host, stream, other


class StepParts(NamedTuple):
    """The parts of a step's time on its devices, in nanoseconds."""

    busy: int
    outside: int
    unrecorded: int
    host: int
    stream: int
    other: int


class DeviceTime:
    """The steps of a trace of an accelerator with their work, in the order of `work`, by device, step and phase."""

    def __init__(
        self, steps: DeviceSteps, launched: LaunchedWork, work: KernelTable, idle: dict[int, Idle] | None = None
    ) -> None:
        inside = steps.step >= 0
        self.launched, self.work, self.steps = replace(launched, inside=inside), work, steps
        self.start, self.duration = launched.work.start_ns[inside], launched.work.duration_ns[inside]
        self.device, self.stream = launched.work.device[inside], launched.work.stream[inside]
        self.kind = launched.work.kind[inside]
        self.copies = self.kind == MEMCPY
        self.operator_class = work.operator_class.codes[inside]
        self.phase = work.phase.codes[inside]
        self.step, self.step_start, self.step_end = steps.step[inside], steps.start_ns, steps.end_ns
        bounds = int(steps.start_ns.min(initial=steps.end_ns[0])), int(steps.end_ns.max())
        self._idle = idle_by_device(launched, bounds) if idle is None else idle
        self.devices = [
            _Device(number, events, union(self.start[events], self.duration[events]), self._idle[number])
            for number, events in rows_by_value(self.device)
        ]
        self.computing = set(self.launched.computing_devices())

    def only(self, counted: Bool) -> DeviceTime:
        """Keep only these steps."""
        return DeviceTime(self.steps.only(counted), self.launched, self.work, self._idle)

    def mean(self, values: Iterable[int]) -> int:
        """Return the mean over the devices that ran kernels, from one value per device."""
        pairs = zip(self.devices, values, strict=True)
        computing = [value for device, value in pairs if device.number in self.computing]
        return sum(computing) // max(len(computing), 1)

    def parts(self) -> list[StepParts]:
        """Return the parts of each step; what rounding a mean leaves is other time."""
        each = [device.parts(self.step_start, self.step_end) for device in self.devices]
        means: list[StepParts] = []
        walls: list[int] = (self.step_end - self.step_start).tolist()
        if not self.devices:  # launches whose work was not recorded
            return [StepParts(0, 0, wall, 0, 0, 0) for wall in walls]
        for span, wall in enumerate(walls):
            known = [self.mean(int(parts[kind][span]) for parts in each) for kind in range(5)]
            means.append(StepParts._make((*known, wall - sum(known))))
        return means

    def idle_causes(self) -> list[dict[IdleCause, int]]:
        """Return the idle time of each step by cause; what rounding a mean leaves goes to the longest."""
        computing = [device for device in self.devices if device.number in self.computing]
        each = [device.idle.by_cause(self.step_start, self.step_end) for device in computing]
        causes = dict.fromkeys(cause for times in each for cause in times)
        made = []
        for step, parts in enumerate(self.parts()):
            sums = {cause: sum(int(times[cause][step]) for times in each if cause in times) for cause in causes}
            spent = {cause: ns // max(len(computing), 1) for cause, ns in sums.items() if ns}
            if spent:
                longest = max(spent, key=lambda cause: spent[cause])
                spent[longest] += parts.host + parts.stream + parts.other - sum(spent.values())
            made.append(spent)
        return made

    def idle_rows(self, causes: dict[IdleCause, int]) -> tuple[IdleRow, ...]:
        """Return the idle time of all steps by cause, with the name behind most of each; `causes` has the times."""
        spans = union(self.step_start, self.step_end - self.step_start)
        found: dict[IdleCause, list[IdleRow]] = {}
        for device in (device for device in self.devices if device.number in self.computing):
            for row in device.idle.rows(spans):
                found.setdefault(row.cause, []).append(row)
        number, rows = max(len(self.computing), 1), []
        for cause, ns in causes.items():
            each = found.get(cause, [IdleRow(cause=cause, time_ns=0)])
            parts = {part: min(sum(getattr(row, part) or 0 for row in each) // number, ns) for part in PARTS_OF_IDLE}
            longest = max(each, key=lambda row: row.time_ns)
            if ns:
                rows.append(replace(longest, time_ns=ns, **parts))
        return tuple(sorted(rows, key=lambda row: (-row.time_ns, row.cause)))

    def longest_gaps(self, numbers: Sequence[int | None]) -> tuple[Gap, ...]:
        """Return the longest gaps of a mean step and device, of several devices the longest of all; steps by number."""
        spans = union(self.step_start, self.step_end - self.step_start)
        steps = len(self.step_start) * max(len(self.computing), 1)
        gaps = [
            replace(gap, count=gap.count / steps)
            for device in self.devices
            if device.number in self.computing
            for gap in device.idle.longest(spans, self.step_start, numbers)
        ]
        return longest_gaps(gaps)


def longest_gaps(gaps: Iterable[Gap]) -> tuple[Gap, ...]:
    """Put alike gaps of several devices or ranks together, and return the longest; counts add up."""
    made: list[Gap] = []
    for gap in sorted(gaps, key=lambda gap: -gap.time_ns):
        for index, row in enumerate(made):
            names = (row.cause, row.name, row.call, row.before) == (gap.cause, gap.name, gap.call, gap.before)
            if names and 2 * gap.time_ns >= row.time_ns:
                count = row.count + gap.count
                time, cause = (
                    round((getattr(row, key) * row.count + getattr(gap, key) * gap.count) / count)
                    for key in ("time_ns", "cause_ns")
                )
                made[index] = replace(row, time_ns=time, cause_ns=cause, count=count)
                break
        else:
            made.append(gap)
    return tuple(made[:LONGEST_GAPS])


def device_steps(step_window: StepWindow, launched: LaunchedWork) -> DeviceSteps:
    """Assign the work of the window to steps: a step lasts until its device work is done.

    Without steps there is one, from the first to the last device work.
    """
    work, inside = launched.work, launched.inside
    start, end = work.start_ns, work.start_ns + work.duration_ns
    if not step_window.steps:
        bounds = (start[inside].min(), end[inside].max()) if inside.any() else step_window.window
        step = np.where(inside, 0, -1)
        return DeviceSteps(step=step, start_ns=np.array(bounds[:1]), end_ns=np.array(bounds[1:]))
    begins = np.array([begin for begin, _ in step_window.steps], dtype=np.int64)
    ends = np.array([end for _, end in step_window.steps], dtype=np.int64)
    launched_ns = launched.launched_ns()
    when = np.where(launched_ns >= 0, launched_ns, start)
    step = np.where(inside, np.maximum(np.searchsorted(begins, when, side="right") - 1, 0), -1)
    np.maximum.at(ends, step[inside], end[inside])
    ends = np.maximum.accumulate(ends)
    begins[1:] = np.maximum(begins[1:], ends[:-1])
    return DeviceSteps(step=step, start_ns=begins, end_ns=np.maximum(ends, begins))


def device_step_rows(step_window: StepWindow, time: DeviceTime) -> tuple[StepRow, ...]:
    """Return one row per step of an accelerator."""
    count = len(time.step_start)
    work = np.bincount(time.step, minlength=count)
    spent = np.zeros((count, 3), dtype=np.int64)
    np.add.at(spent, (time.step, time.kind), time.duration)
    classes = np.zeros((count, len(CLASSES)), dtype=np.int64)
    np.add.at(classes, (time.step, time.operator_class), time.duration)
    communicates = time.operator_class == CLASS_CODE[OperatorClass.COMMUNICATION]
    each = [within(_alone(time, device, communicates), time.step_start, time.step_end) for device in time.devices]
    walls = time.step_end - time.step_start
    phases = {phase: _device_phase_times(time, time.phase == PHASE_CODE[phase]) for phase in STEP_PHASES}
    rows = []
    for index, (parts, causes) in enumerate(zip(time.parts(), time.idle_causes(), strict=True)):
        kernels, copies, fills = spent[index].tolist()
        rows.append(
            StepRow(
                number=step_window.numbers[index] if index < len(step_window.numbers) else None,
                wall_ns=int(walls[index]),
                busy_ns=parts.busy,
                outside_ns=parts.outside,
                host_idle_ns=parts.host,
                stream_idle_ns=parts.stream,
                other_idle_ns=parts.other,
                unrecorded_ns=parts.unrecorded,
                idle_causes=causes,
                kernel_time_ns=kernels + copies + fills,
                kernel_ns=kernels,
                memcpy_ns=copies,
                memset_ns=fills,
                work=int(work[index]),
                class_ns=_by_class(classes[index]),
                exposed_communication_ns=time.mean(int(spent[index]) for spent in each),
                phase_ns={phase: times[index] for phase, times in phases.items() if times},
            )
        )
    return tuple(rows)


def host_step_rows(step_window: StepWindow, calls: CallTable, spans: StepSpans | None) -> tuple[StepRow, ...]:
    """Return one row per step on the CPU; with a rank's `spans` it was busy while an operator or a collective ran."""
    steps = step_window.steps or (step_window.window,)
    rows = host_steps(steps, step_window.numbers, step_window.spans, calls)
    busy = [row.busy_ns or 0 for row in rows]
    if spans is not None:
        busy = np.minimum(spans.busy_ns, spans.end_ns - spans.start_ns).tolist()
    begins, ends = (np.array([step[edge] for step in steps], dtype=np.int64) for edge in (0, 1))
    loading = within(step_window.loading, begins, ends).tolist()
    step = np.searchsorted(begins, calls.start_ns, side="right") - 1
    inside = (step >= 0) & (calls.start_ns < ends[step])
    classes = np.zeros((len(rows), len(CLASSES)), dtype=np.int64)
    np.add.at(classes, (step[inside], calls.operator_class.codes[inside]), calls.time_ns[inside])
    return tuple(
        replace(
            row,
            busy_ns=spent,
            framework_ns=row.wall_ns - spent,
            loading_ns=min(loaded, row.wall_ns - spent),
            class_ns=_by_class(own),
        )
        for row, spent, loaded, own in zip(rows, busy, loading, classes, strict=True)
    )


def _by_class(times: Int64) -> dict[OperatorClass, int]:
    """Return the nonzero times by class."""
    return {item: ns for item, ns in zip(CLASSES, times.tolist(), strict=True) if ns}


def timeline_of(
    rows: Sequence[StepRow],
    step_window: StepWindow,
    time: DeviceTime | None,
    spans: StepSpans | None = None,
    communication: Communication | None = None,
) -> Timeline:
    """Return busy and idle time of the steps that count, and the communication and copies that no other work hides.

    `rows` has all steps; `time`, and on the CPU the `spans` of a rank, only those that count.
    """
    counted = np.array([row.set_aside is None for row in rows], dtype=bool)
    rows = [row for row in rows if row.set_aside is None]
    window = sum(row.wall_ns for row in rows)
    busy = _sum(row.busy_ns for row in rows)
    if time is None:
        whole = Timeline(window_ns=window, busy_ns=busy, idle_ns=window - busy)
        if spans is None or communication is None:
            return whole
        return replace(
            whole,
            communication_ns=communication.running_ns,
            exposed_communication_ns=communication.exposed_ns,
            computation_ns=int(spans.computing_ns.sum()),
        )
    host, stream, other = (
        _sum(getattr(row, f"{kind}_idle_ns") for row in rows) for kind in ("host", "stream", "other")
    )
    causes: dict[IdleCause, int] = {}
    for row in rows:
        for cause, ns in row.idle_causes.items():
            causes[cause] = causes.get(cause, 0) + ns
    names = dict(time.launched.device_names)
    communicates = time.operator_class == CLASS_CODE[OperatorClass.COMMUNICATION]
    computes = ~communicates & ~time.copies
    of_trace = not step_window.steps
    called = step_window.step_at(time.launched.launches.start_ns)
    return Timeline(
        window_ns=window,
        busy_ns=busy,
        idle_ns=host + stream + other,
        communication_ns=time.mean(_covered(time, _marked_events(device, communicates)) for device in time.devices),
        exposed_communication_ns=time.mean(
            _in_steps(time, _alone(time, device, communicates)) for device in time.devices
        ),
        exposed_memcpy_ns=time.mean(_in_steps(time, _alone(time, device, time.copies)) for device in time.devices),
        outside_ns=_sum(row.outside_ns for row in rows),
        unrecorded_ns=_sum(row.unrecorded_ns for row in rows),
        host_idle_ns=host,
        stream_idle_ns=stream,
        other_idle_ns=other,
        awaited_ns=time.mean(_in_steps(time, device.idle.awaited) for device in time.devices),
        drained_ns=time.mean(_in_steps(time, device.idle.drained) for device in time.devices),
        paced_ns=_paced_ns(time),
        around_ns=step_window.window[1] - step_window.window[0] - window if of_trace else None,
        causes=time.idle_rows(causes),
        gaps=time.longest_gaps([row.number for row in rows]),
        computation_ns=time.mean(_covered(time, _marked_events(device, computes)) for device in time.devices),
        memcpy_ns=time.mean(_covered(time, _marked_events(device, time.copies)) for device in time.devices),
        kernel_time_ns=int(time.duration.sum()),
        launching=launching_of(time.launched, (called >= 0) & counted[called]),
        devices=tuple(_device_row(time, device, names.get(device.number)) for device in time.devices),
        streams=_streams(time),
    )


def _sum(values: Iterable[int | None]) -> int:
    return sum(value or 0 for value in values)


def _marked_events(device: _Device, marked: Bool) -> Int64:
    """Return the marked events of a device."""
    return device.events[marked[device.events]]


def _covered(time: DeviceTime, events: Int64) -> int:
    """Return the time of the steps in which these events ran."""
    return _in_steps(time, union(time.start[events], time.duration[events]))


def _alone(time: DeviceTime, device: _Device, marked: Bool) -> Intervals:
    """Return when only marked events of a device ran."""
    events, others = _marked_events(device, marked), _marked_events(device, ~marked)
    hidden = union(time.start[others], time.duration[others])
    return without(union(time.start[events], time.duration[events]), hidden)


def _in_steps(time: DeviceTime, spans: Intervals) -> int:
    return int(within(spans, time.step_start, time.step_end).sum())


def _paced_ns(time: DeviceTime) -> int | None:
    """Return the busy time with more work queued or the host waiting; `None` if unknown for a device."""
    spans = union(time.step_start, time.step_end - time.step_start)
    each = []
    for device in time.devices:
        if device.idle.paced is None:
            return None
        each.append(length(overlap(overlap(device.busy, spans), device.idle.paced)))
    return time.mean(each)


def _device_row(time: DeviceTime, device: _Device, name: str | None) -> DeviceRow:
    parts = device.parts(time.step_start, time.step_end)
    busy, outside, unrecorded, host, stream, other = (int(part.sum()) for part in parts)
    return DeviceRow(
        device=device.number,
        work=len(device.events),
        kernel_time_ns=int(time.duration[device.events].sum()),
        busy_ns=busy,
        outside_ns=outside,
        host_idle_ns=host,
        stream_idle_ns=stream,
        other_idle_ns=other,
        unrecorded_ns=unrecorded,
        name=name,
    )


def _streams(time: DeviceTime) -> tuple[StreamRow, ...]:
    """Return one row per stream, by device, busiest first."""
    devices, streams = unique(time.device), unique(time.stream)
    groups = unique(devices.inverse * len(streams.values) + streams.inverse)
    spent = np.zeros((len(groups.values), len(CLASSES)), dtype=np.int64)
    np.add.at(spent, (groups.inverse, time.operator_class), time.duration)
    columns = (
        time.device[groups.first],
        time.stream[groups.first],
        np.bincount(groups.inverse),
        covered_by_group(groups.inverse, time.start, time.duration),
        spent,
    )
    rows = [
        StreamRow(
            device=device,
            stream=stream,
            work=work,
            busy_ns=busy,
            kernel_time_ns=sum(times),
            classes={name: ns for name, ns in zip(CLASSES, times, strict=True) if ns},
        )
        for device, stream, work, busy, times in zip(*(column.tolist() for column in columns), strict=True)
    ]
    return tuple(sorted(rows, key=lambda row: (row.device, -row.busy_ns, row.stream)))


def _device_phase_times(time: DeviceTime, in_phase: Bool) -> list[int] | None:
    """Return the union of a phase's work in each step, averaged over devices; `None` if no step has any."""
    if not in_phase.any():
        return None
    sums = [0] * len(time.step_start)
    for device in time.devices:
        if device.number in time.computing:
            events = _marked_events(device, in_phase)
            for step, indices in rows_by_value(time.step[events]):
                rows = events[indices]
                sums[step] += covered(time.start[rows], time.duration[rows])
    return [spent // max(len(time.computing), 1) for spent in sums]


# ----- how full the device was while it worked: utilization, SM efficiency, occupancy, tensor cores


def device_figures_of(
    ceilings: DeviceFigures, launched: LaunchedWork, table: KernelTable, steps_ns: int
) -> DeviceFigures:
    """Return `ceilings` with the achieved figures of the steps' kernels; `steps_ns` is the total step time."""
    kernels = launched.kernels()
    if not kernels.any():
        return ceilings
    efficiency, dimensioned = _sm_efficiency_ns(launched, kernels)
    available = steps_ns * len(launched.computing_devices())
    busy = sum(
        covered(launched.work.start_ns[rows], launched.work.duration_ns[rows]) for rows in _by_device(launched, kernels)
    )
    tensor_core_ns, unknown_ns = _tensor_core_ns(kernels, table)
    known = kernels & ~np.isnan(launched.work.occupancy)
    duration, percent = launched.work.duration_ns[known], launched.work.occupancy[known]
    return replace(
        ceilings,
        utilization=busy / available if available else None,
        sm_efficiency=efficiency / available if available and efficiency is not None else None,
        # As a fraction, weighted by duration.
        occupancy=float((np.clip(percent, 0, 100) * duration).sum() / duration.sum() / 100) if duration.any() else None,
        dimensioned_ns=dimensioned,
        tensor_core_ns=tensor_core_ns,
        tensor_core_unknown_ns=unknown_ns,
    )


def _by_device(launched: LaunchedWork, marked: Bool) -> Iterator[Int64]:
    """Return the marked rows of each device."""
    rows = np.flatnonzero(marked)
    return (rows[indices] for _, indices in rows_by_value(launched.work.device[rows]))


def _tensor_core_ns(kernels: Bool, table: KernelTable) -> tuple[int | None, int | None]:
    """Return (time of kernels on tensor cores, time of kernels for which that is unknown), each `None` if undefined.

    Both are undefined if no device has tensor cores, the first if no contraction kernel's name reveals it.
    """
    uses = table.tensor_cores[kernels]
    if (uses == NO_UNITS).all():
        return None, None
    product = table.kernel_class.equals(OperatorClass.TENSOR_CONTRACTION)[kernels]
    unknown = (uses == -1) & (product | table.kernel_class.equals(OperatorClass.UNKNOWN)[kernels])
    duration = table.duration_ns[kernels]
    told = (uses == 1) | (product & (uses == 0))
    known = int(duration[uses == 1].sum()) if told.any() or not unknown.any() else None
    return known, int(duration[unknown].sum())


def _sm_efficiency_ns(launched: LaunchedWork, kernels: Bool) -> tuple[float | None, int]:
    """Return (time weighted by the share of multiprocessors with a block, time of kernels that record their blocks).

    Concurrent kernels share the multiprocessors, so that together they cannot fill more than all.
    """
    blocks = launched.work.blocks_per_sm
    known = kernels & ~np.isnan(blocks)
    if not known.any():
        return None, 0
    work, shares = launched.work, np.clip(np.nan_to_num(blocks), 0, 1)
    filled = 0.0
    for rows in _by_device(launched, known):
        start, duration, share = work.start_ns[rows], work.duration_ns[rows], shares[rows]
        order = np.argsort(start, kind="stable")
        ends = np.maximum.accumulate((start + duration)[order])
        if not (start[order][1:] < ends[:-1]).any():
            filled += float((share * duration).sum())
            continue
        moments = np.concatenate((start, start + duration))
        order = np.argsort(moments, kind="stable")
        running = np.cumsum(np.concatenate((share, -share))[order])[:-1]
        filled += float((np.clip(running, 0, 1) * np.diff(moments[order])).sum())
    return filled, int(work.duration_ns[known].sum())
