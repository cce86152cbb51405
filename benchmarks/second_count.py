"""A second count of the contractions of a step, by phase: torch's FlopCounterMode with its known faults mended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from opanatomy.capture.stepper import Stepper
from opanatomy.model import Phase
from tests.test_catalog_anatomy import MENDED

aten = torch.ops.aten


def _product(a: Any, b: Any, *_: Any, **__: Any) -> int:
    """Matrix times matrix or vector, vector times vector."""
    return 2 * prod(a) * (b[1] if len(b) == 2 else 1)


def _added_product(_added: Any, a: Any, b: Any, *_: Any, **__: Any) -> int:
    return _product(a, b)


def _stored(matrix: torch.Tensor) -> int:
    return matrix._nnz() * prod(matrix.values().shape[1:]) if matrix.layout is not torch.strided else matrix.numel()


def sparse_product(a: torch.Tensor, b: torch.Tensor, *_: Any, out_val: Any = None, **__: Any) -> int:
    """2 for each stored element and column; torch's formula takes the whole shape."""
    if a.layout is torch.strided and b.layout is torch.strided:
        return 2 * a.numel() * b.shape[1]
    if b.layout is torch.strided:
        return 2 * _stored(a) * b.shape[1]
    return 2 * _stored(b) * a.shape[0]


def sparse_added_product(_: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *__: Any, **___: Any) -> int:
    return sparse_product(a, b)


def recurrent_layer(x: Any, w1: Any, w2: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Each step multiplies the input and the state with their weights (gates x hidden)."""
    steps = x[0] * x[1]
    return 2 * steps * (prod(w1) + prod(w2))


def recurrent_layer_backward(x: Any, w1: Any, w2: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Two products for each of forward: for what came in and for the weight."""
    return 2 * recurrent_layer(x, w1, w2)


def cdist_flops(a: Any, b: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    return 2 * prod(a[:-1]) * b[-2] * a[-1]


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
    aten.addr: lambda _c, a, b, **__: 2 * prod(a) * prod(b),
    aten._int_mm: _product,
    aten.mm: _raw(sparse_product),
    aten.addmm: _raw(sparse_added_product),
    aten._sparse_mm: _raw(sparse_product),
    aten._sparse_addmm: _raw(sparse_added_product),
    aten.mkldnn_rnn_layer: recurrent_layer,
    aten.mkldnn_rnn_layer_backward: recurrent_layer_backward,
}


class SecondCount(FlopCounterMode):
    """FLOPs by phase and operator of the steps that `stepper` runs inside it."""

    def __init__(self, stepper: Stepper) -> None:
        super().__init__(display=False, custom_mapping=FORMULAS)
        self.stepper = stepper
        self.flops: Counter[tuple[Phase, str]] = Counter()

    def _count_flops(self, func_packet: Any, out: Any, args: Any, kwargs: Any) -> Any:
        if func_packet in self.flop_registry:
            counted = self.flop_registry[func_packet](*args, **kwargs, out_val=out)
            self.flops[self._phase(), f"aten::{func_packet.__name__}"] += int(counted)
        return out

    def _phase(self) -> Phase:
        """A forward operator that autograd runs is recomputed: differentiation is on there."""
        if self.stepper.phase is not Phase.BACKWARD:
            return self.stepper.phase
        return Phase.RECOMPUTE if torch.is_grad_enabled() else Phase.BACKWARD

    def by_phase(self) -> dict[Phase, int]:
        """The FLOPs of each phase."""
        found: Counter[Phase] = Counter()
        for (phase, _), flops in self.flops.items():
            found[phase] += flops
        return dict(found)
