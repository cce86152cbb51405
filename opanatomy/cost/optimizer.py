"""Optimizer updates: fused ones are counted operation by operation, `_foreach_` ones as their single-tensor operators.

A plain trace does not record the data types of tensor lists, so the cost is unknown unless a capture recorded them.
"""

from __future__ import annotations

from collections.abc import Callable

from opanatomy.cost.operands import Unknown, flag, optional, read, tensors
from opanatomy.cost.registry import cost, formula
from opanatomy.records.signature import Argument, Cost, Signature, Tensor

# --------------------------------------------------------------------------------------------------------------- fused


def _nonzero(value: Argument) -> bool:
    if not isinstance(value, int | float):
        raise Unknown(f"{value!r} is not a number")
    return value != 0


def _adam(signature: Signature, decay_flops: int) -> Cost:
    parameters, grads, averages, squares = (tensors(signature.get(index)) for index in range(4))
    # a trace drops long lists, so an empty one may have had elements
    maxima = tensors(signature.get(4)) if flag(signature.get(11)) else ()
    steps = tensors(signature.get(5))
    flops = 13 + decay_flops * _nonzero(signature.get(9)) + flag(signature.get(12))
    scale, non_finite = optional(signature, 13), optional(signature, 14)
    state = read(parameters, averages, squares, maxima)
    written = state + (read(grads) if scale else 0)
    moved_in = state + read(grads, steps, optional(signature, 6), scale, non_finite)
    count = sum(x.numel for x in parameters)
    return Cost(flops=count * (flops + (scale is not None)), read_bytes=moved_in, written_bytes=written)


@formula("aten::_fused_adamw_")
def fused_adamw(signature: Signature) -> Cost:
    """13 FLOPs per parameter, 14 with weight decay; reads and writes it and both averages, reads its gradient.

    m + (1 - b1) * (g - m) takes 3, b2 * v + (1 - b2) * g * g 4, sqrt(v) / c + eps 3, p - step * m / denominator 3, and
    weight decay, p * (1 - lr * decay), 1. A gradient scale adds 1, `maximize` 1.
    """
    return _adam(signature, 1)


@formula("aten::_fused_adam_")
def fused_adam(signature: Signature) -> Cost:
    """13 FLOPs per parameter, as for AdamW; 15 with weight decay (g + decay * p)."""
    return _adam(signature, 2)


@formula("aten::_fused_sgd_")
def fused_sgd(signature: Signature) -> Cost:
    """2 FLOPs per parameter (p - lr * g); momentum adds 3 (mu * b + (1 - damping) * g), weight decay 2, Nesterov 2."""
    parameters, grads = tensors(signature.get(0)), tensors(signature.get(1))
    momentum, first = _nonzero(signature.get(4)), flag(signature.get(9))
    flops = 2 + 2 * _nonzero(signature.get(3)) + flag(signature.get(8))
    flops += (0 if first else 3 * momentum) + 2 * (momentum and flag(signature.get(7)))
    scale = optional(signature, 10)
    held = read(tensors(signature.get(2))) if momentum else 0
    count = sum(x.numel for x in parameters)
    return Cost(
        flops=count * (flops + (scale is not None)),
        # the first step fills the buffers
        read_bytes=read(parameters, grads, optional(signature, 5), scale, optional(signature, 11)) + held * (not first),
        written_bytes=read(parameters) + held + (read(grads) if scale else 0),
    )


@formula("aten::_fused_adagrad_")
def fused_adagrad(signature: Signature) -> Cost:
    """7 FLOPs per parameter: sum + g * g (2), sqrt, + eps, lr * g, divide, subtract; weight decay adds 2."""
    parameters, grads, sums, steps = (tensors(signature.get(index)) for index in range(4))
    flops = 7 + 2 * _nonzero(signature.get(6)) + flag(signature.get(8))
    state = read(parameters, sums)
    return Cost(
        flops=flops * sum(x.numel for x in parameters),
        read_bytes=state + read(grads, steps, optional(signature, 4)),
        written_bytes=state,
    )


@formula("aten::_amp_foreach_non_finite_check_and_unscale_")
def unscale(signature: Signature) -> Cost:
    """1 FLOP per element: * inverse scale; reads and writes every gradient and the inf flag."""
    grads, non_finite, inverse = tensors(signature.get(0)), signature.tensor(1), signature.tensor(2)
    return Cost(
        flops=sum(x.numel for x in grads),
        read_bytes=read(grads, non_finite, inverse),
        written_bytes=read(grads, non_finite),
    )


@formula("aten::_amp_update_scale_")
def update_scale(signature: Signature) -> Cost:
    """1 FLOP: increases or decreases the loss scale; reads the inf flag, reads and writes the scale and its counter."""
    scale, counter, non_finite = (signature.tensor(index) for index in range(3))
    return Cost(flops=1, read_bytes=read(scale, counter, non_finite), written_bytes=read(scale, counter))


