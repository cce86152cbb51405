"""Explain a name (a term, operator, kernel, technique, figure or device) and show its values in a report."""

from __future__ import annotations

import ast
import difflib
import inspect
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import fields

from opanatomy.devices.match import called, fastest, near_devices, smallest, variants_called
from opanatomy.devices.sheets import Sheet
from opanatomy.errors import OpanatomyError
from opanatomy.io.redact import Redactor, redacted
from opanatomy.records.anatomy import VIEWS, Anatomy
from opanatomy.records.communication import Rank
from opanatomy.records.comparison import Comparison, Part
from opanatomy.records.experiment import Techniques
from opanatomy.records.patterns import regex
from opanatomy.records.reports import Report
from opanatomy.records.signature import Classification
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.report import units
from opanatomy.report.formats.json import read_anatomy
from opanatomy.report.formats.terminal import sentence
from opanatomy.report.load import document_in, report_in
from opanatomy.report.metrics import definition_of, metrics_of
from opanatomy.report.names import printable
from opanatomy.report.section import (
    Column,
    ColumnKind,
    Count,
    Fact,
    Name,
    Note,
    NoteKind,
    Phrase,
    Row,
    Section,
    Share,
    Time,
    joined,
    phrase,
)
from opanatomy.report.terms import Chapter, Term, chapter_of, is_named, names, terms_named

#: Limits of names shown for one abbreviated name, and of a report's rows.
_MAX_NAMES, _MAX_ROWS, _MAX_VALUES, _MAX_PRINTED = 4, 6, 8, 10
_LABEL, _WIDTH = 10, 100
#: Longer text is not a name but a kernel's template arguments.
_MAX_PROSE: Final = 4000
_MAX_SOURCE: Final = 24
_NUMBER: Final = regex(r"(?<=\d) (?=[%\w])")
_GLUE: Final = "\N{NO-BREAK SPACE}"
#: Labels of text that is shown unchanged at any length: code must not be wrapped.
_CODE: Final = ("as written",)
#: Marks for the omitted middle of a name: the report's, a plain terminal's, and people's.
_ELLIPSIS: Final = regex(r"…|\.\.\.|~")
_MAX_NEAR: Final = 3
#: How much of a name must be equal to another for the two to be near, and how many letters at its beginning suffice.
_ALIKE, _BEGUN = 0.7, 3
_ATEN: Final = "aten::"
#: Plain words: no kernel or library operator has such a name.
_WORDS: Final = regex(r"(?!mem(?:cpy|set) )[^\W\d_]+(?: [^\W\d_]+)+", re.IGNORECASE)
_NAMESPACES: Final = regex(r"^(?:void )?(?:(?!aten::)\w+::|\(anonymous namespace\)::)*")
_ARGUMENTS: Final = regex(r"[<(].*", re.DOTALL)
_SPAN: Final = regex(r"\d+-\d+")


class Explanation(Struct, frozen=True):
    """Lines explaining some names, and the unknown names with similar ones."""

    text: str
    unknown: tuple[tuple[str, tuple[str, ...]], ...] = ()


