"""Names of packages that move data between devices, and of Triton kernels that people write; nameless kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from opanatomy.classification.kernels import classify_kernel
from opanatomy.classification.operators import classify_operator
from opanatomy.pipeline import analyze_trace
from opanatomy.records.anatomy import KernelRow
from opanatomy.records.taxonomy import OperatorClass
from tests.handmade import HandMade

COMMUNICATION = OperatorClass.COMMUNICATION
CONTRACTION = OperatorClass.TENSOR_CONTRACTION
NORMALIZATION = OperatorClass.STATISTICAL_NORMALIZATION
ELEMENTWISE = OperatorClass.ELEMENTWISE
MOVEMENT = OperatorClass.DATA_MOVEMENT
OTHER = OperatorClass.OTHER
UNKNOWN = OperatorClass.UNKNOWN

KERNELS = {
    # DeepEP, as its own package and within DeepSeek
    "void deep_ep::internode::combine<true, 4, __nv_bfloat16>(int4*, float*)": COMMUNICATION,
    "void deep_ep::internode_ll::dispatch<true, false, 7168>(void*, void*)": COMMUNICATION,
    "void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*, float*)": COMMUNICATION,
    "void dpsk::ep::internode::notify_dispatch<false, 4>(int const*, long*)": COMMUNICATION,
    "void dpsk::ep::intranode::cached_notify_combine<2>(void**, int*)": COMMUNICATION,
    # the namespace that CUB's kernels have within it says nothing of what they do
    "void cdpsk::ep::CUB_200400_900_NS::DeviceScanKernel<x>(int)": NORMALIZATION,
    # MORI, TensorRT-LLM, UCC
    "void mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>(mori::moe::EpDispatchCombineArgs)": COMMUNICATION,
    "EpCombineIntraNodeKernel_bf16": COMMUNICATION,
    "void tensorrt_llm::kernels::moe_a2a::moeA2ADispatchKernel<4>(int)": COMMUNICATION,
    "ucc_ec_cuda_reduce_kernel": COMMUNICATION,
    # symmetric memory and NVSHMEM in torch
    "void c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int, unsigned long)": COMMUNICATION,
    "void c10d::symmetric_memory::put_signal_kernel(unsigned int**, int)": COMMUNICATION,
    "void c10d::symmetric_memory::multimem_all_reduce_kernel<float, 16, 8>(float*)": COMMUNICATION,
    "void c10d::symmetric_memory::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 8>()": COMMUNICATION,
    "void c10d::nvshmem_extension::exchangeSplitAndOffset<true>(long*, long*, int)": COMMUNICATION,
    "nvshmemi_proxy_quiet_entrypoint": COMMUNICATION,
    "mscclpp::collective::allreduce8<__half>": COMMUNICATION,
    "void rccl_main_kernel<x>()": COMMUNICATION,
    # kernels that people write in Triton
    "linear_relu_square_kernel": CONTRACTION,
    "_linear_relu_square_kernel": CONTRACTION,
    "XXT_kernel": CONTRACTION,
    "XTX_kernel": CONTRACTION,
    "ba_plus_cAA_kernel": CONTRACTION,
    "bmm_add_kernel": CONTRACTION,
    "fused_softcapped_entropy_fwd_kernel": NORMALIZATION,
    "fused_softcapped_entropy_bwd_kernel": NORMALIZATION,
    # what Triton of 2023 writes behind a name is no part of it
    "_fwd_kernel_aligned_0d1d2d3d45d6de7de8c9de10de11c12d": CONTRACTION,
    "_layer_norm_fwd_fused_0d1d2d3d4d5d67d8": NORMALIZATION,
    # rules of a like spelling that keep their own
    "void at::native::(anonymous namespace)::write_indices<int>(long*)": OTHER,
    "upsample_linear1d_out_frame": ELEMENTWISE,
    "some_kernel_of_mine": UNKNOWN,
    "triton__0d1d2d3de": UNKNOWN,
}

OPERATORS = {
    "deep_ep::dispatch": COMMUNICATION,
    "deep_ep::low_latency_combine": COMMUNICATION,
    "nvshmem::put": COMMUNICATION,
    "trtllm::moe_a2a_dispatch": COMMUNICATION,
    "symm_mem::multimem_all_reduce_": COMMUNICATION,
    "symm_mem::one_shot_all_reduce": COMMUNICATION,
    "symm_mem::two_shot_all_reduce_": COMMUNICATION,
    "symm_mem::all_to_all_vdev_2d": COMMUNICATION,
    "nccl:all_to_all": COMMUNICATION,
    "ucc:all_to_all": COMMUNICATION,
    "customflash::custom_flash_aligned": CONTRACTION,
    "flash_rms::rms_norm": NORMALIZATION,
}


@pytest.mark.parametrize(("name", "expected"), KERNELS.items())
def test_a_kernel(name: str, expected: OperatorClass) -> None:
    assert classify_kernel(name).operator_class == expected


@pytest.mark.parametrize(("name", "expected"), OPERATORS.items())
def test_an_operator(name: str, expected: OperatorClass) -> None:
    found = classify_operator(name)
    assert found is not None
    assert found.operator_class == expected


def _kernels_of(made: HandMade, folder: Path) -> dict[str, list[KernelRow]]:
    found: dict[str, list[KernelRow]] = {}
    for row in analyze_trace(made.write(folder / "t.json")).kernels:
        found.setdefault(row.kernel, []).append(row)
    return found


def test_a_nameless_kernel_takes_the_class_of_its_operator(tmp_path: Path) -> None:
    made = HandMade()
    for place, operator in enumerate(("triton_poi_fused_clone_3", "triton_red_fused_native_layer_norm_0")):
        made.host(operator, 100 * place, 50)
        made.launch(100 * place + 10, 7 + place)
        made.kernel("triton__0d1d2de", 100 * place + 20, 30, 7 + place)
    made.launch(300, 99)
    made.kernel("triton__0d1d2de", 310, 5, 99)
    rows = _kernels_of(made, tmp_path)["triton__0d1d2de"]
    assert {(row.operator_class, row.time_ns) for row in rows} == {
        (MOVEMENT, 30_000), (NORMALIZATION, 30_000), (UNKNOWN, 5_000),
    }  # fmt: skip


def test_work_of_python_below_an_operator_is_counted_with_its_own_arguments(tmp_path: Path) -> None:
    # a nested or distributed tensor: the outer operator has no arguments, or those of all ranks
    made = HandMade()
    shapes, types = [[64, 8], [8, 4]], ["float", "float"]
    made.host("aten::mm", 0, 100, shapes=shapes, types=types)
    made.host("PythonSubclass", 5, 90, shapes=shapes, types=types)
    made.host("aten::mm", 10, 80, shapes=[[16, 8], [8, 4]], types=types)
    rows = analyze_trace(made.write(tmp_path / "t.json")).operators
    products = [row for row in rows if row.operator == "aten::mm" and row.flops is not None]
    assert [(row.signature, row.flops) for row in products] == [("float32[16,8], float32[8,4]", 2 * 16 * 8 * 4)]


def test_a_layout_change_is_data_movement_where_it_stands_alone(tmp_path: Path) -> None:
    made = HandMade()
    made.host("aten::cudnn_convolution", 0, 50)
    for correlation, start in ((7, 20), (8, 200)):
        made.launch(start - 10, correlation)
        made.kernel("void cudnn::ops::nchwToNhwcKernel<float, float, float>(int)", start, 5, correlation)
    calls = analyze_trace(made.write(tmp_path / "t.json")).classes
    assert {(row.operator_class, row.time_ns) for row in calls} == {(CONTRACTION, 5_000), (MOVEMENT, 5_000)}
