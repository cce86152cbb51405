"""Regions with many contractions in one node: compiled functions and functions of the model's own.

Their products are distinguished by their sizes, not by structure: a gradient has the sizes of its forward in another
order, and each forward product has two at most. Which of them are computed, a region does not say; but they are the
same ones each time it runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from opanatomy.checks.findings import Finding, Tally, Verdict
from opanatomy.checks.matrices import NO_SHAPES, is_product
from opanatomy.checks.pairs import Contraction, Pair
from opanatomy.records.taxonomy import Phase

OWN = "a function of the model's own: its backward need not be made of the forward's products"
FROZEN = "not every input and weight of the region needs a gradient"
PADDED = "the compiler padded the operands"
NO_FORMULA = "contractions in compiled regions or own functions that are no plain products of known shapes"
#: Sizes that a compiler pads operands to.
_ALIGNED = 32


def is_region(pair: Pair) -> bool:
    """Whether the node is that of a compiled or an own function: its operator is not one of a library."""
    return pair.operator is None or "::" not in pair.operator


def judge_regions(pairs: Iterable[tuple[Pair, str | None]], tally: Tally) -> None:
    """Count every run of every region: each gradient against the forward's products, each run against the others."""
    runs: dict[tuple[object, ...], list[tuple[Pair, str | None]]] = {}
    for pair, module in pairs:
        runs.setdefault((pair.node, pair.forward), []).append((pair, module))
    for alike in runs.values():
        usual = Counter(frozenset(_counted(pair).items()) for pair, _ in alike).most_common(1)[0][0]
        for pair, module in alike:
            tally.add(_judge(pair, Counter(dict(usual))), module)


def _counted(pair: Pair) -> Counter[tuple[object, ...]]:
    return Counter(_key(contraction) for contraction in pair.backward)


def _key(contraction: Contraction) -> tuple[object, ...]:
    """What distinguishes a contraction of a region from others: the sizes of a product, else its name and shapes."""
    return contraction.key or (contraction.base, contraction.shapes)


def _judge(pair: Pair, usual: Counter[tuple[object, ...]]) -> Verdict:
    if not pair.backward and not usual:
        return Verdict()
    products = [contraction for contraction in pair.forward if is_product(contraction)]
    allowed = Counter(contraction.key for contraction in products)
    costs = {contraction.key: contraction.flops for contraction in products}
    counted = _counted(pair)
    compared = equal = 0
    findings: list[Finding] = []
    reasons: list[str] = []
    given: Counter[object] = Counter()
    for contraction in pair.backward:
        key = contraction.key
        if key is None or contraction.flops is None:
            reasons.append(NO_FORMULA if contraction.signature else NO_SHAPES)
            continue
        compared += 1
        given[key] += 1
        if key in allowed and given[key] <= 2 * allowed[key] and contraction.flops == costs[key]:
            equal += 1
        else:
            findings.append(_odd(pair, contraction, allowed, as_usual=given[key] <= usual[_key(contraction)]))
    for key in usual.keys() | counted.keys():
        for _ in range(usual[key] - counted[key]):
            compared += 1
            findings.append(_unlike(pair, key))
    if counted == usual and products and not reasons and equal == compared and equal < 2 * len(products):
        findings.append(_asked_for_less(pair, equal, 2 * len(products)))
        compared += 1
    return Verdict(compared=compared, equal=equal, findings=tuple(findings), not_checked=tuple(reasons))


def _odd(
    pair: Pair, contraction: Contraction, allowed: Counter[tuple[object, ...] | None], *, as_usual: bool
) -> Finding:
    """A product of the backward that is none of the forward's, or is there too often.

    A function that someone wrote may compute in its backward what it likes (its forward's products again), as long as
    it does so `as_usual`, in every run.
    """
    compiled = "Compiled" in pair.node
    key = contraction.key
    if compiled:
        cause = PADDED if key not in allowed and _padded(key, allowed) else None
    else:
        cause = OWN if key not in allowed or as_usual else None
    return Finding(
        operator=contraction.operator, phase=Phase.BACKWARD, ours=contraction.flops, cause=cause,
        evidence=f"{contraction.shapes} below {pair.node} is the gradient of none of its {len(pair.forward)}"
                 " contractions",
    )  # fmt: skip


def _padded(key: tuple[object, ...] | None, allowed: Counter[tuple[object, ...] | None]) -> bool:
    """Whether sizes are those of a forward product, some rounded up to whole memory blocks."""
    return key is not None and any(_rounds_up(other, key) or _rounds_up(key, other) for other in allowed if other)


def _rounds_up(small: tuple[object, ...], large: tuple[object, ...]) -> bool:
    sizes = [(a, b) for a, b in zip(small, large, strict=False) if isinstance(a, int) and isinstance(b, int)]
    return len(small) == len(large) == len(sizes) and all(
        a == b or (a < b < a + _ALIGNED and not b % 4 and a % 4) for a, b in sizes
    )


def _unlike(pair: Pair, key: tuple[object, ...]) -> Finding:
    """A contraction that the other runs of the region have."""
    return Finding(
        operator=pair.node, phase=Phase.BACKWARD, ours=0,
        evidence=f"other runs of the region have one contraction more of the sizes {'x'.join(map(str, key))}",
    )  # fmt: skip


def _asked_for_less(pair: Pair, products: int, maximum: int) -> Finding:
    return Finding(
        operator=pair.node, phase=Phase.BACKWARD, cause=FROZEN if "Compiled" in pair.node else OWN,
        evidence=f"{products} products in the backward, at most {maximum} for {maximum // 2} in the forward",
    )  # fmt: skip
