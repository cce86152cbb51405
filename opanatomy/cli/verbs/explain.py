"""Run `opanatomy explain NAME`: what a line of the report means, how an operator or kernel is classed and counted."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from opanatomy.errors import OpanatomyError, UsageError
from opanatomy.options import EXPLAIN

DESCRIPTION: Final = (
    "Explain a line or column of the report (what it means, and how to compute it from the JSON report), an operator or"
    " kernel (class, rule and formula), a technique, or a device (variants, peaks and memory). With --report, also show"
    " the values in a saved report."
)
OPTIONS: Final = EXPLAIN
EXAMPLES: Final = (
    ("a line of the report", "opanatomy explain MFU"),
    ("an operator, with its shapes and numbers in a report", "opanatomy explain aten::addmm --report report.json"),
    ("a GPU: its variants, peaks and memory", "opanatomy explain 4090"),
    ("what could not be classified or counted in a report", "opanatomy explain --unknown report.json"),
)


def run(arguments: argparse.Namespace) -> None:
    """Print an explanation of each name, and of a report's unexplained part; fail for an unknown name."""
    from opanatomy.cli.stdout import write_out
    from opanatomy.explanation import explain, read_report, unexplained
    from opanatomy.io.redact import mask_secrets
    from opanatomy.report.formats.terminal import list_text

    if not arguments.name and arguments.unknown is None:
        raise UsageError("explain: no name - pass a line of the report, an operator or a kernel, or --unknown REPORT")
    report = read_report(Path(arguments.report)) if arguments.report else None
    explanation = explain([mask_secrets(name) for name in arguments.name], report)
    blocks = [explanation.text] if explanation.text else []
    if arguments.unknown is not None:
        blocks.append("".join(map(list_text, unexplained(Path(arguments.unknown)))))
    write_out("\n".join(blocks), machine_readable=False)
    if explanation.unknown:
        raise OpanatomyError(_not_known(explanation.unknown, with_report=report is not None))


def _not_known(unknown: tuple[tuple[str, tuple[str, ...]], ...], *, with_report: bool) -> str:
    """Return a line with the unknown names and similar known ones."""
    names = "; ".join(f"{name!r} (near: {', '.join(near)})" if near else repr(name) for name, near in unknown)
    hint = "write it as the report prints it" + (
        "" if with_report else "; use --report REPORT to look up names in that report too"
    )
    return f"no line of the report, operator, kernel or device is called {names} - {hint}"
