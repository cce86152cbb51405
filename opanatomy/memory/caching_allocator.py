"""Follow torch's CUDA caching allocator: the whole block that it gave for each request of a history.

`torch.cuda.memory_allocated` and `max_memory_allocated` count whole blocks until their free is requested; a history
records requests (`orig_size`, `requested_size` in c10/cuda/CUDACachingAllocator.cpp). A block is its request rounded up
(`round_size`). In a large segment that does not expand, a rest of at most 1 MiB is not split off (`should_split`) and
belongs to the block. Free neighbors are merged, so a free block ends at the next block in use or at the end of its
segment: the addresses of a history give its size. Blocks alive at the end have their sizes in the segments, which check
the others.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from typing import Final

import numpy as np
from msgspec import Struct

from opanatomy.records.columns import Int64
from opanatomy.records.snapshot import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    INACTIVE,
    PENDING,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    History,
    Snapshot,
)

#: `kMinBlockSize`: the smallest step of a block.
_STEP: Final = 512
#: `kSmallSize`: larger requests get blocks of large segments, with rests of at most this size.
_SMALL_BYTES: Final = 1 << 20
#: `kRoundUpPowerOfTwoIntervals`: the sizes up to 1 MiB, up to 2 MiB and so on have divisions of their own.
_INTERVALS: Final = 16
_NO_LIMIT: Final = 1 << 56


class Given(Struct, frozen=True, kw_only=True):
    """The whole blocks given by one device's allocator.

    `whole` has the block size for each row of the history, of use for rows that allocate; `before` has the blocks in
    use before it, by address. `pending` is the bytes after each row of freed blocks that another stream may still use;
    its first entry is before all rows.

    Where the rounding is unknown, a block has its minimum size. `open_before` is how many bytes those in `before` may
    have beyond that; if `follows_rules` is false, any block freed in the history may be larger.
    """

    whole: Int64
    before: dict[int, int]
    pending: Int64
    open_before: dict[int, int]
    follows_rules: bool


def max_split_bytes(settings: dict[str, str]) -> int | None:
    """Return the size from which on blocks are not split (`max_split_size_mb`); `None` without a limit."""
    limit = settings.get("max_split_size", "")
    return int(limit) if re.fullmatch(r"[1-9]\d{0,15}", limit) else None


def blocks_given(snapshot: Snapshot, number: int, history: History) -> Given:
    """Return the whole blocks of a device's history."""
    blocks, segments, settings = snapshot.blocks, snapshot.segments, snapshot.settings
    at_end = np.flatnonzero(blocks.state != INACTIVE)
    at_end = at_end[segments.device[blocks.segment[at_end]] == number]
    size_at_end = dict(zip(blocks.address[at_end].tolist(), blocks.size[at_end].tolist(), strict=True))
    # Other allocators round otherwise, or not at all: then the request is the least that a block has.
    rounds = bool((_rounded(blocks.requested[at_end], settings) <= blocks.size[at_end]).all())
    exact = bool((blocks.requested[at_end] == blocks.size[at_end]).all())
    least = _rounded(history.size, settings) if rounds else history.size
    splits_all = not rounds or settings.get("expandable_segments") == "True"
    expands = bool(segments.is_expandable[segments.device == number].any() or (history.action == SEGMENT_MAP).any())
    never_split = max_split_bytes(settings) or _NO_LIMIT
    completes = FREE_COMPLETED if (history.action == FREE_COMPLETED).any() else FREE_REQUESTED
    events = list(
        zip(history.action.tolist(), history.address.tolist(), history.size.tolist(), least.tolist(), strict=True)
    )

    # In use before the first row is what lives at the end without an allocation, and what is freed without one.
    first: dict[int, tuple[int, int]] = {}
    last: dict[int, int] = {}
    opens_with: dict[int, int] = {}
    first_of_segment: dict[int, tuple[int, int]] = {}
    last_of_segment: dict[int, int] = {}
    for action, address, size, rounded in events:
        if action in (ALLOC, completes):
            first.setdefault(address, (action, rounded))
            last[address] = action
        if action in (ALLOC, FREE_REQUESTED, FREE_COMPLETED):
            opens_with.setdefault(address, action)
        elif action in (SEGMENT_ALLOC, SEGMENT_FREE):
            first_of_segment.setdefault(address, (action, size))
            last_of_segment[address] = action
    freed = {address: rounded for address, (action, rounded) in first.items() if action == completes}
    used = {address: size for address, size in size_at_end.items() if last.get(address) != ALLOC}
    used |= freed
    ends = {
        address: address + total
        for address, total, device, is_expandable in zip(
            segments.address.tolist(),
            segments.total.tolist(),
            segments.device.tolist(),
            segments.is_expandable.tolist(),
            strict=True,
        )
        if device == number and not is_expandable and last_of_segment.get(address) != SEGMENT_ALLOC
    }
    ends |= {at: at + size for at, (action, size) in first_of_segment.items() if action == SEGMENT_FREE}
    held = sorted(ends)
    large = sorted(address for address, size in used.items() if size > _SMALL_BYTES)

    def end_of_free(address: int) -> int | None:
        """Return where the free block that begins here, or behind a block in use, ends if its segment is known."""
        index = bisect_right(held, address) - 1
        if index < 0 or address >= ends[held[index]]:
            return None
        following = bisect_right(large, address)
        end: int = ends[held[index]]
        return min(end, large[following]) if following < len(large) else end

    # Free large blocks are larger than 1 MiB: a smaller gap behind a block from before belongs to it. Of a wider gap
    # its part is known when a block is allocated behind it.
    unresolved: dict[int, int] = {}
    open_before: dict[int, int] = {}
    for address, rounded in freed.items():
        if rounded > _SMALL_BYTES and not splits_all:
            end = end_of_free(address)
            if end is not None and rounded <= end - address <= rounded + _SMALL_BYTES:
                used[address] = end - address
            elif end is not None or not expands:
                unresolved[address] = (
                    _SMALL_BYTES if end is None else min(_SMALL_BYTES, max(end - address - rounded - _SMALL_BYTES, 0))
                )

    before, whole, unplaced = dict(used), [0] * len(events), 0
    pends = completes == FREE_COMPLETED and bool((history.action == FREE_REQUESTED).any())
    state_at_end = dict(zip(blocks.address[at_end].tolist(), blocks.state[at_end].tolist(), strict=True))
    waiting = {
        address: size
        for address, size in used.items()
        if opens_with.get(address, FREE_COMPLETED) == FREE_COMPLETED
        and (pends if address in opens_with else state_at_end.get(address) == PENDING)
    }
    bytes_waiting = sum(waiting.values())
    pending = [bytes_waiting]
    allocated_at: dict[int, int] = {}
    for row, (action, address, _, rounded) in enumerate(events):
        if action == ALLOC:
            given = rounded
            if rounded > _SMALL_BYTES and not splits_all:
                end = end_of_free(address)
                index = bisect_left(large, address)
                if end is None or end - address < rounded:
                    unplaced += end is not None or not expands
                elif end - address - rounded <= _SMALL_BYTES or rounded >= never_split:
                    given = end - address
                if index and (previous := large[index - 1]) in unresolved and end_of_free(previous) == end:
                    used[previous] = before[previous] = address - previous
                    del unresolved[previous]
                large.insert(index, address)
            used[address] = whole[row] = given
            allocated_at[address] = row
        elif action == FREE_REQUESTED and pends:
            waiting[address] = used.get(address, 0)
            bytes_waiting += waiting[address]
        elif action == SEGMENT_ALLOC and address not in ends:
            insort(held, address)
            ends[address] = address + events[row][2]
        elif action == SEGMENT_FREE and ends.pop(address, None) is not None:
            held.remove(address)
        if action == completes:
            if (
                rounded > _SMALL_BYTES
                and (index := bisect_left(large, address)) < len(large)
                and large[index] == address
            ):
                large.pop(index)
            if address in unresolved:
                open_before[address] = unresolved.pop(address)
            bytes_waiting -= waiting.pop(address, 0)
            used.pop(address, None)
            allocated_at.pop(address, None)
        pending.append(bytes_waiting)

    differ = [address for address, row in allocated_at.items() if size_at_end.get(address, whole[row]) != whole[row]]
    if differ:  # what was not split, or was, does not follow these rules: a pool that never splits, another release
        whole = least.tolist()
        before |= freed
    for address, row in allocated_at.items():
        whole[row] = size_at_end.get(address, whole[row])
    return Given(
        whole=np.array(whole, dtype=np.int64),
        before=before,
        pending=np.array(pending, dtype=np.int64),
        open_before=open_before,
        follows_rules=not (differ or unplaced) and (rounds or exact),
    )


def _rounded(requested: Int64, settings: dict[str, str]) -> Int64:
    """Return the requests rounded like `round_size`, with the setting `roundup_power2_divisions`."""
    steps = np.maximum(-(-requested // _STEP), 1) * _STEP
    divisions = [int(number) for number in re.findall(r":\s*(\d{1,6})\b", settings.get("roundup_power2_divisions", ""))]
    if len(divisions) != _INTERVALS or max(divisions) <= 1:
        return steps
    exponent = np.frexp(np.maximum(requested, 1).astype(np.float64))[1].astype(np.int64) - 1
    of_size = np.array(divisions, dtype=np.int64)[np.clip(exponent - 20, 0, _INTERVALS - 1)]
    power = np.left_shift(np.int64(1), exponent)
    part = np.maximum(power // np.maximum(of_size, 1), 1)
    divided = np.where(power == requested, requested, -(-requested // part) * part)
    return np.where((of_size > 1) & (requested > _STEP * of_size), divided, steps)
