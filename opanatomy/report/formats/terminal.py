"""Lay the report out for a terminal or a pipe: sections as lines that fit, with colours if wanted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from io import StringIO
from itertools import islice
from typing import Final

from msgspec import Struct
from msgspec.structs import replace
from rich.cells import cell_len
from rich.text import Text

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.patterns import regex
from opanatomy.records.reports import Report
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.report import units
from opanatomy.report.names import SHORTEST, crop, cut, cut_apart, printable
from opanatomy.report.section import (
    COLOUR,
    LABEL,
    SHORT_LABEL,
    WITH,
    Cell,
    ColumnKind,
    Count,
    Format,
    Name,
    Note,
    NoteKind,
    Page,
    Phrase,
    Row,
    Section,
    Share,
    Time,
    phrase,
)
from opanatomy.report.sections import HEADING_OF, first_screen, headings_beyond, sections_of
from opanatomy.report.sections.memory import curve_lines

#: Namespaces of torch's own operators, omitted if space is short.
_OF_TORCH: Final = regex(r"^(?:aten|c10d)::")
#: From this width on, classes and operators have their full names.
_FULL_NAMES_WIDTH: Final = 100
_LABEL_WIDTH: Final = 11
#: The most cells of a name in a sentence, and of one in another column.
_NAME_WIDTH, _SECOND_NAME_WIDTH = 56, 40
#: The same where a sentence has too few lines for it.
_NAME_WIDTHS: Final = (40, 28)
#: Maximum width of names in later columns with this header, if space is short.
_LATER_MOST: Final = {"launched by": 14}
#: Sections not followed by a blank line.
_TITLE: Final = "title"
_JOINED: Final = (_TITLE, "in-short", "experiment", "run")
_STYLE: Final = {
    NoteKind.PLAIN: "",
    NoteKind.TITLE: "bold",
    NoteKind.FOOTNOTE: "dim",
    NoteKind.REMARK: "dim",
    NoteKind.WARNING: "yellow",
    NoteKind.CONCLUSION: "bold",
    NoteKind.COMMAND: "",
    NoteKind.OPTIONS: "",
}


def terminal_report(report: Report, page: Page) -> str:
    """Return the requested part of the report in lines of at most `page.width` cells, coloured if `page.color`."""
    text_of = partial(page_text, width=page.width, color=page.color)
    if not (page.brief and page.height):
        return text_of(sections_of(report, page))
    if isinstance(report, Anatomy):
        return fitting(report, page, text_of)
    return fitting_parts(report, page, text_of)


def page_text(sections: Sequence[Section], width: int, *, color: bool = False) -> str:
    """Return sections in order, grouped under headings, with blank lines between them."""
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
    """Return one section as lines of at most `width` cells, with its heading if `headed`; empty if there is no room."""
    from rich.console import Console

    file = StringIO()
    console = Console(
        file=file,
        width=width,
        color_system="256" if color else None,
        force_terminal=color,
        no_color=not color,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    lines = list(_lines(section, width, color, headed))
    if headed and lines:
        # The heading and the steps it covers, and a rule for the rest of its line.
        scope = f" ({section.scope})" if section.scope else ""
        rule = min(width, PAGE) - len(section.heading) - len(scope) - 1
        if rule < 0:
            lines = [Text(section.heading, style="bold"), *prose(section.scope, width, style="dim"), *lines]
        else:
            heading = Text.assemble((section.heading, "bold"), scope, (f" {'─' * rule}".rstrip(), "dim"))
            lines = [heading, *lines]
    for line in lines:
        console.print(line, soft_wrap=True)
    return file.getvalue()


def list_text(section: Section) -> str:
    """Return a section's notes, followed by each of its rows on one line, however long."""
    notes = [sentence(note.text) for note in section.notes]
    rows = [[_part(row.cell(column)) for column in section.columns] for row in section.rows]
    return "".join(f"{line}\n" for line in (*notes, *(f"  {first:>8}  {'  '.join(rest)}" for first, *rest in rows)))


def sentence(text: str | Phrase, name_width: int = _NAME_WIDTH) -> str:
    """Return a phrase in words, its long names cut in the middle, or at their first difference."""
    return "".join(word for word, _ in _words(text, name_width))


