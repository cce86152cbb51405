"""Which calls of several ranks are one collective: by the group's own number, by order, by time."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct, field

from opanatomy.anatomy.waiting.table import PAIRWISE, RankCalls
from opanatomy.records.columns import Bool, Int64, distinct, rows_by_value

#: Shifts whose ends are spread up to this many times the least spread, and this many nanoseconds more, fit as well.
_AS_GOOD: Final = 1.5
_AS_GOOD_NS: Final = 1_000
#: Two clocks are one where there are shifts that would have them more than this many times further apart than others.
_ONE_CLOCK: Final = 4


def by_number_and_order(calls: RankCalls) -> Int64:
    """For each call the number of its collective, -1 where it is not known: by group and number, else by order."""
    match = _by_number(calls)
    left = calls.named & (match < 0) & ~calls.is_among(PAIRWISE)
    for _, rows in rows_by_value(np.where(left, calls.group.codes, -2)):
        rows = rows[left[rows]]
        if len(rows):
            match[rows] = _shifted_past(match, _by_order(calls, rows))
    return _of_several(calls, match)


def by_time(calls: RankCalls, match: Int64, offset_ns: Int64) -> Int64:
    """`match` with those that are left: of one collective, group and size, overlapping on the ranks' common clock.

    What the host says to be between two ranks is left out; a kernel of that name is that of any all-to-all as well.
    """
    match = match.copy()
    left = np.flatnonzero((match < 0) & ~(calls.named & calls.is_among(PAIRWISE)))
    kinds = distinct(calls.collective.codes[left] * (len(calls.group.values) + 1) + calls.group.codes[left] + 1)
    for place in range(len(kinds.values)):
        rows = left[kinds.inverse == place]
        match[rows] = _shifted_past(match, _overlapping(calls, rows, offset_ns))
    return _of_several(calls, match)


def _of_several(calls: RankCalls, match: Int64) -> Int64:
    """`match` without the numbers that a single rank has."""
    ranks = np.bincount(match[match >= 0], minlength=1)
    return np.where((match >= 0) & (ranks[match] > 1), match, -1)


def _shifted_past(match: Int64, numbers: Int64) -> Int64:
    """New numbers after those that are taken."""
    return np.where(numbers >= 0, numbers + int(match.max(initial=-1)) + 1, -1)


# ------------------------------------------------------------------------------------------------ by the group's number


def _by_number(calls: RankCalls) -> Int64:
    """By group and number: of several calls with one number on a rank the first is that of the first elsewhere."""
    match = np.full(len(calls.rank), -1, dtype=np.int64)
    rows = np.flatnonzero((calls.sequence >= 0) & (calls.group.codes >= 0) & ~calls.is_among(PAIRWISE))
    if not len(rows):
        return match
    place = _place_among_like(calls, rows)
    numbers = _dense(calls.group.codes[rows], calls.sequence[rows], place)
    agreed = _agree(numbers, calls.collective.codes[rows]) & _agree(numbers, calls.size[rows])
    match[rows] = np.where(agreed, numbers, -1)
    return match


def _place_among_like(calls: RankCalls, rows: Int64) -> Int64:
    """The how many-th call of its rank, group and number each is."""
    like = _dense(calls.rank[rows], calls.group.codes[rows], calls.sequence[rows])
    order = np.lexsort((calls.start_ns[rows], like))
    ordered = like[order]
    begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    place = np.empty(len(rows), dtype=np.int64)
    place[order] = np.arange(len(rows)) - np.repeat(begins, np.diff(np.append(begins, len(rows))))
    return place


def _dense(*columns: Int64) -> Int64:
    """A number for each distinct combination, from 0."""
    numbers = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values = distinct(column)
        numbers = distinct(numbers * len(values.values) + values.inverse).inverse
    return numbers


def _agree(numbers: Int64, values: Int64) -> Bool:
    """Whether all rows with the number of a row have its value; -1 agrees with all."""
    count = int(numbers.max(initial=-1)) + 1
    smallest, largest = np.full(count, np.iinfo(np.int64).max), np.full(count, -1, dtype=np.int64)
    known = values >= 0
    np.minimum.at(smallest, numbers[known], values[known])
    np.maximum.at(largest, numbers[known], values[known])
    agreed: Bool = (smallest >= largest)[numbers]
    return agreed


# ------------------------------------------------------------------------------------------------------------ by order


def _by_order(calls: RankCalls, rows: Int64) -> Int64:
    """For each of the rows of a group its place in the order of asking, -1 where its rank does not fit the others."""
    places = np.zeros(len(rows), dtype=np.int64)
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
            places[here], fits[here] = np.arange(len(here)) + shift, True
    return np.where(fits, places - places[fits].min(initial=0), -1)


class _Candidate(Struct, frozen=True, kw_only=True):
    """A shift at which all names agree, how many pairs it has, and how far apart their ends are."""

    shift: int
    pairs: int
    offset_ns: float
    spread_ns: float


def _shift(calls: RankCalls, first: Int64, second: Int64) -> int | None:
    """How many places further in `first` the calls of `second` are; `None` where no shift has all names agree.

    Of those that do, and pair at least half as many as can be: one for which the two clocks are as good as one, if
    other shifts are not; else the ends say which, which for the calls of one collective are as far apart as the clocks
    every time. Of those that are left that with the most pairs, then with the smallest offset.
    """
    possible = min(len(first), len(second))
    shifts = range(-(len(second) - (possible + 1) // 2), len(first) - (possible + 1) // 2 + 1)
    candidates = []
    for shift in sorted(shifts, key=abs):
        pairs = _paired(first, second, shift)
        if _same_calls(calls, *pairs):
            differences = calls.end_ns[pairs[1]] - calls.end_ns[pairs[0]]
            middle = float(np.median(differences))
            spread = float(np.median(np.abs(differences - middle)))
            candidates.append(_Candidate(shift=shift, pairs=len(differences), offset_ns=middle, spread_ns=spread))
            if shift == 0 and len(first) == len(second) and _is_close(calls, first, differences):
                break
    return _best(candidates).shift if candidates else None


def _best(candidates: list[_Candidate]) -> _Candidate:
    nearest = min(abs(candidate.offset_ns) for candidate in candidates)
    good = [candidate for candidate in candidates if abs(candidate.offset_ns) <= nearest * _ONE_CLOCK]
    if len(good) == len(candidates):
        smallest = min(candidate.spread_ns for candidate in candidates)
        good = [candidate for candidate in candidates if candidate.spread_ns <= smallest * _AS_GOOD + _AS_GOOD_NS]
    return min(good, key=lambda candidate: (-candidate.pairs, abs(candidate.offset_ns)))


def _paired(first: Int64, second: Int64, shift: int) -> tuple[Int64, Int64]:
    begin, end = max(shift, 0), min(len(first), len(second) + shift)
    return first[begin:end], second[begin - shift : end - shift]


def _same_calls(calls: RankCalls, first: Int64, second: Int64) -> bool:
    """Whether the calls agree, pair by pair, in their collective and in the size of even messages."""
    codes, sizes = calls.collective.codes, calls.size
    if not len(first) or not np.array_equal(codes[first], codes[second]):
        return False
    known = (sizes[first] >= 0) & (sizes[second] >= 0)
    return np.array_equal(sizes[first][known], sizes[second][known])


def _is_close(calls: RankCalls, first: Int64, differences: Int64) -> bool:
    """Whether the ends are closer than those of neighbours: no other shift can be meant."""
    between = np.diff(calls.end_ns[first])
    return bool(len(between) and np.abs(differences).max() * 2 < between.min())


# ------------------------------------------------------------------------------------------------------------- by time


class _Running(Struct, kw_only=True):
    """Calls of several ranks that all run until some moment."""

    number: int
    until_ns: int
    size: int
    ranks: set[int] = field(default_factory=set)

    def takes(self, rank: int, size: int) -> bool:
        """Whether a call of a rank can be one of them."""
        return rank not in self.ranks and (size == self.size or -1 in (size, self.size))


def _overlapping(calls: RankCalls, rows: Int64, offset_ns: Int64) -> Int64:
    """For each row the number of those that it overlaps with, one a rank: all of them run at some moment."""
    start = calls.start_ns[rows] - offset_ns[calls.rank[rows]]
    end = calls.end_ns[rows] - offset_ns[calls.rank[rows]]
    numbers = np.full(len(rows), -1, dtype=np.int64)
    running: list[_Running] = []
    for row in np.argsort(start, kind="stable").tolist():
        rank, size = int(calls.rank[rows[row]]), int(calls.size[rows[row]])
        running = [several for several in running if several.until_ns > start[row]]
        joined = next((several for several in running if several.takes(rank, size)), None)
        if joined is None:
            joined = _Running(number=int(numbers.max(initial=-1)) + 1, until_ns=int(end[row]), size=size)
            running.append(joined)
        numbers[row] = joined.number
        joined.ranks.add(rank)
        joined.until_ns, joined.size = min(joined.until_ns, int(end[row])), max(joined.size, size)
    return numbers
