"""Count a step a second time: a dispatch mode sees each operator that runs, below autograd and autocast.

It is valuable because it is independent of the trace, its attribution and the formulas in `opanatomy.cost`.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import ObservedCall, ObservedCount

if TYPE_CHECKING:
    import torch


# Count FLOPs of contractions a second time: by torch's own registry, or by hand if it lacks one or has a wrong one.
#
# A formula by hand counts from the real results: two for each element of the result and each index that is summed over.
# It shares nothing with `opanatomy.cost`, which reads the shapes of the inputs from a trace.


REGISTRY = "torch.utils.flop_counter"
BY_HAND = "counted by hand"


class SecondCount(Struct, frozen=True):
    """The second count of the FLOPs of an operator.

    `arguments` maps the arguments and result of a call to a cheap, comparable value: the shapes for torch's `formula`,
    or without one the FLOPs themselves (or `None`).
    """

    source: str
    arguments: Callable[[tuple[Any, ...], dict[str, Any], Any], Any]
    formula: Callable[..., int] | None = None


def second_count_of(function: Any) -> SecondCount | None:
    """Return the second count of an operator (an `OpOverload`); `None` if it has none."""
    from torch.utils.flop_counter import flop_registry

    by_hand = _BY_HAND.get(function._schema.name)
    if by_hand is not None:
        return SecondCount(BY_HAND, _sparse_or(by_hand))
    formula = flop_registry.get(function._overloadpacket)
    return None if formula is None else SecondCount(REGISTRY, _shapes, formula)


def flops_of(second: SecondCount, arguments: Any) -> int | None:
    """Return a call's FLOPs from the result of `second.arguments`; `None` if unknown."""
    if second.formula is None or arguments is None or isinstance(arguments, int):
        return None if arguments is None else int(arguments)
    args, kwargs, result = arguments
    try:
        return int(second.formula(*args, **dict(kwargs), out_val=result))
    except (AssertionError, AttributeError, IndexError, TypeError, ValueError):
        return None  # the formula does not know this form of the operator


# ----------------------------------------------------------------------------------------------- compact arguments


