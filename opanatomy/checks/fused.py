"""Convolutions, fused attention and recurrent layers: what their backward costs by which gradients it computes."""

from __future__ import annotations

from opanatomy.checks.findings import Finding, Verdict
from opanatomy.checks.pairs import Contraction, Pair
from opanatomy.cost.convolution import output_shape
from opanatomy.cost.operands import flag, integer
from opanatomy.records.signature import Tensor
from opanatomy.records.taxonomy import Phase

NO_CONSTANTS = "convolutions without recorded constants (stride, mask); their shapes agree"
NO_SHAPES = "convolutions without recorded shapes"
NO_COST = "fused operators without known FLOPs"
#: (input, weight) among the arguments of the backward of a convolution; those not here are not looked at.
_OPERANDS: dict[str, tuple[int | None, int | None]] = {
    "convolution_backward": (1, 2), "convolution_backward_overrideable": (1, 2), "_slow_conv2d_backward": (1, 2),
    "cudnn_convolution_backward": (0, 2), "miopen_convolution_backward": (0, 2), "mkldnn_convolution_backward": (0, 2),
    "cudnn_convolution_backward_input": (None, 2), "cudnn_convolution_backward_weight": (2, None),
    "miopen_convolution_backward_input": (None, 2), "miopen_convolution_backward_weight": (2, None),
}  # fmt: skip
#: Convolutions whose third argument is the bias.
_WITH_BIAS = {"convolution", "_convolution", "mkldnn_convolution", "miopen_convolution"}


def judge_convolution(pair: Pair) -> Verdict:
    """The gradients below the node are 0, 1 or 2 times the forward, one call each, and of the same tensors."""
    absent = _absent(pair)
    if absent is not None:
        return absent
    odd = _other_operands(pair) or _called_twice(pair) or _misfit(pair)
    whole = _sum(pair.forward)
    spent = _sum(pair.backward)
    if odd is None and whole is not None and spent is not None:
        if spent in (0, whole, 2 * whole):
            return Verdict(compared=1, equal=1)
        odd = "0, 1 or 2 times the forward"
    if odd is None and any(map(_refused, (*pair.forward, *pair.backward))):
        odd = "the shapes do not fit"
    if odd is None:
        recorded = all(contraction.signature for contraction in (*pair.forward, *pair.backward))
        return Verdict(not_checked=(NO_CONSTANTS if recorded else NO_SHAPES,))
    nearest = None if not whole or spent is None else whole * max(1, min(2, round(spent / whole)))
    return _wrong(pair, spent, nearest, odd)


def judge_attention(pair: Pair) -> Verdict:
    """One backward of five products for a forward of two, on the same query, key and value."""
    return _absent(pair) or _exact(pair, _attention_ratio(pair.forward[0], pair.backward[0]))


def _attention_ratio(forward: Contraction, backward: Contraction) -> tuple[int, int] | None:
    """(3 d + 2 dv) / (d + dv) for heads of size d, of the value dv; `None` where the tensors are not the same."""
    q, k, v = (_shape(forward, place) for place in range(3))
    grad, *again = (_shape(backward, place) for place in range(4))
    if not q or not v or [q, k, v] != again or grad != (*q[:-1], v[-1]):
        return None
    return 3 * q[-1] + 2 * v[-1], q[-1] + v[-1]


def judge_recurrent(pair: Pair) -> Verdict:
    """Twice the forward, or once where no gradient of the weights is computed."""
    absent = _absent(pair)
    if absent is not None:
        return absent
    forward, backward = pair.forward[0], pair.backward[0]
    if forward.base == "mkldnn_rnn_layer" and any(_shape(forward, at) != _shape(backward, at) for at in range(7)):
        return _exact(pair, None)
    weights = backward.signature.get(21) if backward.signature else None
    asked = weights[3] if isinstance(weights, tuple) and len(weights) == 4 else True
    return _exact(pair, (2 if asked else 1, 1))


