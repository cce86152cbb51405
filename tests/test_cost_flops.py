"""FLOPs: worked examples as products of named sizes, agreement with torch's counter, laws, and what is not known."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from opanatomy.cost import registry
from opanatomy.cost.registry import cost, describe, formula, operators
from opanatomy.records.signature import Argument, Cost, Signature, Tensor
from tests.observer import Call, Observer

aten = torch.ops.aten
torch.set_num_threads(1)


def t(*shape: int, dtype: str = "float32") -> Tensor:
    """A contiguous tensor argument."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return Tensor(shape, dtype, tuple(reversed(strides)))


def bf(*shape: int) -> Tensor:
    """A bfloat16 tensor argument."""
    return t(*shape, dtype="bfloat16")


def ints(*shape: int) -> Tensor:
    """An int64 tensor argument."""
    return t(*shape, dtype="int64")


def of(operator: str, *arguments: Argument) -> Cost:
    """The cost of a call, which has one."""
    found = cost(operator, Signature(arguments))
    assert found is not None, operator
    return found


# ------------------------------------------------------------------------------------------------------ worked examples

m, n, k, b, g = 3, 5, 7, 2, 4
h, s, d = 4, 6, 8
c_in, c_out, side, kernel = 4, 6, 9, 3
out_side = side - kernel + 1

