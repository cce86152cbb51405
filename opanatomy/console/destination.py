"""Where a report goes: the one place that prints reports and opens report files."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.console.page import wanted_page
from opanatomy.console.stdout import check_open, columns_of, say, write_out
from opanatomy.errors import OutputError, UsageError
from opanatomy.files.addresses import check_no_address
from opanatomy.files.outputs import Claim, claimed, same_file
from opanatomy.option_values import named
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.reports import Report
from opanatomy.report.format import Page

if TYPE_CHECKING:
    from opanatomy.gates.judging import Gate
    from opanatomy.records.compared import GateResult


class Destination(Struct, frozen=True, kw_only=True):
    """Where the report goes, held from the start: the file of `-o`, or stdout; and the gates on a single report."""

    format: str
    stream: TextIO
    page: Page
    claim: Claim | None = None
    gates: tuple[Gate, ...] = ()


@contextmanager
def destination(
    arguments: argparse.Namespace,
    *,
    stem: str,
    traces: Iterable[Path] = (),
    stream: TextIO | None = None,
    read: str = "trace",
    gates: tuple[Gate, ...] = (),
) -> Iterator[Destination]:
    """The destination, claimed before the expensive part; raises where the report cannot be written there.

    `stem` begins the name of a report in a folder, `traces` are files that the report must not take the place of,
    which a message calls `read`, `stream` is stdout where `sys.stdout` is not.
    """
    out = sys.stdout if stream is None else stream
    if arguments.output == "":
        raise UsageError("-o: the name is empty - give a file name, or - for stdout")
    name, traces = chosen_format(arguments), list(traces)
    page = wanted_page(arguments, name, traces)
    if _is_stdout(arguments.output):
        check_open(out)
        yield Destination(format=name, stream=out, page=page, gates=gates)
        return
    check_no_address("-o", arguments.output)
    from opanatomy.report import format_named

    with in_folder(arguments.output, f"{stem}.report{format_named(name).ending}") as (target, numbered):
        if any(same_file(target, trace) for trace in traces):
            raise UsageError(f"-o {target}: that is the {read} - choose another name for the report")
        with claimed(target, force=arguments.force, numbered=numbered, needed_bytes=1 << 20) as claim:
            yield Destination(format=name, stream=out, page=page, claim=claim, gates=gates)


@contextmanager
def in_folder(name: str, default: str) -> Iterator[tuple[Path, bool]]:
    """The file that an option names, and whether that is `default` in a folder.

    A folder is one that exists or whose name ends in a slash, which is made; if nothing comes to lie in it, it goes.
    """
    path = Path(name)
    if not os.path.isdir(path) and not name.endswith(("/", os.sep)):
        yield path, False
        return
    made = _made(path)
    try:
        yield path / default, True
    finally:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()


def _made(folder: Path) -> list[Path]:
    """The folders that had to be made for this one, innermost first."""
    try:
        folder = Path(os.path.abspath(folder))
    except OSError as error:
        raise OutputError(
            f"cannot make the folder {folder}: the current folder is gone - choose another one"
        ) from error
    missing = [parent for parent in (folder, *folder.parents) if not os.path.exists(parent)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make the folder {folder}: {error.strerror or error} - choose another one") from error
    return missing


def stem_of(name: str) -> str:
    """What a model or a trace of this name begins the names of its files with."""
    last = re.sub(r"((\.pt)?\.trace)?(\.json)?(\.gz|\.zip)?$", "", name.rstrip("/").rsplit("/", 1)[-1], count=1)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-.")


def stem_of_model(model: str) -> str:
    """What the names of a model's files begin with."""
    from opanatomy.redaction.texts import spoken

    return stem_of(spoken(model).replace(".py:", ":").replace(":", "-")) or "model"


def typed_words() -> list[str]:
    """What was typed after the name of the program."""
    return sys.argv[1:]


def typed_command() -> str:
    """The command as typed; a name that is no text keeps a mark for each such byte."""
    return shlex.join(["opanatomy", *typed_words()]).encode("utf-8", "replace").decode()


def chosen_format(arguments: argparse.Namespace) -> str:
    """The requested format: `-f`, else the ending of `-o`, else the terminal report."""
    from opanatomy.report import format_names, format_of

    if arguments.format is not None:
        return named(arguments.format, format_names(), f"-f {arguments.format}")
    name = arguments.output
    if name is None or name.endswith("/") or os.path.isdir(name) or _is_stdout(name):
        return "terminal"
    return format_of(Path(name))


def show(report: Report, where: Destination) -> None:
    """The report to stdout, or to the file of `-o`."""
    from opanatomy.report import format_named

    color = where.claim is None and wants_color(where.stream)
    width = columns_of(where.stream) if where.claim is None else 100
    chosen = format_named(where.format)
    height = _lines_of(where.stream) if where.claim is None else None
    gates: tuple[GateResult, ...] = ()
    if where.gates and isinstance(report, Anatomy):
        from opanatomy.gates.judging import judged_report

        gates = judged_report(report, where.gates)
    page = replace(where.page, width=width, color=color, height=height, gates=gates)
    if height is not None and where.format == "terminal" and not (page.full or page.sections):
        page = replace(page, brief=True, more=not page.brief)
    text = chosen.write(report, page)
    if where.claim is None:
        write_out(text, machine_readable=chosen.machine_readable, stream=where.stream)
        return
    with where.claim.written() as partial:
        partial.write_text(text, encoding="utf-8")
    note(f"report: {where.claim.path}")


def _lines_of(stream: TextIO) -> int | None:
    """The lines of a terminal above the next prompt; `None` where stdout is none, or does not say."""
    try:
        return os.get_terminal_size(stream.fileno()).lines - 1 if stream.isatty() else None
    except (OSError, ValueError):
        return None


def _is_stdout(name: str | None) -> bool:
    """Whether the name of `-o` is stdout's, which leads elsewhere by the time it is opened."""
    return name in (None, "-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


def wants_color(stream: TextIO) -> bool:
    """Whether stdout is a terminal that shows colour and `NO_COLOR` is not set."""
    if os.environ.get("NO_COLOR"):
        return False
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def note(text: str) -> None:
    """A line for the user on stderr; a name that is no text keeps a mark for each such byte."""
    from opanatomy.redaction.texts import spoken

    say(spoken(os.fsencode(text).decode(errors="replace")))
