"""Matrix products: `2 * batch * m * n * k` FLOPs without the bias epilogue, as in torch.utils.flop_counter."""

from __future__ import annotations

from math import prod

from opanatomy.cost.operands import (
    Shape,
    Unknown,
    broadcast,
    flag,
    fresh,
    integers,
    optional,
    read,
    result,
    scalar_type,
    tensors,
)
from opanatomy.cost.registry import formula
from opanatomy.records.signature import Cost, Signature, Tensor


def product_shape(a: Shape, b: Shape) -> tuple[Shape, int]:
    """Return the shape of `a @ b` for matrices with equal leading dimensions, and its FLOPs."""
    # (..., m, k) @ (..., k, n) -> (..., m, n)
    *batch, m, k = a
    *batch_b, k_b, n = b
    if batch != batch_b or k != k_b:
        raise Unknown(f"{a} @ {b}")
    return (*batch, m, n), 2 * prod(batch) * m * n * k


def _written(signature: Signature, start: int, shape: Shape, dtype: str | None) -> int:
    """Return the bytes of the result; an `out` tensor may follow from `start` on."""
    out = next((value for value in signature.arguments[start:] if isinstance(value, Tensor)), None)
    return result(out, shape, dtype)


@formula("aten::mm", "aten::bmm")
def mm(signature: Signature) -> Cost:
    """`2 * b * m * n * k` FLOPs for (b, m, k) @ (b, k, n); reads both, writes the product.

    Source: torch.utils.flop_counter.
    """
    a, b = signature.tensor(0), signature.tensor(1)
    shape, flops = product_shape(a.shape, b.shape)
    dtype = None if isinstance(signature.get(2), Tensor) else scalar_type(signature.get(2))
    return Cost(flops=flops, read_bytes=read(a, b), written_bytes=_written(signature, 2, shape, dtype or a.dtype))


@formula("aten::_int_mm")
def int_mm(signature: Signature) -> Cost:
    """`2 * m * n * k` FLOPs for int8 (m, k) @ (k, n) -> int32.

    Counted as for mm; torch.utils.flop_counter has no formula for it.
    """
    a, b = signature.tensor(0), signature.tensor(1)
    shape, flops = product_shape(a.shape, b.shape)
    return Cost(flops=flops, read_bytes=read(a, b), written_bytes=fresh(shape, "int32"))


@formula("aten::addmm", "aten::addmm_", "aten::baddbmm", "aten::baddbmm_", "aten::_addmm_activation")
def addmm(signature: Signature) -> Cost:
    """`2 * b * m * n * k` FLOPs for c + (b, m, k) @ (b, k, n); reads all three tensors, but c only if beta is not 0.

    Source: torch.utils.flop_counter.
    """
    added, a, b = (signature.tensor(index) for index in range(3))
    shape, flops = product_shape(a.shape, b.shape)
    arguments = [value for value in signature.arguments[3:] if not isinstance(value, Tensor)]
    # addmm(self, mat1, mat2, beta, alpha); the overload with out_dtype: (self, mat1, mat2, out_dtype, beta, alpha)
    dtype = scalar_type(arguments.pop(0)) if len(arguments) > 2 and not isinstance(arguments[2], bool) else a.dtype
    ignored = bool(arguments) and isinstance(arguments[0], int | float) and arguments[0] == 0
    written = _written(signature, 3, shape, dtype)
    return Cost(flops=flops, read_bytes=read(a, b) + (0 if ignored else read(added)), written_bytes=written)


@formula("aten::addbmm", "aten::addbmm_")
def addbmm(signature: Signature) -> Cost:
    """`2 * b * m * n * k` FLOPs: the products of all b pairs of matrices are summed into one (m, n) matrix."""
    added, a, b = (signature.tensor(index) for index in range(3))
    (_, m, n), flops = product_shape(a.shape, b.shape)
    return Cost(flops=flops, read_bytes=read(added, a, b), written_bytes=fresh((m, n), a.dtype))


@formula("aten::mv", "aten::dot", "aten::vdot", "aten::inner")
def mv(signature: Signature) -> Cost:
    """`2 * m * k` FLOPs for (m, k) @ (k,), with m = 1 for dot.

    Counted as for mm; torch.utils.flop_counter has no formula for it.
    """
    a, b = signature.tensor(0), signature.tensor(1)
    if len(b.shape) != 1 or len(a.shape) not in (1, 2) or a.shape[-1] != b.shape[0]:
        raise Unknown(f"{a} @ {b}")
    return Cost(flops=2 * a.numel, read_bytes=read(a, b), written_bytes=_written(signature, 2, a.shape[:-1], a.dtype))


