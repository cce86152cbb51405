"""Simulate torch's CUDA caching allocator: what it reserves of a device for a sequence of requests.

Sizes and rules follow c10/cuda/CUDACachingAllocator.cpp, for one stream and the default settings, or with
`expandable_segments`. `caching_allocator` reconstructs a recorded history; this simulates one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final

_MIB: Final = 1 << 20
#: `kMinBlockSize`, `kSmallSize`, `kSmallBuffer`, `kLargeBuffer`, `kMinLargeAlloc`, `kRoundLarge`.
_STEP: Final = 512
_SMALL_BYTES: Final = _MIB
_SMALL_SEGMENT: Final = 2 * _MIB
_LARGE_SEGMENT: Final = 20 * _MIB
_LEAST_OF_ITS_OWN: Final = 10 * _MIB
_LARGE_STEP: Final = 2 * _MIB


class OutOfDeviceMemory(Exception):
    """A request that does not fit, even after all unused memory was released."""


class _Block:
    """A part of a segment, linked to its neighbors; `pool` is 0 for small requests, 1 for large ones."""

    __slots__ = ("address", "after", "before", "is_free", "pool", "size")

    def __init__(self, pool: int, address: int, size: int) -> None:
        self.pool, self.address, self.size = pool, address, size
        self.before: _Block | None = None
        self.after: _Block | None = None
        self.is_free = False

    @property
    def key(self) -> tuple[int, int]:
        """Return the order in which free blocks are taken: the smallest, then the first."""
        return self.size, self.address


class CachingAllocator:
    """The allocator of one device; `limit` is what it can reserve, `None` for no limit.

    `allocated` is the bytes of blocks in use, `reserved` the bytes of segments, each with its peak.
    """

    def __init__(self, limit: int | None = None, *, expandable: bool = False) -> None:
        self.limit, self.expandable = limit, expandable
        self.allocated = self.allocated_peak = self.reserved = self.reserved_peak = 0
        self._free: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        self._at: dict[int, _Block] = {}
        self._next_address = 0
        #: With expandable segments: the last block of each pool's one segment.
        self._last: list[_Block | None] = [None, None]

    def allocate(self, requested: int) -> int:
        """Return the address of a block for a request; raise `OutOfDeviceMemory` if there is no room."""
        size = max(-(-requested // _STEP), 1) * _STEP
        pool = int(size > _SMALL_BYTES)
        free = self._free[pool]
        index = bisect_left(free, (size, -1))
        block = self._at[free.pop(index)[1]] if index < len(free) else self._reserved(pool, size)
        if block is None:
            self._give_back()
            block = self._reserved(pool, size)
        if block is None:
            raise OutOfDeviceMemory
        block.is_free = False
        if block.size - size >= _STEP if not pool or self.expandable else block.size - size > _SMALL_BYTES:
            self._split(block, size)
        self.allocated += block.size
        self.allocated_peak = max(self.allocated_peak, self.allocated)
        return block.address

    def free(self, address: int) -> None:
        """Free the block at this address, merged with its free neighbors."""
        block = self._at[address]
        self.allocated -= block.size
        for neighbor in (block.before, block.after):
            if neighbor is not None and neighbor.is_free:
                self._unlist(neighbor)
                block = self._merged(block, neighbor)
        block.is_free = True
        insort(self._free[block.pool], block.key)

    def _reserved(self, pool: int, size: int) -> _Block | None:
        """Return a free block of newly reserved memory; `None` if the limit does not allow it."""
        if self.expandable:
            return self._expanded(pool, size)
        if not pool:
            whole = _SMALL_SEGMENT
        elif size < _LEAST_OF_ITS_OWN:
            whole = _LARGE_SEGMENT
        else:
            whole = -(-size // _LARGE_STEP) * _LARGE_STEP
        if not self._reserve(whole):
            return None
        block = _Block(pool, self._next_address, whole)
        self._next_address += whole + _STEP  # no neighbors
        self._at[block.address] = block
        return block

    def _expanded(self, pool: int, size: int) -> _Block | None:
        """Return a block at the end of the pool's segment, which grows by whole pages."""
        page, last = (_LARGE_SEGMENT if pool else _SMALL_SEGMENT), self._last[pool]
        there = last.size if last is not None and last.is_free else 0
        more = -(-(size - there) // page) * page
        if not self._reserve(more):
            return None
        if last is not None and last.is_free:
            self._unlist(last)
            last.size += more
            return last
        block = _Block(pool, last.address + last.size if last is not None else (pool + 1) << 50, more)
        block.before = last
        if last is not None:
            last.after = block
        self._last[pool] = self._at[block.address] = block
        return block

    def _reserve(self, size: int) -> bool:
        if self.limit is not None and self.reserved + size > self.limit:
            return False
        self.reserved += size
        self.reserved_peak = max(self.reserved_peak, self.reserved)
        return True

    def _give_back(self) -> None:
        """Give all unused segments back; of expandable ones the unused pages at the end."""
        for pool, free in enumerate(self._free):
            for _, address in tuple(free):
                block = self._at[address]
                if self.expandable:
                    page = _LARGE_SEGMENT if pool else _SMALL_SEGMENT
                    if block is self._last[pool]:
                        kept = block.size % page
                        self._unlist(block)
                        self.reserved -= block.size - kept
                        block.size = kept
                        if kept:
                            insort(free, block.key)
                        else:
                            self._drop_last(pool, block)
                elif block.before is None and block.after is None:
                    self._unlist(block)
                    del self._at[address]
                    self.reserved -= block.size

    def _drop_last(self, pool: int, block: _Block) -> None:
        del self._at[block.address]
        self._last[pool] = block.before
        if block.before is not None:
            block.before.after = None

    def _unlist(self, block: _Block) -> None:
        free = self._free[block.pool]
        free.pop(bisect_left(free, block.key))

    def _split(self, block: _Block, size: int) -> None:
        rest = _Block(block.pool, block.address + size, block.size - size)
        block.size = size
        rest.before, rest.after = block, block.after
        if block.after is not None:
            block.after.before = rest
        block.after = rest
        if self._last[block.pool] is block:
            self._last[block.pool] = rest
        rest.is_free = True
        self._at[rest.address] = rest
        insort(self._free[rest.pool], rest.key)

    def _merged(self, block: _Block, neighbor: _Block) -> _Block:
        first, second = (neighbor, block) if neighbor.address < block.address else (block, neighbor)
        first.size += second.size
        first.after = second.after
        if second.after is not None:
            second.after.before = first
        if self._last[second.pool] is second:
            self._last[second.pool] = first
        del self._at[second.address]
        return first
