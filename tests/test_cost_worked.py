"""All three figures of formulas in rare use, worked out by hand: losses, normalizations, linear algebra, layers.

No two dimensions are alike, nor neighbouring arguments in size, so that an argument taken from a wrong place shows.
"""

from __future__ import annotations

import pytest

from opanatomy.records.signature import Argument
from tests.worked import Example, bf, bits, byte, dd, figures, int4, ints, t

b, c, g, h, m, n, k = 2, 6, 3, 4, 5, 7, 11

LOSSES: list[Example] = [
    ("aten::nll_loss_forward", (t(m, n), ints(m), bf(n), 0, -100), 2 * m, 4 * m + 8 * m + 2 * n, 4 * m + 4),
    ("aten::nll_loss2d_forward", (bf(b, c, m, n), ints(b, m, n), None, 2, -100), b * m * n, 10 * b * m * n, 2 + 2),
    (
        "aten::nll_loss_backward", (t(m), bf(m, n), ints(m), dd(n), 0, -100, t()),
        m, 4 * m + 8 * m + 8 * n + 4, 2 * m * n,
    ),
    ("aten::mse_loss", (bf(m, n), t(m, n), 1), 3 * m * n, 6 * m * n, 2),
    ("aten::mse_loss", (bf(m, n), t(m, n), 0), 2 * m * n, 6 * m * n, 2 * m * n),
    ("aten::mse_loss", (bf(m, n), t(m, n)), 3 * m * n, 6 * m * n, 2),
    ("aten::mse_loss_backward", (dd(), bf(m, n), t(m, n), 1), 3 * m * n, 8 + 6 * m * n, 2 * m * n),
    ("aten::huber_loss", (bf(m, n), t(m, n), 0, 0.5), 5 * m * n, 6 * m * n, 2 * m * n),
    ("aten::smooth_l1_loss", (bf(m, n), t(m, n), 2, 0.5), 6 * m * n, 6 * m * n, 2),
    ("aten::smooth_l1_loss", (bf(m, n), t(m, n)), 6 * m * n, 6 * m * n, 2),
    ("aten::smooth_l1_loss_backward", (dd(), bf(m, n), t(m, n), 1, 0.5), 4 * m * n, 8 + 6 * m * n, 2 * m * n),
    ("aten::binary_cross_entropy", (bf(m, n), t(m, n), None, 0), 7 * m * n, 6 * m * n, 2 * m * n),
    ("aten::binary_cross_entropy", (bf(m, n), t(m, n)), 8 * m * n, 6 * m * n, 2),
    ("aten::binary_cross_entropy", (bf(m, n), t(m, n), dd(n), 1), 9 * m * n, 6 * m * n + 8 * n, 2),
    ("aten::binary_cross_entropy_backward", (dd(), bf(m, n), t(m, n), None, 1), 6 * m * n, 8 + 6 * m * n, 2 * m * n),
    (
        "aten::binary_cross_entropy_backward", (dd(), bf(m, n), t(m, n), t(n), 1),
        7 * m * n, 8 + 6 * m * n + 4 * n, 2 * m * n,
    ),
    ("aten::binary_cross_entropy_with_logits", (bf(m, n), t(m, n), None, None, 0), 7 * m * n, 6 * m * n, 2 * m * n),
    ("aten::binary_cross_entropy_with_logits", (bf(m, n), t(m, n), None, t(n)), 9 * m * n, 6 * m * n + 4 * n, 2),
    (
        "aten::binary_cross_entropy_with_logits", (bf(m, n), t(m, n), dd(n), t(n), 1),
        (7 + 2 + 1) * m * n, 6 * m * n + 12 * n, 2,
    ),
    # m positions, b sequences, n classes; of targets of 3 and 2 the longer one has 7 places with its blanks
    (
        "aten::_ctc_loss", (t(m, b, n), ints(b, 3), (m, m), (3, 2), 0, False),
        11 * b * m * 7, 4 * m * b * n + 8 * b * 3, 4 * (b + b * m * 7),
    ),
    # one sequence: all targets are its own
    (
        "aten::_ctc_loss", (dd(m, n), ints(3), int4(1), ints(1), 0, False),
        11 * m * 7, 8 * m * n + 8 * 3 + 4 + 8, 8 * (1 + m * 7),
    ),
    (
        "aten::_ctc_loss", (t(m, 1, n), ints(1, 3), int4(1), ints(1), 0, False),
        11 * m * 7, 4 * m * n + 8 * 3 + 4 + 8, 4 * (1 + m * 7),
    ),
    (
        "aten::_ctc_loss_backward", (t(b), bf(m, b, n), ints(b, 3), int4(b), ints(b), t(b), t(b, m, 7), ints(99)),
        16 * b * m * 7 + 6 * m * b * n, 4 * b + 2 * m * b * n + 24 * b + 4 * b + 8 * b + 4 * b + 4 * b * m * 7,
        2 * m * b * n,
    ),
    ("aten::soft_margin_loss", (bf(m, n), t(m, n), 0), 4 * m * n, 6 * m * n, 2 * m * n),
    ("aten::soft_margin_loss", (bf(m, n), t(m, n), 1), 5 * m * n, 6 * m * n, 2),
    ("aten::soft_margin_loss", (bf(m, n), t(m, n)), 5 * m * n, 6 * m * n, 2),
    ("aten::soft_margin_loss_backward", (dd(), bf(m, n), t(m, n), 1), 7 * m * n, 8 + 6 * m * n, 2 * m * n),
    ("aten::multi_margin_loss", (t(m, n), ints(m)), 3 * m * n, 4 * m * n + 8 * m, 4),
    ("aten::multi_margin_loss", (t(m, n), ints(m), 1, 2, None, 0), 3 * m * n, 4 * m * n + 8 * m, 4 * m),
    ("aten::multi_margin_loss", (t(m, n), ints(m), 2, 1, None, 2), 4 * m * n, 4 * m * n + 8 * m, 4),
    ("aten::multi_margin_loss", (t(m, n), ints(m), 2, 1, bf(n), 1), 5 * m * n, 4 * m * n + 8 * m + 2 * n, 4),
    (
        "aten::multi_margin_loss_backward", (dd(), t(m, n), ints(m), 1, 2, None, 1),
        4 * m * n, 8 + 4 * m * n + 8 * m, 4 * m * n,
    ),
    ("aten::multi_margin_loss_backward", (dd(), t(m, n), ints(m)), 4 * m * n, 8 + 4 * m * n + 8 * m, 4 * m * n),
    (
        "aten::multi_margin_loss_backward", (dd(), t(m, n), ints(m), 2, 1, bf(n), 1),
        6 * m * n, 8 + 4 * m * n + 8 * m + 2 * n, 4 * m * n,
    ),
]  # fmt: skip

