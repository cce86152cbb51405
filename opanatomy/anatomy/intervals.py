"""Unions and overlaps of time intervals, exact in nanoseconds."""

from __future__ import annotations

import numpy as np

from opanatomy.tables import Int64


def union(start_ns: Int64, duration_ns: Int64) -> tuple[Int64, Int64]:
    """The disjoint intervals (starts, ends) that cover the same time, in order."""
    if not len(start_ns):
        empty = np.zeros(0, dtype=np.int64)
        return empty, empty
    order = np.argsort(start_ns, kind="stable")
    start, end = start_ns[order], np.maximum.accumulate((start_ns + duration_ns)[order])
    first = np.concatenate(([True], start[1:] > end[:-1]))
    last = np.concatenate((first[1:], [True]))
    return start[first], end[last]


def length(intervals: tuple[Int64, Int64]) -> int:
    """The time that disjoint intervals cover."""
    return int((intervals[1] - intervals[0]).sum())


def covered(start_ns: Int64, duration_ns: Int64) -> int:
    """The time that intervals cover together, overlaps counted once."""
    return length(union(start_ns, duration_ns))


def exposed(mine: tuple[Int64, Int64], others: tuple[Int64, Int64]) -> int:
    """The time that `mine` covers (starts, durations) and `others` do not."""
    both = (np.concatenate((mine[0], others[0])), np.concatenate((mine[1], others[1])))
    return covered(*both) - covered(*others)
