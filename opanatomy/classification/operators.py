"""The class of a host operator by its name: ATen tables, then ranges and autograd nodes, then libraries."""

from __future__ import annotations

from functools import cache, lru_cache

from opanatomy.classification.compiled import classify_compiled
from opanatomy.classification.libraries import LIBRARIES, RANGES, WORDS

from opanatomy.classification.aten import FAMILIES
from opanatomy.classification.rules import (
    ELEMENTWISE,
    MOVEMENT,
    NORMALIZATION,
    Family,
    RuleTable,
    answer,
    first_match,
)
from opanatomy.model import Classification

#: Namespaces whose operators are named after ATen's.
_LIKE_ATEN = frozenset({"aten", "prims", "mkldnn", "static_runtime", "inductor", "_native", "_test"})
_BACKWARD = ("_backward_data", "_backward_input", "_backward_weight", "_backward")


@lru_cache(maxsize=65536)
def classify_operator(name: str) -> Classification | None:
    """What a host event of this name does, as in a Kineto trace (`aten::addmm`, `AddmmBackward0`, `c10d::allreduce_`).

    The class is `None` inside the answer for an event that does no work of its own; the answer itself is `None` where
    no rule knows the name.
    """
    compiled = classify_compiled(name)
    if compiled is not None:
        return compiled
    namespace, separator, base = name.partition("::")
    if separator and namespace in _LIKE_ATEN:
        known = classify_aten(base)
        if known is not None:
            return known
    return first_match((*LIBRARIES, RANGES, WORDS), name)


def classify_aten(base: str) -> Classification | None:
    """What the ATen operator `base` (no namespace, no overload) does; `None` where no rule knows it."""
    found = _find(base)
    if found is None:
        return None
    family, known = found
    derived = "" if known == base else f" for {base}"
    return answer(family, f"operators/{family.title}: aten::{known}{derived}")


@cache
def families_by_name() -> dict[str, Family]:
    """Every ATen name that the tables list, with its family."""
    return {name: family for family in FAMILIES for name in family.names.split()}


def operator_rules() -> tuple[Family | RuleTable, ...]:
    """The tables in the order they are asked."""
    return (*FAMILIES, *LIBRARIES, RANGES, WORDS)


def _find(base: str) -> tuple[Family, str] | None:
    """The family that decides for `base`, and the listed name that it was found under."""
    names = families_by_name()
    family = names.get(base)
    if family is not None:
        return family, base
    if base.endswith("_") and not base.endswith("__"):
        return _find(base[:-1])
    for prefix in ("_foreach_", "special_"):
        if base.startswith(prefix):
            return _find(base.removeprefix(prefix))
    for suffix in ("_copy", *_BACKWARD):
        if base.endswith(suffix):
            return _suffixed(base, suffix)
    return None


_VIEW_COPY = Family("copy of a view", MOVEMENT, "")
_SUFFIX_CLASSES = (ELEMENTWISE, NORMALIZATION)


def _suffixed(base: str, suffix: str) -> tuple[Family, str] | None:
    found = _find(base.removesuffix(suffix))
    if found is None:
        return None
    family, known = found
    if suffix == "_copy":
        return (_VIEW_COPY, base) if family.operator_class in (None, MOVEMENT) else None
    if family.operator_class is None:
        return None
    return family, known