def _exact(pair: Pair, ratio: tuple[int, int] | None) -> Verdict:
    """One call below the node whose FLOPs are those of the forward in this ratio."""
    whole, spent = _sum(pair.forward), _sum(pair.backward)
    if not all("backward" in contraction.base for contraction in pair.backward):
        return _wrong(pair, spent, whole, "not only a backward")
    if spent is None or whole is None:
        refused = any(map(_refused, (*pair.forward, *pair.backward)))
        if refused and (spent is None) != (whole is None):
            return _wrong(pair, spent, None, "the shapes do not fit")
        return Verdict(not_checked=(NO_COST,))
    if ratio is None:
        return _wrong(pair, spent, None, "the tensors are not those of the forward")
    expected = whole * ratio[0] // ratio[1]
    if len(pair.backward) == 1 and spent == expected:
        return Verdict(compared=1, equal=1)
    return _wrong(pair, spent, expected, f"{len(pair.backward)} calls for one")


def _absent(pair: Pair) -> Verdict | None:
    """The verdict on a node without its contraction; `None` where there is one."""
    if pair.backward:
        return None
    return _wrong(pair, 0, _sum(pair.forward), "the node computes nothing")


def _wrong(pair: Pair, ours: int | None, other: int | None, why: str) -> Verdict:
    forward, backward = ("; ".join(call.shapes for call in calls) for calls in (pair.forward, pair.backward))
    evidence = f"{why}: {backward or 'none'} below {pair.node}, forward {forward}"
    operator = pair.backward[0].operator if pair.backward else pair.node
    finding = Finding(operator=operator, phase=Phase.BACKWARD, ours=ours, other=other, evidence=evidence)
    return Verdict(compared=1, findings=(finding,))


def _sum(calls: tuple[Contraction, ...]) -> int | None:
    total = 0
    for contraction in calls:
        if contraction.flops is None:
            return None
        total += contraction.flops
    return total


def _refused(contraction: Contraction) -> bool:
    """Whether a formula had all it needs and yet no answer."""
    return contraction.flops is None and contraction.complete


def _shape(contraction: Contraction, place: int) -> tuple[int, ...] | None:
    value = contraction.signature.get(place) if contraction.signature else None
    return value.shape if isinstance(value, Tensor) else None


def _other_operands(pair: Pair) -> str | None:
    """Whether a gradient was computed from another input or weight than the forward's."""
    x, weight = _shape(pair.forward[0], 0), _shape(pair.forward[0], 1)
    for contraction in pair.backward if len(pair.forward) == 1 else ():
        places = _OPERANDS.get(contraction.base, (None, None))
        for place, shape in zip(places, (x, weight), strict=True):
            other = None if place is None else _shape(contraction, place)
            if other is not None and shape is not None and _squeezed(other) != _squeezed(shape):
                return "the tensors are not those of the forward"
    return None


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without ones: a convolution in one dimension is run as one in two."""
    return tuple(size for size in shape if size != 1)


def _misfit(pair: Pair) -> str | None:
    """Whether the gradient has not the shape of the forward's output, or the bias not its channels."""
    forward = pair.forward[0] if len(pair.forward) == 1 and pair.forward[0].base in _WITH_BIAS else None
    bias = _shape(forward, 2) if forward else None
    for contraction in pair.backward:
        if contraction.base != "convolution_backward" or not contraction.complete or contraction.signature is None:
            continue
        grad, output = _shape(contraction, 0), _output(contraction)
        if grad is not None and output is not None and grad != output:
            return "the gradient has not the shape of the output"
        weight = _shape(contraction, 2)
        if bias and output and weight and bias != (output[len(output) - len(weight) + 1],):
            return "the bias has not the channels of the output"
    return None


def _output(contraction: Contraction) -> tuple[int, ...] | None:
    """The shape of the output of the convolution that a call is the backward of."""
    x, weight = _shape(contraction, 1), _shape(contraction, 2)
    get = contraction.signature.get if contraction.signature else None
    if x is None or weight is None or get is None:
        return None
    try:
        return output_shape(x, weight, get(4), get(5), get(6), flag(get(7)), get(8), integer(get(9)))
    except (LookupError, TypeError, ValueError, ArithmeticError):
        return None


def _called_twice(pair: Pair) -> str | None:
    if not all("backward" in contraction.base for contraction in pair.backward):
        return "not only gradients"
    names = [contraction.base for contraction in pair.backward if contraction.base in _OPERANDS]
    if len(pair.forward) == 1 and len(set(names)) < len(names):
        return "called twice"
    return None
