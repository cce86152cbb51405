"""What an entry of the glossary is: the names of a line or column of the report, what it means, how it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.techniques import Techniques
from opanatomy.report.section import Phrase

Worked = Callable[[Anatomy], Iterable[Phrase | None]]
WorkedTechniques = Callable[[Techniques], Iterable[Phrase | None]]


class Term(Struct, frozen=True, kw_only=True):
    """One line or column of the report.

    `names` are how the report prints it, the first the usual one, then other words for it; `{}` stands for a word that
    differs. `meaning` is what the note below a table says of it, without a full stop; `note` the whole note where that
    is not "name: meaning". `more` is what else there is to say, `formula` how it follows from the keys of the JSON
    report. `worked` gives the formula with the figures of one report, a line each.
    """

    names: tuple[str, ...]
    meaning: str
    more: str = ""
    formula: str = ""
    note: str = ""
    worked: Worked | None = None
    worked_techniques: WorkedTechniques | None = None

    @property
    def title(self) -> str:
        """The usual name, with `...` for a word that differs."""
        return self.names[0].replace("{}", "...")


class Chapter(Struct, frozen=True, kw_only=True):
    """The terms of some sections of the report, which `sections` names; those of a chapter of none stand anywhere."""

    title: str
    sections: tuple[str, ...] = ()
    terms: tuple[Term, ...]


def term(
    names: str,
    meaning: str,
    more: str = "",
    *,
    formula: str = "",
    note: str = "",
    worked: Worked | None = None,
    worked_techniques: WorkedTechniques | None = None,
) -> Term:
    """An entry; `names` are divided by ` | `."""
    return Term(
        names=tuple(names.split(" | ")), meaning=meaning, more=more, formula=formula, note=note, worked=worked,
        worked_techniques=worked_techniques,
    )  # fmt: skip
