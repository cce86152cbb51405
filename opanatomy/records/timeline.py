"""The wall clock of a step: busy, idle, launches, streams; the ledger of device work."""

from __future__ import annotations

from typing import Final

from opanatomy.records.record import Record
from opanatomy.records.taxonomy import IdleCause, OperatorClass

#: The name of what the profiler records of Python where it is told to record the stack.
PYTHON_STACK: Final = "Python's stack"


class IdleRow(Record, frozen=True, kw_only=True):
    """The idle time of one cause: in how many gaps it lies, and what most of it was: `events` of that name, `name_ns`
    of the time.

    cause: `profiler`, `compilation`, `input`, `allocator`, `slow_launch`, `synchronization`, `collective`,
        `operators`, `python` (the host between operators), `stream`, `device` or `unknown`.
    name: the call, operator or range of the host.
    """

    cause: IdleCause
    time_ns: int
    gaps: int = 0
    name: str | None = None
    name_ns: int | None = None
    events: int | None = None


class DeviceRow(Record, frozen=True, kw_only=True):
    """The steps on one device; the terms are those of `Timeline`. `name` is what the trace calls the device."""

    device: int
    work: int
    kernel_time_ns: int
    busy_ns: int
    outside_ns: int
    host_idle_ns: int
    stream_idle_ns: int
    other_idle_ns: int
    unrecorded_ns: int = 0
    name: str | None = None


class StreamRow(Record, frozen=True, kw_only=True):
    """The work of the window on one stream: device events, their union and sum, and the sum of each class."""

    device: int
    stream: int
    work: int
    busy_ns: int
    kernel_time_ns: int
    classes: dict[OperatorClass, int]


class Launching(Record, frozen=True, kw_only=True):
    """How the host launched the kernels of the window, over all steps.

    A launch starts one kernel, or all kernels of a graph. Its delay is the time from the start of the call on the host
    to the start of its first kernel; a launch waits in the queue for as long, so `delay_ns` over the window is the
    mean length of the queue. Only launches that both sides of the trace record have a delay (`delayed`).
    """

    #: Calls that launch kernels or graphs, and the host time inside them.
    calls: int
    graph_calls: int
    call_ns: int
    #: Calls in which the host waits for the device.
    synchronizing_calls: int
    synchronizing_ns: int
    delayed: int
    delay_ns: int
    median_delay_ns: int | None
    longest_queue: int
    #: Kernels alone, copies and fills apart; the tiny ones are shorter than `tiny_below_ns`.
    kernels: int
    kernel_ns: int
    tiny_kernels: int
    tiny_kernel_ns: int
    tiny_below_ns: int


class Timeline(Record, frozen=True, kw_only=True):
    """Wall clock of the steps that count; without annotated steps from the first to the last device work.

    window = busy + outside + unrecorded + idle, and idle = host_idle + stream_idle + other_idle = the sum of `causes`,
    exactly. `busy_ns` is the union of the steps' device work; `outside_ns` the time in which the device only did work
    of other steps; `unrecorded_ns` the time from a launch whose work is not in the trace to the next work that is.
    Idle time is host-bound where what comes next was launched after the device fell idle, a stream wait where
    it was already launched and another stream worked last, other in all other cases. `drained_ns` is the part of it
    in gaps that began while the host waited for the device: nothing was queued. Communication and memcpy are
    exposed where no other work of the device runs; `computation_ns` is the union of the work that is neither. With
    several devices these are means over the devices that ran kernels; `kernel_time_ns`, `launching`, `devices` and
    `streams` are of all. `around_ns` is the time of a trace without steps before and after all device work.
    """

    window_ns: int
    busy_ns: int
    idle_ns: int
    communication_ns: int | None = None
    exposed_communication_ns: int | None = None
    exposed_memcpy_ns: int | None = None
    outside_ns: int | None = None
    host_idle_ns: int | None = None
    stream_idle_ns: int | None = None
    other_idle_ns: int | None = None
    unrecorded_ns: int | None = None
    drained_ns: int | None = None
    around_ns: int | None = None
    causes: tuple[IdleRow, ...] = ()
    computation_ns: int | None = None
    memcpy_ns: int | None = None
    kernel_time_ns: int | None = None
    launching: Launching | None = None
    devices: tuple[DeviceRow, ...] = ()
    streams: tuple[StreamRow, ...] = ()


class LinkedTime(Record, frozen=True, kw_only=True):
    """Device work by how it was traced back to what launched it."""

    linked_ns: int
    graph_launched_ns: int = 0
    no_launch_record_ns: int = 0
    outside_window_ns: int = 0
    set_aside_ns: int = 0


class Ledger(Record, frozen=True, kw_only=True):
    """Where each nanosecond of device work went.

    linked + graph_launched + no_launch_record + outside_window = device_work, exactly; `set_aside` is the part of
    outside_window that was launched in steps that do not count. `classed`, `costed` and
    `unknown` are shares of device_work - outside_window; classed + unknown is that difference, exactly.

    device_work_ns: all device work of the trace.
    linked_ns: linked to the operator call that launched it.
    graph_launched_ns: launched by a graph.
    no_launch_record_ns: without a record of its launch.
    outside_window_ns: launched before the steps that count, after them or between them.
    set_aside_ns: of it, launched in steps that are set aside.
    classed_ns: of a known class.
    costed_ns: of calls whose FLOPs and bytes are known.
    unknown_ns: of no known class.
    """

    device_work_ns: int
    linked_ns: int
    graph_launched_ns: int
    no_launch_record_ns: int
    outside_window_ns: int
    classed_ns: int
    costed_ns: int
    unknown_ns: int
    set_aside_ns: int = 0
