"""Allocations with their frees: the blocks of one device."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from opanatomy.memory.events import UNKNOWN
from opanatomy.records.columns import Bool, Int64, MemoryEvents


class Blocks(Struct, frozen=True, kw_only=True):
    """The blocks of one device, by places among its `events`.

    After `n` events a block is live where `alloc < n <= free`; `free` is the number of events where none was seen.
    """

    events: int
    alloc: Int64
    free: Int64
    bytes: Int64
    #: Where the address was given again, so that the block must have been freed before.
    unseen: Bool
    #: Frees of other than what was allocated at their address.
    uneven: int
    #: Frees of what was allocated before the first event: places and bytes.
    unmatched: Int64
    unmatched_bytes: Int64
    by_address: bool

    @property
    def never_freed(self) -> Bool:
        """Which blocks outlive the trace."""
        found: Bool = self.free == self.events
        return found

    def live_after(self, count: int) -> Int64:
        """The blocks that are live after so many events."""
        return np.flatnonzero((self.alloc < count) & (count <= self.free))

    def changes(self, which: Bool | None = None) -> Int64:
        """What each event adds to the bytes of these blocks (of all and of what was there before, if `None`)."""
        chosen = slice(None) if which is None else which
        found = np.zeros(self.events + 1, dtype=np.int64)
        np.add.at(found, self.alloc[chosen], self.bytes[chosen])
        np.subtract.at(found, self.free[chosen], self.bytes[chosen])
        if which is None:
            found[self.unmatched] -= self.unmatched_bytes
        return found[:-1]


def blocks_of(events: MemoryEvents) -> Blocks:
    """Pair the allocations and frees of one device, in order of time, by address.

    Without addresses (2021) a free is of the last block of its size that is live: blocks of one size are as good as
    each other for the sum, not for what allocated them.
    """
    count = len(events.bytes)
    gives = events.bytes > 0
    by_address = bool((events.address != UNKNOWN).all())
    group = events.address if by_address else np.abs(events.bytes)
    level = np.zeros(count, dtype=np.int64) if by_address else _depths(group, gives)
    order = np.lexsort((np.arange(count), level, group))
    follows = np.append(False, (np.diff(group[order]) == 0) & (np.diff(level[order]) == 0)) if count else gives
    follows[1:] &= gives[order[:-1]]
    later = np.flatnonzero(follows)
    closed_at = np.full(count, count, dtype=np.int64)
    closed_at[order[later - 1]] = order[later]
    matched = np.zeros(count, dtype=bool)
    matched[order[later]] = True
    alloc = np.flatnonzero(gives)
    free = closed_at[alloc]
    unmatched = np.flatnonzero(~gives & ~matched)
    ending = np.append(events.bytes, 0)[free]
    return Blocks(
        events=count, alloc=alloc, free=free, bytes=events.bytes[alloc], unseen=ending > 0,
        uneven=int(((ending < 0) & (ending != -events.bytes[alloc])).sum()),
        unmatched=unmatched, unmatched_bytes=-events.bytes[unmatched], by_address=by_address,
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
    found = np.empty(len(order), dtype=np.int64)
    found[order] = np.where(gives[order], after, after + 1)
    return found
