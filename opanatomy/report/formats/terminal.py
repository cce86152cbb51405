"""The report for a terminal or a pipe: sections as lines that fit, with colours where they are wanted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Final

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.reports import Report
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.report import units
from opanatomy.report.section import (
    COLOUR,
    LABEL,
    SHORT_LABEL,
    WITH,
    Cell,
    Fact,
    Format,
    Holds,
    Name,
    Note,
    Page,
    Phrase,
    Section,
    Share,
    Tone,
)

if TYPE_CHECKING:
    from rich.text import Text

    from opanatomy.report import table

#: The namespaces of torch's own operators, left out where room is short.
_OF_TORCH: Final = re.compile(r"^(?:aten|c10d)::")
#: From this width on, classes and operators have their full names.
_ROOMY: Final = 100
_LABEL_WIDTH: Final = 11
#: The most cells of a name in a sentence, and of one in another column.
_NAME_WIDTH, _SECOND_NAME_WIDTH = 56, 40
#: The least cells of the names in the first column of a section, and in a later column of this header.
_FIRST_LEAST: Final = {
    "classes": 13, "kernels": 18, "modules": 20, "ratios": 13, "paper": 13, "operators": 18, "bounds": 16, "ranks": 8,
    "collectives": 10, "components": 13, "memory-peak": 18, "saved-activations": 11, "snapshots": 18,
    "activation-terms": 20, "published": 20, "out-of-memory": 24, "savings": 20, "techniques": 14, "predictions": 14,
    "technique-memory": 14, "suggestions": 16, "same-training": 18, "losses": 14, "not-run": 14,
    "underflow": 14, "causes": 28, "changes": 14, "kernels-changed": 12, "figures": 16, "steps": 8,
    "communication-phases": 13, "communication-modules": 14, "waiting-steps": 8, "matched": 10,
}  # fmt: skip
_LATER_LEAST: Final = {
    "launched by": 12, "class": 13, "phase": 9, "made by": 8, "shape": 16, "option": 16, "figure": 8,
    "what changed": 14,
}  # fmt: skip
_LEAST: Final = 12
#: The most cells of the names in a later column of this header, where there is little room.
_LATER_MOST: Final = {"launched by": 14}
#: Sections of lines that the next one follows without a blank line.
_TITLE: Final = "title"
_JOINED: Final = (_TITLE, "experiment", "run")
_STYLE: Final = {
    Tone.PLAIN: "", Tone.TITLE: "bold", Tone.FOOTNOTE: "dim", Tone.REMARK: "dim", Tone.WARNING: "yellow",
    Tone.CONCLUSION: "bold", Tone.COMMAND: "", Tone.OPTIONS: "",
}  # fmt: skip


def terminal_report(report: Report, page: Page) -> str:
    """The report as lines of at most `page.width` cells, with ANSI colours if `page.color`, as far as `page` wants."""
    from opanatomy.report.sections import page_sections

    if page.brief and page.height and isinstance(report, Anatomy):
        from opanatomy.report.fitting import fitting

        return fitting(report, page, lambda sections: page_text(sections, page.width, color=page.color))

    return page_text(page_sections(report, page), page.width, color=page.color)


def page_text(sections: Sequence[Section], width: int, *, color: bool = False) -> str:
    """Sections one after the other, those of one heading below it, with blank lines between them."""
    texts: list[str] = []
    before: Section | None = None
    for section in sections:
        headed = bool(section.heading) and (before is None or section.heading != before.heading)
        text = section_text(section, width, color=color, headed=headed)
        if not text:
            continue
        if before is not None and (before.name not in _JOINED or (headed and before.name != _TITLE)):
            texts.append("\n")
        texts.append(text)
        before = section
    return "".join(texts)


def section_text(section: Section, width: int, *, color: bool = False, headed: bool = False) -> str:
    """One section as lines of at most `width` cells, `headed` by its heading; nothing where there is no room for it."""
    from rich.console import Console

    file = StringIO()
    console = Console(
        file=file, width=width, color_system="256" if color else None, force_terminal=color, no_color=not color,
        highlight=False, markup=False, emoji=False, legacy_windows=False,
    )  # fmt: skip
    lines = list(_lines(section, width, color, headed))
    for line in (*(_heading(section, width) if headed and lines else ()), *lines):
        console.print(line, soft_wrap=True)
    return file.getvalue()


def _heading(section: Section, width: int) -> Iterator[Text]:
    """A line that names what follows and says of which steps it is, and a rule."""
    from rich.text import Text

    from opanatomy.report.table import PAGE, prose

    scope = f" ({section.scope})" if section.scope else ""
    rule = min(width, PAGE) - len(section.heading) - len(scope) - 1
    if rule < 0:
        yield Text(section.heading, style="bold")
        yield from prose(section.scope, width, style="dim")
        return
    yield Text.assemble((section.heading, "bold"), scope, (f" {'─' * rule}".rstrip(), "dim"))


def list_text(section: Section) -> str:
    """The notes of a section, and below them each of its rows on a line of its own, however long."""
    notes = [sentence(note.text) for note in section.notes]
    rows = [[_part(cell) for cell in row.cells] for row in section.rows]
    return "".join(f"{line}\n" for line in (*notes, *(f"  {first:>8}  {'  '.join(rest)}" for first, *rest in rows)))


def sentence(text: str | Phrase) -> str:
    """A phrase in words, its long names cut in the middle, or where they differ."""
    from opanatomy.report.table import cut_apart

    if isinstance(text, str):
        return text
    names = cut_apart([part.name for part in text.parts if isinstance(part, Name)], _NAME_WIDTH)
    return "".join(names[part.name] if isinstance(part, Name) else _part(part) for part in text.parts)


def _part(part: Cell) -> str:
    """A cell or a part of a phrase in full."""
    if part is None:
        return ""
    if isinstance(part, OperatorClass):
        return LABEL[part]
    if isinstance(part, str):
        return part
    if isinstance(part, Name):
        return part.name
    return sentence(part) if isinstance(part, Phrase) else units.text_of(part)


def _lines(section: Section, width: int, color: bool, headed: bool) -> Iterator[Text]:
    left_out: tuple[str, ...] = ()
    if section.rows:
        table, left_out = _table(section, width, color, ruled=not headed)
        yield from table
    # A label has a cell to its right, two where one is longer than usual.
    label_width = max(
        _LABEL_WIDTH, *(len(fact.label) + 2 for fact in section.facts if len(fact.label) >= _LABEL_WIDTH), 0
    )
    for fact in section.facts:
        yield from _fact(fact, width, label_width)
    yield from _curve(section, width)
    notes = [note for note in section.notes if note.column is None or note.column not in left_out]
    if left_out:
        notes.append(Note(text=f"left out at this width: {', '.join(left_out)}"))
    yield from _notes(notes, width)


def _fact(fact: Fact, width: int, label_width: int) -> Iterator[Text]:
    """The label, and to its right what it is."""
    from rich.text import Text

    from opanatomy.report.table import prose

    style = _STYLE[Tone.WARNING] if fact.warning else ""
    label = fact.label
    for line in prose(sentence(fact.text), width - label_width, style=style):
        yield Text.assemble((label.ljust(label_width), "dim"), line)
        label = ""


def _curve(section: Section, width: int) -> Iterator[Text]:
    from rich.text import Text

    from opanatomy.report.sections.memory import curve_lines
    from opanatomy.report.table import PAGE, prose

    lines, legend = curve_lines(section.curve, min(width, PAGE))
    yield from map(Text, lines)
    if legend:
        yield from prose(legend, width, style=_STYLE[Tone.REMARK])


def _notes(notes: list[Note], width: int) -> Iterator[Text]:
    """What the marks of a table mean in one paragraph, each other note in one of its own."""
    from opanatomy.report.table import command, prose

    footnotes = [sentence(note.text) for note in notes if note.tone is Tone.FOOTNOTE]
    if footnotes:
        yield from prose("; ".join(footnotes), width, style=_STYLE[Tone.FOOTNOTE])
    for note in notes:
        if note.tone is Tone.TITLE:
            yield from _title(sentence(note.text), width)
        elif note.tone is Tone.COMMAND:
            yield from command(sentence(note.text), width, label="next:")
        elif note.tone is Tone.OPTIONS:
            yield from command(sentence(note.text), width, label=f"next: {WITH}")
        elif note.tone is not Tone.FOOTNOTE:
            yield from prose(sentence(note.text), width, style=_STYLE[note.tone])


def _title(text: str, width: int) -> Iterator[Text]:
    """The title, and a rule for what is left of its line."""
    from rich.text import Text

    from opanatomy.report.table import PAGE, prose

    *lines, last = prose(text, width, style=_STYLE[Tone.TITLE])
    yield from lines
    rule = "─" * (min(width, PAGE) - last.cell_len - 1)
    yield Text.assemble(last, (f" {rule}", "dim")) if rule else last


def _table(section: Section, width: int, color: bool, *, ruled: bool) -> tuple[list[Text], tuple[str, ...]]:
    """The table, and the headers of the columns that there was no room for."""
    from opanatomy.report import table

    places = section.shown_columns
    columns = [_column(section, place) for place in places]
    cells = [_column_cells(section, place, width) for place in places]
    rows = [
        table.Row(
            cells=texts,
            mark=None if row.operator_class is None else COLOUR[row.operator_class],
            bar=row.fraction,
            strong=row.summary,
        )
        for row, texts in zip(section.rows, zip(*cells, strict=True), strict=True)
    ]
    classed = any(row.mark for row in rows)
    lines, kept = table.table(columns, rows, width, swatches=color and classed, ruled=ruled)
    return lines, tuple(column.header for column in columns if column.header not in kept)


def _column(section: Section, place: int) -> table.Column:
    from opanatomy.report import table

    column = section.columns[place]
    least = _LATER_LEAST.get(column.header, _LEAST) if place else _FIRST_LEAST.get(section.name, _LEAST)
    # Half a formula is a wrong formula: all of it or none.
    least = table.WHOLE if column.holds is Holds.FORMULAS else least
    return table.Column(
        header=column.header, name=column.holds is not Holds.NUMBERS, least=least, drop=column.expendable
    )


def _column_cells(section: Section, place: int, width: int) -> list[str]:
    """The cells of one column as texts; shares stand below each other, whatever they cover."""
    from opanatomy.report.table import cut

    column, cells = section.columns[place], [row.cells[place] for row in section.rows]
    roomy = width >= _ROOMY
    texts = [_cell(cell, column.unit, first=place == 0, roomy=roomy) for cell in cells]
    if not roomy and column.header in _LATER_MOST:
        texts = [cut(text, _LATER_MOST[column.header]) for text in texts]
    covers = [len(_cover(cell)) for cell in cells]
    return [text + " " * (max(covers) - cover) for text, cover in zip(texts, covers, strict=True)]


def _cover(cell: Cell) -> str:
    return units.coverage(cell) if isinstance(cell, Share) else ""


def _cell(cell: Cell, unit: str, *, first: bool, roomy: bool) -> str:
    """A cell as text: the name of its row in full where room is, names in later columns shorter."""
    from opanatomy.report.table import cut

    if isinstance(cell, OperatorClass):
        return (LABEL if roomy and first else SHORT_LABEL)[cell]
    if isinstance(cell, Name):
        name = cell.name if roomy else _OF_TORCH.sub("", cell.name)
        return name if first else cut(name, _SECOND_NAME_WIDTH)
    if isinstance(cell, Phrase):
        return "".join(_cell(part, "", first=first, roomy=roomy) for part in cell.parts)
    return cell or "" if cell is None or isinstance(cell, str) else units.text_of(cell, unit)


FORMAT: Final = Format(
    ending=".txt",
    write=terminal_report,
    machine_readable=False,
)
