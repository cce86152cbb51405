"""The CSV report: the operators in base units."""

from __future__ import annotations

import csv
from collections.abc import Callable
from io import StringIO

import pytest
from msgspec.structs import replace

from opanatomy.records.signature import SignatureText
from opanatomy.report.formats.csv import csv_report
from tests import anatomies


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(text)))


def test_a_row_for_each_operator_in_base_units() -> None:
    anatomy = anatomies.bert_on_cpu()
    rows = rows_of(csv_report(anatomy))
    assert [row["operator"] for row in rows] == [row.operator for row in anatomy.operators]
    assert sum(int(row["time_ns"]) for row in rows) == anatomy.ledger.device_work_ns
    assert rows[0]["operator_class"] == "tensor_contraction"
    assert rows[0]["phase"] == "backward"
    assert [row["signature"] for row in rows] == [row.signature for row in anatomy.operators]


def test_what_the_columns_give_together() -> None:
    anatomy = anatomies.bert_on_cpu()
    row, text = anatomy.operators[0], rows_of(csv_report(anatomy))[0]
    assert row.flops is not None
    assert row.read_bytes is not None
    assert row.written_bytes is not None
    moved = row.read_bytes + row.written_bytes
    assert float(text["flops_per_second"]) == pytest.approx(row.flops / row.time_ns * 1e9, rel=1e-5)
    assert float(text["bytes_per_second"]) == pytest.approx(moved / row.time_ns * 1e9, rel=1e-5)
    assert float(text["flops_per_byte"]) == pytest.approx(row.flops / moved, rel=1e-5)


def test_what_is_not_known_is_empty() -> None:
    row = rows_of(csv_report(anatomies.bert_on_cpu()))[-1]
    assert [row[name] for name in ("flops", "read_bytes", "flops_per_second", "flops_per_byte", "bound_by")] == [""] * 5


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        ("-2+3", "'-2+3"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("-, float32[2,3]", "'-, float32[2,3]"),
        ("two\nlines, and \"quotes\"", "two\nlines, and \"quotes\""),
    ],
)  # fmt: skip
def test_no_name_is_a_formula_to_a_spreadsheet(name: str, cell: str) -> None:
    anatomy = anatomies.bert_on_cpu()
    row = replace(anatomy.operators[0], operator=name)
    assert rows_of(csv_report(replace(anatomy, operators=(row,))))[0]["operator"] == cell


@pytest.mark.parametrize(
    ("signature", "cell"), [("-, float32[2,3]", "-, float32[2,3]"), ("-", "-"), ("-1, 2", "'-1, 2"), ("=A1", "'=A1")]
)
def test_a_signature_whose_first_argument_is_absent_is_no_formula(signature: str, cell: str) -> None:
    anatomy = anatomies.bert_on_cpu()
    row = replace(anatomy.operators[0], signature=SignatureText(signature))
    assert rows_of(csv_report(replace(anatomy, operators=(row,))))[0]["signature"] == cell


def test_no_operators_are_a_header() -> None:
    assert csv_report(anatomies.nothing()).count("\n") == 1


@pytest.mark.parametrize("name", ["bert_on_cpu", "llama_on_gpu"])
def test_golden(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"{name}.csv", csv_report(getattr(anatomies, name)()))
