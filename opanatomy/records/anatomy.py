"""Define the report (`Anatomy`) and the rows of its tables."""

from __future__ import annotations

from datetime import datetime, timezone
from functools import cached_property
from typing import Final, Literal, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from opanatomy.records.codec import SCHEMA, Id, Record
from opanatomy.records.columns import Bool, Categorical, Int64
from opanatomy.records.communication import Collective, Communication, Rank, Spread, Waiting
from opanatomy.records.estimate import Estimated
from opanatomy.records.lanes import Lanes
from opanatomy.records.memory import Memory
from opanatomy.records.patterns import regex
from opanatomy.records.run import DeviceState, RunClock, RunTrends
from opanatomy.records.signature import SignatureText
from opanatomy.records.table import Table
from opanatomy.records.taxonomy import (
    FLOAT32,
    PEAK_OF_COMPUTE_TYPE,
    TF32,
    THREE_TF32,
    ExcessCause,
    IdleCause,
    OperatorClass,
    Phase,
)
from opanatomy.records.work import (
    Breakdown,
    ClassRow,
    KernelRow,
    LineRow,
    ModuleRow,
    OperatorRow,
    Ratio,
    StepKind,
    TheoryRow,
    breakdown_of,
    class_rows,
    kernel_rows,
    line_rows,
    module_rows,
    operator_rows,
    ratios_of,
)
from opanatomy.records.workload import Compilation, Environment, MachineLoad, TextFigures, Workload

# --- timeline and ledger ---


#: The report's name of the Python frames that the profiler records under `with_stack`.
PYTHON_STACK: Final = "Python's stack"


class IdleRow(Record, frozen=True, kw_only=True):
    """Idle time with one cause: the number of gaps, and the host event that fills most of it.

    cause: `profiler`, `compilation`, `input`, `allocator`, `slow_launch`, `synchronization`, `collective`, `operators`,
        `python` (the host between operators), `stream`, `device` or `unknown`.
    short_ns: the part in gaps shorter than 1 ms; `drained_ns` is the part of `short_ns` in gaps that began while the
        host waited for the device. `updating_ns` is the part of `time_ns` during an optimizer's update, `exchanging_ns`
        that in gaps directly before or after a collective. All four are `None` in older reports.
    name: the call, operator or range on the host that fills most of the time; it has `events` events, which fill
        `name_ns`.
    """

    cause: IdleCause
    time_ns: int
    gaps: int = 0
    short_ns: int | None = None
    drained_ns: int | None = None
    updating_ns: int | None = None
    exchanging_ns: int | None = None
    name: str | None = None
    name_ns: int | None = None
    events: int | None = None


#: The fields of a row that have a part of its idle time.
PARTS_OF_IDLE: Final = ("short_ns", "drained_ns", "updating_ns", "exchanging_ns")


class Gap(Record, frozen=True, kw_only=True):
    """A period in which a device was idle, or several with the same cause, the same next work and a similar length.

    The longest gap of a row is at most twice as long as the shortest.

    time_ns: the mean length of a gap.
    count: the mean number of gaps per step.
    cause: the cause that fills most of the gap; `cause_ns` is the part of the mean length that it fills.
    name: the innermost operator or range that covers at least half of the longest gap; `None` if none does.
    call: the runtime call that takes at least half of the longest gap.
    before: the kernel, copy or fill that ended the gap; `after` is the one that ran before the gap. Both are `None` at
        the ends of a step.
    launch_ns: the part of the longest gap spent launching the work that ended it, if that took 20 us or more.
    drained: whether the longest gap began while the host waited for the device.
    launch_known: whether the trace records the launch of the work that ended the gap; otherwise the host's activity is
        unknown.
    begin_ns: when the longest gap began, from the start of its step; `step` is the number of that step.
    """

    time_ns: int
    count: float
    cause: IdleCause
    cause_ns: int
    name: str | None = None
    call: str | None = None
    before: str | None = None
    after: str | None = None
    launch_ns: int | None = None
    drained: bool = False
    launch_known: bool = True
    begin_ns: int = 0
    step: int | None = None


class DeviceRow(Record, frozen=True, kw_only=True):
    """Times of the steps on one device, in the terms of `Timeline`; `name` is the device's name in the trace."""

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
    """Device work in the window on one stream: number of events, union and sum of their times, and the sum by class."""

    device: int
    stream: int
    work: int
    busy_ns: int
    kernel_time_ns: int
    classes: dict[OperatorClass, int]


class Launching(Record, frozen=True, kw_only=True):
    """How the host launched the kernels in the window, over all steps.

    A launch starts one kernel, or all kernels of a graph. Its delay lasts from the start of the host call to the start
    of the first kernel. A launch waits in the queue for that time, so `delay_ns` divided by the window is the mean
    queue length. Only launches recorded on both the host and the device have a delay (`delayed`). The trace lacks the
    device work of `lost_calls`: if there are any, calls, FLOPs, bytes and times of device work are lower bounds.
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
    #: Kernels only, without copies and fills; tiny kernels are shorter than `tiny_below_ns`.
    kernels: int
    kernel_ns: int
    tiny_kernels: int
    tiny_kernel_ns: int
    tiny_below_ns: int
    lost_calls: int = 0


class Timeline(Record, frozen=True, kw_only=True):
    """Wall time of the counted steps by state; without steps, from the first to the last device event.

    window = busy + outside + unrecorded + idle, and idle = host_idle + stream_idle + other_idle = the sum of `causes`,
    exactly. `busy_ns` is the union of the steps' device work, `outside_ns` the time in which the device only worked for
    other steps. `unrecorded_ns` is the time from a launch whose work is missing from the trace to the next recorded
    work, plus the time in which the host waited for work that is not in the trace (`awaited_ns`). Idle time is
    host-bound if the next work was launched after the device went idle, a stream wait if the next work, already
    launched, waits for another stream, and other in all other cases. `drained_ns` is the idle time in gaps that began
    while the host waited for the device, with nothing queued. Communication and memcpy are exposed while no other work
    runs on the device; `computation_ns` is the union of the work that is neither. With several devices, times are means
    over the devices that ran kernels, but `kernel_time_ns`, `launching`, `devices` and `streams` cover all devices. In
    a trace without steps, `around_ns` is the time before the first and after the last device work. `gaps` has the
    longest idle periods, at most 20 rows. `paced_ns` is the busy time in which more work was queued, or the host waited
    for the device: faster kernels shorten the step by no more than that. It is `None` if launches are not recorded. On
    the CPU `busy_ns` is operator time. If only the host was recorded, the entire window is `unrecorded_ns`.
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
    awaited_ns: int | None = None
    drained_ns: int | None = None
    paced_ns: int | None = None
    around_ns: int | None = None
    causes: tuple[IdleRow, ...] = ()
    gaps: tuple[Gap, ...] = ()
    computation_ns: int | None = None
    memcpy_ns: int | None = None
    kernel_time_ns: int | None = None
    launching: Launching | None = None
    devices: tuple[DeviceRow, ...] = ()
    streams: tuple[StreamRow, ...] = ()

    @property
    def lacks_work(self) -> bool:
        """Return whether counted device work is a lower bound: 1 % or more of launches or time lacks its records.

        The trace lacks the launches' work, or the work that the host waited for during that time.
        """
        lost = 0 if self.launching is None else self.launching.lost_calls
        calls = 0 if self.launching is None else self.launching.calls
        return 0 < lost >= MINOR * calls or 0 < (self.awaited_ns or 0) >= MINOR * self.window_ns


