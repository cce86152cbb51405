"""Convolutions: `2 * output elements * (C_in / groups) * kernel elements` FLOPs without the bias.

For a transposed convolution, it is `2 * input elements * (C_out / groups) * kernel elements`. Each gradient costs as
much as the forward; only the gradients that `output_mask` requests are counted (torch.utils.flop_counter agrees, except
that its backward ignores `groups`).
"""

from __future__ import annotations

from math import prod

from opanatomy.cost.operands import Shape, Unknown, flag, fresh, integer, integers, mask, optional, read, sizes
from opanatomy.cost.registry import formula
from opanatomy.records.signature import Argument, Cost, Signature, Tensor


def output_shape(
    x: Shape,
    weight: Shape,
    stride: Argument,
    padding: Argument,
    dilation: Argument,
    transposed: bool = False,
    output_padding: Argument = 0,
    groups: int = 1,
) -> Shape:
    """Return the shape of a convolution's result; a batch dimension may be missing."""
    # x (b, c, *spatial), weight (out, c / groups, *kernel), transposed weight (c, out / groups, *kernel)
    dims = len(weight) - 2
    batch, spatial = x[: len(x) - dims - 1], x[len(x) - dims :]
    if dims < 1 or len(spatial) != dims:
        raise Unknown(f"convolution of {x} with {weight}")
    rows = zip(
        spatial,
        weight[2:],
        integers(stride, dims),
        integers(padding, dims),
        integers(dilation, dims),
        integers(output_padding, dims),
        strict=True,
    )
    if transposed:
        sizes = tuple((n - 1) * s - 2 * p + d * (k - 1) + o + 1 for n, k, s, p, d, o in rows)
        return (*batch, weight[1] * groups, *sizes)
    sizes = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d, _ in rows)
    return (*batch, weight[0], *sizes)


def convolution_flops(weight: Shape, positions: Shape) -> int:
    """Return the FLOPs for the shape over which the kernel moves: the output, or the input if transposed."""
    # a position is (b, *spatial): batch and spatial sizes, channels are in the weight
    dims = len(weight) - 2
    if dims < 1 or len(positions) - dims not in (1, 2):
        raise Unknown(f"convolution with {weight} at {positions}")
    batch, spatial = positions[: len(positions) - dims - 1], positions[len(positions) - dims :]
    return 2 * prod(batch) * prod(spatial) * prod(weight)


def _forward(
    signature: Signature,
    bias: Tensor | None,
    stride: Argument,
    padding: Argument,
    dilation: Argument,
    transposed: bool = False,
    output_padding: Argument = 0,
    groups: int = 1,
    added: Tensor | None = None,
) -> Cost:
    x, weight = signature.tensor(0), signature.tensor(1)
    out = output_shape(x.shape, weight.shape, stride, padding, dilation, transposed, output_padding, groups)
    flops = convolution_flops(weight.shape, x.shape if transposed else out)
    return Cost(flops=flops, read_bytes=read(x, weight, bias, added), written_bytes=fresh(out, x.dtype))


@formula("aten::convolution", "aten::_convolution", "aten::convolution_overrideable")
def convolution(signature: Signature) -> Cost:
    """`2 * b * C_out * prod(out) * (C_in / groups) * prod(kernel)` FLOPs. Source: torch.utils.flop_counter.

    A transposed convolution: `2 * b * C_in * prod(in) * (C_out / groups) * prod(kernel)` FLOPs.
    """
    get = signature.get
    return _forward(signature, optional(signature, 2), get(3), get(4), get(5), flag(get(6)), get(7), integer(get(8)))


@formula("aten::mkldnn_convolution", "aten::miopen_convolution", "aten::miopen_depthwise_convolution")
def backend_convolution(signature: Signature) -> Cost:
    """Same as convolution. Arguments: (input, weight, bias, padding, stride, dilation, groups)."""
    get = signature.get
    return _forward(signature, optional(signature, 2), get(4), get(3), get(5))


@formula("mkldnn::_convolution_pointwise")
def pointwise_convolution(signature: Signature) -> Cost:
    """Same as convolution; the fused activation is not counted."""
    return backend_convolution(signature)


