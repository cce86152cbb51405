"""Sparse matrices, counted by stored elements: COO, CSR, CSC, BSR, BSC and 2:4.

A product of a sparse (m, k) with a dense (k, n) is `2 * stored * n`: each stored element meets n others. A capture
observes how many elements are stored, or the trace shows it in nested operators (`attribution.stored`); if only the
dense shape is known, there is no cost. Reading a sparse tensor includes its indices. torch.utils.flop_counter counts
the dense shape.
"""

from __future__ import annotations

from math import prod

from opanatomy.cost.elementwise import MAPS
from opanatomy.cost.movement import NOTHING
from opanatomy.cost.operands import (
    Shape,
    Unknown,
    axis,
    fresh,
    integer,
    mask,
    moved,
    optional,
    read,
    scalar_type,
    tensors,
)
from opanatomy.cost.registry import formula
from opanatomy.records.signature import Cost, Signature, Tensor


def stored(x: Tensor) -> int:
    """Return the stored elements of a sparse tensor; raise `Unknown` if they were not observed."""
    if x.sparse is None or x.sparse.elements is None:
        raise Unknown(f"stored elements of {x}")
    return x.sparse.elements


def _product(a: Tensor, b: Tensor) -> tuple[Shape, int]:
    """Return the shape of `a @ b`, one of them sparse, and its FLOPs."""
    if a.sparse and b.sparse:
        raise Unknown("which elements of two sparse matrices meet")
    column = len(b.shape) == 1
    *batch, k = b.shape if column else (*b.shape[:-2], b.shape[-2])
    if len(a.shape) < 2 or a.shape[-1] != k or (list(a.shape[:-2]) != batch):
        raise Unknown(f"{a} @ {b}")
    shape = a.shape[:-1] if column else (*a.shape[:-1], b.shape[-1])
    if a.sparse:
        return shape, 2 * stored(a) * (1 if column else b.shape[-1])
    return shape, 2 * a.shape[-2] * stored(b)


@formula("aten::mm", "aten::bmm", "aten::mv", "aten::matmul", "aten::_sparse_mm", sparse=True)
def product(signature: Signature) -> Cost:
    """`2 * stored * n` FLOPs for a sparse (m, k) @ a dense (k, n), `2 * m * stored` for dense @ sparse.

    Writes a dense matrix.
    """
    a, b = signature.tensor(0), signature.tensor(1)
    shape, flops = _product(a, b)
    return moved(read(a, b), fresh(shape, a.dtype), flops=flops)


@formula(
    "aten::addmm", "aten::addmm_", "aten::_sparse_addmm", "aten::baddbmm", "aten::addmv", "aten::addmv_", sparse=True
)
def added_product(signature: Signature) -> Cost:
    """`2 * stored * n` FLOPs for c + a sparse (m, k) @ a dense (k, n); c is read only if beta is not 0."""
    added, a, b = (signature.tensor(index) for index in range(3))
    shape, flops = _product(a, b)
    beta = signature.get(3, 1)
    ignored = isinstance(beta, int | float) and not isinstance(beta, bool) and beta == 0
    return moved(read(a, b) + (0 if ignored else read(added)), fresh(shape, a.dtype), flops=flops)


@formula("aten::_sparse_mm_reduce_impl", sparse=True)
def reduced_product(signature: Signature) -> Cost:
    """`2 * stored * n` FLOPs: a multiply, and 1 for the reduction (sum, mean or comparison).

    Arguments: (sparse, dense, how).
    """
    return product(signature)


@formula("aten::_sparse_mm_reduce_impl_backward", sparse=True)
def reduced_product_backward(signature: Signature) -> Cost:
    """`2 * stored * n` FLOPs per requested gradient of a sum or mean.

    Arguments: (sparse, grad, dense, how, indices, mask).

    A maximum or minimum has no cost, because its gradients go only to selected elements, which depend on data.
    """
    x, grad, dense = (signature.tensor(index) for index in range(3))
    if signature.get(3) not in ("sum", "mean"):
        raise Unknown("which reduction it was")
    for_sparse, for_dense = mask(signature.get(5), 2)
    written = (read(x) if for_sparse else 0) + (fresh(dense.shape, dense.dtype) if for_dense else 0)
    flops = 2 * stored(x) * grad.shape[-1] * (for_sparse + for_dense)
    return moved(read(x, grad) + (read(dense) if for_sparse else 0), written, flops=flops)


