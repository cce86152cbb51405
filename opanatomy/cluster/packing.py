"""A rank's summary as bytes, and back: MessagePack, with the bytes of its columns."""

from __future__ import annotations

from functools import cache
from typing import Any, get_type_hints

import msgspec
import numpy as np
from isal import isal_zlib
from msgspec import Struct

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.columns import Categorical, Int64
from opanatomy.records.rank_summary import RankSummary

#: What the fields of a column are called: its numbers, truths, or codes and values.
_NUMBERS, _TRUTHS, _CODES, _VALUES = "numbers", "truths", "codes", "values"


def packed_summary(summary: RankSummary) -> bytes:
    """The summary in few bytes."""
    names = RankSummary.__struct_fields__
    values = {name: getattr(summary, name) for name in names}
    plain = {name: _packed_table(value) if is_table(type(value)) else value for name, value in values.items()}
    data: bytes = isal_zlib.compress(msgspec.msgpack.encode(plain, enc_hook=str), 1)
    return data


def unpacked_summary(data: bytes) -> RankSummary:
    """The summary that was packed; an error of any kind where the bytes are none."""
    kinds = kinds_of_fields()
    raw = msgspec.msgpack.decode(isal_zlib.decompress(data), type=dict[str, msgspec.Raw])
    return RankSummary(**{name: _value(kinds[name], value) for name, value in raw.items()})


@cache
def kinds_of_fields() -> dict[str, Any]:
    """The type of each field of a summary."""
    return get_type_hints(RankSummary)


def is_table(kind: Any) -> bool:
    """Whether it is a record of columns."""
    return isinstance(kind, type) and issubclass(kind, Struct) and kind is not Anatomy


def _value(kind: Any, raw: msgspec.Raw) -> Any:
    if not is_table(kind):
        return _decoder(kind).decode(raw)
    columns = _decoder(dict[str, dict[str, Any]]).decode(raw)
    return kind(**{name: _unpacked_column(column) for name, column in columns.items()})


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind, dec_hook=lambda text, value: text(value))


def _packed_table(table: Any) -> dict[str, dict[str, Any]]:
    return {name: _packed_column(getattr(table, name)) for name in table.__struct_fields__}


def _packed_column(column: Any) -> dict[str, Any]:
    if isinstance(column, Categorical):
        return {_CODES: _bytes(column.codes), _VALUES: list(column.values)}
    return {_TRUTHS if column.dtype == np.bool_ else _NUMBERS: _bytes(column)}


def _unpacked_column(column: dict[str, Any]) -> Any:
    if _CODES in column:
        return Categorical(_numbers(column[_CODES]), tuple(column[_VALUES]))
    return _numbers(column[_TRUTHS]).astype(np.bool_) if _TRUTHS in column else _numbers(column[_NUMBERS])


def _bytes(column: Any) -> bytes:
    data: bytes = np.asarray(column, dtype="<i8").tobytes()
    return data


def _numbers(data: bytes) -> Int64:
    return np.frombuffer(data, dtype="<i8").astype(np.int64, copy=False)
