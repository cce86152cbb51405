"""Losses and their gradients: FLOPs per element, operation by operation; summing the elements adds 1."""

from __future__ import annotations

from opanatomy.cost.operands import Unknown, fresh, integer, integers, item, moved, optional, read
from opanatomy.cost.registry import formula
from opanatomy.records.signature import Argument, Cost, Signature, Tensor


def _reduced(reduction: Argument) -> bool:
    """Return whether the elements are summed or averaged."""
    return integer(reduction) != 0


# ------------------------------------------------------------------------------------------------------ cross-entropy


@formula("aten::nll_loss_forward", "aten::nll_loss2d_forward")
def nll_loss(signature: Signature) -> Cost:
    """1 FLOP per target (2 with class weights); reads only the targets' log-probabilities, not the entire matrix."""
    x, target, weight = signature.tensor(0), signature.tensor(1), optional(signature, 2)
    n = target.numel
    results = 1 if _reduced(signature.get(3)) else n
    moved = n * item(x.dtype) + read(target, weight)
    written = fresh((results,), x.dtype) + item(x.dtype)
    return Cost(flops=n * (1 + (weight is not None)), read_bytes=moved, written_bytes=written)


@formula("aten::nll_loss_backward", "aten::nll_loss2d_backward")
def nll_loss_backward(signature: Signature) -> Cost:
    """1 FLOP per target; writes the entire gradient (0 for other classes), without reading the log-probabilities."""
    grad, x, target, weight = signature.tensor(0), signature.tensor(1), signature.tensor(2), optional(signature, 3)
    moved = read(grad, target, weight, optional(signature, 6))
    return Cost(flops=target.numel, read_bytes=moved, written_bytes=fresh(x.shape, x.dtype))


# ---------------------------------------------------------------------------------------------------------- regression


def _pairwise(signature: Signature, flops: int, reduction: Argument, *more: Tensor | None) -> Cost:
    x, target = signature.tensor(0), signature.tensor(1)
    if x.shape != target.shape:
        raise Unknown(f"loss of {x} and {target}")
    reduced = _reduced(reduction)
    written = fresh(() if reduced else x.shape, x.dtype)
    return Cost(flops=(flops + reduced) * x.numel, read_bytes=read(x, target, *more), written_bytes=written)


def _pairwise_backward(signature: Signature, flops: int, *more: Tensor | None) -> Cost:
    grad, x, target = (signature.tensor(index) for index in range(3))
    return Cost(flops=flops * x.numel, read_bytes=read(grad, x, target, *more), written_bytes=fresh(x.shape, x.dtype))


@formula("aten::mse_loss")
def mse_loss(signature: Signature) -> Cost:
    """2 FLOPs per element: subtract, square; 1 more for the sum or mean."""
    return _pairwise(signature, 2, signature.get(2, 1))


@formula("aten::mse_loss_backward")
def mse_loss_backward(signature: Signature) -> Cost:
    """3 FLOPs per element: subtract, two multiplies."""
    return _pairwise_backward(signature, 3)


@formula("aten::smooth_l1_loss", "aten::huber_loss")
def smooth_l1_loss(signature: Signature) -> Cost:
    """5 FLOPs per element: subtract, abs, square, halve, / beta; 1 more for the sum or mean."""
    return _pairwise(signature, 5, signature.get(2, 1))


@formula("aten::smooth_l1_loss_backward", "aten::huber_loss_backward")
def smooth_l1_loss_backward(signature: Signature) -> Cost:
    """4 FLOPs per element: subtract, / beta, two multiplies."""
    return _pairwise_backward(signature, 4)


@formula("aten::binary_cross_entropy")
def binary_cross_entropy(signature: Signature) -> Cost:
    """7 FLOPs per element: (t - 1) * log1p(-x) - t * log(x); 1 more for weights, 1 more for the sum or mean."""
    weight = optional(signature, 2)
    return _pairwise(signature, 7 + (weight is not None), signature.get(3, 1), weight)


@formula("aten::binary_cross_entropy_backward")
def binary_cross_entropy_backward(signature: Signature) -> Cost:
    """6 FLOPs per element: scale * grad * (x - t) / ((1 - x) * x); 7 with weights."""
    weight = optional(signature, 3)
    return _pairwise_backward(signature, 6 + (weight is not None), weight)


