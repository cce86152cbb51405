"""The class of a host operator by its name: compiled names, ATen, libraries, ranges, and last the words in it."""

from __future__ import annotations

from functools import lru_cache

from opanatomy.classification.aten import classify_aten
from opanatomy.classification.compiled import classify_compiled
from opanatomy.classification.libraries import LIBRARIES, RANGES, WORDS
from opanatomy.classification.rules import LONGEST, first_match
from opanatomy.records.signature import Classification

#: Namespaces whose operators are named after ATen's.
_LIKE_ATEN = frozenset({"aten", "prims", "mkldnn", "static_runtime", "inductor", "_native"})


@lru_cache(maxsize=65536)
def classify_operator(name: str) -> Classification | None:
    """What a host event of this name does, as in a Kineto trace (`aten::addmm`, `AddmmBackward0`, `c10d::allreduce_`).

    The class inside the answer is `None` for an event that does no work of its own; the answer itself is `None` where
    no rule knows the name.
    """
    name = name[:LONGEST]
    compiled = classify_compiled(name)
    if compiled is not None:
        return compiled
    namespace, separator, base = name.partition("::")
    if separator and namespace in _LIKE_ATEN:
        known = classify_aten(base)
        if known is not None:
            return known
    return first_match((*LIBRARIES, RANGES, WORDS), name)
