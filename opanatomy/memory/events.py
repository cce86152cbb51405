"""Memory events -> those of each device in the order in which they happened, checked against the allocator's totals."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from opanatomy.errors import TraceError
from opanatomy.records.columns import Int64
from opanatomy.records.memory_columns import MemoryEvents

#: torch's numbers of device types (c10/core/DeviceType.h) that have an allocator.
_DEVICE_TYPES: Final = {
    0: "cpu", 1: "cuda", 6: "hip", 9: "xla", 12: "xpu", 13: "mps", 15: "hpu", 19: "mtia", 20: "privateuseone",
}  # fmt: skip
CPU: Final = "cpu"
UNKNOWN: Final = -1
#: No allocator gives more at once, or has given more in all: what a larger number in a trace is is not known.
_MAX_BYTES: Final = 2**50
_MAX_IN_ALL: Final = 2**62
#: How many events of one time are looked through for the one that happened first.
_MAX_TIED: Final = 16
#: How many of them are tried as the first.
_MAX_FIRSTS: Final = 4


class Agreement(Struct, frozen=True, kw_only=True):
    """How far a sum of blocks is the allocator's own total, which is `offset_bytes` more in most events."""

    offset_bytes: int | None
    checked: int
    equal: int
    largest_difference_bytes: int
    #: Our bytes and the allocator's where they differ most.
    at_largest_difference: tuple[int, int] | None = None


def possible(events: MemoryEvents) -> Int64:
    """The rows that give or take back bytes; `TraceError` where they are more than any device has."""
    size = np.abs(events.bytes.astype(np.float64))
    rows = np.flatnonzero((size > 0) & (size <= _MAX_BYTES))
    if float(size[rows].sum()) > _MAX_IN_ALL:
        raise TraceError("cannot read the trace: its allocations add up to more than 4 EiB - is this a trace?")
    return rows


def by_device(events: MemoryEvents, rows: Int64) -> list[tuple[str, Int64]]:
    """The name of each device, and its rows in the order in which they happened; the CPU comes last."""
    order = rows[np.lexsort((events.time_ns[rows], events.device[rows], events.device_type[rows]))]
    kinds, numbers = events.device_type[order], events.device[order]
    first = np.flatnonzero(np.append(True, (np.diff(kinds) != 0) | (np.diff(numbers) != 0)))
    devices = []
    for of_device in np.split(order, first[1:]):
        label = _label(int(events.device_type[of_device[0]]), int(events.device[of_device[0]]))
        devices.append((label, of_device[_untied(of_rows(events, of_device))]))
    return sorted(devices, key=lambda device: device[0] == CPU)


def _label(kind: int, number: int) -> str:
    name = _DEVICE_TYPES.get(kind, f"device type {kind}")
    return name if number < 0 else f"{name}:{number}"


def of_rows(events: MemoryEvents, rows: Int64) -> MemoryEvents:
    """The events in these rows."""
    return MemoryEvents(**{name: getattr(events, name)[rows] for name in MemoryEvents.__struct_fields__})


def known(totals: Int64) -> Int64:
    """The totals, -1 where one cannot be."""
    return np.where((totals >= 0) & (totals <= 2**53), totals, UNKNOWN)


def _untied(events: MemoryEvents) -> Int64:
    """The order of events that are sorted by time: of equal times that of the file, unless the totals say another.

    Threads write their events apart, and clocks of 2022 count microseconds: the allocator's total before an event is
    that after the event before it.
    """
    total = known(events.total_allocated)
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
    """The order in which each total follows from the one before it; as it was where there is none."""
    left = list(range(len(totals)))
    firsts = left if before is None else [place for place in left if totals[place] - sizes[place] == before]
    for first in firsts[:_MAX_FIRSTS]:
        chain = [first]
        rest = [place for place in left if place != first]
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
    """The allocator's total after each event against the bytes that our blocks have then.

    Where it is not known by how much the allocator's are more, most events tell it.
    """
    total = known(total_allocated)
    checked = np.flatnonzero(total != UNKNOWN)
    if not len(checked):
        return Agreement(offset_bytes=offset_bytes, checked=0, equal=0, largest_difference_bytes=0)
    offsets = total[checked] - ours[checked]
    offset = _most_frequent(offsets) if offset_bytes is None else offset_bytes
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


def _most_frequent(values: Int64) -> int:
    """The most frequent value, the smallest of several."""
    ordered = np.sort(values)
    starts = np.flatnonzero(np.append(True, np.diff(ordered) != 0))
    counts = np.diff(np.append(starts, len(ordered)))
    return int(ordered[starts[counts.argmax()]])
