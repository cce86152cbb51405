"""Memory of a step from a trace: memory events -> blocks -> curve, peak and inferred components."""

from opanatomy.memory.doubts import doubts_of
from opanatomy.memory.from_trace import memory_of_trace, with_trace

__all__ = ["doubts_of", "memory_of_trace", "with_trace"]
