"""Factorizations and solves by LAPACK's operation counts (Working Note 41), Fourier transforms, pairwise distances.

Operators that iterate until they converge - eigenvalues, singular values, the matrix exponential, least squares - have
no cost, because the number of iterations depends on data. Complex matrices have no cost either. The class is *other*: a
factorization is not a plain sum of products.
"""

from __future__ import annotations

from math import log2, prod

from opanatomy.cost.operands import (
    Shape,
    Unknown,
    axis,
    broadcast,
    category,
    flag,
    fresh,
    integer,
    integers,
    moved,
    optional,
    read,
)
from opanatomy.cost.registry import formula
from opanatomy.records.signature import Argument, Cost, Signature, Tensor


def _matrices(x: Tensor, square: bool = True) -> tuple[Shape, int, int]:
    """Return the leading dimensions, rows and columns of real matrices."""
    if len(x.shape) < 2 or x.dtype is None or category(x.dtype) != 2:
        raise Unknown(f"real matrices, not {x}")
    *batch, m, n = x.shape
    if square and m != n:
        raise Unknown(f"{x} is not square")
    return tuple(batch), m, n


def _lu(m: int, n: int) -> int:
    """Count getrf: step k divides m - k elements and takes a product from (m - k) (n - k) others."""
    return sum((m - k) * (1 + 2 * (n - k)) for k in range(1, min(m, n) + 1))


def _qr(m: int, n: int) -> int:
    """Count geqrf: 2 m n^2 - 2/3 n^3 and lower terms."""
    if m >= n:
        return (6 * m * n * n - 2 * n**3 + 3 * m * n + 3 * n * n + 14 * n) // 3
    return (6 * n * m * m - 2 * m**3 + 9 * n * m - 3 * m * m + 14 * m) // 3


def _reflectors(m: int, n: int, k: int) -> int:
    """Count orgqr: n columns of the product of k reflectors, 4 m n k - 2 (m + n) k^2 + 4/3 k^3 and lower terms."""
    whole = 12 * m * n * k - 6 * (m + n) * k * k + 4 * k**3 + 9 * n * k - 3 * m * k - 3 * k * k - 4 * k
    return whole // 3


def _solved(batch: Shape, n: int, b: Tensor, vector: bool) -> tuple[Shape, int]:
    """Return the shape of the solution and its columns."""
    rest = b.shape[len(b.shape) - 1 :] if vector else b.shape[-2:]
    lead = broadcast(batch, b.shape[: len(b.shape) - len(rest)])
    if n not in rest:
        raise Unknown(f"{b} has no {n} rows")
    return (*lead, *rest), prod(lead) * prod(rest) // n


# ------------------------------------------------------------------------------------------------------ factorizations


