"""The builder of `tests.made_trace` by its old name."""

from tests.made_trace import TraceBuilder as HandMade
from tests.made_trace import training_step

__all__ = ["HandMade", "training_step"]
