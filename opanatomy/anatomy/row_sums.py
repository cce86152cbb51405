"""Records of many ranks, taken one rank at a time -> their sums, and what they have in common.

What is kept grows with the number of different rows, not with that of the ranks; the order in which ranks come does
not matter: of what has an order the place in the rank that stands first counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, Final, Generic, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import fields

WHOLE: Final = (int, int | None)
FRACTION: Final = (float, float | None)

Record = TypeVar("Record", bound=Struct)
Item = TypeVar("Item")
#: Where a rank stands among the others.
Order: TypeAlias = "tuple[bool, int, str, int]"
_Place: TypeAlias = "tuple[Order, int]"


class RowSums(Generic[Record]):
    """Rows that differ in whole numbers only are one, with their sums; fields named `apart` do not distinguish them."""

    def __init__(self, record: type[Record], *, apart: Collection[str] = ()) -> None:
        kinds = [(name, kind) for name, kind in types_of(record) if name not in apart]
        self._record = record
        self._keys = [name for name, kind in kinds if kind not in (*WHOLE, *FRACTION)]
        self._summed = [name for name, kind in kinds if kind in WHOLE]
        self._groups: dict[Any, list[Any]] = {}

    def add(self, rows: Iterable[Record], order: Order) -> None:
        """Take the rows of one rank."""
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
        """One row a group, in the order of their first; `more` fills in the fields that are `apart`."""
        ordered = sorted(self._groups.items(), key=lambda item: item[1][0])
        return tuple(
            self._record(**more(dict(zip((*self._keys, *self._summed), (*key, *group[1:]), strict=True))))
            for key, group in ordered
        )


def _getter(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """What gives these fields of a record, as a tuple whatever their number."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda record: tuple(getattr(record, name) for name in names)


class Firsts(Generic[Item]):
    """Different things, in the order in which the ranks have them first."""

    def __init__(self) -> None:
        self._places: dict[Item, _Place] = {}

    def add(self, items: Iterable[Item], order: Order) -> None:
        """Take the things of one rank."""
        for place, item in enumerate(items):
            known = self._places.get(item)
            if known is None or (order, place) < known:
                self._places[item] = (order, place)

    def items(self) -> list[Item]:
        """All items, in order."""
        return sorted(self._places, key=self._places.__getitem__)


class Common(Generic[Record]):
    """What records have in common."""

    def __init__(self) -> None:
        self._first: Record | None = None
        self._unlike: set[str] = set()

    def add(self, record: Record) -> None:
        """Take one more."""
        if self._first is None:
            self._first = record
        elif record != self._first:
            names = (name for name, _ in types_of(type(record)))
            self._unlike |= {name for name in names if getattr(record, name) != getattr(self._first, name)}

    def record(self) -> Record:
        """The fields that are alike in all; of others lists are empty, what else there is is `None`."""
        if self._first is None:
            raise ValueError("nothing was added")
        kinds = types_of(type(self._first))
        values = {name: self.value(name, () if kind == tuple[str, ...] else None) for name, kind in kinds}
        return type(self._first)(**values)

    def value(self, name: str, unlike: Any = None) -> Any:
        """A field where it is alike in all, else `unlike`; `None` of no record."""
        return unlike if name in self._unlike else getattr(self._first, name, None)


# -------------------------------------------------------------------------------------------------- a few small records


def merged(records: Sequence[Any], by_type: Mapping[Any, Callable[[list[Any]], Any]]) -> Any:
    """One record for several: each field by the rule for its type; without one, the value if all have the same."""
    record: type = type(records[0])
    together = {}
    for name, kind in types_of(record):
        values = [getattr(record, name) for record in records]
        together[name] = by_type.get(kind, same)(values)
    return record(**together)


@cache
def types_of(record: type[Any]) -> tuple[tuple[str, Any], ...]:
    """The name and type of each field; finding them out takes time."""
    return tuple((field.name, field.type) for field in fields(record))


def sum_of(values: list[int | None]) -> int | None:
    """The sum of the known values; `None` where none is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def same(values: list[Any]) -> Any:
    """The value that all have; `None` where they differ."""
    return values[0] if all(value == values[0] for value in values) else None