def _shapes(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
    """Return the call with shapes for tensors, or its FLOPs if a matrix is sparse or lengths are data."""
    if any(_is_sparse(value) for value in args):
        return _sparse_product(args, kwargs)
    return (
        tuple(_shape(value) for value in args),
        tuple((name, _shape(value)) for name, value in kwargs.items() if name not in _DESTINATIONS),
        _shape(result),
    )


#: Output arguments do not affect FLOPs, and formulas of the registry do not accept them.
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
    """Return the number of elements that a sparse matrix stores, zeros inside its blocks included."""
    import torch

    values = matrix._values() if matrix.layout is torch.sparse_coo else matrix.values()
    return int(values.numel())


def _sparse_product(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """Count two for each stored element and each column (row) of the dense factor; the last two are factors.

    `None` for two sparse factors: which elements meet is data. A sparse sum with dense factors is sampled at its
    elements.
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
    """Count a product over the last dimension of the first factor."""
    result = result[0] if isinstance(result, (list, tuple)) else result
    return 2 * int(result.numel()) * int(factor.shape[-1])


def _added(result: Any, _added: Any, factor: Any, *_: Any, **__: Any) -> int:
    return _summed(result, factor)


def _added_batches(result: Any, _added: Any, factor: Any, *_: Any, **__: Any) -> int:
    return _summed(result, factor) * int(factor.shape[0])


def _filter(x: Any, weight: Any, y: Any, *, transposed: bool) -> int:
    """Count a convolution: each element that slides meets the filters of one channel, only of its own group."""
    sliding = x if transposed else y
    return 2 * int(sliding.numel()) * int(weight[:1].numel())


def _convolution(
    result: Any,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    *_: Any,
    **__: Any,
) -> int:
    return _filter(x, weight, result, transposed=transposed)


def _convolution_backward(
    _result: Any,
    grad: Any,
    x: Any,
    weight: Any,
    sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    *rest: Any,
    **named: Any,
) -> int:
    wanted = named.get("output_mask", rest[-1] if rest else (True, True))
    return _filter(x, weight, grad, transposed=transposed) * (bool(wanted[0]) + bool(wanted[1]))


def _attention(result: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Count (b, h, s, d) @ (b, h, d, t), then (b, h, s, t) @ (b, h, t, e); heads as in the query."""
    return 2 * int(query.shape[:-1].numel()) * int(key.shape[-2]) * int(query.shape[-1] + value.shape[-1])


def _attention_backward(result: Any, grad: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Count the scores again, and two products for each of the forward's."""
    scores = 2 * int(query.shape[:-1].numel()) * int(key.shape[-2])
    return scores * int(3 * query.shape[-1] + 2 * value.shape[-1])


def _recurrent(result: Any, x: Any, weight: Any, recurrent: Any, *_: Any, **__: Any) -> int:
    """Count one layer in one direction: at each position of each sequence all of both matrices."""
    return 2 * int(x.shape[:-1].numel()) * int(weight.numel() + recurrent.numel())


def _recurrent_backward(result: Any, x: Any, weight: Any, recurrent: Any, *_: Any, **__: Any) -> int:
    return 2 * _recurrent(result, x, weight, recurrent)


def _distances(result: Any, first: Any, *_: Any, **__: Any) -> int:
    """Count (m, k + 2) @ (k + 2, n): the squares of both norms are two more columns."""
    return 2 * int(result.numel()) * (int(first.shape[-1]) + 2)


def _self_attention(result: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int | None:
    """Count projections of query, key, value and result, and the two products of attention, over (b, s, e)."""
    if query.is_nested:
        return None  # lengths are data
    (b, s, e), t = query.shape, int(key.shape[1])
    return 2 * int(b) * int(e) * (2 * int(s) * int(e) + 2 * t * int(e) + 2 * int(s) * t)


def _encoder_layer(result: Any, x: Any, *rest: Any, **_: Any) -> int | None:
    """Count attention over itself, and two matrices of the feed-forward part."""
    attention = _self_attention(result, x, x, x)
    feed_forward = [value for value in rest if getattr(value, "ndim", 0) == 2][-2:]
    if attention is None or len(feed_forward) != 2:
        return None
    return attention + sum(2 * int(x.shape[:-1].numel()) * int(weight.numel()) for weight in feed_forward)


def _all_layers(result: Any, x: Any, weights: Any, *_: Any, **__: Any) -> int:
    """Count all layers in all directions: at each position all matrices."""
    return 2 * int(x.shape[:-1].numel()) * sum(int(weight.numel()) for weight in weights if weight.dim() == 2)


def _all_layers_backward(result: Any, x: Any, weights: Any, *rest: Any, **named: Any) -> int:
    wanted = named.get("output_mask", rest[-1] if rest else (True,) * 4)
    return _all_layers(result, x, weights) * (1 + bool(wanted[3]))


def _grouped(result: Any, a: Any, b: Any, *_: Any, **__: Any) -> int:
    """Count each row with its group's matrix: the total equals all rows with a single matrix.

    (m, k) @ (g, k, n), (g, m, k) @ (k, n), (g, m, k) @ (g, k, n), and (m, k) @ (k, n) with the groups along k, where
    each element of the g results sums only over its own group's part of k.
    """
    if a.dim() == b.dim() == 2:
        return 2 * int(a.shape[0] * a.shape[1] * b.shape[1])
    return _summed(result, a)


def _trilinear(
    result: Any,
    first: Any,
    second: Any,
    third: Any,
    expand1: Any,
    expand2: Any,
    expand3: Any,
    sum_dim: Any,
    *_: Any,
    **__: Any,
) -> int:
    """Count torch's pairwise products in order, over the dimensions of each."""
    total = first.dim() + len(expand1)
    sizes = [
        {index: int(tensor.shape[at]) for at, index in enumerate(p for p in range(total) if p not in missing)}
        for tensor, missing in ((first, expand1), (second, expand2), (third, expand3))
    ]
    flops, left = 0, sizes[0]
    for right, last in ((sizes[1], False), (sizes[2], True)):
        both = {**left, **right}
        summed = [index for index in sum_dim if (index in sizes[2]) is last]
        flops += 2 * math.prod(both.values()) if summed else 0
        left = {index: size for index, size in both.items() if index not in summed}
    return flops


def _with_forms(forms: dict[Callable[..., int | None], str]) -> Iterator[tuple[str, Callable[..., int | None]]]:
    for count, names in forms.items():
        for name in names.split():
            yield name if "::" in name else f"aten::{name}", count


#: Operators that torch's registry lacks or has wrong: it counts 0, and ignores `groups` in a convolution's backward.
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


# The contents of special tensors and weights: sparse matrices, packed weights of quantized layers.


#: The other fields of a convolution's packed weights, in the order in which the formula reads them.
_GEOMETRY = ("stride", "padding", "output_padding", "dilation", "groups", "transpose")


def is_sparse(value: torch.Tensor) -> bool:
    """Return whether a tensor is stored by its elements and their indices."""
    import torch

    layouts = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
    return value.layout in layouts


def stored_parts(value: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]] | None:
    """Return the values and the indices of a sparse tensor; `None` for another layout (oneDNN's)."""
    import torch

    if value.is_sparse:
        return value._values(), (value._indices(),)
    if value.layout in (torch.sparse_csr, torch.sparse_bsr):
        return value.values(), (value.crow_indices(), value.col_indices())
    if value.layout in (torch.sparse_csc, torch.sparse_bsc):
        return value.values(), (value.ccol_indices(), value.row_indices())
    return None


def packed_weights(value: torch.ScriptObject) -> list[Any] | None:
    """Return [weight, bias] of packed parameters, then a convolution's [stride, padding, ...]; `None` if unknown."""
    import torch

    packed: Any = value
    try:
        unpacked = packed.unpack()
        weight, bias = (unpacked, None) if isinstance(unpacked, torch.Tensor) else unpacked
        contents: list[Any] = [_described(weight), _described(bias)]
        if hasattr(packed, "stride"):
            contents.append([_plain_sequence(getattr(packed, name)()) for name in _GEOMETRY])
    except (RuntimeError, AttributeError, TypeError, ValueError):
        return None
    return contents


def _described(tensor: torch.Tensor | None) -> dict[str, Any] | None:
    if tensor is None:
        return None
    return {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch."), "strides": None}


def _plain_sequence(value: Any) -> Any:
    return list(value) if isinstance(value, (list, tuple)) else value


# The arguments that Kineto does not record, observed in a separate step.
#
# Indices of `aten::index`, strings, the number of elements in a sparse tensor, and the packed weights of quantized
# layers.


#: Argument types, as a schema prints them, that are missing in a trace.
_DROPPED = ("List[Optional[Tensor]]", "str", "Optional[str]")
#: The types of packed weights begin like this.
_PACKED = "__torch__.torch.classes.quantized."


def is_incomplete(function: Any) -> bool:
    """Return whether Kineto drops an argument of each call of an operator (an `OpOverload`)."""
    types = (str(argument.type) for argument in function._schema.arguments)
    return any(kind in _DROPPED or kind.startswith(_PACKED) for kind in types)


def arguments_text(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the arguments of a call in the order of the schema, defaults filled in, as JSON."""
    values = []
    for index, argument in enumerate(function._schema.arguments):
        if index < len(args):
            values.append(_plain(args[index]))
        elif argument.name in kwargs:
            values.append(_plain(kwargs[argument.name]))
        else:
            values.append(_plain(argument.default_value))
    return json.dumps(values, separators=(",", ":"))


def _plain(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, torch.ScriptObject):
        return packed_weights(value)
    return value if isinstance(value, (bool, int, float, str)) else None


def _tensor(value: torch.Tensor) -> dict[str, Any] | None:
    """Return a tensor as shape, type and strides; a sparse one with its stored sizes; `None` for a ragged one."""
    import torch

    shape = list(value.shape)
    if not all(type(size) is int for size in shape):
        return None
    text = {"shape": shape, "dtype": str(value.dtype).removeprefix("torch.")}
    if value.layout is torch.strided:
        return {**text, "strides": list(value.stride())}
    stored = stored_parts(value)
    if stored is None:
        return {**text, "strides": None}
    values, indices = stored
    index_bytes = sum(part.numel() * part.element_size() for part in indices)
    return {**text, "strides": None, "elements": values.numel(), "index_bytes": index_bytes}


_PHASES = tuple(Phase)
_BACKWARD, _RECOMPUTE = _PHASES.index(Phase.BACKWARD), _PHASES.index(Phase.RECOMPUTE)
#: Operator that starts a backward without a given gradient.
_SEED = "aten::ones_like"
#: Index of calls whose phase is still unknown.
_UNDECIDED = len(_PHASES)


@dataclass(slots=True)
class _Operator:
    """One operator: how its calls are handled, looked up once, and their number per phase."""

    name: str
    #: Whether Kineto drops some of its arguments.
    is_incomplete: bool
    #: Whether it is made of other operators, which run in its place.
    is_composite: bool
    second_count: SecondCount | None
    #: Its function if `torch.library.custom_op` made it: the operators that it calls run in its place.
    written_in_python: Callable[..., Any] | None = None
    calls: list[int] = field(default_factory=lambda: [0] * (len(_PHASES) + 1))
    #: For each phase the calls by the values that determine their FLOPs.
    contractions: list[Counter[Any]] = field(default_factory=lambda: [Counter() for _ in (*_PHASES, None)])

    def add(self, index: int, operands: Any) -> None:
        """Count one call."""
        self.calls[index] += 1
        if self.second_count is not None:
            self.contractions[index][operands] += 1

    def decide(self, index: int) -> None:
        """Assign undecided calls to a phase."""
        if self.calls[_UNDECIDED]:
            self.calls[index] += self.calls[_UNDECIDED]
            self.contractions[index].update(self.contractions[_UNDECIDED])
            self.calls[_UNDECIDED] = 0
            self.contractions[_UNDECIDED].clear()

    def count(self, index: int) -> ObservedCount:
        """Return all calls in one phase, and their FLOPs if each has a second formula."""
        flops = None
        if self.second_count is not None:
            counted = self.contractions[index].items()
            each = [(flops_of(self.second_count, operands), calls) for operands, calls in counted]
            known = [flops * calls for flops, calls in each if flops is not None]
            flops = sum(known) if len(known) == len(each) else None
        return ObservedCount(
            operator=self.name,
            phase=_PHASES[index],
            calls=self.calls[index],
            flops=flops,
            source=None if flops is None or self.second_count is None else self.second_count.source,
        )


@dataclass(slots=True)
class Observation:
    """The operators that ran during an `observing`."""

    #: In order, the calls of operators with an argument that Kineto drops.
    incomplete: list[ObservedCall] = field(default_factory=list)
    #: The higher-order operators whose calls the mode did not see.
    unseen: set[str] = field(default_factory=set)
    #: By `id` of the overload, which torch keeps alive.
    operators: dict[int, _Operator] = field(default_factory=dict)
    #: How forward was recomputed in backward, if it was.
    checkpointing: str | None = None
    #: Calls of the running autograd node, and how many of them are recomputation: up to the last one known to be,
    #: including preceding forward calls without gradients.
    _pending: list[tuple[_Operator, Any]] = field(default_factory=list)
    _recomputed: int = 0
    _node: Any = None

    def add_backward(self, operator: _Operator, operands: Any, node: Any, *, recomputes: bool) -> None:
        """Count a call by autograd's engine; `operands` determine its FLOPs."""
        if node is not self._node:
            self._settle()
            self._node = node
        self._pending.append((operator, operands))
        if recomputes:
            self._recomputed = len(self._pending)

    def _settle(self) -> None:
        """Count a node's calls; if they end in a seed of ones, the node differentiates its own scalar."""
        if self._pending and self._pending[-1][0].name == _SEED:
            self._recomputed = 0
        for number, (operator, operands) in enumerate(self._pending):
            operator.add(_RECOMPUTE if number < self._recomputed else _BACKWARD, operands)
        self._pending.clear()
        self._recomputed = 0

    def decide(self, phase: Phase) -> None:
        """Assign calls of unknown phase to this one."""
        index = _PHASES.index(phase)
        for operator in self.operators.values():
            operator.decide(index)

    def close(self) -> None:
        """Count pending calls, and release the node, which holds a graph."""
        self._settle()
        self.decide(Phase.OTHER)
        self._node = None

    def counts(self) -> tuple[ObservedCount, ...]:
        """Return calls by operator, overload and phase, and FLOPs where a second formula exists."""
        counts = [
            operator.count(index)
            for operator in self.operators.values()
            for index, calls in enumerate(operator.calls[:_UNDECIDED])
            if calls
        ]
        return tuple(sorted(counts, key=lambda count: (count.operator, _PHASES.index(count.phase), count.calls)))


@contextmanager
def observing(
    phase_of: Callable[[], Phase | None], differentiates_again: Callable[[], bool] = lambda: False
) -> Iterator[Observation]:
    """Count every operator that runs inside the block; `phase_of` returns the current phase of the step.

    `None` is a phase that `Observation.decide` assigns later. Calls rerun by checkpointing in an autograd node are
    recomputation, as are the node's earlier calls; but not if the engine keeps gradient mode on (`create_graph`), as
    `differentiates_again` reports.
    """
    observation = Observation()
    try:
        with _mode(observation, phase_of, differentiates_again):
            yield observation
    finally:
        observation.close()


#: Torch releases a graph whose nodes Python has seen recursively: 35,000 in a row take 8 MB of stack (torch 2.13).
#: Beyond this number only nodes that may recompute are queried.
_MOST_NODES: Final = 10_000


@dataclass(slots=True)
class _CallCounter:
    """Counts the dispatch mode's calls, in a few microseconds each."""

    observation: Observation
    phase_of: Callable[[], Phase | None]
    differentiates_again: Callable[[], bool]
    higher_order: type
    strided: Any
    current_node: Callable[[], Any]
    is_grad_enabled: Callable[[], bool]
    #: Number of autograd nodes queried.
    nodes: int = 0
    #: By the identity of the phase, which is faster than its hash.
    phase_indices: dict[int, int] = field(
        default_factory=lambda: {id(phase): index for index, phase in enumerate((*_PHASES, None))}
    )

    def call(self, mode: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of `function`; `mode` sees the operators inside a composite one."""
        operators = self.observation.operators
        operator = operators.get(id(function))
        if operator is None:
            if isinstance(function, self.higher_order):
                return _run_inside(self.observation, mode, function, args, kwargs)
            operator = operators[id(function)] = _looked_up(function)
        if operator.written_in_python is not None:
            with mode:
                return operator.written_in_python(*args, **kwargs)
        if operator.is_composite:
            with mode:
                result = function.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        text = arguments_text(function, args, kwargs) if operator.is_incomplete or self._is_sparse(args) else None
        result = function(*args, **kwargs)
        self._count(operator, args, kwargs, result)
        if text is not None:
            self.observation.incomplete.append(ObservedCall(operator=operator.name, arguments=text))
        return result

    def _is_sparse(self, args: tuple[Any, ...]) -> bool:
        """Return whether an argument is not strided; this lookup is faster than a type check, and a loop than `any`."""
        strided = self.strided
        for argument in args:  # noqa: SIM110
            if getattr(argument, "layout", strided) is not strided:
                return True
        return False

    def _count(self, operator: _Operator, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        second = operator.second_count
        operands = None if second is None else second.arguments(args, kwargs, result)
        index = self.phase_indices[id(self.phase_of())]
        node = None
        if index == _BACKWARD and (self.nodes < _MOST_NODES or self.is_grad_enabled()):
            node = self.current_node()
            self.nodes += node is not self.observation._node
        if node is not None:
            checkpointing = None if self.differentiates_again() else checkpointing_of(node)
            if checkpointing is not None:
                self.observation.checkpointing = checkpointing
            self.observation.add_backward(operator, operands, node, recomputes=checkpointing is not None)
        elif second is None:
            operator.calls[index] += 1
        else:
            operator.add(index, operands)


def checkpointing_of(node: Any) -> str | None:
    """Return the kind of checkpointing whose forward runs again in an autograd node now; `None` for backward's calls.

    A rerun Python function has no gradient mode. A user-defined backward that enables the mode to call a module
    differentiates; it is not checkpointing.
    """
    import torch

    top: Callable[..., Any] | None = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    hooks = top(False) if top is not None else None
    if hooks is not None and getattr(hooks[0], "__qualname__", "").startswith("_recomputation_hook"):
        return "non-reentrant"
    name: str = node.name()
    if name.endswith("Backward"):  # those of torch's own formulas end in a number
        again = name == "CheckpointFunctionBackward" or ("heckpoint" in name and torch.is_grad_enabled())
        return "reentrant" if again else None
    return "non-reentrant" if torch.is_grad_enabled() else None


def _mode(
    observation: Observation, phase_of: Callable[[], Phase | None], differentiates_again: Callable[[], bool]
) -> Any:
    """Return the dispatch mode that counts into `observation`."""
    import torch
    from torch._ops import HigherOrderOperator
    from torch.utils._python_dispatch import TorchDispatchMode

    calls = _CallCounter(
        observation,
        phase_of,
        differentiates_again,
        HigherOrderOperator,
        torch.strided,
        torch._C._current_autograd_node,
        torch.is_grad_enabled,
    )
    # Keeping dynamo from compiling the mode costs as much as the mode, and imports dynamo.
    dynamo_may_run = "torch._dynamo" in sys.modules

    class Observer(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves the base untyped
        supports_higher_order_operators = True

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return dynamo_may_run

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if types and any(map(_is_fake, types)):
                return function(*args, **({} if kwargs is None else kwargs))  # DTensor looks for a shape: nothing runs
            if types and any(map(_answers, types)):
                return NotImplemented  # the subclass runs it on its parts, whose calls are counted
            return calls.call(self, function, args, {} if kwargs is None else kwargs)

    make: Any = Observer
    return make()


def _is_fake(kind: type) -> bool:
    return kind.__name__ == "FakeTensor"


def _answers(kind: type) -> bool:
    """Return whether tensors of a subclass answer calls in Python: DTensor, ragged and quantized ones."""
    import torch

    plain: Any = torch.Tensor  # torch does not declare the method
    answer: Any = kind
    return bool(answer.__torch_dispatch__ is not plain.__torch_dispatch__)


def _run_inside(observation: Observation, mode: Any, function: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    """Run a higher-order operator as eager does; `mode` sees its operators if it allows that, else it is noted.

    `torch.cond` runs the branch that is taken; flex attention runs by its composition of plain operators.
    """
    import torch

    name = function.name()
    if name == "cond":
        predicate, taken, other, operands = args
        with mode:
            return (taken if bool(predicate) else other)(*operands)
    eager = function.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)
    if name == "flex_attention" and eager is not None:
        with mode:
            return eager(*args, **kwargs)
    observation.unseen.add(name)
    return function(*args, **kwargs)


def _is_composite(function: Any) -> bool:
    """Return whether all devices run the operator by its decomposition; some decomposable ones have kernels."""
    from torch._C import DispatchKey

    own = (DispatchKey.CPU, DispatchKey.CUDA, DispatchKey.CompositeExplicitAutograd)
    has_kernel = function.has_kernel_for_dispatch_key
    return bool(has_kernel(DispatchKey.CompositeImplicitAutograd)) and not any(has_kernel(key) for key in own)


def _looked_up(function: Any) -> _Operator:
    return _Operator(
        name=function._schema.name,
        is_incomplete=is_incomplete(function),
        is_composite=_is_composite(function),
        second_count=second_count_of(function),
        written_in_python=_written_in_python(function),
    )


def _written_in_python(function: Any) -> Callable[..., Any] | None:
    """Return the Python function of a custom operator for all devices; torch's own `prims` are counted."""
    try:
        from torch._library.custom_ops import OPDEFS
    except ImportError:
        return None
    name: str = function._schema.name
    custom: Any = None if name.startswith("prims::") else OPDEFS.get(name)
    if custom is None or set(getattr(custom, "_backend_fns", ("unknown",))) - {None}:
        return None
    written: Callable[..., Any] = custom._init_fn
    return written
