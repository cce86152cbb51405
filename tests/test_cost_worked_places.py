"""All three figures of formulas in rare use, worked out by hand: copies, look-ups, pools, regions, new tensors."""

from __future__ import annotations

import pytest

from opanatomy.records.signature import Argument
from tests.worked import Example, bf, bits, byte, dd, figures, int4, ints, t

b, c, g, m, n, k = 2, 3, 4, 5, 7, 11

MOVEMENT: list[Example] = [
    ("aten::copy_", (bf(m, n), dd(n), False), 0, 8 * n, 2 * m * n),
    ("aten::clone", (bf(m, n), None), 0, 2 * m * n, 2 * m * n),
    ("aten::tril_", (bf(m, n), 0), 0, 2 * m * n, 2 * m * n),
    ("aten::_to_copy", (bf(m, n), None), 0, 2 * m * n, 2 * m * n),
    ("aten::expand_copy", (bf(m, 1), (b, -1, n), False), 0, 2 * m, 2 * b * m * n),
    ("aten::stack", ((bf(m, n), t(m, n)), 0), 0, 6 * m * n, 8 * m * n),
    ("aten::cat", ((bf(m, n), bf(b, n)), 0, dd(0)), 0, 2 * (m + b) * n, 8 * (m + b) * n),
    ("aten::_chunk_cat", ((bf(m, n), bf(b, n)), 0, g, t(g, 99)), 0, 2 * (m + b) * n, 4 * g * 99),
    ("aten::split_with_sizes_copy", (bf(m, n), (2, 3), 0), 0, 2 * m * n, 2 * m * n),
    ("aten::repeat", (bf(m, n), (b, 1, g)), 0, 2 * m * n, 2 * m * n * b * g),
    ("aten::_local_scalar_dense", (dd(),), 0, 8, 0),
    # the last dimension comes first
    ("aten::constant_pad_nd", (bf(b, k, n), (1, 2, 3, 5), 0), 0, 2 * b * k * n, 2 * b * (k + 8) * (n + 3)),
    ("aten::constant_pad_nd", (bf(k, n), (1, 2, 3, 5), 0), 0, 2 * k * n, 2 * (k + 8) * (n + 3)),
    ("aten::constant_pad_nd", (bf(k, n), (1, 2), 0), 0, 2 * k * n, 2 * k * (n + 3)),
    # a row and two columns are cut off
    ("aten::constant_pad_nd", (bf(m, n), (1, -2, -1, 0), 0), 0, 2 * (m - 1) * (n - 2), 2 * (m - 1) * (n - 1)),
    ("aten::reflection_pad2d", (bf(b, m, n), (1, 2, 3, 5)), 0, 2 * b * m * n, 2 * b * (m + 8) * (n + 3)),
    ("aten::replication_pad1d_backward", (bf(b, m + 3), t(b, m), (1, 2)), b * (m + 3), 2 * b * (m + 3), 4 * b * m),
    ("aten::select_backward", (bf(n), (m, n), 0, 1), 0, 2 * n, 2 * m * n),
    ("aten::slice_scatter", (bf(m, n), t(b, n), 0, 1, 3, 1), 0, 2 * (m - b) * n + 4 * b * n, 2 * m * n),
    # kernel (3, 2), dilation (2, 1), padding (1, 2), stride (1, 3): (7 + 2 - 4) x ((11 + 4 - 2) // 3 + 1) places
    (
        "aten::im2col", (bf(b, c, n, k), (3, 2), (2, 1), (1, 2), (1, 3)), 0, 2 * b * c * n * k, 2 * b * c * 6 * 5 * 5,
    ),
    ("aten::im2col", (bf(b, c, n, k), (2,), (1,), (0,), (1,)), 0, 2 * b * c * n * k, 2 * b * c * 4 * 6 * 10),
    (
        "aten::col2im", (bf(b, c * 6, 5 * 5), (n, k), (3, 2), (2, 1), (1, 2), (1, 3)),
        b * c * 6 * 25, 2 * b * c * 6 * 25, 2 * b * c * n * k,
    ),
    ("aten::repeat_interleave", (bf(m, n), g, 1, None), 0, 2 * m * n, 2 * m * n * g),
    ("aten::repeat_interleave", (bf(m, n), g, None, None), 0, 2 * m * n, 2 * m * n * g),
    ("aten::diag_embed", (bf(m, n), -2, 0, 1), 0, 2 * m * n, 2 * m * (n + 2) * (n + 2)),
    ("aten::diag_embed", (bf(m, n),), 0, 2 * m * n, 2 * m * n * n),
    # a row and a number are matrices of one row
    ("aten::block_diag", ((bf(m, n), bf(k), bf()),), 0, 2 * (m * n + k + 1), 2 * (m + 2) * (n + k + 1)),
]  # fmt: skip

