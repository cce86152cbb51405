"""The terminal report: it fits, it is literal, and it says what is not known."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from opanatomy.records.anatomy import ClassRow
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.report import terminal_report
from tests import anatomies

NAMES = ("bert_on_cpu", "llama_on_gpu", "nothing")
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("name", NAMES)
def test_golden(name: str, width: int, golden: Callable[[str, str], None]) -> None:
    golden(f"{name}.{width}.txt", terminal_report(getattr(anatomies, name)(), width=width))


def test_golden_in_colour(golden: Callable[[str, str], None]) -> None:
    golden("llama_on_gpu.80.ansi", terminal_report(anatomies.llama_on_gpu(), width=80, color=True))


@pytest.mark.parametrize("color", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_every_line_fits_and_ends_where_its_text_ends(name: str, color: bool) -> None:
    anatomy = getattr(anatomies, name)()
    for width in (*range(40, 130), 200):
        for line in ANSI.sub("", terminal_report(anatomy, width=width, color=color)).splitlines():
            assert cell_len(line) <= width, line
            assert line == line.rstrip()


@pytest.mark.parametrize("name", NAMES)
def test_text_without_colour_has_no_escapes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = terminal_report(getattr(anatomies, name)(), width=80)
    assert "\x1b" not in plain
    assert plain.endswith("\n")
    assert not plain.endswith("\n\n")
    for variable, value in (("FORCE_COLOR", "1"), ("COLUMNS", "40"), ("NO_COLOR", "1"), ("TERM", "dumb")):
        monkeypatch.setenv(variable, value)
        assert terminal_report(getattr(anatomies, name)(), width=80) == plain


def test_colour_is_what_the_caller_says(monkeypatch: pytest.MonkeyPatch) -> None:
    coloured = terminal_report(anatomies.bert_on_cpu(), width=80, color=True)
    assert "\x1b[38;5;" in coloured
    for variable, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        monkeypatch.setenv(variable, value)
        assert terminal_report(anatomies.bert_on_cpu(), width=80, color=True) == coloured


def test_the_cpu_is_named_at_once() -> None:
    first = terminal_report(anatomies.bert_on_cpu(), width=80).split("\n\n")[1]
    assert "device     the CPU (AMD EPYC 7B13, 2 threads); no GPU took part" in first
    assert "no GPU" not in terminal_report(anatomies.llama_on_gpu(), width=80)


def test_names_are_printed_literally() -> None:
    report = terminal_report(anatomies.llama_on_gpu(), width=80)
    assert "rotary[bold]::backward" in report
    assert "model.layers.[3].self_attn kept" in report
    assert "[no markup here]" in report


def test_a_name_cannot_steer_the_terminal() -> None:
    anatomy = anatomies.bert_on_cpu()
    rows = tuple(replace(row, operator=f"\x1b[2J\r\n{row.operator}") for row in anatomy.operators)
    workload = replace(anatomy.workload, model="\x1b]0;title\x07")
    report = terminal_report(replace(anatomy, operators=rows, workload=workload, warnings=("a\x1b[1mb",)), width=80)
    assert not set(report) & {"\x1b", "\r", "\x07"}


def test_unknown_work_and_work_without_a_formula_are_named_with_their_time() -> None:
    report = terminal_report(anatomies.llama_on_gpu(), width=100)
    assert "unknown    rotary[bold]::backward 0.5 %, rotary[bold]::forward 0.4 %" in report
    assert "no formula aten::_foreach_norm 0.5 %" in report


def test_only_the_first_unknown_names_are_listed() -> None:
    anatomy = anatomies.llama_on_gpu()
    unknown = tuple(row for row in anatomy.operators if row.operator_class is OperatorClass.UNKNOWN)
    many = tuple(replace(unknown[0], operator=f"op{index}", time_ns=10**6 * (9 - index)) for index in range(9))
    report = terminal_report(replace(anatomy, operators=many), width=200)
    assert "op0 2.1 %, op1 1.9 %, op2 1.7 %, op3 1.4 %, op4 1.2 %, 4 more" in report


def test_unknown_kernels_without_an_operator_are_named_too() -> None:
    anatomy = anatomies.llama_on_gpu()
    unknown = next(row for row in anatomy.kernels if row.operator_class is OperatorClass.UNKNOWN)
    kernel = replace(unknown, operators=(), kernel="my_kernel<" + "long, " * 40 + ">")
    report = terminal_report(replace(anatomy, kernels=(kernel,)), width=200)
    assert re.search(r"unknown +my_kernel<long, .*….*long, > 1\.0 %", report)


def test_kernels_that_no_operator_launched_have_no_formula() -> None:
    anatomy = anatomies.llama_on_gpu()
    kernel = replace(anatomy.kernels[0], operators=(), kernel="Memset (Device)", time_ns=4_200_000)
    report = terminal_report(replace(anatomy, kernels=(kernel,)), width=100)
    assert "no formula Memset (Device) 1.0 %, aten::_foreach_norm 0.5 %" in report


def test_flops_that_are_not_all_are_a_lower_bound() -> None:
    lines = terminal_report(anatomies.llama_on_gpu(), width=99, brief=True).splitlines()
    assert "≥9.74 G" in next(line for line in lines if line.startswith("normalization"))
    assert "≥" not in next(line for line in lines if line.startswith("element-wise"))


def test_top_limits_the_operators() -> None:
    report = terminal_report(anatomies.bert_on_cpu(), width=80, top=2)
    assert "and 15 more" in report
    assert "gelu" not in report
    assert "and " not in terminal_report(anatomies.bert_on_cpu(), width=80, top=99, sections=("operators",))


def test_signatures_of_an_operator_are_one_line() -> None:
    lines = terminal_report(anatomies.bert_on_cpu(), width=120).splitlines()
    addmm = [line for line in lines if line.startswith("aten::addmm")]
    assert len(addmm) == 1
    assert "144  13.0 s  25.2 %" in addmm[0]


def test_the_ceiling_is_a_column_only_where_it_is_known() -> None:
    assert "ceiling\n" in terminal_report(anatomies.llama_on_gpu(), width=80)
    assert "ceiling" not in terminal_report(anatomies.bert_on_cpu(), width=80)


def test_the_paper_is_set_beside_only_where_its_three_classes_are_there() -> None:
    anatomy = anatomies.bert_on_cpu()
    assert "arXiv 2007.00072" in terminal_report(anatomy, width=80)
    rows = tuple(row for row in anatomy.classes if row.operator_class is not OperatorClass.ELEMENTWISE)
    assert "arXiv" not in terminal_report(replace(anatomy, classes=rows), width=80)


def test_flops_of_less_than_half_of_the_time_have_no_shares() -> None:
    """A ResNet of whose convolutions 0.1 % had FLOPs: "contraction 7.27 %" stood beside the paper's 99.80 %."""
    anatomy = anatomies.bert_on_cpu()

    def lost(part: float) -> str:
        rows = tuple(
            replace(row, uncosted_ns=round(part * row.time_ns))
            if row.operator_class is OperatorClass.TENSOR_CONTRACTION
            else row
            for row in anatomy.classes
        )
        return terminal_report(replace(anatomy, classes=rows), width=120)

    shares = next(line for line in lost(0.5).splitlines() if line.startswith("tensor contraction"))
    assert "arXiv 2007.00072" in lost(0.5)
    assert "arXiv 2007.00072" not in lost(0.51)
    few = next(line for line in lost(0.9).splitlines() if line.startswith("tensor contraction"))
    assert re.search(r"≥4\.07 T +99\.7 % +≥17\.1 GB", shares)
    assert not re.search(r"4\.07 T|17\.1 GB", few)
    assert "FLOP share" not in lost(0.9)


