"""Worked examples: all figures of a call, worked out by hand as products of named sizes; a row an example.

No two dimensions are alike, nor neighbouring arguments in size, so that an argument taken from a wrong place shows.
A name without a namespace is of `aten`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from opanatomy.cost.compiled import SAMPLES, flops_per_element, named
from opanatomy.cost.elementwise import MAPS, UNARY, UNARY_BOOL, UNARY_FLOATING
from opanatomy.cost.registry import cost, describe, has_formula
from opanatomy.records.signature import Argument, Cost, Signature, Stored, Tensor

#: operator, arguments, FLOPs, bytes read, bytes written
Example: TypeAlias = tuple[str, tuple[Argument, ...], int, int, int]


def t(*shape: int, dtype: str = "float32") -> Tensor:
    """A tensor of 4 bytes an element."""
    return Tensor(shape, dtype)


def _of(dtype: str) -> Callable[..., Tensor]:
    return lambda *shape: Tensor(shape, dtype)


#: Tensors of 2, 8, 8, 4, 1 and 1 bytes an element, and quantized ones of 1.
bf, dd, ints, int4 = (_of(dtype) for dtype in ("bfloat16", "float64", "int64", "int32"))
byte, bits, q = (_of(dtype) for dtype in ("uint8", "bool", "qint8"))


def coo(*shape: int, elements: int = 5, index_bytes: int = 17) -> Tensor:
    """A float32 matrix that stores so many elements, with an odd number of bytes for their places."""
    return Tensor(shape, "float32", None, Stored(elements, index_bytes))


def cost_of(operator: str, arguments: tuple[Argument, ...], device: str | None = None) -> Cost | None:
    """What a call costs."""
    aten = f"aten::{operator}"
    return cost(aten if has_formula(aten) else operator, Signature(arguments), device)


def figures(operator: str, arguments: tuple[Argument, ...], device: str | None = None) -> tuple[int, int, int] | None:
    """FLOPs, bytes read and bytes written; `None` without a cost."""
    costs = cost_of(operator, arguments, device)
    return None if costs is None else (costs.flops, costs.read_bytes, costs.written_bytes)


# -------------------------------------------------------------------------------------------------------------- sizes

b, c, g, h, m, n, k = 2, 6, 3, 4, 5, 7, 11
A, gates = m * n, 3 * h
x, X = (b, c, m), b * c * m
table, rows = dd(9, n), ints(m)
# images of 8 x 13; windows of 3 x 2, stride (2, 3), padding (1, 0), dilation (2, 1): rows (8 + 2 - 5) // 2 + 1 and one
# more rounded up, columns (13 - 2) // 3 + 1 and one more
IMAGE, PIXELS, POOL = bf(b, c, 8, 13), b * c * 8 * 13, ((3, 2), (2, 3), (1, 0), (2, 1))
FLOOR, CEIL, ROIS = b * c * 3 * 4, b * c * 4 * 5, t(k, 5)
# convolutions of images of 8 x 11, kernels of 3 x 2, stride (2, 1), padding (1, 0), dilation (1, 3):
# (8 + 2 - 3) // 2 + 1, 11 - 3
c_in, c_out, tall, wide, high = 4, 6, 8, 11, 4
OUT_W = wide - 3
PLANES, KERNEL, PLACES = bf(b, c_in, tall, wide), t(c_out, c_in, 3, 2), b * high * OUT_W
STRIDE, PADDING, DILATION = (2, 1), (1, 0), (1, 3)
CONVOLVED = 2 * PLACES * c_out * c_in * 6
IMAGE_BYTES, KERNEL_BYTES, RESULT = 2 * b * c_in * tall * wide, 4 * c_out * c_in * 6, 2 * PLACES * c_out
# transposed: 2 (8 - 1) - 2 + 3 + 1 and 11 - 1 + 3 + 1, from 2 groups of 2 channels to 2 of 5
TURNED = t(c_in, 5, 3, 2)
TURNED_FLOPS, TURNED_BYTES = 2 * b * tall * wide * c_in * 5 * 6, 4 * c_in * 5 * 6
TURNED_RESULT = 2 * b * 10 * (2 * 7 - 2 + 2 + 1 + 1) * (10 + 3 + 1)
nnz = 5
STORED = 4 * nnz + 17
# step k of an LU factorization divides m - k and takes 2 (m - k) (n - k) from what is left
LU_53, LU_35, LU_33 = (4 + 16) + (3 + 6) + 2, (2 + 16) + (1 + 6), (2 + 8) + (1 + 2)
#: LAPACK Working Note 41, multiplications and additions: geqrf of (5, 3) and (3, 5), orgqr, potrf, potri, getri.
QR_53 = (5 * 9 - 9 + 15) + (5 * 9 - 9) + (3 * 3**2 + 23 * 3 + 3 * 3**2 + 5 * 3) // 6
QR_35 = (5 * 9 - 9 + 30) + (5 * 9 - 9 + 15) + (-3 * 3**2 + 23 * 3 - 3 * 3**2 + 5 * 3) // 6
Q_533 = (2 * 45 - 8 * 9 + 18 + 18 - 9 - 5) + (2 * 45 - 8 * 9 + 18 + 9 - 15 + 1)
Q_553 = (2 * 75 - 10 * 9 + 18 + 30 - 9 - 5) + (2 * 75 - 10 * 9 + 18 + 15 - 15 + 1)
Q_333 = (2 * 27 - 6 * 9 + 18 + 18 - 9 - 5) + (2 * 27 - 6 * 9 + 18 + 9 - 9 + 1)
POTRF_3, POTRI_3, GETRI_3 = 9 + (9 + 1) // 2, 18 + (9 + 5) // 2, 36 - 9 + 5
# a loop of torch.compile
WIDE, LOOP = bf(8, 4096, 2048), 8 * 4096 * 2048
# optimizers: parameter 2 bytes, gradient 4, first average 8; two steps of 4 and 8
PARAMETERS, GRADIENTS, FIRST_STATE = (bf(m), bf(n)), (t(m), t(n)), (dd(m), dd(n))
SECOND, LARGEST, STEPS = (t(m), bf(n)), (bf(m), t(n)), (t(), dd())
N, SECOND_BYTES, LARGEST_BYTES = m + n, 4 * m + 2 * n, 2 * m + 4 * n
ADAM, STATE = (PARAMETERS, GRADIENTS, FIRST_STATE, SECOND), (2 + 8) * N + SECOND_BYTES

# ----------------------------------------------------------------------------------------------------------- examples

EXAMPLES: list[Example] = [
    # --- losses
    ("nll_loss_forward", (t(m, n), ints(m), bf(n), 0, -100), 2*m, 4*m + 8*m + 2*n, 4*m + 4),
    ("nll_loss2d_forward", (bf(b, c, m, n), ints(b, m, n), None, 2, -100), b*m*n, 10*b*m*n, 2 + 2),
    ("nll_loss_backward", (t(m), bf(m, n), ints(m), dd(n), 0, -100, t()), m, 4*m + 8*m + 8*n + 4, 2*m*n),
    ("mse_loss", (bf(m, n), t(m, n), 0), 2*m*n, 6*m*n, 2*m*n),
    ("mse_loss_backward", (dd(), bf(m, n), t(m, n), 1), 3*m*n, 8 + 6*m*n, 2*m*n),
    ("huber_loss", (bf(m, n), t(m, n), 0, 0.5), 5*m*n, 6*m*n, 2*m*n),
    ("smooth_l1_loss", (bf(m, n), t(m, n)), 6*m*n, 6*m*n, 2),
    ("smooth_l1_loss_backward", (dd(), bf(m, n), t(m, n), 1, 0.5), 4*m*n, 8 + 6*m*n, 2*m*n),
    ("binary_cross_entropy", (bf(m, n), t(m, n), None, 0), 7*m*n, 6*m*n, 2*m*n),
    ("binary_cross_entropy", (bf(m, n), t(m, n), dd(n), 1), 9*m*n, 6*m*n + 8*n, 2),
    ("binary_cross_entropy_backward", (dd(), bf(m, n), t(m, n), t(n), 1), 7*m*n, 8 + 6*m*n + 4*n, 2*m*n),
    ("binary_cross_entropy_with_logits", (bf(m, n), t(m, n), None, None, 0), 7*m*n, 6*m*n, 2*m*n),
    ("binary_cross_entropy_with_logits", (bf(m, n), t(m, n), None, t(n)), 9*m*n, 6*m*n + 4*n, 2),
    # m positions, b sequences, n classes; of targets of 3 and 2 the longer one has 7 places with its blanks
    ("_ctc_loss", (t(m, b, n), ints(b, 3), (m, m), (3, 2), 0, False), 11*b*m*7, 4*m*b*n + 8*b*3, 4*(b + b*m*7)),
    # one sequence: all targets are its own
    ("_ctc_loss", (dd(m, n), ints(3), int4(1), ints(1), 0, False), 11*m*7, 8*m*n + 8*3 + 4 + 8, 8*(1 + m*7)),
    ("_ctc_loss_backward", (t(b), bf(m, b, n), ints(b, 3), int4(b), ints(b), t(b), t(b, m, 7), ints(99)),
     16*b*m*7 + 6*m*b*n, 4*b + 2*m*b*n + 24*b + 4*b + 8*b + 4*b + 4*b*m*7, 2*m*b*n),
    ("soft_margin_loss", (bf(m, n), t(m, n), 0), 4*m*n, 6*m*n, 2*m*n),
    ("soft_margin_loss", (bf(m, n), t(m, n)), 5*m*n, 6*m*n, 2),
    ("soft_margin_loss_backward", (dd(), bf(m, n), t(m, n), 1), 7*m*n, 8 + 6*m*n, 2*m*n),
    ("multi_margin_loss", (t(m, n), ints(m)), 3*m*n, 4*m*n + 8*m, 4),
    ("multi_margin_loss", (t(m, n), ints(m), 1, 2, None, 0), 3*m*n, 4*m*n + 8*m, 4*m),
    ("multi_margin_loss", (t(m, n), ints(m), 2, 1, bf(n), 1), 5*m*n, 4*m*n + 8*m + 2*n, 4),
    ("multi_margin_loss_backward", (dd(), t(m, n), ints(m)), 4*m*n, 8 + 4*m*n + 8*m, 4*m*n),
    ("multi_margin_loss_backward", (dd(), t(m, n), ints(m), 2, 1, bf(n), 1), 6*m*n, 8 + 4*m*n + 8*m + 2*n, 4*m*n),
    # --- normalizations
    ("_safe_softmax", (bf(m, n), -1, 6), 4*m*n, 2*m*n, 4*m*n),
    ("_masked_softmax", (bf(m, n), bits(n), -1, 1), 4*m*n, 2*m*n + n, 2*m*n),
    ("_log_softmax", (t(m, n, dtype="float16"), -1, False), 4*m*n, 2*m*n, 2*m*n),
    ("_softmax_backward_data", (t(m, n), dd(m, n), -1, 15), 4*m*n, 12*m*n, 2*m*n),
    # torch before 1.11 has the input of the forward at 3
    ("_log_softmax_backward_data", (t(m, n), dd(m, n), -1, bf(m, n)), 4*m*n, 12*m*n, 2*m*n),
    ("native_layer_norm", (bf(m, n), (n,), None, t(n), 1e-5), 6*m*n, 2*m*n + 4*n, 2*m*n + 4*2*m),
    ("native_layer_norm_backward", (t(b, m, n), bf(b, m, n), (m, n), t(b), dd(b), dd(m, n), t(m, n),
     (False, True, True)), (3 + 1)*b*m*n, 6*b*m*n + 12*b + 12*m*n, 8*2*m*n),
    ("_fused_rms_norm", (bf(m, n), (n,), None, 1e-5), 3*m*n, 2*m*n, 2*m*n + 4*m),
    ("_fused_rms_norm", (bf(b, m, n), (m, n), dd(m, n), 1e-5), 4*b*m*n, 2*b*m*n + 8*m*n, 2*b*m*n + 4*b),
    ("_fused_rms_norm_backward", (t(m, n), bf(m, n), (n,), t(m, 1), None, (True, False)), 5*m*n, 6*m*n + 4*m, 2*m*n),
    ("_fused_rms_norm_backward", (t(m, n), bf(m, n), (n,), t(m, 1), dd(n), (False, True)), 3*m*n, 6*m*n + 4*m + 8*n,
     8*n),
    # b images of c channels in g groups: a mean and a deviation a group
    ("native_group_norm", (bf(*x), dd(c), t(c), b, c, m, g, 1e-5), 7*X, 2*X + 12*c, 2*X + 4*2*b*g),
    ("native_group_norm", (bf(*x), None, None, b, c, m, g, 1e-5), 5*X, 2*X, 2*X + 4*2*b*g),
    ("native_group_norm_backward", (t(*x), bf(*x), t(b, g), dd(b, g), dd(c), b, c, m, g, (True, True, False)),
     (9 + 3)*X, 6*X + 12*b*g + 8*c, 2*X + 8*c),
    # training keeps mean and deviation of the batch and brings the running ones up to date
    ("native_batch_norm", (bf(*x), None, None, t(c), dd(c), True, 0.1, 1e-5), 5*X, 2*X + 12*c, 2*X + 4*2*c + 12*c),
    ("_native_batch_norm_legit", (bf(*x), None, t(c), False, 0.1, 1e-5), 3*X, 2*X + 4*c, 2*X),
    ("_native_batch_norm_legit", (bf(*x), None, None, t(c), dd(c), False, 0.1, 1e-5), 2*X, 2*X + 12*c, 2*X),
    ("_native_batch_norm_legit_no_training", (bf(*x), t(c), None, dd(c), bf(c), 0.1, 1e-5), 3*X, 2*X + 14*c, 2*X),
    ("_batch_norm_no_update", (bf(*x), None, t(c), dd(c), bf(c), 0.1, 1e-5), 3*X, 2*X + 14*c, 2*X),
    ("_batch_norm_with_update", (bf(*x), t(c), None, dd(c), bf(c), 0.1, 1e-5), 6*X, 2*X + 14*c, 2*X + 4*2*c + 10*c),
    # without a scale one multiply less
    ("native_batch_norm_backward", (t(*x), bf(*x), None, t(c), dd(c), bf(c), t(c), True, 1e-5, (True, False, True)),
     (8 + 1)*X, 6*X + 18*c, 2*X + 4*c),
    # evaluation: grad * (scale / deviation), as much without a scale
    ("native_batch_norm_backward", (t(*x), bf(*x), dd(c), t(c), dd(c), None, None, False, 1e-5, (True, True, False)),
     (1 + 3)*X, 6*X + 20*c, 2*X + 8*c),
    ("native_batch_norm_backward", (t(*x), bf(*x), None, t(c), dd(c), None, None, False, 1e-5, (True, False, False)),
     X, 6*X + 12*c, 2*X),
    ("batch_norm_backward", (t(*x), bf(*x), dd(c), t(c), dd(c), bf(c), t(c), True, 1e-5, (False, True, True),
     byte(99)), (3 + 1)*X, 6*X + 26*c, 2*8*c),
    ("miopen_batch_norm_backward", (bf(*x), t(*x), dd(c), t(c), dd(c), bf(c), t(c), 1e-5, byte(99)), 13*X, 6*X + 26*c,
     2*X + 2*8*c),
    ("batch_norm_stats", (bf(*x), 1e-5), 4*X, 2*X, 2*4*c),
    ("batch_norm_elemt", (bf(*x), t(c), dd(c), bf(c), dd(c), 1e-5), 4*X, 2*X + 22*c, 2*X),
    # the statistics of g devices
    ("batch_norm_gather_stats", (bf(*x), dd(g, c), t(g, c), bf(c), t(c), 0.1, 1e-5, 7), 9*g*c, 12*g*c + 6*c,
     2*8*c + 6*c),
    ("batch_norm_gather_stats_with_counts", (bf(*x), t(g, c), dd(g, c), None, None, 0.1, 1e-5, t(g)), 9*g*c,
     12*g*c + 4*g, 2*4*c),
    ("batch_norm_backward_reduce", (t(*x), bf(*x), dd(c), t(c), bf(c), True, True, False), 4*X, 6*X + 12*c,
     2*8*c + 2*c),
    ("batch_norm_backward_reduce", (t(*x), bf(*x), dd(c), t(c), None, False, True, True), 4*X, 6*X + 12*c, 2*4*c),
    ("batch_norm_backward_elemt", (t(*x), bf(*x), dd(c), t(c), bf(c), dd(c), t(c), int4(g), t(99)), 5*X,
     6*X + 26*c + 4*g, 4*X),
    ("_weight_norm_interface", (bf(m, n), bf(m, 1), 0), 3*m*n, 2*m*n + 2*m, 2*m*n + 4*m),
    ("_weight_norm_interface_backward", (t(m, n), bf(m, n), dd(m, 1), t(m, 1), 0), 5*m*n, 6*m*n + 12*m, 2*m*n + 8*m),
    # --- linear algebra
    ("linalg_cholesky_ex", (dd(b, 3, 3), False, False), b*POTRF_3, 8*b*9, 8*b*9 + 4*b),
    ("cholesky_inverse", (dd(6, 6), False), 2*6 ** 3//3 + 18 + 5, 8*36, 8*36),
    ("linalg_lu_factor_ex", (dd(b, 5, 3), True, False), b*LU_53, 8*b*15, b*(8*15 + 4*3 + 4)),
    ("linalg_lu", (dd(b, 3, 5), True), b*LU_35, 8*b*15, 8*b*(9 + 9 + 15)),
    ("lu_unpack", (dd(b, 5, 3), int4(b, 3)), 0, b*(8*15 + 12), 8*b*(25 + 15 + 9)),
    ("lu_unpack", (dd(b, 3, 5), int4(b, 3), True, False), 0, 8*b*15, 8*b*(9 + 15)),
    ("_linalg_det", (dd(b, 3, 3),), b*(LU_33 + 3), 8*b*9, b*(8*9 + 4*3 + 8)),
    ("_linalg_slogdet", (dd(b, 3, 3),), b*(LU_33 + 3), 8*b*9, b*(8*9 + 4*3 + 2*8)),
    ("linalg_inv_ex", (dd(b, 3, 3), False), b*(LU_33 + GETRI_3), 8*b*9, b*(8*9 + 4)),
    ("geqrf", (dd(b, 3, 5),), b*QR_35, 8*b*15, 8*b*(15 + 3)),
    ("linalg_qr", (dd(b, 5, 3), "r"), b*QR_53, 8*b*15, 8*b*9),
    ("linalg_qr", (dd(b, 3, 5), "reduced"), b*(QR_35 + Q_333), 8*b*15, 8*b*(9 + 15)),
    ("linalg_householder_product", (dd(b, 5, 3), t(b, 3)), b*Q_533, b*(8*15 + 12), 8*b*15),
    # 3 reflectors of length 5 on 5 rows of 7, on 7 rows from the right
    ("ormqr", (dd(b, 5, 3), t(b, 3), bf(b, 5, 7), True, False), b*(4*5*7*3 - 2*7*9 + 3*7*3), b*(8*15 + 12 + 2*35),
     2*b*35),
    ("ormqr", (dd(b, 5, 3), t(b, 3), bf(b, 5, 7)), b*(4*5*7*3 - 2*7*9 + 3*7*3), b*(8*15 + 12 + 2*35), 2*b*35),
    ("_linalg_solve_ex", (dd(b, 3, 3), t(b, 3), True, False), b*(LU_33 + 2*9), b*(8*9 + 4*3), b*(4*3 + 8*9 + 4*3 + 4)),
    # a matrix for b matrices, and no b vectors
    ("_linalg_solve_ex", (dd(b, 3, 3), t(3, 7)), b*(LU_33 + 2*9*7), b*8*9 + 4*21, b*(4*21 + 8*9 + 4*3 + 4)),
    # one matrix of factors for each of b right-hand sides
    ("linalg_lu_solve", (dd(3, 3), int4(3), t(b, 3, 7), True, False), 2*9*b*7, 8*9 + 12 + 4*b*21, 4*b*21),
    ("cholesky_solve", (t(b, 3, 7), dd(3, 3), False), 2*9*b*7, 8*9 + 4*b*21, 4*b*21),
    ("triangular_solve", (t(b, 3, 7), dd(b, 3, 3), True, False, True), 3*2*b*7, 8*b*9 + 4*b*21, 4*b*21 + 8*b*9),
    ("triangular_solve", (t(3, 7), dd(3, 3)), 9*7, 8*9 + 4*21, 4*21 + 8*9),
    ("_linalg_check_errors", (int4(b), "linalg.inv", False), 0, 4*b, 0),
    # distances of m and n points with k coordinates; b pairs of sets by broadcasting
    ("_cdist_forward", (bf(b, m, k), t(1, n, k), 2, None), b*m*n*(3*k + 1), 2*b*m*k + 4*n*k, 2*b*m*n),
    ("_cdist_forward", (bf(b, 1, m, k), t(g, n, k), 2, None), b*g*m*n*(3*k + 1), 2*b*m*k + 4*g*n*k, 2*b*g*m*n),
    ("_cdist_forward", (bf(m, k), t(n, k), 1.0, None), m*n*3*k, 2*m*k + 4*n*k, 2*m*n),
    ("_cdist_forward", (bf(m, k), t(n, k), 0.0, None), m*n*2*k, 2*m*k + 4*n*k, 2*m*n),
    ("_cdist_forward", (bf(m, k), t(n, k), float("inf"), None), m*n*2*k, 2*m*k + 4*n*k, 2*m*n),
    ("_cdist_forward", (bf(m, k), t(n, k), 3.0, None), m*n*(4*k + 1), 2*m*k + 4*n*k, 2*m*n),
    ("_cdist_backward", (t(b, m, n), bf(b, m, k), dd(b, n, k), 2.0, bf(b, m, n)), 4*b*m*n*k,
     6*b*m*n + 2*b*m*k + 8*b*n*k, 2*b*m*k),
    ("_pdist_forward", (bf(m, k), 2.0), 10*(3*k + 1), 2*m*k, 2*10),
    ("_pdist_backward", (t(10), bf(m, k), 2.0, dd(10)), 4*10*k, 40 + 2*m*k + 80, 2*m*k),
    ("dist", (bf(m, n), t(m, n), 2), 2*m*n, 6*m*n, 2),
    ("linalg_solve_triangular", (dd(b, 3, 3), t(1, 3, 7), False, True, False), b*9*7, 8*b*9 + 4*21, 4*b*21),
    ("linalg_solve_triangular", (dd(3, 3), t(b, 3, 7), False, True, False), b*9*7, 8*9 + 4*b*21, 4*b*21),
    ("linalg_solve_triangular", (dd(b, 3, 3), t(b, 7, 3), False, False, True), b*3*2*7, 8*b*9 + 4*b*21, 4*b*21),
    # --- recurrent layers
    # m steps of b sequences of k features, 4 gates of h
    ("mkldnn_rnn_layer", (bf(m, b, k), t(4*h, k), dd(4*h, h), t(4*h), bf(4*h), t(1, b, h), dd(1, b, h), True),
     2*m*b*4*h*(k + h), 2*m*b*k + 4*4*h*k + 8*4*h*h + 6*4*h + 12*b*h, 2*m*b*h + 2*4*b*h),
    ("mkldnn_rnn_layer_backward", (bf(m, b, k), t(4*h, k), dd(4*h, h), t(4*h), bf(4*h), t(1, b, h), dd(1, b, h),
     t(m, b, h), t(b, h), t(b, h), bf(m, b, h), bf(b, h), dd(b, h), True), 2*2*m*b*4*h*(k + h),
     2*m*b*k + 4*4*h*k + 8*4*h*h + 6*4*h + 12*b*h + 6*m*b*h + 18*b*h, 2*m*b*k + 4*4*h*k + 8*4*h*h + 6*4*h + 12*b*h),
    # both directions; the flat weights give the bytes
    ("_cudnn_rnn", (bf(m, b, k), (t(gates, k), t(gates, h), t(gates), t(gates), t(gates, k), t(gates, h)), 4, bf(999),
     t(2, b, h), dd(2, b, h), 3, h, 0, 1, False, 0.0, True, True, (), None), 2*m*b*2*gates*(k + h),
     2*m*b*k + 2*999 + 12*2*b*h, 2*m*b*2*h + 12*2*b*h),
    ("miopen_rnn", (bf(m, b, k), (t(gates, k), t(gates, h), t(gates)), 3, None, t(1, b, h), None, 3, h, 1, False, 0.0,
     True, False, (), None), 2*m*b*gates*(k + h), 2*m*b*k + 4*(gates*k + gates*h + gates) + 4*b*h, 2*m*b*h + 4*b*h),
    # what precedes the mask at 21: reserve space and the modes
    ("_cudnn_rnn_backward", (bf(m, b, k), (t(gates, k), t(gates, h)), 2, bf(999), t(1, b, h), dd(1, b, h), t(m, b, h),
     bf(m, b, h), t(1, b, h), dd(1, b, h), 3, h, 0, 1, False, 0.0, True, False, (), None, byte(99),
     (True, True, False, False)), 2*m*b*gates*(k + h), 2*m*b*k + 2*999 + 12*b*h + 6*m*b*h + 12*b*h, 2*m*b*k + 4*b*h),
    ("_cudnn_rnn_backward", (bf(m, b, k), (t(gates, k), t(gates, h)), 2, bf(999), t(1, b, h), dd(1, b, h), t(m, b, h),
     bf(m, b, h), None, None, 3, h, 0, 1, False, 0.0, True, False, (), None, byte(99), (False, True, True, True)),
     2*2*m*b*gates*(k + h), 2*m*b*k + 2*999 + 12*b*h + 6*m*b*h, 12*b*h + 2*999),
    ("_thnn_fused_lstm_cell", (t(b, 4*h), bf(b, 4*h), dd(b, h), None, None), 22*b*h, 6*b*4*h + 8*b*h,
     2*8*b*h + 4*b*4*h),
    ("_thnn_fused_lstm_cell", (t(b, 4*h), bf(b, 4*h), dd(b, h), t(4*h), bf(4*h), t(99)), 30*b*h,
     6*b*4*h + 8*b*h + 6*4*h, 2*8*b*h + 4*b*4*h),
    ("_thnn_fused_lstm_cell_backward_impl", (t(b, h), bf(b, h), dd(b, h), t(b, h), bf(b, 4*h), True), 23*b*h + b*4*h,
     18*b*h + 2*b*4*h, 2*b*4*h + 8*b*h + 2*4*h),
    ("_thnn_fused_lstm_cell_backward_impl", (t(b, h), None, dd(b, h), t(b, h), bf(b, 4*h), False), 23*b*h,
     16*b*h + 2*b*4*h, 2*b*4*h + 8*b*h),
    ("_thnn_fused_gru_cell", (t(b, 3*h), bf(b, 3*h), dd(b, h), None, None), 16*b*h, 6*b*3*h + 8*b*h, 6*8*b*h),
    ("_thnn_fused_gru_cell", (t(b, 3*h), bf(b, 3*h), dd(b, h), t(3*h), bf(3*h), t(99)), 22*b*h,
     6*b*3*h + 8*b*h + 6*3*h, 6*8*b*h),
    ("_thnn_fused_gru_cell_backward", (t(b, h), bf(b, 5*h), False), 16*b*h, 4*b*h + 2*b*5*h, 4*(2*3*b*h + b*h)),
    ("_thnn_fused_gru_cell_backward", (t(b, h), bf(b, 5*h), True), (16 + 6)*b*h, 4*b*h + 2*b*5*h,
     4*(2*3*b*h + b*h + 2*3*h)),
    # --- 8 bits
    ("_weight_int8pack_mm", (bf(m, k), byte(n, k), t(n)), 2*m*n*k, 2*m*k + n*k + 4*n, 2*m*n),
    ("_weight_int4pack_mm", (bf(m, k), int4(n, 9), 32, t(g, n, 2)), 2*m*n*k, 2*m*k + 4*n*9 + 8*g*n, 2*m*n),
    ("_weight_int4pack_mm_with_scales_and_zeros", (bf(m, k), int4(n, 9), 32, t(g, n), byte(g, n)), 2*m*n*k,
     2*m*k + 4*n*9 + 5*g*n, 2*m*n),
    ("_dyn_quant_matmul_4bit", (bf(b, m, k), byte(99), 32, k, n), 2*b*m*n*k, 2*b*m*k + 99, 2*b*m*n),
    ("_wrapped_quantized_linear_prepacked", (t(b, m, k), t(), int4(), byte(99), t(), int4(), n), 2*b*m*n*k,
     4*b*m*k + n*k + 4*n, 4*b*m*n),
    ("bitsandbytes::dequantize_4bit", (byte(18), t(2), 32, "nf4", (m, n), "torch.float16"), A, 18 + 8, 2*A),
    ("bitsandbytes::quantize_4bit", (bf(m, n), 32, "nf4", "uint8"), 2*A, 2*A, 18 + 4*2),
    ("bitsandbytes::dequantize_blockwise", (byte(m, n), t(2), dd(256), 32, "torch.float16"), A, A + 8 + 8*256, 2*A),
    ("bitsandbytes::quantize_blockwise", (bf(m, n), dd(256), 32), 2*A, 2*A + 8*256, A + 4*2),
    ("bitsandbytes::gemm_4bit", (bf(b, m, k), byte(39), (n, k), t(3), dd(16), 32), 2*b*m*n*k, 2*b*m*k + 39 + 12 + 128,
     2*b*m*n),
    ("bitsandbytes::int8_linear_matmul", (byte(b, m, k), bits(n, k)), 2*b*m*n*k, b*m*k + n*k, 4*b*m*n),
    ("bitsandbytes::int8_scaled_mm", (byte(b, m, k), bits(n, k), t(m), dd(n), bf(n), "torch.float32"), 2*b*m*n*k,
     b*m*k + n*k + 4*m + 10*n, 4*b*m*n),
    ("bitsandbytes::int8_mm_dequant", (int4(m, n), t(m), dd(n), None, bf(n)), 3*A, 4*A + 4*m + 10*n, 2*A),
    ("bitsandbytes::int8_vectorwise_quant", (bf(b, m, n), 0.0), 2*b*A, 2*b*A, b*A + 4*b*m),
    ("_C::static_scaled_fp8_quant", (byte(m, n), bf(m, n), t(1)), A, 2*A + 4, A),
    ("_C::dynamic_scaled_fp8_quant", (byte(m, n), bf(m, n), t(m)), 2*A, 2*A, A + 4*m),
    ("_C::cutlass_scaled_mm", (bf(m, n), byte(m, k), bits(k, n), t(m), dd(n), int4(n)), 2*m*n*k,
     m*k + k*n + 4*m + 12*n, 2*m*n),
    # a tensor behind the bias is a place for the result
    ("fbgemm::f8f8bf16_rowwise", (byte(b, m, k), bits(n, k), t(m), dd(n), int4(n), bf(m, n)), 2*b*m*n*k,
     b*m*k + n*k + 4*m + 12*n, 2*b*m*n),
    ("quantize_per_tensor", (bf(m, n), 0.1, 3, 12), 3*A, 2*A, A),
    ("quantize_per_channel", (bf(m, n), dd(m), int4(m), 0, 14), 3*A, 2*A + 12*m, 4*A),
    ("dequantize", (q(m, n),), 2*A, A, 4*A),
    ("fake_quantize_per_tensor_affine_cachemask", (bf(m, n), 0.1, 0, 0, 255), 5*A, 2*A, 3*A),
    ("fake_quantize_per_channel_affine_cachemask", (bf(m, n), t(m), dd(m), 0, 0, 255), 5*A, 2*A + 12*m, 3*A),
    ("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", (bf(m, n), t(1), ints(1), byte(1), 0, 255), 5*A,
     2*A + 13, 3*A),
    ("_fake_quantize_learnable_per_tensor_affine", (bf(m, n), t(1), dd(1), 0, 255, 1.0), 5*A, 2*A + 12, 2*A),
    ("_fake_quantize_learnable_per_tensor_affine_backward", (dd(m, n), bf(m, n), t(1), ints(1), 0, 255, 1.0), 12*A,
     10*A + 12, 2*A + 12),
    ("_fake_quantize_learnable_per_channel_affine", (bf(m, n), t(m), dd(m), 0, 0, 255, 1.0), 5*A, 2*A + 12*m, 2*A),
    ("_fake_quantize_learnable_per_channel_affine_backward", (dd(m, n), bf(m, n), t(m), ints(m), 0, 0, 255, 1.0), 12*A,
     10*A + 12*m, 2*A + 12*m),
    ("quantized::linear", (q(b, m, k), (q(n, k), t(n)), 0.1, 0), 2*b*m*n*k, b*m*k + 4*n + n*k, b*m*n),
    ("quantized::linear_relu", (q(m, k), (q(n, k),), 0.1, 0), 2*m*n*k, m*k + n*k, m*n),
    ("quantized::linear_dynamic", (t(m, k), (q(n, k), dd(n)), True), 2*m*n*k, 4*m*k + 8*n + n*k, 4*m*n),
    ("quantized::linear_dynamic_fp16", (t(m, k), (t(n, k), dd(n))), 2*m*n*k, 4*m*k + 8*n + 2*n*k, 4*m*n),
    # 8 x 13, kernels of 3 x 2, stride (2, 1), padding (1, 0), dilation (1, 3): 4 x 10 places
    ("quantized::conv2d", (q(b, 4, 8, 13), (q(h, 4, 3, 2), t(h), ((2, 1), (1, 0), (0, 0), (1, 3), 1, False)), 0.1, 0),
     2*b*h*40*4*6, b*4*104 + 4*h + h*4*6, b*h*40),
    # transposed, 2 groups: unpacked as (4, 2, 3, 2); 2 * 7 - 2 + 2 + 1 + 1 rows and 12 + 3 + 1 columns
    ("quantized::conv_transpose2d", (q(b, 4, 8, 13), (q(h, 2, 3, 2), t(h), ((2, 1), (1, 0), (1, 0), (1, 3), 2, True)),
     0.1, 0), 2*b*104*4*2*6, b*4*104 + 4*h + h*2*6, b*h*16*16),
    ("quantized::matmul", (q(m, k), byte(k, n), 0.1, 0), 2*m*n*k, m*k + k*n, m*n),
    ("quantized::matmul", (q(b, m, k), byte(b, k, n), 0.1, 0), 2*b*m*n*k, b*m*k + b*k*n, b*m*n),
    ("quantized::embedding_byte", ((byte(3, n),), ints(m), False), 2*m*n, 3*(n + 8) + 8*m, 4*m*n),
    ("onednn::qlinear_pointwise", (byte(b, m, k), 0.1, 0, q(k, n), dd(n), int4(n), dd(n), 0.1, 0, 6, "none", (), ""),
     2*b*m*n*k, b*m*k + 8*n + 8*n + k*n, 4*b*m*n),
    # two layers and directions of h: inputs of k and then of 2 h
    ("quantized_lstm", (bf(m, b, k), (t(4, b, h), t(4, b, h)), (), True, 2, 0.0, False, True, False, 12, True),
     2*m*b*2*4*h*(k + h + 2*h + h), 2*m*b*k + 2*4*4*b*h + 2*4*h*(k + h + 2*h + h) + 2*2*2*4*h*4, 2*m*b*2*h + 2*4*4*b*h),
    ("quantized_lstm", (bf(m, b, k), (t(1, b, h), t(1, b, h)), (), False, 1, 0.0, False, False, False, 5, True),
     2*m*b*4*h*(k + h), 2*m*b*k + 2*4*b*h + 2*4*h*(k + h), 2*m*b*h + 2*4*b*h),
    ("quantized_gru", (bf(m, b, k), t(1, b, h), (), True, 1, 0.0, False, False, False), 2*m*b*3*h*(k + h),
     2*m*b*k + 4*b*h + 3*h*(k + h) + 2*3*h*4, 2*m*b*h + 4*b*h),
    ("quantized::quantized_lstm_cell_dynamic", (bf(b, k), (t(b, h), dd(b, h)), None, None, t(4*h), dd(4*h)),
     2*b*4*h*(k + h), 2*b*k + 12*b*h + 12*4*h + 4*h*(k + h), 12*b*h),
    # out of 8 bits 2, into them 3
    *((f"quantized::{name}", (q(m, n),), (2 + flops + 3)*A, A, A) for name, flops in (("sigmoid", 4), ("hardswish", 3),
     ("elu", 3), ("celu", 3), ("leaky_relu", 1), ("softmax", 4))),
    ("quantized::relu6", (q(m, n),), 0, A, A),
    ("quantized::clamp", (q(m, n),), 0, A, A),
    ("quantized::add_relu", (q(m, n), int4(m, n), 0.1, 0), 8*A, 5*A, A),
    ("quantized::group_norm", (q(m, n), 2, None, dd(n), 1e-5, 0.1, 0), 11*A, A + 8*n, A),
    ("quantized::layer_norm", (q(m, n), (n,), t(n), None, 1e-5, 0.1, 0), 11*A, A + 4*n, A),
    ("quantized::instance_norm", (q(m, n), t(n), dd(n), 1e-5, 0.1, 0), 12*A, A + 12*n, A),
    ("quantized_max_pool2d", (q(b, 8, 13), (3, 2), (2, 3), (1, 0), (2, 1), True), 0, b*104, b*4*5),
    # --- optimizers and lists
    # weight decay 1 (Adam 2), maximize 1, scale 1; the scaled gradient is written back
    ("_fused_adamw_", (*ADAM, LARGEST, STEPS, t(), 0.9, 0.99, 0.1, 1e-8, True, True, dd(), bf()), 16*N,
     STATE + LARGEST_BYTES + 4*N + 12 + 4 + 8 + 2, STATE + LARGEST_BYTES + 4*N),
    ("_fused_adam_", (*ADAM, LARGEST, STEPS, 0.001, 0.9, 0.99, 0.1, 1e-8, False, False, None, bf()), 15*N,
     STATE + 4*N + 12 + 2, STATE),
    # the list of the largest is there and not in use
    ("_fused_adamw_", (*ADAM, LARGEST, STEPS, 0.001, 0.9, 0.99, 0.0, 1e-8, False, True, None, None), 14*N,
     STATE + 4*N + 12, STATE),
    # decay, momentum, its Nesterov form, maximize and scale: 2 + 2 + 3 + 2 + 1 + 1
    ("_fused_sgd_", (PARAMETERS, GRADIENTS, FIRST_STATE, 0.1, 0.9, t(), 0.0, True, True, False, dd(), bf()), 11*N,
     (2 + 4 + 8)*N + 4 + 8 + 2, (2 + 8 + 4)*N),
    # the first step fills the buffers
    ("_fused_sgd_", (PARAMETERS, GRADIENTS, FIRST_STATE, 0.0, 0.9, 0.1, 0.0, False, False, True, None, None), 2*N,
     (2 + 4)*N, (2 + 8)*N),
    ("_fused_sgd_", (PARAMETERS, GRADIENTS, FIRST_STATE, 0.0, 0.9, 0.1, 0.0, True, False, True, None, None), 4*N,
     (2 + 4)*N, (2 + 8)*N),
    ("_fused_sgd_", (PARAMETERS, GRADIENTS, (), 0.1, 0.0, 0.1, 0.0, True, False, False, None, None), 4*N, (2 + 4)*N,
     2*N),
    ("_fused_adagrad_", (PARAMETERS, GRADIENTS, FIRST_STATE, STEPS, t(), 0.1, 0.1, 1e-8, True, None, None),
     (7 + 2 + 1)*N, (2 + 8 + 4)*N + 12 + 4, (2 + 8)*N),
    ("_fused_adagrad_", (PARAMETERS, GRADIENTS, FIRST_STATE, STEPS, 0.001, 0.1, 0.0, 1e-8, False, None, None), 7*N,
     (2 + 8 + 4)*N + 12, (2 + 8)*N),
    ("_amp_foreach_non_finite_check_and_unscale_", (GRADIENTS, t(), dd()), N, 4*N + 12, 4*N + 4),
    ("_amp_update_scale_", (t(), int4(1), dd(), 2.0, 0.5, 2000), 1, 4 + 4 + 8, 4 + 4),
    # one state: momentum 4, decay 1
    ("bitsandbytes::optimizer_update_32bit", ("momentum", bf(m), t(m), dd(m), None, None, 0.0, 0.0, 0.9, 0.99, 0.0,
     0.0, 1e-8, 0.1, 1, 0.001, 1.0, False), 5*m, (2 + 4 + 8)*m, (4 + 8)*m),
    ("bitsandbytes::optimizer_update_32bit", ("rmsprop", bf(m), t(m), dd(m), None, None, 0.0, 0.0, 0.9, 0.99, 0.0, 0.0,
     1e-8, 0.0, 1, 0.001, 1.0, False), 7*m, (2 + 4 + 8)*m, (4 + 8)*m),
    # g values of 8 bits have one scale; the maps of 256 values are of unlike types
    ("bitsandbytes::optimizer_update_8bit_blockwise", ("adam", bf(m), t(m), byte(m), bits(m), 0.9, 0.99, 0.0, 0.0,
     1e-8, 1, 0.001, dd(256), bf(256), t(g), dd(g), 0.1, 1.0, False), (13 + 1 + 2*2)*m,
     (2 + 4 + 1 + 1)*m + 10*256 + 12*g, (4 + 1 + 1)*m + 12*g),
    ("bitsandbytes::optimizer_update_8bit_blockwise", ("adagrad", bf(m), t(m), byte(m), None, 0.9, 0.99, 0.0, 0.0,
     1e-8, 1, 0.001, dd(256), None, t(g), None, 0.0, 1.0, False), (7 + 2)*m, (2 + 4 + 1)*m + 8*256 + 4*g,
     (4 + 1)*m + 4*g),
    # lists: each tensor, with its own number; one tensor for all of them is read once
    ("_foreach_add", (PARAMETERS, GRADIENTS, 0.5), 2*N, 6*N, 4*N),
    ("_foreach_mul_", (PARAMETERS, dd()), N, 2*N + 8, 2*N),
    ("_foreach_zero_", (PARAMETERS,), 0, 0, 2*N),
    ("_foreach_copy_", (PARAMETERS, GRADIENTS, False), 0, 4*N, 2*N),
    ("_foreach_max", (PARAMETERS,), N, 2*N, 4),
    ("_foreach_clone", (PARAMETERS,), 0, 2*N, 2*N),
    ("_foreach_norm", (PARAMETERS, 2, 6), N, 2*N, 8),
    # --- other packages
    *((f"_C::{name}", (t(m, n), bf(m, 2*n)), flops*A, 4*A, 4*A) for name, flops in (("silu_and_mul", 5),
     ("mul_and_silu", 5), ("gelu_and_mul", 6), ("gelu_tanh_and_mul", 11), ("fatrelu_and_mul", 1), ("gelu_new", 10),
     ("gelu_fast", 9), ("gelu_quick", 4))),
    ("_C::rms_norm", (t(m, n), bf(m, n), dd(n), 1e-6), 4*A, 2*A + 8*n, 4*A),
    ("_C::fused_add_rms_norm", (t(m, n), bf(m, n), dd(n), 1e-6), 5*A, 6*A + 8*n, 6*A),
    ("_C::rms_norm_static_fp8_quant", (byte(m, n), bf(m, n), dd(n), t(1), 1e-6), 5*A, 2*A + 8*n + 4, A),
    # m tokens, 3 and 2 heads of 8 of which 6 are rotated; a row of the table a token, then a smaller table
    ("_C::rotary_embedding", (ints(m), bf(m, 24), t(m, 16), 8, dd(99, 6), True), 3*m*5*6,
     8*m + 2*m*18 + 4*m*12 + 8*m*6, 2*m*18 + 4*m*12),
    ("_C::rotary_embedding", (ints(m), bf(m, 24), None, 8, dd(99, 8), True), 3*m*24, 8*m + 2*m*24 + 8*m*8, 2*m*24),
    # 4 slots for the first 4 of 5 tokens; keys of 2 x 8 and values of 2 x 6
    ("_C_cache_ops::reshape_and_cache", (bf(m, 2, 8), t(m, 2, 6), bf(9), dd(9), ints(g)), 0, 2*g*16 + 4*g*12 + 8*g,
     2*g*16 + 8*g*12),
    ("_moe_C::topk_softmax", (t(m, b), int4(m, b), ints(m, b), bf(m, n)), 4*A, 2*A, (4 + 4 + 8)*m*b),
    ("_moe_C::moe_sum", (bf(m, g, n), t(m, n)), g*A, 2*g*A, 4*A),
    ("LigerRMSNormFunction", (bf(b, m, n), dd(n), 1e-6), 4*b*A, 2*b*A + 8*n, 2*b*A + 4*b*m),
    ("FusedRMSNormAffineFunction", (bf(m, n), None, 1e-6), 3*A, 2*A, 2*A + 4*m),
    ("LigerLayerNormFunction", (bf(b, m, n), dd(n), t(n), 1e-6), 7*b*A, 2*b*A + 12*n, 2*b*A + 4*2*b*m),
    ("ScaledMaskedSoftmax", (bf(m, n), bits(m, n), 0.5), 5*A, 3*A, 2*A),
    ("ScaledSoftmax", (bf(m, n), 0.5), 5*A, 2*A, 2*A),
    ("LigerSiLUMulFunction", (bf(m, n), t(m, n)), 5*A, 6*A, 2*A),
    ("LigerGELUMulFunction", (bf(m, n), t(m, n)), 11*A, 6*A, 2*A),
    ("LigerSiLUMulFunctionBackward", (bf(m, n),), 11*A, 6*A, 4*A),
    ("LigerRopeFunction", (bf(b, h, m, n), t(b, c, m, n), dd(m, n), int4(m, n)), 3*b*(h + c)*A,
     2*b*h*A + 4*b*c*A + 12*A, 2*b*h*A + 4*b*c*A),
    ("LigerCrossEntropyFunction", (bf(m, n), ints(m)), 8*A, 2*A + 8*m, 2*A + 4),
    # a causal convolution of b sequences of k, n channels, with width 4
    ("DaoAILab::_causal_conv1d_fwd_cpp", (bf(b, n, k), t(n, 4), dd(n), int4(b, k), t(b, n, 3), t(b, n, k), dd(b, n, 3),
     True), 2*b*n*k*4, 2*b*n*k + 16*n + 8*n + 4*b*k + 12*b*n, 4*b*n*k + 24*b*n),
    ("DaoAILab::_causal_conv1d_bwd_cpp", (bf(b, n, k), t(n, 4), dd(n), t(b, n, k), int4(b, k), t(b, n, 3), dd(b, n, 3),
     bf(b, n, k), t(n, 4), dd(n), dd(b, n, 2), True), 6*b*n*k*4, 6*b*n*k + 16*n + 8*n + 4*b*k + 12*b*n + 24*b*n,
     2*b*n*k + 16*n + 8*n + 16*b*n),
    ("DaoAILab::_causal_conv1d_bwd_cpp", (bf(b, n, k), t(n, 4), None, t(b, n, k), None, None, None, bf(b, n, k),
     t(n, 4), None, None, False), 4*b*n*k*4, 6*b*n*k + 16*n, 2*b*n*k + 16*n),
    ("DaoAILab::_causal_conv1d_update_cpp", (bf(b, n), t(b, n, 3), dd(n, 4), bf(n), t(b, n), True, int4(b), ints(b)),
     2*b*n*4, 2*b*n + 12*b*n + 32*n + 2*n + 12*b, 4*b*n + 12*b*n),
    ("SelectiveScanFn", (bf(b, n, k), t(b, n, k), dd(n, 4), bf(b, 4, k), t(b, 4, k), t(n), None, None, True),
     b*n*k*(9*4 + 1), 6*b*n*k + 8*n*4 + 6*b*4*k + 4*n, 2*b*n*k),
    ("SelectiveScanFn", (bf(b, n, k), t(b, n, k), dd(n, 4), bf(b, 4, k), t(b, 4, k), None, dd(b, n, k), None, True),
     b*n*k*(9*4 + 1), (6 + 8)*b*n*k + 8*n*4 + 6*b*4*k, 2*2*b*n*k),
    # tables of width n, g bags each, m indices with weights; then tables that are not on the device
    ("fbgemm::split_embedding_codegen_lookup_sgd_function", (t(0), bf(999), t(0), t(0, 0), int4(2), ints(2), int4(4),
     3*n, n, ints(3), 20, ints(m), int4(3*g + 1), 0, dd(m)), 2*m*n, 2*m*n + 8*m + 4*(3*g + 1) + 8*m, 4*3*g*n),
    ("fbgemm::split_embedding_codegen_lookup_sgd_function", (t(0), bf(9), t(0), t(0, 0), int4(2), ints(2), int4(2), n,
     n, ints(3), 20, ints(m), int4(g + 1), 0, None), m*n, 2*9 + 8*m + 4*(g + 1), 4*g*n),
    ("fbgemm::permute_pooled_embs", (bf(m, n), ints(g), int4(g)), 0, 2*A + 12*g, 2*A),
    ("fbgemm::bounds_check_indices", (ints(g), int4(m), dd(k), 0), 0, 8*g + 4*m + 8*k, 0),
    ("fbgemm::asynchronous_complete_cumsum", (int4(m, n),), A, 4*A, 4*m*(n + 1)),
    # --- maps and reductions
    # a number that the trace dropped changes no tensor of numbers with a fraction; no bound is no operand
    ("mul", (bf(m, n), None), A, 2*A, 2*A),
    ("clamp", (ints(m, n), None, ints(1)), 0, 8*A + 8, 8*A),
    ("pow", (2, dd()), 1, 8, 8),
    ("_masked_scale", (bf(m, n), t(m, n), 2.0), A, 6*A, 2*A),
    # the multiplier is 1 more, and only where it is one
    *((f"{name}", (bf(m, n), t(n), factor), cost*A, 2*A + 4*n, 4*A) for name in ("add", "sub", "subtract",
     "rsub") for factor, cost in ((1, 1), (3, 2), (0.5, 2))),
    *((f"{name}", (dd(m, n), bf(n), t(1), factor), cost*A, 8*A + 2*n + 4, 8*A) for name in ("addcmul_",
     "addcdiv_") for factor, cost in ((1, 2), (0.5, 3))),
    ("abs", (t(m, n, dtype="complex64"),), A, 8*A, 4*A),
    ("mul_", (bf(m, n), t(n)), A, 2*A + 4*n, 2*A),
    ("div_", (bf(m, n), t(n)), A, 2*A + 4*n, 2*A),
    ("div", (ints(m, n), int4(n), None), A, 8*A + 4*n, 8*A),
    ("div", (ints(m, n), int4(n)), A, 8*A + 4*n, 4*A),
    ("div", (ints(m, n), int4(n), dd(0)), A, 8*A + 4*n, 8*A),
    ("where", (bits(m, 1), bf(n), t()), 0, m + 2*n + 4, 2*A),
    ("where", (bits(m, 1), bf(n), dd(1), t(0)), 0, m + 2*n + 8, 4*A),
    ("masked_fill", (bf(n), bits(m, 1), dd()), 0, 2*n + m + 8, 2*A),
    ("masked_fill_", (bf(m, n), bits(n), dd()), 0, 2*A + n + 8, 2*A),
    # an input scale, the gradient and what was saved
    ("elu_backward", (bf(m, n), 1.0, 1.0, 1.0, False, t(m, n)), 4*A, 6*A, 2*A),
    ("gelu_backward", (bf(m, n), t(m, n), "none"), 11*A, 6*A, 4*A),
    ("native_dropout", (bf(m, n), 0.1, True), A, 2*A, 3*A),
    ("glu", (bf(m, 2*n), -1), 5*A, 4*A, 2*A),
    ("glu_backward", (bf(m, n), t(m, 2*n), -1), 8*A, 2*A + 8*A, 8*A),
    ("log_sigmoid_forward", (bf(m, n),), 3*A, 2*A, 4*A),
    ("log_sigmoid_backward", (bf(m, n), t(m, n), dd(m, n)), 5*A, 14*A, 4*A),
    ("polygamma", (2, bf(m, n)), A, 2*A, 2*A),
    ("polygamma_", (bf(m, n), 2), A, 2*A, 2*A),
    ("mvlgamma", (bf(m, n), 5), 15*A, 2*A, 2*A),
    ("angle", (t(m, n, dtype="complex128"),), A, 16*A, 8*A),
    ("angle", (bf(m, n),), 0, 2*A, 2*A),
    ("frexp", (bf(m, n),), 0, 2*A, 2*A + 4*A),
    ("_prelu_kernel_backward", (bf(m, n), t(m, n), dd(n)), 2*A, 6*A + 8*n, 2*4*A),
    ("rrelu_with_noise", (bf(m, n), t(m, n), 0.1, 0.3, True, None), A, 2*A, 2*A + 4*A),
    ("rrelu_with_noise", (bf(m, n), t(m, n)), A, 2*A, 2*A),
    ("rrelu_with_noise_backward", (bf(m, n), t(m, n), dd(m, n), 0.1, 0.3, True, False), A, 10*A, 4*A),
    ("renorm", (bf(m, n), 2, 0, 1.0), 2*A, 2*A, 2*A),
    # g segments of the m rows of each of b
    ("segment_reduce", (bf(b, m, n), "sum", ints(b, g), None, None, 1, False, None), b*A, 2*b*A + 8*b*g, 2*b*g*n),
    ("segment_reduce", (bf(m, n), "sum", None, None, int4(g + 1)), A, 2*A + 4*(g + 1), 2*g*n),
    ("_segment_reduce_backward", (bf(g, n), t(g, n), dd(m, n), "max", None, int4(g + 1), 0, None), A,
     6*g*n + 8*A + 4*(g + 1), 8*A),
    ("histogram", (bf(m, n), 9, None, t(m, n), False), A, 6*A, 2*(9 + 10)),
    ("histogram", (bf(m, n), t(9), dd(m, n), False), A, 10*A + 4*9, 2*(8 + 9)),
    ("isin", (bf(m, n), t(k), False, False), 0, 2*A + 4*k, A),
    ("nansum", (bf(m, n), (0,), False, None), A, 2*A, 2*n),
    ("sum", (bf(m, n), 6), A, 2*A, 4),
    ("sum", (bf(m, n), (1,), False, 6, dd(0)), A, 2*A, 8*m),
    ("amax", (bf(b, m, n), (0, 2), False), b*A, 2*b*A, 2*m),
    ("amin", (bf(m, n), (0,), False, t(0)), A, 2*A, 4*n),
    ("min", (bf(m, n), 0, False), A, 2*A, 10*n),
    ("max", (bf(m, n), t(n)), 0, 2*A + 4*n, 4*A),
    ("median", (bf(m, n),), A, 2*A, 2),
    ("mode", (bf(m, n), 1, False), A, 2*A, 10*m),
    ("aminmax", (bf(m, n), 0, False), A, 2*A, 2*2*n),
    ("argmax", (bf(m, n), 0, False), A, 2*A, 8*n),
    ("any", (bf(m, n),), A, 2*A, 1),
    ("all", (bf(m, n), 0, False), A, 2*A, n),
    ("all", (bf(m, n), t(0)), A, 2*A, 1),
    ("var", (bf(m, n), True), A, 2*A, 2),
    ("std", (bf(m, n), (0,), 1, False), A, 2*A, 2*n),
    ("var_mean", (bf(m, n), (0,), 1, False), A, 2*A, 2*2*n),
    ("std_mean", (bf(m, n), True), A, 2*A, 2*2),
    ("linalg_vector_norm", (bf(m, n), 2, None, False, 6), A, 2*A, 4),
    ("norm", (bf(m, n), 2, 6), A, 2*A, 4),
    ("norm", (bf(m, n), 2, (0,), False), A, 2*A, 2*n),
    ("norm", (bf(m, n), 2, (0,), False, 6), A, 2*A, 4*n),
    ("logsumexp", (bf(m, n), (0,), False), 3*A, 2*A, 2*n),
    ("count_nonzero", (bf(m, n), (0,)), A, 2*A, 8*n),
    ("cumprod", (bf(m, n), 0, 6), A, 2*A, 4*A),
    ("cumsum", (bf(m, n), 0, None, dd(0)), A, 2*A, 8*A),
    ("cumsum_", (int4(m, n), 0, None), A, 4*A, 4*A),
    ("cummax", (bf(m, n), 0), A, 2*A, 10*A),
    ("logcumsumexp", (bf(m, n), 0), 3*A, 2*A, 2*A),
    ("histc", (bf(m, n), 9, 0, 1), A, 2*A, 2*9),
    ("sort", (bf(m, n), 0, False), 0, 2*A, 10*A),
    ("argsort", (bf(m, n), 0, False), 0, 2*A, 8*A),
    ("topk", (bf(m, n), 3, 0, True, True), 0, 2*A, 10*3*n),
    ("topk", (bf(m, n), 3), 0, 2*A, 10*3*m),
    ("multinomial", (bf(m, n), 3, False, None), 0, 2*A, 8*3*m),
    ("searchsorted", (bf(k), t(m, n), True, False, None, None), 0, 2*k + 4*A, 4*A),
    ("bucketize", (t(m, n), bf(k), True, False), 0, 2*k + 4*A, 4*A),
    ("kthvalue", (bf(m, n), 3, 0, False), 0, 2*A, 10*n),
    ("kthvalue", (bf(m, n), 3), 0, 2*A, 10*m),
    ("equal", (bf(m, n), t(m, n)), A, 6*A, 0),
    ("trace", (bf(m, n),), m, 2*m, 2),
    # --- movement
    ("tril_", (bf(m, n), 0), 0, 2*m*n, 2*m*n),
    ("expand_copy", (bf(m, 1), (b, -1, n), False), 0, 2*m, 2*b*m*n),
    ("stack", ((bf(m, n), t(m, n)), 0), 0, 6*m*n, 8*m*n),
    ("cat", ((bf(m, n), bf(b, n)), 0, dd(0)), 0, 2*(m + b)*n, 8*(m + b)*n),
    ("_chunk_cat", ((bf(m, n), bf(b, n)), 0, g, t(g, 99)), 0, 2*(m + b)*n, 4*g*99),
    ("split_with_sizes_copy", (bf(m, n), (2, 3), 0), 0, 2*m*n, 2*m*n),
    ("repeat", (bf(m, n), (b, 1, g)), 0, 2*m*n, 2*m*n*b*g),
    ("_local_scalar_dense", (dd(),), 0, 8, 0),
    # the last dimension comes first
    ("constant_pad_nd", (bf(b, k, n), (1, 2, 3, 5), 0), 0, 2*b*k*n, 2*b*(k + 8)*(n + 3)),
    ("constant_pad_nd", (bf(k, n), (1, 2), 0), 0, 2*k*n, 2*k*(n + 3)),
    # a row and two columns are cut off
    ("constant_pad_nd", (bf(m, n), (1, -2, -1, 0), 0), 0, 2*(m - 1)*(n - 2), 2*(m - 1)*(n - 1)),
    ("reflection_pad2d", (bf(b, m, n), (1, 2, 3, 5)), 0, 2*b*m*n, 2*b*(m + 8)*(n + 3)),
    ("replication_pad1d_backward", (bf(b, m + 3), t(b, m), (1, 2)), b*(m + 3), 2*b*(m + 3), 4*b*m),
    ("select_backward", (bf(n), (m, n), 0, 1), 0, 2*n, 2*m*n),
    ("slice_scatter", (bf(m, n), t(b, n), 0, 1, 3, 1), 0, 2*(m - b)*n + 4*b*n, 2*m*n),
    # kernel (3, 2), dilation (2, 1), padding (1, 2), stride (1, 3): (7 + 2 - 4) x ((11 + 4 - 2) // 3 + 1) places
    ("im2col", (bf(b, c, n, k), (3, 2), (2, 1), (1, 2), (1, 3)), 0, 2*b*c*n*k, 2*b*c*6*5*5),
    ("im2col", (bf(b, c, n, k), (2,), (1,), (0,), (1,)), 0, 2*b*c*n*k, 2*b*c*4*6*10),
    ("col2im", (bf(b, c*6, 5*5), (n, k), (3, 2), (2, 1), (1, 2), (1, 3)), b*c*6*25, 2*b*c*6*25, 2*b*c*n*k),
    ("repeat_interleave", (bf(m, n), g, 1, None), 0, 2*m*n, 2*m*n*g),
    ("diag_embed", (bf(m, n), -2, 0, 1), 0, 2*m*n, 2*m*(n + 2)*(n + 2)),
    ("diag_embed", (bf(m, n),), 0, 2*m*n, 2*m*n*n),
    # a row and a number are matrices of one row
    ("block_diag", ((bf(m, n), bf(k), bf()),), 0, 2*(m*n + k + 1), 2*(m + 2)*(n + k + 1)),
    # --- indices
    ("embedding", (bf(99, n), ints(b, m), -1, False, False), 0, 2*b*m*n + 8*b*m, 2*b*m*n),
    ("index_select", (bf(b, 9, n), 1, ints(m)), 0, 2*b*m*n + 8*m, 2*b*m*n),
    ("index_select", (bf(9), None, ints(m)), 0, 2*m + 8*m, 2*m),
    ("gather", (bf(9, n), 0, ints(m, n)), 0, 2*m*n + 8*m*n, 2*m*n),
    ("take", (bf(9, n), ints(b, m)), 0, 2*b*m + 8*b*m, 2*b*m),
    # indices for the first and third dimension
    ("index", (bf(9, m, 9, n), (ints(g, 1), None, int4(k))), 0, 2*g*k*m*n + 8*g + 4*k, 2*g*k*m*n),
    ("index_put_", (table, (rows,), bf(m, n), True), m*n, 2*m*n + 8*m + 8*m*n, 8*m*n),
    ("index_put_", (table, (bits(9),), bf(2, n), False), 0, 2*2*n + 9, 8*2*n),
    ("index", (bf(9, m), (ints(g), int4(g))), 0, 2*g + 12*g, 2*g),
    ("index_put", (table, (rows,), bf(m, n), False), 0, 8*9*n + 2*m*n + 8*m, 8*9*n),
    ("index_put", (table, (rows,), bf(m, n), True), m*n, 8*9*n + 2*m*n + 8*m, 8*9*n),
    ("index_add_", (table, 0, rows, bf(m, n), 3), 2*m*n, 8*m + 2*m*n + 8*m*n, 8*m*n),
    ("index_add_", (table, 0, rows, bf(m, n)), m*n, 8*m + 2*m*n + 8*m*n, 8*m*n),
    ("index_add", (table, 0, rows, bf(m, n), 3), 2*m*n, 8*9*n + 8*m + 2*m*n, 8*9*n),
    ("index_add", (table, 0, rows, bf(m, n)), m*n, 8*9*n + 8*m + 2*m*n, 8*9*n),
    ("index_copy_", (table, 0, rows, bf(m, n)), 0, 8*m + 2*m*n, 8*m*n),
    ("index_fill_", (dd(b, 9, n), 1, rows, 0.5), 0, 8*m, 8*b*m*n),
    ("index_copy", (table, 0, rows, bf(m, n)), 0, 8*9*n + 8*m + 2*m*n, 8*9*n),
    ("index_fill", (table, 0, rows, 0.5), 0, 8*9*n + 8*m, 8*9*n),
    ("scatter_", (table, 0, int4(m, n), bf(8, n)), 0, 4*m*n + 2*m*n, 8*m*n),
    ("scatter_", (table, 0, int4(m, n), 0.5, None), m*n, (4 + 8)*m*n, 8*m*n),
    ("scatter", (table, 0, int4(m, n), bf(8, n)), 0, 8*9*n + 6*m*n, 8*9*n),
    ("scatter_add_", (table, 0, int4(m, n), bf(8, n)), m*n, (4 + 2 + 8)*m*n, 8*m*n),
    ("scatter_reduce", (table, 0, int4(m, n), bf(8, n), "sum", True), m*n, 8*9*n + 6*m*n, 8*9*n),
    ("embedding_dense_backward", (bf(b, m, n), ints(b, m), 99, -1, False), b*m*n, 2*b*m*n + 8*b*m, 2*99*n),
    ("masked_scatter", (bf(m, n), bits(n), bf(k)), 0, 2*m*n + n, 2*m*n),
    ("masked_scatter_backward", (bf(m, n), bits(n), (2, n)), 0, 2*2*n + n, 2*2*n),
    ("put_", (table, int4(m), bf(m), True), m, (4 + 2 + 8)*m, 8*m),
    ("put_", (table, int4(m), bf(m)), 0, (4 + 2)*m, 8*m),
    ("put", (table, int4(m), bf(m), True), m, 8*9*n + 6*m, 8*9*n),
    ("put", (table, int4(m), bf(m)), 0, 8*9*n + 6*m, 8*9*n),
    ("index_reduce", (table, 0, rows, bf(m, n), "amax", True), m*n, 8*9*n + 8*m + 2*m*n, 8*9*n),
    ("index_reduce_", (table, 0, rows, bf(m, n), "amax", True), m*n, 8*m + 10*m*n, 8*m*n),
    # bags: m indices into 99 rows of n, g offsets; mode 1 is the mean, 2 the maximum
    ("_embedding_bag", (bf(99, n), ints(m), int4(g), False, 0, False, None, False, -1), m*n, 2*m*n + 8*m + 4*g, 2*g*n),
    ("_embedding_bag", (bf(99, n), ints(m), int4(g), False, 1, False, dd(m), True, -1), 2*m*n + (g - 1)*n,
     2*m*n + 16*m + 4*g, 2*(g - 1)*n),
    ("_embedding_bag_forward_only", (bf(99, n), ints(b, m), int4(0), False, 2, False, None, False, -1), 0,
     2*b*m*n + 8*b*m, 2*b*n),
    ("_embedding_bag_dense_backward", (bf(g, n), ints(m), int4(m), dd(g), byte(k), 99, False, 1, None, -1), 2*m*n,
     2*g*n + (8 + 4)*m + 8*g + k, 2*99*n),
    # the offsets are not read
    ("_embedding_bag_backward", (bf(g, n), ints(m), ints(98), int4(m), dd(g), byte(k), 99, False, 1, False, t(m), -1),
     3*m*n, 2*g*n + (8 + 4)*m + 8*g + k + 4*m, 2*99*n),
    ("_embedding_bag_backward", (bf(g, n), ints(m), ints(98), int4(m), dd(g), byte(k), 99, False, 1, True, t(m), -1),
     2*m*n, 2*g*n + (8 + 4 + 4)*m, 2*m*n),
    ("_embedding_bag_per_sample_weights_backward", (dd(g, n), bf(99, n), ints(m), ints(98), int4(m), 0, -1), 2*m*n,
     8*g*n + 2*m*n + 12*m, 8*m),
    ("embedding_sparse_backward", (bf(m, n), ints(m), 99, -1, False), 0, 0, 0),
    # --- pools and resizing
    ("max_pool2d_with_indices", (IMAGE, *POOL, False), 0, 2*PIXELS, (2 + 8)*FLOOR),
    # a last window that would start behind the image is left out, be that in its padding: 4 of 12, 2 of 7
    ("avg_pool1d", (bf(c, 12), (2,), (3,), (0,), True, True), c*4*2, 2*c*12, 2*c*4),
    ("avg_pool1d", (bf(c, 7), (2,), (4,), (1,), True, True), c*2*2, 2*c*7, 2*c*2),
    ("avg_pool1d", (bf(c, 8), (2,), (4,), (1,), True, True), c*3*2, 2*c*8, 2*c*3),
    ("mkldnn_max_pool2d", (IMAGE, *POOL, True), 0, 2*PIXELS, 2*CEIL),
    ("max_pool3d_with_indices", (bf(b, 6, 8, 13), (2, 4, 3), (), 0, 1, False), 0, 2*b*6*8*13, 10*b*3*2*4),
    ("max_pool2d_with_indices_backward", (t(b, c, 3, 4), IMAGE, *POOL, False, int4(b, c, 3, 4)), FLOOR, 8*FLOOR,
     2*PIXELS),
    # windows of 3 x 2, rows (8 + 2 - 3) // 2 + 1
    ("avg_pool2d", (IMAGE, (3, 2), (2, 3), (1, 0), False, True, None), b*c*4*4*6, 2*PIXELS, 2*b*c*16),
    ("avg_pool3d", (bf(b, 6, 8, 13), (2, 4, 3), (), 0, False, True, None), b*3*2*4*24, 2*b*6*8*13, 2*b*24),
    ("avg_pool2d_backward", (t(b, c, 4, 4), IMAGE, (3, 2), (2, 5), (1, 0), False, True, None), b*c*16*6, 4*b*c*16,
     2*PIXELS),
    ("_adaptive_avg_pool2d", (IMAGE, (3, 2)), PIXELS, 2*PIXELS, 2*b*c*6),
    ("_adaptive_avg_pool2d_backward", (t(b, c, 3, 2), IMAGE), PIXELS, 4*b*c*6, 2*PIXELS),
    ("adaptive_max_pool2d", (IMAGE, (3, 2)), 0, 2*PIXELS, 10*b*c*6),
    ("adaptive_max_pool2d_backward", (t(b, c, 3, 2), IMAGE, int4(b, c, 3, 2)), b*c*6, 8*b*c*6, 2*PIXELS),
    ("max_unpool2d", (bf(b, c, 3, 2), ints(b, c, 3, 2), (8, 13)), 0, 10*b*c*6, 2*PIXELS),
    ("fractional_max_pool2d", (IMAGE, (2, 2), (3, 5), t(b, c, 2)), 0, 2*PIXELS + 4*b*c*2, 10*b*c*15),
    ("fractional_max_pool2d_backward", (t(b, c, 3, 5), IMAGE, (2, 2), (3, 5), int4(b, c, 3, 5)), b*c*15, 8*b*c*15,
     2*PIXELS),
    # 1.5 * 8 and 1.2 * 13, rounded down
    ("upsample_nearest2d", (IMAGE, None, (1.5, 1.2)), 0, 2*PIXELS, 2*b*c*12*15),
    ("upsample_bilinear2d", (IMAGE, (), False, (1.5, 1.2)), 9*b*c*180, 2*PIXELS, 2*b*c*180),
    ("upsample_linear1d", (bf(c, 13), (17,), False, None), 3*c*17, 2*c*13, 2*c*17),
    ("upsample_trilinear3d", (bf(b, c, 2, 3, 5), (3, 5, 7), True), 21*b*c*105, 2*b*c*30, 2*b*c*105),
    ("upsample_bicubic2d", (IMAGE, (9, 17), False), 35*b*c*153, 2*PIXELS, 2*b*c*153),
    ("upsample_bicubic2d_backward", (bf(b, c, 9, 17), (9, 17), (b, c, 8, 13), False), 35*b*c*153, 2*b*c*153, 2*PIXELS),
    ("upsample_nearest1d_backward", (bf(b, c, 17), (17,), (b, c, 13)), b*c*17, 2*b*c*17, 2*b*c*13),
    ("upsample_nearest1d", (bf(b, c, 13), (17,), None), 0, 2*b*c*13, 2*b*c*17),
    ("_upsample_nearest_exact1d", (bf(b, c, 13), (17,), None), 0, 2*b*c*13, 2*b*c*17),
    ("_upsample_nearest_exact2d", (IMAGE, (9, 17), None), 0, 2*PIXELS, 2*b*c*153),
    ("upsample_nearest3d", (bf(b, c, 2, 3, 5), (3, 5, 7)), 0, 2*b*c*30, 2*b*c*105),
    ("_upsample_nearest_exact3d", (bf(b, c, 2, 3, 5), (3, 5, 7)), 0, 2*b*c*30, 2*b*c*105),
    # a result of 3 x 5 from a grid of pairs; bilinear, nearest, bicubic
    ("grid_sampler_2d", (IMAGE, t(b, 3, 5, 2), 0, 0, False), 7*b*c*15, 2*b*c*60 + 4*b*30, 2*b*c*15),
    ("grid_sampler_2d", (IMAGE, t(b, 3, 5, 2), 1, 0, False), 0, 2*b*c*15 + 4*b*30, 2*b*c*15),
    ("grid_sampler_2d", (IMAGE, t(b, 3, 5, 2), 2, 0, False), 35*b*c*15, 2*PIXELS + 4*b*30, 2*b*c*15),
    ("cudnn_grid_sampler", (IMAGE, t(b, 3, 5, 2)), 7*b*c*15, 2*b*c*60 + 4*b*30, 2*b*c*15),
    ("grid_sampler_3d", (bf(b, c, 2, 8, 13), t(b, 3, 5, 7, 3), 0, 0, True), 15*b*c*105, 4*PIXELS + 4*b*315, 2*b*c*105),
    ("grid_sampler_2d_backward", (dd(b, c, 3, 5), IMAGE, t(b, 3, 5, 2), 2, 0, False, (False, True)), 35*b*c*15,
     8*b*c*15 + 2*PIXELS + 4*b*30, 4*b*30),
    ("grid_sampler_3d_backward", (dd(b, c, 3, 5, 7), bf(b, c, 2, 8, 13), t(b, 3, 5, 7, 3), 0, 0, False, (True, False)),
     15*b*c*105, 8*b*c*105 + 4*PIXELS + 4*b*315, 4*PIXELS),
    # cuDNN's has the gradient last
    ("cudnn_grid_sampler_backward", (IMAGE, t(b, 3, 5, 2), dd(b, c, 3, 5)), 2*7*b*c*15, 8*b*c*15 + 2*b*c*60 + 4*b*30,
     2*PIXELS + 4*b*30),
    # rows of 8 to 4: 3 + 4 + 4 + 3 taps, done first, for 6 rows; the 6 rows to 3 likewise: 3 + 4 + 3, for 4 columns
    ("_upsample_bilinear2d_aa", (bf(b, c, 6, 8), (3, 4), False, None, None), b*c*2*(6*14 + 4*10), 2*b*c*48, 2*b*c*12),
    # only columns; cubic (twice as wide) and Lanczos filters (three times)
    ("_upsample_bilinear2d_aa", (bf(b, c, 6, 8), (3, 8), False, None, None), b*c*2*8*10, 2*b*c*48, 2*b*c*24),
    ("_upsample_bicubic2d_aa", (bf(b, c, 6, 8), (6, 4), False, None, None), b*c*2*6*(5 + 7 + 7 + 5), 2*b*c*48,
     2*b*c*24),
    ("_upsample_lanczos2d_aa", (bf(b, c, 6, 8), (6, 4), False, None, None), b*c*2*6*(7 + 8 + 8 + 7), 2*b*c*48,
     2*b*c*24),
    # twice as large: the filter does not get narrower than two elements
    ("_upsample_bilinear2d_aa", (bf(b, c, 6, 4), (6, 8), False, None, None), b*c*2*6*(1 + 6*2 + 1), 2*b*c*24, 2*b*c*48),
    # a factor of 0.4 is a scale of 2.5, and 3 of 8 without one 2.67: 4 + 5 + 4 and 4 + 6 + 4 taps
    ("_upsample_bilinear2d_aa", (bf(b, c, 8, 8), (3, 3), False, 0.4, None), b*c*2*(8*14 + 3*13), 2*b*c*64, 2*b*c*9),
    ("_upsample_bilinear2d_aa", (bf(b, c, 8, 8), (3, 3), False, 0.0, None), b*c*2*(8*14 + 3*14), 2*b*c*64, 2*b*c*9),
    ("_upsample_bilinear2d_aa_backward", (bf(b, c, 3, 3), (3, 3), (b, c, 8, 8), False, None, 0.4), b*c*2*(8*13 + 3*14),
     2*b*c*9, 2*b*c*64),
    # a factor of 1.9: the taps of 7 of 4, of which the first has one
    ("_upsample_bilinear2d_aa", (bf(b, c, 6, 4), (6, 7), False, None, 1.9), b*c*2*6*(1 + 6*2), 2*b*c*24, 2*b*c*42),
    # corners aligned: of one element the first; of two a scale of 7
    ("_upsample_bilinear2d_aa", (bf(b, c, 6, 8), (6, 1), True, None, None), b*c*2*6, 2*b*c*48, 2*b*c*6),
    ("_upsample_bilinear2d_aa", (bf(b, c, 6, 8), (6, 2), True, None, None), b*c*2*6*(8 + 4), 2*b*c*48, 2*b*c*12),
    # corners aligned: a scale of 7 / 3 at centers 7 / 6, 3.5, 35 / 6, 49 / 6: taps 0-3, 1-6, 4-8, 6-8
    ("_upsample_bilinear2d_aa", (bf(b, c, 6, 8), (6, 4), True, None, None), b*c*2*6*(4 + 5 + 4 + 2), 2*b*c*48,
     2*b*c*24),
    ("_upsample_bilinear2d_aa_backward", (bf(b, c, 6, 4), (6, 4), (b, c, 6, 8), True, None, None),
     b*c*2*6*(4 + 5 + 4 + 2), 2*b*c*24, 2*b*c*48),
    # --- regions, ragged tensors, Fourier transforms
    # k regions of 3 x 2, 2 x 2 samples each
    ("torchvision::roi_align", (bf(b, c, 99, 99), ROIS, 0.5, 3, 2, 2, True), k*c*6*(8*4 + 1), 2*4*k*c*6*4 + 4*k*5,
     2*k*c*6),
    ("torchvision::_roi_align_backward", (bf(k, c, 3, 2), ROIS, 0.5, 3, 2, b, c, 8, 13, 2, True), k*c*6*(8*4 + 1),
     2*k*c*6 + 4*k*5, 2*PIXELS),
    ("torchvision::ps_roi_align", (bf(b, c*6, 99, 99), ROIS, 0.5, 3, 2, 3), k*c*6*(8*9 + 1), 2*4*k*c*6*9 + 4*k*5,
     (2 + 4)*k*c*6),
    ("torchvision::_ps_roi_align_backward", (bf(k, c, 3, 2), ROIS, int4(k, c, 3, 2), 0.5, 3, 2, 3, b, c, 8, 13),
     k*c*6*(8*9 + 1), 2*k*c*6 + 4*k*5 + 4*k*c*6, 2*PIXELS),
    ("torchvision::roi_pool", (IMAGE, ROIS, 0.5, 3, 2), 0, 2*k*c*6 + 4*k*5, (2 + 4)*k*c*6),
    ("torchvision::_roi_pool_backward", (bf(k, c, 3, 2), ROIS, int4(k, c, 3, 2), 0.5, 3, 2, b, c, 8, 13), k*c*6,
     2*k*c*6 + 4*k*5 + 4*k*c*6, 2*PIXELS),
    # 7 channels out of 3, kernels of 3 x 2 at 4 x 5 places, with and without a mask
    ("torchvision::deform_conv2d", (IMAGE, t(n, c, 3, 2), dd(b, 12, 4, 5), t(b, 6, 4, 5), dd(n), 2, 3, 1, 0, 1, 1, 1,
     1, True), 2*b*n*20*c*6, 2*PIXELS + 4*n*c*6 + 8*b*240 + 4*b*120 + 8*n, 2*b*n*20),
    ("torchvision::deform_conv2d", (IMAGE, t(n, c, 3, 2), dd(b, 12, 4, 5), t(b, 6, 4, 5), None, 2, 3, 1, 0, 1, 1, 1, 1,
     False), 2*b*n*20*c*6, 2*PIXELS + 4*n*c*6 + 8*b*240, 2*b*n*20),
    ("torchvision::_deform_conv2d_backward", (t(b, n, 4, 5), IMAGE, t(n, c, 3, 2), dd(b, 12, 4, 5), bf(b, 6, 4, 5),
     dd(n), 2, 3, 1, 0, 1, 1, 1, 1, True), 2*2*b*n*20*c*6, 4*b*n*20 + 2*PIXELS + 4*n*c*6 + 8*b*240 + 2*b*120,
     2*PIXELS + 4*n*c*6 + 8*b*240 + 2*b*120 + 8*n),
    ("torchvision::_deform_conv2d_backward", (t(b, n, 4, 5), IMAGE, t(n, c, 3, 2), dd(b, 12, 4, 5), bf(b, 6, 4, 5),
     dd(n), 2, 3, 1, 0, 1, 1, 1, 1, False), 2*2*b*n*20*c*6, 4*b*n*20 + 2*PIXELS + 4*n*c*6 + 8*b*240,
     2*PIXELS + 4*n*c*6 + 8*b*240 + 8*n),
    # k rows of n behind each other in g sequences of at most m
    ("_jagged_to_padded_dense_forward", (bf(k, n), (int4(g + 1),), (m,), 0.0), 0, 2*k*n + 4*(g + 1), 2*g*m*n),
    ("_padded_dense_to_jagged_forward", (bf(g, m, n), (int4(g + 1),), k), 0, 2*k*n + 4*(g + 1), 2*k*n),
    ("_nested_from_padded_tensor", (bf(g, m, n), int4(g + 1), t(0), None, t(0), t(9), k), 0, 2*k*n + 4*(g + 1), 2*k*n),
    ("_transform_bias_rescale_qkv", (bf(b, m, 6), t(6), 2), b*m*8, 2*b*m*6 + 4*6, 2*b*m*6),
    # 64 complex points in 8 x 8, two of them; half as much for real ones
    ("_fft_c2c", (t(b, 8, 8, dtype="complex64"), (1, 2), 0, True), 5*b*64*6, 8*b*64, 8*b*64),
    ("_fft_c2c", (t(b, 8, dtype="complex64"), (1,), 0, True, t(0, dtype="complex128")), 5*b*8*3, 8*b*8, 16*b*8),
    ("_fft_c2c", (t(b, 1, dtype="complex64"), (1,), 0, True), 0, 8*b, 8*b),
    ("_fft_r2c", (t(b, 8, m), (1,), 0, True), 5*b*8*m*3//2, 4*b*8*m, 8*b*5*m),
    ("_fft_c2c", (t(b, 2, dtype="complex64"), (1,), 0, True), 5*b*2, 16*b, 16*b),
    ("_fft_r2c", (t(b, 8), (1,), 0, True, t(0, dtype="complex128")), 5*b*8*3//2, 4*b*8, 16*b*5),
    ("_fft_c2r", (t(b, 5, dtype="complex64"), (1,), 0, 8, dd(0)), 5*b*8*3//2, 8*b*5, 8*b*8),
    # --- new tensors
    ("fill_", (bf(m, n), t()), 0, 4, 2*m*n),
    ("uniform_", (bf(m, n), 0.0, 1.0, None), 0, 0, 2*m*n),
    ("bernoulli_", (bf(m, n), t(n), None), 0, 4*n, 2*m*n),
    ("poisson", (bf(m, n), None), 0, 2*m*n, 2*m*n),
    ("zeros", ((), 15, 0, None, False), 0, 0, 2),
    ("ones", ((m, n), None, None, None, None), 0, 0, 4*m*n),
    ("rand", ((m, n), None, 7, 0, None, False), 0, 0, 8*m*n),
    ("randn", ((m, n), bf(0)), 0, 0, 2*m*n),
    ("full", ((m, n), 1, None, None, None, None), 0, 0, 8*m*n),
    ("full", ((m, n), True, 15, None, None, None), 0, 0, 2*m*n),
    ("zeros_like", (bf(m, n), 7, None, None, None, None), 0, 0, 8*m*n),
    ("ones_like", (bf(m, n), None, None, None, None, None), 0, 0, 2*m*n),
    ("full_like", (bf(m, n), 1, 7, None, None, None, None), 0, 0, 8*m*n),
    ("randint_like", (bf(m, n), 9, 7, None, None, None, None), 0, 0, 8*m*n),
    ("randint_like", (bf(m, n), 1, 9, 6, None, None, None, None), 0, 0, 4*m*n),
    ("new_zeros", (bf(b), (m, n), 7, None, None, None), 0, 0, 8*m*n),
    ("new_ones", (bf(b), (m, n), None, None, None, None), 0, 0, 2*m*n),
    ("new_full", (bf(b), (m, n), 1, 7, None, None, None), 0, 0, 8*m*n),
    ("new_full", (bf(b), (m, n), 1, None, None, None, None), 0, 0, 2*m*n),
    ("scalar_tensor", (0.5, 7, None, None, None), 0, 0, 8),
    ("arange", (3, 17, 4, None, None, None, None), 0, 0, 8*4),
    ("arange", (3, 17, 15, None, None, None), 0, 0, 2*14),
    ("arange", (3.0, None, None, None, None), 0, 0, 4*3),
    ("arange", (17, 3, None, None, None, None), 0, 0, 0),
    ("linspace", (0, 1, n, 15, None, None, None), 0, 0, 2*n),
    ("logspace", (0, 1, n, 10.0, 7, None, None, None), 0, 0, 8*n),
    ("linspace", (0, 1, n, bf(0)), 0, 0, 2*n),
    ("eye", (m, 15, None, None, None), 0, 0, 2*m*m),
    ("eye", (m, n, 6, None, None, None), 0, 0, 4*m*n),
    ("randint", (9, (m, n), None, None, None, None), 0, 0, 8*m*n),
    ("randint", (1, 9, (m, n), 3, None, None, None), 0, 0, 4*m*n),
    ("randperm", (n, 4, None, None, None), 0, 0, 8*n),
    # 5 + 4 + 3 + 2 + 1 places with a row and a column each
    ("tril_indices", (5, 5, 0, 4, None, None, None), 0, 0, 8*2*15),
    ("triu_indices", (5, 5), 0, 0, 8*2*15),
    ("normal", (0.5, t(m, n), None), 2*m*n, 4*m*n, 4*m*n),
    ("binomial", (bf(m, n), t(m, n), None), 0, 6*m*n, 2*m*n),
    ("_standard_gamma", (bf(m, n), None), 0, 2*m*n, 2*m*n),
    # --- products
    ("bmm", (bf(b, m, k), t(b, k, n), dd(0)), 2*b*m*n*k, 2*b*m*k + 4*b*k*n, 8*b*m*n),
    ("_int_mm", (byte(m, k), bits(k, n)), 2*m*n*k, m*k + k*n, 4*m*n),
    ("baddbmm", (dd(n), bf(b, m, k), t(b, k, n), 1, 1), 2*b*m*n*k, 8*n + 2*b*m*k + 4*b*k*n, 2*b*m*n),
    ("_addmm_activation", (dd(n), bf(m, k), t(k, n), 1, 1, True), 2*m*n*k, 8*n + 2*m*k + 4*k*n, 2*m*n),
    ("addmm", (dd(n), bf(m, k), t(k, n), 6, 0, 1), 2*m*n*k, 2*m*k + 4*k*n, 4*m*n),
    ("addbmm", (dd(n), bf(b, m, k), t(b, k, n), 1, 1), 2*b*m*n*k, 8*n + 2*b*m*k + 4*b*k*n, 2*m*n),
    ("mv", (bf(m, k), t(k), dd(0)), 2*m*k, 2*m*k + 4*k, 8*m),
    ("linear", (bf(k), t(n, k), dd(n)), 2*n*k, 2*k + 4*n*k + 8*n, 2*n),
    # the third has a dimension of its own, and nothing to sum
    ("_trilinear", (bf(m), t(m), dd(n), (1,), (1,), (0,), (0,), 1), 2*m, 6*m + 8*n, 2*n),
    ("vdot", (bf(k), t(k)), 2*k, 6*k, 2),
    ("addmv", (dd(m), bf(m, k), t(k), 1, 1), 2*m*k, 8*m + 2*m*k + 4*k, 2*m),
    ("addr", (dd(n), bf(m), t(n), 1, 1), 2*m*n, 8*n + 2*m + 4*n, 8*m*n),
    ("mkl::_mkl_linear", (bf(m, k), t(99), t(n, k), dd(n), m), 2*m*n*k, 2*m*k + 4*n*k + 8*n, 2*m*n),
    ("mkldnn::_linear_pointwise", (bf(m, k), t(n, k), dd(n), "relu", (), ""), 2*m*n*k, 2*m*k + 4*n*k + 8*n, 2*m*n),
    ("mkldnn::_linear_pointwise", (bf(m, k), bf(m, n), t(n, k), dd(n), "add"), 2*m*n*k, 2*m*k + 2*m*n + 4*n*k + 8*n,
     2*m*n),
    ("matmul", (bf(k), t(b, k, n)), 2*b*n*k, 2*k + 4*b*k*n, 2*b*n),
    ("matmul", (bf(b, m, k), t(k)), 2*b*m*k, 2*b*m*k + 4*k, 2*b*m),
    ("_scaled_mm", (byte(m, k), bits(k, n), t(m, 1), dd(1, n), bf(n), t(1), 6, False), 2*m*n*k,
     m*k + k*n + 4*m + 8*n + 2*n + 4, 4*m*n),
    ("_scaled_mm_v2", (byte(m, k), bits(k, n), (t(m),), (0,), (0,), (dd(n), t()), (1,), (0,), bf(n), 6, (), True),
     2*m*n*k, m*k + k*n + 4*m + 8*n + 4 + 2*n, 4*m*n),
    ("_scaled_grouped_mm_v2", (byte(m, k), bits(g, k, n), (t(m),), (0,), (0,), (dd(g, n),), (1,), (0,), int4(g),
     bf(g, n), 6, (), False), 2*m*n*k, m*k + g*k*n + 4*m + 8*g*n + 4*g + 2*g*n, 4*m*n),
    # columns in groups; matrices of their own; the shared dimension in groups
    ("_grouped_mm", (bf(g, m, k), t(k, n), int4(g), None, None), 2*m*n*k, 2*g*m*k + 4*k*n + 4*g, 2*m*n),
    ("_grouped_mm", (bf(g, m, k), t(g, k, n), None, None, 6), 2*g*m*n*k, 2*g*m*k + 4*g*k*n, 4*g*m*n),
    ("_scaled_grouped_mm", (Tensor((m, k), "float8_e4m3fn"), bits(k, n), t(m), dd(n), int4(g), None, None, None,
     False), 2*m*n*k, m*k + k*n + 4*m + 8*n + 4*g, 2*g*m*n),
    # bilinear: (b, m, ., .), (n, m, k) and (b, ., ., k); the sum over k needs the third, that over m does not
    ("_trilinear", (bf(b, m), t(n, m, k), dd(b, k), (1, 3), (0,), (1, 2), (2, 3), 1), 2*b*n*m*k + 2*b*n*k,
     2*b*m + 4*n*m*k + 8*b*k, 2*b*n),
    # two of four elements are stored
    ("_sparse_semi_structured_linear", (bf(b, m, 2*k), t(n, k), byte(n, g), dd(n), "relu", 6), 2*b*m*n*k,
     2*b*m*2*k + 4*n*k + n*g + 8*n, 4*b*m*n),
    ("_sparse_semi_structured_mm", (bf(m, k), byte(m, g), t(2*k, n), 6), 2*m*n*k, 2*m*k + m*g + 4*2*k*n, 4*m*n),
    ("_sparse_semi_structured_addmm", (dd(m), bf(m, k), byte(m, g), t(2*k, n), 1, 1, 6), 2*m*n*k,
     8*m + 2*m*k + m*g + 4*2*k*n, 4*m*n),
    # --- convolutions
    ("convolution", (PLANES, TURNED, dd(10), STRIDE, PADDING, DILATION, True, (1, 0), 2), TURNED_FLOPS,
     IMAGE_BYTES + TURNED_BYTES + 8*10, TURNED_RESULT),
    ("mkldnn_convolution", (PLANES, KERNEL, dd(c_out), PADDING, STRIDE, DILATION, 1), CONVOLVED,
     IMAGE_BYTES + KERNEL_BYTES + 8*c_out, RESULT),
    ("mkldnn::_convolution_pointwise", (PLANES, KERNEL, None, PADDING, STRIDE, DILATION, 1, "relu"), CONVOLVED,
     IMAGE_BYTES + KERNEL_BYTES, RESULT),
    ("cudnn_convolution", (PLANES, KERNEL, PADDING, STRIDE, DILATION, 1, True, False, True), CONVOLVED,
     IMAGE_BYTES + KERNEL_BYTES, RESULT),
    ("cudnn_convolution", (PLANES, KERNEL, dd(c_out), PADDING, STRIDE, DILATION, 1, True, False), CONVOLVED,
     IMAGE_BYTES + KERNEL_BYTES + 8*c_out, RESULT),
    ("cudnn_convolution_transpose", (PLANES, TURNED, PADDING, (1, 0), STRIDE, DILATION, 2, True, False, True),
     TURNED_FLOPS, IMAGE_BYTES + TURNED_BYTES, TURNED_RESULT),
    ("miopen_convolution_transpose", (PLANES, TURNED, dd(10), PADDING, (1, 0), STRIDE, DILATION, 2, True, False),
     TURNED_FLOPS, IMAGE_BYTES + TURNED_BYTES + 8*10, TURNED_RESULT),
    ("cudnn_convolution_relu", (PLANES, KERNEL, dd(c_out), STRIDE, PADDING, DILATION, 1), CONVOLVED,
     IMAGE_BYTES + KERNEL_BYTES + 8*c_out, RESULT),
    ("cudnn_convolution_add_relu", (PLANES, KERNEL, dd(b, c_out, high, OUT_W), 1, bf(c_out), STRIDE, PADDING, DILATION,
     1), CONVOLVED, IMAGE_BYTES + KERNEL_BYTES + 8*PLACES*c_out + 2*c_out, RESULT),
    ("_conv_depthwise2d", (PLANES, KERNEL, (3, 2), dd(c_out), STRIDE, PADDING, DILATION), CONVOLVED,
     IMAGE_BYTES + KERNEL_BYTES + 8*c_out, RESULT),
    # without dilation two columns more
    ("_slow_conv2d_forward", (PLANES, KERNEL, (3, 2), None, STRIDE, PADDING), 2*b*high*(wide - 1)*c_out*c_in*6,
     IMAGE_BYTES + KERNEL_BYTES, 2*b*high*(wide - 1)*c_out),
    ("thnn_conv2d", (PLANES, KERNEL, (3, 2), None, STRIDE, PADDING, t(99)), 2*b*high*(wide - 1)*c_out*c_in*6,
     IMAGE_BYTES + KERNEL_BYTES, 2*b*high*(wide - 1)*c_out),
    ("slow_conv_transpose2d", (PLANES, TURNED, (3, 2), dd(5), STRIDE, PADDING, (0, 0), DILATION), TURNED_FLOPS,
     IMAGE_BYTES + TURNED_BYTES + 8*5, 2*b*5*15*14),
    ("slow_conv_transpose2d", (PLANES, TURNED, (3, 2), None, STRIDE, PADDING, (1, 0)), TURNED_FLOPS,
     IMAGE_BYTES + TURNED_BYTES, 2*b*5*16*12),
    # nobody asks for anything
    ("convolution_backward", (dd(b, c_out, high, OUT_W), PLANES, KERNEL, (c_out,), STRIDE, PADDING, DILATION, False,
     (0, 0), 1, (False, False, False)), 0, 0, 0),
    ("convolution_backward_overrideable", (dd(b, 10, 16, 14), PLANES, TURNED, STRIDE, PADDING, DILATION, True, (1, 0),
     2, (True, True, False)), 2*TURNED_FLOPS, 8*b*10*16*14 + IMAGE_BYTES + TURNED_BYTES, IMAGE_BYTES + TURNED_BYTES),
    ("_slow_conv2d_backward", (dd(b, c_out, high, OUT_W), PLANES, KERNEL, (3, 2), STRIDE, PADDING,
     (False, True, True)), CONVOLVED, 8*PLACES*c_out + IMAGE_BYTES, KERNEL_BYTES + 8*c_out),
    ("thnn_conv2d_backward", (dd(b, c_out, high, OUT_W), PLANES, KERNEL, (3, 2), STRIDE, PADDING, t(0), None, t(0)),
     CONVOLVED, 8*PLACES*c_out + KERNEL_BYTES, IMAGE_BYTES + 8*c_out),
    ("cudnn_convolution_backward", (PLANES, dd(b, c_out, high, OUT_W), KERNEL, PADDING, STRIDE, DILATION, 1, True,
     False, True, (True, True)), 2*CONVOLVED, 8*PLACES*c_out + IMAGE_BYTES + KERNEL_BYTES, IMAGE_BYTES + KERNEL_BYTES),
    ("miopen_convolution_backward", (PLANES, dd(b, c_out, high, OUT_W), KERNEL, PADDING, STRIDE, DILATION, 1, True,
     False, (False, True, True)), CONVOLVED, 8*PLACES*c_out + IMAGE_BYTES, KERNEL_BYTES + 8*c_out),
    ("cudnn_convolution_backward_input", ((b, c_in, tall, wide), dd(b, c_out, high, OUT_W), KERNEL, PADDING, STRIDE,
     DILATION, 1), CONVOLVED, 8*PLACES*c_out + KERNEL_BYTES, 8*b*c_in*tall*wide),
    ("cudnn_convolution_backward_weight", ((c_out, c_in, 3, 2), dd(b, c_out, high, OUT_W), PLANES, PADDING, STRIDE,
     DILATION, 1), CONVOLVED, 8*PLACES*c_out + IMAGE_BYTES, 8*c_out*c_in*6),
    # sequences: (9 + 2 - 3) // 2 + 1 places
    ("convolution", (bf(b, c_in, 9), t(c_out, c_in, 3), None, (2,), (1,), (1,), False, (0,), 1), 2*b*5*c_out*c_in*3,
     2*b*c_in*9 + 4*c_out*c_in*3, 2*b*5*c_out),
    ("miopen_convolution_backward_weight", ((c_out, c_in, 3), dd(b, c_out, 5), bf(b, c_in, 9), (1,), (2,), (1,), 1),
     2*b*5*c_out*c_in*3, 8*b*c_out*5 + 2*b*c_in*9, 8*c_out*c_in*3),
    # an image without a batch dimension
    ("convolution", (bf(c_in, tall, wide), KERNEL, None, STRIDE, PADDING, DILATION, False, (0, 0), 1), CONVOLVED//b,
     IMAGE_BYTES//b + KERNEL_BYTES, RESULT//b),
    # 11 + 2 - 3 + 1 steps
    ("conv_tbc", (bf(11, b, c_in), t(3, c_in, c_out), dd(c_out), 1), 2*11*b*c_out*3*c_in,
     2*11*b*c_in + 4*3*c_in*c_out + 8*c_out, 2*11*b*c_out),
    ("conv_tbc", (bf(11, b, c_in), t(3, c_in, c_out), dd(c_out)), 2*9*b*c_out*3*c_in,
     2*11*b*c_in + 4*3*c_in*c_out + 8*c_out, 2*9*b*c_out),
    # --- sparse matrices and graphs
    ("mm", (dd(m, k), coo(k, n)), 2*m*nnz, STORED + 8*m*k, 8*m*n),
    ("mv", (coo(m, k), dd(k)), 2*nnz, STORED + 8*k, 4*m),
    ("bmm", (coo(b, m, k), dd(b, k, n)), 2*nnz*n, STORED + 8*b*k*n, 4*b*m*n),
    ("addmm", (bf(m, n), coo(m, k), dd(k, n)), 2*nnz*n, 2*m*n + STORED + 8*k*n, 4*m*n),
    ("_sparse_addmm", (bf(m, n), coo(m, k), dd(k, n), 0, 1), 2*nnz*n, STORED + 8*k*n, 4*m*n),
    ("_sparse_mm_reduce_impl", (coo(m, k), dd(k, n), "mean"), 2*nnz*n, STORED + 8*k*n, 4*m*n),
    ("_sparse_mm_reduce_impl_backward", (coo(m, k), bf(m, n), dd(k, n), "sum", ints(1), (True, True)), 2*2*nnz*n,
     STORED + 2*m*n + 8*k*n, STORED + 8*k*n),
    ("_sparse_mm_reduce_impl_backward", (coo(m, k), bf(m, n), dd(k, n), "mean", ints(1), (False, True)), 2*nnz*n,
     STORED + 2*m*n, 8*k*n),
    ("sparse_sampled_addmm", (coo(m, n), bf(m, k), dd(k, n), 1, 1), 2*nnz*k, STORED + 2*m*k + 8*k*n, STORED),
    ("_sparse_softmax", (coo(m, n), 1, False), 4*nnz, STORED, STORED),
    ("_sparse_softmax_backward_data", (coo(m, n, elements=8), coo(m, n), 1, coo(m, n, elements=9)), 4*nnz,
     4*8 + 17 + STORED, STORED),
    ("_to_dense", (coo(m, n), 7, None), 0, STORED, 8*m*n),
    ("sparse_mask", (dd(m, n), coo(m, n)), 0, STORED, STORED),
    ("clone", (coo(m, n), None), 0, STORED, STORED),
    ("copy_", (coo(m, n, elements=9), coo(m, n), False), 0, STORED, STORED),
    ("expm1", (coo(m, n),), nnz, STORED, STORED),
    ("relu_", (coo(m, n),), 0, STORED, STORED),
    ("transpose", (coo(m, n), 0, 1), 0, 0, 0),
    # graph packages: rows of 6 segments, nnz stored elements
    ("pyg::segment_matmul", (bf(m, k), ints(g + 1), t(g, k, n)), 2*m*n*k, 2*m*k + 8*(g + 1) + 4*g*k*n, 2*m*n),
    ("pyg::grouped_matmul", ((bf(m, k), dd(g, n)), (t(k, n), t(n, k))), 2*m*n*k + 2*g*n*k,
     2*m*k + 8*g*n + 4*k*n + 4*n*k, 2*m*n + 8*g*k),
    ("torch_sparse::spmm_sum", (ints(1), int4(g + 1), ints(nnz), None, ints(2), ints(3), bf(b, k, n)), b*nnz*n,
     4*(g + 1) + 8*nnz + 2*b*k*n, 2*b*g*n),
    ("torch_sparse::spmm_mean", (ints(1), int4(g + 1), ints(nnz), bf(nnz), ints(2), ints(3), ints(6), bf(b, k, n)),
     2*b*nnz*n + b*g*n, 4*(g + 1) + 10*nnz + 2*b*k*n, 2*b*g*n),
    ("torch_sparse::spmm_max", (int4(g + 1), ints(nnz), bf(nnz), bf(b, k, n)), 2*b*nnz*n, 4*(g + 1) + 10*nnz + 2*b*k*n,
     (2 + 8)*b*g*n),
    # segments along the second of three dimensions
    ("torch_scatter::segment_sum_csr", (bf(b, m, n), ints(b, g + 1), None), b*m*n, 2*b*m*n + 8*b*(g + 1), 2*b*g*n),
    ("pyg::segment_max_csr", (bf(b, m, n), ints(b, g + 1), None), b*m*n, 2*b*m*n + 8*b*(g + 1), (2 + 8)*b*g*n),
    ("torch_scatter::scatter_sum", (bf(b, m, n), ints(m), 1, None, g), b*m*n, 2*b*m*n + 8*m, 2*b*g*n),
    ("pyg::scatter_min", (bf(b, m, n), ints(m), -2, None, g), b*m*n, 2*b*m*n + 8*m, (2 + 8)*b*g*n),
    ("torch_scatter::scatter_mean", (bf(b, m, n), ints(m), 1, t(b, k, n), None), b*m*n, 2*b*m*n + 8*m, 2*b*k*n),
    # --- more of other packages, and operators in common use
    ("flash_attn::_flash_attn_varlen_forward", (*[bf(m, h, n)]*3, int4(2), int4(2), m, m, 0.0, 0.5, False), 4*h*m*m*n,
     3*2*m*h*n + 16, 2*m*h*n + 4*m*h),
    ("FusedLayerNormAffineFunction", (bf(m, n), t(n), dd(n)), 7*A, 2*A + 12*n, 2*A + 8*m),
    ("vllm::rms_norm", (t(m, n), bf(m, n), dd(n), 1e-6), 4*A, 2*A + 8*n, 4*A),
    ("bitsandbytes::gemv_4bit", (bf(g, k), byte(39), (n, k), t(2), dd(16), 64), 2*g*n*k, 2*g*k + 39 + 8 + 128, 2*g*n),
    ("_C_cache_ops::reshape_and_cache_flash", (bf(m, 2, 8), t(m, 2, 6), bf(9), dd(9), ints(g)), 0,
     2*g*16 + 4*g*12 + 8*g, 2*g*16 + 8*g*12),
    ("torch_scatter::segment_max_csr", (bf(m, n), ints(g + 1), None), A, 2*A + 8*(g + 1), (2 + 8)*g*n),
    ("quantized::add", (q(m, n), int4(m, n), 0.1, 0), 8*A, 5*A, A),
    ("quantized::conv2d_relu", (q(b, 4, 9, 9), (q(6, 2, 3, 3), None, ((1, 1), (0, 0), (0, 0), (1, 1), 2, False)), 0.1,
     0), 2*b*6*49*2*9, b*4*81 + 6*2*9, b*6*49),
    ("fbgemm::permute_pooled_embs_auto_grad", (bf(m, n), ints(g), int4(g)), 0, 2*A + 12*g, 2*A),
    ("torch::autograd::CppNode<fbgemm_gpu::PermutePooledEmbsFunction<&fbgemm_gpu::permute_pooled_embs_gpu> >",
     (bf(m, n),), 0, 2*A, 2*A),
    # 2 tables of width n, g bags each, m indices
    ("fbgemm::split_embedding_codegen_lookup_adam_function", (t(0), t(1 << 20), t(0), t(0, 0), int4(2), ints(2),
     int4(3), 2*n, n, ints(3), 20, ints(m), ints(2*g + 1), 0, None), m*n, 4*m*n + 8*m + 8*(2*g + 1), 4*2*g*n),
    # a trace drops the name of Adam: two states; in 8 bits with a scale for 256 values each, and two maps
    *(("bitsandbytes::optimizer_update_32bit", (name, t(m), t(m), t(m), t(m), None, 0.0, 0.0, 0.9, 0.999, 0.0, 0.0,
     1e-8, 0.1, 1, 1e-3, 1.0, False), 14*m, 16*m, 12*m) for name in ("adam", None)),
    *(("bitsandbytes::optimizer_update_8bit_blockwise", (name, t(m), t(m), byte(m), byte(m), 0.9, 0.999, 0.0, 0.0,
     1e-8, 1, 1e-3, t(256), t(256), t(g), t(g), 0.0, 1.0, False), (13 + 2*2)*m, 10*m + 2*4*g + 2*1024,
     6*m + 2*4*g) for name in ("adam", None)),
    ("mkldnn_linear", (bf(m, k), t(n, k), None), 2*m*n*k, 2*m*k + 4*n*k, 2*m*n),
    ("_cudnn_rnn", (bf(m, b, k), (t(4*h, k), t(4*h, h), t(4*h), t(4*h)), 4, bf(999), t(1, b, h), dd(1, b, h), 2, h, 0,
     1, False, 0.0, True, False, (), None), 2*m*b*4*h*(k + h), 2*m*b*k + 2*999 + 12*b*h, 2*m*b*h + 12*b*h),
    ("mm", (bf(m, k), bf(k, n), 6), 2*m*n*k, 2*(m*k + k*n), 4*m*n),
    ("dot", (t(k), t(k)), 2*k, 8*k, 4),
    ("_softmax", (t(m, n, dtype="float16"), -1, True), 4*m*n, 2*m*n, 4*m*n),
    ("_fused_rms_norm_backward", (t(m, n), t(m, n), (n,), t(m, 1), t(n), (True, True)), (6 + 3)*m*n, 4*(2*m*n + m + n),
     4*(m*n + n)),
    ("cudnn_batch_norm", (t(b, n, m), t(n), t(n), t(n), t(n), True, 0.1, 1e-5), 7*b*n*m, 4*(b*n*m + 4*n),
     4*(b*n*m + 2*n + 2*n)),
    ("cudnn_batch_norm_backward", (t(b, n, m), t(b, n, m), t(n), t(n), t(n), t(n), t(n), 1e-5, t(99, dtype="uint8")),
     13*b*n*m, 4*(2*b*n*m + 5*n), 4*(b*n*m + 2*n)),
    ("mean", (bf(m, n), (-1,), True, 6), m*n, 2*m*n, 4*m),
    ("add_", (t(m, n), t(m, n), 1), m*n, 8*m*n, 4*m*n),
    ("mul", (ints(m, n), t(dtype="float64")), m*n, 8*m*n, 4*m*n),
    ("div", (ints(m), t(dtype="int64"), None), m, 8*m, 8*m),
    ("gelu", (t(m, n), "none"), 5*m*n, 4*m*n, 4*m*n),
    ("gelu", (t(m, n), "tanh"), 10*m*n, 4*m*n, 4*m*n),
    ("gelu_backward", (t(m, n), t(m, n), "tanh"), 18*m*n, 8*m*n, 4*m*n),
    ("_to_copy", (t(m, n), 15, None, None, None, False, None), 0, 4*m*n, 2*m*n),
    ("view", (t(m, n), (m*n,)), 0, 0, 0),
    ("empty", ((m, n), 6, 0, None, False, None), 0, 0, 0),
    ("zero_", (t(m, n),), 0, 0, 4*m*n),
    ("_foreach_add_", ((t(m), t(n)), (t(m), t(n)), 1), m + n, 8*(m + n), 4*(m + n)),
    ("_foreach_addcdiv_", ((t(m),), (t(m),), (t(m),), (-0.1,)), 3*m, 12*m, 4*m),
    # --- kernels of torch.compile: a map is its operators over the loop; a reduction loops over rows and columns
    ("triton_poi_fused__unsafe_view_mul_silu_2", (WIDE, bf(32768, 2048), LOOP), (1 + 4)*LOOP, 2*LOOP, 2*LOOP),
    ("triton_red_fused_add_mean_mul_pow_rsqrt_0", (WIDE, bf(2048), WIDE, 32768, 2048), 5*LOOP, 2*LOOP + 2*2048, 2*LOOP),
    # a table is read where it is looked up, and written where it is touched
    ("triton_poi_fused_embedding_0", (ints(2, 16), bf(50_000, 64), bf(2, 16, 64), 2*16*64), 0, 2*16*8 + 2*16*64*2,
     2*16*64*2),
    ("triton_poi_fused_embedding_dense_backward_view_4", (ints(64), bf(64, 32), t(50_000, 32), 64*32), 64*32,
     64*8 + 64*32*2, 64*32*4),
    # of a tensor that a kernel takes a part of an element a place counts at most: the whole stack made 48.4 MB of 2.36
    ("triton_poi_fused__to_copy_select_t_view_5", (t(5, 768, 3152), bf(768, 768), 768*768), 0, 768*768*4, 768*768*2),
    # which rows of a smaller one are read is not in the launch; one of the loop's own size is read
    ("triton_poi_fused_mul_slice_3", (bf(4096, 64), *[bf(8, 4096, 768)]*2, 8*4096*768), 8*4096*768, 2*8*4096*768,
     2*8*4096*768),
    ("triton_poi_fused_mul_3", (bf(4096, 64), *[bf(8, 4096, 768)]*2, 8*4096*768), 8*4096*768, 2*8*4096*768 + 2*4096*64,
     2*8*4096*768),
    # behind ten operators of a name a part may be hidden
    ("triton_poi_fused__to_copy_abs_add_clone_cos_div_exp_log_mul_neg_0", (bf(5, *WIDE.shape), WIDE, LOOP), 8*LOOP,
     2*LOOP, 2*LOOP),
    ("triton_poi_fused_abs_add_clone_cos_div_exp_log_mul_neg_0", (bf(5, *WIDE.shape), WIDE, LOOP), 8*LOOP, 10*LOOP,
     2*LOOP),
    ("triton_tem_fused_addmm_relu_3", (bf(g, k), t(k, n), dd(n), bf(g, n)), 2*g*n*k, 2*g*k + 4*k*n + 8*n, 2*g*n),
    ("triton_tem_fused_flex_attention_1", (bf(b, h, m, n), t(b, 1, k, n), dd(b, 1, k, n), t(b, h, m), bf(b, h, m, n)),
     4*b*h*m*k*n, 2*b*h*m*n + 12*b*k*n + 4*b*h*m, 2*b*h*m*n),
    ("triton_tem_fused_flex_attention_backward_1", (bf(b, h, m, n), t(b, 1, k, n), dd(b, 1, k, n),
     *[bf(b, h, m, n)]*2), 10*b*h*m*k*n, 4*b*h*m*n + 12*b*k*n, 2*b*h*m*n),
]  # fmt: skip

#: The CPU keeps statistics in the type of scale and shift, else of the input.
ON_CPU: list[Example] = [
    ("native_layer_norm", (bf(m, n), (n,), None, dd(n), 1e-5), 6 * m * n, 2 * m * n + 8 * n, 2 * m * n + 16 * m),
    ("native_group_norm", (bf(*x), t(c), None, b, c, m, g, 1e-5), 6 * X, 2 * X + 4 * c, 2 * X + 8 * b * g),
    ("native_group_norm", (bf(*x), None, dd(c), b, c, m, g, 1e-5), 6 * X, 2 * X + 8 * c, 2 * X + 16 * b * g),
    ("native_batch_norm", (bf(*x), t(c), None, None, None, True, 0.1, 1e-5), 6 * X, 2 * X + 4 * c, 2 * X + 8 * c),
    ("native_batch_norm", (bf(*x), None, dd(c), None, None, True, 0.1, 1e-5), 6 * X, 2 * X + 8 * c, 2 * X + 16 * c),
]


@pytest.mark.parametrize(
    ("operator", "arguments", "flops", "read", "written", "device"),
    [*((*row, None) for row in EXAMPLES), *((*row, "cpu") for row in ON_CPU)],
)
def test_worked_example(
    operator: str, arguments: tuple[Argument, ...], flops: int, read: int, written: int, device: str | None
) -> None:
    assert figures(operator, arguments, device) == (flops, read, written)


# ---------------------------------------------------------------------------------------------------------- attention

# b sequences of s positions and hq heads of d; t_k positions and hk heads of keys, values of width w
hq, hk, s, t_k, d, w = 6, 3, 5, 7, 11, 13
SCORES = b * hq * s * t_k
Q, K, V = 2 * b * hq * s * d, 2 * b * hk * t_k * d, 2 * b * hk * t_k * w
OUT, LSE = 2 * b * hq * s * w, 4 * b * hq * s
#: heads before positions, positions before heads, sequences behind each other
FIRST = (bf(b, hq, s, d), bf(b, hk, t_k, d), bf(b, hk, t_k, w))
THIRD = (bf(b, s, hq, d), bf(b, t_k, hk, d), bf(b, t_k, hk, w))
PACKED = (bf(b * s, hq, d), bf(b * t_k, hk, d), bf(b * t_k, hk, w))
#: The gradient is of float64, so that no other tensor is as large.
GRAD, GRAD_THIRD, GRAD_PACKED = dd(b, hq, s, w), dd(b, s, hq, w), dd(b * s, hq, w)
SAVED, SAVED_THIRD, SUMS = bf(b, hq, s, w), bf(b, s, hq, w), t(b, hq, s)
#: A bias that all sequences share, and the ends of the sequences
BIAS, BIAS_BYTES = t(hq, s, t_k), 4 * hq * s * t_k
ENDS, ENDS_K, ENDS_BYTES = int4(b + 1), ints(b + 1), (4 + 8) * (b + 1)
FORWARD, BACKWARD = 2 * SCORES * (d + w), 2 * SCORES * (3 * d + 2 * w)
READ, READ_BACK, WRITTEN_BACK = Q + K + V, 4 * OUT + Q + K + V + OUT + LSE, Q + K + V

#: operator, arguments, bytes read, bytes written, causal
FORWARDS: list[tuple[str, tuple[Argument, ...], int, int, bool]] = [
    # the three scales of 8 bits come before dropout and causality; each may be missing
    ("_scaled_dot_product_flash_attention", (*FIRST, t(), None, None, 0.0, True, False), READ, OUT + LSE, True),
    ("_scaled_dot_product_flash_attention", (*FIRST, 0.0, True, False), READ, OUT + LSE, True),
    ("_scaled_dot_product_flash_attention", (*FIRST, t(), t(), t(), 0.0, True, False), READ, OUT + LSE, True),
    ("_scaled_dot_product_flash_attention_for_cpu", (*FIRST, 0.0, True, BIAS), READ + BIAS_BYTES, OUT + LSE, True),
    ("_scaled_dot_product_efficient_attention", (*FIRST, BIAS, False, 0.0, True), READ + BIAS_BYTES, OUT, True),
    ("_scaled_dot_product_cudnn_attention", (*FIRST, None, True, 0.0, False, True), READ, OUT + LSE, False),
    ("_scaled_dot_product_fused_attention_overrideable", (*FIRST, BIAS, 0.0, True, False), READ + BIAS_BYTES,
     OUT + LSE, True),
    ("_flash_attention_forward", (*PACKED, ENDS, ENDS_K, s, t_k, 0.0, False, True), READ + ENDS_BYTES, OUT + LSE,
     False),
    ("_efficient_attention_forward", (*THIRD, BIAS, None, None, None, None, 0.0, 1, False), READ + BIAS_BYTES, OUT,
     True),
    ("_efficient_attention_forward", (*PACKED, None, ENDS, ENDS_K, s, t_k, 0.0, 2, True), READ + ENDS_BYTES, OUT + LSE,
     True),
    # behind each other and yet with a batch dimension
    ("_efficient_attention_forward", (bf(1, b*s, hq, d), bf(1, b*t_k, hk, d), bf(1, b*t_k, hk, w), None, ENDS, ENDS_K,
     s, t_k, 0.0, 0, True), READ + ENDS_BYTES, OUT + LSE, False),
    ("_cudnn_attention_forward", (*FIRST, BIAS, None, None, s, t_k, False, 0.0, True, False), READ + BIAS_BYTES, OUT,
     True),
    ("flash_attn::_flash_attn_forward", (*THIRD, 0.0, 0.5, True, -1), READ, OUT + LSE, True),
    ("flash_attn::_flash_attn_varlen_forward", (*PACKED, ENDS, ENDS_K, s, t_k, 0.0, 0.5, True, -1), READ + ENDS_BYTES,
     OUT + LSE, True),
    ("_vllm_fa2_C::varlen_fwd", (*PACKED, bf(b*s, hq, w), ENDS, ENDS_K, None, None, None, None, s, t_k, 0.0, 0.5,
     False, True, -1), READ + ENDS_BYTES, OUT + LSE, True),
    # 8-bit inputs and their three scales give a 16-bit result
    ("flash_attn_3::fwd", (*(Tensor(each.shape, "float8_e4m3fn") for each in THIRD), *[None]*17, t(1), t(2), t(3), 0.5,
     True), READ//2 + 4*(1 + 2 + 3), OUT + LSE, True),
    ("_vllm_fa3_C::fwd", (*PACKED, None, None, None, dd(b*s, hq, w), ENDS, ENDS_K, None, None, None, s, t_k, *[None]*9,
     0.5, False), READ + ENDS_BYTES, 4*OUT + LSE, False),
    ("flash_attn_3::_flash_attn_forward", THIRD, READ, OUT + LSE, False),
]  # fmt: skip
BACKWARDS: list[tuple[str, tuple[Argument, ...], int, int, bool]] = [
    ("_scaled_dot_product_flash_attention_backward", (GRAD, *FIRST, SAVED, SUMS, None, None, s, t_k, 0.0, True, ints(),
     ints()), READ_BACK, WRITTEN_BACK, True),
    ("_scaled_dot_product_flash_attention_for_cpu_backward", (GRAD, *FIRST, SAVED, SUMS, 0.0, True, BIAS),
     READ_BACK + BIAS_BYTES, WRITTEN_BACK, True),
    ("_scaled_dot_product_efficient_attention_backward", (GRAD, *FIRST, BIAS, SAVED, SUMS, ints(), ints(), 0.0,
     (True, True, True, False), False), READ_BACK + BIAS_BYTES, WRITTEN_BACK, False),
    ("_scaled_dot_product_cudnn_attention_backward", (GRAD, *FIRST, SAVED, SUMS, ints(), ints(), BIAS, None, None, s,
     t_k, 0.0, True), READ_BACK + BIAS_BYTES, WRITTEN_BACK, True),
    ("_cudnn_attention_backward", (GRAD, *FIRST, SAVED, SUMS, ints(), ints(), BIAS, None, None, s, t_k, 0.0, True),
     READ_BACK + BIAS_BYTES, WRITTEN_BACK, True),
    ("_scaled_dot_product_fused_attention_overrideable_backward", (GRAD, *FIRST, BIAS, (True, True, True, True), SAVED,
     SUMS, None, None, s, t_k, 0.0, True, ints(), ints()), READ_BACK + BIAS_BYTES, WRITTEN_BACK + BIAS_BYTES, True),
    ("_flash_attention_backward", (GRAD_PACKED, *PACKED, bf(b*s, hq, w), SUMS, ENDS, ENDS_K, s, t_k, 0.0, False,
     ints(), ints()), READ_BACK + ENDS_BYTES, WRITTEN_BACK, False),
    ("_efficient_attention_backward", (GRAD_PACKED, *PACKED, BIAS, bf(b*s, hq, w), ENDS, ENDS_K, s, t_k, SUMS, 0.0,
     ints(), ints(), 0, False), READ_BACK + BIAS_BYTES + ENDS_BYTES, WRITTEN_BACK, False),
    ("flash_attn::_flash_attn_backward", (GRAD_THIRD, *THIRD, SAVED_THIRD, SUMS, *THIRD, 0.0, 0.5, True, -1),
     READ_BACK, WRITTEN_BACK, True),
    ("flash_attn::_flash_attn_varlen_backward", (GRAD_PACKED, *PACKED, bf(b*s, hq, w), SUMS, *PACKED, ENDS, ENDS_K, s,
     t_k, 0.0, 0.5, True), READ_BACK + ENDS_BYTES, WRITTEN_BACK, True),
    ("flash_attn_3::bwd", (GRAD_PACKED, *PACKED, bf(b*s, hq, w), SUMS, *PACKED, ENDS, ENDS_K, None, None, s, t_k, 0.5),
     READ_BACK + ENDS_BYTES, WRITTEN_BACK, False),
    ("flash_attn_3::_flash_attn_backward", (GRAD_PACKED, *PACKED, bf(b*s, hq, w), SUMS, ENDS, ENDS_K, None, None, s,
     t_k, *PACKED, 0.5, True, -1, -1, 0.0, False, 0), READ_BACK + ENDS_BYTES, WRITTEN_BACK, True),
]  # fmt: skip


@pytest.mark.parametrize(
    ("operator", "arguments", "read", "written", "causal", "flops"),
    [*((*row, FORWARD) for row in FORWARDS), *((*row, BACKWARD) for row in BACKWARDS)],
)
def test_attention(
    operator: str, arguments: tuple[Argument, ...], read: int, written: int, causal: bool, flops: int
) -> None:
    costs = cost_of(operator, arguments)
    assert costs is not None
    assert (costs.flops, costs.read_bytes, costs.written_bytes) == (flops, read, written)
    assert costs.causal_flops == (flops // 2 if causal else None)
    assert costs.normalization_flops == 4 * SCORES


#: What a query sees of 7 keys, worked by hand: 5 queries whose last one has the last key's place, so that query 0 has
#: place 2. A window of 2 before it and the causal mask leave 3 keys to each.
_BOTH, _LEFT, _AROUND = 3 + 3 + 3 + 3 + 3, 7 + 6 + 5 + 4 + 3, 4 + 4 + 4 + 4 + 3
#: With the first query at the first key: a window of 3 keys, its own place included.
_FROM_FIRST = 1 + 2 + 3 + 3 + 3


def _flash_window(causal: bool, left: int, right: int) -> list[tuple[str, tuple[Argument, ...]]]:
    """Return a call of each operator of flash-attn's kernels with this mask."""
    window = (causal, left, right)
    sides = tuple(None if side < 0 else side for side in (left, right))
    return [
        ("flash_attn::_flash_attn_forward", (*THIRD, 0.0, 0.5, *window, 0.0, None, False)),
        ("flash_attn::_flash_attn_varlen_forward", (*PACKED, ENDS, ENDS_K, s, t_k, 0.0, 0.5, *window)),
        ("_flash_attention_forward", (*PACKED, ENDS, ENDS_K, s, t_k, 0.0, causal, False, 0.5, *sides)),
        ("_flash_attention_forward", (*THIRD, None, None, s, t_k, 0.0, causal, False, t(), t(), t(), 0.5, *sides)),
        (
            "_vllm_fa2_C::varlen_fwd",
            (*PACKED, None, ENDS, ENDS_K, None, None, None, None, s, t_k, 0.0, 0.5, False, *window),
        ),
        ("flash_attn_3::fwd", (*THIRD, *[None] * 20, 0.5, *window, 0)),
        ("flash_attn::_flash_attn_backward", (GRAD_THIRD, *THIRD, SAVED_THIRD, SUMS, *THIRD, 0.0, 0.5, *window)),
        (
            "flash_attn::_flash_attn_varlen_backward",
            (GRAD_PACKED, *PACKED, bf(b * s, hq, w), SUMS, *PACKED, ENDS, ENDS_K, s, t_k, 0.0, 0.5, *window),
        ),
        (
            "_flash_attention_backward",
            (
                GRAD_PACKED,
                *PACKED,
                bf(b * s, hq, w),
                SUMS,
                ENDS,
                ENDS_K,
                s,
                t_k,
                0.0,
                causal,
                ints(),
                ints(),
                0.5,
                *sides,
            ),
        ),
        (
            "flash_attn_3::bwd",
            (GRAD_PACKED, *PACKED, bf(b * s, hq, w), SUMS, *PACKED, ENDS, ENDS_K, None, None, s, t_k, 0.5, *window),
        ),
    ]


