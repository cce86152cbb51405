"""Show a report in a notebook: its first screen, with the step as a bar, readable on light and dark."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any, Final

from msgspec import Struct

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.comparison import Comparison
from opanatomy.records.experiment import Techniques
from opanatomy.report.charts import NoChart, asked_for, still_of
from opanatomy.report.markup import elements
from opanatomy.report.sections import first_screen, sections_of
from opanatomy.report.units import duration

_LOOK: Final = """<style>
.opanatomy { color: inherit; background: transparent }
.opanatomy th, .opanatomy td { text-align: left }
.opanatomy .n { text-align: right; font-variant-numeric: tabular-nums }
.opanatomy .note { opacity: .75 }
.opanatomy svg { max-width: 100%; height: auto }
</style>"""


@contextmanager
def notebook_progress() -> Iterator[Any]:
    """Yield a progress display in the cell of the running notebook, which disappears when done.

    It is `None` elsewhere.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if getattr(shell, "kernel", None) is None:
        yield None
        return
    from IPython.display import HTML, display  # type: ignore[import-not-found]

    handle = display(HTML(""), display_id=True)
    try:
        yield _Progress(lambda text: handle.update(HTML(f"<small>{escape(text)}</small>" if text else "")))
    finally:
        handle.update(HTML(""))


class _Progress(Struct, frozen=True):
    """Shows the stages of a capture."""

    show: Callable[[str], None]

    def stage(self, text: str, *, steps_after: int = 0, expected_ns: int | None = None) -> None:
        """Show a stage, and the time of a like one."""
        self.show(text if expected_ns is None else f"{text}, {duration(expected_ns)} each")

    def advance(self, fraction: float) -> None:
        """Show nothing more: a stage is shown as a whole."""


def notebook_html(report: Anatomy | Comparison | Techniques) -> str:
    """Return a report's first screen as one HTML element; for a comparison or experiment the whole page."""
    sections = first_screen(report) if isinstance(report, Anatomy) else sections_of(report)
    try:
        picture = still_of(asked_for(report, None))
    except NoChart:
        picture = ""
    lines = ['<div class="opanatomy">', _LOOK, picture]
    for section in sections:  # a heading is the notebook's
        lines += [f'<div class="opanatomy-{escape(section.name)}">', elements(section), "</div>"]
    return "\n".join((*lines, "</div>"))
