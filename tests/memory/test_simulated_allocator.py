"""The simulated caching allocator, next to what torch's own reserved for the same requests on an H100."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opanatomy.memory.allocator import CachingAllocator, OutOfDeviceMemory
from opanatomy.memory.caching_allocator import blocks_given
from opanatomy.records.snapshot import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    History,
    Snapshot,
)
from opanatomy.trace.snapshot import read_snapshot
from tests.support.paths import SHARED, SNAPSHOTS

MIB = 1 << 20


def of(name: str, folder: Path = SNAPSHOTS) -> tuple[Snapshot, History]:
    snapshot = read_snapshot(folder / f"{name}.pickle.gz")
    return snapshot, snapshot.histories[0]


def reserved_by_torch(snapshot: Snapshot, history: History) -> int:
    """Return the most that was reserved, by the segments at the end and what the history says of them before."""
    grows = np.isin(history.action, [SEGMENT_ALLOC, SEGMENT_MAP]).astype(np.int64)
    shrinks = np.isin(history.action, [SEGMENT_FREE, SEGMENT_UNMAP]).astype(np.int64)
    at_end = int(snapshot.segments.total[snapshot.segments.device == history.device].sum())
    before = at_end - ((grows - shrinks) * history.size)[::-1].cumsum()
    return max(at_end, int(before.max()))


def replayed(snapshot: Snapshot, history: History) -> CachingAllocator:
    known = blocks_given(snapshot, history.device, history)
    allocator = CachingAllocator(expandable=bool(snapshot.segments.is_expandable.any()))
    blocks = {address: allocator.allocate(size) for address, size in sorted(known.before.items())}
    completes = FREE_COMPLETED if (history.action == FREE_COMPLETED).any() else FREE_REQUESTED
    columns = (history.action.tolist(), history.address.tolist(), history.size.tolist())
    for action, address, size in zip(*columns, strict=True):
        if action == ALLOC:
            blocks[address] = allocator.allocate(size)
        elif action == completes and address in blocks:
            allocator.free(blocks.pop(address))
    return allocator


@pytest.mark.parametrize(
    "name",
    [
        "expandable",
        "inference",
        "llama_checkpointing",
        "no_stacks",
        "odd_sizes",
        "pending_free",
        "python_stacks",
        "training_accumulating",
        "training_amp",
    ],
)
def test_it_reserves_what_torch_reserved(name: str) -> None:
    """To the byte, where the history has all requests, or what was there before was allocated in order."""
    snapshot, history = of(name)
    assert replayed(snapshot, history).reserved_peak == reserved_by_torch(snapshot, history)


def test_it_reserves_nearly_what_torch_reserved_where_the_begin_is_not_recorded() -> None:
    snapshot, history = of("training_warm")
    assert replayed(snapshot, history).reserved_peak == pytest.approx(reserved_by_torch(snapshot, history), rel=0.02)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared snapshots are not here")
@pytest.mark.parametrize("name", ["medium_128_training", "medium_512_inference", "medium_512_training"])
def test_shared_recordings(name: str) -> None:
    snapshot, history = of(name, SHARED / "snapshots")
    assert replayed(snapshot, history).reserved_peak == pytest.approx(reserved_by_torch(snapshot, history), rel=0.02)


@pytest.mark.parametrize(
    ("sizes", "reserved", "allocated"),
    [
        ([1], 2 * MIB, 512),
        ([513, MIB], 2 * MIB, 1024 + MIB),
        ([MIB + 1], 20 * MIB, MIB + 512),
        ([9 * MIB, 12 * MIB], 32 * MIB, 21 * MIB),
        ([19 * MIB + 1], 20 * MIB, 20 * MIB),
        ([30 * MIB], 30 * MIB, 30 * MIB),
        # A rest of at most 1 MiB is not split off a large block.
        ([5 * MIB, 5 * MIB, 9 * MIB], 20 * MIB, 20 * MIB),
    ],
)
def test_segments_are_those_of_the_rules(sizes: list[int], reserved: int, allocated: int) -> None:
    allocator = CachingAllocator()
    for size in sizes:
        allocator.allocate(size)
    assert (allocator.reserved, allocator.allocated) == (reserved, allocated)


def test_freed_blocks_are_merged_and_given_again() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.allocate(4 * MIB) for _ in range(5)]
    for block in blocks[1:4]:
        allocator.free(block)
    assert allocator.allocate(12 * MIB) == blocks[1]
    assert allocator.reserved == 20 * MIB


@pytest.mark.parametrize("expandable", [False, True])
def test_a_full_device_gives_unused_memory_back_first(expandable: bool) -> None:
    allocator = CachingAllocator(100 * MIB, expandable=expandable)
    kept = allocator.allocate(40 * MIB)
    allocator.free(allocator.allocate(50 * MIB))
    assert allocator.reserved == (100 if expandable else 90) * MIB
    second = allocator.allocate(60 * MIB)
    assert allocator.reserved == 100 * MIB
    with pytest.raises(OutOfDeviceMemory):
        allocator.allocate(MIB + 1)
    allocator.free(second)
    allocator.free(kept)
    assert allocator.allocated == 0


@given(st.lists(st.tuples(st.integers(1, 40 * MIB), st.booleans()), max_size=60), st.booleans())
def test_blocks_never_overlap(requests: list[tuple[int, bool]], expandable: bool) -> None:
    allocator = CachingAllocator(expandable=expandable)
    held: dict[int, int] = {}
    for size, frees in requests:
        held[allocator.allocate(size)] = size
        if frees and held:
            address = sorted(held)[len(held) // 2]
            allocator.free(address)
            del held[address]
        spans = sorted((address, address + size) for address, size in held.items())
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
        assert sum(held.values()) <= allocator.allocated <= allocator.reserved <= allocator.reserved_peak
    for address in held:
        allocator.free(address)
    assert allocator.allocated == 0