# x (9, 7) in float64; a table of few rows is read once
x, rows = dd(9, n), ints(m)
INDEXING: list[Example] = [
    ("aten::embedding", (bf(99, n), ints(b, m), -1, False, False), 0, 2 * b * m * n + 8 * b * m, 2 * b * m * n),
    ("aten::index_select", (bf(b, 9, n), 1, ints(m)), 0, 2 * b * m * n + 8 * m, 2 * b * m * n),
    ("aten::index_select", (bf(b, 9, n), -1, ints(m)), 0, 2 * b * 9 * m + 8 * m, 2 * b * 9 * m),
    ("aten::index_select", (bf(9), None, ints(m)), 0, 2 * m + 8 * m, 2 * m),
    ("aten::gather", (bf(9, n), 0, ints(m, n)), 0, 2 * m * n + 8 * m * n, 2 * m * n),
    ("aten::take", (bf(9, n), ints(b, m)), 0, 2 * b * m + 8 * b * m, 2 * b * m),
    # indices for the first and third dimension
    (
        "aten::index", (bf(9, m, 9, n), (ints(g, 1), None, int4(k))), 0, 2 * g * k * m * n + 8 * g + 4 * k,
        2 * g * k * m * n,
    ),
    ("aten::index_put_", (x, (rows,), bf(m, n), False), 0, 2 * m * n + 8 * m, 8 * m * n),
    ("aten::index_put_", (x, (rows,), bf(m, n), True), m * n, 2 * m * n + 8 * m + 8 * m * n, 8 * m * n),
    ("aten::index_put_", (x, (bits(9),), bf(2, n), False), 0, 2 * 2 * n + 9, 8 * 2 * n),
    ("aten::index_put_", (dd(9, 1), (bits(9),), bf(m, 1), False), 0, 2 * m + 9, 8 * m),
    ("aten::index", (bf(9, m), (ints(g), int4(g))), 0, 2 * g + 12 * g, 2 * g),
    ("aten::index_put_", (x, (bits(9),), bf(m, n), False), 0, 2 * m * n + 9, 8 * m * n),
    ("aten::index_put", (x, (rows,), bf(m, n), False), 0, 8 * 9 * n + 2 * m * n + 8 * m, 8 * 9 * n),
    ("aten::index_put", (x, (rows,), bf(m, n), True), m * n, 8 * 9 * n + 2 * m * n + 8 * m, 8 * 9 * n),
    ("aten::index_add_", (x, 0, rows, bf(m, n), 3), 2 * m * n, 8 * m + 2 * m * n + 8 * m * n, 8 * m * n),
    ("aten::index_add_", (x, 0, rows, bf(m, n)), m * n, 8 * m + 2 * m * n + 8 * m * n, 8 * m * n),
    ("aten::index_add", (x, 0, rows, bf(m, n), 3), 2 * m * n, 8 * 9 * n + 8 * m + 2 * m * n, 8 * 9 * n),
    ("aten::index_add", (x, 0, rows, bf(m, n)), m * n, 8 * 9 * n + 8 * m + 2 * m * n, 8 * 9 * n),
    ("aten::index_copy_", (x, 0, rows, bf(m, n)), 0, 8 * m + 2 * m * n, 8 * m * n),
    ("aten::index_fill_", (dd(b, 9, n), 1, rows, 0.5), 0, 8 * m, 8 * b * m * n),
    ("aten::index_copy", (x, 0, rows, bf(m, n)), 0, 8 * 9 * n + 8 * m + 2 * m * n, 8 * 9 * n),
    ("aten::index_fill", (x, 0, rows, 0.5), 0, 8 * 9 * n + 8 * m, 8 * 9 * n),
    ("aten::scatter_", (x, 0, int4(m, n), bf(8, n)), 0, 4 * m * n + 2 * m * n, 8 * m * n),
    ("aten::scatter_", (x, 0, int4(m, n), 0.5), 0, 4 * m * n, 8 * m * n),
    ("aten::scatter_", (x, 0, int4(m, n), bf(8, n), "add"), m * n, (4 + 2 + 8) * m * n, 8 * m * n),
    ("aten::scatter_", (x, 0, int4(m, n), 0.5, None), m * n, (4 + 8) * m * n, 8 * m * n),
    ("aten::scatter", (x, 0, int4(m, n), bf(8, n)), 0, 8 * 9 * n + 6 * m * n, 8 * 9 * n),
    ("aten::scatter", (x, 0, int4(m, n), bf(8, n), "add"), m * n, 8 * 9 * n + 6 * m * n, 8 * 9 * n),
    ("aten::scatter_add_", (x, 0, int4(m, n), bf(8, n)), m * n, (4 + 2 + 8) * m * n, 8 * m * n),
    ("aten::scatter_reduce", (x, 0, int4(m, n), bf(8, n), "sum", True), m * n, 8 * 9 * n + 6 * m * n, 8 * 9 * n),
    ("aten::embedding_dense_backward", (bf(b, m, n), ints(b, m), 99, -1, False), b * m * n,
     2 * b * m * n + 8 * b * m, 2 * 99 * n),
    ("aten::masked_scatter", (bf(m, n), bits(n), bf(k)), 0, 2 * m * n + n, 2 * m * n),
    ("aten::masked_scatter_backward", (bf(m, n), bits(n), (g, k)), 0, 2 * m * n + n, 2 * g * k),
    ("aten::masked_scatter_backward", (bf(m, n), bits(n), (2, n)), 0, 2 * 2 * n + n, 2 * 2 * n),
    ("aten::put_", (x, int4(m), bf(m), True), m, (4 + 2 + 8) * m, 8 * m),
    ("aten::put_", (x, int4(m), bf(m)), 0, (4 + 2) * m, 8 * m),
    ("aten::put", (x, int4(m), bf(m), True), m, 8 * 9 * n + 6 * m, 8 * 9 * n),
    ("aten::put", (x, int4(m), bf(m)), 0, 8 * 9 * n + 6 * m, 8 * 9 * n),
    ("aten::index_reduce", (x, 0, rows, bf(m, n), "amax", True), m * n, 8 * 9 * n + 8 * m + 2 * m * n, 8 * 9 * n),
    ("aten::index_reduce_", (x, 0, rows, bf(m, n), "amax", True), m * n, 8 * m + 10 * m * n, 8 * m * n),
    # bags: m indices into 99 rows of n, g offsets; mode 1 is the mean, 2 the maximum
    (
        "aten::_embedding_bag", (bf(99, n), ints(m), int4(g), False, 0, False, None, False, -1), m * n,
        2 * m * n + 8 * m + 4 * g, 2 * g * n,
    ),
    (
        "aten::_embedding_bag", (bf(99, n), ints(m), int4(g), False, 1, False, dd(m), True, -1),
        2 * m * n + (g - 1) * n, 2 * m * n + 16 * m + 4 * g, 2 * (g - 1) * n,
    ),
    (
        "aten::_embedding_bag_forward_only", (bf(99, n), ints(b, m), int4(0), False, 2, False, None, False, -1),
        0, 2 * b * m * n + 8 * b * m, 2 * b * n,
    ),
    ("aten::_embedding_bag", (bf(3, n), ints(m), int4(g), False, 2), 0, 2 * 3 * n + 8 * m + 4 * g, 2 * g * n),
    (
        "aten::_embedding_bag_dense_backward",
        (bf(g, n), ints(m), int4(m), dd(g), byte(k), 99, False, 0, t(m), -1), 2 * m * n,
        2 * g * n + (8 + 4) * m + 8 * g + k + 4 * m, 2 * 99 * n,
    ),
    (
        "aten::_embedding_bag_dense_backward",
        (bf(g, n), ints(m), int4(m), dd(g), byte(k), 99, False, 1, None, -1), 2 * m * n,
        2 * g * n + (8 + 4) * m + 8 * g + k, 2 * 99 * n,
    ),
    # the offsets are not read
    (
        "aten::_embedding_bag_backward",
        (bf(g, n), ints(m), ints(98), int4(m), dd(g), byte(k), 99, False, 1, False, t(m), -1), 3 * m * n,
        2 * g * n + (8 + 4) * m + 8 * g + k + 4 * m, 2 * 99 * n,
    ),
    (
        "aten::_embedding_bag_backward",
        (bf(g, n), ints(m), ints(98), int4(m), dd(g), byte(k), 99, False, 1, True, None, -1), m * n,
        2 * g * n + (8 + 4) * m, 2 * m * n,
    ),
    (
        "aten::_embedding_bag_backward",
        (bf(g, n), ints(m), ints(98), int4(m), dd(g), byte(k), 99, False, 0, True, t(m), -1), m * n,
        2 * g * n + (8 + 4 + 4) * m, 2 * m * n,
    ),
    (
        "aten::_embedding_bag_backward",
        (bf(g, n), ints(m), ints(98), int4(m), dd(g), byte(k), 99, False, 1, True, t(m), -1), 2 * m * n,
        2 * g * n + (8 + 4 + 4) * m, 2 * m * n,
    ),
    (
        "aten::_embedding_bag_backward",
        (bf(g, n), ints(m), ints(98), int4(m), dd(g), byte(k), 99, False, 0, True, None, -1), 0,
        2 * g * n + (8 + 4) * m, 2 * m * n,
    ),
    (
        "aten::_embedding_bag_per_sample_weights_backward", (dd(g, n), bf(99, n), ints(m), ints(98), int4(m), 0, -1),
        2 * m * n, 8 * g * n + 2 * m * n + 12 * m, 8 * m,
    ),
    ("aten::embedding_sparse_backward", (bf(m, n), ints(m), 99, -1, False), 0, 0, 0),
]  # fmt: skip

