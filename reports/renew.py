"""A trace -> reports/NAME.json and reports/NAME.txt (80 columns); pages show parts of BERT-large's."""

import re
import sys
from pathlib import Path
from typing import Any

from opanatomy.pipeline import analyze_traces
from opanatomy.report import terminal_report
from opanatomy.report.formats.json import json_report

HERE = Path(__file__).parent
SHOWN = "bert-large-uncased"
#: What the first block of text of each page shows of it.
PAGES: dict[str, dict[str, Any]] = {"README.md": {"brief": True}, "docs/profiling.md": {"sections": ("modules",)}}


def main(trace: Path) -> None:
    """Write the two files and, for the main command, the pages that show it."""
    anatomy = analyze_traces([trace])
    name = trace.name.removesuffix(".trace.json.gz")
    text = terminal_report(anatomy, width=80)
    (HERE / f"{name}.json").write_text(json_report(anatomy))
    (HERE / f"{name}.txt").write_text(text)
    if name == SHOWN:
        for page, shown in PAGES.items():
            path = HERE.parent / page
            block = f"```text\n{terminal_report(anatomy, width=80, **shown)}```"
            path.write_text(
                re.sub(r"```text\n.*?```", block.replace("\\", r"\\"), path.read_text(), count=1, flags=re.DOTALL)
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
