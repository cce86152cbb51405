"""Graph packages: pyg-lib, torch_sparse, torch_scatter. Their sparse matrices are vectors of indices and values."""

from __future__ import annotations

from math import prod

from opanatomy.cost.operands import Unknown, axis, fresh, integer, moved, optional, read, tensors
from opanatomy.cost.registry import formula
from opanatomy.records.signature import Cost, Signature, Tensor


@formula("pyg::segment_matmul")
def segment_product(signature: Signature) -> Cost:
    """`2 * rows * n * k`: (x (rows, k), bounds, weights (segments, k, n)); where the bounds are changes nothing."""
    x, bounds, weights = (signature.tensor(place) for place in range(3))
    if len(weights.shape) != 3 or x.shape[-1] != weights.shape[1]:
        raise Unknown(f"{x} and {weights}")
    shape = (x.shape[0], weights.shape[2])
    return moved(read(x, bounds, weights), fresh(shape, x.dtype), flops=2 * prod(shape) * x.shape[1])


@formula("pyg::grouped_matmul")
def grouped_product(signature: Signature) -> Cost:
    """`2 * m * n * k` summed over the pairs (m, k) @ (k, n) of two lists."""
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
    """(rows, columns, values) of a matrix in compressed rows times a dense (..., k, n)."""
    *batch, _, n = dense.shape
    shape = (*batch, rows.numel - 1, n)
    # an add for each stored element and column, and a multiply where it has a value
    flops = (1 + (value is not None)) * prod(batch) * column.numel * n
    written = fresh(shape, dense.dtype) + (results - 1) * fresh(shape, "int64")
    return moved(read(rows, column, value, dense), written, flops=flops)


@formula("torch_sparse::spmm_sum")
def sparse_sum(signature: Signature) -> Cost:
    """`2 * stored * n`, without values `stored * n`: (row, rowptr, col, value, colptr, csr2csc, dense (k, n)).

    Source: csrc/spmm.cpp and torch_sparse/matmul.py of pytorch_sparse.
    """
    return _sparse_product(
        signature.tensor(1), signature.tensor(2), optional(signature, 3), signature.tensor(6), results=1
    )  # fmt: skip


@formula("torch_sparse::spmm_mean")
def sparse_mean(signature: Signature) -> Cost:
    """As the sum, and a divide an element: (row, rowptr, col, value, rowcount, colptr, csr2csc, dense (k, n))."""
    rows, dense = signature.tensor(1), signature.tensor(7)
    cost = _sparse_product(rows, signature.tensor(2), optional(signature, 3), dense, results=1)
    divided = prod(dense.shape[:-2]) * (rows.numel - 1) * dense.shape[-1]
    return moved(cost.read_bytes, cost.written_bytes, flops=cost.flops + divided)


@formula("torch_sparse::spmm_min", "torch_sparse::spmm_max")
def sparse_extreme(signature: Signature) -> Cost:
    """As the sum: (rowptr, col, value, dense (k, n)); writes the places too."""
    return _sparse_product(
        signature.tensor(0), signature.tensor(1), optional(signature, 2), signature.tensor(3), results=2
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------ torch_scatter

_SUMS = ("sum", "mean")
_EXTREMES = ("min", "max")


def _segments(signature: Signature, results: int) -> Cost:
    """(x, bounds, out): a segment lies between two bounds along their last dimension."""
    x, bounds = signature.tensor(0), signature.tensor(1)
    dim = len(bounds.shape) - 1
    shape = (*x.shape[:dim], bounds.shape[-1] - 1, *x.shape[dim + 1 :])
    written = fresh(shape, x.dtype) + (results - 1) * fresh(shape, "int64")
    return moved(read(x, bounds), written, flops=x.numel)


@formula(*(f"{package}::segment_{how}_csr" for package in ("torch_scatter", "pyg") for how in _SUMS))
def segment_sum(signature: Signature) -> Cost:
    """1 per element: (x, bounds, out); writes a row a segment."""
    return _segments(signature, 1)


@formula(*(f"{package}::segment_{how}_csr" for package in ("torch_scatter", "pyg") for how in _EXTREMES))
def segment_extreme(signature: Signature) -> Cost:
    """1 per element: (x, bounds, out); writes a row a segment and the places."""
    return _segments(signature, 2)


def _scattered(signature: Signature, results: int) -> Cost:
    """(x, index, dim, out, size): known where the result is given or its size is."""
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
    """1 per element: (x, index, dim, out, size); without either the size is the largest index, which is data."""
    return _scattered(signature, 1)


@formula(*(f"{package}::scatter_{how}" for package in ("torch_scatter", "pyg") for how in _EXTREMES))
def scatter_extreme(signature: Signature) -> Cost:
    """1 per element: (x, index, dim, out, size); writes the places too."""
    return _scattered(signature, 2)
