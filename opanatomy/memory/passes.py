"""Find the operator that asked for an allocation, and the pass of a step in which it falls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from opanatomy.records.columns import Bool, Categorical, HostCalls, Int64, isin
from opanatomy.records.taxonomy import BACKWARD, OTHER, PHASE_CODE, RECOMPUTE, Phase

# --- the operator of an allocation, among the calls around it ---


#: Operators that only allocate, on behalf of their caller.
ALLOCATES: Final = frozenset({
    "aten::empty", "aten::empty_like", "aten::empty_strided", "aten::empty_permuted", "aten::new_empty",
    "aten::new_empty_strided", "aten::resize_", "aten::resize_as_", "aten::resize", "aten::set_",
})  # fmt: skip


def requesting_operators(rows: Int64, name: Categorical[str], parent: Int64, is_operator: Bool) -> Int64:
    """Return the innermost operator at or around each row that does more than allocate, else the outermost one."""
    allocates = np.array([*(text in ALLOCATES for text in name.values), False], dtype=bool)[name.codes]
    wanted: Int64 = rows.copy()
    moving = np.flatnonzero(allocates[wanted]) if len(wanted) else wanted
    while len(moving):
        above = enclosing(wanted[moving], parent, is_operator)
        moving, above = moving[above >= 0], above[above >= 0]
        wanted[moving] = above
        moving = moving[allocates[above]]
    return wanted


def outermost(rows: Int64, parent: Int64, is_call: Bool) -> Int64:
    """Return the outermost call reachable from each row through calls only."""
    outer: Int64 = rows.copy()
    moving = np.arange(len(outer))
    while len(moving):
        above = enclosing(outer[moving], parent, is_call)
        moving = moving[above >= 0]
        outer[moving] = above[above >= 0]
    return outer


def enclosing(rows: Int64, parent: Int64, which: Bool) -> Int64:
    """Return the parent of each row, -1 if it is not in `which`."""
    above = parent[rows]
    return np.where((above >= 0) & which[above], above, -1)


# --- forward, backward and optimizer as time spans, as allocators free between operators too ---


class PhaseIntervals(Struct, frozen=True, kw_only=True):
    """Consecutive spans of time, each in one phase (an index into `PHASES`)."""

    start_ns: Int64
    phase: Int64

    def at(self, time_ns: Int64) -> Int64:
        """Return the number of the pass at each time; 0, without a phase, before the first pass."""
        return np.searchsorted(self.start_ns, time_ns, side="right")

    def phase_at(self, time_ns: Int64) -> Int64:
        """Return the phase at each time, `OTHER` before the first pass."""
        return np.append(OTHER, self.phase)[self.at(time_ns)]

    def with_recompute_in_backward(self) -> PhaseIntervals:
        """Return the passes with recomputation as a part of the backward around it."""
        return unbroken(self.start_ns, np.where(self.phase == RECOMPUTE, BACKWARD, self.phase))


def passes_of_spans(spans: Sequence[tuple[int, int, Phase]]) -> PhaseIntervals:
    """Return the passes of a capture's phase ranges, with recomputation as a part of the backward around it."""
    spans = sorted(spans)
    starts: list[int] = []
    phases: list[int] = []
    following = [*(start for start, _, _ in spans[1:]), None][: len(spans)]
    for (start, end, phase), after in zip(spans, following, strict=True):
        starts.append(start)
        phases.append(PHASE_CODE[phase])
        if after is None or end < after:
            starts.append(end)
            phases.append(OTHER)
    apart = unbroken(np.array(starts, dtype=np.int64), np.array(phases, dtype=np.int64))
    return apart.with_recompute_in_backward()


class ThreadOperators(Struct, frozen=True, kw_only=True):
    """Rows of operators among host calls by thread, in time order, to look up a device's threads."""

    calls: HostCalls
    rows: Int64
    #: The threads in order, and the index at which the rows of each begin; the last one ends them all.
    threads: Int64
    begins: Int64

    def on(self, threads: Int64) -> Int64:
        """Return the rows on these threads in order of time."""
        indices = np.flatnonzero(isin(self.threads, threads))
        parts = [self.rows[self.begins[index] : self.begins[index + 1]] for index in indices.tolist()]
        rows = np.concatenate(parts) if parts else self.rows[:0]
        return rows[np.argsort(self.calls.start_ns[rows], kind="stable")] if len(parts) > 1 else rows


def thread_operators(calls: HostCalls, is_operator: Bool) -> ThreadOperators:
    """Return the operators among the calls by thread."""
    rows = np.flatnonzero(is_operator)
    rows = rows[np.lexsort((calls.start_ns[rows], calls.thread[rows]))]
    thread = calls.thread[rows]
    begins = np.flatnonzero(np.append(True, np.diff(thread) != 0)) if len(rows) else rows
    return ThreadOperators(calls=calls, rows=rows, threads=thread[begins], begins=np.append(begins, len(rows)))


def passes_of_calls(
    operators: ThreadOperators, threads: Int64, spans: Sequence[tuple[int, int, Phase]]
) -> tuple[PhaseIntervals, PhaseIntervals]:
    """Return the passes with recomputation as a part of the backward around it, and those with recomputation apart.

    The first come from a capture's phase ranges, if it has any, else from the operators on these threads, as the second
    always do: a pass then lasts until an operator of another one begins, and frees in between belong to it.
    """
    rows = operators.on(threads)
    parts = unbroken(operators.calls.start_ns[rows], operators.calls.phase[rows])
    return passes_of_spans(spans) if spans else parts.with_recompute_in_backward(), parts


def unbroken(start: Int64, phase: Int64) -> PhaseIntervals:
    """Build passes from times and the phase from each on.

    A moment without a phase inside a pass (data loading on another thread) does not end the pass.
    """
    start, phase = _merged(start, phase)
    if len(phase) > 2:
        between = np.zeros(len(phase), dtype=bool)
        between[1:-1] = (phase[1:-1] == OTHER) & (phase[:-2] == phase[2:])
        start, phase = _merged(start[~between], phase[~between])
    return PhaseIntervals(start_ns=start, phase=phase)


def _merged(start: Int64, phase: Int64) -> tuple[Int64, Int64]:
    """Drop entries with the phase of the entry before."""
    new = np.append(True, np.diff(phase) != 0) if len(phase) else np.zeros(0, dtype=bool)
    return start[new], phase[new]
