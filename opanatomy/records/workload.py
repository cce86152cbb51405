"""Define the metadata that a capture writes into its trace: the run, the machine, and facts that Kineto omits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from heapq import heappop, heappush
from typing import Final, NamedTuple, TypeAlias

from msgspec import Struct, field

from opanatomy.records.codec import Record
from opanatomy.records.memory import CacheShape, MemoryFailure, MemorySnapshot, ModelShape
from opanatomy.records.run import DeviceState, RunClock
from opanatomy.records.taxonomy import Phase

# --- runs on real texts: tokenizers, batches and their figures ---


class TextBatch(Record, frozen=True, kw_only=True):
    """One batch: the tokens of each of its texts, their padded length, and the wall times of its steps.

    A model with a decoder gets the texts twice, as input and as labels.
    """

    lengths: tuple[int, ...]
    length: int
    step_ns: tuple[int, ...] = ()

    @property
    def useful_tokens(self) -> int:
        """Return the number of tokens without padding."""
        return sum(self.lengths)

    @property
    def tokens(self) -> int:
        """Return the number of tokens with padding."""
        return len(self.lengths) * self.length


class ObservedTokenizer(Record, frozen=True, kw_only=True):
    """A tokenizer: its class, `slow` if it is implemented in Python, and its time for that many tokens.

    `same_ids` is true if it produces the same ids as the tokenizer in use. `trained_because` says why it was trained on
    the texts instead of being the model's own; `None` for the model's own.
    """

    name: str
    slow: bool
    used: bool
    tokens: int
    duration_ns: int
    same_ids: bool
    trained_because: str | None = None


class TextObservations(Record, frozen=True, kw_only=True):
    """The texts of a run, as its capture observed them.

    `file` is the name of their file, `None` for the embedded sample; `column` is the column of a table. `count` texts
    (the first of more texts if `more`), `cut` of them cut at `maximum` tokens, make `all_batches` batches of
    `all_tokens` tokens with padding, `all_useful_tokens` without. `batches` are those that were run, evenly spread by
    length; `profiled` is the number of the profiled one. `longest` is the batch of the memory numbers.
    """

    file: str | None = None
    column: str | None = None
    padding: str
    count: int
    more: bool
    cut: int
    maximum: int
    shortest: int
    median: int
    all_batches: int
    all_tokens: int
    all_useful_tokens: int
    batches: tuple[TextBatch, ...]
    profiled: int
    longest: TextBatch
    tokenizers: tuple[ObservedTokenizer, ...]


class PaddingFlops(Record, frozen=True, kw_only=True):
    """Contraction FLOPs of one profiled step: all, those whose tokens are known, and padding's part of these."""

    flops: int
    assigned_flops: int
    padding_flops: int


class TextBatchRow(Record, frozen=True, kw_only=True):
    """One batch that was run: texts, padded length, tokens, and mean wall time of unprofiled steps without pauses."""

    texts: int
    length: int
    tokens: int
    useful_tokens: int
    step_ns: int | None
    profiled: bool


class TokenizerRow(Record, frozen=True, kw_only=True):
    """One tokenizer compared with the step; `holds_back` if it makes fewer tokens per second than the steps take."""

    name: str
    slow: bool
    used: bool
    trained_because: str | None
    same_ids: bool
    tokens_per_second: float | None
    holds_back: bool | None


class TextFigures(Record, frozen=True, kw_only=True):
    """Numbers for real inputs: for all batches of the texts (`all_*`), and for those that were run.

    `mean_step_ns` is the mean, over the batches that were run, of their mean steps. It estimates the mean over all
    batches, because these are evenly spread over them; tokens and samples per second follow from it. `padding_flops` is
    for the profiled batch, `memory_length` is the length of the longest batch, which the memory numbers come from.
    """

    file: str | None
    column: str | None
    padding: str
    count: int
    more: bool
    cut: int
    maximum: int
    shortest: int
    median: int
    all_batches: int
    all_tokens: int
    all_useful_tokens: int
    memory_length: int
    mean_step_ns: int | None
    samples_per_second: float | None
    tokens_per_second: float | None
    useful_tokens_per_second: float | None
    padding_flops: PaddingFlops | None
    batches: tuple[TextBatchRow, ...]
    tokenizers: tuple[TokenizerRow, ...]