#: operator, arguments, FLOPs, bytes read, bytes written
EXAMPLES: list[tuple[str, tuple[Argument, ...], int, int, int]] = [
    ("aten::mm", (t(m, k), t(k, n)), 2 * m * n * k, 4 * (m * k + k * n), 4 * m * n),
    ("aten::mm", (bf(m, k), bf(k, n)), 2 * m * n * k, 2 * (m * k + k * n), 2 * m * n),
    ("aten::mm", (bf(m, k), bf(k, n), 6), 2 * m * n * k, 2 * (m * k + k * n), 4 * m * n),
    ("aten::addmm", (t(n), t(m, k), t(k, n), 1, 1), 2 * m * n * k, 4 * (n + m * k + k * n), 4 * m * n),
    ("aten::addmm", (t(m, n), t(m, k), t(k, n), 0, 1), 2 * m * n * k, 4 * (m * k + k * n), 4 * m * n),
    ("aten::addmm", (t(n), bf(m, k), bf(k, n), 6, 1, 1), 2 * m * n * k, 4 * n + 2 * (m * k + k * n), 4 * m * n),
    ("aten::rsub", (t(m, n), t(m, n), 1), m * n, 8 * m * n, 4 * m * n),
    ("aten::rsub", (t(m, n), t(m, n), 2), 2 * m * n, 8 * m * n, 4 * m * n),
    (
        "aten::_fused_rms_norm_backward", (t(m, n), t(m, n), (n,), t(m, 1), t(n), (False, True)),
        3 * m * n, 4 * (2 * m * n + m + n), 4 * n,
    ),
    ("aten::mv", (t(m, k), t(k)), 2 * m * k, 4 * (m * k + k), 4 * m),
    ("aten::dot", (t(k), t(k)), 2 * k, 8 * k, 4),
    ("aten::bmm", (t(b, m, k), t(b, k, n)), 2 * b * m * n * k, 4 * b * (m * k + k * n), 4 * b * m * n),
    ("aten::linear", (t(b, m, k), t(n, k), t(n)), 2 * b * m * n * k, 4 * (b * m * k + n * k + n), 4 * b * m * n),
    ("aten::matmul", (t(b, m, k), t(k)), 2 * b * m * k, 4 * (b * m * k + k), 4 * b * m),
    (
        "aten::_scaled_mm",
        (t(m, k, dtype="float8_e4m3fn"), t(k, n, dtype="float8_e4m3fn"), t(), t(), None, None, 15, True),
        2 * m * n * k, m * k + k * n + 8, 2 * m * n,
    ),
    # mixture of experts: m rows fall into g groups, which of them does not matter
    (
        "aten::_grouped_mm", (bf(m, k), bf(g, k, n), t(g, dtype="int32"), None, None),
        2 * m * n * k, 2 * (m * k + g * k * n) + 4 * g, 2 * m * n,
    ),
    (
        "aten::_grouped_mm", (bf(m, k), bf(k, n), t(g, dtype="int32"), None, None),
        2 * m * n * k, 2 * (m * k + k * n) + 4 * g, 2 * g * m * n,
    ),
    (
        "aten::convolution",
        (t(b, c_in, side, side), t(c_out, c_in, kernel, kernel), None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1),
        2 * b * c_out * out_side**2 * c_in * kernel**2,
        4 * (b * c_in * side**2 + c_out * c_in * kernel**2), 4 * b * c_out * out_side**2,
    ),
    (
        "aten::cudnn_convolution",
        (t(b, c_in, side, side), t(c_out, c_in, kernel, kernel), (0, 0), (1, 1), (1, 1), 1, True, False, True),
        2 * b * c_out * out_side**2 * c_in * kernel**2,
        4 * (b * c_in * side**2 + c_out * c_in * kernel**2), 4 * b * c_out * out_side**2,
    ),
    # a depthwise layer: each gradient costs what the forward costs
    (
        "aten::convolution_backward",
        (t(b, c_in, side, side), t(b, c_in, side, side), t(c_in, 1, 7, 7), (0,), (1, 1), (3, 3), (1, 1), False, (0, 0),
         c_in, (True, True, False)),
        2 * (2 * b * c_in * side**2 * 7**2),
        4 * (2 * b * c_in * side**2 + c_in * 49), 4 * (b * c_in * side**2 + c_in * 49),
    ),
    # the first layer needs no input gradient and does not read the weight
    (
        "aten::convolution_backward",
        (t(b, c_out, out_side, out_side), t(b, c_in, side, side), t(c_out, c_in, kernel, kernel), (c_out,), (1, 1),
        (0, 0),
         (1, 1), False, (0, 0), 1, (False, True, True)),
        2 * b * c_out * out_side**2 * c_in * kernel**2,
        4 * (b * c_out * out_side**2 + b * c_in * side**2), 4 * (c_out * c_in * kernel**2 + c_out),
    ),
    (
        "aten::cudnn_convolution_backward_input",
        ((b, c_in, side, side), t(b, c_out, out_side, out_side), t(c_out, c_in, kernel, kernel), (0, 0), (1, 1),
        (1, 1), 1),
        2 * b * c_out * out_side**2 * c_in * kernel**2,
        4 * (b * c_out * out_side**2 + c_out * c_in * kernel**2), 4 * b * c_in * side**2,
    ),
    (
        "aten::cudnn_convolution_backward_weight",
        ((c_out, c_in, kernel, kernel), t(b, c_out, out_side, out_side), t(b, c_in, side, side), (0, 0), (1, 1),
        (1, 1), 1),
        2 * b * c_out * out_side**2 * c_in * kernel**2,
        4 * (b * c_out * out_side**2 + b * c_in * side**2), 4 * c_out * c_in * kernel**2,
    ),
    # normalization
    ("aten::_softmax", (t(m, n), -1, False), 4 * m * n, 4 * m * n, 4 * m * n),
    ("aten::_softmax", (t(m, n, dtype="float16"), -1, True), 4 * m * n, 2 * m * n, 4 * m * n),
    ("aten::_softmax_backward_data", (t(m, n), t(m, n), -1, 6), 4 * m * n, 8 * m * n, 4 * m * n),
    ("aten::native_layer_norm", (t(m, n), (n,), t(n), t(n), 1e-5), 7 * m * n, 4 * (m * n + 2 * n), 4 * (m * n + 2 * m)),
    ("aten::native_layer_norm", (bf(m, n), (n,), None, None, 1e-5), 5 * m * n, 2 * m * n, 2 * m * n + 4 * 2 * m),
    (
        "aten::native_layer_norm_backward",
        (t(m, n), t(m, n), (n,), t(m, 1), t(m, 1), t(n), t(n), (True, True, True)),
        (9 + 4) * m * n, 4 * (2 * m * n + 2 * m + 2 * n), 4 * (m * n + 2 * n),
    ),
    ("aten::_fused_rms_norm", (bf(m, n), (n,), bf(n), 1e-5), 4 * m * n, 2 * (m * n + n), 2 * m * n + 4 * m),
    (
        "aten::_fused_rms_norm_backward", (t(m, n), t(m, n), (n,), t(m, 1), t(n), (True, True)),
        (6 + 3) * m * n, 4 * (2 * m * n + m + n), 4 * (m * n + n),
    ),
    (
        "aten::cudnn_batch_norm", (t(b, n, m), t(n), t(n), t(n), t(n), True, 0.1, 1e-5),
        7 * b * n * m, 4 * (b * n * m + 4 * n), 4 * (b * n * m + 2 * n + 2 * n),
    ),
    (
        "aten::native_batch_norm", (t(b, n, m), t(n), t(n), t(n), t(n), False, 0.1, 1e-5),
        4 * b * n * m, 4 * (b * n * m + 4 * n), 4 * b * n * m,
    ),
    (
        "aten::cudnn_batch_norm_backward",
        (t(b, n, m), t(b, n, m), t(n), t(n), t(n), t(n), t(n), 1e-5, t(99, dtype="uint8")),
        13 * b * n * m, 4 * (2 * b * n * m + 5 * n), 4 * (b * n * m + 2 * n),
    ),
    ("aten::nll_loss_forward", (t(m, n), ints(m), None, 1, -100), m, 4 * m + 8 * m, 4 + 4),
    ("aten::nll_loss_backward", (t(), t(m, n), ints(m), None, 1, -100, t()), m, 4 + 8 * m + 4, 4 * m * n),
    ("aten::sum", (t(m, n), (0,), True, None), m * n, 4 * m * n, 4 * n),
    ("aten::sum", (t(m, n), None), m * n, 4 * m * n, 4),
    ("aten::mean", (bf(m, n), (-1,), True, 6), m * n, 2 * m * n, 4 * m),
    ("aten::cumsum", (ints(m, n), 0, None), m * n, 8 * m * n, 8 * m * n),
    # element-wise
    ("aten::add", (t(m, n), t(n), 1), m * n, 4 * (m * n + n), 4 * m * n),
    ("aten::add", (t(m, n), t(n), 0.5), 2 * m * n, 4 * (m * n + n), 4 * m * n),
    ("aten::add_", (t(m, n), t(m, n), 1), m * n, 8 * m * n, 4 * m * n),
    ("aten::add", (t(m), t(n, m), 1, t(n, m)), m * n, 4 * (m + n * m), 4 * n * m),
    # an `out` tensor that the operator still has to resize
    ("aten::add", (t(m), t(n, m), 1, bf(0)), m * n, 4 * (m + n * m), 2 * n * m),
    ("aten::mul", (bf(m, n), t(m, n)), m * n, 6 * m * n, 4 * m * n),
    # a Python number as a trace writes it: 0-dimensional, float64; and a real 0-dimensional float32 tensor
    ("aten::mul", (bf(m, n), t(dtype="float64")), m * n, 2 * m * n, 2 * m * n),
    ("aten::mul", (bf(m, n), t()), m * n, 2 * m * n + 4, 2 * m * n),
    ("aten::mul", (ints(m, n), t(dtype="float64")), m * n, 8 * m * n, 4 * m * n),
    ("aten::div", (ints(m), t(dtype="int64")), m, 8 * m, 4 * m),
    ("aten::div", (ints(m), t(dtype="int64"), None), m, 8 * m, 8 * m),
    ("aten::gt", (t(m, n), 0), 0, 4 * m * n, m * n),
    ("aten::relu", (t(m, n),), 0, 4 * m * n, 4 * m * n),
    ("aten::threshold_backward", (t(m, n), t(m, n), 0), 0, 8 * m * n, 4 * m * n),
    ("aten::gelu", (t(m, n), "none"), 5 * m * n, 4 * m * n, 4 * m * n),
    ("aten::gelu", (t(m, n), "tanh"), 10 * m * n, 4 * m * n, 4 * m * n),
    ("aten::gelu_backward", (t(m, n), t(m, n), "tanh"), 18 * m * n, 8 * m * n, 4 * m * n),
    ("aten::silu_backward", (t(m), t(m)), 9 * m, 8 * m, 4 * m),
    ("aten::native_dropout", (t(m, n), 0.1, True), m * n, 4 * m * n, 5 * m * n),
    ("aten::bernoulli_", (t(m, n), 0.9, None), 0, 0, 4 * m * n),
    ("aten::where", (t(m, n, dtype="bool"), t(m, n), t()), 0, m * n + 4 * m * n + 4, 4 * m * n),
    ("aten::addcmul_", (t(m), t(m), t(m), 0.1), 3 * m, 12 * m, 4 * m),
    ("aten::add", (Tensor((m, n), "float32", (0, 1)), t(m, n), 1), m * n, 4 * (n + m * n), 4 * m * n),
    # movement
    ("aten::copy_", (bf(m, n), t(m, n), False), 0, 4 * m * n, 2 * m * n),
    ("aten::_to_copy", (t(m, n), 15, None, None, None, False, None), 0, 4 * m * n, 2 * m * n),
    ("aten::cat", ((t(m, n), t(m, n)), 0), 0, 8 * m * n, 8 * m * n),
    ("aten::view", (t(m, n), (m * n,)), 0, 0, 0),
    ("aten::empty", ((m, n), 6, 0, None, False, None), 0, 0, 0),
    ("aten::zero_", (t(m, n),), 0, 0, 4 * m * n),
    ("aten::arange", (0, 10, 1, ints(0)), 0, 0, 80),
    ("aten::arange", (10, None, None, None, False), 0, 0, 80),
    # m rows of a large table; a table smaller than what is looked up is read once
    ("aten::embedding", (t(1000, n), ints(m), -1, False, False), 0, 4 * m * n + 8 * m, 4 * m * n),
    ("aten::embedding", (t(2, n), ints(m), -1, False, False), 0, 4 * 2 * n + 8 * m, 4 * m * n),
    ("aten::embedding_dense_backward", (t(m, n), ints(m), 100, -1, False), m * n, 4 * m * n + 8 * m, 4 * 100 * n),
    ("aten::index", (t(100, n), (ints(m),)), 0, 4 * m * n + 8 * m, 4 * m * n),
    ("aten::index_add_", (t(100, n), 0, ints(m), t(m, n), 1), m * n, 8 * m * n + 8 * m, 4 * m * n),
    ("aten::topk", (t(m, n), 2, -1, True, True), 0, 4 * m * n, m * 2 * (4 + 8)),
    ("aten::max_pool2d_with_indices", (t(b, n, 8, 8), (2, 2), (), (0, 0), (1, 1), False), 0, 4 * b * n * 64,
    12 * b * n * 16),
    ("aten::avg_pool2d", (t(b, n, 8, 8), (2, 2), (), (0, 0), False, True, None), 4 * b * n * 16, 4 * b * n * 64,
    4 * b * n * 16),
    # optimizers: parameter, gradient and two averages read, all but the gradient written
    (
        "aten::_fused_adamw_",
        ((t(m, n),), (t(m, n),), (t(m, n),), (t(m, n),), (), (t(),), 1e-3, 0.9, 0.999, 0.01, 1e-8, False, False, None,
        None),
        14 * m * n, 16 * m * n + 4, 12 * m * n,
    ),
    (
        "aten::_fused_sgd_",
        ((t(m),), (t(m),), (t(m),), 0.0, 0.9, 0.1, 0.0, False, False, False, None, None), 5 * m, 12 * m, 8 * m,
    ),
    # searches and cells; a cell's six values of each element: its state, what the backward needs
    ("aten::searchsorted", (t(m), t(n), False), 0, 4 * (m + n), 8 * n),
    (
        "aten::_thnn_fused_gru_cell", (t(b, 3 * d), t(b, 3 * d), t(b, d), t(3 * d), t(3 * d)),
        22 * b * d, 4 * (7 * b * d + 6 * d), 4 * 6 * b * d,
    ),
    (
        "aten::_thnn_fused_gru_cell_backward", (t(b, d), t(b, 5 * d), True),
        (16 + 6) * b * d, 4 * 6 * b * d, 4 * (7 * b * d + 6 * d),
    ),
    ("LigerGELUMulFunction", (t(m, n), t(m, n)), 11 * m * n, 8 * m * n, 4 * m * n),
    ("aten::_foreach_add_", ((t(m), t(n)), (t(m), t(n)), 1), m + n, 8 * (m + n), 4 * (m + n)),
    ("aten::_foreach_addcdiv_", ((t(m),), (t(m),), (t(m),), (-0.1,)), 3 * m, 12 * m, 4 * m),
    ("aten::_foreach_norm", ((t(m), t(n)), 2, None), m + n, 4 * (m + n), 8),
    ("aten::_amp_foreach_non_finite_check_and_unscale_", ((t(m),), t(), t()), m, 4 * m + 8, 4 * m + 4),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "arguments", "flops", "read", "written"), EXAMPLES)
