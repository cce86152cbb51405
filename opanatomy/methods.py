"""What the methods of `Anatomy` and `Comparison` give: figures in the forms that Python users have tools for.

`records` imports nothing of ours; these are loaded when a method is called.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, Final

from opanatomy.arguments import Name, path_of
from opanatomy.files.addresses import check_no_address
from opanatomy.files.outputs import claimed
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.compared import Comparison
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.report import units
from opanatomy.report.classes import LABEL
from opanatomy.report.formats.json import json_report
from opanatomy.report.frames import pandas_frame, polars_frame
from opanatomy.report.metrics import metrics_of
from opanatomy.report.metrics_compared import metrics_of_comparison
from opanatomy.report.notebook import comparison_html, first_screen_html
from opanatomy.report.printable import printable
from opanatomy.report.table import cut

__all__ = ["html", "line", "line_of_comparison", "metrics", "pandas_frame", "plain_types", "polars_frame", "write_json"]

#: Cells of a name.
_NAME_WIDTH: Final = 48
_REPORT_BYTES: Final = 1 << 20


def line(anatomy: Anatomy) -> str:
    """What is of it on one line: the model or the trace, the step, the class that takes most, the peak of memory."""
    return f"<Anatomy{_subject(anatomy)}: {', '.join(_figures(anatomy)) or 'no device work'}>"


def _subject(anatomy: Anatomy) -> str:
    name = anatomy.workload.model or anatomy.provenance.trace
    return "" if name is None else f" of {cut(printable(name), _NAME_WIDTH)}"


def _figures(anatomy: Anatomy) -> Iterator[str]:
    figures = metrics(anatomy)
    if len(anatomy.ranks) > 1:
        yield f"{len(anatomy.ranks)} ranks"
    if "step_time_ns" in figures:
        yield f"step {units.duration(figures['step_time_ns'])}"
    shares = {item: figures.get(f"class.{item}.time_share", 0) for item in OperatorClass}
    largest = max(OperatorClass, key=lambda item: shares[item])
    if shares[largest]:
        yield f"{LABEL[largest]} {units.share(shares[largest], 1)}"
    if "peak_memory_bytes" in figures:
        yield f"peak {units.size(figures['peak_memory_bytes'])}"


def html(report: Anatomy | Comparison) -> str:
    """The first screen of a report, the page of a comparison, as HTML."""
    return comparison_html(report) if isinstance(report, Comparison) else first_screen_html(report)


def line_of_comparison(comparison: Comparison) -> str:
    """What is of it on one line: the sides, the step of each, and the difference of two."""
    names = " against ".join(cut(printable(side.name), _NAME_WIDTH) for side in comparison.sides)
    parts = comparison.decomposition
    if parts is None:
        return f"<Comparison of {names}>"
    row = next((row for row in comparison.figures if row.name == "step_unprofiled_ns"), None)
    plain = [] if row is None else [value for value in row.values if value is not None]
    before, after = plain if len(plain) == 2 else (parts.before_ns, parts.after_ns)
    change = f"{units.duration_change(after - before)} ({units.change(after, before)})"
    return f"<Comparison of {names}: step {units.duration(before)} to {units.duration(after)}, {change}>"


def metrics(report: Anatomy | Comparison) -> dict[str, int | float]:
    """The figures of a report by name as plain numbers."""
    known = metrics_of_comparison(report) if isinstance(report, Comparison) else metrics_of(report)
    return {name: metric.value for name, metric in known.items()}


def plain_types(report: Anatomy | Comparison) -> dict[str, Any]:
    """The JSON report as dictionaries, lists, texts and numbers."""
    plain: dict[str, Any] = json.loads(json_report(report))
    return plain


def write_json(report: Anatomy | Comparison, path: Name | None, *, force: bool) -> str:
    """The JSON report, which is also written to `path` where one is given."""
    text = json_report(report)
    if path is not None:
        target = path_of("to_json: path", path)
        check_no_address("to_json: path", os.fspath(path))
        with (
            claimed(target, force=force, forced_by="give force=True", needed_bytes=_REPORT_BYTES) as claim,
            claim.written() as partial,
        ):
            partial.write_text(text, encoding="utf-8")
    return text
