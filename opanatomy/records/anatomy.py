"""The whole report, and its rows."""

from __future__ import annotations

import os
from typing import Any

from msgspec import field

from opanatomy.records.breakdown import Breakdown
from opanatomy.records.checks import MINOR, Check
from opanatomy.records.communication import Communication
from opanatomy.records.device import DeviceFigures
from opanatomy.records.generation import Generation
from opanatomy.records.memory import Memory
from opanatomy.records.ranks import Collective, Rank, Spread
from opanatomy.records.record import Record
from opanatomy.records.signature_text import SignatureText
from opanatomy.records.suggestion import Suggestions
from opanatomy.records.taxonomy import IdleCause, OperatorClass, Phase
from opanatomy.records.texts import TextFigures
from opanatomy.records.timeline import Ledger, Timeline
from opanatomy.records.waiting import Waiting
from opanatomy.records.workload import Environment, Workload

SCHEMA = 1


#: A share of a peak or a ceiling says something only where what it is of covers this part of the time.
MIN_COVERED = 0.5
#: What `bound_by` of an operator is.
COMPUTE, MEMORY = "compute", "memory"


class Provenance(Record, frozen=True, kw_only=True):
    """Where the figures come from.

    The first event of the trace begins at `begin_unix_ns`, the last ends at `end_unix_ns` on the clock of its host; a
    trace whose times are no dates has them as they are.

    opanatomy: the version of opanatomy that made the report.
    command: what was typed, or called, for the capture.
    created: when the trace was captured (ISO 8601).
    trace: the name of the trace, of several ranks how many and which.
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
    """One step as it went. On an accelerator it begins with its annotation, or where the step before it ended if that
    is later, and lasts until the last device work launched in it ends: the steps together cover the window.

    wall = busy + outside + unrecorded + host_idle + stream_idle + other_idle, exactly; the terms are those of
    `Timeline`.
    `kernel_time_ns` is the sum of the `work` device events launched in the step, and for kernels, copies
    and fills kernel_ns + memcpy_ns + memset_ns = kernel_time_ns. On the CPU
    wall = busy + framework, and the rest is not known.

    number: what the trace calls the step.
    set_aside: why the step does not count in any figure; `None` where it does.
    wall_ns: its wall time.
    busy_ns: the union of the work launched in it; on the CPU the self time of its operators.
    outside_ns: the device did only work of another step.
    host_idle_ns: idle, host-bound.
    stream_idle_ns: idle, in a stream wait.
    other_idle_ns: idle otherwise.
    unrecorded_ns: work ran, or may have run, whose records are missing.
    idle_causes: the idle time by cause.
    forward_ns: as in `Step`; so are `backward_ns`, `optimizer_ns`, `prefill_ns`, `decoding_ns`.
    framework_ns: on the CPU, wall time that no operator explains.
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
    forward_ns: int | None = None
    backward_ns: int | None = None
    optimizer_ns: int | None = None
    prefill_ns: int | None = None
    decoding_ns: int | None = None
    framework_ns: int | None = None


class Step(Record, frozen=True, kw_only=True):
    """Figures of one step: the means over the steps that count, so that parts sum to their whole.

    `wall_ns` is the profiled step without the time in which the device did other steps' work only,
    `unprofiled_wall_ns` the mean of the `unprofiled_count` steps without the profiler, those with a pause left out.
    `forward_ns` and the other phases are wall time of the phase on the CPU and busy time of its device work
    on an accelerator. `busy_ns` is the union of device work, `kernel_time_ns` its sum. `profiler_ns` is an estimate of
    what the profiler adds to a step, profiled less plain; `None` where that is lost in the differences among
    the steps. On the CPU it is the part of that outside operators, by the number of events in and outside them, and
    wall = busy + framework + profiler, exactly; where it is `None`, `framework_ns` includes it.
    `steps` has each step that the trace annotates, also those that do not count; a trace without annotations is one
    step.

    count: how many profiled steps count, of several ranks those of all.
    wall_min_ns: the shortest of them; `wall_max_ns` the longest.
    unprofiled_wall_min_ns: the shortest step without the profiler; `unprofiled_wall_max_ns` the longest.
    forward_ns: of the phases that the step has: also `backward_ns`, `optimizer_ns`, and of a generation `prefill_ns`,
        `decoding_ns`.
    samples_per_second: samples of the batch over the plain step, over the profiled one where no other is known.
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


class ClassRow(Record, frozen=True, kw_only=True):
    """One operator class in one phase, over all profiled steps; FLOPs and bytes are of the calls whose cost is known.

    `uncosted_ns` is the time of the calls without a formula: `flops` is `None` where no call has one. With the
    ceilings of the device: `bound_ns` is the least time that the calls need, `bounded_ns` what those of them took whose
    bound is known, `headroom_ns` the sum over operators of what they took beyond it, and `memory_bound_ns` the part
    of `bound_ns` that the bandwidth sets.

    operator_class: `tensor_contraction`, `statistical_normalization`, `elementwise`, `data_movement`, `communication`,
        `other` or `unknown`.
    phase: `forward`, `backward`, `recompute`, `optimizer`, `prefill`, `decoding` or `other`.
    calls: operator calls.
    kernels: the kernels, copies and fills that they launched.
    time_ns: device work; on the CPU self time.
    read_bytes: minimum bytes read, each distinct input once; `written_bytes` each output once.
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