@pytest.mark.parametrize(
    ("causal", "left", "right", "pairs", "under_mask"),
    [
        (True, 2, 0, _BOTH, _BOTH),
        (True, 2, 9, _BOTH, _BOTH),
        (False, 2, 0, _BOTH, None),
        (False, 2, -1, _LEFT, None),
        (False, 2, 1, _AROUND, None),
        # a window that hides nothing is none: all pairs, and half of them under a causal mask, which (-1, 0) is
        (True, 6, 0, 35, 17.5),
        (True, 9, 9, 35, 17.5),
        (False, -1, 0, 35, 17.5),
        (False, 6, 4, 35, None),
        (True, -1, -1, 35, 17.5),
    ],
)
def test_attention_within_a_window(causal: bool, left: int, right: int, pairs: int, under_mask: float | None) -> None:
    for operator, arguments in _flash_window(causal, left, right):
        costs = cost_of(operator, arguments)
        each = b * hq * 2 * (3 * d + 2 * w if "b" in operator.rpartition("_")[2] else d + w)
        assert costs is not None, operator
        assert costs.flops == each * pairs, operator
        assert costs.causal_flops == (None if under_mask is None else each * under_mask), operator
        assert costs.normalization_flops == 4 * b * hq * pairs


def test_the_window_of_the_memory_efficient_kernel_counts_keys() -> None:
    for kind, window, pairs in ((1, 3, _FROM_FIRST), (2, 3, _BOTH), (1, 0, 35), (1, None, 35)):
        costs = cost_of("_efficient_attention_forward", (*THIRD, *[None] * 5, 0.0, kind, False, 0.5, None, window))
        assert costs is not None
        assert costs.flops == b * hq * 2 * (d + w) * pairs
    back = (
        GRAD_PACKED,
        *PACKED,
        None,
        bf(b * s, hq, w),
        ENDS,
        ENDS_K,
        s,
        t_k,
        SUMS,
        0.0,
        ints(),
        ints(),
        2,
        False,
        0.5,
        None,
        3,
    )
    costs = cost_of("_efficient_attention_backward", back)
    assert costs is not None
    assert costs.flops == b * hq * 2 * (3 * d + 2 * w) * _BOTH


