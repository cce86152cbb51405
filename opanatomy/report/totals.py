"""Sum rows of an anatomy, with unknown values apart from 0."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import asdict, replace

from opanatomy.records.anatomy import MIN_COVERED, Anatomy
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.records.work import ClassRow, OperatorRow
from opanatomy.report.section import Bytes, Flops

SummedRow = TypeVar("SummedRow", ClassRow, OperatorRow)


class Total(Struct, frozen=True, kw_only=True):
    """The sum of some rows; `flops` and `bytes` are `None` if no row knows them.

    FLOPs of 0 become `None` if work other than collectives and copies, which have none, has unknown FLOPs. `calls`
    excludes calls inside another call; `counted_ns` is the time of work with known `flops`, `costed_ns` with known
    `bytes` too (a collective without sizes has 0 FLOPs and unknown bytes), `bounded_ns` with a known `bound_ns`.
    """

    calls: float
    time_ns: float
    flops: float | None
    bytes: float | None
    counted_ns: float
    costed_ns: float
    bound_ns: float | None
    bounded_ns: float
    #: Whether the trace lacks some of the work, so that sums are lower bounds.
    lacks_work: bool = False

    def per_step(self, steps: int) -> Total:
        """Return the mean over so many steps."""
        if steps == 1:
            return self
        sums = {name: value and value / steps for name, value in asdict(self).items() if name != "lacks_work"}
        return Total(**sums, lacks_work=self.lacks_work)

    @property
    def flops_are_all(self) -> bool:
        """Return whether `flops` cover all work, not only the part with a formula."""
        return self.counted_ns >= self.time_ns and not self.lacks_work

    @property
    def flops_cover(self) -> bool:
        """Return whether the FLOPs cover enough of the time for a share of them to mean something."""
        return self.flops is not None and self.counted_ns >= MIN_COVERED * self.time_ns

    @property
    def bytes_cover(self) -> bool:
        """Return whether the bytes cover enough of the time for a rate of them to mean something."""
        return self.bytes is not None and self.costed_ns >= MIN_COVERED * self.time_ns

    def rate(self, amount: float | None) -> float | None:
        """Return an amount per second over the time with known cost; `None` if that is too short."""
        return amount * 1e9 / self.costed_ns if amount is not None and self.bytes_cover and self.costed_ns else None

    @property
    def covered(self) -> float | None:
        """Return the fraction of the time with a known bound; `None` if there is none."""
        return None if self.bound_ns is None or not self.time_ns else self.bounded_ns / self.time_ns

    @property
    def reached(self) -> float | None:
        """Return bound / time for the part with a known bound; `None` if that is too little of the time."""
        covered = self.covered
        if covered is None or covered < MIN_COVERED or not self.bounded_ns:
            return None
        return (self.bound_ns or 0) / self.bounded_ns

    @property
    def intensity(self) -> float | None:
        """Return FLOPs per byte; `None` if they are known for too little of the time or nothing moved."""
        return None if self.flops is None or not self.bytes_cover or not self.bytes else self.flops / self.bytes


def amounts(part: Total) -> tuple[Flops, Bytes]:
    """Return FLOPs and bytes, as lower bounds if part of the time has no formula; none if most has none."""
    flops = known_flops(part.flops, part.counted_ns, part.time_ns)
    return (
        replace(flops, at_least=flops.at_least or part.lacks_work),
        Bytes(part.bytes if part.bytes_cover else None, at_least=part.costed_ns < part.time_ns or part.lacks_work),
    )


def known_flops(flops: float | None, counted_ns: float, time_ns: float) -> Flops:
    """Return FLOPs known for `counted_ns` of the time: a lower bound if that is not all, none below half."""
    if flops is None or counted_ns < MIN_COVERED * time_ns:
        return Flops(None)
    return Flops(flops, at_least=counted_ns < time_ns)


#: Classes of work without any arithmetic.
_WITHOUT_FLOPS: Final = (OperatorClass.COMMUNICATION, OperatorClass.DATA_MOVEMENT)


def total(rows: Iterable[SummedRow], *, lacks_work: bool = False) -> Total:
    """Return the sum of class rows or of operator rows, lower bounds if the trace lacks some of the work."""
    rows = tuple(rows)
    bounded = [row for row in rows if row.bound_ns is not None]
    flops, time_ns = _known(row.flops for row in rows), sum(row.time_ns for row in rows)
    costed = [0 if row.flops is None else row.time_ns - row.uncosted_ns for row in rows]
    counted_ns = sum(
        row.time_ns if row.operator_class is OperatorClass.COMMUNICATION else costed_ns
        for row, costed_ns in zip(rows, costed, strict=True)
    )
    known = flops or counted_ns >= time_ns or all(row.operator_class in _WITHOUT_FLOPS for row in rows)
    return Total(
        calls=sum(row.calls for row in rows if isinstance(row, ClassRow) or row.part_of is None),
        time_ns=time_ns,
        flops=flops if known else None,
        bytes=_known(moved(row) for row in rows),
        counted_ns=counted_ns,
        costed_ns=sum(costed),
        bound_ns=_known(row.bound_ns for row in rows),
        bounded_ns=sum(row.bounded_ns for row in bounded),
        lacks_work=lacks_work,
    )


def without_operator_ns(anatomy: Anatomy) -> tuple[int, int]:
    """Return (graph-launched, other) device work not launched by an operator call, over all steps."""
    left = anatomy.work_ns - sum(row.time_ns for row in anatomy.operators)
    # A kernel of a graph may be an operator's by its name.
    graphs = min(anatomy.ledger.graph_launched_ns, max(left - anatomy.ledger.no_launch_record_ns, 0))
    return graphs, left - graphs


def moved(row: ClassRow | OperatorRow) -> int | None:
    """Return bytes read plus written; `None` if either is unknown."""
    if row.read_bytes is None or row.written_bytes is None:
        return None
    return row.read_bytes + row.written_bytes


def _known(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
