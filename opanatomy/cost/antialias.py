"""Resizing with a filter as wide as the scale, one dimension after the other, the last first.

Each output element is a sum over the taps of its filter that lie inside the image: a multiply and an add a tap. The
taps are counted as torch places them (aten/src/ATen/native/cpu/UpSampleKernel.cpp); making the weights is not counted.
"""

from __future__ import annotations

from math import prod

from opanatomy.cost.operands import Shape, Unknown, fresh, moved, read, sizes
from opanatomy.cost.registry import formula
from opanatomy.records.signature import Argument, Cost, Signature

#: Half the width of the filter, in input elements, where the image is not made smaller.
_HALF = {"bilinear": 1.0, "bicubic": 2.0, "lanczos": 3.0}


def _taps(size: int, result: int, half: float, factor: Argument, align_corners: bool) -> int:
    """Taps of all output elements along a dimension."""
    if align_corners:
        scale = (size - 1) / (result - 1) if result > 1 else 0.0
    else:
        scale = 1 / factor if isinstance(factor, float) and factor > 0 else size / result
    support = half * max(scale, 1.0)
    total = 0
    for place in range(result):
        center = scale * (place + 0.5)
        total += min(int(center + support + 0.5), size) - max(int(center - support + 0.5), 0)
    return total


def _flops(old: Shape, new: Shape, half: float, factors: tuple[Argument, ...], align_corners: bool) -> int:
    """For one image: rows resized along their length, then columns."""
    (h, w), (new_h, new_w) = old, new
    across = h * _taps(w, new_w, half, factors[1], align_corners) if w != new_w else 0
    down = new_w * _taps(h, new_h, half, factors[0], align_corners) if h != new_h else 0
    return 2 * (across + down)


def _register(name: str, half: float) -> None:
    def forward(signature: Signature) -> Cost:
        x, size = signature.tensor(0), sizes(signature.get(1), 2)
        factors = (signature.get(3), signature.get(4))
        aligned = signature.get(2) is True
        shape = (*x.shape[:2], *size)
        if len(x.shape) != 4 or len(shape) != 4 or isinstance(factors[0], tuple):
            raise Unknown(f"resizing {x} to {size}")
        flops = prod(x.shape[:2]) * _flops(x.shape[2:], size, half, factors, aligned)
        return moved(read(x), fresh(shape, x.dtype), flops=flops)

    def backward(signature: Signature) -> Cost:
        grad, new, old = signature.tensor(0), sizes(signature.get(1), 2), sizes(signature.get(2), 4)
        factors = (signature.get(4), signature.get(5))
        flops = prod(old[:2]) * _flops(old[2:], new, half, factors, signature.get(3) is True)
        return moved(read(grad), fresh(old, grad.dtype), flops=flops)

    forward.__doc__ = "2 a tap of the filter, rows first, then columns: (x, size, align corners, factors)."
    backward.__doc__ = "As the forward: each tap scatters a product; (grad, size, old size, align corners, factors)."
    formula(f"aten::_upsample_{name}2d_aa")(forward)
    formula(f"aten::_upsample_{name}2d_aa_backward")(backward)


for _name, _half in _HALF.items():
    _register(_name, _half)
