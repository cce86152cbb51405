"""When the step went forward, backward and through the optimizer, as time: allocators free between operators too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from msgspec import Struct

from opanatomy.records.columns import Bool, Categorical, Int64
from opanatomy.records.taxonomy import PHASE_CODE, Phase

FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, OTHER = (
    PHASE_CODE[phase] for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE, Phase.OPTIMIZER, Phase.OTHER)
)


class Host(Protocol):
    """The host events of the trace in nesting order: each row's parent comes before it, -1 is none."""

    @property
    def name(self) -> Int64:
        """Places in the names of the trace."""
        ...

    @property
    def thread(self) -> Int64:
        """The thread of each row, numbered as those of the memory events."""
        ...

    @property
    def start_ns(self) -> Int64:
        """When each row began."""
        ...

    @property
    def duration_ns(self) -> Int64:
        """How long it lasted."""
        ...

    @property
    def parent(self) -> Int64:
        """The row around each row."""
        ...

    @property
    def annotation(self) -> Int64:
        """Not 0 where a row is a user annotation."""
        ...

    @property
    def phase(self) -> Int64:
        """The phase of each row, a place in `PHASES`."""
        ...

    @property
    def module(self) -> Categorical[str]:
        """The module path of each row."""
        ...


class Passes(Struct, frozen=True, kw_only=True):
    """Parts of the time, each in one phase (a place in `PHASES`)."""

    start_ns: Int64
    phase: Int64

    def at(self, time_ns: Int64) -> Int64:
        """The number of the pass at each time; before the first pass it is 0, of no phase."""
        return np.searchsorted(self.start_ns, time_ns, side="right")

    def phase_of(self, number: Int64) -> Int64:
        """The phase of each pass so numbered."""
        return np.append(OTHER, self.phase)[number]


def passes_of(
    host: Host, is_operator: Bool, threads: Int64, spans: Sequence[tuple[int, int, Phase]]
) -> tuple[Passes, Passes]:
    """The passes, and the same with recomputation apart from the backward that it is a part of.

    They are those of a capture's phase ranges, else of the operators on these threads: then a pass lasts until an
    operator of another one begins, and what is freed in between belongs to it.
    """
    rows = np.flatnonzero(is_operator & np.isin(host.thread, threads))
    rows = rows[np.argsort(host.start_ns[rows], kind="stable")]
    start, phase = host.start_ns[rows], host.phase[rows]
    parts = _unbroken(start, phase)
    if spans:
        start, phase = _edges(sorted(spans))
    return _unbroken(start, np.where(phase == RECOMPUTE, BACKWARD, phase)), parts


def _unbroken(start: Int64, phase: Int64) -> Passes:
    """Passes from times and the phase from each on; a moment of no phase within a pass (data loading on a thread of
    its own) does not end it."""
    start, phase = _merged(start, phase)
    if len(phase) > 2:
        between = np.zeros(len(phase), dtype=bool)
        between[1:-1] = (phase[1:-1] == OTHER) & (phase[:-2] == phase[2:])
        start, phase = _merged(start[~between], phase[~between])
    return Passes(start_ns=start, phase=phase)


def _edges(spans: Sequence[tuple[int, int, Phase]]) -> tuple[Int64, Int64]:
    starts: list[int] = []
    phases: list[int] = []
    following = [*(start for start, _, _ in spans[1:]), None]
    for (start, end, phase), after in zip(spans, following, strict=True):
        starts.append(start)
        phases.append(PHASE_CODE[phase])
        if after is None or end < after:
            starts.append(end)
            phases.append(OTHER)
    return np.array(starts, dtype=np.int64), np.array(phases, dtype=np.int64)


def _merged(start: Int64, phase: Int64) -> tuple[Int64, Int64]:
    """Without those that are of the phase of the one before."""
    new = np.append(True, np.diff(phase) != 0) if len(phase) else np.zeros(0, dtype=bool)
    return start[new], phase[new]