@formula("aten::sparse_sampled_addmm", sparse=True)
def sampled_product(signature: Signature) -> Cost:
    """`2 * stored * k` FLOPs for c + (m, k) @ (k, n), computed only where c has stored elements.

    Writes a sparse matrix with the same stored elements as c.
    """
    c, a, b = (signature.tensor(index) for index in range(3))
    if a.shape[-1] != b.shape[-2]:
        raise Unknown(f"{a} @ {b}")
    return moved(read(c, a, b), read(c), flops=2 * stored(c) * a.shape[-1])


@formula("aten::_sparse_softmax", "aten::_sparse_log_softmax", sparse=True)
def sparse_softmax(signature: Signature) -> Cost:
    """4 FLOPs per stored element, as for softmax; writes the same number of elements with their indices."""
    x = signature.tensor(0)
    return moved(read(x), read(x), flops=4 * stored(x))


@formula("aten::_sparse_softmax_backward_data", "aten::_sparse_log_softmax_backward_data", sparse=True)
def sparse_softmax_backward(signature: Signature) -> Cost:
    """4 FLOPs per stored element. Arguments: (grad, result, dim, x)."""
    grad, result = signature.tensor(0), signature.tensor(1)
    return moved(read(grad, result), read(result), flops=4 * stored(result))


@formula("aten::_to_dense", sparse=True)
def to_dense(signature: Signature) -> Cost:
    """0 FLOPs; reads the stored elements with their indices, writes the dense tensor."""
    x = signature.tensor(0)
    return moved(read(x), fresh(x.shape, scalar_type(signature.get(1)) or x.dtype))


@formula("aten::sparse_mask", sparse=True)
def sparse_mask(signature: Signature) -> Cost:
    """0 FLOPs; reads the indices and as many elements of the dense tensor. Arguments: (dense, sparse).

    Writes these elements with the indices.
    """
    x, pattern = signature.tensor(0), signature.tensor(1)
    if x.sparse:
        raise Unknown("which elements both store")
    return moved(read(pattern), read(pattern))


@formula("aten::clone", "aten::copy_", "aten::_coalesced_", sparse=True)
def copy(signature: Signature) -> Cost:
    """0 FLOPs; reads the source and writes as many values and indices."""
    x = signature.tensor(1) if isinstance(signature.get(1), Tensor) else signature.tensor(0)
    return moved(read(x), read(x))


def _register(name: str, flops: int) -> None:
    def function(signature: Signature) -> Cost:
        x = signature.tensor(0)
        return moved(read(x), read(x), flops=flops * stored(x))

    function.__doc__ = (
        f"{flops} FLOP{'s' * (flops != 1)} per stored element; reads and writes these elements with their indices."
    )
    formula(f"aten::{name}", f"aten::{name}_", sparse=True)(function)


#: Maps that leave 0 at 0, with a result of their operand's type: values that are not stored stay 0.
for _name in (
    "relu",
    "neg",
    "abs",
    "sign",
    "ceil",
    "floor",
    "round",
    "trunc",
    "sqrt",
    "expm1",
    "log1p",
    "sin",
    "sinh",
    "asin",
    "asinh",
    "tan",
    "tanh",
    "atan",
    "atanh",
    "erf",
):
    _register(_name, MAPS[_name].flops)


@formula(*(f"aten::{name}" for name in NOTHING), sparse=True)
def nothing(signature: Signature) -> Cost:
    """0 FLOPs and 0 bytes: a view, an allocation, or a call that touches no data."""
    return moved(0, 0)


# ------------------------------------------------------------------------------------------------------- two of four


