"""The tables of memory: a trace's allocator events, a capture's marks among them, and what encloses each event."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from opanatomy.records.columns import Bool, Categorical, Int64
from opanatomy.records.taxonomy import Phase


class MemoryEvents(Struct, frozen=True, kw_only=True):
    """What the allocators gave (`bytes` above 0) and took back (below 0), in the order of the file.

    `address`, `total_allocated` and `total_reserved` are -1 where the trace does not record them, as in 2021. On the
    CPU `total_allocated` is what was given since memory was first profiled. `device_type` is torch's number of it.
    """

    time_ns: Int64
    thread: Int64
    bytes: Int64
    address: Int64
    total_allocated: Int64
    total_reserved: Int64
    device_type: Int64
    device: Int64


class MemoryMarks(Struct, frozen=True, kw_only=True):
    """What a capture noted among the memory events of a step: a row for each storage, one without an address (-1)
    where there is none. `event` is the row of the mark among the events, `kind` a place in `MARK_KINDS`, `tensor` a
    place in a list of shapes and data types, -1 is none.
    """

    event: Int64
    kind: Int64
    address: Int64
    bytes: Int64
    tensor: Int64


class HostCalls(Struct, frozen=True, kw_only=True):
    """The host events around the memory events of a trace: each row's parent comes before it, -1 is none."""

    name: Categorical[str]
    module: Categorical[str]
    parent: Int64
    thread: Int64
    start_ns: Int64
    end_ns: Int64
    #: Not 0 where a row is a user annotation.
    annotation: Int64
    #: Places in `PHASES`.
    phase: Int64


class StepCalls(Struct, frozen=True, kw_only=True):
    """The operators around the memory events of a looked-at step: one row for like calls, its caller (-1 none) before.

    `recomputed_until_ns` is the end of the outermost module range inside a backward, -1 outside of one.
    """

    name: Categorical[str]
    module: Categorical[str]
    parent: Int64
    casts_weight: Bool
    recomputed_until_ns: Int64


NO_MEMORY_EVENTS = MemoryEvents(**{name: np.zeros(0, dtype=np.int64) for name in MemoryEvents.__struct_fields__})


class MemoryTable(Struct, frozen=True, kw_only=True):
    """Memory events, what encloses each (`call`, a row of `calls`, -1 none), and a capture's marks and phase ranges."""

    events: MemoryEvents
    call: Int64
    calls: HostCalls | StepCalls
    marks: MemoryMarks | None = None
    #: (begin, end, phase) in ns.
    spans: tuple[tuple[int, int, Phase], ...] = ()
