"""FLOPs: agreement with torch's counter and with a paper, and laws."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from opanatomy.cost.registry import cost, describe, operators
from opanatomy.records.signature import Argument, Signature, Tensor
from tests.support.observer import Call, Observer
from tests.support.paths import ROOT

aten = torch.ops.aten
torch.set_num_threads(1)


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


CLASSES = {
    **dict.fromkeys(("aten::mm", "aten::addmm", "aten::bmm"), "contraction"),
    **dict.fromkeys(("aten::_safe_softmax", "aten::_softmax", "aten::_softmax_backward_data"), "normalization"),
    **dict.fromkeys(("aten::native_layer_norm", "aten::native_layer_norm_backward", "aten::sum"), "normalization"),
}


def _flops(calls: list[Call]) -> Counter[str]:
    """FLOPs by class."""
    totals: Counter[str] = Counter()
    for call in calls:
        totals[CLASSES.get(call.operator, "elementwise")] += _flops_of(call.operator, call.signature.arguments)
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
        ("aten::bmm", (_t(size, 3, 7), _t(size, 7, 5))),
        ("aten::convolution", (_t(size, 4, 9, 9), _t(6, 4, 3, 3), None, (2, 2), (1, 1), (1, 1), False, (0, 0), 1)),
        ("aten::_scaled_dot_product_flash_attention", (*[_t(size, 4, 6, 8)] * 3, 0.0, False, False, None)),
        ("aten::native_layer_norm", (_t(size, 5), (5,), _t(5), _t(5), 1e-5)),
        ("aten::gelu", (_t(size, 5), "none")),
        ("aten::sum", (_t(size, 5), (0,), False, None)),
        ("aten::embedding_dense_backward", (_t(size, 5), _t(size), 10, -1, False)),
    ]


def _t(*shape: int) -> Tensor:
    return Tensor(shape, "float32")


def _flops_of(operator: str, arguments: tuple[Argument, ...]) -> int:
    found = cost(operator, Signature(arguments))
    assert found is not None, operator
    return found.flops


@given(st.integers(1, 50))
def test_twice_the_batch_is_twice_the_flops(size: int) -> None:
    for (operator, one), (_, two) in zip(_batched(size), _batched(2 * size), strict=True):
        assert _flops_of(operator, two) == 2 * _flops_of(operator, one)


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


def test_every_formula_says_what_it_counts_and_docs_name_operators_that_have_one() -> None:
    assert [operator for operator in operators() if not describe(operator)] == []
    text = (ROOT / "docs" / "counting.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:aten|flash_attn|bitsandbytes)::\w+)`", text))
    assert len(named) > 120
    assert named <= set(operators())
