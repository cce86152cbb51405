"""What a capture observed of the memory of its steps: facts, from which `memory/` makes the figures of the report.

Fields of type `Packed` are columns of integers (`records/packed.py`).
"""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from msgspec import Struct, field

from opanatomy.records.memory import CacheShape, MemoryFailure, MemorySnapshot, ModelShape
from opanatomy.records.taxonomy import Phase

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
