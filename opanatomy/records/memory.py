"""Define the records of a step's memory, and detect out-of-memory errors."""

from __future__ import annotations

import errno
import re
from typing import Final

from msgspec import field

from opanatomy.records.codec import Name, Record
from opanatomy.records.patterns import regex
from opanatomy.records.taxonomy import Phase

#: The part of `scaled_dot_product_attention` that writes its scores, where no fused kernel runs.
MATH_ATTENTION: Final = "_scaled_dot_product_attention_math"


class MemoryComponent(Record, frozen=True, kw_only=True):
    """One component of a step's memory: measured and theoretical, with the formula as text.

    For a memory snapshot, the components' `shown_bytes` sum to that of `Memory`, except for blocks that are freed but
    wait for another stream (`pending_free`).

    component: `weights`, `gradients`, `optimizer_state`, `forward_activations`, ...
    measured_bytes: its maximum in the step; if inferred from the times of a trace's blocks, its size at the peak.
    theory_bytes: its size by `formula`.
    at_peak_bytes: the part live at the peak; these parts sum to `peak_bytes` exactly. `None` for memory that the
        allocator does not count (context, cache), and if the step was not observed allocation by allocation.
    shown_bytes: for a memory snapshot, the part live at the moment shown.
    """

    component: Name
    measured_bytes: int | None = None
    theory_bytes: int | None = None
    formula: str | None = None
    at_peak_bytes: int | None = None
    shown_bytes: int | None = None


#: Snapshot names, in the order of a run.
START, CONTEXT, WEIGHTS = "before_the_device", "context", "weights"
AFTER_FORWARD, AFTER_BACKWARD, AFTER_OPTIMIZER, PEAK = "after_forward", "after_backward", "after_optimizer", "peak"


class MemorySnapshot(Record, frozen=True, kw_only=True):
    """Memory in use at one point of the run; a value is `None` if it is unknown (no allocator was used, or no NVML)."""

    name: str
    allocated_bytes: int | None = None
    #: Device memory reserved by the allocator, including free blocks.
    reserved_bytes: int | None = None
    #: Memory in use on the entire device (or MIG instance), by all processes, according to NVML.
    nvml_used_bytes: int | None = None
    #: Device memory of this process according to NVML, its context included.
    nvml_process_bytes: int | None = None
    #: The resident set of the process on the host.
    rss_bytes: int | None = None


class SavedActivations(Record, frozen=True, kw_only=True):
    """Storages of one shape that forward saved for backward in similar modules (`*` replaces a number in the path).

    `operator` created them; `saved_by` lists the operators whose backward needs them.
    """

    module: str
    operator: str | None
    shape: tuple[int, ...]
    dtype: str
    blocks: int
    bytes: int
    saved_by: tuple[str, ...] = ()


class MemoryFailure(Record, frozen=True, kw_only=True):
    """Where a step ran out of memory: the memory allocated then, and the request that failed."""

    phase: Phase
    message: str
    requested_bytes: int | None = None
    allocated_bytes: int | None = None
    #: True if the components are from the moment of the failure.
    seen: bool = True
    #: The line of user code that made the request.
    line: str | None = None
    #: Bytes reserved by the allocator then, the maximum of these not in use, and the bytes free on the device.
    reserved_bytes: int | None = None
    unused_bytes: int | None = None
    device_free_bytes: int | None = None
    #: The allocator's settings: the size from which on blocks are not split, and whether segments expand.
    max_split_bytes: int | None = None
    expandable: bool = False


class MemoryTerm(Record, frozen=True, kw_only=True):
    """One term of a component's closed formula: `formula`, in the symbols of the literature, and its bytes.

    `per_layer` terms cover all layers, the others the rest of the model.
    """

    component: str
    term: str
    formula: str
    bytes: int
    per_layer: bool


class PublishedFigure(Record, frozen=True, kw_only=True):
    """One number from a published run next to the measured one."""

    figure: str
    published: float
    measured: float | None
    unit: str
    published_device: str


