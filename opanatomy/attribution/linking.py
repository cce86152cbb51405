"""Device work -> the host event that launched it, and why some work has none."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from opanatomy.attribution.matching import Launch, last_of, match, repeated
from opanatomy.attribution.rows import NEVER, last_started
from opanatomy.records.columns import GRAPH, LINKED, NO_LAUNCH, Bool, DeviceWork, Int64, is_among, rows_by_value

#: Steps from an event to the one that encloses it before leaps are worth preparing.
_FEW = 64


class Links(Struct, frozen=True, kw_only=True):
    """For each device event: its launch and the host row that made it (-1 none), the link, the host time of the
    launch.

    The work of a graph is of no operator; `enclosing` is the host row in which its graph was launched. `thread` is that
    of the launch, -1 where it is not recorded. `open` is set where several operators may have launched it.
    """

    launch: Int64
    open: Bool
    host: Int64
    link: Int64
    launched_ns: Int64
    enclosing: Int64
    thread: Int64


def enclosing_rows(thread: Int64, start_ns: Int64, end_ns: Int64, parents: Int64, at: tuple[Int64, Int64]) -> Int64:
    """The innermost host row (rows in nesting order) that encloses each (thread, time); -1 where none does."""
    rows = last_started(thread, start_ns, at)
    over = _over(rows, end_ns, at[1])
    for _ in range(_FEW):
        if not len(over):
            return rows
        rows[over] = parents[rows[over]]
        over = over[_over(rows[over], end_ns, at[1][over])]
    return _leap(rows, end_ns, parents, at[1])


def _over(rows: Int64, end_ns: Int64, time_ns: Int64) -> Int64:
    """The places of the rows that have ended by these times."""
    places = np.flatnonzero(rows >= 0)
    return places[end_ns[rows[places]] <= time_ns[places]]


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
    """Trace each device event back: by correlation to its launch, else by external id to its operator.

    Kineto counts ids from 1: 0 is that of work and calls which no operator is known of (as in traces of 2021).
    """
    matched = match(work, launch)
    index, launched = matched.launch, matched.launch >= 0
    host = np.where(launched, _at(launch.host, index), -1)
    outer = np.where(work.external_id > 0, work.external_id, np.where(launched, _at(launch.external_id, index), -1))
    by_external = (host < 0) & (outer > 0)
    host = np.where(by_external, last_of(host_external, outer), host)
    several = by_external & is_among(outer, repeated(host_external))
    graph = launched & _at(launch.is_graph.astype(np.int64), index).astype(bool)
    link = np.where(graph, GRAPH, np.where(launched | (host >= 0), LINKED, NO_LAUNCH))
    launched_ns = np.where(launched, _at(launch.start_ns, index), work.start_ns)
    thread = np.where(launched, _at(launch.thread, index), -1)
    return Links(
        launch=index, open=matched.open | several, host=np.where(graph, -1, host), link=link,
        launched_ns=launched_ns, enclosing=host, thread=thread,
    )  # fmt: skip


def left_over(link: Int64, work: DeviceWork) -> Bool:
    """Whether work without a launch record was launched before the trace began.

    A stream runs its work in the order of the launches: what runs on it before the first work whose launch was
    recorded was launched earlier. The device is often a whole step behind the host when a trace begins. A stream
    without any recorded launch (of NCCL, by a call that the profiler does not know) goes by its device: what begins
    while other streams still run left-over work, or before the first work with a launch, is left over too.
    """
    unknown, recorded = link == NO_LAUNCH, (link == LINKED) | (link == GRAPH)
    left = np.zeros(len(link), dtype=bool)
    for _, events in rows_by_value(work.device) if unknown.any() else ():
        bare = []
        for _, places in rows_by_value(work.stream[events]):
            stream = events[places]
            starts = work.start_ns[stream[recorded[stream]]]
            if len(starts):
                left[stream] = unknown[stream] & (work.start_ns[stream] < starts.min())
            else:
                bare.append(stream)
        early = events[left[events]]
        ends = work.start_ns[early] + work.duration_ns[early]
        first = np.sort(work.start_ns[events[recorded[events]]])[:1]
        caught_up = np.concatenate((ends, first)).max(initial=NEVER)
        for stream in bare:
            left[stream] = work.start_ns[stream] < caught_up
    return left


def _at(column: Int64, index: Int64) -> Int64:
    return column[np.maximum(index, 0)] if len(column) else np.full(len(index), -1, dtype=np.int64)
