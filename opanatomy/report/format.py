"""What a file in `formats/` declares as its `FORMAT`."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from opanatomy.records.reports import Report


class Page(Struct, frozen=True, kw_only=True):
    """What a format for readers lays the report out on: cells across, and whether it shows colour."""

    width: int = 80
    color: bool = False


class Format(Struct, frozen=True, kw_only=True):
    """One format: how the names of its files end, the function that makes the text, and whether a machine reads it."""

    ending: str
    write: Callable[[Report, Page], str]
    machine_readable: bool