# images of 8 x 13, windows of 3 x 2, stride (2, 3), padding (1, 0), dilation (2, 1)
IMAGE, PIXELS = bf(b, c, 8, 13), b * c * 8 * 13
POOL = ((3, 2), (2, 3), (1, 0), (2, 1))
#: rows (8 + 2 - 5) // 2 + 1 and one more rounded up, columns (13 - 2) // 3 + 1 and one more
FLOOR, CEIL = b * c * 3 * 4, b * c * 4 * 5

POOLS: list[Example] = [
    ("aten::max_pool2d_with_indices", (IMAGE, *POOL, False), 0, 2 * PIXELS, (2 + 8) * FLOOR),
    ("aten::max_pool2d_with_indices", (IMAGE, *POOL, True), 0, 2 * PIXELS, (2 + 8) * CEIL),
    # a last window that would start behind the image is left out, be that in its padding: 4 of 12, 2 of 7
    ("aten::avg_pool1d", (bf(c, 12), (2,), (3,), (0,), True, True), c * 4 * 2, 2 * c * 12, 2 * c * 4),
    ("aten::avg_pool1d", (bf(c, 7), (2,), (4,), (1,), True, True), c * 2 * 2, 2 * c * 7, 2 * c * 2),
    ("aten::avg_pool1d", (bf(c, 8), (2,), (4,), (1,), True, True), c * 3 * 2, 2 * c * 8, 2 * c * 3),
    ("aten::mkldnn_max_pool2d", (IMAGE, *POOL, True), 0, 2 * PIXELS, 2 * CEIL),
    ("aten::max_pool3d_with_indices", (bf(b, 6, 8, 13), (2, 4, 3), (), 0, 1, False), 0, 2 * b * 6 * 8 * 13,
     10 * b * 3 * 2 * 4),
    (
        "aten::max_pool2d_with_indices_backward", (t(b, c, 3, 4), IMAGE, *POOL, False, int4(b, c, 3, 4)),
        FLOOR, 8 * FLOOR, 2 * PIXELS,
    ),
    # windows of 3 x 2, rows (8 + 2 - 3) // 2 + 1
    ("aten::avg_pool2d", (IMAGE, (3, 2), (2, 3), (1, 0), False, True, None), b * c * 4 * 4 * 6, 2 * PIXELS,
     2 * b * c * 16),
    ("aten::avg_pool3d", (bf(b, 6, 8, 13), (2, 4, 3), (), 0, False, True, None), b * 3 * 2 * 4 * 24,
     2 * b * 6 * 8 * 13, 2 * b * 24),
    ("aten::avg_pool2d_backward", (t(b, c, 4, 4), IMAGE, (3, 2), (2, 5), (1, 0), False, True, None),
     b * c * 16 * 6, 4 * b * c * 16, 2 * PIXELS),
    ("aten::_adaptive_avg_pool2d", (IMAGE, (3, 2)), PIXELS, 2 * PIXELS, 2 * b * c * 6),
    ("aten::_adaptive_avg_pool2d_backward", (t(b, c, 3, 2), IMAGE), PIXELS, 4 * b * c * 6, 2 * PIXELS),
    ("aten::adaptive_max_pool2d", (IMAGE, (3, 2)), 0, 2 * PIXELS, 10 * b * c * 6),
    ("aten::adaptive_max_pool2d_backward", (t(b, c, 3, 2), IMAGE, int4(b, c, 3, 2)), b * c * 6, 8 * b * c * 6,
     2 * PIXELS),
    ("aten::max_unpool2d", (bf(b, c, 3, 2), ints(b, c, 3, 2), (8, 13)), 0, 10 * b * c * 6, 2 * PIXELS),
    ("aten::fractional_max_pool2d", (IMAGE, (2, 2), (3, 5), t(b, c, 2)), 0, 2 * PIXELS + 4 * b * c * 2,
     10 * b * c * 15),
    ("aten::fractional_max_pool2d_backward", (t(b, c, 3, 5), IMAGE, (2, 2), (3, 5), int4(b, c, 3, 5)), b * c * 15,
     8 * b * c * 15, 2 * PIXELS),
    ("aten::upsample_nearest2d", (IMAGE, (9, 17), None, None), 0, 2 * PIXELS, 2 * b * c * 153),
    # 1.5 * 8 and 1.2 * 13, rounded down
    ("aten::upsample_nearest2d", (IMAGE, None, (1.5, 1.2)), 0, 2 * PIXELS, 2 * b * c * 12 * 15),
    ("aten::upsample_bilinear2d", (IMAGE, (), False, (1.5, 1.2)), 9 * b * c * 180, 2 * PIXELS, 2 * b * c * 180),
    ("aten::upsample_linear1d", (bf(c, 13), (17,), False, None), 3 * c * 17, 2 * c * 13, 2 * c * 17),
    ("aten::upsample_trilinear3d", (bf(b, c, 2, 3, 5), (3, 5, 7), True), 21 * b * c * 105, 2 * b * c * 30,
     2 * b * c * 105),
    ("aten::upsample_bicubic2d", (IMAGE, (9, 17), False), 35 * b * c * 153, 2 * PIXELS, 2 * b * c * 153),
    ("aten::upsample_bicubic2d_backward", (bf(b, c, 9, 17), (9, 17), (b, c, 8, 13), False), 35 * b * c * 153,
     2 * b * c * 153, 2 * PIXELS),
    ("aten::upsample_nearest1d_backward", (bf(b, c, 17), (17,), (b, c, 13)), b * c * 17, 2 * b * c * 17,
     2 * b * c * 13),
    ("aten::upsample_nearest1d", (bf(b, c, 13), (17,), None), 0, 2 * b * c * 13, 2 * b * c * 17),
    ("aten::_upsample_nearest_exact1d", (bf(b, c, 13), (17,), None), 0, 2 * b * c * 13, 2 * b * c * 17),
    ("aten::_upsample_nearest_exact2d", (IMAGE, (9, 17), None), 0, 2 * PIXELS, 2 * b * c * 153),
    ("aten::upsample_nearest3d", (bf(b, c, 2, 3, 5), (3, 5, 7)), 0, 2 * b * c * 30, 2 * b * c * 105),
    ("aten::_upsample_nearest_exact3d", (bf(b, c, 2, 3, 5), (3, 5, 7)), 0, 2 * b * c * 30, 2 * b * c * 105),
    # a result of 3 x 5 from a grid of pairs; bilinear, nearest, bicubic
    ("aten::grid_sampler_2d", (IMAGE, t(b, 3, 5, 2), 0, 0, False), 7 * b * c * 15, 2 * b * c * 60 + 4 * b * 30,
     2 * b * c * 15),
    ("aten::grid_sampler_2d", (IMAGE, t(b, 3, 5, 2), 1, 0, False), 0, 2 * b * c * 15 + 4 * b * 30, 2 * b * c * 15),
    ("aten::grid_sampler_2d", (IMAGE, t(b, 3, 5, 2), 2, 0, False), 35 * b * c * 15, 2 * PIXELS + 4 * b * 30,
     2 * b * c * 15),
    ("aten::cudnn_grid_sampler", (IMAGE, t(b, 3, 5, 2)), 7 * b * c * 15, 2 * b * c * 60 + 4 * b * 30, 2 * b * c * 15),
    ("aten::grid_sampler_3d", (bf(b, c, 2, 8, 13), t(b, 3, 5, 7, 3), 0, 0, True), 15 * b * c * 105,
     4 * PIXELS + 4 * b * 315, 2 * b * c * 105),
    (
        "aten::grid_sampler_2d_backward", (dd(b, c, 3, 5), IMAGE, t(b, 3, 5, 2), 0, 0, False, (True, True)),
        2 * 7 * b * c * 15, 8 * b * c * 15 + 2 * b * c * 60 + 4 * b * 30, 2 * PIXELS + 4 * b * 30,
    ),
    (
        "aten::grid_sampler_2d_backward", (dd(b, c, 3, 5), IMAGE, t(b, 3, 5, 2), 2, 0, False, (False, True)),
        35 * b * c * 15, 8 * b * c * 15 + 2 * PIXELS + 4 * b * 30, 4 * b * 30,
    ),
    (
        "aten::grid_sampler_3d_backward", (dd(b, c, 3, 5, 7), bf(b, c, 2, 8, 13), t(b, 3, 5, 7, 3), 0, 0, False,
                                           (True, False)),
        15 * b * c * 105, 8 * b * c * 105 + 4 * PIXELS + 4 * b * 315, 4 * PIXELS,
    ),
    # cuDNN's has the gradient last
    (
        "aten::cudnn_grid_sampler_backward", (IMAGE, t(b, 3, 5, 2), dd(b, c, 3, 5)),
        2 * 7 * b * c * 15, 8 * b * c * 15 + 2 * b * c * 60 + 4 * b * 30, 2 * PIXELS + 4 * b * 30,
    ),
    # rows of 8 to 4: 3 + 4 + 4 + 3 taps, done first, for 6 rows; the 6 rows to 3 likewise: 3 + 4 + 3, for 4 columns
    ("aten::_upsample_bilinear2d_aa", (bf(b, c, 6, 8), (3, 4), False, None, None), b * c * 2 * (6 * 14 + 4 * 10),
     2 * b * c * 48, 2 * b * c * 12),
    ("aten::_upsample_bilinear2d_aa", (bf(b, c, 6, 8), (6, 4), False, None, None), b * c * 2 * 6 * 14,
     2 * b * c * 48, 2 * b * c * 24),
    ("aten::_upsample_bilinear2d_aa_backward", (bf(b, c, 3, 4), (3, 4), (b, c, 6, 8), False, None, None),
     b * c * 2 * (6 * 14 + 4 * 10), 2 * b * c * 12, 2 * b * c * 48),
    # only columns; cubic (twice as wide) and Lanczos filters (three times)
    ("aten::_upsample_bilinear2d_aa", (bf(b, c, 6, 8), (3, 8), False, None, None), b * c * 2 * 8 * 10,
     2 * b * c * 48, 2 * b * c * 24),
    ("aten::_upsample_bicubic2d_aa", (bf(b, c, 6, 8), (6, 4), False, None, None), b * c * 2 * 6 * (5 + 7 + 7 + 5),
     2 * b * c * 48, 2 * b * c * 24),
    ("aten::_upsample_lanczos2d_aa", (bf(b, c, 6, 8), (6, 4), False, None, None), b * c * 2 * 6 * (7 + 8 + 8 + 7),
     2 * b * c * 48, 2 * b * c * 24),
    # twice as large: the filter does not get narrower than two elements
    ("aten::_upsample_bilinear2d_aa", (bf(b, c, 6, 4), (6, 8), False, None, None), b * c * 2 * 6 * (1 + 6 * 2 + 1),
     2 * b * c * 24, 2 * b * c * 48),
    # a factor of 0.4 is a scale of 2.5, and 3 of 8 without one 2.67: 4 + 5 + 4 and 4 + 6 + 4 taps
    ("aten::_upsample_bilinear2d_aa", (bf(b, c, 8, 8), (3, 3), False, 0.4, None), b * c * 2 * (8 * 14 + 3 * 13),
     2 * b * c * 64, 2 * b * c * 9),
    ("aten::_upsample_bilinear2d_aa", (bf(b, c, 8, 8), (3, 3), False, None, 0.4), b * c * 2 * (8 * 13 + 3 * 14),
     2 * b * c * 64, 2 * b * c * 9),
    ("aten::_upsample_bilinear2d_aa", (bf(b, c, 8, 8), (3, 3), False, 0.0, None), b * c * 2 * (8 * 14 + 3 * 14),
     2 * b * c * 64, 2 * b * c * 9),
    (
        "aten::_upsample_bilinear2d_aa_backward", (bf(b, c, 3, 3), (3, 3), (b, c, 8, 8), False, 0.4, None),
        b * c * 2 * (8 * 14 + 3 * 13), 2 * b * c * 9, 2 * b * c * 64,
    ),
    (
        "aten::_upsample_bilinear2d_aa_backward", (bf(b, c, 3, 3), (3, 3), (b, c, 8, 8), False, None, 0.4),
        b * c * 2 * (8 * 13 + 3 * 14), 2 * b * c * 9, 2 * b * c * 64,
    ),
    # a factor of 1.9: the taps of 7 of 4, of which the first has one
    ("aten::_upsample_bilinear2d_aa", (bf(b, c, 6, 4), (6, 7), False, None, 1.9), b * c * 2 * 6 * (1 + 6 * 2),
     2 * b * c * 24, 2 * b * c * 42),
    # corners aligned: of one element the first; of two a scale of 7
    ("aten::_upsample_bilinear2d_aa", (bf(b, c, 6, 8), (6, 1), True, None, None), b * c * 2 * 6,
     2 * b * c * 48, 2 * b * c * 6),
    ("aten::_upsample_bilinear2d_aa", (bf(b, c, 6, 8), (6, 2), True, None, None), b * c * 2 * 6 * (8 + 4),
     2 * b * c * 48, 2 * b * c * 12),
    # corners aligned: a scale of 7 / 3 at centers 7 / 6, 3.5, 35 / 6, 49 / 6: taps 0-3, 1-6, 4-8, 6-8
    ("aten::_upsample_bilinear2d_aa", (bf(b, c, 6, 8), (6, 4), True, None, None), b * c * 2 * 6 * (4 + 5 + 4 + 2),
     2 * b * c * 48, 2 * b * c * 24),
    ("aten::_upsample_bilinear2d_aa_backward", (bf(b, c, 6, 4), (6, 4), (b, c, 6, 8), True, None, None),
     b * c * 2 * 6 * (4 + 5 + 4 + 2), 2 * b * c * 24, 2 * b * c * 48),
]  # fmt: skip