x, X = (b, c, m), b * c * m

NORMALIZATIONS: list[Example] = [
    ("aten::_safe_softmax", (bf(m, n), -1, None), 4 * m * n, 2 * m * n, 2 * m * n),
    ("aten::_safe_softmax", (bf(m, n), -1, 6), 4 * m * n, 2 * m * n, 4 * m * n),
    ("aten::_masked_softmax", (bf(m, n), bits(n), -1, 1), 4 * m * n, 2 * m * n + n, 2 * m * n),
    ("aten::_log_softmax", (t(m, n, dtype="float16"), -1, False), 4 * m * n, 2 * m * n, 2 * m * n),
    ("aten::_softmax_backward_data", (t(m, n), dd(m, n), -1, 15), 4 * m * n, 12 * m * n, 2 * m * n),
    # torch before 1.11 has the input of the forward at 3
    ("aten::_log_softmax_backward_data", (t(m, n), dd(m, n), -1, bf(m, n)), 4 * m * n, 12 * m * n, 2 * m * n),
    ("aten::native_layer_norm", (bf(b, m, n), (m, n), dd(m, n), None, 1e-5), 6 * b * m * n,
     2 * b * m * n + 8 * m * n, 2 * b * m * n + 4 * 2 * b),
    ("aten::native_layer_norm", (bf(m, n), (n,), None, t(n), 1e-5), 6 * m * n, 2 * m * n + 4 * n,
     2 * m * n + 4 * 2 * m),
    (
        "aten::native_layer_norm_backward", (t(m, n), bf(m, n), (n,), t(m, 1), dd(m, 1), None, None,
                                             (True, False, True)),
        (8 + 1) * m * n, 6 * m * n + 12 * m, 2 * m * n + 2 * n,
    ),
    (
        "aten::native_layer_norm_backward", (t(b, m, n), bf(b, m, n), (m, n), t(b), dd(b), dd(m, n), t(m, n),
                                             (False, True, True)),
        (3 + 1) * b * m * n, 6 * b * m * n + 12 * b + 12 * m * n, 8 * 2 * m * n,
    ),
    ("aten::_fused_rms_norm", (bf(m, n), (n,), None, 1e-5), 3 * m * n, 2 * m * n, 2 * m * n + 4 * m),
    ("aten::_fused_rms_norm", (bf(b, m, n), (m, n), dd(m, n), 1e-5), 4 * b * m * n, 2 * b * m * n + 8 * m * n,
     2 * b * m * n + 4 * b),
    (
        "aten::_fused_rms_norm_backward", (t(m, n), bf(m, n), (n,), t(m, 1), None, (True, False)),
        5 * m * n, 6 * m * n + 4 * m, 2 * m * n,
    ),
    (
        "aten::_fused_rms_norm_backward", (t(m, n), bf(m, n), (n,), t(m, 1), dd(n), (False, True)),
        3 * m * n, 6 * m * n + 4 * m + 8 * n, 8 * n,
    ),
    # b images of c channels in g groups: a mean and a deviation a group
    ("aten::native_group_norm", (bf(*x), dd(c), t(c), b, c, m, g, 1e-5), 7 * X, 2 * X + 12 * c, 2 * X + 4 * 2 * b * g),
    ("aten::native_group_norm", (bf(*x), None, None, b, c, m, g, 1e-5), 5 * X, 2 * X, 2 * X + 4 * 2 * b * g),
    (
        "aten::native_group_norm_backward",
        (t(*x), bf(*x), t(b, g), dd(b, g), dd(c), b, c, m, g, (True, True, False)),
        (9 + 3) * X, 6 * X + 12 * b * g + 8 * c, 2 * X + 8 * c,
    ),
    (
        "aten::native_group_norm_backward",
        (t(*x), bf(*x), t(b, g), dd(b, g), None, b, c, m, g, (True, False, False)),
        8 * X, 6 * X + 12 * b * g, 2 * X,
    ),
    # training keeps mean and deviation of the batch and brings the running ones up to date
    ("aten::native_batch_norm", (bf(*x), None, None, t(c), dd(c), True, 0.1, 1e-5), 5 * X, 2 * X + 12 * c,
     2 * X + 4 * 2 * c + 12 * c),
    ("aten::_native_batch_norm_legit", (bf(*x), dd(c), None, True, 0.1, 1e-5), 6 * X, 2 * X + 8 * c, 2 * X + 8 * c),
    ("aten::_native_batch_norm_legit", (bf(*x), None, t(c), False, 0.1, 1e-5), 3 * X, 2 * X + 4 * c, 2 * X),
    ("aten::_native_batch_norm_legit", (bf(*x), None, None, t(c), dd(c), False, 0.1, 1e-5), 2 * X, 2 * X + 12 * c,
     2 * X),
    ("aten::_native_batch_norm_legit_no_training", (bf(*x), t(c), None, dd(c), bf(c), 0.1, 1e-5), 3 * X,
     2 * X + 14 * c, 2 * X),
    ("aten::_batch_norm_no_update", (bf(*x), None, t(c), dd(c), bf(c), 0.1, 1e-5), 3 * X, 2 * X + 14 * c, 2 * X),
    ("aten::_batch_norm_with_update", (bf(*x), t(c), None, dd(c), bf(c), 0.1, 1e-5), 6 * X, 2 * X + 14 * c,
     2 * X + 4 * 2 * c + 10 * c),
    ("aten::_batch_norm_with_update", (bf(*x), None, t(c), dd(c), bf(c), 0.1, 1e-5), 6 * X, 2 * X + 14 * c,
     2 * X + 4 * 2 * c + 10 * c),
    (
        "aten::native_batch_norm_backward",
        (t(*x), bf(*x), dd(c), t(c), dd(c), bf(c), t(c), True, 1e-5, (True, True, True), bf(99)),
        (9 + 3 + 1) * X, 6 * X + (8 + 4 + 8 + 2 + 4) * c, 2 * X + 2 * 8 * c,
    ),
    # without a scale one multiply less
    (
        "aten::native_batch_norm_backward", (t(*x), bf(*x), None, t(c), dd(c), bf(c), t(c), True, 1e-5,
                                             (True, False, True)),
        (8 + 1) * X, 6 * X + 18 * c, 2 * X + 4 * c,
    ),
    # evaluation: grad * (scale / deviation), as much without a scale
    (
        "aten::native_batch_norm_backward", (t(*x), bf(*x), dd(c), t(c), dd(c), None, None, False, 1e-5,
                                             (True, True, False)),
        (1 + 3) * X, 6 * X + 20 * c, 2 * X + 8 * c,
    ),
    (
        "aten::native_batch_norm_backward", (t(*x), bf(*x), None, t(c), dd(c), None, None, False, 1e-5,
                                             (True, False, False)),
        X, 6 * X + 12 * c, 2 * X,
    ),
    (
        "aten::native_batch_norm_backward", (t(*x), bf(*x), None, t(c), dd(c), None, None, False, 1e-5,
                                             (False, False, True)),
        X, 6 * X + 12 * c, 4 * c,
    ),
    (
        "aten::batch_norm_backward", (t(*x), bf(*x), dd(c), t(c), dd(c), bf(c), t(c), True, 1e-5,
                                      (False, True, True), byte(99)),
        (3 + 1) * X, 6 * X + 26 * c, 2 * 8 * c,
    ),
    (
        "aten::miopen_batch_norm_backward", (bf(*x), t(*x), dd(c), t(c), dd(c), bf(c), t(c), 1e-5, byte(99)),
        13 * X, 6 * X + 26 * c, 2 * X + 2 * 8 * c,
    ),
    ("aten::batch_norm_stats", (bf(*x), 1e-5), 4 * X, 2 * X, 2 * 4 * c),
    ("aten::batch_norm_elemt", (bf(*x), t(c), dd(c), bf(c), dd(c), 1e-5), 4 * X, 2 * X + 22 * c, 2 * X),
    ("aten::batch_norm_elemt", (bf(*x), None, dd(c), bf(c), dd(c), 1e-5), 3 * X, 2 * X + 18 * c, 2 * X),
    # the statistics of g devices
    (
        "aten::batch_norm_gather_stats", (bf(*x), dd(g, c), t(g, c), bf(c), t(c), 0.1, 1e-5, 7),
        9 * g * c, 12 * g * c + 6 * c, 2 * 8 * c + 6 * c,
    ),
    (
        "aten::batch_norm_gather_stats_with_counts", (bf(*x), t(g, c), dd(g, c), None, None, 0.1, 1e-5, t(g)),
        9 * g * c, 12 * g * c + 4 * g, 2 * 4 * c,
    ),
    (
        "aten::batch_norm_backward_reduce", (t(*x), bf(*x), dd(c), t(c), bf(c), True, True, False),
        4 * X, 6 * X + 12 * c, 2 * 8 * c + 2 * c,
    ),
    (
        "aten::batch_norm_backward_reduce", (t(*x), bf(*x), dd(c), t(c), None, False, True, True),
        4 * X, 6 * X + 12 * c, 2 * 4 * c,
    ),
    (
        "aten::batch_norm_backward_reduce", (t(*x), bf(*x), dd(c), t(c), bf(c), True, False, False),
        4 * X, 6 * X + 12 * c, 2 * 8 * c,
    ),
    (
        "aten::batch_norm_backward_elemt", (t(*x), bf(*x), dd(c), t(c), bf(c), dd(c), t(c), int4(g), t(99)),
        5 * X, 6 * X + 26 * c + 4 * g, 4 * X,
    ),
    ("aten::_weight_norm_interface", (bf(m, n), bf(m, 1), 0), 3 * m * n, 2 * m * n + 2 * m, 2 * m * n + 4 * m),
    (
        "aten::_weight_norm_interface_backward", (t(m, n), bf(m, n), dd(m, 1), t(m, 1), 0),
        5 * m * n, 6 * m * n + 12 * m, 2 * m * n + 8 * m,
    ),
]  # fmt: skip

