"""Which steps of one side are to be compared with which of the other."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

from opanatomy.records.breakdown import Breakdown, StepKind


def paired(before: Breakdown, after: Breakdown) -> list[tuple[StepKind, StepKind]]:
    """The kinds of steps of both sides that are most alike, those of which there are most first."""
    left, right = list(before.kinds), list(after.kinds)
    pairs = []
    while left and right:
        pair = max(
            ((first, second) for first in left for second in right),
            key=lambda pair: (
                _alike(_calls(before, pair[0]), _calls(after, pair[1])), min(pair[0].count, pair[1].count),
                pair[0].count + pair[1].count, pair[0].numbers == pair[1].numbers,
            ),
        )  # fmt: skip
        pairs.append(pair)
        left.remove(pair[0])
        right.remove(pair[1])
    return sorted(pairs, key=lambda pair: (-min(kind.count for kind in pair), -sum(kind.wall_ns for kind in pair)))


def _calls(breakdown: Breakdown, kind: StepKind) -> Counter[str]:
    """How often a step calls what, by kernel where there are any, else by operator; over all its steps."""
    calls: Counter[str] = Counter()
    for row in kind.rows:
        name = breakdown.kernels[row.kernel] if row.kernel >= 0 else breakdown.operators[row.operator]
        calls[name] += Fraction(row.events or row.calls, max(kind.count, 1))  # type: ignore[assignment]
    return calls


def _alike(first: Counter[str], second: Counter[str]) -> Fraction:
    """The part of all calls that both have."""
    both, either = (first & second).values(), (first | second).values()
    return Fraction(sum(both)) / Fraction(sum(either) or 1)
