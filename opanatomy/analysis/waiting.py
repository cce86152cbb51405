"""Match the collectives of all ranks, and divide their time into waiting and transfer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct, field

from opanatomy.analysis.communication import bus_factor, message_sizes
from opanatomy.analysis.intervals import Intervals, together, union, within, without
from opanatomy.records.anatomy import CollectiveCalls, Spans, StepSpans
from opanatomy.records.columns import Bool, Categorical, Float64, Int64, rows_by_value, unique
from opanatomy.records.communication import (
    ClockSetting,
    MatchedCollective,
    Rank,
    RankWaiting,
    StepParts,
    Straggler,
    Waiting,
)

# ----- the collective calls of all ranks


#: Collectives that end on no rank before all have entered: every rank needs data from every other.
SYNCHRONIZING: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
#: Collectives whose messages have the same size on all ranks.
EVEN: Final = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
#: Collectives between two ranks, where nothing identifies the peer.
PAIRWISE: Final = ("send", "recv", "send_recv")


class RankCalls(Struct, frozen=True, kw_only=True):
    """The collective calls of all ranks; `rank` is an index into the given ranks, times are those of its trace."""

    ranks: int
    rank: Int64
    collective: Categorical[str]
    named: Bool
    group: Categorical[str]
    group_size: Int64
    sequence: Int64
    #: Message bytes if equal on all ranks, -1 if they may differ or are unknown.
    size: Int64
    #: When the host called it; if that is not recorded, when it began.
    asked_ns: Int64
    #: When the host called it, and when it last returned before that from waiting for the device; -1 if not recorded.
    launched_ns: Int64
    synchronized_ns: Int64
    #: Whether it is work of the window's steps.
    inside: Bool
    start_ns: Int64
    end_ns: Int64

    def isin(self, names: Sequence[str]) -> Bool:
        """Return which calls belong to these collectives."""
        among = np.array([name in names for name in self.collective.values] + [False], dtype=bool)
        rows: Bool = among[self.collective.codes]
        return rows


def calls_of_ranks(tables: Sequence[CollectiveCalls]) -> RankCalls:
    """Stack the tables of the ranks."""
    collective = _stacked([table.collective for table in tables])
    even = np.array([name in EVEN for name in collective.values] + [False], dtype=bool)[collective.codes]
    size = np.maximum(_numbers(tables, "sent_bytes"), _numbers(tables, "received_bytes"))
    launched, start = _numbers(tables, "launched_ns"), _numbers(tables, "start_ns")
    return RankCalls(
        ranks=len(tables),
        rank=np.repeat(np.arange(len(tables)), [len(table.start_ns) for table in tables]),
        collective=collective,
        named=np.concatenate([table.named for table in tables]),
        group=_stacked([table.group for table in tables]),
        group_size=_numbers(tables, "group_size"),
        sequence=_numbers(tables, "sequence"),
        size=np.where(even, size, -1),
        asked_ns=np.where(launched >= 0, launched, start),
        launched_ns=launched,
        synchronized_ns=_numbers(tables, "synchronized_ns"),
        inside=np.concatenate([table.inside for table in tables]),
        start_ns=start,
        end_ns=_numbers(tables, "end_ns"),
    )


def _numbers(tables: Sequence[CollectiveCalls], name: str) -> Int64:
    return np.concatenate([getattr(table, name) for table in tables])


def _stacked(columns: Sequence[Categorical[str]]) -> Categorical[str]:
    """Stack columns, with the values of all."""
    numbers: dict[str, int] = {}
    codes = []
    for column in columns:
        indices = [numbers.setdefault(value, len(numbers)) for value in column.values]
        codes.append(np.array([*indices, -1], dtype=np.int64)[column.codes])
    return Categorical(np.concatenate(codes), tuple(numbers))


# ----- the clocks of several ranks, set by the collectives that they share
#
# A collective that needs every rank's part ends on all of them nearly at once: the remaining difference, over many, is
# that of the clocks. Short ones say more than long ones. None ends before it has begun on every rank, which bounds the
# clocks whatever the ends are.


_ROUNDS: Final = 50
#: Collectives shorter than this weigh no more: their ends differ by as much.
_SHORT_NS: Final = 10_000
#: The quantile of the remaining differences that is taken for the accuracy of the clocks.
_QUANTILE: Final = 0.9
#: Fewer collectives cannot be halved to see how accurate the clocks are.
_MIN_COLLECTIVES: Final = 4
#: Recorded clocks are kept if ends differ at most this many times as much as on fitted ones, plus a trace's resolution
#: (us).
_NO_WORSE: Final = 1.25
_RESOLUTION_NS: Final = 1_000


class Clocks(Struct, frozen=True, kw_only=True):
    """Clock offset of each rank, and its accuracy."""

    #: Whole nanoseconds to subtract from the times of each rank.
    offset_ns: Int64
    #: Nine in ten ends of short collectives are this close to their middle; of set clocks, ends of collectives that
    #: did not set them, `None` if there are too few to tell.
    within_ns: int | None
    #: Collectives that set the clocks.
    used: int
    #: Collectives that end on some rank before all have begun, on recorded and on fitted clocks.
    violated_before: int
    violated: int


class _Shared(Struct, frozen=True, kw_only=True):
    """Calls of synchronizing collectives that several ranks share."""

    rank: Int64
    #: A number from 0.
    collective: Int64
    count: int
    start_ns: Int64
    end_ns: Int64
    weight: Float64


def clocks_of(calls: RankCalls, match: Int64) -> Clocks:
    """Fit clock offsets that align the ends of matched collectives, as far as causality allows.

    Recorded clocks that already agree, as on one machine, are kept: fitting would not bring the ends closer.
    """
    shared = _shared(calls, match)
    none = np.zeros(calls.ranks, dtype=np.float64)
    if not shared.count:
        return Clocks(offset_ns=none.astype(np.int64), within_ns=None, used=0, violated_before=0, violated=0)
    within: int | None = int(np.quantile(_distances(shared, none), _QUANTILE))
    left_over = None
    if shared.count >= _MIN_COLLECTIVES:
        # How far apart the ends of half of the short collectives are on clocks set by the other half.
        halves = [_distances(shared, _fitted(shared, calls.ranks, half), 1 - half) for half in (0, 1)]
        left_over = int(np.quantile(np.concatenate(halves), _QUANTILE))
    offset = none
    if _violated(shared, none) or (left_over is not None and (within or 0) > left_over * _NO_WORSE + _RESOLUTION_NS):
        offset, within = _made_causal(shared, _fitted(shared, calls.ranks)), left_over
    return Clocks(
        offset_ns=np.rint(offset).astype(np.int64),
        within_ns=within,
        used=shared.count,
        violated_before=len(_violated(shared, none)),
        violated=len(_violated(shared, np.rint(offset))),
    )


def _shared(calls: RankCalls, match: Int64) -> _Shared:
    """Return the calls of each synchronizing collective shared by several ranks; long ones get less weight."""
    rows = np.flatnonzero((match >= 0) & calls.isin(SYNCHRONIZING))
    collectives = unique(match[rows])
    several = np.bincount(collectives.inverse, minlength=len(collectives.values)) > 1
    rows = rows[several[collectives.inverse]]
    numbers = unique(match[rows])
    count = len(numbers.values)
    shortest = np.full(count, np.inf)  # of the rank that comes last, without waiting
    np.minimum.at(shortest, numbers.inverse, (calls.end_ns[rows] - calls.start_ns[rows]).astype(np.float64))
    # Relative to the first: a float does not hold the digits of nanoseconds since 1970.
    base = int(calls.start_ns[rows].min()) if len(rows) else 0
    weight = 1 / np.maximum(shortest, _SHORT_NS)[numbers.inverse]
    return _Shared(
        rank=calls.rank[rows],
        collective=numbers.inverse,
        count=count,
        start_ns=calls.start_ns[rows] - base,
        end_ns=calls.end_ns[rows] - base,
        weight=weight,
    )


def _fitted(shared: _Shared, ranks: int, chosen: int | None = None) -> Float64:
    """Return for each rank the weighted median of how much later its ends are than the middle of all ranks' ends.

    With `chosen` every other collective is used, from the first or the second on.
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
    """Return the median of each group's values, or with weights the value at half the weight; 0 for an empty group.

    The median of an even number is the mean of the two in the middle.
    """
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
    """Adjust the offsets minimally so that no collective ends before it has begun on all ranks.

    For a collective that does, the rank that ends first and the one that begins last move half of it each; the worst
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
    """Return (rank that ends first, rank that begins last, by how much too late) of collectives that end too early."""
    start, end = shared.start_ns - offset[shared.rank], shared.end_ns - offset[shared.rank]
    by_start = np.lexsort((start, shared.collective))
    by_end = np.lexsort((end, shared.collective))
    bounds = np.cumsum(np.bincount(shared.collective, minlength=shared.count))
    last = by_start[bounds - 1]
    first = by_end[np.append(0, bounds[:-1])]
    late = start[last] - end[first]
    rows = np.flatnonzero(late > 0)
    return [(int(shared.rank[first[row]]), int(shared.rank[last[row]]), float(late[row])) for row in rows.tolist()]


def _distances(shared: _Shared, offset: Float64, half: int | None = None) -> Float64:
    """Return the distance of each end of a short collective from the median end; with `half`, of every other one."""
    is_short = shared.weight >= np.median(shared.weight)
    rows = np.flatnonzero(is_short if half is None else is_short & (shared.collective % 2 == half))
    ends = shared.end_ns[rows] - offset[shared.rank[rows]]
    middle = _medians(shared.collective[rows], ends, None, shared.count)
    distances: Float64 = np.abs(ends - middle[shared.collective[rows]])
    return distances


# ----- calls of several ranks that are one collective: by the group's own number, by order, by time


#: Shifts whose ends spread at most this many times the least, plus this many nanoseconds, fit equally well.
_AS_GOOD: Final = 1.5
_AS_GOOD_NS: Final = 1_000
#: Two clocks count as one if other shifts would put them more than this many times further apart.
_ONE_CLOCK: Final = 4


def by_number_and_order(calls: RankCalls) -> Int64:
    """Return the number of each call's collective, -1 if unknown: by group and number, else by order."""
    match = np.full(len(calls.rank), -1, dtype=np.int64)
    rows = np.flatnonzero((calls.sequence >= 0) & (calls.group.codes >= 0) & ~calls.isin(PAIRWISE))
    if len(rows):
        # The n-th call with a number on one rank is the n-th with it on the others.
        like = _dense(calls.rank[rows], calls.group.codes[rows], calls.sequence[rows])
        order = np.lexsort((calls.start_ns[rows], like))
        begins = np.flatnonzero(np.append(True, np.diff(like[order]) != 0))
        index = np.empty(len(rows), dtype=np.int64)
        index[order] = np.arange(len(rows)) - np.repeat(begins, np.diff(np.append(begins, len(rows))))
        numbers = _dense(calls.group.codes[rows], calls.sequence[rows], index)
        agreed = _agree(numbers, calls.collective.codes[rows]) & _agree(numbers, calls.size[rows])
        match[rows] = np.where(agreed, numbers, -1)

    left = calls.named & (match < 0) & ~calls.isin(PAIRWISE)
    for _, rows in rows_by_value(np.where(left, calls.group.codes, -2)):
        rows = rows[left[rows]]
        if len(rows):
            match[rows] = _shifted_past(match, _by_order(calls, rows))
    return _matches_of_several(calls, match)


