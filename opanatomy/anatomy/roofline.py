"""The anatomy with the ceilings of its device: bounds, efficiency, headroom, utilization.

The bound of a call is the longer of FLOPs / peak and bytes / bandwidth (Williams, Waterman and Patterson, "Roofline",
2009). Peaks go by class and data type: contractions are compared with the matrix units, all other arithmetic with the
vector units.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.anatomy.faster import QUANTITY, Bounding, check_ceilings, exceeded_ceilings
from opanatomy.anatomy.peaks import UNSURE, peak_name
from opanatomy.records.anatomy import COMPUTE, MEMORY, MIN_COVERED, Anatomy, ClassRow, OperatorRow
from opanatomy.records.device import Ceilings, DeviceFigures
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.records.workload import Environment

_NS = 1_000_000_000


class Bound(Struct, frozen=True):
    """The least time, and what sets it."""

    ns: int
    by: str


def with_roofline(anatomy: Anatomy, ceilings: Ceilings) -> Anatomy:
    """The anatomy with a bound for each operator and class, and the utilization of the step.

    What a device has no peak for, and what crosses a link, gets no bound. An operator that runs as a part of another
    one has a bound of 0: its work is counted there.
    """
    named = _Peaks(ceilings, anatomy.environment)
    operators = named.bounded(anatomy.operators)
    # A ceiling that the user sets lower than what is known confirms nothing and contradicts nothing.
    reference = _Peaks(ceilings.reference, anatomy.environment)
    compared = operators if reference.ceilings is ceilings else reference.bounded(anatomy.operators)
    check = check_ceilings(compared, reference.bounding)
    exceeded = exceeded_ceilings(operators, named.bounding, check) if ceilings.given else ()
    others = tuple(other for other in anatomy.checks if other.quantity != QUANTITY)
    return replace(
        anatomy,
        operators=operators,
        checks=(*others, check),
        classes=tuple(_class_row(row, operators) for row in anatomy.classes),
        device=replace(_figures(anatomy, named), exceeded=exceeded),
    )


class _Peaks(Struct, frozen=True):
    """The ceilings, and what decides which of them a row is compared with."""

    ceilings: Ceilings
    environment: Environment

    def name(self, row: OperatorRow) -> str | None:
        """The data type of the row's peak; float32 products go by what they were computed in."""
        dtype = row.signature.record.compute_dtype
        if row.operator_class is not OperatorClass.TENSOR_CONTRACTION:
            return dtype
        return peak_name(row.compute_type, row.part_of or row.operator, dtype, self.ceilings, self.environment)

    def bounded(self, operators: Iterable[OperatorRow]) -> tuple[OperatorRow, ...]:
        """The rows with their bounds by these ceilings."""
        return _with_parts(_bounded(row, self) for row in operators)

    @property
    def bounding(self) -> Bounding:
        """How these ceilings bound a row."""
        return Bounding(ceilings=self.ceilings, bound_ns=self._bound_ns, peak_name=self.name)

    def _bound_ns(self, row: OperatorRow, flops: int, moved_bytes: int) -> int | None:
        bound = _bound(row, flops, moved_bytes, self)
        return bound.ns if bound else None


def bound_of(
    flops: int, moved_bytes: int, operator_class: OperatorClass, dtype: str | None, ceilings: Ceilings
) -> Bound | None:
    """The bound of work of this class and data type (a name of a peak); `None` where the ceiling is not known."""
    if operator_class is OperatorClass.COMMUNICATION or ceilings.bandwidth_bytes_per_second is None:
        return None
    by_memory = moved_bytes / ceilings.bandwidth_bytes_per_second
    peak = _peak(operator_class, dtype, ceilings)
    if flops and not peak:
        return None
    by_compute = flops / peak if peak else 0.0
    return Bound(round(_NS * max(by_memory, by_compute)), COMPUTE if by_compute > by_memory else MEMORY)


def _peak(operator_class: OperatorClass, dtype: str | None, ceilings: Ceilings) -> float | None:
    if operator_class is OperatorClass.TENSOR_CONTRACTION:
        return ceilings.matrix_peak(dtype)
    return ceilings.vector_peak(dtype)


def _bounded(row: OperatorRow, named: _Peaks) -> OperatorRow:
    if row.crosses_host_link or row.flops is None or row.read_bytes is None or row.written_bytes is None:
        return replace(row, bound_ns=None, bound_by=None)
    bound = _bound(row, row.flops, row.read_bytes + row.written_bytes, named)
    return replace(row, bound_ns=bound.ns if bound else None, bound_by=bound.by if bound else None)


def _bound(row: OperatorRow, flops: int, moved_bytes: int, named: _Peaks) -> Bound | None:
    return bound_of(flops, moved_bytes, row.operator_class, named.name(row), named.ceilings)


