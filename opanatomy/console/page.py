"""What of a report a reader wants to see, of the options `--brief`, `--section`, `--top` and `--sort`."""

from __future__ import annotations

import argparse
import glob
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from opanatomy.errors import UsageError
from opanatomy.files.addresses import local_name
from opanatomy.option_values import Choice, choice_of, instead_of
from opanatomy.options import TOP
from opanatomy.redaction.texts import spoken
from opanatomy.report.format import Page

#: Names of what this process alone has open.
_DESCRIPTOR: Final = re.compile(r"/dev/(?:stdin|fd/)|/proc/self/fd/")


def wanted_page(arguments: argparse.Namespace, format_name: str, traces: Sequence[Path]) -> Page:
    """The requested page; `UsageError` for an unknown section, and for a format that has no pages."""
    from opanatomy.report import format_named
    from opanatomy.report.sections import HEADINGS

    if not hasattr(arguments, "brief"):
        return Page(
            top=getattr(arguments, "top", TOP.default), source=_source(arguments, traces), sides=_sides(arguments)
        )
    names = [name for text in arguments.section for name in text.split(",") if name.strip()]
    if arguments.section and not names:
        raise UsageError("--section: the name is empty - give one of " + ", ".join(HEADINGS))
    chosen = tuple(_section(name.strip()) for name in names)
    given = [
        name
        for name, value in (("--brief", arguments.brief), ("--full", arguments.full), ("--section", chosen))
        if value
    ]
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]}: each says how much of the report is shown - leave one out")
    if given and given[0] != "--full" and format_named(format_name).machine_readable:
        raise UsageError(f"{given[0]}: -f {format_name} is for machines and always whole - leave one of them out")
    return Page(
        brief=arguments.brief, full=arguments.full, sections=chosen, top=arguments.top, sort=arguments.sort,
        source=_source(arguments, traces),
    )  # fmt: skip


def _section(name: str) -> str:
    """The section of this name: a heading of the page, or a part of what is below one."""
    from opanatomy.report.sections import HEADINGS, SECTIONS

    section = choice_of(name, map(Choice, SECTIONS))
    if section is None:
        raise UsageError(f"--section {name}: not known - {instead_of(name, HEADINGS)}")
    return section


def source_of_files(files: Sequence[Path]) -> str | None:
    """How the next command may call files that this one has written; `None` where one is not here, or by a secret."""
    if not files or not all(os.path.isfile(file) for file in files):
        return None
    return _unless_secret(_together([_written(file) for file in files]))


def _source(arguments: argparse.Namespace, traces: Sequence[Path]) -> str | None:
    """How the next command may call the trace: as it was typed, or by where it is written; not by a secret."""
    if getattr(arguments, "redact", False) or hasattr(arguments, "sides"):
        return None
    given = getattr(arguments, "trace", None)
    if isinstance(given, list):
        return None if any(map(_is_gone, given)) else _unless_secret(_together(given))
    # A trace that is written is not there yet.
    return _unless_secret(shlex.quote(_written(traces[0]))) if traces else None


def _sides(arguments: argparse.Namespace) -> tuple[str | None, ...]:
    """How `analyze` may call each side of a comparison; `None` for what it cannot read by itself."""
    if getattr(arguments, "redact", False) or not hasattr(arguments, "sides"):
        return ()
    return tuple(None if _is_gone(side) or _is_of_runs(side) else _unless_secret(shlex.quote(side))
                 for side in arguments.sides)  # fmt: skip


def _unless_secret(source: str) -> str | None:
    return source if spoken(source) == source else None


def _is_gone(name: str) -> bool:
    """Whether nothing can be read by this name again: stdin, another pipe."""
    from opanatomy.trace.pipes import is_stream

    path = Path(local_name(name))
    return _DESCRIPTOR.match(str(path)) is not None or is_stream(path)


def _is_of_runs(name: str) -> bool:
    """Whether it is a folder of the reports of several runs, which only a comparison reads."""
    from opanatomy.comparing import reports_among

    return os.path.isdir(name) and next(reports_among(Path(name)), None) is not None


def _written(trace: Path) -> str:
    """Where a trace is written, from here where it lies below."""
    name = os.path.relpath(trace)
    return os.path.abspath(trace) if name.startswith(os.pardir) else name


def _together(names: Sequence[str]) -> str:
    """Several traces in short, where what was typed was more than a pattern that is of them and no others."""
    from opanatomy.report.sections.commands import ends_of, pattern_of

    if len(names) > 2:
        begin, end = map(glob.escape, ends_of(names))
        if sorted(glob.glob(f"{begin}*{end}")) == sorted(names):
            return pattern_of(names)
    return shlex.join(names)
