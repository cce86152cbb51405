"""Operators of other packages and of compiled code: worked examples, and refusals where the lengths are data."""

from __future__ import annotations

import pytest

from opanatomy.cost.compiled import named
from opanatomy.cost.registry import cost, describe, has_formula
from opanatomy.records.signature import Argument, Cost, Signature, Tensor


def t(*shape: int, dtype: str = "bfloat16") -> Tensor:
    return Tensor(shape, dtype)


def of(operator: str, *arguments: Argument) -> Cost:
    found = cost(operator, Signature(arguments))
    assert found is not None, operator
    return found


def moved(found: Cost) -> tuple[int, int, int]:
    return found.flops, found.read_bytes, found.written_bytes


# ------------------------------------------------------------------------------------------------------------ compiled

X = t(8, 4096, 2048)
N = 8 * 4096 * 2048


def test_a_map_of_triton_is_its_operators_over_the_loop() -> None:
    y = t(32768, 2048)
    found = of("triton_poi_fused__unsafe_view_mul_silu_2", X, y, N)
    assert moved(found) == ((1 + 4) * N, 2 * N, 2 * N)


def test_a_reduction_of_triton_loops_over_rows_and_columns() -> None:
    found = of("triton_red_fused_add_mean_mul_pow_rsqrt_0", X, t(2048), X, 32768, 2048)
    assert moved(found) == (5 * N, 2 * N + 2 * 2048, 2 * N)


def test_a_table_is_read_where_it_is_looked_up() -> None:
    table, index, out = t(50_000, 64), t(2, 16, dtype="int64"), t(2, 16, 64)
    found = of("triton_poi_fused_embedding_0", index, table, out, 2 * 16 * 64)
    assert moved(found) == (0, 2 * 16 * 8 + 2 * 16 * 64 * 2, 2 * 16 * 64 * 2)


def test_of_a_tensor_that_a_kernel_takes_a_part_of_an_element_a_place_counts_at_most() -> None:
    """The whole stack of weights made 48.4 MB of 2.36."""
    stack, part = t(5, 768, 3152, dtype="float32"), t(768, 768)
    selected = of("triton_poi_fused__to_copy_select_t_view_5", stack, part, 768 * 768)
    assert moved(selected) == (0, 768 * 768 * 4, 768 * 768 * 2)
    # which rows of a smaller one are read is not in the launch; one of the loop's own size is read
    table, y = t(4096, 64), t(8, 4096, 768)
    sliced = of("triton_poi_fused_mul_slice_3", table, y, y, y.numel)
    assert moved(sliced) == (y.numel, y.numel * 2, y.numel * 2)
    whole = of("triton_poi_fused_mul_3", table, y, y, y.numel)
    assert moved(whole) == (y.numel, y.numel * 2 + 4096 * 64 * 2, y.numel * 2)


def test_behind_ten_operators_of_a_name_a_part_may_be_hidden() -> None:
    wide = t(5, 8, 4096, 2048)
    ten = "triton_poi_fused__to_copy_abs_add_clone_cos_div_exp_log_mul_neg_0"
    assert moved(of(ten, wide, X, N))[1:] == (2 * N, 2 * N)
    assert moved(of("triton_poi_fused_abs_add_clone_cos_div_exp_log_mul_neg_0", wide, X, N))[1:] == (10 * N, 2 * N)


def test_a_scatter_writes_what_it_touches() -> None:
    index, grad, table = t(64, dtype="int64"), t(64, 32), t(50_000, 32, dtype="float32")
    found = of("triton_poi_fused_embedding_dense_backward_view_4", index, grad, table, 64 * 32)
    assert moved(found)[1:] == (64 * 8 + 64 * 32 * 2, 64 * 32 * 4)


def test_operators_in_a_name_are_as_long_as_can_be() -> None:
    assert named("_unsafe_view_add_native_layer_norm_backward_sum") == (
        "_unsafe_view", "add", "native_layer_norm_backward", "sum",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        ("triton_poi_fused_add_zork_0", (X, X, N)),
        ("triton_poi_fused_add_0", (X, X, 17)),
        ("triton_poi_fused_add_0", (N,)),
        ("triton_poi_fused_add_0", (Tensor((4,)), 4)),
        ("triton_for_fused_0", (X, X)),
        ("triton_tem_fused_mm_0", (t(4, 8), t(7, 16), t(4, 16))),
        ("triton_tem_fused_mm_0", (t(4, 8), t(8, 16))),
    ],
)
def test_what_a_launch_does_not_say_is_no_cost(operator: str, arguments: tuple[Argument, ...]) -> None:
    assert cost(operator, Signature(arguments)) is None


