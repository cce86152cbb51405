"""The clocks of several ranks, set by the collectives that they share.

A collective that needs every rank's part ends on all of them nearly at once: what is left of that difference over many
is the difference of the clocks. Short ones say more than long ones. And none ends before it has begun on every rank:
that bounds the clocks, whatever the ends are.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from opanatomy.anatomy.waiting.table import SYNCHRONIZING, RankCalls
from opanatomy.records.columns import Float64, Int64, distinct

_ROUNDS: Final = 50
#: Collectives shorter than this weigh no more: their ends differ by as much.
_SHORT_NS: Final = 10_000
#: The part of the left over differences that is taken for what the clocks are known to.
_QUANTILE: Final = 0.9
#: Fewer collectives cannot be halved to see how well the clocks are known.
_FEWEST: Final = 4
#: Clocks as they are may put ends this many times as far apart as set ones, and as much more as a trace can tell (us).
_NO_WORSE: Final = 1.25
_RESOLUTION_NS: Final = 1_000


class Clocks(Struct, frozen=True, kw_only=True):
    """How far each rank's clock is ahead, and how well that is known."""

    #: To be taken from the times of each rank; whole nanoseconds.
    offset_ns: Int64
    #: The ends of short collectives are no further from their middle, nine in ten; where clocks were set, of those that
    #: they were not set by, `None` where there are too few to tell.
    within_ns: int | None
    #: Collectives that set the clocks.
    used: int
    #: Those that end on some rank before they have begun on another, on clocks as they are in the traces and as set.
    violated_before: int
    violated: int


class _Shared(Struct, frozen=True, kw_only=True):
    """The calls of collectives that synchronize, by collective."""

    rank: Int64
    #: From 0.
    collective: Int64
    count: int
    start_ns: Int64
    end_ns: Int64
    weight: Float64


def clocks_of(calls: RankCalls, match: Int64) -> Clocks:
    """The clocks that put the ends of matched collectives together, as far as no causality speaks against it.

    Clocks that agree as they are, as those of one machine do, stay: where setting them brings the ends no closer.
    """
    shared = _shared(calls, match)
    none = np.zeros(calls.ranks, dtype=np.float64)
    if not shared.count:
        return Clocks(offset_ns=none.astype(np.int64), within_ns=None, used=0, violated_before=0, violated=0)
    within: int | None = _nine_in_ten(_distances(shared, none))
    left_over = _left_over(shared, calls.ranks)
    offset = none
    if _violated(shared, none) or (left_over is not None and (within or 0) > left_over * _NO_WORSE + _RESOLUTION_NS):
        offset, within = _made_causal(shared, _fitted(shared, calls.ranks)), left_over
    return Clocks(
        offset_ns=np.rint(offset).astype(np.int64), within_ns=within, used=shared.count,
        violated_before=len(_violated(shared, none)), violated=len(_violated(shared, np.rint(offset))),
    )  # fmt: skip


def _shared(calls: RankCalls, match: Int64) -> _Shared:
    """Of each collective that synchronizes and several ranks have; long ones weigh less."""
    rows = np.flatnonzero((match >= 0) & calls.is_among(SYNCHRONIZING))
    collectives = distinct(match[rows])
    several = np.bincount(collectives.inverse, minlength=len(collectives.values)) > 1
    rows = rows[several[collectives.inverse]]
    numbers = distinct(match[rows])
    count = len(numbers.values)
    shortest = np.full(count, np.inf)  # which is that of the rank that comes last, without waiting
    np.minimum.at(shortest, numbers.inverse, (calls.end_ns[rows] - calls.start_ns[rows]).astype(np.float64))
    # From the first on: a float has not the digits of nanoseconds since 1970.
    base = int(calls.start_ns[rows].min()) if len(rows) else 0
    weight = 1 / np.maximum(shortest, _SHORT_NS)[numbers.inverse]
    return _Shared(
        rank=calls.rank[rows], collective=numbers.inverse, count=count,
        start_ns=calls.start_ns[rows] - base, end_ns=calls.end_ns[rows] - base, weight=weight,
    )  # fmt: skip


