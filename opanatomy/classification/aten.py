"""The class of an ATen name: the tables, and how variants follow the name they are made of."""

from __future__ import annotations

from functools import cache

from opanatomy.classification.aten_tables import FAMILIES
from opanatomy.classification.rules import MOVEMENT, Family, answer
from opanatomy.records.signature import Classification

_PREFIXES = ("_foreach_", "special_")
_SUFFIXES = ("_backward_data", "_backward_input", "_backward_weight", "_backward")
_VIEW_COPY = Family("copy of a view", MOVEMENT, "")


def classify_aten(base: str) -> Classification | None:
    """What the ATen operator `base` (no namespace, no overload) does; `None` where no rule knows it."""
    decided = _find(base)
    if decided is None:
        return None
    family, listed = decided
    return answer(family, f"operators/{family.title}: aten::{listed}")


@cache
def families_by_name() -> dict[str, Family]:
    """Every ATen name that the tables list, with its family."""
    return {name: family for family in FAMILIES for name in family.names.split()}


def _find(base: str) -> tuple[Family, str] | None:
    """The family that decides for `base`, and the listed name that it was found under."""
    family = families_by_name().get(base)
    if family is not None:
        return family, base
    if base.endswith("_") and not base.endswith("__"):
        return _find(base[:-1])
    for prefix in _PREFIXES:
        if base.startswith(prefix):
            return _find(base.removeprefix(prefix))
    if base.endswith("_copy"):
        original = _find(base.removesuffix("_copy"))
        return (_VIEW_COPY, base) if original and original[0].operator_class in (None, MOVEMENT) else None
    for suffix in _SUFFIXES:
        if base.endswith(suffix):
            original = _find(base.removesuffix(suffix))
            return original if original and original[0].operator_class is not None else None
    return None