@formula("aten::binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(signature: Signature) -> Cost:
    """7 FLOPs per element: (1 - t) * x - (min(x, 0) - log1p(exp(-|x|))), where -|x| counts 1.

    Each optional weight adds 1, the sum or mean 1.
    """
    weights = (optional(signature, 2), optional(signature, 3))
    more = sum(weight is not None for weight in weights)
    return _pairwise(signature, 7 + more, signature.get(4, 1), *weights)


# ----------------------------------------------------------------------------------------------------------------- CTC

#: Three subtracts, three exps, two adds, log, and the adds of the maximum and the log-probability.
CTC_STEP = 11


@formula("aten::_ctc_loss")
def ctc_loss(signature: Signature) -> Cost:
    """11 FLOPs per element of the lattice (n, t, 2 * s + 1), where s is the length of the longest target.

    Has a cost only if the target lengths are a list or there is a single sample; lengths in a tensor depend on data.
    """
    x, targets = signature.tensor(0), signature.tensor(1)
    t, n = (x.shape[0], x.shape[1]) if len(x.shape) == 3 else (x.shape[0], 1)
    lengths = signature.get(3)
    if isinstance(lengths, tuple):
        longest = max(integers(lengths))
    elif n == 1:
        longest = targets.numel
    else:
        raise Unknown("the longest target")
    lattice = n * t * (2 * longest + 1)
    moved = read(x, targets, signature.get(2), lengths)
    return Cost(flops=CTC_STEP * lattice, read_bytes=moved, written_bytes=fresh((n + lattice,), x.dtype))


@formula("aten::_ctc_loss_backward")
def ctc_loss_backward(signature: Signature) -> Cost:
    """16 FLOPs per element of the lattice, plus 6 per log-probability.

    The backward lattice takes 11 of the 16, adding it to the forward lattice and to its class 5. The gradient takes 6:
    (exp(x) - exp(sum + loss - x)) * grad.
    """
    x, lattice = signature.tensor(1), signature.tensor(6)
    moved = read(*signature.arguments[:7])
    flops = (CTC_STEP + 5) * lattice.numel + 6 * x.numel
    return Cost(flops=flops, read_bytes=moved, written_bytes=fresh(x.shape, x.dtype))


@formula("aten::soft_margin_loss")
def soft_margin(signature: Signature) -> Cost:
    """4 FLOPs per element: log1p(exp(-t * x)); 1 more for the sum or mean. Arguments: (x, target, reduction)."""
    x, target = signature.tensor(0), signature.tensor(1)
    reduced = integer(signature.get(2, 1)) != 0
    return moved(read(x, target), fresh(() if reduced else x.shape, x.dtype), flops=(4 + reduced) * x.numel)


@formula("aten::soft_margin_loss_backward")
def soft_margin_backward(signature: Signature) -> Cost:
    """7 FLOPs per element: z = exp(-t * x) takes 3, -t * z / (z + 1) * grad 4.

    Arguments: (grad, x, target, reduction).
    """
    grad, x, target = (signature.tensor(index) for index in range(3))
    return moved(read(grad, x, target), fresh(x.shape, x.dtype), flops=7 * x.numel)


@formula("aten::multi_margin_loss")
def multi_margin(signature: Signature) -> Cost:
    """3 FLOPs per element: margin - x[target] + x and the sum; p = 2 and weights add 1 each.

    Arguments: (x, target, p, margin, weight, reduction).
    """
    x, target, weight = signature.tensor(0), signature.tensor(1), optional(signature, 4)
    flops = 3 + (signature.get(2, 1) == 2) + (weight is not None)
    results = () if integer(signature.get(5, 1)) else target.shape
    return moved(read(x, target, weight), fresh(results, x.dtype), flops=flops * x.numel)


@formula("aten::multi_margin_loss_backward")
def multi_margin_backward(signature: Signature) -> Cost:
    """4 FLOPs per element: 2 to recompute the margin, * grad, the sum for the target; p = 2 and weights add 1 each.

    Arguments: (grad, x, target, p, margin, weight, reduction).
    """
    grad, x, target = (signature.tensor(index) for index in range(3))
    weight = optional(signature, 5)
    flops = 4 + (signature.get(3, 1) == 2) + (weight is not None)
    return moved(read(grad, x, target, weight), fresh(x.shape, x.dtype), flops=flops * x.numel)