def _fitted(shared: _Shared, ranks: int, chosen: int | None = None) -> Float64:
    """For each rank the weighted median of how much later its ends are than the middle of all ranks' ends.

    With `chosen` by every other collective, from the first or the second on.
    """
    rows = np.arange(len(shared.rank)) if chosen is None else np.flatnonzero(shared.collective % 2 == chosen)
    offset = np.zeros(ranks)
    for _ in range(_ROUNDS):
        ends = shared.end_ns[rows] - offset[shared.rank[rows]]
        later = ends - _medians(shared.collective[rows], ends, None, shared.count)[shared.collective[rows]]
        change = _medians(shared.rank[rows], later, shared.weight[rows], ranks)
        offset += change
        if np.abs(change).max(initial=0) < 1:
            break
    return offset - np.median(offset[np.unique(shared.rank)])


def _medians(group: Int64, values: Float64, weights: Float64 | None, count: int) -> Float64:
    """The median of each group's values, of an even number the mean of the two; weighted, the value at half the
    weight. 0 for a group without."""
    order = np.lexsort((values, group))
    group, values = group[order], values[order]
    weight = np.ones(len(values)) if weights is None else weights[order]
    whole = np.bincount(group, weights=weight, minlength=count)
    upto = np.cumsum(weight)
    before = np.cumsum(whole) - whole
    half = before + whole / 2
    medians = np.zeros(count)
    present = np.flatnonzero(whole > 0)
    lower = np.searchsorted(upto, half[present] * (1 - 1e-12))
    upper = np.searchsorted(upto, half[present] * (1 + 1e-12), side="right")
    last = np.searchsorted(group, present, side="right") - 1
    medians[present] = (values[np.minimum(lower, last)] + values[np.minimum(upper, last)]) / 2
    return medians


def _made_causal(shared: _Shared, offset: Float64) -> Float64:
    """The offsets, moved as little as is needed for no collective to end before it has begun everywhere.

    Of a collective that does, the rank that ends first and the one that begins last move half of it each; the worst
    first, and each rank once a round. What cannot be mended, because the clocks run at other speeds, stays.
    """
    offset = offset.copy()
    for _ in range(_ROUNDS):
        moved: set[int] = set()
        for ended, begun, by in sorted(_violated(shared, offset), key=lambda violation: -violation[2]):
            if ended not in moved and begun not in moved:
                offset[ended] -= by / 2
                offset[begun] += by / 2
                moved |= {ended, begun}
        if not moved:
            break
    return offset


def _violated(shared: _Shared, offset: Float64) -> list[tuple[int, int, float]]:
    """(the rank that ends first, the rank that begins last, by how much too late) of collectives that end too early."""
    start, end = shared.start_ns - offset[shared.rank], shared.end_ns - offset[shared.rank]
    by_start = np.lexsort((start, shared.collective))
    by_end = np.lexsort((end, shared.collective))
    bounds = np.cumsum(np.bincount(shared.collective, minlength=shared.count))
    last = by_start[bounds - 1]
    first = by_end[np.append(0, bounds[:-1])]
    late = start[last] - end[first]
    rows = np.flatnonzero(late > 0)
    return [(int(shared.rank[first[row]]), int(shared.rank[last[row]]), float(late[row])) for row in rows.tolist()]


def _left_over(shared: _Shared, ranks: int) -> int | None:
    """How far apart the ends of a half of the collectives are on clocks set by the other half, of the short ones."""
    if shared.count < _FEWEST:
        return None
    distances = [_distances(shared, _fitted(shared, ranks, half), 1 - half) for half in (0, 1)]
    return _nine_in_ten(np.concatenate(distances))


def _distances(shared: _Shared, offset: Float64, half: int | None = None) -> Float64:
    """How far each end of a short collective is from the middle of the ends; of every other one with `half`."""
    is_short = shared.weight >= np.median(shared.weight)
    rows = np.flatnonzero(is_short if half is None else is_short & (shared.collective % 2 == half))
    ends = shared.end_ns[rows] - offset[shared.rank[rows]]
    middle = _medians(shared.collective[rows], ends, None, shared.count)
    distances: Float64 = np.abs(ends - middle[shared.collective[rows]])
    return distances


def _nine_in_ten(distances: Float64) -> int:
    return int(np.quantile(distances, _QUANTILE))
