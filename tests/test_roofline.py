"""Bounds, headroom and utilization beside the ceilings of a device, worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from opanatomy.anatomy.roofline import bound_of, compute_dtype, with_roofline
from opanatomy.model import Anatomy, Ceilings, ClassRow, KernelRow, OperatorClass, OperatorRow, Phase
from opanatomy.report import terminal_report
from tests import anatomies

#: 100 FLOP a ns on matrices of bfloat16, 10 of float32, 50 of it as tf32; 5 otherwise; 2 bytes a ns.
CEILINGS = Ceilings(
    device="made up", source="a test",
    matrix_flops_per_second={"bfloat16": 100e9, "float32": 10e9, "tf32": 50e9},
    vector_flops_per_second={"float32": 5e9}, bandwidth_bytes_per_second=2e9,
)  # fmt: skip
MM = OperatorClass.TENSOR_CONTRACTION
ADD = OperatorClass.ELEMENTWISE


def operator(
    name: str, item: OperatorClass, time_ns: int, flops: int | None, moved: int | None, dtype: str = "bfloat16",
    phase: Phase = Phase.FORWARD, part_of: str | None = None,
) -> OperatorRow:  # fmt: skip
    return OperatorRow(
        operator=name, signature=f"{dtype}[4,4]", phase=phase, operator_class=item, rule="a rule", calls=1,
        time_ns=time_ns, flops=flops, read_bytes=moved, written_bytes=None if moved is None else 0, part_of=part_of,
    )  # fmt: skip


def anatomy_of(*rows: OperatorRow, wall_ns: int | None = None, kernels: tuple[KernelRow, ...] = ()) -> Anatomy:
    empty = anatomies.nothing()
    classes = tuple(
        ClassRow(
            operator_class=item, phase=phase, calls=1, kernels=1, time_ns=sum(row.time_ns for row in members),
            flops=1, read_bytes=1, written_bytes=1,
            uncosted_ns=sum(row.time_ns for row in members if row.flops is None),
        )
        for item, phase in dict.fromkeys((row.operator_class, row.phase) for row in rows)
        for members in [[row for row in rows if (row.operator_class, row.phase) == (item, phase)]]
    )  # fmt: skip
    return replace(empty, operators=rows, classes=classes, kernels=kernels, step=replace(empty.step, wall_ns=wall_ns))


@pytest.mark.parametrize(
    ("flops", "moved", "item", "dtype", "tf32", "expected"),
    [
        (1000, 10, MM, "bfloat16", False, (10, "compute")),
        (1000, 40, MM, "bfloat16", False, (20, "memory")),
        (1000, 10, MM, "float32", False, (100, "compute")),
        (1000, 10, MM, "float32", True, (20, "compute")),
        (1000, 10, ADD, "bfloat16", False, (200, "compute")),
        (0, 10, ADD, "int64", False, (5, "memory")),
        (0, 10, OperatorClass.DATA_MOVEMENT, None, False, (5, "memory")),
        (1000, 10, MM, "float8_e4m3fn", False, None),
        (1000, 10, MM, None, False, None),
        (0, 10, OperatorClass.COMMUNICATION, "float32", False, None),
    ],
)
def test_the_bound(
    flops: int, moved: int, item: OperatorClass, dtype: str | None, tf32: bool, expected: tuple[int, str] | None
) -> None:
    found = bound_of(flops, moved, item, dtype, CEILINGS, tf32=tf32)
    assert (found and (found.ns, found.by)) == expected


def test_the_data_type_is_that_of_the_first_tensor_with_a_fraction() -> None:
    assert compute_dtype("int64[8,512], bfloat16[8,4], float32[2]") == "bfloat16"
    assert compute_dtype("int8[8,512], int8[8,4]") == "int8"
    assert compute_dtype("[1, 2], -, 1e-05") is None
    assert compute_dtype("float8_e4m3fn[8,512], float32[]") == "float8_e4m3fn"


def test_classes_sum_and_caches_give_nothing_back() -> None:
    found = with_roofline(
        anatomy_of(
            operator("aten::mm", MM, 30, 1000, 10),
            operator("aten::bmm", MM, 4, 1000, 10),  # faster than its bound of 10
            operator("aten::lost", MM, 7, None, None),
            operator("aten::add", ADD, 9, 10, 10),
        ),
        CEILINGS,
    )
    products, maps = found.classes
    assert (products.bound_ns, products.bounded_ns, products.headroom_ns, products.memory_bound_ns) == (20, 34, 20, 0)
    assert (maps.bound_ns, maps.headroom_ns, maps.memory_bound_ns) == (5, 4, 5)
    assert [row.bound_by for row in found.operators] == ["compute", "compute", None, "memory"]


def test_a_part_is_held_against_the_bound_of_its_call() -> None:
    found = with_roofline(
        anatomy_of(
            operator("aten::addmm", MM, 0, 1000, 10),
            operator("aten::mm", MM, 12, 0, 0, part_of="aten::addmm"),
        ),
        CEILINGS,
    )
    assert found.classes[0].headroom_ns == 2
    assert [row.bound_ns for row in found.operators] == [10, 0]


def test_utilization_leaves_recompute_to_hfu() -> None:
    rows = (operator("aten::mm", MM, 30, 1000, 10), operator("aten::mm", MM, 30, 500, 10, phase=Phase.RECOMPUTE))
    device = with_roofline(anatomy_of(*rows, wall_ns=100), CEILINGS).device
    assert (device.mfu, device.hfu, device.mfu_dtype) == (0.10, 0.15, "bfloat16")
    assert with_roofline(anatomy_of(*rows), CEILINGS).device.mfu is None


@pytest.mark.parametrize(
    ("lost_ns", "mfu", "covered", "line"),
    [
        (0, 0.1, 1.0, "reached    MFU 10.0 %, HFU 10.0 % of the bfloat16 peak"),
        (10, 0.1, 0.75, "reached    MFU ≥ 10.0 %, HFU ≥ 10.0 % of the bfloat16 peak, over 75.0 % of the"),
        (30, 0.1, 0.5, "reached    MFU ≥ 10.0 %, HFU ≥ 10.0 % of the bfloat16 peak, over 50.0 % of the"),
        (31, None, 30 / 61, "reached    no MFU: FLOPs are known of 49.2 % of the contractions' time"),
        (1470, None, 0.02, "reached    no MFU: FLOPs are known of 2.0 % of the contractions' time"),
    ],
)
def test_mfu_stands_beside_what_it_covers_and_not_below_half(
    lost_ns: int, mfu: float | None, covered: float, line: str
) -> None:
    """One contraction without a cost hid the MFU of all; kernels without an operator hid nothing (0.1 % of 3.1 %)."""
    lost = operator("aten::bmm", MM, lost_ns, None, None)
    anatomy = anatomy_of(operator("aten::mm", MM, 30, 1000, 10), lost, wall_ns=100)
    for told in (anatomy, replace(anatomy, operators=anatomy.operators[:1])):
        found = with_roofline(told, CEILINGS)
        assert (found.device.mfu, found.device.hfu, found.device.mfu_covered) == (mfu, mfu, covered)
        assert line in terminal_report(found, width=80)


def test_what_no_rule_knows_may_be_a_contraction() -> None:
    unknown = operator("mine::op", OperatorClass.UNKNOWN, 30, None, None)
    device = with_roofline(anatomy_of(operator("aten::mm", MM, 20, 1000, 10), unknown, wall_ns=100), CEILINGS).device
    assert (device.mfu, device.mfu_covered) == (None, 0.4)


@pytest.mark.parametrize(
    ("lost_ns", "cell"), [(0, "66.7 %"), (10, "66.7 % (60 %)"), (15, "66.7 % (50 %)"), (16, "- (48 %)")]
)
@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_share_of_the_ceiling_stands_beside_what_it_covers(lost_ns: int, cell: str, width: int) -> None:
    """It was that of the calls with a bound, however few: 79.9 % of what 3 % of the time reached."""
    anatomy = anatomy_of(operator("aten::mm", MM, 15, 1000, 10), operator("aten::bmm", MM, lost_ns, None, None))
    lines = terminal_report(with_roofline(anatomy, CEILINGS), width=width).splitlines()
    assert all(len(line) <= width for line in lines)
    rows = lines[next(at for at, line in enumerate(lines) if line.startswith("roofline")) :]
    assert f" {cell} " in next(line for line in rows if "contraction" in line)
    assert f" {cell} " in next(line for line in rows if line.startswith("total"))
    assert any("(n %): the part" in " ".join(lines[at : at + 2]) for at in range(len(lines))) is bool(lost_ns)
    ((share, _),) = [(row.bound_ns, row.bounded_ns) for row in with_roofline(anatomy, CEILINGS).classes]
    assert share == 10


def test_calls_without_a_cost_are_not_held_against_the_bound_of_the_others() -> None:
    """One row is all calls of a signature: 30 ns, of which 10 have no cost, were held against the bound of 20."""
    row = replace(operator("aten::mm", MM, 30, 2000, 10), uncosted_ns=10)
    found = with_roofline(anatomy_of(row), CEILINGS)
    assert (found.operators[0].bound_ns, found.operators[0].bounded_ns) == (20, 20)
    assert (found.classes[0].bounded_ns, found.classes[0].headroom_ns) == (20, 0)


def test_float32_products_on_tensor_cores_are_tf32() -> None:
    kernel = KernelRow(
        kernel="ampere_sgemm_s1688gemm_128x128_tn", operator_class=MM, rule="r", count=1, time_ns=30,
        operators=("aten::mm",),
    )  # fmt: skip
    row = operator("aten::mm", MM, 30, 1000, 10, dtype="float32")
    found = with_roofline(anatomy_of(row, wall_ns=100, kernels=(kernel,)), CEILINGS)
    assert (found.operators[0].bound_ns, found.device.mfu_dtype, found.device.mfu) == (20, "tf32", 0.2)
    plain = with_roofline(anatomy_of(row, wall_ns=100), CEILINGS)
    assert (plain.operators[0].bound_ns, plain.device.mfu_dtype, plain.device.mfu) == (100, "float32", 1.0)


def test_ceilings_can_be_changed_later() -> None:
    before = with_roofline(anatomy_of(operator("aten::mm", MM, 30, 1000, 10), wall_ns=100), CEILINGS)
    again = with_roofline(before, replace(CEILINGS, matrix_flops_per_second={}))
    assert again.operators[0].bound_ns is None
    assert again.classes[0].headroom_ns is None
    assert again.device.mfu is None


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_table_says_what_bounds(width: int) -> None:
    rows = (operator("aten::mm", MM, 30, 1000, 10), operator("aten::add", ADD, 9, 10, 10))
    text = terminal_report(with_roofline(anatomy_of(*rows, wall_ns=100), CEILINGS), width=width)
    assert "headroom" in text
    line = next(line for line in text.splitlines() if "mm forward" in line)
    assert "33.3 %" in line
    assert "20 ns" in line or "20.0 ns" in line
    assert all(len(line) <= width for line in text.splitlines())


def test_no_ceilings_no_columns() -> None:
    anatomy = anatomy_of(operator("aten::mm", MM, 30, 1000, 10), wall_ns=100)
    told = replace(anatomy, device=replace(anatomy.device, no_ceilings="no ceilings: Sunway is not in the table - run"))
    text = terminal_report(told, width=80)
    assert "headroom" not in text
    assert "Sunway is not in the table" in text