def test_templates() -> None:
    found = of("triton_tem_fused_addmm_relu_3", t(4, 8), t(8, 16), t(16), t(4, 16))
    assert moved(found) == (2 * 4 * 8 * 16, 2 * (32 + 128 + 16), 2 * 64)
    q, k = t(2, 4, 6, 8), t(2, 1, 10, 8)
    forward = of("triton_tem_fused_flex_attention_1", q, k, k, t(2, 4, 6, dtype="float32"), q)
    assert forward.flops == 4 * 2 * 4 * 6 * 10 * 8
    assert of("triton_tem_fused_flex_attention_backward_1", q, k, k, q, q).flops == 10 * 2 * 4 * 6 * 10 * 8
    assert describe("triton_tem_fused_mm_7") is not None
    assert has_formula("triton_per_fused_sum_1")


# ----------------------------------------------------------------------------------------------------------- attention

Q, K = t(2, 6, 4, 8), t(2, 10, 2, 8)
OUT = 2 * 2 * 6 * 4 * 8 + 4 * 2 * 4 * 6
_NONE: tuple[Argument, ...] = (None,)


def test_flash_attention_3() -> None:
    arguments = (Q, K, K, *_NONE * 20, 0.3, True, -1, -1)
    found = of("flash_attn_3::fwd", *arguments)
    assert found.flops == 4 * 2 * 4 * 6 * 10 * 8
    assert found.causal_flops == found.flops // 2
    assert (found.read_bytes, found.written_bytes) == (2 * (384 + 2 * 320), OUT)
    backward = of("flash_attn_3::bwd", Q, Q, K, K, Q, t(2, 4, 6), *_NONE * 9, 0.3, False)
    assert backward.flops == 10 * 2 * 4 * 6 * 10 * 8
    assert backward.causal_flops is None


def test_sequences_behind_each_other_are_known_where_they_are_equally_long() -> None:
    q, offsets = t(12, 4, 8), t(3, dtype="int32")
    arguments = [q, q, q, None, None, None, None, offsets, offsets, *_NONE * 3, 6, 6, *_NONE * 9, 0.3, False]
    assert of("flash_attn_3::fwd", *arguments).flops == 4 * 2 * 4 * 6 * 6 * 8
    arguments[12] = 9
    assert cost("flash_attn_3::fwd", Signature(tuple(arguments))) is None


def test_a_paged_cache_is_unknown() -> None:
    pages = t(2, 4, dtype="int32")
    assert cost("flash_attn_3::fwd", Signature((Q, K, K, *_NONE * 11, pages, *_NONE * 8, 0.3, True))) is None
    offsets = t(3, dtype="int32")
    q = t(12, 4, 8)
    head = (q, q, q, None, offsets, offsets, None, None)
    tail = (None, 6, 6, 0.0, 0.3, False, True)
    assert cost("_vllm_fa2_C::varlen_fwd", Signature((*head, pages, *tail))) is None
    assert of("_vllm_fa2_C::varlen_fwd", *head, None, *tail).causal_flops == 2 * 2 * 4 * 6 * 6 * 8
    assert cost("vllm::unified_attention", Signature((q, q, q, "layer"))) is None


def test_scales_of_fp8_come_before_dropout_and_causality() -> None:
    """Each of the three may be missing."""
    q, scale = t(2, 4, 16, 8), t()
    causal = of("aten::_scaled_dot_product_flash_attention", q, q, q, 0.0, True)
    assert causal.causal_flops == causal.flops // 2
    assert of("aten::_scaled_dot_product_flash_attention", q, q, q, scale, None, None, 0.0, True) == causal
    assert of("aten::_scaled_dot_product_flash_attention", q, q, q, scale, scale, scale, 0.0, False) != causal


def test_the_backward_of_packed_sequences() -> None:
    b, s, h, d = 3, 6, 4, 8
    q, offsets = t(b * s, h, d), t(b + 1, dtype="int32")
    given = (q, q, q, q, q, t(h, b * s, dtype="float32"), q, q, q)
    found = of("flash_attn::_flash_attn_varlen_backward", *given, offsets, offsets, s, s, 0.0, 0.125, False)
    # gradient, q, k, v and the output; the float32 sums of the softmax; both offsets
    read = 5 * 2 * b * s * h * d + 4 * b * s * h + 2 * 4 * (b + 1)
    assert moved(found) == (10 * b * h * s * s * d, read, 3 * 2 * b * s * h * d)


def test_cudnn_attention() -> None:
    q, k = t(2, 4, 6, 8), t(2, 4, 10, 8)
    found = of("aten::_cudnn_attention_forward", q, k, k, None, None, None, 6, 10, True, 0.0, True, False, None)
    assert (found.flops, found.written_bytes) == (4 * 2 * 4 * 6 * 10 * 8, OUT)


