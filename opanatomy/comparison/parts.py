"""The difference of two mean steps as parts in whole nanoseconds: matched work, overlaps, idle time by cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Final, TypeAlias

from msgspec import Struct

from opanatomy.comparison.matching import Item, Key, Match, items_of, matched, unsigned_operators
from opanatomy.records.anatomy import OperatorRow
from opanatomy.records.breakdown import Breakdown, StepKind
from opanatomy.records.compared import Cause, Decomposition, Part, Work
from opanatomy.records.taxonomy import CLASSES, OperatorClass

#: FLOPs and bytes of one call, by operator and signature.
Costs: TypeAlias = "dict[tuple[str, str], tuple[float | None, float | None]]"
_IDLE: Final = {
    Cause.HOST_IDLE: "host_idle_ns", Cause.STREAM_IDLE: "stream_idle_ns", Cause.OTHER_IDLE: "other_idle_ns",
    Cause.OUTSIDE: "outside_ns", Cause.UNRECORDED: "unrecorded_ns", Cause.FRAMEWORK: "framework_ns",
}  # fmt: skip


class Stepped(Struct, frozen=True, kw_only=True):
    """The steps of one side that are compared, with the names in them and the costs of its operators."""

    breakdown: Breakdown
    kind: StepKind
    costs: Costs
    #: What the profiler adds to a step, where that is known.
    profiler_ns: int | None = None


class _Term(Struct, frozen=True, kw_only=True):
    """A part before it is in whole nanoseconds."""

    cause: Cause
    before_ns: Fraction
    after_ns: Fraction
    match: Match | None = None
    pair: tuple[str, str] | None = None


def costs_of(rows: Sequence[OperatorRow]) -> Costs:
    """What one call of each operator costs with each of its signatures, where that is known."""
    sums: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row.flops is None or row.read_bytes is None or row.written_bytes is None or row.part_of is not None:
            continue
        known = sums.setdefault((row.operator, str(row.signature)), [0.0, 0.0, 0.0])
        for place, value in enumerate((row.calls, row.flops, row.read_bytes + row.written_bytes)):
            known[place] += value
    return {key: (flops / calls, moved / calls) for key, (calls, flops, moved) in sums.items() if calls}


def decomposed(before: Stepped, after: Stepped) -> Decomposition:
    """The parts of both mean steps. With the sides exchanged they are the same, exchanged; they sum to each side."""
    terms = [*_work(before, after), *_overlaps(before, after), *_idle(before, after)]
    terms = sorted(_without_profiler(terms, before.profiler_ns, after.profiler_ns), key=_order)
    first = apportioned([term.before_ns for term in terms])
    second = apportioned([term.after_ns for term in terms])
    parts = [
        _part(term, before_ns, after_ns, before, after)
        for term, before_ns, after_ns in zip(terms, first, second, strict=True)
    ]
    for side, spent in ((before, "before_ns"), (after, "after_ns")):
        check_parts(parts, spent, side)
    return Decomposition(
        before_ns=sum(first), after_ns=sum(second), before_count=before.kind.count, after_count=after.kind.count,
        before_steps=before.kind.counted, after_steps=after.kind.counted,
        parts=tuple(sorted(parts, key=lambda part: -abs(part.change_ns))),
    )  # fmt: skip


def check_parts(parts: Sequence[Part], spent: str, side: Stepped) -> None:
    """Raise `AssertionError` unless the parts of each class are its work on that side, and all of them its step.

    The rows that are summed here know nothing of what was matched with what. Each part is off by less than 1 ns.
    """
    work: dict[OperatorClass | None, int] = {}
    for row in side.kind.rows:
        work[row.operator_class] = work.get(row.operator_class, 0) + row.time_ns
    sums = dict.fromkeys((*work, None), 0)
    for part in parts:
        sums[part.operator_class] = sums.get(part.operator_class, 0) + getattr(part, spent)
    work[None] = side.kind.wall_ns - sum(work.values())
    for name, time in sums.items():
        mean = work.get(name, 0) / side.kind.count
        if abs(time - mean) > len(parts):
            raise AssertionError(f"the parts of {name or 'no class'} are {time} ns, its work {mean:.0f} ns")


def apportioned(values: Sequence[Fraction]) -> list[int]:
    """Whole numbers next to these whose sum is theirs, rounded: those nearest to the next are rounded up."""
    floors = [value.__floor__() for value in values]
    left = (sum(values, Fraction(0)) + Fraction(1, 2)).__floor__() - sum(floors)
    nearest = sorted(range(len(values)), key=lambda place: floors[place] - values[place])
    for place in nearest[:left]:
        floors[place] += 1
    return floors


def _work(before: Stepped, after: Stepped) -> list[_Term]:
    unsigned = unsigned_operators((before.breakdown, before.kind), (after.breakdown, after.kind))
    first, second = (items_of(side.breakdown, side.kind, unsigned) for side in (before, after))
    return [
        _Term(cause=match.cause, match=match, before_ns=_time(match.before), after_ns=_time(match.after))
        for match in matched(first, second)
    ]


def _time(items: Mapping[Key, Item]) -> Fraction:
    return sum((item.time_ns for item in items.values()), Fraction(0))


def _overlaps(before: Stepped, after: Stepped) -> list[_Term]:
    """What ran at once: the sum of all work counts it more than once."""
    first, second = (
        {(overlap.first, overlap.second): -Fraction(overlap.time_ns, side.kind.count) for overlap in side.kind.overlaps}
        for side in (before, after)
    )
    none = Fraction(0)
    return [
        _Term(cause=Cause.OVERLAP, pair=pair, before_ns=first.get(pair, none), after_ns=second.get(pair, none))
        for pair in {**first, **second}
    ]


def _idle(before: Stepped, after: Stepped) -> list[_Term]:
    terms = []
    for cause, name in _IDLE.items():
        first, second = (Fraction(getattr(side.kind, name), side.kind.count) for side in (before, after))
        if first or second:
            terms.append(_Term(cause=cause, before_ns=first, after_ns=second))
    return terms


def _without_profiler(terms: Sequence[_Term], before_ns: int | None, after_ns: int | None) -> list[_Term]:
    """The framework's time in two: what the profiler adds is no part of the step without it."""
    made = []
    for term in terms:
        if term.cause is not Cause.FRAMEWORK or before_ns is None or after_ns is None:
            made.append(term)
            continue
        added = min(Fraction(before_ns), term.before_ns), min(Fraction(after_ns), term.after_ns)
        made += [
            _Term(cause=Cause.FRAMEWORK, before_ns=term.before_ns - added[0], after_ns=term.after_ns - added[1]),
            _Term(cause=Cause.PROFILER, before_ns=added[0], after_ns=added[1]),
        ]
    return made


