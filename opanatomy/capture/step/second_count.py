"""FLOPs of contractions a second time: by torch's own registry, or by hand where that has none or a wrong one.

A formula by hand counts from the tensors that really came out: two for each element of the result and each index that
is summed over. It shares nothing with `opanatomy.cost`, which reads the shapes that went in from a trace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

REGISTRY = "torch.utils.flop_counter"
BY_HAND = "counted by hand"


class SecondCount(Struct, frozen=True):
    """How the FLOPs of an operator are counted a second time.

    `arguments` takes what a call was given and gave, and keeps of it what can be compared and costs little: the shapes
    for torch's `formula`, the FLOPs themselves (or `None`) where there is none.
    """

    source: str
    arguments: Callable[[tuple[Any, ...], dict[str, Any], Any], Any]
    formula: Callable[..., int] | None = None


def second_count_of(function: Any) -> SecondCount | None:
    """The second count of an operator (an `OpOverload`); `None` where it has none."""
    from torch.utils.flop_counter import flop_registry

    by_hand = _BY_HAND.get(function._schema.name)
    if by_hand is not None:
        return SecondCount(BY_HAND, _sparse_or(by_hand))
    formula = flop_registry.get(function._overloadpacket)
    return None if formula is None else SecondCount(REGISTRY, _shapes, formula)


def flops_of(second: SecondCount, arguments: Any) -> int | None:
    """The FLOPs of a call by what `second.arguments` kept of it; `None` where they are not known."""
    if second.formula is None or arguments is None or isinstance(arguments, int):
        return None if arguments is None else int(arguments)
    args, kwargs, result = arguments
    try:
        return int(second.formula(*args, **dict(kwargs), out_val=result))
    except (AssertionError, AttributeError, IndexError, TypeError, ValueError):
        return None  # the formula does not know this form of the operator


# ---------------------------------------------------------------------------------------------------- what is kept


def _shapes(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
    """The call with shapes for tensors; its FLOPs where a matrix is sparse or lengths are data."""
    if any(_is_sparse(value) for value in args):
        return _sparse_product(args, kwargs)
    return (
        tuple(_shape(value) for value in args),
        tuple((name, _shape(value)) for name, value in kwargs.items() if name not in _DESTINATIONS),
        _shape(result),
    )


#: Where a result goes says nothing of its FLOPs, and a registry's formula does not take it.
_DESTINATIONS = frozenset({"out"})


def _shape(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return value.shape
    if isinstance(value, (list, tuple)):
        return tuple(_shape(item) for item in value)
    return value


def _sparse_or(count: Callable[..., int | None]) -> Callable[[tuple[Any, ...], dict[str, Any], Any], Any]:
    def counted(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int | None:
        if any(_is_sparse(value) for value in args):
            return _sparse_product(args, kwargs)
        return count(result, *args, **kwargs)

    return counted


# ------------------------------------------------------------------------------------------------------- by hand


def _is_sparse(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.layout is not torch.strided


def _stored(matrix: Any) -> int:
    """Elements that a sparse matrix stores, zeros inside of its blocks included."""
    import torch

    values = matrix._values() if matrix.layout is torch.sparse_coo else matrix.values()
    return int(values.numel())


def _sparse_product(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """Two for each stored element and each column (row) of the dense matrix that it meets; the last two are factors.

    `None` for two sparse factors: which elements meet is data. A sparse sum with dense factors is sampled where it is.
    """
    import torch

    values = [*args, *(kwargs[name] for name in ("mat1", "mat2", "sparse", "dense") if name in kwargs)]
    matrices = [value for value in values if isinstance(value, torch.Tensor)]
    *_, first, second = matrices if len(matrices) > 1 else (None, None)
    if first is None or second is None:
        return None
    match _is_sparse(first), _is_sparse(second):
        case True, False:
            return 2 * _stored(first) * (second.shape[-1] if second.dim() > 1 else 1)
        case False, True:
            return 2 * _stored(second) * (first.shape[-2] if first.dim() > 1 else 1)
        case False, False:
            return 2 * _stored(matrices[0]) * int(first.shape[-1])
    return None


def _summed(result: Any, factor: Any, *_: Any, **__: Any) -> int:
    """A product over the last dimension of the first factor."""
    result = result[0] if isinstance(result, (list, tuple)) else result
    return 2 * int(result.numel()) * int(factor.shape[-1])


def _added(result: Any, _added: Any, factor: Any, *_: Any, **__: Any) -> int:
    return _summed(result, factor)


def _added_batches(result: Any, _added: Any, factor: Any, *_: Any, **__: Any) -> int:
    return _summed(result, factor) * int(factor.shape[0])


def _filter(x: Any, weight: Any, y: Any, *, transposed: bool) -> int:
    """A convolution: each element that slides meets the filters of one channel, of its own group alone."""
    sliding = x if transposed else y
    return 2 * int(sliding.numel()) * int(weight[:1].numel())


def _convolution(result: Any, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any,
                 transposed: bool, *_: Any, **__: Any) -> int:  # fmt: skip
    return _filter(x, weight, result, transposed=transposed)


def _convolution_backward(_result: Any, grad: Any, x: Any, weight: Any, sizes: Any, stride: Any, padding: Any,
                          dilation: Any, transposed: bool, *rest: Any, **named: Any) -> int:  # fmt: skip
    wanted = named.get("output_mask", rest[-1] if rest else (True, True))
    return _filter(x, weight, grad, transposed=transposed) * (bool(wanted[0]) + bool(wanted[1]))


def _attention(result: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """(b, h, s, d) @ (b, h, d, t), then (b, h, s, t) @ (b, h, t, e); the heads are those of the query."""
    return 2 * int(query.shape[:-1].numel()) * int(key.shape[-2]) * int(query.shape[-1] + value.shape[-1])


def _attention_backward(result: Any, grad: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """The scores again, and two products for each of the forward's."""
    scores = 2 * int(query.shape[:-1].numel()) * int(key.shape[-2])
    return scores * int(3 * query.shape[-1] + 2 * value.shape[-1])


