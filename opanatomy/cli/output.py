"""Write a report to its destination: the only place that prints reports and opens report files."""

from __future__ import annotations

import argparse
import glob
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.cli.stdout import check_open, columns_of, say, write_out
from opanatomy.errors import OutputError, UsageError
from opanatomy.io.files import OutputFile, check_no_address, local_name, output_file, same_file
from opanatomy.io.redact import mask_secrets
from opanatomy.options import TOP, Choice, choice_of, instead_of, named
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.patterns import regex
from opanatomy.records.reports import Report
from opanatomy.report.section import Page

if TYPE_CHECKING:
    from opanatomy.records.comparison import GateResult
    from opanatomy.report.gates import Gate


# The parts of a report that a reader wants, by the options `--brief`, `--section`, `--top` and `--sort`.


#: File names that denote this process's own open descriptors.
_DESCRIPTOR: Final = regex(r"/dev/(?:stdin|fd/)|/proc/self/fd/")


def wanted_page(arguments: argparse.Namespace, format_name: str, traces: Sequence[Path]) -> Page:
    """Return the requested page; raise `UsageError` for an unknown section, and for a format that has no pages."""
    from opanatomy.report.formats import PICTURES, format_named

    chart = getattr(arguments, "chart", None)
    if chart is not None and format_name not in PICTURES:
        raise UsageError(
            f"--chart {chart} needs an output file - add -o {chart}.svg or {chart}.png (an .html page has all charts)"
        )
    if chart is not None:
        _check_chart(arguments, chart)
    if not hasattr(arguments, "brief"):
        return Page(
            top=getattr(arguments, "top", TOP.default),
            source=_source(arguments, traces),
            sides=_sides(arguments),
            chart=chart,
            full=getattr(arguments, "full", False),
        )
    chosen = _sections(arguments.section)
    given = [
        name
        for name, value in (("--brief", arguments.brief), ("--full", arguments.full), ("--section", chosen))
        if value
    ]
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]} both set how much of the report is shown - leave one out")
    if given and given[0] != "--full" and format_named(format_name).machine_readable:
        raise UsageError(f"{given[0]}: -f {format_name} always writes the entire report - leave one of them out")
    return Page(
        brief=arguments.brief,
        full=arguments.full,
        sections=chosen,
        top=arguments.top,
        sort=arguments.sort,
        source=_source(arguments, traces),
        chart=chart,
    )


def _check_chart(arguments: argparse.Namespace, name: str) -> None:
    """Raise `UsageError` for a chart that no report of the verb has; `analyze` shows saved reports of all kinds."""
    from opanatomy.records.comparison import Comparison
    from opanatomy.records.experiment import Techniques
    from opanatomy.report.charts import CHARTS

    predicted = arguments.verb == "techniques" or getattr(arguments, "limit", None) is not None
    kind = Comparison if arguments.verb == "compare" else Techniques if predicted else Anatomy
    kinds = CHARTS if arguments.verb == "analyze" else (kind,)
    names = tuple(name for each in kinds for name in CHARTS[each])
    if name not in names:
        raise UsageError(f"--chart {name}: {arguments.verb} has no such chart - {instead_of(name, names)}")


