"""A trace -> reports/NAME.json and reports/NAME.txt (80 columns); two pages show a part of one.

A JSON report that is kept is written as text again; that of a trace gets today's advice on its figures.
"""

import re
import sys
from pathlib import Path
from typing import Any

from opanatomy.analysis.advice import with_advice
from opanatomy.pipeline import analyze_traces
from opanatomy.records.anatomy import Anatomy
from opanatomy.report import terminal_report
from opanatomy.report.formats.json import json_report
from opanatomy.report.load import document_in

HERE = Path(__file__).parent
#: Report -> the page whose first block of text shows a part of it, and which part.
PAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert-large-uncased-h100": ("README.md", {"brief": True}),
    "bert-large-uncased": ("docs/profiling.md", {"sections": ("modules",)}),
}


def main(given: Path) -> None:
    """Write the files and, for the main command, the pages that show it."""
    if given.suffix == ".json":
        report = document_in(given)
        if isinstance(report, Anatomy):
            report = with_advice(report)
            given.write_text(json_report(report))
    else:
        report = analyze_traces([given])
        (HERE / given.name.replace(".trace.json.gz", ".json")).write_text(json_report(report))
    name = given.name.removesuffix(".trace.json.gz").removesuffix(".json")
    folder = given.parent if given.suffix == ".json" else HERE
    (folder / f"{name}.txt").write_text(terminal_report(report, width=80))
    if name in PAGES and folder == HERE:
        page, shown = PAGES[name]
        path = HERE.parent / page
        block = f"```text\n{terminal_report(report, width=80, **shown)}```"
        path.write_text(
            re.sub(r"```text\n.*?```", block.replace("\\", r"\\"), path.read_text(), count=1, flags=re.DOTALL)
        )


if __name__ == "__main__":
    for path in sys.argv[1:]:
        main(Path(path).resolve())
