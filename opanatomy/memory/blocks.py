"""Allocations with their frees: the blocks of one device."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.memory.events import UNKNOWN
from opanatomy.records.columns import Bool, Int64
from opanatomy.records.memory_columns import MemoryEvents

_NONE: Int64 = np.zeros(0, dtype=np.int64)


class Blocks(Struct, frozen=True, kw_only=True):
    """The blocks of one device, by places among its `events`; those from before the first event, where they are known,
    come first: their `alloc` is -1.

    After `n` events a block is live where `alloc < n <= free`; `free` is the number of events where none was seen.
    """

    events: int
    alloc: Int64
    free: Int64
    bytes: Int64
    address: Int64
    #: Where the address was given again, so that the block must have been freed before.
    unseen: Bool
    #: Frees of other than what was allocated at their address.
    uneven: int
    #: Frees of what was allocated before the first event and is not among the blocks: places and bytes.
    unmatched: Int64
    unmatched_bytes: Int64
    by_address: bool

    @property
    def never_freed(self) -> Bool:
        """Which blocks outlive the trace."""
        outlives: Bool = self.free == self.events
        return outlives

    @property
    def from_before(self) -> Bool:
        """Which blocks were there before the first event."""
        earlier: Bool = self.alloc < 0
        return earlier

    def live_after(self, count: int) -> Int64:
        """The blocks of the events that are live after that many of them."""
        return np.flatnonzero((self.alloc >= 0) & (self.alloc < count) & (count <= self.free))

    def live_at(self, event: Int64, address: Int64) -> Int64:
        """The block of the events that is live at each address when each event happens, -1 is none."""
        order = np.lexsort((self.alloc, self.address))
        if not len(order):
            return np.full(len(event), -1, dtype=np.int64)
        block = order[_last_before(self.address[order], self.alloc[order], address, event)]
        live = (self.address[block] == address) & (self.alloc[block] >= 0) & (self.alloc[block] < event)
        return np.where(live & (event < self.free[block]), block, -1)

    def changes(self, block: Int64, size: Int64, begin: Int64 | None = None, end: Int64 | None = None) -> Int64:
        """What each event adds to the bytes of shares of blocks, from before the first event on (the first entry).

        A share is there from the event `begin` to the event `end`, without them as long as its block.
        """
        steps = np.zeros(self.events + 2, dtype=np.int64)
        np.add.at(steps, (self.alloc[block] if begin is None else begin) + 1, size)
        np.subtract.at(steps, (self.free[block] if end is None else end) + 1, size)
        return steps[:-1]


def blocks_of(events: MemoryEvents, held_address: Int64 = _NONE, held_bytes: Int64 = _NONE) -> Blocks:
    """Pair the allocations and frees of one device, in order of time, by address; `held` are blocks from before.

    Without addresses (2021) a free is of the last block of its size that is live: blocks of one size are as good as
    each other for the sum, not for what allocated them.
    """
    held = len(held_address)
    sizes = np.concatenate((held_bytes, events.bytes))
    addresses = np.concatenate((held_address, events.address))
    blocks = _paired(sizes, addresses, by_address=bool((events.address[events.bytes != 0] != UNKNOWN).all()))
    return replace(
        blocks, events=blocks.events - held, alloc=np.maximum(blocks.alloc - held, -1), free=blocks.free - held,
        unmatched=blocks.unmatched - held,
    )  # fmt: skip


def _paired(sizes: Int64, addresses: Int64, *, by_address: bool) -> Blocks:
    count = len(sizes)
    gives = sizes > 0
    group = addresses if by_address else np.abs(sizes)
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
    return Blocks(
        events=count, alloc=alloc, free=free, bytes=sizes[alloc], address=addresses[alloc], unseen=ending > 0,
        uneven=int(((ending < 0) & (ending != -sizes[alloc])).sum()),
        unmatched=unmatched, unmatched_bytes=-sizes[unmatched], by_address=by_address,
    )  # fmt: skip


def _depths(group: Int64, gives: Bool) -> Int64:
    """How many blocks of its group are live with the one that each event gives or takes back: the two sides of a
    bracket are equally deep."""
    order = np.lexsort((np.arange(len(group)), group))
    steps = np.where(gives[order], 1, -1)
    after = np.cumsum(steps)
    starts = np.flatnonzero(np.append(True, np.diff(group[order]) != 0)) if len(order) else order
    lengths = np.diff(np.append(starts, len(order)))
    after -= np.repeat(after[starts] - steps[starts], lengths)
    depths = np.empty(len(order), dtype=np.int64)
    depths[order] = np.where(gives[order], after, after + 1)
    return depths


def _last_before(address: Int64, alloc: Int64, at: Int64, event: Int64) -> Int64:
    """The place of the last of the sorted blocks at each address `at` that was allocated before `event`, else of one at
    another address, -1 where there is none."""
    order = np.lexsort((np.concatenate((alloc, event)), np.concatenate((address, at))))
    places = np.empty(len(order), dtype=np.int64)
    places[order] = np.cumsum(order < len(address)) - 1
    return places[len(address) :]
