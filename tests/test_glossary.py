"""The glossary: it has every line and column that the report prints, its paths are places of the JSON report."""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec
import pytest
from msgspec import inspect as types

import opanatomy
import opanatomy.records
from opanatomy.api import comparison_of
from opanatomy.cli.explanation import explain, values_at
from opanatomy.pipeline import analyze_trace
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.comparison import Comparison
from opanatomy.records.experiment import Techniques
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.report import read_anatomy, terms
from opanatomy.report.formats.json import json_report
from opanatomy.report.metrics import definition_of
from opanatomy.report.section import LABEL, SHORT_LABEL, Fact, Name, Phrase, Row, Section
from opanatomy.report.sections import SECTIONS, sections_of
from tests import anatomies
from tests.documented import current_and_renewed
from tests.test_golden_traces import TRACES

ROOT = Path(__file__).parent.parent
REPORTS = {
    **{path.name.removesuffix(".json.gz"): path for path in TRACES},
    **{f"experiment-{path.stem}": path for path in sorted((ROOT / "reports" / "techniques").glob("*.json"))},
    "bert-large": ROOT / "reports" / "bert-large-uncased.json",
    **dict.fromkeys(("bert_on_cpu", "llama_on_gpu", "nothing", "two_ranks", "comparison", "comparison_of_three")),
}
EVERY = pytest.mark.parametrize("name", REPORTS)
#: What a trace of the tests is compared with.
BEFORE_AND_AFTER = "bert_checkpointing_amp_cpu.json.gz"
#: Sections whose rows are called by names: of operators, modules, ranks, techniques, terms of a formula, claims.
OF_NAMES = {
    "operators", "kernels", "saved-activations", "ranks", "waiting-steps", "collectives", "matched", "batches",
    "techniques", "predictions", "technique-memory", "same-training", "losses", "not-run", "underflow",
    "disagreements", "activation-terms", "published", "savings", "suggestions", "communication-modules",
    "changes", "kernels-changed", "steps",
}  # fmt: skip
#: Words of a sentence between its figures, which are no names of figures.
BETWEEN = {
    "", "to", "in", "of", "take", "over", "more", "and", "of them", "of the host", "of their time", "batch", "length",
    "of kernel time", "figures by second sources", "vector float32", "trained", "of the contractions' time",
    "of the float32 peak", "of the bfloat16 peak", "the middle one of", "mean of", "known of", "profiled of",
    "all of it", "most of it", "of the idle time is in gaps that began while the host waited for the device",
    "shortest", "longest", "of the step", "on the host", "profiled on", "of the FLOPs in",
    "without other steps' work", "from the first to the last device work", "of the", "before and after it",
    "on each of", "FLOPs known for", "of the float32 peak in the plain step", "of the bfloat16 peak in the plain step",
}  # fmt: skip


@cache
def report_of(name: str) -> Anatomy | Techniques | Comparison:
    path = REPORTS[name]
    if name.startswith("comparison"):
        cpu = TRACES[0].parent / "bert_cpu.json.gz"
        return comparison_of([cpu] * 3 if name.endswith("three") else [cpu, cpu.with_name(BEFORE_AND_AFTER)])
    if name == "two_ranks":
        return opanatomy.analyze([TRACES[0].parent / f"gpu_v100_dlrm_rank{rank}of8.json.gz" for rank in (0, 1)])
    if path is None:
        made: Anatomy = getattr(anatomies, name)()
        return made
    if path.suffix == ".gz":
        return analyze_trace(path)
    if name.startswith("experiment-"):
        return msgspec.json.decode(path.read_bytes(), type=Techniques)
    return read_anatomy(path.read_bytes())


def terms_of(section: Section) -> Iterator[str]:
    """What a section calls its figures: headers, labels, rows that sum up or have fixed words, words in sentences."""
    yield from (column.header for column in section.columns if column.header)
    yield from (name for row in section.rows for name in _row(row, section.name))
    for fact in section.facts:
        if not fact.label.isdigit():  # the sides of a comparison of many
            yield fact.label
        if section.name in ("step", "idle", "ledger", "generation"):
            yield from words_of(fact)


