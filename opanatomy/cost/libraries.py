"""Fused kernels from other packages: vLLM, SGLang, Liger, Apex.

Operations count as in torch's own operators. A Python autograd function (`LigerSiLUMulFunction`) is recorded with its
input tensors, its backward only with the gradient, which suffices if all other tensors have the gradient's shape.
"""

from __future__ import annotations

from math import prod

from opanatomy.cost.normalization import SCALE, SHIFT, STANDARDIZE
from opanatomy.cost.operands import Unknown, fresh, integer, item, moved, optional, read
from opanatomy.cost.registry import formula
from opanatomy.records.signature import Cost, Signature, Tensor

#: Activation of the first half times the second half: FLOPs per output element.
_GATED = {"silu_and_mul": 5, "mul_and_silu": 5, "gelu_and_mul": 6, "gelu_tanh_and_mul": 11, "fatrelu_and_mul": 1}
#: gelu_new is the tanh form; gelu_fast 0.5 * x * (1 + tanh(x * c * (1 + d * x * x))); gelu_quick x / (1 + exp(-c * x)).
_ACTIVATIONS = {"gelu_new": 10, "gelu_fast": 9, "gelu_quick": 4}


def _register(name: str, flops: int) -> None:
    def into_first(signature: Signature) -> Cost:
        out, x = signature.tensor(0), signature.tensor(1)
        return moved(read(x), read(out), flops=flops * out.numel)

    into_first.__doc__ = f"{flops} FLOP{'s' * (flops != 1)} per output element. Arguments: (out, x)."
    formula(f"_C::{name}", f"sgl_kernel::{name}")(into_first)


for _name, _flops in {**_GATED, **_ACTIVATIONS}.items():
    _register(_name, _flops)


@formula("_C::rms_norm", "sgl_kernel::rmsnorm", "vllm::rms_norm")
def rms_norm(signature: Signature) -> Cost:
    """4 FLOPs per element: square, sum, * rstd, * scale. Arguments: (out, x, weight, eps)."""
    out, x, weight = signature.tensor(0), signature.tensor(1), optional(signature, 2)
    if out.shape != x.shape:
        raise Unknown("a form without the place for the result")
    return moved(read(x, weight), read(out), flops=(3 + (weight is not None)) * x.numel)


@formula("_C::fused_add_rms_norm", "sgl_kernel::fused_add_rmsnorm")
def added_rms_norm(signature: Signature) -> Cost:
    """5 FLOPs per element: residual add 1, RMS norm 4; updates x and the residual in place.

    Arguments: (x, residual, weight, eps).
    """
    x, residual, weight = signature.tensor(0), signature.tensor(1), optional(signature, 2)
    flops = (4 + (weight is not None)) * x.numel
    return moved(read(x, residual, weight), read(x, residual), flops=flops)


@formula("_C::rms_norm_static_fp8_quant")
def rms_norm_fp8(signature: Signature) -> Cost:
    """5 FLOPs per element: RMS norm 4, / scale 1. Arguments: (out, x, weight, scale, eps)."""
    out, x, weight, scale = (signature.tensor(index) for index in range(4))
    return moved(read(x, weight, scale), read(out), flops=5 * x.numel)