# --- observed memory: facts from which `memory/` computes the figures of the report ---
#
# Fields of type `Packed` are columns of integers (`packed` in `records/columns.py`).


#: A packed column of integers.
Packed: TypeAlias = bytes


class MarkKind(str, Enum):
    """The meaning of a mark among the allocations: the storages at its addresses, or a point of the step."""

    SAVED = "saved"
    WEIGHTS = "weights"
    BUFFERS = "buffers"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer_state"
    OPTIMIZER_STEP_COUNTERS = "optimizer_step_counters"
    OUTPUTS = "outputs"
    #: Storages from before the step that no longer live, without an allocator event.
    GONE = "gone"
    AFTER_FORWARD = "after_forward"
    AFTER_BACKWARD = "after_backward"
    AFTER_OPTIMIZER = "after_optimizer"
    AFTER_STEP = "after_step"
    BROKEN = "broken"
    #: The inputs of a forward in the user's own loop.
    INPUTS = "inputs"
    #: The storages of a generation's cache after a forward, and after reordering by beams, both in the same order.
    KEY_VALUE_CACHE = "key_value_cache"
    REORDERED_CACHE = "reordered_cache"
    #: The inputs, repeated for each beam.
    BEAM_COPIES = "beam_copies"

    __str__ = str.__str__


#: A kind in a column is its index here.
MARK_KINDS = tuple(MarkKind)


class EventColumns(Struct, frozen=True, kw_only=True):
    """Allocations (bytes above 0), frees (below 0) and marks (0) of one device, in order of time.

    `total_allocated` is the allocator's total after each event, less the sum of `bytes` so far; `context` is a row of
    the contexts. The address of a mark is -1, as is a reserved size that is not recorded.
    """

    time_ns: Packed
    bytes: Packed
    address: Packed
    total_allocated: Packed
    total_reserved: Packed
    context: Packed


class LineFrame(Record, frozen=True, kw_only=True):
    """A line of user code, and the number of the stack that called it; -1 means none."""

    #: `model.py:31`; without a number some line of the function.
    line: str
    function: str
    parent: int


class ContextColumns(Struct, frozen=True, kw_only=True):
    """The contexts of the events: one row for all like calls of an operator in one place, after its caller.

    `operator` and `module` are indices into the names, -1 is none. `casts_weight` is 1 in a cast of a parameter.
    `recomputed_until_ns` is the end of the outermost module range inside a backward, -1 outside of one.
    """

    operators: tuple[str, ...]
    modules: tuple[str, ...]
    operator: Packed
    caller: Packed
    module: Packed
    casts_weight: Packed
    recomputed_until_ns: Packed
    #: An index into `StepObservations.lines`, -1 for none; empty without lines.
    line: Packed = b""


class TensorType(Struct, frozen=True, kw_only=True):
    """The shape and the data type of tensors that autograd saved."""

    dtype: str
    shape: tuple[int, ...]


class MarkColumns(Struct, frozen=True, kw_only=True):
    """The marks: a row for each storage of one, or a row without an address (-1) for a mark without storages.

    `event` is its row among the events, `kind` an index into `MARK_KINDS`, `tensor` an index into `tensors`; -1 is
    none.
    """

    tensors: tuple[TensorType, ...]
    event: Packed
    kind: Packed
    address: Packed
    bytes: Packed
    tensor: Packed


class StorageColumns(Struct, frozen=True, kw_only=True):
    """The storages before the step: component (index into `components`), address and bytes of each."""

    components: tuple[str, ...]
    component: Packed
    address: Packed
    bytes: Packed


