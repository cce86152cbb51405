"""A rank's summary as bytes, and back: MessagePack, its columns packed."""

from __future__ import annotations

from functools import cache
from typing import Any, get_type_hints

import msgspec
import numpy as np
from msgspec import Struct

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.columns import Categorical
from opanatomy.records.packed import packed, unpacked
from opanatomy.records.rank_summary import RankSummary

#: What the fields of a column are called: its numbers, truths, or codes and values.
_NUMBERS, _TRUTHS, _CODES, _VALUES = "numbers", "truths", "codes", "values"


def packed_summary(summary: RankSummary) -> bytes:
    """The summary in few bytes."""
    return packed_fields(summary, RankSummary.__struct_fields__)


def unpacked_summary(data: bytes) -> RankSummary:
    """The summary that was packed; `ValueError` where the bytes are none."""
    return RankSummary(**unpacked_fields(data))


def packed_fields(summary: RankSummary, names: tuple[str, ...]) -> bytes:
    """These fields of a summary."""
    values = {name: getattr(summary, name) for name in names}
    plain = {name: _packed_table(value) if is_table(type(value)) else value for name, value in values.items()}
    return msgspec.msgpack.encode(plain, enc_hook=str)


def unpacked_fields(data: bytes) -> dict[str, Any]:
    """The fields that were packed, by their names; `ValueError` where the bytes are none."""
    kinds = kinds_of_fields()
    try:
        raw = msgspec.msgpack.decode(data, type=dict[str, msgspec.Raw])
        return {name: _value(kinds[name], value) for name, value in raw.items()}
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise ValueError(f"no packed summary: {error}") from error


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
        return {_CODES: packed(column.codes), _VALUES: list(column.values)}
    return {_TRUTHS if column.dtype == np.bool_ else _NUMBERS: packed(column)}


def _unpacked_column(column: dict[str, Any]) -> Any:
    if _CODES in column:
        return Categorical(unpacked(column[_CODES]), tuple(column[_VALUES]))
    return unpacked(column[_TRUTHS]).astype(np.bool_) if _TRUTHS in column else unpacked(column[_NUMBERS])
