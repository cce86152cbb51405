"""Who the others wait for, where the clocks can tell, and what it did instead."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from opanatomy.anatomy.waiting.clocks import Clocks
from opanatomy.anatomy.waiting.parts import Split
from opanatomy.anatomy.waiting.table import RankCalls
from opanatomy.records.columns import Int64
from opanatomy.records.ranks import Rank
from opanatomy.records.waiting import Straggler

#: A straggler has at least this part of all waiting, and this many times that of the next one.
_LARGE_PART: Final = 0.25
_FAR_AHEAD: Final = 2
#: Waiting of less than this part of the steps makes no rank a straggler.
_WORTH_A_NAME: Final = 0.01


class Verdict(Struct, frozen=True):
    """The straggler, or why none is named."""

    straggler: Straggler | None
    why_not: str | None = None


def _waited(calls: RankCalls, match: Int64, split: Split) -> Int64:
    """For each collective, by its number, how long all of its ranks waited."""
    waited = np.zeros(int(match.max(initial=-1)) + 1, dtype=np.int64)
    rows = np.flatnonzero(split.matched)
    np.add.at(waited, match[rows], split.begun_ns[rows] - calls.start_ns[rows])
    return waited


def charges(calls: RankCalls, match: Int64, split: Split) -> Int64:
    """For each rank how long the others waited for it: all of a collective's waiting for the one that came last."""
    charged = np.zeros(calls.ranks, dtype=np.int64)
    last = np.flatnonzero(split.last)
    np.add.at(charged, calls.rank[last], _waited(calls, match, split)[match[last]])
    return charged


def verdict_of(
    ranks: tuple[Rank, ...],
    calls: RankCalls,
    match: Int64,
    split: Split,
    clocks: Clocks,
    computed: tuple[Int64, Int64],
    wall_ns: int,
) -> Verdict:
    """Whether a rank is the one that the others wait for.

    `computed` is how long each call's rank had computed at its start and at its end, `wall_ns` the sum of all steps.
    """
    charged = charges(calls, match, split)
    whole = int(charged.sum())
    if not whole or whole < _WORTH_A_NAME * wall_ns:
        return Verdict(None, "the ranks hardly wait for each other")
    rank = int(np.argmax(charged))
    others = np.delete(charged, rank).max(initial=0)
    if charged[rank] < max(_LARGE_PART * whole, _FAR_AHEAD * others):
        return Verdict(None, "no single rank is the last most of the time")
    last = np.flatnonzero(split.last & (calls.rank == rank))
    lead = _middle(split.lead_ns[last], _waited(calls, match, split)[match[last]])
    if lead <= _allowed_ns(calls, match, clocks, rank):
        return Verdict(None, "the lead of the one that is waited for most is no longer than the clocks allow")
    computing, idle = _instead(calls, match, last, computed)
    return Verdict(
        Straggler(
            rank=ranks[rank].rank, trace=ranks[rank].trace, charged_ns=int(charged[rank]), waiting_ns=whole,
            last=len(last), lead_ns=lead, computing_longer_ns=computing, idle_longer_ns=idle,
        )
    )  # fmt: skip


def _middle(leads_ns: Int64, waited: Int64) -> int:
    """The median lead, weighted by the waiting: in half of all that is charged the lead was no longer."""
    order = np.argsort(leads_ns, kind="stable")
    upto = np.cumsum(waited[order])
    return int(leads_ns[order][np.searchsorted(upto, upto[-1] / 2)])


def _allowed_ns(calls: RankCalls, match: Int64, clocks: Clocks, rank: int) -> int:
    """By how much the clock of a rank may be off: what the ends say, where there are too few what causality leaves."""
    if clocks.within_ns is not None:
        return clocks.within_ns
    own = clocks.offset_ns[calls.rank]
    start, end = calls.start_ns - own, calls.end_ns - own
    rows = np.flatnonzero((match >= 0) & (calls.rank == rank))
    slack = [
        int(end[row] - start[like[like != row]].max())
        for row, like in zip(rows.tolist(), _like(match, rows), strict=True)
        if len(like) > 1
    ]
    return max(min(slack, default=0), 0)


def _instead(calls: RankCalls, match: Int64, last: Int64, computed: tuple[Int64, Int64]) -> tuple[int, int]:
    """(how much longer than the middle of the others it computed, and did not) since the collective before, summed."""
    before = _before(calls, match)
    longer = np.zeros(2, dtype=np.int64)
    for row, like in zip(last.tolist(), _like(match, last), strict=True):
        known = like[before[like] >= 0]
        others = known != row
        if others.all() or not others.any():
            continue
        elapsed = np.maximum(calls.start_ns[known] - calls.end_ns[before[known]], 0)
        computing = np.clip(computed[0][known] - computed[1][before[known]], 0, elapsed)
        for place, spent in enumerate((computing, elapsed - computing)):
            longer[place] += int(spent[~others][0] - np.median(spent[others]))
    return int(longer[0]), int(longer[1])


def _like(match: Int64, rows: Int64) -> list[Int64]:
    """For each of the rows all that are matched with it."""
    order = np.argsort(match, kind="stable")
    ordered = match[order]
    begins, ends = (np.searchsorted(ordered, match[rows], side=side) for side in ("left", "right"))
    return [order[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]


def _before(calls: RankCalls, match: Int64) -> Int64:
    """For each matched call that of its rank before it, by their starts; -1 for none."""
    before = np.full(len(match), -1, dtype=np.int64)
    rows = np.flatnonzero(match >= 0)
    order = rows[np.lexsort((calls.start_ns[rows], calls.rank[rows]))]
    same = np.append(False, calls.rank[order][1:] == calls.rank[order][:-1])[: len(order)]
    before[order[same]] = order[np.flatnonzero(same) - 1]
    return before