@formula("aten::_sparse_semi_structured_linear")
def half_linear(signature: Signature) -> Cost:
    """`rows * out * in` FLOPs, half of a dense product (2:4 sparsity). Arguments: (x, weight, meta, bias, ...)."""
    x, weight = signature.tensor(0), signature.tensor(1)
    if x.shape[-1] != 2 * weight.shape[1]:
        raise Unknown(f"{x} and {weight}")
    dtype = scalar_type(signature.get(5)) or x.dtype
    shape = (*x.shape[:-1], weight.shape[0])
    parts = read(x, weight, signature.tensor(2), optional(signature, 3))
    return moved(parts, fresh(shape, dtype), flops=2 * prod(x.shape[:-1]) * prod(weight.shape))


def _half_product(a: Tensor, b: Tensor) -> tuple[Shape, int]:
    if 2 * a.shape[-1] != b.shape[-2]:
        raise Unknown(f"{a} @ {b}")
    shape = (a.shape[0], b.shape[1])
    return shape, 2 * a.numel * b.shape[1]


@formula("aten::_sparse_semi_structured_mm")
def half_product(signature: Signature) -> Cost:
    """`m * n * k` FLOPs, half of a dense product. Arguments: (stored (m, k / 2), meta, b (k, n), dtype)."""
    a, meta, b = (signature.tensor(index) for index in range(3))
    shape, flops = _half_product(a, b)
    return moved(read(a, meta, b), fresh(shape, scalar_type(signature.get(3)) or a.dtype), flops=flops)


@formula("aten::_sparse_semi_structured_addmm")
def half_added_product(signature: Signature) -> Cost:
    """`m * n * k` FLOPs, half of a dense product.

    Arguments: (added, stored (m, k / 2), meta, b (k, n), alpha, beta, dtype).
    """
    added, a, meta, b = (signature.tensor(index) for index in range(4))
    shape, flops = _half_product(a, b)
    return moved(read(added, a, meta, b), fresh(shape, scalar_type(signature.get(6)) or a.dtype), flops=flops)


# Graph packages: pyg-lib, torch_sparse, torch_scatter. Their sparse matrices are vectors of indices and values.


@formula("pyg::segment_matmul")
def segment_product(signature: Signature) -> Cost:
    """`2 * rows * n * k` FLOPs. Arguments: (x (rows, k), bounds, weights (segments, k, n)).

    The values of the bounds do not change the count.
    """
    x, bounds, weights = (signature.tensor(index) for index in range(3))
    if len(weights.shape) != 3 or x.shape[-1] != weights.shape[1]:
        raise Unknown(f"{x} and {weights}")
    shape = (x.shape[0], weights.shape[2])
    return moved(read(x, bounds, weights), fresh(shape, x.dtype), flops=2 * prod(shape) * x.shape[1])


@formula("pyg::grouped_matmul")
def grouped_product(signature: Signature) -> Cost:
    """`2 * m * n * k` FLOPs summed over the pairs (m, k) @ (k, n) of two lists."""
    first, second = tensors(signature.get(0)), tensors(signature.get(1))
    flops = written = 0
    for a, b in zip(first, second, strict=True):
        if a.shape[-1] != b.shape[0]:
            raise Unknown(f"{a} @ {b}")
        flops += 2 * a.numel * b.shape[1]
        written += fresh((a.shape[0], b.shape[1]), a.dtype)
    return moved(read(first, second), written, flops=flops)


# ------------------------------------------------------------------------------------------------------- torch_sparse


def _sparse_product(rows: Tensor, column: Tensor, value: Tensor | None, dense: Tensor, results: int) -> Cost:
    """Return the cost of (rows, columns, values), a matrix in compressed rows, times a dense (..., k, n)."""
    *batch, _, n = dense.shape
    shape = (*batch, rows.numel - 1, n)
    # an add for each stored element and column, and a multiply if it has a value
    flops = (1 + (value is not None)) * prod(batch) * column.numel * n
    written = fresh(shape, dense.dtype) + (results - 1) * fresh(shape, "int64")
    return moved(read(rows, column, value, dense), written, flops=flops)


