"""The classes of operators and the phases of a step."""

from __future__ import annotations

import sys
from enum import auto
from typing import Final

if sys.version_info >= (3, 11):
    from enum import StrEnum as StrEnum
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
    """The part of a training step, or of a generation, that an operator ran in."""

    FORWARD = auto()
    BACKWARD = auto()
    RECOMPUTE = auto()
    OPTIMIZER = auto()
    #: Of a generation: what it takes to the first new token of each sample, and all after it.
    PREFILL = auto()
    DECODING = auto()
    OTHER = auto()


class IdleCause(StrEnum):
    """What kept a device idle: what the host did in that gap, or what the device itself waited for."""

    #: What the profiler recorded of itself, or Python under a recording of its stack.
    PROFILER = auto()
    COMPILATION = auto()
    #: Loading of data, and copies from the host that hold the host up.
    INPUT = auto()
    #: Calls that allocate or free memory of the device, or pinned memory of the host.
    ALLOCATOR = auto()
    #: A launch that takes many times as long as others, loading of modules.
    SLOW_LAUNCH = auto()
    #: Calls that wait for the device.
    SYNCHRONIZATION = auto()
    #: A collective's call on the host.
    COLLECTIVE = auto()
    #: Operators and launches of ordinary length.
    OPERATORS = auto()
    #: The host between operators.
    PYTHON = auto()
    #: What comes next was launched already; another stream worked last.
    STREAM = auto()
    #: What comes next was launched already, on the stream that worked last.
    DEVICE = auto()
    #: Nothing is recorded that says.
    UNKNOWN = auto()


#: A class or a phase in a column is its code: its place here. -1 is "none".
CLASSES: Final = tuple(OperatorClass)
PHASES: Final = tuple(Phase)
CLASS_CODE: Final = {name: code for code, name in enumerate(CLASSES)}
PHASE_CODE: Final = {phase: code for code, phase in enumerate(PHASES)}

FLOAT32, TF32 = "float32", "tf32"
#: Three tf32 products for one of float32: CUTLASS' OpMultiplyAddFastF32, which memory-efficient attention is built on.
THREE_TF32: Final = "3 x tf32"
#: What float32 operands are computed in; a column has the place here.
COMPUTE_TYPES: Final = (FLOAT32, TF32, THREE_TF32)
#: The peak that each of them is a share of.
PEAK_OF_COMPUTE_TYPE: Final = {FLOAT32: FLOAT32, TF32: TF32, THREE_TF32: TF32}
#: The codes of the phases in a column.
FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, OTHER = (
    PHASE_CODE[phase] for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE, Phase.OPTIMIZER, Phase.OTHER)
)
#: Those in which a model goes forward: a step's forward, or what a generation has instead.
FORWARDS: Final = tuple(PHASE_CODE[phase] for phase in (Phase.FORWARD, Phase.PREFILL, Phase.DECODING))