def test_worked_example(operator: str, arguments: tuple[Argument, ...], flops: int, read: int, written: int) -> None:
    found = of(operator, *arguments)
    assert (found.flops, found.read_bytes, found.written_bytes) == (flops, read, written)


def test_causal_attention_keeps_both_figures_and_its_softmax() -> None:
    q = bf(b, h, s, d)
    full = of("aten::_scaled_dot_product_flash_attention", q, q, q, 0.0, False, False, None)
    causal = of("aten::_scaled_dot_product_flash_attention", q, q, q, 0.0, True, False, None)
    assert full.flops == causal.flops == 4 * b * h * s * s * d
    assert full.causal_flops is None
    assert causal.causal_flops == 2 * b * h * s * s * d
    assert full.normalization_flops == 4 * b * h * s * s
    assert full.read_bytes == 3 * 2 * b * h * s * d
    assert full.written_bytes == 2 * b * h * s * d + 4 * b * h * s


def test_grouped_query_attention_counts_the_heads_of_the_query() -> None:
    q, kv = bf(b, h, s, d), bf(b, h // 2, s, d)
    found = of("aten::_scaled_dot_product_cudnn_attention", q, kv, kv, None, True, 0.0, False, False, None)
    assert found.flops == 4 * b * h * s * s * d


def test_attention_backward_is_five_products() -> None:
    q, kv, lse = bf(b, h, s, d), bf(b, h, 5, d), t(b, h, s)
    found = of(
        "aten::_scaled_dot_product_flash_attention_backward",
        q, q, kv, kv, q, lse, None, None, s, 5, 0.0, True, ints(2), ints(), None,
    )  # fmt: skip
    assert found.flops == 10 * b * h * s * 5 * d
    assert found.causal_flops == found.flops // 2
    assert found.read_bytes == 2 * (3 * b * h * s * d + 2 * b * h * 5 * d) + 4 * b * h * s
    assert found.written_bytes == 2 * (b * h * s * d + 2 * b * h * 5 * d)


def test_packed_sequences_are_known_only_where_all_are_equally_long() -> None:
    offsets, total = t(3, dtype="int32"), bf(2 * s, h, d)
    known = of("flash_attn::_flash_attn_varlen_forward", total, total, total, offsets, offsets, s, s, 0.0, 0.1, True)
    assert known.flops == 4 * 2 * h * s * s * d
    arguments = (total, total, total, offsets, offsets, s + 1, s + 1, 0.0, 0.1, True)
    assert cost("flash_attn::_flash_attn_varlen_forward", Signature(arguments)) is None


# ------------------------------------------------------------------------------------------------ agreement with torch


def _pair(run: Callable[[], Any]) -> tuple[Counter[str], Counter[str]]:
    """FLOPs by operator: ours, torch's."""
    with FlopCounterMode(display=False) as counter, Observer() as observer:
        run()
    theirs = Counter({f"aten::{str(op).split('.')[-1]}": f for op, f in counter.get_flop_counts()["Global"].items()})
    ours: Counter[str] = Counter()
    for call in observer.calls:
        found = cost(call.operator, call.signature)
        if call.operator in theirs:
            assert found is not None, call
            ours[call.operator] += found.flops
    return ours, theirs


def _meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, device="meta", dtype=dtype, requires_grad=True)


