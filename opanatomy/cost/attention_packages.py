"""Attention of other packages: flash-attn 2 and 3 and vLLM's builds of them.

Counted as torch's own, `attention`. Where keys and values are in pages, or where only part of them is in use, the
lengths are data and not in the signature: no cost.
"""

from __future__ import annotations

from opanatomy.cost.attention import (
    backward_cost,
    flexible,
    forward_cost,
    gradient_bytes,
    heads_third,
    output_bytes,
    packed,
    query_key_value,
)
from opanatomy.cost.operands import Unknown, flag, optional, read
from opanatomy.cost.registry import formula
from opanatomy.records.signature import Cost, Signature, Tensor

# ---------------------------------------------------------------------------------------------------- flash-attn 2


@formula("flash_attn::_flash_attn_forward")
def package_forward(signature: Signature) -> Cost:
    """`4 * b * h * s * t * d` for (b, s, h, d): (q, k, v, dropout_p, softmax_scale, causal, ...)."""
    q, k, v = query_key_value(signature)
    sizes = heads_third(q, k, v)
    return forward_cost(sizes, flag(signature.get(5)), read(q, k, v), output_bytes(sizes, q))


@formula("flash_attn::_flash_attn_backward")
def package_backward(signature: Signature) -> Cost:
    """`10 * b * h * s * t * d`: (grad, q, k, v, out, lse, dq, dk, dv, dropout_p, softmax_scale, causal, ...)."""
    grad, (q, k, v) = signature.tensor(0), query_key_value(signature, 1)
    sizes = heads_third(q, k, v)
    return backward_cost(
        sizes, flag(signature.get(11)), read(grad, q, k, v) + output_bytes(sizes, q), gradient_bytes(q, k, v)
    )


@formula("flash_attn::_flash_attn_varlen_forward")
def package_packed_forward(signature: Signature) -> Cost:
    """`4 * b * h * s * t * d` for equally long sequences one after another; others are unknown.

    (q, k, v, cu_seqlens_q, cu_seqlens_k, max_q, max_k, dropout_p, softmax_scale, causal, ...)
    """
    q, k, v = query_key_value(signature)
    offsets = signature.tensor(3)
    sizes = packed(q, k, v, offsets, signature.get(5), signature.get(6))
    return forward_cost(
        sizes, flag(signature.get(9)), read(q, k, v, offsets, signature.tensor(4)), output_bytes(sizes, q)
    )


@formula("flash_attn::_flash_attn_varlen_backward")
def package_packed_backward(signature: Signature) -> Cost:
    """`10 * b * h * s * t * d` for equally long sequences one after another; others are unknown.

    (grad, q, k, v, out, lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_q, max_k, dropout_p, softmax_scale, causal)
    """
    grad, (q, k, v) = signature.tensor(0), query_key_value(signature, 1)
    offsets = signature.tensor(9)
    sizes = packed(q, k, v, offsets, signature.get(11), signature.get(12))
    moved = read(grad, q, k, v, offsets, signature.tensor(10)) + output_bytes(sizes, q)
    return backward_cost(sizes, flag(signature.get(15)), moved, gradient_bytes(q, k, v))


@formula("_vllm_fa2_C::varlen_fwd")
def vllm_packed_forward(signature: Signature) -> Cost:
    """`4 * b * h * s * t * d` for equally long sequences one after another; a paged cache is unknown.

    (q, k, v, out, cu_seqlens_q, cu_seqlens_k, seqused_k, leftpad_k, block_table, alibi_slopes, max_q, max_k, ...)
    """
    q, k, v = query_key_value(signature)
    offsets = signature.tensor(4)
    _all_in_use(signature, (6, 7, 8))
    sizes = packed(q, k, v, offsets, signature.get(10), signature.get(11))
    moved = read(q, k, v, offsets, signature.tensor(5))
    return forward_cost(sizes, flag(signature.get(15)), moved, output_bytes(sizes, q))


# ---------------------------------------------------------------------------------------------------- flash-attn 3


def _all_in_use(signature: Signature, places: tuple[int, ...]) -> None:
    """Refuses a call whose pages, paddings or lengths are tensors."""
    if any(optional(signature, place) is not None for place in places):
        raise Unknown("the lengths of the sequences")


@formula("flash_attn_3::fwd", "flash_attn_3::_flash_attn_forward", "_vllm_fa3_C::fwd")
def third_forward(signature: Signature) -> Cost:
    """`4 * b * h * s * t * d` for (b, s, h, d), or sequences of equal length one after another; a cache is unknown.

    (q, k, v, k_new, v_new, q_v, out, cu_seqlens_q, cu_seqlens_k, cu_seqlens_k_new, seqused_q, seqused_k, max_q, max_k,
    page_table, ..., is_causal at 24). Source: hopper/flash_api.cpp.
    """
    q, k, v = query_key_value(signature)
    _all_in_use(signature, (3, 4, 5, 9, 10, 11, 14, 15, 16))
    offsets = optional(signature, 7)
    sizes = flexible(q, k, v, offsets, (signature.get(12), signature.get(13)))
    out = optional(signature, 6)
    moved = read(q, k, v, offsets, optional(signature, 8), *(optional(signature, place) for place in (20, 21, 22)))
    # 8-bit inputs give a 16-bit result
    dtype = out.dtype if out else "bfloat16" if str(q.dtype).startswith("float8") else q.dtype
    written = output_bytes(sizes, Tensor(q.shape, dtype))
    return forward_cost(sizes, flag(signature.get(24, False)), moved, written)


@formula("flash_attn_3::bwd")
def third_backward(signature: Signature) -> Cost:
    """`10 * b * h * s * t * d`, five products.

    (grad, q, k, v, out, lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, max_q, max_k, scale,
    is_causal, ...). Source: hopper/flash_api.cpp.
    """
    grad, (q, k, v) = signature.tensor(0), query_key_value(signature, 1)
    _all_in_use(signature, (11, 12))
    offsets = optional(signature, 9)
    sizes = flexible(q, k, v, offsets, (signature.get(13), signature.get(14)))
    moved = read(grad, q, k, v, offsets, optional(signature, 10)) + output_bytes(sizes, q)
    return backward_cost(sizes, flag(signature.get(16, False)), moved, gradient_bytes(q, k, v))


@formula("flash_attn_3::_flash_attn_backward")
def third_interface_backward(signature: Signature) -> Cost:
    """`10 * b * h * s * t * d`: the operator around `bwd`, of which there are two forms.

    (grad, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, max_q, max_k, scale, is_causal, ...), 19
    arguments; later with dq, dk, dv before the scale, 22. Source: hopper/flash_attn_interface.py, and traces of it.
    """
    head, rest = signature.arguments[:6], signature.arguments[6:]
    if len(signature.arguments) >= 22:
        rest = (*rest[:6], *rest[9:])
    return third_backward(Signature((*head, None, None, None, *rest)))
