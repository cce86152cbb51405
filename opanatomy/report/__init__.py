"""Stage 7: an anatomy as text, one file per format; a reporter decides nothing and prints nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath
from typing import Final

from opanatomy.errors import UsageError
from opanatomy.records.anatomy import Anatomy
from opanatomy.report.csv_report import csv_report
from opanatomy.report.json_report import json_report, read_anatomy
from opanatomy.report.verdict import verdict

__all__ = ["REPORTERS", "Reporter", "format_of", "read_anatomy", "terminal_report", "verdict"]

Reporter = Callable[[Anatomy], str]


def terminal_report(anatomy: Anatomy, *, width: int = 80, color: bool = False, top: int = 8) -> str:
    """The report as lines of at most `width` cells, with ANSI colours if `color`, and the `top` operators."""
    from opanatomy.report import terminal

    return terminal.terminal_report(anatomy, width=width, color=color, top=top)


REPORTERS: Final[dict[str, Reporter]] = {
    "terminal": terminal_report,
    "json": json_report,
    "csv": csv_report,
}

_ENDINGS: Final = {".txt": "terminal", ".json": "json", ".csv": "csv"}


def format_of(path: str | PurePath) -> str:
    """The name of the format that a file of this name has; `UsageError` where its ending is of none."""
    ending = PurePath(path).suffix.lower()
    if ending not in _ENDINGS:
        known = ", ".join(_ENDINGS)
        raise UsageError(
            f"no report format has this ending - {path} - end the name in one of {known}, or say -f FORMAT"
        )
    return _ENDINGS[ending]
