"""Tables that grow batch by batch: a value takes the eight bytes of its column, and no object."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Hashable, Iterable
from decimal import Decimal
from math import nan
from typing import Any, Final, Generic, TypeVar

import numpy as np

from opanatomy.records.columns import DeviceWork, Float64, HostEvents, Int64, Launches, ProfilerEvents
from opanatomy.records.memory_columns import MemoryEvents

Key = TypeVar("Key", bound=Hashable)
Record = TypeVar("Record", HostEvents, Launches, DeviceWork, MemoryEvents, ProfilerEvents)

#: This many times become nanoseconds at once.
_AT_ONCE: Final = 1 << 14


class Numbers(dict[Key, int]):
    """Numbers for values in the order of their first use."""

    def __missing__(self, key: Key) -> int:
        self[key] = number = len(self)
        return number

    def of(self, keys: Iterable[Key]) -> list[int]:
        """The number of each key."""
        return list(map(self.__getitem__, keys))


class Table(Generic[Record]):
    """A record of columns that grow together: `..._ns` are times, the others integers but for those named."""

    def __init__(self, record: type[Record], *, fractions: Collection[str] = ()) -> None:
        self.rows = 0
        self._record: Callable[..., Record] = record
        self._columns: dict[str, _Integers | _Times | _Fractions] = {
            name: _Times() if name.endswith("_ns") else _Fractions() if name in fractions else _Integers()
            for name in record.__struct_fields__
        }

    def extend(self, rows: int, **columns: list[Any]) -> None:
        """Append rows, column by column."""
        self.rows += rows
        for name, values in columns.items():
            self._columns[name].extend(values)

    def record(self) -> Record:
        """The columns as arrays, which may be written to; nothing can be appended then."""
        return self._record(**{name: column.array() for name, column in self._columns.items()})


class _Packed:
    """Eight bytes for each value, batch by batch."""

    def __init__(self) -> None:
        self._packed: list[bytes] = []

    def _joined(self) -> bytearray:
        joined = bytearray().join(self._packed)
        self._packed.clear()
        return joined


class _Integers(_Packed):
    """-1 for one that is missing."""

    def extend(self, values: list[Any]) -> None:
        try:
            self._packed.append(struct.pack(f"{len(values)}q", *values))
        except struct.error:
            self._packed.append(struct.pack(f"{len(values)}q", *(-1 if value is None else value for value in values)))

    def array(self) -> Int64:
        return np.frombuffer(self._joined(), dtype=np.int64)


class _Fractions(_Packed):
    """NaN for one that is missing or text."""

    def extend(self, values: list[Any]) -> None:
        numbers = [nan if value is None or isinstance(value, str) else value for value in values]
        self._packed.append(struct.pack(f"{len(values)}d", *numbers))

    def array(self) -> Float64:
        return np.frombuffer(self._joined(), dtype=np.float64)


class _Times(_Packed):
    """Microseconds, as floats or from some batch on as decimals -> whole nanoseconds, 0 for one that is missing."""

    def __init__(self) -> None:
        super().__init__()
        self._us: list[bytes] = []
        self._waiting = 0
        self._exact = False

    def extend(self, values: list[Any]) -> None:
        self._exact = self._exact or _has_decimals(values)
        if self._exact:
            self._round()
            self._packed.append(struct.pack(f"{len(values)}q", *map(nanoseconds, values)))
            return
        try:
            self._us.append(struct.pack(f"{len(values)}d", *values))
        except struct.error:
            self._us.append(struct.pack(f"{len(values)}d", *(0.0 if value is None else value for value in values)))
        self._waiting += len(values)
        if self._waiting > _AT_ONCE:
            self._round()

    def _round(self) -> None:
        us = np.frombuffer(b"".join(self._us))
        whole = us.astype(np.int64)
        self._packed.append((whole * 1000 + np.rint((us - whole) * 1000).astype(np.int64)).tobytes())
        self._us, self._waiting = [], 0

    def array(self) -> Int64:
        self._round()
        return np.frombuffer(self._joined(), dtype=np.int64)


def _has_decimals(values: list[Any]) -> bool:
    try:
        sum(values, 0.0)  # it fails at a decimal, and at one that is missing
    except TypeError:
        return Decimal in map(type, values)
    return False


def nanoseconds(us: float | Decimal | None) -> int:
    """A time in microseconds as whole nanoseconds."""
    if us is None:
        return 0
    whole = int(us)
    return whole * 1000 + round((us - whole) * 1000)
