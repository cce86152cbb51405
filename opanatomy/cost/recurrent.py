"""Recurrent layers: `2 * positions * weight elements` FLOPs for multiplying input and hidden state by the weights.

The layers' element-wise gate operations are not counted. Neither is the space that a library keeps for its backward
(workspace, reserve space), because its size is up to the library.
"""

from __future__ import annotations

from math import prod

from opanatomy.cost.operands import Unknown, flag, fresh, mask, optional, read, tensors
from opanatomy.cost.registry import formula
from opanatomy.records.signature import Cost, Signature, Tensor


def _layer(signature: Signature) -> tuple[Tensor, int, int]:
    """Return input, positions and FLOPs of a layer in one direction: x (..., i), weights (g * h, i) and (g * h, h)."""
    x, w, u = (signature.tensor(index) for index in range(3))
    if x.shape[-1] != w.shape[1] or w.shape[0] != u.shape[0]:
        raise Unknown(f"{x}, {w}, {u}")
    if signature.tensor(5).shape[-1] != u.shape[1]:
        raise Unknown(f"{u} and the hidden state")
    positions = prod(x.shape[:-1])
    return x, positions, 2 * positions * (w.numel + u.numel)


@formula("aten::mkldnn_rnn_layer")
def one_layer(signature: Signature) -> Cost:
    """`2 * t * b * g * h * (i + h)` FLOPs with g gates.

    Arguments: (x (t, b, i), weight (g * h, i), weight (g * h, h), bias, bias, hx, cx).
    """
    x, positions, flops = _layer(signature)
    hidden = signature.tensor(5)
    state = 2 * fresh(hidden.shape, hidden.dtype)
    written = fresh((positions, hidden.shape[-1]), x.dtype) + state
    return Cost(flops=flops, read_bytes=read(*signature.arguments[:7]), written_bytes=written)


@formula("aten::mkldnn_rnn_layer_backward")
def one_layer_backward(signature: Signature) -> Cost:
    """Twice the forward's FLOPs: once for the gradients of input and hidden state, once for those of the weights."""
    _, _, flops = _layer(signature)
    # gradients of x, both weights, both biases and both states
    written = sum(fresh(value.shape, value.dtype) for value in map(signature.tensor, range(7)))
    return Cost(flops=2 * flops, read_bytes=read(*signature.arguments[:13]), written_bytes=written)


def _all_layers(signature: Signature) -> tuple[int, int, int]:
    """Return the FLOPs of all weights at all positions, the positions, and the bytes of the weights.

    The list may lack a data type.
    """
    x, weights, flat = signature.tensor(0), tensors(signature.get(1)), optional(signature, 3)
    positions = prod(x.shape[:-1])
    matrices = sum(weight.numel for weight in weights if len(weight.shape) == 2)
    if not matrices:
        raise Unknown("the weights")
    held = read(flat) if flat is not None else read(weights)
    return 2 * positions * matrices, positions, held


@formula("aten::_cudnn_rnn", "aten::miopen_rnn")
def all_layers(signature: Signature) -> Cost:
    """`2 * t * b * elements of all weight matrices` FLOPs, over all layers and directions.

    Arguments: (x, weights, stride, flat weights, hx, cx, mode, hidden size, projection, layers, batch first, dropout,
    train, bidirectional, ...); MIOpen has no projection.
    """
    cudnn = len(signature.arguments) == 16
    x, hx, cx = signature.tensor(0), signature.tensor(4), optional(signature, 5)
    flops, positions, held = _all_layers(signature)
    directions = 1 + flag(signature.get(13 if cudnn else 12))
    written = fresh((positions, directions * hx.shape[-1]), x.dtype)
    written += sum(fresh(state.shape, state.dtype) for state in (hx, cx) if state is not None)
    return Cost(flops=flops, read_bytes=read(x, hx, cx) + held, written_bytes=written)


@formula("aten::_cudnn_rnn_backward")
def all_layers_backward(signature: Signature) -> Cost:
    """The forward's FLOPs for the gradients of input and state, and again for those of the weights if requested."""
    x, hx, cx = signature.tensor(0), signature.tensor(4), optional(signature, 5)
    flops, _, held = _all_layers(signature)
    wanted = mask(signature.get(21), 4)
    grads = tuple(optional(signature, index) for index in (6, 7, 8, 9))
    asked = [tensor for tensor, want in zip((x, hx, cx), wanted, strict=False) if want and tensor is not None]
    written = sum(fresh(tensor.shape, tensor.dtype) for tensor in asked) + held * wanted[3]
    return Cost(flops=flops * (1 + wanted[3]), read_bytes=read(x, hx, cx, *grads) + held, written_bytes=written)


# --------------------------------------------------------------------------------------------------------------- cells


@formula("aten::_thnn_fused_lstm_cell")
def lstm_cell(signature: Signature) -> Cost:
    """22 FLOPs per element of the state, 30 with biases; writes both states and the gates.

    Adds for the gates take 4 (12 with both biases), three sigmoids 12, two tanh 2, f * c + i * g 3, o * tanh(c) 1.
    """
    gates, cx, bias = signature.tensor(0), signature.tensor(2), optional(signature, 3)
    flops = (22 if bias is None else 30) * cx.numel
    written = 2 * fresh(cx.shape, cx.dtype) + fresh(gates.shape, gates.dtype)
    return Cost(flops=flops, read_bytes=read(*signature.arguments[:5]), written_bytes=written)