class ModelShape(Record, frozen=True, kw_only=True):
    """The settings in a transformer's configuration that determine its memory.

    `kind` selects the closed formula ("bert", "gpt2", "llama").
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
    #: The head of the model: "classification", "language_model", "none".
    head: str = "none"
    #: Bytes per element of a dropout mask: 1 on CUDA, the bytes per element of activations on the CPU.
    mask_bytes: int | None = None
    dropout: float = 0.0
    attention_dropout: float = 0.0
    #: Name of the activation function in the configuration.
    activation: str = "gelu"


class CacheShape(Record, frozen=True, kw_only=True):
    """The parameters of a generation that determine its key-value cache.

    `windows` has one entry per layer: the length of its attention's sliding window in tokens, 0 for full attention.
    `prompt` is the number of tokens that the decoder begins with; for each of them, `prompt_copies` 8-byte integers
    (its id, its position) are repeated per beam, `None` if other inputs are repeated too. `cross_length` is the number
    of tokens in the encoder's output, each with `encoder_hidden` numbers, that each layer keeps.
    """

    windows: tuple[int, ...]
    key_value_heads: int
    head_size: int
    prompt: int
    prompt_copies: int | None = 1
    cross_length: int = 0
    encoder_hidden: int = 0


class MemoryInference(Record, frozen=True, kw_only=True):
    """The part of a component at the peak that was inferred from its blocks, by `rule`.

    For a memory snapshot, it is the part at the moment shown.
    """

    component: str
    rule: str
    bytes: int
    blocks: int


class MemoryPoint(Record, frozen=True, kw_only=True):
    """Bytes allocated as of `time_ns`, counted from the start of the window; `components` sum to them exactly."""

    time_ns: int
    phase: Phase
    allocated_bytes: int
    #: Device memory reserved by the allocator, including free blocks.
    reserved_bytes: int | None = None
    components: dict[str, int] = field(default_factory=dict)
    #: For a memory snapshot: the lines of user code with most memory, largest first.
    lines: dict[str, int] = field(default_factory=dict)


class MemoryBlocks(Record, frozen=True, kw_only=True):
    """Blocks live at the peak that one operator of a module allocated in one phase, classified by one rule.

    For a memory snapshot, they are live at the moment shown; allocator rounding beyond the requested sizes has a
    separate row.

    `bytes` is their sum, `largest_bytes` the largest of them; `rule` is that of `MemoryInference`, `None` if the
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


class MemoryPart(Record, frozen=True, kw_only=True):
    """The part of the peak, or of a snapshot's moment, that a line, module, operator class, phase or stream allocated.

    `of` says which of these (or a compiled region) `name` is; `None` means that no stack shows it. For each `of`, the
    parts sum to `Memory.shown_bytes`; for a step observed with `memory` and `lines`, the parts by line (the only kind)
    sum to its peak. Allocator rounding beyond the requested sizes is a separate component, `allocator_rounding`. For
    "attention", a name is the line that allocated the scores of unfused attention, and `None` is everything else;
    without scores there are no such rows.
    """

    of: str
    name: str | None
    component: str
    blocks: int
    bytes: int
    #: The function of a line.
    function: str | None = None


class MemoryPool(Record, frozen=True, kw_only=True):
    """Segments of one pool of an allocator: the memory that it holds, and how much of it is in use at the end.

    `pool` is the allocator's own ("large", "small") or that of a CUDA graph ("private 1:0"). `free_bytes` is what it
    holds without using it, `largest_free_bytes` the largest request that it has room for. `rounding_bytes` is allocated
    beyond the requested sizes, `pending_bytes` is freed but waiting for another stream.
    """

    device: str
    pool: str
    stream: int
    segments: int
    expandable: bool
    reserved_bytes: int
    requested_bytes: int
    rounding_bytes: int
    pending_bytes: int
    free_bytes: int
    largest_free_bytes: int


