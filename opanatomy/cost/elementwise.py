"""Element-wise operators: FLOPs per output element; compare, min, max, select, copy and cast count 0.

An operator reads each operand once and writes its result once; the in-place form (`aten::add_`) reads and writes its
first operand. The second operand of a binary operator may be a Python number, which a trace shows as a 0-dimensional
tensor of the widest type of its kind: it is promoted as a number and moves no bytes.
"""

from __future__ import annotations

from math import prod

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.cost.operands import (
    Unknown,
    axis,
    broadcast,
    category,
    floating,
    fresh,
    integer,
    moved,
    optional,
    promote,
    read,
    result,
)
from opanatomy.cost.registry import formula
from opanatomy.records.signature import Argument, Cost, Signature, Tensor


class Map(Struct, frozen=True, kw_only=True):
    """One row of the table: FLOPs per output element, how many operands come first, and the result's data type.

    `result` is `promoted`, `first` (of the first operand), `floating` (integers become float32), `bool`, `complex` or
    `real`.
    `factor` is the place of a multiplier (`alpha`, `value`) that costs one more FLOP unless it is 1; `numbers` says
    that the second operand may be a Python number.
    """

    flops: int
    operands: int = 1
    result: str = "promoted"
    factor: int | None = None
    numbers: bool = False


#: A comparison or a selection does no arithmetic; an arithmetic operation or a transcendental function is 1.
UNARY = {
    "relu": 0, "relu6": 0, "sign": 0, "sgn": 0, "positive": 0, "bitwise_not": 0, "hardtanh": 0, "threshold": 0,
    "conj_physical": 0, "_conj_physical": 0, "nan_to_num": 0, "softshrink": 1, "hardshrink": 0,
    "neg": 1, "ceil": 1, "floor": 1, "round": 1, "trunc": 1, "frac": 2, "square": 1,
    # x * negative_slope
    "leaky_relu": 1,
    # x / (1 + exp(-x)): negate, exp, add, divide
    "silu": 4,
    # x * tanh(log1p(exp(x))): exp, log1p, tanh, multiply
    "mish": 4,
    # log1p(exp(x * beta)) / beta
    "softplus": 4,
    # (exp(x * c) - 1) * d: multiply, expm1, multiply
    "elu": 3, "celu": 3, "selu": 3,
    # x * clamp(x + 3, 0, 6) / 6
    "hardswish": 3,
    # clamp(x + 3, 0, 6) / 6
    "hardsigmoid": 2,
}  # fmt: skip

#: The same for functions with a floating result for integers too.
UNARY_FLOATING = {
    "exp": 1, "exp2": 1, "expm1": 1, "log": 1, "log2": 1, "log10": 1, "log1p": 1, "sqrt": 1, "rsqrt": 1,
    "reciprocal": 1,
    "sin": 1, "cos": 1, "tan": 1, "asin": 1, "acos": 1, "atan": 1, "sinh": 1, "cosh": 1, "tanh": 1, "asinh": 1,
    "acosh": 1, "atanh": 1, "erf": 1, "erfc": 1, "erfinv": 1, "lgamma": 1, "digamma": 1, "i0": 1, "special_i0e": 1,
    "special_ndtri": 1, "deg2rad": 1, "rad2deg": 1,
    # 1 / (1 + exp(-x)): negate, exp, add, divide
    "sigmoid": 4,
    # log(x / (1 - x)): subtract, divide, log
    "logit": 3,
    # sin(pi * x) / (pi * x)
    "sinc": 3, "special_entr": 3, "special_log_ndtr": 1,
    # a special function is one transcendental, however it is computed
    **dict.fromkeys(
        ("special_airy_ai", "special_bessel_j0", "special_bessel_j1", "special_bessel_y0", "special_bessel_y1",
         "special_erfcx", "special_i1", "special_i1e", "special_modified_bessel_i0", "special_modified_bessel_i1",
         "special_modified_bessel_k0", "special_modified_bessel_k1", "special_scaled_modified_bessel_k0",
         "special_scaled_modified_bessel_k1", "special_spherical_bessel_j0"),
        1,
    ),
}  # fmt: skip