def _flash() -> None:
    q, kv = _meta(2, 4, 6, 8), _meta(2, 4, 5, 8)
    out = aten._scaled_dot_product_flash_attention(q, kv, kv)
    aten._scaled_dot_product_flash_attention_backward(
        out[0], q, kv, kv, *out[:2], None, None, 6, 5, 0.0, False, *out[6:8]
    )


def _efficient() -> None:
    q, kv = _meta(2, 4, 6, 8), _meta(2, 4, 5, 8)
    out = aten._scaled_dot_product_efficient_attention(q, kv, kv, None, True)
    aten._scaled_dot_product_efficient_attention_backward(
        out[0], q, kv, kv, None, *out, 0.0, [True, True, True, False], False
    )


def _convolutions() -> None:
    x = torch.rand(2, 4, 9, 8, requires_grad=True)
    y = F.conv2d(x, torch.rand(6, 4, 3, 3, requires_grad=True), torch.rand(6, requires_grad=True), stride=2, padding=1)
    z = F.conv_transpose2d(y, torch.rand(6, 3, 3, 2, requires_grad=True), stride=(2, 1), output_padding=(1, 0))
    F.conv1d(z.flatten(2), torch.rand(5, 3, 4, requires_grad=True), dilation=2).sum().backward()


def _layers() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4, bias=False))
    model(torch.rand(3, 5, 8)).square().mean().backward()
    torch.baddbmm(torch.rand(2, 3, 5), torch.rand(2, 3, 4), torch.rand(2, 4, 5))
    torch.einsum("bij,bkj->bik", torch.rand(2, 3, 4), torch.rand(2, 5, 4))


