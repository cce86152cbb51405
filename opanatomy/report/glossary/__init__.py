"""The glossary: every line and column that the report prints, what it means, its formula, and its figures worked.

The one source of what `opanatomy explain` says of a term, of the tables of terms in docs/report.md, and of the notes
below the report's tables. What is new on the page is one entry in the chapter of its section.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from opanatomy.report.glossary.arithmetic import CLASSES, COLUMNS, OPERATORS, PHASES, RATIOS, ROOFLINE
from opanatomy.report.glossary.communication import COMMUNICATION, RANKS, WAITING
from opanatomy.report.glossary.experiments import COMPARISON, GUIDES, SAME, SUGGESTIONS, TECHNIQUES, UNDERFLOW
from opanatomy.report.glossary.ledger import CHECKS, LEDGER
from opanatomy.report.glossary.memory import ACTIVATIONS, COMPONENTS, FAILURE, PEAK, SNAPSHOTS
from opanatomy.report.glossary.run import GENERATION, RUN, TEXTS
from opanatomy.report.glossary.step import STEP
from opanatomy.report.glossary.term import Chapter, Term
from opanatomy.report.glossary.words import WORDS

__all__ = ["CHAPTERS", "Chapter", "Term", "chapter_of", "is_named", "loosely_named", "names", "note", "terms_named"]

#: In the order of the page; what stands in many tables comes first.
CHAPTERS: Final = (
    COLUMNS, RUN, STEP, GENERATION, TEXTS, CLASSES, PHASES, RATIOS, OPERATORS, ROOFLINE, COMMUNICATION, RANKS, WAITING,
    COMPONENTS, PEAK, SNAPSHOTS, ACTIVATIONS, FAILURE, LEDGER, CHECKS, SUGGESTIONS, TECHNIQUES, SAME, UNDERFLOW, GUIDES,
    COMPARISON, WORDS,
)  # fmt: skip
_ARTICLES: Final = ("the", "a", "an")


def entries() -> Iterator[tuple[Chapter, Term]]:
    """Every term with the chapter that it is in, in the order of the page."""
    return ((chapter, entry) for chapter in CHAPTERS for entry in chapter.terms)


def names() -> tuple[str, ...]:
    """Every name of every term."""
    return tuple(dict.fromkeys(name for _, entry in entries() for name in entry.names))


def terms_named(name: str, section: str | None = None) -> tuple[tuple[Chapter, Term], ...]:
    """The terms that the report calls `name`, in any case, with their chapters; with `section` those that stand there.

    Several where one word stands in several tables; none where no line or column is called so.
    """
    return tuple(
        (chapter, entry)
        for chapter, entry in entries()
        if is_named(entry, name) and (section is None or not chapter.sections or section in chapter.sections)
    )


def loosely_named(name: str) -> tuple[tuple[Chapter, Term], ...]:
    """The terms of this name where articles and the number of a word do not count: `same calls`, `a like step`.

    For what no term is called exactly; terms that differ from the name in articles alone come before all others.
    """
    for alike in (_without_articles, _in_the_singular):
        wanted = alike(name)
        known = [pair for pair in entries() if wanted and any(_is(alike(text), wanted) for text in pair[1].names)]
        if known:
            return tuple(known)
    return ()


def is_named(entry: Term, name: str) -> bool:
    """Whether the report calls a term so, in any case."""
    wanted = _plain(name)
    return any(_is(known, wanted) for known in entry.names)


def chapter_of(section: str) -> Chapter | None:
    """The chapter of a section of the report, by the section's name or the chapter's title; `None` where none is."""
    wanted = _plain(section)
    of_name = (chapter for chapter in CHAPTERS if wanted in map(_plain, chapter.sections))
    return next(of_name, None) or next((chapter for chapter in CHAPTERS if _plain(chapter.title) == wanted), None)


def note(section: str, *wanted: str) -> str:
    """What the note below a table says of some of its columns or marks; `KeyError` where one is in no chapter of it."""
    return "; ".join(_note(section, name) for name in wanted)


def _note(section: str, name: str) -> str:
    known = terms_named(name, section)
    # The table's own before what stands anywhere.
    entries_of_it = [entry for chapter, entry in known if chapter.sections] or [entry for _, entry in known]
    if not entries_of_it:
        raise KeyError(f"the glossary has no {name!r} of the section {section!r}")
    return entries_of_it[-1].note or f"{name}: {entries_of_it[-1].meaning}"


def _without_articles(name: str) -> str:
    return " ".join(word for word in _plain(name).split() if word not in _ARTICLES)


def _in_the_singular(name: str) -> str:
    return " ".join(map(_singular, _without_articles(name).split()))


def _singular(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return f"{word[:-3]}y"
    if re.search(r"(?:ss|x|ch|sh)es$", word):
        return word[:-2]
    return word[:-1] if re.search(r"[^su]s$", word) and len(word) > 3 else word


def _is(known: str, wanted: str) -> bool:
    if "{}" not in known:
        return _plain(known) == wanted
    return re.fullmatch(".+".join(map(re.escape, _plain(known).split("{}"))), wanted) is not None


def _plain(name: str) -> str:
    """A name without what two spellings may differ in: case, `_` and `-` for a space, spaces and colons around."""
    return " ".join(re.sub(r"[_-](?=\w)", " ", name).casefold().split()).strip(" :")
