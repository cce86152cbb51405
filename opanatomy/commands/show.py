"""Where a report goes: the one place that prints reports and opens report files."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from opanatomy.commands.output import check_writable, same_file, written_whole
from opanatomy.errors import OutputError, UsageError
from opanatomy.model import Anatomy

#: What stands for the report's marks where the terminal's encoding has none of them.
_PLAIN = str.maketrans("─━█▏▎▍▌▋▊▉■…≥", "--#.......#~>")


def check_output(arguments: argparse.Namespace, traces: Iterable[Path] = ()) -> None:
    """Raise before the expensive part where the report cannot be written or has no such format.

    `traces` are files that the report must not take the place of.
    """
    if arguments.output == "":
        raise UsageError("-o: the name is empty - give a file name, or - for stdout")
    chosen_format(arguments)
    if arguments.output in (None, "-"):
        _check_open()
        return
    target = Path(arguments.output)
    if any(same_file(target, trace) for trace in traces):
        raise UsageError(f"-o {target}: that is the trace - choose another name for the report")
    check_writable(target, force=arguments.force, needed_bytes=1 << 20)


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
        write_out(text, machine_readable=name != "terminal")
        return
    target = Path(arguments.output)
    with written_whole(target) as partial:
        partial.write_text(text, encoding="utf-8")
    note(f"report: {target}")


def _check_open() -> None:
    """Raise where the caller closed stdout, which leads nowhere now."""
    if getattr(sys.stdout, "name", None) == os.devnull:
        raise OutputError("cannot write the report to stdout: it is closed - leave it open or use -o FILE")


def write_out(text: str, *, machine_readable: bool) -> None:
    """`text` on stdout: what a machine reads in UTF-8, what a person reads in what the terminal shows."""
    _check_open()
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        if machine_readable and reconfigure is not None:
            reconfigure(encoding="utf-8", errors="backslashreplace")
        else:
            text = text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        # What is still in the buffer must not fail a second time when Python flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OutputError(f"cannot write the report to stdout: {error.strerror} - free some space or use -o") from error


def wants_color() -> bool:
    """Whether stdout is a terminal that shows colour and `NO_COLOR` is not set."""
    if os.environ.get("NO_COLOR"):
        return False
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def note(text: str) -> None:
    """A line for the user on stderr; a name that is no text keeps a mark for each such byte."""
    from opanatomy.privacy.texts import spoken

    with suppress(OSError):
        print(spoken(os.fsencode(text).decode(errors="replace")), file=sys.stderr, flush=True)
