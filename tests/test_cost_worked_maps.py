"""All three figures of maps and reductions, worked out by hand."""

from __future__ import annotations

import pytest

from opanatomy.cost.compiled import SAMPLES, flops_per_element
from opanatomy.cost.elementwise import MAPS, UNARY, UNARY_BOOL, UNARY_FLOATING
from opanatomy.cost.registry import has_formula
from opanatomy.records.signature import Argument
from tests.worked import Example, bf, bits, dd, figures, int4, ints, t

b, c, g, h, m, n, k = 2, 3, 4, 6, 5, 7, 11
A = m * n

# ---------------------------------------------------------------------------------------------------------------- maps

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
    read = sum(x.bytes or 0 for x in operands)
    assert figures(f"aten::{name}", operands) == (row.flops * A, read, item * A)


#: The second operand of these is never a number.
TENSORS_ALONE = ("polar", "complex", "_prelu_kernel", "linalg_cross", "_standard_gamma_grad", "_masked_scale")


@pytest.mark.parametrize("name", sorted(name for name, row in MAPS.items() if row.operands == 2))
def test_a_number_as_second_operand(name: str) -> None:
    """A trace has it as a tensor of float64 without a dimension: it moves nothing. A tensor of that kind is read."""
    row = MAPS[name]
    alone = name in TENSORS_ALONE or name.endswith("_backward")
    x = t(m, n) if row.result == "complex" else bf(m, n)
    costs = figures(f"aten::{name}", (x, dd()))
    assert costs is not None
    assert costs[:2] == (row.flops * A, (x.bytes or 0) + 8 * alone)


@pytest.mark.parametrize("name", sorted(name for name, row in MAPS.items() if row.factor is None))
def test_a_place_for_the_result_of_every_map(name: str) -> None:
    """It follows the operands and gives the data type."""
    operands = (bf(m, n), bf(n), bf(1))[: MAPS[name].operands]
    read = sum(x.bytes or 0 for x in operands)
    assert figures(f"aten::{name}", (*operands, dd(0))) == (MAPS[name].flops * A, read, 8 * A)


def test_what_torch_has_no_form_in_place_of() -> None:
    names = ("silu_backward_", "special_i1_", "__and___", "isnan_", "rsub_")
    assert [name for name in names if has_formula(f"aten::{name}")] == []
    assert has_formula("aten::silu_")