ROIS = t(k, 5)
REGIONS: list[Example] = [
    # k regions of 3 x 2, 2 x 2 samples each
    (
        "torchvision::roi_align", (bf(b, c, 99, 99), ROIS, 0.5, 3, 2, 2, True), k * c * 6 * (8 * 4 + 1),
        2 * 4 * k * c * 6 * 4 + 4 * k * 5, 2 * k * c * 6,
    ),
    (
        "torchvision::_roi_align_backward", (bf(k, c, 3, 2), ROIS, 0.5, 3, 2, b, c, 8, 13, 2, True),
        k * c * 6 * (8 * 4 + 1), 2 * k * c * 6 + 4 * k * 5, 2 * PIXELS,
    ),
    (
        "torchvision::ps_roi_align", (bf(b, c * 6, 99, 99), ROIS, 0.5, 3, 2, 3), k * c * 6 * (8 * 9 + 1),
        2 * 4 * k * c * 6 * 9 + 4 * k * 5, (2 + 4) * k * c * 6,
    ),
    (
        "torchvision::_ps_roi_align_backward", (bf(k, c, 3, 2), ROIS, int4(k, c, 3, 2), 0.5, 3, 2, 3, b, c, 8, 13),
        k * c * 6 * (8 * 9 + 1), 2 * k * c * 6 + 4 * k * 5 + 4 * k * c * 6, 2 * PIXELS,
    ),
    ("torchvision::roi_pool", (IMAGE, ROIS, 0.5, 3, 2), 0, 2 * k * c * 6 + 4 * k * 5, (2 + 4) * k * c * 6),
    (
        "torchvision::_roi_pool_backward", (bf(k, c, 3, 2), ROIS, int4(k, c, 3, 2), 0.5, 3, 2, b, c, 8, 13),
        k * c * 6, 2 * k * c * 6 + 4 * k * 5 + 4 * k * c * 6, 2 * PIXELS,
    ),
    # 7 channels out of 3, kernels of 3 x 2 at 4 x 5 places, with and without a mask
    (
        "torchvision::deform_conv2d",
        (IMAGE, t(n, c, 3, 2), dd(b, 12, 4, 5), t(b, 6, 4, 5), dd(n), 2, 3, 1, 0, 1, 1, 1, 1, True),
        2 * b * n * 20 * c * 6, 2 * PIXELS + 4 * n * c * 6 + 8 * b * 240 + 4 * b * 120 + 8 * n, 2 * b * n * 20,
    ),
    (
        "torchvision::deform_conv2d",
        (IMAGE, t(n, c, 3, 2), dd(b, 12, 4, 5), t(b, 6, 4, 5), None, 2, 3, 1, 0, 1, 1, 1, 1, False),
        2 * b * n * 20 * c * 6, 2 * PIXELS + 4 * n * c * 6 + 8 * b * 240, 2 * b * n * 20,
    ),
    (
        "torchvision::_deform_conv2d_backward",
        (t(b, n, 4, 5), IMAGE, t(n, c, 3, 2), dd(b, 12, 4, 5), bf(b, 6, 4, 5), dd(n), 2, 3, 1, 0, 1, 1, 1, 1, True),
        2 * 2 * b * n * 20 * c * 6, 4 * b * n * 20 + 2 * PIXELS + 4 * n * c * 6 + 8 * b * 240 + 2 * b * 120,
        2 * PIXELS + 4 * n * c * 6 + 8 * b * 240 + 2 * b * 120 + 8 * n,
    ),
    (
        "torchvision::_deform_conv2d_backward",
        (t(b, n, 4, 5), IMAGE, t(n, c, 3, 2), dd(b, 12, 4, 5), bf(b, 6, 4, 5), dd(n), 2, 3, 1, 0, 1, 1, 1, 1, False),
        2 * 2 * b * n * 20 * c * 6, 4 * b * n * 20 + 2 * PIXELS + 4 * n * c * 6 + 8 * b * 240,
        2 * PIXELS + 4 * n * c * 6 + 8 * b * 240 + 8 * n,
    ),
    # k rows of n behind each other in g sequences of at most m
    ("aten::_jagged_to_padded_dense_forward", (bf(k, n), (int4(g + 1),), (m,), 0.0), 0, 2 * k * n + 4 * (g + 1),
     2 * g * m * n),
    ("aten::_padded_dense_to_jagged_forward", (bf(g, m, n), (int4(g + 1),), k), 0, 2 * k * n + 4 * (g + 1), 2 * k * n),
    (
        "aten::_nested_from_padded_tensor", (bf(g, m, n), int4(g + 1), t(0), 1, t(0), t(9), k), 0,
        2 * k * n + 4 * (g + 1), 2 * k * n,
    ),
    (
        "aten::_nested_from_padded_tensor", (bf(g, m, n), int4(g + 1), t(0), None, t(0), t(9), k), 0,
        2 * k * n + 4 * (g + 1), 2 * k * n,
    ),
    ("aten::_transform_bias_rescale_qkv", (bf(b, m, 6), t(6), 2), b * m * 8, 2 * b * m * 6 + 4 * 6, 2 * b * m * 6),
    ("aten::_transform_bias_rescale_qkv", (bf(b, m, 12), t(12), 2), b * m * 16, 2 * b * m * 12 + 4 * 12,
     2 * b * m * 12),
    # 64 complex points in 8 x 8, two of them; half as much for real ones
    ("aten::_fft_c2c", (t(b, 8, 8, dtype="complex64"), (1, 2), 0, True), 5 * b * 64 * 6, 8 * b * 64, 8 * b * 64),
    ("aten::_fft_c2c", (t(b, 8, dtype="complex64"), (1,), 0, True, t(0, dtype="complex128")), 5 * b * 8 * 3,
     8 * b * 8, 16 * b * 8),
    ("aten::_fft_c2c", (t(b, 1, dtype="complex64"), (1,), 0, True), 0, 8 * b, 8 * b),
    ("aten::_fft_r2c", (t(b, 8, m), (1,), 0, True), 5 * b * 8 * m * 3 // 2, 4 * b * 8 * m, 8 * b * 5 * m),
    ("aten::_fft_r2c", (t(b, 4, 8), (1, -1), 0, False), 5 * b * 32 * 5 // 2, 4 * b * 32, 8 * b * 32),
    ("aten::_fft_c2c", (t(b, 2, dtype="complex64"), (1,), 0, True), 5 * b * 2, 16 * b, 16 * b),
    ("aten::_fft_r2c", (t(b, 8), (1,), 0, True, t(0, dtype="complex128")), 5 * b * 8 * 3 // 2, 4 * b * 8, 16 * b * 5),
    ("aten::_fft_c2r", (t(b, 5, dtype="complex64"), (1,), 0, 8, dd(0)), 5 * b * 8 * 3 // 2, 8 * b * 5, 8 * b * 8),
    ("aten::_fft_c2r", (t(b, 5, m, dtype="complex64"), (1,), 0, 8), 5 * b * 8 * m * 3 // 2, 8 * b * 5 * m,
     4 * b * 8 * m),
]  # fmt: skip

NEW: list[Example] = [
    ("aten::fill_", (bf(m, n), t()), 0, 4, 2 * m * n),
    ("aten::uniform_", (bf(m, n), 0.0, 1.0, None), 0, 0, 2 * m * n),
    ("aten::bernoulli_", (bf(m, n), t(n), None), 0, 4 * n, 2 * m * n),
    ("aten::poisson", (bf(m, n), None), 0, 2 * m * n, 2 * m * n),
    ("aten::zeros", ((m, n), 15, 0, None, False), 0, 0, 2 * m * n),
    ("aten::zeros", ((), 15, 0, None, False), 0, 0, 2),
    ("aten::ones", ((m, n), None, None, None, None), 0, 0, 4 * m * n),
    ("aten::rand", ((m, n), None, 7, 0, None, False), 0, 0, 8 * m * n),
    ("aten::randn", ((m, n), bf(0)), 0, 0, 2 * m * n),
    ("aten::full", ((m, n), 0.5, None, None, None, None), 0, 0, 4 * m * n),
    ("aten::full", ((m, n), 1, None, None, None, None), 0, 0, 8 * m * n),
    ("aten::full", ((m, n), True, None, None, None, None), 0, 0, m * n),
    ("aten::full", ((m, n), True, 15, None, None, None), 0, 0, 2 * m * n),
    ("aten::zeros_like", (bf(m, n), 7, None, None, None, None), 0, 0, 8 * m * n),
    ("aten::ones_like", (bf(m, n), None, None, None, None, None), 0, 0, 2 * m * n),
    ("aten::full_like", (bf(m, n), 1, 7, None, None, None, None), 0, 0, 8 * m * n),
    ("aten::full_like", (bf(m, n), 1, None, None, None, None, None), 0, 0, 2 * m * n),
    ("aten::randint_like", (bf(m, n), 9, 7, None, None, None, None), 0, 0, 8 * m * n),
    ("aten::randint_like", (bf(m, n), 1, 9, 6, None, None, None, None), 0, 0, 4 * m * n),
    ("aten::randint_like", (bf(m, n), 9, None, None, None, None, None), 0, 0, 2 * m * n),
    ("aten::new_zeros", (bf(b), (m, n), 7, None, None, None), 0, 0, 8 * m * n),
    ("aten::new_ones", (bf(b), (m, n), None, None, None, None), 0, 0, 2 * m * n),
    ("aten::new_full", (bf(b), (m, n), 1, 7, None, None, None), 0, 0, 8 * m * n),
    ("aten::new_full", (bf(b), (m, n), 1, None, None, None, None), 0, 0, 2 * m * n),
    ("aten::scalar_tensor", (0.5, 7, None, None, None), 0, 0, 8),
    ("aten::scalar_tensor", (0.5, None, None, None, None), 0, 0, 4),
    ("aten::arange", (3, 17, 4, None, None, None, None), 0, 0, 8 * 4),
    ("aten::arange", (3, 17, 15, None, None, None), 0, 0, 2 * 14),
    ("aten::arange", (3.0, None, None, None, None), 0, 0, 4 * 3),
    ("aten::arange", (17, 3, None, None, None, None), 0, 0, 0),
    ("aten::linspace", (0, 1, n, 15, None, None, None), 0, 0, 2 * n),
    ("aten::logspace", (0, 1, n, 10.0, 7, None, None, None), 0, 0, 8 * n),
    ("aten::linspace", (0, 1, n, None, None, None, None), 0, 0, 4 * n),
    ("aten::linspace", (0, 1, n, bf(0)), 0, 0, 2 * n),
    ("aten::eye", (m, 15, None, None, None), 0, 0, 2 * m * m),
    ("aten::eye", (m, n, 6, None, None, None), 0, 0, 4 * m * n),
    ("aten::eye", (m, None, None, None, None), 0, 0, 4 * m * m),
    ("aten::randint", (9, (m, n), None, None, None, None), 0, 0, 8 * m * n),
    ("aten::randint", (1, 9, (m, n), 3, None, None, None), 0, 0, 4 * m * n),
    ("aten::randperm", (n, 4, None, None, None), 0, 0, 8 * n),
    # 5 + 4 + 3 + 2 + 1 places with a row and a column each
    ("aten::tril_indices", (5, 5, 0, 4, None, None, None), 0, 0, 8 * 2 * 15),
    ("aten::triu_indices", (5, 5), 0, 0, 8 * 2 * 15),
    ("aten::normal", (bf(m, n), t(m, n), None), 2 * m * n, 6 * m * n, 2 * m * n),
    ("aten::normal", (0.5, t(m, n), None), 2 * m * n, 4 * m * n, 4 * m * n),
    ("aten::binomial", (bf(m, n), t(m, n), None), 0, 6 * m * n, 2 * m * n),
    ("aten::_standard_gamma", (bf(m, n), None), 0, 2 * m * n, 2 * m * n),
]  # fmt: skip


@pytest.mark.parametrize(
    ("operator", "arguments", "flops", "read", "written"), [*MOVEMENT, *INDEXING, *POOLS, *REGIONS, *NEW]
)
def test_worked_example(operator: str, arguments: tuple[Argument, ...], flops: int, read: int, written: int) -> None:
    assert figures(operator, arguments) == (flops, read, written)