#: The CPU keeps statistics in the type of scale and shift, else of the input.
ON_CPU: list[Example] = [
    ("aten::native_layer_norm", (bf(m, n), (n,), t(n), t(n), 1e-5), 7 * m * n, 2 * m * n + 8 * n, 2 * m * n + 8 * m),
    ("aten::native_layer_norm", (bf(m, n), (n,), None, None, 1e-5), 5 * m * n, 2 * m * n, 2 * m * n + 4 * m),
    ("aten::native_layer_norm", (bf(m, n), (n,), None, dd(n), 1e-5), 6 * m * n, 2 * m * n + 8 * n,
     2 * m * n + 16 * m),
    ("aten::native_group_norm", (bf(*x), t(c), None, b, c, m, g, 1e-5), 6 * X, 2 * X + 4 * c, 2 * X + 8 * b * g),
    ("aten::native_group_norm", (bf(*x), None, dd(c), b, c, m, g, 1e-5), 6 * X, 2 * X + 8 * c, 2 * X + 16 * b * g),
    ("aten::native_group_norm", (bf(*x), None, None, b, c, m, g, 1e-5), 5 * X, 2 * X, 2 * X + 4 * b * g),
    ("aten::native_batch_norm", (bf(*x), t(c), None, None, None, True, 0.1, 1e-5), 6 * X, 2 * X + 4 * c,
     2 * X + 8 * c),
    ("aten::native_batch_norm", (bf(*x), None, dd(c), None, None, True, 0.1, 1e-5), 6 * X, 2 * X + 8 * c,
     2 * X + 16 * c),
    ("aten::native_batch_norm", (bf(*x), None, None, None, None, True, 0.1, 1e-5), 5 * X, 2 * X, 2 * X + 4 * c),
]  # fmt: skip