class BlockColumns(Struct, frozen=True, kw_only=True):
    """Blocks allocated before the step, by address; the requested size is -1 if unknown."""

    address: Packed
    bytes: Packed
    requested_bytes: Packed


class AllocatorObservation(Struct, frozen=True, kw_only=True):
    """The allocator's own numbers: names in reports and in torch, peaks in the step, total before the step.

    Also the sizes of the BLAS library's workspace on the device, and the reason if the allocator reports no blocks.
    """

    name: str
    backend: str | None = None
    peak_bytes: int | None = None
    reserved_peak_bytes: int | None = None
    before_bytes: int | None = None
    workspace_bytes: tuple[int, ...] = ()
    why_no_blocks: str | None = None


class PhaseSpan(Struct, frozen=True, kw_only=True):
    """The start and end of a phase of the step."""

    phase: Phase
    begin_ns: int
    end_ns: int


class StepObservations(Struct, frozen=True, kw_only=True):
    """One step, observed allocation by allocation.

    `blocks` are `None` on the CPU, whose allocator does not report them. Without hooks on saved tensors (`hooked`) it
    is unknown what autograd saved. `rng_bytes` is the size of a random state that checkpointing keeps, `broken_in`
    the phase in which the step failed.
    """

    device: str
    events: EventColumns
    contexts: ContextColumns
    marks: MarkColumns
    phases: tuple[PhaseSpan, ...]
    storages: StorageColumns
    blocks: BlockColumns | None
    allocator: AllocatorObservation
    hooked: bool = True
    autocast: bool = False
    checkpointing: bool = False
    rng_bytes: int | None = None
    broken_in: Phase | None = None
    #: The lines of the user's code that it ran, by number.
    lines: tuple[LineFrame, ...] = ()


class MemoryObservations(Struct, frozen=True, kw_only=True):
    """The observed memory of a run.

    `storage_bytes` has the bytes of each component's distinct storages on `device` after a step; `parameter_bytes` and
    `trainable_bytes` are the parameters' elements times their element size. `peak_bytes` is the peak of an unprofiled
    step, measured by `measured_by`; `failure` describes a step that ran out of memory.
    """

    device: str = "cpu"
    peak_bytes: int | None = None
    measured_by: str | None = None
    storage_bytes: dict[str, int] = field(default_factory=dict)
    parameter_bytes: int | None = None
    trainable_bytes: int | None = None
    snapshots: tuple[MemorySnapshot, ...] = ()
    #: Other devices that hold a part of the module.
    other_devices: tuple[str, ...] = ()
    #: What could not be observed, and why.
    notes: tuple[str, ...] = ()
    shape: ModelShape | None = None
    cache: CacheShape | None = None
    step: StepObservations | None = None
    failure: MemoryFailure | None = None


#: Prefixes of a capture's ranges in the trace: `<prefix><phase>` and `<prefix><module path>`.
PHASE_RANGE = "opanatomy.phase/"
#: Prefix of ranges around a call in the user's own loop; `loop_spans` finds the phases between two of them.
LOOP_RANGE = f"{PHASE_RANGE}loop/"
MODULE_RANGE = "opanatomy.module/"
#: Name of the extra step traced line by line, and prefix of its line ranges: an index into `Capture.lines`.
LINES_STEP = "opanatomy.lines"
LINE_RANGE = "opanatomy line #"


#: The trace metadata key for data that Kineto does not record.
METADATA_KEY = "opanatomy"


#: The machine was busy if other work took more than this share of its device.
BUSY: Final = 0.1


class MachineLoad(Record, frozen=True, kw_only=True):
    """The share of the device's time that other work took before and after a measurement; `None` if not measured."""

    before: float | None = None
    after: float | None = None

    @property
    def busy(self) -> bool:
        """Return True if other work lengthened the measured times by an unknown amount."""
        return max(self.before or 0.0, self.after or 0.0) > BUSY

    @property
    def text(self) -> str:
        """Return both shares in words."""
        shares = zip(("before", "after"), (self.before, self.after), strict=True)
        return " and ".join(f"{share:.0%} {when}".replace("%", " %") for when, share in shares if share is not None)


