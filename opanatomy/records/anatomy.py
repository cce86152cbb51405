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
    """Idle time of one cause: the number of gaps, and the host event that fills most of it.

    cause: `profiler`, `compilation`, `input`, `allocator`, `slow_launch`, `synchronization`, `collective`, `operators`,
        `python` (the host between operators), `stream`, `device` or `unknown`.
    short_ns: the part of it in gaps below 1 ms, `drained_ns` the part of that in gaps that began while the host waited
        for the device, `updating_ns` the part in an optimizer's update, `exchanging_ns` the part in gaps right before
        or behind a collective. `None` in older reports.
    name: the call, operator or range on the host that fills most of the time: `events` of them, `name_ns` in all.
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
    """A span in which a device was idle, or several alike: of one cause, before the same work, up to twice as long.

    time_ns: the mean length of one.
    count: how many there are in a mean step.
    cause: the cause that fills most of it, and `cause_ns` of its mean length.
    name: the innermost operator or range that covers at least half of the longest one; `None` if none does.
    call: the runtime call that takes at least half of the longest one.
    before: the kernel, copy or fill that ended it, and `after` the one that ran before; `None` at the ends of a step.
    launch_ns: the part of the longest one that the launch of this work took, if it took 20 us or more.
    drained: whether the longest one began while the host waited for the device.
    launch_known: whether the trace has the launch of the work that ended it: else what the host did is unknown.
    begin_ns: when the longest one began, from the begin of its step; `step` is the number of that step.
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
    """The steps on one device, with the terms of `Timeline`; `name` is the device's name in the trace."""

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
    """Device work of the window on one stream: number of events, their union and sum, and the sum of each class."""

    device: int
    stream: int
    work: int
    busy_ns: int
    kernel_time_ns: int
    classes: dict[OperatorClass, int]


class Launching(Record, frozen=True, kw_only=True):
    """How the host launched the kernels of the window, over all steps.

    A launch starts one kernel, or all kernels of a graph. Its delay lasts from the start of the host call to the start
    of the first kernel. A launch waits in the queue for that time, so `delay_ns` over the window is the mean length of
    the queue. Only launches recorded on both the host and the device have a delay (`delayed`). The trace lacks the
    device work of `lost_calls`: calls, FLOPs, bytes and times of device work are then lower bounds.
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
    """Wall clock of the steps that count; without steps from the first to the last device event.

    window = busy + outside + unrecorded + idle, and idle = host_idle + stream_idle + other_idle = the sum of `causes`,
    exactly. `busy_ns` is the union of the steps' device work, `outside_ns` the time in which the device only did work
    of other steps, `unrecorded_ns` the time from a launch whose work is missing from the trace to the next recorded
    work, and (`awaited_ns` of it) the time in which the host waited for work that is not in the trace. Idle time is
    host-bound if the next work was launched after the device fell idle, a stream wait if it was already launched and
    another stream worked last, and other in all other cases. `drained_ns` is the idle time in gaps that began while the
    host waited for the device, with nothing queued. Communication and memcpy are exposed while no other work of the
    device runs; `computation_ns` is the union of the work that is neither. With several devices these are means over
    the devices that ran kernels; `kernel_time_ns`, `launching`, `devices` and `streams` cover all devices. In a trace
    without steps, `around_ns` is its time before and after all device work. `gaps` has the longest idle spans, at most
    20 rows. `paced_ns` is the busy time in which more work was queued, or the host waited for the device: faster
    kernels shorten the step by no more than that; `None` where launches are not recorded. On the CPU `busy_ns` is the
    time of operators; of a host alone, all of the window is `unrecorded_ns`.
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
        """Return whether counted device work is a lower bound: 1 % of launches or time lacks its records.

        The trace lacks the launches' work, or the work that the host waited for during that time.
        """
        lost = 0 if self.launching is None else self.launching.lost_calls
        calls = 0 if self.launching is None else self.launching.calls
        return 0 < lost >= MINOR * calls or 0 < (self.awaited_ns or 0) >= MINOR * self.window_ns


class WhatIf(Record, frozen=True, kw_only=True):
    """How long a mean step takes after `changes` together (`aten::mm x0.5`), by replaying the trace.

    `least_ns` is that with a host that recording does not slow, where the step without the profiler is unknown.
    """

    changes: tuple[str, ...]
    step_ns: int
    least_ns: int | None = None


class PathPart(Record, frozen=True, kw_only=True):
    """Time of a mean step on the path that decides its length: host time of a kind, work of a class, a delay."""

    of: str
    time_ns: int