#: Tests of one operand.
UNARY_BOOL = ("isnan", "isinf", "isfinite", "isposinf", "isneginf", "logical_not", "signbit")

#: Two operands, the second possibly a number.
BINARY = {
    "mul": 1, "multiply": 1, "remainder": 1, "fmod": 1, "floor_divide": 1, "pow": 1,
    "maximum": 0, "minimum": 0, "fmax": 0, "fmin": 0, "clamp_min": 0, "clamp_max": 0,
    "bitwise_and": 0, "bitwise_or": 0, "bitwise_xor": 0, "bitwise_left_shift": 0, "bitwise_right_shift": 0,
    "__and__": 0, "__or__": 0, "__xor__": 0, "__iand__": 0, "__ior__": 0, "__ixor__": 0, "__lshift__": 0,
    "__rshift__": 0, "gcd": 1, "heaviside": 0,
}  # fmt: skip

BINARY_FLOATING = {"atan2": 1, "true_divide": 1, "logaddexp": 4, "logaddexp2": 4, "xlogy": 2, "special_xlog1py": 2,
                   "hypot": 4, "copysign": 0, "nextafter": 0, "igamma": 1, "igammac": 1, "special_zeta": 1,
                   # x * 2 ^ y; a polynomial of a degree that is data
                   "ldexp": 2,
                   **{f"special_{kind}": 1 for kind in (
                       *(f"{shifted}chebyshev_polynomial_{letter}" for shifted in ("", "shifted_")
                         for letter in "tuvw"),
                       "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l",
                       "legendre_polynomial_p")}}  # fmt: skip

BINARY_BOOL = (
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "logical_and",
    "logical_or",
    "logical_xor",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "not_equal",
)

#: Maps with other operands, and backward maps, operation by operation.
OTHERS = {
    # a + alpha * b
    "add": Map(flops=1, operands=2, factor=2, numbers=True),
    "sub": Map(flops=1, operands=2, factor=2, numbers=True),
    "subtract": Map(flops=1, operands=2, factor=2, numbers=True),
    "rsub": Map(flops=1, operands=2, factor=2, numbers=True),
    "abs": Map(flops=1, result="real"),
    # the bounds may be tensors
    "clamp": Map(flops=0, operands=3), "clip": Map(flops=0, operands=3),
    # self + value * a * b, self + value * a / b, self + weight * (end - self)
    "addcmul": Map(flops=2, operands=3, factor=3), "addcdiv": Map(flops=2, operands=3, factor=3),
    "lerp": Map(flops=3, operands=3),
    "polar": Map(flops=4, operands=2, result="complex"), "complex": Map(flops=0, operands=2, result="complex"),
    "_prelu_kernel": Map(flops=1, operands=2),
    # two multiplies and a subtraction an element
    "linalg_cross": Map(flops=3, operands=2),
    # the derivative of a gamma sample, one special function
    "_standard_gamma_grad": Map(flops=1, operands=2),
    # grad * (1 - y * y)
    "tanh_backward": Map(flops=3, operands=2),
    # grad * (1 - y) * y
    "sigmoid_backward": Map(flops=3, operands=2),
    "threshold_backward": Map(flops=0, operands=2), "hardtanh_backward": Map(flops=0, operands=2),
    "hardshrink_backward": Map(flops=0, operands=2), "softshrink_backward": Map(flops=0, operands=2),
    # grad * negative_slope; grad / 6; grad * (x / 3 + 0.5)
    "leaky_relu_backward": Map(flops=1, operands=2), "hardsigmoid_backward": Map(flops=1, operands=2),
    "hardswish_backward": Map(flops=3, operands=2),
    # s = sigmoid(x) (4); grad * s * (1 + x * (1 - s)): subtract, multiply, add, multiply, multiply
    "silu_backward": Map(flops=9, operands=2),
    # t = tanh(log1p(exp(x))) (3), s = sigmoid(x) (4); grad * (t + x * s * (1 - t * t)): 6
    "mish_backward": Map(flops=13, operands=2),
    # z = exp(x * beta) (2); grad * z / (z + 1): 3
    "softplus_backward": Map(flops=5, operands=2),
    # grad / (x * (1 - x))
    "logit_backward": Map(flops=3, operands=2),
    # grad * mask * scale; the paper counts dropout as 1 in both directions
    "native_dropout_backward": Map(flops=1, operands=2, result="first"),
    "_masked_scale": Map(flops=1, operands=2, result="first"),
}  # fmt: skip