@pytest.mark.parametrize("run", [_flash, _efficient, _convolutions, _layers])
def test_contractions_equal_torch(run: Callable[[], None]) -> None:
    ours, theirs = _pair(run)
    assert theirs.total() > 0
    assert ours == theirs


def test_torch_ignores_groups_in_convolution_backward_and_we_do_not() -> None:
    def depthwise() -> None:
        x = torch.rand(1, 32, 16, 16, requires_grad=True)
        F.conv2d(x, torch.rand(32, 1, 7, 7, requires_grad=True), padding=3, groups=32).sum().backward()

    ours, theirs = _pair(depthwise)
    forward = ours["aten::convolution"]
    assert ours["aten::convolution_backward"] == 2 * forward
    assert theirs["aten::convolution_backward"] == 33 * forward


def _encoder_layer() -> tuple[list[Call], list[Call]]:
    """Forward and backward of the layer of arXiv 2007.00072 on meta tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, device="meta")
    x = torch.empty(8, 512, 1024, device="meta", requires_grad=True)
    with Observer() as observer, sdpa_kernel(SDPBackend.MATH):
        y = layer(x)
        border = len(observer.calls)
        y.backward(torch.empty_like(y))
    return observer.calls[:border], observer.calls[border:]


CONTRACTIONS = ("aten::mm", "aten::addmm", "aten::bmm")
NORMALIZATIONS = (
    "aten::_safe_softmax", "aten::_softmax", "aten::_softmax_backward_data", "aten::native_layer_norm",
    "aten::native_layer_norm_backward", "aten::sum",
)  # fmt: skip


def _flops(calls: list[Call]) -> dict[str, int]:
    """FLOPs by class."""
    totals = dict.fromkeys(("contraction", "normalization", "elementwise"), 0)
    for call in calls:
        found = of(call.operator, *call.signature.arguments)
        name = "contraction" if call.operator in CONTRACTIONS else "elementwise"
        totals["normalization" if call.operator in NORMALIZATIONS else name] += found.flops
    return totals


def test_encoder_layer_of_the_paper() -> None:
    forward, backward = map(_flops, _encoder_layer())
    gi = 2**30
    assert forward["contraction"] == 104 * gi
    assert backward["contraction"] == 208 * gi
    # the paper has 0.53515625: its softmax includes the scale and the dropout, 2 more forward and 1 backward an element
    scores = 8 * 16 * 512 * 512
    paper = int(0.53515625 * gi)
    assert forward["normalization"] + backward["normalization"] == paper - 3 * scores
    # the paper has 0.09765625: see docs/counting.md for each line
    rows, wide, packed = 8 * 512 * 1024, 8 * 512 * 4096, 8 * 512 * 3072
    scales = 4 * rows  # of query and key, forward and backward: in the paper's softmax
    dropouts = 3 * scores + 2 * rows + wide  # of the scores (in its softmax), and scaling the mask on the CPU
    stacked = 2 * packed  # gradients of query, key and value added into one tensor
    epilogues = 2 * rows + wide  # biases inside addmm
    expected = int(0.09765625 * gi) + scales + dropouts + stacked - epilogues
    assert forward["elementwise"] + backward["elementwise"] == expected


# ---------------------------------------------------------------------------------------------------------------- laws


def _batched(size: int) -> list[tuple[str, tuple[Argument, ...]]]:
    return [
        ("aten::bmm", (t(size, m, k), t(size, k, n))),
        ("aten::convolution", (t(size, 4, 9, 9), t(6, 4, 3, 3), None, (2, 2), (1, 1), (1, 1), False, (0, 0), 1)),
        ("aten::_scaled_dot_product_flash_attention", (t(size, h, s, d),) * 3 + (0.0, False, False, None)),
        ("aten::native_layer_norm", (t(size, n), (n,), t(n), t(n), 1e-5)),
        ("aten::gelu", (t(size, n), "none")),
        ("aten::sum", (t(size, n), (0,), False, None)),
        ("aten::embedding_dense_backward", (t(size, n), ints(size), 10, -1, False)),
    ]


@given(st.integers(1, 50))
def test_twice_the_batch_is_twice_the_flops(size: int) -> None:
    for (operator, one), (_, two) in zip(_batched(size), _batched(2 * size), strict=True):
        assert of(operator, *two).flops == 2 * of(operator, *one).flops


_DTYPES = st.sampled_from(["float32", "bfloat16", "int64", "bool", "qint8", None])
_TENSORS = st.builds(Tensor, st.lists(st.integers(0, 9), max_size=5).map(tuple), _DTYPES)
_ARGUMENTS = st.recursive(
    st.one_of(
        _TENSORS, st.none(), st.booleans(), st.integers(-3, 50), st.floats(), st.sampled_from(["", "tanh", "adam"])
    ),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(_ARGUMENTS, max_size=15).map(tuple))
def test_odd_arguments_never_raise(arguments: tuple[Argument, ...]) -> None:
    for operator in operators():
        found = cost(operator, Signature(arguments))
        if found is not None:
            assert min(found.flops, found.read_bytes, found.written_bytes) >= 0


# ------------------------------------------------------------------------------------------------------ what is unknown


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        ("aten::no_such_operator", (t(m),)),
        ("aten::mm", ()),
        ("aten::mm", (t(m, k), t(n, k))),
        ("aten::mm", (Tensor((m, k)), Tensor((k, n)))),
        # the trace dropped the constants
        ("aten::cudnn_convolution", (t(b, c_in, side, side), t(c_out, c_in, 3, 3), (), (), (), None, None, None, None)),
        ("aten::cudnn_convolution_backward_input", ((), t(b, c_out, 7, 7), t(c_out, c_in, 3, 3), (), (), (), None)),
        ("aten::cudnn_convolution_backward_weight", ((), t(b, c_out, 7, 7), t(b, c_in, 9, 9), (), (), (), None)),
        ("aten::sum", (t(m, n), (), None, None)),
        ("aten::cudnn_batch_norm", (t(b, n, m), t(n), t(n), t(n), t(n), None, None, None)),
        ("aten::add", (ints(m), None, None)),
        ("aten::zeros", ((), None, None, None, None)),
        # data, not shapes
        ("aten::index", (t(m, n), None)),
        ("aten::index", (t(m, n), (t(m, dtype="bool"),))),
        ("aten::nonzero", (t(m),)),
        ("aten::_ctc_loss", (t(9, b, n), ints(6), ints(b), ints(b), 0, False)),
        # tensor lists without a data type
        ("aten::cat", ((Tensor((m, n)), Tensor((m, n))), 0)),
        ("aten::_foreach_add_", ((Tensor((m,)),), (Tensor((m,)),), 1)),
        # a long list that the trace dropped
        ("aten::_fused_adamw_", (*[None] * 6, 1e-3, 0.9, 0.999, 0.01, 1e-8, False, False, None, None)),
        ("aten::_fused_sgd_", (*[None] * 3, 0.0, 0.9, 0.1, 0.0, False, False, False, None, None)),
        ("aten::_foreach_add_", (None, None, 1)),
        ("aten::cat", (None, 0)),
    ],
)
def test_unknown(operator: str, arguments: tuple[Argument, ...]) -> None:
    assert cost(operator, Signature(arguments)) is None


def test_a_formula_of_your_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_FORMULAS", dict(registry._FORMULAS))

    @formula("mylib::fused_add_norm")
    def fused_add_norm(signature: Signature) -> Cost:
        """8 per element."""
        x = signature.tensor(0)
        return Cost(flops=8 * x.numel, read_bytes=8 * x.numel, written_bytes=4 * x.numel)

    assert of("mylib::fused_add_norm", t(m, n)).flops == 8 * m * n
    assert cost("mylib::fused_add_norm", Signature(("a string",))) is None
    assert describe("mylib::fused_add_norm") == "8 per element."
    assert describe("mylib::another") is None


def test_every_formula_says_what_it_counts() -> None:
    for operator in operators():
        text = describe(operator)
        assert text, operator


def test_docs_name_operators_that_have_formulas() -> None:
    text = (Path(__file__).parents[1] / "docs" / "counting.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:aten|flash_attn|bitsandbytes)::\w+)`", text))
    assert len(named) > 120
    assert named <= set(operators())
