"""`opanatomy explain NAME`: the class of an operator or kernel, the rule that decided, its formula."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from opanatomy.console.parser import add_options
from opanatomy.errors import UsageError
from opanatomy.options import EXPLAIN

SUMMARY: Final = "say how an operator or kernel is classed and counted"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.description = "Print the class of an operator or kernel name, the rule that decided, and its formula."
    add_options(parser, EXPLAIN)


def run(arguments: argparse.Namespace) -> None:
    """Print what is known of each name, and of what a report leaves unexplained."""
    from opanatomy.console.explanation import explain
    from opanatomy.console.stdout import write_out
    from opanatomy.console.worked import read_report
    from opanatomy.redaction.texts import spoken
    from opanatomy.report.formats.terminal import list_text
    from opanatomy.report.sections.explained import unexplained

    if not arguments.name and arguments.unknown is None:
        raise UsageError("explain: no name - give an operator or kernel, or --unknown REPORT")
    anatomy = read_report(Path(arguments.report)) if arguments.report else None
    blocks = [explain(spoken(name), anatomy) for name in arguments.name]
    if arguments.unknown is not None:
        blocks.append("".join(map(list_text, unexplained(read_report(Path(arguments.unknown))))))
    write_out("\n".join(blocks), machine_readable=False)
