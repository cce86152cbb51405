"""The table of formats, the fixtures' own sums, and the looks of the classes."""

from __future__ import annotations

from pathlib import Path

import pytest

from opanatomy.__main__ import main
from opanatomy.errors import UsageError
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.report import format_of
from opanatomy.report.formats import FORMATS, format_named
from opanatomy.report.section import COLOUR, LABEL, SHORT_LABEL, Page, total
from tests import anatomies
from tests.handmade import training_step


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("anatomy", [anatomies.bert_on_cpu(), anatomies.llama_on_gpu(), anatomies.nothing()])
def test_a_format_is_a_function_that_prints_nothing(
    name: str, anatomy: Anatomy, capsys: pytest.CaptureFixture[str]
) -> None:
    text = format_named(name).write(anatomy, Page())
    assert text.endswith("\n")
    assert format_named(name).write(anatomy, Page()) == text
    assert capsys.readouterr() == ("", "")


def test_the_format_of_a_file() -> None:
    assert format_of("a/report.json") == "json"
    assert format_of("operators.CSV") == "csv"
    assert format_of("report.txt") == "terminal"
    assert format_of("report.md") == "markdown"
    assert format_of("report.digest.md") == "digest"
    assert {"csv", "digest", "json", "markdown", "terminal"} <= set(FORMATS)
    for name in FORMATS:
        assert format_of(f"x{format_named(name).ending}") == name


@pytest.mark.parametrize("path", ["report", "report.docx", "json", ".json"])
def test_an_ending_of_no_format_is_named(path: str) -> None:
    reason = rf"{path} - end the name in one of .*\.csv, \.json, .*\.txt, or say -f FORMAT"
    with pytest.raises(UsageError, match=reason):
        format_of(path)


def test_every_class_has_a_look_of_its_own() -> None:
    for looks in (COLOUR, LABEL, SHORT_LABEL):
        assert list(looks) == list(OperatorClass)
        assert len(set(looks.values())) == len(OperatorClass)


@pytest.mark.parametrize("anatomy", [anatomies.bert_on_cpu(), anatomies.llama_on_gpu(), anatomies.nothing()])
def test_the_hand_made_anatomies_add_up(anatomy: Anatomy) -> None:
    ledger = anatomy.ledger
    inside = ledger.device_work_ns - ledger.outside_window_ns
    assert ledger.linked_ns + ledger.graph_launched_ns + ledger.no_launch_record_ns == inside
    assert ledger.classed_ns + ledger.unknown_ns == inside
    assert total(anatomy.classes).time_ns == inside
    without_operator = sum(row.time_ns for row in anatomy.kernels if not row.operators)
    assert total(anatomy.operators).time_ns + without_operator == inside
    assert total(anatomy.classes).costed_ns == ledger.costed_ns
    assert anatomy.timeline.busy_ns + anatomy.timeline.idle_ns == anatomy.timeline.window_ns


def test_what_is_not_known_stays_apart_in_a_sum() -> None:
    rows = anatomies.llama_on_gpu().classes
    optimizer = total(row for row in rows if row.phase is Phase.OPTIMIZER)
    assert optimizer.costed_ns == 21_300_000 < optimizer.time_ns == 23_510_000
    assert not optimizer.flops_are_all
    unknown = total(row for row in rows if row.operator_class is OperatorClass.UNKNOWN)
    assert (unknown.flops, unknown.bytes, unknown.bound_ns, unknown.intensity) == (None, None, None, None)
    assert total(()).flops is None


@pytest.mark.parametrize(
    ("options", "name", "begins"),
    [
        (["-f", "digest"], None, "# opanatomy digest\n"),
        (["-f", "markdown"], None, "## The anatomy of "),
        (["-o", "x.md"], "x.md", "## The anatomy of "),
        (["-f", "markdown", "--section", "idle"], None, "## The anatomy of "),
        (["-o", "x.Digest.MD"], "x.Digest.MD", "# opanatomy digest\n"),
        (["-o", "x.md", "-f", "digest"], "x.md", "# opanatomy digest\n"),
        (["-o", "made/", "-f", "digest"], "made/step.report.digest.md", "# opanatomy digest\n"),
        (["-o", "made/", "-f", "markdown"], "made/step.report.md", "## The anatomy of "),
    ],
)
def test_markdown_and_digest_are_written_where_they_are_asked_for(
    options: list[str], name: str | None, begins: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = str(training_step().write(here / "step.json.gz"))
    assert main(["analyze", trace, *options]) == 0
    text = capsys.readouterr().out if name is None else Path(name).read_text(encoding="utf-8")
    assert text.startswith(begins)