def _order(term: _Term) -> tuple[str, ...]:
    """An order that is the same with the sides exchanged."""
    keys = [*term.match.before, *term.match.after] if term.match else []
    return (str(term.pair), *sorted(map(str, keys)), "" if term.cause.is_work else term.cause.value)


def _part(term: _Term, before_ns: int, after_ns: int, before: Stepped, after: Stepped) -> Part:
    if term.match is None:
        return Part(cause=term.cause, before_ns=before_ns, after_ns=after_ns, pair=term.pair)
    classes = {key.operator_class for key in (*term.match.before, *term.match.after)}
    return Part(
        cause=term.cause, before_ns=before_ns, after_ns=after_ns,
        operator_class=min(classes, key=CLASSES.index),
        before=_described(term.match.before, before.costs), after=_described(term.match.after, after.costs),
    )  # fmt: skip


def _described(items: Mapping[Key, Item], costs: Costs) -> Work | None:
    if not items:
        return None
    calls = sum((item.calls for item in items.values()), Fraction(0))
    kernels: dict[str, Fraction] = {}
    for item in items.values():
        for name, time in item.kernels.items():
            kernels[name] = kernels.get(name, Fraction(0)) + time
    known = [(costs.get((key.operator, key.signature)), item.calls) for key, item in items.items()]

    def mean(place: int) -> float | None:
        values = [(cost[place], count) for cost, count in known if cost is not None]
        if len(values) < len(known) or not calls:
            return None
        return sum((value or 0) * float(count) for value, count in values) / float(calls)

    return Work(
        operators=_names(key.operator for key in items), signatures=_names(key.signature for key in items),
        modules=_names(key.module for key in items), phases=_names(key.phase for key in items),
        kernels=tuple(sorted(kernels, key=lambda name: (-kernels[name], name))), calls=float(calls),
        flops=mean(0), bytes=mean(1),
    )  # fmt: skip


def _names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names if name))
