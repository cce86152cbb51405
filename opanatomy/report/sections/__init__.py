"""The parts of the report, in their order; each file says what one of them is made of."""

from __future__ import annotations

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.compared import Comparison
from opanatomy.records.reports import Report
from opanatomy.records.techniques import Techniques
from opanatomy.report.section import Section
from opanatomy.report.sections import (
    checks,
    classes,
    collectives,
    communication,
    generation,
    ledger,
    memory,
    memory_theory,
    operators,
    ranks,
    ratios,
    roofline,
    run,
    step,
    suggestions,
    texts,
    verdict,
    waiting,
)
from opanatomy.report.sections.compared import sections_of_comparison
from opanatomy.report.sections.techniques import sections_of_techniques

#: How many operators are listed by name.
TOP = 8


def sections_of(report: Report, *, top: int = TOP) -> tuple[Section, ...]:
    """The sections of a report that have something to say, in the order of the page."""
    if isinstance(report, Comparison):
        return sections_of_comparison(report, top)
    return sections_of_techniques(report) if isinstance(report, Techniques) else _of_anatomy(report, top)


def first_screen(anatomy: Anatomy, *, top: int = TOP) -> tuple[Section, ...]:
    """What a reader comes for, as `--brief` shows it: the headline, what ran, the step, the classes, the operators."""
    sections = (
        run.title(anatomy),
        verdict.conclusion(anatomy),
        checks.disagreements(anatomy),
        run.what_ran(anatomy),
        step.one_step(anatomy),
        classes.classes(anatomy),
        operators.operators(anatomy, top),
    )
    return tuple(section for section in sections if section is not None and not section.empty)


def _of_anatomy(anatomy: Anatomy, top: int) -> tuple[Section, ...]:
    sections = (
        run.title(anatomy),
        checks.disagreements(anatomy),
        run.what_ran(anatomy),
        step.one_step(anatomy),
        generation.generation(anatomy),
        texts.texts(anatomy),
        texts.batches(anatomy),
        classes.classes(anatomy),
        classes.phases(anatomy),
        ratios.ratios(anatomy),
        ratios.paper(anatomy),
        operators.operators(anatomy, top),
        roofline.roofline(anatomy, top),
        collectives.collectives(anatomy),
        communication.phases(anatomy),
        communication.modules(anatomy),
        ranks.ranks(anatomy),
        waiting.steps(anatomy),
        waiting.collectives(anatomy),
        memory.components(anatomy),
        memory.curve(anatomy),
        memory.blocks(anatomy),
        memory.activations(anatomy),
        memory.snapshots(anatomy),
        memory_theory.terms(anatomy),
        memory_theory.published(anatomy),
        memory_theory.failure(anatomy),
        memory_theory.savings(anatomy),
        memory.remarks(anatomy),
        ledger.ledger(anatomy),
        run.warnings(anatomy),
        suggestions.suggestions(anatomy),
        verdict.conclusion(anatomy),
    )
    return tuple(section for section in sections if section is not None and not section.empty)
