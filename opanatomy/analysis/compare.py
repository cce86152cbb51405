"""Compare sides: their figures, what causes the difference between two of them, and what is significant."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from fractions import Fraction
from itertools import combinations
from statistics import fmean, median
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from opanatomy.analysis.statistics import RUNS_NEEDED, interleaved, mann_whitney, ranges_of, spread_of
from opanatomy.analysis.work import WorkSums
from opanatomy.errors import UsageError
from opanatomy.records.anatomy import Anatomy, Metric
from opanatomy.records.comparison import (
    Cause,
    Comparison,
    Decomposition,
    FigureRow,
    Kinds,
    MemoryChange,
    Part,
    Sample,
    Side,
    Work,
)
from opanatomy.records.memory import MemoryPart
from opanatomy.records.patterns import regex
from opanatomy.records.taxonomy import CLASSES, STEP_PHASES, OperatorClass, Phase
from opanatomy.records.work import Breakdown, LikeStep, OperatorRow, StepWork, breakdown_of

# ----- matching the work of two steps: first the same, then moved or changed, then new or gone
#
# Work is matched in a cascade of ever fewer names in common. Each level matches as many calls as both sides have left,
# longest first; if only a part of a row is matched, the time goes with the calls. So the parts are the same, with the
# sides exchanged, whichever side comes first.


_TRITON: Final = regex(r"^(triton_\w*?)_\d+$")


class Key(NamedTuple):
    """Names that identify work; `kernel` is empty if a library chooses it, as for contractions of aten."""

    operator: str
    signature: str
    module: str
    phase: str
    operator_class: OperatorClass
    kernel: str


class Item(Struct):
    """Work of one key in one side's mean step: calls, nanoseconds, and the kernels involved."""

    calls: Fraction = Fraction(0)
    time_ns: Fraction = Fraction(0)
    kernels: dict[str, Fraction] = field(default_factory=dict)


class Match(Struct, frozen=True):
    """Matched work of both sides, or unmatched work of one, as portions of their keys."""

    cause: Cause
    before: dict[Key, Item]
    after: dict[Key, Item]


def items_of(breakdown: Breakdown, kind: StepWork, unsigned: AbstractSet[str] = frozenset()) -> dict[Key, Item]:
    """Return a step kind's mean work by key; operators in `unsigned` get no signature."""
    items: dict[Key, Item] = {}
    for row in kind.rows:
        kernel = name_of(breakdown.kernels, row.kernel)
        operator = name_of(breakdown.operators, row.operator)
        chosen = operator.startswith("aten::") and row.operator_class is OperatorClass.TENSOR_CONTRACTION
        by_call = chosen or not row.events
        signature = "" if operator in unsigned else str(name_of(breakdown.signatures, row.signature))
        key = Key(
            operator,
            signature,
            name_of(breakdown.modules, row.module),
            row.phase.value,
            row.operator_class,
            "" if chosen else _stem(kernel),
        )
        item = items.setdefault(key, Item())
        item.calls += Fraction(row.calls if by_call else row.events, kind.count)
        item.time_ns += Fraction(row.time_ns, kind.count)
        if kernel:
            item.kernels[kernel] = item.kernels.get(kernel, Fraction(0)) + Fraction(row.time_ns, kind.count)
    return items


def unsigned_operators(*sides: tuple[Breakdown, StepWork]) -> frozenset[str]:
    """Return operators without signatures on some side, whose signatures on other sides would match nothing."""
    known: list[dict[str, bool]] = []
    for breakdown, kind in sides:
        signed: dict[str, bool] = {}
        for row in kind.rows:
            operator = name_of(breakdown.operators, row.operator)
            signed[operator] = signed.get(operator, False) or bool(name_of(breakdown.signatures, row.signature))
        known.append(signed)
    everywhere = set(known[0]).intersection(*known[1:])
    return frozenset(operator for operator in everywhere if len({side[operator] for side in known}) > 1)


def name_of(names: Sequence[str], number: int) -> str:
    """Return the name with this number; empty for -1."""
    return names[number] if number >= 0 else ""


def _stem(kernel: str) -> str:
    """Return a name of a kernel or its operator without the compiler's running number.

    The signature still distinguishes them.
    """
    match = _TRITON.match(kernel)
    return match[1] if match else kernel


def _signed(key: Key) -> bool:
    """Return whether the arguments are known."""
    return bool(key.operator and key.signature)


def _placed(key: Key) -> bool:
    """Return whether an operator's arguments or module are known: a name alone covers much unlike work."""
    return bool(key.operator and (key.signature or key.module))


#: Keys on which work must agree to match, from most to least specific, and the cause assigned to the difference.
_LEVELS: Final[tuple[tuple[Cause, Callable[[Key], Any]], ...]] = (
    (Cause.SAME_CALLS, lambda key: key),
    (Cause.SAME_CALLS, lambda key: (key.operator, key.signature, key.phase, key.kernel)),
    (Cause.SAME_CALLS, lambda key: (_stem(key.operator), key.signature, key.phase, key.kernel)),
    (Cause.MOVED, lambda key: (key.operator, key.signature, key.kernel)),
    (Cause.ANOTHER_OPERATOR, lambda key: key.kernel and (key.kernel, key.signature, key.phase)),
    (Cause.ANOTHER_KERNEL, lambda key: _placed(key) and (key.operator, key.signature, key.module, key.phase)),
    (Cause.ANOTHER_KERNEL, lambda key: _signed(key) and (key.operator, key.signature, key.phase)),
    (Cause.ANOTHER_SIGNATURE, lambda key: _signed(key) and (key.operator, key.module, key.phase, key.kernel)),
    (Cause.ANOTHER_SIGNATURE, lambda key: _signed(key) and (key.operator, key.module, key.phase)),
    (Cause.ANOTHER_SIGNATURE, lambda key: _signed(key) and (key.operator, key.phase)),
)


def matched(before: Mapping[Key, Item], after: Mapping[Key, Item]) -> list[Match]:
    """Match all work of both sides, each portion once, independently of the order of the sides."""
    left = dict(before), dict(after)
    matches: list[Match] = []
    for cause, common in _LEVELS:
        groups: dict[Any, tuple[list[Key], list[Key]]] = {}
        for side, items in enumerate(left):
            for key in items:
                if shared := common(key):
                    # Work of unlike classes is never the same: each side would be counted in one of them.
                    shared = key.operator_class, shared
                    groups.setdefault(shared, ([], []))[side].append(key)
        for shared in sorted(groups, key=repr):
            first, second = groups[shared]
            if first and second:
                calls = min(sum(left[0][key].calls for key in first), sum(left[1][key].calls for key in second))
                taken = _taken(left[0], first, Fraction(calls)), _taken(left[1], second, Fraction(calls))
                matches.append(Match(cause, *taken))
    return [*_with_leftovers(matches, *left)]


