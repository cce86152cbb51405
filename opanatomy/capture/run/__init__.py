"""Run the profiled step: warm-up, timing, ranges, export, and observations that Kineto drops."""