def explain(words: Sequence[str], report: Report | None = None) -> Explanation:
    """Return a few lines on each name: meaning or class, formula, and its values in a report.

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
    """Join consecutive words that form one term or device name."""
    position = 0
    while position < len(words):
        for end in range(len(words), position, -1):
            name = " ".join(words[position:end])
            if (
                end == position + 1
                or terms_named(name)
                or chapter_of(name)
                or variants_called(name)
                or any(_technique(name))
            ):
                yield name
                position = end
                break


def _blocks(name: str, vocabulary: Vocabulary) -> Iterator[str]:
    """Yield a block per meaning of a name; nothing if it is unknown."""
    if exact := list(_exact(name, vocabulary)):
        yield from exact
    elif _ELLIPSIS.search(name):  # half a name is short for another, or nothing: rules would guess
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
    """Yield the terms, operators, devices and names of the report with this name."""
    report = vocabulary.report
    terms = list(_terms(name, terms_named(name), report))
    if not terms and (chapter := chapter_of(name)) is not None:
        facts = [
            Fact(label="" if index else "section", text=f"{term.title}: {term.meaning}")
            for index, term in enumerate(chapter.terms)
        ]
        terms = [_block(chapter.title, facts)]
    known = list(terms)
    known += [_block(operator, _operator(operator, report)) for operator in vocabulary.operators(name)]
    known += [*_technique(name), *_metric(name, report)]
    if not terms and not vocabulary.operators(name) and (rows := _rows(name, report)):
        known.append(_block(f"{name} (in the report)", rows))
    known += _devices(name)
    yield from known


# ------------------------------------------------------------------------------------------------ terms of the report


def _terms(name: str, named: Sequence[tuple[Chapter, Term]], report: Report | None) -> Iterator[str]:
    """Yield the terms with this name; with a report those with figures in it, or all if there are none."""
    every: list[tuple[Chapter, Term, list[Fact]]] = []
    for chapter, term in named:
        figures: list[Fact] = []
        if report is not None:
            values = [text for path in term.paths for text in values_at(report, path)]
            figures += [Fact(label="" if index else "values", text=text) for index, text in enumerate(values)]
            lines = list(_printed(chapter, term, report))
            shown = enumerate(lines[:_MAX_PRINTED])
            figures += [Fact(label="" if index else "printed", text=line) for index, line in shown]
            if len(lines) > _MAX_PRINTED:
                figures.append(Fact(label="", text=f"and {len(lines) - _MAX_PRINTED} more lines"))
        every.append((chapter, term, figures))
    for chapter, term, figures in [entry for entry in every if entry[2]] or every:
        facts = [Fact(label="means", text=f"{term.meaning}.{f' {term.more}' if term.more else ''}")]
        facts += [Fact(label="formula", text=term.formula)] if term.formula else []
        if report is not None and not figures:
            facts.append(Fact(label="report", text="this number is not in the report"))
        with_word = "{}" in term.names[0] and not _ELLIPSIS.search(name)
        title = name.replace("{}", "...") if with_word else term.title
        yield _block(f"{title} ({chapter.title})", [*facts, *figures])


def values_at(report: Any, path: str) -> Iterator[str]:
    """Yield `path = value` for a report's values at a path: one line per table row, or sums for long tables.

    `operators[].flops` selects every row, `classes[phase=forward].time_ns` that phase, `rows[0]` the first row.
    """
    found = [(place, value) for place, value in _walk(report, path.split("."), "") if value is not None]
    if len(found) <= _MAX_VALUES:
        yield from (f"{place} = {_exact_text(path, value)}" for place, value in found)
    elif all(isinstance(value, int) for _, value in found):
        yield f"{path}: {len(found):,} rows, sum {_exact_text(path, sum(value for _, value in found))}"
    else:
        yield f"{path}: {len(found):,} rows"


def _walk(value: Any, parts: list[str], place: str) -> Iterator[tuple[str, Any]]:
    if not parts or value is None:
        yield place, value
        return
    part, _, index = parts[0].partition("[")
    inner = value.get(part) if isinstance(value, dict) else getattr(value, part, None)
    if not index:
        yield from _walk(inner, parts[1:], f"{place}.{part}" if place else part)
        return
    field, equals, wanted = index.rstrip("]").partition("=")
    for number, row in enumerate(inner or ()):
        if (equals and str(getattr(row, field)) != wanted) or (field.isdigit() and not equals and number != int(field)):
            continue
        yield from _walk(
            row, parts[1:], f"{place}.{part}[{_title(row, number)}]" if place else f"{part}[{_title(row, number)}]"
        )


def _title(row: Any, number: int) -> str:
    """Return what identifies a row: its name and phase, else its number."""
    if not isinstance(row, Struct):
        return str(number)
    texts = [value for field in row.__struct_fields__ if isinstance(value := getattr(row, field), str)]
    return " ".join([texts[0], *(text for text in texts[1:2] if isinstance(text, Phase))]) if texts else str(number)


def _exact_text(path: str, value: Any) -> str:
    """Return a value with all its digits and its unit, and next to it as the page writes it."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_exact_text(path, item)}" for key, item in value.items()) or "none"
    if isinstance(value, (tuple, list)):
        texts = [_exact_text(path, item) for item in value[:_MAX_NAMES]]
        return ", ".join([*texts, f"{len(value) - _MAX_NAMES} more"] if len(value) > _MAX_NAMES else texts) or "none"
    if not isinstance(value, int) or isinstance(value, bool):
        return f"{value:g}" if isinstance(value, float) else str(value)
    short, unit = _readable(path, value)
    return f"{value:,} {unit} ({short})" if unit else f"{value:,}"


