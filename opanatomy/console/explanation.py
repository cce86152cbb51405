"""What is known of a name: the class of an operator or kernel, the rule that decided, its formula."""

from __future__ import annotations

import difflib

from opanatomy.console.worked import as_written, example
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.signature import Classification
from opanatomy.records.taxonomy import OperatorClass


def explain(name: str, anatomy: Anatomy | None = None) -> str:
    """A few lines on one name: what it is as an operator, what its text says as a kernel; its calls in a report."""
    from opanatomy.classification import classify_kernel, classify_operator

    full = name if "::" in name or name not in _short_names() else f"aten::{name}"
    operator = classify_operator(full)
    kernel = classify_kernel(name)
    named_like_kernel = "::" not in full and kernel.operator_class is not OperatorClass.UNKNOWN
    if operator is None or named_like_kernel:
        return "\n".join([name, *_as_kernel(kernel, name)]) + "\n"
    lines = [full, *_as_operator(operator), *_formula(full, operator)]
    if operator.rule.endswith("ranges: range"):
        lines += _as_kernel(kernel, name)
    if anatomy is not None:
        lines += example(full, anatomy)
    return "\n".join(lines) + "\n"


def _formula(name: str, classification: Classification) -> list[str]:
    from opanatomy.cost.registry import describe, function_of

    if classification.operator_class is None:
        return []
    text = describe(name) or "none: its FLOPs and bytes are not known"
    first, *others = [line.strip() for line in text.splitlines() if line.strip()]
    function = function_of(name)
    written = as_written(function) if function else []
    return [f"  formula   {first}", *(f"            {line}" for line in others), *written]


def _as_operator(classification: Classification) -> list[str]:
    if classification.operator_class is None:
        return [
            "  operator  does no work of its own: it dispatches, or is a view, an allocation or a range",
            _rule(classification),
        ]
    lines = [f"  operator  {_label(classification)}", _rule(classification)]
    if classification.delegates:
        lines.append("            only where no operator below it computes")
    return lines


def _as_kernel(classification: Classification, name: str) -> list[str]:
    lines = [f"  kernel    {_label(classification)}", _rule(classification)]
    near = difflib.get_close_matches(name, _operator_names(), n=3, cutoff=0.75)
    if near:
        lines.append(f"  no operator of this name; near: {', '.join(near)}")
    return lines


def _operator_names() -> list[str]:
    from opanatomy.cost import operators

    return [*operators(), *_short_names()]


def _short_names() -> set[str]:
    from opanatomy.cost import operators

    return {name.removeprefix("aten::") for name in operators()}


def _label(classification: Classification) -> str:
    label = str(classification.operator_class or "unknown").replace("_", " ")
    inside = ", ".join(str(inner).replace("_", " ") for inner in classification.contains)
    return f"{label}, containing {inside}" if inside else label


def _rule(classification: Classification) -> str:
    return f"  rule      {classification.rule}"
