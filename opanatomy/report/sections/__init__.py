"""List the parts of each kind of report, in their order; each file makes some of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import groupby
from typing import Any, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.comparison import Comparison, Decomposition
from opanatomy.records.experiment import Techniques
from opanatomy.records.reports import Report
from opanatomy.report.section import Note, NoteStyle, Page, Section
from opanatomy.report.sections import (
    advice,
    checks,
    classes,
    collectives,
    comparison,
    memory,
    modules,
    operators,
    ranks,
    replay,
    roofline,
    run,
    step,
    techniques,
    verdict,
)

_Maker: TypeAlias = Callable[[Any, Page], "Section | None"]


class Part(Struct, frozen=True):
    """A section of a kind of report: its name, how it is made of the report for a page, the heading that it is below.

    `first` is one of the first screen; no format folds that, one that is asked for by name, or one that is `open`.
    """

    name: str
    make: _Maker
    heading: str = ""
    first: bool = False
    open: bool = False


def _of(make: Callable[[Any], Section | None]) -> _Maker:
    return lambda report, _: make(report)


def _of_parts(make: Callable[[Decomposition, Page], Section]) -> _Maker:
    """Make a section of the parts of a difference, if that has any."""
    return lambda report, page: None if report.decomposition is None else make(report.decomposition, page)


#: The sections of each kind of report. Their names, and their headings, are what a user calls them.
PARTS: Final[Mapping[type[Report], tuple[Part, ...]]] = {
    Anatomy: (
        Part("title", _of(run.title), first=True),
        # Changes the reading of all that follows.
        Part("caveats", _of(checks.caveats), first=True),
        # An impossible ceiling makes all that rests on it meaningless.
        Part("given-ceilings", _of(checks.given_ceilings), first=True),
        # A disagreement of two sources makes all that follows uncertain.
        Part("disagreements", _of(checks.disagreements), first=True),
        Part("in-short", _of(run.in_short), first=True),
        Part("headline", verdict.conclusion, first=True),
        Part("advice", advice.first_advice, "advice", first=True),
        Part("run", run.what_ran, first=True),
        Part("step", step.one_step, first=True),
        Part("generation", _of(step.generation), first=True),
        Part("texts", _of(run.texts), first=True),
        Part("classes", _of(classes.classes), "classes", first=True),
        Part("operators", operators.operators, "operators", first=True),
        Part("whole-run", _of(step.whole_run), "whole run"),
        Part("idle", _of(step.idle), "idle"),
        Part("replay", _of(replay.replay), "replay"),
        Part("host", operators.host, "host"),
        Part("kernels", operators.kernels, "kernels"),
        Part("modules", modules.modules, "modules"),
        Part("ceilings", _of(step.ceilings), "roofline"),
        Part("bounds", roofline.roofline, "roofline"),
        Part("ratios", _of(classes.ratios), "ratios"),
        Part("paper", classes.paper, "paper"),
        Part("batches", _of(run.batches), "batches"),
        Part("collectives", _of(collectives.collectives), "communication"),
        Part("communication-phases", _of(collectives.phases), "communication"),
        Part("communication-modules", _of(collectives.modules), "communication"),
        Part("ranks", _of(ranks.ranks), "ranks"),
        Part("waiting-steps", _of(ranks.steps), "waiting"),
        Part("matched", _of(ranks.collectives), "waiting"),
        Part("components", _of(memory.components), "memory"),
        Part("memory-lines", _of(partial(memory.parts, "line")), "memory"),
        Part("memory-curve", _of(memory.curve), "memory"),
        Part("memory-peak", _of(memory.blocks), "memory"),
        Part("memory-modules", _of(partial(memory.parts, "module")), "memory"),
        Part("memory-classes", _of(partial(memory.parts, "operator_class")), "memory"),
        Part("memory-phases", _of(partial(memory.parts, "phase")), "memory"),
        Part("memory-pools", _of(memory.pools), "memory"),
        Part("saved-activations", _of(memory.activations), "memory"),
        Part("snapshots", _of(memory.snapshots), "memory"),
        Part("activation-terms", _of(memory.terms), "memory"),
        Part("published", _of(memory.published), "memory"),
        Part("out-of-memory", _of(memory.failure), "memory"),
        Part("memory-notes", _of(memory.remarks), "memory"),
        Part("more-advice", advice.more_advice, "advice", open=True),
        Part("ledger", checks.ledger, "ledger"),
        Part("source", _of(run.source), "source"),
        Part("warnings", run.warnings, "warnings", open=True),
    ),
    Comparison: (
        Part("title", _of(comparison.title), open=True),
        Part("changed", comparison.what_changed, open=True),
        Part("memory-changes", lambda report, page: comparison.memory_changes(report, 2 * page.top), open=True),
        Part("gates", _of(comparison.gates), open=True),
        Part("warnings", _of(comparison.warnings), open=True),
        Part("sides", _of(comparison.sides), open=True),
        Part("causes", _of_parts(comparison.causes_table), open=True),
        Part("changes", _of_parts(lambda parts, page: comparison.changes_table(parts, page.top)), "changes"),
        Part("kernels-changed", _of_parts(lambda parts, _: comparison.kernels_table(parts)), "kernels"),
        Part("steps", _of(comparison.steps_table), "steps"),
        Part("figures", _of(comparison.figures_table), "figures"),
        Part("classes", _of(comparison.families_table), "classes"),
    ),
    Techniques: (
        Part("experiment", _of(techniques.title), open=True),
        Part("fits", _of(techniques.fits), open=True),
        Part("advice", techniques.advice, open=True),
        Part("techniques", _of(techniques.table), open=True),
        Part("predictions", _of(techniques.predictions)),
        Part("technique-memory", _of(techniques.components)),
        Part("same-training", _of(techniques.same_training)),
        Part("losses", _of(techniques.losses)),
        Part("underflow", _of(techniques.gradients_in_float16)),
        Part("not-run", _of(techniques.failed)),
        Part("offenders", _of(techniques.offenders)),
        Part("warnings", _of(techniques.warnings), open=True),
    ),
}
_TITLE, *_NAMED = PARTS[Anatomy]
#: The headings of the page.
HEADINGS: Final = tuple(dict.fromkeys(part.heading or part.name for part in _NAMED))
#: Values of `--section`: the headings of the page, and the parts below them.
SECTIONS: Final = tuple(dict.fromkeys((*HEADINGS, *(part.name for part in _NAMED))))


#: All of a report.
_ALL: Final = Page()


def sections_of(report: Report, page: Page = _ALL) -> tuple[Section, ...]:
    """Return the sections of a report that are not empty, in the order of the page.

    Of an anatomy all of them, the first screen, or those that the page asks for by name: an empty one of these says so.
    """
    if not isinstance(report, Anatomy):
        return _made(PARTS[Comparison if isinstance(report, Comparison) else Techniques], report, page)
    if page.sections:
        sections = _made([_TITLE], report, page, opened=True)
        for heading, group in groupby(_NAMED, key=lambda part: part.heading or part.name):
            if asked := [part for part in group if heading in page.sections or part.name in page.sections]:
                sections += _made(asked, report, page, opened=True) or _nothing(heading, sections)
        return sections
    first = first_screen(report, page)
    if page.brief:
        return first
    shown = {section.name for section in first}
    return first + _made([part for part in PARTS[Anatomy] if not part.first and part.name not in shown], report, page)


def first_screen(anatomy: Anatomy, page: Page = _ALL) -> tuple[Section, ...]:
    """Return the first screen, as `--brief` shows it: the headline, what ran, the step, the classes, the operators.

    The kernels too if operators are known for less than half of the time, as in a graph; of a memory snapshot what
    fills the memory.
    """
    if anatomy.memory.is_snapshot and not anatomy.classes:
        wanted = ("components", "memory-lines", "out-of-memory")
        return _made((part for part in PARTS[Anatomy] if part.first or part.name in wanted), anatomy, page, opened=True)
    with_operator = sum(row.time_ns for row in anatomy.operators)
    kernels = 2 * with_operator < anatomy.work_ns
    parts = (part for part in PARTS[Anatomy] if part.first or (kernels and part.name == "kernels"))
    return _made(parts, anatomy, page, opened=True)


def _made(parts: Iterable[Part], report: Report, page: Page, *, opened: bool = False) -> tuple[Section, ...]:
    """Return the sections that are not empty, each with its name and its heading; `opened` are never folded."""
    return tuple(
        replace(section, name=part.name, heading=part.heading, open=opened or part.open)
        for part in parts
        if (section := part.make(report, page)) is not None and not section.empty
    )


def _nothing(name: str, before: Iterable[Section]) -> tuple[Section, ...]:
    """Return a section that says that one is empty, unless a part of it is there already."""
    if any(name in (section.name, section.heading) for section in before):
        return ()
    nothing = "no warnings" if name == "warnings" else "not available: the report has no data for this section"
    note = Note(text=nothing, tone=NoteStyle.REMARK)
    return (Section(name=name, title=name.capitalize(), heading=name, open=True, notes=(note,)),)