def _taken(items: dict[Key, Item], keys: Sequence[Key], calls: Fraction) -> dict[Key, Item]:
    """Take that many calls of these keys, longest first, with their time; keys without calls go whole."""
    taken = {}
    per_call = {key: items[key].time_ns / items[key].calls if items[key].calls else Fraction(0) for key in keys}
    for key in sorted(keys, key=lambda key: (-per_call[key], key)):
        item = items[key]
        part = min(calls / item.calls, Fraction(1)) if item.calls else Fraction(1)
        if not part:
            continue
        taken[key] = _scaled(item, part)
        calls -= item.calls * part
        if part == 1:
            del items[key]
        else:
            items[key] = _scaled(item, 1 - part)
    return taken


def _scaled(item: Item, part: Fraction) -> Item:
    kernels = {name: time * part for name, time in item.kernels.items()}
    return Item(item.calls * part, item.time_ns * part, kernels)


def _with_leftovers(matches: list[Match], before: dict[Key, Item], after: dict[Key, Item]) -> Iterable[Match]:
    """Yield the matches; what is left of a key on both sides is more or fewer calls of it, the rest new or gone."""
    for match in matches:
        same = (
            next(iter(match.before)) if match.before.keys() == match.after.keys() and len(match.before) == 1 else None
        )
        if match.cause is Cause.SAME_CALLS and same is not None and (same in before or same in after):
            cause = Cause.FEWER_CALLS if same in before else Cause.MORE_CALLS
            sides = []
            for items, left in ((match.before, before), (match.after, after)):
                item, more = items[same], left.pop(same, Item())
                kernels = dict(item.kernels)
                for name, time in more.kernels.items():
                    kernels[name] = kernels.get(name, Fraction(0)) + time
                sides.append({same: Item(item.calls + more.calls, item.time_ns + more.time_ns, kernels)})
            yield Match(cause, *sides)
        else:
            yield match
    made_before = {_anywhere(key) for match in matches for key in match.before}
    made_after = {_anywhere(key) for match in matches for key in match.after}
    for key in sorted(before):
        yield Match(Cause.FEWER_CALLS if _anywhere(key) in made_after else Cause.GONE, {key: before[key]}, {})
    for key in sorted(after):
        yield Match(Cause.MORE_CALLS if _anywhere(key) in made_before else Cause.NEW, {}, {key: after[key]})


def _anywhere(key: Key) -> tuple[str, str, str]:
    """Return the identity of a call regardless of where it is made."""
    return key.operator, key.signature, key.kernel


# ----- pairing the steps of both sides


def paired(before: Breakdown, after: Breakdown) -> list[tuple[StepWork, StepWork]]:
    """Pair the most similar kinds of steps of both sides, most frequent first."""
    calls = [[calls_of(side, kind) for kind in side.kinds] for side in (before, after)]
    # The part of all calls that both have.
    likeness: dict[tuple[int, int], Fraction] = {}
    none = Fraction(0)
    for first, own in enumerate(calls[0]):
        for second, other in enumerate(calls[1]):
            counts = [(own.get(name, none), other.get(name, none)) for name in {**own, **other}]
            either = sum((max(pair) for pair in counts), none)
            both = sum((min(pair) for pair in counts), none)
            likeness[first, second] = both / either if either else Fraction(1)

    def order(indices: tuple[int, int]) -> tuple[Fraction, int, int, bool]:
        of_before, of_after = before.kinds[indices[0]], after.kinds[indices[1]]
        counts = of_before.count, of_after.count
        return likeness[indices], min(counts), sum(counts), of_before.numbers == of_after.numbers

    pairs: dict[int, int] = {}
    for first, second in sorted(likeness, key=order, reverse=True):
        if first not in pairs and second not in pairs.values():
            pairs[first] = second
    kinds = [(before.kinds[first], after.kinds[second]) for first, second in pairs.items()]
    return sorted(kinds, key=lambda pair: (-min(kind.count for kind in pair), -sum(kind.wall_ns for kind in pair)))


def calls_of(breakdown: Breakdown, kind: StepWork) -> dict[str, Fraction]:
    """Return the calls per mean step of each kernel, or operator where there is no kernel."""
    calls: dict[str, Fraction] = {}
    for row in kind.rows:
        name = name_of(breakdown.kernels, row.kernel) or name_of(breakdown.operators, row.operator)
        calls[name] = calls.get(name, Fraction(0)) + Fraction(row.events or row.calls, kind.count)
    return calls


# ----- the difference of two mean steps in whole nanoseconds: matched work, overlaps, idle time by cause


#: FLOPs and bytes of one call, by operator and signature.
Costs: TypeAlias = "dict[tuple[str, str], tuple[float | None, float | None]]"
_IDLE: Final = {
    Cause.HOST_IDLE: "host_idle_ns",
    Cause.STREAM_IDLE: "stream_idle_ns",
    Cause.OTHER_IDLE: "other_idle_ns",
    Cause.OUTSIDE: "outside_ns",
    Cause.UNRECORDED: "unrecorded_ns",
    Cause.FRAMEWORK: "framework_ns",
}


class Stepped(Struct, frozen=True, kw_only=True):
    """The compared steps of one side, with their interned names and the operators' costs."""

    breakdown: Breakdown
    kind: StepWork
    costs: Costs
    #: The profiler overhead per step, if known.
    profiler_ns: int | None = None


class _Term(Struct, frozen=True, kw_only=True):
    """A part before rounding to whole nanoseconds."""

    cause: Cause
    before_ns: Fraction
    after_ns: Fraction
    match: Match | None = None
    pair: tuple[str, str] | None = None


def costs_of(rows: Sequence[OperatorRow]) -> Costs:
    """Return the cost of one call by operator and signature, if known."""
    sums: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row.flops is None or row.read_bytes is None or row.written_bytes is None or row.part_of is not None:
            continue
        known = sums.setdefault((row.operator, str(row.signature)), [0.0, 0.0, 0.0])
        for index, value in enumerate((row.calls, row.flops, row.read_bytes + row.written_bytes)):
            known[index] += value
    return {key: (flops / calls, moved / calls) for key, (calls, flops, moved) in sums.items() if calls}