# --------------------------------------------------------------------------------------------------------------- maps

#: Arithmetic operations and special functions an element, counted in the definition of each map.
FLOPS_OF_MAPS = {
    0: """relu relu6 sign sgn positive bitwise_not hardtanh threshold conj_physical _conj_physical nan_to_num hardshrink
        isnan isinf isfinite isposinf isneginf logical_not signbit maximum minimum fmax fmin clamp_min clamp_max
        bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift __and__ __or__ __xor__ __iand__
        __ior__ __ixor__ __lshift__ __rshift__ heaviside copysign nextafter eq ne lt le gt ge logical_and logical_or
        logical_xor greater greater_equal less less_equal not_equal clamp clip complex threshold_backward
        hardtanh_backward hardshrink_backward softshrink_backward""",
    1: """softshrink neg ceil floor round trunc square leaky_relu exp exp2 expm1 log log2 log10 log1p sqrt rsqrt
        reciprocal sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc erfinv lgamma digamma i0
        special_i0e special_ndtri deg2rad rad2deg special_log_ndtr special_airy_ai special_bessel_j0 special_bessel_j1
        special_bessel_y0 special_bessel_y1 special_erfcx special_i1 special_i1e special_modified_bessel_i0
        special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1
        special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 special_spherical_bessel_j0
        mul multiply remainder fmod floor_divide pow gcd atan2 true_divide igamma igammac special_zeta
        special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v
        special_chebyshev_polynomial_w special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u
        special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w special_hermite_polynomial_h
        special_hermite_polynomial_he special_laguerre_polynomial_l special_legendre_polynomial_p add sub subtract rsub
        abs _prelu_kernel _standard_gamma_grad leaky_relu_backward hardsigmoid_backward native_dropout_backward
        _masked_scale""",
    # x - trunc(x); x * log(y); x * 2 ^ y; clamp(x + 3) / 6; a * b and its sum
    2: "frac xlogy special_xlog1py ldexp hardsigmoid addcmul addcdiv",
    # three operations: log(x / (1 - x)), sin(pi x) / (pi x), -x log(x), (exp(a x) - 1) b, x clamp(x + 3) / 6, ...
    3: """logit sinc special_entr elu celu selu hardswish lerp linalg_cross tanh_backward sigmoid_backward
        hardswish_backward logit_backward""",
    4: "silu mish softplus sigmoid logaddexp logaddexp2 hypot polar",
    5: "softplus_backward",
    9: "silu_backward",
    13: "mish_backward",
}
#: The same of what is no map, in a fused kernel: for each element of what is mapped or reduced, in training.
FLOPS_INSIDE_KERNELS = {
    0: "mm addmm bmm baddbmm convolution convolution_backward linear matmul to type_as where masked_fill clone cat",
    1: """div native_dropout _fused_dropout dropout sum mean amax amin any all var var_mean std max min argmax argmin
        prod
        cumsum linalg_vector_norm norm nll_loss_forward nll_loss_backward embedding_dense_backward index_put index_add
        scatter_add""",
    3: "logsumexp mse_loss mse_loss_backward",
    4: """_softmax _log_softmax _safe_softmax softmax log_softmax _softmax_backward_data _log_softmax_backward_data
        elu_backward _native_batch_norm_legit_no_training _fused_rms_norm rms_norm""",
    5: "gelu glu",
    7: """native_layer_norm layer_norm native_group_norm native_batch_norm _native_batch_norm_legit_functional""",
    8: "glu_backward",
    # input gradient 6 and that of the scale 3
    9: "_fused_rms_norm_backward",
    11: "gelu_backward",
    # input gradient 9, those of scale and shift 3 and 1
    13: "native_layer_norm_backward native_group_norm_backward native_batch_norm_backward",
}
#: Maps that give booleans.
BOOLEAN = """isnan isinf isfinite isposinf isneginf logical_not signbit eq ne lt le gt ge logical_and logical_or
    logical_xor greater greater_equal less less_equal not_equal"""


