"""What is known of a name: a line or column of the report, an operator, a kernel, a device, a name of a report."""

from __future__ import annotations

import ast
import difflib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from opanatomy.devices.match import sheets_named
from opanatomy.devices.sheets import Sheet
from opanatomy.errors import OpanatomyError
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.comparison import Comparison
from opanatomy.records.experiment import Techniques
from opanatomy.records.reports import Report
from opanatomy.records.signature import Classification
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.report.explain import ALIKE, MODULES, Known, examples, known_names, printed
from opanatomy.report.formats.json import read_anatomy
from opanatomy.report.formats.terminal import sentence
from opanatomy.report.load import document_in, report_in
from opanatomy.report.metrics import definition_of, metrics_of
from opanatomy.report.section import Fact, Phrase, joined, phrase, printable
from opanatomy.report.terms import Chapter, Term, chapter_of, loosely_named, names, terms_named
from opanatomy.report.worked import evaluated
from opanatomy.trace.redact import Texts, redacted

# The names that can be explained: terms of the glossary, operators, and those of a report; near and shortened ones.


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
        from opanatomy.classification.operators import FAMILIES
        from opanatomy.cost.registry import operators

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


# What an explanation takes from files: a report, and the source of a formula.


_LONGEST_SOURCE = 24


def read_report(path: Path) -> Anatomy | Techniques | Comparison:
    """What a JSON report holds: the anatomy of a run, an experiment, a comparison; `OpanatomyError` for all else."""
    text = _read(path)
    try:
        return redacted(msgspec.json.decode(text, type=Techniques), Texts())
    except (msgspec.DecodeError, UnicodeDecodeError):
        document = document_in(path)
        return _anatomy(path, text) if document is None else document


def read_anatomy_of(path: Path) -> Anatomy:
    """The anatomy in a JSON report; `OpanatomyError` where it cannot be read, or is of several runs."""
    text = _read(path)
    anatomy = report_in(path)
    return _anatomy(path, text) if anatomy is None else anatomy


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise OpanatomyError(
            f"cannot read the report {path}: {error.strerror} - give one that -f json wrote"
        ) from error


def _anatomy(path: Path, text: bytes) -> Anatomy:
    try:
        return redacted(read_anatomy(text), Texts())
    except OpanatomyError as error:
        raise OpanatomyError(f"{path}: {error}") from error


def as_written(function: Callable[..., Any]) -> list[Fact]:
    """The body of a formula as it is in its file, without its docstring; nothing where the file is missing."""
    try:
        written, first = inspect.getsourcelines(function)
        source = textwrap.dedent("".join(written))
        tree = ast.parse(source).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return []
    if not isinstance(tree, ast.FunctionDef):
        return []
    code = tree.body[1:] if ast.get_docstring(tree) is not None else tree.body
    if not code:
        return []
    lines = textwrap.dedent("\n".join(source.splitlines()[code[0].lineno - 1 : code[-1].end_lineno])).splitlines()
    where = f"{Path(inspect.getfile(function)).name}:{first + code[0].lineno - 1}"
    shown = lines[:_LONGEST_SOURCE] + (
        [f"... {len(lines) - _LONGEST_SOURCE} more lines"] if len(lines) > _LONGEST_SOURCE else []
    )
    return [Fact(label="as written", text=f"in {where}"), *(Fact(label="", text=line) for line in shown)]


# What rules and formulas say of the name of an operator or a kernel.


#: Words alone: no kernel and no operator of a library has such a name.
_WORDS: Final = re.compile(r"(?!mem(?:cpy|set) )[^\W\d_]+(?: [^\W\d_]+)+", re.IGNORECASE)


def formula(name: str, operator_class: OperatorClass | None) -> list[Fact]:
    """The formula of an operator in words and as it is written; nothing for one that does no work."""
    from opanatomy.cost.registry import describe, function_of

    if operator_class is None:
        return []
    text = describe(name) or "none: its FLOPs and bytes are not known"
    first, *others = [line.strip() for line in text.splitlines() if line.strip()]
    function = function_of(name)
    written = as_written(function) if function else []
    return [Fact(label="formula", text=first), *(Fact(label="", text=line) for line in others), *written]


def as_operator(name: str) -> list[Fact]:
    """The class of an operator by its name and the rule that decided; nothing where no rule knows it.

    That a name is some range, as every name without `::` is, says nothing of it.
    """
    from opanatomy.classification.operators import classify_operator

    classification = classify_operator(name)
    if classification is None or classification.annotation:
        return []
    if classification.operator_class is None:
        nothing = "does no work of its own: it dispatches, or is a view, an allocation or a range"
        return [Fact(label="operator", text=nothing), _rule(classification)]
    facts = [Fact(label="operator", text=_classes(classification)), _rule(classification)]
    if classification.delegates:
        facts.append(Fact(label="", text="only where no operator below it computes"))
    return [*facts, *formula(name, classification.operator_class)]


def as_kernel(name: str) -> list[Fact]:
    """The class of a kernel by its name and the rule that decided; nothing where no rule knows it."""
    from opanatomy.classification.kernels import classify_kernel

    classification = classify_kernel(name)
    if classification.operator_class in (None, OperatorClass.UNKNOWN) or _WORDS.fullmatch(name):
        return []
    return [Fact(label="kernel", text=_classes(classification)), _rule(classification)]


def _classes(classification: Classification) -> Phrase:
    own = phrase("{}", classification.operator_class or OperatorClass.UNKNOWN)
    contained = joined(phrase("{}", item) for item in classification.contains)
    return phrase("{}, containing {}", own, contained) if contained else own


def _rule(classification: Classification) -> Fact:
    return Fact(label="rule", text=classification.rule)


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
    from opanatomy.predict.techniques import TECHNIQUES

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