@formula("aten::cudnn_convolution")
def cudnn_convolution(signature: Signature) -> Cost:
    """Same as convolution. Arguments: (input, weight, padding, stride, dilation, groups).

    Before torch 1.8, argument 2 is a bias.
    """
    get = signature.get
    if optional(signature, 2) is not None:
        return backend_convolution(signature)
    return _forward(signature, None, get(3), get(2), get(4))


@formula("aten::cudnn_convolution_transpose", "aten::miopen_convolution_transpose")
def transposed_convolution(signature: Signature) -> Cost:
    """`2 * b * C_in * prod(in) * (C_out / groups) * prod(kernel)` FLOPs, as for a transposed convolution.

    Arguments: (input, weight, [bias,] padding, output_padding, stride, dilation, groups).
    """
    at = 2 if isinstance(signature.get(2), tuple) else 3
    padding, output_padding, stride, dilation, groups = (signature.get(at + step) for step in range(5))
    bias = optional(signature, 2)
    return _forward(signature, bias, stride, padding, dilation, True, output_padding, integer(groups))


@formula("aten::cudnn_convolution_relu", "aten::miopen_convolution_relu")
def convolution_relu(signature: Signature) -> Cost:
    """Same as convolution. Arguments: (input, weight, bias, stride, padding, dilation, groups)."""
    get = signature.get
    return _forward(signature, optional(signature, 2), get(3), get(4), get(5))


@formula("aten::cudnn_convolution_add_relu", "aten::miopen_convolution_add_relu")
def convolution_add_relu(signature: Signature) -> Cost:
    """Same as convolution. Arguments: (input, weight, z, alpha, bias, stride, padding, dilation, groups)."""
    get = signature.get
    added = signature.tensor(2)
    return _forward(signature, optional(signature, 4), get(5), get(6), get(7), added=added)


@formula(
    "aten::_slow_conv2d_forward",
    "aten::thnn_conv2d",
    "aten::slow_conv3d_forward",
    "aten::slow_conv3d",
    "aten::_conv_depthwise2d",
    "aten::conv_depthwise3d",
    "aten::slow_conv_dilated2d",
    "aten::slow_conv_dilated3d",
)
def native_convolution(signature: Signature) -> Cost:
    """Same as convolution. Arguments: (input, weight, kernel_size, bias, stride, padding[, dilation])."""
    get = signature.get
    dilation = get(6) if not isinstance(get(6), Tensor) else None
    return _forward(signature, optional(signature, 3), get(4), get(5), 1 if dilation is None else dilation)


@formula("aten::slow_conv_transpose2d", "aten::slow_conv_transpose3d")
def native_transposed_convolution(signature: Signature) -> Cost:
    """`2 * b * C_in * prod(in) * (C_out / groups) * prod(kernel)` FLOPs, as for a transposed convolution.

    Arguments: (input, weight, kernel_size, bias, stride, padding, output_padding, dilation).
    """
    get = signature.get
    return _forward(signature, optional(signature, 3), get(4), get(5), get(7, 1), True, get(6))


# ------------------------------------------------------------------------------------------------------------ backward


def _backward(grad: Tensor, x: Tensor, weight: Tensor, wanted: tuple[bool, ...], transposed: bool = False) -> Cost:
    """Return the cost of the gradients in `wanted` (input, weight, bias), without the bias gradient, a sum."""
    product_flops = convolution_flops(weight.shape, x.shape if transposed else grad.shape)
    channels = grad.shape[len(grad.shape) - len(weight.shape) + 1]
    # each gradient reads the output gradient and the other factor
    moved = read(grad) + (read(weight) if wanted[0] else 0) + (read(x) if wanted[1] else 0)
    written = (fresh(x.shape, x.dtype) if wanted[0] else 0) + (fresh(weight.shape, weight.dtype) if wanted[1] else 0)
    if wanted[2]:
        written += fresh((channels,), grad.dtype)
    return Cost(
        flops=product_flops * (wanted[0] + wanted[1]), read_bytes=moved if any(wanted) else 0, written_bytes=written
    )


