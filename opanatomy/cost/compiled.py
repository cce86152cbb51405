"""Triton kernels of torch.compile: bytes from the launch's tensors, FLOPs from the operators in the kernel's name.

`triton_poi_fused_add_gelu_3` is element-wise, `red` and `per` are reductions, `tem` is a matmul or attention template.
A launch records its arguments in Inductor's order - tensors changed in place, inputs, outputs, then the sizes - but not
which is which, so

- bytes: each tensor argument counts once. A tensor changed in place is both read and written but still counts once, so
  the result is a lower bound. The last tensor counts as the one written. A tensor that the kernel indexes into, adds
  into or slices counts at most one element per loop iteration. A launch does not say which tensor is sliced (`select`,
  `slice`, ...); in such a kernel, tensors smaller than the loop do not count.
- FLOPs: the FLOPs per element of the named operators, summed, times the loop iterations (`xnumel * rnumel`, which must
  equal the number of elements of a tensor argument). The name lists each operator once, however often it occurs, and
  does not say on which tensor: the count assumes that each runs once over the entire loop. Inductor names at most ten
  operators.

A kernel has no cost if its name contains a word that has no formula.
"""

from __future__ import annotations

import re
from functools import cache
from math import prod
from typing import Final

from opanatomy.cost.attention import Mask, backward_cost, forward_cost, heads_first
from opanatomy.cost.contraction import product_shape
from opanatomy.cost.elementwise import MAPS
from opanatomy.cost.operands import Unknown, read
from opanatomy.cost.registry import cost, module_of, operators, pattern
from opanatomy.records.signature import Argument, Cost, Signature, Tensor

# FLOPs per element of an operator in a fused kernel: what its own formula returns for a sample call.
#
# A plain map's figure is in `MAPS`; any other operator's is its formula's result for the sample arguments, divided by
# the places of the loop that it is fused into. Moving is 0.


_ROWS, _COLUMNS, _WIDTH = 64, 128, 16
_X = Tensor((_ROWS, _COLUMNS), "float32")
_TWICE = Tensor((_ROWS, 2 * _COLUMNS), "float32")
_ROW, _OF_ROWS = Tensor((_COLUMNS,), "float32"), Tensor((_ROWS, 1), "float32")
_TARGETS, _INDICES = Tensor((_ROWS,), "int64"), Tensor((_ROWS, _COLUMNS), "int64")
_SCALAR = Tensor((), "float32")
_IMAGE, _CHANNELS = Tensor((8, _ROWS, _WIDTH), "float32"), Tensor((_ROWS,), "float32")
_OF_GROUPS = Tensor((8, 4), "float32")
_ALL = (True, True, True)
_ELEMENTS: Final = _X.numel