def decomposed(before: Stepped, after: Stepped) -> Decomposition:
    """Divide both mean steps into parts that sum to each side; exchanging the sides exchanges them."""
    unsigned = unsigned_operators((before.breakdown, before.kind), (after.breakdown, after.kind))
    items = [items_of(side.breakdown, side.kind, unsigned) for side in (before, after)]
    terms = [
        _Term(
            cause=match.cause,
            match=match,
            before_ns=sum((item.time_ns for item in match.before.values()), Fraction(0)),
            after_ns=sum((item.time_ns for item in match.after.values()), Fraction(0)),
        )
        for match in matched(*items)
    ]

    # Overlaps are negative time, as the sum of all work counts them more than once.
    overlaps = [
        {(overlap.first, overlap.second): -Fraction(overlap.time_ns, side.kind.count) for overlap in side.kind.overlaps}
        for side in (before, after)
    ]
    for pair in {**overlaps[0], **overlaps[1]}:
        first, second = (times.get(pair, Fraction(0)) for times in overlaps)
        terms.append(_Term(cause=Cause.OVERLAP, pair=pair, before_ns=first, after_ns=second))

    for cause, name in _IDLE.items():
        first, second = (Fraction(getattr(side.kind, name), side.kind.count) for side in (before, after))
        if not (first or second):
            continue
        if cause is Cause.FRAMEWORK and before.profiler_ns is not None and after.profiler_ns is not None:
            # What the profiler adds to the framework's time is no part of the step without it.
            added = min(Fraction(before.profiler_ns), first), min(Fraction(after.profiler_ns), second)
            terms.append(_Term(cause=Cause.PROFILER, before_ns=added[0], after_ns=added[1]))
            first, second = first - added[0], second - added[1]
        terms.append(_Term(cause=cause, before_ns=first, after_ns=second))

    terms.sort(key=_order)
    rounded = [apportioned([term.before_ns for term in terms]), apportioned([term.after_ns for term in terms])]
    parts = [
        _part(term, before_ns, after_ns, before, after)
        for term, before_ns, after_ns in zip(terms, *rounded, strict=True)
    ]
    for side, spent in ((before, "before_ns"), (after, "after_ns")):
        check_parts(parts, spent, side)
    return Decomposition(
        before_ns=sum(rounded[0]),
        after_ns=sum(rounded[1]),
        before_count=before.kind.count,
        after_count=after.kind.count,
        before_steps=before.kind.counted,
        after_steps=after.kind.counted,
        parts=tuple(sorted(parts, key=lambda part: -abs(part.change_ns))),
    )


def check_parts(parts: Sequence[Part], spent: str, side: Stepped) -> None:
    """Raise `AssertionError` unless each class's parts sum to its work on that side, and all parts to the step.

    The rows that are summed here know nothing of the matches. Each part is off by less than 1 ns.
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
    """Round values to integers whose sum is the rounded sum: the largest fractional parts are rounded up."""
    floors = [value.__floor__() for value in values]
    left = (sum(values, Fraction(0)) + Fraction(1, 2)).__floor__() - sum(floors)
    nearest = sorted(range(len(values)), key=lambda index: floors[index] - values[index])
    for index in nearest[:left]:
        floors[index] += 1
    return floors


def _order(term: _Term) -> tuple[str, ...]:
    """Return a sort key that is invariant under swapping the sides."""
    keys = [*term.match.before, *term.match.after] if term.match else []
    return (str(term.pair), *sorted(map(str, keys)), "" if term.cause.is_work else term.cause.value)


def _part(term: _Term, before_ns: int, after_ns: int, before: Stepped, after: Stepped) -> Part:
    if term.match is None:
        return Part(cause=term.cause, before_ns=before_ns, after_ns=after_ns, pair=term.pair)
    classes = {key.operator_class for key in (*term.match.before, *term.match.after)}
    return Part(
        cause=term.cause,
        before_ns=before_ns,
        after_ns=after_ns,
        operator_class=min(classes, key=CLASSES.index),
        before=_described(term.match.before, before.costs),
        after=_described(term.match.after, after.costs),
    )


def _described(items: Mapping[Key, Item], costs: Costs) -> Work | None:
    if not items:
        return None
    calls = sum((item.calls for item in items.values()), Fraction(0))
    kernels: dict[str, Fraction] = {}
    for item in items.values():
        for name, time in item.kernels.items():
            kernels[name] = kernels.get(name, Fraction(0)) + time
    known = [(costs.get((key.operator, key.signature)), item.calls) for key, item in items.items()]

    def mean(index: int) -> float | None:
        values = [(cost[index], count) for cost, count in known if cost is not None]
        if len(values) < len(known) or not calls:
            return None
        return sum((value or 0) * float(count) for value, count in values) / float(calls)

    return Work(
        operators=_names(key.operator for key in items),
        signatures=_names(key.signature for key in items),
        modules=_names(key.module for key in items),
        phases=_names(key.phase for key in items),
        kernels=tuple(sorted(kernels, key=lambda name: (-kernels[name], name))),
        calls=float(calls),
        flops=mean(0),
        bytes=mean(1),
    )


def _names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names if name))


# ----- sides and their runs


class RunInput(Struct, frozen=True, kw_only=True):
    """One run: its anatomy, its figures by name, and its name within its side."""

    anatomy: Anatomy
    metrics: Mapping[str, Metric]
    name: str


class SideInput(Struct, frozen=True, kw_only=True):
    """One side under the user's name for it; it has at least one run."""

    name: str
    runs: tuple[RunInput, ...]

    def called(self, run: RunInput) -> str:
        """Return a run's name for messages; a side's only run is called like the side."""
        return self.name if len(self.runs) == 1 else f"{run.name} of {self.name}"


# ----- whether runs are comparable: of the same work, independent, timed in one way


#: The identity of a run by its contents; equal for copies of a report, whatever their names.
Identity: TypeAlias = "tuple[str | Anatomy, int | None]"
#: Values to compare runs by: texts and counts are equal or not, floats vary.
Value: TypeAlias = str | int | float
#: FLOPs that vary by less are of the same program: texts of other lengths, tokens sent to other experts.
_SAME_FLOPS: Final = 0.01
#: The most runs that are named.
_MAX_NAMED_RUNS: Final = 3
#: A whole trace with this many times the calls of a step is no step of the same work.
_NO_STEP: Final = Fraction(3, 2)
#: If this part of all calls is made a whole number of times as often, the step is that many iterations.
_ITERATIONS: Final = 0.9
#: If less of a side's work than this is common to both, the sides are hardly the same model.
_IN_COMMON: Final = 0.5
#: If contractions are at least this share of the work on both sides, they alone decide whether the models differ.
_MOSTLY: Final = 0.2