class MemorySpan(Record, frozen=True, kw_only=True):
    """A span of memory that the allocator held at the moment shown of a snapshot: adjacent blocks of one component.

    `component` is "free" for memory not in use. `offset_bytes` is from the start of the segment; segments are numbered
    by size.
    """

    device: str
    pool: str
    segment: int
    offset_bytes: int
    bytes: int
    blocks: int
    component: str


class MemoryDevice(Record, frozen=True, kw_only=True):
    """The memory of one device, as its allocator's events in the trace record it.

    `peak_bytes` is the maximum in the window, `None` for a snapshot without history; its `components` and `inferences`
    sum to it exactly, those of a snapshot to `shown_bytes`, which is allocated at the moment shown.
    `requested_peak_bytes` is the maximum of the requested sizes at one time. The peak may be up to `peak_open_bytes`
    higher, because the rounding of blocks from before the recording is unknown; `None` if it has no limit.
    `before_window_bytes` is the size of blocks allocated before the first event: all of them if the events record the
    allocator's total (the CPU's begins with profiling), otherwise those whose frees were recorded, `None` if none was.
    `unmatched_frees` are the frees of these blocks; `never_freed` blocks outlive the trace; the addresses of
    `unseen_frees` were allocated again without a free in between. `uneven_frees` freed a different size than was
    allocated. `checked_events` record the allocator's total; in `equal_events` it equals the sum of the replayed blocks
    plus a constant.
    """

    device: str
    events: int
    blocks: int
    peak_bytes: int | None
    peak_ns: int | None
    peak_at: Phase | None
    #: "address", or "size" in a trace without addresses: a free then matches the last block of its size.
    matched_by: str
    before_window_bytes: int | None = None
    reserved_peak_bytes: int | None = None
    reserved_at_peak_bytes: int | None = None
    requested_peak_bytes: int | None = None
    shown_bytes: int | None = None
    peak_open_bytes: int | None = 0
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
    #: Our bytes and the allocator's at the largest difference.
    at_largest_difference: tuple[int, int] | None = None
    components: tuple[MemoryComponent, ...] = ()
    inferences: tuple[MemoryInference, ...] = ()


