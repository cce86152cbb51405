"""What a capture writes into its trace: what ran, where, and what Kineto does not record."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from typing import Final, NamedTuple, TypeAlias

from msgspec import Struct, field

from opanatomy.records.codec import Record
from opanatomy.records.memory import CacheShape, MemoryFailure, MemorySnapshot, ModelShape
from opanatomy.records.taxonomy import Phase

# Real inputs of a run: what a capture observed of its texts, their tokenizers and batches, and the figures of them.


class TextBatch(Record, frozen=True, kw_only=True):
    """One batch: the tokens of each of its texts, the length that they are padded to, the wall times of its steps.

    A model that decodes has the texts twice, as input and as labels.
    """

    lengths: tuple[int, ...]
    length: int
    step_ns: tuple[int, ...] = ()

    @property
    def useful_tokens(self) -> int:
        """Tokens that are of a text."""
        return sum(self.lengths)

    @property
    def tokens(self) -> int:
        """Tokens with the padding."""
        return len(self.lengths) * self.length


class ObservedTokenizer(Record, frozen=True, kw_only=True):
    """A tokenizer: its class, whether it is a Python one (`slow`), and how long it took for that many tokens.

    `same_ids` says whether it gives the ids of the one that was used. `trained_because` is why it is not the model's
    own but one trained on the texts; `None` for the model's own.
    """

    name: str
    slow: bool
    used: bool
    tokens: int
    duration_ns: int
    same_ids: bool
    trained_because: str | None = None


class TextObservations(Record, frozen=True, kw_only=True):
    """What a capture observed of the texts that it ran on.

    `file` is the name of their file, `None` for the embedded sample; `column` that of a table. `count` texts (with
    `more` the first of more), `cut` of them cut at `maximum` tokens, make `all_batches` batches of `all_tokens` tokens
    with padding, `all_useful_tokens` without; `batches` are those of them that were run, evenly spread by length, of
    which `profiled` is the number of the profiled one. `longest` is the batch that the memory is of.
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
    """FLOPs of the contractions of one profiled step: all, those whose shapes tell their tokens, and of these those on
    padding."""

    flops: int
    assigned_flops: int
    padding_flops: int


class TextBatchRow(Record, frozen=True, kw_only=True):
    """One batch that was run: texts, padded length, tokens, and the mean wall time of plain steps without pauses."""

    texts: int
    length: int
    tokens: int
    useful_tokens: int
    step_ns: int | None
    profiled: bool


class TokenizerRow(Record, frozen=True, kw_only=True):
    """One tokenizer compared with the step: `holds_back` where it makes fewer tokens a second than the steps take."""

    name: str
    slow: bool
    used: bool
    trained_because: str | None
    same_ids: bool
    tokens_per_second: float | None
    holds_back: bool | None


