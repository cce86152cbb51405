"""A report or a comparison that was made before, given to `analyze`: shown again as it is, with no trace to read."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from opanatomy.errors import UsageError
from opanatomy.files.remote import Address
from opanatomy.option_values import as_flag
from opanatomy.options import ANALYZE
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.compared import Comparison

if TYPE_CHECKING:
    from opanatomy.device import Overrides

#: The options of `analyze` that say how a trace is read, or where it is written.
_OF_TRACES: Final = ("phases", "summaries", "dask", "jobs", "annotated")
#: Those that need the report of one run, which a comparison is not.
_OF_ONE_RUN: Final = ("check", "redact", "peak", "bandwidth", "brief", "section", "sort")
#: Names are said up to this many.
_NAMED: Final = 4


class MadeReport(Struct, frozen=True, kw_only=True):
    """A report as it was written, and the file that it is in; `name` is what the user calls that."""

    path: Path
    name: str
    report: Anatomy | Comparison

    @property
    def what(self) -> str:
        """What it is in words."""
        return "a saved comparison" if isinstance(self.report, Comparison) else "a report"


def made_report(
    paths: Sequence[Path | Address], names: Sequence[str], arguments: argparse.Namespace
) -> MadeReport | None:
    """The report among the files given to `analyze`; `None` where all are traces, or are to be read as such.

    Raises `UsageError` where it is not alone, and for an option that needs its trace.
    """
    from opanatomy.report.given import document_in

    reports = []
    for path, name in zip(paths, names, strict=True):
        report = document_in(path) if isinstance(path, Path) else None
        if report is not None:
            reports.append(MadeReport(path=path, name=name, report=report))  # type: ignore[arg-type]  # no address
    if not reports:
        return None
    if len(paths) > 1:
        raise UsageError(_several(reports, names))
    _check_options(reports[0], arguments)
    return reports[0]


def _several(reports: Sequence[MadeReport], names: Sequence[str]) -> str:
    compared = next((report for report in reports if isinstance(report.report, Comparison)), None)
    if compared is not None:
        return f"analyze: {compared.name} is {compared.what}, which is shown alone - leave the other names out"
    compare = shlex.join(["opanatomy", "compare", *names[:_NAMED]]) + (" ..." if len(names) > _NAMED else "")
    if len(reports) == len(names):
        return f"analyze: {len(reports)} reports are given, it shows one again - to see what changed: {compare}"
    return (
        f"analyze: {reports[0].name} is a report, the others are not - give traces of ranks alone, or a report alone;"
        f" to see what changed: {compare}"
    )


def _check_options(report: MadeReport, arguments: argparse.Namespace) -> None:
    for option in ANALYZE:
        value = getattr(arguments, option.name)
        if value in (option.default, []):
            continue
        values = value if isinstance(value, list) else [value]
        shown = " ".join(map(str, (as_flag(option, item) for item in values)))
        if option.name in _OF_TRACES:
            raise UsageError(f"{shown}: {report.name} is {report.what}, and this needs {_trace_of(report)}")
        if option.name in _OF_ONE_RUN and isinstance(report.report, Comparison):
            raise UsageError(
                f"{shown}: {report.name} is {report.what}, and this needs the report of one run - give that"
                + (", or compare its runs again" if option.name == "redact" else "")
            )


def _trace_of(report: MadeReport) -> str:
    if isinstance(report.report, Comparison):
        return "the trace of a run - give that"
    trace = report.report.provenance.trace
    return f"its trace - give the trace{f' ({trace})' if trace else ''}"


def as_shown(report: MadeReport, ceilings: Overrides, *, redact: bool) -> Anatomy | Comparison:
    """The report as it was written; an anatomy compared with these ceilings where any are given."""
    from opanatomy.pipeline import with_ceilings
    from opanatomy.redaction.records import redacted
    from opanatomy.redaction.texts import Texts

    anatomy = report.report
    if isinstance(anatomy, Comparison):
        return anatomy
    if ceilings:
        anatomy = with_ceilings(anatomy, ceilings)
    return redacted(anatomy, Texts(everything=True)) if redact else anatomy


def what_it_is(report: MadeReport) -> str:
    """A line on where the figures are from."""
    from opanatomy.trace.pipes import STDIN

    name = "stdin" if report.name == STDIN else report.name
    if isinstance(report.report, Comparison):
        return f"{name}: {report.what}, shown again; nothing was compared anew"
    provenance = report.report.provenance
    when = f" of {provenance.created}" if provenance.created else ""
    return f"{name}: a report{when} by opanatomy {provenance.opanatomy}, shown again; no trace was read"
