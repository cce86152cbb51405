"""One trace as columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct, field

from opanatomy.records.columns import (
    NO_FLOWS,
    NO_PROFILER_EVENTS,
    CollectiveArguments,
    DeviceWork,
    Flows,
    HostEvents,
    Int64,
    Launches,
    ProfilerEvents,
    TraceDevice,
)
from opanatomy.records.memory_columns import NO_MEMORY_EVENTS, MemoryEvents
from opanatomy.records.signature import Signature
from opanatomy.records.workload import Capture, Environment


class Trace(Struct, kw_only=True):
    """One trace in columns. `names[i]` is the text of name `i`, `threads[i]` the (process, thread) of thread `i`."""

    names: list[str]
    threads: list[tuple[int | str | None, int | str | None]]
    host: HostEvents
    launches: Launches
    work: DeviceWork
    environment: Environment
    capture: Capture | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    #: What changes the reading of all that is in it: it is cut off, it has the host alone.
    caveats: list[str] = field(default_factory=list)
    text_bytes: int = 0
    #: That of the file, packed as it is.
    sha256: str = ""
    #: The distinct argument lists of the operators, numbered by `host.signature`.
    signatures: list[Signature | None] = field(default_factory=list)
    #: The messages of collectives, by row of `work` and by thread and start of a host event.
    work_collectives: dict[int, CollectiveArguments] = field(default_factory=dict)
    host_collectives: dict[tuple[int, int], CollectiveArguments] = field(default_factory=dict)
    memory: MemoryEvents = NO_MEMORY_EVENTS
    flows: Flows = NO_FLOWS
    profiler: ProfilerEvents = NO_PROFILER_EVENTS
    #: The start and duration of each callback on the host that a graph ran: its stream waited, and did no work.
    graph_host_ns: Int64 = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))
    #: The devices that worked, the busiest first.
    devices: tuple[TraceDevice, ...] = ()
    #: Whether the trace is of an accelerator: it has its work, or launches whose work was not recorded. Calls that only
    #: ask or wait are no work: a profiler that looks for a device makes them too.
    on_device: bool = False