# step k of an LU factorization divides m - k and takes 2 (m - k) (n - k) from what is left
LU_53 = (4 + 16) + (3 + 6) + 2
LU_35 = (2 + 16) + (1 + 6)
LU_33 = (2 + 8) + (1 + 2)
#: LAPACK Working Note 41, multiplications and additions: geqrf of (5, 3) and (3, 5), orgqr, potrf, potri, getri.
QR_53 = (5 * 9 - 9 + 15) + (5 * 9 - 9) + (3 * 3**2 + 23 * 3 + 3 * 3**2 + 5 * 3) // 6
QR_35 = (5 * 9 - 9 + 30) + (5 * 9 - 9 + 15) + (-3 * 3**2 + 23 * 3 - 3 * 3**2 + 5 * 3) // 6
Q_533 = (2 * 45 - 8 * 9 + 18 + 18 - 9 - 5) + (2 * 45 - 8 * 9 + 18 + 9 - 15 + 1)
Q_553 = (2 * 75 - 10 * 9 + 18 + 30 - 9 - 5) + (2 * 75 - 10 * 9 + 18 + 15 - 15 + 1)
Q_333 = (2 * 27 - 6 * 9 + 18 + 18 - 9 - 5) + (2 * 27 - 6 * 9 + 18 + 9 - 9 + 1)
POTRF_3, POTRI_3, GETRI_3 = 9 + (9 + 1) // 2, 18 + (9 + 5) // 2, 36 - 9 + 5

