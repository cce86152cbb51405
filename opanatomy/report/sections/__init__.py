"""List the parts of each kind of report in order; each file creates some of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby
from typing import Any, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.analysis.costs import costs_of, steps_of_window
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.comparison import Comparison, Decomposition
from opanatomy.records.experiment import Techniques
from opanatomy.records.reports import Report
from opanatomy.report.section import LABEL, Note, NoteKind, Page, Phrase, Section, Share, Time, joined, phrase, work_of
from opanatomy.report.sections import (
    advice,
    checks,
    classes,
    collectives,
    comparison,
    estimate,
    lines,
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


class PagePart(Struct, frozen=True):
    """A part of the page: charts, then sections; sections with another heading than the first are collapsed."""

    name: str
    title: str
    charts: tuple[str, ...] = ()


class Part(Struct, frozen=True):
    """A section of a kind of report: its name, the function that creates it for a page, and its location.

    `on` is its part of the page, `heading` its heading in a text. `first` marks a section of the first screen; formats
    never collapse such a section, one requested by name, or an `open` one.
    """

    name: str
    make: _Maker
    on: str
    heading: str = ""
    first: bool = False
    open: bool = False


def _maker(make: Callable[[Any], Section | None]) -> _Maker:
    return lambda report, _: make(report)


def _parts_maker(make: Callable[[Decomposition, Page], Section]) -> _Maker:
    """Create a section from the parts of a difference, if there are any."""
    return lambda report, page: None if report.decomposition is None else make(report.decomposition, page)


#: The parts of the page of each kind of report.
PAGE: Final[Mapping[type[Report], tuple[PagePart, ...]]] = {
    Anatomy: (
        PagePart("verdict", "What costs most, and what to do", ("step", "advice")),
        PagePart("step", "One step", ("lanes", "steps", "run")),
        PagePart("classes", "Classes", ("classes",)),
        PagePart("roofline", "Roofline", ("roofline",)),
        PagePart("modules", "Modules", ("modules",)),
        PagePart("lines", "Lines", ("lines",)),
        PagePart("memory", "Memory", ("memory", "segments", "components")),
        PagePart("operators", "Operators and kernels"),
        PagePart("ranks", "Ranks", ("ranks",)),
        PagePart("sources", "Sources and checks"),
    ),
    Comparison: (
        PagePart("verdict", "What changed", ("difference",)),
        PagePart("changes", "Changes"),
        PagePart("figures", "Numbers"),
        PagePart("sources", "Sources and checks"),
    ),
    Techniques: (
        PagePart("verdict", "What each technique would change", ("techniques",)),
        PagePart("details", "Predicted and measured"),
        PagePart("sources", "Sources and checks"),
    ),
}
#: Sections of each kind of report, in order. Users refer to them by name or heading.
PARTS: Final[Mapping[type[Report], tuple[Part, ...]]] = {
    Anatomy: (
        Part("title", _maker(run.title), "verdict", first=True),
        # Changes the reading of all that follows.
        Part("caveats", _maker(checks.caveats), "verdict", first=True),
        # An impossible ceiling makes all that rests on it meaningless.
        Part("given-peaks", _maker(checks.given_ceilings), "verdict", first=True),
        # A disagreement of two sources makes all that follows uncertain.
        Part("disagreements", _maker(checks.disagreements), "verdict", first=True),
        Part("estimate", _maker(estimate.estimate), "verdict", "estimate", first=True),
        Part("mfu", _maker(estimate.conventions), "verdict", "mfu", first=True),
        Part("in-short", _maker(run.in_short), "verdict", first=True),
        Part("headline", verdict.conclusion, "verdict", first=True),
        Part("advice", advice.first_advice, "verdict", "advice", first=True),
        Part("run", run.what_ran, "verdict", first=True),
        Part("step", step.one_step, "step", first=True),
        Part("generation", _maker(step.generation), "step", first=True),
        Part("texts", _maker(run.texts), "step", first=True),
        Part("classes", _maker(classes.classes), "classes", "classes", first=True),
        Part("operators", operators.operators, "operators", "operators", first=True),
        Part("whole-run", _maker(step.whole_run), "step", "whole-run"),
        Part("idle", _maker(step.idle), "step", "idle"),
        Part("replay", _maker(replay.replay), "step", "replay"),
        Part("host", operators.host, "step", "host"),
        Part("kernels", operators.kernels, "operators", "kernels"),
        Part("modules", modules.modules, "modules", "modules"),
        Part("lines", lines.lines, "lines", "lines"),
        Part("peaks", _maker(step.ceilings), "roofline", "roofline"),
        Part("bounds", roofline.roofline, "roofline", "roofline"),
        Part("ratios", _maker(classes.ratios), "classes", "ratios"),
        Part("paper", classes.paper, "classes", "paper"),
        Part("batches", _maker(run.batches), "step", "batches"),
        Part("ranks", _maker(ranks.ranks), "ranks", "ranks"),
        Part("waiting-steps", _maker(ranks.steps), "ranks", "waiting"),
        Part("matched", _maker(ranks.collectives), "ranks", "waiting"),
        Part("collectives", _maker(collectives.collectives), "ranks", "communication"),
        Part("communication-phases", _maker(collectives.phases), "ranks", "communication"),
        Part("communication-modules", collectives.modules, "ranks", "communication"),
        Part("components", _maker(memory.components), "memory", "memory"),
        Part("memory-lines", partial(memory.parts, "line"), "memory", "memory"),
        Part("memory-curve", _maker(memory.curve), "memory", "memory"),
        Part("memory-peak", memory.blocks, "memory", "memory"),
        Part("memory-modules", partial(memory.parts, "module"), "memory", "memory"),
        Part("memory-classes", partial(memory.parts, "operator_class"), "memory", "memory"),
        Part("memory-phases", partial(memory.parts, "phase"), "memory", "memory"),
        Part("memory-compiled", partial(memory.parts, "compiled"), "memory", "memory"),
        Part("memory-pools", _maker(memory.pools), "memory", "memory"),
        Part("saved-activations", memory.activations, "memory", "memory"),
        Part("snapshots", _maker(memory.snapshots), "memory", "memory"),
        Part("activation-terms", _maker(memory.terms), "memory", "memory"),
        Part("published", _maker(memory.published), "memory", "memory"),
        Part("out-of-memory", _maker(memory.failure), "memory", "memory", open=True),
        Part("memory-notes", _maker(memory.remarks), "memory", "memory"),
        Part("more-advice", advice.more_advice, "verdict", "advice", open=True),
        Part("ledger", checks.ledger, "sources", "ledger"),
        Part("source", _maker(run.source), "sources", "source"),
        Part("warnings", run.warnings, "sources", "warnings", open=True),
    ),
    Comparison: (
        Part("title", _maker(comparison.title), "verdict", open=True),
        Part("changed", comparison.what_changed, "verdict", open=True),
        Part(
            "memory-changes", lambda report, page: comparison.memory_changes(report, 2 * page.top), "verdict", open=True
        ),
        Part("gates", _maker(comparison.gates), "verdict", open=True),
        Part("warnings", _maker(comparison.warnings), "sources", open=True),
        Part("sides", _maker(comparison.sides), "verdict", open=True),
        Part("causes", _parts_maker(comparison.causes_table), "verdict", open=True),
        Part(
            "changes", _parts_maker(lambda parts, page: comparison.changes_table(parts, page.top)), "changes", "changes"
        ),
        Part(
            "kernels-changed",
            _parts_maker(lambda parts, page: comparison.kernels_table(parts, page.top)),
            "changes",
            "kernels",
        ),
        Part("figures", _maker(comparison.figures_table), "figures", "figures"),
        Part("classes", _maker(comparison.families_table), "figures", "classes"),
        Part("steps", _maker(comparison.steps_table), "figures", "steps"),
    ),
    Techniques: (
        Part("experiment", _maker(techniques.title), "verdict", open=True),
        Part("fits", _maker(techniques.fits), "verdict", open=True),
        Part("advice", techniques.advice, "verdict", open=True),
        Part("techniques", _maker(techniques.table), "verdict", open=True),
        Part("predictions", _maker(techniques.predictions), "details"),
        Part("technique-memory", _maker(techniques.components), "details"),
        Part("same-training", _maker(techniques.same_training), "details"),
        Part("losses", _maker(techniques.losses), "details"),
        Part("underflow", _maker(techniques.gradients_in_float16), "details"),
        Part("not-run", _maker(techniques.failed), "details"),
        Part("offenders", _maker(techniques.offenders), "details"),
        Part("warnings", _maker(techniques.warnings), "sources", open=True),
    ),
}
_TITLE, *_NAMED = PARTS[Anatomy]
#: The heading of each section.
HEADING_OF: Final = {part.name: part.heading or part.name for part in _NAMED}
#: The headings of the page.
HEADINGS: Final = tuple(dict.fromkeys(HEADING_OF.values()))
#: Values of `--section`: page headings, and the parts below them.
SECTIONS: Final = tuple(dict.fromkeys((*HEADINGS, *(part.name for part in _NAMED))))


#: The headings that a first screen offers first.
_ASKED_FIRST: Final = ("idle", "kernels", "modules", "roofline", "memory", "ledger")

#: Sections available for a step that did not run.
OF_ESTIMATE: Final = frozenset({
    "title", "caveats", "estimate", "mfu", "collectives", "classes", "operators", "modules", "peaks", "bounds",
    "ratios", "components",
    "memory-curve", "memory-peak", "memory-modules", "memory-classes", "memory-phases", "warnings",
})  # fmt: skip
#: All of a report.
_WHOLE_PAGE: Final = Page()


def sections_of(report: Report, page: Page = _WHOLE_PAGE) -> tuple[Section, ...]:
    """Return the sections of a report that are not empty, in the order of the page.

    For an anatomy: all, the first screen, or those requested by name, of which an empty one says so.
    """
    if not isinstance(report, Anatomy):
        return _made(PARTS[Comparison if isinstance(report, Comparison) else Techniques], report, page)
    if page.sections:
        sections = _made([_TITLE], report, page, opened=True)
        for heading, group in groupby(_NAMED, key=lambda part: HEADING_OF[part.name]):
            if asked := [part for part in group if heading in page.sections or part.name in page.sections]:
                sections += _made(asked, report, page, opened=True) or _nothing(heading, sections)
        return sections
    first = first_screen(report, page)
    if page.brief:
        return first
    shown = {section.name for section in first}
    return first + _made([part for part in PARTS[Anatomy] if not part.first and part.name not in shown], report, page)


def first_screen(anatomy: Anatomy, page: Page = _WHOLE_PAGE) -> tuple[Section, ...]:
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


def headings_beyond(anatomy: Anatomy, shown: Iterable[Section]) -> Iterator[str]:
    """Yield the headings that have more than is `shown`, those that most reports have first."""
    names = {section.name for section in shown}
    for heading in dict.fromkeys((*_ASKED_FIRST, *HEADINGS)):
        parts = (part for part in _NAMED if HEADING_OF[part.name] == heading and part.name not in names)
        if any(_made([part], anatomy, _WHOLE_PAGE) for part in parts):
            yield heading


def in_lines(anatomy: Anatomy) -> tuple[str | Phrase, ...]:
    """Return the first screen in five lines, for a log: main cost, step, phases, classes, advice.

    If the step's phases are unknown, as in foreign traces, the phases of its work are used.
    """
    screen = {section.name: section for section in first_screen(anatomy)}
    notes = [screen[name].notes[0].text for name in ("headline", "in-short") if name in screen]
    phases = [fact.whole for fact in screen["step"].facts if fact.label == "phases"] if "step" in screen else []
    costs, steps = costs_of(anatomy), steps_of_window(anatomy)
    if not phases and costs.phases:
        known = joined(phrase("{} {}", phase, Time(ns / steps)) for phase, ns in costs.phases.items())
        phases = [phrase("{}: {}", work_of(anatomy), known or "")]
    shares = sorted(costs.classes.items(), key=lambda item: -item[1])
    classes = joined(phrase("{} {}", LABEL[item], Share(ns, costs.whole_ns)) for item, ns in shares if ns)
    advice = [fact.whole for fact in screen["advice"].facts[:1]] if "advice" in screen else ["no advice"]
    return *notes, *phases, *([classes] if classes else []), *advice


def findings_of(report: Report) -> tuple[str | Phrase, ...]:
    """Return what a report says first: its conclusion, and of one run the first advice."""
    sections = first_screen(report) if isinstance(report, Anatomy) else sections_of(report)
    said = [note.text for section in sections for note in section.notes if note.kind is NoteKind.CONCLUSION]
    advice = [fact.whole for section in sections if section.name == "advice" for fact in section.facts]
    return (*said[:1], *advice[:1])


def _made(parts: Iterable[Part], report: Report, page: Page, *, opened: bool = False) -> tuple[Section, ...]:
    """Return the sections that are not empty, each with its name and its heading; `opened` are never folded."""
    if isinstance(report, Anatomy) and report.estimated is not None:
        parts = (part for part in parts if part.name in OF_ESTIMATE)
    return tuple(
        replace(section, name=part.name, heading=part.heading, open=opened or part.open)
        for part in parts
        if (section := part.make(report, page)) is not None and not section.empty
    )


def _nothing(name: str, before: Iterable[Section]) -> tuple[Section, ...]:
    """Return a section saying that one is empty, unless part of it is shown already."""
    if any(name in (section.name, section.heading) for section in before):
        return ()
    nothing = "no warnings" if name == "warnings" else "not available: the report has no data for this section"
    note = Note(text=nothing, kind=NoteKind.REMARK)
    return (Section(name=name, title=name.capitalize(), heading=name, open=True, notes=(note,)),)
