"""Define the contents of a CUDA memory snapshot, as columns: the allocator's history, its segments and stacks."""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec import Struct

from opanatomy.records.columns import Bool, Int64

#: The allocator's actions (`TraceEntry::Action` in c10/core/CachingDeviceAllocator.h); columns index into this.
ACTIONS: Final = (
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap",
    "snapshot", "oom",
)  # fmt: skip
ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP, SNAPSHOT, OOM = range(9)
#: States of a block; columns index into this.
STATES: Final = ("active_allocated", "active_pending_free", "inactive")
ALLOCATED, PENDING, INACTIVE = range(3)


#: Recorded by `opanatomy.snapshot` with each allocation: the path of the module whose forward runs.
MODULE_METADATA: Final = "opanatomy.module/"


class Frame(NamedTuple):
    """One frame of a stack, of Python or C++."""

    name: str
    filename: str
    line: int


class Annotation(NamedTuple):
    """A range of the program recorded by the allocator (`Optimizer.step#AdamW.step`), in microseconds."""

    name: str
    device: int
    begin_us: int
    end_us: int


class History(Struct, frozen=True, kw_only=True):
    """Actions of one device's allocator, in order.

    `action` is an index into `ACTIONS`, -1 if unknown; sizes are requested bytes. `stack` and `metadata` are indices
    into the snapshot's, -1 for none, and `compiled` is an index into its `metadata`: the compiled region. The address
    of an `oom` is the number of free bytes on the device.
    """

    device: int
    action: Int64
    address: Int64
    size: Int64
    stream: Int64
    time_us: Int64
    stack: Int64
    metadata: Int64
    compiled: Int64


class Segments(Struct, frozen=True, kw_only=True):
    """The memory reserved by all devices' allocators, at the end.

    `pool` is an index into the snapshot's pools.
    """

    device: Int64
    address: Int64
    total: Int64
    stream: Int64
    pool: Int64
    is_large: Bool
    is_expandable: Bool


class SegmentBlocks(Struct, frozen=True, kw_only=True):
    """The blocks of all segments, by address: `state` is a place in `STATES`, `segment` the row of its segment.

    `requested` is the requested size, `size` includes the allocator's rounding; `stack` as in `History`.
    """

    segment: Int64
    address: Int64
    size: Int64
    requested: Int64
    state: Int64
    stack: Int64


class Snapshot(Struct, frozen=True, kw_only=True):
    """A CUDA memory snapshot of one process.

    A stack is a row of indices into `frames`, innermost first. In `pools`, (0, 0) is the allocator's own pool.
    """

    histories: tuple[History, ...]
    segments: Segments
    blocks: SegmentBlocks
    frames: tuple[Frame, ...]
    stacks: tuple[tuple[int, ...], ...]
    metadata: tuple[str, ...]
    pools: tuple[tuple[int, int], ...]
    annotations: tuple[Annotation, ...]
    settings: dict[str, str]
    #: Unknown actions found in the histories.
    unknown_actions: tuple[str, ...] = ()
