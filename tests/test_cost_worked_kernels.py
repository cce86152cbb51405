"""All three figures of formulas in rare use, worked out by hand: 8 bits, updates of optimizers, packages."""

from __future__ import annotations

import pytest

from opanatomy.records.signature import Argument, Tensor
from tests.worked import Example, bf, bits, byte, dd, figures, int4, ints, t

b, c, g, h, m, n, k = 2, 3, 4, 6, 5, 7, 11
A = m * n

# --------------------------------------------------------------------------------------------------------------- 8 bits


def q(*shape: int) -> Tensor:
    """Quantized to 8 bits with a sign."""
    return Tensor(shape, "qint8")


QUANTIZED: list[Example] = [
    ("aten::_weight_int8pack_mm", (bf(m, k), byte(n, k), t(n)), 2 * m * n * k, 2 * m * k + n * k + 4 * n, 2 * m * n),
    ("aten::_weight_int4pack_mm", (bf(m, k), int4(n, 9), 32, t(g, n, 2)), 2 * m * n * k,
     2 * m * k + 4 * n * 9 + 8 * g * n, 2 * m * n),
    ("aten::_weight_int4pack_mm_with_scales_and_zeros", (bf(m, k), int4(n, 9), 32, t(g, n), byte(g, n)),
     2 * m * n * k, 2 * m * k + 4 * n * 9 + 5 * g * n, 2 * m * n),
    ("aten::_dyn_quant_matmul_4bit", (bf(b, m, k), byte(99), 32, k, n), 2 * b * m * n * k, 2 * b * m * k + 99,
     2 * b * m * n),
    ("aten::_wrapped_quantized_linear_prepacked", (t(b, m, k), t(), int4(), byte(99), t(), int4(), n),
     2 * b * m * n * k, 4 * b * m * k + n * k + 4 * n, 4 * b * m * n),
    ("bitsandbytes::dequantize_4bit", (byte(18), t(2), 32, "nf4", (m, n), "torch.float16"), A, 18 + 8, 2 * A),
    ("bitsandbytes::quantize_4bit", (bf(m, n), 32, "nf4", "uint8"), 2 * A, 2 * A, 18 + 4 * 2),
    ("bitsandbytes::dequantize_blockwise", (byte(m, n), t(2), dd(256), 32, "torch.float16"), A, A + 8 + 8 * 256,
     2 * A),
    ("bitsandbytes::quantize_blockwise", (bf(m, n), dd(256), 32), 2 * A, 2 * A + 8 * 256, A + 4 * 2),
    ("bitsandbytes::gemm_4bit", (bf(b, m, k), byte(39), (n, k), t(3), dd(16), 32), 2 * b * m * n * k,
     2 * b * m * k + 39 + 12 + 128, 2 * b * m * n),
    ("bitsandbytes::int8_linear_matmul", (byte(b, m, k), bits(n, k)), 2 * b * m * n * k, b * m * k + n * k,
     4 * b * m * n),
    ("bitsandbytes::int8_scaled_mm", (byte(b, m, k), bits(n, k), t(m), dd(n), bf(n), "torch.float32"),
     2 * b * m * n * k, b * m * k + n * k + 4 * m + 10 * n, 4 * b * m * n),
    ("bitsandbytes::int8_scaled_mm", (byte(m, k), bits(n, k), t(m), dd(n)), 2 * m * n * k,
     m * k + n * k + 4 * m + 8 * n, 2 * m * n),
    ("bitsandbytes::int8_mm_dequant", (int4(m, n), t(m), dd(n), None, bf(n)), 3 * A, 4 * A + 4 * m + 10 * n, 2 * A),
    ("bitsandbytes::int8_mm_dequant", (int4(m, n), t(m), dd(n), "torch.float32", None), 2 * A, 4 * A + 4 * m + 8 * n,
     4 * A),
    ("bitsandbytes::int8_vectorwise_quant", (bf(b, m, n), 0.0), 2 * b * A, 2 * b * A, b * A + 4 * b * m),
    ("_C::static_scaled_fp8_quant", (byte(m, n), bf(m, n), t(1)), A, 2 * A + 4, A),
    ("_C::dynamic_scaled_fp8_quant", (byte(m, n), bf(m, n), t(m)), 2 * A, 2 * A, A + 4 * m),
    ("_C::cutlass_scaled_mm", (bf(m, n), byte(m, k), bits(k, n), t(m), dd(n), int4(n)), 2 * m * n * k,
     m * k + k * n + 4 * m + 12 * n, 2 * m * n),
    # a tensor behind the bias is a place for the result
    ("fbgemm::f8f8bf16_rowwise", (byte(b, m, k), bits(n, k), t(m), dd(n), int4(n), bf(m, n)), 2 * b * m * n * k,
     b * m * k + n * k + 4 * m + 12 * n, 2 * b * m * n),
    ("aten::quantize_per_tensor", (bf(m, n), 0.1, 3, 12), 3 * A, 2 * A, A),
    ("aten::quantize_per_tensor", (bf(m, n), t(), ints(), 12), 3 * A, 2 * A, A),
    ("aten::quantize_per_channel", (bf(m, n), dd(m), int4(m), 0, 14), 3 * A, 2 * A + 12 * m, 4 * A),
    ("aten::dequantize", (q(m, n),), 2 * A, A, 4 * A),
    ("aten::fake_quantize_per_tensor_affine_cachemask", (bf(m, n), 0.1, 0, 0, 255), 5 * A, 2 * A, 3 * A),
    ("aten::fake_quantize_per_channel_affine_cachemask", (bf(m, n), t(m), dd(m), 0, 0, 255), 5 * A, 2 * A + 12 * m,
     3 * A),
    (
        "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", (bf(m, n), t(1), ints(1), byte(1), 0, 255),
        5 * A, 2 * A + 13, 3 * A,
    ),
    ("aten::_fake_quantize_learnable_per_channel_affine", (bf(m, n), t(m), dd(m), 0, 0, 255, 1.0), 5 * A,
     2 * A + 12 * m, 2 * A),
    (
        "aten::_fake_quantize_learnable_per_channel_affine_backward",
        (dd(m, n), bf(m, n), t(m), ints(m), 0, 0, 255, 1.0), 12 * A, 10 * A + 12 * m, 2 * A + 12 * m,
    ),
    ("quantized::linear", (q(b, m, k), (q(n, k), t(n)), 0.1, 0), 2 * b * m * n * k, b * m * k + 4 * n + n * k,
     b * m * n),
    ("quantized::linear_relu", (q(m, k), (q(n, k),), 0.1, 0), 2 * m * n * k, m * k + n * k, m * n),
    ("quantized::linear_dynamic", (t(m, k), (q(n, k), dd(n)), True), 2 * m * n * k, 4 * m * k + 8 * n + n * k,
     4 * m * n),
    ("quantized::linear_dynamic_fp16", (t(m, k), (t(n, k), dd(n))), 2 * m * n * k, 4 * m * k + 8 * n + 2 * n * k,
     4 * m * n),
    # 8 x 13, kernels of 3 x 2, stride (2, 1), padding (1, 0), dilation (1, 3): 4 x 10 places
    (
        "quantized::conv2d",
        (q(b, 4, 8, 13), (q(h, 4, 3, 2), t(h), ((2, 1), (1, 0), (0, 0), (1, 3), 1, False)), 0.1, 0),
        2 * b * h * 40 * 4 * 6, b * 4 * 104 + 4 * h + h * 4 * 6, b * h * 40,
    ),
    # transposed, 2 groups: unpacked as (4, 3, 3, 2); 2 * 7 - 2 + 2 + 1 + 1 rows and 12 + 3 + 1 columns
    (
        "quantized::conv_transpose2d",
        (q(b, 4, 8, 13), (q(h, 2, 3, 2), t(h), ((2, 1), (1, 0), (1, 0), (1, 3), 2, True)), 0.1, 0),
        2 * b * 104 * 4 * 3 * 6, b * 4 * 104 + 4 * h + h * 2 * 6, b * h * 16 * 16,
    ),
    ("quantized::matmul", (q(m, k), byte(k, n), 0.1, 0), 2 * m * n * k, m * k + k * n, m * n),
    ("quantized::matmul", (q(b, m, k), byte(b, k, n), 0.1, 0), 2 * b * m * n * k, b * m * k + b * k * n, b * m * n),
    ("quantized::embedding_byte", ((byte(99, n),), ints(m), False), 2 * m * n, m * (n + 8) + 8 * m, 4 * m * n),
    ("quantized::embedding_byte", ((byte(3, n),), ints(m), False), 2 * m * n, 3 * (n + 8) + 8 * m, 4 * m * n),
    (
        "onednn::qlinear_pointwise",
        (byte(b, m, k), 0.1, 0, q(k, n), dd(n), int4(n), dd(n), 0.1, 0, 6, "none", (), ""),
        2 * b * m * n * k, b * m * k + 8 * n + 8 * n + k * n, 4 * b * m * n,
    ),
    (
        "onednn::qlinear_pointwise", (byte(m, k), 0.1, 0, q(n, k), t(n), int4(n), None, 0.1, 0, None, "none", (), ""),
        2 * m * n * k, m * k + 4 * n + k * n, m * n,
    ),
    # two layers and directions of h: inputs of k and then of 2 h
    (
        "aten::quantized_lstm",
        (bf(m, b, k), (t(4, b, h), t(4, b, h)), (), True, 2, 0.0, False, True, False, 12, True),
        2 * m * b * 2 * 4 * h * (k + h + 2 * h + h),
        2 * m * b * k + 2 * 4 * 4 * b * h + 2 * 4 * h * (k + h + 2 * h + h) + 2 * 2 * 2 * 4 * h * 4,
        2 * m * b * 2 * h + 2 * 4 * 4 * b * h,
    ),
    (
        "aten::quantized_lstm",
        (bf(m, b, k), (t(1, b, h), t(1, b, h)), (), False, 1, 0.0, False, False, False, 5, True),
        2 * m * b * 4 * h * (k + h), 2 * m * b * k + 2 * 4 * b * h + 2 * 4 * h * (k + h),
        2 * m * b * h + 2 * 4 * b * h,
    ),
    (
        "aten::quantized_gru", (bf(m, b, k), t(1, b, h), (), True, 1, 0.0, False, False, False),
        2 * m * b * 3 * h * (k + h), 2 * m * b * k + 4 * b * h + 3 * h * (k + h) + 2 * 3 * h * 4,
        2 * m * b * h + 4 * b * h,
    ),
    (
        "quantized::quantized_lstm_cell_dynamic", (bf(b, k), (t(b, h), dd(b, h)), None, None, t(4 * h), dd(4 * h)),
        2 * b * 4 * h * (k + h), 2 * b * k + 12 * b * h + 12 * 4 * h + 4 * h * (k + h), 12 * b * h,
    ),
    # out of 8 bits 2, into them 3
    *((f"quantized::{name}", (q(m, n),), (2 + flops + 3) * A, A, A)
      for name, flops in (("sigmoid", 4), ("hardswish", 3), ("elu", 3), ("celu", 3), ("leaky_relu", 1),
                          ("softmax", 4))),
    ("quantized::relu6", (q(m, n),), 0, A, A),
    ("quantized::clamp", (q(m, n),), 0, A, A),
    ("quantized::add_relu", (q(m, n), int4(m, n), 0.1, 0), 8 * A, 5 * A, A),
    ("quantized::layer_norm", (q(m, n), (n,), t(n), dd(n), 1e-5, 0.1, 0), 12 * A, A + 12 * n, A),
    ("quantized::group_norm", (q(m, n), 2, None, dd(n), 1e-5, 0.1, 0), 11 * A, A + 8 * n, A),
    ("quantized::layer_norm", (q(m, n), (n,), t(n), None, 1e-5, 0.1, 0), 11 * A, A + 4 * n, A),
    ("quantized::instance_norm", (q(m, n), t(n), dd(n), 1e-5, 0.1, 0), 12 * A, A + 12 * n, A),
    ("quantized::instance_norm", (q(m, n), t(n), None, 1e-5, 0.1, 0), 11 * A, A + 4 * n, A),
    ("aten::quantized_max_pool2d", (q(b, 8, 13), (3, 2), (2, 3), (1, 0), (2, 1), True), 0, b * 104, b * 4 * 5),
]  # fmt: skip

