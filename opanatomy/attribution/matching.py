"""Device work -> the launch that started it, and where the trace leaves that open.

Both carry a correlation id, which is at least 1 (0 is none) and unique within a process. A trace merged of several
processes, or with events twice, has several launches with one id: the external id, the threads that launch on the
device, and the order of time tell which one it was.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from opanatomy.records.columns import Bool, DeviceWork, Int64, distinct, is_among, rows_by_value


class Launch(Struct, frozen=True, kw_only=True):
    """Launch records as columns; `host` is the innermost host row that encloses each, -1 where there is none."""

    thread: Int64
    start_ns: Int64
    correlation: Int64
    external_id: Int64
    is_graph: Bool
    host: Int64


class Matched(Struct, frozen=True):
    """For each device event its launch (-1 none), and whether launches of other operators fit as well."""

    launch: Int64
    open: Bool


def last_of(keys: Int64, wanted: Int64) -> Int64:
    """For each wanted key the index of its last occurrence in `keys`; -1 for a missing or negative key."""
    if not len(keys):
        return np.full(len(wanted), -1, dtype=np.int64)
    order = np.argsort(keys, kind="stable")
    at = np.searchsorted(keys[order], wanted, side="right") - 1
    last = np.where(at >= 0, order[np.maximum(at, 0)], -1)
    known = (last >= 0) & (wanted >= 0)
    known[known] = keys[last[known]] == wanted[known]
    return np.where(known, last, -1)


def repeated(keys: Int64) -> Int64:
    """The keys that occur more than once, in order."""
    known = distinct(keys)
    return known.values[np.bincount(known.inverse, minlength=len(known.values)) > 1]


def match(work: DeviceWork, launch: Launch) -> Matched:
    """The launch of each device event."""
    index = np.where(work.correlation > 0, last_of(launch.correlation, work.correlation), -1)
    ambiguous = np.zeros(len(index), dtype=bool)
    several = (index >= 0) & is_among(work.correlation, repeated(launch.correlation))
    if not several.any():
        return Matched(index, ambiguous)
    threads = _threads_by_device(work.device, launch.thread, np.where(several, -1, index))
    for events, candidates in _alike(np.flatnonzero(several), work, launch):
        candidates = _of_threads(candidates, launch.thread, threads.get(int(work.device[events[0]])))
        index[events] = _latest_before(candidates, launch.start_ns, work.start_ns[events])
        hosts = launch.host[candidates]
        ambiguous[events] = hosts.min() != hosts.max()
    return Matched(index, ambiguous)


def _threads_by_device(device: Int64, thread: Int64, launch: Int64) -> dict[int, Int64]:
    """The threads that launched on each device, by the events whose launch is sure."""
    sure = np.flatnonzero(launch >= 0)
    return {number: distinct(thread[launch[sure[places]]]).values for number, places in rows_by_value(device[sure])}


def _alike(events: Int64, work: DeviceWork, launch: Launch) -> Iterator[tuple[Int64, Int64]]:
    """Events of one device with the same ids, and the launches that carry these.

    Those with the events' correlation id; where some of them have the external id too, these.
    """
    ids, launch_ids = _numbered(work.correlation[events], launch.correlation)
    outer, launch_outer = _numbered(work.external_id[events], launch.external_id)
    width = max(int(outer.max()), int(launch_outer.max())) + 1
    both, launch_both = ids * width + outer, launch_ids * width + launch_outer
    exact = (work.external_id[events] > 0) & is_among(both, launch_both)
    for is_exact, keys, launch_keys in ((True, both, launch_both), (False, ids, launch_ids)):
        order = np.argsort(launch_keys, kind="stable")
        ordered = launch_keys[order]
        chosen = np.flatnonzero(exact == is_exact)
        devices = distinct(work.device[events[chosen]])
        for key, places in rows_by_value(keys[chosen] * len(devices.values) + devices.inverse):
            low, high = np.searchsorted(ordered, [key // len(devices.values), key // len(devices.values) + 1])
            yield events[chosen[places]], order[low:high]


def _numbered(first: Int64, second: Int64) -> tuple[Int64, Int64]:
    """Small numbers for the values of two columns, the same for the same value."""
    numbers = distinct(np.concatenate((first, second))).inverse
    return numbers[: len(first)], numbers[len(first) :]


def _of_threads(candidates: Int64, thread: Int64, threads: Int64 | None) -> Int64:
    """Of the candidates those of a thread that launches on the device; all of them where there is none."""
    near = candidates[is_among(thread[candidates], threads)] if threads is not None else candidates[:0]
    return near if len(near) else candidates


def _latest_before(candidates: Int64, start_ns: Int64, times_ns: Int64) -> Int64:
    """For each time the last candidate that started by then; where none had, the first."""
    candidates = candidates[np.argsort(start_ns[candidates], kind="stable")]
    starts = start_ns[candidates]
    last = starts[np.maximum(np.searchsorted(starts, times_ns, side="right") - 1, 0)]
    return candidates[np.searchsorted(starts, last)]
