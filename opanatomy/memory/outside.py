"""What is no part of the allocated bytes: the device's context and kernels, and the allocator's cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from opanatomy.records.memory import PEAK, START, MemoryComponent, MemorySnapshot

#: What a context with its kernels can be: some 100 MB where few are loaded, 1.3 GB with all of an older CUDA's
#: libraries. Anything else is what others took or gave back in between.
_MIN_CONTEXT: Final = 50_000_000
_MAX_CONTEXT: Final = 4_000_000_000


class Outside(Struct, frozen=True, kw_only=True):
    """What was measured of it, and notes on what was not."""

    components: tuple[MemoryComponent, ...] = ()
    notes: tuple[str, ...] = ()


def outside_the_allocator(snapshots: Sequence[MemorySnapshot]) -> Outside:
    """The context and the cache, each left out where it is not known."""
    context = _context(snapshots)
    return Outside(components=(*context.components, *_cache(snapshots)), notes=context.notes)


def _context(snapshots: Sequence[MemorySnapshot]) -> Outside:
    """What this process holds of the device beyond the allocator: by NVML's bytes of it, else by what was added."""
    with_reserved = [
        snapshot for snapshot in snapshots if snapshot.reserved_bytes is not None and snapshot.name != START
    ]
    own = next((snapshot for snapshot in reversed(with_reserved) if snapshot.nvml_process_bytes is not None), None)
    if own is not None:
        size = (own.nvml_process_bytes or 0) - (own.reserved_bytes or 0)
        return _bounded(size, "NVML's bytes of this process - reserved by the allocator")
    after = next((snapshot for snapshot in reversed(with_reserved) if snapshot.nvml_used_bytes is not None), None)
    if after is None:
        return Outside()
    first = next((snapshot for snapshot in snapshots if snapshot.name == START), None)
    if first is None or first.nvml_used_bytes is None:
        why = "NVML does not tell this process's bytes, nor was the device seen before this process used it"
        return Outside(notes=(f"the device context is not measured: {why}",))
    size = (after.nvml_used_bytes or 0) - (after.reserved_bytes or 0) - first.nvml_used_bytes
    context = _bounded(size, "NVML used - reserved by the allocator - used before the run")
    note = "NVML does not tell this process's bytes: what others took of the device meanwhile counts as context"
    return Outside(components=context.components, notes=(note,)) if context.components else context


def _bounded(size: int, formula: str) -> Outside:
    if not _MIN_CONTEXT <= size <= _MAX_CONTEXT:
        why = f"{formula} is {size:,} B, which no context has"
        return Outside(notes=(f"the device context is not measured: {why}",))
    return Outside(components=(MemoryComponent(component="device_context", measured_bytes=size, formula=formula),))


def _cache(snapshots: Sequence[MemorySnapshot]) -> tuple[MemoryComponent, ...]:
    peak = next((snapshot for snapshot in snapshots if snapshot.name == PEAK), None)
    if peak is None or peak.reserved_bytes is None or peak.allocated_bytes is None:
        return ()
    formula = "reserved - allocated, at the peak"
    cached = peak.reserved_bytes - peak.allocated_bytes
    return (MemoryComponent(component="allocator_cache", measured_bytes=cached, formula=formula),)
