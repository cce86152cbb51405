"""The bytes of one device over time, stacked by component, and its peak."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from opanatomy.memory.blocks import Blocks
from opanatomy.memory.inference import BEFORE_WINDOW, COMPONENT_OF, COMPONENTS
from opanatomy.memory.passes import Passes
from opanatomy.records.columns import Int64
from opanatomy.records.memory import MemoryPoint
from opanatomy.records.taxonomy import PHASES

#: Of each of so many parts of the window the highest and the lowest point are kept.
PARTS: Final = 98


class Curve(Struct, frozen=True, kw_only=True):
    """What is allocated after so many events, from none to all: by component (a row each) and in all.

    States `first` to `last` are those of the window, `peak` is the first of its highest.
    """

    by_component: Int64
    allocated: Int64
    time_ns: Int64
    first: int
    last: int
    peak: int


def curve_of(blocks: Blocks, rule: Int64, before_bytes: int, time_ns: Int64, window: tuple[int, int]) -> Curve:
    """The curve of blocks of these rules above what was allocated before the first event."""
    component = COMPONENT_OF[rule]
    changes = np.zeros((len(COMPONENTS), blocks.events), dtype=np.int64)
    for place in np.unique(component).tolist():
        changes[place] = blocks.changes(component == place)
    before = COMPONENTS.index(BEFORE_WINDOW)
    changes[before, blocks.unmatched] -= blocks.unmatched_bytes
    by_component = np.concatenate((np.zeros((len(COMPONENTS), 1), dtype=np.int64), changes.cumsum(axis=1)), axis=1)
    by_component[before] += before_bytes
    allocated = by_component.sum(axis=0)
    first = int(np.searchsorted(time_ns, window[0], side="left"))
    last = max(int(np.searchsorted(time_ns, window[1], side="right")), first)
    times = np.maximum(np.append(window[0], time_ns), window[0])
    peak = first + int(allocated[first : last + 1].argmax())
    return Curve(by_component=by_component, allocated=allocated, time_ns=times, first=first, last=last, peak=peak)


def points_of(curve: Curve, reserved: Int64, passes: Passes, window: tuple[int, int]) -> tuple[MemoryPoint, ...]:
    """The curve in at most some two hundred points, the first, the last and the peak among them.

    `reserved` is of each event, -1 where it is not known.
    """
    states = _chosen(curve, window)
    phases = passes.phase_of(passes.at(curve.time_ns[states]))
    held = np.append(reserved[:1] if len(reserved) else -1, reserved)[states]
    used = [place for place in range(len(COMPONENTS)) if curve.by_component[place, states].any()]
    return tuple(
        MemoryPoint(
            time_ns=int(curve.time_ns[state]) - window[0],
            phase=PHASES[phase],
            allocated_bytes=int(curve.allocated[state]),
            reserved_bytes=int(bytes_) if bytes_ > 0 else None,
            components={COMPONENTS[place]: int(curve.by_component[place, state]) for place in used},
        )
        for state, phase, bytes_ in zip(states.tolist(), phases.tolist(), held.tolist(), strict=True)
    )


def _chosen(curve: Curve, window: tuple[int, int]) -> Int64:
    states = np.arange(curve.first, curve.last + 1)
    part = (curve.time_ns[states] - window[0]) // ((window[1] - window[0]) // PARTS + 1)
    kept = [np.array([curve.first, curve.last, curve.peak])]
    for level in (curve.allocated[states], -curve.allocated[states]):
        order = np.lexsort((states, -level, part))
        firsts = np.append(True, np.diff(part[order]) != 0)
        kept.append(states[order[firsts]])
    return np.unique(np.concatenate(kept))