class AllocatorFigures(Record, frozen=True, kw_only=True):
    """The allocator's own numbers for the step observed allocation by allocation: a second source.

    `backend` is torch's name of the allocator ("native", "cudaMallocAsync", "pluggable"), "uncached" or "cpu".
    `peak_bytes` is the maximum that it had allocated (`torch.cuda.max_memory_allocated`); the CPU's allocator does not
    record it. `before_bytes` is its total before the step (`torch.cuda.memory_allocated`), `before_blocks_bytes` the
    sum of the blocks of its snapshot. In `equal_events` of `checked_events` its total equals the sum of the replayed
    blocks; `at_largest_difference` has both totals (the replayed and the allocator's) where they differ most. The
    addresses of `unseen_frees` were allocated again without a free.
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


class Memory(Record, frozen=True, kw_only=True):
    """The memory of a step.

    `allocator_peak_bytes` is the most that an allocator had allocated at one time, `process_peak_bytes` the peak
    resident memory of the process, including Python. `peak_bytes` is the first of the two that is known (older reports
    have no other), and `measured_by` names its source.

    `timeline` is the curve of allocated bytes over the window, including the peak; `blocks` are the largest at that
    peak, and `unlisted_bytes` the sum of the others. Both are for the first of `devices`. If there are `inferences`,
    the components are inferred, not measured.

    A memory snapshot is shown at one moment, which `moment` names: "peak", "end", "oom" or a time since the first event
    ("120 ms"). `blocks`, `parts` and `inferences` describe that moment, when `shown_bytes` were allocated. Without a
    history the peak is `None` and the moment is the end.

    peak_at: the phase of the peak.
    requested_peak_bytes: for a memory snapshot, the maximum of the requested sizes at one time; the peak counts entire
        blocks.
    shown_at: the phase of the moment shown.
    components: the memory by component: weights, gradients, activations and others.
    devices: the memory of each device, as recorded in the trace.
    snapshots: memory in use at points of the run.
    activations: tensors that forward saved for backward, by module and operator.
    allocator: the allocator's own numbers for the step observed with `memory=True`.
    parts: for a memory snapshot, the memory at the moment shown by line of the program, module, operator class, phase
        and stream.
    pools: for a memory snapshot, what the allocator holds at the end, and how much of it is free.
    spans: for a memory snapshot, the segments of its fullest device at the moment shown, largest first, span by span;
        they held `held_bytes`, including those too small to be in `spans`.
    uncovered_devices: other devices that hold parts of the module; no number here includes them.
    notes: what could not be measured, and why.
    shape: the settings of the configuration that determine the theory.
    terms: the closed formula of the activations, term by term.
    needed_bytes: the memory that the step needs in theory, without temporary buffers.
    published: numbers from a published run next to the measured ones.
    failure: where a step ran out of memory.
    trains: for a memory snapshot, whether a backward or an optimizer ran; `False` if the tensors that autograd kept
        were freed without either, `None` if that is unknown.
    """

    peak_bytes: int | None = None
    allocator_peak_bytes: int | None = None
    process_peak_bytes: int | None = None
    peak_at: str | None = None
    requested_peak_bytes: int | None = None
    moment: str | None = None
    shown_bytes: int | None = None
    shown_at: str | None = None
    measured_by: str | None = None
    components: tuple[MemoryComponent, ...] = ()
    inferences: tuple[MemoryInference, ...] = ()
    timeline: tuple[MemoryPoint, ...] = ()
    blocks: tuple[MemoryBlocks, ...] = ()
    unlisted_bytes: int = 0
    devices: tuple[MemoryDevice, ...] = ()
    snapshots: tuple[MemorySnapshot, ...] = ()
    activations: tuple[SavedActivations, ...] = ()
    allocator: AllocatorFigures | None = None
    parts: tuple[MemoryPart, ...] = ()
    pools: tuple[MemoryPool, ...] = ()
    spans: tuple[MemorySpan, ...] = ()
    held_bytes: int | None = None
    uncovered_devices: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    shape: ModelShape | None = None
    terms: tuple[MemoryTerm, ...] = ()
    needed_bytes: int | None = None
    published: tuple[PublishedFigure, ...] = ()
    failure: MemoryFailure | None = None
    trains: bool | None = None

    @property
    def is_snapshot(self) -> bool:
        """Return whether this is the memory of a snapshot, even of one in which nothing is allocated."""
        return bool(self.pools or self.parts)

    @property
    def allocated_then(self) -> int | None:
        """Return the bytes allocated at the moment described by blocks and parts: the peak, unless another is shown."""
        return self.peak_bytes if self.moment is None else self.shown_bytes

    @property
    def then(self) -> str:
        """Return the moment of `allocated_then` in words, with its preposition."""
        named = {None: "at the peak", "peak": "at the peak", "end": "at the end", "oom": "when memory ran out"}
        return named.get(self.moment, f"at {self.moment}")

    @property
    def is_at_peak(self) -> bool:
        """Return whether the moment of `allocated_then` is the peak."""
        return self.moment in (None, "peak")


# --- out-of-memory errors and the size of the failed request ---
#
# This is the only table of these messages: for a step that fails, for the first use of a device, and for a process
# without memory left to load a library.


#: Out-of-memory messages. Sources: `c10/cuda/CUDACachingAllocator.cpp`, its XPU and MPS counterparts and NPU's plug-in
#: ("... out of memory. Tried to allocate ..."); the CUDA and HIP runtimes' own "out of memory", also in Triton's and
#: NCCL's messages; `c10/core/impl/alloc_cpu.cpp` ("can't allocate memory", on Windows "not enough memory"); the C
#: library ("Cannot allocate memory") and C++; `aten/src/ATen/cuda/Exceptions.h`, which gives the status of cuBLAS,
#: cuSOLVER and cuDNN by name and cuSPARSE's by text; cuDNN 9's own two; hipBLAS, rocBLAS, MIOpen and cuFFT by name;
#: NCCL's `alloc.h`; Level Zero and the unified runtime below XPU; AMD's device driver; numpy's and TensorFlow's
#: allocators.
_SAYS: Final = regex(
    r"out of memory\b|outofmemory|out_of_memory|not enough memory|bad_alloc|\bcan(?:'|no)t allocate memory"
    r"|(?:cublas|cudnn|cusolver|cusparse|cutensor|cudss|curand|hipblas|hipblaslt|hipsolver|hipsparse|hiprand|hipdnn|rocblas|rocsparse)"
    r"_status_(?:alloc|allocation)_failed"
    r"|cudnn_status_internal_error_(?:host|device)_allocation_failed|(?:cufft|hipfft)_alloc_failed"
    r"|(?:rocblas|rocsparse)_status_memory_error|miopenstatusallocfailed|memory not available to allocate buffer"
    r"|\b(?:cublas|cusparse|cuda|hip|hipsparse)\b.*\bresource allocation failed"
    r"|failed to (?:cuda|hip) (?:host )?[cm]alloc|error_out_of_(?:device|host)_memory"
    r"|unable to allocate [\d.]+ [kmgtp]?i?b for an array",
    re.IGNORECASE,
)
#: Messages with these words but another meaning: the loader's block for thread-local variables of libraries (glibc),
#: the on-chip memory of one kernel (Triton: "out of resource: shared memory", older: "out of memory: shared memory").
_IS_NOT: Final = regex(r"static TLS block|shared memory, required|out of (?:memory|resource)s?: shared memory", re.I)
#: Programming errors, whatever their text: more memory would not help.
_OF_PROGRAMS: Final = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    NameError,
    AssertionError,
    SyntaxError,
    NotImplementedError,
)

#: Messages of native code if a process cannot load a library or start a thread: the thread pools of Python and C++, the
#: loader, and allocators that only say that they allocate.
_STARVED: Final = ("can't start new thread", "failed to map segment", "allocat", "out of memory")

_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
#: "you tried to allocate 400000000 bytes" on the CPU, "Tried to allocate 2.00 GiB" on CUDA; Apple's allocator wrote MB
#: for 2^20 B until torch 2.6. "Tried to allocate more than 1EB memory" gives no number.
_REQUESTS: Final = (
    regex(r"tried to allocate ([\d.]+) ([KMGTP]?)(?:i?B|bytes)\b", re.IGNORECASE),
    regex(r"unable to allocate ([\d.]+) ([KMGTP]?)i?B for an array", re.IGNORECASE),
    regex(r"memory not available to allocate buffer: (\d+)()", re.IGNORECASE),
    regex(r"failed to (?:cuda|hip) (?:host )?[cm]alloc (?:async )?(\d+)() bytes", re.IGNORECASE),
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if `error`, or an explicit cause of it, says that memory ran out, on the host or on a device."""
    seen: set[int] = set()
    now: BaseException | None = error
    while now is not None and id(now) not in seen:
        if _says_so(now):
            return True
        seen.add(id(now))
        now = now.__cause__
    return False


def _says_so(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):
        return True
    if isinstance(error, _OF_PROGRAMS):
        return False
    text = str(error)
    return _SAYS.search(text) is not None and _IS_NOT.search(text) is None


def is_starved(error: BaseException) -> bool:
    """Return True if the error indicates a process without memory to load a library or start a thread."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return isinstance(error, (RuntimeError, ImportError)) and any(words in str(error).lower() for words in _STARVED)


def requested_bytes(message: str) -> int | None:
    """Return the bytes of the failed request from the message (CUDA's allocator rounds to two digits)."""
    for pattern in _REQUESTS:
        if match := pattern.search(message):
            return round(float(match[1]) * _UNITS[match[2].upper()])
    return None
