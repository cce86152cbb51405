"""Reductions: 1 FLOP per input element for any reduction (the paper's convention); the same for prefix sums.

Sorting and selecting only compare, which counts 0 FLOPs.
"""

from __future__ import annotations

from math import prod

from opanatomy.cost.elementwise import Map, map_cost
from opanatomy.cost.operands import (
    Unknown,
    accumulated,
    axis,
    flag,
    floating,
    fresh,
    integer,
    integers,
    optional,
    read,
    result,
    scalar_type,
)
from opanatomy.cost.registry import formula
from opanatomy.records.signature import Argument, Cost, Signature, Tensor


def kept(x: Tensor, dims: Argument) -> int:
    """Return the elements left by a reduction over `dims`; over everything if they are absent or empty."""
    if dims is None or dims == ():
        return 1
    gone = {axis(dim, len(x.shape)) for dim in integers(dims)}
    return prod(size for index, size in enumerate(x.shape) if index not in gone)


def _reduce(
    x: Tensor, results: int, dtype: str | None, outputs: int = 1, flops: int = 1, out: Tensor | None = None
) -> Cost:
    written = outputs * result(out, (results,), dtype)
    return Cost(flops=flops * x.numel, read_bytes=read(x), written_bytes=written)


def _known(x: Tensor) -> str:
    if x.dtype is None:
        raise Unknown(f"data type of {x}")
    return x.dtype


@formula("aten::sum", "aten::nansum", "aten::mean", "aten::prod", "aten::nanmean")
def total(signature: Signature) -> Cost:
    """1 FLOP per input element. Arguments: (x, dtype) or (x, dims, keepdim, dtype[, out])."""
    x = signature.tensor(0)
    whole = len(signature.arguments) <= 2
    if not whole:
        flag(signature.get(2))
    dtype = scalar_type(signature.get(1 if whole else 3)) or accumulated(_known(x))
    out = None if whole else optional(signature, 4)
    return _reduce(x, kept(x, None if whole else signature.get(1)), dtype, out=out)


@formula("aten::amax", "aten::amin")
def extreme(signature: Signature) -> Cost:
    """1 FLOP per input element. Arguments: (x, dims, keepdim[, out])."""
    x = signature.tensor(0)
    flag(signature.get(2))
    return _reduce(x, kept(x, signature.get(1)), x.dtype, out=optional(signature, 3))


@formula("aten::max", "aten::min")
def maximum(signature: Signature) -> Cost:
    """1 FLOP per input element. Arguments: (x) or (x, dim, keepdim), which also writes indices.

    The form (x, y) is element-wise and counts 0.
    """
    x = signature.tensor(0)
    if len(signature.arguments) == 1:
        return _reduce(x, 1, x.dtype)
    if optional(signature, 1):
        return map_cost(Map(flops=0, operands=2), signature)
    return with_indices(signature)


@formula("aten::mode", "aten::nanmedian", "aten::median")
def with_indices(signature: Signature) -> Cost:
    """1 FLOP per input element. Arguments: (x) or (x, dim, keepdim), which writes values and int64 indices."""
    x = signature.tensor(0)
    if len(signature.arguments) == 1:
        return _reduce(x, 1, x.dtype)
    flag(signature.get(2))
    results = kept(x, integer(signature.get(1)))
    return Cost(
        flops=x.numel, read_bytes=read(x), written_bytes=fresh((results,), x.dtype) + fresh((results,), "int64")
    )


@formula("aten::aminmax")
def both_extremes(signature: Signature) -> Cost:
    """1 FLOP per input element. Arguments: (x, dim, keepdim)."""
    x = signature.tensor(0)
    flag(signature.get(2))
    return _reduce(x, kept(x, signature.get(1)), x.dtype, outputs=2)


@formula("aten::argmax", "aten::argmin")
def arg_extreme(signature: Signature) -> Cost:
    """1 FLOP per input element. Arguments: (x, dim, keepdim) -> int64."""
    x = signature.tensor(0)
    flag(signature.get(2))
    return _reduce(x, kept(x, signature.get(1)), "int64")