MAPS_AND_REDUCTIONS: list[Example] = [
    # a number that the trace dropped changes no tensor of numbers with a fraction; no bound is no operand
    ("aten::mul", (bf(m, n), None), A, 2 * A, 2 * A),
    ("aten::clamp", (ints(m, n), None, ints(1)), 0, 8 * A + 8, 8 * A),
    ("aten::pow", (2, dd()), 1, 8, 8),
    ("aten::_masked_scale", (bf(m, n), t(m, n), 2.0), A, 6 * A, 2 * A),
    # the multiplier is 1 more, and only where it is one
    *((f"aten::{name}", (bf(m, n), t(n), factor), cost * A, 2 * A + 4 * n, 4 * A)
      for name in ("add", "sub", "subtract", "rsub") for factor, cost in ((1, 1), (3, 2), (0.5, 2))),
    *((f"aten::{name}", (dd(m, n), bf(n), t(1), factor), cost * A, 8 * A + 2 * n + 4, 8 * A)
      for name in ("addcmul_", "addcdiv_") for factor, cost in ((1, 2), (0.5, 3))),
    ("aten::abs", (t(m, n, dtype="complex64"),), A, 8 * A, 4 * A),
    ("aten::exp", (ints(m, n),), A, 8 * A, 4 * A),
    ("aten::square", (ints(m, n),), A, 8 * A, 8 * A),
    ("aten::clamp", (bf(m, n), t(n), dd(1)), 0, 2 * A + 4 * n + 8, 8 * A),
    ("aten::native_dropout_backward", (bf(m, n), bits(m, n), 2.0), A, 3 * A, 2 * A),
    ("aten::mul_", (bf(m, n), t(n)), A, 2 * A + 4 * n, 2 * A),
    ("aten::mul", (bf(m, n), t(n), dd(0)), A, 2 * A + 4 * n, 8 * A),
    ("aten::div_", (bf(m, n), t(n)), A, 2 * A + 4 * n, 2 * A),
    ("aten::div", (ints(m, n), int4(n), None), A, 8 * A + 4 * n, 8 * A),
    ("aten::div", (ints(m, n), int4(n)), A, 8 * A + 4 * n, 4 * A),
    ("aten::div", (ints(m, n), int4(n), dd(0)), A, 8 * A + 4 * n, 8 * A),
    ("aten::where", (bits(m, 1), bf(n), t()), 0, m + 2 * n + 4, 2 * A),
    ("aten::where", (bits(m, 1), bf(n), dd(1), t(0)), 0, m + 2 * n + 8, 4 * A),
    ("aten::masked_fill", (bf(n), bits(m, 1), dd()), 0, 2 * n + m + 8, 2 * A),
    ("aten::masked_fill_", (bf(m, n), bits(n), dd()), 0, 2 * A + n + 8, 2 * A),
    # an input scale, the gradient and what was saved
    ("aten::elu_backward", (bf(m, n), 1.0, 1.0, 1.0, False, t(m, n)), 4 * A, 6 * A, 2 * A),
    ("aten::gelu_backward", (bf(m, n), t(m, n), "none"), 11 * A, 6 * A, 4 * A),
    ("aten::native_dropout", (bf(m, n), 0.1, True), A, 2 * A, 3 * A),
    ("aten::glu", (bf(m, 2 * n), -1), 5 * A, 4 * A, 2 * A),
    ("aten::glu_backward", (bf(m, n), t(m, 2 * n), -1), 8 * A, 2 * A + 8 * A, 8 * A),
    ("aten::log_sigmoid_forward", (bf(m, n),), 3 * A, 2 * A, 4 * A),
    ("aten::log_sigmoid_backward", (bf(m, n), t(m, n), dd(m, n)), 5 * A, 14 * A, 4 * A),
    ("aten::polygamma", (2, bf(m, n)), A, 2 * A, 2 * A),
    ("aten::polygamma_", (bf(m, n), 2), A, 2 * A, 2 * A),
    ("aten::mvlgamma", (bf(m, n), 5), 15 * A, 2 * A, 2 * A),
    ("aten::angle", (t(m, n, dtype="complex128"),), A, 16 * A, 8 * A),
    ("aten::angle", (bf(m, n),), 0, 2 * A, 2 * A),
    ("aten::frexp", (bf(m, n),), 0, 2 * A, 2 * A + 4 * A),
    ("aten::_prelu_kernel_backward", (bf(m, n), t(m, n), dd(n)), 2 * A, 6 * A + 8 * n, 2 * 4 * A),
    ("aten::rrelu_with_noise", (bf(m, n), t(m, n), 0.1, 0.3, True, None), A, 2 * A, 2 * A + 4 * A),
    ("aten::rrelu_with_noise", (bf(m, n), t(m, n), 0.1, 0.3, False, None), A, 2 * A, 2 * A),
    ("aten::rrelu_with_noise", (bf(m, n), t(m, n)), A, 2 * A, 2 * A),
    ("aten::rrelu_with_noise_backward", (bf(m, n), t(m, n), dd(m, n), 0.1, 0.3, True, False), A, 10 * A, 4 * A),
    ("aten::rrelu_with_noise_backward", (bf(m, n), t(m, n), dd(m, n), 0.1, 0.3, False, False), A, 6 * A, 4 * A),
    ("aten::renorm", (bf(m, n), 2, 0, 1.0), 2 * A, 2 * A, 2 * A),
    # g segments of the m rows of each of b
    ("aten::segment_reduce", (bf(b, m, n), "sum", ints(b, g), None, None, 1, False, None), b * A, 2 * b * A + 8 * b * g,
     2 * b * g * n),
    ("aten::segment_reduce", (bf(m, n), "sum", None, None, int4(g + 1)), A, 2 * A + 4 * (g + 1), 2 * g * n),
    ("aten::_segment_reduce_backward", (bf(g, n), t(g, n), dd(m, n), "max", ints(g), None, 0, None), A,
     6 * g * n + 8 * A + 8 * g, 8 * A),
    ("aten::_segment_reduce_backward", (bf(g, n), t(g, n), dd(m, n), "max", None, int4(g + 1), 0, None), A,
     6 * g * n + 8 * A + 4 * (g + 1), 8 * A),
    ("aten::histogram", (bf(m, n), 9, None, t(m, n), False), A, 6 * A, 2 * (9 + 10)),
    ("aten::histogram", (bf(m, n), t(9), dd(m, n), False), A, 10 * A + 4 * 9, 2 * (8 + 9)),
    ("aten::isin", (bf(m, n), t(k), False, False), 0, 2 * A + 4 * k, A),
    ("aten::isin", (bf(m, n), 3.0, False, False), 0, 2 * A, A),
    ("aten::nansum", (bf(m, n), (0,), False, None), A, 2 * A, 2 * n),
    ("aten::sum", (bf(m, n), 6), A, 2 * A, 4),
    ("aten::sum", (int4(m, n),), A, 4 * A, 8),
    ("aten::sum", (bf(m, n), (1,), False, 6, dd(0)), A, 2 * A, 8 * m),
    ("aten::amax", (bf(b, m, n), (0, 2), False), b * A, 2 * b * A, 2 * m),
    ("aten::amin", (bf(m, n), (0,), False, t(0)), A, 2 * A, 4 * n),
    ("aten::max", (bf(m, n),), A, 2 * A, 2),
    ("aten::min", (bf(m, n), 0, False), A, 2 * A, 10 * n),
    ("aten::maximum", (bf(m, n), t(n)), 0, 2 * A + 4 * n, 4 * A),
    ("aten::max", (bf(m, n), t(n)), 0, 2 * A + 4 * n, 4 * A),
    ("aten::median", (bf(m, n),), A, 2 * A, 2),
    ("aten::mode", (bf(m, n), 1, False), A, 2 * A, 10 * m),
    ("aten::aminmax", (bf(m, n), 0, False), A, 2 * A, 2 * 2 * n),
    ("aten::argmax", (bf(m, n), 0, False), A, 2 * A, 8 * n),
    ("aten::any", (bf(m, n),), A, 2 * A, 1),
    ("aten::all", (bf(m, n), 0, False), A, 2 * A, n),
    ("aten::all", (bf(m, n), t(0)), A, 2 * A, 1),
    ("aten::var", (bf(m, n), True), A, 2 * A, 2),
    ("aten::std", (bf(m, n), (0,), 1, False), A, 2 * A, 2 * n),
    ("aten::var_mean", (bf(m, n), (0,), 1, False), A, 2 * A, 2 * 2 * n),
    ("aten::std_mean", (bf(m, n), True), A, 2 * A, 2 * 2),
    ("aten::linalg_vector_norm", (bf(m, n), 2, (0,), False, None), A, 2 * A, 2 * n),
    ("aten::linalg_vector_norm", (bf(m, n), 2, None, False, 6), A, 2 * A, 4),
    ("aten::norm", (bf(m, n), 2), A, 2 * A, 2),
    ("aten::norm", (bf(m, n), 2, 6), A, 2 * A, 4),
    ("aten::norm", (bf(m, n), 2, (0,), False), A, 2 * A, 2 * n),
    ("aten::norm", (bf(m, n), 2, (0,), False, 6), A, 2 * A, 4 * n),
    ("aten::logsumexp", (bf(m, n), (0,), False), 3 * A, 2 * A, 2 * n),
    ("aten::logsumexp", (ints(m, n), (1,), False), 3 * A, 8 * A, 4 * m),
    ("aten::count_nonzero", (bf(m, n), (0,)), A, 2 * A, 8 * n),
    ("aten::count_nonzero", (bf(m, n), None), A, 2 * A, 8),
    ("aten::cumprod", (bf(m, n), 0, 6), A, 2 * A, 4 * A),
    ("aten::cumsum", (bf(m, n), 0, None, dd(0)), A, 2 * A, 8 * A),
    ("aten::cumsum_", (int4(m, n), 0, None), A, 4 * A, 4 * A),
    ("aten::cummax", (bf(m, n), 0), A, 2 * A, 10 * A),
    ("aten::logcumsumexp", (bf(m, n), 0), 3 * A, 2 * A, 2 * A),
    ("aten::histc", (bf(m, n), 9, 0, 1), A, 2 * A, 2 * 9),
    ("aten::sort", (bf(m, n), 0, False), 0, 2 * A, 10 * A),
    ("aten::argsort", (bf(m, n), 0, False), 0, 2 * A, 8 * A),
    ("aten::topk", (bf(m, n), 3, 0, True, True), 0, 2 * A, 10 * 3 * n),
    ("aten::topk", (bf(m, n), 3), 0, 2 * A, 10 * 3 * m),
    ("aten::multinomial", (bf(m, n), 3, False, None), 0, 2 * A, 8 * 3 * m),
    ("aten::searchsorted", (bf(k), t(m, n), True, False, None, None), 0, 2 * k + 4 * A, 4 * A),
    ("aten::bucketize", (t(m, n), bf(k), False, False), 0, 2 * k + 4 * A, 8 * A),
    ("aten::bucketize", (t(m, n), bf(k), True, False), 0, 2 * k + 4 * A, 4 * A),
    ("aten::kthvalue", (bf(m, n), 3, 0, False), 0, 2 * A, 10 * n),
    ("aten::kthvalue", (bf(m, n), 3), 0, 2 * A, 10 * m),
    ("aten::equal", (bf(m, n), t(m, n)), A, 6 * A, 0),
    ("aten::trace", (bf(m, n),), m, 2 * m, 2),
    ("aten::trace", (int4(n, m),), m, 4 * m, 8),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "arguments", "flops", "read", "written"), MAPS_AND_REDUCTIONS)
def test_worked_example(operator: str, arguments: tuple[Argument, ...], flops: int, read: int, written: int) -> None:
    assert figures(operator, arguments) == (flops, read, written)
