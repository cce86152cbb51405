"""Sums over rows of an anatomy, in which what is not known stays apart from 0."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from msgspec import Struct

from opanatomy.records.anatomy import MIN_COVERED, Anatomy, ClassRow, OperatorRow
from opanatomy.report.section import Bytes, Flops

Row = TypeVar("Row", ClassRow, OperatorRow)


class Total(Struct, frozen=True, kw_only=True):
    """The sum of some rows; `flops` and `bytes` are `None` where no row knows them.

    `costed_ns` is the time of the work that `flops` are known of, `bounded_ns` of the work that `bound_ns` is known of.
    """

    calls: int
    time_ns: float
    flops: float | None
    bytes: float | None
    costed_ns: float
    bound_ns: float | None
    bounded_ns: float

    def a_step(self, steps: int) -> Total:
        """The mean over so many steps; `calls` are still those of all."""
        if steps == 1:
            return self
        return Total(
            calls=self.calls,
            time_ns=self.time_ns / steps,
            flops=None if self.flops is None else self.flops / steps,
            bytes=None if self.bytes is None else self.bytes / steps,
            costed_ns=self.costed_ns / steps,
            bound_ns=None if self.bound_ns is None else self.bound_ns / steps,
            bounded_ns=self.bounded_ns / steps,
        )

    @property
    def flops_are_all(self) -> bool:
        """Whether `flops` are those of all the work, not of the part that has a formula."""
        return self.costed_ns >= self.time_ns

    @property
    def flops_cover(self) -> bool:
        """Whether the FLOPs are those of so much of the time that a share of them says something."""
        return self.flops is not None and self.costed_ns >= MIN_COVERED * self.time_ns

    @property
    def covered(self) -> float | None:
        """The part of the time whose bound is known; `None` where none is."""
        return None if self.bound_ns is None or not self.time_ns else self.bounded_ns / self.time_ns

    @property
    def reached(self) -> float | None:
        """bound / time where the bound is known; `None` where that is too little of the time to say anything."""
        covered = self.covered
        if covered is None or covered < MIN_COVERED or not self.bounded_ns:
            return None
        return (self.bound_ns or 0) / self.bounded_ns

    @property
    def intensity(self) -> float | None:
        """FLOPs a byte; `None` where one is not known or nothing moved."""
        return None if self.flops is None or not self.bytes else self.flops / self.bytes


def amounts(part: Total) -> tuple[Flops, Bytes]:
    """The FLOPs and the bytes, lower bounds where some of the time has no formula; none where most has none."""
    flops = known_flops(part.flops, part.costed_ns, part.time_ns)
    return flops, Bytes(None if flops.flops is None else part.bytes, at_least=flops.at_least)


def known_flops(flops: float | None, costed_ns: float, time_ns: float) -> Flops:
    """FLOPs that are known of `costed_ns` of the time: a lower bound where that is not all, none below half of it."""
    if flops is None or costed_ns < MIN_COVERED * time_ns:
        return Flops(None)
    return Flops(flops, at_least=costed_ns < time_ns)


def total(rows: Iterable[Row]) -> Total:
    """The sum of class rows or of operator rows."""
    rows = tuple(rows)
    bounded = [row for row in rows if row.bound_ns is not None]
    return Total(
        calls=sum(row.calls for row in rows),
        time_ns=sum(row.time_ns for row in rows),
        flops=_known(row.flops for row in rows),
        bytes=_known(moved(row) for row in rows),
        costed_ns=sum(_costed_ns(row) for row in rows),
        bound_ns=_known(row.bound_ns for row in rows),
        bounded_ns=sum(row.bounded_ns for row in bounded),
    )


def without_operator_ns(anatomy: Anatomy) -> tuple[int, int]:
    """(launched by graphs, all else) of the device work that no operator call launched by itself, over all steps."""
    left = sum(row.time_ns for row in anatomy.classes) - sum(row.time_ns for row in anatomy.operators)
    # A kernel of a graph may be an operator's by its name.
    graphs = min(anatomy.ledger.graph_launched_ns, max(left - anatomy.ledger.no_launch_record_ns, 0))
    return graphs, left - graphs


def moved(row: ClassRow | OperatorRow) -> int | None:
    """Bytes read and written; `None` where one is not known."""
    if row.read_bytes is None or row.written_bytes is None:
        return None
    return row.read_bytes + row.written_bytes


def _costed_ns(row: ClassRow | OperatorRow) -> int:
    if row.flops is None:
        return 0
    return row.time_ns - row.uncosted_ns


def _known(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