def _row(row: Row, section: str) -> Iterator[str]:
    first = row.cells[0]
    if isinstance(first, OperatorClass):
        yield LABEL[first]
    elif section == "modules":  # the tree: all else is called as the modules are
        yield from (name for name in (first,) if name == "outside modules")
    elif isinstance(first, str) and (row.summary or section not in OF_NAMES):
        yield first


def words_of(fact: Fact) -> set[str]:
    """The words right before and right behind each figure of a sentence, up to a comma."""
    if isinstance(fact.text, str) or fact.label in ("no formula", "unknown", "explained", "unchecked", "ceilings"):
        return set()
    text = "".join(part if isinstance(part, str) else "\0" for part in fact.text.parts)
    before = re.findall(r"(?:^|[,;:()=+\0])([^\d\0,;:()=+]*) (?=\0)", text)
    behind = re.findall(r"\0 ([^\d\0,;:()=+]*)(?=[,;:()=+\0]|$)", text)
    return {word.strip(" ≥") for word in (*before, *behind)} - BETWEEN


def test_a_word_that_is_not_in_it_is_found() -> None:
    fact = Fact(label="device", text=Phrase(("busy ", Name("x"), " (", Name("y"), "), gone ", Name("z"), " forgotten")))
    assert {word for word in words_of(fact) if not terms.terms_named(word, "step")} == {"gone", "forgotten"}


@EVERY
def test_every_printed_term_is_in_it(name: str) -> None:
    sections = sections_of(report_of(name))
    missing = {
        f"{section.name}: {term}"
        for section in sections
        for term in terms_of(section)
        if term and not (terms.terms_named(term, section.name) or definition_of(term))
    }
    assert not missing, "one entry each in the chapter of the section, in opanatomy/report/terms.py"


@EVERY
def test_every_heading_is_that_of_a_chapter(name: str) -> None:
    for section in sections_of(report_of(name)):
        assert terms.chapter_of(section.name) is not None, section.name


@pytest.mark.parametrize("name", SECTIONS)
def test_what_a_section_is_called_by_is_explained(name: str) -> None:
    assert not explain([name]).unknown


def literals() -> Iterator[str]:
    """Headers and labels as they stand in the code of the sections, also of those that no kept report has."""
    for path in sorted((ROOT / "opanatomy" / "report" / "sections").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id == "facts_of":
                yield from (
                    pair.elts[0].value
                    for pair in node.args
                    if isinstance(pair, ast.Tuple) and isinstance(pair.elts[0], ast.Constant)
                )
            if node.func.id in ("Column", "Fact"):
                values = [word.value for word in node.keywords if word.arg in ("header", "label")]
                yield from (value.value for value in values if isinstance(value, ast.Constant))


def test_every_header_and_label_in_the_code_is_in_it() -> None:
    written = [text for text in literals() if text]
    assert len(written) > 100
    assert not {text for text in written if not terms.terms_named(text)}


def test_it_has_the_classes_phases_components_and_checks() -> None:
    from opanatomy.memory.components import COMPONENTS
    from opanatomy.memory.inferred import COMPONENTS as INFERRED

    names = [*LABEL.values(), *SHORT_LABEL.values(), *Phase, *COMPONENTS, *INFERRED]
    quantities = set()
    for path in (ROOT / "opanatomy").rglob("*.py"):
        quantities |= set(re.findall(r'quantity="([^"]+)"', path.read_text()))
        quantities |= set(re.findall(r'\.check\("([^"]+)"', path.read_text()))
    assert len(quantities) >= 12
    assert not [name for name in (*names, *quantities) if not terms.terms_named(name)]


def fields() -> set[str]:
    """The fields of all records: the keys of the JSON reports."""
    known: set[str] = set()
    for module in pkgutil.iter_modules(opanatomy.records.__path__):
        for item in vars(importlib.import_module(f"opanatomy.records.{module.name}")).values():
            if isinstance(item, type) and issubclass(item, msgspec.Struct):
                known.update(item.__struct_fields__)
    return known


def test_formulas_are_of_keys_that_the_json_report_has() -> None:
    known = {*fields(), *OperatorClass, *Phase, "tensor_contraction", "device_work", "multiply_add"}
    known |= {name.removesuffix("_ns") for name in known}
    for _, term in terms.entries():
        for key in re.findall(r"(?<!\")\b[a-z]+(?:_[a-z0-9]+)+\b", re.sub(r'"[^"]*"', "", term.formula)):
            assert key in known, f"{term.names[0]}: no key {key}"


def test_no_entry_is_there_twice() -> None:
    for chapter in terms.CHAPTERS:
        spelled = [name for term in chapter.terms for name in term.names]
        assert len(spelled) == len(set(spelled)), chapter.title


@pytest.mark.parametrize("page", ["report.md", "techniques.md", "comparing.md"])
def test_the_lists_of_a_page_are_current(page: str) -> None:
    text, renewed = current_and_renewed(page)
    assert renewed == text, "run python docs/renew.py"


def test_each_line_is_on_one_page() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))
    assert text.count("- **headroom**: ") == 1