@formula("aten::addmv", "aten::addmv_")
def addmv(signature: Signature) -> Cost:
    """`2 * m * k` FLOPs for c + (m, k) @ (k,)."""
    added, a, b = (signature.tensor(index) for index in range(3))
    if a.shape[1:] != b.shape:
        raise Unknown(f"{a} @ {b}")
    return Cost(flops=2 * a.numel, read_bytes=read(added, a, b), written_bytes=fresh(a.shape[:1], a.dtype))


@formula("aten::addr", "aten::addr_")
def addr(signature: Signature) -> Cost:
    """`2 * m * n` FLOPs for c + the outer product of (m,) and (n,)."""
    added, a, b = (signature.tensor(index) for index in range(3))
    shape = (a.numel, b.numel)
    return Cost(flops=2 * prod(shape), read_bytes=read(added, a, b), written_bytes=fresh(shape, added.dtype))


@formula("aten::linear", "aten::mkldnn_linear")
def linear(signature: Signature) -> Cost:
    """`2 * rows * out * in` FLOPs for (..., in) @ (out, in)^T + bias, as for addmm."""
    return _linear(signature, 1, optional(signature, 2))


@formula("mkl::_mkl_linear")
def mkl_linear(signature: Signature) -> Cost:
    """Same as linear. Arguments: (x, packed weight, weight, bias, batch).

    The recorded sizes of the packed weight are not used.
    """
    return _linear(signature, 2, optional(signature, 3))


@formula("mkldnn::_linear_pointwise")
def pointwise_linear(signature: Signature) -> Cost:
    """Same as linear; the fused activation is not counted.

    If another tensor is added, the arguments are (x, other, weight, bias, operation).
    """
    if len(signature.arguments) == 5:
        return _linear(signature, 2, optional(signature, 3), optional(signature, 1))
    return _linear(signature, 1, optional(signature, 2))


def _linear(signature: Signature, index: int, bias: Tensor | None, other: Tensor | None = None) -> Cost:
    x, weight = signature.tensor(0), signature.tensor(index)
    if len(weight.shape) == 2 and len(x.shape) >= 1 and x.shape[-1] == weight.shape[1]:
        shape = (*x.shape[:-1], weight.shape[0])
        flops = 2 * prod(shape) * weight.shape[1]
        return Cost(flops=flops, read_bytes=read(x, weight, bias, other), written_bytes=fresh(shape, x.dtype))
    raise Unknown(f"{x} and weight {weight}")


@formula("aten::matmul")
def matmul(signature: Signature) -> Cost:
    """`2 * batch * m * n * k` FLOPs, as for bmm; vectors and leading dimensions follow NumPy's rules."""
    a, b = signature.tensor(0), signature.tensor(1)
    left = a.shape if len(a.shape) > 1 else (1, *a.shape)
    right = b.shape if len(b.shape) > 1 else (*b.shape, 1)
    if not a.shape or not b.shape or left[-1] != right[-2]:
        raise Unknown(f"{a} @ {b}")
    count = prod(broadcast(left[:-2], right[:-2])) * left[-2] * right[-1]
    return Cost(flops=2 * count * left[-1], read_bytes=read(a, b), written_bytes=fresh((count,), a.dtype))


@formula("aten::_scaled_mm")
def scaled_mm(signature: Signature) -> Cost:
    """`2 * m * n * k` FLOPs for fp8 (m, k) @ (k, n); also reads the scales. Source: torch.utils.flop_counter."""
    a, b = signature.tensor(0), signature.tensor(1)
    shape, flops = product_shape(a.shape, b.shape)
    dtype = scalar_type(signature.get(6)) or a.dtype
    moved = read(a, b, *(optional(signature, index) for index in (2, 3, 4, 5)))
    return Cost(flops=flops, read_bytes=moved, written_bytes=fresh(shape, dtype))


@formula("aten::_scaled_mm_v2")
def scaled_mm_v2(signature: Signature) -> Cost:
    """`2 * m * n * k` FLOPs for fp8 (m, k) @ (k, n); the scales are lists.

    Arguments: (a, b, scales, ..., scales, ..., bias, dtype).
    """
    a, b = signature.tensor(0), signature.tensor(1)
    shape, flops = product_shape(a.shape, b.shape)
    dtype = scalar_type(signature.get(9)) or a.dtype
    moved = read(a, b, tensors(signature.get(2)), tensors(signature.get(5)), optional(signature, 8))
    return Cost(flops=flops, read_bytes=moved, written_bytes=fresh(shape, dtype))


@formula("aten::_scaled_grouped_mm_v2")
def scaled_grouped_mm_v2(signature: Signature) -> Cost:
    """`2 * rows * n * k` FLOPs over all groups, as for _grouped_mm; the scales are lists."""
    scales = (*tensors(signature.get(2)), *tensors(signature.get(5)))
    rest = (optional(signature, 8), optional(signature, 9), scalar_type(signature.get(10)))
    return grouped_mm(Signature((signature.tensor(0), signature.tensor(1), *scales, *rest)))


