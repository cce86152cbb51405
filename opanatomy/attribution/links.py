"""Link device events to the host events that launched them, and tell why some have none.

Both carry a correlation id, which is at least 1 (0 is none) and unique within a process. A trace merged of several
processes, or with events twice, has several launches with one id: the external id, the threads that launch on the
device, and the order of time tell which one it was.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from opanatomy.records.columns import (
    BEFORE_ALL,
    GRAPH,
    LINKED,
    NO_LAUNCH,
    Bool,
    DeviceWork,
    Int64,
    Launches,
    isin,
    rows_by_value,
    take,
    unique,
)


class Matched(Struct, frozen=True):
    """The launch of each device event (-1 if none), and whether launches of other operators match as well."""

    launch: Int64
    ambiguous: Bool


def last_of(keys: Int64, wanted: Int64) -> Int64:
    """Return the index of each wanted key's last occurrence in `keys`; -1 for a missing or negative key."""
    if not len(keys):
        return np.full(len(wanted), -1, dtype=np.int64)
    order = np.argsort(keys, kind="stable")
    at = np.searchsorted(keys[order], wanted, side="right") - 1
    last = np.where(at >= 0, order[np.maximum(at, 0)], -1)
    known = (last >= 0) & (wanted >= 0)
    known[known] = keys[last[known]] == wanted[known]
    return np.where(known, last, -1)


def repeated(keys: Int64) -> Int64:
    """Return the keys that occur more than once, sorted."""
    known = unique(keys)
    return known.values[np.bincount(known.inverse, minlength=len(known.values)) > 1]


def match(work: DeviceWork, launches: Launches, around: Int64) -> Matched:
    """Return the launch of each device event; `around` is the innermost host row around each launch, -1 if none."""
    index = np.where(work.correlation > 0, last_of(launches.correlation, work.correlation), -1)
    ambiguous = np.zeros(len(index), dtype=bool)
    several = (index >= 0) & isin(work.correlation, repeated(launches.correlation))
    if not several.any():
        return Matched(index, ambiguous)
    # The threads that launched on each device, from events whose launch is certain.
    sure = np.flatnonzero((index >= 0) & ~several)
    threads = {
        device: unique(launches.thread[index[sure[indices]]]).values
        for device, indices in rows_by_value(work.device[sure])
    }
    for events, candidates in _alike(np.flatnonzero(several), work, launches):
        # Keep candidates on launching threads; keep all if there are none.
        launching = threads.get(int(work.device[events[0]]), sure[:0])
        near = candidates[isin(launches.thread[candidates], launching)]
        candidates = near if len(near) else candidates
        # The last candidate that started by each event's time, else the first candidate.
        candidates = candidates[np.argsort(launches.start_ns[candidates], kind="stable")]
        starts = launches.start_ns[candidates]
        last = starts[np.maximum(np.searchsorted(starts, work.start_ns[events], side="right") - 1, 0)]
        index[events] = candidates[np.searchsorted(starts, last)]
        hosts = around[candidates]
        ambiguous[events] = hosts.min() != hosts.max()
    return Matched(index, ambiguous)


def _alike(events: Int64, work: DeviceWork, launches: Launches) -> Iterator[tuple[Int64, Int64]]:
    """Yield events of one device with the same ids, and the launches that carry these ids.

    The correlation id must match, and the external id too if any launch has both.
    """
    ids, launch_ids = _numbered(work.correlation[events], launches.correlation)
    outer, launch_outer = _numbered(work.external_id[events], launches.external_id)
    width = max(int(outer.max()), int(launch_outer.max())) + 1
    both, launch_both = ids * width + outer, launch_ids * width + launch_outer
    exact = (work.external_id[events] > 0) & isin(both, launch_both)
    for is_exact, keys, launch_keys in ((True, both, launch_both), (False, ids, launch_ids)):
        order = np.argsort(launch_keys, kind="stable")
        ordered = launch_keys[order]
        chosen = np.flatnonzero(exact == is_exact)
        devices = unique(work.device[events[chosen]])
        for key, indices in rows_by_value(keys[chosen] * len(devices.values) + devices.inverse):
            low, high = np.searchsorted(ordered, [key // len(devices.values), key // len(devices.values) + 1])
            yield events[chosen[indices]], order[low:high]


def _numbered(first: Int64, second: Int64) -> tuple[Int64, Int64]:
    """Number the values of two columns, equal values alike."""
    numbers = unique(np.concatenate((first, second))).inverse
    return numbers[: len(first)], numbers[len(first) :]


class Links(Struct, frozen=True, kw_only=True):
    """The launch and host row of each device event (-1 if none), the kind of link, and the launch's host time.

    The work of a graph belongs to no operator; `enclosing` is the host row that launched the graph. `thread` is that of
    the launch, -1 if not recorded. `ambiguous` is set if several operators may have launched the event.
    """

    launch: Int64
    ambiguous: Bool
    host: Int64
    link: Int64
    launched_ns: Int64
    enclosing: Int64
    thread: Int64


def link_work(work: DeviceWork, launches: Launches, around: Int64, is_graph: Bool, host_external: Int64) -> Links:
    """Link each device event: by correlation to its launch, else by external id to its operator.

    `around` is the innermost host row around each launch, -1 if none, `is_graph` set for launches of whole graphs.
    Kineto counts ids from 1; work and calls without a known operator have 0 (as in traces of 2021).
    """
    matched = match(work, launches, around)
    index, launched = matched.launch, matched.launch >= 0
    host = take(around, index)
    outer = np.where(work.external_id > 0, work.external_id, take(launches.external_id, index))
    by_external = (host < 0) & (outer > 0)
    host = np.where(by_external, last_of(host_external, outer), host)
    several = by_external & isin(outer, repeated(host_external))
    of_graph = isin(index, np.flatnonzero(is_graph))
    return Links(
        launch=index,
        ambiguous=matched.ambiguous | several,
        host=np.where(of_graph, -1, host),
        link=np.where(of_graph, GRAPH, np.where(launched | (host >= 0), LINKED, NO_LAUNCH)),
        launched_ns=np.where(launched, take(launches.start_ns, index), work.start_ns),
        enclosing=host,
        thread=take(launches.thread, index),
    )


def left_over(link: Int64, work: DeviceWork) -> Bool:
    """Return which work without a launch record was launched before the trace began.

    A stream runs its work in launch order: work before the first one with a recorded launch was launched earlier. The
    device is often a whole step behind the host when a trace begins. A stream without any recorded launch (of NCCL, by
    a call that the profiler does not know) goes by its device: what begins while other streams still run left-over
    work, or before the first work with a launch, is left over too.
    """
    unknown, recorded = link == NO_LAUNCH, (link == LINKED) | (link == GRAPH)
    left = np.zeros(len(link), dtype=bool)
    if not unknown.any():
        return left
    for _, events in rows_by_value(work.device):
        bare = []
        for _, indices in rows_by_value(work.stream[events]):
            stream = events[indices]
            starts = work.start_ns[stream[recorded[stream]]]
            if len(starts):
                left[stream] = unknown[stream] & (work.start_ns[stream] < starts.min())
            else:
                bare.append(stream)
        early = events[left[events]]
        ends = work.start_ns[early] + work.duration_ns[early]
        launched_ns = work.start_ns[events[recorded[events]]]
        first = int(launched_ns.min()) if len(launched_ns) else BEFORE_ALL
        caught_up = max(int(ends.max(initial=BEFORE_ALL)), first)
        for stream in bare:
            left[stream] = work.start_ns[stream] < caught_up
    return left
