"""Pair the allocations and frees of each device into blocks, and group those that live at a moment."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.errors import TraceError
from opanatomy.records.columns import Bool, Categorical, Int64, MemoryEvents
from opanatomy.records.memory import MemoryBlocks
from opanatomy.records.patterns import regex
from opanatomy.records.taxonomy import PHASES

# --- memory events: order by device, check against the allocator's totals ---


#: torch's numbers of the device types (c10/core/DeviceType.h) that have an allocator.
_DEVICE_TYPES: Final = {
    0: "cpu",
    1: "cuda",
    6: "hip",
    9: "xla",
    12: "xpu",
    13: "mps",
    15: "hpu",
    19: "mtia",
    20: "privateuseone",
}
CPU: Final = "cpu"
UNKNOWN: Final = -1
#: The largest allocation, 1 PiB: an event with more bytes is damaged, and left out.
_MAX_EVENT_BYTES: Final = 2**50
#: The most that the allocations and frees of a trace may add up to, so that no sum of them leaves 64 bits.
_MAX_SUM_BYTES: Final = 2**62
#: The largest total that an allocator may report, 8 PiB; a larger one, or one below 0, counts as not recorded.
_MAX_TOTAL_BYTES: Final = 2**53
#: Maximum number of simultaneous events searched for the first one.
_MAX_TIED: Final = 16
#: Maximum number of them tried as the first.
_MAX_FIRSTS: Final = 4


class Agreement(Struct, frozen=True, kw_only=True):
    """The agreement of a sum of blocks with the allocator's own total, which is `offset_bytes` more in most events."""

    offset_bytes: int | None
    checked: int
    equal: int
    largest_difference_bytes: int
    #: Our bytes and the allocator's at the largest difference.
    at_largest_difference: tuple[int, int] | None = None


def possible_rows(events: MemoryEvents) -> Int64:
    """Return the rows that allocate or free bytes, as many as can be; raise `TraceError` if they add up to too much."""
    size = np.abs(events.bytes.astype(np.float64))
    rows = np.flatnonzero((size > 0) & (size <= _MAX_EVENT_BYTES))
    if float(size[rows].sum()) > _MAX_SUM_BYTES:
        raise TraceError("cannot read the trace: its allocations add up to more than 4 EiB - is this a trace?")
    return rows


def rows_by_device(events: MemoryEvents, rows: Int64) -> list[tuple[str, Int64]]:
    """Return each device's name with its rows in order of occurrence; the CPU comes last."""
    order = rows[np.lexsort((events.time_ns[rows], events.device[rows], events.device_type[rows]))]
    kinds, numbers = events.device_type[order], events.device[order]
    first = np.flatnonzero(np.append(True, (np.diff(kinds) != 0) | (np.diff(numbers) != 0)))
    devices = []
    for of_device in np.split(order, first[1:]):
        kind, number = int(events.device_type[of_device[0]]), int(events.device[of_device[0]])
        name = _DEVICE_TYPES.get(kind, f"device type {kind}")
        label = name if number < 0 else f"{name}:{number}"
        devices.append((label, of_device[_untied(events_at(events, of_device))]))
    return sorted(devices, key=lambda device: device[0] == CPU)


def events_at(events: MemoryEvents, rows: Int64) -> MemoryEvents:
    """Return the events in these rows."""
    return MemoryEvents(**{name: getattr(events, name)[rows] for name in MemoryEvents.__struct_fields__})


def plausible_totals(totals: Int64) -> Int64:
    """Return an allocator's totals, with -1 for impossible ones."""
    return np.where((totals >= 0) & (totals <= _MAX_TOTAL_BYTES), totals, UNKNOWN)


