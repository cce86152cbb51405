"""Quantized weights and activations: torch's packed weights, bitsandbytes, fp8 of vLLM and FBGEMM.

A table look-up or a clamp is 0, a scale is 1.

The optimizers in 8 bits are in `optimizer`.
"""

from __future__ import annotations

from math import prod

from opanatomy.cost.contraction import product_shape
from opanatomy.cost.operands import Unknown, fresh, integer, moved, optional, read, scalar_type, sizes
from opanatomy.cost.registry import formula
from opanatomy.records.signature import Argument, Cost, Signature, Tensor


def _blocks(elements: int, size: Argument) -> int:
    """Blocks of `size` elements, the last one perhaps shorter: each has a scale."""
    return -(-elements // integer(size))


# ------------------------------------------------------------------------------------------------ torch, packed weights


@formula("aten::_weight_int8pack_mm")
def int8_weight_mm(signature: Signature) -> Cost:
    """`2 * m * n * k` for x (m, k), int8 weight (n, k) and a scale a row."""
    x, weight = signature.tensor(0), signature.tensor(1)
    shape, flops = product_shape(x.shape, weight.shape[::-1])
    return Cost(flops=flops, read_bytes=read(x, weight, signature.tensor(2)), written_bytes=fresh(shape, x.dtype))


@formula("aten::_weight_int4pack_mm", "aten::_weight_int4pack_mm_for_cpu")
def int4_weight_mm(signature: Signature) -> Cost:
    """`2 * m * n * k` for x (m, k), a packed 4-bit weight, and scales and zeros (k / group, n, 2)."""
    x, weight, scales = signature.tensor(0), signature.tensor(1), signature.tensor(3)
    (m, k), n = x.shape, scales.shape[1]
    return Cost(flops=2 * m * n * k, read_bytes=read(x, weight, scales), written_bytes=fresh((m, n), x.dtype))


@formula("aten::_weight_int4pack_mm_with_scales_and_zeros")
def int4_weight_mm_two(signature: Signature) -> Cost:
    """`2 * m * n * k`: (x (m, k), packed weight, group, scales (k / group, n), zeros)."""
    x, weight, scales, zeros = (signature.tensor(place) for place in (0, 1, 3, 4))
    (m, k), n = x.shape, scales.shape[1]
    return moved(read(x, weight, scales, zeros), fresh((m, n), x.dtype), flops=2 * m * n * k)


@formula("aten::_dyn_quant_matmul_4bit")
def dynamic_4bit_mm(signature: Signature) -> Cost:
    """`2 * rows * n * k`: (x (..., k), packed weight with its scales and bias, block, k, n)."""
    x, weight, k, n = signature.tensor(0), signature.tensor(1), integer(signature.get(3)), integer(signature.get(4))
    if x.shape[-1] != k:
        raise Unknown(f"{x} and {k} features")
    shape = (*x.shape[:-1], n)
    return moved(read(x, weight), fresh(shape, x.dtype), flops=2 * prod(shape) * k)


@formula("aten::_wrapped_quantized_linear_prepacked", "_quantized::_wrapped_quantized_linear_prepacked")
def wrapped_linear(signature: Signature) -> Cost:
    """`2 * rows * n * k`: (x, scale, zero point, packed weight, scale, zero point, n); float32 in and out.

    A weight of 8 bits and its float32 bias are read; the tensor that stands for them is a pointer.
    """
    x, n = signature.tensor(0), integer(signature.get(6))
    shape = (*x.shape[:-1], n)
    return moved(read(x) + n * x.shape[-1] + 4 * n, fresh(shape, "float32"), flops=2 * prod(shape) * x.shape[-1])


# -------------------------------------------------------------------------------------------------------- bitsandbytes


@formula("bitsandbytes::dequantize_4bit")
def dequantize_4bit(signature: Signature) -> Cost:
    """1 per element: value of the code * scale of the block; (packed, scales, block, kind, shape, dtype[, out])."""
    packed, scales, shape = signature.tensor(0), signature.tensor(1), sizes(signature.get(4))
    dtype = scalar_type(signature.get(5))
    return moved(read(packed, scales), fresh(shape, dtype), flops=prod(shape))


@formula("bitsandbytes::quantize_4bit")
def quantize_4bit(signature: Signature) -> Cost:
    """2 per element: the largest of the block, / scale; (x, block, kind, storage): 4 bits each, a scale a block."""
    x = signature.tensor(0)
    written = -(-x.numel // 2) + fresh((_blocks(x.numel, signature.get(1)),), "float32")
    return moved(read(x), written, flops=2 * x.numel)


@formula("bitsandbytes::dequantize_blockwise")
def dequantize_blockwise(signature: Signature) -> Cost:
    """1 per element: value of the code * scale of the block; (codes, scales, code book, block, dtype[, out])."""
    x = signature.tensor(0)
    dtype = scalar_type(signature.get(4))
    return moved(read(x, signature.tensor(1), signature.tensor(2)), fresh(x.shape, dtype), flops=x.numel)


@formula("bitsandbytes::quantize_blockwise")
def quantize_blockwise(signature: Signature) -> Cost:
    """2 per element: the largest of the block, / scale; (x, code book, block): a code an element, a scale a block."""
    x, book = signature.tensor(0), signature.tensor(1)
    written = x.numel + fresh((_blocks(x.numel, signature.get(2)),), "float32")
    return moved(read(x, book), written, flops=2 * x.numel)


@formula("bitsandbytes::gemv_4bit", "bitsandbytes::gemm_4bit")
def product_4bit(signature: Signature) -> Cost:
    """`2 * rows * n * k` for x (..., k) and a packed weight of shape (n, k); making its values again is not counted.

    (x, packed, shape, scales, ...). Reads every tensor given.
    """
    x, (n, k) = signature.tensor(0), sizes(signature.get(2), 2)
    if x.shape[-1] != k:
        raise Unknown(f"{x} and weight ({n}, {k})")
    rows = prod(x.shape[:-1])
    return moved(read(*signature.arguments), fresh((rows, n), x.dtype), flops=2 * rows * n * k)


def _int8(a: Tensor, b: Tensor) -> tuple[int, int]:
    """Elements of the result and FLOPs of (..., k) @ (n, k)^T."""
    if a.shape[-1] != b.shape[-1]:
        raise Unknown(f"{a} and {b}")
    elements = prod(a.shape[:-1]) * b.shape[0]
    return elements, 2 * elements * a.shape[-1]


@formula("bitsandbytes::int8_linear_matmul")
def int8_product(signature: Signature) -> Cost:
    """`2 * rows * n * k` for int8 (..., k) @ (n, k)^T -> int32."""
    a, b = signature.tensor(0), signature.tensor(1)
    elements, flops = _int8(a, b)
    return moved(read(a, b), fresh((elements,), "int32"), flops=flops)


@formula("bitsandbytes::int8_scaled_mm")
def int8_scaled_product(signature: Signature) -> Cost:
    """`2 * rows * n * k`; (a, b, row scales, column scales, bias, dtype) -> float16 unless asked otherwise."""
    a, b = signature.tensor(0), signature.tensor(1)
    elements, flops = _int8(a, b)
    dtype = scalar_type(signature.get(5)) or "float16"
    return moved(read(*signature.arguments[:5]), fresh((elements,), dtype), flops=flops)


@formula("bitsandbytes::int8_mm_dequant")
def int8_result(signature: Signature) -> Cost:
    """2 per element, * row scale * column scale, with a bias 3; (x, row scales, column scales, dtype, bias)."""
    x, bias = signature.tensor(0), optional(signature, 4)
    dtype = scalar_type(signature.get(3)) or "float16"
    moved_in = read(x, signature.tensor(1), signature.tensor(2), bias)
    return moved(moved_in, fresh(x.shape, dtype), flops=(2 + (bias is not None)) * x.numel)


@formula("bitsandbytes::int8_vectorwise_quant")
def int8_rows(signature: Signature) -> Cost:
    """2 per element: the largest of the row, * scale; (x, threshold): int8 values and a scale a row.

    With a threshold it lists the columns of outliers too, which are data and not counted.
    """
    x = signature.tensor(0)
    rows = prod(x.shape[:-1])
    return moved(read(x), x.numel + fresh((rows,), "float32"), flops=2 * x.numel)


# ------------------------------------------------------------------------------------------------------- vLLM: 8 bits


@formula("_C::static_scaled_fp8_quant")
def static_fp8(signature: Signature) -> Cost:
    """1 per element: / scale; (out, x, scale)."""
    out, x, scale = (signature.tensor(place) for place in range(3))
    return moved(read(x, scale), read(out), flops=x.numel)


@formula("_C::dynamic_scaled_fp8_quant", "_C::dynamic_per_token_scaled_fp8_quant")
def dynamic_fp8(signature: Signature) -> Cost:
    """2 per element: the largest, / scale; (out, x, scale): writes the scale too."""
    out, x, scale = (signature.tensor(place) for place in range(3))
    return moved(read(x), read(out, scale), flops=2 * x.numel)


@formula("_C::cutlass_scaled_mm")
def scaled_product(signature: Signature) -> Cost:
    """`2 * m * n * k`; (out, a (m, k), b (k, n), scales, scales, bias)."""
    out, a, b = (signature.tensor(place) for place in range(3))
    if a.shape[-1] != b.shape[0] or out.numel != prod(a.shape[:-1]) * b.shape[1]:
        raise Unknown(f"{a} @ {b}")
    return moved(read(*signature.arguments[1:6]), read(out), flops=2 * a.numel * b.shape[1])


# ------------------------------------------------------------------------------------------------------ FBGEMM: 8 bits


@formula("fbgemm::f8f8bf16", "fbgemm::f8f8bf16_rowwise", "fbgemm::f8f8bf16_tensorwise",
         "fbgemm::f8f8bf16_blockwise", "fbgemm::i8i8bf16")  # fmt: skip
def fp8_product(signature: Signature) -> Cost:
    """`2 * rows * n * k` for 8-bit (..., k) @ (n, k)^T -> bfloat16: (a, b, [scales, scales, bias,] ...).

    A tensor after these is a place for the result.
    """
    a, b = signature.tensor(0), signature.tensor(1)
    elements, flops = _int8(a, b)
    return moved(read(*signature.arguments[:5]), fresh((elements,), "bfloat16"), flops=flops)