@formula("aten::_thnn_fused_gru_cell")
def gru_cell(signature: Signature) -> Cost:
    """16 FLOPs per element of the state, 22 with biases; writes the state and five values kept for the backward.

    Two gates take 5 each (add, sigmoid), the candidate 3 (multiply, add, tanh), n + z * (h - n) 3, the biases 6.
    """
    hx, bias = signature.tensor(2), optional(signature, 3)
    flops = (16 if bias is None else 22) * hx.numel
    return Cost(flops=flops, read_bytes=read(*signature.arguments[:5]), written_bytes=6 * fresh(hx.shape, hx.dtype))


@formula("aten::_thnn_fused_lstm_cell_backward_impl")
def lstm_cell_backward(signature: Signature) -> Cost:
    """23 FLOPs per element of the state, plus 1 per gate element for the bias gradient.

    Arguments: (grad_h, grad_c, cx, cy, gates, has_bias).

    Recomputing tanh(c) takes 1, the gradient of c 5, that of cx 1, and each of the four
    gates 4: its product 1, its derivative 3.
    """
    cx, gates, bias = signature.tensor(2), signature.tensor(4), flag(signature.get(5))
    written = fresh(gates.shape, gates.dtype) + fresh(cx.shape, cx.dtype)
    if bias:
        written += fresh((gates.shape[-1],), gates.dtype)
    flops = 23 * cx.numel + gates.numel * bias
    return Cost(flops=flops, read_bytes=read(*signature.arguments[:5]), written_bytes=written)


@formula("aten::_thnn_fused_gru_cell_backward")
def gru_cell_backward(signature: Signature) -> Cost:
    """16 FLOPs per element of the state, plus 2 per gate element for the bias gradients.

    Arguments: (grad_h, kept, has_bias).
    """
    grad, kept, bias = signature.tensor(0), signature.tensor(1), flag(signature.get(2))
    gates = 3 * grad.numel
    written = 2 * fresh((gates,), grad.dtype) + fresh(grad.shape, grad.dtype)
    if bias:
        written += 2 * fresh((3 * grad.shape[-1],), grad.dtype)
    return Cost(flops=16 * grad.numel + 2 * gates * bias, read_bytes=read(grad, kept), written_bytes=written)


# State-space layers: the selective scan of Mamba and its causal convolution, as their packages name them.


def _sizes(x: Tensor, weight: Tensor) -> int:
    """Return the FLOPs of a depthwise convolution of x (b, d, l) with (d, w): `2 * b * d * l * w`."""
    if len(x.shape) != 3 or len(weight.shape) != 2 or x.shape[1] != weight.shape[0]:
        raise Unknown(f"causal convolution of {x} with {weight}")
    return 2 * x.numel * weight.shape[1]


@formula("DaoAILab::_causal_conv1d_fwd_cpp")
def causal_convolution(signature: Signature) -> Cost:
    """`2 * b * d * l * w` FLOPs; a fused activation is not counted.

    Arguments: (x, weight, bias, seq_idx, initial_states, out, final_states_out, silu). Source:
    causal_conv1d/cpp_functions.py.
    """
    x, weight, out = signature.tensor(0), signature.tensor(1), signature.tensor(5)
    rest = (optional(signature, index) for index in (2, 3, 4))
    return Cost(
        flops=_sizes(x, weight),
        read_bytes=read(x, weight, *rest),
        written_bytes=read(out, optional(signature, 6)),
    )


@formula("DaoAILab::_causal_conv1d_bwd_cpp")
def causal_convolution_backward(signature: Signature) -> Cost:
    """`4 * b * d * l * w` FLOPs for both gradients, `6 * b * d * l * w` if SiLU requires recomputing the forward.

    Arguments: (x, weight, bias, grad, seq_idx, initial_states, dfinal_states, dx, dweight, dbias, dinitial_states,
    silu).
    """
    x, weight = signature.tensor(0), signature.tensor(1)
    times = 3 if flag(signature.get(11)) else 2
    return Cost(
        flops=times * _sizes(x, weight),
        read_bytes=read(*(optional(signature, index) for index in range(7))),
        written_bytes=read(*(optional(signature, index) for index in range(7, 11))),
    )


@formula("DaoAILab::_causal_conv1d_update_cpp")
def causal_convolution_step(signature: Signature) -> Cost:
    """`2 * b * d * l * w` FLOPs for the new positions. Arguments: (x, state, weight, bias, out, ...).

    Reads and writes the state.
    """
    x, state, weight = (signature.tensor(index) for index in range(3))
    flops = 2 * x.numel * weight.shape[1]
    moved = read(x, state, weight, optional(signature, 3), optional(signature, 6), optional(signature, 7))
    return Cost(flops=flops, read_bytes=moved, written_bytes=read(signature.tensor(4), state))


@formula("SelectiveScanFn")
def selective_scan(signature: Signature) -> Cost:
    """`9 * b * l * d * n` FLOPs, plus `b * l * d` each for D and z.

    Arguments: (u (b, d, l), delta, A (d, n), B, C, D, z, delta_bias, ...). The states kept for the backward are not
    counted. Source: selective_scan_flop in Mamba's repository.
    """
    u, a = signature.tensor(0), signature.tensor(2)
    skip, z = optional(signature, 5), optional(signature, 6)
    if len(u.shape) != 3 or len(a.shape) != 2 or a.shape[0] != u.shape[1]:
        raise Unknown(f"selective scan of {u} with {a}")
    flops = u.numel * (9 * a.shape[1] + (skip is not None) + (z is not None))
    outputs = 1 + (z is not None)
    moved = read(*(optional(signature, index) for index in range(8)))
    return Cost(flops=flops, read_bytes=moved, written_bytes=outputs * fresh(u.shape, u.dtype))