class TextFigures(Record, frozen=True, kw_only=True):
    """Real inputs in figures: of all batches that the texts make (`all_*`), and of those that were run.

    `mean_step_ns` is the mean over the run batches of their mean steps, which is that of all batches as the run ones
    are spread over them; tokens and samples a second go by it. `padding_flops` are of the profiled batch.
    `memory_length` is the length of the longest batch, which the memory is of.
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


# What a capture observed of the memory of its steps: facts, from which `memory/` makes the figures of the report.
#
# Fields of type `Packed` are columns of integers (`records/packed.py`).


#: A column as `records/packed.py` packs it.
Packed: TypeAlias = bytes


class MarkKind(str, Enum):
    """What a mark among the allocations says: what the storages at its addresses are, or a place of the step."""

    SAVED = "saved"
    WEIGHTS = "weights"
    BUFFERS = "buffers"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer_state"
    OPTIMIZER_STEP_COUNTERS = "optimizer_step_counters"
    OUTPUTS = "outputs"
    #: Storages from before the step that live no more, which the allocator did not report.
    GONE = "gone"
    AFTER_FORWARD = "after_forward"
    AFTER_BACKWARD = "after_backward"
    AFTER_OPTIMIZER = "after_optimizer"
    AFTER_STEP = "after_step"
    BROKEN = "broken"
    #: What a forward in a user's own loop was called with.
    INPUTS = "inputs"
    #: What the cache of a generation holds after a forward, and after it was put in the order of the beams: the
    #: storages of each in the same order.
    KEY_VALUE_CACHE = "key_value_cache"
    REORDERED_CACHE = "reordered_cache"
    #: The inputs, repeated for each beam.
    BEAM_COPIES = "beam_copies"

    __str__ = str.__str__


#: A kind in a column is its place here.
MARK_KINDS = tuple(MarkKind)


class EventColumns(Struct, frozen=True, kw_only=True):
    """Allocations (bytes above 0), frees (below 0) and marks (0) of one device, in order of time.

    `total_allocated` is what the allocator says that it has given in all after each, less the sum of `bytes` so far;
    `context` is a row of the contexts. An address is -1 of a mark, a reserved size of what does not say it.
    """

    time_ns: Packed
    bytes: Packed
    address: Packed
    total_allocated: Packed
    total_reserved: Packed
    context: Packed


class ContextColumns(Struct, frozen=True, kw_only=True):
    """In what the events happened: one row for all like calls of an operator in one place, its caller before it.

    `operator` and `module` are places in the names, -1 is none. `casts_weight` is 1 in a cast of a parameter.
    `recomputed_until_ns` is the end of the outermost module range inside a backward, -1 outside of one.
    """

    operators: tuple[str, ...]
    modules: tuple[str, ...]
    operator: Packed
    caller: Packed
    module: Packed
    casts_weight: Packed
    recomputed_until_ns: Packed


class TensorType(Struct, frozen=True, kw_only=True):
    """The shape and the data type of tensors that autograd saved."""

    dtype: str
    shape: tuple[int, ...]


class MarkColumns(Struct, frozen=True, kw_only=True):
    """The marks: a row for each storage of one, a row without an address (-1) for one without storages.

    `event` is its row among the events, `kind` a place in `MARK_KINDS`, `tensor` a place in `tensors`, -1 is none.
    """

    tensors: tuple[TensorType, ...]
    event: Packed
    kind: Packed
    address: Packed
    bytes: Packed
    tensor: Packed


class StorageColumns(Struct, frozen=True, kw_only=True):
    """The storages before the step: the component (a place in `components`), address and bytes of each."""

    components: tuple[str, ...]
    component: Packed
    address: Packed
    bytes: Packed


class BlockColumns(Struct, frozen=True, kw_only=True):
    """The blocks that an allocator had handed out before the step, by address; the requested size, -1 not known."""

    address: Packed
    bytes: Packed
    requested_bytes: Packed


class AllocatorObservation(Struct, frozen=True, kw_only=True):
    """What the allocator says of itself: its name in reports, torch's name of it, its peaks in the step, its total
    before the step, the sizes that a workspace of a BLAS library has there, and why it reports no blocks."""

    name: str
    backend: str | None = None
    peak_bytes: int | None = None
    reserved_peak_bytes: int | None = None
    before_bytes: int | None = None
    workspace_bytes: tuple[int, ...] = ()
    why_no_blocks: str | None = None


class PhaseSpan(Struct, frozen=True, kw_only=True):
    """When a phase of the step began and ended."""

    phase: Phase
    begin_ns: int
    end_ns: int


class StepObservations(Struct, frozen=True, kw_only=True):
    """One step, looked at allocation by allocation.

    `blocks` are `None` on the CPU, whose allocator does not report them. Without hooks on saved tensors (`hooked`)
    nothing says what autograd saved; `rng_bytes` is the size of a random state that checkpointing keeps. `broken_in`
    is the phase in which the step broke.
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


class MemoryObservations(Struct, frozen=True, kw_only=True):
    """What was observed of a run's memory.

    `storage_bytes` are those of the distinct storages of each component on `device` after a step; `parameter_bytes` and
    `trainable_bytes` the elements of its parameters times their bytes. `peak_bytes` is of an unprofiled step, as
    `measured_by` says; `failure` is of a step that ran out of memory.
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


#: Ranges that a capture puts into the trace: `<prefix><phase>` and `<prefix><module path>`.
PHASE_RANGE = "opanatomy.phase/"
#: The same around a call in a loop of the user's own: what lies between two of these is of the phase that
#: `records/phase_spans.py` says.
LOOP_RANGE = f"{PHASE_RANGE}loop/"
MODULE_RANGE = "opanatomy.module/"


#: The metadata key of a trace under which a capture keeps what Kineto does not record.
METADATA_KEY = "opanatomy"


class Environment(Record, frozen=True, kw_only=True):
    """The machine and the libraries of a run; `None` where the trace does not say.

    device: its name.
    device_kind: `cpu`, `cuda`, `rocm`, `xpu`, ...
    host_only: whether the step ran on an accelerator of whose work nothing is recorded: times are those of its
        launching, on the host.
    device_count: how many there are.
    device_memory_bytes: the memory of one.
    multiprocessors: multiprocessors (compute units) of the device.
    architecture: what its kernels are compiled for: `sm_90`, `gfx942`.
    mig: whether it is a MIG instance, a part of a GPU; `None` where the driver was not asked.
    torch: versions: also `cuda`, `driver`, `transformers`, `python`.
    host_threads: threads that torch computes on, on `processor`.
    matmul_float32: what torch was allowed to compute float32 matrix products in: "tf32", or "ieee" for float32;
        `convolution_float32` convolutions.
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
    processor: str | None = None
    matmul_float32: str | None = None
    convolution_float32: str | None = None