# -------------------------------------------------------------------------------------------------------------- updates

PARAMETERS = (bf(m), bf(n))
GRADIENTS, FIRST, SECOND, LARGEST = (t(m), t(n)), (dd(m), dd(n)), (t(m), bf(n)), (bf(m), t(n))
STEPS = (t(), dd())
N, SECOND_BYTES, LARGEST_BYTES = m + n, 4 * m + 2 * n, 2 * m + 4 * n
ADAM = (PARAMETERS, GRADIENTS, FIRST, SECOND)
#: parameter 2 bytes, gradient 4, first average 8; two steps of 4 and 8
STATE = (2 + 8) * N + SECOND_BYTES
UPDATES: list[Example] = [
    ("aten::_fused_adamw_", (*ADAM, (), STEPS, 1e-3, 0.9, 0.99, 0.0, 1e-8, False, False, None, None), 13 * N,
     STATE + 4 * N + 12, STATE),
    # weight decay 1 (Adam 2), maximize 1, scale 1; the scaled gradient is written back
    (
        "aten::_fused_adamw_", (*ADAM, LARGEST, STEPS, t(), 0.9, 0.99, 0.1, 1e-8, True, True, dd(), bf()), 16 * N,
        STATE + LARGEST_BYTES + 4 * N + 12 + 4 + 8 + 2, STATE + LARGEST_BYTES + 4 * N,
    ),
    (
        "aten::_fused_adam_", (*ADAM, LARGEST, STEPS, 1e-3, 0.9, 0.99, 0.1, 1e-8, False, False, None, bf()), 15 * N,
        STATE + 4 * N + 12 + 2, STATE,
    ),
    # the list of the largest is there and not in use
    (
        "aten::_fused_adamw_", (*ADAM, LARGEST, STEPS, 1e-3, 0.9, 0.99, 0.0, 1e-8, False, True, None, None), 14 * N,
        STATE + 4 * N + 12, STATE,
    ),
    # decay, momentum, its Nesterov form, maximize and scale: 2 + 2 + 3 + 2 + 1 + 1
    (
        "aten::_fused_sgd_", (PARAMETERS, GRADIENTS, FIRST, 0.1, 0.9, t(), 0.0, True, True, False, dd(), bf()), 11 * N,
        (2 + 4 + 8) * N + 4 + 8 + 2, (2 + 8 + 4) * N,
    ),
    # the first step fills the buffers
    (
        "aten::_fused_sgd_", (PARAMETERS, GRADIENTS, FIRST, 0.0, 0.9, 0.1, 0.0, False, False, True, None, None), 2 * N,
        (2 + 4) * N, (2 + 8) * N,
    ),
    (
        "aten::_fused_sgd_", (PARAMETERS, GRADIENTS, FIRST, 0.0, 0.9, 0.1, 0.0, True, False, True, None, None), 4 * N,
        (2 + 4) * N, (2 + 8) * N,
    ),
    (
        "aten::_fused_sgd_", (PARAMETERS, GRADIENTS, (), 0.1, 0.0, 0.1, 0.0, True, False, False, None, None), 4 * N,
        (2 + 4) * N, 2 * N,
    ),
    (
        "aten::_fused_adagrad_", (PARAMETERS, GRADIENTS, FIRST, STEPS, t(), 0.1, 0.1, 1e-8, True, None, None),
        (7 + 2 + 1) * N, (2 + 8 + 4) * N + 12 + 4, (2 + 8) * N,
    ),
    (
        "aten::_fused_adagrad_", (PARAMETERS, GRADIENTS, FIRST, STEPS, 1e-3, 0.1, 0.0, 1e-8, False, None, None),
        7 * N, (2 + 8 + 4) * N + 12, (2 + 8) * N,
    ),
    (
        "aten::_amp_foreach_non_finite_check_and_unscale_", (GRADIENTS, t(), dd()), N, 4 * N + 12, 4 * N + 4,
    ),
    ("aten::_amp_update_scale_", (t(), int4(1), dd(), 2.0, 0.5, 2000), 1, 4 + 4 + 8, 4 + 4),
    # one state: momentum 4, decay 1
    (
        "bitsandbytes::optimizer_update_32bit",
        ("momentum", bf(m), t(m), dd(m), None, None, 0.0, 0.0, 0.9, 0.99, 0.0, 0.0, 1e-8, 0.1, 1, 1e-3, 1.0, False),
        5 * m, (2 + 4 + 8) * m, (4 + 8) * m,
    ),
    (
        "bitsandbytes::optimizer_update_32bit",
        ("rmsprop", bf(m), t(m), dd(m), None, None, 0.0, 0.0, 0.9, 0.99, 0.0, 0.0, 1e-8, 0.0, 1, 1e-3, 1.0, False),
        7 * m, (2 + 4 + 8) * m, (4 + 8) * m,
    ),
    # g values of 8 bits have one scale; the maps of 256 values are of unlike types
    (
        "bitsandbytes::optimizer_update_8bit_blockwise",
        ("adam", bf(m), t(m), byte(m), bits(m), 0.9, 0.99, 0.0, 0.0, 1e-8, 1, 1e-3, dd(256), bf(256), t(g), dd(g), 0.1,
         1.0, False),
        (13 + 1 + 2 * 2) * m, (2 + 4 + 1 + 1) * m + 10 * 256 + 12 * g, (4 + 1 + 1) * m + 12 * g,
    ),
    (
        "bitsandbytes::optimizer_update_8bit_blockwise",
        ("adagrad", bf(m), t(m), byte(m), None, 0.9, 0.99, 0.0, 0.0, 1e-8, 1, 1e-3, dd(256), None, t(g), None, 0.0,
         1.0, False),
        (7 + 2) * m, (2 + 4 + 1) * m + 8 * 256 + 4 * g, (4 + 1) * m + 4 * g,
    ),
    # lists: each tensor, with its own number; one tensor for all of them is read once
    ("aten::_foreach_add", (PARAMETERS, GRADIENTS, 0.5), 2 * N, 6 * N, 4 * N),
    ("aten::_foreach_mul_", (PARAMETERS, (1.0, 2.0)), N, 2 * N, 2 * N),
    ("aten::_foreach_mul_", (PARAMETERS, dd()), N, 2 * N + 8, 2 * N),
    ("aten::_foreach_zero_", (PARAMETERS,), 0, 0, 2 * N),
    ("aten::_foreach_copy_", (PARAMETERS, GRADIENTS, False), 0, 4 * N, 2 * N),
    ("aten::_foreach_max", (PARAMETERS,), N, 2 * N, 4),
    ("aten::_foreach_clone", (PARAMETERS,), 0, 2 * N, 2 * N),
    ("aten::_foreach_norm", (PARAMETERS, 2, 6), N, 2 * N, 8),
]  # fmt: skip

