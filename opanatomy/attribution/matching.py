"""Device work -> the launch that started it, and where the trace leaves that open.

Both carry a correlation id, which is at least 1 (0 is none) and unique within a process. A trace merged of several
processes, or with events twice, has several launches with one id: the external id, the threads that launch on the
device, and the order of time tell which one it was.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from opanatomy.records.columns import Bool, DeviceWork, Int64


class Launch(Struct, frozen=True, kw_only=True):
    """Launch records as columns; `host` is the innermost host row around each, -1 where there is none."""

    thread: Int64
    start_ns: Int64
    correlation: Int64
    external_id: Int64
    is_graph: Bool
    host: Int64


class Matched(Struct, frozen=True):
    """For each piece of work its launch (-1 none), and whether launches of other operators fit as well."""

    launch: Int64
    open: Bool


def last_of(keys: Int64, wanted: Int64) -> Int64:
    """For each wanted key the index of its last occurrence in `keys`; -1 for a missing or negative key."""
    if not len(keys):
        return np.full(len(wanted), -1, dtype=np.int64)
    order = np.argsort(keys, kind="stable")
    at = np.searchsorted(keys[order], wanted, side="right") - 1
    found = np.where(at >= 0, order[np.maximum(at, 0)], -1)
    known = (found >= 0) & (wanted >= 0)
    known[known] = keys[found[known]] == wanted[known]
    return np.where(known, found, -1)


def match(work: DeviceWork, launch: Launch) -> Matched:
    """The launch of each piece of work."""
    found = np.where(work.correlation > 0, last_of(launch.correlation, work.correlation), -1)
    doubtful = np.zeros(len(found), dtype=bool)
    numbers, counts = np.unique(launch.correlation, return_counts=True)
    several = (found >= 0) & np.isin(work.correlation, numbers[counts > 1])
    if not several.any():
        return Matched(found, doubtful)
    order = np.argsort(launch.correlation, kind="stable")
    sorted_ids = launch.correlation[order]
    users = _users(work.device, launch.thread, np.where(several, -1, found))
    for piece in np.flatnonzero(several).tolist():
        low, high = np.searchsorted(sorted_ids, [work.correlation[piece], work.correlation[piece] + 1])
        candidates = _fitting(order[low:high], piece, work, launch, users)
        found[piece] = _latest_before(candidates, launch.start_ns, int(work.start_ns[piece]))
        doubtful[piece] = len(np.unique(launch.host[candidates])) > 1
    return Matched(found, doubtful)


def _users(device: Int64, thread: Int64, launch: Int64) -> dict[int, Int64]:
    """The threads that launched on each device, by the work whose launch is sure."""
    sure = launch >= 0
    return {number: np.unique(thread[launch[sure & (device == number)]]) for number in np.unique(device[sure]).tolist()}


def _fitting(candidates: Int64, piece: int, work: DeviceWork, launch: Launch, users: dict[int, Int64]) -> Int64:
    """The candidates with the work's external id, of these those of a thread that launches on its device."""
    external = int(work.external_id[piece])
    same = candidates[launch.external_id[candidates] == external] if external > 0 else candidates[:0]
    candidates = same if len(same) else candidates
    threads = users.get(int(work.device[piece]))
    near = candidates[np.isin(launch.thread[candidates], threads)] if threads is not None else candidates[:0]
    return near if len(near) else candidates


def _latest_before(candidates: Int64, start_ns: Int64, time_ns: int) -> int:
    """The last candidate that started by then; where none had, the first."""
    starts = start_ns[candidates]
    before = starts <= time_ns
    chosen = np.where(before, starts, np.iinfo(np.int64).min).argmax() if before.any() else starts.argmin()
    return int(candidates[chosen])
