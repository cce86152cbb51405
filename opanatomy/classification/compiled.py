"""The class of a kernel that torch.compile wrote, by the operators that its name carries."""

from __future__ import annotations

import re

from opanatomy.classification.aten import classify_aten
from opanatomy.classification.rules import CONTRACTION, ELEMENTWISE, MOVEMENT, NORMALIZATION, OTHER, UNKNOWN
from opanatomy.records.signature import Classification
from opanatomy.records.taxonomy import OperatorClass

_NAME = re.compile(
    r"^(?:void )?(?:graph_\d+_)?(?:kernel_)?"
    r"(?P<kind>cpp|triton(?:_(?:poi|red|per|pem|tem|for|spl|coo|mix|use|fix|sca))?)_fused_?(?P<operators>\w*?)"
    r"(?:_\d+)?(?:_\d[\ddec]*)?(?:\.kd)?$"
)
_TEMPLATE = re.compile(
    r"^triton_(?:tem_|template_|mm|bmm|addmm|flex_attention)"
    r"|^cpp_\w*(?:gemm|Gemm|GEMM|flex_attention)"
)
_UNNAMED = re.compile(r"^triton_(?:_[\ddec]*)?$")
_ATTENTION = re.compile(r"attention|attn|softmax")

#: Kinds of Triton kernels that reduce; the others without a table entry are maps (`poi`, `for`).
_REDUCTIONS = frozenset({"red", "per", "pem", "spl", "coo", "mix"})
#: Contractions that a generated loop computes itself. A convolution or addmm in such a name is a library call whose
#: bias or layout change was fused; only C++ templates compute addmm.
_COMPUTED = frozenset({"mm", "bmm", "mv", "dot", "baddbmm", "einsum", "matmul"})
_COMPUTED_ON_CPU = _COMPUTED | {"addmm", "linear", "addmv", "_int_mm"}
_LONGEST = 8


def classify_compiled(name: str) -> Classification | None:
    """The class of a kernel written by torch.compile; `None` where the name is not one of those.

    `triton_red_fused_add_mean_0` is a normalization that contains element-wise work, `cpp_fused_clone_0` data movement.
    """
    if "triton_" not in name and "cpp_" not in name:
        return None
    match = _NAME.match(name)
    if match is None or match["kind"] == "triton_tem":
        return _by_template(name)
    kind = match["kind"]
    operators = _operators(match["operators"])
    own = _class_of(kind, operators)
    inside = {its_class for operator, its_class in operators if _counts(kind, operator, its_class)}
    return Classification(
        operator_class=own,
        rule=f"compiled/{kind}: {' '.join(operator for operator, _ in operators) or 'no operator named'}",
        contains=tuple(item for item in OperatorClass if item in inside and item != own),
    )


def _by_template(name: str) -> Classification | None:
    if _TEMPLATE.match(name):
        inside = (NORMALIZATION,) if _ATTENTION.search(name) else ()
        return Classification(operator_class=CONTRACTION, rule="compiled/template", contains=inside)
    if _UNNAMED.match(name):
        return Classification(operator_class=UNKNOWN, rule="compiled/unnamed: the name carries no operator")
    return None


def _class_of(kind: str, operators: list[tuple[str, OperatorClass | None]]) -> OperatorClass:
    classes = {its_class for operator, its_class in operators if _counts(kind, operator, its_class)}
    category = kind.removeprefix("triton_")
    if CONTRACTION in classes:
        return CONTRACTION
    if category in _REDUCTIONS:
        return OTHER if OTHER in classes and NORMALIZATION not in classes else NORMALIZATION
    if kind in ("cpp", "triton") and NORMALIZATION in classes:
        return NORMALIZATION
    if ELEMENTWISE in classes or NORMALIZATION in classes:
        return ELEMENTWISE
    if OTHER in classes:
        return OTHER
    return MOVEMENT if MOVEMENT in classes else ELEMENTWISE


def _counts(kind: str, operator: str, operator_class: OperatorClass | None) -> bool:
    """Whether the kernel really holds this operator's class (a fused bias names the contraction it belongs to)."""
    if operator_class is not CONTRACTION:
        return operator_class is not None
    if kind == "cpp":
        return operator in _COMPUTED_ON_CPU
    return operator in _COMPUTED and kind != "triton_poi"


def _operators(text: str) -> list[tuple[str, OperatorClass | None]]:
    """The operators in `_to_copy_add_native_layer_norm`, longest known name first; unknown words are skipped."""
    parts = text.split("_")
    operators: list[tuple[str, OperatorClass | None]] = []
    at = 0
    while at < len(parts):
        for end in range(min(len(parts), at + _LONGEST), at, -1):
            word = "_".join(parts[at:end])
            known = classify_aten(word) if word and not word.endswith("_") else None
            if known is not None:
                operators.append((word, known.operator_class))
                at = end
                break
        else:
            at += 1
    return operators