def test_flops_of_every_map() -> None:
    counted = {name: flops for flops, names in FLOPS_OF_MAPS.items() for name in names.split()}
    assert {name: row.flops for name, row in MAPS.items()} == counted


def test_how_many_operands_every_map_has() -> None:
    three = {"clamp", "clip", "addcmul", "addcdiv", "lerp"}
    one = {*UNARY, *UNARY_FLOATING, *UNARY_BOOL, "abs"}
    assert {name: row.operands for name, row in MAPS.items()} == {
        name: 3 if name in three else 1 if name in one else 2 for name in MAPS
    }


def test_flops_of_operators_inside_kernels() -> None:
    counted = {name: flops for flops, names in FLOPS_INSIDE_KERNELS.items() for name in names.split()}
    assert {name: flops_per_element().get(name) for name in counted} == counted
    assert set(SAMPLES) <= set(counted)


@pytest.mark.parametrize("name", sorted(MAPS))
def test_operands_and_result_of_every_map(name: str) -> None:
    """The operands are read, of one, two or three rows; the result is as wide as all of them."""
    row = MAPS[name]
    operands = (bf(m, n), bf(n), bf(1))[: row.operands]
    if row.result == "complex":
        operands = (t(m, n), t(n))
    item = 1 if name in BOOLEAN.split() else 8 if row.result == "complex" else 2
    read = sum(x.bytes for x in operands)
    assert figures(name, operands) == (row.flops * A, read, item * A)