class Replay(Record, frozen=True, kw_only=True):
    """The steps timed again as a graph of host and device: `steps` of them, times are means.

    `why_not` says why gains by it are not to be trusted. `error` is how far a replay with usual delays is off, and
    `unexplained` the delays that no edge explains, as parts of the steps. `host_factor` scales host time to the step
    without the profiler; `None` if that is unknown, or the device alone decides. `ahead_ns` is the work that the
    device had queued when recording began: so far ahead was a host that did not record. `step_ns` is the replayed step,
    `least_ns` that with a host that recording does not slow. `answers` are of the changes that were asked for, and
    `together` is that of the first three pieces of advice, if a replay can say all of them.
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
    outside_window that was launched in steps that do not count. `classed`, `costed` and `unknown` are shares of
    device_work - outside_window; classed + unknown is that difference, exactly.

    device_work_ns: all device work of the trace.
    linked_ns: linked to the operator call that launched it.
    graph_launched_ns: launched by a graph.
    no_launch_record_ns: without a record of its launch.
    outside_window_ns: launched before the steps that count, after them or between them.
    set_aside_ns: the part of `outside_window_ns` launched in steps that are set aside.
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


# --- device ceilings ---


#: The name of the bandwidth among the names of peaks.
BANDWIDTH: Final = "bandwidth"
#: Prefix of the data types of vector peaks among those names.
VECTOR: Final = "vector "
#: A measurement was disturbed if the median burst is below the best one by more than this share of the best.
_DISTURBED: Final = 0.5


class ExceededCeiling(Record, frozen=True, kw_only=True):
    """A ceiling given by the user that work in the trace exceeded, most of all `operator` in `phase`.

    `ceiling` is the data type of a matrix peak or `BANDWIDTH`, `option` the option that gave it (`--peak 100T`). Rates
    are operations or bytes a second: as given, as reached, and as known of the device without the option.
    """

    ceiling: str
    option: str
    given_per_second: float
    reached_per_second: float
    known_per_second: float | None = None
    operator: str
    phase: Phase


class AboveCeiling(Record, frozen=True, kw_only=True):
    """Work at more than 100 % of its ceiling, and the first cause that suffices to explain it.

    `reached` is bound / time, `reached_without` the same without what the cause may leave out of the bound.
    `operator_class`, `phase` and `operator` are `None` where the work is that of all of them.
    """

    operator_class: OperatorClass | None = None
    phase: Phase | None = None
    operator: str | None = None
    reached: float
    cause: ExcessCause
    reached_without: float


class DeviceFigures(Record, frozen=True, kw_only=True):
    """Ceilings of the device, their `source`, and the share of them that was reached.

    `peak_flops_per_second` has matrix peaks by data type, `vector_flops_per_second` those of all other arithmetic,
    `attained_share` the part of a matrix peak that the fastest products attain (all of it without an entry).
    `mfu` is the share of the peak of `mfu_dtype` (the data type of most contractions) that the step's contractions
    reach without recompute, `hfu` with it. `mfu_covered` is the part of the time of contractions (and of work of
    unknown class) whose FLOPs are known: below 1 both are lower bounds, below `MIN_COVERED` they are `None`.
    `causal_mfu` and `causal_hfu` are the same with the FLOPs under the causal mask, `None` if no call has one;
    `own_peaks_mfu` is the MFU with each data type against its own peak, `None` if there is one type or a peak is not
    known; `unmasked_share` is the part of the FLOPs that leaves out a mask which is not recorded. `exceeded` has the
    user's own ceilings that the trace exceeds, the furthest first, `above` what is above 100 % of its ceiling and why:
    all work, then classes, then operators. `no_ceilings` says why there are no
    ceilings, and how to get them. `unsure_ns` is the time of float32 products without a bound: neither a kernel name
    nor a setting says whether they ran in tf32. `utilization` is the union of the kernels over the total time of the
    steps. `sm_efficiency` is the mean over the same time of min(sum over the running kernels of min(blocks per
    multiprocessor, 1), 1), `occupancy` the mean of the kernels' estimated occupancy weighted by duration. Both are
    fractions that Kineto estimates from launch dimensions, recorded for `dimensioned_ns` of the kernel time.
    `tensor_core_ns` is the time of kernels that use tensor (matrix) cores by their names, `None` if the device has none
    or no name tells; `tensor_core_unknown_ns` the time of products, and of kernels of unknown class, whose names do not
    tell. A figure is `None` if the trace lacks what it needs.
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
    """A ceiling given by the user with `option` (`--peak 100T`), and the known value of the device without it.

    `name` is the data type of a matrix peak, or `BANDWIDTH`.
    """

    name: str
    option: str
    per_second: float
    known_per_second: float | None = None


