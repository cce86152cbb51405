"""Define the base class of the records that a user gets, and how records become plain values and back."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Annotated, Any, Final, TypeAlias

from msgspec import Meta, Struct
from msgspec.structs import fields

#: The version of the JSON reports of all kinds.
SCHEMA: Final = 3
#: The most characters of a text in a repr, and the most entries of a tuple or a mapping.
_MAX_REPR_LENGTH, _MAX_REPR_ENTRIES = 48, 3
_CUT: Final = "…"

#: Parts of the names of metrics: a text, which is not empty, and an id.
Name: TypeAlias = Annotated[str, Meta(min_length=1)]
Id: TypeAlias = Annotated[str, Meta(pattern=r"^\w+$(?!\n)")]


class Record(Struct, frozen=True, kw_only=True):
    """A record returned to users: compared and hashed by value, including mappings, with a short one-line repr.

    The repr leaves out unknown values and defaults.
    """

    def __hash__(self) -> int:
        return hash((type(self), *(_hashable(getattr(self, name)) for name in self.__struct_fields__)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={_short(value)}' for name, value in _informative(self))})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [(name, _Plain(_short(value))) for name, value in _informative(self)]


class _Plain(str):
    """A string that is its own repr."""

    def __repr__(self) -> str:
        return str(self)


def _informative(record: Record) -> Iterator[tuple[str, Any]]:
    """Yield the fields shown in the repr, with their values."""
    for field in fields(record):
        value = getattr(record, field.name)
        if value is not None and value != field.default and value not in ((), {}):
            yield field.name, value


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return frozenset((key, _hashable(item)) for key, item in value.items())
    return tuple(map(_hashable, value)) if isinstance(value, (tuple, list)) else value


def _short(value: Any) -> str:
    """Shorten a value: keep the ends of a long text, or the first of many entries with their number."""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, str):
        text, half = str(value), (_MAX_REPR_LENGTH - 1) // 2
        return repr(text if len(text) <= _MAX_REPR_LENGTH else f"{text[:half]}{_CUT}{text[-half:]}")
    if isinstance(value, tuple):
        if value and all(isinstance(item, Struct) for item in value):
            return f"<{len(value)} {type(value[0]).__name__}>"
        shown = [_short(item) for item in value[:_MAX_REPR_ENTRIES]]
        return f"({shown[0]},)" if len(value) == 1 else "(" + ", ".join([*shown, *_more(len(value))]) + ")"
    if isinstance(value, dict):
        shown = [f"{_short(key)}: {_short(item)}" for key, item in list(value.items())[:_MAX_REPR_ENTRIES]]
        return "{" + ", ".join([*shown, *_more(len(value))]) + "}"
    return repr(value)


def _more(count: int) -> list[str]:
    return [f"{_CUT} {count - _MAX_REPR_ENTRIES} more"] if count > _MAX_REPR_ENTRIES else []
