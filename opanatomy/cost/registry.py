"""The registry of formulas: operator name -> pure function of a signature."""

from __future__ import annotations

from collections.abc import Callable
from inspect import getdoc
from typing import TypeAlias

from opanatomy.model import Cost, Signature

Formula: TypeAlias = Callable[[Signature], Cost]

_FORMULAS: dict[str, Formula] = {}

#: What a formula raises where a signature lacks what it needs, or does not fit the operator.
_ODD_ARGUMENTS = (LookupError, TypeError, ValueError, ArithmeticError)


def formula(*operators: str) -> Callable[[Formula], Formula]:
    """A decorator that makes a function the formula of `operators`, named as Kineto writes them (`aten::mm`).

    The function gets the `Signature` of one call and returns its `Cost`; `LookupError`, `TypeError`, `ValueError` and
    `ArithmeticError` mean "this signature does not say". The last formula of a name wins.
    """

    def register(function: Formula) -> Formula:
        _FORMULAS.update(dict.fromkeys(operators, function))
        return function

    return register


def cost(operator: str, signature: Signature) -> Cost | None:
    """FLOPs and bytes of one operator call; `None` without a formula or where the signature lacks what it needs."""
    function = _FORMULAS.get(operator)
    if function is None:
        return None
    try:
        found = function(signature)
    except _ODD_ARGUMENTS:
        return None
    return None if min(found.flops, found.read_bytes, found.written_bytes) < 0 else found


def describe(operator: str) -> str | None:
    """The text of an operator's formula with its source; `None` without a formula."""
    function = _FORMULAS.get(operator)
    return None if function is None else getdoc(function)


def operators() -> tuple[str, ...]:
    """Every operator with a formula, sorted."""
    return tuple(sorted(_FORMULAS))
