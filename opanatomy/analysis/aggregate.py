"""Group calls and device work into the rows of the report; every sum is exact."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, Final, Generic, TypeAlias, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import fields

from opanatomy.records.anatomy import ChainRow
from opanatomy.records.columns import CallTable
from opanatomy.records.patterns import regex
from opanatomy.records.taxonomy import OperatorClass, Phase

#: Classes of work that one kernel could do together.
_FUSIBLE: Final = (OperatorClass.ELEMENTWISE, OperatorClass.STATISTICAL_NORMALIZATION)
#: Copies that only convert or reorder, which a kernel does while it reads or writes.
_CONVERTS: Final = regex(r"^aten::(?:copy_|_to_copy|to|clone|contiguous)$")
_ONE_KERNEL: Final = regex(r"^triton|_fused_|_foreach_")


def is_fusible(operator_class: OperatorClass, operator: str) -> bool:
    """Return whether one kernel could do an operator's work together with its neighbours'."""
    if _ONE_KERNEL.search(operator):
        return False
    return operator_class in _FUSIBLE or _CONVERTS.search(operator) is not None


def chain_rows(calls: CallTable) -> tuple[ChainRow, ...]:
    """Return the chains of maps and normalizations of each phase but the optimizer, in the order of the phases.

    Calls are in the order in which the host made them. A chain goes on while the next call is of such work too, in the
    same phase, and reads at least as many bytes as the one before it wrote; copies that only convert may stand in it.
    """
    order = np.flatnonzero((calls.kernels > 0) | ((calls.host_row >= 0) & (calls.time_ns > 0)))
    order = order[np.argsort(calls.start_ns[order], kind="stable")]
    names = calls.operator.values
    converts, fused = (np.array([p.search(name) is not None for name in (*names, "")], dtype=bool)
                       for p in (_CONVERTS, _ONE_KERNEL))  # fmt: skip
    code = calls.operator.codes[order]
    fusible = np.zeros(len(order), dtype=bool)
    for name in _FUSIBLE:
        fusible |= calls.operator_class.equals(name)[order]
    maps = fusible | converts[code]
    maps &= ~fused[code] & calls.costed[order] & ~calls.crosses_host_link[order]
    maps &= ~calls.phase.equals(Phase.OPTIMIZER)[order]
    phase, inner = calls.phase.codes[order], calls.inner[order]
    owner, owners = calls.part_of.codes[order], (*calls.part_of.values, None)
    read, written, time = (column[order] for column in (calls.read_bytes, calls.written_bytes, calls.time_ns))
    sums: dict[int, list[int]] = {}
    spent: dict[int, dict[int, int]] = {}
    chain: list[int] = []

    def close() -> None:
        whole = [place for place in chain if not inner[place]]
        if len(whole) > 1 and any(fusible[place] for place in whole):
            kept = sums.setdefault(int(phase[chain[0]]), [0, 0, 0, 0, 0])
            saved = sum(2 * int(written[place]) for place in whole[:-1])
            moved = sum(int(read[place] + written[place]) for place in whole)
            for column, value in enumerate((1, len(whole), sum(int(time[place]) for place in chain), moved, saved)):
                kept[column] += value
            names_of = spent.setdefault(int(phase[chain[0]]), {})
            for place in chain:
                names_of[int(code[place])] = names_of.get(int(code[place]), 0) + int(time[place])
        chain.clear()

    last = -1
    for place in range(len(order)):
        if inner[place] and chain and owners[owner[place]] == names[code[last]]:  # a part of the call before it
            chain.append(place)
            continue
        follows = chain and phase[place] == phase[chain[0]] and read[place] >= written[last] > 0
        if not maps[place] or not follows:
            close()
        if maps[place]:
            chain.append(place)
            last = place
    close()
    return tuple(
        ChainRow(
            phase=calls.phase.values[number], chains=kept[0], calls=kept[1], time_ns=kept[2], moved_bytes=kept[3],
            saved_bytes=kept[4], operator=names[max(spent[number], key=lambda code: (spent[number][code], -code))],
        )
        for number, kept in sorted(sums.items())
    )  # fmt: skip


# ----- rows of many ranks: their sums, and what they have in common
#
# Ranks are added one at a time, in any order. Memory grows with the number of different rows, not of ranks. Ordered
# results keep the place in the rank that stands first.


WHOLE: Final = (int, int | None)
FRACTION: Final = (float, float | None)

Record = TypeVar("Record", bound=Struct)
Item = TypeVar("Item")
#: The sort key of a rank among the others.
Order: TypeAlias = "tuple[bool, int, str, int]"
_Place: TypeAlias = "tuple[Order, int]"


class RowSums(Generic[Record]):
    """Sums of rows that differ only in whole numbers; fields named `apart` do not distinguish rows."""

    def __init__(self, record: type[Record], *, apart: Collection[str] = ()) -> None:
        kinds = [(name, kind) for name, kind in types_of(record) if name not in apart]
        self._record = record
        self._keys = [name for name, kind in kinds if kind not in (*WHOLE, *FRACTION)]
        self._summed = [name for name, kind in kinds if kind in WHOLE]
        self._groups: dict[Any, list[Any]] = {}

    def add(self, rows: Iterable[Record], order: Order) -> None:
        """Add the rows of one rank."""
        key_of, values_of, groups = _getter(self._keys), _getter(self._summed), self._groups
        for place, row in enumerate(rows):
            group = groups.get(key := key_of(row))
            if group is None:
                groups[key] = [(order, place), *values_of(row)]
                continue
            if order < group[0][0]:
                group[0] = (order, place)
            for column, value in enumerate(values_of(row), 1):
                if value is not None:
                    group[column] = value if group[column] is None else group[column] + value

    def rows(self, more: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict) -> tuple[Record, ...]:
        """Return one row per group, in the order of their first; `more` fills in the fields that are `apart`."""
        ordered = sorted(self._groups.items(), key=lambda item: item[1][0])
        return tuple(
            self._record(**more(dict(zip((*self._keys, *self._summed), (*key, *group[1:]), strict=True))))
            for key, group in ordered
        )


def _getter(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that gives these fields of a record, as a tuple of any length."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda record: tuple(getattr(record, name) for name in names)


class Firsts(Generic[Item]):
    """Distinct items, in the order in which the ranks have them first."""

    def __init__(self) -> None:
        self._places: dict[Item, _Place] = {}

    def add(self, items: Iterable[Item], order: Order) -> None:
        """Add the items of one rank."""
        for place, item in enumerate(items):
            known = self._places.get(item)
            if known is None or (order, place) < known:
                self._places[item] = (order, place)

    def items(self) -> list[Item]:
        """Return all items, in order."""
        return sorted(self._places, key=self._places.__getitem__)


class Common(Generic[Record]):
    """The fields that several records have in common."""

    def __init__(self) -> None:
        self._first: Record | None = None
        self._unlike: set[str] = set()

    def add(self, record: Record) -> None:
        """Add a record."""
        if self._first is None:
            self._first = record
        elif record != self._first:
            names = (name for name, _ in types_of(type(record)))
            self._unlike |= {name for name in names if getattr(record, name) != getattr(self._first, name)}

    def record(self) -> Record:
        """Return a record with the fields that are alike in all; other lists are empty, other fields `None`."""
        if self._first is None:
            raise ValueError("nothing was added")
        kinds = types_of(type(self._first))
        values = {name: self.value(name, () if kind == tuple[str, ...] else None) for name, kind in kinds}
        return type(self._first)(**values)

    def value(self, name: str, unlike: Any = None) -> Any:
        """Return a field if it is alike in all, else `unlike`; `None` without records."""
        return unlike if name in self._unlike else getattr(self._first, name, None)


# ----- small records


def merged(records: Sequence[Any], by_type: Mapping[Any, Callable[[list[Any]], Any]]) -> Any:
    """Merge several records into one: each field by the rule for its type, else the value if all have the same."""
    record: type = type(records[0])
    together = {}
    for name, kind in types_of(record):
        values = [getattr(record, name) for record in records]
        together[name] = by_type.get(kind, same)(values)
    return record(**together)


@cache
def types_of(record: type[Any]) -> tuple[tuple[str, Any], ...]:
    """Return the name and type of each field, cached because finding them takes time."""
    return tuple((field.name, field.type) for field in fields(record))


def sum_of(values: list[int | None]) -> int | None:
    """Return the sum of the known values; `None` if none is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def same(values: list[Any]) -> Any:
    """Return the value that all have; `None` if they differ."""
    return values[0] if all(value == values[0] for value in values) else None
