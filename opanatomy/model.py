"""The records every stage speaks; nothing here imports anything of ours.

Units are in the names (`_ns`, `_bytes`, `flops`), integers in base units. `None` means "not known", never 0.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from enum import auto
from math import prod
from typing import TypeAlias

if sys.version_info >= (3, 11):
    from enum import StrEnum
else:
    from enum import Enum

    class StrEnum(str, Enum):
        """What Python 3.11 has: members are their lower-case names."""

        @staticmethod
        def _generate_next_value_(name: str, start: int, count: int, last_values: list[str]) -> str:
            return name.lower()

        __str__ = str.__str__


SCHEMA = 1

#: A share of a peak or a ceiling says something only where what it is of covers this part of the time.
COVERED_LEAST = 0.5

#: What ends the rule of a copy that crosses the link between host and device: no bandwidth of the device bounds it.
ACROSS = ", between host and device"
#: Ranges that a capture puts into the trace: `<prefix><phase>` and `<prefix><module path>`.
PHASE_RANGE = "opanatomy.phase/"
MODULE_RANGE = "opanatomy.module/"
#: The metadata key of a trace under which a capture keeps what Kineto does not record.
METADATA_KEY = "opanatomy"


class OperatorClass(StrEnum):
    """What kind of arithmetic an operator does; the first three are those of Ivanov et al., arXiv 2007.00072."""

    TENSOR_CONTRACTION = auto()
    STATISTICAL_NORMALIZATION = auto()
    ELEMENTWISE = auto()
    DATA_MOVEMENT = auto()
    COMMUNICATION = auto()
    OTHER = auto()
    UNKNOWN = auto()


class Phase(StrEnum):
    """The part of a training step that an operator ran in."""

    FORWARD = auto()
    BACKWARD = auto()
    RECOMPUTE = auto()
    OPTIMIZER = auto()
    OTHER = auto()


ITEM_SIZE = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1, "bool": 1,
    "complex64": 8, "complex128": 16, "complex32": 4, "qint8": 1, "quint8": 1, "qint32": 4,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stored:
    """What a tensor without strides keeps: its stored elements and the bytes of their indices; `None` if not said.

    A trace shows the shape of a sparse tensor and no strides; how many elements it stores only a capture observes.
    """

    elements: int | None = None
    index_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor argument: its shape, data type (torch's name without `torch.`) and strides in elements.

    `dtype` is `None` where the trace does not record it (elements of a tensor list); `strides` likewise. `sparse` is
    set where the trace says that there are no strides: for sparse tensors, and those in oneDNN's own layout.
    """

    shape: tuple[int, ...]
    dtype: str | None = None
    strides: tuple[int, ...] | None = None
    sparse: Stored | None = None

    @property
    def numel(self) -> int:
        """Elements of the shape."""
        return prod(self.shape)

    @property
    def stored(self) -> int:
        """Distinct elements in memory: a dimension of stride 0 counts once."""
        if self.strides is None or len(self.strides) != len(self.shape):
            return self.numel
        return prod(size if stride else min(size, 1) for size, stride in zip(self.shape, self.strides, strict=True))

    @property
    def item_bytes(self) -> int | None:
        """Bytes of one element; `None` where the data type is not known."""
        return None if self.dtype is None else ITEM_SIZE.get(self.dtype)

    @property
    def bytes(self) -> int | None:
        """Bytes that reading each distinct element once moves; those of a sparse tensor with its indices."""
        size, sparse = self.item_bytes, self.sparse
        if size is None or sparse is None:
            return None if size is None else self.stored * size
        if sparse.elements is None or sparse.index_bytes is None:
            return None
        return sparse.elements * size + sparse.index_bytes

    def __str__(self) -> str:
        text = f"{self.dtype or '?'}[{','.join(map(str, self.shape))}]"
        if self.sparse is None:
            return text
        return f"{text} without strides" if self.sparse.elements is None else f"{text} sparse {self.sparse.elements}"


