"""All three figures of formulas in rare use, worked out by hand: products, convolutions, sparse matrices."""

from __future__ import annotations

import pytest

from opanatomy.records.signature import Argument, Stored, Tensor
from tests.worked import Example, bf, bits, byte, dd, figures, int4, ints, t

b, m, n, k, g = 2, 3, 5, 7, 4

PRODUCTS: list[Example] = [
    ("aten::mm", (bf(m, k), t(k, n)), 2 * m * n * k, 2 * m * k + 4 * k * n, 2 * m * n),
    ("aten::bmm", (bf(b, m, k), t(b, k, n), dd(0)), 2 * b * m * n * k, 2 * b * m * k + 4 * b * k * n, 8 * b * m * n),
    ("aten::_int_mm", (byte(m, k), bits(k, n)), 2 * m * n * k, m * k + k * n, 4 * m * n),
    (
        "aten::baddbmm", (dd(n), bf(b, m, k), t(b, k, n), 1, 1), 2 * b * m * n * k,
        8 * n + 2 * b * m * k + 4 * b * k * n, 2 * b * m * n,
    ),
    (
        "aten::_addmm_activation", (dd(n), bf(m, k), t(k, n), 1, 1, True), 2 * m * n * k,
        8 * n + 2 * m * k + 4 * k * n, 2 * m * n,
    ),
    ("aten::addmm", (dd(n), bf(m, k), t(k, n)), 2 * m * n * k, 8 * n + 2 * m * k + 4 * k * n, 2 * m * n),
    ("aten::addmm", (dd(n), bf(m, k), t(k, n), 6, 0, 1), 2 * m * n * k, 2 * m * k + 4 * k * n, 4 * m * n),
    ("aten::addmm", (dd(n), bf(m, k), t(k, n), 1, 1, t(0)), 2 * m * n * k, 8 * n + 2 * m * k + 4 * k * n, 4 * m * n),
    (
        "aten::addbmm", (dd(n), bf(b, m, k), t(b, k, n), 1, 1), 2 * b * m * n * k,
        8 * n + 2 * b * m * k + 4 * b * k * n, 2 * m * n,
    ),
    ("aten::mv", (bf(m, k), t(k), dd(0)), 2 * m * k, 2 * m * k + 4 * k, 8 * m),
    ("aten::linear", (bf(k), t(n, k), dd(n)), 2 * n * k, 2 * k + 4 * n * k + 8 * n, 2 * n),
    # the third has a dimension of its own, and nothing to sum
    (
        "aten::_trilinear", (bf(m), t(m), dd(n), (1,), (1,), (0,), (0,), 1), 2 * m, 6 * m + 8 * n, 2 * n,
    ),
    ("aten::mv", (bf(m, k), t(k)), 2 * m * k, 2 * m * k + 4 * k, 2 * m),
    ("aten::vdot", (bf(k), t(k)), 2 * k, 6 * k, 2),
    ("aten::addmv", (dd(m), bf(m, k), t(k), 1, 1), 2 * m * k, 8 * m + 2 * m * k + 4 * k, 2 * m),
    ("aten::addr", (dd(n), bf(m), t(n), 1, 1), 2 * m * n, 8 * n + 2 * m + 4 * n, 8 * m * n),
    ("aten::linear", (bf(b, m, k), t(n, k), None), 2 * b * m * n * k, 2 * b * m * k + 4 * n * k, 2 * b * m * n),
    (
        "mkl::_mkl_linear", (bf(m, k), t(99), t(n, k), dd(n), m), 2 * m * n * k, 2 * m * k + 4 * n * k + 8 * n,
        2 * m * n,
    ),
    (
        "mkldnn::_linear_pointwise", (bf(m, k), t(n, k), dd(n), "relu", (), ""), 2 * m * n * k,
        2 * m * k + 4 * n * k + 8 * n, 2 * m * n,
    ),
    (
        "mkldnn::_linear_pointwise", (bf(m, k), bf(m, n), t(n, k), dd(n), "add"), 2 * m * n * k,
        2 * m * k + 2 * m * n + 4 * n * k + 8 * n, 2 * m * n,
    ),
    ("aten::matmul", (bf(k), t(b, k, n)), 2 * b * n * k, 2 * k + 4 * b * k * n, 2 * b * n),
    ("aten::matmul", (bf(b, m, k), t(k)), 2 * b * m * k, 2 * b * m * k + 4 * k, 2 * b * m),
    (
        "aten::matmul", (bf(b, 1, m, k), t(g, k, n)), 2 * b * g * m * n * k, 2 * b * m * k + 4 * g * k * n,
        2 * b * g * m * n,
    ),
    (
        "aten::_scaled_mm", (byte(m, k), bits(k, n), t(m, 1), dd(1, n), bf(n), t(1), 6, False), 2 * m * n * k,
        m * k + k * n + 4 * m + 8 * n + 2 * n + 4, 4 * m * n,
    ),
    ("aten::_scaled_mm", (bf(m, k), bf(k, n), t(), t()), 2 * m * n * k, 2 * (m * k + k * n) + 8, 2 * m * n),
    (
        "aten::_scaled_mm_v2",
        (byte(m, k), bits(k, n), (t(m),), (0,), (0,), (dd(n), t()), (1,), (0,), bf(n), 6, (), True),
        2 * m * n * k, m * k + k * n + 4 * m + 8 * n + 4 + 2 * n, 4 * m * n,
    ),
    (
        "aten::_scaled_mm_v2", (bf(m, k), bf(k, n), (t(m),), (0,), (0,), (dd(n),), (1,), (0,), None, None, (), True),
        2 * m * n * k, 2 * (m * k + k * n) + 4 * m + 8 * n, 2 * m * n,
    ),
    (
        "aten::_scaled_grouped_mm_v2",
        (byte(m, k), bits(g, k, n), (t(m),), (0,), (0,), (dd(g, n),), (1,), (0,), int4(g), bf(g, n), 6, (), False),
        2 * m * n * k, m * k + g * k * n + 4 * m + 8 * g * n + 4 * g + 2 * g * n, 4 * m * n,
    ),
    # columns in groups; matrices of their own; the shared dimension in groups
    (
        "aten::_grouped_mm", (bf(g, m, k), t(k, n), int4(g), None, None), 2 * m * n * k,
        2 * g * m * k + 4 * k * n + 4 * g, 2 * m * n,
    ),
    (
        "aten::_grouped_mm", (bf(g, m, k), t(g, k, n), None, None, 6), 2 * g * m * n * k,
        2 * g * m * k + 4 * g * k * n, 4 * g * m * n,
    ),
    (
        "aten::_scaled_grouped_mm",
        (Tensor((m, k), "float8_e4m3fn"), bits(k, n), t(m), dd(n), int4(g), None, None, None, False),
        2 * m * n * k, m * k + k * n + 4 * m + 8 * n + 4 * g, 2 * g * m * n,
    ),
    # bilinear: (b, m, ., .), (n, m, k) and (b, ., ., k); the sum over k needs the third, that over m does not
    (
        "aten::_trilinear", (bf(b, m), t(n, m, k), dd(b, k), (1, 3), (0,), (1, 2), (2, 3), 1),
        2 * b * n * m * k + 2 * b * n * k, 2 * b * m + 4 * n * m * k + 8 * b * k, 2 * b * n,
    ),
    # two of four elements are stored
    (
        "aten::_sparse_semi_structured_linear", (bf(b, m, 2 * k), t(n, k), byte(n, g), dd(n), "relu", 6),
        2 * b * m * n * k, 2 * b * m * 2 * k + 4 * n * k + n * g + 8 * n, 4 * b * m * n,
    ),
    (
        "aten::_sparse_semi_structured_linear", (bf(m, 2 * k), t(n, k), byte(n, g), None, None, None),
        2 * m * n * k, 2 * m * 2 * k + 4 * n * k + n * g, 2 * m * n,
    ),
    (
        "aten::_sparse_semi_structured_mm", (bf(m, k), byte(m, g), t(2 * k, n), 6), 2 * m * n * k,
        2 * m * k + m * g + 4 * 2 * k * n, 4 * m * n,
    ),
    (
        "aten::_sparse_semi_structured_mm", (bf(m, k), byte(m, g), t(2 * k, n), None), 2 * m * n * k,
        2 * m * k + m * g + 4 * 2 * k * n, 2 * m * n,
    ),
    (
        "aten::_sparse_semi_structured_addmm", (dd(m), bf(m, k), byte(m, g), t(2 * k, n), 1, 1, 6), 2 * m * n * k,
        8 * m + 2 * m * k + m * g + 4 * 2 * k * n, 4 * m * n,
    ),
]  # fmt: skip

