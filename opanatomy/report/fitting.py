"""The first screen in the lines of a terminal: rows of operators fill it, or give way, then their table, then minor
lines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from opanatomy.records.anatomy import Anatomy
from opanatomy.report.section import Cell, Count, Note, Page, Row, Section, Share, Time, phrase
from opanatomy.report.sections import first_screen

#: What gives way to the lines above it, and the fewest rows that are worth a table.
_LAST: Final = ("operators", "kernels")
_FEWEST: Final = 2
#: The lines that give way next, and the sections after them; the title, what changes the reading and the headline stay.
_MINOR: Final = ("software", "profiler", "reached", "steps", "framework")
_NOTES: Final = "notes of tables"
_ROWS: Final = "short rows of the classes"
#: So many classes stay.
_CLASSES: Final = 3
_STAY: Final = ("title", "caveats", "given-ceilings", "disagreements", "headline")
_LEFT_OUT: Final = "left out of this screen: --section {}"
_MORE: Final = "more: --full, or --section {}"
_OTHERS: Final = ("idle", "kernels", "modules", "roofline", "ledger")
#: So many sections are named as examples.
_NAMES: Final = 4


def fitting(anatomy: Anatomy, page: Page, text_of: Callable[[Sequence[Section]], str]) -> str:
    """The first screen in at most `page.height` lines where that can be; what is left out is named by its section."""
    more = text_of((_note("more", _more(())),)) if page.more else ""
    height = (page.height or 0) - more.count("\n")

    def with_rows(top: int) -> str:
        return text_of(first_screen(anatomy, top=top, sort=page.sort, source=page.source))

    for top in range(page.top, min(page.top, _FEWEST) - 1, -1):
        text = with_rows(top)
        if text.count("\n") <= height:
            return (text if top < Page().top else _filled(text, with_rows, height)) + more
    every = first_screen(anatomy, source=page.source)
    sections = tuple(section for section in every if section.name not in _LAST)
    left_out = [section.name for section in every if section.name in _LAST]
    going = [section.name for section in reversed(sections) if section.name not in _STAY]
    for label in (None, *_MINOR, _NOTES, "warnings", _ROWS, *going):
        less = [_without(section, label) for section in sections]
        left_out += [old.name for old, new in zip(sections, less, strict=True) if old != new]
        sections = tuple(section for section in less if section is not None)
        names = ",".join(dict.fromkeys(left_out))
        note = _more(left_out) if page.more else _LEFT_OUT.format(names)
        text = text_of(sections) + (text_of((_note("left-out", note),)) if names else "")
        if text.count("\n") <= (page.height or 0):
            break
    return text


def _more(left_out: Sequence[str]) -> str:
    """How to see the rest: what is left out first."""
    return _MORE.format(",".join([*dict.fromkeys((*left_out, *_OTHERS))][:_NAMES]) + ",...")


def _note(name: str, text: str) -> Section:
    return Section(name=name, title=text, notes=(Note(text=text),))


def _filled(text: str, with_rows: Callable[[int], str], height: int) -> str:
    """The screen with as many rows as it has lines for, where nobody asked for a number of rows."""
    for top in range(Page().top + 1, height):
        more = with_rows(top)
        if more == text or more.count("\n") > height:
            break
        text = more
    return text


def _without(section: Section, label: str | None) -> Section | None:
    """The section without the line of this label; `None` where that is its name."""
    if section.name == label:
        return None
    if label == _NOTES:
        return replace(section, notes=()) if section.rows else section
    if label == _ROWS:
        return replace(section, rows=_longest(section.rows)) if section.name == "classes" else section
    return replace(section, facts=tuple(fact for fact in section.facts if fact.label != label))


def _longest(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The rows with most time, in their order, one for the others, and the last one, which is the sum of all."""
    ranked = sorted(rows[:-1], key=_time_of, reverse=True)
    others = ranked[_CLASSES:]
    if len(others) < 2:
        return tuple(rows)
    cells = (_sum([row.cells[place] for row in others]) for place in range(1, len(rows[-1].cells)))
    folded = Row(cells=(phrase("and {} more", Count(len(others))), *cells), summary=True)
    return (*(row for row in rows[:-1] if row in ranked[:_CLASSES]), folded, *rows[-1:])


def _sum(cells: Sequence[Cell]) -> Cell:
    """The times or shares of several rows together; of anything else nothing."""
    times = [cell for cell in cells if isinstance(cell, Time)]
    shares = [cell for cell in cells if isinstance(cell, Share)]
    if times and len(times) + cells.count(None) == len(cells):
        known = [cell.ns for cell in times if cell.ns is not None]
        return Time(sum(known) if known else None)
    if len(shares) == len(cells) and len({(cell.whole, cell.covered) for cell in shares}) == 1:
        return Share(sum(cell.part or 0 for cell in shares), shares[0].whole)
    return None


def _time_of(row: Row) -> float:
    return next((cell.ns or 0 for cell in row.cells if isinstance(cell, Time)), 0)
