"""Fused attention: two matmuls forward, five backward (the scores are recomputed); the score matrix is never stored.

`flops` counts the matmuls over all positions; `causal_flops` is half of that if the call is causal. If the arguments
include a window, both count exactly the query-key pairs within the window and the causal mask. A tensor mask does not
reduce the count, because its values are data. `normalization_flops` counts the softmax inside: 4 per score forward
(subtract, exp, sum, divide) and 4 backward (subtract and exp recompute the probabilities, subtract and multiply give
their gradient). Grouped-query attention is counted with the number of query heads. Source: torch.utils.flop_counter.
The random state (16 bytes) is not counted.
"""

from __future__ import annotations

from msgspec import Struct

from opanatomy.cost.operands import Unknown, flag, fresh, integer, mask, optional, read
from opanatomy.cost.registry import formula
from opanatomy.records.signature import Argument, Cost, Signature, Tensor

SOFTMAX = 4


class Sizes(Struct, frozen=True, kw_only=True):
    """The letters of one attention call: batch, query heads, positions of query and key, head sizes."""

    b: int
    h: int
    s: int
    t: int
    d: int
    dv: int


def heads_first(q: Tensor, k: Tensor, v: Tensor) -> Sizes:
    """Return the sizes of (b, h, s, d)."""
    (b, h, s, d), (b_k, h_k, t, d_k), (b_v, h_v, t_v, dv) = q.shape, k.shape, v.shape
    if not (b == b_k == b_v and h_k == h_v and h % h_k == 0 and t == t_v and d == d_k):
        raise Unknown(f"attention of {q}, {k}, {v}")
    return Sizes(b=b, h=h, s=s, t=t, d=d, dv=dv)


def heads_third(q: Tensor, k: Tensor, v: Tensor) -> Sizes:
    """Return the sizes of (b, s, h, d)."""
    return heads_first(*(Tensor((x.shape[0], x.shape[2], x.shape[1], x.shape[3])) for x in (q, k, v)))


def packed(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, longest_q: Argument, longest_k: Argument) -> Sizes:
    """Return the sizes of (total, h, d) with equally long sequences one after another.

    Other lengths are data and not in the signature: raises `Unknown`.
    """
    b = offsets.numel - 1
    (total, h, d), (total_k, h_k, _), (_, _, dv) = (x.shape[-3:] for x in (q, k, v))
    s, t = integer(longest_q), integer(longest_k)
    if b < 1 or total != b * s or total_k != b * t or h % h_k:
        raise Unknown("the lengths of the sequences")
    return Sizes(b=b, h=h, s=s, t=t, d=d, dv=dv)


class Mask(Struct, frozen=True, kw_only=True):
    """The keys that a query does not see: all behind it (`causal`), and those outside a window around it.

    `left` and `right` are the numbers of keys before and after its own position that a query sees; `None` is all. With
    `at_end` (flash-attn since 2.1) the last query is at the last key's position, else the first at the first key's.
    """

    causal: bool = False
    left: int | None = None
    right: int | None = None
    at_end: bool = False


def windowed(signature: Signature, causal: int, left: int, *, off: bool | None = None) -> Mask:
    """Return flash-attn's mask: the flag `causal` at `causal`, the window at `left` and the next index.

    A negative or missing side is no limit. A flag that is missing is `off`, if that is given.
    """
    before, after = (
        None if value is None or integer(value) < 0 else integer(value)
        for value in (signature.get(left), signature.get(left + 1))
    )
    is_causal = flag(signature.get(causal, off)) or (before is None and after == 0)
    return Mask(causal=is_causal, left=before, right=after, at_end=True)


def causal_at(signature: Signature, index: int) -> Mask:
    """Return the mask of a call of torch that is causal from its first key on if the flag at `index` says so."""
    return Mask(causal=flag(signature.get(index)))