def _untied(events: MemoryEvents) -> Int64:
    """Return the order of events that are sorted by time, with ties in file order unless the totals show another.

    Threads write their events apart, and clocks of 2022 count microseconds. The allocator's total before an event must
    be the total after the event before it.
    """
    total = plausible_totals(events.total_allocated)
    order = np.arange(len(total))
    tied = np.append(np.diff(events.time_ns) == 0, False)
    ends = np.flatnonzero(~tied)
    starts = np.append(0, ends[:-1] + 1) if len(ends) else ends
    breaks = np.append(False, total[1:] - events.bytes[1:] != total[:-1])
    broken = np.add.reduceat(breaks, starts) > 0 if len(starts) else tied
    for first, last in zip(starts[broken].tolist(), ends[broken].tolist(), strict=True):
        if 0 < last - first < _MAX_TIED:
            before = None if first == 0 else int(total[order[first - 1]])
            chain = _chain(before, total[first : last + 1].tolist(), events.bytes[first : last + 1].tolist())
            order[first : last + 1] = first + np.array(chain)
    return order


def _chain(before: int | None, totals: list[int], sizes: list[int]) -> list[int]:
    """Return the order in which each total follows from the previous one; the given order if there is none."""
    left = list(range(len(totals)))
    firsts = left if before is None else [index for index in left if totals[index] - sizes[index] == before]
    for first in firsts[:_MAX_FIRSTS]:
        chain = [first]
        rest = [index for index in left if index != first]
        while rest:
            following = next((p for p in rest if totals[p] - sizes[p] == totals[chain[-1]]), None)
            if following is None:
                break
            chain.append(following)
            rest.remove(following)
        else:
            return chain
    return left


def agreement(total_allocated: Int64, ours: Int64, offset_bytes: int | None = None) -> Agreement:
    """Compare the allocator's total after each event with the bytes of our blocks.

    Without `offset_bytes`, the most frequent difference is taken as the offset.
    """
    total = plausible_totals(total_allocated)
    checked = np.flatnonzero(total != UNKNOWN)
    if not len(checked):
        return Agreement(offset_bytes=offset_bytes, checked=0, equal=0, largest_difference_bytes=0)
    offsets = total[checked] - ours[checked]
    offset = offset_bytes
    if offset is None:  # of several that are as frequent, the smallest
        ordered = np.sort(offsets)
        starts = np.flatnonzero(np.append(True, np.diff(ordered) != 0))
        counts = np.diff(np.append(starts, len(ordered)))
        offset = int(ordered[starts[counts.argmax()]])
    differences = np.abs(offsets - offset)
    worst = int(differences.argmax())
    at_worst = int(ours[checked[worst]]) + offset, int(total[checked[worst]])
    return Agreement(
        offset_bytes=offset,
        checked=len(checked),
        equal=int((differences == 0).sum()),
        largest_difference_bytes=int(differences[worst]),
        at_largest_difference=at_worst if differences[worst] else None,
    )


_NONE: Int64 = np.zeros(0, dtype=np.int64)