Argument: TypeAlias = "Tensor | int | float | bool | str | tuple[Argument, ...] | None"


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments of one operator call in the order of its schema, as the trace recorded them.

    A tensor is a `Tensor`, a tensor list a tuple of them, an integer list a tuple of int, an absent optional `None`.
    """

    arguments: tuple[Argument, ...]

    def tensor(self, index: int) -> Tensor:
        """The tensor at `index`; `LookupError` where there is none."""
        value = self.arguments[index]
        if not isinstance(value, Tensor):
            raise LookupError(f"argument {index} is {value!r}, not a tensor")
        return value

    def get(self, index: int, default: Argument = None) -> Argument:
        """The argument at `index`, or `default` where the trace has none or it is absent."""
        value = self.arguments[index] if index < len(self.arguments) else None
        return default if value is None else value

    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor argument, those inside lists included."""
        found: list[Tensor] = []
        for value in self.arguments:
            if isinstance(value, Tensor):
                found.append(value)
            elif isinstance(value, tuple):
                found.extend(item for item in value if isinstance(item, Tensor))
        return tuple(found)

    def __str__(self) -> str:
        return ", ".join(_text(value) for value in self.arguments)


def _text(value: Argument) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_text, value))}]"
    return "-" if value is None else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    """What a name was classed as, and the rule that decided.

    `operator_class` is `None` for an operator that does no work of its own: composite, view, allocation, autograd
    node. `delegates` marks an operator that computes only where no operator below it can do its work
    (`aten::_convolution` calls `aten::mkldnn_convolution`, but runs a transposed convolution itself), `composite` one
    of those that never has a kernel: it is what it calls, be that copies alone (`aten::matrix_power` of exponent 1).
    `contains` names the other classes inside a fused operator.
    """

    operator_class: OperatorClass | None
    rule: str
    delegates: bool = False
    contains: tuple[OperatorClass, ...] = ()
    composite: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one operator call must compute and move at least.

    `flops` are those of the operator's class, in the full convention (a causal mask does not halve them).
    """

    flops: int
    read_bytes: int
    written_bytes: int
    #: The same FLOPs counting only what a causal mask leaves; `None` where the operator has no such notion.
    causal_flops: int | None = None
    #: FLOPs of a normalization fused into a contraction (softmax inside flash attention), not part of `flops`.
    normalization_flops: int = 0


# ------------------------------------------------------------------------------------------------ what a capture knows


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The machine and the libraries of a run; `None` where the trace does not say."""

    device: str | None = None
    device_kind: str | None = None
    device_count: int | None = None
    device_memory_bytes: int | None = None
    #: Multiprocessors (compute units) of the device.
    multiprocessors: int | None = None
    #: What its kernels are compiled for: `sm_90`, `gfx942`.
    architecture: str | None = None
    #: Whether it is a MIG instance, a part of a GPU; `None` where the driver was not asked.
    mig: bool | None = None
    torch: str | None = None
    cuda: str | None = None
    driver: str | None = None
    transformers: str | None = None
    python: str | None = None
    host_threads: int | None = None
    processor: str | None = None
    #: What torch was allowed to compute float32 matrix products and convolutions in: "tf32", or "ieee" for float32.
    matmul_float32: str | None = None
    convolution_float32: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What was run: the model, its batch and the options that change the step."""

    model: str | None = None
    architecture: str | None = None
    model_source: str | None = None
    parameters: int | None = None
    trainable_parameters: int | None = None
    task: str | None = None
    batch: int | None = None
    sequence_length: int | None = None
    inputs: tuple[str, ...] = ()
    dtype: str | None = None
    amp: str | None = None
    #: What the loss is multiplied by before backward, under float16 autocast: that of the last profiled step.
    loss_scale: float | None = None
    attention: str | None = None
    checkpointing: str | None = None
    compiled: bool | None = None
    optimizer: str | None = None
    inference: bool | None = None
    steps: int | None = None
    warmup: int | None = None
    seed: int | None = None
    #: What backward started from: an expression of the model's output, and why that one.
    backward_from: str | None = None
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryComponent:
    """One part of the memory of a step: measured and by theory, with the formula as text."""

    component: str
    measured_bytes: int | None = None
    theory_bytes: int | None = None
    formula: str | None = None
    #: What of it is live at the peak; these sum to `peak_bytes` exactly where they were measured. `None` for what the
    #: allocator does not count (context, cache) and where the step was not looked at in depth.
    at_peak_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCheckPoint:
    """What is in use at one place of the run; `None` where it is not known (no allocator touched, no NVML)."""

    name: str
    allocated_bytes: int | None = None
    #: What the allocator holds of the device, blocks free for use again included.
    reserved_bytes: int | None = None
    #: What is used of the whole device (of the MIG instance), by everyone, as NVML says.
    nvml_used_bytes: int | None = None
    #: What NVML says that this process holds of it, its context included.
    nvml_process_bytes: int | None = None
    #: The resident set of the process on the host.
    rss_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedActivations:
    """Storages of one shape that forward saved for backward in like modules (`*` for a number in the path).

    `operator` made them, `saved_by` are the operators whose backward needs them.
    """

    module: str
    operator: str | None
    shape: tuple[int, ...]
    dtype: str
    blocks: int
    bytes: int
    saved_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFailure:
    """Where a step ran out of memory: what was allocated then, and the request that could not be met."""

    phase: Phase
    message: str
    requested_bytes: int | None = None
    allocated_bytes: int | None = None
    #: Whether the components are those of the moment at which it broke.
    seen: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTerm:
    """One term of the closed formula of a component: `formula` in the letters of the literature, its bytes."""

    component: str
    term: str
    formula: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySaving:
    """What one technique takes from the theoretical need, and whether the step then fits."""

    technique: str
    option: str
    saved_bytes: int
    needed_bytes: int
    fits: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFigure:
    """One figure of a published run beside ours."""

    figure: str
    published: float
    measured: float | None
    unit: str
    published_device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The numbers of a transformer's configuration that its memory is a function of.

    `kind` says which closed formula is its own ("bert", "gpt2", "llama").
    """

    kind: str
    layers: int
    hidden: int
    heads: int
    intermediate: int
    vocabulary: int
    key_value_heads: int
    head_size: int
    labels: int = 0
    #: What stands on top: "classification", "language_model", "none".
    head: str = "none"
    #: Bytes of a dropout-mask element: 1 on CUDA, those of the activations on the CPU.
    mask_bytes: int | None = None
    dropout: float = 0.0
    attention_dropout: float = 0.0
    #: Name of the activation function in the configuration.
    activation: str = "gelu"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryInference:
    """What of a component is so called only because of what was seen of its blocks (`rule`), at the peak."""

    component: str
    rule: str
    bytes: int
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPoint:
    """Bytes allocated from one time on, counted from the start of the window; `components` sum to them exactly."""

    time_ns: int
    phase: Phase
    allocated_bytes: int
    #: What the allocator held of the device, blocks free for use again included.
    reserved_bytes: int | None = None
    components: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBlocks:
    """The blocks, live at the peak, that one operator of a module allocated in one phase and one rule placed.

    `bytes` is the sum, `largest_bytes` the largest of them; `rule` is that of `MemoryInference`, `None` where the
    component was measured.
    """

    operator: str | None
    module: str | None
    phase: Phase
    component: str
    blocks: int
    bytes: int
    largest_bytes: int
    rule: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryDevice:
    """What the allocator of one device recorded in the trace.

    `peak_bytes` is the most in the window; its `components` and `inferences` sum to it exactly. Blocks that were
    allocated before the first event (`before_window_bytes`) are known as a sum where the events say the allocator's
    total (that of the CPU begins with profiling), else as far as their frees were seen, `None` where none was.
    `unmatched_frees` are the frees of such blocks; `never_freed` blocks outlive the trace; of `unseen_frees` the
    address was given again without a free between. `uneven_frees` gave back other than what was allocated there.
    `checked_events` say the allocator's total; in `equal_events` it is the sum of our blocks and a constant.
    """

    device: str
    events: int
    blocks: int
    peak_bytes: int
    peak_ns: int
    peak_at: Phase
    #: "address", or where the trace has none "size": the last block of a size is taken for the one that is freed.
    matched_by: str
    before_window_bytes: int | None = None
    reserved_peak_bytes: int | None = None
    reserved_at_peak_bytes: int | None = None
    unmatched_frees: int = 0
    unmatched_free_bytes: int = 0
    never_freed: int = 0
    never_freed_bytes: int = 0
    unseen_frees: int = 0
    unseen_free_bytes: int = 0
    uneven_frees: int = 0
    checked_events: int = 0
    equal_events: int = 0
    largest_difference_bytes: int = 0
    #: Our bytes and the allocator's where they differ most.
    at_largest_difference: tuple[int, int] | None = None
    components: tuple[MemoryComponent, ...] = ()
    inferences: tuple[MemoryInference, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorFigures:
    """What the allocator of a device says itself of the step that was looked at in depth: a second source.

    `backend` is torch's name of it ("native", "cudaMallocAsync", "pluggable"), "uncached" or "cpu". `peak_bytes` is the
    most that it had handed out (`torch.cuda.max_memory_allocated`), which the CPU's does not keep. `before_bytes` is
    its total before the step (`torch.cuda.memory_allocated`), `before_blocks_bytes` the sum of the blocks of its
    snapshot. In `equal_events` of `checked_events` its total is what the replayed blocks sum to;
    `at_largest_difference` has (ours, the allocator's) where they differ most. Of `unseen_frees` the address was given
    again without a free.
    """

    device: str
    backend: str | None = None
    peak_bytes: int | None = None
    reserved_peak_bytes: int | None = None
    before_bytes: int | None = None
    before_blocks_bytes: int | None = None
    checked_events: int = 0
    equal_events: int = 0
    largest_difference_bytes: int = 0
    at_largest_difference: tuple[int, int] | None = None
    unseen_frees: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory of a step. `measured_by` says what `peak_bytes` is (allocator, process).

    `timeline` is the curve of allocated bytes over the window, its peak among the points; `blocks` are the largest at
    that peak, and `unlisted_bytes` the sum of the others. Both are of the first of `devices`. The components are
    inferred, not measured, where there are `inferences`.
    """

    peak_bytes: int | None = None
    peak_at: str | None = None
    measured_by: str | None = None
    components: tuple[MemoryComponent, ...] = ()
    inferences: tuple[MemoryInference, ...] = ()
    timeline: tuple[MemoryPoint, ...] = ()
    blocks: tuple[MemoryBlocks, ...] = ()
    unlisted_bytes: int = 0
    devices: tuple[MemoryDevice, ...] = ()
    check_points: tuple[MemoryCheckPoint, ...] = ()
    activations: tuple[SavedActivations, ...] = ()
    #: What the allocator says of the step that `profile --memory` looked at.
    allocator: AllocatorFigures | None = None
    #: Other devices that hold a part of the module: what is on them is none of these figures.
    uncovered_devices: tuple[str, ...] = ()
    #: What could not be measured, and why.
    notes: tuple[str, ...] = ()
    shape: ModelShape | None = None
    terms: tuple[MemoryTerm, ...] = ()
    #: What theory says the step needs, temporary buffers apart, and what would lower it.
    needed_bytes: int | None = None
    savings: tuple[MemorySaving, ...] = ()
    published: tuple[PublishedFigure, ...] = ()
    failure: MemoryFailure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedCall:
    """A call of which Kineto drops arguments, all of them as JSON: a tensor is `{"shape", "dtype", "strides"}`."""

    operator: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedCount:
    """How often one step called an operator in a phase, as a dispatch mode below autograd saw it.

    `flops` are those of all these calls by a second formula, that of `source`; `None` where there is none.
    """

    operator: str
    phase: Phase
    calls: int
    flops: int | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """What a capture writes into the trace under `METADATA_KEY`: all that Kineto does not record."""

    version: str
    command: str
    created: str
    environment: Environment
    workload: Workload
    memory: Memory = field(default_factory=Memory)
    #: Wall time of each unprofiled and each profiled step.
    unprofiled_step_ns: tuple[int, ...] = ()
    profiled_step_ns: tuple[int, ...] = ()
    #: Module path -> class name, in the order of `named_modules`.
    modules: dict[str, str] = field(default_factory=dict)
    #: Kineto drops the data types of tensor lists, and the shapes of long ones: the distinct lists as text
    #: (`float32[2,3];float32[4]`), and for the External id of each call with lists which of them its arguments are.
    lists: tuple[str, ...] = ()
    list_arguments: dict[str, tuple[int, ...]] = field(default_factory=dict)
    #: The calls of one step, in order, of operators with arguments that Kineto drops (indices, strings).
    observed: tuple[ObservedCall, ...] = ()
    #: What a dispatch mode saw run in a step of the warm-up; empty, and `not_observed` why, where none could watch.
    observed_counts: tuple[ObservedCount, ...] = ()
    #: Which step of the warm-up that was, from 1: a first step also does what is done only once.
    observed_step: int | None = None
    not_observed: str | None = None
    #: Time of each operator by its name as the profiler itself sums it up (`key_averages`): that of the device work it
    #: launched, on the CPU its self time, over all profiled steps.
    profiler_times_ns: dict[str, int] = field(default_factory=dict)
    #: Module path -> what of its products needs a gradient, as a step showed it: "weight", "input", "both", "none". A
    #: module without weights of its own has products of activations: "both" or "none".
    gradients: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


# ------------------------------------------------------------------------------------------------------- the anatomy


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
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
    framework_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
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
    busy_ns: int | None = None
    kernel_time_ns: int | None = None
    framework_ns: int | None = None
    profiler_ns: int | None = None
    samples_per_second: float | None = None
    steps: tuple[StepRow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRow:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRow:
    """One operator with one signature in one phase, over all profiled steps.

    `uncosted_ns` is the time of those calls whose cost is not known: FLOPs, bytes and the bound are of the others.
    """

    operator: str
    signature: str
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

    @property
    def bounded_ns(self) -> int:
        """The time of the calls that `bound_ns` is the bound of."""
        return 0 if self.bound_ns is None else self.time_ns - self.uncosted_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """One kernel name: how often it ran, for how long in all, and which operators launched it."""

    kernel: str
    operator_class: OperatorClass
    rule: str
    count: int
    time_ns: int
    operators: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRow:
    """The work of one module (its submodules not included) in one phase and class. `module` is `""` for the root."""

    module: str
    kind: str | None
    phase: Phase
    operator_class: OperatorClass
    time_ns: int
    flops: int | None
    read_bytes: int | None
    written_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """The window on one device; the terms are those of `Timeline`. `name` is what the trace calls the device."""

    device: int
    work: int
    kernel_time_ns: int
    busy_ns: int
    outside_ns: int
    host_idle_ns: int
    stream_idle_ns: int
    other_idle_ns: int
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRow:
    """The work of the window on one stream: pieces, their union and sum, and the sum of each class."""

    device: int
    stream: int
    work: int
    busy_ns: int
    kernel_time_ns: int
    classes: dict[OperatorClass, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launching:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Wall clock of the window, from the start of the first step to the end of the last device work.

    window = busy + outside + idle, and idle = host_idle + stream_idle + other_idle, exactly. `busy_ns` is the union of
    the window's device work; `outside_ns` the time in which the device only did work launched before (or after) the
    window. Idle time is host-bound where what comes next was launched after the device fell idle, a stream wait where
    it was already launched and another stream worked last, other in all other cases. Communication and memcpy are
    exposed where no other work of the device runs; `computation_ns` is the union of the work that is neither. With
    several devices these are means over the devices that ran kernels; `kernel_time_ns`, `launching`, `devices` and
    `streams` are of all.
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
    #: The idle time between the first and the last device work of the window, without that before and after.
    inner_idle_ns: int | None = None
    computation_ns: int | None = None
    memcpy_ns: int | None = None
    kernel_time_ns: int | None = None
    launching: Launching | None = None
    devices: tuple[DeviceRow, ...] = ()
    streams: tuple[StreamRow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFigures:
    """Ceilings of the device and what of them was reached; `source` says where the ceilings are from.

    `peak_flops_per_second` is of matrix products by data type, `vector_flops_per_second` of all other arithmetic.
    `mfu` is the share of the peak of `mfu_dtype`, the data type of most contractions, that the step's contractions
    reach without recompute, `hfu` with it; `mfu_covered` is the part of the time of contractions (and of what no rule
    knows) whose FLOPs are known: below 1 both are lower bounds, below `COVERED_LEAST` they are `None`.
    `no_ceilings` says why there are no ceilings, and how to get them. `unsure_ns` is the time of float32 products of
    which neither a kernel's name nor a setting tells whether they ran as tf32: they have no bound.
    `utilization` is the union of the kernels over the total time of the steps. `sm_efficiency` is the
    mean over the same time of min(sum over the kernels that run then of min(blocks per multiprocessor, 1), 1),
    `occupancy` the mean of the kernels' estimated
    occupancy weighted by duration, both as fractions and estimated by Kineto from launch dimensions, which the trace
    has for `dimensioned_ns` of the kernel time. `tensor_core_ns` is the time of kernels that by their names use tensor
    (matrix) cores. `None` where the trace lacks what is needed.
    """

    peak_flops_per_second: dict[str, float] = field(default_factory=dict)
    vector_flops_per_second: dict[str, float] = field(default_factory=dict)
    bandwidth_bytes_per_second: float | None = None
    source: str | None = None
    no_ceilings: str | None = None
    mfu: float | None = None
    hfu: float | None = None
    mfu_dtype: str | None = None
    mfu_covered: float | None = None
    utilization: float | None = None
    sm_efficiency: float | None = None
    occupancy: float | None = None
    dimensioned_ns: int | None = None
    tensor_core_ns: int | None = None
    unsure_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Where each nanosecond of device work went.

    linked + graph_launched + no_launch_record + outside_window = device_work, exactly. `classed`, `costed` and
    `unknown` are shares of device_work - outside_window; classed + unknown is that difference, exactly.
    """

    device_work_ns: int
    linked_ns: int
    graph_launched_ns: int
    no_launch_record_ns: int
    outside_window_ns: int
    classed_ns: int
    costed_ns: int
    unknown_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """The calls of one collective with one data type among one number of ranks, over all steps of the window.

    `time_ns` is the time of its device work, on the CPU that of the backend's annotations; waiting for the slowest rank
    is part of it. `bytes` is the size of the messages as nccl-tests counts it
    (what a rank sends in an all-reduce, what it has in the end of an all-gather) and `bus_bytes_per_second` what that
    puts on the links, over `sized_ns`, the time of the calls whose size the trace has.
    """

    collective: str
    dtype: str | None
    group_size: int | None
    #: Whether the trace names no group, so that all ranks are taken for it.
    group_assumed: bool
    calls: int
    kernels: int
    time_ns: int
    sized_ns: int
    bytes: int | None
    bus_bytes_per_second: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One rank of a distributed run; `rank` is `None` where neither the trace nor its file's name says which.

    `wall_ns` is the median step. The other times are sums over the rank's `steps` steps.
    """

    rank: int | None
    world_size: int | None
    trace: str | None
    trace_sha256: str | None
    device: str | None
    steps: int
    wall_ns: int | None
    window_ns: int
    busy_ns: int
    idle_ns: int
    kernel_time_ns: int
    communication_ns: int | None
    exposed_communication_ns: int | None
    exposed_memcpy_ns: int | None

    def a_step(self, figure: str) -> int | None:
        """One of these figures of a step, sums divided by the number of steps.

        `step` is the median step, `own` the step less exposed communication: what the rank does of its own while
        others may be waiting for it.
        """
        if figure == "step":
            return self.wall_ns
        if figure == "own":
            exposed = self.a_step("exposed_communication")
            return None if exposed is None or self.wall_ns is None else max(self.wall_ns - exposed, 0)
        total: int | None = getattr(self, f"{figure}_ns")
        return None if total is None else total // max(self.steps, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """One figure of a step (`Rank.a_step`) over the ranks: its least, its median, its most, and which rank has most."""

    figure: str
    least_ns: int
    median_ns: int
    most_ns: int
    most_rank: int | None
    most_trace: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One figure of the report that a second source does not confirm, both in the unit of its check.

    `cause` says why where a known cause does; `None` is an error of this tool, or a trace that cannot be right.
    `evidence` is what a reader can look up: modules, shapes, times.
    """

    operator: str
    phase: Phase | None = None
    ours: int | None = None
    other: int | None = None
    cause: str | None = None
    evidence: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The figures of one kind, held against a second source that does not share their attribution.

    `quantity` is what was compared ("call counts", "contraction FLOPs", "operator times", "backward contractions", ...)
    and `unit` its unit ("calls", "FLOPs", "ns"). Of the
    `compared` figures `equal` agree; each other one has a row in `differences`.
    `not_checked` says why nothing, or not all, could be compared.
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
        """The differences of which no cause is known."""
        return tuple(one for one in self.differences if one.cause is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
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
    collectives: tuple[Collective, ...] = ()
    #: The ranks that the report is over; one trace that says its rank has one row, other traces none.
    ranks: tuple[Rank, ...] = ()
    spread: tuple[Spread, ...] = ()
    #: What was held against a second source, and what does not agree with it.
    checks: tuple[Check, ...] = ()
    warnings: tuple[str, ...] = ()
    schema: int = SCHEMA


# -------------------------------------------------------------------------------------------- what a device can do


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """The most a device can do, and where the figures are from.

    Peaks are dense, in operations a second (a multiply-add is two). Those of matrix multiplication go by torch's name
    of the data type: `float32` is what a float32 product reaches with tf32 off, `tf32` with it on, `float8` any 8-bit
    float. Those of all other arithmetic (`vector_...`) are known for float32 and float64. `None`, or no entry, means
    that the device has no such unit or nobody says how fast it is.
    """

    device: str
    source: str
    matrix_flops_per_second: dict[str, float] = field(default_factory=dict)
    vector_flops_per_second: dict[str, float] = field(default_factory=dict)
    bandwidth_bytes_per_second: float | None = None
    memory_bytes: int | None = None
    #: The size of the last cache before the memory that `bandwidth_bytes_per_second` is of: L2, on MI300 the L3.
    cache_bytes: int | None = None

    def matrix_peak(self, dtype: str | None, *, tf32: bool = False) -> float | None:
        """Operations a second of matrix products of `dtype` (torch's name), float32 ones in tf32 if `tf32`.

        Of "3 x tf32" a third of the tf32 peak: three products each.
        """
        if dtype == "3 x tf32":
            peak = self.matrix_flops_per_second.get("tf32")
            return None if peak is None else peak / 3
        name = "float8" if dtype is not None and dtype.startswith("float8") else dtype
        if name == "float32" and tf32:
            return self.matrix_flops_per_second.get("tf32", self.matrix_flops_per_second.get("float32"))
        return self.matrix_flops_per_second.get(name) if name is not None else None

    def vector_peak(self, dtype: str | None) -> float | None:
        """Operations a second of element-wise work and reductions of `dtype`; torch computes halves in float32."""
        name = "float64" if dtype in ("float64", "complex128") else "float32"
        return self.vector_flops_per_second.get(name) if dtype is not None else None
