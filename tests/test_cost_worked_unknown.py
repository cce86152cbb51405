"""Calls of formulas in rare use that have no cost: what does not fit together, and what is data."""

from __future__ import annotations

import pytest

from opanatomy.records.signature import Argument, Stored, Tensor
from tests.worked import bf, bits, byte, dd, figures, int4, ints, t

b, m, n, k, h = 2, 3, 5, 7, 4
Q, K, OFFSETS = bf(b, m, h, 8), bf(b, n, h, 8), int4(b + 1)
PACKED = bf(b * m, h, 8)
PAGED = (*[Q] * 3, *[None] * 20, 0.5, False)
PAGED_2 = (PACKED, PACKED, PACKED, None, OFFSETS, OFFSETS, *[None] * 4, m, m, 0.0, 0.5, False, False)
BACK_3 = (Q, Q, Q, Q, Q, t(b, h, m), *[None] * 9, 0.5, False)
SPARSE, SPARSE_T = Tensor((m, k), "float32", None, Stored(2, 16)), Tensor((k, n), "float32", None, Stored(2, 16))


def without(arguments: tuple[Argument, ...], place: int, value: Argument) -> tuple[Argument, ...]:
    """The arguments with another at one place."""
    return (*arguments[:place], value, *arguments[place + 1 :])


