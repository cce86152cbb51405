"""Write figures for which smaller is better as github-action-benchmark's "customSmallerIsBetter" JSON, in base units.

For a comparison the last side's figures are written. Figures for which larger is better would need another file and add
nothing: samples per second are the inverse of the step time, and so is MFU at equal FLOPs.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from opanatomy.records.comparison import Comparison
from opanatomy.records.experiment import Techniques
from opanatomy.records.patterns import regex
from opanatomy.records.reports import Report
from opanatomy.report import units
from opanatomy.report.metrics import metrics_of
from opanatomy.report.section import Format

#: The headline figures, and for those in parts the time of each class: each is a chart.
_CHARTED: Final = regex(r"[^.]+|class\.\w+\.time_ns")
#: Appended if the figure is a lower bound.
_LOWER_BOUND: Final = "; a lower bound"


def benchmark_report(report: Report) -> str:
    """Return an array of name, unit and value, with the range of several samples, what ran, and marked bounds."""
    entries = []
    if isinstance(report, Comparison):
        side = report.sides[-1]
        ran = ", ".join(filter(None, (side.model, side.device, units.noun(side.runs, "run"))))
        for row in report.figures:
            value = row.values[-1]
            if value is None or row.better != "lower" or not _CHARTED.fullmatch(row.name):
                continue
            bound = _LOWER_BOUND * (bool(row.lower_bounds) and row.lower_bounds[-1])
            # The minimum and the maximum of the last side's samples.
            spread = row.spreads[-1] if row.spreads else None
            between = ""
            if spread is not None and spread.count > 1:
                between = f"{units.in_unit(spread.low, row.unit)} to {units.in_unit(spread.high, row.unit)}"
            entries.append(_entry(row.name, row.unit, value, range=between, extra=ran + bound))
    elif isinstance(report, Techniques):
        for tried in report.rows:
            figures = tried.measured
            if figures is not None and figures.step_ns is not None:
                known = None not in (figures.low_ns, figures.high_ns)
                between = f"{units.duration(figures.low_ns)} to {units.duration(figures.high_ns)}" if known else ""
                entries.append(_entry(f"{tried.name}: step_time_ns", "ns", figures.step_ns, range=between))
            if figures is not None and figures.peak_bytes is not None:
                entries.append(_entry(f"{tried.name}: peak_memory_bytes", "bytes", figures.peak_bytes))
    else:
        made_by = f"opanatomy {report.provenance.opanatomy}"
        ran = ", ".join(filter(None, (report.workload.model, report.environment.device, made_by)))
        for name, metric in metrics_of(report).items():
            if metric.better == "lower" and _CHARTED.fullmatch(name):
                extra = ran + _LOWER_BOUND * metric.lower_bound
                entries.append(_entry(name, metric.unit, metric.value, extra=extra))
    return msgspec.json.format(msgspec.json.encode(entries), indent=1).decode() + "\n"


def _entry(name: str, unit: str, value: float, **more: str) -> dict[str, Any]:
    whole = int(value) if value == int(value) else value
    return {"name": name, "unit": unit, "value": whole, **{key: text for key, text in more.items() if text}}


FORMAT: Final = Format(
    ending=".benchmark.json", write=lambda report, page: benchmark_report(report), machine_readable=True
)
