"""Whether two runs of one experiment rank its techniques the same where their difference exceeds the noise.

    python benchmarks/ranking.py FIRST.json SECOND.json

Reads two JSON reports of `opanatomy techniques`. Two techniques differ in a run where the ranges of their repetitions
do not overlap; the pairs that differ in both runs are to be in the same order. Those whose order changes are printed,
and those that differ in one run alone are counted.
"""

from __future__ import annotations

import sys
from itertools import combinations
from pathlib import Path

import msgspec

from opanatomy.records.comparison import within_noise
from opanatomy.records.experiment import StepFigures, Techniques


def main(first: Path, second: Path) -> int:
    runs = [_measured(path) for path in (first, second)]
    names = sorted(runs[0].keys() & runs[1].keys())
    orders = [[_order(run[one], run[other]) for run in runs] for one, other in combinations(names, 2)]
    both = [(pair, order) for pair, order in zip(combinations(names, 2), orders, strict=True) if all(order)]
    changed = [pair for pair, order in both if order[0] != order[1]]
    for one, other in changed:
        print(f"{one} and {other} change places")
    alone = sum(any(order) and not all(order) for order in orders)
    print(
        f"{len(names)} techniques, {len(orders)} pairs: {len(both)} differ in both runs, {len(both) - len(changed)} of"
        f" them in the same order; {alone} differ in one run alone"
    )
    return 1 if changed else 0


def _measured(path: Path) -> dict[str, StepFigures]:
    report = msgspec.json.decode(path.read_bytes(), type=Techniques)
    return {row.name: row.measured for row in report.rows if row.measured is not None and row.measured.step_ns}


def _order(one: StepFigures, other: StepFigures) -> int:
    """-1 where the first is quicker, 1 where the other is, 0 within the noise."""
    if within_noise(one, other) or one.step_ns is None or other.step_ns is None:
        return 0
    return -1 if one.step_ns < other.step_ns else 1


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:3])))
