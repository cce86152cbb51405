"""When the step went forward, backward and through the optimizer, as time: allocators free between operators too."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from opanatomy.records.columns import Bool, Int64, is_among
from opanatomy.records.memory_columns import HostCalls
from opanatomy.records.taxonomy import BACKWARD, OTHER, PHASE_CODE, RECOMPUTE, Phase


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


def passes_of_spans(spans: Sequence[tuple[int, int, Phase]]) -> Passes:
    """The passes of a capture's phase ranges."""
    start, phase = _edges(sorted(spans))
    return _unbroken(start, np.where(phase == RECOMPUTE, BACKWARD, phase))


class ThreadOperators(Struct, frozen=True, kw_only=True):
    """The rows of operators among host calls, thread by thread in order of time: what a device's threads ran."""

    calls: HostCalls
    rows: Int64
    #: The threads in order, and where the rows of each begin; the end of all is the last.
    threads: Int64
    begins: Int64

    def on(self, threads: Int64) -> Int64:
        """The rows on these threads in order of time."""
        places = np.flatnonzero(is_among(self.threads, threads))
        parts = [self.rows[self.begins[place] : self.begins[place + 1]] for place in places.tolist()]
        rows = np.concatenate(parts) if parts else self.rows[:0]
        return rows[np.argsort(self.calls.start_ns[rows], kind="stable")] if len(parts) > 1 else rows


def thread_operators(calls: HostCalls, is_operator: Bool) -> ThreadOperators:
    """The operators among the calls by thread."""
    rows = np.flatnonzero(is_operator)
    rows = rows[np.lexsort((calls.start_ns[rows], calls.thread[rows]))]
    thread = calls.thread[rows]
    begins = np.flatnonzero(np.append(True, np.diff(thread) != 0)) if len(rows) else rows
    return ThreadOperators(calls=calls, rows=rows, threads=thread[begins], begins=np.append(begins, len(rows)))


def passes_of_calls(
    operators: ThreadOperators, threads: Int64, spans: Sequence[tuple[int, int, Phase]]
) -> tuple[Passes, Passes]:
    """The passes, and the same with recomputation apart from the backward that it is a part of.

    They are those of a capture's phase ranges, else of the operators on these threads: then a pass lasts until an
    operator of another one begins, and what is freed in between belongs to it.
    """
    rows = operators.on(threads)
    start, phase = operators.calls.start_ns[rows], operators.calls.phase[rows]
    parts = _unbroken(start, phase)
    if spans:
        return passes_of_spans(spans), parts
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
    following = [*(start for start, _, _ in spans[1:]), None][: len(spans)]
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
