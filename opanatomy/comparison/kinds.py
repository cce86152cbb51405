"""Which steps of one side are to be compared with which of the other."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from opanatomy.comparison.matching import name_of
from opanatomy.records.breakdown import Breakdown, StepKind


def paired(before: Breakdown, after: Breakdown) -> list[tuple[StepKind, StepKind]]:
    """The kinds of steps of both sides that are most alike, those of which there are most first."""
    calls = [[calls_of(side, kind) for kind in side.kinds] for side in (before, after)]
    likeness = {
        (first, second): _alike(calls[0][first], calls[1][second])
        for first in range(len(before.kinds)) for second in range(len(after.kinds))
    }  # fmt: skip

    def order(places: tuple[int, int]) -> tuple[Fraction, int, int, bool]:
        first, second = before.kinds[places[0]], after.kinds[places[1]]
        counts = first.count, second.count
        return likeness[places], min(counts), sum(counts), first.numbers == second.numbers

    pairs: dict[int, int] = {}
    for first, second in sorted(likeness, key=order, reverse=True):
        if first not in pairs and second not in pairs.values():
            pairs[first] = second
    kinds = [(before.kinds[first], after.kinds[second]) for first, second in pairs.items()]
    return sorted(kinds, key=lambda pair: (-min(kind.count for kind in pair), -sum(kind.wall_ns for kind in pair)))


def calls_of(breakdown: Breakdown, kind: StepKind) -> dict[str, Fraction]:
    """How often the mean step calls what, by kernel where there are any, else by operator."""
    calls: dict[str, Fraction] = {}
    for row in kind.rows:
        name = name_of(breakdown.kernels, row.kernel) or name_of(breakdown.operators, row.operator)
        calls[name] = calls.get(name, Fraction(0)) + Fraction(row.events or row.calls, kind.count)
    return calls


def _alike(first: Mapping[str, Fraction], second: Mapping[str, Fraction]) -> Fraction:
    """The part of all calls that both have."""
    none = Fraction(0)
    counts = [(first.get(name, none), second.get(name, none)) for name in {**first, **second}]
    either = sum((max(pair) for pair in counts), none)
    return sum((min(pair) for pair in counts), none) / either if either else Fraction(1)
