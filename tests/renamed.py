"""A report whose texts are others, to see what a format does with names from anywhere."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from opanatomy.records.signature import SignatureText

Report = TypeVar("Report", bound=msgspec.Struct)


def renamed(report: Report, name: Callable[[str], str]) -> Report:
    """The report with `name(text)` in the place of each text in it: names, warnings, keys of dictionaries."""
    return replace(report, **{field: _renamed(getattr(report, field), name) for field in report.__struct_fields__})


def _renamed(value: Any, name: Callable[[str], str]) -> Any:
    if isinstance(value, Enum) or value is None:
        return value
    if isinstance(value, SignatureText):
        return SignatureText(name(value))
    if isinstance(value, str):
        return name(value)
    if isinstance(value, msgspec.Struct):
        return renamed(value, name)
    if isinstance(value, tuple):
        return tuple(_renamed(item, name) for item in value)
    if isinstance(value, dict):
        return {_renamed(key, name): _renamed(item, name) for key, item in value.items()}
    return value


class Names:
    """Another name for each text, always the same for the same one, from a list that begins anew at its end."""

    def __init__(self, names: tuple[str, ...], first: int = 0) -> None:
        self.names, self.first, self.given = names, first, dict[str, str]()

    def __call__(self, text: str) -> str:
        place = self.first + len(self.given)
        # What is given out a second time is distinguished by how often the list was gone through.
        round_ = len(self.given) // len(self.names)
        return self.given.setdefault(text, self.names[place % len(self.names)] + str(round_ or ""))