def _recurrent(result: Any, x: Any, weight: Any, recurrent: Any, *_: Any, **__: Any) -> int:
    """One layer in one direction: at each position of each sequence all of both matrices."""
    return 2 * int(x.shape[:-1].numel()) * int(weight.numel() + recurrent.numel())


def _recurrent_backward(result: Any, x: Any, weight: Any, recurrent: Any, *_: Any, **__: Any) -> int:
    return 2 * _recurrent(result, x, weight, recurrent)


def _distances(result: Any, first: Any, *_: Any, **__: Any) -> int:
    """(m, k + 2) @ (k + 2, n): the squares of both norms are two more columns."""
    return 2 * int(result.numel()) * (int(first.shape[-1]) + 2)


def _self_attention(result: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int | None:
    """Projections of query, key, value and result, and the two products of attention, over (b, s, e)."""
    if query.is_nested:
        return None  # lengths are data
    (b, s, e), t = query.shape, int(key.shape[1])
    return 2 * int(b) * int(e) * (2 * int(s) * int(e) + 2 * t * int(e) + 2 * int(s) * t)


def _encoder_layer(result: Any, x: Any, *rest: Any, **_: Any) -> int | None:
    """Attention over itself, and two matrices of the feed-forward part."""
    attention = _self_attention(result, x, x, x)
    feed_forward = [value for value in rest if getattr(value, "ndim", 0) == 2][-2:]
    if attention is None or len(feed_forward) != 2:
        return None
    return attention + sum(2 * int(x.shape[:-1].numel()) * int(weight.numel()) for weight in feed_forward)


def _all_layers(result: Any, x: Any, weights: Any, *_: Any, **__: Any) -> int:
    """All layers in all directions: at each position all matrices."""
    return 2 * int(x.shape[:-1].numel()) * sum(int(weight.numel()) for weight in weights if weight.dim() == 2)


def _all_layers_backward(result: Any, x: Any, weights: Any, *rest: Any, **named: Any) -> int:
    wanted = named.get("output_mask", rest[-1] if rest else (True,) * 4)
    return _all_layers(result, x, weights) * (1 + bool(wanted[3]))


def _grouped(result: Any, a: Any, b: Any, *_: Any, **__: Any) -> int:
    """Each row meets the matrix of its group: over all groups the rows are those of the one matrix.

    (m, k) @ (g, k, n), (g, m, k) @ (k, n), (g, m, k) @ (g, k, n), and (m, k) @ (k, n) with the groups along k, where
    each element of the g results sums over its own group's part of k alone.
    """
    if a.dim() == b.dim() == 2:
        return 2 * int(a.shape[0] * a.shape[1] * b.shape[1])
    return _summed(result, a)


def _trilinear(result: Any, first: Any, second: Any, third: Any, expand1: Any, expand2: Any, expand3: Any,
               sum_dim: Any, *_: Any, **__: Any) -> int:  # fmt: skip
    """The pairwise products that torch makes of it, one after the other, over the dimensions that each has."""
    total = first.dim() + len(expand1)
    sizes = [
        {place: int(tensor.shape[at]) for at, place in enumerate(p for p in range(total) if p not in missing)}
        for tensor, missing in ((first, expand1), (second, expand2), (third, expand3))
    ]
    flops, left = 0, sizes[0]
    for right, last in ((sizes[1], False), (sizes[2], True)):
        both = {**left, **right}
        summed = [place for place in sum_dim if (place in sizes[2]) is last]
        flops += 2 * math.prod(both.values()) if summed else 0
        left = {place: size for place, size in both.items() if place not in summed}
    return flops


def _with_forms(forms: dict[Callable[..., int | None], str]) -> Iterator[tuple[str, Callable[..., int | None]]]:
    for count, names in forms.items():
        for name in names.split():
            yield name if "::" in name else f"aten::{name}", count


#: What torch's registry lacks or has wrong: it counts 0 of these, and ignores `groups` in a convolution's backward.
_BY_HAND: dict[str, Callable[..., int | None]] = dict(
    _with_forms(
        {
            _summed: """affine_grid_generator mv dot vdot _int_mm linear mkldnn_linear _sparse_mm _scaled_mm_v2
                _weight_int8pack_mm _weight_int4pack_mm _weight_int4pack_mm_for_cpu _dyn_quant_matmul_4bit
                _weight_int4pack_mm_with_scales_and_zeros _mixed_dtypes_linear quantized::linear
                quantized::linear_dynamic fbgemm_linear_int8_weight fbgemm_linear_fp16_weight
                fbgemm_linear_int8_weight_fp32_activation fbgemm_linear_fp16_weight_fp32_activation""",
            _added: "addmv addmv_ _addmm_activation addmm_ baddbmm_ _sparse_addmm sparse_sampled_addmm sspaddmm",
            _added_batches: "addbmm addbmm_",
            _convolution: "convolution _convolution convolution_overrideable",
            _convolution_backward: "convolution_backward convolution_backward_overrideable",
            _attention: "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_fused_attention_overrideable",
            _attention_backward: """_scaled_dot_product_flash_attention_for_cpu_backward
                _scaled_dot_product_fused_attention_overrideable_backward""",
            _recurrent: "mkldnn_rnn_layer",
            _recurrent_backward: "mkldnn_rnn_layer_backward",
            _all_layers: "_cudnn_rnn miopen_rnn",
            _all_layers_backward: "_cudnn_rnn_backward",
            _distances: "_euclidean_dist",
            _self_attention: "_native_multi_head_attention",
            _encoder_layer: "_transformer_encoder_layer_fwd",
            _grouped: "_grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2",
            _trilinear: "_trilinear",
        }
    )
)