def by_time(calls: RankCalls, match: Int64, offset_ns: Int64) -> Int64:
    """Match the remaining calls of one collective, group and size that overlap on the ranks' common clock.

    Calls recorded on the host as pairwise are skipped; kernels with that name may also belong to an all-to-all.
    """
    match = match.copy()
    left = np.flatnonzero((match < 0) & ~(calls.named & calls.isin(PAIRWISE)))
    kinds = unique(calls.collective.codes[left] * (len(calls.group.values) + 1) + calls.group.codes[left] + 1)
    for index in range(len(kinds.values)):
        rows = left[kinds.inverse == index]
        match[rows] = _shifted_past(match, _overlapping(calls, rows, offset_ns))
    return _matches_of_several(calls, match)


def _matches_of_several(calls: RankCalls, match: Int64) -> Int64:
    """Return `match` without the numbers that a single rank has."""
    ranks = np.bincount(match[match >= 0], minlength=1)
    return np.where((match >= 0) & (ranks[match] > 1), match, -1)


def _shifted_past(match: Int64, numbers: Int64) -> Int64:
    """Return new numbers after those that are taken."""
    return np.where(numbers >= 0, numbers + int(match.max(initial=-1)) + 1, -1)


# ----- by the group's number


def _dense(*columns: Int64) -> Int64:
    """Number each distinct combination from 0."""
    numbers = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values = unique(column)
        numbers = unique(numbers * len(values.values) + values.inverse).inverse
    return numbers