def _readable(name: str, value: float) -> tuple[str, str]:
    """Return a figure as formatted on the page, and its base unit from the field name; no unit for a count."""
    last = name.rpartition(".")[2].partition("[")[0]
    for end, write, unit in (("_ns", units.duration, "ns"), ("bytes", units.size, "B"), ("flops", units.flops, "FLOP")):
        if last.endswith(end):
            return write(value), unit
    return (f"{value:,}" if isinstance(value, int) else f"{value:g}"), ""


def _printed(chapter: Chapter, term: Term, report: Report) -> Iterator[Phrase]:
    """Yield the lines and cells of the page that a term is the name of, with the title of their section."""
    from opanatomy.report.sections import sections_of

    for section in sections_of(report):
        if chapter.sections and section.name not in chapter.sections:
            continue
        for fact in section.facts:
            if is_named(term, fact.label):
                yield phrase("{}: {}", fact.label, fact.whole)
        for row in section.rows:
            first = row.cell(section.columns[0])
            cells = [(column, cell) for column in section.columns[1:] if (cell := row.cell(column)) is not None]
            if cells and isinstance(first, str) and is_named(term, first):
                known = joined(phrase("{} {}", column.header, cell) for column, cell in cells)
                yield phrase("{}, {}: {}", section.title, first, known or "")
            for column, cell in cells:
                if is_named(term, column.header):
                    yield phrase("{}, {}: {}", section.title, first or "the row", cell)


def _technique(name: str) -> Iterator[str]:
    """Yield the effect of a technique of `opanatomy techniques`, by its name or title."""
    from opanatomy.predict.techniques import TECHNIQUE

    for technique in TECHNIQUE.values():
        if name.casefold() in (technique.name, technique.title.casefold()):
            facts = [Fact(label="technique", text=technique.title), Fact(label="means", text=f"{technique.what}.")]
            yield _block(f"{technique.name} (technique)", facts)


def _metric(name: str, report: Report | None) -> Iterator[str]:
    """Yield a figure by its name in `Anatomy.metrics()`, in gates and in comparisons."""
    definition = definition_of(name.casefold())
    if definition is None or name in names():
        return
    facts = [Fact(label="means", text=f"{definition.meaning} [{definition.unit}]")]
    if definition.better is not None:
        facts.append(Fact(label="better", text=definition.better))
    texts = []
    if isinstance(report, Anatomy) and (known := metrics_of(report).get(name.casefold())):
        texts = [f"{known.value:,} {known.unit}"]
    elif isinstance(report, Comparison):
        row = next((row for row in report.figures if row.name == name.casefold()), None)
        values = [] if row is None else [None if value is None else f"{value:,} {row.unit}" for value in row.values]
        texts = [f"{side.name}: {value or 'unknown'}" for side, value in zip(report.sides, values, strict=False)]
    if report is not None:
        texts = texts or ["this number is not in the report"]
    facts += [Fact(label="" if index else "report", text=text) for index, text in enumerate(texts)]
    yield _block(f"{name.casefold()} (metric)", facts)


# ----------------------------------------------------------------------------------- operators, kernels and data sheets


def as_operator(name: str) -> list[Fact]:
    """Return class, rule and formula of an operator by its name; nothing if no rule knows it.

    Every name without `::` is classified as a range, which alone explains nothing.
    """
    from opanatomy.classification.operators import classify_operator

    classification = classify_operator(name)
    if classification is None or classification.annotation:
        return []
    rule = Fact(label="rule", text=classification.rule)
    if classification.operator_class is None:
        nothing = "does no work itself: it dispatches to other operators, or is a view, an allocation or a range"
        return [Fact(label="operator", text=nothing), rule]
    facts = [Fact(label="operator", text=_classes(classification)), rule]
    if classification.delegates:
        facts.append(Fact(label="", text="has this class only if none of the operators that it calls does the work"))
    return [*facts, *_formula(name)]