def counted_once(sides: Sequence[SideInput]) -> tuple[list[SideInput], list[str]]:
    """Return the sides without duplicate runs within a side, and a warning for each duplicate."""
    kept, warnings = [], []
    for side in sides:
        copies: dict[Identity, list[RunInput]] = {}
        for run in side.runs:
            copies.setdefault(_identity(run), []).append(run)
        for first, *others in copies.values():
            if others:
                names, verb = _names_of([run.name for run in others]), "is" if len(others) == 1 else "are"
                warnings.append(f"{side.name}: {names} {verb} the same run as {first.name}; this run is counted once")
        kept.append(replace(side, runs=tuple(runs[0] for runs in copies.values())))
    return kept, warnings


def on_two_sides(sides: Sequence[SideInput]) -> list[str]:
    """Return a warning for each pair of sides that share a run."""
    identities = [{_identity(run): run for run in side.runs} for side in sides]
    warnings = []
    for (one, ones), (other, others) in combinations(zip(sides, identities, strict=True), 2):
        both = [(run, others[identity]) for identity, run in ones.items() if identity in others]
        if both:
            first, second = both[0]
            pairs = "is 1 other pair" if len(both) == 2 else f"are {len(both) - 1} other pairs"
            more = f", and so {pairs} of runs" if both[1:] else ""
            warnings.append(f"{one.called(first)} and {other.called(second)} are the same run{more}")
    return warnings


def _identity(run: RunInput) -> Identity:
    """Return the digest of a run's trace and when that began; for ranks, which have no digest, the whole report."""
    provenance = run.anatomy.provenance
    if provenance.trace_sha256 is not None:
        return provenance.trace_sha256, provenance.begin_unix_ns
    return replace(run.anatomy, provenance=replace(provenance, trace=None)), provenance.begin_unix_ns


# ----- the same work


def not_comparable(sides: Sequence[SideInput], breakdowns: Sequence[Breakdown | None]) -> Iterable[str]:
    """Yield why the sides' times are not comparable: no kernels, other kinds of times, other numbers of iterations."""
    missing: dict[str, list[str]] = {}
    for side in sides:
        for run in side.runs:
            if (why := _without_kernels(run.anatomy)) is not None:
                missing.setdefault(why, []).append(side.called(run))
    for why, runs in missing.items():
        yield f"{_names_of(runs)} {'has' if len(runs) == 1 else 'have'} {why}"
    on_cpu = [side.runs[0].anatomy.environment.device_kind == "cpu" for side in sides]
    if len(set(on_cpu)) > 1 and not missing:
        names = [
            _all_of([side.name for side, cpu in zip(sides, on_cpu, strict=True) if cpu is here])
            for here in (True, False)
        ]
        cpu = f"{names[0]} ran on the CPU but {names[1]} did not"
        yield f"{cpu}, and operator times cannot be compared with kernel times"
    if missing or len(set(on_cpu)) > 1:
        return
    for side, breakdown in zip(sides[1:], breakdowns[1:], strict=True):
        if breakdowns[0] is not None and breakdown is not None:
            yield from _iterations((sides[0].name, breakdowns[0]), (side.name, breakdown))


def _without_kernels(anatomy: Anatomy) -> str | None:
    """Return the problem of a run without device records of its GPU, else `None`."""
    if _is_snapshot(anatomy):
        return None
    environment = anatomy.environment
    if environment.device_kind not in ("cpu", None):
        if not anatomy.ledger.device_work_ns:
            return "no kernels: device work was not recorded"
        if anatomy.timeline.lacks_work:
            return "records for only part of the device work: kernel calls, FLOPs, bytes and times are lower bounds"
        return None
    if environment.host_only:
        return "only host times: for device work these are launch times"
    return None


def _iterations(first: tuple[str, Breakdown], second: tuple[str, Breakdown]) -> Iterable[str]:
    """Yield a reason if one side's step spans several of the other's, judged by the calls that both make."""
    pairs = paired(first[1], second[1])
    if not pairs:
        return
    calls = [calls_of(breakdown, kind) for (_, breakdown), kind in zip((first, second), pairs[0], strict=True)]
    names = [name for name in calls[0] if name in calls[1]]
    if not names:
        return
    whole = [not kind.numbers for kind in pairs[0]]
    ratios = sorted((calls[1][name] / calls[0][name], calls[0][name] + calls[1][name]) for name in names)
    if whole[0] != whole[1]:
        middle = _weighted_middle(ratios)
        times = middle if whole[1] else 1 / middle
        one, other = (second[0], first[0]) if whole[1] else (first[0], second[0])
        if max(times, 1 / times) >= _NO_STEP:
            yield (
                f"{one} is an entire trace taken as one step: it makes {float(times):.3g} times as many calls as"
                f" {other}"
            )
        return
    (most, count) = Counter(ratio for ratio, _ in ratios).most_common(1)[0]
    times = max(most, 1 / most)
    if times > 1 and times.denominator == 1 and count >= _ITERATIONS * len({**calls[0], **calls[1]}):
        more, less = (second[0], first[0]) if most > 1 else (first[0], second[0])
        yield (
            f"a step of {more} makes every call {times} times as often as a step of {less}, so it spans {times}"
            " iterations"
        )


def _weighted_middle(values: Sequence[tuple[Fraction, Fraction]]) -> Fraction:
    """Return the weighted median of ordered (value, weight) pairs."""
    half, upto = sum((weight for _, weight in values), Fraction(0)) / 2, Fraction(0)
    for value, weight in values:
        upto += weight
        if upto >= half:
            return value
    return values[-1][0]


def unlike_work(sides: Sequence[SideInput], parts: Decomposition) -> tuple[str | None, bool]:
    """Return how little of two sides' work is in common (`None` if most is), and whether they are other models.

    They are the same model with the same name, equal contraction FLOPs, or most contractions in common: compiled code
    uses other names for the rest.
    """
    shares = _in_common(sides, parts.parts, parts.parts)
    if not shares or min(shares)[0] >= _IN_COMMON:
        return None, False
    share, name = min(shares)
    text = f"only {share:.1%} of the work of {name} is also on the other side".replace("%", " %")
    contractions = [part for part in parts.parts if part.operator_class is OperatorClass.TENSOR_CONTRACTION]
    mostly = all(
        sum(getattr(part, side) for part in contractions)
        >= _MOSTLY * sum(getattr(part, side) for part in parts.parts if part.cause.is_work)
        for side in ("before_ns", "after_ns")
    )
    alike = [part for part in contractions if part.cause is not Cause.ANOTHER_SIGNATURE]
    if mostly and min(_in_common(sides, contractions, alike))[0] >= _IN_COMMON:
        return text, False
    models = [side.runs[0].anatomy.workload.model for side in sides]
    metrics = [side.runs[0].metrics.get("class.tensor_contraction.flops") for side in sides]
    known = [metric.value for metric in metrics if metric is not None]
    same_flops = len(known) == 2 and max(known) - min(known) <= _SAME_FLOPS * max(known)
    return text, not same_flops and (None in models or models[0] != models[1])


