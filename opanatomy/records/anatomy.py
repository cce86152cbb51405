"""The whole report, and its rows."""

from __future__ import annotations

from msgspec import Struct, field

from opanatomy.records.breakdown import Breakdown
from opanatomy.records.checks import Check
from opanatomy.records.communication import Communication
from opanatomy.records.device import DeviceFigures
from opanatomy.records.generation import Generation
from opanatomy.records.memory import Memory
from opanatomy.records.ranks import Collective, Rank, Spread
from opanatomy.records.signature_text import SignatureText
from opanatomy.records.suggestion import Suggestions
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.records.texts import TextFigures
from opanatomy.records.timeline import Ledger, Timeline
from opanatomy.records.waiting import Waiting
from opanatomy.records.workload import Environment, Workload

SCHEMA = 1


#: A share of a peak or a ceiling says something only where what it is of covers this part of the time.
COVERED_LEAST = 0.5


class Provenance(Struct, frozen=True, kw_only=True):
    """Where the figures come from.

    The first event of the trace begins at `begin_unix_ns`, the last ends at `end_unix_ns` on the clock of its host; a
    trace whose times are no dates has them as they are.
    """

    opanatomy: str
    command: str | None = None
    created: str | None = None
    trace: str | None = None
    trace_sha256: str | None = None
    begin_unix_ns: int | None = None
    end_unix_ns: int | None = None


class StepRow(Struct, frozen=True, kw_only=True):
    """One step as it went. On an accelerator it begins with its annotation, or where the step before it ended if that
    is later, and lasts until the last device work launched in it ends: the steps together cover the window.

    wall = busy + outside + host_idle + stream_idle + other_idle, exactly; the terms are those of `Timeline`.
    `kernel_time_ns` is the sum of the `work` pieces of device work launched in the step, and that of kernels, copies
    and fills apart is kernel_ns + memcpy_ns + memset_ns = kernel_time_ns. On the CPU only the wall time is known.
    """

    number: int | None
    wall_ns: int
    busy_ns: int | None = None
    outside_ns: int | None = None
    host_idle_ns: int | None = None
    stream_idle_ns: int | None = None
    other_idle_ns: int | None = None
    kernel_time_ns: int | None = None
    kernel_ns: int | None = None
    memcpy_ns: int | None = None
    memset_ns: int | None = None
    work: int | None = None
    forward_ns: int | None = None
    backward_ns: int | None = None
    optimizer_ns: int | None = None
    prefill_ns: int | None = None
    decoding_ns: int | None = None
    framework_ns: int | None = None


class Step(Struct, frozen=True, kw_only=True):
    """Figures of one step: where there are several those of the step in the middle by wall time, of an even number the
    means of the two, so that all are of the same steps and parts sum to at most their whole.

    `wall_ns` is the profiled step, `unprofiled_wall_ns` the median of the `unprofiled_count` steps without the
    profiler. `forward_ns` and the other phases are wall time of the phase on the CPU and busy time of its device work
    on an accelerator. `busy_ns` is the union of device work, `kernel_time_ns` its sum. `profiler_ns` is an estimate of
    what the profiler adds to a step, profiled less plain; `None` where that cannot be told from the differences among
    the steps. On the CPU it is the part of that outside operators, by the number of events in and outside them, and
    wall = busy + framework + profiler, exactly; where it is `None`, `framework_ns` includes it.
    `steps` has each step that the trace annotates; a trace without annotations is one step.
    """

    count: int = 1
    wall_ns: int | None = None
    wall_min_ns: int | None = None
    wall_max_ns: int | None = None
    unprofiled_wall_ns: int | None = None
    unprofiled_wall_min_ns: int | None = None
    unprofiled_wall_max_ns: int | None = None
    unprofiled_count: int | None = None
    forward_ns: int | None = None
    backward_ns: int | None = None
    optimizer_ns: int | None = None
    prefill_ns: int | None = None
    decoding_ns: int | None = None
    busy_ns: int | None = None
    kernel_time_ns: int | None = None
    framework_ns: int | None = None
    profiler_ns: int | None = None
    samples_per_second: float | None = None
    steps: tuple[StepRow, ...] = ()


