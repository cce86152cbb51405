"""Show a report in a notebook: its first screen, with the step as a bar, readable on light and dark."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.comparison import Comparison
from opanatomy.records.experiment import Techniques
from opanatomy.report.charts import NoChart, asked_for, still_of
from opanatomy.report.markup import elements
from opanatomy.report.section import Section
from opanatomy.report.sections import first_screen, sections_of

_LOOK: Final = """<style>
.opanatomy { color: inherit; background: transparent }
.opanatomy th, .opanatomy td { text-align: left }
.opanatomy .n { text-align: right; font-variant-numeric: tabular-nums }
.opanatomy .note { opacity: .75 }
.opanatomy svg { max-width: 100%; height: auto }
</style>"""


def notebook_html(report: Anatomy | Comparison | Techniques) -> str:
    """Return the first screen of a report, of a comparison and an experiment the page, as one HTML element."""
    sections = first_screen(report) if isinstance(report, Anatomy) else sections_of(report)
    return "\n".join(('<div class="opanatomy">', _LOOK, _picture(report), *_written(sections), "</div>"))


def _picture(report: Anatomy | Comparison | Techniques) -> str:
    try:
        return still_of(asked_for(report, None))
    except NoChart:
        return ""


def _written(sections: Iterable[Section]) -> Iterable[str]:
    for section in sections:
        yield f'<div class="opanatomy-{escape(section.name)}">'
        yield elements(section)  # a heading is the notebook's
        yield "</div>"