MAPS: dict[str, Map] = {
    **{name: Map(flops=flops) for name, flops in UNARY.items()},
    **{name: Map(flops=flops, result="floating") for name, flops in UNARY_FLOATING.items()},
    **{name: Map(flops=0, result="bool") for name in UNARY_BOOL},
    **{name: Map(flops=flops, operands=2, numbers=True) for name, flops in BINARY.items()},
    **{name: Map(flops=flops, operands=2, result="floating", numbers=True) for name, flops in BINARY_FLOATING.items()},
    **{name: Map(flops=0, operands=2, result="bool", numbers=True) for name in BINARY_BOOL},
    **OTHERS,
}


def _number(value: Argument) -> Argument:
    """Return a 0-dimensional tensor that represents a Python number as a number."""
    if isinstance(value, Tensor) and not value.shape:
        return {"float64": 0.5, "int64": 1, "bool": True}.get(value.dtype or "", value)
    return value


def _result_type(row: Map, operands: tuple[Argument, ...]) -> str:
    if row.result == "bool":
        return "bool"
    if row.result == "first":
        operands = operands[:1]
    first = operands[0]
    if isinstance(first, Tensor) and None in operands[1 : 1 + row.numbers] and category(first.dtype or "?") < 2:
        raise Unknown("the number may raise the data type")
    dtype = promote(*operands)
    if row.result == "floating":
        return floating(dtype)
    if row.result == "complex":
        return {"float32": "complex64", "float64": "complex128", "float16": "complex32"}[dtype]
    if row.result == "real":
        return {"complex64": "float32", "complex128": "float64", "complex32": "float16"}.get(dtype, dtype)
    return dtype


def map_cost(row: Map, signature: Signature, in_place: bool = False) -> Cost:
    """Return the cost of a map from its row: operands first, then constants, then perhaps an `out` tensor."""
    head = signature.arguments[: row.operands]
    numbers = row.numbers and isinstance(head[0], Tensor)
    operands = (*head[:1], *(map(_number, head[1:]) if numbers else head[1:]))
    shape = broadcast(*(value.shape for value in operands if isinstance(value, Tensor)))
    out = next((value for value in signature.arguments[row.operands :] if isinstance(value, Tensor)), None)
    if not any(isinstance(value, Tensor) for value in operands):
        raise Unknown("no tensor operand")
    if in_place:
        shape, written = signature.tensor(0).shape, read(signature.tensor(0))
    else:
        written = result(out, shape, out.dtype if out else _result_type(row, operands))
    factor = None if row.factor is None else signature.get(row.factor)
    multiplies = isinstance(factor, int | float) and factor != 1
    flops = (row.flops + multiplies) * prod(shape)
    return Cost(flops=flops, read_bytes=read(*operands), written_bytes=written)


#: Maps without an in-place form in torch (`maximum` has one for lists); backward and special functions have none
#: either.
_NOT_IN_PLACE = {
    "_conj_physical", "_masked_scale", "_prelu_kernel", "_standard_gamma_grad", "complex", "fmax", "fmin", "hardshrink",
    "isfinite", "isinf", "isnan", "isneginf", "isposinf", "linalg_cross", "logaddexp", "logaddexp2",
    "polar", "positive", "rsub", "signbit", "softplus", "softshrink",
}  # fmt: skip