def _with_parts(rows: Iterable[OperatorRow]) -> tuple[OperatorRow, ...]:
    """The rows, the bound of parts 0 where that of the operator which they are part of is known."""
    rows = tuple(rows)
    whole = {(row.operator, row.phase) for row in rows if row.part_of is None and row.bound_ns is not None}
    return tuple(
        row
        if row.part_of is None
        else replace(row, bound_ns=0 if (row.part_of, row.phase) in whole else None, bound_by=None)
        for row in rows
    )


def _class_row(row: ClassRow, operators: Sequence[OperatorRow]) -> ClassRow:
    rows = [
        operator
        for operator in operators
        if operator.operator_class is row.operator_class
        and operator.phase is row.phase
        and operator.bound_ns is not None
    ]
    if not rows:
        return replace(row, bound_ns=None, bounded_ns=0, headroom_ns=None, memory_bound_ns=None)
    return replace(
        row,
        bound_ns=sum(operator.bound_ns or 0 for operator in rows),
        bounded_ns=sum(operator.bounded_ns for operator in rows),
        headroom_ns=headroom_ns(rows),
        memory_bound_ns=sum(operator.bound_ns or 0 for operator in rows if operator.bound_by == MEMORY),
    )


def headroom_ns(rows: Iterable[OperatorRow]) -> int:
    """Time above the bounds, operator by operator; `rows` are of one class and phase.

    An operator that caches made faster than memory allows has none, rather than less than none.
    """
    spare: Counter[str] = Counter()
    for row in rows:
        if row.bound_ns is not None:
            spare[row.part_of or row.operator] += row.bounded_ns - row.bound_ns
    return sum(max(ns, 0) for ns in spare.values())


def _figures(anatomy: Anatomy, named: _Peaks) -> DeviceFigures:
    ceilings = named.ceilings
    unsure = [row for row in anatomy.operators if named.name(row) == UNSURE]
    figures = replace(
        anatomy.device,
        no_ceilings=None,
        peak_flops_per_second=ceilings.matrix_flops_per_second,
        vector_flops_per_second=ceilings.vector_flops_per_second,
        bandwidth_bytes_per_second=ceilings.bandwidth_bytes_per_second,
        source=ceilings.source,
        mfu=None,
        hfu=None,
        mfu_dtype=None,
        mfu_covered=_covered(anatomy.classes),
        unsure_ns=sum(row.time_ns for row in unsure),
    )
    rows = [row for row in anatomy.operators if _is_costed_contraction(row)]
    wall = anatomy.step.unprofiled_wall_ns or anatomy.step.wall_ns
    dtype = _most_used(rows, named)
    peak = ceilings.matrix_peak(dtype)
    devices = [device for device in anatomy.timeline.devices if device.kernel_time_ns]
    # The peak is that of one kind of device: of several kinds together it is not known.
    unlike = len({device.name for device in devices}) > 1
    if not peak or not wall or unlike or figures.mfu_covered is None or figures.mfu_covered < MIN_COVERED:
        return figures
    attainable = peak * max(len(devices), 1) * anatomy.step.count * wall / _NS
    done = sum(row.flops or 0 for row in rows)
    again = sum(row.flops or 0 for row in rows if row.phase is Phase.RECOMPUTE)
    return replace(figures, mfu=(done - again) / attainable, hfu=done / attainable, mfu_dtype=dtype)


def _is_costed_contraction(row: OperatorRow) -> bool:
    return row.operator_class is OperatorClass.TENSOR_CONTRACTION and row.flops is not None


def _covered(classes: Iterable[ClassRow]) -> float | None:
    """The part of the time of contractions whose FLOPs are known; what no rule knows may be one and is counted so.

    Over the classes, not the operators: a kernel that a graph launched has no operator.
    """
    rows = tuple(classes)
    contractions = [row for row in rows if row.operator_class is OperatorClass.TENSOR_CONTRACTION]
    time = sum(row.time_ns for row in contractions)
    costed = sum(row.time_ns - row.uncosted_ns for row in contractions if row.flops is not None)
    unknown = sum(row.time_ns for row in rows if row.operator_class is OperatorClass.UNKNOWN)
    return costed / (time + unknown) if time else None


def _most_used(rows: Iterable[OperatorRow], named: _Peaks) -> str | None:
    """The data type in which most FLOPs of the contractions were done."""
    done: Counter[str] = Counter()
    for row in rows:
        dtype = named.name(row)
        if dtype is not None and row.flops:
            done["float8" if dtype.startswith("float8") else dtype] += row.flops
    return max(done, key=lambda dtype: (done[dtype], dtype)) if done else None