@formula("aten::_trilinear")
def trilinear(signature: Signature) -> Cost:
    """2 FLOPs per combination of indices in each of two products: that of a and b, then that of their result and c.

    Arguments: (a, b, c, expand_a, expand_b, expand_c, summed dimensions, ...), where each `expand` lists dimensions to
    insert. The first product sums over those summed dimensions that c lacks, the second over the rest. A product that
    sums over nothing is element-wise and is not counted. Source: `_trilinear` and `sumproduct_pair` in ATen's
    Linear.cpp; torch.utils.flop_counter has no formula for it.
    """
    spread = [_with_ones(signature.tensor(at).shape, integers(signature.get(at + 3))) for at in range(3)]
    shape, summed = broadcast(*spread), set(integers(signature.get(6)))
    first = summed & set(integers(signature.get(5)))
    pair = broadcast(*spread[:2])
    product = tuple(1 if index in first else size for index, size in enumerate(pair))
    flops = 2 * prod(pair) * bool(first) + 2 * prod(broadcast(product, spread[2])) * bool(summed - first)
    out = tuple(size for index, size in enumerate(shape) if index not in summed)
    operands = [signature.tensor(at) for at in range(3)]
    return Cost(flops=flops, read_bytes=read(*operands), written_bytes=fresh(out, operands[0].dtype))


def _with_ones(shape: Shape, indices: Shape) -> Shape:
    spread = list(shape)
    for index in sorted(indices):
        spread.insert(index, 1)
    return tuple(spread)


@formula("aten::_grouped_mm", "aten::_scaled_grouped_mm")
def grouped_mm(signature: Signature) -> Cost:
    """`2 * rows * n * k` FLOPs summed over the groups, however the rows are assigned to groups (`offs`).

    Covers torch's four forms: 2-D x 3-D (grouped rows), 3-D x 2-D (grouped columns), 2-D x 2-D (grouped inner
    dimension, as in a weight gradient) and 3-D x 3-D. The matrix of a group without rows also counts as read. Counted
    as for mm; torch.utils.flop_counter has no formula for it.
    """
    a, b = signature.tensor(0), signature.tensor(1)
    rest = [value for value in signature.arguments[2:] if isinstance(value, Tensor)]
    groups = next((value.shape[0] for value in rest if value.dtype == "int32" and len(value.shape) == 1), None)
    shape, flops = _grouped_shape(a.shape, b.shape, groups)
    named = [scalar_type(v) for v in signature.arguments[2:] if isinstance(v, int | str) and not isinstance(v, bool)]
    # fp8 inputs give bfloat16 unless another data type is asked for
    dtype = named[0] if named else "bfloat16" if str(a.dtype).startswith("float8") else a.dtype
    return Cost(flops=flops, read_bytes=read(a, b, *rest), written_bytes=fresh(shape, dtype))


def _grouped_shape(a: Shape, b: Shape, groups: int | None) -> tuple[Shape, int]:
    m, k, n = a[-2], a[-1], b[-1]
    if k != b[-2]:
        raise Unknown(f"{a} @ {b}")
    if len(a) == 2 and len(b) == 2:
        if groups is None:
            raise Unknown("the number of groups")
        return (groups, m, n), 2 * m * n * k
    if len(a) == 3 and len(b) == 3:
        return product_shape(a, b)
    if {len(a), len(b)} == {2, 3}:
        return (m, n), 2 * m * n * k
    raise Unknown(f"{a} @ {b}")


@formula("aten::linalg_solve_triangular")
def solve_triangular(signature: Signature) -> Cost:
    """`m * m * n` FLOPs to solve (m, m) @ X = (m, n); `m * (m - 1) * n` with a unit diagonal.

    Each column needs i multiply-adds and a division in row i (from 0). Arguments: (a, b, upper, left, unitriangular).
    Source: the operation count of BLAS trsm.
    """
    a, b = signature.tensor(0), signature.tensor(1)
    batch = broadcast(a.shape[:-2], b.shape[:-2])
    m, rows, columns = a.shape[-1], *b.shape[-2:]
    left = flag(signature.get(3))
    if a.shape[-2] != m or m != (rows if left else columns):
        raise Unknown(f"{a} and {b}")
    per_column = m * (m - 1) if flag(signature.get(4)) else m * m
    flops = prod(batch) * per_column * (columns if left else rows)
    return Cost(flops=flops, read_bytes=read(a, b), written_bytes=fresh((*batch, rows, columns), b.dtype))