#: The second operand of these is never a number.
TENSORS_ALONE = ("polar", "complex", "_prelu_kernel", "linalg_cross", "_standard_gamma_grad", "_masked_scale")


@pytest.mark.parametrize("name", sorted(name for name, row in MAPS.items() if row.operands == 2))
def test_a_number_as_second_operand(name: str) -> None:
    """A trace has it as a tensor of float64 without a dimension: it moves nothing. A tensor of that kind is read."""
    row = MAPS[name]
    alone = name in TENSORS_ALONE or name.endswith("_backward")
    x = t(m, n) if row.result == "complex" else bf(m, n)
    costs = figures(name, (x, dd()))
    assert costs is not None
    assert costs[:2] == (row.flops * A, x.bytes + 8 * alone)


@pytest.mark.parametrize("name", sorted(name for name, row in MAPS.items() if row.factor is None))
def test_a_place_for_the_result_of_every_map(name: str) -> None:
    """It follows the operands and gives the data type."""
    operands = (bf(m, n), bf(n), bf(1))[: MAPS[name].operands]
    read = sum(x.bytes for x in operands)
    assert figures(name, (*operands, dd(0))) == (MAPS[name].flops * A, read, 8 * A)


def test_what_torch_has_no_form_in_place_of() -> None:
    names = ("silu_backward_", "special_i1_", "__and___", "isnan_", "rsub_")
    assert [name for name in names if has_formula(f"aten::{name}")] == []
    assert has_formula("aten::silu_")