def seen_pairs(s: int, t: int, mask: Mask) -> int | None:
    """Return the pairs of query and key within a window and the causal mask; `None` without a window that hides any."""
    shift = t - s if mask.at_end else 0
    right = 0 if mask.causal else mask.right
    within = s * t if right is None else _pairs_up_to(s, t, shift + right)
    seen = within if mask.left is None else within - _pairs_up_to(s, t, shift - mask.left - 1)
    return seen if seen < (within if mask.causal else s * t) else None


def _pairs_up_to(s: int, t: int, distance: int) -> int:
    """Return the pairs of i < s and j < t with j - i <= distance."""

    def triangle(n: int) -> int:
        return n * (n + 1) // 2 if n > 0 else 0

    over = distance - t
    return triangle(s + distance) - triangle(distance) - triangle(s + over) + triangle(over)


def _cost(sizes: Sizes, mask: Mask, flops_of_pair: int, read_bytes: int, written_bytes: int) -> Cost:
    """Return the cost of a call with this many FLOPs per query-key pair of a head."""
    seen = seen_pairs(sizes.s, sizes.t, mask)
    scores = sizes.b * sizes.h * (sizes.s * sizes.t if seen is None else seen)
    flops = flops_of_pair * scores
    return Cost(
        flops=flops,
        causal_flops=None if not mask.causal else flops // 2 if seen is None else flops,
        normalization_flops=SOFTMAX * scores,
        read_bytes=read_bytes,
        written_bytes=written_bytes,
    )


def forward_cost(sizes: Sizes, mask: Mask, read_bytes: int, written_bytes: int) -> Cost:
    """Return the cost of a forward of these sizes that moves these bytes."""
    return _cost(sizes, mask, 2 * (sizes.d + sizes.dv), read_bytes, written_bytes)


def backward_cost(sizes: Sizes, mask: Mask, read_bytes: int, written_bytes: int) -> Cost:
    """Return the cost of a backward of these sizes that moves these bytes."""
    # scores again (d), gradient of the probabilities (dv) and of the value (dv), of the query (d) and the key (d)
    return _cost(sizes, mask, 2 * (3 * sizes.d + 2 * sizes.dv), read_bytes, written_bytes)


def output_bytes(sizes: Sizes, q: Tensor, statistics: int | None = None) -> int:
    """Return the bytes of the result and of the float32 log-sum-exp, `statistics` elements a head."""
    rows = sizes.b * sizes.h
    width = sizes.s if statistics is None else statistics
    return fresh((rows, sizes.s, sizes.dv), q.dtype) + fresh((rows, width), "float32")


def gradient_bytes(*tensors: Tensor | None) -> int:
    """Return the bytes of new tensors like `tensors`."""
    return sum(fresh(x.shape, x.dtype) for x in tensors if x is not None)