class Environment(Record, frozen=True, kw_only=True):
    """The machine and the libraries of a run; `None` if the trace does not say.

    device: the device's name; with `host_only`, the name of its rows in the trace, if the trace has rows that are not
        read.
    device_kind: `cpu`, `cuda`, `rocm`, `xpu`, ...
    host_only: true if the step ran on an accelerator whose work is not recorded or not read: times are those of
        launching, on the host.
    device_count: the number of devices.
    device_memory_bytes: the memory of one device.
    multiprocessors: multiprocessors (compute units) of the device.
    architecture: the target of its kernels: `sm_90`, `gfx942`.
    mig: true for a MIG instance, a part of a GPU; `None` if the driver was not asked.
    torch: the version of torch; `cuda`, `driver`, `transformers` and `python` are likewise versions.
    host_threads: the threads on which torch computes, on `processor`; `host_cores` of its cores are available to the
        process.
    matmul_float32: the type allowed for float32 matrix products: "tf32", or "ieee" for float32; `convolution_float32`
        is the type for convolutions.
    load: the share of the device taken by other work before the timed steps and after the last step, if measured.
    """

    device: str | None = None
    device_kind: str | None = None
    host_only: bool = False
    device_count: int | None = None
    device_memory_bytes: int | None = None
    multiprocessors: int | None = None
    architecture: str | None = None
    mig: bool | None = None
    torch: str | None = None
    cuda: str | None = None
    driver: str | None = None
    transformers: str | None = None
    python: str | None = None
    host_threads: int | None = None
    host_cores: int | None = None
    processor: str | None = None
    matmul_float32: str | None = None
    convolution_float32: str | None = None
    load: MachineLoad | None = None


class Workload(Record, frozen=True, kw_only=True):
    """What was run: the model, its batch and the options that change the step.

    model: the model's name in the catalog or on the Hub, its path, or its class.
    architecture: the class of the module.
    model_source: `catalog`, `hub`, `folder`, `function` or `object` (of Python).
    parameters: the number of parameters, `trainable_parameters` the number that are trained.
    small_parameters: trained parameters in tensors of fewer than 4096 elements; `embedding_parameters` are those in
        larger embedding tables. For both, optimizers with 8-bit state may keep 32-bit state.
    task: `causal-lm`, `masked-lm`, `sequence-classification`, ...
    batch: the samples per step; with several ranks, per rank.
    sequence_length: the tokens per sample.
    inputs: name, data type and shape of each input.
    dtype: the data type of most weights, and `amp` that of autocast.
    loss_scale: the factor applied to the loss before backward, under float16 autocast, in the last profiled step.
    attention: the attention implementation: `eager`, `sdpa`, ...
    windows: the sliding window of each layer's causal attention in tokens, 0 for none; empty if no layer has a window.
    within_windows: the part of the attention scores within window and causal mask, in the layers whose window is
        shorter than the sequence, if the implementation computes all scores; otherwise `None`.
    checkpointing: how activations are recomputed.
    checkpoint_every: the number of layers recomputed together; `None` if each layer is recomputed separately.
    checkpoint_layers: how many of the first layers of each stack are recomputed; `None` for all.
    compiled: true if compiled by torch.compile.
    optimizer: the optimizer that updates the weights.
    accumulate: the number of micro-batches that `batch` is split into; their gradients are accumulated for one update.
    clip: the maximum gradient norm; larger gradients are scaled down to it before the update.
    frozen: the parts of the model that are not trained, as given: `embeddings,layers:3`.
    lora: the rank of the adapters; only they and a classification head are trained.
    fused_loss: true if head and cross entropy are one function, which holds the logits of only some tokens at a time.
    inference: true if there is no backward.
    generate: the new tokens per sample if a step is a generation; `beams` is the number of beams (1: greedy).
    steps: the number of profiled steps, and `warmup` the number of steps before them.
    parallel: how ranks train together (`ddp`, `fsdp2`, ...); `world_size` is the number of ranks, and
        `samples_together` the samples of all ranks: those in a tensor-parallel group have the same samples.
    bucket_mb: the size in MiB of the buckets in which DDP reduces gradients, if given; `bucket_view` is true if
        gradients are views of the buckets.
    seed: the seed of weights and inputs.
    backward_from: where backward starts: an expression of the model's output, and why it was chosen.
    changes: changes to the model's configuration.
    """

    model: str | None = None
    architecture: str | None = None
    model_source: str | None = None
    parameters: int | None = None
    trainable_parameters: int | None = None
    small_parameters: int | None = None
    embedding_parameters: int | None = None
    task: str | None = None
    batch: int | None = None
    sequence_length: int | None = None
    inputs: tuple[str, ...] = ()
    dtype: str | None = None
    amp: str | None = None
    loss_scale: float | None = None
    attention: str | None = None
    windows: tuple[int, ...] = ()
    within_windows: float | None = None
    checkpointing: str | None = None
    checkpoint_every: int | None = None
    checkpoint_layers: int | None = None
    compiled: bool | None = None
    optimizer: str | None = None
    accumulate: int | None = None
    clip: float | None = None
    frozen: str | None = None
    lora: int | None = None
    fused_loss: bool | None = None
    inference: bool | None = None
    generate: int | None = None
    beams: int | None = None
    steps: int | None = None
    warmup: int | None = None
    parallel: str | None = None
    world_size: int | None = None
    samples_together: int | None = None
    bucket_mb: float | None = None
    bucket_view: bool | None = None
    seed: int | None = None
    backward_from: str | None = None
    changes: tuple[str, ...] = ()

    @property
    def micro_batch(self) -> int | None:
        """Return the number of samples per forward."""
        return None if self.batch is None else self.batch // (self.accumulate or 1)


