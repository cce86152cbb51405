"""torchvision's operators on regions and its deformable convolution. Source: torchvision/csrc/ops.

How many samples a region takes is data where `sampling_ratio` is not positive, as is what non-maximum suppression
keeps: no cost.
"""

from __future__ import annotations

from math import prod

from opanatomy.cost.operands import Unknown, fresh, integer, item, moved, optional, read
from opanatomy.cost.registry import formula
from opanatomy.records.signature import Argument, Cost, Signature, Tensor

#: Bilinear: four multiplies, three adds.
_BILINEAR = 7


def _samples(ratio: Argument) -> int:
    """Samples of one output element."""
    side = integer(ratio)
    if side <= 0:
        raise Unknown("how many samples a region takes")
    return side * side


def _pooled(signature: Signature, channels: int) -> tuple[int, int]:
    """Elements of the result of (x, rois, scale, height, width, ...), and of one channel of one region."""
    height, width = integer(signature.get(3)), integer(signature.get(4))
    return signature.tensor(1).shape[0] * channels * height * width, height * width


def _sampled(x: Tensor, elements: int) -> int:
    """Bytes of the four neighbours of each sample, the image at most."""
    return min(4 * elements, x.stored) * item(x.dtype)


@formula("torchvision::roi_align")
def roi_align(signature: Signature) -> Cost:
    """`8 s^2 + 1` per output element: s^2 bilinear samples of 7, their adds, a divide.

    (x (b, c, h, w), rois (k, 5), scale, height, width, sampling ratio s, aligned).
    """
    x, rois, samples = signature.tensor(0), signature.tensor(1), _samples(signature.get(5))
    elements, _ = _pooled(signature, x.shape[1])
    flops = elements * ((_BILINEAR + 1) * samples + 1)
    return moved(_sampled(x, elements * samples) + read(rois), fresh((elements,), x.dtype), flops=flops)


@formula("torchvision::_roi_align_backward")
def roi_align_backward(signature: Signature) -> Cost:
    """`8 s^2 + 1` per element of the gradient: to each of four neighbours a multiply and an add, a divide.

    (grad, rois, scale, height, width, b, c, h, w, sampling ratio s, aligned); writes the gradient of the whole image.
    """
    grad, rois, samples = signature.tensor(0), signature.tensor(1), _samples(signature.get(9))
    shape = tuple(integer(signature.get(place)) for place in range(5, 9))
    return moved(read(grad, rois), fresh(shape, grad.dtype), flops=grad.numel * (8 * samples + 1))


@formula("torchvision::ps_roi_align")
def position_roi_align(signature: Signature) -> Cost:
    """As roi_align with `c / (height * width)` channels of the result; writes the int32 channel of each element too."""
    x, rois, samples = signature.tensor(0), signature.tensor(1), _samples(signature.get(5))
    _, places = _pooled(signature, 1)
    elements, _ = _pooled(signature, x.shape[1] // places)
    flops = elements * ((_BILINEAR + 1) * samples + 1)
    written = fresh((elements,), x.dtype) + fresh((elements,), "int32")
    return moved(_sampled(x, elements * samples) + read(rois), written, flops=flops)


@formula("torchvision::_ps_roi_align_backward")
def position_roi_align_backward(signature: Signature) -> Cost:
    """As _roi_align_backward: (grad, rois, channels, scale, height, width, sampling ratio s, b, c, h, w)."""
    grad, samples = signature.tensor(0), _samples(signature.get(6))
    shape = tuple(integer(signature.get(place)) for place in range(7, 11))
    moved_in = read(*(signature.tensor(place) for place in range(3)))
    return moved(moved_in, fresh(shape, grad.dtype), flops=grad.numel * (8 * samples + 1))


@formula("torchvision::roi_pool")
def roi_pool(signature: Signature) -> Cost:
    """0: comparisons; (x, rois, scale, height, width): writes maxima and int32 places.

    How large a region is is data: reads one element of each at least.
    """
    x = signature.tensor(0)
    elements, _ = _pooled(signature, x.shape[1])
    rows = min(elements, x.stored) * item(x.dtype)
    return moved(rows + read(signature.tensor(1)), fresh((elements,), x.dtype) + fresh((elements,), "int32"))


@formula("torchvision::_roi_pool_backward")
def roi_pool_backward(signature: Signature) -> Cost:
    """1 add per element of the gradient: (grad, rois, places, scale, height, width, b, c, h, w)."""
    grad = signature.tensor(0)
    shape = tuple(integer(signature.get(place)) for place in range(6, 10))
    moved_in = read(*(signature.tensor(place) for place in range(3)))
    return moved(moved_in, fresh(shape, grad.dtype), flops=grad.numel)


def _deformed(x: Tensor, weight: Tensor, offset: Tensor) -> tuple[tuple[int, ...], int]:
    """The shape of the result and the FLOPs of its product."""
    # x (b, c, h, w), weight (out, c / groups, kh, kw), offset (b, 2 * offset groups * kh * kw, out h, out w)
    shape = (x.shape[0], weight.shape[0], *offset.shape[-2:])
    if len(weight.shape) != 4 or offset.shape[1] % (2 * weight.shape[2] * weight.shape[3]):
        raise Unknown(f"deformable convolution of {x} with {weight} at {offset}")
    return shape, 2 * prod(shape) * prod(weight.shape[1:])


@formula("torchvision::deform_conv2d")
def deformable_convolution(signature: Signature) -> Cost:
    """`2 * b * C_out * prod(out) * (C_in / groups) * prod(kernel)`, as convolution; the sampling is not counted.

    (x, weight, offset, mask, bias, strides, paddings, dilations, groups, offset groups, use mask).
    """
    x, weight, offset = (signature.tensor(place) for place in range(3))
    masked = signature.get(13, True) is not False
    shape, flops = _deformed(x, weight, offset)
    parts = read(x, weight, offset, optional(signature, 3) if masked else None, optional(signature, 4))
    return moved(parts, fresh(shape, x.dtype), flops=flops)


@formula("torchvision::_deform_conv2d_backward")
def deformable_convolution_backward(signature: Signature) -> Cost:
    """Twice the forward: the products for the columns and for the weight; (grad, x, weight, offset, mask, bias, ...).

    Writes the gradient of each of them.
    """
    grad, x, weight, offset = (signature.tensor(place) for place in range(4))
    mask = optional(signature, 4) if signature.get(14, True) is not False else None
    _, flops = _deformed(x, weight, offset)
    given = (x, weight, offset, mask, optional(signature, 5))
    written = sum(fresh(tensor.shape, tensor.dtype) for tensor in given if tensor is not None)
    return moved(read(grad, x, weight, offset, mask), written, flops=2 * flops)