# --------------------------------------------------------------------------------------------- products and quantized


def test_scaled_products() -> None:
    a, b, scale = t(32, 64, dtype="float8_e4m3fn"), t(64, 16, dtype="float8_e4m3fn"), t(1, dtype="float32")
    found = of("aten::_scaled_mm_v2", a, b, (scale,), (0,), (0,), (scale,), (0,), (0,), None, 15, (), True)
    assert moved(found) == (2 * 32 * 64 * 16, 32 * 64 + 64 * 16 + 8, 2 * 32 * 16)
    unknown = Tensor((1,))
    assert cost("aten::_scaled_mm_v2", Signature((a, b, (unknown,), (0,), (0,), (unknown,)))) is None
    experts, offsets = t(3, 64, 16, dtype="float8_e4m3fn"), t(3, dtype="int32")
    grouped = of(
        "aten::_scaled_grouped_mm_v2", a, experts, (scale,), (0,), (0,), (scale,), (0,), (0,), offsets, None, 15, ()
    )
    assert moved(grouped) == (2 * 32 * 64 * 16, 32 * 64 + 3 * 64 * 16 + 8 + 12, 2 * 32 * 16)
    out = t(32, 16)
    assert moved(of("_C::cutlass_scaled_mm", out, a, b, scale, scale, None)) == moved(found)


def test_weights_of_few_bits() -> None:
    x, scales = t(3, 64), t(16)
    assert of("aten::_weight_int8pack_mm", x, t(16, 64, dtype="int8"), scales).flops == 2 * 3 * 64 * 16
    packed, zeros = t(2, 1, 32, 2, dtype="int32"), t(2, 16, 2)
    assert of("aten::_weight_int4pack_mm", x, packed, 32, zeros).flops == 2 * 3 * 64 * 16
    codes, block = t(512, 1, dtype="uint8"), t(16, dtype="float32")
    found = of("bitsandbytes::gemv_4bit", x, codes, (16, 64), block, t(16, dtype="float32"), 64)
    assert moved(found) == (2 * 3 * 64 * 16, 2 * 3 * 64 + 512 + 64 + 64, 2 * 3 * 16)
    assert moved(of("bitsandbytes::dequantize_4bit", codes, block, 64, "nf4", (16, 64), "torch.bfloat16")) == (
        1024, 512 + 64, 2048,
    )  # fmt: skip
    assert moved(of("bitsandbytes::quantize_4bit", t(16, 64), 64, "nf4", "uint8")) == (2048, 2048, 512 + 64)
    assert moved(of("bitsandbytes::quantize_blockwise", t(100), t(256, dtype="float32"), 64)) == (
        200, 200 + 1024, 100 + 8,
    )  # fmt: skip
    a, b = t(4, 64, dtype="int8"), t(16, 64, dtype="int8")
    assert moved(of("bitsandbytes::int8_linear_matmul", a, b)) == (2 * 4 * 64 * 16, 256 + 1024, 4 * 64)
    rows = of("bitsandbytes::int8_vectorwise_quant", t(4, 64), 0.0)
    assert moved(rows) == (2 * 256, 512, 256 + 16)


# ------------------------------------------------------------------------------------------------------ fused kernels


@pytest.mark.parametrize("name", ["adam", None])
def test_optimizers_of_bitsandbytes(name: str | None) -> None:
    """A trace drops the name. 32 bits: parameter, gradient and two states; 8 bits: a scale for 256 values, two maps."""
    n = 4096
    x, state, scales, codes = (
        t(n, dtype="float32"),
        t(n, dtype="uint8"),
        t(16, dtype="float32"),
        t(256, dtype="float32"),
    )
    betas = (0.9, 0.999, 0.0, 0.0, 1e-8)
    full = of(
        "bitsandbytes::optimizer_update_32bit", name, x, x, x, x, None, 0.0, 0.0, *betas, 0.1, 1, 1e-3, 1.0, False
    )
    assert moved(full) == (14 * n, 16 * n, 12 * n)
    rest = (codes, codes, scales, scales, 0.0, 1.0, False)
    small = of("bitsandbytes::optimizer_update_8bit_blockwise", name, x, x, state, state, *betas, 1, 1e-3, *rest)
    assert moved(small) == ((13 + 2 * 2) * n, 10 * n + 2 * 64 + 2 * 1024, 6 * n + 2 * 64)


def test_an_update_that_is_not_known_has_no_cost() -> None:
    x = t(64, dtype="float32")
    rest = (None, 0.0, 0.0, 0.9, 0.999, 0.0, 0.0, 1e-8, 0.1, 1, 1e-3, 1.0, False)
    assert cost("bitsandbytes::optimizer_update_32bit", Signature(("lars", x, x, x, None, *rest))) is None