class Blocks(Struct, frozen=True, kw_only=True):
    """The blocks of one device, by indices of its `events`.

    Known blocks from before the first event come first, with `alloc` -1. After `n` events a block is live if `alloc < n
    <= free`. `free` is the event that freed it; where `free_unseen` the next allocation at its address, before which it
    was freed; and the number of events if neither is recorded.
    """

    events: int
    alloc: Int64
    free: Int64
    bytes: Int64
    address: Int64
    #: True if the address was allocated again without a free before, and nothing tells when it was freed.
    free_unseen: Bool
    #: Number of frees whose size differs from the allocation at their address.
    uneven: int
    #: Frees of allocations from before the first event that are not among the blocks: indices and bytes.
    unmatched: Int64
    unmatched_bytes: Int64
    by_address: bool

    @property
    def never_freed(self) -> Bool:
        """Return a mask of the blocks that outlive the trace."""
        outlives: Bool = self.free == self.events
        return outlives

    @property
    def from_before(self) -> Bool:
        """Return a mask of the blocks from before the first event."""
        earlier: Bool = self.alloc < 0
        return earlier

    def live_after(self, count: int) -> Int64:
        """Return the blocks allocated by an event that are live after `count` events."""
        return np.flatnonzero((self.alloc >= 0) & (self.alloc < count) & (count <= self.free))

    def live_at(self, event: Int64, address: Int64) -> Int64:
        """Return for each event the live block at its address allocated by an event, -1 if none."""
        order = np.lexsort((self.alloc, self.address))
        if not len(order):
            return np.full(len(event), -1, dtype=np.int64)
        # Sorted together by address and time, each question follows the last block at its address, if there is one.
        alloc, at = self.alloc[order], self.address[order]
        merged = np.lexsort((np.concatenate((alloc, event)), np.concatenate((at, address))))
        indices = np.empty(len(merged), dtype=np.int64)
        indices[merged] = np.cumsum(merged < len(order)) - 1
        block = order[indices[len(order) :]]
        live = (self.address[block] == address) & (self.alloc[block] >= 0) & (self.alloc[block] < event)
        return np.where(live & (event < self.free[block]), block, -1)

    def changes(self, block: Int64, size: Int64, begin: Int64 | None = None, end: Int64 | None = None) -> Int64:
        """Return the change of each event to the bytes of shares of blocks, first the bytes from before all events.

        A share lasts from the event `begin` to the event `end`, without them as long as its block.
        """
        steps = np.zeros(self.events + 2, dtype=np.int64)
        np.add.at(steps, (self.alloc[block] if begin is None else begin) + 1, size)
        np.subtract.at(steps, (self.free[block] if end is None else end) + 1, size)
        return steps[:-1]


def blocks_of(events: MemoryEvents, held_address: Int64 = _NONE, held_bytes: Int64 = _NONE) -> Blocks:
    """Pair the allocations and frees of one device, in order of time, by address; `held` are blocks from before.

    Without addresses (2021) a free matches the last live block of its size. Blocks of one size are interchangeable for
    the sum, but not for their allocating operators.
    """
    held = len(held_address)
    sizes = np.concatenate((held_bytes, events.bytes))
    addresses = np.concatenate((held_address, events.address))
    by_address = bool((events.address[events.bytes != 0] != UNKNOWN).all())
    count = len(sizes)
    gives = sizes > 0
    group = addresses if by_address else np.abs(sizes)
    # Sorted by address and then time, what follows an allocation at its address ends its block: its free, or the next
    # allocation there. Without addresses blocks of one size nest like brackets: their depth stands for the address.
    level = np.zeros(count, dtype=np.int64) if by_address else _depths(group, gives)
    order = np.lexsort((np.arange(count), level, group))
    order = order[sizes[order] != 0]
    follows = np.zeros(len(order), dtype=bool)
    follows[1:] = (np.diff(group[order]) == 0) & (np.diff(level[order]) == 0) & gives[order[:-1]]
    later = np.flatnonzero(follows)
    closed_at = np.full(count, count, dtype=np.int64)
    closed_at[order[later - 1]] = order[later]
    matched = np.zeros(count, dtype=bool)
    matched[order[later]] = True
    alloc = np.flatnonzero(gives)
    free = closed_at[alloc]
    unmatched = np.flatnonzero((sizes < 0) & ~matched)
    ending = np.append(sizes, 0)[free]
    blocks = Blocks(
        events=count - held,
        alloc=np.maximum(alloc - held, -1),
        free=free - held,
        bytes=sizes[alloc],
        address=addresses[alloc],
        free_unseen=ending > 0,
        uneven=int(((ending < 0) & (ending != -sizes[alloc])).sum()),
        unmatched=unmatched - held,
        unmatched_bytes=-sizes[unmatched],
        by_address=by_address,
    )
    return _freed_by_totals(blocks, events) if blocks.free_unseen.any() else blocks


