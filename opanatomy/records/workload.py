"""What a capture writes into its trace: what ran, where, and what Kineto does not record."""

from __future__ import annotations

from msgspec import field

from opanatomy.records.memory_observations import MemoryObservations
from opanatomy.records.record import Record
from opanatomy.records.taxonomy import Phase
from opanatomy.records.texts import TextObservations

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
