"""Softmax and the normalizations: FLOPs per element, operation by operation.

The counts for layer norm (7; 9 and 4 backward) and softmax (4 and 4) are from Ivanov et al., arXiv 2007.00072, without
the scale and dropout, which are separate operators in torch; the others are derived the same way. A missing scale and a
missing shift each lower the count by 1. Statistics of 16-bit inputs are counted as written in float32, as accelerators
write them.
"""

from __future__ import annotations

from math import prod

from opanatomy.cost.operands import (
    Shape,
    Unknown,
    axis,
    flag,
    fresh,
    integer,
    mask,
    moved,
    optional,
    read,
    scalar_type,
    sizes,
)
from opanatomy.cost.registry import formula
from opanatomy.records.signature import Cost, Signature, Tensor

#: x - mean, its square and the sums (mean 1, variance 3), * rstd; then * scale and + shift.
STANDARDIZE, SCALE, SHIFT = 5, 1, 1
#: The input gradient with a scale; without it one multiply less. The gradients of scale and shift.
INPUT_GRADIENT, SCALE_GRADIENT, SHIFT_GRADIENT = 9, 3, 1


def statistics_type(dtype: str | None) -> str | None:
    """Return the data type in which means and deviations are kept."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def _type_on_cpu(x: Tensor, *affine: Tensor | None) -> str | None:
    """Return the data type of statistics on the CPU: that of scale and shift, else of the input."""
    return next((parameter.dtype for parameter in affine if parameter is not None), x.dtype)


def _affine(weight: Tensor | None, bias: Tensor | None) -> int:
    return SCALE * (weight is not None) + SHIFT * (bias is not None)


def _gradient_flops(numel: int, weight: Tensor | None, wanted: tuple[bool, ...]) -> int:
    input_gradient = INPUT_GRADIENT - (weight is None)
    return numel * (input_gradient * wanted[0] + SCALE_GRADIENT * wanted[1] + SHIFT_GRADIENT * wanted[2])


def _gradient_bytes(x: Tensor, channels: int, dtype: str | None, wanted: tuple[bool, ...]) -> int:
    affine_bytes = fresh((channels,), dtype)
    return (fresh(x.shape, x.dtype) if wanted[0] else 0) + affine_bytes * (wanted[1] + wanted[2])


# ------------------------------------------------------------------------------------------------------------- softmax


@formula("aten::_softmax", "aten::_log_softmax")
def softmax(signature: Signature) -> Cost:
    """4 FLOPs per element: subtract the maximum, exp, sum, divide (log_softmax: subtract). Source: arXiv 2007.00072."""
    x = signature.tensor(0)
    dtype = "float32" if x.dtype == "float16" and flag(signature.get(2)) else x.dtype
    return Cost(flops=4 * x.numel, read_bytes=read(x), written_bytes=fresh(x.shape, dtype))


@formula("aten::_safe_softmax")
def safe_softmax(signature: Signature) -> Cost:
    """4 FLOPs per element, as for softmax."""
    x = signature.tensor(0)
    dtype = scalar_type(signature.get(2)) or x.dtype
    return Cost(flops=4 * x.numel, read_bytes=read(x), written_bytes=fresh(x.shape, dtype))


@formula("aten::_masked_softmax")
def masked_softmax(signature: Signature) -> Cost:
    """4 FLOPs per element, as for softmax; also reads the mask."""
    x = signature.tensor(0)
    return Cost(flops=4 * x.numel, read_bytes=read(x, signature.tensor(1)), written_bytes=fresh(x.shape, x.dtype))


@formula("aten::_softmax_backward_data", "aten::_log_softmax_backward_data")
def softmax_backward(signature: Signature) -> Cost:
    """4 FLOPs per element: grad * y, sum, subtract, * y (log_softmax: sum, exp, multiply, subtract).

    Source: arXiv 2007.00072.
    """
    grad, y = signature.tensor(0), signature.tensor(1)
    like = optional(signature, 3)
    # torch before 1.11 has the input of the forward here, not its data type
    dtype = like.dtype if like else scalar_type(signature.get(3)) or grad.dtype
    return Cost(flops=4 * y.numel, read_bytes=read(grad, y), written_bytes=fresh(y.shape, dtype))


# ---------------------------------------------------------------------------------------------------------- layer norm


def _rows(x: Tensor, normalized: Shape) -> int:
    if not normalized or x.shape[len(x.shape) - len(normalized) :] != normalized:
        raise Unknown(f"{x} over {normalized}")
    return prod(x.shape[: len(x.shape) - len(normalized)])


@formula("aten::native_layer_norm")
def layer_norm(signature: Signature) -> Cost:
    """7 FLOPs per element: mean, subtract, square, sum, * rstd, * scale, + shift. Source: arXiv 2007.00072."""
    x, weight, bias = signature.tensor(0), optional(signature, 2), optional(signature, 3)
    return _layer_norm(signature, x, weight, bias, statistics_type(x.dtype))


@formula("aten::native_layer_norm", device="cpu")
def layer_norm_on_cpu(signature: Signature) -> Cost:
    """7 FLOPs per element; the CPU stores the statistics in the data type of scale and shift, or else of the input."""
    x, weight, bias = signature.tensor(0), optional(signature, 2), optional(signature, 3)
    return _layer_norm(signature, x, weight, bias, _type_on_cpu(x, weight, bias))


def _layer_norm(signature: Signature, x: Tensor, weight: Tensor | None, bias: Tensor | None, dtype: str | None) -> Cost:
    # a trace without constants still shows the normalized dimensions as those of the scale
    rows = _rows(x, weight.shape if weight else sizes(signature.get(1)))
    written = fresh(x.shape, x.dtype) + 2 * fresh((rows,), dtype)
    flops = x.numel * (STANDARDIZE + _affine(weight, bias))
    return Cost(flops=flops, read_bytes=read(x, weight, bias), written_bytes=written)


@formula("aten::native_layer_norm_backward")
def layer_norm_backward(signature: Signature) -> Cost:
    """FLOPs per element: input gradient 9, scale gradient 3, shift gradient 1, if `output_mask` requests them.

    The scale gradient takes * rstd, * grad and a sum, the shift gradient a sum. Source: arXiv 2007.00072 (9 for the
    input, 4 for scale and shift).
    """
    grad, x, mean, rstd = (signature.tensor(index) for index in (0, 1, 3, 4))
    weight, bias, wanted = optional(signature, 5), optional(signature, 6), mask(signature.get(7), 3)
    width = prod(sizes(signature.get(2)))
    dtype = weight.dtype if weight else x.dtype
    return Cost(
        flops=_gradient_flops(x.numel, weight, wanted),
        read_bytes=read(grad, x, mean, rstd, weight, bias),
        written_bytes=_gradient_bytes(x, width, dtype, wanted),
    )


@formula("aten::_fused_rms_norm")
def rms_norm(signature: Signature) -> Cost:
    """4 FLOPs per element: square, sum, * rstd, * scale; 3 without a scale."""
    x, weight = signature.tensor(0), optional(signature, 2)
    rows = _rows(x, weight.shape if weight else sizes(signature.get(1)))
    written = fresh(x.shape, x.dtype) + fresh((rows,), statistics_type(x.dtype))
    return Cost(flops=x.numel * (3 + (weight is not None)), read_bytes=read(x, weight), written_bytes=written)


@formula("aten::_fused_rms_norm_backward")
def rms_norm_backward(signature: Signature) -> Cost:
    """FLOPs per element: input gradient 6 (5 without a scale), scale gradient 3.

    The input gradient takes g = grad * scale, g * x and its sum, then rstd * g - x * c (two multiplies, a subtract).
    The scale gradient takes x * rstd, * grad and a sum.
    """
    grad, x, rstd, weight = signature.tensor(0), signature.tensor(1), signature.tensor(3), optional(signature, 4)
    wanted = mask(signature.get(5), 2)
    width = prod(sizes(signature.get(2)))
    dtype = weight.dtype if weight else x.dtype
    return Cost(
        flops=x.numel * ((5 + (weight is not None)) * wanted[0] + 3 * wanted[1]),
        read_bytes=read(grad, x, rstd, weight),
        written_bytes=_gradient_bytes(x, width, dtype, (*wanted, False)),
    )


# ---------------------------------------------------------------------------------------------------------- group norm


@formula("aten::native_group_norm")
def group_norm(signature: Signature) -> Cost:
    """7 FLOPs per element, as for layer norm; normalizes over each group of channels."""
    x = signature.tensor(0)
    return _group_norm(signature, x, statistics_type(x.dtype))


@formula("aten::native_group_norm", device="cpu")
def group_norm_on_cpu(signature: Signature) -> Cost:
    """7 FLOPs per element; the CPU stores the statistics in the data type of scale and shift, or else of the input."""
    x = signature.tensor(0)
    return _group_norm(signature, x, _type_on_cpu(x, optional(signature, 1), optional(signature, 2)))


def _group_norm(signature: Signature, x: Tensor, dtype: str | None) -> Cost:
    weight, bias = optional(signature, 1), optional(signature, 2)
    rows = integer(signature.get(3)) * integer(signature.get(6))
    written = fresh(x.shape, x.dtype) + 2 * fresh((rows,), dtype)
    flops = x.numel * (STANDARDIZE + _affine(weight, bias))
    return Cost(flops=flops, read_bytes=read(x, weight, bias), written_bytes=written)


@formula("aten::native_group_norm_backward")
def group_norm_backward(signature: Signature) -> Cost:
    """FLOPs per element: input gradient 9, scale gradient 3, shift gradient 1, as for layer norm."""
    grad, x, mean, rstd = (signature.tensor(index) for index in range(4))
    weight, wanted = optional(signature, 4), mask(signature.get(9), 3)
    dtype = weight.dtype if weight else x.dtype
    return Cost(
        flops=_gradient_flops(x.numel, weight, wanted),
        read_bytes=read(grad, x, mean, rstd, weight),
        written_bytes=_gradient_bytes(x, integer(signature.get(6)), dtype, wanted),
    )


# ---------------------------------------------------------------------------------------------------------- batch norm


def _batch_norm(
    x: Tensor, affine: tuple[Tensor | None, ...], running: tuple[Tensor | None, ...], training: bool, dtype: str | None
) -> Cost:
    written = fresh(x.shape, x.dtype)
    if training:
        # statistics of this batch, and the running ones updated in place
        written += 2 * fresh((x.shape[1],), dtype) + read(*running)
    # evaluation: subtract the mean and multiply by 1 / deviation
    flops = x.numel * ((STANDARDIZE if training else 2) + _affine(*affine))
    return Cost(flops=flops, read_bytes=read(x, *affine, *running), written_bytes=written)


@formula(
    "aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm", "aten::_native_batch_norm_legit"
)
def batch_norm(signature: Signature) -> Cost:
    """7 FLOPs per element in training, as for layer norm; 4 in evaluation: subtract, multiply, scale, shift.

    Training also reads and writes the running statistics. cuDNN's reserve space is not counted.
    """
    return _native_batch_norm(signature, statistics_type(signature.tensor(0).dtype))


@formula("aten::native_batch_norm", "aten::_native_batch_norm_legit", device="cpu")
def batch_norm_on_cpu(signature: Signature) -> Cost:
    """7 FLOPs per element in training, 4 in evaluation, as on other devices.

    The CPU stores the statistics in the data type of scale and shift, or else of the input.
    """
    return _native_batch_norm(
        signature, _type_on_cpu(signature.tensor(0), optional(signature, 1), optional(signature, 2))
    )


def _native_batch_norm(signature: Signature, dtype: str | None) -> Cost:
    x, affine = signature.tensor(0), (optional(signature, 1), optional(signature, 2))
    if isinstance(signature.get(3), bool):
        # the overload without running statistics
        return _batch_norm(x, affine, (), flag(signature.get(3)), dtype)
    return _batch_norm(x, affine, (optional(signature, 3), optional(signature, 4)), flag(signature.get(5)), dtype)


@formula("aten::_native_batch_norm_legit_no_training", "aten::_batch_norm_no_update")
def batch_norm_evaluation(signature: Signature) -> Cost:
    """4 FLOPs per element: subtract, multiply, scale, shift."""
    affine = (optional(signature, 1), optional(signature, 2))
    return _batch_norm(signature.tensor(0), affine, (optional(signature, 3), optional(signature, 4)), False, None)


@formula("aten::_batch_norm_with_update")
def batch_norm_update(signature: Signature) -> Cost:
    """7 FLOPs per element, as for native_batch_norm in training."""
    affine = (optional(signature, 1), optional(signature, 2))
    x, running = signature.tensor(0), (optional(signature, 3), optional(signature, 4))
    return _batch_norm(x, affine, running, True, statistics_type(x.dtype))


def _batch_norm_backward(
    x: Tensor, weight: Tensor | None, read_bytes: int, training: bool, wanted: tuple[bool, ...]
) -> Cost:
    flops = _gradient_flops(x.numel, weight, wanted)
    if not training and wanted[0]:
        # the statistics are constants: grad * (scale / deviation)
        flops += x.numel * (1 - INPUT_GRADIENT + (weight is None))
    dtype = weight.dtype if weight else statistics_type(x.dtype)
    return Cost(flops=flops, read_bytes=read_bytes, written_bytes=_gradient_bytes(x, x.shape[1], dtype, wanted))


@formula("aten::native_batch_norm_backward")
def batch_norm_backward(signature: Signature) -> Cost:
    """FLOPs per element: input gradient 9 (1 in evaluation), scale gradient 3, shift gradient 1.

    Only requested gradients are counted.
    """
    x, weight = signature.tensor(1), optional(signature, 2)
    moved = read(signature.tensor(0), x, weight, *(optional(signature, index) for index in range(3, 7)))
    return _batch_norm_backward(x, weight, moved, flag(signature.get(7)), mask(signature.get(9), 3))


@formula("aten::batch_norm_backward")
def batch_norm_backward_reserve(signature: Signature) -> Cost:
    """Same as native_batch_norm_backward; the reserve space is not counted."""
    return batch_norm_backward(Signature(signature.arguments[:10]))


@formula("aten::cudnn_batch_norm_backward", "aten::miopen_batch_norm_backward")
def backend_batch_norm_backward(signature: Signature) -> Cost:
    """13 FLOPs per element: input gradient 9, scale gradient 3, shift gradient 1; the reserve space is not counted."""
    x, grad, weight = (signature.tensor(index) for index in range(3))
    moved = read(x, grad, weight, *(optional(signature, index) for index in range(3, 7)))
    return _batch_norm_backward(x, weight, moved, True, (True, True, True))


@formula("aten::batch_norm_stats")
def batch_norm_stats(signature: Signature) -> Cost:
    """4 FLOPs per element: sum, subtract, square, sum (the first half of synchronized batch norm)."""
    x = signature.tensor(0)
    written = 2 * fresh((x.shape[1],), statistics_type(x.dtype))
    return Cost(flops=4 * x.numel, read_bytes=read(x), written_bytes=written)


@formula("aten::batch_norm_elemt")
def batch_norm_elemt(signature: Signature) -> Cost:
    """4 FLOPs per element: subtract, multiply, scale, shift."""
    x, weight, bias = signature.tensor(0), optional(signature, 1), optional(signature, 2)
    moved = read(x, weight, bias, signature.tensor(3), signature.tensor(4))
    return Cost(flops=x.numel * (2 + _affine(weight, bias)), read_bytes=moved, written_bytes=fresh(x.shape, x.dtype))


# --------------------------------------------------------------------------------------------------------- weight norm


@formula("aten::_weight_norm_interface")
def weight_norm(signature: Signature) -> Cost:
    """3 FLOPs per element: square, sum, * (g / norm); writes the weight and its norms."""
    v, g = signature.tensor(0), signature.tensor(1)
    written = fresh(v.shape, v.dtype) + fresh(g.shape, statistics_type(g.dtype))
    return Cost(flops=3 * v.numel, read_bytes=read(v, g), written_bytes=written)


@formula("aten::_weight_norm_interface_backward")
def weight_norm_backward(signature: Signature) -> Cost:
    """5 FLOPs per element: grad * v, sum, v * c, subtract, * (g / norm)."""
    grad, v, g, norms = (signature.tensor(index) for index in range(4))
    axis(integer(signature.get(4)), len(v.shape))
    written = fresh(v.shape, v.dtype) + fresh(g.shape, g.dtype)
    return Cost(flops=5 * v.numel, read_bytes=read(grad, v, g, norms), written_bytes=written)


# Batch norm over several devices: the parts of `SyncBatchNorm` around its exchange, and batch norm's statistics.


@formula("aten::batch_norm_gather_stats", "aten::batch_norm_gather_stats_with_counts")
def gather_statistics(signature: Signature) -> Cost:
    """9 FLOPs per gathered mean, to combine all devices' statistics; also reads and writes the running statistics.

    Arguments: (x, means (devices, c), deviations, running mean, running variance, ...); x is not read.
    """
    means, deviations = signature.tensor(1), signature.tensor(2)
    running = (optional(signature, 3), optional(signature, 4))
    counts = optional(signature, 7)
    written = 2 * fresh((means.shape[-1],), means.dtype) + read(*running)
    return moved(read(means, deviations, *running, counts), written, flops=9 * means.numel)


@formula("aten::batch_norm_backward_reduce")
def reduce_gradients(signature: Signature) -> Cost:
    """4 FLOPs per element: two sums, x - mean, * grad.

    Arguments: (grad, x, mean, deviation, weight, three flags for the results).
    """
    grad, x, mean, deviation = (signature.tensor(index) for index in range(4))
    weight = optional(signature, 4)
    channels = (x.shape[1],)
    sums = 2 * fresh(channels, mean.dtype) if flag(signature.get(5)) else 0
    kept = weight.dtype if weight else statistics_type(x.dtype)
    asked = flag(signature.get(6)) + flag(signature.get(7))
    return moved(read(grad, x, mean, deviation), sums + asked * fresh(channels, kept), flops=4 * x.numel)


@formula("aten::batch_norm_backward_elemt")
def apply_gradients(signature: Signature) -> Cost:
    """5 FLOPs per element: (grad - mean(grad) - (x - mean) * c) * scale.

    Arguments: (grad, x, mean, deviation, weight, sums, count).
    """
    grad, x = signature.tensor(0), signature.tensor(1)
    moved_in = read(*signature.arguments[:8])
    return moved(moved_in, fresh(x.shape, grad.dtype), flops=5 * x.numel)