def as_kernel(name: str) -> list[Fact]:
    """Return class and rule of a kernel by its name; nothing if no rule knows it."""
    from opanatomy.classification.kernels import classify_kernel

    classification = classify_kernel(name)
    if classification.operator_class in (None, OperatorClass.UNKNOWN) or _WORDS.fullmatch(name):
        return []
    return [Fact(label="kernel", text=_classes(classification)), Fact(label="rule", text=classification.rule)]


def _classes(classification: Classification) -> Phrase:
    own = phrase("{}", classification.operator_class or OperatorClass.UNKNOWN)
    contained = joined(phrase("{}", item) for item in classification.contains)
    return phrase("{}, containing {}", own, contained) if contained else own


def _formula(name: str) -> list[Fact]:
    """Return an operator's formula in words and as source code."""
    from opanatomy.cost.registry import describe, function_of

    text = describe(name) or "none: its FLOPs and bytes are unknown"
    first, *others = text.splitlines()
    function = function_of(name)
    written = _as_written(function) if function else []
    return [Fact(label="formula", text=first), *(Fact(label="", text=line) for line in others), *written]


def _as_written(function: Callable[..., Any]) -> list[Fact]:
    """Return a formula's source without its docstring; nothing if the file is missing."""
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
    where = f"in {Path(inspect.getfile(function)).name}:{first + code[0].lineno - 1}"
    more = [f"... {len(lines) - _MAX_SOURCE} more lines"] if len(lines) > _MAX_SOURCE else []
    texts = [*lines[:_MAX_SOURCE], *more]
    return [Fact(label="as written", text=where), *(Fact(label="", text=text) for text in texts)]