class ClassRow(Struct, frozen=True, kw_only=True):
    """One operator class in one phase, over all profiled steps; FLOPs and bytes are of the calls whose cost is known.

    `uncosted_ns` is the time of the calls without a formula: `flops` is `None` where no call has one. Beside the
    ceilings of the device: `bound_ns` is the least time that the calls need, `bounded_ns` what those of them took whose
    bound is known, `headroom_ns` the sum over operators of what they took beyond it, and `memory_bound_ns` the part
    of `bound_ns` that the bandwidth sets.
    """

    operator_class: OperatorClass
    phase: Phase
    calls: int
    kernels: int
    time_ns: int
    flops: int | None
    read_bytes: int | None
    written_bytes: int | None
    uncosted_ns: int = 0
    bound_ns: int | None = None
    bounded_ns: int = 0
    headroom_ns: int | None = None
    memory_bound_ns: int | None = None


class Ratio(Struct, frozen=True, kw_only=True):
    """Backward (recompute included) over forward of one class.

    `None` where a part of either is unknown, or the forward is next to nothing: less than 1 % of the backward.

    `theory_*` is what the kinds of operators of the class lead to expect, `None` where theory gives no single number.
    """

    operator_class: OperatorClass
    time: float | None
    flops: float | None
    bytes: float | None
    theory_flops: float | None = None
    theory_bytes: float | None = None


class OperatorRow(Struct, frozen=True, kw_only=True):
    """One operator with one signature in one phase, over all profiled steps.

    `uncosted_ns` is the time of those calls whose cost is not known: FLOPs, bytes and the bound are of the others.
    """

    operator: str
    signature: SignatureText
    phase: Phase
    operator_class: OperatorClass
    rule: str
    calls: int
    time_ns: int
    flops: int | None
    read_bytes: int | None
    written_bytes: int | None
    causal_flops: int | None = None
    normalization_flops: int | None = None
    #: The operator whose call this one runs inside as a part of it: its FLOPs and bytes are counted there.
    part_of: str | None = None
    #: The least time of these calls at the device's ceilings, and which of them ("compute", "memory") sets it.
    bound_ns: int | None = None
    bound_by: str | None = None
    uncosted_ns: int = 0
    #: What the longest kernel whose name tells computed float32 operands in: "float32", "tf32", "3 x tf32".
    compute_type: str | None = None
    #: Whether it copies between host and device: no bandwidth of the device bounds it.
    crosses_host_link: bool = False

    @property
    def bounded_ns(self) -> int:
        """The time of the calls that `bound_ns` is the bound of."""
        return 0 if self.bound_ns is None else self.time_ns - self.uncosted_ns


class KernelRow(Struct, frozen=True, kw_only=True):
    """One kernel name: how often it ran, for how long in all, and which operators launched it."""

    kernel: str
    operator_class: OperatorClass
    rule: str
    count: int
    time_ns: int
    operators: tuple[str, ...]


class ModuleRow(Struct, frozen=True, kw_only=True):
    """The work of one module (its submodules not included) in one phase and class. `module` is `""` for the root."""

    module: str
    kind: str | None
    phase: Phase
    operator_class: OperatorClass
    time_ns: int
    flops: int | None
    read_bytes: int | None
    written_bytes: int | None


class Anatomy(Struct, frozen=True, kw_only=True):
    """The whole report: what ran, where the time, FLOPs and bytes went, and what could not be explained."""

    provenance: Provenance
    environment: Environment
    workload: Workload
    step: Step
    classes: tuple[ClassRow, ...]
    ratios: tuple[Ratio, ...]
    operators: tuple[OperatorRow, ...]
    kernels: tuple[KernelRow, ...]
    modules: tuple[ModuleRow, ...]
    memory: Memory
    timeline: Timeline
    device: DeviceFigures
    ledger: Ledger
    conventions: dict[str, str | int] = field(default_factory=dict)
    #: Where the steps are generations.
    generation: Generation | None = None
    collectives: tuple[Collective, ...] = ()
    #: What the collectives cost, hidden or not; `None` where there are none.
    communication: Communication | None = None
    #: The ranks that the report is over; one trace that says its rank has one row, other traces none.
    ranks: tuple[Rank, ...] = ()
    spread: tuple[Spread, ...] = ()
    #: Waiting told from transferring, where the collectives of several ranks are matched.
    waiting: Waiting | None = None
    #: What the time of like steps is made of, which two runs are compared by.
    breakdown: Breakdown | None = None
    #: What was held against a second source, and what does not agree with it.
    checks: tuple[Check, ...] = ()
    #: What the run could be given to save memory or time, by prediction; not in the report of a trace alone.
    suggestions: Suggestions | None = None
    warnings: tuple[str, ...] = ()
    #: Of a run on real texts.
    texts: TextFigures | None = None
    schema: int = SCHEMA
