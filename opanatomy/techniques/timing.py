"""How often and in which order the runs of an experiment are timed, and what their times come to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from math import comb, sqrt
from random import Random
from typing import Final

from msgspec.structs import replace

from opanatomy.records.techniques import StepFigures, TechniqueRow
from opanatomy.techniques.variants import Variant

#: The true median is in a range with at least this probability, where there are three repetitions or more.
_CONFIDENCE: Final = 0.75


def baseline_runs(techniques: int) -> int:
    """How often the baseline is timed for each time of a technique: all are compared with it, and of k comparisons with
    one control the variance is least where that has sqrt(k) times the runs (C. W. Dunnett, 1955)."""
    return max(round(sqrt(techniques)), 1)


def shuffled(variants: Sequence[Variant], seed: int, repetition: int, *, baselines: int = 1) -> list[Variant]:
    """The variants, the first of them the baseline, which is there that often, in the order of a repetition."""
    order = [*[variants[0]] * baselines, *variants[1:]]
    Random(f"{seed}/{repetition}").shuffle(order)
    return order


def median_range(values: Sequence[float]) -> tuple[float, float]:
    """Between which of the values, in their order, the median of all that could be is: the narrowest such range about
    the middle with a probability of 3/4 (how many lie below it is a binomial number); of three all of them."""
    ordered, count = sorted(values), len(values)
    outside = (1 - _CONFIDENCE) * 2**count
    ranks = [
        rank for rank in range(1, (count + 1) // 2 + 1)
        if 2 * sum(comb(count, below) for below in range(rank)) <= outside
    ]  # fmt: skip
    rank = max(ranks, default=1)
    return ordered[rank - 1], ordered[-rank]


def timed(row: TechniqueRow, repetitions: Sequence[Sequence[int]]) -> TechniqueRow:
    """The row with the median of the medians of its repetitions, and the range of that."""
    if row.measured is None or not repetitions:
        return row
    medians = [statistics.median(times) for times in repetitions]
    # One repetition does not tell how far they lie apart: its steps do.
    low, high = median_range(medians if len(medians) > 1 else repetitions[0])
    measured: StepFigures = replace(row.measured, step_ns=statistics.median(medians), low_ns=low, high_ns=high)
    return replace(row, repetitions_ns=tuple(medians), measured=measured)
