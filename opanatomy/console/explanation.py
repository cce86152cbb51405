"""What is known of a name: a line or column of the report, an operator, a kernel, a device, a name of a report."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from opanatomy.console.classed import as_kernel, as_operator, formula
from opanatomy.console.names import Vocabulary, is_shortened
from opanatomy.device.match import sheets_named
from opanatomy.device.sheets import Sheet
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.compared import Comparison
from opanatomy.records.reports import Report
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.records.techniques import Techniques
from opanatomy.report.formats.terminal import sentence
from opanatomy.report.glossary import Chapter, Term, chapter_of, loosely_named, names, terms_named
from opanatomy.report.glossary.evaluated import evaluated
from opanatomy.report.metric_names import definition_of
from opanatomy.report.metrics import metrics_of
from opanatomy.report.printable import printable
from opanatomy.report.section import Fact, Phrase
from opanatomy.report.sections.explained import examples
from opanatomy.report.sections.known import Known
from opanatomy.report.sections.printed import printed

#: Names that one shortened name may stand for and that are explained.
_MAX_NAMES: Final = 4
_LABEL, _WIDTH = 10, 100
#: What is longer is no prose: a kernel's template arguments.
_LONGEST: Final = 4000
_NUMBER: Final = re.compile(r"(?<=\d) (?=[%\w])")
_GLUE: Final = "\N{NO-BREAK SPACE}"
#: Labels of text that is shown as it is, however long: code must not be wrapped.
_CODE: Final = ("as written",)


class Explanation(Struct, frozen=True):
    """What is known of some names, and the names of which nothing is, each with near ones."""

    text: str
    unknown: tuple[tuple[str, tuple[str, ...]], ...] = ()


def explain(words: Sequence[str], report: Report | None = None) -> Explanation:
    """A few lines on each name: what it means or is classed as, its formula, and what a report has of it.

    Words that together are a term or a device are one name: `stream waits`, `NVIDIA H100`.
    """
    vocabulary = Vocabulary(report)
    blocks: list[str] = []
    unknown: list[tuple[str, tuple[str, ...]]] = []
    for name in _joined(words):
        known = list(_blocks(name, vocabulary))
        blocks += known
        if not known:
            unknown.append((name, vocabulary.near(name)))
    return Explanation("\n".join(blocks), tuple(unknown))


def _joined(words: Sequence[str]) -> Iterator[str]:
    """The words, those in a row that are one term or one device as one name."""
    place = 0
    while place < len(words):
        ends = range(len(words), place + 1, -1)
        together = (end for end in ends if _is_one(" ".join(words[place:end])))
        end = next(together, place + 1)
        yield " ".join(words[place:end])
        place = end


def _is_one(name: str) -> bool:
    known = terms_named(name) or chapter_of(name) or sheets_named(name) or loosely_named(name)
    return bool(known) or any(_technique(name))


def _blocks(name: str, vocabulary: Vocabulary) -> Iterator[str]:
    """What is known of one name, a block for each thing of that name; nothing where there is none."""
    if exact := list(_exact(name, vocabulary)):
        yield from exact
    elif is_shortened(name):  # half a name is what it is short for, or nothing: rules would guess
        candidates = vocabulary.shortened(name)
        for candidate in candidates[:_MAX_NAMES]:
            yield from _exact(candidate, vocabulary)
        if others := candidates[_MAX_NAMES:]:
            yield f"{printable(name)} may also be: {', '.join(map(printable, others))}\n"
    else:
        facts = as_operator(name) or ([] if vocabulary.near_term(name) else as_kernel(name))
        if facts:
            yield _block(name, facts)


def _exact(name: str, vocabulary: Vocabulary) -> Iterator[str]:
    """The terms, operators, devices and names of the report with this name."""
    exact = list(_named_exactly(name, vocabulary))
    yield from exact or _terms(name, loosely_named(name), vocabulary.report)


def _named_exactly(name: str, vocabulary: Vocabulary) -> Iterator[str]:
    terms = list(_terms(name, terms_named(name), vocabulary.report))
    yield from terms or _section(name)
    yield from (_block(operator, _operator(operator, vocabulary)) for operator in vocabulary.operators(name))
    yield from _technique(name)
    yield from _metric(name, vocabulary.report)
    others = [item for item in vocabulary.known(name) if item.kind != "operator"]
    yield from (_block(f"{item.name} ({item.kind} of the report)", item.facts()) for item in others[:_MAX_NAMES])
    if len(others) > _MAX_NAMES:
        yield f"and {len(others) - _MAX_NAMES} more names in the report match: give one in full\n"
    yield from (_block(f"{sheet.device} (data sheet)", _sheet(sheet)) for sheet in sheets_named(name))


def _section(name: str) -> Iterator[str]:
    """The lines and columns of the section of this name."""
    chapter = chapter_of(name)
    if chapter is not None:
        facts = [Fact(label="" if place else "section", text=f"{term.title}: {term.meaning}")
                 for place, term in enumerate(chapter.terms)]  # fmt: skip
        yield _block(chapter.title, facts)


def _technique(name: str) -> Iterator[str]:
    """What a technique of `opanatomy techniques` does, by its name or its title."""
    from opanatomy.techniques.entries import TECHNIQUES

    for technique in TECHNIQUES:
        if name.casefold() in (technique.name, technique.title.casefold()):
            facts = [Fact(label="technique", text=technique.title), Fact(label="means", text=f"{technique.what}.")]
            yield _block(f"{technique.name} (technique)", facts)


def _metric(name: str, report: Report | None) -> Iterator[str]:
    """A figure by its name in `Anatomy.metrics()`, in gates and in comparisons."""
    definition = definition_of(name.casefold())
    if definition is None or name in names():
        return
    facts = [Fact(label="means", text=f"{definition.meaning} [{definition.unit}]")]
    if definition.better is not None:
        facts.append(Fact(label="better", text=definition.better))
    known = metrics_of(report).get(name.casefold()) if isinstance(report, Anatomy) else None
    row = (
        next((row for row in report.figures if row.name == name.casefold()), None)
        if isinstance(report, Comparison)
        else None
    )
    if known is not None:
        facts.append(Fact(label="report", text=f"{known.value:,} {known.unit}"))
    elif row is not None and isinstance(report, Comparison):
        values = ("not known" if value is None else f"{value:,} {row.unit}" for value in row.values)
        each = [f"{side.name}: {value}" for side, value in zip(report.sides, values, strict=True)]
        facts += [Fact(label="" if place else "report", text=text) for place, text in enumerate(each)]
    elif report is not None:
        facts.append(Fact(label="report", text="has no such figure"))
    yield _block(f"{name.casefold()} (metric)", facts)


def _terms(name: str, named: Sequence[tuple[Chapter, Term]], report: Report | None) -> Iterator[str]:
    """The terms of this name; with a report those that it has figures of, all of them where it has none."""
    every = [(chapter, term, _figures(chapter, term, report)) for chapter, term in named]
    shown = [(chapter, term, figures) for chapter, term, figures in every if figures] or every
    for chapter, term, figures in shown:
        facts = [Fact(label="means", text=f"{term.meaning}.{f' {term.more}' if term.more else ''}")]
        facts += [Fact(label="formula", text=term.formula)] if term.formula else []
        if report is not None and not figures:
            facts.append(Fact(label="report", text="has no such figure"))
        yield _block(f"{_as_asked(term, name)} ({chapter.title})", [*facts, *figures])


def _as_asked(term: Term, name: str) -> str:
    """The usual name of a term; of one in which a word differs the name with the word that was asked for."""
    return name.replace("{}", "...") if "{}" in term.names[0] and not is_shortened(name) else term.title


def _figures(chapter: Chapter, term: Term, report: Report | None) -> list[Fact]:
    """A term's formula with the figures of a report, and what the page has of it."""
    if report is None:
        return []
    known = worked_lines(term, report)
    worked = [Fact(label="" if place else "worked", text=line) for place, line in enumerate(known)]
    return [*worked, *printed(chapter, term, report)]


