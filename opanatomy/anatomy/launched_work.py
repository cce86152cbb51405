"""The device work of a trace with the calls that launched it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from opanatomy.records.columns import (
    KERNEL,
    NO_HOST,
    NO_PROFILER_EVENTS,
    Bool,
    DeviceWork,
    HostTable,
    Int64,
    Launches,
    ProfilerEvents,
    distinct,
)


class LaunchedWork(Struct, frozen=True, kw_only=True):
    """All device events of a trace, also those of other steps, the launch of each, and what else the host did."""

    names: Sequence[str]
    work: DeviceWork
    launches: Launches
    #: The row of the launch of each event, -1 where none is recorded.
    launch: Int64
    #: Whether an event belongs to the window: it was launched in it.
    inside: Bool
    #: What the trace calls each device that worked.
    device_names: tuple[tuple[int, str | None], ...] = ()
    #: The launches whose work the trace does not have, in the order of their starts.
    hidden: Int64 = np.zeros(0, dtype=np.int64)
    host: HostTable = NO_HOST
    profiler: ProfilerEvents = NO_PROFILER_EVENTS

    def launched_ns(self) -> Int64:
        """When the host launched each event, -1 where that is not recorded."""
        if not len(self.launches.start_ns):
            return np.full(len(self.launch), -1, dtype=np.int64)
        return np.where(self.launch >= 0, self.launches.start_ns[np.maximum(self.launch, 0)], -1)

    def kernels(self) -> Bool:
        """The kernels of the window, copies and fills apart."""
        kernels: Bool = self.inside & (self.work.kind == KERNEL)
        return kernels

    def devices(self) -> list[int]:
        """The devices that did work of the window."""
        numbers: list[int] = distinct(self.work.device[self.inside]).values.tolist()
        return numbers

    def computing_devices(self) -> list[int]:
        """The devices that ran kernels of the window; those that only copied where none did."""
        numbers: list[int] = distinct(self.work.device[self.kernels()]).values.tolist()
        return numbers or self.devices()

    def window(self, host: tuple[int, int]) -> tuple[int, int]:
        """The window on the host, longer where its device work is not yet done at its end."""
        start = self.work.start_ns[self.inside]
        end = start + self.work.duration_ns[self.inside]
        return int(start.min(initial=host[0])), int(end.max(initial=host[1]))