def _agree(numbers: Int64, values: Int64) -> Bool:
    """Return whether all rows with the number of a row have its value; -1 agrees with all."""
    count = int(numbers.max(initial=-1)) + 1
    smallest, largest = np.full(count, np.iinfo(np.int64).max), np.full(count, -1, dtype=np.int64)
    known = values >= 0
    np.minimum.at(smallest, numbers[known], values[known])
    np.maximum.at(largest, numbers[known], values[known])
    agreed: Bool = (smallest >= largest)[numbers]
    return agreed


# ----- by order


def _by_order(calls: RankCalls, rows: Int64) -> Int64:
    """Return each row's index within its group in call order, -1 if its rank does not fit the others."""
    indices = np.zeros(len(rows), dtype=np.int64)
    fits = np.zeros(len(rows), dtype=bool)
    of_rank = {
        rank: here[np.argsort(calls.asked_ns[rows[here]], kind="stable")]
        for rank, here in rows_by_value(calls.rank[rows])
    }
    reference = max(of_rank, key=lambda rank: (len(of_rank[rank]), -rank))
    first = rows[of_rank[reference]]
    for rank, here in of_rank.items():
        shift = 0 if rank == reference else _shift(calls, first, rows[here])
        if shift is not None:
            indices[here], fits[here] = np.arange(len(here)) + shift, True
    return np.where(fits, indices - indices[fits].min(initial=0), -1)


class _Candidate(Struct, frozen=True, kw_only=True):
    """A shift at which all names agree, with its number of pairs and how far apart their ends are."""

    shift: int
    pairs: int
    offset_ns: float
    spread_ns: float


