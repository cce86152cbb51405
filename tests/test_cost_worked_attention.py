"""All figures of attention, worked out by hand: torch's operators and other packages', forward and backward."""

from __future__ import annotations

import pytest

from opanatomy.cost.registry import cost
from opanatomy.records.signature import Argument, Signature, Tensor
from tests.worked import bf, dd, figures, int4, ints, t

# b sequences of s positions and hq heads of d; t_k positions and hk heads of keys, values of width e
b, hq, hk, s, t_k, d, e = 2, 6, 3, 5, 7, 11, 13
SCORES = b * hq * s * t_k
Q, K, V = 2 * b * hq * s * d, 2 * b * hk * t_k * d, 2 * b * hk * t_k * e
OUT, LSE = 2 * b * hq * s * e, 4 * b * hq * s
#: heads before positions, positions before heads, sequences behind each other
FIRST = (bf(b, hq, s, d), bf(b, hk, t_k, d), bf(b, hk, t_k, e))
THIRD = (bf(b, s, hq, d), bf(b, t_k, hk, d), bf(b, t_k, hk, e))
PACKED = (bf(b * s, hq, d), bf(b * t_k, hk, d), bf(b * t_k, hk, e))
GRAD, GRAD_THIRD, GRAD_PACKED = dd(b, hq, s, e), dd(b, s, hq, e), dd(b * s, hq, e)
SAVED, SAVED_THIRD, SUMS = bf(b, hq, s, e), bf(b, s, hq, e), t(b, hq, s)
#: A bias that all sequences share, and the ends of the sequences
BIAS, BIAS_BYTES = t(hq, s, t_k), 4 * hq * s * t_k
ENDS, ENDS_K = int4(b + 1), ints(b + 1)
FORWARD, BACKWARD = 2 * SCORES * (d + e), 2 * SCORES * (3 * d + 2 * e)
READ, READ_BACK, WRITTEN_BACK = Q + K + V, 4 * OUT + Q + K + V + OUT + LSE, Q + K + V
ENDS_BYTES = (4 + 8) * (b + 1)

#: operator, arguments, bytes read, bytes written, causal
FORWARDS: list[tuple[str, tuple[Argument, ...], int, int, bool]] = [
    ("aten::_scaled_dot_product_flash_attention", (*FIRST, 0.0, False, True), READ, OUT + LSE, False),
    ("aten::_scaled_dot_product_flash_attention", (*FIRST, 0.0, True, False), READ, OUT + LSE, True),
    ("aten::_scaled_dot_product_flash_attention", (*FIRST, t(), t(), t(), 0.0, True, False), READ, OUT + LSE, True),
    (
        "aten::_scaled_dot_product_flash_attention_for_cpu", (*FIRST, 0.0, True, BIAS), READ + BIAS_BYTES, OUT + LSE,
        True,
    ),
    ("aten::_scaled_dot_product_flash_attention_for_cpu", (*FIRST, 0.0, False, None), READ, OUT + LSE, False),
    (
        "aten::_scaled_dot_product_efficient_attention", (*FIRST, BIAS, False, 0.0, True), READ + BIAS_BYTES, OUT,
        True,
    ),
    ("aten::_scaled_dot_product_cudnn_attention", (*FIRST, None, True, 0.0, False, True), READ, OUT + LSE, False),
    (
        "aten::_scaled_dot_product_fused_attention_overrideable", (*FIRST, BIAS, 0.0, True, False),
        READ + BIAS_BYTES, OUT + LSE, True,
    ),
    ("aten::_flash_attention_forward", (*THIRD, None, None, s, t_k, 0.0, True, False), READ, OUT + LSE, True),
    (
        "aten::_flash_attention_forward", (*PACKED, ENDS, ENDS_K, s, t_k, 0.0, False, True), READ + ENDS_BYTES,
        OUT + LSE, False,
    ),
    (
        "aten::_efficient_attention_forward", (*THIRD, BIAS, None, None, None, None, 0.0, 1, False),
        READ + BIAS_BYTES, OUT, True,
    ),
    (
        "aten::_efficient_attention_forward", (*PACKED, None, ENDS, ENDS_K, s, t_k, 0.0, 2, True),
        READ + ENDS_BYTES, OUT + LSE, True,
    ),
    # behind each other and yet with a batch dimension
    (
        "aten::_efficient_attention_forward",
        (bf(1, b * s, hq, d), bf(1, b * t_k, hk, d), bf(1, b * t_k, hk, e), None, ENDS, ENDS_K, s, t_k, 0.0, 0, True),
        READ + ENDS_BYTES, OUT + LSE, False,
    ),
    (
        "aten::_efficient_attention_forward", (*THIRD, None, None, None, None, None, 0.0, 0, True),
        READ, OUT + LSE, False,
    ),
    (
        "aten::_cudnn_attention_forward", (*FIRST, BIAS, None, None, s, t_k, False, 0.0, True, False),
        READ + BIAS_BYTES, OUT, True,
    ),
    ("flash_attn::_flash_attn_forward", (*THIRD, 0.0, 0.5, True, -1), READ, OUT + LSE, True),
    ("flash_attn::_flash_attn_forward", (*THIRD, 0.0, 0.5, False, -1), READ, OUT + LSE, False),
    (
        "flash_attn::_flash_attn_varlen_forward", (*PACKED, ENDS, ENDS_K, s, t_k, 0.0, 0.5, True, -1),
        READ + ENDS_BYTES, OUT + LSE, True,
    ),
    (
        "_vllm_fa2_C::varlen_fwd",
        (*PACKED, bf(b * s, hq, e), ENDS, ENDS_K, None, None, None, None, s, t_k, 0.0, 0.5, False, True, -1),
        READ + ENDS_BYTES, OUT + LSE, True,
    ),
    # 8-bit inputs and their three scales give a 16-bit result
    (
        "flash_attn_3::fwd",
        (*(Tensor(x.shape, "float8_e4m3fn") for x in THIRD), *[None] * 17, t(1), t(2), t(3), 0.5, True),
        READ // 2 + 4 * (1 + 2 + 3), OUT + LSE, True,
    ),
    (
        "_vllm_fa3_C::fwd",
        (*PACKED, None, None, None, dd(b * s, hq, e), ENDS, ENDS_K, None, None, None, s, t_k, *[None] * 9, 0.5, False),
        READ + ENDS_BYTES, 4 * OUT + LSE, False,
    ),
    ("flash_attn_3::_flash_attn_forward", THIRD, READ, OUT + LSE, False),
]  # fmt: skip

