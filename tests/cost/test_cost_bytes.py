"""Bytes of every family against a dispatch-mode observer of real tensors, operator call by operator call."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from opanatomy.cost.elementwise import MAPS
from opanatomy.cost.registry import cost
from opanatomy.records.signature import Cost
from opanatomy.trace.signatures import parse_signature
from tests.support.observer import Call, Observer

aten = torch.ops.aten
torch.set_num_threads(1)

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool)


#: Adam passes the gradient twice; a trace does not say that both are one tensor.
SQUARES = ("aten::addcmul_", "aten::_foreach_addcmul_")


def observe(run: Callable[[], Any]) -> list[Call]:
    """The operator calls of `run`."""
    torch.manual_seed(0)
    with Observer() as observer:
        run()
    assert observer.calls
    return observer.calls


def assert_same_bytes(calls: Iterable[Call]) -> None:
    """Each call has a cost, with the bytes seen."""
    for call in calls:
        if not call.operator.startswith("profiler::"):
            found = cost(call.operator, call.signature, "cpu")
            twice = call.operator in SQUARES and found is not None and found.read_bytes > call.read_bytes
            assert twice or call.equals(found), f"{call}; cost {found}"


# ---------------------------------------------------------------------------------------------------------------- maps


def _filled(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.full(shape, 1, dtype=dtype) if dtype in (torch.int64, torch.bool) else torch.full(shape, 0.5).to(dtype)


def _map_forms(name: str, operands: int) -> Iterator[Callable[[], Any]]:
    operator = getattr(aten, name, None)
    in_place = getattr(aten, f"{name}_", None)
    if operator is None:
        return
    for first, second in product(DTYPES, DTYPES):
        if name.endswith("_backward") and first != second:
            continue
        x = _filled(first, 3, 4)
        others = [_filled(second, 4)] + [_filled(first, 3, 1)] * (operands - 2)
        if operands == 1:
            yield lambda x=x: operator(x)
            yield lambda x=x: operator(x.t().expand(2, 4, 3))
            yield lambda x=x: in_place(x.clone())
        else:
            yield lambda x=x, others=others: operator(x, *others)
            yield lambda x=x, others=others: in_place(x.clone(), *others)
            if operands == 2:
                yield lambda x=x, others=others: operator(x, others[0].reshape(-1)[0])
                yield lambda x=x: operator(x, 2)
                yield lambda x=x: operator(x, 0.5)


@pytest.mark.parametrize("name", sorted(MAPS))
def test_a_map_moves_its_operands_and_its_result(name: str) -> None:
    tried = 0
    for form in _map_forms(name, MAPS[name].operands):
        with Observer() as observer:
            try:
                form()
            except (RuntimeError, TypeError, IndexError):
                # not made for these data types or arguments
                continue
        calls = [
            call for call in observer.calls if call.operator.removesuffix("_") == f"aten::{name}".removesuffix("_")
        ]
        # a real 0-dimensional operand of these types is taken for a Python number
        numbers = ("float64", "int64", "bool")
        calls = [c for c in calls if not any(t.shape == () and t.dtype in numbers for t in c.signature.tensors())]
        assert_same_bytes(calls)
        tried += len(calls)
    assert tried or name in _NEEDS_MORE, name


#: Composites, and maps whose operators take other arguments than tensors in the first places; they have rows in CALLS.
_NEEDS_MORE = {
    "true_divide", "multiply", "subtract", "clip", "greater", "greater_equal", "less", "less_equal", "not_equal",
    "threshold", "softshrink_backward", "hardshrink_backward", "threshold_backward", "leaky_relu_backward",
    "softplus_backward", "hardtanh_backward", "native_dropout_backward", "_masked_scale", "relu6", "selu",
    "positive", "square", "conj_physical", "logical_not", "isinf", "isfinite", "logaddexp", "__and__", "__or__",
    "__xor__", "__iand__", "__ior__", "__ixor__", "_conj_physical", "rsub", "complex", "polar", "logit_backward",
    "lerp", "linalg_cross",
}  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- everything


def _f(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.rand(shape).to(dtype)


def _bf(*shape: int) -> torch.Tensor:
    return _f(*shape, dtype=torch.bfloat16)


def _i(*values: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def _spd(*shape: int) -> torch.Tensor:
    x = torch.rand(shape)
    return x @ x.mT + shape[-1] * torch.eye(shape[-1])


def _q(*shape: int) -> torch.Tensor:
    return torch.quantize_per_tensor(torch.rand(shape), 0.1, 0, torch.quint8)


CALLS: dict[str, Callable[[], Any]] = {
    "products": lambda: (
        aten.mm(_f(3, 4), _f(5, 4).t()), aten.mm(_f(1, 4).expand(3, 4), _f(4, 5)),
        torch.mm(_f(3, 4), _f(4, 5), out=torch.empty(3, 5)), aten.addmm(_f(5), _f(3, 4), _f(4, 5)),
        aten.addmm_(_f(3, 5), _f(3, 4), _f(4, 5), beta=2),
        torch.addmm(_f(5), _f(3, 4), _f(4, 5), out=torch.empty(3, 5)),
        aten._addmm_activation(_f(5), _f(3, 4), _f(4, 5), use_gelu=True), aten.bmm(_f(2, 3, 4), _f(2, 4, 5)),
        aten.baddbmm(_f(2, 1, 5), _f(2, 3, 4), _f(2, 4, 5)), aten.addbmm(_f(3, 5), _f(2, 3, 4), _f(2, 4, 5)),
        aten.baddbmm(_f(2, 3, 5), _f(2, 3, 4), _f(2, 4, 5), beta=0), aten.mv(_f(3, 4), _f(4)), aten.dot(_f(4), _f(4)),
        aten.vdot(_f(4), _f(4)), aten.addmv(_f(3), _f(3, 4), _f(4)), aten.addr(_f(3, 4), _f(3), _f(4)),
        aten._int_mm(torch.ones(32, 16, dtype=torch.int8), torch.ones(16, 8, dtype=torch.int8)),
    ),
    "_grouped_mm": lambda: (
        aten._grouped_mm(_bf(6, 16), _bf(3, 16, 8), _i(2, 4, 6, dtype=torch.int32)),
        aten._grouped_mm(_bf(16, 32), _bf(32, 8), _i(8, 24, 32, dtype=torch.int32)),  # of the weight
    ),
    "convolutions": lambda: (
        F.conv2d(_f(2, 4, 9, 8), _f(6, 2, 3, 3), _f(6), stride=2, padding=(1, 0), dilation=2, groups=2),
        F.conv1d(_f(2, 4, 9), _f(6, 4, 3)), F.conv3d(_f(2, 4, 5, 6, 7), _f(6, 4, 3, 3, 3)),
        F.conv_transpose2d(_f(2, 4, 5, 6), _f(4, 3, 3, 3), None, 2, 1, 1, groups=2),
        aten.mkldnn_convolution(_f(2, 4, 9, 8), _f(6, 4, 3, 3), None, [1, 1], [1, 1], [1, 1], 1),
        aten._slow_conv2d_forward(_f(2, 4, 9, 8), _f(6, 4, 3, 3), [3, 3], None, [2, 1], [1, 0]),
        aten.slow_conv_dilated2d(_f(2, 4, 9, 8), _f(6, 4, 3, 3), [3, 3], None, [1, 1], [0, 0], [2, 2]),
        aten.slow_conv_transpose2d(_f(2, 4, 5, 6), _f(4, 3, 3, 3), [3, 3], None, [2, 2], [1, 1], [1, 1]),
    ),
    # softmax, normalizations, losses
    "softmax": lambda: (
        aten._softmax(_f(3, 4), -1, False), aten._safe_softmax(_f(3, 4), -1), F.log_softmax(_f(3, 4), 0),
        aten._softmax_backward_data(_f(3, 4), _f(3, 4), -1, torch.float32),
    ),
    "layer_norm, rms_norm, group_norm": lambda: (
        aten.native_layer_norm(_f(2, 3, 4), [3, 4], _f(3, 4), None, 1e-5),
        aten.native_layer_norm(_bf(2, 4), [4], _f(4), _f(4), 1e-5),
        aten.native_layer_norm_backward(
            _f(2, 3, 4), _f(2, 3, 4), [4], _f(2, 3, 1), _f(2, 3, 1), _f(4), _f(4), [True, True, False]
        ),
        aten._fused_rms_norm(_bf(2, 3, 4), [4], _bf(4), 1e-5),
        aten.native_group_norm(_f(2, 6, 5), _f(6), _f(6), 2, 6, 5, 3, 1e-5),
        aten.native_group_norm_backward(
            _f(2, 6, 5), _f(2, 6, 5), _f(2, 3), _f(2, 3), _f(6), 2, 6, 5, 3, [True, True, True]
        ),
    ),
    "batch_norm": lambda: (
        aten.native_batch_norm(_f(4, 3, 5), _f(3), _f(3), _f(3), _f(3), True, 0.1, 1e-5),
        aten.native_batch_norm(_f(4, 3, 5), _f(3), _f(3), _f(3), _f(3), False, 0.1, 1e-5),
        aten._native_batch_norm_legit.no_stats(_f(4, 3, 5), _f(3), None, True, 0.1, 1e-5),
        aten._native_batch_norm_legit(_f(4, 3, 5), _f(3), _f(3), _f(3), _f(3), True, 0.1, 1e-5),
        aten._native_batch_norm_legit_no_training(_f(4, 3, 5), _f(3), _f(3), _f(3), _f(3), 0.1, 1e-5),
    ),
    "batch_norm backward": lambda: aten.native_batch_norm_backward(
        _f(4, 3, 5), _f(4, 3, 5), _f(3), _f(3), _f(3), _f(3), _f(3), True, 1e-5, [False, True, True]
    ),
    "weight_norm": lambda: (
        aten._weight_norm_interface(_f(4, 3), _f(4, 1)),
        aten._weight_norm_interface_backward(_f(4, 3), _f(4, 3), _f(4, 1), _f(4, 1), 0),
    ),
    "cross entropy": lambda: (
        F.cross_entropy(_f(3, 5), _i(0, 1, 2)), F.cross_entropy(_f(3, 5), _i(0, 1, 2), weight=_f(5), reduction="none"),
        F.cross_entropy(_f(3, 5, 2), torch.zeros(3, 2, dtype=torch.int64)),
    ),
    "regression losses": lambda: (
        F.mse_loss(_f(3), _f(3)), F.mse_loss(_f(3), _f(3), reduction="none"), F.smooth_l1_loss(_f(3), _f(3)),
        F.huber_loss(_f(3), _f(3)), F.binary_cross_entropy(_f(3), _f(3)),
        aten.binary_cross_entropy_with_logits(_f(3), _f(3), _f(3)),
        aten.mse_loss_backward(_f(), _f(3), _f(3), 1), aten.binary_cross_entropy_backward(_f(), _f(3), _f(3), None, 1),
        aten.smooth_l1_loss_backward(_f(), _f(3), _f(3), 1, 1.0),
    ),
    "ctc": lambda: aten._ctc_loss(_f(9, 2, 5).log_softmax(-1), torch.ones(2, 3, dtype=torch.int64), [9, 9], [3, 2]),
    # reductions
    "sum": lambda: (
        aten.sum(_f(3, 4)), aten.sum(_f(3, 4), [0], True), aten.sum(_f(3, 4) > 0),
        aten.sum(_f(3, 4), dtype=torch.float64),
        aten.sum(_f(3, 4), [-1], False, dtype=torch.bfloat16), torch.sum(_f(3, 4), [0], out=torch.empty(4)),
        aten.mean(_f(3, 4), [0, 1]), aten.mean(_f(3, 4)), aten.prod(_f(3, 4), 1), aten.nansum(_f(3, 4), [1]),
    ),
    "extremes": lambda: (
        aten.amax(_f(3, 4), [1]), aten.amin(_f(3, 4)), aten.max(_f(3, 4)), aten.max(_f(3, 4), 0),
        aten.max(_f(3), _f(3)),
        aten.min(_f(3, 4), 1, True), aten.aminmax(_f(3, 4), dim=1), aten.argmax(_f(3, 4)), aten.argmin(_f(3, 4), 1),
        aten.any(_f(3, 4) > 0), aten.all(_f(3, 4) > 0, 1), aten.median(_f(3, 4), 1), aten.median(_f(3, 4)),
    ),
    "spread": lambda: (
        aten.var(_f(3, 4), [1]), aten.std(_f(3, 4)), aten.var_mean(_f(3, 4), [0], correction=1),
        aten.std(_f(3, 4), True),
        aten.linalg_vector_norm(_f(3, 4)), aten.linalg_vector_norm(_f(3, 4), 2, [1], dtype=torch.float64),
        aten.norm(_f(3, 4)), aten.norm(_f(3, 4), 2, [1]), aten.logsumexp(_f(3, 4), [1]), aten.count_nonzero(_f(3, 4)),
    ),
    "prefix": lambda: (
        aten.cumsum(_f(3, 4), 0), aten.cumsum(_f(3, 4) > 0, 0), aten.cumprod(_f(3, 4), 1), aten.cumsum_(_f(3, 4), 0),
        aten.cummax(_f(3, 4), 0), aten.logcumsumexp(_f(3, 4), 0), aten.histc(_f(9), 4),
    ),
    "order": lambda: (
        aten.sort(_f(3, 4)), aten.sort(_f(3, 4), stable=True, dim=0), aten.topk(_f(3, 4), 2), aten.topk(_f(3, 4), 2, 0),
        aten.multinomial(_f(3, 4), 2), aten.searchsorted(_f(4).sort()[0], _f(3)),
        aten.bucketize(_f(3), _f(4), out_int32=True),
    ),
    # maps with arguments of their own
    "division": lambda: (
        _f(3) / 2, _i(1, 2) / 2, aten.div(_i(1, 2), 2, rounding_mode="floor"),
        aten.div(_f(3), _f(3), rounding_mode="trunc"),
        aten.div_(_f(3), _f(3)), torch.div(_f(3), _f(3), out=torch.empty(3)), 1 / _f(3), 1 - _f(3),
    ),
    "numbers": lambda: (
        _f(3) + 1, _bf(3) * 2.5, _i(1, 2) * 2.5, _i(1, 2) > 1, torch.pow(2, _i(1, 2)), _f(3) ** 2,
        torch.add(_f(3), _f(3), alpha=2), torch.add(_f(3), _f(3), out=torch.empty(3)), _f(3) + _f(), _f() + _f(3),
        _bf(3) + _f(), _i(1, 2) + _f(),
    ),
    "activations": lambda: (
        aten.gelu(_f(3)), aten.gelu_backward(_f(3), _f(3), approximate="tanh"), aten.threshold(_f(3), 0.5, 0),
        aten.threshold_backward(_f(3), _f(3), 0), aten.leaky_relu_backward(_f(3), _f(3), 0.1, False),
        aten.elu_backward(_f(3), 1, 1, 1, False, _f(3)), aten.glu(_f(3, 4)), aten.glu_backward(_f(3, 2), _f(3, 4), -1),
        aten.softplus_backward(_f(3), _f(3), 1, 20), aten.hardtanh_backward(_f(3), _f(3), 0, 1),
        aten.softshrink_backward(_f(3), _f(3), 0.5), aten.hardshrink_backward(_f(3), _f(3), 0.5),
        aten.log_sigmoid_backward(_f(3), _f(3), _f(3)), aten.logit_backward(_f(3), _f(3)), aten.selu(_f(3)),
        torch.relu_(_f(3)), aten.conj_physical(torch.view_as_complex(_f(3, 2))), aten.relu6(_f(3)),
    ),
    "complex": lambda: (
        torch.polar(_f(3), _f(3)), torch.complex(_f(3), _f(3)), torch.view_as_complex(_f(3, 2)).abs(),
        torch.view_as_complex(_f(3, 2)) * torch.view_as_complex(_f(3, 2)), torch.view_as_complex(_f(3, 2)) * _f(3),
    ),
    "dropout": lambda: (
        aten.native_dropout(_f(3, 4), 0.1, True), aten.native_dropout_backward(_f(3), _f(3) > 0, 2.0),
        F.dropout(_f(3, 4), 0.5),
    ),
    "selection": lambda: (
        torch.where(_f(3, 1) > 0, _f(4), 0.0), torch.where(_f(3) > 0, _f(3), _bf(3)),
        torch.where(_f(3) > 0, _i(1, 2, 3), -100), aten.masked_fill(_f(3, 4), _f(4) > 0, 0),
        aten.masked_fill_(_f(3, 4), _f(4) > 0, _f()), aten.lerp(_f(3), _f(3), 0.5), aten.lerp(_f(3), _f(3), _f(3)),
        aten.addcmul(_f(3), _f(3), _f(3), value=2), aten.addcdiv_(_f(3), _f(3), _f(3)),
        aten.clamp(_f(3), 0, _f().item()),
        aten.clamp(_f(3), _f(3), None), aten.rsub(_f(3), _f(3)),
    ),
    # movement
    "copies": lambda: (
        _f(3, 4).t().contiguous(), _f(1, 4).expand(3, 4).clone(), _f(3).to(torch.bfloat16), _f(3).copy_(_i(1, 2, 3)),
        torch.cat([_f(3, 4), _bf(1, 4)]), torch.stack([_f(3), _f(3)]), _f(3, 4).repeat(2, 1, 3),
        torch.roll(_f(3, 4), 1, 0), torch.flip(_f(3, 4), [0]), torch.tril(_f(3, 4)), torch.triu(_f(3, 4)).triu_(),
        _f(1).item(), aten.split_with_sizes_copy(_f(5), [2, 3]), aten.expand_copy(_f(1, 4), [3, -1]),
        torch.repeat_interleave(_f(3, 4), 2, 0),
    ),
    "views": lambda: (
        _f(3, 4).view(12), _f(3, 4)[1:, None].transpose(0, 1).permute(2, 1, 0).squeeze(1), _f(3, 4).expand(2, 3, 4),
        _f(4).unfold(0, 2, 1), _f(3, 4).unbind(), _f(3, 4).split(2), _f(3, 3).diagonal(),
        aten._unsafe_view(_f(3, 4), [12]),
        torch.empty(3), torch.empty_like(_f(3)), _f(3).detach().unsqueeze(0).chunk(1),
        torch.view_as_complex(_f(3, 2)).real,
    ),
    "padding": lambda: (
        F.pad(_f(2, 3, 4), (1, 2)), F.pad(_f(2, 3, 4), (1, -1, 0, 2)), F.pad(_f(2, 3, 4), (1, 1), mode="reflect"),
        F.pad(_f(2, 3, 4, 4), (1, 1, 0, 1), mode="replicate"), F.unfold(_f(2, 3, 6, 5), (3, 2), padding=1, stride=2),
        F.fold(_f(2, 12, 12), (4, 5), (2, 2)),
    ),
    "fills": lambda: (
        torch.zeros(3, 4), torch.ones(3, dtype=torch.bfloat16), torch.full((3,), 2), torch.full((3,), 2.0),
        torch.arange(5),
        torch.arange(1, 5), torch.arange(0, 1, 0.3), torch.arange(5, dtype=torch.bfloat16), torch.linspace(0, 1, 7),
        torch.zeros_like(_f(3)), torch.ones_like(_f(3), dtype=torch.int64), torch.full_like(_f(3), 2),
        _f(3).new_zeros(4),
        _f(3).new_ones(4, dtype=torch.bool), _f(3).new_full((2,), 1), torch.zeros(()), torch.eye(3), torch.eye(3, 4),
        _f(3).fill_(1), _f(3).fill_(_f()), _f(3).zero_(), torch.arange(0, 7, 2, out=torch.empty(4)),
        torch.full((), True),
    ),
    "random": lambda: (
        torch.rand(3), torch.randn(3), torch.randint(5, (3,)), torch.randint(1, 5, (3,)), torch.randperm(5),
        torch.rand_like(_f(3)), torch.randint_like(_i(1, 2), 5), torch.bernoulli(_f(3)), _f(3).bernoulli_(0.5),
        _f(3).uniform_(), _f(3).normal_(), _f(3).exponential_(), _i(1, 2).random_(5),
    ),
    "gather": lambda: (
        F.embedding(_i(1, 2, 2), _f(9, 4)), F.embedding(_i(*[0] * 40), _f(2, 4)),
        torch.index_select(_f(3, 4), 1, _i(0, 2)),
        torch.gather(_f(3, 4), 1, torch.zeros(3, 2, dtype=torch.int64)), torch.take(_f(3, 4), _i(1, 5)),
        _f(3, 4)[_i(0, 1)], _f(3, 4, 5)[:, _i(0, 1), _i(2, 3)], _f(3, 4)[_i(0, 1), None],
    ),
    "scatter": lambda: (
        aten.index_put(_f(3, 4), [_i(0, 2)], _f(2, 4), True), aten.index_put_(_f(3, 4), [_i(0, 2)], _f()),
        aten.index_put(_f(3, 4), [_f(3) > 0.5], _f()), aten.index_put_(_f(3, 4), [_f(3) > -1], _f(3, 4), True),
        aten.index_put_(_f(3, 4), [_f(3) > 2], _f(0, 4)), aten.masked_scatter_backward(_f(3), _f(3) > -1, [3]),
        aten.masked_scatter_backward(_f(3, 4), _i(1, 0, 1, 0) > 0, [2, 3]),
        aten.index_add(_f(3, 4), 0, _i(0, 2), _f(2, 4)),
        aten.index_add_(_f(3, 4), 0, _i(0, 2), _f(2, 4), alpha=2), aten.index_copy(_f(3, 4), 0, _i(0, 2), _f(2, 4)),
        aten.index_fill_(_f(3, 4), 0, _i(0, 2), 1), aten.scatter(_f(3, 4), 1, _i(0, 2)[None], 1.0),
        aten.scatter_(_f(3, 4), 1, _i(0, 2)[None], _f(1, 2)), aten.scatter_add(_f(3, 4), 1, _i(0, 2)[None], _f(1, 2)),
        aten.scatter_add_(_f(3, 4), 1, _i(0, 2)[None], _f(1, 2)),
        aten.scatter_reduce(_f(3, 4), 1, _i(0, 2)[None], _f(1, 2), "sum"),
        aten.embedding_dense_backward(_f(3, 4), _i(0, 1, 1), 9, -1, False), aten.select_backward(_f(4), [3, 4], 0, 1),
        aten.slice_backward(_f(2, 4), [3, 4], 0, 0, 2, 1), aten.select_scatter(_f(3, 4), _f(4), 0, 1),
        aten.slice_scatter(_f(3, 4), _f(2, 4), 0, 0, 2), aten.masked_scatter(_f(3), _f(3) > 2, _f(3)),
        aten.masked_scatter(_f(3, 4), _i(1, 0, 1, 0) > 0, _f(9)),
    ),
    # images
    "pooling": lambda: (
        F.max_pool2d(_f(2, 3, 9, 8), 3, 2, 1), F.max_pool2d(_f(2, 3, 9, 8), (3, 2), ceil_mode=True),
        F.avg_pool2d(_f(2, 3, 9, 8), 2),
        F.max_pool3d(_f(2, 3, 5, 6, 7), 2), aten._adaptive_avg_pool2d(_f(2, 3, 9, 8), [3, 2]),
        aten._adaptive_avg_pool2d_backward(_f(2, 3, 3, 2), _f(2, 3, 9, 8)), F.avg_pool3d(_f(2, 3, 5, 6, 7), 2),
        aten.avg_pool2d_backward(_f(2, 3, 4, 4), _f(2, 3, 9, 8), [2, 2], [2, 2], [0, 0], False, True, None),
        aten.max_pool2d_with_indices_backward(
            _f(2, 3, 4, 4), _f(2, 3, 9, 8), [2, 2], [2, 2], [0, 0], [1, 1], False,
            torch.zeros(2, 3, 4, 4, dtype=torch.int64)
        ),
    ),
    "resizing": lambda: (
        F.interpolate(_f(2, 3, 4), 9), F.interpolate(_f(2, 3, 8, 9), (3, 4)),
        F.interpolate(_f(2, 3, 4, 5), scale_factor=2.5),
        F.interpolate(_f(2, 3, 4, 5), 7, mode="bilinear"),
        F.interpolate(_f(2, 3, 4, 5), 7, mode="bicubic"), F.interpolate(_f(2, 3, 4, 5, 6), 7, mode="trilinear"),
        aten.upsample_bilinear2d_backward(_f(2, 3, 7, 7), [7, 7], [2, 3, 4, 5], False),
        aten.grid_sampler_2d(_f(2, 3, 4, 5), _f(2, 6, 7, 2), 0, 0, False), F.pixel_shuffle(_f(2, 4, 3, 3), 2),
    ),
    "others": lambda: (
        F.bilinear(_f(3, 4), _f(3, 5), _f(6, 4, 5)), aten._cdist_forward(_f(2, 3, 4), _f(2, 5, 4), 2.0, None),
        aten._cdist_forward(_f(3, 4), _f(5, 4), 1.0, None), F.pdist(_f(5, 4)),
        aten._cdist_backward(_f(3, 5), _f(3, 4), _f(5, 4), 2.0, _f(3, 5)),
        aten.linalg_solve_triangular(_f(2, 4, 4), _f(2, 4, 3), upper=True),
        torch.fft.fft(_f(3, 8)), torch.fft.rfft(_f(3, 8)), torch.fft.irfft(torch.fft.rfft(_f(3, 8))),
        torch.fft.fft2(_f(3, 8, 4)), aten.kthvalue(_f(3, 4), 2), aten.equal(_f(3), _f(3)),
        F.adaptive_max_pool2d(_f(2, 3, 9, 8), 2),
        aten.adaptive_max_pool2d_backward(
            _f(2, 3, 2, 2), _f(2, 3, 9, 8), torch.zeros(2, 3, 2, 2, dtype=torch.int64)
        ),
        aten.grid_sampler_2d_backward(
            _f(2, 3, 6, 7), _f(2, 3, 4, 5), _f(2, 6, 7, 2), 0, 0, False, [True, True]
        ),
        aten._weight_int8pack_mm(
            _bf(3, 32), torch.ones(16, 32, dtype=torch.int8), _bf(16)
        ),
    ),
    # what a sweep of torch's single operators found without a cost
    "special functions": lambda: (
        torch.special.bessel_j0(_f(6, 5)), torch.special.modified_bessel_k1(_f(6, 5)), torch.special.erfcx(_f(6, 5)),
        torch.special.i1e(_f(6, 5)), torch.special.zeta(_f(6, 5) + 1, _f(6, 5)), torch.igamma(_f(6, 5), _f(5)),
        torch.polygamma(1, _f(6, 5)), torch.angle(torch.complex(_f(6, 5), _f(6, 5))), torch.frexp(_f(6, 5)),
        torch.linalg.cross(_f(6, 3), _f(6, 3)), aten._prelu_kernel_backward(_f(6, 5), _f(6, 5), _f(1, 5)),
        torch._standard_gamma(_f(6, 5)), aten._standard_gamma_grad(_f(6, 5), _f(6, 5)),
        aten._transform_bias_rescale_qkv(_f(2, 6, 24), _f(24), 2),
    ),
    "reductions and losses in rare use": lambda: (
        torch.dist(_f(6, 5), _f(6, 5)), torch.renorm(_f(6, 5), 2, 0, 1.0), torch.histogram(_f(6), 4),
        torch.segment_reduce(_f(6, 5), "sum", lengths=_i(1, 2, 3)),
        aten._segment_reduce_backward(_f(2, 5), _f(2, 5), _f(6, 5), "mean", lengths=_i(2, 4)),
        F.soft_margin_loss(_f(6, 5), _f(6, 5)), aten.soft_margin_loss_backward(_f(), _f(6, 5), _f(6, 5), 1),
        F.multi_margin_loss(_f(6, 5), _i(*[0] * 6)),
        aten.multi_margin_loss_backward(_f(), _f(6, 5), _i(*[0] * 6), 1, 1),
    ),
    "movement in rare use": lambda: (
        F.max_unpool2d(*F.max_pool2d(_f(2, 3, 6, 4), 2, return_indices=True), 2), torch.diag_embed(_f(6, 5), 1),
        F.fractional_max_pool2d(_f(2, 3, 6, 6), 2, output_size=3), torch.block_diag(_f(6, 5), _f(2, 3), _f(4)),
        torch.tril_indices(5, 5), torch.put(_f(6, 5), _i(0, 1, 2), _f(3), True),
        torch.index_reduce(_f(6, 5), 0, _i(0, 2), _f(2, 5), "amax"), torch.isin(_i(1, 2, 3), _i(2, 5)),
        F.interpolate(_f(2, 3, 8, 8), size=(4, 4), mode="bilinear", antialias=True),
        F.interpolate(_f(2, 3, 5, 8), size=(5, 4), mode="bicubic", antialias=True),
        torch.conv_tbc(_f(7, 2, 4), _f(3, 4, 5), _f(5)),
        aten._jagged_to_padded_dense_forward(_f(5, 4), [_i(0, 2, 5)], [3]),
    ),
    "linear algebra": lambda: (
        torch.linalg.cholesky_ex(_spd(2, 4, 4)), torch.cholesky_inverse(_spd(4, 4)),
        torch.linalg.lu_factor_ex(_f(2, 4, 4)), torch.linalg.lu(_f(2, 4, 4)),
        torch.lu_unpack(*torch.linalg.lu_factor(_f(4, 4))), aten._linalg_det(_f(2, 4, 4)),
        torch.linalg.inv_ex(_spd(4, 4)), torch.geqrf(_f(6, 4)),
        torch.linalg.householder_product(_f(6, 4), _f(4)), torch.ormqr(_f(6, 4), _f(4), _f(6, 5)),
        torch.linalg.solve_ex(_spd(2, 4, 4), _f(2, 4, 5)),
        torch.lu_solve(_f(4, 5), *torch.linalg.lu_factor(_spd(4, 4))), torch.cholesky_solve(_f(4, 5), _spd(4, 4)),
        torch.triangular_solve(_f(4, 5), _spd(4, 4)),
    ),
    "in and out of 8 bits": lambda: (
        _q(6, 5).dequantize(), F.max_pool2d(_q(2, 3, 6, 4), 2),
        torch.quantize_per_channel(_f(6, 5), torch.full((6,), 0.1).double(), _i(*[0] * 6), 0, torch.qint8),
        torch.fake_quantize_per_tensor_affine(_f(6, 5), 0.1, 0, 0, 255),
        torch.fake_quantize_per_channel_affine(_f(6, 5), _f(6), torch.zeros(6, dtype=torch.int32), 0, 0, 255),
        torch._fake_quantize_learnable_per_tensor_affine(_f(6, 5), _f(1), _f(1), 0, 255),
        aten._fake_quantize_learnable_per_tensor_affine_backward(_f(6, 5), _f(6, 5), _f(1), _f(1), 0, 255),
    ),
    # attention
    "flash on the CPU": lambda: (
        aten._scaled_dot_product_flash_attention_for_cpu(_f(2, 4, 6, 8), _f(2, 4, 5, 8), _f(2, 4, 5, 8)),
        aten._scaled_dot_product_flash_attention_for_cpu(
            _f(2, 4, 6, 8), _f(2, 4, 5, 8), _f(2, 4, 5, 8), attn_mask=_f(1, 1, 6, 5).expand(2, 4, 6, 5)
        ),
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*(deprecated|in beta).*:UserWarning")
@pytest.mark.parametrize("name", CALLS)
def test_bytes_are_those_of_the_real_tensors(name: str) -> None:
    assert_same_bytes(observe(CALLS[name]))


def test_a_recurrent_layer_moves_all_but_its_workspace() -> None:
    lstm = torch.nn.LSTM(8, 16, 2, batch_first=True, bidirectional=True)
    with Observer() as observer:
        lstm(_f(2, 5, 8))[0].sum().backward()
    layers = [call for call in observer.calls if call.operator.startswith("aten::mkldnn_rnn_layer")]
    assert len(layers) == 8
    for call in layers:
        found = cost(call.operator, call.signature, "cpu")
        assert found is not None, call
        backward = call.operator.endswith("backward")
        inputs = 8 if call.signature.tensor(0).shape[-1] == 8 else 32
        assert found.flops == (1 + backward) * 2 * 5 * 2 * 64 * (inputs + 16)
        if not backward:
            # the workspace is oneDNN's own
            assert found.read_bytes == call.read_bytes
            assert found.written_bytes == 4 * (5 * 2 * 16 + 2 * 2 * 16) < call.written_bytes


def test_observer_sees_a_broadcast_once() -> None:
    (call,) = [c for c in observe(lambda: _f(1, 4).expand(3, 4) + 1) if c.operator == "aten::add"]
    assert call.read_bytes == 16
    assert call.written_bytes == 48


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_optimizers(dtype: torch.dtype) -> None:
    parameters = [_f(3, 4, dtype=dtype).requires_grad_(), _f(5, dtype=dtype).requires_grad_()]
    for parameter in parameters:
        parameter.grad = _f(*parameter.shape, dtype=dtype)

    def steps() -> None:
        for form in ({"foreach": True}, {"foreach": False}, {"fused": True}):
            for optimizer in (
                torch.optim.AdamW(parameters, **form),
                torch.optim.Adam(parameters, amsgrad=True, weight_decay=0.1, **form),
                torch.optim.SGD(parameters, 0.1, momentum=0.9, nesterov=True, **form),
                torch.optim.SGD(parameters, 0.1, **form),
            ):
                optimizer.step()
                optimizer.step()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.zero_grad(set_to_none=False)

    assert_same_bytes(observe(steps))


# ------------------------------------------------------------------------------------------------- what a trace records


def _step() -> None:
    torch.manual_seed(0)
    x = torch.rand(4, 6, requires_grad=True)
    y = F.layer_norm(
        F.linear(x, torch.rand(6, 6, requires_grad=True), torch.rand(6)), (6,), torch.rand(6), torch.rand(6)
    )
    y = F.dropout(F.relu(y) * 2 + 1.5, 0.1) / torch.tensor(3.0)
    y = torch.cat([y, F.softmax(y.to(torch.bfloat16), -1)]).masked_fill(torch.ones(8, 6) > 2, 0.5)
    y = y + F.embedding(torch.arange(8) % 3, torch.rand(3, 6, requires_grad=True))
    y = y + F.conv1d(y[None], torch.rand(8, 8, 3, requires_grad=True), padding=1)[0].mean(0, keepdim=True)
    F.cross_entropy(y, torch.zeros(8, dtype=torch.int64)).backward()


def test_kineto_records_what_a_formula_needs(tmp_path: Path) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        _step()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    recorded: dict[str, list[Cost | None]] = defaultdict(list)
    keys = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
    for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]:
        if event.get("cat") == "cpu_op" and "Input Dims" in event["args"]:
            dims, types, strides, constants = (json.dumps(event["args"][key]).encode() for key in keys)
            signature = parse_signature((dims, types, strides, constants, ""))
            recorded[event["name"]].append(None if signature is None else cost(event["name"], signature))
    # gradients are added in place when no dispatch mode watches; a trace does not say the data type of a list
    seen = [call for call in observe(_step) if call.operator not in ("aten::add", "aten::cat")]
    assert len(seen) > 60
    for call in seen:
        want = cost(call.operator, call.signature)
        assert want is not None, call
        assert want in recorded[call.operator], f"{call.operator}({call.signature})"
