"""Write the first screen as HTML for notebooks: tables without colours of their own, readable on light and dark.

Every text is escaped; a name from a trace is shown as text, whatever it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from typing import Final

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.comparison import Comparison
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.report import units
from opanatomy.report.section import (
    COLOUR,
    LABEL,
    WITH,
    Cell,
    Column,
    ColumnKind,
    Name,
    Note,
    NoteStyle,
    Phrase,
    Section,
    cut,
    printable,
)
from opanatomy.report.sections import first_screen, sections_of

#: Cells of a name; a longer one loses its middle, and the tooltip shows the whole.
_NAME_WIDTH: Final = 100
#: Nobody reads a tooltip of more characters.
_TITLE_MOST: Final = 2000
_NUMBERS: Final = "text-align:right;font-variant-numeric:tabular-nums"
_NAMES: Final = "text-align:left"
_SOFT: Final = "opacity:.75"


def first_screen_html(anatomy: Anatomy) -> str:
    """Return the first screen of the report as one HTML element."""
    return _html(first_screen(anatomy))


def comparison_html(comparison: Comparison) -> str:
    """Return the page of a comparison as one HTML element."""
    return _html(sections_of(comparison))


def _html(sections: Iterable[Section]) -> str:
    lines = "\n".join(line for section in sections for line in _section(section))
    return f'<div class="opanatomy" style="color:inherit;background:transparent">\n{lines}\n</div>'


def _section(section: Section) -> Iterator[str]:
    """Yield the facts, the table and the notes of a section."""
    yield f'<div class="opanatomy-{escape(section.name)}">'
    if section.rows:
        yield from _table(section)
    if section.facts:
        yield "<table>"
        for fact in section.facts:
            yield f'<tr><th style="{_NAMES}">{_text(fact.label)}</th><td style="{_NAMES}">{_text(fact.text)}</td></tr>'
        yield "</table>"
    yield from map(_note, section.notes)
    yield "</div>"


def _table(section: Section) -> Iterator[str]:
    columns = section.shown_columns
    yield "<table>"
    yield f"<thead><tr>{''.join(_cell('th', column, column.header) for column in columns)}</tr></thead>"
    yield "<tbody>"
    for row in section.rows:
        tag = "th" if row.summary else "td"
        square = row.operator_class and f'<span style="color:{COLOUR[row.operator_class]}">&#9632;</span> '
        cells = [_cell(tag, column, row.cell(column), square if column is columns[0] else "") for column in columns]
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table>"


def _cell(tag: str, column: Column, cell: Cell, square: str | None = "") -> str:
    """Return one cell; the first of a row that has a class has a square of its colour."""
    style = _NUMBERS if column.holds is ColumnKind.NUMBERS else _NAMES
    return f'<{tag} style="{style}">{square or ""}{_text(cell, column.unit)}</{tag}>'


def _note(note: Note) -> str:
    if note.tone is NoteStyle.TITLE or note.tone is NoteStyle.CONCLUSION:
        return f"<p><strong>{_text(note.text)}</strong></p>"
    if note.tone is NoteStyle.COMMAND:
        return f"<p>next: <code>{_text(note.text)}</code></p>"
    if note.tone is NoteStyle.OPTIONS:
        return f"<p>next: {WITH} <code>{_text(note.text)}</code></p>"
    if note.tone is NoteStyle.WARNING:
        return f"<p>&#9888; {_text(note.text)}</p>"
    return f'<p style="{_SOFT}"><small>{_text(note.text)}</small></p>'


def _text(cell: Cell, unit: str = "") -> str:
    """Return a cell or a part of a phrase, escaped; nothing for an empty cell."""
    if cell is None:
        return ""
    if isinstance(cell, OperatorClass):
        return escape(LABEL[cell])
    if isinstance(cell, Phrase):
        return "".join(_text(part) for part in cell.parts)
    if isinstance(cell, Name):
        return _name(cell.name)
    return _plain(cell) if isinstance(cell, str) else escape(units.text_of(cell, unit))


def _name(name: str) -> str:
    shown = _plain(cut(printable(name), _NAME_WIDTH))
    return shown if len(name) <= _NAME_WIDTH else f'<span title="{_plain(name[:_TITLE_MOST])}">{shown}</span>'


def _plain(text: str) -> str:
    return escape(printable(text), quote=True)
