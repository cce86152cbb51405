"""What theory says of the backward of this step: from its forward products and what needs a gradient.

Y = X W has two products in its backward, dX = dY W' and dW = X' dY, each with the FLOPs of the forward; one whose
result nobody needs is not computed: the input gradient of a first layer, the weight gradient of a frozen one. Fused
attention computes five products for the two of its forward, the scores being computed again. None of this looks at the
backward.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

import numpy as np

from opanatomy.records.columns import CallTable
from opanatomy.records.taxonomy import OperatorClass, Phase

_PRODUCTS: Final = {"weight": 1, "input": 1, "both": 2, "none": 0}
_ATTENTION: Final = re.compile(r"scaled_dot_product|(?:flash|efficient|cudnn)_attn|(?:flash|efficient|cudnn)_attention")
_OF_ACTIVATIONS: Final = re.compile(r"^aten::(?:bmm|baddbmm)")
#: One call has products of several kinds, with the input and with what came out of the step before.
_RECURRENT: Final = re.compile(r"rnn|lstm|gru", re.IGNORECASE)


def backward_over_forward(calls: CallTable, gradients: Mapping[str, str]) -> float | None:
    """FLOPs of the backward's contractions over those of the forward, by theory and without recomputation.

    `gradients` says of each module what of its products needs a gradient. `None` where a forward contraction has no
    cost, is in no module that it knows, or there is none.
    """
    contraction = calls.operator_class.equals(OperatorClass.TENSOR_CONTRACTION)
    rows = np.flatnonzero(contraction & calls.phase.equals(Phase.FORWARD) & ~calls.inner)
    forward = 0
    backward = Fraction()
    for row in rows.tolist():
        flops, operator, module = int(calls.flops[row]), calls.operator.at(row), calls.module.at(row)
        factor = None if operator is None or module is None else _factor(operator, gradients.get(module))
        if flops < 0 or factor is None:
            return None
        forward += flops
        backward += flops * factor
    return float(backward / forward) if forward else None


def _factor(operator: str, needs: str | None) -> Fraction | None:
    """Products in the backward of a call for each in its forward; `None` where that is not known."""
    if needs is None or needs not in _PRODUCTS:
        return None
    if needs == "none":
        return Fraction(0)
    if _ATTENTION.search(operator):
        return Fraction(5, 2)
    if _OF_ACTIVATIONS.match(operator):
        return Fraction(2)
    if _RECURRENT.search(operator) and needs != "both":
        return None
    return Fraction(_PRODUCTS[needs])


def all_need_both(gradients: Mapping[str, str]) -> bool:
    """Whether every product of the model needs both its gradients."""
    return set(gradients.values()) <= {"both"}