def _register(name: str, row: Map) -> None:
    def out_of_place(signature: Signature) -> Cost:
        return map_cost(row, signature)

    def in_place(signature: Signature) -> Cost:
        return map_cost(row, signature, in_place=True)

    count = f"{row.flops} FLOP{'s' * (row.flops != 1)} per output element"
    factor = "an `alpha`" if row.operands == 2 else "a `value`"
    more = "" if row.factor is None else f", {row.flops + 1} with {factor} other than 1"
    text = f"{count}{more}; reads each operand, writes the result."
    out_of_place.__doc__ = in_place.__doc__ = text
    formula(f"aten::{name}")(out_of_place)
    if not (name.endswith(("_backward", "__")) or name.startswith("special_") or name in _NOT_IN_PLACE):
        formula(f"aten::{name}_")(in_place)


for _name, _row in MAPS.items():
    _register(_name, _row)


# ------------------------------------------------------------------------------- maps whose arguments change the figure

_DIV = Map(flops=1, operands=2, result="floating", numbers=True)


@formula("aten::div", "aten::divide")
def div(signature: Signature) -> Cost:
    """1 FLOP per output element; dividing integers gives float32 unless a rounding mode is set."""
    # a trace drops the mode, a string, but shows its place
    rounded = len(signature.arguments) > 2 and not isinstance(signature.arguments[2], Tensor)
    return map_cost(replace(_DIV, result="promoted") if rounded else _DIV, signature)


@formula("aten::div_", "aten::divide_")
def div_(signature: Signature) -> Cost:
    """1 FLOP per output element, in place."""
    return map_cost(_DIV, signature, in_place=True)


@formula("aten::where")
def where(signature: Signature) -> Cost:
    """0 FLOPs; reads the condition and both branches, writes the result.

    `where(condition)` has no cost, because the size of its result depends on data.
    """
    head = signature.arguments[:3]
    if len(head) < 3:
        raise Unknown("nonzero of the condition")
    shape = broadcast(*(value.shape for value in head if isinstance(value, Tensor)))
    return Cost(
        flops=0, read_bytes=read(*head), written_bytes=result(optional(signature, 3), shape, promote(*head[1:]))
    )


@formula("aten::masked_fill")
def masked_fill(signature: Signature) -> Cost:
    """0 FLOPs; reads the tensor and the mask, writes the result."""
    x, where_true = signature.tensor(0), signature.tensor(1)
    written = fresh(broadcast(x.shape, where_true.shape), x.dtype)
    return Cost(flops=0, read_bytes=read(x, where_true, signature.get(2)), written_bytes=written)


@formula("aten::masked_fill_")
def masked_fill_(signature: Signature) -> Cost:
    """0 FLOPs; reads the tensor and the mask, writes the tensor."""
    x = signature.tensor(0)
    return Cost(flops=0, read_bytes=read(x, signature.tensor(1), signature.get(2)), written_bytes=read(x))


# Activations whose form or shape is not that of a plain map, and dropout with its mask.


@formula("aten::gelu", "aten::gelu_")
def gelu(signature: Signature) -> Cost:
    """5 FLOPs per output element, 10 in the tanh form; erf is assumed if the trace does not record the form.

    erf form, 0.5 * x * (1 + erf(x * sqrt(1/2))): multiply, erf, add, multiply, multiply. tanh form, 0.5 * x * (1 +
    tanh(sqrt(2/pi) * (x + 0.044715 * x ** 3))): divide, sqrt, pow, multiply, add, multiply, tanh, add, multiply,
    multiply. This follows the paper's counter, which includes operations on constants.
    """
    flops = 10 if signature.get(1) == "tanh" else 5
    return map_cost(Map(flops=flops), signature)


@formula("aten::gelu_backward")
def gelu_backward(signature: Signature) -> Cost:
    """11 FLOPs per output element, 18 in the tanh form.

    erf form: cdf = 0.5 * (1 + erf(x * c)) takes 4, pdf = exp(-0.5 * x * x) * c 4, grad * (cdf + x * pdf) 3. tanh
    form: x * x, x * x * x, inner (multiply, add, multiply), tanh, 0.5 * x, 1 + tanh, half of it, 1 - tanh ** 2 (2),
    derivative of inner (multiply, add, multiply), two multiplies, grad * (left + right) (2).
    """
    flops = 18 if signature.get(2) == "tanh" else 11
    return map_cost(Map(flops=flops, operands=2), signature)