# --------------------------------------------------------------------------------------------------------- convolutions

# images of 8 x 11, kernels of 3 x 2, stride (2, 1), padding (1, 0), dilation (1, 3): (8 + 2 - 3) // 2 + 1, 11 - 3
c_in, c_out, tall, wide, high = 4, 6, 8, 11, 4
OUT_W = wide - 3
IMAGE, KERNEL, PLACES = bf(b, c_in, tall, wide), t(c_out, c_in, 3, 2), b * high * OUT_W
STRIDE, PADDING, DILATION = (2, 1), (1, 0), (1, 3)
CONVOLVED = 2 * PLACES * c_out * c_in * 6
IMAGE_BYTES, KERNEL_BYTES, RESULT = 2 * b * c_in * tall * wide, 4 * c_out * c_in * 6, 2 * PLACES * c_out
# transposed: 2 (8 - 1) - 2 + 3 + 1 and 11 - 1 + 3 + 1, from 2 groups of 2 channels to 2 of 5
TURNED = t(c_in, 5, 3, 2)
TURNED_FLOPS, TURNED_BYTES = 2 * b * tall * wide * c_in * 5 * 6, 4 * c_in * 5 * 6
TURNED_RESULT = 2 * b * 10 * (2 * 7 - 2 + 2 + 1 + 1) * (10 + 3 + 1)

