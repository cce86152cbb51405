"""Fourier transforms: `5 * n * log2(n)` FLOPs for n complex points, half of it for real ones.

There is no exact count: it depends on the algorithm chosen for a length. The figure is the convention of FFTW's own
benchmark, rounded to an integer; the true number of a split-radix transform is about `4 * n * log2(n)`.
"""

from __future__ import annotations

from math import log2, prod

from opanatomy.cost.operands import Shape, Unknown, axis, flag, fresh, integer, integers, optional, read
from opanatomy.cost.registry import formula
from opanatomy.records.signature import Argument, Cost, Signature, Tensor

_REAL_OF = {"complex64": "float32", "complex128": "float64", "complex32": "float16"}
_COMPLEX_OF = {real: name for name, real in _REAL_OF.items()}


def _flops(shape: Shape, dims: Argument, per_point: float) -> int:
    """FLOPs of transforms over `dims` of a complex tensor of this shape."""
    points = prod(shape[axis(dim, len(shape))] for dim in integers(dims))
    return round(per_point * prod(shape) * log2(points)) if points > 1 else 0


def _moved(x: Tensor, shape: Shape, dtype: str | None, flops: int, out: Tensor | None) -> Cost:
    return Cost(flops=flops, read_bytes=read(x), written_bytes=fresh(shape, out.dtype if out else dtype))


@formula("aten::_fft_c2c")
def complex_to_complex(signature: Signature) -> Cost:
    """`5 * n * log2(n)` over the transformed dimensions: (x, dims, normalization, forward)."""
    x = signature.tensor(0)
    return _moved(x, x.shape, x.dtype, _flops(x.shape, signature.get(1), 5), optional(signature, 4))


@formula("aten::_fft_r2c")
def real_to_complex(signature: Signature) -> Cost:
    """`2.5 * n * log2(n)`: (x, dims, normalization, one-sided); one-sided halves the last dimension of the result."""
    x, dims = signature.tensor(0), integers(signature.get(1))
    last = axis(dims[-1], len(x.shape))
    shape = list(x.shape)
    if flag(signature.get(3)):
        shape[last] = shape[last] // 2 + 1
    dtype = _COMPLEX_OF.get(x.dtype or "")
    return _moved(x, tuple(shape), dtype, _flops(x.shape, dims, 2.5), optional(signature, 4))


@formula("aten::_fft_c2r")
def complex_to_real(signature: Signature) -> Cost:
    """`2.5 * n * log2(n)`: (x, dims, normalization, size of the last dimension)."""
    x, dims = signature.tensor(0), integers(signature.get(1))
    shape = list(x.shape)
    shape[axis(dims[-1], len(shape))] = integer(signature.get(3))
    if x.dtype not in _REAL_OF:
        raise Unknown(f"data type of {x}")
    return _moved(x, tuple(shape), _REAL_OF[x.dtype], _flops(tuple(shape), dims, 2.5), optional(signature, 4))
