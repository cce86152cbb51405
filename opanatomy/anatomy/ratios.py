"""Backward over forward, per class, beside what theory says."""

from __future__ import annotations

from opanatomy.model import ClassRow, OperatorClass, Phase, Ratio, Workload

_BACKWARD = (Phase.BACKWARD, Phase.RECOMPUTE)

#: A contraction Y = X W has two in its backward (dX = dY W', dW = X' dY), each with the FLOPs of the forward and over
#: the same three matrices. A map reads 1 and writes 1, its backward reads the gradient and a saved tensor and writes 1;
#: softmax and layer norm move the same.
_FLOPS = {OperatorClass.TENSOR_CONTRACTION: 2.0}
_BYTES = {
    OperatorClass.TENSOR_CONTRACTION: 2.0,
    OperatorClass.STATISTICAL_NORMALIZATION: 1.5,
    OperatorClass.ELEMENTWISE: 1.5,
}


def ratios_of(classes: tuple[ClassRow, ...], workload: Workload) -> tuple[Ratio, ...]:
    """One row for each class that has work in forward and in backward (recompute counts as backward)."""
    found = []
    for name in OperatorClass:
        forward = [row for row in classes if row.operator_class is name and row.phase is Phase.FORWARD]
        backward = [row for row in classes if row.operator_class is name and row.phase in _BACKWARD]
        if not forward or not backward:
            continue
        found.append(
            Ratio(
                operator_class=name,
                time=_over(_total(backward, "time_ns"), _total(forward, "time_ns")),
                flops=_over(_total(backward, "flops"), _total(forward, "flops")),
                bytes=_over(_moved(backward), _moved(forward)),
                theory_flops=_theory(_FLOPS.get(name), workload),
                theory_bytes=_theory(_BYTES.get(name), workload),
            )
        )
    return tuple(found)


def _theory(plain: float | None, workload: Workload) -> float | None:
    """Recomputing the whole forward adds 1; with frozen parameters theory gives no single number."""
    if plain is None or (workload.parameters and workload.trainable_parameters != workload.parameters):
        return None
    return plain + 1 if workload.checkpointing else plain


def _total(rows: list[ClassRow], name: str) -> int | None:
    values = [getattr(row, name) for row in rows]
    return None if any(value is None for value in values) else sum(values)


def _moved(rows: list[ClassRow]) -> int | None:
    read, written = _total(rows, "read_bytes"), _total(rows, "written_bytes")
    return None if read is None or written is None else read + written


def _over(backward: int | None, forward: int | None) -> float | None:
    return backward / forward if backward is not None and forward else None
