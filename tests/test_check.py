"""`profile --check`: contractions counted a second time in the same run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from opanatomy.__main__ import main
from opanatomy.anatomy.check import check_rows
from opanatomy.model import CheckRow, OperatorClass, OperatorRow, Phase
from opanatomy.report import terminal_report
from opanatomy.report.json_report import read_anatomy
from tests import anatomies
from tests.tiny import TINY


def row(name: str, flops: int | None, part_of: str | None = None) -> OperatorRow:
    return OperatorRow(
        operator=name, signature="", phase=Phase.FORWARD, operator_class=OperatorClass.TENSOR_CONTRACTION, rule="r",
        calls=1, time_ns=1, flops=flops, read_bytes=0, written_bytes=0, part_of=part_of,
    )  # fmt: skip


def test_rows_are_of_one_step_and_convolutions_go_by_what_was_dispatched() -> None:
    rows = (
        row("aten::mm", 20), row("aten::mm", 0, part_of="aten::addmm"), row("aten::mkldnn_convolution", 8),
        row("aten::cudnn_convolution", 2), row("aten::mkldnn_convolution_backward", 6), row("aten::bmm", None),
    )  # fmt: skip
    counted = {"aten::mm": 10, "aten::convolution": 5, "aten::convolution_backward": 4, "aten::lost": 1}
    assert check_rows(rows, counted, steps=2) == (
        CheckRow(operator="aten::mm", flops=10, counted_flops=10),
        CheckRow(operator="aten::convolution", flops=5, counted_flops=5),
        CheckRow(operator="aten::convolution_backward", flops=3, counted_flops=4),
        CheckRow(operator="aten::lost", flops=0, counted_flops=1),
        CheckRow(operator="aten::bmm", flops=0, counted_flops=0),
    )


def test_the_table_shows_residuals_and_what_the_counter_lacks() -> None:
    check = (
        CheckRow(operator="aten::mm", flops=1500, counted_flops=1000),
        CheckRow(operator="aten::_grouped_mm", flops=10, counted_flops=0),
    )
    text = terminal_report(replace(anatomies.nothing(), check=check), width=80)
    assert next(line for line in text.splitlines() if line.startswith("mm")).split() == ["mm", "1,500", "1,000", "500"]
    assert "has no formula for, or counts 0 of: aten::_grouped_mm" in text


@pytest.mark.parametrize(
    "options", [(), ("--checkpointing", "--optimizer", "adamw"), ("--amp", "bf16", "--steps", "2")]
)
def test_the_counter_agrees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = "google-bert/bert-base-uncased"
    sizes = [part for key, value in TINY[model] for part in ("--set", f"{key}={value}")]
    assert main(["profile", model, *sizes, "--batch", "2", "--seq", "16", "--check", "-f", "json", *options]) == 0
    check = read_anatomy(capsys.readouterr().out).check
    assert {row.operator for row in check} >= {"aten::mm", "aten::addmm"}
    assert all(row.flops == row.counted_flops > 0 for row in check)


def test_compiled_steps_cannot_be_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "gpt2", "--check", "--compile"]) == 2
    assert "leave out --compile" in capsys.readouterr().err
