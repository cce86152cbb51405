"""The collectives of all ranks, matched and on one clock -> the parts of each step."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from opanatomy.anatomy.intervals import Intervals, together, union, within, without
from opanatomy.anatomy.waiting.table import RankCalls
from opanatomy.records.columns import Bool, Int64
from opanatomy.records.rank_summary import Spans, StepSpans
from opanatomy.records.waiting import StepParts


class Split(Struct, frozen=True, kw_only=True):
    """For each call when the last of its ranks began, on the rank's own clock; of one that is not matched its start.

    `last` is whether the call is that of the rank which came last, `lead_ns` how much later than the one before it.
    """

    matched: Bool
    begun_ns: Int64
    last: Bool
    lead_ns: Int64


def split_of(calls: RankCalls, match: Int64, offset_ns: Int64) -> Split:
    """When the last rank of each collective began; what the clocks cannot have seen is taken to last no time."""
    own = offset_ns[calls.rank]
    rows = np.flatnonzero(match >= 0)
    order = rows[np.lexsort((-calls.rank[rows], (calls.start_ns - own)[rows], match[rows]))]
    numbers, first = np.unique(match[order], return_index=True)
    bounds = np.append(first[1:], len(order))
    latest = (calls.start_ns - own)[order[bounds - 1]]
    before = (calls.start_ns - own)[order[np.maximum(bounds - 2, first)]]
    begun, lead = calls.start_ns.copy(), np.zeros(len(calls.rank), dtype=np.int64)
    place = np.searchsorted(numbers, match[rows])
    begun[rows] = np.clip(latest[place] + own[rows], calls.start_ns[rows], calls.end_ns[rows])
    last = np.zeros(len(calls.rank), dtype=bool)
    last[order[bounds - 1]] = True
    lead[order[bounds - 1]] = latest - before
    return Split(matched=match >= 0, begun_ns=begun, last=last, lead_ns=lead)


def parts_of(calls: RankCalls, split: Split, rank: int, hiding: Spans, steps: StepSpans) -> tuple[StepParts, ...]:
    """The parts of each step of a rank; of the time in which several collectives run what is of the first kind of
    transfer, waiting, unmatched. Those of before the window are none of them."""
    rows = np.flatnonzero((calls.rank == rank) & calls.inside)
    start, begun, end = calls.start_ns[rows], split.begun_ns[rows], calls.end_ns[rows]
    matched = split.matched[rows]
    hidden = hiding.start_ns, hiding.end_ns
    transfer = without(union(begun[matched], (end - begun)[matched]), hidden)
    waiting = without(without(union(start[matched], (begun - start)[matched]), hidden), transfer)
    known = together(transfer, waiting)
    unmatched = without(without(union(start[~matched], (end - start)[~matched]), hidden), known)
    return _steps(steps, transfer, waiting, unmatched)


def _steps(steps: StepSpans, *kinds: Intervals) -> tuple[StepParts, ...]:
    spent = [within(kind, steps.start_ns, steps.end_ns).tolist() for kind in kinds]
    walls = (steps.end_ns - steps.start_ns).tolist()
    columns = zip(
        steps.number.tolist(), walls, steps.computing_ns.tolist(), *spent, steps.outside_ns.tolist(),
        steps.busy_ns.tolist(), strict=True,
    )  # fmt: skip
    return tuple(
        StepParts(
            number=number, wall_ns=wall - outside, other_work_ns=work, transfer_ns=transfer, waiting_ns=waiting,
            unmatched_ns=unmatched, outside_ns=outside, idle_ns=wall - busy,
        )
        for number, wall, work, transfer, waiting, unmatched, outside, busy in columns
    )  # fmt: skip