@formula("aten::convolution_backward")
def convolution_backward(signature: Signature) -> Cost:
    """The forward's FLOPs for each of the input and weight gradients that `output_mask` requests.

    Reads the output gradient, the weight for an input gradient, and the input for a weight gradient. Source:
    torch.utils.flop_counter, but with `groups` taken into account.
    """
    grad, x, weight = (signature.tensor(index) for index in range(3))
    return _backward(grad, x, weight, mask(signature.get(10), 3), flag(signature.get(7)))


@formula("aten::convolution_backward_overrideable")
def convolution_backward_overrideable(signature: Signature) -> Cost:
    """Same as convolution_backward."""
    grad, x, weight = (signature.tensor(index) for index in range(3))
    return _backward(grad, x, weight, mask(signature.get(9), 3), flag(signature.get(6)))


@formula("aten::_slow_conv2d_backward", "aten::thnn_conv2d_backward")
def native_convolution_backward(signature: Signature) -> Cost:
    """Same as convolution_backward. Arguments: (grad, input, weight, kernel_size, stride, padding, output_mask).

    The `out` form has three gradients instead of the mask.
    """
    grad, x, weight = (signature.tensor(index) for index in range(3))
    wanted = signature.get(6)
    if isinstance(wanted, tuple):
        return _backward(grad, x, weight, mask(wanted, 3))
    return _backward(grad, x, weight, tuple(optional(signature, index) is not None for index in (6, 7, 8)))


@formula("aten::cudnn_convolution_backward", "aten::miopen_convolution_backward", "aten::mkldnn_convolution_backward")
def backend_convolution_backward(signature: Signature) -> Cost:
    """Same as convolution_backward; the mask has two or three entries.

    Arguments: (input, grad, weight, ..., output_mask).
    """
    x, grad, weight = (signature.tensor(index) for index in range(3))
    wanted = signature.arguments[-1]
    if not isinstance(wanted, tuple) or len(wanted) not in (2, 3):
        raise Unknown("output_mask")
    return _backward(grad, x, weight, (*mask(wanted, len(wanted)), False)[:3])


@formula("aten::cudnn_convolution_backward_input", "aten::miopen_convolution_backward_input")
def backend_input_gradient(signature: Signature) -> Cost:
    """Same as convolution_backward, for the input gradient only. Arguments: (input size, grad, weight, ...)."""
    grad, weight = signature.tensor(1), signature.tensor(2)
    shape = sizes(signature.get(0), len(weight.shape))
    return Cost(
        flops=convolution_flops(weight.shape, grad.shape),
        read_bytes=read(grad, weight),
        written_bytes=fresh(shape, grad.dtype),
    )


@formula("aten::cudnn_convolution_backward_weight", "aten::miopen_convolution_backward_weight")
def backend_weight_gradient(signature: Signature) -> Cost:
    """Same as convolution_backward, for the weight gradient only. Arguments: (weight size, grad, input, ...)."""
    shape, grad, x = sizes(signature.get(0), 3), signature.tensor(1), signature.tensor(2)
    return Cost(
        flops=convolution_flops(shape, grad.shape), read_bytes=read(grad, x), written_bytes=fresh(shape, grad.dtype)
    )


@formula("aten::conv_tbc")
def conv_tbc(signature: Signature) -> Cost:
    """`2 * out * b * k * C_in * C_out` FLOPs, with out = t + 2 * p - k + 1.

    Arguments: (x (t, b, C_in), weight (k, C_in, C_out), bias, p).
    """
    x, weight, bias = (signature.tensor(index) for index in range(3))
    (t, b, c), (k, c_w, out_c) = x.shape, weight.shape
    if c != c_w:
        raise Unknown(f"{x} and {weight}")
    shape = (t + 2 * integer(signature.get(3, 0)) - k + 1, b, out_c)
    flops = 2 * prod(shape) * k * c
    return Cost(flops=flops, read_bytes=read(x, weight, bias), written_bytes=fresh(shape, x.dtype))
