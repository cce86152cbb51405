"""The operators that a sweep of torch's single operators found without a cost: bytes of real tensors, FLOPs by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from opanatomy.cost.registry import cost
from opanatomy.records.signature import Cost, Signature, Tensor
from tests.observer import Call, Observer

aten = torch.ops.aten
torch.set_num_threads(1)


def _f(*shape: int) -> torch.Tensor:
    return torch.rand(shape)


def _spd(*shape: int) -> torch.Tensor:
    x = torch.rand(shape)
    return x @ x.mT + shape[-1] * torch.eye(shape[-1])


def _i(*values: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def _q(*shape: int) -> torch.Tensor:
    return torch.quantize_per_tensor(torch.rand(shape), 0.1, 0, torch.quint8)


b, m, n, k, d = 2, 6, 5, 4, 3
A = m * n
#: steps of an LU factorization of (4, 4): 3 + 2 + 1 divisions, 2 (9 + 4 + 1) in the products
LU_4 = 6 + 28

#: name -> the calls, and the FLOPs of the operator of that name.
CALLS: dict[str, tuple[Callable[[], Any], int]] = {
    # maps
    "special_bessel_j0": (lambda: torch.special.bessel_j0(_f(m, n)), A),
    "special_modified_bessel_k1": (lambda: torch.special.modified_bessel_k1(_f(m, n)), A),
    "special_erfcx": (lambda: torch.special.erfcx(_f(m, n)), A),
    "special_i1e": (lambda: torch.special.i1e(_f(m, n)), A),
    "special_zeta": (lambda: torch.special.zeta(_f(m, n) + 1, _f(m, n)), A),
    "igamma": (lambda: torch.igamma(_f(m, n), _f(n)), A),
    "polygamma": (lambda: torch.polygamma(1, _f(m, n)), A),
    "angle": (lambda: torch.angle(torch.complex(_f(m, n), _f(m, n))), A),
    "frexp": (lambda: torch.frexp(_f(m, n)), 0),
    "linalg_cross": (lambda: torch.linalg.cross(_f(m, 3), _f(m, 3)), 3 * 3 * m),
    "_prelu_kernel_backward": (lambda: aten._prelu_kernel_backward(_f(m, n), _f(m, n), _f(1, n)), 2 * A),
    "_standard_gamma": (lambda: torch._standard_gamma(_f(m, n)), 0),
    "_standard_gamma_grad": (lambda: aten._standard_gamma_grad(_f(m, n), _f(m, n)), A),
    "_transform_bias_rescale_qkv": (lambda: aten._transform_bias_rescale_qkv(_f(b, m, 24), _f(24), 2), 4 * b * m * 8),
    # reductions and losses
    "dist": (lambda: torch.dist(_f(m, n), _f(m, n)), 2 * A),
    "renorm": (lambda: torch.renorm(_f(m, n), 2, 0, 1.0), 2 * A),
    "segment_reduce": (lambda: torch.segment_reduce(_f(m, n), "sum", lengths=_i(1, 2, 3)), A),
    "_segment_reduce_backward": (
        lambda: aten._segment_reduce_backward(_f(2, n), _f(2, n), _f(m, n), "mean", lengths=_i(2, 4)), A,
    ),
    "histogram": (lambda: torch.histogram(_f(m), 4), m),
    "soft_margin_loss": (lambda: F.soft_margin_loss(_f(m, n), _f(m, n)), 5 * A),
    "soft_margin_loss_backward": (lambda: aten.soft_margin_loss_backward(_f(), _f(m, n), _f(m, n), 1), 7 * A),
    "multi_margin_loss": (lambda: F.multi_margin_loss(_f(m, n), torch.zeros(m, dtype=torch.int64)), 3 * A),
    "multi_margin_loss_backward": (
        lambda: aten.multi_margin_loss_backward(_f(), _f(m, n), torch.zeros(m, dtype=torch.int64), 1, 1), 4 * A,
    ),
    # movement
    "max_unpool2d": (lambda: F.max_unpool2d(*F.max_pool2d(_f(b, d, 6, 4), 2, return_indices=True), 2), 0),
    "fractional_max_pool2d": (lambda: F.fractional_max_pool2d(_f(b, d, 6, 6), 2, output_size=3), 0),
    "diag_embed": (lambda: torch.diag_embed(_f(m, n), 1), 0),
    "block_diag": (lambda: torch.block_diag(_f(m, n), _f(2, 3), _f(4)), 0),
    "tril_indices": (lambda: torch.tril_indices(5, 5), 0),
    "put": (lambda: torch.put(_f(m, n), _i(0, 1, 2), _f(3), True), 3),
    "index_reduce": (lambda: torch.index_reduce(_f(m, n), 0, _i(0, 2), _f(2, n), "amax"), 2 * n),
    "isin": (lambda: torch.isin(_i(1, 2, 3), _i(2, 5)), 0),
    # 4 taps to halve a row of 8, at its ends 3: 3 + 4 + 4 + 3; rows first
    "_upsample_bilinear2d_aa": (
        lambda: F.interpolate(_f(b, d, 8, 8), size=(4, 4), mode="bilinear", antialias=True),
        b * d * 2 * (8 * (3 + 4 + 4 + 3) + 4 * (3 + 4 + 4 + 3)),
    ),
    "_upsample_bicubic2d_aa": (
        lambda: F.interpolate(_f(b, d, 5, 8), size=(5, 4), mode="bicubic", antialias=True),
        b * d * 2 * 5 * (5 + 7 + 7 + 5),
    ),
    # embedding bags: a table of 9 rows of k, bags of m indices
    "_embedding_bag_per_sample_weights_backward": (
        lambda: aten._embedding_bag_per_sample_weights_backward(
            _f(2, k), _f(9, k), _i(0, 1, 2, 3, 4, 5), _i(0, 3), _i(0, 0, 0, 1, 1, 1), 0
        ),
        2 * 6 * k,
    ),
    # products
    "conv_tbc": (lambda: torch.conv_tbc(_f(7, b, k), _f(3, k, n), _f(n)), 2 * 5 * b * 3 * k * n),
    # a matrix of 4: LAPACK's counts
    "linalg_cholesky_ex": (lambda: torch.linalg.cholesky_ex(_spd(b, 4, 4)), b * (4 * 5 * 9 // 6)),
    "cholesky_inverse": (lambda: torch.cholesky_inverse(_spd(4, 4)), 4 * (64 + 12 + 5) // 6),
    "linalg_lu_factor_ex": (lambda: torch.linalg.lu_factor_ex(_f(b, 4, 4)), b * LU_4),
    "linalg_lu": (lambda: torch.linalg.lu(_f(b, 4, 4)), b * LU_4),
    "lu_unpack": (lambda: torch.lu_unpack(*torch.linalg.lu_factor(_f(4, 4))), 0),
    "_linalg_det": (lambda: aten._linalg_det(_f(b, 4, 4)), b * (LU_4 + 4)),
    "linalg_inv_ex": (lambda: torch.linalg.inv_ex(_spd(4, 4)), LU_4 + (4 * 64 - 48 + 20) // 3),
    "geqrf": (lambda: torch.geqrf(_f(m, k)), (6 * m * k * k - 2 * k**3 + 3 * m * k + 3 * k * k + 14 * k) // 3),
    "linalg_householder_product": (
        lambda: torch.linalg.householder_product(_f(m, k), _f(k)),
        (12 * m * k * k - 6 * (m + k) * k * k + 4 * k**3 + 9 * k * k - 3 * m * k - 3 * k * k - 4 * k) // 3,
    ),
    "ormqr": (lambda: torch.ormqr(_f(m, k), _f(k), _f(m, n)), 4 * m * n * k - 2 * n * k * k + 3 * n * k),
    "_linalg_solve_ex": (lambda: torch.linalg.solve_ex(_spd(b, 4, 4), _f(b, 4, n)), b * (LU_4 + 2 * 16 * n)),
    "linalg_lu_solve": (lambda: torch.lu_solve(_f(4, n), *torch.linalg.lu_factor(_spd(4, 4))), 2 * 16 * n),
    "cholesky_solve": (lambda: torch.cholesky_solve(_f(4, n), _spd(4, 4)), 2 * 16 * n),
    "triangular_solve": (lambda: torch.triangular_solve(_f(4, n), _spd(4, 4)), 16 * n),
    # in and out of 8 bits
    "quantize_per_tensor": (lambda: torch.quantize_per_tensor(_f(m, n), 0.1, 0, torch.quint8), 3 * A),
    "quantize_per_channel": (
        lambda: torch.quantize_per_channel(_f(m, n), torch.full((m,), 0.1).double(), _i(*[0] * m), 0, torch.qint8),
        3 * A,
    ),
    "dequantize": (lambda: _q(m, n).dequantize(), 2 * A),
    "fake_quantize_per_tensor_affine_cachemask": (
        lambda: torch.fake_quantize_per_tensor_affine(_f(m, n), 0.1, 0, 0, 255), 5 * A,
    ),
    "fake_quantize_per_channel_affine_cachemask": (
        lambda: torch.fake_quantize_per_channel_affine(
            _f(m, n), torch.full((m,), 0.1), torch.zeros(m, dtype=torch.int32), 0, 0, 255
        ),
        5 * A,
    ),
    "_fake_quantize_learnable_per_tensor_affine": (
        lambda: torch._fake_quantize_learnable_per_tensor_affine(_f(m, n), _f(1), _f(1), 0, 255), 5 * A,
    ),
    "_fake_quantize_learnable_per_tensor_affine_backward": (
        lambda: aten._fake_quantize_learnable_per_tensor_affine_backward(_f(m, n), _f(m, n), _f(1), _f(1), 0, 255),
        12 * A,
    ),
    "quantized_max_pool2d": (lambda: F.max_pool2d(_q(b, d, 6, 4), 2), 0),
    # ragged
    "_jagged_to_padded_dense_forward": (lambda: aten._jagged_to_padded_dense_forward(_f(5, k), [_i(0, 2, 5)], [3]), 0),
    "_padded_dense_to_jagged_forward": (lambda: aten._padded_dense_to_jagged_forward(_f(2, 3, k), [_i(0, 2, 5)], 5), 0),
}  # fmt: skip

#: What these move is not whole tensors: bytes read and written, by hand.
OWN_BYTES = {
    # the rows looked up, not the whole table, and no offsets
    "_embedding_bag_per_sample_weights_backward": (4 * (2 * k + 6 * k) + 8 * (6 + 6), 4 * 6),
    # rows of the padding are not read
    "_padded_dense_to_jagged_forward": (4 * 5 * k + 8 * 3, 4 * 5 * k),
}


def _observed(name: str) -> Call:
    torch.manual_seed(0)
    with Observer() as observer:
        CALLS[name][0]()
    return next(call for call in observer.calls if call.operator == f"aten::{name}")


@pytest.mark.filterwarnings("ignore:.*(deprecated|in beta).*:UserWarning")
@pytest.mark.parametrize("name", CALLS)
def test_an_operator_of_the_sweep(name: str) -> None:
    call = _observed(name)
    found = cost(call.operator, call.signature, "cpu")
    assert found is not None, call
    assert found.flops == CALLS[name][1]
    seen = (call.read_bytes, call.written_bytes)
    assert (found.read_bytes, found.written_bytes) == OWN_BYTES.get(name, seen)


def moved(found: Cost | None) -> tuple[int, int, int]:
    """FLOPs, bytes read, bytes written."""
    assert found is not None
    return found.flops, found.read_bytes, found.written_bytes


# --------------------------------------------------------------------------------------------------- worked by hand


def t(*shape: int, dtype: str = "float32") -> Tensor:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return Tensor(shape, dtype, tuple(reversed(strides)))


def of(operator: str, *arguments: Any) -> Cost | None:
    return cost(operator, Signature(arguments))


def test_average_pooling_of_a_sequence() -> None:
    assert moved(of("aten::avg_pool1d", t(b, d, 6), (2,), (), (0,), False, True)) == (
        b * d * 3 * 2, 4 * b * d * 6, 4 * b * d * 3,
    )  # fmt: skip


def test_aligned_corners_set_the_scale_of_a_resized_image() -> None:
    """9 elements to 5 are two apart: 4 taps, at the ends 3 and 2; rows first."""
    flops, _, _ = moved(of("aten::_upsample_bilinear2d_aa", t(b, d, 9, 9), (5, 5), True, None, None))
    assert flops == b * d * 2 * (9 + 5) * (3 + 4 + 4 + 4 + 2)


def test_a_bag_gradient_is_counted_where_it_is_called() -> None:
    grad, index, bags = t(2, k), t(6, dtype="int64"), t(6, dtype="int64")
    rest = (t(2, dtype="int64"), t(2, dtype="int64"))
    dense = of("aten::_embedding_bag_backward", grad, index, t(2, dtype="int64"), bags, *rest, 9, False, 1, False, None)
    inner = of("aten::_embedding_bag_dense_backward", grad, index, bags, *rest, 9, False, 1, None, -1)
    assert dense == inner
    assert moved(dense) == (2 * 6 * k, 4 * 2 * k + 8 * (6 + 6 + 2 + 2), 4 * 9 * k)
    rows = of("aten::_embedding_bag_backward", grad, index, t(2, dtype="int64"), bags, *rest, 9, False, 0, True, None)
    assert moved(rows) == (0, 4 * 2 * k + 8 * (6 + 6), 4 * 6 * k)


def test_what_iterates_or_is_data_has_no_cost() -> None:
    matrix = t(4, 4)
    for name in ("_linalg_eigh", "_linalg_svd", "linalg_eig", "linalg_lstsq", "linalg_matrix_exp"):
        assert of(f"aten::{name}", matrix, matrix, True) is None
    # the mode of QR is a string, which a trace drops
    assert of("aten::linalg_qr", matrix, None) is None
    assert of("aten::linalg_qr", matrix, "r") == Cost(
        flops=(384 - 128 + 48 + 48 + 56) // 3, read_bytes=64, written_bytes=64
    )
    assert of("aten::linalg_lu_factor_ex", t(4, 4, dtype="complex64"), True, False) is None
    assert of("aten::_fused_moving_avg_obs_fq_helper", t(4), t(1), t(1)) is None


def test_regions() -> None:
    c, size, side, samples, count = 8, 20, 7, 2, 5
    x, rois = t(b, c, size, size), t(count, 5)
    elements = count * c * side**2
    found = of("torchvision::roi_align", x, rois, 0.25, side, side, samples, False)
    # four neighbours of each of the samples are more than the image
    assert moved(found) == (elements * (8 * 4 + 1), 4 * (x.numel + rois.numel), 4 * elements)
    assert of("torchvision::roi_align", x, rois, 0.25, side, side, -1, False) is None
    grad = t(count, c, side, side)
    back = of("torchvision::_roi_align_backward", grad, rois, 0.25, side, side, b, c, size, size, samples, False)
    assert moved(back) == (elements * 33, 4 * (elements + rois.numel), 4 * x.numel)
    pooled = of("torchvision::roi_pool", x, rois, 0.25, side, side)
    # one element of each region at least
    assert moved(pooled) == (0, 4 * (elements + rois.numel), 8 * elements)
    placed = of("torchvision::ps_roi_align", x, rois, 0.25, 2, 2, samples)
    assert moved(placed) == (count * 8 * 33, 4 * (4 * 4 * count * 8 + rois.numel), 8 * count * 8)
    assert of("torchvision::nms", t(9, 4), t(9), 0.5) is None


def test_deformable_convolution() -> None:
    c, out, size, kernel = 4, 6, 9, 3
    x, weight, bias = t(b, c, size, size), t(out, c // 2, kernel, kernel), t(out)
    offset, mask = t(b, 2 * kernel**2, 7, 7), t(b, kernel**2, 7, 7)
    tail = (1, 1, 0, 0, 1, 1, 2, 1, True)
    found = of("torchvision::deform_conv2d", x, weight, offset, mask, bias, *tail)
    flops = 2 * b * out * 7 * 7 * (c // 2) * kernel**2
    given = 4 * (x.numel + weight.numel + offset.numel + mask.numel)
    assert moved(found) == (flops, given + 4 * out, 4 * b * out * 49)
    grad = t(b, out, 7, 7)
    back = of("torchvision::_deform_conv2d_backward", grad, x, weight, offset, mask, bias, *tail)
    assert moved(back) == (2 * flops, given + 4 * grad.numel, given + 4 * out)


def test_graph_packages() -> None:
    rows, stored, wide = 10, 40, 16
    pointer, column, value, x = t(rows + 1, dtype="int64"), t(stored, dtype="int64"), t(stored), t(12, wide)
    found = of("torch_sparse::spmm_sum", None, pointer, column, value, None, None, x)
    read = 8 * (rows + 1 + stored) + 4 * (stored + 12 * wide)
    assert moved(found) == (2 * stored * wide, read, 4 * rows * wide)
    plain = of("torch_sparse::spmm_sum", None, pointer, column, None, None, None, x)
    assert moved(plain) == (stored * wide, read - 4 * stored, 4 * rows * wide)
    mean = of("torch_sparse::spmm_mean", None, pointer, column, value, None, None, None, x)
    assert moved(mean) == (2 * stored * wide + rows * wide, read, 4 * rows * wide)
    largest = of("torch_sparse::spmm_max", pointer, column, value, x)
    assert moved(largest) == (2 * stored * wide, read, 12 * rows * wide)
    typed = of("pyg::segment_matmul", x, t(4, dtype="int64"), t(3, wide, 5))
    assert moved(typed) == (2 * 12 * wide * 5, 4 * (12 * wide + 3 * wide * 5) + 32, 4 * 60)
    segments = of("torch_scatter::segment_max_csr", x, t(4, dtype="int64"), None)
    assert moved(segments) == (12 * wide, 4 * 12 * wide + 32, 12 * 3 * wide)
    assert of("torch_scatter::scatter_max", x, t(12, wide, dtype="int64"), 0, None, None) is None


def test_packed_weights_are_known_where_a_capture_saw_them() -> None:
    x, weight, bias = t(3, 16, dtype="quint8"), Tensor((8, 16), "qint8"), Tensor((8,), "float32")
    found = of("quantized::linear", x, (weight, bias), 0.1, 0)
    assert moved(found) == (2 * 3 * 8 * 16, 48 + 32 + 128, 24)
    assert of("quantized::linear", x, None, 0.1, 0) is None
    floats = of("quantized::linear_dynamic_fp16", t(3, 16), (Tensor((8, 16), "float32"), bias))
    assert moved(floats) == (2 * 3 * 8 * 16, 4 * 48 + 32 + 2 * 128, 4 * 24)
    image, kernel = t(2, 4, 9, 9, dtype="quint8"), Tensor((6, 2, 3, 3), "qint8")
    geometry = ((1, 1), (0, 0), (0, 0), (1, 1), 2, False)
    convolved = of("quantized::conv2d_relu", image, (kernel, None, geometry), 0.1, 0)
    assert moved(convolved) == (2 * 2 * 6 * 49 * 2 * 9, 648 + 108, 2 * 6 * 49)


def test_a_table_of_8_bits() -> None:
    index = t(6, dtype="int64")
    found = of("quantized::embedding_byte", (Tensor((10, 12), "quint8"), None), index, False)
    assert moved(found) == (2 * 6 * 12, 6 * (12 + 8) + 48, 4 * 6 * 12)
    assert of("quantized::embedding_byte", None, index, False) is None


def test_quantized_recurrent_layers() -> None:
    steps, batch, inputs, hidden = 5, 2, 16, 8
    x, hx = t(steps, batch, inputs), t(2, batch, hidden)
    tail = (True, 1, 0.0, False, True, False)
    found = of("aten::quantized_lstm", x, (hx, hx), None, *tail, 12, True)
    weights = 2 * 4 * hidden * (inputs + hidden)
    assert moved(found) == (
        2 * steps * batch * weights,
        4 * (x.numel + 2 * hx.numel) + weights + 4 * 2 * 2 * 4 * hidden,
        4 * (steps * batch * 2 * hidden + 2 * hx.numel),
    )
    cell = of("quantized::quantized_lstm_cell_dynamic", t(3, 16), (t(3, 8), t(3, 8)), None, None, t(32), t(32))
    assert moved(cell) == (2 * 3 * 32 * 24, 4 * (48 + 48 + 64) + 32 * 24, 4 * 48)


def test_quantized_maps() -> None:
    q = t(m, n, dtype="quint8")
    assert moved(of("quantized::add", q, q, 0.1, 0)) == (8 * A, 2 * A, A)
    assert of("quantized::add", q, 2.0) is None
    assert moved(of("quantized::sigmoid", q, 0.1, 0)) == (9 * A, A, A)
    assert moved(of("quantized::layer_norm", q, (n,), t(n), t(n), 1e-5, 0.1, 0)) == (12 * A, A + 8 * n, A)


def test_products_with_few_bits() -> None:
    x, packed, scales = t(3, 64, dtype="bfloat16"), t(16, 32, dtype="uint8"), t(2, 16, dtype="bfloat16")
    found = of("aten::_weight_int4pack_mm_with_scales_and_zeros", x, packed, 32, scales, scales)
    assert moved(found) == (2 * 3 * 64 * 16, 2 * 192 + 512 + 4 * 32, 2 * 48)
    dynamic = of("aten::_dyn_quant_matmul_4bit", t(3, 64), t(700, dtype="uint8"), 32, 64, 16)
    assert moved(dynamic) == (2 * 3 * 64 * 16, 4 * 192 + 700, 4 * 48)
    a, w = t(3, 64, dtype="float8_e4m3fn"), t(16, 64, dtype="float8_e4m3fn")
    rows = of("fbgemm::f8f8bf16_rowwise", a, w, t(3), t(16), None, True)
    assert moved(rows) == (2 * 3 * 64 * 16, 192 + 1024 + 76, 2 * 48)


def test_a_linear_of_onednn_may_add_another_tensor() -> None:
    # square, so that the other tensor could be taken for the weight
    x, other, weight = t(8, 8), t(8, 4), t(4, 8)
    found = of("mkldnn::_linear_pointwise", x, other, weight, None, "add")
    assert moved(found) == (2 * 8 * 4 * 8, 4 * (64 + 32 + 32), 4 * 32)
    packed = t(1, 1234)
    assert moved(of("mkl::_mkl_linear", x, packed, weight, t(4), 8)) == (2 * 8 * 4 * 8, 4 * (64 + 32 + 4), 4 * 32)


def test_flash_attention_3_by_its_own_operators() -> None:
    # what Dao's package registers is the operator around `fwd` and `bwd`: it owned the work and had no cost
    q = t(2, 16, 4, 8, dtype="bfloat16")
    none = (None,) * 20
    forward = (q, q, q, *none, 0.1, True, -1, -1, 0, 0.0, True, None, 1, None, 0)
    assert of("flash_attn_3::_flash_attn_forward", *forward) == of("flash_attn_3::fwd", *forward)
    found = of("flash_attn_3::_flash_attn_forward", *forward)
    assert found is not None
    assert found.flops == 4 * 2 * 4 * 16 * 16 * 8
    lse = t(2, 4, 16)
    backward = of(
        "flash_attn_3::_flash_attn_backward", q, q, q, q, q, lse, *(None,) * 6, 0.1, True, -1, -1, 0.0, False, 0
    )
    assert backward is not None
    assert (backward.flops, backward.causal_flops) == (10 * 2 * 4 * 16 * 16 * 8, 5 * 2 * 4 * 16 * 16 * 8)
    # a later release has the places of the gradients before the scale
    head, tail = (q, q, q, q, q, lse, *(None,) * 6), (0.1, True, -1, -1, 0.0, False, 0)
    assert of("flash_attn_3::_flash_attn_backward", *head, q, q, q, *tail) == backward


def test_a_norm_without_a_place_for_its_result_is_not_guessed() -> None:
    x, weight = t(10, 64), t(64)
    assert of("vllm::rms_norm", x, x, weight, 1e-6) is not None
    assert of("vllm::rms_norm", x, weight, 1e-6) is None


def test_a_cache_takes_as_many_rows_as_there_are_slots() -> None:
    keys, cache, slots = t(12, 2, 16), t(9, 16, 2, 16), t(10, dtype="int64")
    found = of("_C_cache_ops::reshape_and_cache_flash", keys, keys, cache, cache, slots)
    assert moved(found) == (0, 2 * 4 * 320 + 80, 2 * 4 * 320)


def test_a_triangular_solve_needs_sides_that_fit() -> None:
    rows, columns = 4, 3
    solve = "aten::linalg_solve_triangular"

    def flops(shape: tuple[int, ...], *, left: bool, unit: bool = False) -> int | None:
        solved = of(solve, t(2, rows, rows), t(*shape), True, left, unit)
        return None if solved is None else solved.flops

    assert flops((2, rows, columns), left=True) == 2 * rows * rows * columns
    assert flops((2, columns, rows), left=False) == 2 * rows * rows * columns
    assert flops((2, rows, columns), left=True, unit=True) == 2 * rows * (rows - 1) * columns
    assert flops((2, columns, rows), left=True) is None
    assert flops((2, rows, columns), left=False) is None
    assert of(solve, t(2, rows, rows + 1), t(2, rows + 1, columns), True, True, False) is None


@pytest.mark.parametrize("name", ["aten::index_add_", "aten::index_add"])
@pytest.mark.parametrize(("alpha", "each"), [((), 1), ((1,), 1), ((2,), 2), ((0.5,), 2)])
def test_a_scaled_sum_by_index_scales_each_element(name: str, alpha: tuple[float, ...], each: int) -> None:
    added = of(name, t(m, n), 0, t(d, dtype="int64"), t(d, n), *alpha)
    assert added is not None
    assert added.flops == each * d * n
