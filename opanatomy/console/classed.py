"""What rules and formulas say of the name of an operator or a kernel."""

from __future__ import annotations

import re
from typing import Final

from opanatomy.console.worked import as_written
from opanatomy.records.signature import Classification
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.report.section import Fact, Phrase, joined, phrase

#: Words alone: no kernel and no operator of a library has such a name.
_WORDS: Final = re.compile(r"(?!mem(?:cpy|set) )[^\W\d_]+(?: [^\W\d_]+)+", re.IGNORECASE)


def formula(name: str, operator_class: OperatorClass | None) -> list[Fact]:
    """The formula of an operator in words and as it is written; nothing for one that does no work."""
    from opanatomy.cost.registry import describe, function_of

    if operator_class is None:
        return []
    text = describe(name) or "none: its FLOPs and bytes are not known"
    first, *others = [line.strip() for line in text.splitlines() if line.strip()]
    function = function_of(name)
    written = as_written(function) if function else []
    return [Fact(label="formula", text=first), *(Fact(label="", text=line) for line in others), *written]


def as_operator(name: str) -> list[Fact]:
    """The class of an operator by its name and the rule that decided; nothing where no rule knows it.

    That a name is some range, as every name without `::` is, says nothing of it.
    """
    from opanatomy.classification import classify_operator

    classification = classify_operator(name)
    if classification is None or classification.annotation:
        return []
    if classification.operator_class is None:
        nothing = "does no work of its own: it dispatches, or is a view, an allocation or a range"
        return [Fact(label="operator", text=nothing), _rule(classification)]
    facts = [Fact(label="operator", text=_classes(classification)), _rule(classification)]
    if classification.delegates:
        facts.append(Fact(label="", text="only where no operator below it computes"))
    return [*facts, *formula(name, classification.operator_class)]


def as_kernel(name: str) -> list[Fact]:
    """The class of a kernel by its name and the rule that decided; nothing where no rule knows it."""
    from opanatomy.classification import classify_kernel

    classification = classify_kernel(name)
    if classification.operator_class in (None, OperatorClass.UNKNOWN) or _WORDS.fullmatch(name):
        return []
    return [Fact(label="kernel", text=_classes(classification)), _rule(classification)]


def _classes(classification: Classification) -> Phrase:
    own = phrase("{}", classification.operator_class or OperatorClass.UNKNOWN)
    contained = joined(phrase("{}", item) for item in classification.contains)
    return phrase("{}, containing {}", own, contained) if contained else own


def _rule(classification: Classification) -> Fact:
    return Fact(label="rule", text=classification.rule)
