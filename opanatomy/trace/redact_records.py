"""Redact the records of a report, from which every format is made.

Numbers, terms of an enumeration and packed columns are written as they are; every text is masked.
"""

from __future__ import annotations

import re
from enum import Enum
from operator import is_not
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.records.columns import is_packed
from opanatomy.records.patterns import regex
from opanatomy.records.signature import SignatureText
from opanatomy.trace.redact import PATH, REDACTED, Texts, is_plain_constant, words

Record = TypeVar("Record")

#: Fields of our own words, which are written as they are.
OWN: Final = words("source formula rule term quantity unit conventions created")
#: Fields with names of operators, kernels, data types, devices and versions, which are masked as in the trace; all
#: other texts are sentences.
NAMES: Final = words(
    "operator operators part_of first_operator kernel kernels saved_by collective dtype kind head activation device"
    " other_devices device_kind torch cuda driver transformers python processor lists list_arguments profiler_times_ns"
)
#: Fields with paths of modules, which are masked as their ranges in the trace.
MODULES: Final = words("module modules gradients")
#: What `everything` leaves of fields that say who ran what from where; of several ranks their number stays.
PLACES: Final = {"command": REDACTED, "trace": PATH, "max_trace": PATH, "file": PATH}
#: Fields with the arguments of a call.
ARGUMENTS: Final = words("signature signatures")

_RANKS: Final = regex(r"(\d+ ranks): .*", re.DOTALL)
_TENSOR: Final = regex(r"(?:\?|[a-z][a-z0-9_]*)\[[\d,]*\](?: sparse \d+| without strides)?\]*")


def redacted(record: Record, texts: Texts) -> Record:
    """Return the record, and all records in it, redacted; the same object if nothing is masked."""
    result: Record = _value(record, "", texts)
    return result


def _value(value: Any, field: str, texts: Texts) -> Any:
    if value is None or field in OWN or isinstance(value, (int, float, Enum)):
        return value
    if isinstance(value, str):
        masked = _text(value, field, texts)
        return value if masked == value else masked
    if isinstance(value, bytes):
        return value if is_packed(value) else b""
    if isinstance(value, Struct):
        return _record(value, texts)
    if isinstance(value, (tuple, list)):
        items = [_value(item, field, texts) for item in value]
        return type(value)(items) if any(map(is_not, items, value)) else value
    return _mapping(value, field, texts) if isinstance(value, dict) else value


def _record(record: Any, texts: Texts) -> Any:
    values = {name: getattr(record, name) for name in record.__struct_fields__}
    changed = {name: new for name, value in values.items() if (new := _value(value, name, texts)) is not value}
    if texts.everything and values.get("model_source") in ("folder", "function"):
        changed["model"] = PATH
    return replace(record, **changed) if changed else record


def _mapping(mapping: dict[Any, Any], field: str, texts: Texts) -> dict[Any, Any]:
    """Return the mapping redacted; add up the times of names that become equal."""
    result: dict[Any, Any] = {}
    for key, value in mapping.items():
        name, masked = _value(key, field, texts), _value(value, field, texts)
        result[name] = result[name] + masked if name in result and type(masked) is int else masked
    return mapping if result == mapping else result


def _text(text: str, field: str, texts: Texts) -> str:
    if field in ARGUMENTS:
        return SignatureText(", ".join(map(_argument, text.split(", "))) if texts.everything else texts.text(text))
    if field in MODULES:
        return texts.module(text)
    if field in NAMES:
        return texts.text(text)
    if field in PLACES and texts.everything:
        ranks = _RANKS.fullmatch(text)
        return ranks[1] if ranks else PLACES[field]
    return texts.sentence(text)


def _argument(text: str) -> str:
    """Return an argument of a call; without its text, as in the redacted trace."""
    core = text.lstrip("[")
    if core.rstrip("]") == "-" or _TENSOR.fullmatch(core) or is_plain_constant(core.rstrip("]")):
        return text
    return text[: len(text) - len(core)] + "-" + core[len(core.rstrip("]")) :]