UNKNOWN: list[tuple[str, tuple[Argument, ...]]] = [
    # shapes that do not fit together
    ("aten::_scaled_dot_product_flash_attention", (bf(2, 4, m, 8), bf(3, 4, n, 8), bf(2, 4, n, 8), 0.0, False)),
    ("aten::_scaled_dot_product_flash_attention", (bf(2, 4, m, 8), bf(2, 3, n, 8), bf(2, 3, n, 8), 0.0, False)),
    ("aten::_scaled_dot_product_flash_attention", (bf(2, 4, m, 8), bf(2, 4, n, 8), bf(2, 2, n, 8), 0.0, False)),
    ("aten::_scaled_dot_product_flash_attention", (bf(2, 4, m, 8), bf(2, 4, n, 8), bf(2, 4, k, 8), 0.0, False)),
    ("aten::_scaled_dot_product_flash_attention", (bf(2, 4, m, 8), bf(2, 4, n, 9), bf(2, 4, n, 8), 0.0, False)),
    ("aten::_flash_attention_forward", (PACKED, PACKED, PACKED, OFFSETS, OFFSETS, m, m + 1, 0.0, False)),
    ("aten::_flash_attention_forward", (PACKED, bf(b * m, 3, 8), PACKED, OFFSETS, OFFSETS, m, m, 0.0, False)),
    ("aten::_flash_attention_forward", (PACKED, PACKED, PACKED, int4(1), int4(1), m, m, 0.0, False)),
    ("aten::dot", (t(m), t(m, 1))),
    ("aten::mv", (t(b, m, k), t(k))),
    ("aten::mv", (t(m, k), t(k, 1))),
    ("aten::addmv", (t(m), t(m, k), t(n))),
    ("aten::bmm", (t(2, m, k), t(3, k, n))),
    ("aten::linear", (t(m, k), t(b, n, k), None)),
    ("aten::linear", (t(m, k), t(n, k + 1), None)),
    ("aten::matmul", (t(), t(k, n))),
    ("aten::matmul", (t(m, k), t())),
    ("aten::matmul", (t(m, k), t(n, k))),
    ("aten::_grouped_mm", (bf(m, k), bf(k, n), None)),
    ("aten::_grouped_mm", (bf(m, k), bf(h, n, k), int4(h))),
    ("aten::_grouped_mm", (bf(b, h, m, k), bf(k, n), int4(h))),
    ("aten::linalg_solve_triangular", (dd(3, 4), t(4, 7), False, True, False)),
    ("aten::linalg_solve_triangular", (dd(3, 3), t(7, 3), False, True, False)),
    ("aten::linalg_cholesky_ex", (dd(3, 4),)),
    ("aten::linalg_cholesky_ex", (dd(3),)),
    ("aten::linalg_cholesky_ex", (t(3, 3, dtype="complex64"),)),
    ("aten::linalg_cholesky_ex", (Tensor((3, 3)),)),
    ("aten::cholesky_inverse", (dd(3, 4),)),
    ("aten::_linalg_det", (dd(3, 4),)),
    ("aten::linalg_qr", (dd(5, 3), None)),
    ("aten::linalg_lu_solve", (dd(3, 3), int4(3), t(4, 7))),
    ("aten::_linalg_solve_ex", (dd(3, 3), t(4))),
    ("aten::_cdist_forward", (bf(m, k), t(n, k + 1), 2.0, None)),
    ("aten::_cdist_forward", (bf(m, k), t(n, k), True, None)),
    ("aten::_cdist_forward", (bf(m, k), t(n, k), "two", None)),
    ("aten::dist", (bf(m, n), t(n), 2)),
    ("aten::mse_loss", (bf(m, n), t(n), 1)),
    ("aten::_ctc_loss", (t(m, b, n), ints(b, 3), ints(b), ints(b), 0, False)),
    ("aten::native_layer_norm", (t(m, n), (m,), None, None, 1e-5)),
    ("aten::native_layer_norm", (t(m, n), (), None, None, 1e-5)),
    ("aten::_weight_norm_interface_backward", (t(m, n), t(m, n), t(m, 1), t(m, 1), 2)),
    (
        "aten::mkldnn_rnn_layer",
        (bf(m, b, k), t(4 * h, k + 1), t(4 * h, h), t(4 * h), t(4 * h), t(1, b, h), t(1, b, h)),
    ),
    ("aten::mkldnn_rnn_layer", (bf(m, b, k), t(4 * h, k), t(3 * h, h), t(4 * h), t(4 * h), t(1, b, h), t(1, b, h))),
    ("aten::mkldnn_rnn_layer", (bf(m, b, k), t(4 * h, k), t(4 * h, h), t(4 * h), t(4 * h), t(1, b, 9), t(1, b, 9))),
    ("aten::conv_tbc", (bf(9, b, k), t(3, k + 1, n), t(n), 1)),
    ("aten::cudnn_convolution_backward", (t(b, 4, 8, 8), t(b, 6, 8, 8), t(6, 4, 1, 1), (True,))),
    ("pyg::segment_matmul", (bf(m, k), ints(h + 1), t(h, k + 1, n))),
    ("pyg::segment_matmul", (bf(m, k), ints(h + 1), t(k, k))),
    ("pyg::grouped_matmul", ((bf(m, k),), (t(n, k),))),
    ("pyg::grouped_matmul", ((bf(m, k),), (t(k, n), t(k, n)))),
    ("torch_scatter::scatter_sum", (bf(m, n), ints(m), 0, None, None)),
    ("torchvision::roi_align", (bf(b, 3, 8, 8), t(k, 5), 0.5, 3, 2, 0, True)),
    ("torchvision::deform_conv2d", (bf(b, 3, 8, 8), t(n, 3, 3, 2), t(b, 13, 4, 5), t(b, 6, 4, 5), None)),
    ("DaoAILab::_causal_conv1d_fwd_cpp", (bf(b, n, k), t(n + 1, 4), None, None, None, bf(b, n, k), None, True)),
    ("DaoAILab::_causal_conv1d_fwd_cpp", (bf(n, k), t(k, 4), None, None, None, bf(n, k), None, True)),
    ("SelectiveScanFn", (bf(b, n, k), bf(b, n, k), t(n + 1, 4), bf(b, 4, k), bf(b, 4, k))),
    ("LigerSiLUMulFunction", (bf(m, n), bf(n))),
    ("_C::rms_norm", (bf(m, n), bf(n), bf(n), 1e-6)),
    ("_C::rotary_embedding", (ints(m), bf(m, 24), None, 8, dd(99, 9), True)),
    ("_C::rotary_embedding", (ints(m), bf(m, 24), None, 8, dd(99, 0), True)),
    ("_C::cutlass_scaled_mm", (bf(m, n), byte(m, k), byte(n, k), t(m), t(n))),
    ("_C::cutlass_scaled_mm", (bf(m, n + 1), byte(m, k), byte(k, n), t(m), t(n))),
    ("bitsandbytes::int8_linear_matmul", (byte(m, k), byte(k, n))),
    ("bitsandbytes::gemv_4bit", (bf(m, k), byte(39), (k, n), t(3), t(16), 32)),
    ("aten::_dyn_quant_matmul_4bit", (bf(m, k), byte(99), 32, k + 1, n)),
    ("quantized::linear", (byte(m, k), (byte(k, n), None), 0.1, 0)),
    ("quantized::linear", (byte(m, k), (), 0.1, 0)),
    ("quantized::linear", (byte(m, k), None, 0.1, 0)),
    ("quantized::linear", (byte(m, k), byte(n, k), 0.1, 0)),
    ("quantized::linear", (byte(m, k), (None, t(n)), 0.1, 0)),
    ("quantized::conv2d", (byte(b, 4, 8, 8), (byte(6, 4, 3, 3), None, ((1, 1), (0, 0), (0, 0), (1, 1), 1)), 0.1, 0)),
    (
        "quantized::conv2d",
        (byte(b, 4, 8), (byte(6, 4, 3, 3), None, ((1, 1), (0, 0), (0, 0), (1, 1), 1, False)), 0.1, 0),
    ),
    ("quantized::matmul", (byte(k), byte(k, n))),
    ("quantized::matmul", (byte(b, m, k), byte(3, k, n))),
    ("quantized::matmul", (byte(m, k), byte(n, k))),
    ("quantized::add", (byte(m, n), byte(n), 0.1, 0)),
    ("quantized::add", (byte(), byte(), 0.1, 0)),
    ("onednn::qlinear_pointwise", (byte(m, k), 0.1, 0, byte(n, 9), t(n), int4(n), None, 0.1, 0, None)),
    ("onednn::qlinear_pointwise", (byte(m, k), 0.1, 0, byte(n * k), t(n), int4(n), None, 0.1, 0, None)),
    ("onednn::qlinear_pointwise", (byte(m, k), 0.1, 0, byte(k), t(n), int4(n), None, 0.1, 0, None)),
    ("onednn::qlinear_pointwise", (byte(m, k), 0.1, 0, byte(n, k), t(n), int4(n), None, t(m, n), 0.1, 0)),
    ("onednn::qlinear_pointwise", (byte(m, k), 0.1, 0, byte(n, k), t(n), int4(n), None, 0.1, t(m, n), 0)),
    ("aten::quantized_lstm", (bf(m, b, k), (t(1, b, h),) * 2, (), True, 1, 0.0, False, False, False, 6, True)),
    ("aten::quantized_gru", (bf(m, b, k), t(2, b, h), (), True, 1, 0.0, False, False, False)),
    ("aten::quantized_gru", (bf(b, k), t(1, b, h), (), True, 1, 0.0, False, False, False)),
    ("aten::_sparse_semi_structured_linear", (bf(m, k), t(n, k), byte(n, 2), None, None, None)),
    ("aten::_sparse_semi_structured_mm", (bf(m, k), byte(m, 2), t(k, n), None)),
    ("aten::mm", (SPARSE, SPARSE_T)),
    ("aten::mm", (SPARSE, t(n, k))),
    ("aten::mm", (Tensor((m, k), "float32", None, Stored()), t(k, n))),
    ("aten::sparse_sampled_addmm", (Tensor((m, n), "float32", None, Stored(2, 16)), t(m, k), t(n, k))),
    ("aten::sparse_mask", (SPARSE, SPARSE)),
    ("aten::_sparse_mm_reduce_impl_backward", (SPARSE, t(m, n), t(k, n), "amax", None, (True, True))),
    ("aten::block_diag", ((bf(m, n), t(k)),)),
    ("aten::constant_pad_nd", (bf(m, n), (1, 2, 3), 0)),
    ("aten::constant_pad_nd", (bf(n), (1, 2, 3, 4), 0)),
    ("aten::repeat_interleave", (bf(m, n), ints(m), 0, None)),
    ("aten::repeat_interleave", (bf(m, n), 2, 2, None)),
    ("aten::segment_reduce", (bf(m, n), "sum", None, None, None, 0)),
    ("aten::segment_reduce", (bf(m, n), "sum", ints(h), None, None, 1)),
    ("aten::angle", (ints(m),)),
    ("aten::tril_indices", (3, 5, 0)),
    ("aten::tril_indices", (5, 5, 1)),
    ("aten::normal", (0.0, 1.0, (m, n))),
    ("aten::normal", (bf(m, n), t(n), None)),
    ("aten::arange", (0, "nine", None, None, None, None)),
    ("aten::embedding_sparse_backward", (bf(m, n), ints(m), 99, 0, False)),
    ("aten::mul", (ints(m), None)),
    ("aten::mul", (Tensor((m,)), None)),
    ("aten::index", (t(m, n), (ints(h), ints(h), ints(h)))),
    ("aten::index", (t(m, n), (None, None))),
    ("aten::index", (t(m, n), (ints(h), bits(n)))),
    # the values of a mask broadcast
    ("aten::index_put_", (t(m, n), (bits(m),), t(1, n), False)),
    ("aten::index_put_", (t(m, n), (bits(m),), t(n), False)),
    ("aten::index_put_", (t(m, n), (bits(m),), t(h, 1), False)),
    ("aten::upsample_nearest2d", (t(b, 3, 8, 8), None, None)),
    ("aten::_upsample_bilinear2d_aa", (t(b, 3, 8, 8), (4, 4), False, (0.5, 0.5))),
    ("aten::_upsample_bilinear2d_aa", (t(3, 8, 8), (4, 4), False, None)),
    ("aten::_nested_from_padded_tensor", (bf(h, m, n), int4(h + 1), t(0), 2, t(0), t(9), k)),
    ("aten::_jagged_to_padded_dense_forward", (bf(k, n), (int4(h + 1),), (m, m), 0.0)),
    ("aten::_transform_bias_rescale_qkv", (bf(b, m, 12), t(11), 2)),
    ("aten::_transform_bias_rescale_qkv", (bf(b, m, 13), t(13), 2)),
    ("aten::_fft_c2r", (t(m, n), (1,), 0, 8)),
    ("bitsandbytes::optimizer_update_32bit", (None, t(m), t(m), t(m), None, None, *[0.0] * 7, 0.1, 1, 1e-3, 1.0)),
    ("aten::zeros", ((), None, None, None, None)),
    # lengths of sequences that are data
    ("aten::_cudnn_attention_forward", (Q, K, K, None, OFFSETS, OFFSETS, m, n, False, 0.0, False, False)),
    ("aten::_cudnn_attention_forward", (Q, K, K, None, OFFSETS, None, m, n, False, 0.0, False, False)),
    *(("flash_attn_3::fwd", without(PAGED, place, int4(b))) for place in (3, 4, 5, 9, 10, 11, 14, 15, 16)),
    *(("_vllm_fa2_C::varlen_fwd", without(PAGED_2, place, int4(b))) for place in (6, 7, 8)),
    *(("flash_attn_3::bwd", without(BACK_3, place, int4(b))) for place in (11, 12)),
]


@pytest.mark.parametrize(("operator", "arguments"), UNKNOWN)
def test_unknown(operator: str, arguments: tuple[Argument, ...]) -> None:
    assert figures(operator, arguments) is None


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [("flash_attn_3::fwd", PAGED), ("_vllm_fa2_C::varlen_fwd", PAGED_2), ("flash_attn_3::bwd", BACK_3)],
)
def test_the_same_without_pages_is_known(operator: str, arguments: tuple[Argument, ...]) -> None:
    assert figures(operator, arguments) is not None
