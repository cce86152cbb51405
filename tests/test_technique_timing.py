"""How an experiment is timed: how often the baseline, in which order, and between what the median is."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from opanatomy.options import RunOptions
from opanatomy.predict.experiment import baseline_runs, median_range, shuffled, timed
from opanatomy.predict.techniques import Variant
from opanatomy.records.experiment import StepFigures, TechniqueRow


def variants(*names: str) -> list[Variant]:
    return [Variant(name=name, title=name, what="", options=RunOptions(model="m")) for name in names]


@pytest.mark.parametrize(("techniques", "runs"), [(0, 1), (1, 1), (2, 1), (4, 2), (9, 3), (17, 4)])
def test_the_baseline_is_timed_once_for_the_root_of_what_is_compared_with_it(techniques: int, runs: int) -> None:
    assert baseline_runs(techniques) == runs


def test_the_variance_of_the_comparisons_is_least_there() -> None:
    """Of k techniques with n runs each and a baseline with m: k comparisons of 1/n + 1/m, in all k n + m runs."""
    k, total = 16, 200
    best = min(range(1, total), key=lambda m: k / ((total - m) / k) + k / m)
    assert best / ((total - best) / k) == pytest.approx(baseline_runs(k), rel=0.05)


def test_an_order_has_each_once_and_the_baseline_so_often() -> None:
    names = [each.name for each in shuffled(variants("baseline", "a", "b"), 7, 1, baselines=3)]
    assert Counter(names) == {"baseline": 3, "a": 1, "b": 1}
    orders = {tuple(each.name for each in shuffled(variants(*"abcdef"), 7, number)) for number in range(5)}
    assert len(orders) == 5
    again = [each.name for each in shuffled(variants("baseline", "a", "b"), 7, 1, baselines=3)]
    assert again == names


@pytest.mark.parametrize("count", [3, 4, 6, 12])
def test_the_true_median_is_in_the_range_as_often_as_is_said(count: int) -> None:
    """Drawn from a distribution whose median is 0.5: three of four times, and less often than any wider range."""
    random = Random(count)
    inside = 0
    for _ in range(4000):
        low, high = median_range([random.random() for _ in range(count)])
        inside += low <= 0.5 <= high
    assert 0.73 < inside / 4000 < 0.9


def test_one_repetition_has_the_range_of_its_steps() -> None:
    row = TechniqueRow(name="a", title="a", option="", keeps_result=True, measured=StepFigures())
    once = timed(row, [(30, 10, 20)]).measured
    assert once is not None
    assert (once.step_ns, once.low_ns, once.high_ns) == (20, 10, 30)
    often = timed(row, [(30, 10, 20), (40, 40, 40), (1, 2, 3)])
    assert often.repetitions_ns == (20, 40, 2)
    assert often.measured is not None
    assert (often.measured.step_ns, often.measured.low_ns, often.measured.high_ns) == (20, 2, 40)
    assert timed(row, []).measured == StepFigures()
