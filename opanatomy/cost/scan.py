"""State-space layers: the selective scan of Mamba and its causal convolution, as their packages name them."""

from __future__ import annotations

from opanatomy.cost.operands import Unknown, flag, fresh, optional, read
from opanatomy.cost.registry import formula
from opanatomy.records.signature import Cost, Signature, Tensor


def _sizes(x: Tensor, weight: Tensor) -> int:
    """FLOPs of a depthwise convolution of x (b, d, l) with (d, w): `2 * b * d * l * w`."""
    if len(x.shape) != 3 or len(weight.shape) != 2 or x.shape[1] != weight.shape[0]:
        raise Unknown(f"causal convolution of {x} with {weight}")
    return 2 * x.numel * weight.shape[1]


@formula("DaoAILab::_causal_conv1d_fwd_cpp")
def causal_convolution(signature: Signature) -> Cost:
    """`2 * b * d * l * w`; an activation inside is not counted.

    (x, weight, bias, seq_idx, initial_states, out, final_states_out, silu). Source: causal_conv1d/cpp_functions.py.
    """
    x, weight, out = signature.tensor(0), signature.tensor(1), signature.tensor(5)
    rest = (optional(signature, place) for place in (2, 3, 4))
    return Cost(
        flops=_sizes(x, weight),
        read_bytes=read(x, weight, *rest),
        written_bytes=read(out, optional(signature, 6)),
    )


@formula("DaoAILab::_causal_conv1d_bwd_cpp")
def causal_convolution_backward(signature: Signature) -> Cost:
    """`4 * b * d * l * w` for both gradients, `6 *` where the activation makes it compute the forward again.

    (x, weight, bias, grad, seq_idx, initial_states, dfinal_states, dx, dweight, dbias, dinitial_states, silu).
    """
    x, weight = signature.tensor(0), signature.tensor(1)
    times = 3 if flag(signature.get(11)) else 2
    return Cost(
        flops=times * _sizes(x, weight),
        read_bytes=read(*(optional(signature, place) for place in range(7))),
        written_bytes=read(*(optional(signature, place) for place in range(7, 11))),
    )


@formula("DaoAILab::_causal_conv1d_update_cpp")
def causal_convolution_step(signature: Signature) -> Cost:
    """`2 * b * d * l * w` for the new positions: (x, state, weight, bias, out, ...); reads and writes the state."""
    x, state, weight = (signature.tensor(place) for place in range(3))
    flops = 2 * x.numel * weight.shape[1]
    moved = read(x, state, weight, optional(signature, 3), optional(signature, 6), optional(signature, 7))
    return Cost(flops=flops, read_bytes=moved, written_bytes=read(signature.tensor(4), state))


@formula("SelectiveScanFn")
def selective_scan(signature: Signature) -> Cost:
    """`9 * b * l * d * n`, one more `b * l * d` each for D and z: (u, delta, A, B, C, D, z, delta_bias, ...).

    u (b, d, l), A (d, n). The states it keeps for the backward are not counted. Source: selective_scan_flop in the
    repository of Mamba.
    """
    u, a = signature.tensor(0), signature.tensor(2)
    skip, z = optional(signature, 5), optional(signature, 6)
    if len(u.shape) != 3 or len(a.shape) != 2 or a.shape[0] != u.shape[1]:
        raise Unknown(f"selective scan of {u} with {a}")
    flops = u.numel * (9 * a.shape[1] + (skip is not None) + (z is not None))
    outputs = 1 + (z is not None)
    moved = read(*(optional(signature, place) for place in range(8)))
    return Cost(flops=flops, read_bytes=moved, written_bytes=outputs * fresh(u.shape, u.dtype))
