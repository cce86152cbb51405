"""The host events as attribution sees them, in nesting order."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from opanatomy.records.columns import Bool, Int64, rows_by_value

NEVER = -(2**63)


class HostRows(Struct, frozen=True):
    """The host events in nesting order."""

    name: Int64
    thread: Int64
    start_ns: Int64
    end_ns: Int64
    sequence: Int64
    forward_thread: Int64
    parent: Int64
    annotation: Int64
    #: The last row that starts on the row's thread before it ends: itself where none starts in it.
    last: Int64


def latest(rows: HostRows, key: Int64, among: Int64) -> Int64:
    """Of the rows `among` the last one to start with each key, in the order of the keys."""
    order = among[np.lexsort((rows.start_ns[among], key[among]))]
    number = key[order]
    return order[np.append(number[1:] != number[:-1], True)] if len(order) else order


def last_started(thread: Int64, start_ns: Int64, at: tuple[Int64, Int64]) -> Int64:
    """The last row (rows in nesting order) that has started on each (thread, time); -1 where none has."""
    threads, times = at
    started = np.full(len(times), -1, dtype=np.int64)
    for number, places in rows_by_value(threads):
        low, high = np.searchsorted(thread, [number, number + 1])
        row = low + np.searchsorted(start_ns[low:high], times[places], side="right") - 1
        started[places] = np.where(row >= low, row, -1)
    return started


def last_inside(thread: Int64, start_ns: Int64, end_ns: Int64) -> Int64:
    """`HostRows.last` of events in nesting order."""
    last = np.arange(len(thread))
    bounds = np.flatnonzero(np.diff(thread)) + 1
    for low, high in zip([0, *bounds.tolist()], [*bounds.tolist(), len(thread)], strict=True):
        last[low:high] = low + np.searchsorted(start_ns[low:high], end_ns[low:high], side="left") - 1
    return np.maximum(last, np.arange(len(thread)))


def contains(rows: HostRows, marked: Bool) -> Bool:
    """Whether a marked row starts on the thread of each row, after it in nesting order and before its end."""
    before = np.append(0, np.cumsum(marked))
    holds_one: Bool = before[rows.last + 1] > before[1:]
    return holds_one
