"""Which host event encloses which: parents by time containment on each thread."""

from __future__ import annotations

import numpy as np

from opanatomy.tables import Int64

#: A child may stick out of its parent by clock rounding, never by more.
SLACK_NS = 1000


def order_of(thread: Int64, start_ns: Int64, duration_ns: Int64) -> Int64:
    """Row numbers by thread, then start, the longer first; equal ones keep the order of the file."""
    return np.lexsort((np.arange(len(thread)), -duration_ns, start_ns, thread))


def parents_of(thread: Int64, start_ns: Int64, duration_ns: Int64) -> Int64:
    """For rows sorted by `order_of`: the row of the innermost event that encloses each, -1 where there is none.

    An event that begins before another ends and outlasts it by more than the clock's rounding does not belong to it.
    """
    parents = [-1] * len(thread)
    stack: list[tuple[int, int, int]] = []
    current = None
    rows = zip(thread.tolist(), start_ns.tolist(), (start_ns + duration_ns).tolist(), strict=True)
    for row, (on, start, end) in enumerate(rows):
        if on != current:
            stack.clear()
            current = on
        while stack and stack[-1][1] <= start:
            stack.pop()
        parents[row] = _enclosing(stack, start, end)
        stack.append((row, end, _outlasting(stack, end)))
    return np.array(parents, dtype=np.int64)


def _enclosing(stack: list[tuple[int, int, int]], start: int, end: int) -> int:
    """The topmost row that encloses; each entry has the place of the next one below that outlasts it."""
    place = len(stack) - 1
    while place >= 0:
        row, stack_end, below = stack[place]
        if start < stack_end and end <= stack_end + SLACK_NS:
            return row
        place = below
    return -1


def _outlasting(stack: list[tuple[int, int, int]], end: int) -> int:
    place = len(stack) - 1
    while place >= 0 and stack[place][1] <= end:
        place = stack[place][2]
    return place


def self_times(parents: Int64, start_ns: Int64, duration_ns: Int64) -> Int64:
    """Duration less that of the direct children, each clipped to its parent's end."""
    inside = np.flatnonzero(parents >= 0)
    above = parents[inside]
    end = start_ns + duration_ns
    covered = np.minimum(end[inside], end[above]) - start_ns[inside]
    own = duration_ns.copy()
    np.subtract.at(own, above, covered)
    return np.maximum(own, 0)
