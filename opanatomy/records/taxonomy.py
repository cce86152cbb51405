"""The classes of operators and the phases of a step."""

from __future__ import annotations

import sys
from enum import auto

if sys.version_info >= (3, 11):
    from enum import StrEnum
else:
    from enum import Enum

    class StrEnum(str, Enum):
        """What Python 3.11 has: members are their lower-case names."""

        @staticmethod
        def _generate_next_value_(name: str, start: int, count: int, last_values: list[str]) -> str:
            return name.lower()

        __str__ = str.__str__


class OperatorClass(StrEnum):
    """What kind of arithmetic an operator does; the first three are those of Ivanov et al., arXiv 2007.00072."""

    TENSOR_CONTRACTION = auto()
    STATISTICAL_NORMALIZATION = auto()
    ELEMENTWISE = auto()
    DATA_MOVEMENT = auto()
    COMMUNICATION = auto()
    OTHER = auto()
    UNKNOWN = auto()


class Phase(StrEnum):
    """The part of a training step that an operator ran in."""

    FORWARD = auto()
    BACKWARD = auto()
    RECOMPUTE = auto()
    OPTIMIZER = auto()
    OTHER = auto()
