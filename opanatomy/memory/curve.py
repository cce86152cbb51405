"""Compute the bytes of one device over time, stacked by component, and their peak."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from opanatomy.memory.allocations import Blocks
from opanatomy.memory.passes import PhaseIntervals
from opanatomy.records.columns import Int64, unique
from opanatomy.records.memory import MemoryPoint
from opanatomy.records.taxonomy import PHASES, Phase

#: The window is cut into this many parts; the highest and the lowest point of each are kept.
PARTS: Final = 98


class ComponentBytes(Struct, frozen=True, kw_only=True):
    """The shares of blocks by component (an index into `components`); the shares of a block sum to its bytes."""

    components: Sequence[str]
    block: Int64
    component: Int64
    bytes: Int64
    #: Begin and end event of each share; without them a share lasts as long as its block.
    begin: Int64 | None = None
    end: Int64 | None = None
    #: The component of memory from before the first event that is in no block: it starts with `earlier_bytes`, and
    #: frees of unknown blocks lower it. Without one these frees count nowhere.
    earlier: str | None = None
    earlier_bytes: int = 0


class Curve(Struct, frozen=True, kw_only=True):
    """Allocated bytes after each number of events, from none to all: by component (a row each) and in total.

    States `first` to `last` are in the window; `peak` is the first maximum in it.
    """

    components: Sequence[str]
    by_component: Int64
    allocated: Int64
    time_ns: Int64
    window: tuple[int, int]
    first: int
    last: int
    peak: int

    def of(self, component: str) -> Int64:
        """Return the bytes of one component."""
        states: Int64 = self.by_component[self.components.index(component)]
        return states

    def phase_at(self, state: int, passes: PhaseIntervals) -> Phase:
        """Return the phase in which a state began."""
        return PHASES[int(passes.phase_at(self.time_ns[[state]])[0])]


def curve_of(blocks: Blocks, shares: ComponentBytes, time_ns: Int64, window: tuple[int, int]) -> Curve:
    """Compute the curve of these blocks and of earlier memory."""
    by_component = np.zeros((len(shares.components), blocks.events + 1), dtype=np.int64)
    for index in np.flatnonzero(np.bincount(shares.component, minlength=len(shares.components))).tolist():
        chosen = shares.component == index
        begin, end = (None if edge is None else edge[chosen] for edge in (shares.begin, shares.end))
        by_component[index] = blocks.changes(shares.block[chosen], shares.bytes[chosen], begin, end)
    if shares.earlier is not None:
        row = by_component[shares.components.index(shares.earlier)]
        row[0] += shares.earlier_bytes
        row[blocks.unmatched + 1] -= blocks.unmatched_bytes
    by_component = by_component.cumsum(axis=1)
    allocated = by_component.sum(axis=0)
    first = int(np.searchsorted(time_ns, window[0], side="left"))
    last = max(int(np.searchsorted(time_ns, window[1], side="right")), first)
    return Curve(
        components=shares.components,
        by_component=by_component,
        allocated=allocated,
        time_ns=np.maximum(np.append(window[0], time_ns), window[0]),
        window=window,
        first=first,
        last=last,
        peak=first + int(allocated[first : last + 1].argmax()),
    )


def points_of(curve: Curve, reserved: Int64, passes: PhaseIntervals) -> tuple[MemoryPoint, ...]:
    """Reduce the curve to at most some two hundred points, the first, the last and the peak included.

    `reserved` has an entry per event, -1 if unknown.
    """
    states = states_shown(curve)
    phases = passes.phase_at(curve.time_ns[states])
    held = np.append(reserved[:1] if len(reserved) else -1, reserved)[states]
    used = np.flatnonzero(curve.by_component[:, states].any(axis=1)).tolist()
    return tuple(
        MemoryPoint(
            time_ns=int(curve.time_ns[state]) - curve.window[0],
            phase=PHASES[phase],
            allocated_bytes=int(curve.allocated[state]),
            reserved_bytes=size if size > 0 else None,
            components={curve.components[index]: int(curve.by_component[index, state]) for index in used},
        )
        for state, phase, size in zip(states.tolist(), phases.tolist(), held.tolist(), strict=True)
    )


def states_shown(curve: Curve) -> Int64:
    """Return the first, the last and the peak state, and the highest and the lowest of each part of the window."""
    begin, end = curve.window
    states = np.arange(curve.first, curve.last + 1)
    part = (curve.time_ns[states] - begin) // ((end - begin) // PARTS + 1)
    kept = [np.array([curve.first, curve.last, curve.peak])]
    for level in (curve.allocated[states], -curve.allocated[states]):
        order = np.lexsort((states, -level, part))
        firsts = np.append(True, np.diff(part[order]) != 0)
        kept.append(states[order[firsts]])
    return unique(np.concatenate(kept)).values