CONVOLUTIONS: list[Example] = [
    (
        "aten::convolution", (IMAGE, KERNEL, dd(c_out), STRIDE, PADDING, DILATION, False, (0, 0), 1),
        CONVOLVED, IMAGE_BYTES + KERNEL_BYTES + 8 * c_out, RESULT,
    ),
    (
        "aten::convolution", (IMAGE, TURNED, dd(10), STRIDE, PADDING, DILATION, True, (1, 0), 2),
        TURNED_FLOPS, IMAGE_BYTES + TURNED_BYTES + 8 * 10, TURNED_RESULT,
    ),
    (
        "aten::mkldnn_convolution", (IMAGE, KERNEL, dd(c_out), PADDING, STRIDE, DILATION, 1),
        CONVOLVED, IMAGE_BYTES + KERNEL_BYTES + 8 * c_out, RESULT,
    ),
    (
        "mkldnn::_convolution_pointwise", (IMAGE, KERNEL, None, PADDING, STRIDE, DILATION, 1, "relu"),
        CONVOLVED, IMAGE_BYTES + KERNEL_BYTES, RESULT,
    ),
    (
        "aten::cudnn_convolution", (IMAGE, KERNEL, PADDING, STRIDE, DILATION, 1, True, False, True),
        CONVOLVED, IMAGE_BYTES + KERNEL_BYTES, RESULT,
    ),
    (
        "aten::cudnn_convolution", (IMAGE, KERNEL, dd(c_out), PADDING, STRIDE, DILATION, 1, True, False),
        CONVOLVED, IMAGE_BYTES + KERNEL_BYTES + 8 * c_out, RESULT,
    ),
    (
        "aten::cudnn_convolution_transpose", (IMAGE, TURNED, PADDING, (1, 0), STRIDE, DILATION, 2, True, False, True),
        TURNED_FLOPS, IMAGE_BYTES + TURNED_BYTES, TURNED_RESULT,
    ),
    (
        "aten::miopen_convolution_transpose", (IMAGE, TURNED, dd(10), PADDING, (1, 0), STRIDE, DILATION, 2, True,
         False),
        TURNED_FLOPS, IMAGE_BYTES + TURNED_BYTES + 8 * 10, TURNED_RESULT,
    ),
    (
        "aten::cudnn_convolution_relu", (IMAGE, KERNEL, dd(c_out), STRIDE, PADDING, DILATION, 1),
        CONVOLVED, IMAGE_BYTES + KERNEL_BYTES + 8 * c_out, RESULT,
    ),
    (
        "aten::cudnn_convolution_add_relu",
        (IMAGE, KERNEL, dd(b, c_out, high, OUT_W), 1, bf(c_out), STRIDE, PADDING, DILATION, 1),
        CONVOLVED, IMAGE_BYTES + KERNEL_BYTES + 8 * PLACES * c_out + 2 * c_out, RESULT,
    ),
    (
        "aten::_conv_depthwise2d", (IMAGE, KERNEL, (3, 2), dd(c_out), STRIDE, PADDING, DILATION),
        CONVOLVED, IMAGE_BYTES + KERNEL_BYTES + 8 * c_out, RESULT,
    ),
    # without dilation two columns more
    (
        "aten::_slow_conv2d_forward", (IMAGE, KERNEL, (3, 2), None, STRIDE, PADDING),
        2 * b * high * (wide - 1) * c_out * c_in * 6, IMAGE_BYTES + KERNEL_BYTES, 2 * b * high * (wide - 1) * c_out,
    ),
    (
        "aten::thnn_conv2d", (IMAGE, KERNEL, (3, 2), None, STRIDE, PADDING, t(99)),
        2 * b * high * (wide - 1) * c_out * c_in * 6, IMAGE_BYTES + KERNEL_BYTES, 2 * b * high * (wide - 1) * c_out,
    ),
    (
        "aten::slow_conv_transpose2d", (IMAGE, TURNED, (3, 2), dd(5), STRIDE, PADDING, (0, 0), DILATION),
        TURNED_FLOPS, IMAGE_BYTES + TURNED_BYTES + 8 * 5, 2 * b * 5 * 15 * 14,
    ),
    (
        "aten::slow_conv_transpose2d", (IMAGE, TURNED, (3, 2), None, STRIDE, PADDING, (1, 0)),
        TURNED_FLOPS, IMAGE_BYTES + TURNED_BYTES, 2 * b * 5 * 16 * 12,
    ),
    (
        "aten::convolution_backward",
        (dd(b, c_out, high, OUT_W), IMAGE, KERNEL, (c_out,), STRIDE, PADDING, DILATION, False, (0, 0), 1,
         (True, False, True)),
        CONVOLVED, 8 * PLACES * c_out + KERNEL_BYTES, IMAGE_BYTES + 8 * c_out,
    ),
    # nobody asks for anything
    (
        "aten::convolution_backward",
        (dd(b, c_out, high, OUT_W), IMAGE, KERNEL, (c_out,), STRIDE, PADDING, DILATION, False, (0, 0), 1,
         (False, False, False)),
        0, 0, 0,
    ),
    (
        "aten::convolution_backward_overrideable",
        (dd(b, 10, 16, 14), IMAGE, TURNED, STRIDE, PADDING, DILATION, True, (1, 0), 2, (True, True, False)),
        2 * TURNED_FLOPS, 8 * b * 10 * 16 * 14 + IMAGE_BYTES + TURNED_BYTES, IMAGE_BYTES + TURNED_BYTES,
    ),
    (
        "aten::_slow_conv2d_backward",
        (dd(b, c_out, high, OUT_W), IMAGE, KERNEL, (3, 2), STRIDE, PADDING, (False, True, True)),
        CONVOLVED, 8 * PLACES * c_out + IMAGE_BYTES, KERNEL_BYTES + 8 * c_out,
    ),
    (
        "aten::thnn_conv2d_backward",
        (dd(b, c_out, high, OUT_W), IMAGE, KERNEL, (3, 2), STRIDE, PADDING, t(0), None, t(0)),
        CONVOLVED, 8 * PLACES * c_out + KERNEL_BYTES, IMAGE_BYTES + 8 * c_out,
    ),
    (
        "aten::cudnn_convolution_backward",
        (IMAGE, dd(b, c_out, high, OUT_W), KERNEL, PADDING, STRIDE, DILATION, 1, True, False, True, (True, True)),
        2 * CONVOLVED, 8 * PLACES * c_out + IMAGE_BYTES + KERNEL_BYTES, IMAGE_BYTES + KERNEL_BYTES,
    ),
    (
        "aten::miopen_convolution_backward",
        (IMAGE, dd(b, c_out, high, OUT_W), KERNEL, PADDING, STRIDE, DILATION, 1, True, False, (False, True, True)),
        CONVOLVED, 8 * PLACES * c_out + IMAGE_BYTES, KERNEL_BYTES + 8 * c_out,
    ),
    (
        "aten::cudnn_convolution_backward_input",
        ((b, c_in, tall, wide), dd(b, c_out, high, OUT_W), KERNEL, PADDING, STRIDE, DILATION, 1),
        CONVOLVED, 8 * PLACES * c_out + KERNEL_BYTES, 8 * b * c_in * tall * wide,
    ),
    (
        "aten::cudnn_convolution_backward_weight",
        ((c_out, c_in, 3, 2), dd(b, c_out, high, OUT_W), IMAGE, PADDING, STRIDE, DILATION, 1),
        CONVOLVED, 8 * PLACES * c_out + IMAGE_BYTES, 8 * c_out * c_in * 6,
    ),
    # sequences: (9 + 2 - 3) // 2 + 1 places
    (
        "aten::convolution", (bf(b, c_in, 9), t(c_out, c_in, 3), None, (2,), (1,), (1,), False, (0,), 1),
        2 * b * 5 * c_out * c_in * 3, 2 * b * c_in * 9 + 4 * c_out * c_in * 3, 2 * b * 5 * c_out,
    ),
    (
        "aten::miopen_convolution_backward_weight",
        ((c_out, c_in, 3), dd(b, c_out, 5), bf(b, c_in, 9), (1,), (2,), (1,), 1),
        2 * b * 5 * c_out * c_in * 3, 8 * b * c_out * 5 + 2 * b * c_in * 9, 8 * c_out * c_in * 3,
    ),
    # an image without a batch dimension
    (
        "aten::convolution", (bf(c_in, tall, wide), KERNEL, None, STRIDE, PADDING, DILATION, False, (0, 0), 1),
        CONVOLVED // b, IMAGE_BYTES // b + KERNEL_BYTES, RESULT // b,
    ),
    # 11 + 2 - 3 + 1 steps
    (
        "aten::conv_tbc", (bf(11, b, c_in), t(3, c_in, c_out), dd(c_out), 1), 2 * 11 * b * c_out * 3 * c_in,
        2 * 11 * b * c_in + 4 * 3 * c_in * c_out + 8 * c_out, 2 * 11 * b * c_out,
    ),
    (
        "aten::conv_tbc", (bf(11, b, c_in), t(3, c_in, c_out), dd(c_out)), 2 * 9 * b * c_out * 3 * c_in,
        2 * 11 * b * c_in + 4 * 3 * c_in * c_out + 8 * c_out, 2 * 9 * b * c_out,
    ),
]  # fmt: skip

