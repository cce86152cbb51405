"""Bounds, headroom and utilization next to the ceilings of a device, worked by hand."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from opanatomy.analysis.roofline import bound_of, with_roofline
from opanatomy.classification.kernels import compute_type
from opanatomy.records.anatomy import Anatomy, Ceilings, ClassRow, OperatorRow
from opanatomy.records.signature import Argument, Signature, SignatureText, Tensor
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.records.workload import Environment
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
        operator=name, signature=SignatureText(f"{dtype}[4,4]"), phase=phase, operator_class=item, rule="a rule",
        calls=1, time_ns=time_ns, flops=flops, read_bytes=moved, written_bytes=None if moved is None else 0,
        part_of=part_of,
    )  # fmt: skip


def anatomy_of(*rows: OperatorRow, wall_ns: int | None = None) -> Anatomy:
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
    return replace(empty, operators=rows, classes=classes, step=replace(empty.step, wall_ns=wall_ns))


@pytest.mark.parametrize(
    ("flops", "moved", "item", "dtype", "expected"),
    [
        (1000, 10, MM, "bfloat16", (10, "compute")),
        (1000, 40, MM, "bfloat16", (20, "memory")),
        (1000, 10, MM, "float32", (100, "compute")),
        (1000, 10, MM, "tf32", (20, "compute")),
        (1000, 10, ADD, "bfloat16", (200, "compute")),
        (0, 10, ADD, "int64", (5, "memory")),
        (0, 10, OperatorClass.DATA_MOVEMENT, None, (5, "memory")),
        (1000, 10, MM, "float8_e4m3fn", None),
        (1000, 10, MM, None, None),
        (0, 10, OperatorClass.COMMUNICATION, "float32", None),
    ],
)
def test_the_bound(
    flops: int, moved: int, item: OperatorClass, dtype: str | None, expected: tuple[int, str] | None
) -> None:
    found = bound_of(flops, moved, item, dtype, CEILINGS)
    assert (found and (found.ns, found.by)) == expected


@pytest.mark.parametrize(
    ("arguments", "dtype"),
    [
        ((Tensor((8, 512), "int64"), (Tensor((8, 4), "bfloat16"),), Tensor((2,), "float32")), "bfloat16"),
        ((Tensor((8, 512), "int8"), Tensor((8, 4), "int8")), "int8"),
        ((Tensor((8,), "bool"), Tensor((8,), "qint8"), Tensor((8,), "uint8")), "uint8"),
        ((Tensor((8, 512), "float8_e4m3fn"), Tensor((), "float32")), "float8_e4m3fn"),
        ((Tensor((8, 512)), Tensor((8,), "complex64")), "complex64"),
        (((1, 2), None, 1e-05, "float32[2]"), None),
    ],
)
def test_the_data_type_is_that_of_the_first_tensor_with_a_fraction(
    arguments: tuple[Argument, ...], dtype: str | None
) -> None:
    assert Signature(arguments).compute_dtype == dtype


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
        (10, 0.1, 0.75, "reached    MFU ≥ 10.0 %, HFU ≥ 10.0 % of the bfloat16 peak; FLOPs known for"),
        (30, 0.1, 0.5, "reached    MFU ≥ 10.0 %, HFU ≥ 10.0 % of the bfloat16 peak; FLOPs known for"),
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


@pytest.mark.parametrize(("lost_ns", "cell"), [(0, "66.7 %"), (10, "66.7 % (60 %)"), (15, "66.7 % (50 %)"), (16, "-")])
@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_share_of_the_ceiling_stands_beside_what_it_covers(lost_ns: int, cell: str, width: int) -> None:
    """It was that of the calls with a bound, however few: 79.9 % of what 3 % of the time reached."""
    anatomy = anatomy_of(operator("aten::mm", MM, 15, 1000, 10), operator("aten::bmm", MM, lost_ns, None, None))
    page = terminal_report(with_roofline(anatomy, CEILINGS), width=width, sections=("bounds",))
    lines = page.splitlines()
    assert all(len(line) <= width for line in lines)
    rows = lines[next(at for at, line in enumerate(lines) if line.startswith("roofline")) :]
    assert f" {cell} " in next(line for line in rows if "contraction" in line)
    assert f" {cell} " in next(line for line in rows if line.startswith("total"))
    assert any("(n %): reached in n %" in " ".join(lines[at : at + 2]) for at in range(len(lines))) is ("(" in cell)
    ((share, _),) = [(row.bound_ns, row.bounded_ns) for row in with_roofline(anatomy, CEILINGS).classes]
    assert share == 10


def test_calls_without_a_cost_are_not_held_against_the_bound_of_the_others() -> None:
    """One row is all calls of a signature: 30 ns, of which 10 have no cost, were held against the bound of 20."""
    row = replace(operator("aten::mm", MM, 30, 2000, 10), uncosted_ns=10)
    found = with_roofline(anatomy_of(row), CEILINGS)
    assert (found.operators[0].bound_ns, found.operators[0].bounded_ns) == (20, 20)
    assert (found.classes[0].bounded_ns, found.classes[0].headroom_ns) == (20, 0)


@pytest.mark.parametrize(
    ("compute_type", "bound", "name"), [("tf32", 20, "tf32"), ("3 x tf32", 60, "3 x tf32"), ("float32", 100, "float32")]
)
def test_float32_products_go_by_what_they_were_computed_in(compute_type: str, bound: int, name: str) -> None:
    row = replace(operator("aten::mm", MM, 30, 1000, 10, dtype="float32"), compute_type=compute_type)
    found = with_roofline(anatomy_of(row, wall_ns=100), CEILINGS)
    assert (found.operators[0].bound_ns, found.device.mfu_dtype, found.device.unsure_ns) == (bound, name, 0)
    assert found.device.mfu == pytest.approx(bound / 100)


IEEE_TF32 = {"matmul_float32": "ieee", "convolution_float32": "tf32"}
TF32_IEEE = {"matmul_float32": "tf32", "convolution_float32": "ieee"}


@pytest.mark.parametrize(
    ("operator_name", "environment", "bound"),
    [
        ("aten::mm", {"device_kind": "cuda"}, None),
        ("aten::mm", {"device_kind": "cuda", **IEEE_TF32}, 100),
        ("aten::mm", {"device_kind": "cuda", **TF32_IEEE}, 20),
        ("aten::cudnn_convolution", {"device_kind": "cuda", **IEEE_TF32}, 20),
        ("aten::convolution_backward", {"device_kind": "cuda", **TF32_IEEE}, 100),
        ("aten::mm", {"device_kind": "rocm"}, 100),
        ("aten::mm", {"device_kind": "rocm", **TF32_IEEE}, 20),
        ("aten::miopen_convolution", {"device_kind": "rocm", **IEEE_TF32}, 100),
        ("aten::mm", {"device_kind": "cpu"}, 100),
    ],
)
def test_where_no_name_tells_the_setting_does_or_nobody(
    operator_name: str, environment: dict[str, str], bound: int | None
) -> None:
    """Without a telling name float32 was assumed: a product in tf32 was 5 times faster than possible."""
    row = operator(operator_name, MM, 30, 1000, 10, dtype="float32")
    anatomy = anatomy_of(row, wall_ns=100)
    anatomy = replace(anatomy, environment=replace(Environment(), **environment))
    found = with_roofline(anatomy, CEILINGS)
    assert found.operators[0].bound_ns == bound
    assert found.device.unsure_ns == (30 if bound is None else 0)
    assert (found.device.mfu is None) is (bound is None)
    text = terminal_report(found, width=120)
    assert ("30 ns of products may be float32 or tf32 and have no bound" in " ".join(text.split())) is (bound is None)


def test_a_device_without_tf32_leaves_nothing_open() -> None:
    row = replace(operator("aten::mm", MM, 30, 1000, 10, dtype="float32"), compute_type=None)
    ceilings = replace(CEILINGS, matrix_flops_per_second={"float32": 10e9})
    assert with_roofline(anatomy_of(row, wall_ns=100), ceilings).operators[0].bound_ns == 100


@pytest.mark.parametrize(
    ("kernel", "found"),
    [
        ("ampere_sgemm_128x64_nn", "float32"),
        ("volta_sgemm_128x32_nt", "float32"),
        ("void sgemm_largek_lds64<true, true, 6, 3, 4, 5, 2, 66>(float*, float const*, float const*, int)", "float32"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(Params)", "float32"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4", "float32"),
        ("void gemmSN_NN_kernel<float, 256, 4, 2, 8, 4, 4, false, cublasGemvTensorStridedBatched<float>>", "float32"),
        ("void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int)", "float32"),
        ("void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1, false, true, true>(int)", "float32"),
        ("ampere_scudnn_128x64_relu_medium_nn_v1", "float32"),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x64_32x6_nt_align1>(Params)", "tf32"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x64x16_stage6_warpsize2x2x1_tensor16x8x8", "tf32"),
        ("sm90_xmma_gemm_f32f32_tf32f32_f32_nt_n_tilesize256x128x32", "tf32"),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16", "tf32"),
        ("nvjet_sss_tf32_128x256_TNT", "tf32"),
        ("cutlass_tensorop_s1688tf32gemm_256x128_16x3_nn_align4", "tf32"),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel::Params)", "3 x tf32"),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm75(PyTorchMemEffAttention::AttentionKernel::Params)", None),
        ("Cijk_Ailk_Bljk_S_B_Bias_HA_S_SAV_UserArgs_MT16x16x128_MI16x16x1_SN_LDSB1", "float32"),
        ("Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1_SN_LDSB0", "float32"),
        ("Cijk_Alik_Bjlk_S_MX_B_Bias_AS_SAV_UserArgs_MT192x16x64_MI16x16x1_SN_LDSB1", "tf32"),
        ("igemm_fwd_gtcx3_nhwc_fp32_bx0_ex0_bt128x128x16", "float32"),
        ("_ZN2ck16tensor_operation6device39kernel_grouped_conv_fwd_xdl_cshuffle_v3I", None),
        ("triton_tem_fused_mm_3", None),
        ("nvjet_sm100_sss_128x256_TNT", None),
        # a product of bfloat16 or float16 below an operator of float32
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTN", None),
        ("nvjet_sm90_hsh_192x208_64x4_2x1_v_bz_coopB_bias_TNT", None),
        ("void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, 128, 16, 4>", None),
        ("cublas_bf16x9_gemm", None),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_nn", None),
        ("turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_nn", None),
        ("void splitKreduce_kernel<32, 16, int, float>(Params)", None),
        ("Memset (Device)", None),
    ],
)  # fmt: skip
def test_what_names_say_of_float32_products(kernel: str, found: str | None) -> None:
    assert compute_type(kernel) == found


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
