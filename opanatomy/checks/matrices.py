"""Products of matrices and their gradients: one product each, with the FLOPs of the forward."""

from __future__ import annotations

from collections.abc import Iterator

from opanatomy.checks.findings import Finding, Verdict
from opanatomy.checks.pairs import MATRICES, Contraction, Pair
from opanatomy.records.signature import Tensor
from opanatomy.records.taxonomy import Phase

AGAIN = "dispatched again by a tensor subclass or a transform, which shares the product out in its own way"
NO_COST = "products without known FLOPs"
NO_SHAPES = "products without recorded shapes"
#: Which of a node's views turn an operand of its gradients: `mm` writes `t`, `bmm` writes `transpose(1, 2)`.
_TURNS = {"mm": 0, "addmm": 0, "bmm": 1, "baddbmm": 1}


def judge_product(pair: Pair) -> Verdict:
    """Each product below the node against its forward's, and whether one is missing or too many."""
    (forward,) = pair.forward
    compared = equal = 0
    findings: list[Finding] = []
    reasons: list[str] = []
    cost = next((product.flops for product in pair.backward if product.flops is not None), None)
    if (forward.flops is None or not _bias_fits(forward)) and (forward.complete or cost is not None):
        findings.append(
            Finding(operator=forward.operator, phase=Phase.FORWARD, other=cost, cause=_cause(pair),
                    evidence=f"the shapes do not fit: {forward.shapes}")
        )  # fmt: skip
        return Verdict(compared=1, findings=tuple(findings))
    for product in pair.backward:
        if forward.flops is None or (product.flops is None and not (product.complete and is_product(product))):
            reasons.append(NO_COST if product.signature else NO_SHAPES)
            continue
        compared += 1
        if product.flops == forward.flops and _same_sizes(product, forward):
            equal += 1
            continue
        text = f"{product.shapes} below {pair.node}, forward {forward.shapes}"
        findings.append(
            Finding(operator=product.operator, phase=Phase.BACKWARD, ours=product.flops, other=forward.flops,
                    cause=_cause(pair), evidence=text)
        )  # fmt: skip
    missing = list(_missing(pair, forward))
    excess = bool(missing) and missing[0].ours != 0 and equal > 0
    return Verdict(
        compared=compared + (0 if excess else len(missing)), equal=equal - excess,
        findings=(*findings, *missing), not_checked=tuple(reasons),
    )  # fmt: skip


def judge_alike(pair: Pair) -> Verdict:
    """Each product below the node against its forward's FLOPs, two at most: what has no views that tell more."""
    cost = sum(product.flops or 0 for product in pair.forward)
    known = [product for product in pair.backward if product.flops is not None]
    if not cost or any(product.flops is None for product in pair.forward):
        return Verdict(not_checked=(NO_COST,) * len(pair.backward))
    odd = tuple(
        Finding(operator=product.operator, phase=Phase.BACKWARD, ours=product.flops, other=cost, cause=_cause(pair),
                evidence=f"{product.shapes} below {pair.node}, forward {'; '.join(o.shapes for o in pair.forward)}")
        for place, product in enumerate(known) if product.flops != cost or place > 1
    )  # fmt: skip
    rest = (NO_COST,) * (len(pair.backward) - len(known))
    return Verdict(compared=len(known), equal=len(known) - len(odd), findings=odd, not_checked=rest)


def _cause(pair: Pair) -> str | None:
    return AGAIN if any(product.again for product in (*pair.forward, *pair.backward)) else None


def _bias_fits(forward: Contraction) -> bool:
    """Whether what is added has the columns of the product, or one for all."""
    added, dims = forward.signature.get(0) if forward.signature else None, forward.dims
    if MATRICES[forward.base] == 0 or dims is None or not isinstance(added, Tensor) or not added.shape:
        return True
    return added.shape[-1] in (1, dims[3])


def _same_sizes(product: Contraction, forward: Contraction) -> bool:
    return product.key is None or forward.key is None or product.key == forward.key


def _missing(pair: Pair, forward: Contraction) -> Iterator[Finding]:
    """A product for whose operand a view was made and that is not there; products without such a view."""
    products, turned = len(pair.backward), pair.transposed[_TURNS.get(forward.base, 0)]
    if forward.base not in _TURNS or any(product.again for product in pair.backward):
        return
    minimum, maximum = _turns(pair, forward)
    cost = forward.flops
    if turned > maximum:
        lost = 2 if not products and turned > 2 - _TURNS[forward.base] else 1
        for _ in range(lost):
            yield Finding(
                operator=forward.operator, phase=Phase.BACKWARD, ours=0, other=cost, evidence=(
                    f"{products} of {products + lost} products below {pair.node}, whose body turned {turned} operands; "
                    f"forward {forward.shapes}"
                ),
            )  # fmt: skip
    elif products > 2 or (turned and turned < minimum) or _twice_the_same(pair, forward):
        yield Finding(
            operator=forward.operator, phase=Phase.BACKWARD,
            ours=None if cost is None else products * cost,
            other=None if cost is None else min(products - 1, 2) * cost,
            evidence=f"{products} products below {pair.node}, whose body turned {turned} operands; {forward.shapes}",
        )  # fmt: skip


def _turns(pair: Pair, forward: Contraction) -> tuple[int, int]:
    """The least and the most operands that autograd turns for the products that are there.

    `grad.mm(b.t())` and `a.t().mm(grad)` turn one; for an operand that is stored by columns they are written
    `b.mm(grad.t()).t()` and `grad.t().mm(a).t()` and turn two, which the order of the sizes says.
    """
    if _TURNS[forward.base]:
        return len(pair.backward), len(pair.backward)
    counts = [{turns for _, turns in _forms(product, forward)} or {1, 2} for product in pair.backward]
    return sum(min(count) for count in counts), sum(max(count) for count in counts)


def _forms(product: Contraction, forward: Contraction) -> list[tuple[str, int]]:
    """(the operand whose gradient it is, operands turned) of every way in which the product may have come about."""
    ours, dims = product.dims, forward.dims
    if ours is None or dims is None:
        return []
    # (m, k) @ (k, n)
    _, m, k, n = dims
    forms = {("a", 1): (m, n, k), ("a", 2): (k, n, m), ("b", 1): (k, m, n), ("b", 2): (n, m, k)}
    return [form for form, sizes in forms.items() if sizes == ours[1:]]


def _twice_the_same(pair: Pair, forward: Contraction) -> bool:
    """Whether both products are the gradient of one operand."""
    if len(pair.backward) != 2:
        return False
    first, second = ({operand for operand, _ in _forms(product, forward)} for product in pair.backward)
    return first == second and len(first) == 1


def is_product(product: Contraction) -> bool:
    """Whether a contraction is a product of two matrices."""
    return product.base in MATRICES
