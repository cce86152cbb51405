"""The replayed step against what the allocator says itself: its peak, its total before, its total at each event."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from opanatomy.capture.memory.allocator import DeviceAllocator
from opanatomy.capture.memory.before import Before
from opanatomy.capture.memory.events import Change
from opanatomy.capture.memory.replay import Replay
from opanatomy.records.memory import AllocatorFigures

Bytes = np.ndarray[Any, np.dtype[np.int64]]
#: The backend of the CPU's figures: torch's wrapper that counts while a profiler asks it to.
_OF_CPU: Final = "cpu"


def figures_of(found: Replay, there: Before, allocator: DeviceAllocator | None, device: str) -> AllocatorFigures:
    """What the allocator says of the step; to be called when it is done, before its peak is reset again."""
    checked, equal, largest, where = _agreement(found, sum(there.base.values()) if there.whole else None)
    return AllocatorFigures(
        device=device,
        backend=_OF_CPU if allocator is None else allocator.backend,
        peak_bytes=None if allocator is None else allocator.peak_bytes(),
        reserved_peak_bytes=None if allocator is None else allocator.reserved_peak_bytes(),
        before_bytes=there.allocated_bytes,
        before_blocks_bytes=sum(held.bytes for held in there.held.values()) if there.whole else None,
        checked_events=checked,
        equal_events=equal,
        largest_difference_bytes=largest,
        at_largest_difference=where,
        unseen_frees=found.unseen_frees,
    )


def _agreement(found: Replay, before_bytes: int | None) -> tuple[int, int, int, tuple[int, int] | None]:
    """(events checked, equal ones, the largest difference, our bytes and the allocator's there).

    Without `before_bytes` the allocator's total has an offset that is not known, and is taken from most events.
    """
    moments = found.tree.moments
    places = np.array(
        [place for place, one in enumerate(moments) if isinstance(one, Change) and one.total_bytes is not None],
        dtype=np.int64,
    )
    if not len(places):
        return 0, 0, 0, None
    theirs = np.array([getattr(moments[place], "total_bytes", 0) for place in places.tolist()], dtype=np.int64)
    ours = _counted(found, on_device=before_bytes is not None)[places + 1]
    offset = before_bytes
    if offset is None:
        values, counts = np.unique(theirs - ours, return_counts=True)
        offset = int(values[counts.argmax()])
    ours += offset
    apart = np.abs(theirs - ours)
    worst = int(apart.argmax())
    where = (int(ours[worst]), int(theirs[worst])) if apart[worst] else None
    return len(places), int((apart == 0).sum()), int(apart[worst]), where


def _counted(found: Replay, *, on_device: bool) -> Bytes:
    """What the allocator should count after each moment, from 0 before the first.

    Frees of blocks from before the step are in the total of the CPU's allocator only where it reported them.
    """
    changes = np.zeros(len(found.tree.moments) + 1, dtype=np.int64)
    for block in found.blocks:
        changes[block.begin + 1] += block.bytes
        if block.end is not None:
            changes[block.end + 1] -= block.bytes
    for held in found.held.values():
        if held.end is not None and (on_device or held.reported):
            changes[held.end + 1] -= held.bytes
    for place, size in found.unknown_frees:
        changes[place + 1] -= size
    counted: Bytes = changes.cumsum()
    return counted