@formula("aten::elu_backward")
def elu_backward(signature: Signature) -> Cost:
    """4 FLOPs per output element: grad * (c * d) * exp(x * c), that is, exp and three multiplies."""
    grad, x = signature.tensor(0), signature.tensor(5)
    return Cost(flops=4 * grad.numel, read_bytes=read(grad, x), written_bytes=fresh(grad.shape, grad.dtype))


@formula("aten::native_dropout", "aten::_fused_dropout")
def native_dropout(signature: Signature) -> Cost:
    """1 FLOP per element (as in the paper); writes the result and a mask of one byte per element."""
    x = signature.tensor(0)
    written = fresh(x.shape, x.dtype) + fresh(x.shape, "bool")
    return Cost(flops=x.numel, read_bytes=read(x), written_bytes=written)


@formula("aten::glu")
def glu(signature: Signature) -> Cost:
    """5 FLOPs per output element: a * sigmoid(b); the output is half as large as the input."""
    x = signature.tensor(0)
    half = x.numel // 2
    return Cost(flops=5 * half, read_bytes=read(x), written_bytes=fresh((half,), x.dtype))


@formula("aten::glu_backward")
def glu_backward(signature: Signature) -> Cost:
    """8 FLOPs per element of the gradient: s = sigmoid(b) takes 4, g * s 1, (1 - s) * (g * s) * a 3."""
    grad, x = signature.tensor(0), signature.tensor(1)
    return Cost(flops=8 * grad.numel, read_bytes=read(grad, x), written_bytes=fresh(x.shape, x.dtype))


@formula("aten::log_sigmoid_forward")
def log_sigmoid(signature: Signature) -> Cost:
    """3 FLOPs per output element: min(x, 0) - log1p(exp(-|x|)), where -|x| counts 0.

    Also writes a buffer of the same size.
    """
    x = signature.tensor(0)
    return Cost(flops=3 * x.numel, read_bytes=read(x), written_bytes=2 * fresh(x.shape, x.dtype))


@formula("aten::log_sigmoid_backward")
def log_sigmoid_backward(signature: Signature) -> Cost:
    """5 FLOPs per output element: grad * (m - sign * z / (1 + z)).

    z = exp(-|x|) is the forward's buffer; m and sign follow from the sign of x.
    """
    grad, x, buffer = (signature.tensor(index) for index in range(3))
    return Cost(flops=5 * grad.numel, read_bytes=read(grad, x, buffer), written_bytes=fresh(x.shape, x.dtype))


# Maps and reductions of their own: special functions, leaky slopes, segments, norms of slices, histograms.


# ------------------------------------------------------------------------------------------------------------ odd maps


@formula("aten::polygamma", "aten::polygamma_")
def polygamma(signature: Signature) -> Cost:
    """1 FLOP per element, for the special function. Arguments: (n, x), or (x, n) in place."""
    x = signature.tensor(0 if isinstance(signature.get(0), Tensor) else 1)
    return moved(read(x), fresh(x.shape, x.dtype), flops=x.numel)


@formula("aten::mvlgamma", "aten::mvlgamma_")
def multivariate_lgamma(signature: Signature) -> Cost:
    """`3 * p` FLOPs per element: p arguments, their lgamma values and the sum. Arguments: (x, p)."""
    x = signature.tensor(0)
    return moved(read(x), fresh(x.shape, x.dtype), flops=3 * integer(signature.get(1)) * x.numel)


@formula("aten::angle")
def angle(signature: Signature) -> Cost:
    """1 FLOP per element of a complex tensor (atan2); 0 per element of a real one, where only the sign matters."""
    x = signature.tensor(0)
    dtype = {"complex64": "float32", "complex128": "float64", "complex32": "float16"}.get(x.dtype or "")
    if dtype is None and category(x.dtype or "?") != 2:
        raise Unknown(f"the type of the angle of {x}")
    return moved(read(x), fresh(x.shape, dtype or x.dtype), flops=x.numel if dtype else 0)