class WhatIf(Record, frozen=True, kw_only=True):
    """The mean step time with all of `changes` (`aten::mm x0.5`), as predicted by replaying the trace.

    `least_ns` is the step time if recording did not slow the host. It is given only if the unprofiled step time is
    unknown.
    """

    changes: tuple[str, ...]
    step_ns: int
    least_ns: int | None = None


class PathPart(Record, frozen=True, kw_only=True):
    """Mean time per step on the critical path: host time of one kind, work of one class, or a delay."""

    of: str
    time_ns: int


class Replay(Record, frozen=True, kw_only=True):
    """A replay of the steps as a graph of host and device work; times are means over `steps` steps.

    `why_not` says why gains computed by the replay cannot be trusted. `error` is the relative error of a replay with
    typical delays, and `unexplained` the delays that no edge of the graph explains, as a fraction of the steps' time.
    `host_factor` scales host time to the unprofiled step; it is `None` if that is unknown, or if only the device
    determines the step time. `ahead_ns` is the work queued on the device when recording began, which shows how far
    ahead the host runs when nothing is recorded. `step_ns` is the replayed step time, `least_ns` the step time if
    recording did not slow the host. `answers` has the result of each requested change, and `together` that of the first
    three pieces of advice combined, if all can be replayed.
    """

    step_ns: int
    steps: int = 1
    least_ns: int | None = None
    why_not: str | None = None
    error: float
    unexplained: float
    host_factor: float | None = None
    ahead_ns: int = 0
    path: tuple[PathPart, ...] = ()
    answers: tuple[WhatIf, ...] = ()
    together: WhatIf | None = None


class LinkedTime(Record, frozen=True, kw_only=True):
    """Device work by how it was linked to its launch."""

    linked_ns: int
    graph_launched_ns: int = 0
    no_launch_record_ns: int = 0
    outside_window_ns: int = 0
    set_aside_ns: int = 0