def _in_common(sides: Sequence[SideInput], parts: Sequence[Part], alike: Sequence[Part]) -> list[tuple[float, str]]:
    """Return the share of each side's work in `alike` parts that the other side has too; empty sides are skipped."""
    shares = []
    for side, name in zip(sides, ("before_ns", "after_ns"), strict=True):
        work = sum(getattr(part, name) for part in parts if part.cause.is_work)
        both = sum(getattr(part, name) for part in alike if part.before is not None and part.after is not None)
        if work:
            shares.append((both / work, side.name))
    return shares


# ----- runs of one side


def unlike_runs(side: SideInput) -> Iterable[str]:
    """Yield what sets some runs of a side apart so that they are hardly the same work."""
    differences: dict[tuple[str, ...], list[str]] = {}
    for what, value_of in _SAME_ON_A_SIDE:
        known = [(run, value) for run in side.runs if (value := value_of(run)) is not None]
        if known:
            usual = max(
                (value for _, value in known), key=lambda each: sum(_same_value(each, value) for _, value in known)
            )
            apart = [(run, value) for run, value in known if not _same_value(value, usual)]
            values = ", ".join(dict.fromkeys(_text(value) for _, value in apart))
            differences.setdefault(tuple(run.name for run, _ in apart), []).append(
                f"{what} ({values}, not {_text(usual)})"
            )
    for names, texts in differences.items():
        if names:
            verb = "differs" if len(names) == 1 else "differ"
            yield f"{side.name}: {_names_of(names)} {verb} from the other runs in {_all_of(texts)}"


def timed_otherwise(sides: Sequence[SideInput]) -> Iterable[str]:
    """Yield which sides have unprofiled step times and which only profiled ones, if both occur."""
    under = [[run for run in side.runs if _TIME in run.metrics and _PLAIN not in run.metrics] for side in sides]
    without = [[run for run in side.runs if _PLAIN in run.metrics] for side in sides]
    if any(under) and any(without):
        yield (
            f"the step times of {_sides_of(sides, under)} were measured only under the profiler, those of"
            f" {_sides_of(sides, without)} without it: these cannot be compared - use the `profiled` number"
        )


def _sides_of(sides: Sequence[SideInput], runs: Sequence[Sequence[RunInput]]) -> str:
    """Name the sides of these runs, with counts if not all of a side's runs are among them."""
    return _all_of(
        [
            side.name if len(each) == len(side.runs) else f"{len(each)} of {len(side.runs)} runs of {side.name}"
            for side, each in zip(sides, runs, strict=True)
            if each
        ]
    )


def _same_value(one: Value, other: Value) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= _SAME_FLOPS * max(one, other)
    return one == other


def _text(value: Value) -> str:
    return value if isinstance(value, str) else f"{value:,.0f}"


def _names_of(names: Sequence[str]) -> str:
    return _all_of(names if len(names) <= _MAX_NAMED_RUNS else [names[0], f"{len(names) - 1} more"])


def _all_of(texts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))


def _flops(run: RunInput) -> float | None:
    return float(run.metrics["flops"].value) if "flops" in run.metrics else None


#: The values that a side's runs should share, and how to read them; `None` if a run lacks one.
_SAME_ON_A_SIDE: Final[tuple[tuple[str, Callable[[RunInput], Value | None]], ...]] = (
    ("the model", lambda run: run.anatomy.workload.model),
    ("the batch", lambda run: run.anatomy.workload.batch),
    ("the sequence length", lambda run: run.anatomy.workload.sequence_length),
    ("the FLOPs per step", _flops),
    ("the device", lambda run: run.anatomy.environment.device),
)


_TIME, _PROFILED = "step_time_ns", "step_profiled_ns"
_PLAIN: Final = "step_unprofiled_ns"
#: Units of figures that depend on the covered steps, and the figures of unprofiled steps.
_OF_TIME: Final = frozenset({"ns", "fraction", "ratio"})
_WITHOUT_PROFILER: Final = ("step_unprofiled", "first_token", "token", "texts.", "mfu_covered")
_PROFILER: Final = "profiler_ns"
#: `_PEAK` is the first of these that a run has; older reports do not state which.
_PEAK: Final = "peak_memory_bytes"
_RESIDENT: Final = "process_peak_bytes"
_PEAKS: Final = ("allocator_peak_bytes", _RESIDENT)


def compared(sides: Sequence[SideInput]) -> Comparison:
    """Compare the sides, and explain the difference of two. Duplicate runs count once.

    Incomparable sides get figures only; comparing a memory snapshot with a step raises `UsageError`.
    """
    runs = [(side.called(run), _is_snapshot(run.anatomy)) for side in sides for run in side.runs]
    snapshots, traces = ([name for name, of_memory in runs if of_memory is kind] for kind in (True, False))
    if snapshots and traces:
        raise UsageError(
            f"a memory snapshot ({_names_of(snapshots)}) cannot be compared with a step ({_names_of(traces)}) -"
            " compare two snapshots or two traces"
        )
    sides, copies = counted_once(sides)
    shared = on_two_sides(sides)
    breakdowns = [_breakdown(side) for side in sides]
    kinds: list[tuple[StepWork, ...]] | None = None
    if len(breakdowns) == 2 and breakdowns[0] is not None and breakdowns[1] is not None:
        kinds = [*paired(breakdowns[0], breakdowns[1])] or None
    decomposition: Decomposition | None = None
    others: tuple[Kinds, ...] = ()
    reasons, questions = list(not_comparable(sides, breakdowns)), []
    if len(sides) == 2 and kinds is not None and not reasons:
        decomposition, others = _decomposition(sides, breakdowns, kinds)
        little, other_models = unlike_work(sides, decomposition)
        if little is not None and other_models:
            reasons, decomposition, others = [f"{little}: these are different models"], None, ()
        elif little is not None:
            questions = [f"{little}: is it the same model?"]
    chosen: list[StepWork | None] = (
        list(kinds[0])
        if kinds
        else [breakdown.kinds[0] if breakdown is not None and breakdown.kinds else None for breakdown in breakdowns]
    )
    busy = [text for side in sides for text in _busy(side)]
    apart, clock_change = _apart(sides)
    no_claim = _no_claim(sides, independent=not shared, busy=bool(busy), clocks_differ=bool(apart))
    memories = [] if traces else [side.runs[0].anatomy.memory for side in sides]
    at_peaks = all(memory.is_at_peak for memory in memories)
    return Comparison(
        not_comparable=tuple(reasons),
        sides=tuple(_side(side, kind) for side, kind in zip(sides, chosen, strict=True)),
        figures=_figures(sides, chosen, claims=no_claim is None, comparable=not reasons),
        decomposition=decomposition,
        other_kinds=others,
        peak_parts=_memory_changes(sides),
        peak_moments=() if at_peaks else tuple(memory.then for memory in memories),
        no_claim=no_claim,
        clock_change=clock_change,
        warnings=(
            *copies,
            *shared,
            *busy,
            *apart,
            *(text for side in sides for text in unlike_runs(side)),
            *(() if reasons else timed_otherwise(sides)),
            *_warnings(sides, breakdowns, chosen, explained=decomposition is not None),
            *questions,
        ),
    )