class Workload(Record, frozen=True, kw_only=True):
    """What was run: the model, its batch and the options that change the step.

    model: what it is called: a name of the catalog or the Hub, a path, a class.
    architecture: the class of the module.
    model_source: `catalog`, `hub`, `folder`, `function` or `object` (of Python).
    parameters: how many, and `trainable_parameters` those that are trained.
    small_parameters: of the trained ones those in tensors of fewer than 4096 elements, and `embedding_parameters` those
        of embeddings' larger tables: for them optimizers with 8-bit state may keep 32 bits.
    task: `causal-lm`, `masked-lm`, `sequence-classification`, ...
    batch: the samples of a step; of several ranks those of each.
    sequence_length: the tokens of a sample.
    inputs: name, data type and shape of each input.
    dtype: the data type of most weights, and `amp` that of autocast.
    loss_scale: what the loss is multiplied by before backward, under float16 autocast: that of the last profiled step.
    attention: its implementation: `eager`, `sdpa`, ...
    checkpointing: how activations are recomputed.
    checkpoint_every: how many layers are recomputed together; each by itself where it is `None`.
    compiled: whether by torch.compile.
    optimizer: the one that updates the weights.
    accumulate: into how many micro-batches `batch` is cut, whose gradients are accumulated for one update.
    clip: the norm that gradients are scaled down to before the update.
    frozen: the parts of the model that are not trained, as they were given: `embeddings,layers:3`.
    lora: the rank of the adapters, which alone are trained with the head of a classifier.
    fused_loss: whether head and cross entropy are one function, which has the logits of some tokens at a time.
    inference: whether there is no backward.
    generate: the new tokens of each sample where a step is a generation, and `beams` those that its search keeps (1:
        greedy).
    steps: profiled steps, and `warmup` those before.
    parallel: how ranks train together (`ddp`, `fsdp2`, ...), `world_size` how many they are, and `samples_together` the
        samples that they have together: the ranks of a tensor-parallel group have the same.
    bucket_mb: the gradients that DDP reduces together in MiB, where given, and `bucket_view` whether gradients are
        views of its buckets.
    seed: of weights and inputs.
    backward_from: what backward started from: an expression of the model's output, and why that one.
    changes: what was altered of the configuration.
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
    checkpointing: str | None = None
    checkpoint_every: int | None = None
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
        """The samples of one forward."""
        return None if self.batch is None else self.batch // (self.accumulate or 1)


class ObservedCall(Record, frozen=True, kw_only=True):
    """A call of which Kineto drops arguments, all of them as JSON: a tensor is `{"shape", "dtype", "strides"}`."""

    operator: str
    arguments: str


class ObservedCount(Record, frozen=True, kw_only=True):
    """How often one step called an operator in a phase, as a dispatch mode below autograd saw it.

    `flops` are those of all these calls by a second formula, that of `source`; `None` where there is none.
    """

    operator: str
    phase: Phase
    calls: int
    flops: int | None = None
    source: str | None = None


class SharedWeights(Record, frozen=True, kw_only=True):
    """Weights that ranks share, as the model has them: what one update must communicate follows from it.

    DDP reduces the gradients of all together (`module` is empty, nothing is gathered). FSDP gathers the weights of one
    `module` before its forward, again before its backward where it is `regathered`, and reduces their gradients and
    scatters them; its messages are padded so that each of the `ranks` has an equal part. With `replicas` the parts are
    reduced once more between groups of ranks that have copies.
    """

    module: str
    ranks: int
    gathered_bytes: int
    reduced_bytes: int
    #: The weights themselves, and those of them that are trained; of FSDP each rank keeps the part of one of `ranks`.
    weight_bytes: int
    trained_bytes: int
    regathered: bool = False
    replicas: int = 1


class Capture(Record, frozen=True, kw_only=True):
    """What a capture writes into the trace under `METADATA_KEY`: all that Kineto does not record."""

    version: str
    command: str
    created: str
    environment: Environment
    workload: Workload
    memory: MemoryObservations = field(default_factory=MemoryObservations)
    #: Wall time of each unprofiled and each profiled step.
    unprofiled_step_ns: tuple[int, ...] = ()
    profiled_step_ns: tuple[int, ...] = ()
    #: Of each unprofiled generation the time to its first new token.
    unprofiled_first_token_ns: tuple[int, ...] = ()
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
    #: What was observed of the texts that the run was on.
    texts: TextObservations | None = None
    #: The weights that ranks share by DDP or FSDP; empty where they do not, or not in a way that is known.
    shared: tuple[SharedWeights, ...] = ()
    warnings: tuple[str, ...] = ()


# The phases of a user's own loop over time: that of each marked call, and of what lies between two of them.
#
# A loop marks its outermost calls of modules, of backward and of optimizers. A loss is computed between a module and
# backward, gradients are clipped between backward and the optimizer; neither is a call that could be marked.


#: Begin and end in ns, and the phase.
Span: TypeAlias = "tuple[int, int, Phase]"

#: What lies between a marked call (`None`: the beginning of the step) and the next one. Where two forwards follow each
#: other what comes after them decides. All else, such as data loading after an optimizer, is of no pass.
_BETWEEN: Final[Mapping[tuple[Phase | None, Phase], Phase]] = {
    (None, Phase.BACKWARD): Phase.FORWARD,
    (Phase.FORWARD, Phase.BACKWARD): Phase.FORWARD,
    (Phase.BACKWARD, Phase.BACKWARD): Phase.FORWARD,
    (Phase.OPTIMIZER, Phase.BACKWARD): Phase.FORWARD,
    (Phase.BACKWARD, Phase.OPTIMIZER): Phase.OPTIMIZER,
    (Phase.OPTIMIZER, Phase.OPTIMIZER): Phase.OPTIMIZER,
}


def between(before: Phase | None, after: Phase) -> Phase | None:
    """The phase of what ran between two calls; `None` where the call that follows does not decide it."""
    if before is after is Phase.FORWARD:
        return None
    return _BETWEEN.get((before, after), Phase.OTHER)


class MarkedCall(NamedTuple):
    """The range of a call; one with `decides` takes part in what lies between, others (data loading) lie over it."""

    begin_ns: int
    end_ns: int
    phase: Phase
    decides: bool


@dataclass(slots=True)
class _Level:
    """The calls directly inside of an optimizer's (a closure), or outside of all."""

    end_ns: int
    phase: Phase
    before: Phase | None = None
    #: Where the last call ended, and the beginnings and ends of what is not decided yet.
    since_ns: int = 0
    undecided: list[tuple[int, int]] = dataclasses.field(default_factory=list)

    def begin(self, call: MarkedCall) -> list[Span]:
        """What `call` decides."""
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
    """The spans of forward, backward and optimizer in order, none inside another; the rest is of no pass."""
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
        # What lies between calls inside of a backward, or inside of a forward, is of that.
        if call.decides and levels[-1].phase in (Phase.OTHER, Phase.OPTIMIZER):
            spans += levels[-1].begin(call)
        spans.append((call.begin_ns, call.end_ns, call.phase))
        levels.append(_Level(call.end_ns, call.phase, since_ns=call.begin_ns, before=call.phase))
    return _apart(spans)


def _apart(spans: Sequence[Span]) -> tuple[Span, ...]:
    """The spans without those parts of theirs that others lie over."""
    starts, phases = flattened(spans)
    ends = [*starts[1:], 0]
    return tuple(
        (start, end, phase)
        for start, end, phase in zip(starts, ends, phases, strict=True)
        if phase is not None and phase is not Phase.OTHER
    )


def flattened(spans: Sequence[Span]) -> tuple[list[int], list[Phase | None]]:
    """Times, and the phase from each on: that of the span that began last among those that have not ended."""
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