class Ratio(Record, frozen=True, kw_only=True):
    """Backward (recompute included) over forward of one class.

    `None` where a part of either is unknown, or the forward is next to nothing: less than 1 % of the backward.

    `theory_*` is what the kinds of operators of the class lead to expect, `None` where theory gives no single number.

    operator_class: the class.
    time: ratio of time; `flops` and `bytes` of FLOPs and minimum bytes, `theory_flops` and `theory_bytes` by theory.
    """

    operator_class: OperatorClass
    time: float | None
    flops: float | None
    bytes: float | None
    theory_flops: float | None = None
    theory_bytes: float | None = None


class OperatorRow(Record, frozen=True, kw_only=True):
    """One operator with one signature in one phase, over all profiled steps.

    `uncosted_ns` is the time of those calls whose cost is not known: FLOPs, bytes and the bound are of the others.

    operator: its name.
    signature: shapes and data types of its arguments, as text.
    operator_class: the class, by `rule`, the row of the table of rules.
    calls: how often it was called.
    time_ns: device work of these calls; on the CPU self time.
    flops: of the calls whose cost is known; `read_bytes`, `written_bytes` the minimum that they move.
    causal_flops: of causal attention, those that the mask leaves.
    normalization_flops: of fused attention, those of its softmax.
    part_of: the operator whose call this one runs inside as a part of it: its FLOPs and bytes are counted there.
    bound_ns: the least time of these calls at the device's ceilings, and `bound_by` which of them ("compute",
        "memory") sets it.
    compute_type: what float32 operands were computed in by the name of the longest kernel that says: "float32", "tf32",
        "3 x tf32".
    crosses_host_link: whether it copies between host and device: no bandwidth of the device bounds it.
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
    part_of: str | None = None
    bound_ns: int | None = None
    bound_by: str | None = None
    uncosted_ns: int = 0
    compute_type: str | None = None
    crosses_host_link: bool = False

    @property
    def bounded_ns(self) -> int:
        """The time of the calls that `bound_ns` is the bound of."""
        return 0 if self.bound_ns is None else self.time_ns - self.uncosted_ns


class KernelRow(Record, frozen=True, kw_only=True):
    """One kernel name: how often it ran, for how long in all, and which operators launched it.

    kernel: the name.
    operator_class: the class, by the name alone, and by which `rule`.
    count: how often it ran.
    time_ns: for how long, in all.
    operators: the operators that launched it.
    """

    kernel: str
    operator_class: OperatorClass
    rule: str
    count: int
    time_ns: int
    operators: tuple[str, ...]


class ModuleRow(Record, frozen=True, kw_only=True):
    """The work of one module (its submodules not included) in one phase and class. `module` is `""` for the root.

    module: its path.
    kind: the name of its class.
    phase: the phase, and `operator_class` the class.
    time_ns: device work; on the CPU self time.
    flops: of the calls whose cost is known; `read_bytes`, `written_bytes` the minimum that they move.
    """

    module: str
    kind: str | None
    phase: Phase
    operator_class: OperatorClass
    time_ns: int
    flops: int | None
    read_bytes: int | None
    written_bytes: int | None


class Anatomy(Record, frozen=True, kw_only=True):
    """The whole report: what ran, where its time, FLOPs, bytes and memory went, and what could not be explained.

    A frozen record of frozen records, equal and hashed by what it holds; it can be pickled. Each field is a record or a
    tuple of rows, one a line of a table: `anatomy.step.wall_ns`, `anatomy.operators[0].time_ns`. The unit is in the
    name (`_ns`, `_bytes`, `flops`), `None` is "not known". `help(type(anatomy.step))` says what its fields are.

    provenance: the trace that the figures are from, and the command and time of its capture.
    environment: the device, its driver, torch and the other libraries.
    workload: the model, its batch, data types and the options that change the step.
    step: one step: wall time with and without the profiler, phases, busy time; `step.steps` has each step.
    classes: one row for each operator class and phase: calls, time, FLOPs, bytes, over all steps.
    ratios: one row for each operator class: backward over forward, and what theory says.
    operators: one row for each operator, signature and phase, the longest first, over all steps.
    kernels: one row for each name of a kernel, copy or fill, over all steps; empty on the CPU.
    modules: one row for each module, phase and class, submodules not included, over all steps.
    memory: the peak, its components measured and by theory, the curve, what lives at the peak.
    timeline: busy and idle time of the window by cause, launches, devices, streams; on an accelerator.
    device: ceilings of the device, and what of them was reached (`mfu`, `hfu`, `occupancy`).
    ledger: where each nanosecond of device work went: what was linked, classed, costed.
    conventions: how FLOPs and bytes are counted.
    generation: time to the first token, and what each token takes; `None` where the step is no generation.
    collectives: one row for each collective, data type and group size, over all steps.
    communication: what the collectives cost by phase and module, hidden or not; `None` where there are none.
    ranks: one row for each rank of the report; one trace that says its rank has one row, other traces none.
    spread: each figure of a step over several ranks: its minimum, median and maximum.
    waiting: waiting separated from transfer, and the straggler; `None` unless collectives of several ranks are matched.
    breakdown: what the time of like steps is made of, operator by operator, which two runs are compared by.
    checks: what was checked against a second source, and what does not agree with it.
    suggestions: what the run could be given to save memory or time; `None` in the report of a trace alone.
    caveats: what changes the reading of every figure: a file cut off, records missing, devices of several kinds.
    warnings: what else a reader must know of the figures.
    texts: padding and tokenizers of a run on real texts; `None` elsewhere.
    schema: the version of the JSON report.
    """

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
    generation: Generation | None = None
    collectives: tuple[Collective, ...] = ()
    communication: Communication | None = None
    ranks: tuple[Rank, ...] = ()
    spread: tuple[Spread, ...] = ()
    waiting: Waiting | None = None
    breakdown: Breakdown | None = None
    checks: tuple[Check, ...] = ()
    suggestions: Suggestions | None = None
    caveats: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    texts: TextFigures | None = None
    schema: int = SCHEMA

    @property
    def alarms(self) -> tuple[Check, ...]:
        """The checks whose differences without a cause touch 1 % of the device work or more."""
        work_ns = sum(row.time_ns for row in self.classes)
        return tuple(check for check in self.checks if check.unexplained and check.share(work_ns) >= MINOR)

    def metrics(self) -> dict[str, int | float]:
        """The headline figures as one flat dictionary of numbers, for any logger.

        Times are in nanoseconds, sizes in bytes, shares fractions, all of one step; what is not known is left out.
        docs/report.md, "Metrics", has each name; `to_pandas("metrics")` has units and which direction is good.
        """
        from opanatomy import methods

        return methods.metrics(self)

    def to_dict(self) -> dict[str, Any]:
        """The JSON report as dictionaries, lists, texts and numbers."""
        from opanatomy import methods

        return methods.plain_types(self)

    def to_json(self, path: str | os.PathLike[str] | None = None, *, force: bool = False) -> str:
        """The JSON report, which `opanatomy.read` takes back; also written to the new file `path` where one is given.

        `force` writes in place of an old file. Raises `OutputError` where it cannot be written.
        """
        from opanatomy import methods

        return methods.write_json(self, path, force=force)

    def to_pandas(self, table: str = "operators") -> Any:
        """A table as a `pandas.DataFrame`: a column for each field, in base units; what is not known is `<NA>`.

        Tables: operators, kernels, modules, classes, ratios, steps, memory (its components), curve (allocated bytes),
        blocks (at the peak), activations, snapshots, devices, streams, collectives, communication, ranks, spread,
        waiting, checks, suggestions, batches, tokenizers, metrics; others as the JSON report has them
        ("memory.terms"). Raises `UsageError` with all names for another one, `OpanatomyError` without pandas (the
        extra `data`).
        """
        from opanatomy import methods

        return methods.pandas_frame(self, table)

    def to_polars(self, table: str = "operators") -> Any:
        """A table as a `polars.DataFrame`, null where something is not known; tables and errors as of `to_pandas`."""
        from opanatomy import methods

        return methods.polars_frame(self, table)

    def __repr__(self) -> str:
        from opanatomy import methods

        return methods.line(self)

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        names = (("model", self.workload.model), ("trace", self.provenance.trace))
        return [*((label, name) for label, name in names if name is not None), ("metrics", self.metrics())]

    def _repr_html_(self) -> str:
        """What a notebook shows: the first screen of the report."""
        from opanatomy import methods

        return methods.html(self)