class Ceilings(Record, frozen=True, kw_only=True):
    """The most a device can do, and the source of these figures.

    Peaks are dense, in operations a second (a multiply-add is two). Matrix peaks are keyed by torch's name of the data
    type: `float32` is what a float32 product reaches with tf32 off, `tf32` with it on, `float8` any 8-bit float. Peaks
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
        """Return the ceilings, with the known value wherever the user gave a lower one, for second-source checks."""
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
        """Return the peak of matrix products of `dtype` (torch's name) in operations a second.

        With `tf32`, float32 products run in tf32. `THREE_TF32` reaches a third of the tf32 peak, with three products
        for each.
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
    """The machine of a measurement; another driver, torch or number of threads needs another measurement."""

    device: str
    kind: str
    memory_bytes: int | None = None
    driver: str | None = None
    torch: str | None = None
    #: The host's threads, on the CPU only.
    threads: int | None = None


class Rate(Record, frozen=True, kw_only=True):
    """The best of several bursts: operations or bytes a second, by which operation, and when (ISO 8601, UTC).

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
    """The rates of one machine: matrix products by data type, and moved bytes by the operation that moved them."""

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


#: Differences of a check that together touch less than this part of the device work raise no alarm.
MINOR: Final = 0.01
#: Quantities of the checks by causality.
CLASSES: Final = "classes of kernels"
ORDER: Final = "order on streams"
CLOCKS: Final = "clocks of host and device"
LAUNCHES: Final = "device work of launches"
WAITS: Final = "recorded work"
EVENTS: Final = "device events"


class Difference(Record, frozen=True, kw_only=True):
    """One figure of the report that a second source does not confirm, both in the unit of its check.

    `cause` is the known cause of the difference; `None` means an error of this tool, or a trace that cannot be right.
    `evidence` is what a reader can look up: modules, shapes, times. `time_ns` is the device work (on the CPU the self
    time) of the calls that the difference touches, over all steps; `None` if no time can be named.
    """

    operator: str
    phase: Phase | None = None
    ours: int | None = None
    other: int | None = None
    cause: str | None = None
    evidence: str | None = None
    time_ns: int | None = None

    def share(self, work_ns: float) -> float:
        """Return the touched part of the device work, or without a time the relative difference of the figures."""
        if self.time_ns is not None and work_ns:
            return min(self.time_ns / work_ns, 1.0)
        if self.ours is None or self.other is None:
            return 1.0
        return abs(self.ours - self.other) / max(abs(self.ours), abs(self.other), 1)


class Check(Record, frozen=True, kw_only=True):
    """The figures of one kind, checked against a second source that does not share their attribution.

    `quantity` is what was compared ("call counts", "contraction FLOPs", "operator times", "annotated phases", ...)
    and `unit` its unit ("calls", "FLOPs", "ns"). Of the `compared` figures `equal` agree; each other one has a row in
    `differences`. `not_checked` says why nothing, or not all, could be compared.
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
        """Return the part of the device work that the unexplained differences touch together."""
        return min(sum(difference.share(work_ns) for difference in self.unexplained), 1.0)


# --- generation ---


class Generation(Record, frozen=True, kw_only=True):
    """A generation of `new_tokens` for each sample, by a search with `beams` (1: greedy).

    Times are means over the generations without the profiler, those with a pause left out, so that they sum to the
    step; `None` if none was timed. `first_token_ns` is the prefill, `decoding_ns` the rest. Decoding makes
    `decoded_tokens` for each sample, one in each forward: `token_ns` is the time
    from one to the next, `tokens_per_second` counts the tokens of all samples, one beam of each. `token_flops` and the
    bytes are those of one forward and the choice of its tokens, the mean over the decoding of the profiled steps,
    without the work that took `uncosted_ns`.
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
    """A figure in a sentence of advice, in a unit of the metrics or as a count of a noun, or a `text`."""

    value: int | float | None = None
    unit: str = ""
    text: str | None = None


class Situation(Record, frozen=True, kw_only=True):
    """How the step is run, as far as the trace shows it: cures are chosen by it.

    ddp, fsdp, tensor_parallel: ranges or operators of `DistributedDataParallel`, of FSDP, of tensor parallelism.
    backward: the step has a backward.
    score_mask: a mask of queries by keys is applied to attention's scores.
    compiled: code of torch.compile, `inductor` kernels that it fused, and `cuda_graphs` launched graphs.
    loader: a `DataLoader` with `workers`, or in a `single process`.
    autocast: float32 operands are cast to half precision for products.
    optimizer: how the update is launched: `fused`, `compiled`, `foreach`, `loop`.
    pinned_copies, pageable_copies: copies to the device by the memory that they are from, over all steps.
    serving: a serving engine by the names of its operators.
    training_mode: dropout or batch norm in training mode, in a trace without backward and optimizer.
    ranks: how many ranks the report covers, of `world_size`.
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
    """A change to try: what it could gain at most, why, and how to try it.

    `why` is a sentence with the names of `figures` in braces. `explain ID` says what the rule looks for, how its gain
    is bounded and when it stays silent.

    id: the rule, the same in every version.
    subject: the operator, rank or technique that it is about; `None` if it is about the whole step.
    gain_ns: the most by which the mean step could get shorter, `step_ns` long now; `None` if only memory is saved.
    replayed_ns: by how much it gets shorter by a replay of the trace with the host as recorded. `gain_ns` is then that
        with a host that recording does not slow, and `most_ns` the most without a replay; `None` without one.
    changes: what changes in the step, as `analyze --what-if` reads it; empty where a replay cannot say it. If it
        `is_bound` they are more than what the advice changes, so that a replay says what it gains at most.
    gain_bytes: by how much the peak would be lower, `peak_bytes` now.
    fits: whether a step that ran out of memory fits then; `None` if that is unknown.
    why: what is seen.
    figures: the figures of `why`.
    tries: what to try, in the user's terms, the most promising first.
    option: what to add to the options of `opanatomy profile` to try it.
    technique: its name in `opanatomy techniques`.
    section: the section of the report with more on it.
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
    """Host time of the launching threads by what they did, over all profiled steps; the rows sum to the threads' time.

    kind: `operator`, `range` (an annotation, an autograd node), `runtime` (a call of the device's runtime), `python`
        (nothing recorded between two events) or `others` (all names with less than 0.1 % of the time).
    name: the name of the event.
    caller: the innermost operator, else the innermost range, around a runtime call that waits for the device or frees
        its memory.
    calls: how many events.
    self_ns: their time without that of the events below them.
    total_ns: their time with it, events below another one of the same name left out.
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
    """Maps and normalizations that ran one after the other in one phase, over all profiled steps.

    A chain is a run of calls, nothing else between them, each of which reads at least as many bytes as the one before
    it wrote. One kernel for the chain would save `saved_bytes`: each result between two calls, written and read once.

    phase: the phase.
    chains: how many chains, of `calls` calls.
    time_ns: their time.
    moved_bytes: the bytes that they must move as they are; `saved_bytes` of them between two calls.
    operator: the operator with most of their time.
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
    """One event of a step that counts: the longest of its name.

    what: `kernel`, `copy`, `fill` or `collective` on a device; `operator`, `range`, `runtime` (a call of the device's
        runtime) or `python` (a function of a recorded stack that takes 0.1 ms or more) on the host.
    name: the name of the event.
    operator: the operator that launched it; on the host the innermost operator or range around it.
    signature: the arguments of the operator, of a range none; of a collective its message.
    phase: its phase, and `module` its module.
    rank: its rank, in a report of several.
    step: the number of its step.
    begin_ns: when it began, from the beginning of that step; without steps from the first device work (on
        the CPU from the beginning of the window), before that below 0.
    duration_ns: how long it lasted.
    own_ns: on the host the part of that without recorded events below it.
    thread: the thread of a host event; `device` and `stream` those of a device event.
    bytes: what a copy moves, or the message of a collective as in `Collective`; of the `group_size` ranks of a group.
    bytes_per_second: the rate of a copy, or the traffic of a collective on the links, waiting included.
    count: how many events of this name the steps have, and `median_ns` the median of their durations (on the host of
        their own times).
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
        """Return the time by which events are compared: self time, on a device the duration."""
        return self.duration_ns if self.own_ns is None else self.own_ns


# --- lanes: one step over time ---


#: A share of a peak or ceiling is shown only if its figures cover this part of the time.
MIN_COVERED = 0.5


class Provenance(Record, frozen=True, kw_only=True):
    """Where the figures come from.

    The first event of the trace begins at `begin_unix_ns` and the last ends at `end_unix_ns`, on the clock of its host;
    if the trace's times are no dates, both are in its own time.

    opanatomy: the version of opanatomy that made the report.
    command: the command line, or the call, of the capture.
    created: when the trace was captured (ISO 8601).
    trace: the name of the trace; of several ranks how many and which.
    trace_sha256: the digest of that file.
    """

    opanatomy: str
    command: str | None = None
    created: str | None = None
    trace: str | None = None
    trace_sha256: str | None = None
    begin_unix_ns: int | None = None
    end_unix_ns: int | None = None


class StepRow(Record, frozen=True, kw_only=True):
    """One step as it went.

    On an accelerator it begins with its annotation (without one, with the end of the update before), or at the end of
    the step before if that is later, and lasts until the last device work launched in it ends: the steps together cover
    the window. wall = busy + outside + unrecorded + host_idle + stream_idle + other_idle, exactly; the terms are those
    of `Timeline`. `kernel_time_ns` is the sum of the `work` device events launched in the step, and for kernels, copies
    and fills kernel_ns + memcpy_ns + memset_ns = kernel_time_ns. On the CPU wall = busy + framework, and the rest is
    not known.

    number: the number of the step in the trace, from 1 if it ends with an update; `None` if it is the whole trace.
    set_aside: why the step does not count in any figure; `None` if it does.
    wall_ns: its wall time.
    busy_ns: the union of the work launched in it; on the CPU the self time of its operators.
    outside_ns: the device did only work of another step.
    host_idle_ns: idle, host-bound.
    stream_idle_ns: idle, in a stream wait.
    other_idle_ns: idle otherwise.
    unrecorded_ns: work ran, or may have run, whose records are missing.
    idle_causes: the idle time by cause.
    phase_ns: as in `Step`.
    class_ns: the sum of its work by class, on the CPU self time.
    exposed_communication_ns: communication while no other work ran.
    framework_ns: on the CPU, wall time that no operator explains; `loading_ns` of it in ranges of loaders.
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
    """Figures of one step: the means over the steps that count, so that parts sum to their whole.

    `wall_ns` is the profiled step without the time in which the device did other steps' work only, `unprofiled_wall_ns`
    the mean of the `unprofiled_count` steps without the profiler, steps with a pause excluded. `phase_ns` is the wall
    time of each phase on the CPU, and the busy time of its device work on an accelerator. `busy_ns` is
    the union of device work, `kernel_time_ns` its sum. `profiler_ns` estimates what the profiler adds to a step:
    profiled less unprofiled time, `None` if that is lost in the differences among the steps. On the CPU it is the part
    of that outside operators, by the number of events in and outside them, and wall = busy + framework + profiler,
    exactly; if it is `None`, `framework_ns` includes it. `steps` has each step of the trace, also those that do not
    count; without annotations they end with the optimizers' updates (`conventions.steps`), else the trace is one step.

    count: how many profiled steps count, over all ranks.
    by_line_ns: the wall time of the step that ran line by line, which is none of them.
    wall_min_ns: the shortest of them; `wall_max_ns` the longest.
    unprofiled_wall_min_ns: the shortest step without the profiler; `unprofiled_wall_max_ns` the longest.
    system_ns: CPU time of an unprofiled step that all threads spent in the system, the median; `page_faults` the pages
        of memory that it gave them.
    phase_ns: the time of each phase that every step has: `forward`, `backward`, `optimizer`, and of a generation
        `prefill`, `decoding`. Recomputation is a part of backward.
    samples_per_second: samples of the batch over the unprofiled step, or over the profiled one if no other is known.
    aside_count: how many steps are set aside; of several ranks on each.
    aside_wall_ns: the mean of these steps, and `aside_idle_ns` the mean of their idle time by cause.
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
    """The whole report: what ran, where its time, FLOPs, bytes and memory went, and what could not be explained.

    A frozen record of frozen records, equal and hashed by value, and picklable. Each field is a record or a tuple of
    rows, one for each line of a table: `anatomy.step.wall_ns`, `anatomy.operators[0].time_ns`. The unit is in the name
    (`_ns`, `_bytes`, `flops`); `None` is "not known". `help(type(anatomy.step))` documents the fields of a record.

    provenance: the trace that the figures are from, and the command and time of its capture.
    environment: the device, its driver, torch and the other libraries.
    workload: the model, its batch, data types and the options that change the step.
    step: one step: wall time with and without the profiler, phases, busy time; `step.steps` has each step.
    work: what ran in the steps, one row for each operator, signature, module, phase, class and kernel, over all steps.
        The next five tables, and `breakdown`, are sums of it.
    classes: one row for each operator class and phase: calls, time, FLOPs, bytes, over all steps.
    ratios: one row for each operator class: backward over forward, measured and by theory.
    operators: one row for each operator, signature and phase, the longest first, over all steps.
    kernels: one row for each name of a kernel, copy or fill, over all steps; empty on the CPU.
    modules: one row for each module, phase and class, submodules not included, over all steps.
    memory: the peak, its components measured and by theory, the curve, the tensors alive at the peak.
    timeline: busy and idle time of the window by cause, launches, devices, streams; on an accelerator.
    device: ceilings of the device, and the share of them that was reached (`mfu`, `hfu`, `occupancy`).
    ledger: where each nanosecond of device work went: linked, classed, costed.
    conventions: how FLOPs and bytes are counted.
    generation: time to the first token, and time of each token; `None` if the step is no generation.
    collectives: one row for each collective, data type and group size, over all steps.
    communication: time and bytes of the collectives by phase and module, hidden or not; `None` if there are none.
    ranks: one row for each rank of the report; one trace that says its rank has one row, other traces none.
    spread: each figure of a step over several ranks: its minimum, median and maximum.
    waiting: waiting separated from transfer, and the straggler; `None` unless collectives of several ranks are matched.
    theory: what theory expects of backward over forward, by class.
    step_kinds: the steps by kind, those that made the same calls together; `None` in reports that lack them.
    breakdown: the time of like steps, operator by operator, from which two runs are compared; `None` without kinds.
    checks: figures checked against a second source, and those that disagree.
    advice: what to change, the largest gain first.
    situation: how the step is run, by which advice chooses its cures; `None` for memory snapshots.
    host: what the host's launching threads did, the longest first.
    chains: maps and normalizations that one kernel could do together, by phase.
    lanes: one step over time: phases, devices, streams, threads; of several ranks the device of each.
    spans: the longest single events of the steps: kernels, copies, collectives, operators, ranges, runtime calls.
    caveats: what changes the reading of every figure: a file cut off, records missing, devices of several kinds.
    warnings: what else a reader must know of the figures.
    texts: padding and tokenizers of a run on real texts; `None` otherwise.
    run: the steps of the run around the recorded ones, where a loop was recorded; of several ranks those of the one
        that waits most for its input.
    trends: what the steps of that run show over its length: drift, memory that grows, what is not recorded.
    device_state: clocks, power and temperature of the device while the recorded steps ran; of several ranks that of the
        device with the lowest clock. `None` where there is none to ask.
    compilation: what compiling the step took, and its times with and without; `None` if `profile` did not compile it.
    replay: the steps timed again as a graph; `None` on the CPU, of several ranks, and in reports of before.
    estimated: set if the step was computed for a device that is not here: its time as a range, its memory, on each
        device that was named; times in `work` are then those of usual efficiencies. `None` for what ran.
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
        """Return one row for each operator, signature and phase, the longest first."""
        return operator_rows(self.work)

    @cached_property
    def classes(self) -> tuple[ClassRow, ...]:
        """Return one row for each operator class and phase."""
        return class_rows(self.work, self.operators)

    @cached_property
    def work_ns(self) -> int:
        """Return the device work of the steps that count, on the CPU the self time of their operators."""
        return sum(row.time_ns for row in self.classes)

    @cached_property
    def ratios(self) -> tuple[Ratio, ...]:
        """Return one row for each operator class with a forward and a backward."""
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
        """Return one row per stack of user code lines, phase and class; none without `--lines`."""
        return line_rows(self.work)

    @cached_property
    def breakdown(self) -> Breakdown | None:
        """Return the time of like steps, operator by operator."""
        return None if self.step_kinds is None else breakdown_of(self.work, self.step_kinds)

    @property
    def alarms(self) -> tuple[Check, ...]:
        """Return the checks whose differences without a known cause touch at least 1 % of the device work."""
        return tuple(check for check in self.checks if check.unexplained and check.share(self.work_ns) >= MINOR)


Better: TypeAlias = Literal["lower", "higher"]


class Metric(Struct, frozen=True, kw_only=True):
    """One figure in its unit (ns, bytes, flop, fraction, ...), and the better direction; `None` if neither is better.

    With `lower_bound` the figure is at least `value`, and at most `at_most` if that is known. `exact` marks FLOPs and
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
    gaps between the device events of one collective, `outside_ns` the part of that in which only work from before (or
    after) the window ran. `began_ns` is when the host began the step, -1 if the trace does not say.
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