#: Operator -> (sample arguments in training, places of the loop: the elements of what is reduced or mapped).
SAMPLES: Final[dict[str, tuple[tuple[Argument, ...], int]]] = {
    "div": ((_X, _X), _ELEMENTS), "gelu": ((_X,), _ELEMENTS), "gelu_backward": ((_X, _X), _ELEMENTS),
    "elu_backward": ((_X, 1.0, 1.0, 1.0, False, _X), _ELEMENTS),
    "glu": ((_TWICE, 1), _ELEMENTS), "glu_backward": ((_X, _TWICE, 1), _ELEMENTS),
    "native_dropout": ((_X, 0.1, True), _ELEMENTS), "_fused_dropout": ((_X, 0.1), _ELEMENTS),
    "_softmax": ((_X, 1, False), _ELEMENTS), "_log_softmax": ((_X, 1, False), _ELEMENTS),
    "_safe_softmax": ((_X, 1), _ELEMENTS), "logsumexp": ((_X, (1,), False), _ELEMENTS),
    "_softmax_backward_data": ((_X, _X, 1, 6), _ELEMENTS), "_log_softmax_backward_data": ((_X, _X, 1, 6), _ELEMENTS),
    "native_layer_norm": ((_X, (_COLUMNS,), _ROW, _ROW, 1e-5), _ELEMENTS),
    "native_layer_norm_backward": ((_X, _X, (_COLUMNS,), _OF_ROWS, _OF_ROWS, _ROW, _ROW, _ALL), _ELEMENTS),
    "native_group_norm": ((_IMAGE, _CHANNELS, _CHANNELS, 8, _ROWS, _WIDTH, 4, 1e-5), _IMAGE.numel),
    "native_group_norm_backward": (
        (_IMAGE, _IMAGE, _OF_GROUPS, _OF_GROUPS, _CHANNELS, 8, _ROWS, _WIDTH, 4, _ALL), _IMAGE.numel),
    "native_batch_norm": ((_IMAGE, *[_CHANNELS] * 4, True, 0.1, 1e-5), _IMAGE.numel),
    "_native_batch_norm_legit_no_training": ((_IMAGE, *[_CHANNELS] * 4, 0.1, 1e-5), _IMAGE.numel),
    "native_batch_norm_backward": ((_IMAGE, _IMAGE, *[_CHANNELS] * 5, True, 1e-5, _ALL), _IMAGE.numel),
    "_fused_rms_norm": ((_X, (_COLUMNS,), _ROW, 1e-5), _ELEMENTS),
    "_fused_rms_norm_backward": ((_X, _X, (_COLUMNS,), _OF_ROWS, _ROW, (True, True)), _ELEMENTS),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "any", "all"), ((_X, (1,), False), _ELEMENTS)),
    **dict.fromkeys(("var", "var_mean", "std"), ((_X, (1,), 1, False), _ELEMENTS)),
    **dict.fromkeys(("max", "min", "argmax", "argmin"), ((_X, 1, False), _ELEMENTS)),
    **dict.fromkeys(("prod", "cumsum"), ((_X, 1), _ELEMENTS)),
    **dict.fromkeys(("linalg_vector_norm", "norm"), ((_X, 2, (1,), False), _ELEMENTS)),
    "mse_loss": ((_X, _X, 1), _ELEMENTS), "mse_loss_backward": ((_SCALAR, _X, _X, 1), _ELEMENTS),
    "nll_loss_forward": ((_X, _TARGETS, None, 1, -100), _ROWS),
    "nll_loss_backward": ((_SCALAR, _X, _TARGETS, None, 1, -100, _SCALAR), _ROWS),
    "embedding_dense_backward": ((_X, _TARGETS, 1000, -1, False), _ELEMENTS),
    "index_put": ((_X, (_TARGETS,), _X, True), _ELEMENTS), "index_add": ((_X, 0, _TARGETS, _X), _ELEMENTS),
    "scatter_add": ((_X, 0, _INDICES, _X), _ELEMENTS),
}  # fmt: skip

#: Names in kernels whose operators are composed of others or have several forms -> the operator whose formula applies.
_ALSO: Final = {
    "dropout": "native_dropout",
    "softmax": "_softmax",
    "log_softmax": "_log_softmax",
    "layer_norm": "native_layer_norm",
    "rms_norm": "_fused_rms_norm",
    "_native_batch_norm_legit_functional": "native_batch_norm",
}
#: The product runs elsewhere; the kernel has only its bias or a view of its result, and the bias is not counted.
_PRODUCTS: Final = ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward", "linear", "matmul")
#: Casts and views that only Inductor names.
_FREE: Final = ("convert_element_type", "to", "type_as", "reshape", "lift_fresh_copy", "where", "masked_fill")
_MOVING: Final = ("movement", "indexing")


@cache
def flops_per_element() -> dict[str, int]:
    """Return the FLOPs per element of every operator (without `aten::`) that a fused kernel's name may contain."""
    names = [name.removeprefix("aten::") for name in operators() if name.startswith("aten::")]
    moving = {name: 0 for name in names if module_of(f"aten::{name}").rpartition(".")[2] in _MOVING}
    maps = {name: row.flops for name, row in MAPS.items()}
    samples = {}
    for name, (arguments, places) in SAMPLES.items():
        formula_cost = cost(f"aten::{name}", Signature(arguments))
        # A user's formula may have no figure for each place.
        if formula_cost is not None and not formula_cost.flops % places:
            samples[name] = formula_cost.flops // places
    others = {name: samples[like] for name, like in _ALSO.items() if like in samples}
    return {**moving, **maps, **dict.fromkeys((*_PRODUCTS, *_FREE), 0), **samples, **others}