@formula("aten::any", "aten::all")
def test(signature: Signature) -> Cost:
    """1 FLOP per input element. Arguments: (x) or (x, dims, keepdim) -> bool."""
    x = signature.tensor(0)
    if len(signature.arguments) > 1 and not isinstance(signature.get(1), Tensor):
        flag(signature.get(2))
        return _reduce(x, kept(x, signature.get(1)), "uint8" if x.dtype == "uint8" else "bool")
    return _reduce(x, 1, "bool")


def _spread(signature: Signature, outputs: int) -> Cost:
    # (x, unbiased), (x, dims, unbiased, keepdim), (x, dims, correction, keepdim)
    x = signature.tensor(0)
    if len(signature.arguments) == 2:
        return _reduce(x, 1, x.dtype, outputs=outputs)
    flag(signature.get(3))
    return _reduce(x, kept(x, signature.get(1)), x.dtype, outputs=outputs)


@formula("aten::var", "aten::std")
def spread(signature: Signature) -> Cost:
    """1 FLOP per input element. Arguments: (x, unbiased) or (x, dims, correction, keepdim)."""
    return _spread(signature, 1)


@formula("aten::var_mean", "aten::std_mean")
def spread_and_mean(signature: Signature) -> Cost:
    """1 FLOP per input element; writes two results."""
    return _spread(signature, 2)


@formula("aten::linalg_vector_norm")
def vector_norm(signature: Signature) -> Cost:
    """1 FLOP per input element. Arguments: (x, ord, dims, keepdim, dtype)."""
    x = signature.tensor(0)
    flag(signature.get(3))
    dtype = scalar_type(signature.get(4)) or floating(_known(x))
    return _reduce(x, kept(x, signature.get(2)), dtype)


@formula("aten::norm")
def norm(signature: Signature) -> Cost:
    """1 FLOP per input element. Arguments: (x, p), (x, p, dtype) or (x, p, dims, keepdim[, dtype])."""
    x = signature.tensor(0)
    if len(signature.arguments) < 4:
        return _reduce(x, 1, scalar_type(signature.get(2)) or x.dtype)
    flag(signature.get(3))
    return _reduce(x, kept(x, signature.get(2)), scalar_type(signature.get(4)) or x.dtype)


@formula("aten::logsumexp")
def logsumexp(signature: Signature) -> Cost:
    """3 FLOPs per input element: subtract the maximum, exp, sum."""
    x = signature.tensor(0)
    flag(signature.get(2))
    return _reduce(x, kept(x, signature.get(1)), floating(_known(x)), flops=3)


@formula("aten::count_nonzero")
def count_nonzero(signature: Signature) -> Cost:
    """1 FLOP per input element. Arguments: (x, dims) -> int64."""
    x = signature.tensor(0)
    return _reduce(x, kept(x, signature.get(1)), "int64")


@formula("aten::cumsum", "aten::cumprod")
def prefix(signature: Signature) -> Cost:
    """1 FLOP per input element. Arguments: (x, dim, dtype[, out])."""
    x = signature.tensor(0)
    dtype = scalar_type(signature.get(2)) or accumulated(_known(x))
    return _reduce(x, x.numel, dtype, out=optional(signature, 3))


@formula("aten::cumsum_", "aten::cumprod_")
def prefix_(signature: Signature) -> Cost:
    """1 FLOP per input element, in place."""
    x = signature.tensor(0)
    return _reduce(x, x.numel, x.dtype)


@formula("aten::cummax", "aten::cummin")
def prefix_extreme(signature: Signature) -> Cost:
    """1 FLOP per input element; writes values and int64 indices."""
    x = signature.tensor(0)
    written = fresh(x.shape, x.dtype) + fresh(x.shape, "int64")
    return Cost(flops=x.numel, read_bytes=read(x), written_bytes=written)


