"""FLOPs per element of an operator that is fused into a kernel: what its own formula says of a sample call.

A plain map has its figure in `MAPS`; any other operator's is its formula's, of a call with the sample arguments, over
the places of the loop that it is fused into. Moving is 0.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from opanatomy.cost.elementwise import MAPS
from opanatomy.cost.registry import cost, module_of, operators
from opanatomy.records.signature import Argument, Signature, Tensor

_ROWS, _COLUMNS, _WIDTH = 64, 128, 16
_X = Tensor((_ROWS, _COLUMNS), "float32")
_TWICE = Tensor((_ROWS, 2 * _COLUMNS), "float32")
_ROW, _OF_ROWS = Tensor((_COLUMNS,), "float32"), Tensor((_ROWS, 1), "float32")
_TARGETS, _PLACES = Tensor((_ROWS,), "int64"), Tensor((_ROWS, _COLUMNS), "int64")
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
    "scatter_add": ((_X, 0, _PLACES, _X), _ELEMENTS),
}  # fmt: skip

#: Names in kernels of operators that are composed of others or come in several forms, and whose formula is theirs.
_ALSO: Final = {
    "dropout": "native_dropout", "softmax": "_softmax", "log_softmax": "_log_softmax",
    "layer_norm": "native_layer_norm", "rms_norm": "_fused_rms_norm",
    "_native_batch_norm_legit_functional": "native_batch_norm",
}  # fmt: skip
#: The product runs elsewhere; only its bias or a view of its result is in the kernel, and the bias is not counted.
_PRODUCTS: Final = ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward", "linear", "matmul")
#: Casts and views that only Inductor names.
_FREE: Final = ("convert_element_type", "to", "type_as", "reshape", "lift_fresh_copy", "where", "masked_fill")
_MOVING: Final = ("movement", "indexing", "creation")


@cache
def flops_per_element() -> dict[str, int]:
    """FLOPs per element of every operator (without `aten::`) that the name of a fused kernel may carry."""
    names = [name.removeprefix("aten::") for name in operators() if name.startswith("aten::")]
    moving = {name: 0 for name in names if module_of(f"aten::{name}").rpartition(".")[2] in _MOVING}
    maps = {name: row.flops for name, row in MAPS.items()}
    samples = {name: flops for name, sample in SAMPLES.items() if (flops := _of_sample(name, *sample)) is not None}
    others = {name: samples[like] for name, like in _ALSO.items() if like in samples}
    return {**moving, **maps, **dict.fromkeys((*_PRODUCTS, *_FREE), 0), **samples, **others}


def _of_sample(name: str, arguments: tuple[Argument, ...], places: int) -> int | None:
    """What the formula says of the sample call, for each place; `None` where a formula of the user's has no such."""
    formula_cost = cost(f"aten::{name}", Signature(arguments))
    if formula_cost is None or formula_cost.flops % places:
        return None
    return formula_cost.flops // places
