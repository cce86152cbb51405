"""One trace as columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from opanatomy.model import Capture, Environment, Signature
from opanatomy.tables import NO_FLOWS, NO_MEMORY_EVENTS, DeviceWork, Flows, HostEvents, Launches, MemoryEvents, Message


@dataclass(slots=True, kw_only=True)
class Trace:
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
    text_bytes: int = 0
    #: The distinct argument lists of the operators, numbered by `host.signature`.
    signatures: list[Signature | None] = field(default_factory=list)
    #: The messages of collectives, by row of `work` and by thread and start of a host event.
    work_messages: dict[int, Message] = field(default_factory=dict)
    host_messages: dict[tuple[int, int], Message] = field(default_factory=dict)
    memory: MemoryEvents = NO_MEMORY_EVENTS
    flows: Flows = NO_FLOWS

    @property
    def on_device(self) -> bool:
        """Whether the trace is of an accelerator: it has its work, or launches whose work was not recorded."""
        return len(self.work.name) > 0 or len(self.launches.name) > 0
