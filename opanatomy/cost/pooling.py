"""Pooling and resizing of images and sequences, FLOPs per output element by the taps of the window."""

from __future__ import annotations

from math import floor, prod

from opanatomy.cost.operands import Shape, Unknown, flag, fresh, integer, integers, mask, moved, read, sizes
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
    """The shape that a window of `dims` dimensions gives, and its elements."""
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
    """0: comparisons; reads the image, writes the maxima and their int64 places."""
    return _max_pool(signature, 2)


@formula("aten::max_pool3d_with_indices")
def max_pool3d(signature: Signature) -> Cost:
    """0: comparisons; reads the volume, writes the maxima and their int64 places."""
    return _max_pool(signature, 3)


@formula("aten::max_pool2d_with_indices_backward", "aten::max_pool3d_with_indices_backward")
def max_pool_backward(signature: Signature) -> Cost:
    """1 add per gradient element; reads gradient and places, writes the whole gradient, not reading the image."""
    grad, x, places = signature.tensor(0), signature.tensor(1), signature.tensor(7)
    return moved(read(grad, places), fresh(x.shape, x.dtype), flops=grad.numel)


def _average_pool(signature: Signature, dims: int) -> Cost:
    x, get = signature.tensor(0), signature.get
    shape, taps = window(x, dims, get(1), get(2), get(3), 1, flag(get(4)))
    return moved(read(x), fresh(shape, x.dtype), flops=prod(shape) * taps)


@formula("aten::avg_pool1d")
def average_pool1d(signature: Signature) -> Cost:
    """Elements of the window per output element: its adds and the division."""
    return _average_pool(signature, 1)


@formula("aten::avg_pool2d")
def average_pool2d(signature: Signature) -> Cost:
    """Elements of the window per output element: its adds and the division."""
    return _average_pool(signature, 2)


@formula("aten::avg_pool3d")
def average_pool3d(signature: Signature) -> Cost:
    """Elements of the window per output element: its adds and the division."""
    return _average_pool(signature, 3)


@formula("aten::avg_pool2d_backward", "aten::avg_pool3d_backward")
def average_pool_backward(signature: Signature) -> Cost:
    """Elements of the window per gradient element: a division and the adds; does not read the image."""
    grad, x = signature.tensor(0), signature.tensor(1)
    taps = prod(sizes(signature.get(2), 2))
    return moved(read(grad), fresh(x.shape, x.dtype), flops=grad.numel * taps)


@formula("aten::_adaptive_avg_pool2d", "aten::_adaptive_avg_pool3d")
def adaptive_pool(signature: Signature) -> Cost:
    """1 per input element, as a mean: (x, output size)."""
    x, size = signature.tensor(0), sizes(signature.get(1), 2)
    return moved(read(x), fresh((*x.shape[: -len(size)], *size), x.dtype), flops=x.numel)


@formula("aten::_adaptive_avg_pool2d_backward", "aten::_adaptive_avg_pool3d_backward")
def adaptive_pool_backward(signature: Signature) -> Cost:
    """1 per input element; reads the gradient, writes the gradient of the image, not reading the image."""
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

    forward.__doc__ = f"{flops} per output element, the weighted sum of its neighbours."
    backward.__doc__ = (
        f"{max(flops, 1)} per gradient element; (grad, output size, input size): writes the input's gradient."
    )
    formula(f"aten::{name}")(forward)
    formula(f"aten::{name}_backward")(backward)


for _name, _flops in _RESIZE.items():
    _register(_name, _flops)


@formula("aten::grid_sampler_2d", "aten::grid_sampler_3d", "aten::cudnn_grid_sampler")
def grid_sampler(signature: Signature) -> Cost:
    """Per output element 7 (bilinear: four multiplies, three adds), 15 in 3-D, 0 nearest, 35 bicubic.

    Reads the neighbours of each output element, the image at most.
    """
    x, grid = signature.tensor(0), signature.tensor(1)
    shape = (*x.shape[:2], *grid.shape[1:-1])
    mode = integer(signature.get(2, 0))
    flops = (7 if len(x.shape) == 4 else 15, 0, 35)[mode]
    return moved(_sampled(x, mode, prod(shape)) + read(grid), fresh(shape, x.dtype), flops=flops * prod(shape))


def _sampled(x: Tensor, mode: int, elements: int) -> int:
    """Bytes of the neighbours that as many samples have, the image at most."""
    neighbours = (4 if len(x.shape) == 4 else 8, 1, 16)[mode]
    return min(fresh((neighbours, elements), x.dtype), read(x))


@formula("aten::grid_sampler_2d_backward", "aten::grid_sampler_3d_backward")
def grid_sampler_backward(signature: Signature) -> Cost:
    """The forward's FLOPs for the image and as many for the grid; (grad, x, grid, mode, ..., output_mask).

    Writes the gradients asked for.
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
    """The forward's FLOPs, bilinear, for the image and as many for the grid; (x, grid, grad): writes both gradients."""
    x, grid, grad = (signature.tensor(index) for index in range(3))
    return grid_sampler_backward(Signature((grad, x, grid)))


@formula("aten::adaptive_max_pool2d", "aten::adaptive_max_pool3d")
def adaptive_max_pool(signature: Signature) -> Cost:
    """0: comparisons; (x, output size): writes the maxima and their int64 places."""
    x, size = signature.tensor(0), sizes(signature.get(1), 2)
    shape = (*x.shape[: -len(size)], *size)
    return moved(read(x), fresh(shape, x.dtype) + fresh(shape, "int64"))


@formula("aten::adaptive_max_pool2d_backward", "aten::adaptive_max_pool3d_backward")
def adaptive_max_pool_backward(signature: Signature) -> Cost:
    """1 add per gradient element; (grad, x, places): writes the whole gradient, not reading the image."""
    grad, x, places = (signature.tensor(index) for index in range(3))
    return moved(read(grad, places), fresh(x.shape, x.dtype), flops=grad.numel)


@formula("aten::mkldnn_max_pool2d")
def mkldnn_max_pool2d(signature: Signature) -> Cost:
    """0: comparisons; reads the image, writes the maxima."""
    x, get = signature.tensor(0), signature.get
    shape, _ = window(x, 2, get(1), get(2), get(3), get(4), flag(get(5)))
    return moved(read(x), fresh(shape, x.dtype))


@formula("aten::max_unpool2d", "aten::max_unpool3d")
def max_unpool(signature: Signature) -> Cost:
    """0; (maxima, places, size): reads both, writes the whole image."""
    x, places, size = signature.tensor(0), signature.tensor(1), sizes(signature.get(2), 2)
    return moved(read(x, places), fresh((*x.shape[: -len(size)], *size), x.dtype))


@formula("aten::fractional_max_pool2d", "aten::fractional_max_pool3d")
def fractional_max_pool(signature: Signature) -> Cost:
    """0: comparisons; (x, kernel, size, samples): writes the maxima and their int64 places."""
    x, samples = signature.tensor(0), signature.tensor(3)
    size = sizes(signature.get(2), 2)
    shape = (*x.shape[: -len(size)], *size)
    return moved(read(x, samples), fresh(shape, x.dtype) + fresh(shape, "int64"))


@formula("aten::fractional_max_pool2d_backward", "aten::fractional_max_pool3d_backward")
def fractional_max_pool_backward(signature: Signature) -> Cost:
    """1 add per element of the gradient: (grad, x, kernel, size, places); does not read the image."""
    grad, x, places = signature.tensor(0), signature.tensor(1), signature.tensor(4)
    return moved(read(grad, places), fresh(x.shape, x.dtype), flops=grad.numel)
