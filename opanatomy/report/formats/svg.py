"""Write a picture of the report as SVG."""

from __future__ import annotations

from typing import Final

from opanatomy.records.reports import Report
from opanatomy.report.charts import asked_for, still_of
from opanatomy.report.section import Format, Page


def svg_picture(report: Report, page: Page) -> str:
    """Return the requested chart."""
    return still_of(asked_for(report, page.chart)) + "\n"


FORMAT: Final = Format(ending=".svg", write=svg_picture, machine_readable=True)