def _shift(calls: RankCalls, first: Int64, second: Int64) -> int | None:
    """Return the index shift of `second`'s calls relative to `first`; `None` if names agree at no shift.

    A shift is a candidate if names agree and it pairs at least half of the possible calls. Shifts at which the two
    clocks are practically one are preferred if others are not; otherwise those whose ends spread least, since ends of
    one collective always differ by the clock difference. Among the rest the one with most pairs wins, then the smallest
    offset.
    """
    codes, sizes = calls.collective.codes, calls.size
    possible = min(len(first), len(second))
    shifts = range(-(len(second) - (possible + 1) // 2), len(first) - (possible + 1) // 2 + 1)
    candidates = []
    for shift in sorted(shifts, key=abs):
        begin, end = max(shift, 0), min(len(first), len(second) + shift)
        one, other = first[begin:end], second[begin - shift : end - shift]
        # Pair by pair the collectives agree, and the sizes of even messages.
        known = (sizes[one] >= 0) & (sizes[other] >= 0)
        if (
            not len(one)
            or not np.array_equal(codes[one], codes[other])
            or not np.array_equal(sizes[one][known], sizes[other][known])
        ):
            continue
        differences = calls.end_ns[other] - calls.end_ns[one]
        middle = float(np.median(differences))
        spread = float(np.median(np.abs(differences - middle)))
        candidates.append(_Candidate(shift=shift, pairs=len(differences), offset_ns=middle, spread_ns=spread))
        if shift == 0 and len(first) == len(second):
            between = np.diff(calls.end_ns[first])
            if len(between) and np.abs(differences).max() * 2 < between.min():
                break  # the ends are closer than those of neighbours: no other shift can be meant
    if not candidates:
        return None

    nearest = min(abs(candidate.offset_ns) for candidate in candidates)
    good = [candidate for candidate in candidates if abs(candidate.offset_ns) <= nearest * _ONE_CLOCK]
    if len(good) == len(candidates):
        smallest = min(candidate.spread_ns for candidate in candidates)
        good = [candidate for candidate in candidates if candidate.spread_ns <= smallest * _AS_GOOD + _AS_GOOD_NS]
    return min(good, key=lambda candidate: (-candidate.pairs, abs(candidate.offset_ns))).shift


# ----- by time


class _Running(Struct, kw_only=True):
    """A set of calls of several ranks that all run until some time."""

    number: int
    until_ns: int
    size: int
    ranks: set[int] = field(default_factory=set)


def _overlapping(calls: RankCalls, rows: Int64, offset_ns: Int64) -> Int64:
    """Number groups of overlapping rows, one row per rank: all rows of a group run at some common time."""
    start = calls.start_ns[rows] - offset_ns[calls.rank[rows]]
    end = calls.end_ns[rows] - offset_ns[calls.rank[rows]]
    numbers = np.full(len(rows), -1, dtype=np.int64)
    running: list[_Running] = []
    for row in np.argsort(start, kind="stable").tolist():
        rank, size = int(calls.rank[rows[row]]), int(calls.size[rows[row]])
        running = [several for several in running if several.until_ns > start[row]]
        free = [several for several in running if rank not in several.ranks]
        joined = next((several for several in free if size == several.size or -1 in (size, several.size)), None)
        if joined is None:
            joined = _Running(number=int(numbers.max(initial=-1)) + 1, until_ns=int(end[row]), size=size)
            running.append(joined)
        numbers[row] = joined.number
        joined.ranks.add(rank)
        joined.until_ns, joined.size = min(joined.until_ns, int(end[row])), max(joined.size, size)
    return numbers


# ----- the parts of each step, from collectives matched and on one clock


class Split(Struct, frozen=True, kw_only=True):
    """The start of the last rank of each call's collective, on the call's own clock; the call's start if not matched.

    `last` marks calls of the rank that entered last, `lead_ns` is how long after the second to last.
    """

    matched: Bool
    begun_ns: Int64
    last: Bool
    lead_ns: Int64


def split_of(calls: RankCalls, match: Int64, offset_ns: Int64) -> Split:
    """Return when the last rank of each collective began, clipped to each call where the clocks are off."""
    own = offset_ns[calls.rank]
    rows = np.flatnonzero(match >= 0)
    order = rows[np.lexsort((-calls.rank[rows], (calls.start_ns - own)[rows], match[rows]))]
    numbers, first = np.unique(match[order], return_index=True)
    bounds = np.append(first[1:], len(order))
    latest = (calls.start_ns - own)[order[bounds - 1]]
    before = (calls.start_ns - own)[order[np.maximum(bounds - 2, first)]]
    begun, lead = calls.start_ns.copy(), np.zeros(len(calls.rank), dtype=np.int64)
    index = np.searchsorted(numbers, match[rows])
    begun[rows] = np.clip(latest[index] + own[rows], calls.start_ns[rows], calls.end_ns[rows])
    last = np.zeros(len(calls.rank), dtype=bool)
    last[order[bounds - 1]] = True
    lead[order[bounds - 1]] = latest - before
    return Split(matched=match >= 0, begun_ns=begun, last=last, lead_ns=lead)


def parts_of(calls: RankCalls, split: Split, rank: int, hiding: Spans, steps: StepSpans) -> tuple[StepParts, ...]:
    """Return the parts of each step of a rank, without calls from before the window.

    Time with several collectives counts as the first of transfer, waiting, unmatched.
    """
    rows = np.flatnonzero((calls.rank == rank) & calls.inside)
    start, begun, end = calls.start_ns[rows], split.begun_ns[rows], calls.end_ns[rows]
    matched = split.matched[rows]
    hidden = hiding.start_ns, hiding.end_ns
    transfer = without(union(begun[matched], (end - begun)[matched]), hidden)
    waiting = without(without(union(start[matched], (begun - start)[matched]), hidden), transfer)
    known = together(transfer, waiting)
    unmatched = without(without(union(start[~matched], (end - start)[~matched]), hidden), known)
    spent = [within(kind, steps.start_ns, steps.end_ns).tolist() for kind in (transfer, waiting, unmatched)]
    walls = (steps.end_ns - steps.start_ns).tolist()
    columns = zip(
        steps.number.tolist(),
        walls,
        steps.computing_ns.tolist(),
        *spent,
        steps.outside_ns.tolist(),
        steps.busy_ns.tolist(),
        strict=True,
    )
    return tuple(
        StepParts(
            number=number,
            wall_ns=wall - outside,
            other_work_ns=work,
            transfer_ns=transfer_ns,
            waiting_ns=waiting_ns,
            unmatched_ns=unmatched_ns,
            outside_ns=outside,
            idle_ns=wall - busy,
        )
        for number, wall, work, transfer_ns, waiting_ns, unmatched_ns, outside, busy in columns
    )


# ----- the rank that the others wait for, if the clocks can tell, and since when it is late


#: A straggler causes at least this share of all waiting, and this many times the next rank's.
_LARGE_PART: Final = 0.25
_FAR_AHEAD: Final = 2
#: Waiting below this fraction of the steps names no straggler.
_WORTH_A_NAME: Final = 0.01
#: A rank counts as computing, or idling, longer than the others only beyond this fraction.
_LONGER: Final = 0.01
#: A collective that begins later than this after its launch was delayed by the device queue, not by the host.
_QUEUED_NS: Final = 100_000


class Verdict(Struct, frozen=True):
    """The straggler, or why none is named."""

    straggler: Straggler | None
    why_not: str | None = None


def _waited(calls: RankCalls, match: Int64, split: Split) -> Int64:
    """Return the total waiting of all ranks in each collective, by its number."""
    waited = np.zeros(int(match.max(initial=-1)) + 1, dtype=np.int64)
    rows = np.flatnonzero(match >= 0)
    np.add.at(waited, match[rows], split.begun_ns[rows] - calls.start_ns[rows])
    return waited


def charges(calls: RankCalls, match: Int64, split: Split) -> Int64:
    """Return the waiting caused by each rank: a collective's waiting is charged to the rank that entered last."""
    charged = np.zeros(calls.ranks, dtype=np.int64)
    last = np.flatnonzero(split.last & (match >= 0))
    np.add.at(charged, calls.rank[last], _waited(calls, match, split)[match[last]])
    return charged


def verdict_of(
    ranks: Sequence[Rank],
    steps: Sequence[StepSpans],
    parts: Sequence[Sequence[StepParts]],
    calls: RankCalls,
    match: Int64,
    split: Split,
    clocks: Clocks,
) -> Verdict:
    """Name the straggler, if there is one; `steps` and `parts` have one entry per rank."""
    charged = charges(calls, match, split)
    whole = int(charged.sum())
    wall_ns = sum(step.wall_ns for own in parts for step in own)
    if not whole or whole < _WORTH_A_NAME * wall_ns:
        return Verdict(None, "the ranks hardly wait for each other")
    rank = int(np.argmax(charged))
    others = np.delete(charged, rank).max(initial=0)
    if charged[rank] < max(_LARGE_PART * whole, _FAR_AHEAD * others):
        return Verdict(None, "no single rank is usually last")
    last = np.flatnonzero(split.last & (match >= 0) & (calls.rank == rank))
    # The median lead, weighted by the waiting: in half of all that is charged the lead was no longer.
    last_by_lead = last[np.argsort(split.lead_ns[last], kind="stable")]
    upto = np.cumsum(_waited(calls, match, split)[match[last_by_lead]])
    lead = int(split.lead_ns[last_by_lead][np.searchsorted(upto, upto[-1] / 2)])
    allowed = _allowed_ns(calls, match, clocks, rank)
    if lead <= allowed:
        return Verdict(None, "the rank that causes the most waiting is late by less than the clock error")
    computing, idle = (_longer(parts, rank, field, allowed) for field in ("other_work_ns", "idle_ns"))
    return Verdict(
        Straggler(
            rank=ranks[rank].rank,
            trace=ranks[rank].trace,
            charged_ns=int(charged[rank]),
            waiting_ns=whole,
            last=len(last),
            lead_ns=lead,
            before_ns=_late_before(calls, match, split, clocks, last, steps),
            computing_longer_ns=computing,
            idle_longer_ns=idle,
        )
    )


def _allowed_ns(calls: RankCalls, match: Int64, clocks: Clocks, rank: int) -> int:
    """Return the clock error bound of a rank: from the ends, or if too few, from causality."""
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


def _longer(parts: Sequence[Sequence[StepParts]], rank: int, field: str, allowed_ns: int) -> int:
    """Return how much longer than the median of the others a rank does this in its steps, 0 if it is only noise.

    Ranks without steps are left out.
    """
    from statistics import fmean, median

    means = [fmean(getattr(step, field) for step in own) if own else None for own in parts]
    own, others = means[rank], [mean for index, mean in enumerate(means) if mean is not None and index != rank]
    if own is None or not others:
        return 0
    usual = median(others)
    is_longer = own - usual > max(_LONGER * usual, allowed_ns)
    return round((own - usual) * len(parts[rank])) if is_longer else 0


def _late_before(
    calls: RankCalls, match: Int64, split: Split, clocks: Clocks, last: Int64, steps: Sequence[StepSpans]
) -> int | None:
    """Return the waiting in a rank's `last` collectives from being late when its step began; `None` if unknown.

    For a collective that is what the ranks waited, less how much longer than the others this one took to get there from
    the beginning of the step. If a host waited for the device while a collective ended, its lead is gone and it began
    anew: with one of the same step, all lateness is from within. If the device's queue held the collective up, and not
    its launch, the times are those of the device, whose ranks begin anew with each collective.
    """
    own = clocks.offset_ns[calls.rank]
    # The step in which the host launched each call, -1 if unknown or before all; when that began, or the last one.
    step = np.full(len(calls.rank), -1, dtype=np.int64)
    began, device_began = np.zeros((2, len(calls.rank)), dtype=np.int64)
    # The row of the last matched collective that had ended when each call's host last waited, or -1.
    waited_for = np.full(len(calls.rank), -1, dtype=np.int64)
    for rank, of_rank in enumerate(steps):
        rows = np.flatnonzero(calls.rank == rank)
        if (of_rank.began_ns >= 0).all():
            step[rows] = np.searchsorted(of_rank.began_ns, calls.asked_ns[rows], side="right") - 1
        if len(of_rank.number):
            began[rows], device_began[rows] = of_rank.began_ns[step[rows]], of_rank.start_ns[step[rows]]
        ended = rows[split.matched[rows]]
        ended = ended[np.argsort(calls.end_ns[ended], kind="stable")]
        indices = np.searchsorted(calls.end_ns[ended], calls.synchronized_ns[rows], side="right") - 1
        waited_for[rows] = np.append(ended, -1)[indices]
    known = (calls.launched_ns >= 0) & (step >= 0)
    began, device_began = began - own, device_began - own
    start, asked = calls.start_ns - own, calls.asked_ns - own
    anew = np.where(waited_for >= 0, (calls.end_ns - own)[waited_for], began)
    same_step = (waited_for >= 0) & (step[waited_for] == step)
    # The matched calls that are the first that their rank launched in a step.
    first = np.zeros(len(calls.rank), dtype=bool)
    rows = np.flatnonzero(split.matched)
    rows = rows[np.lexsort((calls.asked_ns[rows], step[rows], calls.rank[rows]))]
    changes = (np.diff(calls.rank[rows]) != 0) | (np.diff(step[rows]) != 0)
    first[rows[np.append(True, changes)[: len(rows)]]] = True
    before = 0
    for row, like in zip(last.tolist(), _like(match, last), strict=True):
        if not known[like].all():
            return None
        queued = start[row] - asked[row] > _QUEUED_NS
        if not first[row] if queued else same_step[like].any():
            continue
        others = like[like != row]
        since, moment = (device_began, start) if queued else (began, asked)
        own_since = np.full(len(others), since[row])
        others_since = since[others]
        if not queued:
            own_since = np.where(anew[others] > others_since, np.maximum(anew[others], own_since), own_since)
            others_since = np.maximum(anew[others], others_since)
        longer = int(((moment[row] - own_since) - (moment[others] - others_since)).sum())
        waited = int((split.begun_ns[like] - calls.start_ns[like]).sum())
        before += waited - min(max(longer, 0), waited)
    return before


def _like(match: Int64, rows: Int64) -> list[Int64]:
    """Return for each of the rows all rows that are matched with it."""
    order = np.argsort(match, kind="stable")
    ordered = match[order]
    begins, ends = (np.searchsorted(ordered, match[rows], side=side) for side in ("left", "right"))
    return [order[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]


_MISSING: Final = "some ranks are missing, and a missing rank may be even later"


class RankTables(Struct, frozen=True, kw_only=True):
    """The summary of a rank besides its anatomy; all figures cover the counted `steps`."""

    rank: Rank
    calls: CollectiveCalls
    hiding: Spans
    steps: StepSpans


class RankWaits(Struct, frozen=True, kw_only=True):
    """When a rank waited in its collectives, on its own clock: a row for each of them, in order.

    `waiting` is when it did nothing else; `begun_ns` is when the last rank, `last`, entered each.
    """

    waiting: Intervals
    start_ns: Int64
    begun_ns: Int64
    collective: Categorical[str]
    last: Int64


class Matched(Struct, frozen=True, kw_only=True):
    """The matched collectives of the ranks on one clock, and the parts of each rank's steps.

    `match` covers the counted steps, `split` everything recorded.
    """

    each: Sequence[RankTables]
    world: int | None
    is_lower_bound: bool
    recorded: Int64
    calls: RankCalls
    match: Int64
    split: Split
    clocks: Clocks
    parts: list[tuple[StepParts, ...]]

    def waits_of(self, rank: int) -> RankWaits:
        """Return when a rank did nothing but wait for another one in its matched collectives."""
        calls, split = self.calls, self.split
        rows = np.flatnonzero((calls.rank == rank) & calls.inside & split.matched)
        rows = rows[np.argsort(calls.start_ns[rows], kind="stable")]
        start, begun = calls.start_ns[rows], split.begun_ns[rows]
        latest = np.full(int(self.match.max(initial=-1)) + 2, -1, dtype=np.int64)
        last = np.flatnonzero(split.last & (self.match >= 0))
        latest[self.match[last]] = calls.rank[last]
        transfer = union(begun, calls.end_ns[rows] - begun)
        return RankWaits(
            waiting=without(union(start, begun - start), transfer),
            start_ns=start,
            begun_ns=begun,
            collective=calls.collective.take(rows),
            last=latest[self.match[rows]],
        )


def matched_of(each: Sequence[RankTables]) -> Matched | None:
    """Match the collectives of the given ranks, in their order; `None` if their steps have none."""
    tables = [rank.calls for rank in each]
    if len(each) < 2 or sum(len(table.start_ns) > 0 for table in tables) < 2:
        return None
    calls = calls_of_ranks(tables)
    # A group has no more ranks than the run, and the trace need not say how many the run has.
    world = max(int(calls.group_size.max(initial=0)), *(rank.rank.world_size or 0 for rank in each)) or None
    is_lower_bound = world is not None and world > len(each)
    recorded = _complete(calls, by_number_and_order(calls), is_lower_bound)
    match = _complete(calls, by_time(calls, recorded, clocks_of(calls, recorded).offset_ns), is_lower_bound)
    if not (match >= 0).any():
        return None
    clocks = clocks_of(calls, match)
    split = split_of(calls, match, clocks.offset_ns)
    parts = [parts_of(calls, split, index, rank.hiding, rank.steps) for index, rank in enumerate(each)]
    # Without collectives that begin outside the steps that count on any of their ranks.
    begins = []
    for index, rank in enumerate(each):
        start = calls.start_ns[calls.rank == index]
        step = np.searchsorted(rank.steps.start_ns, start, side="right") - 1
        begins.append(start < np.append(rank.steps.end_ns, np.iinfo(np.int64).min)[step])
    outside = (match >= 0) & ~(calls.inside & np.concatenate(begins))
    match = np.where(np.isin(match, match[outside]), -1, match)
    if not (match >= 0).any():
        return None
    return Matched(
        each=each,
        world=world,
        is_lower_bound=is_lower_bound,
        recorded=recorded,
        calls=calls,
        match=match,
        split=split,
        clocks=clocks,
        parts=parts,
    )


def waiting_of(matched: Matched) -> Waiting:
    """Return waiting and transfer over ranks whose collectives are matched."""
    each, calls, match, recorded = matched.each, matched.calls, matched.match, matched.recorded
    clocks, split = matched.clocks, matched.split
    verdict = Verdict(None, _MISSING)
    if not matched.is_lower_bound:
        steps = [rank.steps for rank in each]
        verdict = verdict_of([rank.rank for rank in each], steps, matched.parts, calls, match, split, clocks)
    by_number = (calls.sequence >= 0) & (calls.group.codes >= 0) & (recorded >= 0)
    return Waiting(
        ranks=len(each),
        world_size=matched.world,
        is_lower_bound=matched.is_lower_bound,
        by_number=_count(match, by_number),
        by_order=_count(match, (recorded >= 0) & ~by_number),
        by_time=_count(match, recorded < 0),
        clocks=ClockSetting(
            was_set=bool(clocks.offset_ns.any()),
            collectives=clocks.used,
            within_ns=clocks.within_ns,
            ended_too_early_before=clocks.violated_before,
            ended_too_early=clocks.violated,
        ),
        each=_rows(matched),
        collectives=_collectives(calls, match, split, [rank.calls for rank in each]),
        straggler=verdict.straggler,
        no_straggler=verdict.why_not,
    )


def _complete(calls: RankCalls, match: Int64, is_lower_bound: bool) -> Int64:
    """Return `match` without collectives that lack a given rank: its record begins later or ends earlier.

    If all ranks of the run were given, the group size is the number needed. Otherwise, or if it is unknown, the given
    ranks that communicate in the group are needed, without a group all.
    """
    rows = np.flatnonzero(match >= 0)
    if not len(rows):
        return match
    count = int(match.max()) + 1
    ranks = np.bincount(match[rows], minlength=count)
    size, group = np.full((2, count), -1, dtype=np.int64)
    np.maximum.at(size, match[rows], calls.group_size[rows])
    np.maximum.at(group, match[rows], calls.group.codes[rows])
    pairs = unique((calls.group.codes + 1) * calls.ranks + calls.rank)
    groups = pairs.values // calls.ranks - 1
    communicating = np.bincount(groups[groups >= 0], minlength=len(calls.group.values))
    at_hand = np.append(communicating, calls.ranks).astype(np.int64)[group]
    known = np.minimum(size, at_hand) if is_lower_bound else size
    needed = np.where(size > 0, known, at_hand)
    return np.where((match >= 0) & (ranks >= needed)[match], match, -1)


def _count(match: Int64, rows: Bool) -> int:
    return len(unique(match[rows & (match >= 0)]).values)


def _rows(matched: Matched) -> tuple[RankWaiting, ...]:
    calls, split = matched.calls, matched.split
    sums = np.zeros((4, calls.ranks), dtype=np.int64)
    np.add.at(sums[0], calls.rank, 1)
    rows = np.flatnonzero(matched.match >= 0)
    np.add.at(sums[1], calls.rank[rows], 1)
    np.add.at(sums[2], calls.rank[rows], calls.end_ns[rows] - split.begun_ns[rows])
    np.add.at(sums[3], calls.rank[rows], split.begun_ns[rows] - calls.start_ns[rows])
    charged = charges(calls, matched.match, split).tolist()
    offsets = matched.clocks.offset_ns.tolist()
    columns = zip(matched.each, offsets, *sums.tolist(), charged, matched.parts, strict=True)
    return tuple(
        RankWaiting(
            rank=rank.rank.rank,
            trace=rank.rank.trace,
            clock_offset_ns=offset,
            calls=count,
            matched=matched,
            transferring_ns=transferring,
            waiting_ns=waiting,
            charged_ns=charge,
            steps=steps,
        )
        for rank, offset, count, matched, transferring, waiting, charge, steps in columns
    )


def _collectives(
    calls: RankCalls, match: Int64, split: Split, tables: Sequence[CollectiveCalls]
) -> tuple[MatchedCollective, ...]:
    """Return the matched calls by collective, data type and group size, longest first."""
    dtypes = [text for table in tables for text in table.dtype.decoded()]
    sizes = np.concatenate([message_sizes(table) for table in tables])
    groups: dict[tuple[str, str | None, int | None], list[int]] = {}
    for row in np.flatnonzero(match >= 0).tolist():
        members = int(calls.group_size[row])
        key = calls.collective.at(row) or "", dtypes[row], members if members > 0 else None
        groups.setdefault(key, []).append(row)
    made = []
    for (name, dtype, size), indices in groups.items():
        rows = np.array(indices, dtype=np.int64)
        message = sizes[rows]
        duration, transferring = calls.end_ns[rows] - calls.start_ns[rows], calls.end_ns[rows] - split.begun_ns[rows]
        sized = message >= 0
        factor = bus_factor(name, size or calls.ranks)
        made.append(
            MatchedCollective(
                collective=name,
                dtype=dtype,
                group_size=size,
                collectives=len(unique(match[rows]).values),
                calls=len(rows),
                duration_ns=int(duration.sum()),
                transferring_ns=int(transferring.sum()),
                waiting_ns=int((duration - transferring).sum()),
                bytes=int(message[sized].sum()) if sized.any() else None,
                bus_bytes_per_second=_rate(message, duration, sized, factor),
                transfer_bus_bytes_per_second=_rate(message, transferring, sized, factor),
            )
        )
    return tuple(sorted(made, key=lambda row: (-row.duration_ns, row.collective, row.dtype or "", row.group_size or 0)))


def _rate(message: Int64, spent_ns: Int64, sized: Bool, factor: float | None) -> float | None:
    """Return the bytes a second that the messages put on the links; `None` if unknown."""
    whole = int(spent_ns[sized].sum())
    return factor * int(message[sized].sum()) * 1e9 / whole if factor and whole else None
