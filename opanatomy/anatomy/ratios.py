"""Backward over forward, per class, next to what theory says.

A ratio is of all the work of a class or not known: one call without a formula makes that of FLOPs and bytes `None`.
Nor is there one where the forward is next to nothing compared with the backward: it would say that the work is in the
backward only, not how the two compare.
"""

from __future__ import annotations

from msgspec import Struct

from opanatomy.records.anatomy import ClassRow, Ratio
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.records.workload import Workload

_BACKWARD = (Phase.BACKWARD, Phase.RECOMPUTE)
#: A forward of less than this part of its backward is next to nothing: no ratio is above its inverse.
_NEXT_TO_NOTHING = 0.01

#: A contraction Y = X W has two in its backward (dX = dY W', dW = X' dY), each with the FLOPs of the forward and over
#: the same three matrices. A map reads 1 and writes 1, its backward reads the gradient and a saved tensor and writes 1;
#: softmax and layer norm move the same.
_FLOPS = {OperatorClass.TENSOR_CONTRACTION: 2.0}
_BYTES = {
    OperatorClass.TENSOR_CONTRACTION: 2.0,
    OperatorClass.STATISTICAL_NORMALIZATION: 1.5,
    OperatorClass.ELEMENTWISE: 1.5,
}


class Theory(Struct, frozen=True, kw_only=True):
    """What theory says of one step: contraction FLOPs of its backward over its forward, recompute left out."""

    contraction_flops: float | None
    all_need_both: bool


def ratios_of(classes: tuple[ClassRow, ...], workload: Workload, theory: Theory | None = None) -> tuple[Ratio, ...]:
    """One row for each class that has work in forward and in backward (recompute counts as backward).

    `theory` is what is known of this step; without it theory is that of a step in which all is trained, where the
    workload says that it is, else none.
    """
    ratios = []
    for name in OperatorClass:
        forward = [row for row in classes if row.operator_class is name and row.phase is Phase.FORWARD]
        backward = [row for row in classes if row.operator_class is name and row.phase in _BACKWARD]
        if not forward or not backward:
            continue
        ratios.append(
            Ratio(
                operator_class=name,
                time=_over(_total(backward, "time_ns"), _total(forward, "time_ns")),
                flops=_over(_costed(backward, "flops"), _costed(forward, "flops")),
                bytes=_over(_moved(backward), _moved(forward)),
                theory_flops=_theory_flops(name, workload, theory),
                theory_bytes=_theory_bytes(name, workload, theory),
            )
        )
    return tuple(ratios)


def _theory_flops(name: OperatorClass, workload: Workload, theory: Theory | None) -> float | None:
    if theory is None or name is not OperatorClass.TENSOR_CONTRACTION:
        return _all_trained(_FLOPS.get(name), workload)
    return _with_recompute(theory.contraction_flops, workload)


def _theory_bytes(name: OperatorClass, workload: Workload, theory: Theory | None) -> float | None:
    if theory is not None and not theory.all_need_both:
        return None
    return _all_trained(_BYTES.get(name), workload)


def _all_trained(plain: float | None, workload: Workload) -> float | None:
    """Theory of a step in which every weight is trained; `None` where one is not, or it is not known."""
    trained = workload.parameters is not None and workload.parameters == workload.trainable_parameters
    return _with_recompute(plain, workload) if trained else None


def _with_recompute(plain: float | None, workload: Workload) -> float | None:
    """Recomputing the whole forward adds 1; of a model that is frozen in part it is not known how much of it runs."""
    if plain is None or not workload.checkpointing:
        return plain
    return None if workload.frozen else plain + 1


def _total(rows: list[ClassRow], name: str) -> int | None:
    values = [getattr(row, name) for row in rows]
    return None if any(value is None for value in values) else sum(values)


def _costed(rows: list[ClassRow], name: str) -> int | None:
    """The sum of what costs say; `None` where a part of the time has no cost."""
    return None if any(row.uncosted_ns for row in rows) else _total(rows, name)


def _moved(rows: list[ClassRow]) -> int | None:
    read, written = _costed(rows, "read_bytes"), _costed(rows, "written_bytes")
    return None if read is None or written is None else read + written


def _over(backward: int | None, forward: int | None) -> float | None:
    if backward is None or not forward or forward < _NEXT_TO_NOTHING * backward:
        return None
    return backward / forward