class Ledger(Record, frozen=True, kw_only=True):
    """Where each nanosecond of device work went.

    linked + graph_launched + no_launch_record + outside_window = device_work, exactly; `set_aside` is the part of
    outside_window that was launched in steps that do not count. `classed`, `costed` and `unknown` are parts of
    device_work - outside_window, which classed + unknown equals exactly.

    device_work_ns: all device work of the trace.
    linked_ns: device work linked to the operator call that launched it.
    graph_launched_ns: device work launched by a graph.
    no_launch_record_ns: device work whose launch is not recorded.
    outside_window_ns: device work launched before, after or between the counted steps.
    set_aside_ns: the part of `outside_window_ns` launched in steps that are set aside.
    classed_ns: device work of a known class.
    costed_ns: device work of calls whose FLOPs and bytes are known.
    unknown_ns: device work of unknown class.
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


# --- device ceilings ---


#: The name of the bandwidth among the names of peaks.
BANDWIDTH: Final = "bandwidth"
#: Prefix of the data types of vector peaks among those names.
VECTOR: Final = "vector "
#: A measurement was disturbed if the median burst is below the best one by more than this share of the best.
_DISTURBED: Final = 0.5


class ExceededCeiling(Record, frozen=True, kw_only=True):
    """A peak given by the user that work in the trace exceeds; `operator` in `phase` exceeds it most.

    `ceiling` is the data type of a matrix peak or `BANDWIDTH`, `option` the option that set it (`--peak 100T`). The
    rates (as given, as reached, and as known for the device without the option) are in operations or bytes per second.
    """

    ceiling: str
    option: str
    given_per_second: float
    reached_per_second: float
    known_per_second: float | None = None
    operator: str
    phase: Phase


class AboveCeiling(Record, frozen=True, kw_only=True):
    """Work at more than 100 % of its peak, and the first cause that suffices to explain it.

    `reached` is bound / time, `reached_without` the same ratio without the part of the bound that the cause may make
    unnecessary. `operator_class`, `phase` and `operator` are `None` if the row covers all of them.
    """

    operator_class: OperatorClass | None = None
    phase: Phase | None = None
    operator: str | None = None
    reached: float
    cause: ExcessCause
    reached_without: float


class DeviceFigures(Record, frozen=True, kw_only=True):
    """Peaks of the device, their `source`, and the shares of peak that the step reaches.

    `peak_flops_per_second` has matrix peaks by data type, `vector_flops_per_second` those of all other arithmetic,
    `attained_share` the part of a matrix peak that the fastest matmuls attain (1 without an entry). `mfu` is the share
    of the peak of `mfu_dtype` (the data type of most contractions) that the step's contractions reach without
    recomputation, `hfu` that with it. `mfu_covered` is the part of the time of contractions (and of work of unknown
    class) whose FLOPs are known: below 1 both are lower bounds, below `MIN_COVERED` they are `None`. `causal_mfu` and
    `causal_hfu` count only the FLOPs under the causal mask and are `None` if no call has one; `own_peaks_mfu` is the
    MFU with each data type's FLOPs divided by its own peak (`None` if there is only one type or a peak is unknown);
    `unmasked_share` is the part of the FLOPs counted without a mask because traces do not record it. `exceeded` has the
    user-given peaks that the trace exceeds, the most exceeded first; `above` has the work above 100 % of its peak and
    why: all work, then classes, then operators. `no_ceilings` says why there are no peaks, and how to get them.
    `unsure_ns` is the time of float32 matmuls without a bound, because neither a kernel name nor a setting says whether
    they ran in tf32. `utilization` is the union of the kernels over the total time of the steps. `sm_efficiency` is the
    mean over the same time of min(sum over the running kernels of min(blocks per multiprocessor, 1), 1), `occupancy`
    the mean of the kernels' estimated occupancy weighted by duration. Both are fractions that Kineto estimates from
    launch dimensions, recorded for `dimensioned_ns` of the kernel time. `tensor_core_ns` is the time of kernels whose
    names show that they use tensor (matrix) cores, `None` if the device has none or no name shows it;
    `tensor_core_unknown_ns` is the time of matmuls, and of kernels of unknown class, whose names do not show it. A
    number is `None` if the trace lacks what it needs.
    """

    peak_flops_per_second: dict[str, float] = field(default_factory=dict)
    vector_flops_per_second: dict[str, float] = field(default_factory=dict)
    attained_share: dict[str, float] = field(default_factory=dict)
    bandwidth_bytes_per_second: float | None = None
    source: str | None = None
    exceeded: tuple[ExceededCeiling, ...] = ()
    above: tuple[AboveCeiling, ...] = ()
    no_ceilings: str | None = None
    mfu: float | None = None
    hfu: float | None = None
    mfu_dtype: str | None = None
    mfu_covered: float | None = None
    causal_mfu: float | None = None
    causal_hfu: float | None = None
    own_peaks_mfu: float | None = None
    unmasked_share: float | None = None
    utilization: float | None = None
    sm_efficiency: float | None = None
    occupancy: float | None = None
    dimensioned_ns: int | None = None
    tensor_core_ns: int | None = None
    tensor_core_unknown_ns: int | None = None
    unsure_ns: int = 0


class GivenCeiling(Record, frozen=True, kw_only=True):
    """A peak given by the user with `option` (`--peak 100T`), and the value known for the device without the option.

    `name` is the data type of a matrix peak, or `BANDWIDTH`.
    """

    name: str
    option: str
    per_second: float
    known_per_second: float | None = None


class Ceilings(Record, frozen=True, kw_only=True):
    """The peak rates of a device, and the source of these numbers.

    Peaks are dense, in operations per second (a multiply-add is two). Matrix peaks are keyed by torch's name of the
    data type: `float32` is for float32 matmuls with tf32 off, `tf32` with tf32 on, `float8` for any 8-bit float. Peaks
    of all other arithmetic (`vector_...`) are known for float32 and float64. `None`, or no entry, means that the device
    has no such unit or its speed is unknown.
    """

    device: str
    source: str
    matrix_flops_per_second: dict[str, float] = field(default_factory=dict)
    vector_flops_per_second: dict[str, float] = field(default_factory=dict)
    #: Fraction of a matrix peak that the fastest contractions attain; 1 without an entry, as for measured peaks.
    attained_share: dict[str, float] = field(default_factory=dict)
    bandwidth_bytes_per_second: float | None = None
    memory_bytes: int | None = None
    #: The size of the last cache before the memory with `bandwidth_bytes_per_second`: L2, on MI300 the L3.
    cache_bytes: int | None = None
    #: Measured while something else was busy on the device: data types of matrix peaks, data types of vector peaks with
    #: the prefix `VECTOR`, and `BANDWIDTH`.
    disturbed: tuple[str, ...] = ()
    #: The ceilings given by the user.
    given: tuple[GivenCeiling, ...] = ()

    @property
    def reference(self) -> Ceilings:
        """Return the peaks, with the known value wherever the user gave a lower one, for second-source checks."""
        less = {one.name: known for one in self.given if (known := one.known_per_second or 0) > one.per_second}
        if not less:
            return self
        bandwidth = less.pop(BANDWIDTH, self.bandwidth_bytes_per_second)
        return replace(
            self,
            matrix_flops_per_second={**self.matrix_flops_per_second, **less},
            bandwidth_bytes_per_second=bandwidth,
            given=tuple(one for one in self.given if (one.known_per_second or 0) <= one.per_second),
        )

    def matrix_peak(self, dtype: str | None, *, tf32: bool = False) -> float | None:
        """Return the peak of matrix products of `dtype` (torch's name) in operations per second.

        With `tf32`, float32 matmuls run in tf32. `THREE_TF32` reaches a third of the tf32 peak, because it runs three
        matmuls for each.
        """
        name = self.matrix_name(dtype, tf32=tf32)
        peak = None if name is None else self.matrix_flops_per_second.get(name)
        return peak / 3 if peak is not None and dtype == THREE_TF32 else peak

    def matrix_name(self, dtype: str | None, *, tf32: bool = False) -> str | None:
        """Return the key in `matrix_flops_per_second` for matrix products of `dtype`."""
        if dtype is None:
            return None
        if dtype == FLOAT32 and tf32:
            return TF32 if TF32 in self.matrix_flops_per_second else FLOAT32
        return "float8" if dtype.startswith("float8") else PEAK_OF_COMPUTE_TYPE.get(dtype, dtype)

    def vector_peak(self, dtype: str | None) -> float | None:
        """Return the peak of element-wise work and reductions of `dtype`; torch computes halves in float32."""
        return self.vector_flops_per_second.get(vector_name(dtype)) if dtype is not None else None


def vector_name(dtype: str | None) -> str:
    """Return the data type in which element-wise work and reductions of `dtype` compute."""
    return "float64" if dtype in ("float64", "complex128") else "float32"


#: Version of the stored form of a measurement.
MEASURED_SCHEMA = 1


class Machine(Record, frozen=True, kw_only=True):
    """The machine of a measurement; a different driver, torch version or number of threads needs a new measurement."""

    device: str
    kind: str
    memory_bytes: int | None = None
    driver: str | None = None
    torch: str | None = None
    #: The host's threads, on the CPU only.
    threads: int | None = None


class Rate(Record, frozen=True, kw_only=True):
    """The best of several bursts: operations or bytes per second, the operation, and when it ran (ISO 8601, UTC).

    `spread` is how far the median burst stayed below the best, as a share of the best. `operands` are the arrays or
    matrices used, `None` in older stored measurements.
    """

    per_second: float
    by: str
    spread: float
    bursts: int
    measured: str
    operands: str | None = None

    @property
    def disturbed(self) -> bool:
        """Return True if other work disturbed the bursts, so that even the best may be far below the device's peak."""
        return self.spread > _DISTURBED


class Measured(Record, frozen=True, kw_only=True):
    """The measured rates of one machine: matrix products by data type, bytes moved by operation."""

    machine: Machine
    peaks: dict[str, Rate] = field(default_factory=dict)
    bandwidths: dict[str, Rate] = field(default_factory=dict)
    #: Data types that were tried, including those that cannot be multiplied on this machine.
    tried: tuple[str, ...] = ()
    #: The size of the last cache, as reported by the system or the driver.
    cache_bytes: int | None = None
    #: Device load by other work before and after.
    load: MachineLoad | None = None
    #: Its clocks while it was measured.
    state: DeviceState | None = None
    schema: int = MEASURED_SCHEMA

    @property
    def bandwidth(self) -> Rate | None:
        """Return the fastest rate of moving bytes."""
        return max(self.bandwidths.values(), key=lambda rate: rate.per_second, default=None)

    @property
    def date(self) -> str:
        """Return the day of the newest rate."""
        return max((rate.measured for rate in (*self.peaks.values(), *self.bandwidths.values())), default="")[:10]

    def over(self, older: Measured | None) -> Measured:
        """Return these rates, with missing ones taken from `older`."""
        if older is None:
            return self
        return Measured(
            machine=self.machine,
            peaks={**older.peaks, **self.peaks},
            bandwidths={**older.bandwidths, **self.bandwidths},
            tried=tuple(dict.fromkeys((*older.tried, *self.tried))),
            cache_bytes=older.cache_bytes if self.cache_bytes is None else self.cache_bytes,
            load=self.load,
        )


def now() -> str:
    """Return the current time for a measurement (ISO 8601, UTC)."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


# --- checks against a second source ---


#: Differences of a check that together affect less than this part of the device work raise no alarm.
MINOR: Final = 0.01
#: Quantities of the checks by causality.
CLASSES: Final = "classes of kernels"
ORDER: Final = "order on streams"
CLOCKS: Final = "clocks of host and device"
LAUNCHES: Final = "device work of launches"
WAITS: Final = "recorded work"
EVENTS: Final = "device events"


class Difference(Record, frozen=True, kw_only=True):
    """A number in the report that a second source does not confirm, with both values in the unit of the check.

    `cause` is the known cause of the difference; `None` means an error in this tool or in the trace. `evidence` is what
    a reader can look up: modules, shapes, times. `time_ns` is the device work (on the CPU the self time) of the calls
    that the difference affects, over all steps; `None` if it cannot be attributed to calls.
    """

    operator: str
    phase: Phase | None = None
    ours: int | None = None
    other: int | None = None
    cause: str | None = None
    evidence: str | None = None
    time_ns: int | None = None

    def share(self, work_ns: float) -> float:
        """Return the affected part of the device work, or without a time the relative difference of the numbers."""
        if self.time_ns is not None and work_ns:
            return min(self.time_ns / work_ns, 1.0)
        if self.ours is None or self.other is None:
            return 1.0
        return abs(self.ours - self.other) / max(abs(self.ours), abs(self.other), 1)


class Check(Record, frozen=True, kw_only=True):
    """Numbers of one kind, checked against a second source that does not share their attribution.

    `quantity` is what was compared ("call counts", "contraction FLOPs", "operator times", "annotated phases", ...) and
    `unit` its unit ("calls", "FLOPs", "ns"). Of the `compared` numbers, `equal` agree; each of the others has a row in
    `differences`. `not_checked` says why nothing, or not everything, could be compared.
    """

    quantity: str
    source: str
    unit: str
    compared: int = 0
    equal: int = 0
    differences: tuple[Difference, ...] = ()
    not_checked: str | None = None

    @property
    def unexplained(self) -> tuple[Difference, ...]:
        """Return the differences without a known cause."""
        return tuple(difference for difference in self.differences if difference.cause is None)

    def share(self, work_ns: float) -> float:
        """Return the part of the device work that the unexplained differences affect together."""
        return min(sum(difference.share(work_ns) for difference in self.unexplained), 1.0)


# --- generation ---


class Generation(Record, frozen=True, kw_only=True):
    """A generation of `new_tokens` per sample, with `beams` beams (1: greedy).

    Times are means over the generations without the profiler, excluding those with a pause, so that they sum to the
    step; they are `None` if none was timed. `first_token_ns` is the prefill, `decoding_ns` the rest. Decoding generates
    `decoded_tokens` per sample, one per forward: `token_ns` is the time from one token to the next, `tokens_per_second`
    counts the tokens of all samples, of one beam per sample. `token_flops` and the bytes are those of one forward
    including token selection, averaged over the decoding in the profiled steps, without the work that took
    `uncosted_ns`.
    """

    new_tokens: int
    beams: int
    decoded_tokens: int
    first_token_ns: int | None = None
    decoding_ns: int | None = None
    token_ns: float | None = None
    tokens_per_second: float | None = None
    token_flops: float | None = None
    token_read_bytes: float | None = None
    token_written_bytes: float | None = None
    uncosted_ns: int = 0


# --- advice: what to change, and how much that could gain at most ---

#: Advice on time must gain at least this fraction of the step.
WORTH: Final = 0.02
#: This many pieces of advice come first, with a combined gain.
FIRST: Final = 3
#: A figure's place in a sentence of advice.
PLACE: Final = regex(r"\{(\w+)\}")
#: Ids of advice not from rules on the step's figures: what makes a step fit, and a predicted technique.
OUT_OF_MEMORY, TECHNIQUE = "out_of_memory", "technique"


class Evidence(Record, frozen=True, kw_only=True):
    """A value in a sentence of advice: a number in a metric's unit, a count with a noun, or a `text`."""

    value: int | float | None = None
    unit: str = ""
    text: str | None = None


class Situation(Record, frozen=True, kw_only=True):
    """How the step is run, as far as the trace shows it; the advice depends on this.

    ddp, fsdp, tensor_parallel: the trace has ranges or operators of `DistributedDataParallel`, FSDP, tensor
        parallelism.
    backward: the step has a backward.
    score_mask: a query-by-key mask is applied to the attention scores.
    compiled: code compiled by torch.compile ran. `inductor` is set if kernels fused by Inductor ran, `cuda_graphs` if
        graphs were launched.
    loader: how a `DataLoader` runs: with `workers`, or in a `single process`.
    autocast: float32 operands are cast to half precision for matmuls.
    optimizer: the implementation of the update: `fused`, `compiled`, `foreach`, `loop`.
    pinned_copies, pageable_copies: the number of copies to the device from pinned or pageable memory, over all steps.
    serving: a serving engine ran, recognized by the names of its operators.
    training_mode: dropout or batch norm ran in training mode, in a trace without backward and optimizer.
    ranks: the number of ranks that the report covers, out of `world_size`.
    """

    ddp: bool = False
    fsdp: bool = False
    tensor_parallel: bool = False
    backward: bool = False
    score_mask: bool = False
    compiled: bool = False
    inductor: bool = False
    cuda_graphs: bool = False
    loader: str | None = None
    autocast: bool = False
    optimizer: str | None = None
    pinned_copies: int = 0
    pageable_copies: int = 0
    serving: str | None = None
    training_mode: bool = False
    ranks: int = 1
    world_size: int | None = None


class Advice(Record, frozen=True, kw_only=True):
    """A change to try: the most time or memory it could save, why, and how to try it.

    `why` is a sentence with the names of `figures` in braces. `explain ID` says what the rule looks for, how its gain
    is bounded and when it does not fire.

    id: the rule's id, the same in every version.
    subject: the operator, rank or technique that the advice is about; `None` if it is about the entire step.
    gain_ns: the most by which the mean step time (now `step_ns`) could decrease; `None` if only memory is saved.
    replayed_ns: by how much the step time decreases in a replay of the trace with the host as recorded; `None` without
        a replay. With a replay, `gain_ns` is the gain if recording did not slow the host, and `most_ns` the upper bound
        of the gain without a replay.
    changes: what changes in the step, in the syntax of `analyze --what-if`; empty if it cannot be replayed. If
        `is_bound` is true, `changes` go beyond the advice, so that a replay gives an upper bound of its gain.
    gain_bytes: by how much the peak (now `peak_bytes`) would be lower.
    fits: whether a step that ran out of memory would then fit; `None` if that is unknown.
    why: what the rule found.
    figures: the numbers in `why`.
    tries: what to try, in the user's terms, the most promising first.
    option: the option to add to `opanatomy profile` to try it.
    technique: the name of the advised technique in `opanatomy techniques`.
    section: the section of the report with more details.
    """

    id: Id
    subject: str | None = None
    gain_ns: int | None = None
    step_ns: int | None = None
    replayed_ns: int | None = None
    most_ns: int | None = None
    changes: tuple[str, ...] = ()
    is_bound: bool = False
    gain_bytes: int | None = None
    peak_bytes: int | None = None
    fits: bool | None = None
    why: str
    figures: dict[str, Evidence] = field(default_factory=dict)
    tries: tuple[str, ...] = ()
    option: str | None = None
    technique: str | None = None
    section: str | None = None

    def __post_init__(self) -> None:
        for name in PLACE.findall(self.why):
            if name not in self.figures:
                raise ValueError(f"`why` of advice {self.id} names {{{name}}}, which is not in `figures`")


# --- the host: what its threads did in the steps, and work that could be one kernel ---


class HostRow(Record, frozen=True, kw_only=True):
    """Host time of the launching threads by activity, over all profiled steps; the rows sum to the threads' time.

    kind: `operator`, `range` (an annotation, an autograd node), `runtime` (a call of the device's runtime), `python`
        (nothing recorded between two events) or `others` (all names with less than 0.1 % of the time).
    name: the name of the event.
    caller: the innermost operator, else the innermost range, around a runtime call that waits for the device or frees
        its memory.
    calls: the number of events.
    self_ns: their time without nested events.
    total_ns: their time including nested events; events nested in another event of the same name are not counted again.
    waits: true for a runtime call that waits for the device.
    """

    kind: str
    name: str
    caller: str | None = None
    calls: int
    self_ns: int
    total_ns: int
    waits: bool = False


class ChainRow(Record, frozen=True, kw_only=True):
    """Element-wise operators and normalizations that ran one after another in one phase, over all profiled steps.

    A chain is a sequence of calls with nothing else between them, each of which reads at least as many bytes as the
    previous call wrote. One kernel for the chain would save `saved_bytes`: each intermediate result, written and read
    once.

    phase: the phase.
    chains: the number of chains; `calls` is the number of calls in them.
    time_ns: the time of these calls.
    moved_bytes: the bytes that they must move as separate calls; `saved_bytes` is the part moved between two calls.
    operator: the operator that takes most of their time.
    """

    phase: Phase
    chains: int
    calls: int
    time_ns: int
    moved_bytes: int
    saved_bytes: int
    operator: str


# --- single events ---


class Span(Record, frozen=True, kw_only=True):
    """One event in a counted step: the longest of its name.

    what: `kernel`, `copy`, `fill` or `collective` on a device; `operator`, `range`, `runtime` (a call of the device's
        runtime) or `python` (a function of a recorded stack that takes 0.1 ms or more) on the host.
    name: the name of the event.
    operator: the operator that launched it; on the host the innermost operator or range around it.
    signature: the arguments of the operator (`None` for a range), or the message of a collective.
    phase: its phase, and `module` its module.
    rank: its rank, in a report of several ranks.
    step: the number of its step.
    begin_ns: when it began, from the start of that step; without steps, from the first device work (on the CPU from the
        start of the window), negative if earlier.
    duration_ns: how long it lasted.
    own_ns: on the host, the part of `duration_ns` without nested events.
    thread: the thread of a host event; `device` and `stream` those of a device event.
    bytes: the bytes that a copy moves, or a collective's message size as in `Collective`; `group_size` is the number of
        ranks in its group.
    bytes_per_second: the rate of a copy, or a collective's traffic on the links, including waiting time.
    count: the number of events of this name in the steps; `median_ns` is the median of their durations (on the host of
        their self times).
    """

    what: str
    name: str
    operator: str | None = None
    signature: SignatureText | None = None
    phase: Phase | None = None
    module: str | None = None
    rank: int | None = None
    step: int | None = None
    begin_ns: int
    duration_ns: int
    own_ns: int | None = None
    thread: str | None = None
    device: int | None = None
    stream: int | None = None
    bytes: int | None = None
    group_size: int | None = None
    bytes_per_second: float | None = None
    count: int | None = None
    median_ns: int | None = None

    @property
    def spent_ns(self) -> int:
        """Return the time by which events are compared: self time on the host, duration on a device."""
        return self.duration_ns if self.own_ns is None else self.own_ns


# --- lanes: one step over time ---


#: A share of a peak or ceiling is shown only if its figures cover this part of the time.
MIN_COVERED = 0.5


class Provenance(Record, frozen=True, kw_only=True):
    """Where the numbers come from.

    The first event of the trace begins at `begin_unix_ns` and the last ends at `end_unix_ns`, on the host's clock; if
    the trace's times are not dates, both are in the trace's own time.

    opanatomy: the version of opanatomy that made the report.
    command: the command line, or the call, of the capture.
    created: when the trace was captured (ISO 8601).
    trace: the name of the trace; for several ranks, their number and which they are.
    trace_sha256: the SHA-256 digest of the trace file.
    """

    opanatomy: str
    command: str | None = None
    created: str | None = None
    trace: str | None = None
    trace_sha256: str | None = None
    begin_unix_ns: int | None = None
    end_unix_ns: int | None = None


class StepRow(Record, frozen=True, kw_only=True):
    """One step.

    On an accelerator it begins with its annotation (without one, at the end of the previous update), or at the end of
    the previous step if that is later, and lasts until the last device work launched in it ends: the steps together
    cover the window. wall = busy + outside + unrecorded + host_idle + stream_idle + other_idle, exactly; the terms are
    those of `Timeline`. `kernel_time_ns` is the sum of the `work` device events launched in the step, and for kernels,
    copies and fills kernel_ns + memcpy_ns + memset_ns = kernel_time_ns. On the CPU wall = busy + framework, and the
    other terms are unknown.

    number: the number of the step in the trace, counted from 1 if steps end with an update; `None` if the step is the
        entire trace.
    set_aside: why the step is excluded from all numbers; `None` if it counts.
    wall_ns: its wall time.
    busy_ns: the union of the work launched in it; on the CPU the self time of its operators.
    outside_ns: time in which the device worked only for other steps.
    host_idle_ns: host-bound idle time.
    stream_idle_ns: idle time in a stream wait.
    other_idle_ns: other idle time.
    unrecorded_ns: time in which work ran, or may have run, whose records are missing.
    idle_causes: the idle time by cause.
    phase_ns: as in `Step`.
    class_ns: device work by operator class; on the CPU self time.
    exposed_communication_ns: communication time in which no other work ran.
    framework_ns: on the CPU, wall time outside operators; `loading_ns` is the part in loader ranges.
    """

    number: int | None
    set_aside: str | None = None
    wall_ns: int
    busy_ns: int | None = None
    outside_ns: int | None = None
    host_idle_ns: int | None = None
    stream_idle_ns: int | None = None
    other_idle_ns: int | None = None
    unrecorded_ns: int | None = None
    idle_causes: dict[IdleCause, int] = field(default_factory=dict)
    kernel_time_ns: int | None = None
    kernel_ns: int | None = None
    memcpy_ns: int | None = None
    memset_ns: int | None = None
    work: int | None = None
    phase_ns: dict[Phase, int] = field(default_factory=dict)
    class_ns: dict[OperatorClass, int] = field(default_factory=dict)
    exposed_communication_ns: int | None = None
    framework_ns: int | None = None
    loading_ns: int | None = None


class Step(Record, frozen=True, kw_only=True):
    """One step: means over the counted steps, so that parts sum to their total.

    `wall_ns` is the profiled step without the time in which the device worked only for other steps,
    `unprofiled_wall_ns` is the mean wall time of the `unprofiled_count` steps without the profiler, excluding steps
    with a pause. `phase_ns` is the wall time of each phase on the CPU, and the busy time of its device work on an
    accelerator. `busy_ns` is the union of device work, `kernel_time_ns` its sum. `profiler_ns` estimates the profiler's
    overhead per step: profiled minus unprofiled time, `None` if step-to-step variation hides it. On the CPU it is the
    part outside operators, by the number of events inside and outside them, and wall = busy + framework + profiler,
    exactly; if it is `None`, `framework_ns` includes it. `steps` has each step of the trace, including excluded ones;
    without annotations, steps end with the optimizers' updates (`conventions.steps`), and without updates the trace is
    one step.

    count: the number of profiled steps included in the means, summed over all ranks.
    by_line_ns: the wall time of the step that was traced line by line; the means exclude this step.
    wall_min_ns: the wall time of the shortest counted step; `wall_max_ns` is that of the longest.
    unprofiled_wall_min_ns: the wall time of the shortest unprofiled step; `unprofiled_wall_max_ns` is that of the
        longest.
    system_ns: system (kernel-mode) CPU time of all threads in an unprofiled step, the median; `page_faults` the memory
        pages that the system provided.
    phase_ns: the time of each phase that every step has: `forward`, `backward`, `optimizer`; in a generation `prefill`,
        `decoding`. Recomputation is part of backward.
    samples_per_second: samples of the batch divided by the unprofiled step time, or by the profiled one if only that is
        known.
    aside_count: the number of steps that are set aside; with several ranks, their mean number per rank.
    aside_wall_ns: the mean wall time of these steps; `aside_idle_ns` is their mean idle time by cause.
    """

    count: int = 1
    wall_ns: int | None = None
    wall_min_ns: int | None = None
    wall_max_ns: int | None = None
    unprofiled_wall_ns: int | None = None
    unprofiled_wall_min_ns: int | None = None
    unprofiled_wall_max_ns: int | None = None
    unprofiled_count: int | None = None
    system_ns: int | None = None
    page_faults: int | None = None
    phase_ns: dict[Phase, int] = field(default_factory=dict)
    busy_ns: int | None = None
    kernel_time_ns: int | None = None
    framework_ns: int | None = None
    profiler_ns: int | None = None
    by_line_ns: int | None = None
    samples_per_second: float | None = None
    aside_count: int = 0
    aside_wall_ns: int | None = None
    aside_idle_ns: dict[IdleCause, int] = field(default_factory=dict)
    steps: tuple[StepRow, ...] = ()


#: The tables of an `Anatomy` that are sums of its work, but for the breakdown.
VIEWS: Final = ("classes", "ratios", "operators", "kernels", "modules", "lines")


class Anatomy(Record, frozen=True, kw_only=True, dict=True, tag_field="kind", tag="anatomy"):
    """The complete report: what ran, where its time, FLOPs, bytes and memory went, and what could not be explained.

    A frozen record of frozen records, equal and hashed by value, and picklable. Each field is a record or a tuple of
    rows, one for each line of a table: `anatomy.step.wall_ns`, `anatomy.operators[0].time_ns`. The unit is in the name
    (`_ns`, `_bytes`, `flops`); `None` means unknown. `help(type(anatomy.step))` documents the fields of a record.

    provenance: the trace that the numbers come from, and the command and time of its capture.
    environment: the device, its driver, torch and the other libraries.
    workload: the model, its batch, data types and the options that change the step.
    step: one step: wall time with and without the profiler, phases, busy time; `step.steps` has each step.
    work: what ran in the steps, one row for each operator, signature, module, phase, class and kernel, over all steps.
        The next five tables, and `breakdown`, are sums of its rows.
    classes: one row for each operator class and phase: calls, time, FLOPs, bytes, over all steps.
    ratios: one row for each operator class: backward over forward, measured and by theory.
    operators: one row for each operator, signature and phase, by decreasing time, over all steps.
    kernels: one row for each name of a kernel, copy or fill, over all steps; empty on the CPU.
    modules: one row for each module, phase and class, submodules not included, over all steps.
    memory: the peak, its components (measured and theoretical), the memory curve, the tensors live at the peak.
    timeline: busy time and idle time by cause in the window, launches, devices, streams; on an accelerator.
    device: peaks of the device, and the shares of peak that the step reaches (`mfu`, `hfu`), utilization and occupancy.
    ledger: where each nanosecond of device work went: linked, classified, costed.
    conventions: how FLOPs and bytes are counted.
    generation: time to the first token, and time per token; `None` if the step is not a generation.
    collectives: one row for each collective, data type and group size, over all steps.
    communication: time and bytes of the collectives by phase and module, hidden or exposed; `None` without collectives.
    ranks: one row for each rank of the report; a single trace has one row if it records its rank, otherwise none.
    spread: the minimum, median and maximum of each quantity of a step over several ranks.
    waiting: waiting separated from transfer, and the straggler; `None` unless collectives of several ranks are matched.
    theory: the theoretical ratios of backward to forward, by class.
    step_kinds: the steps grouped by kind (steps that made the same calls); `None` in reports without them.
    breakdown: the time of similar steps, operator by operator, for comparing two runs; `None` without kinds.
    checks: numbers checked against a second source, and those that disagree.
    advice: what to change, the largest gain first.
    situation: how the step is run, which determines the advice; `None` for memory snapshots.
    host: what the host's launching threads did, by decreasing time.
    chains: element-wise operators and normalizations that one kernel could compute together, by phase.
    lanes: one step over time: phases, devices, streams, threads; with several ranks, the device of each.
    spans: the single events of the steps that last longest: kernels, copies, collectives, operators, ranges, runtime
        calls.
    caveats: problems that affect every number: a truncated file, missing records, devices of several kinds.
    warnings: what else a reader must know about the numbers.
    texts: padding and tokenizers of a run on real texts; `None` otherwise.
    run: the run's steps around the recorded ones, if a loop was recorded; with several ranks, those of the rank that
        waits most for its input.
    trends: how the steps of that run change over its length: drift, growing memory, kinds of steps that were not
        recorded.
    device_state: clocks, power and temperature of the device while the recorded steps ran; with several ranks, of the
        device with the lowest clock. `None` if the driver cannot be asked.
    compilation: how long compiling the step took, and step times with and without it; `None` if `profile` did not
        compile it.
    replay: the steps replayed as a graph; `None` on the CPU, for several ranks, and in older reports.
    estimated: set if the step was estimated for a device that is not present: its time as a range and its memory, on
        each named device; times in `work` then assume typical efficiencies. `None` for steps that ran.
    schema: the version of the JSON report.
    """

    provenance: Provenance
    environment: Environment
    workload: Workload
    step: Step
    work: Table
    memory: Memory
    timeline: Timeline
    device: DeviceFigures
    ledger: Ledger
    conventions: dict[str, str | int] = field(default_factory=dict)
    generation: Generation | None = None
    collectives: tuple[Collective, ...] = ()
    communication: Communication | None = None
    ranks: tuple[Rank, ...] = ()
    spread: tuple[Spread, ...] = ()
    waiting: Waiting | None = None
    theory: tuple[TheoryRow, ...] = ()
    step_kinds: tuple[StepKind, ...] | None = None
    checks: tuple[Check, ...] = ()
    advice: tuple[Advice, ...] = ()
    situation: Situation | None = None
    host: tuple[HostRow, ...] = ()
    chains: tuple[ChainRow, ...] = ()
    lanes: Lanes | None = None
    spans: tuple[Span, ...] = ()
    caveats: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    estimated: Estimated | None = None
    texts: TextFigures | None = None
    run: RunClock | None = None
    trends: RunTrends | None = None
    device_state: DeviceState | None = None
    compilation: Compilation | None = None
    replay: Replay | None = None
    schema: int = SCHEMA

    @cached_property
    def operators(self) -> tuple[OperatorRow, ...]:
        """Return one row for each operator, signature and phase, by decreasing time."""
        return operator_rows(self.work)

    @cached_property
    def classes(self) -> tuple[ClassRow, ...]:
        """Return one row for each operator class and phase."""
        return class_rows(self.work, self.operators)

    @cached_property
    def work_ns(self) -> int:
        """Return the device work of the counted steps, on the CPU the self time of their operators."""
        return sum(row.time_ns for row in self.classes)

    @cached_property
    def ratios(self) -> tuple[Ratio, ...]:
        """Return one row for each operator class with work in forward and backward."""
        return ratios_of(self.classes, self.theory)

    @cached_property
    def kernels(self) -> tuple[KernelRow, ...]:
        """Return one row for each name of a kernel, copy or fill."""
        return kernel_rows(self.work)

    @cached_property
    def modules(self) -> tuple[ModuleRow, ...]:
        """Return one row for each module, phase and class."""
        return module_rows(self.work)

    @cached_property
    def lines(self) -> tuple[LineRow, ...]:
        """Return one row per stack of user code lines, phase and class; no rows without `--lines`."""
        return line_rows(self.work)

    @cached_property
    def breakdown(self) -> Breakdown | None:
        """Return the time of similar steps, operator by operator."""
        return None if self.step_kinds is None else breakdown_of(self.work, self.step_kinds)

    @property
    def alarms(self) -> tuple[Check, ...]:
        """Return the checks whose unexplained differences affect at least 1 % of the device work."""
        return tuple(check for check in self.checks if check.unexplained and check.share(self.work_ns) >= MINOR)


Better: TypeAlias = Literal["lower", "higher"]


class Metric(Struct, frozen=True, kw_only=True):
    """One number in its unit (ns, bytes, flop, fraction, ...), and the better direction; `None` if neither is better.

    With `lower_bound` the number is at least `value`, and at most `at_most` if that is known. `exact` marks FLOPs and
    bytes, which are counted and do not vary as measurements do.
    """

    value: int | float
    unit: str
    better: Better | None
    lower_bound: bool = False
    at_most: int | float | None = None
    exact: bool = False


# --- the stored summary of one rank's trace, for the report over all ranks ---
#
# Times are nanoseconds since 1970 if the trace counts from there, else of its own clock; -1 is "not known".


class CollectiveCalls(Struct, frozen=True, kw_only=True):
    """Collective calls of a rank, one row each, ordered by start.

    A call lasts from the start of its first device event to the end of its last one; on the CPU it is the annotation
    that the backend leaves on its own threads.
    """

    #: Canonical name such as `all_reduce`, from the host record if there is one (`named`), else from the kernel name.
    collective: Categorical[str]
    named: Bool
    #: The process group's name and ranks, as far as recorded; none if neither is.
    group: Categorical[str]
    group_size: Int64
    #: Number of the call within its group, if recorded.
    sequence: Int64
    dtype: Categorical[str]
    sent_bytes: Int64
    received_bytes: Int64
    #: When the host made the call, and how long the call took.
    launched_ns: Int64
    launching_ns: Int64
    #: When the host last returned from waiting for the device before that call. On the CPU it is the call itself: it
    #: may have waited for any collective that has ended by then.
    synchronized_ns: Int64
    start_ns: Int64
    end_ns: Int64
    #: True for calls of the window's steps, false for calls of other steps that run among them.
    inside: Bool
    phase: Categorical[str]
    #: The module that it serves.
    module: Categorical[str]


class Spans(Struct, frozen=True, kw_only=True):
    """Disjoint intervals, in order."""

    start_ns: Int64
    end_ns: Int64


class StepSpans(Struct, frozen=True, kw_only=True):
    """Steps of a rank, one row each, in order: when it ran, how long the rank computed, and how long it did anything.

    The times are unions: `computing_ns` of the window's work except communication, `busy_ns` of all work, including the
    gaps between the device events of one collective, `outside_ns` the part of `busy_ns` in which only work from before
    (or after) the window ran. `began_ns` is when the host began the step, -1 if the trace does not say.
    """

    number: Int64
    began_ns: Int64
    start_ns: Int64
    end_ns: Int64
    computing_ns: Int64
    outside_ns: Int64
    busy_ns: Int64


class Exchanged(Struct, frozen=True, kw_only=True):
    """A rank's communication, and when it computed at the same time."""

    calls: CollectiveCalls
    #: When the rank computed for the steps of the window while one of `calls` ran.
    hiding: Spans
    steps: StepSpans


class RankSummary(Struct, frozen=True, kw_only=True):
    """The summary of one rank, small whatever the size of its trace."""

    anatomy: Anatomy
    calls: CollectiveCalls
    #: When the rank computed for the steps of the window while one of `calls` ran.
    hiding: Spans
    steps: StepSpans
    #: The first device over each counted step; of many steps, those closest to their mean.
    lanes: tuple[Lanes, ...] = ()
