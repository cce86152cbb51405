"""A trace -> reports/NAME.json and reports/NAME.txt (80 columns); the README shows the first screen of BERT-large's."""

import re
import sys
from pathlib import Path

from opanatomy.pipeline import analyze_traces
from opanatomy.report import terminal_report
from opanatomy.report.formats.json import json_report

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
SHOWN = "bert-large-uncased"


def main(trace: Path) -> None:
    """Write the two files and, for the main command, the README."""
    anatomy = analyze_traces([trace])
    name = trace.name.removesuffix(".trace.json.gz")
    text = terminal_report(anatomy, width=80)
    (HERE / f"{name}.json").write_text(json_report(anatomy))
    (HERE / f"{name}.txt").write_text(text)
    if name == SHOWN:
        shown = re.sub(
            r"(```text\n).*?(```)",
            lambda match: match[1] + terminal_report(anatomy, width=80, brief=True) + match[2],
            README.read_text(),
            flags=re.DOTALL,
        )
        README.write_text(shown)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
