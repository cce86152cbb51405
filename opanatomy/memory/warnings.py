"""Write warnings about disagreements in the memory of a step."""

from __future__ import annotations

from opanatomy.memory.allocations import CPU
from opanatomy.records.memory import AllocatorFigures, Memory


def warnings_of(memory: Memory) -> tuple[str, ...]:
    """Return what a reader should know before trusting memory figures.

    These are warnings on the memory events of the trace (the CPU's only if they are the memory of the step), and on the
    step observed allocation by allocation.
    """
    warnings = [] if memory.allocator is None else _of_capture(memory, memory.allocator)
    for row in (*memory.devices[:1], *(other for other in memory.devices[1:] if other.device != CPU)):
        if row.checked_events > row.equal_events:
            unequal = row.checked_events - row.equal_events
            warnings.append(
                f"memory of {row.device}: in {unequal:,} of {row.checked_events:,} events the allocator's total differs"
                f" from the sum of the blocks, by up to {row.largest_difference_bytes:,} B: the trace lacks allocations"
                " or frees, or has them in another order"
            )
        if row.unseen_frees:
            warnings.append(
                f"memory of {row.device}: {row.unseen_frees:,} addresses ({row.unseen_free_bytes:,} B) were given again"
                " without a free between, which the trace lacks; they are taken as freed at that moment"
            )
        if row.uneven_frees:
            warnings.append(
                f"memory of {row.device}: {row.uneven_frees:,} frees gave back other than what was allocated at their"
                " address: the trace lacks allocations and frees between"
            )
        if row.matched_by == "size":
            warnings.append(
                f"memory of {row.device}: the events have no addresses: a free is taken to be of the last block of its"
                " size, so operators and components of blocks of equal sizes may be exchanged; their sum is exact"
            )
    return tuple(warnings)


def _of_capture(memory: Memory, figures: AllocatorFigures) -> list[str]:
    """Return disagreements of the replayed step with the allocator; none if it reports no blocks."""
    warnings = []
    replayed = figures.before_blocks_bytes is not None and figures.checked_events
    if replayed and figures.peak_bytes is not None and memory.peak_bytes not in (None, figures.peak_bytes):
        warnings.append(
            f"memory of {figures.device}: the allocator's own peak of the step is {figures.peak_bytes:,} B, its"
            f" replayed allocations have {memory.peak_bytes:,} B: components and curve are off by the difference"
        )
    unequal = figures.checked_events - figures.equal_events
    if unequal and not (figures.device == CPU and figures.unseen_frees):
        warnings.append(
            f"memory of {figures.device}: in {unequal:,} of {figures.checked_events:,} allocations of the step the"
            f" allocator's total differs from the replayed blocks, by up to {figures.largest_difference_bytes:,} B: the"
            " profiler lost some, or a thread that is not profiled made them"
        )
    if figures.unseen_frees:
        warnings.append(
            f"memory of {figures.device}: {figures.unseen_frees:,} blocks of the step were freed without the profiler's"
            " seeing it; they are taken as freed when their address was given again"
        )
    return warnings