class ObservedCall(Record, frozen=True, kw_only=True):
    """A call whose arguments Kineto omits, with all arguments as JSON: a tensor is `{"shape", "dtype", "strides"}`."""

    operator: str
    arguments: str


class ObservedCount(Record, frozen=True, kw_only=True):
    """How often one step called an operator in a phase, as a dispatch mode below autograd saw it.

    `flops` is the total of these calls according to a second formula, from `source`; `None` if there is none.
    """

    operator: str
    phase: Phase
    calls: int
    flops: int | None = None
    source: str | None = None


class SharedWeights(Record, frozen=True, kw_only=True):
    """Weights that ranks share, which determine the communication of one update.

    DDP reduces the gradients of all weights together (`module` is empty, nothing is gathered). FSDP gathers the weights
    of one `module` before its forward, again before its backward if `regathered`, and reduce-scatters their gradients;
    its messages are padded so that each of the `ranks` has an equal part. With `replicas`, the parts are reduced once
    more between groups of ranks that hold copies.
    """

    module: str
    ranks: int
    gathered_bytes: int
    reduced_bytes: int
    #: Bytes of the weights, and of the trained ones; under FSDP each rank keeps one part in `ranks`.
    weight_bytes: int
    trained_bytes: int
    regathered: bool = False
    replicas: int = 1


class Compilation(Record, frozen=True, kw_only=True):
    """The one-time cost of `torch.compile`, and its effect: wall times of interleaved steps with and without it.

    `uncompiled_step_ns` is empty if the uncompiled step did not fit into memory.
    """

    compiling_ns: int
    compiled_step_ns: tuple[int, ...]
    uncompiled_step_ns: tuple[int, ...] = ()


class SystemUse(Record, frozen=True, kw_only=True):
    """System usage of a process: CPU time that all threads spent in the system, and memory pages that it received."""

    system_ns: int = 0
    page_faults: int = 0

    def since(self, before: SystemUse) -> SystemUse:
        """Return the use since then."""
        return SystemUse(system_ns=self.system_ns - before.system_ns, page_faults=self.page_faults - before.page_faults)


