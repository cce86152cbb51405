"""Lay an anatomy out as text: `sections/` holds the contents as data; a file in `formats/` lays them out.

A format decides nothing and prints nothing.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from opanatomy.report.formats import FORMATS, PICTURES, VIEWERS, format_named

if TYPE_CHECKING:
    from opanatomy.records.anatomy import Anatomy
    from opanatomy.records.experiment import Techniques


def format_of(path: str | PurePath) -> str:
    """Return the name of the format for a file of this name; raise `UsageError` for an unknown ending."""
    from opanatomy.errors import UsageError

    name = PurePath(path).name.lower()
    # `.digest.md` before `.md`.
    formats = sorted(
        ((format_named(name).ending, name) for name in (*FORMATS, *PICTURES, *VIEWERS)),
        key=lambda pair: -pair[0].count("."),
    )
    for ending, of_ending in formats:
        if name.removesuffix(ending) not in (name, ""):
            return of_ending
    endings = ", ".join(ending for ending, _ in formats)
    raise UsageError(f"{path}: no report format has this file extension - use one of {endings}, or pass -f FORMAT")


def terminal_report(
    report: Anatomy | Techniques,
    *,
    width: int = 80,
    color: bool = False,
    top: int = 8,
    brief: bool = False,
    sections: tuple[str, ...] = (),
) -> str:
    """Return the report as lines of at most `width` cells, with ANSI colours if `color`, and the `top` operators.

    `brief` selects only the first screen, `sections` only these parts.
    """
    from opanatomy.report.formats import terminal
    from opanatomy.report.section import Page

    page = Page(width=width, color=color, top=top, brief=brief, sections=sections)
    return terminal.terminal_report(report, page)


def read_anatomy(text: str | bytes) -> Anatomy:
    """Return the anatomy in a JSON report; raise `OpanatomyError` for any other text."""
    from opanatomy.report.formats import json

    return json.read_anatomy(text)