#: Operators that read or write only the rows they look up.
_LOOK_UPS = {
    "embedding", "index", "gather", "index_select", "_unsafe_index", "take", "nll_loss_forward",
    "embedding_dense_backward", "index_put", "_unsafe_index_put", "index_add", "scatter", "scatter_add",
    "scatter_reduce",
}  # fmt: skip
#: Views of a part of a tensor. Inductor names ten operators at most, in alphabetical order: more may be hidden.
_PARTS = {
    "select", "slice", "split", "split_with_sizes", "unbind", "chunk", "narrow", "as_strided", "diagonal", "unfold",
    "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk", "tensor_split",
}  # fmt: skip
_MOST_NAMED = 10
_MAPS_AND_REDUCTIONS = r"triton_(poi|red|per|unk)_fused_(\w+?)_\d+"


@cache
def named(text: str) -> tuple[str, ...]:
    """Split `_unsafe_view_add_mean` into operators, longest match first; raise `Unknown` for an unknown word."""
    words = text.split("_")
    operators: list[str] = []
    at = 0
    known = flops_per_element()
    while at < len(words):
        end = next((end for end in range(len(words), at, -1) if "_".join(words[at:end]) in known), None)
        if end is None:
            raise Unknown(f"operators of {text}")
        operators.append("_".join(words[at:end]))
        at = end
    return tuple(operators)


def _arguments(signature: Signature) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Return the tensors of a launch and the sizes of its loops."""
    values = signature.arguments
    sizes = tuple(value for value in values if isinstance(value, int) and not isinstance(value, bool))
    tensors = tuple(value for value in values if isinstance(value, Tensor))
    if not tensors:
        raise Unknown("the tensors of the launch")
    return tensors, sizes


@pattern(_MAPS_AND_REDUCTIONS)
def fused(name: str, signature: Signature) -> Cost:
    """The FLOPs per element of the operators in the kernel's name, summed, times the loop iterations.

    This is an estimate: the name lists each operator once, however often it occurs. Each tensor argument counts once,
    also if it is changed in place. A tensor that is indexed or sliced counts at most one element per iteration.
    """
    match = re.fullmatch(_MAPS_AND_REDUCTIONS, name)
    if match is None:
        raise Unknown(name)
    operators = named(match[2])
    tensors, sizes = _arguments(signature)
    # The places of the loop: the product of the last one, two or three sizes that equals a tensor's size.
    counts = {tensor.numel for tensor in tensors}
    products = [prod(sizes[-length:]) for length in range(1, min(3, len(sizes)) + 1)]
    fitting = [size for size in products if size in counts]
    if not fitting:
        raise Unknown("the sizes of the loop")
    places = max(fitting)
    flops = sum(flops_per_element()[operator] for operator in operators) * places
    whole = [read(tensor) for tensor in tensors]
    takes_parts = not _PARTS.isdisjoint(operators) or (len(operators) >= _MOST_NAMED and operators[-1] < max(_PARTS))
    if takes_parts or not _LOOK_UPS.isdisjoint(operators):
        whole = [min(size, places * (tensor.item_bytes or 0)) for size, tensor in zip(whole, tensors, strict=True)]
    read_bytes = sum(
        size for size, tensor in zip(whole[:-1], tensors, strict=False) if not takes_parts or tensor.numel >= places
    )
    return Cost(flops=flops, read_bytes=read_bytes, written_bytes=whole[-1])


@pattern(r"triton_tem_fused_\w*?(mm|linear|matmul)_\w*")
def product_template(name: str, signature: Signature) -> Cost:
    """`2 * b * m * n * k` FLOPs for the first two tensors, (b, m, k) @ (b, k, n).

    Each tensor argument counts once, the last one as written, the others as read. Other operators fused into the
    template are not counted.
    """
    tensors, _ = _arguments(signature)
    (a, b), last = tensors[:2], tensors[-1]
    shape, flops = product_shape(a.shape, b.shape)
    if len(tensors) < 3 or last.numel != prod(shape):
        raise Unknown(f"{a} @ {b} is not {last}")
    return Cost(flops=flops, read_bytes=read(*tensors[:-1]), written_bytes=read(last))


@pattern(r"triton_tem_fused_\w*flex_attention\w*")
def flexible_attention(name: str, signature: Signature) -> Cost:
    """`4 * b * h * s * t * d` FLOPs forward, `10 * b * h * s * t * d` backward, as without a mask.

    This is an upper bound, because the launch does not record which blocks the mask skips. Each tensor argument counts
    once, the last one as written, the others as read.
    """
    tensors, _ = _arguments(signature)
    sizes = heads_first(*tensors[:3])
    moved = read(*tensors[:-1])
    made = backward_cost if "backward" in name else forward_cost
    return made(sizes, Mask(), moved, read(tensors[-1]))
