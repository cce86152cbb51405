"""What can be claimed of a difference: ranges of samples, the interval of a median, a test without a distribution.

The conventions are those of Go's benchstat: medians with an order-statistics interval of 95 %, the Mann-Whitney U test
at 5 %, exact for small samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise
from math import comb, sqrt
from statistics import NormalDist, median
from typing import Final

from opanatomy.records.compared import Spread

#: With fewer runs a side nothing is called significant.
RUNS_NEEDED: Final = 4
CONFIDENCE: Final = 0.95
#: Up to this many ways to divide the samples the test counts them all.
_COUNTED: Final = 200_000


def spread_of(values: Sequence[float]) -> Spread:
    """The median and the range of samples, with the interval of the median where there are enough for one."""
    return Spread(
        median=float(median(values)), low=float(min(values)), high=float(max(values)), count=len(values),
        interval=interval_of_median(values),
    )  # fmt: skip


def interval_of_median(values: Sequence[float]) -> tuple[float, float] | None:
    """The samples between which the median of all lies with 95 % confidence; `None` of fewer than six.

    The k-th smallest and the k-th largest of n hold it with 1 - 2 P(Binomial(n, 1/2) < k).
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
    """Whether the ranges of the samples are "apart" or "overlapping"."""
    return "overlapping" if first.low <= second.high and second.low <= first.high else "apart"


def mann_whitney(first: Sequence[float], second: Sequence[float]) -> float:
    """The two-sided p of the U test, twice that of the smaller tail; exact, ties included, unless samples are many."""
    both = [*first, *second]
    ranks = _ranks(both)
    size, count = len(first), len(both)
    observed, middle = sum(ranks[:size]), size * (count + 1) / 2
    if comb(count, size) <= _COUNTED:
        sums = [sum(chosen) for chosen in combinations(ranks, size)]
        tails = sum(each <= observed for each in sums), sum(each >= observed for each in sums)
        return min(1.0, 2 * min(tails) / len(sums))
    ties = sum(times**3 - times for times in (both.count(value) for value in set(both)))
    variance = size * (count - size) / 12 * (count + 1 - ties / (count * (count - 1)))
    if not variance:
        return 1.0
    z = max(abs(observed - middle) - 0.5, 0) / sqrt(variance)
    return 2 * (1 - NormalDist().cdf(z))


def _ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value from 1; of equal ones the mean of theirs."""
    ordered = sorted(values)
    first = {value: place for place, value in reversed(list(enumerate(ordered, 1)))}
    return [first[value] + (ordered.count(value) - 1) / 2 for value in values]


def interleaved(before: Sequence[int | None], after: Sequence[int | None]) -> bool:
    """Whether the runs of two sides took turns: the side changes at least as often as the smaller side has runs."""
    if None in (*before, *after):
        return False
    began = [(when, side) for side, runs in enumerate((before, after)) for when in runs if when is not None]
    changes = sum(first[1] != second[1] for first, second in pairwise(sorted(began)))
    return changes >= min(len(before), len(after))
