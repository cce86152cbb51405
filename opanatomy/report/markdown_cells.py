"""Cells and phrases of sections as Markdown: names as code, figures as `units` writes them."""

from __future__ import annotations

from typing import Final

from opanatomy.records.taxonomy import OperatorClass
from opanatomy.report import units
from opanatomy.report.classes import LABEL
from opanatomy.report.markdown_text import markdown_line
from opanatomy.report.section import Cell, Name, Phrase

#: Characters of a name, and of the other texts, beyond which they are cut in the middle.
NAME: Final = 120
TEXT: Final = 1000


def markdown_cell(cell: Cell, unit: str = "", *, name: int = NAME, text: int = TEXT) -> str:
    """A cell or a phrase as one line of Markdown; figures without their `unit` where that is said elsewhere.

    Names and other texts longer than so many characters are cut in the middle, figures never.
    """
    parts = cell.parts if isinstance(cell, Phrase) else (cell,)
    return markdown_line([_part(part, unit, name, text) for part in parts])


def shortened(name: str, most: int) -> str:
    """The two ends of a name of more than `most` characters, with an ellipsis between."""
    if len(name) <= most:
        return name
    tail = max(most - 1, 0) // 2
    return f"{name[: max(most - 1 - tail, 0)]}…{name[len(name) - tail :]}"


def _abridged(text: str, most: int) -> str:
    """The two ends of a text of more than `most` characters, between words where it has any: no figure is cut."""
    if len(text) <= most or " " not in text:
        return shortened(text, most)
    head, tail = text[: most // 2].rpartition(" ")[0], text[len(text) - most // 2 :].partition(" ")[2]
    # A number at the end would stand without its unit.
    while head[-1:].isdigit():
        head = head.rpartition(" ")[0]
    return f"{head} … {tail}"


def _part(part: Cell, unit: str, name: int, text: int) -> tuple[str, bool]:
    """The text of a part, and whether it is a name."""
    if part is None:
        return "", False
    if isinstance(part, Name):
        return shortened(part.name, name), True
    if isinstance(part, OperatorClass):
        return LABEL[part], False
    if isinstance(part, str):
        return _abridged(part, text), False
    assert not isinstance(part, Phrase)
    return units.text_of(part, unit), False
