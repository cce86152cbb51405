"""Memory of a step: the allocations that a capture observed, or those in a trace -> blocks, curve, peak, components."""

from opanatomy.memory.from_observations import memory_of_observations
from opanatomy.memory.from_trace import memory_of_trace
from opanatomy.memory.joined import with_trace
from opanatomy.memory.warnings import warnings_of

__all__ = ["memory_of_observations", "memory_of_trace", "warnings_of", "with_trace"]
