"""The glossary as Markdown: a table for each chapter."""

from __future__ import annotations

from opanatomy.report.glossary import CHAPTERS
from opanatomy.report.glossary.term import Chapter, Term


def term_tables() -> str:
    """Every line and column of the report as the page docs/report.md has them."""
    return "\n\n".join(map(_chapter, CHAPTERS))


def _chapter(chapter: Chapter) -> str:
    rows = "\n".join(map(_row, chapter.terms))
    return f"### {chapter.title}\n\n| printed | what it is | from the JSON report |\n|---|---|---|\n{rows}"


def _row(term: Term) -> str:
    names = ", ".join(name.replace("{}", "...") for name in term.names)
    meaning = f"{term.meaning}. {term.more}" if term.more else term.meaning
    formula = f"`{term.formula}`" if term.formula else ""
    return "| " + " | ".join(text.replace("|", r"\|") for text in (names, meaning, formula)) + " |"
