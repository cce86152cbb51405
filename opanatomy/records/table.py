"""Tables of interned values and integers, with one way to select, sum and serialize rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np
from msgspec import Struct

from opanatomy.records.columns import Bool, Categorical, Int64, categorical_of, concat, unique

#: An unknown figure.
NOT_KNOWN: Final = np.iinfo(np.int64).min
#: A table of more rows has a column that differs among them.
_MAX_EQUAL_ROWS: Final = 1_000
#: Keys are combined into one number up to this.
_MAX_COMBINED_KEY: Final = 2**62
#: A kind of table.
Kind = TypeVar("Kind", bound="Table")
#: The names of a key's parts as plain values.
_VALUES, _CODES = "values", "codes"


class Column(Struct, frozen=True, kw_only=True):
    """The contents of a column: a key, or a number that is summed over rows.

    `unit` is a number's unit, empty for a key. `values` converts a key's plain values; `text` determines how its texts
    are masked: as a `name`, the path of a `module`, the `arguments` of a call, or (`own`) not at all. Rows that have
    one of the columns `known_with` also have this one.
    """

    name: str
    meaning: str
    unit: str = ""
    values: Callable[[Any], Any] = str
    text: str = "own"
    known_with: tuple[str, ...] = ()


class Table:
    """Rows with interned keys (`None` means none) and integer columns, whose values may be `NOT_KNOWN`.

    Tables are equal if they have the same names and rows in the same order.
    """

    __slots__ = ("figures", "keys")

    def __init__(self, keys: Mapping[str, Categorical[Any]], figures: Mapping[str, Int64]) -> None:
        self.keys, self.figures = dict(keys), dict(figures)

    def __len__(self) -> int:
        column = next(iter((*self.figures.values(), *(key.codes for key in self.keys.values()))), ())
        return len(column)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Table) or self.keys.keys() != other.keys.keys():
            return False
        figures = self.figures.keys() == other.figures.keys() and all(
            np.array_equal(figure, other.figures[name]) for name, figure in self.figures.items()
        )
        return figures and all(key.decoded() == other.keys[name].decoded() for name, key in self.keys.items())

    def __hash__(self) -> int:
        return hash((*self.keys, *((name, figure.tobytes()) for name, figure in self.figures.items())))

    def __repr__(self) -> str:
        return f"<{len(self)} rows>"

    def known(self, name: str) -> Bool:
        """Return a mask of the rows with a value in this column."""
        rows: Bool = self.keys[name].codes >= 0 if name in self.keys else self.figures[name] != NOT_KNOWN
        return rows

    def where(self: Kind, rows: Bool | Int64) -> Kind:
        """Return the rows selected by a mask or by indices, in that order."""
        indices: Int64 = np.flatnonzero(rows) if rows.dtype == bool else rows.astype(np.int64)
        return type(self)(
            {name: key.take(indices) for name, key in self.keys.items()},
            {name: figure[indices] for name, figure in self.figures.items()},
        )

    def parts(self, *names: str) -> Iterator[tuple[tuple[Any, ...], Int64]]:
        """Yield the distinct values of these keys, ordered by code, with their rows."""
        order, starts = self._grouped(names)
        values = zip(*(self.keys[name].take(order[starts]).decoded() for name in names), strict=True)
        yield from zip(values, np.split(order, starts[1:]) if len(starts) else (), strict=True)

    def by(self, *names: str) -> Table:
        """Group by these keys and sum all number columns.

        A sum covers the known values; it is unknown if all values are.
        """
        order, starts = self._grouped(names)
        return Table(
            {name: self.keys[name].take(order[starts]) for name in names},
            {name: _sums(figure[order], starts) for name, figure in self.figures.items()},
        )

    def with_columns(self: Kind, keys: Mapping[str, Categorical[Any]], figures: Mapping[str, Int64]) -> Kind:
        """Return the rows with these columns added, or replacing those with the same name."""
        return type(self)({**self.keys, **keys}, {**self.figures, **figures})

    def compact(self: Kind) -> Kind:
        """Return the same rows with only the key values that occur."""
        keys: dict[str, Categorical[Any]] = {}
        for name, key in self.keys.items():
            used = unique(key.codes)
            first = int(len(used.values) and used.values[0] < 0)  # none is no value
            keys[name] = Categorical(used.inverse - first, tuple(key.values[code] for code in used.values[first:]))
        return type(self)(keys, self.figures)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each row as a mapping of names to values; unknown numbers are `None`."""
        columns = [key.decoded() for key in self.keys.values()]
        columns += [_known(figure.tolist()) for figure in self.figures.values()]
        names = (*self.keys, *self.figures)
        for row in zip(*columns, strict=True):
            yield dict(zip(names, row, strict=True))

    def plain(self) -> dict[str, Any]:
        """Serialize the table as plain values by column name; a constant column is stored once."""
        columns: dict[str, Any] = {"rows": len(self)}
        for name, key in self.compact().keys.items():
            columns[name] = {_VALUES: list(key.values), _CODES: _once(key.codes.tolist())}
        return columns | {name: _once(_known(figure.tolist())) for name, figure in self.figures.items()}

    def _grouped(self, names: Sequence[str]) -> tuple[Int64, Int64]:
        """Return the rows sorted by these keys, and where each combination begins."""
        index, most = np.zeros(len(self), dtype=np.int64), 1
        for name in names:
            key = self.keys[name]
            if most * (len(key.values) + 1) > _MAX_COMBINED_KEY:
                known = unique(index)
                index, most = known.inverse, len(known.values)
            index = index * (len(key.values) + 1) + key.codes + 1
            most *= len(key.values) + 1
        order = np.argsort(index, kind="stable")
        return order, np.flatnonzero(np.diff(index[order], prepend=-1))


