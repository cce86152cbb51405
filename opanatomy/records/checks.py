"""Figures checked against a second source."""

from __future__ import annotations

from typing import Final

from opanatomy.records.record import Record
from opanatomy.records.taxonomy import Phase

#: The differences of a check that together touch less than this part of the device work are no alarm.
MINOR: Final = 0.01
#: The quantities of the checks by causality.
CLASSES: Final = "classes of kernels"
ORDER: Final = "order on streams"
CLOCKS: Final = "clocks of host and device"
LAUNCHES: Final = "device work of launches"
EVENTS: Final = "device events"


class Difference(Record, frozen=True, kw_only=True):
    """One figure of the report that a second source does not confirm, both in the unit of its check.

    `cause` says why where a known cause does; `None` is an error of this tool, or a trace that cannot be right.
    `evidence` is what a reader can look up: modules, shapes, times. `time_ns` is the device work (on the CPU the self
    time) of the calls that the difference touches, over all steps; `None` where no time can be named.
    """

    operator: str
    phase: Phase | None = None
    ours: int | None = None
    other: int | None = None
    cause: str | None = None
    evidence: str | None = None
    time_ns: int | None = None

    def share(self, work_ns: float) -> float:
        """Return the part of the device work that is touched, without a time the part by which the figures differ."""
        if self.time_ns is not None and work_ns:
            return min(self.time_ns / work_ns, 1.0)
        if self.ours is None or self.other is None:
            return 1.0
        return abs(self.ours - self.other) / max(abs(self.ours), abs(self.other), 1)


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

    def share(self, work_ns: float) -> float:
        """Return the part of the device work that the unexplained differences touch together."""
        return min(sum(difference.share(work_ns) for difference in self.unexplained), 1.0)