# ------------------------------------------------------------------------------------------------------------ unknown


def _unknown() -> list[tuple[str, tuple[Argument, ...]]]:
    """Calls without a cost: what does not fit together, what the trace dropped, and what is data."""
    b, m, n, k, h = 2, 3, 5, 7, 4
    QUERY, KEYS, OFFSETS, BEHIND = bf(b, m, h, 8), bf(b, n, h, 8), int4(b + 1), bf(b * m, h, 8)
    PAGED = (*[QUERY] * 3, *[None] * 20, 0.5, False)
    PAGED_2 = (BEHIND, BEHIND, BEHIND, None, OFFSETS, OFFSETS, *[None] * 4, m, m, 0.0, 0.5, False, False)
    BACK_3 = (QUERY, QUERY, QUERY, QUERY, QUERY, t(b, h, m), *[None] * 9, 0.5, False)
    STORED_1 = Tensor((m, k), "float32", None, Stored(2, 16))
    return [
        # shapes that do not fit together
        ("_scaled_dot_product_flash_attention", (bf(2, 4, m, 8), bf(3, 4, n, 8), bf(2, 4, n, 8), 0.0, False)),
        ("_flash_attention_forward", (BEHIND, BEHIND, BEHIND, int4(1), int4(1), m, m, 0.0, False)),
        ("dot", (t(m), t(m, 1))),
        ("mv", (t(b, m, k), t(k))),
        ("addmv", (t(m), t(m, k), t(n))),
        ("bmm", (t(2, m, k), t(3, k, n))),
        ("linear", (t(m, k), t(n, k + 1), None)),
        ("matmul", (t(m, k), t(n, k))),
        ("_grouped_mm", (bf(m, k), bf(k, n), None)),
        ("linalg_solve_triangular", (dd(3, 3), t(7, 3), False, True, False)),
        ("linalg_cholesky_ex", (Tensor((3, 3)),)),
        ("cholesky_inverse", (dd(3, 4),)),
        ("_linalg_det", (dd(3, 4),)),
        ("linalg_qr", (dd(5, 3), None)),
        ("linalg_lu_solve", (dd(3, 3), int4(3), t(4, 7))),
        ("_linalg_solve_ex", (dd(3, 3), t(4))),
        ("_cdist_forward", (bf(m, k), t(n, k), True, None)),
        ("dist", (bf(m, n), t(n), 2)),
        ("mse_loss", (bf(m, n), t(n), 1)),
        ("_ctc_loss", (t(m, b, n), ints(b, 3), ints(b), ints(b), 0, False)),
        ("native_layer_norm", (t(m, n), (m,), None, None, 1e-5)),
        ("_weight_norm_interface_backward", (t(m, n), t(m, n), t(m, 1), t(m, 1), 2)),
        ("mkldnn_rnn_layer", (bf(m, b, k), t(4 * h, k), t(3 * h, h), t(4 * h), t(4 * h), t(1, b, h), t(1, b, h))),
        ("conv_tbc", (bf(9, b, k), t(3, k + 1, n), t(n), 1)),
        ("cudnn_convolution_backward", (t(b, 4, 8, 8), t(b, 6, 8, 8), t(6, 4, 1, 1), (True,))),
        ("pyg::segment_matmul", (bf(m, k), ints(h + 1), t(h, k + 1, n))),
        ("pyg::grouped_matmul", ((bf(m, k),), (t(n, k),))),
        ("torch_scatter::scatter_sum", (bf(m, n), ints(m), 0, None, None)),
        ("torchvision::roi_align", (bf(b, 3, 8, 8), t(k, 5), 0.5, 3, 2, 0, True)),
        ("torchvision::deform_conv2d", (bf(b, 3, 8, 8), t(n, 3, 3, 2), t(b, 13, 4, 5), t(b, 6, 4, 5), None)),
        ("DaoAILab::_causal_conv1d_fwd_cpp", (bf(n, k), t(k, 4), None, None, None, bf(n, k), None, True)),
        ("SelectiveScanFn", (bf(b, n, k), bf(b, n, k), t(n + 1, 4), bf(b, 4, k), bf(b, 4, k))),
        ("LigerSiLUMulFunction", (bf(m, n), bf(n))),
        ("_C::rms_norm", (bf(m, n), bf(n), bf(n), 1e-6)),
        ("_C::rotary_embedding", (ints(m), bf(m, 24), None, 8, dd(99, 0), True)),
        ("_C::cutlass_scaled_mm", (bf(m, n + 1), byte(m, k), byte(k, n), t(m), t(n))),
        ("bitsandbytes::int8_linear_matmul", (byte(m, k), byte(k, n))),
        ("bitsandbytes::gemv_4bit", (bf(m, k), byte(39), (k, n), t(3), t(16), 32)),
        ("_dyn_quant_matmul_4bit", (bf(m, k), byte(99), 32, k + 1, n)),
        ("quantized::linear", (byte(m, k), (), 0.1, 0)),
        (
            "quantized::conv2d",
            (byte(b, 4, 8), (byte(6, 4, 3, 3), None, ((1, 1), (0, 0), (0, 0), (1, 1), 1, False)), 0.1, 0),
        ),
        ("quantized::matmul", (byte(k), byte(k, n))),
        ("quantized::add", (byte(), byte(), 0.1, 0)),
        ("onednn::qlinear_pointwise", (byte(m, k), 0.1, 0, byte(k), t(n), int4(n), None, 0.1, 0, None)),
        ("onednn::qlinear_pointwise", (byte(m, k), 0.1, 0, byte(n, k), t(n), int4(n), None, t(m, n), 0.1, 0)),
        ("quantized_lstm", (bf(m, b, k), (t(1, b, h),) * 2, (), True, 1, 0.0, False, False, False, 6, True)),
        ("quantized_gru", (bf(b, k), t(1, b, h), (), True, 1, 0.0, False, False, False)),
        ("_sparse_semi_structured_linear", (bf(m, k), t(n, k), byte(n, 2), None, None, None)),
        ("_sparse_semi_structured_mm", (bf(m, k), byte(m, 2), t(k, n), None)),
        ("mm", (STORED_1, t(n, k))),
        ("sparse_sampled_addmm", (Tensor((m, n), "float32", None, Stored(2, 16)), t(m, k), t(n, k))),
        ("sparse_mask", (STORED_1, STORED_1)),
        ("_sparse_mm_reduce_impl_backward", (STORED_1, t(m, n), t(k, n), "amax", None, (True, True))),
        ("block_diag", ((bf(m, n), t(k)),)),
        ("constant_pad_nd", (bf(m, n), (1, 2, 3), 0)),
        ("repeat_interleave", (bf(m, n), 2, 2, None)),
        ("segment_reduce", (bf(m, n), "sum", None, None, None, 0)),
        ("angle", (ints(m),)),
        ("tril_indices", (3, 5, 0)),
        ("normal", (bf(m, n), t(n), None)),
        ("arange", (0, "nine", None, None, None, None)),
        ("embedding_sparse_backward", (bf(m, n), ints(m), 99, 0, False)),
        ("mul", (ints(m), None)),
        ("index", (t(m, n), (ints(h), ints(h), ints(h)))),
        # the values of a mask broadcast
        ("index_put_", (t(m, n), (bits(m),), t(1, n), False)),
        ("upsample_nearest2d", (t(b, 3, 8, 8), None, None)),
        ("_upsample_bilinear2d_aa", (t(b, 3, 8, 8), (4, 4), False, (0.5, 0.5))),
        ("_nested_from_padded_tensor", (bf(h, m, n), int4(h + 1), t(0), 2, t(0), t(9), k)),
        ("_jagged_to_padded_dense_forward", (bf(k, n), (int4(h + 1),), (m, m), 0.0)),
        ("_transform_bias_rescale_qkv", (bf(b, m, 12), t(11), 2)),
        ("_fft_c2r", (t(m, n), (1,), 0, 8)),
        ("bitsandbytes::optimizer_update_32bit", (None, t(m), t(m), t(m), None, None, *[0.0] * 7, 0.1, 1, 0.001, 1.0)),
        ("zeros", ((), None, None, None, None)),
        ("_cudnn_attention_forward", (QUERY, KEYS, KEYS, None, OFFSETS, None, m, n, False, 0.0, False, False)),
        *(
            ("flash_attn_3::fwd", (*PAGED[:index], int4(b), *PAGED[index + 1 :]))
            for index in (3, 4, 5, 9, 10, 11, 14, 15, 16)
        ),
        *(("_vllm_fa2_C::varlen_fwd", (*PAGED_2[:index], int4(b), *PAGED_2[index + 1 :])) for index in (6, 7, 8)),
        *(("flash_attn_3::bwd", (*BACK_3[:index], int4(b), *BACK_3[index + 1 :])) for index in (11, 12)),
        ("_flash_attention_forward", (BEHIND, BEHIND, BEHIND, OFFSETS, OFFSETS, m, m + 1, 0.0, False)),
        *(
            (
                "_flash_attention_forward",
                (BEHIND, BEHIND, BEHIND, OFFSETS, OFFSETS, m, m, 0.0, True, False, 0.5, None, None, *rest),
            )
            for rest in ((int4(b),), (None, None, int4(b)))
        ),
        (
            "flash_attn::_flash_attn_varlen_forward",
            (BEHIND, BEHIND, BEHIND, OFFSETS, OFFSETS, m, m, 0.0, 0.1, True, -1, -1, 0.0, None, False, int4(b)),
        ),
        ("flash_attn_3::fwd", (*[QUERY] * 3, *[None] * 20, 0.5, True, -1, -1, 128)),
        (
            "flash_attn_3::fwd",
            (BEHIND, BEHIND, BEHIND, *[None] * 4, OFFSETS, OFFSETS, *[None] * 3, m + 1, m, *[None] * 9, 0.5, False),
        ),
        (
            "flash_attn::_flash_attn_varlen_forward",
            (BEHIND, BEHIND, BEHIND, OFFSETS, OFFSETS, m + 1, m + 1, 0.0, 0.1, True),
        ),
        ("torchvision::roi_align", (bf(b, 3, 8, 8), t(k, 5), 0.5, 3, 2, -1, True)),
        ("torch_scatter::scatter_max", (bf(m, n), ints(m, n), 0, None, None)),
        ("quantized::embedding_byte", (None, ints(m), False)),
        ("quantized::add", (q(m, n), 2.0)),
        ("vllm::rms_norm", (bf(m, n), bf(n), 1e-6)),
        ("linalg_lu_factor_ex", (t(4, 4, dtype="complex64"), True, False)),
        ("_scaled_mm_v2", (byte(m, k), byte(k, n), (Tensor((1,)),), (0,), (0,), (Tensor((1,)),))),
        ("bitsandbytes::optimizer_update_32bit", ("lars", t(m), t(m), t(m), None, None, *[0.0] * 7, 0.1, 1, 1e-3, 1.0)),
        (
            "fbgemm::split_embedding_codegen_lookup_adam_function",
            (t(0), t(99), t(0), t(0, 0), int4(2), ints(2), int4(3), 24, 16, ints(3), 20, ints(m), ints(9), 0, None),
        ),
        # of compiled code: an operator nobody knows, no tensor of the loop, none at all, no data type, no product
        ("triton_poi_fused_add_zork_0", (WIDE, WIDE, LOOP)),
        ("triton_poi_fused_add_0", (WIDE, WIDE, 17)),
        ("triton_poi_fused_add_0", (LOOP,)),
        ("triton_poi_fused_add_0", (Tensor((4,)), 4)),
        ("triton_tem_fused_mm_0", (t(4, 8), t(7, 16), t(4, 16))),
        ("triton_tem_fused_mm_0", (t(4, 8), t(8, 16))),
        # what the trace dropped: arguments, data types, constants, a long list
        ("mm", ()),
        ("mm", (Tensor((m, k)), Tensor((k, n)))),
        ("cudnn_convolution", (t(b, 4, 9, 9), t(6, 4, 3, 3), (), (), (), None, None, None, None)),
        ("cudnn_convolution_backward_input", ((), t(b, 6, 7, 7), t(6, 4, 3, 3), (), (), (), None)),
        ("cudnn_convolution_backward_weight", ((), t(b, 6, 7, 7), t(b, 4, 9, 9), (), (), (), None)),
        ("sum", (t(m, n), (), None, None)),
        ("cudnn_batch_norm", (t(b, n, m), t(n), t(n), t(n), t(n), None, None, None)),
        ("add", (ints(m), None, None)),
        ("cat", ((Tensor((m, n)), Tensor((m, n))), 0)),
        ("cat", (None, 0)),
        ("_foreach_add_", ((Tensor((m,)),), (Tensor((m,)),), 1)),
        ("_foreach_add_", (None, None, 1)),
        ("_fused_adamw_", (*[None] * 6, 1e-3, 0.9, 0.999, 0.01, 1e-8, False, False, None, None)),
        ("_fused_sgd_", (*[None] * 3, 0.0, 0.9, 0.1, 0.0, False, False, False, None, None)),
        # resized by other than two lengths, and by factors in a list
        ("_upsample_bilinear2d_aa", (bf(c, 6, 8), (3, 4), False, None, None)),
        ("_upsample_bilinear2d_aa", (bf(b, c, 6, 8), (3, 4, 5), False, None, None)),
        ("_upsample_bilinear2d_aa", (bf(b, c, 6, 8), (3, 4), False, (0.5, 0.5), None)),
        # what is not observed of a sparse matrix, and operators that know only dense ones
        ("mm", (Tensor((m, k), "float32", None, Stored()), t(k, n))),
        ("relu", (Tensor((m, k), "float32", None, Stored()),)),
        ("add", (STORED_1, STORED_1, 1)),
        ("_softmax", (STORED_1, 1, False)),
    ]


