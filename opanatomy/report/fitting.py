"""The first screen in the lines of a terminal: rows of operators fill it, or give way, then their table, then minor
lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from opanatomy.records.anatomy import Anatomy
from opanatomy.report.format import Page
from opanatomy.report.section import Note, Section
from opanatomy.report.sections import first_screen

#: What gives way to the lines above it, and the fewest rows that are worth a table.
_LAST: Final = ("operators", "kernels")
_FEWEST: Final = 2
#: The lines that give way next.
_MINOR: Final = ("software", "profiler", "reached", "steps", "framework")
_LEFT_OUT: Final = "left out of this screen: --section {}"


def fitting(anatomy: Anatomy, page: Page, text_of: Callable[[Sequence[Section]], str]) -> str:
    """The first screen in at most `page.height` lines where that can be; what is left out is named by its section."""
    height = page.height or 0

    def with_rows(top: int) -> str:
        return text_of(first_screen(anatomy, top=top, sort=page.sort, source=page.source))

    for top in range(page.top, min(page.top, _FEWEST) - 1, -1):
        text = with_rows(top)
        if text.count("\n") <= height:
            return text if top < Page().top else _filled(text, with_rows, height)
    every = first_screen(anatomy, source=page.source)
    sections = tuple(section for section in every if section.name not in _LAST)
    left_out = [section.name for section in every if section.name in _LAST]
    for label in (None, *_MINOR):
        less = tuple(_without(section, label) for section in sections)
        left_out += [old.name for old, new in zip(sections, less, strict=True) if old != new]
        sections = less
        names = ",".join(dict.fromkeys(left_out))
        left = Section(name="left-out", title="Left out", notes=(Note(text=_LEFT_OUT.format(names)),))
        text = text_of(sections) + (text_of((left,)) if names else "")
        if text.count("\n") <= height:
            break
    return text


def _filled(text: str, with_rows: Callable[[int], str], height: int) -> str:
    """The screen with as many rows as it has lines for, where nobody asked for a number of rows."""
    for top in range(Page().top + 1, height):
        more = with_rows(top)
        if more == text or more.count("\n") > height:
            break
        text = more
    return text


def _without(section: Section, label: str | None) -> Section:
    """The section without the line of this label."""
    return replace(section, facts=tuple(fact for fact in section.facts if fact.label != label))