@formula("aten::logcumsumexp", "aten::_logcumsumexp")
def log_prefix(signature: Signature) -> Cost:
    """3 FLOPs per input element, as for logsumexp."""
    x = signature.tensor(0)
    return _reduce(x, x.numel, x.dtype, flops=3)


@formula("aten::histc")
def histogram(signature: Signature) -> Cost:
    """1 FLOP per input element. Arguments: (x, bins, min, max)."""
    x = signature.tensor(0)
    return _reduce(x, integer(signature.get(1)), x.dtype)


# --------------------------------------------------------------------------------------------------------- 0 FLOPs


@formula("aten::sort")
def sort(signature: Signature) -> Cost:
    """0 FLOPs (comparisons only); reads the tensor, writes values and int64 indices."""
    x = signature.tensor(0)
    return Cost(flops=0, read_bytes=read(x), written_bytes=fresh(x.shape, x.dtype) + fresh(x.shape, "int64"))


@formula("aten::argsort")
def argsort(signature: Signature) -> Cost:
    """0 FLOPs (comparisons only); writes int64 indices."""
    x = signature.tensor(0)
    return Cost(flops=0, read_bytes=read(x), written_bytes=fresh(x.shape, "int64"))


@formula("aten::topk")
def topk(signature: Signature) -> Cost:
    """0 FLOPs (comparisons only); reads the tensor, writes `k` values and int64 indices per row."""
    x, k = signature.tensor(0), integer(signature.get(1))
    results = kept(x, integer(signature.get(2, -1))) * k
    written = fresh((results,), x.dtype) + fresh((results,), "int64")
    return Cost(flops=0, read_bytes=read(x), written_bytes=written)


@formula("aten::multinomial")
def multinomial(signature: Signature) -> Cost:
    """0 FLOPs (random draw); reads the weights, writes int64 indices."""
    x = signature.tensor(0)
    draws = prod(x.shape[:-1]) * integer(signature.get(1))
    return Cost(flops=0, read_bytes=read(x), written_bytes=fresh((draws,), "int64"))


@formula("aten::searchsorted")
def searchsorted(signature: Signature) -> Cost:
    """0 FLOPs (comparisons only). Arguments: (sorted, values, out_int32) -> int64 or int32 indices."""
    edges, x = signature.tensor(0), signature.tensor(1)
    places = fresh(x.shape, "int32" if flag(signature.get(2)) else "int64")
    return Cost(flops=0, read_bytes=read(edges, x), written_bytes=places)


@formula("aten::bucketize")
def bucketize(signature: Signature) -> Cost:
    """0 FLOPs (comparisons only). Arguments: (values, edges, out_int32) -> int64 or int32 indices."""
    x, edges = signature.tensor(0), signature.tensor(1)
    places = fresh(x.shape, "int32" if flag(signature.get(2)) else "int64")
    return Cost(flops=0, read_bytes=read(edges, x), written_bytes=places)


@formula("aten::kthvalue")
def kth_value(signature: Signature) -> Cost:
    """0 FLOPs (comparisons only); writes one value and one int64 index per row. Arguments: (x, k, dim, keepdim)."""
    x = signature.tensor(0)
    results = kept(x, integer(signature.get(2, -1)))
    return Cost(flops=0, read_bytes=read(x), written_bytes=fresh((results,), x.dtype) + fresh((results,), "int64"))


@formula("aten::equal")
def equal(signature: Signature) -> Cost:
    """1 FLOP per element, as for `all`; reads both tensors, returns a Python value.

    The kernel may stop at the first difference; the count assumes that it does not.
    """
    x, y = signature.tensor(0), signature.tensor(1)
    return Cost(flops=x.numel, read_bytes=read(x, y), written_bytes=0)


@formula("aten::trace")
def trace(signature: Signature) -> Cost:
    """1 FLOP per element of the diagonal; reads only the diagonal."""
    x = signature.tensor(0)
    n = min(x.shape)
    return Cost(flops=n, read_bytes=fresh((n,), x.dtype), written_bytes=fresh((), accumulated(_known(x))))