def _sections(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the sections of `--section`: page headings, or parts below one."""
    if not texts:
        return ()
    from opanatomy.report.sections import HEADINGS, SECTIONS

    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError("--section: the name is empty - use one of " + ", ".join(HEADINGS))
    chosen = []
    for name in names:
        section = choice_of(name.replace(" ", "-"), map(Choice, SECTIONS))
        if section is None:
            raise UsageError(f"--section {name}: no such section - {instead_of(name, HEADINGS)}")
        chosen.append(section)
    return tuple(chosen)


def source_of_files(files: Sequence[Path]) -> str | None:
    """Return a name for these written files in the next command; `None` if one is gone or its name is secret."""
    if not files or not all(os.path.isfile(file) for file in files):
        return None
    return _unless_secret(_together([_written(file) for file in files]))


def _source(arguments: argparse.Namespace, traces: Sequence[Path]) -> str | None:
    """Return a name of the trace for the next command: as typed, or where it is written; never a secret."""
    if getattr(arguments, "redact", False) or hasattr(arguments, "sides"):
        return None
    given = getattr(arguments, "trace", None)
    if isinstance(given, list):
        return None if any(map(_is_gone, given)) else _unless_secret(_together(given))
    # A trace that is to be written does not exist yet.
    return _unless_secret(shlex.quote(_written(traces[0]))) if traces else None


def _sides(arguments: argparse.Namespace) -> tuple[str | None, ...]:
    """Return how `analyze` may name each side of a comparison; `None` for a side that it cannot read alone."""
    if getattr(arguments, "redact", False) or not hasattr(arguments, "sides"):
        return ()
    from opanatomy.api import reports_among

    sides = []
    for side in arguments.sides:
        # Only a comparison reads a folder of the reports of several runs.
        unread = _is_gone(side) or (os.path.isdir(side) and next(reports_among(Path(side)), None) is not None)
        sides.append(None if unread else _unless_secret(shlex.quote(side)))
    return tuple(sides)


def _unless_secret(source: str) -> str | None:
    return source if mask_secrets(source) == source else None


def _is_gone(name: str) -> bool:
    """Return whether this name cannot be read again: stdin, another pipe."""
    from opanatomy.io.sources import is_stream

    path = Path(local_name(name))
    return _DESCRIPTOR.match(str(path)) is not None or is_stream(path)


def _written(trace: Path) -> str:
    """Return where a trace is written, relative to the working directory if below it."""
    name = os.path.relpath(trace)
    return os.path.abspath(trace) if name.startswith(os.pardir) else name


def _together(names: Sequence[str]) -> str:
    """Shorten several trace names to a glob pattern, if it matches exactly these."""
    if len(names) > 2:
        from opanatomy.report.sections.verdict import ends_of, pattern_of

        begin, end = map(glob.escape, ends_of(names))
        if sorted(glob.glob(f"{begin}*{end}")) == sorted(names):
            return pattern_of(names)
    return shlex.join(names)


class Destination(Struct, frozen=True, kw_only=True):
    """Destination of the report, open from the start: the file of `-o`, or stdout; the folder of `--tables`; and the
    gates on a single report."""

    format: str
    stream: TextIO
    page: Page
    file: OutputFile | None = None
    tables: Path | None = None
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
    """Return the destination, checked before the expensive part; raise if the report cannot be written there.

    `stem` begins the name of a report in a folder; the report must not overwrite the files `traces`, which a message
    calls `read`; `stream` is stdout if `sys.stdout` is not.
    """
    out = sys.stdout if stream is None else stream
    if arguments.output == "":
        raise UsageError("-o: the name is empty - pass a file name, or - for stdout")
    name, traces = chosen_format(arguments), list(traces)
    page, tables = wanted_page(arguments, name, traces), _folder_of_tables(arguments)
    if _is_stdout(arguments.output):
        check_open(out)
        yield Destination(format=name, stream=out, page=page, tables=tables, gates=gates)
        return
    check_no_address("-o", arguments.output)
    from opanatomy.report.formats import format_named

    with in_folder(arguments.output, f"{stem}.report{format_named(name).ending}") as (target, numbered):
        if any(same_file(target, trace) for trace in traces):
            raise UsageError(f"-o {target}: this is the {read} - choose another name for the report")
        file = output_file(target, force=arguments.force, numbered=numbered, needed_bytes=1 << 20)
        yield Destination(format=name, stream=out, page=page, file=file, tables=tables, gates=gates)


def _folder_of_tables(arguments: argparse.Namespace) -> Path | None:
    """Return the folder of `--tables`; raise `UsageError` if it is none, or has tables that would be lost."""
    name = getattr(arguments, "tables", None)
    if name is None:
        return None
    check_no_address("--tables", name)
    folder = Path(name)
    if not name or (os.path.exists(folder) and not folder.is_dir()):
        raise UsageError(f"--tables {name}: not a folder - choose another name")
    made_in = next(each for each in (folder, *folder.parents) if os.path.exists(each))
    if not made_in.is_dir() or not os.access(made_in, os.W_OK | os.X_OK):
        raise OutputError(f"--tables {name}: cannot write in {made_in} - choose another folder")
    if not arguments.force and any(folder.glob("*.csv")):
        raise UsageError(f"--tables {name}: it already contains tables - choose another folder, or use --force")
    return folder


@contextmanager
def in_folder(name: str, default: str) -> Iterator[tuple[Path, bool]]:
    """Give the file that an option names, and whether that is `default` in a folder.

    A name denotes a folder if that exists or the name ends in a slash; it is created, and removed again if left empty.
    """
    path = Path(name)
    if not os.path.isdir(path) and not name.endswith(("/", os.sep)):
        yield path, False
        return
    made = _make_folder(path)
    try:
        yield path / default, True
    finally:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()


def _make_folder(folder: Path) -> list[Path]:
    """Create this folder and its parents; return the created ones, innermost first."""
    try:
        folder = Path(os.path.abspath(folder))
    except OSError as error:
        raise OutputError(
            f"cannot create the folder {folder}: the current folder is gone - choose another one"
        ) from error
    missing = [parent for parent in (folder, *folder.parents) if not os.path.exists(parent)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"cannot create the folder {folder}: {error.strerror or error} - choose another one"
        ) from error
    return missing


def stem_of(name: str) -> str:
    """Return the beginning of file names for a model or a trace of this name."""
    last = re.sub(r"((\.pt)?\.trace)?(\.json)?(\.gz|\.zip)?$", "", name.rstrip("/").rsplit("/", 1)[-1], count=1)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-.")


def stem_of_model(model: str) -> str:
    """Return the beginning of a model's file names."""
    return stem_of(mask_secrets(model).replace(".py:", ":").replace(":", "-")) or "model"


def typed_words() -> list[str]:
    """Return the command line after the program name."""
    return sys.argv[1:]


def typed_command() -> str:
    """Return the command as typed; undecodable bytes of a name keep a mark each."""
    return shlex.join(["opanatomy", *typed_words()]).encode("utf-8", "replace").decode()


def chosen_format(arguments: argparse.Namespace) -> str:
    """Return the requested format: `-f`, else the ending of `-o`, else the terminal report."""
    from opanatomy.report import format_of
    from opanatomy.report.formats import FORMATS, PICTURES, VIEWERS

    if arguments.format is not None:
        return named(arguments.format, (*FORMATS, *PICTURES, *VIEWERS), f"-f {arguments.format}")
    name = arguments.output
    if name is None or name.endswith("/") or os.path.isdir(name) or _is_stdout(name):
        return "terminal"
    return format_of(Path(name))


def show(report: Report, where: Destination) -> None:
    """Print the report on stdout, or write it to the file of `-o`."""
    from opanatomy.report.formats import format_named

    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    color = where.file is None and not plain and where.stream.isatty()
    width = columns_of(where.stream) if where.file is None else 100
    chosen = format_named(where.format)
    height: int | None = None
    with suppress(OSError, ValueError):
        if where.file is None and where.stream.isatty():
            height = os.get_terminal_size(where.stream.fileno()).lines - 1  # those above the next prompt
    gates: tuple[GateResult, ...] = ()
    if where.gates and isinstance(report, Anatomy):
        from opanatomy.report.gates import judged_report

        gates = judged_report(report, where.gates)
    page = replace(where.page, width=width, color=color, height=height, gates=gates)
    if height is not None and where.format == "terminal" and not (page.full or page.sections):
        page = replace(page, brief=True, more=not page.brief)
    if where.file is None:
        write_out(chosen.write(report, page), machine_readable=chosen.machine_readable, stream=where.stream)
    else:
        text = chosen.encoded(report, page)
        with where.file.written() as partial:
            partial.write_bytes(text)
        if where.format == "html":
            from opanatomy.report.formats.terminal import sentence
            from opanatomy.report.sections import findings_of

            for finding in findings_of(report):
                note(sentence(finding))
        note(f"report: {where.file.path}")
    if where.tables is not None:
        from opanatomy.report.frames import write_tables
        from opanatomy.report.units import noun

        _make_folder(where.tables)
        try:
            written = write_tables(report, where.tables)
        except OSError as error:
            raise OutputError(f"cannot write the tables to {where.tables}: {error.strerror or error}") from error
        note(f"tables: {noun(len(written), 'file')} in {where.tables}")


def _is_stdout(name: str | None) -> bool:
    """Return whether the name of `-o` is stdout's, which leads elsewhere by the time it is opened."""
    return name in (None, "-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


def note(text: str) -> None:
    """Write a line for the user on stderr; undecodable bytes of a name keep a mark each."""
    say(mask_secrets(os.fsencode(text).decode(errors="replace")))
