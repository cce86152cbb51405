"""Pooling and resizing: FLOPs per output element, by the number of input elements combined."""

from __future__ import annotations

from math import floor, prod

from opanatomy.cost.operands import (
    Shape,
    Unknown,
    flag,
    fresh,
    integer,
    integers,
    item,
    mask,
    moved,
    optional,
    read,
    sizes,
)
from opanatomy.cost.registry import formula
from opanatomy.records.signature import Argument, Cost, Signature, Tensor


def _pooled(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    places = (span + (stride - 1 if ceil_mode else 0)) // stride + 1
    # with ceil_mode the last window must start inside the image or its left padding
    return places - 1 if ceil_mode and (places - 1) * stride >= size + padding else places


def window(
    x: Tensor, dims: int, kernel: Argument, stride: Argument, padding: Argument, dilation: Argument, ceil_mode: bool
) -> tuple[Shape, int]:
    """Return the shape of the result of a window of `dims` dimensions, and the window's elements."""
    k = integers(kernel, dims)
    s = k if stride in (None, ()) else integers(stride, dims)
    rows = zip(x.shape[-dims:], k, s, integers(padding, dims), integers(dilation, dims), strict=True)
    return (*x.shape[:-dims], *(_pooled(*row, ceil_mode) for row in rows)), prod(k)


def _max_pool(signature: Signature, dims: int) -> Cost:
    x, get = signature.tensor(0), signature.get
    shape, _ = window(x, dims, get(1), get(2), get(3), get(4), flag(get(5)))
    return moved(read(x), fresh(shape, x.dtype) + fresh(shape, "int64"))


@formula("aten::max_pool2d_with_indices")
def max_pool2d(signature: Signature) -> Cost:
    """0 FLOPs (comparisons only); reads the image, writes the maxima and their int64 indices."""
    return _max_pool(signature, 2)


@formula("aten::max_pool3d_with_indices")
def max_pool3d(signature: Signature) -> Cost:
    """0 FLOPs (comparisons only); reads the volume, writes the maxima and their int64 indices."""
    return _max_pool(signature, 3)


@formula("aten::max_pool2d_with_indices_backward", "aten::max_pool3d_with_indices_backward")
def max_pool_backward(signature: Signature) -> Cost:
    """1 add per output-gradient element; reads gradients and indices, not the image; writes the image's gradient."""
    grad, x, indices = signature.tensor(0), signature.tensor(1), signature.tensor(7)
    return moved(read(grad, indices), fresh(x.shape, x.dtype), flops=grad.numel)


def _average_pool(signature: Signature, dims: int) -> Cost:
    x, get = signature.tensor(0), signature.get
    shape, taps = window(x, dims, get(1), get(2), get(3), 1, flag(get(4)))
    return moved(read(x), fresh(shape, x.dtype), flops=prod(shape) * taps)


@formula("aten::avg_pool1d")
def average_pool1d(signature: Signature) -> Cost:
    """1 FLOP per output element and window element: the adds and the division."""
    return _average_pool(signature, 1)


@formula("aten::avg_pool2d")
def average_pool2d(signature: Signature) -> Cost:
    """1 FLOP per output element and window element: the adds and the division."""
    return _average_pool(signature, 2)


@formula("aten::avg_pool3d")
def average_pool3d(signature: Signature) -> Cost:
    """1 FLOP per output element and window element: the adds and the division."""
    return _average_pool(signature, 3)


@formula("aten::avg_pool2d_backward", "aten::avg_pool3d_backward")
def average_pool_backward(signature: Signature) -> Cost:
    """1 FLOP per gradient element and window element, as for the forward; does not read the image."""
    grad, x = signature.tensor(0), signature.tensor(1)
    taps = prod(sizes(signature.get(2), 2))
    return moved(read(grad), fresh(x.shape, x.dtype), flops=grad.numel * taps)


@formula("aten::_adaptive_avg_pool2d", "aten::_adaptive_avg_pool3d")
def adaptive_pool(signature: Signature) -> Cost:
    """1 FLOP per input element, as for a mean. Arguments: (x, output size)."""
    x, size = signature.tensor(0), sizes(signature.get(1), 2)
    return moved(read(x), fresh((*x.shape[: -len(size)], *size), x.dtype), flops=x.numel)


@formula("aten::_adaptive_avg_pool2d_backward", "aten::_adaptive_avg_pool3d_backward")
def adaptive_pool_backward(signature: Signature) -> Cost:
    """1 FLOP per input element; reads the output gradient, not the image; writes the image's gradient."""
    grad, x = signature.tensor(0), signature.tensor(1)
    return moved(read(grad), fresh(x.shape, x.dtype), flops=x.numel)


#: FLOPs per output element. Linear: two multiplies and an add in each dimension, the earlier ones for each corner.
#: Bicubic: four taps in five rows (four of the image, one across them), each four multiplies and three adds.
_RESIZE = {
    "upsample_nearest1d": 0, "upsample_nearest2d": 0, "upsample_nearest3d": 0,
    "_upsample_nearest_exact1d": 0, "_upsample_nearest_exact2d": 0, "_upsample_nearest_exact3d": 0,
    "upsample_linear1d": 3, "upsample_bilinear2d": 9, "upsample_trilinear3d": 21, "upsample_bicubic2d": 35,
}  # fmt: skip


def _resized(x: Tensor, size: Argument, scales: tuple[Argument, ...]) -> Shape:
    if size not in (None, ()):
        asked = sizes(size)
        return (*x.shape[: -len(asked)], *asked)
    factors = next((value for value in scales if isinstance(value, tuple)), None)
    if factors is None:
        raise Unknown("the size asked for")
    numbers = [float(value) for value in factors if isinstance(value, int | float)]
    old = x.shape[-len(numbers) :]
    return (*x.shape[: -len(numbers)], *(floor(n * factor) for n, factor in zip(old, numbers, strict=True)))


def _register(name: str, flops: int) -> None:
    def forward(signature: Signature) -> Cost:
        x = signature.tensor(0)
        shape = _resized(x, signature.get(1), signature.arguments[2:])
        # the nearest element of each place: a smaller image does not read the others
        chosen = fresh(map(min, x.shape, shape), x.dtype) if "nearest" in name else read(x)
        return moved(min(read(x), chosen), fresh(shape, x.dtype), flops=flops * prod(shape))

    def backward(signature: Signature) -> Cost:
        grad, size = signature.tensor(0), sizes(signature.get(2), 3)
        adds = max(flops, 1)
        return moved(read(grad), fresh(size, grad.dtype), flops=adds * grad.numel)

    forward.__doc__ = f"{flops} FLOPs per output element: " + (
        "a weighted sum of the neighboring input elements." if flops else "copies the nearest input element."
    )
    count = max(flops, 1)
    backward.__doc__ = (
        f"{count} FLOP{'s' * (count != 1)} per gradient element; writes the input's gradient. "
        "Arguments: (grad, output size, input size)."
    )
    formula(f"aten::{name}")(forward)
    formula(f"aten::{name}_backward")(backward)


for _name, _flops in _RESIZE.items():
    _register(_name, _flops)


@formula("aten::grid_sampler_2d", "aten::grid_sampler_3d", "aten::cudnn_grid_sampler")
def grid_sampler(signature: Signature) -> Cost:
    """FLOPs per output element: bilinear 7 (four multiplies, three adds), 15 in 3-D, nearest 0, bicubic 35.

    Reads the grid and each output element's neighbors, at most the entire image.
    """
    x, grid = signature.tensor(0), signature.tensor(1)
    shape = (*x.shape[:2], *grid.shape[1:-1])
    mode = integer(signature.get(2, 0))
    flops = (7 if len(x.shape) == 4 else 15, 0, 35)[mode]
    return moved(_sampled(x, mode, prod(shape)) + read(grid), fresh(shape, x.dtype), flops=flops * prod(shape))


def _sampled(x: Tensor, mode: int, elements: int) -> int:
    """Return the bytes of the neighbors of that many samples, at most the image."""
    neighbours = (4 if len(x.shape) == 4 else 8, 1, 16)[mode]
    return min(fresh((neighbours, elements), x.dtype), read(x))


@formula("aten::grid_sampler_2d_backward", "aten::grid_sampler_3d_backward")
def grid_sampler_backward(signature: Signature) -> Cost:
    """The forward's FLOPs for each requested gradient (image, grid); writes the requested gradients.

    Arguments: (grad, x, grid, mode, ..., output_mask).
    """
    grad, x, grid = (signature.tensor(index) for index in range(3))
    asked = signature.get(6)
    wanted = mask(asked, 2) if asked is not None else (True, True)
    mode = integer(signature.get(3, 0))
    flops = (7 if len(x.shape) == 4 else 15, 0, 35)[mode] * grad.numel
    written = (fresh(x.shape, x.dtype) if wanted[0] else 0) + (fresh(grid.shape, grid.dtype) if wanted[1] else 0)
    return moved(read(grad, grid) + _sampled(x, mode, grad.numel), written, flops=flops * sum(wanted))


@formula("aten::cudnn_grid_sampler_backward")
def cudnn_grid_sampler_backward(signature: Signature) -> Cost:
    """The bilinear forward's FLOPs twice, for the image and for the grid. Writes both gradients.

    Arguments: (x, grid, grad).
    """
    x, grid, grad = (signature.tensor(index) for index in range(3))
    return grid_sampler_backward(Signature((grad, x, grid)))


@formula("aten::adaptive_max_pool2d", "aten::adaptive_max_pool3d")
def adaptive_max_pool(signature: Signature) -> Cost:
    """0 FLOPs (comparisons only); writes the maxima and their int64 indices. Arguments: (x, output size)."""
    x, size = signature.tensor(0), sizes(signature.get(1), 2)
    shape = (*x.shape[: -len(size)], *size)
    return moved(read(x), fresh(shape, x.dtype) + fresh(shape, "int64"))


@formula("aten::adaptive_max_pool2d_backward", "aten::adaptive_max_pool3d_backward")
def adaptive_max_pool_backward(signature: Signature) -> Cost:
    """1 add per element of the output gradient; writes the image's gradient, does not read the image.

    Arguments: (grad, x, indices).
    """
    grad, x, indices = (signature.tensor(index) for index in range(3))
    return moved(read(grad, indices), fresh(x.shape, x.dtype), flops=grad.numel)


@formula("aten::mkldnn_max_pool2d")
def mkldnn_max_pool2d(signature: Signature) -> Cost:
    """0 FLOPs (comparisons only); reads the image, writes the maxima."""
    x, get = signature.tensor(0), signature.get
    shape, _ = window(x, 2, get(1), get(2), get(3), get(4), flag(get(5)))
    return moved(read(x), fresh(shape, x.dtype))


@formula("aten::max_unpool2d", "aten::max_unpool3d")
def max_unpool(signature: Signature) -> Cost:
    """0 FLOPs; reads both tensors, writes the entire image. Arguments: (maxima, indices, size)."""
    x, indices, size = signature.tensor(0), signature.tensor(1), sizes(signature.get(2), 2)
    return moved(read(x, indices), fresh((*x.shape[: -len(size)], *size), x.dtype))


@formula("aten::fractional_max_pool2d", "aten::fractional_max_pool3d")
def fractional_max_pool(signature: Signature) -> Cost:
    """0 FLOPs (comparisons only); writes the maxima and their int64 indices. Arguments: (x, kernel, size, samples)."""
    x, samples = signature.tensor(0), signature.tensor(3)
    size = sizes(signature.get(2), 2)
    shape = (*x.shape[: -len(size)], *size)
    return moved(read(x, samples), fresh(shape, x.dtype) + fresh(shape, "int64"))


@formula("aten::fractional_max_pool2d_backward", "aten::fractional_max_pool3d_backward")
def fractional_max_pool_backward(signature: Signature) -> Cost:
    """1 add per gradient element; does not read the image. Arguments: (grad, x, kernel, size, indices)."""
    grad, x, indices = signature.tensor(0), signature.tensor(1), signature.tensor(4)
    return moved(read(grad, indices), fresh(x.shape, x.dtype), flops=grad.numel)


# Resizing with a filter as wide as the scale, one dimension after the other, the last first.
#
# Each output element is a sum over the taps of its filter that lie inside the image: a multiply and an add a tap. The
# taps are counted as torch places them (aten/src/ATen/native/cpu/UpSampleKernel.cpp); making the weights is not
# counted.


#: Half the width of the filter, in input elements, unless the image is made smaller.
_HALF = {"bilinear": 1.0, "bicubic": 2.0, "lanczos": 3.0}


def _taps(size: int, result: int, half: float, factor: Argument, align_corners: bool) -> int:
    """Return the taps of all output elements along a dimension."""
    if align_corners:
        scale = (size - 1) / (result - 1) if result > 1 else 0.0
    else:
        scale = 1 / factor if isinstance(factor, float) and factor > 0 else size / result
    support = half * max(scale, 1.0)
    total = 0
    for index in range(result):
        center = scale * (index + 0.5)
        total += min(int(center + support + 0.5), size) - max(int(center - support + 0.5), 0)
    return total


def _resized_flops(old: Shape, new: Shape, half: float, factors: tuple[Argument, ...], align_corners: bool) -> int:
    """Return the FLOPs for one image: rows resized along their length, then columns."""
    (h, w), (new_h, new_w) = old, new
    across = h * _taps(w, new_w, half, factors[1], align_corners) if w != new_w else 0
    down = new_w * _taps(h, new_h, half, factors[0], align_corners) if h != new_h else 0
    return 2 * (across + down)


def _register_antialias(name: str, half: float) -> None:
    def forward(signature: Signature) -> Cost:
        x, size = signature.tensor(0), sizes(signature.get(1), 2)
        factors = (signature.get(3), signature.get(4))
        aligned = signature.get(2) is True
        shape = (*x.shape[:2], *size)
        if isinstance(factors[0], tuple):
            raise Unknown(f"resizing {x} by {factors[0]}")
        flops = prod(x.shape[:2]) * _resized_flops(x.shape[2:], size, half, factors, aligned)
        return moved(read(x), fresh(shape, x.dtype), flops=flops)

    def backward(signature: Signature) -> Cost:
        grad, new, old = signature.tensor(0), sizes(signature.get(1), 2), sizes(signature.get(2), 4)
        factors = (signature.get(4), signature.get(5))
        flops = prod(old[:2]) * _resized_flops(old[2:], new, half, factors, signature.get(3) is True)
        return moved(read(grad), fresh(old, grad.dtype), flops=flops)

    forward.__doc__ = "2 FLOPs per filter tap, rows first, then columns. Arguments: (x, size, align corners, factors)."
    backward.__doc__ = (
        "Same as the forward, but each tap scatters a product. "
        "Arguments: (grad, size, old size, align corners, factors)."
    )
    formula(f"aten::_upsample_{name}2d_aa")(forward)
    formula(f"aten::_upsample_{name}2d_aa_backward")(backward)


for _antialias_name, _half in _HALF.items():
    _register_antialias(_antialias_name, _half)


# torchvision's operators on regions and its deformable convolution. Source: torchvision/csrc/ops.
#
# The samples of a region are data unless `sampling_ratio` is positive, and so is what non-maximum suppression keeps: no
# cost.


#: Bilinear: four multiplies, three adds.
_BILINEAR = 7


def _samples(ratio: Argument) -> int:
    """Return the samples of one output element."""
    side = integer(ratio)
    if side <= 0:
        raise Unknown("how many samples a region takes")
    return side * side


def _region_elements(signature: Signature, channels: int) -> tuple[int, int]:
    """Return the elements of the result of (x, rois, scale, height, width, ...), and of one channel of one region."""
    height, width = integer(signature.get(3)), integer(signature.get(4))
    return signature.tensor(1).shape[0] * channels * height * width, height * width


def _region_samples(x: Tensor, elements: int) -> int:
    """Return the bytes of the four neighbors of each sample, at most the image."""
    return min(4 * elements, x.stored) * item(x.dtype)


@formula("torchvision::roi_align")
def roi_align(signature: Signature) -> Cost:
    """`8 s^2 + 1` FLOPs per output element: s^2 bilinear samples (7 each), their adds, one divide.

    Arguments: (x (b, c, h, w), rois (k, 5), scale, height, width, sampling ratio s, aligned).
    """
    x, rois, samples = signature.tensor(0), signature.tensor(1), _samples(signature.get(5))
    elements, _ = _region_elements(signature, x.shape[1])
    flops = elements * ((_BILINEAR + 1) * samples + 1)
    return moved(_region_samples(x, elements * samples) + read(rois), fresh((elements,), x.dtype), flops=flops)


@formula("torchvision::_roi_align_backward")
def roi_align_backward(signature: Signature) -> Cost:
    """`8 s^2 + 1` FLOPs per gradient element: a multiply and an add for each of a sample's four neighbors, one divide.

    Arguments: (grad, rois, scale, height, width, b, c, h, w, sampling ratio s, aligned); writes the gradient of the
    entire image.
    """
    grad, rois, samples = signature.tensor(0), signature.tensor(1), _samples(signature.get(9))
    shape = tuple(integer(signature.get(index)) for index in range(5, 9))
    return moved(read(grad, rois), fresh(shape, grad.dtype), flops=grad.numel * (8 * samples + 1))


@formula("torchvision::ps_roi_align")
def position_roi_align(signature: Signature) -> Cost:
    """Same as roi_align, with `c / (height * width)` output channels; also writes each element's int32 channel."""
    x, rois, samples = signature.tensor(0), signature.tensor(1), _samples(signature.get(5))
    _, places = _region_elements(signature, 1)
    elements, _ = _region_elements(signature, x.shape[1] // places)
    flops = elements * ((_BILINEAR + 1) * samples + 1)
    written = fresh((elements,), x.dtype) + fresh((elements,), "int32")
    return moved(_region_samples(x, elements * samples) + read(rois), written, flops=flops)


@formula("torchvision::_ps_roi_align_backward")
def position_roi_align_backward(signature: Signature) -> Cost:
    """Same as _roi_align_backward.

    Arguments: (grad, rois, channels, scale, height, width, sampling ratio s, b, c, h, w).
    """
    grad, samples = signature.tensor(0), _samples(signature.get(6))
    shape = tuple(integer(signature.get(index)) for index in range(7, 11))
    moved_in = read(*(signature.tensor(index) for index in range(3)))
    return moved(moved_in, fresh(shape, grad.dtype), flops=grad.numel * (8 * samples + 1))


@formula("torchvision::roi_pool")
def roi_pool(signature: Signature) -> Cost:
    """0 FLOPs (comparisons only); writes maxima and int32 indices. Arguments: (x, rois, scale, height, width).

    A region's size depends on data, so the bytes are a lower bound: one element read per output element.
    """
    x = signature.tensor(0)
    elements, _ = _region_elements(signature, x.shape[1])
    rows = min(elements, x.stored) * item(x.dtype)
    return moved(rows + read(signature.tensor(1)), fresh((elements,), x.dtype) + fresh((elements,), "int32"))


@formula("torchvision::_roi_pool_backward")
def roi_pool_backward(signature: Signature) -> Cost:
    """1 add per gradient element. Arguments: (grad, rois, indices, scale, height, width, b, c, h, w)."""
    grad = signature.tensor(0)
    shape = tuple(integer(signature.get(index)) for index in range(6, 10))
    moved_in = read(*(signature.tensor(index) for index in range(3)))
    return moved(moved_in, fresh(shape, grad.dtype), flops=grad.numel)


def _deformed(x: Tensor, weight: Tensor, offset: Tensor) -> tuple[tuple[int, ...], int]:
    """Return the shape of the result and the FLOPs of its product."""
    # x (b, c, h, w), weight (out, c / groups, kh, kw), offset (b, 2 * offset groups * kh * kw, out h, out w)
    shape = (x.shape[0], weight.shape[0], *offset.shape[-2:])
    if len(weight.shape) != 4 or offset.shape[1] % (2 * weight.shape[2] * weight.shape[3]):
        raise Unknown(f"deformable convolution of {x} with {weight} at {offset}")
    return shape, 2 * prod(shape) * prod(weight.shape[1:])


@formula("torchvision::deform_conv2d")
def deformable_convolution(signature: Signature) -> Cost:
    """`2 * b * C_out * prod(out) * (C_in / groups) * prod(kernel)` FLOPs, as for convolution; sampling is not counted.

    Arguments: (x, weight, offset, mask, bias, strides, paddings, dilations, groups, offset groups, use mask).
    """
    x, weight, offset = (signature.tensor(index) for index in range(3))
    masked = signature.get(13, True) is not False
    shape, flops = _deformed(x, weight, offset)
    parts = read(x, weight, offset, optional(signature, 3) if masked else None, optional(signature, 4))
    return moved(parts, fresh(shape, x.dtype), flops=flops)


@formula("torchvision::_deform_conv2d_backward")
def deformable_convolution_backward(signature: Signature) -> Cost:
    """Twice the forward's FLOPs: one matmul for the columns, one for the weight.

    Arguments: (grad, x, weight, offset, mask, bias, ...).

    Writes the gradients of x, weight, offset, mask and bias.
    """
    grad, x, weight, offset = (signature.tensor(index) for index in range(4))
    mask = optional(signature, 4) if signature.get(14, True) is not False else None
    _, flops = _deformed(x, weight, offset)
    given = (x, weight, offset, mask, optional(signature, 5))
    written = sum(fresh(tensor.shape, tensor.dtype) for tensor in given if tensor is not None)
    return moved(read(grad, x, weight, offset, mask), written, flops=2 * flops)
