"""Read a saved report or comparison that `analyze` is given: it is shown again unchanged, with no trace to read."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from opanatomy.errors import UsageError
from opanatomy.io.files import Address
from opanatomy.options import ANALYZE, as_flag
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.comparison import Comparison
from opanatomy.records.experiment import Techniques
from opanatomy.records.reports import Report

if TYPE_CHECKING:
    from opanatomy.devices.overrides import Overrides

#: The options of `analyze` on how a trace is read, or where it is written.
_OF_SNAPSHOTS: Final = ("at", "categories")
_OF_TRACES: Final = (*_OF_SNAPSHOTS, "phases", "what_if", "timeline", "summaries", "dask", "jobs", "annotated")
#: Options that require the report of a single run, not a comparison or experiment.
_OF_ONE_RUN: Final = ("check", "redact", "peak", "bandwidth", "brief", "section", "sort")
#: Up to this many names are written.
_MAX_NAMES: Final = 4


class SavedReport(Struct, frozen=True, kw_only=True):
    """A saved report, and its file; `name` is the user's name for that."""

    path: Path
    name: str
    report: Report

    @property
    def what(self) -> str:
        """Return the kind of report in words."""
        from opanatomy.report.load import kind_in_words

        return kind_in_words(self.report)


def saved_report_among(
    paths: Sequence[Path | Address], names: Sequence[str], arguments: argparse.Namespace
) -> SavedReport | None:
    """Return the report among the files given to `analyze`; `None` if all are traces, or are to be read as traces.

    Raises `UsageError` if it is not alone, and for an option that needs its trace.
    """
    from opanatomy.report.load import document_in

    reports = []
    for path, name in zip(paths, names, strict=True):
        report = document_in(path) if isinstance(path, Path) else None
        if report is not None:
            reports.append(SavedReport(path=path, name=name, report=report))  # type: ignore[arg-type]  # no address
    if not reports:
        return None
    if len(paths) == 1:
        _check_options(reports[0], arguments)
        return reports[0]
    alone = next((report for report in reports if not isinstance(report.report, Anatomy)), None)
    if alone is not None:
        raise UsageError(
            f"analyze: {alone.name} is {alone.what}, which can only be shown by itself - leave out the other files"
        )
    compare = shlex.join(["opanatomy", "compare", *names[:_MAX_NAMES]]) + (" ..." if len(names) > _MAX_NAMES else "")
    if len(reports) == len(names):
        raise UsageError(
            f"analyze: {len(reports)} reports were passed, but only one can be shown - to see what changed, run"
            f" {compare}"
        )
    raise UsageError(
        f"analyze: {reports[0].name} is a report, but the others are not - pass either traces of ranks or one report;"
        f" to see what changed, run {compare}"
    )


def _check_options(report: SavedReport, arguments: argparse.Namespace) -> None:
    for option in ANALYZE:
        value = getattr(arguments, option.name)
        if value in (option.default, []):
            continue
        values = value if isinstance(value, list) else [value]
        shown = " ".join(map(str, (as_flag(option, item) for item in values)))
        if option.name in _OF_TRACES:
            needed = "the trace of a run - pass the trace instead"
            if option.name in _OF_SNAPSHOTS:
                needed = "a memory snapshot - pass the snapshot instead"
            elif isinstance(report.report, Anatomy):
                trace = report.report.provenance.trace
                needed = f"its trace - pass the trace{f' ({trace})' if trace else ''}"
            raise UsageError(f"{shown}: {report.name} is {report.what}, but the option needs {needed}")
        of_one = option.name in _OF_ONE_RUN and not isinstance(report.report, Anatomy)
        if of_one or (option.name == "fail_if" and isinstance(report.report, Techniques)):
            raise UsageError(
                f"{shown}: {report.name} is {report.what}, but the option needs the report of a single run - pass one"
                + (", or compare its runs again" if option.name == "redact" else "")
            )


def as_shown(report: SavedReport, ceilings: Overrides, *, redact: bool) -> Report:
    """Return the report as written; for an anatomy, with the user's ceilings applied if given."""
    from opanatomy.io.redact import Redactor, redacted
    from opanatomy.pipeline import with_ceilings

    anatomy = report.report
    if not isinstance(anatomy, Anatomy):
        return anatomy
    if ceilings:
        anatomy = with_ceilings(anatomy, ceilings)
    return redacted(anatomy, Redactor(everything=True)) if redact else anatomy


def source_line(report: SavedReport) -> str:
    """Return a line on the source of the figures."""
    from opanatomy.io.sources import STDIN

    name = "stdin" if report.name == STDIN else report.name
    if isinstance(report.report, Comparison):
        return f"{name}: {report.what}, shown as saved; nothing was compared"
    if isinstance(report.report, Techniques):
        return f"{name}: {report.what} from {report.report.created}, shown as saved; nothing ran"
    provenance = report.report.provenance
    when = f" from {provenance.created}" if provenance.created else ""
    return f"{name}: a report{when} by opanatomy {provenance.opanatomy}, shown as saved; no trace was read"
