"""Memory of a step from a trace: memory events -> blocks -> curve, peak and inferred components."""

from opanatomy.memory.from_trace import memory_of_trace, with_trace
from opanatomy.memory.warnings import warnings_of

__all__ = ["warnings_of", "memory_of_trace", "with_trace"]
