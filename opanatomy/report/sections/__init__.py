"""List the parts of the report, in their order; each file makes one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.comparison import Comparison
from opanatomy.records.experiment import Techniques
from opanatomy.records.reports import Report
from opanatomy.report.section import Note, NoteStyle, Page, Section
from opanatomy.report.sections import (
    checks,
    classes,
    collectives,
    memory,
    modules,
    operators,
    ranks,
    roofline,
    run,
    step,
    suggestions,
    verdict,
)
from opanatomy.report.sections.comparison import sections_of_comparison
from opanatomy.report.sections.techniques import sections_of_techniques

#: How many operators are listed by name.
TOP: Final = 8


class PageRequest(Struct, frozen=True, kw_only=True):
    """The part of a section that a reader wants: how many rows, in which order, a command's name for the trace, and
    whether the section was asked for by name."""

    top: int = TOP
    sort: str = "time"
    source: str | None = None
    asked: bool = False


_Maker: TypeAlias = Callable[[Anatomy, PageRequest], Section | None]


def _of(make: Callable[[Anatomy], Section | None]) -> _Maker:
    return lambda anatomy, _: make(anatomy)


#: The first screen, section by section.
_FIRST: Final[Mapping[str, _Maker]] = {
    # Changes the reading of all that follows.
    "caveats": _of(checks.caveats),
    # An impossible ceiling makes all that rests on it meaningless.
    "given-ceilings": _of(checks.given_ceilings),
    # A disagreement of two sources makes all that follows uncertain.
    "disagreements": _of(checks.disagreements),
    "headline": lambda anatomy, wanted: verdict.conclusion(anatomy, source=wanted.source),
    "run": _of(run.what_ran),
    "step": _of(step.one_step),
    "generation": _of(step.generation),
    "texts": _of(run.texts),
    "classes": _of(classes.classes),
    "operators": lambda anatomy, wanted: operators.operators(anatomy, wanted.top, wanted.sort),
}
#: Sections of the first screen that are tables of their own.
_HEADED: Final = ("classes", "operators")
#: The rest of the page, heading by heading, and the parts below each.
_REST: Final[Mapping[str, Mapping[str, _Maker]]] = {
    "idle": {"idle": _of(step.idle)},
    "kernels": {"kernels": lambda anatomy, wanted: operators.kernels(anatomy, wanted.top)},
    "modules": {"modules": lambda anatomy, wanted: modules.modules(anatomy, wanted.top)},
    "roofline": {
        "ceilings": _of(step.ceilings),
        "bounds": lambda anatomy, wanted: roofline.roofline(anatomy, wanted.top),
    },
    "ratios": {"ratios": _of(classes.ratios)},
    "paper": {"paper": _of(classes.paper)},
    "batches": {"batches": _of(run.batches)},
    "communication": {
        "collectives": _of(collectives.collectives),
        "communication-phases": _of(collectives.phases),
        "communication-modules": _of(collectives.modules),
    },
    "ranks": {"ranks": _of(ranks.ranks)},
    "waiting": {"waiting-steps": _of(ranks.steps), "matched": _of(ranks.collectives)},
    "memory": {
        "components": _of(memory.components),
        "memory-curve": _of(memory.curve),
        "memory-peak": _of(memory.blocks),
        "saved-activations": _of(memory.activations),
        "snapshots": _of(memory.snapshots),
        "activation-terms": _of(memory.terms),
        "published": _of(memory.published),
        "out-of-memory": _of(memory.failure),
        "savings": _of(memory.savings),
        "memory-notes": _of(memory.remarks),
    },
    "suggestions": {"suggestions": _of(suggestions.suggestions)},
    "ledger": {"ledger": lambda anatomy, wanted: checks.ledger(anatomy, explained=wanted.asked)},
    "source": {"source": _of(run.source)},
    "warnings": {"warnings": _of(run.warnings)},
}
#: The headings of the page.
HEADINGS: Final = (*_FIRST, *_REST)
#: Values of `--section`: the headings of the page, and the parts below them.
SECTIONS: Final = tuple(dict.fromkeys((*HEADINGS, *(name for group in _REST.values() for name in group))))
#: Values of `--sort`.
ORDERS: Final = tuple(operators.ORDERS)


def sections_of(
    report: Report, *, top: int = TOP, sort: str = "time", source: str | None = None
) -> tuple[Section, ...]:
    """Return the sections of a report that are not empty, in the order of the page."""
    if isinstance(report, Techniques):
        return sections_of_techniques(report)
    if isinstance(report, Comparison):
        return sections_of_comparison(report, top)
    wanted = PageRequest(top=top, sort=sort, source=source)
    first = first_screen(report, top=top, sort=sort, source=source)
    shown = {section.heading for section in first}
    headings = [heading for heading in _REST if heading not in shown and _is_shown(report, heading)]
    return (*first, *(section for heading in headings for section in _below(report, wanted, heading)))


def first_screen(
    anatomy: Anatomy, *, top: int = TOP, sort: str = "time", source: str | None = None
) -> tuple[Section, ...]:
    """Return the first screen, as `--brief` shows it: the headline, what ran, the step, the classes, the operators.

    The kernels too if operators are known for less than half of the time, as in a graph.
    """
    wanted = PageRequest(top=top, sort=sort, source=source)
    first = [section for name in _FIRST for section in _first(anatomy, wanted, name)]
    with_operator = sum(row.time_ns for row in anatomy.operators)
    if 2 * with_operator < sum(row.time_ns for row in anatomy.classes):
        first += _below(anatomy, wanted, "kernels")
    return (run.title(anatomy), *first)


def named_sections(
    anatomy: Anatomy, names: Sequence[str], *, top: int = TOP, sort: str = "time", source: str | None = None
) -> tuple[Section, ...]:
    """Return the title, and those of `SECTIONS` in the order of the page; an empty one says so."""
    wanted = PageRequest(top=top, sort=sort, source=source, asked=True)
    sections = [run.title(anatomy)]
    for name in _FIRST:
        if name in names:
            sections += list(_first(anatomy, wanted, name)) or [_nothing(name)]
    for heading, group in _REST.items():
        if asked := [name for name in group if heading in names or name in names]:
            below = [section for section in _below(anatomy, wanted, heading) if section.name in asked]
            sections += below or [_nothing(heading)]
    return tuple(sections)


def _first(anatomy: Anatomy, wanted: PageRequest, name: str) -> Iterator[Section]:
    for section in _kept([_FIRST[name](anatomy, wanted)]):
        yield replace(section, heading=name) if name in _HEADED else section


def _below(anatomy: Anatomy, wanted: PageRequest, heading: str) -> Iterator[Section]:
    """Yield the sections below a heading."""
    for section in _kept(make(anatomy, wanted) for make in _REST[heading].values()):
        yield replace(section, heading=heading)


def _kept(sections: Iterable[Section | None]) -> Iterator[Section]:
    return (section for section in sections if section is not None and not section.empty)


def _nothing(name: str) -> Section:
    note = Note(text="nothing: this report does not have what it would be made of", tone=NoteStyle.REMARK)
    return Section(name=name, title=name.capitalize(), heading=name, notes=(note,))


def _is_shown(anatomy: Anatomy, heading: str) -> bool:
    """Return whether the page has it unasked: the paper's figures are shown only for a model of its kind."""
    return heading != "paper" or classes.is_encoder(anatomy)


def page_sections(report: Report, page: Page) -> tuple[Section, ...]:
    """Return the whole report, its first screen, or the sections that the page asks for by name."""
    if not isinstance(report, Anatomy):
        return sections_of(report, top=page.top)
    if page.sections:
        return named_sections(report, page.sections, top=page.top, sort=page.sort, source=page.source)
    if page.brief:
        return first_screen(report, top=page.top, sort=page.sort, source=page.source)
    return sections_of(report, top=page.top, sort=page.sort, source=page.source)