def _memory_changes(sides: Sequence[SideInput]) -> tuple[MemoryChange, ...]:
    """Return what lines and components add to the difference of two snapshots' peaks, the largest first."""
    if len(sides) != 2 or not all(_is_snapshot(side.runs[0].anatomy) for side in sides):
        return ()
    before, after = ([part for part in side.runs[0].anatomy.memory.parts if part.of == "line"] for side in sides)
    changes = []
    for key in _SAME_ALLOCATIONS:
        candidates: dict[Hashable, list[MemoryPart]] = {}
        for part in after:
            candidates.setdefault(key(part), []).append(part)
        rivals = Counter(key(part) for part in before)
        left = []
        for part in before:
            same = candidates.get(key(part), [])
            if not same or (key is _function and (len(same), rivals[key(part)]) != (1, 1)):
                left.append(part)
                continue
            other = same.pop(0)
            after.remove(other)
            changes.append(
                MemoryChange(
                    line=part.name,
                    component=part.component,
                    before_bytes=part.bytes,
                    after_bytes=other.bytes,
                    line_after=None if other.name == part.name else other.name,
                )
            )
        before = left
    for part in before:
        changes.append(MemoryChange(line=part.name, component=part.component, before_bytes=part.bytes, after_bytes=0))
    for part in after:
        changes.append(MemoryChange(line=part.name, component=part.component, before_bytes=0, after_bytes=part.bytes))
    return tuple(sorted(changes, key=lambda change: -abs(change.change_bytes)))


def _function(part: MemoryPart) -> Hashable:
    return part.component, part.function or part.name


#: What identifies the same allocations in two snapshots, in order: the line; function and size; the function alone,
#: where it is unique.
_SAME_ALLOCATIONS: Final[tuple[Callable[[MemoryPart], Hashable], ...]] = (
    lambda part: (part.component, part.name),
    lambda part: (_function(part), part.blocks, part.bytes),
    lambda part: (part.component, part.blocks, part.bytes),
    _function,
)


def _is_snapshot(anatomy: Anatomy) -> bool:
    """Return whether a run is a memory snapshot only."""
    return not anatomy.classes and anatomy.memory.is_snapshot


def _breakdown(side: SideInput) -> Breakdown | None:
    """Return the breakdown of all runs of a side together."""
    if len(side.runs) == 1:
        return side.runs[0].anatomy.breakdown
    sums = WorkSums()
    for index, run in enumerate(side.runs):
        sums.add(run.anatomy.work, run.anatomy.step_kinds, (False, index, "", index), run=index)
    work, kinds = sums.sums()
    return None if kinds is None else breakdown_of(work, kinds)


def _decomposition(
    sides: Sequence[SideInput], breakdowns: Sequence[Breakdown | None], kinds: Sequence[Sequence[StepWork]]
) -> tuple[Decomposition, tuple[Kinds, ...]]:
    stepped = []
    for side, breakdown, kind in zip(sides, breakdowns, kinds[0], strict=True):
        profilers = [run.metrics[_PROFILER].value for run in side.runs if _PROFILER in run.metrics]
        if breakdown is not None:
            stepped.append(
                Stepped(
                    breakdown=breakdown,
                    kind=kind,
                    costs=costs_of([row for run in side.runs for row in run.anatomy.operators]),
                    profiler_ns=round(fmean(profilers)) if len(profilers) == len(side.runs) else None,
                )
            )
    others = tuple(
        Kinds(
            before_steps=first.counted,
            after_steps=second.counted,
            before_ns=round(first.wall_ns / first.count),
            after_ns=round(second.wall_ns / second.count),
        )
        for first, second in kinds[1:]
    )
    return decomposed(*stepped), others


# ----- a side


def _side(side: SideInput, kind: StepWork | None) -> Side:
    anatomies = [run.anatomy for run in side.runs]
    environment = anatomies[0].environment
    versions = (("torch", environment.torch), ("CUDA", environment.cuda))
    # Each like step, averaged over ranks and devices; one that is set aside on any of them is set aside.
    samples = []
    for (run, number), steps in _grouped(() if kind is None else kind.steps).items():
        label = "-" if number is None else f"{number}"
        samples.append(
            Sample(
                label=label if run is None else f"{label} of run {run + 1}",
                set_aside=next((step.set_aside for step in steps if step.set_aside is not None), None),
                value=fmean(step.wall_ns for step in steps),
            )
        )
    return Side(
        name=side.name,
        model=anatomies[0].workload.model,
        device=environment.device,
        software=", ".join(f"{what} {version}" for what, version in versions if version is not None) or None,
        runs=len(anatomies),
        ranks=max(len(anatomy.ranks) for anatomy in anatomies),
        began_ns=tuple(anatomy.provenance.begin_unix_ns for anatomy in anatomies),
        steps=tuple(samples),
    )


def _grouped(steps: Iterable[LikeStep]) -> dict[tuple[int | None, int | None], list[LikeStep]]:
    """Group a run's steps by number: the ranks' steps with one number are one sample."""
    groups: dict[tuple[int | None, int | None], list[LikeStep]] = {}
    for step in steps:
        groups.setdefault((step.run, step.number), []).append(step)
    return groups