@formula("torch_sparse::spmm_sum")
def sparse_sum(signature: Signature) -> Cost:
    """`2 * stored * n` FLOPs, or `stored * n` without values.

    Arguments: (row, rowptr, col, value, colptr, csr2csc, dense (k, n)).

    Source: csrc/spmm.cpp and torch_sparse/matmul.py of pytorch_sparse.
    """
    return _sparse_product(
        signature.tensor(1), signature.tensor(2), optional(signature, 3), signature.tensor(6), results=1
    )


@formula("torch_sparse::spmm_mean")
def sparse_mean(signature: Signature) -> Cost:
    """Same as spmm_sum, plus one divide per output element.

    Arguments: (row, rowptr, col, value, rowcount, colptr, csr2csc, dense (k, n)).
    """
    rows, dense = signature.tensor(1), signature.tensor(7)
    cost = _sparse_product(rows, signature.tensor(2), optional(signature, 3), dense, results=1)
    divided = prod(dense.shape[:-2]) * (rows.numel - 1) * dense.shape[-1]
    return moved(cost.read_bytes, cost.written_bytes, flops=cost.flops + divided)


@formula("torch_sparse::spmm_min", "torch_sparse::spmm_max")
def sparse_extreme(signature: Signature) -> Cost:
    """Same as spmm_sum; also writes the indices. Arguments: (rowptr, col, value, dense (k, n))."""
    return _sparse_product(
        signature.tensor(0), signature.tensor(1), optional(signature, 2), signature.tensor(3), results=2
    )


# ------------------------------------------------------------------------------------------------------ torch_scatter

_SUMS = ("sum", "mean")
_EXTREMES = ("min", "max")


def _segments(signature: Signature, results: int) -> Cost:
    """Return the cost of (x, bounds, out): a segment lies between two bounds along their last dimension."""
    x, bounds = signature.tensor(0), signature.tensor(1)
    dim = len(bounds.shape) - 1
    shape = (*x.shape[:dim], bounds.shape[-1] - 1, *x.shape[dim + 1 :])
    written = fresh(shape, x.dtype) + (results - 1) * fresh(shape, "int64")
    return moved(read(x, bounds), written, flops=x.numel)


@formula(*(f"{package}::segment_{how}_csr" for package in ("torch_scatter", "pyg") for how in _SUMS))
def segment_sum(signature: Signature) -> Cost:
    """1 FLOP per element. Writes one row per segment. Arguments: (x, bounds, out)."""
    return _segments(signature, 1)


@formula(*(f"{package}::segment_{how}_csr" for package in ("torch_scatter", "pyg") for how in _EXTREMES))
def segment_extreme(signature: Signature) -> Cost:
    """1 FLOP per element. Writes one row per segment and the indices. Arguments: (x, bounds, out)."""
    return _segments(signature, 2)


def _scattered(signature: Signature, results: int) -> Cost:
    """Return the cost of (x, index, dim, out, size): known if the result or its size is given."""
    x, index, out = signature.tensor(0), signature.tensor(1), optional(signature, 3)
    if out is not None:
        elements = out.numel
    else:
        dim = axis(integer(signature.get(2)), len(x.shape))
        elements = prod(x.shape[:dim]) * integer(signature.get(4)) * prod(x.shape[dim + 1 :])
    written = fresh((elements,), x.dtype) + (results - 1) * fresh((elements,), "int64")
    return moved(read(x, index), written, flops=x.numel)


@formula(*(f"{package}::scatter_{how}" for package in ("torch_scatter", "pyg") for how in ("sum", "mul", "mean")))
def scatter_sum(signature: Signature) -> Cost:
    """1 FLOP per element. Arguments: (x, index, dim, out, size).

    Without out and size, the size follows from the largest index, which depends on data, so there is no cost.
    """
    return _scattered(signature, 1)


@formula(*(f"{package}::scatter_{how}" for package in ("torch_scatter", "pyg") for how in _EXTREMES))
def scatter_extreme(signature: Signature) -> Cost:
    """1 FLOP per element; also writes the indices. Arguments: (x, index, dim, out, size)."""
    return _scattered(signature, 2)
