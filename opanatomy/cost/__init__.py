"""Count the least that an operator call must compute and move.

`cost(operator, signature)` looks up a formula: a pure function of shapes, data types and constants. Each family of
formulas has its own file. An operator without a formula, or a signature that lacks what the formula needs, has no cost
(`None`): never a silent 0, never a guess. To add a formula, decorate a function:

    @opanatomy.formula("mylib::fused_add_norm")
    def fused_add_norm(signature):
        x = signature.tensor(0)
        return Cost(flops=8 * x.numel, read_bytes=2 * x.bytes, written_bytes=x.bytes)
"""

from __future__ import annotations

from opanatomy.cost import (
    attention,
    compiled,
    contraction,
    convolution,
    elementwise,
    indexing,
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
    sparse,
)
from opanatomy.cost.registry import cost, describe, formula, has_formula, operators, pattern

__all__ = [
    "attention", "compiled", "contraction", "convolution", "cost", "describe", "elementwise", "formula", "has_formula",
    "indexing", "libraries", "linalg", "loss", "movement", "normalization", "operators", "optimizer", "pattern",
    "pooling", "quantized", "recommender", "recurrent", "reduction", "sparse",
]  # fmt: skip
