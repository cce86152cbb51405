"""The figures of the terminal report, recomputed from the JSON report by the definitions of docs/report.md alone.

Nothing of the code that makes the report is used but its two texts: figures are read back by tests/printed_figures.py,
and recomputed by tests/recomputed_tables.py and tests/recomputed_lines.py. A digit that none of them comes to, and that
is in no name, is an error too.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

import opanatomy
from opanatomy.report import terminal_report
from opanatomy.report.formats.json import json_report
from tests import figure_sheet, printed_figures, recomputed_lines, recomputed_tables
from tests.figure_sheet import Numbers, Report, Sheet
from tests.recomputed_lines import CHECKS
from tests.recomputed_tables import (
    TABLES,
    by_phase,
    classes,
    collectives,
    kernels,
    matched,
    memory,
    operators,
    paper,
    ranks,
    ratios,
    roofline,
    waiting,
)

FOLDER: Final = Path(__file__).parent / "traces"
TRACES: Final = {
    "cpu": ("bert_cpu",), "gpu": ("gpu_mi250_training",),
    "two_ranks": ("gpu_v100_dlrm_rank0of8", "gpu_v100_dlrm_rank1of8"),
}  # fmt: skip
SHARED: Final = FOLDER.parent.parent.parent / "shared"
#: Other traces of the repository, and those of others where they are at hand, which the long run reads.
OTHERS: Final = [
    *(pytest.param(path, id=path.name[:40]) for path in sorted(FOLDER.glob("*.json.gz"))
      if not any(path.name.startswith(trace) for traces in TRACES.values() for trace in traces)),
    *(pytest.param(path, id=f"{path.parent.name}-{path.name[:40]}", marks=[pytest.mark.exhaustive])
      for folder in ("traces", "more_traces") for path in sorted((SHARED / folder).rglob("*.json.gz"))),
]  # fmt: skip
#: The tables of each page; one that is not there is one that nothing would be compared with.
ON_PAGE: Final = {
    "cpu": {classes, operators, ratios, memory, paper},
    "gpu": {classes, operators, kernels, roofline, ratios},
    "two_ranks": {classes, operators, kernels, roofline, ratios, ranks, collectives, by_phase, waiting, matched},
}
#: Digits of docs/report.md that are the same on every page.
CONSTANTS: Final = ("a forward of less than 1 % of the backward", "arXiv 2007.00072, BERT-large encoder layer, V100")


@cache
def texts_of(name: str) -> tuple[str, Report]:
    """The page, wide enough for every column, and the JSON report."""
    anatomy = opanatomy.analyze([FOLDER / f"{trace}.json.gz" for trace in TRACES[name]])
    return terminal_report(anatomy, width=240), json.loads(json_report(anatomy))


def check_table(sheet: Sheet, heading: str, header: str, expected: Callable[[Report], Iterator[Numbers]]) -> None:
    rows, numbers = sheet.rows(heading, header), [*expected(sheet.report)]
    assert len(rows) == len(numbers)
    for places, exact in zip(rows, numbers, strict=True):
        sheet.same(places, exact)


def checked(page: str, report: Report) -> Sheet:
    """The page after all checks."""
    sheet = Sheet(page, report)
    for heading, header, expected in TABLES:
        if sheet.has_table(heading, header):
            check_table(sheet, heading, header, expected)
    for check in CHECKS:
        check(sheet)
    return sheet


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize(("heading", "header", "expected"), TABLES, ids=[table[2].__name__ for table in TABLES])
def test_the_figures_of_a_table(
    name: str, heading: str, header: str, expected: Callable[[Report], Iterator[Numbers]]
) -> None:
    sheet = Sheet(*texts_of(name))
    on_page = sheet.has_table(heading, header)
    assert on_page == (expected in ON_PAGE[name])
    if on_page:
        check_table(sheet, heading, header, expected)


@pytest.mark.parametrize("path", OTHERS)
def test_the_tables_of_other_traces(path: Path) -> None:
    anatomy = opanatomy.analyze(path)
    sheet = Sheet(terminal_report(anatomy, width=240), json.loads(json_report(anatomy)))
    for heading, header, expected in TABLES:
        if sheet.has_table(heading, header):
            check_table(sheet, heading, header, expected)


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__.removeprefix("check_") for check in CHECKS])
def test_the_figures_of_lines_and_sentences(name: str, check: Callable[[Sheet], None]) -> None:
    check(Sheet(*texts_of(name)))


@pytest.mark.parametrize("name", TRACES)
def test_there_is_no_figure_that_nothing_recomputes(name: str) -> None:
    assert checked(*texts_of(name)).unchecked(CONSTANTS) == []


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("line", ["3.21 ms of it are lost", "step 3 of 4", "float64", "copies  7  12.0 %", "≥4 B"])
def test_a_figure_that_nobody_recomputes_is_found(name: str, line: str) -> None:
    page, report = texts_of(name)
    first, _, others = page.partition("\n\nclasses ")
    assert checked(f"{first}\n{line}\n\nclasses {others}", report).unchecked(CONSTANTS) == [line]


def test_what_is_the_same_on_every_page_is_documented() -> None:
    text = (FOLDER.parent.parent / "docs" / "report.md").read_text()
    assert all(constant in text for constant in CONSTANTS)


@pytest.mark.parametrize("module", [figure_sheet, printed_figures, recomputed_lines, recomputed_tables])
def test_nothing_that_recomputes_imports_opanatomy(module: object) -> None:
    tree = ast.parse(Path(str(vars(module)["__file__"])).read_text())
    names = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert not any(str(name).startswith("opanatomy") for name in names)
