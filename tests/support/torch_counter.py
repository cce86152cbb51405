"""What torch's counter of FLOPs is known to get wrong or to leave out, with the formulas that mend it."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import conv_flop_count, sdpa_backward_flop_count, sdpa_flop_count


def grouped_mm_flops(a: Any, b: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """2 m k n over all groups together; torch has no formula for it."""
    a, b, out = tuple(a), tuple(b), tuple(out_shape)
    if len(a) == len(b) == 2:
        return 2 * a[0] * a[1] * b[1]
    return 2 * prod(out) * a[-1] if len(a) == 2 else 2 * prod(a) * b[-1]


def grouped_convolution_backward(
    grad: Any,
    x: Any,
    weight: Any,
    _b: Any,
    _s: Any,
    _p: Any,
    _d: Any,
    transposed: bool,
    _o: Any,
    groups: int,
    mask: Any,
    out_shape: Any = None,
) -> int:
    """Each gradient asked for costs what the forward costs: torch's formula ignores `groups`."""
    forward = conv_flop_count(list(x), list(weight), list(grad), transposed=transposed)
    return (bool(mask[0]) + bool(mask[1])) * forward


def flash_for_cpu(query: Any, key: Any, value: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    return sdpa_flop_count(query, key, value)


def flash_for_cpu_backward(
    grad: Any, query: Any, key: Any, value: Any, *_: Any, out_shape: Any = None, **__: Any
) -> int:
    return sdpa_backward_flop_count(grad, query, key, value)


#: What torch's counter is known to get wrong or to leave out.
MENDED = {
    torch.ops.aten._grouped_mm: grouped_mm_flops,
    torch.ops.aten.convolution_backward: grouped_convolution_backward,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: flash_for_cpu,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: flash_for_cpu_backward,
}