def test_kernels_of_vllm() -> None:
    x, out, weight = t(10, 64), t(10, 32), t(64)
    assert moved(of("_C::silu_and_mul", out, x)) == (5 * 320, 1280, 640)
    assert moved(of("_C::rms_norm", x, x, weight, 1e-6)) == (4 * 640, 1280 + 128, 1280)
    assert moved(of("_C::fused_add_rms_norm", x, x, weight, 1e-6)) == (5 * 640, 2560 + 128, 2560)
    positions, table = t(10, dtype="int64"), t(4096, 8)
    rotated = of("_C::rotary_embedding", positions, x, t(10, 32), 16, table, True)
    # half of each head of 16 is rotated
    assert moved(rotated) == (3 * 480, 80 + 960 + 160, 960)
    cache, slots = t(9, 16, 2, 16, dtype="float8_e4m3fn"), t(10, dtype="int64")
    keys = t(10, 2, 16)
    assert moved(of("_C_cache_ops::reshape_and_cache_flash", keys, keys, cache, cache, slots)) == (0, 1280 + 80, 640)


def test_functions_of_liger_and_apex() -> None:
    x, weight = t(10, 64), t(64)
    assert moved(of("LigerRMSNormFunction", x, weight, 1e-6)) == (4 * 640, 1280 + 128, 1280 + 40)
    assert moved(of("FusedLayerNormAffineFunction", x, weight, weight)) == (7 * 640, 1280 + 256, 1280 + 80)
    assert moved(of("LigerSiLUMulFunction", x, x)) == (5 * 640, 2560, 1280)
    assert moved(of("LigerSiLUMulFunctionBackward", x)) == (11 * 640, 3 * 1280, 2560)
    assert moved(of("LigerCrossEntropyFunction", x, t(10, dtype="int64"))) == (8 * 640, 1280 + 80, 1280 + 4)


def test_scans() -> None:
    x, weight = t(2, 32, 10), t(32, 4)
    found = of("DaoAILab::_causal_conv1d_fwd_cpp", x, weight, t(32), None, None, x, None, True)
    assert moved(found) == (2 * 640 * 4, 1280 + 256 + 64, 1280)
    a, b = t(32, 16, dtype="float32"), t(2, 16, 10)
    scan = of("SelectiveScanFn", x, x, a, b, b, t(32, dtype="float32"), x, None, True)
    assert moved(scan) == (640 * (9 * 16 + 2), 3 * 1280 + 2048 + 2 * 640 + 128, 2 * 1280)


def test_look_ups_of_recommenders() -> None:
    index, offsets, bags = t(100, dtype="int64"), t(17, dtype="int64"), t(8, 16, dtype="float32")
    head = (t(0), t(1 << 20, dtype="float32"), t(0), t(0, 0), t(2, dtype="int32"), t(2, dtype="int64"))
    tail = (t(3, dtype="int64"), 20, index, offsets, 0, None)
    found = of("fbgemm::split_embedding_codegen_lookup_adam_function", *head, t(3, dtype="int32"), 16, 8, *tail)
    assert moved(found) == (800, 100 * 8 * 4 + 800 + 17 * 8, 8 * 16 * 4)
    mixed = (*head, t(3, dtype="int32"), 24, 16, *tail)
    assert cost("fbgemm::split_embedding_codegen_lookup_adam_function", Signature(mixed)) is None
    order = t(9, dtype="int64")
    assert moved(of("fbgemm::permute_pooled_embs_auto_grad", bags, order, order)) == (0, 512 + 144, 512)
    name = "torch::autograd::CppNode<fbgemm_gpu::PermutePooledEmbsFunction<&fbgemm_gpu::permute_pooled_embs_gpu> >"
    assert moved(of(name, bags)) == (0, 512, 512)
    assert cost("torch::autograd::CppNode<SplitLookupFunction_rowwise_adagrad_Op>", Signature((bags,))) is None


def test_cudnn_rnn() -> None:
    x, hx, flat = t(5, 2, 8), t(1, 2, 16), t(1664)
    weights = (Tensor((64, 8)), Tensor((64, 16)), Tensor((64,)), Tensor((64,)))
    common = (2, 16, 0, 1, False, 0.0, True, False, (), None)
    found = of("aten::_cudnn_rnn", x, weights, 4, flat, hx, hx, *common)
    assert moved(found) == (2 * 10 * 64 * 24, 2 * (80 + 32 + 32 + 1664), 2 * (160 + 64))
    grads = (t(5, 2, 16), t(5, 2, 16), None, None)
    backward = of("aten::_cudnn_rnn_backward", x, weights, 4, flat, hx, hx, *grads, *common, t(9), (True,) * 4)
    assert backward.flops == 2 * found.flops
