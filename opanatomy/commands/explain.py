"""`opanatomy explain NAME`: the class of an operator or kernel, the rule that decided, its formula."""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path

from opanatomy.commands.stdout import write_out
from opanatomy.commands.worked import as_written, example, not_explained, read_report
from opanatomy.errors import UsageError
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.signature import Classification
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.redaction.texts import spoken


def run(arguments: argparse.Namespace) -> None:
    """Print what is known of each name, and of what a report leaves unexplained."""
    if not arguments.name and arguments.unknown is None:
        raise UsageError("explain: no name - give an operator or kernel, or --unknown REPORT")
    anatomy = read_report(Path(arguments.report)) if arguments.report else None
    blocks = [explain(spoken(name), anatomy) for name in arguments.name]
    if arguments.unknown is not None:
        unexplained = not_explained(read_report(Path(arguments.unknown)))
        blocks.append("".join(f"{line}\n" for line in unexplained))
    write_out("\n".join(blocks), machine_readable=False)


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


def _formula(name: str, found: Classification) -> list[str]:
    from opanatomy.cost.registry import describe, function_of

    if found.operator_class is None:
        return []
    text = describe(name) or "none: its FLOPs and bytes are not known"
    first, *others = [line.strip() for line in text.splitlines() if line.strip()]
    function = function_of(name)
    written = as_written(function) if function else []
    return [f"  formula   {first}", *(f"            {line}" for line in others), *written]


def _as_operator(found: Classification) -> list[str]:
    if found.operator_class is None:
        return [
            "  operator  does no work of its own: it dispatches, or is a view, an allocation or a range",
            _rule(found),
        ]
    lines = [f"  operator  {_label(found)}", _rule(found)]
    if found.delegates:
        lines.append("            only where no operator below it computes")
    return lines


def _as_kernel(found: Classification, name: str) -> list[str]:
    lines = [f"  kernel    {_label(found)}", _rule(found)]
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


def _label(found: Classification) -> str:
    label = str(found.operator_class or "unknown").replace("_", " ")
    inside = ", ".join(str(one).replace("_", " ") for one in found.contains)
    return f"{label}, containing {inside}" if inside else label


def _rule(found: Classification) -> str:
    return f"  rule      {found.rule}"