def test_the_reference_is_read_in_ten_minutes() -> None:
    assert len((ROOT / "docs" / "report.md").read_text(encoding="utf-8").split()) <= 4_000


@EVERY
def test_the_values_of_a_term_are_those_of_the_json_report(name: str) -> None:
    """Every path of every term is a place of some report, and what stands there is what the JSON report has."""
    report = report_of(name)
    plain = json.loads(json_report(report))
    for _, term in terms.entries():
        for path in term.paths:
            for line in values_at(report, path):
                number = re.search(r"= (-?[\d,]+) (?:ns|B|FLOP) \(", line)
                if number and "[" not in path:
                    value = plain
                    for key in path.split("."):
                        value = value[key]
                    assert int(number[1].replace(",", "")) == value, line


def test_paths_are_places_of_a_report() -> None:
    kinds = [types.type_info(kind) for kind in (Anatomy, Techniques, Comparison)]
    for _, term in terms.entries():
        for path in term.paths:
            assert any(_leads_somewhere(kind, re.sub(r"\[[^]]*\]", "[]", path)) for kind in kinds), (term.title, path)


def _leads_somewhere(kind: types.Type, path: str) -> bool:
    for part in path.split("."):
        name, rows = part.removesuffix("[]"), part.endswith("[]")
        if not isinstance(kind, types.StructType):
            return isinstance(kind, types.DictType)
        field = next((field for field in kind.fields if field.name == name), None)
        if field is None:
            return False
        kind = _known(field.type)
        if rows and not isinstance(kind, types.VarTupleType):
            return False
        kind = _known(kind.item_type) if rows and isinstance(kind, types.VarTupleType) else kind
    return True


def _known(kind: types.Type) -> types.Type:
    if not isinstance(kind, types.UnionType):
        return kind
    return next(each for each in kind.types if not isinstance(each, types.NoneType))


def clauses_of(formula: str) -> Iterator[str]:
    """What stands between brackets of a formula and outside of them, brackets replaced by `#`, clause by clause."""
    text, inner = re.sub(r'"[^"]*"', "q", re.sub(r"\[[^\]]*\]", "", formula)), re.compile(r"\(([^()]*)\)")
    while match := inner.search(text):
        yield from re.split(r"[,;:] | = ", match[1])
        text = f"{text[: match.start()]}#{text[match.end() :]}"
    yield from re.split(r"[,;:] | = ", text)


def test_formulas_have_brackets_where_they_may_be_read_in_two_ways() -> None:
    """No sum or difference beside a product or quotient, nothing after a quotient, no sum over what is divided."""
    assert list(clauses_of("a - (b / c), d")) == ["b / c", "a - #", "d"]
    for _, term in terms.entries():
        for clause in clauses_of(term.formula):
            signs = re.findall(r" ([-+/x]) ", clause)
            mixed = {"+", "-"} & set(signs) and {"/", "x"} & set(signs)
            assert not mixed, f"{term.names[0]}: {clause}"
            assert not re.search(r" / .* [/x] |sum of .* [-+/x] ", clause), f"{term.names[0]}: {clause}"


def test_a_note_is_the_words_of_the_entry() -> None:
    assert terms.note("ranks", "own") == "own: the step less exposed communication"
    assert terms.note("communication-phases", "exposed") == "exposed: nothing else ran meanwhile"
    with pytest.raises(KeyError):
        terms.note("ranks", "headroom")
