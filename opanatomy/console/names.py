"""The names that can be explained: terms of the glossary, operators, and those of a report; near and shortened ones."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Final

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.compared import Comparison
from opanatomy.records.reports import Report
from opanatomy.records.taxonomy import Phase
from opanatomy.report.glossary import names
from opanatomy.report.metrics import metrics_of
from opanatomy.report.sections.known import Known
from opanatomy.report.sections.named import ALIKE, MODULES, known_names

#: What stands for the middle of a name that was cut: the report's mark, what a plain terminal has, what people write.
_ELLIPSIS: Final = re.compile(r"…|\.\.\.|~")
_NEAR: Final = 3
#: How much of a name must be as another one for the two to be near.
_ALIKE: Final = 0.7
#: Letters of a name that say what it is the beginning of.
_BEGUN: Final = 3
_ATEN: Final = "aten::"


class Vocabulary:
    """The names that mean something, with a report those of the report too; capital letters do not matter."""

    def __init__(self, report: Report | None = None) -> None:
        self.report = report

    @cached_property
    def _operators(self) -> dict[str, str]:
        """Every operator that a formula or a family names, and those of the report, by its name in small letters."""
        from opanatomy.classification.aten_tables import FAMILIES
        from opanatomy.cost import operators

        families = (f"{_ATEN}{name}" for family in FAMILIES for name in family.names.split())
        own = (known.name for every in self._known.values() for known in every if known.kind == "operator")
        full = dict.fromkeys((*own, *operators(), *families))
        short = {name.removeprefix(_ATEN).casefold(): name for name in reversed(full)}
        return {**short, **{name.casefold(): name for name in reversed(full)}}

    @cached_property
    def _known(self) -> dict[str, tuple[Known, ...]]:
        """The names of the report, in small letters."""
        every: dict[str, list[Known]] = {}
        for known in () if self.report is None else known_names(self.report):
            for spelling in known.spellings:
                every.setdefault(spelling.casefold(), []).append(known)
        return {name: tuple(each) for name, each in every.items()}

    @cached_property
    def _ends(self) -> dict[str, tuple[Known, ...]]:
        """The modules of the report by the ends of their paths."""
        every: dict[str, list[Known]] = {}
        for name, known in self._known.items():
            parts = name.split(".")
            modules = [item for item in known if item.kind in MODULES and item.name.casefold() == name]
            for start in range(1, len(parts) if modules else 0):
                every.setdefault(".".join(parts[start:]), []).extend(modules)
        return {name: tuple(each) for name, each in every.items()}

    @property
    def _figures(self) -> Iterable[str]:
        """The figures of the report by their names in gates and loggers."""
        if isinstance(self.report, Comparison):
            return [row.name for row in self.report.figures]
        return metrics_of(self.report) if isinstance(self.report, Anatomy) else ()

    def operators(self, name: str) -> tuple[str, ...]:
        """The operators of this name, also without `aten::` and with their phase after it."""
        own, _, phase = name.casefold().rpartition(" ")
        for wanted in (name.casefold(), own if phase in tuple(Phase) else ""):
            if wanted in self._operators:
                return (self._operators[wanted],)
            if known := [known.name for known in self.known(wanted) if known.kind == "operator"]:
                return tuple(dict.fromkeys(known))
        return ()

    def known(self, name: str) -> tuple[Known, ...]:
        """What has this name in the report; of modules the end of a path is enough."""
        wanted = name.casefold()
        known = self._known.get(wanted) or self._ends.get(wanted, ())
        return tuple(sorted(known, key=lambda item: item.kind != ALIKE))

    def shortened(self, name: str) -> tuple[str, ...]:
        """The names that a name with an ellipsis may be short for, those of the report before others.

        An operator may have its phase after it: `_safe_soft… forward`.
        """
        parts = [part.strip() for part in _ELLIPSIS.split(name.casefold())]
        if len(parts) < 2 or not any(parts):
            return ()
        cut = re.compile(".+".join(map(re.escape, parts)), re.DOTALL)
        for candidates in (self._of_report(), self._of_tables()):
            if fitting := tuple(dict.fromkeys(full for text, full in candidates if cut.fullmatch(text))):
                return fitting
        return ()

    def _of_report(self) -> Iterator[tuple[str, str]]:
        for name, every in self._known.items():
            yield name, every[0].name
            if any(known.kind == "operator" for known in every):
                yield from _with_phases(every[0].name)
        yield from ((name, name) for name in self._figures)

    def _of_tables(self) -> Iterator[tuple[str, str]]:
        for name in names():
            each = [name.replace("{}", phase) for phase in Phase] if "{}" in name else []
            yield from ((text.casefold(), text) for text in (name.replace("{}", "..."), *each))
        for full in dict.fromkeys(self._operators.values()):
            yield full.casefold(), full
            yield from _with_phases(full)

    def near(self, name: str) -> tuple[str, ...]:
        """The names that are nearest to one that means nothing, the nearest first."""
        spelled = {text.casefold(): text for text in self._every()}
        close = difflib.get_close_matches(name.casefold(), spelled, n=2 * _NEAR, cutoff=_ALIKE)
        begun = (text for text in spelled if len(name) >= _BEGUN and text.startswith(name.casefold()))
        return tuple(dict.fromkeys(spelled[text] for text in (*close, *begun)))[:_NEAR]

    def near_term(self, name: str) -> bool:
        """Whether a term of the report has nearly this name: it is more likely meant than some kernel."""
        terms = [text.casefold() for text in names()]
        return bool(difflib.get_close_matches(name.casefold(), terms, n=1, cutoff=_ALIKE + 0.1))

    def _every(self) -> Iterable[str]:
        short = (name.removeprefix(_ATEN) for name in self._operators.values())
        own = (known.name for every in self._known.values() for known in every)
        return (*self._operators.values(), *short, *own, *(name for name in names() if "{}" not in name))


def is_shortened(name: str) -> bool:
    """Whether a name has a mark for what was cut out of it."""
    return _ELLIPSIS.search(name) is not None


def _with_phases(operator: str) -> Iterator[tuple[str, str]]:
    short = operator.removeprefix(_ATEN).casefold()
    yield short, operator
    yield from ((f"{text} {phase}", operator) for text in (short, operator.casefold()) for phase in Phase)
