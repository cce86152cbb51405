"""Maps and reductions of their own: special functions, leaky slopes, segments, norms of slices, histograms."""

from __future__ import annotations

from opanatomy.cost.operands import Shape, Unknown, axis, category, fresh, integer, moved, optional, read
from opanatomy.cost.registry import formula
from opanatomy.records.signature import Cost, Signature, Tensor

# ------------------------------------------------------------------------------------------------------------ odd maps


@formula("aten::polygamma", "aten::polygamma_")
def polygamma(signature: Signature) -> Cost:
    """1 per element, a special function; (n, x), in place (x, n)."""
    x = signature.tensor(0 if isinstance(signature.get(0), Tensor) else 1)
    return moved(read(x), fresh(x.shape, x.dtype), flops=x.numel)


@formula("aten::mvlgamma", "aten::mvlgamma_")
def multivariate_lgamma(signature: Signature) -> Cost:
    """3 p per element: p arguments, their lgamma, their sum; (x, p)."""
    x = signature.tensor(0)
    return moved(read(x), fresh(x.shape, x.dtype), flops=3 * integer(signature.get(1)) * x.numel)


@formula("aten::angle")
def angle(signature: Signature) -> Cost:
    """1 per element: atan2 of a complex number; 0 of a real one, whose sign decides."""
    x = signature.tensor(0)
    dtype = {"complex64": "float32", "complex128": "float64", "complex32": "float16"}.get(x.dtype or "")
    if dtype is None and category(x.dtype or "?") != 2:
        raise Unknown(f"the type of the angle of {x}")
    return moved(read(x), fresh(x.shape, dtype or x.dtype), flops=x.numel if dtype else 0)


@formula("aten::frexp")
def frexp(signature: Signature) -> Cost:
    """0: takes a number apart; writes mantissa and int32 exponent."""
    x = signature.tensor(0)
    return moved(read(x), fresh(x.shape, x.dtype) + fresh(x.shape, "int32"))


@formula("aten::_prelu_kernel_backward")
def prelu_backward(signature: Signature) -> Cost:
    """2 per element: grad * weight and grad * x; (grad, x, weight): writes both in the shape of x."""
    grad, x, weight = (signature.tensor(place) for place in range(3))
    return moved(read(grad, x, weight), 2 * fresh(x.shape, x.dtype), flops=2 * x.numel)


@formula("aten::rrelu_with_noise", "aten::rrelu_with_noise_")
def rrelu(signature: Signature) -> Cost:
    """1 per element, x * slope; (x, noise, lower, upper, training): training writes the slopes too."""
    x, noise = signature.tensor(0), signature.tensor(1)
    training = signature.get(4, False) is True
    return moved(read(x), fresh(x.shape, x.dtype) + training * read(noise), flops=x.numel)


@formula("aten::rrelu_with_noise_backward")
def rrelu_backward(signature: Signature) -> Cost:
    """1 per element: grad * slope; (grad, x, noise, lower, upper, training, ...): the slopes are in the noise."""
    grad, x, noise = (signature.tensor(place) for place in range(3))
    return moved(read(grad, noise if signature.get(5) is True else x), fresh(x.shape, x.dtype), flops=x.numel)


# ---------------------------------------------------------------------------------------------------------- reductions


@formula("aten::renorm", "aten::renorm_")
def renorm(signature: Signature) -> Cost:
    """2 per element: the norm of each slice, a reduction, and * scale."""
    x = signature.tensor(0)
    return moved(read(x), fresh(x.shape, x.dtype), flops=2 * x.numel)


def _segmented(x: Tensor, lengths: Tensor | None, offsets: Tensor | None, dim: int) -> Shape:
    bounds = lengths or offsets
    if bounds is None or len(bounds.shape) != dim + 1:
        raise Unknown("the segments")
    return (*x.shape[:dim], bounds.shape[-1] - (lengths is None), *x.shape[dim + 1 :])


@formula("aten::segment_reduce")
def segment_reduce(signature: Signature) -> Cost:
    """1 per element: (x, how, lengths, indices, offsets, axis, ...); writes a row a segment."""
    x, lengths, offsets = signature.tensor(0), optional(signature, 2), optional(signature, 4)
    shape = _segmented(x, lengths, offsets, axis(integer(signature.get(5, 0)), len(x.shape)))
    return moved(read(x, lengths, offsets), fresh(shape, x.dtype), flops=x.numel)


@formula("aten::_segment_reduce_backward")
def segment_reduce_backward(signature: Signature) -> Cost:
    """1 per element: (grad, result, x, how, lengths, offsets, ...); a mean divides, the others multiply or choose."""
    grad, result, x = (signature.tensor(place) for place in range(3))
    parts = read(grad, result, x, optional(signature, 4), optional(signature, 5))
    return moved(parts, fresh(x.shape, x.dtype), flops=x.numel)


@formula("aten::histogram")
def histogram(signature: Signature) -> Cost:
    """1 per element: (x, bins as a number or their edges, ...); writes counts and edges."""
    x, edges, weight = signature.tensor(0), optional(signature, 1), optional(signature, 3)
    bins = edges.numel - 1 if edges else integer(signature.get(1))
    written = fresh((2 * bins + 1,), x.dtype)
    return moved(read(x, edges, weight if edges is None else optional(signature, 2)), written, flops=x.numel)


@formula("aten::isin")
def isin(signature: Signature) -> Cost:
    """0: comparisons; reads both, writes a boolean for each element of the first."""
    x = signature.tensor(0)
    return moved(read(x, optional(signature, 1)), fresh(x.shape, "bool"))
