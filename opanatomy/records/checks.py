"""Figures checked against a second source."""

from __future__ import annotations

from opanatomy.records.record import Record
from opanatomy.records.taxonomy import Phase


class Difference(Record, frozen=True, kw_only=True):
    """One figure of the report that a second source does not confirm, both in the unit of its check.

    `cause` says why where a known cause does; `None` is an error of this tool, or a trace that cannot be right.
    `evidence` is what a reader can look up: modules, shapes, times.
    """

    operator: str
    phase: Phase | None = None
    ours: int | None = None
    other: int | None = None
    cause: str | None = None
    evidence: str | None = None


class Check(Record, frozen=True, kw_only=True):
    """The figures of one kind, checked against a second source that does not share their attribution.

    `quantity` is what was compared ("call counts", "contraction FLOPs", "operator times", "backward contractions", ...)
    and `unit` its unit ("calls", "FLOPs", "ns"). Of the
    `compared` figures `equal` agree; each other one has a row in `differences`.
    `not_checked` says why nothing, or not all, could be compared.
    """

    quantity: str
    source: str
    unit: str
    compared: int = 0
    equal: int = 0
    differences: tuple[Difference, ...] = ()
    not_checked: str | None = None

    @property
    def unexplained(self) -> tuple[Difference, ...]:
        """The differences of which no cause is known."""
        return tuple(difference for difference in self.differences if difference.cause is None)
