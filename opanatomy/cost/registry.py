"""The registry of formulas: operator name -> pure function of a signature.

To add a formula or replace a built-in one, write five lines in your own code:

    from opanatomy import Cost, formula

    @formula("mylib::fused_add_norm")
    def fused_add_norm(signature):
        x = signature.tensor(0)
        return Cost(flops=8 * x.numel, read_bytes=2 * x.bytes, written_bytes=x.bytes)

`signature` holds the arguments of one call in the order of the operator's schema: `tensor(i)` is a tensor with `shape`,
`dtype`, `strides`, `numel` and `bytes`; `get(i)` is any argument, `None` if it is absent. For kernels whose names are
generated at run time, register a regular expression with `pattern`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from inspect import getdoc, getsourcefile
from typing import Any, TypeAlias, TypeVar

from opanatomy.errors import UsageError
from opanatomy.records.signature import Cost, Signature

Formula: TypeAlias = Callable[[Signature], Cost]
#: Formulas registered by pattern also take the name.
NamedFormula: TypeAlias = Callable[[str, Signature], Cost]
_F = TypeVar("_F", bound=Callable[..., Any])

_FORMULAS: dict[str, Formula] = {}
#: Formulas for one kind of device only, by (operator, device kind).
_BY_DEVICE: dict[tuple[str, str], Formula] = {}
_PATTERNS: list[tuple[re.Pattern[str], NamedFormula]] = []

#: Formulas for calls with a sparse tensor among the arguments. All our other formulas count dense tensors.
_SPARSE: dict[str, Formula] = {}

#: Errors of a formula if a signature lacks what it needs, or does not fit the operator.
_ODD_ARGUMENTS = (LookupError, TypeError, ValueError, ArithmeticError)
_FIGURES = ("flops", "read_bytes", "written_bytes", "causal_flops", "normalization_flops")
_OPTIONAL = ("causal_flops",)


def formula(
    *operators: str, device: str | None = None, sparse: bool = False, replace: bool = False
) -> Callable[[_F], _F]:
    """Make the decorated function the formula of `operators`, which are named as in a trace (`aten::mm`).

    The function gets the `Signature` of one call and returns the call's `Cost`. The cost of the call is unknown if the
    function raises `LookupError`, `TypeError`, `ValueError` or `ArithmeticError`, or if a number in its `Cost` is
    negative or (except `causal_flops`) `None`. A formula with a `device`, such as `cpu`, applies only to calls on that
    kind of device, and one with `sparse=True` only to calls with a sparse tensor. Raises `UsageError` if an operator
    already has a formula of that kind, unless `replace` is true.
    """
    _check_names("formula", operators, '@formula("mylib::my_operator")')

    def register(function: _F) -> _F:
        for operator in operators:
            if not replace:
                _check_new(operator, device=device, sparse=sparse, function=function)
            if sparse:
                _SPARSE[operator] = function
            elif device is None:
                _FORMULAS[operator] = function
            else:
                _BY_DEVICE[operator, device] = function
        return function

    return register


def _check_new(operator: str, *, device: str | None, sparse: bool, function: Callable[..., Any]) -> None:
    """Raise an error for a second formula of an operator; allow rerunning a notebook cell."""
    if sparse:
        old = _SPARSE.get(operator)
    else:
        old = _FORMULAS.get(operator) if device is None else _BY_DEVICE.get((operator, device))
    if old is not None and (_is_ours(old) or _name(old) != _name(function)):
        raise UsageError(f"formula: {operator} already has a formula, {_place(old)} - pass replace=True to replace it")


def _name(function: Callable[..., Any]) -> tuple[object, object]:
    return getattr(function, "__module__", None), getattr(function, "__qualname__", None)


def pattern(*expressions: str) -> Callable[[_F], _F]:
    """Make a function the formula of all operators whose full name matches an expression.

    The function gets the name and the `Signature`. An operator that has its own formula keeps it.
    """
    _check_names("pattern", expressions, '@pattern(r"mylib::kernel_[0-9]+")')

    def register(function: _F) -> _F:
        _PATTERNS[:0] = [(re.compile(expression), function) for expression in expressions]
        return function

    return register


def _check_names(decorator: str, names: tuple[object, ...], example: str) -> None:
    wrong = next((name for name in names if not isinstance(name, str) or not name), None)
    if not names or wrong is not None:
        said = "no operator name" if not names else f"{_place(wrong)} is not an operator name"
        raise UsageError(f"{decorator}: {said} - write {example} above the function")


def _matching(operator: str) -> NamedFormula | None:
    return next((function for expression, function in _PATTERNS if expression.fullmatch(operator)), None)


def cost(operator: str, signature: Signature, device: str | None = None) -> Cost | None:
    """Return the FLOPs and bytes of one operator call; `None` without a formula or if it needs unknown arguments.

    `device` is the kind of device that ran the call, if that makes a difference. Raises `UsageError` if a formula does
    not return a `Cost` of integers.
    """
    function = _BY_DEVICE.get((operator, device)) if device is not None else None
    function = function or _FORMULAS.get(operator)
    named = None if function else _matching(operator)
    is_sparse, chosen = any(tensor.sparse for tensor in signature.tensors()), function or named
    if is_sparse and (chosen is None or _is_ours(chosen)) and not re.search(r"mkldnn|onednn|mkl::", operator):
        # Ours take their tensors for dense, all but oneDNN's, whose layout is its own.
        function, named = _SPARSE.get(operator), None
    try:
        formula_cost = function(signature) if function else named(operator, signature) if named else None
    except _ODD_ARGUMENTS:
        return None
    except Exception as error:
        if _is_ours(function or named):
            raise
        text = f"{type(error).__name__}: {error}".replace("\n", " ")
        raise UsageError(
            f"formula {_place(function or named)} raised an error for {operator} ({text}) - fix the formula"
        ) from error
    return None if formula_cost is None else _checked(formula_cost, function or named)


def _checked(formula_cost: Cost, function: Callable[..., Any] | None) -> Cost | None:
    """Return the cost, `None` if a figure is; raise `UsageError`, naming the formula, for anything but integers."""
    if type(formula_cost) is not Cost:
        raise UsageError(
            f"formula {_place(function)} returned {formula_cost!r:.60}, not a Cost - return Cost(flops=...)"
        )
    for name in _FIGURES:
        value = getattr(formula_cost, name)
        if value is None:
            if name not in _OPTIONAL:
                return None
        elif type(value) is not int:
            raise UsageError(
                f"formula {_place(function)} returned {name}={value!r:.60}, not an integer - use int(...) or //"
            )
        elif value < 0:
            return None
    return formula_cost


def _is_ours(function: object) -> bool:
    return str(getattr(function, "__module__", "")).startswith("opanatomy.")


def _place(thing: object) -> str:
    """Return the name of a function and where it is written."""
    code = getattr(thing, "__code__", None)
    if code is None:
        return f"{thing!r:.60}"
    return f"{getattr(thing, '__qualname__', '?')} ({getsourcefile(code) or code.co_filename}:{code.co_firstlineno})"


def function_of(operator: str) -> Callable[..., Any] | None:
    """Return the function that is an operator's formula; `None` without one."""
    return _FORMULAS.get(operator) or _SPARSE.get(operator) or _matching(operator)


def has_formula(operator: str) -> bool:
    """Return whether an operator has a formula, its own or one by pattern."""
    return operator in _FORMULAS or operator in _SPARSE or _matching(operator) is not None


def describe(operator: str) -> str | None:
    """Return the description of an operator's formula, a line per paragraph; `None` without a formula."""
    function = function_of(operator)
    text = None if function is None else getdoc(function)
    return text and "\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def operators() -> tuple[str, ...]:
    """Return all operators with a formula, sorted, except those that only match a pattern."""
    return tuple(sorted({*_FORMULAS, *_SPARSE}))


def module_of(operator: str) -> str:
    """Return the module that defines an operator's formula; an empty string without a formula."""
    return str(getattr(_FORMULAS.get(operator), "__module__", ""))


def device_formulas() -> tuple[tuple[str, str, Callable[..., Any]], ...]:
    """Return (operator, device kind, function) of the formulas for one kind of device, sorted."""
    return tuple((*key, function) for key, function in sorted(_BY_DEVICE.items()))


def patterns() -> tuple[tuple[str, Callable[..., Any]], ...]:
    """Return (expression, function) of the formulas for names generated at run time."""
    return tuple((expression.pattern, function) for expression, function in _PATTERNS)