#: the same of backwards: gradient in float64, so that no other tensor is as large
BACKWARDS: list[tuple[str, tuple[Argument, ...], int, int, bool]] = [
    (
        "aten::_scaled_dot_product_flash_attention_backward",
        (GRAD, *FIRST, SAVED, SUMS, None, None, s, t_k, 0.0, True, ints(), ints()), READ_BACK, WRITTEN_BACK, True,
    ),
    (
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
        (GRAD, *FIRST, SAVED, SUMS, 0.0, True, BIAS), READ_BACK + BIAS_BYTES, WRITTEN_BACK, True,
    ),
    (
        "aten::_scaled_dot_product_efficient_attention_backward",
        (GRAD, *FIRST, BIAS, SAVED, SUMS, ints(), ints(), 0.0, (True, True, True, True), True),
        READ_BACK + BIAS_BYTES, WRITTEN_BACK + BIAS_BYTES, True,
    ),
    (
        "aten::_scaled_dot_product_efficient_attention_backward",
        (GRAD, *FIRST, BIAS, SAVED, SUMS, ints(), ints(), 0.0, (True, True, True, False), False),
        READ_BACK + BIAS_BYTES, WRITTEN_BACK, False,
    ),
    (
        "aten::_scaled_dot_product_cudnn_attention_backward",
        (GRAD, *FIRST, SAVED, SUMS, ints(), ints(), BIAS, None, None, s, t_k, 0.0, True),
        READ_BACK + BIAS_BYTES, WRITTEN_BACK, True,
    ),
    (
        "aten::_cudnn_attention_backward",
        (GRAD, *FIRST, SAVED, SUMS, ints(), ints(), BIAS, None, None, s, t_k, 0.0, True),
        READ_BACK + BIAS_BYTES, WRITTEN_BACK, True,
    ),
    (
        "aten::_scaled_dot_product_fused_attention_overrideable_backward",
        (GRAD, *FIRST, BIAS, (True, True, True, True), SAVED, SUMS, None, None, s, t_k, 0.0, True, ints(), ints()),
        READ_BACK + BIAS_BYTES, WRITTEN_BACK + BIAS_BYTES, True,
    ),
    (
        "aten::_flash_attention_backward",
        (GRAD_THIRD, *THIRD, SAVED_THIRD, SUMS, None, None, s, t_k, 0.0, True, ints(), ints()),
        READ_BACK, WRITTEN_BACK, True,
    ),
    (
        "aten::_flash_attention_backward",
        (GRAD_PACKED, *PACKED, bf(b * s, hq, e), SUMS, ENDS, ENDS_K, s, t_k, 0.0, False, ints(), ints()),
        READ_BACK + ENDS_BYTES, WRITTEN_BACK, False,
    ),
    (
        "aten::_efficient_attention_backward",
        (GRAD_THIRD, *THIRD, BIAS, SAVED_THIRD, None, None, s, t_k, SUMS, 0.0, ints(), ints(), 1, True),
        READ_BACK + BIAS_BYTES, WRITTEN_BACK + BIAS_BYTES, True,
    ),
    (
        "aten::_efficient_attention_backward",
        (GRAD_PACKED, *PACKED, BIAS, bf(b * s, hq, e), ENDS, ENDS_K, s, t_k, SUMS, 0.0, ints(), ints(), 0, False),
        READ_BACK + BIAS_BYTES + ENDS_BYTES, WRITTEN_BACK, False,
    ),
    (
        "flash_attn::_flash_attn_backward", (GRAD_THIRD, *THIRD, SAVED_THIRD, SUMS, *THIRD, 0.0, 0.5, True, -1),
        READ_BACK, WRITTEN_BACK, True,
    ),
    (
        "flash_attn::_flash_attn_varlen_backward",
        (GRAD_PACKED, *PACKED, bf(b * s, hq, e), SUMS, *PACKED, ENDS, ENDS_K, s, t_k, 0.0, 0.5, True),
        READ_BACK + ENDS_BYTES, WRITTEN_BACK, True,
    ),
    (
        "flash_attn_3::bwd",
        (GRAD_THIRD, *THIRD, SAVED_THIRD, SUMS, *[None] * 9, 0.5, True), READ_BACK, WRITTEN_BACK, True,
    ),
    (
        "flash_attn_3::bwd",
        (GRAD_PACKED, *PACKED, bf(b * s, hq, e), SUMS, *PACKED, ENDS, ENDS_K, None, None, s, t_k, 0.5),
        READ_BACK + ENDS_BYTES, WRITTEN_BACK, False,
    ),
    (
        "flash_attn_3::_flash_attn_backward",
        (GRAD_PACKED, *PACKED, bf(b * s, hq, e), SUMS, ENDS, ENDS_K, None, None, s, t_k, 0.5, True, -1, -1, 0.0, False,
         0),
        READ_BACK + ENDS_BYTES, WRITTEN_BACK, True,
    ),
    (
        "flash_attn_3::_flash_attn_backward",
        (GRAD_PACKED, *PACKED, bf(b * s, hq, e), SUMS, ENDS, ENDS_K, None, None, s, t_k, *PACKED, 0.5, True, -1, -1,
         0.0, False, 0),
        READ_BACK + ENDS_BYTES, WRITTEN_BACK, True,
    ),
]  # fmt: skip


def test_one_packed_sequence() -> None:
    q = bf(s, hq, d)
    scores = hq * s * s
    assert figures("flash_attn::_flash_attn_varlen_forward", (q, q, q, int4(2), int4(2), s, s, 0.0, 0.5, False)) == (
        4 * scores * d, 3 * 2 * s * hq * d + 16, 2 * s * hq * d + 4 * s * hq,
    )  # fmt: skip


@pytest.mark.parametrize(("operator", "arguments", "read", "written", "causal", "flops"), [
    *((*row, FORWARD) for row in FORWARDS), *((*row, BACKWARD) for row in BACKWARDS),
])  # fmt: skip
def test_attention(
    operator: str, arguments: tuple[Argument, ...], read: int, written: int, causal: bool, flops: int
) -> None:
    costs = cost(operator, Signature(arguments))
    assert costs is not None
    assert (costs.flops, costs.read_bytes, costs.written_bytes) == (flops, read, written)
    assert costs.causal_flops == (flops // 2 if causal else None)
    assert costs.normalization_flops == 4 * SCORES
