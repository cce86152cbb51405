"""Device work -> the host event that launched it, and why some work has none."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from opanatomy.attribution.matching import Launch, last_of, match
from opanatomy.attribution.rows import NEVER
from opanatomy.records.columns import GRAPH, LINKED, NO_LAUNCH, Bool, DeviceWork, Int64

#: Steps from an event to the one around it before leaps are worth preparing.
_FEW = 64


class Links(Struct, frozen=True, kw_only=True):
    """For each piece of device work: its launch and the host row that made it (-1 none), the link, the host time of the
    launch.

    The work of a graph is of no operator; `around` is the host row in which its graph was launched. `thread` is that of
    the launch, -1 where it is not recorded. `open` is set where several operators may have launched it.
    """

    launch: Int64
    open: Bool
    host: Int64
    link: Int64
    launched_ns: Int64
    around: Int64
    thread: Int64


def enclosing_rows(thread: Int64, start_ns: Int64, end_ns: Int64, parents: Int64, at: tuple[Int64, Int64]) -> Int64:
    """The innermost host row (rows in nesting order) that encloses each (thread, time); -1 where none does."""
    on, time = at
    found = np.full(len(time), -1, dtype=np.int64)
    for number in np.unique(on) if len(thread) else ():
        low, high = np.searchsorted(thread, [number, number + 1])
        mine = np.flatnonzero(on == number)
        rows = low + np.searchsorted(start_ns[low:high], time[mine], side="right") - 1
        rows[rows < low] = -1
        for _ in range(_FEW):
            over = (rows >= 0) & (end_ns[rows] <= time[mine])
            if not over.any():
                break
            rows[over] = parents[rows[over]]
        else:
            rows = _leap(rows, end_ns, parents, time[mine])
        found[mine] = rows
    return found


def _leap(rows: Int64, end_ns: Int64, parents: Int64, time: Int64) -> Int64:
    """The same for events nested by the thousand: leaps of 1, 2, 4, ... ancestors that outlast what they enclose."""
    above = parents.tolist()
    ends = end_ns.tolist()
    for row in range(len(above)):
        while above[row] >= 0 and ends[above[row]] <= ends[row]:
            above[row] = above[above[row]]
    leaps = [np.array(above, dtype=np.int64)]
    while (leaps[-1] >= 0).any():
        leaps.append(np.where(leaps[-1] >= 0, leaps[-1][leaps[-1]], -1))
    over = (rows >= 0) & (end_ns[rows] <= time)
    for leap in reversed(leaps):
        there = np.where(rows >= 0, leap[rows], -1)
        far = over & (there >= 0) & (end_ns[there] <= time)
        rows = np.where(far, there, rows)
    return np.where(over, leaps[0][rows], rows)


def link_work(work: DeviceWork, launch: Launch, host_external: Int64) -> Links:
    """Trace each piece of device work back: by correlation to its launch, else by external id to its operator.

    Kineto counts ids from 1: 0 is that of work and calls which no operator is known of (as in traces of 2021).
    """
    matched = match(work, launch)
    index, found = matched.launch, matched.launch >= 0
    host = np.where(found, _at(launch.host, index), -1)
    outer = np.where(work.external_id > 0, work.external_id, np.where(found, _at(launch.external_id, index), -1))
    by_external = (host < 0) & (outer > 0)
    host = np.where(by_external, last_of(host_external, outer), host)
    numbers, counts = np.unique(host_external, return_counts=True)
    several = by_external & np.isin(outer, numbers[counts > 1])
    graph = found & _at(launch.is_graph.astype(np.int64), index).astype(bool)
    link = np.where(graph, GRAPH, np.where(found | (host >= 0), LINKED, NO_LAUNCH))
    launched = np.where(found, _at(launch.start_ns, index), work.start_ns)
    thread = np.where(found, _at(launch.thread, index), -1)
    return Links(
        launch=index, open=matched.open | several, host=np.where(graph, -1, host), link=link,
        launched_ns=launched, around=host, thread=thread,
    )  # fmt: skip


def left_over(link: Int64, work: DeviceWork) -> Bool:
    """Whether work without a launch record was launched before the trace began.

    A stream runs its work in the order of the launches: what runs on it before the first work whose launch was
    recorded was launched earlier. The device is often a whole step behind the host when a trace begins. A stream
    without any recorded launch (of NCCL, by a call that the profiler does not know) goes by its device: what begins
    while other streams still run left-over work, or before the first work with a launch, is left over too.
    """
    unknown, recorded = link == NO_LAUNCH, (link == LINKED) | (link == GRAPH)
    found = np.zeros(len(link), dtype=bool)
    for device in np.unique(work.device[unknown]).tolist():
        here = work.device == device
        bare = []
        for stream in np.unique(work.stream[here & unknown]).tolist():
            mine = here & (work.stream == stream)
            starts = work.start_ns[mine & recorded]
            if len(starts):
                found |= mine & unknown & (work.start_ns < starts.min())
            else:
                bare.append(mine)
        ends = (work.start_ns + work.duration_ns)[here & found]
        first = np.sort(work.start_ns[here & recorded])[:1]
        caught_up = np.concatenate((ends, first)).max(initial=NEVER)
        for mine in bare:
            found |= mine & (work.start_ns < caught_up)
    return found


def _at(column: Int64, index: Int64) -> Int64:
    return column[np.maximum(index, 0)] if len(column) else np.full(len(index), -1, dtype=np.int64)
