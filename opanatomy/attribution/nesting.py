"""Find the parents of host events, by time containment on each thread, and the events around a moment."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from msgspec import Struct

from opanatomy.records import columns
from opanatomy.records.columns import Bool, HostEvents, HostTable, Int64, rows_by_value

#: A child may end after its parent, or an operator begin before its range, by clock rounding, never by more.
SLACK_NS = 1000


def order_of(thread: Int64, start_ns: Int64, duration_ns: Int64) -> Int64:
    """Sort rows by thread and start, longer ones first; equal ones keep the order of the file."""
    return columns.order_by((thread, start_ns), (-duration_ns,))


def order_within_ranges(host: HostEvents) -> tuple[Int64, Int64]:
    """Return the order of host events, as `order_of` sorts them, and their starts in it.

    An operator that begins before a range and ends inside it begins with the range (pytorch#174555).
    """
    starts = host.start_ns
    while True:
        order = order_of(host.thread, starts, host.duration_ns)
        start, end = starts[order], (starts + host.duration_ns)[order]
        early = (host.thread[order][1:] == host.thread[order][:-1]) & (start[1:] - start[:-1] <= SLACK_NS)
        early &= (start[1:] > start[:-1]) & (start[1:] < end[:-1]) & (end[1:] > end[:-1] + SLACK_NS)
        early &= ~host.is_operator[order][1:] & host.is_operator[order][:-1]
        if not early.any():
            return order, start
        starts = starts.copy()
        starts[order[:-1][early]] = start[1:][early]


def parents_of(thread: Int64, start_ns: Int64, duration_ns: Int64) -> Int64:
    """Return the row of the innermost event around each, -1 if none, for rows sorted by `order_of`.

    An event that begins before another ends and outlasts it by more than clock rounding is not its child.
    """
    parents = np.full(len(thread), -1, dtype=np.int64)
    bounds = np.flatnonzero(np.diff(thread)) + 1
    for low, high in zip([0, *bounds.tolist()], [*bounds.tolist(), len(thread)], strict=True):
        start, end = start_ns[low:high], start_ns[low:high] + duration_ns[low:high]
        enclosing = _by_depth(start, end)
        enclosing = _one_by_one(start, end) if enclosing is None else enclosing
        parents[low:high] = np.where(enclosing >= 0, enclosing + low, -1)
    return parents


def _by_depth(start: Int64, end: Int64) -> Int64 | None:
    """Return the parents on one thread if no two events cross, else `None`.

    The depth of an event is the number of open events when it begins; its parent is the last before it one level up.
    """
    rows = np.arange(len(start))
    instant = end == start
    ended = np.searchsorted(np.sort(end[~instant]), start, side="right") + np.cumsum(instant) - instant
    depth = rows - ended
    parents = np.full(len(start), -1, dtype=np.int64)
    by_depth = np.argsort(depth, kind="stable")
    levels = np.split(by_depth, np.flatnonzero(np.diff(depth[by_depth])) + 1)
    for above, level in pairwise(levels):
        parents[level] = above[np.searchsorted(above, level) - 1]
    inside = np.flatnonzero(parents >= 0)
    nested = (start[inside] < end[parents[inside]]) & (end[inside] <= end[parents[inside]])
    return parents if nested.all() and (depth[parents < 0] == 0).all() else None


def _one_by_one(start: Int64, end: Int64) -> Int64:
    """Return the parents on one thread, for any events."""
    parents = [-1] * len(start)
    # The open events: (row, end, place of the next one below that outlasts it).
    stack: list[tuple[int, int, int]] = []
    for row, (begins, ends) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        while stack and stack[-1][1] <= begins:
            stack.pop()
        index = len(stack) - 1
        while index >= 0:
            outer, outer_end, below = stack[index]
            if begins < outer_end and ends <= outer_end + SLACK_NS:
                parents[row] = outer
                break
            index = below
        outlasting = len(stack) - 1
        while outlasting >= 0 and stack[outlasting][1] <= ends:
            outlasting = stack[outlasting][2]
        stack.append((row, ends, outlasting))
    return np.array(parents, dtype=np.int64)


def nearest_above(marked: Bool, parents: Int64) -> Int64:
    """Return for each row the innermost marked row among it and its ancestors, -1 if none."""
    count = len(parents)
    nearest = np.append(np.where(marked, np.arange(count), np.where(parents >= 0, parents, count)), count)
    while True:
        further = nearest[nearest]
        if np.array_equal(further, nearest):
            return np.where(nearest[:count] < count, nearest[:count], -1)
        nearest = further


def self_times(parents: Int64, start_ns: Int64, duration_ns: Int64) -> Int64:
    """Return durations minus those of direct children, each clipped to its parent's end."""
    inside = np.flatnonzero(parents >= 0)
    above = parents[inside]
    end = start_ns + duration_ns
    covered = np.minimum(end[inside], end[above]) - start_ns[inside]
    own: Int64 = duration_ns.copy()
    np.subtract.at(own, above, covered)
    return own.clip(0)


# ----- host events in nesting order


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
    #: The last row on its thread that starts before the row ends, else the row itself.
    last: Int64

    @property
    def is_operator(self) -> Bool:
        """Return a mask of the operators; the others are annotations."""
        operators: Bool = self.annotation == 0
        return operators


def latest(rows: HostRows, key: Int64, among: Int64) -> Int64:
    """Return the last of the rows `among` to start with each key, sorted by key."""
    order = among[np.lexsort((rows.start_ns[among], key[among]))]
    number = key[order]
    return order[np.append(number[1:] != number[:-1], True)] if len(order) else order


def last_started(thread: Int64, start_ns: Int64, at: tuple[Int64, Int64]) -> Int64:
    """Return the last row (rows in nesting order) that has started on each (thread, time); -1 if none."""
    threads, times = at
    started = np.full(len(times), -1, dtype=np.int64)
    for number, indices in rows_by_value(threads):
        low, high = np.searchsorted(thread, [number, number + 1])
        row = low + np.searchsorted(start_ns[low:high], times[indices], side="right") - 1
        started[indices] = np.where(row >= low, row, -1)
    return started


def last_inside(thread: Int64, start_ns: Int64, end_ns: Int64) -> Int64:
    """Return `HostRows.last` for events in nesting order."""
    last = np.arange(len(thread))
    bounds = np.flatnonzero(np.diff(thread)) + 1
    for low, high in zip([0, *bounds.tolist()], [*bounds.tolist(), len(thread)], strict=True):
        last[low:high] = low + np.searchsorted(start_ns[low:high], end_ns[low:high], side="left") - 1
    return np.maximum(last, np.arange(len(thread)))


def contains(rows: HostRows, marked: Bool) -> Bool:
    """Return whether a marked row starts on each row's thread, after it in nesting order and before its end."""
    before = np.append(0, np.cumsum(marked))
    holds_one: Bool = before[rows.last + 1] > before[1:]
    return holds_one


#: Steps up to an enclosing event before a jump table is worth building.
_DIRECT_STEPS = 64


def innermost_at(host: HostRows | HostTable, thread: Int64, time_ns: Int64) -> Int64:
    """Return the innermost host row around each moment of a thread; -1 if none."""
    end_ns, parents = host.end_ns, host.parent
    rows = last_started(host.thread, host.start_ns, (thread, time_ns))
    over = _over(rows, end_ns, time_ns)
    for _ in range(_DIRECT_STEPS):
        if not len(over):
            return rows
        rows[over] = parents[rows[over]]
        over = over[_over(rows[over], end_ns, time_ns[over])]

    # Events nested by the thousand: leaps of 1, 2, 4, ... ancestors that outlast their children.
    above = parents.tolist()
    ends = end_ns.tolist()
    for row in range(len(above)):
        while above[row] >= 0 and ends[above[row]] <= ends[row]:
            above[row] = above[above[row]]
    leaps = [np.array(above, dtype=np.int64)]
    while (leaps[-1] >= 0).any():
        leaps.append(np.where(leaps[-1] >= 0, leaps[-1][leaps[-1]], -1))
    ended = (rows >= 0) & (end_ns[rows] <= time_ns)
    for leap in reversed(leaps):
        there = np.where(rows >= 0, leap[rows], -1)
        far = ended & (there >= 0) & (end_ns[there] <= time_ns)
        rows = np.where(far, there, rows)
    return np.where(ended, leaps[0][rows], rows)


def _over(rows: Int64, end_ns: Int64, time_ns: Int64) -> Int64:
    """Return the indices of the rows that have ended by these times."""
    indices = np.flatnonzero(rows >= 0)
    return indices[end_ns[rows[indices]] <= time_ns[indices]]