def query_key_value(signature: Signature, start: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return the three tensors from `start` on."""
    return signature.tensor(start), signature.tensor(start + 1), signature.tensor(start + 2)


# ------------------------------------------------------------------------------------------- below scaled_dot_product


@formula("aten::_scaled_dot_product_flash_attention")
def flash(signature: Signature) -> Cost:
    """`4 * b * h * s * t * d` FLOPs for q (b, h, s, d), k and v (b, h_kv, t, d).

    For a causal call, half of this count is also recorded as `causal_flops`.
    """
    q, k, v = query_key_value(signature)
    # the overload with three scales of fp8 has them before dropout_p
    mask = causal_at(signature, 4 if optional(signature, 3) is None else 7)
    sizes = heads_first(q, k, v)
    return forward_cost(sizes, mask, read(q, k, v), output_bytes(sizes, q))


@formula("aten::_scaled_dot_product_flash_attention_for_cpu")
def flash_cpu(signature: Signature) -> Cost:
    """`4 * b * h * s * t * d` FLOPs; also reads the mask. torch.utils.flop_counter counts 0 here (pytorch#195460)."""
    q, k, v = query_key_value(signature)
    sizes = heads_first(q, k, v)
    moved = read(q, k, v, optional(signature, 5))
    return forward_cost(sizes, causal_at(signature, 4), moved, output_bytes(sizes, q))


@formula("aten::_scaled_dot_product_efficient_attention", "aten::_scaled_dot_product_cudnn_attention")
def efficient(signature: Signature) -> Cost:
    """`4 * b * h * s * t * d` FLOPs. Arguments: (q, k, v, bias, compute_log_sumexp, dropout_p, is_causal).

    Writes the log-sum-exp only if `compute_log_sumexp` is true.
    """
    q, k, v = query_key_value(signature)
    sizes = heads_first(q, k, v)
    width = sizes.s if flag(signature.get(4)) else 0
    moved = read(q, k, v, optional(signature, 3))
    return forward_cost(sizes, causal_at(signature, 6), moved, output_bytes(sizes, q, width))


@formula("aten::_scaled_dot_product_fused_attention_overrideable")
def overrideable(signature: Signature) -> Cost:
    """`4 * b * h * s * t * d` FLOPs. Arguments: (q, k, v, bias, dropout_p, is_causal)."""
    q, k, v = query_key_value(signature)
    sizes = heads_first(q, k, v)
    moved = read(q, k, v, optional(signature, 3))
    return forward_cost(sizes, causal_at(signature, 5), moved, output_bytes(sizes, q))


def _usual_backward(signature: Signature, causal: int, bias: Tensor | None, bias_wanted: bool = False) -> Cost:
    """Return the cost of a backward below scaled_dot_product_attention: (grad, q, k, v, ...)."""
    grad, (q, k, v) = signature.tensor(0), query_key_value(signature, 1)
    sizes = heads_first(q, k, v)
    # the output and its log-sum-exp were saved by the forward
    saved = output_bytes(sizes, q)
    written = gradient_bytes(q, k, v, bias if bias_wanted else None)
    return backward_cost(sizes, causal_at(signature, causal), read(grad, q, k, v, bias) + saved, written)


@formula("aten::_scaled_dot_product_flash_attention_backward")
def flash_backward(signature: Signature) -> Cost:
    """`10 * b * h * s * t * d` FLOPs for five matmuls.

    Reads the output gradient, q, k, v, the output and the log-sum-exp.
    """
    return _usual_backward(signature, 11, None)


@formula("aten::_scaled_dot_product_flash_attention_for_cpu_backward")
def flash_cpu_backward(signature: Signature) -> Cost:
    """`10 * b * h * s * t * d` FLOPs for five matmuls; also reads the mask."""
    return _usual_backward(signature, 7, optional(signature, 8))


@formula("aten::_scaled_dot_product_efficient_attention_backward")
def efficient_backward(signature: Signature) -> Cost:
    """`10 * b * h * s * t * d` FLOPs for five matmuls; writes the bias gradient if requested."""
    wanted = mask(signature.get(10), 4)[3]
    return _usual_backward(signature, 11, optional(signature, 4), wanted)


@formula("aten::_scaled_dot_product_cudnn_attention_backward")
def cudnn_backward(signature: Signature) -> Cost:
    """`10 * b * h * s * t * d` FLOPs for five matmuls."""
    return _usual_backward(signature, 14, optional(signature, 8))


@formula("aten::_scaled_dot_product_fused_attention_overrideable_backward")
def overrideable_backward(signature: Signature) -> Cost:
    """`10 * b * h * s * t * d` FLOPs for five matmuls; writes the bias gradient if requested."""
    wanted = mask(signature.get(5), 4)[3]
    return _usual_backward(signature, 13, optional(signature, 4), wanted)


# -------------------------------------------------------------------------------------------------- heads third, packed


def flexible(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor | None, longest: tuple[Argument, Argument]) -> Sizes:
    """Return the sizes of (b, s, h, d), or with `offsets` of sequences one after another."""
    return heads_third(q, k, v) if offsets is None else packed(q, k, v, offsets, *longest)


@formula("aten::_flash_attention_forward")
def flash_heads_third(signature: Signature) -> Cost:
    """`4 * b * h * s * t * d` FLOPs for (b, s, h, d), or (total, h, d) with packed sequences of equal length.

    Other packed sequences have no cost. Arguments: (q, k, v, offsets, offsets, max_q, max_k, p, is_causal, debug,
    scale, window_left, window_right, seqused_k, ...).
    """
    q, k, v = query_key_value(signature)
    offsets = optional(signature, 3)
    # the overload with three scales of fp8 has them before the scale
    quantized = 3 if any(optional(signature, index) is not None for index in (10, 11, 12)) else 0
    _all_in_use(signature, (13 + quantized, 15 + quantized))
    sizes = flexible(q, k, v, offsets, (signature.get(5), signature.get(6)))
    moved = read(q, k, v, offsets, optional(signature, 4))
    return forward_cost(sizes, windowed(signature, 8, 11 + quantized), moved, output_bytes(sizes, q))


@formula("aten::_flash_attention_backward")
def flash_heads_third_backward(signature: Signature) -> Cost:
    """`10 * b * h * s * t * d` FLOPs for five matmuls. Arguments 15 and 16 are the left and right window sizes."""
    grad, (q, k, v) = signature.tensor(0), query_key_value(signature, 1)
    offsets = optional(signature, 6)
    sizes = flexible(q, k, v, offsets, (signature.get(8), signature.get(9)))
    moved = read(grad, q, k, v, offsets, optional(signature, 7)) + output_bytes(sizes, q)
    return backward_cost(sizes, windowed(signature, 11, 15), moved, gradient_bytes(q, k, v))


def _mask_type(signature: Signature, kind: int, window: int) -> Mask:
    """Return the mask of the memory-efficient kernel: causal from the first key (1) or the last (2), else none.

    The window is how many keys a query sees, its own place included; 0 is none.
    """
    of_kind, keys = integer(signature.get(kind)), integer(signature.get(window, 0))
    return Mask(causal=of_kind in (1, 2), left=keys - 1 if keys > 0 else None, at_end=of_kind == 2)


@formula("aten::_efficient_attention_forward")
def efficient_heads_third(signature: Signature) -> Cost:
    """`4 * b * h * s * t * d` FLOPs for (b, s, h, d), or packed sequences of equal length.

    Other packed sequences have no cost. Arguments: (q, k, v, bias, offsets, offsets, max_q, max_k, p, mask type,
    compute_log_sumexp, scale, seqlen_k, window_size).
    """
    q, k, v = query_key_value(signature)
    bias, offsets = optional(signature, 3), optional(signature, 4)
    sizes = flexible(q, k, v, offsets, (signature.get(6), signature.get(7)))
    width = sizes.s if flag(signature.get(10)) else 0
    moved = read(q, k, v, bias, offsets, optional(signature, 5))
    return forward_cost(sizes, _mask_type(signature, 9, 13), moved, output_bytes(sizes, q, width))


@formula("aten::_efficient_attention_backward")
def efficient_heads_third_backward(signature: Signature) -> Cost:
    """`10 * b * h * s * t * d` FLOPs for five matmuls; writes the bias gradient if requested."""
    grad, (q, k, v), bias = signature.tensor(0), query_key_value(signature, 1), optional(signature, 4)
    offsets = optional(signature, 6)
    sizes = flexible(q, k, v, offsets, (signature.get(8), signature.get(9)))
    moved = read(grad, q, k, v, bias, offsets, optional(signature, 7)) + output_bytes(sizes, q)
    written = gradient_bytes(q, k, v, bias if flag(signature.get(15)) else None)
    return backward_cost(sizes, _mask_type(signature, 14, 18), moved, written)


@formula("aten::_cudnn_attention_forward")
def cudnn_heads_first(signature: Signature) -> Cost:
    """`4 * b * h * s * t * d` FLOPs; packed sequences have no cost.

    Arguments: (q, k, v, bias, offsets, offsets, max_q, max_k, compute_log_sumexp, p, is_causal).
    """
    q, k, v = query_key_value(signature)
    if optional(signature, 4) is not None:
        raise Unknown("the lengths of the sequences")
    sizes = heads_first(q, k, v)
    width = sizes.s if flag(signature.get(8)) else 0
    moved = read(q, k, v, optional(signature, 3))
    return forward_cost(sizes, causal_at(signature, 10), moved, output_bytes(sizes, q, width))


@formula("aten::_cudnn_attention_backward")
def cudnn_heads_first_backward(signature: Signature) -> Cost:
    """`10 * b * h * s * t * d` FLOPs for five matmuls."""
    return _usual_backward(signature, 14, optional(signature, 8))


# Attention of other packages: flash-attn 2 and 3 and vLLM's builds of them.
#
# Counted like torch's own attention. If keys and values are in pages, or only partly in use, the lengths are data and
# not in the signature: no cost.


# ---------------------------------------------------------------------------------------------------- flash-attn 2


@formula("flash_attn::_flash_attn_forward")
def package_forward(signature: Signature) -> Cost:
    """`4 * b * h * s * t * d` FLOPs for (b, s, h, d).

    Arguments: (q, k, v, p, scale, causal, window_left, window_right, ...).
    """
    q, k, v = query_key_value(signature)
    sizes = heads_third(q, k, v)
    return forward_cost(sizes, windowed(signature, 5, 6), read(q, k, v), output_bytes(sizes, q))


@formula("flash_attn::_flash_attn_backward")
def package_backward(signature: Signature) -> Cost:
    """`10 * b * h * s * t * d` FLOPs.

    Arguments: (grad, q, k, v, out, lse, dq, dk, dv, p, scale, causal, window_left, ...).
    """
    grad, (q, k, v) = signature.tensor(0), query_key_value(signature, 1)
    sizes = heads_third(q, k, v)
    moved = read(grad, q, k, v) + output_bytes(sizes, q)
    return backward_cost(sizes, windowed(signature, 11, 12), moved, gradient_bytes(q, k, v))


@formula("flash_attn::_flash_attn_varlen_forward")
def package_packed_forward(signature: Signature) -> Cost:
    """`4 * b * h * s * t * d` FLOPs for packed sequences of equal length; other lengths and a paged cache have no cost.

    Arguments: (q, k, v, cu_seqlens_q, cu_seqlens_k, max_q, max_k, p, scale, causal, window_left, window_right, softcap,
    alibi_slopes, return_softmax, block_table, leftpad_k, seqused_k, ...).
    """
    q, k, v = query_key_value(signature)
    offsets = signature.tensor(3)
    _all_in_use(signature, (15, 16, 17))
    sizes = packed(q, k, v, offsets, signature.get(5), signature.get(6))
    moved = read(q, k, v, offsets, signature.tensor(4))
    return forward_cost(sizes, windowed(signature, 9, 10), moved, output_bytes(sizes, q))


@formula("flash_attn::_flash_attn_varlen_backward")
def package_packed_backward(signature: Signature) -> Cost:
    """`10 * b * h * s * t * d` FLOPs for packed sequences of equal length; other lengths have no cost.

    Arguments: (grad, q, k, v, out, lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_q, max_k, p, scale, causal,
    window_left, ...).
    """
    grad, (q, k, v) = signature.tensor(0), query_key_value(signature, 1)
    offsets = signature.tensor(9)
    sizes = packed(q, k, v, offsets, signature.get(11), signature.get(12))
    moved = read(grad, q, k, v, offsets, signature.tensor(10)) + output_bytes(sizes, q)
    return backward_cost(sizes, windowed(signature, 15, 16), moved, gradient_bytes(q, k, v))


@formula("_vllm_fa2_C::varlen_fwd")
def vllm_packed_forward(signature: Signature) -> Cost:
    """`4 * b * h * s * t * d` FLOPs for packed sequences of equal length; other lengths and a paged cache have no cost.

    Arguments: (q, k, v, out, cu_seqlens_q, cu_seqlens_k, seqused_k, leftpad_k, block_table, alibi_slopes, max_q, max_k,
    p, scale, zero_tensors, causal, window_left, window_right, ...).
    """
    q, k, v = query_key_value(signature)
    offsets = signature.tensor(4)
    _all_in_use(signature, (6, 7, 8))
    sizes = packed(q, k, v, offsets, signature.get(10), signature.get(11))
    moved = read(q, k, v, offsets, signature.tensor(5))
    return forward_cost(sizes, windowed(signature, 15, 16), moved, output_bytes(sizes, q))


# ---------------------------------------------------------------------------------------------------- flash-attn 3


def _all_in_use(signature: Signature, indices: tuple[int, ...]) -> None:
    """Raise `Unknown` if pages, paddings or lengths are tensors."""
    if any(optional(signature, index) is not None for index in indices):
        raise Unknown("the lengths of the sequences")


@formula("flash_attn_3::fwd", "flash_attn_3::_flash_attn_forward", "_vllm_fa3_C::fwd")
def third_forward(signature: Signature) -> Cost:
    """`4 * b * h * s * t * d` FLOPs for (b, s, h, d), or packed sequences of equal length.

    Other packed sequences, a key-value cache and chunked attention have no cost. Arguments: (q, k, v, k_new, v_new,
    q_v, out, cu_seqlens_q, cu_seqlens_k, cu_seqlens_k_new, seqused_q, seqused_k, max_q, max_k, page_table, ...,
    is_causal (24), window_left, window_right, attention_chunk). Source: hopper/flash_api.cpp.
    """
    q, k, v = query_key_value(signature)
    if signature.get(27, 0) != 0:
        raise Unknown("which keys are in a query's chunk")
    _all_in_use(signature, (3, 4, 5, 9, 10, 11, 14, 15, 16))
    offsets = optional(signature, 7)
    sizes = flexible(q, k, v, offsets, (signature.get(12), signature.get(13)))
    out = optional(signature, 6)
    moved = read(q, k, v, offsets, optional(signature, 8), *(optional(signature, index) for index in (20, 21, 22)))
    # 8-bit inputs give a 16-bit result
    dtype = out.dtype if out else "bfloat16" if str(q.dtype).startswith("float8") else q.dtype
    written = output_bytes(sizes, Tensor(q.shape, dtype))
    return forward_cost(sizes, windowed(signature, 24, 25, off=False), moved, written)


@formula("flash_attn_3::bwd")
def third_backward(signature: Signature) -> Cost:
    """`10 * b * h * s * t * d` FLOPs for five matmuls.

    Arguments: (grad, q, k, v, out, lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, max_q, max_k,
    scale, is_causal, window_left, window_right, ...). Source: hopper/flash_api.cpp.
    """
    grad, (q, k, v) = signature.tensor(0), query_key_value(signature, 1)
    _all_in_use(signature, (11, 12))
    offsets = optional(signature, 9)
    sizes = flexible(q, k, v, offsets, (signature.get(13), signature.get(14)))
    moved = read(grad, q, k, v, offsets, optional(signature, 10)) + output_bytes(sizes, q)
    return backward_cost(sizes, windowed(signature, 16, 17, off=False), moved, gradient_bytes(q, k, v))


@formula("flash_attn_3::_flash_attn_backward")
def third_interface_backward(signature: Signature) -> Cost:
    """`10 * b * h * s * t * d` FLOPs, as for `flash_attn_3::bwd`, which this operator calls.

    The older version has 19 arguments: (grad, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k,
    max_q, max_k, scale, is_causal, ...). The newer version has 22, with dq, dk, dv before the scale. Source:
    hopper/flash_attn_interface.py and recorded traces.
    """
    head, rest = signature.arguments[:6], signature.arguments[6:]
    if len(signature.arguments) >= 22:
        rest = (*rest[:6], *rest[9:])
    return third_backward(Signature((*head, None, None, None, *rest)))
