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
    found = _NAME.match(name)
    if found is None or found["kind"] == "triton_tem":
        return _by_template(name)
    kind = found["kind"]
    operators = _operators(found["operators"])
    own = _class_of(kind, operators)
    inside = {found_class for operator, found_class in operators if _counts(kind, operator, found_class)}
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
    classes = {found for operator, found in operators if _counts(kind, operator, found)}
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


def _counts(kind: str, operator: str, found: OperatorClass | None) -> bool:
    """Whether the kernel really holds this operator's class (a fused bias names the contraction it belongs to)."""
    if found is not CONTRACTION:
        return found is not None
    if kind == "cpp":
        return operator in _COMPUTED_ON_CPU
    return operator in _COMPUTED and kind != "triton_poi"


def _operators(text: str) -> list[tuple[str, OperatorClass | None]]:
    """The operators in `_to_copy_add_native_layer_norm`, longest known name first; unknown words are skipped."""
    parts = text.split("_")
    found: list[tuple[str, OperatorClass | None]] = []
    at = 0
    while at < len(parts):
        for end in range(min(len(parts), at + _LONGEST), at, -1):
            word = "_".join(parts[at:end])
            known = classify_aten(word) if word and not word.endswith("_") else None
            if known is not None:
                found.append((word, known.operator_class))
                at = end
                break
        else:
            at += 1
    return found
