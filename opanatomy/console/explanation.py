"""What is known of a name: the class of an operator or kernel, the rule that decided, its formula."""

from __future__ import annotations

import difflib

from opanatomy.console.worked import as_written
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.signature import Classification
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.report.formats.terminal import fact_text
from opanatomy.report.section import Fact, Phrase, joined, phrase
from opanatomy.report.sections.explained import examples


def explain(name: str, anatomy: Anatomy | None = None) -> str:
    """A few lines on one name: what it is as an operator, what its text says as a kernel; its calls in a report."""
    from opanatomy.classification import classify_kernel, classify_operator

    full = name if "::" in name or name not in _short_names() else f"aten::{name}"
    operator = classify_operator(full)
    kernel = classify_kernel(name)
    named_like_kernel = "::" not in full and kernel.operator_class is not OperatorClass.UNKNOWN
    if operator is None or named_like_kernel:
        return f"{name}\n{fact_text(_as_kernel(kernel, name))}"
    facts = [*_as_operator(operator), *_formula(full, operator)]
    if operator.annotation:
        facts += _as_kernel(kernel, name)
    if anatomy is not None:
        facts += examples(full, anatomy)
    return f"{full}\n{fact_text(facts)}"


def _formula(name: str, classification: Classification) -> list[Fact]:
    from opanatomy.cost.registry import describe, function_of

    if classification.operator_class is None:
        return []
    text = describe(name) or "none: its FLOPs and bytes are not known"
    first, *others = [line.strip() for line in text.splitlines() if line.strip()]
    function = function_of(name)
    written = as_written(function) if function else []
    return [Fact(label="formula", text=first), *(Fact(label="", text=line) for line in others), *written]


def _as_operator(classification: Classification) -> list[Fact]:
    if classification.operator_class is None:
        nothing = "does no work of its own: it dispatches, or is a view, an allocation or a range"
        return [Fact(label="operator", text=nothing), _rule(classification)]
    facts = [Fact(label="operator", text=_classes(classification)), _rule(classification)]
    if classification.delegates:
        facts.append(Fact(label="", text="only where no operator below it computes"))
    return facts


def _as_kernel(classification: Classification, name: str) -> list[Fact]:
    facts = [Fact(label="kernel", text=_classes(classification)), _rule(classification)]
    near = difflib.get_close_matches(name, _operator_names(), n=3, cutoff=0.75)
    if near:
        facts.append(Fact(label="operator", text=f"none of this name; near: {', '.join(near)}"))
    return facts


def _operator_names() -> list[str]:
    from opanatomy.cost import operators

    return [*operators(), *_short_names()]


def _short_names() -> set[str]:
    from opanatomy.cost import operators

    return {name.removeprefix("aten::") for name in operators()}


def _classes(classification: Classification) -> Phrase:
    own = phrase("{}", classification.operator_class or OperatorClass.UNKNOWN)
    contained = joined(phrase("{}", item) for item in classification.contains)
    return phrase("{}, containing {}", own, contained) if contained else own


def _rule(classification: Classification) -> Fact:
    return Fact(label="rule", text=classification.rule)
