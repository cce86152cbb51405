"""Memory of a step from a trace: memory events -> blocks -> curve, peak and inferred components."""

from opanatomy.memory.from_trace import doubts_of, memory_of_trace, with_trace

__all__ = ["doubts_of", "memory_of_trace", "with_trace"]