@formula("aten::linalg_cholesky_ex")
def cholesky(signature: Signature) -> Cost:
    """`n (n + 1) (2 n + 1) / 6` FLOPs per matrix (about n^3 / 3); writes the factor and an int32 status."""
    x = signature.tensor(0)
    batch, n, _ = _matrices(x)
    flops = prod(batch) * (n * (n + 1) * (2 * n + 1) // 6)  # potrf
    return moved(read(x), fresh(x.shape, x.dtype) + fresh(batch, "int32"), flops=flops)


@formula("aten::cholesky_inverse")
def cholesky_inverse(signature: Signature) -> Cost:
    """`2/3 n^3 + n^2 / 2 + 5/6 n` FLOPs per matrix (LAPACK potri)."""
    x = signature.tensor(0)
    batch, n, _ = _matrices(x)
    return moved(read(x), fresh(x.shape, x.dtype), flops=prod(batch) * (n * (4 * n * n + 3 * n + 5) // 6))


@formula("aten::linalg_lu_factor_ex")
def lu_factor(signature: Signature) -> Cost:
    """About `2/3 n^3` FLOPs per n x n matrix; writes factors, pivots and a status.

    Counted step by step: step k takes m - k divides and (m - k) (n - k) multiply-adds.
    """
    x = signature.tensor(0)
    batch, m, n = _matrices(x, square=False)
    written = fresh(x.shape, x.dtype) + fresh((*batch, min(m, n)), "int32") + fresh(batch, "int32")
    return moved(read(x), written, flops=prod(batch) * _lu(m, n))


@formula("aten::linalg_lu")
def lu(signature: Signature) -> Cost:
    """Same as lu_factor; writes the permutation (m, m), L (m, k) and U (k, n)."""
    x = signature.tensor(0)
    batch, m, n = _matrices(x, square=False)
    parts = prod(batch) * (m * m + m * min(m, n) + min(m, n) * n)
    return moved(read(x), fresh((parts,), x.dtype), flops=prod(batch) * _lu(m, n))


@formula("aten::lu_unpack")
def lu_unpack(signature: Signature) -> Cost:
    """0 FLOPs; writes the requested matrices: the permutation (m, m), L (m, k) and U (k, n).

    Arguments: (factors, pivots, unpack_data, unpack_pivots).
    """
    x, pivots = signature.tensor(0), signature.tensor(1)
    batch, m, n = _matrices(x, square=False)
    data, order = flag(signature.get(2, True)), flag(signature.get(3, True))
    parts = data * (m * min(m, n) + min(m, n) * n) + order * m * m
    return moved(data * read(x) + order * read(pivots), fresh((prod(batch) * parts,), x.dtype))


@formula("aten::_linalg_det")
def determinant(signature: Signature) -> Cost:
    """About `2/3 n^3` FLOPs per matrix, as for lu_factor, plus n for the product of the diagonal.

    Also writes the factors and pivots.
    """
    return _determinant(signature, 1)


@formula("aten::_linalg_slogdet")
def sign_and_log_determinant(signature: Signature) -> Cost:
    """Same as `_linalg_det`, but writes the sign and log|det| instead of the determinant."""
    return _determinant(signature, 2)


def _determinant(signature: Signature, results: int) -> Cost:
    x = signature.tensor(0)
    batch, n, _ = _matrices(x)
    return moved(
        read(x),
        fresh(x.shape, x.dtype) + fresh((*batch, n), "int32") + results * fresh(batch, x.dtype),
        flops=prod(batch) * (_lu(n, n) + n),
    )


@formula("aten::linalg_inv_ex")
def inverse(signature: Signature) -> Cost:
    """About `2 n^3` FLOPs per matrix: LU 2/3 n^3, getri 4/3 n^3 - n^2 + 5/3 n; writes the inverse and a status."""
    x = signature.tensor(0)
    batch, n, _ = _matrices(x)
    each = _lu(n, n) + (4 * n**3 - 3 * n * n + 5 * n) // 3
    return moved(read(x), fresh(x.shape, x.dtype) + fresh(batch, "int32"), flops=prod(batch) * each)


@formula("aten::geqrf")
def householder_qr(signature: Signature) -> Cost:
    """`2 m n^2 - 2/3 n^3` FLOPs plus lower-order terms per matrix, m >= n; writes reflectors and their factors."""
    x = signature.tensor(0)
    batch, m, n = _matrices(x, square=False)
    written = fresh(x.shape, x.dtype) + fresh((*batch, min(m, n)), x.dtype)
    return moved(read(x), written, flops=prod(batch) * _qr(m, n))


@formula("aten::linalg_qr")
def qr(signature: Signature) -> Cost:
    """The FLOPs of geqrf, plus orgqr for the columns of Q: m in mode `complete`, none in mode `r`, else min(m, n).

    A trace does not record the mode, because it is a string; a capture does. Without the mode there is no cost.
    """
    x = signature.tensor(0)
    batch, m, n = _matrices(x, square=False)
    k, mode = min(m, n), signature.get(1)
    columns = {"reduced": k, "complete": m, "r": 0}.get(mode if isinstance(mode, str) else "")
    if columns is None:
        raise Unknown("the mode")
    flops = _qr(m, n) + (_reflectors(m, columns, k) if columns else 0)
    written = fresh((prod(batch) * (m * columns + (columns or k) * n),), x.dtype)
    return moved(read(x), written, flops=prod(batch) * flops)


@formula("aten::linalg_householder_product")
def householder_product(signature: Signature) -> Cost:
    """orgqr: `4 m n k - 2 (m + n) k^2 + 4/3 k^3` FLOPs plus lower-order terms per matrix.

    Arguments: (reflectors (m, n), factors (k)).
    """
    x, factors = signature.tensor(0), signature.tensor(1)
    batch, m, n = _matrices(x, square=False)
    flops = prod(batch) * _reflectors(m, n, factors.shape[-1])
    return moved(read(x, factors), fresh(x.shape, x.dtype), flops=flops)


@formula("aten::ormqr")
def apply_reflectors(signature: Signature) -> Cost:
    """`4 m n k - 2 n k^2 + 3 n k` FLOPs: applies k reflectors of length m to (m, n); from the right, m and n swap."""
    x, factors, c = (signature.tensor(index) for index in range(3))
    batch, m, n = _matrices(c, square=False)
    if not flag(signature.get(3, True)):
        m, n = n, m
    k = factors.shape[-1]
    flops = prod(batch) * (4 * m * n * k - 2 * n * k * k + 3 * n * k)
    return moved(read(x, factors, c), fresh(c.shape, c.dtype), flops=flops)


# --------------------------------------------------------------------------------------------------------------- solves


@formula("aten::_linalg_solve_ex")
def solve(signature: Signature) -> Cost:
    """About `2/3 n^3` FLOPs for the LU factors, and `2 n^2` per column of B. Arguments: (A, B, left, ...).

    Writes the solution, factors, pivots and a status.
    """
    a, b = signature.tensor(0), signature.tensor(1)
    batch, n, _ = _matrices(a)
    vector = len(b.shape) == 1 or (len(b.shape) == len(a.shape) - 1 and b.shape == a.shape[:-1])
    shape, columns = _solved(batch, n, b, vector)
    written = fresh(shape, b.dtype) + fresh(a.shape, a.dtype) + fresh((*batch, n), "int32") + fresh(batch, "int32")
    return moved(read(a, b), written, flops=prod(batch) * _lu(n, n) + 2 * n * n * columns)


@formula("aten::linalg_lu_solve")
def lu_solve(signature: Signature) -> Cost:
    """`2 n^2` FLOPs per column of B for two triangular solves. Arguments: (factors, pivots, B, left, adjoint)."""
    a, pivots, b = (signature.tensor(index) for index in range(3))
    batch, n, _ = _matrices(a)
    shape, columns = _solved(batch, n, b, vector=False)
    return moved(read(a, pivots, b), fresh(shape, b.dtype), flops=2 * n * n * columns)


@formula("aten::cholesky_solve", "aten::_cholesky_solve_helper")
def cholesky_solve(signature: Signature) -> Cost:
    """`2 n^2` FLOPs per column of B for two triangular solves. Arguments: (B, factor, upper)."""
    b, a = signature.tensor(0), signature.tensor(1)
    batch, n, _ = _matrices(a)
    shape, columns = _solved(batch, n, b, vector=False)
    return moved(read(a, b), fresh(shape, b.dtype), flops=2 * n * n * columns)


@formula("aten::triangular_solve")
def triangular_solve(signature: Signature) -> Cost:
    """`n^2` FLOPs per column of B, `n (n - 1)` with a unit diagonal; also writes a copy of A.

    Arguments: (B, A, upper, transpose, unitriangular).
    """
    b, a = signature.tensor(0), signature.tensor(1)
    batch, n, _ = _matrices(a)
    shape, columns = _solved(batch, n, b, vector=False)
    each = n * (n - 1) if flag(signature.get(4, False)) else n * n
    lead = shape[:-2]
    return moved(read(a, b), fresh(shape, b.dtype) + fresh((*lead, n, n), a.dtype), flops=each * columns)


@formula("aten::_linalg_check_errors")
def check_errors(signature: Signature) -> Cost:
    """0 FLOPs; reads the status of each matrix, for which the host waits."""
    return moved(read(signature.tensor(0)), 0)


# Fourier transforms: `5 * n * log2(n)` FLOPs for n complex points, half of it for real ones.
#
# There is no exact count: it depends on the algorithm chosen for a length. The figure is the convention of FFTW's own
# benchmark, rounded to an integer; the true number of a split-radix transform is about `4 * n * log2(n)`.


_REAL_OF = {"complex64": "float32", "complex128": "float64", "complex32": "float16"}
_COMPLEX_OF = {real: name for name, real in _REAL_OF.items()}


def _flops(shape: Shape, dims: Argument, per_point: float) -> int:
    """Return the FLOPs of transforms over `dims` of a complex tensor of this shape."""
    points = prod(shape[axis(dim, len(shape))] for dim in integers(dims))
    return round(per_point * prod(shape) * log2(points)) if points > 1 else 0


def _moved(x: Tensor, shape: Shape, dtype: str | None, flops: int, out: Tensor | None) -> Cost:
    return Cost(flops=flops, read_bytes=read(x), written_bytes=fresh(shape, out.dtype if out else dtype))


@formula("aten::_fft_c2c")
def complex_to_complex(signature: Signature) -> Cost:
    """`5 * N * log2(n)` FLOPs: N elements, n points per transform. Arguments: (x, dims, normalization, forward)."""
    x = signature.tensor(0)
    return _moved(x, x.shape, x.dtype, _flops(x.shape, signature.get(1), 5), optional(signature, 4))


@formula("aten::_fft_r2c")
def real_to_complex(signature: Signature) -> Cost:
    """`2.5 * N * log2(n)` FLOPs: N real elements, n points per transform.

    Arguments: (x, dims, normalization, one-sided). A one-sided result keeps n // 2 + 1 of the n elements of the last
    transformed dimension.
    """
    x, dims = signature.tensor(0), integers(signature.get(1))
    last = axis(dims[-1], len(x.shape))
    shape = list(x.shape)
    if flag(signature.get(3)):
        shape[last] = shape[last] // 2 + 1
    dtype = _COMPLEX_OF.get(x.dtype or "")
    return _moved(x, tuple(shape), dtype, _flops(x.shape, dims, 2.5), optional(signature, 4))


@formula("aten::_fft_c2r")
def complex_to_real(signature: Signature) -> Cost:
    """`2.5 * N * log2(n)` FLOPs: N real elements, n points per transform.

    Arguments: (x, dims, normalization, size of the last dimension).
    """
    x, dims = signature.tensor(0), integers(signature.get(1))
    shape = list(x.shape)
    shape[axis(dims[-1], len(shape))] = integer(signature.get(3))
    if x.dtype not in _REAL_OF:
        raise Unknown(f"data type of {x}")
    return _moved(x, tuple(shape), _REAL_OF[x.dtype], _flops(tuple(shape), dims, 2.5), optional(signature, 4))


# Pairwise distances.


def _per_element(p: Argument) -> int:
    """Count subtract, absolute value or power, add; the largest is taken without adding."""
    if isinstance(p, bool) or not isinstance(p, int | float):
        raise Unknown(f"norm {p!r}")
    return {0.0: 2, 1.0: 3, 2.0: 3, float("inf"): 2}.get(float(p), 4)


def _per_pair(p: Argument) -> int:
    """Count the root at the end."""
    return int(p not in (0, 1, float("inf")))


@formula("aten::_cdist_forward")
def all_pairs(signature: Signature) -> Cost:
    """`b * r * s * (3 * m + 1)` FLOPs for (b, r, m) and (b, s, m) in the Euclidean norm.

    Other norms replace the factor 3 m + 1: 3 m for p = 1, 2 m for p = 0 or infinity, 4 m + 1 for any other p.
    """
    a, b, p = signature.tensor(0), signature.tensor(1), signature.get(2)
    *_, rows, m = a.shape
    *_, columns, m_b = b.shape
    if m != m_b:
        raise Unknown(f"{a} and {b}")
    shape = (*broadcast(a.shape[:-2], b.shape[:-2]), rows, columns)
    flops = prod(shape) * (_per_element(p) * m + _per_pair(p))
    return moved(read(a, b), fresh(shape, a.dtype), flops=flops)


@formula("aten::_cdist_backward")
def all_pairs_backward(signature: Signature) -> Cost:
    """4 FLOPs per element of each pair: subtract, divide by the distance, * grad, add.

    Arguments: (grad, a, b, p, distances).
    """
    grad, a, b, distances = (signature.tensor(index) for index in (0, 1, 2, 4))
    flops = 4 * grad.numel * a.shape[-1]
    return moved(read(grad, a, b, distances), fresh(a.shape, a.dtype), flops=flops)


@formula("aten::_pdist_forward")
def own_pairs(signature: Signature) -> Cost:
    """Same as _cdist_forward, for the n (n - 1) / 2 pairs of rows of an (n, m) tensor."""
    x, p = signature.tensor(0), signature.get(1)
    n, m = x.shape
    pairs = n * (n - 1) // 2
    return moved(read(x), fresh((pairs,), x.dtype), flops=pairs * (_per_element(p) * m + _per_pair(p)))


@formula("aten::dist")
def dist(signature: Signature) -> Cost:
    """2 FLOPs per element: 1 for the subtraction, 1 for the norm (a reduction)."""
    a, b = signature.tensor(0), signature.tensor(1)
    if a.shape != b.shape:
        raise Unknown(f"{a} and {b}")
    return moved(read(a, b), fresh((), a.dtype), flops=2 * a.numel)


@formula("aten::_pdist_backward")
def own_pairs_backward(signature: Signature) -> Cost:
    """4 FLOPs per element of both rows of each pair, as for _cdist_backward. Arguments: (grad, x, p, distances)."""
    grad, x, distances = signature.tensor(0), signature.tensor(1), signature.tensor(3)
    return moved(read(grad, x, distances), fresh(x.shape, x.dtype), flops=4 * grad.numel * x.shape[-1])
