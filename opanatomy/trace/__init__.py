"""Stage 2: a Kineto Chrome trace file -> `Trace`, columns of every schema from 2021 on."""

from opanatomy.trace.columns import Trace
from opanatomy.trace.reader import read_trace

__all__ = ["Trace", "read_trace"]