# ----- figures


def _figures(
    sides: Sequence[SideInput], kinds: Sequence[StepWork | None], *, claims: bool, comparable: bool
) -> tuple[FigureRow, ...]:
    samples = [_samples(side, kind) for side, kind in zip(sides, kinds, strict=True)]
    if _unlike_peaks(sides):
        samples = [{name: values for name, values in side.items() if name != _PEAK} for side in samples]
    of_all = {name for side, kind in zip(sides, kinds, strict=True) for name in _figures_of_all_steps(side, kind)}
    names = dict.fromkeys(name for side in samples for name in side)
    units = {name: metric for side in sides for run in side.runs for name, metric in run.metrics.items()}
    rows = [_figure(name, units[name], [side.get(name) for side in samples], claims=claims) for name in names]
    of_step = next((row.p for row in rows if row.name == _TIME and row.p is not None), 1.0)
    resident = {_RESIDENT} if _PEAKS[0] in names else {_RESIDENT, _PEAK}
    sized = {row.name for row in rows if row.unit == "bytes"} - resident
    figures = []
    for row in rows:
        # A figure is tested after the step: a part of a step that may be the same is not claimed. So the many figures
        # of a run that differ by chance alone make a false claim no more often than the step does. Sizes that an
        # allocator or a formula counts do not differ by chance; what a process has resident does.
        p = row.p if row.p is None or row.name in sized else max(row.p, of_step)
        # A figure is a lower bound on a side if it is in one of its runs.
        known = [[run.metrics[row.name] for run in side.runs if row.name in run.metrics] for side in sides]
        bounds = tuple(any(metric.lower_bound for metric in metrics) for metrics in known)
        figures.append(
            replace(
                row,
                all_steps=row.name in of_all,
                lower_bounds=bounds if any(bounds) else (),
                ranges=row.ranges if comparable else None,
                p=p if comparable else None,
            )
        )
    return tuple(figures)


def _unlike_peaks(sides: Sequence[SideInput]) -> bool:
    """Return whether some runs have the allocator's peak memory and others the process's."""
    runs = [run.metrics for side in sides for run in side.runs if _PEAK in run.metrics]
    return len({next((name for name in _PEAKS if name in metrics), None) for metrics in runs} - {None}) > 1


def _figures_of_all_steps(side: SideInput, kind: StepWork | None) -> set[str]:
    """Return the figures of profiled time that cover other steps than the compared ones."""
    names: set[str] = set()
    for run in side.runs:
        kinds = () if run.anatomy.breakdown is None else run.anatomy.breakdown.kinds
        counted = {step.number for kind in kinds for step in kind.steps if step.left_out is None}
        if kind is None or counted == {step.number for step in kind.steps if step.set_aside is None}:
            continue
        of_like = _samples_of_like_steps(run, kind.numbers)
        names |= {
            name
            for name, metric in run.metrics.items()
            if metric.unit in _OF_TIME and name not in of_like and not name.startswith(_WITHOUT_PROFILER)
        }
    return names


def _samples(side: SideInput, kind: StepWork | None) -> dict[str, list[float]]:
    """Return samples of each figure: one per run; for a single run one per like step, where steps have the figure."""
    each = []
    for run in side.runs:
        of_all: dict[str, list[float]] = {name: [float(metric.value)] for name, metric in run.metrics.items()}
        each.append({**of_all, **_samples_of_like_steps(run, None if kind is None else kind.numbers)})
    if len(each) == 1:
        return each[0]
    return {name: [fmean(run[name]) for run in each] for name in each[0] if all(name in run for run in each)}


def _samples_of_like_steps(run: RunInput, numbers: tuple[int, ...] | None) -> dict[str, list[float]]:
    """Return the figures of a run's steps of this kind, without those set aside."""
    kinds = () if run.anatomy.breakdown is None else run.anatomy.breakdown.kinds
    kind = next((kind for kind in kinds if kind.numbers == numbers), None)
    if kind is None:
        return {}
    steps = [step for step in kind.steps if step.set_aside is None]
    columns: dict[str, list[float]] = {}
    figures = [[_figures_of_like_step(step) for step in each] for each in _grouped(steps).values()]
    for name in _figures_of_like_step(kind.steps[0]):
        times = [[step[name] for step in each] for each in figures]
        if not any(None in each for each in times):
            columns[name] = [fmean(each) for each in times]
    if _PLAIN not in run.metrics:
        columns[_TIME] = columns[_PROFILED]

    # Sums over the steps that count, for figures that a single step does not have. What the profiler adds is no time
    # of the framework.
    profiler_ns = round(run.metrics[_PROFILER].value * kind.count) if _PROFILER in run.metrics else 0
    work = sum(row.time_ns for row in kind.rows)
    sums = {
        **{name: getattr(kind, name) for name in ("outside_ns", "host_idle_ns", "stream_idle_ns", "other_idle_ns")},
        **{f"class.{item}.time_ns": 0 for item in OperatorClass},
        **{f"phase.{item}.time_ns": 0 for item in Phase},
        "kernel_time_ns": work,
        "busy_ns": work - sum(overlap.time_ns for overlap in kind.overlaps),
        "idle_ns": kind.host_idle_ns + kind.stream_idle_ns + kind.other_idle_ns,
        "window_ns": kind.wall_ns,
        "framework_ns": max(kind.framework_ns - profiler_ns, 0),
    }
    for row in kind.rows:
        sums[f"class.{row.operator_class}.time_ns"] += row.time_ns
        sums[f"phase.{row.phase}.time_ns"] += row.time_ns
    columns = {**{name: [time / kind.count] for name, time in sums.items()}, **columns}

    # Shares of the steps without other steps' work, of the whole steps, of all work.
    own, exposed = kind.wall_ns - kind.outside_ns, [step.exposed_communication_ns for step in steps]
    shares = {"idle_share": (sums["idle_ns"], own), "framework_share": (sums["framework_ns"], kind.wall_ns)}
    if None not in exposed:
        shares["exposed_communication_share"] = (sum(filter(None, exposed)), own)
    for item in OperatorClass:
        shares[f"class.{item}.time_share"] = (sums[f"class.{item}.time_ns"], work)
    columns.update({name: [part / whole] for name, (part, whole) in shares.items() if whole})
    return {name: column for name, column in columns.items() if name in run.metrics}


def _figures_of_like_step(step: LikeStep) -> dict[str, Any]:
    """Return the figures of each like step."""
    return {
        _PROFILED: step.wall_ns,
        "idle_ns": step.idle_ns,
        "exposed_communication_ns": step.exposed_communication_ns,
        **{f"{phase}_time_ns": step.phase_ns.get(phase) for phase in STEP_PHASES},
    }


