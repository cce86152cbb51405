"""Run `opanatomy catalog`: list the built-in models, whose names `profile` takes with no network."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from io import StringIO
from typing import TYPE_CHECKING, Final

from opanatomy.errors import OpanatomyError
from opanatomy.options import CATALOG

if TYPE_CHECKING:
    from opanatomy.capture.model.catalog import Entry
    from opanatomy.report.formats import terminal

DESCRIPTION: Final = "List the built-in models. Each name can be passed as MODEL and needs no network access."
OPTIONS: Final = CATALOG
EXAMPLES: Final = (
    ("all of them, with their sizes", "opanatomy catalog"),
    ("only language models", "opanatomy catalog causal-lm"),
    ("for a script", "opanatomy catalog bert -f json"),
)


def run(arguments: argparse.Namespace) -> None:
    """Print the matching models."""
    from opanatomy.cli.stdout import columns_of, write_out

    entries = entries_of(arguments.word)
    if arguments.format == "json":
        write_out(as_json(entries), machine_readable=True)
    else:
        write_out(as_text(entries, columns_of(sys.stdout)), machine_readable=False)


# The built-in models as a table and as JSON.


def entries_of(words: Sequence[str]) -> list[Entry]:
    """Return the built-in models with all these words in name, kind, class or task; raise if there are none."""
    from opanatomy.capture.model.catalog import catalog_entries

    entries = catalog_entries()
    matching = [entry for entry in entries if all(_has(entry, word) for word in words)]
    if not matching:
        known = {text for entry in entries for text in (entry.name.split("/")[-1], entry.kind, entry.task)}
        near = [match for word in words for match in get_close_matches(word.lower(), sorted(known), n=2)]
        instead = f"did you mean {' or '.join(dict.fromkeys(near))}?" if near else "opanatomy catalog lists all"
        raise OpanatomyError(
            f"catalog {' '.join(words)}: no built-in model has this in its name, kind or task - {instead}"
        )
    return matching


def _has(entry: Entry, word: str) -> bool:
    texts = (entry.name, entry.kind, entry.architecture, entry.task)
    return any(word.lower() in text.lower() for text in texts)


def as_json(entries: Sequence[Entry]) -> str:
    """Return the models with all figures; `layers` and `hidden` have a number per stack, `null` if there is none."""
    import msgspec

    models = [msgspec.structs.asdict(entry) for entry in entries]
    return json.dumps({"schema": 1, "models": models}, indent=2) + "\n"


def as_text(entries: Sequence[Entry], width: int) -> str:
    """Return a line for each model, its name always whole, so that it can be pasted; and the columns without room."""
    from rich.console import Console

    from opanatomy.report.formats import terminal

    columns = [
        _whole("model"),
        terminal.Column(header="parameters"),
        terminal.Column(header="layers", drop=1),
        terminal.Column(header="hidden", drop=2),
        _whole("task"),
        _whole("kind", drop=3),
    ]
    rows = [
        terminal.TableRow(
            cells=(
                entry.name,
                _parameters(entry.parameters),
                _stacks(entry.layers),
                _stacks(entry.hidden),
                entry.task,
                entry.kind,
            )
        )
        for entry in entries
    ]
    lines, shown = terminal.table(columns, rows, width)
    left_out = [column.header for column in columns if column.header not in shown]
    notes = ["parameters, layers and hidden size are those of the model without --task, --layers or --set"]
    notes += (
        [f"columns hidden at this width: {', '.join(left_out)} - widen the terminal, or use -f json"]
        if left_out
        else []
    )
    console = Console(file=StringIO(), width=max(width, 1), color_system=None, highlight=False, markup=False)
    with console.capture() as captured:
        for line in [*lines, *terminal.prose("; ".join(notes), width)]:
            console.print(line, soft_wrap=True)
    return captured.get()


def _whole(header: str, *, drop: int = 0) -> terminal.Column:
    """Return a column of words that are typed or pasted, and so not cut."""
    from opanatomy.report.formats import terminal

    return terminal.Column(header=header, name=True, least=terminal.WHOLE, drop=drop)


def _parameters(number: int) -> str:
    """Return `335 M`, `8.03 B`: billions as the field writes them."""
    from opanatomy.report.units import prefixed

    return prefixed(number).replace("G", "B")


def _stacks(numbers: tuple[int, ...] | None) -> str:
    """Return a number for each stack of layers: `12`, `6 + 6`."""
    return "-" if numbers is None else " + ".join(map(str, numbers))
