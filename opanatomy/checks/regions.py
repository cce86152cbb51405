"""Regions with many contractions in one node: compiled functions and functions of the model's own.

Their products are distinguished by their sizes, not by structure: a gradient has the sizes of its forward in another
order, and each forward product has two at most. What else a region computes in its backward (its forward again, other
products, none) is its own affair, and not checked.
"""

from __future__ import annotations

from collections import Counter

from opanatomy.checks.findings import Finding, Verdict
from opanatomy.checks.graph import is_own
from opanatomy.checks.matrices import NO_SHAPES, is_product
from opanatomy.checks.pairs import Pair
from opanatomy.records.taxonomy import Phase

OWN = "contractions of a function of the model's own: its backward need not be made of the forward's"
COMPILED = "contractions of a compiled region: the compiler may write them in another way"
NO_FORMULA = "contractions in compiled regions or own functions that are no plain products of known shapes"


def reason_of(node: str) -> str | None:
    """Why what is below a node need not be what its forward says; `None` below the node of a library's operator."""
    if is_own(node):
        return OWN
    return COMPILED if "CompiledFunction" in node else None


def judge_region(pair: Pair) -> Verdict:
    """Each product of the backward that has the sizes of one of the forward against its FLOPs."""
    products = [contraction for contraction in pair.forward if is_product(contraction)]
    allowed = Counter(contraction.key for contraction in products)
    costs = {contraction.key: contraction.flops for contraction in products}
    given: Counter[object] = Counter()
    findings: list[Finding] = []
    reasons: list[str] = []
    equal = 0
    for contraction in pair.backward:
        key = contraction.key
        given[key] += 1
        if key is None or contraction.flops is None:
            reasons.append(NO_FORMULA if contraction.signature else NO_SHAPES)
        elif given[key] > 2 * allowed[key]:
            reasons.append(reason_of(pair.node) or OWN)
        elif contraction.flops == costs[key]:
            equal += 1
        else:
            evidence = f"{contraction.shapes} below {pair.node} has other FLOPs than the product of these sizes there"
            findings.append(
                Finding(operator=contraction.operator, phase=Phase.BACKWARD, ours=contraction.flops, other=costs[key],
                        evidence=evidence)
            )  # fmt: skip
    return Verdict(
        compared=equal + len(findings), equal=equal, findings=tuple(findings), not_checked=tuple(reasons)
    )  # fmt: skip
