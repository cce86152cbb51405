"""The memory of a step against what the allocators say themselves: their peak, and their total at each event."""

from __future__ import annotations

from opanatomy.memory.events import CPU
from opanatomy.records.checks import Check, Difference
from opanatomy.records.memory import AllocatorFigures, Memory, MemoryDevice

PEAK = "torch.cuda.max_memory_allocated"
BEFORE = "torch.cuda.memory_allocated"
TOTALS = "the allocator's total at each event"
#: The CPU's total leaves out what a thread that is not profiled gives back; an address given again shows it.
_FREED_UNPROFILED = "freed on a thread that is not profiled, which the CPU's allocator does not count"


def check_memory(memory: Memory) -> tuple[Check, ...]:
    """The checks of a step that was looked at in depth, else those of a trace's memory events; none without either."""
    if memory.allocator is not None:
        return _of_capture(memory, memory.allocator)
    rows = [row for row in memory.devices if row.checked_events]
    main = [row for row in rows if row.device != CPU or row is memory.devices[0]]
    return (_of_trace(main),) if main else ()


def _of_capture(memory: Memory, figures: AllocatorFigures) -> tuple[Check, ...]:
    return _peak(memory, figures), *_before(figures), _totals(figures)


def _peak(memory: Memory, figures: AllocatorFigures) -> Check:
    if figures.peak_bytes is None or figures.before_blocks_bytes is None:
        why = "torch's CPU allocator keeps no peak of its own" if figures.device == CPU else _no_blocks(figures)
        return Check(quantity="memory peak", source=PEAK, unit="B", not_checked=why)
    ours, other = memory.peak_bytes, figures.peak_bytes
    differences = () if ours == other else (Difference(operator=figures.device, ours=ours, other=other),)
    return Check(
        quantity="memory peak", source=PEAK, unit="B", compared=1, equal=1 - len(differences), differences=differences
    )


def _no_blocks(figures: AllocatorFigures) -> str:
    return f"the allocator of {figures.device} ({figures.backend or 'unknown'}) reports no blocks to replay"


def _before(figures: AllocatorFigures) -> tuple[Check, ...]:
    """The blocks of the allocator's snapshot before the step; the CPU's has none."""
    ours, other = figures.before_blocks_bytes, figures.before_bytes
    if ours is None or other is None:
        return ()
    differences = () if ours == other else (Difference(operator=figures.device, ours=ours, other=other),)
    return (
        Check(quantity="allocated before the step", source=BEFORE, unit="B", compared=1, equal=1 - len(differences),
              differences=differences),
    )  # fmt: skip


def _totals(figures: AllocatorFigures) -> Check:
    cause = _FREED_UNPROFILED if figures.device == CPU and figures.unseen_frees else None
    if not figures.checked_events:
        why = "no event of the step says the allocator's total"
        return Check(quantity="allocated bytes", source=TOTALS, unit="B", not_checked=why)
    differences = _difference(figures, cause)
    return Check(
        quantity="allocated bytes", source=TOTALS, unit="B", compared=figures.checked_events,
        equal=figures.equal_events, differences=differences,
    )  # fmt: skip


def _of_trace(rows: list[MemoryDevice]) -> Check:
    return Check(
        quantity="allocated bytes", source=TOTALS, unit="B", compared=sum(row.checked_events for row in rows),
        equal=sum(row.equal_events for row in rows),
        differences=tuple(difference for row in rows for difference in _difference(row, None)),
    )  # fmt: skip


def _difference(row: AllocatorFigures | MemoryDevice, cause: str | None) -> tuple[Difference, ...]:
    """One row for a device: our bytes and the allocator's where they differ most."""
    unequal = row.checked_events - row.equal_events
    if not unequal:
        return ()
    ours, other = row.at_largest_difference or (None, None)
    events = f"in {unequal:,} of {row.checked_events:,} events, by up to {row.largest_difference_bytes:,} B"
    return (Difference(operator=row.device, ours=ours, other=other, cause=cause, evidence=f"{row.device}: {events}"),)