@formula("_C::rotary_embedding")
def rotary_embedding(signature: Signature) -> Cost:
    """3 FLOPs per rotated element: two multiplies and an add.

    Arguments: (positions, query, key, head size, cosines and sines, ...).

    Reads and writes only the first `rot_dim` elements of each head, in place, and reads one table row per position.
    """
    positions, query, key, table = signature.tensor(0), signature.tensor(1), optional(signature, 2), signature.tensor(4)
    width, head = table.shape[-1], integer(signature.get(3))
    if not 0 < width <= head:
        raise Unknown(f"rotation of {width} of {head}")
    rotated = sum(x.numel // head * width * item(x.dtype) for x in (query, key) if x is not None)
    elements = sum(x.numel // head * width for x in (query, key) if x is not None)
    rows = min(positions.numel * width, table.stored) * item(table.dtype)
    return moved(read(positions) + rotated + rows, rotated, flops=3 * elements)


@formula("_C_cache_ops::reshape_and_cache", "_C_cache_ops::reshape_and_cache_flash")
def into_cache(signature: Signature) -> Cost:
    """0 FLOPs. Arguments: (key, value, key cache, value cache, slots, ...).

    Reads keys and values, writes them in the cache's data type. There may be fewer slots than rows of keys; the
    remaining rows are padding and are not counted.
    """
    key, value, keys, values, slots = (signature.tensor(index) for index in range(5))
    stored = [x.numel // x.shape[0] * min(slots.numel, x.shape[0]) for x in (key, value)]
    given = stored[0] * item(key.dtype) + stored[1] * item(value.dtype)
    return moved(given + read(slots), stored[0] * item(keys.dtype) + stored[1] * item(values.dtype))


@formula("_moe_C::topk_softmax")
def topk_softmax(signature: Signature) -> Cost:
    """4 FLOPs per router output, as for softmax. Arguments: (weights, indices, token indices, logits)."""
    x = signature.tensor(3)
    return moved(read(x), read(*map(signature.tensor, range(3))), flops=4 * x.numel)


@formula("_moe_C::moe_sum")
def expert_sum(signature: Signature) -> Cost:
    """1 FLOP per input element. Arguments: (x (tokens, experts, d), out)."""
    x, out = signature.tensor(0), signature.tensor(1)
    return moved(read(x), read(out), flops=x.numel)


# ------------------------------------------------------------------------------------- norms, functions of Python


def _norm(x: Tensor, parameters: tuple[Tensor | None, ...], flops: int, statistics: int) -> Cost:
    rows = prod(x.shape[:-1])
    written = fresh(x.shape, x.dtype) + statistics * fresh((rows,), "float32")
    return moved(read(x, *parameters), written, flops=flops * x.numel)


@formula("LigerRMSNormFunction", "FusedRMSNormAffineFunction", "FusedRMSNormAffineMixedDtypesFunction")
def function_rms_norm(signature: Signature) -> Cost:
    """4 FLOPs per element: square, sum, * rstd, * scale. Writes one float32 statistic per row.

    Arguments: (x, weight, ...).
    """
    weight = optional(signature, 1)
    return _norm(signature.tensor(0), (weight,), 3 + (weight is not None), 1)


@formula("LigerLayerNormFunction", "FusedLayerNormAffineFunction", "FusedLayerNormAffineMixedDtypesFunction")
def function_layer_norm(signature: Signature) -> Cost:
    """7 FLOPs per element, as for layer norm. Writes two float32 statistics per row.

    Arguments: (x, weight, bias, ...).
    """
    return _norm(signature.tensor(0), (signature.tensor(1), signature.tensor(2)), STANDARDIZE + SCALE + SHIFT, 2)


@formula("ScaledUpperTriangMaskedSoftmax", "ScaledMaskedSoftmax", "ScaledSoftmax")
def scaled_softmax(signature: Signature) -> Cost:
    """5 FLOPs per element: * scale 1, softmax 4. Arguments: (x, [mask,] scale)."""
    x = signature.tensor(0)
    return moved(read(x, optional(signature, 1)), fresh(x.shape, x.dtype), flops=5 * x.numel)


# ---------------------------------------------------------------------------------- maps and losses of Liger


def _gated(signature: Signature, flops: int) -> Cost:
    a, b = signature.tensor(0), signature.tensor(1)
    if a.shape != b.shape:
        raise Unknown(f"{a} and {b}")
    return moved(read(a, b), fresh(a.shape, a.dtype), flops=flops * a.numel)


@formula("LigerSiLUMulFunction")
def silu_product(signature: Signature) -> Cost:
    """5 FLOPs per element: silu(a) * b."""
    return _gated(signature, 5)


@formula("LigerGELUMulFunction")
def gelu_product(signature: Signature) -> Cost:
    """11 FLOPs per element: gelu(a) (tanh form) * b."""
    return _gated(signature, 11)


@formula("LigerSiLUMulFunctionBackward")
def silu_product_backward(signature: Signature) -> Cost:
    """11 FLOPs per element; reads a and b, which have the gradient's shape and type, and writes their gradients.

    s = sigmoid(a) takes 4, silu = a * s 1, s + silu * (1 - s) 3, the product of that with grad and b 2, grad * silu 1.
    """
    grad = signature.tensor(0)
    operand_bytes = fresh(grad.shape, grad.dtype)
    return moved(read(grad) + 2 * operand_bytes, 2 * operand_bytes, flops=11 * grad.numel)


@formula("LigerRopeFunction")
def rotary_function(signature: Signature) -> Cost:
    """3 FLOPs per element: x * cos + rotated * sin. Arguments: (q, k, cos, sin, ...)."""
    q, k = signature.tensor(0), signature.tensor(1)
    written = fresh(q.shape, q.dtype) + fresh(k.shape, k.dtype)
    return moved(read(*map(signature.tensor, range(4))), written, flops=3 * (q.numel + k.numel))


@formula("LigerCrossEntropyFunction")
def cross_entropy(signature: Signature) -> Cost:
    """8 FLOPs per logit: softmax 4 and the gradient 4, which overwrites the logits.

    Arguments: (logits, targets, ...).
    """
    x, target = signature.tensor(0), signature.tensor(1)
    return moved(read(x, target), read(x) + item("float32"), flops=8 * x.numel)