def test_the_paper_has_no_optimizer() -> None:
    anatomy = anatomies.bert_on_cpu()
    rows = tuple(row for row in anatomy.classes if row.phase is not Phase.OPTIMIZER)

    def paper(report: str) -> str:
        return report.split("the paper's classes")[1].split("paper: arXiv")[0]

    assert paper(terminal_report(anatomy)) == paper(terminal_report(replace(anatomy, classes=rows)))


def test_rows_without_time_or_bytes_do_not_divide_by_zero() -> None:
    row = ClassRow(
        operator_class=OperatorClass.TENSOR_CONTRACTION, phase=Phase.FORWARD, calls=1, kernels=0, time_ns=0, flops=0,
        read_bytes=0, written_bytes=0, bound_ns=0,
    )  # fmt: skip
    report = terminal_report(replace(anatomies.nothing(), classes=(row,)), width=80)
    assert re.search(r"contraction +1 +0 ns +- +0 +0 B\n", report)


def test_a_step_known_only_in_part() -> None:
    anatomy = anatomies.llama_on_gpu()
    step = replace(anatomy.step, wall_ns=None, unprofiled_wall_ns=None, count=1)
    report = terminal_report(replace(anatomy, step=step), width=100)
    assert "busy 412 ms (85.6 %), idle 69.1 ms (14.4 %)" in report
    assert " plain" not in report
    profiled = replace(anatomy.step, unprofiled_wall_ns=None)
    assert "160 ms profiled, 24.9 samples/s" in terminal_report(replace(anatomy, step=profiled), width=100)