class GraphNode(Record, frozen=True, kw_only=True):
    """What torch's annotations say about a CUDA graph node: its module or marked name, and whether it is backward."""

    scope: str
    of_backward: bool = False


class Capture(Record, frozen=True, kw_only=True):
    """The metadata that a capture stores in its trace, under `METADATA_KEY`: everything that Kineto does not record."""

    version: str
    command: str
    created: str
    environment: Environment
    workload: Workload
    memory: MemoryObservations = field(default_factory=MemoryObservations)
    #: Wall time of each unprofiled and each profiled step.
    unprofiled_step_ns: tuple[int, ...] = ()
    profiled_step_ns: tuple[int, ...] = ()
    #: What each unprofiled step used of the system.
    unprofiled_system: tuple[SystemUse, ...] = ()
    #: Time to the first new token of each unprofiled generation.
    unprofiled_first_token_ns: tuple[int, ...] = ()
    #: Module path -> class name, in the order of `named_modules`.
    modules: dict[str, str] = field(default_factory=dict)
    #: Kineto drops the data types of tensor lists, and the shapes of long ones: the distinct lists as text
    #: (`float32[2,3];float32[4]`), and by External id of each call with lists the indices of its arguments in them.
    lists: tuple[str, ...] = ()
    list_arguments: dict[str, tuple[int, ...]] = field(default_factory=dict)
    #: The calls of one step, in order, of operators with arguments that Kineto drops (indices, strings).
    observed: tuple[ObservedCall, ...] = ()
    #: Operators that a dispatch mode saw in a step of the warm-up; if it could not watch, empty with `not_observed`.
    observed_counts: tuple[ObservedCount, ...] = ()
    #: The number of that step in the warm-up, from 1: a first step also does one-time work.
    observed_step: int | None = None
    not_observed: str | None = None
    #: Time of each operator by name in the profiler's own tree of events, as in its `key_averages`: device work that it
    #: launched, on the CPU its self time, over all profiled steps.
    profiler_times_ns: dict[str, int] = field(default_factory=dict)
    #: Module path -> which of its contractions' operands need gradients, as observed: "weight", "input", "both",
    #: "none". A module without weights multiplies activations: "both" or "none".
    gradients: dict[str, str] = field(default_factory=dict)
    #: The texts of the run.
    texts: TextObservations | None = None
    #: Weights that ranks share by DDP or FSDP; empty if they share none, or not in a known way.
    shared: tuple[SharedWeights, ...] = ()
    #: CUDA graph nodes annotated by torch, by their number with the graph's above 32 bits.
    graph_nodes: dict[str, GraphNode] = field(default_factory=dict)
    #: The lines of the extra step, by range number.
    lines: tuple[LineFrame, ...] = ()
    #: The run around the steps, where a loop was recorded.
    run: RunClock | None = None
    #: The device while steps ran without the profiler.
    device_state: DeviceState | None = None
    #: Of a step that was compiled for this run.
    compilation: Compilation | None = None
    warnings: tuple[str, ...] = ()


# --- phases of a user's own loop: marked calls, and the time between two of them ---
#
# A loop marks its outermost calls of modules, of backward and of optimizers. A loss is computed between a module and
# backward, gradients are clipped between backward and the optimizer; neither is a call that could be marked.


#: Begin and end in ns, and the phase.
Span: TypeAlias = "tuple[int, int, Phase]"

