"""Pairwise distances."""

from __future__ import annotations

from math import prod

from opanatomy.cost.operands import Unknown, broadcast, fresh, moved, read
from opanatomy.cost.registry import formula
from opanatomy.records.signature import Argument, Cost, Signature


def _per_element(p: Argument) -> int:
    """Subtract, absolute value or power, add; the largest is taken without adding."""
    if isinstance(p, bool) or not isinstance(p, int | float):
        raise Unknown(f"norm {p!r}")
    return {0.0: 2, 1.0: 3, 2.0: 3, float("inf"): 2}.get(float(p), 4)


def _per_pair(p: Argument) -> int:
    """The root that comes last."""
    return int(p not in (0, 1, float("inf")))


@formula("aten::_cdist_forward")
def all_pairs(signature: Signature) -> Cost:
    """`b * p * r * (3 * m + 1)` in the Euclidean norm for (b, p, m) and (b, r, m); 3 m or 4 m + 1 in others."""
    a, b, p = signature.tensor(0), signature.tensor(1), signature.get(2)
    *_, rows, m = a.shape
    *_, columns, m_b = b.shape
    if m != m_b:
        raise Unknown(f"{a} and {b}")
    shape = (*broadcast(a.shape[:-2], b.shape[:-2]), rows, columns)
    flops = prod(shape) * (_per_element(p) * m + _per_pair(p))
    return moved(read(a, b), fresh(shape, a.dtype), flops=flops)


@formula("aten::_cdist_backward")
def all_pairs_backward(signature: Signature) -> Cost:
    """4 for each element of each pair: subtract, divide by the distance, * grad, add; (grad, a, b, p, distances)."""
    grad, a, b, distances = (signature.tensor(place) for place in (0, 1, 2, 4))
    flops = 4 * grad.numel * a.shape[-1]
    return moved(read(grad, a, b, distances), fresh(a.shape, a.dtype), flops=flops)


@formula("aten::_pdist_forward")
def own_pairs(signature: Signature) -> Cost:
    """As cdist for the n (n - 1) / 2 pairs of the rows of (n, m)."""
    x, p = signature.tensor(0), signature.get(1)
    n, m = x.shape
    pairs = n * (n - 1) // 2
    return moved(read(x), fresh((pairs,), x.dtype), flops=pairs * (_per_element(p) * m + _per_pair(p)))


@formula("aten::dist")
def dist(signature: Signature) -> Cost:
    """2 per element: subtract, and the norm, a reduction."""
    a, b = signature.tensor(0), signature.tensor(1)
    if a.shape != b.shape:
        raise Unknown(f"{a} and {b}")
    return moved(read(a, b), fresh((), a.dtype), flops=2 * a.numel)


@formula("aten::_pdist_backward")
def own_pairs_backward(signature: Signature) -> Cost:
    """4 for each element of each pair and both its rows, as _cdist_backward: (grad, x, p, distances)."""
    grad, x, distances = signature.tensor(0), signature.tensor(1), signature.tensor(3)
    return moved(read(grad, x, distances), fresh(x.shape, x.dtype), flops=4 * grad.numel * x.shape[-1])