def _words(text: str | Phrase, name_width: int) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a phrase in words, and whether each is a name."""
    parts = (text,) if isinstance(text, str) else text.parts
    names = cut_apart([part.name for part in parts if isinstance(part, Name)], name_width)
    for part in parts:
        yield (names[part.name], True) if isinstance(part, Name) else (_part(part), False)


def _part(part: Cell) -> str:
    """Return a cell or a part of a phrase in full."""
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
    """Yield the table, the facts, the curve and the notes."""
    left_out: tuple[str, ...] = ()
    if section.rows:
        table, left_out = _table(section, width, color, ruled=not headed)
        yield from table

    # A label has a cell to its right, two if one is longer than usual; that of advice only shortens its own line.
    long = (len(fact.label) + 2 for fact in section.facts if len(fact.label) >= _LABEL_WIDTH and fact.cure is None)
    label_width = max(_LABEL_WIDTH, *long, 0)
    room = width - label_width
    for fact in section.facts:
        style = _STYLE[NoteKind.WARNING] if fact.warning else ""
        label = fact.label.ljust(label_width) if len(fact.label) < label_width else f"{fact.label}  "
        lines = fitted(fact.text, room, fact.most_lines, style=style, used=len(label) - label_width)
        for line in lines:
            yield Text.assemble((label, "dim"), line)
            label = " " * label_width
        if fact.cure is not None:
            for line in fitted(fact.cure, room, fact.most_lines and fact.most_lines + 1 - len(lines), style=style):
                yield Text.assemble(label, line)

    if section.curve:
        curve, legend = curve_lines(section.curve, min(width, PAGE))
        yield from map(Text, curve)
        if legend:
            yield from prose(legend, width, style=_STYLE[NoteKind.REMARK])

    # The meaning of a table's marks in one paragraph, each other note in its own.
    notes = [note for note in section.notes if note.column is None or note.column not in left_out]
    if left_out:
        notes.append(Note(text=f"columns hidden at this width: {', '.join(left_out)}"))
    footnotes = [sentence(note.text) for note in notes if note.kind is NoteKind.FOOTNOTE]
    if footnotes:
        yield from prose("; ".join(footnotes), width, style=_STYLE[NoteKind.FOOTNOTE])
    for note in notes:
        if note.kind is NoteKind.TITLE:
            *first, last = prose(sentence(note.text), width, style=_STYLE[NoteKind.TITLE])
            yield from first
            rule = "─" * (min(width, PAGE) - last.cell_len - 1)
            yield Text.assemble(last, (f" {rule}", "dim")) if rule else last
        elif note.kind is NoteKind.COMMAND:
            yield from command(sentence(note.text), width, label="next:")
        elif note.kind is NoteKind.OPTIONS:
            yield from command(sentence(note.text), width, label=f"next: {WITH}")
        elif note.kind is not NoteKind.FOOTNOTE:
            yield from fitted(note.text, width, note.most_lines, style=_STYLE[note.kind])


def _table(section: Section, width: int, color: bool, *, ruled: bool) -> tuple[list[Text], tuple[str, ...]]:
    """Return the table, and the headers of the columns that were dropped."""
    shown, roomy = section.shown_columns, width >= _FULL_NAMES_WIDTH
    columns: list[Column] = []
    cells: list[list[str]] = []
    for column in shown:
        # Half a formula is a wrong formula: all of it or none.
        least = WHOLE if column.holds is ColumnKind.FORMULAS else column.least
        name = column.holds is not ColumnKind.NUMBERS
        columns.append(Column(header=column.header, name=name, least=least, drop=column.drop_order))
        values = [row.cell(column) for row in section.rows]
        own = [_cell(value, column.unit, first=column is section.columns[0], roomy=roomy) for value in values]
        if not roomy and column.header in _LATER_MOST:
            own = [cut(text, _LATER_MOST[column.header]) for text in own]
        # Shares stand below each other, whatever they cover.
        covers = [len(units.coverage(value)) if isinstance(value, Share) else 0 for value in values]
        cells.append([text + " " * (max(covers) - cover) for text, cover in zip(own, covers, strict=True)])
    rows = [
        TableRow(
            cells=texts,
            mark=None if row.operator_class is None else COLOUR[row.operator_class],
            bar=row.fraction,
            strong=row.summary,
        )
        for row, texts in zip(section.rows, zip(*cells, strict=True), strict=True)
    ]
    classed = any(row.mark for row in rows)
    lines, kept = table(columns, rows, width, swatches=color and classed, ruled=ruled)
    return lines, tuple(column.header for column in columns if column.header not in kept)


def _cell(cell: Cell, unit: str, *, first: bool, roomy: bool) -> str:
    """Return a cell as text: the name of its row in full if there is room, names in later columns shorter."""
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


# A text table that fits: numbers keep every digit, names give way first, columns drop last.


#: Prose and rules are not wider than this, however wide the terminal.
PAGE: Final = 100
#: Longer text is no prose: a device name of a megabyte.
_MAX_PROSE: Final = 4000
_GAP: Final = 2
#: The least cells of names that are shown whole or not at all.
WHOLE: Final = sys.maxsize
#: A share in brackets.
_SHARE: Final = regex(r"\([\d.<>,]+ %(?:, replayed)?\)")
#: The words of a command as a shell reads them, quotes and all.
_ARGUMENT: Final = regex(r"(?:[^\s'\"]|'[^']*'|\"[^\"]*\"|['\"])+")
#: The space after a number, and the character that replaces it while lines are broken.
_NUMBER: Final = regex(r"(?<=\d) (?=[%\w])")
_GLUE: Final = "\N{NO-BREAK SPACE}"
_BLOCKS: Final = " ▏▎▍▌▋▊▉"
_BAR_LEAST, _BAR_MOST = 8, 24


class Column(Struct, frozen=True, kw_only=True):
    """A column of numbers, right-aligned; with `name` one of text that may be cut, down to `least` cells (`WHOLE`: not
    at all).

    If the table is still too wide, columns are dropped by descending `drop`; those with `drop` 0 only if even the
    shortest names leave no room, the last one first. The first column is never dropped.
    """

    header: str
    name: bool = False
    least: int = 12
    drop: int = 0


class TableRow(Struct, frozen=True, kw_only=True):
    """The cells of a row, one for each column; `mark` colours a swatch before the first cell and the bar."""

    cells: tuple[str, ...]
    mark: str | None = None
    bar: float | None = None
    strong: bool = False


def table(
    columns: Sequence[Column], rows: Sequence[TableRow], width: int, *, swatches: bool = False, ruled: bool = True
) -> tuple[list[Text], set[str]]:
    """Return the table as lines of at most `width` cells, and the headers of the columns that had room.

    `swatches` puts a coloured square before the first cell of rows with a mark; if there is room and rows have a `bar`
    (0 to 1), a bar is drawn on the right. `ruled` draws a line below the headers.
    """
    header = TableRow(cells=tuple(printable(column.header) for column in columns), strong=True)
    rows = [replace(row, cells=tuple(map(printable, row.cells))) for row in rows]
    natural = {i: max(cell_len(row.cells[i]) for row in (header, *rows)) for i in range(len(columns))}
    indent = _GAP if swatches else 0
    widths = _fit(columns, natural, width - indent)
    used = indent + sum(widths.values()) + _GAP * (len(widths) - 1)
    bar = min(width - used - _GAP, _BAR_MOST)
    cells = [list(row.cells) for row in rows]
    for i, room in widths.items():
        if columns[i].name:
            texts = cut_apart([row[i] for row in cells], room)
            for kept in cells:
                kept[i] = texts[kept[i]]
    rows = [replace(row, cells=tuple(kept)) for row, kept in zip(rows, cells, strict=True)]
    title = _line(header, columns, widths, swatches=swatches)
    title.stylize("not bold dim", indent + widths[0])
    title.rstrip()
    lines = [title, Text("─" * used, style="dim")] if ruled else [title]
    for row in rows:
        line = _line(row, columns, widths, swatches=swatches)
        if bar >= _BAR_LEAST and row.bar is not None:
            line.append(" " * _GAP)
            # Eighths of a cell; more than nothing shows at least one of them.
            eighths = max(round(row.bar * bar * 8), 1 if row.bar > 0 else 0)
            full, rest = divmod(min(eighths, bar * 8), 8)
            line.append("█" * full + _BLOCKS[rest].strip(), style=row.mark)
        line.rstrip()
        lines.append(line)
    return lines, {columns[i].header for i in widths}


def fitted(text: str | Phrase, width: int, most: int | None, *, style: str = "", used: int = 0) -> list[Text]:
    """Break a sentence into at most `most` lines: shorten names, drop bracketed remarks, then end at a clause, at worst
    after a word."""
    lines = prose(sentence(text), width, style=style, used=used)
    if most is None or len(lines) <= most:
        return lines
    shorter = (sentence(text, name_width) for name_width in _NAME_WIDTHS)
    parts = (part for name_width in _NAME_WIDTHS for part in _abridged(text, name_width))
    for each in (*shorter, *parts):
        if len(lines := prose(each, width, style=style, used=used)) <= most:
            return lines
    words = sentence(text, _NAME_WIDTHS[-1]).split(" ")
    while len(words) > 1 and len(lines := prose(f"{' '.join(words)} …", width, style=style, used=used)) > most:
        words.pop()
    return lines


def _abridged(text: str | Phrase, name_width: int) -> Iterator[str]:
    """Yield a sentence without its last remark in brackets, its last two, ..., then without its last clause too, ...

    A share in brackets is no remark; names and quotes stay whole.
    """
    words, ends, remarks, depth, quoted, begin = "", [], [], 0, False, 0
    for word, is_name in _words(text, name_width):
        for letter in "" if is_name else word:
            index = len(words)
            if letter in "([{" and not quoted:
                begin = index if depth == 0 else begin
                depth += 1
            elif letter in ")]}" and not quoted:
                depth -= 1
                if depth == 0 and words[begin - 1 : begin] == " " and not _SHARE.fullmatch(words[begin:] + letter):
                    remarks.append((begin - 1, index + 1))
            elif letter == " " and depth == 0 and not quoted and words[-1:] in (",", ";", ":", "."):
                ends.append(index - 1)
            quoted ^= letter in '"`'
            words += letter
        words += word if is_name else ""
    stop = "." if words.endswith(".") else ""
    cuts = [(remarks[index:], len(words)) for index in reversed(range(len(remarks)))]
    for gone, end in (*cuts, *((remarks, end) for end in reversed(ends))):
        short = words[:end]
        for start, after in reversed(gone):
            short = short[:start] + short[after:]
        yield short if end == len(words) else short + stop


def prose(text: str, width: int, *, style: str = "", used: int = 0) -> list[Text]:
    """Break the text into lines of at most `width` cells, between words, never between a number and its unit.

    In the first line, `used` cells are taken already.
    """
    width = min(max(width, 8), PAGE)
    text = text if len(text) <= _MAX_PROSE else f"{text[:_MAX_PROSE]}…"
    lines = [""]
    for word in _NUMBER.sub(_GLUE, printable(text)).split(" "):
        room = width if len(lines) > 1 else width - used
        if lines[-1] and cell_len(lines[-1]) + 1 + cell_len(word) <= room:
            lines[-1] += f" {word}"
            continue
        if lines[-1]:
            lines.append("")
        while cell_len(word) > width:
            lines[-1] = crop(word, width)
            word = word[len(lines[-1]) :]
            lines.append("")
        lines[-1] = word
    return [Text(line.replace(_GLUE, " ").rstrip(), style=style) for line in lines]


def command(text: str, width: int, *, label: str, style: str = "") -> list[Text]:
    """Return a whole command after a label; if too wide for one line, split with shell line continuations.

    A word that is wider than `width` is not broken, since half of a path is useless.
    """
    words: list[str] = []
    for word in _ARGUMENT.findall(printable(text)):  # an option together with its value
        if words and words[-1].startswith("--") and " " not in words[-1] and not word.startswith("-"):
            words[-1] += f" {word}"
        else:
            words.append(word)
    if len(label) + 1 + cell_len(" ".join(words)) <= width:
        return [Text(f"{label} {' '.join(words)}", style=style)]
    lines, last = [f"{label} {words[0]}"], len(words) - 1
    for index, word in enumerate(words[1:], 1):
        # Leave room for the continuation mark at its end.
        if cell_len(f"{lines[-1]} {word}") + (0 if index == last else 2) <= width:
            lines[-1] += f" {word}"
            continue
        lines[-1] += " \\"
        lines.append(" " * _GAP + word)
    return [Text(line, style=style) for line in lines]


def _fit(columns: Sequence[Column], natural: dict[int, int], width: int) -> dict[int, int]:
    """Return the width of each kept column, by index; a dropped narrow one returns if a dropped wide one left room."""
    kept, dropped = list(natural), []
    while (widths := _widths(columns, natural, kept, width)) is None:
        last = max((i for i in kept if columns[i].drop), key=lambda i: columns[i].drop, default=None)
        if last is None:
            return _narrowest(columns, natural, kept, width)
        kept.remove(last)
        dropped.append(last)
    for i in reversed(dropped[:-1]):
        more = _widths(columns, natural, sorted((*kept, i)), width)
        if more is not None:
            kept, widths = sorted((*kept, i)), more
    return widths


def _narrowest(columns: Sequence[Column], natural: dict[int, int], kept: Sequence[int], width: int) -> dict[int, int]:
    """Return the widths if no column may be dropped: names shorter than their least, then the last columns out."""
    shorter = [
        replace(column, least=min(column.least, SHORTEST)) if column.least < WHOLE else column for column in columns
    ]
    kept = list(kept)
    while (widths := _widths(shorter, natural, kept, width)) is None:
        if len(kept) == 1:
            only = kept[0]
            return {only: max(width, 1) if columns[only].name and columns[only].least < WHOLE else natural[only]}
        kept.pop()
    return widths


def _widths(
    columns: Sequence[Column], natural: dict[int, int], kept: Sequence[int], width: int
) -> dict[int, int] | None:
    """Return the widths of some columns, with names as short as needed; `None` if they do not fit."""
    widths = {i: natural[i] for i in kept}
    excess = sum(widths.values()) + _GAP * (len(kept) - 1) - width
    while excess > 0 and (names := [i for i in kept if columns[i].name and widths[i] > columns[i].least]):
        widths[max(names, key=lambda i: widths[i])] -= 1
        excess -= 1
    return widths if excess <= 0 else None


def _line(row: TableRow, columns: Sequence[Column], widths: dict[int, int], *, swatches: bool) -> Text:
    line = Text(style="bold" if row.strong else "")
    if swatches:
        line.append("■ " if row.mark else "  ", style=row.mark)
    for i, width in widths.items():
        text = cut(row.cells[i], width)
        padding = " " * (width - cell_len(text))
        line.append(" " * _GAP if i else "")
        line.append(text + padding if columns[i].name else padding + text)
    return line


# The first screen in the lines of a terminal: rows of operators fill it, or are dropped, then their table, then minor
# lines.


#: Sections dropped when the screen is short, and the minimum rows to keep.
_DROPPED_LAST: Final = ("operators", "kernels")
_MIN_ROWS: Final = 2
#: The lines dropped next, and the sections after them; the title, the caveats and the headline stay.
_MINOR: Final = ("software", "profiler", "reached", "steps", "framework")
_NOTES: Final = "notes of tables"
_SHORT_CLASS_ROWS: Final = "short rows of the classes"
#: This many classes stay.
_CLASSES: Final = 3
_STAY: Final = ("title", "caveats", "given-peaks", "disagreements", "in-short", "headline")
#: Dropped last, in this order.
_LATE: Final = ("classes", "advice")
_LEFT_OUT: Final = "left out of this screen: --section {}"
_MORE: Final = "more: --full, or --section {}"
_FULL: Final = "more: --full"
#: This many sections are named as examples.
_MAX_NAMED_SECTIONS: Final = 4


def fitting(anatomy: Anatomy, page: Page, text_of: Callable[[Sequence[Section]], str]) -> str:
    """Return the first screen in at most `page.height` lines if possible; dropped parts are named by their section."""
    shown = first_screen(anatomy, page)
    others = tuple(islice(headings_beyond(anatomy, shown), _MAX_NAMED_SECTIONS)) if page.more else ()
    more = text_of((_note("more", _more(others)),)) if page.more else ""
    height = (page.height or 0) - more.count("\n")

    def with_rows(top: int) -> str:
        return text_of(first_screen(anatomy, replace(page, top=top)))

    for top in range(page.top, min(page.top, _MIN_ROWS) - 1, -1):
        text = with_rows(top)
        if text.count("\n") <= height:
            return (text if top < Page().top else _filled(text, with_rows, height)) + more
    page = replace(page, top=Page().top)
    every = first_screen(anatomy, page)
    sections = tuple(section for section in every if section.name not in _DROPPED_LAST)
    left_out = [section.name for section in every if section.name in _DROPPED_LAST]
    going = [section.name for section in reversed(sections) if section.name not in (*_STAY, *_LATE)]
    # Advice goes piece by piece.
    fewer = [first_screen(anatomy, replace(page, advice=pieces)) for pieces in range(page.advice - 1, 0, -1)]
    advice = [section for screen in fewer for section in screen if section.name == "advice"]
    for label in (None, *_MINOR, _NOTES, "warnings", _SHORT_CLASS_ROWS, *going, "classes", *advice, "advice"):
        less = [_without(section, label) for section in sections]
        left_out += [old.name for old, new in zip(sections, less, strict=True) if old != new]
        sections = tuple(section for section in less if section is not None)
        names = tuple(dict.fromkeys(HEADING_OF[name] for name in left_out))
        note = _more(tuple(dict.fromkeys((*names, *others)))) if page.more else _LEFT_OUT.format(",".join(names))
        text = text_of(sections) + (text_of((_note("left-out", note),)) if names else "")
        if text.count("\n") <= (page.height or 0):
            break
    return text


def fitting_parts(report: Report, page: Page, text_of: Callable[[Sequence[Section]], str]) -> str:
    """Return the parts of a comparison or an experiment that come first, in at most `page.height` lines if possible.

    Rows are dropped before parts; with all parts the result is the whole page.
    """
    text = text_of(sections_of(report, page))
    if text.count("\n") <= (page.height or 0):
        return text
    names, more = [section.name for section in sections_of(report, page)], text_of((_note("more", _FULL),))
    for parts in range(len(names), 1, -1):
        for top in range(page.top, min(page.top, _MIN_ROWS) - 1, -1):
            sections = sections_of(report, replace(page, top=top))
            text = text_of([section for section in sections if section.name in names[:parts]]) + more
            if text.count("\n") <= (page.height or 0):
                return text
    return text


def _more(headings: Sequence[str]) -> str:
    """Return how to see the rest: some of its sections by their headings."""
    named = ",".join(headings[:_MAX_NAMED_SECTIONS]) + (",..." if len(headings) >= _MAX_NAMED_SECTIONS else "")
    return _MORE.format(named) if headings else _FULL


def _note(name: str, text: str) -> Section:
    return Section(name=name, title=text, notes=(Note(text=text),))


def _filled(text: str, with_rows: Callable[[int], str], height: int) -> str:
    """Fill the screen with as many rows as it has lines for, unless the user asked for a number of rows."""
    for top in range(Page().top + 1, height):
        more = with_rows(top)
        if more == text or more.count("\n") > height:
            break
        text = more
    return text


def _without(section: Section, label: str | Section | None) -> Section | None:
    """Return the section without the line with this label (`None` if that is its name), and its replacement."""
    if isinstance(label, Section):
        return label if label.name == section.name else section
    if section.name == label:
        return None
    if label == _NOTES:
        return replace(section, notes=()) if section.rows else section
    if label == _SHORT_CLASS_ROWS:
        return replace(section, rows=_longest(section.rows)) if section.name == "classes" else section
    return replace(section, facts=tuple(fact for fact in section.facts if fact.label != label or fact.cure is not None))


def _longest(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Return the longest rows, in order, one for the others, and the last one, which is the total."""
    ranked = sorted(rows[:-1], key=lambda row: getattr(row.cells["time"], "ns", 0), reverse=True)
    others = ranked[_CLASSES:]
    if len(others) < 2:
        return tuple(rows)
    cells = {name: _sum([row.cells[name] for row in others]) for name in rows[-1].cells}
    folded = Row(cells=cells | {"class": phrase("and {} more", Count(len(others)))}, summary=True)
    return (*(row for row in rows[:-1] if row in ranked[:_CLASSES]), folded, *rows[-1:])


def _sum(cells: Sequence[Cell]) -> Cell:
    """Return the sum of the times or shares of several rows; of anything else nothing."""
    times = [cell for cell in cells if isinstance(cell, Time)]
    shares = [cell for cell in cells if isinstance(cell, Share)]
    if times and len(times) + cells.count(None) == len(cells):
        known = [cell.ns for cell in times if cell.ns is not None]
        return Time(sum(known) if known else None)
    if len(shares) == len(cells) and len({(cell.whole, cell.covered) for cell in shares}) == 1:
        return Share(sum(cell.part or 0 for cell in shares), shares[0].whole)
    return None
