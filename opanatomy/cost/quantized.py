"""Quantized weights and activations: torch's packed weights, bitsandbytes, fp8 from vLLM and FBGEMM.

A table lookup or a clamp counts 0, a scale 1. 8-bit optimizers are in `optimizer`.
"""

from __future__ import annotations

from math import prod

from opanatomy.cost.contraction import product_shape
from opanatomy.cost.convolution import convolution_flops, output_shape
from opanatomy.cost.operands import (
    Shape,
    Unknown,
    flag,
    fresh,
    integer,
    moved,
    optional,
    read,
    scalar_type,
    sizes,
    tensors,
)
from opanatomy.cost.pooling import window
from opanatomy.cost.registry import formula
from opanatomy.records.signature import Argument, Cost, Signature, Tensor


def _blocks(elements: int, size: Argument) -> int:
    """Return the number of blocks of `size` elements, the last one perhaps shorter: each has a scale."""
    return -(-elements // integer(size))


# ------------------------------------------------------------------------------------------------ torch, packed weights


@formula("aten::_weight_int8pack_mm")
def int8_weight_mm(signature: Signature) -> Cost:
    """`2 * m * n * k` FLOPs for x (m, k), an int8 weight (n, k) and one scale per row."""
    x, weight = signature.tensor(0), signature.tensor(1)
    shape, flops = product_shape(x.shape, weight.shape[::-1])
    return Cost(flops=flops, read_bytes=read(x, weight, signature.tensor(2)), written_bytes=fresh(shape, x.dtype))


@formula("aten::_weight_int4pack_mm", "aten::_weight_int4pack_mm_for_cpu")
def int4_weight_mm(signature: Signature) -> Cost:
    """`2 * m * n * k` FLOPs for x (m, k), a packed 4-bit weight, and scales and zero points (k / group, n, 2)."""
    x, weight, scales = signature.tensor(0), signature.tensor(1), signature.tensor(3)
    (m, k), n = x.shape, scales.shape[1]
    return Cost(flops=2 * m * n * k, read_bytes=read(x, weight, scales), written_bytes=fresh((m, n), x.dtype))


@formula("aten::_weight_int4pack_mm_with_scales_and_zeros")
def int4_weight_mm_two(signature: Signature) -> Cost:
    """`2 * m * n * k` FLOPs. Arguments: (x (m, k), packed weight, group, scales (k / group, n), zero points)."""
    x, weight, scales, zeros = (signature.tensor(index) for index in (0, 1, 3, 4))
    (m, k), n = x.shape, scales.shape[1]
    return moved(read(x, weight, scales, zeros), fresh((m, n), x.dtype), flops=2 * m * n * k)


@formula("aten::_dyn_quant_matmul_4bit")
def dynamic_4bit_mm(signature: Signature) -> Cost:
    """`2 * rows * n * k` FLOPs. Arguments: (x (..., k), packed weight with its scales and bias, block, k, n)."""
    x, weight, k, n = signature.tensor(0), signature.tensor(1), integer(signature.get(3)), integer(signature.get(4))
    if x.shape[-1] != k:
        raise Unknown(f"{x} and {k} features")
    shape = (*x.shape[:-1], n)
    return moved(read(x, weight), fresh(shape, x.dtype), flops=2 * prod(shape) * k)


@formula("aten::_wrapped_quantized_linear_prepacked", "_quantized::_wrapped_quantized_linear_prepacked")
def wrapped_linear(signature: Signature) -> Cost:
    """`2 * rows * n * k` FLOPs; float32 input and output.

    Arguments: (x, scale, zero point, packed weight, output scale, output zero point, n).

    Counts reading an 8-bit weight and its float32 bias; the recorded tensor is only a pointer to them.
    """
    x, n = signature.tensor(0), integer(signature.get(6))
    shape = (*x.shape[:-1], n)
    return moved(read(x) + n * x.shape[-1] + 4 * n, fresh(shape, "float32"), flops=2 * prod(shape) * x.shape[-1])


# -------------------------------------------------------------------------------------------------------- bitsandbytes


@formula("bitsandbytes::dequantize_4bit")
def dequantize_4bit(signature: Signature) -> Cost:
    """1 FLOP per element: code value * block scale.

    Arguments: (packed, scales, block, kind, shape, dtype[, out]).
    """
    packed, scales, shape = signature.tensor(0), signature.tensor(1), sizes(signature.get(4))
    dtype = scalar_type(signature.get(5))
    return moved(read(packed, scales), fresh(shape, dtype), flops=prod(shape))


@formula("bitsandbytes::quantize_4bit")
def quantize_4bit(signature: Signature) -> Cost:
    """2 FLOPs per element: block maximum, / scale. Arguments: (x, block, kind, storage).

    Writes 4 bits per element and one scale per block.
    """
    x = signature.tensor(0)
    written = -(-x.numel // 2) + fresh((_blocks(x.numel, signature.get(1)),), "float32")
    return moved(read(x), written, flops=2 * x.numel)


@formula("bitsandbytes::dequantize_blockwise")
def dequantize_blockwise(signature: Signature) -> Cost:
    """1 FLOP per element: code value * block scale. Arguments: (codes, scales, code book, block, dtype[, out])."""
    x = signature.tensor(0)
    dtype = scalar_type(signature.get(4))
    return moved(read(x, signature.tensor(1), signature.tensor(2)), fresh(x.shape, dtype), flops=x.numel)


@formula("bitsandbytes::quantize_blockwise")
def quantize_blockwise(signature: Signature) -> Cost:
    """2 FLOPs per element: block maximum, / scale. Arguments: (x, code book, block).

    Writes one code per element and one scale per block.
    """
    x, book = signature.tensor(0), signature.tensor(1)
    written = x.numel + fresh((_blocks(x.numel, signature.get(2)),), "float32")
    return moved(read(x, book), written, flops=2 * x.numel)


@formula("bitsandbytes::gemv_4bit", "bitsandbytes::gemm_4bit")
def product_4bit(signature: Signature) -> Cost:
    """`2 * rows * n * k` FLOPs for x (..., k) and a packed weight of shape (n, k); dequantization is not counted.

    Arguments: (x, packed, shape, scales, ...). Reads all tensor arguments.
    """
    x, (n, k) = signature.tensor(0), sizes(signature.get(2), 2)
    if x.shape[-1] != k:
        raise Unknown(f"{x} and weight ({n}, {k})")
    rows = prod(x.shape[:-1])
    return moved(read(*signature.arguments), fresh((rows, n), x.dtype), flops=2 * rows * n * k)


def _int8(a: Tensor, b: Tensor) -> tuple[int, int]:
    """Return the elements of the result and the FLOPs of (..., k) @ (n, k)^T."""
    if a.shape[-1] != b.shape[-1]:
        raise Unknown(f"{a} and {b}")
    elements = prod(a.shape[:-1]) * b.shape[0]
    return elements, 2 * elements * a.shape[-1]


@formula("bitsandbytes::int8_linear_matmul")
def int8_product(signature: Signature) -> Cost:
    """`2 * rows * n * k` FLOPs for int8 (..., k) @ (n, k)^T -> int32."""
    a, b = signature.tensor(0), signature.tensor(1)
    elements, flops = _int8(a, b)
    return moved(read(a, b), fresh((elements,), "int32"), flops=flops)


@formula("bitsandbytes::int8_scaled_mm")
def int8_scaled_product(signature: Signature) -> Cost:
    """`2 * rows * n * k` FLOPs. Arguments: (a, b, row scales, column scales, bias, dtype).

    The result is float16 unless another `dtype` is given.
    """
    a, b = signature.tensor(0), signature.tensor(1)
    elements, flops = _int8(a, b)
    dtype = scalar_type(signature.get(5)) or "float16"
    return moved(read(*signature.arguments[:5]), fresh((elements,), dtype), flops=flops)


@formula("bitsandbytes::int8_mm_dequant")
def int8_result(signature: Signature) -> Cost:
    """2 FLOPs per element (* row scale, * column scale), 3 with a bias.

    Arguments: (x, row scales, column scales, dtype, bias).
    """
    x, bias = signature.tensor(0), optional(signature, 4)
    dtype = scalar_type(signature.get(3)) or "float16"
    moved_in = read(x, signature.tensor(1), signature.tensor(2), bias)
    return moved(moved_in, fresh(x.shape, dtype), flops=(2 + (bias is not None)) * x.numel)


@formula("bitsandbytes::int8_vectorwise_quant")
def int8_rows(signature: Signature) -> Cost:
    """2 FLOPs per element: row maximum, * scale. Writes int8 values and one scale per row.

    Arguments: (x, threshold).

    With a threshold it also lists the outlier columns; these depend on data and are not counted.
    """
    x = signature.tensor(0)
    rows = prod(x.shape[:-1])
    return moved(read(x), x.numel + fresh((rows,), "float32"), flops=2 * x.numel)


# ------------------------------------------------------------------------------------------------------- vLLM: 8 bits


@formula("_C::static_scaled_fp8_quant")
def static_fp8(signature: Signature) -> Cost:
    """1 FLOP per element: / scale. Arguments: (out, x, scale)."""
    out, x, scale = (signature.tensor(index) for index in range(3))
    return moved(read(x, scale), read(out), flops=x.numel)


@formula("_C::dynamic_scaled_fp8_quant", "_C::dynamic_per_token_scaled_fp8_quant")
def dynamic_fp8(signature: Signature) -> Cost:
    """2 FLOPs per element: maximum, / scale. Also writes the scale. Arguments: (out, x, scale)."""
    out, x, scale = (signature.tensor(index) for index in range(3))
    return moved(read(x), read(out, scale), flops=2 * x.numel)


@formula("_C::cutlass_scaled_mm")
def scaled_product(signature: Signature) -> Cost:
    """`2 * m * n * k` FLOPs. Arguments: (out, a (m, k), b (k, n), a scales, b scales, bias)."""
    out, a, b = (signature.tensor(index) for index in range(3))
    if a.shape[-1] != b.shape[0] or out.numel != prod(a.shape[:-1]) * b.shape[1]:
        raise Unknown(f"{a} @ {b}")
    return moved(read(*signature.arguments[1:6]), read(out), flops=2 * a.numel * b.shape[1])


# ------------------------------------------------------------------------------------------------------ FBGEMM: 8 bits


@formula(
    "fbgemm::f8f8bf16",
    "fbgemm::f8f8bf16_rowwise",
    "fbgemm::f8f8bf16_tensorwise",
    "fbgemm::f8f8bf16_blockwise",
    "fbgemm::i8i8bf16",
)
def fp8_product(signature: Signature) -> Cost:
    """`2 * rows * n * k` FLOPs for 8-bit (..., k) @ (n, k)^T -> bfloat16.

    Arguments: (a, b, [scales, scales, bias,] ...).

    A further tensor argument is the output.
    """
    a, b = signature.tensor(0), signature.tensor(1)
    elements, flops = _int8(a, b)
    return moved(read(*signature.arguments[:5]), fresh((elements,), "bfloat16"), flops=flops)


# Torch's own quantized operators: values of 8 bits that stand for (value - zero point) * scale.
#
# Putting a number into that form is 3 (* 1 / scale, round, + zero point; clamping is 0), taking it out 2 (subtract,
# multiply). A product counts as any product; what its epilogue does is not counted. Weights are packed: a capture
# observes their shapes, a trace has nothing of them, and the call then has no cost.


QUANTIZE = 3
DEQUANTIZE = 2


@formula("aten::quantize_per_tensor", "aten::quantize_per_channel")
def quantize(signature: Signature) -> Cost:
    """3 FLOPs per element: * (1 / scale), round, + zero point. Arguments: (x, scale, zero point, [axis,] dtype)."""
    x = signature.tensor(0)
    dtype = scalar_type(signature.get(len(signature.arguments) - 1))
    parameters = (optional(signature, 1), optional(signature, 2))
    return moved(read(x, *(p for p in parameters if p and p.shape)), fresh(x.shape, dtype), flops=QUANTIZE * x.numel)


@formula("aten::dequantize")
def dequantize(signature: Signature) -> Cost:
    """2 FLOPs per element: - zero point, * scale; writes float32."""
    x = signature.tensor(0)
    return moved(read(x), fresh(x.shape, "float32"), flops=DEQUANTIZE * x.numel)


@formula(
    "aten::fake_quantize_per_tensor_affine_cachemask",
    "aten::fake_quantize_per_channel_affine_cachemask",
    "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
)
def fake_quantize(signature: Signature) -> Cost:
    """5 FLOPs per element: quantize 3, dequantize 2; also writes a boolean mask of the unclamped values."""
    x = signature.tensor(0)
    written = fresh(x.shape, x.dtype) + fresh(x.shape, "bool")
    return moved(read(x, *map(signature.get, (1, 2, 3))), written, flops=(QUANTIZE + DEQUANTIZE) * x.numel)


@formula("aten::_fake_quantize_learnable_per_tensor_affine", "aten::_fake_quantize_learnable_per_channel_affine")
def learnable_fake_quantize(signature: Signature) -> Cost:
    """5 FLOPs per element: quantize 3, dequantize 2."""
    x = signature.tensor(0)
    parts = read(x, signature.tensor(1), signature.tensor(2))
    return moved(parts, fresh(x.shape, x.dtype), flops=(QUANTIZE + DEQUANTIZE) * x.numel)


@formula(
    "aten::_fake_quantize_learnable_per_tensor_affine_backward",
    "aten::_fake_quantize_learnable_per_channel_affine_backward",
)
def learnable_fake_quantize_backward(signature: Signature) -> Cost:
    """12 FLOPs per element: recompute the value 5, scale gradient 3, zero-point gradient 2, their sums 2."""
    grad, x, scale, zero = (signature.tensor(index) for index in range(4))
    written = fresh(x.shape, x.dtype) + fresh(scale.shape, scale.dtype) + fresh(zero.shape, zero.dtype)
    return moved(read(grad, x, scale, zero), written, flops=12 * x.numel)


# -------------------------------------------------------------------------------------------------- products


def _packed(value: Argument) -> tuple[Tensor, Tensor | None, tuple[Argument, ...]]:
    """Return weight, bias and, for a convolution, [stride, padding, output padding, dilation, groups, transposed]."""
    if not isinstance(value, tuple) or not value or not isinstance(value[0], Tensor):
        raise Unknown("the packed weights")
    bias = value[1] if len(value) > 1 and isinstance(value[1], Tensor) else None
    geometry = value[2] if len(value) > 2 and isinstance(value[2], tuple) else ()
    return value[0], bias, geometry


def _linear(x: Tensor, packed: Argument, dtype: str | None, weight_type: str | None = None) -> Cost:
    weight, bias, _ = _packed(packed)
    if x.shape[-1] != weight.shape[1]:
        raise Unknown(f"{x} and weight {weight}")
    shape = (*x.shape[:-1], weight.shape[0])
    weights = fresh(weight.shape, weight_type or weight.dtype)
    return moved(read(x, bias) + weights, fresh(shape, dtype), flops=2 * prod(shape) * weight.shape[1])


@formula("quantized::linear", "quantized::linear_relu", "quantized::linear_leaky_relu", "quantized::linear_tanh")
def linear(signature: Signature) -> Cost:
    """`2 * rows * out * in` FLOPs for quantized (..., in) and a packed (out, in) weight; the result is quantized."""
    x = signature.tensor(0)
    return _linear(x, signature.get(1), x.dtype)


@formula("quantized::linear_dynamic", "quantized::linear_relu_dynamic")
def dynamic_linear(signature: Signature) -> Cost:
    """`2 * rows * out * in` FLOPs; float32 input and output, packed 8-bit weight.

    Quantizing the input is not counted.
    """
    x = signature.tensor(0)
    return _linear(x, signature.get(1), x.dtype)


@formula("quantized::linear_dynamic_fp16", "quantized::linear_relu_dynamic_fp16")
def half_weight_linear(signature: Signature) -> Cost:
    """`2 * rows * out * in` FLOPs; float32 input and output, packed float16 weight."""
    x = signature.tensor(0)
    return _linear(x, signature.get(1), x.dtype, "float16")


@formula(
    *(f"quantized::conv{dims}d{end}" for dims in (1, 2, 3) for end in ("", "_relu", "_dynamic")),
    *(f"quantized::conv_transpose{dims}d" for dims in (1, 2, 3)),
)
def convolution(signature: Signature) -> Cost:
    """`2 * b * C_out * prod(out) * (C_in / groups) * prod(kernel)` FLOPs, as for convolution, with packed weights."""
    x, (weight, bias, geometry) = signature.tensor(0), _packed(signature.get(1))
    if len(geometry) != 6 or len(x.shape) != len(weight.shape):
        raise Unknown("the geometry of the packed weights")
    stride, padding, output_padding, dilation, groups, turned = geometry
    transposed, number = flag(turned), integer(groups)
    kernel = weight.shape
    if transposed:
        # unpacked as (c, out / groups, ...), as torch's own
        kernel = (x.shape[1], weight.numel // prod(weight.shape[2:]) // x.shape[1], *weight.shape[2:])
    shape = output_shape(x.shape, kernel, stride, padding, dilation, transposed, output_padding, number)
    flops = convolution_flops(kernel, x.shape if transposed else shape)
    weights = fresh(weight.shape, weight.dtype)
    return moved(read(x, bias) + weights, fresh(shape, x.dtype), flops=flops)


@formula("quantized::matmul")
def product(signature: Signature) -> Cost:
    """`2 * b * m * n * k` FLOPs for (b, m, k) @ (b, k, n)."""
    a, b = signature.tensor(0), signature.tensor(1)
    if len(a.shape) < 2 or a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        raise Unknown(f"{a} @ {b}")
    shape = (*a.shape[:-1], b.shape[-1])
    return moved(read(a, b), fresh(shape, a.dtype), flops=2 * prod(shape) * a.shape[-1])


@formula("quantized::embedding_byte")
def byte_embedding(signature: Signature) -> Cost:
    """2 FLOPs per element to dequantize. Arguments: (packed table, indices).

    Reads one row per index, with its float32 scale and shift.
    """
    table, index = _packed(signature.get(0))[0], signature.tensor(1)
    d = table.shape[1]
    rows = min(index.numel, table.shape[0])
    return moved(rows * (d + 8) + read(index), fresh((index.numel, d), "float32"), flops=DEQUANTIZE * index.numel * d)


@formula("onednn::qlinear_pointwise")
def pointwise_linear(signature: Signature) -> Cost:
    """`2 * rows * out * in` FLOPs; the epilogue is not counted.

    Arguments: (x, scale, zero point, weight, weight scales, weight zero points, ..., dtype). The weight is packed; its
    sizes may be transposed.
    """
    x, weight = signature.tensor(0), signature.tensor(3)
    k = x.shape[-1]
    if len(weight.shape) != 2 or k not in weight.shape:
        raise Unknown(f"{x} and weight {weight}")
    if any(isinstance(value, Tensor) for value in signature.arguments[7:9]):
        raise Unknown("the overload that adds another tensor")
    shape = (*x.shape[:-1], weight.numel // k)
    dtype = scalar_type(signature.get(9)) or x.dtype
    parts = read(x, signature.tensor(4), optional(signature, 6)) + fresh(weight.shape, weight.dtype)
    return moved(parts, fresh(shape, dtype), flops=2 * prod(shape) * k)


# ------------------------------------------------------------------------------------------------ recurrent layers


def _recurrent(signature: Signature, gates: int, hx: Tensor, states: int, weight_bytes: int, index: int) -> Cost:
    """Return the cost of (input (t, b, i), hx (layers * directions, b, h), ...); `has_biases` is at `index`."""
    x = signature.tensor(0)
    biases, layers = flag(signature.get(index)), integer(signature.get(index + 1))
    directions = 2 if flag(signature.get(index + 4)) else 1
    if len(x.shape) != 3 or hx.shape[0] != layers * directions:
        raise Unknown(f"{x} and {hx}")
    steps, h = x.numel // x.shape[-1], hx.shape[-1]
    inputs = [x.shape[-1], *[directions * h] * (layers - 1)]
    weights = directions * sum(gates * h * (size + h) for size in inputs)
    parameters = weights * weight_bytes + biases * directions * layers * 2 * gates * h * 4
    written = fresh((steps, directions * h), x.dtype) + states * fresh(hx.shape, hx.dtype)
    return moved(read(x) + states * read(hx) + parameters, written, flops=2 * steps * weights)


@formula("aten::quantized_lstm")
def quantized_lstm(signature: Signature) -> Cost:
    """`2 * t * b * 4 h * (i + h)` FLOPs per layer and direction; gate arithmetic is not counted.

    The weights have 8 or 16 bits.
    """
    first = tensors(signature.get(1))[0]
    width = {"qint8": 1, "float16": 2}.get(scalar_type(signature.get(9)) or "qint8", 0)
    if not width:
        raise Unknown("the type of the weights")
    return _recurrent(signature, 4, first, 2, width, 3)


@formula("aten::quantized_gru")
def quantized_gru(signature: Signature) -> Cost:
    """`2 * t * b * 3 h * (i + h)` FLOPs per layer and direction; 8-bit weights, as from quantize_dynamic."""
    return _recurrent(signature, 3, signature.tensor(1), 1, 1, 3)


@formula("quantized::quantized_lstm_cell_dynamic")
def quantized_lstm_cell(signature: Signature) -> Cost:
    """`2 * b * 4 h * (i + h)` FLOPs; 8-bit weights. Arguments: (x, [hx, cx], w_ih, w_hh, b_ih, b_hh)."""
    x, (hx, cx) = signature.tensor(0), tensors(signature.get(1))
    weights = 4 * hx.shape[-1] * (x.shape[-1] + hx.shape[-1])
    parts = read(x, hx, cx, signature.tensor(4), signature.tensor(5)) + weights
    return moved(parts, read(hx, cx), flops=2 * x.numel // x.shape[-1] * weights)


# -------------------------------------------------------------------------------------------------- maps and norms

#: FLOPs of the map only, without going in and out of 8 bits.
_MAPS = {"sigmoid": 4, "hardswish": 3, "elu": 3, "celu": 3, "leaky_relu": 1, "softmax": 4, "relu6": None, "clamp": None}
_PAIRS = ("add", "add_relu", "mul", "mul_relu")


def _register(name: str, flops: int | None) -> None:
    total = 0 if flops is None else DEQUANTIZE + flops + QUANTIZE

    def function(signature: Signature) -> Cost:
        x = signature.tensor(0)
        return moved(read(x), fresh(x.shape, x.dtype), flops=total * x.numel)

    arithmetic = f"{total} FLOPs per element: dequantize 2, the operator {flops}, quantize 3."

    function.__doc__ = arithmetic if flops else "0 FLOPs (comparisons only)."
    formula(f"quantized::{name}")(function)


for _name, _flops in _MAPS.items():
    _register(_name, _flops)


@formula(*(f"quantized::{name}" for name in _PAIRS))
def pair(signature: Signature) -> Cost:
    """8 FLOPs per element: dequantize both operands 4, the operator 1, quantize 3.

    Has no cost if the second operand is a number or has another shape.
    """
    a, b = signature.tensor(0), signature.tensor(1)
    if not b.shape or a.shape != b.shape:
        raise Unknown(f"{a} and {b}")
    return moved(read(a, b), fresh(a.shape, a.dtype), flops=8 * a.numel)


def _norm(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Cost:
    flops = DEQUANTIZE + 5 + (weight is not None) + (bias is not None) + QUANTIZE
    return moved(read(x, weight, bias), fresh(x.shape, x.dtype), flops=flops * x.numel)


@formula("quantized::layer_norm", "quantized::group_norm")
def norm(signature: Signature) -> Cost:
    """12 FLOPs per element: dequantize 2, layer norm 7 (5 without scale and shift), quantize 3.

    Arguments: (x, size, weight, bias).
    """
    return _norm(signature.tensor(0), optional(signature, 2), optional(signature, 3))


@formula("quantized::instance_norm")
def instance_norm(signature: Signature) -> Cost:
    """12 FLOPs per element, as for layer norm. Arguments: (x, weight, bias, ...)."""
    return _norm(signature.tensor(0), optional(signature, 1), optional(signature, 2))


@formula("aten::quantized_max_pool2d", "quantized::max_pool2d")
def max_pool(signature: Signature) -> Cost:
    """0 FLOPs (comparisons only); writes only the maxima."""
    x, get = signature.tensor(0), signature.get
    shape: Shape = window(x, 2, get(1), get(2), get(3), get(4), flag(get(5)))[0]
    return moved(read(x), fresh(shape, x.dtype))