@formula("aten::frexp")
def frexp(signature: Signature) -> Cost:
    """0 FLOPs: splits each number; writes its mantissa and its int32 exponent."""
    x = signature.tensor(0)
    return moved(read(x), fresh(x.shape, x.dtype) + fresh(x.shape, "int32"))


@formula("aten::_prelu_kernel_backward")
def prelu_backward(signature: Signature) -> Cost:
    """2 FLOPs per element: grad * weight and grad * x. Writes both gradients in the shape of x.

    Arguments: (grad, x, weight).
    """
    grad, x, weight = (signature.tensor(index) for index in range(3))
    return moved(read(grad, x, weight), 2 * fresh(x.shape, x.dtype), flops=2 * x.numel)


@formula("aten::rrelu_with_noise", "aten::rrelu_with_noise_")
def rrelu(signature: Signature) -> Cost:
    """1 FLOP per element: x * slope. Training also writes the slopes. Arguments: (x, noise, lower, upper, training)."""
    x, noise = signature.tensor(0), signature.tensor(1)
    training = signature.get(4, False) is True
    return moved(read(x), fresh(x.shape, x.dtype) + training * read(noise), flops=x.numel)


@formula("aten::rrelu_with_noise_backward")
def rrelu_backward(signature: Signature) -> Cost:
    """1 FLOP per element: grad * slope. Arguments: (grad, x, noise, lower, upper, training, ...).

    In training it reads the noise, which then holds the slopes, instead of x.
    """
    grad, x, noise = (signature.tensor(index) for index in range(3))
    return moved(read(grad, noise if signature.get(5) is True else x), fresh(x.shape, x.dtype), flops=x.numel)


# ---------------------------------------------------------------------------------------------------------- reductions


@formula("aten::renorm", "aten::renorm_")
def renorm(signature: Signature) -> Cost:
    """2 FLOPs per element: 1 for the norm of each slice, 1 to scale it."""
    x = signature.tensor(0)
    return moved(read(x), fresh(x.shape, x.dtype), flops=2 * x.numel)


@formula("aten::segment_reduce")
def segment_reduce(signature: Signature) -> Cost:
    """1 FLOP per element. Writes one row per segment. Arguments: (x, how, lengths, indices, offsets, axis, ...)."""
    x, lengths, offsets = signature.tensor(0), optional(signature, 2), optional(signature, 4)
    dim, bounds = axis(integer(signature.get(5, 0)), len(x.shape)), lengths or offsets
    if bounds is None or len(bounds.shape) != dim + 1:
        raise Unknown("the segments")
    shape = (*x.shape[:dim], bounds.shape[-1] - (lengths is None), *x.shape[dim + 1 :])
    return moved(read(x, lengths, offsets), fresh(shape, x.dtype), flops=x.numel)


@formula("aten::_segment_reduce_backward")
def segment_reduce_backward(signature: Signature) -> Cost:
    """1 FLOP per element: a mean divides, other reductions multiply or select.

    Arguments: (grad, result, x, how, lengths, offsets, ...).
    """
    grad, result, x = (signature.tensor(index) for index in range(3))
    parts = read(grad, result, x, optional(signature, 4), optional(signature, 5))
    return moved(parts, fresh(x.shape, x.dtype), flops=x.numel)


@formula("aten::histogram")
def histogram(signature: Signature) -> Cost:
    """1 FLOP per element. Writes counts and edges. Arguments: (x, number of bins or their edges, ...)."""
    x, edges, weight = signature.tensor(0), optional(signature, 1), optional(signature, 3)
    bins = edges.numel - 1 if edges else integer(signature.get(1))
    written = fresh((2 * bins + 1,), x.dtype)
    return moved(read(x, edges, weight if edges is None else optional(signature, 2)), written, flops=x.numel)


@formula("aten::isin")
def isin(signature: Signature) -> Cost:
    """0 FLOPs (comparisons only); reads both tensors, writes a boolean per element of the first."""
    x = signature.tensor(0)
    return moved(read(x, optional(signature, 1)), fresh(x.shape, "bool"))
