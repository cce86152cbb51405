"""What a file in `formats/` declares as its `FORMAT`."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from opanatomy.records.compared import GateResult
from opanatomy.records.reports import Report


class Page(Struct, frozen=True, kw_only=True):
    """What a format for readers lays the report out on: cells across, and whether it shows colour.

    `brief` wants the first screen alone, `full` all of the report; where neither is said a terminal shows the first
    screen. `sections` wants those of these names (of `sections.SECTIONS`) alone; tables have
    the `top` rows, that of the operators in the order of `sort`. `source` is what a command calls the trace by,
    `sides` what one calls each side of a comparison by; `None` is what none can call.
    A first screen of more than `height` lines has fewer rows.
    With `more` the first screen ends with how to see the rest. `gates` are those on a single report.
    """

    width: int = 80
    color: bool = False
    brief: bool = False
    full: bool = False
    sections: tuple[str, ...] = ()
    top: int = 8
    sort: str = "time"
    source: str | None = None
    sides: tuple[str | None, ...] = ()
    height: int | None = None
    more: bool = False
    gates: tuple[GateResult, ...] = ()


class Format(Struct, frozen=True, kw_only=True):
    """One format: how the names of its files end, the function that makes the text, and whether a machine reads it."""

    ending: str
    write: Callable[[Report, Page], str]
    machine_readable: bool