# -------------------------------------------------------------------------------------------------------- bitsandbytes

#: FLOPs of an update in 32-bit arithmetic, without weight decay.
_UPDATES = {"adam": 13, "momentum": 4, "rmsprop": 7, "adagrad": 7}


def _update(signature: Signature, state: tuple[Tensor | None, ...], more: int, decay: Argument, extra: int) -> Cost:
    name, grad, parameter = signature.get(0), signature.tensor(1), signature.tensor(2)
    if name is None and state[1] is not None and state[1].shape == parameter.shape:
        # a trace drops the string; only Adam has two states of the parameter's shape
        name = "adam"
    if not isinstance(name, str) or name not in _UPDATES:
        raise Unknown(f"the update {name!r}")
    flops = _UPDATES[name] + _nonzero(decay) + more
    held = read(parameter, *state)
    return Cost(flops=flops * parameter.numel, read_bytes=held + read(grad) + extra, written_bytes=held)


@formula("bitsandbytes::optimizer_update_8bit_blockwise")
def blockwise_8bit(signature: Signature) -> Cost:
    """Same as optimizer_update_32bit, plus 2 FLOPs per parameter and state: * scale when read, / scale when written.

    Also reads and writes the scales, and reads the quantization maps (256 values each).
    """
    states = (optional(signature, 3), optional(signature, 4))
    scales = (optional(signature, 14), optional(signature, 15))
    more = 2 * sum(state is not None for state in states)
    maps = read(optional(signature, 12), optional(signature, 13))
    return _update(signature, (*states, *scales), more, signature.get(16), maps)


@formula("bitsandbytes::optimizer_update_32bit")
def update_32bit(signature: Signature) -> Cost:
    """13 FLOPs per parameter for Adam, 7 for RMSprop and Adagrad, 4 for momentum; weight decay adds 1."""
    return _update(signature, (optional(signature, 3), optional(signature, 4)), 0, signature.get(13), 0)


# ------------------------------------------------------------------------------------------------------------- foreach


def _element(value: Argument, index: int, length: int) -> Argument:
    if isinstance(value, tuple):
        if len(value) != length:
            raise Unknown("lists of different lengths")
        return value[index]
    # one tensor for all elements is read once and acts like a number
    return 0.5 if isinstance(value, Tensor) else value


def _foreach(operator: str) -> Callable[[Signature], Cost]:
    """Return the formula of a list operator: `operator` on each element."""

    def formula_of_list(signature: Signature) -> Cost:
        length = len(tensors(signature.get(0)))
        shared = read(*(value for value in signature.arguments if isinstance(value, Tensor)))
        flops = read_bytes = written_bytes = 0
        for index in range(length):
            element = Signature(tuple(_element(value, index, length) for value in signature.arguments))
            each = cost(operator, element)
            if each is None:
                raise Unknown(f"{operator}({element})")
            flops += each.flops
            read_bytes += each.read_bytes
            written_bytes += each.written_bytes
        return Cost(flops=flops, read_bytes=read_bytes + shared, written_bytes=written_bytes)

    formula_of_list.__doc__ = f"The cost of `{operator}`, summed over the tensors in the list."
    return formula_of_list


_MAPS_OF_LISTS = (
    "abs", "acos", "add", "addcdiv", "addcmul", "asin", "atan", "ceil", "clamp_max", "clamp_min", "cos", "cosh", "div",
    "erf", "erfc", "exp", "expm1", "floor", "frac", "lerp", "lgamma", "log", "log10", "log1p", "log2", "maximum",
    "minimum", "mul", "neg", "pow", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "sub",
    "tan", "tanh", "trunc",
)  # fmt: skip

for _name in _MAPS_OF_LISTS:
    formula(f"aten::_foreach_{_name}")(_foreach(f"aten::{_name}"))
    formula(f"aten::_foreach_{_name}_")(_foreach(f"aten::{_name}_"))
formula("aten::_foreach_zero_")(_foreach("aten::zero_"))
formula("aten::_foreach_copy_")(_foreach("aten::copy_"))
formula("aten::_foreach_max")(_foreach("aten::max"))
formula("aten::_foreach_clone")(_foreach("aten::clone"))


@formula("aten::_foreach_norm")
def foreach_norm(signature: Signature) -> Cost:
    """1 FLOP per input element. Arguments: (list, ord, dtype) -> one norm per tensor."""
    formula_of_norms = _foreach("aten::linalg_vector_norm")
    return formula_of_norms(Signature((signature.get(0), signature.get(1), None, False, signature.get(2))))
