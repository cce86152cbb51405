"""A signature as reports write it, with the record that it is the text of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Final

from opanatomy.records.signature import Argument, Signature, Stored, Tensor

_TENSOR: Final = re.compile(
    r"(?P<dtype>\?|\w+)\[(?P<shape>(?:\d{1,18}(?:,\d{1,18})*)?\])"
    r"(?P<stored> without strides| sparse (?P<elements>\d{1,18}))?",
    re.ASCII,
)
_INTEGER: Final = re.compile(r"-?\d{1,18}", re.ASCII)
#: Lists in lists; those of a call have one level.
_DEEPEST: Final = 8


class SignatureText(str):
    """A signature as JSON and people have it; equal, ordered and hashed as its text.

    Those of a trace carry their record. Of one from a report that is read back it is read from the text: all but the
    strides, which no text has.
    """

    def __new__(cls, text: str, record: Signature | None = None) -> SignatureText:
        """The text; with `record` what it is the text of."""
        signature = super().__new__(cls, text)
        if record is not None:
            signature.__dict__["record"] = record
        return signature

    @cached_property
    def record(self) -> Signature:
        """The arguments."""
        return Signature(tuple(_values(self, 0)))


#: That of a call of which the trace has no arguments.
NO_SIGNATURE: Final = SignatureText("", Signature(()))


def text_of(signature: Signature | None) -> SignatureText:
    """The text of a signature, of none empty."""
    return NO_SIGNATURE if signature is None else SignatureText(str(signature), signature)


def _values(text: str, depth: int) -> Iterator[Argument]:
    """The values that are written in a row; what is none is its text, so that they are written alike again."""
    if not text:
        return
    start = level = 0
    for place, character in enumerate(text):
        level += (character == "[") - (character == "]")
        if not level and text.startswith(", ", place):
            yield _value(text[start:place], depth)
            start = place + 2
    yield _value(text[start:], depth)


def _value(text: str, depth: int) -> Argument:
    if text in ("-", "True", "False"):
        return None if text == "-" else text == "True"
    if (tensor := _TENSOR.fullmatch(text)) is not None:
        return _tensor(tensor)
    if text[:1] == "[" and text[-1:] == "]" and len(text) > 1 and depth < _DEEPEST:
        return tuple(_values(text[1:-1], depth + 1))
    value = _number(text)
    return text if str(value) != text else value


def _tensor(match: re.Match[str]) -> Tensor:
    shape, elements = match["shape"][:-1], match["elements"]
    return Tensor(
        tuple(map(int, shape.split(","))) if shape else (),
        None if match["dtype"] == "?" else match["dtype"],
        sparse=Stored(int(elements) if elements else None) if match["stored"] else None,
    )


def _number(text: str) -> int | float | None:
    if _INTEGER.fullmatch(text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return None
