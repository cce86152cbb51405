"""`opanatomy analyze TRACE`: the report of a trace."""

from __future__ import annotations

import argparse
from pathlib import Path

from opanatomy.commands.show import check_output, show


def run(arguments: argparse.Namespace) -> None:
    """Read the trace and show its anatomy."""
    check_output(arguments)
    from opanatomy.pipeline import analyze_trace

    show(analyze_trace(Path(arguments.trace)), arguments)
