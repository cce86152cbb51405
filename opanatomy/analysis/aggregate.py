"""Find fusible chains of calls, and merge rows and records of several ranks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, TypeAlias, TypeVar

import numpy as np
from msgspec import Struct

from opanatomy.records.anatomy import ChainRow
from opanatomy.records.columns import CallTable
from opanatomy.records.patterns import regex
from opanatomy.records.table import Table, concatenated, table_of_columns
from opanatomy.records.taxonomy import OperatorClass, Phase

#: Classes of work that one kernel could do together.
_FUSIBLE: Final = (OperatorClass.ELEMENTWISE, OperatorClass.STATISTICAL_NORMALIZATION)
#: Copies that only convert or reorder, which a kernel does while it reads or writes.
_CONVERTS: Final = regex(r"^aten::(?:copy_|_to_copy|to|clone|contiguous)$")
_ONE_KERNEL: Final = regex(r"^triton|_fused_|_foreach_")


def is_fusible(operator_class: OperatorClass, operator: str) -> bool:
    """Return whether an operator could be fused with its neighbours."""
    if _ONE_KERNEL.search(operator):
        return False
    return operator_class in _FUSIBLE or _CONVERTS.search(operator) is not None


def chain_rows(calls: CallTable) -> tuple[ChainRow, ...]:
    """Return the chains of maps and normalizations of each phase but the optimizer, in the order of the phases.

    Calls are ordered by host time. A chain continues while the next call is a map or normalization in the same phase
    that reads at least as many bytes as the previous one wrote; converting copies may be part of it.
    """
    order = np.flatnonzero((calls.kernels > 0) | ((calls.host_row >= 0) & (calls.time_ns > 0)))
    order = order[np.argsort(calls.start_ns[order], kind="stable")]
    names = calls.operator.values
    converts, fused = (
        np.array([p.search(name) is not None for name in (*names, "")], dtype=bool) for p in (_CONVERTS, _ONE_KERNEL)
    )
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
        whole = [index for index in chain if not inner[index]]
        if len(whole) > 1 and any(fusible[index] for index in whole):
            kept = sums.setdefault(int(phase[chain[0]]), [0, 0, 0, 0, 0])
            saved = sum(2 * int(written[index]) for index in whole[:-1])
            moved = sum(int(read[index] + written[index]) for index in whole)
            for column, value in enumerate((1, len(whole), sum(int(time[index]) for index in chain), moved, saved)):
                kept[column] += value
            names_of = spent.setdefault(int(phase[chain[0]]), {})
            for index in chain:
                names_of[int(code[index])] = names_of.get(int(code[index]), 0) + int(time[index])
        chain.clear()

    last = -1
    for index in range(len(order)):
        if inner[index] and chain and owners[owner[index]] == names[code[last]]:  # a part of the call before it
            chain.append(index)
            continue
        follows = chain and phase[index] == phase[chain[0]] and read[index] >= written[last] > 0
        if not maps[index] or not follows:
            close()
        if maps[index]:
            chain.append(index)
            last = index
    close()
    return tuple(
        ChainRow(
            phase=calls.phase.values[number],
            chains=kept[0],
            calls=kept[1],
            time_ns=kept[2],
            moved_bytes=kept[3],
            saved_bytes=kept[4],
            operator=names[max(spent[number], key=lambda code: (spent[number][code], -code))],
        )
        for number, kept in sorted(sums.items())
    )


# ----- rows of many ranks: their sums, and what they have in common
#
# Ranks are added one at a time, in any order. Memory grows with the number of different rows, not of ranks. Ordered
# results keep the place in the rank that stands first.


Record = TypeVar("Record", bound=Struct)
Item = TypeVar("Item")
#: The sort key of a rank.
Order: TypeAlias = "tuple[bool, int, str, int]"
_Position: TypeAlias = "tuple[Order, int]"
#: So many tables are added up at a time.
TOGETHER: Final = 16


class OrderedUnion(Generic[Item]):
    """Distinct items in order of first appearance over the ranks."""

    def __init__(self) -> None:
        self._positions: dict[Item, _Position] = {}

    def add(self, items: Iterable[Item], order: Order) -> None:
        """Add the items of one rank."""
        for index, item in enumerate(items):
            known = self._positions.get(item)
            if known is None or (order, index) < known:
                self._positions[item] = (order, index)

    def items(self) -> list[Item]:
        """Return all items, in order."""
        return sorted(self._positions, key=self._positions.__getitem__)


class RowSums(Generic[Record]):
    """Sum the rows of many ranks by key; all other fields are integers, except `derived` ones."""

    def __init__(self, record: type[Record], *keys: str, derived: Collection[str] = ()) -> None:
        self._record, self._keys = record, keys
        self._figures = [name for name in record.__struct_fields__ if name not in (*keys, *derived)]
        self._tables: list[Table] = []
        self._order: OrderedUnion[tuple[Any, ...]] = OrderedUnion()

    def add(self, rows: Iterable[Record], order: Order) -> None:
        """Add the rows of one rank."""
        rows = tuple(rows)
        keys, figures = (
            {name: [getattr(row, name) for row in rows] for name in names} for names in (self._keys, self._figures)
        )
        self._order.add(zip(*keys.values(), strict=True), order)
        self._tables.append(table_of_columns(keys, figures))
        if len(self._tables) == TOGETHER:
            self._tables = [concatenated(self._tables).by(*self._keys)]

    def rows(self) -> tuple[Record, ...]:
        """Return one row per combination of keys, in order of first appearance over the ranks."""
        sums = concatenated(self._tables).by(*self._keys).rows() if self._tables else ()
        made = {tuple(row[name] for name in self._keys): self._record(**row) for row in sums}
        return tuple(made[keys] for keys in self._order.items())


class CommonFields(Generic[Record]):
    """Merge records by keeping only the fields they agree on."""

    def __init__(self) -> None:
        self._first: Record | None = None
        self._unlike: set[str] = set()

    def add(self, record: Record) -> None:
        """Add a record."""
        if self._first is None:
            self._first = record
        elif record != self._first:
            names = record.__struct_fields__
            self._unlike |= {name for name in names if getattr(record, name) != getattr(self._first, name)}

    def record(self) -> Record:
        """Return a record with the fields that are alike in all; other lists are empty, other fields `None`."""
        if self._first is None:
            raise ValueError("nothing was added")
        first = {name: getattr(self._first, name) for name in self._first.__struct_fields__}
        values = {name: self.value(name, () if isinstance(value, tuple) else None) for name, value in first.items()}
        return type(self._first)(**values)

    def value(self, name: str, unlike: Any = None) -> Any:
        """Return a field if it is alike in all, else `unlike`; `None` without records."""
        return unlike if name in self._unlike else getattr(self._first, name, None)


# ----- small records


def merged(records: Sequence[Any], rules: Mapping[Callable[[list[Any]], Any], Iterable[str]]) -> Any:
    """Merge records: each field by its rule, else the common value."""
    rule_of = {name: rule for rule, names in rules.items() for name in names}
    record: Any = type(records[0])
    fields = record.__struct_fields__
    return record(**{name: rule_of.get(name, same)([getattr(one, name) for one in records]) for name in fields})


def sum_of(values: list[int | None]) -> int | None:
    """Return the sum of the known values; `None` if none is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def same(values: list[Any]) -> Any:
    """Return the common value; `None` if they differ."""
    return values[0] if all(value == values[0] for value in values) else None
