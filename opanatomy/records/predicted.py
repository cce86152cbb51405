"""What a step is predicted to take: its time as a range, by class and phase, and what it rests on."""

from __future__ import annotations

from enum import Enum

from opanatomy.records.record import Record
from opanatomy.records.taxonomy import OperatorClass, Phase


class Basis(str, Enum):
    """What the time of a call is known from, the best first."""

    SAME_CALL = "same_call"
    SAME_OPERATOR = "same_operator"
    OTHER_DTYPE = "other_dtype"
    SAME_CLASS = "same_class"
    NOTHING = "nothing"
    #: A contraction in another data type, of which the device's peak is not known: no prediction.
    NO_PEAK = "no_peak"

    __str__ = str.__str__


class PredictedRow(Record, frozen=True, kw_only=True):
    """Like calls of one operator in one phase: what they are predicted to take together, and their FLOPs."""

    operator: str
    phase: Phase
    operator_class: OperatorClass
    calls: int
    time_ns: float
    low_ns: float
    high_ns: float
    flops: int | None
    basis: Basis


class PredictedTime(Record, frozen=True, kw_only=True):
    """The wall time of a step, the most likely and the range, and the operators that it is the sum of.

    `framework_ns` is what passes between the operators.
    """

    time_ns: float
    low_ns: float
    high_ns: float
    framework_ns: float
    rows: tuple[PredictedRow, ...]

    @property
    def lacks_peak(self) -> bool:
        """Whether a part of it is in a data type of which the device's peak is not known: then it says nothing."""
        return any(row.basis is Basis.NO_PEAK for row in self.rows)