# ------------------------------------------------------------------------------------------------------------- sparse

nnz = 5


def coo(*shape: int, elements: int = nnz, index_bytes: int = 17) -> Tensor:
    """A float32 matrix that stores so many elements, with an odd number of bytes for their places."""
    return Tensor(shape, "float32", None, Stored(elements, index_bytes))


STORED = 4 * nnz + 17
SPARSE: list[Example] = [
    ("aten::mm", (coo(m, k), dd(k, n)), 2 * nnz * n, STORED + 8 * k * n, 4 * m * n),
    ("aten::mm", (dd(m, k), coo(k, n)), 2 * m * nnz, STORED + 8 * m * k, 8 * m * n),
    ("aten::mv", (coo(m, k), dd(k)), 2 * nnz, STORED + 8 * k, 4 * m),
    ("aten::bmm", (coo(b, m, k), dd(b, k, n)), 2 * nnz * n, STORED + 8 * b * k * n, 4 * b * m * n),
    ("aten::addmm", (bf(m, n), coo(m, k), dd(k, n), 1, 1), 2 * nnz * n, 2 * m * n + STORED + 8 * k * n, 4 * m * n),
    ("aten::addmm", (bf(m, n), coo(m, k), dd(k, n)), 2 * nnz * n, 2 * m * n + STORED + 8 * k * n, 4 * m * n),
    ("aten::_sparse_addmm", (bf(m, n), coo(m, k), dd(k, n), 0, 1), 2 * nnz * n, STORED + 8 * k * n, 4 * m * n),
    ("aten::_sparse_mm_reduce_impl", (coo(m, k), dd(k, n), "mean"), 2 * nnz * n, STORED + 8 * k * n, 4 * m * n),
    (
        "aten::_sparse_mm_reduce_impl_backward", (coo(m, k), bf(m, n), dd(k, n), "sum", ints(1), (True, True)),
        2 * 2 * nnz * n, STORED + 2 * m * n + 8 * k * n, STORED + 8 * k * n,
    ),
    (
        "aten::_sparse_mm_reduce_impl_backward", (coo(m, k), bf(m, n), dd(k, n), "mean", ints(1), (False, True)),
        2 * nnz * n, STORED + 2 * m * n, 8 * k * n,
    ),
    (
        "aten::sparse_sampled_addmm", (coo(m, n), bf(m, k), dd(k, n), 1, 1), 2 * nnz * k,
        STORED + 2 * m * k + 8 * k * n, STORED,
    ),
    ("aten::_sparse_softmax", (coo(m, n), 1, False), 4 * nnz, STORED, STORED),
    (
        "aten::_sparse_softmax_backward_data", (coo(m, n, elements=8), coo(m, n), 1, coo(m, n, elements=9)), 4 * nnz,
        4 * 8 + 17 + STORED, STORED,
    ),
    ("aten::_to_dense", (coo(m, n), None, None), 0, STORED, 4 * m * n),
    ("aten::_to_dense", (coo(m, n), 7, None), 0, STORED, 8 * m * n),
    ("aten::sparse_mask", (dd(m, n), coo(m, n)), 0, STORED, STORED),
    ("aten::clone", (coo(m, n), None), 0, STORED, STORED),
    ("aten::copy_", (coo(m, n, elements=9), coo(m, n), False), 0, STORED, STORED),
    ("aten::expm1", (coo(m, n),), nnz, STORED, STORED),
    ("aten::relu_", (coo(m, n),), 0, STORED, STORED),
    ("aten::transpose", (coo(m, n), 0, 1), 0, 0, 0),
    # graph packages: rows of 6 segments, nnz stored elements
    (
        "pyg::segment_matmul", (bf(m, k), ints(g + 1), t(g, k, n)), 2 * m * n * k,
        2 * m * k + 8 * (g + 1) + 4 * g * k * n, 2 * m * n,
    ),
    (
        "pyg::grouped_matmul", ((bf(m, k), dd(g, n)), (t(k, n), t(n, k))), 2 * m * n * k + 2 * g * n * k,
        2 * m * k + 8 * g * n + 4 * k * n + 4 * n * k, 2 * m * n + 8 * g * k,
    ),
    (
        "torch_sparse::spmm_sum", (ints(1), int4(g + 1), ints(nnz), bf(nnz), ints(2), ints(3), bf(b, k, n)),
        2 * b * nnz * n, 4 * (g + 1) + 10 * nnz + 2 * b * k * n, 2 * b * g * n,
    ),
    (
        "torch_sparse::spmm_sum", (ints(1), int4(g + 1), ints(nnz), None, ints(2), ints(3), bf(b, k, n)),
        b * nnz * n, 4 * (g + 1) + 8 * nnz + 2 * b * k * n, 2 * b * g * n,
    ),
    (
        "torch_sparse::spmm_mean", (ints(1), int4(g + 1), ints(nnz), bf(nnz), ints(2), ints(3), ints(6), bf(b, k, n)),
        2 * b * nnz * n + b * g * n, 4 * (g + 1) + 10 * nnz + 2 * b * k * n, 2 * b * g * n,
    ),
    (
        "torch_sparse::spmm_max", (int4(g + 1), ints(nnz), bf(nnz), bf(b, k, n)),
        2 * b * nnz * n, 4 * (g + 1) + 10 * nnz + 2 * b * k * n, (2 + 8) * b * g * n,
    ),
    # segments along the second of three dimensions
    ("torch_scatter::segment_sum_csr", (bf(b, m, n), ints(b, g + 1), None), b * m * n,
     2 * b * m * n + 8 * b * (g + 1), 2 * b * g * n),
    ("pyg::segment_max_csr", (bf(b, m, n), ints(b, g + 1), None), b * m * n,
     2 * b * m * n + 8 * b * (g + 1), (2 + 8) * b * g * n),
    ("torch_scatter::scatter_sum", (bf(b, m, n), ints(m), 1, None, g), b * m * n, 2 * b * m * n + 8 * m,
     2 * b * g * n),
    ("pyg::scatter_min", (bf(b, m, n), ints(m), -2, None, g), b * m * n, 2 * b * m * n + 8 * m, (2 + 8) * b * g * n),
    ("torch_scatter::scatter_mean", (bf(b, m, n), ints(m), 1, t(b, k, n), None), b * m * n, 2 * b * m * n + 8 * m,
     2 * b * k * n),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "arguments", "flops", "read", "written"), [*PRODUCTS, *CONVOLUTIONS, *SPARSE])
def test_worked_example(operator: str, arguments: tuple[Argument, ...], flops: int, read: int, written: int) -> None:
    assert figures(operator, arguments) == (flops, read, written)