#: The phase between a marked call (`None`: the beginning of the step) and the next one. Between two forwards the next
#: call decides. Everything else, such as data loading after an optimizer, belongs to no pass.
_BETWEEN: Final[Mapping[tuple[Phase | None, Phase], Phase]] = {
    (None, Phase.BACKWARD): Phase.FORWARD,
    (Phase.FORWARD, Phase.BACKWARD): Phase.FORWARD,
    (Phase.BACKWARD, Phase.BACKWARD): Phase.FORWARD,
    (Phase.OPTIMIZER, Phase.BACKWARD): Phase.FORWARD,
    (Phase.BACKWARD, Phase.OPTIMIZER): Phase.OPTIMIZER,
    (Phase.OPTIMIZER, Phase.OPTIMIZER): Phase.OPTIMIZER,
}


def between(before: Phase | None, after: Phase) -> Phase | None:
    """Return the phase between two calls; `None` if the second call does not decide it."""
    if before is after is Phase.FORWARD:
        return None
    return _BETWEEN.get((before, after), Phase.OTHER)


class MarkedCall(NamedTuple):
    """The range of a call; calls without `decides` (data loading) do not affect the phase between calls."""

    begin_ns: int
    end_ns: int
    phase: Phase
    decides: bool


class _Level(Struct):
    """The calls directly inside an optimizer's call (a closure), or outside all calls."""

    end_ns: int
    phase: Phase
    before: Phase | None = None
    #: The end of the last call, and the begin and end of each span that is not decided yet.
    since_ns: int = 0
    undecided: list[tuple[int, int]] = field(default_factory=list)

    def begin(self, call: MarkedCall) -> list[Span]:
        """Return the spans that `call` decides."""
        self.undecided.append((self.since_ns, call.begin_ns))
        phase = between(self.before, call.phase)
        decided: list[Span] = []
        if phase is not None:
            if phase is not Phase.OTHER:
                decided = [(begin, end, phase) for begin, end in self.undecided if end > begin]
            self.undecided = []
        self.before, self.since_ns = call.phase, call.end_ns
        return decided


def loop_spans(calls: Iterable[MarkedCall], step_begins: Sequence[int]) -> tuple[Span, ...]:
    """Return the disjoint spans of forward, backward and optimizer in order; the rest belongs to no pass."""
    ordered = sorted(calls, key=lambda call: (call.begin_ns, -call.end_ns))
    spans: list[Span] = []
    levels: list[_Level] = []
    begins = sorted(step_begins)
    step = -1
    for call in ordered:
        while step + 1 < len(begins) and begins[step + 1] <= call.begin_ns:
            step, levels = step + 1, []
        if not levels:
            levels = [_Level(1 << 63, Phase.OTHER, since_ns=begins[step] if step >= 0 else call.begin_ns)]
        while levels[-1].end_ns <= call.begin_ns:
            levels.pop()
        # Time between calls inside a backward, or inside a forward, belongs to that.
        if call.decides and levels[-1].phase in (Phase.OTHER, Phase.OPTIMIZER):
            spans += levels[-1].begin(call)
        spans.append((call.begin_ns, call.end_ns, call.phase))
        levels.append(_Level(call.end_ns, call.phase, since_ns=call.begin_ns, before=call.phase))
    # Without the parts that others cover.
    starts, phases = flattened(spans)
    ends = [*starts[1:], 0]
    return tuple(
        (start, end, phase)
        for start, end, phase in zip(starts, ends, phases, strict=True)
        if phase is not None and phase is not Phase.OTHER
    )


def flattened(spans: Sequence[Span]) -> tuple[list[int], list[Phase | None]]:
    """Return times and the phase from each on: the phase of the running span that began last."""
    ordered = sorted(spans)
    starts: list[int] = []
    phases: list[Phase | None] = []
    running: list[tuple[int, int, Phase]] = []
    begun = 0
    for time_ns in sorted({edge for start, end, _ in ordered for edge in (start, end)}):
        while begun < len(ordered) and ordered[begun][0] <= time_ns:
            heappush(running, (-begun, ordered[begun][1], ordered[begun][2]))
            begun += 1
        while running and running[0][1] <= time_ns:
            heappop(running)
        starts.append(time_ns)
        phases.append(running[0][2] if running else None)
    return starts, phases
