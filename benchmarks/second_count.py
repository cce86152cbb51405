"""A second count of the contractions of a step, by phase: torch's FlopCounterMode with its known faults mended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from opanatomy.capture.step.stepper import Stepper
from opanatomy.records.taxonomy import Phase
from tests.support.torch_counter import MENDED

aten = torch.ops.aten


def _product(a: Any, b: Any, *_: Any, **__: Any) -> int:
    """Matrix times matrix or vector, vector times vector."""
    return 2 * prod(a) * (b[1] if len(b) == 2 else 1)


def _added_product(_added: Any, a: Any, b: Any, *_: Any, **__: Any) -> int:
    return _product(a, b)


def _stored(matrix: torch.Tensor) -> int:
    """Elements in memory; those of a block each."""
    if matrix.layout is torch.strided:
        return matrix.numel()
    return int((matrix._values() if matrix.layout is torch.sparse_coo else matrix.values()).numel())


def sparse_product(a: torch.Tensor, b: torch.Tensor, *_: Any, out_val: Any = None, **__: Any) -> int:
    """2 for each stored element and column; torch's formula takes the whole shape."""
    if b.layout is torch.strided:
        return 2 * _stored(a) * b.shape[1]
    if a.layout is torch.strided:
        return 2 * _stored(b) * a.shape[0]
    columns, rows = _indices(a)[1].bincount(minlength=a.shape[1]), _indices(b)[0].bincount(minlength=b.shape[0])
    return 2 * int(columns @ rows)


def _indices(matrix: torch.Tensor) -> torch.Tensor:
    """(row, column) of each stored element."""
    return (matrix if matrix.layout is torch.sparse_coo else matrix.to_sparse_coo())._indices()


def sparse_added_product(_: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *__: Any, **___: Any) -> int:
    return sparse_product(a, b)


def sparse_reduction_backward(
    matrix: torch.Tensor, gradient: torch.Tensor, _weight: Any, _reduce: Any, _chosen: Any, mask: Any, **_: Any
) -> int:
    """One product of the forward's size for each gradient asked for."""
    return (bool(mask[0]) + bool(mask[1])) * 2 * _stored(matrix) * gradient.shape[1]


def packed_linear(x: torch.Tensor, *_: Any, out_val: Any = None, **__: Any) -> int:
    """The weight is packed: its rows are those of what comes out."""
    return 2 * x.numel() * int(out_val.shape[-1])


def recurrent_layer(x: Any, w1: Any, w2: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Each step multiplies the input and the state with their weights (gates x hidden)."""
    steps = x[0] * x[1]
    return 2 * steps * (prod(w1) + prod(w2))


def recurrent_layer_backward(x: Any, w1: Any, w2: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Two products for each of forward: for what came in and for the weight."""
    return 2 * recurrent_layer(x, w1, w2)


def euclidean_distance(a: Any, b: Any, *_: Any, **__: Any) -> int:
    """One product of the rows, with a column for each norm: (n, m + 2) @ (m + 2, k)."""
    return 2 * prod(a[:-1]) * b[-2] * (a[-1] + 2)


def trilinear(
    a: Any, b: Any, c: Any, without_a: Any, without_b: Any, without_c: Any, summed: Any, unrolled: int = 1, **_: Any
) -> int:
    """a times b, then times c, of dimensions that each may lack; a product without a sum is element-wise: 0."""
    left = _sizes(a, without_a) | _sizes(b, without_b)
    right = _sizes(c, without_c)
    first = [dim for dim in summed if dim != unrolled and dim not in right]
    second = [dim for dim in summed if dim != unrolled and dim in right]
    kept = {dim: size for dim, size in left.items() if dim not in first}
    return 2 * prod(left.values()) * bool(first) + 2 * prod((kept | right).values()) * bool(second)


def _sizes(shape: Any, without: Any) -> dict[int, int]:
    """The size of each dimension that a tensor has, of all."""
    dims = [dim for dim in range(len(shape) + len(without)) if dim not in without]
    return dict(zip(dims, shape, strict=True))


def _raw(formula: Callable[..., int]) -> Callable[..., int]:
    formula._get_raw = True  # type: ignore[attr-defined]
    return formula


#: What torch's counter leaves out or gets wrong beyond what the catalog's architectures show.
FORMULAS = {
    **MENDED,
    aten.mv: _product,
    aten.dot: _product,
    aten.vdot: _product,
    aten.addmv: _added_product,
    aten.addbmm: lambda _c, a, b, *_, **__: 2 * prod(a) * b[2],
    aten._int_mm: _product,
    aten.mm: _raw(sparse_product),
    aten.addmm: _raw(sparse_added_product),
    aten._sparse_mm: _raw(sparse_product),
    aten._sparse_addmm: _raw(sparse_added_product),
    aten._sparse_mm_reduce_impl: _raw(sparse_product),
    aten._sparse_mm_reduce_impl_backward: _raw(sparse_reduction_backward),
    torch.ops.quantized.linear_dynamic: _raw(packed_linear),
    aten._euclidean_dist: euclidean_distance,
    aten._trilinear: trilinear,
    aten.mkldnn_rnn_layer: recurrent_layer,
    aten.mkldnn_rnn_layer_backward: recurrent_layer_backward,
}


class SecondCount(FlopCounterMode):
    """FLOPs by phase and operator of the steps that `stepper` runs inside it."""

    def __init__(self, stepper: Stepper) -> None:
        super().__init__(display=False, custom_mapping=FORMULAS)
        # Its hooks on modules refuse autograd inside a forward.
        self.mod_tracker = nullcontext()
        self.stepper = stepper
        self.flops: Counter[tuple[Phase, str]] = Counter()

    def _count_flops(self, func_packet: Any, out: Any, args: Any, kwargs: Any) -> Any:
        if func_packet in self.flop_registry:
            counted = self.flop_registry[func_packet](*args, **kwargs, out_val=out)
            self.flops[self._phase(), str(func_packet).replace(".", "::", 1)] += int(counted)
        return out

    def _phase(self) -> Phase:
        """A forward operator that autograd runs is recomputed: differentiation is on there."""
        if self.stepper.phase is not Phase.BACKWARD:
            return self.stepper.phase
        return Phase.RECOMPUTE if torch.is_grad_enabled() else Phase.BACKWARD

    def by_phase(self) -> dict[Phase, int]:
        """The FLOPs of each phase."""
        totals: Counter[Phase] = Counter()
        for (phase, _), flops in self.flops.items():
            totals[phase] += flops
        return dict(totals)