@pytest.mark.parametrize(("operator", "arguments"), _unknown())
def test_unknown(operator: str, arguments: tuple[Argument, ...]) -> None:
    assert has_formula(operator) or has_formula(f"aten::{operator}")
    assert figures(operator, arguments) is None


def test_the_same_without_pages_is_known() -> None:
    query, offsets, behind = bf(b, m, h, 8), int4(b + 1), bf(b * m, h, 8)
    for operator, arguments in {
        "flash_attn_3::fwd": (query, query, query, *[None] * 20, 0.5, False),
        "_vllm_fa2_C::varlen_fwd": (
            behind,
            behind,
            behind,
            None,
            offsets,
            offsets,
            *[None] * 4,
            m,
            m,
            0.0,
            0.5,
            False,
            False,
        ),
        "flash_attn_3::bwd": (query, query, query, query, query, t(b, h, m), *[None] * 9, 0.5, False),
    }.items():
        assert figures(operator, arguments) is not None


#: They iterate until they agree, are as large as their data, or hand their work on.
WITHOUT_FORMULA = """_linalg_eigh _linalg_svd linalg_eig linalg_lstsq linalg_matrix_exp nonzero no_such_operator
    _fused_moving_avg_obs_fq_helper torchvision::nms vllm::unified_attention
    torch::autograd::CppNode<SplitLookupFunction_rowwise_adagrad_Op>"""


def test_without_a_formula_there_is_no_cost() -> None:
    for operator in WITHOUT_FORMULA.split():
        assert cost_of(operator, (t(4, 4), t(4, 4), True)) is None


def test_operators_in_a_compiled_name_are_as_long_as_can_be() -> None:
    words = ("_unsafe_view", "add", "native_layer_norm_backward", "sum")
    assert named("_".join(words)) == words
    assert describe("triton_tem_fused_mm_7") is not None
    assert has_formula("triton_per_fused_sum_1")
