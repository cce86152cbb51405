"""Write the report as GitHub-flavoured Markdown for an issue or a pull request: the first screen, the rest folded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from opanatomy.records.reports import Report
from opanatomy.report import units
from opanatomy.report.markdown import markdown_cell, markdown_code, markdown_text
from opanatomy.report.section import WITH, Cell, ColumnKind, Format, Name, NoteKind, Page, Row, Section
from opanatomy.report.sections import sections_of
from opanatomy.report.sections.memory import curve_lines

#: GitHub takes 65,536 characters; the rest is room for words around the report.
MOST_BYTES: Final = 60_000
#: Maximum number of table rows, facts, and notes per section.
_MAX_LISTED: Final = 100
_CURVE_WIDTH: Final = 80
_MAX_DEPTH: Final = 24


def markdown_report(report: Report, page: Page) -> str:
    """Return the requested part of the report in at most `MOST_BYTES` bytes; its end names what is omitted."""
    sections = sections_of(report, page)
    texts = {index: _section(section) for index, section in enumerate(sections)}
    # The first screen is dropped last, and of the rest the lower sections first.
    order = sorted(texts, key=lambda index: (sections[index].open, -index))
    left_out: list[int] = []
    # There is room for the sentence that names all sections.
    most = MOST_BYTES - sum(len(line.encode()) + 1 for line in _left_out([section.title for section in sections]))
    while sum(len(text.encode()) + 1 for text in texts.values()) > most:
        left_out.append(index := order.pop(0))
        del texts[index]
    return "\n".join((*texts.values(), *_left_out([sections[index].title for index in sorted(left_out)])))


def _left_out(titles: Sequence[str]) -> list[str]:
    if not titles:
        return []
    return [f"Left out because GitHub accepts at most 65,536 characters: {markdown_text(', '.join(titles))}.\n"]


def _section(section: Section) -> str:
    """Return a section under its heading, or folded under it."""
    body = "\n".join(_blocks(section))
    if section.notes and section.notes[0].kind is NoteKind.TITLE:
        return body
    title = f"{section.title}, {section.scope}" if section.scope else section.title
    if section.open:
        return f"### {markdown_text(title)}\n\n{body}"
    return f"<details>\n<summary>{escape(title, quote=False)}</summary>\n\n{body}\n</details>\n"


def _blocks(section: Section) -> Iterator[str]:
    """Yield table, facts, curve and notes, each ending in a line end."""
    if section.rows:
        columns = section.shown_columns
        rows = [[_cell(row, row.cell(column), column.unit) for column in columns] for row in section.rows[:_MAX_LISTED]]
        if section.rows[_MAX_LISTED:]:
            rows.append([f"and {len(section.rows) - _MAX_LISTED:,} more", *([""] * (len(columns) - 1))])
        headers = [markdown_text(column.header) for column in columns]
        marks = ["---:" if column.holds is ColumnKind.NUMBERS else ":---" for column in columns]
        yield "".join(f"| {' | '.join(cells)} |\n" for cells in (headers, marks, *rows))
    if section.facts:
        items = [
            f"**{markdown_text(fact.label)}**: {markdown_cell(fact.whole)}" if fact.label else markdown_cell(fact.whole)
            for fact in section.facts[:_MAX_LISTED]
        ]
        if section.facts[_MAX_LISTED:]:
            items.append(f"and {len(section.facts) - _MAX_LISTED:,} more")
        yield "".join(f"- {item}\n" for item in items)
    lines, legend = curve_lines(section.curve, _CURVE_WIDTH)
    if lines:
        yield "\n".join(("```text", *lines, "```", "", markdown_text(legend))) + "\n"

    # The meaning of a table's marks in one paragraph, each other note in its own.
    notes = section.notes[:_MAX_LISTED]
    footnotes = [markdown_cell(note.text) for note in notes if note.kind is NoteKind.FOOTNOTE]
    if footnotes:
        yield f"{'; '.join(footnotes)}\n"
    for note in notes:
        if note.kind is NoteKind.COMMAND and isinstance(note.text, str):
            yield f"next: {markdown_code(note.text, in_cell=False)}\n"
        elif note.kind is NoteKind.OPTIONS and isinstance(note.text, str):
            yield f"next: {WITH} {markdown_code(note.text, in_cell=False)}\n"
        elif note.kind is not NoteKind.FOOTNOTE and (text := markdown_cell(note.text)):
            yield f"{_KINDS.get(note.kind, '{}').format(text)}\n"
    if section.notes[_MAX_LISTED:]:
        yield f"and {len(section.notes) - _MAX_LISTED:,} more\n"


def _cell(row: Row, cell: Cell, unit: str) -> str:
    text = markdown_cell(cell, unit)
    if row.summary and text:
        text = f"**{text}**"
    # The spaces before the words of a cell, as in a tree.
    name = cell.name if isinstance(cell, Name) else cell
    indent = min(len(name) - len(name.lstrip(" ")), _MAX_DEPTH) if isinstance(name, str) else 0
    if indent:
        return "&nbsp;" * indent + text
    # An unknown value is not a list here.
    return units.UNKNOWN if text == f"`{units.UNKNOWN}`" else text


_KINDS: Final = {NoteKind.TITLE: "## {}", NoteKind.WARNING: "> {}", NoteKind.CONCLUSION: "**{}**"}

FORMAT: Final = Format(ending=".md", write=lambda report, page: markdown_report(report, page), machine_readable=False)
