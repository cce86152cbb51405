"""Compute unions, gaps and overlaps of time intervals, exact in nanoseconds.

`Intervals` are (starts, ends), disjoint and sorted. Work as it is recorded is (starts, durations), in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

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
    take,
    unique,
)

Intervals: TypeAlias = "tuple[Int64, Int64]"


def union(start_ns: Int64, duration_ns: Int64) -> Intervals:
    """Return the union of this work as intervals."""
    if not len(start_ns):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    order = np.argsort(start_ns, kind="stable")
    start, end = start_ns[order], np.maximum.accumulate((start_ns + duration_ns)[order])
    first = np.concatenate(([True], start[1:] > end[:-1]))
    last = np.concatenate((first[1:], [True]))
    return start[first], end[last]


def length(intervals: Intervals) -> int:
    """Return the time that intervals cover."""
    return int((intervals[1] - intervals[0]).sum())


def covered(start_ns: Int64, duration_ns: Int64) -> int:
    """Return the time that work covers together, overlaps counted once."""
    return length(union(start_ns, duration_ns))


def covered_by_group(group: Int64, start_ns: Int64, duration_ns: Int64) -> Int64:
    """Return the time that the work of each group, numbered from 0, covers together."""
    order = np.lexsort((start_ns, group))
    group, start, end = group[order], start_ns[order], (start_ns + duration_ns)[order]
    # The latest end so far in a group: ranks put the ends of a later group after those of earlier ones.
    by_end = np.argsort(end, kind="stable")
    rank = np.empty(len(end), dtype=np.int64)
    rank[by_end] = np.arange(len(end))
    reached = end[by_end[np.maximum.accumulate(group * len(end) + rank) - group * len(end)]]
    before = np.append(start[:1], reached[:-1])
    before[1:] = np.where(group[1:] == group[:-1], before[1:], start[1:])
    time = np.zeros(int(group.max(initial=-1)) + 1, dtype=np.int64)
    np.add.at(time, group, np.maximum(end - np.maximum(start, before), 0))
    return time


def time_before(intervals: Intervals, moments: Int64) -> Int64:
    """Return the time that intervals cover before each moment."""
    start, end = intervals
    if not len(start):
        return np.zeros(len(moments), dtype=np.int64)
    whole = np.concatenate(([0], np.cumsum(end - start)))
    index = np.searchsorted(start, moments, side="right") - 1
    reached = np.clip(moments, start[index], end[index]) - start[index]
    return np.where(index >= 0, whole[index] + reached, 0)


def within(intervals: Intervals, start_ns: Int64, end_ns: Int64) -> Int64:
    """Return the time that intervals cover in each span from `start_ns` to `end_ns`."""
    return time_before(intervals, end_ns) - time_before(intervals, start_ns)


def together(first: Intervals, second: Intervals) -> Intervals:
    """Return the time that either covers, as intervals."""
    start, end = (np.concatenate(sides) for sides in zip(first, second, strict=True))
    return union(start, end - start)


def overlap(first: Intervals, second: Intervals) -> Intervals:
    """Return the time that both cover, as intervals."""
    # The intervals of `second` that overlap one of `first` are consecutive.
    begin = np.searchsorted(second[1], first[0], side="right")
    count = np.maximum(np.searchsorted(second[0], first[1], side="left") - begin, 0)
    one = np.repeat(np.arange(len(count)), count)
    other = np.arange(len(one)) - np.repeat(np.cumsum(count) - count, count) + begin[one]
    return np.maximum(first[0][one], second[0][other]), np.minimum(first[1][one], second[1][other])


def without(intervals: Intervals, others: Intervals) -> Intervals:
    """Return the time that `intervals` cover and `others` do not, as intervals."""
    ends = np.iinfo(np.int64)
    between = np.concatenate(([ends.min], others[1])), np.concatenate((others[0], [ends.max]))
    left = overlap(intervals, between)
    real = left[1] > left[0]
    return left[0][real], left[1][real]


# ----- device work with the calls that launched it


class LaunchedWork(Struct, frozen=True, kw_only=True):
    """All device events of a trace, including other steps', with their launches and further host records."""

    names: Sequence[str]
    work: DeviceWork
    launches: Launches
    #: The row of each event's launch, -1 if not recorded.
    launch: Int64
    #: Whether an event was launched in the window, and so belongs to it.
    inside: Bool
    #: The name in the trace of each device that worked.
    device_names: tuple[tuple[int, str | None], ...] = ()
    #: Launches whose work is missing from the trace, sorted by start.
    hidden: Int64 = np.zeros(0, dtype=np.int64)
    host: HostTable = NO_HOST
    profiler: ProfilerEvents = NO_PROFILER_EVENTS

    def launched_ns(self) -> Int64:
        """Return when the host launched each event, -1 if not recorded."""
        return take(self.launches.start_ns, self.launch)

    def kernels(self) -> Bool:
        """Return the kernels of the window, without copies and fills."""
        kernels: Bool = self.inside & (self.work.kind == KERNEL)
        return kernels

    def devices(self) -> list[int]:
        """Return the devices that did work of the window."""
        numbers: list[int] = unique(self.work.device[self.inside]).values.tolist()
        return numbers

    def computing_devices(self) -> list[int]:
        """Return the devices that ran kernels of the window, or if none did those that only copied."""
        numbers: list[int] = unique(self.work.device[self.kernels()]).values.tolist()
        return numbers or self.devices()

    def window(self, host: tuple[int, int]) -> tuple[int, int]:
        """Return the window on the host, extended until its device work is done."""
        start = self.work.start_ns[self.inside]
        end = start + self.work.duration_ns[self.inside]
        return int(start.min(initial=host[0])), int(end.max(initial=host[1]))