LINEAR_ALGEBRA: list[Example] = [
    ("aten::linalg_cholesky_ex", (dd(b, 3, 3), False, False), b * POTRF_3, 8 * b * 9, 8 * b * 9 + 4 * b),
    ("aten::cholesky_inverse", (dd(b, 3, 3), False), b * POTRI_3, 8 * b * 9, 8 * b * 9),
    ("aten::cholesky_inverse", (dd(6, 6), False), 2 * 6**3 // 3 + 18 + 5, 8 * 36, 8 * 36),
    ("aten::linalg_lu_factor_ex", (dd(b, 5, 3), True, False), b * LU_53, 8 * b * 15, b * (8 * 15 + 4 * 3 + 4)),
    ("aten::linalg_lu_factor_ex", (dd(b, 3, 5), True, False), b * LU_35, 8 * b * 15, b * (8 * 15 + 4 * 3 + 4)),
    ("aten::linalg_lu", (dd(b, 5, 3), True), b * LU_53, 8 * b * 15, 8 * b * (25 + 15 + 9)),
    ("aten::linalg_lu", (dd(b, 3, 5), True), b * LU_35, 8 * b * 15, 8 * b * (9 + 9 + 15)),
    ("aten::lu_unpack", (dd(b, 5, 3), int4(b, 3)), 0, b * (8 * 15 + 12), 8 * b * (25 + 15 + 9)),
    ("aten::lu_unpack", (dd(b, 3, 5), int4(b, 3), True, False), 0, 8 * b * 15, 8 * b * (9 + 15)),
    ("aten::lu_unpack", (dd(b, 5, 3), int4(b, 3), False, True), 0, 4 * b * 3, 8 * b * 25),
    ("aten::_linalg_det", (dd(b, 3, 3),), b * (LU_33 + 3), 8 * b * 9, b * (8 * 9 + 4 * 3 + 8)),
    ("aten::_linalg_slogdet", (dd(b, 3, 3),), b * (LU_33 + 3), 8 * b * 9, b * (8 * 9 + 4 * 3 + 2 * 8)),
    ("aten::linalg_inv_ex", (dd(b, 3, 3), False), b * (LU_33 + GETRI_3), 8 * b * 9, b * (8 * 9 + 4)),
    ("aten::geqrf", (dd(b, 5, 3),), b * QR_53, 8 * b * 15, 8 * b * (15 + 3)),
    ("aten::geqrf", (dd(b, 3, 5),), b * QR_35, 8 * b * 15, 8 * b * (15 + 3)),
    ("aten::linalg_qr", (dd(b, 5, 3), "reduced"), b * (QR_53 + Q_533), 8 * b * 15, 8 * b * (15 + 9)),
    ("aten::linalg_qr", (dd(b, 5, 3), "complete"), b * (QR_53 + Q_553), 8 * b * 15, 8 * b * (25 + 15)),
    ("aten::linalg_qr", (dd(b, 5, 3), "r"), b * QR_53, 8 * b * 15, 8 * b * 9),
    ("aten::linalg_qr", (dd(b, 3, 5), "reduced"), b * (QR_35 + Q_333), 8 * b * 15, 8 * b * (9 + 15)),
    ("aten::linalg_householder_product", (dd(b, 5, 3), t(b, 3)), b * Q_533, b * (8 * 15 + 12), 8 * b * 15),
    ("aten::linalg_householder_product", (dd(b, 5, 5), t(b, 3)), b * Q_553, b * (8 * 25 + 12), 8 * b * 25),
    # 3 reflectors of length 5 on 5 rows of 7, on 7 rows from the right
    (
        "aten::ormqr", (dd(b, 5, 3), t(b, 3), bf(b, 5, 7), True, False),
        b * (4 * 5 * 7 * 3 - 2 * 7 * 9 + 3 * 7 * 3), b * (8 * 15 + 12 + 2 * 35), 2 * b * 35,
    ),
    (
        "aten::ormqr", (dd(b, 5, 3), t(b, 3), bf(b, 5, 7)),
        b * (4 * 5 * 7 * 3 - 2 * 7 * 9 + 3 * 7 * 3), b * (8 * 15 + 12 + 2 * 35), 2 * b * 35,
    ),
    (
        "aten::ormqr", (dd(b, 5, 3), t(b, 3), bf(b, 7, 5), False, False),
        b * (4 * 5 * 7 * 3 - 2 * 7 * 9 + 3 * 7 * 3), b * (8 * 15 + 12 + 2 * 35), 2 * b * 35,
    ),
    (
        "aten::_linalg_solve_ex", (dd(b, 3, 3), t(b, 3, 7), True, False), b * (LU_33 + 2 * 9 * 7),
        b * (8 * 9 + 4 * 21), b * (4 * 21 + 8 * 9 + 4 * 3 + 4),
    ),
    (
        "aten::_linalg_solve_ex", (dd(b, 3, 3), t(b, 3), True, False), b * (LU_33 + 2 * 9),
        b * (8 * 9 + 4 * 3), b * (4 * 3 + 8 * 9 + 4 * 3 + 4),
    ),
    ("aten::_linalg_solve_ex", (dd(3, 3), t(3, 7)), LU_33 + 2 * 9 * 7, 8 * 9 + 4 * 21, 4 * 21 + 8 * 9 + 4 * 3 + 4),
    # a matrix for b matrices, and no b vectors
    (
        "aten::_linalg_solve_ex", (dd(b, 3, 3), t(3, 7)), b * (LU_33 + 2 * 9 * 7), b * 8 * 9 + 4 * 21,
        b * (4 * 21 + 8 * 9 + 4 * 3 + 4),
    ),
    ("aten::_linalg_solve_ex", (dd(3, 3), t(3)), LU_33 + 2 * 9, 8 * 9 + 4 * 3, 4 * 3 + 8 * 9 + 4 * 3 + 4),
    # one matrix of factors for each of b right-hand sides
    (
        "aten::linalg_lu_solve", (dd(3, 3), int4(3), t(b, 3, 7), True, False), 2 * 9 * b * 7,
        8 * 9 + 12 + 4 * b * 21, 4 * b * 21,
    ),
    ("aten::cholesky_solve", (t(b, 3, 7), dd(3, 3), False), 2 * 9 * b * 7, 8 * 9 + 4 * b * 21, 4 * b * 21),
    (
        "aten::triangular_solve", (t(b, 3, 7), dd(3, 3), True, False, False), 9 * b * 7,
        8 * 9 + 4 * b * 21, 4 * b * 21 + 8 * b * 9,
    ),
    (
        "aten::triangular_solve", (t(b, 3, 7), dd(b, 3, 3), True, False, True), 3 * 2 * b * 7,
        8 * b * 9 + 4 * b * 21, 4 * b * 21 + 8 * b * 9,
    ),
    ("aten::triangular_solve", (t(3, 7), dd(3, 3)), 9 * 7, 8 * 9 + 4 * 21, 4 * 21 + 8 * 9),
    ("aten::_linalg_check_errors", (int4(b), "linalg.inv", False), 0, 4 * b, 0),
    # distances of m and n points with k coordinates; b pairs of sets by broadcasting
    ("aten::_cdist_forward", (bf(b, m, k), t(1, n, k), 2, None), b * m * n * (3 * k + 1), 2 * b * m * k + 4 * n * k,
     2 * b * m * n),
    (
        "aten::_cdist_forward", (bf(b, 1, m, k), t(g, n, k), 2, None), b * g * m * n * (3 * k + 1),
        2 * b * m * k + 4 * g * n * k, 2 * b * g * m * n,
    ),
    ("aten::_cdist_forward", (bf(m, k), t(n, k), 1.0, None), m * n * 3 * k, 2 * m * k + 4 * n * k, 2 * m * n),
    ("aten::_cdist_forward", (bf(m, k), t(n, k), 0.0, None), m * n * 2 * k, 2 * m * k + 4 * n * k, 2 * m * n),
    ("aten::_cdist_forward", (bf(m, k), t(n, k), float("inf"), None), m * n * 2 * k, 2 * m * k + 4 * n * k,
     2 * m * n),
    ("aten::_cdist_forward", (bf(m, k), t(n, k), 3.0, None), m * n * (4 * k + 1), 2 * m * k + 4 * n * k, 2 * m * n),
    (
        "aten::_cdist_backward", (t(b, m, n), bf(b, m, k), dd(b, n, k), 2.0, bf(b, m, n)),
        4 * b * m * n * k, 6 * b * m * n + 2 * b * m * k + 8 * b * n * k, 2 * b * m * k,
    ),
    ("aten::_pdist_forward", (bf(m, k), 2.0), 10 * (3 * k + 1), 2 * m * k, 2 * 10),
    ("aten::_pdist_backward", (t(10), bf(m, k), 2.0, dd(10)), 4 * 10 * k, 40 + 2 * m * k + 80, 2 * m * k),
    ("aten::dist", (bf(m, n), t(m, n), 2), 2 * m * n, 6 * m * n, 2),
    (
        "aten::linalg_solve_triangular", (dd(b, 3, 3), t(1, 3, 7), False, True, False), b * 9 * 7,
        8 * b * 9 + 4 * 21, 4 * b * 21,
    ),
    (
        "aten::linalg_solve_triangular", (dd(3, 3), t(b, 3, 7), False, True, False), b * 9 * 7,
        8 * 9 + 4 * b * 21, 4 * b * 21,
    ),
    (
        "aten::linalg_solve_triangular", (dd(b, 3, 3), t(b, 7, 3), False, False, True), b * 3 * 2 * 7,
        8 * b * 9 + 4 * b * 21, 4 * b * 21,
    ),
]  # fmt: skip

e = 3 * h
LAYERS: list[Example] = [
    # m steps of b sequences of k features, 4 gates of h
    (
        "aten::mkldnn_rnn_layer",
        (bf(m, b, k), t(4 * h, k), dd(4 * h, h), t(4 * h), bf(4 * h), t(1, b, h), dd(1, b, h), True),
        2 * m * b * 4 * h * (k + h),
        2 * m * b * k + 4 * 4 * h * k + 8 * 4 * h * h + 6 * 4 * h + 12 * b * h, 2 * m * b * h + 2 * 4 * b * h,
    ),
    (
        "aten::mkldnn_rnn_layer_backward",
        (bf(m, b, k), t(4 * h, k), dd(4 * h, h), t(4 * h), bf(4 * h), t(1, b, h), dd(1, b, h), t(m, b, h), t(b, h),
         t(b, h), bf(m, b, h), bf(b, h), dd(b, h), True),
        2 * 2 * m * b * 4 * h * (k + h),
        2 * m * b * k + 4 * 4 * h * k + 8 * 4 * h * h + 6 * 4 * h + 12 * b * h + 6 * m * b * h + 18 * b * h,
        2 * m * b * k + 4 * 4 * h * k + 8 * 4 * h * h + 6 * 4 * h + 12 * b * h,
    ),
    # both directions; the flat weights give the bytes
    (
        "aten::_cudnn_rnn",
        (bf(m, b, k), (t(e, k), t(e, h), t(e), t(e), t(e, k), t(e, h)), 4, bf(999), t(2, b, h), dd(2, b, h), 3, h, 0,
         1, False, 0.0, True, True, (), None),
        2 * m * b * 2 * e * (k + h), 2 * m * b * k + 2 * 999 + 12 * 2 * b * h,
        2 * m * b * 2 * h + 12 * 2 * b * h,
    ),
    (
        "aten::miopen_rnn",
        (bf(m, b, k), (t(e, k), t(e, h), t(e)), 3, None, t(1, b, h), None, 3, h, 1, False, 0.0, True, False, (), None),
        2 * m * b * e * (k + h), 2 * m * b * k + 4 * (e * k + e * h + e) + 4 * b * h, 2 * m * b * h + 4 * b * h,
    ),
    # what precedes the mask at 21: reserve space and the modes
    (
        "aten::_cudnn_rnn_backward",
        (bf(m, b, k), (t(e, k), t(e, h)), 2, bf(999), t(1, b, h), dd(1, b, h), t(m, b, h), bf(m, b, h), t(1, b, h),
         dd(1, b, h), 3, h, 0, 1, False, 0.0, True, False, (), None, byte(99), (True, True, False, False)),
        2 * m * b * e * (k + h), 2 * m * b * k + 2 * 999 + 12 * b * h + 6 * m * b * h + 12 * b * h,
        2 * m * b * k + 4 * b * h,
    ),
    (
        "aten::_cudnn_rnn_backward",
        (bf(m, b, k), (t(e, k), t(e, h)), 2, bf(999), t(1, b, h), dd(1, b, h), t(m, b, h), bf(m, b, h), None, None, 3,
         h, 0, 1, False, 0.0, True, False, (), None, byte(99), (False, True, True, True)),
        2 * 2 * m * b * e * (k + h), 2 * m * b * k + 2 * 999 + 12 * b * h + 6 * m * b * h, 12 * b * h + 2 * 999,
    ),
    (
        "aten::_thnn_fused_lstm_cell", (t(b, 4 * h), bf(b, 4 * h), dd(b, h), None, None),
        22 * b * h, 6 * b * 4 * h + 8 * b * h, 2 * 8 * b * h + 4 * b * 4 * h,
    ),
    (
        "aten::_thnn_fused_lstm_cell", (t(b, 4 * h), bf(b, 4 * h), dd(b, h), t(4 * h), bf(4 * h), t(99)),
        30 * b * h, 6 * b * 4 * h + 8 * b * h + 6 * 4 * h, 2 * 8 * b * h + 4 * b * 4 * h,
    ),
    (
        "aten::_thnn_fused_lstm_cell_backward_impl", (t(b, h), bf(b, h), dd(b, h), t(b, h), bf(b, 4 * h), True),
        23 * b * h + b * 4 * h, 18 * b * h + 2 * b * 4 * h, 2 * b * 4 * h + 8 * b * h + 2 * 4 * h,
    ),
    (
        "aten::_thnn_fused_lstm_cell_backward_impl", (t(b, h), None, dd(b, h), t(b, h), bf(b, 4 * h), False),
        23 * b * h, 16 * b * h + 2 * b * 4 * h, 2 * b * 4 * h + 8 * b * h,
    ),
    (
        "aten::_thnn_fused_gru_cell", (t(b, 3 * h), bf(b, 3 * h), dd(b, h), None, None),
        16 * b * h, 6 * b * 3 * h + 8 * b * h, 6 * 8 * b * h,
    ),
    (
        "aten::_thnn_fused_gru_cell", (t(b, 3 * h), bf(b, 3 * h), dd(b, h), t(3 * h), bf(3 * h), t(99)),
        22 * b * h, 6 * b * 3 * h + 8 * b * h + 6 * 3 * h, 6 * 8 * b * h,
    ),
    (
        "aten::_thnn_fused_gru_cell_backward", (t(b, h), bf(b, 5 * h), False),
        16 * b * h, 4 * b * h + 2 * b * 5 * h, 4 * (2 * 3 * b * h + b * h),
    ),
    (
        "aten::_thnn_fused_gru_cell_backward", (t(b, h), bf(b, 5 * h), True),
        (16 + 6) * b * h, 4 * b * h + 2 * b * 5 * h, 4 * (2 * 3 * b * h + b * h + 2 * 3 * h),
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("operator", "arguments", "flops", "read", "written"), [*LOSSES, *NORMALIZATIONS, *LINEAR_ALGEBRA, *LAYERS]
)
def test_worked_example(operator: str, arguments: tuple[Argument, ...], flops: int, read: int, written: int) -> None:
    assert figures(operator, arguments) == (flops, read, written)


@pytest.mark.parametrize(("operator", "arguments", "flops", "read", "written"), ON_CPU)
def test_worked_example_on_the_cpu(
    operator: str, arguments: tuple[Argument, ...], flops: int, read: int, written: int
) -> None:
    assert figures(operator, arguments, "cpu") == (flops, read, written)
