"""Tables of interned values and whole numbers, with one way to choose rows and to sum them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct

from opanatomy.records.columns import Bool, Categorical, Int64, unique

#: A figure that is not known.
NOT_KNOWN: Final = np.iinfo(np.int64).min
#: Keys are combined into one number up to this.
_LARGEST: Final = 2**62


class Table(Struct, frozen=True):
    """Rows with keys, whose values are interned (`None` is none), and figures, whole numbers or `NOT_KNOWN`."""

    keys: Mapping[str, Categorical[Any]]
    figures: Mapping[str, Int64]

    def __len__(self) -> int:
        column = next(iter((*self.figures.values(), *(key.codes for key in self.keys.values()))), ())
        return len(column)

    def where(self, rows: Bool | Int64) -> Table:
        """Return the rows of a mask, or these rows in their order."""
        places: Int64 = np.flatnonzero(rows) if rows.dtype == bool else rows.astype(np.int64)
        return Table(
            {name: key.take(places) for name, key in self.keys.items()},
            {name: figure[places] for name, figure in self.figures.items()},
        )

    def parts(self, *names: str) -> Iterator[tuple[tuple[Any, ...], Int64]]:
        """Yield the distinct values of these keys, in the order of their codes, with the rows that have them."""
        order, starts = self._grouped(names)
        values = zip(*(self.keys[name].take(order[starts]).decoded() for name in names), strict=True)
        yield from zip(values, np.split(order, starts[1:]) if len(starts) else (), strict=True)

    def by(self, *names: str) -> Table:
        """Return a row for each distinct combination of these keys, with the sums of all figures.

        A sum is over what is known; it is not known where nothing is.
        """
        order, starts = self._grouped(names)
        return Table(
            {name: self.keys[name].take(order[starts]) for name in names},
            {name: _sums(figure[order], starts) for name, figure in self.figures.items()},
        )

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each row as its values by name; what is not known is `None`."""
        columns = [key.decoded() for key in self.keys.values()]
        for figure in self.figures.values():
            values = figure.tolist()
            columns.append([None if value == NOT_KNOWN else value for value in values])
        names = (*self.keys, *self.figures)
        for row in zip(*columns, strict=True):
            yield dict(zip(names, row, strict=True))

    def _grouped(self, names: Sequence[str]) -> tuple[Int64, Int64]:
        """Return the rows in the order of these keys, and where each combination of them begins."""
        place, most = np.zeros(len(self), dtype=np.int64), 1
        for name in names:
            key = self.keys[name]
            if most * (len(key.values) + 1) > _LARGEST:
                known = unique(place)
                place, most = known.inverse, len(known.values)
            place = place * (len(key.values) + 1) + key.codes + 1
            most *= len(key.values) + 1
        order = np.argsort(place, kind="stable")
        return order, np.flatnonzero(np.diff(place[order], prepend=-1))


def figure(column: Int64 | Bool, known: Bool | None = None) -> Int64:
    """Return a column of numbers or marks as a figure, which is not known where `known` is not set."""
    whole = column.astype(np.int64)
    return whole if known is None else np.where(known, whole, NOT_KNOWN)


def _sums(ordered: Int64, starts: Int64) -> Int64:
    if not len(starts):
        return ordered[:0]
    known = ordered != NOT_KNOWN
    sums = np.add.reduceat(np.where(known, ordered, 0), starts)
    return np.where(np.add.reduceat(known.astype(np.int64), starts) > 0, sums, NOT_KNOWN)
