"""Where a report goes: the one place that prints reports and opens report files."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from opanatomy.commands.output import check_writable, written_whole
from opanatomy.errors import UsageError
from opanatomy.model import Anatomy


def check_output(arguments: argparse.Namespace) -> None:
    """Raise before the expensive part where the report cannot be written or has no such format."""
    chosen_format(arguments)
    if arguments.output not in (None, "-"):
        check_writable(Path(arguments.output), force=arguments.force, needed_bytes=1 << 20)


def chosen_format(arguments: argparse.Namespace) -> str:
    """The format asked for: `-f`, else the ending of `-o`, else the terminal report."""
    from opanatomy.report import REPORTERS, format_of

    if arguments.format is not None:
        if arguments.format not in REPORTERS:
            raise UsageError(f"-f {arguments.format}: no such format - one of {', '.join(REPORTERS)}")
        return str(arguments.format)
    if arguments.output in (None, "-"):
        return "terminal"
    return format_of(Path(arguments.output))


def show(anatomy: Anatomy, arguments: argparse.Namespace) -> None:
    """The report to stdout, or to the file of `-o`."""
    from opanatomy.report import REPORTERS, terminal_report

    name = chosen_format(arguments)
    to_file = arguments.output not in (None, "-")
    color = not to_file and wants_color()
    width = 100 if to_file else shutil.get_terminal_size((80, 24)).columns
    text = terminal_report(anatomy, width=width, color=color) if name == "terminal" else REPORTERS[name](anatomy)
    if not to_file:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    target = Path(arguments.output)
    with written_whole(target) as partial:
        partial.write_text(text, encoding="utf-8")
    note(f"report: {target}")


def wants_color() -> bool:
    """Whether stdout is a terminal that shows colour and `NO_COLOR` is not set."""
    if os.environ.get("NO_COLOR"):
        return False
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def note(text: str) -> None:
    """A line for the user on stderr."""
    print(text, file=sys.stderr, flush=True)