def empty(kind: type[Kind], columns: Sequence[Column]) -> Kind:
    """Return an empty table of this kind with these columns."""
    none = np.zeros(0, dtype=np.int64)
    keys: dict[str, Categorical[Any]] = {column.name: Categorical(none, ()) for column in columns if not column.unit}
    return kind(keys, {column.name: none for column in columns if column.unit})


def concatenated(tables: Sequence[Kind]) -> Kind:
    """Concatenate tables; columns that a table lacks are none or unknown in its rows."""
    keys: dict[str, Any] = {name: None for table in tables for name in table.keys}
    figures: dict[str, Any] = {name: None for table in tables for name in table.figures}
    for name in keys:
        keys[name] = concat(*(table.keys.get(name) or Categorical(np.full(len(table), -1), ()) for table in tables))
    for name in figures:
        columns = (table.figures.get(name, np.full(len(table), NOT_KNOWN)) for table in tables)
        figures[name] = np.concatenate([*columns])
    return type(tables[0])(keys, figures)


def table_of_columns(keys: Mapping[str, Sequence[Any]], figures: Mapping[str, Sequence[int | None]]) -> Table:
    """Build a table from these columns, in which `None` means none, or an unknown number."""
    interned = {}
    for name, values in keys.items():
        numbers: dict[Any, int] = {None: -1}
        codes = [numbers.setdefault(value, len(numbers) - 1) for value in values]
        interned[name] = Categorical(np.array(codes, dtype=np.int64), tuple(numbers)[1:])
    return Table(interned, {name: _figure_of(values) for name, values in figures.items()})


def table_of(plain: Any, types: Mapping[str, Callable[[Any], Any]]) -> Table:
    """Deserialize a table from plain values, converting keys to their types.

    Raise `ValueError` or `TypeError` if this is not a table, or columns differ in length.
    """
    rows = plain.get("rows") if isinstance(plain, dict) else None
    if type(rows) is not int or rows < 0:
        raise ValueError(f"a table's `rows` is {rows!r}, not a non-negative integer")
    codes = (column.get(_CODES) if isinstance(column, dict) else column for column in plain.values())
    if rows > max((len(column) for column in codes if isinstance(column, list)), default=_MAX_EQUAL_ROWS):
        raise ValueError(f"a table claims {rows} rows, but no column has that many")
    keys, figures = {}, {}
    for name, column in plain.items():
        if name == "rows":
            continue
        is_key = isinstance(column, dict)
        numbers = column.get(_CODES) if is_key else column
        numbers = numbers if isinstance(numbers, list) else [numbers] * rows
        if len(numbers) != rows:
            raise ValueError(f"column {name} has {len(numbers)} rows instead of {rows}")
        if not all(number is None or type(number) is int for number in numbers):
            raise TypeError(f"column {name} has a value that is not an integer")
        if any(number is not None and not -(2**62) < number < 2**62 for number in numbers):
            raise ValueError(f"column {name} has a value that is too large")
        numbers = _figure_of(numbers)
        if is_key:
            values = [types.get(name, str)(value) for value in column.get(_VALUES) or ()]
            if len(numbers) and not -1 <= numbers.min() <= numbers.max() < len(values):
                raise ValueError(f"column {name} has a code without a value")
            keys[name] = categorical_of(values, numbers)
        else:
            figures[name] = numbers
    return Table(keys, figures)


def _figure_of(values: Sequence[int | None]) -> Int64:
    return np.array([NOT_KNOWN if value is None else value for value in values], dtype=np.int64)


def _once(values: list[Any]) -> Any:
    return values[0] if len(values) > 1 and values.count(values[0]) == len(values) else values


def _known(values: list[int]) -> list[int | None]:
    return [None if value == NOT_KNOWN else value for value in values]


def figure(column: Int64 | Bool, known: Bool | None = None) -> Int64:
    """Return numbers or booleans as a figure, unknown where `known` is not set."""
    whole = column.astype(np.int64)
    return whole if known is None else np.where(known, whole, NOT_KNOWN)


def _sums(ordered: Int64, starts: Int64) -> Int64:
    if not len(starts):
        return ordered[:0]
    known = ordered != NOT_KNOWN
    sums = np.add.reduceat(np.where(known, ordered, 0), starts)
    return np.where(np.add.reduceat(known.astype(np.int64), starts) > 0, sums, NOT_KNOWN)
