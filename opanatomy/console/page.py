"""What of a report a reader wants to see, of the options `--brief`, `--section`, `--top` and `--sort`."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from opanatomy.errors import UsageError
from opanatomy.option_values import Choice, choice_of, instead_of
from opanatomy.options import TOP
from opanatomy.redaction.texts import spoken
from opanatomy.report.format import Page


def wanted_page(arguments: argparse.Namespace, format_name: str, traces: Sequence[Path]) -> Page:
    """The requested page; `UsageError` for an unknown section, and for a format that has no pages."""
    from opanatomy.report import format_named
    from opanatomy.report.sections import HEADINGS

    if not hasattr(arguments, "brief"):
        return Page(top=getattr(arguments, "top", TOP.default), source=_source(arguments, traces))
    names = [name for text in arguments.section for name in text.split(",") if name.strip()]
    if arguments.section and not names:
        raise UsageError("--section: the name is empty - give one of " + ", ".join(HEADINGS))
    chosen = tuple(_section(name.strip()) for name in names)
    if arguments.brief and chosen:
        raise UsageError("--brief and --section: each is a part of the report - leave one out")
    if (arguments.brief or chosen) and format_named(format_name).machine_readable:
        given = "--brief" if arguments.brief else "--section"
        raise UsageError(f"{given}: -f {format_name} is for machines and always whole - leave one of them out")
    return Page(
        brief=arguments.brief, sections=chosen, top=arguments.top, sort=arguments.sort,
        source=_source(arguments, traces),
    )  # fmt: skip


def _section(name: str) -> str:
    """The section of this name: a heading of the page, or a part of what is below one."""
    from opanatomy.report.sections import HEADINGS, SECTIONS

    section = choice_of(name, map(Choice, SECTIONS))
    if section is None:
        raise UsageError(f"--section {name}: not known - {instead_of(name, HEADINGS)}")
    return section


def _source(arguments: argparse.Namespace, traces: Sequence[Path]) -> str | None:
    """How the next command may call the trace: as it was typed, or by where it is written; not by a secret."""
    if getattr(arguments, "redact", False):
        return None
    source = _typed(arguments, traces)
    return source if source is None or spoken(source) == source else None


def _typed(arguments: argparse.Namespace, traces: Sequence[Path]) -> str | None:
    if hasattr(arguments, "sides"):
        return shlex.join(arguments.sides)
    given = getattr(arguments, "trace", None)
    if isinstance(given, list):
        return None if "-" in given else shlex.join(given) if len(given) == 1 else _together(given)
    written = [os.path.relpath(trace) for trace in traces[:1]]
    return shlex.quote(written[0]) if written and not written[0].startswith(os.pardir) else None


def _together(names: Sequence[str]) -> str:
    """Several traces in short, where what was typed was more than a pattern."""
    from opanatomy.report.sections.commands import pattern_of

    return shlex.join(names) if len(names) == 2 else pattern_of(names)
