"""The work of two steps matched: the same first, then what moved or changed, then what is new or gone.

Work is matched in a cascade of ever fewer names in common. At each level as many calls are matched as both sides have
left, those that take longest first; of a row of which only a part is matched the time goes with the calls. So the parts
are the same, with the sides exchanged, whichever side comes first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from fractions import Fraction
from typing import Any, Final, NamedTuple

from msgspec import Struct, field

from opanatomy.records.breakdown import Breakdown, StepKind
from opanatomy.records.compared import Cause
from opanatomy.records.taxonomy import OperatorClass

_TRITON: Final = re.compile(r"^(triton_\w*?)_\d+$")


class Key(NamedTuple):
    """What tells work apart. `kernel` is empty where a library chooses it, as for contractions of aten."""

    operator: str
    signature: str
    module: str
    phase: str
    operator_class: OperatorClass
    kernel: str


class Item(Struct):
    """The work of one key in the mean step of one side: calls and nanoseconds, and the kernels that did it."""

    calls: Fraction = Fraction(0)
    time_ns: Fraction = Fraction(0)
    kernels: dict[str, Fraction] = field(default_factory=dict)


class Match(Struct, frozen=True):
    """Work of both sides that belongs together, or of one: what of each key it is."""

    cause: Cause
    before: dict[Key, Item]
    after: dict[Key, Item]


def items_of(breakdown: Breakdown, kind: StepKind, unsigned: AbstractSet[str] = frozenset()) -> dict[Key, Item]:
    """The work of the mean step of a kind by its key; that of `unsigned` operators without signatures."""
    items: dict[Key, Item] = {}
    for row in kind.rows:
        kernel = name_of(breakdown.kernels, row.kernel)
        operator = name_of(breakdown.operators, row.operator)
        chosen = operator.startswith("aten::") and row.operator_class is OperatorClass.TENSOR_CONTRACTION
        by_call = chosen or not row.events
        signature = "" if operator in unsigned else str(name_of(breakdown.signatures, row.signature))
        key = Key(
            operator, signature, name_of(breakdown.modules, row.module), row.phase.value, row.operator_class,
            "" if chosen else _stem(kernel),
        )  # fmt: skip
        item = items.setdefault(key, Item())
        item.calls += Fraction(row.calls if by_call else row.events, kind.count)
        item.time_ns += Fraction(row.time_ns, kind.count)
        if kernel:
            item.kernels[kernel] = item.kernels.get(kernel, Fraction(0)) + Fraction(row.time_ns, kind.count)
    return items


def unsigned_operators(*sides: tuple[Breakdown, StepKind]) -> frozenset[str]:
    """Operators that all sides have, some of them without a signature: those of the others would match nothing."""
    known = [_signed_by_operator(breakdown, kind) for breakdown, kind in sides]
    everywhere = set(known[0]).intersection(*known[1:])
    return frozenset(operator for operator in everywhere if len({side[operator] for side in known}) > 1)


def _signed_by_operator(breakdown: Breakdown, kind: StepKind) -> dict[str, bool]:
    """Whether any call of each operator has a signature."""
    known: dict[str, bool] = {}
    for row in kind.rows:
        operator = name_of(breakdown.operators, row.operator)
        known[operator] = known.get(operator, False) or bool(name_of(breakdown.signatures, row.signature))
    return known


def name_of(names: Sequence[str], number: int) -> str:
    """The name with this number, of none empty."""
    return names[number] if number >= 0 else ""


def _stem(kernel: str) -> str:
    """A name without the number that the compiler gave in its turn, of a kernel or its operator.

    The signature tells those apart.
    """
    match = _TRITON.match(kernel)
    return match[1] if match else kernel


def _signed(key: Key) -> bool:
    """Whether the arguments are known: of those that are not nothing can be said."""
    return bool(key.operator and key.signature)


def _placed(key: Key) -> bool:
    """Whether it is known what an operator was called with, or where: a name alone is of much unlike work."""
    return bool(key.operator and (key.signature or key.module))


#: What work must have in common to be matched, from the most to the least, and what that makes of a difference.
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
    """All work of both, each part of it once, in an order that does not depend on which side comes first."""
    left = {key: _copy(item) for key, item in before.items()}, {key: _copy(item) for key, item in after.items()}
    matches: list[Match] = []
    for cause, common in _LEVELS:
        matches += _level(cause, common, *left)
    return [*_with_leftovers(matches, *left)]


def _copy(item: Item) -> Item:
    return Item(item.calls, item.time_ns, dict(item.kernels))


def _level(
    cause: Cause, common: Callable[[Key], Any], before: dict[Key, Item], after: dict[Key, Item]
) -> Iterable[Match]:
    """What has this in common, taken away from both sides."""
    groups: dict[Any, tuple[list[Key], list[Key]]] = {}
    for side, items in enumerate((before, after)):
        for key in items:
            if shared := common(key):
                # Work of unlike classes is never the same: each side would be counted in one of them.
                shared = key.operator_class, shared
                groups.setdefault(shared, ([], []))[side].append(key)
    for shared in sorted(groups, key=repr):
        first, second = groups[shared]
        if first and second:
            calls = min(sum(before[key].calls for key in first), sum(after[key].calls for key in second))
            yield Match(cause, _taken(before, first, Fraction(calls)), _taken(after, second, Fraction(calls)))


def _taken(items: dict[Key, Item], keys: Sequence[Key], calls: Fraction) -> dict[Key, Item]:
    """That many calls of these keys, those that take longest first, and their time; what has no calls goes whole."""
    taken = {}
    for key in sorted(keys, key=lambda key: (-_time_per_call(items[key]), key)):
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


def _time_per_call(item: Item) -> Fraction:
    return item.time_ns / item.calls if item.calls else Fraction(0)


def _scaled(item: Item, part: Fraction) -> Item:
    kernels = {name: time * part for name, time in item.kernels.items()}
    return Item(item.calls * part, item.time_ns * part, kernels)


def _with_leftovers(matches: list[Match], before: dict[Key, Item], after: dict[Key, Item]) -> Iterable[Match]:
    """The matches; what is left of a key that both sides have is more or fewer calls of it, the rest new or gone."""
    for match in matches:
        same = (
            next(iter(match.before)) if match.before.keys() == match.after.keys() and len(match.before) == 1 else None
        )
        if match.cause is Cause.SAME_CALLS and same is not None and (same in before or same in after):
            cause = Cause.FEWER_CALLS if same in before else Cause.MORE_CALLS
            sides = [
                {same: _sum(items[same], more.pop(same, None))}
                for items, more in ((match.before, before), (match.after, after))
            ]
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
    """What makes calls the same wherever they are made."""
    return key.operator, key.signature, key.kernel


def _sum(item: Item, more: Item | None) -> Item:
    if more is None:
        return item
    kernels = dict(item.kernels)
    for name, time in more.kernels.items():
        kernels[name] = kernels.get(name, Fraction(0)) + time
    return Item(item.calls + more.calls, item.time_ns + more.time_ns, kernels)
