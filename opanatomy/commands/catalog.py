"""`opanatomy catalog`: the models that are built in, whose names `profile` takes with no network."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from opanatomy.console.parser import add_options
from opanatomy.options import CATALOG

SUMMARY: Final = "list the built-in models"
EXAMPLES: Final = (
    ("all of them, with their sizes", "opanatomy catalog"),
    ("only language models", "opanatomy catalog causal-lm"),
    ("for a script", "opanatomy catalog bert -f json"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.description = "List the built-in models: each name is a MODEL that needs no network."
    add_options(parser, CATALOG)


def run(arguments: argparse.Namespace) -> None:
    """Print the models that fit."""
    from opanatomy.console.catalog import as_json, as_text, entries_of
    from opanatomy.console.stdout import columns_of, write_out

    entries = entries_of(arguments.word)
    if arguments.format == "json":
        write_out(as_json(entries), machine_readable=True)
    else:
        write_out(as_text(entries, columns_of(sys.stdout)), machine_readable=False)