def _figure(name: str, metric: Metric, samples: Sequence[Sequence[float] | None], *, claims: bool) -> FigureRow:
    """Return the mean over a run's steps or over the runs; the median of the runs if a claim can be made."""
    values = [None if not each else (median(each) if claims else fmean(each)) for each in samples]
    row = FigureRow(name=name, unit=metric.unit, better=metric.better, values=tuple(values), exact=metric.exact)
    if not any(each is not None and len(each) > 1 for each in samples):
        return row
    spreads = tuple(None if not each else spread_of(each) for each in samples)
    row = replace(row, spreads=spreads)
    if (
        row.exact
        or len(samples) != 2
        or spreads[0] is None
        or spreads[1] is None
        or samples[0] is None
        or samples[1] is None
    ):
        return row
    several = min(len(each) for each in samples if each is not None) > 1
    return replace(
        row,
        ranges=ranges_of(spreads[0], spreads[1]) if several else None,
        p=mann_whitney(samples[0], samples[1]) if claims else None,
    )


# ----- claims


def _busy(side: SideInput) -> Iterable[str]:
    """Yield a line if the machine was busy in half of a side's runs or more; fewer the order of the runs evens out."""
    loads = [load for run in side.runs if (load := run.anatomy.environment.load) is not None]
    busy = [load for load in loads if load.busy]
    if busy and 2 * len(busy) >= len(loads):
        most = max(busy, key=lambda load: max(load.before or 0, load.after or 0))
        runs = f" in {len(busy)} of {len(side.runs)} runs; in the busiest," if len(side.runs) > 1 else ":"
        yield f"{side.name}: the machine was busy{runs} utilization by other work was {most.text} the steps"


#: Clock differences above this fraction make the same kernels take different times.
_SAME_CLOCK: Final = 0.02


def _apart(sides: Sequence[SideInput]) -> tuple[tuple[str, ...], float | None]:
    """Return a line if the clocks of the sides differ, and the change from the first of two sides to the second.

    The clock of a side is the median SM clock of its runs while steps were recorded.
    """
    clocks = []
    for side in sides:
        states = [run.anatomy.device_state for run in side.runs]
        of_runs = [state.clock_mhz for state in states if state is not None and state.clock_mhz is not None]
        clocks.append(median(of_runs) if of_runs else None)
    known = [clock for clock in clocks if clock is not None]
    if len(known) < 2 or max(known) <= (1 + _SAME_CLOCK) * min(known):
        return (), None
    change = f"{100 * (max(known) / min(known) - 1):.1f} %"
    each = ", ".join("unknown" if clock is None else f"{clock:,.0f} MHz" for clock in clocks)
    line = f"the device clocks differ by {change} ({each}): this alone makes kernel times differ"
    return (line,), known[1] / known[0] - 1 if len(sides) == 2 and all(known) else None


def _no_claim(sides: Sequence[SideInput], *, independent: bool, busy: bool, clocks_differ: bool) -> str | None:
    """Return why nothing is called significant; `None` if the runs allow it."""
    if len(sides) != 2:
        return "only two sides can be tested"
    fewest = min(len(side.runs) for side in sides)
    if fewest < RUNS_NEEDED:
        return f"{RUNS_NEEDED} interleaved runs per side are needed (steps of one run are correlated)"
    if clocks_differ:
        return "the device clocks differ: rerun both sides at the same temperature or at a fixed clock"
    if busy:
        return "the machine was busy: rerun both sides on an idle machine"
    if not independent:
        return "a run is on both sides, so the sides are not independent"
    began = [[run.anatomy.provenance.begin_unix_ns for run in side.runs] for side in sides]
    if not interleaved(*began):
        return "the runs were not interleaved: machine drift would count as a difference"
    return None


def _warnings(
    sides: Sequence[SideInput],
    breakdowns: Sequence[Breakdown | None],
    kinds: Sequence[StepWork | None],
    *,
    explained: bool,
) -> tuple[str, ...]:
    anatomies = [side.runs[0].anatomy for side in sides]
    devices = [anatomy.environment.device for anatomy in anatomies]
    if any(anatomy.estimated is not None for anatomy in anatomies):
        # An estimate is for a data sheet: the others are compared with it by their sheets.
        sheets = [re.match(r"data sheet of (.+?),", anatomy.device.source or "") for anatomy in anatomies]
        devices = [sheet[1] if sheet else device for sheet, device in zip(sheets, devices, strict=True)]
    lines = []
    for what, values in (
        ("devices", devices),
        ("torch releases", [anatomy.environment.torch for anatomy in anatomies]),
        ("models", [anatomy.workload.model for anatomy in anatomies]),
        ("batches", [anatomy.workload.batch for anatomy in anatomies]),
        ("sequence lengths", [anatomy.workload.sequence_length for anatomy in anatomies]),
    ):
        known = [f"{value}" for value in values if value]
        if len(set(known)) > 1:
            lines.append(f"the {what} differ: {', '.join(dict.fromkeys(known))}")
    if _unlike_peaks(sides):
        lines.append("peak memory is that of the allocator on one side and of the entire process on the other")
    for side, anatomy, breakdown in zip(sides, anatomies, breakdowns, strict=True):
        if anatomy.estimated is not None:
            lines.append(f"{side.name} is an estimate: its times are computed from typical efficiencies")
        if breakdown is None and not _is_snapshot(anatomy):
            lines.append(f"{side.name} was written by an older opanatomy and does not say where its time went")

    # Runs and ranks without a step among the compared ones: their steps have other numbers.
    for side, kind in zip(sides, kinds, strict=True):
        if kind is None:
            continue
        ranks = max(len(run.anatomy.ranks) for run in side.runs)
        for what, count, have in (
            ("runs", len(side.runs), {step.run for step in kind.steps}),
            ("ranks", ranks, {step.rank for step in kind.steps}),
        ):
            if 1 < count > len(have):
                lines.append(
                    f"{side.name}: the parts cover {len(have)} of {count} {what}; the others have no similar steps"
                )

    if explained:
        both = [
            (each, kind) for each, kind in zip(breakdowns, kinds, strict=True) if each is not None and kind is not None
        ]
        if count := len(unsigned_operators(*both)):
            what = "operator has" if count == 1 else "operators have"
            lines.append(f"{count} {what} recorded shapes on only one side: their calls are matched without shapes")
    return tuple(lines)
