"""Write sections as HTML elements: tables, facts and notes, which a page or a notebook gives a look.

Every text is escaped; a name from a trace is shown as text, whatever it is. A cell with a number has its exact value in
base units as `data-v`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from typing import Final

from opanatomy.records.patterns import regex
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.report import units
from opanatomy.report.section import (
    COLOUR,
    LABEL,
    WITH,
    Cell,
    Change,
    Column,
    ColumnKind,
    Name,
    Note,
    NoteStyle,
    Phrase,
    Row,
    Section,
    Share,
    cut,
    is_known,
    printable,
)

#: Cells of a name; a longer one loses its middle, and the tooltip shows the whole.
_NAME_WIDTH: Final = 100
#: Nobody reads a tooltip of more characters.
_TITLE_MOST: Final = 2000

#: What stands between backticks in a text is code.
_CODE: Final = regex("`([^`]+)`")

#: Returns the meaning of a word in a section, for those who point at it; "" if it needs none.
Meaning = Callable[[Section, str], str]
#: Returns what a row of a section opens to; "" if nothing.
Opened = Callable[[Section, Row], str]


def nothing_more(_section: Section, _of: object) -> str:
    """Return nothing: words without a meaning to show, rows that do not open."""
    return ""


def elements(section: Section, meaning: Meaning = nothing_more, opened: Opened = nothing_more) -> Iterator[str]:
    """Yield the table, the facts and the notes of a section."""
    if section.rows:
        yield from _table(section, meaning, opened)
    if section.facts:
        yield '<table class="facts">'
        for fact in section.facts:
            label = _word(fact.label, meaning(section, fact.label))
            mark = ' class="warning"' if fact.warning else ""
            yield f'<tr{mark}><th scope="row">{label}</th><td>{text_of(fact.whole)}</td></tr>'
        yield "</table>"
    yield from map(_note, section.notes)


def _table(section: Section, meaning: Meaning, opened: Opened) -> Iterator[str]:
    columns = section.shown_columns
    yield f'<table class="rows" data-section="{escape(section.name)}">'
    heads = (
        f'<th scope="col"{_numbers(column)}>{_word(column.header, meaning(section, column.header))}</th>'
        for column in columns
    )
    yield f"<thead><tr>{''.join(heads)}</tr></thead>"
    yield "<tbody>"
    for row in section.rows:
        yield _row(section, row, columns, opened)
    yield "</tbody></table>"


def _row(section: Section, row: Row, columns: tuple[Column, ...], opened: Opened) -> str:
    more = opened(section, row)
    cells = []
    for column in columns:
        cell = row.cell(column)
        text = text_of(cell, column.unit)
        if column is columns[0]:
            text = f"<details><summary>{text}</summary>{more}</details>" if more else text
            text = _square(row.operator_class) + text
        number = number_of(cell)
        value = "" if number is None else f' data-v="{number!r}"'
        tag = 'th scope="row"' if column is columns[0] else "td"
        cells.append(f"<{tag}{_numbers(column)}{value}{_indent(cell)}>{text}</{tag[:2]}>")
    marks = (
        ("data-key", row.key), ("data-class", row.operator_class.value if row.operator_class else ""),
        ("class", "summary" if row.summary else ""),
    )  # fmt: skip
    attributes = "".join(f' {name}="{plain(value)}"' for name, value in marks if value)
    return f"<tr{attributes}>{''.join(cells)}</tr>"


def _numbers(column: Column) -> str:
    return ' class="n"' if column.holds is ColumnKind.NUMBERS else ""


def _square(operator_class: OperatorClass | None) -> str:
    return "" if operator_class is None else f'<span style="color:{COLOUR[operator_class]}">&#9632;</span> '


def _indent(cell: Cell) -> str:
    """Return the style of a name in a tree, whose depth is its leading blanks."""
    name = cell.name if isinstance(cell, Name) else cell
    depth = len(name) - len(name.lstrip(" ")) if isinstance(name, str) else 0
    return f' style="padding-left:{depth / 2 + 0.5:g}em"' if depth else ""


def _word(word: str, means: str) -> str:
    """Return a word of the report; its meaning is there for the pointer and the keyboard."""
    return f'<span class="term" tabindex="0" data-means="{plain(means)}">{plain(word)}</span>' if means else plain(word)


def _note(note: Note) -> str:
    text = text_of(note.text)
    if note.tone is NoteStyle.COMMAND:
        return f'<p class="next">next: <code class="command">{text}</code></p>'
    if note.tone is NoteStyle.OPTIONS:
        return f'<p class="next">next: {WITH} <code class="command">{text}</code></p>'
    if note.tone is NoteStyle.WARNING:
        return f'<p class="warning">&#9888; {text}</p>'
    if note.tone is NoteStyle.TITLE:
        return f"<h1>{text}</h1>"
    if note.tone is NoteStyle.CONCLUSION:
        return f'<p class="conclusion"><strong>{text}</strong></p>'
    return f'<p class="note"><small>{text}</small></p>'


def number_of(cell: Cell) -> float | None:
    """Return the number in a cell, in base units; `None` if it holds none, or one that is not known."""
    if cell is None or isinstance(cell, (str, OperatorClass, Name, Phrase)) or not is_known(cell):
        return None
    if isinstance(cell, Share):
        return (cell.part or 0) / (cell.whole or 1)
    if isinstance(cell, Change):
        return (cell.new or 0) / (cell.old or 1) - 1
    number: float = getattr(cell, cell.__struct_fields__[0])
    return number


def text_of(cell: Cell, unit: str = "") -> str:
    """Return a cell or a part of a phrase, escaped; nothing for an empty cell."""
    if cell is None:
        return ""
    if isinstance(cell, OperatorClass):
        return escape(LABEL[cell])
    if isinstance(cell, Phrase):
        return "".join(text_of(part) for part in cell.parts)
    if isinstance(cell, Name):
        return _name(cell.name)
    return _CODE.sub(r"<code>\1</code>", plain(cell)) if isinstance(cell, str) else escape(units.text_of(cell, unit))


def _name(name: str) -> str:
    shown = plain(cut(printable(name), _NAME_WIDTH))
    return shown if len(name) <= _NAME_WIDTH else f'<span title="{plain(name[:_TITLE_MOST])}">{shown}</span>'


def plain(text: str) -> str:
    """Return a text in visible characters, escaped for an element or an attribute."""
    return escape(printable(text), quote=True)
