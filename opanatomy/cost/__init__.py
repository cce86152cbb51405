"""Stage 5: what an operator call must compute and move at least.

`cost(operator, signature)` looks up a formula, a pure function of shapes, data types and constants; there is one file a
family. An operator without a formula, or a signature that lacks what the formula needs, has no cost (`None`): never 0
in silence, never a guess. A formula of your own is one decorated function:

    @opanatomy.formula("mylib::fused_add_norm")
    def fused_add_norm(signature):
        x = signature.tensor(0)
        return Cost(flops=8 * x.numel, read_bytes=2 * x.bytes, written_bytes=x.bytes)
"""

from opanatomy.cost import (
    activation,
    antialias,
    attention,
    attention_packages,
    compiled,
    contraction,
    convolution,
    creation,
    distance,
    elementwise,
    fixed_point,
    fourier,
    graph,
    indexing,
    jagged,
    libraries,
    linalg,
    loss,
    movement,
    normalization,
    optimizer,
    pooling,
    quantized,
    recommender,
    recurrent,
    reduction,
    scan,
    sparse,
    special,
    synchronized,
    vision,
)
from opanatomy.cost.registry import cost, describe, formula, has_formula, operators, pattern

__all__ = [
    "activation", "antialias", "attention", "attention_packages", "compiled", "contraction", "convolution", "cost",
    "creation",
    "describe", "distance", "elementwise", "fixed_point", "formula", "fourier", "graph", "has_formula", "indexing",
    "jagged", "libraries", "linalg", "loss", "movement", "normalization", "operators", "optimizer", "pattern",
    "pooling", "quantized", "recommender", "recurrent", "reduction", "scan", "sparse", "special", "synchronized",
    "vision",
]  # fmt: skip
