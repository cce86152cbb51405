"""Write a picture of the report as PNG."""

from __future__ import annotations

from typing import Final

from opanatomy.records.reports import Report
from opanatomy.report.charts import asked_for, png_of
from opanatomy.report.section import Format, Page


def png_picture(report: Report, page: Page) -> bytes:
    """Return the requested chart."""
    return png_of(asked_for(report, page.chart))


FORMAT: Final = Format(ending=".png", write=png_picture, machine_readable=True)
