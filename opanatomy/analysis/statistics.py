"""Statistics of differences: sample ranges, the interval of a median, a distribution-free test.

The conventions are those of Go's benchstat: medians with an order-statistics interval of 95 %, the Mann-Whitney U test
at 1 %, exact for small samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import comb, sqrt
from statistics import NormalDist, median
from typing import Final

from opanatomy.records.comparison import SIGNIFICANT, Spread


def runs_needed(control: int = 1) -> int:
    """Return the smallest n at which complete separation is significant; the other side has `control` * n runs.

    If n and m runs do not differ, 2 of all their orderings are completely separated.
    """
    runs = 1
    while 2 / comb(runs * (1 + control), runs) >= SIGNIFICANT:
        runs += 1
    return runs


#: With fewer runs a side nothing is called significant.
RUNS_NEEDED: Final = runs_needed()
CONFIDENCE: Final = 0.95
#: The test counts all ways to divide the samples up to this many.
_MAX_DIVISIONS: Final = 200_000


def spread_of(values: Sequence[float]) -> Spread:
    """Return the median and the range of samples, with the interval of the median if there are enough for one."""
    return Spread(
        median=float(median(values)),
        low=float(min(values)),
        high=float(max(values)),
        count=len(values),
        interval=interval_of_median(values),
    )


def interval_of_median(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the samples between which the median of all lies with 95 % confidence; `None` for fewer than six.

    The k-th smallest and the k-th largest of n enclose it with probability 1 - 2 P(Binomial(n, 1/2) < k).
    """
    ordered, best = sorted(values), None
    count = len(ordered)
    for k in range(1, count // 2 + 1):
        outside = 2 * sum(comb(count, below) for below in range(k)) / 2**count
        if 1 - outside < CONFIDENCE:
            break
        best = (float(ordered[k - 1]), float(ordered[count - k]))
    return best


def ranges_of(first: Spread, second: Spread) -> str:
    """Return whether the ranges of the samples are "apart" or "overlapping"."""
    return "overlapping" if first.low <= second.high and second.low <= first.high else "apart"


def mann_whitney(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the two-sided p of the U test, twice the smaller tail; exact, ties included, unless samples are many."""
    both = [*first, *second]
    ordered = sorted(both)
    first_rank = {value: index for index, value in reversed(list(enumerate(ordered, 1)))}
    # From 1; equal values have the mean of theirs.
    ranks = [first_rank[value] + (ordered.count(value) - 1) / 2 for value in both]
    size, count = len(first), len(both)
    observed, middle = sum(ranks[:size]), size * (count + 1) / 2
    if comb(count, size) <= _MAX_DIVISIONS:
        sums = [sum(chosen) for chosen in combinations(ranks, size)]
        tails = sum(each <= observed for each in sums), sum(each >= observed for each in sums)
        return min(1.0, 2 * min(tails) / len(sums))
    ties = sum(times**3 - times for times in (both.count(value) for value in set(both)))
    variance = size * (count - size) / 12 * (count + 1 - ties / (count * (count - 1)))
    if not variance:
        return 1.0
    z = max(abs(observed - middle) - 0.5, 0) / sqrt(variance)
    return 2 * (1 - NormalDist().cdf(z))


def interleaved(before: Sequence[int | None], after: Sequence[int | None]) -> bool:
    """Return whether the runs of two sides took turns in time, so that no drift of the machine passes the test.

    If a of n runs and b of m have begun at any moment, the shares |a/n - b/m| differ by less than 1/n + 1/m: no side is
    ever ahead by a run of each. With equal sides that is one run at most: ABAB and ABBA take turns, AABB does not, nor
    do turns after which one side goes on alone.

    Why that is enough: a drift f over the places of the runs in time moves the difference of the two means by the sum
    of (a/n - b/m) (f(next) - f(this)), thus by less than (1/n + 1/m) times all that f rises and falls, whatever its
    shape. Of a drift that only rises or only falls the U test sees only the places: of n runs a side in turns their
    means are at most half a turn (one place) apart, U is at most n/2 off its middle, and its deviation is
    sqrt(n n (2 n + 1) / 12), so |z| < 1.3 / sqrt(n) without any noise.
    """
    if None in (*before, *after):
        return False
    began = [(when, side) for side, runs in enumerate((before, after)) for when in runs if when is not None]
    lead, sizes = 0, (len(before), len(after))
    for _, side in sorted(began):
        lead += -sizes[0] if side else sizes[1]
        if abs(lead) >= sum(sizes):
            return False
    return True
