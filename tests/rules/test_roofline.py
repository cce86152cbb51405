"""Bounds, headroom and utilization next to the ceilings of a device, and what is above its ceiling: worked by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import opanatomy
from opanatomy.__main__ import main
from opanatomy.analysis.roofline import with_roofline
from opanatomy.checks.counts import require_agreement
from opanatomy.classification.kernels import compute_type, uses_tensor_cores
from opanatomy.devices.overrides import parse_overrides
from opanatomy.errors import GateError
from opanatomy.records.anatomy import Anatomy, Ceilings, Check
from opanatomy.records.signature import SignatureText
from opanatomy.records.taxonomy import ExcessCause, OperatorClass, Phase
from opanatomy.records.work import ClassRow, OperatorRow, ratios_of
from opanatomy.records.workload import Environment
from opanatomy.report import terminal_report
from tests.support import anatomies
from tests.support.made_trace import TraceBuilder, on_gpu, page
from tests.support.paths import SHARED

#: 100 FLOP a ns on matrices of bfloat16, 10 of float32, 50 of it as tf32; 5 otherwise; 2 bytes a ns.
CEILINGS = Ceilings(
    device="made up",
    source="a test",
    matrix_flops_per_second={"bfloat16": 100e9, "float32": 10e9, "tf32": 50e9},
    vector_flops_per_second={"float32": 5e9},
    bandwidth_bytes_per_second=2e9,
)
#: The same with a last cache of 600 bytes.
CACHED = replace(CEILINGS, cache_bytes=600)
MM, ADD, MOVE = OperatorClass.TENSOR_CONTRACTION, OperatorClass.ELEMENTWISE, OperatorClass.DATA_MOVEMENT


def operator(
    name: str,
    item: OperatorClass,
    time_ns: int,
    flops: int | None,
    moved: int | None,
    *,
    dtype: str = "bfloat16",
    phase: Phase = Phase.FORWARD,
    signature: str = "",
    **fields: Any,
) -> OperatorRow:
    written = fields.pop("written_bytes", None if moved is None else 0)
    return OperatorRow(
        operator=name,
        signature=SignatureText(signature or f"{dtype}[4,4]"),
        phase=phase,
        operator_class=item,
        rule="a rule",
        calls=fields.pop("calls", 1),
        time_ns=time_ns,
        flops=flops,
        read_bytes=moved,
        written_bytes=written,
        **fields,
    )


def product(time_ns: int = 30, flops: int | None = 1000, moved: int | None = 10, **fields: Any) -> OperatorRow:
    return operator(fields.pop("name", "aten::mm"), MM, time_ns, flops, moved, **fields)


def anatomy_of(*rows: OperatorRow, wall_ns: int | None = None) -> Anatomy:
    empty = anatomies.nothing()
    classes = tuple(
        class_row(
            item,
            phase,
            sum(row.time_ns for row in members),
            1,
            1,
            uncosted_ns=sum(row.time_ns for row in members if row.flops is None),
        )
        for item, phase in dict.fromkeys((row.operator_class, row.phase) for row in rows)
        for members in [[row for row in rows if (row.operator_class, row.phase) == (item, phase)]]
    )
    return anatomies.with_tables(
        replace(empty, step=replace(empty.step, wall_ns=wall_ns)), operators=rows, classes=classes
    )


def class_row(
    item: OperatorClass, phase: Phase, time_ns: int, flops: int | None, moved: int | None = 0, *, uncosted_ns: int = 0
) -> ClassRow:
    return ClassRow(
        operator_class=item,
        phase=phase,
        calls=1,
        kernels=1,
        time_ns=time_ns,
        flops=flops,
        read_bytes=moved,
        written_bytes=None if moved is None else 0,
        uncosted_ns=uncosted_ns,
    )


def bounded(*rows: OperatorRow, wall_ns: int | None = 100, ceilings: Ceilings = CEILINGS) -> Anatomy:
    return with_roofline(anatomy_of(*rows, wall_ns=wall_ns), ceilings)


# -------------------------------------------------------------------------------------------------- bounds of operators


@pytest.mark.parametrize(
    ("item", "flops", "moved", "dtype", "expected"),
    [
        (MM, 1000, 10, "bfloat16", (10, "compute")),
        (MM, 1000, 40, "bfloat16", (20, "memory")),
        (MM, 1000, 10, "float64", (None, None)),
        (ADD, 1000, 10, "bfloat16", (200, "compute")),
        (ADD, 0, 10, "int64", (5, "memory")),
        (MOVE, 0, 10, "float32", (5, "memory")),
        (MM, 1000, 10, "float8_e4m3fn", (None, None)),
        (OperatorClass.COMMUNICATION, 0, 10, "float32", (None, None)),
        (MM, None, None, "bfloat16", (None, None)),
    ],
)
def test_the_bound(
    item: OperatorClass, flops: int | None, moved: int | None, dtype: str, expected: tuple[int | None, str | None]
) -> None:
    (row,) = bounded(operator("aten::mm", item, 30, flops, moved, dtype=dtype)).operators
    assert (row.bound_ns, row.bound_by) == expected


@pytest.mark.parametrize(
    ("signature", "bound"),
    [
        ("int64[8,512], [bfloat16[8,4]], float32[2]", 10),  # the first tensor with a fraction
        ("float32[2], bfloat16[8,4]", None),
        ("int8[8,512], int8[8,4]", None),
        ("1, 2, -, float32[2]", None),
    ],
)
def test_the_data_type_is_that_of_the_first_tensor_with_a_fraction(signature: str, bound: int | None) -> None:
    assert bounded(product(signature=signature)).operators[0].bound_ns == bound


def test_classes_sum_and_caches_give_nothing_back() -> None:
    found = bounded(
        product(),
        product(4, name="aten::bmm"),  # the second is faster than its bound of 10
        product(7, None, None, name="aten::lost"),
        operator("aten::add", ADD, 9, 10, 10),
    )
    products, maps = found.classes
    assert (products.bound_ns, products.bounded_ns, products.headroom_ns, products.memory_bound_ns) == (20, 34, 20, 0)
    assert (maps.bound_ns, maps.headroom_ns, maps.memory_bound_ns) == (5, 4, 5)
    assert [row.bound_by for row in found.operators] == ["compute", "memory", None, "compute"]  # the longest first
    assert [row.bounded_ns for row in found.operators] == [30, 9, 0, 4]
    for width in (60, 80, 120):
        text = terminal_report(found, width=width)
        assert "headroom" in text
        assert "33.3 %" in next(line for line in text.splitlines() if "mm forward" in line)
    # Other ceilings can be given later; without any there are no columns.
    again = with_roofline(found, replace(CEILINGS, matrix_flops_per_second={}))
    assert (again.operators[0].bound_ns, again.classes[0].headroom_ns, again.device.mfu) == (None, None, None)
    none = anatomy_of(product())
    none = replace(none, device=replace(none.device, no_ceilings="Sunway is unknown - run"))
    assert "Sunway is unknown" in page(none)
    assert "headroom" not in page(none)


def test_a_part_is_held_against_the_bound_of_its_call() -> None:
    found = bounded(product(0, name="aten::addmm"), product(12, 0, 0, part_of="aten::addmm"), ceilings=CACHED)
    assert (found.classes[0].headroom_ns, [row.bound_ns for row in found.operators]) == (2, [0, 10])
    assert (found.checks[0].compared, found.checks[0].equal) == (2, 2)


def test_calls_without_a_cost_are_not_held_against_the_bound_of_the_others() -> None:
    """One row is all calls of a signature: 30 ns, of which 10 have no cost, were held against the bound of 20."""
    found = bounded(product(30, 2000, uncosted_ns=10))
    assert (found.operators[0].bound_ns, found.operators[0].bounded_ns) == (20, 20)
    assert (found.classes[0].bounded_ns, found.classes[0].headroom_ns) == (20, 0)


@pytest.mark.parametrize(("lost_ns", "cell"), [(0, "66.7 %"), (10, "66.7 % (60 %)"), (15, "66.7 % (50 %)"), (16, "-")])
@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_share_of_the_ceiling_stands_beside_what_it_covers(lost_ns: int, cell: str, width: int) -> None:
    """It was that of the calls with a bound, however few: 79.9 % of what 3 % of the time reached."""
    anatomy = bounded(product(15), product(lost_ns, None, None, name="aten::bmm"))
    lines = terminal_report(anatomy, width=width, sections=("bounds",)).splitlines()
    assert all(len(line) <= width for line in lines)
    rows = lines[next(at for at, line in enumerate(lines) if line.startswith("roofline")) :]
    for name in ("contraction", "total"):
        assert f" {cell} " in next(line for line in rows if name in line)
    assert ("(n %): the bound is known for n %" in " ".join(lines)) is ("(" in cell)


# ------------------------------------------------------------------------------------------------- utilization, ratios


def test_utilization_leaves_recompute_to_hfu() -> None:
    rows = (product(), product(30, 500, phase=Phase.RECOMPUTE))
    device = bounded(*rows).device
    assert (device.mfu, device.hfu, device.mfu_dtype) == (0.10, 0.15, "bfloat16")
    assert bounded(*rows, wall_ns=None).device.mfu is None


@pytest.mark.parametrize(
    ("lost", "mfu", "covered", "line"),
    [
        (product(0, None, None), 0.1, 1.0, "reached MFU 10.0 %, HFU 10.0 % (bfloat16 peak)"),
        (
            product(10, None, None),
            0.1,
            0.75,
            "reached MFU ≥ 10.0 %, HFU ≥ 10.0 % (bfloat16 peak); FLOPs known for",
        ),
        (product(30, None, None), 0.1, 0.5, "reached MFU ≥ 10.0 %, HFU ≥ 10.0 % (bfloat16 peak); FLOPs known for"),
        (
            product(31, None, None),
            None,
            30 / 61,
            "reached no MFU: FLOPs are known for only 49.2 % of the contraction time",
        ),
        # What no rule knows may be a contraction.
        (
            operator("mine::op", OperatorClass.UNKNOWN, 45, None, None),
            None,
            0.4,
            "reached no MFU: FLOPs are known for only",
        ),
    ],
)
def test_mfu_stands_beside_what_it_covers_and_not_below_half(
    lost: OperatorRow, mfu: float | None, covered: float, line: str
) -> None:
    """One contraction without a cost hid the MFU of all; kernels without an operator hid nothing (0.1 % of 3.1 %)."""
    anatomy = anatomy_of(product(), lost, wall_ns=100)
    for told in (anatomy, anatomies.with_tables(anatomy, operators=anatomy.operators[:1])):
        found = with_roofline(told, CEILINGS)
        assert (found.device.mfu, found.device.hfu, found.device.mfu_covered) == (mfu, mfu, covered)
        assert line in page(found, width=80)


@pytest.mark.parametrize(
    ("rows", "time", "ratio"),
    [
        ([(10, 100, 40, 0), (25, 200, 100, 0), (10, 100, 20, 0)], 3.5, 3.0),
        *(
            ([(10, 100, 40, 0) if index != lost else (10, flops, flops, 1) for index in range(3)], 2.0, None)
            for lost in range(3)
            for flops in (None, 100)
        ),
        # Next to nothing in forward: 2,106,704,465 was printed of one trace, whose forward was one addition.
        *(
            ([(10, forward, forward, 0), (10, backward, backward, 0), (0, 0, 0, 0)], 1.0, expected)
            for forward, backward, expected in [(1, 101, None), (1, 100, 100.0), (0, 5, None), (1000, 1, 0.001)]
        ),
        ([(1, 1, 1, 0), (101, 1, 1, 0), (0, 0, 0, 0)], None, 1.0),
    ],
)
def test_backward_over_forward(rows: list[tuple[int, int | None, int | None, int]], time: float, ratio: float) -> None:
    """Of a class with recomputation, and none where a part is unknown; what others do not know is no part of it."""
    phases = (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE)
    known = [
        class_row(MM, phase, row[0], row[1], row[2], uncosted_ns=row[3])
        for phase, row in zip(phases, rows, strict=True)
    ]
    others = [
        class_row(MM, Phase.OPTIMIZER, 5, None, uncosted_ns=5),
        class_row(ADD, Phase.FORWARD, 5, None, uncosted_ns=5),
    ]
    found, _ = (*ratios_of((*known, *others), ()), None)[:2]
    assert found is not None
    assert (found.operator_class, found.time, found.flops, found.bytes) == (MM, time, ratio, ratio)


def test_the_report_says_why_there_is_no_ratio() -> None:
    why = "-: some work has no cost formula, or forward is less than 1 % of backward"
    for flops, said in ((2, False), (None, True)):
        classes = (class_row(MM, Phase.FORWARD, 1, 1, 1), class_row(MM, Phase.BACKWARD, 2, flops, 2))
        assert (why in page(anatomies.with_tables(anatomies.nothing(), classes=classes), width=80)) is said


# ----------------------------------------------------------------------------------------------- products of float32


@pytest.mark.parametrize(("compute", "bound"), [("tf32", 20), ("3 x tf32", 60), ("float32", 100)])
def test_float32_products_go_by_what_they_were_computed_in(compute: str, bound: int) -> None:
    found = bounded(product(dtype="float32", compute_type=compute))
    assert (found.operators[0].bound_ns, found.device.mfu_dtype, found.device.unsure_ns) == (bound, compute, 0)
    assert found.device.mfu == pytest.approx(bound / 100)


IEEE_TF32 = {"matmul_float32": "ieee", "convolution_float32": "tf32"}
TF32_IEEE = {"matmul_float32": "tf32", "convolution_float32": "ieee"}


@pytest.mark.parametrize(
    ("name", "environment", "bound"),
    [
        ("mm", {"device_kind": "cuda"}, None),
        ("mm", {"device_kind": "cuda", **IEEE_TF32}, 100),
        ("mm", {"device_kind": "cuda", **TF32_IEEE}, 20),
        ("mm", {"device_kind": "cpu"}, 100),
        ("cudnn_convolution", {"device_kind": "cuda", **IEEE_TF32}, 20),
        ("convolution_backward", {"device_kind": "cuda", **TF32_IEEE}, 100),
        ("mm", {"device_kind": "rocm"}, 100),
        ("mm", {"device_kind": "rocm", **TF32_IEEE}, 20),
        ("miopen_convolution", {"device_kind": "rocm", **IEEE_TF32}, 100),
    ],
)
def test_where_no_name_tells_the_setting_does_or_nobody(
    name: str, environment: dict[str, str], bound: int | None
) -> None:
    """Without a telling name float32 was assumed: a product in tf32 was 5 times faster than possible."""
    anatomy = anatomy_of(product(name=f"aten::{name}", dtype="float32"), wall_ns=100)
    anatomy = replace(anatomy, environment=replace(Environment(), **environment))
    found = with_roofline(anatomy, CEILINGS)
    assert (found.operators[0].bound_ns, found.device.unsure_ns) == (bound, 30 if bound is None else 0)
    assert (found.device.mfu is None) is (bound is None)
    assert ("30 ns of matmuls may be float32 or tf32, so these matmuls have no bound" in page(found)) is (bound is None)
    without = replace(CEILINGS, matrix_flops_per_second={"float32": 10e9})  # a device without tf32
    assert bound is not None or with_roofline(anatomy, without).operators[0].bound_ns == 100


#: Whether the kernel runs on tensor cores and in what it computes a product of float32; `?` if the name does not tell.
KERNELS = """
yes .         volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn
yes .         turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn
yes ?         ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_nn
yes .         void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x4_nn_align4>(Params)
yes .         void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8>(Params)
no  float32   void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(Params)
yes .         sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_kernel
no  .         sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4
yes .         sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tensor16x8x8_execute_kernel
yes .         nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT
yes .         void cutlass::device_kernel<cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32>(Params)
yes .         void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4> >(Flash_fwd_params)
yes .         void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128> >(Params)
no  .         void flash_bwd_dot_do_o_kernel<true, Flash_bwd_kernel_traits<128> >(Flash_bwd_params)
no  .         void flash::flash_fwd_splitkv_combine_kernel<...>(Flash_fwd_params)
yes .         fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel::Params)
no  .         fmha_cutlassF_f32_aligned_64x64_rf_sm70(PyTorchMemEffAttention::AttentionKernel::Params)
yes .         cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64
yes .         Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN_LDSB1
no  .         Cijk_Ailk_Bljk_SB_MT64x64x8_SE_K1
yes .         igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x64x32_wt32x32x8_ws1x1
yes ?         _ZN2ck16tensor_operation6device39kernel_grouped_conv_fwd_xdl_cshuffle_v3I
yes .         attn_fwd
yes ?         triton_tem_fused_mm_3
no  .         void splitKreduce_kernel<32, 16, int, __nv_bfloat16>(Params)
no  .         ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)
no  .         volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1
no  .         ampere_fp16_sgemm_fp16_128x64_tn
no  .         void gemv2T_kernel_val<int, int, __half, __half, __half, float, 128, 16, 4, 4, false>(Params)
no  .         void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int)
no  .         void precomputed_convolve_sgemm<__nv_bfloat16, 512, 6, 7, 4, 3, 5, 1, false>(int)
no  .         triton_per_fused_mm_mul_30
no  .         void fbgemm_gpu::_compute_FP8_quantize_cuda_kernel<float>(float const*, int)
yes .         void dpsk::gemm::fp8::GemmKernel<dpsk::gemm::Traits<int> >(int)
yes .         void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, 2112u, 7168u>(float*)
no  .         void deep_gemm::transpose_fp32<512u, 64u, 56u>(float const*, float*, unsigned int)
yes .         bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x64x256_s3_et128x64_m128x64x32_cga1x1x1_TN_dynBatch_sm100f
yes .         fmhaSm100aKernel_QkvE4m3OBfloat16H128PagedKvCausalP32VarSeqQ128Kv128PersistentContext
yes .         kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100_object_at__0
no  .         kernel_cutlass_kernel_flash_attncuteflash_bwd_preprocessFlashAttentionBackwardPreprocess_object_at_
yes .         void marlin::Marlin<__half, 256, 1, 8, 8, 4, 8>(int4 const*)
yes .         _w8a8_block_fp8_matmul
yes .         _ZN5aiter36fmoe_bf16_blockscaleFp8_g1u1_vs_silu_1tg_32x256E
no  .         Cijk_SS_BiasS_HAS_ScaleAlphaVec_PostGSU8_VW4
?   .         Cijk_Ailk_Bljk_BBS_BH_UserArgs_shortname0_gfx942
?   .         void wvSplitK_hf_sml_<__hip_bfloat16, 64, 2, 16, 8, 2, 1>(int)
?   .         my_own_gemm
.   float32   ampere_sgemm_128x64_nn
.   float32   void sgemm_largek_lds64<true, true, 6, 3, 4, 5, 2, 66>(float*, float const*, float const*, int)
.   float32   sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4
.   float32   void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int)
.   float32   void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1, false, true, true>(int)
.   float32   ampere_scudnn_128x64_relu_medium_nn_v1
.   tf32      void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x64_32x6_nt_align1>(Params)
.   tf32      sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x64x16_stage6_warpsize2x2x1_tensor16x8x8
.   tf32      sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16
.   tf32      nvjet_sss_tf32_128x256_TNT
.   tf32      cutlass_tensorop_s1688tf32gemm_256x128_16x3_nn_align4
.   3_x_tf32  fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel::Params)
.   ?         fmha_cutlassF_f32_aligned_64x64_rf_sm75(PyTorchMemEffAttention::AttentionKernel::Params)
.   float32   Cijk_Ailk_Bljk_S_B_Bias_HA_S_SAV_UserArgs_MT16x16x128_MI16x16x1_SN_LDSB1
.   float32   Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1_SN_LDSB0
.   tf32      Cijk_Alik_Bjlk_S_MX_B_Bias_AS_SAV_UserArgs_MT192x16x64_MI16x16x1_SN_LDSB1
.   float32   igemm_fwd_gtcx3_nhwc_fp32_bx0_ex0_bt128x128x16
.   ?         nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTN
.   ?         nvjet_sm90_hsh_192x208_64x4_2x1_v_bz_coopB_bias_TNT
.   ?         void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, 128, 16, 4>
.   ?         cublas_bf16x9_gemm
.   ?         turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_nn
.   ?         void splitKreduce_kernel<32, 16, int, float>(Params)
""".strip().splitlines()


@pytest.mark.parametrize("row", KERNELS, ids=[row.split(maxsplit=2)[2][:60] for row in KERNELS])
def test_what_names_of_kernels_tell(row: str) -> None:
    tensor_cores, computes, kernel = row.split(maxsplit=2)
    if tensor_cores != ".":
        assert uses_tensor_cores(kernel) is {"yes": True, "no": False, "?": None}[tensor_cores]
    if computes != ".":
        assert compute_type(kernel) == {"?": None}.get(computes, computes.replace("_", " "))


#: FLOP/s of float32 products and bytes a second, by the data sheets; an MI300X does not use tf32.
SHEETS = {
    "Tesla V100-SXM2-16GB": (15.7e12, 900e9),
    "NVIDIA H100 80GB HBM3": (66.9e12, 3350e9),
    "AMD Instinct MI300X": (163.4e12, 5300e9),
    "NVIDIA A100-SXM4-80GB": (19.5e12, 2039e9),
}


@pytest.mark.parametrize("device", SHEETS)
def test_the_roofline_of_the_named_device(device: str, tmp_path: Path) -> None:
    """A product of 1024 x 1024 x 1024 in float32 and one in tf32, which makes none of the first, and a map of 4 MiB."""
    peak, bandwidth = SHEETS[device]
    hip = "AMD" in device
    trace = TraceBuilder(
        metadata={"deviceProperties": [{"id": 0, "name": device}], **({"hip_runtime_version": 1} if hip else {})}
    )
    trace.step(0, 1000)
    square = {"shapes": [[1024, 1024]] * 2, "types": ["float"] * 2}
    names = ["Cijk_Ailk_Bljk_SB_MT64x64x16_MI16x16x4x1_SN_K1" if hip else "ampere_sgemm_128x64_nn"]
    names += ["ampere_s1688gemm_tensorop_tf32_128x64"] * ("A100" in device)
    for index, name in enumerate(names):
        trace.host("aten::mm", 100 * index, 50, **square)
        trace.run(name, 100 * index + 5, 100 * index + 10, 200)
    trace.host("aten::mul", 300, 50, **square)
    trace.run("void at::native::vectorized_elementwise_kernel<4>", 305, 500, 20)
    anatomy = trace.analyze(tmp_path)
    flops, moved = 2 * 1024**3, 3 * 4 * 1024**2
    bounds = {(row.operator, row.compute_type): row.bound_ns for row in anatomy.operators}
    assert bounds["aten::mm", "float32"] == round(1e9 * max(flops / peak, moved / bandwidth))
    assert bounds["aten::mul", None] == round(1e9 * moved / bandwidth)
    if "A100" in device:
        assert bounds["aten::mm", "tf32"] == round(1e9 * flops / 156e12)
    else:
        assert anatomy.device.mfu == pytest.approx(flops / (peak * 1e-3), rel=1e-12)
        assert (anatomy.device.mfu_dtype, anatomy.device.unsure_ns) == ("float32", 0)


# -------------------------------------------------------------------------------------------------- above its ceiling


def checked(*rows: OperatorRow, ceilings: Ceilings = CACHED) -> Check:
    (check,) = bounded(*rows, ceilings=ceilings).checks
    assert (check.quantity, check.unit) == ("ceiling", "ns")
    assert check.compared == check.equal + len(check.differences)
    return check


def test_what_is_below_its_ceiling_is_equal() -> None:
    """500 ns each by memory: 100.0 %, 104.8 %, and the class."""
    check = checked(operator("aten::add", ADD, 500, 10, 1000), operator("aten::mul", ADD, 477, 10, 1000))
    assert (check.compared, check.equal, check.differences) == (3, 3, ())
    check = checked(product(4, None, None))
    assert (check.compared, check.not_checked) == (0, "no bound is known")


def test_a_call_that_the_cache_holds() -> None:
    check = checked(operator("aten::add", ADD, 100, 10, 500))
    of_class, found = check.differences
    assert (found.operator, found.phase, found.ours, found.other) == ("aten::add", Phase.FORWARD, 100, 250)
    assert found.cause == "a cache of 600 bytes can serve 500 of the bytes: at least 2 ns"
    assert found.evidence == "2.50 x what made up can do; 500 bytes per call, last-level cache of 0.000572205 MiB"
    assert (of_class.operator, of_class.cause) == ("class elementwise", found.cause)


CONVOLUTION = "bfloat16[1,8,9,9], bfloat16[8,8,{0}]"
SLICE = (
    "triton_poi_fused__unsafe_view_add_mul_select_slice_split_view_27",
    "float32[64], bfloat16[32768,2304], bfloat16[32768,768], bfloat16[1,32768,6,128], 25165824",
)
TINY = replace(CACHED, cache_bytes=1)


def disturbed(*names: str, ceilings: Ceilings = TINY) -> Ceilings:
    return replace(ceilings, disturbed=names)


#: An operator, the ceilings, and the cause, which may be its beginning; none is a difference without a cause.
EXPLAINED: list[tuple[OperatorRow, Ceilings, str | None]] = [
    # 400 of 1,000 bytes at least are 200 ns: a cache serves no more than it holds, and each call has it.
    *((operator("aten::add", ADD, ns, 10, 1000), CACHED, said)
      for ns, said in ((199, "a cache of 600 bytes"), (191, "a cache of 600 bytes"), (189, None), (100, None))),
    (operator("aten::add", ADD, 2500, 10, 10_000, calls=10), CACHED,
     "a cache of 600 bytes can serve 6,000 of the bytes: at least 2,000 ns"),
    (operator("aten::add", ADD, 1, 10, 500), CEILINGS,
     "a cache of unknown size can serve 500 of the bytes: at least 2 ns"),
    # No cache makes products faster: the peak, the FLOPs or the time is wrong.
    (product(4), CEILINGS, None), (product(4), CACHED, None),
    # What sets the bound must have been disturbed: another ceiling explains nothing.
    (operator("aten::add", ADD, 100, 10, 1000), disturbed("bandwidth"),
     "the bandwidth was measured while other work was running"),
    (operator("aten::add", ADD, 100, 10, 1000), disturbed("float32"), None),
    (operator("aten::add", ADD, 1, 100_000, 1), disturbed("vector float32"), "the vector float32 peak was measured"
    " while"),
    (operator("aten::add", ADD, 1, 100_000, 1), disturbed("float32", "bfloat16"), None),
    (product(100, 40_000, dtype="float32", compute_type="tf32"), disturbed("tf32", ceilings=CEILINGS),
     "the tf32 peak was measured while"),
    (product(100, 40_000, dtype="float32", compute_type="tf32"), disturbed("float32", ceilings=CEILINGS), None),
    # 10,000 FLOPs are 100 ns at the peak, a quarter of them 25 ns; windows of one place have no such algorithm.
    *((product(ns, 10_000, name="aten::cudnn_convolution", signature=CONVOLUTION.format(places)), CACHED, said)
      for places, ns, said in (
          ("3,3", 30, "Winograd's algorithm may save 7,500 convolution FLOPs: at least 25 ns"),
          ("3,3", 20, None), ("1,1", 30, None))),
    (product(60, 10_000, name="aten::_flash", causal_flops=5000), CACHED,
     "a causal mask leaves out 5,000 FLOPs: at least 50 ns"),
    (product(46, 10_000, name="aten::_flash", causal_flops=5000), CACHED, None),
    # It reads one of three slices; 251,658,496 bytes a call were counted of which 150,995,200 are sure.
    (operator(SLICE[0], ADD, 80_000_000, 0, 251_658_496, signature=SLICE[1]), CACHED,
     "fused kernels need at least 150,995,200 of 251,658,496 bytes: at least 75,497,600 ns"),
    (operator(SLICE[0], ADD, 70_000_000, 0, 251_658_496, signature=SLICE[1]), CACHED, None),
    # The loop of a reduction has two sizes; one that is not told explains nothing.
    (operator("triton_red_fused__log_softmax_nll_loss_forward_32", ADD, 400, 0, 3_219_728,
              signature="int64[32], bfloat16[1,32,50304], float32[4], 4, 8"), CEILINGS,
     "fused kernels need at least 336 of 3,219,728 bytes: at least 168 ns"),
    (operator("triton_poi_fused_add_0", ADD, 10, 0, 800, signature="float32[100], 7"), CACHED, None),
    # Look-ups of rows that repeat.
    *((operator(f"aten::{name}", MOVE, 60, 0, 200, written_bytes=100), CEILINGS,
       "look-ups need at least 100 of 300 bytes: at least 50 ns")
      for name in ("embedding", "index_select", "gather", "index")),
    (operator("triton_poi_fused_embedding_0", ADD, 150, 0, 32 + 256 + 256,
              signature="int32[8], bfloat16[1000,16], bfloat16[8,16], 128"), CEILINGS,
     "look-ups need at least 288 of 544 bytes: at least 144 ns"),
]  # fmt: skip


@pytest.mark.parametrize(("row", "ceilings", "said"), EXPLAINED, ids=range(len(EXPLAINED)))
def test_what_is_above_its_ceiling_has_a_number_for_a_cause(
    row: OperatorRow, ceilings: Ceilings, said: str | None
) -> None:
    check = checked(row, ceilings=ceilings)
    (found,) = (one for one in check.differences if one.operator == row.operator)
    assert found.cause is None if said is None else (found.cause or "").startswith(said)
    assert len(check.unexplained) == (2 if said is None else 0)  # the class and the operator


def test_each_phase_for_itself_and_other_ceilings_check_again() -> None:
    found = bounded(product(4), product(30, phase=Phase.BACKWARD), ceilings=CACHED)
    assert [(one.operator, one.phase) for one in found.checks[0].unexplained] == [
        ("class tensor_contraction", Phase.FORWARD),
        ("aten::mm", Phase.FORWARD),
    ]
    (check,) = with_roofline(found, replace(CACHED, matrix_flops_per_second={"bfloat16": 1e12})).checks
    assert (check.equal, check.differences) == (check.compared, ())


# ------------------------------------------------------------------------------------------- ceilings of the user's own


def given(peak: str | None, bandwidth: str | None, *rows: OperatorRow, known: Ceilings | None = CACHED) -> Anatomy:
    return bounded(*rows, ceilings=parse_overrides(peak, bandwidth).over(known, "made up"))


def exceeded(anatomy: Anatomy) -> list[tuple[str, str, float, float | None, str]]:
    return [
        (one.ceiling, one.option, one.reached_per_second, one.known_per_second, one.operator)
        for one in anatomy.device.exceeded
    ]


#: 1,000,000 FLOPs at 100 a ns take 10,000 ns at least, 80,000 bytes at 2 a ns 40,000: both take a fourth longer here.
PRODUCT = product(12_500, 1_000_000)
COPY = operator("aten::copy_", MOVE, 50_000, 0, 80_000)
#: Of 80,000 bytes a cache of 600 may hold 600.
MOVED = 79_400 / 50_000 * 1e9


@pytest.mark.parametrize(
    ("peak", "bandwidth", "above"),
    [
        (None, None, []),
        ("100G", "2G", []),
        ("90G", "1.7G", []),
        ("200G", "20G", []),
        ("fp32=1G", None, []),
        ("20G", None, [("bfloat16", "--peak 20G", 80e9, 100e9, "aten::mm")]),
        ("bf16=20G,fp32=1G", None, [("bfloat16", "--peak bf16=20G", 80e9, 100e9, "aten::mm")]),
        (None, "1 GB/s", [("bandwidth", "--bandwidth 1GB/s", MOVED, 2e9, "aten::copy_")]),
        (
            "20G",
            "1G",
            [
                ("bfloat16", "--peak 20G", 80e9, 100e9, "aten::mm"),
                ("bandwidth", "--bandwidth 1G", MOVED, 2e9, "aten::copy_"),
            ],
        ),
    ],
)
def test_a_ceiling_of_the_users_own_that_the_trace_is_above(
    peak: str | None, bandwidth: str | None, above: list[tuple[str, str, float, float, str]]
) -> None:
    """It is said of the option, and changes nothing in the checks: the option is no second source."""
    anatomy = given(peak, bandwidth, PRODUCT, COPY)
    assert exceeded(anatomy) == above
    assert anatomy.checks == bounded(PRODUCT, COPY, ceilings=CACHED).checks
    require_agreement(anatomy)
    text = page(anatomy)
    for _, option, _, _, name in above:
        said = f"A throughput measured in this trace exceeds {option}: {name.removeprefix('aten::')}"
        assert text.count(said) == 1
        assert said in terminal_report(anatomy, width=200).split("\n\n")[0]
    assert ("A throughput measured in this trace exceeds" in text) == bool(above)
    assert "may be wrong" not in text


def test_what_is_above_the_device_too_is_a_disagreement_whatever_is_given() -> None:
    """In 5,000 ns: neither 20 nor 100 FLOPs a ns are enough. Said of the device, and not of the option."""
    fast = replace(PRODUCT, time_ns=5000)
    for peak in (None, "20G", "150G"):
        anatomy = given(peak, None, fast)
        assert anatomy.device.exceeded == ()
        assert [one.operator for one in anatomy.checks[0].unexplained] == ["class tensor_contraction", "aten::mm"]
        with pytest.raises(GateError, match="2 numbers are not confirmed"):
            require_agreement(anatomy)
        limit = "--peak 150G allows" if peak == "150G" else "made up can do"
        assert f"what {limit}; 10 bytes per call" in (anatomy.checks[0].differences[0].evidence or "")
    assert given("250G", None, fast).checks[0].differences == ()  # a higher one that it is not above is believed


def test_what_explains_being_above_an_option() -> None:
    """Nothing else is known of the device; a causal mask leaves half of the products: 500 FLOPs in 30 ns."""
    anatomy = given("20G", "1T", PRODUCT, known=None)
    assert [row[:2] for row in exceeded(anatomy)] == [("bfloat16", "--peak 20G")]
    assert {one.cause for one in anatomy.checks[0].differences} == {
        "--peak 20G is below the measured throughput, and no other limit of the device is known"
    }
    row = product(30, name="aten::_flash", causal_flops=500)
    assert given("20G", None, row).device.exceeded == ()
    assert [one[:2] for one in exceeded(given("10G", None, row))] == [("bfloat16", "--peak 10G")]
    tf32 = product(1000, 40_000, dtype="float32", compute_type="tf32")
    assert [one[0] for one in exceeded(given("tf32=10G", None, tf32))] == ["tf32"]
    assert exceeded(given("fp32=1G", None, tf32)) == []


@pytest.mark.skipif(not SHARED.is_dir(), reason="the folder of shared traces is not next to the checkout")
def test_a_low_peak_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The first words of the page name the option; --check is met, and says on stderr that it was exceeded."""
    trace = str(SHARED / "more_traces/compare/train_h100_compile_gpt_rank0of8_before.json.gz")
    assert main(["analyze", trace, "--peak", "100T", "--check"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[1].startswith("A throughput measured in this trace exceeds --peak 100T: _scaled_mm in")
    assert "may be wrong" not in out
    assert "--peak 100T; otherwise data sheet of H100 SXM" in out
    assert err.count("check: --peak 100T is lower than the throughput reached in the trace") == 1


@pytest.mark.skipif(not SHARED.is_dir(), reason="the folder of shared traces is not next to the checkout")
@pytest.mark.parametrize(
    ("name", "above"),
    [
        ("more_traces/compare/train_h100_compile_gpt_rank0of8_before.json.gz", 1),
        ("more_traces/infer_a100_compile_sam.json.gz", 0),
        ("traces/train_a100_rank3of8_shapes_nccl.json.gz", 0),
        ("traces/infer_h100_qwen1.5_0.5b.json.gz", 0),
    ],
)
def test_nothing_real_is_above_its_ceiling_without_its_number(name: str, above: int) -> None:
    (check,) = [one for one in opanatomy.analyze(SHARED / name).checks if one.quantity == "ceiling"]
    assert (len(check.differences), check.unexplained) == (above, ())
    assert all(one.cause and any(character.isdigit() for character in one.cause) for one in check.differences)


# --------------------------------------------------------------- what is above 100 %, with its reason beside the figure

#: Sizes of one call on an H100: 4 * b * h * s * s * d FLOPs.
BATCH, HEADS, LENGTH, WIDTH = 1, 16, 16384, 128
WHOLE = 4 * BATCH * HEADS * LENGTH * LENGTH * WIDTH
H100_BF16, H100_BANDWIDTH = 989.4e12, 3.35e12


def one_call(
    operator: str, shapes: list[list[int]], constants: list[str], us: float, dtype: str = "c10::BFloat16"
) -> TraceBuilder:
    """A step of so many us on an H100, all of it the kernel of one operator."""
    trace = on_gpu()
    trace.step(0, us)
    types = [dtype if shape else "Scalar" for shape in shapes]
    trace.host(operator, 0, 20, shapes=shapes, types=types, constants=constants)
    trace.run("void a_kernel<1>", 0, 0, us)
    return trace


def causal_call(us: float) -> TraceBuilder:
    q = [BATCH, HEADS, LENGTH, WIDTH]
    return one_call(
        "aten::_scaled_dot_product_flash_attention", [q, q, q, [], [], []], ["", "", "", "0.", "True", "False"], us
    )


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a command prints, on one line."""
    assert main(list(words)) == 0
    return " ".join(capsys.readouterr().out.split())


def test_the_causal_mask_stands_beside_what_it_explains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    us = 2000
    trace = str(causal_call(us).write(tmp_path / "trace.json"))
    mfu = WHOLE / (us * 1e-6) / H100_BF16
    whole, masked = f"{100 * mfu:.1f} %", f"{50 * mfu:.1f} %"
    for screen in ("--brief", "--full"):
        text = printed(capsys, "analyze", trace, screen)
        assert f"MFU {whole}, HFU {whole} (bfloat16 peak); MFU {masked} under the causal mask" in text
        assert f"at {whole} of peak ({masked} under the causal mask)" in text
        assert f"under the causal mask: tensor contraction {masked}, total {masked}" in text
    digest = printed(capsys, "analyze", trace, "-f", "digest")
    assert f"MFU: {whole}; MFU {masked} under the causal mask" in digest
    assert f"at {whole} of peak ({masked} under the causal mask)" in digest
    device = opanatomy.analyze(trace).device
    assert (device.mfu, device.causal_mfu) == (pytest.approx(mfu), pytest.approx(mfu / 2))
    assert [(one.operator_class, one.operator, one.cause) for one in device.above] == [
        (None, None, ExcessCause.CAUSAL_MASK),
        (MM, None, ExcessCause.CAUSAL_MASK),
        (MM, "aten::_scaled_dot_product_flash_attention", ExcessCause.CAUSAL_MASK),
    ]
    assert [one.reached_without for one in device.above] == [pytest.approx(mfu / 2, rel=1e-6)] * 3


def test_nothing_is_said_of_a_mask_that_explains_nothing(tmp_path: Path) -> None:
    anatomy = causal_call(3000).analyze(tmp_path)
    assert (anatomy.device.above, anatomy.device.causal_mfu) == ((), pytest.approx((anatomy.device.mfu or 0) / 2))
    assert "causal mask" not in page(anatomy, brief=True)


def test_a_window_among_the_arguments_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A token sees itself and 1,023 before it, the first 1,023 see fewer."""
    us, q = 300, [BATCH, LENGTH, HEADS, WIDTH]
    constants = ["", "", "", "0.", "0.08", "True", "1023", "0", "0.", "", "False"]
    trace = one_call("flash_attn::_flash_attn_forward", [q, q, q, *[[]] * 8], constants, us)
    path = str(trace.write(tmp_path / "trace.json"))
    flops = 4 * BATCH * HEADS * WIDTH * (1024 * LENGTH - 1024 * 1023 // 2)
    (row,) = opanatomy.analyze(path).operators
    assert (row.flops, row.causal_flops) == (flops, flops)
    share = f"{100 * flops / (us * 1e-6) / H100_BF16:.1f} %"
    text = printed(capsys, "analyze", path, "--brief")
    assert f"MFU {share}, HFU {share} (bfloat16 peak)" in text
    assert "may be wrong" not in text


def test_what_the_cache_serves_is_said(tmp_path: Path) -> None:
    """12 MiB in an L2 of 50 MiB; 1.2 GB are an error."""
    small = one_call("aten::add", [[1024, 1024], [1024, 1024], []], ["", "", "1"], 2, "float").analyze(tmp_path)
    share = f"{100 * 3 * 4 * 1024**2 / H100_BANDWIDTH / 2e-6:.1f} %"
    text = page(small, brief=True)
    assert f"at {share} of peak (tensors may be read from the cache)" in text
    assert "above 100 % (tensors may be read from the cache): element-wise, total" in text
    large = one_call("aten::add", [[10240, 10240], [10240, 10240], []], ["", "", "1"], 200, "float").analyze(tmp_path)
    assert large.device.above == ()
    assert "may be wrong" in page(large, brief=True)


def test_flops_without_a_mask_that_is_not_recorded_are_an_upper_bound(tmp_path: Path) -> None:
    q, blocks = [BATCH, HEADS, LENGTH, WIDTH], [BATCH, HEADS, LENGTH // 128]
    trace = one_call("triton_tem_fused_flex_attention_0", [q, q, q, blocks, q], [""] * 5, 500)
    anatomy = trace.analyze(tmp_path)
    text = page(anatomy, brief=True)
    assert anatomy.device.unmasked_share == 1
    assert "an upper bound: 100.0 % of the FLOPs belong to flex attention, whose mask" in text
    assert "(flex attention's mask is not recorded, so its FLOPs are an upper bound)" in text
    assert "may be wrong" not in text


def test_mfu_of_several_data_types_says_what_it_is_of_their_own_peaks() -> None:
    """4,000 FLOPs in 100 ns at 100 a ns; of their own peaks 3,000 take 30 ns and 1,000 take 100."""
    mixed = bounded(product(30, 3000), product(30, 1000, dtype="float32", compute_type="float32"))
    assert (mixed.device.mfu, mixed.device.own_peaks_mfu) == (0.4, pytest.approx(1.3))
    assert "MFU 130.0 % with each data type relative to its own peak; 25.0 % of the FLOPs in float32" in page(mixed)
    assert bounded(product(30, 3000)).device.own_peaks_mfu is None
    unknown = bounded(product(30, 3000), product(30, 1000, dtype="float64"))
    assert (unknown.device.mfu, unknown.device.own_peaks_mfu) == (0.4, None)