# ------------------------------------------------------------------------------------------------------------- packages

PACKAGES: list[Example] = [
    *((f"_C::{name}", (t(m, n), bf(m, 2 * n)), flops * A, 4 * A, 4 * A)
      for name, flops in (("silu_and_mul", 5), ("mul_and_silu", 5), ("gelu_and_mul", 6), ("gelu_tanh_and_mul", 11),
                          ("fatrelu_and_mul", 1), ("gelu_new", 10), ("gelu_fast", 9), ("gelu_quick", 4))),
    ("_C::rms_norm", (t(m, n), bf(m, n), dd(n), 1e-6), 4 * A, 2 * A + 8 * n, 4 * A),
    ("_C::rms_norm", (t(m, n), bf(m, n), None, 1e-6), 3 * A, 2 * A, 4 * A),
    ("_C::fused_add_rms_norm", (t(m, n), bf(m, n), dd(n), 1e-6), 5 * A, 6 * A + 8 * n, 6 * A),
    ("_C::fused_add_rms_norm", (t(m, n), bf(m, n), None, 1e-6), 4 * A, 6 * A, 6 * A),
    ("_C::rms_norm_static_fp8_quant", (byte(m, n), bf(m, n), dd(n), t(1), 1e-6), 5 * A, 2 * A + 8 * n + 4, A),
    # m tokens, 3 and 2 heads of 8 of which 6 are rotated; a row of the table a token, then a smaller table
    (
        "_C::rotary_embedding", (ints(m), bf(m, 24), t(m, 16), 8, dd(99, 6), True), 3 * m * 5 * 6,
        8 * m + 2 * m * 18 + 4 * m * 12 + 8 * m * 6, 2 * m * 18 + 4 * m * 12,
    ),
    (
        "_C::rotary_embedding", (ints(m), bf(m, 24), None, 8, dd(3, 6), True), 3 * m * 18,
        8 * m + 2 * m * 18 + 8 * 18, 2 * m * 18,
    ),
    ("_C::rotary_embedding", (ints(m), bf(m, 24), None, 8, dd(99, 8), True), 3 * m * 24,
     8 * m + 2 * m * 24 + 8 * m * 8, 2 * m * 24),
    # 4 slots for the first 4 of 5 tokens; keys of 2 x 8 and values of 2 x 6
    (
        "_C_cache_ops::reshape_and_cache", (bf(m, 2, 8), t(m, 2, 6), bf(9), dd(9), ints(g)), 0,
        2 * g * 16 + 4 * g * 12 + 8 * g, 2 * g * 16 + 8 * g * 12,
    ),
    ("_moe_C::topk_softmax", (t(m, b), int4(m, b), ints(m, b), bf(m, n)), 4 * A, 2 * A, (4 + 4 + 8) * m * b),
    ("_moe_C::moe_sum", (bf(m, g, n), t(m, n)), g * A, 2 * g * A, 4 * A),
    ("LigerRMSNormFunction", (bf(b, m, n), dd(n), 1e-6), 4 * b * A, 2 * b * A + 8 * n, 2 * b * A + 4 * b * m),
    ("FusedRMSNormAffineFunction", (bf(m, n), None, 1e-6), 3 * A, 2 * A, 2 * A + 4 * m),
    ("LigerLayerNormFunction", (bf(b, m, n), dd(n), t(n), 1e-6), 7 * b * A, 2 * b * A + 12 * n,
     2 * b * A + 4 * 2 * b * m),
    ("ScaledMaskedSoftmax", (bf(m, n), bits(m, n), 0.5), 5 * A, 3 * A, 2 * A),
    ("ScaledSoftmax", (bf(m, n), 0.5), 5 * A, 2 * A, 2 * A),
    ("LigerSiLUMulFunction", (bf(m, n), t(m, n)), 5 * A, 6 * A, 2 * A),
    ("LigerGELUMulFunction", (bf(m, n), t(m, n)), 11 * A, 6 * A, 2 * A),
    ("LigerSiLUMulFunctionBackward", (bf(m, n),), 11 * A, 6 * A, 4 * A),
    (
        "LigerRopeFunction", (bf(b, h, m, n), t(b, c, m, n), dd(m, n), int4(m, n)), 3 * b * 9 * A,
        2 * b * h * A + 4 * b * c * A + 12 * A, 2 * b * h * A + 4 * b * c * A,
    ),
    ("LigerCrossEntropyFunction", (bf(m, n), ints(m)), 8 * A, 2 * A + 8 * m, 2 * A + 4),
    # a causal convolution of b sequences of k, n channels, with width 4
    (
        "DaoAILab::_causal_conv1d_fwd_cpp",
        (bf(b, n, k), t(n, 4), dd(n), int4(b, k), t(b, n, 3), t(b, n, k), dd(b, n, 3), True),
        2 * b * n * k * 4, 2 * b * n * k + 16 * n + 8 * n + 4 * b * k + 12 * b * n, 4 * b * n * k + 24 * b * n,
    ),
    (
        "DaoAILab::_causal_conv1d_bwd_cpp",
        (bf(b, n, k), t(n, 4), dd(n), t(b, n, k), int4(b, k), t(b, n, 3), dd(b, n, 3), bf(b, n, k), t(n, 4), dd(n),
         dd(b, n, 2), True),
        6 * b * n * k * 4, 6 * b * n * k + 16 * n + 8 * n + 4 * b * k + 12 * b * n + 24 * b * n,
        2 * b * n * k + 16 * n + 8 * n + 16 * b * n,
    ),
    (
        "DaoAILab::_causal_conv1d_bwd_cpp",
        (bf(b, n, k), t(n, 4), None, t(b, n, k), None, None, None, bf(b, n, k), t(n, 4), None, None, False),
        4 * b * n * k * 4, 6 * b * n * k + 16 * n, 2 * b * n * k + 16 * n,
    ),
    (
        "DaoAILab::_causal_conv1d_update_cpp",
        (bf(b, n), t(b, n, 3), dd(n, 4), bf(n), t(b, n), True, int4(b), ints(b)), 2 * b * n * 4,
        2 * b * n + 12 * b * n + 32 * n + 2 * n + 12 * b, 4 * b * n + 12 * b * n,
    ),
    (
        "SelectiveScanFn",
        (bf(b, n, k), t(b, n, k), dd(n, 4), bf(b, 4, k), t(b, 4, k), t(n), dd(b, n, k), bf(n), True),
        b * n * k * (9 * 4 + 2), (2 + 4 + 8) * b * n * k + 8 * n * 4 + 6 * b * 4 * k + 6 * n, 2 * 2 * b * n * k,
    ),
    (
        "SelectiveScanFn", (bf(b, n, k), t(b, n, k), dd(n, 4), bf(b, 4, k), t(b, 4, k), None, None, None, True),
        b * n * k * 9 * 4, 6 * b * n * k + 8 * n * 4 + 6 * b * 4 * k, 2 * b * n * k,
    ),
    (
        "SelectiveScanFn", (bf(b, n, k), t(b, n, k), dd(n, 4), bf(b, 4, k), t(b, 4, k), t(n), None, None, True),
        b * n * k * (9 * 4 + 1), 6 * b * n * k + 8 * n * 4 + 6 * b * 4 * k + 4 * n, 2 * b * n * k,
    ),
    (
        "SelectiveScanFn", (bf(b, n, k), t(b, n, k), dd(n, 4), bf(b, 4, k), t(b, 4, k), None, dd(b, n, k), None, True),
        b * n * k * (9 * 4 + 1), (6 + 8) * b * n * k + 8 * n * 4 + 6 * b * 4 * k, 2 * 2 * b * n * k,
    ),
    # tables of width n, g bags each, m indices with weights; then tables that are not on the device
    (
        "fbgemm::split_embedding_codegen_lookup_sgd_function",
        (t(0), bf(999), t(0), t(0, 0), int4(2), ints(2), int4(4), 3 * n, n, ints(3), 20, ints(m), int4(3 * g + 1), 0,
         dd(m)),
        2 * m * n, 2 * m * n + 8 * m + 4 * (3 * g + 1) + 8 * m, 4 * 3 * g * n,
    ),
    (
        "fbgemm::split_embedding_codegen_lookup_sgd_function",
        (t(0), bf(0), t(0), t(0, 0), int4(2), ints(2), int4(3), 2 * n, n, ints(3), 20, ints(m), int4(2 * g + 1), 0,
         None),
        m * n, 2 * m * n + 8 * m + 4 * (2 * g + 1), 4 * 2 * g * n,
    ),
    (
        "fbgemm::split_embedding_codegen_lookup_sgd_function",
        (t(0), bf(9), t(0), t(0, 0), int4(2), ints(2), int4(2), n, n, ints(3), 20, ints(m), int4(g + 1), 0, None),
        m * n, 2 * 9 + 8 * m + 4 * (g + 1), 4 * g * n,
    ),
    ("fbgemm::permute_pooled_embs", (bf(m, n), ints(g), int4(g)), 0, 2 * A + 12 * g, 2 * A),
    ("fbgemm::bounds_check_indices", (ints(g), int4(m), dd(k), 0), 0, 8 * g + 4 * m + 8 * k, 0),
    ("fbgemm::asynchronous_complete_cumsum", (int4(m, n),), A, 4 * A, 4 * m * (n + 1)),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "arguments", "flops", "read", "written"), [*QUANTIZED, *UPDATES, *PACKAGES])
def test_worked_example(operator: str, arguments: tuple[Argument, ...], flops: int, read: int, written: int) -> None:
    assert figures(operator, arguments) == (flops, read, written)
