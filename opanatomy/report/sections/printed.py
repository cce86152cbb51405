"""Where the page has a term of the glossary, and what it says there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from opanatomy.records.reports import Report
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.report.classes import LABEL
from opanatomy.report.glossary import Chapter, Term, is_named
from opanatomy.report.section import Cell, Fact, Phrase, Row, Section, phrase
from opanatomy.report.sections import sections_of

#: Lines of the page that are shown for one term.
_SHOWN: Final = 10


def printed(chapter: Chapter, term: Term, report: Report) -> tuple[Fact, ...]:
    """The lines and cells of the page that a term is the name of, with the title of their section."""
    lines = [line for section in sections_of(report) if _stands_in(chapter, section) for line in _in(section, term)]
    facts = [Fact(label="" if place else "printed", text=line) for place, line in enumerate(lines[:_SHOWN])]
    if len(lines) > _SHOWN:
        facts.append(Fact(label="", text=f"and {len(lines) - _SHOWN} more lines"))
    return tuple(facts)


def _stands_in(chapter: Chapter, section: Section) -> bool:
    return not chapter.sections or section.name in chapter.sections


def _in(section: Section, term: Term) -> Iterator[Phrase]:
    for fact in section.facts:
        if is_named(term, fact.label):
            yield phrase("{}: {}", fact.label, fact.text if isinstance(fact.text, Phrase) else Phrase((fact.text,)))
        elif isinstance(fact.text, Phrase):
            yield from (phrase("{}: {}", fact.label or "ledger", clause) for clause in _clauses(fact.text, term))
    for row in section.rows:
        yield from _cells(section, row, term)


def _clauses(text: Phrase, term: Term) -> Iterator[Phrase]:
    """The parts of a sentence, between commas, in which the term stands as a word."""
    words = re.compile("|".join(rf"(?<![\w-]){re.escape(name)}(?![\w-])" for name in term.names if "{}" not in name))
    clause: list[Cell] = []
    for part in (*text.parts, ", "):
        parts = re.split(r"(, | \+ | = |; )", part) if isinstance(part, str) else [part]
        for word in parts:
            if isinstance(word, str) and word in (", ", " + ", " = ", "; "):
                if any(isinstance(item, str) and words.search(item) for item in clause):
                    yield Phrase(tuple(item for item in clause if item))  # type: ignore[misc]
                clause = []
            else:
                clause.append(word)


def _cells(section: Section, row: Row, term: Term) -> Iterator[Phrase]:
    """The cells of a row below a header that is the term; of a row that is called so, all of them."""
    first = row.cells[0]
    if is_named(term, _label(first)):
        rest = [(column.header, cell) for column, cell in zip(section.columns[1:], row.cells[1:], strict=True)]
        texts = [_said(header, cell) for header, cell in rest if cell is not None]
        if texts:
            yield phrase(f"{section.title}, {{}}: " + ", ".join("{}" for _ in texts), _name(first), *texts)
        return
    for column, cell in zip(section.columns[1:], row.cells[1:], strict=True):
        if is_named(term, column.header) and cell is not None:
            yield phrase("{}, {}: {}", section.title, _name(first), cell)


def _said(header: str, cell: Cell) -> Phrase:
    return phrase("{} {}", header, cell or "")


def _label(cell: Cell) -> str:
    if isinstance(cell, OperatorClass):
        return LABEL[cell]
    return cell if isinstance(cell, str) else ""


def _name(cell: Cell) -> Phrase:
    return cell if isinstance(cell, Phrase) else phrase("{}", cell or "the row")
