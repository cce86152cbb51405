"""Wall clock: steps, phases, busy and idle time, streams."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.anatomy.idle import Idle, idle_by_device
from opanatomy.anatomy.intervals import Intervals, covered, covered_by_group, exposed, union, within
from opanatomy.anatomy.launched_work import LaunchedWork
from opanatomy.anatomy.launches import launching_of
from opanatomy.anatomy.steps import MEASURED, host_steps, phase_field, step_of_rows
from opanatomy.records.anatomy import Step, StepRow
from opanatomy.records.columns import MEMCPY, Bool, CallTable, Int64, KernelTable, distinct, rows_by_value
from opanatomy.records.communication import Communication
from opanatomy.records.rank_summary import StepSpans
from opanatomy.records.taxonomy import CLASS_CODE, CLASSES, PHASE_CODE, OperatorClass, Phase
from opanatomy.records.timeline import DeviceRow, StreamRow, Timeline
from opanatomy.records.workload import Capture


class StepWindow(Struct, frozen=True, kw_only=True):
    """The window and its steps on the host clock, and the ranges of phases where the trace has them."""

    window: tuple[int, int]
    steps: tuple[tuple[int, int], ...]
    spans: tuple[tuple[int, int, Phase], ...]
    #: What the trace calls each step.
    numbers: tuple[int, ...] = ()
    #: The part of what the profiler adds to a step on the CPU that lies outside operators.
    recording_outside: float


class _Device(Struct, frozen=True):
    """One device in the window: what it did and why it was idle."""

    number: int
    #: Its events, as places among the window's.
    events: Int64
    busy: Intervals
    idle: Idle

    def parts(self, start_ns: Int64, end_ns: Int64) -> tuple[Int64, ...]:
        """Busy, outside, host-bound, stream-wait and other time in each span."""
        busy = within(self.busy, start_ns, end_ns)
        host, stream, other = (within(cause, start_ns, end_ns) for cause in self.idle.all())
        return busy, end_ns - start_ns - busy - host - stream - other, host, stream, other


class DeviceTime:
    """The window of a trace of an accelerator: its work in the order of `work`, by device, step and phase."""

    def __init__(self, step_window: StepWindow, launched: LaunchedWork, work: KernelTable) -> None:
        inside = launched.inside
        self.launched = launched
        self.host = step_window.window
        self.window = launched.window(step_window.window)
        self.start, self.duration = launched.work.start_ns[inside], launched.work.duration_ns[inside]
        self.device, self.stream = launched.work.device[inside], launched.work.stream[inside]
        self.kind = launched.work.kind[inside]
        self.copies = self.kind == MEMCPY
        self.operator_class = work.operator_class.codes[inside]
        self.phase = work.phase.codes[inside]
        self.devices = self._devices()
        self.computing = set(launched.computing_devices())
        self.step, self.step_start, self.step_end = device_steps(step_window, launched)

    def _devices(self) -> list[_Device]:
        """The devices that did work of the window."""
        idle = idle_by_device(self.launched, self.window)
        return [
            _Device(number, events, union(self.start[events], self.duration[events]), idle[number])
            for number, events in rows_by_value(self.device)
        ]

    def mean(self, values: Iterable[int]) -> int:
        """The mean over the devices that ran kernels, from one value a device."""
        pairs = zip(self.devices, values, strict=True)
        computing = [value for device, value in pairs if device.number in self.computing]
        return sum(computing) // max(len(computing), 1)

    def parts(self, start_ns: Int64, end_ns: Int64) -> list[tuple[int, ...]]:
        """For each span busy, outside, host-bound, stream-wait and other time; what rounding a mean leaves is other."""
        each = [device.parts(start_ns, end_ns) for device in self.devices]
        means: list[tuple[int, ...]] = []
        walls: list[int] = (end_ns - start_ns).tolist()
        for span, wall in enumerate(walls):
            busy, outside, host, stream = (self.mean(int(parts[kind][span]) for parts in each) for kind in range(4))
            means.append((busy, outside, host, stream, wall - busy - outside - host - stream))
        return means


def device_steps(step_window: StepWindow, launched: LaunchedWork) -> tuple[Int64, Int64, Int64]:
    """(step of each event of the window, start and end of each step): a step lasts until its device work is done."""
    work, inside = launched.work, launched.inside
    start, duration = work.start_ns[inside], work.duration_ns[inside]
    spans = step_window.steps or (launched.window(step_window.window),)
    begins = np.array([begin for begin, _ in spans], dtype=np.int64)
    ends = np.array([end for _, end in spans], dtype=np.int64)
    launched_ns = launched.launched_ns()[inside]
    when = np.where(launched_ns >= 0, launched_ns, start)
    step = np.maximum(np.searchsorted(begins, when, side="right") - 1, 0)
    np.maximum.at(ends, step, start + duration)
    ends = np.maximum.accumulate(ends)
    begins[1:] = np.maximum(begins[1:], ends[:-1])
    return step, begins, np.maximum(ends, begins)


def step_of(
    step_window: StepWindow,
    calls: CallTable,
    time: DeviceTime | None,
    capture: Capture | None,
    spans: StepSpans | None = None,
) -> Step:
    """Figures of one step: those of the middle step, and the spread of the wall times.

    With `spans` of a rank on the CPU it was busy as long as an operator or a collective ran.
    """
    if time is not None:
        return step_of_rows(_device_steps(step_window, time), capture)
    rows = host_steps(step_window.steps or (step_window.window,), step_window.numbers, step_window.spans, calls)
    if spans is not None:
        busy = np.minimum(spans.busy_ns, spans.end_ns - spans.start_ns).tolist()
        rows = tuple(
            replace(row, busy_ns=spent, framework_ns=row.wall_ns - spent) for row, spent in zip(rows, busy, strict=True)
        )
    return step_of_rows(rows, capture, recording_outside=step_window.recording_outside)


def _device_steps(step_window: StepWindow, time: DeviceTime) -> tuple[StepRow, ...]:
    count = len(time.step_start)
    work = np.bincount(time.step, minlength=count)
    spent = np.zeros((count, 3), dtype=np.int64)
    np.add.at(spent, (time.step, time.kind), time.duration)
    walls = time.step_end - time.step_start
    phases = {phase: _device_phase_times(time, time.phase == PHASE_CODE[phase]) for phase in MEASURED}
    rows = []
    for index, parts in enumerate(time.parts(time.step_start, time.step_end)):
        busy, outside, host, stream, other = parts
        kernels, copies, fills = spent[index].tolist()
        rows.append(
            StepRow(
                number=_number(step_window, index), wall_ns=int(walls[index]), busy_ns=busy, outside_ns=outside,
                host_idle_ns=host, stream_idle_ns=stream, other_idle_ns=other,
                kernel_time_ns=kernels + copies + fills, kernel_ns=kernels, memcpy_ns=copies, memset_ns=fills,
                work=int(work[index]),
                **{phase_field(phase): times[index] for phase, times in phases.items() if times},
            )
        )  # fmt: skip
    return tuple(rows)


def _number(step_window: StepWindow, index: int) -> int | None:
    return step_window.numbers[index] if index < len(step_window.numbers) else None


def timeline_of(
    step_window: StepWindow,
    calls: CallTable,
    time: DeviceTime | None,
    spans: StepSpans | None = None,
    communication: Communication | None = None,
) -> Timeline:
    """Busy and idle time of the window; what communication and copies no other work hides."""
    if time is None:
        window = step_window.window[1] - step_window.window[0]
        busy = min(int(calls.time_ns.sum() if spans is None else spans.busy_ns.sum()), window)
        whole = Timeline(window_ns=window, busy_ns=busy, idle_ns=window - busy)
        if spans is None or communication is None:
            return whole
        return replace(
            whole, communication_ns=communication.running_ns, exposed_communication_ns=communication.exposed_ns,
            computation_ns=int(spans.computing_ns.sum()),
        )  # fmt: skip
    window = time.window[1] - time.window[0]
    ((busy, outside, host, stream, other),) = time.parts(np.array(time.window[:1]), np.array(time.window[1:]))
    names = dict(time.launched.device_names)
    communicates = time.operator_class == CLASS_CODE[OperatorClass.COMMUNICATION]
    computes = ~communicates & ~time.copies
    return Timeline(
        window_ns=window, busy_ns=busy, idle_ns=host + stream + other,
        communication_ns=time.mean(_covered(time, _of(device, communicates)) for device in time.devices),
        exposed_communication_ns=time.mean(_exposed(time, device, communicates) for device in time.devices),
        exposed_memcpy_ns=time.mean(_exposed(time, device, time.copies) for device in time.devices),
        outside_ns=outside, host_idle_ns=host, stream_idle_ns=stream, other_idle_ns=other,
        inner_idle_ns=time.mean(_inner_idle(device) for device in time.devices),
        computation_ns=time.mean(_covered(time, _of(device, computes)) for device in time.devices),
        memcpy_ns=time.mean(_covered(time, _of(device, time.copies)) for device in time.devices),
        kernel_time_ns=int(time.duration.sum()),
        launching=launching_of(time.launched, time.host),
        devices=tuple(_device_row(time, device, names.get(device.number)) for device in time.devices),
        streams=_streams(time),
    )  # fmt: skip


def _of(device: _Device, marked: Bool) -> Int64:
    """The marked events of a device."""
    return device.events[marked[device.events]]


def _covered(time: DeviceTime, events: Int64) -> int:
    return covered(time.start[events], time.duration[events])


def _exposed(time: DeviceTime, device: _Device, marked: Bool) -> int:
    """The time of the marked events of a device in which none of its others ran."""
    events, others = _of(device, marked), _of(device, ~marked)
    return exposed((time.start[events], time.duration[events]), (time.start[others], time.duration[others]))


def _inner_idle(device: _Device) -> int:
    if not len(device.busy[0]):
        return 0
    first, last = device.busy[0][:1], device.busy[1][-1:]
    return sum(int(within(cause, first, last)[0]) for cause in device.idle.all())


def _device_row(time: DeviceTime, device: _Device, name: str | None) -> DeviceRow:
    parts = device.parts(np.array(time.window[:1]), np.array(time.window[1:]))
    busy, outside, host, stream, other = (int(part[0]) for part in parts)
    return DeviceRow(
        device=device.number, work=len(device.events), kernel_time_ns=int(time.duration[device.events].sum()),
        busy_ns=busy, outside_ns=outside, host_idle_ns=host, stream_idle_ns=stream, other_idle_ns=other,
        name=name,
    )  # fmt: skip


def _streams(time: DeviceTime) -> tuple[StreamRow, ...]:
    """One row a stream, by device, the busiest first."""
    devices, streams = distinct(time.device), distinct(time.stream)
    groups = distinct(devices.inverse * len(streams.values) + streams.inverse)
    spent = np.zeros((len(groups.values), len(CLASSES)), dtype=np.int64)
    np.add.at(spent, (groups.inverse, time.operator_class), time.duration)
    columns = (
        time.device[groups.first], time.stream[groups.first], np.bincount(groups.inverse),
        covered_by_group(groups.inverse, time.start, time.duration), spent,
    )  # fmt: skip
    rows = [
        StreamRow(
            device=device, stream=stream, work=work, busy_ns=busy, kernel_time_ns=sum(times),
            classes={name: ns for name, ns in zip(CLASSES, times, strict=True) if ns},
        )
        for device, stream, work, busy, times in zip(*(column.tolist() for column in columns), strict=True)
    ]  # fmt: skip
    return tuple(sorted(rows, key=lambda row: (row.device, -row.busy_ns, row.stream)))


def _device_phase_times(time: DeviceTime, in_phase: Bool) -> list[int] | None:
    """The union of the phase's work in each step, the mean over the devices; `None` where there is none in any."""
    if not in_phase.any():
        return None
    sums = [0] * len(time.step_start)
    for device in time.devices:
        if device.number in time.computing:
            events = _of(device, in_phase)
            for step, places in rows_by_value(time.step[events]):
                sums[step] += _covered(time, events[places])
    return [spent // max(len(time.computing), 1) for spent in sums]
