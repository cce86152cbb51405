"""Activations whose form or shape is not that of a plain map, and dropout with its mask."""

from __future__ import annotations

from opanatomy.cost.elementwise import Map, map_cost
from opanatomy.cost.operands import fresh, read
from opanatomy.cost.registry import formula
from opanatomy.records.signature import Cost, Signature


@formula("aten::gelu", "aten::gelu_")
def gelu(signature: Signature) -> Cost:
    """5 per output element, in the tanh form 10; the erf form where the trace dropped the string that says which.

    erf form, 0.5 * x * (1 + erf(x * sqrt(1/2))): multiply, erf, add, multiply, multiply. tanh form,
    0.5 * x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x ** 3))): divide, sqrt, pow, multiply, add, multiply, tanh, add,
    multiply, multiply; the convention of the paper's counter, constants included.
    """
    flops = 10 if signature.get(1) == "tanh" else 5
    return map_cost(Map(flops=flops), signature)


@formula("aten::gelu_backward")
def gelu_backward(signature: Signature) -> Cost:
    """11 per output element, in the tanh form 18.

    erf form: cdf = 0.5 * (1 + erf(x * c)) is 4, pdf = exp(-0.5 * x * x) * c is 4, grad * (cdf + x * pdf) is 3. tanh
    form: x * x, x * x * x, inner (multiply, add, multiply), tanh, 0.5 * x, 1 + tanh, half of it, 1 - tanh ** 2 (2),
    derivative of inner (multiply, add, multiply), two products, grad * (left + right) (2).
    """
    flops = 18 if signature.get(2) == "tanh" else 11
    return map_cost(Map(flops=flops, operands=2), signature)


@formula("aten::elu_backward")
def elu_backward(signature: Signature) -> Cost:
    """4 per output element: grad * c * d * exp(x * c), a multiply and exp and two products."""
    grad, x = signature.tensor(0), signature.tensor(5)
    return Cost(flops=4 * grad.numel, read_bytes=read(grad, x), written_bytes=fresh(grad.shape, grad.dtype))


@formula("aten::native_dropout", "aten::_fused_dropout")
def native_dropout(signature: Signature) -> Cost:
    """1 per element (the paper); writes the result and a mask of one byte an element."""
    x = signature.tensor(0)
    written = fresh(x.shape, x.dtype) + fresh(x.shape, "bool")
    return Cost(flops=x.numel, read_bytes=read(x), written_bytes=written)


@formula("aten::glu")
def glu(signature: Signature) -> Cost:
    """5 per output element: a * sigmoid(b); the output is half the input."""
    x = signature.tensor(0)
    half = x.numel // 2
    return Cost(flops=5 * half, read_bytes=read(x), written_bytes=fresh((half,), x.dtype))


@formula("aten::glu_backward")
def glu_backward(signature: Signature) -> Cost:
    """8 per element of the gradient: s = sigmoid(b) (4), g * s, then (1 - s) * (g * s) * a (3)."""
    grad, x = signature.tensor(0), signature.tensor(1)
    return Cost(flops=8 * grad.numel, read_bytes=read(grad, x), written_bytes=fresh(x.shape, x.dtype))


@formula("aten::log_sigmoid_forward")
def log_sigmoid(signature: Signature) -> Cost:
    """3 per output element: min(x, 0) - log1p(exp(-|x|)); writes a buffer of the same size."""
    x = signature.tensor(0)
    return Cost(flops=3 * x.numel, read_bytes=read(x), written_bytes=2 * fresh(x.shape, x.dtype))


@formula("aten::log_sigmoid_backward")
def log_sigmoid_backward(signature: Signature) -> Cost:
    """5 per output element: grad * (m - sign * z / (1 + z))."""
    grad, x, buffer = (signature.tensor(index) for index in range(3))
    return Cost(flops=5 * grad.numel, read_bytes=read(grad, x, buffer), written_bytes=fresh(x.shape, x.dtype))