def _freed_by_totals(blocks: Blocks, events: MemoryEvents) -> Blocks:
    """Return the blocks with inferred frees, where the allocator's total fell by a block's bytes without an event.

    On a device autograd's threads free intermediate gradients outside the profiler's view.
    """
    rows = np.flatnonzero(events.bytes != 0)
    total = plausible_totals(events.total_allocated[rows])
    told = np.flatnonzero((total[1:] != UNKNOWN) & (total[:-1] != UNKNOWN)) + 1
    fallen = total[told - 1] + events.bytes[rows[told]] - total[told]
    falls: dict[int, list[int]] = {}
    for row, size in zip(rows[told[fallen > 0]].tolist(), fallen[fallen > 0].tolist(), strict=True):
        falls.setdefault(size, []).append(row)
    free, unseen = blocks.free.copy(), blocks.free_unseen.copy()
    for block in np.flatnonzero(unseen & ~blocks.from_before).tolist():
        within = falls.get(int(blocks.bytes[block]), [])
        index = bisect_right(within, int(blocks.alloc[block]))
        if index < len(within) and within[index] <= free[block]:
            free[block], unseen[block] = within.pop(index), False
    return replace(blocks, free=free, free_unseen=unseen)


def _depths(group: Int64, gives: Bool) -> Int64:
    """Return how many blocks of its group are live with the one that each event allocates or frees.

    An allocation and its free have the same depth, like matching brackets.
    """
    order = np.lexsort((np.arange(len(group)), group))
    steps = np.where(gives[order], 1, -1)
    after = np.cumsum(steps)
    starts = np.flatnonzero(np.append(True, np.diff(group[order]) != 0)) if len(order) else order
    lengths = np.diff(np.append(starts, len(order)))
    after -= np.repeat(after[starts] - steps[starts], lengths)
    depths = np.empty(len(order), dtype=np.int64)
    depths[order] = np.where(gives[order], after, after + 1)
    return depths


# --- blocks live at one moment, by operator, module and phase ---


#: The most groups of blocks, and of activations, that are listed.
LISTED: Final = 100
_NUMBER: Final = regex(r"(?<![^.])\d+(?![^.])")


def alike(path: str) -> str:
    """Replace each number in the path with `*`, so that like layers share it."""
    return _NUMBER.sub("*", path)


def groups_at(
    blocks: Blocks,
    state: int,
    operator: Categorical[str],
    module: Categorical[str],
    phase: Int64,
    kind: Int64,
    kinds: Sequence[tuple[str, str | None]],
) -> tuple[tuple[MemoryBlocks, ...], int]:
    """Return blocks live after `state` events by allocating operator in like modules, and the bytes not listed.

    The largest sums come first. The columns are of the blocks; `kind` is an index into `kinds`: the component, and the
    rule that assigned it.
    """
    live = blocks.live_after(state)
    modules = [alike(text) for text in module.values]
    groups: dict[tuple[int, str | None, int, int], list[int]] = {}
    for operator_, module_, phase_, kind_, size in zip(
        operator.codes[live].tolist(),
        module.codes[live].tolist(),
        phase[live].tolist(),
        kind[live].tolist(),
        blocks.bytes[live].tolist(),
        strict=True,
    ):
        key = operator_, modules[module_] if module_ >= 0 else None, phase_, kind_
        groups.setdefault(key, []).append(size)
    rows = sorted(
        (
            MemoryBlocks(
                operator=operator.values[operator_] if operator_ >= 0 else None,
                module=path,
                phase=PHASES[phase_],
                component=kinds[kind_][0],
                blocks=len(sizes),
                bytes=sum(sizes),
                largest_bytes=max(sizes),
                rule=kinds[kind_][1],
            )
            for (operator_, path, phase_, kind_), sizes in groups.items()
        ),
        key=lambda row: -row.bytes,
    )
    return tuple(rows[:LISTED]), sum(row.bytes for row in rows[LISTED:])