def _operator(name: str, report: Report | None) -> Iterator[Fact]:
    """Yield class, rule and formula of an operator, and its rows and costliest calls in a report."""
    rows = [row for row in report.operators if row.operator == name] if isinstance(report, Anatomy) else []
    if rows:
        for kind, rule in dict.fromkeys((row.operator_class, row.rule) for row in rows):
            yield from (Fact(label="class", text=phrase("{}", kind)), Fact(label="rule", text=rule))
        if any(row.operator_class is not OperatorClass.UNKNOWN for row in rows):
            yield from _formula(name)
    else:
        yield from as_operator(name)
    parts = [row for row in report.operators if row.part_of == name] if isinstance(report, Anatomy) else []
    for phase in dict.fromkeys(row.phase for row in rows):
        calls = sum(row.calls for row in rows if row.phase is phase)
        below_ns = sum(row.time_ns for row in parts if row.phase is phase)
        time = Time(sum(row.time_ns for row in rows if row.phase is phase) + below_ns)
        said = phrase("{}: {}, {} in total", phase.value, Count(calls, "call"), time)
        yield Fact(
            label="report", text=phrase("{}, including {} in its parts", said, Time(below_ns)) if below_ns else said
        )
    for part in dict.fromkeys(row.operator for row in parts):
        time = Time(sum(row.time_ns for row in parts if row.operator == part))
        yield Fact(label="part", text=phrase("{}: {}", Name(part), time))
    yield from _rows(name, report, without="operators")
    for row in rows[:2]:
        yield Fact(label="example", text=f"{row.operator}({row.signature})")
        scope = "in total, excluding its parts" if parts else "in total"
        said = phrase("{} in {}, {} {}", Count(row.calls, "call"), row.phase.value, Time(row.time_ns), scope)
        yield Fact(label="", text=said)
        costs: str | Phrase = "FLOPs and bytes unknown: no formula fits these arguments"
        if row.part_of is not None:
            costs = f"part of {row.part_of}, which includes its FLOPs and bytes"
        elif row.flops is not None and row.read_bytes is not None and row.written_bytes is not None:
            figures = (row.flops, row.read_bytes, row.written_bytes)
            flops, read, written = (Count(value // row.calls) for value in figures)
            costs = phrase("one call: {} FLOP, {} bytes read, {} bytes written", flops, read, written)
        yield Fact(label="", text=costs)
    if isinstance(report, Anatomy) and not rows:
        of_trace = f" of {report.provenance.trace}" if report.provenance.trace else ""
        yield Fact(label="example", text=f"none: this operator is not in the report{of_trace}")


def _devices(name: str) -> Iterator[str]:
    """Yield the variants of a device if there are several, with the ones that options take, and a data sheet."""
    variants, meant = variants_called(name), called(name)
    if not variants:
        return
    taken, fitting = fastest(meant), smallest(meant)
    if len(variants) > 1:
        facts = [Fact(label="" if index else "variants", text=_in_short(each)) for index, each in enumerate(variants)]
        if taken is not None:
            facts.append(Fact(label="--on", text=f"selects {taken.device}"))
        one = "needs one of these names, or a memory size such as 80GB"
        facts.append(Fact(label="--for", text=one if fitting is None else f"selects {fitting.device}"))
        yield _block(f"{name} (device)", facts)
    sheet = taken or meant[0]
    yield _block(f"{sheet.device} (data sheet)", _sheet(sheet))


def _in_short(sheet: Sheet) -> str:
    """Return a device's name, its dense peaks in half and single precision, its bandwidth and its memory."""
    half = next((dtype for dtype in ("bfloat16", "float16") if dtype in sheet.matrix), None)
    peaks = [] if half is None else [f"{sheet.matrix[half]:g} TFLOP/s in {half}"]
    single = sheet.matrix.get("float32") or sheet.vector.get("float32")
    peaks += [] if single is None else [f"{single:g} TFLOP/s in float32"]
    sizes = [] if sheet.bandwidth is None else [f"{sheet.bandwidth:g} GB/s"]
    sizes += [] if sheet.memory_gib is None else [f"{sheet.memory_gib:g} GiB"]
    return f"{sheet.device}: {', '.join((*peaks, *sizes))}"


def _sheet(sheet: Sheet) -> Iterator[Fact]:
    """Yield the figures of a data sheet, and where it is."""
    for label, peaks in (("matmuls", sheet.matrix), ("other", sheet.vector)):
        for index, (dtype, peak) in enumerate(peaks.items()):
            unit = "TOP/s" if dtype.startswith("int") else "TFLOP/s"
            dense = " (all peaks are dense)" if label == "matmuls" and not index else ""
            yield Fact(label="" if index else label, text=f"{peak:g} {unit} in {dtype}{dense}")
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


# ------------------------------------------------------------------------------------------------- names of a report


def _rows(name: str, report: Report | None, *, without: str = "") -> list[Fact]:
    """Return the rows with this name in every table of a report, those with most time first."""
    facts = []
    for path, table in [] if report is None else _tables(report, ""):
        rows = [row for row in table if path != without and _is_of(row, name.casefold())]
        times = [getattr(row, "time_ns", 0) or 0 for row in rows]
        rows = [row for _, row in sorted(zip(times, rows, strict=True), key=lambda pair: -pair[0])]
        facts += [
            Fact(label="" if index else path.rpartition(".")[2][: _LABEL - 1], text=_row_text(row, name))
            for index, row in enumerate(rows[:_MAX_ROWS])
        ]
        if len(rows) > _MAX_ROWS:
            facts.append(Fact(label="", text=f"and {len(rows) - _MAX_ROWS} more rows"))
        if len(rows) > 1 and any(times):
            facts.append(Fact(label="", text=phrase("{} in total, {} rows", Time(sum(times)), Count(len(rows)))))
    return facts


def _tables(record: Struct, prefix: str) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for field in (*(VIEWS if isinstance(record, Anatomy) else ()), *record.__struct_fields__):
        value = getattr(record, field)
        if isinstance(value, tuple) and value and isinstance(value[0], Struct):
            yield prefix + field, value
        elif isinstance(value, Struct):
            yield from _tables(value, f"{prefix}{field}.")


def _is_of(row: Any, wanted: str) -> bool:
    """Return whether a row has this name, or its module is or lies in the named one.

    The end of a module's path will do, and `0-23` for any number.
    """
    if any(wanted in _spellings(name) for name in _names_in(row)):
        return True
    path = str(getattr(row, "module", None) or "")
    pattern = r"\d+".join(map(re.escape, _SPAN.split(wanted)))
    return "." in path and re.search(rf"(?:^|\.){pattern}(?:\.|$)", path.casefold()) is not None


def _names_in(row: Any) -> Iterator[str]:
    """Yield a row's names: its texts, and the texts of nested records."""
    for field in row.__struct_fields__:
        value = getattr(row, field)
        if isinstance(value, Struct):
            yield from _names_in(value)
        else:
            yield from (
                text for text in (value if isinstance(value, tuple) else (value,)) if type(text) is str and text
            )
    if isinstance(row, Rank) and row.rank is not None:
        yield f"rank {row.rank}"
    if isinstance(row, Part):
        from opanatomy.report.sections.comparison import name_of_part

        yield name_of_part(row)


def _spellings(name: str) -> set[str]:
    """Return a name, also without `aten::`, C++ namespaces, return type, template arguments and parameters."""
    plain = _NAMESPACES.sub("", name)
    every = (name, name.removeprefix(_ATEN), plain, _ARGUMENTS.sub("", plain), name.replace("_", " "))
    return {text.casefold() for text in every}


def _row_text(row: Any, name: str) -> str:
    """Return the informative fields of a row as text with units, without its name."""
    texts = []
    for field in fields(row):
        value = getattr(row, field.name)
        if value is None or value == field.default or value in ((), {}) or value == name or isinstance(value, dict):
            continue
        label = field.name.removesuffix("_ns").replace("_", " ")
        if isinstance(value, Struct):
            texts.append(f"{label}: {_row_text(value, name)}")
        elif isinstance(value, tuple):
            texts.append(
                f"{label} {_exact_text('', value)}" if not isinstance(value[0], Struct) else f"{len(value)} {label}"
            )
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            texts.append(f"{label} {_readable(field.name, value)[0]}")
        else:
            texts.append(f"{label} {value}")
    return ", ".join(texts)


class Vocabulary:
    """The known names, with a report also its names; case-insensitive."""

    def __init__(self, report: Report | None = None) -> None:
        self.report = report

    @cached_property
    def _operators(self) -> dict[str, str]:
        """Return every operator with a formula, a family or a row in the report, by lowercase name."""
        from opanatomy.classification.operators import FAMILIES
        from opanatomy.cost.registry import operators

        families = (f"{_ATEN}{name}" for family in FAMILIES for name in family.names.split())
        own = [row.operator for row in self.report.operators] if isinstance(self.report, Anatomy) else []
        full = dict.fromkeys((*own, *operators(), *families))
        short = {name.removeprefix(_ATEN).casefold(): name for name in reversed(full)}
        of_report = {text: name for name in own for text in _spellings(name)}
        return {**of_report, **short, **{name.casefold(): name for name in reversed(full)}}

    @cached_property
    def _own(self) -> tuple[str, ...]:
        """Return the names of the rows of the report."""
        tables = [] if self.report is None else [table for _, table in _tables(self.report, "")]
        return tuple(dict.fromkeys(name for table in tables for row in table for name in _names_in(row)))

    def operators(self, name: str) -> tuple[str, ...]:
        """Return the operator of this name, also without `aten::` and with its phase after it."""
        own, _, phase = name.casefold().rpartition(" ")
        for wanted in (name.casefold(), own if phase in tuple(Phase) else ""):
            if wanted in self._operators:
                return (self._operators[wanted],)
        return ()

    def shortened(self, name: str) -> tuple[str, ...]:
        """Return the names that a name with an ellipsis may abbreviate, the report's first.

        An operator may be followed by its phase: `_safe_soft… forward`.
        """
        parts = [part.strip() for part in _ELLIPSIS.split(name.casefold())]
        if len(parts) < 2 or not any(parts):
            return ()
        cut = re.compile(".+".join(map(re.escape, parts)), re.DOTALL)
        terms = {name.replace("{}", phase) for name in names() for phase in (Phase if "{}" in name else ("",))}
        operators = dict.fromkeys(self._operators.values())
        for candidates in (self._own, (*sorted(terms), *operators)):
            fitting = [
                full
                for full in candidates
                for ends in (("", *(f" {phase}" for phase in Phase)) if full in operators else ("",),)
                if any(cut.fullmatch(text + end) for text in _spellings(full) for end in ends)
            ]
            if fitting:
                return tuple(dict.fromkeys(fitting))
        return ()

    def near(self, name: str) -> tuple[str, ...]:
        """Return the known names most similar to an unknown one, nearest first."""
        short = (name.removeprefix(_ATEN) for name in self._operators.values())
        terms = (name for name in names() if "{}" not in name)
        spelled = {text.casefold(): text for text in (*self._operators.values(), *short, *self._own, *terms)}
        close = difflib.get_close_matches(name.casefold(), spelled, n=2 * _MAX_NEAR, cutoff=_ALIKE)
        begun = (text for text in spelled if len(name) >= _BEGUN and text.startswith(name.casefold()))
        known = (spelled[text] for text in (*close, *begun))
        return tuple(dict.fromkeys((*(near_devices(name) if any(map(str.isdigit, name)) else ()), *known)))[:_MAX_NEAR]

    def near_term(self, name: str) -> bool:
        """Return whether a report term is similar to this name, and so more likely meant than some kernel."""
        terms = [text.casefold() for text in names()]
        return bool(difflib.get_close_matches(name.casefold(), terms, n=1, cutoff=_ALIKE + 0.1))


# ------------------------------------------------------------------------------------------- reports from files, layout


def read_report(path: Path) -> Anatomy | Techniques | Comparison:
    """Read a JSON report: a run, an experiment or a comparison; `OpanatomyError` for other files."""
    document = document_in(path)
    return _anatomy(path) if document is None else document


def unexplained(path: Path) -> tuple[Section, ...]:
    """Return the names in a report without a matching rule, and those without a formula, with their share of the time.

    Raises `OpanatomyError` for a file that is not a report of one run.
    """
    from opanatomy.report.sections.checks import unclassified, uncosted

    anatomy = report_in(path) or _anatomy(path)
    whole_ns = anatomy.ledger.device_work_ns - anatomy.ledger.outside_window_ns

    def section(name: str, title: str, times: Counter[str]) -> Section:
        share = Share(sum(times.values()), whole_ns)
        head = phrase("{}: {}, {} of the time", title, Count(len(times), "name"), share) if times else f"{title}: none"
        rows = tuple(
            Row(cells={"share": Share(ns, whole_ns), "name": operator}) for operator, ns in times.most_common()
        )
        columns = (Column(header="share"), Column(header="name", holds=ColumnKind.FORMULAS))
        notes = (Note(text=head, kind=NoteKind.PLAIN),)
        return Section(name=name, title=title, columns=columns, rows=rows, notes=notes)

    return (
        section("unclassified", "not matched by any rule", unclassified(anatomy)),
        section("uncosted", "without a formula, or without arguments in the trace", uncosted(anatomy)),
    )


def _anatomy(path: Path) -> Anatomy:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise OpanatomyError(
            f"cannot read the report {path}: {error.strerror} - pass a report written with -f json"
        ) from error
    try:
        return redacted(read_anatomy(text), Redactor())
    except OpanatomyError as error:
        raise OpanatomyError(f"{path}: {error}") from error


def _block(title: str, facts: Iterable[Fact]) -> str:
    """Return the title and below it the facts, each label next to its text, wrapped unless it is code."""
    lines, wraps = [printable(title)], True
    for fact in facts:
        text = printable(sentence(fact.whole))
        wraps = fact.label not in _CODE if fact.label else wraps
        parts = [text]
        if wraps:  # between words, never within one (an address) nor between a number and its unit
            glued = _NUMBER.sub(_GLUE, text if len(text) <= _MAX_PROSE else f"{text[:_MAX_PROSE]}…")
            wrapped = textwrap.wrap(glued, _WIDTH - _LABEL - 2, break_long_words=False, break_on_hyphens=False)
            parts = [line.replace(_GLUE, " ") for line in wrapped] or [""]
        label = fact.label
        for line in parts:
            lines.append(f"  {label:<{_LABEL - 1}} {line}".rstrip())
            label = ""
    return "".join(f"{line}\n" for line in lines)