def worked_lines(term: Term, report: Report) -> list[Phrase]:
    """A term's formula worked on a report: by its own function, or as it is written where keys are all of it."""
    lines: Iterable[Phrase | None] = ()
    if isinstance(report, Techniques):
        own = term.worked_techniques
        lines = evaluated(term.formula, report) if own is None else own(report)
    elif isinstance(report, Anatomy):
        lines = evaluated(term.formula, report) if term.worked is None else term.worked(report)
    return [line for line in lines if line is not None]


def _operator(name: str, vocabulary: Vocabulary) -> Iterator[Fact]:
    """Class, rule and formula of an operator; of one that the report has as the report has it, with its calls."""
    report = vocabulary.report
    known = [item for item in vocabulary.known(name) if item.kind == "operator"]
    for item in known:
        yield from _of_report(item, name)
    if not known:
        yield from as_operator(name)
    if isinstance(report, Anatomy):
        yield from examples(name, report)


def _of_report(known: Known, name: str) -> Iterator[Fact]:
    facts = known.facts()
    yield from facts
    classes = {fact.text.parts[0] for fact in facts if fact.label == "class" and not isinstance(fact.text, str)}
    item = next((part for part in classes if isinstance(part, OperatorClass)), None)
    if item is not OperatorClass.UNKNOWN:
        yield from formula(name, item)


def _sheet(sheet: Sheet) -> Iterator[Fact]:
    """The figures of a data sheet, and where it is."""
    for label, peaks in (("products", sheet.matrix), ("else", sheet.vector)):
        for place, (dtype, peak) in enumerate(peaks.items()):
            unit = "TOP/s" if dtype.startswith("int") else "TFLOP/s"
            yield Fact(label="" if place else label, text=f"{peak:g} {unit} of {dtype}")
    if sheet.bandwidth is not None:
        yield Fact(label="bandwidth", text=f"{sheet.bandwidth:g} GB/s")
    sizes = [f"{sheet.memory_gib:g} GiB of memory"] if sheet.memory_gib is not None else []
    sizes += [f"{sheet.cache_mib:g} MiB of cache"] if sheet.cache_mib is not None else []
    sizes += [f"{' or '.join(map(str, sheet.multiprocessors))} multiprocessors"] if sheet.multiprocessors else []
    if sizes:
        yield Fact(label="has", text=", ".join(sizes))
    yield Fact(label="sheet", text=sheet.source)
    if sheet.note:
        yield Fact(label="note", text=sheet.note)


def _block(title: str, facts: Iterable[Fact]) -> str:
    """The title and below it the facts, each label next to its text, which is wrapped where it is no code."""
    lines, wraps = [printable(title)], True
    for fact in facts:
        text = printable(sentence(fact.text))
        wraps = fact.label not in _CODE if fact.label else wraps
        label = fact.label
        for line in _wrapped(text) if wraps else [text]:
            lines.append(f"  {label:<{_LABEL - 1}} {line}".rstrip())
            label = ""
    return "".join(f"{line}\n" for line in lines)


def _wrapped(text: str) -> list[str]:
    """The text in lines, broken between words, never within one (an address) nor between a number and its unit."""
    glued = _NUMBER.sub(_GLUE, text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
    lines = textwrap.wrap(glued, _WIDTH - _LABEL - 2, break_long_words=False, break_on_hyphens=False)
    return [line.replace(_GLUE, " ") for line in lines] or [""]
